"""What the processes of `test_hardware_pools` do."""

from __future__ import annotations

import gc
import os
from typing import Any

import xpushare as xs
from harness import kept

NUMBER = 24  # tensors
ELEMENTS = 1 << 20


def make_torch() -> int:
    """Tensors in a pool; returns in how many allocations they lie."""
    import torch

    from xpushare.integrations import torch as integration

    pool = kept["pool"] = integration.pool("cuda:0")
    with pool:
        kept["tree"] = {
            f"layer{n}": torch.full((ELEMENTS,), float(n), device="cuda:0") for n in range(NUMBER)
        }  # fmt: skip
    torch.cuda.synchronize()
    return len(pool._driver.pieces())


def make_cupy() -> int:
    """The same with CuPy."""
    import cupy

    from xpushare.integrations import cupy as integration

    pool = kept["pool"] = integration.pool("cuda:0")
    with pool:
        kept["tree"] = {f"layer{n}": cupy.full(ELEMENTS, float(n), "f4") for n in range(NUMBER)}
    cupy.cuda.Device().synchronize()
    return len(pool._driver.pieces())


def share() -> tuple[bytes, int]:
    handle = kept["handle"] = xs.share(kept["tree"])
    return bytes(handle), len(handle.handles)


def close_handle() -> None:
    kept.pop("handle").close()


def keep(name: str) -> int:
    return xs.publish(name, kept["tree"], keep=True)


def values(tree: Any) -> list[float]:
    """The first and the last element of each."""
    found = [float(tree[f"layer{n}"][0]) for n in range(NUMBER)]
    assert found == [float(tree[f"layer{n}"][-1]) for n in range(NUMBER)]
    return found


def own_values() -> list[float]:
    return values(kept["tree"])


def attach(raw: bytes, own: bool = False) -> list[float]:
    import torch

    kept["opened"] = xs.attach(raw, own=own, like=torch)
    return values(kept["opened"])


def find(name: str, own: bool = False) -> list[float]:
    return attach(bytes(xs.lookup(name, timeout=0)), own)


def publish_owned(name: str) -> int:
    return xs.publish(name, kept["opened"], keep=True)


def close() -> None:
    del kept["opened"]


def write(value: float) -> None:
    """As an importer: the owner sees it."""
    import torch

    for n in range(NUMBER):
        kept["opened"][f"layer{n}"].fill_(value + n)
    torch.cuda.synchronize()


def free_bytes() -> int:
    import torch

    return int(torch.cuda.mem_get_info(0)[0])


def sleep(keep: bool) -> tuple[str, int]:
    """Why it does not sleep, or ""; and how many bytes of the device that freed."""
    before = free_bytes()
    try:
        kept["pool"].sleep(keep)
    except xs.XpuShareError as error:
        return str(error), 0
    return "", free_bytes() - before


def addresses() -> list[int]:
    return [int(each.__cuda_array_interface__["data"][0]) for each in kept["tree"].values()]


def wake() -> bool:
    """Whether all addresses are what they were."""
    before = addresses()
    kept["pool"].wake()
    return before == addresses()


def sleep_while_working(keep: bool) -> str:
    """Queue a long kernel and a change behind it, and sleep at once: the change must be there after the wake."""
    import torch

    torch.cuda._sleep(400_000_000)
    for each in kept["tree"].values():
        each.add_(100.0)
    return sleep(keep)[0]


def capture(inside: bool) -> list[float]:
    """Capture a graph that adds 1 to each tensor, by buffers of the pool if `inside`, and replay it after a sleep."""
    import torch

    pool, tree = kept["pool"], kept["tree"]
    graph = kept["graph"] = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    refused = ""
    with torch.cuda.stream(side):
        for each in tree.values():
            (each + 1.0).sum()  # warm up
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, **({"pool": pool.id} if inside else {})):
        for each in tree.values():
            each.copy_(each + 1.0)
        try:
            pool.sleep()
        except xs.InvalidArgumentError as error:
            refused = str(error)
    assert "while a graph is captured" in refused
    graph.replay()
    torch.cuda.synchronize()
    pool.sleep(keep=True)
    pool.wake()
    graph.replay()
    torch.cuda.synchronize()
    return values(tree)


def capture_outlives() -> list[float]:
    """Capture a graph with buffers in the pool, drop the pool, and replay."""
    import torch

    pool, tree = kept.pop("pool"), kept["tree"]
    graph = torch.cuda.CUDAGraph()
    (tree["layer0"] + 1.0).sum()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool.id):
        for each in tree.values():
            each.copy_(each + 1.0)
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    graph.replay()
    torch.cuda.synchronize()
    found = values(tree)
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    return found


def empty_while(what: str) -> tuple[str, list[float]]:
    """Why the cache is not emptied while the pool is in use; and what the tensors have after it was."""
    pool = kept["pool"]
    try:
        with pool:
            pool.empty_cache()
    except xs.InvalidArgumentError as error:
        why = str(error)
    else:
        why = what
    pool.empty_cache()
    return why, own_values()


def drop(empty: bool) -> tuple[int, int]:
    """Drop all tensors; bytes of the pool before, and after its cache is emptied, or else after it was dropped, too."""
    import torch

    pool = kept["pool"]
    before = pool.nbytes
    kept["tree"].clear()
    kept.pop("handle", None)
    torch.cuda.synchronize()
    if empty:
        pool.empty_cache()
        return before, pool.nbytes
    pieces = pool._driver.pieces
    del kept["pool"], pool
    return before, sum(each.nbytes for each in pieces())


def fork() -> bytes:
    """What a forked child may do with the pool."""
    reading, writing = os.pipe()
    if not os.fork():
        try:
            kept["pool"].__enter__()
        except xs.ForkError:
            os.write(writing, b"refused")
        os._exit(0)
    os.close(writing)
    os.wait()
    with os.fdopen(reading, "rb") as answer:
        return answer.read()


def too_much() -> tuple[str, list[float]]:
    """Ask for more than there is: torch says so, and what is there stays."""
    import torch

    try:
        with kept["pool"]:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda:0")
    except torch.OutOfMemoryError as error:
        return str(error), own_values()
    return "", []
