"""Format the output of `xpushare bench`: a table for people, JSON for programs, and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from xpushare.bench.measure import Row, Spread

__all__ = ["as_json", "plot", "table"]

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
