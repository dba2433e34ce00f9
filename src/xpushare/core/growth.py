"""Ranges that grow and shrink, and ranges of other processes that follow them.

A growing range maps pieces of physical memory one after the other. Its *directory*, a small block of host memory that
followers read, lists the pieces by their handles. The directory has two headers, and its first word says which one is
valid. An update is written into the other header and becomes valid when the word is stored. A reader that finds the
same word before and after has therefore read one consistent state, even if the writer dies halfway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

from xpushare._native import End, Span, load64, store64
from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    HandleExpiredError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
)
from xpushare.core import event, memory, physical
from xpushare.core.declare import operation
from xpushare.core.device import require
from xpushare.core.event import Opened
from xpushare.core.memory import Range
from xpushare.core.opening import OPEN_ERRORS
from xpushare.core.physical import Held, Mapped, Reserved
from xpushare.core.pickles import Implicit
from xpushare.core.queue import any_unfinished, pause
from xpushare.sharing.handle import Handle

__all__ = ["DIRECTORY_NBYTES", "Growth", "follow", "grow", "refresh", "shrink", "start"]

HOST: Final = "native_cpu:0"
_PIECES: Final = 1024
_HEADERS: Final = 16  # where the two headers begin; each has the numbers of pieces and of bytes
_ENTRIES: Final = 64
DIRECTORY_NBYTES: Final = _ENTRIES + _PIECES * Handle.NBYTES
_PART: Final = 16  # a new piece is at least this part of the range, which keeps the number of pieces low
_TRIES: Final = 1000


class _Piece(NamedTuple):
    """What a growable range keeps with each of its mappings."""

    raw: bytes
    export: Implicit | None  # None for a follower


def end_of(pieces: Sequence[Mapped]) -> int:
    """Return the offset at which the last of these pieces ends."""
    return pieces[-1].at + pieces[-1].nbytes if pieces else 0


@final
class Growth:
    """The pieces of a growable range, or of a range that follows one. `lock` guards them.

    `pieces` is the list of the range's mappings itself, so that no interrupt can come between the two.
    """

    __slots__ = (
        "_bytes",
        "changed",
        "directory",
        "exports",
        "follows",
        "lock",
        "nbytes",
        "pieces",
        "read_only",
        "telling",
    )

    def __init__(self, pieces: list[Mapped], directory: Range, changed: Opened, follows: bool, read_only: bool) -> None:
        self.pieces: Final = pieces
        self.exports: Final[list[Implicit]] = []  # of the pieces, and of those that are not mapped any more
        self.directory: Final = directory
        self.changed: Final = changed
        self.follows: Final = follows
        self.read_only: Final = read_only
        self.telling: Implicit | None = None  # the export of `changed`
        owner, fixed = directory.hold()
        self._bytes: Final = memoryview(Span(directory.address, directory.nbytes, fixed, owner))
        self.nbytes: int = 0
        self.lock: Final = threading.RLock()

    def told_by(self) -> Handle:
        """Return the handle of the event that notifies followers of a change."""
        with self.lock:
            if self.telling is None:
                self.telling = Implicit(event.get, self.changed)
            return self.telling.handle

    def mapped(self) -> int:
        """Return the end of the last piece. The pieces lie side by side."""
        return end_of(self.pieces[-1:])

    def length(self) -> int:
        """Return the length of the range in bytes. After an interrupt, no more than is mapped."""
        return min(self.nbytes, self.mapped())

    def end_exports(self) -> None:
        """End the exports of the pieces that are not mapped any more. They do not wait for their finalisers, which an
        interrupt can prevent.
        """
        if len(self.exports) > len(self.pieces):
            mapped = {each.piece.export for each in self.pieces}
            for each in self.exports[:]:
                if each not in mapped:
                    each.end()
                    self.exports.remove(each)

    def write(self, place: int, raw: bytes) -> None:
        """Write a directory entry. Followers do not see the entry until a header counts it."""
        at = _ENTRIES + place * Handle.NBYTES
        self._bytes[at : at + Handle.NBYTES] = raw

    def publish(self, count: int, nbytes: int) -> None:
        """Make the new state visible to followers, and notify them."""
        self.nbytes = nbytes
        with End(self._publish, count, nbytes):  # even after an interrupt, followers must see it
            self._publish(count, nbytes)

    def _publish(self, count: int, nbytes: int) -> None:
        address = self.directory.address
        turn = load64(address) + 1
        header = address + _HEADERS + 16 * (turn % 2)
        store64(header, count)
        store64(header + 8, nbytes)
        store64(address, turn)
        event.signal(self.changed)

    def read(self) -> tuple[int, int, list[bytes]]:
        """Read one consistent state of the directory: its version number, the length in bytes, and the handles of the
        pieces.
        """
        address = self.directory.address
        for _ in range(_TRIES):
            turn = load64(address)
            header = address + _HEADERS + 16 * (turn % 2)
            count, nbytes = load64(header), load64(header + 8)
            if count > _PIECES:
                raise InvalidHandleError(f"the directory of the range names {count} pieces: {_PIECES} are the most")
            raw = bytes(self._bytes[_ENTRIES : _ENTRIES + count * Handle.NBYTES])
            if load64(address) == turn:
                return turn, nbytes, [raw[at : at + Handle.NBYTES] for at in range(0, len(raw), Handle.NBYTES)]
        raise InvalidHandleError("the directory of the range changes without a pause")


def start(reserved: Reserved) -> Growth:
    """Return the state of a growable range that has no pieces yet."""
    require(reserved.device, Aspect.ext_oneapi_ipc_physical_memory)
    directory = memory.allocate("host", DIRECTORY_NBYTES, HOST, None)
    return Growth(reserved.mapped, directory, event.create(HOST, None, True, False, True), False, False)


def follow(reserved: Reserved, directory: Range, changed: Opened, read_only: bool) -> Growth:
    """Return the state of a range that follows another one, with nothing mapped yet. `directory` and `changed` were
    opened from the range that it follows.
    """
    if directory.nbytes != DIRECTORY_NBYTES:
        raise InvalidHandleError(f"the directory of a range has {DIRECTORY_NBYTES} bytes, not {directory.nbytes}")
    return Growth(reserved.mapped, directory, changed, True, read_only)


def _own(growth: Growth, what: str) -> None:
    if growth.follows:
        raise InvalidArgumentError(f"this range follows one of another process, which alone can {what} it: refresh()")


def _amount(nbytes: int) -> int:
    count = memory.size_argument(nbytes)
    if not count:
        raise InvalidArgumentError("nbytes must be positive")
    return count


@operation(
    "VirtualRange.grow",
    rules=(8,),
    raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError),
)
def grow(reserved: Reserved, growth: Growth, nbytes: int) -> None:
    """Extend the range by `nbytes`, and map another piece if the mapped pieces are too short."""
    _own(growth, "grow")
    count = _amount(nbytes)
    with physical.exclusive(growth.lock):
        growth.end_exports()
        mapped = growth.mapped()
        wanted = growth.length() + count
        if wanted > reserved.nbytes:
            raise InvalidArgumentError(
                f"the range has {reserved.nbytes} bytes of addresses: it cannot grow from {growth.length()} to {wanted}"
            )
        place = len(growth.pieces)
        if wanted > mapped:
            if place == _PIECES:
                raise OutOfMemoryError(f"the range has {_PIECES} pieces, the most: shrink it, and grow it by more")
            part = max(wanted - mapped, min(mapped // _PART, reserved.nbytes - mapped))
            piece = -(-part // reserved.granularity) * reserved.granularity
            held = physical.create(piece, reserved.device, reserved.context, True)
            export = Implicit(physical.get, held)
            growth.exports.append(export)
            raw = bytes(export.handle)
            growth.write(place, raw)
            _add(reserved, growth, held, "rw", _Piece(raw, export))
        growth.publish(len(growth.pieces), wanted)


def _wait_for_work(reserved: Reserved, at: int, nbytes: int) -> None:
    """Wait until no queue operation uses these mappings. Return at once if a view uses one, since waiting would not
    release the view.
    """
    while True:
        going_on = any_unfinished()
        with reserved.changing():
            found = reserved.whole(at, nbytes)
            viewed = any(each.pins > each.working for each in found)
            working = any(each.working for each in found)
        if viewed or not working or not going_on:
            return
        pause()


def _drop(reserved: Reserved, growth: Growth, keep: int, before: Callable[[], None] | None = None) -> None:
    """Unmap the pieces from number `keep` on, once this process's queue operations have released them. `before` is
    called first, when nothing but the driver can refuse.
    """
    at = end_of(growth.pieces[:keep])
    nbytes = growth.mapped() - at
    if nbytes:
        _wait_for_work(reserved, at, nbytes)
        physical.unmap(reserved, at, nbytes, before)
    elif before is not None:
        before()


def _first_beyond(growth: Growth, nbytes: int) -> int:
    """Return the index of the first piece that lies wholly beyond the first `nbytes`."""
    end = 0
    for place, each in enumerate(growth.pieces):
        if end >= nbytes:
            return place
        end += each.nbytes
    return len(growth.pieces)


@operation("VirtualRange.shrink", raises=(InvalidArgumentError, OutOfMemoryError, DeviceError))
def shrink(reserved: Reserved, growth: Growth, nbytes: int) -> None:
    """Shorten the range by `nbytes`, and unmap the pieces that lie wholly beyond its new end. Followers keep the
    removed pieces until they refresh.
    """
    _own(growth, "shrink")
    count = _amount(nbytes)
    with physical.exclusive(growth.lock):
        length = growth.length()
        if count > length:
            raise InvalidArgumentError(f"the range has {length} bytes: it cannot shrink by {count}")
        left = length - count
        keep = _first_beyond(growth, left)
        # First the directory: the pieces' handles are withdrawn when the pieces are unmapped. An interrupt between the
        # two leaves pieces that the next call uses or unmaps.
        _drop(reserved, growth, keep, lambda: growth.publish(keep, left))
        growth.end_exports()


@operation(
    "VirtualRange.refresh",
    raises=OPEN_ERRORS,
)
def refresh(reserved: Reserved, growth: Growth) -> None:
    """Follow the other range: unmap the pieces that it has removed, and map the pieces that it has added."""
    if not growth.follows:
        raise InvalidArgumentError("refresh is for a range that was attached; this one is the original")
    with physical.exclusive(growth.lock):
        for _ in range(_TRIES):
            turn, nbytes, handles = growth.read()
            known = [each.piece.raw for each in growth.pieces]
            same = next((at for at, (one, other) in enumerate(zip(known, handles, strict=False)) if one != other), None)
            keep = min(len(known), len(handles)) if same is None else same
            _drop(reserved, growth, keep)
            growth.nbytes = nbytes  # `length` is no more than is mapped
            try:
                for raw in handles[keep:]:
                    _map(reserved, growth, raw)
            except HandleExpiredError:
                if load64(growth.directory.address) == turn:
                    raise
                continue  # that piece was removed meanwhile
            if nbytes > growth.mapped():
                raise InvalidHandleError(f"the directory says {nbytes} bytes, in pieces of {growth.mapped()}")
            return
        raise InvalidHandleError("the directory of the range changes without a pause")


def _map(reserved: Reserved, growth: Growth, raw: bytes) -> None:
    held = physical.open_(Handle(raw), reserved.device, reserved.context)
    at, nbytes = growth.mapped(), held.pages.nbytes
    if at + nbytes > reserved.nbytes:
        raise InvalidHandleError(f"the pieces of the range have more than its {reserved.nbytes} bytes")
    _add(reserved, growth, held, "r" if growth.read_only else "rw", _Piece(raw, None))


def _add(reserved: Reserved, growth: Growth, held: Held, access: str, piece: _Piece) -> None:
    """Map one more piece after the others. After a failure or an interrupt, the piece is not mapped."""
    at, count = growth.mapped(), len(growth.pieces)
    with End(lambda: len(growth.pieces) > count and physical.unmap(reserved, at, held.pages.nbytes)):
        physical.map_(reserved, held, at, 0, None, access, piece)
