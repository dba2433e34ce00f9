"""The worker processes of a scenario. They run the functions that are sent to them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from xpushare.bench.measure import Settings
from xpushare.conformance import harness
from xpushare.conformance.harness import Child, Pending

__all__ = ["Kept", "Worker", "pin"]

Kept = dict[str, Any]


def _serve(connection: Connection, conductor: int, folder: str, kept: Kept) -> None:
    """The main function of a worker. Runs the functions that it receives until the connection ends."""
    harness.ignore_interrupts()
    harness.die_with(conductor)
    os.environ["XPUSHARE_RUNTIME_DIR"] = folder
    os.environ.pop("XPUSHARE_KEY_FILE", None)
    harness.kept.update(kept)
    harness.serve(connection, pickle.loads)  # `__main__` is the same module here: multiprocessing imports it


def _with_kept(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(harness.kept, *arguments)


class Worker(Child):
    """A worker process that runs functions. Each function must be defined at the top level of a module, and receives
    the dict `kept` as its first argument.

    `kept` lives as long as the process. Its first content is passed when the process starts, by multiprocessing's
    "spawn" method, because multiprocessing's locks and queues cannot be sent later.
    """

    def __init__(self, settings: Settings, kept: Mapping[str, Any] | None = None) -> None:
        self._given = (settings.folder, dict(kept or {}))
        super().__init__(method="fork", timeout=60.0)  # a busy machine spawns slowly

    def _fork(self, here: Connection, there: Connection) -> tuple[int, Callable[[], int | None]]:  # noqa: ARG002
        arguments = (there, os.getpid(), *self._given)
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
        process.start()
        assert process.pid is not None
        return process.pid, lambda: process.exitcode

    def start(self, function: Callable[..., Any], *arguments: Any) -> Pending:
        """Send the call `function(kept, *arguments)` to the worker, which runs it after all earlier calls."""
        return super().start(_with_kept, function, arguments)


def pin(kept: Kept, cpus: list[int]) -> None:  # noqa: ARG001
    """Let this process run only on these CPUs. Sleeps briefly, so that the scheduler can move the process."""
    os.sched_setaffinity(0, cpus)
    time.sleep(0.01)
