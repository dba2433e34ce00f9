"""dma-bufs in and out: `xpushare.integrations.dma_buf`.

A dma-buf is the kernel's file descriptor for memory that drivers share: cameras and video decoders (V4L2, VA-API), DRM,
RDMA cards. `adopt` turns a dma-buf into memory, which other processes open by a handle like any other. `memory_fd`
turns memory into a dma-buf.
"""

from __future__ import annotations

import operator
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from xpushare._device import Device, DeviceLike
from xpushare.arrays.description import range_of
from xpushare.common.errors import doing
from xpushare.core import dma_bufs as core
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import Memory, memory_over

__all__ = ["MemoryFd", "access", "adopt", "memory_fd"]


class MemoryFd(NamedTuple):
    """A dma-buf, and the place of the exported memory in it."""

    fd: int  # the caller owns it and closes it
    offset: int  # the memory's offset in the dma-buf, in bytes
    nbytes: int  # the memory's size


def memory_fd(obj: Any) -> MemoryFd:
    """Return a new file descriptor of a dma-buf that contains `obj`'s memory. `obj` is a Memory, or an array that
    `xs.ipc.memory.get` accepts. Keep the memory until the dma-buf is closed, since not every driver's dma-buf keeps it.

    CUDA makes dma-bufs of device memory, even if another library allocated it, or this process opened it (except for
    opened `cudaMalloc` memory). Level Zero and HIP share their memory as dma-bufs anyway. The kernel makes them of host
    memory (`/dev/udmabuf`). Except on CUDA, the process must own the memory: it allocated it, adopted it, or attached
    it with `own=True`.

    Raises `FeatureNotSupportedError` with the reason if no dma-buf can contain the memory. Also raises
    `InvalidArgumentError`, `DeviceError` and `OutOfMemoryError`.
    """
    source = use(obj) if isinstance(obj, Memory) else range_of(obj)
    with doing("making a dma-buf"):
        fd, offset = core.dma_buf_of(source)
    return MemoryFd(fd.take(), offset, source.nbytes)


def adopt(fd: int, *, device: DeviceLike = "native_cpu:0", offset: int = 0, nbytes: int | None = None) -> Memory:
    """Return the memory in a dma-buf: `nbytes` (None: all) from `offset`. The caller still owns `fd`.

    The host maps it (`native_cpu:0`), or a Level Zero device imports it. The memory is exported as that dma-buf, which
    importers map on the same device or on `native_cpu:0`. Use `access` around the host's reads and writes. Raises
    `InvalidArgumentError` if `fd` is not a dma-buf. Raises `FeatureNotSupportedError` if the device cannot import one,
    or if the driver that made it does not let the host map it. Also raises `DeviceError` and `OutOfMemoryError`.
    """
    begin, length = operator.index(offset), None if nbytes is None else operator.index(nbytes)
    chosen = device if isinstance(device, Device) else Device(device)
    with doing("importing a dma-buf"):
        return memory_over(core.adopted(chosen, operator.index(fd), begin, length))


@contextmanager
def access(memory: Memory, *, write: bool = True) -> Generator[Memory]:
    """Synchronise the host's caches with the device while the block reads the memory, or also changes it (`write`):
    DMA_BUF_IOCTL_SYNC.

    `memory` was made by `adopt`, or opened from the handle of such memory. Raises `InvalidArgumentError` for other
    memory, which does not need this.
    """
    found = core.synchronized(use(memory))
    found.begin(write)
    try:
        yield memory
    finally:
        found.end(write)
