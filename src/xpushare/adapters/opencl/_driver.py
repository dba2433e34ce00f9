"""The OpenCL loader of this process (started on first use), its devices, and the functions that this adapter calls."""

from __future__ import annotations

import ctypes
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from enum import IntEnum
from functools import cached_property, partial
from typing import Any, ClassVar, Final, final
from weakref import WeakSet

from xpushare import _native
from xpushare.adapters.host import memory as host
from xpushare.adapters.opencl import LOADER
from xpushare.adapters.stream.driver import LibraryDriver, address_of
from xpushare.adapters.stream.hooks import Calls, Codes, Feature, QueueCalls, Scope
from xpushare.adapters.stream.listing import Found, trying
from xpushare.common import system
from xpushare.common.errors import FeatureNotSupportedError, XpuShareError

__all__ = ["PROFILING_QUEUE", "Code", "Cpu", "Driver", "Event", "tell_usable"]

_P, _I, _U, _U64, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
_WAITS: Final = (_U, _P, _P)  # of an operation: how many events it waits for, these events, and where to write its own
_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (  # names, result, arguments
    ("clGetPlatformIDs", _I, (_U, _P, _P)),
    ("clGetDeviceIDs", _I, (_P, _U64, _U, _P, _P)),
    (
        "clGetPlatformInfo clGetDeviceInfo clGetCommandQueueInfo clGetEventInfo clGetEventProfilingInfo",
        _I,
        (_P, _U, _SIZE, _P, _P),
    ),
    ("clReleaseCommandQueue clReleaseEvent clReleaseMemObject clFlush clFinish", _I, (_P,)),
    ("clSetUserEventStatus", _I, (_P, _I)),
    ("clWaitForEvents", _I, (_U, _P)),
    ("clSetEventCallback", _I, (_P, _I, _P, _P)),
    ("clEnqueueMarkerWithWaitList clEnqueueBarrierWithWaitList", _I, (_P, *_WAITS)),
    ("clEnqueueSVMMemcpy", _I, (_P, _U, _P, _P, _SIZE, *_WAITS)),
    ("clEnqueueSVMMemFill", _I, (_P, _P, _P, _SIZE, _SIZE, *_WAITS)),
    ("clEnqueueFillBuffer", _I, (_P, _P, _P, _SIZE, _SIZE, _SIZE, *_WAITS)),
    ("clEnqueueReadBuffer", _I, (_P, _P, _U, _SIZE, _SIZE, _P, *_WAITS)),
    # These return an object, and write the code to the address in their last argument.
    ("clCreateContext", _P, (_P, _U, _P, _P, _P, _P)),
    ("clCreateCommandQueueWithProperties", _P, (_P, _P, _P, _P)),
    ("clCreateUserEvent", _P, (_P, _P)),
    ("clCreateBuffer", _P, (_P, _U64, _SIZE, _P, _P)),
)
_COMPLETE: Final = 0
_EVERY_TYPE, _CPU, _OUT_OF_ORDER, _SVM_SYSTEM = 0xFFFFFFFF, 1 << 1, 1 << 0, 1 << 2
_READ_WRITE_IN_PLACE: Final = 1 << 0 | 1 << 3  # CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR
_PLATFORM_NAME, _TYPE, _NAME, _DRIVER_VERSION, _SVM = 0x0902, 0x1000, 0x102B, 0x102D, 0x1053
_QUEUE_CONTEXT, _QUEUE_DEVICE, _QUEUE_PROPERTIES, _EVENT_STATUS = 0x1090, 0x1091, 0x1093, 0x11D3
_END: Final = 0x1283
_CLOCKS: Final = time.CLOCK_MONOTONIC, time.CLOCK_MONOTONIC_RAW
PROFILING_QUEUE: Final = _QUEUE_PROPERTIES, 1 << 1
_NO_ADDRESS: Final = (
    "the memory of such a device has no address that another process could map, so use it by its vendor's own backend "
    "(cuda, level_zero)"
)
_NO_SVM: Final = "it lacks shared virtual memory (CL_DEVICE_SVM_CAPABILITIES is 0), by which queues copy and fill"
_SECONDS: Final = 20.0  # how long a trial waits for its callback: less than the process that tries devices may take
_HELD: Final = 0.02  # how long to check that the work behind an event does not run, in seconds
_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
_called: Final[list[object]] = []  # callbacks of trials, which a driver may call late


class Code(IntEnum):
    DEVICE_NOT_FOUND = -1
    DEVICE_NOT_AVAILABLE = -2
    MEM_OBJECT_ALLOCATION_FAILURE = -4
    OUT_OF_RESOURCES = -5
    OUT_OF_HOST_MEMORY = -6
    INVALID_VALUE = -30
    INVALID_CONTEXT = -34
    INVALID_OPERATION = -59
    PLATFORM_NOT_FOUND_KHR = -1001


@final
class Event:
    """An event of the driver, released with this object. It is either the marker that was queued last, or a user event
    (a gate). A marker has no handle until the driver has received it. A gate is always completed without an error,
    since an error status would cancel the work that waits for it.
    """

    def __init__(self, driver: Driver, handle: int = 0, is_gate: bool = False) -> None:
        self._driver = driver
        self._is_gate = is_gate
        self._handle = ctypes.c_void_p(handle)
        self.list = 1, address_of(self._handle)  # the form in which operations take the events that they wait for

    @property
    def handle(self) -> int:
        """The driver's handle, or 0 if it has not been created yet."""
        return self._handle.value or 0

    def complete(self, doing: str) -> bool:
        if not self.handle:
            return False
        status = ctypes.c_int32(self._driver.number("clGetEventInfo", self.handle, _EVENT_STATUS)).value
        if status < 0:
            raise self._driver.error(doing, "the work before", status)
        return status == _COMPLETE

    def read(self) -> int | None:
        """Return the end of the marker's execution, measured by `Cpu.clock`. Return None if the marker has not been
        executed.
        """
        doing = "reading a time stamp"
        if not self.complete(doing):
            return None
        return self._driver.number("clGetEventProfilingInfo", self.handle, _END)

    def awaited(self, queue: int) -> Calls:
        return ((self._driver.address("clEnqueueBarrierWithWaitList"), queue, *self.list, 0),)

    def marking(self, queue: int) -> Calls:
        self.release()
        marker, flush = self._driver.marking
        return (marker, queue, 0, 0, self.list[1]), (flush, queue)

    def opened_after(self, other: Event) -> Calls:
        """Return the driver calls that open this gate (a user event) after `other` has completed. A gate is opened by
        the host, not by a queue, so the thread that submits held operations waits for `other` first.
        """
        wait, status = map(self._driver.address, ("clWaitForEvents", "clSetUserEventStatus"))
        return (wait, *other.list), (status, self.handle, _COMPLETE)

    def open(self) -> None:
        self._driver.code("clSetUserEventStatus", self._handle, _COMPLETE)  # refused if it is complete

    def release(self) -> None:
        if self.handle:
            self._driver.code("clReleaseEvent", self._handle)
            self._handle.value = None

    def __del__(self) -> None:
        if self._is_gate:
            self.open()
        self.release()


@final
class Cpu:
    """A CPU device, with the hooks that the stream engine calls. Its memory is the host's memory, so the device can use
    any page without preparation.
    """

    def __init__(self, driver: Driver, ordinal: int, handle: int, uuid: str) -> None:
        self.driver = driver
        self.ordinal: int = ordinal
        self.handle = handle
        self.uuid = uuid
        self.codes = driver.codes
        self.error = driver.error
        self.current: Callable[[], Scope] = nullcontext
        self.streams: WeakSet[Any] = WeakSet()  # the streams of `_stream`
        self.text = partial(driver.text, "clGetDeviceInfo", handle)
        self.number = partial(driver.number, "clGetDeviceInfo", handle)
        self._lock = threading.RLock()
        self._context = 0

    def __str__(self) -> str:
        return f"OpenCL device {self.ordinal}"

    def listed(self) -> tuple[str, str, str]:
        """Return the uuid, name and driver version for the list of devices."""
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
        return ""  # a device that lacks one of them is not listed

    def lacks_system_svm(self) -> str:
        """Why the device's kernels cannot use every address of the process, or "" if they can."""
        has = self.number(_SVM) & _SVM_SYSTEM
        return "" if has else "CL_DEVICE_SVM_FINE_GRAIN_SYSTEM, so its kernels use only buffers"

    @cached_property
    def clock(self) -> int:
        """The host clock that the driver's time stamps come from, determined by a test, or -1 if no clock matches. This
        is the monotonic clock on Intel's driver and the raw monotonic clock on PoCL (3.0).
        """
        driver, doing = self.driver, f"trying the clock of {self}"
        properties = (ctypes.c_uint64 * 3)(*PROFILING_QUEUE, 0)
        call = "clCreateCommandQueueWithProperties", self.context, self.handle, address_of(properties)
        queue = driver.created(doing, *call)
        try:
            before = [time.clock_gettime_ns(each) for each in _CLOCKS]
            stamp = Event(driver, driver.made(doing, "clEnqueueMarkerWithWaitList", queue, 0, None))
            driver(doing, "clFinish", queue)
            told = stamp.read() or 0
            after = [time.clock_gettime_ns(each) for each in _CLOCKS]
        finally:
            driver.code("clReleaseCommandQueue", queue)
        looks = zip(_CLOCKS, before, after, strict=True)
        return next((clock for clock, first, last in looks if first <= told <= last), -1)

    def now(self) -> tuple[int, int]:
        """Return the time of the device's clock and of the host's monotonic clock, in nanoseconds."""
        host = time.monotonic_ns()
        return host if self.clock == time.CLOCK_MONOTONIC else time.clock_gettime_ns(self.clock), host

    def drain(self) -> None:
        """Wait for the work in our own queues. Does not wait for work that other libraries have queued."""
        for stream in list(self.streams):
            stream.finish(f"waiting for the work on {self}")

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None: ...
    def reached(self, doing: str, address: int) -> int:
        return address

    def unreach(self, doing: str, address: int) -> None: ...

    def tried(self) -> str:
        """Test the features that this adapter needs. Return the feature that does not work, or "" if all work. The
        device uses one mapping of a page, and the test reads the page through another mapping.

        Call this in a separate process: PoCL 7.1 crashes if it fills memory that it did not allocate.
        """
        driver, doing, nbytes, calls = self.driver, f"trying {self}", system.page_nbytes(), host.Calls()
        called, a, b, none = threading.Event(), ctypes.c_uint8(0xAA), ctypes.c_uint8(0xBB), (0, None, None)
        callback = _CALLBACK(lambda _event, _status, _data: called.set())
        _called.append(callback)
        with ExitStack() as undo:
            try:
                fd = undo.enter_context(closing(host.memfd_of(calls, doing, "xpushare-page", nbytes)))
                page, other = (calls.checked(doing, "Mapping", fd.number, nbytes) for _ in range(2))
                at, seen = page.address, (ctypes.c_uint8 * nbytes).from_address(other.address)
                queue = driver.created(doing, "clCreateCommandQueueWithProperties", self.context, self.handle, None)
                undo.callback(driver.code, "clReleaseCommandQueue", queue)
                buffer = driver.created(doing, "clCreateBuffer", self.context, _READ_WRITE_IN_PLACE, nbytes, at)
                undo.callback(driver.code, "clReleaseMemObject", buffer)
                gate = Event(driver, driver.created(doing, "clCreateUserEvent", self.context), is_gate=True)
                undo.callback(driver.code, "clFinish", queue)
                undo.callback(gate.open)
                driver(doing, "clEnqueueBarrierWithWaitList", queue, *gate.list, None)
                driver(doing, "clEnqueueSVMMemFill", queue, at + 1, address_of(a), 1, 9, *none)
                driver(doing, "clEnqueueSVMMemcpy", queue, 0, at + 11, at + 1, 9, *none)
                driver(doing, "clEnqueueFillBuffer", queue, buffer, address_of(b), 1, 21, 9, *none)
                marker = Event(driver, driver.made(doing, "clEnqueueMarkerWithWaitList", queue, 0, None))
                function = ctypes.cast(callback, ctypes.c_void_p).value
                driver(doing, "clSetEventCallback", marker.handle, _COMPLETE, function, None)
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


@final
class Driver(LibraryDriver[Cpu]):
    """Calls the OpenCL loader."""

    codes = Codes(
        out_of_memory=frozenset({Code.MEM_OBJECT_ALLOCATION_FAILURE, Code.OUT_OF_RESOURCES, Code.OUT_OF_HOST_MEMORY}),
        unsupported=frozenset({Code.INVALID_OPERATION}),
        fatal=frozenset({Code.DEVICE_NOT_AVAILABLE}),
        advice={Code.INVALID_CONTEXT: "keep the context of a queue alive as long as the queue"},
    )
    names: ClassVar = {code.value: f"CL_{code.name}" for code in Code}
    missing = Code.INVALID_OPERATION
    not_ready = 1
    exiting = Code.DEVICE_NOT_AVAILABLE
    by_address = ctypes.Structure

    def __init__(self, usable: Callable[[], Found]) -> None:
        """Prepare to call the loader, which is loaded at the first use. `usable` asks a child process, which runs
        `tell_usable`, for the usable devices.
        """
        super().__init__("OpenCL", "OCL_ICD_VENDORS")
        self._usable = usable

    def _start(self) -> list[Cpu]:
        listed, self.why_none, self.refused = self._usable()
        usable = {each.uuid for each in listed}
        found = [(handle, identity) for handle, _, identity in self.candidates() if identity in usable]
        return [Cpu(self, ordinal, handle, identity) for ordinal, (handle, identity) in enumerate(found)]

    def candidates(self) -> Iterator[tuple[int, str, str]]:
        """Yield the handle, name and uuid of every device that the loader lists."""
        self.load(LOADER, ((name, result, given) for names, result, given in _FUNCTIONS for name in names.split()))
        names: Counter[str] = Counter()
        seen: set[int] = set()  # a driver may be listed twice
        for platform in self._listed("clGetPlatformIDs", none=Code.PLATFORM_NOT_FOUND_KHR):
            of = self.text("clGetPlatformInfo", platform, _PLATFORM_NAME)
            for handle in self._listed("clGetDeviceIDs", platform, _EVERY_TYPE, none=Code.DEVICE_NOT_FOUND):
                if handle not in seen:
                    seen.add(handle)
                    name = f"{self.text('clGetDeviceInfo', handle, _NAME)} of {of}"
                    names[name] += 1
                    identity = f"xpushare/opencl/{system.boot_id().hex()}/{name}/{names[name]}"
                    yield handle, name, str(uuid.uuid5(uuid.NAMESPACE_OID, identity))

    def _listed(self, name: str, *arguments: int, none: int) -> list[int]:
        count = ctypes.c_uint32()
        if self.code(name, *arguments, 0, None, address_of(count)) == none:
            return []
        found = (ctypes.c_void_p * max(count.value, 1))()
        self("listing the devices", name, *arguments, len(found), address_of(found), None)
        return [each for each in found if each]

    def unfit(self, device: int) -> str:
        """Return why a device cannot be used, judging by the driver's properties. Return "" if it may be usable."""
        if not self.number("clGetDeviceInfo", device, _TYPE) & _CPU:
            return _NO_ADDRESS
        return "" if self.number("clGetDeviceInfo", device, _SVM) else _NO_SVM

    def number(self, name: str, handle: int, what: int) -> int:
        """Return the result of a query: a number of up to 64 bits."""
        into = ctypes.c_uint64()
        self(f"asking for {what:#x}", name, handle, what, ctypes.sizeof(into), address_of(into), None)
        return into.value

    def text(self, name: str, handle: int, what: int) -> str:
        into = ctypes.create_string_buffer(1024)
        self(f"asking for {what:#x}", name, handle, what, len(into), address_of(into), None)
        return into.value.decode(errors="replace").strip()

    def created(self, doing: str, name: str, *arguments: Any) -> int:
        """Return the object that a call makes."""
        code, function = ctypes.c_int32(self.missing), self.functions.get(name)
        found = None if self.ended or function is None else function(*arguments, address_of(code))
        if not found:
            raise self.error(doing, name, self.exiting if self.ended else code.value)
        return found

    @cached_property
    def marking(self) -> tuple[int, int]:
        """The driver functions that mark a place in a queue: one that queues a marker, and one that flushes the
        queue.
        """
        return self.address("clEnqueueMarkerWithWaitList"), self.address("clFlush")

    @cached_property
    def queue_calls(self) -> QueueCalls:
        """The calls that native code makes on queues. The callback of a marker completes an event's signal. OpenCL does
        not guarantee the order in which callbacks run.
        """
        (marker, flush), late = self.marking, "clSetEventCallback"
        native = _native.QueueCalls(
            (
                (marker, ("queue", 0, 0, "out")),
                (self.address(late), ("made", _COMPLETE, "function", "data")),
                (flush, ("queue",)),
                (self.address("clReleaseEvent"), ("made",), True),
            ),
            host_data=2,
        )
        return QueueCalls(
            native, late, others={self.address(name): name for name in self.functions}, host_runs_late=True
        )

    def adopted(self, queue: int) -> tuple[Cpu, int]:
        """Return the device and the context of another library's queue."""
        self.start()
        ask = "clGetCommandQueueInfo", queue
        device = self.number(*ask, _QUEUE_DEVICE)
        found = next((cpu for cpu in self.gpus() if cpu.handle == device), None)
        if found is None:
            known = next((identity for handle, _, identity in self.candidates() if handle == device), "")
            why = self.refused.get(known, "" if not known or self.gpus() else self.why_none)
            why = why or "the loader here does not list its device (OCL_ICD_VENDORS)"
        elif self.number(*ask, _QUEUE_PROPERTIES) & _OUT_OF_ORDER:
            why = "it is out-of-order, and there PoCL (3.0) runs what a barrier should hold back"
        else:
            return found, self.number(*ask, _QUEUE_CONTEXT)
        name = self.text("clGetDeviceInfo", device, _NAME)
        raise FeatureNotSupportedError(f"this queue, on {name}, cannot be used: {why}")


def tell_usable(crashed: Mapping[str, str]) -> None:
    """Print the usable devices, and why the others cannot be used. Runs in a child process, and tries each device
    except those in `crashed`. `crashed` maps devices that have crashed an earlier child to the reasons.
    """
    driver = Driver(lambda: Found([], ""))
    devices: list[tuple[str, str, str]] = []
    refused: dict[str, str] = {}
    try:
        for handle, name, identity in list(driver.candidates()):  # a crash while listing is not the fault of a device
            cpu = Cpu(driver, len(devices), handle, identity)
            why = driver.unfit(handle) or crashed.get(identity)
            if not why:
                trying(identity)
                lacks = cpu.tried()
                why = lacks and f"it lacks {lacks}"
            if why:
                refused[identity] = f"{name}: {why}"
            else:
                devices.append(cpu.listed())
        print(json.dumps({"devices": devices, "refused": refused}), flush=True)
    except XpuShareError as error:
        print(json.dumps({"why": str(error)}), flush=True)
