"""Measurement for the scenarios: settings, statistics, and the rows that a scenario returns."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["Row", "Settings", "Spread", "alternate", "brief", "compare", "machine", "spread"]

_MOST_REASON: Final = 400  # characters


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a benchmark run."""

    quick: bool
    device: str
    folder: str  # private runtime folder of this run, removed at its end

    def count(self, full: int, quick: int) -> int:
        """Return how many samples to take: `quick` in a quick run, otherwise `full`."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its quartiles, in the unit of the row."""

    median: float
    low: float
    high: float
    samples: int


def spread(samples: Sequence[float]) -> Spread:
    """Return the median and the quartiles of `samples`."""
    several = samples if len(samples) > 1 else [*samples, *samples]  # quantiles needs at least two
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    return Spread(round(median, 3), round(low, 3), round(high, 3), len(samples))


@dataclass(slots=True)
class Row:
    """One comparison. If both sides were measured, `ratio` is `ours` divided by `theirs`. Below 1, xpushare is faster
    or uses less.
    """

    scenario: str
    name: str
    unit: str
    ours: Spread
    other: str = ""  # the name of the alternative, which `theirs` measures
    theirs: Spread | None = None
    ratio: float | None = None
    notes: list[str] = field(default_factory=list[str])


def compare(
    scenario: str,
    name: str,
    ours: Sequence[float],
    other: str,
    theirs: Sequence[float],
    *,
    unit: str = "us",
    notes: Sequence[str] = (),
) -> Row:
    """Return a row that compares two lists of samples. Its ratio is the ratio of the medians."""
    mine, its = spread(ours), spread(theirs)
    ratio = round(mine.median / its.median, 4) if its.median else None
    return Row(scenario, name, unit, mine, other, its, ratio, list(notes))


def alternate(count: int, *operations: Callable[[], float], warm_up: int | None = None) -> tuple[list[float], ...]:
    """Call the operations in turn, `count` times each after a warm-up. Each round begins with a different operation.

    Returns a tuple with the samples of each operation. A call of an operation returns one sample, which the operation
    measures itself, so that its preparation does not count.
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


def machine() -> dict[str, Any]:
    """Return a description of this machine."""
    import xpushare

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
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
    """Return `text` as one line that is short enough for a report."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_REASON else line[: _MOST_REASON - 1] + "…"
