"""The functions of `xpushare.ipc.memory`. They are defined here so that the public module contains no other names,
which editors would offer to users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.core import memory as _core
from xpushare.core.device import Context, DeviceLike
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import Memory, memory_over
from xpushare.sharing.handle import Handle, HandleLike, newest

if TYPE_CHECKING:
    from xpushare.adapters.array_types import AnyArray

__all__ = ["close", "get", "open", "put"]


def get(obj: Memory | AnyArray, *, context: Context | None = None, read_only: bool = False) -> Handle:
    """Export memory, and return a handle of it.

    The export keeps the memory alive until `put` or the end of this process, even if `obj` is garbage-collected.
    (urIPCGetMemHandleExp)

    Args:
        obj: A `Memory`, or an array of any library whose memory a driver can export. If it covers
            only a part of an allocation, importers get exactly that part.
        context: The context of the memory, by default the device's own.
        read_only: Makes importers map the memory without write access, as a safeguard against
            accidental writes.

    Returns:
        A new handle, even if the memory was exported before.

    Raises:
        InvalidArgumentError: The memory is closed, or was opened from a handle.
        FeatureNotSupportedError: The memory cannot be shared. The message names its allocator.
        OutOfMemoryError: Memory or file descriptors ran out.
        ForkError: The memory belongs to the parent of this process.

    Examples:
        >>> with xs.malloc_host(64, "native_cpu:0") as memory:
        ...     handle = xs.ipc.memory.get(memory)
        >>> handle.kind, handle.nbytes
        ('memory', 64)
        >>> xs.ipc.memory.put(handle)
    """
    return _core.get(_range_of(obj), context, read_only)


def _range_of(obj: Any) -> _core.Range:
    if isinstance(obj, Memory):
        return use(obj)
    from xpushare.arrays.description import range_of

    return range_of(obj)


def open(h: HandleLike, *, device: DeviceLike | None = None, context: Context | None = None) -> Memory:
    """Open a memory handle, in any process of this user.

    Repeated opens are cheap. A failed open leaves nothing mapped. (urIPCOpenMemHandleExp)

    Args:
        h: A handle, its bytes or its text.
        device: The device to open the handle on. None means the device that the handle names.
        context: The context to open the handle in, by default the device's own.

    Returns:
        A new `Memory` over exactly the exported range. Close each returned object separately.

    Raises:
        InvalidHandleError: The bytes are not a memory handle that this user has made since the last boot.
        HandleExpiredError: The handle was withdrawn (`put`), or the exporter has exited.
        RouteError: Every route to the exporter's memory is blocked. `reasons` lists how to unblock each.
        FeatureNotSupportedError: The device cannot open this memory.
        OutOfMemoryError: Memory or file descriptors ran out.

    Examples:
        >>> memory = xs.malloc_host(4, "native_cpu:0")
        >>> memoryview(memory)[:] = b"data"
        >>> handle = xs.ipc.memory.get(memory)
        >>> with xs.ipc.memory.open(handle) as opened:
        ...     bytes(opened)
        b'data'
        >>> xs.ipc.memory.put(handle)
    """
    while True:
        try:
            return memory_over(_core.open_(h, device, context))
        except HandleExpiredError:
            again = newest(h)
            if again is None:
                raise
            h = again


def close(memory: Memory) -> None:
    """Close memory that was opened from a handle. (urIPCCloseMemHandleExp)

    Args:
        memory: The memory that `open` returned.

    Raises:
        InvalidArgumentError: The memory is closed, or was not opened from a handle. Unlike this
            function, `memory.close()` does not raise in these two cases.

    Examples:
        >>> memory = xs.malloc_host(4, "native_cpu:0")
        >>> handle = xs.ipc.memory.get(memory)
        >>> opened = xs.ipc.memory.open(handle)
        >>> xs.ipc.memory.close(opened)
        >>> opened.closed
        True
        >>> xs.ipc.memory.put(handle)
    """
    if not isinstance(memory, Memory):
        raise InvalidArgumentError(f"close takes an opened Memory, not {type(memory).__name__}")
    if not memory.is_imported:
        raise InvalidArgumentError("this Memory was allocated here, not opened from a handle: use its own close()")
    memory.close()


def put(h: Handle | bytes | str) -> None:
    """Withdraw a handle of this process. (urIPCPutMemHandleExp)

    After that, no process can open the handle any more. Memory that is already open stays open. Calling `put` is
    optional, and is allowed after the memory was closed.

    Args:
        h: A handle that `get` returned in this process, its bytes or its text.

    Raises:
        InvalidArgumentError: Another process made the handle, or the handle was already withdrawn.
        InvalidHandleError: The bytes are not a handle.

    Examples:
        >>> handle = xs.ipc.memory.get(xs.malloc_host(4, "native_cpu:0"))
        >>> xs.ipc.memory.put(handle)
        >>> xs.ipc.memory.open(handle)
        Traceback (most recent call last):
        ...
        xpushare.HandleExpiredError: the handle has expired...
    """
    _core.put(h)
