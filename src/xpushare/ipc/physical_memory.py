"""`sycl::ext::oneapi::experimental::ipc::physical_memory`: handles of physical memory. There is no `close`: the last
release closes an import.
"""

from __future__ import annotations

from xpushare._device import Context, DeviceLike
from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.core import physical as _core
from xpushare.objects.lifecycle import use
from xpushare.objects.physical_memory import PhysicalMemory, physical_memory_over
from xpushare.sharing.handle import Handle, HandleLike, newest

__all__ = ["get", "open", "put"]


def get(physical_memory: PhysicalMemory, *, context: Context | None = None) -> Handle:
    """A handle of physical memory that was made with `enable_ipc=True`, or imported; each call makes a distinct handle,
    valid until `put`.

    Raises `InvalidArgumentError` when it was not made for sharing. (urIPCGetPhysMemHandleExp)
    """
    if not isinstance(physical_memory, PhysicalMemory):
        raise InvalidArgumentError(
            f"ipc.physical_memory.get takes a PhysicalMemory, not {type(physical_memory).__name__}"
        )
    return _core.get(use(physical_memory), context)


def open(h: HandleLike, *, device: DeviceLike | None = None, context: Context | None = None) -> PhysicalMemory:
    """Open a handle: an ordinary `PhysicalMemory` over the same pages. Raises what `ipc.memory.open` raises.
    (urIPCOpenPhysMemHandleExp)
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
    """Withdraw a handle of this process; what was opened from it stays valid. (urIPCPutPhysMemHandleExp)"""
    _core.put(h)
