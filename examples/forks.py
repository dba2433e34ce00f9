"""What stays valid across a fork, and torch's DataLoader with forked workers."""

import multiprocessing
import os
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np

import xpushare as xs

SIZE = 64


def across_a_fork(array: xs.SharedArray, view: np.ndarray, handle: bytes) -> None:
    """In the forked child."""
    try:
        np.asarray(array)
    except xs.ForkError as error:
        print(f"the object is the parent's: {error}")
    else:
        raise AssertionError("a parent's object was used")
    array.close()  # closes nothing of the parent's
    assert view[0] == 1  # a view that the parent made: mapped here, too
    with xs.attach(handle) as again:  # the handle is bytes
        np.asarray(again)[1] = os.getpid()


class Samples:
    """A dataset in shared memory: it carries the handle, and each process attaches for itself."""

    def __init__(self, handle: bytes) -> None:
        self._handle = handle
        self._pid = 0
        self._array: Any = None

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> float:
        if self._pid != os.getpid():
            self._array = xs.attach(self._handle)
            self._pid = os.getpid()
        return float(np.asarray(self._array)[index])


def load(handle: bytes, method: str) -> None:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(Samples(handle), batch_size=8, num_workers=2, multiprocessing_context=method)  # type: ignore[arg-type]
    total = sum(float(batch.sum()) for batch in loader)
    assert total == SIZE * (SIZE - 1) / 2
    print(f"DataLoader, {method}: {len(loader)} batches")


def main() -> None:
    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)  # from Python 3.12 on, of each fork
    array = xs.empty(2)
    view = np.asarray(array)
    view[0] = 1
    with xs.share(array) as handle:
        child = multiprocessing.get_context("fork").Process(target=across_a_fork, args=(array, view, bytes(handle)))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert view[1] == child.pid
    print("a view from before the fork and a handle work in the child; what the child closes stays open here")

    if find_spec("torch") is None:
        print("DataLoader: needs torch, left out")
        return
    with xs.share(xs.array(np.arange(SIZE, dtype="float64"))) as samples:
        for method in ("fork", "spawn"):
            load(bytes(samples), method)


if __name__ == "__main__":
    main()
