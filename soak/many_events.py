"""100,000 live IPC events in one process, a sample opened in another: a handful of fds, and what one event costs."""

from __future__ import annotations

import sys
import time
from typing import Any

from soak.common import DEVICE, Soak, held, main

Kept = dict[str, Any]
_MOST_FDS = 12  # table, commons, bell, socket, epoll, … : of the process, not of an event
_TIMEOUT = 10.0


def _warm_up(kept: Kept) -> None:
    import xpushare as xs

    kept["first"] = xs.Event(DEVICE)


def _make(kept: Kept, count: int) -> float:
    """Seconds for one event and its handle."""
    import xpushare as xs

    start = time.perf_counter()
    events = kept["events"] = [xs.Event(DEVICE, enable_ipc=True) for _ in range(count)]
    kept["handles"] = [xs.ipc.event.get(event) for event in events]
    return (time.perf_counter() - start) / count


def _handles(kept: Kept, which: list[int]) -> list[bytes]:
    return [bytes(kept["handles"][index]) for index in which]


def _signal(kept: Kept, which: list[int]) -> None:
    for index in which:
        kept["events"][index].signal()


def _answered(kept: Kept, which: list[int]) -> None:
    """The other end signalled each a second time."""
    for index in which:
        kept["events"][index].wait(_TIMEOUT, at_least=2)


def _state(kept: Kept) -> tuple[int, int, float]:
    """Events signalled, of all; seconds for closing one."""
    events = kept["events"]
    signalled = sum(event.value > 0 for event in events)
    import xpushare as xs

    start = time.perf_counter()
    for handle in kept["handles"]:
        xs.ipc.event.put(handle)
    for event in events:
        event.close()
    return signalled, len(events), (time.perf_counter() - start) / len(events)


def run(soak: Soak) -> None:
    import xpushare as xs

    count, sample = soak.count(100_000, 3_000), soak.count(2_000, 100)
    with soak.worker() as maker:
        maker.call(_warm_up)
        empty = held(maker.pid)
        each = maker.start(_make, count).result(600)
        full = held(maker.pid)
        soak.say(f"{count} events with handles: {each * 1e6:.1f} us each; {empty} -> {full}")
        soak.check(full.fds - empty.fds <= _MOST_FDS, f"{full.fds - empty.fds} fds for {count} events")
        soak.check(
            full.mappings - empty.mappings < 200, f"{full.mappings - empty.mappings} mappings for {count} events"
        )

        which = soak.random.sample(range(count), sample)
        handles = maker.call(_handles, which)
        before = held()
        start = time.perf_counter()
        events = [xs.ipc.event.open(handle) for handle in handles]
        each = (time.perf_counter() - start) / sample
        after = held()
        soak.say(f"{sample} of them opened here: {each * 1e6:.1f} us each; {before} -> {after}")
        soak.check(after.fds - before.fds <= _MOST_FDS, f"{after.fds - before.fds} fds for {sample} opened events")
        signalled = maker.start(_signal, which)
        for event in events:
            event.wait(_TIMEOUT, at_least=1)
        signalled.result()
        for event in events:
            soak.check(event.signal() == 2, "a signal here is not the second one")
        maker.call(_answered, which)
        for event in events:
            event.close()
        del events, event
        signalled, of, closing = maker.start(_state).result(600)
        soak.say(f"{signalled} of {of} were signalled; put and close {closing * 1e6:.1f} us each")
        soak.check(signalled == sample, f"{signalled} events were signalled, {sample} were meant")
        # Slots are given back: as many again find room (there are 262,144).
        for _ in range(2):
            maker.start(_make, count).result(600)
            signalled, _of, _closing = maker.start(_state).result(600)
            soak.check(signalled == 0, "a new event shows an old one's signal")
        soak.say(f"the same again twice: {held(maker.pid)}")


if __name__ == "__main__":
    sys.exit(main("many_events", run))
