"""In-order command queues, in the form that the stream engine uses; and the order between one and another library's."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Literal, final

from xpushare._errors import FeatureNotSupportedError
from xpushare.adapters.base import DriverQueue, NativeEvent
from xpushare.adapters.opencl._bindings import COMPLETE
from xpushare.adapters.stream.hooks import Calls, Device, Scope
from xpushare.adapters.stream.library import address_of

if TYPE_CHECKING:
    from xpushare.adapters.opencl._device import Cpu
    from xpushare.adapters.opencl._driver import Driver

__all__ = ["Event", "Stream", "Theirs"]

_patterns: Final = (ctypes.c_uint8 * 256)(*range(256))  # what fills read: the byte at its own index


@final
class Event:
    """Where two queues of a context meet: what one is given later waits until the other has come here. Either a marker
    of the other one, or a user event (a gate), which is completed in any case: an error would end the work behind it.
    """

    def __init__(self, driver: Driver, handle: int, is_gate: bool = False) -> None:
        self._driver = driver
        self._is_gate = is_gate
        self._handle = ctypes.c_void_p(handle)
        self.list = 1, address_of(self._handle)  # as operations take those that they wait for

    def come(self, queue: int) -> Calls:
        """What our queue does when it comes here. This object lives until it has."""
        if self._is_gate:
            return ((self._driver.address("clSetUserEventStatus"), self._handle.value or 0, COMPLETE),)
        return ((self._driver.address("clEnqueueBarrierWithWaitList"), queue, *self.list, 0),)

    def open(self) -> None:
        self._driver.code("clSetUserEventStatus", self._handle, COMPLETE)  # refused if it is complete

    def __del__(self) -> None:
        if self._is_gate:
            self.open()
        self._driver.code("clReleaseEvent", self._handle)


@final
class Theirs:
    """Another library's queue, and its order with one of ours in its context. No thread waits for it."""

    def __init__(self, driver: Driver, handle: int, context: int, ours: DriverQueue) -> None:
        self._driver = driver
        self._handle = handle
        self._context = context
        self._ours = ours
        driver("adopting a queue", "clRetainCommandQueue", handle)

    def before(self) -> None:
        """What ours is given later comes after what theirs has. Nobody there need ask for losses."""
        self._ours.told()
        marker = self._driver.made("marking a queue", "clEnqueueMarkerWithWaitList", self._handle, 0, None)
        self._meet(Event(self._driver, marker))

    def after(self) -> None:
        """What theirs is given later comes after what ours has."""
        doing = "holding a queue back"
        gate = self._driver.gate(doing, self._context)
        self._driver(doing, "clEnqueueBarrierWithWaitList", self._handle, *gate.list, None)
        self._meet(gate)

    def _meet(self, event: Event) -> None:
        self._driver("handing over work", "clFlush", self._handle)
        self._ours.wait_native(event, event)

    def __del__(self) -> None:
        self._driver.code("clReleaseCommandQueue", self._handle)


@final
class Stream:
    """A queue of ours, in the device's own context or another library's. The driver waits for nothing that another
    process could fail to signal: a kernel that waited would keep a processor from the others.
    """

    fill_units: Sequence[int] = (1,)
    around_calls: Callable[[], Scope] | None = None
    owner: object | None = None  # others' queues get one of ours beside them

    def __init__(self, cpu: Cpu, doing: str, context: int = 0) -> None:
        self._driver = driver = cpu.driver
        self._cpu = cpu
        self.device: Device = cpu
        self.current: Callable[[], Scope] = nullcontext
        self.relaxed: Callable[[], Scope] = nullcontext
        self.ordering: Literal["device", "shared", "held"] = "held"
        self.calls = driver.queue_calls
        call = "clCreateCommandQueueWithProperties", context or cpu.context, cpu.handle, None
        self.handle = driver.created(doing, *call)
        self._lock = threading.Lock()
        self._newest: ctypes.c_void_p | None = None
        names = "clEnqueueSVMMemcpy", "clEnqueueSVMMemFill", "clEnqueueMarkerWithWaitList", "clFlush"
        self._copy, self._fill, self._marker, self._flush = map(driver.address, names)
        cpu.streams.add(self)

    def new_mark(self, doing: str) -> ctypes.c_void_p:
        """The event of the newest marker that was queued for it; none until the driver has that marker."""
        return ctypes.c_void_p()

    def _forget(self, mark: ctypes.c_void_p) -> None:
        if mark.value:
            self._driver.code("clReleaseEvent", mark)
            mark.value = None

    def mark(self, doing: str, mark: ctypes.c_void_p) -> Calls:
        self._forget(mark)
        self._newest = mark
        return (self._marker, self.handle, 0, 0, address_of(mark)), (self._flush, self.handle)

    def query(self, doing: str, mark: ctypes.c_void_p) -> bool:
        return mark.value is not None and self._driver.complete(doing, mark.value)

    def busy(self, doing: str) -> bool:
        """Behind the newest mark there are at most markers of signals."""
        newest = self._newest
        return newest is not None and not self.query(doing, newest)

    def finish(self, doing: str) -> None:
        """Wait for the queue's work, unless it has ended."""
        with self._lock:
            if self.handle:
                self._driver(doing, "clFinish", self.handle)

    def check_device(self, doing: str) -> None:
        self._cpu.check(doing)

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return ((self._copy, self.handle, 0, dst, src, nbytes, 0, 0, 0),)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return ((self._fill, self.handle, dst, address_of(_patterns) + pattern[0], 1, times, 0, 0, 0),)

    def wait_native(self, doing: str, event: Event) -> Calls:
        return event.come(self.handle)

    def record_native(self, doing: str) -> NativeEvent:
        raise FeatureNotSupportedError("OpenCL has no events for other processes: ipc.event.get makes a handle")

    def destroy(self, marks: Sequence[ctypes.c_void_p]) -> None:
        for mark in marks:
            self._forget(mark)
        with self._lock:
            self._driver.code("clReleaseCommandQueue", self.handle)
            self.handle = 0
