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
    """Return a new file descriptor of a dma-buf that contains the memory of an object. Keep the memory until the
    dma-buf is closed, since not every driver's dma-buf keeps it.

    CUDA makes dma-bufs of device memory, even if another library allocated it, or this process opened it (except for
    opened `cudaMalloc` memory). Level Zero and HIP share their memory as dma-bufs anyway. The kernel makes them of host
    memory (`/dev/udmabuf`). Except on CUDA, the process must own the memory: it allocated it, adopted it, or attached
    it with `own=True`.

    Args:
        obj: A `Memory`, or an array that `xs.ipc.memory.get` accepts.

    Returns:
        The file descriptor, which the caller closes, and the place of the memory in the dma-buf.

    Raises:
        FeatureNotSupportedError: No dma-buf can contain the memory. The message says why.
        InvalidArgumentError: `obj` is closed, or is neither a `Memory` nor such an array.
        DeviceError: The driver failed.
        OutOfMemoryError: File descriptors or memory ran out.

    Examples:
        >>> import os
        >>> from xpushare.integrations import dma_buf
        >>> frame = xs.malloc_device(4096, "cuda:0")  # doctest: +SKIP
        >>> found = dma_buf.memory_fd(frame)  # doctest: +SKIP
        >>> found.offset, found.nbytes  # doctest: +SKIP
        (0, 4096)
        >>> os.close(found.fd)  # doctest: +SKIP
    """
    source = use(obj) if isinstance(obj, Memory) else range_of(obj)
    with doing("making a dma-buf"):
        fd, offset = core.dma_buf_of(source)
    return MemoryFd(fd.take(), offset, source.nbytes)


def adopt(fd: int, *, device: DeviceLike = "native_cpu:0", offset: int = 0, nbytes: int | None = None) -> Memory:
    """Return the memory in a dma-buf. The host maps it, or a Level Zero device imports it.

    The memory is exported as that dma-buf, which importers map on the same device or on `native_cpu:0`. Use `access`
    around the host's reads and writes.

    Args:
        fd: The dma-buf's file descriptor. The caller still owns it.
        device: `native_cpu:0`, or the Level Zero device that imports it.
        offset: Where the memory begins in the dma-buf, in bytes.
        nbytes: How many bytes. None means all from `offset` on.

    Returns:
        The memory, which keeps the dma-buf.

    Raises:
        InvalidArgumentError: `fd` is not a dma-buf, or the part is not in it.
        FeatureNotSupportedError: The device cannot import a dma-buf, or the driver that made this one does not let the
            host map it.
        DeviceError: The driver failed.
        OutOfMemoryError: File descriptors or memory ran out.

    Examples:
        >>> from xpushare.integrations import dma_buf
        >>> frame = dma_buf.adopt(fd)  # of a camera, from VIDIOC_EXPBUF  # doctest: +SKIP
        >>> frame.nbytes  # doctest: +SKIP
        4147200
        >>> handle = xs.ipc.memory.get(frame)  # doctest: +SKIP
    """
    begin, length = operator.index(offset), None if nbytes is None else operator.index(nbytes)
    chosen = device if isinstance(device, Device) else Device(device)
    with doing("importing a dma-buf"):
        return memory_over(core.adopted(chosen, operator.index(fd), begin, length))


@contextmanager
def access(memory: Memory, *, write: bool = True) -> Generator[Memory]:
    """Synchronise the host's caches with the device while the block uses the memory (DMA_BUF_IOCTL_SYNC).

    Args:
        memory: Memory that `adopt` made, or that was opened from the handle of such memory.
        write: Whether the block also changes the memory.

    Returns:
        A context manager, whose result is the memory.

    Raises:
        InvalidArgumentError: The host has not mapped this memory as a dma-buf, so it does not need this.

    Examples:
        >>> from xpushare.integrations import dma_buf
        >>> with dma_buf.access(dma_buf.adopt(fd), write=False) as frame:  # doctest: +SKIP
        ...     memoryview(frame)[0]
        235
    """
    found = core.synchronized(use(memory))
    found.begin(write)
    try:
        yield memory
    finally:
        found.end(write)
