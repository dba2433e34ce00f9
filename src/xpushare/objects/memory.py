"""The object face of USM memory: the three mallocs, and `Memory`, which is defined in `_array` beside its arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpushare.core import memory as core
from xpushare.objects.array import Memory, memory_over

if TYPE_CHECKING:
    from xpushare._device import Context, DeviceLike

__all__ = ["Memory", "malloc_device", "malloc_host", "malloc_shared", "memory_over", "trim"]


def malloc_device(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """`nbytes` of memory on `device` (default: `default_device()`), which other processes can open once exported.

    Owned by the returned object. Raises `InvalidArgumentError`, `OutOfMemoryError`, `DeviceError`. (urUSMDeviceAlloc;
    memfd_create on `native_cpu`.)
    """
    return memory_over(core.allocate("device", nbytes, device, context))


def malloc_host(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """Host memory that `device` can reach, too; otherwise like `malloc_device`. (urUSMHostAlloc)"""
    return memory_over(core.allocate("host", nbytes, device, context))


def malloc_shared(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """Memory that the driver moves between host and `device`; otherwise like `malloc_device`. (urUSMSharedAlloc)"""
    return memory_over(core.allocate("shared", nbytes, device, context))


def trim() -> int:
    """Give back what this process keeps of freed memory; returns how many bytes that was.

    Host memory that was freed, and that no other process could ever reach, is kept for the next allocation of the same
    size: for 5 s, up to 256 MiB and an eighth of the memory that is free. Memory of a device that another process
    shares stays mapped for 2 s after it was closed, up to a quarter of the device's memory, since opening it again
    takes long; it counts as closed for its exporter, but is not free before. An allocation that fails gives all of this
    back by itself. `statistics()` says how much is kept now.

    Another library's array whose handle was closed is held while an importer has it open. The next `share` or `close`
    lets it go, or this does; its memory is not counted.
    """
    return core.trim()
