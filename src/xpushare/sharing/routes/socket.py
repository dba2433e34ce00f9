"""The exporter's own sockets (SCM_RIGHTS). They need no rights over the exporter: the same user suffices, with a common
runtime folder or network namespace.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

from xpushare._native import CONSTANTS, LAYOUT, End, Fields, PeerTable, read_reply, request
from xpushare.common import system
from xpushare.common.errors import (
    HandleExpiredError,
    InvalidHandleError,
    XpuShareError,
    exporter_gone,
    from_os_error,
)
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing import door, identity
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.routes import Blocked, Fetched, Met, Wanted, met

__all__ = ["fetch", "listener", "meet", "name"]

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
# Statuses that hold for all later entries, too, so that another request for these would not help.
_OF_ALL: Final = (CONSTANTS["STATUS_MALFORMED"], CONSTANTS["STATUS_OTHER_USER"], CONSTANTS["STATUS_BUSY"])
_AT_ONCE: Final = CONSTANTS["FDS_AT_ONCE"]


def _connect(fields: Fields) -> socket.socket:
    """Connect to the exporter's socket in the runtime folder, which only its user can reach. If there is no such
    socket, connect to its abstract socket, which needs no common folder but is open to everybody in its network
    namespace.
    """
    gone = exporter_gone(fields.pid, "nobody listens at its socket")
    with door.path(fields.cookie) as path:
        if path is not None:
            try:
                return system.connect(path, TIMEOUT)
            except ConnectionRefusedError:
                raise gone from None
            except (FileNotFoundError, PermissionError):
                pass  # the exporter uses another folder, or none
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


class _Line:
    """A connection to an exporter's socket. The exporter ends every connection after a short time, and this class
    reconnects.
    """

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._connection: socket.socket | None = None
        self.pid = 0  # of the exporter, once connected, or 0 if it is not visible here

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def ask(self, op: int, wanted: list[tuple[Fields, int]]) -> tuple[list[tuple[int, int, int]], list[OwnedFd]]:
        """Ask, in one request, for the descriptors of all entries in `wanted`, of each from its given index on. The
        answer may cover only the first entries. Returns a tuple for each of these: the status, the number of
        descriptors received, and the total number of the entry's descriptors. Also returns all received descriptors.
        """
        connections = 0
        while True:
            before = self._connection is not None
            connections += not before
            try:
                return self._exchange(self._connection or self.connect(), op, wanted, before)
            except TimeoutError:
                raise Blocked(f"the exporter did not answer within {TIMEOUT:g} s") from None
            except OSError as error:
                self.close()
                if connections < 2 and isinstance(error, ConnectionResetError | BrokenPipeError):
                    continue  # the exporter has just ended, and its socket with it
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    raise from_os_error(error, "talking to the exporter") from error
                raise Blocked(f"talking to the exporter: {error.strerror}") from None

    def connect(self) -> socket.socket:
        try:
            connection = self._connection = _connect(self._fields)
        except TimeoutError:
            raise Blocked(f"the exporter's socket did not take the connection within {TIMEOUT:g} s") from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise from_os_error(error, "connecting to the exporter") from error
            raise Blocked(f"connecting to the exporter: {error.strerror}") from None
        self.pid, uid, _gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise Blocked(
                f"the exporter's socket belongs to user {uid}, this process runs as {os.geteuid()}: run both as one "
                "user of the host (in containers: the same user: and user namespace)"
            )
        return connection

    def _exchange(
        self, connection: socket.socket, op: int, wanted: list[tuple[Fields, int]], before: bool
    ) -> tuple[list[tuple[int, int, int]], list[OwnedFd]]:
        """Send a request and receive the answer. `before` means that the connection has served an earlier request."""
        system.send(connection, request(op, wanted))
        data, fds = system.receive(connection, _REPLY_NBYTES)
        with End(close_all, fds):
            if not data:
                if before:
                    raise ConnectionResetError
                raise Blocked("the exporter closed the connection without an answer")
            try:
                given = read_reply(data, len(wanted), len(fds))
            except ValueError as error:
                raise InvalidHandleError(str(error)) from None
            if op == _HELLO and len(fds) == 4 and not _is_of(fds[3], self.pid):
                raise InvalidHandleError("the exporter's answer makes no sense: its pidfd is of another process")
        return given, fds


def _error_of(status: int) -> Blocked | HandleExpiredError:
    if status == _NOT_LIVE:
        return HandleExpiredError("the handle has expired: the exporter withdrew it")
    return Blocked(f"the exporter {_STATUS.get(status, f'answered status {status}')}")


def _is_of(pidfd: OwnedFd, pid: int) -> bool:
    """Return whether the pidfd belongs to the listening process, as far as /proc shows. The pidfd of another process
    would not report the listening process's death.
    """
    try:
        with open(f"/proc/self/fdinfo/{pidfd.number}", encoding="utf-8") as file:
            found = [int(line[4:]) for line in file if line.startswith("Pid:")]
    except FileNotFoundError:
        return True
    return (
        found == [pid] or found == [-1] or (len(found) == 1 and pid == 0)
    )  # -1: it has ended; 0: in no namespace of ours


def listener(fields: Fields) -> int | None:
    """Return the pid of the process that listens at the exporter's socket, 0 if it is not visible or cannot be reached
    from here, or None if nobody listens there any more.
    """
    with _Line(fields) as line:
        try:
            line.connect()
        except HandleExpiredError:
            return None
        except Blocked:
            pass
        return line.pid


def meet(handle: Handle) -> Met:
    fields = fields_of(handle)
    with _Line(fields) as line:
        [(status, _count, _total)], fds = line.ask(_HELLO, [(fields, 0)])
    if status != _OK:
        raise _error_of(status)
    with End(close_all, fds):
        if not 3 <= len(fds) <= 4:
            raise InvalidHandleError(
                "the exporter's answer makes no sense: three or four file descriptors make a greeting"
            )
        return met(handle, *fds)


def fetch(peer: PeerTable | None, wanted: Sequence[Wanted]) -> list[Fetched]:  # noqa: ARG001 (as every route's)
    """Fetch the descriptors of all entries with as few requests as possible. The exporter answers a request for as many
    of the first entries as fit into one packet. The request is then repeated for the remaining entries.
    """
    got: list[list[OwnedFd]] = [[] for _ in wanted]
    refused: dict[int, Blocked | XpuShareError] = {}
    left = list(range(len(wanted)))
    fds: list[OwnedFd] = []
    with End(_close_each, [fds, *got]):
        with _Line(fields_of(wanted[0].handle)) as line:
            while left:
                try:
                    asked = [(fields_of(wanted[at].handle), len(got[at])) for at in left[:_AT_ONCE]]
                    given, fds[:] = line.ask(_FDS, asked)
                except (Blocked, XpuShareError) as error:
                    if error.__context__ is not None:
                        error.__context__.__traceback__ = None  # its frames lead to this one, which holds the error
                    refused |= dict.fromkeys(left, error.with_traceback(None))
                    break
                for at, answer in zip(left, given, strict=False):
                    if (wrong := _take(wanted[at], answer, got[at], fds)) is not None:
                        refused[at] = wrong
                if given[-1][0] in _OF_ALL:
                    refused |= dict.fromkeys(left[len(given) :], refused[left[len(given) - 1]])
                left = [at for at in left if at not in refused and len(got[at]) < wanted[at].fd_count]
        close_all(fd for at in refused for fd in got[at])
        return [refused.get(at, found) for at, found in enumerate(got)]


def _close_each(several: list[list[OwnedFd]]) -> None:
    for fds in several:
        close_all(fds)


def _take(
    wanted: Wanted, answer: tuple[int, int, int], got: list[OwnedFd], fds: list[OwnedFd]
) -> Blocked | XpuShareError | None:
    """Move an entry's descriptors from the beginning of `fds` to `got`. Returns the error if the answer reports one, or
    does not fit the entry.
    """
    status, count, total = answer
    got += fds[:count]
    del fds[:count]
    if status != _OK:
        return _error_of(status)
    if not count or total != wanted.fd_count or len(got) > total:
        return InvalidHandleError(
            f"the exporter's table says {wanted.fd_count} file descriptors, its socket sent {len(got)} of {total}"
        )
    return None
