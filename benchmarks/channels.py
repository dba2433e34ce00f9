"""Measure the hand-over of a frame by a channel, a ring by hand over events, iceoryx2 (if it is installed) polling and
blocking, and multiprocessing.Queue, in one run. Each of two processes is pinned to a CPU of its own.

"round trip" is half of one, 64 bytes and 8 MiB, and waiters may spin. The channel's and iceoryx2's processes write and
read one byte or number of a frame, and the queue copies the frame. "one CPU" is the same with both processes on one
CPU, so that each sleeps while the other one runs. "asleep" is one way, from before the loan until the reader has the
value: the writer pauses before each frame for long enough that the reader sleeps.

"whole" is half a round trip of 8 MiB in which both processes fill the frame and read all of it.

"4K" is frames of 3840 x 2160 x 3 bytes that are filled in place, sent, and read as a whole, a second.

    python -m benchmarks.channels [--rounds 3000] [--frames 100]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import xpushare as xs

SIZES = 64, 8 << 20
FRAME = 3840 * 2160 * 3
_DEPTH = 4
_PAUSE = 0.0005  # seconds; no contender spins for so long


def _fill(target: Any, number: int) -> None:
    target[:] = number & 255


def _read(source: Any) -> int:
    return int(source.view("uint64").max())


def _fill_byte(target: Any, number: int) -> None:
    target[0] = number & 255


def _read_byte(source: Any) -> int:
    return int(source[0])


def _ways(whole: bool) -> tuple[Callable[[Any, int], None], Callable[[Any], int]]:
    return (_fill, _read) if whole else (_fill_byte, _read_byte)


def _channel_child(size: int, rounds: int, whole: bool) -> None:
    fill, read = _ways(whole)
    with xs.Channel.open("bench-there") as there, xs.Channel.create("bench-back", size, "uint8", slots=_DEPTH) as back:
        for _ in range(rounds):
            with there.receive() as frame, back.loan() as answer:
                fill(np.asarray(answer), read(np.asarray(frame)))


def channel(size: int, rounds: int, start: Callable[..., Any], whole: bool = False) -> list[float]:
    fill, read = _ways(whole)
    with xs.Channel.create("bench-there", size, "uint8", slots=_DEPTH) as there:
        child = start(_channel_child, size, rounds, whole)
        times = []
        with xs.Channel.open("bench-back") as back:
            for k in range(rounds):
                begin = time.perf_counter()
                with there.loan() as frame:
                    fill(np.asarray(frame), k)
                with back.receive() as answer:
                    value = read(np.asarray(answer))
                times.append(time.perf_counter() - begin)
                assert value & 255 == k & 255
            child.join()
    return times


def _ring_child(ring: Any, back: Any, filled: xs.Event, emptied: xs.Event, rounds: int) -> None:
    source, target = np.asarray(ring), np.asarray(back)
    for k in range(rounds):
        filled.wait(30, at_least=k + 1)
        target[k % _DEPTH, 0] = source[k % _DEPTH, 0]
        emptied.signal()


def ring(size: int, rounds: int, start: Callable[..., Any]) -> list[float]:
    there, back = xs.empty((_DEPTH, size), "uint8"), xs.empty((_DEPTH, size), "uint8")
    with xs.Event("native_cpu:0", enable_ipc=True) as filled, xs.Event("native_cpu:0", enable_ipc=True) as emptied:
        child = start(_ring_child, there, back, filled, emptied, rounds)
        source, target, times = np.asarray(there), np.asarray(back), []
        for k in range(rounds):
            begin = time.perf_counter()
            source[k % _DEPTH, 0] = k & 255
            filled.signal()
            emptied.wait(30, at_least=k + 1)
            value = int(target[k % _DEPTH, 0])
            times.append(time.perf_counter() - begin)
            assert value == k & 255
        child.join()
    return times


def _queue_child(there: Any, back: Any, rounds: int, whole: bool) -> None:
    for _ in range(rounds):
        frame = there.get()
        if whole:
            _fill(frame, _read(frame))
        back.put(frame)


def queue(size: int, rounds: int, start: Callable[..., Any], whole: bool = False) -> list[float]:
    rounds = min(rounds, 300)
    context = multiprocessing.get_context("spawn")
    there, back, times = context.Queue(), context.Queue(), []
    child = start(_queue_child, there, back, rounds, whole)
    frame = np.zeros(size, "uint8")
    for k in range(rounds):
        begin = time.perf_counter()
        if whole:
            _fill(frame, k)
        there.put(frame)
        answer = back.get()
        if whole:
            assert _read(answer) & 255 == k & 255
        times.append(time.perf_counter() - begin)
    child.join()
    return times


class _Iceoryx:
    """One side of two services of iceoryx2."""

    def __init__(self, sends: str, receives: str, size: int, blocks: bool) -> None:
        import iceoryx2 as iox2  # type: ignore[import-not-found,import-untyped,unused-ignore]

        iox2.set_log_level(iox2.LogLevel.Error)
        self._iox2, self._size, self._blocks = iox2, size, blocks
        self._node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
        out, out_event = self._services(sends)
        into, into_event = self._services(receives)
        self.publisher = out.publisher_builder().initial_max_slice_len(size).create()
        self.subscriber = into.subscriber_builder().create()
        self._notifier = out_event.notifier_builder().create()
        self._listener = into_event.listener_builder().create()

    def _services(self, name: str) -> tuple[Any, Any]:
        iox2 = self._iox2
        frames = self._node.service_builder(iox2.ServiceName.new(name)).publish_subscribe(iox2.Slice[ctypes.c_uint8])
        frames = frames.subscriber_max_buffer_size(_DEPTH).enable_safe_overflow(False).open_or_create()
        return frames, self._node.service_builder(iox2.ServiceName.new(f"{name}-event")).event().open_or_create()

    def send(self, value: int) -> None:
        sample = self.publisher.loan_slice_uninit(self._size)
        ctypes.c_int64.from_address(sample.payload_ptr).value = value
        sample.assume_init().send()
        if self._blocks:
            self._notifier.notify()

    def poll(self) -> int | None:
        sample = self.subscriber.receive()
        if sample is None:
            return None
        value = ctypes.c_int64.from_address(sample.payload_ptr).value
        sample.delete()
        return value

    def receive(self) -> int:
        while (value := self.poll()) is None:
            if self._blocks:
                self._listener.timed_wait(self._iox2.Duration.from_secs(5))
        return value


def _iceoryx_child(size: int, rounds: int, blocks: bool) -> None:
    side = _Iceoryx("bench-back", "bench-there", size, blocks)
    side.send(7)
    for _ in range(rounds):
        side.send(side.receive())


def iceoryx(size: int, rounds: int, start: Callable[..., Any], blocks: bool = False) -> list[float]:
    side, times = _Iceoryx("bench-there", "bench-back", size, blocks), []
    child = start(_iceoryx_child, size, rounds, blocks)
    while side.poll() is None:
        time.sleep(0.001)
    for k in range(rounds):
        begin = time.perf_counter()
        side.send(k)
        value = side.receive()
        times.append(time.perf_counter() - begin)
        assert value == k
    child.join()
    return times


def _iceoryx_blocking(size: int, rounds: int, start: Callable[..., Any]) -> list[float]:
    return iceoryx(size, rounds, start, True)


def _asleep_channel_child(rounds: int, times: Any) -> None:
    with xs.Channel.open("bench-asleep") as ch:
        for k in range(rounds):
            with ch.receive() as frame:
                sent = int(np.asarray(frame)[0])
            times[k] = time.perf_counter_ns() - sent


def asleep_channel(rounds: int, start: Callable[..., Any], times: Any) -> None:
    with xs.Channel.create("bench-asleep", 8, "int64", slots=_DEPTH) as ch:
        child = start(_asleep_channel_child, rounds, times)
        while len(ch.statistics()["members"]) < 2:
            time.sleep(_PAUSE)
        for _ in range(rounds):
            time.sleep(_PAUSE)
            now = time.perf_counter_ns()
            with ch.loan() as frame:
                np.asarray(frame)[0] = now
        child.join()


def _asleep_iceoryx_child(rounds: int, times: Any) -> None:
    side = _Iceoryx("bench-back", "bench-there", 64, True)
    side.send(7)
    for k in range(rounds):
        sent = side.receive()
        times[k] = time.perf_counter_ns() - sent


def asleep_iceoryx(rounds: int, start: Callable[..., Any], times: Any) -> None:
    side = _Iceoryx("bench-there", "bench-back", 64, True)
    child = start(_asleep_iceoryx_child, rounds, times)
    while side.poll() is None:
        time.sleep(_PAUSE)
    for _ in range(rounds):
        time.sleep(_PAUSE)
        side.send(time.perf_counter_ns())
    child.join()


def _4k_channel_child(count: int, mode: Any, ready: Any) -> None:
    with xs.Channel.open("bench-4k", mode=mode) as ch:
        ready.add(1)
        for frame in ch:
            _read(np.asarray(frame))
        ready.add(1)
    assert mode != "all" or frame.seq == count


def _reach(number: xs.Atomic, value: int) -> None:
    while (found := number.load()) < value:
        number.wait(found, 30)


def frames_by_channel(count: int, start: Callable[..., Any], modes: tuple[str, ...] = ("all",)) -> float:
    with xs.Channel.create("bench-4k", FRAME, "uint8", slots=8) as ch, xs.Atomic() as ready:
        children = [start(_4k_channel_child, count, mode, ready) for mode in modes]
        _reach(ready, len(modes))
        begin = time.perf_counter()
        for number in range(count):
            with ch.loan() as frame:
                _fill(np.asarray(frame), number)
        ch.finish()
        _reach(ready, 2 * len(modes))
        found = count / (time.perf_counter() - begin)
        for child in children:
            child.join()
    return found


def _4k_ring_child(ring: Any, filled: xs.Event, emptied: xs.Event, count: int) -> None:
    source = np.asarray(ring)
    for k in range(count):
        filled.wait(30, at_least=k + 1)
        _read(source[k % 8])
        emptied.signal()


def frames_by_ring(count: int, start: Callable[..., Any]) -> float:
    ring = xs.empty((8, FRAME), "uint8")
    with xs.Event("native_cpu:0", enable_ipc=True) as filled, xs.Event("native_cpu:0", enable_ipc=True) as emptied:
        child = start(_4k_ring_child, ring, filled, emptied, count + 1)
        target = np.asarray(ring)
        filled.signal()  # a frame before the clock starts
        emptied.wait(30, at_least=1)
        begin = time.perf_counter()
        for k in range(1, count + 1):
            if k >= 8:
                emptied.wait(30, at_least=k - 7)
            _fill(target[k % 8], k)
            filled.signal()
        emptied.wait(30, at_least=count + 1)
        found = count / (time.perf_counter() - begin)
        child.join()
    return found


def _4k_iceoryx_child(count: int) -> None:
    side = _Iceoryx("bench-back", "bench-there", FRAME, False)
    side.send(7)
    for _ in range(count):
        while (sample := side.subscriber.receive()) is None:
            pass
        _read(np.ctypeslib.as_array((ctypes.c_uint8 * FRAME).from_address(sample.payload_ptr)))
        sample.delete()
    side.send(8)


def frames_by_iceoryx(count: int, start: Callable[..., Any]) -> float:
    side = _Iceoryx("bench-there", "bench-back", FRAME, False)
    child = start(_4k_iceoryx_child, count)
    while side.poll() is None:
        time.sleep(_PAUSE)
    begin = time.perf_counter()
    for number in range(count):
        sample = side.publisher.loan_slice_uninit(FRAME)
        _fill(np.ctypeslib.as_array((ctypes.c_uint8 * FRAME).from_address(sample.payload_ptr)), number)
        sample.assume_init().send()
    while side.poll() is None:
        pass
    found = count / (time.perf_counter() - begin)
    child.join()
    return found


def _pinned(cpus: set[int], target: Callable[..., None], *arguments: Any) -> None:
    os.sched_setaffinity(0, cpus)
    target(*arguments)


def _show(what: str, name: str, microseconds: list[float]) -> None:
    found = sorted(microseconds[10:])
    median, most = found[len(found) // 2], found[len(found) * 99 // 100]
    print(f"{what:22}  {name:22} median {median:9.2f} us   99 % {most:9.2f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--frames", type=int, default=100)
    given = parser.parse_args()
    rounds: int = given.rounds
    context = multiprocessing.get_context("spawn")
    here, *others = sorted(os.sched_getaffinity(0))
    there = {others[0]} if others else {here}
    os.sched_setaffinity(0, {here})

    def start_on(cpus: set[int]) -> Callable[..., Any]:
        def start(target: Callable[..., None], *arguments: Any) -> Any:
            process = context.Process(target=_pinned, args=(cpus, target, *arguments))
            process.start()
            return process

        return start

    start = start_on(there)

    contenders: dict[str, Callable[[int, int, Callable[..., Any]], list[float]]] = {
        "channel": channel, "ring over events": ring, "multiprocessing.Queue": queue, "iceoryx2, polling": iceoryx,
        "iceoryx2, blocking": _iceoryx_blocking,
    }  # fmt: skip
    for size in SIZES:
        for name, measure in contenders.items():
            what = f"round trip, {size} B"
            try:
                _show(what, name, [each * 5e5 for each in measure(size, rounds, start)])
            except ImportError:
                print(f"{what:22}  {name:22} is not installed")
    for name, measure in {"channel": channel, "multiprocessing.Queue": queue}.items():
        _show("whole, 8 MiB", name, [each * 5e5 for each in measure(SIZES[1], min(rounds, 300), start, True)])
    for name in ("channel", "ring over events", "iceoryx2, blocking"):
        with contextlib.suppress(ImportError):
            _show("one CPU, 64 B", name, [each * 5e5 for each in contenders[name](64, rounds, start_on({here}))])
    sleepers = {"channel": asleep_channel, "iceoryx2, blocking": asleep_iceoryx}
    for name, run in sleepers.items():
        times = context.Array("q", rounds, lock=False)
        try:
            run(rounds, start, times)
        except ImportError:
            print(f"{'asleep, 64 B':22}  {name:22} is not installed")
            continue
        _show("asleep, 64 B", name, [each / 1e3 for each in times])
    by_turns: dict[str, Callable[[], float]] = {
        "channel": lambda: frames_by_channel(given.frames, start),
        "ring over events": lambda: frames_by_ring(given.frames, start),
        "iceoryx2, polling": lambda: frames_by_iceoryx(given.frames, start),
        "channel, three modes": lambda: frames_by_channel(given.frames, start, ("all", "newest", "one")),
    }
    for name, frames in by_turns.items():
        try:
            rates = sorted(frames() for _ in range(3))
        except ImportError:
            print(f"{'4K':22}  {name:22} is not installed")
            continue
        print(f"{'4K':22}  {name:22} median {rates[1]:9.1f} a second", flush=True)


if __name__ == "__main__":
    main()
