"""Host memory in memfds, shared by `native_cpu` and `mock`. Every system call goes through an object of `Calls`, so
that the adapter `mock` can make the call fail.
"""

from __future__ import annotations

import errno
from typing import Any

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

__all__ = ["Calls", "HostMemory", "HostPhysical", "HostRange", "check_imported", "memfd_of", "page_of_memfd", "pages"]

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
