"""The loader and its devices in this process, started when they are first needed. The functions that are used."""

from __future__ import annotations

import ctypes
import uuid
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from xpushare import _native
from xpushare._errors import FeatureNotSupportedError
from xpushare._system import boot_id
from xpushare.adapters.opencl._protocols import LOADER
from xpushare.adapters.stream.hooks import Codes, QueueCalls
from xpushare.adapters.stream.library import LibraryDriver, address_of

if TYPE_CHECKING:
    from xpushare.adapters.opencl._device import Cpu

__all__ = ["COMPLETE", "NO_ADDRESS", "Code", "Driver"]

_P, _I, _U, _U64, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
_WAITS: Final = (_U, _P, _P)  # of an operation: for how many events it waits, for which, and where to put its own
_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (  # names, result, arguments
    ("clGetPlatformIDs", _I, (_U, _P, _P)),
    ("clGetDeviceIDs", _I, (_P, _U64, _U, _P, _P)),
    ("clGetPlatformInfo clGetDeviceInfo clGetCommandQueueInfo clGetEventInfo", _I, (_P, _U, _SIZE, _P, _P)),
    ("clRetainCommandQueue clReleaseCommandQueue clReleaseEvent clReleaseMemObject clFlush clFinish", _I, (_P,)),
    ("clSetUserEventStatus", _I, (_P, _I)),
    ("clWaitForEvents", _I, (_U, _P)),
    ("clSetEventCallback", _I, (_P, _I, _P, _P)),
    ("clEnqueueMarkerWithWaitList clEnqueueBarrierWithWaitList", _I, (_P, *_WAITS)),
    ("clEnqueueSVMMemcpy", _I, (_P, _U, _P, _P, _SIZE, *_WAITS)),
    ("clEnqueueSVMMemFill", _I, (_P, _P, _P, _SIZE, _SIZE, *_WAITS)),
    ("clEnqueueFillBuffer", _I, (_P, _P, _P, _SIZE, _SIZE, _SIZE, *_WAITS)),
    ("clEnqueueReadBuffer", _I, (_P, _P, _U, _SIZE, _SIZE, _P, *_WAITS)),
    # These return an object, and write the code to where their last argument points.
    ("clCreateContext", _P, (_P, _U, _P, _P, _P, _P)),
    ("clCreateCommandQueueWithProperties", _P, (_P, _P, _P, _P)),
    ("clCreateUserEvent", _P, (_P, _P)),
    ("clCreateBuffer", _P, (_P, _U64, _SIZE, _P, _P)),
)
COMPLETE: Final = 0
_EVERY_TYPE, _CPU, _OUT_OF_ORDER = 0xFFFFFFFF, 1 << 1, 1 << 0
_PLATFORM_NAME, _TYPE, _NAME = 0x0902, 0x1000, 0x102B
_QUEUE_CONTEXT, _QUEUE_DEVICE, _QUEUE_PROPERTIES, _EVENT_STATUS = 0x1090, 0x1091, 0x1093, 0x11D3


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


NO_ADDRESS: Final = (
    "the memory of such a device has no address that another process could map, so use it by its vendor's own backend "
    "(cuda, level_zero)"
)


@final
class Driver(LibraryDriver["Cpu"]):
    """Calls the loader."""

    codes = Codes(
        out_of_memory=frozenset({Code.MEM_OBJECT_ALLOCATION_FAILURE, Code.OUT_OF_RESOURCES, Code.OUT_OF_HOST_MEMORY}),
        unsupported=frozenset({Code.INVALID_OPERATION}),
        fatal=frozenset({Code.DEVICE_NOT_AVAILABLE}),
        captured=frozenset(),
        wrong_size=frozenset(),
        advice={Code.INVALID_CONTEXT: "keep the context of a queue alive as long as the queue"},
    )
    names: ClassVar = {code.value: f"CL_{code.name}" for code in Code}
    missing = Code.INVALID_OPERATION
    not_ready = 1
    exiting = Code.DEVICE_NOT_AVAILABLE
    by_address = ctypes.Structure

    def __init__(self, make: Callable[[Driver, int, int, str], Cpu]) -> None:
        """`make` makes a device: its ordinal, handle and uuid."""
        super().__init__("OpenCL", "OCL_ICD_VENDORS")
        self._make = make
        self.refused: list[str] = []  # devices that are no CPUs

    def _start(self) -> list[Cpu]:
        try:
            library = ctypes.CDLL(LOADER)
        except OSError as error:
            raise FeatureNotSupportedError(f"starting OpenCL: the loader cannot be loaded: {error}") from error
        for all_names, result, arguments in _FUNCTIONS:
            for name in all_names.split():
                if (function := getattr(library, name, None)) is not None:
                    function.argtypes, function.restype = arguments, result
                    self.functions[name] = function
        found: dict[int, Cpu] = {}  # a driver may be named twice
        names: Counter[str] = Counter()
        for platform in self._listed("clGetPlatformIDs", none=Code.PLATFORM_NOT_FOUND_KHR):
            of = self.text("clGetPlatformInfo", platform, _PLATFORM_NAME)
            for handle in self._listed("clGetDeviceIDs", platform, _EVERY_TYPE, none=Code.DEVICE_NOT_FOUND):
                name = f"{self.text('clGetDeviceInfo', handle, _NAME)} of {of}"
                if not self._is_cpu(handle):
                    self.refused.append(name)
                elif handle not in found:
                    names[name] += 1
                    identity = f"xpushare/opencl/{boot_id().hex()}/{name}/{names[name]}"
                    identity = str(uuid.uuid5(uuid.NAMESPACE_OID, identity))
                    found[handle] = self._make(self, len(found), handle, identity)
        return list(found.values())

    def _listed(self, name: str, *arguments: int, none: int) -> list[int]:
        count = ctypes.c_uint32()
        if self.code(name, *arguments, 0, None, address_of(count)) == none:
            return []
        found = (ctypes.c_void_p * max(count.value, 1))()
        self("listing the devices", name, *arguments, len(found), address_of(found), None)
        return [each for each in found if each]

    def _is_cpu(self, device: int) -> bool:
        return bool(self.number("clGetDeviceInfo", device, _TYPE) & _CPU)

    def number(self, name: str, handle: int, what: int) -> int:
        """What a query says, of up to 64 bits."""
        into = ctypes.c_uint64()
        self(f"asking for {what:#x}", name, handle, what, ctypes.sizeof(into), address_of(into), None)
        return into.value

    def text(self, name: str, handle: int, what: int) -> str:
        into = ctypes.create_string_buffer(1024)
        self(f"asking for {what:#x}", name, handle, what, len(into), address_of(into), None)
        return into.value.decode(errors="replace").strip()

    def created(self, doing: str, name: str, *arguments: Any) -> int:
        """The object that a call makes."""
        code = ctypes.c_int32(self.exiting if self.ended else self.missing)
        function = None if self.ended else self.functions.get(name)
        found = function and function(*arguments, address_of(code))
        if not found:
            raise self.error(doing, name, code.value)
        return found

    def complete(self, doing: str, event: int) -> bool:
        status = ctypes.c_int32(self.number("clGetEventInfo", event, _EVENT_STATUS)).value
        if status < 0:
            raise self.error(doing, "the work before", status)
        return status == COMPLETE

    @cached_property
    def queue_calls(self) -> QueueCalls:
        """A point is completed by the callback of a marker. Nobody promises which callback comes first."""
        steps = ("clEnqueueMarkerWithWaitList", "clSetEventCallback", "clFlush", "clReleaseEvent")
        marker, callback, flush, release = map(self.address, steps)
        native = _native.QueueCalls(
            (
                (marker, ("queue", 0, 0, "out")),
                (callback, ("made", COMPLETE, "function", "data")),
                (flush, ("queue",)),
                (release, ("made",), True),
            ),
            host_data=2,
        )
        others = {self.address(name): name for name in self.functions}
        return QueueCalls(native, steps[1], others=others, host_runs_late=True)

    def adopted(self, queue: int) -> tuple[Cpu, int]:
        """The device and the context of another library's queue."""
        self.start()
        device, call = self.number("clGetCommandQueueInfo", queue, _QUEUE_DEVICE), ("clGetCommandQueueInfo", queue)
        found, why = next((cpu for cpu in self.gpus() if cpu.handle == device), None), ""
        if found is None:
            why = "the loader here does not list its device (OCL_ICD_VENDORS)" if self._is_cpu(device) else NO_ADDRESS
        elif self.number(*call, _QUEUE_PROPERTIES) & _OUT_OF_ORDER:
            why = "it is out-of-order, and there PoCL (3.0) runs what a barrier should hold back"
        if found is None or why:
            name = self.text("clGetDeviceInfo", device, _NAME)
            raise FeatureNotSupportedError(f"this queue, on {name}, cannot be used: {why}")
        return found, self.number(*call, _QUEUE_CONTEXT)
