"""Workers of a process pool work on the caller's array: what travels to them is a few hundred bytes."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import xpushare as xs

ROWS, COLUMNS = 8, 1 << 18


def square_row(array: xs.SharedArray, row: int) -> float:
    values = np.asarray(array)[row]  # a view of the caller's memory
    values **= 2
    return float(values.sum())


def main() -> None:
    array = xs.empty((ROWS, COLUMNS), "float32")
    values = np.asarray(array)
    for method in ("spawn", "forkserver"):
        values[:] = np.arange(ROWS)[:, None]
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            sums = list(pool.map(square_row, [array] * ROWS, range(ROWS)))
        assert sums == [row * row * COLUMNS for row in range(ROWS)]
        assert (values[:, -1] == np.arange(ROWS) ** 2).all(), "the workers wrote to a copy"
        print(
            f"{method}: {array.nbytes >> 20} MiB worked on in place, {len(pickle.dumps(array))} bytes pickled per task"
        )


if __name__ == "__main__":
    main()
