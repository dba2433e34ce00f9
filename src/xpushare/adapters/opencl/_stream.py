"""In-order command queues, in the form that the stream engine uses; and the order between one and another library's."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Literal, final

from xpushare._errors import FeatureNotSupportedError
from xpushare.adapters.base import DriverQueue, NativeEvent
from xpushare.adapters.opencl._driver import COMPLETE, Driver
from xpushare.adapters.stream.hooks import Calls, Device, Scope
from xpushare.adapters.stream.library import address_of

if TYPE_CHECKING:
    from xpushare.adapters.opencl._device import Cpu

__all__ = ["Event", "Stream", "Theirs"]

_patterns: Final = (ctypes.c_uint8 * 256)(*range(256))  # what fills read: the byte at its own index


@final
class Event:
    """Where one queue waits for another of its context: a marker of that one, or a user event (a gate), which is opened
    in any case: an error would end the work behind it.
    """

    def __init__(self, driver: Driver, handle: int = 0, is_gate: bool = False) -> None:
        self._driver = driver
        self._is_gate = is_gate
        self._handle = ctypes.c_void_p(handle)
        self.list = 1, address_of(self._handle)  # as operations take those that they wait for

    @classmethod
    def gate(cls, driver: Driver, doing: str, context: int) -> Event:
        return cls(driver, driver.created(doing, "clCreateUserEvent", context), is_gate=True)

    @property
    def made(self) -> bool:
        return bool(self._handle.value)

    def awaited(self, queue: int) -> Calls:
        return ((self._driver.address("clEnqueueBarrierWithWaitList"), queue, *self.list, 0),)

    def marking(self, queue: int) -> Calls:
        marker, flush = map(self._driver.address, ("clEnqueueMarkerWithWaitList", "clFlush"))
        return (marker, queue, 0, 0, self.list[1]), (flush, queue)

    def opened_after(self, other: Event) -> Calls:
        """A user event does not wait for what its queue has: so the thread that hands over what was held does."""
        wait, status = map(self._driver.address, ("clWaitForEvents", "clSetUserEventStatus"))
        return (wait, *other.list), (status, self._handle.value or 0, COMPLETE)

    def open(self) -> None:
        self._driver.code("clSetUserEventStatus", self._handle, COMPLETE)  # refused if it is complete

    def __del__(self) -> None:
        if self._is_gate:
            self.open()
        if self.made:
            self._driver.code("clReleaseEvent", self._handle)


@final
class Theirs:
    """Another library's queue, and its order with one of ours in its context."""

    def __init__(self, driver: Driver, handle: int, context: int, ours: DriverQueue) -> None:
        self._driver = driver
        self._handle = 0
        self._context = context
        self._ours = ours
        driver("adopting a queue", "clRetainCommandQueue", handle)
        self._handle = handle

    def before(self) -> None:
        """What ours is given later comes after what theirs has. Nobody there need ask for losses."""
        self._ours.told()
        event = Event(self._driver, self._driver.made("marking", "clEnqueueMarkerWithWaitList", self._handle, 0, None))
        self._driver("marking", "clFlush", self._handle)
        self._ours.wait_native(event.awaited, event)

    def after(self) -> None:
        """What theirs is given later comes after what ours has."""
        doing, reached = "holding a queue back", Event(self._driver)
        self._ours.wait_native(reached.marking, reached)
        held = reached
        if not reached.made:  # ours holds it behind a point
            held = Event.gate(self._driver, doing, self._context)
        self._driver(doing, "clEnqueueBarrierWithWaitList", self._handle, *held.list, None)
        self._driver(doing, "clFlush", self._handle)
        if held is not reached:
            self._ours.wait_native(lambda _queue: held.opened_after(reached), (held, reached))

    def __del__(self) -> None:
        if self._handle:
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

    def wait_native(self, doing: str, event: Callable[[int], Calls]) -> Calls:
        """What `Theirs` has this queue do."""
        return event(self.handle)

    def record_native(self, doing: str) -> NativeEvent:
        raise FeatureNotSupportedError("OpenCL has no events for other processes: ipc.event.get makes a handle")

    def destroy(self, marks: Sequence[ctypes.c_void_p]) -> None:
        for mark in marks:
            self._forget(mark)
        with self._lock:
            self._driver.code("clReleaseCommandQueue", self.handle)
            self.handle = 0
