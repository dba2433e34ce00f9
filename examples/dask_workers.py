"""Dask workers of one machine hand arrays to each other as handles: what one made the other reads in place.

Needs Dask: pip install distributed
"""

import tempfile

import dask
import numpy as np
from distributed import Client, LocalCluster, get_worker

import xpushare as xs
from xpushare.integrations import dask as xdask

SHAPE = (4096, 1024)


def make() -> np.ndarray:
    array = np.asarray(xs.empty(SHAPE, "float32"))  # NumPy works on it as on any other
    array[:] = np.arange(SHAPE[0])[:, None]
    return array


def read(array: np.ndarray) -> tuple[str, float, bool, bool]:
    with open("/proc/self/maps") as maps:
        mapped = any("memfd:xpushare-memory" in line and line.split()[1].startswith("r--s") for line in maps)
    return get_worker().address, float(array.sum(dtype="float64")), array.flags.writeable, mapped


def square(array: np.ndarray) -> np.ndarray:
    return array**2  # in memory of NumPy's own, as most results are


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set({"temporary-directory": folder}),
        # This one line lets all workers use handles.
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", preload="xpushare.integrations.dask"
        ) as cluster,
        Client(cluster) as client,
    ):
        first, second = client.nthreads()
        wanted = SHAPE[1] * sum(range(SHAPE[0]))

        made = client.submit(make, workers=[first])
        where, total, writeable, mapped = client.submit(read, made, workers=[second]).result()
        assert (where, total, writeable, mapped) == (second, wanted, False, True)
        print(f"made by {first}, summed by {second} where it lies: {total:.0f}")

        # The memory stays as long as anybody has it open, whatever its producer does: spill it, release it, end.
        squares = client.submit(square, made, workers=[second])
        assert client.submit(np.sqrt, squares, workers=[first]).result().sum(dtype="float64") == wanted

        found = client.run(xdask.leases)
        assert [found[worker]["granted"] for worker in (first, second)] == [1, 1]
        assert [found[worker]["attached"] for worker in (first, second)] == [1, 1]
        assert not any(each["failed"] or each["refused"] for each in found.values())
        print(f"{SHAPE[0] * SHAPE[1] * 4 >> 20} MiB went each way in a handle; nothing of it through the socket")


if __name__ == "__main__":
    main()
