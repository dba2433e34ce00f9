"""Check the routes, which are ways to pass file descriptors from one process to another. Report whether each route
reaches a process, and what blocks it.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpushare.adapters.vendor import Check
from xpushare.cli.doctor.machine import kernel_version, status, yama

if TYPE_CHECKING:
    from xpushare._native import OwnedFd

__all__ = ["ROUTES", "examine", "probe", "why_no_getfd"]

ROUTES: Final = ("pidfd_getfd", "socket")
_PTRACE_CAP: Final = (
    "docker run --cap-add=SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE] (the importer)"
)


def examine(pid: int) -> Iterator[Check]:
    """Report whether this process can open the objects that another process shares."""
    yield _reach_getfd(pid)
    yield _reach_socket(pid)


def _tried(call: Callable[[], OwnedFd]) -> int:
    """Make a call that returns a file descriptor, and close the descriptor. Return the errno if the call fails,
    otherwise 0.
    """
    try:
        call().close()
    except OSError as error:
        return error.errno or -1
    return 0


def probe(pid: int, fd: int) -> dict[str, int]:
    """Return the errno of three system calls, or 0 for a call that succeeds. The calls are pidfd_open on the process
    `pid`, pidfd_getfd on this process itself (which needs no permission), and pidfd_getfd on the process `pid`.
    """
    from xpushare import _native

    found = {"open": 0, "self": 0, "get": 0}
    try:
        own = os.pidfd_open(os.getpid())
        found["self"] = _tried(lambda: _native.OwnedFd.fetched(own, own))
        os.close(own)
        other = os.pidfd_open(pid)
    except OSError as error:
        found["open"] = error.errno or -1
        return found
    found["get"] = _tried(lambda: _native.OwnedFd.fetched(other, fd))
    os.close(other)
    if found["get"] == errno.EBADF:  # the kernel checks the permission before the descriptor
        found["get"] = 0
    return found


def why_no_getfd(
    found: dict[str, int], importer: dict[str, str], exporter: dict[str, str], dumpable: int | None, yama: str
) -> tuple[str, str]:
    """Return why a probe of pidfd_getfd failed, and what to change.

    `importer` and `exporter` are the contents of /proc/<pid>/status. `dumpable` is the result of
    prctl(PR_GET_DUMPABLE), or None if it is unknown.
    """
    release = platform.release()
    for step, call, since in (("open", "pidfd_open", (5, 3)), ("self", "pidfd_getfd", (5, 6))):
        number = found[step]
        if number == errno.ESRCH:
            return "there is no such process", "another pid"
        if number and kernel_version() < since:
            return f"kernel {release} has no {call}", f"Linux {since[0]}.{since[1]} or newer"
        if number in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            why = f"seccomp blocks {call} ({errno.errorcode[number]}, also on this very process)"
            if call == "pidfd_getfd":
                return why, f"{_PTRACE_CAP}: the default profile allows the call with it; or allow it in yours"
            return why, f"allow {call} in the seccomp profile"
        if number:
            return f"{call}: {os.strerror(number)}", "ulimit -n 4096" if number == errno.EMFILE else "see errno(3)"
    if found["get"] != errno.EPERM:
        return f"pidfd_getfd: {os.strerror(found['get'])}", "restart the exporter"
    mine, theirs = importer.get("Uid", "?").split(), exporter.get("Uid", "?").split()
    if mine[0] not in theirs[:3] or len(set(theirs[:3])) > 1:
        return (
            f"the exporter runs as user {theirs[0]}, the importer as {mine[0]}",
            "run both as one user: handles of another user's key are refused on every route",
        )
    if yama != "0":
        who = {"1": "only ancestors may", "2": "only with CAP_SYS_PTRACE"}.get(yama, "nobody may")
        fix = f"sysctl kernel.yama.ptrace_scope=0, or {_PTRACE_CAP}"
        return f"Yama's ptrace_scope is {yama}: {who}", fix if yama in ("1", "2") else "start the machine without it"
    if dumpable is not None and dumpable != 1:
        why = "the exporter is not dumpable: its program has privileges, cannot be read, or called prctl"
        return why, f"prctl(PR_SET_DUMPABLE, 1) in the exporter, or {_PTRACE_CAP}"
    more = int(exporter.get("CapPrm", "0"), 16) & ~int(importer.get("CapPrm", "0"), 16)
    if more:
        names = ", ".join(str(bit) for bit in range(64) if more >> bit & 1)
        return (
            f"the exporter has capabilities that the importer lacks (numbers {names})",
            f"run both with the same capabilities, or {_PTRACE_CAP}",
        )
    return (
        "the exporter is not dumpable, in another user namespace, or a security module forbids it",
        f"prctl(PR_SET_DUMPABLE, 1) in the exporter, or {_PTRACE_CAP}",
    )


def _listeners() -> list[bytes]:
    """Return the addresses of all exporters' sockets in this network namespace."""
    found = re.findall(rb"@(xpushare/[0-9a-f]{32})$", Path("/proc/net/unix").read_bytes(), re.MULTILINE)
    return list(dict.fromkeys(found))


def _served_by(pid: int, addresses: Iterable[bytes | str]) -> int | None:
    """Connect to one socket after another until the socket of process `pid` answers. Return the user id of that
    process, or None if none of the sockets belongs to the process.
    """
    from xpushare.common import system

    for address in addresses:
        try:
            with system.connect(address, 2.0) as connection:
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            continue  # it has ended, or belongs to another user and is out of reach
        peer, uid, _gid = struct.unpack("iII", credentials)
        if peer == pid:
            return int(uid)
    return None


def _reach_socket(pid: int) -> Check:
    """Check whether the socket of process `pid` can be reached. Like an importer, look in the runtime folder first, and
    then in this network namespace.
    """
    from xpushare.sharing import door

    name = "socket"
    with door.paths() as paths:
        uid = _served_by(pid, paths)
    if uid is None:
        try:
            uid = _served_by(pid, _listeners())
        except OSError as error:
            return Check("routes", name, "skipped", f"/proc/net/unix: {error.strerror}", "mount -t proc proc /proc")
    if uid is not None:
        if uid != os.geteuid():
            why = f"it serves its own user ({uid}) only, this process runs as {os.geteuid()}"
            return Check("routes", name, "fails", why, "run both as one user")
        return Check("routes", name, "works", "its socket takes connections from here")
    try:
        apart = os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    except OSError:
        apart = None
    if apart:
        why = "the process is in another network namespace, and has no socket in this runtime folder"
        fix = (
            "mount one runtime folder into both (XPUSHARE_RUNTIME_DIR), or share the network namespace: "
            "--network=container:…, hostNetwork, one pod"
        )
        return Check("routes", name, "fails", why, fix)
    why = "the process has no socket here: it shares nothing now"
    if apart is None:
        why += ", or is in another network namespace (which may not be asked)"
    return Check("routes", name, "skipped", why, "export something in that process first")


def _reach_getfd(pid: int) -> Check:
    name = "pidfd_getfd"
    found = probe(pid, 0)
    if not any(found.values()):
        try:
            apart = os.stat(f"/proc/{pid}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            apart = False
        if apart:
            fix = "share the PID namespace: --pid=container:…, hostPID, shareProcessNamespace"
            return Check("routes", name, "fails", "permitted, but its pids are those of another PID namespace", fix)
        return Check("routes", name, "works", "this process may take its file descriptors")
    try:
        theirs = status(pid)
    except OSError:
        theirs = {}
    dumpable: int | None = None
    try:
        if os.stat(f"/proc/{pid}/environ").st_uid != os.stat(f"/proc/{pid}").st_uid:
            dumpable = 0  # proc(5): the files of such a process belong to root
    except OSError:
        pass
    why, fix = why_no_getfd(found, status(), theirs, dumpable, yama())
    return Check("routes", name, "fails", why, fix)
