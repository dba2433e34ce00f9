"""Pools of torch and CuPy on a real GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import gpu_pool_peer as peer
import pytest

from harness import Child, wait_until

sys.path.append(str(Path(__file__).parent.parent / "keeper"))

from keepers import keeper_pid, stop_keeper

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(90)]
SLOW = 80.0
VALUES = [float(n) for n in range(peer.NUMBER)]
NBYTES = peer.NUMBER * peer.ELEMENTS * 4


@pytest.fixture(params=["torch", "cupy"])
def owner(request: pytest.FixtureRequest) -> Iterator[Child]:
    for module in "torch", request.param:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    with Child(timeout=SLOW) as child:
        assert child.call(getattr(peer, f"make_{request.param}")) <= 4
        yield child


@pytest.fixture
def torch_owner() -> Iterator[Child]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    with Child(timeout=SLOW) as child:
        child.call(peer.make_torch)
        yield child


@pytest.fixture
def reader() -> Iterator[Child]:
    with Child(timeout=SLOW) as child:
        yield child


@pytest.fixture
def _keeper() -> Iterator[None]:
    yield
    stop_keeper()


def test_tensors_are_shared_in_place(owner: Child, reader: Child) -> None:
    raw, allocations = owner.call(peer.share)
    assert allocations <= 4
    assert reader.call(peer.attach, raw) == VALUES
    reader.call(peer.write, 50.0)
    assert owner.call(peer.own_values) == [50.0 + each for each in VALUES]


def test_sleep_and_wake(owner: Child) -> None:
    why, freed = owner.call(peer.sleep, True)
    assert (why, freed > NBYTES // 2) == ("", True)
    assert owner.call(peer.wake)
    assert owner.call(peer.own_values) == VALUES
    why, freed = owner.call(peer.sleep, False)
    assert (why, freed > NBYTES // 2) == ("", True)
    assert owner.call(peer.wake)
    raw, _ = owner.call(peer.share)  # the new memory is shared like the old
    with Child(timeout=SLOW) as reader:
        reader.call(peer.attach, raw)
        reader.call(peer.write, 7.0)
        assert owner.call(peer.own_values) == [7.0 + each for each in VALUES]


def test_sleep_waits_for_work(torch_owner: Child) -> None:
    assert torch_owner.call(peer.sleep_while_working, True) == ""
    assert torch_owner.call(peer.wake)
    assert torch_owner.call(peer.own_values) == [100.0 + each for each in VALUES]


def test_no_sleep_while_it_is_open(owner: Child, reader: Child) -> None:
    raw, _ = owner.call(peer.share)
    reader.call(peer.attach, raw)
    assert f"open in process {reader.pid}" in owner.call(peer.sleep, True)[0]
    assert owner.call(peer.own_values) == VALUES
    reader.call(peer.close)
    assert owner.call(peer.sleep, True)[0] == ""
    assert owner.call(peer.wake)
    assert owner.call(peer.own_values) == VALUES


@pytest.mark.parametrize("inside", [False, True])
def test_a_graph_replays_after_a_sleep(torch_owner: Child, inside: bool) -> None:
    assert torch_owner.call(peer.capture, inside) == [each + 2.0 for each in VALUES]


def test_a_graph_outlives_the_pool(torch_owner: Child) -> None:
    assert torch_owner.call(peer.capture_outlives) == [each + 1.0 for each in VALUES]


def test_memory_goes_back_with_the_pool(owner: Child) -> None:
    before, after = owner.call(peer.drop, False)
    assert before >= NBYTES
    assert after == 0


def test_empty_cache(owner: Child) -> None:
    before, after = owner.call(peer.drop, True)
    assert before >= NBYTES
    assert after == 0


def test_the_cache_is_emptied_beside_tensors(torch_owner: Child) -> None:
    why, found = torch_owner.call(peer.empty_while, "")
    assert "this pool is in use" in why
    assert found == VALUES
    assert torch_owner.call(peer.sleep, True)[0] == ""
    assert torch_owner.call(peer.wake)
    assert torch_owner.call(peer.own_values) == VALUES


def test_fork_is_refused(torch_owner: Child) -> None:
    assert torch_owner.call(peer.fork) == b"refused"
    assert torch_owner.call(peer.own_values) == VALUES


def test_too_much_is_torchs_error(torch_owner: Child) -> None:
    text, found = torch_owner.call(peer.too_much)
    assert "out of memory" in text.lower()
    assert found == VALUES


@pytest.mark.usefixtures("_keeper")
def test_kept_and_adopted(owner: Child, reader: Child) -> None:
    assert owner.call(peer.keep, "weights") > 0
    assert "the keeper has memory" in owner.call(peer.sleep, True)[0]
    owner.kill()
    wait_until(lambda: not owner.alive)
    assert reader.call(peer.find, "weights", True) == VALUES
    with open(f"/proc/{keeper_pid()}/maps") as maps:
        assert "libcuda" not in maps.read()
    stop_keeper()
    assert reader.call(peer.publish_owned, "weights") > 0  # an owner publishes it again
    reader.kill()
    with Child(timeout=SLOW) as heir:
        assert heir.call(peer.find, "weights") == VALUES
