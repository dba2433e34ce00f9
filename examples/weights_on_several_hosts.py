"""Weights for workers on several hosts: by handle inside a host, through Ray's object store once to each other host.

Two Ray nodes of this machine stand for two hosts. Needs Ray, and ends at once without it.
"""

import os
import secrets
import sys
import tempfile

# A cluster of this program alone, that leaves nothing behind: Ray reads these when it is imported.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16), RAY_USAGE_STATS_ENABLED="0")

import numpy as np

import xpushare as xs

try:
    import ray
    from ray.cluster_utils import Cluster
except ImportError:
    print("Ray is not installed")
    sys.exit(0)

LAYERS = 24
SHAPE = (256, 256)


@ray.remote(num_cpus=0)
class Relay:
    """One on each other host: what Ray brings there goes into shared memory, once for all workers of that host."""

    def store(self, name: str, weights: dict[str, np.ndarray]) -> int:
        return xs.publish(name, {key: xs.array(each) for key, each in weights.items()}, replace=True)


@ray.remote(num_cpus=0)
class Worker:
    """Computes with the weights where they lie."""

    def load(self, name: str, version: int) -> float:
        self.weights: dict[str, xs.SharedArray] = xs.attach(xs.lookup(name, timeout=60, version=version))
        return sum(float(np.asarray(each)[0, 0]) for each in self.weights.values())

    def copies(self) -> int:
        return sum(not each.is_imported for each in self.weights.values())


def main() -> None:
    here, there = f"weights-{os.getpid()}-here", f"weights-{os.getpid()}-there"
    relay = Relay.options(resources={"there": 1}).remote()
    near = [Worker.options(resources={"here": 1}).remote() for _ in range(2)]
    far = [Worker.options(resources={"there": 1}).remote() for _ in range(2)]
    for step in range(1, 4):
        weights = {f"layers.{i}": xs.array(np.full(SHAPE, step, "f4")) for i in range(LAYERS)}
        version = xs.publish(here, weights, replace=True)
        moved = ray.put({key: np.asarray(each) for key, each in weights.items()})
        arrived = ray.get(relay.store.remote(there, moved), timeout=60)
        loaded = [worker.load.remote(here, version) for worker in near]
        loaded += [worker.load.remote(there, arrived) for worker in far]
        assert ray.get(loaded, timeout=60) == [step * LAYERS] * 4
    assert ray.get([worker.copies.remote() for worker in (*near, *far)], timeout=60) == [0] * 4
    xs.unpublish(here)
    print(f"four workers on two hosts have version {version}; Ray moved the weights once for each step")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        cluster = Cluster()
        try:
            for host in "here", "there":
                cluster.add_node(
                    num_cpus=1, resources={host: 8}, object_store_memory=100 << 20, include_dashboard=False
                )
            ray.init(address=cluster.address, log_to_driver=False)
            main()
        finally:
            ray.shutdown()
            cluster.shutdown()
