"""Run soak programs, each in a process of its own: one after the other, or side by side (`--together`).

On a machine with many CPUs, side by side finds what one at a time does not. What each program prints then goes to
`soak-PROGRAM.txt` in the folder `--results`, and its last line to the terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from soak.common import add_arguments, end_on_sigterm
from xpushare.cli import seconds

PROGRAMS = (
    "handles", "kills", "channel_kills", "cycles", "many_events", "lost_peers", "schedules", "hostile", "arenas",
    "reuse", "interrupts", "keeper_kills", "batches",
)  # fmt: skip
_ENDING = 30  # seconds for a program that was told to end, in which it removes its folder


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    end = time.monotonic() + _ENDING
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(names: Sequence[str], options: Sequence[str], limit: float, results: Path | None) -> list[str]:
    """Run these programs side by side. Returns those that failed. With `results`, their output goes to files there."""
    failed = []
    processes: dict[str, subprocess.Popen[bytes]] = {}
    end = time.monotonic() + limit
    with contextlib.ExitStack() as files:
        try:
            for name in names:
                output = None if results is None else files.enter_context(open(results / f"soak-{name}.txt", "wb"))
                command = [sys.executable, "-u", "-m", f"soak.{name}", *options]
                processes[name] = subprocess.Popen(command, stdout=output, stderr=output and subprocess.STDOUT)
            for name, process in processes.items():
                try:
                    status = process.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    _end([process])
                    status = 1
                    print(f"FAILED soak.{name}: not done after {limit:g} s", flush=True)
                if results is not None:
                    lines = (results / f"soak-{name}.txt").read_text().splitlines()
                    print(*lines[-1:], sep="\n", flush=True)
                failed += [name] * (status != 0)
        except BaseException:
            _end([*processes.values()])
            raise
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--together", action="store_true", help="side by side")
    parser.add_argument("--results", type=Path, default=Path("build/results"), metavar="FOLDER",
                        help="where --together leaves what the programs print (default: build/results)")  # fmt: skip
    parser.add_argument("--limit", type=seconds, metavar="SECONDS",
                        help="for one program: a hang must end (default: an hour more than --seconds)")  # fmt: skip
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)} (default: all)")
    arguments = parser.parse_args()
    if unknown := set(arguments.programs) - {*PROGRAMS}:
        parser.error(f"unknown programs: {', '.join(sorted(unknown))}")
    end_on_sigterm()
    names = arguments.programs or PROGRAMS
    options = ["--quick"] * arguments.quick
    for name in ("seed", "seconds"):
        if (value := getattr(arguments, name)) is not None:
            options += [f"--{name}", str(value)]
    limit = (arguments.seconds or 0) + 3600 if arguments.limit is None else arguments.limit
    if arguments.together:
        arguments.results.mkdir(parents=True, exist_ok=True)
        failed = run(names, options, limit, arguments.results)
    else:
        failed = [each for name in names for each in run([name], options, limit, None)]
    print(f"soak: FAILED {', '.join(failed)}" if failed else "soak: all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
