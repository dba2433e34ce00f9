"""An honest process: it shares, opens, signals, waits. Every call is timed, and may raise only the package's errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import xpushare as xs
from soak.common import describe_held, held
from soak.forked import Served
from xpushare.sharing import node

__all__ = ["Victim"]

_SOON = 1.0  # seconds that a call may take beyond what it was told to wait
_SOCKET = 4.0  # more: two answers of an exporter's socket
_KINDS = ("native_cpu:0", "mock:0", "mock:1")


class Victim(Served):
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._random = random.Random(0)
        self._events: list[xs.Event] = []
        self._own: list[Any] = []
        self._handles: list[xs.ipc.Handle] = []
        self._control: xs.Event | None = None
        self._others: list[tuple[str, bytes]] = []
        self._base = (0, 0)
        self._stop = False

    def set_up(self) -> list[tuple[str, bytes]]:
        """Share some of everything; what others may open."""
        with xs.Event("native_cpu:0", enable_ipc=True) as event:  # what is opened once
            xs.ipc.event.put(xs.ipc.event.get(event))
            with contextlib.suppress(TimeoutError):
                asyncio.run(asyncio.wait_for(event.reached(1), 0.001))
            for kind in _KINDS:
                with xs.Queue(kind) as queue:
                    queue.signal(event)
                    queue.synchronize()
        self._base = self._held()
        self._events = [xs.Event("native_cpu:0", enable_ipc=True) for _ in range(4)]
        memory, numbers = xs.malloc_device(1 << 16, "native_cpu:0"), xs.empty(1000)
        shared = xs.share(numbers)
        self._own = [memory, numbers, shared]
        self._handles = [xs.ipc.memory.get(memory), *map(xs.ipc.event.get, self._events)]
        return [*((handle.kind, bytes(handle)) for handle in self._handles), ("array", bytes(shared))]

    def meet(self, handles: list[tuple[str, bytes]]) -> None:
        self._others += handles

    def adopt(self, handles: list[tuple[str, bytes]]) -> None:
        """Work with the events of another victim."""
        self._events = [xs.ipc.event.open(raw) for kind, raw in handles if kind == "event"]

    # --- working ------------------------------------------------------------------------------------------

    def work(self, token: int, seconds: float, seed: int, queues: bool) -> None:
        """Answers with (how often what came of which call, what took too long, what was raised that may not be)."""
        self._random.seed(seed)
        self._stop = False
        outcomes: Counter[str] = Counter()
        slow: list[tuple[str, float, float, float]] = []
        wrong: list[str] = []

        def call(name: str, function: Callable[[], Any], most: float = _SOON) -> Any:
            begin = time.monotonic()
            try:
                found, outcome = function(), "done"
            except (xs.XpuShareError, TimeoutError, BufferError) as error:
                found, outcome = None, type(error).__name__
            except Exception:
                found, outcome = None, "wrong"
                wrong.append(f"{name}: {traceback.format_exc()}")
            took = time.monotonic() - begin
            outcomes[f"{name}: {outcome}"] += 1
            if took > most:
                slow.append((f"{name} ({outcome})", begin, took, most))
            return found

        works = [self._signal, self._wait, self._wait, self._await, self._memory, self._names, self._look, self._open]
        works += [self._members, self._ranges, self._owned]
        if queues:
            works += [self._queue, self._queue]

        def work() -> Any:
            end = time.monotonic() + seconds
            while time.monotonic() < end and not self._stop:
                self._random.choice(works)(call)
            return dict(outcomes), slow, wrong

        self.report(token, work)

    def _event(self) -> xs.Event:
        return self._random.choice(self._events)

    def _signal(self, call: Callable[..., Any]) -> None:
        event = self._event()
        call("signal", event.signal)
        call("done", lambda: event.done)
        call("value", lambda: (event.value, event.pending, repr(event)))
        call("statistics", event.statistics)

    def _point(self, event: xs.Event) -> int:
        return min(event.pending + self._random.randrange(3), (1 << 43) - 1)

    def _wait(self, call: Callable[..., Any]) -> None:
        event = self._event()
        call("wait", lambda: event.wait(0.05, at_least=self._point(event)), _SOON + 0.05)

    def _await(self, call: Callable[..., Any]) -> None:
        event = self._event()
        call("await", lambda: asyncio.run(asyncio.wait_for(event.reached(self._point(event)), 0.05)), _SOON + 0.05)

    def _queue(self, call: Callable[..., Any]) -> None:
        event = self._event()
        queue = call("Queue", lambda: xs.Queue(self._random.choice(_KINDS)))
        if queue is None:
            return
        if self._random.random() < 0.5:
            call("queue.wait", lambda: queue.wait(event, at_least=self._point(event)))
        call("queue.signal", lambda: queue.signal(self._event()))
        call("synchronize", lambda: queue.synchronize(0.05), _SOON + 0.05)
        call("queue.close", queue.close)

    def _memory(self, call: Callable[..., Any]) -> None:
        memory = call("malloc", lambda: xs.malloc_device(4096, "native_cpu:0"))
        handle = call("get", lambda: xs.ipc.memory.get(memory))
        if handle is not None:
            call("put", lambda: xs.ipc.memory.put(handle))
        call("close", memory.close)
        event = call("Event", lambda: xs.Event("native_cpu:0", enable_ipc=True))
        if event is not None:
            raw = call("event.get", lambda: xs.ipc.event.get(event))
            if raw is not None:
                call("event.put", lambda: xs.ipc.event.put(raw))
            call("event.close", event.close)

    def _names(self, call: Callable[..., Any]) -> None:
        name = self._random.choice(("one", "two", "three"))
        call("publish", lambda: xs.publish(name, self._own[0]), 2 * _SOON + 0.2)
        call("lookup", lambda: xs.lookup(name, timeout=0.05), _SOON + 0.05)
        call("published", xs.published)
        if name in self._published():
            call("unpublish", lambda: xs.unpublish(name))

    def _published(self) -> set[str]:
        from xpushare.sharing import naming

        return set(naming.names)

    def _look(self, call: Callable[..., Any]) -> None:
        call("shares", xs.shares, _SOCKET)
        call("memory.statistics", lambda: self._own[0].statistics())

    def _open(self, call: Callable[..., Any]) -> None:
        if not self._others:
            return
        kind, raw = self._random.choice(self._others)

        def use() -> None:
            if kind == "array":
                opened = xs.attach(raw)
                bytes(memoryview(opened))[:10]
                opened.close()
                return
            found: Any = getattr(xs.ipc, kind).open(raw)
            if kind == "memory":
                with memoryview(found) as view:
                    bytes(view[-10:])
            elif kind == "event":
                found.signal()
                with contextlib.suppress(xs.PeerLostError):
                    found.wait(0.05, at_least=found.pending + 1)
            found.close()

        call(f"open {kind}", use, _SOON + _SOCKET)

    def _members(self, call: Callable[..., Any]) -> None:
        """Locks, atomics and channels that the attacker has open, too, and some of its own."""
        name = self._random.choice((None, "hostile"))
        lock = call("Lock", lambda: xs.Lock(name), 2 * _SOON)
        if lock is not None:
            if call("acquire", lambda: lock.acquire(timeout=0.05), _SOON + 0.05) is not None:
                call("release", lock.release)
            call("lock.close", lock.close)
        number = call("Atomic", lambda: xs.Atomic(0, name), 2 * _SOON)
        if number is not None:
            call("add", lambda: number.add(1))
            call("atomic.wait", lambda: number.wait(number.load(), 0.02), _SOON + 0.05)
            call("atomic.close", number.close)
        channel = call("Channel.create", lambda: xs.Channel.create(name, 16, "uint8", on_full="overwrite"), 2 * _SOON)
        if channel is not None:
            reader = call("Channel.open", lambda: xs.Channel.open(channel.handle, timeout=1.0), _SOON + 1.0)
            call("send", lambda: channel.send(bytes(16), timeout=0.05), _SOON + 0.05)
            if reader is not None:
                frame = call("receive", lambda: reader.receive(0.05), _SOON + 0.05)
                if frame is not None:
                    call("frame.close", frame.close)
                call("reader.close", reader.close)
            call("channel.close", channel.close)

    def _ranges(self, call: Callable[..., Any]) -> None:
        granule = xs.Device("native_cpu:0").memory_granularity()
        grown = call("VirtualRange", lambda: xs.VirtualRange(16 * granule, "native_cpu:0", growable=True))
        call("grow", lambda: grown.grow(granule))
        handle = call("share a range", lambda: xs.share(grown))
        follower = call("follow", lambda: xs.attach(handle), _SOON + _SOCKET)
        call("shrink", lambda: grown.shrink(granule))
        if follower is not None:
            call("refresh", follower.refresh, _SOON + _SOCKET)
            call("follower.close", follower.close)
        call("handle.close", handle.close)
        call("range.close", grown.close)

    def _owned(self, call: Callable[..., Any]) -> None:
        arrays = [raw for kind, raw in self._others if kind == "array"]
        if arrays:
            raw = self._random.choice(arrays)
            owned = call("attach(own=True)", lambda: xs.attach(raw, own=True), _SOON + _SOCKET)
            if owned is not None:
                again = call("share an owned one", lambda: xs.share(owned))
                if again is not None:
                    call("close a handle", again.close)
                call("close an owned one", owned.close)

    # --- among the honest ---------------------------------------------------------------------------------

    def control(self) -> bytes:
        """An event that the attacker never opens."""
        self._control = xs.Event("native_cpu:0", enable_ipc=True)
        self._handles.append(xs.ipc.event.get(self._control))
        return bytes(self._handles[-1])

    def join(self, raw: bytes) -> None:
        self._control = xs.ipc.event.open(raw)

    def play(self, token: int, times: int, first: bool) -> None:
        event = self._control
        assert event is not None

        def play() -> str:
            start = event.value
            try:
                for number in range(times):
                    if first:
                        event.signal()
                        event.wait(5, at_least=start + 2 * number + 2)
                    else:
                        event.wait(5, at_least=start + 2 * number + 1)
                        event.signal()
            except (xs.XpuShareError, TimeoutError) as error:
                return repr(error)
            return "done"

        self.report(token, play)

    # --- what is left -------------------------------------------------------------------------------------

    def busy(self) -> float:
        """Seconds of CPU so far."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def _held(self) -> tuple[int, int]:
        gc.collect()
        xs.trim()  # kept for later arrays; what an array still lies in stays, and counts
        peers = node.current().peers
        peers.sweep()
        known = peers.statistics()["peers"]  # each keeps a table, a commons, a bell and a pidfd
        found = held()
        return found.fds - 4 * known, found.shared - 2 * known

    def left(self) -> tuple[tuple[int, int], tuple[int, int], str]:
        """With everything closed: what it holds, what it held at first, its fds."""
        for name in self._published():
            with contextlib.suppress(xs.XpuShareError):
                xs.unpublish(name)
        for each in (*self._events, *self._own, self._control):
            if hasattr(each, "close"):
                each.close()
        self._events, self._own, self._control, self._others = [], [], None, []
        for handle in self._handles:
            getattr(xs.ipc, handle.kind).put(handle)
        self._handles.clear()
        return self._held(), self._base, describe_held()
