"""The worker processes of a scenario. They are started with multiprocessing's "spawn" method, and run the functions
that are sent to them.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self

from xpushare.bench.measure import Settings

__all__ = ["Kept", "Worker", "WorkerError", "pin"]

Kept = dict[str, Any]
_PR_SET_PDEATHSIG: Final = 1
_START: Final = 60.0  # seconds for a call, since a busy machine spawns slowly


class WorkerError(RuntimeError):
    """A worker failed, ended, or did not answer in time."""


def _serve(connection: Connection, conductor: int, folder: str, kept: Kept) -> None:
    """The main function of a worker. Runs the functions that it receives until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the conductor ends us
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # if the conductor is killed, no worker remains
    if os.getppid() != conductor:
        return
    os.environ["XPUSHARE_RUNTIME_DIR"] = folder
    os.environ.pop("XPUSHARE_KEY_FILE", None)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            reply = (True, function(kept, *arguments))
        except BaseException:
            reply = (False, traceback.format_exc())
        connection.send(reply)


class Worker:
    """A worker process that runs functions. Each function must be defined at the top level of a module, and receives
    the dict `kept` as its first argument.

    `kept` lives as long as the process. Its first content is passed when the process starts, because multiprocessing's
    locks and queues cannot be sent later.
    """

    def __init__(self, settings: Settings, kept: Mapping[str, Any] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, os.getpid(), settings.folder, dict(kept or {}))
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Send the call `function(kept, *arguments)` to the worker. `result` waits for the answer and returns it."""
        self._connection.send((function, arguments))

    def result(self, timeout: float = _START) -> Any:
        try:
            if not self._connection.poll(timeout):
                raise WorkerError(f"process {self.pid} has not answered within {timeout:g} s")
            good, value = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join(1)
            raise WorkerError(f"process {self.pid} ended, exit status {self._process.exitcode}") from None
        if not good:
            raise WorkerError(f"process {self.pid} failed:\n{value}")
        return value

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float = _START) -> Any:
        self.start(function, *arguments)
        return self.result(timeout)

    def kill(self) -> None:
        """Send SIGKILL to the worker, and wait until it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, signal.SIGKILL)
        self._process.join(10)

    def close(self) -> None:
        """Let the worker exit, and kill it if it does not."""
        self._connection.close()
        self._process.join(10)
        if self._process.exitcode is None:
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()


def pin(kept: Kept, cpus: list[int]) -> None:  # noqa: ARG001
    """Let this process run only on these CPUs. Sleeps briefly, so that the scheduler can move the process."""
    os.sched_setaffinity(0, cpus)
    time.sleep(0.01)
