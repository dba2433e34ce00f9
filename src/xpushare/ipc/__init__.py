"""Explicit handles, with the names of SYCL's inter-process communication: `get`, `open`, `close` and `put` for each
kind of object.
"""

from xpushare.ipc import event as event
from xpushare.ipc import memory as memory
from xpushare.ipc import physical_memory as physical_memory
from xpushare.sharing.handle import Handle as Handle

__all__ = ["Handle", "event", "memory", "physical_memory"]
