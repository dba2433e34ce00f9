"""Streams of ended queues, and some made ahead, for the queues to come."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

from xpushare.adapters.stream.background import Teardown
from xpushare.adapters.stream.hooks import Stream

__all__ = ["SpareStreams"]

Spare = tuple[Stream, Sequence[Any]]  # with the marks that its queue had


@final
class SpareStreams:
    """So that a queue can be made while others wait: a driver may then make no stream before their points come, and the
    caller may be about to signal them. `kept`: how many streams of a device are made ahead, and kept.
    """

    def __init__(self, teardown: Teardown, kept: int) -> None:
        self._teardown = teardown
        self._kept = kept
        self._lock = threading.RLock()  # re-entrant, since a finaliser may end a queue at any moment
        self._spares: dict[int, list[Spare]] = defaultdict(list)  # by ordinal of the device

    def take(self, ordinal: int, make: Callable[[], Stream]) -> Spare:
        """A stream for a new queue; as many as are missing are made while no queue waits."""
        spares = self._spares[ordinal]
        if self._kept and len(spares) <= self._kept and not self._teardown.waiting():
            while len(spares) <= self._kept:
                spares.append((make(), ()))
        with self._lock:
            if spares:
                return spares.pop()
        return make(), ()

    def give(self, stream: Stream, marks: Sequence[Any]) -> bool:
        """Keep the stream of a queue that has ended. False if there are enough."""
        with self._lock:
            spares = self._spares[stream.device.ordinal]
            if len(spares) >= self._kept:
                return False
            spares.append((stream, marks))
            return True
