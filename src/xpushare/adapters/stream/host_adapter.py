"""The memory part of the driver contract for devices that use the host's memory: pages of memfds, which are registered
with their driver.
"""

from __future__ import annotations

from xpushare.adapters.base import (
    DeviceInfo,
    DriverMemory,
    DriverPhysical,
    DriverRange,
    Form,
    Import,
    Same,
    UsmKind,
)
from xpushare.adapters.host.memory import HostPhysical, HostRange
from xpushare.adapters.stream.adapter import StreamAdapter
from xpushare.adapters.stream.host_memory import HostMemory

__all__ = ["HostStreamAdapter"]


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
