"""Implements the driver contract and the stream engine's hooks for queues, with the other modules of this package."""

from __future__ import annotations

import ctypes
import glob
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final, Literal, NamedTuple, final

from xpushare.adapters.base import DeviceInfo, DriverQueue, Foreign, NativeEvent, Properties
from xpushare.adapters.opencl import BACKEND, INSTALL, VARIABLES, queue_of
from xpushare.adapters.opencl._driver import PROFILING_QUEUE, Code, Cpu, Driver, Event
from xpushare.adapters.stream.adapter import HostStreamAdapter
from xpushare.adapters.stream.driver import address_of
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.hooks import Calls, Device, Scope
from xpushare.adapters.stream.host_ordered import HostOrderedQueue
from xpushare.adapters.stream.listing import Found, Listed, Listing, ask_child
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.common import system
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, XpuShareError

__all__ = ["OpenCL", "Owned", "Stream", "Theirs"]

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


_MISSING: Final = {
    Aspect.enforced_read_only: "an importer that holds a memfd can map it writable again",
    Aspect.foreign_memory: (
        "the drivers' own allocations are private to this process: make a buffer over our memory (CL_MEM_USE_HOST_PTR)"
    ),
    Aspect.device_ordering: "its queues hold their operations until the point comes: a kernel that waited would spin",
}
_RANGES: Final = (Aspect.ext_oneapi_virtual_mem, Aspect.ext_oneapi_ipc_physical_memory, Aspect.partial_map)
_contexts: Final[list[Any]] = []  # contexts of samples: Intel's driver requires a context to live as long as its queue
_UNITS, _NBYTES, _VENDOR, _PLATFORM = 0x1002, 0x101F, 0x102C, 0x1031
_FOLDER: Final = "/etc/OpenCL/vendors"
_SECONDS: Final = 30.0  # the time that a driver's start and the trials may take on a busy machine
_ASK: Final = """
import sys
sys.path[:] = {path!r}
from xpushare.adapters.opencl._driver import tell_usable
tell_usable({crashed!r})
"""


def _described(ordinal: int, listed: Sequence[str]) -> DeviceInfo:
    """Make the listed device from a result of `Cpu.listed`, which may come from a child process."""
    uuid, name, version = listed
    return DeviceInfo(BACKEND, ordinal, name, uuid, "cpu", version)


def _list_devices() -> Found:
    vendors, files = map(os.environ.get, VARIABLES)
    if not (vendors or files or glob.glob(f"{_FOLDER}/*.icd")):
        return Found([], f"no OpenCL driver is installed (no {_FOLDER}/*.icd); {INSTALL}")
    if vendors and not files and "/" in vendors and not os.path.exists(vendors):  # some loaders load others then
        return Found([], f"there is no {vendors}, where {VARIABLES[0]} says that OpenCL's drivers are")
    crashed: dict[str, str] = {}
    while True:
        said = ask_child(_ASK.format(path=sys.path, crashed=crashed), "OpenCL", _SECONDS)
        tried = said.get("trying")
        if tried is None or tried in crashed:
            break
        crashed[tried] = said["why"]  # again without the device whose trial crashed
    refused: dict[str, str] = said.get("refused", {})
    why = "; ".join(refused.values()) or said.get("why", "the OpenCL loader finds no device")
    return Found([_described(*each) for each in enumerate(said.get("devices", ()))], f"{why}; {INSTALL}", refused)


class OpenCL(Listed, HostStreamAdapter):
    """The adapter of the CPU devices of OpenCL's drivers."""

    backend = BACKEND
    has_streams = False  # no array reports the queue that its content is ordered on

    def __init__(self) -> None:
        self._driver = Driver(lambda: self.listing.asked())
        super().__init__(Engine(BACKEND, self._driver.gpus))
        self.listing = Listing(self._driver, VARIABLES, _described, _list_devices)
        self._driver.end_after(self.engine.teardown)

    def device(self, info: DeviceInfo) -> Cpu:
        return self._driver.gpu(info)

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect in _MISSING:
            return Support("no", _MISSING[aspect])
        try:
            cpu = self.device(device)
            lacking = cpu.lacks_system_svm() if aspect in _RANGES else ""
            if aspect is Aspect.ext_oneapi_per_event_profiling and cpu.clock < 0:
                return Support("no", "the driver's time stamps come from a clock that the host cannot read")
        except XpuShareError as error:
            return Support("unknown", f"the driver cannot be asked: {error}")
        how = "the driver says that kernels use any address" if aspect in _RANGES else "tried on the device"
        return Support("no", f"the driver lacks {lacking}") if lacking else Support("yes", how)

    def properties(self, device: DeviceInfo) -> Properties:
        cpu = self.device(device)
        total = cpu.number(_NBYTES)
        return Properties(cpu.text(_VENDOR), cpu.number(_UNITS), total, total, True)

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        page = system.page_nbytes()
        return max(1 << 21, page) if recommended else page

    def clock(self, device: DeviceInfo) -> tuple[int, int]:
        return self.device(device).now()

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        return None

    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        return Stream(self.device(info), doing)

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        """Adopt another library's queue: make a queue of ours in its context. Events of the driver order the two
        queues.
        """
        handle = queue_of(native)
        return None if handle is None else self._beside(handle, native)

    def _beside(self, handle: int, keep: object) -> tuple[DeviceInfo, DriverQueue]:
        cpu, context = self._driver.adopted(handle)
        ours = DeviceQueue(self.engine, Stream(cpu, "adopting a queue", context))
        theirs = Theirs(self._driver, handle, context, ours, keep)
        return self.listing.info(cpu), HostOrderedQueue(ours, theirs.before, theirs.after, handle)

    def native(self, device: DeviceInfo, what: Literal["platform", "device", "context"]) -> int:
        cpu = self.device(device)
        if what == "platform":
            return cpu.number(_PLATFORM)
        return cpu.context if what == "context" else cpu.handle

    def native_queue(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[DeviceInfo, DriverQueue]:
        if not handle:
            raise InvalidArgumentError("0 is not the handle of a cl_command_queue")
        self._driver.start()
        return self._beside(handle, Owned(self._driver, handle) if owned else None)

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        return None

    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        return None

    def samples(self) -> Samples:
        return Samples(self)


class Samples(NamedTuple):
    """Implements `xpushare.conformance.samples`. It has no arrays, since memory that OpenCL drivers allocate is
    private.
    """

    adapter: OpenCL

    def stream(self, device: str) -> Any:
        import pyopencl  # type: ignore[import-not-found]

        found = self.adapter.devices()[int(device.partition(":")[2])]
        _contexts.append(pyopencl.Context([pyopencl.Device.from_int_ptr(self.adapter.device(found).handle)]))
        return pyopencl.CommandQueue(_contexts[-1])
