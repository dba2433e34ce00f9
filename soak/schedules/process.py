"""What a process of a schedule does: it carries out the world's messages, one at a time; waits run in threads.

As a program: `python -m soak.schedules.process FD` forks such processes, each with the connection that comes by that
socket, so that none has to start Python and import anything. They end as any program does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import xpushare as xs
from soak.common import describe_fds, held
from xpushare.sharing import node

__all__ = ["DEVICES", "Actor"]

DEVICES = {"host": "native_cpu:0", "device": "mock:0", "held": "mock:1"}
_PR_SET_PDEATHSIG = 1


class Actor:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._events: dict[int, xs.Event] = {}
        self._queues: dict[int, xs.Queue] = {}
        self._gates: dict[int, threading.Event | xs.Event] = {}

    def serve(self) -> None:
        while True:
            try:
                name, *arguments = self._connection.recv()
            except (EOFError, ConnectionError):
                return
            if name == "exit":
                return
            try:
                answer = getattr(self, name)(*arguments)
            except (xs.XpuShareError, TimeoutError) as error:
                answer = type(error).__name__
            self._send((None, answer))

    def _send(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)

    def _report(self, token: int, function: Callable[[], object]) -> None:
        """Call, in a thread, and send what came of it."""

        def body() -> None:
            try:
                found = function()
            except (xs.XpuShareError, TimeoutError) as error:
                found = type(error).__name__
            except SystemExit:  # the interpreter ends
                return
            with contextlib.suppress(OSError):
                self._send((token, found))

        threading.Thread(target=body, daemon=True).start()

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

        self._report(token, wait)

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

        self._report(token, synchronize)

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


def _adopted(parent: int) -> None:
    """Wait until the world is this process's parent, and die with it."""
    while os.getppid() != parent:
        time.sleep(0.0002)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _fork_for(ours: socket.socket, world: int) -> Connection | None:
    """Fork for each connection that comes; in the child, the connection. None: nobody asks any more."""
    while True:
        message, fds, _flags, _address = socket.recv_fds(ours, 1, 1)
        if not message:
            return None
        between = os.fork()
        if between == 0:
            if os.fork() == 0:  # its parent ends, and the world inherits it
                ours.close()
                _adopted(world)
                connection = Connection(fds[0])
                connection.send(os.getpid())
                return connection
            os._exit(0)
        os.close(fds[0])
        os.waitpid(between, 0)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["ONEAPI_DEVICE_SELECTOR"] = "native_cpu:*;mock:*"
    connection = _fork_for(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    if connection is not None:
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        Actor(connection).serve()


if __name__ == "__main__":
    _main()
