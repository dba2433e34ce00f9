"""The driver contract of devices that run streams: queues and events, and memory for those that use the host's."""

from __future__ import annotations

import abc
from collections.abc import Callable

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
from xpushare.adapters.stream.host_memory import HostMemory
from xpushare.adapters.stream.queue import AdoptedQueues, DeviceQueue
from xpushare.common.errors import FeatureNotSupportedError

__all__ = ["HostStreamAdapter", "StreamAdapter"]


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
