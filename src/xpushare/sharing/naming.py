"""The files behind published names.

A name is a file `names/<name>` in the runtime folder. The file begins with `HEAD`: `MAGIC`, the number of handles and
`FORMAT`, the pid of a process that is about to replace or remove the file, and the record of the publisher (see
`lives`). The handles of all versions that are still available follow: the version and length of each, the newest
first, and then the bytes of the handles. A name ends with its publisher's life, and nothing that happens to the file
ends it earlier. A process may read, copy and close the files of its own names. A publisher that withdraws a name clears
the record in the file, which somebody may have moved.

The next process that finds the file of a dead publisher removes it. It holds the file's lock (`NameLock`) while it does
so. A process that replaces the file of another one, or makes a file that has no name yet, holds the lock, too.

A new version is a new file that is swapped with the old one. The old version is withdrawn after that. (ext4 writes a
file to the disk when it is renamed over another one, which takes milliseconds. Names need not survive a crash of the
machine.)

`publish`, `unpublish` and `lookup` look at the file of one name. To remove what dead processes have left, each call
also checks the next few files of the folder, so that the time of a call does not depend on the number of names.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, final
from weakref import ref

from xpushare import _native
from xpushare._native import Fields, NameLock
from xpushare.common.errors import (
    DeviceError,
    InvalidArgumentError,
    InvalidHandleError,
    XpuShareError,
    doing,
    from_os_error,
)
from xpushare.common.fds import OwnedFd, close_all
from xpushare.common.leaving import Stage, at_leave
from xpushare.common.loading import logger
from xpushare.sharing import identity, keeping, locked_files
from xpushare.sharing.handle import NAME_LENGTH_MAX
from xpushare.sharing.lives import RECORD_NBYTES, Publisher, publisher, record
from xpushare.sharing.locked_files import TEMPORARY, inode_at, inode_of, temporary_in

__all__ = [
    "ENTRY",
    "FORMAT",
    "HEAD",
    "MAGIC",
    "VERSIONS_MOST",
    "Published",
    "check_name",
    "is_name",
    "living",
    "lock",
    "names",
    "names_folder",
    "open_file",
    "publish",
    "publisher_of",
    "reap",
    "stat_of",
    "taken_back",
    "taken_over",
    "unpublish",
]

_NAME: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_LENGTH_MAX - 1}}}")
_REAPER_AT: Final = 12  # where the file contains the pid of the process that holds its lock
_REAPER_MOST: Final = 1.0  # seconds to wait for that process
_RESTORE_MOST: Final = 1.0  # seconds to wait for another thread before names are published again
MAGIC: Final = b"XPUSNAME"
# MAGIC, the number of handles with FORMAT as its high half, the pid at _REAPER_AT, the publisher's record
HEAD: Final = struct.Struct(f"<8sII{RECORD_NBYTES}s")
FORMAT: Final = 1  # of the file; a change of the format takes another number
_LIFE: Final = 0  # byte of a file of format 0 that its publisher locks
ENTRY: Final = struct.Struct("<QI")  # version, bytes of the handle
VERSIONS_MOST: Final = 64
_PASSED: Final = 64  # entries of the folder that one call passes, in search of files that dead publishers have left
_CHECKED: Final = 8  # files of other processes that it checks


@final
class _Call:
    """The identity of a `publish` or `unpublish` call. When the call is over, no reference to this object is left."""

    __slots__ = ("__weakref__",)


@final
class Published:
    """A name that this process has published, or that a running call is about to publish or remove."""

    __slots__ = (
        "_withdraw",
        "by",
        "ended",
        "exports",
        "fds",
        "handle",
        "inode",
        "lock",
        "older",
        "path",
        "temporary",
        "version",
    )

    def __init__(self, path: Path, withdraw: Callable[[Any], None]) -> None:
        self.path = path
        self.handle: Any = b""  # the file contains its bytes
        self._withdraw = withdraw
        self.temporary = temporary_in(path.parent)
        self.fds: list[OwnedFd] = []  # one descriptor: no other file gets the inode, and the record can be cleared
        self.lock: NameLock | None = None  # of the file until it has its name
        self.inode: tuple[int, int] | None = None
        self.exports: list[Any] = []  # exports made for the name, which end with it
        self.version = 0
        self.older: list[Published] = []  # versions that are kept beside this one, the newest first
        self.ended = False
        self.by: ref[_Call] | None = None

    def make(self) -> bool:
        """Make the temporary file, and lock it. Returns False if another process removes it at the same moment."""
        fd = locked_files.make(self.temporary)
        self.fds.append(fd)
        self.inode = inode_of(os.fstat(fd.number))
        self.lock = NameLock.take(self.temporary, self.inode, _REAPER_AT)
        if self.lock is None:
            os.unlink(self.temporary)
        return self.lock is not None

    def unlock(self) -> None:
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.release()

    def release(self) -> None:
        """Clear the record in the file, and close it."""
        self.unlock()
        for fd in self.fds:
            with contextlib.suppress(OSError):  # other code has closed the descriptor
                if inode_of(os.fstat(fd.number)) == self.inode:
                    os.pwrite(fd.number, bytes(RECORD_NBYTES), HEAD.size - RECORD_NBYTES)
        close_all(self.fds)
        self.fds.clear()

    def published(self) -> bool:
        """Return whether the file still exists under its name. Someone may have cleared the folder by hand."""
        return self.inode is not None and inode_at(self.path) == self.inode

    def remove(self) -> None:
        """Remove the file, and close it."""
        try:
            if self.published():
                # Suppressed: a signal handler has removed it meanwhile. A process that holds the lock for longer is
                # stopped: do not wait for it.
                with (
                    contextlib.suppress(FileNotFoundError),
                    _alone(self.path, self.inode, _REAPER_MOST) or contextlib.nullcontext(),
                ):
                    os.unlink(self.path)
        finally:
            self.release()

    def end(self) -> None:
        """Remove the file, and end the exports of this version and the earlier ones. Exports that the name's current
        version still offers are not ended. If an interrupt ends this method early, it can be called again.
        """
        current = names.get(self.path.name)
        kept = [] if current is None or current is self else current.older
        try:
            self.remove()
        finally:
            for each in (self, *self.older):
                if each not in kept:
                    for handle in each.exports:
                        with contextlib.suppress(InvalidArgumentError):  # withdrawn already
                            self._withdraw(handle)
            self.older = []

    def content(self) -> bytes:
        """Return the content of the file."""
        versions = [(each.version, bytes(each.handle)) for each in (self, *self.older)]
        entries = [ENTRY.pack(version, len(raw)) for version, raw in versions]
        head = HEAD.pack(MAGIC, FORMAT << 16 | len(versions), os.getpid(), record())
        return b"".join([head, *entries, *[raw for _, raw in versions]])


names: dict[str, Published] = {}
_removals = 0  # how many of `identity.removals` are known here
_highest = 0  # the highest version that this process has published
_unsettled: list[Published] = []  # of running calls, and of interrupted ones, whose versions are ended later
_ended: list[Published] = []  # at the end of the process, which ends their exports: they do not count as lost
lock = threading.RLock()  # of all names of this process


def _after_fork() -> None:
    global lock
    lock = threading.RLock()
    names.clear()  # the parent's names
    _unsettled.clear()
    _round.end()


os.register_at_fork(after_in_child=_after_fork)


def _unsettle(call: _Call, own: Published) -> None:
    own.by = ref(call)
    _unsettled.append(own)


def _settle(call: _Call | None = None) -> None:
    """End the exports that were made for a name but never published, by `call` or by earlier calls that have returned.
    The newest is ended first, since publishing a version ends the version before it.
    """
    for own in reversed(_unsettled.copy()):
        by = own.by and own.by()
        if by is not None and by is not call:
            continue
        name = own.path.name
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(own.temporary)
            # An interrupt came right after the publication.
            if not own.ended and names.get(name) is not own and own.published():
                names[name] = own
            if names.get(name) is not own:
                own.end()
        except Exception:
            _forget(own)
            raise
        _forget(own)


def _forget(own: Published) -> None:
    with contextlib.suppress(ValueError):  # a signal handler has removed it
        _unsettled.remove(own)


def _next_version(old: Published | None) -> int:
    """Return the next version number. The first version of a name is the time since the machine was started, in
    microseconds. So it is higher than the versions of earlier publishers, even if somebody has set the clock back.
    """
    global _highest
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    _highest = max(_highest, now - 1 if old is None else old.version) + 1
    return _highest


def publish(
    name: str,
    replace: bool,
    versions: int,
    export: Callable[[Published], None],
    withdraw: Callable[[Any], None],
    before: int | None = None,
) -> int:
    """Publish an export under the name, and return its version number.

    `export` sets `handle` and `exports` of its argument. `withdraw` ends one of these exports. `before` is a process
    that may have published the name. If so, that process's file is replaced, and `export` may provide the version
    number and the earlier versions of that process, too.
    """
    check_name(name)
    folder = names_folder()
    with lock:
        old = names.get(name)
        if old is not None and not replace:
            raise InvalidArgumentError(
                f"this process has published {name!r} already: pass replace=True, or unpublish it"
            )
        taken = False
        if old is None:
            reap(folder)
            holder = _holder_at(folder / name)
            taken = holder is not None and holder == before
            if not taken:
                _expect_free(name, holder)
        call = _Call()
        new = Published(folder / name if old is None else old.path, withdraw)
        try:
            if old is not None:
                _unsettle(call, old)
            _unsettle(call, new)
            export(new)
            new.version = new.version or _next_version(old)
            if old is not None:
                new.older = [old, *old.older][: versions - 1]
            _claim(new, old is not None or taken)
        finally:  # even after an interrupt
            _settle(call)
        return new.version


def taken_over(name: str) -> None:
    """End the exports that this process has made for a name, if another process has replaced the name's file."""
    with lock:
        own = names.get(name)
        if own is not None and not own.published():
            del names[name]
            own.end()


def taken_back(name: str) -> None:
    """Restore the file of a name after a failed attempt to hand the name over to another process."""
    with lock:
        own = names.get(name)
        if own is not None and not own.published():
            _claim(own, True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(own.temporary)


def unpublish(name: str) -> None:
    """Remove a name of this process, and end its exports."""
    with lock:
        own = names.get(name)
        if own is None:
            raise InvalidArgumentError(f"this process has not published {name!r}: {_who_has(name)}")
        call = _Call()
        try:
            _unsettle(call, own)
            own.ended = True
            del names[name]
        finally:
            _settle(call)
        with contextlib.suppress(XpuShareError):  # the name is gone, even if the folder cannot be read
            reap(names_folder())


def _who_has(name: str) -> str:
    """Return a phrase for an error message about a name that this process does not publish. It says which process
    publishes the name, if any, and how to withdraw the name there.
    """
    holder = _holder_at(names_folder() / name)
    if holder is None:
        from difflib import get_close_matches

        near = get_close_matches(name, names, 1)
        return "nobody has" + (f". Did you mean {near[0]!r}?" if near else ", so there is nothing to unpublish")
    if _is_keeper(holder):
        return f"the keeper keeps it. Run `xpushare keep --drop {name}`"
    return f"{_process(holder)} has. Unpublish it there, or end that process"


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a name is a str, not {type(name).__name__}")
    if not is_name(name):
        raise InvalidArgumentError(
            f"{name!r:.200} is not a valid name: 1 to 128 of A-Z a-z 0-9 . _ -, and no dot in front"
        )


def _expect_free(name: str, holder: int | None) -> None:
    """Raise `InvalidArgumentError` if `holder`, a living process, has published the name."""
    if holder is not None:
        if _is_keeper(holder):
            raise InvalidArgumentError(
                f"the keeper keeps {name!r}: publish with keep=True and replace=True, or run "
                f"`xpushare keep --drop {name}`"
            )
        raise InvalidArgumentError(f"{_process(holder)} has published {name!r}; only that process can replace it")


def _is_keeper(holder: int) -> bool:
    return bool(holder) and holder == keeping.keeper_pid()


def _process(holder: int) -> str:
    return f"process {holder}" if holder else "a process of another PID namespace"


def _holder_at(path: Path) -> int | None:
    """Return the pid of the living process that has published the file, or None. The result is 0 if the pid is not
    visible here.
    """
    fd = open_file(path)
    if fd is None:
        return None
    with fd:
        found = publisher_of(fd)
    return None if found is None else found.pid


def names_folder() -> Path:
    """Return the folder of the names, which only this user can enter. Creates it if it is missing. If it was removed
    meanwhile, the names of this process are published again.
    """
    global _removals
    folder, made = identity.folder_in("names")
    made = made or identity.removals != _removals
    _removals = identity.removals
    if made and names:
        _publish_again(folder)
    return folder


def _publish_again(folder: Path) -> None:
    """Publish the names of this process again whose files were removed together with their folder. A name that another
    process has published by now is withdrawn.
    """
    global _removals
    if not lock.acquire(timeout=_RESTORE_MOST):
        _removals = -1  # the next call tries again
        return
    try:
        for name, own in list(names.items()):
            if own.path.parent != folder or own.published():
                continue
            try:
                _claim(own, False)
            except (OSError, XpuShareError) as error:
                logger().warning("%r was published by this process until its file was removed: %s", name, error)
                names.pop(name, None)
                own.end()
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(own.temporary)
    finally:
        lock.release()


def open_file(path: Path) -> OwnedFd | None:
    """Open the file of a published name. Returns None if the file does not exist."""
    return locked_files.open_file(path, "that this user published")


def stat_of(fd: OwnedFd) -> os.stat_result:
    with doing("looking at a published file"):
        return os.fstat(fd.number)


def publisher_of(fd: OwnedFd) -> Publisher | None:
    """Return the process that has published the file, or None if it has ended."""
    with doing("asking who has published a name"):
        head = os.pread(fd.number, HEAD.size, 0)
        number = int.from_bytes(head[8:12], "little") >> 16 if head.startswith(MAGIC) else 0
        if number == FORMAT and len(head) == HEAD.size:
            return publisher(Fields(HEAD.unpack(head)[3]))
        if number > FORMAT:
            return Publisher(0)  # nobody here can know
        pid = _native.lock_holder(fd.number, _LIFE)  # the publisher may be of an older version
    return None if pid is None else Publisher(pid)


def _claim(new: Published, replace: bool) -> None:
    """Publish a complete file. With `replace`, it takes the place of the file that is published under the same name."""
    path, temporary = new.path, new.temporary
    while True:
        new.release()
        try:
            if not new.make():
                continue
            with open(new.fds[0].number, "wb", closefd=False) as file:
                file.write(new.content())
            if replace:
                _swap(temporary, path)
            else:
                os.link(temporary, path)
            names[path.name] = new
            return
        except FileNotFoundError:
            names_folder()  # it may have been removed
            # Before this process had locked the file, another took it for a dead publisher's and removed it: try again.
        except FileExistsError:
            _expect_free(path.name, _holder_at(path))
            _remove_dead(path, wait=True)
            os.unlink(temporary)
        finally:
            new.unlock()


def _swap(temporary: Path, path: Path) -> None:
    """Let a file take the place of the one that is published at `path`.

    If another process has published that one, its death makes it a file that any process may remove. This process
    holds the lock for removing it, so that nobody removes the new file in its stead.
    """
    own = names.get(path.name)
    held = None
    try:
        if own is None or not own.published():
            with contextlib.suppress(FileNotFoundError):
                # A process that holds it for longer is stopped: do not wait for it.
                held = _alone(path, None, _REAPER_MOST)
        if not (os.path.lexists(path) and _native.exchange(temporary, path)):
            os.replace(temporary, path)
    finally:
        if held is not None:  # and not only once nobody has the exception any more
            held.release()


@final
class _Round:
    """Passes all names in the folder, a few at each call. The kernel reads a folder in parts of a fixed size, so the
    time of a call does not depend on the number of names.
    """

    __slots__ = ("_folder", "_scan")

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._scan: Any = None  # an open folder while a round has not ended

    def next(self, folder: Path) -> Iterator[str]:
        """Yield the next few names. The caller holds the lock."""
        if self._scan is None or self._folder != folder:
            self.end()
            with doing(f"listing {folder}"):
                self._scan = os.scandir(folder)
            self._folder = folder
        scan = self._scan
        for _ in range(_PASSED):
            with doing(f"listing {folder}"):
                entry = next(scan, None)
            if entry is None:
                self.end()
                return
            yield entry.name

    def end(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.close()


_round: Final = _Round()


def reap(folder: Path) -> None:
    """Remove files that dead publishers and interrupted calls have left, as far as they can be removed. Each call
    checks a few files, and the next call continues from there.
    """
    with lock:
        _settle()
        checked = 0
        for name in _round.next(folder):
            checked += _reap_file(folder, name)
            if checked == _CHECKED:
                break


def living(folder: Path, most: int | None = None) -> Iterator[str]:
    """Yield the names that living processes have published, in any order, and remove the files of dead publishers.
    With `most`, only so many entries of the folder are checked. The caller holds the lock.
    """
    _settle()
    with doing(f"listing {folder}"), os.scandir(folder) as scan:
        found = [each.name for each in itertools.islice(scan, most)]
    for name in found:
        _reap_file(folder, name)
        if is_name(name) and (name in names or os.path.lexists(folder / name)):
            yield name


def _reap_file(folder: Path, name: str) -> bool:
    """Remove a file if a dead publisher or an interrupted call has left it. Returns whether it was checked, which is
    not necessary for the names of this process.
    """
    if name in names or (name.startswith(".") and not name.startswith(TEMPORARY)):
        return False
    try:
        found = os.lstat(folder / name)
        if stat.S_ISREG(found.st_mode):
            _remove_dead(folder / name, wait=False)
    except (OSError, DeviceError, InvalidHandleError):
        pass  # no other name depends on this one
    return True


def _alone(path: Path, inode: tuple[int, int] | None, seconds: float) -> NameLock | None:
    """Take the lock for removing the file at `path`, which has to be `inode` unless that is None. Returns None if
    another process holds the lock. That process may be stopped, so wait for at most `seconds`. Raises
    FileNotFoundError if the file is not there.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            held = NameLock.take(path, inode, _REAPER_AT)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise from_os_error(error, f"locking {path}") from error
        if held is not None or time.monotonic() >= end:
            return held
        time.sleep(0.001)


def _remove_dead(path: Path, *, wait: bool) -> None:
    """Remove the file unless its publisher is still alive. Only one process at a time removes a file. Other processes
    skip it or wait.
    """
    fd = open_file(path)
    if fd is None:
        return
    with fd:
        # Nobody makes a temporary file whose lock is free.
        if not path.name.startswith(TEMPORARY) and publisher_of(fd) is not None:
            return
        # A dead file stays dead. Another file may have its name by now, so only this one is removed.
        try:
            held = _alone(path, inode_of(stat_of(fd)), _REAPER_MOST if wait else 0.0)
        except FileNotFoundError:
            return
        if held is None:
            if wait:
                holder = NameLock.holder(fd.number, _REAPER_AT)
                raise InvalidArgumentError(
                    f"process {holder} holds the file {path} that a dead publisher left: end that process"
                )
            return
    with held, doing(f"removing {path}"), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _unpublish_all(_deadline: float) -> None:
    with lock:
        _round.end()
        while names:
            _ended.append(names.popitem()[1])
            _ended[-1].remove()


at_leave(_unpublish_all, Stage.WITHDRAW)
identity.at_removal(names_folder)
