"""What the reductions of arrays have in common: one export for each allocation that a message names, and no copies.

`multiprocessing` pickles with `ForkingPickler`. Within one message the arrays of an allocation are pieces of one
`Block`, which is pickled once.
"""

from __future__ import annotations

import logging
import pickle
import threading
from bisect import bisect_right
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import xpushare as xs
from xpushare import arrays
from xpushare._array import Marks, array_of, open_array, pickled_by, placed, view_of
from xpushare._array_handle import checked_parts
from xpushare._elements import as_dtype
from xpushare._lifecycle import use
from xpushare.arrays import Located
from xpushare.core.memory import Range
from xpushare.core.resources import Allocation
from xpushare.sharing import node
from xpushare.sharing.handle import fields_of

__all__ = ["Block", "block_of", "install", "piece_of", "received", "reopened", "sent", "uninstall"]

Reduction = Callable[[Any], Any]
Reopen = Callable[[bytes], xs.SharedArray]
_BYTE: Final = as_dtype("uint8")
_REFUSALS: Final = (xs.FeatureNotSupportedError, xs.InvalidArgumentError)
_log: Final = logging.getLogger("xpushare")


def _refused(array: Any, error: Exception) -> None:
    """Tell whoever wonders why an array goes its library's way."""
    _log.debug("this %s goes through multiprocessing in its library's way: %s", type(array).__name__, error)


class Block:
    """An allocation, or of an import what its handle covers, for arrays of one message. At the other end it is a
    `SharedArray` of bytes.
    """

    __slots__ = ("_array", "_holds", "_raw", "_reopen", "place")

    def __init__(self, place: Range, holds: list[Any], producer: Any, reopen: Reopen) -> None:
        self.place = place
        self._holds = holds
        self._reopen = reopen
        self._array = array_of(place, (place.nbytes,), _BYTE, (1,), 0)
        # Now: what cannot be exported goes its library's way.
        self._raw = pickled_by(self._array, producer, _message.marks)

    def hold(self, keep: Any) -> None:
        """Hold what is sent of the block, too."""
        self._holds.append(keep)

    def __reduce__(self) -> Any:
        return self._reopen, (self._raw,)


def reopened(raw: bytes) -> xs.SharedArray:
    """What a block is at the other end."""
    handle = xs.ArrayHandle(raw)
    return open_array(handle, checked_parts(handle), None, True, None)


class Blocks:
    """The blocks of a message."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Block] = {}
        self._starts: list[int] = []
        self._sorted: list[Block] = []

    @staticmethod
    def _key(place: Range) -> tuple[int, int, int]:
        return id(place.allocation), place.offset, place.nbytes  # the block holds the allocation

    def over(self, place: Range) -> Block | None:
        """The block over exactly that place."""
        return self._known.get(self._key(place))

    def add(self, block: Block) -> None:
        self._known[self._key(block.place)] = block
        at = bisect_right(self._starts, block.place.address)
        self._starts.insert(at, block.place.address)
        self._sorted.insert(at, block)

    def find(self, address: int, nbytes: int) -> tuple[Block, int] | None:
        """The block that has these bytes, and where: asking a driver for the allocation takes long."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        block, offset = self._sorted[at], address - self._starts[at]
        return (block, offset) if offset + nbytes <= block.place.nbytes else None


class _Message(threading.local):
    """The message that this thread pickles."""

    blocks: Blocks | None = None
    marks: Marks | None = None  # one a stream: a message has what was queued when it was begun, at least


_message = _Message()


def _place(address: int, nbytes: int, backend: str | None, keep: Any) -> tuple[Range, list[Any]] | None:
    """The allocation that these bytes lie in, or of an import what its handle covers, and the list of what an export
    of it holds; None for memory that no other process can reach.
    """
    here = node.current()
    imported = here.peers.mapping_at(address)
    holds: list[Any] = []
    if imported is None:
        try:
            found = arrays.range_at(Located(address, nbytes, False, backend), keep)
        except _REFUSALS as error:
            _refused(keep, error)
            return None
        return found._replace(offset=0, nbytes=found.allocation.nbytes, lease=holds), holds
    if not isinstance(imported, Allocation):
        return None
    handle = imported.handle_covering(address - imported.address, nbytes)
    if handle is None:
        return None
    fields, device = fields_of(handle), imported.device
    place = Range(imported, fields.offset, fields.nbytes, device, device.context, handle.read_only, handle, None)
    return place, holds


def block_of(
    address: int, nbytes: int, backend: str | None, keep: Any, reopen: Reopen = reopened
) -> tuple[Block, int] | None:
    """The block of the message, and the offset in it; None for memory that no other process can reach, for its
    library's own way. `keep`: what holds the memory; its library's stream produces it. `backend`: as in `Located`.
    `reopen`: what opens the block at the other end, once.
    """
    blocks = _message.blocks
    if blocks is None or not nbytes:
        return None
    known = blocks.find(address, nbytes)
    if known is not None:
        known[0].hold(keep)
        return known
    found = _place(address, nbytes, backend, keep)
    if found is None:
        return None
    place = found[0]
    at = address - place.address
    if not 0 <= at <= place.nbytes - nbytes:
        return None
    block = blocks.over(place)
    if block is None:
        try:
            block = Block(*found, keep, reopen)
            blocks.add(block)
        except _REFUSALS as error:
            _refused(keep, error)
            return None
    block.hold(keep)
    return block, at


def sent(array: Any) -> tuple[Block, int, tuple[int, ...], Any, tuple[int, ...]] | None:
    """What goes in the place of another library's array, for `received`; None for memory that no other process can
    reach, and for what has none to show.

    Each array has a block of its own: it may be on another stream than the next. The block is the whole allocation, so
    the receiver can pass on any of its arrays by the handle that came last.
    """
    try:
        found = arrays.describe(array)
        where = found.located()
        placed = _place(where.address, where.nbytes, where.backend, array) if where.nbytes else None
        if placed is None:
            return None
        place, holds = placed
        if not 0 <= where.address - place.address <= place.nbytes - where.nbytes:
            return None
        holds.append(array)
        block = Block(place._replace(read_only=place.read_only or found.read_only), holds, array, reopened)
        return block, found.address - place.address, found.shape, found.dtype, found.strides
    except _REFUSALS as error:
        _refused(array, error)
        return None


def received(
    block: xs.SharedArray, at: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]
) -> xs.SharedArray:
    """The array that was sent so."""
    return view_of(block, at, shape, dtype, strides)


def piece_of(array: xs.SharedArray, offset: int, nbytes: int) -> xs.SharedArray:
    """So many bytes of a received block; it does not wait for the producer's stream."""
    place, first = placed(array)
    if offset < 0 or nbytes < 0 or offset + nbytes > array.nbytes:
        raise xs.InvalidArgumentError(f"the message names bytes {offset} to {offset + nbytes} of {array.nbytes}")
    return array_of(use(array)._replace(offset=place.offset + first + offset, nbytes=nbytes), (nbytes,), _BYTE, (1,), 0)


# --- registering

_lock = threading.RLock()
_registered: dict[str, dict[type, Reduction | None]] = {}  # by library: what its types had before


_plain_dump: Final[Any] = pickle.Pickler.dump


def _dump(self: Any, obj: Any) -> Any:
    outer = _message.blocks, _message.marks
    _message.blocks, _message.marks = Blocks(), {}
    try:
        return _plain_dump(self, obj)
    finally:
        _message.blocks, _message.marks = outer


def _table() -> dict[type, Reduction]:
    table: dict[type, Reduction] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # there is no getter
    return table


def install(library: str, reductions: dict[type, Callable[[Reduction | None], Reduction]]) -> None:
    """Register, for each type, what its factory makes of the reduction before (None: there was none). Idempotent."""
    with _lock:
        if library in _registered:
            return
        table = _table()
        _registered[library] = {kind: table.get(kind) for kind in reductions}
        for kind, make in reductions.items():
            ForkingPickler.register(kind, make(table.get(kind)))
        ForkingPickler.dump = _dump  # type: ignore[method-assign]


def uninstall(library: str) -> None:
    """Register again what was there before. Idempotent."""
    with _lock:
        table = _table()
        for kind, before in _registered.pop(library, {}).items():
            if before is None:
                table.pop(kind, None)
            else:
                table[kind] = before
        if not _registered and vars(ForkingPickler).get("dump") is _dump:
            del ForkingPickler.dump
