"""What a process of a schedule does: it carries out the world's messages, one at a time; waits run in threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import xpushare as xs
from soak.common import describe_fds, held
from soak.forked import Served
from xpushare.sharing import node

__all__ = ["DEVICES", "Actor"]

DEVICES = {"host": "native_cpu:0", "device": "mock:0", "held": "mock:1"}


def _told(function: Callable[[], Any]) -> Any:
    """The result, or the name of the error."""
    try:
        return function()
    except (xs.XpuShareError, TimeoutError) as error:
        return type(error).__name__


class Actor(Served):
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._events: dict[int, xs.Event] = {}
        self._queues: dict[int, xs.Queue] = {}
        self._gates: dict[int, threading.Event | xs.Event] = {}

    def answer(self, name: str, arguments: list[Any]) -> Any:
        return _told(lambda: super(Actor, self).answer(name, arguments))

    # --- events -------------------------------------------------------------------------------------------

    def create(self, number: int, name: str, device: str, signals: bool | None) -> bytes:
        event = self._events[number] = xs.Event(device, enable_ipc=True, signals=signals)
        xs.publish(name, event)
        return bytes(xs.published()[name])

    def open(self, number: int, name: str, device: str, signals: bool | None) -> bytes:
        handle = xs.lookup(name, timeout=1)
        assert isinstance(handle, xs.ipc.Handle)
        self._events[number] = xs.ipc.event.open(handle, device=device, signals=signals)
        return bytes(handle)

    def close(self, number: int) -> None:
        self._events.pop(number).close()

    def signal(self, number: int) -> int:
        return self._events[number].signal()

    def wait(self, token: int, number: int, point: int, how: str) -> None:
        event = self._events[number]

        def wait() -> str:
            if how == "await":
                asyncio.run(event.reached(point))
            else:
                event.wait(at_least=point)
            return "done"

        self.report(token, lambda: _told(wait))

    def observe(self) -> dict[int, tuple[int, int]]:
        return {number: (event.pending, event.value) for number, event in self._events.items()}

    # --- queues -------------------------------------------------------------------------------------------

    def queue(self, number: int, kind: str) -> None:
        self._queues[number] = xs.Queue(DEVICES[kind])

    def queue_wait(self, queue: int, number: int, point: int) -> None:
        self._queues[queue].wait(self._events[number], at_least=point)

    def queue_signal(self, queue: int, number: int) -> int:
        return self._queues[queue].signal(self._events[number])

    def gate(self, queue: int, number: int) -> None:
        found = self._queues[queue]
        if found.device.backend == "native_cpu":
            gate = self._gates[number] = threading.Event()
            found.submit(gate.wait)
        else:  # an event of this process alone
            event = self._gates[number] = xs.Event(found.device)
            found.wait(event, at_least=1)

    def release(self, number: int) -> None:
        gate = self._gates[number]
        if isinstance(gate, xs.Event):
            gate.signal()
        else:
            gate.set()

    def synchronize(self, token: int, queue: int) -> None:
        """Until it raises no loss any more; the answer is how many it raised."""
        found = self._queues[queue]

        def synchronize() -> int:
            losses = 0
            while True:
                try:
                    found.synchronize()
                except xs.PeerLostError:
                    losses += 1
                else:
                    return losses

        self.report(token, lambda: _told(synchronize))

    # --- the end ------------------------------------------------------------------------------------------

    def warm_up(self) -> dict[str, int]:
        """Open for good what a process opens once; what it has then."""
        with xs.Event("native_cpu:0", enable_ipc=True) as event:
            xs.ipc.event.put(xs.ipc.event.get(event))
            with contextlib.suppress(TimeoutError):
                event.wait(0, at_least=1)
            with contextlib.suppress(TimeoutError):
                asyncio.run(asyncio.wait_for(event.reached(1), 0.001))
            for kind in DEVICES.values():
                with xs.Queue(kind) as queue:
                    queue.wait(event)
                    queue.signal(event)
                    queue.synchronize()
        return self.holds()

    def holds(self) -> dict[str, int]:
        """With nothing open: what is left."""
        self._events.clear()
        self._queues.clear()
        self._gates.clear()
        for name in xs.published():
            with contextlib.suppress(xs.XpuShareError):
                xs.unpublish(name)
        gc.collect()
        node.current().peers.sweep()
        found = held()
        queues = sum(thread.name.startswith("xpushare-queue") for thread in threading.enumerate())
        return {"fds": found.fds, "mappings": found.shared, "queues": queues}

    def describe(self) -> str:
        return describe_fds()
