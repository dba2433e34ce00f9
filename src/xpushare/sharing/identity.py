"""The identity of this process: the boot in which it runs, its namespaces, and the user's private folder and key."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Final

from xpushare._native import Seal
from xpushare.common.errors import InvalidArgumentError, from_os_error
from xpushare.common.system import boot_id

__all__ = [
    "KEY_NBYTES",
    "boot_id",
    "check_folder",
    "chosen_dir",
    "namespace",
    "read_key",
    "runtime_dir",
    "seal",
    "sealing",
    "user_key",
]

KEY_NBYTES: Final = 32

_lock = threading.RLock()  # re-entrant, for signal handlers
_key: bytes | None = None
seal: Seal | None = None
"""The result of `sealing`, or None before its first call. Code that has to be fast reads it here, without a call."""
_namespaces: dict[str, int] = {}  # asked once: /proc is slow
os.register_at_fork(after_in_child=_namespaces.clear)  # a child may be in other namespaces


def namespace(kind: str) -> int:
    """Return the inode of this process's namespace of the given kind ("pid", "net"), or 0 if /proc does not show it."""
    found = _namespaces.get(kind)
    if found is None:
        try:
            found = os.stat(f"/proc/self/ns/{kind}").st_ino
        except OSError:
            found = 0
        _namespaces[kind] = found
    return found


def chosen_dir() -> Path:
    """Return the folder that `runtime_dir` uses. It may not exist yet."""
    if explicit := os.environ.get("XPUSHARE_RUNTIME_DIR"):
        return Path(explicit)
    uid = os.geteuid()
    candidates = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}"]
    for parent in candidates:
        if parent and os.path.isdir(parent) and os.stat(parent).st_uid == uid:
            return Path(parent, "xpushare")
    return Path(_temporary_dir(), f"xpushare-{uid}")


def _temporary_dir() -> str:
    """Return the folder for temporary files.

    All processes of a user must find the same folder. So unlike `tempfile.gettempdir`, this writes no test file, whose
    success would depend on how full a disk is, and never falls back to the working folder.
    """
    named = [folder for name in ("TMPDIR", "TEMP", "TMP") if (folder := os.environ.get(name))]
    for folder in (*named, "/tmp", "/var/tmp"):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            return os.path.abspath(folder)
    return "/tmp"  # making a folder there raises the error


def runtime_dir() -> Path:
    """Return the folder that only this user can enter, and create it if it is missing.

    It is `XPUSHARE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/xpushare`, else `/run/user/<uid>/xpushare`, else
    `xpushare-<uid>` in the temporary folder. Raises `InvalidArgumentError` if it is a link, belongs to another user, or
    is open to others.
    """
    path = chosen_dir()
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot make the runtime folder {path}: {error.strerror}; set XPUSHARE_RUNTIME_DIR", native=error.errno
        ) from error
    check_folder(path)
    return path


def check_folder(path: Path) -> None:
    """Raise `InvalidArgumentError` unless `path` is a folder (no link) that only this user can enter."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidArgumentError(f"the runtime folder {path} is not a folder")
    _check_private(str(path), found, "0700")


def _check_private(name: str, found: os.stat_result, mode: str) -> None:
    if found.st_uid != os.geteuid():
        raise InvalidArgumentError(
            f"{name} belongs to user {found.st_uid}, not to {os.geteuid()}: set XPUSHARE_RUNTIME_DIR to one of yours"
        )
    if found.st_mode & 0o077:
        raise InvalidArgumentError(
            f"{name} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}): chmod {mode} it"
        )


def user_key() -> bytes:
    """Return the user's key: 32 bytes, read once per process, and created in the runtime folder if there is none.

    Raises `InvalidArgumentError` if the file does not have 32 bytes, belongs to another user, or is readable by others.
    """
    global _key
    if _key is None:
        with _lock:
            explicit = os.environ.get("XPUSHARE_KEY_FILE")
            path = Path(explicit) if explicit else runtime_dir() / "key"
            if not explicit:
                try:
                    path.lstat()
                except FileNotFoundError:
                    _make_key(path)
                except OSError:  # for example a folder that cannot be entered; `read_key` raises the reason
                    pass
            _key = read_key(path)
    return _key


def sealing() -> Seal:
    """Return the object that seals handles under the user's key and reads sealed ones. Raises as `user_key` does."""
    global seal
    if seal is None:
        seal = Seal(user_key())
    return seal


def _make_key(path: Path) -> None:
    import tempfile  # slow to import, and needed once

    # Write another file and link it. So everybody sees no file or a whole one, and one of two makers wins.
    try:
        fd, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(os.urandom(KEY_NBYTES))
            try:
                os.link(temporary, path)
            except FileExistsError:
                pass
        finally:
            os.unlink(temporary)
    except OSError as error:
        raise from_os_error(error, f"making the key {path}") from error


def read_key(path: Path) -> bytes:
    """Read the key from that file. Raises `InvalidArgumentError` as `user_key` does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidArgumentError(f"the key {path} is not a file")
            _check_private(f"the key {path}", found, "0600")
            key = os.read(fd, KEY_NBYTES + 1)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise from_os_error(error, f"reading the key {path}") from error
        raise InvalidArgumentError(f"cannot read the key {path}: {error.strerror}", native=error.errno) from error
    if len(key) != KEY_NBYTES:
        raise InvalidArgumentError(f"the key {path} must be {KEY_NBYTES} raw bytes")
    return key


def _renew_lock() -> None:
    """Replace the lock in a forked child. The thread that held the old lock does not exist in the child."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
