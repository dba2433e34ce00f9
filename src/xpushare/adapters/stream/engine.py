"""The objects of the stream engine that all queues and memories of one vendor share."""

from __future__ import annotations

import abc
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

from xpushare.adapters.host.memory import Calls
from xpushare.adapters.stream.background import Teardown, Watch
from xpushare.adapters.stream.hooks import Device, Stream
from xpushare.adapters.stream.slot_pages import SlotPages, always

__all__ = ["Engine", "OperandAccess", "SpareStreams"]


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
