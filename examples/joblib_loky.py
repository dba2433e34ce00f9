"""joblib's workers (loky) work on the caller's array. Needs joblib.

loky pickles by cloudpickle, so a closure takes the array along: its handle, a few hundred bytes. A NumPy view would be
copied for each task instead (or, from 1 MiB on, by joblib through a file).
"""

import pickle
import sys

import numpy as np

import xpushare as xs

try:
    import joblib
    from joblib.externals.loky import get_reusable_executor
except ImportError:
    sys.exit("this example needs joblib: pip install joblib")

ROWS, COLUMNS = 8, 1 << 18


def main() -> None:
    array = xs.empty((ROWS, COLUMNS), "float32")
    values = np.asarray(array)
    values[:] = 1
    factor = 3

    def scale(row: int) -> float:
        mine = np.asarray(array)[row]  # a view of the caller's memory
        mine *= factor + row
        return float(mine.sum())

    with joblib.parallel_config("loky", n_jobs=2):
        sums = joblib.Parallel()(joblib.delayed(scale)(row) for row in range(ROWS))
    assert sums == [(factor + row) * COLUMNS for row in range(ROWS)]
    assert (values[:, -1] == factor + np.arange(ROWS)).all(), "the workers wrote to a copy"

    with get_reusable_executor(max_workers=2) as executor:  # the same workers, without joblib; they end with the block
        assert list(executor.map(lambda row: float(np.asarray(array)[row, 0]), range(ROWS))) == values[:, 0].tolist()
    print(f"{array.nbytes >> 20} MiB worked on in place by joblib's workers, {len(pickle.dumps(array))} bytes a task")


if __name__ == "__main__":
    main()
