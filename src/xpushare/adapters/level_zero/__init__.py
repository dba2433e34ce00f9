"""`level_zero`: Intel GPUs through the Level Zero loader (`libze_loader.so.1`). The loader is called through ctypes,
without compiled code.

Device memory is exported as a file descriptor. Host memory consists of memfds that the driver uses in place. Events are
words in pages of memfds, which in-order command lists write and wait on. docs/backends/level_zero.md describes how
drivers behave where the specification is silent.

This module recognises Level Zero's objects without a driver: whether it is in use here, and other libraries' queues and
events. It imports no driver and no binding, so any module may import it.
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
    """Return whether this process has loaded the Level Zero loader. If it has not, no pointer here is Level Zero's."""
    return library_loaded(LOADER)


def ipc_event_of(native: object) -> bytes | None:
    """Return the handle if it may be the IPC handle of another process's event (ze_ipc_event_counter_based_handle_t).
    Such a handle does not describe itself. Unified Runtime's IPC handles of events have the same form.
    """
    return native if isinstance(native, bytes) and len(native) == _IPC_EVENT else None


def sycl_queue_of(native: object) -> object | None:
    """Return the queue if it is a SYCL queue (dpctl.SyclQueue, or an object that behaves like one) on a Level Zero
    device. Otherwise return None.
    """
    if not callable(getattr(native, "submit_barrier", None)) or not callable(getattr(native, "wait", None)):
        return None
    backend = getattr(native, "backend", None)  # dpctl.backend_type.level_zero
    return native if getattr(backend, "name", backend) == BACKEND else None
