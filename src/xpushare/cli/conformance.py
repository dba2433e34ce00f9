"""Check a device against every rule of the contract, with several real processes.

For each rule, the command prints passed, failed, or not supported. For a rule that is not supported, it also prints the
missing aspect and the reason. The exit status is 0 if nothing failed. The command needs pytest: pip install
'.[conformance]' in a checkout of xpushare. docs/conformance.md explains the rules.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from xpushare import Device, InvalidArgumentError, default_device
from xpushare.cli import misused, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        help="the exporting process's device: cpu, gpu, native_cpu:0 or a uuid (default: the first GPU, else cpu)",
    )
    parser.add_argument(
        "--importer-device", metavar="DEVICE", help="the importing process's device (default: the same)"
    )
    parser.add_argument(
        "--rules", default="", metavar="LIST", help="check only these rules or sections, such as 3.5b,4"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=600.0, metavar="SECONDS", help="time limit for the whole run (default: 600)"
    )
    parser.add_argument("--list", action="store_true", help="list the rules (with --rules, only these) and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _progress() -> Callable[[int, int, str], None] | None:
    """Return a function that shows the progress on one line of the terminal, or None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        return None
    last = 0.0

    def tell(done: int, tests: int, rule: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.2 or done == tests:
            last = now
            end = "\r" if done < tests else "\r\033[K"
            print(f"\r\033[K{done} of {tests} tests, rule {rule}", end=end, file=sys.stderr, flush=True)

    return tell


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns 0 if no rule failed, else 1. Wrong usage exits with status 2."""
    from xpushare.conformance import runner
    from xpushare.conformance.rules import RULES, select

    try:
        wanted = select(number for number in arguments.rules.split(",") if number)
        if arguments.list:
            rules = [RULES[number] for number in wanted or RULES]
            if arguments.json:
                found = [{"rule": each.number, "text": each.text, "aspects": list(each.aspects)} for each in rules]
                print(json.dumps(found))
            else:
                print("\n".join(f"{each.number:<5}  {each.text}" for each in rules))
            return 0
        device = str(Device(arguments.device) if arguments.device else default_device())
        importer = str(Device(arguments.importer_device)) if arguments.importer_device else None
    except InvalidArgumentError as error:
        misused(arguments, str(error))
    report = runner.run(
        device,
        importer,
        rules=wanted,
        timeout=arguments.timeout,
        progress=_progress(),
    )
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else report.as_text())
    return 0 if report.good else 1
