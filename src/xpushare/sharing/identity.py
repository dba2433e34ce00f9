"""The identity of this process: the boot in which it runs, its namespaces, and the user's private folder and key."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, final

from xpushare._native import CONSTANTS, Seal
from xpushare._native import read_key as native_key
from xpushare.common.errors import InvalidArgumentError, XpuShareError, from_os_error
from xpushare.common.fds import own_fd
from xpushare.common.loading import logger
from xpushare.common.system import boot_id

if TYPE_CHECKING:
    from pathlib import Path  # slow to import: in here, paths are strings

__all__ = [
    "KEY_NBYTES",
    "at_removal",
    "boot_id",
    "check_folder",
    "chosen_dir",
    "chosen_path",
    "folder_in",
    "namespace",
    "new_dir",
    "read_key",
    "runtime_dir",
    "seal",
    "sealing",
    "user_key",
]

KEY_NBYTES: Final = CONSTANTS["KEY_NBYTES"]
_TRIES: Final = 20  # to make a folder that others remove at the same time

_lock = threading.RLock()  # re-entrant, for signal handlers
_place: _Place | None = None
_restorers: Final[list[Callable[[], object]]] = []
removals = 0  # how often the runtime folder was removed while this process used it
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


_Mark = tuple[int, ...]


@final
class _Place:
    """The runtime folder and the key of this process. Both are chosen once, together."""

    __slots__ = ("folder", "folder_mark", "key", "key_mark", "told")

    def __init__(self, key: bytes, folder: str | None) -> None:
        self.key = key
        self.folder = folder  # None until it is needed, if XPUSHARE_KEY_FILE names the key
        self.folder_mark: _Mark = ()
        self.key_mark: _Mark = ()  # empty if XPUSHARE_KEY_FILE names the key
        self.told: str | None = None  # the other folder that a warning has named
        if folder is not None:
            self.mark()

    def mark(self) -> None:
        """Remember the folder and its key as they are now."""
        assert self.folder is not None
        self.folder_mark = _mark(self.folder)[:2]
        self.key_mark = () if _key_file() else _mark(f"{self.folder}/key")

    def stands(self, found: os.stat_result) -> bool:
        """Return whether the folder, which looks like `found`, and its key are those that were chosen."""
        assert self.folder is not None
        if self.folder_mark != (found.st_dev, found.st_ino):
            return False
        return not self.key_mark or self.key_mark == _mark(f"{self.folder}/key")


def _mark(path: str) -> _Mark:
    """Return numbers that change if the file is replaced. Returns (0,) if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return (0,)
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _key_file() -> str | None:
    return os.environ.get("XPUSHARE_KEY_FILE")


def _as_path(text: str) -> Path:
    from pathlib import Path

    return Path(text)


def chosen_dir() -> Path:
    """Return the folder that `runtime_dir` uses. It may not exist yet."""
    return _as_path(chosen_path())


def chosen_path() -> str:
    """Return `chosen_dir` as a string."""
    return _new_path() if _place is None or _place.folder is None else _place.folder


def new_dir() -> Path:
    """Return the folder that a process uses that starts now. It may not exist yet."""
    return _as_path(_new_path())


def _explicit() -> str | None:
    """Return `XPUSHARE_RUNTIME_DIR` without slashes at its end."""
    found = os.environ.get("XPUSHARE_RUNTIME_DIR")
    return found and (found.rstrip("/") or "/")


def _new_path() -> str:
    """Return `new_dir` as a string.

    If processes still use the folder in the temporary folder, because they were started before the user's login made
    another one, new processes join them there.
    """
    if explicit := _explicit():
        return explicit
    first, *others = _candidates()
    for other in others:
        if not os.path.exists(f"{first}/key") and os.path.exists(f"{other}/key") and _lived_in(other):
            return other
    return first


def _candidates() -> Iterator[str]:
    """Yield the runtime folders that this user may have, the best one first."""
    uid = os.geteuid()
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}"):
        if parent and os.path.isdir(parent) and os.stat(parent).st_uid == uid:
            yield os.path.join(parent, "xpushare")
            break
    yield os.path.join(_temporary_dir(), f"xpushare-{uid}")


def _lived_in(folder: str) -> bool:
    """Return whether a living process listens at a socket in the folder, which has to be this user's alone."""
    import socket  # slow to import, and rarely needed

    try:
        check_folder(folder)
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, InvalidArgumentError):
        return False
    try:
        for name in os.listdir(folder):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
                try:
                    probe.connect(f"/proc/self/fd/{at}/{name}")
                except BlockingIOError:  # many processes ask at the same time
                    return True
                except OSError:  # no socket, or a dead process has left it
                    continue
                return True
        return False
    finally:
        os.close(at)


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
    `xpushare-<uid>` in the temporary folder. A process chooses the folder and the key once. If the folder was removed
    meanwhile, it is made again with the same key, and a warning says so. Raises `InvalidArgumentError` if that is not
    possible, or the folder is a link, belongs to another user, or is open to others.
    """
    place = _chosen()
    folder = place.folder
    if folder is None:
        with _lock:
            folder = place.folder = _made(_new_path())
            place.mark()
    try:
        found = os.lstat(folder)
    except OSError:
        found = None
    if found is None or not place.stands(found):
        before = removals
        with _lock:
            _unless_removed(folder, lambda: _restore(place, folder))
        if removals != before:
            for restore in _restorers:
                restore()
    else:
        _check_folder(folder, found)
    _compare(place, folder)
    return _as_path(folder)


def folder_in(name: str) -> tuple[Path, bool]:
    """Return that folder in the runtime folder, which only this user can enter, and whether this call has made it.
    Raises `DeviceError` or `InvalidArgumentError` if that is not possible.
    """
    found: list[tuple[Path, bool]] = []

    def make() -> None:
        folder = runtime_dir() / name
        try:
            made = _mkdir(str(folder))
        except OSError as error:
            raise from_os_error(error, f"making {folder}") from error
        check_folder(folder)
        found.append((folder, made))

    _unless_removed(f"{chosen_path()}/{name}", make)
    return found[0]


def _unless_removed(path: str, make: Callable[[], object]) -> None:
    """Call `make`, and again if it fails because somebody has removed `path` meanwhile."""
    for left in reversed(range(_TRIES)):
        try:
            make()
            return
        except (OSError, XpuShareError):
            if not left or os.path.lexists(path) or not os.path.isdir(os.path.dirname(chosen_path()) or "."):
                raise


def at_removal(restore: Callable[[], object]) -> None:
    """Call `restore` after the runtime folder was removed and made again, so that it makes the files of this process
    again. The caller may hold locks of other modules, so `restore` must not wait for one for long.
    """
    _restorers.append(restore)


def _mkdir(path: str) -> bool:
    """Make a folder that only this user can enter. Returns False if there is something at that path."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    return True


def _made(path: str) -> str:
    try:
        _mkdir(path)
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot make the runtime folder {path}: {error.strerror}; set XPUSHARE_RUNTIME_DIR", native=error.errno
        ) from error
    check_folder(path)
    return path


def _restore(place: _Place, folder: str) -> None:
    """Make the folder and its key again if they were removed. The caller holds the lock."""
    global removals
    try:
        made = _mkdir(folder)
    except OSError as error:
        raise InvalidArgumentError(
            f"the runtime folder {folder} was removed while this process runs, and cannot be made again: "
            f"{error.strerror}. /run/user/UID goes with the user's last session unless `loginctl enable-linger` keeps "
            "it. Restart this process, or set XPUSHARE_RUNTIME_DIR to a folder that stays",
            native=error.errno,
        ) from error
    found = os.lstat(folder)
    _check_folder(folder, found)
    made = made or place.folder_mark != (found.st_dev, found.st_ino)
    if place.key_mark:
        key = f"{folder}/key"
        if not os.path.lexists(key):
            _make_key(key, place.key)
            made = True
        if read_key(key) != place.key:
            raise InvalidArgumentError(
                f"the runtime folder {folder} was removed while this process runs, and another process has made it "
                "again with another key, so the two cannot open each other's handles. Restart this process, or end "
                f"the processes that have the new key, and remove {folder}"
            )
    place.mark()
    if made:
        removals += 1
        logger().warning(
            "the runtime folder %s was removed while process %d runs. This process makes it again with the same key, "
            "and its names, locks and channels in it. Other processes do so at their next call. /run/user/UID goes "
            "with the user's last session unless `loginctl enable-linger` keeps it; XPUSHARE_RUNTIME_DIR names a "
            "folder that stays",
            folder,
            os.getpid(),
        )


def _compare(place: _Place, folder: str) -> None:
    """Warn once if other processes use another folder than this one, which stays with its own."""
    explicit = _explicit()
    now = explicit or next(_candidates())
    if now in (folder, place.told) or not (explicit or os.path.exists(f"{now}/key")):
        return
    place.told = now
    logger().warning(
        "process %d has used the runtime folder %s since its start, and stays with it. Processes that use %s find none "
        "of its names, and make locks and channels of their own. Set XPUSHARE_RUNTIME_DIR to one folder before any of "
        "them starts, and restart this process",
        os.getpid(),
        folder,
        now,
    )


def check_folder(path: str | Path) -> None:
    """Raise `InvalidArgumentError` unless `path` is a folder (no link) that only this user can enter."""
    _check_folder(path, os.lstat(path))


def _check_folder(path: str | Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidArgumentError(f"the runtime folder {path} is not a folder")
    if found.st_uid != os.geteuid():
        raise _another_users(str(path), found.st_uid)
    if found.st_mode & 0o077:
        raise _open_to_others(str(path), stat.S_IMODE(found.st_mode), "0700")


def _another_users(name: str, user: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{name} belongs to user {user}, not to {os.geteuid()}: set XPUSHARE_RUNTIME_DIR to one of yours"
    )


def _open_to_others(name: str, mode: int, wanted: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} is open to other users (mode {mode:04o}): chmod {wanted} it")


def user_key() -> bytes:
    """Return the user's key: 32 bytes, read once per process, and created in the runtime folder if there is none.

    Raises `InvalidArgumentError` if the file does not have 32 bytes, belongs to another user, or is readable by others.
    """
    return _chosen().key


def _chosen() -> _Place:
    """Return the folder and the key of this process, and choose them at the first call."""
    global _place
    found = _place
    if found is None:
        with _lock:
            found = _place
            if found is None:
                found = _place = _choose()
    return found


def _choose() -> _Place:
    if explicit := _key_file():
        return _Place(read_key(explicit), None)
    folder = _made(_new_path())
    path = f"{folder}/key"
    try:
        os.lstat(path)
    except FileNotFoundError:
        left = _left_behind(folder)  # before there is a key: processes that read it remove files of their own
        if _make_key(path) and left:
            _tell_left_behind(folder, left)
    except OSError:  # for example a folder that cannot be entered; `read_key` raises the reason
        pass
    return _Place(read_key(path), folder)


def _left_behind(folder: str) -> list[str]:
    """Return the ids of the living processes that use a runtime folder that was removed, or this one, whose key was."""
    places = tuple(f"{each}/" for each in {folder, *_candidates()})
    pids = [pid for pid in os.listdir("/proc") if pid.isdecimal()] if os.path.isdir("/proc") else []
    return [pid for pid in pids if any(_files_in(pid, folder, places))]


def _tell_left_behind(folder: str, left: list[str]) -> None:
    logger().warning(
        "process %d has made a new key in %s, since the runtime folder was removed while other processes use it: "
        "%s. Their names are not found any more, and a lock or channel of theirs and one that is made now under "
        "the same name are two. Restart them",
        os.getpid(),
        folder,
        ", ".join(left),
    )


def _files_in(pid: str, folder: str, places: tuple[str, ...]) -> Iterator[str]:
    """Yield the files of names, channels and locks in the folder that a process of this user has open, and the removed
    files in any of the places.
    """
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            where = places if link.endswith(" (deleted)") else (f"{folder}/names/", f"{folder}/crews/")
            if link.startswith(where):
                yield link
    except OSError:  # it has ended, or cannot be looked into
        return


def sealing() -> Seal:
    """Return the object that seals handles under the user's key and reads sealed ones. Raises as `user_key` does."""
    global seal
    if seal is None:
        seal = Seal(user_key())
    return seal


def _make_key(path: str, key: bytes | None = None) -> bool:
    """Make the file of a key, by default of a new one. Returns False if there is one by now."""
    # Write another file and link it. So everybody sees no file or a whole one, and one of two makers wins.
    try:
        temporary = f"{path}-{os.urandom(8).hex()}"
        try:
            with own_fd(os.open, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600) as fd:
                os.write(fd.number, os.urandom(KEY_NBYTES) if key is None else key)
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            try:
                os.unlink(temporary)  # nothing of Python before it, since an interrupt could prevent that
            except FileNotFoundError:
                pass
    except OSError as error:
        raise from_os_error(error, f"making the key {path}") from error
    return True


def read_key(path: str | Path) -> bytes:
    """Read the key from that file. Raises `InvalidArgumentError` as `user_key` does."""
    code, detail, key = native_key(str(path))
    if code == CONSTANTS["KEY_UNREADABLE"]:
        error = OSError(detail, os.strerror(detail))
        if detail in (errno.EMFILE, errno.ENFILE):
            raise from_os_error(error, f"reading the key {path}") from error
        raise InvalidArgumentError(f"cannot read the key {path}: {error.strerror}", native=detail) from error
    if code == CONSTANTS["KEY_NO_FILE"]:
        raise InvalidArgumentError(f"the key {path} is not a file")
    if code == CONSTANTS["KEY_OTHER_USER"]:
        raise _another_users(f"the key {path}", detail)
    if code == CONSTANTS["KEY_OPEN_TO_OTHERS"]:
        raise _open_to_others(f"the key {path}", detail, "0600")
    if code != CONSTANTS["KEY_GOOD"]:
        raise InvalidArgumentError(f"the key {path} must be {KEY_NBYTES} raw bytes")
    return key


def _renew_lock() -> None:
    """Replace the lock in a forked child. The thread that held the old lock does not exist in the child."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
