"""`PhysicalMemory` and `VirtualRange`: the object face of virtual memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, final

from xpushare._native import BufferBase, Span
from xpushare.common.elements import as_dtype, as_shape
from xpushare.common.errors import InvalidArgumentError
from xpushare.core import growth as growing
from xpushare.core import memory
from xpushare.core import physical as core
from xpushare.core.declare import closing, made, watchers
from xpushare.core.growth import Growth
from xpushare.core.memory import Range
from xpushare.core.physical import Held, Reserved
from xpushare.objects.array import SharedArray, array_over, span_of
from xpushare.objects.event import Event, event_over
from xpushare.objects.lifecycle import DeviceObject, Exportable, unpickles, use, why_unusable

if TYPE_CHECKING:
    from xpushare._device import Context, DeviceLike

__all__ = ["PhysicalMemory", "VirtualRange", "growth_of", "physical_memory_over", "range_over", "whole_range"]


@final
class PhysicalMemory(Exportable[Held]):
    """`nbytes` (whole granules) of physical memory on `device`: pages without an address, mapped by `VirtualRange.map`.

    With `enable_ipc=True`, `ipc.physical_memory.get` can export it. A mapping holds the pages, so this object may be
    closed while they are mapped. `ipc` has no verb to close an import: its last release does that.
    (urPhysicalMemCreate)

    Raises `InvalidArgumentError` for a size that is no multiple of `device.memory_granularity()`,
    `FeatureNotSupportedError`, `OutOfMemoryError` and `DeviceError`.
    """

    __slots__ = ("__weakref__", "forks", "held", "pickled")

    _kind = "physical_memory"
    _copy_advice = "it is the memory. Open its handle for another object over the same pages"

    def __init__(
        self,
        nbytes: int,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        enable_ipc: bool = False,
    ) -> None:
        _hold(self, core.create(nbytes, device, context, enable_ipc))

    @property
    def nbytes(self) -> int:
        return use(self).pages.nbytes

    @property
    def ipc_enabled(self) -> bool:
        """Whether it can be exported; True for imports."""
        return use(self).pages.ipc_enabled

    def close(self) -> None:
        """Give up this object's hold; mappings and exports keep the pages. Idempotent."""
        if watchers:
            closing(self)
        self.held = None
        self.pickled = None

    def statistics(self) -> dict[str, Any]:
        """Who shares these pages: their size, whether they are imported, and the live handles."""
        from xpushare.core.statistics import physical_statistics

        return physical_statistics(use(self))

    def __repr__(self) -> str:
        found = self.held
        why = why_unusable(found)
        if found is None or why:
            return f"<PhysicalMemory {why}>"
        how = "imported " if found.handle is not None else ""
        return f"<PhysicalMemory {how}{found.pages.nbytes} bytes on {found.device}>"

    def _reduce(self) -> tuple[Any, ...]:
        return _reopen, (bytes(self._handle_to_pickle(use(self), core.get)),)


def _hold(thing: PhysicalMemory, held: Held) -> None:
    thing.held = held
    thing.forks = held.pages.forks
    thing.pickled = None
    if watchers:
        made(thing)


def physical_memory_over(held: Held) -> PhysicalMemory:
    """Make the `PhysicalMemory` of what was made or opened."""
    self = object.__new__(PhysicalMemory)
    _hold(self, held)
    return self


@unpickles(PhysicalMemory)
def _reopen(handle: bytes) -> PhysicalMemory:
    return physical_memory_over(core.open_(handle))


@final
class VirtualRange(BufferBase, DeviceObject[Reserved]):
    """`nbytes` reserved addresses (whole granules), in which physical memory is mapped side by side.

    `address` asks for a certain place; if the range cannot be there, this raises `InvalidArgumentError` or
    `DeviceError`. The buffer protocol and `as_array` work on bytes that are mapped with access. While such a view
    lives, its bytes cannot be unmapped. (urVirtualMemReserve)

    With `growable=True` the range maps its own memory: `grow` adds bytes at the end, `shrink` takes them away, and
    `nbytes` is its length now, 0 at first, of at most the `nbytes` given here. `xs.share` makes a handle of it, and
    `xs.attach` a follower: a range with the same bytes, at one address for its life, which `refresh` brings up to date.
    """

    __slots__ = ("forks", "growth", "held")

    growth: Growth | None

    _copy_advice = "it is the addresses. Map the PhysicalMemory in another range"
    _pickle_advice = "addresses belong to their process. Send the PhysicalMemory"

    def __new__(
        cls,
        nbytes: int,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        address: int | None = None,
        growable: bool = False,
    ) -> VirtualRange:
        reserved = core.reserve(nbytes, device, context, address)
        return range_over(reserved, growing.start(reserved) if growable else None)

    def map(
        self,
        pm: PhysicalMemory,
        at: int = 0,
        *,
        offset: int = 0,
        nbytes: int | None = None,
        access: Literal["rw", "r", "none"] = "rw",
    ) -> None:
        """Map `nbytes` (default: all) of `pm`, beginning at its byte `offset`, at byte `at` of the range, with
        `access`.

        All numbers are multiples of the granularity. Raises `InvalidArgumentError` also if the place is mapped already,
        and for part of an object if the device lacks `partial_map`. The mapping holds the pages. (urVirtualMemMap)
        """
        if not isinstance(pm, PhysicalMemory):
            raise InvalidArgumentError(f"map takes a PhysicalMemory, not {type(pm).__name__}")
        core.map_(self._mapped_by_hand(), use(pm), at, offset, nbytes, access)

    def unmap(self, at: int, nbytes: int) -> None:
        """Unmap whole mappings. Raises `InvalidArgumentError` for part of one, or while a view of these bytes lives.
        (urVirtualMemUnmap)
        """
        core.unmap(self._mapped_by_hand(), at, nbytes)

    def set_access(self, at: int, nbytes: int, access: Literal["rw", "r", "none"]) -> None:
        """Change the access of whole mappings. (urVirtualMemSetAccess)"""
        core.set_access(self._mapped_by_hand(), at, nbytes, access)

    def _mapped_by_hand(self) -> Reserved:
        if self.growth is not None:
            raise InvalidArgumentError("this range maps its own memory: grow and shrink it, or refresh a follower")
        return use(self)

    def grow(self, nbytes: int) -> None:
        """Make the range longer by `nbytes`, whose content is unspecified. Whole granules are mapped, of which the next
        `grow` uses what is left. Followers see the new bytes once they `refresh`.

        Raises `InvalidArgumentError` beyond the addresses that were reserved, and for a follower. What fails changes
        nothing. (urVirtualMemMap)
        """
        growing.grow(*growth_of(self), nbytes)

    def shrink(self, nbytes: int) -> None:
        """Make the range shorter by `nbytes`. Whole pieces of memory beyond its end go, once this process's queue
        operations on them have finished; followers keep them until they `refresh`.

        Raises `InvalidArgumentError` while a view reaches such a piece, for more bytes than there are, and for a
        follower. (urVirtualMemUnmap)
        """
        growing.shrink(*growth_of(self), nbytes)

    def refresh(self) -> None:
        """Follow the range that this one was attached to: map what came since, unmap what went, once the queue
        operations of this process that use it have finished.

        Raises `InvalidArgumentError` while a view reaches what went, and what `ipc.physical_memory.open` raises; what
        was mapped before stays.
        """
        growing.refresh(*growth_of(self))

    @property
    def changed(self) -> Event:
        """The event that is signalled at each `grow` and `shrink`: read its `pending`, `refresh`, and wait for
        `pending + 1`.
        """
        return event_over(growth_of(self)[1].changed)

    def access(self, at: int) -> Literal["rw", "r", "none"]:
        """The access of the byte at `at`; "none" if nothing is mapped there. (urVirtualMemGetInfo)"""
        return core.access_of(use(self), at)

    def mapped(self) -> list[tuple[int, int, str]]:
        """(at, nbytes, access) of every mapping, in order."""
        found = use(self)
        with found.lock:
            return [(each.at, each.nbytes, each.access) for each in found.mapped]

    def as_array(self, shape: int | tuple[int, ...], dtype: Any, offset: int = 0) -> SharedArray:
        """A C-ordered array over mapped bytes, from `offset` on; usable as long as they stay mapped."""
        found, lengths = as_dtype(dtype), as_shape(shape)
        # Over its own bytes only: the rest of the range need not be mapped, and is not pinned.
        piece = memory.slice_(whole_range(self), offset, math.prod(lengths) * found.itemsize)
        return array_over(piece, lengths, found)

    def _span(self) -> Span:
        return span_of(whole_range(self))

    @property
    def ptr(self) -> int:
        return use(self).address

    @property
    def nbytes(self) -> int:
        """The addresses reserved; of a range that grows, or follows one, its length now."""
        found = use(self)
        return found.nbytes if self.growth is None else self.growth.nbytes

    def close(self) -> None:
        """Give up this object's hold; once no view is left, everything is unmapped and the addresses are given back. A
        handle of a growable range keeps its memory. Idempotent.
        """
        if watchers:
            closing(self)
        self.held = None
        self.growth = None

    def __repr__(self) -> str:
        found = self.held
        if found is None:
            return "<VirtualRange closed>"
        mappings = len(found.mapped)
        return f"<VirtualRange {found.nbytes} bytes at {found.address:#x}, {mappings} mappings, on {found.device}>"


# For the other modules of the package.
def range_over(reserved: Reserved, growth: Growth | None) -> VirtualRange:
    """Make the `VirtualRange` of reserved addresses."""
    self = BufferBase.__new__(VirtualRange)  # not bound to one memory: `_span` looks at what is mapped when it is asked
    self.held = reserved
    self.forks = reserved.forks
    self.growth = growth
    if watchers:
        made(self)
    return self


def whole_range(addresses: VirtualRange) -> Range:
    """Return the whole range, in the form that operations on memory take."""
    found = use(addresses)
    allocation: Any = found
    return Range(allocation, 0, found.nbytes, found.device, found.context, False, None, None)


def growth_of(addresses: VirtualRange) -> tuple[Reserved, Growth]:
    """Return the addresses and the growth of a growable range. Raises `InvalidArgumentError` for any other."""
    found = use(addresses)
    if addresses.growth is None:
        raise InvalidArgumentError("this range does not grow: VirtualRange(…, growable=True) does")
    return found, addresses.growth
