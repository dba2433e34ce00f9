"""The common part of the reductions for arrays of several libraries. A *reduction* is the function that replaces an
array in a pickle. The reductions here send all arrays of a pickle in one message, without copies.

`multiprocessing` pickles with `ForkingPickler`. A *run* is one call of a pickler's `dump`. During a run, the reductions
collect the arrays that are pickled, and the pickle contains only each array's number. At the end of the run, all arrays
of a library are exported together. There is one export for each allocation, and one mark (an event and the number of a
signal) for each stream with unfinished work. The marks are made last, so that they include work that was queued during
the run. The message precedes the pickle, so the receiver has opened it before it reads the first array. A failed run
leaves no export.

Arrays in another process's memory are pieces of a `Block`, which passes on the handle by which the memory was opened.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import struct
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final
from weakref import WeakValueDictionary

import xpushare as xs
from xpushare._native import End
from xpushare.arrays import description
from xpushare.arrays.attach import attach_message
from xpushare.arrays.consumers import consumer_of
from xpushare.arrays.description import Located
from xpushare.arrays.share import opens_argument, pickle_arrays
from xpushare.common.elements import as_dtype
from xpushare.core.device import Device, adapter_of, info_of
from xpushare.core.memory import Range, prepared_by
from xpushare.core.pickles import message as pickle_message
from xpushare.core.pickles import sent as pickle_sent
from xpushare.core.pickles import taken_back
from xpushare.core.resources import Allocation
from xpushare.objects.array import Marks, array_of, pickled_by, placed, view_of
from xpushare.objects.array_handle import is_tree
from xpushare.objects.lifecycle import use
from xpushare.sharing import node
from xpushare.sharing.handle import Handle, fields_of

__all__ = [
    "Message",
    "Received",
    "block_of",
    "install",
    "message",
    "piece_of",
    "reopened",
    "sent",
    "uninstall",
]

Reduction = Callable[[Any], Any]
Reopen = Callable[[bytes], xs.SharedArray]
_BYTE: Final = as_dtype("uint8")
_REFUSALS: Final = (xs.FeatureNotSupportedError, xs.InvalidArgumentError)
_log: Final = logging.getLogger("xpushare")


def _refused(array: Any, error: Exception) -> None:
    """Log why an array is sent in its library's own way instead of by handle."""
    _log.debug("this %s goes through multiprocessing in its library's way: %s", type(array).__name__, error)


_told = False  # whether the warning about a parent's memory was given


def _tell_inherited(array: Any, address: int) -> None:
    """Warn, once per process, if an array lies in shared memory inherited from the parent process. The array's library
    sends a copy of such an array.
    """
    global _told
    if _told or not node.inherited(address):
        return
    _told = True
    warnings.warn(
        f"this {type(array).__name__} lies in shared memory that this process inherited by a fork. Only the process "
        "that shared the memory can send it by handle, so a copy is sent, and the receiver's writes do not reach the "
        "original. Start the workers with the forkserver or spawn method (DataLoader: "
        "multiprocessing_context='forkserver')",
        RuntimeWarning,
        stacklevel=2,
    )


def _after_fork() -> None:
    global _told
    _told = False


os.register_at_fork(after_in_child=_after_fork)


# --- a run, and its messages


class Message:
    """All arrays of one library that a pickler sends in one run (one call of its `dump`), in memory of this process."""

    __slots__ = ("_added", "_library", "_token", "arrays", "numbers")

    def __init__(self, library: str) -> None:
        self._library = library
        self._token = secrets.token_bytes(16)
        self.arrays: list[Any] = []
        self.numbers: dict[Any, int] = {}  # for the library's own use
        self._added: dict[int, int] = {}  # the arrays' numbers, by the ids of `arrays`

    def add(self, array: Any) -> int:
        """Add an array and return its number. An array that was added before keeps its number. This happens if a
        reduction calls another reduction, or if the pickler has no memo.
        """
        number = self._added.setdefault(id(array), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array)
        return number

    def __reduce__(self) -> Any:
        return received, (self._token,)

    def ahead(self, known: list[Allocation], made: dict[Device, list[Handle]]) -> bytes:
        """Return pickle opcodes that open the message, for the start of the pickle. They leave the message on the stack
        until the pickle has been read. They use no memo entries, since the pickle numbers its own, and no protocol
        opcode, since old protocols have none.
        """
        raw = pickle_arrays(self.arrays, known, made)
        strings = self._token, self._library.encode(), raw
        return b"".join(
            (
                pickle.GLOBAL, f"{opened.__module__}\n{opened.__name__}\n".encode(),
                *(pickle.BINBYTES + struct.pack("<I", len(each)) + each for each in strings),
                pickle.TUPLE3, pickle.REDUCE,
            )
        )  # fmt: skip


class _Run:
    """The arrays that a pickler has encountered since its `dump` was called (a run)."""

    def __init__(self) -> None:
        self.blocks = Blocks()
        self.marks: Marks = {}
        self.messages: dict[str, Message] = {}
        self.allocations: list[Allocation] = []  # allocations that can be exported
        self._starts: list[int] = []  # their addresses, sorted
        self._ends: list[int] = []

    def reaches(self, address: int, nbytes: int, backend: str | None, keep: Any) -> bool:
        """Return whether these bytes lie in an allocation that this process can export. Return False for an imported
        allocation.
        """
        at = bisect_right(self._starts, address)
        if at and address + nbytes <= self._ends[at - 1]:
            return True
        if not nbytes or node.current().peers.mapping_at(address) is not None:
            return False
        try:
            device = self.allocations[-1].device if self.allocations else None
            if device is not None and device.backend == backend:
                finder = adapter_of(device).recogniser
                allocation = description.allocation_at(address, nbytes, device, info_of(device), finder)
            else:
                allocation = description.range_at(Located(address, nbytes, False, backend), keep).allocation
            prepared_by(allocation, node.current().table(), False)  # made now, since it may refuse
        except _REFUSALS as error:
            _refused(keep, error)
            _tell_inherited(keep, address)
            return False
        self.allocations.append(allocation)
        at = bisect_right(self._starts, allocation.address)
        self._starts.insert(at, allocation.address)
        self._ends.insert(at, allocation.address + allocation.nbytes)
        return True

    def ahead(self, made: dict[Device, list[Handle]]) -> bytes:
        """Return the opcodes of all messages, to put before the pickle. The handles of the exports are added to `made`,
        even if an error follows.
        """
        found = [each.ahead(self.allocations, made) for each in self.messages.values() if each.arrays]
        pickle_sent(made, _most_opens())
        return b"".join(found)


class _Current(threading.local):
    """The run (the call of a pickler's `dump`) that is in progress on this thread, and the messages that this thread
    has open.
    """

    run: _Run | None = None

    def __init__(self) -> None:
        self.opened: WeakValueDictionary[bytes, Received] = WeakValueDictionary()  # by token


_current = _Current()


def message(library: str, address: int, nbytes: int, backend: str | None, keep: Any) -> Message | None:
    """Return the message that carries an array at `address` in the pickle that this thread is writing. Return None if
    no message can carry the array. `backend` is as in `Located`.
    """
    run = _current.run
    if run is None or not run.reaches(address, nbytes, backend, keep):
        return None
    found = run.messages.get(library)
    if found is None:
        found = run.messages[library] = Message(library)
    return found


class Received:
    """A message at the receiver, and its arrays. It lives while the pickle is being read."""

    __slots__ = ("__weakref__", "arrays")

    def __init__(self, library: str, raw: bytes) -> None:
        handle = xs.ArrayHandle(raw)
        if not is_tree(handle):
            raise xs.InvalidHandleError("this is the handle of a single array, not of a list of arrays")
        self.arrays: Any = attach_message(handle, consumer=consumer_of(library))


def opened(token: bytes, library: bytes, raw: bytes) -> Received:
    """Open the message that precedes a pickle, and store it under `token` while the pickle is read."""
    found = _current.opened.get(token)
    if found is None:  # if it is already set, this very pickle is being read
        found = _current.opened[token] = Received(library.decode(), raw)
    return found


def received(token: bytes) -> Received:
    """Return the open message that a pickle refers to by `token`."""
    found = _current.opened.get(token)
    if found is None:
        raise xs.InvalidHandleError("this pickle is a part of another one, which carries the arrays: read it there")
    return found


def received_array(found: Received, number: int) -> Any:
    """Return the array with this number in a received message."""
    return found.arrays[number]


def sent(array: Any, library: str) -> tuple[Any, ...] | None:
    """Return the function and the arguments that a pickle contains in place of another library's array. Return None if
    no other process can reach the array's memory, or if the array has no memory.
    """
    run = _current.run
    if run is None:
        return None
    try:
        found = description.describe(array)
        where = found.located()
        to = message(library, where.address, where.nbytes, where.backend, array)
        if to is not None:
            return received_array, (to, to.add(array))
        place = _imported(where.address, where.nbytes) if where.nbytes else None
        if place is None:
            return None
        block = Block(place.replace(read_only=place.read_only or found.read_only), array, reopened, run.marks)
        return received_piece, (
            library, block, found.address - place.address, found.shape, found.dtype, found.strides,
        )  # fmt: skip
    except _REFUSALS as error:
        _refused(array, error)
        return None


# --- memory of other processes


class Block:
    """All memory behind the handle of an import. All arrays in this memory that a pickler sends in one run (one call of
    its `dump`) use the same block. At the receiver, the block is a `SharedArray` of bytes.
    """

    __slots__ = ("_array", "_raw", "_reopen", "place")

    def __init__(self, place: Range, producer: Any, reopen: Reopen, marks: Marks) -> None:
        self.place = place
        self._reopen = reopen
        self._array = array_of(place, (place.nbytes,), _BYTE, (1,), 0)
        # Made now, since memory that cannot be exported is sent in its library's own way. Made once for each open,
        # which adds one.
        for _ in range(_most_opens()):
            self._raw = pickled_by(self._array, producer, marks)

    def __reduce__(self) -> Any:
        return self._reopen, (self._raw,)


def reopened(raw: bytes) -> xs.SharedArray:
    """Open the memory behind a handle in the process that unpickles it. Pickles of `Block` objects call this."""
    found: xs.SharedArray = attach_message(xs.ArrayHandle(raw))
    return found


class Blocks:
    """All `Block` objects of one run of a pickler (one call of its `dump`)."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Block] = {}
        self._starts: list[int] = []
        self._sorted: list[Block] = []

    @staticmethod
    def _key(place: Range) -> tuple[int, int, int]:
        return id(place.allocation), place.offset, place.nbytes  # the block holds the allocation

    def over(self, place: Range) -> Block | None:
        """Return the block with exactly this allocation, offset and size, or None."""
        return self._known.get(self._key(place))

    def add(self, block: Block) -> None:
        self._known[self._key(block.place)] = block
        at = bisect_right(self._starts, block.place.address)
        self._starts.insert(at, block.place.address)
        self._sorted.insert(at, block)

    def find(self, address: int, nbytes: int) -> tuple[Block, int] | None:
        """Return the block that contains these bytes, and their offset in it, or None if no block contains them."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        block, offset = self._sorted[at], address - self._starts[at]
        return (block, offset) if offset + nbytes <= block.place.nbytes else None


def _imported(address: int, nbytes: int) -> Range | None:
    """Return all memory behind the handle by which these bytes were opened. Return None if they were not opened by a
    handle, or are only lent to this process.
    """
    imported = node.current().peers.mapping_at(address)
    if not isinstance(imported, Allocation) or description.is_lent(address):
        return None
    handle = imported.handle_covering(address - imported.address, nbytes)
    if handle is None:
        return None
    fields, device = fields_of(handle), imported.device
    return Range(imported, fields.offset, fields.nbytes, device, device.context, handle.read_only, handle, None)


def block_of(address: int, nbytes: int, keep: Any, reopen: Reopen) -> tuple[Block, int] | None:
    """Return the block that contains these bytes, and their offset in it. Return None if the bytes do not lie in
    another process's memory.

    `keep` is the library's array, which keeps the memory alive. The content is produced on the library's current
    stream. The receiver calls `reopen` once to open the block.
    """
    run = _current.run
    if run is None or not nbytes:
        return None
    known = run.blocks.find(address, nbytes)
    if known is not None:
        return known
    place = _imported(address, nbytes)
    if place is None:
        return None
    block = run.blocks.over(place)
    if block is None:
        try:
            block = Block(place, keep, reopen, run.marks)
        except _REFUSALS as error:
            _refused(keep, error)
            return None
        run.blocks.add(block)
    return block, address - place.address


def received_piece(
    library: str, block: xs.SharedArray, at: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]
) -> Any:
    """Return an array of `library` over part of a received block. `at` is the array's offset in the block."""
    consumer = consumer_of(library)
    assert consumer is not None
    return consumer(view_of(block, at, shape, dtype, strides))


def piece_of(array: xs.SharedArray, offset: int, nbytes: int) -> xs.SharedArray:
    """Return part of a received block as an array of bytes. This does not wait for the producer's stream."""
    place, first = placed(array)
    if offset < 0 or nbytes < 0 or offset + nbytes > array.nbytes:
        raise xs.InvalidArgumentError(f"the message names bytes {offset} to {offset + nbytes} of {array.nbytes}")
    return array_of(use(array).replace(offset=place.offset + first + offset, nbytes=nbytes), (nbytes,), _BYTE, (1,), 0)


def _most_opens() -> int:
    """Return how often a pickle can be opened, which is the largest `opens` of the installed libraries."""
    return max(_opens.values(), default=1)


# --- registering

_lock = threading.RLock()
_registered: dict[str, dict[type, Reduction | None]] = {}  # by library: the reductions that its types had before
_opens: dict[str, int] = {}  # by library: how often its pickles can be opened


_plain_init: Final[Any] = ForkingPickler.__init__
_FILE: Final = "_xpushare_file"  # of a pickler


class _File:
    """The file that a pickler writes to. During a call of the pickler's `dump` (a run), it buffers what is written,
    since the messages of the run have to come first.
    """

    __slots__ = ("_chunks", "_write")

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self._write = write
        self._chunks: list[Any] | None = None

    def write(self, data: Any) -> None:
        if self._chunks is None:
            self._write(data)
        else:
            self._chunks.append(data if isinstance(data, bytes) else bytes(data))  # other buffers may change until then

    def begin(self) -> None:
        self._chunks = []

    def end(self) -> list[Any]:
        """Return the bytes that were written since `begin`."""
        chunks, self._chunks = self._chunks or [], None
        return chunks


def _init(self: Any, file: Any, *arguments: Any) -> None:
    write = getattr(file, "write", None)
    if write is not None:
        file = _File(write)
        setattr(self, _FILE, file)
    _plain_init(self, file, *arguments)


def _dump(self: Any, obj: Any) -> None:
    file: _File | None = getattr(self, _FILE, None)
    plain: Any = super(ForkingPickler, self)
    outer = _current.run
    run = _current.run = None if file is None else _Run()
    if file is None or run is None:  # a pickler that was made before `install`
        try:
            plain.dump(obj)
        finally:
            _current.run = outer
        return
    made: dict[Device, list[Handle]] = {}
    with End(taken_back, made), pickle_message():
        file.begin()
        try:
            plain.dump(obj)
        finally:
            chunks = file.end()
            _current.run = outer
        ahead = run.ahead(made) if run.messages else b""
        for chunk in (ahead, *chunks) if ahead else chunks:
            file.write(chunk)


def _table() -> dict[type, Reduction]:
    table: dict[type, Reduction] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # there is no getter
    return table


def install(library: str, reductions: dict[type, Callable[[Reduction | None], Reduction]], opens: int = 1) -> None:
    """Register a reduction for each type. `reductions` maps each type to a function, which is called with the type's
    previous reduction, or None if there was none, and returns the new one. Each pickle can be opened `opens` times.
    Idempotent.
    """
    count = opens_argument(opens)
    with _lock:
        _opens[library] = count
        if library in _registered:
            return
        table = _table()
        _registered[library] = {kind: table.get(kind) for kind in reductions}
        for kind, make in reductions.items():
            ForkingPickler.register(kind, make(table.get(kind)))
        ForkingPickler.__init__ = _init  # type: ignore[method-assign]
        ForkingPickler.dump = _dump  # type: ignore[method-assign]


def uninstall(library: str) -> None:
    """Restore the reductions that were registered before `install`. Idempotent."""
    with _lock:
        table = _table()
        _opens.pop(library, None)
        for kind, before in _registered.pop(library, {}).items():
            if before is None:
                table.pop(kind, None)
            else:
                table[kind] = before
        if not _registered:
            if vars(ForkingPickler).get("dump") is _dump:
                del ForkingPickler.dump
            if ForkingPickler.__init__ is _init:
                ForkingPickler.__init__ = _plain_init  # type: ignore[method-assign]
