"""Clocks and rows: how a scenario measures, and what it reports."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["Row", "Settings", "Spread", "alternate", "compare", "machine", "spread"]

_MOST_REASON: Final = 400  # characters


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure."""

    quick: bool
    device: str
    folder: str  # private runtime folder of this run, removed at its end

    def count(self, full: int, quick: int) -> int:
        """Samples to take."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its quartiles, in the row's unit."""

    median: float
    low: float
    high: float
    samples: int


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles of `samples`."""
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0], 1)
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(median, low, high, len(samples))


@dataclass(slots=True)
class Row:
    """One comparison. `ratio` is ours / theirs where both were measured: below 1, ours is faster (or less)."""

    scenario: str
    name: str
    unit: str
    ours: Spread
    other: str = ""  # what theirs is
    theirs: Spread | None = None
    ratio: float | None = None
    wanted: str = ""
    met: bool | None = None
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    scenario: str,
    name: str,
    ours: Sequence[float],
    other: str,
    theirs: Sequence[float],
    *,
    unit: str = "us",
    most: float | None = None,
    wanted: str = "",
    notes: Sequence[str] = (),
) -> Row:
    """A row with the ratio of the medians; `most` is the greatest ratio wanted."""
    mine, its = spread(ours), spread(theirs)
    ratio = mine.median / its.median if its.median else None
    met = None if most is None or ratio is None else ratio <= most
    return Row(scenario, name, unit, mine, other, its, ratio, wanted, met, list(notes))


def alternate(count: int, *operations: Callable[[], float], warm_up: int | None = None) -> tuple[list[float], ...]:
    """Call the operations in turn, `count` times each after a warm-up, each time beginning with another one.

    Each returns one sample: what it measured itself, so that its preparation stays outside the clock.
    """
    for _ in range(max(3, count // 10) if warm_up is None else warm_up):
        for operation in operations:
            operation()
    samples: tuple[list[float], ...] = tuple([] for _ in operations)
    for turn in range(count):
        for step in range(len(operations)):
            which = (turn + step) % len(operations)
            samples[which].append(operations[which]())
    return samples


def batch(call: Callable[[], object], repeat: int) -> float:
    """Microseconds for one of `repeat` calls of `call`."""
    clock = time.perf_counter_ns
    turns = range(repeat)
    start = clock()
    for _ in turns:
        call()
    return (clock() - start) / repeat / 1000


def machine() -> dict[str, Any]:
    """Where this ran."""
    import xpushare

    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": model or platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "xpushare": xpushare.__version__,
    }


def brief(text: str) -> str:
    """`text` in one line that fits a report."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_REASON else line[: _MOST_REASON - 1] + "…"
