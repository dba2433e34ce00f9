"""Proof that the conformance suite bites: `python tests/faults` lists which rules caught each planted fault.

The rules that a fault aims at run first. The others run only with `--full`, or if the first ones did not notice. A
fault of what host adapters share is left out on a device whose adapter has a part of its own in its place.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import xpushare as xs
from faults import MUTANTS, Mutant
from xpushare import adapters
from xpushare.adapters.base import Adapter, DeviceInfo
from xpushare.adapters.host.memory import HostRange
from xpushare.adapters.host.queue import HostQueue
from xpushare.conformance import runner
from xpushare.conformance.rules import RULES

__all__ = ["Caught", "applies", "check", "main", "planting"]


def planting(name: str) -> dict[str, str]:
    """The environment in which the suite's processes plant a fault."""
    return {
        "XPUSHARE_CONFORMANCE_SETUP": "faults.planted",
        "XPUSHARE_PLANTED": name,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


class Caught(NamedTuple):
    """A mutant and the rules that failed because of it."""

    mutant: str
    rules: tuple[str, ...]
    seconds: float
    problem: str = ""
    """Why it could not be planted."""


def _has_host_queue(adapter: Adapter, info: DeviceInfo) -> bool:
    queue = adapter.queue(info)
    queue.release()
    return isinstance(queue, HostQueue)


def _has_host_range(adapter: Adapter, info: DeviceInfo) -> bool:
    if adapter.support(info, xs.Aspect.ext_oneapi_virtual_mem).state != "yes":
        return False
    place = adapter.reserve(info, adapter.granularity(info, False), 0)
    place.release()
    return isinstance(place, HostRange)


_USES: Final[dict[str, Callable[[Adapter, DeviceInfo], bool]]] = {
    "": lambda _adapter, _info: True,
    "HostQueue": _has_host_queue,
    "HostRange": _has_host_range,
}


def applies(mutant: Mutant, device: str) -> bool:
    """Whether the device's adapter uses what the fault patches, and the device has what it is about."""
    found = xs.Device(device)
    adapter = adapters.adapter(found.backend)
    info = next(each for each in adapter.devices() if each.uuid == found.uuid)
    return _USES[mutant.part](adapter, info) and any(
        all(found.has(aspect) for aspect in RULES[number].aspects) for number in mutant.aim
    )


def check(name: str, device: str, importer: str | None = None, *, full: bool = False) -> Caught:
    """Run the suite with the fault planted: the rules aimed at first, all of them if these miss it (or `full`)."""
    found = MUTANTS[name]
    seconds = 0.0
    caught: tuple[str, ...] = ()
    for rules in ((),) if full else (found.aim, ()):
        report = runner.run(
            device, importer, rules=rules, environment=planting(name), stop=not full and not rules, rule_timeout=20.0
        )
        seconds += report.seconds
        caught = tuple(
            each.rule.number for each in report.outcomes if any(part.status == "failed" for part in each.parts)
        )
        if not caught and report.problem:
            return Caught(name, (), seconds, report.problem)
        if caught:
            break
    return Caught(name, caught, seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Check mutants; 0 if each was caught."""
    parser = argparse.ArgumentParser(prog="python tests/faults", description=__doc__)
    parser.add_argument("mutants", nargs="*", help="by name; by default all that apply to the device")
    parser.add_argument("--device", help="default: the first gpu, else the cpu")
    parser.add_argument("--importer-device")
    parser.add_argument("--full", action="store_true", help="all rules on each, not only those aimed at")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.mutants if name not in MUTANTS]:
        parser.error(f"there is no mutant {', '.join(unknown)}; they are {', '.join(MUTANTS)}")
    device = str(xs.Device(arguments.device) if arguments.device else xs.default_device())
    wanted = [MUTANTS[name] for name in arguments.mutants or MUTANTS]
    left_out = [each.name for each in wanted if not applies(each, device)]
    found: list[Caught] = []
    for each in wanted:
        if each.name in left_out:
            continue
        caught = check(each.name, device, arguments.importer_device, full=arguments.full)
        found.append(caught)
        if not arguments.json:
            by = ", ".join(caught.rules) or "NOBODY"
            if caught.problem:
                by += f", since it could not be planted: {caught.problem}"
            print(f"{each.name:<28} {each.text}\n{'':<28} caught by {by} ({caught.seconds:.1f} s)", flush=True)
    survived = [caught.mutant for caught in found if not caught.rules]
    if arguments.json:
        print(json.dumps([caught._asdict() for caught in found], indent=2))
    else:
        if left_out:
            print(f"{device} does not have what these are about: {', '.join(left_out)}")
        print(
            f"{len(found) - len(survived)} of {len(found)} mutants caught"
            + (f"; survived: {survived}" if survived else "")
        )
    return 1 if survived else 0
