"""The engine for vendors whose drivers have virtual memory calls: the stream engine and the objects that such memory
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from xpushare.adapters.stream import engine
from xpushare.adapters.stream.slot_pages import always
from xpushare.adapters.virtual_memory.hooks import VirtualMemory
from xpushare.adapters.virtual_memory.peer_access import PeerAccess

__all__ = ["Engine"]


@final
class Engine(engine.Engine):
    def __init__(
        self,
        backend: str,
        devices: Callable[[], Sequence[VirtualMemory]],
        spare_streams: int = 0,
        registered_slots: Callable[[Any], bool] = always,
    ) -> None:
        self.peer_access = PeerAccess(devices)
        super().__init__(
            backend, devices, self.peer_access, spare_streams=spare_streams, registered_slots=registered_slots
        )
        self.read_only: dict[int, bool] = {}  # ordinal -> whether the device maps memory read-only, once it was tried
