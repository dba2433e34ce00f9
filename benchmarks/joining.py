"""Measure how long processes take that open one channel at the same moment, and one process that makes many locks.

The processes are forked and wait for the start. The figures are from the start until half of them, and all of them,
have the channel open, with those of processes that only read the start and answer, in the same run. `--locks` makes
that many locks in one process, and closes them, with the number of descriptors that it has open meanwhile.

    python -m benchmarks.joining [--processes 128 500] [--locks 20000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable

import xpushare as xs

_TIME = struct.Struct("q")
_FAILED = -1


def _at_once(count: int, work: Callable[[], object]) -> tuple[list[float], int]:
    """Let `count` processes do `work` at once, none of which ends before all have done it. Returns when each had done
    it, in milliseconds from the start, and how many failed.
    """
    begin, go = os.pipe()
    end, stop = os.pipe()
    told, tell = os.pipe()
    pids: list[int] = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.close(stop)
            os.write(tell, _TIME.pack(0))
            os.read(begin, 1)
            try:
                kept = work()
                os.write(tell, _TIME.pack(time.monotonic_ns()))
                os.read(end, 1)
                del kept
            except xs.XpuShareError:
                os.write(tell, _TIME.pack(_FAILED))
            finally:
                os._exit(0)
        pids.append(pid)
    for _ in range(count):
        os.read(told, _TIME.size)  # it is up
    start = time.monotonic_ns()
    os.close(go)
    times = [_TIME.unpack(os.read(told, _TIME.size))[0] for _ in range(count)]
    os.close(stop)
    for pid in pids:
        os.waitpid(pid, 0)
    for fd in (begin, end, told, tell):
        os.close(fd)
    done = sorted((each - start) / 1e6 for each in times if each != _FAILED)
    return done, count - len(done)


def _row(name: str, rounds: list[tuple[list[float], int]]) -> None:
    failed = sum(each for _, each in rounds)
    if not any(done for done, _ in rounds):
        print(f"{name:34} all {failed} failed", flush=True)
        return
    half = statistics.median(done[len(done) // 2] for done, _ in rounds if done)
    last = statistics.median(done[-1] for done, _ in rounds if done)
    print(f"{name:34} half {half:8.1f} ms   all {last:8.1f} ms   {failed} failed", flush=True)


def _opens(count: int, rounds: int) -> None:
    """The owner is another process, so that this one may fork."""
    source = f"import sys, xpushare as xs\nwith xs.Channel.create('joining', 8, members={count + 1}):\n"
    source += "    print(flush=True)\n    sys.stdin.read()"
    owner = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline(), "the owner of the channel has failed"
        xs.Channel.open("joining", timeout=60).close()  # loads the modules, which is no part of a join
        _row(f"{count} processes, nothing", [_at_once(count, lambda: None) for _ in range(rounds)])
        _row(
            f"{count} processes open one channel",
            [_at_once(count, lambda: xs.Channel.open("joining", timeout=60)) for _ in range(rounds)],
        )
        owner.communicate()


def _locks(count: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    begin = time.perf_counter()
    locks = [xs.Lock(f"joining.{i}") for i in range(count)]
    made = time.perf_counter()
    descriptors = len(os.listdir("/proc/self/fd")) - before
    for each in locks:
        each.close()
    closed = time.perf_counter()
    print(
        f"{count} locks in one process: made in {(made - begin) * 1e6 / count:.1f} us each, closed in "
        f"{(closed - made) * 1e6 / count:.1f} us each, {descriptors} descriptors"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[128, 500])
    parser.add_argument("--locks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    settings = parser.parse_args()
    for count in settings.processes:
        _opens(count, settings.rounds)
    _locks(settings.locks)


if __name__ == "__main__":
    main()
