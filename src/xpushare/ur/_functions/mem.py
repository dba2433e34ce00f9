"""Functions for buffers."""

from __future__ import annotations

from typing import Annotated, Any, Final

from xpushare.adapters.base import UsmKind
from xpushare.common.result import Result
from xpushare.core import memory as core_memory
from xpushare.core import queue as core_queue
from xpushare.core.memory import HostBytes, Range
from xpushare.objects.memory import memory_over
from xpushare.ur import _objects
from xpushare.ur._enums import BufferCreateType, MemFlags, MemInfo
from xpushare.ur._error import URError
from xpushare.ur._functions.device import largest_allocation
from xpushare.ur._objects import Context, Mem
from xpushare.ur._spec import UNSUPPORTED_QUERY, Info, Size, function, rule
from xpushare.ur._structs import BufferProperties, BufferRegion

_ACCESS: Final = MemFlags.READ_WRITE | MemFlags.READ_ONLY | MemFlags.WRITE_ONLY
_REFUSED: Final[dict[int, int]] = {
    MemFlags.READ_ONLY: MemFlags.READ_WRITE | MemFlags.WRITE_ONLY,
    MemFlags.WRITE_ONLY: MemFlags.READ_WRITE | MemFlags.READ_ONLY,
}
"""Maps flags of a buffer to the flags that a part of the buffer must not have."""
_HOST: Final = MemFlags.USE_HOST_POINTER | MemFlags.ALLOC_COPY_HOST_POINTER
_WITH_POINTER: Final = "flags & (MemFlags.USE_HOST_POINTER | MemFlags.ALLOC_COPY_HOST_POINTER)"

_MEM: Final = Info(
    MemInfo,
    {"size": "SIZE", "handle:context": "CONTEXT", "uint32": "REFERENCE_COUNT"},
    answers={
        MemInfo.SIZE: lambda buffer: buffer.nbytes,
        MemInfo.CONTEXT: lambda buffer: buffer.context,
        MemInfo.REFERENCE_COUNT: lambda buffer: buffer.references,
    },
    changing="REFERENCE_COUNT",
)


def _allocate(context: Context, flags: int, size: int) -> Range:
    """Allocate memory for a buffer. It is host memory if `flags` contains `ALLOC_HOST_POINTER` or if the context has
    several devices. Otherwise it is device memory.
    """
    for device in context.devices:
        if size > largest_allocation(device):
            raise URError(f"{device!r} does not have {size} bytes", result=Result.ERROR_INVALID_BUFFER_SIZE)
    first, *others = context.devices
    kind: UsmKind = "host" if flags & MemFlags.ALLOC_HOST_POINTER or others else "device"
    return core_memory.allocate(kind, size, first.shared, context.shared)


@function(
    64,
    "INVALID_CONTEXT",
    ("INVALID_BUFFER_SIZE", "`size` exceeds the memory of a device of `hContext`"),
    ("INVALID_HOST_PTR", "this process does not have `size` bytes at `pProperties.pHost`"),
    "INVALID_VALUE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(
        rule("INVALID_BUFFER_SIZE", "size == 0", "`size` is 0"),
        rule(
            "INVALID_HOST_PTR",
            f"{_WITH_POINTER} and (pProperties is None or not pProperties.pHost)",
            "`flags` has `USE_HOST_POINTER` or `ALLOC_COPY_HOST_POINTER`, and there is no `pProperties.pHost`",
        ),
        rule(
            "INVALID_HOST_PTR",
            f"not {_WITH_POINTER} and pProperties is not None and pProperties.pHost",
            "`flags` has neither, and there is a `pProperties.pHost`",
        ),
    ),
    operations=("malloc",),
    makes="mem",
)
def urMemBufferCreate(
    hContext: Context, flags: Annotated[int, MemFlags], size: Size, pProperties: BufferProperties | None
) -> Mem:
    """Create a buffer. Commands access its bytes by the buffer's handle and an offset.

    With `USE_HOST_POINTER`, the buffer is the program's own memory at `pProperties.pHost`. Otherwise new memory is
    allocated for the buffer. It is host memory if `flags` contains `ALLOC_HOST_POINTER` or if the context has several
    devices, and device memory in all other cases. With `ALLOC_COPY_HOST_POINTER`, the bytes at `pProperties.pHost` are
    copied into the new buffer.
    """
    device = hContext.devices[0].shared
    given: Range | None = None
    if flags & _HOST and pProperties is not None:
        try:
            given = _objects.places.operand(pProperties.pHost, size, device, hContext.shared)
        except URError as error:
            raise URError(error.message, result=Result.ERROR_INVALID_HOST_PTR) from None
        if flags & MemFlags.USE_HOST_POINTER:
            return Mem.make(hContext, given.replace(nbytes=size), size, flags, False)
    memory = memory_over(found := _allocate(hContext, flags, size))
    if given is not None:
        work = core_queue.create(device, hContext.shared)
        core_queue.copy(work, (found, 0, size), (given, 0, size), size)
        core_queue.synchronize(work, None)
    return Mem.make(hContext, memory, size, flags, False)


@function(65, "INVALID_MEM_OBJECT", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES", makes="mem")
def urMemRetain(hMem: Mem) -> None:
    """Add a reference to a buffer."""
    hMem.retain()


@function(66, "INVALID_MEM_OBJECT", "OUT_OF_HOST_MEMORY", ends="mem")
def urMemRelease(hMem: Mem) -> None:
    """Release a reference to a buffer. After the last release, the buffer's memory is freed once the commands that use
    it have finished.
    """
    hMem.release()


@function(
    67,
    ("INVALID_MEM_OBJECT", "`hBuffer` is itself a part of a buffer"),
    "OBJECT_ALLOCATION_FAILURE",
    (
        "INVALID_VALUE",
        (
            "`flags` has `USE_HOST_POINTER`, `ALLOC_HOST_POINTER` or `ALLOC_COPY_HOST_POINTER`, or permits an access "
            "that `hBuffer` does not"
        ),
    ),
    ("INVALID_BUFFER_SIZE", "`pRegion` exceeds `hBuffer`"),
    "INVALID_HOST_PTR",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(rule("INVALID_BUFFER_SIZE", "pRegion.size == 0", "`pRegion.size` is 0"),),
    makes="mem",
)
def urMemBufferPartition(
    hBuffer: Mem, flags: Annotated[int, MemFlags], bufferCreateType: BufferCreateType, pRegion: BufferRegion
) -> Mem:
    """Create a buffer that covers a part of another buffer. The two buffers share these bytes. The memory stays
    allocated as long as either buffer exists.
    """
    if hBuffer.is_part:
        raise URError(f"{hBuffer!r} is a part of a buffer", result=Result.ERROR_INVALID_MEM_OBJECT)
    if flags & (_HOST | MemFlags.ALLOC_HOST_POINTER):
        raise URError(f"{MemFlags(flags)!r} of a part of a buffer", result=Result.ERROR_INVALID_VALUE)
    if flags & _REFUSED.get(hBuffer.flags & _ACCESS, 0):
        raise URError(
            f"{MemFlags(flags)!r} of a part of {hBuffer!r}, which is {MemFlags(hBuffer.flags & _ACCESS)!r}",
            result=Result.ERROR_INVALID_VALUE,
        )
    if pRegion.origin + pRegion.size > hBuffer.nbytes:
        raise URError(
            f"bytes {pRegion.origin} to {pRegion.origin + pRegion.size} do not lie in {hBuffer!r}",
            result=Result.ERROR_INVALID_BUFFER_SIZE,
        )
    whole = hBuffer.piece
    part = whole.replace(offset=whole.offset + pRegion.origin, nbytes=pRegion.size)
    own = not isinstance(part.allocation, HostBytes)
    access = flags & _ACCESS or hBuffer.flags & _ACCESS
    return Mem.make(hBuffer.context, memory_over(part) if own else part, pRegion.size, access, True)


@function(70, UNSUPPORTED_QUERY, "INVALID_MEM_OBJECT", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY")
def urMemGetInfo(hMemory: Mem, propName: MemInfo) -> Any:
    """Return the property `propName` of a buffer."""
    return _MEM.answer(propName, hMemory)
