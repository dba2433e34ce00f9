"""Section 5: queues and events."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import NBYTES, held, read_bytes, write_bytes
from xpushare.conformance.harness import TIMEOUT, Child, kept, wait_until
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

PATTERN = bytes(at % 251 for at in range(NBYTES))
WITHIN = 1.0  # seconds from a process's death to the error
SLACK = 2.0  # additional seconds on a busy machine


@rule("5.1")
def test_copy_and_fill(pair: Pair) -> None:
    with (
        xs.malloc_device(NBYTES, pair.exporter) as one,
        xs.malloc_device(2 * NBYTES, pair.exporter) as two,
        xs.Queue(pair.exporter) as queue,
    ):
        assert queue.device == xs.Device(pair.exporter)
        write_bytes(one, PATTERN)
        queue.fill(two, b"\x2a")
        queue.copy(two, one)
        queue.synchronize(TIMEOUT)
        assert read_bytes(two) == PATTERN + b"\x2a" * NBYTES
        for pattern in (b"\1\2", b"\1\2\3\4", b"01234567", b"0123456789abcdef"):
            queue.fill(one, pattern)
            queue.synchronize(TIMEOUT)
            assert read_bytes(one) == pattern * (NBYTES // len(pattern))
        queue.fill(one, b"\0")
        queue.fill(one, b"ab", 10)
        queue.copy(two.slice(NBYTES, 8), one, 4)
        queue.synchronize(TIMEOUT)
        assert read_bytes(one, 12) == b"ababababab\0\0"
        assert read_bytes(two, 6, NBYTES) == b"abab\x2a\x2a"
        queue.fill(one.as_array(4, "uint8", 100), b"zz")
        queue.synchronize(TIMEOUT)
        assert read_bytes(one, 8, 98) == b"\0\0zzzz\0\0"


@rule("5.2")
@pytest.mark.misuse
def test_refused_operands(pair: Pair) -> None:
    with (
        xs.malloc_device(NBYTES, pair.exporter) as one,
        xs.malloc_device(NBYTES, pair.exporter) as small,
        xs.Queue(pair.exporter) as queue,
    ):
        write_bytes(one, PATTERN)
        write_bytes(small, PATTERN)
        closed = xs.malloc_device(NBYTES, pair.exporter)
        closed.close()
        wrong: list[Callable[[], object]] = [
            lambda: queue.copy(small.slice(0, 8), one),
            lambda: queue.copy(small, one, NBYTES + 1),
            lambda: queue.copy(small, one.slice(0, 8), 9),
            lambda: queue.copy(small, one, -1),
            lambda: queue.fill(one, b"x", NBYTES + 1),
            lambda: queue.fill(one, b"x", -1),
            lambda: queue.fill(one, b""),
            lambda: queue.fill(one, b"xyz"),
            lambda: queue.fill(one, "text"),  # type: ignore[arg-type]
            lambda: queue.fill(b"bytes", b"x"),  # type: ignore[arg-type]
            lambda: queue.copy(one, None),  # type: ignore[arg-type]
            lambda: queue.copy(closed, one),
            lambda: queue.fill(closed, b"x"),
            lambda: queue.signal(one),  # type: ignore[arg-type]
            lambda: queue.wait("event"),  # type: ignore[arg-type]
        ]
        for number, call in enumerate(wrong):
            assert actions.attempt(call) in ("InvalidArgumentError",), number
        queue.synchronize(TIMEOUT)
        assert read_bytes(one) == read_bytes(small) == PATTERN


@rule("5.3")
def test_order(pair: Pair) -> None:
    with (
        xs.malloc_device(NBYTES, pair.exporter) as one,
        xs.malloc_device(NBYTES, pair.exporter) as two,
        xs.Event(pair.exporter) as event,
    ):
        write_bytes(one, b"\xee" * NBYTES)
        write_bytes(two, b"\xee" * NBYTES)
        with held(pair.exporter) as gate:
            for number in range(60):
                gate.queue.fill(one, bytes([number]))
                gate.queue.copy(two.slice(number * 4, 4), one.slice(0, 4))
            gate.queue.copy(one, two)
            gate.queue.signal(event)
            assert not event.done
            gate.release()
            gate.queue.synchronize(TIMEOUT)
        assert event.done
        assert read_bytes(one, 240) == b"".join(bytes([number]) * 4 for number in range(60))


@rule("5.4")
def test_submit(pair: Pair) -> None:
    done: list[int] = []
    with xs.Queue(pair.exporter) as queue:
        if not actions.runs_callables(pair.exporter):
            with pytest.raises(xs.FeatureNotSupportedError):
                queue.submit(done.append, 1)
            return

        def fail(text: str) -> None:
            raise KeyError(text)

        queue.submit(done.append, 1)
        queue.submit(fail, "of the callable")
        queue.submit(done.append, 2)
        with pytest.raises(KeyError, match="of the callable"):
            queue.synchronize(TIMEOUT)
        assert done == [1, 2]
        queue.submit(done.append, 3)
        queue.synchronize(TIMEOUT)
        assert done == [1, 2, 3]
        wrong: Any = 3
        with pytest.raises(xs.InvalidArgumentError):
            queue.submit(wrong)


@rule("5.5")
def test_new_event(pair: Pair) -> None:
    with xs.Event(pair.exporter) as event, xs.Queue(pair.exporter) as queue:
        assert (event.value, event.pending, event.done, event.is_imported, event.ipc_enabled) == (
            0,
            0,
            True,
            False,
            False,
        )
        event.wait(0)
        with pytest.warns(UserWarning, match="returns at once"):
            event.wait()
        event.wait(0, at_least=0)
        queue.wait(event)
        queue.synchronize(TIMEOUT)
        with pytest.raises(TimeoutError):
            event.wait(0.01, at_least=1)


@rule("5.6")
def test_host_signal(pair: Pair) -> None:
    with xs.Event(pair.exporter) as event:
        for number in range(1, 6):
            assert event.signal() == number
            assert (event.value, event.pending, event.done) == (number, number, True)
        event.wait(0, at_least=5)
        with pytest.raises(TimeoutError):
            event.wait(0.01, at_least=6)


@rule("5.7")
def test_queue_signal(pair: Pair) -> None:
    with xs.Event(pair.exporter) as event, xs.malloc_device(NBYTES, pair.exporter) as memory:
        write_bytes(memory, b"\0" * NBYTES)
        with held(pair.exporter) as gate:
            gate.queue.fill(memory, b"f")
            assert [gate.queue.signal(event) for _ in range(3)] == [1, 2, 3]
            assert (event.value, event.pending, event.done) == (0, 3, False)
            with pytest.raises(TimeoutError):
                event.wait(0.05)
            assert (event.value, event.pending) == (0, 3)
            gate.release()
            event.wait(TIMEOUT, at_least=3)
            assert (event.value, event.pending, event.done) == (3, 3, True)
        assert read_bytes(memory) == b"f" * NBYTES


@rule("5.7")
@pytest.mark.parametrize("kind", ["event"])
def test_numbers_of_a_shared_event(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(actions.export, "event", kind, pair.exporter)
    peer.call(actions.hold, "queue", pair.exporter)
    with xs.ipc.event.open(handle, device=pair.importer) as event:
        assert peer.call(actions.owe, "queue", "event") == 1
        assert (event.value, event.pending, event.done) == (0, 1, False)
        with pytest.raises(TimeoutError):
            event.wait(0.05)
        peer.call(actions.release, "queue")
        event.wait(TIMEOUT)
        assert (event.value, event.pending, event.done) == (1, 1, True)


@rule("5.8")
def test_queue_wait(pair: Pair) -> None:
    with (
        xs.Event(pair.exporter) as event,
        xs.Queue(pair.exporter) as behind,
        xs.malloc_device(NBYTES, pair.exporter) as memory,
        xs.malloc_device(NBYTES, pair.exporter) as target,
        xs.Event(pair.exporter) as finished,
    ):
        write_bytes(memory, b"\0" * NBYTES)
        with held(pair.exporter) as gate:
            gate.queue.fill(memory, b"f")
            gate.queue.signal(event)
            behind.wait(event)
            behind.copy(target, memory)
            behind.signal(finished)
            with pytest.raises(TimeoutError):
                finished.wait(0.05)
            gate.release()
            finished.wait(TIMEOUT)
        assert read_bytes(target) == b"f" * NBYTES
        behind.wait(event)  # completed signals block nothing
        behind.wait(event, at_least=1)
        behind.synchronize(TIMEOUT)
        behind.wait(event, at_least=2)
        behind.signal(finished)
        with pytest.raises(TimeoutError):
            finished.wait(0.05)
        with xs.Queue(pair.exporter) as queue:
            queue.signal(event)
        finished.wait(TIMEOUT)
        behind.synchronize(TIMEOUT)


@rule("5.9")
def test_wait(pair: Pair) -> None:
    with xs.Event(pair.exporter) as event, held(pair.exporter) as gate:
        gate.queue.signal(event)
        gate.queue.signal(event)
        for timeout, at_least in ((0, None), (0, 1), (0.02, 2)):
            with pytest.raises(TimeoutError):
                event.wait(timeout, at_least=at_least)
        ended: list[int] = []

        def waiter() -> None:
            event.wait(TIMEOUT, at_least=2)
            ended.append(event.value)

        thread = threading.Thread(target=waiter)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        gate.release()
        thread.join(TIMEOUT)
        assert ended == [2]
        wrong: list[Any] = [-1, "1", 1.5, 1 << 64]
        for at_least in wrong:
            with pytest.raises(xs.InvalidArgumentError):
                event.wait(0, at_least=at_least)
            with pytest.raises(xs.InvalidArgumentError):
                gate.queue.wait(event, at_least=at_least)


@rule("5.10")
def test_awaiting(pair: Pair) -> None:
    async def scenario() -> None:
        with xs.Event(pair.exporter) as event, held(pair.exporter) as gate:
            await event
            await event.reached(0)
            gate.queue.signal(event)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await event.reached(1)
            task = asyncio.create_task(event.reached(1))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            waiting = [asyncio.create_task(event.reached(1)) for _ in range(3)]
            await asyncio.sleep(0)
            assert not any(each.done() for each in waiting)
            gate.release()
            async with asyncio.timeout(TIMEOUT):
                await asyncio.gather(*waiting)
                await event
            assert event.value == 1

    asyncio.run(scenario())


@rule("5.11")
def test_both_ends(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "event", "event", pair.exporter)
    with xs.ipc.event.open(handle, device=pair.importer) as event, xs.Queue(pair.importer) as queue:
        for number in (1, 3, 5):
            assert queue.signal(event) == number
            queue.synchronize(TIMEOUT)
            peer.call(actions.wait, "event", number)
            assert peer.call(actions.numbers, "event") == (number, number)
            pending = peer.start(actions.queue_signal, "event", pair.exporter)
            event.wait(TIMEOUT, at_least=number + 1)
            assert pending.result() == number + 1
            assert (event.value, event.pending, event.done) == (number + 1, number + 1, True)


@rule("5.12")
def test_second_signaller(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "event", "event", pair.exporter)
    peer.call(actions.hold, "queue", pair.exporter)
    with xs.ipc.event.open(handle, device=pair.importer) as event, xs.Queue(pair.importer) as queue:
        assert peer.call(actions.owe, "queue", "event") == 1
        if event.device.has("host_signal_events"):
            with pytest.raises(xs.InvalidArgumentError):
                event.signal()
        assert (event.value, event.pending) == (0, 1)
        assert queue.signal(event) == 2
        with pytest.raises(TimeoutError):
            queue.synchronize(0.05)
        assert (event.value, event.pending) == (0, 2)
        peer.call(actions.release, "queue")
        queue.synchronize(TIMEOUT)
        event.wait(TIMEOUT, at_least=2)
        assert (event.value, event.pending) == (2, 2)


@rule("5.13")
def test_profiling(pair: Pair) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        xs.Event(pair.exporter, enable_ipc=True, enable_profiling=True)


@rule("5.14")
def test_no_fds(pair: Pair, peer: Child) -> None:
    handles = [peer.call(actions.export, f"event{each}", "event", pair.exporter) for each in range(3)]
    with xs.ipc.event.open(handles[0], device=pair.importer):
        before = len(os.listdir("/proc/self/fd"))
        events = [xs.Event(pair.exporter, enable_ipc=True) for _ in range(50)]
        opened = [xs.ipc.event.open(handle, device=pair.importer) for handle in handles for _ in range(10)]
        for event in events:
            handle = xs.ipc.event.get(event)
            opened.append(xs.ipc.event.open(handle))
            xs.ipc.event.put(handle)
        assert len(os.listdir("/proc/self/fd")) <= before + 4  # descriptors that a process opens only once
        for event in (*events, *opened):
            event.close()


# --- losses -----------------------------------------------------------------------------------------------------------


def owing(pair: Pair, child: Child, exporter_owes: bool) -> xs.Event:
    """Return an event. The child has submitted the first signal (point 1) of the event, but the signal is still
    pending. If `exporter_owes` is true, the child is the exporter of the event, otherwise an importer.
    """
    if exporter_owes:
        handle = child.call(actions.export, "event", "event", pair.exporter)
        event = xs.ipc.event.open(handle, device=pair.importer)
        child.call(actions.hold, "queue", pair.exporter)
    else:
        handle = actions.export("event", "event", pair.exporter)
        event = kept["event"]
        child.call(actions.open_, "event", "event", handle, pair.importer)
        child.call(actions.hold, "queue", pair.importer)
    assert child.call(actions.owe, "queue", "event") == 1
    assert (event.value, event.pending) == (0, 1)
    return event


@rule("5.15")
@pytest.mark.parametrize("who", ["exporter", "importer"])
def test_death(pair: Pair, who: str) -> None:
    with Child() as child:
        event = owing(pair, child, who == "exporter")
        seen: list[tuple[str, float]] = []
        waiting = threading.Event()

        def waiter() -> None:
            waiting.set()
            error = actions.attempt(event.wait, 10)
            seen.append((error, time.monotonic()))

        thread = threading.Thread(target=waiter)
        thread.start()
        assert waiting.wait(TIMEOUT)
        thread.join(0.05)  # it most likely sleeps by now; the test is valid if not
        began = time.monotonic()
        child.signal(signal.SIGKILL)
        thread.join(15)
        assert seen
        error, at = seen[0]
        assert error == "PeerLostError"
        assert at - began < WITHIN + SLACK
        child.kill()
    for call in (lambda: event.wait(5), lambda: event.wait(5, at_least=1), lambda: event.done):
        with pytest.raises(xs.PeerLostError, match=str(child.pid)):
            call()
    event.close()


@rule("5.15")
def test_death_in_an_event_loop(pair: Pair) -> None:
    with Child() as child:
        event = owing(pair, child, True)

        async def scenario() -> float:
            task = asyncio.create_task(event.reached(1))
            await asyncio.sleep(0)
            began = time.monotonic()
            child.signal(signal.SIGKILL)
            with pytest.raises(xs.PeerLostError):
                async with asyncio.timeout(10):
                    await task
            return time.monotonic() - began

        assert asyncio.run(scenario()) < WITHIN + SLACK
        child.kill()
    event.close()


@rule("5.16")
def test_nobody_left(pair: Pair) -> None:
    with Child() as child:
        handle = child.call(actions.export, "event", "event", pair.exporter)
        with xs.ipc.event.open(handle, device=pair.importer) as event:
            with pytest.raises(TimeoutError):
                event.wait(0.05, at_least=1)  # the child might still signal
            began = time.monotonic()
            child.signal(signal.SIGKILL)
            with pytest.raises(xs.PeerLostError):
                event.wait(10, at_least=1)
            assert time.monotonic() - began < WITHIN + SLACK
            child.kill()


@rule("5.16")
def test_somebody_left(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "event", "event", pair.exporter)
    with Child() as child, xs.ipc.event.open(handle, device=pair.importer) as event:
        child.call(actions.open_, "event", "event", handle, pair.importer)
        child.kill()
        with pytest.raises(TimeoutError):
            event.wait(0.2, at_least=1)  # the exporter is still alive
        pending = peer.start(actions.queue_signal, "event", pair.exporter)
        event.wait(TIMEOUT, at_least=1)
        pending.result()


def _publish(device: str, declared: bool) -> bytes:
    event = kept["event"] = xs.Event(device, enable_ipc=True, signals=True if declared else None)
    if not declared:
        actions.queue_signal("event", device)
    return bytes(xs.ipc.event.get(event))


@rule("5.30")
@pytest.mark.parametrize("first", ["declared", "signalled"])
def test_a_publisher_of_several_readers(pair: Pair, peer: Child, first: str) -> None:
    with Child() as publisher:
        handle = publisher.call(_publish, pair.exporter, first == "declared")
        peer.call(actions.open_, "event", "event", handle, pair.importer)
        with (
            xs.ipc.event.open(handle, device=pair.importer) as event,
            xs.Queue(pair.importer) as queue,
        ):
            queue.wait(event, at_least=2)
            pending = peer.start(actions.attempt, actions.wait, "event", 2, 10)
            with pytest.raises(TimeoutError):
                event.wait(0.05, at_least=2)
            began = time.monotonic()
            publisher.signal(signal.SIGKILL)
            with pytest.raises(xs.PeerLostError):
                event.wait(10, at_least=2)
            with pytest.raises(xs.PeerLostError):
                queue.synchronize(10)
            assert pending.result() == "PeerLostError"
            assert time.monotonic() - began < WITHIN + SLACK
        publisher.kill()


@rule("5.31")
def test_workers_come_and_go(pair: Pair, peer: Child) -> None:
    handle = actions.export("event", "event", pair.exporter)
    event = kept["event"]
    for point in (1, 3):
        with Child() as worker:
            worker.call(actions.open_, "event", "event", handle, pair.importer, signals=True)
            assert worker.call(actions.queue_signal, "event", pair.importer) == point
            worker.call(actions.close, "event")
            worker.call(actions.drop)
            worker.kill()  # after close, its death must not end a wait
        with pytest.raises(TimeoutError):
            event.wait(0.2, at_least=point + 1)
        with Child() as worker:
            worker.call(actions.open_, "event", "event", handle, pair.importer, signals=True)
            worker.kill()
            with pytest.raises(xs.PeerLostError):
                event.wait(10, at_least=point + 1)
        peer.call(actions.open_, "event", "event", handle, pair.importer, signals=True)
        with pytest.raises(TimeoutError):
            event.wait(0.05, at_least=point + 1)
        assert peer.call(actions.queue_signal, "event", pair.importer) == point + 1
        peer.call(actions.close, "event")
        peer.call(actions.drop)
        event.wait(5, at_least=point + 1)


def _pickle_event() -> bytes:
    return pickle.dumps(kept["event"])


def _unpickle_reader(raw: bytes) -> tuple[bytes, str]:
    event = kept["event"] = pickle.loads(raw)
    return pickle.dumps(event), actions.attempt(event.signal)


@rule("5.32")
def test_what_only_waits(pair: Pair, peer: Child) -> None:
    handle = actions.export("event", "event", pair.exporter)
    event = kept["event"]
    with Child() as reader:
        reader.call(actions.open_, "event", "event", handle, pair.importer, signals=False)
        raw = reader.call(_pickle_event)
        again, said = peer.call(_unpickle_reader, raw)
        assert said == "InvalidArgumentError"
        assert reader.call(_unpickle_reader, again)[1] == "InvalidArgumentError"
        reader.kill()
    with pytest.raises(TimeoutError):
        event.wait(0.2, at_least=1)
    peer.call(actions.drop)


@rule("5.17")
def test_queues_are_released(pair: Pair) -> None:
    with (
        Child() as child,
        xs.Queue(pair.importer) as queue,
        xs.malloc_device(NBYTES, pair.importer) as memory,
        xs.Event(pair.importer) as behind,
    ):
        event = owing(pair, child, True)
        write_bytes(memory, b"\0" * NBYTES)
        queue.wait(event)
        queue.fill(memory, b"r")
        queue.signal(behind)
        with pytest.raises(TimeoutError):
            queue.synchronize(0.05)
        began = time.monotonic()
        child.signal(signal.SIGKILL)
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)
        assert time.monotonic() - began < WITHIN + SLACK
        assert read_bytes(memory) == b"r" * NBYTES  # the work after the failed wait still ran
        with pytest.raises(xs.PeerLostError):
            behind.wait(5, at_least=1)
        queue.synchronize(TIMEOUT)  # the error is raised only once
        queue.fill(memory, b"s")
        queue.signal(behind)
        queue.synchronize(TIMEOUT)
        assert read_bytes(memory) == b"s" * NBYTES
        behind.wait(5)
        child.kill()
        event.close()


@rule("5.17")
def test_behind_what_was_lost_before(pair: Pair) -> None:
    with (
        Child() as child,
        xs.Queue(pair.importer) as queue,
        xs.malloc_device(NBYTES, pair.importer) as memory,
        xs.Event(pair.importer) as behind,
    ):
        event = owing(pair, child, True)
        child.kill()
        with pytest.raises(xs.PeerLostError):
            event.wait(5)
        queue.wait(event)
        queue.fill(memory, b"r")
        for number in (1, 2):
            assert queue.signal(behind) == number
            with pytest.raises(xs.PeerLostError):
                behind.wait(5, at_least=number)
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(TIMEOUT)
        assert read_bytes(memory) == b"r" * NBYTES
        queue.signal(behind)
        queue.synchronize(TIMEOUT)  # the error is raised only once
        behind.wait(5)
        event.close()


@rule("5.18")
@pytest.mark.parametrize("end", ["close", "exit", "put"])
def test_clean_ends(pair: Pair, end: str) -> None:
    with Child() as child:
        handle = actions.export("event", "event", pair.exporter)
        child.call(actions.open_, "event", "event", handle, pair.importer)
        assert child.call(actions.queue_signal, "event", pair.importer) == 1
        event = kept["event"]
        if end == "close":
            child.call(actions.close, "event")
            child.call(actions.drop)
        elif end == "put":
            actions.put("event", handle)
        if end != "close":
            assert child.exit() == 0
        event.wait(5)
        event.wait(5, at_least=1)
        assert (event.value, event.pending, event.done) == (1, 1, True)
        with xs.Queue(pair.exporter) as queue:
            assert queue.signal(event) == 2
            queue.wait(event)
            queue.synchronize(TIMEOUT)
        event.wait(5, at_least=2)


@rule("5.18")
def test_never_attached(pair: Pair) -> None:
    with Child() as child:
        handle = actions.export("event", "event", pair.exporter)
        child.call(actions.attempt, actions.open_, "event", "event", handle[:-1], pair.importer)
        child.kill()
    with pytest.raises(TimeoutError):
        kept["event"].wait(0.2, at_least=1)
    with xs.Queue(pair.exporter) as queue:
        queue.signal(kept["event"])
        queue.synchronize(TIMEOUT)
    kept["event"].wait(5, at_least=1)


@rule("5.19")
def test_failing_queue(pair: Pair, peer: Child) -> None:
    if not actions.runs_callables(pair.exporter):
        pytest.skip("nothing that a program can do makes a queue of this device fail and leave the process usable")
    handle = peer.call(actions.export, "event", "event", pair.exporter)
    with xs.ipc.event.open(handle, device=pair.importer) as event:
        assert peer.call(_fail_and_signal, pair.exporter) == 1
        with pytest.raises(xs.PeerLostError, match="no luck"):
            event.wait(5, at_least=1)
        assert peer.call(_fail_reported)
        assert peer.call(actions.queue_signal, "event", pair.exporter) == 2
        event.wait(5, at_least=2)
        event.wait(5)


def _no_luck() -> None:
    raise ValueError("no luck")


def _fail_and_signal(device: str) -> int:
    queue = kept["failing"] = xs.Queue(device)
    queue.submit(_no_luck)
    number: int = queue.signal(kept["event"])
    return number


def _fail_reported() -> bool:
    queue = kept.pop("failing")
    found: bool = actions.outcome(queue.synchronize, TIMEOUT) == ("ValueError", "no luck")
    queue.synchronize(TIMEOUT)
    return found


@rule("5.20")
def test_until_the_next_signal(pair: Pair) -> None:
    with Child() as child:
        event = owing(pair, child, False)
        child.kill()
    for _ in range(3):
        with pytest.raises(xs.PeerLostError):
            event.wait(5)
        with pytest.raises(xs.PeerLostError):
            event.wait(5, at_least=1)
    assert event.signal() == 2
    event.wait(5)
    event.wait(5, at_least=2)
    assert (event.value, event.pending, event.done) == (2, 2, True)


@rule("5.21")
@pytest.mark.parametrize("what", ["Event.wait", "Queue.synchronize"])
def test_interrupts(pair: Pair, what: str) -> None:
    with Child() as child:
        child.call(_new_event, pair.exporter)
        pending = child.start(actions.interrupted, what, pair.exporter, "event")
        began = time.monotonic()
        while not pending.done() and time.monotonic() - began < 10:
            child.signal(signal.SIGINT) if _sleeps(child.pid) else None
            time.sleep(0.02)  # until the next check; the exact time does not matter
        assert pending.result() == "KeyboardInterrupt"
        child.kill()


def _new_event(device: str) -> None:
    kept["event"] = xs.Event(device)


def _sleeps(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "S"


@rule("5.22")
def test_bool(pair: Pair) -> None:
    with xs.Event(pair.exporter) as event, pytest.raises(TypeError):
        bool(event)


@rule("5.23")
def test_synchronize(pair: Pair) -> None:
    with xs.malloc_device(NBYTES, pair.exporter) as memory:
        write_bytes(memory, b"\0" * NBYTES)
        with held(pair.exporter) as gate:
            gate.queue.fill(memory, b"l")
            for timeout in (0, 0.05):
                with pytest.raises(TimeoutError):
                    gate.queue.synchronize(timeout)
            gate.release()
            gate.queue.synchronize(TIMEOUT)
            gate.queue.synchronize()
        assert read_bytes(memory) == b"l" * NBYTES
    with xs.Queue(pair.exporter) as queue, pytest.raises(xs.InvalidArgumentError):
        queue.synchronize(-1)


@rule("5.24")
def test_unknown_natives(pair: Pair) -> None:
    for wrong in (object(), "stream"):
        with pytest.raises((xs.FeatureNotSupportedError, xs.InvalidArgumentError)):
            xs.Queue.from_native(wrong)
        with pytest.raises((xs.FeatureNotSupportedError, xs.InvalidArgumentError)):
            xs.Event.from_native(wrong)
    with xs.Event(pair.exporter) as event:
        try:
            assert event.native_ipc_handle()
        except xs.FeatureNotSupportedError:
            pass


@rule("5.25")
def test_waited_on_before_its_first_signal(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "event", "event", pair.exporter)
    memory = peer.call(actions.export, "memory", "memory", pair.exporter, b"\0" * NBYTES)
    with (
        xs.ipc.event.open(handle, device=pair.importer) as event,
        xs.ipc.memory.open(memory, device=pair.importer) as shared,
        xs.Queue(pair.importer) as queue,
        xs.malloc_device(NBYTES, pair.importer) as target,
    ):
        queue.wait(event, at_least=1)
        queue.copy(target, shared)
        with pytest.raises(TimeoutError):
            queue.synchronize(0.05)
        peer.call(_fill_then_signal, pair.exporter)
        queue.synchronize(TIMEOUT)
        assert read_bytes(target) == b"w" * NBYTES
    gc.collect()
    wait_until(lambda: peer.call(actions.processes, "event") == 1, "the importer has let the event go")


def _fill_then_signal(device: str) -> None:
    """Queue a fill, and then a signal. The host does not wait in between."""
    kept["queue"] = queue = xs.Queue(device)
    queue.fill(kept["memory"], b"w")
    queue.signal(kept["event"])


@rule("5.33")
def test_clean_exit_with_queued_work(pair: Pair) -> None:
    done = actions.export("event", "event", pair.exporter)
    with (
        Child(env={"XPUSHARE_LINGER": "600"}) as child,
        xs.Event(pair.exporter, enable_ipc=True) as begin,
        held(pair.exporter) as gate,
    ):
        gate.queue.signal(begin)
        handle = xs.ipc.event.get(begin)
        child.call(_leave_work_behind, pair.importer, handle, done)
        release = threading.Timer(0.3, gate.release)  # the child exits by then if it does not wait
        release.start()
        assert child.exit() == 0
        release.join()
        kept["event"].wait(5, at_least=1)
        xs.ipc.event.put(handle)


def _leave_work_behind(device: str, begin: xs.ipc.Handle, done: bytes) -> None:
    kept["queue"] = queue = xs.Queue(device)
    queue.wait(xs.ipc.event.open(begin, device=device), at_least=1)
    queue.signal(xs.ipc.event.open(done, device=device))
    queue.wait(xs.Event(device), at_least=1)  # no process submits this signal
    queue.fill(xs.malloc_device(NBYTES, device), b"n")


@rule("5.34")
@pytest.mark.parametrize("how", ["opened", "never opened"])
def test_who_promised_and_did_not(pair: Pair, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "60" if how == "opened" else "0.2")
    actions.export("event", "event", pair.exporter)
    event, sent = kept["event"], _pickle_event()
    with Child() as child, xs.Queue(pair.exporter) as queue:
        queue.wait(event, at_least=1)
        if how == "opened":
            child.call(actions.unpickle, "event", sent)
            with pytest.raises(TimeoutError):
                event.wait(0.05, at_least=1)
            assert child.exit() == 0
        with pytest.raises(xs.PeerLostError, match="exited" if how == "opened" else "nobody opened"):
            event.wait(10, at_least=1)
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)
    with Child() as late:
        late.call(actions.unpickle, "event", _pickle_event())
        with pytest.raises(TimeoutError):
            event.wait(0.05, at_least=2)
        pending = event.pending
        assert late.call(actions.queue_signal, "event", pair.exporter) == pending + 1
        event.wait(10, at_least=pending + 1)
