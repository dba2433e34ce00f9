"""Looking after queues that owe points or hold operands."""

from __future__ import annotations

import logging
import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, final

from xpushare._errors import XpuShareError

__all__ = ["Watch", "Watched"]

_INTERVAL: Final = 0.2  # seconds between looks


class Watched(Protocol):
    """A queue that owes something."""

    def look_after(self) -> bool:
        """Look after it; False when there is nothing more to look after."""
        ...


@final
class Watch:
    """Looks now and then, on one daemon thread: a broken device is noticed though nobody asks."""

    def __init__(self, backend: str) -> None:
        self._name = f"xpushare-{backend}-watch"
        self._log = logging.getLogger(f"xpushare.{backend}")
        self._new: SimpleQueue[Any] = SimpleQueue()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None

    def add(self, queue: Watched) -> None:
        if sys.is_finalizing():
            return
        self._new.put(queue)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # the interpreter is exiting
                        return
                    self._thread = thread

    def _run(self) -> None:
        watched: dict[int, Watched] = {}
        next_look = 0.0
        while True:
            try:
                queue = self._new.get(timeout=max(next_look - time.monotonic(), 0.0) if watched else None)
                if not watched:
                    next_look = time.monotonic() + _INTERVAL
                watched[id(queue)] = queue
                del queue
                continue
            except Empty:
                pass
            next_look = time.monotonic() + _INTERVAL
            for each in list(watched.values()):
                try:
                    keep = each.look_after()
                except XpuShareError as error:
                    self._log.warning("%s", error)
                    keep = False
                if not keep:
                    del watched[id(each)]
            each = None  # type: ignore[assignment]
