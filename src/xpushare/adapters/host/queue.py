"""An in-order queue on the host, one Python thread each: what `native_cpu` and `mock` share."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from xpushare import _native
from xpushare._errors import FeatureNotSupportedError
from xpushare.adapters.base import DriverQueue, NativeEvent, Profile
from xpushare.timeline.loss import QUEUE_FAILED, note_failure, peer_lost

__all__ = ["HostQueue", "queue_numbers"]

queue_numbers = itertools.count(1)
_LOST_AT = _native.LAYOUT["slot.lost"]  # the word that tells the newest loss


class HostQueue(DriverQueue):
    """Runs what it is given, in order, on a thread that starts with the first operation and ends with the queue.

    After a failure later work still runs, but its signals are lost, until `synchronize` has reported the failure.
    """

    def __init__(self) -> None:
        self.number = next(queue_numbers)
        self._changed = threading.Condition()
        self._todo: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._running = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failures: deque[BaseException] = deque()
        self._told: WeakKeyDictionary[_native.Slot, int] = WeakKeyDictionary()  # the loss of an event last reported
        self._spoiled: BaseException | None = None  # a loss since the last `synchronize`, reported or not

    def _put(self, operation: Callable[..., object], *arguments: Any) -> None:
        with self._changed:
            self._enqueue(operation, arguments)

    def _enqueue(self, operation: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._todo.append((operation, arguments))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"xpushare-queue-{self.number}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = False
                self._changed.notify_all()
                while not self._todo:
                    if self._closing:
                        return
                    self._changed.wait()
                operation, arguments = self._todo.popleft()
                self._running = True
            try:
                operation(*arguments)
            except BaseException as error:
                self._failures.append(error)
            del operation, arguments  # what they kept goes now, not with the next operation

    def copy(self, dst: int, src: int, nbytes: int, keep: object) -> None:
        self._put(lambda _keep: _native.copy(dst, src, nbytes), keep)

    def fill(self, dst: int, pattern: bytes, nbytes: int, keep: object) -> None:
        self._put(lambda _keep: _native.fill(dst, pattern, nbytes), keep)

    def call(self, function: Callable[[], object]) -> None:
        self._put(function)

    def signal(self, slot: _native.Slot, profile: Profile | None) -> int:
        with self._changed:  # points are submitted in the order in which they are queued
            point, first = slot.submit(self.number)
            if profile is not None:
                profile.queued = profile.submit = time.monotonic_ns()
            self._enqueue(self._signal, (slot, point, first, profile))
        return point

    def _signal(self, slot: _native.Slot, point: int, first: int, profile: Profile | None) -> None:
        if profile is not None:
            profile.start = profile.end = time.monotonic_ns()
        if first:
            self._wait(slot, first)
        failure = self._failures[0] if self._failures else self._spoiled
        if failure is not None:
            note_failure(slot.domain, failure)
            slot.fail(QUEUE_FAILED)
        else:
            slot.complete(point)

    def wait(self, slot: _native.Slot, point: int) -> None:
        self._put(self._wait, slot, point)

    def _wait(self, slot: _native.Slot, point: int) -> None:
        if slot.wait(point) != _native.LOST:
            return
        self._spoiled = peer_lost(slot, point)
        loss = _native.load64(slot.address + _LOST_AT)
        if self._told.get(slot) != loss:  # once per loss and queue
            self._told[slot] = loss
            self._failures.append(self._spoiled)

    def wait_native(self, event: Any, keep: object) -> None:
        raise FeatureNotSupportedError("the host has no events but ours")

    def record_native(self) -> NativeEvent:
        raise FeatureNotSupportedError("the host has no IPC events of its own: ipc.event.get makes a handle")

    def synchronize(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._todo or self._running:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"the queue has not finished within {timeout:g} s")
                self._changed.wait(left)
        self._spoiled = None
        if self._failures:
            raise self._failures.popleft()

    def idle(self) -> bool:
        with self._changed:
            return not self._todo and not self._running

    def release(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
