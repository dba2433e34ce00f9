"""Queues of the engine over software streams, by both orderings."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest
from software import Device, Stream

import xpushare as xs
from xpushare import _native
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.queue import AdoptedQueues, DeviceQueue

Until = Callable[..., None]
NewSlot = Callable[[], _native.Slot]


@pytest.fixture(params=["device", "shared", "held"])
def ordering(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def device() -> Any:
    return Device()


@pytest.fixture
def engine(device: Any, domain: _native.Domain) -> Engine:
    made = Engine("test", lambda: [device])
    made.slot_pages.adopt(domain)
    return made


class Memory:
    """Bytes that a stream works on."""

    def __init__(self, nbytes: int) -> None:
        self.view = (ctypes.c_char * nbytes)()
        self.address = ctypes.addressof(self.view)


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


@pytest.fixture
def memory() -> Memory:
    return Memory(4096)


def test_what_is_queued_behind_a_wait_starts_when_the_point_comes(
    engine: Engine, device: Any, ordering: str, memory: Memory, new_slot: NewSlot
) -> None:
    stream = Stream(device, ordering)
    queue, gate, out = DeviceQueue(engine, stream), new_slot(), new_slot()
    queue.fill(memory.address, b"abcd", 100, None)
    queue.synchronize(5)
    queue.wait(gate, 1)
    queue.copy(memory.address + 1000, memory.address, 100, Keep("copy"))
    queue.fill(memory.address, b"z", 100, Keep("fill"))
    assert queue.signal(out, None) == 1
    assert not queue.idle()
    with pytest.raises(TimeoutError):
        queue.synchronize(0.02)
    gc.collect()
    assert not Keep.gone
    assert ("copy" in stream.names) == (ordering == "device"), "else the driver has nothing that waits"
    assert bytes(memory.view[1000:1004]) == bytes(4)
    gate.signal()
    assert out.wait(1, 5) == _native.DONE
    queue.synchronize(5)
    assert bytes(memory.view[1000:1100]) == b"abcd" * 25
    assert bytes(memory.view[:100]) == b"z" * 100
    assert queue.idle()
    gc.collect()
    assert sorted(Keep.gone) == ["copy", "fill"]
    queue.release()
    assert stream.destroyed.wait(5)
    assert not stream.marks


def test_signals_behind_a_lost_wait_are_lost(
    engine: Engine, device: Any, ordering: str, new_slot: NewSlot, until: Until
) -> None:
    owing, waiting = Stream(device, ordering), Stream(device, ordering)
    owner, queue = DeviceQueue(engine, owing), DeviceQueue(engine, waiting)
    gate, lost, behind = new_slot(), new_slot(), new_slot()
    owner.wait(gate, 1)
    owner.signal(lost, None)
    queue.wait(lost, 1)
    assert queue.signal(behind, None) == 1
    lost.fail(2)
    assert behind.wait(1, 5) == _native.LOST
    until(queue.idle)
    if ordering != "device":
        assert "store" not in waiting.names, "the driver never hears of it"
        assert "host" not in waiting.names
    until(lambda: (queue.settle(), queue.waits(), queue._failures)[-1])
    with pytest.raises(xs.PeerLostError, match="point 1"):
        queue.synchronize(5)
    queue.synchronize(5)
    assert queue.signal(behind, None) == 2
    assert behind.wait(2, 5) == _native.DONE
    gate.signal()
    owner.synchronize(5)


def test_signallers_take_turns(engine: Engine, device: Any, ordering: str, new_slot: NewSlot) -> None:
    gate, slot = new_slot(), new_slot()
    first, second = (DeviceQueue(engine, Stream(device, ordering)) for _ in range(2))
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
    engine: Engine, device: Any, ordering: str, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    stream, gate = Stream(device, ordering), new_slot()
    queue = DeviceQueue(engine, stream)
    queue.wait(gate, 1)
    queue.copy(memory.address, memory.address + 100, 10, Keep("copy"))
    queue.release()
    del queue
    gc.collect()
    assert not Keep.gone
    gate.signal()
    until(lambda: Keep.gone)
    assert stream.destroyed.wait(5)


def test_a_teardown_waits_for_what_is_held(
    engine: Engine, device: Any, ordering: str, memory: Memory, new_slot: NewSlot
) -> None:
    stream, gate = Stream(device, ordering), new_slot()
    queue = DeviceQueue(engine, stream)
    queue.wait(gate, 1)
    queue.fill(memory.address, b"x", 10, None)
    seen: list[bool] = []
    done = engine.teardown.submit(device, lambda: seen.append("fill" in stream.names))
    assert not done.wait(0.1)
    gate.signal()
    assert done.wait(5)
    assert seen == [True], "the driver has the work before the device is drained"
    queue.synchronize(5)


def test_a_broken_device_loses_what_is_owed(
    engine: Engine, device: Any, ordering: str, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    stream, gate, slot = Stream(device, ordering), new_slot(), new_slot()
    queue = DeviceQueue(engine, stream)
    queue.wait(gate, 1)
    queue.signal(slot, None)
    queue.copy(memory.address, memory.address + 100, 10, Keep("copy"))
    stream.codes["device"] = 70
    until(lambda: slot.state(1) == _native.LOST)  # nobody called
    assert slot.blame()[0] == 2
    until(lambda: (gc.collect(), Keep.gone)[-1])
    for operation in (lambda: queue.signal(slot, None), lambda: queue.wait(slot, 2), lambda: queue.synchronize(5)):
        with pytest.raises(xs.DeviceError, match=r"check failed with ERROR_70 \(70\); end this process"):
            operation()
    assert queue.idle()
    gate.signal()
    until(lambda: not (queue._native.held or stream.busy("")))  # the copy comes yet, to memory that must be there


def test_what_the_driver_refuses_of_held_work_comes_out(
    engine: Engine, device: Any, memory: Memory, new_slot: NewSlot, until: Until
) -> None:
    stream, gate, slot = Stream(device, "held"), new_slot(), new_slot()
    queue = DeviceQueue(engine, stream)
    queue.wait(gate, 1)
    queue.copy(memory.address, memory.address + 100, 10, Keep("copy"))
    assert queue.signal(slot, None) == 1
    stream.codes["copy"] = 2
    gate.signal()
    assert slot.wait(1, 5) == _native.LOST
    until(lambda: (gc.collect(), Keep.gone)[-1])
    with pytest.raises(xs.OutOfMemoryError, match=r"ERROR_2 \(2\)"):
        queue.synchronize(5)
    queue.synchronize(5)
    with pytest.raises(xs.OutOfMemoryError):
        queue.signal(slot, None)


def test_failures_of_calls_say_what_was_done(engine: Engine, device: Any, ordering: str, memory: Memory) -> None:
    stream = Stream(device, ordering)
    queue = DeviceQueue(engine, stream)
    stream.codes["copy"] = 8
    with pytest.raises(xs.FeatureNotSupportedError, match=r"copying 10 bytes: copy failed with ERROR_8 \(8\)"):
        queue.copy(memory.address, memory.address + 100, 10, Keep("copy"))
    queue.synchronize(5)
    gc.collect()
    assert Keep.gone == ["copy"]


def test_captures_are_left_alone(engine: Engine, device: Any, memory: Memory, new_slot: NewSlot) -> None:
    stream, slot = Stream(device, owner=object()), new_slot()
    queue = DeviceQueue(engine, stream)
    stream.capturing = True
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
    stream.capturing = False
    assert queue.signal(slot, None) == 1
    stream.codes["mark"] = 90  # a capture that began in between
    with pytest.raises(xs.InvalidArgumentError, match="captured"):
        queue.synchronize(5)


def test_a_stream_that_is_not_ours_cannot_be_held(engine: Engine, device: Any, new_slot: NewSlot) -> None:
    queue, slot = DeviceQueue(engine, Stream(device, "held", owner=object())), new_slot()
    with pytest.raises(xs.FeatureNotSupportedError, match="another library"):
        queue.wait(slot, 1)
    assert queue.signal(slot, None) == 1
    assert slot.wait(1, 5) == _native.DONE


def test_one_queue_for_each_stream_of_another_library(engine: Engine, device: Any, new_slot: NewSlot) -> None:
    adopted, stream, slot = AdoptedQueues(engine), Stream(device, owner=object()), new_slot()
    first, second = (adopted.queue("a", stream) for _ in range(2))
    assert first is second
    assert adopted.queue("b", Stream(device, owner=object())) is not first
    assert adopted.queue(None, stream) is not first
    first.signal(slot, None)
    first.release()
    assert adopted.queue("a", stream) is first, "it has a user yet"
    second.release()
    first.release()
    assert stream.destroyed.wait(5)
    assert adopted.queue("a", stream) is not first
    lasting = adopted.queue("default", stream, lasting=True)
    lasting.release()
    assert adopted.queue("default", stream, lasting=True) is lasting


def test_calls_by_recipe_run_inside_what_they_need(engine: Engine, device: Any, new_slot: NewSlot) -> None:
    class Scope:
        entered = 0

        def __enter__(self) -> None:
            Scope.entered += 1

        def __exit__(self, *_exc: object) -> None:
            Scope.entered += 100

    stream: Any = Stream(device)
    stream.around_calls = Scope
    queue, slot = DeviceQueue(engine, stream), new_slot()
    queue.signal(slot, None)
    queue.wait(slot, 1)
    assert Scope.entered == 202
