"""The memory methods of the driver contract, implemented for all vendors whose devices provide the hooks of
`VirtualMemory`.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence

from xpushare.adapters.base import DeviceInfo, DriverMemory, DriverPhysical, DriverRange, Import, UsmKind
from xpushare.adapters.stream.adapter import StreamAdapter
from xpushare.adapters.stream.host_memory import HostMemory
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.hooks import VirtualMemory
from xpushare.adapters.virtual_memory.memory import DeviceMemory, import_all, import_memory
from xpushare.adapters.virtual_memory.ranges import AddressRange, PhysicalPages

__all__ = ["VirtualMemoryAdapter"]


class VirtualMemoryAdapter(StreamAdapter):
    """An adapter for devices that run streams and have virtual memory."""

    least_per_fd = 4096  # a segment each, which is a page at least

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.memory_engine = engine

    @abc.abstractmethod
    def device(self, info: DeviceInfo) -> VirtualMemory: ...
    @abc.abstractmethod
    def allocate_shared(self, info: DeviceInfo, nbytes: int) -> DriverMemory:
        """Allocate memory that moves between the host and the devices."""

    @abc.abstractmethod
    def open_own(self, info: DeviceInfo, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
        """Map a peer's memory of a kind that only this vendor has. Raises `InvalidHandleError` for a kind that the
        vendor does not have.
        """

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        return self.device(device).granularity(recommended)

    def reaches(self, device: DeviceInfo, peer: DeviceInfo) -> bool:
        return self.device(device).reaches(self.device(peer).ordinal)

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory:
        if kind == "host":
            return HostMemory.allocate(self.engine, self.device(device), nbytes)
        if kind == "shared":
            return self.allocate_shared(device, nbytes)
        return DeviceMemory.allocate(self.memory_engine, self.device(device), nbytes)

    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory:
        open_own = functools.partial(self.open_own, device)
        return import_memory(self.memory_engine, self.device(device), what, open_own)

    def import_all(self, device: DeviceInfo, found: Sequence[Import]) -> list[DriverMemory]:
        together = import_all(self.memory_engine, self.device(device), found)
        made: list[DriverMemory] = []
        try:
            for what, mapped in zip(found, together, strict=True):
                made.append(self.import_memory(device, what) if mapped is None else mapped)
        except BaseException:
            for each in (*made, *filter(None, together[len(made) :])):
                each.release()
            raise
        return made

    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> DriverPhysical:
        return PhysicalPages.create(self.device(device), nbytes, enable_ipc)

    def import_physical(self, device: DeviceInfo, what: Import) -> DriverPhysical:
        return PhysicalPages.imported(self.memory_engine, self.device(device), what)

    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> DriverRange:
        return AddressRange(self.memory_engine, self.device(device), nbytes, address)
