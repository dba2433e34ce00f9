"""torch's pool with the tensors of a model (GPT-2 XL's shape in half precision: 578 tensors, 3.1 GB): how long it
takes to share and attach them, to hand them to the keeper, to find them after SIGKILL, to sleep and to wake.

`python3 -m benchmarks.gpu.pools [--kind expandable | own] [--heirs 50]`: with torch's expandable segments instead of
the pool, and with what torch's own queue does for the same tensors, without its pipe; or 578 tensors in 148 allocations
of `xs.empty`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import xpushare as xs
from harness import Child, kept

LAYERS, HIDDEN, VOCABULARY, POSITIONS = 48, 1600, 50257, 1024
ROUNDS = 10


def model(torch: Any) -> dict[str, Any]:
    def new(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.float16, device="cuda:0")

    tree = {"wte": new(VOCABULARY, HIDDEN), "wpe": new(POSITIONS, HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in (
            ("ln1.w", (HIDDEN,)), ("ln1.b", (HIDDEN,)), ("attn.w", (HIDDEN, 3 * HIDDEN)), ("attn.b", (3 * HIDDEN,)),
            ("proj.w", (HIDDEN, HIDDEN)), ("proj.b", (HIDDEN,)), ("ln2.w", (HIDDEN,)), ("ln2.b", (HIDDEN,)),
            ("fc.w", (HIDDEN, 4 * HIDDEN)), ("fc.b", (4 * HIDDEN,)), ("fc2.w", (4 * HIDDEN, HIDDEN)),
            ("fc2.b", (HIDDEN,)),
        ):  # fmt: skip
            tree[f"h{layer}.{name}"] = new(*shape)
    torch.cuda.synchronize()
    return tree


def in_pool(torch: Any) -> dict[str, Any]:
    from xpushare.integrations import torch as integration

    if "pool" not in kept:
        kept["pool"] = integration.pool("cuda:0")
    with kept["pool"]:
        return model(torch)


def in_own(torch: Any) -> dict[str, Any]:
    """The same number of tensors in 148 allocations of `xs.empty`."""
    segments = [torch.from_dlpack(xs.empty(21 << 20, "u1", device="cuda:0")).view(torch.float16) for _ in range(148)]
    tree = {}
    for number in range(2 + 12 * LAYERS):
        segment = segments[number % 148]
        part = segment.numel() // 4
        tree[str(number)] = segment[part * (number // 148) : part * (number // 148 + 1)].normal_()
    torch.cuda.synchronize()
    return tree


NEW = {"pool": in_pool, "expandable": model, "own": in_own}


def make(kind: str) -> int:
    """Make the model; returns its bytes."""
    import torch

    kept["kind"] = kind
    kept["tree"] = NEW[kind](torch)
    return sum(each.nbytes for each in kept["tree"].values())


def remake() -> None:
    """Give all memory back, and make the model in new memory."""
    import torch

    kept["tree"].clear()
    torch.cuda.empty_cache()
    if kept["kind"] == "pool":
        kept["pool"].empty_cache()
    kept["tree"] = NEW[kept["kind"]](torch)


def share() -> tuple[bytes, int, float]:
    begin = time.perf_counter()
    handle = xs.share(kept["tree"])
    took = time.perf_counter() - begin
    kept["handle"] = handle
    return bytes(handle), len(handle.handles), took * 1e3


def close() -> None:
    kept.pop("handle").close()


def keep(name: str) -> float:
    begin = time.perf_counter()
    xs.publish(name, kept["tree"], keep=True, replace=True)
    return (time.perf_counter() - begin) * 1e3


def checksum() -> list[float]:
    return [float(each.double().sum()) for each in kept["tree"].values()]


def warm() -> None:
    """Have torch, the driver and the modules of this package ready, as a server's process has."""
    import torch

    torch.zeros(1, device="cuda:0")
    xs.attach(xs.share(xs.empty(8, "f4", device="cuda:0"), ttl=1), like=torch)


def attach(raw: bytes) -> float:
    import torch

    begin = time.perf_counter()
    kept["tree"] = xs.attach(raw, like=torch)
    return (time.perf_counter() - begin) * 1e3


def find(name: str) -> float:
    import torch

    begin = time.perf_counter()
    kept["tree"] = xs.attach(xs.lookup(name, timeout=0), like=torch)
    return (time.perf_counter() - begin) * 1e3


def torch_dumps() -> tuple[bytes, float]:
    """What `put` of torch's queue does before it writes into its pipe."""
    import importlib
    from multiprocessing.reduction import ForkingPickler

    importlib.import_module("torch.multiprocessing")  # which has told the pickler about tensors
    begin = time.perf_counter()
    raw = bytes(ForkingPickler.dumps(kept["tree"]))
    return raw, (time.perf_counter() - begin) * 1e3


def torch_loads(raw: bytes) -> float:
    """What `get` of torch's queue does after it has read from its pipe."""
    import pickle

    begin = time.perf_counter()
    kept["tree"] = pickle.loads(raw)
    return (time.perf_counter() - begin) * 1e3


def drop() -> None:
    import gc

    kept.pop("tree", None)
    gc.collect()
    xs.trim()


def sleep_and_wake(keep: bool) -> tuple[float, float, int]:
    import torch

    torch.cuda.synchronize()
    pool, before = kept["pool"], torch.cuda.mem_get_info(0)[0]
    begin = time.perf_counter()
    pool.sleep(keep)
    slept = time.perf_counter() - begin
    freed = torch.cuda.mem_get_info(0)[0] - before
    begin = time.perf_counter()
    pool.wake()
    return slept * 1e3, (time.perf_counter() - begin) * 1e3, freed


def profiled(name: str, raw: bytes = b"") -> str:
    """The ten functions that take most of a call of `share` or `attach`."""
    import cProfile
    import io
    import pstats

    profile = cProfile.Profile()
    profile.runcall(share) if name == "share" else profile.runcall(attach, raw)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
    return text.getvalue()


def _line(name: str, found: list[float]) -> None:
    ordered = sorted(found)
    print(f"{name:44} median {statistics.median(found):8.1f} ms   best {ordered[0]:8.1f}   worst {ordered[-1]:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=sorted(NEW), default="pool")
    parser.add_argument("--heirs", type=int, default=ROUNDS, help="processes that find the model after the kill")
    given = parser.parse_args()
    kind: str = given.kind
    if kind == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    environment = {**os.environ}
    with Child(env=environment, timeout=300) as owner, Child(env=environment, timeout=300) as reader:
        nbytes = owner.call(make, kind)
        reader.call(warm)
        shared: list[float] = []
        attached: list[float] = []
        again: list[float] = []
        raw = b""
        for _ in range(ROUNDS):
            owner.call(remake)
            raw, allocations, took = owner.call(share)
            shared.append(took)
            attached.append(reader.call(attach, raw))
            assert reader.call(checksum) == owner.call(checksum)
            reader.call(drop)
            owner.call(close)
            raw, _, took = owner.call(share)
            again.append(took)
            owner.call(close)
        queued: list[float] = []
        for _ in range(ROUNDS if kind == "expandable" else 0):  # the peer
            owner.call(remake)
            raw, put = owner.call(torch_dumps)
            queued.append(put + reader.call(torch_loads, raw))
            assert reader.call(checksum) == owner.call(checksum)
            reader.call(drop)
        print(f"{nbytes / 1e9:.2f} GB, {allocations} exports, {kind}")
        _line("share, new tree", shared)
        _line("share, again", again)
        _line("attach(like=torch), new tree", attached)
        _line("share and attach, new tree", both := [one + other for one, other in zip(shared, attached, strict=True)])
        if queued:
            _line("torch's queue without its pipe, new tree", queued)
            print(f"torch's queue takes {statistics.median(queued) / statistics.median(both):.2f} times as long")
        if kind == "pool":
            for content in False, True:
                pairs = [owner.call(sleep_and_wake, content) for _ in range(ROUNDS)]
                _line(f"sleep(keep={content})", [each[0] for each in pairs])
                _line(f"wake, after keep={content}", [each[1] for each in pairs])
                print(f"freed {statistics.median(each[2] for each in pairs) / 1e9:.2f} GB")
        owner.call(remake)
        print(owner.call(profiled, "share")[:4000])
        raw = owner.call(share)[0]
        print(reader.call(profiled, "attach", raw)[:4000])
        reader.call(drop)
        owner.call(remake)
        _line("publish(keep=True)", [owner.call(keep, "model")])
        expected = owner.call(checksum)
        owner.kill()
        heirs: list[float] = []
        while len(heirs) < given.heirs:  # some at a time get ready; each looks alone
            with ExitStack() as stack:
                some = [stack.enter_context(Child(env=environment, timeout=300)) for _ in range(10)]
                for pending in [each.start(warm) for each in some]:
                    pending.result()
                for each in some:
                    heirs.append(each.call(find, "model"))
                    assert each.call(checksum) == expected
                    each.call(drop)
        _line("heir after SIGKILL, from lookup to tensors", heirs)
        from xpushare.sharing import keeping

        with keeping.connected() as keeper:
            assert keeper is not None
            keeper.stop()


if __name__ == "__main__":
    main()
