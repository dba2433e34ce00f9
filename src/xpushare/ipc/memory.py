"""`sycl::ext::oneapi::experimental::ipc::memory`: handles of USM memory."""

from __future__ import annotations

from typing import Any

from xpushare._device import Context, DeviceLike
from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.core import memory as _core
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import Memory, memory_over
from xpushare.sharing.handle import Handle, HandleLike, newest

__all__ = ["close", "get", "open", "put"]


def get(obj: Any, *, context: Context | None = None, read_only: bool = False) -> Handle:
    """A handle of `obj`'s memory: a Memory, or any array whose memory the adapter can export (torch, CuPy, JAX,
    numba…).

    Every call makes a distinct handle. It holds the memory until `put` or the end of this process, whether or not the
    object is garbage-collected. `obj` may cover any part of an allocation; the importer's object is exactly that range.
    With `read_only`, importers map the memory without write access, as a safeguard against accidents. Raises
    `InvalidArgumentError` for closed or imported memory, `FeatureNotSupportedError` naming the allocator when the
    memory cannot be shared, `ForkError`, `OutOfMemoryError`. (urIPCGetMemHandleExp)
    """
    return _core.get(_range_of(obj), context, read_only)


def _range_of(obj: Any) -> _core.Range:
    if isinstance(obj, Memory):
        return use(obj)
    from xpushare.arrays.description import range_of

    return range_of(obj)


def open(h: HandleLike, *, device: DeviceLike | None = None, context: Context | None = None) -> Memory:
    """Open a handle: a new `Memory` over exactly that range, in any process of this user, including the exporter
    itself.

    `device` is where to open it, by default the device that the handle names. Each open has its own close; repeated
    opens are cheap and counted. Raises `InvalidHandleError` (corrupt, forged, other kind, version, boot),
    `HandleExpiredError` (put, freed, exporter gone), `RouteError` (every route is blocked; see `reasons`),
    `FeatureNotSupportedError`, `OutOfMemoryError`. A failed open leaves nothing behind. (urIPCOpenMemHandleExp)
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
    """`memory.close()`, except that it raises `InvalidArgumentError` if the memory is closed or was not opened from a
    handle. (urIPCCloseMemHandleExp)
    """
    if not isinstance(memory, Memory):
        raise InvalidArgumentError(f"close takes an opened Memory, not {type(memory).__name__}")
    if not memory.is_imported:
        raise InvalidArgumentError("this Memory was allocated here, not opened from a handle: use its own close()")
    memory.close()


def put(h: Handle | bytes | str) -> None:
    """Withdraw a handle of this process: new opens fail, what is open stays open. Optional; allowed after the memory
    was freed.

    Raises `InvalidArgumentError` for a handle of another process, or one that was put before. (urIPCPutMemHandleExp)
    """
    _core.put(h)
