"""The functions of `xpushare.ur`, each declared with its body, as thin as it can be, over `core` and the object face.

The public functions, which `_derived` makes, call a body with checked arguments: numbers are ints of their range,
sequences are tuples, pointers are 0 for null, handles are alive and of their class, a device is one of its context.
They turn errors of `core` into `URError`.
"""

from __future__ import annotations

from xpushare.ur._functions import (
    buffer,
    context,
    device,
    enqueue,
    event,
    ipc,
    mem,
    native,
    peer,
    physical_mem,
    queue,
    usm,
    virtual_mem,
)
from xpushare.ur._spec import FUNCTIONS, INFOS

__all__ = [
    "FUNCTIONS",
    "INFOS",
    "buffer",
    "context",
    "device",
    "enqueue",
    "event",
    "ipc",
    "mem",
    "native",
    "peer",
    "physical_mem",
    "queue",
    "usm",
    "virtual_mem",
]
