"""`PhysicalMemory` and `VirtualRange`: the object face of virtual memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, Self, final

from xpushare._array import SharedArray, array_over, span_of
from xpushare._elements import as_dtype, as_shape
from xpushare._errors import InvalidArgumentError
from xpushare._lifecycle import DeviceObject, Exportable, unpickles, use, why_unusable
from xpushare._native import BufferBase, Span
from xpushare.core import physical as core
from xpushare.core.memory import Range, slice_
from xpushare.core.physical import Held, Reserved

if TYPE_CHECKING:
    from xpushare._device import Context, DeviceLike

__all__ = ["PhysicalMemory", "VirtualRange", "physical_memory_over", "whole_range"]


@final
class PhysicalMemory(Exportable[Held]):
    """`nbytes` (whole granules) of physical memory on `device`: pages without an address, mapped by `VirtualRange.map`.

    With `enable_ipc=True`, `ipc.physical_memory.get` can export it. A mapping holds the pages, so this object may be
    closed while they are mapped. `ipc` has no verb to close an import: its last release does that.
    (urPhysicalMemCreate)

    Raises `InvalidArgumentError` for a size that is no multiple of `device.memory_granularity()`,
    `FeatureNotSupportedError`, `OutOfMemoryError` and `DeviceError`.
    """

    __slots__ = ("__weakref__", "_forks", "_held", "_implicit")

    _begins = "_hold"
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
        self._hold(core.create(nbytes, device, context, enable_ipc))

    def _hold(self, held: Held) -> None:
        self._held = held
        self._forks = held.pages.forks
        self._implicit = None

    @classmethod
    def _make(cls, held: Held) -> PhysicalMemory:
        self = object.__new__(cls)
        self._hold(held)
        return self

    @property
    def nbytes(self) -> int:
        return self._use().pages.nbytes

    @property
    def ipc_enabled(self) -> bool:
        """Whether it can be exported; True for imports."""
        return self._use().pages.ipc_enabled

    def close(self) -> None:
        """Give up this object's hold; mappings and exports keep the pages. Idempotent."""
        self._held = None
        self._implicit = None

    def statistics(self) -> dict[str, Any]:
        """Who shares these pages: their size, whether they are imported, and the live handles."""
        from xpushare.core.statistics import physical_statistics

        return physical_statistics(self._use())

    def __repr__(self) -> str:
        found = self._held
        why = why_unusable(found)
        if found is None or why:
            return f"<PhysicalMemory {why}>"
        how = "imported " if found.handle is not None else ""
        return f"<PhysicalMemory {how}{found.pages.nbytes} bytes on {found.device}>"

    def _reduce(self) -> tuple[Any, ...]:
        return _reopen, (bytes(self._handle_to_pickle(self._use(), core.get)),)


# For the other modules of the package.
physical_memory_over: Final[Callable[[Held], PhysicalMemory]] = attrgetter("_make")(PhysicalMemory)


@unpickles(PhysicalMemory)
def _reopen(handle: bytes) -> PhysicalMemory:
    return physical_memory_over(core.open_(handle))


@final
class VirtualRange(BufferBase, DeviceObject[Reserved]):
    """`nbytes` reserved addresses (whole granules), in which physical memory is mapped side by side.

    `address` asks for a certain place; if the range cannot be there, this raises `InvalidArgumentError` or
    `DeviceError`. The buffer protocol and `as_array` work on bytes that are mapped with access. While such a view
    lives, its bytes cannot be unmapped. (urVirtualMemReserve)
    """

    __slots__ = ("_forks", "_held")

    _begins = "__new__"
    _copy_advice = "it is the addresses. Map the PhysicalMemory in another range"
    _pickle_advice = "addresses belong to their process. Send the PhysicalMemory"

    def __new__(
        cls,
        nbytes: int,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        address: int | None = None,
    ) -> Self:
        self = BufferBase.__new__(cls)  # not bound to one memory: `_span` looks at what is mapped when it is asked
        self._held = reserved = core.reserve(nbytes, device, context, address)
        self._forks = reserved.forks
        return self

    def _piece(self) -> Range:
        """The whole range, in the form that operations on memory take."""
        found = self._use()
        allocation: Any = found
        return Range(allocation, 0, found.nbytes, found.device, found.context, False, None, None)

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
        core.map_(self._use(), use(pm), at, offset, nbytes, access)

    def unmap(self, at: int, nbytes: int) -> None:
        """Unmap whole mappings. Raises `InvalidArgumentError` for part of one, or while a view of these bytes lives.
        (urVirtualMemUnmap)
        """
        core.unmap(self._use(), at, nbytes)

    def set_access(self, at: int, nbytes: int, access: Literal["rw", "r", "none"]) -> None:
        """Change the access of whole mappings. (urVirtualMemSetAccess)"""
        core.set_access(self._use(), at, nbytes, access)

    def access(self, at: int) -> Literal["rw", "r", "none"]:
        """The access of the byte at `at`; "none" if nothing is mapped there. (urVirtualMemGetInfo)"""
        return core.access_of(self._use(), at)

    def mapped(self) -> list[tuple[int, int, str]]:
        """(at, nbytes, access) of every mapping, in order."""
        found = self._use()
        with found.lock:
            return [(each.at, each.nbytes, each.access) for each in found.mapped]

    def as_array(self, shape: int | tuple[int, ...], dtype: Any, offset: int = 0) -> SharedArray:
        """A C-ordered array over mapped bytes, from `offset` on; usable as long as they stay mapped."""
        found, lengths = as_dtype(dtype), as_shape(shape)
        # Over its own bytes only: the rest of the range need not be mapped, and is not pinned.
        piece = slice_(self._piece(), offset, math.prod(lengths) * found.itemsize)
        return array_over(piece, lengths, found)

    def _span(self) -> Span:
        return span_of(self._piece())

    @property
    def ptr(self) -> int:
        return self._use().address

    @property
    def nbytes(self) -> int:
        return self._use().nbytes

    def close(self) -> None:
        """Give up this object's hold; once no view is left, everything is unmapped and the addresses are given back.
        Idempotent.
        """
        self._held = None

    def __repr__(self) -> str:
        found = self._held
        if found is None:
            return "<VirtualRange closed>"
        mappings = len(found.mapped)
        return f"<VirtualRange {found.nbytes} bytes at {found.address:#x}, {mappings} mappings, on {found.device}>"


# For the other modules of the package.
whole_range: Final[Callable[[VirtualRange], Range]] = attrgetter("_piece")(VirtualRange)
