"""File descriptors of drivers whose rules for closing are unknown. Some drivers keep the descriptor that they import,
some close it at once or with the memory, and some return the same descriptor from every export.
"""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from types import TracebackType
from typing import Final, Self, final

from xpushare.common.errors import DeviceError, InvalidHandleError, from_os_error

__all__ = ["DriverFds", "duplicate", "fd_nbytes", "file_of"]

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
