"""A peer killed at random moments of device work on shared memory and events: the survivor goes on.

HIP_KILLS says how many times (default: 8; `scripts/hip kills` takes 100), HIP_DEVICES on which devices the two work.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time

import pytest

import xpushare as xs
from harness import Child, fd_count, kept

OURS, THEIRS = os.environ.get("HIP_DEVICES", "hip:0 hip:0").split()
NBYTES = 1 << 20
KILLS = int(os.environ.get("HIP_KILLS", "8"))
LIMIT = 1.0  # seconds from the kill until the survivor knows


def export(device: str) -> list[str]:
    """Memory and events of this process, for the other."""
    kept["memory"] = xs.malloc_device(NBYTES, device)
    kept["event"] = xs.Event(device, enable_ipc=True)
    kept["queue"] = xs.Queue(device)
    kept["handles"] = xs.ipc.memory.get(kept["memory"]), xs.ipc.event.get(kept["event"])
    return [str(each) for each in kept["handles"]]


def meet(device: str, memory: str, event: str) -> None:
    kept["other memory"] = xs.ipc.memory.open(memory, device=device)
    kept["other event"] = xs.ipc.event.open(event, device=device)


def work() -> str:
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


def part() -> int:
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


@pytest.mark.timeout(60 + 10 * KILLS)
def test_a_peer_is_killed() -> None:
    chance = random.Random(20261122)
    left: list[int] = []
    slowest = 0.0
    with Child() as survivor:
        for _ in range(KILLS):
            with Child() as victim:
                ours, theirs = survivor.call(export, OURS), victim.call(export, THEIRS)
                survivor.call(meet, OURS, *theirs)
                victim.call(meet, THEIRS, *ours)
                pending = survivor.start(work)
                victim.start(work)
                time.sleep(chance.uniform(0, 0.05))
                victim.kill()
                killed = time.monotonic()
                assert pending.result() in ("PeerLostError", "HandleExpiredError")
                slowest = max(slowest, time.monotonic() - killed)
            left.append(survivor.call(part))
    print(f"{KILLS} kills: the survivor knew after {slowest:.3f} s at most; open descriptors {left[0]} to {left[-1]}")
    assert slowest < LIMIT
    # The first rounds open what stays for good; a descriptor left behind each time would add up.
    assert min(left[-3:]) <= max(left[:3]), left
