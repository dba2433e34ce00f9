"""Test which kinds of objects can be shared on this machine or in this container, and suggest what to change.

The command starts processes that share memory, physical memory and events on each device. A route is a way to pass file
descriptors from one process to another. Each route is tried alone, with a key and a folder made for the test. In your
runtime folder, the command only checks that it can write.

The exit status is 0 if memory and events can be shared on every device by at least one route, and if your folder and
key are usable. It is 2 if the value of --device is not a valid selector, and otherwise 1. With --pid, the command
instead reports whether this process can open the objects that the process with that pid shares, and if not, why.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import xpushare as xs
from xpushare.adapters.vendor import Check
from xpushare.cli import pid_argument, seconds
from xpushare.cli.doctor import devices, folder, keeper, machine, routes
from xpushare.cli.doctor.sharing import Trial
from xpushare.cli.screen import coloured, wrapped
from xpushare.common.foreign import printable

__all__ = ["add_arguments", "run", "wrong_with"]

_COLOURS = {"works": "green", "limited": "yellow", "fails": "red"}


def _everything(selector: str | None, timeout: float) -> Iterator[Check]:
    orphan = machine.Orphan()
    yield from machine.examine()
    yield from folder.examine()
    yield from keeper.examine()
    found, checks = devices.examine(selector)
    yield from checks
    try:
        scratch = tempfile.mkdtemp(prefix="xpushare-doctor-")
    except OSError as error:
        yield Check("processes", "start", "fails", f"no temporary folder: {error.strerror}", "set TMPDIR")
        return
    trial = Trial(found, timeout, scratch)
    try:
        yield from trial.run()
    finally:
        trial.close()
        shutil.rmtree(scratch, ignore_errors=True)
    yield orphan.fate()


def wrong_with(checks: list[Check]) -> list[str]:
    """Return the names of the failed checks that prevent memory or events from being shared. The list is empty if both
    can be shared.
    """
    found = [f"{check.group}: {check.name}" for check in checks
             if check.group in ("folder and key", "devices") and check.state == "fails"]  # fmt: skip
    found += [f"{check.group}: {check.name}" for check in checks
              if check.name in ("memory", "event") and check.state not in ("works", "limited")]  # fmt: skip
    if not any(check.name == "memory" for check in checks) and not found:
        found.append("no device was tried")
    return found


def _text(check: Check) -> str:
    line = wrapped(f"  {check.state:<8} {check.name:<20}  ", printable(check.why))
    line = line.replace(check.state, coloured(check.state, _COLOURS.get(check.state, "dim")), 1)
    return f"{line}\n{wrapped(f'{chr(32):33}→ ', printable(check.fix))}" if check.fix else line


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        metavar="SELECTOR",
        help="check only these devices: cpu, gpu, native_cpu:0, a uuid, or a selector as in ONEAPI_DEVICE_SELECTOR",
    )
    parser.add_argument(
        "--pid",
        type=pid_argument,
        help="check instead whether this process can reach what the running process PID shares",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="time limit for each step (default: 30)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns 0 if memory and events can be shared on every device, otherwise 1, or 2 if the value of
    --device is not a valid selector. With --pid, returns 0 if a route reaches the process, otherwise 1.
    """
    if sys.platform != "linux":
        raise xs.FeatureNotSupportedError("the native part of xpushare is built for Linux only")
    one = arguments.pid is not None
    if one and not _exists(arguments.pid):
        print(f"xpushare doctor: no process has pid {arguments.pid}", file=sys.stderr)
        return 1
    wrong_selector = None if one else devices.wrong_selector(arguments.device)
    if wrong_selector is not None:
        print(f"xpushare doctor: {wrong_selector}", file=sys.stderr)
        return 2
    source = routes.examine(arguments.pid) if one else _everything(arguments.device, arguments.timeout)
    checks: list[Check] = []
    group = ""
    for check in source:
        checks.append(check)
        if not arguments.json:
            if check.group != group:
                print(f"{'' if not group else chr(10)}{coloured(check.group, 'bold')}")
                group = check.group
            print(_text(check), flush=True)
    if one:
        wrong = [] if any(check.state == "works" for check in checks) else [f"no route to process {arguments.pid}"]
        well = f"process {arguments.pid} can be reached"
    else:
        wrong = wrong_with(checks)
        well = "memory and events can be shared on every device"
    if arguments.json:
        print(json.dumps({"works": not wrong, "wrong": wrong, "checks": [each._asdict() for each in checks]}, indent=2))
    else:
        end = wrapped("DOES NOT WORK: ", ", ".join(wrong), 4) if wrong else well
        print(f"\n{coloured(end, 'red' if wrong else 'green')}")
    return 1 if wrong else 0
