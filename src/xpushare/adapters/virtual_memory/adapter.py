"""The driver contract of devices that provide the hooks of `VirtualMemory`: the methods for memory, and the list of
devices of vendors whose drivers are called through ctypes.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from xpushare.adapters.base import DeviceInfo, DriverMemory, DriverPhysical, DriverRange, Import, UsmKind
from xpushare.adapters.stream.adapter import StreamAdapter
from xpushare.adapters.stream.driver import LibraryDriver
from xpushare.adapters.stream.listing import Found, Listed, Listing
from xpushare.adapters.stream.memory import HostMemory
from xpushare.adapters.virtual_memory.engine import Engine, VirtualMemory
from xpushare.adapters.virtual_memory.memory import DeviceMemory, import_all, import_memory
from xpushare.adapters.virtual_memory.ranges import AddressRange, PhysicalPages
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import XpuShareError

__all__ = ["LibraryAdapter", "VirtualMemoryAdapter"]


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


G = TypeVar("G", bound=VirtualMemory)


class LibraryAdapter(Listed, VirtualMemoryAdapter, Generic[G]):
    """An adapter whose driver is a library called through ctypes. Until this process starts the library, a child
    process lists the devices.
    """

    maps_memfds = False  # the driver has to know their pages
    missing: ClassVar[Mapping[Aspect, str]]  # the aspects that no device has, and why

    def __init__(
        self,
        engine: Engine,
        driver: LibraryDriver[Any],
        variables: Sequence[str],
        describe: Callable[[int, Any], DeviceInfo],
        ask: Callable[[], Found],
    ) -> None:
        """Make the adapter. `variables`, `describe` and `ask` are passed to `Listing`."""
        super().__init__(engine)
        self._gpus = driver
        self.listing = Listing(driver, variables, describe, ask)
        driver.end_after(engine.teardown)

    def device(self, info: DeviceInfo) -> G:
        found: G = self._gpus.gpu(info)
        return found

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect in self.missing:
            return Support("no", self.missing[aspect])
        try:
            return self.supported(self.device(device), aspect)
        except XpuShareError as error:
            return Support("unknown", f"the driver cannot be asked: {error}")

    @abc.abstractmethod
    def supported(self, gpu: G, aspect: Aspect) -> Support:
        """Return whether a device supports an aspect. This is called only for aspects that `missing` does not contain.
        May ask the driver.
        """
