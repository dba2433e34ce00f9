"""Processes that end: what `test_leaving.py` starts. `python -c "import leaving_peer; leaving_peer.main()" HOW WHAT …`
runs one of the functions below in a process that is made as HOW says, and ends with its exit status.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from typing import Any

import xpushare as xs
from xpushare.common.leaving import Stage, at_leave

HOWS = ("script", "os.fork", "spawn", "fork", "forkserver")
kept: list[Any] = []


def say(*what: object) -> None:
    """At one go, since several processes have this stdout."""
    os.write(1, (" ".join(map(str, what)) + "\n").encode())


def say_leaving() -> None:
    """Say so when the process begins to leave: nothing but this package's own exit comes later."""
    at_leave(lambda _deadline: say("leaving", os.getpid()), Stage.WITHDRAW)


def work(device: str, gate: str, memory: str, event: str) -> None:
    """The last lines queue work that begins once the gate's point, which is submitted, has come."""
    begin, end = xs.ipc.event.open(gate), xs.ipc.event.open(event)
    out, source = xs.ipc.memory.open(memory), xs.malloc_host(1 << 20, device)
    memoryview(source)[:] = b"\x2a" * source.nbytes
    queue = xs.Queue(device)
    say_leaving()
    queue.wait(begin, at_least=1)
    for _ in range(20):
        queue.copy(out, source)
    queue.signal(end)
    queue.close()  # this is not a `synchronize`


def work_and_status(device: str, gate: str, memory: str, event: str) -> None:
    work(device, gate, memory, event)
    sys.exit(3)


def stuck(device: str, event: str) -> None:
    """What comes before a wait for a point that nobody has submitted is done; what comes after cannot be."""
    end, other, middle = xs.ipc.event.open(event), xs.Event(device), xs.Event(device)
    first, second = xs.Queue(device), xs.Queue(device)
    source, target = xs.malloc_host(64 << 20, device), xs.malloc_host(64 << 20, device)
    for _ in range(8):
        first.copy(target, source)
    first.signal(end)
    first.wait(other, at_least=7)
    first.signal(middle)
    second.wait(middle)  # it is submitted, but behind what never comes
    second.copy(target, source)
    second.signal(middle)


def queued_last(results: Any, arrived: str) -> None:
    """The last line puts an array into a queue of multiprocessing."""
    opened = xs.ipc.event.open(arrived)

    def linger(deadline: float) -> None:
        say("feeders", sum(thread.name == "QueueFeederThread" for thread in threading.enumerate()))
        opened.wait(deadline - time.monotonic(), at_least=1)

    at_leave(linger, Stage.LINGER)
    array = xs.array(range(1000))
    kept.append(array)
    results.put(array)


def receive(how: str) -> None:
    context = multiprocessing.get_context(how)
    results, arrived = context.Queue(), xs.Event("native_cpu:0", enable_ipc=True)
    child = context.Process(target=queued_last, args=(results, str(xs.ipc.event.get(arrived))))
    child.start()
    array = results.get(timeout=30)
    say("sum", int(memoryview(array.memory).cast("q")[999]))  # it was opened
    arrived.signal()
    child.join(30)
    say("status", child.exitcode)


def calls_after_leaving(device: str) -> None:
    """Every call in an atexit function that was registered before anything was shared."""
    import asyncio
    import pickle

    calls: dict[str, Any] = {}

    def late() -> None:
        for name, call in calls.items():
            try:
                call()
            except (xs.XpuShareError, TimeoutError):
                pass
            except BaseException as error:
                say("raw", name, type(error).__name__, error)
        say("over")

    at_leave(lambda _deadline: late(), Stage.STOP)  # after our leaving, as a function that was registered early
    array, memory = xs.empty(4, device=device), xs.malloc_device(4096, device)
    event, queue = xs.Event(device, enable_ipc=True), xs.Queue(device)
    shared, handle, event_handle = xs.share(array), xs.ipc.memory.get(memory), xs.ipc.event.get(event)
    physical, place = xs.PhysicalMemory(65536, device, enable_ipc=True), xs.VirtualRange(65536, device)
    queue.signal(event)
    queue.synchronize()
    calls.update(
        value=lambda: event.value,
        pending=lambda: event.pending,
        done=lambda: event.done,
        signal=event.signal,
        wait=lambda: event.wait(1),
        wait_future=lambda: event.wait(0.1, at_least=5),
        reached=lambda: asyncio.run(event.reached(5)),
        repr=lambda: repr(event),
        statistics=event.statistics,
        memory_statistics=memory.statistics,
        queue_signal=lambda: queue.signal(event),
        queue_wait=lambda: queue.wait(event, at_least=7),
        copy=lambda: queue.copy(memory, array),
        synchronize=lambda: queue.synchronize(0.2),
        new_event=lambda: xs.Event(device, enable_ipc=True),
        new_queue=lambda: xs.Queue(device),
        empty=lambda: xs.empty(5, device=device),
        get=lambda: xs.ipc.memory.get(memory),
        put=lambda: xs.ipc.memory.put(handle),
        event_get=lambda: xs.ipc.event.get(event),
        physical_get=lambda: xs.ipc.physical_memory.get(physical),
        map=lambda: place.map(physical, nbytes=65536),
        open=lambda: xs.ipc.memory.open(handle),
        open_event=lambda: xs.ipc.event.open(event_handle),
        share=lambda: xs.share(array),
        attach=lambda: xs.attach(bytes(shared)),
        pickle=lambda: pickle.dumps((array, event)),
        publish=lambda: xs.publish("late", array),
        lookup=lambda: xs.lookup("late", timeout=0.05),
        close=lambda: [each.close() for each in (shared, event, queue, memory, place, array)],
    )


def main() -> None:
    how, what, *arguments = sys.argv[1:]
    target = globals()[what]
    if how == "script":
        target(*arguments)
    elif how == "os.fork":
        pid = os.fork()
        if pid == 0:
            target(*arguments)
            sys.exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    else:
        child = multiprocessing.get_context(how).Process(target=target, args=arguments)
        child.start()
        child.join()
        sys.exit(child.exitcode)
