"""Names for what is shared: `publish`, `lookup`, `watch`, `published`, `unpublish`.

A name is a file `names/<name>` in the runtime folder that contains a handle's bytes. Its publisher holds a POSIX lock
on byte 0 of the file for as long as the publisher lives, whatever its PID namespace. A file that nobody locks belongs
to a dead publisher; whoever comes next removes it while holding a lock on byte 1. A process never opens a file that it
has published itself, since closing it again would drop the lock. A new version is a new file,
renamed over the old one; the old one is withdrawn after that.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import re
import select
import stat
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Self, final

from xpushare import _native
from xpushare._array import Memory
from xpushare._array_handle import ArrayHandle, expect_open
from xpushare._errors import ForkError, InvalidArgumentError, InvalidHandleError, XpuShareError, from_os_error
from xpushare._event import Event
from xpushare._fds import OwnedFd
from xpushare._leaving import Stage, at_leave
from xpushare._lifecycle import use
from xpushare._physical_memory import PhysicalMemory
from xpushare._share import share
from xpushare._tree_handle import NBYTES_MAX
from xpushare.core import event, memory, physical
from xpushare.sharing import identity, node
from xpushare.sharing.handle import NAME_LENGTH_MAX, Handle, fields_of, following
from xpushare.sharing.survey import Row, Survey, survey
from xpushare.timeline.waiting import trio_here

__all__ = ["Watch", "lookup", "publish", "published", "shares", "survey_named", "unpublish", "watch"]

_NAME: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_LENGTH_MAX - 1}}}")
_TEMPORARY: Final = ".new-"
_LIFE: Final = 0  # byte that the publisher locks
_REAPER: Final = 1  # byte that the one locks who removes a dead publisher's file
_REAPER_MOST: Final = 1.0  # seconds
_IN_CREATE: Final = 0x100
_IN_MOVED_TO: Final = 0x80
NAP_MAX: Final = 0.05  # seconds between two looks where the kernel has no watch to give
WARN_AFTER: Final = 10.0  # seconds of waiting for a name that nobody has


class _Own(NamedTuple):
    """A name of this process."""

    path: Path
    fd: OwnedFd  # its lock is our life
    inode: tuple[int, int]
    handle: Handle | ArrayHandle
    made: bool  # the export was made by `publish` and ends with the name


_own: dict[str, _Own] = {}
_ended: list[_Own] = []  # at the end of the process, which ends their exports: nobody has lost those
_lock = threading.RLock()  # POSIX locks do not tell threads apart


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _own.clear()  # the parent's names; closing the inherited fds drops no lock of its


os.register_at_fork(after_in_child=_after_fork)


def publish(name: str, obj: Any, *, replace: bool = False) -> None:
    """Give `obj` a name by which every process of this user (with this runtime folder) finds its handle with `lookup`.

    `obj` is an array or a tree that `share` takes, a `Memory`, `PhysicalMemory` or `Event`, or a handle that this
    process made. The name, and the export that `publish` makes, last until `unpublish` or the end of this process, even
    by SIGKILL. A name consists of 1 to 128 of the characters `A-Z a-z 0-9 . _ -` and does not begin with a dot. Raises
    `InvalidArgumentError` for a name that a living process has published.

    `replace=True` puts `obj` in the place of what this process has published under the name, if anything. Whoever looks
    sees the old or the new version; `watch` yields the new one, and handles of the old one that were looked up open it.
    The export that `publish` made for the old version then ends; what is open stays open.
    """
    _check(name)
    folder = _folder()
    with _lock:
        old = _own.get(name)
        if old is not None and not replace:
            raise InvalidArgumentError(
                f"this process has published {name!r} already: say replace=True, or unpublish it"
            )
        if old is None:
            _reap(folder)
            if (holder := _holder(folder / name)) is not None:
                raise _taken(name, holder)
        at_leave(_unpublish_all, Stage.WITHDRAW)
        handle, made = _export(obj)
        try:
            _claim(folder if old is None else old.path.parent, name, handle, made, old is not None)
        finally:  # also after an interrupt
            now = _own.get(name)
            if made and (now is None or now.handle is not handle):
                _withdraw(handle)
            if old is not None and now is not old:
                old.fd.close()
                if old.made:
                    _withdraw(old.handle)


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
        for name in sorted(_listed(folder)):
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

    Raises `TimeoutError` after `timeout` seconds; None waits as long as it takes (and says so in the log after a
    while), 0 does not wait. `KeyboardInterrupt` interrupts the wait. `attach` or `ipc.*.open` takes the result. If it
    was replaced meanwhile, they open what the name says then; if its publisher has ended, they raise
    `HandleExpiredError`. The result's bytes, text and pickle are the handle alone and follow no name.
    """
    _check(name)
    folder = _folder()
    with _lock:
        _reap(folder)
        found = _read(folder, name)
    if found is not None:
        return found
    with Watch(name) as versions:
        return versions.next(timeout)


def watch(name: str) -> Watch:
    """Every version of what is published under `name`: the newest at once, then each new one as it comes.

    For `for` and `async for` (under asyncio and trio). It waits while there is none, and never ends by itself: `break`,
    `close` or cancel it. A version that was replaced before it was asked for is left out, since it cannot be attached
    any more. Each item is as from `lookup`.
    """
    return Watch(name)


# --- who shares what


def survey_named() -> Survey:
    """What all processes of this user share, with the names that they have published."""
    names: dict[tuple[bytes, int, int], str] = {}
    try:
        for name, handle in published().items():
            for fields in map(fields_of, _handles_of(handle)):
                names[fields.cookie, fields.entry, fields.generation] = name
    except XpuShareError:
        pass  # no runtime folder that is to be trusted: nobody has names there
    return survey(names)


def shares() -> list[Row]:
    """What all processes of this user share: one row per object, as `xpushare ls --json` prints them."""
    return survey_named().rows


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


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise from_os_error(error, f"listing {folder}") from error


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
        raw = bytes(own.handle)
    else:
        while True:
            fd = _opened(folder / name)
            if fd is None:
                return None
            try:
                raw = os.pread(fd.number, min(os.fstat(fd.number).st_size, NBYTES_MAX + 1), 0)
                if _native.lock_holder(fd.number, _LIFE) is not None:
                    break
                if _inode_at(folder / name) == _inode(os.fstat(fd.number)):
                    return None
            finally:  # a publisher that replaced the file has let this one go: look again
                fd.close()
    newest = partial(_newest, folder, name)
    return following(Handle(raw) if len(raw) == Handle.NBYTES else ArrayHandle(raw), newest)


def _newest(folder: Path, name: str) -> Handle | ArrayHandle | None:
    with _lock:
        return _read(folder, name)


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _inode_at(path: Path) -> tuple[int, int] | None:
    try:
        return _inode(os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return None


def _claim(folder: Path, name: str, handle: Handle | ArrayHandle, made: bool, replace: bool) -> None:
    """Publish a complete file, locked before anybody can see it. `replace`: over the one of this process."""
    path = folder / name
    while True:
        try:
            number, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)
        except OSError as error:
            raise from_os_error(error, f"making a file in {folder}") from error
        fd = OwnedFd(number)
        new = _Own(path, fd, _inode(os.fstat(number)), handle, made)
        try:
            _native.lock(fd.number, _LIFE)
            with open(number, "wb", closefd=False) as file:
                file.write(bytes(handle))
            (os.replace if replace else os.link)(temporary, path)
        except FileNotFoundError:
            pass  # between its making and its lock, somebody took the file for a dead publisher's: try again
        except FileExistsError:
            holder = _holder(path)
            if holder is not None:
                raise _taken(name, holder) from None
            _remove_dead(path, wait=True)
        except OSError as error:
            raise from_os_error(error, f"writing {temporary}") from error
        finally:
            if _inode_at(path) == new.inode:  # also when an interrupt came right after it
                _own[name] = new
            else:
                fd.close()
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass
        if _own.get(name) is new:
            return


def _reap(folder: Path) -> None:
    """Remove what dead publishers left."""
    with _lock:
        own = {each.inode for each in _own.values()}
        for name in _listed(folder):
            if name in _own or (name.startswith(".") and not name.startswith(_TEMPORARY)):
                continue
            try:
                found = os.stat(folder / name, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode) and _inode(found) not in own:
                _remove_dead(folder / name, wait=False)


def _alone(fd: OwnedFd, path: Path, seconds: float) -> bool:
    """Take the lock of those who remove the file. Whoever has it may be stopped, so wait for it so long at most."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.lockf(fd.number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _REAPER)
            return True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise from_os_error(error, f"locking {path}") from error
        if time.monotonic() >= end:
            return False
        time.sleep(0.001)


def _remove_dead(path: Path, *, wait: bool) -> None:
    """Remove the file unless its publisher lives. One process at a time does it; the others go on, or wait."""
    fd = _opened(path)
    if fd is None:
        return
    try:
        if _native.lock_holder(fd.number, _LIFE) is not None:
            return
        if not _alone(fd, path, _REAPER_MOST if wait else 0.0):
            if wait:
                holder = _native.lock_holder(fd.number, _REAPER)
                raise InvalidArgumentError(f"process {holder} keeps what a dead publisher left as {path}: end it")
            return
        # A file that was dead stays so. Under its name there may be another by now: only this one is removed.
        try:
            if _inode_at(path) == _inode(os.fstat(fd.number)):
                os.unlink(path)
        except FileNotFoundError:
            pass  # a temporary file that its maker had not locked yet: it removes it itself
    finally:
        fd.close()


def _retract(own: _Own) -> None:
    """Remove a file of this process, then let its lock go."""
    try:
        if _inode_at(own.path) == own.inode:  # the folder may have been cleared by hand
            os.unlink(own.path)
    finally:
        own.fd.close()


def _unpublish_all(_deadline: float) -> None:
    with _lock:
        while _own:
            _ended.append(_own.popitem()[1])
            _retract(_ended[-1])


# --- exports


def _export(obj: Any) -> tuple[Handle | ArrayHandle, bool]:
    """A handle of `obj`, and whether it was made here."""
    if isinstance(obj, Handle | ArrayHandle):
        if isinstance(obj, ArrayHandle):
            expect_open(obj)
        fields = fields_of(_handles_of(obj)[0])
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


def _handles_of(handle: Handle | ArrayHandle) -> tuple[Handle, ...]:
    """The handles of the exports behind it."""
    return (handle,) if isinstance(handle, Handle) else handle.handles


def _withdraw(handle: Handle | ArrayHandle) -> None:
    if isinstance(handle, ArrayHandle):
        handle.close()
    else:
        memory.withdraw(handle, handle.kind)


# --- waiting


@final
class Watch:
    """The versions of a name, as `watch` says. Each goes to one of those that iterate over this object."""

    __slots__ = ("_awaited", "_changes", "_closed", "_folder", "_forks", "_name", "_seen")

    def __init__(self, name: str) -> None:
        _check(name)
        self._name = name
        self._folder = _folder()
        self._changes: _Changes | None = None  # once there was something to wait for
        self._seen: bytes | None = None
        self._closed = False
        self._awaited = False
        self._forks = _native.forks()

    def next(self, timeout: float | None = None) -> Handle | ArrayHandle:
        """The next version, `TimeoutError` after `timeout` seconds."""
        timeout = event.timeout_argument(timeout)
        start = time.monotonic()
        warned = False
        while True:
            found = self._newer()
            if found is not None:
                return found
            waited = time.monotonic() - start
            left = None if timeout is None else timeout - waited
            if left is not None and left <= 0:
                raise TimeoutError(f"nobody has published {self._name!r} within {timeout:g} s")
            if left is None and self._seen is None and not warned:
                left = max(WARN_AFTER - waited, 0)
                if not left:
                    warned = True
                    _warn(self._name, waited)
                    continue
            self._watching().wait(left)

    async def _next(self) -> Handle | ArrayHandle:
        while True:
            found = self._newer()
            if found is not None:
                return found
            if self._awaited:
                raise InvalidArgumentError("another task waits on this watch: give each its own")
            self._awaited = True
            try:
                await self._watching().changed()
            finally:
                self._awaited = False

    def _newer(self) -> Handle | ArrayHandle | None:
        """A version that was not yielded before. The first time that there is none, the watch only begins."""
        if self._forks != _native.forks():
            raise ForkError("this watch is of the process that forked: make one here")
        if self._closed:
            raise InvalidArgumentError("this watch is closed")
        with _lock:
            found = self._read()
            if found is None or bytes(found) == self._seen:
                return None
            self._seen = bytes(found)
        return following(found, self._follow)

    def _read(self) -> Handle | ArrayHandle | None:
        return _read(self._folder, self._name)

    def _follow(self) -> Handle | ArrayHandle | None:
        """What a version that was replaced is opened as; it does not come as a version of its own, too."""
        with _lock:
            found = self._read()
            if found is None:
                return None
            self._seen = bytes(found)
        return following(found, self._follow)  # that one may have been replaced by now, too

    def _watching(self) -> _Changes:
        if self._changes is None:
            self._changes = _Changes(self._folder)
        return self._changes

    def close(self) -> None:
        """Give back what the waits needed. Idempotent."""
        self._closed = True
        self._changes = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Handle | ArrayHandle:
        return self.next()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Handle | ArrayHandle:
        return await self._next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Watch cannot be copied or pickled: it belongs to its process. Send the name")

    def __repr__(self) -> str:
        return f"<Watch of {self._name!r}{' closed' if self._closed else ''}>"


def _warn(name: str, waited: float) -> None:
    others = ", ".join(published()) or "none"
    logging.getLogger("xpushare").warning(
        "lookup has waited %.0f s for %r, which nobody has published; published in %s: %s",
        waited,
        name,
        _folder(),
        others,
    )


class _Changes:
    """What was new in the folder since this was made or waited last: by inotify(7) where an instance is to be had (a
    user has 128, unless root raised it), else by looking again after a nap.
    """

    def __init__(self, folder: Path) -> None:
        self._fresh = True  # what came before this began has to be looked for once
        self._nap = 0.001
        self._fd: OwnedFd | None = None
        libc = ctypes.CDLL(None, use_errno=True)
        number = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if number >= 0:
            self._fd = OwnedFd(number)
            if libc.inotify_add_watch(number, os.fsencode(folder), _IN_CREATE | _IN_MOVED_TO) < 0:
                self._fd = None
        if self._fd is None:
            why = os.strerror(ctypes.get_errno())
            logging.getLogger("xpushare").info("no inotify to watch %s (%s): looking every %g s", folder, why, NAP_MAX)

    def _begun(self) -> bool:
        """True once."""
        fresh, self._fresh = self._fresh, False
        return fresh

    def _napping(self) -> float:
        self._nap = min(self._nap * 2, NAP_MAX)
        return self._nap

    def _drain(self, fd: int) -> None:
        try:
            os.read(fd, 1 << 16)
        except BlockingIOError:
            pass  # another thread has

    def wait(self, seconds: float | None) -> None:
        """Until something is new, or may be; at most `seconds`."""
        if self._begun():
            return
        if self._fd is None:
            time.sleep(min(self._napping(), NAP_MAX if seconds is None else seconds))
            return
        poll = select.poll()
        poll.register(self._fd.number, select.POLLIN)
        if poll.poll(None if seconds is None else min(seconds * 1000, 1 << 30)):  # an int in C, and a wait may be short
            self._drain(self._fd.number)

    async def changed(self) -> None:
        """`wait`, under asyncio or trio."""
        if self._begun():
            return
        trio = trio_here()
        if self._fd is None:
            if trio is not None:
                await trio.sleep(self._napping())
            else:
                import asyncio

                await asyncio.sleep(self._napping())
            return
        if trio is not None:
            await trio.lowlevel.wait_readable(self._fd.number)
        else:
            await _readable(self._fd.number)
        self._drain(self._fd.number)


async def _readable(fd: int) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(fd, settle)
    try:
        await future
    finally:
        loop.remove_reader(fd)
