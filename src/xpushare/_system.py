"""Every system call that the package makes from Python, in one place, so that tests can make each fail in turn."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import Final

from xpushare._errors import FeatureNotSupportedError
from xpushare._native import Domain, Mapping, Reservation, check_memfd, pidfd_getfd, serve

__all__ = [
    "Domain",
    "Mapping",
    "Reservation",
    "boot_id",
    "check_memfd",
    "connect",
    "dup",
    "eventfd",
    "fetch_mapping",
    "fstat",
    "import_mapping",
    "is_wsl",
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
]

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
F_SEAL_SEAL: Final = 1
F_SEAL_SHRINK: Final = 2
F_SEAL_GROW: Final = 4
F_SEAL_FUTURE_WRITE: Final = 16
_F_ADD_SEALS: Final = 1033

dup = os.dup
eventfd = os.eventfd
fetch_mapping = Mapping.fetched
import_mapping = Mapping.imported
fstat = os.fstat
pidfd_open = os.pidfd_open
resize = os.ftruncate
range_map = Reservation.map
range_unmap = Reservation.unmap
range_protect = Reservation.protect


def page_nbytes() -> int:
    """Bytes of a page of memory, of which mappings are made: 4096 here, 65536 there."""
    return os.sysconf("SC_PAGE_SIZE")


_boot_id: list[bytes] = []


def boot_id() -> bytes:
    """The kernel's id of this boot, 16 bytes: what tells two hosts, and two boots of one, apart."""
    if not _boot_id:
        try:
            with open(BOOT_ID, encoding="ascii") as file:
                _boot_id.append(bytes.fromhex(file.read().strip().replace("-", "")))
        except OSError as error:
            raise FeatureNotSupportedError(
                f"handles name the boot by {BOOT_ID}, which cannot be read ({error.strerror}): mount -t proc proc /proc"
            ) from error
    return _boot_id[0]


def memfd(name: str) -> int:
    """A new, empty, sealable memfd (memfd_create(2)); close-on-exec."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(fd: int, seals: int) -> None:
    fcntl.fcntl(fd, _F_ADD_SEALS, seals)


def connect(address: bytes, timeout: float) -> socket.socket:
    """A SOCK_SEQPACKET connection to the abstract address (without its leading NUL)."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout)
        connection.connect(b"\0" + address)
    except BaseException:
        connection.close()
        raise
    return connection


def send(connection: socket.socket, message: bytes) -> None:
    connection.send(message)


def receive(connection: socket.socket, nbytes: int, fds: int) -> tuple[bytes, list[int]]:
    """One packet and the fds that came with it (close-on-exec)."""
    data, received, _flags, _address = socket.recv_fds(connection, nbytes, fds, socket.MSG_CMSG_CLOEXEC)
    return data, received


def is_wsl() -> bool:
    """Whether this Linux runs in Windows."""
    import platform  # slow to import

    return "microsoft" in platform.release().lower() or os.path.exists("/dev/dxg")
