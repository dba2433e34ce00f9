"""The keeper's lock and socket in the runtime folder, which are made again if they are removed.

A logout or a cleaning of the temporary folder may remove the runtime folder while the keeper runs. Other processes make
it again at their next call, but the keeper may wait for ever. So it watches the folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from xpushare._native import NameLock
from xpushare.common import system
from xpushare.common.errors import InvalidArgumentError, XpuShareError, doing
from xpushare.common.fds import OwnedFd
from xpushare.keeper.clients import Clients, report
from xpushare.sharing import identity, keeping, naming
from xpushare.sharing.locked_files import inode_at, inode_of, make, open_file

__all__ = ["Files", "record_holder", "take_lock"]

_EVENTS: Final = 0x40 | 0x200 | 0x400 | 0x800  # IN_MOVED_FROM, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF
_LOOK: Final = 0.02  # seconds between two checks whether the removal of the folder is complete
_COMPLETE: Final = 0.5  # seconds after which what is missing is made again, although the folder is still there
_AGAIN: Final = 1.0  # seconds between two attempts, or two checks if the kernel does not report changes


def take_lock() -> NameLock | None:
    """Take the lock that only one keeper can hold, on a file that is made if it is missing. Returns None if another
    process has the lock.
    """
    path = Path(keeping.lock_path())
    while True:
        file = open_file(path)
        if file is None:
            with contextlib.suppress(FileExistsError):  # another process has made it meanwhile
                file = make(path)
        if file is None:
            continue
        with file, doing(f"locking {path}"), contextlib.suppress(FileNotFoundError):  # it was removed: make it again
            return NameLock.take(path, inode_of(os.fstat(file.number)))


def record_holder() -> None:
    """Write into the file which process is the keeper. Called as soon as this process has the lock."""
    file = open_file(Path(keeping.lock_path()))
    if file is not None:
        with file:
            os.pwrite(file.number, keeping.HOLDER.pack(os.getpid(), identity.namespace("pid")), 0)


@final
class Files:
    """Watches the keeper's files, and makes them again. `listen` makes the socket at which the keeper listens."""

    def __init__(self, clients: Clients, lock: NameLock, listen: Callable[[], None]) -> None:
        self._clients: Final = clients
        self._listen: Final = listen
        self._lock = lock  # of the running keeper
        self._changes: OwnedFd | None = None
        self._next: float | None = None  # when to check again, apart from changes
        self._missing: float | None = None  # since when a file has been missing
        self._told = ""
        self._begin()

    def pause(self) -> float | None:
        """Return the seconds until the next check, or None if only a change makes one necessary."""
        return None if self._next is None else max(self._next - time.monotonic(), 0.0)

    def tend(self, ready: list[int]) -> None:
        """Check the files if the folder has changed, or a check is due. `ready` has the descriptors that are ready."""
        now = time.monotonic()
        if self._changes is not None and self._changes.number in ready:
            os.read(self._changes.number, 1 << 16)
        elif self._next is None or now < self._next:
            return
        if self._stand():
            self._missing = None
            self._next = None if self._changes is not None else now + _AGAIN
            return
        self._missing = self._missing or now
        if inode_at(self._folder) == self._inodes[0] and now - self._missing < _COMPLETE:
            self._next = now + _LOOK  # somebody may be removing the folder file by file
            return
        self._next = now + _AGAIN  # if this attempt fails
        try:
            self._restore()
        except (OSError, XpuShareError) as error:
            if str(error) != self._told:
                self._told = str(error)
                report("making the keeper's files again", error)

    def _paths(self) -> tuple[Path, ...]:
        return self._folder, self._folder / "key", Path(keeping.lock_path()), self._folder / keeping.NAME

    def _stand(self) -> bool:
        return self._inodes == tuple(map(inode_at, self._paths()))

    def _begin(self) -> None:
        """Watch the files as they are now."""
        if self._changes is not None:
            self._clients.unwatch(self._changes.number)
            self._changes.close()
            self._changes = None
        self._folder = identity.chosen_dir()
        try:
            self._changes = system.inotify(self._folder, _EVENTS)
        except OSError:  # the user has as many as it may have
            self._next = time.monotonic() + _AGAIN
        else:
            self._clients.watch(self._changes.number)
            self._next = None
        self._missing = None
        self._inodes = tuple(map(inode_at, self._paths()))

    def _restore(self) -> None:
        naming.names_folder()  # makes the folder, the key and the names again
        _folder, _key, lock, socket = map(inode_at, self._paths())
        if lock is None or lock != self._inodes[2]:
            new = take_lock()
            if new is None:
                raise InvalidArgumentError("another keeper was started meanwhile")
            try:
                self._lock, new = new, self._lock
            finally:
                new.release()
            record_holder()
        if socket is None or socket != self._inodes[3]:
            self._listen()
        self._begin()
