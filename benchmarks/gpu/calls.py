"""The calls of a hand-over one by one: `share`, `attach` and the closes of torch tensors on a GPU.

python -m benchmarks.gpu.calls [--rounds N] [--nbytes N,N] [--json]

It uses nothing but the public API and torch, so that another state of the package is measured by running this file
with that state first on PYTHONPATH. `new`: tensors that the importer has never seen; `again`: one tensor in every
round, which both sides have known before; `busy`: the same while its stream has work, so that an event orders it;
`tree`: 578 tensors of 4 KiB, again. Medians in microseconds; `like=torch` is a row of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from typing import Any

WARM = 20
TREE = 578


def attaching(pipe: Any) -> None:
    """Attaches what comes, and answers how long `attach` and `close` took."""
    import torch

    import xpushare as xs

    torch.zeros(1, device="cuda")
    clock = time.perf_counter_ns
    pipe.send(xs.__file__)
    while (message := pipe.recv()) is not None:
        raw, like = message
        begin = clock()
        found = xs.attach(raw, like=torch) if like else xs.attach(raw)
        middle = clock()
        for each in () if like else found if isinstance(found, list) else (found,):
            each.close()
        del found
        pipe.send((middle - begin, clock() - middle))


def rounds(pipe: Any, items: list[Any], like: bool, busy: bool) -> dict[str, list[int]]:
    import torch

    import xpushare as xs

    clock = time.perf_counter_ns
    found: dict[str, list[int]] = {name: [] for name in ("share", "attach", "close by the importer", "close")}
    for item in items:
        torch.cuda.synchronize()
        if busy:
            torch.cuda._sleep(1_000_000)
        begin = clock()
        handle = xs.share(item)
        end = clock()
        pipe.send((bytes(handle), like))
        attach, close = pipe.recv()
        before = clock()
        handle.close()
        for name, took in zip(found, (end - begin, attach, close, clock() - before), strict=True):
            found[name].append(took)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--nbytes", default=f"{1 << 20},{16 << 20}", help="of a tensor; one or several")
    parser.add_argument("--json", action="store_true", help="one line for programs")
    wanted = parser.parse_args()
    import torch

    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=attaching, args=(there,))
    process.start()
    torch.zeros(1, device="cuda")
    where = here.recv()
    count = WARM + wanted.rounds
    cases: dict[str, tuple[list[Any], bool, bool]] = {}
    for nbytes in map(int, wanted.nbytes.split(",")):
        name = f"{nbytes >> 10} KiB"
        many = [torch.full((nbytes // 4,), i, dtype=torch.int32, device="cuda") for i in range(2 * count)]
        cases[f"{name} new"] = many[:count], False, False
        cases[f"{name} new, like=torch"] = many[count:], True, False
        cases[f"{name} again"] = many[:1] * count, False, False
        cases[f"{name} again, like=torch"] = many[:1] * count, True, False
        cases[f"{name} busy"] = many[:1] * count, False, True
    tree = [torch.zeros(1024, device="cuda") for _ in range(TREE)]
    cases["tree again"] = [tree] * 40, False, False
    medians: dict[str, float] = {}
    for name, case in cases.items():
        for call, samples in rounds(here, *case).items():
            medians[f"{name}: {call}"] = statistics.median(samples[WARM:]) / 1000
    here.send(None)
    process.join()
    if wanted.json:
        print(json.dumps(medians))
        return
    print(where, torch.cuda.get_device_name(), sys.version.split()[0])
    for name, median in medians.items():
        print(f"{name:44}{median:10.1f} µs")


if __name__ == "__main__":
    main()
