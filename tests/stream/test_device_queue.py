"""Queues of the engine over the streams of the software device, by all orderings."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

import xpushare as xs
from xpushare import _native
from xpushare.adapters.mock import MockEvent, MockStream
from xpushare.adapters.mock.adapter import Device, Stream
from xpushare.adapters.mock.script import ScriptedDriver
from xpushare.adapters.mock.script import driver as mock_driver
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.queue import AdoptedQueues, DeviceQueue

Until = Callable[..., None]
NewSlot = Callable[[], _native.Slot]


@pytest.fixture(params=["device", "shared", "held"])
def ordering(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Memory:
    """Bytes that a stream works on, and may still work on after the test: they are never freed."""

    kept: ClassVar[list[Any]] = []

    def __init__(self, nbytes: int) -> None:
        self.view = (ctypes.c_char * nbytes)()
        self.address = ctypes.addressof(self.view)
        Memory.kept.append(self.view)


@pytest.fixture
def memory() -> Memory:
    return Memory(4096)


@pytest.fixture
def driver(until: Until) -> Iterator[ScriptedDriver]:
    """The driver, which has nothing left at the end."""
    driver = mock_driver()
    driver.reset()
    library = driver.library
    streams, events = library.ss_streams(), library.ss_events()
    yield driver
    driver.reset()
    while made:
        made.pop().release()
    gc.collect()
    until(lambda: (gc.collect(), library.ss_streams() <= streams)[1])
    until(lambda: library.ss_events() <= events)


@pytest.fixture
def device(driver: ScriptedDriver) -> Device:
    return Device(driver, 0)


made: list[DeviceQueue] = []  # by the test that runs


def new_stream(device: Device, ordering: Any = "device", owner: MockStream | None = None) -> Stream:
    stream = Stream(device, owner.handle if owner else device.driver.new_stream("testing", 0), owner)
    stream.ordering = ordering
    if owner:
        owner.close()  # who uses it keeps it
    return stream


def new_queue(engine: Engine, stream: Stream) -> DeviceQueue:
    """A queue that is given up at the end of the test."""
    made.append(DeviceQueue(engine, stream))
    return made[-1]


@pytest.fixture
def engine(device: Device, domain: _native.Domain) -> Engine:
    made = Engine("test", lambda: [device])
    made.slot_pages.adopt(domain)
    return made


class Keep:
    """An operand; `gone` names those that were let go of."""

    gone: list[str] = []  # noqa: RUF012

    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        Keep.gone.append(self.name)


@pytest.fixture(autouse=True)
def _nothing_gone() -> None:
    gc.collect()
    Keep.gone.clear()


def test_what_is_unfinished(
    engine: Engine,
    device: Device,
    driver: ScriptedDriver,
    ordering: str,
    memory: Memory,
    new_slot: NewSlot,
    until: Until,
) -> None:
    stream = new_stream(device, ordering)
    queue, gate, out = new_queue(engine, stream), new_slot(), new_slot()
    assert queue.unfinished() is False
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 1)
    queue.fill(memory.address, b"a", 100, None)
    queue.wait(gate, 1)
    assert queue.unfinished() is True, "the fill comes before the wait"
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 0)
    until(lambda: queue.unfinished() == (gate, 1))
    queue.fill(memory.address, b"b", 100, None)
    queue.signal(out, None)
    queue.wait(gate, 2)
    assert queue.unfinished() == (gate, 1), "what comes behind the wait makes no difference"
    gate.signal()
    until(lambda: queue.unfinished() == (gate, 2))
    assert out.value == 1
    gate.signal()
    until(lambda: queue.unfinished() is False)


def test_what_is_queued_behind_a_wait_starts_when_the_point_comes(
    engine: Engine, device: Device, driver: ScriptedDriver, ordering: str, memory: Memory, new_slot: NewSlot
) -> None:
    stream = new_stream(device, ordering)
    queue, gate, out = new_queue(engine, stream), new_slot(), new_slot()
    queue.fill(memory.address, b"abcd", 100, None)
    queue.synchronize(5)
    driver.reset()
    queue.wait(gate, 1)
    queue.copy(memory.address + 1000, memory.address, 100, Keep("copy"))
    queue.fill(memory.address, b"z", 100, Keep("fill"))
    assert queue.signal(out, None) == 1
    assert not queue.idle()
    with pytest.raises(TimeoutError):
        queue.synchronize(0.02)
    gc.collect()
    assert not Keep.gone
    assert bool(driver.counts["copy"]) == (ordering == "device"), "else the driver has nothing that waits"
    assert bytes(memory.view[1000:1004]) == bytes(4)
    gate.signal()
    assert out.wait(1, 5) == _native.DONE
    queue.synchronize(5)
    assert bytes(memory.view[1000:1100]) == b"abcd" * 25
    assert bytes(memory.view[:100]) == b"z" * 100
    assert queue.idle()
    gc.collect()
    assert sorted(Keep.gone) == ["copy", "fill"]


def test_signals_and_waits(engine: Engine, device: Device, ordering: str, new_slot: NewSlot) -> None:
    first, second = (new_queue(engine, new_stream(device, ordering)) for _ in range(2))
    slot = new_slot()
    second.wait(slot, 1)
    assert not second.idle()
    assert first.signal(slot, None) == 1
    assert slot.wait(1, 5) == _native.DONE
    first.synchronize(5)
    second.synchronize(5)
    assert second.signal(slot, None) == 2
    second.synchronize(5)
    assert (slot.value, slot.pending) == (2, 2)


def test_signals_behind_a_lost_wait_are_lost(
    engine: Engine, device: Device, driver: ScriptedDriver, ordering: str, new_slot: NewSlot, until: Until
) -> None:
    owner, queue, third = (new_queue(engine, new_stream(device, ordering)) for _ in range(3))
    gate, lost, behind, last = (new_slot() for _ in range(4))
    owner.wait(gate, 1)
    owner.signal(lost, None)
    queue.wait(lost, 1)
    assert [queue.signal(behind, None) for _ in range(2)] == [1, 2]
    third.wait(behind, 2)
    third.signal(last, None)
    assert not driver.counts["host"]
    lost.fail(2)
    assert [behind.wait(2, 5), last.wait(1, 5)] == [_native.LOST] * 2
    until(lambda: queue.idle() and third.idle())
    assert [each.state(1) for each in (lost, behind, last)] == [_native.LOST] * 3
    if ordering != "device":
        assert not driver.counts["store64"] + driver.counts["host"], "the driver never hears of them"
    for each in (queue, third):
        until(lambda each=each: (each.settle(), each.waits(), each._failures)[-1])
        with pytest.raises(xs.PeerLostError, match=r"signal \d"):
            each.synchronize(5)
        each.synchronize(5)
    assert queue.signal(behind, None) == 3
    queue.synchronize(5)
    assert behind.state(3) == behind.state(2) == _native.DONE
    assert driver.counts["host"] == (ordering == "device"), "late stores may come of what the driver has"
    gate.signal()
    owner.synchronize(5)
    until(lambda: not queue._owed and not queue._native.late(behind))


def test_a_device_is_not_released_before_it_comes_to_its_wait(
    engine: Engine, device: Device, new_slot: NewSlot, until: Until
) -> None:
    """What is behind the wait is not lost while the queue's earlier point is outstanding, however long that takes."""
    queue, other = (new_queue(engine, new_stream(device)) for _ in range(2))
    gate, lost, ours = (new_slot() for _ in range(3))
    lost.submit(99)
    queue.wait(gate, 1)
    assert queue.signal(ours, None) == 1
    queue.wait(lost, 1)
    assert queue.signal(ours, None) == 2
    lost.fail(2)
    assert ours.wait(2, 0.4) == _native.PENDING  # twice the time that others get
    assert (_native.load64(lost.address), lost.state(1)) == (0, _native.LOST)
    gate.signal()
    assert [ours.wait(point, 5) for point in (1, 2)] == [_native.DONE, _native.LOST]
    with pytest.raises(xs.PeerLostError):
        queue.synchronize(5)
    # Another queue that has come to its wait is released all the same.
    lost.submit(99)
    queue.wait(gate, 2)
    assert queue.signal(ours, None) == 3
    for each in (queue, other):
        each.wait(lost, 2)
    assert queue.signal(ours, None) == 4
    lost.fail(2)
    until(other.idle)
    assert (ours.state(3), _native.load64(lost.address)) == (_native.PENDING, 2)
    with pytest.raises(xs.PeerLostError):
        other.synchronize(5)
    gate.signal()
    assert ours.wait(3, 5) == _native.DONE
    assert ours.wait(4, 5) != _native.PENDING, "either: the device may come to it before the warden"
    with pytest.raises(xs.PeerLostError):
        queue.synchronize(5)


@pytest.mark.parametrize("ordering", ["device", "held"])
def test_a_loss_that_is_healed_before_the_queue_comes_to_its_wait(
    engine: Engine, device: Device, ordering: str, new_slot: NewSlot
) -> None:
    queue, released = new_queue(engine, new_stream(device, ordering)), threading.Event()
    gate, lost, other, ours = (new_slot() for _ in range(4))
    lost.submit(99)
    queue.wait(gate, 1)
    assert queue.signal(ours, None) == 1
    queue.wait_native(MockEvent(released.wait), None)
    queue.wait(lost, 1)
    assert [queue.signal(other, None), queue.signal(ours, None)] == [1, 2]
    lost.fail(2)
    if ordering == "device":  # the warden has seen it, and put off what it cannot lose yet
        assert other.wait(1, 5) == _native.LOST
    assert lost.signal() == 2
    assert lost.state(1) == _native.DONE
    queue.waits()  # looks at each
    gate.signal()
    assert ours.wait(1, 5) == _native.DONE
    if ordering == "held":  # it is seen when its turn comes
        released.set()
        assert ours.wait(2, 5) == other.wait(1, 5) == _native.DONE
        queue.synchronize(5)
        return
    assert ours.wait(2, 5) == _native.LOST
    released.set()
    with pytest.raises(xs.PeerLostError):
        queue.synchronize(5)
    queue.synchronize(5)


@pytest.mark.parametrize("before", [False, True])
def test_signals_are_lost_until_the_loss_is_told(
    engine: Engine, device: Device, ordering: str, new_slot: NewSlot, until: Until, before: bool
) -> None:
    queue, other = (new_queue(engine, new_stream(device, ordering)) for _ in range(2))
    lost, behind, gate = (new_slot() for _ in range(3))
    lost.submit(99)
    if before:
        lost.fail(2)
    queue.wait(lost, 1)
    if not before:
        lost.fail(2)
        until(queue.idle)
    assert queue.signal(behind, None) == 1
    assert behind.wait(1, 5) == _native.LOST
    other.wait(gate, 1)
    assert other.signal(behind, None) == 2
    assert queue.signal(behind, None) == 3, "that has to wait for another signaller's"
    assert behind.wait(3, 0.01) == _native.PENDING
    gate.signal()
    assert [behind.wait(point, 5) for point in (2, 3)] == [_native.DONE, _native.LOST]
    with pytest.raises(xs.PeerLostError):
        queue.synchronize(5)
    assert queue.signal(behind, None) == 4
    queue.wait(lost, 1)
    queue.synchronize(5)  # once per loss
    assert behind.wait(4, 5) == _native.DONE
    assert queue.signal(behind, None) == 5
    assert behind.wait(5, 5) == _native.DONE


def test_nobody_asks_another_librarys_queue_for_losses(engine: Engine, device: Device, new_slot: NewSlot) -> None:
    queue = new_queue(engine, new_stream(device, owner=MockStream()))
    lost, behind = new_slot(), new_slot()
    lost.submit(99)
    lost.fail(2)
    queue.wait(lost, 1)
    assert queue.signal(behind, None) == 1
    assert behind.wait(1, 5) == _native.DONE
    with pytest.raises(xs.PeerLostError):
        queue.synchronize(5)


def test_the_host_completes_what_takes_its_turn(
    engine: Engine, device: Device, ordering: str, new_slot: NewSlot, until: Until
) -> None:
    """A store that comes after the point was lost would lower the word under a later signal."""
    gate, hold, slot = new_slot(), new_slot(), new_slot()
    first, second, third = (new_queue(engine, new_stream(device, ordering)) for _ in range(3))
    first.wait(gate, 1)
    first.signal(slot, None)
    second.wait(hold, 1)
    assert [second.signal(slot, None) for _ in range(2)] == [2, 3]
    slot.fail(2)
    if ordering == "device":  # else it waits for nothing yet: what it holds begins with another wait
        until(lambda: (second.settle(), second.waits(), second._failures)[-1])  # before it heals
    assert third.signal(slot, None) == 4
    assert slot.wait(4, 5) == _native.DONE
    hold.signal()
    if ordering == "device":
        with pytest.raises(xs.PeerLostError):
            second.synchronize(5)
    second.synchronize(5)
    assert (slot.state(4), _native.load64(slot.address)) == (_native.DONE, 4)
    gate.signal()
    first.synchronize(5)
    assert slot.state(4) == _native.DONE


def test_a_refused_host_function_loses_the_point(
    engine: Engine, device: Device, driver: ScriptedDriver, new_slot: NewSlot
) -> None:
    gate, slot = new_slot(), new_slot()
    first, second = (new_queue(engine, new_stream(device)) for _ in range(2))
    first.wait(gate, 1)
    first.signal(slot, None)
    driver.fail("host", xs.OutOfMemoryError("", native=2))
    with pytest.raises(xs.OutOfMemoryError, match="signalling: host failed with MOCK_OUT_OF_MEMORY"):
        second.signal(slot, None)
    assert slot.state(2) == _native.LOST
    gate.signal()
    first.synchronize(5)


def test_signallers_take_turns(engine: Engine, device: Device, ordering: str, new_slot: NewSlot) -> None:
    gate, slot = new_slot(), new_slot()
    first, second = (new_queue(engine, new_stream(device, ordering)) for _ in range(2))
    first.wait(gate, 1)
    assert first.signal(slot, None) == 1
    assert second.signal(slot, None) == 2
    with pytest.raises(TimeoutError):
        second.synchronize(0.02)
    assert slot.value == 0
    gate.signal()
    assert slot.wait(2, 5) == _native.DONE
    second.synchronize(5)
    first.synchronize(5)


def test_operands_are_let_go_though_nobody_asks(
    engine: Engine,
    device: Device,
    driver: ScriptedDriver,
    ordering: str,
    memory: Memory,
    new_slot: NewSlot,
    until: Until,
) -> None:
    streams = driver.library.ss_streams()
    queue, gate = new_queue(engine, new_stream(device, ordering)), new_slot()
    queue.wait(gate, 1)
    queue.copy(memory.address, memory.address + 100, 10, Keep("copy"))
    made.pop().release()
    del queue
    gc.collect()
    assert not Keep.gone
    assert driver.library.ss_streams() > streams
    gate.signal()
    until(lambda: Keep.gone)
    until(lambda: driver.library.ss_streams() == streams)


@pytest.mark.parametrize("releases", ["settle", "look_after", "synchronize"])
def test_settling_waits_for_what_another_thread_releases(
    engine: Engine, device: Device, memory: Memory, until: Until, releases: str
) -> None:
    releasing, go, settled = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def __del__(self) -> None:
            releasing.set()
            go.wait(10)

    queue = new_queue(engine, new_stream(device))
    queue.fill(memory.address, b"a", 1, Slow())

    def first() -> None:
        arguments = (10,) if releases == "synchronize" else ()
        until(lambda: (getattr(queue, releases)(*arguments), releasing.is_set())[1])

    threads = [threading.Thread(target=first), threading.Thread(target=lambda: (queue.settle(), settled.set()))]
    threads[0].start()
    assert releasing.wait(10)
    threads[1].start()
    assert not settled.wait(0.05)
    go.set()
    assert settled.wait(10)
    for thread in threads:
        thread.join()


def test_what_asking_for_a_mark_runs_may_settle_too(
    engine: Engine, device: Device, memory: Memory, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finaliser, or a signal's handler, which runs wherever Python does."""
    stream = new_stream(device)
    queue = new_queue(engine, stream)
    query = type(stream).query
    nested: list[int] = []

    def interrupted(self: Stream, doing: str, mark: Any) -> bool:
        reached = query(self, doing, mark)
        if reached and not nested:
            nested.append(1)
            queue.settle()
        return reached

    monkeypatch.setattr(type(stream), "query", interrupted)
    for _ in range(3):
        queue.fill(memory.address, b"a", 1, None)
    until(lambda: (queue.settle(), nested)[1])
    queue.synchronize(10)


def test_a_teardown_waits_for_what_is_held(
    engine: Engine, device: Device, driver: ScriptedDriver, ordering: str, memory: Memory, new_slot: NewSlot
) -> None:
    stream, gate = new_stream(device, ordering), new_slot()
    queue = new_queue(engine, stream)
    queue.wait(gate, 1)
    queue.fill(memory.address, b"x", 10, None)
    seen: list[bool] = []
    done = engine.teardown.submit(device, lambda: seen.append(bool(driver.counts["fill"])))
    assert not done.wait(0.1)
    gate.signal()
    assert done.wait(5)
    assert seen == [True], "the driver has the work before the device is drained"
    queue.synchronize(5)


def test_a_broken_device_loses_what_is_owed(
    engine: Engine,
    device: Device,
    driver: ScriptedDriver,
    ordering: str,
    memory: Memory,
    new_slot: NewSlot,
    until: Until,
) -> None:
    stream, gate, slot = new_stream(device, ordering), new_slot(), new_slot()
    queue = new_queue(engine, stream)
    queue.wait(gate, 1)
    queue.signal(slot, None)
    queue.copy(memory.address, memory.address + 100, 10, Keep("copy"))
    driver.fail("device_check", xs.DeviceError("", native=70), nth=0)
    until(lambda: slot.state(1) == _native.LOST)  # nobody called
    assert slot.blame()[0] == 2
    until(lambda: (gc.collect(), Keep.gone)[-1])
    for operation in (lambda: queue.signal(slot, None), lambda: queue.wait(slot, 2), lambda: queue.synchronize(5)):
        with pytest.raises(xs.DeviceError, match=r"device_check failed with MOCK_DEVICE_LOST \(70\); end this process"):
            operation()
    assert queue.idle()
    gate.signal()
    until(lambda: not (queue._native.held or stream.busy("")))  # the copy comes yet, to memory that must be there


def test_what_the_driver_refuses_of_held_work_comes_out(
    engine: Engine, device: Device, driver: ScriptedDriver, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    stream, gate, slot = new_stream(device, "held"), new_slot(), new_slot()
    queue = new_queue(engine, stream)
    queue.wait(gate, 1)
    queue.copy(memory.address, memory.address + 100, 10, Keep("copy"))
    assert queue.signal(slot, None) == 1
    driver.fail("copy", xs.OutOfMemoryError("", native=2))
    gate.signal()
    assert slot.wait(1, 5) == _native.LOST
    until(lambda: (gc.collect(), Keep.gone)[-1])
    with pytest.raises(xs.OutOfMemoryError, match=r"MOCK_OUT_OF_MEMORY \(2\)"):
        queue.synchronize(5)
    queue.synchronize(5)
    with pytest.raises(xs.OutOfMemoryError):
        queue.signal(slot, None)


def test_failures_of_calls_say_what_was_done(
    engine: Engine, device: Device, driver: ScriptedDriver, ordering: str, memory: Memory
) -> None:
    stream = new_stream(device, ordering)
    queue = new_queue(engine, stream)
    driver.fail("copy", xs.FeatureNotSupportedError("", native=8), nth=0 if ordering == "held" else 1)
    with pytest.raises(xs.FeatureNotSupportedError, match=r"copying 10 bytes: copy failed with MOCK_UNSUPPORTED \(8\)"):
        queue.copy(memory.address, memory.address + 100, 10, Keep("copy"))
    queue.synchronize(5)
    gc.collect()
    assert Keep.gone == ["copy"]


def test_captures_are_left_alone(
    engine: Engine, device: Device, driver: ScriptedDriver, memory: Memory, new_slot: NewSlot
) -> None:
    stream, slot = new_stream(device, owner=MockStream()), new_slot()
    queue = new_queue(engine, stream)
    driver.library.ss_capture(ctypes.c_uint64(stream.handle), 1)
    for operation in (
        lambda: queue.signal(slot, None),
        lambda: queue.wait(slot, 1),
        lambda: queue.copy(memory.address, memory.address, 1, None),
        lambda: queue.synchronize(5),
        queue.idle,
    ):
        with pytest.raises(xs.InvalidArgumentError, match="captured"):
            operation()
    assert slot.pending == 0
    driver.library.ss_capture(ctypes.c_uint64(stream.handle), 0)
    assert queue.signal(slot, None) == 1
    driver.fail("mark_record", xs.DeviceError("", native=90))  # a capture that began in between
    with pytest.raises(xs.InvalidArgumentError, match="captured"):
        queue.synchronize(5)


def test_a_stream_that_is_not_ours_cannot_be_held(engine: Engine, device: Device, new_slot: NewSlot) -> None:
    queue, slot = new_queue(engine, new_stream(device, "held", owner=MockStream())), new_slot()
    with pytest.raises(xs.FeatureNotSupportedError, match="another library"):
        queue.wait(slot, 1)
    assert queue.signal(slot, None) == 1
    assert slot.wait(1, 5) == _native.DONE


def test_one_queue_for_each_stream_of_another_library(engine: Engine, device: Device, new_slot: NewSlot) -> None:
    adopted, stream, slot = AdoptedQueues(engine), new_stream(device, owner=MockStream()), new_slot()
    first, second = (adopted.queue("a", stream) for _ in range(2))
    assert first is second
    assert adopted.queue("b", new_stream(device, owner=MockStream())) is not first
    assert adopted.queue(None, stream) is not first
    first.signal(slot, None)
    first.release()
    assert adopted.queue("a", stream) is first, "it has a user yet"
    second.release()
    first.release()
    assert adopted.queue("a", stream) is not first
    lasting = adopted.queue("default", stream, lasting=True)
    lasting.release()
    assert adopted.queue("default", stream, lasting=True) is lasting


def test_calls_by_recipe_run_inside_what_they_need(engine: Engine, device: Device, new_slot: NewSlot) -> None:
    class Scope:
        entered = 0

        def __enter__(self) -> None:
            Scope.entered += 1

        def __exit__(self, *_exc: object) -> None:
            Scope.entered += 100

    stream: Any = new_stream(device)
    stream.around_calls = Scope
    queue, slot = new_queue(engine, stream), new_slot()
    queue.signal(slot, None)
    queue.wait(slot, 1)
    assert Scope.entered == 202


# --- a budget of waiting queues


def queues_of(engine: Engine, device: Device, budget: int, number: int) -> list[DeviceQueue]:
    """Queues of which so many may wait on the device for what may never come."""
    calls, queues = device.driver.new_queue_calls(budget), []
    for _ in range(number):
        stream = new_stream(device, "shared")
        stream.calls = calls
        queues.append(new_queue(engine, stream))
    return queues


@pytest.mark.parametrize("budget", [0, 2, 8])
def test_so_many_queues_wait_on_the_device(
    engine: Engine, device: Device, driver: ScriptedDriver, memory: Memory, new_slot: NewSlot, budget: int
) -> None:
    """The others hold their operations, which a relay thread hands over."""
    queues = queues_of(engine, device, budget, 12)
    gates, outs = ([new_slot() for _ in queues] for _ in range(2))
    for at, (queue, gate, out) in enumerate(zip(queues, gates, outs, strict=True)):
        queue.wait(gate, 1)
        queue.fill(memory.address + at, bytes([at + 1]), 1, None)
        queue.copy(memory.address + 100 + at, memory.address + at, 1, None)
        assert queue.signal(out, None) == 1
    assert driver.counts["wait64_geq"] == budget
    assert [queue._native.held > 0 for queue in queues] == [at >= budget for at in range(12)]
    assert not any(queue.idle() for queue in queues)
    for gate, out in reversed(list(zip(gates, outs, strict=True))):
        assert out.state(1) == _native.PENDING
        gate.signal()
        assert out.wait(1, 5) == _native.DONE
    for queue in queues:
        queue.synchronize(5)
    assert bytes(memory.view[:12]) == bytes(memory.view[100:112]) == bytes(range(1, 13))


def test_a_stream_of_another_library_takes_a_place(engine: Engine, device: Device, new_slot: NewSlot) -> None:
    gate, (one, two) = new_slot(), queues_of(engine, device, 1, 2)
    stream = new_stream(device, owner=MockStream())
    stream.calls = one._stream.calls
    adopted = new_queue(engine, stream)
    adopted.wait(gate, 1)
    one.wait(gate, 1)
    assert (adopted._native.held, one._native.held) == (0, 1)
    gate.signal()
    adopted.synchronize(5)
    one.synchronize(5)
    two.wait(gate, 2)
    assert two._native.held == 0
    adopted.wait(gate, 2)  # whatever others do: it cannot be held
    gate.signal()
    adopted.synchronize(5)
    two.synchronize(5)


def test_an_event_of_another_library_takes_a_place(engine: Engine, device: Device, new_slot: NewSlot) -> None:
    """Nobody here knows what is before it."""
    event, gates, slot = threading.Event(), [new_slot(), new_slot()], new_slot()
    queues = queues_of(engine, device, 2, 4)
    queues[0].wait_native(MockEvent(event.wait), None)
    queues[0].signal(slot, None)
    queues[1].wait(gates[0], 1)
    queues[2].wait(slot, 1)
    queues[3].wait(gates[1], 1)
    assert [queue._native.held for queue in queues] == [0, 0, 1, 1]
    event.set()
    queues[0].synchronize(5)
    queues[2].synchronize(5)
    queues[2].wait(gates[1], 2)
    assert queues[2]._native.held == 0
    for gate in (*gates, gates[1]):
        gate.signal()
    for queue in queues:
        queue.synchronize(5)


def test_host_functions_that_run_late(
    engine: Engine, device: Device, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    """A mark is reached before the host function in front of it has run, as with callbacks of OpenCL's events."""
    owed: list[tuple[Any, int]] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
    host = kind(lambda function, data: owed.append((ctypes.CFUNCTYPE(None, ctypes.c_uint64)(function), data)) or 0)
    address = ctypes.cast(host, ctypes.c_void_p).value or 0
    native = _native.QueueCalls((address, ("function", "data")))
    stream = new_stream(device, "held")
    stream.calls = stream.calls._replace(native=native, host_runs_late=True)
    queue, first, second = new_queue(engine, stream), new_slot(), new_slot()
    queue.fill(memory.address, b"a", 100, None)
    assert (queue.signal(first, None), queue.signal(second, None)) == (1, 1)
    until(lambda: len(owed) == 2)

    def run(function: Any, data: int) -> None:
        function(data)

    run(*owed[1])
    assert second.state(1) == _native.DONE
    assert not queue.idle()
    assert queue.unfinished() is True
    with pytest.raises(TimeoutError):
        queue.synchronize(0.05)
    run(*owed[0])
    assert queue.idle()
    assert queue.unfinished() is False
    queue.synchronize(5)
    assert first.state(1) == _native.DONE


# --- commands that need no Python -----------------------------------------------------------------


class Work(ctypes.Structure):
    """`xp_work` of the native module."""

    _fields_: ClassVar = [
        *((name, ctypes.c_uint64) for name in ("to", "from_", "to_pitch", "from_pitch", "width", "rows")),
        ("pattern", ctypes.c_char_p),
        ("pattern_size", ctypes.c_uint64),
    ]


native = ctypes.CDLL(_native.__file__)
for name in ("xp_queue_work", "xp_queue_after"):
    getattr(native, name).restype = ctypes.c_bool


def new_owner(engine: Engine, device: Device, new_slot: NewSlot) -> tuple[Stream, DeviceQueue, _native.Slot]:
    """A queue on a stream of its own, with a timeline of its own."""
    stream, own = new_stream(device), new_slot()
    queue = new_queue(engine, stream)
    queue.own(own)
    return stream, queue, own


def take(queue: DeviceQueue | _native.StreamQueue, work: Work | None = None) -> int:
    """Have native code enqueue it: the point that it signals, 0 if native code leaves it to Python."""
    slot, point = ctypes.c_uint64(), ctypes.c_uint64()
    given = ctypes.byref(work) if work else None
    if not native.xp_queue_work(ctypes.c_void_p(queue.engine), given, ctypes.byref(slot), ctypes.byref(point)):
        return 0
    native.xp_let_slot_go(slot)
    return point.value


def filling(to: int, pattern: bytes, width: int, rows: int = 1, pitch: int = 0) -> Work:
    return Work(to=to, to_pitch=pitch, width=width, rows=rows, pattern=pattern, pattern_size=len(pattern))


def copying(to: int, from_: int, width: int, rows: int = 1, to_pitch: int = 0, from_pitch: int = 0) -> Work:
    return Work(to=to, from_=from_, width=width, rows=rows, to_pitch=to_pitch, from_pitch=from_pitch)


def test_native_commands_write_what_others_would(
    engine: Engine, device: Device, ordering: str, memory: Memory, new_slot: NewSlot
) -> None:
    queue, own = new_queue(engine, new_stream(device, ordering)), new_slot()
    assert queue.works_natively
    assert queue.spent
    assert take(queue) == 0, "it has no timeline"
    queue.own(own)
    assert not queue.spent
    assert take(queue, filling(memory.address, b"a", 100)) == 1
    assert take(queue, filling(memory.address + 101, b"abc", 99)) == 2
    assert take(queue, filling(memory.address + 256, bytes(range(16)), 48, 3, 64)) == 3
    assert take(queue, copying(memory.address + 512, memory.address, 20, 3, 32, 100)) == 4
    assert take(queue, copying(memory.address + 1024, memory.address, 100, 2, 100, 100)) == 5, "rows without gaps"
    assert take(queue) == 6
    assert own.wait(6, 5) == _native.DONE
    content = bytes(memory.view)
    assert content[:200] == b"a" * 100 + b"\0" + b"abc" * 33
    assert content[256:448] == (bytes(range(16)) * 3 + bytes(16)) * 3
    assert [content[512 + row * 32 : 532 + row * 32] for row in range(3)] == [
        content[row * 100 : row * 100 + 20] for row in range(3)
    ]
    assert content[1024:1224] == content[:200]
    assert take(queue, filling(memory.address, bytes(range(128)), 256)) == 0, "a long pattern is staged"
    assert take(queue, filling(memory.address, b"abcd", 10, 2, 20)) == 0, "a row ends within the pattern"


def test_fills_of_a_driver_with_wide_patterns(new_slot: NewSlot) -> None:
    """Each pattern goes by the widest fill that its length and the address allow."""
    said: list[tuple[int, ...]] = []
    kept: list[Any] = []

    def address(function: Any) -> int:
        kept.append(function)
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def call(kind: int) -> int:
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 4)
        return address(prototype(lambda *arguments: (said.append((kind, *arguments)), 0)[1]))

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.CFUNCTYPE(None, ctypes.c_void_p), ctypes.c_void_p)
    def host(function: Callable[[int], None], data: int) -> int:
        function(data)
        return 0

    calls = _native.QueueCalls(
        (address(host), ("function", "data")),
        copy=(call(8), ("to", "from", "nbytes", "queue")),
        fills=tuple((call(unit), ("to", "value", "times", "queue")) for unit in (1, 2, 4)),
    )
    assert calls.works
    queue, own, at = _native.StreamQueue(7, 77, calls), new_slot(), 4096
    queue.own(own, own.address)
    for to, pattern, width in ((at, b"abcd", 12), (at + 2, b"abcd", 8), (at + 1, b"ab", 4), (at, b"aaaa", 8)):
        said.append(())
        assert take(queue, filling(to, pattern, width))
    assert said == [
        *((), (4, at, 0x64636261, 3, 77)),
        *((), (2, at + 2, 0x6261, 1, 77), (2, at + 4, 0x6463, 1, 77), (8, at + 6, at + 2, 4, 77)),
        *((), (1, at + 1, 0x61, 1, 77), (1, at + 2, 0x62, 1, 77), (8, at + 3, at + 1, 2, 77)),
        *((), (1, at, 0x61, 8, 77)),
    ]
    assert own.value == 4


def test_what_is_unfinished_of_native_commands(
    engine: Engine,
    device: Device,
    driver: ScriptedDriver,
    ordering: str,
    memory: Memory,
    new_slot: NewSlot,
    until: Until,
) -> None:
    stream = new_stream(device, ordering)
    queue, gate, own = new_queue(engine, stream), new_slot(), new_slot()
    queue.own(own)
    assert queue.unfinished() is False
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 1)
    assert take(queue, filling(memory.address, b"a", 100)) == 1
    assert queue.unfinished() is True
    assert queue.clean(), "a signal is nothing to report"
    queue.wait(gate, 1)
    assert take(queue, filling(memory.address, b"b", 100)) == 2
    assert queue.unfinished() is True, "the first fill comes before the wait"
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 0)
    until(lambda: queue.unfinished() == (gate, 1))
    assert not queue.clean()
    assert memory.view[0] == b"a"
    seen: list[bytes] = []
    done = engine.teardown.submit(device, lambda: seen.append(memory.view[0]))
    assert not done.wait(0.05)
    gate.signal()
    assert done.wait(5)
    assert seen == [b"b"], "native code's work is done before the device counts as drained"
    until(lambda: queue.unfinished() is False)
    assert queue.clean()


def test_a_loss_ends_the_timeline_of_native_commands(
    engine: Engine, device: Device, ordering: str, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    queue, lost, own = new_queue(engine, new_stream(device, ordering)), new_slot(), new_slot()
    queue.own(own)
    assert take(queue) == 1
    lost.submit(99)
    queue.wait(lost, 1)
    assert take(queue, filling(memory.address, b"a", 100)) == 2
    assert own.wait(1, 5) == _native.DONE
    lost.fail(2)
    assert own.wait(2, 5) == _native.LOST
    assert queue.spent
    assert take(queue) == 0
    later = new_slot()
    queue.own(later)
    assert take(queue) == 0, "the loss was not told"
    until(lambda: (queue.settle(), queue.waits(), queue._failures)[-1])
    with pytest.raises(xs.PeerLostError):
        queue.synchronize(5)
    assert take(queue) == 1
    assert [own.state(point) for point in (1, 2)] == [_native.DONE, _native.LOST]
    assert later.wait(1, 5) == _native.DONE
    assert memory.view[0] == b"a"


def test_native_commands_wait_for_what_is_certain(
    engine: Engine,
    device: Device,
    driver: ScriptedDriver,
    ordering: str,
    memory: Memory,
    new_slot: NewSlot,
) -> None:
    streams = [new_stream(device, ordering) for _ in range(2)]
    first, second = (new_queue(engine, stream) for stream in streams)
    own, other, gate = (new_slot() for _ in range(3))
    first.own(own)
    second.own(other)

    def after(slot: _native.Slot, point: int) -> bool:
        return bool(
            native.xp_queue_after(ctypes.c_void_p(second.engine), ctypes.c_void_p(slot.engine), ctypes.c_uint64(point))
        )

    driver.library.ss_pause(ctypes.c_uint64(streams[0].handle), 1)
    assert take(first, filling(memory.address, b"a", 100)) == 1
    assert after(own, 1)
    assert take(second, copying(memory.address + 100, memory.address, 100)) == 1
    assert not after(own, 2), "nobody has queued that"
    assert not after(gate, 1), "that is not a queue's own"
    assert other.wait(1, 0.01) == _native.PENDING
    driver.library.ss_pause(ctypes.c_uint64(streams[0].handle), 0)
    assert other.wait(1, 5) == _native.DONE
    assert memory.view[100] == b"a"
    first.wait(gate, 1)
    assert take(first) == 2
    assert not after(own, 2), "what is signalled behind a wait for anybody is not certain"
    gate.signal()
    assert own.wait(2, 5) == _native.DONE
    assert after(own, 2)


def test_a_broken_device_loses_what_native_commands_owe(
    engine: Engine, device: Device, driver: ScriptedDriver, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    stream, queue, own = new_owner(engine, device, new_slot)
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 1)
    assert take(queue, filling(memory.address, b"a", 100)) == 1
    driver.fail("device_check", xs.DeviceError("", native=70), nth=0)
    until(lambda: own.state(1) == _native.LOST)  # nobody called
    assert take(queue) == 0
    assert not queue.spent, "another timeline would do no better"
    assert not queue.clean()
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 0)
    until(lambda: not stream.busy(""))


def test_a_signal_that_the_driver_refuses_is_for_python_to_tell(
    engine: Engine, device: Device, driver: ScriptedDriver, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    stream, queue, own = new_owner(engine, device, new_slot)
    driver.fail("fill", xs.OutOfMemoryError("", native=2))
    assert take(queue, filling(memory.address, b"a", 100)) == 0
    assert not queue.spent
    assert own.pending == 0
    driver.fail("store64", xs.OutOfMemoryError("", native=2))
    assert take(queue, filling(memory.address, b"a", 100)) == 1
    until(lambda: own.state(1) == _native.DONE)  # by the host
    driver.fail("store64", xs.OutOfMemoryError("", native=2))
    driver.fail("host", xs.OutOfMemoryError("", native=2))
    assert take(queue, filling(memory.address, b"a", 100)) == 0
    assert queue.spent
    assert own.state(2) == _native.LOST
    until(lambda: not stream.busy(""))  # the fill comes all the same


def test_a_refused_store_loses_no_earlier_command(
    engine: Engine, device: Device, driver: ScriptedDriver, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    stream, queue, own = new_owner(engine, device, new_slot)
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 1)
    assert [take(queue, filling(memory.address, b"a", 100)) for _ in range(3)] == [1, 2, 3]
    driver.fail("store64", xs.OutOfMemoryError("", native=2))
    assert take(queue, filling(memory.address, b"b", 100)) == 4
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 0)
    until(lambda: own.state(4) == _native.DONE)
    assert [own.state(point) for point in range(1, 5)] == [_native.DONE] * 4
    assert not queue.spent


def test_what_is_handed_over_after_the_break_is_lost(
    engine: Engine, device: Device, driver: ScriptedDriver, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    """Native code hears of no break: a driver that still takes commands then carries out nothing."""
    (stream, queue, own), other = new_owner(engine, device, new_slot), new_slot()
    assert take(queue, filling(memory.address, b"a", 100)) == 1
    until(lambda: own.state(1) == _native.DONE)
    driver.fail("store64", xs.DeviceError("", native=70))
    with pytest.raises(xs.DeviceError):
        queue.signal(other, None)
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 1)
    if take(queue, filling(memory.address, b"a", 100)):
        until(lambda: own.state(2) == _native.LOST)  # nobody called
    driver.library.ss_pause(ctypes.c_uint64(stream.handle), 0)
    until(lambda: not stream.busy(""))


def test_what_native_code_does_not_take_it_does_not_do(
    engine: Engine, device: Device, driver: ScriptedDriver, memory: Memory, new_slot: NewSlot
) -> None:
    (_, queue, _), other = new_owner(engine, device, new_slot), new_slot()
    other.submit(99)
    other.fail(2)
    queue.wait(other, 1)
    before = driver.counts["fill"]
    assert [take(queue, filling(memory.address, b"a", 100)) for _ in range(3)] == [0, 0, 0]
    assert driver.counts["fill"] == before


def test_losses_that_are_put_off_together_end_a_timeline_once_each(
    engine: Engine, device: Device, memory: Memory, new_slot: NewSlot
) -> None:
    """The warden comes to them again and again, until what the queue waits for before them is done."""
    stream, gate, lost = new_stream(device), new_slot(), [new_slot(), new_slot()]
    queue = new_queue(engine, stream)
    queue.own(new_slot())
    gate.submit(99)
    queue.wait(gate, 1)
    assert take(queue, filling(memory.address, b"a", 100))
    for slot in lost:
        slot.submit(99)
        queue.wait(slot, 1)
        assert take(queue, filling(memory.address, b"a", 100))
    for slot in lost:
        slot.fail(2)
    ended = 0
    for _ in range(20):
        gate.wait(1, 0.02)  # a moment for the warden
        if queue.spent:
            ended += 1
            queue.own(new_slot())
    assert 1 <= ended <= len(lost)
    gate.fail(2)
