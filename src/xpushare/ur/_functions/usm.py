"""USM memory: its allocations."""

from __future__ import annotations

from typing import Any, Final

from xpushare._lifecycle import use
from xpushare._memory import memory_over
from xpushare._result import Result
from xpushare.adapters.base import UsmKind
from xpushare.core import memory as core_memory
from xpushare.sharing import layout, node
from xpushare.ur import _objects
from xpushare.ur._enums import USMAllocInfo, USMType
from xpushare.ur._error import URError
from xpushare.ur._functions.device import LARGEST_TYPE, largest_allocation
from xpushare.ur._objects import Context, Device, device_of
from xpushare.ur._spec import Info, Pointer, Pool, Size, function, rule
from xpushare.ur._structs import USMDesc

_ALIGN_RULE = rule(
    "INVALID_VALUE",
    "pUSMDesc is not None and pUSMDesc.align & (pUSMDesc.align - 1)",
    "`pUSMDesc.align` is neither 0 nor a power of two",
)

_USM_SIZE_RULE = rule("INVALID_USM_SIZE", "size == 0", "`size` is 0")

_POOL_ERROR = (
    "UNSUPPORTED_FEATURE",
    "a device of `hContext` answers false to `DeviceInfo.USM_POOL_SUPPORT`",
)

_ALIGN_DEVICE_ERROR = ("INVALID_VALUE", "`pUSMDesc.align` exceeds the size of the largest data type of `hDevice`")

_SIZE_DEVICE_ERROR = ("INVALID_USM_SIZE", "`size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`")

_KINDS: Final = {"device": USMType.DEVICE, "host": USMType.HOST, "shared": USMType.SHARED}

_USM_ALLOC: Final = Info(
    USMAllocInfo,
    {
        "enum:USMType": "TYPE",
        "pointer": "BASE_PTR",
        "size": "SIZE",
        "handle:device": "DEVICE",
        "handle:usm_pool": "POOL",
    },
    answers={
        USMAllocInfo.TYPE: lambda found: _KINDS[found.allocation.kind],
        USMAllocInfo.BASE_PTR: lambda found: found.allocation.address,
        USMAllocInfo.SIZE: lambda found: found.allocation.nbytes,
        USMAllocInfo.DEVICE: lambda found: device_of(found.device),
    },
    optional="POOL",
)


def _allocate(kind: UsmKind, context: Context, device: Device, desc: USMDesc | None, size: int) -> int:
    if desc is not None and desc.align > LARGEST_TYPE:
        raise URError(
            f"`pUSMDesc.align` is {desc.align}, the largest data type has {LARGEST_TYPE} bytes",
            result=Result.ERROR_INVALID_VALUE,
        )
    if size > largest_allocation(device):
        raise URError(f"{device!r} does not have {size} bytes", result=Result.ERROR_INVALID_USM_SIZE)
    memory = memory_over(core_memory.allocate(kind, size, device.shared, context.shared))
    _objects.places.allocated[memory.ptr] = memory
    return memory.ptr


@function(
    107,
    "INVALID_CONTEXT",
    ("INVALID_OPERATION", "`DeviceInfo.USM_HOST_SUPPORT` is false"),
    (
        "INVALID_VALUE",
        "`pUSMDesc.align` exceeds the size of the largest data type of any device of `hContext`",
    ),
    ("INVALID_USM_SIZE", "`size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE` of any device of `hContext`"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    _POOL_ERROR,
    rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    operations=("malloc",),
    unsupported=Result.ERROR_INVALID_OPERATION,
    makes="USM memory",
    python="`xs.malloc_host(nbytes, device, context=…)`",
)
def urUSMHostAlloc(hContext: Context, pUSMDesc: USMDesc | None, pool: Pool, size: Size) -> Pointer:
    """Allocates host memory that devices reach."""
    return _allocate("host", hContext, hContext.devices[0], pUSMDesc, size)


@function(
    108,
    "INVALID_CONTEXT",
    ("INVALID_OPERATION", "`DeviceInfo.USM_HOST_SUPPORT` is false (so UR says; the device's support is meant)"),
    _ALIGN_DEVICE_ERROR,
    _SIZE_DEVICE_ERROR,
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    _POOL_ERROR,
    rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    operations=("malloc",),
    unsupported=Result.ERROR_INVALID_OPERATION,
    makes="USM memory",
    python="`xs.malloc_device(nbytes, device, context=…)`",
)
def urUSMDeviceAlloc(hContext: Context, hDevice: Device, pUSMDesc: USMDesc | None, pool: Pool, size: Size) -> Pointer:
    """Allocates memory of a device."""
    return _allocate("device", hContext, hDevice, pUSMDesc, size)


@function(
    109,
    "INVALID_CONTEXT",
    _ALIGN_DEVICE_ERROR,
    _SIZE_DEVICE_ERROR,
    (
        "INVALID_OPERATION",
        "`DeviceInfo.USM_SINGLE_SHARED_SUPPORT` and `DeviceInfo.USM_CROSS_SHARED_SUPPORT` are both false",
    ),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    _POOL_ERROR,
    rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    operations=("malloc",),
    unsupported=Result.ERROR_INVALID_OPERATION,
    makes="USM memory",
    python="`xs.malloc_shared(nbytes, device, context=…)`",
)
def urUSMSharedAlloc(hContext: Context, hDevice: Device, pUSMDesc: USMDesc | None, pool: Pool, size: Size) -> Pointer:
    """Allocates memory that host and device share."""
    return _allocate("shared", hContext, hDevice, pUSMDesc, size)


@function(110, "INVALID_MEM_OBJECT", "OUT_OF_HOST_MEMORY", ends="USM memory", python="`memory.close()`")
def urUSMFree(hContext: Context, pMem: Pointer) -> None:
    """Frees USM memory, after waiting for the commands that may use it."""
    places = _objects.places
    with places.lock:
        memory = places.allocated.get(pMem)
        if memory is None or memory.context is not hContext.shared:
            raise URError(
                f"{pMem:#x} was not allocated in {hContext!r} (opened memory is closed, not freed)",
                result=Result.ERROR_INVALID_MEM_OBJECT,
            )
        del places.allocated[pMem]
    table = node.current().table_if_any
    if table is not None:
        source = use(memory).allocation
        for export in table.exports():
            if export.source is source:
                table.withdraw(export.handle, layout.REASON_FREED)
    memory.close()


@function(
    111,
    "INVALID_CONTEXT",
    "INVALID_VALUE",
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    invalid=Result.ERROR_INVALID_VALUE,
    python="`memory.ptr`, `memory.nbytes`, `memory.device`",
)
def urUSMGetMemAllocInfo(hContext: Context, pMem: Pointer, propName: USMAllocInfo) -> Any:
    """Asks about the allocation that an address lies in."""
    try:
        found = _objects.places.find(pMem)
    except URError as error:
        if propName is USMAllocInfo.TYPE:
            return USMType.UNKNOWN
        raise URError(error.message, result=Result.ERROR_INVALID_VALUE) from None
    return _USM_ALLOC.answer(propName, found)
