"""Names for what is shared: `publish`, `lookup`, `published`, `unpublish`.

A name is a file `names/<name>` in the runtime folder that contains a handle's bytes. Its publisher holds a POSIX lock
on byte 0 of the file for as long as the publisher lives, whatever its PID namespace. A file that nobody locks belongs
to a dead publisher; whoever comes next removes it while holding a lock on byte 1. A process never opens a file that it
has published itself, since closing it again would drop the lock.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import select
import stat
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from xpushare import _native
from xpushare._array import Memory
from xpushare._array_handle import MAGIC, ArrayHandle, expect_open
from xpushare._errors import InvalidArgumentError, InvalidHandleError, from_os_error
from xpushare._event import Event
from xpushare._fds import OwnedFd
from xpushare._lifecycle import use
from xpushare._physical_memory import PhysicalMemory
from xpushare._share import share
from xpushare.core import event, memory, physical
from xpushare.sharing import identity, node
from xpushare.sharing.handle import Handle, fields_of

__all__ = ["lookup", "publish", "published", "unpublish"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_TEMPORARY: Final = ".new-"
_NBYTES_MAX: Final = 1 << 20
_LIFE: Final = 0  # byte that the publisher locks
_REAPER: Final = 1  # byte that the one locks who removes a dead publisher's file
_IN_CREATE: Final = 0x100
_IN_MOVED_TO: Final = 0x80


class _Own(NamedTuple):
    """A name of this process."""

    path: Path
    fd: OwnedFd  # its lock is our life
    inode: tuple[int, int]
    handle: Handle | ArrayHandle
    made: bool  # the export was made by `publish` and ends with the name


_own: dict[str, _Own] = {}
_lock = threading.RLock()  # POSIX locks do not tell threads apart


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _own.clear()  # the parent's names; closing the inherited fds drops no lock of its


os.register_at_fork(after_in_child=_after_fork)


def publish(name: str, obj: Any) -> None:
    """Give `obj` a name by which every process of this user (with this runtime folder) finds its handle with `lookup`.

    `obj` is an array that `share` takes, a `Memory`, `PhysicalMemory` or `Event`, or a handle that this process made.
    The name, and the export that `publish` makes, last until `unpublish` or the end of this process, even by SIGKILL. A
    name consists of 1 to 128 of the characters `A-Z a-z 0-9 . _ -` and does not begin with a dot. Raises
    `InvalidArgumentError` for a name that a living process has published.
    """
    _check(name)
    folder = _folder()
    with _lock:
        if name in _own:
            raise InvalidArgumentError(f"this process has published {name!r} already: unpublish it first")
        _reap(folder)
        if (holder := _holder(folder / name)) is not None:
            raise _taken(name, holder)
        if _unpublish_all not in node.at_leave:
            node.at_leave.append(_unpublish_all)
        handle, made = _export(obj)
        try:
            _own[name] = _claim(folder, name, handle, made)
        except BaseException:
            if made:
                _withdraw(handle)
            raise


def unpublish(name: str) -> None:
    """Remove a name of this process, and withdraw the export that `publish` made for it; what is open stays open.

    Raises `InvalidArgumentError` for a name that this process has not published.
    """
    _check(name)
    with _lock:
        own = _own.pop(name, None)
        if own is None:
            raise InvalidArgumentError(f"this process has not published {name!r}")
        _retract(own)
    if own.made:
        _withdraw(own.handle)
    _reap(_folder())


def published() -> dict[str, Handle | ArrayHandle]:
    """The names that living processes of this user have published, and their handles.

    Handles that this version cannot read are left out; `lookup` says why.
    """
    folder = _folder()
    found: dict[str, Handle | ArrayHandle] = {}
    with _lock:
        _reap(folder)
        for name in sorted(os.listdir(folder)):
            if not name.startswith("."):
                try:
                    handle = _read(folder, name)
                except InvalidHandleError:
                    continue
                if handle is not None:
                    found[name] = handle
    return found


def lookup(name: str, *, timeout: float | None = None) -> Handle | ArrayHandle:
    """The handle that a living process has published under `name`; waits until there is one.

    Raises `TimeoutError` after `timeout` seconds; None waits as long as it takes, 0 does not wait. `KeyboardInterrupt`
    interrupts the wait. `attach` or `ipc.*.open` takes the result, and raises `HandleExpiredError` if the publisher has
    ended meanwhile.
    """
    _check(name)
    end = None if timeout is None else time.monotonic() + timeout
    folder = _folder()
    with _lock:
        _reap(folder)
        found = _read(folder, name)
    if found is not None:
        return found
    with _changes(folder) as changed:
        while True:
            with _lock:  # after the watch began: no name slips in between
                found = _read(folder, name)
            if found is not None:
                return found
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"nobody has published {name!r} within {timeout:g} s")
            if changed.poll(None if left is None else left * 1000):
                os.read(changed.fd, 1 << 16)


# --- files


def _check(name: str) -> None:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a name is a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"{name!r:.200} is no name: 1 to 128 of A-Z a-z 0-9 . _ -, and no dot in front")


def _taken(name: str, holder: int) -> InvalidArgumentError:
    who = f"process {holder}" if holder else "a process of another PID namespace"
    return InvalidArgumentError(f"{who} has published {name!r}")


def _folder() -> Path:
    """The folder of the names, which only this user can enter; it is made if it is missing."""
    folder = identity.runtime_dir() / "names"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise from_os_error(error, f"making {folder}") from error
    identity.check_folder(folder)
    return folder


def _opened(path: Path) -> OwnedFd | None:
    """Open a published file, never one of this process; None if there is none."""
    try:
        fd = OwnedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(error, f"opening {path}") from error
    found = os.fstat(fd.number)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        fd.close()
        raise InvalidHandleError(f"{path} is no file of this user: remove it")
    return fd


def _holder(path: Path) -> int | None:
    """pid of the living publisher (0 if that cannot be seen), None if there is none."""
    fd = _opened(path)
    if fd is None:
        return None
    try:
        return _native.lock_holder(fd.number, _LIFE)
    finally:
        fd.close()


def _read(folder: Path, name: str) -> Handle | ArrayHandle | None:
    """The handle under a name if its publisher lives."""
    own = _own.get(name)
    if own is not None and own.path == folder / name:
        return own.handle if isinstance(own.handle, Handle) else ArrayHandle(bytes(own.handle))
    fd = _opened(folder / name)
    if fd is None:
        return None
    try:
        raw = os.pread(fd.number, _NBYTES_MAX, 0)
        if _native.lock_holder(fd.number, _LIFE) is None:
            return None
    finally:
        fd.close()
    return ArrayHandle(raw) if raw[: len(MAGIC)] == MAGIC else Handle(raw)


def _claim(folder: Path, name: str, handle: Handle | ArrayHandle, made: bool) -> _Own:
    """Publish a complete file, locked before anybody can see it."""
    path = folder / name
    while True:
        number, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)
        fd = OwnedFd(number)
        try:
            _native.lock(fd.number, _LIFE)
            os.write(fd.number, bytes(handle))
            os.link(temporary, path)
            found = os.fstat(fd.number)
            return _Own(path, fd, (found.st_dev, found.st_ino), handle, made)
        except FileNotFoundError:
            fd.close()  # between its making and its lock, somebody took the file for a dead publisher's: try again
        except FileExistsError:
            fd.close()
            holder = _holder(path)
            if holder is not None:
                raise _taken(name, holder) from None
            _remove_dead(path, wait=True)
        except BaseException:
            fd.close()
            raise
        finally:
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass


def _reap(folder: Path) -> None:
    """Remove what dead publishers left."""
    with _lock:
        inodes = {own.inode for own in _own.values()}
        for name in os.listdir(folder):
            if name in _own or (name.startswith(".") and not name.startswith(_TEMPORARY)):
                continue
            try:
                found = os.stat(folder / name, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) not in inodes:
                _remove_dead(folder / name, wait=False)


def _remove_dead(path: Path, *, wait: bool) -> None:
    """Remove the file unless its publisher lives. One process at a time does it; the others go on, or wait."""
    fd = _opened(path)
    if fd is None:
        return
    try:
        if _native.lock_holder(fd.number, _LIFE) is not None:
            return
        try:
            fcntl.lockf(fd.number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, _REAPER)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return
            raise from_os_error(error, f"locking {path}") from error
        # A file that was dead stays so. Under its name there may be another by now: only this one is removed.
        found = os.fstat(fd.number)
        try:
            there = os.stat(path, follow_symlinks=False)
            if (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino):
                os.unlink(path)
        except FileNotFoundError:
            pass  # a temporary file that its maker had not locked yet: it removes it itself
    finally:
        fd.close()


def _retract(own: _Own) -> None:
    """Remove a file of this process, then let its lock go."""
    try:
        there = os.stat(own.path, follow_symlinks=False)
        if (there.st_dev, there.st_ino) == own.inode:
            os.unlink(own.path)
    except FileNotFoundError:
        pass  # the folder was cleared by hand
    finally:
        own.fd.close()


def _unpublish_all() -> None:
    with _lock:
        while _own:
            _retract(_own.popitem()[1])


# --- exports


def _export(obj: Any) -> tuple[Handle | ArrayHandle, bool]:
    """A handle of `obj`, and whether it was made here."""
    if isinstance(obj, Handle | ArrayHandle):
        if isinstance(obj, ArrayHandle):
            expect_open(obj)
        fields = fields_of(obj if isinstance(obj, Handle) else obj.handle)
        if not node.current().is_own(fields.cookie):
            raise InvalidArgumentError(f"only the exporter publishes a handle: this is of process {fields.pid}")
        return obj, False
    if isinstance(obj, Memory):
        return memory.get(use(obj)), True
    if isinstance(obj, PhysicalMemory):
        return physical.get(use(obj)), True
    if isinstance(obj, Event):
        return event.get(use(obj)), True
    return share(obj), True


def _withdraw(handle: Handle | ArrayHandle) -> None:
    if isinstance(handle, ArrayHandle):
        handle.close()
    else:
        memory.put(handle, handle.kind)


# --- waiting


class _Changes:
    """Readable when something new is in the folder (inotify(7))."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def poll(self, milliseconds: float | None) -> bool:
        return bool(self._poll.poll(milliseconds))


@contextmanager
def _changes(folder: Path) -> Generator[_Changes, None, None]:
    libc = ctypes.CDLL(None, use_errno=True)
    doing = f"watching {folder}"
    fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        number = ctypes.get_errno()
        raise from_os_error(OSError(number, os.strerror(number)), f"{doing}: inotify_init1")
    try:
        if libc.inotify_add_watch(fd, os.fsencode(folder), _IN_CREATE | _IN_MOVED_TO) < 0:
            number = ctypes.get_errno()
            raise from_os_error(OSError(number, os.strerror(number)), f"{doing}: inotify_add_watch")
        yield _Changes(fd)
    finally:
        os.close(fd)
