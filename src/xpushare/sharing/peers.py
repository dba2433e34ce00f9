"""The exporters that this process knows, what it has open from each, and the cache of what it mapped."""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, Final, NamedTuple, TypeVar, final
from weakref import WeakValueDictionary

from xpushare import _native, _system
from xpushare._errors import HandleExpiredError, InvalidHandleError, OutOfMemoryError, from_os_error
from xpushare._fds import OwnedFd, close_all
from xpushare.adapters.base import Import
from xpushare.sharing import layout, routes
from xpushare.sharing.handle import COUNTED, KIND_NUMBERS, Handle

__all__ = ["Lease", "Peer", "Peers"]

T = TypeVar("T")
_TABLE_SEALS: Final = _system.F_SEAL_SHRINK | _system.F_SEAL_FUTURE_WRITE


class Entry(NamedTuple):
    """An entry of a peer's table, as it was read; the names of docs/layout.md."""

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
    fds: tuple[int, ...]
    payload: bytes


@final
class Peer:
    """One exporter, by its table. Mapped once; membership in its commons keeps what is open visible to it."""

    def __init__(self, handle: Handle) -> None:
        fields = handle._fields
        attachment = routes.attach(handle)
        doing = f"mapping the table of process {fields.pid}"
        try:
            if _system.read_seals(attachment.table.number) & _TABLE_SEALS != _TABLE_SEALS:
                raise InvalidHandleError(f"{doing}: it is not sealed")
            if _system.fstat(attachment.table.number).st_size != layout.TABLE_NBYTES:
                raise InvalidHandleError(f"{doing}: it has the wrong size")
            self._mapping = _system.Mapping(attachment.table.number, layout.TABLE_NBYTES, 0, False)
            self.address = self._mapping.address
            self._view = memoryview(_native.Span(self.address, layout.TABLE_NBYTES, True, self._mapping))
            magic, version, _pid, cookie, _ns, _commons, _bell, inode = layout.TABLE.unpack_from(self._view)
            if (magic, version, cookie) != (layout.TABLE_MAGIC, layout.TABLE_VERSION, fields.cookie):
                raise InvalidHandleError(f"{doing}: it is not the one that the handle names")
            if _system.fstat(attachment.commons.number).st_ino != inode:
                raise InvalidHandleError(f"{doing}: its commons is another file")
            self.domain = _system.Domain(attachment.commons.number, attachment.bell.number, cookie, False)
        except OSError as error:
            close_all((attachment.table, attachment.commons, attachment.bell))
            if error.errno == errno.ENOSPC:
                raise OutOfMemoryError(
                    f"process {fields.pid} serves as many importing processes as it can (1023)", native=error.errno
                ) from error
            raise from_os_error(error, doing) from error
        except ValueError as error:
            close_all((attachment.table, attachment.commons, attachment.bell))
            if isinstance(error, InvalidHandleError):
                raise
            raise InvalidHandleError(f"{doing}: {error}") from error
        attachment.commons.take(), attachment.bell.take()
        attachment.table.close()
        self.cookie = cookie
        self.pid = fields.pid
        self.left = False
        self._attachment = attachment

    @property
    def pidfd(self) -> OwnedFd | None:
        return self._attachment.pidfd

    def alive(self) -> bool:
        if self.pidfd is not None:
            return not _native.dead([self.pidfd.number])
        return _native.lock_holder(self.domain.fd, layout.LIFE) is not None

    def entry_address(self, entry: int) -> int:
        return self.address + layout.TABLE_ENTRIES + entry * layout.ENTRY_NBYTES

    def expect_live(self, handle: Handle) -> None:
        """The handle's entry is live in the table of a living process, now; else `HandleExpiredError`."""
        self.expect_exported(handle)
        if not self.alive():
            raise HandleExpiredError(f"the exporter, process {self.pid}, is gone: it ended")

    def expect_exported(self, handle: Handle) -> None:
        """The handle's entry is live in the table, whose process may have died; else `HandleExpiredError`."""
        fields = handle._fields
        if fields.entry >= layout.ENTRY_COUNT:
            raise InvalidHandleError("the handle names no entry of a table")
        address = self.entry_address(fields.entry)
        if _native.load64(address) != fields.generation:
            retired, reason = struct.unpack_from("<QI", self._view, address - self.address + layout.RETIRED_AT)
            if retired != fields.generation:
                reason = layout.REASON_PUT
            raise HandleExpiredError(
                f"the handle has expired: {layout.REASONS.get(reason, 'its exporter withdrew it')}"
            )

    def entry(self, handle: Handle) -> Entry:
        """The handle's entry, checked against the handle. The caller asks `expect_live` again once it has used it."""
        self.expect_exported(handle)
        at = layout.TABLE_ENTRIES + handle._fields.entry * layout.ENTRY_NBYTES
        values = layout.ENTRY.unpack_from(self._view, at)
        entry = Entry._make((*values[:13], values[13:-1], values[-1]))
        fields = handle._fields
        if (
            (entry.kind, entry.nonce, entry.object) != (KIND_NUMBERS[handle.kind], fields.nonce, fields.object)
            or fields.offset + fields.nbytes > entry.nbytes
            or entry.nbytes > entry.exposed_nbytes
            or entry.payload_nbytes > layout.PAYLOAD_NBYTES
            or (entry.fd_count > layout.FDS_INLINE and not entry.flags & layout.ENTRY_ON_DEMAND)
        ):
            raise InvalidHandleError(f"the handle does not fit what process {self.pid} exports under it")
        return entry

    def fetch(self, handle: Handle, entry: Entry) -> list[OwnedFd]:
        """The entry's fds, certainly those of this handle."""
        if not entry.fd_count:
            return []
        numbers = None if entry.flags & layout.ENTRY_ON_DEMAND else entry.fds
        fds = routes.fetch(self._attachment, handle, numbers, entry.fd_count)
        try:
            self.expect_exported(handle)
            if entry.inode and _system.fstat(fds[0].number).st_ino != entry.inode:
                raise HandleExpiredError("the handle has expired: its file descriptor number was used again")
        except BaseException:
            close_all(fds)
            raise
        return fds


@final
class Lease:
    """This process has an entry of a peer open: counted, seen by the exporter, gone with this object or this process."""

    __slots__ = ("_entry", "peer")

    def __init__(self, peer: Peer, entry: int) -> None:
        peer.domain.hold(entry)
        self.peer = peer
        self._entry = entry

    def __del__(self) -> None:
        if hasattr(self, "_entry") and not self.peer.left:
            self.peer.domain.drop(self._entry)


@final
class Peers:
    """All peers of this process and the open cache.

    The cache maps (exporter, its object, how it was opened) to what `make` returned, for as long as that lives: it counts by
    references, so it never evicts what is in use and keeps nothing that is not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[bytes, Peer] = {}
        self._cache: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._busy: dict[Hashable, threading.Lock] = {}
        self._pidfds: list[int] = []  # of the peers that have one

    def _once(self, store: MutableMapping[Any, Any], key: Hashable, make: Callable[[], Any]) -> Any:
        """What `store` has under `key`, else what `make` makes: by one thread at a time for this key; other keys go on."""
        with self._lock:
            lock = self._busy.setdefault(key, threading.Lock())
        with lock:
            try:
                found = store.get(key)
                if found is None:
                    found = store[key] = make()
                return found
            finally:
                with self._lock:
                    self._busy.pop(key, None)

    def peer(self, handle: Handle) -> Peer:
        """The exporter of `handle`, attached to at the first handle from it."""
        cookie = handle._fields.cookie
        found = self._peers.get(cookie)
        if found is None:
            found = self._once(self._peers, cookie, lambda: Peer(handle))
            self._pidfds = [peer.pidfd.number for peer in list(self._peers.values()) if peer.pidfd is not None]
        return found

    def acquire(self, handle: Handle, opened_as: Hashable, make: Callable[[Import], T]) -> tuple[T, Lease]:
        """What `make` made of the handle's object, now or for an earlier open, and the lease that goes with it."""
        self.sweep()
        fields = handle._fields
        peer = self._peers.get(fields.cookie) or self.peer(handle)
        lease = Lease(peer, fields.entry)
        counted = fields.flags & COUNTED
        if counted and not peer.domain.take_open(fields.entry):
            peer.expect_live(handle)
            raise HandleExpiredError(f"the handle has expired: {layout.REASONS[layout.REASON_OPENS]}")
        try:
            key = (fields.cookie, fields.object, opened_as)
            found: T | None = self._cache.get(key)
            if found is None:
                found = self._once(self._cache, key, lambda: self._make(peer, handle, make))
            peer.expect_exported(handle)
        except BaseException:
            if counted:
                peer.domain.give_open(fields.entry)
            raise
        return found, lease

    def _make(self, peer: Peer, handle: Handle, make: Callable[[Import], T]) -> T:
        entry = peer.entry(handle)
        fds = peer.fetch(handle, entry)
        try:
            payload = entry.payload[: entry.payload_nbytes]
            return make(Import(entry.nbytes, entry.exposed_nbytes, payload, fds, bool(entry.flags & layout.ENTRY_READ_ONLY)))
        finally:
            close_all(fds)

    def acquire_slot(self, handle: Handle, make: Callable[[_native.Domain, int], T]) -> tuple[T, Lease]:
        """What `make` made of the event's slot, now or for an earlier open. Needs no fds."""
        self.sweep()
        peer = self.peer(handle)
        lease = Lease(peer, handle._fields.entry)
        index = peer.entry(handle).slot
        key = (peer.cookie, "slot", index)
        found: T | None = self._cache.get(key)
        if found is None:
            found = self._once(self._cache, key, lambda: make(peer.domain, index))
        peer.expect_exported(handle)
        return found, lease

    def sweep(self) -> None:
        """Forget dead peers; their fds go with the last thing open from them."""
        peers = self._peers
        if not peers or (len(self._pidfds) == len(peers) and not _native.dead(self._pidfds)):
            return
        for peer in list(peers.values()):
            if not peer.alive():
                peers.pop(peer.cookie, None)
        self._pidfds = [peer.pidfd.number for peer in list(peers.values()) if peer.pidfd is not None]

    def knows(self, peer: Peer) -> bool:
        """The peer was alive at the last sweep."""
        return self._peers.get(peer.cookie) is peer

    def statistics(self) -> dict[str, int]:
        return {"peers": len(self._peers), "mapped": len(self._cache)}

    def leave(self) -> None:
        """Clean exit."""
        for peer in list(self._peers.values()):
            peer.left = True
            peer.domain.leave()
