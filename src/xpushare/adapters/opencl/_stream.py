"""In-order command queues, in the form that the stream engine uses, and the ordering between our queue and another
library's.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final, Literal, final

from xpushare.adapters.base import DriverQueue, NativeEvent
from xpushare.adapters.opencl._driver import PROFILING_QUEUE, Code, Cpu, Driver, Event
from xpushare.adapters.stream.hooks import Calls, Device, Scope
from xpushare.adapters.stream.library import address_of
from xpushare.common.errors import FeatureNotSupportedError

__all__ = ["Owned", "Stream", "Theirs"]

_AVAILABLE: Final = 0x1027
_timed: Final = (ctypes.c_uint64 * 3)(*PROFILING_QUEUE, 0)
_patterns: Final = (ctypes.c_uint8 * 256)(*range(256))  # the source of fills: each byte at its own index


@final
class Owned:
    """A queue that the program has given to this package. The queue is released with this object."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self._driver = driver
        self._handle = handle

    def __del__(self) -> None:
        self._driver.code("clReleaseCommandQueue", self._handle)


@final
class Theirs:
    """Another library's queue. Orders the work in that queue and in a queue of our own in the same context. The object
    `keep` keeps the other library's queue alive.
    """

    def __init__(self, driver: Driver, handle: int, context: int, ours: DriverQueue, keep: object) -> None:
        self._driver = driver
        self._handle = handle
        self._context = context
        self._ours = ours
        self._keep = keep

    def before(self) -> None:
        """Make operations that are queued on our queue from now on wait for the operations that are in the other queue
        now. Earlier failures of our queue do not affect the operations queued from now on.
        """
        self._ours.told()
        event = Event(self._driver, self._driver.made("marking", "clEnqueueMarkerWithWaitList", self._handle, 0, None))
        self._driver("marking", "clFlush", self._handle)
        self._ours.wait_native(event.awaited, event)

    def after(self) -> None:
        """Make operations that are queued on the other queue from now on wait for the operations that are in our queue
        now.
        """
        doing, reached = "holding a queue back", Event(self._driver)
        self._ours.wait_native(reached.marking, reached)
        held = reached
        if not reached.handle:  # our queue holds it behind a point
            held = Event(self._driver, self._driver.created(doing, "clCreateUserEvent", self._context), is_gate=True)
        self._driver(doing, "clEnqueueBarrierWithWaitList", self._handle, *held.list, None)
        self._driver(doing, "clFlush", self._handle)
        if held is not reached:
            self._ours.wait_native(lambda _queue: held.opened_after(reached), (held, reached))


@final
class Stream:
    """A queue of our own, in our context of the device or in another library's context. The driver never waits for a
    signal that another process could fail to send: a waiting kernel would block a processor.
    """

    fill_units: Sequence[int] = (1,)
    around_calls: Callable[[], Scope] | None = None
    owner: object | None = None  # another library's queue gets a queue of ours beside it
    ordering: Literal["device", "shared", "held"] = "held"

    def __init__(self, cpu: Cpu, doing: str, context: int = 0) -> None:
        self._driver = driver = cpu.driver
        self._cpu = cpu
        self.device: Device = cpu
        self.calls = driver.queue_calls
        call = "clCreateCommandQueueWithProperties", context or cpu.context, cpu.handle, address_of(_timed)
        self.handle = driver.created(doing, *call)
        self._lock = threading.Lock()
        self._newest: Event | None = None
        self._copy, self._fill = map(driver.address, ("clEnqueueSVMMemcpy", "clEnqueueSVMMemFill"))
        cpu.streams.add(self)

    def current(self) -> Scope:
        return nullcontext()

    relaxed = current

    def new_mark(self, doing: str) -> Event:
        return Event(self._driver)

    def mark(self, doing: str, mark: Event) -> Calls:
        self._newest = mark
        return mark.marking(self.handle)

    def new_stamp(self, doing: str) -> tuple[int, Event, Calls]:
        stamp = Event(self._driver)
        return self._cpu.now()[0], stamp, stamp.marking(self.handle)

    def query(self, doing: str, mark: Event) -> bool:
        return mark.complete(doing)

    def busy(self, doing: str) -> bool:
        """Return whether the queue has unfinished work. Only the newest mark (a marker that the engine has queued) is
        checked, since only markers for signals can follow the newest mark.
        """
        return self._newest is not None and not self._newest.complete(doing)

    def finish(self, doing: str) -> None:
        """Wait for the queue's work, unless the queue has been released."""
        with self._lock:
            if self.handle:
                self._driver(doing, "clFinish", self.handle)

    def check_device(self, doing: str) -> None:
        if not self._cpu.number(_AVAILABLE):
            raise self._cpu.error(doing, "clGetDeviceInfo", Code.DEVICE_NOT_AVAILABLE)

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return ((self._copy, self.handle, 0, dst, src, nbytes, 0, 0, 0),)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return ((self._fill, self.handle, dst, address_of(_patterns) + pattern[0], 1, times, 0, 0, 0),)

    def wait_native(self, doing: str, event: Callable[[int], Calls]) -> Calls:
        """Return the driver calls that make this queue wait for an event of another library's queue. `event` is a
        function that `Theirs` passes. It takes this queue's handle and returns these calls.
        """
        return event(self.handle)

    def record_native(self, doing: str) -> NativeEvent:
        raise FeatureNotSupportedError("OpenCL cannot share its own events between processes: use xs.ipc.event.get")

    def destroy(self, marks: Sequence[Event]) -> None:
        for mark in marks:
            mark.release()
        with self._lock:
            self._driver.code("clReleaseCommandQueue", self.handle)
            self.handle = 0
