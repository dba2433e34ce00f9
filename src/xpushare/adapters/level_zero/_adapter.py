"""Implements the driver contract with the other modules of this package."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Final, Literal

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
from xpushare.adapters.level_zero import _memory
from xpushare.adapters.level_zero import _numbers as n
from xpushare.adapters.level_zero._device import Gpu
from xpushare.adapters.level_zero._driver import Driver
from xpushare.adapters.level_zero._listing import VARIABLES, info, list_devices
from xpushare.adapters.level_zero._protocols import BACKEND, in_use_here, ipc_event_of, sycl_queue_of
from xpushare.adapters.level_zero._samples import UsmArray
from xpushare.adapters.level_zero._stream import GivenEvent, GivenList, OpenedEvent, Stream
from xpushare.adapters.stream.host_ordered import HostOrderedQueue
from xpushare.adapters.stream.samples import DriverSamples
from xpushare.adapters.virtual_memory.adapter import LibraryAdapter
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare.common.fds import OwnedFd

__all__ = ["LevelZero"]

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
