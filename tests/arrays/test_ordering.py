"""Ordered by default: a consumer's stream waits, on the device, for what the producer's stream had queued."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import harness
import xpushare as xs
from harness import Child, kept
from xpushare.adapters.mock import ForeignArray, MockStream

DEVICE = "mock:0"


class Gate:
    """Work on a stream that does not finish before `open`, and then writes."""

    def __init__(self, stream: MockStream, array: xs.SharedArray | ForeignArray) -> None:
        self._event = threading.Event()
        target: Any = np.asarray(array)
        self._stream = stream
        stream.call(self._event.wait)
        stream.call(lambda: target.fill(9))

    def open(self) -> None:
        self._event.set()
        self._stream.synchronize()


@pytest.fixture
def stream() -> Iterator[MockStream]:
    found = MockStream()
    yield found
    found.close()


@pytest.fixture
def array() -> xs.SharedArray:
    return xs.zeros(4, "u1", device=DEVICE)


# --- in the consumer's process


def start_reading(raw: bytes, how: str) -> None:
    """Queue a copy of the array on a stream of this process, behind whatever `how` makes it wait for."""
    mine = kept["stream"] = MockStream()
    target = kept["target"] = xs.malloc_device(4, DEVICE)
    queue = kept["queue"] = xs.Queue.from_native(mine)
    if how == "attach":
        array = xs.attach(raw, stream=mine)
        queue.copy(target, array.memory)
    elif how == "attach queue":
        queue.copy(target, xs.attach(raw, stream=queue).memory)
    elif how == "attach number":
        queue.copy(target, xs.attach(raw, stream=mine.number).memory)
    elif how == "operand":
        queue.copy(target, xs.attach(raw))
    elif how == "dlpack":
        array = xs.attach(raw)
        array.__dlpack__(stream=mine.number)
        queue.copy(target, array.memory)
    elif how == "attach -1":
        queue.copy(target, xs.attach(raw, stream=-1))
    else:
        assert how == "dlpack -1"
        array = xs.attach(raw)
        array.__dlpack__(stream=-1)
        queue.copy(target, array.memory)


def finished(timeout: float = 10) -> bytes | None:
    try:
        kept["queue"].synchronize(timeout)
    except TimeoutError:
        return None
    return bytes(memoryview(kept["target"]))


def read_on_host(raw: bytes, how: str) -> list[int]:
    array = xs.attach(raw)
    if how == "numpy":
        return np.asarray(array).tolist()
    if how == "memoryview":
        return memoryview(array).tolist()
    if how == "dlpack":
        return np.from_dlpack(array).tolist()
    return np.asarray(type("Holder", (), {"__array_interface__": array.__array_interface__})()).tolist()


# --- tests


@pytest.mark.parametrize("how", ["attach", "attach queue", "attach number", "operand", "dlpack"])
def test_streams_wait(peer: Child, stream: MockStream, array: xs.SharedArray, how: str) -> None:
    gate = Gate(stream, array)
    with xs.share(array, stream=stream) as handle:
        assert handle.event is not None
        peer.call(start_reading, bytes(handle), how)  # returns: nothing waits on the host
        assert peer.call(finished, 0.1) is None
        gate.open()
        assert peer.call(finished) == bytes([9] * 4)


@pytest.mark.parametrize("how", ["numpy", "memoryview", "dlpack", "interface"])
def test_the_host_waits(peer: Child, stream: MockStream, array: xs.SharedArray, how: str) -> None:
    gate = Gate(stream, array)
    with xs.share(array, stream=stream) as handle:
        pending = peer.start(read_on_host, bytes(handle), how)
        with pytest.raises(harness.HarnessError):
            pending.result(0.1)
        gate.open()
        assert pending.result() == [9] * 4


@pytest.mark.parametrize("how", ["attach -1", "dlpack -1"])
def test_consumers_opt_out(peer: Child, stream: MockStream, array: xs.SharedArray, how: str) -> None:
    gate = Gate(stream, array)
    with xs.share(array, stream=stream) as handle:
        peer.call(start_reading, bytes(handle), how)
        assert peer.call(finished) == bytes(4)
        gate.open()


def test_producers_opt_out(peer: Child, stream: MockStream, array: xs.SharedArray) -> None:
    gate = Gate(stream, array)
    with xs.share(array, stream=-1) as handle:
        assert handle.event is None
        peer.call(start_reading, bytes(handle), "attach")
        assert peer.call(finished) == bytes(4)
        gate.open()


def test_the_array_is_asked_for_its_stream(peer: Child, stream: MockStream) -> None:
    """What torch's current stream is to a CUDA tensor: the adapter knows."""
    foreign = ForeignArray(4)
    foreign.mock_stream = stream  # type: ignore[attr-defined]
    gate = Gate(stream, foreign)
    with xs.share(foreign) as handle:
        peer.call(start_reading, bytes(handle), "attach")
        assert peer.call(finished, 0.1) is None
        gate.open()
        assert peer.call(finished) == bytes([9] * 4)
    foreign.free()


def test_protocols_say_the_stream(peer: Child, stream: MockStream) -> None:
    foreign = ForeignArray(4)
    gate = Gate(stream, foreign)

    class Told:
        @property
        def __array_interface__(self) -> dict[str, Any]:
            return {**foreign.__array_interface__, "stream": stream.number}

    with xs.share(Told()) as handle:
        peer.call(start_reading, bytes(handle), "attach")
        assert peer.call(finished, 0.1) is None
        gate.open()
        assert peer.call(finished) == bytes([9] * 4)
    foreign.free()


def test_the_default_stream_serves_where_nobody_says(array: xs.SharedArray) -> None:
    from xpushare.adapters import mock

    with xs.share(array) as handle:
        assert handle.event is None  # the stream is idle: readers have nothing to wait for
        with xs.attach(handle) as here:
            assert np.asarray(here).tolist() == [0] * 4
    gate = Gate(mock.default_stream(0), array)
    with xs.share(array) as handle:
        assert handle.event is not None
        gate.open()
        with xs.attach(handle) as here:
            assert np.asarray(here).tolist() == [9] * 4


def test_queues_of_the_host_order_too(peer: Child) -> None:
    array = xs.empty(4, "u1")
    with xs.Queue("native_cpu:0") as queue:
        opened = threading.Event()
        queue.submit(opened.wait)
        queue.fill(array, b"\x07")
        with xs.share(array, stream=queue) as handle:
            pending = peer.start(read_on_host, bytes(handle), "numpy")
            with pytest.raises(harness.HarnessError):
                pending.result(0.1)
            opened.set()
            assert pending.result() == [7] * 4


def test_a_dead_producer_is_no_hang() -> None:
    with Child() as producer:
        raw = producer.call(_share_unfinished)
        array = xs.attach(raw)
        mine = MockStream()
        queue = xs.Queue.from_native(mine)
        later = xs.attach(raw, stream=queue)
        producer.kill()
        with pytest.raises(xs.PeerLostError):
            np.asarray(array).tolist()
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)
        later.close()
        mine.close()


def _share_unfinished() -> bytes:
    array = kept["array"] = xs.empty(4, "u1", device=DEVICE)
    stream = kept["stream"] = MockStream()
    kept["gate"] = Gate(stream, array)
    return bytes(xs.share(array, stream=stream))


def test_the_event_ends_with_the_export(peer: Child, stream: MockStream, array: xs.SharedArray) -> None:
    from xpushare.sharing import node

    table = node.current().table()
    table.sweep(everything=True)
    before = table.statistics()["exports"]
    gate = Gate(stream, array)
    with xs.share(array, stream=stream):
        assert table.statistics()["exports"] == before + 2
    assert table.statistics()["exports"] == before
    counted = xs.share(array, stream=stream, opens=1)
    gate.open()
    peer.call(read_on_host, bytes(counted), "numpy")
    table.sweep(everything=True)
    assert table.statistics()["exports"] == before


def test_a_stream_has_one_event(peer: Child, stream: MockStream, array: xs.SharedArray) -> None:
    other = xs.zeros(4, "u1", device=DEVICE)
    gate = Gate(stream, array)
    with xs.Queue.from_native(stream), xs.share(other, stream=stream) as second:
        with xs.share(array, stream=stream) as first:
            assert first.event == second.event
            assert first._events[0][1] == second._events[0][1] + 1
            assert peer.call(keep_attached, bytes(first)) == 0
        pending = peer.start(read_on_host, bytes(second), "numpy")
        gate.open()
        assert pending.result() == [0] * 4
        assert peer.call(kept_content) == [9] * 4
    gate = Gate(stream, array)
    with xs.share(array, stream=stream) as third:
        assert third.event != second.event, "that one ended with the last handle that named it"
        pending = peer.start(read_on_host, bytes(third), "numpy")
        gate.open()
        assert pending.result() == [9] * 4


def keep_attached(raw: bytes) -> int:
    kept["array"] = xs.attach(raw)
    return int(np.asarray(kept["array"].memory)[0])


def kept_content() -> list[int]:
    return np.asarray(kept["array"]).tolist()


def test_what_a_stream_lost_stays_lost(peer: Child, stream: MockStream, array: xs.SharedArray) -> None:
    with xs.Queue.from_native(stream) as queue, Child() as producer:
        unfinished = producer.call(_share_unfinished)
        behind = xs.attach(unfinished, stream=queue)
        with xs.share(array, stream=queue) as lost:
            producer.kill()
            with pytest.raises(xs.PeerLostError):
                queue.synchronize(10)
            with xs.share(array, stream=queue) as good:
                queue.synchronize(10)
                assert peer.call(read_on_host, bytes(good), "numpy") == [0] * 4
                with pytest.raises(xs.PeerLostError):
                    peer.call(read_on_host, bytes(lost), "numpy")
        behind.close()


def test_an_importers_signal_holds_no_producer_up(stream: MockStream, array: xs.SharedArray) -> None:
    with xs.Queue.from_native(stream) as queue, xs.share(array, stream=queue) as first:
        queue.synchronize(10)
        assert first.event is not None
        with xs.ipc.event.open(first.event) as event:
            event.signal()
        with xs.share(array, stream=queue) as second:
            assert second.event != first.event


def test_pickling_is_ordered_each_time(peer: Child, array: xs.SharedArray) -> None:
    from xpushare.adapters import mock

    default = mock.default_stream(0)
    first = pickle.dumps(array)
    gate = Gate(default, array)
    second = pickle.dumps(array)
    assert peer.call(_read_pickle, first) == [0] * 4  # it was complete when it was pickled
    pending = peer.start(_read_pickle, second)
    with pytest.raises(harness.HarnessError):
        pending.result(0.1)
    gate.open()
    assert pending.result() == [9] * 4


def _read_pickle(data: bytes) -> list[int]:
    return np.asarray(pickle.loads(data)).tolist()


@pytest.mark.parametrize("wrong", [object(), "stream", 123456789, True])
def test_what_is_no_stream(array: xs.SharedArray, wrong: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError, match="stream"):
        xs.share(array, stream=wrong)
    with xs.share(array) as handle, pytest.raises(xs.InvalidArgumentError, match="stream"):
        xs.attach(handle, stream=wrong)


def test_arrays_of_devices_are_asked_to_be_ready_on_the_default_stream() -> None:
    asked: list[Any] = []

    class OnDevice:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **options: Any) -> Any:
            asked.append(options.get("stream"))
            return np.zeros(4, "f4").__dlpack__()

    from xpushare.arrays.description import describe

    assert describe(OnDevice(), ordered=True).shape == (4,)
    assert describe(OnDevice()).dtype == np.float32
    assert asked == [1, -1]


def test_memory_that_its_driver_does_not_export_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As drivers refuse allocations that they have put beside others."""

    def refuse(*_arguments: object) -> None:
        raise xs.FeatureNotSupportedError("it lies beside others: share(copy=True)")

    foreign = ForeignArray(4)
    monkeypatch.setattr(type(foreign.lent), "export", refuse)
    for shared in foreign, [foreign]:
        with pytest.raises(xs.FeatureNotSupportedError, match="beside others"):
            xs.share(shared)
        with xs.share(shared, copy=True) as handle:
            assert handle.copied_nbytes == 4
    foreign.free()
