"""Peers killed at random moments of device work on shared memory and events: the same rounds on every driver."""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable

import xpushare as xs
from harness import Child, fd_count, kept

__all__ = ["NBYTES", "copy_signal_and_wait", "kill_peers"]

NBYTES = 1 << 20
HANG = 15.0  # seconds: no test asserts a time, so this is not a figure; the one that is printed is


def _export(device: str) -> list[str]:
    """Memory and events of this process, for the other."""
    kept["memory"] = xs.malloc_device(NBYTES, device)
    kept["event"] = xs.Event(device, enable_ipc=True)
    kept["queue"] = xs.Queue(device)
    kept["handles"] = xs.ipc.memory.get(kept["memory"]), xs.ipc.event.get(kept["event"])
    return [str(each) for each in kept["handles"]]


def _meet(device: str, memory: str, event: str) -> None:
    kept["other memory"] = xs.ipc.memory.open(memory, device=device)
    kept["other event"] = xs.ipc.event.open(event, device=device)


def copy_signal_and_wait() -> str:
    """Copy, signal, and wait in a queue for the other's next signal, until the other is lost; how that showed."""
    queue, mine, other = kept["queue"], kept["event"], kept["other event"]
    while True:
        try:
            queue.copy(kept["other memory"], kept["memory"])
            queue.signal(mine)
            queue.wait(other, at_least=other.pending + 1)
            queue.synchronize(10)
        except (xs.PeerLostError, xs.HandleExpiredError) as error:
            return type(error).__name__


def _part() -> int:
    """Let go of all of this round; how many descriptors are open."""
    memory, event = kept.pop("handles")
    xs.ipc.memory.put(memory)
    xs.ipc.event.put(event)
    for name in ("other event", "other memory", "event", "memory"):
        kept.pop(name).close()
    with contextlib.suppress(xs.PeerLostError):  # one that came after the first
        kept["queue"].synchronize(10)
    kept.pop("queue").close()
    gc.collect()
    return fd_count()


def kill_peers(
    times: int, ours: str, theirs: str, work: Callable[[], str] = copy_signal_and_wait, within: float = 0.05
) -> None:
    """Kill a peer on the device `theirs` that many times, within so many seconds of the start of its `work`, which a
    survivor on the device `ours` does, too. `work` finds in `kept` its own and the other's memory and event, and a
    queue, and returns the name of the error by which it learned of the loss.
    """
    chance = random.Random(20261122)
    left: list[int] = []
    slowest = 0.0
    with Child() as survivor:
        for _ in range(times):
            with Child() as victim:
                mine, other = survivor.call(_export, ours), victim.call(_export, theirs)
                survivor.call(_meet, ours, *other)
                victim.call(_meet, theirs, *mine)
                pending = survivor.start(work)
                victim.start(work)
                time.sleep(chance.uniform(0, within))
                victim.kill()
                killed = time.monotonic()
                assert pending.result() in ("PeerLostError", "HandleExpiredError")
                slowest = max(slowest, time.monotonic() - killed)
            left.append(survivor.call(_part))
    print(f"{times} kills: the survivor knew after {slowest:.3f} s at most; open descriptors {left[0]} to {left[-1]}")
    assert slowest < HANG
    # The first rounds open what stays for good. What was the dead's goes by the survivor's next open, if not before; a
    # descriptor left behind each time would add up.
    assert min(left[-3:]) <= max(left[:3]), left
