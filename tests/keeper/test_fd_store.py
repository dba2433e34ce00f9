"""The keeper as a service with a file-descriptor store: what it keeps outlives it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from keepers import keep, keep_array, keeper_pid, kept_files, listed, tree, values, values_of
from service_manager import Manager

import xpushare as xs
from harness import Child, command, kept, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory() as folder:  # whose path is short enough for a socket
        made = Manager(Path(folder))
        yield made
        made.close()


def keep_again(name: str, value: float) -> int:
    """Publish another version in the same memory."""
    for part in kept[name]["parts"]:
        np.asarray(part)[:] = value
    kept[name]["value"] = value
    return xs.publish(name, kept[name], keep=True, replace=True)


def test_a_keeper_that_is_killed_leaves_all_to_the_next(manager: Manager, publisher: Child, peer: Child) -> None:
    manager.begin()
    version = publisher.call(keep, "weights", 7)
    publisher.call(keep_array, "large", 1 << 20)
    since = {each["name"]: each["since"] for each in listed()}
    publisher.kill()
    manager.end(signal.SIGKILL)
    assert manager.begin() == keeper_pid()
    assert peer.call(values, "weights") == {7}
    found = {each["name"]: each for each in listed()}
    assert {name: each["since"] for name, each in found.items()} == since
    assert (found["weights"]["version"], found["weights"]["publisher"]) == (version, publisher.pid)
    assert manager.end() == 0  # as for a restart
    manager.begin()
    assert peer.call(values, "weights") == {7}
    assert command("keep", "--stop").returncode == 0  # what it kept is gone
    assert manager.ended() == 0
    manager.wait(lambda: not manager.stored)


def test_versions_in_one_memory_are_stored_once(manager: Manager, publisher: Child, peer: Child) -> None:
    manager.begin()
    publisher.call(keep, "weights", 1, versions=2)
    before = len(manager.stored)
    publisher.call(keep_again, "weights", 2)
    assert manager.refused == []
    assert len(manager.stored) == before  # the state alone is new, and the old version's is gone
    publisher.kill()
    manager.end(signal.SIGKILL)
    manager.begin()
    assert peer.call(values, "weights") == {2}
    assert command("keep", "--drop", "weights").returncode == 0
    manager.wait(lambda: not manager.stored)
    assert kept_files() == 0
    assert manager.end() == 0


def test_old_versions_stand_beside_the_new_one(manager: Manager, publisher: Child, peer: Child) -> None:
    manager.begin()
    old = publisher.call(keep, "weights", 1)
    new = publisher.call(keep, "weights", 2, replace=True, versions=2)
    publisher.kill()
    manager.end(signal.SIGKILL)
    manager.begin()
    assert peer.call(values, "weights") == {2}
    assert manager.states() == 2
    assert peer.call(value_of, "weights", old) == {1}
    assert peer.call(value_of, "weights", new) == {2}
    assert manager.end() == 0


def value_of(name: str, version: int) -> set[float]:
    return values_of(xs.attach(xs.lookup(name, timeout=0, version=version)))


def test_what_is_not_complete_is_dropped(manager: Manager, publisher: Child, peer: Child) -> None:
    """As of a keeper that was killed while it stored a version."""
    manager.begin()
    publisher.call(keep, "whole", 1)
    publisher.call(keep, "part", 2)
    publisher.kill()
    manager.end(signal.SIGKILL)
    lost = next(name for name, _ in manager.stored if "state" not in name)
    dropped = [each for each in manager.stored if each[0] == lost]
    for each in dropped:
        os.close(each[1])
        manager.stored.remove(each)
    manager.begin()
    assert [each["name"] for each in listed()] == ["whole"]
    assert peer.call(values, "whole") == {1}
    wait_until(lambda: manager.states() == 1, what="the rest to be removed")
    assert "not complete" in manager.journal.read_text()
    assert manager.end() == 0


def test_what_a_keeper_of_another_version_stored_is_dropped(manager: Manager, publisher: Child) -> None:
    manager.begin()
    publisher.call(keep, "weights", 1)
    publisher.kill()
    manager.end(signal.SIGKILL)
    (state,) = (fd for name, fd in manager.stored if "state" in name)
    text = os.pread(state, 1 << 16, 0)
    os.pwrite(state, text.replace(b'"format": 2', b'"format": 3'), 0)
    manager.begin()
    assert listed() == []
    assert "has version 3 of the stored layout, and this keeper has version 2" in manager.journal.read_text()
    assert manager.end() == 0


def test_a_state_that_is_damaged_costs_no_other(manager: Manager, publisher: Child, peer: Child) -> None:
    manager.begin()
    publisher.call(keep, "damaged", 1)
    publisher.call(keep, "whole", 2)
    publisher.kill()
    manager.end(signal.SIGKILL)
    state = next(fd for name, fd in manager.stored if "state" in name and b'"damaged"' in os.pread(fd, 1 << 16, 0))
    os.pwrite(state, b"[" * 100, 0)
    manager.begin()
    assert [each["name"] for each in listed()] == ["whole"]
    assert peer.call(values, "whole") == {2}
    assert manager.end() == 0


STEP = """
import os, time
wall = time.time
time.time = lambda: wall() + 3600 * os.path.exists(os.environ["XPUSHARE_RUNTIME_DIR"] + "/step")
"""


def test_a_step_of_the_wall_clock_while_no_keeper_runs_drops_nothing(
    manager: Manager, publisher: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STEP)
    monkeypatch.syspath_prepend(str(tmp_path))
    step = Path(os.environ["XPUSHARE_RUNTIME_DIR"]) / "step"
    manager.begin("--ttl", "600")
    publisher.call(keep, "weights", 1)
    manager.end(signal.SIGKILL)
    step.touch()
    try:
        manager.begin("--ttl", "600")
        assert [each["name"] for each in listed()] == ["weights"]
    finally:
        step.unlink()
    assert manager.end() == 0


def test_a_keeper_that_publish_starts_is_no_service(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its publisher may be one."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    kept["weights"] = tree(3)
    xs.publish("weights", kept.pop("weights"), keep=True)
    assert manager.stored == []


def test_the_unit(tmp_path: Path) -> None:
    """`xpushare keep --unit` prints it for this Python."""
    unit = command("keep", "--unit").stdout
    for line in (
        f"ExecStart={sys.executable} -m xpushare keep", "Type=notify", "FileDescriptorStoreMax=", "Restart=on-failure",
    ):  # fmt: skip
        assert line in unit
    assert not list(tmp_path.iterdir())
