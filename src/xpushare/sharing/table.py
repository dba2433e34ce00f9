"""The table of this process's exports: only this process writes it, and its importers read it."""

from __future__ import annotations

import os
import secrets
import struct
import threading
import time
import uuid
from collections import deque
from typing import Any, Final, final

from xpushare import _native, _system
from xpushare._errors import HandleExpiredError, InvalidArgumentError, OutOfMemoryError, from_os_error
from xpushare.adapters.base import DeviceInfo, Export
from xpushare.sharing import door, identity, layout
from xpushare.sharing.handle import KIND_NUMBERS, Handle, fields_of, pack, seal

__all__ = ["Exported", "Table"]

_RECYCLE_TRIES: Final = 8
_REMEMBERED: Final = 1 << 16  # ended exports whose reason is kept for the message, and for a `put` that comes later
_COUNTED_TRIES: Final = 8  # more than one, so that used-up exports go faster than new ones come


@final
class Exported:
    """One live export: it holds its source."""

    __slots__ = ("foreign", "handle", "implicit", "keep", "source")

    def __init__(self, handle: Handle, source: Any, keep: Any, foreign: bool, implicit: bool) -> None:
        self.handle = handle
        self.source = source  # what an open in this very process gets
        self.keep = keep  # what else has to stay: the array of another library
        self.foreign = foreign  # held for importers even after `put`
        self.implicit = implicit  # made by pickling; ends with its object

    def exports(self, source: object) -> bool:
        """Whether this is an export of `source` (physical memory exports a tuple of that and what keeps it)."""
        held: Any = self.source
        return held is source or (isinstance(held, tuple) and any(each is source for each in held))  # pyright: ignore


@final
class Table:
    """This process as an exporter. Made at the first export or event; lives until the process ends."""

    def __init__(self) -> None:
        self.cookie = secrets.token_bytes(16)
        # Re-entrant: the garbage collector may run anywhere, and delete a pickled object, whose export ends with it.
        self._lock = threading.RLock()
        self._counted: deque[Exported] = deque()
        self._generation = 0
        self._object = 0
        self._used = 0
        self._free: deque[int] = deque()
        self._devices: dict[tuple[str, str], tuple[bytes, int]] = {}
        self._exports: dict[int, Exported] = {}
        self._put: dict[int, int] = {}  # generation -> reason, for the exporter's own message
        self._lingering: dict[int, Any] = {}  # entry -> foreign source that importers still have open
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
        with self._lock:
            self._object += 1
            return self._object

    def export(
        self,
        kind: str,
        device: DeviceInfo,
        what: Export,
        source: Any,
        *,
        serial: int,
        offset: int = 0,
        nbytes: int = 0,
        read_only: bool = False,
        slot: int = 0,
        keep: Any = None,
        foreign: bool = False,
        implicit: bool = False,
        opens: int | None = None,
    ) -> Handle:
        """Publish one export and make its handle; it holds `source` until `put`."""
        if len(what.payload) > layout.PAYLOAD_NBYTES:
            raise InvalidArgumentError(f"an export's payload is at most {layout.PAYLOAD_NBYTES} bytes")
        if what.on_demand is None and len(what.fds) > layout.FDS_INLINE:
            raise InvalidArgumentError(f"more than {layout.FDS_INLINE} fds are handed out on demand only")
        on_demand = what.on_demand
        flags = (
            (layout.ENTRY_READ_ONLY if read_only else 0)
            | (layout.ENTRY_COUNTED if opens is not None else 0)
            | (layout.ENTRY_ON_DEMAND if on_demand is not None else 0)
            | what.form << layout.ENTRY_FORM_BIT
        )
        fds = () if on_demand is not None else what.fds
        ended: list[Any] = []  # dropped outside the lock: their release may call us
        with self._lock:
            self._start()
            ended += self._sweep()
            entry = self._take_entry()
            self._generation = generation = self._generation + 1
            try:  # no call comes between what takes something and the block that gives it back: one may be interrupted
                names, number = self._device(device)
                handle = seal(
                    self._entries.enter(
                        entry, generation, KIND_NUMBERS[kind], flags, slot, names, serial, offset, nbytes, what.nbytes,
                        what.exposed_nbytes, what.inode, len(fds if on_demand is None else on_demand.objects),
                        struct.pack(f"{len(fds)}i", *fds), what.payload, number, int(time.time()),
                        what.offset,
                    )
                )  # fmt: skip
                if opens is not None:
                    self.domain.set_opens(entry, opens)
                if on_demand is not None:
                    _native.offer(entry, generation, *on_demand)
                exported = self._exports[generation] = Exported(handle, source, keep, foreign, implicit)
                if opens is not None:
                    self._counted.append(exported)
                _native.store64(self._entry_address(entry), generation)  # last: now it is live
            except BaseException:
                _native.withdraw(self._entry_address(entry), layout.REASON_PUT)
                if generation in self._exports:
                    del self._exports[generation]
                self._free.append(entry)
                raise
            return handle

    def _start(self) -> None:
        if not self._serving:
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
        found = self._devices.get((device.backend, device.uuid))
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
            found = self._devices[device.backend, device.uuid] = names, 1 + index
        return found

    def _take_entry(self) -> int:
        # Do not use an entry that a living importer still holds: its holder bit would count for another export.
        for _ in range(min(_RECYCLE_TRIES, len(self._free))):
            entry = self._free[0]
            if self.domain.holders(entry):
                self._free.rotate(-1)
            elif self._free[0] == entry:  # an interrupt's handler may have exported, too
                del self._free[0]
                return entry
        if self._used == layout.ENTRY_COUNT:
            raise OutOfMemoryError(f"this process has {layout.ENTRY_COUNT} live exports: put the ones no longer needed")
        self._used += 1
        return self._used - 1

    def _sweep(self) -> list[Any]:
        """End what is over: foreign memory that nobody has open any more, and counted exports that are used up. Returns
        what the caller must drop.
        """
        ended: list[Any] = []
        if not self._lingering and not self._counted:
            return ended
        for entry in [entry for entry in self._lingering if not self.domain.holders(entry)]:
            found = self._lingering[entry]
            del self._lingering[entry]
            self._free.append(entry)
            ended.append(found)
        for _ in range(min(_COUNTED_TRIES, len(self._counted))):
            found = self._counted.popleft()
            fields = fields_of(found.handle)
            if self._exports.get(fields.generation) is not found:
                continue  # put
            # The last opener holds the entry before it takes its open, and may still have to fetch the fds.
            if self.domain.opens_left(fields.entry) > 0 or self.domain.holders(fields.entry):
                self._counted.append(found)
                continue
            del self._exports[fields.generation]
            self._put[fields.generation] = layout.REASON_OPENS
            _native.withdraw(self._entry_address(fields.entry), layout.REASON_OPENS)
            self._free.append(fields.entry)
            ended.append(found)
        return ended

    def sweep(self) -> None:
        """End what is over. Exports and withdrawals also do that."""
        with self._lock:
            ended = self._sweep()
        del ended

    def find(self, handle: Handle) -> Exported:
        """The live export behind a handle of this very process."""
        fields = fields_of(handle)
        found = self._exports.get(fields.generation)
        if found is None or found.handle != handle:
            raise HandleExpiredError(self.why_expired(fields.generation))
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
        fields = fields_of(handle)
        with self._lock:
            found = self._exports.get(fields.generation)
            if found is None or found.handle != handle:
                if reason == layout.REASON_PUT and self._put.get(fields.generation, reason) != reason:
                    self._put[fields.generation] = reason
                    return True
                return False
            if reason != layout.REASON_PUT:
                self._put[fields.generation] = reason
                if len(self._put) > _REMEMBERED:
                    del self._put[next(iter(self._put))]
            _native.withdraw(self._entry_address(fields.entry), reason)  # once more does no harm
            lingers = found.foreign and self.domain.holders(fields.entry)
            entry, generation = fields.entry, fields.generation
            del self._exports[generation]
            if lingers:
                self._lingering[entry] = found
            else:
                self._free.append(entry)
            ended = self._sweep()
        del found, ended  # the source may die now, outside the lock: its release may call us
        return True

    def held_objects(self) -> set[int]:
        """The serials of what importers have open."""
        return {
            _native.load64(self._entry_address(entry) + layout.OBJECT_AT)
            for entry in range(self._used)
            if self.domain.holders(entry)
        }

    def statistics(self) -> dict[str, int]:
        with self._lock:
            return {"exports": len(self._exports), "lingering": len(self._lingering), "entries_used": self._used}

    def exports(self) -> list[Exported]:
        self.sweep()
        with self._lock:
            return list(self._exports.values())

    def leave(self) -> None:
        """Clean exit."""
        if self._serving:
            door.close(self.cookie)
        self.domain.leave()

    def abandon(self) -> None:
        """For a forked child: the table belongs to the parent."""
        self._exports.clear()
        self._lingering.clear()
