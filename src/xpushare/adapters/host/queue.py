"""In-order queues on the host. Each queue runs its operations on a Python thread of its own."""

from __future__ import annotations

import itertools
import operator
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from xpushare import _native
from xpushare.adapters.base import DriverQueue, NativeEvent, Profile
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, PeerLostError
from xpushare.common.threads import Worker
from xpushare.timeline.loss import QUEUE_FAILED, Losses, note_failure, peer_lost

__all__ = ["HostQueue", "queue_numbers"]

_call: Final[Callable[[Any], Any]] = operator.call
queue_numbers = itertools.count(1)
_EARLIER: Final = 0.002  # seconds between checks


class HostQueue(DriverQueue):
    """Runs operations in order, on a thread that starts with the first operation and ends with the queue.

    After a failure, later work still runs, but its signals are lost. This ends when `synchronize` reports the failure,
    or when `told` records that the program knows of the failure.
    """

    def __init__(self) -> None:
        self.number = next(queue_numbers)
        # In C, like the locks: no thread that is frozen at the interpreter's end, or interrupted, holds it.
        self._todo: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = SimpleQueue()
        self._order = threading.RLock()  # held while an operation is queued; re-entrant, for signal handlers
        self._pending: deque[None] = deque()  # one for each operation that has not finished
        self._thread = Worker(f"xpushare-queue-{self.number}")
        self._worker = 0  # the identity of that thread
        self._failures: deque[BaseException] = deque()
        self._known: deque[BaseException] = deque()  # failures that the program has learned of from an event
        self._losses = Losses()
        self._spoiled: BaseException | None = None  # a loss since the last `synchronize`, reported or not
        self._waits: tuple[_native.Slot, int] | None = None  # the point that the queue waits for now

    def _put(self, operation: Callable[..., object], *arguments: Any) -> None:
        with self._order:
            self._thread.start(self._work)  # first, so that nothing is queued if no thread can be started
            self._enqueue(operation, arguments)

    def _enqueue(self, operation: Callable[..., object], arguments: tuple[Any, ...], *first: Callable[[], Any]) -> None:
        """Call `first` and queue the operation in one C call, so that an interrupt cannot come between the two."""
        last = partial(self._pending.append, None), partial(self._todo.put, (operation, arguments))
        deque(map(_call, (*first, *last)), 0)

    def _work(self) -> None:
        self._worker = threading.get_ident()
        while (todo := self._todo.get()) is not None:
            operation, arguments = todo
            try:
                operation(*arguments)
            except BaseException as error:
                self._failures.append(error)
            del todo, operation, arguments  # release their objects now, not later
            self._pending.pop()

    def copy(self, dst: int, src: int, nbytes: int, keep: object) -> None:
        self._put(lambda _keep: _native.copy(dst, src, nbytes), keep)

    def fill(self, dst: int, pattern: bytes, nbytes: int, keep: object) -> None:
        self._put(lambda _keep: _native.fill(dst, pattern, nbytes), keep)

    def call(self, function: Callable[[], object]) -> None:
        self._put(function)

    def signal(self, slot: _native.Slot, profile: Profile | None) -> int:
        submitted: list[tuple[int, int]] = []
        with self._order:  # points are submitted in the order in which they are queued
            self._thread.start(self._work)
            if profile is not None:
                profile.begin(time.monotonic_ns())
            submit = partial(submitted.extend, map(slot.submit, (self.number,)))
            self._enqueue(lambda: self._signal(slot, *submitted[0], profile), (), submit)
        return submitted[0][0]

    def _signal(self, slot: _native.Slot, point: int, first: int, profile: Profile | None) -> None:
        if profile is not None:
            profile.end = time.monotonic_ns()
        if first:
            self._wait(slot, first)
        failure = self._failures[0] if self._failures else self._spoiled
        if failure is not None:
            note_failure(slot.domain, failure)
            while not slot.lose(point, QUEUE_FAILED):  # a living process may still complete its earlier point
                time.sleep(_EARLIER)
                slot.wait(point - 1, 0)  # notices deaths
        else:
            try:
                slot.complete(point)
            except ValueError as error:
                raise PeerLostError(f"signal {point} of the event is lost: its state was damaged ({error})") from None

    def wait(self, slot: _native.Slot, point: int) -> None:
        slot.state(point)  # this process counts as one that has waited, even if it drops the event at once
        self._put(self._wait, slot, point)

    def _wait(self, slot: _native.Slot, point: int) -> None:
        self._waits = slot, point
        try:
            state = slot.wait(point)
        finally:
            self._waits = None
        if state != _native.LOST:
            return
        self._spoiled = peer_lost(slot, point)
        if self._losses.new(slot, point):
            self._failures.append(self._spoiled)

    def wait_native(self, event: Any, keep: object) -> None:
        raise FeatureNotSupportedError("the host has no driver events: use xs.Event")

    def record_native(self) -> NativeEvent:
        raise FeatureNotSupportedError("the host has no driver events to share: use xs.ipc.event.get")

    def synchronize(self, timeout: float | None) -> None:
        if self._worker == threading.get_ident():
            raise InvalidArgumentError(
                "a queue cannot wait for itself: a function that the queue runs has made this call"
            )
        if self._pending:
            reached = threading.Lock()
            reached.acquire()
            self._put(reached.release)
            if not reached.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
                raise TimeoutError(f"the queue has not finished within {timeout:g} s")
        self._spoiled = None
        for failures in (self._known, self._failures):
            if failures:
                raise failures.popleft()

    def told(self) -> None:
        self._put(self._know)

    def _know(self) -> None:
        """Record that the program knows of all failures so far, so that they do not affect later signals. Runs in queue
        order.
        """
        self._spoiled = None
        self._known += self._failures
        self._failures.clear()

    def idle(self) -> bool:
        return not self._pending

    def clean(self) -> bool:
        """Return whether everything queued has finished and there is no failure for `synchronize` to report."""
        return not (self._pending or self._failures or self._known or self._spoiled)

    def unfinished(self) -> bool | tuple[_native.Slot, int]:
        return bool(self._pending) and (self._waits or True)

    def release(self) -> None:
        self._todo.put(None)
