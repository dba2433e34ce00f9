"""`PhysicalMemory` and `VirtualRange`: the object face of virtual memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, final

from xpushare._errors import ForkError, InvalidArgumentError
from xpushare._native import BufferBase, Span, forks
from xpushare.core import physical as core
from xpushare.core.memory import FORK_ADVICE, Implicit, Range, slice_
from xpushare.core.physical import Held, Reserved

if TYPE_CHECKING:
    from xpushare._array import SharedArray
    from xpushare._device import Context, Device, DeviceLike
    from xpushare.sharing.handle import Handle

__all__ = ["PhysicalMemory", "VirtualRange"]


@final
class PhysicalMemory:
    """`nbytes` (whole granules) of physical memory on `device`: pages without an address, mapped by `VirtualRange.map`.

    With `enable_ipc=True`, `ipc.physical_memory.get` exports it. A mapping holds the pages: this object may be closed
    while mapped. There is no close verb in `ipc`: the last release of an import tears it down. (urPhysicalMemCreate)

    Raises `InvalidArgumentError` for a size that is no multiple of `device.memory_granularity()`,
    `FeatureNotSupportedError`,
    `OutOfMemoryError`, `DeviceError`.
    """

    __slots__ = ("__weakref__", "_held", "_implicit")

    _held: Held | None
    _implicit: Implicit | None

    def __init__(
        self,
        nbytes: int,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        enable_ipc: bool = False,
    ) -> None:
        self._implicit = None
        self._held = None
        self._held = core.create(nbytes, device, context, enable_ipc)

    @classmethod
    def _make(cls, held: Held) -> PhysicalMemory:
        self = object.__new__(cls)
        self._implicit = None
        self._held = held
        return self

    def _use(self) -> Held:
        found = self._held
        if found is None:
            raise InvalidArgumentError("this PhysicalMemory is closed")
        if found.pages._forks != forks():
            raise ForkError(f"this PhysicalMemory {FORK_ADVICE}")
        return found

    @property
    def nbytes(self) -> int:
        return self._use().pages.nbytes

    @property
    def device(self) -> Device:
        """The device it was made on; of an import, the one it was opened on."""
        return self._use().device

    @property
    def context(self) -> Context:
        return self._use().context

    @property
    def ipc_enabled(self) -> bool:
        """Whether it can be exported; True on imports."""
        return self._use().pages.ipc_enabled

    @property
    def is_imported(self) -> bool:
        return self._use().handle is not None

    @property
    def handle(self) -> Handle:
        """The handle that an import was opened from."""
        found = self._use().handle
        if found is None:
            raise InvalidArgumentError(
                "this PhysicalMemory is not imported: xs.ipc.physical_memory.get(it) makes a handle"
            )
        return found

    @property
    def closed(self) -> bool:
        return self._held is None

    def close(self) -> None:
        """Give up this object's hold; mappings and exports keep the pages. Idempotent."""
        self._held = None
        self._implicit = None

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def statistics(self) -> dict[str, Any]:
        """Who shares these pages: size, whether imported, live handles."""
        from xpushare.core.statistics import physical_statistics

        return physical_statistics(self._use())

    def __repr__(self) -> str:
        if self._held is None:
            return "<PhysicalMemory closed>"
        how = "imported " if self._held.handle is not None else ""
        return f"<PhysicalMemory {how}{self._held.pages.nbytes} bytes on {self._held.device}>"

    def __reduce__(self) -> tuple[Any, ...]:
        found = self._use()
        if found.handle is not None:
            return _reopen, (bytes(found.handle),)
        with Implicit.lock:
            if self._implicit is None:
                self._implicit = Implicit(core.get(found, implicit=True))
        return _reopen, (bytes(self._implicit.handle),)

    def __copy__(self) -> NoReturn:
        raise TypeError(
            "PhysicalMemory cannot be copied: it is the memory. Open its handle for another object over the same pages"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()


def _reopen(handle: bytes) -> PhysicalMemory:
    return PhysicalMemory._make(core.open_(handle))


@final
class VirtualRange(BufferBase):
    """Reserved addresses, `nbytes` of them (whole granules), in which physical memory is mapped side by side.

    `address` asks for a place; it is met or `InvalidArgumentError`/`DeviceError` is raised. The buffer protocol and
    `as_array` work over bytes that are mapped with access; while such a view lives, those bytes cannot be unmapped.
    (urVirtualMemReserve)
    """

    __slots__ = ("_reserved",)

    _reserved: Reserved | None

    def __new__(cls, *_args: object, **_options: object) -> Self:
        return BufferBase.__new__(cls)  # not bound to one memory: `_span` looks at what is mapped when it is asked

    def __init__(  # pyright: ignore[reportInconsistentConstructor]
        self,
        nbytes: int,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        address: int | None = None,
    ) -> None:
        self._reserved = None
        self._reserved = core.reserve(nbytes, device, context, address)

    def _use(self) -> Reserved:
        found = self._reserved
        if found is None:
            raise InvalidArgumentError("this VirtualRange is closed")
        if found._forks != forks():
            raise ForkError(f"this VirtualRange {FORK_ADVICE}")
        return found

    def _piece(self) -> Range:
        """The whole range as operations on memory take it."""
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
        """Map `nbytes` (default: all) of `pm` from `offset` on at byte `at` of the range, with `access`.

        All multiples of the granularity. `InvalidArgumentError` also for a place that is mapped already, and for part
        of an object where the device lacks `partial_map`. The mapping holds the pages. (urVirtualMemMap)
        """
        if not isinstance(pm, PhysicalMemory):
            raise InvalidArgumentError(f"map takes a PhysicalMemory, not {type(pm).__name__}")
        core.map_(self._use(), pm._use(), at, offset, nbytes, access)

    def unmap(self, at: int, nbytes: int) -> None:
        """Unmap whole mappings. `InvalidArgumentError` for part of one, or while a view of these bytes lives.
        (urVirtualMemUnmap)
        """
        core.unmap(self._use(), at, nbytes)

    def set_access(self, at: int, nbytes: int, access: Literal["rw", "r", "none"]) -> None:
        """Change the access of whole mappings. (urVirtualMemSetAccess)"""
        core.set_access(self._use(), at, nbytes, access)

    def access(self, at: int) -> Literal["rw", "r", "none"]:
        """Access of the byte at `at`; "none" where nothing is mapped. (urVirtualMemGetInfo)"""
        return core.access_of(self._use(), at)

    def mapped(self) -> list[tuple[int, int, str]]:
        """(at, nbytes, access) of every mapping, in order."""
        found = self._use()
        with found.lock:
            return [(each.at, each.nbytes, each.access) for each in found.mapped]

    def as_array(self, shape: int | tuple[int, ...], dtype: Any, offset: int = 0) -> SharedArray:
        """A C-ordered array over mapped bytes, from `offset` on; usable as long as they stay mapped."""
        from xpushare._array import SharedArray, as_dtype, as_shape

        found, lengths = as_dtype(dtype), as_shape(shape)
        # Over its own bytes only: the rest of the range need not be mapped, and is not pinned.
        piece = slice_(self._piece(), offset, math.prod(lengths) * found.itemsize)
        return SharedArray._over(piece, lengths, found)

    def _span(self) -> Span:
        piece = self._piece()
        if not piece.allocation.host_accessible:
            raise BufferError(f"memory of {piece.device} is not host-accessible: use as_array and from_dlpack")
        owner, read_only = piece.hold()
        return Span(piece.address, piece.nbytes, read_only, owner)

    @property
    def ptr(self) -> int:
        return self._use().address

    @property
    def nbytes(self) -> int:
        return self._use().nbytes

    @property
    def device(self) -> Device:
        return self._use().device

    @property
    def context(self) -> Context:
        return self._use().context

    @property
    def closed(self) -> bool:
        return self._reserved is None

    def close(self) -> None:
        """Give up this object's hold; everything is unmapped and the addresses given back once no view is left.
        Idempotent.
        """
        self._reserved = None

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._reserved is None:
            return "<VirtualRange closed>"
        found = self._reserved
        mappings = len(found.mapped)
        return f"<VirtualRange {found.nbytes} bytes at {found.address:#x}, {mappings} mappings, on {found.device}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a VirtualRange cannot be pickled: addresses belong to their process. Send the PhysicalMemory")
