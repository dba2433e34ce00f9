"""The part of Level Zero's C interface that this adapter uses, declared from the specification, and Intel's extensions
by which command lists write words in memory and wait for them.

This module imports nothing else of this package, so a process that lists devices can load it alone. Pointers and
handles are plain unsigned integers. A test compares sizes and offsets with the official headers, as a C compiler reads
them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import c_char, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from typing import Any, ClassVar, Final

__all__ = [
    "FUNCTIONS",
    "LIBRARY",
    "RESULTS",
    "STRUCTURES",
    "Code",
    "Handle",
    "MemoryType",
    "driver_version",
    "functions",
]

LIBRARY: Final = "libze_loader.so.1"

# --- structures, by the names of ze_api.h and zex_common.h ------------------------------------------------------


class Extensible(ctypes.Structure):
    """A structure that begins with its type and a pointer to the next structure."""

    STYPE: ClassVar[int]
    stype: int
    pNext: int | None

    def __init__(self, chained: ctypes.Structure | None = None, **values: Any) -> None:
        super().__init__(stype=self.STYPE, pNext=None if chained is None else ctypes.addressof(chained), **values)
        self.chained = chained  # lives as long as this structure


_HEAD: Final[list[tuple[str, Any]]] = [("stype", c_uint32), ("pNext", c_void_p)]


class ze_init_driver_type_desc_t(Extensible):
    STYPE = 0x00020021
    _fields_ = [*_HEAD, ("flags", c_uint32)]


class ze_driver_properties_t(Extensible):
    STYPE = 0x1
    _fields_ = [*_HEAD, ("uuid", c_uint8 * 16), ("driverVersion", c_uint32)]


class ze_device_properties_t(Extensible):
    STYPE = 0x3
    _fields_ = [
        *_HEAD,
        ("type", c_uint32),
        ("vendorId", c_uint32),
        ("deviceId", c_uint32),
        ("flags", c_uint32),
        ("subdeviceId", c_uint32),
        ("coreClockRate", c_uint32),
        ("maxMemAllocSize", c_uint64),
        ("maxHardwareContexts", c_uint32),
        ("maxCommandQueuePriority", c_uint32),
        ("numThreadsPerEU", c_uint32),
        ("physicalEUSimdWidth", c_uint32),
        ("numEUsPerSubslice", c_uint32),
        ("numSubslicesPerSlice", c_uint32),
        ("numSlices", c_uint32),
        ("timerResolution", c_uint64),
        ("timestampValidBits", c_uint32),
        ("kernelTimestampValidBits", c_uint32),
        ("uuid", c_uint8 * 16),
        ("name", c_char * 256),
    ]


class ze_pci_ext_properties_t(Extensible):
    STYPE = 0x10008
    _fields_ = [
        *_HEAD,
        ("domain", c_uint32),  # these four are the structure `address`
        ("bus", c_uint32),
        ("device", c_uint32),
        ("function", c_uint32),
        ("maxSpeed", c_uint64 * 2),  # int32 genVersion, int32 width, int64 maxBandwidth
    ]


class ze_device_memory_properties_t(Extensible):
    STYPE = 0x7
    _fields_ = [
        *_HEAD,
        ("flags", c_uint32),
        ("maxClockRate", c_uint32),
        ("maxBusWidth", c_uint32),
        ("totalSize", c_uint64),
        ("name", c_char * 256),
    ]


class ze_device_external_memory_properties_t(Extensible):
    STYPE = 0xC
    _fields_ = [
        *_HEAD,
        ("memoryAllocationImportTypes", c_uint32),
        ("memoryAllocationExportTypes", c_uint32),
        ("imageImportTypes", c_uint32),
        ("imageExportTypes", c_uint32),
    ]


class ze_command_queue_group_properties_t(Extensible):
    STYPE = 0x6
    _fields_ = [*_HEAD, ("flags", c_uint32), ("maxMemoryFillPatternSize", c_size_t), ("numQueues", c_uint32)]


class ze_context_desc_t(Extensible):
    STYPE = 0xD
    _fields_ = [*_HEAD, ("flags", c_uint32)]


class ze_command_queue_desc_t(Extensible):
    STYPE = 0xE
    _fields_ = [
        *_HEAD,
        ("ordinal", c_uint32),
        ("index", c_uint32),
        ("flags", c_uint32),
        ("mode", c_uint32),
        ("priority", c_uint32),
    ]


class ze_event_pool_desc_t(Extensible):
    STYPE = 0x10
    _fields_ = [*_HEAD, ("flags", c_uint32), ("count", c_uint32)]


class ze_event_desc_t(Extensible):
    STYPE = 0x11
    _fields_ = [*_HEAD, ("index", c_uint32), ("signal", c_uint32), ("wait", c_uint32)]


class ze_event_counter_based_desc_t(Extensible):
    STYPE = 0x0002003A
    _fields_ = [*_HEAD, ("flags", c_uint32), ("signal", c_uint32), ("wait", c_uint32)]


class ze_device_mem_alloc_desc_t(Extensible):
    STYPE = 0x15
    _fields_ = [*_HEAD, ("flags", c_uint32), ("ordinal", c_uint32)]


class ze_host_mem_alloc_desc_t(Extensible):
    STYPE = 0x16
    _fields_ = [*_HEAD, ("flags", c_uint32)]


class ze_relaxed_allocation_limits_exp_desc_t(Extensible):
    STYPE = 0x00020001
    _fields_ = [*_HEAD, ("flags", c_uint32)]


class ze_external_memmap_sysmem_ext_desc_t(Extensible):
    STYPE = 0x00020037
    _fields_ = [*_HEAD, ("pSystemMemory", c_void_p), ("size", c_uint64)]


class ze_external_memory_export_desc_t(Extensible):
    STYPE = 0x18
    _fields_ = [*_HEAD, ("flags", c_uint32)]


class ze_external_memory_import_fd_t(Extensible):
    STYPE = 0x19
    _fields_ = [*_HEAD, ("flags", c_uint32), ("fd", c_int)]


class ze_external_memory_export_fd_t(Extensible):
    STYPE = 0x1A
    _fields_ = [*_HEAD, ("flags", c_uint32), ("fd", c_int)]


class ze_memory_allocation_properties_t(Extensible):
    STYPE = 0x17
    _fields_ = [*_HEAD, ("type", c_uint32), ("id", c_uint64), ("pageSize", c_uint64)]


class ze_physical_mem_desc_t(Extensible):
    STYPE = 0x20
    _fields_ = [*_HEAD, ("flags", c_uint32), ("size", c_size_t)]


class ze_physical_mem_properties_t(Extensible):
    STYPE = 0x00020040
    _fields_ = [*_HEAD, ("id", c_uint64), ("size", c_uint64)]


class ze_driver_extension_properties_t(ctypes.Structure):
    _fields_ = [("name", c_char * 256), ("version", c_uint32)]


class ze_ipc_mem_handle_t(ctypes.Structure):
    _fields_ = [("data", c_uint8 * 64)]


class ze_ipc_event_counter_based_handle_t(ctypes.Structure):
    _fields_ = [("data", c_uint8 * 64)]


class zex_wait_on_mem_desc_t(ctypes.Structure):
    _fields_ = [("actionFlag", c_uint32), ("waitScope", c_uint32)]


class zex_write_to_mem_desc_t(ctypes.Structure):
    _fields_ = [("writeScope", c_uint32)]


STRUCTURES: Final[tuple[type[ctypes.Structure], ...]] = tuple(
    each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, ctypes.Structure) and each.__name__.startswith("ze")
)

# --- functions --------------------------------------------------------------------------------------------------

_P: Final = c_void_p  # a pointer or a handle
_EVENTS: Final = (_P, c_uint32, _P)  # the event to signal, and how many to wait for

# The arguments of each function, and the version of the specification that added it if that is not 1.0. All return a
# result, except zeDriverGetDefaultContext.
FUNCTIONS: Final[dict[str, tuple[tuple[int, int], tuple[Any, ...]]]] = {
    "zeInit": ((1, 0), (c_uint32,)),
    "zeInitDrivers": ((1, 10), (_P, _P, _P)),
    "zeDriverGet": ((1, 0), (_P, _P)),
    "zeDriverGetApiVersion": ((1, 0), (_P, _P)),
    "zeDriverGetProperties": ((1, 0), (_P, _P)),
    "zeDriverGetExtensionProperties": ((1, 0), (_P, _P, _P)),
    "zeDriverGetExtensionFunctionAddress": ((1, 0), (_P, ctypes.c_char_p, _P)),
    "zeDriverGetDefaultContext": ((1, 14), (_P,)),
    "zeDeviceGet": ((1, 0), (_P, _P, _P)),
    "zeDeviceGetSubDevices": ((1, 0), (_P, _P, _P)),
    "zeDeviceGetProperties": ((1, 0), (_P, _P)),
    "zeDevicePciGetPropertiesExt": ((1, 0), (_P, _P)),
    "zeDeviceGetMemoryProperties": ((1, 0), (_P, _P, _P)),
    "zeDeviceGetExternalMemoryProperties": ((1, 0), (_P, _P)),
    "zeDeviceGetCommandQueueGroupProperties": ((1, 0), (_P, _P, _P)),
    "zeDeviceGetCounterBasedEventMaxValue": ((1, 17), (_P, _P)),
    "zeDeviceCanAccessPeer": ((1, 0), (_P, _P, _P)),
    "zeDeviceGetStatus": ((1, 0), (_P,)),
    "zeDeviceSynchronize": ((1, 14), (_P,)),
    "zeContextCreate": ((1, 0), (_P, _P, _P)),
    "zeMemAllocDevice": ((1, 0), (_P, _P, c_size_t, c_size_t, _P, _P)),
    "zeMemAllocHost": ((1, 0), (_P, _P, c_size_t, c_size_t, _P)),
    "zeMemAllocShared": ((1, 0), (_P, _P, _P, c_size_t, c_size_t, _P, _P)),
    "zeMemFree": ((1, 0), (_P, _P)),
    "zeMemGetAllocProperties": ((1, 0), (_P, _P, _P, _P)),
    "zeMemGetAddressRange": ((1, 0), (_P, _P, _P, _P)),
    "zeMemGetIpcHandle": ((1, 0), (_P, _P, _P)),
    "zeMemPutIpcHandle": ((1, 6), (_P, ze_ipc_mem_handle_t)),
    "zeMemOpenIpcHandle": ((1, 0), (_P, _P, ze_ipc_mem_handle_t, c_uint32, _P)),
    "zeMemCloseIpcHandle": ((1, 0), (_P, _P)),
    "zePhysicalMemCreate": ((1, 0), (_P, _P, _P, _P)),
    "zePhysicalMemDestroy": ((1, 0), (_P, _P)),
    "zePhysicalMemGetProperties": ((1, 15), (_P, _P, _P)),
    "zeVirtualMemReserve": ((1, 0), (_P, _P, c_size_t, _P)),
    "zeVirtualMemFree": ((1, 0), (_P, _P, c_size_t)),
    "zeVirtualMemQueryPageSize": ((1, 0), (_P, _P, c_size_t, _P)),
    "zeVirtualMemMap": ((1, 0), (_P, _P, c_size_t, _P, c_size_t, c_uint32)),
    "zeVirtualMemUnmap": ((1, 0), (_P, _P, c_size_t)),
    "zeVirtualMemSetAccessAttribute": ((1, 0), (_P, _P, c_size_t, c_uint32)),
    "zeCommandListCreateImmediate": ((1, 0), (_P, _P, _P, _P)),
    "zeCommandListDestroy": ((1, 0), (_P,)),
    "zeCommandListHostSynchronize": ((1, 6), (_P, c_uint64)),
    "zeCommandListGetDeviceHandle": ((1, 9), (_P, _P)),
    "zeCommandListIsImmediate": ((1, 9), (_P, _P)),
    "zeCommandListAppendMemoryCopy": ((1, 0), (_P, _P, _P, c_size_t, *_EVENTS)),
    "zeCommandListAppendMemoryFill": ((1, 0), (_P, _P, _P, c_size_t, c_size_t, *_EVENTS)),
    "zeCommandListAppendSignalEvent": ((1, 0), (_P, _P)),
    "zeCommandListAppendWaitOnEvents": ((1, 0), (_P, c_uint32, _P)),
    "zeCommandListAppendWriteGlobalTimestamp": ((1, 0), (_P, _P, *_EVENTS)),
    "zeCommandListAppendHostFunction": ((1, 15), (_P, _P, _P, _P, *_EVENTS)),
    "zeDeviceGetGlobalTimestamps": ((1, 1), (_P, _P, _P)),
    "zeEventPoolCreate": ((1, 0), (_P, _P, c_uint32, _P, _P)),
    "zeEventPoolDestroy": ((1, 0), (_P,)),
    "zeEventCreate": ((1, 0), (_P, _P, _P)),
    "zeEventDestroy": ((1, 0), (_P,)),
    "zeEventHostReset": ((1, 0), (_P,)),
    "zeEventQueryStatus": ((1, 0), (_P,)),
    "zeEventCounterBasedCreate": ((1, 15), (_P, _P, _P, _P)),
    "zeEventCounterBasedGetIpcHandle": ((1, 15), (_P, _P)),
    "zeEventCounterBasedOpenIpcHandle": ((1, 15), (_P, ze_ipc_event_counter_based_handle_t, _P)),
    "zeEventCounterBasedCloseIpcHandle": ((1, 15), (_P,)),
    "zelLoaderTranslateHandle": ((1, 0), (c_uint32, _P, _P)),
}
# Intel's extensions, found by `zeDriverGetExtensionFunctionAddress`.
EXTENSIONS: Final[dict[str, tuple[Any, ...]]] = {
    "zexCommandListAppendWriteToMemory": (_P, _P, _P, c_uint64),
    "zexCommandListAppendWaitOnMemory": (_P, _P, _P, c_uint32, _P),
    "zexCommandListAppendWaitOnMemory64": (_P, _P, _P, c_uint64, _P),
    "zexCommandListAppendHostFunction": (_P, _P, _P, _P, *_EVENTS),
    "zexDriverImportExternalPointer": (_P, _P, c_size_t),
    "zexDriverReleaseImportedPointer": (_P, _P),
}
HOST_FUNCTION: Final = ctypes.CFUNCTYPE(None, c_void_p)

_NAMED: Final = {
    0x0: "SUCCESS",
    0x1: "NOT_READY",
    0x70000001: "ERROR_DEVICE_LOST",
    0x70000002: "ERROR_OUT_OF_HOST_MEMORY",
    0x70000003: "ERROR_OUT_OF_DEVICE_MEMORY",
    0x70000004: "ERROR_MODULE_BUILD_FAILURE",
    0x70000005: "ERROR_MODULE_LINK_FAILURE",
    0x70000006: "ERROR_DEVICE_REQUIRES_RESET",
    0x70000007: "ERROR_DEVICE_IN_LOW_POWER_STATE",
    0x70010000: "ERROR_INSUFFICIENT_PERMISSIONS",
    0x70010001: "ERROR_NOT_AVAILABLE",
    0x70020000: "ERROR_DEPENDENCY_UNAVAILABLE",
    0x70020001: "WARNING_DROPPED_DATA",
    0x78000001: "ERROR_UNINITIALIZED",
    0x78000002: "ERROR_UNSUPPORTED_VERSION",
    0x78000003: "ERROR_UNSUPPORTED_FEATURE",
    0x78000004: "ERROR_INVALID_ARGUMENT",
    0x78000005: "ERROR_INVALID_NULL_HANDLE",
    0x78000006: "ERROR_HANDLE_OBJECT_IN_USE",
    0x78000007: "ERROR_INVALID_NULL_POINTER",
    0x78000008: "ERROR_INVALID_SIZE",
    0x78000009: "ERROR_UNSUPPORTED_SIZE",
    0x7800000A: "ERROR_UNSUPPORTED_ALIGNMENT",
    0x7800000B: "ERROR_INVALID_SYNCHRONIZATION_OBJECT",
    0x7800000C: "ERROR_INVALID_ENUMERATION",
    0x7800000D: "ERROR_UNSUPPORTED_ENUMERATION",
    0x7800000E: "ERROR_UNSUPPORTED_IMAGE_FORMAT",
    0x7800001A: "ERROR_OVERLAPPING_REGIONS",
    0x7FFFFFFE: "ERROR_UNKNOWN",
}
RESULTS: Final = {code: f"ZE_RESULT_{name}" for code, name in _NAMED.items()}


def functions() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Return the loader's functions: name, result, arguments."""
    for name, (_since, arguments) in FUNCTIONS.items():
        yield name, c_void_p if name == "zeDriverGetDefaultContext" else c_uint32, arguments


# --- constants, with the names of the headers -------------------------------------------------------------------------


class Code(IntEnum):
    """Result codes. Level Zero's names start with ZE_RESULT_ or ZE_RESULT_ERROR_."""

    NOT_READY = 1
    DEVICE_LOST = 0x70000001
    OUT_OF_HOST_MEMORY = 0x70000002
    OUT_OF_DEVICE_MEMORY = 0x70000003
    DEVICE_REQUIRES_RESET = 0x70000006
    INSUFFICIENT_PERMISSIONS = 0x70010000
    UNINITIALIZED = 0x78000001
    UNSUPPORTED_VERSION = 0x78000002
    UNSUPPORTED_FEATURE = 0x78000003
    INVALID_ARGUMENT = 0x78000004
    INVALID_SIZE = 0x78000008
    UNSUPPORTED_SIZE = 0x78000009
    UNSUPPORTED_ENUMERATION = 0x7800000D


class MemoryType(IntEnum):
    """Kinds of memory. Level Zero's names start with ZE_MEMORY_TYPE_."""

    UNKNOWN = 0
    HOST = 1
    DEVICE = 2
    SHARED = 3
    HOST_IMPORTED = 4


class Handle(IntEnum):
    """Kinds of handles that the loader distinguishes. Its names start with ZEL_HANDLE_."""

    DRIVER = 0
    COMMAND_LIST = 4


INTEL: Final = 0x8086  # PCI vendor
GPU_DRIVERS: Final = 1  # ZE_INIT_DRIVER_TYPE_FLAG_GPU
DEVICE_TYPE_GPU: Final = 1
DEVICE_PROPERTIES_1_2: Final = 0x00020006  # ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2: ticks in a second
DEVICE_INTEGRATED: Final = 1  # ZE_DEVICE_PROPERTY_FLAG_…
DEVICE_ECC: Final = 4
GROUP_COMPUTE: Final = 1  # ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_…
GROUP_COPY: Final = 2
QUEUE_IN_ORDER: Final = 2  # ZE_COMMAND_QUEUE_FLAG_IN_ORDER
QUEUE_ASYNCHRONOUS: Final = 2  # ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS
SCOPE_HOST: Final = 4  # ZE_EVENT_SCOPE_FLAG_HOST, ZEX_MEM_ACTION_SCOPE_FLAG_HOST
POOL_HOST_VISIBLE: Final = 1  # ZE_EVENT_POOL_FLAG_HOST_VISIBLE
COUNTER_IMMEDIATE: Final = 1  # ZE_EVENT_COUNTER_BASED_FLAG_…
COUNTER_HOST_VISIBLE: Final = 4
COUNTER_IPC: Final = 8
WAIT_AT_LEAST: Final = 8  # ZEX_WAIT_ON_MEMORY_FLAG_GREATER_THAN_EQUAL
DMA_BUF: Final = 2  # ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF
ON_DEVICE: Final = 1  # ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_DEVICE
MAX_SIZE: Final = 1  # ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE
ACCESS: Final = {"none": 0, "rw": 1, "r": 2}  # ZE_MEMORY_ACCESS_ATTRIBUTE_…
FOREVER: Final = (1 << 64) - 1


def driver_version(number: int) -> str:
    """Format a driver's version as Intel does."""
    return f"{number >> 24}.{number >> 16 & 0xFF}.{number & 0xFFFF}"
