"""Two versions of a model side by side, and the way back, while servers answer requests.

The keeper holds the versions, so whoever published them may end. A server moves to a new version between two
requests: a request that has begun ends with the version that it began with. A version's memory is free once no server
has it and it is none of the last two.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
from typing import Any

import numpy as np

import xpushare as xs

NAME = f"model-{os.getpid()}"  # two of these may run
LAYERS = 4


def publish(name: str, device: str, version: float) -> None:
    """Stands for loading a version of a model."""
    layers = {}
    for number in range(LAYERS):
        layers[f"layers.{number}"] = layer = xs.empty(1 << 16, "f4", device=device)
        with xs.Queue(device) as queue:
            queue.fill(layer, np.float32(version).tobytes())
            queue.synchronize()
    xs.publish(name, {"version": version, "layers": layers}, keep=True, replace=True, versions=2)


def answer(model: Any, device: str) -> float:
    """A request: every layer is of one version."""
    with xs.malloc_host(4, device) as host, xs.Queue(device) as queue:
        found = set()
        for layer in model["layers"].values():
            queue.copy(host, layer.memory.slice(0, 4))
            queue.synchronize()
            found.add(float(np.frombuffer(host, "f4")[0]))
    assert found == {model["version"]}
    return model["version"]


def serve(name: str, device: str, connection: Any) -> None:
    """Answer requests. `move`: use what the name stands for from now on."""
    model = xs.attach(xs.lookup(name, timeout=30))
    for request in iter(connection.recv, "end"):
        if request == "move":
            model = xs.attach(xs.lookup(name, timeout=30))
        connection.send(answer(model, device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="native_cpu:0")
    device = parser.parse_args().device
    context = multiprocessing.get_context("spawn")

    def publish_by_a_process_that_ends(version: float) -> None:
        loader = context.Process(target=publish, args=(NAME, device, version))
        loader.start()
        loader.join()
        assert loader.exitcode == 0

    def ask(server: Any, request: str) -> float:
        server.send(request)
        found: float = server.recv()
        return found

    publish_by_a_process_that_ends(1.0)
    servers, processes = [], []
    for _ in range(2):
        mine, its = context.Pipe()
        processes.append(context.Process(target=serve, args=(NAME, device, its), daemon=True))
        processes[-1].start()
        its.close()  # an end of the server ends the wait for its answer
        servers.append(mine)
    assert [ask(server, "answer") for server in servers] == [1.0, 1.0]
    blue = xs.lookup(NAME, timeout=30)
    publish_by_a_process_that_ends(2.0)
    assert [ask(server, "answer") for server in servers] == [1.0, 1.0]  # nothing changes under a server
    assert [ask(servers[0], "move"), ask(servers[1], "answer")] == [2.0, 1.0]  # green beside blue
    model = xs.attach(blue, own=True)  # the way back: the earlier version is there
    xs.publish(NAME, model, keep=True, replace=True, versions=2)
    del model
    assert [ask(server, "move") for server in servers] == [1.0, 1.0]
    for server, process in zip(servers, processes, strict=True):
        server.send("end")
        process.join()
    subprocess.run([sys.executable, "-m", "xpushare", "keep", "--drop", NAME], check=True)
    print("2 servers moved to version 2.0 one by one, and back, between requests")


if __name__ == "__main__":
    main()
