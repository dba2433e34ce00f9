# Made by `python -m xpushare.ur._generate` from `_functions`: not to be edited.
# ruff: noqa: E501
# fmt: off
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, overload

from xpushare.common.result import Result as Result
from xpushare.ur._enums import AdapterInfo as AdapterInfo
from xpushare.ur._enums import ApiVersion as ApiVersion
from xpushare.ur._enums import Backend as Backend
from xpushare.ur._enums import BufferCreateType as BufferCreateType
from xpushare.ur._enums import Command as Command
from xpushare.ur._enums import ContextFlags as ContextFlags
from xpushare.ur._enums import ContextInfo as ContextInfo
from xpushare.ur._enums import DeviceAffinityDomainFlags as DeviceAffinityDomainFlags
from xpushare.ur._enums import DeviceCommandBufferUpdateCapabilityFlags as DeviceCommandBufferUpdateCapabilityFlags
from xpushare.ur._enums import DeviceExecCapabilityFlags as DeviceExecCapabilityFlags
from xpushare.ur._enums import DeviceFpCapabilityFlags as DeviceFpCapabilityFlags
from xpushare.ur._enums import DeviceInfo as DeviceInfo
from xpushare.ur._enums import DeviceLocalMemType as DeviceLocalMemType
from xpushare.ur._enums import DeviceMemCacheType as DeviceMemCacheType
from xpushare.ur._enums import DevicePartition as DevicePartition
from xpushare.ur._enums import DeviceThrottleReasonsFlags as DeviceThrottleReasonsFlags
from xpushare.ur._enums import DeviceType as DeviceType
from xpushare.ur._enums import DeviceUSMAccessCapabilityFlags as DeviceUSMAccessCapabilityFlags
from xpushare.ur._enums import EventInfo as EventInfo
from xpushare.ur._enums import EventStatus as EventStatus
from xpushare.ur._enums import ExecutionInfo as ExecutionInfo
from xpushare.ur._enums import ExpAsyncUSMAllocFlags as ExpAsyncUSMAllocFlags
from xpushare.ur._enums import ExpDevice2DBlockArrayCapabilityFlags as ExpDevice2DBlockArrayCapabilityFlags
from xpushare.ur._enums import ExpEnqueueExtFlags as ExpEnqueueExtFlags
from xpushare.ur._enums import ExpEventFlags as ExpEventFlags
from xpushare.ur._enums import ExpExternalMemType as ExpExternalMemType
from xpushare.ur._enums import ExpHostTaskFlags as ExpHostTaskFlags
from xpushare.ur._enums import ExpPeerInfo as ExpPeerInfo
from xpushare.ur._enums import ExpUSMHostAllocRegisterFlags as ExpUSMHostAllocRegisterFlags
from xpushare.ur._enums import KernelLaunchPropertiesFlags as KernelLaunchPropertiesFlags
from xpushare.ur._enums import LoggerLevel as LoggerLevel
from xpushare.ur._enums import MapFlags as MapFlags
from xpushare.ur._enums import MemFlags as MemFlags
from xpushare.ur._enums import MemInfo as MemInfo
from xpushare.ur._enums import MemoryOrderCapabilityFlags as MemoryOrderCapabilityFlags
from xpushare.ur._enums import MemoryScopeCapabilityFlags as MemoryScopeCapabilityFlags
from xpushare.ur._enums import PhysicalMemFlags as PhysicalMemFlags
from xpushare.ur._enums import PhysicalMemInfo as PhysicalMemInfo
from xpushare.ur._enums import PlatformInfo as PlatformInfo
from xpushare.ur._enums import ProfilingInfo as ProfilingInfo
from xpushare.ur._enums import QueueFlags as QueueFlags
from xpushare.ur._enums import QueueInfo as QueueInfo
from xpushare.ur._enums import USMAdviceFlags as USMAdviceFlags
from xpushare.ur._enums import USMAllocInfo as USMAllocInfo
from xpushare.ur._enums import USMDeviceMemFlags as USMDeviceMemFlags
from xpushare.ur._enums import USMHostMemFlags as USMHostMemFlags
from xpushare.ur._enums import USMMigrationFlags as USMMigrationFlags
from xpushare.ur._enums import USMPoolFlags as USMPoolFlags
from xpushare.ur._enums import USMPoolInfo as USMPoolInfo
from xpushare.ur._enums import USMType as USMType
from xpushare.ur._enums import VirtualMemAccessFlags as VirtualMemAccessFlags
from xpushare.ur._enums import VirtualMemGranularityInfo as VirtualMemGranularityInfo
from xpushare.ur._enums import VirtualMemInfo as VirtualMemInfo
from xpushare.ur._error import URError as URError
from xpushare.ur._objects import Adapter as Adapter
from xpushare.ur._objects import Context as Context
from xpushare.ur._objects import Device as Device
from xpushare.ur._objects import Event as Event
from xpushare.ur._objects import Mem as Mem
from xpushare.ur._objects import PhysicalMem as PhysicalMem
from xpushare.ur._objects import Platform as Platform
from xpushare.ur._objects import Queue as Queue
from xpushare.ur._objects import USMPool as USMPool
from xpushare.ur._structs import BufferProperties as BufferProperties
from xpushare.ur._structs import BufferRegion as BufferRegion
from xpushare.ur._structs import ContextNativeProperties as ContextNativeProperties
from xpushare.ur._structs import ContextProperties as ContextProperties
from xpushare.ur._structs import DeviceNativeProperties as DeviceNativeProperties
from xpushare.ur._structs import DevicePartitionProperty as DevicePartitionProperty
from xpushare.ur._structs import EventNativeProperties as EventNativeProperties
from xpushare.ur._structs import ExpAsyncUSMAllocProperties as ExpAsyncUSMAllocProperties
from xpushare.ur._structs import ExpEnqueueExtProperties as ExpEnqueueExtProperties
from xpushare.ur._structs import ExpEventDesc as ExpEventDesc
from xpushare.ur._structs import ExpHostTaskProperties as ExpHostTaskProperties
from xpushare.ur._structs import ExpUSMHostAllocRegisterProperties as ExpUSMHostAllocRegisterProperties
from xpushare.ur._structs import PhysicalMemProperties as PhysicalMemProperties
from xpushare.ur._structs import PlatformNativeProperties as PlatformNativeProperties
from xpushare.ur._structs import QueueNativeDesc as QueueNativeDesc
from xpushare.ur._structs import QueueNativeProperties as QueueNativeProperties
from xpushare.ur._structs import QueueProperties as QueueProperties
from xpushare.ur._structs import RectOffset as RectOffset
from xpushare.ur._structs import RectRegion as RectRegion
from xpushare.ur._structs import USMDesc as USMDesc
from xpushare.ur._structs import USMPoolDesc as USMPoolDesc

def urAdapterGet() -> list[Adapter]:
    """Return the adapters. The caller owns a reference to each adapter.

    Raises `URError` with one of these results:

    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urAdapterGetInfo(
    hAdapter: Adapter,
    propName: Literal[AdapterInfo.BACKEND],
) -> Backend: ...
@overload
def urAdapterGetInfo(
    hAdapter: Adapter,
    propName: Literal[AdapterInfo.REFERENCE_COUNT, AdapterInfo.VERSION],
) -> int: ...
@overload
def urAdapterGetInfo(hAdapter: Adapter, propName: int) -> Any:
    """Return the property `propName` of an adapter.

    Args:
        hAdapter: The adapter.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `AdapterInfo.VERSION`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urAdapterGetLastError(hAdapter: Adapter) -> tuple[str, int]:
    """Return the message and the driver's error number of the last `ERROR_ADAPTER_SPECIFIC` in this thread.

    If there was no such error, the message is empty and the number is 0.

    Args:
        hAdapter: The adapter.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urAdapterRelease(hAdapter: Adapter) -> None:
    """Release a reference to an adapter. The adapter's objects stay valid, and `urAdapterGet` still returns the adapter.

    Args:
        hAdapter: The adapter.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urAdapterRetain(hAdapter: Adapter) -> None:
    """Add a reference to an adapter.

    Args:
        hAdapter: The adapter.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urAdapterSetLoggerCallback(
    hAdapter: Adapter, pfnLoggerCallback: Callable[[LoggerLevel, str, object], object], pUserData: object, level: LoggerLevel | int,
) -> None:
    """Register a callback for log messages of `level` and above. It replaces the adapter's previous callback.

    Any thread may call the callback, as `pfnLoggerCallback(level, message, pUserData)`. All adapters share one log, the Python logger `xpushare`. If the level of that logger is above `level`, it is lowered to `level`.

    Args:
        hAdapter: The adapter.
        pfnLoggerCallback: The callback.
        pUserData: An object that the callback receives.
        level: The lowest level of messages that are passed to the callback.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pfnLoggerCallback` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - `ERROR_INVALID_ENUMERATION`: `level` is not in the range up to `LoggerLevel.QUIET`
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urAdapterSetLoggerCallbackLevel(hAdapter: Adapter, level: LoggerLevel | int) -> None:
    """Change the lowest level of the messages that the callback of `urAdapterSetLoggerCallback` receives. This does nothing if there is no callback.

    Args:
        hAdapter: The adapter.
        level: The lowest level of messages that are passed to the callback.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - `ERROR_INVALID_ENUMERATION`: `level` is not in the range up to `LoggerLevel.QUIET`
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urContextCreate(phDevices: Sequence[Device], pProperties: ContextProperties | None) -> Context:
    """Create a context for devices of one platform.

    Args:
        phDevices: The devices.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `phDevices` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `ContextFlags` (mask 0xfffffffe)
    - `ERROR_INVALID_SIZE`: `phDevices` is empty
    - `ERROR_INVALID_NULL_HANDLE`: an element of `phDevices` is null
    - `ERROR_INVALID_NULL_HANDLE`: an element of `phDevices` is not a valid device
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_DEVICE_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urContextCreateWithNativeHandle(
    hNativeContext: int, hAdapter: Adapter, phDevices: Sequence[Device] | None, pProperties: ContextNativeProperties | None,
) -> Context:
    """Create a context from the handle of a driver's context. `hNativeContext` must be the driver's context in which this package creates the objects of all devices in `phDevices`.

    Args:
        hNativeContext: The driver's handle of the context.
        hAdapter: The adapter.
        phDevices: The devices.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - `ERROR_UNSUPPORTED_FEATURE`: `phDevices` is empty, `hNativeContext` is not the driver's context for all of them, or `pProperties.isNativeHandleOwned` is true
    - other results, for which UR states no condition: `ERROR_INVALID_DEVICE`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urContextGetInfo(
    hContext: Context,
    propName: Literal[ContextInfo.NUM_DEVICES, ContextInfo.REFERENCE_COUNT],
) -> int: ...
@overload
def urContextGetInfo(
    hContext: Context,
    propName: Literal[ContextInfo.DEVICES],
) -> list[Device]: ...
@overload
def urContextGetInfo(
    hContext: Context,
    propName: Literal[ContextInfo.USM_MEMCPY2D_SUPPORT, ContextInfo.USM_FILL2D_SUPPORT],
) -> bool: ...
@overload
def urContextGetInfo(hContext: Context, propName: int) -> Any:
    """Return the property `propName` of a context.

    Args:
        hContext: The context.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `ContextInfo.USM_FILL2D_SUPPORT`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urContextGetNativeHandle(hContext: Context) -> int:
    """Return the handle of the driver's context (`CUcontext`, `ze_context_handle_t`) in which this package creates the objects of the context's first device.

    Args:
        hContext: The context.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_UNSUPPORTED_FEATURE`: the driver has no such handle
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urContextRelease(hContext: Context) -> None:
    """Release a reference to a context.

    Args:
        hContext: The context.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urContextRetain(hContext: Context) -> None:
    """Add a reference to a context.

    Args:
        hContext: The context.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urDeviceCreateWithNativeHandle(
    hNativeDevice: int, hAdapter: Adapter, pProperties: DeviceNativeProperties | None,
) -> Device:
    """Return the device that a driver's handle identifies. The caller owns a reference to the device. The device does not own the handle.

    Args:
        hNativeDevice: The driver's handle of the device.
        hAdapter: The adapter.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - `ERROR_INVALID_DEVICE`: `hAdapter` has no device with that handle, or `ONEAPI_DEVICE_SELECTOR` hides the device
    - `ERROR_UNSUPPORTED_FEATURE`: the driver has no such handle
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urDeviceGet(hPlatform: Platform, DeviceType: DeviceType | int) -> list[Device]:
    """Return the devices of a platform that have the given type. The caller owns a reference to each device.

    Args:
        hPlatform: The platform.
        DeviceType: Type of the devices to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPlatform` is null
    - `ERROR_INVALID_ENUMERATION`: `DeviceType` is not in the range up to `DeviceType.CUSTOM`
    - other results, for which UR states no condition: `ERROR_INVALID_VALUE`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urDeviceGetGlobalTimestamps(hDevice: Device) -> tuple[int, int]:
    """Return the times of the device's clock and of the host's clock at the same moment, in nanoseconds. The device's clock also measures the times that `urEventGetProfilingInfo` returns.

    Args:
        hDevice: The device.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_UNSUPPORTED_FEATURE`: the device's clock cannot be read from the host
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.TYPE],
) -> DeviceType: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[
        DeviceInfo.VENDOR_ID, DeviceInfo.DEVICE_ID, DeviceInfo.MAX_COMPUTE_UNITS,
        DeviceInfo.MAX_WORK_ITEM_DIMENSIONS, DeviceInfo.PREFERRED_VECTOR_WIDTH_CHAR,
        DeviceInfo.PREFERRED_VECTOR_WIDTH_SHORT, DeviceInfo.PREFERRED_VECTOR_WIDTH_INT,
        DeviceInfo.PREFERRED_VECTOR_WIDTH_LONG, DeviceInfo.PREFERRED_VECTOR_WIDTH_FLOAT,
        DeviceInfo.PREFERRED_VECTOR_WIDTH_DOUBLE, DeviceInfo.PREFERRED_VECTOR_WIDTH_HALF,
        DeviceInfo.NATIVE_VECTOR_WIDTH_CHAR, DeviceInfo.NATIVE_VECTOR_WIDTH_SHORT,
        DeviceInfo.NATIVE_VECTOR_WIDTH_INT, DeviceInfo.NATIVE_VECTOR_WIDTH_LONG,
        DeviceInfo.NATIVE_VECTOR_WIDTH_FLOAT, DeviceInfo.NATIVE_VECTOR_WIDTH_DOUBLE,
        DeviceInfo.NATIVE_VECTOR_WIDTH_HALF, DeviceInfo.MAX_CLOCK_FREQUENCY, DeviceInfo.MEMORY_CLOCK_RATE,
        DeviceInfo.ADDRESS_BITS, DeviceInfo.MAX_READ_IMAGE_ARGS, DeviceInfo.MAX_WRITE_IMAGE_ARGS,
        DeviceInfo.MAX_READ_WRITE_IMAGE_ARGS, DeviceInfo.MAX_SAMPLERS, DeviceInfo.MEM_BASE_ADDR_ALIGN,
        DeviceInfo.GLOBAL_MEM_CACHELINE_SIZE, DeviceInfo.MAX_CONSTANT_ARGS, DeviceInfo.REFERENCE_COUNT,
        DeviceInfo.PARTITION_MAX_SUB_DEVICES, DeviceInfo.MAX_NUM_SUB_GROUPS, DeviceInfo.GPU_EU_COUNT,
        DeviceInfo.GPU_EU_SIMD_WIDTH, DeviceInfo.GPU_EU_SLICES, DeviceInfo.GPU_EU_COUNT_PER_SUBSLICE,
        DeviceInfo.GPU_SUBSLICES_PER_SLICE, DeviceInfo.GPU_HW_THREADS_PER_EU,
        DeviceInfo.MAX_COMPUTE_QUEUE_INDICES, DeviceInfo.MEMORY_BUS_WIDTH,
        DeviceInfo.MAX_REGISTERS_PER_WORK_GROUP, DeviceInfo.IP_VERSION, DeviceInfo.NUM_COMPUTE_UNITS,
        DeviceInfo.NODE_MASK, DeviceInfo.PREFERRED_VECTOR_WIDTH_LONG_LONG,
        DeviceInfo.NATIVE_VECTOR_WIDTH_LONG_LONG, DeviceInfo.XE_STACK_COUNT, DeviceInfo.XE_REGIONS_PER_STACK,
        DeviceInfo.XE_CLUSTERS_PER_REGION, DeviceInfo.XE_CORES_PER_CLUSTER, DeviceInfo.EUS_PER_XE_CORE,
        DeviceInfo.MAX_LANES_PER_HW_THREAD, DeviceInfo.IMAGE_PITCH_ALIGN_EXP,
        DeviceInfo.MIPMAP_MAX_ANISOTROPY_EXP, DeviceInfo.MAX_WORK_GROUP_SIZE, DeviceInfo.IMAGE2D_MAX_WIDTH,
        DeviceInfo.IMAGE2D_MAX_HEIGHT, DeviceInfo.IMAGE3D_MAX_WIDTH, DeviceInfo.IMAGE3D_MAX_HEIGHT,
        DeviceInfo.IMAGE3D_MAX_DEPTH, DeviceInfo.IMAGE_MAX_BUFFER_SIZE, DeviceInfo.IMAGE_MAX_ARRAY_SIZE,
        DeviceInfo.MAX_PARAMETER_SIZE, DeviceInfo.PROFILING_TIMER_RESOLUTION, DeviceInfo.PRINTF_BUFFER_SIZE,
        DeviceInfo.MAX_WORK_GROUPS, DeviceInfo.MAX_IMAGE_LINEAR_WIDTH_EXP, DeviceInfo.MAX_IMAGE_LINEAR_HEIGHT_EXP,
        DeviceInfo.MAX_IMAGE_LINEAR_PITCH_EXP, DeviceInfo.MAX_MEM_ALLOC_SIZE, DeviceInfo.GLOBAL_MEM_CACHE_SIZE,
        DeviceInfo.GLOBAL_MEM_SIZE, DeviceInfo.GLOBAL_MEM_FREE, DeviceInfo.MAX_CONSTANT_BUFFER_SIZE,
        DeviceInfo.LOCAL_MEM_SIZE, DeviceInfo.MAX_MEMORY_BANDWIDTH, DeviceInfo.FAN_SPEED,
        DeviceInfo.MIN_POWER_LIMIT, DeviceInfo.MAX_POWER_LIMIT,
    ],
) -> int: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[
        DeviceInfo.MAX_WORK_ITEM_SIZES, DeviceInfo.SUB_GROUP_SIZES_INTEL, DeviceInfo.MAX_WORK_GROUPS_3D,
    ],
) -> list[int]: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.SINGLE_FP_CONFIG, DeviceInfo.HALF_FP_CONFIG, DeviceInfo.DOUBLE_FP_CONFIG],
) -> DeviceFpCapabilityFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[
        DeviceInfo.QUEUE_PROPERTIES, DeviceInfo.QUEUE_ON_DEVICE_PROPERTIES, DeviceInfo.QUEUE_ON_HOST_PROPERTIES,
    ],
) -> QueueFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[
        DeviceInfo.IMAGE_SUPPORT, DeviceInfo.ERROR_CORRECTION_SUPPORT, DeviceInfo.HOST_UNIFIED_MEMORY,
        DeviceInfo.ENDIAN_LITTLE, DeviceInfo.AVAILABLE, DeviceInfo.COMPILER_AVAILABLE,
        DeviceInfo.LINKER_AVAILABLE, DeviceInfo.PREFERRED_INTEROP_USER_SYNC,
        DeviceInfo.SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS, DeviceInfo.IMAGE_SRGB, DeviceInfo.BUILD_ON_SUBDEVICE,
        DeviceInfo.ATOMIC_64, DeviceInfo.BFLOAT16, DeviceInfo.KERNEL_SET_SPECIALIZATION_CONSTANTS,
        DeviceInfo.ASYNC_BARRIER, DeviceInfo.MEM_CHANNEL_SUPPORT, DeviceInfo.HOST_PIPE_READ_WRITE_SUPPORT,
        DeviceInfo.VIRTUAL_MEMORY_SUPPORT, DeviceInfo.ESIMD_SUPPORT, DeviceInfo.GLOBAL_VARIABLE_SUPPORT,
        DeviceInfo.USM_POOL_SUPPORT, DeviceInfo.PROGRAM_SET_SPECIALIZATION_CONSTANTS,
        DeviceInfo.USE_NATIVE_ASSERT, DeviceInfo.BFLOAT16_CONVERSIONS_NATIVE,
        DeviceInfo.COMMAND_BUFFER_SUPPORT_EXP, DeviceInfo.COMMAND_BUFFER_EVENT_SUPPORT_EXP,
        DeviceInfo.COMMAND_BUFFER_SUBGRAPH_SUPPORT_EXP, DeviceInfo.BINDLESS_IMAGES_SUPPORT_EXP,
        DeviceInfo.BINDLESS_IMAGES_SHARED_USM_SUPPORT_EXP, DeviceInfo.BINDLESS_IMAGES_1D_USM_SUPPORT_EXP,
        DeviceInfo.BINDLESS_IMAGES_2D_USM_SUPPORT_EXP, DeviceInfo.MIPMAP_SUPPORT_EXP,
        DeviceInfo.MIPMAP_ANISOTROPY_SUPPORT_EXP, DeviceInfo.MIPMAP_LEVEL_REFERENCE_SUPPORT_EXP,
        DeviceInfo.EXTERNAL_MEMORY_IMPORT_SUPPORT_EXP, DeviceInfo.EXTERNAL_SEMAPHORE_IMPORT_SUPPORT_EXP,
        DeviceInfo.CUBEMAP_SUPPORT_EXP, DeviceInfo.CUBEMAP_SEAMLESS_FILTERING_SUPPORT_EXP,
        DeviceInfo.BINDLESS_SAMPLED_IMAGE_FETCH_1D_USM_SUPPORT_EXP,
        DeviceInfo.BINDLESS_SAMPLED_IMAGE_FETCH_1D_SUPPORT_EXP,
        DeviceInfo.BINDLESS_SAMPLED_IMAGE_FETCH_2D_USM_SUPPORT_EXP,
        DeviceInfo.BINDLESS_SAMPLED_IMAGE_FETCH_2D_SUPPORT_EXP,
        DeviceInfo.BINDLESS_SAMPLED_IMAGE_FETCH_3D_SUPPORT_EXP, DeviceInfo.TIMESTAMP_RECORDING_SUPPORT_EXP,
        DeviceInfo.IMAGE_ARRAY_SUPPORT_EXP, DeviceInfo.BINDLESS_UNIQUE_ADDRESSING_PER_DIM_SUPPORT_EXP,
        DeviceInfo.BINDLESS_SAMPLE_1D_USM_SUPPORT_EXP, DeviceInfo.BINDLESS_SAMPLE_2D_USM_SUPPORT_EXP,
        DeviceInfo.BINDLESS_IMAGES_GATHER_SUPPORT_EXP, DeviceInfo.ENQUEUE_NATIVE_COMMAND_SUPPORT_EXP,
        DeviceInfo.LOW_POWER_EVENTS_SUPPORT_EXP, DeviceInfo.IPC_MEMORY_SUPPORT_EXP,
        DeviceInfo.IPC_PHYSICAL_MEMORY_SUPPORT_EXP, DeviceInfo.REUSABLE_EVENTS_SUPPORT_EXP,
        DeviceInfo.IPC_EVENT_SUPPORT_EXP, DeviceInfo.ASYNC_USM_ALLOCATIONS_SUPPORT_EXP,
        DeviceInfo.CLOCK_SUB_GROUP_SUPPORT_EXP, DeviceInfo.CLOCK_WORK_GROUP_SUPPORT_EXP,
        DeviceInfo.CLOCK_DEVICE_SUPPORT_EXP, DeviceInfo.IS_INTEGRATED_GPU,
        DeviceInfo.GRAPH_RECORD_AND_REPLAY_SUPPORT_EXP, DeviceInfo.USM_HOST_ALLOC_REGISTER_SUPPORT_EXP,
        DeviceInfo.PER_EVENT_PROFILING_SUPPORT_EXP, DeviceInfo.USM_P2P_SUPPORT_EXP,
        DeviceInfo.MULTI_DEVICE_COMPILE_SUPPORT_EXP, DeviceInfo.DEVICE_WAIT_SUPPORT_EXP,
        DeviceInfo.DYNAMIC_LINK_SUPPORT_EXP, DeviceInfo.USM_CONTEXT_MEMCPY_SUPPORT_EXP,
        DeviceInfo.MEMORY_EXPORT_EXPORTABLE_DEVICE_MEM_EXP, DeviceInfo.ENQUEUE_HOST_TASK_SUPPORT_EXP,
    ],
) -> bool: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.GLOBAL_MEM_CACHE_TYPE],
) -> DeviceMemCacheType: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.LOCAL_MEM_TYPE],
) -> DeviceLocalMemType: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.EXECUTION_CAPABILITIES],
) -> DeviceExecCapabilityFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[
        DeviceInfo.BUILT_IN_KERNELS, DeviceInfo.IL_VERSION, DeviceInfo.NAME, DeviceInfo.VENDOR,
        DeviceInfo.DRIVER_VERSION, DeviceInfo.PROFILE, DeviceInfo.VERSION, DeviceInfo.BACKEND_RUNTIME_VERSION,
        DeviceInfo.EXTENSIONS, DeviceInfo.PCI_ADDRESS,
    ],
) -> str: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.PLATFORM],
) -> Platform: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.PARENT_DEVICE, DeviceInfo.COMPOSITE_DEVICE],
) -> Device | None: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.SUPPORTED_PARTITIONS],
) -> list[DevicePartition]: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.PARTITION_AFFINITY_DOMAIN],
) -> DeviceAffinityDomainFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.PARTITION_TYPE],
) -> list[DevicePartitionProperty]: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[
        DeviceInfo.USM_HOST_SUPPORT, DeviceInfo.USM_DEVICE_SUPPORT, DeviceInfo.USM_SINGLE_SHARED_SUPPORT,
        DeviceInfo.USM_CROSS_SHARED_SUPPORT, DeviceInfo.USM_SYSTEM_SHARED_SUPPORT,
    ],
) -> DeviceUSMAccessCapabilityFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.UUID, DeviceInfo.LUID],
) -> bytes: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.ATOMIC_MEMORY_ORDER_CAPABILITIES, DeviceInfo.ATOMIC_FENCE_ORDER_CAPABILITIES],
) -> MemoryOrderCapabilityFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.ATOMIC_MEMORY_SCOPE_CAPABILITIES, DeviceInfo.ATOMIC_FENCE_SCOPE_CAPABILITIES],
) -> MemoryScopeCapabilityFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.COMPONENT_DEVICES],
) -> list[Device]: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.CURRENT_CLOCK_THROTTLE_REASONS],
) -> DeviceThrottleReasonsFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.KERNEL_LAUNCH_CAPABILITIES],
) -> KernelLaunchPropertiesFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo.COMMAND_BUFFER_UPDATE_CAPABILITIES_EXP],
) -> DeviceCommandBufferUpdateCapabilityFlags: ...
@overload
def urDeviceGetInfo(
    hDevice: Device,
    propName: Literal[DeviceInfo._2D_BLOCK_ARRAY_CAPABILITIES_EXP],
) -> ExpDevice2DBlockArrayCapabilityFlags: ...
@overload
def urDeviceGetInfo(hDevice: Device, propName: int) -> Any:
    """Return the property `propName` of a device.

    Args:
        hDevice: The device.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `DeviceInfo.ENQUEUE_HOST_TASK_SUPPORT_EXP`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_INVALID_DEVICE`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urDeviceGetNativeHandle(hDevice: Device) -> int:
    """Return the driver's handle of a device (`CUdevice`, `ze_device_handle_t`).

    Args:
        hDevice: The device.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_UNSUPPORTED_FEATURE`: the driver has no such handle
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urDeviceGetSelected(hPlatform: Platform, DeviceType: DeviceType | int) -> list[Device]:
    """Return the devices of a platform that have the given type and that `ONEAPI_DEVICE_SELECTOR` selects. The caller owns a reference to each device.

    `urDeviceGet` returns the same devices, since this package hides all devices that the variable does not select.

    Args:
        hPlatform: The platform.
        DeviceType: Type of the devices to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPlatform` is null
    - `ERROR_INVALID_ENUMERATION`: `DeviceType` is not in the range up to `DeviceType.CUSTOM`
    - other results, for which UR states no condition: `ERROR_INVALID_VALUE`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urDeviceRelease(hDevice: Device) -> None:
    """Release a reference to a device. The device itself lives until the process exits.

    Args:
        hDevice: The device.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - other results, for which UR states no condition: `ERROR_INVALID_DEVICE`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urDeviceRetain(hDevice: Device) -> None:
    """Add a reference to a device.

    Args:
        hDevice: The device.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urDeviceWaitExp(hDevice: Device) -> None:
    """Wait until the commands in all queues of a device have finished, whether they succeeded or not.

    This does not report errors of the commands. `urQueueFinish` reports them.

    Args:
        hDevice: The device.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - other results, for which UR states no condition: `ERROR_INVALID_DEVICE`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueEventsWait(hQueue: Queue, phEventWaitList: Sequence[Event] | None) -> Event:
    """Enqueue a command that completes once the events in `phEventWaitList` are complete. If the list is empty, the command completes after all earlier commands in the queue.

    Args:
        hQueue: The queue.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_VALUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueEventsWaitWithBarrier(hQueue: Queue, phEventWaitList: Sequence[Event] | None) -> Event:
    """Enqueue the same command as `urEnqueueEventsWait`. Later commands in the queue wait until it is complete.

    Args:
        hQueue: The queue.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_VALUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueEventsWaitWithBarrierExt(
    hQueue: Queue, pProperties: ExpEnqueueExtProperties | None, phEventWaitList: Sequence[Event] | None, phEvent: Event | None,
) -> Event:
    """Enqueue a barrier as `urEnqueueEventsWaitWithBarrier` does, with properties and optionally with a reusable event.

    If `phEvent` is `None`, the command signals a new event. Otherwise it signals `phEvent`, which must come from `urEventCreateExp` or `urIPCOpenEventHandleExp`. The function returns the event that the command signals. `phEvent` must belong to the context of `hQueue`. If `hQueue` has profiling, `phEvent` must not be shared with other processes. `phEvent` must not be an element of `phEventWaitList`, and the device of `hQueue` must support `DeviceInfo.REUSABLE_EVENTS_SUPPORT_EXP`. Unified Runtime defines no error code for violations of the last two rules.

    Args:
        hQueue: The queue.
        pProperties: Options.
        phEventWaitList: Events that have to be complete before the command runs.
        phEvent: An event to use instead of a new one.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `ExpEnqueueExtFlags` (mask 0xfffff7ff)
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_CONTEXT`: `phEvent` belongs to another context than `hQueue`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_VALUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueHostTaskExp(
    hQueue: Queue, pfnHostTask: Callable[[object], object], data: object, pProperties: ExpHostTaskProperties | None, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a call of `pfnHostTask(data)`, which a thread of the queue makes after the earlier commands in the queue.

    If the function raises an exception, `urQueueFinish` raises a `URError` with that exception as its cause. The `result` of the `URError` is `ERROR_UNKNOWN` or, if this package raised the exception, the exception's own `result`.

    Args:
        hQueue: The queue.
        pfnHostTask: The function to run on the host.
        data: An object that the function receives.
        pProperties: Options.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pfnHostTask` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `ExpHostTaskFlags` (mask 0xfffffffe)
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_UNSUPPORTED_FEATURE`: the device answers false to `DeviceInfo.ENQUEUE_HOST_TASK_SUPPORT_EXP`
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemBufferCopy(
    hQueue: Queue, hBufferSrc: Mem, hBufferDst: Mem, srcOffset: int, dstOffset: int, size: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a copy of `size` bytes from one buffer to another.

    Args:
        hQueue: The queue.
        hBufferSrc: The buffer that is read.
        hBufferDst: The buffer that is written.
        srcOffset: Offset of the first byte to read, in bytes.
        dstOffset: Offset of the first byte to write, in bytes.
        size: Number of bytes.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBufferSrc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBufferDst` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_SIZE`: `srcOffset + size` exceeds `hBufferSrc`, or `dstOffset + size` exceeds `hBufferDst`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemBufferCopyRect(
    hQueue: Queue, hBufferSrc: Mem, hBufferDst: Mem, srcOrigin: RectOffset, dstOrigin: RectOffset, region: RectRegion, srcRowPitch: int, srcSlicePitch: int, dstRowPitch: int, dstSlicePitch: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a copy of a three-dimensional box of bytes from one buffer to another.

    Args:
        hQueue: The queue.
        hBufferSrc: The buffer that is read.
        hBufferDst: The buffer that is written.
        srcOrigin: Where the box begins in the source.
        dstOrigin: Where the box begins in the target.
        region: Size of the box.
        srcRowPitch: Bytes from one row of the source to the next, or 0 if rows are adjacent.
        srcSlicePitch: Bytes from one slice of the source to the next, or 0 if slices are adjacent.
        dstRowPitch: Bytes from one row of the target to the next, or 0 if rows are adjacent.
        dstSlicePitch: Bytes from one slice of the target to the next, or 0 if slices are adjacent.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBufferSrc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBufferDst` is null
    - `ERROR_INVALID_SIZE`: `region` is empty
    - `ERROR_INVALID_SIZE`: `srcRowPitch` is less than `region.width` and not 0
    - `ERROR_INVALID_SIZE`: `dstRowPitch` is less than `region.width` and not 0
    - `ERROR_INVALID_SIZE`: `srcSlicePitch` is not 0 and is less than `region.height` times the row pitch (`srcRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `srcSlicePitch` is not a multiple of the row pitch (`srcRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `dstSlicePitch` is not 0 and is less than `region.height` times the row pitch (`dstRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `dstSlicePitch` is not a multiple of the row pitch (`dstRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_SIZE`: a box exceeds its buffer
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemBufferFill(
    hQueue: Queue, hBuffer: Mem, pPattern: bytes | bytearray | memoryview, offset: int, size: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a command that fills `size` bytes of a buffer with repetitions of a pattern.

    Args:
        hQueue: The queue.
        hBuffer: The buffer.
        pPattern: The bytes to repeat.
        offset: Offset in bytes.
        size: Number of bytes.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pPattern` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBuffer` is null
    - `ERROR_INVALID_SIZE`: `pPattern` is empty or `size` is 0
    - `ERROR_INVALID_SIZE`: `pPattern` is longer than `size`
    - `ERROR_INVALID_SIZE`: the length of `pPattern` is not a power of two
    - `ERROR_INVALID_SIZE`: `size` is not a multiple of the length of `pPattern`
    - `ERROR_INVALID_SIZE`: `offset` is not a multiple of the length of `pPattern`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_SIZE`: `offset + size` exceeds `hBuffer`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemBufferMap(
    hQueue: Queue, hBuffer: Mem, blockingMap: bool, mapFlags: MapFlags | int, offset: int, size: int, phEventWaitList: Sequence[Event] | None,
) -> tuple[Event, int]:
    """Enqueue a command that maps a part of a buffer, and return its event and the address of the mapped bytes. The program can access the bytes at that address once the command is complete.

    If the buffer is in host memory, the address points into the buffer itself. If the buffer is in device memory, the address points to a copy in host memory, and `urEnqueueMemUnmap` copies the bytes back if `mapFlags` contains a write flag.

    Args:
        hQueue: The queue.
        hBuffer: The buffer.
        blockingMap: Whether to wait until the bytes are mapped.
        mapFlags: Whether the program will read or write the mapped bytes.
        offset: Offset in bytes.
        size: Number of bytes.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBuffer` is null
    - `ERROR_INVALID_ENUMERATION`: `mapFlags` has bits that are not `MapFlags` (mask 0xfffffff8)
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_SIZE`: `size` is 0, or `offset + size` exceeds `hBuffer`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemBufferRead(
    hQueue: Queue, hBuffer: Mem, blockingRead: bool, offset: int, size: int, pDst: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a copy of `size` bytes from a buffer to the address `pDst`. If `blockingRead` is true, wait until the copy is complete.

    Args:
        hQueue: The queue.
        hBuffer: The buffer.
        blockingRead: Whether to wait until the bytes are read.
        offset: Offset in bytes.
        size: Number of bytes.
        pDst: Address of the first byte to write.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pDst` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBuffer` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_SIZE`: `offset + size` exceeds `hBuffer`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemBufferReadRect(
    hQueue: Queue, hBuffer: Mem, blockingRead: bool, bufferOrigin: RectOffset, hostOrigin: RectOffset, region: RectRegion, bufferRowPitch: int, bufferSlicePitch: int, hostRowPitch: int, hostSlicePitch: int, pDst: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a copy of a three-dimensional box of bytes from a buffer to the address `pDst`. If `blockingRead` is true, wait until the copy is complete.

    Args:
        hQueue: The queue.
        hBuffer: The buffer.
        blockingRead: Whether to wait until the bytes are read.
        bufferOrigin: Where the box begins in the buffer.
        hostOrigin: Where the box begins in the host's memory.
        region: Size of the box.
        bufferRowPitch: Bytes from one row of the buffer to the next, or 0 if rows are adjacent.
        bufferSlicePitch: Bytes from one slice of the buffer to the next, or 0 if slices are adjacent.
        hostRowPitch: Bytes from one row in the host's memory to the next, or 0 if rows are adjacent.
        hostSlicePitch: Bytes from one slice in the host's memory to the next, or 0 if slices are adjacent.
        pDst: Address of the first byte to write.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pDst` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBuffer` is null
    - `ERROR_INVALID_SIZE`: `region` is empty
    - `ERROR_INVALID_SIZE`: `bufferRowPitch` is less than `region.width` and not 0
    - `ERROR_INVALID_SIZE`: `hostRowPitch` is less than `region.width` and not 0
    - `ERROR_INVALID_SIZE`: `bufferSlicePitch` is not 0 and is less than `region.height` times the row pitch (`bufferRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `bufferSlicePitch` is not a multiple of the row pitch (`bufferRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `hostSlicePitch` is not 0 and is less than `region.height` times the row pitch (`hostRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `hostSlicePitch` is not a multiple of the row pitch (`hostRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_SIZE`: the box exceeds `hBuffer`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemBufferWrite(
    hQueue: Queue, hBuffer: Mem, blockingWrite: bool, offset: int, size: int, pSrc: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a copy of `size` bytes from the address `pSrc` to a buffer. If `blockingWrite` is true, wait until the copy is complete.

    Args:
        hQueue: The queue.
        hBuffer: The buffer.
        blockingWrite: Whether to wait until the bytes are written.
        offset: Offset in bytes.
        size: Number of bytes.
        pSrc: Address of the first byte to read.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pSrc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBuffer` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_SIZE`: `offset + size` exceeds `hBuffer`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemBufferWriteRect(
    hQueue: Queue, hBuffer: Mem, blockingWrite: bool, bufferOrigin: RectOffset, hostOrigin: RectOffset, region: RectRegion, bufferRowPitch: int, bufferSlicePitch: int, hostRowPitch: int, hostSlicePitch: int, pSrc: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a copy of a three-dimensional box of bytes from the address `pSrc` to a buffer. If `blockingWrite` is true, wait until the copy is complete.

    Args:
        hQueue: The queue.
        hBuffer: The buffer.
        blockingWrite: Whether to wait until the bytes are written.
        bufferOrigin: Where the box begins in the buffer.
        hostOrigin: Where the box begins in the host's memory.
        region: Size of the box.
        bufferRowPitch: Bytes from one row of the buffer to the next, or 0 if rows are adjacent.
        bufferSlicePitch: Bytes from one slice of the buffer to the next, or 0 if slices are adjacent.
        hostRowPitch: Bytes from one row in the host's memory to the next, or 0 if rows are adjacent.
        hostSlicePitch: Bytes from one slice in the host's memory to the next, or 0 if slices are adjacent.
        pSrc: Address of the first byte to read.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pSrc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBuffer` is null
    - `ERROR_INVALID_SIZE`: `region` is empty
    - `ERROR_INVALID_SIZE`: `bufferRowPitch` is less than `region.width` and not 0
    - `ERROR_INVALID_SIZE`: `hostRowPitch` is less than `region.width` and not 0
    - `ERROR_INVALID_SIZE`: `bufferSlicePitch` is not 0 and is less than `region.height` times the row pitch (`bufferRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `bufferSlicePitch` is not a multiple of the row pitch (`bufferRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `hostSlicePitch` is not 0 and is less than `region.height` times the row pitch (`hostRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_SIZE`: `hostSlicePitch` is not a multiple of the row pitch (`hostRowPitch`, or `region.width` if that is 0)
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_SIZE`: the box exceeds `hBuffer`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueMemUnmap(hQueue: Queue, hMem: Mem, pMappedPtr: int, phEventWaitList: Sequence[Event] | None) -> Event:
    """Enqueue a command that ends a mapping made by `urEnqueueMemBufferMap`. The program must not use the mapped address any more.

    Args:
        hQueue: The queue.
        hMem: The buffer.
        pMappedPtr: The address that `urEnqueueMemBufferMap` returned.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMappedPtr` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hMem` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - `ERROR_INVALID_MEM_OBJECT`: `pMappedPtr` is not the address of mapped bytes of `hMem`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueTimestampRecordingExp(hQueue: Queue, blocking: bool, phEventWaitList: Sequence[Event] | None) -> Event:
    """Enqueue a command that does nothing but record the times at which it runs. Its event has these times even if the queue has no profiling. If `blocking` is true, wait until the command is complete.

    Args:
        hQueue: The queue.
        blocking: Whether to wait until the command is complete.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_UNSUPPORTED_FEATURE`: the device answers false to `DeviceInfo.TIMESTAMP_RECORDING_SUPPORT_EXP`
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMAdvise(hQueue: Queue, pMem: int, size: int, advice: USMAdviceFlags | int) -> Event:
    """Hint how memory will be used. The command does nothing, and completes after the earlier commands in the queue.

    Args:
        hQueue: The queue.
        pMem: Address of the memory.
        size: Number of bytes.
        advice: The expected use of the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_ENUMERATION`: `advice` has bits that are not `USMAdviceFlags` (mask 0xfffe0000)
    - `ERROR_INVALID_SIZE`: `size` is 0
    - `ERROR_INVALID_SIZE`: `size` exceeds the allocation of `pMem`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMDeviceAllocExp(
    hQueue: Queue, pPool: USMPool | None, size: int, pProperties: ExpAsyncUSMAllocProperties | None, phEventWaitList: Sequence[Event] | None,
) -> tuple[int, Event]:
    """Allocate memory of the queue's device, and enqueue a command after which other commands may use the memory. Return the memory's address and the command's event. The memory comes from `pPool` or, if that is `None`, from the pool that is set for the device.

    The memory is allocated immediately, but only commands that run after the event may use it.

    Args:
        hQueue: The queue.
        pPool: The pool to allocate from.
        size: Number of bytes.
        pProperties: Options.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `ExpAsyncUSMAllocFlags` (mask 0xfffffffe)
    - `ERROR_INVALID_USM_SIZE`: `size` is 0
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_USM_SIZE`: `size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`
    - `ERROR_INVALID_VALUE`: `pPool` belongs to another context, or was created for another device
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMFill(
    hQueue: Queue, pMem: int, pPattern: bytes | bytearray | memoryview, size: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a command that fills `size` bytes with repetitions of a pattern. The address can be in USM memory, in a mapped range of virtual memory or in other memory of the process.

    The length of `pPattern` must be a power of two. Unified Runtime defines no error code for other lengths.

    Args:
        hQueue: The queue.
        pMem: Address of the memory.
        pPattern: The bytes to repeat.
        size: Number of bytes.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_POINTER`: `pPattern` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_SIZE`: `pPattern` is empty or `size` is 0
    - `ERROR_INVALID_SIZE`: `pPattern` is longer than `size`
    - `ERROR_INVALID_SIZE`: `size` is not a multiple of the length of `pPattern`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_SIZE`: `size` exceeds the allocation of `pMem`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMFill2D(
    hQueue: Queue, pMem: int, pitch: int, pPattern: bytes | bytearray | memoryview, width: int, height: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a command that fills `height` rows of `width` bytes with repetitions of a pattern. The pattern continues from one row to the next. The memory can be of the same kinds as for `urEnqueueUSMFill`.

    Args:
        hQueue: The queue.
        pMem: Address of the memory.
        pitch: Bytes from one row to the next.
        pPattern: The bytes to repeat.
        width: Number of bytes per row.
        height: Number of rows.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_POINTER`: `pPattern` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_SIZE`: `pitch` is 0 or less than `width`
    - `ERROR_INVALID_SIZE`: `pPattern` is empty
    - `ERROR_INVALID_SIZE`: `pPattern` is longer than `width * height`
    - `ERROR_INVALID_SIZE`: the length of `pPattern` is not a power of two
    - `ERROR_INVALID_SIZE`: `width` or `height` is 0
    - `ERROR_INVALID_SIZE`: `width * height` is not a multiple of the length of `pPattern`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_SIZE`: `pitch * height` exceeds the allocation of `pMem`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMFreeExp(
    hQueue: Queue, pPool: USMPool | None, pMem: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a command that frees USM memory. The memory stays allocated until commands that use it have finished.

    Args:
        hQueue: The queue.
        pPool: The pool of the memory.
        pMem: Address of the memory.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMHostAllocExp(
    hQueue: Queue, pPool: USMPool | None, size: int, pProperties: ExpAsyncUSMAllocProperties | None, phEventWaitList: Sequence[Event] | None,
) -> tuple[int, Event]:
    """Allocate host memory that the devices of the queue's context can access. Otherwise, this works like `urEnqueueUSMDeviceAllocExp`, but `None` for `pPool` means that the memory comes from no pool.

    Args:
        hQueue: The queue.
        pPool: The pool to allocate from.
        size: Number of bytes.
        pProperties: Options.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `ExpAsyncUSMAllocFlags` (mask 0xfffffffe)
    - `ERROR_INVALID_USM_SIZE`: `size` is 0
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_USM_SIZE`: `size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`
    - `ERROR_INVALID_VALUE`: `pPool` belongs to another context, or was created for another device
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMMemcpy(
    hQueue: Queue, blocking: bool, pDst: int, pSrc: int, size: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a copy of `size` bytes. If `blocking` is true, wait until the copy is complete.

    Each address can be in USM memory, in a mapped range of virtual memory or in other memory of the process. The caller must keep other memory of the process alive until the copy is complete.

    Args:
        hQueue: The queue.
        blocking: Whether to wait until the command is complete.
        pDst: Address of the first byte to write.
        pSrc: Address of the first byte to read.
        size: Number of bytes.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pDst` is null
    - `ERROR_INVALID_NULL_POINTER`: `pSrc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_SIZE`: `size` is 0
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_SIZE`: `size` exceeds the allocation of `pSrc` or `pDst`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMMemcpy2D(
    hQueue: Queue, blocking: bool, pDst: int, dstPitch: int, pSrc: int, srcPitch: int, width: int, height: int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Enqueue a copy of `height` rows of `width` bytes. If `blocking` is true, wait until the copy is complete. The memory can be of the same kinds as for `urEnqueueUSMMemcpy`.

    Args:
        hQueue: The queue.
        blocking: Whether to wait until the command is complete.
        pDst: Address of the first byte to write.
        dstPitch: Bytes from one row of the target to the next.
        pSrc: Address of the first byte to read.
        srcPitch: Bytes from one row of the source to the next.
        width: Number of bytes per row.
        height: Number of rows.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pDst` is null
    - `ERROR_INVALID_NULL_POINTER`: `pSrc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_SIZE`: `srcPitch` or `dstPitch` is 0
    - `ERROR_INVALID_SIZE`: `width` exceeds `srcPitch` or `dstPitch`
    - `ERROR_INVALID_SIZE`: `height` is 0
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_SIZE`: `srcPitch * height` exceeds the allocation of `pSrc`, or `dstPitch * height` that of `pDst`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMPrefetch(
    hQueue: Queue, pMem: int, size: int, flags: USMMigrationFlags | int, phEventWaitList: Sequence[Event] | None,
) -> Event:
    """Hint that memory will be used on a device or on the host.

    The command does nothing, since drivers move memory when it is used. The command completes after the earlier commands in the queue.

    Args:
        hQueue: The queue.
        pMem: Address of the memory.
        size: Number of bytes.
        flags: Options.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_ENUMERATION`: `flags` has bits that are not `USMMigrationFlags` (mask 0xfffffffc)
    - `ERROR_INVALID_SIZE`: `size` is 0
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_SIZE`: `size` exceeds the allocation of `pMem`
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEnqueueUSMSharedAllocExp(
    hQueue: Queue, pPool: USMPool | None, size: int, pProperties: ExpAsyncUSMAllocProperties | None, phEventWaitList: Sequence[Event] | None,
) -> tuple[int, Event]:
    """Allocate memory that the host and the queue's device share. Otherwise, this works like `urEnqueueUSMDeviceAllocExp`, but `None` for `pPool` means that the memory comes from no pool.

    Args:
        hQueue: The queue.
        pPool: The pool to allocate from.
        size: Number of bytes.
        pProperties: Options.
        phEventWaitList: Events that have to be complete before the command runs.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `ExpAsyncUSMAllocFlags` (mask 0xfffffffe)
    - `ERROR_INVALID_USM_SIZE`: `size` is 0
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is null
    - `ERROR_INVALID_USM_SIZE`: `size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`
    - `ERROR_INVALID_VALUE`: `pPool` belongs to another context, or was created for another device
    - `ERROR_INVALID_EVENT_WAIT_LIST`: an element of `phEventWaitList` is not a valid event
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEventCreateExp(hContext: Context, hDevice: Device, pEventDesc: ExpEventDesc) -> Event:
    """Create a reusable event, which belongs to no command yet. `urEnqueueEventsWaitWithBarrierExt` can signal it.

    Args:
        hContext: The context.
        hDevice: The device.
        pEventDesc: Options of the event.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pEventDesc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `pEventDesc.flags` has bits that are not `ExpEventFlags` (mask 0xfffffffc)
    - `ERROR_INVALID_VALUE`: `pEventDesc.flags` has both `IPC_EXP` and `ENABLE_PROFILING`
    - `ERROR_UNSUPPORTED_FEATURE`: `pEventDesc.flags` has `ENABLE_PROFILING` and the platform cannot profile single events
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEventCreateWithNativeHandle(
    hNativeEvent: int, hContext: Context, pProperties: EventNativeProperties | None,
) -> Event:
    """Create an event that completes together with a driver's event (`CUevent`, `ze_event_handle_t`). Recording the driver's event again later does not affect the new event. If the handle is 0, the new event is already complete.

    Args:
        hNativeEvent: The driver's handle of the event.
        hContext: The context.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_VALUE`: `hNativeEvent` is not an event
    - `ERROR_UNSUPPORTED_FEATURE`: the adapter cannot use events of other libraries
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urEventGetInfo(
    hEvent: Event,
    propName: Literal[EventInfo.COMMAND_QUEUE],
) -> Queue | None: ...
@overload
def urEventGetInfo(
    hEvent: Event,
    propName: Literal[EventInfo.CONTEXT],
) -> Context: ...
@overload
def urEventGetInfo(
    hEvent: Event,
    propName: Literal[EventInfo.COMMAND_TYPE],
) -> Command: ...
@overload
def urEventGetInfo(
    hEvent: Event,
    propName: Literal[EventInfo.COMMAND_EXECUTION_STATUS],
) -> EventStatus: ...
@overload
def urEventGetInfo(
    hEvent: Event,
    propName: Literal[EventInfo.REFERENCE_COUNT],
) -> int: ...
@overload
def urEventGetInfo(hEvent: Event, propName: int) -> Any:
    """Return the property `propName` of an event.

    Args:
        hEvent: The event.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hEvent` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `EventInfo.REFERENCE_COUNT`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_INVALID_EVENT`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEventGetNativeHandle(hEvent: Event) -> int:
    """Return the handle of a driver's event (`CUevent`, `ze_event_handle_t`) that completes together with the newest command of `hEvent`. The handle is valid until `hEvent` is signalled again or released.

    Args:
        hEvent: The event.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hEvent` is null
    - `ERROR_UNSUPPORTED_FEATURE`: the driver has no such handle, or a queue still holds back the command of `hEvent`
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEventGetProfilingInfo(hEvent: Event, propName: ProfilingInfo | int) -> int:
    """Return the time at which the command of an event was enqueued, submitted, started or completed.

    `COMMAND_QUEUED` and `COMMAND_SUBMIT` are known once the command is enqueued, the other times once it is complete. A command that only marks a place in its queue, such as a barrier, starts when it ends. A reusable event that was created with `ExpEventFlags.ENABLE_PROFILING` has these times on any queue.

    Args:
        hEvent: The event.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hEvent` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `ProfilingInfo.COMMAND_COMPLETE`
    - `ERROR_PROFILING_INFO_NOT_AVAILABLE`: the queue of `hEvent` was made without `QueueFlags.PROFILING_ENABLE`, or the time is not known yet
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_INVALID_EVENT`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEventRelease(hEvent: Event) -> None:
    """Release a reference to an event.

    Args:
        hEvent: The event.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hEvent` is null
    - other results, for which UR states no condition: `ERROR_INVALID_EVENT`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEventRetain(hEvent: Event) -> None:
    """Add a reference to an event.

    Args:
        hEvent: The event.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hEvent` is null
    - other results, for which UR states no condition: `ERROR_INVALID_EVENT`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEventSetCallback(
    hEvent: Event, execStatus: ExecutionInfo | int, pfnNotify: Callable[[Event, ExecutionInfo, object], object], pUserData: object,
) -> None:
    """Register a callback that is called when the command of an event reaches the state `execStatus`.

    A single thread makes all callbacks, as `pfnNotify(hEvent, execStatus, pUserData)`. The event is retained until the callback. The callback is also made if the command fails, so it should query the state of the event. The state `RUNNING` is reported only when the command is complete.

    Args:
        hEvent: The event.
        execStatus: The state of the command at which the callback is called.
        pfnNotify: The callback.
        pUserData: An object that the callback receives.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pfnNotify` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hEvent` is null
    - `ERROR_INVALID_ENUMERATION`: `execStatus` is not in the range up to `ExecutionInfo.QUEUED`
    - `ERROR_UNSUPPORTED_ENUMERATION`: `execStatus` is `ExecutionInfo.QUEUED`, the state in which every event begins
    - other results, for which UR states no condition: `ERROR_INVALID_EVENT`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urEventWait(phEventWaitList: Sequence[Event]) -> None:
    """Wait until all the given events are complete.

    Args:
        phEventWaitList: The events.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `phEventWaitList` is null
    - `ERROR_INVALID_VALUE`: `phEventWaitList` is empty
    - `ERROR_INVALID_EVENT`: an element of `phEventWaitList` is null
    - `ERROR_IN_EVENT_LIST_EXEC_STATUS`: an event in `phEventWaitList` has the status `EventStatus.ERROR`
    - other results, for which UR states no condition: `ERROR_INVALID_EVENT`, `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCCloseMemHandleExp(hContext: Context, pMem: int) -> None:
    """Close memory that `urIPCOpenMemHandleExp` opened.

    Args:
        hContext: The context.
        pMem: Address of the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCClosePhysMemHandleExp(hContext: Context, hPhysMem: PhysicalMem) -> None:
    """Close physical memory that `urIPCOpenPhysMemHandleExp` opened, by releasing a reference.

    Args:
        hContext: The context.
        hPhysMem: The physical memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hPhysMem` is null
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCGetEventHandleExp(hEvent: Event) -> bytes:
    """Return handle data (the bytes of an IPC handle) with which other processes can open an event.

    Args:
        hEvent: The event.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hEvent` is null
    - `ERROR_INVALID_EVENT`: `hEvent` was made without `ExpEventFlags.IPC_EXP`
    - `ERROR_INVALID_EVENT`: `hEvent` comes from `urIPCOpenEventHandleExp`
    - `ERROR_UNSUPPORTED_FEATURE`: `hEvent` has profiling or timestamps
    - `ERROR_UNSUPPORTED_FEATURE`: the device of `hEvent` answers false to `DeviceInfo.IPC_EVENT_SUPPORT_EXP`
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCGetMemHandleExp(hContext: Context, pMem: int) -> bytes:
    """Return handle data (the bytes of an IPC handle) with which other processes can open device USM memory.

    If the memory at `pMem` cannot be shared, or if `pMem` is null, the call fails with `ERROR_INVALID_ARGUMENT`. Unified Runtime documents no error code for these cases, but its own adapters also use this one.

    Args:
        hContext: The context.
        pMem: Address of the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCGetPhysMemHandleExp(hContext: Context, hPhysMem: PhysicalMem) -> bytes:
    """Return handle data (the bytes of an IPC handle) with which other processes can open physical memory.

    Args:
        hContext: The context.
        hPhysMem: The physical memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hPhysMem` is null
    - `ERROR_INVALID_ARGUMENT`: `hPhysMem` was made without `PhysicalMemFlags.ENABLE_IPC`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCOpenEventHandleExp(hContext: Context, pIPCEventHandleData: bytes | bytearray | memoryview) -> Event:
    """Open an event by its handle data. The opened event shares its state with the original event.

    There is no function that closes an opened event. The last `urEventRelease` closes it.

    Args:
        hContext: The context.
        pIPCEventHandleData: Handle data of an event.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pIPCEventHandleData` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_VALUE`: the length of `pIPCEventHandleData` is not the size of this kind of handle
    - `ERROR_UNSUPPORTED_FEATURE`: a device of `hContext` answers false to `DeviceInfo.IPC_EVENT_SUPPORT_EXP`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCOpenMemHandleExp(
    hContext: Context, hDevice: Device, pIPCMemHandleData: bytes | bytearray | memoryview,
) -> int:
    """Open memory by its handle data. Return the address of the memory in this process, which can differ from its address in the exporting process.

    Args:
        hContext: The context.
        hDevice: The device.
        pIPCMemHandleData: Handle data of memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pIPCMemHandleData` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_VALUE`: the length of `pIPCMemHandleData` is not the size of this kind of handle
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCOpenPhysMemHandleExp(
    hContext: Context, hDevice: Device, pIPCPhysMemHandleData: bytes | bytearray | memoryview,
) -> PhysicalMem:
    """Open physical memory by its handle data.

    Args:
        hContext: The context.
        hDevice: The device.
        pIPCPhysMemHandleData: Handle data of physical memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pIPCPhysMemHandleData` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_VALUE`: the length of `pIPCPhysMemHandleData` is not the size of this kind of handle
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCPutEventHandleExp(hContext: Context, pIPCEventHandleData: bytes | bytearray | memoryview) -> None:
    """Release handle data of an event. No process can open the event by this handle data any more. The event itself and events that are already open stay valid. Only the process that called `urIPCGetEventHandleExp` may release the handle data.

    Args:
        hContext: The context.
        pIPCEventHandleData: Handle data of an event.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pIPCEventHandleData` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCPutMemHandleExp(hContext: Context, pIPCMemHandleData: bytes | bytearray | memoryview) -> None:
    """Release handle data of memory. No process can open the memory by this handle data any more. Memory that is already open stays open.

    Args:
        hContext: The context.
        pIPCMemHandleData: Handle data of memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pIPCMemHandleData` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urIPCPutPhysMemHandleExp(hContext: Context, pIPCPhysMemHandleData: bytes | bytearray | memoryview) -> None:
    """Release handle data of physical memory. No process can open the memory by this handle data any more. Physical memory that is already open stays open.

    Args:
        hContext: The context.
        pIPCPhysMemHandleData: Handle data of physical memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pIPCPhysMemHandleData` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urMemBufferCreate(
    hContext: Context, flags: MemFlags | int, size: int, pProperties: BufferProperties | None,
) -> Mem:
    """Create a buffer. Commands access its bytes by the buffer's handle and an offset.

    With `USE_HOST_POINTER`, the buffer is the program's own memory at `pProperties.pHost`. Otherwise new memory is allocated for the buffer. It is host memory if `flags` contains `ALLOC_HOST_POINTER` or if the context has several devices, and device memory in all other cases. With `ALLOC_COPY_HOST_POINTER`, the bytes at `pProperties.pHost` are copied into the new buffer.

    Args:
        hContext: The context.
        flags: Options.
        size: Number of bytes.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `flags` has bits that are not `MemFlags` (mask 0xffffffc0)
    - `ERROR_INVALID_BUFFER_SIZE`: `size` is 0
    - `ERROR_INVALID_HOST_PTR`: `flags` has `USE_HOST_POINTER` or `ALLOC_COPY_HOST_POINTER`, and there is no `pProperties.pHost`
    - `ERROR_INVALID_HOST_PTR`: `flags` has neither, and there is a `pProperties.pHost`
    - `ERROR_INVALID_BUFFER_SIZE`: `size` exceeds the memory of a device of `hContext`
    - `ERROR_INVALID_HOST_PTR`: this process does not have `size` bytes at `pProperties.pHost`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_INVALID_VALUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urMemBufferPartition(
    hBuffer: Mem, flags: MemFlags | int, bufferCreateType: BufferCreateType | int, pRegion: BufferRegion,
) -> Mem:
    """Create a buffer that covers a part of another buffer. The two buffers share these bytes. The memory stays allocated as long as either buffer exists.

    Args:
        hBuffer: The buffer.
        flags: Options.
        bufferCreateType: The kind of part, always `REGION`.
        pRegion: The part of the buffer to cover.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pRegion` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hBuffer` is null
    - `ERROR_INVALID_ENUMERATION`: `flags` has bits that are not `MemFlags` (mask 0xffffffc0)
    - `ERROR_INVALID_ENUMERATION`: `bufferCreateType` is not in the range up to `BufferCreateType.REGION`
    - `ERROR_INVALID_BUFFER_SIZE`: `pRegion.size` is 0
    - `ERROR_INVALID_MEM_OBJECT`: `hBuffer` is itself a part of a buffer
    - `ERROR_INVALID_VALUE`: `flags` has `USE_HOST_POINTER`, `ALLOC_HOST_POINTER` or `ALLOC_COPY_HOST_POINTER`, or permits an access that `hBuffer` does not
    - `ERROR_INVALID_BUFFER_SIZE`: `pRegion` exceeds `hBuffer`
    - other results, for which UR states no condition: `ERROR_OBJECT_ALLOCATION_FAILURE`, `ERROR_INVALID_HOST_PTR`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urMemGetInfo(
    hMemory: Mem,
    propName: Literal[MemInfo.SIZE, MemInfo.REFERENCE_COUNT],
) -> int: ...
@overload
def urMemGetInfo(
    hMemory: Mem,
    propName: Literal[MemInfo.CONTEXT],
) -> Context: ...
@overload
def urMemGetInfo(hMemory: Mem, propName: int) -> Any:
    """Return the property `propName` of a buffer.

    Args:
        hMemory: The buffer.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hMemory` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `MemInfo.REFERENCE_COUNT`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urMemRelease(hMem: Mem) -> None:
    """Release a reference to a buffer. After the last release, the buffer's memory is freed once the commands that use it have finished.

    Args:
        hMem: The buffer.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hMem` is null
    - other results, for which UR states no condition: `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urMemRetain(hMem: Mem) -> None:
    """Add a reference to a buffer.

    Args:
        hMem: The buffer.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hMem` is null
    - other results, for which UR states no condition: `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urMemoryExportAllocExportableMemoryExp(
    hContext: Context, hDevice: Device, alignment: int, size: int, handleTypeToExport: ExpExternalMemType | int,
) -> int:
    """Allocate memory of a device that `urMemoryExportExportMemoryHandleExp` can export, and return its address.

    Args:
        hContext: The context.
        hDevice: The device.
        alignment: Alignment in bytes, a power of two, or 0 for the default.
        size: Number of bytes.
        handleTypeToExport: The kind of handle by which another API imports the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `handleTypeToExport` is not in the range up to `ExpExternalMemType.WIN32_NT_DX11_RESOURCE`
    - `ERROR_UNSUPPORTED_ALIGNMENT`: `alignment` is neither 0 nor a power of two
    - `ERROR_INVALID_USM_SIZE`: `size` is 0
    - `ERROR_INVALID_VALUE`: `alignment` exceeds the size of the largest data type of `hDevice`
    - `ERROR_UNSUPPORTED_SIZE`: `size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`
    - `ERROR_UNSUPPORTED_FEATURE`: `handleTypeToExport` is not `OPAQUE_FD`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_INVALID_DEVICE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_DEVICE_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urMemoryExportExportMemoryHandleExp(
    hContext: Context, hDevice: Device, handleTypeToExport: ExpExternalMemType | int, pMem: int,
) -> int:
    """Return a file descriptor with which another API can import an allocation. The caller owns the file descriptor.

    Args:
        hContext: The context.
        hDevice: The device.
        handleTypeToExport: The kind of handle by which another API imports the memory.
        pMem: Address of the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `handleTypeToExport` is not in the range up to `ExpExternalMemType.WIN32_NT_DX11_RESOURCE`
    - `ERROR_INVALID_VALUE`: `pMem` was not allocated in `hContext`
    - `ERROR_UNSUPPORTED_FEATURE`: `handleTypeToExport` is not `OPAQUE_FD`, or the driver has no file descriptor of the memory
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_INVALID_DEVICE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_DEVICE_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urMemoryExportFreeExportableMemoryExp(hContext: Context, hDevice: Device, pMem: int) -> None:
    """Free memory that `urMemoryExportAllocExportableMemoryExp` allocated.

    Args:
        hContext: The context.
        hDevice: The device.
        pMem: Address of the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_VALUE`: `pMem` was not allocated in `hContext`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_INVALID_DEVICE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_DEVICE_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urPhysicalMemCreate(
    hContext: Context, hDevice: Device, size: int, pProperties: PhysicalMemProperties | None,
) -> PhysicalMem:
    """Create physical memory, which `urVirtualMemMap` can map to virtual addresses.

    Args:
        hContext: The context.
        hDevice: The device.
        size: Number of bytes.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `PhysicalMemFlags` (mask 0xfffffffd)
    - `ERROR_INVALID_SIZE`: `size` is not a multiple of `VirtualMemGranularityInfo.MINIMUM`
    - `ERROR_OUT_OF_HOST_MEMORY`: there is no memory of `size` bytes
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urPhysicalMemGetInfo(
    hPhysicalMem: PhysicalMem,
    propName: Literal[PhysicalMemInfo.CONTEXT],
) -> Context: ...
@overload
def urPhysicalMemGetInfo(
    hPhysicalMem: PhysicalMem,
    propName: Literal[PhysicalMemInfo.DEVICE],
) -> Device: ...
@overload
def urPhysicalMemGetInfo(
    hPhysicalMem: PhysicalMem,
    propName: Literal[PhysicalMemInfo.SIZE, PhysicalMemInfo.REFERENCE_COUNT],
) -> int: ...
@overload
def urPhysicalMemGetInfo(
    hPhysicalMem: PhysicalMem,
    propName: Literal[PhysicalMemInfo.PROPERTIES],
) -> PhysicalMemProperties: ...
@overload
def urPhysicalMemGetInfo(hPhysicalMem: PhysicalMem, propName: int) -> Any:
    """Return the property `propName` of physical memory.

    Args:
        hPhysicalMem: The physical memory.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPhysicalMem` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `PhysicalMemInfo.REFERENCE_COUNT`
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urPhysicalMemRelease(hPhysicalMem: PhysicalMem) -> None:
    """Release a reference to physical memory.

    Args:
        hPhysicalMem: The physical memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPhysicalMem` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urPhysicalMemRetain(hPhysicalMem: PhysicalMem) -> None:
    """Add a reference to physical memory.

    Args:
        hPhysicalMem: The physical memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPhysicalMem` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urPlatformCreateWithNativeHandle(
    hNativePlatform: int, hAdapter: Adapter, pProperties: PlatformNativeProperties | None,
) -> Platform:
    """Return the platform that a driver's handle identifies. The platform does not own the handle.

    Args:
        hNativePlatform: The driver's handle of the platform.
        hAdapter: The adapter.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - `ERROR_INVALID_VALUE`: `hNativePlatform` is not the platform of `hAdapter`
    - `ERROR_UNSUPPORTED_FEATURE`: the driver has no such handle
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urPlatformGet(hAdapter: Adapter) -> list[Platform]:
    """Return the platforms of an adapter.

    Args:
        hAdapter: The adapter.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hAdapter` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urPlatformGetApiVersion(hPlatform: Platform) -> ApiVersion:
    """Return the version of Unified Runtime's interface that this package implements.

    Args:
        hPlatform: The platform.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPlatform` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urPlatformGetBackendOption(hPlatform: Platform, pFrontendOption: str) -> str:
    """Return the platform's equivalent of a compiler option. The result is always empty, since xpushare has no compiler.

    Args:
        hPlatform: The platform.
        pFrontendOption: An option of a compiler.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pFrontendOption` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hPlatform` is null
    - `ERROR_INVALID_VALUE`: `pFrontendOption` is not an option of a compiler's frontend
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urPlatformGetInfo(
    hPlatform: Platform,
    propName: Literal[
        PlatformInfo.NAME, PlatformInfo.VENDOR_NAME, PlatformInfo.VERSION, PlatformInfo.EXTENSIONS,
        PlatformInfo.PROFILE,
    ],
) -> str: ...
@overload
def urPlatformGetInfo(
    hPlatform: Platform,
    propName: Literal[PlatformInfo.BACKEND],
) -> Backend: ...
@overload
def urPlatformGetInfo(
    hPlatform: Platform,
    propName: Literal[PlatformInfo.ADAPTER],
) -> Adapter: ...
@overload
def urPlatformGetInfo(hPlatform: Platform, propName: int) -> Any:
    """Return the property `propName` of a platform.

    Args:
        hPlatform: The platform.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPlatform` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `PlatformInfo.ADAPTER`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_INVALID_PLATFORM`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urPlatformGetNativeHandle(hPlatform: Platform) -> int:
    """Return the driver's handle of a platform (Level Zero: `ze_driver_handle_t`).

    Args:
        hPlatform: The platform.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPlatform` is null
    - `ERROR_UNSUPPORTED_FEATURE`: the driver has no such handle
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urQueueCreate(hContext: Context, hDevice: Device, pProperties: QueueProperties | None) -> Queue:
    """Create a queue for a device.

    Args:
        hContext: The context.
        hDevice: The device.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `QueueFlags` (mask 0xfffff000)
    - `ERROR_INVALID_QUEUE_PROPERTIES`: `pProperties.flags` has both `PRIORITY_HIGH` and `PRIORITY_LOW`
    - `ERROR_INVALID_QUEUE_PROPERTIES`: `pProperties.flags` has both `SUBMISSION_BATCHED` and `SUBMISSION_IMMEDIATE`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_INVALID_DEVICE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urQueueCreateWithNativeHandle(
    hNativeQueue: int, hContext: Context, hDevice: Device | None, pProperties: QueueNativeProperties | None,
) -> Queue:
    """Create a queue on top of a driver's stream (`CUstream`, or the handle of an immediate command list of Level Zero). The commands of the queue and the commands that other code enqueues in the stream run in the order in which they are enqueued. On Level Zero the host waits to keep this order: a command returns when it is complete.

    Args:
        hNativeQueue: The driver's handle of the queue.
        hContext: The context.
        hDevice: The device.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_DEVICE`: `hDevice` is null and `hContext` has several devices
    - `ERROR_INVALID_VALUE`: `hNativeQueue` is on another device
    - `ERROR_UNSUPPORTED_FEATURE`: the adapter cannot use streams of other libraries
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urQueueFinish(hQueue: Queue) -> None:
    """Wait until all commands of a queue are complete.

    Args:
        hQueue: The queue.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urQueueFlush(hQueue: Queue) -> None:
    """Submit the commands of a queue to its device.

    This does nothing, since a queue submits each command by itself, either immediately or when the events that the command waits for are complete.

    Args:
        hQueue: The queue.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urQueueGetInfo(
    hQueue: Queue,
    propName: Literal[QueueInfo.CONTEXT],
) -> Context: ...
@overload
def urQueueGetInfo(
    hQueue: Queue,
    propName: Literal[QueueInfo.DEVICE],
) -> Device: ...
@overload
def urQueueGetInfo(
    hQueue: Queue,
    propName: Literal[QueueInfo.DEVICE_DEFAULT],
) -> Queue: ...
@overload
def urQueueGetInfo(
    hQueue: Queue,
    propName: Literal[QueueInfo.FLAGS],
) -> QueueFlags: ...
@overload
def urQueueGetInfo(
    hQueue: Queue,
    propName: Literal[QueueInfo.REFERENCE_COUNT, QueueInfo.SIZE],
) -> int: ...
@overload
def urQueueGetInfo(
    hQueue: Queue,
    propName: Literal[QueueInfo.EMPTY],
) -> bool: ...
@overload
def urQueueGetInfo(hQueue: Queue, propName: int) -> Any:
    """Return the property `propName` of a queue.

    Args:
        hQueue: The queue.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `QueueInfo.EMPTY`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - `ERROR_INVALID_QUEUE`: `propName` is `QueueInfo.SIZE`, which only on-device queues have
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urQueueGetNativeHandle(hQueue: Queue, pDesc: QueueNativeDesc | None) -> int:
    """Return the handle of the driver's stream behind a queue (`CUstream`). For Level Zero, this is the handle of an immediate command list, and the number 1 is written to the address `pDesc.pNativeData`.

    The handle is valid as long as the queue. While the queue waits for an event, the commands behind that wait are not in the stream yet.

    Args:
        hQueue: The queue.
        pDesc: A description of the queue.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - `ERROR_UNSUPPORTED_FEATURE`: the driver has no such handle
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urQueueRelease(hQueue: Queue) -> None:
    """Release a reference to a queue. Even after the last release, the commands that are still in the queue run to their end.

    Args:
        hQueue: The queue.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urQueueRetain(hQueue: Queue) -> None:
    """Add a reference to a queue.

    Args:
        hQueue: The queue.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hQueue` is null
    - other results, for which UR states no condition: `ERROR_INVALID_QUEUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMContextMemcpyExp(hContext: Context, pDst: int, pSrc: int, size: int) -> None:
    """Copy `size` bytes without a queue, and wait until the copy is complete. The memory can be of the same kinds as for `urEnqueueUSMMemcpy`.

    Args:
        hContext: The context.
        pDst: Address of the first byte to write.
        pSrc: Address of the first byte to read.
        size: Number of bytes.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pDst` is null
    - `ERROR_INVALID_NULL_POINTER`: `pSrc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_SIZE`: `size` is 0
    - `ERROR_INVALID_SIZE`: `size` exceeds the allocation of `pSrc` or `pDst`
    - other results, for which UR states no condition: `ERROR_INVALID_MEM_OBJECT`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMDeviceAlloc(
    hContext: Context, hDevice: Device, pUSMDesc: USMDesc | None, pool: USMPool | None, size: int,
) -> int:
    """Allocate memory of a device, and return its address.

    Args:
        hContext: The context.
        hDevice: The device.
        pUSMDesc: Options of the allocation.
        pool: The pool to allocate from.
        size: Number of bytes.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `pUSMDesc.hints` has bits that are not `USMAdviceFlags` (mask 0xfffe0000)
    - `ERROR_INVALID_VALUE`: `pUSMDesc.align` is neither 0 nor a power of two
    - `ERROR_INVALID_USM_SIZE`: `size` is 0
    - `ERROR_INVALID_OPERATION`: `hDevice` has no device USM (Unified Runtime's text names `USM_HOST_SUPPORT` by mistake)
    - `ERROR_INVALID_VALUE`: `pUSMDesc.align` exceeds the size of the largest data type of `hDevice`
    - `ERROR_INVALID_USM_SIZE`: `size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`
    - `ERROR_INVALID_VALUE`: `pool` belongs to another context, or was created for another device
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMFree(hContext: Context, pMem: int) -> None:
    """Wait until the commands that may use USM memory have finished, and free the memory.

    Args:
        hContext: The context.
        pMem: Address of the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urUSMGetMemAllocInfo(
    hContext: Context, pMem: int,
    propName: Literal[USMAllocInfo.TYPE],
) -> USMType: ...
@overload
def urUSMGetMemAllocInfo(
    hContext: Context, pMem: int,
    propName: Literal[USMAllocInfo.BASE_PTR, USMAllocInfo.SIZE],
) -> int: ...
@overload
def urUSMGetMemAllocInfo(
    hContext: Context, pMem: int,
    propName: Literal[USMAllocInfo.DEVICE],
) -> Device: ...
@overload
def urUSMGetMemAllocInfo(
    hContext: Context, pMem: int,
    propName: Literal[USMAllocInfo.POOL],
) -> USMPool | None: ...
@overload
def urUSMGetMemAllocInfo(hContext: Context, pMem: int, propName: int) -> Any:
    """Return the property `propName` of the allocation that contains the address `pMem`.

    Args:
        hContext: The context.
        pMem: Address of the memory.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `USMAllocInfo.POOL`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_INVALID_VALUE`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMHostAlloc(hContext: Context, pUSMDesc: USMDesc | None, pool: USMPool | None, size: int) -> int:
    """Allocate host memory that the devices of a context can access, and return its address.

    Args:
        hContext: The context.
        pUSMDesc: Options of the allocation.
        pool: The pool to allocate from.
        size: Number of bytes.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `pUSMDesc.hints` has bits that are not `USMAdviceFlags` (mask 0xfffe0000)
    - `ERROR_INVALID_VALUE`: `pUSMDesc.align` is neither 0 nor a power of two
    - `ERROR_INVALID_USM_SIZE`: `size` is 0
    - `ERROR_INVALID_OPERATION`: `DeviceInfo.USM_HOST_SUPPORT` is false
    - `ERROR_INVALID_VALUE`: `pUSMDesc.align` exceeds the size of the largest data type of any device of `hContext`
    - `ERROR_INVALID_USM_SIZE`: `size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE` of any device of `hContext`
    - `ERROR_INVALID_VALUE`: `pool` belongs to another context, or was created for another device
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMHostAllocRegisterExp(
    hContext: Context, pHostMem: int, size: int, pProperties: ExpUSMHostAllocRegisterProperties | None,
) -> None:
    """Register ordinary memory of the process as USM host memory. The caller must keep the memory alive.

    Args:
        hContext: The context.
        pHostMem: Address of the host memory.
        size: Number of bytes.
        pProperties: Options.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pHostMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `pProperties.flags` has bits that are not `ExpUSMHostAllocRegisterFlags` (mask 0xfffffffe)
    - `ERROR_INVALID_VALUE`: `size` is 0
    - `ERROR_INVALID_VALUE`: the memory is not mapped in this process, is USM memory, or is already registered
    - `ERROR_UNSUPPORTED_FEATURE`: a device answers false to `DeviceInfo.USM_HOST_ALLOC_REGISTER_SUPPORT_EXP`
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMHostAllocUnregisterExp(hContext: Context, pHostMem: int) -> None:
    """Undo `urUSMHostAllocRegisterExp`, so that the memory is ordinary memory of the process again.

    Args:
        hContext: The context.
        pHostMem: Address of the host memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pHostMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_VALUE`: `pHostMem` is not registered
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMImportExp(hContext: Context, pMem: int, size: int) -> None:
    """Hint that ordinary memory of the process will be used in copies. This only checks that the memory exists, since copies need no preparation.

    Args:
        hContext: The context.
        pMem: Address of the memory.
        size: Number of bytes.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_SIZE`: `size` is 0
    - `ERROR_INVALID_VALUE`: the memory is not mapped in this process
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolCreate(hContext: Context, pPoolDesc: USMPoolDesc) -> USMPool:
    """Create a pool from which USM memory can be allocated.

    Each allocation has pages of its own, so sharing one allocation does not expose the others. `urUSMFree` frees these pages, and the pool caches no memory. Limits that a C program chains to `pPoolDesc` therefore have no effect. With `ZERO_INITIALIZE_BLOCK`, allocations are filled with zeros. The other flags have no effect.

    Args:
        hContext: The context.
        pPoolDesc: Options of the pool.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pPoolDesc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `pPoolDesc.flags` has bits that are not `USMPoolFlags` (mask 0xfffffff8)
    - other results, for which UR states no condition: `ERROR_INVALID_VALUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolCreateExp(hContext: Context, hDevice: Device, pPoolDesc: USMPoolDesc) -> USMPool:
    """Create a pool for one device. In all other respects, it works like a pool that `urUSMPoolCreate` creates.

    Args:
        hContext: The context.
        hDevice: The device.
        pPoolDesc: Options of the pool.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pPoolDesc` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `pPoolDesc.flags` has bits that are not `USMPoolFlags` (mask 0xfffffff8)
    - other results, for which UR states no condition: `ERROR_INVALID_VALUE`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolDestroyExp(hContext: Context, hDevice: Device, hPool: USMPool) -> None:
    """Release a reference to a pool, as `urUSMPoolRelease` does.

    Args:
        hContext: The context.
        hDevice: The device.
        hPool: The pool.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hPool` is null
    - `ERROR_INVALID_VALUE`: `hPool` belongs to another context, or was created for another device, or is the device's default pool
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolGetDefaultDevicePoolExp(hContext: Context, hDevice: Device) -> USMPool:
    """Return the default pool of a device, which always exists. No reference is added, so the caller must not release the pool.

    Args:
        hContext: The context.
        hDevice: The device.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - other results, for which UR states no condition: `ERROR_INVALID_VALUE`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolGetDevicePoolExp(hContext: Context, hDevice: Device) -> USMPool:
    """Return the pool that `urUSMPoolSetDevicePoolExp` set for a device, or the device's default pool if none is set. No reference is added, so the caller must not release the pool.

    Args:
        hContext: The context.
        hDevice: The device.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - other results, for which UR states no condition: `ERROR_INVALID_VALUE`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urUSMPoolGetInfo(
    hPool: USMPool,
    propName: Literal[
        USMPoolInfo.REFERENCE_COUNT, USMPoolInfo.RELEASE_THRESHOLD_EXP, USMPoolInfo.MAXIMUM_SIZE_EXP,
        USMPoolInfo.RESERVED_CURRENT_EXP, USMPoolInfo.RESERVED_HIGH_EXP, USMPoolInfo.USED_CURRENT_EXP,
        USMPoolInfo.USED_HIGH_EXP,
    ],
) -> int: ...
@overload
def urUSMPoolGetInfo(
    hPool: USMPool,
    propName: Literal[USMPoolInfo.CONTEXT],
) -> Context: ...
@overload
def urUSMPoolGetInfo(hPool: USMPool, propName: int) -> Any:
    """Return the property `propName` of a pool. Reserved and used sizes are equal, as pools cache no freed memory.

    Args:
        hPool: The pool.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPool` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `USMPoolInfo.USED_HIGH_EXP`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

@overload
def urUSMPoolGetInfoExp(
    hPool: USMPool,
    propName: Literal[
        USMPoolInfo.REFERENCE_COUNT, USMPoolInfo.RELEASE_THRESHOLD_EXP, USMPoolInfo.MAXIMUM_SIZE_EXP,
        USMPoolInfo.RESERVED_CURRENT_EXP, USMPoolInfo.RESERVED_HIGH_EXP, USMPoolInfo.USED_CURRENT_EXP,
        USMPoolInfo.USED_HIGH_EXP,
    ],
) -> int: ...
@overload
def urUSMPoolGetInfoExp(
    hPool: USMPool,
    propName: Literal[USMPoolInfo.CONTEXT],
) -> Context: ...
@overload
def urUSMPoolGetInfoExp(hPool: USMPool, propName: int) -> Any:
    """Return the property `propName` of a pool, as `urUSMPoolGetInfo` does.

    Args:
        hPool: The pool.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPool` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `USMPoolInfo.USED_HIGH_EXP`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolRelease(pPool: USMPool) -> None:
    """Release a reference to a pool. Allocations from the pool stay valid.

    Args:
        pPool: The pool.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `pPool` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolRetain(pPool: USMPool) -> None:
    """Add a reference to a pool.

    Args:
        pPool: The pool.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `pPool` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolSetDevicePoolExp(hContext: Context, hDevice: Device, hPool: USMPool) -> None:
    """Set the pool from which `urEnqueueUSMDeviceAllocExp` allocates memory of a device if its caller passes no pool. Once this pool is destroyed, the device's default pool is used again.

    Args:
        hContext: The context.
        hDevice: The device.
        hPool: The pool.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hPool` is null
    - `ERROR_INVALID_VALUE`: `hPool` belongs to another context, or was created for another device
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolSetInfoExp(hPool: USMPool, propName: USMPoolInfo | int, pPropValue: int) -> None:
    """Set how much freed memory a pool may cache (`RELEASE_THRESHOLD_EXP`), or reset the pool's peak size (by `USED_HIGH_EXP` or `RESERVED_HIGH_EXP`, which have the same effect).

    The release threshold has no effect, since pools cache no freed memory.

    Args:
        hPool: The pool.
        propName: The property to change.
        pPropValue: The new value.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hPool` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `USMPoolInfo.USED_HIGH_EXP`
    - `ERROR_INVALID_VALUE`: `propName` is `USED_HIGH_EXP` or `RESERVED_HIGH_EXP`, and `pPropValue` is not 0
    - `ERROR_UNSUPPORTED_ENUMERATION`: `propName` cannot be set
    - other results, for which UR states no condition: `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMPoolTrimToExp(hContext: Context, hDevice: Device, hPool: USMPool, minBytesToKeep: int) -> None:
    """Release freed memory that a pool caches. This does nothing, since pools cache no freed memory.

    Args:
        hContext: The context.
        hDevice: The device.
        hPool: The pool.
        minBytesToKeep: Number of unused bytes that the pool may keep.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hPool` is null
    - `ERROR_INVALID_VALUE`: `hPool` belongs to another context, or was created for another device
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMReleaseExp(hContext: Context, pMem: int) -> None:
    """End the use of memory that was passed to `urUSMImportExp`. This does nothing, since that function prepares nothing.

    Args:
        hContext: The context.
        pMem: Address of the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pMem` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUSMSharedAlloc(
    hContext: Context, hDevice: Device, pUSMDesc: USMDesc | None, pool: USMPool | None, size: int,
) -> int:
    """Allocate memory that the host and a device share, and return its address.

    Args:
        hContext: The context.
        hDevice: The device.
        pUSMDesc: Options of the allocation.
        pool: The pool to allocate from.
        size: Number of bytes.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `pUSMDesc.hints` has bits that are not `USMAdviceFlags` (mask 0xfffe0000)
    - `ERROR_INVALID_VALUE`: `pUSMDesc.align` is neither 0 nor a power of two
    - `ERROR_INVALID_USM_SIZE`: `size` is 0
    - `ERROR_INVALID_VALUE`: `pUSMDesc.align` exceeds the size of the largest data type of `hDevice`
    - `ERROR_INVALID_USM_SIZE`: `size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`
    - `ERROR_INVALID_OPERATION`: `DeviceInfo.USM_SINGLE_SHARED_SUPPORT` and `DeviceInfo.USM_CROSS_SHARED_SUPPORT` are both false
    - `ERROR_INVALID_VALUE`: `pool` belongs to another context, or was created for another device
    - other results, for which UR states no condition: `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_OUT_OF_RESOURCES`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUsmP2PDisablePeerAccessExp(commandDevice: Device, peerDevice: Device) -> None:
    """Disable access that `urUsmP2PEnablePeerAccessExp` enabled.

    Args:
        commandDevice: The device whose commands access the memory.
        peerDevice: The device that has the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `commandDevice` is null
    - `ERROR_INVALID_NULL_HANDLE`: `peerDevice` is null
    - `ERROR_INVALID_OPERATION`: the access is not enabled
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUsmP2PEnablePeerAccessExp(commandDevice: Device, peerDevice: Device) -> None:
    """Let `commandDevice` use memory of `peerDevice`.

    This only checks that the access is possible. Queues of xpushare enable the access themselves for copies and fills.

    Args:
        commandDevice: The device whose commands access the memory.
        peerDevice: The device that has the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `commandDevice` is null
    - `ERROR_INVALID_NULL_HANDLE`: `peerDevice` is null
    - `ERROR_UNSUPPORTED_FEATURE`: `commandDevice` cannot use memory of `peerDevice`
    - `ERROR_INVALID_OPERATION`: the access is already enabled
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urUsmP2PPeerAccessGetInfoExp(commandDevice: Device, peerDevice: Device, propName: ExpPeerInfo | int) -> int:
    """Return 1 if `commandDevice` can use memory of `peerDevice`, otherwise 0. For the query `UR_PEER_ATOMICS_SUPPORT`, return 1 if atomic operations of `commandDevice` work on that memory, otherwise 0.

    Args:
        commandDevice: The device whose commands access the memory.
        peerDevice: The device that has the memory.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `commandDevice` is null
    - `ERROR_INVALID_NULL_HANDLE`: `peerDevice` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `ExpPeerInfo.UR_PEER_ATOMICS_SUPPORT`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urVirtualMemFree(hContext: Context, pStart: int, size: int) -> None:
    """Free a range of virtual addresses that `urVirtualMemReserve` reserved. No memory may be mapped in the range.

    Args:
        hContext: The context.
        pStart: Address at which the range begins.
        size: Number of bytes.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pStart` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urVirtualMemGetInfo(
    hContext: Context, pStart: int, size: int, propName: VirtualMemInfo | int,
) -> VirtualMemAccessFlags:
    """Return the access permissions of a mapped range.

    Args:
        hContext: The context.
        pStart: Address at which the range begins.
        size: Number of bytes.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pStart` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `VirtualMemInfo.ACCESS_MODE`
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urVirtualMemGranularityGetInfo(
    hContext: Context, hDevice: Device | None, allocationSize: int, propName: VirtualMemGranularityInfo | int,
) -> int:
    """Return the granularity of virtual and physical memory. Sizes and addresses must be multiples of the granularity. If `hDevice` is `None`, the granularity is valid for all devices of the context.

    Args:
        hContext: The context.
        hDevice: The device.
        allocationSize: Size in bytes of the allocation, or 0 if it is not known yet.
        propName: The property to return.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `propName` is not in the range up to `VirtualMemGranularityInfo.RECOMMENDED`
    - `ERROR_UNSUPPORTED_ENUMERATION`: the adapter does not support `propName`
    - other results, for which UR states no condition: `ERROR_INVALID_DEVICE`, `ERROR_INVALID_CONTEXT`, `ERROR_OUT_OF_RESOURCES`, `ERROR_OUT_OF_HOST_MEMORY`, `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urVirtualMemMap(
    hContext: Context, pStart: int, size: int, hPhysicalMem: PhysicalMem, offset: int, flags: VirtualMemAccessFlags | int,
) -> None:
    """Map physical memory to virtual addresses in a reserved range.

    Args:
        hContext: The context.
        pStart: Address at which the range begins.
        size: Number of bytes.
        hPhysicalMem: The physical memory.
        offset: Offset in the physical memory, in bytes.
        flags: How commands may access the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pStart` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hPhysicalMem` is null
    - `ERROR_INVALID_ENUMERATION`: `flags` has bits that are not `VirtualMemAccessFlags` (mask 0xfffffff8)
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urVirtualMemReserve(hContext: Context, pStart: int | None, size: int) -> int:
    """Reserve a range of virtual addresses, and return the first address. The range begins at `pStart` if the addresses there are free. Otherwise, or if `pStart` is null, it can begin anywhere.

    Args:
        hContext: The context.
        pStart: Address at which the range begins.
        size: Number of bytes.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_OUT_OF_HOST_MEMORY`: no range of `size` bytes is free
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urVirtualMemSetAccess(hContext: Context, pStart: int, size: int, flags: VirtualMemAccessFlags | int) -> None:
    """Change the access permissions of a mapped range.

    Args:
        hContext: The context.
        pStart: Address at which the range begins.
        size: Number of bytes.
        flags: How commands may access the memory.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pStart` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - `ERROR_INVALID_ENUMERATION`: `flags` has bits that are not `VirtualMemAccessFlags` (mask 0xfffffff8)
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urVirtualMemUnmap(hContext: Context, pStart: int, size: int) -> None:
    """Unmap physical memory from a range of virtual addresses. The addresses stay reserved and can be mapped again.

    Args:
        hContext: The context.
        pStart: Address at which the range begins.
        size: Number of bytes.

    Raises `URError` with one of these results:

    - `ERROR_INVALID_NULL_POINTER`: `pStart` is null
    - `ERROR_INVALID_NULL_HANDLE`: `hContext` is null
    - other results, for which UR states no condition: `ERROR_UNINITIALIZED`, `ERROR_DEVICE_LOST`, `ERROR_ADAPTER_SPECIFIC`
    """

def urBindlessImagesFreeMappedLinearMemoryExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesGetImageMemoryHandleTypeSupportExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesGetImageSampledHandleSupportExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesGetImageUnsampledHandleSupportExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesImageAllocateExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesImageCopyExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesImageFreeExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesImageGetInfoExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesImportExternalMemoryExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesImportExternalSemaphoreExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesMapExternalArrayExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesMapExternalLinearMemoryExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesMipmapFreeExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesMipmapGetLevelExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesReleaseExternalMemoryExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesReleaseExternalSemaphoreExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesSampledImageCreateExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesSampledImageHandleDestroyExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesSignalExternalSemaphoreExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesSupportsImportingHandleTypeExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesUnsampledImageCreateExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesUnsampledImageHandleDestroyExp(*arguments: object) -> NoReturn: ...
def urBindlessImagesWaitExternalSemaphoreExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendKernelLaunchExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendKernelLaunchWithArgsExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendMemBufferCopyExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendMemBufferCopyRectExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendMemBufferFillExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendMemBufferReadExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendMemBufferReadRectExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendMemBufferWriteExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendMemBufferWriteRectExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendNativeCommandExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendUSMAdviseExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendUSMFillExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendUSMMemcpyExp(*arguments: object) -> NoReturn: ...
def urCommandBufferAppendUSMPrefetchExp(*arguments: object) -> NoReturn: ...
def urCommandBufferCreateExp(*arguments: object) -> NoReturn: ...
def urCommandBufferFinalizeExp(*arguments: object) -> NoReturn: ...
def urCommandBufferGetInfoExp(*arguments: object) -> NoReturn: ...
def urCommandBufferGetNativeHandleExp(*arguments: object) -> NoReturn: ...
def urCommandBufferReleaseExp(*arguments: object) -> NoReturn: ...
def urCommandBufferRetainExp(*arguments: object) -> NoReturn: ...
def urCommandBufferUpdateKernelLaunchExp(*arguments: object) -> NoReturn: ...
def urCommandBufferUpdateSignalEventExp(*arguments: object) -> NoReturn: ...
def urCommandBufferUpdateWaitEventsExp(*arguments: object) -> NoReturn: ...
def urContextSetExtendedDeleter(*arguments: object) -> NoReturn: ...
def urDevicePartition(*arguments: object) -> NoReturn: ...
def urDeviceSelectBinary(*arguments: object) -> NoReturn: ...
def urEnqueueCommandBufferExp(*arguments: object) -> NoReturn: ...
def urEnqueueDeviceGlobalVariableRead(*arguments: object) -> NoReturn: ...
def urEnqueueDeviceGlobalVariableWrite(*arguments: object) -> NoReturn: ...
def urEnqueueGraphExp(*arguments: object) -> NoReturn: ...
def urEnqueueKernelLaunchWithArgsExp(*arguments: object) -> NoReturn: ...
def urEnqueueMemImageCopy(*arguments: object) -> NoReturn: ...
def urEnqueueMemImageRead(*arguments: object) -> NoReturn: ...
def urEnqueueMemImageWrite(*arguments: object) -> NoReturn: ...
def urEnqueueNativeCommandExp(*arguments: object) -> NoReturn: ...
def urEnqueueReadHostPipe(*arguments: object) -> NoReturn: ...
def urEnqueueWriteHostPipe(*arguments: object) -> NoReturn: ...
def urGraphCreateExp(*arguments: object) -> NoReturn: ...
def urGraphDestroyExp(*arguments: object) -> NoReturn: ...
def urGraphDumpContentsExp(*arguments: object) -> NoReturn: ...
def urGraphExecutableGraphDestroyExp(*arguments: object) -> NoReturn: ...
def urGraphExecutableGraphGetNativeHandleExp(*arguments: object) -> NoReturn: ...
def urGraphGetIdExp(*arguments: object) -> NoReturn: ...
def urGraphGetNativeHandleExp(*arguments: object) -> NoReturn: ...
def urGraphInstantiateGraphExp(*arguments: object) -> NoReturn: ...
def urGraphIsEmptyExp(*arguments: object) -> NoReturn: ...
def urGraphSetDestructionCallbackExp(*arguments: object) -> NoReturn: ...
def urKernelCreate(*arguments: object) -> NoReturn: ...
def urKernelCreateWithNativeHandle(*arguments: object) -> NoReturn: ...
def urKernelGetGroupInfo(*arguments: object) -> NoReturn: ...
def urKernelGetInfo(*arguments: object) -> NoReturn: ...
def urKernelGetNativeHandle(*arguments: object) -> NoReturn: ...
def urKernelGetSubGroupInfo(*arguments: object) -> NoReturn: ...
def urKernelGetSuggestedLocalWorkSize(*arguments: object) -> NoReturn: ...
def urKernelGetSuggestedLocalWorkSizeWithArgs(*arguments: object) -> NoReturn: ...
def urKernelRelease(*arguments: object) -> NoReturn: ...
def urKernelRetain(*arguments: object) -> NoReturn: ...
def urKernelSetExecInfo(*arguments: object) -> NoReturn: ...
def urKernelSetSpecializationConstants(*arguments: object) -> NoReturn: ...
def urKernelSuggestMaxCooperativeGroupCount(*arguments: object) -> NoReturn: ...
def urMemBufferCreateWithNativeHandle(*arguments: object) -> NoReturn: ...
def urMemGetNativeHandle(*arguments: object) -> NoReturn: ...
def urMemImageCreate(*arguments: object) -> NoReturn: ...
def urMemImageCreateWithNativeHandle(*arguments: object) -> NoReturn: ...
def urMemImageGetInfo(*arguments: object) -> NoReturn: ...
def urProgramBuild(*arguments: object) -> NoReturn: ...
def urProgramBuildExp(*arguments: object) -> NoReturn: ...
def urProgramCompile(*arguments: object) -> NoReturn: ...
def urProgramCompileExp(*arguments: object) -> NoReturn: ...
def urProgramCreateWithBinary(*arguments: object) -> NoReturn: ...
def urProgramCreateWithIL(*arguments: object) -> NoReturn: ...
def urProgramCreateWithNativeHandle(*arguments: object) -> NoReturn: ...
def urProgramDynamicLinkExp(*arguments: object) -> NoReturn: ...
def urProgramGetBuildInfo(*arguments: object) -> NoReturn: ...
def urProgramGetFunctionPointer(*arguments: object) -> NoReturn: ...
def urProgramGetGlobalVariablePointer(*arguments: object) -> NoReturn: ...
def urProgramGetInfo(*arguments: object) -> NoReturn: ...
def urProgramGetNativeHandle(*arguments: object) -> NoReturn: ...
def urProgramLink(*arguments: object) -> NoReturn: ...
def urProgramLinkExp(*arguments: object) -> NoReturn: ...
def urProgramRelease(*arguments: object) -> NoReturn: ...
def urProgramRetain(*arguments: object) -> NoReturn: ...
def urProgramSetSpecializationConstants(*arguments: object) -> NoReturn: ...
def urQueueBeginCaptureIntoGraphExp(*arguments: object) -> NoReturn: ...
def urQueueBeginGraphCaptureExp(*arguments: object) -> NoReturn: ...
def urQueueEndGraphCaptureExp(*arguments: object) -> NoReturn: ...
def urQueueGetGraphExp(*arguments: object) -> NoReturn: ...
def urQueueIsGraphCaptureEnabledExp(*arguments: object) -> NoReturn: ...
def urSamplerCreate(*arguments: object) -> NoReturn: ...
def urSamplerCreateWithNativeHandle(*arguments: object) -> NoReturn: ...
def urSamplerGetInfo(*arguments: object) -> NoReturn: ...
def urSamplerGetNativeHandle(*arguments: object) -> NoReturn: ...
def urSamplerRelease(*arguments: object) -> NoReturn: ...
def urSamplerRetain(*arguments: object) -> NoReturn: ...
def urUSMPitchedAllocExp(*arguments: object) -> NoReturn: ...
