"""The adapter: the driver contract in terms of the modules beside this one."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

from xpushare._aspects import Aspect, Support
from xpushare._errors import FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare._leaving import Stage, at_leave
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
from xpushare.adapters.hip import _memory
from xpushare.adapters.hip._driver import Driver, Gpu
from xpushare.adapters.hip._numbers import Attribute
from xpushare.adapters.hip._protocols import (
    BACKEND,
    INSTALL,
    RawStream,
    current_stream,
    event_of,
    in_use_here,
    stream_of,
)
from xpushare.adapters.hip._stream import Stream
from xpushare.adapters.stream.host_ordered import HostOrderedQueue
from xpushare.adapters.stream.library import address_of
from xpushare.adapters.stream.listing import ask_child
from xpushare.adapters.vendor import Check
from xpushare.adapters.virtual_memory.adapter import VirtualMemoryAdapter
from xpushare.adapters.virtual_memory.engine import Engine

__all__ = ["Hip", "answer", "examine"]

_MISSING: Final = {
    Aspect.ext_oneapi_per_event_profiling: "this adapter does not time its signals",
    Aspect.partial_map: "hipMemMap takes no offset into physical memory",
    Aspect.enforced_read_only: "whoever holds the file descriptor of an allocation can map it writable as well",
    Aspect.device_ordering: (
        "its streams share four hardware queues, so queues hold their operations until the point comes, unless this "
        "process has submitted it"
    ),
    Aspect.adopted_queues: (
        "a wait on another library's stream would hold up all streams of its hardware queue: Queue.from_native orders "
        "ours before and after theirs by waits of the host"
    ),
}
_VIRTUAL: Final = (Aspect.ext_oneapi_virtual_mem, Aspect.ext_oneapi_ipc_physical_memory)
_SHARED: Final = (Aspect.ext_oneapi_ipc_memory, Aspect.foreign_memory)
_VARIABLES: Final = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "XPUSHARE_HIP_LIBRARY")
_KERNEL: Final = ("/dev/kfd", "/dev/dxg")  # Linux, WSL
_LEAVE: Final = 2.0  # seconds that the end of the process waits for teardowns
_ASK: Final = "import sys; sys.path[:] = {path!r}; from xpushare.adapters.hip._adapter import answer; answer()"


def answer() -> None:
    """In the child that lists the devices: print what the driver says."""
    try:
        print(json.dumps({"devices": [gpu.listed() for gpu in Driver().gpus()]}))
    except XpuShareError as error:
        print(json.dumps({"why": str(error)}))


class Hip(VirtualMemoryAdapter):
    """AMD's GPUs."""

    backend = BACKEND
    maps_memfds = False  # the driver has to know their pages

    def __init__(self) -> None:
        self._driver = Driver()
        super().__init__(Engine(BACKEND, self._driver.gpus))
        self._listed: tuple[list[str | None], list[DeviceInfo], str] | None = None
        at_leave(self._leave, Stage.STOP)

    def _leave(self, _deadline: float) -> None:
        """The library ends with the process: finish what threads do in the background, and have them call it no
        more.
        """
        if self._driver.started:
            self.engine.teardown.settle(_LEAVE)
            self._driver.ended = True

    # --- devices -------------------------------------------------------------------------------------------

    def _list(self) -> tuple[list[DeviceInfo], str]:
        """The devices, from the driver once it runs, before that from a child's; and why there are none."""
        if self._driver.started:
            return [self._info(gpu) for gpu in self._driver.gpus()], "HIP has no device"
        asked = [os.environ.get(name) for name in _VARIABLES]
        if self._listed is None or self._listed[0] != asked:
            said: dict[str, Any] = {"why": "the kernel shows no AMD GPU (no /dev/kfd)"}
            if asked[-1] or in_use_here() or any(map(os.path.exists, _KERNEL)):
                said = ask_child(_ASK.format(path=sys.path), "HIP")
            found = [self._described(number, each) for number, each in enumerate(said.get("devices", ()))]
            self._listed = asked, found, str(said.get("why", "HIP has no device"))
        return self._listed[1:]

    @staticmethod
    def _described(ordinal: int, listed: Any) -> DeviceInfo:
        name, about, version, pci = listed
        return DeviceInfo(BACKEND, ordinal, about, name, "gpu", version, pci)

    def _info(self, gpu: Gpu) -> DeviceInfo:
        return self._described(gpu.ordinal, gpu.listed())

    def devices(self) -> list[DeviceInfo]:
        return list(self._list()[0])

    def why_none(self) -> str:
        return self._list()[1]

    def device(self, info: DeviceInfo) -> Gpu:
        return self._driver.gpu(info)

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect in _MISSING:
            return Support("no", _MISSING[aspect])
        try:
            gpu = self._driver.gpu(device)
            lacking, words = gpu.lacks_virtual_memory, gpu.words()
        except XpuShareError as error:
            return Support("unknown", f"the driver cannot be asked: {error}")
        if aspect in _VIRTUAL and lacking:
            return Support("no", f"the driver lacks {lacking}")
        if aspect is Aspect.outlives_exporter and lacking:
            return Support("unknown", "HIP does not say what becomes of memory of hipMalloc whose process has ended")
        if aspect in _SHARED or aspect in _VIRTUAL or aspect is Aspect.outlives_exporter:
            return Support("yes", "memory has IPC handles" if lacking else "tried: memory has file descriptors")
        return Support("yes", "tried: streams store words and wait for them" if words.waits else words.why)

    def properties(self, device: DeviceInfo) -> Properties:
        gpu = self._driver.gpu(device)
        free, total, ask = ctypes.c_size_t(), ctypes.c_size_t(), gpu.attribute
        with gpu.current():
            self._driver("asking for the memory", "hipMemGetInfo", address_of(free), address_of(total))
        return Properties(
            "Advanced Micro Devices, Inc.",
            ask(Attribute.MultiprocessorCount),
            total.value,
            free.value,
            bool(ask(Attribute.Integrated)),
            vendor_id=0x1002,
            clock_mhz=ask(Attribute.ClockRate) // 1000,
            memory_clock_mhz=ask(Attribute.MemoryClockRate) // 1000,
            memory_bus_bits=ask(Attribute.MemoryBusWidth),
            error_correction=bool(ask(Attribute.EccEnabled)),
            cache_nbytes=ask(Attribute.L2CacheSize),
            local_nbytes=ask(Attribute.MaxSharedMemoryPerBlock),
            constant_nbytes=ask(Attribute.TotalConstantMemory),
            registers=ask(Attribute.MaxRegistersPerBlock),
            group_items=ask(Attribute.MaxThreadsPerBlock),
            group_sizes=tuple(map(ask, (Attribute.MaxBlockDimX, Attribute.MaxBlockDimY, Attribute.MaxBlockDimZ))),
            grid_sizes=tuple(map(ask, (Attribute.MaxGridDimX, Attribute.MaxGridDimY, Attribute.MaxGridDimZ))),
            sub_group_sizes=(ask(Attribute.WarpSize),),
        )

    def reaches(self, device: DeviceInfo, peer: DeviceInfo) -> bool:
        return self._driver.gpu(device).reaches(self._driver.gpu(peer).ordinal)

    # --- memory --------------------------------------------------------------------------------------------

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory:
        if kind == "device" and self.device(device).lacks_virtual_memory:
            return _memory.Allocated(self.memory_engine, self.device(device), nbytes)
        return super().allocate(device, kind, nbytes)

    def allocate_shared(self, info: DeviceInfo, nbytes: int) -> DriverMemory:
        return _memory.ManagedMemory(self.memory_engine, self.device(info), nbytes)

    def open_own(self, info: DeviceInfo, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
        return _memory.open_own(self.memory_engine, self.device(info), kind, doing, what, description)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        """Memfds, as host memory."""
        return {} if physical else {Form.MEMFD: Same.HOST}

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        if not self._driver.started and not in_use_here():
            return None
        return _memory.locate(self._driver, self._info, address) if self._driver.gpus() else None

    # --- queues and events ---------------------------------------------------------------------------------

    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        return Stream(self.device(info), doing)

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        found = stream_of(native)
        if found is None:
            return None
        gpu = self._gpu_of(found[1])

        def finish() -> None:
            """A stream that somebody captures must not be waited for: that would end the capture."""
            doing = "waiting for another library's stream"
            status = ctypes.c_int()
            with gpu.current():
                self._driver(doing, "hipStreamIsCapturing", found[0], address_of(status))
                if status.value:
                    raise InvalidArgumentError(f"{doing}: somebody is capturing it into a graph")
                self._driver(doing, "hipStreamSynchronize", found[0])

        info = self._info(gpu)
        return info, HostOrderedQueue(self.queue(info), finish)

    def _gpu_of(self, ordinal: int | None) -> Gpu:
        """The device that another library's object says, else the current one."""
        found = self._driver.gpus()
        if ordinal is None:
            ordinal = self._driver.first("asking for the current device", "hipGetDevice")
        if ordinal >= len(found):
            raise FeatureNotSupportedError(f"it is on hip:{ordinal}, of which this process has none")
        return found[ordinal]

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        ordinal = self.device(device).ordinal
        if number is None:
            return current_stream(array, ordinal)
        return RawStream(0 if number == 1 else number, ordinal)  # CUDA's interface calls the default stream 1

    def adopt_event(self, native: object) -> tuple[DeviceInfo, int] | None:
        raw = event_of(native)
        if raw is None:
            return None
        if not raw:
            raise InvalidArgumentError(f"this {type(native).__name__} was never recorded: record it first")
        where = getattr(native, "device", None)
        ordinal = getattr(where, "index", getattr(where, "device_id", None))
        return self._info(self._gpu_of(ordinal)), raw


def examine() -> Iterator[Check]:
    """For `xpushare doctor`: the library, and which way each device goes."""
    from xpushare import adapters

    adapter = adapters.adapter(BACKEND)
    assert isinstance(adapter, Hip)
    found = adapter.devices()
    if not found:
        state = "fails" if any(map(os.path.exists, _KERNEL)) else "absent"
        yield Check("devices", BACKEND, state, adapter.why_none(), INSTALL)
        return
    yield Check("devices", BACKEND, "works", f"{len(found)} GPUs, HIP {found[0].driver_version}")
    for info in found:
        try:
            gpu = adapter.device(info)
            ways = [("memory", gpu.lacks_virtual_memory), ("events", gpu.words().why)]
        except XpuShareError as error:
            ways = [("driver", str(error))]
        for what, lacks in ways:
            yield Check("driver", f"hip:{info.ordinal} {what}", "limited" if lacks else "works", lacks or "as tried")
