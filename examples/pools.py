"""Workers of a process pool work on the caller's array, and return arrays of their own: what travels is a few hundred
bytes.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import xpushare as xs

ROWS, COLUMNS = 8, 1 << 18


def square_row(array: xs.SharedArray, row: int) -> float:
    values = np.asarray(array)[row]  # a view of the caller's memory
    values **= 2
    return float(values.sum())


def every_second(array: xs.SharedArray, row: int) -> xs.SharedArray:
    part = xs.empty(COLUMNS // 2, "float32")
    np.asarray(part)[:] = np.asarray(array)[row, ::2]
    return part  # nothing here keeps it: its pickle does, until the receiver has opened it


def mean(array: xs.SharedArray) -> float:
    return float(np.asarray(array).mean())


def main() -> None:
    array = xs.empty((ROWS, COLUMNS), "float32")
    values = np.asarray(array)
    for method in ("spawn", "forkserver"):
        values[:] = np.arange(ROWS)[:, None]
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            sums = list(pool.map(square_row, [array] * ROWS, range(ROWS)))
            parts = list(pool.map(every_second, [array] * ROWS, range(ROWS)))
        with multiprocessing.get_context(method).Pool(1) as other:  # results can go on, though their pool is gone
            assert other.map(mean, parts) == [row * row for row in range(ROWS)]
        assert sums == [row * row * COLUMNS for row in range(ROWS)]
        assert (values[:, -1] == np.arange(ROWS) ** 2).all(), "the workers wrote to a copy"
        with xs.share(array) as handle:
            size = len(bytes(handle))
        print(f"{method}: {array.nbytes >> 20} MiB worked on in place, by a handle of {size} bytes")


if __name__ == "__main__":
    main()
