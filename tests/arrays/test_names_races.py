"""What other processes do to the names between two steps of this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare._native import NameLock
from xpushare.sharing import identity, naming


def test_a_file_that_its_maker_removes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher has a temporary file for a moment that it has not locked yet, and removes it itself."""
    xs.published()
    temporary = identity.runtime_dir() / "names" / ".new-other"
    temporary.write_bytes(b"half")
    stat = os.stat

    def stat_then_gone(path: Any, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if Path(path) == temporary:
            temporary.unlink()
        return found

    monkeypatch.setattr(os, "stat", stat_then_gone)
    assert xs.published() == {}
    assert not temporary.exists()


def steal(name: str) -> None:
    """Replace the file of a name that another process has published, as the keeper does when it takes the name over."""
    with naming.lock:
        new = naming.Published(naming.names_folder() / name, lambda _handle: None)
        naming._claim(new, True)


def lookup_slowly(name: str, looked: Path, go: Path) -> bool:
    """Pause between the look at a dead publisher's file and its removal."""
    unlink = os.unlink

    def unlink_later(path: Any, **options: Any) -> None:
        if Path(path).name == name:
            looked.touch()
            wait_until(go.exists)
        unlink(path, **options)

    os.unlink = unlink_later  # type: ignore[assignment]
    try:
        xs.lookup(name, timeout=30)
    finally:
        os.unlink = unlink
    return True


def test_a_name_taken_back_from_a_dead_process_stays(
    peer: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that removes what the dead left removes nothing that has taken its place meanwhile."""
    looked, go = tmp_path / "looked", tmp_path / "go"
    xs.publish("weights", xs.zeros(3))
    with Child() as successor:
        successor.call(steal, "weights")
        successor.kill()
    found = peer.start(lookup_slowly, "weights", looked, go)
    wait_until(looked.exists)
    alone = naming._alone

    def alone_soon(*arguments: Any) -> bool:
        go.touch()
        return alone(*arguments)

    monkeypatch.setattr(naming, "_alone", alone_soon)
    naming.taken_back("weights")
    go.touch()
    assert found.result()
    assert list(peer.call(xs.published)) == ["weights"]
    xs.unpublish("weights")
    assert os.listdir(naming.names_folder()) == []


def hold_for_removal(name: str) -> None:
    kept["lock"] = NameLock.take(naming.names_folder() / name)
    assert kept["lock"] is not None


def test_a_name_is_taken_back_even_if_a_process_holds_the_dead_file_for_ever(
    peer: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    xs.publish("weights", xs.zeros(3))
    with Child() as successor:
        successor.call(steal, "weights")
        peer.call(hold_for_removal, "weights")
        successor.kill()
    monkeypatch.setattr(naming, "_REAPER_MOST", 0.05)
    naming.taken_back("weights")
    with Child() as reader:
        assert list(reader.call(xs.published)) == ["weights"]
    peer.call(kept.clear)
    xs.unpublish("weights")
    assert os.listdir(naming.names_folder()) == []


def holder_for_removal(name: str) -> int | None:
    with (naming.names_folder() / name).open("rb") as file:
        return NameLock.holder(file.fileno())


@pytest.mark.parametrize("replace", [False, True])
def test_a_publish_that_fails_holds_no_file(peer: Child, monkeypatch: pytest.MonkeyPatch, replace: bool) -> None:
    """Not even while somebody keeps its exception."""
    with Child() as publisher:
        publisher.call(steal, "weights")
        publisher.kill()
    alone = naming._alone

    def interrupted(*arguments: Any) -> bool:
        assert alone(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(naming, "_alone", interrupted)
    with pytest.raises(KeyboardInterrupt) as error:
        xs.publish("weights", xs.zeros(3), replace=replace)
    assert error.traceback
    assert peer.call(holder_for_removal, "weights") is None
    monkeypatch.undo()
    xs.publish("weights", xs.zeros(3), replace=replace)
    xs.unpublish("weights")
    assert os.listdir(naming.names_folder()) == []
