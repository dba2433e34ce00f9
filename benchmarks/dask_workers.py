"""Measures arrays between two Dask workers of one machine: this package's family against Dask's own way, in one run.

python -m benchmarks.dask_workers [--json results/dask.json]

Two clusters of two workers each run side by side, one with the family (threshold 0) and one without. An array is made
on the first worker, then summed on the second: the clock runs from the submission of the sum until its result is here.
The transfer alone is what the second worker's own log says of it. Medians with quartiles, in milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from time import perf_counter
from typing import Any, Final

import dask
import numpy as np
from distributed import Client, LocalCluster, get_worker, wait

import xpushare as xs
from benchmarks import show
from xpushare.bench.measure import Row, alternate, compare, machine

SIZES: Final = {"64 MiB": 64 << 20, "1 MiB": 1 << 20, "4 KiB": 4096}
WORK: Final = "made on worker A, summed on worker B"
OTHER: Final = "Dask's own, tcp"


def private(nbytes: int) -> Any:
    """What NumPy code makes: memory that is this process's alone."""
    return np.full(nbytes // 8, 3.0)


def shared(nbytes: int) -> Any:
    """The same in memory that can be shared in place."""
    array = np.asarray(xs.empty(nbytes // 8))
    array[:] = 3.0
    return array


def total(array: Any, keep: bool) -> tuple[float, float]:
    """The sum, and the milliseconds that this worker's last fetch took; `keep`: the array stays here."""
    worker: Any = get_worker()
    if keep:
        vars(worker).setdefault("kept_by_bench", []).append(array)
    return float(array.sum()), 1000 * worker.transfer_incoming_log[-1]["duration"]


def forget(dask_worker: Any) -> None:
    vars(dask_worker).pop("kept_by_bench", None)


KINDS: Final = (  # what it is called, how the array is made, whether the receiver keeps it
    ("NumPy's memory, copied once", private, False),
    ("the same, and the receiver keeps it", private, True),
    ("xs.empty, zero copy", shared, False),
)


class Side:
    """One cluster."""

    def __init__(self, preload: list[str]) -> None:
        self._cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0, preload=preload
        )
        self.client = Client(self._cluster)
        self.first, self.second = self.client.nthreads()
        self.transfers: list[float] = []  # of the samples taken so far

    def sample(self, make: Callable[[int], Any], nbytes: int, keep: bool) -> float:
        """Milliseconds until the sum is here."""
        made = self.client.submit(make, nbytes, workers=[self.first], pure=False)
        wait(made)
        start = perf_counter()
        found, transfer = self.client.submit(total, made, keep, workers=[self.second], pure=False).result()
        elapsed = 1000 * (perf_counter() - start)
        assert found == 3.0 * (nbytes // 8)
        self.transfers.append(transfer)
        return elapsed

    def close(self) -> None:
        self.client.close()
        self._cluster.close()


def rows(ours: Side, theirs: Side, count: int) -> list[Row]:
    """Each size and kind of array, both ways in turn."""
    found: list[Row] = []
    for size, nbytes in SIZES.items():
        for kind, make, keep in KINDS:
            ours.transfers.clear()
            theirs.transfers.clear()
            mine, its = alternate(
                count,
                lambda m=make, n=nbytes, k=keep: ours.sample(m, n, k),
                lambda n=nbytes, k=keep: theirs.sample(private, n, k),
            )
            name = f"{size}, {kind}"
            found.append(compare(WORK, name, mine, OTHER, its, unit="ms"))
            alone = ours.transfers[-count:], theirs.transfers[-count:]
            found.append(compare("the transfer alone", name, alone[0], OTHER, alone[1], unit="ms"))
            for side in (ours, theirs):
                side.client.run(forget)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--count", type=int, default=10, help="samples of each side")
    arguments = parser.parse_args()
    where = machine() | {name: version(name) for name in ("dask", "distributed", "numpy")}
    with tempfile.TemporaryDirectory(prefix="xpushare-dask-") as folder, contextlib.ExitStack() as stack:
        os.environ.setdefault("XPUSHARE_RUNTIME_DIR", folder)
        stack.enter_context(dask.config.set({"temporary-directory": folder, "xpushare.threshold": 0}))
        ours, theirs = (
            stack.enter_context(contextlib.closing(Side(preload))) for preload in (["xpushare.integrations.dask"], [])
        )
        found = rows(ours, theirs, arguments.count)
    show(where, found, arguments.json)


if __name__ == "__main__":
    main()
