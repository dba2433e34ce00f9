"""What a process of a schedule does: it carries out the world's messages, one at a time; waits run in threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import struct
import threading
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

import xpushare as xs
from soak.common import describe_held, held
from soak.forked import Served
from xpushare.sharing import node

__all__ = ["PROCESSES", "READS", "Actor"]

PROCESSES: Final = 6
READS: Final = 4  # of a queue, at a time
_CELL: Final = 1 << 16  # bytes of a board that one process writes
_BOARD: Final = PROCESSES * _CELL


def _told(function: Callable[[], Any]) -> Any:
    """The result, or the name of the error."""
    try:
        return function()
    except (xs.XpuShareError, TimeoutError) as error:
        return type(error).__name__


class _Copying:
    """A queue, and what it copies from and to."""

    def __init__(self, device: str) -> None:
        self.queue = xs.Queue(device)
        self._source = xs.malloc_device(_CELL, device)
        self._landing = xs.malloc_host(READS * _BOARD, device)
        self.landed = xs.Event(device)

    def write(self, board: xs.Memory, cell: int, stamp: int) -> None:
        self.queue.fill(self._source, struct.pack("=I", stamp))
        self.queue.copy(board.slice(cell * _CELL, _CELL), self._source)

    def read(self, board: xs.Memory, place: int) -> int:
        """The point of `landed` at which `found` tells what was there."""
        self.queue.copy(self._landing.slice(place * _BOARD, _BOARD), board)
        return self.queue.signal(self.landed)

    def found(self, place: int) -> list[tuple[int, int]]:
        """The smallest and the largest stamp in each cell."""
        cells = np.frombuffer(memoryview(self._landing), np.uint32).reshape(READS, PROCESSES, -1)[place]
        return [(int(cell.min()), int(cell.max())) for cell in cells]


class Actor(Served):
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._events: dict[int, xs.Event] = {}  # by object
        self._boards: dict[int, xs.Memory] = {}  # by event
        self._exported: list[xs.ipc.Handle] = []
        self._queues: dict[int, _Copying] = {}
        self._gates: dict[int, threading.Event | xs.Event] = {}

    def answer(self, name: str, arguments: list[Any]) -> Any:
        return _told(lambda: super(Actor, self).answer(name, arguments))

    # --- events -------------------------------------------------------------------------------------------

    def create(self, number: int, event: int, name: str, device: str, signals: bool | None) -> tuple[bytes, bytes]:
        """The handles of the event and of its board."""
        made = self._events[number] = xs.Event(device, enable_ipc=True, signals=signals)
        board = self._boards[event] = xs.malloc_device(_BOARD, device)
        with xs.Queue(device) as queue:
            queue.fill(board, b"\0")
            queue.synchronize()
        self._exported.append(xs.ipc.memory.get(board))
        xs.publish(name, made)
        return bytes(xs.published()[name]), bytes(self._exported[-1])

    def open(self, number: int, event: int, name: str, device: str, signals: bool | None, board: bytes) -> bytes:
        handle = xs.lookup(name, timeout=1)
        assert isinstance(handle, xs.ipc.Handle)
        if event not in self._boards:
            self._boards[event] = xs.ipc.memory.open(board)
        self._events[number] = xs.ipc.event.open(handle, device=device, signals=signals)
        return bytes(handle)

    def close(self, number: int, event: int, last: bool) -> None:
        """`last`: of the event."""
        self._events.pop(number).close()
        if last:
            self._boards.pop(event).close()

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

    def outcome(self, point: int, number: int | None, queue: int) -> str:
        """What has become of a point of an event, or of what a queue signals after each read."""
        event = self._queues[queue].landed if number is None else self._events[number]
        found = _told(lambda: event.wait(1, at_least=point))
        return {None: "done", "PeerLostError": "lost"}.get(found, str(found))

    def observe(self) -> dict[int, tuple[int, int]]:
        return {number: (event.pending, event.value) for number, event in self._events.items()}

    # --- queues -------------------------------------------------------------------------------------------

    def queue(self, number: int, device: str) -> None:
        self._queues[number] = _Copying(device)

    def queue_wait(self, queue: int, number: int, point: int) -> None:
        self._queues[queue].queue.wait(self._events[number], at_least=point)

    def queue_signal(self, queue: int, number: int) -> int:
        return self._queues[queue].queue.signal(self._events[number])

    def write(self, queue: int, event: int, cell: int, stamp: int) -> None:
        self._queues[queue].write(self._boards[event], cell, stamp)

    def read(self, token: int, queue: int, event: int, place: int) -> None:
        found = self._queues[queue]
        point = found.read(self._boards[event], place)

        def read() -> list[tuple[int, int]]:
            found.landed.wait(at_least=point)
            return found.found(place)

        self.report(token, lambda: _told(read))

    def gate(self, queue: int, number: int) -> None:
        found = self._queues[queue].queue
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
        found = self._queues[queue].queue

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

    def warm_up(self, devices: Iterable[str]) -> dict[str, int]:
        """Open for good what a process opens once; what it has then."""
        with xs.Event("native_cpu:0", enable_ipc=True) as event:
            xs.ipc.event.put(xs.ipc.event.get(event))
            with contextlib.suppress(TimeoutError):
                event.wait(0, at_least=1)
            with contextlib.suppress(TimeoutError):
                asyncio.run(asyncio.wait_for(event.reached(1), 0.001))
            for device in devices:
                copying = _Copying(device)
                with xs.malloc_device(_BOARD, device) as board:
                    self._exported.append(xs.ipc.memory.get(board))
                    copying.queue.wait(event)
                    copying.write(board, 0, 1)
                    copying.read(board, 0)
                    copying.queue.signal(event)
                    copying.queue.synchronize()
        del copying
        return self.holds()

    def holds(self) -> dict[str, int]:
        """With nothing open: what is left."""
        for handle in self._exported:
            xs.ipc.memory.put(handle)
        for kept in (self._events, self._boards, self._exported, self._queues, self._gates):
            kept.clear()
        for name in xs.published():
            with contextlib.suppress(xs.XpuShareError):
                xs.unpublish(name)
        gc.collect()
        node.current().peers.sweep()
        xs.trim()
        found = held()
        queues = sum(thread.name.startswith("xpushare-queue") for thread in threading.enumerate())
        return {"fds": found.fds - self._of_drivers(), "mappings": found.shared, "queues": queues}

    @staticmethod
    def _of_drivers() -> int:
        """Files of a driver, which opens some for good whenever it needs them."""
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found += os.readlink(f"/proc/self/fd/{name}").startswith(("/dev/nvidia", "/dev/dri"))
        return found

    def describe(self) -> str:
        return describe_held()
