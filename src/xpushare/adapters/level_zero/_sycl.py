"""Queues over SYCL's. SYCL appends to its lists under a lock of its own, so nothing of ours goes there: the order comes
in and goes out by waits of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from xpushare._errors import DeviceError
from xpushare.adapters.base import DriverQueue, NativeEvent, Profile, Slot

__all__ = ["SyclQueue"]


@final
class SyclQueue(DriverQueue):
    """A queue of ours in the order of a SYCL queue, which may be out-of-order: its barrier comes after all that was
    submitted before.
    """

    def __init__(self, native: Any, queue: DriverQueue) -> None:
        self._native: Any = native
        self._queue = queue

    def _before(self) -> None:
        """Return once what SYCL has been given so far is done."""
        try:
            self._native.submit_barrier().wait()
        except Exception as error:  # SYCL reports failures of its own work here
            raise DeviceError(f"waiting for a SYCL queue: {error}") from error

    def _after(self) -> None:
        """Return once our queue is through, so that what SYCL is given later comes after it."""
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
        self._native = None
