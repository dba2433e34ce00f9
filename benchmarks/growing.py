"""Measure how long it takes until followers in other processes have a page by which a range has grown: from before
`grow` until the last of them has refreshed. Each sleeps on the range's event meanwhile. Then the same after a follower
was killed, and after it was killed in the middle of the rounds.

    python -m benchmarks.growing [--rounds 200] [--followers 4] [--device native_cpu:0]
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any, Final

import numpy as np

import xpushare as xs
from benchmarks.deaths import CONTEXT, Process

_MOST: Final = 4096  # pages


def _following(pipe: Any, raw: bytes, times: Any, mine: int) -> None:
    follower: Any = xs.attach(raw)
    with follower:
        pipe.send("ready")
        for number in range(pipe.recv(), _MOST):
            follower.changed.wait(60, at_least=number)
            follower.refresh()
            np.asarray(times)[mine] = time.monotonic_ns()
            pipe.send(follower.nbytes)
            if pipe.recv() == "end":
                return


def _rounds(cache: Any, page: int, times: Any, followers: list[Process], places: list[int], rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        begin = time.monotonic_ns()
        cache.grow(page)
        for each in followers:
            assert each.told() == cache.nbytes
        found.append((max(int(np.asarray(times)[place]) for place in places) - begin) / 1e3)
        for each in followers:
            each.tell()
        time.sleep(0.001)  # they sleep again
    return found


def _show(what: str, found: list[float]) -> None:
    ordered = sorted(found)
    print(
        f"{what:46} median {ordered[len(found) // 2]:8.1f} us   99 % {ordered[len(found) * 99 // 100]:8.1f} us",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--followers", type=int, default=4)
    parser.add_argument("--device", default="native_cpu:0")
    given = parser.parse_args()
    CONTEXT.set_forkserver_preload(["numpy", "xpushare"])
    page = xs.Device(given.device).memory_granularity()
    count: int = given.followers
    times = xs.empty(count, "int64")
    with xs.VirtualRange(_MOST * page, given.device, growable=True) as cache, xs.share(cache) as handle:
        followers = [Process(_following, bytes(handle), times, each) for each in range(count)]
        cache.grow(page)
        for each in followers:
            each.tell(cache.changed.pending)
            each.told()
            each.tell()
        places = list(range(count))
        found = _rounds(cache, page, times, followers, places, given.rounds)
        _show(f"one page to {count} followers", found[len(found) // 10 :])
        followers.pop().kill()
        places.pop()
        found = _rounds(cache, page, times, followers, places, given.rounds)
        _show(f"to {count - 1}, the first rounds after another was killed", found[:10])
        _show(f"to {count - 1}, after that", found[10:])
        cache.grow(page)
        for each in followers:
            each.told()
            each.tell("end")
            each.join()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
