"""pidfd_getfd(2): the fastest route. Many containers refuse it, since it needs the right to ptrace the exporter."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from xpushare import _native
from xpushare.common import system
from xpushare.common.errors import HandleExpiredError, XpuShareError, exporter_gone, from_os_error
from xpushare.common.fds import OwnedFd
from xpushare.sharing import identity
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.refusals import why_blocked
from xpushare.sharing.routes.attachment import Blocked, Fetched, Met, Wanted, met

__all__ = ["fetch", "meet", "name"]

name = "pidfd_getfd"


def get(pidfd: int, fd: int) -> OwnedFd:
    """Get one descriptor of that process. Raises `Blocked`, or OSError with EBADF or ESRCH."""
    try:
        return system.pidfd_getfd(pidfd, fd)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise why_blocked("pidfd_getfd", error.errno) from None
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise from_os_error(error, "pidfd_getfd") from error
        raise


def meet(handle: Handle) -> Met:
    return met(handle)


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
