"""dma-bufs on the host. A dma-buf comes from a driver that lets the host map it, or the kernel makes it from a memfd
(udmabuf).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final, final

from xpushare.adapters.base import DriverMemory, Export, Form, Import
from xpushare.common import system
from xpushare.common.errors import (
    FeatureNotSupportedError,
    InvalidArgumentError,
    InvalidHandleError,
    from_os_error,
)
from xpushare.common.fds import OwnedFd

__all__ = ["HostDmaBuf", "dma_buf_nbytes", "of_memfd"]

UDMABUF: Final = "/dev/udmabuf"
_CREATE: Final = 0x40187542  # UDMABUF_CREATE
_CREATION: Final = struct.Struct("=IIQQ")  # memfd, flags, offset, size
_CLOEXEC: Final = 1
_SYNC: Final = 0x40086200  # DMA_BUF_IOCTL_SYNC
_FLAGS: Final = struct.Struct("=Q")
_READ, _WRITE, _END = 1, 2, 4
_TO_MAP: Final = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # else the driver refuses
_UNMAPPABLE: Final = "the driver that made this dma-buf does not let the host map it"


def _name(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def dma_buf_nbytes(fd: int) -> int:
    """Return the size of the dma-buf. Raises `InvalidArgumentError` if the file is something else."""
    try:
        what = _name(fd)
        if not what.startswith("/dmabuf:"):
            raise InvalidArgumentError(f"file descriptor {fd} is not a dma-buf, but {what}")
        return os.lseek(fd, 0, os.SEEK_END)
    except FileNotFoundError:
        raise InvalidArgumentError(f"file descriptor {fd} is not open") from None
    except OSError as error:
        raise from_os_error(error, f"looking at file descriptor {fd}") from error


def of_memfd(doing: str, memfd: int, offset: int, nbytes: int) -> OwnedFd:
    """Make a dma-buf of whole pages of a memfd by udmabuf. The memfd must be sealed against shrinking."""
    try:
        device = OwnedFd(os.open(UDMABUF, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise FeatureNotSupportedError(
            f"{doing}: the kernel makes dma-bufs of host memory by {UDMABUF} ({error.strerror}): modprobe udmabuf, let "
            f"the user's group open it; in containers: --device {UDMABUF}"
        ) from error
    try:
        wanted = bytearray(_CREATION.pack(memfd, _CLOEXEC, offset, nbytes))  # for bytes, ioctl returns bytes
        return OwnedFd(fcntl.ioctl(device.number, _CREATE, wanted))
    except OSError as error:
        if error.errno == errno.EINVAL:  # no other argument can be invalid
            raise FeatureNotSupportedError(
                f"{doing}: udmabuf refuses {nbytes} bytes: raise /sys/module/udmabuf/parameters/size_limit_mb"
            ) from error
        raise from_os_error(error, f"{doing}: udmabuf") from error
    finally:
        device.close()


@final
class HostDmaBuf(DriverMemory):
    """A mapped dma-buf. The descriptor stays open, because exports send it, and `begin` and `end` need it."""

    host_accessible = True
    lasting_export = True

    def __init__(self, doing: str, fd: OwnedFd, exposed_nbytes: int, nbytes: int, writable: bool = True) -> None:
        """Map the dma-buf, and take `fd` over if that succeeds."""
        try:
            self._mapping: system.Mapping | None = system.Mapping(fd.number, exposed_nbytes, 0, writable)
        except OSError as error:
            if error.errno in _TO_MAP:
                raise from_os_error(error, doing) from error
            raise FeatureNotSupportedError(f"{doing}: {_UNMAPPABLE} ({error.strerror})", native=error.errno) from error
        self.fd = OwnedFd(fd)
        self._exposed = exposed_nbytes
        self.address = self._mapping.address
        self.nbytes = nbytes

    @classmethod
    def imported(cls, what: Import) -> HostDmaBuf:
        doing = f"mapping a dma-buf of {what.exposed_nbytes} bytes of another process"
        fd = what.only_fd(doing)
        try:
            found = dma_buf_nbytes(fd.number)
        except InvalidArgumentError as error:
            if what.exporter is None:
                raise InvalidHandleError(f"{doing}: {error}") from error
            raise FeatureNotSupportedError(  # the exporter's driver uses this form for files that are not dma-bufs
                f"memory of {what.exporter.backend} cannot be opened on native_cpu:0: it should be a dma-buf; {error}"
            ) from error
        if found < what.exposed_nbytes:
            raise InvalidHandleError(
                f"{doing}: the exporter's table says {what.exposed_nbytes} bytes, its dma-buf has {found}"
            )
        made = cls(doing, fd, what.exposed_nbytes, what.nbytes, not what.read_only)
        made.address += what.offset
        return made

    def dma_buf(self, address: int) -> tuple[OwnedFd, int]:
        """Return a duplicate of the descriptor, and the offset of the address in the dma-buf."""
        assert self._mapping is not None
        return OwnedFd.copied(self.fd.number), address - self._mapping.address

    def export(self, read_only: bool) -> Export:
        return Export(self.nbytes, self._exposed, (self.fd.number,), form=Form.DMA_BUF)

    def begin(self, write: bool) -> None:
        """Begin an access by the host, and make the devices' writes visible to it. If `write` is true, the host may
        write as well as read.
        """
        self._sync(_READ | _WRITE if write else _READ)

    def end(self, write: bool) -> None:
        """End the access by the host: make its writes since `begin` visible to the devices."""
        self._sync((_READ | _WRITE if write else _READ) | _END)

    def _sync(self, flags: int) -> None:
        while True:
            try:
                fcntl.ioctl(self.fd.number, _SYNC, bytearray(_FLAGS.pack(flags)))
            except (InterruptedError, BlockingIOError):
                continue  # as its documentation says
            except OSError as error:
                raise from_os_error(error, "synchronizing a dma-buf with the host") from error
            return

    def release(self) -> None:
        self._mapping = None
        self.fd.close()
