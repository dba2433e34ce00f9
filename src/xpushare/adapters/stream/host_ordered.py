"""Queues of our own, ordered with another library's queue that cannot run our work. The host waits to keep the order,
unless the vendor has a way to order the two queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from xpushare.adapters.base import DriverQueue, NativeEvent, Profile, Slot

__all__ = ["HostOrderedQueue"]


@final
class HostOrderedQueue(DriverQueue):
    """A queue of our own, ordered with another library's queue. `before` makes later work of our queue wait for the
    other queue's work so far. `after` makes later work of the other queue wait for our queue's work so far. If `after`
    is None, the host waits for our queue. `handle` is the driver's handle of the other queue.
    """

    def __init__(
        self,
        queue: DriverQueue,
        before: Callable[[], object],
        after: Callable[[], object] | None = None,
        handle: int | None = None,
    ) -> None:
        self._queue = queue
        self._handle = handle
        self._before: Callable[[], object] = before
        self._after: Callable[[], object] = after or self._synchronize

    def _synchronize(self) -> None:
        self._queue.synchronize(None)

    def copy(self, dst: int, src: int, nbytes: int, keep: object) -> None:
        self._before()
        self._queue.copy(dst, src, nbytes, keep)
        self._after()

    def fill(self, dst: int, pattern: bytes, nbytes: int, keep: object) -> None:
        self._before()
        self._queue.fill(dst, pattern, nbytes, keep)
        self._after()

    def call(self, function: Callable[[], object]) -> None:
        self._queue.call(function)

    def signal(self, slot: Slot, profile: Profile | None) -> int:
        self._before()
        return self._queue.signal(slot, profile)

    def wait(self, slot: Slot, point: int) -> None:
        self._queue.wait(slot, point)
        self._after()

    def wait_native(self, event: Any, keep: object) -> None:
        self._queue.wait_native(event, keep)
        self._after()

    def record_native(self) -> NativeEvent:
        self._before()
        return self._queue.record_native()

    def native(self) -> int:
        return super().native() if self._handle is None else self._handle

    def synchronize(self, timeout: float | None) -> None:
        self._before()
        self._queue.synchronize(timeout)

    def told(self) -> None:
        self._queue.told()

    def idle(self) -> bool:
        return self._queue.idle()

    def unfinished(self) -> bool | tuple[Slot, int]:
        return self._queue.unfinished()

    def release(self) -> None:
        self._queue.release()
        self._before = self._after = bool  # drop the functions that kept the other library's queue alive
