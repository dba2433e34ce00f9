"""dma-bufs in and out: `xpushare.integrations.dma_buf`.

A dma-buf is the kernel's file descriptor for memory that drivers share: cameras and video decoders (V4L2, VA-API), DRM,
RDMA cards. `adopt` makes memory of one, which other processes open by a handle like any other. `memory_fd` makes one of
memory.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from xpushare._device import Device, DeviceLike
from xpushare.arrays.description import range_of
from xpushare.common.errors import from_os_error
from xpushare.core import dma_bufs as core
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import Memory, memory_over

__all__ = ["MemoryFd", "access", "adopt", "memory_fd"]


class MemoryFd(NamedTuple):
    """A dma-buf in which memory lies."""

    fd: int  # the caller's, who closes it
    offset: int  # of the memory in the dma-buf, in bytes
    nbytes: int  # of the memory


def memory_fd(obj: Any) -> MemoryFd:
    """A new file descriptor of a dma-buf that contains `obj`'s memory: a Memory, or an array as `xs.ipc.memory.get`
    takes it. It keeps the memory itself in place, whatever is closed, in every process that has it.

    CUDA makes one of any device memory, even if it was opened or is another library's. Level Zero and HIP share their
    memory by dma-bufs anyway. Of host memory the kernel makes one (`/dev/udmabuf`), in the process that allocated it.
    Raises `FeatureNotSupportedError` with the reason if there is none, `InvalidArgumentError`, `DeviceError`,
    `OutOfMemoryError`.
    """
    source = use(obj) if isinstance(obj, Memory) else range_of(obj)
    try:
        fd, offset = core.dma_buf_of(source)
    except OSError as error:
        raise from_os_error(error, "making a dma-buf") from error
    return MemoryFd(fd.take(), offset, source.nbytes)


def adopt(fd: int, *, device: DeviceLike = "native_cpu:0", offset: int = 0, nbytes: int | None = None) -> Memory:
    """Memory that lies in a dma-buf: `nbytes` (None: all) from `offset`. `fd` stays the caller's.

    The host maps it (`native_cpu:0`), or a Level Zero device imports it. It is exported as that dma-buf, which
    importers map on the same device, or on `native_cpu:0`. Use `access` around what the host reads and writes there.
    Raises `InvalidArgumentError` if `fd` is no dma-buf, `FeatureNotSupportedError` if the device imports none or the
    driver that made it does not let the host map it, `DeviceError`, `OutOfMemoryError`.
    """
    begin, length = operator.index(offset), None if nbytes is None else operator.index(nbytes)
    chosen = device if isinstance(device, Device) else Device(device)
    return memory_over(core.adopted(chosen, operator.index(fd), begin, length))


@contextmanager
def access(memory: Memory, *, write: bool = True) -> Iterator[Memory]:
    """Keep the host's caches and the device's in step while the block reads the memory, or (`write`) changes it, too:
    DMA_BUF_IOCTL_SYNC.

    `memory` was made by `adopt`, or opened from the handle of such memory. Raises `InvalidArgumentError` for other
    memory, which needs no such care.
    """
    found = core.synchronized(use(memory))
    found.begin(write)
    try:
        yield memory
    finally:
        found.end(write)
