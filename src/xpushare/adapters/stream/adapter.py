"""The driver contract, as far as the engine and the hooks fill it in."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable

from xpushare._errors import FeatureNotSupportedError
from xpushare._native import Domain
from xpushare.adapters.base import (
    Adapter,
    DeviceInfo,
    DriverMemory,
    DriverPhysical,
    DriverQueue,
    DriverRange,
    Import,
    UsmKind,
)
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.hooks import Stream, VirtualMemory
from xpushare.adapters.stream.host_memory import HostMemory
from xpushare.adapters.stream.memory import DeviceMemory, import_memory
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.adapters.stream.ranges import AddressRange, PhysicalPages

__all__ = ["StreamAdapter"]


class StreamAdapter(Adapter):
    """An adapter of devices that run streams."""

    engine: Engine  # that the vendor's constructor makes

    @abc.abstractmethod
    def device(self, info: DeviceInfo) -> VirtualMemory:
        """The driver's device that is listed so."""

    @abc.abstractmethod
    def allocate_shared(self, info: DeviceInfo, nbytes: int) -> DriverMemory:
        """Memory that moves between the host and the devices."""

    @abc.abstractmethod
    def open_own(
        self, info: DeviceInfo, kind: int, doing: str, what: Import, description: bytes
    ) -> tuple[int, Callable[[], object]]:
        """Map a peer's memory of a kind that only this vendor has: its address, and what closes it, called with the
        device current. `InvalidHandleError` for a kind that it has not."""

    @abc.abstractmethod
    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        """A stream of ours, which waits for no other."""

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        return self.device(device).granularity(recommended)

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory:
        if kind == "host":
            return HostMemory.allocate(self.engine, self.device(device), nbytes)
        if kind == "shared":
            return self.allocate_shared(device, nbytes)
        return DeviceMemory.allocate(self.engine, self.device(device), nbytes)

    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory:
        return import_memory(self.engine, self.device(device), what, functools.partial(self.open_own, device))

    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> DriverPhysical:
        return PhysicalPages.create(self.device(device), nbytes, enable_ipc)

    def import_physical(self, device: DeviceInfo, what: Import) -> DriverPhysical:
        return PhysicalPages.imported(self.engine, self.device(device), what)

    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> DriverRange:
        return AddressRange(self.engine, self.device(device), nbytes, address)

    def queue(self, device: DeviceInfo) -> DriverQueue:
        return DeviceQueue(self.engine, self.new_stream(device, "making a queue"))

    def settle(self) -> None:
        self.engine.teardown.settle_queues()

    def adopt_domain(self, device: DeviceInfo, domain: Domain) -> None:
        found = self.device(device)
        if lacking := found.lacking("event slots"):
            raise FeatureNotSupportedError(f"{found} cannot signal or wait for events: it lacks {lacking}")
        self.engine.slot_pages.adopt(domain)
