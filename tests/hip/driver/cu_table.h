/* The operations that the forwarding library is made of: CUDA's driver functions, by the names and types of cuda.h.
 * The driver's own library has them, and so has the software driver (soft_cuda.c). */
#ifndef CU_TABLE_H
#define CU_TABLE_H
#include <stddef.h>
#include <stdint.h>

typedef int CUresult, CUdevice;
typedef uint64_t CUdeviceptr, CUhandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct { char bytes[64]; } CUipc;
typedef struct { int type, id; } CUlocation;
typedef struct { int type, handle_types; CUlocation location; void *win32; unsigned char flags[8]; } CUprop;
typedef struct { CUlocation location; int flags; } CUaccess;
typedef void (*CUhost)(void *);
typedef void (*CUcallback)(CUstream, CUresult, void *);

enum {
    CU_OK = 0, CU_INVALID_VALUE = 1, CU_OUT_OF_MEMORY = 2, CU_INVALID_DEVICE = 101, CU_INVALID_CONTEXT = 201,
    CU_ALREADY_MAPPED = 208, CU_NOT_MAPPED = 211, CU_INVALID_HANDLE = 400, CU_NOT_READY = 600,
    CU_ALREADY_REGISTERED = 712, CU_NOT_REGISTERED = 713, CU_NOT_SUPPORTED = 801,
};

#define CU_FUNCTIONS(X)                                                                                                 \
    X(cuInit, (unsigned flags))                                                                                         \
    X(cuDeviceGetCount, (int *count))                                                                                   \
    X(cuDeviceGetName, (char *name, int length, CUdevice device))                                                       \
    X(cuDeviceGetUuid_v2, (void *uuid, CUdevice device))                                                                \
    X(cuDeviceGetPCIBusId, (char *name, int length, CUdevice device))                                                   \
    X(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                                               \
    X(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))                                                \
    X(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device))                                                  \
    X(cuCtxSetCurrent, (CUcontext context))                                                                             \
    X(cuMemGetInfo_v2, (size_t *unused, size_t *total))                                                                 \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                                                                   \
    X(cuMemAlloc_v2, (CUdeviceptr *at, size_t nbytes))                                                                  \
    X(cuMemAllocManaged, (CUdeviceptr *at, size_t nbytes, unsigned flags))                                              \
    X(cuMemFree_v2, (CUdeviceptr at))                                                                                   \
    X(cuMemHostAlloc, (void **at, size_t nbytes, unsigned flags))                                                       \
    X(cuMemFreeHost, (void *at))                                                                                        \
    X(cuMemHostRegister_v2, (void *at, size_t nbytes, unsigned flags))                                                  \
    X(cuMemHostGetDevicePointer_v2, (CUdeviceptr *found, void *at, unsigned flags))                                     \
    X(cuMemHostUnregister, (void *at))                                                                                  \
    X(cuPointerGetAttribute, (void *data, int attribute, CUdeviceptr at))                                               \
    X(cuMemGetAddressRange_v2, (CUdeviceptr *start, size_t *nbytes, CUdeviceptr at))                                    \
    X(cuIpcGetMemHandle, (CUipc *handle, CUdeviceptr at))                                                               \
    X(cuIpcOpenMemHandle_v2, (CUdeviceptr *at, CUipc handle, unsigned flags))                                           \
    X(cuIpcCloseMemHandle, (CUdeviceptr at))                                                                            \
    X(cuIpcGetEventHandle, (CUipc *handle, CUevent event))                                                              \
    X(cuIpcOpenEventHandle, (CUevent *event, CUipc handle))                                                             \
    X(cuMemCreate, (CUhandle *handle, size_t nbytes, const CUprop *prop, unsigned long long flags))                     \
    X(cuMemRelease, (CUhandle handle))                                                                                  \
    X(cuMemExportToShareableHandle, (void *fd, CUhandle handle, int type, unsigned long long flags))                    \
    X(cuMemImportFromShareableHandle, (CUhandle *handle, void *fd, int type))                                           \
    X(cuMemGetAllocationGranularity, (size_t *nbytes, const CUprop *prop, int option))                                  \
    X(cuMemAddressReserve, (CUdeviceptr *at, size_t nbytes, size_t unit, CUdeviceptr wanted, unsigned long long flags)) \
    X(cuMemAddressFree, (CUdeviceptr at, size_t nbytes))                                                                \
    X(cuMemMap, (CUdeviceptr at, size_t nbytes, size_t offset, CUhandle handle, unsigned long long flags))              \
    X(cuMemUnmap, (CUdeviceptr at, size_t nbytes))                                                                      \
    X(cuMemSetAccess, (CUdeviceptr at, size_t nbytes, const CUaccess *list, size_t count))                              \
    X(cuStreamCreate, (CUstream *stream, unsigned flags))                                                               \
    X(cuStreamDestroy_v2, (CUstream stream))                                                                            \
    X(cuStreamQuery, (CUstream stream))                                                                                 \
    X(cuStreamSynchronize, (CUstream stream))                                                                           \
    X(cuStreamIsCapturing, (CUstream stream, int *status))                                                              \
    X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                                              \
    X(cuStreamWriteValue64_v2, (CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags))                       \
    X(cuStreamWaitValue64_v2, (CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags))                        \
    X(cuStreamAddCallback, (CUstream stream, CUcallback callback, void *data, unsigned flags))                          \
    X(cuLaunchHostFunc, (CUstream stream, CUhost function, void *data))                                                 \
    X(cuEventCreate, (CUevent *event, unsigned flags))                                                                  \
    X(cuEventDestroy_v2, (CUevent event))                                                                               \
    X(cuEventQuery, (CUevent event))                                                                                    \
    X(cuEventSynchronize, (CUevent event))                                                                              \
    X(cuEventRecord, (CUevent event, CUstream stream))                                                                  \
    X(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream stream))                                \
    X(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))                            \
    X(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream))                          \
    X(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream))
#endif
