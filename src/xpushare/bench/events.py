"""Scenarios about events: the round trip between two processes, and the CPU time of a waiter."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from xpushare.bench.measure import Kept, Row, Settings, Worker, compare, pin, spread

__all__ = ["OURS", "Pair", "event", "take_turns", "waiting"]

_TIMEOUT: Final = 60.0  # seconds for a batch of round trips, so that a hang ends
OURS: Final = "ours"
_EVENT: Final = "multiprocessing.Event"
_ZMQ: Final = "pyzmq ipc://"
_PIPE: Final = "multiprocessing.Pipe"
_BUSY: Final = 6  # number of busy processes
Cpus = tuple[list[int], list[int]]

# --- in the two processes ---------------------------------------------------------------------------


def _setup_first(kept: Kept, address: str, device: str) -> tuple[bytes, bytes]:
    """Set up the first process, which measures. It makes both events, and each of the two processes then signals one of
    them, as the documentation recommends. Returns the handles of the events.
    """
    import xpushare as xs

    ping = kept["ping"] = xs.Event(device, enable_ipc=True)
    pong = kept["pong"] = xs.Event(device, enable_ipc=True)
    kept["round"] = 0
    if address:
        import zmq

        kept["socket"] = zmq.Context().socket(zmq.PAIR)
        kept["socket"].bind(address)
    return bytes(xs.ipc.event.get(ping)), bytes(xs.ipc.event.get(pong))


def _setup_second(kept: Kept, address: str, ping: bytes, pong: bytes) -> None:
    import xpushare as xs

    kept["ping"] = xs.ipc.event.open(ping)
    kept["pong"] = xs.ipc.event.open(pong)
    kept["round"] = 0
    if address:
        import zmq

        kept["socket"] = zmq.Context().socket(zmq.PAIR)
        kept["socket"].connect(address)


def _end(kept: Kept) -> None:
    socket = kept.pop("socket", None)
    if socket is not None:
        context = socket.context
        socket.close(0)
        context.term()


def _first(kept: Kept, way: str, batch: int) -> float:
    """Make `batch` round trips with the method `way`, and return the average time of one round trip in microseconds."""
    turns = range(batch)
    clock = time.perf_counter_ns
    if way == OURS:
        ping, pong = kept["ping"], kept["pong"]
        base = kept["round"] + 1
        kept["round"] += batch
        start = clock()
        for n in range(base, base + batch):
            ping.signal()
            pong.wait(_TIMEOUT, at_least=n)
        end = clock()
    elif way == _EVENT:
        there, back = kept["there"], kept["back"]
        start = clock()
        for _ in turns:
            there.set()
            if not back.wait(_TIMEOUT):
                raise TimeoutError
            back.clear()
        end = clock()
    elif way == _ZMQ:
        socket = kept["socket"]
        start = clock()
        for _ in turns:
            socket.send(b"1")
            socket.recv()
        end = clock()
    else:
        connection = kept["pipe"]
        start = clock()
        for _ in turns:
            connection.send_bytes(b"1")
            connection.recv_bytes()
        end = clock()
    return (end - start) / batch / 1000


def _second(kept: Kept, way: str, batch: int) -> None:
    """Answer `batch` round trips of the other process with the method `way`."""
    turns = range(batch)
    if way == OURS:
        ping, pong = kept["ping"], kept["pong"]
        base = kept["round"] + 1
        kept["round"] += batch
        for n in range(base, base + batch):
            ping.wait(_TIMEOUT, at_least=n)
            pong.signal()
    elif way == _EVENT:
        there, back = kept["there"], kept["back"]
        for _ in turns:
            if not there.wait(_TIMEOUT):
                raise TimeoutError
            there.clear()
            back.set()
    elif way == _ZMQ:
        socket = kept["socket"]
        for _ in turns:
            socket.send(socket.recv())
    else:
        connection = kept["pipe"]
        for _ in turns:
            connection.send_bytes(connection.recv_bytes())


def _burn(kept: Kept) -> None:  # noqa: ARG001
    """Keep a CPU busy until this process is killed."""
    while True:
        pass


# --- the conductor ----------------------------------------------------------------------------------


class Pair:
    """Two processes that can signal each other with each of the compared methods. In addition, `busy` processes are
    started that only use CPU time.
    """

    def __init__(
        self, settings: Settings, stack: contextlib.ExitStack, cpus: Cpus, *, zmq: bool, busy: int = 0
    ) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        # These objects must stay alive. A semaphore's name is removed with the object that made it, and a spawned
        # process looks the name up later.
        shared = self._shared = {"there": context.Event(), "back": context.Event()}
        self.first = stack.enter_context(Worker(settings, {**shared, "pipe": here}))
        self._second = stack.enter_context(Worker(settings, {**shared, "pipe": there}))
        here.close()
        there.close()
        self.first.call(pin, cpus[0])  # first, so that threads which libraries start inherit it
        self._second.call(pin, cpus[1])
        address = f"ipc://{tempfile.mkdtemp(dir=settings.folder)}/socket" if zmq else ""
        handles = self.first.call(_setup_first, address, settings.device)
        self._second.call(_setup_second, address, *handles)
        for _ in range(busy):
            worker = Worker(settings)
            stack.callback(worker.kill)
            worker.call(pin, sorted({*cpus[0], *cpus[1]}))
            worker.start(_burn)

    def run(self, way: str, batch: int, first: Callable[[Kept, str, int], Any] = _first) -> Any:
        """Make `batch` round trips with the method `way`. Returns the result of `first`, which by default is the
        average time of a round trip in microseconds.
        """
        answered = self._second.start(_second, way, batch)
        found = self.first.start(first, way, batch).result(_TIMEOUT * 2)
        answered.result(_TIMEOUT * 2)
        return found

    def end(self) -> None:
        for worker in (self.first, self._second):
            worker.call(_end)


def take_turns(count: int, ways: Sequence[str], sample: Callable[[str], Any]) -> dict[str, list[Any]]:
    """Return `count` samples for each of the compared methods `ways`. The methods are measured in turn, and each round
    begins with a different one.
    """
    samples: dict[str, list[Any]] = {way: [] for way in ways}
    for turn in range(count):
        for step in range(len(ways)):
            way = ways[(turn + step) % len(ways)]
            samples[way].append(sample(way))
    return samples


def event(settings: Settings) -> list[Row]:
    """Event round trip between two processes: one signals, the other waits and signals back."""
    ways = [OURS, _EVENT, _PIPE, *([_ZMQ] if importlib.util.find_spec("zmq") else [])]
    # A sample needs enough round trips for the scheduler to spread the two processes, which start on arbitrary CPUs.
    batches = {way: settings.count(200, 20) for way in ways} | {OURS: settings.count(5000, 500)}
    one, *more = sorted(os.sched_getaffinity(0))[:2]
    places: list[tuple[str, Cpus, int]] = [("both processes on one CPU", ([one], [one]), 0)]
    for two in more:
        free = ([one, two], [one, two])
        places.append(("each process pinned to a CPU of its own", ([one], [two]), 0))
        places.append(("both processes free on two CPUs", free, 0))
        places.append((f"beside {_BUSY} busy processes on two CPUs", free, _BUSY))
    rows: list[Row] = []
    for how, cpus, busy in places:
        with contextlib.ExitStack() as stack:
            pair = Pair(settings, stack, cpus, zmq=_ZMQ in ways, busy=busy)
            for way in ways:
                pair.run(way, batches[way])

            def round_trip(way: str, pair: Pair = pair) -> float:
                took: float = pair.run(way, batches[way])
                return took

            samples = take_turns(settings.count(100, 3), ways, round_trip)
            pair.end()
        rows += [compare("event", f"event round trip, {how}", samples[OURS], way, samples[way]) for way in ways[1:]]
    if _ZMQ not in ways:
        rows[0].notes.append("pyzmq is not installed (pip install '.[bench]' in a checkout of xpushare)")
    return rows


# --- the CPU time of a waiter -----------------------------------------------------------------------


def _wait_without_signal(kept: Kept, way: str, seconds: float) -> tuple[float, float]:
    """Wait without a signal. Return the CPU time of the waiting thread and of the whole process, in microseconds. The
    process's time includes that of xpushare's background threads.
    """
    import resource

    found: list[tuple[float, float]] = []

    def used(who: int) -> float:
        usage = resource.getrusage(who)
        return (usage.ru_utime + usage.ru_stime) * 1e6

    def wait() -> None:
        if way == OURS:
            pong = kept["pong"]
            with contextlib.suppress(TimeoutError):
                pong.wait(seconds, at_least=pong.pending + 1)
        else:
            kept["back"].wait(seconds)

    def body() -> None:
        thread, process = used(resource.RUSAGE_THREAD), used(resource.RUSAGE_SELF)
        wait()
        found.append((used(resource.RUSAGE_THREAD) - thread, used(resource.RUSAGE_SELF) - process))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return found[0]


def waiting(settings: Settings) -> list[Row]:
    """The CPU time that a thread uses while it waits 1 s without a signal. The first millisecond does not count."""
    seconds = settings.count(100, 10) / 100
    ways = (OURS, _EVENT)
    with contextlib.ExitStack() as stack:
        every = sorted(os.sched_getaffinity(0))
        pair = Pair(settings, stack, (every, every), zmq=False)
        for way in ways:
            pair.first.call(_wait_without_signal, way, 0.001)

        def waits(way: str) -> list[tuple[float, float]]:
            return [pair.first.call(_wait_without_signal, way, each) for each in (0.001, seconds)]

        samples = take_turns(settings.count(15, 2), ways, waits)
        pair.end()
    begins = [f"{spread([begin[0] for begin, _ in samples[way]]).median:.0f} us" for way in ways]
    notes = [
        f"CPU time of a wait of {seconds:g} s less that of 1 ms, which is {begins[0]}, theirs {begins[1]}; getrusage(2)"
    ]
    rows: list[Row] = []
    for which, name in enumerate(("the waiting thread", "its process, own threads included")):
        ours, theirs = ([max(0.0, whole[which] - begin[which]) for begin, whole in samples[way]] for way in ways)
        rows.append(compare("waiting", f"CPU burnt by {name}", ours, _EVENT, theirs, notes=notes))
    return rows
