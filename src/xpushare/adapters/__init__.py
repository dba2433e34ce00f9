"""The adapters by name. A new vendor is one module here that fills in `base.py`, and its name in `BACKENDS`."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Final

from xpushare.adapters.base import Adapter

__all__ = ["BACKENDS", "SELECTED_ONLY", "adapter", "loaded"]

# In the order in which devices are listed; all of these exist for a process unless ONEAPI_DEVICE_SELECTOR says
# otherwise.
BACKENDS: Final = ("cuda", "native_cpu")
# Exist only when a selector names them.
SELECTED_ONLY: Final = ("mock",)

_adapters: dict[str, Adapter] = {}
_lock = threading.Lock()


def loaded() -> list[Adapter]:
    """The adapters that this process has used."""
    return list(_adapters.values())


def adapter(backend: str) -> Adapter:
    """The adapter of that name; made once a process."""
    found = _adapters.get(backend)
    if found is None:
        with _lock:
            found = _adapters.get(backend)
            if found is None:
                module = importlib.import_module(f"xpushare.adapters.{backend}")
                found = _adapters[backend] = module.make()
    return found


def _renew_lock() -> None:
    """In a forked child: whoever held it is not there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
