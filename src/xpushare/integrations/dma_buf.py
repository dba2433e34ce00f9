"""Import and export of dma-bufs: `xpushare.integrations.dma_buf`.

A dma-buf is a file descriptor for memory that several drivers can use, for example drivers of cameras and video
decoders (V4L2, VA-API), displays (DRM) and RDMA cards. `adopt` turns a dma-buf into a `Memory`, which other processes
can open by a handle. `memory_fd` turns memory into a dma-buf.
"""

from __future__ import annotations

import operator
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from xpushare.arrays.description import range_of
from xpushare.common.errors import doing
from xpushare.core import dma_bufs as core
from xpushare.core.device import Device, DeviceLike
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import Memory, memory_over

__all__ = ["MemoryFd", "access", "adopt", "memory_fd"]


class MemoryFd(NamedTuple):
    """The file descriptor of a dma-buf, and the place of the exported memory in the dma-buf."""

    fd: int  # the caller owns it and closes it
    offset: int  # the memory's offset in the dma-buf, in bytes
    nbytes: int  # the memory's size


def memory_fd(obj: Any) -> MemoryFd:
    """Return a new file descriptor of a dma-buf that contains the memory of an object. Do not free the memory before
    the dma-buf is closed, since a dma-buf does not keep the memory alive with every driver.

    Dma-bufs exist for device memory of CUDA, Level Zero and HIP, and for host memory (by `/dev/udmabuf`). On CUDA, the
    memory may have been allocated by another library or opened from another process, except for opened `cudaMalloc`
    memory. Otherwise this process must own the memory, so that it was allocated or adopted here, or attached with
    `own=True`.

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
    """Return the memory of a dma-buf, mapped on the host or imported on a Level Zero device.

    If the memory is shared, other processes receive the same dma-buf, and open it on the same device or on
    `native_cpu:0`. Use `access` around reads and writes by the host.

    Args:
        fd: The dma-buf's file descriptor. The caller still owns it.
        device: `native_cpu:0`, or the Level Zero device that imports it.
        offset: Where the memory begins in the dma-buf, in bytes.
        nbytes: The size of the memory in bytes. None means everything from `offset` to the end.

    Returns:
        The memory. It keeps the dma-buf open.

    Raises:
        InvalidArgumentError: `fd` is not a dma-buf, or `offset` and `nbytes` exceed its size.
        FeatureNotSupportedError: The device cannot import a dma-buf, or the driver that made the dma-buf does not allow
            the host to map it.
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
        InvalidArgumentError: The memory is not a dma-buf that the host has mapped, so it needs no synchronisation.

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
