"""Queues over other libraries' streams."""

from __future__ import annotations

import functools
import threading
from collections.abc import Hashable
from typing import final

from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.hooks import Stream
from xpushare.adapters.stream.queue import DeviceQueue

__all__ = ["AdoptedQueues"]


@final
class AdoptedQueues:
    """One queue for each stream, so that what it signals is one signaller's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.RLock()  # re-entrant: a finaliser may release a queue at any moment
        self._used: dict[Hashable, tuple[DeviceQueue, int]] = {}  # identity of a stream -> queue, users

    def queue(self, identity: Hashable | None, stream: Stream, lasting: bool = False) -> DeviceQueue:
        """The queue over a stream; every call has a `release` of its own.

        `identity` names the stream: one that has its handle later has another; None where it cannot be told now.
        `lasting`: the stream lives as long as the process, and so does its queue."""
        if identity is None:
            return DeviceQueue(self._engine, stream)
        with self._lock:
            found, users = self._used.get(identity, (None, int(lasting)))
            if found is None:
                found = DeviceQueue(self._engine, stream)
                found.drop_user = functools.partial(self._drop_user, identity)
            self._used[identity] = found, users + 1
            return found

    def _drop_user(self, identity: Hashable) -> bool:
        with self._lock:
            found, users = self._used.pop(identity)
            if users > 1:
                self._used[identity] = found, users - 1
            return users == 1
