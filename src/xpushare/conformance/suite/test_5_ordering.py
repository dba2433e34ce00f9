"""Section 5, ordering. The rules apply to devices that wait for events themselves, and to devices for which xpushare
delays the operations in the process.
"""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

from contextlib import ExitStack

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import NBYTES, held, read_bytes, write_bytes
from xpushare.conformance.harness import TIMEOUT, Child, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule
from xpushare.conformance.samples import samples

QUEUES = 12  # more than the hardware queues of a device, so that some queues share one


@rule("5.26")
def test_points_of_the_future(pair: Pair) -> None:
    with ExitStack() as stack:
        enter = stack.enter_context
        signaller = enter(xs.Queue(pair.exporter))
        numbers = range(QUEUES)
        points = [enter(xs.Event(pair.exporter)) for _ in numbers]
        finished = [enter(xs.Event(pair.exporter)) for _ in numbers]
        memory = enter(xs.malloc_device(QUEUES, pair.exporter))
        write_bytes(memory, bytes(QUEUES))
        queues = [enter(xs.Queue(pair.exporter)) for _ in numbers]
        for number, queue in enumerate(queues):
            queue.wait(points[number], at_least=1)
            queue.fill(memory.slice(number, 1), bytes([number + 1]))
            queue.signal(finished[number])
        expected = bytearray(QUEUES)
        for number in reversed(numbers):  # the last queue runs first, and other work continues meanwhile
            with pytest.raises(TimeoutError):
                finished[number].wait(0.01)
            assert read_bytes(memory) == expected
            signaller.signal(points[number])
            finished[number].wait(TIMEOUT)
            expected[number] = number + 1
            assert read_bytes(memory) == expected


@rule("5.26")
@pytest.mark.parametrize("kind", ["event"])
def test_points_of_another_process(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(actions.export, "event", kind, pair.exporter)
    with (
        xs.ipc.event.open(handle, device=pair.importer) as event,
        xs.Queue(pair.importer) as queue,
        xs.Event(pair.importer) as finished,
        xs.malloc_device(NBYTES, pair.importer) as memory,
    ):
        write_bytes(memory, bytes(NBYTES))
        for number in (1, 2, 3):  # none of these signals has been submitted
            queue.wait(event, at_least=number)
            queue.fill(memory, bytes([number]))
            queue.signal(finished)
        for number in (1, 2, 3):
            with pytest.raises(TimeoutError):
                finished.wait(0.01, at_least=number)
            assert finished.value == number - 1
            assert peer.call(actions.queue_signal, "event", pair.exporter) == number
            finished.wait(TIMEOUT, at_least=number)
        assert read_bytes(memory) == b"\3" * NBYTES


@rule("5.27")
def test_the_wrong_order(pair: Pair) -> None:
    with ExitStack() as stack:
        enter = stack.enter_context
        queues = [enter(xs.Queue(pair.exporter)) for _ in range(QUEUES)]
        events = [enter(xs.Event(pair.exporter)) for _ in range(QUEUES)]
        cells = [enter(xs.malloc_device(NBYTES, pair.exporter)) for _ in range(QUEUES)]
        for cell in cells:
            write_bytes(cell, bytes(NBYTES))
        for number in range(QUEUES - 1):  # each queue waits for a later queue, whose signal is not queued yet
            queues[number].wait(events[number + 1], at_least=1)
            queues[number].copy(cells[number], cells[number + 1])
            queues[number].signal(events[number])
        queues[-1].fill(cells[-1], b"e")
        queues[-1].signal(events[-1])
        events[0].wait(TIMEOUT, at_least=1)
        assert read_bytes(cells[0]) == b"e" * NBYTES
        for queue in queues:
            queue.synchronize(TIMEOUT)


@rule("5.28")
def test_loss_goes_on(pair: Pair, peer: Child) -> None:
    with Child() as child, ExitStack() as stack:
        enter = stack.enter_context
        handle = child.call(actions.export, "event", "event", pair.exporter)
        event = enter(xs.ipc.event.open(handle, device=pair.importer))
        queues = [enter(xs.Queue(pair.importer)) for _ in range(3)]
        actions.export("last", "event", pair.importer)
        behind = [enter(xs.Event(pair.importer)), enter(xs.Event(pair.importer)), kept["last"]]
        memory = enter(xs.malloc_device(3, pair.importer))
        write_bytes(memory, bytes(3))
        peer.call(actions.open_, "last", "event", actions.get("last", "event"), pair.importer)
        for number, (queue, signalled) in enumerate(zip(queues, behind, strict=True)):
            queue.wait(behind[number - 1] if number else event, at_least=1)  # a signal that no process has submitted
            queue.fill(memory.slice(number, 1), b"r")
            queue.signal(signalled)
        elsewhere = peer.start(actions.attempt, actions.wait, "last", 1)
        child.kill()  # the last process that could have submitted the first signal
        for queue, signalled in zip(queues, behind, strict=True):
            with pytest.raises(xs.PeerLostError):
                signalled.wait(TIMEOUT, at_least=1)
            with pytest.raises(xs.PeerLostError):
                queue.synchronize(TIMEOUT)
        assert elsewhere.result() == "PeerLostError"
        assert read_bytes(memory) == b"rrr"
        for queue, signalled in zip(queues, behind, strict=True):  # all queues can still be used
            queue.signal(signalled)
            queue.synchronize(TIMEOUT)
            signalled.wait(TIMEOUT)


@rule("5.29")
def test_adopted(pair: Pair) -> None:
    stream = samples(pair.exporter).stream(pair.exporter)
    with (
        xs.Event(pair.exporter) as before,
        xs.Event(pair.exporter) as after,
        xs.malloc_device(NBYTES, pair.exporter) as memory,
        xs.malloc_device(NBYTES, pair.exporter) as target,
        held(pair.exporter) as gate,
    ):
        write_bytes(target, bytes(NBYTES))
        for number in (1, 2):  # closing the queue does not change the stream
            with xs.Queue.from_native(stream) as queue:
                assert queue.device == xs.Device(pair.exporter)
                if number == 1:
                    gate.queue.fill(memory, b"a")
                    gate.queue.signal(before)
                queue.wait(before)
                queue.copy(target, memory)
                assert queue.signal(after) == number
                if number == 1:
                    with pytest.raises(TimeoutError):
                        after.wait(0.05)
                    gate.release()
                after.wait(TIMEOUT)
                queue.synchronize(TIMEOUT)
            assert read_bytes(target) == b"a" * NBYTES
