"""Implements the driver contract and the stream engine's hooks for streams, with the other modules of this package."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final, Literal, NamedTuple, final

from xpushare._native import End
from xpushare.adapters.base import (
    DeviceInfo,
    DriverMemory,
    DriverQueue,
    Foreign,
    Form,
    Import,
    Properties,
    Same,
    UsmKind,
)
from xpushare.adapters.level_zero import BACKEND, _memory, in_use_here, ipc_event_of, sycl_queue_of
from xpushare.adapters.level_zero import _bindings as n
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero._bindings import Handle
from xpushare.adapters.level_zero._device import Gpu, Stamp
from xpushare.adapters.level_zero._driver import Driver
from xpushare.adapters.level_zero._listing import VARIABLES, info, list_devices
from xpushare.adapters.stream.adapter import DriverSamples
from xpushare.adapters.stream.driver import address_of
from xpushare.adapters.stream.hooks import Calls, Device, IpcEvent, Scope
from xpushare.adapters.stream.host_ordered import HostOrderedQueue
from xpushare.adapters.virtual_memory.adapter import LibraryAdapter
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare.common.fds import OwnedFd

__all__ = ["GivenEvent", "GivenList", "LevelZero", "Mark", "OpenedEvent", "Stream", "UsmArray"]

_NAP_FIRST: Final = 20e-6  # seconds
_NAP_MAX: Final = 1e-3
_patterns: Final = (ctypes.c_uint8 * 256)(*range(256))  # the source of fills: each byte at its own index


class Mark(NamedTuple):
    """A driver event and the pool that contains only this event. The engine appends the event to the command list, and
    the event completes when the list has run that far. The pool is 0 for a counter-based event, which needs no pool.
    """

    event: int
    pool: int


def _counter_based(gpu: Gpu, doing: str, flags: int) -> int:
    scope = n.SCOPE_HOST
    description = ze.ze_event_counter_based_desc_t(flags=n.COUNTER_IMMEDIATE | flags, signal=scope, wait=scope)
    context = gpu.platform.context
    return gpu.driver.made(doing, "zeEventCounterBasedCreate", context, gpu.handle, description)


@final
class OpenedEvent:
    """Another process's counter-based event, opened by its handle. This package never queries such an event: Intel's
    driver (26.27) aborts a process that queries an event whose last signaller was killed.
    """

    def __init__(self, gpu: Gpu, handle: bytes) -> None:
        doing, call = "opening an IPC event", ("zeEventCounterBasedOpenIpcHandle", gpu.platform.context)
        raw = ze.ze_ipc_event_counter_based_handle_t.from_buffer_copy(handle)
        if not gpu.platform.has(call[0]):
            raise FeatureNotSupportedError(
                f"{doing}: the driver is too old to share its events, which takes Level Zero API 1.15"
            )
        self._driver = gpu.driver
        self.handles = (ctypes.c_void_p * 1)(gpu.driver.made(doing, *call, raw))

    def __del__(self) -> None:
        if hasattr(self, "handles") and self._driver.started:
            self._driver.code("zeEventCounterBasedCloseIpcHandle", self.handles[0])


@final
class GivenEvent:
    """An event that the program has passed by its handle. An owned event is destroyed once no queue waits for it any
    more.
    """

    def __init__(self, gpu: Gpu, handle: int, owned: bool) -> None:
        self.handles = (ctypes.c_void_p * 1)(handle)
        self._driver = gpu.driver
        self._owned = owned

    def __del__(self) -> None:
        if self._owned and self._driver.started:
            self._driver.code("zeEventDestroy", self.handles[0])


@final
class GivenList:
    """An immediate command list that the program has passed by its handle. An owned list is destroyed, once its work
    has finished, with this object.
    """

    def __init__(self, driver: Driver[Gpu], handle: int, owned: bool) -> None:
        self._driver = driver
        self._handle = handle
        self._owned = owned

    def finish(self) -> None:
        """Wait for the list's work so far. Intel's driver would take a whole CPU for a wait, so this thread sleeps."""
        doing, call, nap = "waiting for a command list", "zeCommandListHostSynchronize", _NAP_FIRST
        while not self._driver.ready(doing, call, self._handle, 0):
            time.sleep(nap)
            nap = min(2 * nap, _NAP_MAX)

    def __del__(self) -> None:
        if self._owned and self._driver.started:
            self._driver.code("zeCommandListHostSynchronize", self._handle, n.FOREVER)
            self._driver.code("zeCommandListDestroy", self._handle)


@final
class Stream:
    """A command list that this package made, with the hooks that the queue engine calls.

    Lists on one engine run one after the other. A waiting list blocks the others, and the signal that it waits for may
    be queued in one of the blocked lists. So operations behind a wait are held back in this process until the awaited
    signal has been submitted to a device.
    """

    fill_units: Sequence[int] = (1,)
    around_calls: Callable[[], Scope] | None = None
    owner: object | None = None  # other libraries' lists are not used

    def __init__(self, gpu: Gpu, doing: str) -> None:
        driver = gpu.driver
        words = gpu.words
        self.device: Device = gpu
        self.current: Callable[[], Scope] = nullcontext
        self.relaxed: Callable[[], Scope] = nullcontext
        self.ordering: Literal["device", "shared", "held"] = "shared" if words.wait else "held"
        self._gpu = gpu
        self._driver = driver
        self._lock = threading.Lock()
        self._copy, self._fill, self._signal, self._wait, self._reset = (
            driver.address(name)
            for name in (
                "zeCommandListAppendMemoryCopy",
                "zeCommandListAppendMemoryFill",
                "zeCommandListAppendSignalEvent",
                "zeCommandListAppendWaitOnEvents",
                "zeEventHostReset",
            )
        )
        self.handle = gpu.new_list(doing)
        with End(driver.code, "zeCommandListDestroy", self.handle):
            raw = driver.raw(doing, Handle.COMMAND_LIST, self.handle)
            self.calls = words.calls(self.handle, raw, self._copy, self._fill)
        gpu.streams.add(self)

    def new_mark(self, doing: str) -> Mark:
        if self._gpu.platform.has("zeEventCounterBasedCreate"):
            return Mark(_counter_based(self._gpu, doing, n.COUNTER_HOST_VISIBLE), 0)
        pools = ze.ze_event_pool_desc_t(flags=n.POOL_HOST_VISIBLE, count=1)
        context = self._gpu.platform.context
        pool = self._driver.made(doing, "zeEventPoolCreate", context, pools, 0, None)
        with End(self._driver.code, "zeEventPoolDestroy", pool):
            events = ze.ze_event_desc_t(signal=n.SCOPE_HOST, wait=n.SCOPE_HOST)
            return Mark(self._driver.made(doing, "zeEventCreate", pool, events), pool)

    def mark(self, doing: str, mark: Mark) -> Calls:
        signal = (self._signal, self.handle, mark.event)
        return ((self._reset, mark.event), signal) if mark.pool else (signal,)

    def query(self, doing: str, mark: Mark) -> bool:
        return self._driver.ready(doing, "zeEventQueryStatus", mark.event)

    def busy(self, doing: str) -> bool:
        return not self._driver.ready(doing, "zeCommandListHostSynchronize", self.handle, 0)

    def finish(self, doing: str) -> None:
        """Wait for the list's work, unless the list has been destroyed."""
        with self._lock:
            if self.handle:
                self._driver(doing, "zeCommandListHostSynchronize", self.handle, n.FOREVER)

    def check_device(self, doing: str) -> None:
        self._driver(doing, "zeDeviceGetStatus", self._gpu.handle)

    def new_stamp(self, doing: str) -> tuple[int, Stamp, Calls]:
        stamp = Stamp(self._gpu, doing)
        return stamp.since, stamp, stamp.noting(self.handle)

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return ((self._copy, self.handle, dst, src, nbytes, 0, 0, 0),)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return ((self._fill, self.handle, dst, address_of(_patterns) + pattern[0], 1, times, 0, 0, 0),)

    def wait_native(self, doing: str, event: OpenedEvent | GivenEvent) -> Calls:
        return ((self._wait, self.handle, 1, address_of(event.handles)),)

    def record_native(self, doing: str) -> IpcEvent:
        driver = self._driver
        if not self._gpu.platform.has("zeEventCounterBasedGetIpcHandle"):
            raise FeatureNotSupportedError(
                f"{doing}: the driver is too old to share its events, which takes Level Zero API 1.15"
            )
        event = _counter_based(self._gpu, doing, n.COUNTER_IPC)
        with End(driver.code, "zeEventDestroy", event):
            raw = ze.ze_ipc_event_counter_based_handle_t()
            driver(doing, "zeCommandListAppendSignalEvent", self.handle, event)
            driver(doing, "zeEventCounterBasedGetIpcHandle", event, address_of(raw))
            return IpcEvent(event, bytes(raw.data), self.current, driver, "zeEventDestroy", event)

    def destroy(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            self._driver.code("zeEventDestroy", mark.event)
            if mark.pool:
                self._driver.code("zeEventPoolDestroy", mark.pool)
        with self._lock:
            self._driver.code("zeCommandListDestroy", self.handle)
            self.handle = 0


_NBYTES: Final = 8 << 20  # drivers put smaller arrays on shared pages


class UsmArray:
    """Bytes in device memory."""

    def __init__(self, gpu: Gpu, info: DeviceInfo, nbytes: int) -> None:
        self._gpu = gpu
        self.info = info
        self.nbytes = nbytes
        call = "zeMemAllocDevice", gpu.platform.context, ze.ze_device_mem_alloc_desc_t(), max(nbytes, _NBYTES), 0
        self.address = gpu.driver.made("making another library's array", *call, gpu.handle)
        self.__sycl_usm_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 1,
            "syclobj": f"level_zero:gpu:{info.ordinal}",
        }

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._gpu.driver.code("zeMemFree", self._gpu.platform.context, self.address)


_MISSING: Final = {
    Aspect.partial_map: "mappings here are of whole physical memory",
    Aspect.enforced_read_only: "a process that holds the file descriptor of an allocation can also map it writable",
    Aspect.adopted_queues: (
        "SYCL's queues take no work of ours: Queue.from_native orders ours before and after theirs by waits of the host"
    ),
    Aspect.device_ordering: (
        "its queues share hardware, so they hold their operations until the point comes, unless this process has "
        "submitted it"
    ),
}
_EVENTS: Final = (Aspect.ext_oneapi_ipc_event, Aspect.two_way_events, Aspect.host_signal_events)


class LevelZero(LibraryAdapter[Gpu]):
    """The adapter for GPUs that Level Zero drivers provide."""

    backend = BACKEND
    stream_kind = 1  # an immediate command list, not a queue
    missing = _MISSING

    def __init__(self) -> None:
        self._driver = Driver(Gpu)
        engine = Engine(BACKEND, self._driver.gpus, registered_slots=Gpu.registers_slots)
        super().__init__(engine, self._driver, VARIABLES, info, list_devices)

    # --- devices -------------------------------------------------------------------------------------------

    def supported(self, gpu: Gpu, aspect: Aspect) -> Support:
        if aspect in _EVENTS:
            lacking, how = gpu.words.lacking, gpu.words.how()
        elif aspect is Aspect.ext_oneapi_ipc_physical_memory:
            lacking, how = gpu.lacks_physical_ipc(), "the driver exports physical memory"
        elif aspect is Aspect.ext_oneapi_per_event_profiling:
            lacking, how = gpu.untimed, "tried on the device"
        elif aspect is Aspect.ext_oneapi_virtual_mem:
            lacking, how = "", f"the driver has pages of {gpu.granularity(False)} bytes"
        else:
            lacking = gpu.lacking("shareable memory")
            how = f"the driver says that it exports allocations {gpu.how_shared()}"
        return Support("no", f"the driver lacks {lacking}") if lacking else Support("yes", how)

    def properties(self, device: DeviceInfo) -> Properties:
        gpu = self._driver.gpu(device)
        total = gpu.memory_nbytes
        about = gpu.properties
        units = about.numSlices * about.numSubslicesPerSlice * about.numEUsPerSubslice
        vendor = "Intel Corporation" if about.vendorId == n.INTEL else f"PCI vendor {about.vendorId:#x}"
        return Properties(
            vendor,
            units,
            total,
            total,
            bool(about.flags & n.DEVICE_INTEGRATED),
            vendor_id=about.vendorId,
            device_id=about.deviceId,
            clock_mhz=about.coreClockRate,
            error_correction=bool(about.flags & n.DEVICE_ECC),
        )

    def clock(self, device: DeviceInfo) -> tuple[int, int]:
        gpu = self.device(device)
        return gpu.nanoseconds(gpu.ticks("reading the clock")), time.monotonic_ns()

    # --- memory --------------------------------------------------------------------------------------------

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory:
        gpu = self.device(device)
        if not (gpu.lacking("host registration") if kind == "host" else kind != "device" or gpu.lacks_physical_ipc()):
            return super().allocate(device, kind, nbytes)
        if kind == "device":  # a driver that cannot share physical memory
            return _memory.Allocated(self.memory_engine, gpu, nbytes)
        return _memory.allocate_private(self.memory_engine, gpu, kind, nbytes)

    def allocate_shared(self, info: DeviceInfo, nbytes: int) -> DriverMemory:
        return _memory.allocate_private(self.memory_engine, self.device(info), "shared", nbytes)

    def open_own(self, info: DeviceInfo, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
        return _memory.open_own(self.memory_engine, self.device(info), kind, doing, what, description)

    def adopt_dma_buf(self, device: DeviceInfo, doing: str, fd: OwnedFd, nbytes: int) -> DriverMemory:
        return _memory.Adopted(self.memory_engine, self.device(device), doing, fd, nbytes)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        """Return the forms of export that this adapter can import from other backends: memfds, if the driver can use
        host pages, and none as physical memory.
        """
        registers = not physical and not self.device(device).lacking("host registration")
        return {Form.MEMFD: Same.HOST} if registers else {}

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        if not self._driver.started:
            if not in_use_here():
                return None
            self._driver.start()
        return _memory.locate(self._driver, self.listing.info, address)

    # --- queues and events ---------------------------------------------------------------------------------

    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        return Stream(self.device(info), doing)

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        queue: Any = sycl_queue_of(native)
        if queue is None:
            return None
        device = self._sycl_device(queue)

        def finish() -> None:
            """Wait for all work that was submitted to the queue before, by a barrier, since the queue may be
            out-of-order.
            """
            try:
                queue.submit_barrier().wait()
            except Exception as error:  # SYCL raises the errors of its own work here
                raise DeviceError(f"waiting for a SYCL queue: {error}") from error

        return device, HostOrderedQueue(self.queue(device), finish)

    def _sycl_device(self, queue: Any) -> DeviceInfo:
        """Return the device of a SYCL queue, by the number that SYCL's filter strings use."""
        found = self.devices()
        ordinal = getattr(getattr(queue, "sycl_device", None), "get_device_id", lambda: 0)()
        if not 0 <= ordinal < len(found):
            raise FeatureNotSupportedError(f"this SYCL queue is on level_zero:{ordinal}, which this process cannot see")
        return found[ordinal]

    def native_queue(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[DeviceInfo, DriverQueue]:
        """Adopt an immediate command list by its handle. As with SYCL's queues, the work of our queue comes before and
        after the work of the list by waits of the host: no call of the driver tells whether the list is in-order, and a
        list that waits for ours could hold up the engine that ours runs on.
        """
        doing = "adopting a command list"
        gpu, driver = self.device(device), self._driver
        if not handle:
            raise InvalidArgumentError("0 is not the handle of a command list")
        if not gpu.platform.has("zeCommandListIsImmediate"):
            raise FeatureNotSupportedError(f"{doing}: the driver is too old to tell its kind, which takes API 1.9")
        if not driver.asked(doing, "zeCommandListIsImmediate", handle, into=ctypes.c_uint8()).value:
            raise InvalidArgumentError(f"{handle:#x} is a command list that a queue executes, not an immediate one")
        there = driver.made(doing, "zeCommandListGetDeviceHandle", handle)
        found = next((each for each in driver.gpus() if each.handle == there), None)
        if found is None:
            raise FeatureNotSupportedError(f"{doing}: it is on a device that this process cannot see")
        theirs = GivenList(driver, handle, owned)
        return self.listing.info(found), HostOrderedQueue(
            self.queue(self.listing.info(found)), theirs.finish, handle=handle
        )

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        """Return the SYCL queue that an array belongs to."""
        return None if number is not None else sycl_queue_of(getattr(array, "sycl_queue", None))

    def adopt_event(self, native: object) -> tuple[DeviceInfo, OpenedEvent] | None:
        """Adopt an event handle. Each driver is asked in turn, since the handle does not show which driver made the
        event.
        """
        handle, failures = ipc_event_of(native), list[XpuShareError]()
        if handle is None:
            return None
        for gpu in {gpu.platform: gpu for gpu in reversed(self._driver.gpus())}.values():
            try:
                return self.listing.info(gpu), OpenedEvent(gpu, handle)
            except XpuShareError as error:
                failures.append(error)
        raise failures[0] if failures else FeatureNotSupportedError(f"opening an IPC event: {self.why_none()}")

    def native(self, device: DeviceInfo, what: Literal["platform", "device", "context"]) -> int:
        gpu = self.device(device)
        return {"platform": gpu.platform.handle, "device": gpu.handle, "context": gpu.platform.context}[what]

    def native_event(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[GivenEvent, object]:
        found = GivenEvent(self.device(device), handle, owned)
        return found, found

    def samples(self) -> DriverSamples:
        """Return the object that makes arrays for the conformance suite. The arrays stand for those of a SYCL library.
        It makes no streams, since this package cannot queue its work on the queues of such a library.
        """
        return DriverSamples(self, lambda info, nbytes: UsmArray(self.device(info), info, nbytes))
