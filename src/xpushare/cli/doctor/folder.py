"""Check the user's runtime folder and key."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import xpushare as xs
from xpushare import _native
from xpushare.adapters.vendor import Check

__all__ = ["examine"]


def _private_fix(path: Path, mode: str) -> str:
    try:
        found = path.lstat()
    except OSError:
        return "set XPUSHARE_RUNTIME_DIR to a folder of yours"
    if stat.S_ISLNK(found.st_mode):
        return f"replace the link {path} by what it points to, or name that in the environment"
    if found.st_uid != os.geteuid():
        return f"chown {os.geteuid()} {path}, or set XPUSHARE_RUNTIME_DIR to a folder of yours"
    return f"chmod {mode} {path}"


def _why_not_written(folder: Path) -> str:
    """Return why a file of a key's size cannot be written in the folder, or an empty string if it can."""
    from xpushare.sharing.identity import KEY_NBYTES

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(KEY_NBYTES))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _new_versions(folder: Path) -> Check:
    """Check whether `publish(replace=True)` can replace an old version in this folder without waiting for the disk."""
    with tempfile.NamedTemporaryFile(dir=folder) as one, tempfile.NamedTemporaryFile(dir=folder) as other:
        exchanged = _native.exchange(one.name, other.name)
    group, name = "folder and key", "new versions of names"
    if exchanged:
        return Check(group, name, "works", "publish(replace=True) does not wait for a disk")
    return Check(
        group, name, "limited",
        f"the file system of {folder} cannot exchange two files: publish(replace=True) may wait for the disk",
        "set XPUSHARE_RUNTIME_DIR to a folder of yours in memory, such as one in /dev/shm",
    )  # fmt: skip


def examine() -> Iterator[Check]:
    from xpushare.sharing import identity

    group, elsewhere = "folder and key", "set XPUSHARE_RUNTIME_DIR to a folder of yours"
    folder = identity.new_dir()
    explicit = os.environ.get("XPUSHARE_KEY_FILE")
    key = Path(explicit) if explicit else folder / "key"
    sound = True
    try:
        identity.check_folder(folder)
        why = _why_not_written(folder)
        if why:
            found = f"{folder}, yours alone; no names, and no sockets, can be made there: {why}"
            yield Check(group, "runtime folder", "limited", found, elsewhere)
        else:
            yield Check(group, "runtime folder", "works", f"{folder}, yours alone")
            yield _new_versions(folder)
    except FileNotFoundError:
        sound = os.access(folder.parent, os.W_OK | os.X_OK)
        if sound:
            yield Check(group, "runtime folder", "works", f"{folder} is made by the first export")
        else:
            yield Check(group, "runtime folder", "fails", f"{folder} cannot be made in {folder.parent}", elsewhere)
    except OSError as error:
        sound = False
        yield Check(group, "runtime folder", "fails", f"{folder}: {error.strerror}", elsewhere)
    except xs.InvalidArgumentError as error:
        sound = False
        yield Check(group, "runtime folder", "fails", str(error), _private_fix(folder, "0700"))
    if not sound and not explicit:
        return  # without its folder there is no key
    try:
        identity.read_key(key)
        yield Check(group, "key", "works", f"{key}, yours alone")
    except xs.InvalidArgumentError as error:
        make = f"(umask 077; head -c 32 /dev/urandom > {key})"
        if error.native == errno.ENOENT and not explicit:
            why = _why_not_written(folder if folder.exists() else folder.parent)
            if not why:
                yield Check(group, "key", "works", f"{key} is made by the first export")
            else:
                yield Check(group, "key", "fails", f"{key} cannot be made: {why}", elsewhere)
        elif error.native is not None:
            fix = make if error.native == errno.ENOENT else f"let this user read {key}, or unset XPUSHARE_KEY_FILE"
            yield Check(group, "key", "fails", str(error), fix)
        else:
            fix = _private_fix(key, "0600")
            if "32 raw" in str(error):
                fix = make if explicit else f"rm {key}, and end the processes that use it"
            yield Check(group, "key", "fails", str(error), fix)
