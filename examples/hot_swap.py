"""Weights are replaced under a running reader, which never sees half of one version and half of another.

Two buffers: the reader uses the newest complete one, the writer fills the other once the reader has left it. Two
events say which version is there (`ready`) and up to which version the reader needs none of the older ones (`passed`).
On a GPU both sides' streams wait for them, and neither host does.
"""

import argparse
import multiprocessing
from typing import Any

import numpy as np

import xpushare as xs

VERSIONS = 200
SHAPE = (256, 1024)


class Host:
    """NumPy: what was called is done when it returns, so the caller waits and signals."""

    view = array = staticmethod(np.asarray)

    def wait(self, event: xs.Event, number: int) -> None:
        event.wait(30, at_least=number)

    def signal(self, event: xs.Event) -> None:
        event.signal()

    def finish(self) -> None:
        pass


class Gpu:
    """torch: calls are queued on a stream, and the stream waits and signals; the caller goes on at once."""

    def __init__(self, device: xs.Device) -> None:
        import torch

        torch.cuda.set_stream(torch.cuda.Stream(device.ordinal))
        self.queue = xs.Queue.from_native(torch.cuda.current_stream())
        self.view = torch.from_dlpack

    def array(self, values: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(values).to(self.queue.device.ordinal)

    def wait(self, event: xs.Event, number: int) -> None:
        self.queue.wait(event, at_least=number)

    def signal(self, event: xs.Event) -> None:
        self.queue.signal(event)

    def finish(self) -> None:
        self.queue.synchronize(30)  # what is still queued would end with this process


def work_on(device: xs.Device) -> Any:
    return Gpu(device) if device.type == "gpu" else Host()


def read(buffers: list[xs.SharedArray], ready: xs.Event, passed: xs.Event) -> None:
    work = work_on(buffers[0].device)
    weights = [work.view(buffer) for buffer in buffers]
    torn = work.array(np.zeros((), "int64"))
    version = reads = 0
    while version < VERSIONS:
        passed.wait(30, at_least=max(version - 1, 0))  # at most two reads under way: the host decides late
        newest = max(ready.value, version + 1)
        work.wait(ready, newest)
        for _ in range(version + 1, newest):  # versions skipped are passed, too
            work.signal(passed)
        torn += (weights[newest % 2] != newest).sum()
        work.signal(passed)
        version, reads = newest, reads + 1
    work.finish()
    assert int(torn) == 0, f"{int(torn)} elements were of another version"
    print(f"{reads} versions read whole, the others of {VERSIONS} skipped")


def main() -> None:
    parser = argparse.ArgumentParser(description="Weights replaced under a running reader.")
    parser.add_argument("--device", default=str(xs.default_device()), help="native_cpu:0, or cuda:0 (needs torch)")
    device = xs.Device(parser.parse_args().device)

    buffers = [xs.empty(SHAPE, "float32", device=device) for _ in range(2)]
    ready, passed = (xs.Event(device, enable_ipc=True) for _ in range(2))
    reader = multiprocessing.get_context("spawn").Process(target=read, args=(buffers, ready, passed))
    reader.start()
    work = work_on(device)
    weights = [work.view(buffer) for buffer in buffers]
    for version in range(1, VERSIONS + 1):
        if version > 2:
            work.wait(passed, version - 2)  # nobody reads the version before the last any more
        weights[version % 2][:] = version
        work.signal(ready)
    work.finish()
    reader.join()
    assert reader.exitcode == 0
    assert passed.value == VERSIONS


if __name__ == "__main__":
    main()
