"""The loader and its devices in this process, started when they are first needed."""

from __future__ import annotations

import ctypes
import uuid
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from xpushare import _native
from xpushare._errors import FeatureNotSupportedError
from xpushare._system import boot_id
from xpushare.adapters.opencl import _bindings as cl
from xpushare.adapters.opencl._bindings import Code, Info
from xpushare.adapters.opencl._stream import Event
from xpushare.adapters.stream.hooks import Codes, QueueCalls
from xpushare.adapters.stream.library import LibraryDriver, address_of

if TYPE_CHECKING:
    from xpushare.adapters.opencl._device import Cpu

__all__ = ["CODES", "NO_ADDRESS", "Driver"]

CODES: Final = Codes(
    out_of_memory=frozenset({Code.MEM_OBJECT_ALLOCATION_FAILURE, Code.OUT_OF_RESOURCES, Code.OUT_OF_HOST_MEMORY}),
    unsupported=frozenset({Code.INVALID_OPERATION}),
    fatal=frozenset({Code.DEVICE_NOT_AVAILABLE}),
    captured=frozenset(),
    wrong_size=frozenset(),
    advice={Code.INVALID_CONTEXT: "keep the context of a queue alive as long as the queue"},
)
NO_ADDRESS: Final = (
    "the memory of such a device has no address that another process could map, so use it by its vendor's own backend "
    "(cuda, level_zero)"
)


@final
class Driver(LibraryDriver["Cpu"]):
    """Calls the loader."""

    codes = CODES
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
            self.functions = cl.load()
        except OSError as error:
            raise FeatureNotSupportedError(f"starting OpenCL: the loader cannot be loaded: {error}") from error
        found: dict[int, Cpu] = {}  # a driver may be named twice
        names: Counter[str] = Counter()
        for platform in self._listed("clGetPlatformIDs", none=Code.PLATFORM_NOT_FOUND_KHR):
            of = self.text("clGetPlatformInfo", platform, Info.PLATFORM_NAME)
            for handle in self._listed("clGetDeviceIDs", platform, cl.EVERY_TYPE, none=Code.DEVICE_NOT_FOUND):
                name = f"{self.text('clGetDeviceInfo', handle, Info.DEVICE_NAME)} of {of}"
                if not self._is_cpu(handle):
                    self.refused.append(name)
                elif handle not in found:
                    identity = f"xpushare/opencl/{boot_id().hex()}/{name}/{names[name]}"
                    names[name] += 1
                    given = str(uuid.uuid5(uuid.NAMESPACE_OID, identity))
                    found[handle] = self._make(self, len(found), handle, given)
        return list(found.values())

    def _listed(self, name: str, *arguments: int, none: int) -> list[int]:
        count = ctypes.c_uint32()
        if self.code(name, *arguments, 0, None, address_of(count)) == none:
            return []
        found = (ctypes.c_void_p * max(count.value, 1))()
        self("listing the devices", name, *arguments, len(found), address_of(found), None)
        return [each for each in found if each]

    def _is_cpu(self, device: int) -> bool:
        return bool(self.number("clGetDeviceInfo", device, Info.DEVICE_TYPE) & cl.TYPE_CPU)

    def number(self, name: str, handle: int, what: Info) -> int:
        """What a query says, of up to 64 bits."""
        into = ctypes.c_uint64()
        self(f"asking for {what.name}", name, handle, what, ctypes.sizeof(into), address_of(into), None)
        return into.value

    def text(self, name: str, handle: int, what: Info) -> str:
        into = ctypes.create_string_buffer(1024)
        self(f"asking for {what.name}", name, handle, what, len(into), address_of(into), None)
        return into.value.decode(errors="replace").strip()

    def created(self, doing: str, name: str, *arguments: Any) -> int:
        """The object that a call makes."""
        code = ctypes.c_int32(self.exiting if self.ended else self.missing)
        function = None if self.ended else self.functions.get(name)
        found = function and function(*arguments, address_of(code))
        if not found:
            raise self.error(doing, name, code.value)
        return found

    def gate(self, doing: str, context: int) -> Event:
        return Event(self, self.created(doing, "clCreateUserEvent", context), is_gate=True)

    def complete(self, doing: str, event: int) -> bool:
        status = ctypes.c_int32(self.number("clGetEventInfo", event, Info.EVENT_COMMAND_EXECUTION_STATUS)).value
        if status < 0:
            raise self.error(doing, "the work before", status)
        return status == cl.COMPLETE

    @cached_property
    def queue_calls(self) -> QueueCalls:
        """A point is completed by the callback of a marker. Nobody promises which callback comes first."""
        steps = ("clEnqueueMarkerWithWaitList", "clSetEventCallback", "clFlush", "clReleaseEvent")
        marker, callback, flush, release = map(self.address, steps)
        native = _native.QueueCalls(
            (
                (marker, ("queue", 0, 0, "out")),
                (callback, ("made", cl.COMPLETE, "function", "data")),
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
        device = self.number("clGetCommandQueueInfo", queue, Info.QUEUE_DEVICE)
        found = next((cpu for cpu in self.gpus() if cpu.handle == device), None)
        if found is None:
            why = "the loader here does not list it (OCL_ICD_VENDORS)" if self._is_cpu(device) else NO_ADDRESS
            name = self.text("clGetDeviceInfo", device, Info.DEVICE_NAME)
            raise FeatureNotSupportedError(f"this queue is on {name}, which cannot be used: {why}")
        if self.number("clGetCommandQueueInfo", queue, Info.QUEUE_PROPERTIES) & cl.OUT_OF_ORDER:
            raise FeatureNotSupportedError(
                "this queue is out-of-order, and there PoCL (3.0) runs what a barrier should hold back: use one in order"
            )
        return found, self.number("clGetCommandQueueInfo", queue, Info.QUEUE_CONTEXT)
