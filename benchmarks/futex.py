"""The round trip of events over that of a bare futex in C: on one CPU, and beside processes that keep two CPUs busy."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Final

from xpushare.bench.events import OURS, Pair, take_turns
from xpushare.bench.measure import Kept, Row, Settings, compare

BARE: Final = "bare futex ping-pong in C"


def each(kept: Kept, _way: str, batch: int) -> list[float]:
    """Microseconds for each of `batch` round trips."""
    took: list[float] = []
    clock = time.perf_counter_ns
    ping, pong = kept["ping"], kept["pong"]
    base = kept["round"] + 1
    kept["round"] += batch
    for n in range(base, base + batch):
        start = clock()
        ping.signal()
        pong.wait(60.0, at_least=n)
        took.append((clock() - start) / 1000)
    return took


def futex(settings: Settings) -> list[Row]:
    """Event round trip, mean and the slowest of 100, over a bare futex: on one CPU, and beside busy processes."""
    program = Path(settings.folder, "futex")
    source = Path(__file__).with_suffix(".c")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", program, source], check=True, timeout=60)
    batch = settings.count(500, 50)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    rows: list[Row] = []
    for where, busy in ((cpus[:1], 0), *((cpus, busy) for busy in (3, 6)[: settings.count(2, 1)] if len(cpus) > 1)):
        with contextlib.ExitStack() as stack:
            pair = Pair(settings, stack, (where, where), zmq=False, busy=busy)

            def sample(way: str, pair: Pair = pair, where: list[int] = where) -> list[float]:
                if way == OURS:
                    found: list[float] = pair.run(OURS, batch, each)
                    return found
                command = [str(program), str(batch), *map(str, where)]
                done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90)
                return [float(line) for line in done.stdout.split()]

            sample(OURS)
            blocks = take_turns(settings.count(20, 2), (OURS, BARE), sample)
            pair.end()
        name = f"event round trip, {len(where)} CPU(s), {busy} busy processes"
        for what, of_block in (
            ("mean", statistics.fmean),
            ("99th percentile", lambda block: sorted(block)[batch * 99 // 100]),
        ):
            ours, theirs = ([of_block(block) for block in blocks[way]] for way in (OURS, BARE))
            rows.append(
                compare("futex", f"{name}, {what}", ours, BARE, theirs, notes=[f"{batch} round trips a sample"])
            )
    return rows
