"""Implements the driver contract and the stream engine's hooks for streams, with the other modules of this package."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Literal, final

from xpushare._native import End, Importer, query
from xpushare.adapters.base import (
    DeviceInfo,
    DriverMemory,
    DriverPool,
    DriverQueue,
    Foreign,
    Form,
    Import,
    Properties,
    Same,
    TimelinePoint,
    UsmKind,
)
from xpushare.adapters.cuda import (
    BACKEND,
    INSTALL,
    RawStream,
    _memory,
    current_stream,
    event_of,
    in_use_here,
    stream_of,
)
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import FEATURES, Context, Driver, Gpu, struct_bytes
from xpushare.adapters.cuda._external import Point, dma_buf, fabric_handle, fabric_support, open_opaque
from xpushare.adapters.cuda._listing import driver_version, has_binding, list_gpus, pci_address
from xpushare.adapters.cuda._memory import Pools
from xpushare.adapters.cuda._numbers import Attribute
from xpushare.adapters.runtime import RuntimeStream, ordinal_of
from xpushare.adapters.stream.hooks import Calls, Device, IpcEvent, Scope
from xpushare.adapters.virtual_memory.adapter import VirtualMemoryAdapter
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare.common.fds import OwnedFd

__all__ = ["Cuda", "Stream"]


@final
class Stream(RuntimeStream):
    """A stream, with the hooks that the stream engine calls. After some operations, the engine queues a *mark*, to
    learn when the stream has finished them. CUDA's marks are pairs of a CUDA event and its number.

    Streams share hardware channels. If too many streams would wait, operations on our own streams are held back in this
    process. Operations on streams of other libraries cannot be held back. Calls on words and events need no current
    context, except on the default streams, which belong to the current context. The calls that `synchronize` repeats
    are inlined, which saves one Python frame each.
    """

    def __init__(self, context: Context, stream: Any, owner: object | None) -> None:
        self._context = context
        self._driver = context.driver
        self._stream = stream
        self.device: Device = context.gpu
        super().__init__(int(stream), context.driver.stream_functions(), "cu")
        self.lasting = owner is not None and self.handle in (0, n.LEGACY_STREAM)  # the context's default stream
        self.current: Callable[[], Scope] = context.current
        self.relaxed: Callable[[], Scope] = context.driver.relaxed
        self.ordering: Literal["device", "shared", "held"] = "shared" if owner is None else "device"
        self.owner = context if self.lasting else owner
        default = self.lasting or (owner is not None and self.handle == n.PER_THREAD_STREAM)
        self.around_calls: Callable[[], Scope] | None = context.pushed if default else None
        self.calls = context.gpu.queue_calls()
        self._query = context.driver.function("cuStreamQuery")

    @classmethod
    def create(cls, context: Context, doing: str) -> Stream:
        context.gpu.queue_calls()  # or raises before there is a stream
        with context.current():
            context.check(doing)  # creates its own stream now, not while queues wait
            return cls(context, context.driver(doing, "cuStreamCreate", n.STREAM_NON_BLOCKING), None)

    def identity(self) -> Hashable | None:
        """Return a key that identifies this stream. No later stream has the same key, even if the driver reuses the
        handle.

        Return None while the stream is being captured, since asking for the stream's id would end the capture.
        """
        context = self._context
        if self.lasting:
            return context.number, 0
        with context.current():
            code, status = self._driver.api.cuStreamIsCapturing(self._stream)[:2]
            if code or int(status):
                return None
            return context.number, 1 + int(self._driver("adopting a stream", "cuStreamGetId", self._stream))

    def new_mark(self, doing: str) -> tuple[Any, int]:
        event = self._driver(doing, "cuEventCreate", n.EVENT_DISABLE_TIMING)
        return event, int(event)

    def mark(self, doing: str, mark: tuple[Any, int]) -> Calls:
        return ((self.record, mark[1], self.handle),)

    def query(self, doing: str, mark: tuple[Any, int]) -> bool:
        code = self._driver.api.cuEventQuery(mark[0])[0]
        return not code or self._driver.ready(doing, "cuEventQuery", int(code))

    def busy(self, doing: str) -> bool:
        code = query(self._query, self.handle)
        return bool(code) and not self._driver.ready(doing, "cuStreamQuery", code)

    def check_device(self, doing: str) -> None:
        self._context.check(doing)

    def wait_native(self, doing: str, event: int | Point) -> Calls:
        if isinstance(event, Point):
            return event.calls(self.handle)
        return super().wait_native(doing, event)

    def record_native(self, doing: str) -> IpcEvent:
        driver = self._driver
        event = driver(doing, "cuEventCreate", n.EVENT_DISABLE_TIMING | n.EVENT_INTERPROCESS)
        with End(driver.api.cuEventDestroy, event):
            driver(doing, "cuEventRecord", event, self._stream)
            handle = struct_bytes(driver(doing, "cuIpcGetEventHandle", event))
            return IpcEvent(int(event), handle, self.current, driver, "cuEventDestroy", event)

    def destroy(self, marks: Sequence[tuple[Any, int]]) -> None:
        api = self._driver.api  # on a broken context there is nothing to destroy
        for event, _number in marks:
            api.cuEventDestroy(event)
        if self.owner is None:
            api.cuStreamDestroy(self._stream)
        else:
            self.owner = ()


# The attributes of the device that each aspect requires.
_VMM: Final = (Attribute.VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)
_SHARED_VMM: Final = (*_VMM, *FEATURES["shareable memory"])
_STREAM_WORDS: Final = FEATURES["event slots"]
_NEEDS: Final = {
    Aspect.ext_oneapi_ipc_memory: _SHARED_VMM,
    Aspect.ext_oneapi_ipc_physical_memory: _SHARED_VMM,
    Aspect.ext_oneapi_virtual_mem: _VMM,
    Aspect.ext_oneapi_ipc_event: _STREAM_WORDS,
    Aspect.two_way_events: _STREAM_WORDS,
    Aspect.host_signal_events: _STREAM_WORDS,
    Aspect.outlives_exporter: _SHARED_VMM,
    Aspect.foreign_memory: (Attribute.UNIFIED_ADDRESSING,),
    Aspect.device_ordering: (Attribute.CAN_USE_64_BIT_STREAM_MEM_OPS,),
    Aspect.adopted_queues: _STREAM_WORDS,
}
_MISSING: Final = {
    Aspect.ext_oneapi_per_event_profiling: "this adapter does not time its signals",
    Aspect.partial_map: "cuMemMap takes no offset into physical memory",
    Aspect.enforced_read_only: "a process that holds the file descriptor of an allocation can also map it writable",
}
# cuStreamCreate may block while other streams wait for a value (seen in a process that had ended many such waits
# before).
_SPARE_STREAMS: Final = 4


class _Owned:
    """A stream or an event that the program has given to this package. The stream or event is destroyed with this
    object.
    """

    def __init__(self, driver: Driver, destroy: str, handle: int, stream: RawStream | None) -> None:
        self._driver = driver
        self._destroy = destroy
        self._handle = handle
        self.device_id = None if stream is None else stream.device_id

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle

    def __del__(self) -> None:
        if self._driver.started:
            getattr(self._driver.api, self._destroy)(self._handle)


class Cuda(VirtualMemoryAdapter):
    """The adapter of NVIDIA GPUs."""

    backend = BACKEND
    maps_memfds = False  # the driver must know their pages

    def __init__(self, api: Any = None) -> None:
        """Make the adapter. Tests pass a stand-in for `cuda.bindings.driver` as `api`."""
        self._given = api is not None
        self._driver = Driver(api)
        super().__init__(Engine(BACKEND, self._driver.gpus, _SPARE_STREAMS))
        self._pools = Pools(self.memory_engine, self._driver)
        self.importer = self._importer
        self._infos: dict[str, DeviceInfo] = {}  # by uuid, for the devices that the driver lists
        self._listed: tuple[tuple[str | None, str | None], list[DeviceInfo], str] | None = None

    # --- devices -------------------------------------------------------------------------------------------

    def _list(self) -> tuple[list[DeviceInfo], str]:
        """Return the devices, and the reason if there are none. Asks the driver only if this process has started it
        already.
        """
        asked = (os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
        if self._listed is None or (self._listed[0] != asked and not self._driver.started):
            version = driver_version()
            if self._driver.started:
                found = [self._info(gpu, version) for gpu in self._driver.gpus()]
                self._listed = (asked, found, "the CUDA driver has no device")
            elif self._given:
                return [self._info(gpu, version) for gpu in self._driver.gpus()], ""
            else:
                self._listed = (asked, *self._list_unstarted(version))
        return self._listed[1], self._listed[2]

    @staticmethod
    def _info(gpu: Gpu, version: str) -> DeviceInfo:
        return DeviceInfo(BACKEND, gpu.ordinal, gpu.name(), gpu.uuid, "gpu", version, pci_address(gpu.uuid))

    @staticmethod
    def _list_unstarted(version: str) -> tuple[list[DeviceInfo], str]:
        if sys.platform != "linux":
            return [], "CUDA is used on Linux only"
        gpus, why = list_gpus()
        if gpus and not has_binding():
            return [], f"there are GPUs, but cuda-bindings is not installed: {INSTALL}"
        return [
            DeviceInfo(BACKEND, ordinal, gpu.name, gpu.uuid, "gpu", version, pci_address(gpu.uuid))
            for ordinal, gpu in enumerate(gpus)
        ], why

    def devices(self) -> list[DeviceInfo]:
        return list(self._list()[0])

    def why_none(self) -> str:
        return self._list()[1]

    def device(self, info: DeviceInfo) -> Gpu:
        return self._driver.gpu(info)

    def info_of(self, gpu: Gpu) -> DeviceInfo:
        """Return the listed device for a device of the driver."""
        found = self._infos.get(gpu.uuid)
        if found is None:
            known = [info for info in self._list()[0] if info.uuid == gpu.uuid]
            found = self._infos[gpu.uuid] = known[0] if known else self._info(gpu, driver_version())
        return found

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect in _MISSING:
            return Support("no", _MISSING[aspect])
        try:
            gpu = self._driver.gpu(device)
            lacking = [attribute.name for attribute in _NEEDS[aspect] if not gpu.attribute(attribute)]
        except XpuShareError as error:
            return Support("unknown", f"the driver cannot be asked: {error}")
        if lacking:
            return Support("no", f"the driver says that the device lacks {', '.join(lacking)}")
        if aspect is Aspect.device_ordering:
            return Support("no", self._driver.why_held())
        return Support("yes", f"the driver says {', '.join(attribute.name for attribute in _NEEDS[aspect])}")

    def properties(self, device: DeviceInfo) -> Properties:
        gpu = self._driver.gpu(device)
        with gpu.context.current():
            free, total = self._driver("asking for the memory", "cuMemGetInfo")
        ask = gpu.attribute
        block = (Attribute.MAX_BLOCK_DIM_X, Attribute.MAX_BLOCK_DIM_Y, Attribute.MAX_BLOCK_DIM_Z)
        grid = (Attribute.MAX_GRID_DIM_X, Attribute.MAX_GRID_DIM_Y, Attribute.MAX_GRID_DIM_Z)
        return Properties(
            "NVIDIA Corporation",
            ask(Attribute.MULTIPROCESSOR_COUNT),
            total,
            free,
            bool(ask(Attribute.INTEGRATED)),
            vendor_id=0x10DE,
            clock_mhz=ask(Attribute.CLOCK_RATE) // 1000,
            memory_clock_mhz=ask(Attribute.MEMORY_CLOCK_RATE) // 1000,
            memory_bus_bits=ask(Attribute.GLOBAL_MEMORY_BUS_WIDTH),
            error_correction=bool(ask(Attribute.ECC_ENABLED)),
            cache_nbytes=ask(Attribute.L2_CACHE_SIZE),
            local_nbytes=ask(Attribute.MAX_SHARED_MEMORY_PER_BLOCK),
            constant_nbytes=ask(Attribute.TOTAL_CONSTANT_MEMORY),
            registers=ask(Attribute.MAX_REGISTERS_PER_BLOCK),
            group_items=ask(Attribute.MAX_THREADS_PER_BLOCK),
            group_sizes=tuple(map(ask, block)),
            grid_sizes=tuple(map(ask, grid)),
            sub_group_sizes=(ask(Attribute.WARP_SIZE),),
        )

    def dlpack_device(self, device: DeviceInfo, kind: UsmKind) -> tuple[int, int]:
        number, on_host = super().dlpack_device(device, kind)
        return number, on_host if kind == "host" else self._driver.gpu(device).ordinal

    # --- memory --------------------------------------------------------------------------------------------

    def allocate_shared(self, info: DeviceInfo, nbytes: int) -> DriverMemory:
        return _memory.ManagedMemory(self.memory_engine, self.device(info), nbytes)

    def open_own(self, info: DeviceInfo, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
        return _memory.open_own(self.memory_engine, self.device(info), kind, doing, what, description)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        """Return the forms of file descriptors that this adapter imports: memfds as host memory, and Vulkan's opaque
        fds, since NVIDIA's driver serves both Vulkan and CUDA. The adapter cannot import VMM fds of other backends,
        since exports of other backends lack data that `PhysicalPages` and `DeviceMemory` need.
        """
        return {} if physical else {Form.MEMFD: Same.HOST, Form.OPAQUE_FD: Same.DEVICE}

    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory:
        gpu = self._driver.gpu(device)
        if what.form is Form.OPAQUE_FD:
            return open_opaque(self.memory_engine, gpu, what)
        opened = _memory.open_legacy(self.memory_engine, gpu, [what])
        return super().import_memory(device, what) if opened is None else opened[0]

    def dma_buf(
        self, device: DeviceInfo, memory: DriverMemory, address: int, nbytes: int
    ) -> tuple[OwnedFd, int] | None:
        return None if memory.host_accessible else dma_buf(self.device(device), address, nbytes)

    def fabric(self, device: DeviceInfo) -> Support:
        """Return whether memory of the device can have a fabric handle."""
        return fabric_support(self.device(device))

    def fabric_handle(self, device: DeviceInfo, address: int) -> bytes:
        """Return the fabric handle of an allocation. Raises `FeatureNotSupportedError` if the allocation has no fabric
        handle.
        """
        return fabric_handle(self.device(device), address)

    def pool(self, device: DeviceInfo) -> DriverPool:
        return self._pools.make(self.device(device))

    def import_all(self, device: DeviceInfo, found: Sequence[Import]) -> list[DriverMemory]:
        opened = _memory.open_legacy(self.memory_engine, self.device(device), found)
        return super().import_all(device, found) if opened is None else opened

    def _importer(self, device: DeviceInfo) -> Importer:
        return _memory.importer(self.memory_engine, self.device(device))

    def export_all(self, found: Iterable[DriverMemory]) -> None:
        _memory.name_all(found)

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        """Find memory of another library that contains `address`, or return None. The result covers all allocations
        that adjoin each other there or, if `nbytes` is given, only those with the `nbytes` bytes from `address`.
        """
        found = self._pools.find(address, self.info_of) or _memory.locate(
            self.memory_engine, self._driver, self.info_of, address, nbytes
        )
        if found is not None:
            self._introduce(found.device)
        return found

    def _introduce(self, info: DeviceInfo) -> None:
        """Let native code look up memory on a device without Python. Does nothing if this package has not used the
        device's context.
        """
        gpu = self.device(info)
        if gpu.used:
            if self.recogniser is None:
                self.recogniser = _memory.recogniser(self._driver)
            self.recogniser.add(gpu.ordinal, info, gpu.context.current, gpu)

    def knows(self, address: int) -> bool:
        return _memory.number_of(self._driver, address) is not None

    # --- queues and events ---------------------------------------------------------------------------------

    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        return Stream.create(self.device(info).context, doing)

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        if not self._given and not in_use_here():
            return None  # if this process has not loaded libcuda, no stream here is CUDA's
        found = stream_of(native)
        if found is None:
            return None
        raw, ordinal = found
        self._driver.start()
        stream = self._driver.api.CUstream(raw)
        context = self._context_of(raw, stream, ordinal)
        adopted = Stream(context, stream, native)
        return self.info_of(context.gpu), self.adopted.queue(adopted.identity(), adopted, adopted.lasting)

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        ordinal = self._driver.gpu(device).ordinal
        if number is None:
            return current_stream(array, ordinal)
        if number <= 0:
            raise InvalidArgumentError(
                f"DLPack's number of a CUDA stream is 1 (legacy default), 2 (per thread) or its handle, not {number}"
            )
        return RawStream(number, ordinal)

    def native(self, device: DeviceInfo, what: Literal["platform", "device", "context"]) -> int:
        if what == "platform":
            raise FeatureNotSupportedError("CUDA has no handle of a platform")
        gpu = self.device(device)
        return gpu.context.number if what == "context" else int(gpu.handle)

    def native_queue(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[DeviceInfo, DriverQueue]:
        stream = RawStream(handle, self.device(device).ordinal)
        found = self.adopt_queue(_Owned(self._driver, "cuStreamDestroy", handle, stream) if owned else stream)
        assert found is not None
        return found

    def native_event(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[int, object]:
        self._driver.start()
        return handle, _Owned(self._driver, "cuEventDestroy", handle, None) if owned else None

    def _context_of(self, raw: int, stream: Any, ordinal: int | None) -> Context:
        doing = "adopting a stream"
        driver = self._driver
        if raw in (0, n.LEGACY_STREAM, n.PER_THREAD_STREAM):
            if ordinal is not None:
                return driver.by_ordinal(ordinal).context
            if not int(driver(doing, "cuCtxGetCurrent")):
                raise InvalidArgumentError(
                    f"{doing}: {raw} is the default stream of the current device, and no device is current: give a "
                    "stream object, or make the device current"
                )
            handle = driver(doing, "cuCtxGetCurrent")
        else:
            handle = driver(doing, "cuStreamGetCtx", stream)
            handle = handle[0] if isinstance(handle, tuple) else handle
        for gpu in driver.gpus():
            if gpu.active() and gpu.context.number == int(handle):
                return gpu.context
        # Another library has created a context besides the primary one.
        driver(doing, "cuCtxPushCurrent", handle)
        try:
            return Context(driver, driver.by_ordinal(int(driver(doing, "cuCtxGetDevice"))), handle)
        finally:
            driver.api.cuCtxPopCurrent()

    def adopt_event(self, native: object) -> tuple[DeviceInfo, int | Point] | None:
        """Return the device and the argument of `DriverQueue.wait_native` for a CUDA event of another library (its raw
        handle) or for a value of Vulkan's timeline semaphore. Return None for any other object.
        """
        if isinstance(native, TimelinePoint):
            self._driver.start()
            for gpu in self._driver.gpus():
                if gpu.uuid == native.semaphore.device_uuid:
                    return self.info_of(gpu), Point(gpu, native)
            return None
        if not self._given and not in_use_here():
            return None
        raw = event_of(native)
        if raw is None:
            return None
        if not raw:
            raise InvalidArgumentError(f"this {type(native).__name__} was never recorded: record it first")
        self._driver.start()
        ordinal = ordinal_of(native)
        if ordinal is not None and ordinal < len(self._driver.gpus()):
            return self.info_of(self._driver.by_ordinal(ordinal)), raw
        if not int(self._driver("adopting an event", "cuCtxGetCurrent")):
            raise DeviceError(f"this {type(native).__name__} does not say its device, and no device is current")
        current = self._driver("adopting an event", "cuCtxGetDevice")
        return self.info_of(self._driver.by_ordinal(int(current))), raw
