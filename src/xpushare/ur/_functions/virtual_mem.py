"""Functions for physical memory, and for virtual memory: reserving addresses and mapping physical memory there."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from xpushare.adapters.base import Access
from xpushare.common.aspects import Aspect
from xpushare.common.errors import DeviceError, InvalidArgumentError, OutOfMemoryError
from xpushare.common.result import Result
from xpushare.core import memory as core_memory
from xpushare.core import physical as core_physical
from xpushare.core.device import require
from xpushare.objects.lifecycle import use
from xpushare.objects.physical_memory import PhysicalMemory, VirtualRange
from xpushare.ur import _objects
from xpushare.ur._enums import (
    PhysicalMemFlags,
    PhysicalMemInfo,
    VirtualMemAccessFlags,
    VirtualMemGranularityInfo,
    VirtualMemInfo,
)
from xpushare.ur._error import URError
from xpushare.ur._objects import Context, Device, PhysicalMem
from xpushare.ur._spec import UNSUPPORTED_QUERY, Info, NullablePointer, Pointer, Size, function
from xpushare.ur._structs import PhysicalMemProperties

# --- physical memory --------------------------------------------------------------------------------------------------

_PHYSICAL_MEM: Final = Info(
    PhysicalMemInfo,
    {
        "handle:context": "CONTEXT",
        "handle:device": "DEVICE",
        "size": "SIZE",
        "struct:PhysicalMemProperties": "PROPERTIES",
        "uint32": "REFERENCE_COUNT",
    },
    answers={
        PhysicalMemInfo.CONTEXT: lambda memory: memory.context,
        PhysicalMemInfo.DEVICE: lambda memory: memory.device,
        PhysicalMemInfo.SIZE: lambda memory: memory.shared.nbytes,
        PhysicalMemInfo.PROPERTIES: lambda memory: PhysicalMemProperties(
            PhysicalMemFlags.ENABLE_IPC if memory.shared.ipc_enabled else PhysicalMemFlags(0)
        ),
        PhysicalMemInfo.REFERENCE_COUNT: lambda memory: memory.references,
    },
    changing="REFERENCE_COUNT",
)


@function(
    160,
    ("INVALID_SIZE", "`size` is not a multiple of `VirtualMemGranularityInfo.MINIMUM`"),
    ("OUT_OF_HOST_MEMORY", "there is no memory of `size` bytes"),
    operations=("PhysicalMemory",),
    invalid=Result.ERROR_INVALID_SIZE,
    makes="physical_mem",
    python="`xs.PhysicalMemory(nbytes, device, context=…, enable_ipc=…)`",
)
def urPhysicalMemCreate(
    hContext: Context, hDevice: Device, size: Size, pProperties: PhysicalMemProperties | None
) -> PhysicalMem:
    """Create physical memory, which `urVirtualMemMap` can map to virtual addresses."""
    enable_ipc = pProperties is not None and bool(pProperties.flags & PhysicalMemFlags.ENABLE_IPC)
    memory = PhysicalMemory(size, hDevice.shared, context=hContext.shared, enable_ipc=enable_ipc)
    return PhysicalMem.make(hContext, hDevice, memory)


@function(161, makes="physical_mem")
def urPhysicalMemRetain(hPhysicalMem: PhysicalMem) -> None:
    """Add a reference to physical memory."""
    hPhysicalMem.retain()


@function(162, ends="physical_mem", python="`physical.close()`")
def urPhysicalMemRelease(hPhysicalMem: PhysicalMem) -> None:
    """Release a reference to physical memory."""
    hPhysicalMem.release()


@function(249, python="`physical.nbytes`, `physical.device`, `physical.ipc_enabled`")
def urPhysicalMemGetInfo(hPhysicalMem: PhysicalMem, propName: PhysicalMemInfo) -> Any:
    """Return the property `propName` of physical memory."""
    return _PHYSICAL_MEM.answer(propName, hPhysicalMem)


# --- virtual memory ---------------------------------------------------------------------------------------------------

Info(
    VirtualMemGranularityInfo,
    {"size": "MINIMUM RECOMMENDED"},
)

Info(
    VirtualMemInfo,
    {"flags:VirtualMemAccessFlags": "ACCESS_MODE"},
)


@function(
    153,
    UNSUPPORTED_QUERY,
    "INVALID_DEVICE",
    "INVALID_CONTEXT",
    "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
    python="`device.memory_granularity(recommended)`",
)
def urVirtualMemGranularityGetInfo(
    hContext: Context, hDevice: Device | None, allocationSize: Size, propName: VirtualMemGranularityInfo
) -> int:
    """Return the granularity of virtual and physical memory. Sizes and addresses must be multiples of the granularity.
    If `hDevice` is `None`, the granularity is valid for all devices of the context.
    """
    recommended = propName is VirtualMemGranularityInfo.RECOMMENDED
    devices = hContext.devices if hDevice is None else (hDevice,)
    for each in devices:
        require(each.shared, Aspect.ext_oneapi_virtual_mem)
    return math.lcm(*(each.shared.memory_granularity(recommended) for each in devices))


@function(
    154,
    ("OUT_OF_HOST_MEMORY", "no range of `size` bytes is free"),
    operations=("VirtualRange",),
    invalid=Result.ERROR_INVALID_VALUE,
    makes="reserved range",
    python="`xs.VirtualRange(nbytes, device, context=…, address=…)`",
)
def urVirtualMemReserve(hContext: Context, pStart: NullablePointer, size: Size) -> Pointer:
    """Reserve a range of virtual addresses, and return the first address. The range begins at `pStart` if the addresses
    there are free. Otherwise, or if `pStart` is null, it can begin anywhere.
    """
    context = hContext.shared
    try:
        found = VirtualRange(size, context=context, address=pStart or None)
    except (DeviceError, InvalidArgumentError, OutOfMemoryError):
        if not pStart or pStart % context.devices[0].memory_granularity():
            raise
        found = VirtualRange(size, context=context)  # a hint that cannot be met is only a hint
    places = _objects.places
    with places.lock:
        places.ranges[found.ptr] = found
        places.add(use(found))
    return found.ptr


def _range_of(context: Context, start: int) -> tuple[VirtualRange, int]:
    """Return the reserved range that contains the address `start`, and the offset of `start` in the range."""
    found = _objects.places.range_at(start)
    if found.context is not context.shared:
        raise URError(f"{start:#x} was not reserved in {context!r}", result=Result.ERROR_INVALID_CONTEXT)
    return found, start - found.ptr


@function(155, ends="reserved range", python="`range.close()`")
def urVirtualMemFree(hContext: Context, pStart: Pointer, size: Size) -> None:
    """Free a range of virtual addresses that `urVirtualMemReserve` reserved. No memory may be mapped in the range."""
    places = _objects.places
    with places.lock:
        found, at = _range_of(hContext, pStart)
        if at or size != found.nbytes:
            raise URError(
                f"{size} bytes at {pStart:#x} are not a whole reserved range: that is {found!r}",
                result=Result.ERROR_INVALID_VALUE,
            )
        if found.mapped():
            raise URError(f"memory is mapped in {found!r}: unmap it first", result=Result.ERROR_INVALID_VALUE)
        del places.ranges[pStart]
        places.remove(use(found))
    found.close()


def _access(flags: int) -> Access:
    if flags & VirtualMemAccessFlags.READ_WRITE:
        return "rw"
    return "r" if flags & VirtualMemAccessFlags.READ_ONLY else "none"


_ACCESS_FLAGS: Final = {
    "rw": VirtualMemAccessFlags.READ_WRITE,
    "r": VirtualMemAccessFlags.READ_ONLY,
    "none": VirtualMemAccessFlags.NONE,
}


@function(
    156,
    operations=("VirtualRange.map",),
    invalid=Result.ERROR_INVALID_VALUE,
    python="`range.map(physical, at, offset=…, nbytes=…, access=…)`",
)
def urVirtualMemMap(
    hContext: Context,
    pStart: Pointer,
    size: Size,
    hPhysicalMem: PhysicalMem,
    offset: Size,
    flags: Annotated[int, VirtualMemAccessFlags],
) -> None:
    """Map physical memory to virtual addresses in a reserved range."""
    found, at = _range_of(hContext, pStart)
    core_physical.map_(use(found), use(hPhysicalMem.shared), at, offset, size, _access(flags))


@function(
    157, operations=("VirtualRange.unmap",), invalid=Result.ERROR_INVALID_VALUE, python="`range.unmap(at, nbytes)`"
)
def urVirtualMemUnmap(hContext: Context, pStart: Pointer, size: Size) -> None:
    """Unmap physical memory from a range of virtual addresses. The addresses stay reserved and can be mapped again."""
    found, at = _range_of(hContext, pStart)
    core_physical.unmap(use(found), at, size)


@function(
    158,
    operations=("VirtualRange.set_access",),
    invalid=Result.ERROR_INVALID_VALUE,
    python="`range.set_access(at, nbytes, access)`",
)
def urVirtualMemSetAccess(
    hContext: Context, pStart: Pointer, size: Size, flags: Annotated[int, VirtualMemAccessFlags]
) -> None:
    """Change the access permissions of a mapped range."""
    found, at = _range_of(hContext, pStart)
    core_physical.set_access(use(found), at, size, _access(flags))


@function(159, operations=("VirtualRange.access",), invalid=Result.ERROR_INVALID_VALUE, python="`range.access(at)`")
def urVirtualMemGetInfo(hContext: Context, pStart: Pointer, size: Size, propName: VirtualMemInfo) -> int:
    """Return the access permissions of a mapped range."""
    found, at = _range_of(hContext, pStart)
    core_memory.piece("the range", found.nbytes, at, size)
    return _ACCESS_FLAGS[core_physical.access_of(use(found), at)]
