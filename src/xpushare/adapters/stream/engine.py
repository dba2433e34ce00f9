"""The objects of the stream engine that all queues and memories of one vendor share."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from xpushare.adapters.host.memory import Calls
from xpushare.adapters.stream.background import Teardown, Watch
from xpushare.adapters.stream.hooks import Device
from xpushare.adapters.stream.slot_pages import SlotPages, always
from xpushare.adapters.stream.spare_streams import SpareStreams

__all__ = ["Engine", "OperandAccess"]


class OperandAccess(abc.ABC):
    """Gives a device access to memory that operations in its queues use, if the device cannot reach that memory yet."""

    @abc.abstractmethod
    def lacking(self, ordinal: int, address: int, nbytes: int) -> bool:
        """Return whether the device lacks access to a mapping of these bytes, so that `ensure` is needed. Does not ask
        the driver.
        """

    @abc.abstractmethod
    def ensure(self, ordinal: int, address: int, nbytes: int) -> None:
        """Give a device access to the mappings that contain these bytes. Called with the device current."""


class Engine:
    """The objects of the stream engine that all queues and memories of one vendor share.

    `backend` is used in the names of the engine's threads and of its log. `devices` returns all devices of the driver,
    by ordinal. `calls` makes the system calls for host memory. `spare_streams` is the number of streams of each device
    that are cached for later queues. `registered_slots` returns whether a device can reach event pages only after the
    pages have been registered with the driver.
    """

    def __init__(
        self,
        backend: str,
        devices: Callable[[], Sequence[Device]],
        operand_access: OperandAccess | None = None,
        calls: Calls | None = None,
        spare_streams: int = 0,
        registered_slots: Callable[[Any], bool] = always,
    ) -> None:
        self.devices = devices
        self.calls = calls or Calls()
        self.operand_access = operand_access
        self.teardown = Teardown(backend, devices)
        self.watch = Watch(backend)
        self.slot_pages = SlotPages(self.teardown, registered_slots)
        self.spare_streams = SpareStreams(self.teardown, spare_streams)
