/* The tables that the real loader asks a driver for; in its place, what the loader itself would answer. */
#include "soft.h"
#ifndef STAND_IN
#include <level_zero/ze_ddi.h>

#define TABLE(name, type, ...)                                                                                         \
    EXPORTED ze_result_t zeGet##name##ProcAddrTable(ze_api_version_t version, type *table)                             \
    {                                                                                                                  \
        (void)version;                                                                                                 \
        __VA_ARGS__;                                                                                                   \
        return ZE_RESULT_SUCCESS;                                                                                      \
    }
#define ENTRY(prefix, name) table->pfn##name = prefix##name
#define NEWER(prefix, name) table->pfn##name = soft_old() ? NULL : prefix##name /* which older drivers lack */

TABLE(Global, ze_global_dditable_t, ENTRY(ze, Init), NEWER(ze, InitDrivers))
TABLE(Driver, ze_driver_dditable_t, ENTRY(zeDriver, Get), ENTRY(zeDriver, GetApiVersion),
      ENTRY(zeDriver, GetProperties), ENTRY(zeDriver, GetIpcProperties), ENTRY(zeDriver, GetExtensionProperties),
      ENTRY(zeDriver, GetExtensionFunctionAddress), NEWER(zeDriver, GetDefaultContext))
TABLE(Device, ze_device_dditable_t, ENTRY(zeDevice, Get), ENTRY(zeDevice, GetSubDevices),
      ENTRY(zeDevice, GetRootDevice), ENTRY(zeDevice, GetProperties), ENTRY(zeDevice, PciGetPropertiesExt),
      ENTRY(zeDevice, GetCommandQueueGroupProperties), ENTRY(zeDevice, GetMemoryProperties),
      ENTRY(zeDevice, GetMemoryAccessProperties), ENTRY(zeDevice, GetExternalMemoryProperties),
      ENTRY(zeDevice, GetP2PProperties), ENTRY(zeDevice, CanAccessPeer), ENTRY(zeDevice, GetStatus),
      ENTRY(zeDevice, GetGlobalTimestamps), NEWER(zeDevice, GetCounterBasedEventMaxValue),
      NEWER(zeDevice, Synchronize))
TABLE(Context, ze_context_dditable_t, ENTRY(zeContext, Create), ENTRY(zeContext, CreateEx), ENTRY(zeContext, Destroy),
      ENTRY(zeContext, GetStatus), ENTRY(zeContext, MakeMemoryResident), ENTRY(zeContext, EvictMemory))
TABLE(Mem, ze_mem_dditable_t, ENTRY(zeMem, AllocDevice), ENTRY(zeMem, AllocHost), ENTRY(zeMem, AllocShared),
      ENTRY(zeMem, Free), ENTRY(zeMem, FreeExt), ENTRY(zeMem, GetAllocProperties), ENTRY(zeMem, GetAddressRange),
      ENTRY(zeMem, GetIpcHandle), ENTRY(zeMem, OpenIpcHandle), ENTRY(zeMem, CloseIpcHandle), NEWER(zeMem, PutIpcHandle),
      NEWER(zeMem, GetIpcHandleWithProperties))
TABLE(MemExp, ze_mem_exp_dditable_t, NEWER(zeMem, GetIpcHandleFromFileDescriptorExp),
      NEWER(zeMem, GetFileDescriptorFromIpcHandleExp))
TABLE(PhysicalMem, ze_physical_mem_dditable_t, ENTRY(zePhysicalMem, Create), ENTRY(zePhysicalMem, Destroy),
      NEWER(zePhysicalMem, GetProperties))
TABLE(VirtualMem, ze_virtual_mem_dditable_t, ENTRY(zeVirtualMem, Reserve), ENTRY(zeVirtualMem, Free),
      ENTRY(zeVirtualMem, QueryPageSize), ENTRY(zeVirtualMem, Map), ENTRY(zeVirtualMem, Unmap),
      ENTRY(zeVirtualMem, SetAccessAttribute), ENTRY(zeVirtualMem, GetAccessAttribute))
TABLE(EventPool, ze_event_pool_dditable_t, ENTRY(zeEventPool, Create), ENTRY(zeEventPool, Destroy),
      ENTRY(zeEventPool, GetIpcHandle), ENTRY(zeEventPool, OpenIpcHandle), ENTRY(zeEventPool, CloseIpcHandle),
      NEWER(zeEventPool, PutIpcHandle))
TABLE(Event, ze_event_dditable_t, ENTRY(zeEvent, Create), ENTRY(zeEvent, Destroy), ENTRY(zeEvent, HostSignal),
      ENTRY(zeEvent, HostReset), ENTRY(zeEvent, HostSynchronize), ENTRY(zeEvent, QueryStatus),
      ENTRY(zeEvent, QueryKernelTimestamp), NEWER(zeEvent, CounterBasedCreate),
      NEWER(zeEvent, CounterBasedGetIpcHandle),
      NEWER(zeEvent, CounterBasedOpenIpcHandle), NEWER(zeEvent, CounterBasedCloseIpcHandle),
      NEWER(zeEvent, CounterBasedGetDeviceAddress), NEWER(zeEvent, GetCounterBasedFlags))
TABLE(CommandList, ze_command_list_dditable_t, ENTRY(zeCommandList, CreateImmediate), ENTRY(zeCommandList, Destroy),
      ENTRY(zeCommandList, AppendMemoryCopy), ENTRY(zeCommandList, AppendMemoryFill),
      ENTRY(zeCommandList, AppendBarrier), ENTRY(zeCommandList, AppendSignalEvent),
      ENTRY(zeCommandList, AppendWaitOnEvents), ENTRY(zeCommandList, AppendEventReset),
      ENTRY(zeCommandList, AppendWriteGlobalTimestamp), ENTRY(zeCommandList, HostSynchronize),
      ENTRY(zeCommandList, GetDeviceHandle), ENTRY(zeCommandList, GetContextHandle), ENTRY(zeCommandList, GetOrdinal),
      ENTRY(zeCommandList, ImmediateGetIndex), ENTRY(zeCommandList, IsImmediate),
      NEWER(zeCommandList, AppendHostFunction), NEWER(zeCommandList, AppendMemoryCopyWithParameters),
      NEWER(zeCommandList, AppendMemoryFillWithParameters))
#else

ze_result_t zelLoaderTranslateHandle(uint32_t type, void *from, void **to)
{
    *to = from;
    return ZE_RESULT_SUCCESS;
}
#endif
