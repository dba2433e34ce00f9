"""`wait_any` and `any_of`: the first of several events and watches, across processes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import xpushare as xs
from harness import Child, wait_until

PATIENCE = 30.0


def signalled(event: xs.Event) -> None:
    event.signal()


def published(name: str) -> None:
    xs.publish(name, xs.empty(4))


def test_those_that_are_ready_come_as_they_were_given() -> None:
    first, second = xs.Event("native_cpu:0", enable_ipc=True), xs.Event("native_cpu:0", enable_ipc=True)
    second.signal()
    wanted = [(first, 1), (second, 1), second]
    found = xs.wait_any(wanted, 0)
    assert [id(each) for each in found] == [id(wanted[1]), id(second)]


def test_none_is_ready() -> None:
    with xs.Event("native_cpu:0", enable_ipc=True) as event:
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError, match="none of the objects"):
                xs.wait_any([(event, 1)], timeout)


@pytest.mark.parametrize("last", [0, 1])
def test_a_peer_signals_one_of_them(last: int) -> None:
    events = [xs.Event("native_cpu:0", enable_ipc=True) for _ in range(2)]
    with Child() as peer:
        done = threading.Thread(target=peer.call, args=(signalled, events[last]))
        done.start()
        found = xs.wait_any([(each, 1) for each in events], PATIENCE)
        done.join()
    assert found == [(events[last], 1)]


def test_a_peer_that_dies_loses_its_point() -> None:
    living, lost = (xs.Event("native_cpu:0", enable_ipc=True) for _ in range(2))
    with Child() as peer:
        peer.call(owes, lost)
        found: list[BaseException] = []

        def wait() -> None:
            try:
                xs.wait_any([(living, 1), (lost, 2)], PATIENCE)
            except xs.PeerLostError as error:
                found.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        peer.kill()
        waiting.join(PATIENCE)
    assert found


_KEPT: list[Any] = []


def owes(event: xs.Event) -> None:
    _KEPT.append(event)
    event.signal()


def test_what_is_ready_before_a_loss_comes_first() -> None:
    lost, ready = (xs.Event("native_cpu:0", enable_ipc=True) for _ in range(2))
    ready.signal()
    with Child() as peer:
        peer.call(owes, lost)
        peer.kill()
    assert xs.wait_any([ready, (lost, 2)], PATIENCE) == [ready]
    with pytest.raises(xs.PeerLostError):
        xs.wait_any([(lost, 2), ready], PATIENCE)


def test_a_watch_keeps_its_item() -> None:
    with xs.Event("native_cpu:0", enable_ipc=True) as event, xs.watch("first-of-several") as watch, Child() as peer:
        done = threading.Thread(target=peer.call, args=(published, "first-of-several"))
        done.start()
        assert xs.wait_any([(event, 1), watch], PATIENCE) == [watch]
        done.join()
        assert xs.wait_any([watch], 0) == [watch]
        assert isinstance(next(watch), xs.ArrayHandle)
        with pytest.raises(TimeoutError):
            xs.wait_any([watch], 0)


@pytest.mark.parametrize("what", ["event", "watch"])
def test_a_close_in_another_thread_ends_it(what: str) -> None:
    event = xs.Event("native_cpu:0", enable_ipc=True)
    watch = xs.watch("nobody-publishes-this")
    found: list[BaseException] = []

    def wait() -> None:
        try:
            xs.wait_any([(event, 1), watch], PATIENCE)
        except xs.InvalidArgumentError as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    (event if what == "event" else watch).close()
    waiting.join(PATIENCE)
    assert found
    event.close()
    watch.close()


@pytest.mark.parametrize("wrong", [[], [3], [("a", 1)], ["name"]])
def test_what_cannot_be_waited_for(wrong: list[Any]) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        xs.wait_any(wrong, 0)


async def one_of(events: list[Any]) -> list[Any]:
    return await xs.any_of(events)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_in_event_loops(loop: str) -> None:
    events = [xs.Event("native_cpu:0", enable_ipc=True) for _ in range(2)]
    wanted = [(each, 1) for each in events]
    with Child() as peer:
        done = threading.Thread(target=peer.call, args=(signalled, events[1]))
        done.start()
        if loop == "asyncio":
            found = asyncio.run(asyncio.wait_for(one_of(wanted), PATIENCE))
        else:
            trio = pytest.importorskip("trio")
            found = trio.run(one_of, wanted)
        done.join()
    assert found == [wanted[1]]


def test_many_threads_share_one_notification() -> None:
    """Whichever thread sees it first wakes the one that waits for it."""
    events = [xs.Event("native_cpu:0", enable_ipc=True) for _ in range(8)]
    found: dict[int, list[Any]] = {}

    def wait(index: int) -> None:
        found[index] = xs.wait_any([(events[index], 1)], PATIENCE)

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(8)]
    for each in threads:
        each.start()
    for each in events:
        each.signal()
    wait_until(lambda: len(found) == 8)
    for each in threads:
        each.join()
    assert found == {index: [(event, 1)] for index, event in enumerate(events)}


def test_what_is_cancelled_leaves_nothing_registered() -> None:
    from xpushare.timeline import waiting

    async def cancelled(event: xs.Event) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await xs.any_of([(event, 1)])

    before = dict(vars(waiting)["_waiters"])
    with xs.Event("native_cpu:0", enable_ipc=True) as event:
        asyncio.run(cancelled(event))
        with pytest.raises(TimeoutError):
            xs.wait_any([(event, 1)], 0.01)
    assert vars(waiting)["_waiters"] == before
