"""Memory of drivers that lack a guarantee: drivers without reference counts, and drivers whose rules for closing file
descriptors are unknown.

The former free an allocation when its handle is released, even if the allocation is mapped, and may be able to map an
allocation at only one address at a time. Of the latter, some keep the descriptor that they import, some close it at
once or with the memory, and some return the same descriptor from every export.
"""

from __future__ import annotations

import abc
import fcntl
import os
import resource
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self, final

from xpushare.adapters.stream.background import quietly
from xpushare.common.errors import DeviceError, InvalidHandleError, XpuShareError, from_os_error

__all__ = ["CountedMemory", "DriverFds", "Pages", "duplicate", "fd_nbytes", "file_of"]


# --- file descriptors whose closing follows no known rule -------------------------------------------------------------

_HIGHEST: Final = 4096  # higher numbers would make the kernel's table of them large
# Guards the numbers of the drivers' descriptors, so that no other code gets such a number while a driver may close it.
_numbers: Final = threading.RLock()


def duplicate(doing: str, fd: int, lowest: int = 0) -> int:
    """Duplicate a descriptor that the driver keeps. The driver's own descriptor must stay open: if it were closed, its
    number could later refer to another file.
    """
    if fd < 0:
        raise DeviceError(f"{doing}: the driver returned no file descriptor")
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    except OSError as error:
        raise from_os_error(error, f"{doing}: duplicating a file descriptor") from error


def fd_nbytes(doing: str, fd: int) -> int:
    """Return the size of the memory behind a descriptor."""
    try:
        found = os.lseek(fd, 0, os.SEEK_END)
    except OSError as error:
        raise InvalidHandleError(f"{doing}: the exporter's file descriptor is not memory ({error.strerror})") from error
    if found <= 0:
        raise InvalidHandleError(f"{doing}: the exporter's file descriptor has no size")
    return found


def file_of(fd: int) -> tuple[int, int]:
    """Return a key that distinguishes the file behind a descriptor from others."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


@final
class DriverFds:
    """The file descriptors of one object that a driver may hold. Use `with` around each driver call that may take over,
    return or close a descriptor.
    """

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        _numbers.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _numbers.release()

    def give(self, doing: str, fd: int) -> int:
        """Return a duplicate of the descriptor, for the driver. The duplicate has a high number. If the driver closes
        that number once more than it should, it is unlikely to close another file.
        """
        limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _HIGHEST)
        given = duplicate(doing, fd, limit // 2)
        self._files[given] = file_of(given)
        return given

    def take(self, doing: str, fd: int) -> int:
        """Return a duplicate, owned by this package, of a descriptor that the driver keeps."""
        taken = duplicate(doing, fd)
        self._files[fd] = file_of(taken)
        return taken

    def close(self) -> None:
        """Close the descriptors that the driver has not closed."""
        for fd, file in self._files.items():
            try:
                if file_of(fd) == file:
                    os.close(fd)
            except OSError:
                pass  # the driver has closed it
        self._files.clear()


# --- memory without reference counts ----------------------------------------------------------------------------------

_counting: Final = threading.RLock()  # one for all, since a device maps memory of others


@dataclass(slots=True)
class Pages:
    """An allocation and the number of its users. When the last user releases the allocation, it is destroyed."""

    device: CountedMemory
    handle: int
    nbytes: int
    fds: DriverFds
    users: int = 1  # this handle, and mappings
    original: Pages | None = None  # of an import of this process's own memory, which uses its original
    idle: list[Pages] = field(default_factory=list["Pages"])  # such imports that are not mapped now
    file: tuple[int, int] | None = None  # the file by which a peer's allocation was imported


class CountedMemory(abc.ABC):
    """Implements `retain`, `release`, `location`, `map` and `unmap` of `VirtualMemory`."""

    ordinal: int

    def __init__(self) -> None:
        self._mapped: dict[int, Pages] = {}  # by address
        self._imports: dict[tuple[int, int] | None, Pages] = {}  # of peers' memory, by file

    @abc.abstractmethod
    def export_fd(self, doing: str, handle: Pages) -> int: ...
    @abc.abstractmethod
    def import_pages(self, doing: str, nbytes: int, fd: int) -> Pages:
        """Import the memory behind a file descriptor. The caller keeps the descriptor."""

    @abc.abstractmethod
    def destroy_pages(self, doing: str, pages: Pages) -> None: ...
    @abc.abstractmethod
    def map_pages(self, doing: str, address: int, pages: Pages) -> bool:
        """Map the whole allocation. Returns False if the driver refuses, possibly because the allocation is mapped at
        another address. An import with an `original` is never mapped at another address.
        """

    @abc.abstractmethod
    def unmap_pages(self, doing: str, address: int, nbytes: int) -> None: ...

    def import_shared(self, doing: str, nbytes: int, fd: int) -> Pages:
        """Import as `import_pages` does, or reuse an earlier import of the same file. The driver may use one kernel
        handle for all imports of a file, and close the handle when the first of these imports is destroyed.
        """
        file = file_of(fd)
        with _counting:
            found = self._imports.get(file)
            if found is None:
                found = self._imports[file] = self.import_pages(doing, nbytes, fd)
                found.file = file
            else:
                found.users += 1
            return found

    def location(self, doing: str, handle: Pages) -> int:
        return handle.device.ordinal

    def retain(self, doing: str, address: int) -> Pages:
        with _counting:
            found = self._mapped[address]
            found.users += 1
            return found

    def release(self, doing: str, handle: Pages) -> None:
        original = handle.original
        with _counting:
            handle.users -= 1
            if handle.users:
                return
            if original is not None:
                original.idle.append(handle)
            else:  # while the lock is held, so that the next import of the file happens afterwards
                handle.device._imports.pop(handle.file, None)
                for again in handle.idle:
                    quietly(self.destroy_pages, doing, again)
                self.destroy_pages(doing, handle)
        if original is not None:
            self.release(doing, original)

    def map(self, doing: str, address: int, nbytes: int, handle: Pages) -> None:
        if nbytes != handle.nbytes:
            raise InvalidHandleError(
                f"{doing}: the exporter's table says {nbytes} bytes, its memory has {handle.nbytes}"
            )
        with _counting:
            handle.users += 1
        self._mapped[address] = handle  # before the driver maps it, so that an interrupt leaves no mapping unrecorded
        try:
            if not self.map_pages(doing, address, handle):
                handle = self._mapped[address] = self._again(doing, handle)
                self.map_pages(doing, address, handle)
        except BaseException as error:
            if not isinstance(error, XpuShareError):  # an interrupt, before the driver's call or after it
                quietly(self.unmap_pages, doing, address, nbytes)
            self._mapped.pop(address, None)
            quietly(self.release, doing, handle)
            raise

    def _again(self, doing: str, pages: Pages) -> Pages:
        """Import this process's own pages once more, for a mapping at another address, and return the new import, which
        the caller uses instead of `pages`. The driver may use one kernel handle for the import and the original, and
        close it as soon as one of them is destroyed. So the import is kept as long as the original, and is reused.
        """
        with _counting:
            if pages.idle:
                again = pages.idle.pop()
                again.users = 1
                return again
        fd = self.export_fd(doing, pages)
        try:
            again = pages.device.import_pages(doing, pages.nbytes, fd)
        finally:
            os.close(fd)
        again.original = pages
        return again

    def unmap(self, doing: str, address: int, nbytes: int) -> None:
        with _counting:
            pages = self._mapped.pop(address, None)
        if pages is None:
            return  # an interrupted call has unmapped it
        try:
            self.unmap_pages(doing, address, nbytes)
        finally:
            self.release(doing, pages)
