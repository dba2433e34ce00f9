"""The other processes of a scenario: spawned, told what to run, ended by pid."""

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
_START: Final = 60.0  # seconds for a call; a machine under load spawns slowly


class WorkerError(RuntimeError):
    """A worker failed, ended, or did not answer in time."""


def _serve(connection: Connection, conductor: int, folder: str, kept: Kept) -> None:
    """Main function of a worker: run what it is sent until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the conductor ends us
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # and a killed conductor leaves nobody running
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
    """One process. `kept` is what it is born with (multiprocessing's primitives travel only so) and keeps.

    A function it runs is of a module, and takes `kept` first.
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
        """Have it run `function(kept, *arguments)`; `result` gets the answer."""
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
        """SIGKILL, by pid; returns when it is gone."""
        if self._process.exitcode is None:
            os.kill(self.pid, signal.SIGKILL)
        self._process.join(10)

    def close(self) -> None:
        """Let it end in an orderly way; kill it when it does not."""
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
    """Run on these CPUs only, and let the scheduler act on it."""
    os.sched_setaffinity(0, cpus)
    time.sleep(0.01)
