"""`mock`: a device for tests, and the worked example of an adapter. Exists only when a selector names it.

Two devices over host memory that really is shared, behind a driver that follows a script: every call is counted, any
call can be made to fail or to stall. The script belongs to this process: `driver().fail("Mapping")`,
`driver().stall("memfd")`.
"""

from __future__ import annotations

import ctypes
import threading
import uuid
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from xpushare import _system
from xpushare._aspects import Aspect, Support
from xpushare._errors import DeviceError
from xpushare._native import Domain
from xpushare._system import boot_id
from xpushare.adapters.base import (
    Adapter,
    DeviceInfo,
    DriverMemory,
    DriverPhysical,
    DriverQueue,
    DriverRange,
    Export,
    Foreign,
    Form,
    Import,
    Properties,
    Same,
    UsmKind,
)
from xpushare.adapters.host.memory import Calls, HostMemory, HostPhysical, HostRange
from xpushare.adapters.host.queue import HostQueue

__all__ = ["ForeignArray", "Mock", "MockSamples", "MockStream", "ScriptedDriver", "driver"]

DEVICES: Final = 2


class ScriptedDriver(Calls):
    """Makes the calls, counts them, and does to each what the script says."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._failures: dict[str, tuple[int, BaseException]] = {}
        self._stalls: dict[str, threading.Event] = {}

    def __call__(self, name: str, *arguments: Any) -> Any:
        with self._lock:
            self.counts[name] += 1
            number = self.counts[name]
            at, error = self._failures.get(name, (0, None))
            stall = self._stalls.get(name)
        if stall is not None:
            stall.wait()
        if error is not None and number == at:
            raise error
        return super().__call__(name, *arguments)

    def fail(self, name: str, error: BaseException | None = None, *, nth: int = 1) -> None:
        """Make the `nth` call of `name` from now on raise `error` (default: `DeviceError`, mock's number 1)."""
        failure = error or DeviceError(f"{name}: MOCK_ERROR (1), as the script says", native=1)
        with self._lock:
            self._failures[name] = (self.counts[name] + nth, failure)

    @contextmanager
    def stall(self, name: str) -> Generator[None]:
        """Calls of `name` do not return while this is open."""
        release = threading.Event()
        with self._lock:
            self._stalls[name] = release
        try:
            yield
        finally:
            with self._lock:
                del self._stalls[name]
            release.set()

    def reset(self) -> None:
        """Forget the script and the counts."""
        with self._lock:
            self._failures.clear()
            self.counts.clear()


class ForeignArray:
    """An array of "another library", whose memory the mock driver can export: what torch's tensors are to CUDA."""

    def __init__(self, nbytes: int) -> None:
        self.memory = HostMemory.allocate(_driver, nbytes)
        self.nbytes = nbytes
        _foreign.append(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.memory.address, False), "version": 3}

    def free(self) -> None:
        """What the other library's allocator does: the block may be anybody's next."""
        _foreign.remove(self)
        self.memory.release()


class _StreamQueue(HostQueue):
    """The stream's own queue: giving up what was adopted leaves the stream as it is."""

    def release(self) -> None:
        pass


class MockStream:
    """A stream of "another library" on a mock device, as torch's are to CUDA; `number` is what DLPack calls it by."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.queue = _StreamQueue()
        self.number = self.queue.number
        _streams[self.number] = self

    def close(self) -> None:
        """Ends the stream, as its library would."""
        _streams.pop(self.number, None)
        HostQueue.release(self.queue)


def _default_stream(ordinal: int) -> MockStream:
    found = _defaults.get(ordinal)
    if found is None:
        found = _defaults.setdefault(ordinal, MockStream(ordinal))
    return found


class MockSamples:
    """Arrays and streams of "another library", as the conformance suite asks for them."""

    def array(self, device: str, content: bytes) -> ForeignArray:
        found = ForeignArray(len(content))
        ctypes.memmove(found.memory.address, content, len(content))
        return found

    def content(self, array: ForeignArray) -> bytes:
        return ctypes.string_at(array.memory.address, array.nbytes)

    def forget(self, array: ForeignArray) -> None:
        _foreign.remove(array)

    def stream(self, device: str) -> MockStream:
        return MockStream(int(device.partition(":")[2]))


class _ForeignMemory(DriverMemory):
    """The driver's view of it; releasing frees nothing."""

    host_accessible = True

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self.address = memory.address
        self.nbytes = memory.nbytes

    def export(self, read_only: bool) -> Export:
        return self._memory.export(read_only)

    def release(self) -> None:
        pass


class Mock(Adapter):
    """The adapter: each method is one or two scripted calls."""

    backend = "mock"
    maps_memfds = False  # every call is one that the script can make fail

    def devices(self) -> list[DeviceInfo]:
        return [
            DeviceInfo(
                self.backend,
                ordinal,
                f"Mock device {ordinal}",
                str(uuid.uuid5(uuid.NAMESPACE_OID, f"xpushare/mock/{boot_id().hex()}/{ordinal}")),
                "accelerator",
                "1.0",
            )
            for ordinal in range(DEVICES)
        ]

    def why_none(self) -> str:
        return "mock is always there"

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect is Aspect.enforced_read_only:
            return Support("no", "the mock driver maps memfds, which an importer can map again")
        return Support("yes", "the mock driver says so")

    def properties(self, device: DeviceInfo) -> Properties:
        return Properties("xpushare", 1, 1 << 40, 1 << 39, False)

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        return max(1 << 16, _system.page_nbytes())

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory:
        return HostMemory.allocate(_driver, nbytes)

    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory:
        return HostMemory.imported(_driver, what)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        return {Form.MEMFD: Same.HOST}

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        for array in _foreign:
            start = array.memory.address
            if start <= address < start + array.nbytes:
                return Foreign(_ForeignMemory(array.memory), address - start, self.devices()[0], "device", id(array))
        return None

    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> DriverPhysical:
        return HostPhysical.create(_driver, nbytes)

    def import_physical(self, device: DeviceInfo, what: Import) -> DriverPhysical:
        return HostPhysical.imported(_driver, what)

    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> DriverRange:
        return HostRange(_driver, nbytes, address, self.granularity(device, False))

    def queue(self, device: DeviceInfo) -> DriverQueue:
        return HostQueue()

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        return (self.devices()[native.ordinal], native.queue) if isinstance(native, MockStream) else None

    def samples(self) -> MockSamples:
        return MockSamples()

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        if number is None:
            return getattr(array, "mock_stream", None) or _default_stream(device.ordinal)
        return _streams.get(number)

    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        return None

    def settle(self) -> None:
        pass  # a queue's thread lets go at once

    def adopt_domain(self, device: DeviceInfo, domain: Domain) -> None:
        pass


_driver = ScriptedDriver()
_foreign: list[ForeignArray] = []
_streams: dict[int, MockStream] = {}
_defaults: dict[int, MockStream] = {}


def driver() -> ScriptedDriver:
    """The scripted driver of this process."""
    return _driver
