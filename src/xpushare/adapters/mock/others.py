"""Arrays, streams and events of "another library" on mock devices. They play the role that torch's objects play on
GPUs.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable
from typing import Any, Final

from xpushare.adapters.base import DriverMemory, Export
from xpushare.adapters.host.memory import HostMemory
from xpushare.adapters.host.queue import queue_numbers
from xpushare.adapters.mock.script import driver

__all__ = [
    "ForeignArray",
    "MockEvent",
    "MockSamples",
    "MockStream",
    "default_stream",
    "event_by_handle",
    "found_array",
    "found_stream",
    "host_call",
    "stream_by_handle",
]

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


def found_array(address: int) -> ForeignArray | None:
    for array in _arrays:
        if array.memory.address <= address < array.memory.address + array.nbytes:
            return array
    return None


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


def found_stream(number: int) -> MockStream | None:
    return _streams.get(number)


def stream_by_handle(handle: int) -> MockStream | None:
    return next((each for each in _streams.values() if each.handle == handle), None)


def event_by_handle(handle: int) -> MockEvent | None:
    return _events.get(handle)


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
