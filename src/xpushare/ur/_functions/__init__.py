"""The functions of `xpushare.ur`. Each function is declared together with its body, a thin layer over `xpushare.core`
and the classes of `xpushare.objects`.

`_derived` makes the public functions from these declarations. A public function checks and converts its arguments
before it calls the body. A body therefore gets ints within their range, tuples for sequences, 0 for a null pointer, and
handles that are valid, of the right class, and of devices that belong to the context. The public function also turns
errors of `xpushare.core` into `URError`.
"""

from __future__ import annotations

from xpushare.ur._functions import buffer, context, device, enqueue, event, ipc, native, queue, usm, virtual_mem
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
    "native",
    "queue",
    "usm",
    "virtual_mem",
]
