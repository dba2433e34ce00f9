"""What was opened and closed again stays mapped for a moment, so that what comes again needs no driver."""

from __future__ import annotations

import logging
import resource
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, final

from xpushare._errors import XpuShareError

__all__ = ["Kept", "Room"]

SECONDS: Final = 2.0  # for which it stays
_LOOK: Final = 0.05  # seconds between looks at whether it may
_JOIN: Final = 1.0  # seconds for the thread's last look
_MOST: Final = 1024  # mappings; each may have a file descriptor
_log: Final = logging.getLogger("xpushare")


@final
class Room:
    """The memory of a device: how much there is, and how much nobody uses (0: its driver does not say)."""

    def __init__(self, nbytes: Callable[[], int], free_nbytes: Callable[[], int]) -> None:
        self._nbytes = nbytes
        self.free_nbytes = free_nbytes
        self.most_nbytes = 0  # that may stay mapped

    def measure(self) -> None:
        """Ask how much there is, which a finaliser must not do."""
        self.most_nbytes = self.most_nbytes or self._nbytes() // 4


class _Item(NamedTuple):
    until: float
    nbytes: int
    cookie: bytes
    room: Room
    end: object  # gives the driver's resource back when it is dropped
    reopen: Callable[[Any], Any]


@final
class Kept:
    """Closed imports by the keys of the cache. None holds a lease: for its exporter, each is closed.

    What an exporter frees stays occupied meanwhile. So this lasts `SECONDS` at most, and ends at once when the exporter
    has died, when other processes leave less of the device's memory free than is kept of it, and by `give_up`.
    """

    def __init__(self, sweep: Callable[[], object]) -> None:
        self._sweep = sweep  # calls `give_up` for the exporters that have died
        self._lock = threading.RLock()  # the garbage collector may close something while it is held
        self._items: dict[Hashable, _Item] = {}  # the oldest first
        self._begun: SimpleQueue[None] = SimpleQueue()  # its put may be called from a finaliser
        self._thread: threading.Thread | None = None
        self._ended = False

    def prepare(self, room: Room) -> bool:
        """Start the thread that ends the waiting; False where the interpreter is exiting. Called before anything is
        kept, which may be in a finaliser.
        """
        try:
            room.measure()
        except XpuShareError:
            return False  # then nothing of it is kept
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="xpushare-kept", daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:
                        return False
                    self._thread = thread
        return True

    def keep(
        self, end: object, key: Hashable, cookie: bytes, nbytes: int, room: Room, reopen: Callable[[Any], Any]
    ) -> None:
        """Keep `end`, of which `reopen` makes the import anew; or let it go, where there is no room."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _MOST if limit == resource.RLIM_INFINITY else min(_MOST, limit // 4)
        item = _Item(time.monotonic() + SECONDS, nbytes, cookie, room, end, reopen)
        dropped: list[_Item] = []
        with self._lock:
            if self._ended or nbytes > room.most_nbytes or key in self._items:
                return
            self._items[key] = item
            items = self._items.copy()  # a finaliser may keep more at any moment
            left = sum(each.nbytes for each in items.values() if each.room is room)
            for old, each in items.items():
                if len(self._items) <= most and (left <= room.most_nbytes or each.room is not room):
                    continue
                if self._items.pop(old, None) is not None:
                    dropped.append(each)
                left -= each.nbytes if each.room is room else 0
        if self._begun.empty():
            self._begun.put(None)

    def has(self, key: Hashable) -> bool:
        return key in self._items

    def take(self, key: Hashable) -> Any:
        """The import that was kept under `key`, open again; None if there is none."""
        if key not in self._items:
            return None
        with self._lock:
            item = self._items.pop(key, None)
        return None if item is None else item.reopen(item.end)

    def give_up(self, wanted: Callable[[_Item], bool] = lambda _item: True) -> int:
        """Let go of what is `wanted`, which is all of it by default; returns how many bytes that was."""
        with self._lock:
            gone = {key: item for key, item in self._items.copy().items() if wanted(item)}
            for key in gone:
                self._items.pop(key, None)
        return sum(item.nbytes for item in gone.values())  # they die here, outside the lock

    def end(self, deadline: float) -> None:
        """Keep nothing any more: this process exits, and waits until `deadline` at most."""
        self._ended = True
        self.give_up()
        if self._thread is not None:  # it holds this object
            self._begun.put(None)
            self._thread.join(max(0.0, min(_JOIN, deadline - time.monotonic())))

    def forget(self, cookie: bytes) -> None:
        """The exporter with that cookie has died."""
        if self._items:
            self.give_up(lambda item: item.cookie == cookie)

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(item.nbytes for item in self._items.copy().values())

    def _run(self) -> None:
        while not self._ended:
            self._begun.get()
            while self._items and not self._ended:
                until = time.monotonic() + _LOOK
                while not self._ended and (left := until - time.monotonic()) > 0:
                    with suppress(Empty):
                        self._begun.get(timeout=left)
                try:
                    self._look()
                except Exception:  # of a driver: the thread must go on, and nothing stays that nobody looks after
                    _log.exception("looking after what stays mapped for a moment")
                    self.give_up()

    def _look(self) -> None:
        self._sweep()
        now = time.monotonic()
        self.give_up(lambda item: item.until <= now)
        with self._lock:
            rooms = {id(item.room): item.room for item in self._items.copy().values()}
        for room in rooms.values():
            try:
                free = room.free_nbytes()
            except XpuShareError:
                free = 1  # the device is broken
            kept = self.nbytes_of(room)
            if 0 < free < kept:
                self.give_up(lambda item, room=room: item.room is room)  # type: ignore[misc]

    def nbytes_of(self, room: Room) -> int:
        with self._lock:
            return sum(item.nbytes for item in self._items.copy().values() if item.room is room)
