"""The functions of `xpushare.ipc.physical_memory`. They are defined here so that the public module contains no other
names, which editors would offer to users.
"""

from __future__ import annotations

from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.core import physical as _core
from xpushare.core.device import Context, DeviceLike
from xpushare.objects.lifecycle import use
from xpushare.objects.physical_memory import PhysicalMemory, physical_memory_over
from xpushare.sharing.handle import Handle, HandleLike, newest

__all__ = ["get", "open", "put"]


def get(physical_memory: PhysicalMemory, *, context: Context | None = None) -> Handle:
    """Export physical memory, and return a handle of it. (urIPCGetPhysMemHandleExp)

    Args:
        physical_memory: Physical memory that was created with `enable_ipc=True`, or opened from a handle.
        context: The context of the memory, by default the device's own.

    Returns:
        A new handle, valid until `put`.

    Raises:
        InvalidArgumentError: The memory was created without `enable_ipc=True`, or is closed.
        FeatureNotSupportedError: The device cannot share physical memory.
        ForkError: The memory belongs to the parent of this process.

    Examples:
        >>> pages = xs.PhysicalMemory(xs.Device("cpu").memory_granularity(), "cpu", enable_ipc=True)
        >>> handle = xs.ipc.physical_memory.get(pages)
        >>> handle.kind
        'physical_memory'
        >>> xs.ipc.physical_memory.put(handle)
    """
    if not isinstance(physical_memory, PhysicalMemory):
        raise InvalidArgumentError(
            f"ipc.physical_memory.get takes a PhysicalMemory, not {type(physical_memory).__name__}"
        )
    return _core.get(use(physical_memory), context)


def open(h: HandleLike, *, device: DeviceLike | None = None, context: Context | None = None) -> PhysicalMemory:
    """Open a handle of physical memory. (urIPCOpenPhysMemHandleExp)

    Args:
        h: A handle, its bytes or its text.
        device: The device to open the handle on. None means the device that the handle names.
        context: The context to open the handle in, by default the device's own.

    Returns:
        A `PhysicalMemory` over the same pages, which can be exported again.

    Raises:
        InvalidHandleError: The bytes are not a physical memory handle that this user has made since the last boot.
        HandleExpiredError: The handle was withdrawn (`put`), or the exporter has exited.
        RouteError: Every route to the exporter's memory is blocked. `reasons` lists how to unblock each.
        FeatureNotSupportedError: The device cannot open this memory.

    Examples:
        >>> pages = xs.PhysicalMemory(xs.Device("cpu").memory_granularity(), "cpu", enable_ipc=True)
        >>> handle = xs.ipc.physical_memory.get(pages)
        >>> with xs.ipc.physical_memory.open(handle) as opened:
        ...     opened.is_imported
        True
        >>> xs.ipc.physical_memory.put(handle)
    """
    while True:
        try:
            return physical_memory_over(_core.open_(h, device, context))
        except HandleExpiredError:
            again = newest(h)
            if again is None:
                raise
            h = again


def put(h: Handle | bytes | str) -> None:
    """Withdraw a handle of this process, so that no process can open it any more. Objects that are already open stay
    valid. (urIPCPutPhysMemHandleExp)

    Args:
        h: A handle that `get` returned in this process, its bytes or its text.

    Raises:
        InvalidArgumentError: Another process made the handle, or the handle was already withdrawn.
        InvalidHandleError: The bytes are not a handle.

    Examples:
        >>> pages = xs.PhysicalMemory(xs.Device("cpu").memory_granularity(), "cpu", enable_ipc=True)
        >>> handle = xs.ipc.physical_memory.get(pages)
        >>> xs.ipc.physical_memory.put(str(handle))
        >>> xs.ipc.physical_memory.put(handle)
        Traceback (most recent call last):
        ...
        xpushare.InvalidArgumentError: ...
    """
    _core.put(h)
