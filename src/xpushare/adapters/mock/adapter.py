"""The adapter of `mock`, a software stream device: the mock driver's devices and streams, with the hooks that the
stream engine calls, and arrays, streams and events of "another library", which play the role that torch's objects play
on GPUs.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final, Literal

from xpushare.adapters.base import (
    DeviceInfo,
    DriverMemory,
    DriverQueue,
    Export,
    Foreign,
    NativeEvent,
    Properties,
)
from xpushare.adapters.host.memory import HostMemory
from xpushare.adapters.host.queue import queue_numbers
from xpushare.adapters.mock.script import CODES, LIBRARY, ScriptedDriver, driver
from xpushare.adapters.stream import hooks
from xpushare.adapters.stream.adapter import HostStreamAdapter
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.hooks import Calls, Feature, Scope
from xpushare.common import system
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare.common.system import boot_id

__all__ = [
    "Device",
    "ForeignArray",
    "Mock",
    "MockEvent",
    "MockSamples",
    "MockStream",
    "Stream",
    "default_stream",
    "host_call",
]


# --- another library --------------------------------------------------------------------------------------------------

_arrays: list[ForeignArray] = []
_streams: dict[int, MockStream] = {}
_defaults: dict[int, MockStream] = {}
_events: weakref.WeakValueDictionary[int, MockEvent] = weakref.WeakValueDictionary()
_calls: dict[int, Callable[[], object]] = {}  # functions that streams are yet to call
_call_numbers = itertools.count(1)
_identities = itertools.count(1)


class ForeignArray:
    """An array of "another library", whose memory the mock driver can export. It corresponds to a torch tensor
    on CUDA.
    """

    def __init__(self, nbytes: int) -> None:
        self.memory = HostMemory.allocate(driver(), nbytes)
        self.lent = _Lent(self.memory)
        self.nbytes = nbytes
        self.identity = next(_identities)
        _arrays.append(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.memory.address, False), "version": 3}

    def free(self) -> None:
        """Free the memory as the other library's allocator would. The block may then serve any other array."""
        _arrays.remove(self)
        self.memory.release()


class _Lent(DriverMemory):
    """The memory of another library's array, in the form in which the adapter reports it. Releasing this object does
    not free the memory.
    """

    host_accessible = True

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self.address = memory.address
        self.nbytes = memory.nbytes

    def export(self, read_only: bool) -> Export:
        return self._memory.export(read_only)

    def release(self) -> None:
        pass


def _run(number: int) -> None:
    _calls.pop(number)()


_call: Final = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(_run)


def host_call(handle: int, function: Callable[[], object]) -> tuple[int, ...]:
    """Return the arguments of the mock driver's function `host`, with which a stream calls a Python function."""
    number = next(_call_numbers)
    _calls[number] = function
    return handle, ctypes.cast(_call, ctypes.c_void_p).value or 0, number


class MockEvent:
    """An event of "another library" on a mock device. The event is complete when `function` returns. The stream that
    waits for the event calls the function.
    """

    def __init__(self, function: Callable[[], object], ordinal: int = 0) -> None:
        self.function = function
        self.ordinal = ordinal
        self.handle = next(_call_numbers)
        self.destroyed = False
        _events[self.handle] = self

    def destroy(self) -> None:
        self.destroyed = True


class MockStream:
    """A stream of "another library" on a mock device. It corresponds to a torch stream on CUDA. `number` is the number
    that DLPack uses for the stream.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.handle = driver().new_stream("making another library's stream", ordinal)
        self.number = next(queue_numbers)
        _streams[self.number] = self
        destroy = driver().library.ss_stream_destroy
        weakref.finalize(self, destroy, ctypes.c_uint64(self.handle)).atexit = False

    def call(self, function: Callable[[], object]) -> None:
        """Queue a Python function as work of the other library."""
        driver().call("calling", "host", *host_call(self.handle, function))

    def synchronize(self) -> None:
        """Wait for the work queued so far, as the library would."""
        driver().call("synchronizing", "device_synchronize", self.ordinal)

    def close(self) -> None:
        """End the library's use of the stream. The stream is destroyed after its last use."""
        _streams.pop(self.number, None)


def default_stream(ordinal: int) -> MockStream:
    """Return the library's default stream."""
    return _defaults.get(ordinal) or _defaults.setdefault(ordinal, MockStream(ordinal))


class MockSamples:
    """The arrays and streams of "another library" that the conformance suite uses on mock devices."""

    def array(self, device: str, content: bytes) -> ForeignArray:
        found = ForeignArray(len(content))
        ctypes.memmove(found.memory.address, content, len(content))
        return found

    def content(self, array: ForeignArray) -> bytes:
        return ctypes.string_at(array.memory.address, array.nbytes)

    def forget(self, array: ForeignArray) -> None:
        _arrays.remove(array)

    def stream(self, device: str) -> MockStream:
        return MockStream(int(device.partition(":")[2]))


# --- the hooks of the stream engine -----------------------------------------------------------------------------------


class Device:
    """A device whose memory is the host's."""

    def __init__(self, driver: ScriptedDriver, ordinal: int) -> None:
        self.codes = CODES
        self.driver = driver
        self.ordinal: int = ordinal
        self._used = False

    def __str__(self) -> str:
        return f"mock device {self.ordinal}"

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return self.driver.error(doing, call, code)

    def current(self) -> Scope:
        self._used = True
        return nullcontext()

    def active(self) -> bool:
        return self._used

    def lacking(self, feature: Feature) -> str:
        return ""

    def drain(self) -> None:
        self.driver.call("draining", "device_synchronize", self.ordinal)

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        self.driver.call(doing, "register", address)

    def reached(self, doing: str, address: int) -> int:
        return address

    def unreach(self, doing: str, address: int) -> None:
        self.driver.call(doing, "unregister", address)


class Stream:
    """A stream whose work runs on a thread. After some operations, the engine queues a *mark*, to learn when the stream
    has finished them. The mock driver's marks are its events.
    """

    fill_units: Sequence[int] = (1,)
    around_calls: Callable[[], Scope] | None = None

    def __init__(self, device: Device, handle: int, owner: object | None) -> None:
        self.device: hooks.Device = device
        self.current: Callable[[], Scope] = device.current
        self.relaxed: Callable[[], Scope] = device.current
        self.handle: int = handle
        self.owner = owner
        self.ordering: Literal["device", "shared", "held"] = device.driver.ordering(device.ordinal)
        self.calls = device.driver.queue_calls
        self._driver = device.driver

    def _do(self, doing: str, name: str, *arguments: int) -> Calls:
        if self.ordering != "device":
            return [(self._driver.address(name), *arguments)]
        self._driver.call(doing, name, *arguments)
        return None

    def new_mark(self, doing: str) -> int:
        return self._driver.made(doing, "mark_create")

    def mark(self, doing: str, mark: int) -> Calls:
        return self._do(doing, "mark_record", mark, self.handle)

    def query(self, doing: str, mark: int) -> bool:
        return self._driver.call(doing, "mark_query", mark)

    def busy(self, doing: str) -> bool:
        return not self._driver.call(doing, "stream_query", self.handle)

    def check_device(self, doing: str) -> None:
        self._driver.call(doing, "device_check", self.device.ordinal)

    def new_stamp(self, doing: str) -> None:
        return None  # the driver does not time its work

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return self._do(doing, "copy", self.handle, dst, src, nbytes)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return self._do(doing, "fill", self.handle, dst, pattern[0], times)

    def wait_native(self, doing: str, event: MockEvent) -> Calls:
        return self._do(doing, "host", *host_call(self.handle, event.function))

    def record_native(self, doing: str) -> NativeEvent:
        raise FeatureNotSupportedError("this device has no driver events to share: use xs.ipc.event.get")

    def destroy(self, marks: Sequence[int]) -> None:
        for mark in marks:
            quietly(self._driver.call, "", "mark_destroy", mark)
        if self.owner is None:
            quietly(self._driver.call, "", "stream_destroy", self.handle)
        else:
            self.owner = ()


# --- the driver contract ----------------------------------------------------------------------------------------------

DEVICES: Final = 2
_MISSING: Final = {
    Aspect.enforced_read_only: "the mock driver maps memfds, which an importer can map again",
    Aspect.ext_oneapi_per_event_profiling: "the stream engine does not time its signals",
}
_HELD: Final = {
    Aspect.device_ordering: "the queues of this device hold what is behind a wait",
    Aspect.adopted_queues: "another library's stream takes work that cannot be held, and this device waits for nothing",
}


class _Owned:
    """An event that is destroyed with this object."""

    def __init__(self, event: MockEvent) -> None:
        self._event = event

    def __del__(self) -> None:
        self._event.destroy()


class Mock(HostStreamAdapter):
    """The adapter of the two mock devices, whose streams are threads of this process."""

    backend = "mock"

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Start with no threads and no resources. A forked child calls this again."""
        found = self._devices = [Device(driver(), ordinal) for ordinal in range(DEVICES)]
        super().__init__(Engine(self.backend, lambda: found, calls=driver()))

    def device(self, info: DeviceInfo) -> Device:
        return self._devices[info.ordinal]

    def devices(self) -> list[DeviceInfo]:
        found = []
        for ordinal in range(DEVICES if LIBRARY.exists() else 0):
            identity = str(uuid.uuid5(uuid.NAMESPACE_OID, f"xpushare/mock/{boot_id().hex()}/{ordinal}"))
            found.append(DeviceInfo(self.backend, ordinal, f"Mock device {ordinal}", identity, "accelerator", "1.0"))
        return found

    def why_none(self) -> str:
        return f"{LIBRARY.name} was not built: see CONTRIBUTING.md"

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        missing = _MISSING | _HELD if driver().ordering(device.ordinal) == "held" else _MISSING
        return Support("no", missing[aspect]) if aspect in missing else Support("yes", "the mock driver says so")

    def properties(self, device: DeviceInfo) -> Properties:
        return Properties("xpushare", 1, 1 << 40, 1 << 39, False)

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        return max(1 << 16, system.page_nbytes())

    # --- memory ----------------------------------------------------------------------------------------------

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        for array in _arrays:
            if array.memory.address <= address < array.memory.address + array.nbytes:
                return Foreign(array.lent, address - array.memory.address, self.devices()[0], "device", array.identity)
        return None

    # --- queues ----------------------------------------------------------------------------------------------

    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        return Stream(self.device(info), driver().new_stream(doing, info.ordinal), None)

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        if not isinstance(native, MockStream):
            return None
        info = self.devices()[native.ordinal]
        stream = Stream(self.device(info), native.handle, native)
        return info, self.adopted.queue(native.number, stream, native is default_stream(native.ordinal))

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        if number is None:
            return getattr(array, "mock_stream", None) or default_stream(device.ordinal)
        return _streams.get(number)

    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        return (self.devices()[native.ordinal], native) if isinstance(native, MockEvent) else None

    def native(self, device: DeviceInfo, what: Literal["platform", "device", "context"]) -> int:
        return {"platform": 0x100, "device": 0x200 + device.ordinal, "context": 0x300}[what]

    def native_queue(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[DeviceInfo, DriverQueue]:
        stream = next((each for each in _streams.values() if each.handle == handle), None)
        found = None if stream is None else self.adopt_queue(stream)
        if stream is None or found is None:
            raise InvalidArgumentError(f"{handle:#x} is not a stream")
        if owned:
            stream.close()  # it is destroyed with its last user
        return found

    def native_event(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[MockEvent, object]:
        event = _events.get(handle)
        if event is None:
            raise InvalidArgumentError(f"{handle:#x} is not an event")
        return event, _Owned(event) if owned else event

    def samples(self) -> MockSamples:
        return MockSamples()
