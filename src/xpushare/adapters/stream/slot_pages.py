"""Event slots for devices: the pages of a commons that hold slots in use, made reachable for the devices."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final, final

from xpushare import _system
from xpushare._errors import InvalidArgumentError, from_os_error
from xpushare._native import LAYOUT, Domain, Mapping, Slot
from xpushare.adapters.stream.hooks import Device
from xpushare.adapters.stream.teardown import Teardown, quietly

__all__ = ["SlotPages", "unreach"]

_CHUNK: Final = 1 << 21  # reaching pages pins them, so no more than needed: 8192 events at a time
_SLOTS: Final = LAYOUT["commons.slots"]
_WORDS_MAX: Final = 4096  # slots whose words are found at once
_SLOTS_NBYTES: Final = LAYOUT["commons.size"] - _SLOTS


@final
class _Chunks:
    """The reached chunks of one commons; mappings of our own, which can outlive the process's mapping of it."""

    def __init__(self) -> None:
        self.addresses: dict[int, int] = {}  # chunk -> its address for devices
        self.mappings: list[tuple[Device, Mapping]] = []


@final
class SlotPages:
    """Where devices find the value words of slots."""

    def __init__(self, teardown: Teardown) -> None:
        self._teardown = teardown
        self._lock = threading.RLock()
        self._commons: dict[int, _Chunks] = {}
        self._references: dict[int, weakref.ref[Domain]] = {}
        self._known: tuple[tuple[int, _Chunks], ...] = ()  # `_commons`, to go through without a lock
        self._words: dict[int, int] = {}  # slot -> its word for devices: what was asked for before

    def adopt(self, domain: Domain) -> None:
        """Get to know a commons; when it goes, so does what was reached of it."""
        at = domain.address
        with self._lock:
            if at not in self._commons:
                chunks = self._commons[at] = _Chunks()
                self._references[at] = weakref.ref(domain, lambda _gone: self._forget(at, chunks))
                self._known = tuple(self._commons.items())

    def _forget(self, at: int, chunks: _Chunks) -> None:
        with self._lock:
            if self._commons.get(at) is chunks:
                del self._commons[at], self._references[at]
                self._known = tuple(self._commons.items())
                for word in [word for word in self._words if 0 <= word - at < LAYOUT["commons.size"]]:
                    del self._words[word]
        for device, mapping in chunks.mappings:
            self._teardown.submit(device, unreach, device, "unregistering event pages", mapping)

    def address(self, device: Device, slot: Slot) -> int:
        """The value word of a slot, as devices address it."""
        at = slot.address
        known = self._words.get(at)
        return self._find(device, at) if known is None else known

    def _find(self, device: Device, at: int) -> int:
        for base, chunks in self._known:
            if 0 <= at - base - _SLOTS < _SLOTS_NBYTES:
                chunk, within = divmod(at - base - _SLOTS, _CHUNK)
                start = chunks.addresses.get(chunk)
                if start is None:
                    start = self._reach(device, base, chunks, chunk)
                with self._lock:
                    if self._commons.get(base) is chunks:  # else it has gone in between
                        if len(self._words) >= _WORDS_MAX:
                            self._words.clear()
                        self._words[at] = start + within
                return start + within
        raise InvalidArgumentError("the event's pages were not made known to this device")

    def domain(self, slot: Slot) -> Domain | None:
        """The commons that a slot is in."""
        at = slot.address
        for base, reference in list(self._references.items()):
            if 0 <= at - base - _SLOTS < _SLOTS_NBYTES:
                return reference()
        return None

    def _reach(self, device: Device, base: int, chunks: _Chunks, chunk: int) -> int:
        doing = "registering event pages"
        with self._lock:
            found = chunks.addresses.get(chunk)
            if found is not None:
                return found
            domain = self._references[base]()
            if domain is None or domain.fd < 0:
                raise InvalidArgumentError("the process that made the event has left")
            try:
                mapping: Any = _system.Mapping(domain.fd, _CHUNK, _SLOTS + chunk * _CHUNK)
            except OSError as error:
                raise from_os_error(error, f"{doing}: mmap") from error
            with device.current():
                device.reach(doing, mapping.address, _CHUNK, False)
                try:
                    found = device.reached(doing, mapping.address)
                except BaseException:
                    quietly(device.unreach, doing, mapping.address)
                    raise
            chunks.mappings.append((device, mapping))
            chunks.addresses[chunk] = found
            return found


def unreach(device: Device, doing: str, mapping: Mapping) -> None:
    """Undo `Device.reach` of a mapping, which stays until then."""
    device.unreach(doing, mapping.address)
