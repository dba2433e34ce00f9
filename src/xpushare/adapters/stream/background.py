"""Background work of the stream engine: the teardown of driver objects, and the regular check of queues whose work has
not finished.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Protocol, final

from xpushare.adapters.stream.hooks import Device
from xpushare.common.errors import OutOfMemoryError, XpuShareError
from xpushare.common.threads import Worker

__all__ = ["Job", "Teardown", "Waiter", "Watch", "Watched", "quietly"]

_PATIENCE: Final = 0.05  # the longest time, in seconds, for which queues must not begin new waits
_REST: Final = 10  # the factor by which the pause after that is longer
_NAP_FIRST: Final = 1e-4
_NAP_MAX: Final = 0.02
# Seconds in which more teardowns are collected, so that they share the costly wait for the device. Allocations in other
# threads may block during it. So the pause is longer after a long wait, which then takes less than a tenth of the time.
_GATHER: Final = 20e-3
_GATHER_MAX: Final = 0.5
_INTERVAL: Final = 0.2  # seconds between checks of queues with pending signals
_LOOK: Final = 0.05  # seconds between checks of memory that was closed and is still mapped


class _Worker:
    """A daemon thread that starts with its first task."""

    def __init__(self, backend: str, name: str) -> None:
        self._log = logging.getLogger(f"xpushare.{backend}")
        self._todo: SimpleQueue[Any] = SimpleQueue()  # a SimpleQueue, since a finaliser may call `put`
        self._starting = threading.RLock()
        self._thread = Worker(f"xpushare-{backend}-{name}")

    def _put(self, item: object) -> None:
        if sys.is_finalizing():
            return  # the exit frees everything, and the device cannot be waited for any more
        self._todo.put(item)
        with suppress(OutOfMemoryError):  # the next task tries again
            self._thread.start(self._run)

    def _run(self) -> None:
        raise NotImplementedError


class Watched(Protocol):
    """A queue that `Watch` checks, because signals of the queue are pending or operations still use their operands."""

    # Look after the queue. Return False once nothing is left to look after.
    def look_after(self) -> bool: ...


@final
class Watch(_Worker):
    """Checks queues every 0.2 s, so that a broken device is noticed even if the program does not use the queue."""

    def __init__(self, backend: str) -> None:
        super().__init__(backend, "watch")

    def add(self, queue: Watched) -> None:
        self._put(queue)

    def _run(self) -> None:
        watched: dict[int, Watched] = {}
        next_look = 0.0
        while True:
            try:
                queue = self._todo.get(timeout=max(next_look - time.monotonic(), 0.0) if watched else None)
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


class Waiter(Protocol):
    """A queue that may wait for signals of events."""

    # Return a function for each point, and each event of another library, that the queue waits for now. The function
    # returns whether it still does. Never raises.
    def waits(self) -> list[Callable[[], bool]]: ...

    # The place of its newest operation, and up to which place the driver has its operations. Waiting for a device does
    # not wait for what the queue holds.
    @property
    def place(self) -> int: ...
    def handed(self) -> int: ...
    # Release the operands of finished operations.
    def settle(self) -> None: ...


class Job(NamedTuple):
    """One teardown. `done` is set once it has run."""

    action: Callable[[], None]
    done: threading.Event
    drained: bool


def _nothing() -> None:
    pass


@final
class Teardown(_Worker):
    """Runs teardowns, such as the freeing of memory. Each teardown runs once the device work submitted before it has
    finished.

    Waiting for a device (`Device.drain`) may block allocations in other threads, and one of those threads may be about
    to send the signal that the work waits for. So a device is drained only while none of our queues waits for anything.
    If there is no such moment, this thread repeatedly takes `wait_lock` for a limited time, which keeps queues from
    starting new waits. Each time, it holds the lock a little longer.
    """

    def __init__(self, backend: str, devices: Callable[[], Sequence[Device]]) -> None:
        super().__init__(backend, "teardown")
        self._devices = devices
        # Held during teardowns, and while a queue begins to wait. A wait that began during a teardown would delay the
        # teardown, and with it the allocations of the thread that is to signal the point.
        self.wait_lock = threading.RLock()
        self.busy = False  # whether `wait_lock` is held or about to be, by this thread
        self._waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()
        self._hurried = threading.Event()  # set while somebody waits in `settle`
        self._settling = 0
        self._gather = _GATHER
        self._looks: list[Callable[[], bool]] = []  # only this thread uses it
        self._next_look = 0.0

    def register(self, queue: Waiter) -> None:
        """Register a queue. From now on, teardowns run only while the queue waits for nothing."""
        with self._starting:
            self._waiters.add(queue)

    def _queues(self) -> list[Waiter]:
        with self._starting:
            return list(self._waiters)

    def waiting(self) -> bool:
        """Return whether any queue waits for an event's signal at the moment."""
        return any(wait() for queue in self._queues() for wait in queue.waits())

    def settle_queues(self) -> None:
        """Make every queue release the memory that finished operations have used."""
        for queue in self._queues():
            queue.settle()

    def submit(
        self, device: Device, hook: Callable[..., object], *arguments: object, drained: bool = True
    ) -> threading.Event:
        """Make the `Job` and begin it. Returns an event that is set after the call, even if the call failed."""
        job = self.job(device, hook, *arguments, drained=drained)
        self.begin(job)
        return job.done

    def job(self, device: Device, hook: Callable[..., object], *arguments: object, drained: bool = True) -> Job:
        """Return a job that calls `hook` in the background, at a moment at which no queue waits for an event. The
        device is current during the call. If `drained` is true, the call comes after all work that was submitted to any
        device before the job began.
        """

        def action() -> None:
            with device.current():
                hook(*arguments)

        return Job(action, threading.Event(), drained)

    def begin(self, job: Job) -> None:
        """Begin a job. A job that is begun twice, which happens after an interrupt, runs once."""
        self._put(job)

    def look_after(self, look: Callable[[], bool]) -> bool:
        """Call `look` about every 50 ms, between teardowns, until it returns False. `look` must never raise. This
        method returns False if no thread could be started to call `look`.
        """
        self._put(look)
        return self._thread.alive()

    def _look(self) -> float | None:
        """Call those functions passed to `look_after` that are due. Returns the seconds until the next call is due, or
        None if no function is left.
        """
        now = time.monotonic()
        if now >= self._next_look:
            self._looks = [look for look in self._looks if look()]
            self._next_look = now + _LOOK
        return max(self._next_look - now, 0.0) if self._looks else None

    def _get(self, batch: list[Any]) -> None:
        """Wait for the next item. Add a teardown to `batch`, and a function passed to `look_after` to the functions
        that are called regularly. Return early if one of those functions is due.
        """
        with suppress(Empty):
            item = self._todo.get(timeout=self._look())
            to: list[Any] = self._looks if callable(item) else batch
            to.append(item)

    def _run(self) -> None:
        while True:
            batch: list[Any] = []
            while not batch:
                self._get(batch)
            self._hurried.wait(self._gather)
            while not self._todo.empty():
                self._get(batch)
            drained = any(each.drained for each in batch)
            if drained:
                self._pass_held()
            patience = _NAP_FIRST
            while batch:
                self._pass_waits()
                self.busy = True
                try:
                    with self.wait_lock:
                        if self._pass_waits(patience):
                            if drained:
                                self._drain()
                            while batch:
                                self._try(batch.pop(0))
                finally:
                    self.busy = False
                if batch:
                    # Another queue has begun to wait. The thread that is to signal its point may need the lock.
                    time.sleep(_REST * patience)
                    patience = min(2 * patience, _PATIENCE)

    def _try(self, job: Job) -> None:
        try:
            if not job.done.is_set():
                job.action()
        except XpuShareError as error:
            # Logged, since nobody would see an exception. A broken device has already removed its mappings.
            self._log.warning("%s", error)
        finally:
            job.done.set()

    def _pass_waits(self, seconds: float = math.inf) -> bool:
        """Wait, for a limited time, until all signals that queues wait for now are complete or lost. Returns whether
        all of them are.
        """
        waits = [wait for queue in self._queues() for wait in queue.waits()]
        end = time.monotonic() + seconds
        nap = _NAP_FIRST
        while any(wait() for wait in waits):
            if time.monotonic() >= end:
                return False
            time.sleep(nap)
            nap = min(2 * nap, _NAP_MAX)
        return True

    def _pass_held(self) -> None:
        """Wait until the driver has received every operation that a queue holds back at this moment."""
        places = [(queue, queue.place) for queue in self._queues()]
        while any(queue.handed() < place for queue, place in places):
            time.sleep(_NAP_MAX)

    def _drain(self) -> None:
        start = time.monotonic()
        for device in self._devices():
            try:
                if device.active():
                    device.drain()
            except XpuShareError as error:
                self._log.debug("%s", error)  # a broken device has no work left
        self._gather = min(max(_GATHER, _REST * (time.monotonic() - start)), _GATHER_MAX)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait for the teardowns that were submitted so far."""
        if not self._thread.alive():
            return True
        with self._starting:
            self._settling += 1
            self._hurried.set()
        try:
            job = Job(_nothing, threading.Event(), True)
            self.begin(job)
            return job.done.wait(timeout)
        finally:
            with self._starting:
                self._settling -= 1
                if not self._settling:
                    self._hurried.clear()


def quietly(hook: Callable[..., object], *arguments: object) -> None:
    """Call `hook` to undo one step after a failure. Errors of `hook` are ignored, since the caller is already raising
    the failure.
    """
    try:
        hook(*arguments)
    except XpuShareError:
        pass
