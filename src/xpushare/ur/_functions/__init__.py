"""The functions of `xpushare.ur`. Each function is declared together with its body, a thin layer over `core` and over
the classes of `xpushare.objects`.

The public functions, which `_derived` makes, call a body with checked arguments. Numbers are ints within their range,
sequences are tuples, a null pointer is 0, handles are alive and of their class, and a device belongs to its context.
The public functions turn errors of `core` into `URError`.
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
