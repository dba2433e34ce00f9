"""Every system call that the package makes from Python, in one place, so that tests can simulate a failure of each."""

from __future__ import annotations

import errno
import fcntl
import operator
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from xpushare._native import Domain, End, Mapping, OwnedFd, Reservation, check_memfd, mapped, serve
from xpushare.common.errors import FeatureNotSupportedError, from_os_error
from xpushare.common.fds import own_fd

if TYPE_CHECKING:
    import socket

__all__ = [
    "Domain",
    "Mapping",
    "Reservation",
    "bell",
    "boot_id",
    "boot_ids",
    "check_memfd",
    "connect",
    "dup",
    "fstat",
    "import_mapping",
    "inotify",
    "is_wsl",
    "kept_mapping",
    "owned_mapping",
    "mapped",
    "memfd",
    "pidfd_getfd",
    "pidfd_open",
    "range_map",
    "range_protect",
    "range_unmap",
    "receive",
    "resize",
    "seal",
    "send",
    "serve",
    "wakeup",
]

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
F_SEAL_SEAL: Final = 1
F_SEAL_SHRINK: Final = 2
F_SEAL_GROW: Final = 4
F_SEAL_FUTURE_WRITE: Final = 16
_F_ADD_SEALS: Final = 1033
_call: Final[Callable[[Any], Any]] = operator.call

bell = OwnedFd.bell
dup = OwnedFd.copied
memfd = OwnedFd.memfd
import_mapping = Mapping.imported
kept_mapping = Mapping.kept
owned_mapping = Mapping.owned
fstat = os.fstat
pidfd_getfd = OwnedFd.fetched
pidfd_open = OwnedFd.of_process
resize = os.ftruncate
range_map = Reservation.map
range_unmap = Reservation.unmap
range_protect = Reservation.protect


def page_nbytes() -> int:
    """Return the size of a memory page, the unit of mappings: 4096 bytes on most machines, 65536 on some."""
    return os.sysconf("SC_PAGE_SIZE")


boot_ids: Final[list[bytes]] = []
"""A list with the result of `boot_id`, or an empty list before its first call. Native code reads it."""


def boot_id() -> bytes:
    """Return the kernel's id of this boot, 16 bytes. It distinguishes two hosts, and two boots of one host."""
    if not boot_ids:
        try:
            with open(BOOT_ID, encoding="utf-8") as file:
                boot_ids.append(bytes.fromhex(file.read().strip().replace("-", "")))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise from_os_error(error, f"reading {BOOT_ID}") from error
            raise FeatureNotSupportedError(
                f"handles name the boot by {BOOT_ID}, which cannot be read ({error.strerror}): mount -t proc proc /proc"
            ) from error
    return boot_ids[0]


def join(commons: OwnedFd, bell: OwnedFd, cookie: bytes, owner: bool) -> Domain:
    """Join the memory that an exporter shares with its importers, called its commons. The returned object owns the file
    descriptors `commons` and `bell` (the eventfd of the commons) from then on. One C call takes over both, so that an
    interrupt cannot leave a descriptor with two owners.
    """
    steps: tuple[Callable[[], Any], ...] = (
        partial(Domain, commons.number, bell.number, cookie, owner),
        commons.take,
        bell.take,
    )
    made: list[Any] = []
    made.extend(map(_call, steps))
    domain: Domain = made[0]
    return domain


def wakeup() -> OwnedFd:
    """Make an eventfd for one waiter of this process, which `os.eventfd_write` wakes. It is not readable before that,
    unlike a `bell`, which is always readable.
    """
    return own_fd(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def inotify(path: str | os.PathLike[str], events: int) -> OwnedFd:
    """Make a descriptor that is readable once one of these events (inotify(7)) has happened to the folder or file."""
    import ctypes  # slow to import, and rarely needed

    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = own_fd(libc.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:  # -1 is not an fd
        fd = None
    if fd is None or libc.inotify_add_watch(fd.number, os.fsencode(path), events) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(path))
    return fd


def seal(fd: int, seals: int) -> None:
    fcntl.fcntl(fd, _F_ADD_SEALS, seals)


def connect(address: bytes | str, timeout: float) -> socket.socket:
    """Open a SOCK_SEQPACKET connection. `address` is an abstract address (bytes, without the leading NUL) or a path
    (str).

    If the backlog is full, which a socket with a time-out reports at once, try again until `timeout`.
    """
    import socket  # slow to import, and rarely needed

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    with End(lambda: connection.close()):  # the one that the name means then
        if connection.fileno() <= 2:  # stdio is closed: a `print` would write into the connection
            low, connection = connection, socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, 3))
            low.close()
        connection.settimeout(timeout)
        deadline, pause = time.monotonic() + timeout, 0.0005
        while True:
            try:
                connection.connect(address if isinstance(address, str) else b"\0" + address)
                return connection
            except BlockingIOError:
                if time.monotonic() + pause > deadline:
                    raise TimeoutError from None
            time.sleep(pause)
            pause = min(pause * 2, 0.01)


def send(connection: socket.socket, message: bytes) -> None:
    connection.send(message)


def receive(connection: socket.socket, nbytes: int) -> tuple[bytes, list[OwnedFd]]:
    """Receive one packet and the file descriptors that it carries, within the connection's time-out."""
    import select  # as `socket`

    timeout = connection.gettimeout()
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    if not readable.poll(None if timeout is None else timeout * 1000):
        raise TimeoutError
    return OwnedFd.received(connection.fileno(), nbytes)


def is_wsl() -> bool:
    """Return whether this Linux runs inside Windows (WSL)."""
    import platform  # slow to import

    return "microsoft" in platform.release().lower() or os.path.exists("/dev/dxg")
