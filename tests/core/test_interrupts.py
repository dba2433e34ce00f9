"""Ctrl-C at every point of an operation at which CPython delivers one: nothing is left, and it works again."""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peering import PAGE, holdings

import xpushare as xs
from harness import Child, kept, wait_until, withdraw_all
from interrupting import Handler, Interrupt
from xpushare.common.threads import Worker
from xpushare.sharing import node


def memory_handle() -> Any:
    return xs.ipc.memory.get(kept["memory"])


def signal_on_a_queue() -> Any:
    return kept["queue"].signal(kept["event"])


def allocate() -> Any:
    return xs.malloc_device(PAGE, "native_cpu:0")


def setup_memory() -> None:
    kept["memory"] = allocate()


def setup_queue() -> None:
    kept["queue"] = xs.Queue("native_cpu:0")
    kept["event"] = xs.Event("native_cpu:0", enable_ipc=True)


def after_signal(_result: Any) -> None:
    event = kept["event"]
    event.wait(10)  # also for what an interrupted call has submitted
    assert event.done


def queue_and_work() -> Any:
    queue = xs.Queue("native_cpu:0")
    queue.submit(int)
    return queue


def nothing() -> None:
    pass


def publish() -> None:
    xs.publish("interrupts", kept["memory"])


Case = tuple[Callable[[], None], Callable[[], Any], Callable[[Any], Any]]
CASES: dict[str, Case] = {
    "allocate": (nothing, allocate, lambda memory: memory.close()),
    "first get": (setup_memory, memory_handle, xs.ipc.memory.put),
    "open": (nothing, lambda: xs.ipc.memory.open(kept["theirs"]), lambda memory: memory.close()),
    "share": (nothing, lambda: xs.share(np.zeros(10), copy=True), lambda handle: handle.close()),
    "attach": (nothing, lambda: xs.attach(kept["array"]), lambda array: array.close()),
    "attach counted": (nothing, lambda: xs.attach(kept["counted"]), lambda array: array.close()),
    "event": (nothing, lambda: xs.Event("native_cpu:0", enable_ipc=True), lambda event: event.close()),
    "open event": (nothing, lambda: xs.ipc.event.open(kept["theirs' event"]), lambda event: event.close()),
    "queue": (nothing, queue_and_work, lambda queue: (queue.synchronize(10), queue.close())),
    "signal": (setup_queue, signal_on_a_queue, after_signal),
    "publish": (setup_memory, publish, lambda _none: xs.unpublish("interrupts")),
}  # fmt: skip

# What `make test` runs: operations with few points, and the distance of those that are tried.
SHORT = {"first get": 18, "signal": 3, "open": 18}


def left_over() -> dict[str, Any]:
    """What is left once everything that can be ended has been."""
    for key in ("memory", "queue", "event"):
        kept.pop(key, None)
    gc.collect()
    withdraw_all()  # also what the interrupt took on its way to the caller
    gc.collect()
    found = holdings()
    table = node.current().table_if_any
    del found["peers"]  # an exporter that was met stays known
    found["fds"] = [name for name in found["fds"] if "pidfd" not in name]
    found["slots"] = table.domain.new_slot() if table is not None else 0
    return found


def in_child(case: Case, nth: int, reference: dict[str, Any] | None) -> tuple[bool, Any]:
    """In a process that has shared nothing so far: whether the interrupt came, and what was left, or went wrong."""
    import pickle

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        gc.freeze()  # the child collects what is its own
        with contextlib.suppress(BaseException), open(writing, "wb") as report:
            interrupted, answer = True, None
            try:
                unraisable: list[str] = []
                sys.unraisablehook = lambda what: (
                    None
                    if isinstance(what.exc_value, KeyboardInterrupt)
                    else unraisable.append(f"{what.exc_value!r} in {what.object}")
                )
                setup, operation, undo = case
                setup()
                if nth:
                    interrupt = Interrupt(nth)
                    sys.setprofile(interrupt)
                    done = False
                    try:
                        result = operation()
                        done = True
                    except KeyboardInterrupt:
                        result = None
                    finally:
                        sys.setprofile(None)
                    gc.collect()
                    if done:
                        undo(result)
                    result = None
                    with contextlib.suppress(xs.InvalidArgumentError):
                        xs.unpublish("interrupts")  # the interrupt came when it was published
                    interrupted = interrupt.left <= 0  # an interrupt may also end in a generator that is dropped
                worked: list[Any] = []
                for _ in range(2):
                    thread = threading.Thread(target=lambda: worked.append(operation()))  # no lock is left held
                    thread.start()
                    thread.join(10)
                    assert worked, "the next one hangs, or fails"
                    undo(worked.pop())
                answer = left_over() | {"unraisable": unraisable}
            except BaseException:
                answer = traceback.format_exc()
            pickle.dump((interrupted, answer), report)
            status = 0
        os._exit(status)
    os.close(writing)
    with open(reading, "rb") as report:
        interrupted, answer = pickle.load(report)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    if reference is not None and answer != reference:
        raise AssertionError(f"interrupted at point {nth}: {answer}\nwithout: {reference}")
    return interrupted, answer


def at_points(name: str, step: int) -> int:
    """In a process that forks quickly, having little memory: interrupt the operation at its points, the first and
    every `step`-th after it. Returns how many points it has.
    """
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: of a fork with threads
    for what in ("<ArrayHandle", "scandir"):  # an interrupt kept it from its caller; its finaliser closes it
        warnings.filterwarnings("ignore", f"unclosed {what}", ResourceWarning)
    memory, event = allocate(), xs.Event("native_cpu:0", enable_ipc=True)
    kept["theirs"] = xs.ipc.memory.get(memory)
    kept["theirs' event"] = xs.ipc.event.get(event)
    kept["array"], kept["counted"] = xs.share(np.arange(3), copy=True), xs.share(np.zeros(10), copy=True, opens=3)
    gc.collect()
    case = CASES[name]
    _, reference = in_child(case, 0, None)
    assert isinstance(reference, dict), reference
    for nth in range(1, 2000, step):
        if name == "attach counted":
            kept["counted"].close()
            kept["counted"] = xs.share(np.zeros(10), copy=True, opens=3)
        interrupted, _ = in_child(case, nth, reference)
        if not interrupted:
            kept["counted"].close()
            kept["array"].close()
            return nth - 1
    raise AssertionError("it never ends")


@pytest.mark.timeout(900)  # some hundred processes
@pytest.mark.parametrize(
    ("name", "step"),
    [
        *SHORT.items(),
        *(pytest.param(each, 1, marks=pytest.mark.exhaustive) for each in CASES if SHORT.get(each) != 1),
    ],
)
def test_an_interrupt_leaves_nothing_and_breaks_nothing(name: str, step: int) -> None:
    with Child(timeout=850) as child:
        assert child.call(at_points, name, step) >= 3


def test_a_handler_that_starts_a_worker_starts_no_second_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads of one queue would run its operations out of order."""
    started: list[int] = []

    def start(*arguments: Any) -> int:
        started.append(start_new_thread(*arguments))
        return started[-1]

    start_new_thread = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", start)
    nth, handler = 0, Handler(0, int)
    while handler.left <= 0:
        nth += 1
        started.clear()
        over = threading.Event()
        worker = Worker("worker")
        handler = Handler(nth, lambda worker=worker, over=over: worker.start(over.wait))
        sys.setprofile(handler)
        worker.start(over.wait)
        sys.setprofile(None)
        assert len(started) == 1, f"a handler at point {nth} has another thread started"
        over.set()
        wait_until(lambda worker=worker: not worker.alive())
        worker.start(int)  # it can be started again
        assert len(started) == 2


def test_a_handler_queues_where_it_interrupted_queueing() -> None:
    def work(name: str) -> None:
        queue.fill(memories[name], name.encode())
        queue.signal(events[name])

    def interrupted(handler: Handler) -> None:
        sys.setprofile(handler)
        work("m")
        sys.setprofile(None)

    nth, handler = 0, Handler(0, int)
    while handler.left <= 0:
        nth += 1
        queue = xs.Queue("native_cpu:0")
        memories = {name: xs.malloc_host(8, "native_cpu:0") for name in "mh"}
        events = {name: xs.Event("native_cpu:0") for name in "mh"}
        handler = Handler(nth, lambda: work("h"))
        thread = threading.Thread(target=interrupted, args=(handler,), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), f"the handler waits for what it interrupted at point {nth}"
        queue.synchronize(30)
        for name in "mh" if handler.left <= 0 else "m":
            assert events[name].done
            assert bytes(memories[name].as_array(8, "u1")) == name.encode() * 8
        queue.close()
    assert nth > 20
