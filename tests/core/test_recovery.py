"""Waits that end by a close in another thread, and waits for the end of a loss (API, section 5)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept

DEVICE = "native_cpu:0"
SOON = 1.0


def opened(handle: xs.ipc.Handle, signals: bool | None = None) -> None:
    kept["event"] = xs.ipc.event.open(handle, signals=signals)


def signalled() -> int:
    event: xs.Event = kept["event"]
    return event.signal()


def while_it_waits(wait: Callable[[], Any], then: Callable[[], Any]) -> tuple[Any, float]:
    """What a wait in another thread ended with, and how long after `then`."""
    outcome: list[Any] = []
    begun = threading.Event()

    def run() -> None:
        begun.set()
        try:
            outcome.append(wait())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    thread.join(0.05)  # most often it sleeps by now; either way it must end
    assert thread.is_alive()
    then()
    began = time.monotonic()
    thread.join(30)
    return outcome[0], time.monotonic() - began


async def reached(event: xs.Event) -> None:
    await event.reached(1)


WAYS: dict[str, Callable[[xs.Event], Any]] = {
    "wait": lambda event: event.wait(30, at_least=1),
    "reached": lambda event: asyncio.run(reached(event)),
    "wait_any": lambda event: xs.wait_any([(event, 1)], timeout=30),
}


@pytest.mark.usefixtures("event")
@pytest.mark.parametrize("signals", [None, True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_close_in_another_thread_ends_waits(way: str, signals: bool | None) -> None:
    for each in (xs.ipc.event.open(kept["handle"], signals=signals), xs.Event(DEVICE, signals=signals)):
        found, took = while_it_waits(lambda each=each: WAYS[way](each), each.close)  # type: ignore[misc]
        assert isinstance(found, xs.InvalidArgumentError)
        assert "closed" in str(found)
        assert took < SOON


@pytest.mark.usefixtures("event")
def test_a_close_ends_the_waits_of_that_object_only(peer: Child) -> None:
    one, other = (xs.ipc.event.open(kept["handle"]) for _ in range(2))
    peer.call(opened, kept["handle"])
    other_closed: list[Any] = []

    def close_and_signal() -> None:
        one.close()
        other_closed.append(one.closed)
        peer.call(signalled)

    found, _took = while_it_waits(lambda: other.wait(30, at_least=1), close_and_signal)
    assert found is None
    assert other_closed == [True]
    other.close()


def lose(event: xs.Event, how: str) -> None:
    """A process that was to signal dies, before its first signal or with one that it owes."""
    with Child() as worker:
        worker.call(opened, kept["handle"], True)
        if how == "owing":
            worker.call(_owe)
        worker.kill()
    with pytest.raises(xs.PeerLostError):
        event.wait(30, at_least=1)


def _owe() -> None:
    queue = kept["queue"] = xs.Queue(DEVICE)
    queue.submit(threading.Event().wait)
    queue.signal(kept["event"])


def loop(kind: str, event: xs.Event) -> None:
    async def run() -> None:
        found = event.recovered()
        assert found is not None
        await found

    if kind == "asyncio":
        asyncio.run(run())
    else:
        pytest.importorskip("trio").run(run)


@pytest.mark.parametrize("how", ["promising", "owing"])
@pytest.mark.parametrize("kind", ["host", "asyncio", "trio"])
def test_a_loss_ends_with_another_signaller(event: xs.Event, peer: Child, how: str, kind: str) -> None:
    event.recovered()  # there is none
    lose(event, how)
    with pytest.raises(TimeoutError):
        event.recovered(0.05)
    found, took = while_it_waits(
        lambda: event.recovered(30) if kind == "host" else loop(kind, event),
        lambda: peer.call(opened, kept["handle"], True),
    )
    assert found is None
    assert took < SOON
    point = event.pending + 1
    assert peer.call(signalled) == point
    event.wait(10, at_least=point)


def test_a_program_that_tries_again_does_not_spin(event: xs.Event, peer: Child) -> None:
    lose(event, "promising")
    tries: list[int] = []

    def work() -> None:
        while True:
            tries.append(1)
            try:
                event.wait(30, at_least=1)
            except xs.PeerLostError:
                event.recovered(30)
            else:
                return

    def take_over() -> None:
        peer.call(opened, kept["handle"], True)
        peer.call(signalled)

    found, _took = while_it_waits(work, take_over)
    assert found is None
    assert len(tries) <= 3


def test_no_loss_ends_where_the_exporter_is_gone() -> None:
    with Child() as exporter:
        event = xs.ipc.event.open(exporter.call(_exported))
        found, took = while_it_waits(lambda: event.wait(30, at_least=1), exporter.kill)
        assert isinstance(found, xs.PeerLostError)
        assert took < SOON + 0.5
        with pytest.raises(xs.PeerLostError):
            event.recovered(30)
        event.close()


def _exported() -> xs.ipc.Handle:
    event = kept["event"] = xs.Event(DEVICE, enable_ipc=True, signals=True)
    return xs.ipc.event.get(event)


@pytest.mark.usefixtures("event")
def test_a_close_ends_the_wait_for_the_end_of_a_loss() -> None:
    with Child() as worker:
        worker.call(opened, kept["handle"], True)
        mine = xs.ipc.event.open(kept["handle"])
        worker.kill()
    with pytest.raises(xs.PeerLostError):
        mine.wait(30, at_least=1)
    found, took = while_it_waits(lambda: mine.recovered(30), mine.close)
    assert isinstance(found, xs.InvalidArgumentError)
    assert took < SOON
