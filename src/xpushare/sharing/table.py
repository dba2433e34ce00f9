"""The table of this process's exports: only this process writes it, and its importers read it."""

from __future__ import annotations

import itertools
import os
import resource
import secrets
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple, final

from xpushare import _native, _system
from xpushare._errors import HandleExpiredError, InvalidArgumentError, OutOfMemoryError, from_os_error
from xpushare._native import Template
from xpushare.adapters.base import DeviceInfo, Export
from xpushare.sharing import door, identity, layout
from xpushare.sharing.handle import KIND_NUMBERS, NAMES_DEVICE, Handle, fields_of, handle_of, pack, raw_of

__all__ = ["Exported", "Exporting", "Table", "deadline_in"]

_FORM_BIT: Final = layout.ENTRY_FORM_BIT
_REMEMBERED: Final = 1 << 16  # ended exports whose reason is kept for the message, and for a `put` that comes later
_ENDING_TRIES: Final = 8  # of each kind; more than one, so that exports that are over go faster than new ones come
_OUTLIVED_TRIES: Final = 2  # the same where an object dies, which has been exported before
_LOST_MANY: Final = 100
_NAMED: Final = 1 << 12


def deadline_in(nanoseconds: int) -> int:
    """That many nanoseconds from now, as entries and the commons say it."""
    return time.monotonic_ns() + nanoseconds


class Exporting(NamedTuple):
    """What `Table.export_all` exports."""

    prepared: Template
    source: Any
    offset: int
    nbytes: int
    read_only: bool
    keep: Any


@final
class Exported:
    """One live export: it holds its source."""

    __slots__ = ("deadline", "foreign", "handle", "implicit", "keep", "nbytes", "outlives", "source")

    def __init__(self, handle: Handle, source: Any, keep: Any, foreign: bool, implicit: bool, nbytes: int) -> None:
        self.handle = handle
        self.source = source  # what an open in this very process gets
        self.keep = keep  # what else has to stay: the array of another library
        self.foreign = foreign  # held for importers even after `put`
        self.implicit = implicit  # made by pickling
        self.nbytes = nbytes  # of the whole object
        self.outlives = False  # made by pickling, and its object has died
        self.deadline = 0  # as its entry has it

    def exports(self, source: object) -> bool:
        """Whether this is an export of `source` (physical memory exports a tuple of that and what keeps it)."""
        held: Any = self.source
        return held is source or (isinstance(held, tuple) and any(each is source for each in held))  # pyright: ignore


class _Waiting(NamedTuple):
    """What pickles hold, at most, that wait for their first open."""

    nbytes: int
    number: int


@final
class Table:
    """This process as an exporter. Made at the first export or event; lives until the process ends."""

    __slots__ = (
        "_devices",
        "_ending",
        "_entries",
        "_expired_pickles",
        "_exports",
        "_fd",
        "_lingering",
        "_lock",
        "_lost",
        "_lost_told",
        "_mapping",
        "_named",
        "_put",
        "_serving",
        "_view",
        "_waiting",
        "address",
        "cookie",
        "domain",
        "exporting",
    )

    def __init__(self) -> None:
        self.cookie = secrets.token_bytes(16)
        # Re-entrant: the garbage collector may run anywhere, and delete a pickled object, whose export ends with it.
        self._lock = threading.RLock()
        self._ending: OrderedDict[int, Exported] = (
            OrderedDict()
        )  # what ends by itself: counted, with a ttl, and those of dead objects
        self._waiting: dict[bytes, _Waiting] = {}  # by device
        self._lost: set[int] = set()  # generations
        self._lost_told = False
        self._expired_pickles = 0
        self._devices: dict[tuple[str, str], tuple[bytes, int]] = {}
        # What `_device` says of those of which memory was exported, by the id of the object that describes each.
        self.exporting: dict[int, tuple[DeviceInfo, bytes, int]] = {}
        self._exports: dict[int, Exported] = {}
        # Ordered dicts: the first item of a plain one is found the slower, the more before it have gone.
        self._put: OrderedDict[int, int] = OrderedDict()  # generation -> reason, for the exporter's own message
        self._lingering: OrderedDict[int, Any] = OrderedDict()  # entry -> foreign source that importers still have open
        self._named: OrderedDict[Hashable, int] = OrderedDict()  # serials of other libraries' allocations; newest last
        self._serving = False
        self._make()

    def _make(self) -> None:
        doing = "making this process's table"
        try:
            table = _system.memfd("xpushare-table")
            _system.resize(table.number, layout.TABLE_NBYTES)
            self._mapping = _system.Mapping(table.number, layout.TABLE_NBYTES)
            commons = _system.memfd("xpushare-commons")
            _system.resize(commons.number, layout.COMMONS_NBYTES)
            _system.seal(commons.number, _system.F_SEAL_SHRINK | _system.F_SEAL_GROW | _system.F_SEAL_SEAL)
            inode = _system.fstat(commons.number).st_ino
            bell = _system.bell()
            _system.seal(
                table.number,
                _system.F_SEAL_SHRINK | _system.F_SEAL_GROW | _system.F_SEAL_FUTURE_WRITE | _system.F_SEAL_SEAL,
            )
            self.domain = _system.join(commons, bell, self.cookie, True)
        except OSError as error:
            raise from_os_error(error, doing) from error
        self._fd = table
        self.address = self._mapping.address
        self._view = memoryview(_native.Span(self.address, layout.TABLE_NBYTES, False, self._mapping))
        layout.TABLE.pack_into(
            self._view, 0, layout.TABLE_MAGIC, layout.TABLE_VERSION, os.getpid(), self.cookie,
            identity.namespace("pid"), self.domain.fd, self.domain.bell, inode,
        )  # fmt: skip
        common = pack(
            pid=os.getpid(),
            pid_namespace=identity.namespace("pid"),
            net_namespace=identity.namespace("net"),
            table_fd=self._fd.number,
            cookie=self.cookie,
        )
        self._entries = _native.OwnTable(self._mapping, common)

    def new_object(self) -> int:
        """A new serial number, which names an allocation for the importers' caches."""
        return self._entries.new_object()

    def object_named(self, name: Hashable) -> int:
        """The serial number of another library's allocation, the same whenever it is exported."""
        with self._lock:
            known = self._named.get(name, 0)
            if known:
                self._named.move_to_end(name)
            else:
                known = self._named[name] = self._entries.new_object()
                if len(self._named) > _NAMED:
                    self._named.popitem(last=False)
        return known

    def prepare(self, kind: str, device: DeviceInfo, what: Export, serial: int) -> Template:
        """What exports of an object say, as long as `what` is so. `serial`: of `new_object`, or 0."""
        nbytes, exposed_nbytes, fds, inode, payload, on_demand, form, offset = what
        flags = form << _FORM_BIT
        count = len(fds)
        if on_demand is not None:
            flags |= layout.ENTRY_ON_DEMAND
            fds, count = (), len(on_demand.objects)
        elif count > layout.FDS_INLINE:
            raise InvalidArgumentError(f"more than {layout.FDS_INLINE} fds are handed out on demand only")
        if len(payload) > layout.PAYLOAD_NBYTES:
            raise InvalidArgumentError(f"an export's payload is at most {layout.PAYLOAD_NBYTES} bytes")
        names, number = self._device(device)
        if kind == "memory":
            self.exporting[id(device)] = device, names, number
        return self._entries.prepare(
            KIND_NUMBERS[kind], flags, names, number, serial, nbytes, exposed_nbytes, inode, offset, count, fds,
            payload, on_demand,
        )  # fmt: skip

    def export(
        self,
        prepared: Template,
        source: Any,
        *,
        offset: int = 0,
        nbytes: int = 0,
        read_only: bool = False,
        slot: int = 0,
        keep: Any = None,
        foreign: bool = False,
        implicit: bool = False,
        opens: int | None = None,
        ttl: int | None = None,
    ) -> Handle:
        """Publish one export and make its handle; it holds `source` until `put`, or for `ttl` nanoseconds."""
        flags = layout.ENTRY_READ_ONLY if read_only else 0
        if opens is not None:
            flags |= layout.ENTRY_COUNTED
        if implicit:
            flags |= layout.ENTRY_PICKLED
        ended: list[Any] | None = None  # dropped outside the lock: their release may call us
        with self._lock:
            if not self._serving:
                self._start()
            if self._lingering or self._ending:
                ended = self._sweep()
            handle = self._publish(prepared, source, offset, nbytes, flags, slot, keep, foreign, opens, ttl)
        del ended
        return handle

    def export_all(self, found: Sequence[Exporting], read_only: bool, implicit: bool = False) -> list[Handle]:
        """As many exports of memory, at one go: all of them, or none."""
        ended: list[Any] | None = None  # as above
        handles: list[Handle] = []
        pickled = layout.ENTRY_PICKLED if implicit else 0
        with self._lock:
            if not self._serving:
                self._start()
            if self._lingering or self._ending:
                ended = self._sweep_for(len(found))
            try:
                for prepared, source, offset, nbytes, own, keep in found:
                    flags = pickled | (layout.ENTRY_READ_ONLY if read_only or own else 0)
                    handles.append(
                        self._publish(prepared, source, offset, nbytes, flags, 0, keep, source.foreign, None, None)
                    )
            except BaseException:
                self.withdraw_all(handles, layout.REASON_PUT)
                raise
        del ended
        return handles

    def _publish(
        self, prepared: Template, source: Any, offset: int, nbytes: int, flags: int, slot: int, keep: Any,
        foreign: bool, opens: int | None, ttl: int | None,
    ) -> Handle:  # fmt: skip
        """With the lock: fill in an entry, which is live when this returns."""
        on_demand = prepared.on_demand
        implicit = bool(flags & layout.ENTRY_PICKLED)
        entry = self._take_entry()
        generation = self._entries.next_generation()
        try:  # no call comes between what takes something and the block that gives it back: one may be interrupted
            handle = handle_of(
                *self._entries.enter(identity.sealing(), prepared, entry, generation, flags, slot, offset, nbytes)
            )
            if opens is not None or implicit:
                self.domain.set_opens(entry, opens or 0)
            if on_demand is not None:
                _native.offer(entry, generation, *on_demand)
            exported = self._exports[generation] = Exported(handle, source, keep, foreign, implicit, prepared.nbytes)
            if ttl is not None:
                self._set_deadline(exported, deadline_in(ttl))
            if opens is not None or ttl is not None:
                self._ending[generation] = exported
            self._entries.publish(entry, generation)  # last: now it is live
        except BaseException:
            _native.withdraw(self._entry_address(entry), layout.REASON_PUT)
            self._ending.pop(generation, None)
            if generation in self._exports:
                del self._exports[generation]
            self._entries.give(entry)
            raise
        return handle

    def _start(self) -> None:
        identity.user_key()  # makes the runtime folder where there is to be one
        try:
            with door.opening(self.cookie) as file:
                _system.serve(self.address, self._fd.number, self.domain, file)
        except OSError as error:
            raise from_os_error(error, "starting to serve importers") from error
        self._serving = True

    def _entry_address(self, entry: int) -> int:
        return self.address + layout.TABLE_ENTRIES + entry * layout.ENTRY_NBYTES

    def _device(self, device: DeviceInfo) -> tuple[bytes, int]:
        """The bytes by which handles name the device, and 1 + its index in the table's header (0 if that is full)."""
        key = device.backend, device.uuid
        known = self._devices.get(key)
        if known is not None:
            return known
        with self._lock:
            found = self._devices.get(key)
            if found is None:
                driver_uuid = uuid.UUID(device.driver_uuid).bytes if device.driver_uuid else b""
                raw = layout.DEVICE.pack(
                    device.backend.encode(), uuid.UUID(device.uuid).bytes, device.pci.encode(), driver_uuid
                )
                names = raw[:32]
                index = len(self._devices)
                if index >= layout.DEVICE_COUNT:
                    return names, 0
                at = layout.TABLE_DEVICES + index * layout.DEVICE.size
                self._view[at : at + layout.DEVICE.size] = raw
                found = self._devices[key] = names, 1 + index
            return found

    def _take_entry(self) -> int:
        entry = self._entries.take(self.domain)
        if entry is None:
            raise OutOfMemoryError(f"this process has {layout.ENTRY_COUNT} live exports: put the ones no longer needed")
        return entry

    def _set_deadline(self, found: Exported, deadline: int) -> None:
        found.deadline = deadline
        _native.store64(self.address + layout.DEADLINES + 8 * fields_of(found.handle).entry, deadline)

    def _overdue(self, found: Exported) -> bool:
        """Whether its deadline has passed."""
        if not found.deadline:
            return False
        renewed = self.domain.renewed(fields_of(found.handle).entry) if found.implicit else 0
        return time.monotonic_ns() >= max(found.deadline, renewed)

    def _why_over(self, found: Exported) -> int:
        """Why an export ends now; 0 where it does not. Whoever has it open may have yet to fetch its fds, or may pass
        it on. Who takes the last open holds the entry before, and gives it back, or renews it, before its hold ends: so
        ask for the reason, for holders, and for the reason again.
        """
        if not self._reason(found) or self.domain.holders(fields_of(found.handle).entry):
            return 0
        return self._reason(found)

    def _reason(self, found: Exported) -> int:
        """Why an export ends once nobody has it open; 0 where it does not."""
        used_up = not self.domain.opens_left(fields_of(found.handle).entry)
        if found.implicit:
            return layout.REASON_PICKLE if found.outlives and (used_up or self._overdue(found)) else 0
        if used_up and fields_of(found.handle).flags & layout.ENTRY_COUNTED:
            return layout.REASON_OPENS
        return layout.REASON_TTL if self._overdue(found) else 0

    def _end(self, found: Exported, reason: int) -> None:
        """End an export that nobody has open, unless what the garbage collector or a signal's handler runs just did."""
        fields = fields_of(found.handle)
        self._ending.pop(fields.generation, None)
        if self._exports.pop(fields.generation, None) is not None:
            self._remember(fields.generation, reason)
            _native.withdraw(self._entry_address(fields.entry), reason)
            self._entries.give(fields.entry)

    def _remember(self, generation: int, reason: int) -> None:
        self._lost.discard(generation)
        if reason != layout.REASON_PUT:
            self._put[generation] = reason
            if len(self._put) > _REMEMBERED:
                self._put.popitem(last=False)

    def _sweep(self, tries: int = _ENDING_TRIES) -> list[Any]:
        """End what is over: foreign memory that nobody has open any more, and exports that end by themselves. Returns
        what the caller must drop.
        """
        ended: list[Any] = []
        if not self._lingering and not self._ending:
            return ended
        for entry in list(itertools.islice(self._lingering, tries)):
            lingers = self._lingering.get(entry)
            if lingers is None:
                continue
            if self.domain.holders(entry):
                try:
                    self._lingering.move_to_end(entry)  # the others are looked at next time
                except KeyError:  # as in `_end`
                    pass
            elif self._lingering.pop(entry, None) is not None:
                self._entries.give(entry)
                ended.append(lingers)
        for generation in list(itertools.islice(self._ending, tries)):
            found = self._ending.get(generation)
            if found is None:
                continue
            reason = 0 if self.domain.holders(fields_of(found.handle).entry) else self._why_over(found)
            if reason:
                self._end(found, reason)
                ended.append(found)
                continue
            try:  # suppress() takes longer
                self._ending.move_to_end(generation)
            except KeyError:  # as in `_end`
                pass
        return ended

    def _sweep_for(self, count: int) -> list[Any]:
        """`_sweep`, before as many exports or after as many withdrawals: of as much as each by itself would look at."""
        return self._sweep(_ENDING_TRIES - 1 + count)

    def sweep(self, everything: bool = False) -> bool:
        """End what is over, or some of it, and say whether there was any. Exports and withdrawals also do that."""
        if not self._lingering and not self._ending:
            return False
        with self._lock:
            tries = max(len(self._ending), len(self._lingering)) if everything else _ENDING_TRIES
            ended = self._sweep(tries)
        return bool(ended)

    def find(self, handle: Handle) -> Exported:
        """The live export behind a handle of this very process."""
        fields = fields_of(handle)
        found = self._exports.get(fields.generation)
        if found is None or found.handle != handle:
            raise HandleExpiredError(self.why_expired(fields.generation))
        if self._overdue(found):
            reason = layout.REASON_PICKLE if found.implicit else layout.REASON_TTL
            raise HandleExpiredError(f"the handle has expired: {layout.REASONS[reason]}")
        return found

    def why_expired(self, generation: int) -> str:
        return f"the handle has expired: {layout.REASONS[self._put.get(generation, layout.REASON_PUT)]}"

    def put(self, handle: Handle) -> None:
        """Withdraw the handle. Raises `InvalidArgumentError` if it is not from this process or was put before."""
        if fields_of(handle).cookie != self.cookie:
            raise InvalidArgumentError(
                f"put is for the process that exported: this handle is from pid {fields_of(handle).pid}"
            )
        if not self.withdraw(handle, layout.REASON_PUT):
            raise InvalidArgumentError("this handle was put before")

    def withdraw(self, handle: Handle, reason: int) -> bool:
        """End the export. False if it had ended before; but `put` of a freed one counts as the first."""
        ended: list[Any] | None = None
        with self._lock:
            found = self._withdrawn(handle, reason)
            if found is not None and (self._lingering or self._ending):
                ended = self._sweep()
        ends = found is not None
        del found, ended  # the source may die now, outside the lock: its release may call us
        return ends

    def withdraw_all(self, handles: Sequence[Handle], reason: int) -> None:
        """`withdraw` of each, at one go."""
        with self._lock:
            gone = [self._withdrawn(handle, reason) for handle in handles]
            ended = self._sweep_for(len(gone))
        del gone, ended  # as above

    def _withdrawn(self, handle: Handle, reason: int) -> Exported | bool | None:
        """With the lock: what a withdrawal ends. None if it had ended before, but true for the first `put` of what was
        freed.
        """
        fields = fields_of(handle)
        found = self._exports.get(fields.generation)
        if found is None or (found.handle is not handle and found.handle != handle):
            if reason == layout.REASON_PUT and self._put.get(fields.generation, reason) != reason:
                self._put[fields.generation] = reason
                return True
            return None
        self._remember(fields.generation, reason)
        _native.withdraw(self._entry_address(fields.entry), reason)  # once more does no harm
        lingers = found.foreign and self.domain.holders(fields.entry)
        entry, generation = fields.entry, fields.generation
        del self._exports[generation]
        self._ending.pop(generation, None)
        if lingers:
            self._lingering[entry] = found
        else:
            self._entries.give(entry)
        return found

    # --- pickles: their exports outlive the objects, until they were opened or their time is over

    def give_open(self, handle: Handle) -> bool:
        """One open more: a pickle is made, or an open came to nothing. False if the export has ended, whose entry may
        be another's by now.
        """
        fields = fields_of(handle)
        with self._lock:
            live = fields.generation in self._exports
            if live:
                self.domain.give_open(fields.entry)
        return live

    def renew(self, handle: Handle, grace: int) -> bool:
        """An import of this very process is pickled on: its export is good for one open more. False if it has ended."""
        fields = fields_of(handle)
        with self._lock:
            live = fields.generation in self._exports
            if live:
                self.domain.renew(fields.entry, deadline_in(grace))
        return live

    def outlive(self, handles: Sequence[Handle], grace: int, most_nbytes: int) -> None:
        """The objects behind pickles of memory of one device have died. What nobody has opened yet is good for `grace`
        nanoseconds more, unless such pickles hold more than `most_nbytes` of the device; what somebody has open may
        still be passed on.
        """
        over: list[Handle] = []
        waiting: list[Exported] = []
        dropped: list[Any] = []
        found: Exported | None = None
        with self._lock:
            for handle in handles:
                fields = fields_of(handle)
                found = self._exports.get(fields.generation)
                if found is None:
                    continue
                waits = self.domain.opens_left(fields.entry) > 0  # first: who takes an open holds the entry before
                if grace > 0 and (waits or self.domain.holders(fields.entry)):
                    found.outlives = True
                    self._set_deadline(found, deadline_in(grace if waits else 0))
                    self._ending[fields.generation] = found
                    if waits and found.nbytes:
                        waiting.append(found)
                else:
                    over.append(handle)
            if waiting:
                dropped = self._make_room(waiting, most_nbytes)
            expired = len(dropped)
            dropped += self._sweep(_OUTLIVED_TRIES)
        del dropped, waiting, found  # outside the lock: their release may call us
        if over:
            self.withdraw_all(over, layout.REASON_FREED)
        if expired:
            self._tell_expired(expired)

    def _make_room(self, newest: list[Exported], most_nbytes: int) -> list[Any]:
        """End the oldest pickles of a device that wait for their first open, where they hold too much. An allocation
        counts once, however many pickles hold it, and the newest ones, which came together, are always allowed.
        """
        device = raw_of(newest[0].handle)[NAMES_DEVICE]
        fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most_number = layout.ENTRY_COUNT if fds == resource.RLIM_INFINITY else fds // 2  # each may hold one
        before = self._waiting.get(device, _Waiting(0, 0))
        estimate = _Waiting(before.nbytes + sum([each.nbytes for each in newest]), before.number + len(newest))
        self._waiting[device] = estimate
        if estimate.nbytes <= most_nbytes and estimate.number <= most_number:
            return []
        stay = {fields_of(each.handle).object for each in newest}
        waiting: dict[int, list[Exported]] = {}  # by allocation, in the order of their oldest pickles
        for each in sorted(self._ending.values(), key=lambda each: each.deadline):
            fields = fields_of(each.handle)
            waits = each.outlives and raw_of(each.handle)[NAMES_DEVICE] == device
            if waits and each.nbytes and self.domain.opens_left(fields.entry):
                waiting.setdefault(fields.object, []).append(each)
        nbytes = sum(each[0].nbytes for each in waiting.values())
        number = sum(map(len, waiting.values()))
        ended: list[Any] = []
        for serial, pickles in waiting.items():
            if nbytes <= most_nbytes and number <= most_number:
                break
            if serial not in stay and not any(self.domain.holders(fields_of(each.handle).entry) for each in pickles):
                for each in pickles:
                    self._end(each, layout.REASON_PICKLE)
                ended += pickles
                nbytes -= pickles[0].nbytes
                number -= len(pickles)
        self._waiting[device] = _Waiting(nbytes, number)
        return ended

    def _tell_expired(self, count: int) -> None:
        before, self._expired_pickles = self._expired_pickles, self._expired_pickles + count
        if before.bit_length() != self._expired_pickles.bit_length():  # each time that there are twice as many
            import logging

            logging.getLogger("xpushare").warning(
                "%d pickles that nobody had opened have expired, the oldest first, since they held too much: "
                "XPUSHARE_PICKLE_BYTES bytes of a device and half of `ulimit -n` are the most",
                self._expired_pickles,
            )

    def wait_for_pickles(self, deadline: float) -> None:
        """Wait until each pickle of this process has been opened or has expired; at most until `deadline`, in seconds
        of `time.monotonic`.
        """
        pause = 0.001
        while self.pickles_wait() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(pause * 2, 0.02)

    def pickles_wait(self) -> bool:
        """Whether a pickle of this process that has not expired waits to be opened."""
        with self._lock:
            exports = [each for each in self._exports.values() if each.implicit]
        return any(self.domain.opens_left(fields_of(each.handle).entry) and not self._overdue(each) for each in exports)

    # --- exports that nobody will close

    def lose(self, handle: Handle) -> bool:
        """The object that `share` returned is gone, unclosed. True if its export lives on, until this process ends."""
        fields = fields_of(handle)
        with self._lock:
            found = self._exports.get(fields.generation)
            lost = found is not None and not found.deadline and not fields.flags & layout.ENTRY_COUNTED
            if lost:
                self._lost.add(fields.generation)
            tell = not self._lost_told and len(self._lost) >= _LOST_MANY
            self._lost_told = self._lost_told or tell
        if tell:
            import logging

            logging.getLogger("xpushare").warning(
                "%d exports of xs.share are held although nobody can close them any more: share with opens= or ttl=, "
                "or keep the handle and close it. -W default::ResourceWarning -X tracemalloc shows where each was made",
                _LOST_MANY,
            )
        return lost

    def held_objects(self) -> set[int]:
        """The serials of what importers have open."""
        return {
            _native.load64(self._entry_address(entry) + layout.OBJECT_AT)
            for entry in range(self._entries.used)
            if self.domain.holders(entry)
        }

    def statistics(self) -> dict[str, int]:
        with self._lock:
            return {
                "exports": len(self._exports),
                "lingering": len(self._lingering),
                "entries_used": self._entries.used,
            }

    def exports(self) -> list[Exported]:
        self.sweep()
        with self._lock:
            return list(self._exports.values())

    def leave(self) -> None:
        """Clean exit."""
        if self._serving:
            door.close(self.cookie)
        self.domain.leave()
