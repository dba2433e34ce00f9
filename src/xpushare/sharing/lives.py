"""Whether other processes live: those that made a handle, and those that published a name.

The file of a name contains its publisher's `record`. This is a handle that leads to no export: the fields by which
handles identify their exporter, its table among them. A process lives as long as it has its table open, which /proc
shows, or listens at its socket. Nothing that happens to files with a path ends a life.
"""

from __future__ import annotations

import os
from typing import Final, final

from xpushare import _native
from xpushare._native import STRUCTS, Fields
from xpushare.common import system
from xpushare.common.fds import OwnedFd, own_fd
from xpushare.sharing import identity, node
from xpushare.sharing.handle import VERSION, Handle

__all__ = ["RECORD_NBYTES", "Publisher", "lives", "publisher", "record", "state_of"]

RECORD_NBYTES: Final = Handle.NBYTES
_TABLE: Final = "/memfd:xpushare-table"
_COOKIE_AT: Final = STRUCTS["table"]["cookie"][0]
_EXITING: Final = 4  # PF_EXITING of the kernel
_ENDED: Final = (b"Z", b"X")


def lives(fields: Fields, exiting: bool = False) -> bool | None:
    """Return whether the process that made a handle with these fields lives, or None if /proc does not show that. With
    `exiting`, a process that exits lives until its last thread has ended, and otherwise until the kernel has closed its
    files. This is quick, and attaches to no process.
    """
    if fields.boot_id != identity.boot_id():
        return False
    if fields.pid_namespace != identity.namespace("pid"):
        return None
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # /proc shows another PID namespace
            return None
        if _has_table(fields):
            return True
        if not exiting:
            return False
        state, flags, threads = state_of(fields.pid)
        return flags & _EXITING != 0 and (state not in _ENDED or threads > 1)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return None


def _has_table(fields: Fields) -> bool:
    """Return whether the process with that pid has that table open."""
    threads = [str(fields.pid)]
    for each in threads:
        path = f"/proc/{each}/fd/{fields.table_fd}"
        try:
            if not os.readlink(path).startswith(_TABLE):
                return False
            with own_fd(os.open, path, os.O_RDONLY | os.O_CLOEXEC) as fd:
                return os.pread(fd.number, len(fields.cookie), _COOKIE_AT) == fields.cookie
        except FileNotFoundError:
            if len(threads) == 1:  # the main thread may have ended before the others
                threads += os.listdir(f"/proc/{fields.pid}/task")
    return False


def state_of(pid: int | None) -> tuple[bytes, int, int]:
    """Return the state of a process, its flags, and the number of its threads."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        found = file.read().rpartition(b")")[2].split()
    return found[0], int(found[6]), int(found[17])


def record() -> bytes:
    """Return the record of this process, which serves importers from now on."""
    table = node.current().table()
    table.serve()
    return table.common.ljust(RECORD_NBYTES, b"\0")


@final
class Publisher:
    """A process that published a name, and was alive when this object was made."""

    __slots__ = ("_fields", "pid", "pidfd")

    def __init__(self, pid: int, fields: Fields | None = None) -> None:
        """Make the object. Without `fields`, nothing here can tell whether the process is still alive."""
        self.pid = pid  # 0 if it is not visible here
        self.pidfd: OwnedFd | None = None  # after `watch`
        self._fields = fields

    def watch(self) -> None:
        """Open the pidfd, if the process is visible here."""
        if self._fields is not None and self.pid:
            try:
                pidfd = system.pidfd_open(self.pid)
            except OSError:  # it has ended, or must not be asked
                return
            if publisher(self._fields) is not None:  # otherwise another process may have the pid by now
                self.pidfd = pidfd

    def ended(self) -> bool:
        """Return whether the process has ended. A process that cannot be reached any more counts as alive."""
        if self.pidfd is not None:
            return bool(_native.dead([self.pidfd.number]))
        return self._fields is not None and publisher(self._fields) is None


def publisher(fields: Fields) -> Publisher | None:
    """Return the process of a record, or None if it has ended. A process that cannot be reached counts as alive."""
    if not fields.pid:  # it has withdrawn the name
        return None
    if fields.version != VERSION:
        return Publisher(0)
    if node.current().is_own(fields.cookie):
        return Publisher(os.getpid(), fields)
    alive = lives(fields)
    if alive is not None:
        return Publisher(fields.pid, fields) if alive else None
    from xpushare.sharing.routes.socket import listener  # rarely needed

    pid = listener(fields)
    return None if pid is None else Publisher(pid, fields)
