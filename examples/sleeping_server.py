"""An inference server that sleeps while a trainer uses the device, and wakes with the trainer's weights.

The server's weights lie in a pool. Asleep, it holds no memory of the device, but all its tensors, and the graphs that
it captured, keep their addresses. So after the wake it copies the new weights into the old tensors, and goes on.

On a GPU the weights are torch's, in `xpushare.integrations.torch.pool`. On the host the example does by hand what the
pool does: it reserves addresses, and takes the physical memory behind them away.
"""

import argparse
import multiprocessing
from typing import Any

import numpy as np

import xpushare as xs

ELEMENTS, ROUNDS = 1 << 22, 3


class HostPool:
    """One array at reserved addresses, whose memory can be taken away."""

    def __init__(self, device: str, elements: int) -> None:
        self.device, self.nbytes = device, 4 * elements
        self.range = xs.VirtualRange(self.nbytes, device)
        self.memory: xs.PhysicalMemory | None = None
        self.wake()
        self.weights: Any = self.range.as_array(elements, "f4")

    def sleep(self) -> None:
        self.range.unmap(0, self.nbytes)
        self.memory = None

    def wake(self) -> None:
        self.memory = xs.PhysicalMemory(self.nbytes, self.device)
        self.range.map(self.memory)


class HostServer:
    def __init__(self, device: str) -> None:
        self.pool = HostPool(device, ELEMENTS)
        self.load(xs.array(np.zeros(ELEMENTS, "f4")))

    def load(self, new: Any) -> None:
        np.asarray(self.pool.weights)[:] = np.asarray(new)

    def answer(self) -> tuple[float, int]:
        return float(np.asarray(self.pool.weights).mean()), int(self.pool.weights.ptr)


class TorchServer:
    def __init__(self, device: str) -> None:
        import torch

        from xpushare.integrations import torch as integration

        self.torch = torch
        self.pool = integration.pool(device)
        with self.pool:
            self.weights = torch.zeros(ELEMENTS, device=device)
        self.mean = torch.zeros((), device=device)  # outside of the pool
        self.graph = torch.cuda.CUDAGraph()
        self.weights.mean()  # what a capture needs is loaded
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.mean.copy_(self.weights.mean())

    def load(self, new: Any) -> None:
        self.weights.copy_(self.torch.from_dlpack(new))
        self.torch.cuda.synchronize()

    def answer(self) -> tuple[float, int]:
        self.graph.replay()
        return float(self.mean), self.weights.data_ptr()


def serve(device: str, connection: Any) -> None:
    server = HostServer(device) if device.startswith("native_cpu") else TorchServer(device)
    for request in iter(connection.recv, "end"):
        if request == "answer":
            connection.send(server.answer())
        elif request == "sleep":
            server.pool.sleep()
            connection.send("asleep")
        else:  # the handle of new weights
            server.pool.wake()
            with xs.attach(request) as new:
                server.load(new)
            connection.send("awake")


def train(device: str, value: float) -> xs.SharedArray:
    """Stands for training, with the whole device to itself."""
    weights = xs.empty(ELEMENTS, "f4", device=device)
    with xs.Queue(device) as queue:
        queue.fill(weights, np.float32(value).tobytes())
        queue.synchronize()
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="native_cpu:0")
    device = parser.parse_args().device
    connection, its = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(device, its), daemon=True)
    server.start()
    its.close()  # an end of the server ends the wait for its answer

    def ask(request: Any) -> Any:
        connection.send(request)
        return connection.recv()

    _, address = ask("answer")
    for number in range(1, ROUNDS + 1):
        assert ask("sleep") == "asleep"
        weights = train(device, number)
        with xs.share(weights) as handle:
            assert ask(handle) == "awake"
        assert ask("answer") == (float(number), address)  # new weights, at the same address
    connection.send("end")
    server.join()
    print(f"{ROUNDS} times the server slept while the trainer worked, and woke with its weights at the same address")


if __name__ == "__main__":
    main()
