"""Recognises what is Level Zero's without a driver: whether it is in use here, and other libraries' queues
and events.

Imports no driver and no binding, so anybody may import it.
"""

from __future__ import annotations

from typing import Final

from xpushare.adapters.vendor import library_loaded

__all__ = ["BACKEND", "INSTALL", "LOADER", "in_use_here", "ipc_event_of", "sycl_queue_of"]

BACKEND: Final = "level_zero"
LOADER: Final = "libze_loader.so.1"
INSTALL: Final = "install the loader and Intel's driver: apt install libze1 libze-intel-gpu1 (intel-compute-runtime)"
_IPC_EVENT: Final = 64  # bytes


def in_use_here() -> bool:
    """Whether somebody in this process has loaded the Level Zero loader. If not, no pointer here is Level Zero's."""
    return library_loaded(LOADER)


def ipc_event_of(native: object) -> bytes | None:
    """The handle if it may be another process's event: ze_ipc_event_counter_based_handle_t, which says nothing of
    itself. Unified Runtime's IPC handles of events are the same.
    """
    return native if isinstance(native, bytes) and len(native) == _IPC_EVENT else None


def sycl_queue_of(native: object) -> object | None:
    """The queue if it is SYCL's (dpctl.SyclQueue, or what behaves as one) on a device of Level Zero; else None."""
    if not callable(getattr(native, "submit_barrier", None)) or not callable(getattr(native, "wait", None)):
        return None
    backend = getattr(native, "backend", None)  # dpctl.backend_type.level_zero
    return native if getattr(backend, "name", backend) == BACKEND else None
