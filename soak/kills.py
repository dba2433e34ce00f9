"""An exporter or importer killed at 500 random moments of open, read, close, get, put, signal and wait.

No call of the survivor takes longer than a second, and after its next open nothing of the dead is left with it: no fd,
no mapping, no holder, no file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from soak.common import DEVICE, Held, Soak, describe_held, held, main, wait_until

Kept = dict[str, Any]
_MOST = 1.0  # seconds for one call of the survivor
_NBYTES = 1 << 16
_SLOTS = 4


# --- the victim -------------------------------------------------------------------------------------


def _export_for_ever(kept: Kept) -> None:
    """Allocate, export, signal, wait for the reader, put, close; until the kill."""
    import xpushare as xs

    connection: Connection = kept["connection"]
    event = xs.Event(DEVICE, enable_ipc=True)
    answer = xs.Event(DEVICE, enable_ipc=True)
    connection.send([bytes(xs.ipc.event.get(event)), bytes(xs.ipc.event.get(answer))])
    while True:
        memories = [xs.malloc_host(_NBYTES, DEVICE) for _ in range(_SLOTS)]
        for memory in memories:
            memoryview(memory)[:] = b"\x07" * _NBYTES
        pages = xs.PhysicalMemory(2 << 20, DEVICE, enable_ipc=True)
        handles = [xs.ipc.memory.get(memory) for memory in memories]
        others = [xs.ipc.physical_memory.get(pages)]
        connection.send([bytes(handle) for handle in (*handles, *others)])
        point = event.signal()
        with contextlib.suppress(TimeoutError):
            answer.wait(0.05, at_least=point)
        for handle in handles:
            xs.ipc.memory.put(handle)
        xs.ipc.physical_memory.put(others[0])
        for memory in memories:
            memory.close()
        pages.close()


def _import_for_ever(kept: Kept, handles: list[bytes], events: list[bytes]) -> None:
    """Open, read, close, wait, signal; until the kill."""
    import xpushare as xs

    event, answer = map(xs.ipc.event.open, events)
    kept["connection"].send("ready")
    while True:
        opened = [xs.ipc.memory.open(handle) for handle in handles]
        for memory in opened:
            with memoryview(memory) as view:
                assert view[0] == 7
        with contextlib.suppress(TimeoutError):
            event.wait(0.002, at_least=event.pending + 1)
        answer.signal()
        for memory in opened:
            memory.close()


# --- the survivor -----------------------------------------------------------------------------------


class _Calls:
    """The survivor's calls, each timed and counted."""

    def __init__(self, soak: Soak) -> None:
        self._soak = soak
        self.outcomes: Counter[str] = Counter()
        self.misled: Counter[str] = Counter()  # a RouteError where nothing blocks the way: the exporter was dying
        self.worst = 0.0
        self.worst_of = ""

    def __call__(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The result, or the package's own error, or TimeoutError."""
        import xpushare as xs

        start = time.monotonic()
        try:
            result = function(*arguments, **options)
            outcome = "done"
        except (xs.XpuShareError, TimeoutError) as error:
            result = error
            outcome = type(error).__name__
            if isinstance(error, xs.RouteError):
                self.misled[f"{name}: {'; '.join(error.reasons)}"] += 1
        took = time.monotonic() - start
        self.outcomes[f"{name}: {outcome}"] += 1
        if took > self.worst:
            self.worst, self.worst_of = took, name
        self._soak.check(took < _MOST, f"{name} took {took:.2f} s ({outcome})")
        return result


@contextlib.contextmanager
def _killing(soak: Soak, pid: int, within: float) -> Iterator[threading.Event]:
    """SIGKILL to `pid` at a random moment of the next `within` seconds, from a thread; tells when it is done."""
    done = threading.Event()

    def body(delay: float) -> None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        done.set()

    thread = threading.Thread(target=body, args=(soak.random.uniform(0, within),), daemon=True)
    thread.start()
    try:
        yield done
    finally:
        thread.join(10)


def _exporter_dies(soak: Soak, calls: _Calls) -> None:
    import xpushare as xs

    here, there = get_context("spawn").Pipe()
    with soak.worker({"connection": there}) as victim:
        there.close()
        victim.start(_export_for_ever)
        if not here.poll(30):
            soak.fail("the victim has not come up within 30 s")
        events = here.recv()
        event, answer = (calls("event.open", xs.ipc.event.open, raw) for raw in events)
        round_ = 0
        handles: list[bytes] = []
        with _killing(soak, victim.pid, 0.02) as killed:
            while not killed.is_set():
                try:
                    if here.poll(0.05):
                        handles = here.recv()
                except (EOFError, OSError):
                    break
                round_ += 1
                calls("event.wait", event.wait, 0.5, at_least=round_)
                for raw in handles[:-1]:
                    memory = calls("memory.open", xs.ipc.memory.open, raw)
                    if isinstance(memory, xs.Memory):
                        with memoryview(memory) as view:
                            # Its allocation may have been put and freed meanwhile; what we opened stays as it was.
                            soak.check(bytes(view) == b"\x07" * _NBYTES, "the opened memory shows other bytes")
                        memory.close()
                if handles:
                    pages = calls("physical_memory.open", xs.ipc.physical_memory.open, handles[-1])
                    if isinstance(pages, xs.PhysicalMemory):
                        pages.close()
                calls("event.signal", answer.signal)
        victim.kill()
        here.close()
        # What nobody can signal any more: the error comes at once, not at the time-out.
        lost = calls("event.wait, nobody left", event.wait, 5, at_least=event.pending + 1)
        soak.check(isinstance(lost, xs.PeerLostError), f"a wait for the dead ended with {lost!r}")
        calls("event.signal", event.signal)
        event.close()
        answer.close()
        del event, answer, lost
        memory = pages = None
    openers: dict[str, Callable[[bytes], Any]] = {
        "memory": xs.ipc.memory.open,
        "physical_memory": xs.ipc.physical_memory.open,
        "event": xs.ipc.event.open,
    }
    for raw in (*handles, *events):  # the next call
        refused = calls("open, exporter dead", openers[xs.ipc.Handle(raw).kind], raw)
        soak.check(isinstance(refused, xs.HandleExpiredError), f"opening a dead process's handle gave {refused!r}")


def _importer_dies(soak: Soak, calls: _Calls) -> None:
    import xpushare as xs
    from xpushare.sharing import node
    from xpushare.sharing.handle import fields_of

    memories = [xs.malloc_host(_NBYTES, DEVICE) for _ in range(_SLOTS)]
    for memory in memories:
        memoryview(memory)[:] = b"\x07" * _NBYTES
    event = xs.Event(DEVICE, enable_ipc=True)
    answer = xs.Event(DEVICE, enable_ipc=True)
    handles = [calls("memory.get", xs.ipc.memory.get, memory) for memory in memories]
    events = [calls("event.get", xs.ipc.event.get, each) for each in (event, answer)]
    here, there = get_context("spawn").Pipe()
    with soak.worker({"connection": there}) as victim:
        there.close()
        victim.start(_import_for_ever, [bytes(each) for each in handles], [bytes(each) for each in events])
        if not here.poll(30):
            soak.fail("the victim has not come up within 30 s")
        here.recv()
        answers = 0
        with _killing(soak, victim.pid, 0.02) as killed:
            while not killed.is_set():
                calls("event.signal", event.signal)
                if not isinstance(calls("event.wait", answer.wait, 0.5, at_least=answers + 1), Exception):
                    answers = answer.value
                extra = calls("memory.get", xs.ipc.memory.get, memories[0])
                calls("memory.put", xs.ipc.memory.put, extra)
        victim.kill()
        here.close()
    table = node.current().table()
    for entry in [fields_of(handle).entry for handle in handles]:
        gone = wait_until(lambda entry=entry: not table.domain.holders(entry), _MOST)  # type: ignore[misc]
        soak.check(gone, f"entry {entry} still has holders: {table.domain.holders(entry)}")
    lost = calls("event.wait, nobody left", answer.wait, 5, at_least=answer.pending + 1)
    soak.check(isinstance(lost, xs.PeerLostError), f"a wait for the dead ended with {lost!r}")
    left = [member for member in table.domain.members() if member[1] == victim.pid]
    soak.check(not left, f"the dead process is still a member: {left}")
    for handle in handles:
        calls("memory.put", xs.ipc.memory.put, handle)
    for each in events:
        calls("event.put", xs.ipc.event.put, each)
    for memory in memories:
        memory.close()
    event.close()
    answer.close()


def _nothing_left(soak: Soak, base: Held, what: str) -> None:
    """No more fds and mappings than before; what the warden has in hand may take it a moment."""
    if not wait_until(lambda: held().fds <= base.fds and held().shared <= base.shared, _MOST):
        now = held()
        soak.fail(f"{what}: before {base}; after {now}: {describe_held()}")


def run(soak: Soak) -> None:
    import xpushare as xs

    calls = _Calls(soak)
    with xs.Event(DEVICE, enable_ipc=True) as event:  # what an exporter opens for good is open before the count
        xs.ipc.event.put(xs.ipc.event.get(event))
        with contextlib.suppress(TimeoutError):
            event.wait(0.01, at_least=1)
    kills = soak.count(500, 12)
    rounds: list[float] = []
    base: Held | None = None
    for number in range(kills):
        start = time.monotonic()
        (_importer_dies if number % 2 else _exporter_dies)(soak, calls)
        rounds.append(time.monotonic() - start)
        if base is None or number == 1:  # after one of each, with what spawning and waiting open once
            base = held()
        _nothing_left(soak, base, f"kill {number + 1} of an {'importer' if number % 2 else 'exporter'}")
    for outcome, count in sorted(calls.outcomes.items()):
        soak.say(f"{count:7} {outcome}")
    longest = f"{calls.worst * 1e3:.1f} ms ({calls.worst_of})"
    soak.say(f"{kills} kills, {median(rounds):.2f} s each; longest call of the survivor {longest}")
    soak.say(f"after the first two {base}; at the end {held()}")
    told = "\n    ".join(f"{count} x {text}" for text, count in calls.misled.most_common(5))
    soak.check(not told, f"RouteError instead of HandleExpiredError for a dying exporter:\n    {told}")


if __name__ == "__main__":
    sys.exit(main("kills", run))
