"""The common part of adapters of host memory, including those in other packages: memory, physical memory, ranges,
queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpushare.adapters.host.memory import Calls, HostMemory, HostPhysical, HostRange

if TYPE_CHECKING:
    from xpushare.adapters.host.queue import HostQueue

__all__ = ["Calls", "HostMemory", "HostPhysical", "HostQueue", "HostRange"]


def __getattr__(name: str) -> object:
    if name != "HostQueue":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xpushare.adapters.host.queue import HostQueue

    return HostQueue
