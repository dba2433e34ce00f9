"""Export memory as dma-bufs, and import dma-bufs as memory."""

from __future__ import annotations

from xpushare.adapters.base import DriverMemory, Form, UsmKind
from xpushare.adapters.host.memory import HostDmaBuf, dma_buf_nbytes, of_memfd
from xpushare.common import system
from xpushare.common.aspects import Aspect
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError
from xpushare.common.fds import OwnedFd
from xpushare.core.device import Device, adapter_of, info_of, require
from xpushare.core.memory import Range, never_again, piece, said_by
from xpushare.core.opening import FORM_NAMES
from xpushare.core.resources import Allocation

__all__ = ["adopted", "dma_buf_of", "synchronized"]


def dma_buf_of(source: Range) -> tuple[OwnedFd, int]:
    """Return a new file descriptor of the dma-buf that contains these bytes, and the offset of the bytes in it."""
    device, driver = source.device, source.allocation.driver
    doing = f"making a dma-buf of {source.nbytes} bytes on {device}"
    never_again(source)  # no process is notified when the last user of a dma-buf closes it
    made: tuple[OwnedFd, int] | None = adapter_of(device).dma_buf(
        info_of(device), driver, source.address, source.nbytes
    )
    if made is not None:
        return made
    if source.borrowed:
        raise FeatureNotSupportedError(
            f"{doing}: it was opened by a handle: attach it with own=True, or make the dma-buf in the process that "
            "allocated it"
        )
    _device, export = said_by(source.allocation)
    begin = export.offset + source.address - driver.address
    if export.form is Form.DMA_BUF and len(export.fds) == 1:
        dma_buf_nbytes(export.fds[0])  # raises if the driver's fd is not a dma-buf
        return OwnedFd.copied(export.fds[0]), begin
    if export.form is not Form.MEMFD:
        raise FeatureNotSupportedError(f"{doing}: it is shared as {FORM_NAMES[export.form]}, of which none can be made")
    page = system.page_nbytes()
    first, last = begin // page * page, -(-(begin + source.nbytes) // page) * page
    return of_memfd(doing, export.fds[0], first, last - first), begin - first


def adopted(device: Device, fd: int, offset: int, nbytes: int | None) -> Range:
    """Import a dma-buf on the device, as memory of this process. The caller still owns `fd`."""
    require(device, Aspect.ext_oneapi_ipc_memory)
    whole = dma_buf_nbytes(fd)
    begin, length = piece("a dma-buf", whole, offset, nbytes)
    if not length:
        raise InvalidArgumentError("the memory has no bytes")
    own = OwnedFd.copied(fd)
    try:
        doing = f"importing a dma-buf of {whole} bytes on {device}"
        driver: DriverMemory = adapter_of(device).adopt_dma_buf(info_of(device), doing, own, whole)
    finally:
        own.close()
    kind: UsmKind = "host" if driver.host_accessible else "device"
    return Range(Allocation(device, driver, kind), begin, length, device, device.context, False, None, None)


def synchronized(source: Range) -> HostDmaBuf:
    """Return the mapped dma-buf that contains this memory. Raises `InvalidArgumentError` if no dma-buf contains it."""
    driver = source.allocation.driver
    if not isinstance(driver, HostDmaBuf):
        raise InvalidArgumentError("the host has not mapped this memory as a dma-buf, so it needs no access()")
    return driver
