"""One CPU device of a driver, the engine's hooks for it, and what was found out by trying it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from typing import Final, final
from weakref import WeakSet

from xpushare import _system
from xpushare._errors import XpuShareError
from xpushare.adapters.host import memory as host
from xpushare.adapters.opencl._driver import COMPLETE, Code, Driver
from xpushare.adapters.opencl._stream import Event, Stream
from xpushare.adapters.stream.hooks import Feature, Scope
from xpushare.adapters.stream.library import address_of

__all__ = ["Cpu"]

_SECONDS: Final = 5.0  # how long a trial takes at most
_HELD: Final = 0.02  # seconds for which work behind an event is seen not to run
_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
_called: Final[list[object]] = []  # callbacks of trials: a driver may be late
_NAME, _DRIVER_VERSION, _AVAILABLE = 0x102B, 0x102D, 0x1027
_SVM, _SVM_SYSTEM = 0x1053, 1 << 2
_USE_HOST_PTR: Final = 1 << 0 | 1 << 3  # to be read and written


@final
class Cpu:
    """A CPU device. Its memory is the host's, so nothing has to be made known to it."""

    def __init__(self, driver: Driver, ordinal: int, handle: int, uuid: str) -> None:
        self.driver = driver
        self.ordinal: int = ordinal
        self.handle = handle
        self.uuid = uuid
        self.codes = driver.codes
        self.error = driver.error
        self.current: Callable[[], Scope] = nullcontext
        self.streams: WeakSet[Stream] = WeakSet()
        self._lock = threading.RLock()
        self._context = 0
        self._lacking: str | None = None

    def __str__(self) -> str:
        return f"OpenCL device {self.ordinal}"

    def text(self, what: int) -> str:
        return self.driver.text("clGetDeviceInfo", self.handle, what)

    def number(self, what: int) -> int:
        return self.driver.number("clGetDeviceInfo", self.handle, what)

    def listed(self) -> tuple[str, str, str]:
        """What a listing says: uuid, name and the driver's version."""
        return self.uuid, self.text(_NAME), self.text(_DRIVER_VERSION)

    @property
    def context(self) -> int:
        with self._lock:
            if not self._context:
                device = ctypes.c_void_p(self.handle)
                call = "clCreateContext", None, 1, address_of(device), None, None
                self._context = self.driver.created("making a context", *call)
            return self._context

    def active(self) -> bool:
        return bool(self.streams)

    def lacking(self, feature: Feature) -> str:
        """Memory and events are tried together, once."""
        with self._lock:
            if self._lacking is None:
                self._lacking = self._try()
            return self._lacking

    def lacks_system_svm(self) -> str:
        """Why its kernels cannot use any address of the process; "" if they can."""
        has = self.number(_SVM) & _SVM_SYSTEM
        return "" if has else "CL_DEVICE_SVM_FINE_GRAIN_SYSTEM, so its kernels use only buffers"

    def check(self, doing: str) -> None:
        if not self.number(_AVAILABLE):
            raise self.error(doing, "clGetDeviceInfo", Code.DEVICE_NOT_AVAILABLE)

    def drain(self) -> None:
        """Our queues; what other libraries queue is missed."""
        for stream in list(self.streams):
            stream.finish(f"waiting for the work on {self}")

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        pass

    def reached(self, doing: str, address: int) -> int:
        return address

    def unreach(self, doing: str, address: int) -> None:
        pass

    def _try(self) -> str:
        """What does not work; "" if all does. The device gets one mapping of a page, and we look at another one."""
        driver, doing, nbytes, calls = self.driver, f"trying {self}", _system.page_nbytes(), host.Calls()
        called, a, b = threading.Event(), ctypes.c_uint8(0xAA), ctypes.c_uint8(0xBB)
        callback = _CALLBACK(lambda _event, _status, _data: called.set())
        _called.append(callback)
        with ExitStack() as undo:
            try:
                fd = undo.enter_context(closing(host.memfd_of(calls, doing, "xpushare-page", nbytes)))
                page, other = (calls.checked(doing, "Mapping", fd.number, nbytes) for _ in range(2))
                at, seen = page.address, (ctypes.c_uint8 * nbytes).from_address(other.address)
                queue = driver.created(doing, "clCreateCommandQueueWithProperties", self.context, self.handle, None)
                undo.callback(driver.code, "clReleaseCommandQueue", queue)
                buffer = driver.created(doing, "clCreateBuffer", self.context, _USE_HOST_PTR, nbytes, at)
                undo.callback(driver.code, "clReleaseMemObject", buffer)
                gate, none = Event.gate(driver, doing, self.context), (0, None, None)
                undo.callback(driver.code, "clFinish", queue)
                undo.callback(gate.open)
                driver(doing, "clEnqueueBarrierWithWaitList", queue, *gate.list, None)
                driver(doing, "clEnqueueSVMMemFill", queue, at + 1, address_of(a), 1, 9, *none)
                driver(doing, "clEnqueueSVMMemcpy", queue, 0, at + 11, at + 1, 9, *none)
                driver(doing, "clEnqueueFillBuffer", queue, buffer, address_of(b), 1, 21, 9, *none)
                marker = driver.made(doing, "clEnqueueMarkerWithWaitList", queue, 0, None)
                undo.callback(driver.code, "clReleaseEvent", marker)
                function = ctypes.cast(callback, ctypes.c_void_p).value
                driver(doing, "clSetEventCallback", marker, COMPLETE, function, None)
                driver(doing, "clFlush", queue)
                if called.wait(_HELD) or any(seen):
                    return "user events that hold back the work behind them"
                gate.open()
                if not called.wait(_SECONDS):
                    return "callbacks of events"
                if bytes(seen[:32]) != b"\0" + b"\xaa" * 9 + b"\0" + b"\xaa" * 9 + b"\0" + b"\xbb" * 9 + b"\0\0":
                    return "writes in place to pages that other processes map (clEnqueueSVMMemcpy, CL_MEM_USE_HOST_PTR)"
                seen[40] = 0xCC
                driver(doing, "clEnqueueReadBuffer", queue, buffer, 1, 40, 1, address_of(a), *none)
                return "" if a.value == 0xCC else "reads in place of pages that other processes map"
            except XpuShareError as error:
                return f"what it was tried for: {error}"
