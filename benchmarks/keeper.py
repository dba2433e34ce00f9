"""Measure the keeper: how long its start takes, on an idle and on a busy machine, beside that of a bare Python; its
private memory (USS) and its processor time while it keeps 148 allocations and nobody asks.

    python -m benchmarks.keeper [--rounds 20] [--idle 10]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator

import xpushare as xs
from xpushare import _native
from xpushare.sharing import keeping

_ALLOCATIONS = 148


def _pid() -> int:
    fd = os.open(keeping.lock_path(), os.O_RDWR | os.O_CLOEXEC)
    try:
        found = _native.lock_holder(fd, 0)
    finally:
        os.close(fd)
    assert found
    return found


def _stop() -> None:
    pid = _pid()
    with keeping.connected() as keeper:
        assert keeper is not None
        keeper.stop()
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.001)


def _started() -> float:
    """Milliseconds until a keeper answers, as `publish(keep=True)` starts it."""
    begin = time.perf_counter()
    with keeping.connected(start=True) as keeper:
        assert keeper is not None
        assert keeper.listed() == []
    took = time.perf_counter() - begin
    _stop()
    return took * 1e3


def _bare() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True, cwd="/")
    return (time.perf_counter() - begin) * 1e3


def _burn() -> None:
    while True:
        pass


@contextlib.contextmanager
def _busy() -> Generator[None]:
    """A process for each CPU that does nothing but use it."""
    context = multiprocessing.get_context("spawn")
    burners = [context.Process(target=_burn, daemon=True) for _ in os.sched_getaffinity(0)]
    for each in burners:
        each.start()
    try:
        yield
    finally:
        for each in burners:
            each.kill()
            each.join()


def _ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _uss(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1024


def _show(what: str, rounds: int) -> None:
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(_started())
        bare.append(_bare())
    ours.sort()
    bare.sort()
    print(f"start, {what}: median {ours[rounds // 2]:.1f} ms, worst {ours[-1]:.1f} ms (wanted 100)", flush=True)
    print(f"  a bare Python: median {bare[rounds // 2]:.1f} ms, worst {bare[-1]:.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle", type=float, default=10, help="seconds for which nobody asks the keeper")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xpushare-bench-") as folder:
        os.environ["XPUSHARE_RUNTIME_DIR"] = folder
        _show("idle", given.rounds)
        with _busy():
            _show("busy", given.rounds)
        tree = {str(number): xs.empty(4096, "uint8", isolated=True) for number in range(_ALLOCATIONS)}
        begin = time.perf_counter()
        xs.publish("kept", tree, keep=True)
        took = (time.perf_counter() - begin) * 1e3
        pid = _pid()
        before = _ticks(pid)
        time.sleep(given.idle)
        used = (_ticks(pid) - before) / os.sysconf("SC_CLK_TCK")
        print(f"publish(keep=True) of {_ALLOCATIONS} allocations, with the start: {took:.1f} ms", flush=True)
        print(f"then USS {_uss(pid):.1f} MiB (wanted 12), CPU time in {given.idle:g} s: {used:.2f} s (wanted 0)")
        _stop()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
