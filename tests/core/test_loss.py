"""A wait never hangs on the dead."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from peering import call_on, exported_event, opened

import xpushare as xs
from harness import Child, kept, program, wait_until
from xpushare.common.leaving import Stage, at_leave

Pair = tuple[str, str]
SOON = 1.0  # a loss is seen within this time of the death


def within(start: float, wait: Callable[[], Any], match: str = "lost") -> str:
    """`wait` raises PeerLostError within a second of `start`; its text."""
    with pytest.raises(xs.PeerLostError, match=match) as caught:
        wait()
    assert time.monotonic() - start < SOON
    return str(caught.value)


def owe(handle: xs.ipc.Handle, device: str, how: str) -> int:
    """In a child: open the event and owe a signal of it."""
    event = kept["event"] = xs.ipc.event.open(handle, device=device)
    queue = kept["queue"] = xs.Queue(device)
    running = threading.Event()
    if how == "running":

        def work() -> None:
            running.set()
            threading.Event().wait()

        call_on(queue, work)
        assert running.wait(10)
    elif how == "behind a wait":
        never = kept["never"] = xs.Event(device)
        queue.wait(never, at_least=1)
    point = queue.signal(event)
    assert not event.done
    return point


@pytest.fixture
def event(pair: Pair) -> Any:
    with xs.Event(pair[0], enable_ipc=True) as event:
        handle = kept["handle"] = xs.ipc.event.get(event)
        yield event
        xs.ipc.event.put(handle)
        kept.clear()


@pytest.mark.parametrize("how", ["running", "behind a wait"])
def test_an_owing_process_is_killed(pair: Pair, event: xs.Event, how: str) -> None:
    with Child() as child, xs.Queue(pair[0]) as queue:
        assert child.call(owe, kept["handle"], pair[1], how) == 1
        queue.wait(event)
        seen: list[str] = []
        call_on(queue, seen.append, "work behind a released wait still runs")
        child.kill()
        killed = time.monotonic()
        text = within(killed, lambda: event.wait(10), "died")
        assert f"process {child.pid} died" in text
        within(killed, lambda: queue.synchronize(10), "died")
        queue.synchronize(10)  # once per loss and queue
        assert seen == ["work behind a released wait still runs"]
    # A lost point raises at each wait …
    for _ in range(3):
        with pytest.raises(xs.PeerLostError):
            event.wait(0)
        with pytest.raises(xs.PeerLostError):
            event.wait(5, at_least=1)
        with pytest.raises(xs.PeerLostError):
            event.done  # noqa: B018
    assert (event.value, event.pending) == (1, 1)
    # … until a later signal completes.
    assert event.signal() == 2
    assert event.done
    event.wait(0)
    event.wait(0, at_least=1)


def test_a_wait_that_has_begun_is_released(pair: Pair, event: xs.Event) -> None:
    with Child() as child:
        child.call(owe, kept["handle"], pair[1], "running")
        caught: list[BaseException] = []
        begun = threading.Event()

        def wait() -> None:
            begun.set()
            try:
                event.wait(10)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert begun.wait(10)
        wait_until(lambda: event._use().timeline.slot.attached())
        child.kill()
        killed = time.monotonic()
        thread.join(10)
        assert time.monotonic() - killed < SOON
        assert [type(error) for error in caught] == [xs.PeerLostError]


def test_work_queued_but_not_started(pair: Pair, event: xs.Event) -> None:
    with Child() as child:

        def many(handle: xs.ipc.Handle, device: str) -> list[int]:
            event = kept["event"] = xs.ipc.event.open(handle, device=device)
            queue = kept["queue"] = xs.Queue(device)
            first = queue.signal(event)
            event.wait(10)
            call_on(queue, threading.Event().wait)
            return [first, *(queue.signal(event) for _ in range(3))]

        assert child.call(many, kept["handle"], pair[1]) == [1, 2, 3, 4]
        event.wait(5, at_least=1)
        child.kill()
        killed = time.monotonic()
        for point in (2, 3, 4):
            within(killed, lambda point=point: event.wait(5, at_least=point))
        event.wait(0, at_least=1)  # completed before
        assert event.value == 4


def test_an_idle_process_owes_nothing(pair: Pair, event: xs.Event) -> None:
    with Child() as child:
        child.call(opened, kept["handle"], pair[1], kind="event")
        assert child.call(lambda: kept["opened"].signal()) == 1
        child.kill()
    event.wait(5)
    assert event.done
    assert event.signal() == 2
    event.wait(0)


def test_a_future_point_is_lost_with_the_last_peer(pair: Pair, event: xs.Event) -> None:
    with Child() as one, Child() as two:
        for child in (one, two):
            child.call(opened, kept["handle"], pair[1], kind="event")
        one.kill()
        with pytest.raises(TimeoutError):
            event.wait(0.05, at_least=1)  # two may still signal
        two.kill()
        killed = time.monotonic()
        within(killed, lambda: event.wait(10, at_least=1))


def test_a_queue_that_waits_for_a_future_point_is_released(pair: Pair, event: xs.Event) -> None:
    with Child() as child, xs.Queue(pair[0]) as queue:
        child.call(opened, kept["handle"], pair[1], kind="event")
        queue.wait(event, at_least=2)
        other = xs.Event(pair[0])
        queue.signal(other)
        child.kill()
        killed = time.monotonic()
        within(killed, lambda: queue.synchronize(10))
        queue.synchronize(10)
        with pytest.raises(xs.PeerLostError):
            other.wait(5)  # signals queued behind a released wait are lost, too


def test_a_future_point_may_come_from_the_waiter_itself(event: xs.Event) -> None:
    # Nobody but us ever attached: no loss, a time-out.
    with pytest.raises(TimeoutError):
        event.wait(0.05, at_least=1)
    assert event.signal() == 1
    event.wait(0, at_least=1)


def test_a_peer_that_never_attached_is_no_loss(event: xs.Event) -> None:
    with Child() as child:
        child.call(lambda handle: kept.__setitem__("handle", handle), kept["handle"])
        child.kill()
    with pytest.raises(TimeoutError):
        event.wait(0.05, at_least=1)


@pytest.mark.parametrize("how", ["close", "exit"])
def test_a_clean_end_is_no_loss(pair: Pair, event: xs.Event, how: str) -> None:
    with Child() as child:
        child.call(opened, kept["handle"], pair[1], kind="event")
        if how == "close":
            child.call(lambda: kept.pop("opened").close())
            wait_until(lambda: len(event.statistics()["processes"]) == 1)
            child.kill()
        else:
            assert child.call(lambda: kept["opened"].done)  # who has only waited abandons nothing
            assert child.exit() == 0
    with pytest.raises(TimeoutError):
        event.wait(0.05, at_least=1)
    assert event.signal() == 1


def test_an_exit_that_owes_is_a_loss(pair: Pair, event: xs.Event) -> None:
    with Child() as child:
        child.call(owe, kept["handle"], pair[1], "behind a wait")
        assert child.exit() == 0
    with pytest.raises(xs.PeerLostError, match=f"process {child.pid} exited while it owed"):
        event.wait(5)


def exit_slowly(handle: xs.ipc.Handle, device: str) -> None:
    """In a child: owe a signal behind a wait, and live on for a while when this process has left."""
    event = kept["event"] = xs.ipc.event.open(handle, device=device)
    queue = kept["queue"] = xs.Queue(device)
    queue.wait(event, at_least=2)
    queue.signal(event)
    at_leave(lambda _deadline: time.sleep(0.3), Stage.LEAVE)


def test_an_exit_stores_nothing_late(pair: Pair, event: xs.Event) -> None:
    # The signal of point 2 lets the exiting process's device go, if it is there still.
    with Child() as child, xs.Queue(pair[0]) as queue:
        child.call(exit_slowly, kept["handle"], pair[0])
        ended = threading.Thread(target=child.exit)
        ended.start()
        with pytest.raises(xs.PeerLostError, match="exited while it owed"):
            event.wait(10, at_least=1)
        assert queue.signal(event) == 2
        queue.synchronize(10)
        ended.join()
        assert event.value == 2


def test_the_exporter_dies_owing(pair: Pair) -> None:
    with Child() as child:
        handle = child.call(exported_event, pair[0])

        def work(device: str) -> int:
            queue = kept["queue"] = xs.Queue(device)
            call_on(queue, threading.Event().wait)
            return queue.signal(kept["event"])

        event = xs.ipc.event.open(handle, device=pair[1])
        assert child.call(work, pair[0]) == 1
        child.kill()
        killed = time.monotonic()
        within(killed, lambda: event.wait(10), f"process {child.pid} died")
    assert event.signal() == 2
    event.wait(0)
    event.close()


def test_two_importers_after_the_exporters_death(pair: Pair, peer: Child) -> None:
    with Child() as child:
        handle = child.call(exported_event, pair[0])
        event = xs.ipc.event.open(handle, device=pair[1])
        peer.call(opened, handle, pair[1], kind="event")
        child.kill()
    pending = peer.start(lambda: kept["opened"].wait(10, at_least=1))
    assert event.signal() == 1
    pending.result()
    event.close()


@pytest.mark.parametrize("pair", ["native_cpu"], indirect=True)
def test_a_living_owners_queue_failed(pair: Pair, event: xs.Event) -> None:
    with Child() as child:

        def fail(handle: xs.ipc.Handle, device: str) -> None:
            event = kept["event"] = xs.ipc.event.open(handle, device=device)
            queue = kept["queue"] = xs.Queue(device)
            gate = threading.Event()
            call_on(queue, gate.wait)

            def work() -> None:
                raise ArithmeticError("seven is not even")

            call_on(queue, work)
            queue.signal(event)
            gate.set()

        child.call(fail, kept["handle"], pair[1])
        text = within(time.monotonic(), lambda: event.wait(10), "failure")
        assert str(child.pid) in text
        assert "ArithmeticError" in text
        assert "seven is not even" in text

        # The owner itself sees its own exception, and goes on.
        def go_on() -> int:
            with pytest.raises(ArithmeticError):
                kept["queue"].synchronize(10)
            point: int = kept["queue"].signal(kept["event"])
            kept["queue"].synchronize(10)
            return point

        assert child.call(go_on) == 2
        event.wait(5)
        assert event.value == 2


@pytest.mark.parametrize("pair", ["native_cpu"], indirect=True)
def test_a_long_failure_text_does_not_hurt(pair: Pair, event: xs.Event) -> None:
    with xs.Queue(pair[0]) as queue:

        def fail() -> None:
            raise ValueError("é" * 1000)

        queue.submit(fail)
        queue.signal(event)
        with pytest.raises(xs.PeerLostError, match="ValueError"):
            event.wait(10)
        with pytest.raises(ValueError, match="é"):
            queue.synchronize(10)


def test_signals_behind_a_loss_are_lost_in_a_chain_of_processes(pair: Pair, event: xs.Event, peer: Child) -> None:
    # child owes A; peer's queue waits for A and then signals B; we wait for B.
    second = peer.call(exported_event, pair[0])
    with Child() as child, xs.ipc.event.open(second) as last:
        child.call(owe, kept["handle"], pair[1], "running")
        peer.call(opened, kept["handle"], pair[1], kind="event")

        def chain(device: str) -> int:
            queue = kept["queue"] = xs.Queue(device)
            queue.wait(kept["opened"], at_least=1)
            call_on(queue, kept.__setitem__, "ran", True)
            return queue.signal(kept["event"])

        assert peer.call(chain, pair[0]) == 1
        child.kill()
        killed = time.monotonic()
        within(killed, lambda: last.wait(10))
        within(killed, lambda: event.wait(10))

        def report() -> bool:
            with pytest.raises(xs.PeerLostError):
                kept["queue"].synchronize(10)
            kept["queue"].synchronize(10)
            return kept["ran"]

        assert peer.call(report)


def test_a_loss_behind_a_living_process_is_put_off(pair: Pair, event: xs.Event, peer: Child) -> None:
    # peer owes point 1, child point 2 behind it, a queue of ours point 3: it is not for the dead child, nor for us, to
    # lose point 1.
    assert peer.call(owe, kept["handle"], pair[1], "behind a wait") == 1
    with Child() as child, xs.Queue(pair[1]) as queue:
        assert child.call(owe, kept["handle"], pair[1], "running") == 2
        child.kill()
        queue.wait(event, at_least=2)
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)
        assert queue.signal(event) == 3
        with pytest.raises(TimeoutError):
            queue.synchronize(0.2)
        assert event.value == 0
        peer.call(lambda: kept["never"].signal())
        event.wait(10, at_least=1)
        queue.synchronize(10)
        for point in 2, 3:
            with pytest.raises(xs.PeerLostError):
                event.wait(10, at_least=point)
        queue.wait(event, at_least=2)
        queue.synchronize(10)  # recorded since, but the same loss
        assert peer.call(owe, kept["handle"], pair[1], "behind a wait") == 4
        peer.kill()
        for _ in range(2):
            queue.wait(event, at_least=4)
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)  # another one
        queue.synchronize(10)


@pytest.mark.usefixtures("event")
def test_every_waiting_process_is_told(pair: Pair, peer: Child, other: Child) -> None:
    with Child() as child:
        child.call(owe, kept["handle"], pair[1], "running")
        pending = []
        for waiter in (peer, other):
            waiter.call(opened, kept["handle"], pair[1], kind="event")

            def wait() -> tuple[str, float]:
                with pytest.raises(xs.PeerLostError) as caught:
                    kept["opened"].wait(10)
                return str(caught.value), time.monotonic()

            pending.append(waiter.start(wait))
        child.kill()
        killed = time.monotonic()
        for each in pending:
            text, when = each.result()
            assert str(child.pid) in text
            assert when - killed < SOON


def test_the_gil_held_in_a_native_call_does_not_delay_anybody(pair: Pair, peer: Child) -> None:
    # The exporter's process is stuck in a native call that keeps the GIL; its warden, and the peer's, go on.
    handle = peer.call(exported_event, pair[0])
    waiter = xs.ipc.event.open(handle, device=pair[1])
    with Child() as child:
        child.call(owe, handle, pair[1], "running")
        caught: list[tuple[float, BaseException]] = []
        begun = threading.Event()

        def wait() -> None:
            begun.set()
            try:
                waiter.wait(10)
            except BaseException as error:
                caught.append((time.monotonic(), error))

        thread = threading.Thread(target=wait)
        thread.start()
        assert begun.wait(10)

        def stick() -> None:
            import ctypes

            kept["queue"] = queue = xs.Queue("native_cpu:0")
            queue.wait(kept["event"], at_least=1)
            ctypes.PyDLL(None).usleep(1_500_000)  # PyDLL: the GIL stays held

        stuck = peer.start(stick)
        child.kill()
        killed = time.monotonic()
        thread.join(10)
        assert caught
        assert isinstance(caught[0][1], xs.PeerLostError)
        assert caught[0][0] - killed < SOON
        stuck.result()
    waiter.close()


def test_our_own_gil_held_does_not_delay_a_device(pair: Pair, peer: Child) -> None:
    # We hold our GIL while a peer dies owing; a third process that waits is released although we are the exporter.
    with xs.Event(pair[0], enable_ipc=True) as event:
        handle = xs.ipc.event.get(event)
        with Child() as child:
            child.call(owe, handle, pair[1], "running")
            peer.call(opened, handle, pair[1], kind="event")

            def wait() -> float:
                with pytest.raises(xs.PeerLostError):
                    kept["opened"].wait(10)
                return time.monotonic()

            pending = peer.start(wait)
            import ctypes
            import os
            import signal

            started = time.monotonic()
            os.kill(child.pid, signal.SIGKILL)
            ctypes.PyDLL(None).usleep(1_200_000)
            assert pending.result() - started < SOON
            child.kill()
        xs.ipc.event.put(handle)


def test_await_sees_a_loss(pair: Pair, event: xs.Event) -> None:
    with Child() as child:
        child.call(owe, kept["handle"], pair[1], "running")

        async def wait() -> None:
            waiting = asyncio.ensure_future(event.reached(1))
            await asyncio.sleep(0)
            child.kill()
            start = time.monotonic()
            with pytest.raises(xs.PeerLostError):
                await waiting
            assert time.monotonic() - start < SOON
            with pytest.raises(xs.PeerLostError):
                await event

        asyncio.run(wait())


def test_a_loss_is_reported_once_per_queue_and_wait(pair: Pair, event: xs.Event) -> None:
    with Child() as child, xs.Queue(pair[0]) as one, xs.Queue(pair[0]) as two:
        child.call(owe, kept["handle"], pair[1], "running")
        one.wait(event)
        one.wait(event)
        two.wait(event)
        child.kill()
        for queue in (one, two):
            with pytest.raises(xs.PeerLostError):
                queue.synchronize(10)
            queue.synchronize(10)


def test_a_death_that_nobody_waits_for(pair: Pair, event: xs.Event) -> None:
    """Who polls, or signals, notices it."""
    for number in (1, 3):
        with Child() as child:
            assert child.call(owe, kept["handle"], pair[1], "behind a wait") == number
            child.kill()
            if number == 1:
                assert event.value == 1
            assert event.signal() == number + 1
        event.wait(1)


ENDS = {
    "wait": "lambda: event.wait(at_least=3)",
    "await": "lambda: asyncio.run(event.reached(3))",
    "owed": "lambda: event.wait(at_least=1)",
    "synchronize": "queue.synchronize",
}


@pytest.mark.parametrize("how", ENDS)
def test_threads_that_wait_end_with_the_interpreter(how: str) -> None:
    text = f"""
import asyncio, threading, time, xpushare as xs
event = xs.Event("native_cpu:0", enable_ipc=True)
queue = xs.Queue("native_cpu:0")
queue.wait(event, at_least=2)
queue.signal(event)
threading.Thread(target={ENDS[how]}, daemon=True).start()
time.sleep(0.2)
"""
    done = program(text, env={"XPUSHARE_LINGER": "0"})
    assert (done.returncode, done.stderr) == (0, "")
