"""The messages between processes and the keeper, the process of this user that holds memory published with `keep=True`.

The keeper's socket is `keeper` in the runtime folder. A message is one packet, `_HEAD`: an operation, and the number of
descriptors that come with it. If the message has content, the first descriptor is a memfd that holds it. The keeper
answers each message. It closes a connection on which no message comes for some seconds, and if all its connections are
in use, one that was silent for a moment. Whoever asks then connects again.

A tree is handed over as a whole. A process first sends the descriptors of its memory (`FDS`, as often as needed), then
the facts about their exports (`HOLD`), to which the keeper answers with handles of its own, and last the name and the
handle to publish under it (`PUBLISH`). If the connection ends before the name is published, the keeper drops all memory
that was handed over.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, final

from xpushare import _native
from xpushare._native import NameLock
from xpushare.adapters.base import Export, Form, Hardware
from xpushare.common import errors, system
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidArgumentError,
    OutOfMemoryError,
    XpuShareError,
    from_os_error,
)
from xpushare.common.fds import OwnedFd, close_all, own_fd
from xpushare.sharing import identity, locked_files

__all__ = [
    "BODY_MOST",
    "DROP",
    "FDS",
    "FORMAT",
    "FORMATS",
    "HANDLE_NBYTES",
    "HOLD",
    "HOLDER",
    "LIST",
    "NAME",
    "PUBLISH",
    "REPLACE",
    "STOP",
    "Connection",
    "Earlier",
    "Fact",
    "KeeperGone",
    "body_of",
    "connect",
    "connected",
    "keeper_pid",
    "lock_path",
    "moved",
    "receive",
    "refusal",
    "reply",
    "socket_at",
]

FDS, HOLD, PUBLISH, LIST, DROP, STOP, REPLACE, FORMATS = b"F", b"H", b"P", b"L", b"D", b"S", b"R", b"V"
FORMAT: Final = 2  # of the messages, and of what a keeper stores for its successor; a change takes another number
NAME: Final = "keeper"  # of the socket
HOLDER: Final = struct.Struct("<I4xQ")  # the keeper's pid and PID namespace, in the file that it locks
_GOOD: Final = b"+"
_BAD: Final = b"-"
_HEAD: Final = struct.Struct("<cI")
_AT_ONCE: Final = 200  # descriptors; the kernel allows 253
_SECONDS: Final = 30.0  # for an answer
_START: Final = 30.0  # seconds until a new keeper answers
HANDLE_NBYTES: Final = _native.LAYOUT["handle.size"]
BODY_MOST: Final = 1 << 27


class Fact(NamedTuple):
    """An export, and the range that a handle of the export covers. A message carries a `Fact` as the list of its
    values.
    """

    kind: str  # "memory" or "physical_memory"
    backend: str
    uuid: str
    pci: str
    driver_uuid: str
    nbytes: int
    exposed_nbytes: int
    payload: str  # hexadecimal
    form: int
    within: int
    fds: int  # how many descriptors
    offset: int
    length: int
    read_only: bool

    @classmethod
    def of(cls, kind: str, on: Hardware, what: Export, count: int, offset: int, length: int, read_only: bool) -> Fact:
        return cls(
            kind, on.backend, on.uuid, on.pci, on.driver_uuid, what.nbytes, what.exposed_nbytes, what.payload.hex(),
            int(what.form), what.offset, count, offset, length, read_only,
        )  # fmt: skip

    def export(self, inode: int) -> Export:
        """Return the facts of the export, without its descriptors."""
        payload, form = bytes.fromhex(self.payload), Form(self.form)
        return Export(self.nbytes, self.exposed_nbytes, (), inode, payload, form=form, offset=self.within)


class Earlier(NamedTuple):
    """The facts about a version that a keeper passes to its successor. A message carries an `Earlier` as the list of
    its values.
    """

    version: int
    pid: int
    who: str
    begun: float  # when it was published, in seconds of CLOCK_MONOTONIC
    nbytes: int  # bytes of its message


# --- messages


def _body(content: bytes) -> OwnedFd:
    fd = system.memfd("xpushare-keeper")
    left = memoryview(content)
    while left:
        left = left[os.write(fd.number, left) :]
    return fd


def body_of(fd: OwnedFd, most: int) -> bytes:
    """Copy the content of a message out of its memfd, since the sender may still change the memfd. Raises
    `InvalidArgumentError` for another file, whose reading may block, and for more than `most` bytes.
    """
    try:
        fcntl.fcntl(fd.number, fcntl.F_GET_SEALS)
    except OSError:
        raise InvalidArgumentError("the content of a message is a memfd, and this is another file") from None
    nbytes = os.fstat(fd.number).st_size
    if nbytes > most:
        raise InvalidArgumentError(f"the content of this message may have {most} bytes, and has {nbytes}")
    parts, at = [], 0
    while at < nbytes and (part := os.pread(fd.number, nbytes - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _send(connection: socket.socket, op: bytes, content: bytes | None, fds: Iterable[OwnedFd] = ()) -> None:
    body = None if content is None else _body(content)
    numbers = [fd.number for fd in (*([] if body is None else [body]), *fds)]
    try:
        socket.send_fds(connection, [_HEAD.pack(op, len(numbers))], numbers)
    finally:
        if body is not None:
            body.close()


def receive(connection: socket.socket) -> tuple[bytes, list[OwnedFd]] | None:
    """Receive a message's operation and descriptors. Returns None at the end of the connection. Raises
    `OutOfMemoryError` if descriptors were lost.
    """
    data, fds = system.receive(connection, _HEAD.size)
    if len(data) != _HEAD.size:
        close_all(fds)
        return None
    op, count = _HEAD.unpack(data)
    if count != len(fds):
        close_all(fds)
        raise OutOfMemoryError(f"{count - len(fds)} file descriptors were lost: raise ulimit -n", native=errno.EMFILE)
    return op, fds


def reply(connection: socket.socket, content: bytes, good: bool) -> None:
    """Answer a message with its result or a `refusal`."""
    _send(connection, _GOOD if good else _BAD, content)


def refusal(error: XpuShareError) -> bytes:
    """Return the content of an answer that carries this error."""
    return json.dumps([type(error).__name__, error.message, error.native]).encode()


def _error_of(content: bytes) -> XpuShareError:
    name, message, native = json.loads(content)
    kind = getattr(errors, str(name), DeviceError)
    if not (isinstance(kind, type) and issubclass(kind, XpuShareError)):
        kind = DeviceError
    return kind(f"the keeper: {message}", native=native)


class KeeperGone(DeviceError):
    """The keeper has closed the connection. It may have ended, and its successor may have started already."""


_CLOSED: Final = (
    "the keeper closed the connection before it answered: it has ended, was replaced, or had heard nothing on this "
    "connection for some seconds"
)


def _failed(error: OSError, seconds: float) -> XpuShareError:
    if isinstance(error, BrokenPipeError | ConnectionResetError):
        return KeeperGone(_CLOSED)
    if isinstance(error, TimeoutError | BlockingIOError):
        return DeviceError(
            f"the keeper has not answered for {seconds:g} s: it is busy, or stopped. `xpushare doctor` names it"
        )
    return from_os_error(error, "talking to the keeper")


def moved(message: bytes, handles: bytes) -> bytes:
    """Return `message`, which is a message or a handle, with each handle in it replaced by one of `handles`, which name
    the same memory.
    """
    return handles if len(message) == HANDLE_NBYTES else identity.sealing().moved(message, handles)


# --- where it is


@contextmanager
def socket_at(name: str = NAME) -> Generator[str]:
    """Yield the path of the keeper's socket, short enough for a socket address. A process that is about to become the
    keeper listens under another `name`. Raises `FileNotFoundError` if there is no runtime folder.
    """
    folder = identity.chosen_dir()
    identity.check_folder(folder)
    with own_fd(os.open, folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
        yield f"/proc/self/fd/{fd.number}/{name}"


def lock_path() -> str:
    """Return the path of the file that the keeper locks for its lifetime. The keeper creates the file's folder."""
    return str(identity.chosen_dir() / "keeper.lock")


def keeper_pid() -> int | None:
    """Return the pid of the process that holds the keeper's lock, 0 if it is not visible here, or None if there is no
    such process.
    """
    fd = locked_files.open_file(Path(lock_path()))
    if fd is None:
        return None
    with fd, errors.doing("asking for the keeper"):
        if NameLock.holder(fd.number) is None:
            return None
        found = os.pread(fd.number, HOLDER.size, 0)
    pid, namespace = HOLDER.unpack(found) if len(found) == HOLDER.size else (0, 0)
    return pid if namespace != 0 and namespace == identity.namespace("pid") else 0


def connect(name: str = NAME, seconds: float = _SECONDS) -> socket.socket | None:
    """Connect to the keeper within `seconds`. Returns None if none runs."""
    try:
        with socket_at(name) as path:
            return system.connect(path, seconds)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise _failed(error, seconds) from error


def _start() -> None:
    """Start a keeper that outlives this process. If several processes start a keeper at the same time, only one keeper
    continues to run.
    """
    if not sys.executable:
        raise InvalidArgumentError("no keeper runs, and this program does not know its Python: start `xpushare keep`")
    import subprocess  # imported here, since the keeper does not need it

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-S", "-m", "xpushare.keeper", "--detach"]  # the path is in the environment
    try:
        done = subprocess.run(
            command, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=_START, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"starting the keeper: {error}") from error
    if done.returncode:
        raise DeviceError(f"starting the keeper: {done.stdout.decode(errors='replace').strip()[-2000:]}")


@contextmanager
def connected(start: bool = False) -> Generator[Connection | None]:
    """Yield a connection to the keeper. If no keeper runs, start one if `start` is true, and otherwise yield None."""
    found = connect()
    deadline = time.monotonic() + _START
    while found is None and start:
        _start()
        found = connect()
        if found is None and time.monotonic() > deadline:
            raise DeviceError(
                "no keeper listens, although one was started again and again: it ends at once, or another process "
                "holds its lock. `xpushare doctor` says which"
            )
    if found is None:
        yield None
        return
    with found, Connection(found) as connection:
        yield connection


@final
class Connection:
    """A connection to the keeper. When the connection ends, the keeper drops memory that was handed over but not
    published.
    """

    def __init__(self, connection: socket.socket, seconds: float = _SECONDS) -> None:
        """Take over the socket. `seconds` is how long each answer may take."""
        self._socket = connection
        self._seconds = seconds
        connection.settimeout(seconds)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid, uid, _gid = struct.unpack("iII", credentials)  # of the process that listens
        if uid != os.geteuid():
            connection.close()
            raise InvalidArgumentError(
                f"the keeper's socket belongs to user {uid}, this process runs as {os.geteuid()}"
            )

    def _ask(self, op: bytes, content: bytes | None = None, fds: Iterable[OwnedFd] = ()) -> bytes:
        try:
            _send(self._socket, op, content, fds)
        except OSError as error:
            raise _failed(error, self._seconds) from error
        return self._answer()

    def _answer(self) -> bytes:
        try:
            answer = receive(self._socket)
        except OSError as error:
            if isinstance(error, XpuShareError):
                raise
            raise _failed(error, self._seconds) from error
        if answer is None:
            raise KeeperGone(_CLOSED)
        status, received = answer
        try:
            found = body_of(received[0], BODY_MOST) if received else b""
        finally:
            close_all(received)
        if status != _GOOD:
            raise _error_of(found)
        return found

    def expect_format(self) -> None:
        """Raise `FeatureNotSupportedError` if the keeper, which may have been started by another version of this
        package, uses messages of another format.
        """
        try:
            found = int(self._ask(FORMATS))
        except InvalidArgumentError:
            found = 1  # the first format, whose keeper does not know the question
        if found != FORMAT:
            raise FeatureNotSupportedError(
                f"the keeper (pid {self.pid}) has version {found} of its messages, and this process has version "
                f"{FORMAT}: use the same version of xpushare, or end the keeper by `xpushare keep --stop`"
            )

    def hold(self, facts: Sequence[Fact], fds: Sequence[OwnedFd]) -> list[bytes]:
        """Hand memory over to the keeper by sending its descriptors. Returns the keeper's handles for the memory."""
        self.expect_format()
        for at in range(0, len(fds), _AT_ONCE):
            self._ask(FDS, None, fds[at : at + _AT_ONCE])
        raw = self._ask(HOLD, json.dumps(facts).encode())
        return [raw[at : at + HANDLE_NBYTES] for at in range(0, len(raw), HANDLE_NBYTES)]

    def publish(self, name: str, message: bytes, replace: bool, versions: int, mine: bool) -> int:
        """Publish the memory that was handed over. If `mine` is true, this process is the current publisher of the
        name, and the keeper takes the name over from it.
        """
        head = json.dumps([name, replace, versions, mine, None]).encode()
        return int(self._ask(PUBLISH, head + b"\n" + message))

    def publish_kept(self, name: str, versions: Sequence[tuple[Earlier, bytes]]) -> None:
        """Have the successor of this keeper publish all versions of a name, with their messages, the newest first."""
        head = json.dumps([name, True, len(versions), True, [each for each, _ in versions]]).encode()
        self._ask(PUBLISH, head + b"\n" + b"".join([message for _, message in versions]))

    def listed(self) -> list[dict[str, Any]]:
        """Return the list of the versions that the keeper holds."""
        self.expect_format()
        found: list[dict[str, Any]] = json.loads(self._ask(LIST))
        return found

    def drop(self, name: str) -> None:
        self._ask(DROP, name.encode())

    def send_replace(self, name: str) -> None:
        """Ask the keeper to hand all its memory over to the process that listens under that name, and to end. The
        keeper answers once it has handed everything over. `replaced` receives the answer.
        """
        _send(self._socket, REPLACE, name.encode())

    def fileno(self) -> int:
        return self._socket.fileno()

    def replaced(self) -> None:
        self._answer()

    def stop(self) -> None:
        self._ask(STOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._socket.close()
