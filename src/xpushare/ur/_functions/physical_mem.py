"""Functions for physical memory."""

from __future__ import annotations

from typing import Any, Final

from xpushare.common.result import Result
from xpushare.objects.physical_memory import PhysicalMemory
from xpushare.ur._enums import PhysicalMemFlags, PhysicalMemInfo
from xpushare.ur._objects import Context, Device, PhysicalMem
from xpushare.ur._spec import Info, Size, function
from xpushare.ur._structs import PhysicalMemProperties

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
