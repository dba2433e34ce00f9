"""Draw the bars of docs/performance.md from the rows of results/README.md: `python -m benchmarks.chart`.

A bar is a row of a table there, found by its first column, its machine and its peer. So no figure is written twice.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- begin: python -m benchmarks.chart -->\n", "<!-- end -->\n"
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "times the array": 1.0}
MACHINES = {
    "h100": "NVIDIA H100, 16 CPUs",
    "xeon-2": "two CPUs, Intel Xeon",
    "epyc-2": "two CPUs, AMD EPYC, beside other work",
    "epyc-2, idle": "two CPUs, AMD EPYC",
}


class Bar(NamedTuple):
    what: str  # in the reader's words
    row: str  # the first column of the row
    machine: str
    peer: str  # how the peer's column begins
    name: str  # of the peer, in the reader's words
    command: str


TREES = "python -m benchmarks.gpu"
BARS = [
    Bar("A model of 578 tensors (3.1 GB) to another process, for the first time", "tree, 578 tensors, new", "h100",
        "torch.multiprocessing queue", "torch.multiprocessing", TREES),
    Bar("The same tensors again", "tree, 578 tensors, again", "h100",
        "torch.multiprocessing queue", "torch.multiprocessing", TREES),
    Bar("A frame of 8 MiB, filled, handed over and read",
        "hand-over, 8 MiB, each process on a CPU of its own; the frame is filled and all of it is read",
        "epyc-2, idle", "`multiprocessing.Queue`", "multiprocessing.Queue", "python -m benchmarks.channels"),
    Bar("A message of 64 bytes to a process that sleeps, both on one CPU",
        "hand-over, 64 B, both processes on one CPU, asleep in turn", "epyc-2", "iceoryx2 blocking",
        "iceoryx2, blocking", "python -m benchmarks.channels"),
    Bar("An event to another process and back", "event round trip, each process pinned to one CPU (0, 1)", "xeon-2",
        "multiprocessing.Event", "multiprocessing.Event", "xpushare bench"),
    Bar("A new array of 1 MiB, shared, attached and read",
        "share and attach of a new array of 1 MiB, to its first element", "xeon-2",
        "multiprocessing.shared_memory", "multiprocessing.shared_memory", "xpushare bench"),
    Bar("64 MiB from one Dask worker to another", "Dask, transfer: 64 MiB, xs.empty, zero copy", "epyc-2",
        "Dask's own, tcp", "Dask's own transfer", "python -m benchmarks.dask_workers"),
    Bar("Memory that 1 GiB takes with eight workers", "memory of 1024 MiB handed to 8 workers, in all processes",
        "xeon-2", "256 MiB by multiprocessing.Pipe, a copy in each", "multiprocessing.Pipe", "xpushare bench"),
]  # fmt: skip


def figure(text: str) -> tuple[float, str]:
    """The figure at the end of a cell: its value in the base unit, and as it is written."""
    found = re.search(r"([\d.]+) (µs|ms|s|times the array)$", text)
    assert found, text
    return float(found[1]) * UNITS[found[2]], found[0]


def newest(bar: Bar, rows: list[list[str]]) -> list[str]:
    """The row of a bar; the first is the newest, as the page has older runs further down."""
    for row in rows:
        if row[:2] == [bar.row, bar.machine] and len(row) >= 5 and row[4].startswith(bar.peer):
            return row
    raise LookupError(f"results/README.md has no row for {bar}")


def drawn() -> str:
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in (ROOT / "results" / "README.md").read_text().splitlines()
        if line.startswith("|")
    ]
    lines = ['<div class="bars">\n']
    for bar in BARS:
        row = newest(bar, rows)
        (ours, our_text), (theirs, their_text) = figure(row[3]), figure(row[4])
        longest = max(ours, theirs)
        lines += [
            f"<figure><figcaption>{html.escape(bar.what)}</figcaption>\n",
            f'<div class="ours" style="--part: {ours / longest:.4f}"><span>xpushare {our_text}</span></div>\n',
            f'<div style="--part: {theirs / longest:.4f}"><span>{html.escape(bar.name)} {their_text}</span></div>\n',
            f"<small>{MACHINES[bar.machine]}, 2026-{row[2]}, ",
            f"<code>{html.escape(bar.command)}</code></small></figure>\n",
        ]
    return "".join([*lines, "</div>\n"])


def page() -> str:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    return before + BEGIN + drawn() + END + rest.split(END)[1]


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    PAGE.write_text(page())
