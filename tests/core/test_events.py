"""Queues and events: order, points, waits, several signallers (docs/events-protocol.md)."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from peering import PAGE, call_on, exported_event, opened

import xpushare as xs
from harness import Child, kept, new_fds, open_fds
from xpushare import adapters
from xpushare.adapters.vendor import Vendor

Pair = tuple[str, str]


class Gate:
    """Work that holds a queue until it is let through; goes to no other process."""

    def __init__(self, queue: xs.Queue) -> None:
        self._open = threading.Event()
        self._started = threading.Event()
        call_on(queue, self._run)

    def _run(self) -> None:
        self._started.set()
        assert self._open.wait(30)

    def started(self) -> None:
        assert self._started.wait(10)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def queue(device: str) -> Any:
    with xs.Queue(device) as queue:
        yield queue
        queue.synchronize(10)


@pytest.fixture
def event(device: str) -> Any:
    with xs.Event(device, enable_ipc=True) as event:
        yield event


# --- queues ---------------------------------------------------------------------------------------


def test_operations_run_in_order(queue: xs.Queue, device: str) -> None:
    seen: list[Any] = []
    with xs.malloc_device(PAGE, device) as one, xs.malloc_device(PAGE, device) as two:
        queue.fill(one, b"ab")
        queue.copy(two, one)
        call_on(queue, lambda: seen.append(bytes(memoryview(two)[:4])))
        queue.fill(two, b"xyz!", 4)
        call_on(queue, seen.append, 2)
        queue.copy(one, two, 3)
        call_on(queue, lambda: seen.append(bytes(memoryview(one)[:5])))
        queue.synchronize(10)
    assert seen == [b"abab", 2, b"xyzba"]


def test_copy_between_all_kinds_of_operands(queue: xs.Queue, device: str) -> None:
    granule = xs.Device(device).memory_granularity()
    with (
        xs.malloc_device(granule, device) as memory,
        xs.PhysicalMemory(granule, device) as physical,
        xs.VirtualRange(granule, device) as place,
    ):
        place.map(physical)
        array = memory.as_array(8, "uint8", 16)
        queue.fill(memory, b"\1")
        queue.fill(array, b"\2")
        queue.copy(place, memory)
        queue.synchronize(10)
        assert bytes(memoryview(place)[:32]) == b"\1" * 16 + b"\2" * 8 + b"\1" * 8
        queue.fill(place, b"\3")
        queue.copy(array, place, 4)
        queue.synchronize(10)
        assert bytes(memoryview(memory)[16:24]) == b"\3" * 4 + b"\2" * 4


@pytest.mark.misuse
def test_operands_are_checked(queue: xs.Queue, device: str) -> None:
    with (
        xs.malloc_device(PAGE, device) as memory,
        xs.malloc_device(8, device) as small,
        xs.VirtualRange(1 << 16, device) as hole,
    ):
        wrong: list[tuple[Any, ...]] = [
            (queue.copy, small, memory),
            (queue.copy, memory, small, 9),
            (queue.copy, memory, small, -1),
            (queue.copy, memory, b"bytes"),
            (queue.copy, memory, hole),
            (queue.fill, memory, b""),
            (queue.fill, small, b"abc"),
            (queue.fill, small, 7),
            (queue.fill, small, b"x", 9),
            (queue.fill, small, b"x", "8"),
            (queue.fill, hole, b"x"),
            (queue.signal, memory),
            (queue.wait, None),
            (queue.submit, 7),
            (queue.synchronize, -1),
        ]
        for call, *arguments in wrong:
            with pytest.raises(xs.InvalidArgumentError):
                call(*arguments)
        queue.copy(small, memory.slice(0, 0))
        queue.fill(small, b"x", 0)
        queue.synchronize(10)
        assert bytes(memoryview(small)) == bytes(8)


@pytest.mark.parametrize("device", ["native_cpu:0"], indirect=True)
def test_an_exception_comes_out_of_synchronize_once(queue: xs.Queue) -> None:
    class Own(Exception):
        pass

    def fail(text: str) -> None:
        raise Own(text)

    seen: list[int] = []
    queue.submit(fail, "one")
    call_on(queue, seen.append, 1)
    queue.submit(fail, "two")
    with pytest.raises(Own, match="one"):
        queue.synchronize(10)
    with pytest.raises(Own, match="two"):
        queue.synchronize(10)
    queue.synchronize(10)
    assert seen == [1]


def test_synchronize_times_out_and_goes_on(queue: xs.Queue) -> None:
    gate = Gate(queue)
    gate.started()
    with pytest.raises(TimeoutError):
        queue.synchronize(0.01)
    with pytest.raises(TimeoutError):
        queue.synchronize(0)
    gate.open()
    queue.synchronize(10)
    queue.synchronize(0)


def test_a_closed_queue_finishes_its_work(device: str) -> None:
    done = threading.Event()
    queue = xs.Queue(device)
    gate = Gate(queue)
    call_on(queue, done.set)
    queue.close()
    gate.open()
    assert done.wait(10)


def test_a_queue_may_be_closed_from_its_own_work(device: str) -> None:
    done = threading.Event()
    held = [xs.Queue(device)]
    queue = held[0]
    gate = Gate(queue)
    call_on(queue, lambda: (held.clear(), done.set()))
    del queue
    gate.open()
    assert done.wait(10)


def test_a_stream_that_two_vendors_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a number, where CUDA's and HIP's libraries are loaded. It is the vendor's that has devices, if one has."""
    records = [adapters.record(backend) for backend in (adapters.HOST, "mock")]
    used = {record.backend: True for record in records if record is not None}

    def claiming(record: Vendor) -> Vendor:
        return replace(record, stream_of=lambda native: native, in_use=lambda: used[record.backend])

    monkeypatch.setattr(adapters, "records", lambda own: list(map(claiming, filter(None, records))) if own else [])
    with pytest.raises(xs.InvalidArgumentError, match="may be a stream of native_cpu or of mock"):
        xs.Queue.from_native(77)
    used["mock"] = False
    with pytest.raises(xs.FeatureNotSupportedError, match="int is not a stream"):  # asked, and declined
        xs.Queue.from_native(77)


def test_from_native_knows_nothing_of_other_things() -> None:
    for thing in (object(), 7, "stream", None):
        with pytest.raises((xs.FeatureNotSupportedError, xs.InvalidArgumentError)):
            xs.Queue.from_native(thing)
        with pytest.raises((xs.FeatureNotSupportedError, xs.InvalidArgumentError)):
            xs.Event.from_native(thing)
    with xs.Event() as event, xs.malloc_host(64) as memory:
        for own in (event, memory):
            with pytest.raises(xs.FeatureNotSupportedError, match=f"events of {type(own).__name__}"):
                xs.Event.from_native(own)
        memory.close()
        with pytest.raises(xs.FeatureNotSupportedError, match="Memory is not a stream"):
            xs.Queue.from_native(memory)


# --- events in one process ------------------------------------------------------------------------


def test_a_new_event_is_complete(event: xs.Event) -> None:
    assert (event.value, event.pending, event.done) == (0, 0, True)
    event.wait(0)
    event.wait(0, at_least=0)
    with pytest.raises(TypeError):
        bool(event)
    with pytest.raises(xs.FeatureNotSupportedError):
        event.native_ipc_handle()


def test_host_signals_count(event: xs.Event) -> None:
    for number in range(1, 50):
        assert event.signal() == number
        assert (event.value, event.pending, event.done) == (number, number, True)
        event.wait(0)
        event.wait(0, at_least=number)
        with pytest.raises(TimeoutError):
            event.wait(0, at_least=number + 1)


def test_a_queue_signals_when_its_work_is_done(event: xs.Event, queue: xs.Queue) -> None:
    gate = Gate(queue)
    assert queue.signal(event) == 1
    assert queue.signal(event) == 2
    assert (event.value, event.pending, event.done) == (0, 2, False)
    with pytest.raises(TimeoutError, match="value 0, pending 2"):
        event.wait(0.01)
    with pytest.raises(xs.InvalidArgumentError, match="one event per producer"):
        event.signal()
    gate.open()
    event.wait(10)
    assert (event.value, event.pending, event.done) == (2, 2, True)
    assert event.signal() == 3


def test_a_bare_wait_means_the_point_known_at_the_call(event: xs.Event, queue: xs.Queue, device: str) -> None:
    event.signal()
    with xs.Queue(device) as other:
        other.wait(event)  # point 1: nothing to wait for
        gate = Gate(queue)
        queue.signal(event)
        other.synchronize(10)
        other.wait(event)
        with pytest.raises(TimeoutError):
            other.synchronize(0.01)
        gate.open()
        other.synchronize(10)


def test_a_wait_for_a_future_point(event: xs.Event, queue: xs.Queue) -> None:
    seen: list[int] = []
    queue.wait(event, at_least=3)
    call_on(queue, lambda: seen.append(event.value))
    event.signal()
    event.signal()
    with pytest.raises(TimeoutError):
        queue.synchronize(0.02)
    event.signal()
    queue.synchronize(10)
    assert seen == [3]


@pytest.mark.parametrize("at_least", [-1, 1 << 43, "1", 1.5, b"1"])
def test_points_that_are_none(event: xs.Event, queue: xs.Queue, at_least: Any) -> None:
    for call in (event.wait, queue.wait):
        with pytest.raises(xs.InvalidArgumentError, match="at_least"):
            call(*([0] if call == event.wait else [event]), at_least=at_least)
    with pytest.raises(xs.InvalidArgumentError, match="at_least"):
        event.reached(at_least).send(None)


def test_a_queue_that_signals_waits_for_another_queues_point_first(
    event: xs.Event, queue: xs.Queue, device: str
) -> None:
    with xs.Queue(device) as other:
        gate = Gate(queue)
        assert queue.signal(event) == 1
        assert other.signal(event) == 2
        with pytest.raises(TimeoutError):
            other.synchronize(0.02)
        assert (event.value, event.pending) == (0, 2)
        gate.open()
        other.synchronize(10)
        assert event.value == 2


def test_chains_of_queues(device: str) -> None:
    order: list[int] = []
    events = [xs.Event(device) for _ in range(8)]
    queues = [xs.Queue(device) for _ in range(9)]
    for number in reversed(range(8)):  # the last waits first
        queues[number + 1].wait(events[number], at_least=1)
        call_on(queues[number + 1], order.append, number + 1)
        if number + 1 < 8:
            queues[number + 1].signal(events[number + 1])
    call_on(queues[0], order.append, 0)
    queues[0].signal(events[0])
    queues[8].synchronize(10)
    assert order == list(range(9))
    for queue in queues:
        queue.close()


@pytest.mark.parametrize("device", ["native_cpu:0"], indirect=True)
def test_profiling(device: str, queue: xs.Queue) -> None:
    with xs.Event(device, enable_profiling=True) as event:
        before = time.monotonic_ns()
        queue.signal(event)
        queue.synchronize(10)
        times = event.times
        assert before <= times.queued <= times.submit <= times.start == times.end <= time.monotonic_ns()
        assert not event.ipc_enabled


@pytest.mark.parametrize("wanted", [1, 0, None, "yes"])
def test_ipc_enabled_is_a_bool(device: str, wanted: Any) -> None:
    with xs.Event(device, enable_ipc=wanted) as event:
        assert event.ipc_enabled is bool(wanted)
    with xs.PhysicalMemory(xs.Device(device).memory_granularity(), device, enable_ipc=wanted) as physical:
        assert physical.ipc_enabled is bool(wanted)


def test_many_events_cost_no_fd(device: str) -> None:
    xs.Event(device).close()
    before = open_fds()
    events = [xs.Event(device, enable_ipc=True) for _ in range(500)]
    for event in events:
        event.signal()
    assert not new_fds(before)
    assert all(event.value == 1 for event in events)


def test_slots_are_used_again_and_are_new_then(device: str) -> None:
    def round_() -> set[int]:
        events = [xs.Event(device) for _ in range(20)]
        for event in events:
            assert (event.value, event.pending) == (0, 0)
            event.signal()
        return {event._use().timeline.slot.index for event in events}

    seen = round_()
    used = max(seen)
    for _ in range(100):
        seen |= round_()
    assert len(seen) < 2020
    assert max(seen) < max(used, 600) + 40


def test_an_event_outlives_close_for_what_is_queued(device: str, queue: xs.Queue) -> None:
    event = xs.Event(device, enable_ipc=True)
    handle = xs.ipc.event.get(event)
    twin = xs.ipc.event.open(handle)
    gate = Gate(queue)
    queue.signal(event)
    event.close()
    gate.open()
    twin.wait(10)
    assert twin.value == 1
    twin.close()
    xs.ipc.event.put(handle)


def test_keyboard_interrupt_ends_every_wait(device: str) -> None:
    def interrupted(device: str, how: str) -> str:
        event = xs.Event(device, enable_ipc=True)
        queue = xs.Queue(device)
        queue.wait(event, at_least=1)
        main = threading.get_ident()

        def interrupt() -> None:
            # again and again, until the wait has begun and ended
            while not over.wait(0.02):
                signal.pthread_kill(main, signal.SIGINT)

        over = threading.Event()
        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            event.wait(20, at_least=1) if how == "event" else queue.synchronize(20)
        except KeyboardInterrupt:
            over.set()
            thread.join()
            event.signal()
            queue.synchronize(10)
            return "interrupted"
        return "not interrupted"

    with Child() as child:
        for how in ("event", "queue"):
            assert child.call(interrupted, device, how) == "interrupted"


# --- events between processes ---------------------------------------------------------------------


def test_ping_pong(pair: Pair, peer: Child) -> None:
    there, back = peer.call(exported_event, pair[0]), peer.call(exported_event, pair[0], "back")
    ours, theirs = xs.ipc.event.open(there, device=pair[1]), xs.ipc.event.open(back, device=pair[1])

    def answer(rounds: int) -> int:
        for number in range(1, rounds + 1):
            kept["event"].wait(10, at_least=number)
            kept["back"].signal()
        return kept["back"].value

    pending = peer.start(answer, 100)
    for number in range(1, 101):
        assert ours.signal() == number
        theirs.wait(10, at_least=number)
    assert pending.result() == 100
    ours.close()
    theirs.close()


def test_queue_work_across_processes(pair: Pair, peer: Child) -> None:
    # Ours fills, theirs adds: ordered by events alone.
    data = peer.call(
        lambda device: (kept.__setitem__("m", xs.malloc_device(PAGE, device)), xs.ipc.memory.get(kept["m"]))[1], pair[0]
    )
    produced, consumed = peer.call(exported_event, pair[0]), peer.call(exported_event, pair[0], "back")

    def consume(device: str) -> None:
        queue = kept["queue"] = xs.Queue(device)
        seen = kept["seen"] = []
        for number in range(1, 21):
            queue.wait(kept["event"], at_least=number)
            call_on(queue, lambda: seen.append(memoryview(kept["m"])[0]))
            queue.signal(kept["back"])

    peer.call(consume, pair[0])
    with (
        xs.ipc.memory.open(data, device=pair[1]) as memory,
        xs.ipc.event.open(produced, device=pair[1]) as ours,
        xs.ipc.event.open(consumed, device=pair[1]) as theirs,
        xs.Queue(pair[1]) as queue,
    ):
        for number in range(1, 21):
            queue.wait(theirs, at_least=number - 1)
            queue.fill(memory, bytes([number]))
            assert queue.signal(ours) == number
        queue.synchronize(10)
        theirs.wait(10, at_least=20)
        assert peer.call(lambda: kept["seen"]) == list(range(1, 21))


def test_shared_before_the_first_signal_and_waited_for_by_many(pair: Pair, peer: Child, other: Child) -> None:
    with xs.Event(pair[0], enable_ipc=True) as event:
        handle = xs.ipc.event.get(event)
        waiting = []
        for child in (peer, other):
            child.call(opened, handle, pair[1], kind="event")
            waiting.append(child.start(lambda: (kept["opened"].wait(15, at_least=5), kept["opened"].value)[1]))
        for _ in range(5):
            assert not any(pending.done() for pending in waiting)
            event.signal()
        assert all(pending.result() >= 5 for pending in waiting)
        xs.ipc.event.put(handle)


def test_signallers_of_several_processes_make_one_line(pair: Pair, peer: Child, other: Child) -> None:
    with xs.Event(pair[0], enable_ipc=True) as event:
        handle = xs.ipc.event.get(event)

        def work(device: str) -> list[int]:
            with xs.Queue(device) as queue:
                return [(queue.signal(kept["opened"]), queue.synchronize(15))[0] for _ in range(50)]

        for child in (peer, other):
            child.call(opened, handle, pair[1], kind="event")
        pending = [child.start(work, pair[1]) for child in (peer, other)]
        with xs.Queue(pair[0]) as queue:
            # One outstanding each: a slot remembers eight changes of the signaller at most.
            points = [(queue.signal(event), queue.synchronize(15))[0] for _ in range(50)]
        for each in pending:
            mine = each.result()
            assert mine == sorted(mine)
            points += mine
        assert sorted(points) == list(range(1, 151))
        assert (event.value, event.pending, event.done) == (150, 150, True)
        xs.ipc.event.put(handle)


def test_value_waits_for_every_earlier_signal(pair: Pair, peer: Child) -> None:
    with xs.Event(pair[0], enable_ipc=True) as event, xs.Queue(pair[0]) as queue:
        handle = xs.ipc.event.get(event)
        peer.call(opened, handle, pair[1], kind="event")
        gate = Gate(queue)
        assert queue.signal(event) == 1

        def second(device: str) -> tuple[int, int, int]:
            queue = kept["queue"] = xs.Queue(device)
            event = kept["opened"]
            return queue.signal(event), event.value, event.pending

        assert peer.call(second, pair[1]) == (2, 0, 2)

        def host() -> str:
            with pytest.raises(xs.InvalidArgumentError, match="one event per producer") as caught:
                kept["opened"].signal()
            return str(caught.value)

        assert peer.call(host)
        with pytest.raises(xs.InvalidArgumentError):
            event.signal()
        assert (event.value, event.pending, event.done) == (0, 2, False)
        gate.open()
        event.wait(10)
        assert (event.value, event.pending) == (2, 2)
        xs.ipc.event.put(handle)


def test_host_signals_of_many_threads(event: xs.Event) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = [job.result() for job in [pool.submit(lambda: [event.signal() for _ in range(200)]) for _ in range(8)]]
    assert sorted(point for points in found for point in points) == list(range(1, 1601))
    assert event.value == 1600


def test_waits_of_many_threads(event: xs.Event) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(event.wait, 15, at_least=number) for number in range(1, 9)]
        for _ in range(8):
            event.signal()
        for job in jobs:
            job.result()


def test_one_process_of_several_devices(peer: Child) -> None:
    handle = peer.call(exported_event, "mock:0")
    with xs.ipc.event.open(handle, device="mock:1") as event, xs.Queue("mock:0") as one, xs.Queue("mock:1") as two:
        one.signal(event)
        two.wait(event)
        two.signal(event)
        two.synchronize(10)
        assert event.value == 2


def test_a_queue_of_another_backend_signals(peer: Child) -> None:
    handle = peer.call(exported_event, "native_cpu:0")
    with xs.ipc.event.open(handle) as event, xs.Queue("mock:0") as queue:
        assert queue.signal(event) == 1
        queue.synchronize(10)
        assert event.value == 1
