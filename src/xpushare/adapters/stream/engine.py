"""The parts of the engine that all objects of one vendor share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from xpushare.adapters.stream.background import Teardown, Watch
from xpushare.adapters.stream.hooks import VirtualMemory
from xpushare.adapters.stream.peer_access import PeerAccess
from xpushare.adapters.stream.slot_pages import SlotPages

__all__ = ["Engine"]


@final
class Engine:
    """`backend` names its threads and its log; `devices` returns all devices of the driver, by ordinal."""

    def __init__(self, backend: str, devices: Callable[[], Sequence[VirtualMemory]]) -> None:
        self.devices = devices
        self.teardown = Teardown(backend, devices)
        self.watch = Watch(backend)
        self.slot_pages = SlotPages(self.teardown)
        self.peer_access = PeerAccess(devices)
        self.read_only: dict[int, bool] = {}  # ordinal -> whether the device maps memory read-only, once it was tried
