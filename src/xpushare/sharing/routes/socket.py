"""The exporter's own sockets (SCM_RIGHTS). They need no rights over the exporter: the same user suffices, with a common
runtime folder or network namespace.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from xpushare._native import CONSTANTS, LAYOUT, Fields, read_reply, request
from xpushare.common import system
from xpushare.common.errors import HandleExpiredError, InvalidHandleError, exporter_gone, from_os_error
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing import door, identity
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.routes.attachment import Attachment, Blocked

__all__ = ["attach", "fetch", "meet", "name", "together"]

name = "socket"
TIMEOUT: Final = 2.0  # seconds for one answer
_REPLY_NBYTES: Final = LAYOUT["reply.size"]
_HELLO: Final = CONSTANTS["OP_HELLO"]
_FDS: Final = CONSTANTS["OP_FDS"]
_OK: Final = CONSTANTS["STATUS_OK"]
_STATUS: Final = {
    CONSTANTS["STATUS_MALFORMED"]: "called our request malformed",
    CONSTANTS["STATUS_OTHER_USER"]: "serves its own user only",
    CONSTANTS["STATUS_BUSY"]: "is busy",
    CONSTANTS["STATUS_DRIVER_ERROR"]: "got an error from its driver",
}
_NOT_LIVE: Final = CONSTANTS["STATUS_NOT_LIVE"]


def _connect(fields: Fields) -> socket.socket:
    """Connect to the exporter's socket in the runtime folder, which only its user can reach, else to its abstract
    socket, which needs no common folder but is open to everybody in its network namespace.
    """
    gone = exporter_gone(fields.pid, "nobody listens at its socket")
    with door.path(fields.cookie) as path:
        if path is not None:
            try:
                return system.connect(path, TIMEOUT)
            except ConnectionRefusedError:
                raise gone from None
            except (FileNotFoundError, PermissionError):
                pass  # another folder, or none
    try:
        return system.connect(b"xpushare/" + fields.cookie.hex().encode(), TIMEOUT)
    except ConnectionRefusedError:
        if fields.net_namespace and fields.net_namespace == identity.namespace("net"):
            raise gone from None
        raise Blocked(
            "nobody listens: the exporter has ended, or is in another network namespace (share it: "
            "--network=container:…, hostNetwork, one pod), and has another runtime folder (mount one into both: "
            "XPUSHARE_RUNTIME_DIR)"
        ) from None


class _Together(threading.local):
    """This thread's connection to the exporter that it asked last, within `together`."""

    depth = 0
    cookie = b""
    connection: socket.socket | None = None

    def take(self, cookie: bytes) -> socket.socket | None:
        """Return the connection if it leads to that exporter; otherwise close it."""
        connection, self.connection = self.connection, None
        if connection is not None and self.cookie != cookie:
            connection.close()
            return None
        return connection

    def keep(self, cookie: bytes, connection: socket.socket) -> None:
        if self.depth:
            self.cookie, self.connection = cookie, connection
        else:
            connection.close()


_together: Final = _Together()


@contextmanager
def together() -> Generator[None]:
    """Within the block, send this thread's requests to an exporter over one connection."""
    _together.depth += 1
    try:
        yield
    finally:
        _together.depth -= 1
        if not _together.depth and (connection := _together.take(b"")) is not None:
            connection.close()


def _ask(handle: Handle, op: int, first: int, again: bool = True) -> tuple[list[OwnedFd], int]:
    """Make one request. Returns the descriptors, and how many the entry has in all."""
    fields = fields_of(handle)
    known = _together.take(fields.cookie)
    try:
        connection = _connect(fields) if known is None else known
    except TimeoutError:
        raise Blocked(f"the exporter's socket did not take the connection within {TIMEOUT:g} s") from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise from_os_error(error, "connecting to the exporter") from error
        raise Blocked(f"connecting to the exporter: {error.strerror}") from None
    fds: list[OwnedFd] = []
    kept = False
    try:
        pid, uid, _gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise Blocked(
                f"the exporter's socket belongs to user {uid}, this process runs as {os.geteuid()}: run both as one "
                "user of the host (in containers: the same user: and user namespace)"
            )
        system.send(connection, request(op, fields, first))
        data, fds = system.receive(connection, _REPLY_NBYTES)
        if not data and known is not None:
            raise ConnectionResetError  # an exporter lets nobody in for long
        if len(data) != _REPLY_NBYTES:
            raise Blocked("the exporter closed the connection without an answer")
        try:
            status, total = read_reply(data, len(fds))
        except ValueError as error:
            raise InvalidHandleError(str(error)) from None
        if status == _NOT_LIVE:
            raise HandleExpiredError("the handle has expired: the exporter withdrew it")
        if op == _HELLO and len(fds) == 4 and not _is_of(fds[3], pid):
            raise InvalidHandleError("the exporter's answer makes no sense: its pidfd is of another process")
        if status != _OK:
            raise Blocked(f"the exporter {_STATUS.get(status, f'answered status {status}')}")
        kept = True
    except TimeoutError:
        close_all(fds)
        raise Blocked(f"the exporter did not answer within {TIMEOUT:g} s") from None
    except OSError as error:
        close_all(fds)
        if again and isinstance(error, ConnectionResetError | BrokenPipeError):
            return _ask(handle, op, first, known is not None)  # it ended just now: then nobody listens any more
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise from_os_error(error, "talking to the exporter") from error
        raise Blocked(f"talking to the exporter: {error.strerror}") from None
    except BaseException:
        close_all(fds)
        raise
    finally:
        if kept:
            _together.keep(fields.cookie, connection)
        else:
            connection.close()
    return fds, total


def _is_of(pidfd: OwnedFd, pid: int) -> bool:
    """Return whether the pidfd belongs to the listening process, as far as /proc shows. Another process's pidfd would
    not report this one's death.
    """
    try:
        with open(f"/proc/self/fdinfo/{pidfd.number}", encoding="ascii") as file:
            found = [int(line[4:]) for line in file if line.startswith("Pid:")]
    except FileNotFoundError:
        return True
    return (
        found == [pid] or found == [-1] or (len(found) == 1 and pid == 0)
    )  # -1: it has ended; 0: in no namespace of ours


def meet(handle: Handle) -> None:
    """Return None: this route has no fast path, since the exporter may not answer."""


def attach(handle: Handle) -> Attachment:
    fds, _total = _ask(handle, _HELLO, 0)
    if not 3 <= len(fds) <= 4:
        close_all(fds)
        raise InvalidHandleError("the exporter's answer makes no sense: three or four file descriptors make a greeting")
    table, commons, bell, *pidfd = fds
    return Attachment(table, commons, bell, False, pidfd[0] if pidfd else None)


def fetch(pidfd: OwnedFd | None, handle: Handle, fds: tuple[int, ...] | None, count: int) -> list[OwnedFd]:  # noqa: ARG001
    got: list[OwnedFd] = []
    try:
        while len(got) < count:
            batch, total = _ask(handle, _FDS, len(got))
            got += batch
            if total != count or not batch:
                raise InvalidHandleError(
                    f"the exporter's table says {count} file descriptors, its socket sent {len(got)} of {total}"
                )
    except BaseException:
        close_all(got)
        raise
    return got
