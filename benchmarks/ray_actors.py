"""Measures the Ray transport against Ray's object store: ratios in one run. Needs Ray.

python -m benchmarks.ray_actors [--json results/ray.json] [--quick]

A sample is what a driver sees: one actor makes an array of float64, another one sums it, the driver has the sum. Ours
and theirs take turns. The actors of the object store never use the transport: in a process that has, Ray serializes
arrays in a slower way.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

# Ray reads these when it is imported: no token in the home folder, no reports.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16), RAY_USAGE_STATS_ENABLED="0")

import numpy as np
import ray

import xpushare as xs
from benchmarks import show
from xpushare.bench.measure import Row, alternate, compare, machine
from xpushare.integrations.ray import register

SIZES: Final = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}

register()


class Maker:
    kept: Any = None

    def numpy(self, length: int, value: float) -> Any:
        return np.full(length, value)

    def numpy_kept(self, length: int, value: float) -> Any:
        if self.kept is None or len(self.kept) != length:
            self.kept = np.empty(length)
        self.kept[:] = value
        return self.kept

    @ray.method(tensor_transport="XPUSHARE")
    def numpy_by_transport(self, length: int, value: float) -> Any:
        return np.full(length, value)

    @ray.method(tensor_transport="XPUSHARE")
    def new(self, length: int, value: float) -> Any:
        array = np.asarray(xs.empty(length))
        array[:] = value
        return array

    @ray.method(tensor_transport="XPUSHARE")
    def shared_kept(self, length: int, value: float) -> Any:
        if self.kept is None or len(self.kept) != length:
            self.kept = np.asarray(xs.empty(length))
        else:
            ray.experimental.wait_tensor_freed(self.kept, 60)
        self.kept[:] = value
        return self.kept


class Summer:
    def total(self, array: Any) -> float:
        return float(array.sum())


def start(cls: type, *ready: Any) -> Any:
    return ray.remote(num_cpus=0, enable_tensor_transport=True)(cls).remote(*ready)


def nothing(_actor: object) -> None:
    pass


def sampler(make: Any, total: Any, length: int, everybody: list[Any]) -> Callable[[], float]:
    """Microseconds from the call to the driver's sum."""

    def sample() -> float:
        # Everybody has let go of what the sample before left: the result that an actor returned last goes with its next
        # call, what Ray releases goes in a group of its own.
        for options in ({}, {"concurrency_group": "_ray_system"}):
            ray.get([each.__ray_call__.options(**options).remote(nothing) for each in everybody], timeout=60)
        begin = time.perf_counter()
        found = ray.get(total.remote(make.remote(length, 2.0)), timeout=60)
        seconds = time.perf_counter() - begin
        assert found == 2.0 * length
        return seconds * 1e6

    return sample


def measure(quick: bool) -> list[Row]:
    maker, summer = start(Maker), start(Summer)
    store_maker, store_summer = start(Maker), start(Summer)
    everybody = [maker, summer, store_maker, store_summer]
    rows = []
    for name, nbytes in SIZES.items():
        length = nbytes // 8

        def ours(make: Any, length: int = length) -> Callable[[], float]:
            return sampler(make, summer.total, length, everybody)

        def theirs(make: Any, length: int = length) -> Callable[[], float]:
            return sampler(make, store_summer.total, length, everybody)

        copied, new, kept, store, store_kept = alternate(
            3 if quick else 10,
            ours(maker.numpy_by_transport),
            ours(maker.new),
            ours(maker.shared_kept),
            theirs(store_maker.numpy),
            theirs(store_maker.numpy_kept),
            warm_up=3,
        )
        for what, mine, other, its in (
            ("a new NumPy array, copied once", copied, "a new NumPy array", store),
            ("a new array by xpushare.empty", new, "a new NumPy array", store),
            ("one array by xpushare.empty, filled anew", kept, "one NumPy array, filled anew", store_kept),
        ):
            rows.append(compare("ray", f"{name}, {what}", mine, f"Ray's object store, {other}", its))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    parser.add_argument("--quick", action="store_true", help="three samples: shows that it works, no figures to quote")
    arguments = parser.parse_args()
    where = machine() | {"ray": ray.__version__, "numpy": np.__version__}
    folder = tempfile.mkdtemp(prefix="ray-")
    try:
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30, _temp_dir=folder
        )
        rows = measure(arguments.quick)
    finally:
        ray.shutdown()
        shutil.rmtree(folder)
    show(where, rows, arguments.json, quick=arguments.quick)


if __name__ == "__main__":
    main()
