"""The time of our own Python and C in handing over an array: `share` and `attach`, without a driver's calls.

python -m benchmarks.own_time [--device native_cpu:0] [--rounds N]

Two processes hand over an array in each round; hot rounds follow one another, cold ones come 5 ms apart and after both
processes have touched 8 MiB. "open before": the memory is open in the other process, so that neither side has anything
to allocate, fetch or map, and what is left is our own. "new": each round has new memory, as programs have it. On
`mock:0` the driver is a software one, whose calls return at once: an event orders the array, and the driver's part is
Python, which these figures contain. Medians and quartiles in microseconds.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import xpushare as xs

NBYTES = 1 << 20
COLD_NBYTES = 8 << 20
WARM = 20  # rounds before the first that counts


def rest(cold: bool, ballast: bytearray) -> None:
    if cold:
        time.sleep(5e-3)
        ballast[::64] = bytes(len(ballast) // 64)


def attaching(channel: Connection) -> None:
    """Attach what comes, and answer how long that took. A first array is kept open as long as its memory serves."""
    ballast = bytearray(COLD_NBYTES)
    held: list[xs.SharedArray] = []
    while (message := channel.recv()) is not None:
        raw, cold, keep = message
        rest(cold, ballast)
        start = time.perf_counter_ns()
        array = xs.attach(raw)
        took = time.perf_counter_ns() - start
        if keep:
            held[:] = [array]
        else:
            array.close()
        del array
        channel.send(took)


def measure(channel: Connection, device: str, rounds: int, new: bool, cold: bool) -> list[tuple[int, int]]:
    """(share, attach) of each round, in nanoseconds."""
    ballast = bytearray(COLD_NBYTES)
    found: list[tuple[int, int]] = []
    array = xs.empty(NBYTES, "u1", device=device)
    for number in range(WARM + rounds):
        if new:
            array = xs.empty(NBYTES, "u1", device=device)
        rest(cold, ballast)
        start = time.perf_counter_ns()
        handle = xs.share(array)
        took = time.perf_counter_ns() - start
        channel.send((bytes(handle), cold, not new and number == 0))
        found.append((took, channel.recv()))
        handle.close()
    return found[WARM:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="native_cpu:0")
    parser.add_argument("--rounds", type=int, default=300)
    wanted = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=attaching, args=(there,))
    process.start()
    print(f"{'memory':14}{'rounds':8}" + "".join(f"{name:>24}" for name in ("share", "attach", "both")))
    for new, cold in itertools.product((False, True), (False, True)):
        samples = measure(here, wanted.device, wanted.rounds, new, cold)
        columns = ([s for s, _ in samples], [a for _, a in samples], [s + a for s, a in samples])
        cells = (statistics.quantiles([ns / 1000 for ns in column], n=4) for column in columns)
        texts = (f"{median:.1f} [{low:.1f} {high:.1f}]" for low, median, high in cells)
        print(f"{'new' if new else 'open before':14}{'cold' if cold else 'hot':8}" + "".join(f"{t:>24}" for t in texts))
    here.send(None)
    process.join()


if __name__ == "__main__":
    main()
