"""The keeper's files are removed while it runs, by a logout or a cleaning of the temporary folder."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepers import keep, keeper_pid, listed, stop_keeper, values

import xpushare as xs
from harness import Child, fd_count, wait_until
from interrupting import Interrupt
from xpushare.adapters.vendor import Check
from xpushare.cli.doctor.keeper import examine
from xpushare.keeper import files
from xpushare.keeper.clients import Clients
from xpushare.sharing import identity, naming


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The runtime folder of a keeper that keeps "weights". The process that published them has ended."""
    folder = tmp_path / "run"
    with Child(env={"XPUSHARE_RUNTIME_DIR": str(folder)}) as publisher:
        publisher.call(keep, "weights", 7)
    yield folder
    with Child(env={"XPUSHARE_RUNTIME_DIR": str(folder)}) as child:
        child.call(stop_keeper)


def names() -> tuple[list[str], set[float], int | None]:
    return [each["name"] for each in listed()], values("weights", timeout=20), keeper_pid()


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def remove_and_make(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)


def move(folder: Path) -> None:
    folder.rename(folder.with_name("gone"))


def clear(folder: Path) -> None:
    for each in "keeper", "keeper.lock", "key", "names/weights":
        (folder / each).unlink()


@pytest.mark.parametrize("remove", [remove, remove_and_make, move, clear])
def test_a_keeper_whose_files_are_removed_makes_them_again(folder: Path, remove: Callable[[Path], None]) -> None:
    with Child(env={"XPUSHARE_RUNTIME_DIR": str(folder)}) as child:
        before = child.call(names)
        key = (folder / "key").read_bytes()
    for _ in range(2):
        remove(folder)
        wait_until(lambda: all((folder / each).exists() for each in ("key", "keeper", "keeper.lock", "names/weights")))
        shutil.rmtree(folder.with_name("gone"), ignore_errors=True)
        with Child(env={"XPUSHARE_RUNTIME_DIR": str(folder)}) as child:
            assert child.call(names) == before
            child.call(keep, "more", 8, replace=True)
            assert child.call(values, "more") == {8}
            child.call(drop, "more")
        assert (folder / "key").read_bytes() == key


def drop(name: str) -> None:
    from xpushare.sharing import keeping

    with keeping.connected() as keeper:
        assert keeper is not None
        keeper.drop(name)


def test_a_keeper_that_cannot_make_its_files_again_tries_until_it_can(folder: Path) -> None:
    away = folder.parent
    kept = away.with_name(away.name + "-kept")
    away.rename(kept)  # as /run/user/UID goes
    try:
        shutil.rmtree(kept / "run")
    finally:
        kept.rename(away)
    with Child(env={"XPUSHARE_RUNTIME_DIR": str(folder)}) as child:
        wait_until(lambda: (folder / "keeper").exists())
        assert child.call(names)[:2] == (["weights"], {7})


def refusal() -> str:
    with pytest.raises(xs.XpuShareError) as refused:
        keep("more", 1)
    return str(refused.value)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Whoever made the link would choose which file the keeper makes and locks."""
    with Child(env={"XPUSHARE_RUNTIME_DIR": str(tmp_path / "run")}) as child:
        child.call(xs.published)
        (tmp_path / "run" / "keeper.lock").symlink_to(tmp_path / "target")
        assert "keeper.lock is not a file of this user: remove it" in child.call(refusal)
        assert [each.state for each in child.call(examined)] == ["skipped"]
    assert not (tmp_path / "target").exists()


def examined() -> list[Check]:
    return list(examine())


@pytest.mark.parametrize("locks", [True, False])
def test_an_interrupted_attempt_to_make_the_lock_again_keeps_no_descriptor(
    locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "chosen_dir", lambda: tmp_path)
    monkeypatch.setattr(naming, "names_folder", lambda: tmp_path)
    lock = files.take_lock()
    assert lock is not None
    if not locks:
        monkeypatch.setattr(files, "take_lock", lambda: None)
    errors: list[BaseException] = []
    path = tmp_path / "keeper.lock"
    with socket.socket(socket.AF_UNIX) as listening:
        clients = Clients(listening, lambda *_: b"", lambda _: None)
        watched = files.Files(clients, lock, lambda: None)
        monkeypatch.setattr(watched, "_begin", lambda: None)
        before = fd_count()
        for nth in range(1, 100):
            path.unlink()
            interrupt = Interrupt(nth)
            sys.setprofile(interrupt)
            try:
                watched._restore()
            except (KeyboardInterrupt, xs.InvalidArgumentError) as error:
                errors.append(error)  # its frames refer to what they opened
            finally:
                sys.setprofile(None)
            assert fd_count() <= before, f"interrupted at point {nth}"
            if interrupt.left > 0:
                assert nth > 8
                break
            path.touch()
        watched._lock.release()
