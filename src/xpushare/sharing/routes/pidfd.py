"""pidfd_getfd(2): the fastest route. Many containers refuse it, since it needs the right to ptrace the exporter."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from xpushare import _native
from xpushare.common import system
from xpushare.common.errors import HandleExpiredError, XpuShareError, exporter_gone, from_os_error
from xpushare.common.fds import OwnedFd
from xpushare.sharing import identity, layout
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.routes.attachment import Attachment, Blocked, Fetched, Met, Wanted

__all__ = ["attach", "fetch", "meet", "name"]

name = "pidfd_getfd"


def _why_not_permitted() -> str:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    yama = (
        f"Yama's ptrace_scope is {scope} (0 would allow it, or prctl(PR_SET_PTRACER) in the exporter); "
        if scope != "0"
        else ""
    )
    return (
        f"not permitted: {yama}the exporter runs as another user, is not dumpable (prctl PR_SET_DUMPABLE) or has "
        "more privileges, "
        "or seccomp forbids it (in containers: --cap-add=SYS_PTRACE in the importer)"
    )


def get(pidfd: int, fd: int) -> OwnedFd:
    """Get one descriptor of that process. Raises `Blocked`, or OSError with EBADF or ESRCH."""
    try:
        return system.pidfd_getfd(pidfd, fd)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise Blocked(_why_not_permitted()) from None
        if error.errno == errno.ENOSYS:
            raise Blocked("this kernel is older than Linux 5.6, or seccomp hides the call") from None
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise from_os_error(error, "pidfd_getfd") from error
        raise


def meet(handle: Handle) -> Met | None:
    """Attach to the exporter of `handle` by one native call. Returns None if this fails."""
    found = _native.meet(fields_of(handle))
    if found is None:
        return None
    mapping, domain, table, pidfd = found
    return Met(mapping, domain, table, True, pidfd)


def attach(handle: Handle) -> Attachment:
    fields = fields_of(handle)
    if fields.pid_namespace != identity.namespace("pid") or not fields.pid_namespace:
        raise Blocked(
            "the exporter is in another PID namespace (share it: --pid=container:…, hostPID, shareProcessNamespace)"
        )
    if fields.pid == os.getpid():
        # Never copy an fd of our own: closing a copy of the commons' would drop the lock by which its members see us
        # alive.
        raise exporter_gone(fields_of(handle).pid, "its pid is this process's now")
    try:
        pidfd = system.pidfd_open(fields.pid)
    except ProcessLookupError:
        raise exporter_gone(fields_of(handle).pid, "no process has its pid") from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise from_os_error(error, "pidfd_open") from error
        raise Blocked(str(error.strerror)) from None
    try:
        table = get(pidfd.number, fields.table_fd)
    except OSError as error:
        if error.errno in (errno.EBADF, errno.ESRCH):
            raise exporter_gone(
                fields_of(handle).pid, "its pid now belongs to a process without that file descriptor, or it is exiting"
            ) from None
        raise Blocked(str(error.strerror)) from None
    numbers = _commons_and_bell(table, handle)
    if numbers is None:
        raise exporter_gone(fields_of(handle).pid, "its pid or file descriptor number was used again by something else")
    try:
        commons, bell = (get(pidfd.number, number) for number in numbers)
    except OSError as error:
        if error.errno in (errno.EBADF, errno.ESRCH):
            raise exporter_gone(
                fields_of(handle).pid, f"it ended while it was being opened ({error.strerror})"
            ) from None
        raise Blocked(str(error.strerror)) from None
    return Attachment(table, commons, bell, True, pidfd)


def _commons_and_bell(table: OwnedFd, handle: Handle) -> tuple[int, int] | None:
    """Return two descriptor numbers in the exporter: that of the commons, the memory that it shares with its importers,
    and that of the bell, its eventfd. Return None if the mapped file is not the exporter's table.
    """
    try:
        system.check_memfd(table.number, layout.TABLE_NBYTES, exact=True)
        header = layout.TABLE.unpack(os.pread(table.number, layout.TABLE.size, 0))
    except ValueError:
        return None
    except OSError as error:
        raise from_os_error(error, "looking at the exporter's table") from error
    magic, _version, _pid, cookie, _namespace, commons, bell, _inode = header
    return (commons, bell) if (magic, cookie) == (layout.TABLE_MAGIC, fields_of(handle).cookie) else None


def fetch(pidfd: OwnedFd | None, wanted: Sequence[Wanted]) -> list[Fetched]:
    """Fetch the descriptors one by one, since the kernel has no call for several."""
    if pidfd is None or fields_of(wanted[0].handle).pid_namespace != identity.namespace("pid"):
        raise Blocked("the exporter is in another PID namespace")
    made = Blocked("these file descriptors are made on demand, by the exporter's socket only")
    refused: Blocked | None = None
    found: list[Fetched] = []
    for each in wanted:
        got = made if each.fds is None else refused or _fetched(pidfd, each)
        if isinstance(got, Blocked) and got is not made:
            refused = got
        found.append(got)
    if all(isinstance(each, Blocked) for each in found):
        raise refused or made
    return found


def _fetched(pidfd: OwnedFd, wanted: Wanted) -> Fetched:
    assert wanted.fds is not None
    try:
        return [get(pidfd.number, fd) for fd in wanted.fds]
    except (Blocked, XpuShareError) as error:
        return error.with_traceback(None)
    except OSError as error:
        if error.errno == errno.ESRCH or _native.dead([pidfd.number]):
            return exporter_gone(fields_of(wanted.handle).pid, "it ended")
        if error.errno == errno.EBADF:
            return HandleExpiredError("the handle has expired: the object behind it was freed just now")
        return Blocked(str(error.strerror))
