"""A trainer hands a model's weights to inference workers at every step; either side is killed and started again.

Each step has a message of its own: all weights under one handle, published under one name. Workers wait for the next
version and use the newest. Its memory is never written again and stays while anybody has it open, so nobody reads half
of one version and half of another, and nobody waits for a worker. A worker that loses its trainer goes on with the
weights that it has, until the next trainer publishes.
"""

import argparse
import contextlib
import multiprocessing
import os
import time
from typing import Any, Literal

import numpy as np

import xpushare as xs

NAME = f"weights-{os.getpid()}"  # the supervisor's pid: two of these may run
LAYERS, WIDTH = 24, 64


def model(device: str, step: int) -> dict[str, Any]:
    """Weights as step `step` left them; here that is every weight's value."""
    shapes = {f"layers.{layer}.weight": (WIDTH, WIDTH) for layer in range(LAYERS)}
    shapes |= {f"layers.{layer}.bias": (WIDTH,) for layer in range(LAYERS)}
    if device.startswith("native_cpu"):
        return {name: np.full(shape, step, "float32") for name, shape in shapes.items()}
    import torch

    return {name: torch.full(shape, step, dtype=torch.float32, device="cuda") for name, shape in shapes.items()}


def train(name: str, device: str, first: int) -> None:
    weights = model(device, first)
    on_host = device.startswith("native_cpu")
    handle = None
    for step in range(first, 1 << 40):
        for value in weights.values():
            value[...] = step  # a step of the optimizer, in place
        # What is published must stay as it is. On the host share copies it, into one allocation; on a GPU clones do.
        snapshot = weights if on_host else {name: value.clone() for name, value in weights.items()}
        new = xs.share({"step": step, "weights": snapshot}, copy=on_host)
        xs.publish(name, new, replace=True)
        if handle is not None:
            handle.close()  # whoever has the old version open keeps it
        handle = new
        time.sleep(0.005)


def infer(name: str, like: Literal["numpy", "torch"], last: int, results: Any) -> None:
    versions, lost = 0, 0
    for handle in xs.watch(name):
        try:
            state = xs.attach(handle, like=like)
        except xs.HandleExpiredError:  # the trainer has died since: there will be another
            lost += 1
            continue
        assert all(bool((value == state["step"]).all()) for value in state["weights"].values()), "of two versions"
        versions += 1
        if state["step"] >= last:
            break
    results.put((versions, lost))


def step_of(name: str, at_least: int) -> int:
    """Wait until there is a version of that step or a later one."""
    for handle in xs.watch(name):
        with contextlib.suppress(xs.HandleExpiredError):
            step: int = xs.attach(handle)["step"]
            if step >= at_least:
                return step
    raise AssertionError("a watch never ends")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="native_cpu:0", help="native_cpu:0, or cuda:0 (needs torch)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="of each of the two trainers")
    arguments = parser.parse_args()
    device, steps = arguments.device, arguments.steps
    like = "numpy" if device.startswith("native_cpu") else "torch"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()

    def start(function: Any, *more: Any) -> Any:
        process = context.Process(target=function, args=(NAME, *more), daemon=True)
        process.start()
        return process

    trainer = start(train, device, 0)
    workers = [start(infer, like, 2 * steps, results) for _ in range(arguments.workers)]
    reached = step_of(NAME, steps // 2)
    workers[0].kill()  # SIGKILL: the trainer does not notice
    workers[0].join()
    workers[0] = start(infer, like, 2 * steps, results)
    reached = step_of(NAME, max(steps, reached + 1))
    trainer.kill()
    trainer.join()
    trainer = start(train, device, reached + 1)  # from its checkpoint, say
    for _ in workers:
        versions, lost = results.get(timeout=60)
        print(f"a worker used {versions} whole versions, and met {lost} of a dead trainer")
        assert versions
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    trainer.kill()
    trainer.join()


if __name__ == "__main__":
    main()
