"""Explicit handles, with the function names of SYCL's inter-process communication. Each kind of object has `get`,
`open` and `put`. Memory also has `close`.
"""

from xpushare.ipc import event as event
from xpushare.ipc import memory as memory
from xpushare.ipc import physical_memory as physical_memory
from xpushare.sharing.handle import Handle as Handle

__all__ = ["Handle", "event", "memory", "physical_memory"]
