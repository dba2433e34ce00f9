"""What the processes of tests/arrays/test_pools.py run; importable, so that every start method finds it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

import xpushare as xs


def made(n: int) -> xs.SharedArray:
    """A result that nothing here keeps."""
    array = xs.empty(n)
    np.asarray(array)[:] = n
    return array


class Dropped:
    """Pickles as an array that is gone when its pickle is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (pickle.dumps(made(4)),)


def dropped(_nothing: object) -> Dropped:
    return Dropped()


def total(array: xs.SharedArray) -> float:
    return float(np.asarray(array).sum())


def send_many(queue: Any, counts: range, received: Any) -> None:
    """Queue results; stay until they have come, as the exporter of what is in the queue."""
    for n in counts:
        queue.put(made(n))
    received.wait(60)


def pid(_nothing: object) -> int:
    import os

    return os.getpid()
