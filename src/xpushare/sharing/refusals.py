"""The errors for an exporter that cannot be reached, made from the codes with which native code refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from xpushare._native import CONSTANTS, Fields, Refusal
from xpushare.common.errors import InvalidHandleError, OutOfMemoryError, exporter_gone, from_os_error
from xpushare.sharing import layout

__all__ = ["Blocked", "error_of", "why_blocked"]


class Blocked(Exception):
    """Raised if a route is blocked. The text names the obstacle, and how to remove it."""


_Maker = Callable[[Refusal, Fields], Exception]


def _gone(how: str) -> _Maker:
    return lambda refusal, fields: exporter_gone(fields.pid, how.format(os.strerror(refusal.errno)))


def _failed(doing: str) -> _Maker:
    def make(refusal: Refusal, fields: Fields) -> Exception:
        error = OSError(refusal.errno, f"{refusal.what}: {os.strerror(refusal.errno)}")
        return from_os_error(error, doing.format(what=refusal.what, pid=fields.pid))

    return make


def _invalid(text: str) -> _Maker:
    return lambda refusal, fields: InvalidHandleError(text.format(what=refusal.what, pid=fields.pid))


def _version(what: str) -> _Maker:
    return lambda refusal, fields: layout.wrong_version(
        f"{what} of process {fields.pid}", refusal.detail, layout.TABLE_VERSION
    )


def why_blocked(call: str, number: int) -> Blocked:
    """Return the error for a system call of the route by pidfd_getfd that failed with the errno `number`."""
    if call != "pidfd_getfd" or number not in (errno.EPERM, errno.ENOSYS):
        return Blocked(f"{call}: {os.strerror(number)}")
    if number == errno.ENOSYS:
        return Blocked("this kernel is older than Linux 5.6, or seccomp hides the call")
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    yama = (
        f"Yama's ptrace_scope is {scope} (0 would allow it, or prctl(PR_SET_PTRACER) in the exporter); "
        if scope != "0"
        else ""
    )
    return Blocked(
        f"not permitted: {yama}the exporter runs as another user, is not dumpable (prctl PR_SET_DUMPABLE) or has "
        "more privileges, "
        "or seccomp forbids it (in containers: --cap-add=SYS_PTRACE in the importer)"
    )


_MAPPING: Final = "mapping the table of process {pid}"
_MAKERS: Final[dict[int, _Maker]] = {
    CONSTANTS[f"REFUSED_{name}"]: maker
    for name, maker in {
        "OTHER_PIDS": lambda _refusal, _fields: Blocked(
            "the exporter is in another PID namespace (share it: --pid=container:…, hostPID, shareProcessNamespace)"
        ),
        "PIDFD_BLOCKED": lambda refusal, _fields: why_blocked(refusal.what, refusal.errno),
        "PID_OURS": _gone("its pid is this process's now"),
        "PID_UNUSED": _gone("no process has its pid"),
        "PID_REUSED": _gone("its pid now belongs to a process without that file descriptor, or it is exiting"),
        "FD_REUSED": _gone("its pid or file descriptor number was used again by something else"),
        "MET_ENDING": _gone("it ended while it was being opened ({})"),
        "CALL_FAILED": _failed("{what}"),
        "TABLE_UNREAD": _failed("looking at the exporter's table"),
        "TABLE_FAILED": _failed(_MAPPING),
        "TABLE_UNFIT": _invalid(_MAPPING + ": {what}"),
        "TABLE_OTHER": _invalid(_MAPPING + ": it is not the one that the handle names"),
        "TABLE_VERSION": _version("the table"),
        "COMMONS_OTHER": _invalid(_MAPPING + ": its commons is another file"),
        "COMMONS_VERSION": _version("the commons"),
        "COMMONS_FULL": lambda refusal, fields: OutOfMemoryError(
            f"process {fields.pid} serves as many importing processes as it can (1023)", native=refusal.errno
        ),
    }.items()
}


def error_of(refusal: Refusal, fields: Fields) -> Exception:
    """Return the error for a refused attempt to reach the exporter that `fields` name. It is `Blocked` if another route
    may succeed.
    """
    return _MAKERS[refusal.code](refusal, fields)
