"""Makes event slots accessible to devices. A *commons* is a file of event slots that one process has made. All
processes that use these events map the file. A part of it is made accessible to a device when the device first uses a
slot in that part.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, final

from xpushare._native import LAYOUT, Domain, End, Mapping, Slot
from xpushare.adapters.stream.background import Teardown, quietly
from xpushare.adapters.stream.hooks import Device
from xpushare.common import system
from xpushare.common.errors import InvalidArgumentError, from_os_error

__all__ = ["SlotPages", "always", "unreach"]

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
