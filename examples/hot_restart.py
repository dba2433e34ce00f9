"""Servers that take over from each other, each killed with SIGKILL, without loading the weights again.

The first server loads the weights and publishes them. Each next one starts while the one before still serves, attaches
the weights with `own=True`, and publishes the same memory when its predecessor has died. A client goes on throughout.

With `--keep`, the first server publishes with `keep=True`, and no other has to run while one dies: the keeper holds the
weights.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np

import xpushare as xs

NAME = f"weights-{os.getpid()}"  # two of these may run


def load(device: str, layers: int) -> dict[str, Any]:
    """Stands for reading a file of many gigabytes."""
    weights = {}
    for number in range(layers):
        weights[f"layers.{number}"] = layer = xs.empty(1 << 16, "f4", device=device)
        with xs.Queue(device) as queue:
            queue.fill(layer, np.float32(number).tobytes())
            queue.synchronize()
    return weights


def serve_kept(name: str, device: str, layers: int, ready: Any) -> None:
    """Serve the weights that are kept, or load them and have them kept."""
    if name in xs.published():
        weights: dict[str, xs.SharedArray] = xs.attach(xs.lookup(name, timeout=30))
    else:
        weights = load(device, layers)
        xs.publish(name, weights, keep=True)
    ready.send((os.getpid(), len(weights)))
    threading.Event().wait()


def serve(name: str, device: str, layers: int, ready: Any, predecessor: Any) -> None:
    """Publish the weights: those of the server before, once it has died, or new ones."""
    if predecessor is None:
        weights = load(device, layers)
    else:
        with xs.watch(name, timeout=60, lost=True) as versions:
            handle = next(versions)
            assert not isinstance(handle, xs.Lost)
            weights = xs.attach(handle, own=True)
            ready.send(os.getpid())
            assert isinstance(next(versions), xs.Lost)  # waits for that
    xs.publish(name, weights, replace=True)
    ready.send(os.getpid())
    threading.Event().wait()


def first_values(name: str, device: str) -> list[float]:
    """What a client reads."""
    while True:
        try:
            tree: dict[str, xs.SharedArray] = xs.attach(xs.lookup(name, timeout=30))
        except xs.HandleExpiredError:  # the server died in between
            continue
        with xs.malloc_host(4, device) as host, xs.Queue(device) as queue:
            found = []
            for layer in tree.values():
                queue.copy(host, layer.memory.slice(0, 4))
                queue.synchronize()
                found.append(float(np.frombuffer(host, "f4")[0]))
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="native_cpu:0")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="with a keeper")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    expected = [float(number) for number in range(arguments.layers)]

    def start(function: Any, *more: Any) -> tuple[Any, Any]:
        """A server, and what it says: by a pipe of its own, since a queue's lock may die with whoever has it."""
        ready, telling = context.Pipe(duplex=False)
        server = context.Process(
            target=function, args=(NAME, arguments.device, arguments.layers, telling, *more), daemon=True
        )
        server.start()
        telling.close()
        return server, ready

    if arguments.keep:
        for _ in range(arguments.restarts + 1):
            server, ready = start(serve_kept)
            assert ready.recv() == (server.pid, arguments.layers)
            server.kill()
            server.join()
            assert first_values(NAME, arguments.device) == expected  # nobody runs but the keeper
        subprocess.run([sys.executable, "-m", "xpushare", "keep", "--drop", NAME], check=True)
    else:
        server, ready = start(serve, None)
        assert ready.recv() == server.pid
        for _ in range(arguments.restarts):
            heir, ready = start(serve, server.pid)
            assert ready.recv() == heir.pid  # it has attached the weights
            server.kill()
            server.join()
            assert ready.recv() == heir.pid  # it has published them
            assert first_values(NAME, arguments.device) == expected
            server = heir
        server.kill()
        server.join()
    print(f"{arguments.layers} layers went through {arguments.restarts} servers that were killed, loaded once")


if __name__ == "__main__":
    main()
