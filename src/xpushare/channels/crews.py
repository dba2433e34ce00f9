"""Crews. A crew is the set of processes that share one lock, atomic or channel. This module keeps track of its members,
and lets new members find it.

A crew is a file `crews/<kind>.<name>` in the runtime folder. Member m holds a POSIX lock on byte CREW_LIFE + m of the
file for as long as it lives. The member's record in the file has the handles of the objects that the crew shares,
exported by the member's own process. A new member opens the handles of any living member, so a crew lives as long as
any process has it open, even if the process that made it has ended. A process holds the lock on byte CREW_JOIN while it
makes, joins or leaves a crew.

A process that is in a crew never opens the crew's file a second time, since closing the second descriptor would release
the locks of this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, final

from xpushare import _native
from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    DeviceError,
    HandleExpiredError,
    InvalidArgumentError,
    InvalidHandleError,
    XpuShareError,
    doing,
    from_os_error,
)
from xpushare.common.fds import OwnedFd, own_fd
from xpushare.common.leaving import Stage, at_leave
from xpushare.core import memory
from xpushare.core.labels import LABEL_MOST, label_argument
from xpushare.core.memory import Range
from xpushare.core.pickles import Implicit
from xpushare.objects.array import memory_over
from xpushare.sharing import identity, naming, node
from xpushare.sharing.handle import Handle

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
]

LOCK: Final = 1
ATOMIC: Final = 2
CHANNEL: Final = 3
_KINDS: Final = {LOCK: "lock", ATOMIC: "atomic", CHANNEL: "channel"}
_RECORD: Final = 3 * Handle.NBYTES  # handles of the control words, the slots and the member's event
_RECORDS: Final = 4096  # where the records begin; a write to byte 0 notifies listeners
_JOIN_MOST: Final = 5.0  # seconds that one process may take to join
_SWEEP_REST: Final = 10.0  # seconds between two searches for files that dead processes left
_SWEEP_MOST: Final = 64

_T = TypeVar("_T")
# POSIX locks do not exclude threads of one process. Re-entrant, since a garbage collection may close a member.
_lock = threading.RLock()
_known: dict[str, Crew] = {}  # by the name of their file
_swept = -_SWEEP_REST


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


def check_name(name: str | None) -> str:
    if name is None:
        return new_name()
    naming.check_name(name)
    return name


def check_label(label: str | None) -> str:
    """Check a member's label, which `ls` shows, and return it. None becomes an empty string."""
    return label_argument(label) or ""


@final
class Crew:
    """This process's view of a crew, which is the set of processes that share one channel, lock or atomic. `count` is
    the number of this process's objects that are members.
    """

    def __init__(self, kind: int, name: str, fd: OwnedFd, ranges: Sequence[Range], fresh: bool, initial: int) -> None:
        self.kind: Final = kind
        self.name: Final = name
        self.path: Final = folder() / _file(kind, name)
        self.forks: Final = _native.forks()
        self.ranges: Final = tuple(ranges)
        self.exports: Final[list[Implicit]] = []
        self._handles: Final[list[Handle]] = []
        self.count = 0
        found = os.fstat(fd.number)
        self.inode: Final = found.st_dev, found.st_ino
        self.number: Final = fd.number
        self.native: Final = _native.Crew(fd, memoryview(memory_over(ranges[0])), kind, fresh, initial)

    def ended(self) -> bool:
        """Return whether shared memory of the crew was freed because the process that allocated it has ended. No
        process can join such a crew.
        """
        return any(map(_ended, self.ranges))

    def handles(self) -> list[Handle]:
        """Return the handles by which others open the crew's objects. This process exports all objects itself, even
        those that it has imported. The exception is memory that cannot outlive the process that made it. For such
        memory, the handle of that process is returned.
        """
        if not self._handles:
            kind = _KINDS[self.kind]
            text = kind if self.name.startswith(".") else f"{kind} {self.name}"[:LABEL_MOST]  # for `ls`
            for each in self.ranges:
                if each.handle is None or each.device.has(Aspect.outlives_exporter):
                    self.exports.append(Implicit(memory.get(each, implicit=True)))
                    node.current().table().label(self.exports[-1].handle, text)
                    self._handles.append(self.exports[-1].handle)
                else:
                    self._handles.append(each.handle)
        return self._handles

    def admit(self, make: Callable[[_native.Crew], _T], member: Callable[[_T], int]) -> _T:
        """Call `make`, which adds a member to the crew, and write the member's record. `member` returns the member's
        number. The caller holds the lock for joining.
        """
        self.handles()
        made = make(self.native)
        try:
            self.record(member(made), self.handles())
        except BaseException:
            del made  # its destructor leaves the crew
            raise
        self.count += 1
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

    def part(self) -> None:
        """Record that one of this process's members has left. Once the last of them has left, this process leaves the
        crew.
        """
        if self.forks != _native.forks():
            return
        with _lock:
            self.count -= 1
            if not self.count:
                self.end()

    def end(self) -> None:
        if _known.get(self.path.name) is self:
            del _known[self.path.name]
        with contextlib.suppress(XpuShareError, OSError):
            if _joining(self.number, self.path, 0.1):
                _remove_if_empty(self.path, self.number, self.inode)
        self.native.close()
        self.exports.clear()
        self._handles.clear()


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


def folder() -> Path:
    """Return the folder for the files of channels, locks and atomics. It is created if it is missing, and only this
    user can access it.
    """
    found = identity.runtime_dir() / "crews"
    try:
        found.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise from_os_error(error, f"making {found}") from error
    identity.check_folder(found)
    return found


def _joining(number: int, path: Path, seconds: float) -> bool:
    """Lock byte CREW_JOIN of a crew's file, as each process does while it joins or leaves the crew. Returns False if
    another process, perhaps a stopped one, still holds the lock after `seconds`.
    """
    end = time.monotonic() + seconds
    with doing(f"locking {path}"):
        while not _native.lock(number, _native.CREW_JOIN):
            if time.monotonic() >= end:
                return False
            time.sleep(0.0005)
    return True


def _joined(number: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.lockf(number, fcntl.LOCK_UN, 1, _native.CREW_JOIN)


def _anybody(number: int) -> bool:
    return _native.lock_holder(number, _native.CREW_LIFE, _native.CREW_MEMBERS) is not None


def _remove_if_empty(path: Path, number: int, inode: tuple[int, int]) -> None:
    """Remove the crew's file if no other process is in the crew. The caller holds the lock for joining."""
    if not _anybody(number) and _inode_at(path) == inode:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _inode_at(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(error, f"looking at {path}") from error
    return found.st_dev, found.st_ino


def _opened(path: Path, create: bool) -> OwnedFd | None:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    try:
        fd = own_fd(os.open, path, flags, 0o600)
        found = os.fstat(fd.number)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(error, f"opening {path}") from error
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidHandleError(f"{path} is not a file of this user")
    return fd


@contextlib.contextmanager
def meet(
    kind: int, name: str, create: Callable[[], Sequence[Range]] | None, initial: int = 0
) -> Generator[tuple[Crew, bool] | None]:
    """Join the crew called `name`. While the block runs, no other process can join or leave.

    Yields the crew, and whether this call made it. `create` allocates the memory for a new crew. Yields None if
    `create` is None and no such crew exists. If the block adds no member, this process leaves the crew again.
    """
    path = folder() / _file(kind, name)
    with _lock:
        _sweep(path.parent)
        crew = _known.get(path.name)
        if crew is not None and (crew.inode != _inode_at(path) or not crew.count):
            crew = None  # its file was removed, and another crew has the name by now
        if crew is not None and crew.ended():
            if create is None:
                yield None
                return
            if not _joining(crew.number, path, _JOIN_MOST):
                raise _stuck(crew.number, path)
            _give_up(crew.native, path, crew.inode)
            _joined(crew.number)
            crew = None
        made = crew is None
        fresh = False
        if crew is None:
            found = _begin(kind, name, path, create, initial)
            if found is None:
                yield None
                return
            crew, fresh = found
        elif not _joining(crew.number, path, _JOIN_MOST):
            raise _stuck(crew.number, path)
        crew.count += 1  # so that closing another member meanwhile does not end it
        try:
            yield crew, fresh
        finally:
            _joined(crew.number)
            crew.count -= 1
            if crew.count and made:
                at_leave(_leave_all, Stage.LEAVE)
                _known[path.name] = crew
            elif not crew.count:
                crew.end()


def _stuck(number: int, path: Path) -> InvalidArgumentError:
    holder = _native.lock_holder(number, _native.CREW_JOIN)
    return InvalidArgumentError(
        f"process {holder} has been joining {path.name!r} for {_JOIN_MOST:g} s: it seems to be stopped. "
        "Resume or end it"
    )


def _give_up(native: _native.Crew, path: Path, inode: tuple[int, int]) -> None:
    """Notify the members of a channel whose slots were freed that they have to move to its replacement. Only then
    remove the file, so that no member waits for ever if this process dies in between. The caller holds the lock for
    joining.
    """
    _native.channel_move(native)
    if _inode_at(path) == inode:
        os.unlink(path)


def _begin(
    kind: int, name: str, path: Path, create: Callable[[], Sequence[Range]] | None, initial: int
) -> tuple[Crew, bool] | None:
    """Open the file of a crew, and the objects that a living member shares. Returns the crew, and whether it is new. If
    there is no living member, `create` allocates the objects. Returns None if there is no living member and `create` is
    None.
    """
    while True:
        fd = _opened(path, create is not None)
        if fd is None:
            return None
        if not _joining(fd.number, path, _JOIN_MOST):
            raise _stuck(fd.number, path)
        found = os.fstat(fd.number)
        inode = found.st_dev, found.st_ino
        if _inode_at(path) != inode:
            continue  # its last member has removed it meanwhile
        ranges, ended = _shared_by_any(fd, path)
        if ranges is None:
            if create is None:
                _remove_if_empty(path, fd.number, inode)
                return None
            with doing(f"writing {path}"):
                os.ftruncate(fd.number, 0)
            return Crew(kind, name, fd, create(), True, initial), True
        if ended and create is None:
            return None
        try:
            if not ended:
                return Crew(kind, name, fd, ranges, False, initial), False
            native = _native.Crew(fd, memoryview(memory_over(ranges[0])), kind, False, 0)
            _give_up(native, path, inode)
            native.close()
        except ValueError as error:
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
    return sorted(each.removeprefix(start) for each in found if each.startswith(start))


@contextlib.contextmanager
def looked_into(kind: int, name: str) -> Generator[Crew | None]:
    """Yield the crew of a channel, lock or atomic without joining it, so that the block can read the crew's shared
    state. Yields None if the crew has no living member.
    """
    path = folder() / _file(kind, name)
    with _lock:
        known = _known.get(path.name)
        if known is not None:
            yield known
            return
        fd = _opened(path, False)
        ranges = None if fd is None else _shared_by_any(fd, path, 1)[0]
        if fd is None or ranges is None:
            yield None
            return
        crew = Crew(kind, name, fd, ranges, False, 0)
        try:
            yield crew
        finally:
            crew.native.close()


def _shared_by_any(fd: OwnedFd, path: Path, most: int = 2) -> tuple[list[Range] | None, bool]:
    """Open at most `most` of the objects that a living member shares. Returns them, or None if no member is alive, and
    a flag. The flag is true for a channel whose slots were freed because the process that made them has ended. Then
    only the first object, the channel's state, was opened.
    """
    if not _anybody(fd.number):
        return None, False
    last: XpuShareError | None = None
    words: Range | None = None
    for member in living(fd.number):
        raw = os.pread(fd.number, _RECORD, _RECORDS + member * _RECORD)
        parts = [raw[at : at + Handle.NBYTES] for at in range(0, len(raw), Handle.NBYTES)]
        opened: list[Range] = []
        try:
            opened.extend(memory.open_(part) for part in parts[:most] if any(part))
        except XpuShareError as error:
            last = error
            if opened and isinstance(error, HandleExpiredError):
                words = opened[0]
        else:
            return opened, False
    if last is None or isinstance(last, HandleExpiredError):  # the members died meanwhile, or are dying
        if not _anybody(fd.number):
            return None, False
        if words is not None:
            return [words], True
        raise last or DeviceError(f"nobody who has {path.name!r} open shares it")
    raise last


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
    for name in names[:_SWEEP_MOST]:
        if name in _known:
            continue
        with contextlib.suppress(XpuShareError, OSError):
            inode = _inode_at(where / name)
            if inode is None or any(crew.inode == inode for crew in _known.values()):
                continue
            fd = _opened(where / name, False)
            if fd is not None and not _anybody(fd.number) and _joining(fd.number, where / name, 0.0):
                _remove_if_empty(where / name, fd.number, inode)


def _leave_all(_deadline: float) -> None:
    with _lock:
        for crew in list(_known.values()):
            crew.end()


def _after_fork() -> None:
    global _lock, _swept
    _lock = threading.RLock()
    _swept = -_SWEEP_REST
    _known.clear()  # these are the parent's crews, whose fds the engine has closed


os.register_at_fork(after_in_child=_after_fork)
