"""File descriptors that go to the driver, and come from it."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from types import TracebackType
from typing import Final, final

from xpushare._errors import DeviceError, InvalidHandleError, from_os_error

__all__ = ["Passed", "close_if", "duplicate", "fd_nbytes", "file_of"]

_ROOM: Final = 64  # descriptors that `Passed` takes, the highest that the process may have
_HIGHEST: Final = 4096  # higher ones would make the kernel's table of them large


def duplicate(doing: str, fd: int, high: bool = False) -> int:
    """A descriptor of ours for one that the driver keeps: closing the driver's would hand it another's file."""
    if fd < 0:
        raise DeviceError(f"{doing}: the driver gave no file descriptor")
    try:
        lowest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _HIGHEST) // 2 if high else 0
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    except OSError as error:
        raise from_os_error(error, f"{doing}: duplicating the driver's file descriptor") from error


def file_of(fd: int) -> tuple[int, int]:
    """Tells the file behind a descriptor from others."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def close_if(fd: int, file: tuple[int, int]) -> None:
    """Close a descriptor that nobody else will, if it still is of that file."""
    try:
        if fd >= 0 and file_of(fd) == file:
            os.close(fd)
    except OSError:
        pass  # it was closed


def fd_nbytes(doing: str, fd: int) -> int:
    """The size of the memory behind a descriptor."""
    try:
        found = os.lseek(fd, 0, os.SEEK_END)
    except OSError as error:
        raise InvalidHandleError(f"{doing}: the exporter's file descriptor is no memory ({error.strerror})") from error
    if found <= 0:
        raise InvalidHandleError(f"{doing}: the exporter's file descriptor has no size")
    return found


@final
class Passed:
    """A copy of a descriptor for a call that may close it: Intel's driver does when it imports an allocation, and does
    not when it imports physical memory. The copy has a high number, which nobody else gets meanwhile, so that it can be
    looked for afterwards.
    """

    _lock = threading.Lock()  # no driver waits for another process in such a call

    def __init__(self, doing: str, fd: int) -> None:
        self._doing = doing
        self._fd = fd

    def __enter__(self) -> Passed:
        self._lock.acquire()
        try:
            limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _HIGHEST)
            self.number = fcntl.fcntl(self._fd, fcntl.F_DUPFD_CLOEXEC, limit - _ROOM)
        except OSError as error:
            self._lock.release()
            raise from_os_error(error, f"{self._doing}: duplicating a file descriptor") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            os.close(self.number)
        except OSError:
            pass  # the driver has closed it
        finally:
            self._lock.release()
