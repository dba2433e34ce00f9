"""Cached streams for new queues: streams of ended queues, and some made in advance."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

from xpushare.adapters.stream.background import Teardown
from xpushare.adapters.stream.hooks import Stream

__all__ = ["SpareStreams"]

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
