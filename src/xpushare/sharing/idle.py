"""The registry of this process's idle memory: what nobody uses now, but somebody may soon use again.

Each cache has its own list. The registry has what they share: the time after which memory is released, the limit of
its bytes, `trim`, and a forked child that starts with nothing.

| memory | its list | released by |
|---|---|---|
| freed host memory, and host mappings of the next two | `src/engine/kept.c`, and by key in `Idle.host` | the warden |
| closed imports, whose leases may wait for device work (`Uses`) | `Idle.items` | a device's teardown thread |
| freed memory of arrays, which device work may still use | `Idle.items`, and by size in `core/reuse.py` | the same |
| exporters' memory that was imported before | `sharing/peers.py` | needs nothing |
| the allocations for small arrays | `core/memory.py` | `trim` |
"""

from __future__ import annotations

import math
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from itertools import repeat, starmap
from typing import Any, Final, NamedTuple, TypeVar, final
from weakref import ref

from xpushare import _native
from xpushare._native import End, Lease
from xpushare.common import settings
from xpushare.common.errors import XpuShareError
from xpushare.common.loading import logger

__all__ = ["HOST", "Cache", "Idle", "Room", "Uses", "on_trim"]

SECONDS: Final = 2.0  # seconds for which memory of a device is cached by default (`XPUSHARE_KEEP_SECONDS`)
_MOST: Final = 8192  # mappings: a model's tensors in torch's own allocator are thousands of allocations
_DESCRIPTORS: Final = 1024
_HOST_MOST: Final = 64  # as many as the native part keeps
_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`


def _no_call() -> None:
    return None


class _Call:
    """One callback that is passed to `after_work` and ends leases once the device work has finished. The callback for
    the next leases is submitted when this one has run, or was dropped because the device is broken.

    `over` is set when the callback has run, because this object may be deleted much later. On a free-threaded build, an
    object whose last reference another thread has dropped may live until the thread that made it runs again.
    """

    __slots__ = ("__weakref__", "_then", "next", "over", "uses")

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then
        self.next: End | None = None  # does the same as `_then`
        self.over = False
        self.uses: list[Lease] = []

    def __call__(self) -> None:
        for use in self.uses:
            use.end()
        self.over = True
        self._then()


@final
class Uses(list[Lease]):
    """The leases of closed imports that device work may still read or write. Such a lease ends once the work that was
    submitted before the close has finished. Until then, the exporter does not give the memory to anybody else.

    `after_work(callback)` calls `callback` once the work submitted so far has finished. At most one callback is pending
    at a time. The next one covers all closes since the previous one.
    """

    def __init__(self, after_work: Callable[[Callable[[], object]], object]) -> None:
        super().__init__()
        self._after_work = after_work
        self._under_way: Callable[[], _Call | None] = _no_call

    def __call__(self) -> None:
        """Have `after_work` end the leases that were appended, unless an earlier callback is pending. If an interrupt
        stops this, the next callback covers these leases.
        """
        before = self._under_way()
        if not self or (before is not None and not before.over):
            return
        call = _Call(self)
        self._under_way = ref(call)
        try:
            # One C call, so that no interrupt can come between. The lists may be appended to meanwhile.
            with suppress(IndexError):  # another thread has taken some
                call.uses.extend(starmap(self.pop, repeat((), len(self))))
            self._after_work(call)
            call.next = End(self)
        except BaseException:
            self.extend(call.uses)
            raise


@final
class Room:
    """The limits of the idle memory of one device: closed imports and freed memory together. `nbytes` returns the
    memory's size, and `free_nbytes` how much of it is free (0 if the driver does not report that). `look_after`
    (`Adapter.look_after`) makes a thread call the function that releases expired memory. `uses` collects the leases of
    closed imports that device work may still use. None means that no lease has to wait for such work.
    """

    def __init__(
        self,
        nbytes: Callable[[], int],
        free_nbytes: Callable[[], int],
        look_after: Callable[[Callable[[], bool]], bool],
        uses: Uses | None = None,
    ) -> None:
        self.uses = uses
        self._nbytes = nbytes
        self.free_nbytes = free_nbytes
        self.look_after = look_after
        self.seconds = 0.0  # how long memory stays cached
        self.most_nbytes = 0
        self.prepared = False
        self.looked_after = False  # whether a thread looks after the cached memory

    def prepare(self) -> bool:
        """Return whether memory of this device can be cached. The first call does the steps that a finaliser must not
        do: read the settings, ask for the memory's size, and start the thread that looks after the cache. If a step
        fails, nothing is cached. Raises `InvalidArgumentError` for invalid settings.
        """
        if not self.prepared:
            self.seconds = settings.seconds("XPUSHARE_KEEP_SECONDS", SECONDS)
            most = settings.nbytes("XPUSHARE_KEEP_BYTES")
            if most is None and self.seconds:
                try:
                    most = self._nbytes() // 4
                except XpuShareError:
                    return False
            if not self.seconds or not most:
                self.prepared = True
            elif self.look_after(bool):
                self.most_nbytes = most
                self.prepared = True
        return self.most_nbytes > 0


HOST: Final = Room(int, int, bool)
"""The host's memory, whose time and bytes native code limits."""
HOST.prepared, HOST.most_nbytes = True, 1


class Cache:
    """A list of idle memory that does not lie in `Idle.items`."""

    @property
    def nbytes(self) -> int:
        return 0

    def trim(self) -> int:
        """Release the memory, and return its size in bytes."""
        return 0


C = TypeVar("C", bound=Cache)
_before: Final[list[Callable[[], object]]] = []


def on_trim(function: Callable[[], object]) -> None:
    """Make `trim` call `function`, which releases what may become idle memory, before the caches are emptied."""
    _before.insert(0, function)


class _Item(NamedTuple):
    until: float
    nbytes: int
    cookie: bytes
    room: Room
    end: End  # releases the driver's resource when it is dropped
    reopens: tuple[Any, ...]  # remakes the object, together with its end
    descriptors: int


@final
class _OfRoom:
    """The cached imports of one device."""

    __slots__ = ("keys", "nbytes")

    def __init__(self) -> None:
        self.keys: OrderedDict[Hashable, None] = OrderedDict()  # the oldest first
        self.nbytes = 0


@final
class Idle:
    """The idle memory of one process. A cached import holds no lease, so the exporter regards it as closed. Memory that
    the exporter frees stays occupied while an import of it is cached. So memory is cached for at most the seconds
    that its device's `Room` allows. It is released at once if the exporter dies, if the device's free memory falls
    below the number of cached bytes, or by `give_up`.
    """

    def __init__(self, sweep: Callable[[], object]) -> None:
        self._sweep = sweep  # calls `give_up` for the exporters that have died
        self.lock = threading.RLock()  # re-entrant, since the garbage collector may close an import while it is held
        self.items: OrderedDict[Hashable, _Item] = OrderedDict()  # the oldest first, which `popitem` takes atomically
        self.host: dict[Any, tuple[bytes, tuple[Any, ...], End]] = {}  # the host's: cookie, what reopens it, its end
        self._of: dict[Room, _OfRoom] = {}
        self._caches: dict[type[Any], Any] = {}
        self._descriptors = 0  # how many descriptors the cache may use
        self._held = 0  # how many descriptors the cache uses
        self._ended = False

    def own(self, kind: type[C]) -> C:
        """Return this process's list of that kind."""
        found: C = self._caches.get(kind) or self._caches.setdefault(kind, kind())
        return found

    def freed_nbytes(self) -> int:
        """Return the size of the idle memory that lies in no list of its own."""
        return _native.kept_nbytes() + self.nbytes

    def total(self) -> int:
        """Return the size of all idle memory of this process."""
        nbytes: int = sum(each.nbytes for each in self._caches.copy().values())
        return nbytes + self.freed_nbytes()

    def trim(self) -> int:
        """Release all idle memory of this process, and return its size in bytes."""
        for function in _before:
            function()
        gone: int = sum(each.trim() for each in self._caches.copy().values())
        gone += _native.trim()
        self.host.clear()
        return gone + self.give_up()

    def keep(
        self, key: Hashable, cookie: bytes, nbytes: int, room: Room, reopens: tuple[Any, ...], end: End,
        descriptors: int = 1, ready: bool = True,
    ) -> None:  # fmt: skip
        """Cache memory, with the data to open it again, or release it if the cache is full. Dropping `end` releases the
        memory. `descriptors` is the number of file descriptors that the memory holds. Unless it is `ready`, its time
        begins with `renew`.
        """
        until = time.monotonic() + room.seconds if ready else math.inf
        item: _Item = _new(_Item, (until, nbytes, cookie, room, end, reopens, descriptors))
        dropped: list[_Item | None] = []  # released outside the lock
        with self.lock:
            if self._ended or nbytes > room.most_nbytes or key in self.items:
                return
            if not room.looked_after:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                self._descriptors = _DESCRIPTORS if limit == resource.RLIM_INFINITY else limit // 4
                room.look_after(partial(self._look, room))
                room.looked_after = True
            of = self._of.get(room) or self._of.setdefault(room, _OfRoom())
            of.keys[key] = None
            of.nbytes += nbytes
            self._held += descriptors
            self.items[key] = item  # last, since another import may have taken the room meanwhile
            while of.keys and of.nbytes > room.most_nbytes:
                dropped.append(self._pop(of.keys.popitem(last=False)[0]))
            while self.items and (len(self.items) > _MOST or self._held > min(_DESCRIPTORS, self._descriptors)):
                oldest, item = self.items.popitem(last=False)
                self._leave(oldest, item)
                dropped.append(item)

    def keep_host(self, key: Hashable, cookie: bytes, reopens: tuple[Any, ...], end: End) -> None:
        """Remember the host's memory that native code caches from now on. Dropping `end` releases it."""
        if not self._ended:
            self.host[key] = cookie, reopens, end
            if len(self.host) > _HOST_MOST:
                for old in list(self.host)[:-_HOST_MOST]:  # others may change the dictionary while this runs
                    self.host.pop(old, None)

    def renew(self, key: Hashable) -> bool:
        """Begin the time of cached memory anew. Returns False if it has been released."""
        with self.lock:
            item = self.items.pop(key, None)
            if item is not None:
                self.items[key] = item._replace(until=time.monotonic() + item.room.seconds)
        return item is not None

    def _pop(self, key: Hashable) -> _Item | None:
        """Remove an import from the cache. The caller holds the lock."""
        item = self.items.pop(key, None)
        if item is not None:
            self._leave(key, item)
        return item

    def _leave(self, key: Hashable, item: _Item) -> None:
        of = self._of[item.room]
        of.keys.pop(key, None)
        of.nbytes -= item.nbytes
        self._held -= item.descriptors

    def take(self, key: Hashable) -> _Item | None:
        """Remove and return the memory that is cached under `key`, or None."""
        if key not in self.items:
            return None
        with self.lock:
            item = self.items.pop(key, None)
            if item is None:
                return None
            self._leave(key, item)
        return item

    def _all(self) -> list[tuple[Hashable, _Item]]:
        """Return the cached imports. The caller holds the lock, but a garbage collection may close and cache imports
        meanwhile. Copying the keys into a list is atomic. Copying an `OrderedDict` is not.
        """
        return [(key, item) for key in list(self.items) if (item := self.items.get(key)) is not None]

    def give_up(self, wanted: Callable[[_Item], bool] = lambda _item: True) -> int:
        """Release the cached memory that is `wanted`, by default all. Returns their size in bytes."""
        with self.lock:
            gone = {key: item for key, item in self._all() if wanted(item)}
            for key in gone:
                self._pop(key)
        return sum(item.nbytes for item in gone.values())  # released here, outside the lock

    def end(self) -> None:
        """Stop caching, because this process exits."""
        self._ended = True
        self.host.clear()
        self.give_up()

    def forget(self, cookie: bytes) -> None:
        """Release the imports of an exporter that has died."""
        for key, item in list(self.host.items()):
            if item[0] == cookie:
                self.host.pop(key, None)
        if self.items:
            self.give_up(lambda item: item.cookie == cookie)

    @property
    def nbytes(self) -> int:
        with self.lock:
            return sum(of.nbytes for of in self._of.copy().values())

    def _counted(self, room: Room) -> int:
        """Recount and return the cached bytes of a device. The running count may be wrong, since an interrupt may have
        come between the removal of an import and the update of the count.
        """
        with self.lock:
            found = [(key, item.nbytes) for key, item in self._all() if item.room is room]
            of = self._of.setdefault(room, _OfRoom())
            of.keys = OrderedDict((key, None) for key, _nbytes in found)
            of.nbytes = sum(nbytes for _key, nbytes in found)
            self._held = sum(item.descriptors for _key, item in self._all())
            return of.nbytes

    def _look(self, room: Room) -> bool:
        """Release the expired imports of this device. Returns whether any import of the device is still cached."""
        try:
            self._sweep()
            now = time.monotonic()
            self.give_up(lambda item: item.until <= now)
            if kept := self._counted(room):
                try:
                    free = room.free_nbytes()
                except XpuShareError:
                    free = 1  # the device is broken
                if 0 < free < kept:
                    self.give_up(lambda item: item.room is room)
        except Exception:  # a driver failed: without checks, nothing may stay cached
            if not self._ended:
                logger().exception("releasing cached mappings failed")
            self.give_up()
        with self.lock:
            room.looked_after = False  # first, since the garbage collector may add imports at any moment
            room.looked_after = self._counted(room) > 0
            return room.looked_after
