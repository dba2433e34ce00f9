"""Teardown: what must wait for the device, off the caller's thread."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, Protocol, final

from xpushare._errors import XpuShareError
from xpushare._native import LOST, PENDING, Slot, load64
from xpushare.adapters.stream.hooks import Device

__all__ = ["Job", "Teardown", "Waiter", "holds_device", "quietly"]

_QUIET: Final = 5.0  # seconds in which a moment without any wait is looked for
_NAP_FIRST: Final = 1e-4
_NAP_MAX: Final = 0.02
_GATHER: Final = 20e-3  # seconds in which further teardowns join one wait for the device, which is what costs


@final
class Job:
    """One teardown; `wait` returns once it was tried."""

    __slots__ = ("_action", "_done")

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._done = threading.Event()

    def run(self, log: logging.Logger) -> None:
        try:
            self._action()
        except XpuShareError as error:
            # A broken device has torn its mappings down itself; nobody is left whom an exception could reach.
            log.warning("%s", error)
        finally:
            self._done.set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._done.wait(timeout)


class Waiter(Protocol):
    """A queue that may wait for points of events."""

    def waits(self) -> list[tuple[Slot, int]]:
        """The points that it waits for now."""
        ...

    def settle(self) -> None:
        """Let go of the operands of finished operations."""
        ...


@final
class Teardown:
    """Runs teardowns on one daemon thread, each after the device work submitted before it has finished.

    What waits for a device (`Device.drain`) may hold up other threads' allocations, and one of those threads may be about
    to signal what the work waits for. So the devices are drained when no queue of ours waits for a point.
    """

    def __init__(self, backend: str, devices: Callable[[], Sequence[Device]]) -> None:
        self._name = f"xpushare-{backend}-teardown"
        self._log = logging.getLogger(f"xpushare.{backend}")
        self._devices = devices
        self._jobs: SimpleQueue[Job] = SimpleQueue()  # its put may be called from a finaliser
        self._starting = threading.RLock()
        # Held during teardowns, and while a queue begins to wait for a point: a wait that began during a teardown would
        # hold that up, and with it the allocations of the thread that is to signal the point.
        self.wait_lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()
        self._hurried = threading.Event()  # somebody is in `settle`
        self._settling = 0

    def register(self, queue: Waiter) -> None:
        """Have teardowns wait, without holding anybody up, for what `queue` waits for."""
        with self._starting:
            self._waiters.add(queue)

    def settle_queues(self) -> None:
        """Have every queue let go of the operands of finished operations."""
        with self._starting:
            queues = list(self._waiters)
        for queue in queues:
            queue.settle()

    def submit(self, device: Device, hook: Callable[..., object], *arguments: object) -> Job:
        """Have `hook` called with the device current, once the work submitted so far to any device has finished."""

        def action() -> None:
            with device.current():
                hook(*arguments)

        return self._submit(Job(action))

    def _submit(self, job: Job) -> Job:
        if sys.is_finalizing():
            return job  # the end of the process frees everything, and nothing can wait for the device any more
        self._jobs.put(job)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # the interpreter is exiting
                        return job
                    self._thread = thread
        return job

    def _run(self) -> None:
        while True:
            batch = [self._jobs.get()]
            self._hurried.wait(_GATHER)
            while not self._jobs.empty():
                batch.append(self._jobs.get())
            end = time.monotonic() + _QUIET
            while batch:
                self._pass_waits(end)
                with self.wait_lock:
                    if time.monotonic() < end and any(map(_pending, self._waits())):
                        continue  # a queue began to wait in between
                    self._drain()
                    while batch:
                        batch.pop(0).run(self._log)

    def _waits(self) -> list[tuple[Slot, int]]:
        with self._starting:
            queues = list(self._waiters)
        return [wait for queue in queues for wait in queue.waits()]

    def _pass_waits(self, end: float) -> None:
        """Return once every point that queues wait for now has come; best at a moment when they wait for none."""
        nap = _NAP_FIRST
        while True:
            waits = self._waits()
            if not waits or time.monotonic() > end:
                return
            while any(map(_pending, waits)):
                time.sleep(nap)
                nap = min(2 * nap, _NAP_MAX)

    def _drain(self) -> None:
        for device in self._devices():
            try:
                if device.active():
                    device.drain()
            except XpuShareError as error:
                self._log.debug("%s", error)  # a broken device has no work left

    def settle(self, timeout: float | None = None) -> bool:
        """Wait for the teardowns asked for so far."""
        if self._thread is None:
            return True
        with self._starting:
            self._settling += 1
            self._hurried.set()
        try:
            return self._submit(Job(lambda: None)).wait(timeout)
        finally:
            with self._starting:
                self._settling -= 1
                if not self._settling:
                    self._hurried.clear()


def holds_device(slot: Slot, point: int) -> bool:
    """Whether a device that waits for the point is held: also by a lost one, until it is let go."""
    state = slot.state(point)
    return state == PENDING or (state == LOST and load64(slot.address) < point)


def _pending(wait: tuple[Slot, int]) -> bool:
    try:
        return holds_device(*wait)
    except ValueError:
        return False  # the event was closed here


def quietly(hook: Callable[..., object], *arguments: object) -> None:
    """Undo one step after a failure, which is what the caller hears of."""
    try:
        hook(*arguments)
    except XpuShareError:
        pass
