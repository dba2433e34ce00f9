"""The exporters that this process knows, the objects it has open from each, and the cache of its mappings."""

from __future__ import annotations

import errno
import itertools
import re
import resource
import threading
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar, final
from weakref import ref

from xpushare import _native
from xpushare._native import Fields, Imports, Lease, PeerTable, load64
from xpushare.adapters.base import Form, Hardware, Import
from xpushare.common import system
from xpushare.common.errors import (
    HandleExpiredError,
    InvalidHandleError,
    OutOfMemoryError,
    RouteError,
    XpuShareError,
    exporter_gone,
    from_os_error,
)
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing import layout, routes
from xpushare.sharing.handle import COUNTED, PICKLED, Handle, fields_of
from xpushare.sharing.idle import HOST, Idle, Room

__all__ = ["OpenNative", "Opener", "Peer", "Peers", "Turn"]

T = TypeVar("T")
_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`
_FORMS: Final = tuple(Form)  # by their numbers
_TOGETHER: Final = _native.CONSTANTS["FDS_AT_ONCE"]  # descriptors fetched at a time: as many as one answer carries
_RLock: Any = type(threading.RLock())
_TURNS: Final = 64  # number of turns from which unused ones are searched for
_RECENT: Final = 64  # imports of the host's memory that are remembered: as many as can be idle
_PCI: Final = re.compile(rb"(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?")


class Entry(NamedTuple):
    """An entry of a peer's table, as it was read. docs/layout.md uses the same names."""

    generation: int
    retired: int
    reason: int
    kind: int
    flags: int
    slot: int
    nonce: bytes
    object: int
    nbytes: int
    exposed_nbytes: int
    inode: int
    fd_count: int
    payload_nbytes: int
    fds: bytes
    offset: int
    device: int
    payload: bytes

    @property
    def form(self) -> Form:
        return _FORMS[(self.flags & layout.ENTRY_FORM) >> layout.ENTRY_FORM_BIT]


# (fields, peer) -> the object and its lease
OpenNative = Callable[[Fields, PeerTable], tuple[Any, Lease] | None]


@final
class Opener:
    """How this process opens exports of one kind on one device. The opener's `number` is part of the cache's keys.

    - `make` imports one object
    - `make_all` imports several objects: all of them, or none
    - `admit` is called for exporters on another backend, before any fetch. It raises if the import is impossible
    - `maps` says whether a memfd is mapped before `make` is called
    - `least_per_fd` is the minimum of bytes behind each of several descriptors. It is 0 if there is only one
    - `room` limits the cache of closed imports
    - `native` opens an entry by one native call, or returns None. It is the result of `find_native`, which is called
      after the first import
    - `own` says whether this process can export its imports
    """

    __slots__ = ("admit", "find_native", "least_per_fd", "make", "make_all", "maps", "native", "number", "own", "room")

    _numbers: ClassVar[Iterator[int]] = itertools.count()

    def __init__(
        self,
        make: Callable[[Import], Any],
        admit: Callable[[Form, Hardware], None] | None,
        maps: bool,
        least_per_fd: int = 0,
        room: Room | None = None,
        make_all: Callable[[Sequence[Import]], list[Any]] | None = None,
        own: bool = False,
        find_native: Callable[[], OpenNative] | None = None,
    ) -> None:
        self.number: Final = next(self._numbers)
        self.make = make
        self.native: OpenNative | None = None
        self.find_native = find_native
        self.own = own
        self.make_all = make_all
        self.admit = admit
        self.maps = maps
        self.least_per_fd = least_per_fd
        self.room = room

    def expect_fds(self, count: int, exposed_nbytes: int) -> None:
        """Check the number of descriptors before they are fetched. Fetching a million descriptors, as a table may
        claim, would block this process for a long time.
        """
        most = 2 + exposed_nbytes // self.least_per_fd if self.least_per_fd else 1
        if count > most:
            raise InvalidHandleError(
                f"the exporter's table claims {count} file descriptors for {exposed_nbytes} bytes, not {most} at most"
            )
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY and count >= limit:
            raise OutOfMemoryError(
                f"opening it takes {count} file descriptors at once, and `ulimit -n` is {limit}", native=errno.EMFILE
            )


def _view(table: _native.Mapping) -> memoryview:
    return memoryview(_native.Span(table.address, layout.TABLE_NBYTES, True, table))


@final
class Peer(PeerTable):
    """One exporter, known by its table, which is mapped once. This process is a member of the exporter's commons, the
    memory that the exporter and its importers all write. There the exporter sees which objects are open.
    """

    __slots__ = (
        "_entries", "_mapping", "_pidfd_number", "_table_fd", "address", "cookie", "direct", "domain", "pid", "pidfd",
    )  # fmt: skip

    def __new__(cls, handle: Handle, met: routes.Met) -> Self:  # noqa: ARG004 - as `__init__`
        pidfd = met.pidfd.number if met.direct and met.pidfd is not None else -1
        return PeerTable.__new__(cls, met.mapping, met.domain, pidfd)

    def __init__(self, handle: Handle, met: routes.Met) -> None:
        fields = fields_of(handle)
        self.cookie = fields.cookie
        self.pid = fields.pid
        self.domain = met.domain
        self.pidfd = met.pidfd
        self.address = met.mapping.address
        self._entries = self.address + layout.TABLE_ENTRIES
        self._mapping = met.mapping
        self._table_fd = met.table
        self._pidfd_number = -1 if met.pidfd is None else met.pidfd.number
        # pidfd_getfd is worth trying for every object: nothing that refuses it changes while both processes live.
        self.direct = met.direct

    def alive(self) -> bool:
        if self._pidfd_number >= 0:
            return not _native.dead([self._pidfd_number])
        return _native.lock_holder(self.domain.fd, layout.LIFE) is not None

    def entry_address(self, entry: int) -> int:
        return self._entries + entry * layout.ENTRY_NBYTES

    def ends(self, entry: int) -> bool:
        """Return whether the entry has a deadline. A pickle's entry has one once the pickled object has died."""
        return load64(self.address + layout.TABLE_DEADLINES + entry * 8) != 0

    def expect_live(self, handle: Handle) -> None:
        """Raise `HandleExpiredError` unless the handle's entry is live and the exporter is alive."""
        self.expect_exported(handle)
        if not self.alive():
            raise exporter_gone(self.pid, "its pidfd says so")

    def expect_exported(self, handle: Handle) -> None:
        """Raise `HandleExpiredError` unless the handle's entry is live. The exporter may have died."""
        try:
            reason = self.ended(fields_of(handle))
        except ValueError as error:
            raise InvalidHandleError(str(error)) from None
        if reason is not None:
            raise HandleExpiredError(
                f"the handle has expired: {layout.REASONS.get(reason, 'its exporter withdrew it')}"
            )

    def entry(self, handle: Handle) -> Entry:
        """Read the handle's entry, and check that it belongs to the handle. The entry may be replaced while it is used,
        so call `expect_exported` afterwards.
        """
        found = self.copy(fields_of(handle))
        if found is None:
            self.expect_exported(handle)
            raise InvalidHandleError(f"the handle does not fit what process {self.pid} exports under it")
        return Entry._make(layout.ENTRY.unpack(found))

    def hardware(self, handle: Handle, entry: Entry) -> Hardware:
        """Return the device of the entry. Raises `InvalidHandleError` unless the handle names the same device."""
        fields = fields_of(handle)
        if not entry.device:  # the header was full
            return Hardware(handle.backend, handle.device_uuid, "", "")
        if entry.device <= layout.DEVICE_COUNT:
            at = layout.TABLE_DEVICES + (entry.device - 1) * layout.DEVICE.size
            backend, device_uuid, pci, driver_uuid = layout.DEVICE.unpack_from(_view(self._mapping), at)
            pci = pci.rstrip(b"\0")
            if (backend, device_uuid) == (fields.backend, fields.device_uuid) and _PCI.fullmatch(pci):
                driver = str(uuid.UUID(bytes=driver_uuid)) if any(driver_uuid) else ""
                return Hardware(handle.backend, handle.device_uuid, pci.decode(), driver)
        raise InvalidHandleError(f"process {self.pid} says of the handle's device what cannot be")

    def fetch(self, handle: Handle, entry: Entry) -> list[OwnedFd]:
        """Fetch the entry's descriptors, and make sure that they belong to this handle."""
        [found] = self.fetch_all([(handle, entry)])
        if isinstance(found, list):
            return found
        try:
            raise found
        finally:
            del found  # its traceback refers to this frame

    def fetch_all(self, wanted: Sequence[tuple[Handle, Entry]]) -> list[list[OwnedFd] | XpuShareError]:
        """Fetch the descriptors of several entries with as few requests as possible, and make sure that they belong to
        their handles. Returns for each entry its descriptors, or the error.
        """
        asked = [
            routes.Wanted(
                handle,
                None if entry.flags & layout.ENTRY_ON_DEMAND else layout.FDS.unpack(entry.fds)[: entry.fd_count],
                entry.fd_count,
            )
            for handle, entry in wanted
            if entry.fd_count
        ]
        fetched = iter(routes.fetch(self.pidfd, asked) if asked else ())
        found: list[list[OwnedFd] | XpuShareError] = []
        try:
            for handle, entry in wanted:
                found.append(next(fetched) if entry.fd_count else [])
                if isinstance(fds := found[-1], list) and fds and (error := self._belong(fds, handle, entry)):
                    close_all(fds)
                    found[-1] = error
            return found
        except BaseException:  # an interrupt
            close_all(fd for each in (*found, *fetched) if isinstance(each, list) for fd in each)
            raise

    def _belong(self, fds: list[OwnedFd], handle: Handle, entry: Entry) -> XpuShareError | None:
        """Return None if these descriptors belong to the handle's entry, or else the error."""
        try:
            self.expect_exported(handle)
            if entry.inode and system.fstat(fds[0].number).st_ino != entry.inode:
                return HandleExpiredError("the handle has expired: its file descriptor number was used again")
        except XpuShareError as error:
            return error.with_traceback(None)
        except OSError as error:
            return from_os_error(error, f"looking at an object of process {self.pid}")
        return None

    def map(self, handle: Handle, entry: Entry) -> _native.Mapping:
        """Map the entry's memfd, and make sure that it belongs to this handle."""
        if self.direct:
            fields = fields_of(handle)
            try:
                return system.fetch_mapping(
                    self._pidfd_number, layout.FDS.unpack(entry.fds)[0], entry.inode, entry.exposed_nbytes,
                    not entry.flags & layout.ENTRY_READ_ONLY, self.entry_address(fields.entry), fields.generation,
                )  # fmt: skip
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    raise from_os_error(error, self._mapping_of(entry)) from error
            except ValueError as error:
                raise InvalidHandleError(f"{self._mapping_of(entry)}: {error}") from error
        return self.mapped(entry, self.fetch(handle, entry))  # by another route, or an error

    def mapped(self, entry: Entry, fds: list[OwnedFd]) -> _native.Mapping:
        """Map the entry's memfd, which has been fetched. Closes the descriptors."""
        try:
            writable = not entry.flags & layout.ENTRY_READ_ONLY
            return system.import_mapping(fds[0].number, entry.inode, entry.exposed_nbytes, writable)
        except OSError as error:
            raise from_os_error(error, self._mapping_of(entry)) from error
        except ValueError as error:
            raise InvalidHandleError(f"{self._mapping_of(entry)}: {error}") from error
        finally:
            close_all(fds)

    def _mapping_of(self, entry: Entry) -> str:
        return f"mapping {entry.exposed_nbytes} bytes of process {self.pid}"


@final
class Turn(_RLock):  # type: ignore[misc]
    """A lock under which only one thread at a time makes a given object. The lock is re-entrant: a signal handler may
    make the object while the thread that it interrupted is about to. The interrupted code then uses that object.
    """

    keys: frozenset[Hashable] = frozenset()  # of the objects that are made together
    over = False  # the objects are made, together or natively, and each key has its own turn again
    # The text of the last `RouteError`. Not the error itself: its traceback holds the objects that failed, and so may
    # that of a copy (tblib, which Dask imports, has copies keep theirs).
    refusal: tuple[str, tuple[str, ...]] | None = None


class _Opening(NamedTuple):
    """A table entry that this process holds but has not imported yet."""

    key: Hashable
    fields: Fields
    what: Import
    lease: Lease


class _Asked(NamedTuple):
    """A table entry that this process holds and whose descriptors it has yet to fetch."""

    key: Hashable
    handle: Handle
    entry: Entry
    exporter: Hardware | None
    lease: Lease


@final
class Peers:
    """All peers of this process, and the cache of open objects.

    The cache, in `imports`, maps keys to the results of `make`. A key consists of the exporter, the number of its
    object, and the way in which the object was opened. The cache holds weak references: it never evicts an object in
    use, and keeps nothing alive.
    """

    __slots__ = (
        "_imported", "_lock", "_peers", "_pidfds", "_together", "_turns", "idle", "imports", "mapped",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant, since an object that dies while it is held may call `forget`
        self.imports: Final = Imports()
        self._peers: dict[bytes, Peer] = self.imports.peers
        self._imported: dict[Hashable, None] = {}  # of the host's memory that was imported before
        self._turns: dict[Hashable, ref[Turn]] = {}
        self._together: tuple[ref[Turn], ...] = ()  # those for several keys, which are not in `_turns`, either
        self._pidfds: list[int] = []  # of the peers that have one
        self.idle = Idle(self.sweep)
        self.mapped = _native.AddressMap()  # memory that is open

    def _turn(self, key: Hashable) -> Turn:
        with self._lock:
            for turn in self._turns_together() if self._together else ():
                if key in turn.keys:
                    return turn
            known = self._turns.get(key)
            found = None if known is None else known()
            if found is None:
                if len(self._turns) >= _TURNS:
                    self._forget_turns()
                found = Turn()
                self._turns[key] = ref(found)
            return found

    def _forget_turns(self) -> None:
        """Remove the turns (locks, see `Turn`) that no thread uses any more. The caller holds the lock of the peers."""
        self._turns = {key: turn for key, turn in self._turns.copy().items() if turn() is not None}

    def _turns_together(self) -> list[Turn]:
        return [turn for each in self._together if (turn := each()) is not None and not turn.over]

    def _turn_together(self, keys: Iterable[Hashable]) -> Turn:
        """Make one turn (a lock, see `Turn`) for all keys that have no turn yet."""
        with self._lock:
            self._forget_turns()
            others = self._turns_together()
            taken = (self._turns, *(other.keys for other in others))
            turn = Turn()
            turn.keys = frozenset(key for key in keys if not any(key in each for each in taken))
            self._together = (*map(ref, others), ref(turn))
        return turn

    def once(self, key: Hashable, find: Callable[[], T | None], make: Callable[[], T]) -> T:
        """Return the result of `find`. If it is None, return the result of `make`, which `find` returns from then on.
        Only one thread at a time works on a key. If `make` raises `RouteError`, the threads that were waiting meanwhile
        raise the same error.
        """
        while True:
            turn = self._turn(key)
            known = turn.refusal
            with turn:
                if turn.over:
                    continue
                found = find()
                if found is not None:
                    return found
                if turn.refusal is not None and turn.refusal is not known:
                    message, reasons = turn.refusal
                    raise RouteError(message, reasons=reasons)
                try:
                    return make()
                except RouteError as error:
                    turn.refusal = error.message, error.reasons
                    raise
                except XpuShareError:
                    found = find()  # a signal handler may have made it meanwhile
                    if found is not None:
                        return found
                    raise

    def peer(self, handle: Handle) -> Peer:
        """Return the exporter of `handle`. This process attaches to an exporter when it meets the exporter's first
        handle.
        """
        cookie = fields_of(handle).cookie
        found = self._peers.get(cookie)
        return (
            self.once(cookie, lambda: self._peers.get(cookie), lambda: self._meet(handle)) if found is None else found
        )

    def _meet(self, handle: Handle) -> Peer:
        cookie = fields_of(handle).cookie
        met = routes.meet(handle)
        try:
            found = self._peers[cookie] = Peer(handle, met)
            self._know()
        except BaseException:  # an interrupt; nothing stays with its traceback
            if cookie in self._peers:
                self._discard(cookie)
            else:
                met.domain.leave()
            del met
            raise
        return found

    def _lease(self, handle: Handle) -> Lease:
        """Take a lease of the handle's entry: record at the exporter that this process uses the entry."""
        fields = fields_of(handle)
        while True:
            peer = self.peer(handle)
            with self._lock:
                if self.knows(peer):  # otherwise another thread has just discarded it
                    return Lease(peer.domain, fields.entry, peer)

    def _discard(self, cookie: bytes) -> None:
        """Leave and forget an exporter after a failed open for which this process attached to it, unless another thread
        has opened something from it. Otherwise the error's traceback could keep the peer alive for long.
        """
        with self._lock:
            peer = self._peers.get(cookie)
            if peer is not None and peer.domain.leave_if_idle():
                del self._peers[cookie]
                self._know()

    def _know(self) -> None:
        with self._lock:
            met = list(self._peers.values())  # others add to it meanwhile, without the lock; and so to the cache
            self._pidfds = [peer.pidfd.number for peer in met if peer.pidfd is not None]

    def cached(self, key: Any, make: Callable[[], T], room: Room | None = None) -> T:
        """Return the living object that was made under `key`, or else the result of `make`, a `Resource` that notifies
        the cache when it dies. `room` limits how long the object is cached after its last use.
        """

        def find() -> T | None:
            known: T | None = self.imports.get(key)
            return self._taken(key, room) if known is None else known

        def fill() -> T:
            return self._remember(key, make(), room)

        found = find()
        return self.once(key, find, fill) if found is None else found

    def _taken(self, key: Any, room: Room | None) -> Any:
        """Return the closed object that is cached under `key`, open again, or None."""
        item = self.idle.take(key)
        if item is None or (room is HOST and not item.reopens[1].wake()):
            return None
        again: tuple[Any, ...] = (*item.reopens, item.end, True)
        return self._remember(key, _native.imported(*again), room)

    def _remember(self, key: Any, made: T, room: Room | None = None) -> T:
        """Cache `made` under `key`, and return it. If another thread has cached an object under the key first, return
        that object.
        """
        resource: Any = made
        keep = None
        if room is not None:
            resource.uses = room.uses
        if (reopens := resource.reopens) is None:
            pass
        elif room is HOST:
            if self._comes_again(key):
                keep = partial(self._keep, key, 0, HOST, reopens, 0)
        elif room is not None and (room.most_nbytes or room.prepare()):
            keep = partial(self._keep, key, resource.nbytes, room, reopens, resource.driver.descriptors)
        resource.on_death(self.imports.forget, key, keep)
        self.mapped.add(made)  # first: whoever finds it there may ask for its address
        found: T = self.imports.add(key, made)
        return found

    def _keep(
        self, key: Any, nbytes: int, room: Room, reopens: tuple[Any, ...], descriptors: int, end: _native.End
    ) -> None:
        """Cache a closed object, or release it if its exporter is known to be dead. The mapping holds no lease: the
        exporter may use the memory for other arrays, and this process does not read the memory until a handle of it is
        opened.
        """
        cookie = key[:16]
        if cookie in self._peers:
            if room is HOST:
                reopens[1].rest()
            self.idle.keep(key, cookie, nbytes, room, reopens, end, descriptors)

    def _comes_again(self, key: Any) -> bool:
        """Return whether the host memory with this key was imported before, so that it is worth keeping mapped. Records
        the import.
        """
        if key in self._imported:
            return key[:16] in self._peers and _native.start_warden()
        self._imported[key] = None
        if len(self._imported) > _RECENT:
            for old in list(self._imported)[:-_RECENT]:  # others may change the dictionary while this runs
                self._imported.pop(old, None)
        return False

    def acquire(self, wanted: Sequence[tuple[Any, ...]], taken: list[tuple[Any, Lease]]) -> None:
        """Open several objects. Each element of `wanted` is a tuple that begins with a handle and its opener. Appends
        to `taken` the object that the opener made, now or for an earlier open, and its lease.

        Native calls open the objects, all of one exporter together. An object that they cannot open is opened step by
        step, which raises an error with the reason. The objects before it are in `taken` then.
        """
        # A counted export is opened first: with its last open the others may end.
        alone = 1 if len(wanted) == 1 or fields_of(wanted[0][0]).flags & COUNTED else 0
        together: list[tuple[Any, Lease] | None] = []  # the last one first
        opened: tuple[Any, Lease] | None = None
        new: bytes | None = None
        try:
            for at, each in enumerate(wanted):
                handle, opener = each[0], each[1]
                fields = fields_of(handle)
                if at == alone:
                    if self.known(fields.cookie) is None:
                        new = fields.cookie
                        self.peer(handle)
                    together = self._open_together(wanted[alone:])
                    together.reverse()
                opened = together.pop() if together else None
                if opened is None:
                    key = fields.key(opener.number)
                    opened = self._open(key, fields, opener) or self._open_by_steps(handle, key, opener)
                if fields.flags & PICKLED or opener.own:
                    self.count(opened[1].peer, fields, opener.own)
                taken.append(opened)
        except BaseException:
            together.clear()  # released here, not when the traceback is
            opened = None
            if new is not None:
                self._discard(new)
            raise

    def _open_by_steps(self, handle: Handle, key: Any, opener: Opener) -> tuple[Any, Lease]:
        fields, cookie = fields_of(handle), key[:16]
        self.sweep()
        new = cookie not in self._peers
        lease: Lease | None = None
        counted: list[bool] = []
        try:
            if new:
                self.peer(handle)
                opened = self._open(key, fields, opener)
                if opened is not None:
                    return opened
            lease = self._lease(handle)
            peer: Peer = lease.peer
            if fields.flags & COUNTED:
                peer.expect_exported(handle)  # from here on the entry stays this export's: it is held
                # One C call, so that no interrupt can come between.
                counted.extend(map(peer.domain.take_open, (fields.entry,)))
                if not counted[0]:
                    peer.expect_live(handle)
                    raise HandleExpiredError(f"the handle has expired: {layout.REASONS[layout.REASON_OPENS]}")
            peer.entry(handle)  # first: a handle that is refused renews nothing that is kept
            made = self.cached(key, lambda: self._import(peer, handle, opener), opener.room)
            peer.entry(handle)  # still live? An import cached for another handle was not compared with this one
        except BaseException:
            if any(counted) and lease is not None:
                lease.peer.domain.give_open(fields.entry)
            del lease  # released here, not when the traceback is
            if new:
                self._discard(cookie)
            raise
        return made, lease

    @staticmethod
    def count(peer: Peer, fields: Fields, own: bool = False) -> None:
        """Record that a pickle was opened. With `own`, also record at the exporter that this process may export the
        memory itself from now on. Raises `HandleExpiredError` if the pickle's object has died and another process
        opened it first.
        """
        if fields.flags & PICKLED and not peer.domain.take_open(fields.entry) and peer.ends(fields.entry):
            raise HandleExpiredError(f"the handle has expired: {layout.REASONS[layout.REASON_PICKLE]}")
        if own:
            peer.domain.own(fields.entry)

    def known(self, cookie: bytes) -> Peer | None:
        """Return the exporter with that cookie, if this process has attached to it and does not know it to be dead."""
        if len(self._peers) > 1:  # if the only one is dead, reading its table shows that
            self.sweep()
        return self._peers.get(cookie)

    def stands(self, handle: Handle) -> bool:
        """Return whether the export behind a handle is still live. False if its exporter is unknown or dead."""
        fields = fields_of(handle)
        peer = self.known(fields.cookie)
        return peer is not None and peer.stands(fields)

    def _open(self, key: Any, fields: Fields, opener: Opener) -> tuple[Any, Lease] | None:
        """Open an object of a known exporter by one native call. Returns None if the call cannot open it."""
        opened = self.imports.hold(fields, key)
        if opened is not None:
            return opened
        peers = self._peers  # if there is only one, and it is dead, reading its table shows that
        peer = peers.get(key[:16]) if len(peers) == 1 else self.known(key[:16])
        if peer is None:
            return None
        if key in self.idle.items and (opened := self._reopened(peer, fields, key, opener)) is not None:
            return opened
        if opener.admit is not None:
            return None
        if opener.maps and not fields.flags & PICKLED:  # two threads may map it: one of the mappings is kept
            return self._open_new(peer, fields, key, opener, True)
        while True:
            turn = self._turn(key)  # keeps the turn alive while its lock is held
            with turn:
                if turn.over:
                    continue
                if self.imports.get(key) is not None:
                    return None
                opened = None if opener.native is None else opener.native(fields, peer)
                if opened is None:
                    return self._open_new(peer, fields, key, opener, False)
                return self._remember(key, opened[0], opener.room), opened[1]

    def _reopened(self, peer: Peer, fields: Fields, key: Any, opener: Opener) -> tuple[Any, Lease] | None:
        """Take a lease of an object that is still mapped. Returns None if the object is not mapped any more or its
        handle has expired.
        """
        held = peer.hold(fields)  # first: a handle that is refused renews nothing that is kept
        made = None if held is None else self._taken(key, opener.room)
        return None if held is None or made is None else (made, held[0])

    def _open_together(self, wanted: Sequence[tuple[Any, ...]]) -> list[tuple[Any, Lease] | None]:
        """Open each object by one native call, as `_open` does, if possible. Fetch the descriptors of the other objects
        with as few requests as possible, and import those objects together. The result contains None for each object
        that could not be opened. Opening such an object step by step raises the error.
        """
        opened: list[tuple[Any, Lease] | None] = [None] * len(wanted)
        known: dict[bytes, Peer | None] = {}
        together: dict[tuple[Peer, Opener], dict[Any, tuple[int, Handle]]] = {}
        try:
            for index, (handle, opener, *_others) in enumerate(wanted):
                fields = fields_of(handle)
                key = fields.key(opener.number)
                cookie = key[:16]
                if cookie not in known:
                    known[cookie] = self.known(cookie)
                peer = known[cookie]
                if peer is None:
                    continue
                opened[index] = self.imports.hold(fields, key)
                if opened[index] is not None:
                    continue
                if key in self.idle.items:
                    opened[index] = self._reopened(peer, fields, key, opener)
                elif peer.direct and opener.admit is None and opener.maps and not fields.flags & PICKLED:
                    try:
                        opened[index] = self._open(key, fields, opener)
                    except XpuShareError:  # there may be room later
                        continue
                else:
                    together.setdefault((peer, opener), {}).setdefault(key, (index, handle))
            for (peer, opener), opening in together.items():
                self._make_together(peer, opener, opening, opened)
        except BaseException:
            opened.clear()  # released here, not when the traceback is
            raise
        return opened

    def _make_together(
        self, peer: Peer, opener: Opener, opening: dict[Any, tuple[int, Handle]],
        opened: list[tuple[Any, Lease] | None],
    ) -> None:  # fmt: skip
        """Import the objects that no other thread is opening. `opening` maps each cache key to its index in `opened`
        and its handle.
        """
        turn = self._turn_together(opening)
        later: list[_Opening] = []
        asked: list[_Asked] = []
        fds = 0
        try:
            with turn:
                try:
                    for key, (_index, handle) in opening.items():
                        if key not in turn.keys or self.imports.get(key) is not None:
                            continue
                        number = len(later)
                        if opener.admit is None:
                            self._open_new(peer, fields_of(handle), key, opener, False, later)
                        if len(later) > number:
                            count = len(later[-1].what.fds)
                        elif (found := self._asked(peer, handle, key, opener)) is not None:
                            count = found.entry.fd_count
                            if fds and fds + count > _TOGETHER:
                                self._make_all(peer, opener, opening, later, asked, opened)
                                fds = 0
                            asked.append(found)
                        else:
                            continue
                        fds += count
                        if fds >= _TOGETHER:
                            self._make_all(peer, opener, opening, later, asked, opened)
                            fds = 0
                    self._make_all(peer, opener, opening, later, asked, opened)
                finally:
                    turn.over = True
        except XpuShareError:
            pass  # as in `_open_together`
        finally:
            close_all(fd for each in later for fd in each.what.fds)
            later.clear()  # as above
            asked.clear()

    def _asked(self, peer: Peer, handle: Handle, key: Any, opener: Opener) -> _Asked | None:
        """Take a lease of an entry whose descriptors Python has to request from the exporter. Returns the data for the
        request, or None if the entry cannot be opened together with others.
        """
        fields = fields_of(handle)
        if fields.flags & COUNTED:
            return None
        lease = Lease(peer.domain, fields.entry, peer)
        try:
            entry, exporter = self._expected(peer, handle, opener)
        except XpuShareError:
            return None
        return _Asked(key, handle, entry, exporter, lease)

    def _make_all(
        self, peer: Peer, opener: Opener, opening: dict[Any, tuple[int, Handle]], later: list[_Opening],
        asked: list[_Asked], opened: list[tuple[Any, Lease] | None],
    ) -> None:  # fmt: skip
        """Import the entries in `later`. Fetch the descriptors of the entries in `asked`, and import them, too. Empties
        both lists.
        """
        made: list[Any] = []
        lease: Lease | None = None
        fetched = peer.fetch_all([(each.handle, each.entry) for each in asked])
        try:
            for at, (key, handle, entry, exporter, lease) in enumerate(asked):
                if isinstance(fds := fetched[at], list):
                    try:
                        what = self._fetched(peer, handle, opener, entry, exporter, fds)
                    except XpuShareError:
                        continue
                    later.append(_Opening(key, fields_of(handle), what, lease))
                    fetched[at] = []  # they are `later`'s
            asked.clear()
            if not later:
                return
            if opener.make_all is not None and opener.admit is None:
                made = opener.make_all([each.what for each in later])
            else:
                made.extend(opener.make(each.what) for each in later)
            for at, (key, fields, what, lease) in enumerate(later):
                close_all(what.fds)
                if peer.stands(fields):  # else as in `_open_new`
                    opened[opening[key][0]] = self._remember(key, made[at], opener.room), lease
            later.clear()
        finally:
            close_all(fd for fds in fetched if isinstance(fds, list) for fd in fds)
            fetched.clear()
            made.clear()  # released here, not when the traceback is
            lease = what = None  # type: ignore[assignment]

    def _open_new(
        self, peer: Peer, fields: Fields, key: Any, opener: Opener, maps: bool, later: list[_Opening] | None = None
    ) -> tuple[Any, Lease] | None:
        """Open an object that is not open yet. With `later`, append the entry to that list and return None. The caller
        then imports the entry and closes its descriptors.
        """
        opened = peer.open(fields, maps)
        if opened is None:
            return None
        mapping, lease, nbytes, exposed_nbytes, payload, fds, offset, read_only, form = opened
        again = fields.flags & PICKLED != 0
        what: Import = _new(
            Import,
            (nbytes, exposed_nbytes, payload, fds, read_only, mapping, _FORMS[form], offset, None, again),
        )
        if later is not None:
            later.append(_Opening(key, fields, what, lease))
            return None
        try:
            made = opener.make(what)
        except BaseException:
            del opened, mapping, lease, what  # released here, not when the traceback is
            raise
        finally:
            if fds:
                close_all(fds)
        find = opener.find_native
        if find is not None:
            opener.native, opener.find_native = find(), None
        if mapping is None and not peer.stands(fields):
            return None  # withdrawn meanwhile: a driver may have taken it for something else
        return self._remember(key, made, opener.room), lease

    def _import(self, peer: Peer, handle: Handle, opener: Opener) -> Any:
        entry, exporter = self._expected(peer, handle, opener)
        fds = None if self._maps(opener, handle, entry) else peer.fetch(handle, entry)
        what = self._fetched(peer, handle, opener, entry, exporter, fds)
        try:
            return opener.make(what)
        finally:
            close_all(what.fds)

    @staticmethod
    def _expected(peer: Peer, handle: Handle, opener: Opener) -> tuple[Entry, Hardware | None]:
        """Read an entry, and raise unless it can be opened. If the exporter's device belongs to another backend, that
        device is returned, too.
        """
        entry = peer.entry(handle)
        exporter = None
        if opener.admit is not None:
            exporter = peer.hardware(handle, entry)
            opener.admit(entry.form, exporter)
        opener.expect_fds(entry.fd_count, entry.exposed_nbytes)
        return entry, exporter

    @staticmethod
    def _maps(opener: Opener, handle: Handle, entry: Entry) -> bool:
        return opener.maps and entry.form is Form.MEMFD and not fields_of(handle).flags & PICKLED

    @classmethod
    def _fetched(
        cls, peer: Peer, handle: Handle, opener: Opener, entry: Entry, exporter: Hardware | None,
        fds: list[OwnedFd] | None,
    ) -> Import:  # fmt: skip
        """Return the import of an entry with these descriptors. `fds` is None if they have not been fetched, which is
        allowed only for an entry that is mapped here.
        """
        mapping = None
        try:
            if cls._maps(opener, handle, entry):
                mapping = peer.map(handle, entry) if fds is None else peer.mapped(entry, fds)
                fds = None
            fields = fields_of(handle)
            return Import(
                entry.nbytes, entry.exposed_nbytes, entry.payload[: entry.payload_nbytes], fds or [],
                bool(entry.flags & layout.ENTRY_READ_ONLY), mapping, entry.form, entry.offset, exporter,
                bool(fields.flags & PICKLED),
            )  # fmt: skip
        except BaseException:
            close_all(fds or ())
            raise

    def open_slot(self, handle: Handle, make: Callable[[_native.Domain, int], T]) -> tuple[T, Lease]:
        """Open an event's slot. Return the object and the lease of the slot. `make` makes the object, unless an earlier
        open has made it. An event has no memory to import.
        """
        fields = fields_of(handle)
        known = self.known(fields.cookie)
        held = None if known is None else known.hold(fields)
        if known is not None and held is not None:
            holding, index = held
            key = known.cookie, "slot", index
            found = self.imports.get(key)
            if found is None:  # two threads may make it: one is kept
                found = self._remember(key, make(known.domain, index))
            if known.stands(fields):
                if fields.flags & PICKLED:
                    self.count(known, fields)
                return found, holding
        self.sweep()
        new = fields.cookie not in self._peers
        lease: Lease | None = None
        try:
            lease = self._lease(handle)
            peer: Peer = lease.peer
            index = peer.entry(handle).slot
            found = self.cached((peer.cookie, "slot", index), lambda: make(peer.domain, index))
            peer.expect_exported(handle)
        except BaseException:
            del lease  # released here, not when the traceback is
            if new:
                self._discard(fields.cookie)
            raise
        self.count(peer, fields)
        return found, lease

    def sweep(self) -> None:
        """Forget dead peers. Their descriptors are closed once nothing is open from them."""
        peers = self._peers
        if not peers or (len(self._pidfds) == len(peers) and not _native.dead(self._pidfds)):
            return
        gone: list[bytes] = []
        with self._lock:  # with the lock, since a peer that `_discard` has left cannot be queried
            for peer in list(peers.values()):
                if not peer.alive():
                    peers.pop(peer.cookie, None)
                    gone.append(peer.cookie)
            self._know()
        for cookie in gone:
            self.idle.forget(cookie)

    def knows(self, peer: Peer) -> bool:
        """Return whether the peer was alive at the last sweep."""
        return self._peers.get(peer.cookie) is peer

    def maps(self, address: int) -> bool:
        """Return whether `address` lies in memory that is open here."""
        return self.mapping_at(address) is not None

    def mapping_at(self, address: int) -> Any:
        """Return the open memory that contains `address`, or None."""
        return self.mapped.find(address)

    def statistics(self) -> dict[str, int]:
        return {"peers": len(self._peers), "mapped": len(self.imports.objects()), "kept_nbytes": self.idle.nbytes}

    def leave(self) -> None:
        """Leave all exporters, at a clean exit."""
        for peer in list(self._peers.values()):
            peer.domain.leave()
