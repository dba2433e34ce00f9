"""The exporter's socket in the runtime folder. Other users cannot enter the folder, so they cannot flood the socket."""

from __future__ import annotations

import _socket  # `socket` and `random` are slow to import
import contextlib
import os
import time
from collections.abc import Generator
from typing import Final

from xpushare.common.errors import InvalidArgumentError
from xpushare.common.fds import own_fd
from xpushare.sharing import identity

__all__ = ["close", "opening", "path", "paths"]

_PREFIX: Final = "socket-"
_NEW: Final = ".socket-"  # the beginning of the name of a socket at which no process listens yet
_NEW_SECONDS: Final = 60  # seconds after which such a socket counts as abandoned
_SINCE: Final = 8  # hexadecimal digits of its name that say since when it exists, in seconds of the monotonic clock
_TRIES: Final = 8  # sockets of other exporters that each exporter checks, to remove those of dead ones
_LONGEST: Final = 58  # the longest path of a folder whose sockets still have names that fit


@contextlib.contextmanager
def _folder() -> Generator[str | None]:
    """Yield the runtime folder under a name that is short enough for a socket address, or None if there is none."""
    chosen = identity.chosen_path()
    try:
        identity.check_folder(chosen)
    except (OSError, InvalidArgumentError):
        yield None
        return
    if len(os.fsencode(chosen)) <= _LONGEST:
        yield chosen
        return
    try:
        fd = own_fd(os.open, chosen, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    with fd:
        yield f"/proc/self/fd/{fd.number}"


@contextlib.contextmanager
def path(cookie: bytes) -> Generator[str | None]:
    """Yield the path of the socket of the exporter whose table has this cookie, or None if there is no runtime folder.
    The socket exists if the exporter uses the same runtime folder as this process.
    """
    with _folder() as folder:
        yield None if folder is None else f"{folder}/{_PREFIX}{cookie.hex()}"


@contextlib.contextmanager
def paths() -> Generator[list[str]]:
    """Yield the paths of all sockets in the runtime folder of this process."""
    with _folder() as folder:
        names: list[str] = []
        if folder is not None:
            with contextlib.suppress(OSError):
                names = os.listdir(folder)
        yield [f"{folder}/{name}" for name in names if name.startswith(_PREFIX)]


@contextlib.contextmanager
def opening(cookie: bytes) -> Generator[bytes | None]:
    """Yield the path at which to create the socket of the table with this cookie, or None if there is no runtime
    folder. The `with` block has to start listening at that path. After the block, other processes can find the socket.
    """
    with _folder() as folder:
        if folder is None:
            yield None
            return
        _clean(folder)
        new = f"{folder}/{_NEW}{int(time.monotonic()):0{_SINCE}x}{cookie.hex()}"
        try:
            yield os.fsencode(new)
            with contextlib.suppress(OSError):
                os.rename(new, f"{folder}/{_PREFIX}{cookie.hex()}")
        finally:
            with contextlib.suppress(OSError):
                os.unlink(new)  # the block has failed


def close(cookie: bytes) -> None:
    with path(cookie) as found, contextlib.suppress(OSError):
        if found is not None:
            os.unlink(found)


def _clean(folder: str) -> None:
    """Remove a few sockets of dead processes. The number is limited so that many exporters do not all probe
    each other.
    """
    try:
        names = [name for name in os.listdir(folder) if name.startswith((_PREFIX, _NEW))]
    except OSError:
        return
    first = int.from_bytes(os.urandom(4)) % max(len(names), 1)
    for name in (names[first:] + names[:first])[:_TRIES]:
        with contextlib.suppress(OSError):
            if _abandoned(name) if name.startswith(_NEW) else _dead(f"{folder}/{name}"):
                os.unlink(f"{folder}/{name}")


def _abandoned(name: str) -> bool:
    """Return whether a process made the new socket with this name long ago, or before the machine was started."""
    try:
        since = int(name[len(_NEW) :][:_SINCE], 16)
    except ValueError:
        return True
    return not 0 <= time.monotonic() - since <= _NEW_SECONDS


def _dead(file: str) -> bool:
    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_NONBLOCK)
    try:
        probe.connect(file)
    except ConnectionRefusedError:
        return True
    finally:
        probe.close()
    return False
