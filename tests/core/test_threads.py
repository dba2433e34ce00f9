"""Threads of ours that run Python: those that cannot be had, that end as they begin, and whose start is interrupted."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import pytest

import xpushare as xs
from harness import wait_until
from xpushare._native import Imports
from xpushare.common.threads import Worker, name_here


def _ends_as_it_begins(_work: Callable[..., object], _arguments: tuple[Any, ...]) -> int:
    """What becomes of a thread that finds no memory for its first call: it drops what it was given."""
    return 1


def _none_to_be_had(_work: Callable[..., object], _arguments: tuple[Any, ...]) -> int:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("start", [_ends_as_it_begins, _none_to_be_had])
@pytest.mark.parametrize("operation", ["submit", "signal", "fill", "wait"])
def test_a_queue_whose_thread_cannot_be_had(
    operation: str, start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error, no hang; and the next operation tries again."""
    event, memory = xs.Event("native_cpu:0"), xs.malloc_host(8, "native_cpu:0")
    with xs.Queue("native_cpu:0") as queue:
        operations: dict[str, Callable[[], Any]] = {
            "submit": lambda: queue.submit(int),
            "signal": lambda: queue.signal(event),
            "fill": lambda: queue.fill(memory, b"x"),
            "wait": lambda: queue.wait(event, at_least=1),
        }
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", start)
            with pytest.raises(xs.OutOfMemoryError, match="thread"):
                operations[operation]()
        assert event.pending == 0
        queue.synchronize(10)  # nothing was queued
        operations[operation]()
        if operation == "wait":
            event.signal()
        queue.synchronize(10)


def test_an_interrupted_start_is_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread runs, whatever became of the caller; there is never a second one."""
    started: list[int] = []
    real = _thread.start_new_thread

    def interrupted(work: Callable[..., object], arguments: tuple[Any, ...]) -> int:
        started.append(real(work, arguments))
        raise KeyboardInterrupt

    with xs.Queue("native_cpu:0") as queue:
        monkeypatch.setattr(_thread, "start_new_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.submit(int)
        ran: list[str] = []
        for _ in range(3):
            queue.submit(lambda: ran.append(name_here()))
        queue.synchronize(10)
        assert len(started) == 1
        assert len(set(ran)) == 1
        assert len(ran) == 3
        assert ran[0].startswith("xpushare-queue-")


def test_a_worker_runs_again_after_its_end() -> None:
    worker, ran = Worker("again"), threading.Semaphore(0)
    for _ in range(3):
        worker.start(ran.release)
        assert ran.acquire(timeout=10)
        wait_until(lambda: not worker.alive())


def test_shares_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is interrupted, or called by the handler of a signal while it runs, would wait for threads for ever."""

    def none_to_be_had(*_arguments: object) -> None:
        raise AssertionError("shares() started a thread")

    with xs.empty(4) as array, xs.share(array):
        monkeypatch.setattr(_thread, "start_new_thread", none_to_be_had)
        monkeypatch.setattr(threading.Thread, "start", none_to_be_had)
        assert xs.shares()


def test_what_died_is_forgotten_and_nothing_newer() -> None:
    imports = Imports()

    class Thing:
        pass

    thing, newer = Thing(), Thing()
    assert imports.add("key", thing) is thing
    assert imports.add("key", newer) is thing, "the first one stays"
    imports.forget("key")
    assert imports.get("key") is thing, "it lives"
    assert imports.objects() == [thing]
    del thing
    assert (imports.get("key"), imports.objects()) == (None, [])
    assert imports.add("key", newer) is newer
    imports.forget("key")
    imports.forget("other")
    assert imports.get("key") is newer
