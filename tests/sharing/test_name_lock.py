"""The lock on a file with a path, as Python has it."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from harness import Child
from xpushare._native import NameLock

PID_AT = 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.touch(0o600)
    return file


def holder(path: str | Path) -> int | None:
    with open(path, "rb") as file:
        return NameLock.holder(file.fileno(), PID_AT)


def taken(path: str | Path) -> bool:
    lock = NameLock.take(path)
    if lock is not None:
        lock.release()
    return lock is not None


def test_one_object_has_it(path: Path) -> None:
    found = os.stat(path)
    lock = NameLock.take(path, (found.st_dev, found.st_ino), PID_AT)
    assert lock is not None
    with lock, Child() as child:
        path.read_bytes()  # which opens and closes the file
        assert not taken(path)
        assert not child.call(taken, str(path))
        assert holder(path) == child.call(holder, str(path)) == os.getpid()
    assert holder(path) is None
    assert taken(path)
    lock.release()


def test_a_lost_object_releases_it(path: Path) -> None:
    lock = NameLock.take(path)
    assert lock is not None
    assert not taken(path)
    del lock
    gc.collect()
    assert taken(path)


_kept: list[NameLock] = []


def _keep(path: str) -> None:
    lock = NameLock.take(path, None, PID_AT)
    assert lock is not None
    _kept.append(lock)


def _release() -> None:
    _kept.pop().release()


def test_a_forked_child_has_it_not(path: Path) -> None:
    _keep(str(path))
    with Child(method="fork") as child:
        child.call(_release)
        assert not taken(path)
        assert not child.call(taken, str(path))
        _release()
        assert child.call(taken, str(path))
        _keep(str(path))
        child.exit()
    assert not taken(path)
    _release()


def test_a_killed_process_has_it_not(path: Path) -> None:
    with Child() as child:
        child.call(_keep, str(path))
        assert holder(path) == child.pid
        child.kill()
    assert taken(path)


def test_a_replaced_file(path: Path) -> None:
    found = os.stat(path)
    path.rename(path.with_name("moved"))
    with pytest.raises(FileNotFoundError):
        NameLock.take(path)
    path.touch(0o600)
    with pytest.raises(FileNotFoundError):
        NameLock.take(path, (found.st_dev, found.st_ino))
    assert taken(path)
    with pytest.raises(PermissionError):
        NameLock.take("/dev/null")
    with pytest.raises(TypeError):
        NameLock.take(path, (1,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot create"):
        NameLock()


def test_threads_take_it_in_turn(path: Path) -> None:
    counts = [0] * 4
    inside = 0

    def turn(which: int) -> None:
        nonlocal inside
        while counts[which] < 50:
            lock = NameLock.take(path)
            if lock is not None:
                inside += 1
                assert inside == 1
                inside -= 1
                lock.release()
                counts[which] += 1

    threads = [threading.Thread(target=turn, args=(each,)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert counts == [50] * 4
