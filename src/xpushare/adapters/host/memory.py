"""Host memory: memfds, shared by `native_cpu` and `mock`, and dma-bufs. Every system call for memfds goes through an
object of `Calls`, so that the adapter `mock` can make the call fail. A dma-buf comes from a driver that lets the host
map it, or the kernel makes it from a memfd (udmabuf).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Any, Final, final

from xpushare._native import End
from xpushare.adapters.base import Access, DriverMemory, DriverPhysical, DriverRange, Export, Form, Import
from xpushare.common import system
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidArgumentError,
    InvalidHandleError,
    XpuShareError,
    from_os_error,
)
from xpushare.common.fds import OwnedFd

__all__ = [
    "Calls",
    "HostDmaBuf",
    "HostMemory",
    "HostPhysical",
    "HostRange",
    "check_imported",
    "dma_buf_nbytes",
    "memfd_of",
    "of_memfd",
    "page_of_memfd",
    "pages",
]

_new: Any = tuple.__new__  # not by a named tuple's own `__new__`, which is slower
_MEMFD = Form.MEMFD  # a global of its own: a member of an enum costs a call
_PROTECTION = {"none": 0, "r": 1, "rw": 2}


class Calls:
    """Makes the system calls. The mock driver overrides `__call__`."""

    def __call__(self, name: str, *arguments: Any) -> Any:
        return getattr(system, name)(*arguments)

    def checked(self, doing: str, name: str, *arguments: Any) -> Any:
        """Make a call, and translate the system's error."""
        try:
            return self(name, *arguments)
        except OSError as error:
            raise from_os_error(error, f"{doing}: {name}") from error
        except MemoryError as error:
            raise from_os_error(OSError(12, "no memory"), f"{doing}: {name}") from error


def pages(nbytes: int) -> int:
    """Round a size up to whole pages."""
    page = system.page_nbytes()
    return max(page, (nbytes + page - 1) // page * page)


def page_of_memfd() -> Any:
    """Map one page of a new memfd, for tests of a driver's calls."""
    nbytes = system.page_nbytes()
    fd = system.memfd("xpushare-page")
    try:
        system.resize(fd.number, nbytes)
        return system.Mapping(fd.number, nbytes)
    finally:
        fd.close()


def memfd_of(calls: Calls, doing: str, name: str, nbytes: int) -> OwnedFd:
    """Create a memfd of exactly `nbytes` that can neither grow nor shrink."""
    fd: OwnedFd = calls.checked(doing, "memfd", name)
    with End(fd.close):
        calls.checked(doing, "resize", fd.number, nbytes)
        calls.checked(doing, "seal", fd.number, system.F_SEAL_SHRINK | system.F_SEAL_GROW | system.F_SEAL_SEAL)
    return fd


def check_imported(calls: Calls, doing: str, what: Import) -> int:
    """Check that the peer's fd is a memfd that cannot shrink and is as large as the peer's table says."""
    fd = what.only_fd(doing).number
    try:
        calls.checked(doing, "check_memfd", fd, what.exposed_nbytes)
    except ValueError as error:
        if isinstance(error, XpuShareError):
            raise
        raise InvalidHandleError(f"{doing}: {error} (the exporter's table says {what.exposed_nbytes} bytes)") from error
    return fd


class HostMemory(DriverMemory):
    """A mapped memfd. The file descriptor stays open if this process may have to export the memory."""

    host_accessible = True
    lasting_export = True
    keepable = True

    def __init__(
        self, mapping: system.Mapping, nbytes: int, fd: OwnedFd | None, inode: int, keep: bool = False
    ) -> None:
        self._mapping: system.Mapping | None = mapping
        self._keep = keep  # whether a later allocation may reuse the memory, provided that it was never exported
        self._fd = fd
        self._inode = inode
        self._resting = 0
        self.reusable = keep
        self.address = mapping.address
        self.nbytes = nbytes

    @classmethod
    def allocate(cls, calls: Calls, nbytes: int, keep: bool = False) -> HostMemory:
        """Allocate zeroed memory. If `keep` is true, freed memory may be reused, provided that no other process has
        ever been able to reach it.
        """
        doing = f"allocating {nbytes} bytes"
        exposed = pages(nbytes)
        found = calls.checked(doing, "kept_mapping", exposed) if keep else None
        fd = memfd_of(calls, doing, "xpushare-memory", exposed) if found is None else found[1]
        with End(fd.close):
            inode = calls.checked(doing, "fstat", fd.number).st_ino
            mapping = calls.checked(doing, "Mapping", fd.number, exposed) if found is None else found[0]
        return cls(mapping, nbytes, fd, inode, keep)

    @classmethod
    def imported(cls, calls: Calls, what: Import) -> HostMemory:
        mapped = what.mapping
        if mapped is not None:
            return cls(mapped, what.nbytes, None, 0)
        doing = f"mapping {what.exposed_nbytes} bytes of another process"
        fd = check_imported(calls, doing, what)
        inode = calls.checked(doing, "fstat", fd).st_ino if what.again else 0
        mapping = calls.checked(doing, "Mapping", fd, what.exposed_nbytes, 0, not what.read_only)
        return cls(mapping, what.nbytes, OwnedFd(what.fds[0]) if what.again else None, inode)

    def export(self, read_only: bool) -> Export:
        if self._fd is None:
            raise FeatureNotSupportedError(
                "exporting imported memory: only memory that was unpickled, or attached with own=True, can be "
                "exported again"
            )
        assert self._mapping is not None
        self._keep = False
        what = (self.nbytes, self._mapping.nbytes, (self._fd.number,), self._inode, b"", None, _MEMFD, 0)
        found: Export = _new(Export, what)
        return found

    def release(self) -> None:
        if self._resting:
            self.wake()
        mapping, self._mapping = self._mapping, None
        if self._keep and mapping is not None and self._fd is not None:
            mapping.keep(self._fd, False)
        elif self._fd is not None:
            self._fd.close()

    def rest(self) -> None:
        mapping, self._mapping = self._mapping, None
        assert mapping is not None
        self._resting = mapping.keep(self._fd, True)

    def wake(self) -> bool:
        found = system.owned_mapping(self._resting)
        self._resting = 0
        if found is not None:
            self._mapping, self._fd = found
        return found is not None


class HostPhysical(DriverPhysical):
    """Physical memory: pages of a memfd."""

    def __init__(self, fd: OwnedFd, nbytes: int, inode: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._inode = inode

    @classmethod
    def create(cls, calls: Calls, nbytes: int) -> HostPhysical:
        doing = f"creating {nbytes} bytes of physical memory"
        fd = memfd_of(calls, doing, "xpushare-physical", nbytes)
        with End(fd.close):
            return cls(fd, nbytes, calls.checked(doing, "fstat", fd.number).st_ino)

    @classmethod
    def imported(cls, calls: Calls, what: Import) -> HostPhysical:
        doing = f"importing {what.nbytes} bytes of physical memory"
        number = check_imported(calls, doing, what)
        inode = calls.checked(doing, "fstat", number).st_ino
        return cls(OwnedFd(what.fds[0]), what.nbytes, inode)

    def export(self) -> Export:
        return Export(self.nbytes, self.nbytes, (self.fd.number,), self._inode, form=Form.MEMFD)

    def release(self) -> None:
        self.fd.close()


class HostRange(DriverRange):
    """A reserved range of this process's addresses."""

    host_accessible = True

    def __init__(self, calls: Calls, nbytes: int, address: int, granularity: int) -> None:
        doing = f"reserving {nbytes} bytes of addresses" + (f" at {address:#x}" if address else "")
        self._calls = calls
        # The kernel aligns to pages; room for more is reserved with it, and skipped.
        room = 0 if address else granularity - system.page_nbytes()
        try:
            self._reservation: system.Reservation | None = calls.checked(doing, "Reservation", nbytes + room, address)
        except DeviceError as error:
            if error.native != errno.EEXIST:
                raise
            raise InvalidArgumentError(f"{doing}: these addresses are taken") from error
        assert self._reservation is not None
        self._skip = -self._reservation.address % granularity if room else 0
        self.address = self._reservation.address + self._skip
        self.nbytes = nbytes

    def _do(self, doing: str, nbytes: int, name: str, at: int, *arguments: Any) -> None:
        try:
            self._calls(name, self._reservation, self._skip + at, *arguments)
        except OSError as error:
            raise from_os_error(error, f"{doing} {nbytes} bytes: {error.filename or name}") from error

    def map(self, at: int, physical: DriverPhysical, offset: int, nbytes: int, access: Access) -> None:
        assert isinstance(physical, HostPhysical)
        self._do("mapping", nbytes, "range_map", at, physical.fd.number, offset, nbytes, _PROTECTION[access])

    def unmap(self, at: int, nbytes: int) -> None:
        self._do("unmapping", nbytes, "range_unmap", at, nbytes)

    def set_access(self, at: int, nbytes: int, access: Access) -> None:
        self._do("setting the access of", nbytes, "range_protect", at, nbytes, _PROTECTION[access])

    def release(self) -> None:
        self._reservation = None


# --- dma-bufs ---------------------------------------------------------------------------------------------------------

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
