"""The common part of adapters of host memory, including those in other packages: memory, physical memory, ranges,
queues.
"""

from __future__ import annotations

from xpushare.adapters.host.memory import Calls, HostMemory, HostPhysical, HostRange
from xpushare.adapters.host.queue import HostQueue

__all__ = ["Calls", "HostMemory", "HostPhysical", "HostQueue", "HostRange"]
