"""The driver of this process: loaded at the first real need, its errors, its devices and their primary contexts."""

from __future__ import annotations

import bisect
import ctypes
import importlib
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, final

from xpushare._errors import (
    DeviceError,
    FeatureNotSupportedError,
    ForkError,
    InvalidArgumentError,
    OutOfMemoryError,
    XpuShareError,
)
from xpushare._native import QueueCalls, StreamQueue, forks
from xpushare._result import Result
from xpushare.adapters.base import Access, DeviceInfo
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._numbers import Attribute, Error, Pointer

__all__ = ["BACKEND", "Context", "Driver", "Gpu", "in_use_here", "struct_bytes", "struct_from"]

BACKEND: Final = "cuda"
_VALUE64_VERSION: Final = 12000  # from 11.7 on the functions have their second form
_STREAM_VERSION: Final = 10000
INSTALL: Final = "install the binding with: pip install 'xpushare[cuda]'"
_FORKED: Final = (
    "CUDA was started before this process was forked, and cannot be used in the child: start it with the spawn or "
    "forkserver method"
)
_ADVICE: Final = {
    Error.OUT_OF_MEMORY: "free memory of the device, or ask for less",
    Error.DEINITIALIZED: "this process is exiting",
    Error.NO_DEVICE: "nvidia-smi shows whether the driver has one; CUDA_VISIBLE_DEVICES may hide it",
    Error.NOT_PERMITTED: "the driver forbids it to this process: look at the container's devices and capabilities",
    Error.INVALID_CONTEXT: "no context of this device is usable here",
    35: "the driver is older than the binding needs: update it, or install an older cuda-bindings",
    46: "another process has the device in exclusive mode (nvidia-smi -q -d COMPUTE)",
    700: "earlier work on this device broke its context: end this process",
    719: "earlier work on this device broke its context: end this process",
    712: "another library of this process has registered these pages",
    802: "the fabric manager is not running: start nvidia-fabricmanager",
    803: "driver and kernel module differ: reload the module or restart the machine",
}


def struct_bytes(struct: Any, nbytes: int = 64) -> bytes:
    """The bytes of an opaque structure; the binding's versions differ in how they name its field."""
    return ctypes.string_at(int(struct.getPtr()), nbytes)


def struct_from(struct: Any, raw: bytes) -> Any:
    ctypes.memmove(int(struct.getPtr()), raw, len(raw))
    return struct


_loaded: list[bool] = []  # libcuda was found in this process; it never leaves


def in_use_here() -> bool:
    """Whether somebody in this process has loaded libcuda: else no pointer and no stream here is CUDA's."""
    if _loaded:
        return True
    import _ctypes
    import os

    try:
        handle = _ctypes.dlopen("libcuda.so.1", os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    _ctypes.dlclose(handle)
    _loaded.append(True)
    return True


@final
class Driver:
    """Calls the driver. `api` (the binding's module) is there once `start` has returned."""

    def __init__(self, api: Any = None) -> None:
        self._given = api
        self._lock = threading.Lock()
        self._forks: int | None = None
        self._gpus: dict[str, Gpu] = {}
        self._ordered: list[Gpu] = []
        self.api: Any = None
        self.relaxed_mode: Any = None
        self._pointer_attributes: dict[int, Any] = {}
        self._queue_calls: QueueCalls | None = None
        self.reach = Reach(self)
        self.legacy: dict[int, tuple[Gpu, int, int]] = {}  # buffer id -> cudaMalloc allocation of another library

    @property
    def started(self) -> bool:
        """Started in this very process."""
        return self._forks is not None and self._forks == forks()

    def binding(self) -> Any:
        """The binding's module; the driver is not started by it."""
        if self._given is None:
            try:
                self._given = importlib.import_module("cuda.bindings.driver")
            except ImportError as error:
                raise FeatureNotSupportedError(f"cuda-bindings cannot be imported ({error}): {INSTALL}") from error
        return self._given

    def start(self) -> None:
        """Load and initialise the driver once; a forked child is refused."""
        if self._forks is not None:
            if self._forks != forks():
                raise ForkError(_FORKED)
            return
        with self._lock:
            if self._forks is not None:
                return
            api = self.binding()
            try:
                code = int(api.cuInit(0)[0])
            except RuntimeError as error:  # the binding's DynamicLibNotFoundError
                raise FeatureNotSupportedError(f"starting CUDA: libcuda.so.1 cannot be loaded: {error}") from error
            if code == Error.NOT_INITIALIZED and forks():
                raise ForkError(_FORKED)
            self.api = api
            try:
                if code:
                    raise self.error("starting CUDA", "cuInit", code)
                self._gpus = self._enumerate()
                self._ordered = sorted(self._gpus.values(), key=lambda gpu: gpu.ordinal)
                self.relaxed_mode = api.CUstreamCaptureMode(n.CAPTURE_MODE_RELAXED)
            except BaseException:
                self.api = None
                raise
            self._forks = forks()

    def _enumerate(self) -> dict[str, Gpu]:
        doing = "listing the devices"
        # Before CUDA 13 the plain name does not tell MIG instances apart.
        get_uuid = "cuDeviceGetUuid_v2" if hasattr(self.api, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        found: dict[str, Gpu] = {}
        for ordinal in range(int(self(doing, "cuDeviceGetCount"))):
            handle = self(doing, "cuDeviceGet", ordinal)
            name = str(uuid.UUID(bytes=struct_bytes(self(doing, get_uuid, handle), 16)))
            found[name] = Gpu(self, ordinal, handle, name)
        return found

    def __call__(self, doing: str, name: str, *arguments: Any) -> Any:
        """Call; what it returns beside the code, or our error."""
        code, *values = getattr(self.api, name)(*arguments)
        if code:
            raise self.error(doing, name, int(code))
        return values[0] if len(values) == 1 else tuple(values)

    def error(self, doing: str, name: str, code: int) -> XpuShareError:
        """Our error for a driver's code: which call, the driver's name and number for it, and the next step."""
        try:
            known = self.api.cuGetErrorName(self.api.CUresult(code))[1]
            text = known.decode() if isinstance(known, bytes) else str(known)
        except ValueError:  # a code that this version of the binding does not know
            text = "an error that cuda-bindings does not know"
        advice = _ADVICE.get(code)
        message = f"{doing}: {name} failed with {text} ({code})" + (f"; {advice}" if advice else "")
        if code == Error.OUT_OF_MEMORY:
            return OutOfMemoryError(message, native=code, result=Result.ERROR_OUT_OF_DEVICE_MEMORY)
        if code == Error.NOT_SUPPORTED:
            return FeatureNotSupportedError(message, native=code)
        return DeviceError(message, native=code)

    def gpus(self) -> list[Gpu]:
        self.start()
        return self._ordered

    def gpu(self, device: DeviceInfo) -> Gpu:
        """The driver's device with that uuid, whatever its ordinal was when it was listed."""
        self.start()
        found = self._gpus.get(device.uuid)
        if found is None:
            visible = ", ".join(f"{gpu.ordinal} is {gpu.uuid}" for gpu in self.gpus()) or "none"
            raise InvalidArgumentError(
                f"the CUDA driver does not let this process use GPU {device.uuid} (of its devices: {visible}); a "
                "container or a job manager hides it, or CUDA_VISIBLE_DEVICES was changed after the devices were listed"
            )
        return found

    def by_ordinal(self, ordinal: int) -> Gpu:
        return self.gpus()[ordinal]

    def _attribute(self, attribute: Pointer) -> Any:
        found = self._pointer_attributes.get(attribute)
        if found is None:
            found = self._pointer_attributes[attribute] = self.api.CUpointer_attribute(int(attribute))
        return found

    def pointer(self, attribute: Pointer, address: int) -> int | None:
        """An attribute of an address; None where the driver does not know the address."""
        code, value = self.api.cuPointerGetAttribute(self._attribute(attribute), address)[:2]
        return None if code else int(value)

    def pointers(self, doing: str, attributes: Sequence[Pointer], address: int) -> list[int]:
        """Several attributes of an address that the driver knows; 0 for those that its memory has not."""
        asked = [self._attribute(attribute) for attribute in attributes]
        return [int(value) for value in self(doing, "cuPointerGetAttributes", len(asked), asked, address)]

    def relaxed(self) -> _Scope:
        """`with driver.relaxed():` around calls that a capture in any thread would forbid, and that would end it."""
        return _Scope(self, None, True)

    def function(self, name: str, version: int) -> int:
        """The address of a driver function as that version of CUDA has it."""
        return int(self(f"finding {name}", "cuGetProcAddress", name.encode(), version, 0)[0])

    def stream_queue(self, number: int, stream: int, adopted: bool) -> StreamQueue:
        """A stream's operations on event slots; `adopted`: somebody else has the stream, too."""
        if self._queue_calls is None:
            self._queue_calls = QueueCalls(
                host=(self.function("cuLaunchHostFunc", _STREAM_VERSION), ("queue", "function", "data")),
                store=(self.function("cuStreamWriteValue64", _VALUE64_VERSION), ("queue", "address", "point", 0)),
                wait=(
                    self.function("cuStreamWaitValue64", _VALUE64_VERSION),
                    ("queue", "address", "point", n.STREAM_WAIT_VALUE_GEQ),
                ),
                captured=(self.function("cuStreamIsCapturing", _STREAM_VERSION), ("queue", "status_out")),
            )
        return StreamQueue(number, stream, self._queue_calls, adopted=adopted)

    def posix_fd(self) -> Any:
        return self.api.CUmemAllocationHandleType(n.POSIX_FD)


@final
class Reach:
    """Which devices may use which mapping of VMM memory, where the process has several devices."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._starts: list[int] = []
        # start -> size, the device it lies on, access, ordinals of the devices that have it
        self._mapped: dict[int, tuple[int, int, Access, frozenset[int]]] = {}

    def note(self, address: int, nbytes: int, location: int, access: Access, ordinals: frozenset[int]) -> None:
        """Access was set so. Earlier notes of the same bytes count no more."""
        self.forget(address, nbytes)
        with self._lock:
            bisect.insort(self._starts, address)
            self._mapped[address] = (nbytes, location, access, ordinals)

    def forget(self, address: int, nbytes: int) -> None:
        """What lies in these bytes was unmapped."""
        with self._lock:
            for start in self._within(address, nbytes):
                size, location, access, ordinals = self._mapped.pop(start)
                self._starts.remove(start)
                # What sticks out on either side stays known.
                for low, high in ((start, address), (address + nbytes, start + size)):
                    if low < high:
                        bisect.insort(self._starts, low)
                        self._mapped[low] = (high - low, location, access, ordinals)

    def _within(self, address: int, nbytes: int) -> list[int]:
        """The notes that touch these bytes."""
        first = max(bisect.bisect_right(self._starts, address) - 1, 0)
        last = bisect.bisect_left(self._starts, address + nbytes)
        return [start for start in self._starts[first:last] if start + self._mapped[start][0] > address]

    def ensure(self, gpu: Gpu, address: int, nbytes: int) -> None:
        """Let `gpu` use what is mapped at these bytes, where it is VMM memory that it may not use yet."""
        with self._lock:
            for start in self._within(address, nbytes):
                size, location, access, ordinals = self._mapped[start]
                if gpu.ordinal in ordinals or not gpu.reachable_from(location):
                    continue
                driver = self._driver
                one = driver.api.CUmemAccessDesc()
                one.location.type = driver.api.CUmemLocationType(n.LOCATION_DEVICE)
                one.location.id = gpu.ordinal
                one.flags = driver.api.CUmemAccess_flags(n.ACCESS[access])
                doing = f"giving GPU {gpu.ordinal} access to memory of GPU {location}"
                driver(doing, "cuMemSetAccess", start, size, [one], 1)
                self._mapped[start] = (size, location, access, ordinals | {gpu.ordinal})


class _Scope:
    """Around driver calls, on the hot path: with `relaxed`, this thread's capture mode is exchanged for RELAXED; with a
    context, that is current. Both come back.
    """

    __slots__ = ("_api", "_before", "_driver", "_handle", "_relaxed")

    def __init__(self, driver: Driver, handle: Any, relaxed: bool) -> None:
        self._driver = driver
        self._api = driver.api
        self._handle = handle
        self._relaxed = relaxed

    def __enter__(self) -> None:
        api = self._api
        if self._relaxed:
            code, self._before = api.cuThreadExchangeStreamCaptureMode(self._driver.relaxed_mode)
            if code:
                raise self._driver.error("leaving captures alone", "cuThreadExchangeStreamCaptureMode", int(code))
        if self._handle is not None:
            code = api.cuCtxPushCurrent(self._handle)[0]
            if code:
                if self._relaxed:
                    api.cuThreadExchangeStreamCaptureMode(self._before)
                raise self._driver.error("making a context current", "cuCtxPushCurrent", int(code))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._api.cuCtxPopCurrent()
        if self._relaxed:
            self._api.cuThreadExchangeStreamCaptureMode(self._before)


@final
class Context:
    """A CUDA context: a device's primary one, or that of an adopted stream."""

    __slots__ = ("_pulse", "driver", "gpu", "handle", "number")

    def __init__(self, driver: Driver, gpu: Gpu, handle: Any) -> None:
        self.driver = driver
        self.gpu = gpu
        self.handle = handle
        self.number = int(handle)
        self._pulse: Any = None

    def current(self) -> _Scope:
        """`with context.current():` this context is current and captures are left alone; then the caller's again."""
        return _Scope(self.driver, self.handle, True)

    def pushed(self) -> _Scope:
        """Likewise, for calls that no capture minds."""
        return _Scope(self.driver, self.handle, False)

    def pulse(self) -> int:
        """0, or the error that broke this context: a query of any stream answers it, so of an idle one of ours.

        Needs the context current."""
        if self._pulse is None:
            code, *stream = self.driver.api.cuStreamCreate(n.STREAM_NON_BLOCKING)
            if code:
                return int(code)
            self._pulse = stream[0]
        return int(self.driver.api.cuStreamQuery(self._pulse)[0])


@final
class Gpu:
    """One device of the driver.

    Its primary context is retained when it is first used, and kept: ending a context waits for its work,
    for ever behind a wait that nobody releases (measured); the end of the process does not.
    """

    def __init__(self, driver: Driver, ordinal: int, handle: Any, name: str) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self.handle = handle
        self.uuid = name
        self._lock = threading.Lock()
        self._context: Context | None = None
        self._attributes: dict[int, int] = {}
        self._answers: dict[object, Any] = {}

    def name(self) -> str:
        raw = self.driver("asking a device's name", "cuDeviceGetName", 256, self.handle)
        return raw.split(b"\0")[0].decode(errors="replace") if isinstance(raw, bytes) else str(raw)

    def attribute(self, attribute: Attribute) -> int:
        """What the driver says; asked once."""
        found = self._attributes.get(attribute)
        if found is None:
            number = self.driver.api.CUdevice_attribute(int(attribute))
            found = int(self.driver(f"asking for {attribute.name}", "cuDeviceGetAttribute", number, self.handle))
            self._attributes[attribute] = found
        return found

    def once(self, key: object, find: Callable[[], Any]) -> Any:
        """What `find` finds, for good."""
        if key not in self._answers:
            self._answers[key] = find()
        return self._answers[key]

    @property
    def context(self) -> Context:
        """The primary context, made now if nobody has made it."""
        if self._context is None:
            with self._lock:
                if self._context is None:
                    with self.driver.relaxed():
                        handle = self.driver(f"starting GPU {self.ordinal}", "cuDevicePrimaryCtxRetain", self.handle)
                    self._context = Context(self.driver, self, handle)
        return self._context

    @property
    def used(self) -> bool:
        """Whether this adapter has retained its context."""
        return self._context is not None

    def active(self) -> bool:
        """Whether anybody in this process has made its primary context."""
        return bool(self.driver("asking for contexts", "cuDevicePrimaryCtxGetState", self.handle)[1])

    def reachable_from(self, location: int) -> bool:
        """Whether this device can read and write memory that lies on device `location`."""
        if location == self.ordinal:
            return True

        def ask() -> bool:
            other = self.driver.by_ordinal(location)
            return bool(self.driver("asking for peer access", "cuDeviceCanAccessPeer", self.handle, other.handle))

        return bool(self.once(("peer", location), ask))


class RawStream(NamedTuple):
    """A stream by its handle, and the device that a default one is meant on."""

    handle: int
    device_id: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def current_stream(array: object, ordinal: int) -> object:
    """The stream that the library of `array` works on now; the legacy default one where it does not say."""
    library = type(array).__module__.split(".")[0]
    module = sys.modules.get(library)
    if library == "torch" and module is not None:
        return module.cuda.current_stream(ordinal)
    if library == "cupy" and module is not None:
        return module.cuda.get_current_stream(ordinal)
    if library in ("jax", "jaxlib"):
        array.__dlpack__(stream=n.LEGACY_STREAM)  # type: ignore[attr-defined]  # has that stream wait for its content
        return RawStream(n.LEGACY_STREAM, ordinal)
    interface = getattr(array, "__cuda_array_interface__", None)
    said = interface.get("stream") if isinstance(interface, dict) else None
    return RawStream(said if isinstance(said, int) and said > 0 else n.LEGACY_STREAM, ordinal)


def stream_of(native: object) -> tuple[int, int | None] | None:
    """(raw stream, device ordinal if it says) of another library's stream object; None where it is none."""
    if isinstance(native, int) and not isinstance(native, bool):
        return native, None
    ordinal = getattr(getattr(native, "device", None), "index", None)
    if ordinal is None:
        ordinal = getattr(native, "device_id", None)
    if not isinstance(ordinal, int) or ordinal < 0:
        ordinal = None
    raw = getattr(native, "cuda_stream", None)  # torch
    if isinstance(raw, int):
        return raw, ordinal
    protocol = getattr(native, "__cuda_stream__", None)
    if callable(protocol):
        said = protocol()
        if not (isinstance(said, tuple) and len(said) == 2 and said[0] == 0 and isinstance(said[1], int)):
            raise InvalidArgumentError(f"__cuda_stream__ of {type(native).__name__} returned {said!r}, not (0, stream)")
        return said[1], ordinal
    raw = getattr(native, "ptr", None)  # CuPy before it had __cuda_stream__
    if isinstance(raw, int) and type(native).__module__.split(".")[0] == "cupy":
        return raw, ordinal
    raw = getattr(native, "handle", None)  # numba
    if isinstance(raw, ctypes.c_void_p) and type(native).__module__.split(".")[0] == "numba":
        return raw.value or 0, ordinal
    return None


def event_of(native: object) -> int | None:
    """The raw event of another library's event object; None where it is none, 0 where it was never recorded."""
    raw = getattr(native, "cuda_event", None)  # torch
    if isinstance(raw, int):
        return raw
    module = type(native).__module__.split(".")[0]
    raw = getattr(native, "ptr", None)  # CuPy
    if isinstance(raw, int) and module == "cupy":
        return raw
    raw = getattr(native, "handle", None)  # cuda.core, numba
    if raw is not None and module in ("cuda", "numba", "numba_cuda"):
        return int(raw.value or 0) if isinstance(raw, ctypes.c_void_p) else int(raw)
    return None


def exiting() -> bool:
    return sys.is_finalizing()
