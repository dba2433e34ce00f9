"""Measures the CUDA adapter on this machine against what a user would pick instead: ratios in one run.

python -m benchmarks.gpu [--only events,tensors] [--json FILE]

Each group runs in a process of its own with a time limit, and one that fails does not end the run. Both sides of a row
do the same work and enqueue it anew each round. Exit status 1 if a group failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import xpushare as xs
from benchmarks import show
from benchmarks.gpu import events, footprint, memory, placement, tensors
from xpushare import adapters
from xpushare.bench.measure import Row, machine


def trees() -> list[Row]:
    """A model's 578 tensors, and the floor of the driver's own calls."""
    from benchmarks.trees import Bench

    bench = Bench("cuda:0")
    rows = [*bench.rows(10), *bench.floors(5)]
    bench.end()
    return rows


class Group(NamedTuple):
    measure: Callable[[], list[Row]]
    gpus: int
    seconds: int


GROUPS: Final = {
    "events": Group(events.events, 1, 40),
    "tensors": Group(tensors.tensors, 1, 60),
    "opens": Group(memory.opens, 1, 40),
    "trees": Group(trees, 1, 90),
    "buffers": Group(memory.buffers, 1, 50),
    "events_busy": Group(events.events_busy, 1, 50),
    "events_two": Group(events.events_two, 2, 60),
    "placement": Group(placement.placement, 2, 60),
    "copies": Group(memory.copies, 1, 40),
    "footprint": Group(footprint.footprint, 1, 90),
}
UNDER_MPS: Final = ("events", "opens")


def run_group(name: str, environment: Mapping[str, str]) -> tuple[list[Row], str]:
    """Return the rows of one group, and why it failed. It runs in a process group that ends with its time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows")
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu", "--group", name, "--out", str(out)],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            error = process.communicate(timeout=GROUPS[name].seconds)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            error = process.communicate()[1] + f"\nnot done within {GROUPS[name].seconds} s"
        rows: list[Row] = pickle.loads(out.read_bytes()) if out.exists() else []
        return rows, error[-1500:] if process.returncode else ""


@contextlib.contextmanager
def mps_daemon() -> Iterator[Mapping[str, str]]:
    """Run a private MPS daemon. Yields the environment in which processes use it."""
    control = "nvidia-cuda-mps-control"
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in places.values():
            Path(place).mkdir()
        env = {**os.environ, **places}
        subprocess.run([control, "-d"], env=env, capture_output=True, timeout=15, check=True)
        try:
            yield places
        finally:
            subprocess.run([control], input=b"quit\n", env=env, capture_output=True, timeout=30, check=False)


def versions() -> dict[str, str]:
    found = {}
    for name in ("cuda-bindings", "cuda-core", "torch", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--only", default="", help=f"some of {','.join(GROUPS)},mps")
    for hidden in ("--group", "--out"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.group:
        Path(options.out).write_bytes(pickle.dumps(GROUPS[options.group].measure()))
        return 0
    devices = xs.devices("cuda:*")
    if not devices:
        sys.exit(adapters.adapter("cuda").why_none())
    where = machine() | versions()
    where |= {"device": devices[0].name, "driver": devices[0].driver_version, "gpus": len(devices)}
    rows: list[Row] = []
    failed: dict[str, str] = {}

    def run(name: str, environment: Mapping[str, str], under: str = "") -> None:
        found, error = run_group(name, environment)
        for row in found:
            row.name += under
        rows.extend(found)
        if error:
            failed[name + under] = error

    for name in options.only.split(",") if options.only else (*GROUPS, "mps"):
        print(name, file=sys.stderr, flush=True)
        if name == "mps" and shutil.which("nvidia-cuda-mps-control"):
            with mps_daemon() as environment:
                for inside in UNDER_MPS:
                    run(inside, environment, ", under MPS")
        elif name != "mps" and GROUPS[name].gpus <= len(devices):
            run(name, {})
    show(where, rows, options.json)
    for name, error in failed.items():
        print(f"FAILED {name}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
