"""Groups. The processes that share the memory of a channel, or of the locks and atomics that one of them has made, are
a group. This module keeps track of this process's groups, and lets new members find them by a name.

A group is a piece of memory. Member m, which is a process, holds a POSIX lock on byte GROUP_LIFE + m of the memory's
file for as long as it lives. Each member exports the memory itself, so a group lives as long as any process has it
open. A channel, lock or atomic is a place in a group, and ends when no member has it open any more. A channel has a
group of its own. Locks and atomics have places in the home of the process that made them.

A file `crews/<kind>.<name>` in the runtime folder leads to a place: it contains handles of the memory, exported by
members that have the place open. The file appears complete, so a process that joins or makes a place never waits for
another one. Only a process that removes the file takes the lock on it. The file itself proves nothing: if somebody
removes it, the members make it again.

Each lock and each descriptor is released by the block that took it, since a reference to an exception may keep the
exception's frames, and what they refer to, for as long as the program likes.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, final

from xpushare import _native
from xpushare._native import NameLock
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
from xpushare.sharing.layout import NAME_FILE, expect_version
from xpushare.sharing.lives import lives, state_of
from xpushare.sharing.locked_files import inode_at, inode_of, open_file, temporary_in
from xpushare.sharing.table import LABEL_MOST, label_argument

__all__ = [
    "ATOMIC",
    "CHANNEL",
    "LOCK",
    "Group",
    "Place",
    "check_label",
    "check_name",
    "file_of",
    "first_close",
    "folder",
    "home",
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
_TEXT: Final = "locks and atomics"
_PID_AT: Final = _native.LAYOUT["name_file.pid"]  # of the process that has the lock on a file
_RECORDS: Final = _native.LAYOUT["name_file.records"]
_RECORD: Final = Handle.NBYTES
_ID_NBYTES: Final = 16
# Seconds for which one process may be in the way of a call without a timeout, if it is stopped and if it is not.
_STOPPED_MOST: Final = 5.0
_BUSY_MOST: Final = 60.0
_NAP_MAX: Final = 0.2  # seconds between two looks at a process that is in the way
_REMOVE_MOST: Final = 0.1  # seconds in which a process that leaves tries to take the lock on the file
_SWEEP_REST: Final = 10.0  # seconds between two searches for files that dead processes left
_SWEEP_MOST: Final = 64  # how many files of the living such a search meets
_SWEEP_REMOVES: Final = 1024
_FEW: Final = 16  # as many groups and places are looked at each time
_RESTORE_MOST: Final = 1.0  # seconds to wait for another thread before files are made again

_T = TypeVar("_T")
_lock = threading.RLock()  # re-entrant, since a garbage collection may close an object
_log: Final = logging.getLogger("xpushare")
_known: dict[str, Place] = {}  # by the name of their file
_members: dict[tuple[int, int], Group] = {}  # the groups of which this process is a member, by their memory's inode
_by_handle: dict[bytes, Group] = {}
_home: Group | None = None
# Every group and place of this process that has not ended, and those of them that may be unused. An interrupt can come
# at any moment of a call, and prevent a finaliser, so each is here before it has anything, and until it has nothing.
_all: set[Group | Place] = set()
_loose: set[Group | Place] = set()
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


def file_of(place: Place) -> Path:
    """Return a path of the memory of a place's group, which this process has open."""
    return Path(f"/proc/self/fd/{place.native.fd}")


def check_label(label: str | None) -> str:
    """Check the label of a writer, reader or lock, and return it. None becomes an empty string."""
    return label_argument(label) or ""


class _Busy(NamedTuple):
    """The process that another process has to wait for before it can join."""

    pid: int | None  # 0 if it is not visible here, None if it is not known
    does: str


class _NotYet(Exception):
    """The place cannot be joined or made yet. `busy` is the process that is in the way."""

    def __init__(self, busy: _Busy) -> None:
        super().__init__(busy)
        self.busy: Final = busy


class _Found(enum.Enum):
    """What a process has found by a file."""

    OPEN = enum.auto()  # this process has the place open now
    ENDED = enum.auto()  # nobody has it open
    MOVED = enum.auto()  # the slots of the channel were freed, since the process that made them has ended


# --- groups


@final
class Group:
    """This process's membership in a group. `ranges` are the group's memory and, for a channel, the memory of the
    slots. `how` says whether this process makes the group, joins it, or only looks at it.
    """

    native: _native.Group
    file: Final = ""

    def __init__(self, kind: int, ranges: Sequence[Range], how: int, members: int = _native.GROUP_MEMBERS) -> None:
        self.kind: Final = kind
        self.forks: Final = _native.forks()
        self.ranges: Final = list(ranges)
        self.places: Final[set[Place]] = set()
        self.ends = False
        self.handles: Final[list[bytes]] = []  # by which others open the ranges from this process
        self._leads: Final[list[bytes]] = []  # the handles by which this process knows the group
        self._exports: Final[list[Implicit]] = []
        _all.add(self)
        _loose.add(self)
        words = memoryview(memory_over(self.ranges[0]))
        self.native = _native.Group(_fd_of(self.ranges[0]), words, kind, how, members)
        if how != _native.GROUP_LOOK:
            _members[self.native.inode] = self

    @property
    def used(self) -> bool:
        return bool(self.places)

    def share(self, text: str) -> None:
        """Export the group's memory, so that others can open it from this process. This process exports all memory
        itself, even if it has imported it. The exception is memory that cannot outlive the process that made it. For
        such memory, others get the handle of that process. `text` is what `ls` shows.
        """
        for which, each in enumerate(self.ranges[len(self.handles) :], len(self.handles)):
            if each.handle is None or each.device.has(Aspect.outlives_exporter):
                self._exports.append(Implicit(memory.get, each))
                handle = self._exports[-1].handle
                node.current().table().label(handle, text)
            else:
                handle = each.handle
            self.native.set_handle(which, bytes(handle))
            self.handles.append(bytes(handle))
            if not which:
                self.led_by(bytes(handle))

    def led_by(self, handle: bytes) -> None:
        """Remember that this handle is one of the group's memory."""
        self._leads.append(handle)
        _by_handle[handle] = self

    def end(self) -> None:
        """Leave the group. Called again if an interrupt came."""
        global _home
        self.ends = True
        if self.places:  # the handler of a signal has just opened one
            self.ends = False
            return
        if (native := getattr(self, "native", None)) is not None:
            native.close()  # first: the members that live have handles that others can open
            if _members.get(native.inode) is self:
                del _members[native.inode]
        for each in self._exports:
            each.end()
        for handle in self._leads:
            if _by_handle.get(handle) is self:
                del _by_handle[handle]
        if _home is self:
            _home = None
        _all.discard(self)


def home() -> Group:
    """Return the group in which this process makes locks and atomics."""
    global _home
    if _home is None or _home.ends:
        words = memory.allocate("host", _native.Group.home_nbytes(), "native_cpu:0", None)
        _home = Group(_native.GROUP_HOME, [words], _native.GROUP_MAKE)
    return _home


def _fd_of(words: Range) -> int:
    """Return the descriptor of host memory that this process can export."""
    return memory.said_by(words.allocation)[1].fds[0]


def _reached(records: Mapping[int, bytes], place: Place) -> Group | None:
    """Return the group to which one of the handles in a file leads, after joining it if this process is not a member.
    Returns None if no handle can be opened, since nobody lives who made it. Raises `_NotYet` if such a process still
    runs.
    """
    for handle in records.values():
        if handle in _by_handle:
            return _by_handle[handle]
    for group in list(_members.values()):  # in one step: the handler of a signal may open another
        if group.kind != _native.GROUP_HOME or place.kind == CHANNEL:
            continue
        # The file may lead to a home by a member of which this process has opened nothing.
        with contextlib.suppress(InvalidArgumentError):  # other code has closed the group's descriptor
            if any(records.get(member) == handle for member, handle, _slots in group.native.handles()):
                return group
    found = _opened(records.values())
    if found is not None:
        return _joined(*found, place)
    for handle in records.values():
        fields = _native.Fields(handle)
        if lives(fields, exiting=True):  # its memory is gone already, and it may still use what a lock guards
            raise _NotYet(_Busy(fields.pid, "leaving"))
    return None


def _opened(handles: Iterable[bytes]) -> tuple[Range, bytes] | None:
    """Open memory by one of the handles, and return it with that handle. Returns None if all have expired."""
    failed: XpuShareError | None = None
    try:
        for handle in handles:
            try:
                return memory.open_(handle), handle
            except HandleExpiredError:
                continue
            except XpuShareError as error:
                failed = error
        if failed is not None:
            raise failed
        return None
    finally:
        failed = None  # otherwise this frame and the error's traceback would keep each other


def _joined(words: Range, handle: bytes, place: Place) -> Group:
    group = _members.get(inode_of(os.fstat(_fd_of(words))))
    if group is None:
        kind = _native.GROUP_CHANNEL if place.kind == CHANNEL else _native.GROUP_HOME
        try:
            with _understood(place):
                group = Group(kind, [words], _native.GROUP_JOIN)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise InvalidArgumentError(
                    f"the {place.title} is open in as many processes as it can be ({_native.GROUP_MEMBERS}, or the "
                    "`members` of its channel): close it in processes that do not need it"
                ) from None
            raise from_os_error(error, f"joining the {place.title}") from error
    group.led_by(handle)
    return group


@contextlib.contextmanager
def _understood(place: Place) -> Generator[None]:
    """Raise `InvalidHandleError` if native code finds that the memory in the block is something else."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, XpuShareError):
            raise
        raise InvalidHandleError(f"the {place.title}: {error}") from error


def _has_slots(group: Group) -> bool:
    """Open the slots of a channel, unless they are open. Returns False if they were freed because the process that made
    them has ended. Raises `_NotYet` if all members have just joined, or are about to end.
    """
    if len(group.ranges) == 2:
        return not _ended(group.ranges[1])
    found = _opened(handle for _member, _words, handle in group.native.handles() if any(handle))
    if found is not None:
        group.ranges.append(found[0])
    elif not any(any(handle) for _member, _words, handle in group.native.handles()):  # of those that still live
        raise _NotYet(_Busy(None, "joining or leaving"))
    return found is not None


def _ended(slots: Range) -> bool:
    if slots.handle is None or slots.device.has(Aspect.outlives_exporter):
        return False
    try:
        memory.open_(slots.handle)
    except HandleExpiredError:
        return True
    return False


# --- places


@final
class Place:
    """This process's share of a channel, lock or atomic, which is a place in a group, and is found by a file."""

    def __init__(self, kind: int, name: str, path: Path) -> None:
        self.kind: Final = kind
        self.name: Final = name
        self.path: Final = path
        self.file: Final = path.name
        self.forks: Final = _native.forks()
        self.group: Group | None = None
        self.at: Final[list[tuple[int, int]]] = []  # the number of the place and its generation, if it is open
        self._id = b""  # of the file: inodes are used again
        _all.add(self)
        _loose.add(self)

    @property
    def title(self) -> str:
        """The name of the place for error messages."""
        return _title(self.kind, self.name)

    @property
    def native(self) -> _native.Group:
        assert self.group is not None
        return self.group.native

    @property
    def ranges(self) -> list[Range]:
        assert self.group is not None
        return self.group.ranges

    @property
    def number(self) -> int:
        """The number of the place in its group."""
        return self.at[0][0]

    @property
    def used(self) -> bool:
        """Whether this process has objects there."""
        return bool(self.at) and self.native.own(self.number) > 0

    def ended(self) -> bool:
        """Return whether the slots were freed because the process that allocated them has ended. No process can join
        such a channel.
        """
        return any(map(_ended, self.ranges[1:]))

    def enter(self, group: Group) -> None:
        if group.ends:  # the handler of a signal has interrupted that
            raise _midst(self.file)
        self.group = group
        group.places.add(self)

    def leave(self) -> None:
        """Let go of the place and its group. Others keep the place."""
        group = self.group
        if group is not None:
            if self.at:
                group.native.detach(self.number)
            self.at.clear()
            group.places.discard(self)
            _loose.add(group)
            self.group = None

    def make(self, make: Callable[[], Group], initial: int) -> bool:
        """Begin a place in the group that `make` returns, and make its file. Returns False if there is one by now."""
        global _home
        group = make()
        self.enter(group)
        try:  # one call of C, so that no interrupt comes between
            self.at.extend(starmap(group.native.begin, ((self.kind, initial),)))
        except OSError as error:
            if error.errno != errno.ENOSPC or group is not _home:
                raise from_os_error(error, f"making the {self.title}") from error
            _home = None  # it is full: the next one has room
            return False
        group.share(self._text())
        self._id = os.urandom(_ID_NBYTES)
        made = self._linked({group.native.member: group.handles[0]})
        if not made:
            group.native.end(*self.at[0])  # nobody knows it
        return made

    def _text(self) -> str:
        """Return the label of the group's exports in `ls`."""
        return _TEXT if self.kind != CHANNEL else _title(self.kind, self.name).replace("'", "")[:LABEL_MOST]

    def _linked(self, records: Mapping[int, bytes]) -> bool:
        """Make the file, with the members' handles. It appears complete. Returns False if there is one by now."""
        temporary = temporary_in(self.path.parent)
        name = str(temporary)
        number, generation = self.at[0]
        head = NAME_FILE.pack(_native.GROUP_VERSION, 0, number, self.kind, generation, self._id)
        with doing(f"making {self.path}"):
            try:
                with locked_files.make(temporary) as fd:
                    os.pwrite(fd.number, head, 0)
                    for member, handle in records.items():
                        os.pwrite(fd.number, handle, _RECORDS + member * _RECORD)
                os.link(temporary, self.path)
            except (FileExistsError, FileNotFoundError):  # not found: another process took it for one of a dead process
                return False
            finally:
                try:
                    os.unlink(name)  # nothing of Python before it, since an interrupt could prevent that
                except FileNotFoundError:
                    pass
        return True

    def open(self, fd: OwnedFd, locked: bool = False) -> _Found:
        """Open the place to which a file leads. `locked` says whether this process has the lock on the file.

        A process that removes the file takes the lock, and then looks for members. A process that opens the place does
        so the other way round. So at least one of the two sees the other.
        """
        found = _read(fd.number, self.path)
        group = _reached(found.records, self)
        if group is None:
            return _Found.ENDED
        self.enter(group)
        group.share(self._text())
        self._record(fd, group.handles[0])
        self._id = found.id
        self.at.append((found.place, found.generation))
        group.native.attach(found.place)
        if not locked:
            _expect_no_remover(fd)
            if inode_at(self.path) != inode_of(os.fstat(fd.number)):
                return _Found.ENDED
        if group.native.state(found.place, found.generation, self.kind) != _native.PLACE_SHARED:
            return _Found.ENDED
        if self.kind == CHANNEL:
            if not _has_slots(group):
                return _Found.MOVED
            group.share(self._text())
        return _Found.OPEN

    def _record(self, fd: OwnedFd, handle: bytes) -> None:
        with doing(f"writing {self.path}"):
            os.pwrite(fd.number, handle, _RECORDS + self.native.member * _RECORD)

    def remove(self, fd: OwnedFd) -> _Found:
        """Remove the file of a place that nobody has open, or whose channel has moved. If somebody has it open after
        all, open it.
        """
        lock: NameLock | None = None
        try:
            lock = NameLock.take(self.path, inode_of(os.fstat(fd.number)), _PID_AT)
            if lock is None:
                raise _NotYet(_remover(fd))
            self.leave()
            found = self.open(fd, locked=True)
            if found is _Found.MOVED:
                self.native.channel_move()  # first, so that no member waits for ever if this process dies in between
            elif found is _Found.ENDED and self.at:
                self.native.end(*self.at[0])
            if found is not _Found.OPEN:
                os.unlink(self.path)
            return found
        except FileNotFoundError:  # another process has removed it
            return _Found.ENDED
        finally:
            if lock is not None:
                lock.release()

    def admit(self, make: Callable[[], _T]) -> _T:
        """Call `make`, which makes an object of this process at the place. Raises `OSError` if the channel has no room
        for it.
        """
        try:
            with _understood(self):
                return make()
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise _NotYet(_Busy(self.native.channel_owner(), "working on")) from None
            if error.errno in (errno.EBUSY, errno.ENOSPC):
                raise  # the caller knows how many it has
            raise from_os_error(error, f"joining the {self.title}") from error

    def parting(self) -> None:
        """Record that one of this process's objects is about to leave. `reap` must follow."""
        _loose.add(self)

    def end(self) -> None:
        """Leave the place. The last process removes the file. Called again if an interrupt came."""
        with contextlib.suppress(XpuShareError, OSError):
            if self.at:
                self.part(_REMOVE_MOST)
        if _known.get(self.file) is self:
            del _known[self.file]
        with contextlib.suppress(XpuShareError):
            self.leave()
        _all.discard(self)

    def part(self, seconds: float, moves: bool = False) -> None:
        """Remove the file if nobody else has the place open, or if the channel `moves`. Otherwise remove this process's
        handle from it. Raises `_NotYet` if another process has the lock for longer than `seconds`.
        """
        fd = open_file(self.path)
        if fd is None:
            return
        lock: NameLock | None = None
        with fd:
            try:
                if _read(fd.number, self.path).id != self._id:
                    return  # somebody has removed it, and another one has the name
                end = time.monotonic() + seconds
                while (lock := NameLock.take(self.path, inode_of(os.fstat(fd.number)), _PID_AT)) is None:
                    if time.monotonic() >= end:
                        break
                    time.sleep(0.001)
                if lock is None and moves:
                    raise _NotYet(_remover(fd))
                if moves:
                    self.native.channel_move()
                if lock is not None and (moves or self.native.end(*self.at[0])):
                    os.unlink(self.path)
                else:
                    self._record(fd, bytes(_RECORD))
            except FileNotFoundError:
                pass
            finally:
                if lock is not None:
                    lock.release()

    def stands(self) -> bool:
        """Return whether the file with the name leads to this place."""
        fd = open_file(self.path)
        if fd is None:
            return False
        with fd:
            return _read(fd.number, self.path).id == self._id

    def restored(self) -> bool:
        """Return whether the file is there, after making it again if somebody has removed it. Returns False if another
        channel, lock or atomic has the name by now.
        """
        if self.ended() or self.stands():
            return True
        if inode_at(self.path) is None:
            self._linked({member: handle for member, handle, _slots in self.native.handles()})
        return self.stands()  # another member may have been faster


def reap(every: bool = False) -> None:
    """End the places at which this process has no object any more, and the groups in which it has no place. `every`
    looks also at those that it had when it last looked, since an interrupt may have prevented that an object said that
    it leaves.
    """
    global _look_at
    if holds(_lock):
        return  # within a call that joins, and reaps at its end
    with _lock:
        _at_work.clear()
        if every or len(_all) >= _look_at:
            _loose.update(_all)
        while _loose:  # the end of a place adds its group
            for each in list(_loose):
                with _working_on(each.file):
                    _reap(each)
        _look_at = 2 * len(_all) if len(_all) > _FEW else 0


def _reap(each: Group | Place) -> None:
    if each.forks != _native.forks():
        _all.discard(each)
    elif not each.used:
        each.end()
    _loose.discard(each)


on_trim(partial(reap, True))


@contextlib.contextmanager
def _working_on(file: str) -> Generator[None]:
    """Hold `_lock`, and open, close or remove a file in the block. Raises `InvalidArgumentError` if this thread runs
    the handler of a signal, or a finaliser, that has interrupted a block for the same file: it could wait for ever for
    a lock that the block has.
    """
    nested = holds(_lock)
    with _lock:
        if not nested:
            _at_work.clear()  # an interrupt may have come before a block removed its entry
        elif file in _at_work:
            raise _midst(file)
        _at_work.add(file)
        try:
            yield
        finally:
            _at_work.discard(file)


def _midst(file: str) -> InvalidArgumentError:
    kind, _, name = file.partition(".")
    return InvalidArgumentError(
        "this thread is in the midst of another call that opens, closes or lists the "
        f"{kind if name.startswith('.') else f'{kind} {name!r}'}: the handler of a signal, or a finaliser, has "
        "interrupted that call. Have the handler set a flag, and open it after the call"
    )


def alone() -> threading.RLock:
    """Return the lock that makes this process's threads open and close channels, locks and atomics one at a time."""
    return _lock


# --- files


class _Name(NamedTuple):
    """What a file says: the place to which it leads, and handles of the group's memory by their members."""

    place: int
    generation: int
    id: bytes
    records: dict[int, bytes]


def _file(kind: int, name: str) -> str:
    return f"{_KINDS[kind]}.{name}"


def _title(kind: int, name: str) -> str:
    """Return the name of a place for error messages."""
    return _KINDS[kind] if name.startswith(".") else f"{_KINDS[kind]} {name!r}"


def _read(number: int, path: Path) -> _Name:
    """Read a file. Raises `InvalidHandleError` if it is of another version of the layout."""
    with doing(f"reading {path}"):
        nbytes = min(os.fstat(number).st_size, _RECORDS + _native.GROUP_MEMBERS * _RECORD)
        raw = os.pread(number, nbytes, 0).ljust(_RECORDS, b"\0")
    version, _pid, place, _kind, generation, identity_ = NAME_FILE.unpack_from(raw)
    expect_version(str(path), version or 1, _native.GROUP_VERSION)  # the files of the first version had no number
    handles = enumerate(raw[at : at + _RECORD] for at in range(_RECORDS, len(raw) - _RECORD + 1, _RECORD))
    return _Name(place, generation, identity_, {member: handle for member, handle in handles if any(handle)})


def _remover(fd: OwnedFd) -> _Busy:
    return _Busy(NameLock.holder(fd.number, _PID_AT), "removing")


def _expect_no_remover(fd: OwnedFd) -> None:
    """Raise `_NotYet` if a process has the lock on the file, and may be about to remove it."""
    busy = _remover(fd)
    if busy.pid is not None:
        raise _NotYet(busy)


def folder() -> Path:
    """Return the folder for the files of channels, locks and atomics. It is created if it is missing, and only this
    user can access it.
    """
    found, _made = identity.folder_in("crews")
    if identity.removals != _removals:
        _restore()
    return found


def _restore() -> None:
    """Make this process's files again that were removed together with the runtime folder."""
    global _removals
    if not _lock.acquire(timeout=_RESTORE_MOST):
        return  # the next call tries again
    try:
        _removals = identity.removals
        _restore_all(_known.values())
    finally:
        _lock.release()


def _restore_all(places: Iterable[Place]) -> None:
    """Make files again that somebody has removed. If another process has used the name meanwhile, a warning says so."""
    lost: list[str] = []
    for place in list(places):
        try:
            restored = not place.used or place.restored()
        except (XpuShareError, OSError):
            restored = False
        if not restored:
            lost.append(place.title)
            _known.pop(place.file, None)
    if lost:
        _log.warning(
            "process %d has opened the %s before somebody removed the file in the runtime folder: a process that opens "
            "one of them by name now gets another one. Close them in all processes that have them open, and open them "
            "again",
            os.getpid(),
            ", the ".join(lost),
        )


def _sweep(where: Path) -> None:
    """Remove the files that dead processes have left, and make files of this process again that somebody has removed.
    Does nothing if the last call was a short time ago.
    """
    global _swept
    now = time.monotonic()
    if now - _swept < _SWEEP_REST:
        return
    _swept = now
    with doing(f"listing {where}"):
        names = os.listdir(where)
    _restore_all(_known[each] for each in _known.keys() - set(names))
    random.shuffle(names)  # the living ones may be listed first, and each process may sweep only once
    living = removed = 0
    for name in names:
        if name in _known:
            continue
        with contextlib.suppress(XpuShareError, OSError):
            with _working_on(name):
                gone = _swept_away(where / name)
            living += not gone
            removed += gone
        if living == _SWEEP_MOST or removed == _SWEEP_REMOVES:
            break


def _swept_away(path: Path) -> bool:
    """Remove a file if the processes whose handles are in it have ended. Returns whether it is gone."""
    fd = open_file(path)
    if fd is not None:
        lock: NameLock | None = None
        with fd:
            try:
                if not _is_used(fd, path):
                    lock = NameLock.take(path, inode_of(os.fstat(fd.number)), _PID_AT)
                    if lock is not None and not _is_used(fd, path):  # one may have joined meanwhile
                        os.unlink(path)
            finally:
                if lock is not None:
                    lock.release()
    return inode_at(path) is None


def _is_used(fd: OwnedFd, path: Path) -> bool:
    if path.name.startswith(locked_files.TEMPORARY) and os.fstat(fd.number).st_size < _RECORDS:
        return False  # whoever is about to write to it makes another
    makers = map(_native.Fields, _read(fd.number, path).records.values())
    return any(lives(each, exiting=True) is not False for each in makers)


# --- opening and making


def meet(
    kind: int,
    name: str,
    make: Callable[[], Group] | None,
    join: Callable[[Place], _T],
    *,
    initial: int = 0,
    timeout: float | None = None,
) -> _T | None:
    """Open the channel, lock or atomic called `name`. Calls `join` with its place. If `join` makes no object there,
    this process leaves the place again.

    `make` returns a group with room for a new place. If `make` is None and there is no channel, lock or atomic of that
    name, this returns None.

    Returns:
        The result of `join`.

    Raises:
        TimeoutError: Another process was in the way for `timeout` seconds. Without a timeout, one and the same process
            was in the way for so long that it must have failed.
    """
    path = folder() / _file(kind, name)
    turn = _Turn(_title(kind, name), timeout)
    if _loose:
        reap()  # what an interrupt has prevented
    while True:
        try:
            with _working_on(path.name):  # but not while waiting, since others do not depend on this one
                _sweep(path.parent)
                return _met(kind, name, path, make, join, initial)
        except _NotYet as error:
            busy = error.busy
        finally:
            reap()
        turn.wait(busy)


def _met(
    kind: int, name: str, path: Path, make: Callable[[], Group] | None, join: Callable[[Place], _T], initial: int
) -> _T | None:
    """Do what `meet` does, without waiting. Raises `_NotYet` if another process is in the way."""
    place = _standing(path.name)
    if place is not None and place.ended():
        if make is None:
            return None
        place.part(0.0, moves=True)
        place = None
    if place is None:
        place = Place(kind, name, path)
    try:
        return join(place) if place.at or _begun(place, make, initial) else None
    finally:
        _loose.add(place)


def _standing(file: str) -> Place | None:
    """Return the place of a file that this process has open already, or None."""
    place = _known.get(file)
    if place is None:
        return None
    if not place.used:
        place.end()  # an interrupt came between its last object and its end
        return None
    _restore_all([place])
    return place if _known.get(file) is place and (not place.ended() or place.stands()) else None


def _begun(place: Place, make: Callable[[], Group] | None, initial: int) -> bool:
    """Open a place, or make it. Returns False if there is none, and `make` is None."""
    while True:
        fd = open_file(place.path)
        if fd is None:
            if make is None:
                return False
            if place.make(make, initial):
                break
        else:
            with fd:
                _expect_no_remover(fd)
                found = place.open(fd)
                if found is _Found.MOVED and make is None:
                    return False
                if found is _Found.OPEN or place.remove(fd) is _Found.OPEN:
                    break
        place.leave()
    _known[place.file] = place
    at_leave(_leave_all, Stage.LEAVE)
    return True


@final
class _Turn:
    """Waits until another process is no longer in the way. Only a process that removes a file, or one that ends, is.
    That process is judged by the time for which it has been in the way itself, not by the time that this process has
    waited for others.
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
        return state_of(pid)[0] in (b"T", b"t")
    except OSError:
        return False


# --- looking


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
def looked_into(name: str) -> Generator[Place | None]:
    """Yield the place of a channel without joining it, so that the block can read the channel's state. Yields None if
    no living process has the channel open.
    """
    path = folder() / _file(CHANNEL, name)
    with _working_on(path.name):
        known = _known.get(path.name)
        if known is not None:
            yield known
            return
        place = Place(CHANNEL, name, path)
        try:
            yield place if _look_at_group(place) else None
        finally:
            group = place.group
            place.end()
            if group is not None:
                _reap(group)


def _look_at_group(place: Place) -> bool:
    fd = open_file(place.path)
    if fd is None:
        return False
    with fd:
        records = _read(fd.number, place.path).records
    found = _opened(records.values())
    if found is None:
        return False
    with _understood(place):
        place.enter(Group(_native.GROUP_CHANNEL, [found[0]], _native.GROUP_LOOK))
    return True


# --- the end


def _leave_all(_deadline: float) -> None:
    with _lock:
        for place in [each for each in _all if isinstance(each, Place)]:
            place.end()
        for group in [each for each in _all if isinstance(each, Group)]:
            group.end()


def _after_fork() -> None:
    global _lock, _swept, _home
    _lock = threading.RLock()
    _swept = -_SWEEP_REST
    _home = None
    for each in (_known, _members, _by_handle, _all, _loose, _at_work):
        each.clear()  # these are the parent's


os.register_at_fork(after_in_child=_after_fork)
identity.at_removal(folder)
