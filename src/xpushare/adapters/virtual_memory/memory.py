"""Device memory of vendors that have `VirtualMemory`: this process's own memory, memory of other processes, and memory
of other libraries in this process.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, final

from xpushare.adapters.base import Access, DriverMemory, Export, Import
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.memory import ALLOCATION, HOST, OWN_NBYTES, SEGMENTS, HostMemory, described, read_head
from xpushare.adapters.virtual_memory.engine import Engine, VirtualMemory
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
)
from xpushare.common.fds import OwnedFd

__all__ = [
    "AllocationFd",
    "DeviceMemory",
    "Mapped",
    "OpenOwn",
    "SegmentedMemory",
    "import_all",
    "import_memory",
    "require_shareable",
    "with_room",
]

P = ParamSpec("P")
T = TypeVar("T")

# `VirtualMemoryAdapter.open_own` of a device.
OpenOwn = Callable[[int, str, Import, bytes], DriverMemory]
_RUN: Final = struct.Struct("<QI")  # segments of one size, one after the other: bytes each, how many
_RUNS_MAX: Final = OWN_NBYTES // _RUN.size
_TEARDOWN: Final = 5.0  # seconds that an allocation waits for teardowns when memory is short


class _Piece(NamedTuple):
    """One allocation of a mapping."""

    handle: Any
    nbytes: int
    location: int


class _Reserved:
    """A reserved range of addresses. The range is released once the last mapping in it is gone."""

    def __init__(self, device: VirtualMemory, address: int, nbytes: int, mappings: int = 1) -> None:
        self.device = device
        self.address = address
        self.nbytes = nbytes
        self._mappings = mappings
        self._lock = threading.Lock()

    def leave(self, doing: str) -> None:
        """Record that one mapping is gone. Called with the device current."""
        with self._lock:
            self._mappings -= 1
            last = not self._mappings
        if last:
            self.device.free(doing, self.address, self.nbytes)


def _map(engine: Engine, device: VirtualMemory, doing: str, pieces: Sequence[_Piece], access: Access) -> int:
    """Map allocations side by side, and return the address of the first one. Called with the device current. The caller
    still owns the allocations and releases them.

    If the driver supports it, one call sets the access to all allocations of a device, since each call is slow.
    """
    total = sum(piece.nbytes for piece in pieces)
    address = at = device.reserve(doing, total, 0)
    done = 0
    try:
        for piece in pieces:
            device.map(doing, at, piece.nbytes, piece.handle)
            at += piece.nbytes
            done += 1
        at = address
        for location, same in groupby(pieces, lambda piece: piece.location):
            sizes = [piece.nbytes for piece in same]
            for nbytes in [sum(sizes)] if device.one_access else sizes:
                engine.peer_access.grant(device, doing, at, nbytes, location, access)
                at += nbytes
    except BaseException:
        engine.peer_access.forget(address, total)
        at = address
        for piece in pieces[:done]:
            quietly(device.unmap, doing, at, piece.nbytes)
            at += piece.nbytes
        quietly(device.free, doing, address, total)
        raise
    return address


def _unmap(engine: Engine, place: _Reserved, address: int, sizes: Sequence[int]) -> None:
    """Unmap one mapping that `_map` made, once no work uses the mapping. Several mappings may share the reserved range
    `place`. Called with the device current.
    """
    device = place.device
    total = sum(sizes)
    doing = f"unmapping {total} bytes"
    engine.peer_access.forget(address, total)
    at = address
    for nbytes in sizes:
        device.unmap(doing, at, nbytes)
        at += nbytes
    place.leave(doing)


def require_shareable(device: VirtualMemory, doing: str) -> None:
    if lacking := device.lacking("shareable memory"):
        raise FeatureNotSupportedError(f"{doing}: {device} has no memory that other processes can map: {lacking}")


def _require_read_only(engine: Engine, device: VirtualMemory, doing: str) -> None:
    """Raise if the driver cannot map memory read-only for a device. The answer is determined by a test, which runs only
    once.
    """
    if device.ordinal not in engine.read_only:
        engine.read_only[device.ordinal] = _maps_read_only(engine, device)
    if not engine.read_only[device.ordinal]:
        raise FeatureNotSupportedError(f"{doing}: this driver does not map memory read-only on {device}")


def _maps_read_only(engine: Engine, device: VirtualMemory) -> bool:
    doing = "trying a read-only mapping"
    nbytes = device.granularity(False)
    with device.current():
        handle = device.create(doing, nbytes, True)
        try:
            address = _map(engine, device, doing, [_Piece(handle, nbytes, device.ordinal)], "r")
        except (DeviceError, FeatureNotSupportedError):
            return False
        finally:
            quietly(device.release, doing, handle)
        _unmap(engine, _Reserved(device, address, nbytes), address, [nbytes])
    return True


def with_room(engine: Engine, allocate: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call `allocate`. If there is not enough memory, wait for the pending teardowns, which may free some, and call it
    again.
    """
    try:
        return allocate(*arguments, **keywords)
    except OutOfMemoryError:
        if not engine.teardown.settle(_TEARDOWN):
            raise
        return allocate(*arguments, **keywords)


class Mapped(DriverMemory):
    """Memory that is released by calling the function `close`, once no work uses the memory."""

    host_accessible = False
    keepable = True
    descriptors = 0

    def __init__(
        self, engine: Engine, device: VirtualMemory, address: int, nbytes: int, close: Callable[..., object], *what: Any
    ) -> None:
        self._engine = engine
        self._device = device
        self._close = close, what
        self.address = address
        self.nbytes = nbytes

    def export(self, read_only: bool) -> Export:
        raise InvalidArgumentError("imported memory cannot be exported again")

    def release(self) -> None:
        close, what = self._close
        self._engine.teardown.submit(self._device, close, *what)


class AllocationFd:
    """The file descriptor of an allocation, created at the first export."""

    def __init__(self, fd: OwnedFd | None = None) -> None:
        self._lock = threading.Lock()
        self._fd = fd

    def export(self, device: VirtualMemory, nbytes: int, mapped: int, make: Callable[[], int]) -> Export:
        with self._lock:
            if self._fd is None:
                self._fd = OwnedFd(make())
            fds = (self._fd.number,)
        return described(ALLOCATION, nbytes, mapped, fds, own=device.origin, form=device.form)

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            fd.close()


class _Segments(NamedTuple):
    """A parsed export of another process: the size of each of its allocations, and the device that the memory belongs
    to.
    """

    what: Import
    sizes: Sequence[int]
    origin: bytes


def _expect_fds(doing: str, what: Import, sizes: Sequence[int]) -> None:
    if sum(sizes) != what.exposed_nbytes or len(what.fds) != len(sizes):
        raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")


def _imported(device: VirtualMemory, doing: str, fd: OwnedFd, nbytes: int, origin: bytes) -> _Piece:
    """Import the allocation behind a peer's file descriptor."""
    handle = device.import_fd(doing, fd.number, origin)
    try:
        return _Piece(handle, nbytes, device.location(doing, handle))
    except BaseException:
        quietly(device.release, doing, handle)
        raise


@final
class DeviceMemory(Mapped):
    """Adjacent mappings of allocations. The allocations belong to this process, or another process has exported
    them.
    """

    lasting_export = True
    reusable = True

    def __init__(
        self,
        engine: Engine,
        device: VirtualMemory,
        address: int,
        nbytes: int,
        sizes: Sequence[int],
        fd: OwnedFd | None = None,
        place: _Reserved | None = None,
    ) -> None:
        """Take over a mapping at `address`. `place` is the reserved range that contains the mapping, if other mappings
        share that range.
        """
        place = place or _Reserved(device, address, sum(sizes))
        super().__init__(engine, device, address, nbytes, _unmap, engine, place, address, sizes)
        self._mapped = sum(sizes)
        self._pieces = len(sizes)
        self._fd = AllocationFd(fd)
        self.descriptors = int(fd is not None)

    @classmethod
    def allocate(cls, engine: Engine, device: VirtualMemory, nbytes: int) -> DeviceMemory:
        doing = f"allocating {nbytes} bytes on {device}"
        require_shareable(device, doing)
        unit = device.granularity(False)
        mapped = (nbytes + unit - 1) // unit * unit
        with device.current():
            handle = with_room(engine, device.create, doing, mapped, True)
            try:
                address = _map(engine, device, doing, [_Piece(handle, mapped, device.ordinal)], "rw")
            finally:
                quietly(device.release, doing, handle)  # the mapping keeps the memory
        return cls(engine, device, address, nbytes, [mapped])

    @classmethod
    def imported(
        cls, engine: Engine, device: VirtualMemory, doing: str, what: Import, sizes: Sequence[int], origin: bytes = b""
    ) -> DeviceMemory:
        _expect_fds(doing, what, sizes)
        if what.read_only:
            _require_read_only(engine, device, doing)
        pieces: list[_Piece] = []
        kept: OwnedFd | None = None
        with device.current():
            try:
                for fd, nbytes in zip(what.fds, sizes, strict=True):
                    pieces.append(_imported(device, doing, fd, nbytes, origin))
                    if not what.again or len(sizes) > 1:
                        fd.close()  # the handle holds the memory; fds for all allocations would be too many
                address = _map(engine, device, doing, pieces, "r" if what.read_only else "rw")
                if what.again and len(sizes) == 1:
                    kept = OwnedFd(what.fds[0])  # drivers export no imports
            finally:
                for piece in pieces:
                    quietly(device.release, doing, piece.handle)
        return cls(engine, device, address, what.nbytes, sizes, kept)

    @classmethod
    def imported_all(cls, engine: Engine, device: VirtualMemory, found: Sequence[_Segments]) -> list[DeviceMemory]:
        """Map the memory of several exports, all with the same access. If one of the mappings fails, nothing stays
        mapped. The mappings share a reserved range, so that the access is set once.
        """
        total = sum(what.exposed_nbytes for what, _, _ in found)
        read_only = found[0].what.read_only
        doing = f"mapping {total} bytes of another process on {device}, in {len(found)} pieces"
        if read_only:
            _require_read_only(engine, device, doing)
        pieces: list[_Piece] = []
        with device.current():
            try:
                for what, sizes, origin in found:
                    _expect_fds(doing, what, sizes)
                    for fd, nbytes in zip(what.fds, sizes, strict=True):
                        pieces.append(_imported(device, doing, fd, nbytes, origin))
                        fd.close()  # the handle holds the memory
                at = _map(engine, device, doing, pieces, "r" if read_only else "rw")
            finally:
                for piece in pieces:
                    quietly(device.release, doing, piece.handle)
        place, made = _Reserved(device, at, total, len(found)), []
        for what, sizes, _ in found:
            made.append(cls(engine, device, at, what.nbytes, sizes, place=place))
            at += what.exposed_nbytes
        return made

    def export(self, read_only: bool) -> Export:
        if self._pieces > 1:
            raise FeatureNotSupportedError(
                f"{self._exporting}: it was imported, and covers several allocations: export it in the process that "
                "allocated it"
            )
        if read_only:
            _require_read_only(self._engine, self._device, self._exporting)
        return self._fd.export(self._device, self.nbytes, self._mapped, self._make_fd)

    @property
    def _exporting(self) -> str:
        return f"exporting {self.nbytes} bytes of {self._device}"

    def _make_fd(self) -> int:
        device, doing = self._device, self._exporting
        with device.current():
            handle = device.retain(doing, self.address)
            try:
                return device.export_fd(doing, handle)
            finally:
                quietly(device.release, doing, handle)

    def release(self) -> None:
        super().release()
        self._fd.close()


@final
class SegmentedMemory(DriverMemory):
    """Memory of another library in this process: one allocation, or several allocations that the library mapped side by
    side.

    From the first export on, this object keeps the allocations alive, even if the library unmaps them.
    """

    host_accessible = False

    def __init__(self, engine: Engine, device: VirtualMemory, address: int, sizes: Sequence[int]) -> None:
        self._engine = engine
        self._device = device
        self._sizes = tuple(sizes)
        self._handles: list[Any] = []
        self._lock = threading.Lock()
        self._fd = AllocationFd()
        self.address = address
        self.nbytes = sum(sizes)
        self._runs = _write_sizes(self._exporting, self._sizes)  # it is refused before anybody exports it

    @property
    def _exporting(self) -> str:
        return f"exporting {self.nbytes} bytes of another library on {self._device}"

    def _hold(self, doing: str) -> None:
        if self._handles:
            return
        at, found = self.address, []
        try:
            for nbytes in self._sizes:
                found.append(self._device.retain(doing, at))
                at += nbytes
        except BaseException:
            self._give_up(doing, found)
            raise
        self._handles = found

    def _give_up(self, doing: str, handles: Sequence[Any]) -> None:
        for handle in handles:
            quietly(self._device.release, doing, handle)

    def export(self, read_only: bool) -> Export:
        doing = self._exporting
        if read_only:
            _require_read_only(self._engine, self._device, doing)
        device, nbytes = self._device, self.nbytes
        with self._lock:
            self._hold(doing)
        if len(self._sizes) == 1:
            return self._fd.export(device, nbytes, nbytes, lambda: device.export_fd(doing, self._handles[0]))
        demand = device.export_on_demand(self._handles)
        return described(SEGMENTS, nbytes, nbytes, own=self._runs, on_demand=demand, form=device.form)

    def release(self) -> None:
        """Release all segments. A pool calls this when it reclaims its memory. Otherwise it is called when the last
        reference is dropped.
        """
        with self._lock:
            handles, self._handles = self._handles, []
        self._give_up("releasing memory of another library", handles)
        self._fd.close()


def _write_sizes(doing: str, sizes: Sequence[int]) -> bytes:
    """Encode the sizes of adjacent segments. Consecutive segments of equal size are encoded as one run: the size and
    the count.
    """
    runs = [(nbytes, len(list(same))) for nbytes, same in groupby(sizes)]
    if len(runs) > _RUNS_MAX:
        raise FeatureNotSupportedError(
            f"{doing}: it lies over allocations of too many sizes ({len(runs)} runs of one size, at most "
            f"{_RUNS_MAX}): copy it (share(copy=True))"
        )
    return b"".join(_RUN.pack(*run) for run in runs)


def _read_sizes(doing: str, raw: bytes, mapped: int, count: int) -> list[int]:
    """Decode the sizes of `count` segments, which a peer has encoded by `_write_sizes`."""
    sizes: list[int] = []
    for at in range(0, len(raw) - _RUN.size + 1, _RUN.size):
        nbytes, times = _RUN.unpack_from(raw, at)
        if times > count - len(sizes) or nbytes * times > mapped:
            raise InvalidHandleError(f"{doing}: the exporter's segments do not fit its memory")
        sizes += [nbytes] * times
    return sizes


def _segments(doing: str, what: Import) -> _Segments | None:
    """Return the allocations of an export, or None for memory of another kind."""
    kind, own = read_head(doing, what)
    if kind == ALLOCATION:
        return _Segments(what, [what.exposed_nbytes], own)
    if kind == SEGMENTS:
        return _Segments(what, _read_sizes(doing, own, what.exposed_nbytes, len(what.fds)), b"")
    return None


def import_all(engine: Engine, device: VirtualMemory, found: Sequence[Import]) -> list[DriverMemory | None]:
    """Map all imports that are allocations of `VirtualMemory`. If one mapping fails, none is made. The result has None
    in the place of every other import.
    """
    made: list[DriverMemory | None] = [None] * len(found)
    groups: dict[bool, dict[int, _Segments]] = {}  # by access and index
    for at, what in enumerate(found):
        segments = None if what.again else _segments("mapping another process's memory", what)
        if segments is not None:
            groups.setdefault(what.read_only, {})[at] = segments
    try:
        for group in groups.values():
            mapped = DeviceMemory.imported_all(engine, device, list(group.values()))
            for at, each in zip(group, mapped, strict=True):
                made[at] = each
    except BaseException:
        for mine in made:
            if mine is not None:
                mine.release()
        raise
    return made


def import_memory(engine: Engine, device: VirtualMemory, what: Import, open_own: OpenOwn) -> DriverMemory:
    """Map another process's memory. The payload says which kind of memory it is. `open_own` maps a kind that only this
    vendor has. Memory of another backend is mapped as host memory.
    """
    if what.exporter is not None:
        return HostMemory.imported(engine, device, what)
    doing = f"mapping {what.exposed_nbytes} bytes of another process on {device}"
    kind, own = read_head(doing, what)
    if kind == HOST:
        return HostMemory.imported(engine, device, what)
    segments = _segments(doing, what)
    if segments is not None:
        return DeviceMemory.imported(engine, device, doing, *segments)
    return open_own(kind, doing, what, own)
