"""Lists devices and reports what they support, for all vendors whose drivers are called through ctypes."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.stream.library import LibraryDriver
from xpushare.adapters.stream.listing import Found, Listed, Listing
from xpushare.adapters.virtual_memory.adapter import VirtualMemoryAdapter
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.hooks import VirtualMemory
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import XpuShareError

__all__ = ["LibraryAdapter"]

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
