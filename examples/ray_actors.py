"""Ray actors that hand each other arrays: where they are, instead of through Ray's object store; and a stream of frames
by a channel, without a call of Ray for each. Needs Ray.
"""

import os
import secrets
import statistics
import tempfile
import time

# A cluster of this program alone, that leaves nothing behind: Ray reads these when it is imported.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16), RAY_USAGE_STATS_ENABLED="0")

import numpy as np
import ray

import xpushare as xs
from xpushare.integrations.ray import register

LENGTH = 8 << 20  # 64 MiB of float64

register()  # before the actors are made


@ray.remote(num_cpus=0)
class Camera:
    @ray.method(tensor_transport="XPUSHARE")
    def shoot(self, number: int) -> np.ndarray:
        self.frame = np.asarray(xs.empty(LENGTH))  # in memory that other processes can map
        self.frame[:] = number
        return self.frame

    def first(self) -> float:
        return float(self.frame[0])

    def open(self, name: str) -> None:
        self.channel = xs.Channel.create(name, LENGTH, slots=3)

    def film(self, count: int) -> None:
        for number in range(count):
            with self.channel.loan() as frame:
                np.asarray(frame)[:] = number
        self.channel.finish()

    def exports(self) -> int:
        return sum(row["exporter"] == os.getpid() for row in xs.shares())


@ray.remote(num_cpus=0)
class PlainCamera:
    def shoot(self, number: int) -> np.ndarray:
        return np.full(LENGTH, float(number))


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Viewer:
    def total(self, frame: np.ndarray) -> float:
        return float(frame.sum())

    def mark(self, frame: np.ndarray) -> None:
        frame[0] = -1

    def follow(self, name: str) -> None:
        self.channel = xs.Channel.open(name)

    def watch(self) -> tuple[list[float], float]:
        """The sums of all frames, and the milliseconds from one to the next."""
        sums, moments = [], []
        for frame in self.channel:
            sums.append(float(np.asarray(frame).sum()))
            moments.append(time.perf_counter())
        return sums, statistics.median(np.diff(moments[3:])) * 1e3


def milliseconds(camera: "ray.actor.ActorHandle", viewer: "ray.actor.ActorHandle") -> float:
    """Median of making a frame, handing it on and adding it up."""
    samples = []
    for number in range(8):
        begin = time.perf_counter()
        assert ray.get(viewer.total.remote(camera.shoot.remote(number)), timeout=60) == number * LENGTH
        samples.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(samples[3:])


def stream(camera: "ray.actor.ActorHandle", viewer: "ray.actor.ActorHandle", count: int) -> float:
    """Milliseconds from one frame of a stream to the next."""
    name = f"ray-{os.getpid()}"
    ray.get(camera.open.remote(name), timeout=60)
    ray.get(viewer.follow.remote(name), timeout=60)  # before the first frame, so that it sees all
    filming, watching = camera.film.remote(count), viewer.watch.remote()
    sums, milliseconds = ray.get(watching, timeout=60)
    ray.get(filming, timeout=60)
    assert sums == [number * LENGTH for number in range(count)]
    return milliseconds


def main() -> None:
    camera, viewer = Camera.remote(), Viewer.remote()
    frame = camera.shoot.remote(7)
    assert ray.get(viewer.total.remote(frame), timeout=60) == 7 * LENGTH
    ray.get(viewer.mark.remote(frame), timeout=60)
    assert ray.get(camera.first.remote(), timeout=60) == -1
    print("the viewer wrote into the very memory that the camera's frame lies in")

    assert ray.get(camera.exports.remote(), timeout=60) == 1
    del frame
    end = time.monotonic() + 60
    while ray.get(camera.exports.remote(), timeout=60):
        assert time.monotonic() < end, "the frame was not released"
    print("the export ended with the last reference")

    shared = milliseconds(camera, viewer)
    stored = milliseconds(PlainCamera.remote(), Viewer.remote())
    print(f"64 MiB from actor to actor: {shared:.1f} ms, through Ray's object store {stored:.1f} ms")
    print(f"a frame of 64 MiB in a stream by a channel: {stream(Camera.remote(), Viewer.remote(), 20):.1f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 28, _temp_dir=folder
        )
        try:
            main()
        finally:
            ray.shutdown()
