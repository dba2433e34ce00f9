"""Functions for adapters, platforms and devices, and for the access of devices to each other's memory."""

from __future__ import annotations

import functools
import struct
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from xpushare.adapters.base import Adapter as DriverAdapter
from xpushare.adapters.base import Properties, UsmKind
from xpushare.common.aspects import Aspect
from xpushare.common.errors import FeatureNotSupportedError
from xpushare.common.result import Result
from xpushare.core import memory as core_memory
from xpushare.core import queue as core_queue
from xpushare.core.device import adapter_of, info_of
from xpushare.ur import _objects
from xpushare.ur._callbacks import LogSink
from xpushare.ur._enums import (
    AdapterInfo,
    ApiVersion,
    Backend,
    DeviceInfo,
    DeviceLocalMemType,
    DeviceMemCacheType,
    DeviceType,
    DeviceUSMAccessCapabilityFlags,
    ExpPeerInfo,
    LoggerLevel,
    PlatformInfo,
    QueueFlags,
)
from xpushare.ur._error import URError, last_error
from xpushare.ur._objects import Adapter, Device, Platform
from xpushare.ur._spec import UNSUPPORTED_QUERY, Info, Int32, LoggerCallback, String, Uint64, UserData, function


def _version(_about: object) -> str:
    from xpushare import __version__

    return __version__


def _backend(about: Adapter | Platform) -> int:
    return Backend.__members__.get(about.backend.upper(), Backend.UNKNOWN)


_ADAPTER: Final = Info(
    AdapterInfo,
    {
        "enum:Backend": "BACKEND",
        "uint32": "REFERENCE_COUNT VERSION",
    },
    answers={
        AdapterInfo.BACKEND: _backend,
        AdapterInfo.REFERENCE_COUNT: lambda adapter: adapter.references,
        AdapterInfo.VERSION: lambda _adapter: 1,
    },
    changing="REFERENCE_COUNT",
)

_PLATFORM: Final = Info(
    PlatformInfo,
    {
        "string": "NAME VENDOR_NAME VERSION EXTENSIONS PROFILE",
        "enum:Backend": "BACKEND",
        "handle:adapter": "ADAPTER",
    },
    answers={
        PlatformInfo.NAME: lambda platform: f"xpushare {platform.backend}",
        PlatformInfo.VENDOR_NAME: lambda _platform: "xpushare",
        PlatformInfo.VERSION: _version,
        PlatformInfo.EXTENSIONS: lambda _platform: "",
        PlatformInfo.PROFILE: lambda _platform: "FULL_PROFILE",
        PlatformInfo.BACKEND: _backend,
        PlatformInfo.ADAPTER: lambda platform: platform.adapter,
    },
)

_PERMISSIONS: Final = (
    QueueFlags.OUT_OF_ORDER_EXEC_MODE_ENABLE
    | QueueFlags.DISCARD_EVENTS
    | QueueFlags.PRIORITY_LOW
    | QueueFlags.PRIORITY_HIGH
    | QueueFlags.SUBMISSION_BATCHED
    | QueueFlags.SUBMISSION_IMMEDIATE
    | QueueFlags.LOW_POWER_EVENTS_SUPPORT_EXP
)
"""The flags that every queue accepts. Each of them only permits something, so an in-order queue may ignore it."""


def queue_flags(device: Device) -> int:
    """Return all flags that a queue of the device can be created with."""
    profiles = device.shared.has(Aspect.ext_oneapi_per_event_profiling)
    return _PERMISSIONS | (QueueFlags.PROFILING_ENABLE if profiles else 0)


LARGEST_TYPE: Final = 128  # bytes of sixteen doubles, the least alignment of what adapters allocate

_TYPES: Final = {"cpu": DeviceType.CPU, "gpu": DeviceType.GPU, "accelerator": DeviceType.FPGA}

_EVERY_ACCESS: Final = (
    DeviceUSMAccessCapabilityFlags.ACCESS
    | DeviceUSMAccessCapabilityFlags.ATOMIC_ACCESS
    | DeviceUSMAccessCapabilityFlags.CONCURRENT_ACCESS
    | DeviceUSMAccessCapabilityFlags.ATOMIC_CONCURRENT_ACCESS
)


def _has(aspect: Aspect) -> Callable[[Device], Any]:
    return lambda device: device.shared.has(aspect)


def _properties(device: Device) -> Properties:
    adapter: DriverAdapter = adapter_of(device.shared)
    return adapter.properties(info_of(device.shared))


def _property(name: str) -> Callable[[Device], Any]:
    """Return a function that takes a device and returns its property `name` as the driver reports it."""

    def ask(device: Device) -> Any:
        found = getattr(_properties(device), name)
        return list(found) if isinstance(found, tuple) else found

    return ask


def _told(name: str) -> Callable[[Device], Any]:
    """Return a function that takes a device and returns its property `name`. The function raises
    `ERROR_UNSUPPORTED_ENUMERATION` if the driver does not report the property.
    """

    def ask(device: Device) -> Any:
        found = getattr(_properties(device), name)
        if not found:
            raise URError(f"the driver of {device!r} does not say it", result=Result.ERROR_UNSUPPORTED_ENUMERATION)
        return found

    return ask


def _sizes(name: str) -> Callable[[Device], list[int]]:
    """Return a function that takes a device and returns its property `name`, which is one size for each of three
    dimensions. If the driver does not report the property, that function returns [1, 1, 1].
    """
    return lambda device: list(getattr(_properties(device), name)) or [1, 1, 1]


def _sub_groups(device: Device) -> int:
    """Return the number of sub-groups in the largest work-group, or 0 if the device has no sub-groups."""
    about = _properties(device)
    return about.group_items // min(about.sub_group_sizes) if about.sub_group_sizes else 0


def _pci(device: Device) -> str:
    address: str = info_of(device.shared).pci
    if not address:
        raise URError(f"{device!r} is not a device of the PCI bus", result=Result.ERROR_UNSUPPORTED_ENUMERATION)
    return address


@functools.cache
def _reach(device: Device, kind: UsmKind) -> int:
    """Return the flags for the device's access to USM memory of this kind, or 0 if it has no access. Access is tested
    by allocating one byte. Only CPUs also support atomic and concurrent access.
    """
    try:
        core_memory.allocate(kind, 1, device.shared, device.shared.context)
    except FeatureNotSupportedError:
        return 0
    return _EVERY_ACCESS if device.shared.type == "cpu" else DeviceUSMAccessCapabilityFlags.ACCESS


def _usm(kind: UsmKind) -> Callable[[Device], int]:
    return lambda device: _reach(device, kind)


def _is_host(device: Device) -> bool:
    """Return whether the device's memory is ordinary memory of this process."""
    return device.shared.type == "cpu"


def _constant(value: Any) -> Callable[[Device], Any]:
    return lambda _device: value


@functools.cache
def _memory(adapter: DriverAdapter, info: Any) -> int:
    return adapter.properties(info).memory_nbytes


def largest_allocation(device: Device) -> int:
    """Return the size in bytes of the largest possible allocation, which is the size of the device's memory."""
    return _memory(adapter_of(device.shared), info_of(device.shared))


_KINDS: Final = {
    "enum:DeviceType": "TYPE",
    "uint32": (
        "VENDOR_ID DEVICE_ID MAX_COMPUTE_UNITS MAX_WORK_ITEM_DIMENSIONS PREFERRED_VECTOR_WIDTH_CHAR "
        "PREFERRED_VECTOR_WIDTH_SHORT PREFERRED_VECTOR_WIDTH_INT PREFERRED_VECTOR_WIDTH_LONG "
        "PREFERRED_VECTOR_WIDTH_FLOAT PREFERRED_VECTOR_WIDTH_DOUBLE PREFERRED_VECTOR_WIDTH_HALF "
        "NATIVE_VECTOR_WIDTH_CHAR NATIVE_VECTOR_WIDTH_SHORT NATIVE_VECTOR_WIDTH_INT "
        "NATIVE_VECTOR_WIDTH_LONG NATIVE_VECTOR_WIDTH_FLOAT NATIVE_VECTOR_WIDTH_DOUBLE "
        "NATIVE_VECTOR_WIDTH_HALF MAX_CLOCK_FREQUENCY MEMORY_CLOCK_RATE ADDRESS_BITS MAX_READ_IMAGE_ARGS "
        "MAX_WRITE_IMAGE_ARGS MAX_READ_WRITE_IMAGE_ARGS MAX_SAMPLERS MEM_BASE_ADDR_ALIGN "
        "GLOBAL_MEM_CACHELINE_SIZE MAX_CONSTANT_ARGS REFERENCE_COUNT PARTITION_MAX_SUB_DEVICES "
        "MAX_NUM_SUB_GROUPS GPU_EU_COUNT GPU_EU_SIMD_WIDTH GPU_EU_SLICES GPU_EU_COUNT_PER_SUBSLICE "
        "GPU_SUBSLICES_PER_SLICE GPU_HW_THREADS_PER_EU MAX_COMPUTE_QUEUE_INDICES MEMORY_BUS_WIDTH "
        "MAX_REGISTERS_PER_WORK_GROUP IP_VERSION NUM_COMPUTE_UNITS NODE_MASK "
        "PREFERRED_VECTOR_WIDTH_LONG_LONG NATIVE_VECTOR_WIDTH_LONG_LONG XE_STACK_COUNT "
        "XE_REGIONS_PER_STACK XE_CLUSTERS_PER_REGION XE_CORES_PER_CLUSTER EUS_PER_XE_CORE "
        "MAX_LANES_PER_HW_THREAD IMAGE_PITCH_ALIGN_EXP MIPMAP_MAX_ANISOTROPY_EXP"
    ),
    "size[]": "MAX_WORK_ITEM_SIZES",
    "size": (
        "MAX_WORK_GROUP_SIZE IMAGE2D_MAX_WIDTH IMAGE2D_MAX_HEIGHT IMAGE3D_MAX_WIDTH IMAGE3D_MAX_HEIGHT "
        "IMAGE3D_MAX_DEPTH IMAGE_MAX_BUFFER_SIZE IMAGE_MAX_ARRAY_SIZE MAX_PARAMETER_SIZE "
        "PROFILING_TIMER_RESOLUTION PRINTF_BUFFER_SIZE MAX_WORK_GROUPS MAX_IMAGE_LINEAR_WIDTH_EXP "
        "MAX_IMAGE_LINEAR_HEIGHT_EXP MAX_IMAGE_LINEAR_PITCH_EXP"
    ),
    "flags:DeviceFpCapabilityFlags": "SINGLE_FP_CONFIG HALF_FP_CONFIG DOUBLE_FP_CONFIG",
    "flags:QueueFlags": "QUEUE_PROPERTIES QUEUE_ON_DEVICE_PROPERTIES QUEUE_ON_HOST_PROPERTIES",
    "uint64": (
        "MAX_MEM_ALLOC_SIZE GLOBAL_MEM_CACHE_SIZE GLOBAL_MEM_SIZE GLOBAL_MEM_FREE "
        "MAX_CONSTANT_BUFFER_SIZE LOCAL_MEM_SIZE MAX_MEMORY_BANDWIDTH"
    ),
    "bool": (
        "IMAGE_SUPPORT ERROR_CORRECTION_SUPPORT HOST_UNIFIED_MEMORY ENDIAN_LITTLE AVAILABLE "
        "COMPILER_AVAILABLE LINKER_AVAILABLE PREFERRED_INTEROP_USER_SYNC "
        "SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS IMAGE_SRGB BUILD_ON_SUBDEVICE ATOMIC_64 BFLOAT16 "
        "KERNEL_SET_SPECIALIZATION_CONSTANTS ASYNC_BARRIER MEM_CHANNEL_SUPPORT "
        "HOST_PIPE_READ_WRITE_SUPPORT VIRTUAL_MEMORY_SUPPORT ESIMD_SUPPORT GLOBAL_VARIABLE_SUPPORT "
        "USM_POOL_SUPPORT PROGRAM_SET_SPECIALIZATION_CONSTANTS USE_NATIVE_ASSERT "
        "BFLOAT16_CONVERSIONS_NATIVE COMMAND_BUFFER_SUPPORT_EXP COMMAND_BUFFER_EVENT_SUPPORT_EXP "
        "COMMAND_BUFFER_SUBGRAPH_SUPPORT_EXP BINDLESS_IMAGES_SUPPORT_EXP "
        "BINDLESS_IMAGES_SHARED_USM_SUPPORT_EXP BINDLESS_IMAGES_1D_USM_SUPPORT_EXP "
        "BINDLESS_IMAGES_2D_USM_SUPPORT_EXP MIPMAP_SUPPORT_EXP MIPMAP_ANISOTROPY_SUPPORT_EXP "
        "MIPMAP_LEVEL_REFERENCE_SUPPORT_EXP EXTERNAL_MEMORY_IMPORT_SUPPORT_EXP "
        "EXTERNAL_SEMAPHORE_IMPORT_SUPPORT_EXP CUBEMAP_SUPPORT_EXP "
        "CUBEMAP_SEAMLESS_FILTERING_SUPPORT_EXP BINDLESS_SAMPLED_IMAGE_FETCH_1D_USM_SUPPORT_EXP "
        "BINDLESS_SAMPLED_IMAGE_FETCH_1D_SUPPORT_EXP BINDLESS_SAMPLED_IMAGE_FETCH_2D_USM_SUPPORT_EXP "
        "BINDLESS_SAMPLED_IMAGE_FETCH_2D_SUPPORT_EXP BINDLESS_SAMPLED_IMAGE_FETCH_3D_SUPPORT_EXP "
        "TIMESTAMP_RECORDING_SUPPORT_EXP IMAGE_ARRAY_SUPPORT_EXP "
        "BINDLESS_UNIQUE_ADDRESSING_PER_DIM_SUPPORT_EXP BINDLESS_SAMPLE_1D_USM_SUPPORT_EXP "
        "BINDLESS_SAMPLE_2D_USM_SUPPORT_EXP BINDLESS_IMAGES_GATHER_SUPPORT_EXP "
        "ENQUEUE_NATIVE_COMMAND_SUPPORT_EXP LOW_POWER_EVENTS_SUPPORT_EXP IPC_MEMORY_SUPPORT_EXP "
        "IPC_PHYSICAL_MEMORY_SUPPORT_EXP REUSABLE_EVENTS_SUPPORT_EXP IPC_EVENT_SUPPORT_EXP "
        "ASYNC_USM_ALLOCATIONS_SUPPORT_EXP CLOCK_SUB_GROUP_SUPPORT_EXP CLOCK_WORK_GROUP_SUPPORT_EXP "
        "CLOCK_DEVICE_SUPPORT_EXP IS_INTEGRATED_GPU GRAPH_RECORD_AND_REPLAY_SUPPORT_EXP "
        "USM_HOST_ALLOC_REGISTER_SUPPORT_EXP PER_EVENT_PROFILING_SUPPORT_EXP USM_P2P_SUPPORT_EXP "
        "MULTI_DEVICE_COMPILE_SUPPORT_EXP DEVICE_WAIT_SUPPORT_EXP DYNAMIC_LINK_SUPPORT_EXP "
        "USM_CONTEXT_MEMCPY_SUPPORT_EXP MEMORY_EXPORT_EXPORTABLE_DEVICE_MEM_EXP "
        "ENQUEUE_HOST_TASK_SUPPORT_EXP"
    ),
    "enum:DeviceMemCacheType": "GLOBAL_MEM_CACHE_TYPE",
    "enum:DeviceLocalMemType": "LOCAL_MEM_TYPE",
    "flags:DeviceExecCapabilityFlags": "EXECUTION_CAPABILITIES",
    "string": (
        "BUILT_IN_KERNELS IL_VERSION NAME VENDOR DRIVER_VERSION PROFILE VERSION BACKEND_RUNTIME_VERSION "
        "EXTENSIONS PCI_ADDRESS"
    ),
    "handle:platform": "PLATFORM",
    "handle:device": "PARENT_DEVICE COMPOSITE_DEVICE",
    "enum:DevicePartition[]": "SUPPORTED_PARTITIONS",
    "flags:DeviceAffinityDomainFlags": "PARTITION_AFFINITY_DOMAIN",
    "struct:DevicePartitionProperty[]": "PARTITION_TYPE",
    "uint32[]": "SUB_GROUP_SIZES_INTEL",
    "flags:DeviceUSMAccessCapabilityFlags": (
        "USM_HOST_SUPPORT USM_DEVICE_SUPPORT USM_SINGLE_SHARED_SUPPORT USM_CROSS_SHARED_SUPPORT "
        "USM_SYSTEM_SHARED_SUPPORT"
    ),
    "bytes": "UUID LUID",
    "flags:MemoryOrderCapabilityFlags": "ATOMIC_MEMORY_ORDER_CAPABILITIES ATOMIC_FENCE_ORDER_CAPABILITIES",
    "flags:MemoryScopeCapabilityFlags": "ATOMIC_MEMORY_SCOPE_CAPABILITIES ATOMIC_FENCE_SCOPE_CAPABILITIES",
    "size[3]": "MAX_WORK_GROUPS_3D",
    "handle:device[]": "COMPONENT_DEVICES",
    "flags:DeviceThrottleReasonsFlags": "CURRENT_CLOCK_THROTTLE_REASONS",
    "int32": "FAN_SPEED MIN_POWER_LIMIT MAX_POWER_LIMIT",
    "flags:KernelLaunchPropertiesFlags": "KERNEL_LAUNCH_CAPABILITIES",
    "flags:DeviceCommandBufferUpdateCapabilityFlags": "COMMAND_BUFFER_UPDATE_CAPABILITIES_EXP",
    "flags:ExpDevice2DBlockArrayCapabilityFlags": "_2D_BLOCK_ARRAY_CAPABILITIES_EXP",
}


def _selects(device: Device, kind: DeviceType) -> bool:
    """Return whether `urDeviceGet` returns the device if it is called with the type `kind`."""
    return kind in (DeviceType.ALL, DeviceType.DEFAULT, _TYPES[device.shared.type])


_OF_KERNELS: Final = (
    "SINGLE_FP_CONFIG HALF_FP_CONFIG DOUBLE_FP_CONFIG PREFERRED_VECTOR_WIDTH_CHAR PREFERRED_VECTOR_WIDTH_SHORT "
    "PREFERRED_VECTOR_WIDTH_INT PREFERRED_VECTOR_WIDTH_LONG PREFERRED_VECTOR_WIDTH_FLOAT "
    "PREFERRED_VECTOR_WIDTH_DOUBLE PREFERRED_VECTOR_WIDTH_HALF PREFERRED_VECTOR_WIDTH_LONG_LONG "
    "NATIVE_VECTOR_WIDTH_CHAR NATIVE_VECTOR_WIDTH_SHORT NATIVE_VECTOR_WIDTH_INT NATIVE_VECTOR_WIDTH_LONG "
    "NATIVE_VECTOR_WIDTH_FLOAT NATIVE_VECTOR_WIDTH_DOUBLE NATIVE_VECTOR_WIDTH_HALF "
    "NATIVE_VECTOR_WIDTH_LONG_LONG MAX_READ_IMAGE_ARGS MAX_WRITE_IMAGE_ARGS IMAGE2D_MAX_WIDTH "
    "IMAGE2D_MAX_HEIGHT IMAGE3D_MAX_WIDTH IMAGE3D_MAX_HEIGHT IMAGE3D_MAX_DEPTH IMAGE_MAX_BUFFER_SIZE "
    "IMAGE_MAX_ARRAY_SIZE MAX_SAMPLERS MAX_PARAMETER_SIZE MAX_CONSTANT_ARGS PRINTF_BUFFER_SIZE "
    "EXECUTION_CAPABILITIES ATOMIC_MEMORY_ORDER_CAPABILITIES ATOMIC_MEMORY_SCOPE_CAPABILITIES "
    "ATOMIC_FENCE_ORDER_CAPABILITIES ATOMIC_FENCE_SCOPE_CAPABILITIES KERNEL_LAUNCH_CAPABILITIES "
    "COMMAND_BUFFER_UPDATE_CAPABILITIES_EXP IMAGE_PITCH_ALIGN_EXP MAX_IMAGE_LINEAR_WIDTH_EXP "
    "MAX_IMAGE_LINEAR_HEIGHT_EXP MAX_IMAGE_LINEAR_PITCH_EXP MIPMAP_MAX_ANISOTROPY_EXP "
    "_2D_BLOCK_ARRAY_CAPABILITIES_EXP"
)

# Queries about kernels, programs, samplers and images, for which this face has no functions.
_ABSENT: Final = {
    **{DeviceInfo[name]: _constant(False) for name in _KINDS["bool"].split()},
    **{DeviceInfo[name]: _constant(0) for name in _OF_KERNELS.split()},
}

_DEVICE: Final = Info(
    DeviceInfo,
    _KINDS,
    answers={
        **_ABSENT,
        **{DeviceInfo[aspect.query]: _has(aspect) for aspect in Aspect if aspect.query},
        DeviceInfo.TYPE: lambda device: _TYPES[device.shared.type],
        DeviceInfo.NAME: lambda device: device.shared.name,
        DeviceInfo.VENDOR: _property("vendor"),
        DeviceInfo.DRIVER_VERSION: lambda device: device.shared.driver_version,
        DeviceInfo.VERSION: lambda device: device.shared.driver_version,
        DeviceInfo.BACKEND_RUNTIME_VERSION: _version,
        DeviceInfo.PROFILE: _constant("FULL_PROFILE"),
        DeviceInfo.EXTENSIONS: _constant(""),
        DeviceInfo.BUILT_IN_KERNELS: _constant(""),
        DeviceInfo.UUID: lambda device: uuid.UUID(device.shared.uuid).bytes,
        DeviceInfo.PLATFORM: lambda device: device.platform,
        DeviceInfo.REFERENCE_COUNT: _constant(1),  # a root device has none
        DeviceInfo.AVAILABLE: _constant(True),
        DeviceInfo.QUEUE_PROPERTIES: queue_flags,
        DeviceInfo.QUEUE_ON_HOST_PROPERTIES: queue_flags,
        DeviceInfo.QUEUE_ON_DEVICE_PROPERTIES: _constant(0),
        DeviceInfo.PARENT_DEVICE: _constant(None),
        DeviceInfo.SUPPORTED_PARTITIONS: lambda _device: [],
        DeviceInfo.PARTITION_MAX_SUB_DEVICES: _constant(0),
        DeviceInfo.PARTITION_AFFINITY_DOMAIN: _constant(0),
        DeviceInfo.PARTITION_TYPE: lambda _device: [],
        DeviceInfo.MAX_COMPUTE_UNITS: _property("compute_units"),
        DeviceInfo.NUM_COMPUTE_UNITS: _property("compute_units"),
        DeviceInfo.ADDRESS_BITS: _constant(struct.calcsize("P") * 8),
        DeviceInfo.ENDIAN_LITTLE: _constant(sys.byteorder == "little"),  # devices share memory with the host
        DeviceInfo.VENDOR_ID: _property("vendor_id"),
        DeviceInfo.DEVICE_ID: _told("device_id"),
        DeviceInfo.PCI_ADDRESS: _pci,
        DeviceInfo.MAX_CLOCK_FREQUENCY: _property("clock_mhz"),
        DeviceInfo.MEMORY_CLOCK_RATE: _told("memory_clock_mhz"),
        DeviceInfo.MEMORY_BUS_WIDTH: _told("memory_bus_bits"),
        DeviceInfo.ERROR_CORRECTION_SUPPORT: _property("error_correction"),
        DeviceInfo.HOST_UNIFIED_MEMORY: _property("integrated"),
        DeviceInfo.IS_INTEGRATED_GPU: lambda device: device.shared.type == "gpu" and _properties(device).integrated,
        DeviceInfo.MAX_MEM_ALLOC_SIZE: _property("memory_nbytes"),
        DeviceInfo.GLOBAL_MEM_SIZE: _property("memory_nbytes"),
        DeviceInfo.GLOBAL_MEM_FREE: _property("free_nbytes"),
        DeviceInfo.GLOBAL_MEM_CACHE_TYPE: lambda device: (
            DeviceMemCacheType.READ_WRITE_CACHE if _properties(device).cache_nbytes else DeviceMemCacheType.NONE
        ),
        DeviceInfo.GLOBAL_MEM_CACHE_SIZE: _property("cache_nbytes"),
        DeviceInfo.GLOBAL_MEM_CACHELINE_SIZE: _property("cache_line_nbytes"),
        DeviceInfo.LOCAL_MEM_TYPE: lambda device: (
            DeviceLocalMemType.LOCAL if _properties(device).local_nbytes else DeviceLocalMemType.NONE
        ),
        DeviceInfo.LOCAL_MEM_SIZE: _property("local_nbytes"),
        DeviceInfo.MAX_CONSTANT_BUFFER_SIZE: _property("constant_nbytes"),
        DeviceInfo.MAX_REGISTERS_PER_WORK_GROUP: _told("registers"),
        DeviceInfo.MEM_BASE_ADDR_ALIGN: _constant(LARGEST_TYPE * 8),
        DeviceInfo.MAX_WORK_ITEM_DIMENSIONS: _constant(3),
        DeviceInfo.MAX_WORK_ITEM_SIZES: _sizes("group_sizes"),
        DeviceInfo.MAX_WORK_GROUP_SIZE: lambda device: _properties(device).group_items or 1,
        DeviceInfo.MAX_WORK_GROUPS_3D: _sizes("grid_sizes"),
        DeviceInfo.MAX_WORK_GROUPS: lambda device: max(_properties(device).grid_sizes, default=1),
        DeviceInfo.MAX_NUM_SUB_GROUPS: _sub_groups,
        DeviceInfo.SUB_GROUP_SIZES_INTEL: _property("sub_group_sizes"),
        DeviceInfo.MAX_COMPUTE_QUEUE_INDICES: _constant(1),  # UR's value if queues have no index
        DeviceInfo.PREFERRED_INTEROP_USER_SYNC: _constant(True),
        DeviceInfo.PROFILING_TIMER_RESOLUTION: _constant(  # only the host's clock gives times of events
            max(1, round(time.get_clock_info("monotonic").resolution * 1e9))
        ),
        DeviceInfo.USM_DEVICE_SUPPORT: _usm("device"),
        DeviceInfo.USM_HOST_SUPPORT: _usm("host"),
        DeviceInfo.USM_SINGLE_SHARED_SUPPORT: _usm("shared"),
        DeviceInfo.USM_CROSS_SHARED_SUPPORT: _constant(0),
        DeviceInfo.USM_SYSTEM_SHARED_SUPPORT: _constant(0),
        DeviceInfo.USM_POOL_SUPPORT: _constant(True),
        DeviceInfo.ASYNC_USM_ALLOCATIONS_SUPPORT_EXP: _constant(True),
        DeviceInfo.DEVICE_WAIT_SUPPORT_EXP: _constant(True),
        DeviceInfo.REUSABLE_EVENTS_SUPPORT_EXP: _constant(True),
        DeviceInfo.TIMESTAMP_RECORDING_SUPPORT_EXP: _has(Aspect.ext_oneapi_per_event_profiling),
        DeviceInfo.USM_CONTEXT_MEMCPY_SUPPORT_EXP: _constant(True),
        DeviceInfo.USM_P2P_SUPPORT_EXP: _constant(True),
        DeviceInfo.ENQUEUE_HOST_TASK_SUPPORT_EXP: lambda device: adapter_of(device.shared).runs_functions,
        DeviceInfo.USM_HOST_ALLOC_REGISTER_SUPPORT_EXP: _is_host,
        DeviceInfo.MEMORY_EXPORT_EXPORTABLE_DEVICE_MEM_EXP: _has(Aspect.ext_oneapi_ipc_memory),
    },
    optional="DEVICE_ID MEMORY_CLOCK_RATE MAX_READ_WRITE_IMAGE_ARGS GLOBAL_MEM_FREE IL_VERSION UUID PCI_ADDRESS "
    "GPU_EU_COUNT GPU_EU_SIMD_WIDTH GPU_EU_SLICES GPU_EU_COUNT_PER_SUBSLICE GPU_SUBSLICES_PER_SLICE "
    "GPU_HW_THREADS_PER_EU MAX_MEMORY_BANDWIDTH MEMORY_BUS_WIDTH MAX_REGISTERS_PER_WORK_GROUP IP_VERSION "
    "COMPONENT_DEVICES COMPOSITE_DEVICE CURRENT_CLOCK_THROTTLE_REASONS FAN_SPEED MIN_POWER_LIMIT "
    "MAX_POWER_LIMIT LUID NODE_MASK XE_STACK_COUNT XE_REGIONS_PER_STACK XE_CLUSTERS_PER_REGION "
    "XE_CORES_PER_CLUSTER EUS_PER_XE_CORE MAX_LANES_PER_HW_THREAD",
    changing="REFERENCE_COUNT GLOBAL_MEM_FREE CURRENT_CLOCK_THROTTLE_REASONS FAN_SPEED MIN_POWER_LIMIT MAX_POWER_LIMIT",
)


@function(
    178,
    invalid=Result.ERROR_INVALID_VALUE,  # ONEAPI_DEVICE_SELECTOR is invalid
    makes="adapter",
    python="`xs.devices()`",
)
def urAdapterGet() -> list[Adapter]:
    """Return the adapters. The caller owns a reference to each adapter."""
    found = list(_objects.adapters())
    for adapter in found:
        adapter.take()
    return found


@function(181, UNSUPPORTED_QUERY, "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", python="`device.backend`")
def urAdapterGetInfo(hAdapter: Adapter, propName: AdapterInfo) -> Any:
    """Return the property `propName` of an adapter."""
    return _ADAPTER.answer(propName, hAdapter)


@function(179, makes="adapter")
def urAdapterRetain(hAdapter: Adapter) -> None:
    """Add a reference to an adapter."""
    hAdapter.retain()


@function(177, ends="adapter")
def urAdapterRelease(hAdapter: Adapter) -> None:
    """Release a reference to an adapter. The adapter's objects stay valid, and `urAdapterGet` still returns the
    adapter.
    """
    hAdapter.release()


@function(180)
def urAdapterGetLastError(hAdapter: Adapter) -> tuple[String, Int32]:
    """Return the message and the driver's error number of the last `ERROR_ADAPTER_SPECIFIC` in this thread.

    If there was no such error, the message is empty and the number is 0.
    """
    return last_error()


@function(266)
def urAdapterSetLoggerCallback(
    hAdapter: Adapter, pfnLoggerCallback: LoggerCallback, pUserData: UserData, level: LoggerLevel
) -> None:
    """Register a callback for log messages of `level` and above. It replaces the adapter's previous callback.

    Any thread may call the callback, as `pfnLoggerCallback(level, message, pUserData)`. All adapters share one log, the
    Python logger `xpushare`. If the level of that logger is above `level`, it is lowered to `level`.
    """
    if hAdapter.log is not None:
        hAdapter.log.close()
    hAdapter.log = LogSink(pfnLoggerCallback, pUserData)
    hAdapter.log.open(level)


@function(267)
def urAdapterSetLoggerCallbackLevel(hAdapter: Adapter, level: LoggerLevel) -> None:
    """Change the lowest level of the messages that the callback of `urAdapterSetLoggerCallback` receives. This does
    nothing if there is no callback.
    """
    if hAdapter.log is not None:
        hAdapter.log.open(level)


@function(72, python="`xs.devices()`")
def urPlatformGet(hAdapter: Adapter) -> list[Platform]:
    """Return the platforms of an adapter."""
    return [hAdapter.platform]


@function(
    73, UNSUPPORTED_QUERY, "INVALID_PLATFORM", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", python="`device.backend`"
)
def urPlatformGetInfo(hPlatform: Platform, propName: PlatformInfo) -> Any:
    """Return the property `propName` of a platform."""
    return _PLATFORM.answer(propName, hPlatform)


@function(74)
def urPlatformGetApiVersion(hPlatform: Platform) -> ApiVersion:
    """Return the version of Unified Runtime's interface that this package implements."""
    return ApiVersion.VERSION_0_12


_OPTIONS: Final = frozenset(("", "-O0", "-O1", "-O2", "-O3", "-ftarget-compile-fast"))


@function(114, ("INVALID_VALUE", "`pFrontendOption` is not an option of a compiler's frontend"))
def urPlatformGetBackendOption(hPlatform: Platform, pFrontendOption: String) -> String:
    """Return the platform's equivalent of a compiler option. The result is always empty, since xpushare has no
    compiler.
    """
    if pFrontendOption not in _OPTIONS:
        raise URError(f"no compiler here knows {pFrontendOption!r}", result=Result.ERROR_INVALID_VALUE)
    return ""


@function(8, "INVALID_VALUE", invalid=Result.ERROR_INVALID_VALUE, makes="device", python="`xs.devices(selector)`")
def urDeviceGet(hPlatform: Platform, DeviceType: DeviceType) -> list[Device]:
    """Return the devices of a platform that have the given type. The caller owns a reference to each device."""
    found = [device for device in _objects.adapters().get(hPlatform.adapter, []) if _selects(device, DeviceType)]
    for device in found:
        device.take()
    return found


@function(217, "INVALID_VALUE", invalid=Result.ERROR_INVALID_VALUE, makes="device", python="`xs.devices()`")
def urDeviceGetSelected(hPlatform: Platform, DeviceType: DeviceType) -> list[Device]:
    """Return the devices of a platform that have the given type and that `ONEAPI_DEVICE_SELECTOR` selects. The caller
    owns a reference to each device.

    `urDeviceGet` returns the same devices, since this package hides all devices that the variable does not select.
    """
    return urDeviceGet(hPlatform, DeviceType)


@function(10, makes="device")
def urDeviceRetain(hDevice: Device) -> None:
    """Add a reference to a device."""
    hDevice.retain()


@function(11, "INVALID_DEVICE", ends="device")
def urDeviceRelease(hDevice: Device) -> None:
    """Release a reference to a device. The device itself lives until the process exits."""
    hDevice.release()


@function(
    9,
    UNSUPPORTED_QUERY,
    "INVALID_DEVICE",
    "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
    python="`device.name`, `device.uuid`, `device.support(aspect)` …",
)
def urDeviceGetInfo(hDevice: Device, propName: DeviceInfo) -> Any:
    """Return the property `propName` of a device."""
    return _DEVICE.answer(propName, hDevice)


@function(
    16,
    ("UNSUPPORTED_FEATURE", "the device's clock cannot be read from the host"),
)
def urDeviceGetGlobalTimestamps(hDevice: Device) -> tuple[Uint64, Uint64]:
    """Return the times of the device's clock and of the host's clock at the same moment, in nanoseconds. The device's
    clock also measures the times that `urEventGetProfilingInfo` returns.
    """
    found: tuple[int, int] = adapter_of(hDevice.shared).clock(info_of(hDevice.shared))
    return found


@function(293, "INVALID_DEVICE", python="`queue.synchronize()` for each queue")
def urDeviceWaitExp(hDevice: Device) -> None:
    """Wait until the commands in all queues of a device have finished, whether they succeeded or not.

    This does not report errors of the commands. `urQueueFinish` reports them.
    """
    core_queue.wait_for_device(hDevice.shared)


# --- peers ------------------------------------------------------------------------------------------------------------

_enabled: Final[set[tuple[Device, Device]]] = set()


def _reaches(pair: tuple[Device, Device]) -> bool:
    device, peer = (each.shared for each in pair)
    if device.backend != peer.backend:
        return False
    return device == peer or bool(adapter_of(device).reaches(info_of(device), info_of(peer)))


_PEER: Final = Info(
    ExpPeerInfo,
    {"int32": "UR_PEER_ACCESS_SUPPORT UR_PEER_ATOMICS_SUPPORT"},
    answers={
        ExpPeerInfo.UR_PEER_ACCESS_SUPPORT: lambda pair: int(_reaches(pair)),
        ExpPeerInfo.UR_PEER_ATOMICS_SUPPORT: lambda pair: int(all(each.shared.type == "cpu" for each in pair)),
    },
)


@function(
    165,
    ("UNSUPPORTED_FEATURE", "`commandDevice` cannot use memory of `peerDevice`"),
    ("INVALID_OPERATION", "the access is already enabled"),
)
def urUsmP2PEnablePeerAccessExp(commandDevice: Device, peerDevice: Device) -> None:
    """Let `commandDevice` use memory of `peerDevice`.

    This only checks that the access is possible. Queues of xpushare enable the access themselves for copies and fills.
    """
    pair = commandDevice, peerDevice
    if not _reaches(pair):
        raise URError(f"{commandDevice!r} cannot use memory of {peerDevice!r}", result=Result.ERROR_UNSUPPORTED_FEATURE)
    if pair in _enabled:
        raise URError(f"{commandDevice!r} may use memory of {peerDevice!r}", result=Result.ERROR_INVALID_OPERATION)
    _enabled.add(pair)


@function(166, ("INVALID_OPERATION", "the access is not enabled"))
def urUsmP2PDisablePeerAccessExp(commandDevice: Device, peerDevice: Device) -> None:
    """Disable access that `urUsmP2PEnablePeerAccessExp` enabled."""
    pair = commandDevice, peerDevice
    if pair not in _enabled:
        raise URError(f"access to {peerDevice!r} is not enabled", result=Result.ERROR_INVALID_OPERATION)
    _enabled.remove(pair)


@function(167, UNSUPPORTED_QUERY)
def urUsmP2PPeerAccessGetInfoExp(commandDevice: Device, peerDevice: Device, propName: ExpPeerInfo) -> Any:
    """Return 1 if `commandDevice` can use memory of `peerDevice`, otherwise 0. For the query `UR_PEER_ATOMICS_SUPPORT`,
    return 1 if atomic operations of `commandDevice` work on that memory, otherwise 0.
    """
    return _PEER.answer(propName, (commandDevice, peerDevice))
