"""From SIGKILL to the waiter's `PeerLostError`: under a second in every state, no signal lost, none invented.

The victim writes down each signal before and after it in memory of its own kind (a mapped file); what the survivor sees
of the event is checked against that.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from soak.common import DEVICE, Soak, held, main

Kept = dict[str, Any]
_MOST = 1.0  # seconds
_NEVER = 1 << 40
STATES = ("idle", "owing", "signalling", "submitting", "behind a wait")


class Record:
    """Three numbers in a mapped file: what the victim was about to signal, did signal, and saw complete."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)
        self._words = memoryview(self._map).cast("Q")

    def write(self, which: int, number: int) -> None:
        """In one store, which a kill cannot part: `struct.pack_into` zeroes the word first."""
        self._words[which] = number

    def read(self) -> tuple[int, int, int]:
        before, after, complete = self._words[:3]
        return before, after, complete

    def close(self) -> None:
        self._words.release()
        self._map.close()


def _open(kept: Kept, handle: bytes, gate: bytes, path: str) -> None:
    import xpushare as xs

    kept["event"] = xs.ipc.event.open(handle)
    kept["gate"] = xs.ipc.event.open(gate)
    kept["record"] = Record(path)


def _make(kept: Kept, path: str) -> tuple[bytes, bytes]:
    """The victim as the one that makes the events."""
    import xpushare as xs

    kept["event"] = xs.Event(DEVICE, enable_ipc=True)
    kept["gate"] = xs.Event(DEVICE, enable_ipc=True)
    kept["record"] = Record(path)
    return bytes(xs.ipc.event.get(kept["event"])), bytes(xs.ipc.event.get(kept["gate"]))


def _live(kept: Kept, state: str) -> None:
    """Get into `state` and stay there until the kill."""
    import xpushare as xs

    event, record = kept["event"], kept["record"]

    def signal() -> None:
        record.write(0, event.pending + 1)
        point = event.signal()
        record.write(1, point)
        record.write(2, point)

    def submit(queue: Any) -> None:
        record.write(0, event.pending + 1)
        point = queue.signal(event)
        record.write(1, point)
        queue.submit(record.write, 2, point)  # behind the signal, in the same queue

    for _ in range(3):
        signal()
    if state == "idle":
        time.sleep(60)
    queue = kept["queue"] = xs.Queue(DEVICE)
    if state == "owing":
        queue.submit(time.sleep, 60)
        submit(queue)
        submit(queue)
        time.sleep(60)
    elif state == "behind a wait":
        queue.wait(kept["gate"], at_least=_NEVER)
        submit(queue)
        time.sleep(60)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if state == "signalling":
            signal()
        else:
            submit(queue)
            if event.pending - record.read()[2] > 1000:
                queue.synchronize()


def _one(soak: Soak, state: str, number: int, folder: str) -> float:
    """One kill; seconds from it to the error."""
    import xpushare as xs

    victims = number % 2 == 0  # who makes the events
    path = os.path.join(folder, f"record {number}")
    Path(path).write_bytes(bytes(4096))
    record = Record(path)
    with soak.worker() as victim:
        if victims:
            event, gate = map(xs.ipc.event.open, victim.call(_make, path))
        else:
            event, gate = (xs.Event(DEVICE, enable_ipc=True) for _ in range(2))
            victim.call(_open, bytes(xs.ipc.event.get(event)), bytes(xs.ipc.event.get(gate)), path)
        victim.start(_live, state)
        event.wait(10, at_least=3)
        found: list[tuple[float, BaseException | None]] = []

        def wait() -> None:
            """Follow the victim's signals until one does not come."""
            point = 4
            try:
                while True:
                    event.wait(10, at_least=point)
                    point += 1
            except BaseException as error:
                found.append((time.monotonic(), error))

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        time.sleep(soak.random.uniform(0.0, 0.03) if state in ("signalling", "submitting") else 0.02)
        killed = time.monotonic()
        os.kill(victim.pid, 9)
        waiter.join(12)
        what = f"{state}, events made by the {'victim' if victims else 'survivor'}"
        soak.check(found, f"{what}: the survivor still waits 12 s after the kill")
        seen, error = found[0]
        soak.check(isinstance(error, xs.PeerLostError), f"{what}: {type(error).__name__}: {error}")
        victim.kill()
        before, after, complete = record.read()
        # Every point that was complete for the victim is done here, no point beyond the last one begun is known.
        pending = event.pending
        soak.check(pending <= before, f"{what}: point {pending} was never submitted (the victim began {before})")
        soak.check(pending >= after, f"{what}: the victim submitted {after}, only {pending} are known")
        try:
            event.wait(1, at_least=complete)
        except (xs.PeerLostError, TimeoutError) as wrong:
            soak.fail(f"{what}: point {complete} completed for the victim, here {type(wrong).__name__}: {wrong}")
        try:
            event.wait(0.5, at_least=before + 1)
        except (xs.PeerLostError, TimeoutError):
            pass
        else:
            soak.fail(f"{what}: point {before + 1} is complete, the victim began {before}")
        # Life goes on: the survivor signals, the event heals.
        point = event.signal()
        event.wait(1, at_least=point)
        event.close()
        gate.close()
    record.close()
    os.unlink(path)
    return seen - killed


def run(soak: Soak) -> None:
    import xpushare as xs

    kills = soak.count(200, 10)
    with xs.Event(DEVICE, enable_ipc=True) as event:  # what an exporter opens for good is open before the count
        xs.ipc.event.put(xs.ipc.event.get(event))
    delays: dict[str, list[float]] = {state: [] for state in STATES}
    with tempfile.TemporaryDirectory(prefix="xpushare-soak-record-") as folder:
        base = None
        for number in range(kills):
            state = STATES[(number // 2) % len(STATES)]
            delay = _one(soak, state, number, folder)
            delays[state].append(delay)
            base = base or held()  # after the first: with what the first wait opens
    for state, found in delays.items():
        if found:
            soak.say(
                f"{state}: {len(found)} kills, to PeerLostError median {median(found) * 1e3:.1f} ms, "
                f"worst {max(found) * 1e3:.1f} ms"
            )
    every = [delay for found in delays.values() for delay in found]
    soak.say(f"all {len(every)}: median {median(every) * 1e3:.1f} ms, worst {max(every) * 1e3:.1f} ms")
    soak.check(max(every) < _MOST, f"it took {max(every):.3f} s from a kill to PeerLostError")
    with xs.Event(DEVICE, enable_ipc=True) as event:  # the next call, which may clean up
        xs.ipc.event.put(xs.ipc.event.get(event))
    after = held()
    soak.say(f"after the first {base}; after all {after}")
    assert base is not None
    soak.check(after.fds <= base.fds, f"fds {base.fds} -> {after.fds}")
    soak.check(after.shared <= base.shared, f"shared mappings {base.shared} -> {after.shared}")


if __name__ == "__main__":
    sys.exit(main("lost_peers", run))
