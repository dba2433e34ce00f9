"""What must wait for the device, off the caller's thread: teardown, and looking after queues that owe something."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, final

from xpushare import _system
from xpushare._errors import XpuShareError
from xpushare._fds import OwnedFd
from xpushare._native import LOST, PENDING, Mapping, Slot, load64
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import Driver, Gpu, exiting

__all__ = ["Job", "Later", "Waiting", "Watch", "Watched", "holds"]

_log = logging.getLogger("xpushare.cuda")
_PAGE: Final = 4096
_QUIET: Final = 5.0  # seconds in which a moment without any wait is looked for
_NAP_FIRST: Final = 1e-4
_NAP_MAX: Final = 0.02
_GATHER: Final = 20e-3  # seconds in which further teardowns join one wait for the device, which is what costs
_TICK: Final = 0.2  # seconds between looks at the queues that owe something


@final
class Job:
    """One teardown; `done` once it was tried."""

    __slots__ = ("_done", "action")

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self._done = threading.Event()

    def run(self) -> None:
        try:
            self.action()
        except XpuShareError as error:
            # A dead context has torn its mappings down itself; nobody is left whom an exception could reach.
            _log.warning("%s", error)
        finally:
            self._done.set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._done.wait(timeout)


@final
class Later:
    """Runs teardowns on one daemon thread, each after the device work submitted before it has finished.

    cuCtxSynchronize and cuCtxRecordEvent end any capture in the context, whatever this thread's capture mode. What
    waits for all work and leaves captures alone is cuMemHostUnregister, of any page, so a page of ours is unregistered
    and registered again. But while it waits, no other thread can allocate or register memory (all measured), perhaps
    not the one that is to signal what the work waits for. So it is called when no queue of ours waits for a point.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._jobs: SimpleQueue[Job] = SimpleQueue()  # its put may be called from a finaliser
        self._starting = threading.RLock()
        # Held during teardowns, and while a queue begins to wait for a point: a wait that began during a teardown would
        # hold that up, and with it the allocations of the thread that is to signal the point.
        self.calm = threading.RLock()
        self._thread: threading.Thread | None = None
        self._pages: dict[int, Mapping] = {}
        self._waiting: weakref.WeakSet[Waiting] = weakref.WeakSet()
        self._hurried = threading.Event()  # somebody is in `settle`
        self._settling = 0

    def mind(self, queue: Waiting) -> None:
        """Have teardowns wait, without holding anybody up, for what `queue` waits for."""
        with self._starting:
            self._waiting.add(queue)

    def let_go(self) -> None:
        """Have every queue let go of the operands of finished operations."""
        with self._starting:
            queues = list(self._waiting)
        for queue in queues:
            queue.settle()

    def do(self, action: Callable[[], None]) -> Job:
        """Have `action` run once the device work submitted so far has finished."""
        job = Job(action)
        if exiting():
            return job  # the end of the process frees everything, and nothing can wait for the device any more
        self._jobs.put(job)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="xpushare-cuda-teardown", daemon=True)
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
                with self.calm:
                    if time.monotonic() < end and any(map(_pending, self._waits())):
                        continue  # a queue began to wait in between
                    self._drain()
                    while batch:
                        batch.pop(0).run()

    def _waits(self) -> list[tuple[Slot, int]]:
        with self._starting:
            queues = list(self._waiting)
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
        for gpu in self._driver.gpus():
            try:
                if gpu.active():
                    self.drain(gpu)
            except XpuShareError as error:
                _log.debug("%s", error)  # a dead context has no work left

    def drain(self, gpu: Gpu) -> None:
        """Wait until the work submitted so far to the primary context of `gpu` has finished."""
        doing = f"waiting for the work on GPU {gpu.ordinal}"
        page = self._pages.get(gpu.ordinal)
        with gpu.context.current():
            if page is None:
                page = _page()
                self._driver(doing, "cuMemHostRegister", page.address, _PAGE, 0)
                self._pages[gpu.ordinal] = page
            del self._pages[gpu.ordinal]
            self._driver(doing, "cuMemHostUnregister", page.address)
            self._driver(doing, "cuMemHostRegister", page.address, _PAGE, 0)
            self._pages[gpu.ordinal] = page

    def settle(self, timeout: float | None = None) -> bool:
        """Wait for the teardowns asked for so far."""
        if self._thread is None:
            return True
        with self._starting:
            self._settling += 1
            self._hurried.set()
        try:
            return self.do(lambda: None).wait(timeout)
        finally:
            with self._starting:
                self._settling -= 1
                if not self._settling:
                    self._hurried.clear()


def _page() -> Mapping:
    fd = OwnedFd(_system.memfd("xpushare-page"))
    _system.resize(fd.number, _PAGE)
    return _system.Mapping(fd.number, _PAGE)


def holds(slot: Slot, point: int) -> bool:
    """Whether a device that waits for the point is held: also by a lost one, until it is let go."""
    state = slot.state(point)
    return state == PENDING or (state == LOST and load64(slot.address) < point)


def _pending(wait: tuple[Slot, int]) -> bool:
    try:
        return holds(*wait)
    except ValueError:
        return False  # the event was closed here


class Waiting(Protocol):
    """A queue that may wait for points."""

    def waits(self) -> list[tuple[Slot, int]]:
        """The points that it waits for now."""
        ...

    def settle(self) -> None:
        """Let go of the operands of finished operations."""
        ...


class Watched(Protocol):
    """A queue that owes something."""

    def tick(self) -> bool:
        """Look after it; False when there is nothing more to look after."""
        ...


@final
class Watch:
    """Looks now and then at queues that owe points or hold operands: a broken context is noticed though nobody asks."""

    def __init__(self) -> None:
        self._new: SimpleQueue[Any] = SimpleQueue()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None

    def add(self, queue: Watched) -> None:
        if exiting():
            return
        self._new.put(queue)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="xpushare-cuda-watch", daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # the interpreter is exiting
                        return
                    self._thread = thread

    def _run(self) -> None:
        watched: dict[int, Watched] = {}
        tick = 0.0
        while True:
            try:
                queue = self._new.get(timeout=max(tick - time.monotonic(), 0.0) if watched else None)
                if not watched:
                    tick = time.monotonic() + _TICK
                watched[id(queue)] = queue
                del queue
                continue
            except Empty:
                pass
            tick = time.monotonic() + _TICK
            for each in list(watched.values()):
                try:
                    keep = each.tick()
                except XpuShareError as error:
                    _log.warning("%s", error)
                    keep = False
                if not keep:
                    del watched[id(each)]
            each = None  # type: ignore[assignment]


def register_flags(read_only: bool) -> int:
    return n.HOST_REGISTER_PORTABLE | n.HOST_REGISTER_DEVICEMAP | (n.HOST_REGISTER_READ_ONLY if read_only else 0)
