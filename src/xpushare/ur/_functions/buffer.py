"""Functions for buffers: their creation and their parts, and commands on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypeVar

from xpushare._native import End
from xpushare.adapters.base import UsmKind
from xpushare.common.result import Result
from xpushare.core import event as core_event
from xpushare.core import memory as core_memory
from xpushare.core import queue as core_queue
from xpushare.core.memory import HostBytes, Range
from xpushare.core.queue import Work
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import memory_over
from xpushare.ur import _objects
from xpushare.ur._enums import BufferCreateType, Command, MapFlags, MemFlags, MemInfo
from xpushare.ur._error import URError
from xpushare.ur._functions.device import largest_allocation
from xpushare.ur._functions.enqueue import WAIT_LIST_OTHERS, WAIT_LIST_RULE, command, fill
from xpushare.ur._objects import Context, Event, Mapped, Mem, Queue
from xpushare.ur._spec import UNSUPPORTED_QUERY, Info, Pattern, Pointer, Rule, Size, WaitList, function, rule
from xpushare.ur._structs import BufferProperties, BufferRegion, RectOffset, RectRegion

# --- buffers ----------------------------------------------------------------------------------------------------------

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


# --- commands on buffers ----------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])
_Operand = tuple[Range, int, int]


def _part(buffer: Mem, offset: int, size: int) -> _Operand:
    if offset + size > buffer.nbytes:
        raise URError(f"bytes {offset} to {offset + size} do not lie in {buffer!r}", result=Result.ERROR_INVALID_SIZE)
    return buffer.piece, offset, size


def _ordinary(queue: Queue, address: int, size: int) -> _Operand:
    """Return the operand for `size` bytes at `address`, which may be USM memory or other memory of the process."""
    found = _objects.places.operand(address, size, queue.device.shared, queue.context.shared)
    return found, 0, size


def _copied(
    queue: Queue, kind: Command, events: tuple[Event, ...], target: _Operand, source: _Operand, blocking: bool
) -> Event:
    """Enqueue a command that copies `source` to `target`, and return its event. If `blocking`, wait until the copy is
    complete.
    """
    size = target[2]
    event = command(queue, kind, events, lambda work: core_queue.copy(work, target, source, size))
    if blocking:
        core_event.wait(use(event.shared), None, None)
    return event


_OTHERS: Final = ("INVALID_MEM_OBJECT", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES")


def _copies(number: int, too_large: str, *rules: Rule, operation: str = "Queue.copy") -> Callable[[F], F]:
    """Return a decorator that declares a function which enqueues a command on buffers. `number` is UR's number of the
    function. `too_large` is the documented condition for `ERROR_INVALID_SIZE`.
    """
    return function(
        number,
        "INVALID_QUEUE",
        "INVALID_EVENT",
        *WAIT_LIST_OTHERS,
        ("INVALID_SIZE", too_large),
        *_OTHERS,
        rules=rules,
        operations=(operation,),
        invalid=Result.ERROR_INVALID_MEM_OBJECT,
        makes="event",
    )


@_copies(20, "`offset + size` exceeds `hBuffer`", WAIT_LIST_RULE)
def urEnqueueMemBufferRead(
    hQueue: Queue,
    hBuffer: Mem,
    blockingRead: bool,
    offset: Size,
    size: Size,
    pDst: Pointer,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a copy of `size` bytes from a buffer to the address `pDst`. If `blockingRead` is true, wait until the
    copy is complete.
    """
    source = _part(hBuffer, offset, size)
    target = _ordinary(hQueue, pDst, size)
    return _copied(hQueue, Command.MEM_BUFFER_READ, phEventWaitList, target, source, blockingRead)


@_copies(21, "`offset + size` exceeds `hBuffer`", WAIT_LIST_RULE)
def urEnqueueMemBufferWrite(
    hQueue: Queue,
    hBuffer: Mem,
    blockingWrite: bool,
    offset: Size,
    size: Size,
    pSrc: Pointer,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a copy of `size` bytes from the address `pSrc` to a buffer. If `blockingWrite` is true, wait until the
    copy is complete.
    """
    target = _part(hBuffer, offset, size)
    source = _ordinary(hQueue, pSrc, size)
    return _copied(hQueue, Command.MEM_BUFFER_WRITE, phEventWaitList, target, source, blockingWrite)


@_copies(24, "`srcOffset + size` exceeds `hBufferSrc`, or `dstOffset + size` exceeds `hBufferDst`", WAIT_LIST_RULE)
def urEnqueueMemBufferCopy(
    hQueue: Queue,
    hBufferSrc: Mem,
    hBufferDst: Mem,
    srcOffset: Size,
    dstOffset: Size,
    size: Size,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a copy of `size` bytes from one buffer to another."""
    target, source = _part(hBufferDst, dstOffset, size), _part(hBufferSrc, srcOffset, size)
    return _copied(hQueue, Command.MEM_BUFFER_COPY, phEventWaitList, target, source, False)


@_copies(
    26,
    "`offset + size` exceeds `hBuffer`",
    rule("INVALID_SIZE", "len(pPattern) == 0 or size == 0", "`pPattern` is empty or `size` is 0"),
    rule("INVALID_SIZE", "len(pPattern) > size", "`pPattern` is longer than `size`"),
    rule("INVALID_SIZE", "len(pPattern) & (len(pPattern) - 1)", "the length of `pPattern` is not a power of two"),
    rule("INVALID_SIZE", "size % len(pPattern)", "`size` is not a multiple of the length of `pPattern`"),
    rule("INVALID_SIZE", "offset % len(pPattern)", "`offset` is not a multiple of the length of `pPattern`"),
    WAIT_LIST_RULE,
    operation="Queue.fill",
)
def urEnqueueMemBufferFill(
    hQueue: Queue, hBuffer: Mem, pPattern: Pattern, offset: Size, size: Size, phEventWaitList: WaitList
) -> Event:
    """Enqueue a command that fills `size` bytes of a buffer with repetitions of a pattern."""
    target = _part(hBuffer, offset, size)
    return command(
        hQueue, Command.MEM_BUFFER_FILL, phEventWaitList, lambda work: fill(work, hQueue, target, pPattern, size)
    )


# --- boxes of bytes ---------------------------------------------------------------------------------


class _Box:
    """A three-dimensional box of bytes in a buffer or in host memory. `begin` and `end` are its byte offsets there.
    `row` and `slice` are the distances between its rows and between its slices, in bytes.
    """

    def __init__(self, origin: RectOffset, region: RectRegion, row: int, slice_: int) -> None:
        self.region = region
        self.row = row or region.width
        self.slice = slice_ or self.row * region.height
        self.begin = origin.x + origin.y * self.row + origin.z * self.slice
        self.end = self.begin + (region.depth - 1) * self.slice + (region.height - 1) * self.row + region.width

    def pieces(self, other: _Box) -> Iterator[tuple[int, int, int]]:
        """Yield the contiguous pieces of a copy between this box and `other`, which has the same size. Each piece is
        its offset in this box, its offset in `other` and its number of bytes.
        """
        width, height, depth = self.region.width, self.region.height, self.region.depth
        if self.row == other.row == width:  # no gaps between the rows, and then none between the slices
            width, height = width * height, 1
            if self.slice == other.slice == width:
                width, depth = width * depth, 1
        for z in range(depth):
            for y in range(height):
                yield (
                    self.begin + z * self.slice + y * self.row,
                    other.begin + z * other.slice + y * other.row,
                    width,
                )


def _copied_box(
    queue: Queue,
    kind: Command,
    events: tuple[Event, ...],
    target: _Operand,
    to: _Box,
    source: _Operand,
    box: _Box,
    blocking: bool,
) -> Event:
    def submit(work: Work) -> None:
        for end, begin, size in to.pieces(box):
            core_queue.copy(work, (target[0], target[1] + end, size), (source[0], source[1] + begin, size), size)

    event = command(queue, kind, events, submit)
    if blocking:
        core_event.wait(use(event.shared), None, None)
    return event


def _box_rules(first: str, second: str) -> tuple[Rule, ...]:
    """Return the checks of the row and slice pitches of two boxes. `first` and `second` are the prefixes of the boxes'
    parameters, for example `src` for `srcRowPitch` and `srcSlicePitch`.
    """

    def row(name: str) -> str:
        return f"({name}RowPitch or region.width)"

    def too_short(name: str) -> Rule:
        return rule(
            "INVALID_SIZE",
            f"0 < {name}RowPitch < region.width",
            f"`{name}RowPitch` is less than `region.width` and not 0",
        )

    def slices(name: str) -> tuple[Rule, ...]:
        pitch = f"the row pitch (`{name}RowPitch`, or `region.width` if that is 0)"
        return (
            rule(
                "INVALID_SIZE",
                f"0 < {name}SlicePitch < region.height * {row(name)}",
                f"`{name}SlicePitch` is not 0 and is less than `region.height` times {pitch}",
            ),
            rule("INVALID_SIZE", f"{name}SlicePitch % {row(name)}", f"`{name}SlicePitch` is not a multiple of {pitch}"),
        )

    return (
        rule("INVALID_SIZE", "region.width == 0 or region.height == 0 or region.depth == 0", "`region` is empty"),
        too_short(first),
        too_short(second),
        *slices(first),
        *slices(second),
        WAIT_LIST_RULE,
    )


@_copies(22, "the box exceeds `hBuffer`", *_box_rules("buffer", "host"))
def urEnqueueMemBufferReadRect(
    hQueue: Queue,
    hBuffer: Mem,
    blockingRead: bool,
    bufferOrigin: RectOffset,
    hostOrigin: RectOffset,
    region: RectRegion,
    bufferRowPitch: Size,
    bufferSlicePitch: Size,
    hostRowPitch: Size,
    hostSlicePitch: Size,
    pDst: Pointer,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a copy of a three-dimensional box of bytes from a buffer to the address `pDst`. If `blockingRead` is
    true, wait until the copy is complete.
    """
    box = _Box(bufferOrigin, region, bufferRowPitch, bufferSlicePitch)
    to = _Box(hostOrigin, region, hostRowPitch, hostSlicePitch)
    source, target = _part(hBuffer, 0, box.end), _ordinary(hQueue, pDst, to.end)
    kind = Command.MEM_BUFFER_READ_RECT
    return _copied_box(hQueue, kind, phEventWaitList, target, to, source, box, blockingRead)


@_copies(23, "the box exceeds `hBuffer`", *_box_rules("buffer", "host"))
def urEnqueueMemBufferWriteRect(
    hQueue: Queue,
    hBuffer: Mem,
    blockingWrite: bool,
    bufferOrigin: RectOffset,
    hostOrigin: RectOffset,
    region: RectRegion,
    bufferRowPitch: Size,
    bufferSlicePitch: Size,
    hostRowPitch: Size,
    hostSlicePitch: Size,
    pSrc: Pointer,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a copy of a three-dimensional box of bytes from the address `pSrc` to a buffer. If `blockingWrite` is
    true, wait until the copy is complete.
    """
    to = _Box(bufferOrigin, region, bufferRowPitch, bufferSlicePitch)
    box = _Box(hostOrigin, region, hostRowPitch, hostSlicePitch)
    target, source = _part(hBuffer, 0, to.end), _ordinary(hQueue, pSrc, box.end)
    kind = Command.MEM_BUFFER_WRITE_RECT
    return _copied_box(hQueue, kind, phEventWaitList, target, to, source, box, blockingWrite)


@_copies(25, "a box exceeds its buffer", *_box_rules("src", "dst"))
def urEnqueueMemBufferCopyRect(
    hQueue: Queue,
    hBufferSrc: Mem,
    hBufferDst: Mem,
    srcOrigin: RectOffset,
    dstOrigin: RectOffset,
    region: RectRegion,
    srcRowPitch: Size,
    srcSlicePitch: Size,
    dstRowPitch: Size,
    dstSlicePitch: Size,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a copy of a three-dimensional box of bytes from one buffer to another."""
    box = _Box(srcOrigin, region, srcRowPitch, srcSlicePitch)
    to = _Box(dstOrigin, region, dstRowPitch, dstSlicePitch)
    target, source = _part(hBufferDst, 0, to.end), _part(hBufferSrc, 0, box.end)
    return _copied_box(hQueue, Command.MEM_BUFFER_COPY_RECT, phEventWaitList, target, to, source, box, False)


# --- mapped bytes -----------------------------------------------------------------------------------


@function(
    30,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    *WAIT_LIST_OTHERS,
    ("INVALID_SIZE", "`size` is 0, or `offset + size` exceeds `hBuffer`"),
    *_OTHERS,
    rules=(WAIT_LIST_RULE,),
    makes="event",
)
def urEnqueueMemBufferMap(
    hQueue: Queue,
    hBuffer: Mem,
    blockingMap: bool,
    mapFlags: Annotated[int, MapFlags],
    offset: Size,
    size: Size,
    phEventWaitList: WaitList,
) -> tuple[Event, Pointer]:
    """Enqueue a command that maps a part of a buffer, and return its event and the address of the mapped bytes. The
    program can access the bytes at that address once the command is complete.

    If the buffer is in host memory, the address points into the buffer itself. If the buffer is in device memory, the
    address points to a copy in host memory, and `urEnqueueMemUnmap` copies the bytes back if `mapFlags` contains a
    write flag.
    """
    if not size:
        raise URError("there are no bytes to map", result=Result.ERROR_INVALID_SIZE)
    piece, _, _ = part = _part(hBuffer, offset, size)
    staged: Range | None = None
    address = piece.address + offset
    if not piece.allocation.host_accessible:
        staged = core_memory.allocate("host", size, hQueue.device.shared, hQueue.context.shared)
        address = staged.address
    if staged is None or mapFlags & MapFlags.WRITE_INVALIDATE_REGION:
        event = command(hQueue, Command.MEM_BUFFER_MAP, phEventWaitList)
    else:
        event = _copied(hQueue, Command.MEM_BUFFER_MAP, phEventWaitList, (staged, 0, size), part, False)
    with _objects.places.lock:
        hBuffer.maps.setdefault(address, []).append(Mapped(offset, size, mapFlags, staged))
    if blockingMap:
        core_event.wait(use(event.shared), None, None)
    return event, address


@function(
    31,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    *WAIT_LIST_OTHERS,
    ("INVALID_MEM_OBJECT", "`pMappedPtr` is not the address of mapped bytes of `hMem`"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(WAIT_LIST_RULE,),
    makes="event",
)
def urEnqueueMemUnmap(hQueue: Queue, hMem: Mem, pMappedPtr: Pointer, phEventWaitList: WaitList) -> Event:
    """Enqueue a command that ends a mapping made by `urEnqueueMemBufferMap`. The program must not use the mapped
    address any more.
    """
    with _objects.places.lock:
        mapped = hMem.maps.get(pMappedPtr)
        if not mapped:
            raise URError(f"{pMappedPtr:#x} is not a mapped part of {hMem!r}", result=Result.ERROR_INVALID_MEM_OBJECT)
        found = mapped.pop()
        if not mapped:
            del hMem.maps[pMappedPtr]

    def still_mapped() -> None:
        with _objects.places.lock:
            hMem.maps.setdefault(pMappedPtr, []).append(found)

    with End(still_mapped):
        if found.staged is None or not found.flags & (MapFlags.WRITE | MapFlags.WRITE_INVALIDATE_REGION):
            return command(hQueue, Command.MEM_UNMAP, phEventWaitList)
        target, source = (hMem.piece, found.offset, found.nbytes), (found.staged, 0, found.nbytes)
        return _copied(hQueue, Command.MEM_UNMAP, phEventWaitList, target, source, False)
