"""Implements the driver contract and the stream engine's hooks for streams, with the other modules of this package."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, final

from xpushare._native import End
from xpushare.adapters import base, hip
from xpushare.adapters.base import DeviceInfo, DriverMemory, DriverQueue, Form, Import, Same
from xpushare.adapters.hip import BACKEND, RawStream, _memory
from xpushare.adapters.hip import _numbers as n
from xpushare.adapters.hip._driver import Driver, Gpu
from xpushare.adapters.hip._numbers import Attribute, Pointer
from xpushare.adapters.runtime import RuntimeStream, ordinal_of
from xpushare.adapters.stream.driver import address_of
from xpushare.adapters.stream.hooks import Calls, Device, IpcEvent, Scope
from xpushare.adapters.stream.host_ordered import HostOrderedQueue
from xpushare.adapters.stream.listing import Found, ask_driver
from xpushare.adapters.virtual_memory.adapter import LibraryAdapter
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, InvalidArgumentError

__all__ = ["Hip", "Stream"]


@final
class Stream(RuntimeStream):
    """A stream of our own, with the hooks that the stream engine calls. After some operations, the engine queues a
    *mark*, to learn when the stream has finished them. HIP's marks are HIP events. Streams share four hardware queues
    (GPU_MAX_HW_QUEUES), and a wait is a kernel that blocks one of them. So the device waits only for points whose
    signals this process has already submitted to the device. If a queue waits for any other point, the operations
    behind the wait are held back in this process.
    """

    around_calls: Callable[[], Scope] | None = None
    owner: object | None = None

    def __init__(self, gpu: Gpu, doing: str) -> None:
        self.device: Device = gpu
        self.current: Callable[[], Scope] = gpu.current
        self.relaxed: Callable[[], Scope] = gpu.driver.relaxed
        self.calls = gpu.queue_calls
        self.ordering: Literal["device", "shared", "held"] = "shared" if gpu.words[1] else "held"
        self._gpu = gpu
        self._driver = gpu.driver
        with gpu.current():
            super().__init__(gpu.new_stream(doing), gpu.driver.stream_functions, "hip", n.COPY_DEFAULT)

    def new_mark(self, doing: str) -> int:
        return self._driver.made(doing, "hipEventCreateWithFlags", n.UNTIMED)

    def mark(self, doing: str, mark: int) -> Calls:
        return ((self.record, mark, self.handle),)

    def query(self, doing: str, mark: int) -> bool:
        return self._driver.ready(doing, "hipEventQuery", mark)

    def busy(self, doing: str) -> bool:
        return not self._driver.ready(doing, "hipStreamQuery", self.handle)

    def check_device(self, doing: str) -> None:
        self.busy(doing)

    def record_native(self, doing: str) -> IpcEvent:
        driver = self._driver
        event = driver.made(doing, "hipEventCreateWithFlags", n.UNTIMED | n.INTERPROCESS)
        with End(driver.code, "hipEventDestroy", event):
            driver(doing, "hipEventRecord", event, self.handle)
            handle = driver.asked(doing, "hipIpcGetEventHandle", event, into=n.Handle())
            return IpcEvent(event, bytes(handle), self.current, driver, "hipEventDestroy", event)

    def destroy(self, marks: Sequence[int]) -> None:
        for mark in marks:
            self._driver.code("hipEventDestroy", mark)
        self._driver.code("hipStreamDestroy", self.handle)
        self.handle = 0


_MISSING: Final = {
    Aspect.ext_oneapi_per_event_profiling: "this adapter does not time its signals",
    Aspect.partial_map: "hipMemMap takes no offset into physical memory",
    Aspect.enforced_read_only: "a process that holds the file descriptor of an allocation can also map it writable",
    Aspect.device_ordering: (
        "its streams share four hardware queues, so queues hold their operations until the point comes, unless this "
        "process has submitted it"
    ),
    Aspect.adopted_queues: (
        "a wait on another library's stream would hold up all streams of its hardware queue: Queue.from_native orders "
        "ours before and after theirs by waits of the host"
    ),
}
_EVENTS: Final = (Aspect.ext_oneapi_ipc_event, Aspect.two_way_events, Aspect.host_signal_events)
_VIRTUAL: Final = (Aspect.ext_oneapi_virtual_mem, Aspect.ext_oneapi_ipc_physical_memory)
_VARIABLES: Final = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "XPUSHARE_HIP_LIBRARY")
_KERNEL: Final = ("/dev/kfd", "/dev/dxg")  # Linux, WSL


def _described(ordinal: int, listed: Sequence[Any]) -> DeviceInfo:
    """Make the listed device from a result of `Gpu.listed`, which may come from a child process."""
    name, uuid, version, pci = listed
    release = f"{version // 10_000_000}.{version // 100_000 % 100}.{version % 100_000}"
    return DeviceInfo(BACKEND, ordinal, name, uuid, "gpu", release, pci)


def _list_devices() -> Found:
    if not (os.environ.get("XPUSHARE_HIP_LIBRARY") or hip.in_use_here() or any(map(os.path.exists, _KERNEL))):
        return Found([], "the kernel shows no AMD GPU (no /dev/kfd)")
    said = ask_driver("HIP", "xpushare.adapters.hip._driver", "Driver", "Driver()")
    found = [_described(*each) for each in enumerate(said.get("devices", ()))]
    return Found(found, str(said.get("why", "HIP has no device")))


class Hip(LibraryAdapter[Gpu]):
    """The adapter of AMD's GPUs."""

    backend = BACKEND
    missing = _MISSING

    def __init__(self) -> None:
        self._driver = Driver()
        engine = Engine(BACKEND, self._driver.gpus)
        super().__init__(engine, self._driver, _VARIABLES, _described, _list_devices)
        self.importer = functools.cache(lambda info: _memory.importer(engine, self.device(info)))

    def supported(self, gpu: Gpu, aspect: Aspect) -> Support:
        lacking, (_, waits, why) = gpu.lacks_virtual_memory, gpu.words
        if aspect in _EVENTS:
            return Support("yes", "tried: streams store words and wait for them" if waits else why)
        if aspect in _VIRTUAL and lacking:
            return Support("no", f"the driver lacks {lacking}")
        if aspect is Aspect.outlives_exporter and lacking:
            return Support("unknown", "HIP does not document what happens to hipMalloc memory when its process exits")
        return Support("yes", "memory has IPC handles" if lacking else "tried: memory has file descriptors")

    def properties(self, device: DeviceInfo) -> base.Properties:
        gpu = self._driver.gpu(device)
        free, total, ask = ctypes.c_size_t(), ctypes.c_size_t(), gpu.attribute
        with gpu.current():
            self._driver("asking for the memory", "hipMemGetInfo", address_of(free), address_of(total))
        return base.Properties(
            "Advanced Micro Devices, Inc.",
            ask(Attribute.MultiprocessorCount),
            total.value,
            free.value,
            bool(ask(Attribute.Integrated)),
            vendor_id=0x1002,
        )

    def allocate(self, device: DeviceInfo, kind: base.UsmKind, nbytes: int) -> DriverMemory:
        if kind == "device" and self.device(device).lacks_virtual_memory:
            return _memory.allocate(self.memory_engine, self.device(device), nbytes, False)
        return super().allocate(device, kind, nbytes)

    def allocate_shared(self, info: DeviceInfo, nbytes: int) -> DriverMemory:
        return _memory.allocate(self.memory_engine, self.device(info), nbytes, True)

    def open_own(self, info: DeviceInfo, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
        return _memory.open_own(self.memory_engine, self.device(info), kind, doing, what, description)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        return {} if physical else {Form.MEMFD: Same.HOST}

    def foreign(self, address: int, nbytes: int | None = None) -> base.Foreign | None:
        if not self._finds_devices():
            return None
        return _memory.locate(self.memory_engine, self._driver, self.listing.info, address)

    def knows(self, address: int) -> bool:
        return self._finds_devices() and self._driver.pointer(Pointer.BUFFER_ID, address) is not None

    def _finds_devices(self) -> bool:
        """Return whether this process uses the library, and the library has a device. If there is no device, the
        library knows no memory.
        """
        if not self._driver.started and not hip.in_use_here():
            return False
        try:
            return bool(self._driver.gpus())
        except DeviceError:
            if self._driver.started:
                raise
            return False

    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        return Stream(self.device(info), doing)

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        found = hip.stream_of(native)
        if found is None:
            return None
        raw, gpu = found[0], self._gpu_of(found[1])

        def finish() -> None:
            """Wait for the stream unless it is being captured, since a wait would end the capture."""
            doing, captured = "waiting for another library's stream", ctypes.c_int()
            with gpu.current():
                self._driver(doing, "hipStreamIsCapturing", raw, address_of(captured))
                if captured.value:
                    raise InvalidArgumentError(f"{doing}: somebody is capturing it into a graph")
                self._driver(doing, "hipStreamSynchronize", raw)

        info = self.listing.info(gpu)
        return info, HostOrderedQueue(self.queue(info), finish)

    def _gpu_of(self, ordinal: int | None) -> Gpu:
        """Return the device with this ordinal, which comes from another library's object. None means the current
        device.
        """
        found = self._driver.gpus()
        if ordinal is None:
            ordinal = self._driver.made("asking for the current device", "hipGetDevice")
        if ordinal >= len(found):
            raise FeatureNotSupportedError(f"it is on hip:{ordinal}, which this process cannot see")
        return found[ordinal]

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        ordinal = self.device(device).ordinal
        if number is None:
            return hip.current_stream(array, ordinal)
        return RawStream(0 if number == 1 else number, ordinal)  # 1: the default stream in CUDA's array interface

    def adopt_event(self, native: object) -> tuple[DeviceInfo, int] | None:
        raw = hip.event_of(native)
        if raw == 0:
            raise InvalidArgumentError(f"this {type(native).__name__} was never recorded: record it first")
        return None if raw is None else (self.listing.info(self._gpu_of(ordinal_of(native))), raw)
