"""What the info queries answer: for each enumeration a function of the object for every member that is answered."""

from __future__ import annotations

import functools
import glob
import struct
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from xpushare._aspects import Aspect
from xpushare._errors import PeerLostError
from xpushare._result import Result
from xpushare.adapters.base import Adapter as DriverAdapter
from xpushare.adapters.base import Properties
from xpushare.core import event as core_event
from xpushare.core.memory import Range
from xpushare.ur._enums import (
    AdapterInfo,
    Backend,
    DeviceInfo,
    DeviceMemCacheType,
    DeviceType,
    DeviceUSMAccessCapabilityFlags,
    EventInfo,
    EventStatus,
    PhysicalMemFlags,
    PhysicalMemInfo,
    PlatformInfo,
    ProfilingInfo,
    QueueFlags,
    USMAllocInfo,
    USMType,
)
from xpushare.ur._error import URError
from xpushare.ur._objects import Adapter, Device, Event, PhysicalMem, Platform, device_of
from xpushare.ur._spec import INFO_TYPES
from xpushare.ur._structs import PhysicalMemProperties

__all__ = [
    "ADAPTER",
    "DEVICE",
    "EVENT",
    "PHYSICAL_MEM",
    "PLATFORM",
    "PROFILING",
    "QUEUE_FLAGS",
    "USM_ALLOC",
    "answer",
    "largest_allocation",
    "selects",
    "status",
]

QUEUE_FLAGS: Final = (
    QueueFlags.OUT_OF_ORDER_EXEC_MODE_ENABLE
    | QueueFlags.PROFILING_ENABLE
    | QueueFlags.DISCARD_EVENTS
    | QueueFlags.PRIORITY_LOW
    | QueueFlags.PRIORITY_HIGH
    | QueueFlags.SUBMISSION_BATCHED
    | QueueFlags.SUBMISSION_IMMEDIATE
    | QueueFlags.LOW_POWER_EVENTS_SUPPORT_EXP
)
"""What a queue can be made with. All but profiling are permissions that an in-order queue need not use."""


def answer(table: Mapping[Any, Callable[[Any], Any]], asked: Any, about: Any) -> Any:
    """The value, or `ERROR_UNSUPPORTED_ENUMERATION`."""
    found = table.get(asked)
    if found is None:
        raise URError(f"{about!r} does not answer {asked!r}", result=Result.ERROR_UNSUPPORTED_ENUMERATION)
    return found(about)


def _version(_about: object) -> str:
    from xpushare import __version__

    return __version__


def _backend(about: Adapter | Platform) -> int:
    return Backend.__members__.get(about.backend.upper(), Backend.UNKNOWN)


ADAPTER: Final[Mapping[AdapterInfo, Callable[[Adapter], Any]]] = {
    AdapterInfo.BACKEND: _backend,
    AdapterInfo.REFERENCE_COUNT: lambda adapter: adapter._references,
    AdapterInfo.VERSION: lambda _adapter: 1,
}

PLATFORM: Final[Mapping[PlatformInfo, Callable[[Platform], Any]]] = {
    PlatformInfo.NAME: lambda platform: f"xpushare {platform.backend}",
    PlatformInfo.VENDOR_NAME: lambda _platform: "xpushare",
    PlatformInfo.VERSION: _version,
    PlatformInfo.EXTENSIONS: lambda _platform: "",
    PlatformInfo.PROFILE: lambda _platform: "FULL_PROFILE",
    PlatformInfo.BACKEND: _backend,
    PlatformInfo.ADAPTER: lambda platform: platform.adapter,
}

# --- devices --------------------------------------------------------------------------------------

_TYPES: Final = {"cpu": DeviceType.CPU, "gpu": DeviceType.GPU, "accelerator": DeviceType.FPGA}
_EVERY_ACCESS: Final = (
    DeviceUSMAccessCapabilityFlags.ACCESS
    | DeviceUSMAccessCapabilityFlags.ATOMIC_ACCESS
    | DeviceUSMAccessCapabilityFlags.CONCURRENT_ACCESS
    | DeviceUSMAccessCapabilityFlags.ATOMIC_CONCURRENT_ACCESS
)


def _aspect(aspect: Aspect) -> Callable[[Device], Any]:
    return lambda device: device._device.has(aspect)


def _of_host(value: Callable[[], Any]) -> Callable[[Device], Any]:
    """Known of a device that is the host itself."""

    def ask(device: Device) -> Any:
        if device._device.type != "cpu":
            raise URError(f"{device!r} does not tell this", result=Result.ERROR_UNSUPPORTED_ENUMERATION)
        return value()

    return ask


def _cache(field: str) -> Callable[[Device], Any]:
    """Of the last cache before the memory, as the kernel lists it; not every machine does."""

    def ask(device: Device) -> int:
        found = sorted(glob.glob(f"/sys/devices/system/cpu/cpu0/cache/index*/{field}"))
        if device._device.type != "cpu" or not found:
            raise URError(f"{device!r} does not tell this", result=Result.ERROR_UNSUPPORTED_ENUMERATION)
        with open(found[-1], encoding="ascii") as file:
            text = file.read().strip()
        return int(text.removesuffix("K")) << (10 if text.endswith("K") else 0)

    return ask


def _property(name: str) -> Callable[[Device], Any]:
    return lambda device: getattr(_properties(device), name)


def _properties(device: Device) -> Properties:
    adapter: DriverAdapter = device._device._adapter
    return adapter.properties(device._device._info)


def _constant(value: Any) -> Callable[[Device], Any]:
    return lambda _device: value


@functools.cache
def _memory(adapter: DriverAdapter, info: Any) -> int:
    return adapter.properties(info).memory_nbytes


def largest_allocation(device: Device) -> int:
    """`MAX_MEM_ALLOC_SIZE`."""
    return _memory(device._device._adapter, device._device._info)


def selects(device: Device, kind: DeviceType) -> bool:
    """Whether `urDeviceGet` means the device by `kind`."""
    return kind in (DeviceType.ALL, DeviceType.DEFAULT, _TYPES[device._device.type])


# Whether a device has what no function of this face uses: it does not, as far as this face goes.
_ABSENT: Final = {
    member: _constant(False)
    for member in DeviceInfo
    if "SUPPORT" in member.name and "CORRECTION" not in member.name and INFO_TYPES["DeviceInfo"][member.name] == "bool"
}

DEVICE: Final[Mapping[DeviceInfo, Callable[[Device], Any]]] = {
    **_ABSENT,
    DeviceInfo.TYPE: lambda device: _TYPES[device._device.type],
    DeviceInfo.NAME: lambda device: device._device.name,
    DeviceInfo.VENDOR: _property("vendor"),
    DeviceInfo.DRIVER_VERSION: lambda device: device._device.driver_version,
    DeviceInfo.VERSION: lambda device: device._device.driver_version,
    DeviceInfo.BACKEND_RUNTIME_VERSION: _version,
    DeviceInfo.PROFILE: _constant("FULL_PROFILE"),
    DeviceInfo.EXTENSIONS: _constant(""),
    DeviceInfo.BUILT_IN_KERNELS: _constant(""),
    DeviceInfo.UUID: lambda device: uuid.UUID(device._device.uuid).bytes,
    DeviceInfo.PLATFORM: lambda device: device.platform,
    DeviceInfo.REFERENCE_COUNT: lambda device: device._references,
    DeviceInfo.AVAILABLE: _constant(True),
    DeviceInfo.COMPILER_AVAILABLE: _constant(False),
    DeviceInfo.LINKER_AVAILABLE: _constant(False),
    DeviceInfo.EXECUTION_CAPABILITIES: _constant(0),
    DeviceInfo.QUEUE_PROPERTIES: _constant(QUEUE_FLAGS),
    DeviceInfo.QUEUE_ON_HOST_PROPERTIES: _constant(QUEUE_FLAGS),
    DeviceInfo.QUEUE_ON_DEVICE_PROPERTIES: _constant(0),
    DeviceInfo.PARENT_DEVICE: _constant(None),
    DeviceInfo.SUPPORTED_PARTITIONS: lambda _device: [],
    DeviceInfo.PARTITION_MAX_SUB_DEVICES: _constant(0),
    DeviceInfo.PARTITION_AFFINITY_DOMAIN: _constant(0),
    DeviceInfo.PARTITION_TYPE: lambda _device: [],
    DeviceInfo.MAX_COMPUTE_UNITS: _property("compute_units"),
    DeviceInfo.NUM_COMPUTE_UNITS: _property("compute_units"),
    DeviceInfo.ADDRESS_BITS: _constant(struct.calcsize("P") * 8),
    DeviceInfo.ENDIAN_LITTLE: _of_host(lambda: sys.byteorder == "little"),
    DeviceInfo.HOST_UNIFIED_MEMORY: _property("integrated"),
    DeviceInfo.IS_INTEGRATED_GPU: lambda device: device._device.type == "gpu" and _properties(device).integrated,
    DeviceInfo.MAX_MEM_ALLOC_SIZE: _property("memory_nbytes"),
    DeviceInfo.GLOBAL_MEM_SIZE: _property("memory_nbytes"),
    DeviceInfo.GLOBAL_MEM_FREE: _property("free_nbytes"),
    DeviceInfo.GLOBAL_MEM_CACHE_TYPE: _of_host(lambda: DeviceMemCacheType.READ_WRITE_CACHE),
    DeviceInfo.GLOBAL_MEM_CACHE_SIZE: _cache("size"),
    DeviceInfo.GLOBAL_MEM_CACHELINE_SIZE: _cache("coherency_line_size"),
    DeviceInfo.PROFILING_TIMER_RESOLUTION: _of_host(
        lambda: max(1, round(time.get_clock_info("monotonic").resolution * 1e9))
    ),
    DeviceInfo.USM_DEVICE_SUPPORT: lambda device: _EVERY_ACCESS if device._device.type == "cpu" else 1,
    DeviceInfo.USM_HOST_SUPPORT: _of_host(lambda: _EVERY_ACCESS),
    DeviceInfo.USM_SINGLE_SHARED_SUPPORT: _of_host(lambda: _EVERY_ACCESS),
    DeviceInfo.USM_CROSS_SHARED_SUPPORT: _constant(0),
    DeviceInfo.USM_SYSTEM_SHARED_SUPPORT: _constant(0),
    DeviceInfo.VIRTUAL_MEMORY_SUPPORT: _aspect(Aspect.ext_oneapi_virtual_mem),
    DeviceInfo.IPC_MEMORY_SUPPORT_EXP: _aspect(Aspect.ext_oneapi_ipc_memory),
    DeviceInfo.IPC_PHYSICAL_MEMORY_SUPPORT_EXP: _aspect(Aspect.ext_oneapi_ipc_physical_memory),
    DeviceInfo.IPC_EVENT_SUPPORT_EXP: _aspect(Aspect.ext_oneapi_ipc_event),
    DeviceInfo.PER_EVENT_PROFILING_SUPPORT_EXP: _aspect(Aspect.ext_oneapi_per_event_profiling),
    DeviceInfo.REUSABLE_EVENTS_SUPPORT_EXP: _constant(True),
}

# --- memory ---------------------------------------------------------------------------------------

_KINDS: Final = {"device": USMType.DEVICE, "host": USMType.HOST, "shared": USMType.SHARED}

USM_ALLOC: Final[Mapping[USMAllocInfo, Callable[[Range], Any]]] = {
    USMAllocInfo.TYPE: lambda found: _KINDS[found.allocation.kind],
    USMAllocInfo.BASE_PTR: lambda found: found.allocation.address,
    USMAllocInfo.SIZE: lambda found: found.allocation.nbytes,
    USMAllocInfo.DEVICE: lambda found: device_of(found.device),
}

PHYSICAL_MEM: Final[Mapping[PhysicalMemInfo, Callable[[PhysicalMem], Any]]] = {
    PhysicalMemInfo.CONTEXT: lambda memory: memory.context,
    PhysicalMemInfo.DEVICE: lambda memory: memory.device,
    PhysicalMemInfo.SIZE: lambda memory: memory._memory.nbytes,
    PhysicalMemInfo.PROPERTIES: lambda memory: PhysicalMemProperties(
        PhysicalMemFlags.ENABLE_IPC if memory._memory.ipc_enabled else PhysicalMemFlags(0)
    ),
    PhysicalMemInfo.REFERENCE_COUNT: lambda memory: memory._references,
}

# --- events ---------------------------------------------------------------------------------------


def status(event: Event) -> EventStatus:
    """How far the newest command is that signals the event."""
    try:
        return EventStatus.COMPLETE if core_event.done(event._event._use()) else EventStatus.SUBMITTED
    except PeerLostError:
        return EventStatus.ERROR


EVENT: Final[Mapping[EventInfo, Callable[[Event], Any]]] = {
    EventInfo.COMMAND_EXECUTION_STATUS: status,
    EventInfo.COMMAND_QUEUE: lambda event: event.queue,
    EventInfo.COMMAND_TYPE: lambda event: event.command,
    EventInfo.CONTEXT: lambda event: event.context,
    EventInfo.REFERENCE_COUNT: lambda event: event._references,
}


def _time(read: Callable[[Any, Any], int]) -> Callable[[Event], int]:
    """`read` takes the profiles of the command's start and of its end."""

    def ask(event: Event) -> int:
        profile = event.profile
        if profile is None:
            raise URError(
                f"{event!r} and its queue have no profiling", result=Result.ERROR_PROFILING_INFO_NOT_AVAILABLE
            )
        if not profile.end or status(event) is not EventStatus.COMPLETE:
            raise URError(f"the command of {event!r} is not complete", result=Result.ERROR_PROFILING_INFO_NOT_AVAILABLE)
        return read(event.started or profile, profile)

    return ask


PROFILING: Final[Mapping[ProfilingInfo, Callable[[Event], int]]] = {
    ProfilingInfo.COMMAND_QUEUED: _time(lambda started, _ended: started.queued),
    ProfilingInfo.COMMAND_SUBMIT: _time(lambda started, _ended: started.submit),
    ProfilingInfo.COMMAND_START: _time(lambda started, ended: started.end if started is not ended else ended.start),
    ProfilingInfo.COMMAND_END: _time(lambda _started, ended: ended.end),
    ProfilingInfo.COMMAND_COMPLETE: _time(lambda _started, ended: ended.end),
}
