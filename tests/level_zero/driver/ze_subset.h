/* What the software driver uses of Level Zero, declared from the specification: for where the official headers cannot
 * be had. test_declarations.py compares it with those where they can. */
#ifndef ZE_SUBSET_H
#define ZE_SUBSET_H
#include <stddef.h>
#include <stdint.h>

#define ZE_MAKE_VERSION(major, minor) (((major) << 16) | ((minor) & 0xffff))

typedef struct _ze_driver_handle_t *ze_driver_handle_t;
typedef struct _ze_device_handle_t *ze_device_handle_t;
typedef struct _ze_context_handle_t *ze_context_handle_t;
typedef struct _ze_command_list_handle_t *ze_command_list_handle_t;
typedef struct _ze_event_handle_t *ze_event_handle_t;
typedef struct _ze_event_pool_handle_t *ze_event_pool_handle_t;
typedef struct _ze_physical_mem_handle_t *ze_physical_mem_handle_t;
typedef uint8_t ze_bool_t;
typedef uint32_t ze_api_version_t, ze_init_flags_t, ze_ipc_memory_flags_t, ze_memory_access_cap_flags_t;
typedef uint32_t ze_event_counter_based_flags_t;
typedef void (*ze_host_function_callback_t)(void *);

typedef enum {
    ZE_RESULT_SUCCESS = 0,
    ZE_RESULT_NOT_READY = 0x1,
    ZE_RESULT_ERROR_DEVICE_LOST = 0x70000001,
    ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY = 0x70000002,
    ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY = 0x70000003,
    ZE_RESULT_ERROR_UNINITIALIZED = 0x78000001,
    ZE_RESULT_ERROR_UNSUPPORTED_FEATURE = 0x78000003,
    ZE_RESULT_ERROR_INVALID_ARGUMENT = 0x78000004,
    ZE_RESULT_ERROR_INVALID_NULL_HANDLE = 0x78000005,
    ZE_RESULT_ERROR_INVALID_SIZE = 0x78000008,
    ZE_RESULT_ERROR_UNSUPPORTED_SIZE = 0x78000009,
    ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT = 0x7800000a,
    ZE_RESULT_ERROR_INVALID_ENUMERATION = 0x7800000c,
    ZE_RESULT_ERROR_UNKNOWN = 0x7ffffffe,
} ze_result_t;

typedef enum {
    ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC = 0x18,
    ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD = 0x19,
    ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD = 0x1a,
    ZE_STRUCTURE_TYPE_EXTERNAL_MEMMAP_SYSMEM_EXT_DESC = 0x20037,
    ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_EXTERNAL_SYNC_ALLOCATION_DESC = 0x2003b,
    ZE_STRUCTURE_TYPE_IPC_MEM_HANDLE_TYPE_EXT_DESC = 0x2003d,
    ZE_STRUCTURE_TYPE_DEVICE_EVENT_PROPERTIES = 0x2003e,
    ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_EXTERNAL_AGGREGATE_STORAGE_DESC = 0x2003f,
} ze_structure_type_t;

typedef enum {
    ZE_MEMORY_TYPE_UNKNOWN = 0,
    ZE_MEMORY_TYPE_HOST = 0x1,
    ZE_MEMORY_TYPE_DEVICE = 0x2,
    ZE_MEMORY_TYPE_SHARED = 0x3,
} ze_memory_type_t;

typedef enum {
    ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE = 0x1,
    ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY = 0x2,
} ze_memory_access_attribute_t;

enum {
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE = 0x1,
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY = 0x2,
    ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS = 0x1,
    ZE_DEVICE_P2P_PROPERTY_FLAG_ACCESS = 0x1,
    ZE_DEVICE_P2P_PROPERTY_FLAG_ATOMICS = 0x2,
    ZE_DEVICE_TYPE_GPU = 0x1,
    ZE_EVENT_COUNTER_BASED_FLAG_DEVICE_TIMESTAMP = 0x10,
    ZE_EVENT_COUNTER_BASED_FLAG_HOST_TIMESTAMP = 0x20,
    ZE_EVENT_COUNTER_BASED_FLAG_IPC = 0x8,
    ZE_EVENT_POOL_FLAG_IPC = 0x2,
    ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF = 0x2,
    ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD = 0x1,
    ZE_INIT_DRIVER_TYPE_FLAG_GPU = 0x1,
    ZE_IPC_MEM_HANDLE_TYPE_FLAG_FABRIC_ACCESSIBLE = 0x2,
    ZE_IPC_PROPERTY_FLAG_EVENT_POOL = 0x2,
    ZE_IPC_PROPERTY_FLAG_MEMORY = 0x1,
    ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC = 0x2,
    ZE_MEMORY_ACCESS_CAP_FLAG_RW = 0x1,
};

typedef struct { char data[64]; } ze_ipc_mem_handle_t;
typedef struct { char data[64]; } ze_ipc_event_pool_handle_t;
typedef struct { char data[64]; } ze_ipc_event_counter_based_handle_t;
typedef struct { uint8_t id[16]; } ze_driver_uuid_t;
typedef struct { uint8_t id[16]; } ze_device_uuid_t;
typedef struct { uint32_t domain, bus, device, function; } ze_pci_address_ext_t;
typedef struct { int32_t genVersion, width; int64_t maxBandwidth; } ze_pci_speed_ext_t;
typedef struct { uint64_t kernelStart, kernelEnd; } ze_kernel_timestamp_data_t;
typedef struct { ze_kernel_timestamp_data_t global, context; } ze_kernel_timestamp_result_t;
typedef struct { char name[256]; uint32_t version; } ze_driver_extension_properties_t;

/* Those that may be chained: `next` is pNext's type. */
#define CHAINED(name, next, ...) typedef struct { ze_structure_type_t stype; next pNext; __VA_ARGS__ } name
typedef struct { ze_structure_type_t stype; const void *pNext; } ze_base_desc_t;
CHAINED(ze_init_driver_type_desc_t, const void *, uint32_t flags;);
CHAINED(ze_driver_properties_t, void *, ze_driver_uuid_t uuid; uint32_t driverVersion;);
CHAINED(ze_driver_ipc_properties_t, void *, uint32_t flags;);
CHAINED(ze_device_properties_t, void *, uint32_t type, vendorId, deviceId, flags, subdeviceId, coreClockRate;
        uint64_t maxMemAllocSize; uint32_t maxHardwareContexts, maxCommandQueuePriority, numThreadsPerEU;
        uint32_t physicalEUSimdWidth, numEUsPerSubslice, numSubslicesPerSlice, numSlices; uint64_t timerResolution;
        uint32_t timestampValidBits, kernelTimestampValidBits; ze_device_uuid_t uuid; char name[256];);
CHAINED(ze_device_event_properties_t, void *, uint32_t flags;);
CHAINED(ze_pci_ext_properties_t, void *, ze_pci_address_ext_t address; ze_pci_speed_ext_t maxSpeed;);
CHAINED(ze_command_queue_group_properties_t, void *, uint32_t flags; size_t maxMemoryFillPatternSize;
        uint32_t numQueues;);
CHAINED(ze_device_memory_properties_t, void *, uint32_t flags, maxClockRate, maxBusWidth; uint64_t totalSize;
        char name[256];);
CHAINED(ze_device_memory_access_properties_t, void *, uint32_t hostAllocCapabilities, deviceAllocCapabilities;
        uint32_t sharedSingleDeviceAllocCapabilities, sharedCrossDeviceAllocCapabilities;
        uint32_t sharedSystemAllocCapabilities;);
CHAINED(ze_device_external_memory_properties_t, void *, uint32_t memoryAllocationImportTypes;
        uint32_t memoryAllocationExportTypes, imageImportTypes, imageExportTypes;);
CHAINED(ze_device_p2p_properties_t, void *, uint32_t flags;);
CHAINED(ze_context_desc_t, const void *, uint32_t flags;);
CHAINED(ze_command_queue_desc_t, const void *, uint32_t ordinal, index, flags, mode, priority;);
CHAINED(ze_event_pool_desc_t, const void *, uint32_t flags, count;);
CHAINED(ze_event_desc_t, const void *, uint32_t index, signal, wait;);
CHAINED(ze_event_counter_based_desc_t, const void *, uint32_t flags, signal, wait;);
CHAINED(ze_event_counter_based_external_sync_allocation_desc_t, const void *, uint64_t *deviceAddress, *hostAddress;
        uint64_t completionValue;);
CHAINED(ze_event_counter_based_external_aggregate_storage_desc_t, const void *, uint64_t *deviceAddress;
        uint64_t incrementValue, completionValue;);
CHAINED(ze_device_mem_alloc_desc_t, const void *, uint32_t flags, ordinal;);
CHAINED(ze_host_mem_alloc_desc_t, const void *, uint32_t flags;);
CHAINED(ze_memory_free_ext_desc_t, const void *, uint32_t freePolicy;);
CHAINED(ze_memory_allocation_properties_t, void *, ze_memory_type_t type; uint64_t id, pageSize;);
CHAINED(ze_external_memory_import_fd_t, const void *, uint32_t flags; int fd;);
CHAINED(ze_external_memory_export_fd_t, void *, uint32_t flags; int fd;);
CHAINED(ze_external_memmap_sysmem_ext_desc_t, const void *, void *pSystemMemory; uint64_t size;);
CHAINED(ze_ipc_mem_handle_type_ext_desc_t, const void *, uint32_t typeFlags;);
CHAINED(ze_physical_mem_desc_t, const void *, uint32_t flags; size_t size;);
CHAINED(ze_physical_mem_properties_t, void *, uint64_t id, size;);

/* Found by name as extension functions, too. */
ze_result_t zeEventCounterBasedCreate(ze_context_handle_t, ze_device_handle_t, const ze_event_counter_based_desc_t *,
                                      ze_event_handle_t *);
ze_result_t zeEventCounterBasedGetIpcHandle(ze_event_handle_t, ze_ipc_event_counter_based_handle_t *);
ze_result_t zeEventCounterBasedOpenIpcHandle(ze_context_handle_t, ze_ipc_event_counter_based_handle_t,
                                             ze_event_handle_t *);
ze_result_t zeEventCounterBasedCloseIpcHandle(ze_event_handle_t);
ze_result_t zeEventCounterBasedGetDeviceAddress(ze_event_handle_t, uint64_t *, uint64_t *);

#endif
