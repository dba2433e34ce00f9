"""The driver of this process, loaded when it is first needed, with its errors, its devices and their contexts."""

from __future__ import annotations

import ctypes
import importlib
import os
import stat
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from xpushare import _native
from xpushare._native import End, Importer, Scopes, forks
from xpushare.adapters.base import Access, Form, OnDemand
from xpushare.adapters.cuda import INSTALL
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._numbers import Attribute, Error, Pointer
from xpushare.adapters.runtime import FUNCTIONS, RegisteredPage, copy_and_fills, native_driver
from xpushare.adapters.stream.driver import ProcessDriver
from xpushare.adapters.stream.hooks import Codes, Feature, QueueCalls, Scope
from xpushare.common import settings
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, InvalidHandleError, XpuShareError

__all__ = ["Context", "Driver", "Gpu", "struct_bytes", "struct_from"]

_VERSION: Final = 12000  # functions called by address; from 11.7, those on words have a second form
_STREAM_FUNCTIONS: Final = (
    *(f"cu{name}" for name in FUNCTIONS),
    "cuWaitExternalSemaphoresAsync",
    "cuSignalExternalSemaphoresAsync",
)
_MORE: Final = {"ask_all": "PointerGetAttributes", "push": "CtxPushCurrent", "pop": "CtxPopCurrent"}
# The attributes of an address by which native code recognises cudaMalloc memory. See `_native.Driver`.
_ASKED: Final[dict[int, int | None]] = {
    Pointer.BUFFER_ID: None,
    Pointer.DEVICE_ORDINAL: None,
    Pointer.RANGE_START_ADDR: None,
    Pointer.RANGE_SIZE: None,
    Pointer.IS_MANAGED: 0,
    Pointer.MEMORY_TYPE: n.MEMORY_TYPE_DEVICE,
    Pointer.IS_LEGACY_CUDA_IPC_CAPABLE: 1,
}
_CHANNELS: Final = 8  # the driver's default
_CHANNELS_MOST: Final = 32
_HANDLE_TYPES_AT: Final = 4  # CUmemAllocationProp::requestedHandleTypes
FABRIC: Final = "XPUSHARE_CUDA_FABRIC"
CHANNELS: Final = "/dev/nvidia-caps-imex-channels"
CODES: Final = Codes(
    out_of_memory=frozenset({Error.OUT_OF_MEMORY}),
    unsupported=frozenset({Error.NOT_SUPPORTED}),
    # ECC, NVLink and contained errors, failed kernels, a lost context, "unknown".
    fatal=frozenset({4, 214, 220, 226, 304, 700, 702, 709, 710, *range(714, 722), 999}),
    captured=frozenset(range(900, 909)),
    wrong_size=frozenset({Error.INVALID_VALUE, Error.NOT_SUPPORTED}),
    advice={
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
    },
)
# The attributes of a device that each feature requires.
FEATURES: Final[dict[Feature, tuple[Attribute, ...]]] = {
    "shareable memory": (Attribute.HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,),
    "event slots": (Attribute.CAN_USE_64_BIT_STREAM_MEM_OPS, Attribute.HOST_REGISTER_SUPPORTED),
    "host registration": (Attribute.HOST_REGISTER_SUPPORTED,),
    "read-only host registration": (Attribute.READ_ONLY_HOST_REGISTER_SUPPORTED,),
}


def struct_bytes(struct: Any, nbytes: int = 64) -> bytes:
    """Return the bytes of an opaque structure. Versions of the binding name its field differently."""
    return ctypes.string_at(int(struct.getPtr()), nbytes)


def struct_from(struct: Any, raw: bytes) -> Any:
    ctypes.memmove(int(struct.getPtr()), raw, len(raw))
    return struct


def _channels() -> int:
    """Return how many hardware channels the streams of a device share."""
    said = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip()
    return min(int(said), _CHANNELS_MOST) if said.isdecimal() and int(said) else _CHANNELS


@final
class Driver(ProcessDriver["Gpu"]):
    """Calls the driver. `api`, the binding's module, is set once `start` has returned."""

    def __init__(self, api: Any = None) -> None:
        super().__init__("CUDA", "CUDA_VISIBLE_DEVICES")
        self._given = api
        self.api: Any = None
        self.native: _native.Driver
        # `with driver.relaxed():` goes around calls that a capture in any thread would forbid, and that would end the
        # capture.
        self.relaxed: Scopes
        self._functions: dict[str, int] = {}  # addresses
        self._stream_functions: dict[str, int] | None = None
        self.channels = _CHANNELS
        self.legacy: dict[int, Any] = {}  # buffer id -> cudaMalloc memory of another library whose handle is known

    def binding(self) -> Any:
        """Return the binding's module. This does not start the driver."""
        if self._given is None:
            try:
                self._given = importlib.import_module("cuda.bindings.driver")
            except ImportError as error:
                raise FeatureNotSupportedError(f"cuda-bindings cannot be imported ({error}): {INSTALL}") from error
        return self._given

    def _start(self) -> list[Gpu]:
        api = self.binding()
        try:
            code = int(api.cuInit(0)[0])
        except RuntimeError as error:  # the binding's DynamicLibNotFoundError
            raise FeatureNotSupportedError(f"starting CUDA: libcuda.so.1 cannot be loaded: {error}") from error
        if code == Error.NOT_INITIALIZED and forks():
            raise self.forked()
        self.api = api
        self.channels = _channels()
        with End(setattr, self, "api", None):
            if code:
                raise self.error("starting CUDA", "cuInit", code)
            found = self._enumerate()
            numbers = {"flags": n.IPC_MEM_LAZY_ENABLE_PEER_ACCESS, "mode": n.CAPTURE_MODE_RELAXED}
            self.native = native_driver("cu", self.function, self.error, _ASKED, _MORE, **numbers)
            self.relaxed = Scopes(self.native)
            return found

    def _enumerate(self) -> list[Gpu]:
        doing = "listing the devices"
        # Before CUDA 13, the function without a suffix does not tell MIG instances apart.
        get_uuid = "cuDeviceGetUuid_v2" if hasattr(self.api, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        found: list[Gpu] = []
        for ordinal in range(int(self(doing, "cuDeviceGetCount"))):
            handle = self(doing, "cuDeviceGet", ordinal)
            name = str(uuid.UUID(bytes=struct_bytes(self(doing, get_uuid, handle), 16)))
            found.append(Gpu(self, ordinal, handle, name))
        return found

    def __call__(self, doing: str, name: str, *arguments: Any) -> Any:
        """Call the driver's function `name`, and return its results without the result code. Raises `DeviceError` or
        another error of this package if the code says that the call failed.
        """
        code, *values = getattr(self.api, name)(*arguments)
        if code:
            raise self.error(doing, name, int(code))
        return values[0] if len(values) == 1 else tuple(values)

    def ready(self, doing: str, name: str, code: int) -> bool:
        """Return whether work has finished, given the result code of the call that queried it."""
        if code in (0, Error.NOT_READY):
            return not code
        raise self.error(doing, name, code)

    def error(self, doing: str, name: str, code: int) -> XpuShareError:
        """Return our error for a driver's code. It names the call that failed, the driver's name and number for the
        failure, and the next step.
        """
        try:
            known = self.api.cuGetErrorName(self.api.CUresult(code))[1]
            text = known.decode() if isinstance(known, bytes) else str(known)
        except ValueError:  # this version of the binding does not know the code
            text = "an error that cuda-bindings does not know"
        return CODES.error(doing, name, text, code)

    def by_ordinal(self, ordinal: int) -> Gpu:
        return self.gpus()[ordinal]

    def pointer(self, attribute: Pointer, address: int) -> int | None:
        """Return an attribute of an address, or None if the driver does not know the address."""
        return self.native.ask(attribute, address)

    def pointers(self, attributes: tuple[Pointer, ...], address: int) -> tuple[int, ...]:
        """Return several attributes of an address that the driver knows. An attribute that the memory at the address
        lacks is 0.
        """
        found = self.native.ask_all(attributes, address)
        if isinstance(found, int):
            raise self.error(f"asking for the memory at {address:#x}", "cuPointerGetAttributes", found)
        return found

    @property
    def waiting_streams(self) -> int:
        """How many streams of a device may wait for points that may never come. A waiting stream occupies its hardware
        channel. In our measurements, every other stream kept running while a quarter of the channels was occupied. With
        half of the channels occupied, some other streams stalled.
        """
        return self.channels // 4

    def why_held(self) -> str:
        """Return why queues of a device hold operations back in this process."""
        most = _CHANNELS_MOST // 4
        return (
            f"{self.waiting_streams} of its queues may wait on the device for points that nobody has submitted, since "
            f"queues share {self.channels} hardware channels; the others hold their operations until the point comes"
        ) + ("" if self.waiting_streams == most else f"; CUDA_DEVICE_MAX_CONNECTIONS={_CHANNELS_MOST} makes it {most}")

    def function(self, name: str) -> int:
        """Return the address of a driver function."""
        found = self._functions.get(name)
        if found is None:
            found = int(self(f"finding {name}", "cuGetProcAddress", name.encode(), _VERSION, 0)[0])
            self._functions[name] = found
        return found

    def stream_functions(self) -> dict[str, int]:
        if self._stream_functions is None:
            self._stream_functions = {name: self.function(name) for name in _STREAM_FUNCTIONS}
        return self._stream_functions

    def posix_fd(self) -> Any:
        return self.api.CUmemAllocationHandleType(n.POSIX_FD)


@final
class Context:
    """A CUDA context: the primary context of a device, or the context of an adopted stream."""

    __slots__ = ("_idle_stream", "current", "driver", "gpu", "handle", "number", "pushed")

    def __init__(self, driver: Driver, gpu: Gpu, handle: Any) -> None:
        self.driver = driver
        self.gpu = gpu
        self.handle = handle
        self.number = int(handle)
        self._idle_stream: Any = None
        # `with context.current():` makes this context current and leaves captures alone; afterwards the caller's is
        # current again. `pushed` is the same, for calls that disturb no capture.
        self.current = Scopes(driver.native, self.number)
        self.pushed = Scopes(driver.native, self.number, relaxed=False)

    def check(self, doing: str) -> None:
        """Raise the error that broke this context, if the context is broken. The driver reports that error when any
        stream is queried, so this method queries an idle stream of our own. The context must be current.
        """
        if self._idle_stream is None:
            self._idle_stream = self.driver(doing, "cuStreamCreate", n.STREAM_NON_BLOCKING)
        self.driver.ready(doing, "cuStreamQuery", int(self.driver.api.cuStreamQuery(self._idle_stream)[0]))


@final
class Gpu:
    """One device of the driver, with the hooks that the stream engine calls.

    The primary context of the device is retained at first use and never released. Releasing a context waits for the
    context's work, so it hangs if that work waits for a signal that never comes. When the process exits, the driver
    does not wait for the work.
    """

    def __init__(self, driver: Driver, ordinal: int, handle: Any, name: str) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self.handle = handle
        self.uuid = name
        self._lock = threading.Lock()
        self._context: Context | None = None
        self.current: Callable[[], Scope] = self._current_first  # the context's, once the device has one
        self._attributes: dict[int, int] = {}
        self._lacking: dict[Feature, str] = {}
        self._page = RegisteredPage()  # for `drain`
        self._calls: QueueCalls | None = None
        self._granularities: dict[bool, int] = {}
        self._peers: dict[int, bool] = {}  # ordinal -> whether this device reaches its memory
        self.codes = CODES
        self.form = Form.VMM_FD
        self.one_access = True
        self.origin = b""  # `location` asks the driver for it
        self.importer: Importer | None = None  # made at the first import of cudaMalloc memory

    def __str__(self) -> str:
        return f"GPU {self.ordinal}"

    def name(self) -> str:
        raw = self.driver("asking a device's name", "cuDeviceGetName", 256, self.handle)
        return raw.split(b"\0")[0].decode(errors="replace") if isinstance(raw, bytes) else str(raw)

    def attribute(self, attribute: Attribute) -> int:
        """Return an attribute of the device. The driver is asked once for each attribute."""
        found = self._attributes.get(attribute)
        if found is None:
            number = self.driver.api.CUdevice_attribute(int(attribute))
            found = int(self.driver(f"asking for {attribute.name}", "cuDeviceGetAttribute", number, self.handle))
            self._attributes[attribute] = found
        return found

    @property
    def context(self) -> Context:
        """The primary context. The first use creates it if no other code has."""
        if self._context is None:
            with self._lock:
                if self._context is None:
                    with self.driver.relaxed():
                        handle = self.driver(f"starting GPU {self.ordinal}", "cuDevicePrimaryCtxRetain", self.handle)
                    self._context = Context(self.driver, self, handle)
                    self.current = self._context.current
        return self._context

    @property
    def used(self) -> bool:
        """Whether this package has retained the primary context of the device."""
        return self._context is not None

    def active(self) -> bool:
        """Return whether this process has the device's primary context, no matter which library made it."""
        return bool(self.driver("asking for contexts", "cuDevicePrimaryCtxGetState", self.handle)[1])

    def queue_calls(self) -> QueueCalls:
        """Return the calls that native code makes on the streams of this device. All streams share one object, since
        the object counts the streams that wait.
        """
        context, driver = self.context, self.driver
        with self._lock:
            if self._calls is None:
                functions = driver.stream_functions()
                names = "cuLaunchHostFunc", "cuStreamWriteValue64", "cuStreamWaitValue64", "cuStreamIsCapturing"
                host, store, wait, captured = map(driver.function, names)
                native = _native.QueueCalls(
                    host=(host, ("queue", "function", "data")),
                    store=(store, ("queue", "address", "point", 0)),
                    wait=(wait, ("queue", "address", "point", n.STREAM_WAIT_VALUE_GEQ)),
                    captured=(captured, ("queue", "status_out")),
                    relay=(
                        (driver.function("cuThreadExchangeStreamCaptureMode"), (("int_at", n.CAPTURE_MODE_RELAXED),)),
                        (driver.function("cuCtxSetCurrent"), (context.number,)),
                    ),
                    budget=driver.waiting_streams,
                    **copy_and_fills(functions, "cu"),
                )
                others = {address: name for name, address in functions.items()}
                busy = driver.function("cuStreamQuery"), int(Error.NOT_READY)
                self._calls = QueueCalls(native, *names, others, busy=busy)
        return self._calls

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return self.driver.error(doing, call, code)

    def _current_first(self) -> Scope:
        return self.context.current()

    def lacking(self, feature: Feature) -> str:
        found = self._lacking.get(feature)
        if found is None:
            missing = [each for each in FEATURES[feature] if not self.attribute(each)]
            found = self._lacking[feature] = ", ".join(f"{each.name} (attribute {each.value})" for each in missing)
        return found

    def drain(self) -> None:
        doing, driver = f"waiting for the work on {self}", self.driver
        with self.current():
            self._page.renew(
                lambda address, nbytes: driver(doing, "cuMemHostRegister", address, nbytes, 0),
                lambda address: driver(doing, "cuMemHostUnregister", address),
            )

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        flags = n.HOST_REGISTER_PORTABLE | n.HOST_REGISTER_DEVICEMAP | (n.HOST_REGISTER_READ_ONLY if read_only else 0)
        self.driver(doing, "cuMemHostRegister", address, nbytes, flags)

    def reached(self, doing: str, address: int) -> int:
        return int(self.driver(doing, "cuMemHostGetDevicePointer", address, 0))

    def unreach(self, doing: str, address: int) -> None:
        self.driver(doing, "cuMemHostUnregister", address)

    # --- virtual memory management -------------------------------------------------------------------------

    def _properties(self, types: int) -> Any:
        """Return the CUmemAllocationProp of memory on this device that can be exported in each of these forms."""
        api = self.driver.api
        properties = api.CUmemAllocationProp()
        properties.type = api.CUmemAllocationType(n.ALLOCATION_PINNED)
        properties.location.type = api.CUmemLocationType(n.LOCATION_DEVICE)
        properties.location.id = self.ordinal
        # The binding's enumeration has no combinations.
        ctypes.c_int.from_address(int(properties.getPtr()) + _HANDLE_TYPES_AT).value = types
        return properties

    def granularity(self, recommended: bool) -> int:
        found = self._granularities.get(recommended)
        if found is None:
            option = self.driver.api.CUmemAllocationGranularity_flags(int(recommended))  # …_MINIMUM, …_RECOMMENDED
            asked = "asking for the granularity", "cuMemGetAllocationGranularity", self._properties(n.POSIX_FD), option
            found = self._granularities[recommended] = int(self.driver(*asked))
        return found

    def create(self, doing: str, nbytes: int, shareable: bool) -> Any:
        if shareable and settings.switch(FABRIC):
            return self.create_for_fabric(doing, nbytes)
        return self.driver(doing, "cuMemCreate", nbytes, self._properties(n.POSIX_FD if shareable else 0), 0)

    def create_for_fabric(self, doing: str, nbytes: int) -> Any:
        """Make an allocation that has a fabric handle in addition to the file descriptor."""
        doing = f"{doing}, with a fabric handle ({FABRIC}=1)"
        if not self.attribute(Attribute.HANDLE_TYPE_FABRIC_SUPPORTED):
            raise FeatureNotSupportedError(
                f"{doing}: the driver says that {self} lacks HANDLE_TYPE_FABRIC_SUPPORTED (attribute 128)"
            )
        try:
            return self.driver(doing, "cuMemCreate", nbytes, self._properties(n.POSIX_FD | n.FABRIC), 0)
        except (DeviceError, FeatureNotSupportedError) as error:
            channels = os.path.isdir(CHANNELS) and os.listdir(CHANNELS)
            why = "" if channels else f"; there is no IMEX channel ({CHANNELS}): nvidia-modprobe -c 0, as root"
            raise FeatureNotSupportedError(f"{error}{why}", native=error.native) from error

    def retain(self, doing: str, address: int) -> Any:
        return self.driver(doing, "cuMemRetainAllocationHandle", address)

    def release(self, doing: str, handle: Any) -> None:
        self.driver(doing, "cuMemRelease", handle)

    def export_fd(self, doing: str, handle: Any) -> int:
        return int(self.driver(doing, "cuMemExportToShareableHandle", handle, self.driver.posix_fd(), 0))

    def export_on_demand(self, handles: Sequence[Any]) -> OnDemand:
        function = self.driver.function("cuMemExportToShareableHandle")
        return OnDemand(function, [int(handle) for handle in handles], n.POSIX_FD, 0)

    def import_fd(self, doing: str, fd: int, origin: bytes) -> Any:
        if not stat.S_ISCHR(os.fstat(fd).st_mode):
            raise InvalidHandleError(f"{doing}: the exporter's file descriptor is not one of the NVIDIA driver")
        return self.driver(doing, "cuMemImportFromShareableHandle", fd, self.driver.posix_fd())

    def location(self, doing: str, handle: Any) -> int:
        properties = self.driver(doing, "cuMemGetAllocationPropertiesFromHandle", handle)
        ordinal = int(properties.location.id)
        if int(properties.location.type) != n.LOCATION_DEVICE or not 0 <= ordinal < len(self.driver.gpus()):
            raise FeatureNotSupportedError(f"{doing}: the memory is on a device that this process may not see")
        return ordinal

    def reaches(self, location: int) -> bool:
        if location == self.ordinal:
            return True
        found = self._peers.get(location)
        if found is None:
            other = self.driver.by_ordinal(location)
            found = bool(self.driver("asking for peer access", "cuDeviceCanAccessPeer", self.handle, other.handle))
            self._peers[location] = found
        return found

    def reserve(self, doing: str, nbytes: int, address: int) -> int:
        return int(self.driver(doing, "cuMemAddressReserve", nbytes, 0, address, 0))

    def free(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "cuMemAddressFree", address, nbytes)

    def map(self, doing: str, address: int, nbytes: int, handle: Any) -> None:
        self.driver(doing, "cuMemMap", address, nbytes, 0, handle, 0)

    def unmap(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "cuMemUnmap", address, nbytes)

    def access_list(self, ordinals: Sequence[int], access: Access) -> list[Any]:
        """Return a CUmemAccessDesc for each device."""
        api, found = self.driver.api, []
        for ordinal in ordinals:
            one = api.CUmemAccessDesc()
            one.location.type = api.CUmemLocationType(n.LOCATION_DEVICE)
            one.location.id = ordinal
            one.flags = api.CUmemAccess_flags(n.ACCESS[access])
            found.append(one)
        return found

    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: Access) -> None:
        descriptors = self.access_list(ordinals, access)
        self.driver(doing, "cuMemSetAccess", address, nbytes, descriptors, len(descriptors))
