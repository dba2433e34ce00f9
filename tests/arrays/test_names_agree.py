"""Processes that look a name up by themselves agree on one version: `publish(versions=)`, `lookup(version=)`."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, wait_until
from named_arrays import filled, unpublish_all, value_of
from xpushare.arrays import names
from xpushare.sharing import naming, node

ROUNDS = 60
RANKS = 3


@pytest.fixture(autouse=True)
def _no_names_left() -> Any:
    yield
    unpublish_all()


def exports() -> int:
    return len(node.current().table().exports())


def version_seen(name: str) -> int | None:
    return xs.lookup(name).version


def value_at(name: str, version: int, timeout: float = 30) -> float:
    return value_of(xs.lookup(name, version=version, timeout=timeout))


def publish_values(name: str, values: list[float], versions: int = 1) -> list[int]:
    return [xs.publish(name, filled(value), replace=True, versions=versions) for value in values]


def test_ranks_agree_while_versions_are_published() -> None:
    published: dict[int, float] = {}
    failures: list[BaseException] = []
    go, done = threading.Semaphore(0), threading.Event()

    def publisher() -> None:
        value = 0.0
        try:
            while go.acquire() and not done.is_set():
                for _ in range(5):
                    value += 1
                    published[xs.publish("weights", filled(value), replace=True, versions=32)] = value
        except BaseException as error:
            failures.append(error)

    published[xs.publish("weights", filled(0), versions=32)] = 0.0
    thread = threading.Thread(target=publisher)
    thread.start()
    seen = set()
    ranks = [Child() for _ in range(RANKS)]
    try:
        for number in range(ROUNDS):
            # Else a publisher that lags behind would publish more versions at once than are kept.
            wait_until(lambda number=number: failures or len(published) == 1 + 10 * number, what="a round is published")
            go.release()
            looks = [rank.start(version_seen, "weights") for rank in ranks]
            versions = [look.result() for look in looks]
            agreed = min(versions)
            go.release()
            values = [each.result() for each in [rank.start(value_at, "weights", agreed) for rank in ranks]]
            wait_until(lambda agreed=agreed: agreed in published, what="publish has returned")
            assert values == [published[agreed]] * RANKS
            seen.add(agreed)
    finally:
        done.set()
        go.release()
        thread.join()
        for rank in ranks:
            rank.exit()
    assert not failures
    assert len(seen) > ROUNDS // 2


def test_the_last_versions_are_kept_and_no_more(peer: Child, no_fd_leak: None) -> None:  # noqa: ARG001
    before = exports()
    numbers = publish_values("name", [1, 2, 3, 4, 5], 3)
    assert numbers == list(range(numbers[0], numbers[0] + 5))
    assert [peer.call(value_at, "name", number) for number in numbers[2:]] == [3, 4, 5]
    assert [value_at("name", number) for number in numbers[2:]] == [3, 4, 5]
    for look in value_at, lambda *args: peer.call(value_at, *args):
        with pytest.raises(xs.HandleExpiredError, match=rf"version {numbers[1]} of 'name' .*versions="):
            look("name", numbers[1])
    assert exports() == before + 3
    (last,) = publish_values("name", [6])
    with pytest.raises(xs.HandleExpiredError):
        peer.call(value_at, "name", numbers[4])
    assert peer.call(value_at, "name", last) == 6
    assert exports() == before + 1
    xs.unpublish("name")
    assert exports() == before


def test_a_version_follows_nothing(peer: Child) -> None:
    (first,) = peer.call(publish_values, "name", [1])
    handle, newest = xs.lookup("name", version=first), xs.lookup("name")
    assert handle.version == newest.version == first
    (second,) = peer.call(publish_values, "name", [2])
    assert second == first + 1
    assert value_of(newest) == 2
    with pytest.raises(xs.HandleExpiredError, match="is not kept any more"):
        xs.attach(handle)
    assert next(xs.watch("name")).version == second
    peer.call(xs.unpublish, "name")


def test_what_was_not_looked_up_has_no_version() -> None:
    number = xs.publish("name", filled(1))
    handle = xs.lookup("name")
    assert handle.version == number
    assert pickle.loads(pickle.dumps(handle)).version is None
    assert xs.ArrayHandle(bytes(handle)).version is None
    with xs.share(filled(2)) as shared:
        assert shared.version is None
    event = xs.Event(enable_ipc=True)
    xs.publish("event", event)
    assert xs.lookup("event").version is not None


def test_a_version_that_is_still_to_come_is_waited_for(peer: Child) -> None:
    (first,) = publish_values("name", [1])
    with pytest.raises(TimeoutError, match=f"version {first + 1} of 'name'"):
        peer.call(value_at, "name", first + 1, 0)
    waiting = peer.start(value_at, "name", first + 2)
    publish_values("name", [2, 3, 4], 4)
    assert waiting.result() == 3


def test_versions_grow_from_one_publisher_to_the_next(peer: Child) -> None:
    numbers = peer.call(publish_values, "name", [1, 2, 3])
    peer.call(xs.unpublish, "name")
    (next_one,) = publish_values("name", [4])
    assert next_one > numbers[-1]
    with pytest.raises(xs.HandleExpiredError):
        value_at("name", numbers[-1])
    xs.unpublish("name")
    assert publish_values("name", [5])[0] > next_one


def test_a_failed_publish_keeps_what_was_kept(peer: Child) -> None:
    numbers = publish_values("name", [1, 2], 2)
    with pytest.raises(xs.FeatureNotSupportedError):
        xs.publish("name", np.zeros(3), replace=True, versions=2)
    assert [peer.call(value_at, "name", number) for number in numbers] == [1, 2]


@pytest.mark.parametrize("versions", [0, 65, True, 1.0, None])
def test_how_many_versions(versions: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError, match="versions"):
        xs.publish("name", filled(1), versions=versions)
    with pytest.raises(xs.InvalidArgumentError, match="version"):
        xs.lookup("name", version="1")  # type: ignore[arg-type]


def test_a_file_that_lists_no_versions_is_refused() -> None:
    xs.publish("name", filled(1))
    place = naming.names_folder() / "lies"
    for content in b"XPUSNAME\0\0\0\0", b"XPUSNAME\xff\xff\xff\xff", b"XPUSNAME\x02\0\0\0" + bytes(12):
        with place.open("wb") as file:
            file.write(content)
            file.flush()
            with place.open("rb+") as again, pytest.raises(xs.InvalidHandleError):
                names._content(_owned(again.fileno()), "lies", None)
    place.unlink()


def _owned(number: int) -> Any:
    class Fd:
        pass

    found = Fd()
    found.number = number  # type: ignore[attr-defined]
    return found
