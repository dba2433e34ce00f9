"""The table of this process's exports. Only this process writes it; its importers read it."""

from __future__ import annotations

import itertools
import os
import resource
import sys
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final
from weakref import WeakKeyDictionary

from xpushare import _native
from xpushare._native import DUPLICATE, End, Exported, Template
from xpushare.adapters.base import DeviceInfo, Export, Form, Hardware, Import
from xpushare.common import system
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    HandleExpiredError,
    InvalidArgumentError,
    OutOfMemoryError,
    XpuShareError,
    doing,
    from_os_error,
)
from xpushare.common.fds import OnDemand, OwnedFd, close_all
from xpushare.common.loading import logger
from xpushare.common.texts import readable
from xpushare.sharing import door, identity, layout
from xpushare.sharing.handle import KIND_NUMBERS, Fields, Handle, fields_of, pack

__all__ = [
    "Allocations",
    "Exported",
    "LABEL_MOST",
    "Owned",
    "Table",
    "deadline_in",
    "descriptors",
    "expect_lasting",
    "label_argument",
    "labels",
]

_FORM_BIT: Final = layout.ENTRY_FORM_BIT
_REMEMBERED: Final = 1 << 16  # ended exports whose reason is remembered, for messages and for a later `put`
# Expired exports of each kind that one call ends; more than one, so that they end faster than new ones are made.
_ENDING_TRIES: Final = 8
_OUTLIVED_TRIES: Final = 2  # the same when an exported object dies
# Foreign memory in use at which one call looks, in turn, since a look takes a system call. Each export has two calls.
_PATIENCE: Final = 1
_LOST_MANY: Final = 100
_UNREFERENCED: Final = 2  # references to a `Handle` to which only its `Exported` refers, with the argument itself


class _Labels(WeakKeyDictionary[Any, str]):
    data: dict[Any, str]


labels: Final = _Labels()
"""The labels of exported objects. Usually empty, which `labels.data` shows without a call of a Python function."""


def deadline_in(nanoseconds: int) -> int:
    """Return the monotonic time `nanoseconds` from now, in the form that the shared memory of exporter and importers
    stores.
    """
    return time.monotonic_ns() + nanoseconds


class _Held(NamedTuple):
    """What a pickle keeps of one allocation until it is opened."""

    nbytes: int
    fds: int


Allocations = dict[tuple[bytes, int], _Held]
"""Allocations that pickles keep, by the device's names in handles and the serial number."""


def _too_much(before: int, more: int, most: int) -> bool:
    """Return whether a message that keeps `more` has to be refused, because earlier ones keep `before`. A message that
    is larger than the limit is accepted as long as the earlier ones are within it.
    """
    return before + more > most and (more <= most or before > most)


@final
class _Given:
    """A handle that was given to `publish`. Its export ends when its object and all versions have left it."""

    __slots__ = ("left", "versions")

    def __init__(self) -> None:
        self.versions: set[object] = set()  # those that hold it
        self.left = False  # whether the object was closed or dropped while versions held it


@final
class Table:
    """The exports of this process. Created at the first export or event, and never closed before the process ends."""

    __slots__ = (
        "_devices",
        "_elsewhere",
        "_ending",
        "_entries",
        "_fd",
        "_lingering",
        "_lock",
        "_lost",
        "_lost_told",
        "_mapping",
        "_put",
        "_serving",
        "_view",
        "_waiting",
        "_waiting_fds",
        "address",
        "common",
        "cookie",
        "domain",
        "given",
        "native",
        "object_named",
        "of_range",
    )

    def __init__(self) -> None:
        with doing("making this process's table"):
            self.cookie = os.getrandom(16)
        # Re-entrant: the garbage collector may run anywhere, and delete a pickled object, whose export ends with it.
        self._lock = threading.RLock()
        self._ending: OrderedDict[int, Exported] = (
            OrderedDict()
        )  # exports that end by themselves: counted, with a ttl, or of dead objects
        # At least what pickles keep that wait for their first open: bytes by device, and descriptors.
        self._waiting: dict[bytes, int] = {}
        self._waiting_fds = 0
        self._lost: set[int] = set()  # generations
        self._elsewhere: set[int] = set()  # generations of pickles that any process may open
        self._lost_told = False
        self.given: dict[int, _Given] = {}  # handles that were given to `publish`, by generation
        self._devices: dict[tuple[str, str], tuple[bytes, int]] = {}
        # Ordered dicts, since finding the first item of a plain dict gets slower with each item removed before it.
        self._put: OrderedDict[int, int] = OrderedDict()  # generation -> reason, for the exporter's own message
        self._lingering: OrderedDict[int, Exported] = OrderedDict()  # ended, but importers may use it; by entry
        self._serving = False
        self._make()

    def _make(self) -> None:
        doing = "making this process's table"
        try:
            table = system.memfd("xpushare-table")
            system.resize(table.number, layout.TABLE_NBYTES)
            self._mapping = system.Mapping(table.number, layout.TABLE_NBYTES)
            commons = system.memfd("xpushare-commons")
            system.resize(commons.number, layout.COMMONS_NBYTES)
            system.seal(commons.number, system.F_SEAL_SHRINK | system.F_SEAL_GROW | system.F_SEAL_SEAL)
            inode = system.fstat(commons.number).st_ino
            bell = system.bell()
            system.seal(
                table.number,
                system.F_SEAL_SHRINK | system.F_SEAL_GROW | system.F_SEAL_FUTURE_WRITE | system.F_SEAL_SEAL,
            )
            self.domain = system.join(commons, bell, self.cookie, True)
        except OSError as error:
            raise from_os_error(error, doing) from error
        self._fd = table
        self.address = self._mapping.address
        self._view = memoryview(_native.Span(self.address, layout.TABLE_NBYTES, False, self._mapping))
        layout.TABLE.pack_into(
            self._view, 0, layout.TABLE_MAGIC, layout.TABLE_VERSION, os.getpid(), self.cookie,
            identity.namespace("pid"), self.domain.fd, self.domain.bell, inode,
        )  # fmt: skip
        self.common = pack(
            pid=os.getpid(),
            pid_namespace=identity.namespace("pid"),
            net_namespace=identity.namespace("net"),
            table_fd=self._fd.number,
            cookie=self.cookie,
        )
        self._entries = _native.OwnTable(self._mapping, self.common, self.domain)
        self.native = self._entries
        self.of_range = self._entries.of_range
        self.object_named = self._entries.object_named

    def new_object(self) -> int:
        """Return a new serial number. It names an allocation in importers' caches."""
        return self._entries.new_object()

    def prepare(self, kind: str, device: DeviceInfo | Hardware, what: Export, serial: int) -> Template:
        """Return the data that all exports of an object have in common. It is valid as long as the description of the
        object, `what`, stays the same. `serial` is a result of `new_object`, or 0 for an event.
        """
        nbytes, exposed_nbytes, fds, inode, payload, on_demand, form, offset = what
        if on_demand is not None:
            fds = ()
        elif len(fds) > layout.FDS_INLINE:
            raise InvalidArgumentError(f"more than {layout.FDS_INLINE} fds are handed out on demand only")
        if len(payload) > layout.PAYLOAD_NBYTES:
            raise InvalidArgumentError(f"an export's payload is at most {layout.PAYLOAD_NBYTES} bytes")
        names, number = self._devices.get((device.backend, device.uuid)) or self._device(device)
        return self._entries.prepare(
            KIND_NUMBERS[kind], form << _FORM_BIT, names, number, serial, nbytes, exposed_nbytes, inode, offset, fds,
            payload, *(on_demand or ()),
        )  # fmt: skip

    def export(
        self,
        exports: Sequence[Exported],
        opens: int | None = None,
        ttl: int | None = None,
        into: list[Handle] | None = None,
    ) -> list[Handle]:
        """Publish these exports and return their handles: all of them, or none. Each export keeps its source alive
        until the export is withdrawn, was opened `opens` times, or `ttl` nanoseconds have passed. The handles are also
        appended to `into`.
        """
        if not self._serving or self._lingering or self._ending:
            self.ready(len(exports))
        deadline = 0 if ttl is None else deadline_in(ttl)
        try:
            seal = identity.seal or identity.sealing()
            handles = self._entries.export(seal, exports, opens, deadline)
            if handles is None:
                raise OutOfMemoryError(
                    f"this process has {layout.ENTRY_COUNT} live exports: put the ones no longer needed"
                )
            if opens is not None or ttl is not None:
                with self._lock:
                    self._ending.update({each.generation: each for each in exports})
            if labels.data:
                for each, handle in zip(exports, handles, strict=True):
                    text = labels.get(each.source)
                    if text is not None:
                        self.label(handle, text)
            if into is not None:
                into.extend(handles)
        except BaseException as error:  # perhaps an interrupt, after they were published
            with self._lock:
                for each in exports:
                    self._end(each, layout.REASON_PUT)
            if isinstance(error, OSError) and not isinstance(error, XpuShareError):
                raise from_os_error(error, "exporting") from error
            raise
        return handles

    def ready(self, count: int) -> None:
        """Start to serve importers, and end some expired exports. Called before `count` exports are made."""
        ended: list[Any] | None = None
        self.serve()
        if self._lingering or self._ending:
            with self._lock:
                ended = self._sweep_for(count)
        del ended  # released outside the lock, since that may call this table

    def serve(self) -> None:
        """Serve importers from now on."""
        if not self._serving:
            with self._lock:
                if not self._serving:
                    self._start()

    def _start(self) -> None:
        identity.user_key()  # makes the runtime folder if necessary
        try:
            with door.opening(self.cookie) as file:
                system.serve(self.address, self._fd.number, self.domain, file)
        except OSError as error:
            raise from_os_error(error, "starting to serve importers") from error
        self._serving = True

    def _entry_address(self, entry: int) -> int:
        return self.address + layout.TABLE_ENTRIES + entry * layout.ENTRY_NBYTES

    def _device(self, device: DeviceInfo | Hardware) -> tuple[bytes, int]:
        """Return the bytes by which handles name the device, and 1 + its index in the table's header (0 if the header
        is full).
        """
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

    def _overdue(self, found: Exported) -> bool:
        """Return whether the export's deadline has passed."""
        if not found.deadline:
            return False
        renewed = self.domain.renewed(found.entry) if found.implicit else 0
        return time.monotonic_ns() >= max(found.deadline, renewed)

    def _why_over(self, found: Exported) -> int:
        """Return the reason why an export ends now, or 0 if it does not end yet.

        An export does not end while a process holds a lease of it, since that process may still fetch the descriptors
        or pass them on. A process takes its lease before it counts down the number of times that the export may still
        be opened. If it then fails to open the export, it counts up again before it ends the lease. So this method
        checks the reason, then the leases, then the reason again.
        """
        if not self._reason(found) or self.domain.holders(found.entry):
            return 0
        return self._reason(found)

    def _reason(self, found: Exported) -> int:
        """Return the reason why an export ends once no process has it open, or 0 if it does not end by itself."""
        used_up = not self.domain.opens_left(found.entry)
        if found.implicit:
            return layout.REASON_PICKLE if found.outlives and (used_up or self._overdue(found)) else 0
        if used_up and fields_of(found.handle).flags & layout.ENTRY_COUNTED:
            return layout.REASON_OPENS
        return layout.REASON_TTL if self._overdue(found) else 0

    def _end(self, found: Exported, reason: int) -> None:
        """End an export unless it has ended. The caller holds the lock."""
        self._ending.pop(found.generation, None)
        if found.live:
            self._remember(found.generation, reason)
            if self._entries.end(found, reason):
                self._lingering[found.entry] = found

    def _remember(self, generation: int, reason: int) -> None:
        self._lost.discard(generation)
        self.given.pop(generation, None)
        self._elsewhere.discard(generation)
        if reason != layout.REASON_PUT:
            self._put[generation] = reason
            if len(self._put) > _REMEMBERED:
                self._put.popitem(last=False)

    def _sweep(self, tries: int = _ENDING_TRIES, patience: int = _PATIENCE) -> list[Any]:
        """End the exports that have expired, and release ended exports whose memory no importer has open or uses any
        more. Returns the objects that the caller must drop outside the lock.

        At most `tries` exports of each sort are checked. The check of ended exports stops after `patience` exports
        whose memory is still in use.
        """
        ended: list[Any] = []
        if not self._lingering and not self._ending:
            return ended
        used = 0
        for entry in list(itertools.islice(self._lingering, tries)):
            lingers = self._lingering.get(entry)
            if lingers is None:  # a garbage collection or a signal handler has ended it first
                continue
            # A process that owns the memory may have exported it to anybody.
            if self.domain.reached(entry) or self.domain.owned(entry):
                try:
                    self._lingering.move_to_end(entry)  # the next call checks the others
                except KeyError:  # ended meanwhile, as above
                    pass
                used += 1
                if used == patience:
                    break
            elif self._lingering.pop(entry, None) is not None:
                self._entries.release(lingers)
                ended.append(lingers)
        for generation in list(itertools.islice(self._ending, tries)):
            found = self._ending.get(generation)
            if found is None:
                continue
            reason = 0 if self.domain.holders(found.entry) else self._why_over(found)
            if reason:
                self._end(found, reason)
                ended.append(found)
                continue
            try:  # faster than `suppress`
                self._ending.move_to_end(generation)
            except KeyError:  # ended meanwhile, as above
                pass
        return ended

    def _sweep_for(self, count: int) -> list[Any]:
        """Sweep as much as `count` separate calls of `_sweep` would."""
        return self._sweep(_ENDING_TRIES - 1 + count, _PATIENCE - 1 + count)

    def sweep(self, everything: bool = False) -> bool:
        """End a few expired exports, or all of them if `everything` is true. Returns whether any have ended or were
        released. `export` and `withdraw` also end a few.
        """
        if not self._lingering and not self._ending:
            return False
        with self._lock:
            tries = max(len(self._ending), len(self._lingering))
            ended = self._sweep(tries, tries) if everything else self._sweep()
        return bool(ended)

    def find(self, handle: Handle) -> Exported:
        """Return the live export behind a handle of this process."""
        fields = fields_of(handle)
        found = self._entries.find(fields)
        if found is None:
            raise HandleExpiredError(self.why_expired(fields.generation))
        if self._overdue(found):
            reason = layout.REASON_PICKLE if found.implicit else layout.REASON_TTL
            raise HandleExpiredError(f"the handle has expired: {layout.REASONS[reason]}")
        return found

    def why_expired(self, generation: int) -> str:
        return f"the handle has expired: {layout.REASONS[self._put.get(generation, layout.REASON_PUT)]}"

    def put(self, handle: Handle) -> None:
        """Withdraw the handle. Raises `InvalidArgumentError` if it is not from this process or was withdrawn before."""
        if fields_of(handle).cookie != self.cookie:
            raise InvalidArgumentError(
                f"put is for the process that exported: this handle is from pid {fields_of(handle).pid}"
            )
        if not self.withdraw(handle, layout.REASON_PUT):
            raise InvalidArgumentError("this handle has been put already")

    def withdraw(self, handle: Handle, reason: int) -> bool:
        """End the export. Returns whether this call ended it. If the exported object was freed, the first `put` returns
        True as well.
        """
        ended: list[Any] | None = None
        with self._lock:
            found = self._withdrawn(handle, reason)
            if found is not None and (self._lingering or self._ending):
                ended = self._sweep()
        ends = found is not None
        del found, ended  # the source may die now, outside the lock: its release may call us
        return ends

    def withdraw_all(self, handles: Sequence[Handle], reason: int) -> None:
        """Withdraw each export, all in one call."""
        with self._lock:
            gone = [self._withdrawn(handle, reason) for handle in handles]
            ended = self._sweep_for(len(gone))
        del gone, ended  # released outside the lock

    def _withdrawn(self, handle: Handle, reason: int) -> Exported | bool | None:
        """Withdraw a handle, and return the export that this ends. If the export had ended before, return None, or
        True if this is the first `put` of an object that was freed. The caller holds the lock.
        """
        fields = fields_of(handle)
        found = self._entries.find(fields)
        if found is None:
            if reason == layout.REASON_PUT and self._put.get(fields.generation, reason) != reason:
                self._put[fields.generation] = reason
                return True
            return None
        self._end(found, reason)
        return found

    def label(self, handle: Handle, text: str) -> None:
        """Set the label that `ls` and `shares` show for the export."""
        fields = fields_of(handle)
        at = layout.TABLE_LABELS + fields.entry * layout.LABEL.size
        layout.LABEL.pack_into(self._view, at, fields.generation, text.encode())

    # --- pickles: their exports outlive the objects, until they were opened or their time is over

    def give_open(self, handle: Handle) -> bool:
        """Let the handle be opened once more, because a pickle was made, or an attempt to open it has failed. Returns
        False if the export has ended, since its entry may belong to another export by now.
        """
        return self._entries.give_open(fields_of(handle))

    def renew(self, handle: Handle, grace: int) -> bool:
        """Let the handle be opened once more, for a pickle of memory that this process has itself imported by the
        handle. Return False if the export has ended.
        """
        return self._entries.give_open(fields_of(handle), deadline_in(grace))

    def take_open(self, handle: Handle) -> None:
        """Take back an open that `give_open` has given, for a pickle that is not sent. Has no effect if the export has
        ended, or a process has opened it.
        """
        with self._lock:
            found = self._entries.find(fields_of(handle))
            if found is not None:
                self.domain.take_open(found.entry)

    def expect_room(self, handles: Sequence[Handle], message: Allocations, most_nbytes: int) -> None:
        """Count what a message keeps that is being pickled, until it is opened. `handles` are of one device. `message`
        has what the message keeps so far, and is updated.

        Raises `OutOfMemoryError` if other pickles wait for their first open, and all together keep more than
        `most_nbytes` of the device, or more than half of the descriptors that this process may have. An allocation
        counts once, however many pickles keep it.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most_fds = sys.maxsize if limit == resource.RLIM_INFINITY else limit // 2
        ended: list[Any] = []
        with self._lock:
            new: Allocations = {}
            for handle in handles:
                fields = fields_of(handle)
                found = self._entries.find(fields)
                if found is not None and found.nbytes and (fields.names, fields.object) not in message:
                    new[fields.names, fields.object] = _Held(found.nbytes, found.fds)
            if not new:
                return
            device = next(iter(new))[0]
            nbytes = self._waiting.get(device, 0) + sum([each.nbytes for each in new.values()])
            fds = self._waiting_fds + sum([each.fds for each in new.values()])
            if nbytes > most_nbytes or fds > most_fds:
                ended += self._sweep(len(self._ending) + 1, len(self._lingering) + 1)
                nbytes, fds = self._room(device, {**message, **new}, most_nbytes, most_fds)
            self._waiting[device], self._waiting_fds = nbytes, fds
            message.update(new)
        del ended  # released outside the lock, since that may call this table

    def _room(self, device: bytes, message: Allocations, most_nbytes: int, most_fds: int) -> tuple[int, int]:
        """Return how many bytes of the device, and how many descriptors, a message and all other pickles keep that wait
        for their first open. Raises `OutOfMemoryError` if that is too much.
        """
        others: Allocations = {}
        for each in self._ending.values():
            fields = fields_of(each.handle)
            if each.outlives and each.nbytes and self.domain.opens_left(each.entry):
                others[fields.names, fields.object] = _Held(each.nbytes, each.fds)
        for known in message:
            others.pop(known, None)
        before = sum([held.nbytes for (names, _), held in others.items() if names == device])
        before_fds = sum([held.fds for held in others.values()])
        more = sum([held.nbytes for (names, _), held in message.items() if names == device])
        more_fds = sum([held.fds for held in message.values()])
        if _too_much(before, more, most_nbytes):
            raise OutOfMemoryError(
                f"this message is not pickled: it would keep {readable(more)} of the device until it is opened, and "
                f"earlier pickles that nobody has opened yet keep {readable(before)}. At most {readable(most_nbytes)} "
                "are kept. Send less at a time (a queue with maxsize=), or raise XPUSHARE_PICKLE_BYTES"
            )
        if _too_much(before_fds, more_fds, most_fds):
            raise OutOfMemoryError(
                f"this message is not pickled: it would keep {more_fds} file descriptors until it is opened, and "
                f"earlier pickles that nobody has opened yet keep {before_fds}. At most {most_fds} are kept, half of "
                "`ulimit -n`. Send less at a time (a queue with maxsize=), or raise `ulimit -n`"
            )
        return before + more, before_fds + more_fds

    def outlive(self, handles: Sequence[Handle], grace: int) -> None:
        """Record that the objects behind pickles have died. A pickle that nobody has opened yet stays valid for `grace`
        nanoseconds. A process that has opened such a pickle may still pass it on.
        """
        over: list[Exported] = []
        found: Exported | None = None
        with self._lock:
            for handle in handles:
                found = self._entries.find(fields_of(handle))
                if found is None:
                    continue
                waits = self.domain.opens_left(found.entry) > 0  # first: who takes an open holds the entry before
                if grace > 0 and (waits or self.domain.holders(found.entry)):
                    found.outlives = True
                    self._entries.set_deadline(found, deadline_in(grace if waits else 0))
                    self._ending[found.generation] = found
                    if waits and found.nbytes:  # counted again, since `_room` counts no pickles of living objects
                        device = fields_of(handle).names
                        self._waiting[device] = self._waiting.get(device, 0) + found.nbytes
                        self._waiting_fds += found.fds
                else:
                    self._end(found, layout.REASON_FREED)
                    over.append(found)
            dropped = self._sweep_for(len(over)) if over else self._sweep(_OUTLIVED_TRIES)
        del dropped, over, found  # released outside the lock, since that may call this table

    def sent_elsewhere(self, handles: Sequence[Handle]) -> None:
        """Record that pickles with these handles may be opened by processes that `multiprocessing` does not know."""
        self._elsewhere.update([fields_of(handle).generation for handle in handles])

    def waiting_pickles(self, only_elsewhere: bool = False) -> list[Exported]:
        """Return the exports of unexpired pickles of this process that still wait to be opened. With `only_elsewhere`,
        only those that `sent_elsewhere` has recorded.
        """
        return [
            each
            for each in self._entries.exports()
            if each.implicit
            and (not only_elsewhere or each.generation in self._elsewhere)
            and self.domain.opens_left(each.entry)
            and not self._overdue(each)
        ]

    def importers(self) -> int:
        """Return how many other processes are attached to this one and alive."""
        return sum([alive and pid != os.getpid() for _index, pid, _since, alive in self.domain.members()])

    # --- exports that nobody will close

    def lose(self, handle: Handle) -> bool:
        """Record that the handle object that `share` returned was garbage-collected without being closed. Returns True
        if its export stays until this process ends.
        """
        fields = fields_of(handle)
        with self._lock:
            found = self._entries.find(fields)
            lost = found is not None and not found.deadline and not fields.flags & layout.ENTRY_COUNTED
            if lost:
                self._lost.add(fields.generation)
            tell = not self._lost_told and len(self._lost) >= _LOST_MANY
            self._lost_told = self._lost_told or tell
        if tell:
            logger().warning(
                "%d exports of xs.share are held although nobody can close them any more: share with opens= or ttl=, "
                "or keep the handle and close it. -W default::ResourceWarning -X tracemalloc shows where each was made",
                _LOST_MANY,
            )
        return lost

    # --- exports whose handles were given to `publish`

    def give(self, fields: Fields, version: object | None = None) -> None:
        """Record that a handle was given to `publish`. From now on its export ends once its object is closed or
        dropped, and no version holds it. `version` holds it until `take_back`.
        """
        with self._lock:
            if self._entries.find(fields) is not None:
                given = self.given.setdefault(fields.generation, _Given())
                given.versions.update(() if version is None else (version,))

    def take_back(self, fields: Fields, version: object, bare: bool) -> Handle | None:
        """Record that a version has ended. Returns the handle of the export if the export has to end, too. `bare` says
        whether the program gave a `Handle` to `publish`. Nothing reports that such an object is dropped.
        """
        with self._lock:
            given, found = self.given.get(fields.generation), self._entries.find(fields)
            if given is None or found is None:
                return None
            given.versions.discard(version)
            if bare:
                given.left = sys.getrefcount(found.handle) <= _UNREFERENCED
            return found.handle if given.left and not given.versions else None

    def leave_to_versions(self, handle: Handle) -> bool | None:
        """Record that the object of a handle was closed or dropped. Returns whether versions hold the handle, whose
        export then ends with the last of them. Returns None if the handle was never given to `publish`.
        """
        with self._lock:
            given = self.given.get(fields_of(handle).generation)
            if given is None:
                return None
            given.left = True
            return bool(given.versions)

    def held_objects(self) -> set[int]:
        """Return the serials of the objects that importers have open."""
        return {
            _native.load64(self._entry_address(entry) + layout.OBJECT_AT)
            for entry in range(self._entries.used)
            if self.domain.holders(entry)
        }

    def statistics(self) -> dict[str, int]:
        return {
            "exports": self._entries.live,
            "lingering": len(self._lingering),
            "entries_used": self._entries.used,
        }

    def exports(self) -> list[Exported]:
        self.sweep()
        return self._entries.exports()

    def users(self, wanted: Callable[[Any], bool]) -> list[int | None]:
        """Return the pids of the processes that still have exported memory open. A pid of 0 stands for a process that
        is not visible here. None stands for an unknown process to which an owner of the memory may have passed it.
        `wanted` is called with the source of each export, and returns whether that export counts.
        """
        self.sweep(everything=True)
        pids = {index: pid for index, pid, _since, alive in self.domain.members() if alive}
        found: set[int | None] = set()
        for each in [*self._lingering.values(), *self._entries.exports()]:
            if wanted(each.source):
                found.update(pids.get(index, 0) for index in self.domain.holders(each.entry))
                found.update([None] if self.domain.owned(each.entry) else [])
        return list(found)

    def leave(self) -> None:
        """At a clean exit, stop serving importers, and leave the commons (the memory that importers write, too)."""
        if self._serving:
            door.close(self.cookie)
        self.domain.leave()


# --- labels, which users give to shared memory and events, and which `ls` and `shares` show

LABEL_MOST: Final = layout.LABEL.size - layout.LABEL_TEXT


def label_argument(label: str | None) -> str | None:
    """Return a label that can be displayed, or None for no label. Raises `InvalidArgumentError` if the label is too
    long or cannot be displayed.
    """
    if label is None:
        return None
    if not isinstance(label, str):
        raise InvalidArgumentError(f"label is a str, not {type(label).__name__}")
    import unicodedata  # rarely needed

    if any(unicodedata.category(each)[0] == "C" for each in label):
        raise InvalidArgumentError(f"a label is text that can be shown, without control characters: {label!r:.200}")
    if len(label.encode()) > LABEL_MOST:
        raise InvalidArgumentError(f"a label has at most {LABEL_MOST} bytes in UTF-8: {label!r:.200}")
    return label or None


# --- imports that this process can export, too


def descriptors(what: Export) -> list[OwnedFd]:
    """Return duplicates of the descriptors of an export of this process. For an export on demand, the driver makes the
    descriptors now.
    """
    fds: list[OwnedFd] = []
    with End(close_all, fds), doing("duplicating descriptors of memory"):
        if what.on_demand is None:
            fds += map(system.dup, what.fds)
            return fds
        import ctypes

        number = ctypes.c_int()
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64
        )
        make = kind(what.on_demand.function)
        for each in what.on_demand.objects:
            number.value = -1
            code = make(ctypes.byref(number), each, what.on_demand.a, what.on_demand.b)
            if code or number.value < 0:
                raise DeviceError(f"the driver makes no descriptor of the memory (error {code})", native=code)
            fds.append(OwnedFd(number.value))
    return fds


def expect_lasting(form: Form, count: int) -> None:
    """Raise `FeatureNotSupportedError` unless an export of this form, with this many descriptors, outlives
    its maker.
    """
    if form is Form.DRIVER or not count:
        raise FeatureNotSupportedError(
            "this memory ends with the process that made it, so no other process can own it: its driver shares it by a "
            "handle of that process. Memory of xs.empty, and of PyTorch with expandable_segments:True, outlives its "
            "maker; copy into such memory before it is shared"
        )


@final
class Owned:
    """The file descriptors of an allocation, and the facts of its export. With these, this process can export the
    allocation without a driver.
    """

    __slots__ = ("_export", "exporter", "fds")

    def __init__(self, fds: Sequence[OwnedFd], export: Export, exporter: Hardware | None) -> None:
        """Take over `fds`. `export` is given without descriptors. `exporter` is the exporting device if it belongs to
        another backend.
        """
        self.fds: Final = tuple(fds)
        self._export: Final = export
        self.exporter: Final = exporter

    @classmethod
    def of(cls, what: Import) -> Owned:
        """Return an `Owned` with duplicates of the descriptors of an import."""
        expect_lasting(what.form, len(what.fds))
        fds: list[OwnedFd] = []
        try:
            fds += map(system.dup, (each.number for each in what.fds))
            inode = system.fstat(fds[0].number).st_ino if what.form is Form.MEMFD else 0
        except OSError as error:
            close_all(fds)
            raise from_os_error(error, f"owning {what.exposed_nbytes} bytes of another process") from error
        export = Export(what.nbytes, what.exposed_nbytes, (), inode, what.payload, form=what.form, offset=what.offset)
        return cls(fds, export, what.exporter)

    def export(self) -> Export:
        """Return the export, as described by the process that allocated the memory, with this process's descriptors."""
        numbers = tuple([fd.number for fd in self.fds])
        if len(numbers) > layout.FDS_INLINE:
            return self._export._replace(on_demand=OnDemand(DUPLICATE, numbers, 0, 0))
        return self._export._replace(fds=numbers)

    def close(self) -> None:
        close_all(self.fds)
