"""The driver contract of devices that run streams: queues and events, and memory for those that use the host's."""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Callable
from typing import Any, Final, final

from xpushare._native import Domain
from xpushare.adapters.base import (
    Adapter,
    DeviceInfo,
    DriverMemory,
    DriverPhysical,
    DriverQueue,
    DriverRange,
    Form,
    Import,
    Same,
    UsmKind,
)
from xpushare.adapters.host.memory import HostPhysical, HostRange
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.hooks import Device, Stream
from xpushare.adapters.stream.memory import HostMemory
from xpushare.adapters.stream.queue import AdoptedQueues, DeviceQueue
from xpushare.common.errors import FeatureNotSupportedError

__all__ = ["DriverSamples", "HostStreamAdapter", "StreamAdapter"]


class StreamAdapter(Adapter):
    """An adapter for devices that run streams."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.look_after = engine.teardown.look_after
        self.after_work = self._after_work
        self.adopted = AdoptedQueues(engine)

    def _after_work(self, info: DeviceInfo, then: Callable[[], object]) -> None:
        self.engine.teardown.submit(self.device(info), then)

    @abc.abstractmethod
    def device(self, info: DeviceInfo) -> Device:
        """Return the object that represents a listed device to the stream engine."""

    @abc.abstractmethod
    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        """Create a stream of our own. The work of other streams must not delay its work."""

    def queue(self, device: DeviceInfo) -> DriverQueue:
        stream, marks = self.engine.spare_streams.take(
            self.device(device).ordinal, lambda: self.new_stream(device, "making a queue")
        )
        return DeviceQueue(self.engine, stream, marks)

    def settle(self) -> None:
        self.engine.teardown.settle_queues()

    def adopt_domain(self, device: DeviceInfo, domain: Domain) -> None:
        found = self.device(device)
        if lacking := found.lacking("event slots"):
            raise FeatureNotSupportedError(f"{found} cannot signal or wait for events: it lacks {lacking}")
        self.engine.slot_pages.adopt(domain)


class HostStreamAdapter(StreamAdapter):
    """An adapter for devices that run streams and use the host's memory."""

    maps_memfds = False  # memfds arrive as descriptors, and the engine's calls map them

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory:
        return HostMemory.allocate(self.engine, self.device(device), nbytes)

    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory:
        return HostMemory.imported(self.engine, self.device(device), what)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        return {Form.MEMFD: Same.HOST}

    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> DriverPhysical:
        return HostPhysical.create(self.engine.calls, nbytes)

    def import_physical(self, device: DeviceInfo, what: Import) -> DriverPhysical:
        return HostPhysical.imported(self.engine.calls, what)

    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> DriverRange:
        return HostRange(self.engine.calls, nbytes, address, self.granularity(device, False))

    def reaches(self, device: DeviceInfo, peer: DeviceInfo) -> bool:
        return True


# --- arrays for the conformance suite ---------------------------------------------------------------------------------

_SECONDS: Final = 10.0


@final
class DriverSamples:
    """Implements `xpushare.conformance.samples`, without streams. `make(device, nbytes)` allocates memory. It returns
    an object with the attributes `address`, `nbytes` and `info` (the device).
    """

    def __init__(self, adapter: Adapter, make: Callable[[DeviceInfo, int], Any]) -> None:
        self._adapter = adapter
        self._make = make

    def array(self, device: str, content: bytes) -> Any:
        array = self._make(self._adapter.devices()[int(device.partition(":")[2])], len(content))
        self._copy(array, content)
        return array

    def content(self, array: Any) -> bytes:
        return self._copy(array, None)

    def _copy(self, array: Any, content: bytes | None) -> bytes:
        """Copy `content` into the array, or read the array if `content` is None. Returns the bytes. The copy goes
        through host memory.
        """
        staging = self._adapter.allocate(array.info, "host", array.nbytes)
        queue = self._adapter.queue(array.info)
        try:
            ends = array.address, staging.address
            if content is not None:
                ctypes.memmove(staging.address, content, array.nbytes)
            else:
                ends = staging.address, array.address
            queue.copy(*ends, array.nbytes, staging)
            queue.synchronize(_SECONDS)
            return ctypes.string_at(staging.address, array.nbytes)
        finally:
            queue.release()
            staging.release()

    def forget(self, array: Any) -> None:
        del array
