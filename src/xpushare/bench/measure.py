"""What the scenarios share: settings, statistics, the rows that a scenario returns, worker processes that run the
functions which are sent to them, and the output of `xpushare bench`: a table for people, JSON for programs, and a plot.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from xpushare.conformance import harness
from xpushare.conformance.harness import Child, Pending

__all__ = [
    "Kept",
    "Row",
    "Settings",
    "Spread",
    "Worker",
    "alternate",
    "as_json",
    "brief",
    "compare",
    "machine",
    "pin",
    "plot",
    "spread",
    "table",
]

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


# --- worker processes -------------------------------------------------------------------------------------------------

Kept = dict[str, Any]


def _serve(connection: Connection, conductor: int, folder: str, kept: Kept) -> None:
    """The main function of a worker. Runs the functions that it receives until the connection ends."""
    harness.ignore_interrupts()
    harness.die_with(conductor)
    os.environ["XPUSHARE_RUNTIME_DIR"] = folder
    os.environ.pop("XPUSHARE_KEY_FILE", None)
    harness.kept.update(kept)
    harness.serve(connection, pickle.loads)  # `__main__` is the same module here: multiprocessing imports it


def _with_kept(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(harness.kept, *arguments)


class Worker(Child):
    """A worker process that runs functions. Each function must be defined at the top level of a module, and receives
    the dict `kept` as its first argument.

    `kept` lives as long as the process. Its first content is passed when the process starts, by multiprocessing's
    "spawn" method, because multiprocessing's locks and queues cannot be sent later.
    """

    def __init__(self, settings: Settings, kept: Mapping[str, Any] | None = None) -> None:
        self._given = (settings.folder, dict(kept or {}))
        super().__init__(method="fork", timeout=60.0)  # a busy machine spawns slowly

    def _fork(self, here: Connection, there: Connection) -> tuple[int, Callable[[], int | None]]:  # noqa: ARG002
        arguments = (there, os.getpid(), *self._given)
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
        process.start()
        assert process.pid is not None
        return process.pid, lambda: process.exitcode

    def start(self, function: Callable[..., Any], *arguments: Any) -> Pending:
        """Send the call `function(kept, *arguments)` to the worker, which runs it after all earlier calls."""
        return super().start(_with_kept, function, arguments)


def pin(kept: Kept, cpus: list[int]) -> None:  # noqa: ARG001
    """Let this process run only on these CPUs. Sleeps briefly, so that the scheduler can move the process."""
    os.sched_setaffinity(0, cpus)
    time.sleep(0.01)


# --- output -----------------------------------------------------------------------------------------------------------

_HEAD = ("scenario", "what", "ours", "theirs", "ratio")


def _figure(found: Spread | None, unit: str) -> str:
    """Format a median and its quartiles, with fewer decimals for a larger median."""
    if found is None:
        return "-"
    digits = 2 if found.median < 10 else 1 if found.median < 1000 else 0
    return f"{found.median:.{digits}f} {unit} [{found.low:.{digits}f} {found.high:.{digits}f}]"


def _ratio(row: Row) -> str:
    return "-" if row.ratio is None else f"{row.ratio:.4f}" if row.ratio < 0.1 else f"{row.ratio:.2f}"


def table(where: Mapping[str, Any], rows: Sequence[Row], failed: Mapping[str, str]) -> str:
    """Format the report as text. It has medians with quartiles in brackets, and the ratios of xpushare to the
    alternative.
    """
    load = " ".join(f"{each:.2f}" for each in where["load_average"])
    cpus = ",".join(map(str, where["affinity"]))
    lines = [
        f"xpushare {where['xpushare']}, {where['python']}, kernel {where['kernel']}, {where['cpu']}",
        f"{where['cpu_count']} CPUs, affinity {cpus}, load average at start {load}, {where['time']}",
        "median [quartiles]; ratio = ours / theirs",
        "",
    ]
    cells: list[tuple[str, ...]] = [_HEAD]
    for row in rows:
        theirs = _figure(row.theirs, row.unit) + f" ({row.other})" if row.theirs else "-"
        cells.append((row.scenario, row.name, _figure(row.ours, row.unit), theirs, _ratio(row)))
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    for at, line in enumerate(cells):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if at:
            lines += [f"    {note}" for note in rows[at - 1].notes]
    return "\n".join([*lines, *(f"FAILED {name}: {why}" for name, why in failed.items())])


def as_json(found: Mapping[str, Any]) -> str:
    """Format the report as JSON, with each of its `rows` on one line."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items() if name != "rows"]
    rows = ",\n".join(f"  {json.dumps(asdict(row))}" for row in found["rows"])
    return "{\n" + ",\n".join([*lines, f' "rows": [\n{rows}\n ]']) + "\n}"


def plot(where: Mapping[str, Any], rows: Sequence[Row], file: str) -> None:
    """Draw the ratios as bars that start at 1. The line at 1 stands for the tool that a user would otherwise use. The
    colour shows whether the ratio is below or above 1. Needs matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [(row, row.ratio) for row in rows if row.ratio]
    figure, axes = pyplot.subplots(figsize=(11, 1.5 + 0.45 * len(shown)))
    at = list(range(len(shown)))
    colours = ["tab:green" if ratio < 1 else "tab:red" for _, ratio in shown]
    axes.barh(at, [ratio - 1 for _, ratio in shown], left=1, color=colours)
    axes.set_yticks(at, [f"{row.name}\nagainst {row.other}" for row, _ in shown], fontsize=7)
    for place, (row, ratio) in zip(at, shown, strict=True):
        side = "left" if ratio >= 1 else "right"
        axes.text(ratio, place, f" {_ratio(row)} ", va="center", ha=side, fontsize=7)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("ours / theirs; green, left of the line: ours is faster, or takes less; red: slower, or more")
    axes.set_title(f"{where['cpu']}, kernel {where['kernel']}, {where['python']}", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
