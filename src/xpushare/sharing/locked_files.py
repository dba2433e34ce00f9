"""The files under names in the runtime folder, of published arrays, channels, locks and atomics. Each is
opened, recognised and made here. Their modules say what the locks on a file mean.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from xpushare.common.errors import InvalidHandleError, doing, from_os_error
from xpushare.common.fds import OwnedFd, own_fd

__all__ = ["TEMPORARY", "inode_at", "inode_of", "make", "open_file", "temporary_in"]

TEMPORARY: Final = ".new-"  # begins the name of a file that is being made
_NOTHING: Final = (errno.ENOENT, errno.ENOTDIR)
# Opening fails with these if the path is a link, a folder, a socket or a device, or must not be opened.
_STRANGE: Final = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EPERM)


def open_file(path: Path, whose: str = "of this user") -> OwnedFd | None:
    """Open a file. Returns None if it does not exist. Raises `InvalidHandleError` if the path is not a file of this
    user. `whose` is the end of the message's "is not a file".
    """
    try:
        fd = own_fd(os.open, path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NOTHING:
            return None
        if error.errno in _STRANGE:
            raise _strange(path, whose) from None
        raise from_os_error(error, f"opening {path}") from error
    try:
        with doing(f"looking at {path}"):
            found = os.fstat(fd.number)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise _strange(path, whose)
    except BaseException:  # a reference to the exception would keep the descriptor open; no call comes after the block
        fd.close()
        raise
    return fd


def _strange(path: Path, whose: str) -> InvalidHandleError:
    return InvalidHandleError(f"{path} is not a file {whose}: remove it")


def temporary_in(folder: Path) -> Path:
    """Return the path of a new file, which gets its name once it is complete and locked."""
    return folder / f"{TEMPORARY}{os.urandom(8).hex()}"


def make(path: Path) -> OwnedFd:
    """Make an empty file. Raises `FileExistsError` if there is one."""
    return own_fd(os.open, path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def inode_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def inode_at(path: Path) -> tuple[int, int] | None:
    """Return the inode of the file at that path, or None if there is none."""
    try:
        return inode_of(os.lstat(path))
    except OSError as error:
        if error.errno in _NOTHING:
            return None
        raise from_os_error(error, f"looking at {path}") from error
