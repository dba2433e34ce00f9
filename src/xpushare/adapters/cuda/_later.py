"""What must wait for the device, off the caller's thread: teardown, and looking after queues that owe something."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, final

from xpushare import _system
from xpushare._errors import XpuShareError
from xpushare._fds import OwnedFd
from xpushare._native import Mapping
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import Driver, Gpu, exiting

__all__ = ["Job", "Later", "Watch", "Watched"]

_log = logging.getLogger("xpushare.cuda")
_PAGE: Final = 4096
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

    cuCtxSynchronize and cuCtxRecordEvent end any capture in the context, whatever this thread's capture mode; cuMemFree
    waits for all work as well, but keeps other threads from registering memory meanwhile. What waits, leaves captures
    alone and holds nobody up is cuMemHostUnregister, of any page (all measured). So a page of ours is unregistered and
    registered again.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._jobs: SimpleQueue[Job] = SimpleQueue()  # its put may be called from a finaliser
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._pages: dict[int, Mapping] = {}

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
            while not self._jobs.empty():
                batch.append(self._jobs.get())
            self._drain()
            while batch:
                batch.pop(0).run()

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
        """Wait for the teardowns asked for so far; for tests."""
        return self._thread is None or self.do(lambda: None).wait(timeout)


def _page() -> Mapping:
    fd = OwnedFd(_system.memfd("xpushare-page"))
    _system.resize(fd.number, _PAGE)
    return _system.Mapping(fd.number, _PAGE)


class Watched(Protocol):
    """A queue that owes something."""

    def tick(self) -> bool:
        """Look after it; False when there is nothing more to look after."""


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
