/* The software driver itself: its start, its devices and what they say of themselves, contexts. */
#include "soft.h"
#include <stdio.h>
#include <string.h>

#define WAIT_SIZE ((ze_structure_type_t)0x00030017) /* Intel's: how many bytes a wait on memory compares */

static int driver;
static int devices[MAX_DEVICES]; /* a device's handle is the address of its entry */
static struct object *default_context;

typedef struct {
    ze_structure_type_t stype;
    const void *pNext;
    uint32_t bytes;
} wait_size;

int soft_index(ze_device_handle_t device)
{
    return (int)((int *)device - devices);
}

ze_result_t zeInit(ze_init_flags_t flags)
{
    ENTER();
    return ZE_RESULT_SUCCESS;
}

static ze_result_t give(uint32_t *count, void **out, void *first, size_t step, uint32_t available)
{
    if (!out || !*count) {
        *count = available;
        return ZE_RESULT_SUCCESS;
    }
    if (*count > available)
        *count = available;
    for (uint32_t i = 0; i < *count; ++i)
        out[i] = (char *)first + i * step;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGet(uint32_t *count, ze_driver_handle_t *out)
{
    ENTER();
    return give(count, (void **)out, &driver, 0, 1);
}

ze_result_t zeInitDrivers(uint32_t *count, ze_driver_handle_t *out, ze_init_driver_type_desc_t *desc)
{
    ENTER();
    return give(count, (void **)out, &driver, 0, desc->flags & ZE_INIT_DRIVER_TYPE_FLAG_GPU ? 1 : 0);
}

ze_result_t zeDriverGetApiVersion(ze_driver_handle_t handle, ze_api_version_t *out)
{
    ENTER();
    *out = (ze_api_version_t)(soft_old() ? ZE_MAKE_VERSION(1, 3) : ZE_MAKE_VERSION(1, 17));
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGetProperties(ze_driver_handle_t handle, ze_driver_properties_t *out)
{
    ENTER();
    memset(&out->uuid, 7, sizeof out->uuid);
    out->driverVersion = soft_old() ? 0x01030000 | 20000 : 0x01000000 | 39122;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGetIpcProperties(ze_driver_handle_t handle, ze_driver_ipc_properties_t *out)
{
    ENTER();
    out->flags = ZE_IPC_PROPERTY_FLAG_MEMORY | (soft_old() ? 0 : ZE_IPC_PROPERTY_FLAG_EVENT_POOL);
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGetExtensionProperties(ze_driver_handle_t handle, uint32_t *count,
                                           ze_driver_extension_properties_t *out)
{
    ENTER();
    static const ze_driver_extension_properties_t known[] = {
        {"ZE_extension_external_memmap_sysmem", ZE_MAKE_VERSION(1, 0)},
        {"ZE_intel_experimental_command_list_memory_sync", ZE_MAKE_VERSION(1, 0)}};
    uint32_t available = soft_old() ? 0 : sizeof known / sizeof *known;
    if (!out || !*count)
        *count = available;
    else {
        if (*count > available)
            *count = available;
        memcpy(out, known, *count * sizeof *known);
    }
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGetExtensionFunctionAddress(ze_driver_handle_t handle, const char *name, void **out)
{
    ENTER();
    static const struct {
        const char *name;
        void *function;
    } known[] = {{"zexCommandListAppendWaitOnMemory", zexCommandListAppendWaitOnMemory},
                 {"zexCommandListAppendWaitOnMemory64", zexCommandListAppendWaitOnMemory64},
                 {"zexCommandListAppendWriteToMemory", zexCommandListAppendWriteToMemory},
                 {"zexDriverImportExternalPointer", zexDriverImportExternalPointer},
                 {"zexDriverReleaseImportedPointer", zexDriverReleaseImportedPointer},
                 {"zexDriverGetHostPointerBaseAddress", zexDriverGetHostPointerBaseAddress},
                 {"zexCounterBasedEventCreate2", zeEventCounterBasedCreate},
                 {"zexCounterBasedEventGetIpcHandle", zeEventCounterBasedGetIpcHandle},
                 {"zexCounterBasedEventOpenIpcHandle", zeEventCounterBasedOpenIpcHandle},
                 {"zexCounterBasedEventCloseIpcHandle", zeEventCounterBasedCloseIpcHandle},
                 {"zexEventGetDeviceAddress", zeEventCounterBasedGetDeviceAddress}};
    *out = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known && !soft_old(); ++i)
        if (!strcmp(known[i].name, name))
            *out = known[i].function;
    return *out ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

ze_context_handle_t zeDriverGetDefaultContext(ze_driver_handle_t handle)
{
    if (soft_enter(__func__))
        return NULL;
    soft_lock();
    if (!default_context) /* the driver's own, so not in the books */
        default_context = soft_own_context();
    soft_unlock();
    return (ze_context_handle_t)default_context;
}

/* --- devices ------------------------------------------------------------------------------------------------------ */

ze_result_t zeDeviceGet(ze_driver_handle_t handle, uint32_t *count, ze_device_handle_t *out)
{
    ENTER();
    return give(count, (void **)out, devices, sizeof *devices, (uint32_t)soft_devices());
}

ze_result_t zeDeviceGetSubDevices(ze_device_handle_t handle, uint32_t *count, ze_device_handle_t *out)
{
    ENTER();
    *count = 0;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetRootDevice(ze_device_handle_t handle, ze_device_handle_t *out)
{
    ENTER();
    *out = NULL;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetProperties(ze_device_handle_t handle, ze_device_properties_t *out)
{
    ENTER();
    ze_structure_type_t type = out->stype;
    void *next = out->pNext;
    memset(out, 0, sizeof *out);
    out->stype = type;
    out->pNext = next;
    out->type = ZE_DEVICE_TYPE_GPU;
    out->vendorId = 0x8086;
    out->deviceId = 0xe20b;
    out->coreClockRate = 2000;
    out->maxMemAllocSize = (uint64_t)1 << 32;
    out->maxHardwareContexts = 64;
    out->numThreadsPerEU = 8;
    out->physicalEUSimdWidth = 16;
    out->numEUsPerSubslice = 8;
    out->numSubslicesPerSlice = 4;
    out->numSlices = 1;
    out->timerResolution = type == 0x00020006 && !soft_old() ? 1000000000 : 1; /* …DEVICE_PROPERTIES_1_2, in ns before */
    out->timestampValidBits = out->kernelTimestampValidBits = 64;
    memset(&out->uuid, 0x53, sizeof out->uuid);
    out->uuid.id[0] = (uint8_t)soft_index(handle);
    snprintf(out->name, sizeof out->name, "software device %d", soft_index(handle));
    ze_device_event_properties_t *events = (void *)soft_chain(next, ZE_STRUCTURE_TYPE_DEVICE_EVENT_PROPERTIES);
    if (events && !soft_old())
        events->flags = 0x7; /* aggregate storage, counter-based IPC, external synchronization */
    wait_size *waits = (void *)soft_chain(next, WAIT_SIZE);
    if (waits && !soft_old())
        waits->bytes = soft_narrow() ? 4 : 8;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDevicePciGetPropertiesExt(ze_device_handle_t handle, ze_pci_ext_properties_t *out)
{
    ENTER();
    out->address.domain = 0;
    out->address.bus = 0x53;
    out->address.device = (uint32_t)soft_index(handle);
    out->address.function = 0;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetCommandQueueGroupProperties(ze_device_handle_t handle, uint32_t *count,
                                                   ze_command_queue_group_properties_t *out)
{
    ENTER();
    if (out && *count) {
        out->flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE | ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
        out->maxMemoryFillPatternSize = 128;
        out->numQueues = QUEUES;
    }
    *count = 1;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetMemoryProperties(ze_device_handle_t handle, uint32_t *count, ze_device_memory_properties_t *out)
{
    ENTER();
    if (out && *count) {
        out->flags = 0;
        out->maxClockRate = 1000;
        out->maxBusWidth = 64;
        out->totalSize = (uint64_t)8 << 30;
        strcpy(out->name, "memfd");
    }
    *count = 1;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetMemoryAccessProperties(ze_device_handle_t handle, ze_device_memory_access_properties_t *out)
{
    ENTER();
    const ze_memory_access_cap_flags_t both = ZE_MEMORY_ACCESS_CAP_FLAG_RW | ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC;
    out->hostAllocCapabilities = out->deviceAllocCapabilities = both;
    out->sharedSingleDeviceAllocCapabilities = out->sharedCrossDeviceAllocCapabilities = both;
    out->sharedSystemAllocCapabilities = 0;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetExternalMemoryProperties(ze_device_handle_t handle, ze_device_external_memory_properties_t *out)
{
    ENTER();
    out->memoryAllocationImportTypes = out->memoryAllocationExportTypes =
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD | ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF;
    out->imageImportTypes = out->imageExportTypes = 0;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetP2PProperties(ze_device_handle_t one, ze_device_handle_t other, ze_device_p2p_properties_t *out)
{
    ENTER();
    out->flags = ZE_DEVICE_P2P_PROPERTY_FLAG_ACCESS | ZE_DEVICE_P2P_PROPERTY_FLAG_ATOMICS;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceCanAccessPeer(ze_device_handle_t one, ze_device_handle_t other, ze_bool_t *out)
{
    ENTER();
    *out = 1;
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetStatus(ze_device_handle_t handle)
{
    ENTER();
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetGlobalTimestamps(ze_device_handle_t handle, uint64_t *host, uint64_t *device)
{
    ENTER();
    *host = *device = soft_now();
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetCounterBasedEventMaxValue(ze_device_handle_t handle, uint64_t *out)
{
    ENTER();
    *out = soft_narrow() ? UINT32_MAX : INT64_MAX;
    return ZE_RESULT_SUCCESS;
}

/* --- contexts ----------------------------------------------------------------------------------------------------- */

ze_result_t zeContextCreate(ze_driver_handle_t handle, const ze_context_desc_t *desc, ze_context_handle_t *out)
{
    ENTER();
    *out = soft_new(CONTEXT, sizeof(object));
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeContextCreateEx(ze_driver_handle_t handle, const ze_context_desc_t *desc, uint32_t number,
                              ze_device_handle_t *which, ze_context_handle_t *out)
{
    ENTER();
    return zeContextCreate(handle, desc, out);
}

ze_result_t zeContextDestroy(ze_context_handle_t handle)
{
    ENTER();
    object *context = soft_live(handle, CONTEXT);
    if (!context)
        return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    soft_delete(context);
    return ZE_RESULT_SUCCESS;
}

ze_result_t zeContextGetStatus(ze_context_handle_t handle)
{
    ENTER();
    return soft_live(handle, CONTEXT) ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
}

ze_result_t zeContextMakeMemoryResident(ze_context_handle_t handle, ze_device_handle_t device, void *at, size_t size)
{
    ENTER();
    return soft_reachable(at, size) ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

ze_result_t zeContextEvictMemory(ze_context_handle_t handle, ze_device_handle_t device, void *at, size_t size)
{
    ENTER();
    return ZE_RESULT_SUCCESS;
}
