"""The exporters that this process knows, the objects it has open from each, and the cache of its mappings."""

from __future__ import annotations

import errno
import itertools
import re
import resource
import threading
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar, final
from weakref import ref

from xpushare import _native
from xpushare._native import Fields, Imports, Lease, PeerTable, Refusal, load64
from xpushare.adapters.base import Form, Hardware, Import
from xpushare.common.errors import (
    HandleExpiredError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
    RouteError,
    XpuShareError,
    exporter_gone,
)
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing import layout, routes
from xpushare.sharing.handle import COUNTED, PICKLED, Handle, fields_of
from xpushare.sharing.idle import HOST, Idle, Room
from xpushare.sharing.refusals import Blocked, error_of

__all__ = ["OpenNative", "Opener", "Peer", "Peers", "Turn"]

T = TypeVar("T")
_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`
_FORMS: Final = tuple(Form)  # by their numbers
_TOGETHER: Final = _native.CONSTANTS["FDS_AT_ONCE"]  # descriptors fetched at a time: as many as one answer carries
_RLock: Any = type(threading.RLock())
_TURNS: Final = 64  # number of turns from which unused ones are searched for
_RECENT: Final = 64  # imports of the host's memory that are remembered: as many as can be idle
_PCI: Final = re.compile(rb"(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?")


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

    __slots__ = (
        "admit",
        "find_native",
        "least_per_fd",
        "make",
        "make_all",
        "maps",
        "native",
        "number",
        "own",
        "room",
        "short",
    )

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
        self.short: Final = maps and admit is None  # by one native call alone, if pidfd_getfd works

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


@final
class Peer(PeerTable):
    """One exporter, known by its table, which is mapped once. This process is a member of the exporter's commons, the
    memory that the exporter and its importers all write. There the exporter sees which objects are open.
    """

    __slots__ = ("_mapping", "_table_fd", "address", "cookie", "domain", "pid", "pidfd")

    def __new__(cls, handle: Handle, met: routes.Met) -> Self:  # noqa: ARG004 - as `__init__`
        # pidfd_getfd is worth trying for every object: nothing that refuses it changes while both processes live.
        return PeerTable.__new__(
            cls, met.mapping, met.domain, -1 if met.pidfd is None else met.pidfd.number, met.direct
        )

    def __init__(self, handle: Handle, met: routes.Met) -> None:
        fields = fields_of(handle)
        self.cookie = fields.cookie
        self.pid = fields.pid
        self.domain = met.domain
        self.pidfd = met.pidfd
        self.address = met.mapping.address
        self._mapping = met.mapping
        self._table_fd = met.table

    def alive(self) -> bool:
        if self.pidfd_number >= 0:
            return not _native.dead([self.pidfd_number])
        return _native.lock_holder(self.domain.fd, layout.LIFE) is not None

    def ends(self, entry: int) -> bool:
        """Return whether the entry has a deadline. A pickle's entry has one once the pickled object has died."""
        return load64(self.address + layout.TABLE_DEADLINES + entry * 8) != 0

    def expect_stands(self, handle: Handle) -> None:
        """Raise `HandleExpiredError` unless the handle's entry is live. The exporter may have died."""
        self._done(self.ended(fields_of(handle)), handle)

    def expect_live(self, handle: Handle) -> None:
        """Raise `HandleExpiredError` unless the handle's entry is live and the exporter is alive."""
        self.expect_stands(handle)
        if not self.alive():
            raise exporter_gone(self.pid, "its pidfd says so")

    def hardware(self, handle: Handle, device: int) -> Hardware:
        """Return the device that an entry gives by number. Raises `InvalidHandleError` unless the handle names the same
        device.
        """
        fields = fields_of(handle)
        if not device:  # the header was full
            return Hardware(handle.backend, handle.device_uuid, "", "")
        if device <= layout.DEVICE_COUNT:
            view = memoryview(_native.Span(self.address, layout.TABLE_NBYTES, True, self._mapping))
            at = layout.TABLE_DEVICES + (device - 1) * layout.DEVICE.size
            backend, device_uuid, pci, driver_uuid = layout.DEVICE.unpack_from(view, at)
            pci = pci.rstrip(b"\0")
            if (backend, device_uuid) == (fields.backend, fields.device_uuid) and _PCI.fullmatch(pci):
                driver = str(uuid.UUID(bytes=driver_uuid)) if any(driver_uuid) else ""
                return Hardware(handle.backend, handle.device_uuid, pci.decode(), driver)
        raise InvalidHandleError(f"process {self.pid} says of the handle's device what cannot be")

    @staticmethod
    def _done(found: T | Refusal, handle: Handle) -> T:
        """Return what a native call has found, or raise the error for its refusal."""
        if isinstance(found, Refusal):
            raise error_of(found, fields_of(handle))
        return found

    def held(self, handle: Handle) -> tuple[Lease, int]:
        """Take a lease of the handle's entry. Returns it and the entry's slot."""
        return self._done(self.hold(fields_of(handle)), handle)

    def wanted(self, handle: Handle, opener: Opener) -> tuple[routes.Wanted, Hardware | None]:
        """Read an entry, and raise unless it can be opened. Returns what a route has to bring, and the exporter's
        device if it belongs to another backend.
        """
        form, device, fd_count, exposed_nbytes = self._done(self.find(fields_of(handle)), handle)
        exporter = None
        if opener.admit is not None:
            exporter = self.hardware(handle, device)
            opener.admit(_FORMS[form], exporter)
        opener.expect_fds(fd_count, exposed_nbytes)
        return routes.Wanted(handle, fd_count), exporter

    def opened(
        self, handle: Handle, opener: Opener, exporter: Hardware | None = None, fds: list[OwnedFd] | None = None
    ) -> tuple[Import, Lease]:
        """Open an entry by one native call, with the descriptors if a route has brought them. Raises `Blocked` if a
        route has to bring them.
        """
        fields = fields_of(handle)
        again = fields.flags & PICKLED != 0
        if fds is not None:
            found = self.open(fields, opener.maps and not again, fds)
        else:
            exporter = None if opener.admit is None else self.wanted(handle, opener)[1]
            found = self.open(fields, opener.maps and not again)
        if isinstance(found, Refusal):
            close_all(fds or ())
            raise error_of(found, fields)
        mapping, lease, nbytes, exposed_nbytes, payload, left, offset, read_only, form = found
        what: Import = _new(
            Import,
            (nbytes, exposed_nbytes, payload, left, read_only, mapping, _FORMS[form], offset, exporter, again),
        )
        return what, lease


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
    """An entry that this process holds but has not imported yet."""

    key: Hashable
    fields: Fields
    what: Import
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
        again: tuple[Any, ...]
        if room is HOST:
            rested = self.idle.host.pop(key, None)
            if rested is None or not rested[1][1].wake():
                return None
            again = (*rested[1], rested[2], True)
        elif (item := self.idle.take(key)) is None:
            return None
        else:
            again = (*item.reopens, item.end, True)
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
                keep = partial(self._keep_host, key, reopens)
        elif room is not None and (room.most_nbytes or room.prepare()):
            keep = partial(self._keep, key, resource.nbytes, room, reopens, resource.driver.descriptors)
        resource.on_death(self.imports.forget, key, keep)
        self.mapped.add(made)  # first: whoever finds it there may ask for its address
        found: T = self.imports.add(key, made)
        return found

    def _keep(
        self, key: Any, nbytes: int, room: Room, reopens: tuple[Any, ...], descriptors: int, end: _native.End
    ) -> None:
        """Cache a closed object, or release it if its exporter is known to be dead."""
        cookie = key[:16]
        if cookie in self._peers:
            self.idle.keep(key, cookie, nbytes, room, reopens, end, descriptors)

    def _keep_host(self, key: Any, reopens: tuple[Any, ...], end: _native.End) -> None:
        """Cache a closed object of the host's memory likewise. The mapping holds no lease: the exporter may use the
        memory for other arrays, and this process does not read the memory until a handle of it is opened.
        """
        reopens[1].rest()
        self.idle.keep_host(key, key[:16], reopens, end)

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

        The objects of one exporter are opened together. An object that cannot be opened so is opened alone, which
        raises an error with the reason. The objects before it are in `taken` then.
        """
        # A counted export is opened first: with its last open the others may end.
        alone = 1 if len(wanted) == 1 or fields_of(wanted[0][0]).flags & COUNTED else 0
        together: list[tuple[Any, Lease] | None] = []  # the last one first
        opened: tuple[Any, Lease] | None = None
        met: set[bytes] = set()
        try:
            for at, each in enumerate(wanted):
                handle, opener = each[0], each[1]
                fields = fields_of(handle)
                if at == alone:
                    self._met(handle, met)
                    self._open_together(wanted[alone:], together)
                    together.reverse()
                opened = together.pop() if together else None
                if opened is None:
                    opened = self._open(handle, fields.key(opener.number), opener, met)
                if fields.flags & PICKLED or opener.own:
                    self.count(opened[1].peer, fields, opener.own)
                if fields.flags & COUNTED:
                    opened[1].spend()
                taken.append(opened)
        finally:
            together.clear()  # released here, not when a traceback is
            opened = None
            self._discard_idle(met)

    def _met(self, handle: Handle, met: set[bytes]) -> Peer:
        """Return the exporter of `handle`, as `peer` does. If this process attaches to it now, add it to `met`."""
        cookie = fields_of(handle).cookie
        found = self.known(cookie)
        if found is None:
            met.add(cookie)
            found = self.peer(handle)
        return found

    def _discard_idle(self, met: set[bytes]) -> None:
        """Leave the exporters that this process has met for an open that failed. Nothing of them is open."""
        for cookie in met:
            self._discard(cookie)

    def _stays(self, peer: Peer) -> bool:
        """Return whether the peer is alive, and no other thread has just left it."""
        with self._lock:
            self.sweep()
            return self.knows(peer)

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

    def _open(self, handle: Handle, key: Any, opener: Opener, met: set[bytes]) -> tuple[Any, Lease]:
        """Open one object, or find it open. Returns it and its lease. Exporters that are met are added to `met`."""
        fields = fields_of(handle)
        peers = self._peers
        while True:
            found = self.imports.hold(fields, key)
            if found is not None:
                return found
            # If there is only one, and it is dead, reading its table shows that.
            peer = (peers.get(key[:16]) if len(peers) == 1 else None) or self._met(handle, met)
            try:
                if key in self.idle.host or key in self.idle.items:
                    found = self._find(peer, fields, key, opener)
                    if found is not None:
                        return found
                if opener.short and peer.direct and not fields.flags & PICKLED:
                    return self._import(peer, handle, key, opener)  # two threads may map it: one mapping is kept
                return self.once(
                    key,
                    partial(self._find, peer, fields, key, opener),
                    partial(self._import, peer, handle, key, opener),
                )
            except (HandleExpiredError, InvalidArgumentError):
                if self._stays(peer):
                    raise  # else meeting it again says how it has ended

    def _find(self, peer: Peer, fields: Fields, key: Any, opener: Opener) -> tuple[Any, Lease] | None:
        """Return what is open or still mapped under the key, and a new lease of it. Returns None if there is nothing,
        or the handle is refused.
        """
        found = self.imports.hold(fields, key)
        if found is not None or (key not in self.idle.host and key not in self.idle.items):
            return found
        held = peer.hold(fields)  # first: a handle that is refused renews nothing that is kept
        made = None if isinstance(held, Refusal) else self._taken(key, opener.room)
        return None if isinstance(held, Refusal) or made is None else (made, held[0])

    def _import(self, peer: Peer, handle: Handle, key: Any, opener: Opener) -> tuple[Any, Lease]:
        """Open an object that is not open yet."""
        fields = fields_of(handle)
        natively = None if opener.native is None else opener.native(fields, peer)
        if natively is not None:
            return self._remember(key, natively[0], opener.room), natively[1]
        try:
            what, lease = peer.opened(handle, opener)
        except Blocked:
            what, lease = self._fetched(peer, handle, opener)
        made: Any = None
        try:
            made = opener.make(what)
            find = opener.find_native
            if find is not None:
                opener.native, opener.find_native = find(), None
            if what.mapping is None:  # withdrawn meanwhile? A driver may have taken it for something else
                peer.expect_stands(handle)
            return self._remember(key, made, opener.room), lease
        finally:
            if what.fds:
                close_all(what.fds)
            what = lease = made = None  # type: ignore[assignment]  # released here, not when a traceback is

    @staticmethod
    def _fetched(peer: Peer, handle: Handle, opener: Opener) -> tuple[Import, Lease]:
        """Open an entry by descriptors that a route brings."""
        wanted, exporter = peer.wanted(handle, opener)
        [fds] = routes.fetch(peer, [wanted])
        try:
            if isinstance(fds, XpuShareError):
                raise fds
            return peer.opened(handle, opener, exporter, fds)
        finally:
            del fds  # an error's traceback refers to this frame

    def _open_together(self, wanted: Sequence[tuple[Any, ...]], opened: list[tuple[Any, Lease] | None]) -> None:
        """Open each object by one native call, as `_open` does, if possible. Fetch the descriptors of the other objects
        with as few requests as possible, and import those objects together. Fills `opened`, with None for each object
        that could not be opened. Opening such an object alone raises the error.
        """
        opened.extend([None] * len(wanted))
        known: dict[bytes, Peer | None] = {}
        together: dict[tuple[Peer, Opener], dict[Any, tuple[int, Handle]]] = {}
        for index, (handle, opener, *_others) in enumerate(wanted):
            fields = fields_of(handle)
            key = fields.key(opener.number)
            cookie = key[:16]
            if cookie not in known:
                known[cookie] = self.known(cookie)
            peer = known[cookie]
            if peer is None:
                continue
            try:
                opened[index] = self._find(peer, fields, key, opener)
                if opened[index] is None and opener.short and peer.direct and not fields.flags & PICKLED:
                    opened[index] = self._import(peer, handle, key, opener)
                elif opened[index] is None:
                    together.setdefault((peer, opener), {}).setdefault(key, (index, handle))
            except XpuShareError:  # there may be room later
                continue
        for (peer, opener), opening in together.items():
            self._make_together(peer, opener, opening, opened)

    def _make_together(
        self, peer: Peer, opener: Opener, opening: dict[Any, tuple[int, Handle]],
        opened: list[tuple[Any, Lease] | None],
    ) -> None:  # fmt: skip
        """Import the objects that no other thread is opening. `opening` maps each cache key to its index in `opened`
        and its handle.
        """
        turn = self._turn_together(opening)
        later: list[_Opening] = []
        blocked: list[tuple[Any, Handle]] = []
        asked: list[tuple[Any, routes.Wanted, Hardware | None]] = []
        fds = 0
        try:
            with turn:
                try:
                    for key, (_index, handle) in opening.items():
                        if key not in turn.keys or self.imports.get(key) is not None:
                            continue
                        try:
                            later.append(_Opening(key, fields_of(handle), *peer.opened(handle, opener)))
                        except Blocked:
                            blocked.append((key, handle))
                            continue
                        except XpuShareError:
                            continue
                        fds += len(later[-1].what.fds)
                        if fds >= _TOGETHER:
                            self._make_all(peer, opener, opening, later, asked, opened)
                            fds = 0
                    for key, handle in blocked:
                        try:
                            wanted, exporter = peer.wanted(handle, opener)
                        except XpuShareError:
                            continue
                        if fds and fds + wanted.fd_count > _TOGETHER:
                            self._make_all(peer, opener, opening, later, asked, opened)
                            fds = 0
                        asked.append((key, wanted, exporter))
                        fds += wanted.fd_count
                    self._make_all(peer, opener, opening, later, asked, opened)
                finally:
                    turn.over = True
        except XpuShareError:
            pass  # as in `_open_together`
        finally:
            close_all(fd for each in later for fd in each.what.fds)
            later.clear()  # released here, not when a traceback is
            asked.clear()

    def _make_all(
        self, peer: Peer, opener: Opener, opening: dict[Any, tuple[int, Handle]], later: list[_Opening],
        asked: list[tuple[Any, routes.Wanted, Hardware | None]], opened: list[tuple[Any, Lease] | None],
    ) -> None:  # fmt: skip
        """Import the entries in `later`. Fetch the descriptors of the entries in `asked`, and import them, too. Empties
        both lists.
        """
        made: list[Any] = []
        lease: Lease | None = None
        fetched = routes.fetch(peer, [wanted for _key, wanted, _exporter in asked]) if asked else []
        try:
            for at, (key, wanted, exporter) in enumerate(asked):
                if isinstance(fds := fetched[at], list):
                    fetched[at] = []
                    with suppress(XpuShareError):
                        what, lease = peer.opened(wanted.handle, opener, exporter, fds)
                        later.append(_Opening(key, fields_of(wanted.handle), what, lease))
            asked.clear()
            if not later:
                return
            if opener.make_all is not None and opener.admit is None:
                made = opener.make_all([each.what for each in later])
            else:
                made.extend(opener.make(each.what) for each in later)
            for at, (key, fields, what, lease) in enumerate(later):
                close_all(what.fds)
                if peer.stands(fields):  # else as in `_import`
                    opened[opening[key][0]] = self._remember(key, made[at], opener.room), lease
            later.clear()
        finally:
            close_all(fd for fds in fetched if isinstance(fds, list) for fd in fds)
            fetched.clear()
            made.clear()  # released here, not when the traceback is
            lease = what = fds = None  # type: ignore[assignment]

    def open_slot(self, handle: Handle, make: Callable[[_native.Domain, int], T]) -> tuple[T, Lease]:
        """Open an event's slot. Return the object and the lease of the slot. `make` makes the object, unless an earlier
        open has made it. An event has no memory to import.
        """
        lease: Lease | None = None
        met: set[bytes] = set()
        try:
            while True:
                peer = self._met(handle, met)
                try:
                    lease, index = peer.held(handle)
                    break
                except (HandleExpiredError, InvalidArgumentError):
                    if self._stays(peer):
                        raise
            found = self.cached((peer.cookie, "slot", index), lambda: make(peer.domain, index))
            peer.expect_stands(handle)
            self.count(peer, fields_of(handle))
            return found, lease
        finally:
            lease = None  # released here, not when a traceback is
            self._discard_idle(met)

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
