"""The objects of the stream engine that all queues and memories of one vendor share.

Among them are the event slots that its devices can access. A *commons* is a file of event slots that one process has
made. All processes that use these events map the file. A part of it is made accessible to a device when the device
first uses a slot in that part.
"""

from __future__ import annotations

import abc
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from xpushare._native import LAYOUT, Domain, End, Mapping, Slot
from xpushare.adapters.host.memory import Calls
from xpushare.adapters.stream.background import Teardown, Watch, quietly
from xpushare.adapters.stream.hooks import Device, Stream
from xpushare.common import system
from xpushare.common.errors import InvalidArgumentError, from_os_error

__all__ = ["Engine", "OperandAccess", "SlotPages", "SpareStreams", "always", "unreach"]


# --- event slots that devices can access ------------------------------------------------------------------------------

_CHUNK: Final = 1 << 21  # bytes, for 8192 events. `reach` pins pages, so it is called for one chunk at a time
_SLOTS: Final = LAYOUT["commons.slots"]
_WORDS_MAX: Final = 4096  # number of cached addresses of words
_SLOTS_NBYTES: Final = LAYOUT["commons.size"] - _SLOTS


@final
class _Commons:
    """The parts of a commons (the memory in which an exporter's events lie) that devices can reach. Each part (*chunk*)
    is a separate mapping, which can outlive this process's mapping of the whole memory.
    """

    def __init__(self, domain: Domain, gone: Callable[[_Commons], None]) -> None:
        self.start = domain.address + _SLOTS
        self.end = self.start + _SLOTS_NBYTES
        self.domain = weakref.ref(domain)
        weakref.finalize(domain, gone, self).atexit = False  # not at exit, when modules may be gone
        self.addresses: dict[int, int] = {}  # chunk -> its address for devices
        self.mappings: list[tuple[Device, bool, Mapping]] = []  # device, whether it is registered, the mapping

    def holds(self, address: int) -> bool:
        return self.start <= address < self.end


def always(_device: Device) -> bool:
    return True


@final
class SlotPages:
    """Finds the addresses at which devices access the values of event slots."""

    def __init__(self, teardown: Teardown, registered: Callable[[Any], bool] = always) -> None:
        """Start with no event pages. `registered` returns whether a device can reach only pages that were registered
        with its driver.
        """
        self._teardown = teardown
        self._registered = registered
        self._lock = threading.RLock()
        self._known: tuple[_Commons, ...] = ()  # replaced as a whole, so that it can be read without the lock
        self._words: dict[int, int] = {}  # slot -> the address that devices have for its word; a cache

    def adopt(self, domain: Domain) -> None:
        """Add a commons, which is mapped as `domain`. When `domain` is gone, the mappings for devices are released."""
        with self._lock:
            if not any(commons.domain() is domain for commons in self._known):
                self._known = (*self._known, _Commons(domain, self._forget))

    def _forget(self, commons: _Commons) -> None:
        with self._lock:
            self._known = tuple(each for each in self._known if each is not commons)
            for slot in [slot for slot in self._words if commons.holds(slot)]:
                del self._words[slot]
        for device, registered, mapping in commons.mappings:
            end = unreach if registered else _keep
            self._teardown.submit(device, end, device, "unregistering event pages", mapping)

    def address(self, device: Device, slot: Slot) -> int:
        """Return the address at which devices access the value of a slot."""
        at = slot.address
        known = self._words.get(at)
        return self._find(device, at) if known is None else known

    def _find(self, device: Device, at: int) -> int:
        commons = self._holding(at)
        if commons is None:
            raise InvalidArgumentError("the event's pages were not made known to this device")
        chunk, within = divmod(at - commons.start, _CHUNK)
        start = commons.addresses.get(chunk)
        if start is None:
            start = self._reach(device, commons, chunk)
        with self._lock:
            if commons in self._known:  # otherwise the commons is gone by now
                if len(self._words) >= _WORDS_MAX:
                    self._words.clear()
                self._words[at] = start + within
        return start + within

    def _holding(self, address: int) -> _Commons | None:
        return next((commons for commons in self._known if commons.holds(address)), None)

    def domain(self, slot: Slot) -> Domain | None:
        """Return the `Domain` of the commons that contains a slot, or None if the commons was not added."""
        commons = self._holding(slot.address)
        return commons.domain() if commons else None

    def _reach(self, device: Device, commons: _Commons, chunk: int) -> int:
        doing = "registering event pages"
        with self._lock:
            found = commons.addresses.get(chunk)
            if found is not None:
                return found
            domain = commons.domain()
            if domain is None or domain.fd < 0:
                raise InvalidArgumentError("the process that made the event has exited")
            try:
                mapping: Any = system.Mapping(domain.fd, _CHUNK, _SLOTS + chunk * _CHUNK)
            except OSError as error:
                raise from_os_error(error, f"{doing}: mmap") from error
            registered, found = self._registered(device), int(mapping.address)
            if registered:
                with device.current():
                    device.reach(doing, mapping.address, _CHUNK, False)
                    with End(quietly, device.unreach, doing, mapping.address):
                        found = device.reached(doing, mapping.address)
            commons.mappings.append((device, registered, mapping))
            commons.addresses[chunk] = found
            return found


def unreach(device: Device, doing: str, mapping: Mapping) -> None:
    """Undo `Device.reach` for a mapping. The reference in the argument `mapping` keeps the memory mapped until this is
    called.
    """
    device.unreach(doing, mapping.address)


def _keep(_device: Device, _doing: str, _mapping: Mapping) -> None:
    """Do nothing. This is called in place of `unreach` for pages that are not registered. The references in its
    arguments keep the memory mapped until the call.
    """


# --- what all queues and memories of one vendor share -----------------------------------------------------------------

Spare = tuple[Stream, Sequence[Any]]  # a stream and the marks of its queue


@final
class SpareStreams:
    """A cache of streams, with which a queue can be created while other queues wait. Some drivers cannot create a
    stream during a wait, and the caller may be about to send the signal that the other queues wait for. So `kept`
    streams of each device are created in advance.
    """

    def __init__(self, teardown: Teardown, kept: int) -> None:
        self._teardown = teardown
        self._kept = kept
        self._lock = threading.RLock()  # re-entrant, since a finaliser may end a queue at any moment
        self._spares: dict[int, list[Spare]] = defaultdict(list)  # by ordinal of the device

    def take(self, ordinal: int, make: Callable[[], Stream]) -> Spare:
        """Return a cached stream and its marks for a new queue. If the cache is empty, make a stream. The cache is
        refilled only while no queue is waiting.
        """
        spares = self._spares[ordinal]
        if self._kept and len(spares) <= self._kept and not self._teardown.waiting():
            while len(spares) <= self._kept:
                spares.append((make(), ()))
        with self._lock:
            if spares:
                return spares.pop()
        return make(), ()

    def give(self, stream: Stream, marks: Sequence[Any]) -> bool:
        """Cache the stream and the marks of a queue that has ended. Returns False if enough streams are cached."""
        with self._lock:
            spares = self._spares[stream.device.ordinal]
            if len(spares) >= self._kept:
                return False
            spares.append((stream, marks))
            return True


class OperandAccess(abc.ABC):
    """Gives a device access to memory that operations in its queues use, if the device cannot reach that memory yet."""

    @abc.abstractmethod
    def lacking(self, ordinal: int, address: int, nbytes: int) -> bool:
        """Return whether the device lacks access to a mapping of these bytes, so that `ensure` is needed. Does not ask
        the driver.
        """

    @abc.abstractmethod
    def ensure(self, ordinal: int, address: int, nbytes: int) -> None:
        """Give a device access to the mappings that contain these bytes. Called with the device current."""


class Engine:
    """The objects of the stream engine that all queues and memories of one vendor share.

    `backend` is used in the names of the engine's threads and of its log. `devices` returns all devices of the driver,
    by ordinal. `calls` makes the system calls for host memory. `spare_streams` is the number of streams of each device
    that are cached for later queues. `registered_slots` returns whether a device can reach event pages only after the
    pages have been registered with the driver.
    """

    def __init__(
        self,
        backend: str,
        devices: Callable[[], Sequence[Device]],
        operand_access: OperandAccess | None = None,
        calls: Calls | None = None,
        spare_streams: int = 0,
        registered_slots: Callable[[Any], bool] = always,
    ) -> None:
        self.devices = devices
        self.calls = calls or Calls()
        self.operand_access = operand_access
        self.teardown = Teardown(backend, devices)
        self.watch = Watch(backend)
        self.slot_pages = SlotPages(self.teardown, registered_slots)
        self.spare_streams = SpareStreams(self.teardown, spare_streams)
