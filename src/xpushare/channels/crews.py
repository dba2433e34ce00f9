"""Crews. A crew is the set of processes that share one lock, atomic or channel. This module keeps track of its members,
and lets new members find it.

A crew is a file `crews/<kind>.<name>` in the runtime folder. Member m holds a POSIX lock on byte CREW_LIFE + m of the
file for as long as it lives. The member's record in the file has the handles of the objects that the crew shares,
exported by the member's own process. A new member opens the handles of any living member, so a crew lives as long as
any process has it open, even if the process that made it has ended. Processes that join a crew share the lock on byte
CREW_JOIN, so they do not wait for each other. A process that makes a crew, or removes its file, holds that lock alone.

A process that is in a crew never opens the crew's file a second time, since closing the second descriptor would release
the locks of this process. Each lock and each descriptor is released by the block that took it, since a reference to an
exception may keep the exception's frames, and what they refer to, for as long as the program likes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, final

from xpushare import _native
from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    HandleExpiredError,
    InvalidArgumentError,
    InvalidHandleError,
    XpuShareError,
    doing,
    from_os_error,
)
from xpushare.common.fds import OwnedFd
from xpushare.common.leaving import Stage, at_leave
from xpushare.common.threads import holds
from xpushare.core import memory
from xpushare.core.memory import Range
from xpushare.core.pickles import Implicit
from xpushare.objects.array import memory_over
from xpushare.sharing import identity, locked_files, naming, node
from xpushare.sharing.handle import Handle
from xpushare.sharing.idle import on_trim
from xpushare.sharing.layout import CREW_FILE, expect_version
from xpushare.sharing.locked_files import inode_at, inode_of, open_file, temporary_in
from xpushare.sharing.table import LABEL_MOST, label_argument

__all__ = [
    "ATOMIC",
    "CHANNEL",
    "LOCK",
    "Crew",
    "check_label",
    "check_name",
    "first_close",
    "folder",
    "living",
    "looked_into",
    "meet",
    "names",
    "new_name",
    "reap",
]

LOCK: Final = 1
ATOMIC: Final = 2
CHANNEL: Final = 3
_KINDS: Final = {LOCK: "lock", ATOMIC: "atomic", CHANNEL: "channel"}
_RECORD: Final = 3 * Handle.NBYTES  # handles of the control words, the slots and the member's event
_VERSION_AT: Final = _native.LAYOUT["crew_file.version"]
_RECORDS: Final = _native.LAYOUT["crew_file.records"]
# Seconds for which one process may be in the way of a call without a timeout, if it is stopped and if it is not.
_STOPPED_MOST: Final = 5.0
_BUSY_MOST: Final = 60.0
_NAP_MAX: Final = 0.2  # seconds between two looks at a process that is in the way
_REMOVE_MOST: Final = 0.1  # seconds in which the last member tries to remove the file
_SWEEP_REST: Final = 10.0  # seconds between two searches for files that dead processes left
_SWEEP_MOST: Final = 64  # how many files of the living such a search meets
_SWEEP_REMOVES: Final = 1024
_FEW: Final = 16  # as many crews are looked at each time
_RESTORE_MOST: Final = 1.0  # seconds to wait for another thread before the files of crews are made again

_T = TypeVar("_T")
# POSIX locks do not exclude threads of one process. Re-entrant, since a garbage collection may close a member.
_lock = threading.RLock()
_log: Final = logging.getLogger("xpushare")
_known: dict[str, Crew] = {}  # by the name of their file
# Every crew of this process that has not ended, and those of them that may have no member here. An interrupt can come
# at any moment of a call, and prevent a finaliser, so a crew is here before it has anything, and until it has nothing.
_all: set[Crew] = set()
_loose: set[Crew] = set()
_at_work: set[str] = set()  # the names of the files that the thread that holds `_lock` opens, closes or removes now
_look_at = 0  # the size of `_all` at which all are looked at: the larger, the rarer
_swept = -_SWEEP_REST
_removals = 0  # how many of `identity.removals` are known here


def first_close(obj: Any) -> bool:
    """Mark `obj` as closed. Return whether it was open before, so that only the first of several threads closes it. An
    object whose `__init__` raised was never open.
    """
    with _lock:
        first, obj.closed = not getattr(obj, "closed", True), True
    return first


def new_name() -> str:
    """Return a random name for an object that its user has not named. It begins with a dot, which names given by users
    cannot.
    """
    return f".{secrets.token_hex(16)}"


def is_name(name: str) -> bool:
    """Return whether this is a name that a user can give, or that `new_name` can return."""
    return naming.is_name(name.removeprefix(".")) and (name[:1] != "." or name[1:].isalnum())


def check_name(name: str | None) -> str:
    if name is None:
        return new_name()
    naming.check_name(name)
    return name


def check_label(label: str | None) -> str:
    """Check a member's label, which `ls` shows, and return it. None becomes an empty string."""
    return label_argument(label) or ""


class _Busy(NamedTuple):
    """The process that another process has to wait for before it can join."""

    pid: int | None  # 0 if it is not visible here, None if it is not known
    does: str


class _NotYet(Exception):
    """The crew cannot be joined yet. `busy` is the process that is in the way."""

    def __init__(self, busy: _Busy) -> None:
        super().__init__(busy)
        self.busy: Final = busy


@final
class Crew:
    """This process's view of a crew, which is the set of processes that share one channel, lock or atomic."""

    native: _native.Crew  # there is none before `open`

    def __init__(self, kind: int, name: str) -> None:
        self.kind: Final = kind
        self.name: Final = name
        self.path: Final = folder() / _file(kind, name)
        self.forks: Final = _native.forks()
        self.ranges: tuple[Range, ...] = ()
        self.exports: Final[list[Implicit]] = []
        self._handles: Sequence[Handle] = ()
        self.inode = 0, 0
        self.number = -1
        self.placing = False  # whether this process may have made the file, and has not opened it
        _all.add(self)
        _loose.add(self)

    def open(self, fd: OwnedFd, ranges: Sequence[Range], fresh: bool, initial: int) -> None:
        """Take over the descriptor of the crew's file. `ranges` are the objects that the crew shares. `fresh` says
        whether they are new.
        """
        number = fd.number
        self.inode = inode_of(os.fstat(number))
        self.ranges = tuple(ranges)
        self.number = number  # first: an interrupt may come after the next statement has taken the descriptor over
        try:
            self.native = _words(self.path, fd, ranges[0], self.kind, fresh, initial)
        except BaseException:
            self.number = -1
            raise

    @property
    def own(self) -> int:
        """The number of this process's objects that are members."""
        native = getattr(self, "native", None)
        return 0 if native is None else native.own

    def ended(self) -> bool:
        """Return whether shared memory of the crew was freed because the process that allocated it has ended. No
        process can join such a crew.
        """
        return any(map(_ended, self.ranges))

    def handles(self) -> Sequence[Handle]:
        """Return the handles by which others open the crew's objects. This process exports all objects itself, even
        those that it has imported. The exception is memory that cannot outlive the process that made it. For such
        memory, the handle of that process is returned.
        """
        if not self._handles:
            kind = _KINDS[self.kind]
            text = kind if self.name.startswith(".") else f"{kind} {self.name}"[:LABEL_MOST]  # for `ls`
            handles: list[Handle] = []
            for each in self.ranges:
                if each.handle is None or each.device.has(Aspect.outlives_exporter):
                    self.exports.append(Implicit(memory.get, each))
                    handles.append(self.exports[-1].handle)
                    node.current().table().label(handles[-1], text)
                else:
                    handles.append(each.handle)
            self._handles = handles
        return self._handles

    def admit(self, make: Callable[[_native.Crew], _T], member: Callable[[_T], int]) -> _T:
        """Call `make`, which adds a member to the crew, and write the member's record. `member` returns the member's
        number. The caller holds the lock for joining.

        Raises:
            InvalidArgumentError: The crew has no room for another member.
        """
        self.handles()
        try:
            made = make(self.native)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise InvalidArgumentError(
                    f"the {_title(self.kind, self.name)} has {_native.CREW_MEMBERS} members, and no room for more. "
                    "Each object that has it open is one, in whatever process. Close objects that are not needed"
                ) from None
            if error.errno == errno.EAGAIN:
                raise _NotYet(_Busy(self.native.channel_owner(), "working on")) from None
            if error.errno == errno.EBUSY:
                raise  # of a channel, which has its writers: the caller says that
            raise from_os_error(error, f"joining the {_title(self.kind, self.name)}") from error
        except ValueError as error:
            if isinstance(error, XpuShareError):
                raise
            raise InvalidHandleError(f"the {_title(self.kind, self.name)}: {error}") from error
        try:
            self.record(member(made), self.handles())
        except BaseException:
            del made  # its destructor leaves the crew
            raise
        return made

    def record(self, member: int, handles: Sequence[Handle]) -> None:
        raw = b"".join(map(bytes, handles)).ljust(_RECORD, b"\0")
        with doing(f"writing {self.path}"):
            os.pwrite(self.number, raw, _RECORDS + member * _RECORD)

    def event_of(self, member: int) -> bytes | None:
        """Return the handle of a member's event, if the member has recorded one."""
        with doing(f"reading {self.path}"):
            raw = os.pread(self.number, Handle.NBYTES, _RECORDS + member * _RECORD + 2 * Handle.NBYTES)
        return raw if len(raw) == Handle.NBYTES and any(raw) else None

    def parting(self) -> None:
        """Record that one of this process's members is about to leave. `reap` must follow."""
        _loose.add(self)

    def end(self) -> None:
        """Leave the crew. The last process removes the file. Called again if an interrupt came."""
        number = self.number
        with contextlib.suppress(XpuShareError, OSError):
            if number >= 0:
                deadline = time.monotonic() + _REMOVE_MOST
                while not _removed_if_empty(self.path, number, self.inode) and time.monotonic() < deadline:
                    time.sleep(0.001)
            elif self.placing and _known.get(self.path.name, self) is self:
                _swept_away(self.path)
        if _known.get(self.path.name) is self:
            del _known[self.path.name]
        self.close()

    def close(self) -> None:
        """Close the crew's file and end the exports. Idempotent."""
        self.number = -1  # before the descriptor is closed: another file may get its number
        if (native := getattr(self, "native", None)) is not None:
            native.close()
        for each in self.exports:
            each.end()
        self.exports.clear()
        self._handles = ()
        _all.discard(self)


def reap(every: bool = False) -> None:
    """End the crews in which this process has no member any more. `every` looks also at those in which it had one when
    it last looked, since an interrupt may have prevented that a member said that it leaves.
    """
    global _look_at
    if holds(_lock):
        return  # within a call that joins, and reaps at its end
    with _lock:
        _at_work.clear()
        if every or len(_all) >= _look_at:
            _loose.update(_all)
        for crew in list(_loose):
            if crew.forks != _native.forks():
                _all.discard(crew)
            else:
                with _working_on(crew.path.name):
                    if not crew.own:
                        crew.end()
            _loose.discard(crew)
        _look_at = 2 * len(_all) if len(_all) > _FEW else 0


on_trim(partial(reap, True))


@contextlib.contextmanager
def _working_on(file: str) -> Generator[None]:
    """Hold `_lock`, and open, close or remove a crew's file in the block. Raises `InvalidArgumentError` if this thread
    runs the handler of a signal, or a finaliser, that has interrupted a block for the same file: each would not see the
    other's locks on the file, and release them.
    """
    nested = holds(_lock)
    with _lock:
        if not nested:
            _at_work.clear()  # an interrupt may have come before a block removed its entry
        elif file in _at_work:
            kind, _, name = file.partition(".")
            raise InvalidArgumentError(
                "this thread is in the midst of another call that opens, closes or lists the "
                f"{kind if name.startswith('.') else f'{kind} {name!r}'}: the handler of a signal, or a finaliser, has "
                "interrupted that call. Have the handler set a flag, and open it after the call"
            )
        _at_work.add(file)
        try:
            yield
        finally:
            _at_work.discard(file)


def _ended(place: Range) -> bool:
    if place.handle is None or place.device.has(Aspect.outlives_exporter):
        return False
    try:
        memory.open_(place.handle)
    except HandleExpiredError:
        return True
    return False


def alone() -> threading.RLock:
    """Return the lock that makes this process's threads join and leave crews one at a time. A crew is the set of
    processes that share one channel, lock or atomic.
    """
    return _lock


def _file(kind: int, name: str) -> str:
    return f"{_KINDS[kind]}.{name}"


def _title(kind: int, name: str) -> str:
    """Return the name of a crew for error messages."""
    return _KINDS[kind] if name.startswith(".") else f"{_KINDS[kind]} {name!r}"


def folder() -> Path:
    """Return the folder for the files of channels, locks and atomics. It is created if it is missing, and only this
    user can access it.
    """
    found, _made = identity.folder_in("crews")
    if identity.removals != _removals:
        _restore(found)
    return found


def _restore(where: Path) -> None:
    """Make the files of this process's crews again that were removed together with the runtime folder. That is not
    possible if other processes are in the crew, since their locks are on the old file, or if another process has made
    another crew of that name. Then a warning says so.
    """
    global _removals
    if not _lock.acquire(timeout=_RESTORE_MOST):
        return  # the next call tries again
    try:
        _removals = identity.removals
        lost = [crew for crew in list(_known.values()) if not _restored(crew, where / crew.path.name)]
    finally:
        _lock.release()
    if lost:
        _log.warning(
            "process %d has opened the %s before the runtime folder was removed: a process that opens one of them by "
            "name now gets another one. Close them in all processes that have them open, and open them again",
            os.getpid(),
            ", the ".join(_title(crew.kind, crew.name) for crew in lost),
        )


def _restored(crew: Crew, path: Path) -> bool:
    """Return whether the crew has its file under its name, after making it again if necessary and possible."""
    if crew.inode == inode_at(path):
        return True
    if _anybody(crew.number):
        return False
    temporary = temporary_in(path.parent)
    name = str(temporary)
    try:
        with locked_files.make(temporary) as fd:
            at, size = 0, os.fstat(crew.number).st_size
            while at < size and (part := os.pread(crew.number, size - at, at)):
                at += os.pwrite(fd.number, part, at)
            crew.native.move(fd)
        crew.inode = inode_of(os.fstat(crew.number))
        os.link(temporary, path)
    except OSError:  # FileExistsError: another crew has the name by now
        return False
    finally:
        try:
            os.unlink(name)  # nothing of Python before it, since an interrupt could prevent that
        except OSError:
            pass
    return True


def _joining(number: int, path: Path, seconds: float) -> bool:
    """Share the lock on byte CREW_JOIN of a crew's file, as each process does while it joins. Returns False if another
    process holds the lock alone for longer than `seconds`.
    """
    return _locked(number, path, seconds, "shared")


def _making(number: int, path: Path, seconds: float) -> bool:
    """Hold the lock on byte CREW_JOIN alone, as a process does while it makes a crew or removes its file. A share of
    the lock that this process has is turned into this.
    """
    return _locked(number, path, seconds)


def _locked(number: int, path: Path, seconds: float, *kind: Literal["shared"]) -> bool:
    end = time.monotonic() + seconds
    with doing(f"locking {path}"):
        while not _native.lock(number, _native.CREW_JOIN, *kind):
            if time.monotonic() >= end:
                return False
            time.sleep(0.0005)
    return True


_joined: Final = _native.Crew.joined  # releases that lock; in C, since an interrupt can prevent any Python function


def _anybody(number: int) -> bool:
    return _native.lock_holder(number, _native.CREW_LIFE, _native.CREW_MEMBERS) is not None


def _removed_if_empty(path: Path, number: int, inode: tuple[int, int]) -> bool:
    """Remove the crew's file if no other process is in the crew. Returns False if a process that joins, or makes the
    crew, prevents that now.
    """
    if _anybody(number) or inode_at(path) != inode:
        return True
    if not _making(number, path, 0.0):
        return False
    try:
        if not _anybody(number) and inode_at(path) == inode:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    finally:
        _joined(number)
    return True


def _placed(path: Path) -> OwnedFd | None:
    """Create the crew's file. This process holds the lock for making the crew before any other process can see the
    file. Returns None if another process has created it first.
    """
    temporary = temporary_in(path.parent)
    fd: OwnedFd | None = None
    name = str(temporary)
    with doing(f"making {path}"):
        try:
            fd = locked_files.make(temporary)
            _native.lock(fd.number, _native.CREW_JOIN)
            os.link(temporary, path)
        except BaseException as error:
            if fd is not None:
                fd.close()
                # not found: another process took the temporary file for what a dead one left
                if isinstance(error, (FileExistsError, FileNotFoundError)):
                    return None
            raise
        finally:
            try:
                os.unlink(name)  # nothing of Python before it, since an interrupt could prevent that
            except FileNotFoundError:
                pass
    return fd


def meet(
    kind: int,
    name: str,
    create: Callable[[], Sequence[Range]] | None,
    join: Callable[[Crew, bool], _T],
    *,
    initial: int = 0,
    timeout: float | None = None,
) -> _T | None:
    """Join the crew called `name`. Calls `join` with the crew, and with whether this call made it. While `join` runs,
    no other process can make the crew or remove its file. If `join` adds no member, this process leaves the crew again.

    `create` allocates the memory for a new crew. If `create` is None and no such crew exists, this returns None.

    Returns:
        The result of `join`.

    Raises:
        TimeoutError: Another process was in the way for `timeout` seconds. Without a timeout, one and the same process
            was in the way for so long that it must have failed.
    """
    path = folder() / _file(kind, name)
    turn = _Turn(_title(kind, name), timeout)
    while True:
        try:
            with _working_on(path.name):  # but not while waiting, since other crews do not depend on this one
                _sweep(path.parent)
                return _met(kind, name, create, join, initial)
        except _NotYet as error:
            busy = error.busy
        finally:
            reap()
        turn.wait(busy)


def _met(
    kind: int,
    name: str,
    create: Callable[[], Sequence[Range]] | None,
    join: Callable[[Crew, bool], _T],
    initial: int,
) -> _T | None:
    """Do what `meet` does, without waiting. Raises `_NotYet` if another process is in the way."""
    crew = _standing(_file(kind, name))
    if crew is not None and crew.ended():
        if create is None:
            return None
        try:
            if not _making(crew.number, crew.path, 0.0):
                raise _NotYet(_joiner(crew.number))
            _give_up(crew.native, crew.path, crew.inode)
        finally:
            _joined(crew.number)
        crew = None
    if crew is None:
        crew = Crew(kind, name)
    try:
        if crew.number < 0:
            fresh = _begin(crew, create, initial)
        elif _joining(crew.number, crew.path, 0.0):
            fresh = False
        else:
            raise _NotYet(_joiner(crew.number))
        return None if fresh is None else join(crew, fresh)
    finally:
        _joined(crew.number)
        _loose.add(crew)


def _standing(file: str) -> Crew | None:
    """Return the crew of a file that this process is in already, or None."""
    crew = _known.get(file)
    if (
        crew is None or crew.number < 0 or crew.inode != inode_at(crew.path)
    ):  # the file was removed: another crew has the name by now
        return None
    if not crew.own:  # an interrupt came between its last member and its end
        crew.end()
        return None
    return crew


def _joiner(number: int) -> _Busy:
    return _Busy(_native.lock_holder(number, _native.CREW_JOIN), "joining or leaving")


@final
class _Turn:
    """Waits until another process is no longer in the way. The processes that join share a lock, so all of them wait
    only for the one that makes the crew or removes its file, which is quick. That process is judged by the time for
    which it has been in the way itself, not by the time that this process has waited for others.
    """

    def __init__(self, title: str, timeout: float | None) -> None:
        self._title: Final = title
        self._start: Final = time.monotonic()
        self._timeout: Final = timeout
        self._nap = 0.0005
        self._busy: _Busy | None = None
        self._since = self._start

    def wait(self, busy: _Busy) -> None:
        """Sleep for a moment. Raises `TimeoutError` if the time is over."""
        now = time.monotonic()
        if busy != self._busy:
            self._busy, self._since = busy, now
        stopped = _is_stopped(busy.pid)
        if self._timeout is None:
            left = (_STOPPED_MOST if stopped else _BUSY_MOST) + self._since - now
        else:
            left = self._timeout + self._start - now
        if left <= 0.0:
            who = f"process {busy.pid}" if busy.pid else "another process"
            state = "It is stopped: resume or end it" if stopped else "End it if it does not respond"
            raise TimeoutError(f"{who} has been {busy.does} the {self._title} for {now - self._since:.1f} s. {state}")
        time.sleep(min(self._nap, left))
        self._nap = min(self._nap * 2, _NAP_MAX)


def _is_stopped(pid: int | None) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2][1:2] in (b"T", b"t")
    except OSError:
        return False


def _give_up(native: _native.Crew, path: Path, inode: tuple[int, int]) -> None:
    """Notify the members of a channel whose slots were freed that they have to move to its replacement. Only then
    remove the file, so that no member waits for ever if this process dies in between. The caller holds the lock for
    joining.
    """
    native.channel_move()
    if inode_at(path) == inode:
        os.unlink(path)


def _begin(crew: Crew, create: Callable[[], Sequence[Range]] | None, initial: int) -> bool | None:
    """Open the file of a crew, and the objects that a living member shares. Returns whether the crew is new: if there
    is no living member, `create` allocates the objects. Returns None if there is no living member and `create` is None.
    This process has the lock for joining then, if the result is not None.
    """
    path = crew.path
    while True:
        fd = open_file(path)
        if fd is None:
            if create is None:
                return None
            crew.placing = True
            fd = _placed(path)
            if fd is None:
                continue
        with fd:
            empty = not _anybody(fd.number)
            if not (_making if empty else _joining)(fd.number, path, 0.0):
                raise _NotYet(_joiner(fd.number))
            inode = inode_of(os.fstat(fd.number))
            if inode_at(path) != inode or _anybody(fd.number) == empty:
                continue  # its last member has removed it, or another process has joined, meanwhile
            if empty and create is None:
                os.unlink(path)
                return None
            if empty:
                assert create is not None
                with doing(f"writing {path}"):
                    os.ftruncate(fd.number, 0)
                    os.pwrite(fd.number, CREW_FILE.pack(_native.CREW_VERSION), _VERSION_AT)
                crew.open(fd, create(), True, initial)
            else:
                _expect_version(fd.number, path)
                ranges, ended = _shared_by_any(fd.number, path)
                if ended:
                    if create is None:
                        return None
                    if not _making(fd.number, path, 0.0):
                        raise _NotYet(_joiner(fd.number))
                    native = _words(path, fd, ranges[0], crew.kind, False, 0)
                    try:
                        _give_up(native, path, inode)
                    finally:
                        native.close()
                    continue
                crew.open(fd, ranges, False, initial)
        _known[path.name] = crew
        at_leave(_leave_all, Stage.LEAVE)
        return empty


def _words(path: Path, fd: OwnedFd, place: Range, kind: int, fresh: bool, initial: int) -> _native.Crew:
    """Return the control words of a crew. They take over the descriptor of its file."""
    try:
        return _native.Crew(fd, memoryview(memory_over(place)), kind, fresh, initial)
    except (ValueError, BufferError) as error:
        if isinstance(error, XpuShareError):
            raise
        raise InvalidHandleError(f"{path.name}: {error}") from error


def names(kind: int) -> list[str]:
    """Return the names of all channels, locks or atomics (by `kind`) that have a file, even if no process has them
    open.
    """
    start = f"{_KINDS[kind]}."
    where = identity.chosen_dir() / "crews"
    try:
        found = os.listdir(where)
    except OSError:  # the folder does not exist, or other users can write to it
        return []
    names = (each.removeprefix(start) for each in found if each.startswith(start))
    return sorted(each for each in names if is_name(each))


@contextlib.contextmanager
def looked_into(kind: int, name: str) -> Generator[Crew | None]:
    """Yield the crew of a channel, lock or atomic without joining it, so that the block can read the crew's shared
    state. Yields None if the crew has no living member.
    """
    path = folder() / _file(kind, name)
    with _working_on(path.name):
        known = _known.get(path.name)
        if known is not None:
            yield known
            return
        crew = Crew(kind, name)
        try:
            yield crew if _look_into(crew) else None
        finally:
            crew.close()


def _look_into(crew: Crew) -> bool:
    fd = open_file(crew.path)
    if fd is None:
        return False
    with fd:
        if not _anybody(fd.number):
            return False
        _expect_version(fd.number, crew.path)
        try:
            ranges, _ended = _shared_by_any(fd.number, crew.path, 1)
        except _NotYet:
            return False
        crew.open(fd, ranges, False, 0)
    return True


def _shared_by_any(number: int, path: Path, most: int = 2) -> tuple[list[Range], bool]:
    """Open at most `most` of the objects that a living member shares. Returns them, and a flag. The flag is true for a
    channel whose slots were freed because the process that made them has ended. Then only the first object, the
    channel's state, was opened. Raises `_NotYet` if all members have just joined, or are about to end.
    """
    failed: XpuShareError | None = None
    words: list[Range] = []
    holder: int | None = None
    for member in living(number):
        raw = _record_of(number, path, member)
        parts = [raw[at : at + Handle.NBYTES] for at in range(0, len(raw), Handle.NBYTES)]
        opened: list[Range] = []
        try:
            opened.extend(memory.open_(part) for part in parts[:most] if any(part))
        except HandleExpiredError:
            if _native.lock_holder(number, _native.CREW_LIFE + member) is not None:  # it is not about to end
                words = words or opened
        except XpuShareError as error:
            if raw == _record_of(number, path, member):  # it was complete
                failed = error
        else:
            if opened:
                return opened, False
        holder = _native.lock_holder(number, _native.CREW_LIFE + member)
    try:
        if failed is not None:
            raise failed
    finally:
        failed = None  # otherwise this frame and the error's traceback would keep each other
    if words and _anybody(number):
        return words, True
    raise _NotYet(_Busy(holder, "leaving"))


def _expect_version(number: int, path: Path) -> None:
    """Raise `InvalidHandleError` if a living process made the crew's file in another version of the layout."""
    with doing(f"reading {path}"):
        raw = os.pread(number, CREW_FILE.size, _VERSION_AT)
    found = CREW_FILE.unpack(raw)[0] if len(raw) == CREW_FILE.size else 0
    expect_version(str(path), found or 1, _native.CREW_VERSION)  # the files of the first version had no number


def _record_of(number: int, path: Path, member: int) -> bytes:
    with doing(f"reading {path}"):
        return os.pread(number, _RECORD, _RECORDS + member * _RECORD)


def living(number: int) -> Iterator[int]:
    """Yield the numbers of the living members, except those of this process. A living member holds a lock on the crew's
    file, whose descriptor is `number`.
    """
    for member in range(_native.CREW_MEMBERS):
        if _native.lock_holder(number, _native.CREW_LIFE + member) is not None:
            yield member


def _sweep(where: Path) -> None:
    """Remove the files that dead processes have left. Does nothing if the last call was a short time ago."""
    global _swept
    now = time.monotonic()
    if now - _swept < _SWEEP_REST:
        return
    _swept = now
    with doing(f"listing {where}"):
        names = os.listdir(where)
    random.shuffle(names)  # the living ones may be listed first, and each process may sweep only once
    mine = {crew.inode for crew in list(_all)}  # another thread may add one
    living = removed = 0
    for name in names:
        with contextlib.suppress(XpuShareError, OSError):
            with _working_on(name):
                gone = inode_at(where / name) not in mine and _swept_away(where / name)
            living += not gone
            removed += gone
        if living == _SWEEP_MOST or removed == _SWEEP_REMOVES:
            break


def _swept_away(path: Path) -> bool:
    """Remove the file of a crew that no process is in, and that this process has not open. Returns whether it is
    gone.
    """
    fd = open_file(path)
    if fd is not None:
        with fd:
            _removed_if_empty(path, fd.number, inode_of(os.fstat(fd.number)))
    return inode_at(path) is None


def _leave_all(_deadline: float) -> None:
    with _lock:
        for crew in list(_all):
            crew.end()


def _after_fork() -> None:
    global _lock, _swept
    _lock = threading.RLock()
    _swept = -_SWEEP_REST
    for each in (_known, _all, _loose, _at_work):
        each.clear()  # these are the parent's crews, whose fds the engine has closed


os.register_at_fork(after_in_child=_after_fork)
identity.at_removal(folder)
