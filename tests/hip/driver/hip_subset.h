/* HIP's interface as far as the forwarding library has it, by the names of hip_runtime_api.h. With -DAMD_HEADERS the
 * library is compiled against AMD's own header instead, which is how a test finds differences in types. */
#ifndef HIP_SUBSET_H
#define HIP_SUBSET_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef AMD_HEADERS
#include <hip/hip_runtime_api.h>
#else
typedef enum {
    hipSuccess = 0, hipErrorInvalidValue = 1, hipErrorOutOfMemory = 2, hipErrorNotInitialized = 3,
    hipErrorDeinitialized = 4, hipErrorInvalidDevicePointer = 17, hipErrorInsufficientDriver = 35,
    hipErrorNoDevice = 100, hipErrorInvalidDevice = 101, hipErrorInvalidContext = 201, hipErrorMapFailed = 205,
    hipErrorAlreadyMapped = 208, hipErrorNotMapped = 211, hipErrorECCNotCorrectable = 214, hipErrorInvalidHandle = 400,
    hipErrorNotReady = 600, hipErrorIllegalAddress = 700, hipErrorLaunchTimeOut = 702, hipErrorContextIsDestroyed = 709,
    hipErrorAssert = 710, hipErrorHostMemoryAlreadyRegistered = 712, hipErrorHostMemoryNotRegistered = 713,
    hipErrorLaunchFailure = 719, hipErrorNotSupported = 801, hipErrorStreamCaptureUnsupported = 900,
    hipErrorStreamCaptureInvalidated = 901, hipErrorStreamCaptureMerge = 902, hipErrorStreamCaptureUnmatched = 903,
    hipErrorStreamCaptureUnjoined = 904, hipErrorStreamCaptureIsolation = 905, hipErrorStreamCaptureImplicit = 906,
    hipErrorCapturedEvent = 907, hipErrorStreamCaptureWrongThread = 908, hipErrorUnknown = 999
} hipError_t;
typedef enum {
    hipDeviceAttributeEccEnabled = 0, hipDeviceAttributeClockRate = 5, hipDeviceAttributeConcurrentManagedAccess = 9,
    hipDeviceAttributeIntegrated = 16, hipDeviceAttributeL2CacheSize = 19, hipDeviceAttributeManagedMemory = 24,
    hipDeviceAttributeMaxBlockDimX = 26, hipDeviceAttributeMaxBlockDimY = 27, hipDeviceAttributeMaxBlockDimZ = 28,
    hipDeviceAttributeMaxGridDimX = 29, hipDeviceAttributeMaxGridDimY = 30, hipDeviceAttributeMaxGridDimZ = 31,
    hipDeviceAttributeMaxThreadsPerBlock = 56, hipDeviceAttributeMemoryBusWidth = 59,
    hipDeviceAttributeMemoryClockRate = 60, hipDeviceAttributeMultiprocessorCount = 63,
    hipDeviceAttributeMaxRegistersPerBlock = 71, hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
    hipDeviceAttributeTotalConstantMemory = 83, hipDeviceAttributeWarpSize = 87,
    hipDeviceAttributeVirtualMemoryManagementSupported = 89
} hipDeviceAttribute_t;
typedef enum {
    HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4, HIP_POINTER_ATTRIBUTE_BUFFER_ID = 7, HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9
} hipPointer_attribute;
typedef enum { hipMemHandleTypePosixFileDescriptor = 1 } hipMemAllocationHandleType;
typedef enum { hipMemAllocationTypePinned = 1 } hipMemAllocationType;
typedef enum { hipMemLocationTypeDevice = 1 } hipMemLocationType;
typedef enum {
    hipMemAccessFlagsProtNone = 0, hipMemAccessFlagsProtRead = 1, hipMemAccessFlagsProtReadWrite = 3
} hipMemAccessFlags;
typedef enum {
    hipMemAllocationGranularityMinimum = 0, hipMemAllocationGranularityRecommended = 1
} hipMemAllocationGranularity_flags;
typedef enum { hipMemcpyDefault = 4 } hipMemcpyKind;
typedef enum { hipStreamCaptureModeRelaxed = 2 } hipStreamCaptureMode;
typedef enum { hipStreamCaptureStatusNone = 0, hipStreamCaptureStatusActive = 1 } hipStreamCaptureStatus;
typedef struct { hipMemLocationType type; int id; } hipMemLocation;
typedef struct {
    hipMemAllocationType type;
    hipMemAllocationHandleType requestedHandleType;
    hipMemLocation location;
    void *win32HandleMetaData;
    struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; } allocFlags;
} hipMemAllocationProp;
typedef struct { hipMemLocation location; hipMemAccessFlags flags; } hipMemAccessDesc;
typedef struct { char reserved[64]; } hipIpcMemHandle_t;
typedef struct { char reserved[64]; } hipIpcEventHandle_t;
typedef struct { char bytes[16]; } hipUUID;
typedef int hipDevice_t;
typedef void *hipDeviceptr_t;
typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipMemGenericAllocationHandle *hipMemGenericAllocationHandle_t;
typedef void (*hipHostFn_t)(void *);
typedef void (*hipStreamCallback_t)(hipStream_t, hipError_t, void *);
#define hipStreamNonBlocking 1
#define hipStreamWaitValueGte 0
#define hipEventDisableTiming 2
#define hipEventInterprocess 4
#define hipHostRegisterPortable 1
#define hipHostRegisterMapped 2
#define hipMallocSignalMemory 2
#define hipMemAttachGlobal 1
#define hipIpcMemLazyEnablePeerAccess 1
#endif
#endif
