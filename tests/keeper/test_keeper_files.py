"""The keeper's files are removed while it runs, by a logout or a cleaning of the temporary folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepers import keep, keeper_pid, listed, stop_keeper, values

from harness import Child, wait_until


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
