"""Measure latency and bandwidth, and compare them with the usual alternatives to xpushare.

Both sides do the same work in turn. Each median is shown with its quartiles. A ratio is xpushare's median divided by
that of the alternative. The exit status is 0 unless a scenario failed, even if xpushare is slower.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any

from xpushare.cli import misused, write_file
from xpushare.common.errors import InvalidArgumentError
from xpushare.core.device import Device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpushare.bench import Scenario

__all__ = ["add_arguments", "collect", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="take few samples: a check that it works, without figures to quote"
    )
    parser.add_argument("--only", metavar="SCENARIO", nargs="+", help="run only these scenarios (see --list)")
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument(
        "--device", metavar="DEVICE", default="native_cpu:0", help="a native_cpu device (default: %(default)s)"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write JSON to FILE, or without FILE print it instead of the table",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the ratios into FILE (png, svg, pdf); needs matplotlib")


def collect(
    scenarios: Mapping[str, Scenario],
    names: list[str] | None = None,
    *,
    quick: bool = False,
    device: str = "native_cpu:0",
    progress: bool = False,
) -> dict[str, Any]:
    """Run the scenarios, all of them if `names` is empty. Returns a dict with the keys `machine`, `quick`, `rows` (a
    list of `measure.Row`) and `failed` (a dict from the name of a scenario to the reason).
    """
    from xpushare.bench.measure import Row, Settings, brief, machine

    unknown = [name for name in names or () if name not in scenarios]
    if unknown:
        raise InvalidArgumentError(f"there is no scenario {unknown[0]!r}; they are {', '.join(scenarios)}")
    chosen = Device(device)
    if chosen.backend != "native_cpu":
        raise InvalidArgumentError(
            f"the scenarios are for native_cpu, not for {chosen}; on a GPU: python -m benchmarks.gpu in a checkout"
        )
    where = machine()
    rows: list[Row] = []
    failed: dict[str, str] = {}
    folder = tempfile.mkdtemp(prefix="xpushare-bench-")
    try:
        settings = Settings(quick, str(chosen), folder)
        for name in names or scenarios:
            start = time.monotonic()
            if progress:
                print(f"{name}: {(scenarios[name].__doc__ or '').strip()}", end="", file=sys.stderr, flush=True)
            try:
                rows += scenarios[name](settings)
            except Exception as error:
                failed[name] = brief(f"{type(error).__name__}: {error}")
                if progress:
                    print(file=sys.stderr)
                    traceback.print_exc()
            if progress:
                print(f" ({time.monotonic() - start:.1f} s)", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"machine": where, "quick": quick, "rows": rows, "failed": failed}


def _write_json(to: str | None, text: str) -> None:
    """Write the text where `--json` says: to a file, to stdout, or nowhere."""
    if to == "-":
        print(text)
    elif to:
        write_file(to, text + "\n")


def run(arguments: argparse.Namespace, scenarios: Mapping[str, Scenario] | None = None) -> int:
    """Run the command. By default, `scenarios` are those of `xpushare bench`. Returns 0 unless a scenario failed. Wrong
    usage exits with status 2.
    """
    from xpushare.bench import SCENARIOS, measure

    scenarios = SCENARIOS if scenarios is None else scenarios
    if arguments.list:
        listed = {name: (scenario.__doc__ or "").strip() for name, scenario in scenarios.items()}
        if arguments.json != "-":
            print(*(f"{name:<14} {text}" for name, text in listed.items()), sep="\n")
        rows = [{"scenario": name, "text": text} for name, text in listed.items()]
        _write_json(arguments.json, json.dumps(rows, indent=2))
        return 0
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:  # reported before the measurements
        raise InvalidArgumentError("--plot needs matplotlib: pip install '.[bench]' in a checkout of xpushare")
    try:
        found = collect(scenarios, arguments.only, quick=arguments.quick, device=arguments.device, progress=True)
    except InvalidArgumentError as error:
        misused(arguments, str(error))
    if arguments.json != "-":
        print(measure.table(found["machine"], found["rows"], found["failed"]))
    _write_json(arguments.json, measure.as_json(found))
    if arguments.plot:
        measure.plot(found["machine"], found["rows"], arguments.plot)
    return 1 if found["failed"] else 0
