"""Measures the CUDA adapter on this machine, against what a user would pick instead; a short table, and JSON.

python scripts/gpu_bench.py --json gpu-bench.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xpushare as xs
from xpushare import adapters

if "cuda" not in adapters.BACKENDS:
    adapters.BACKENDS = (*adapters.BACKENDS, "cuda")  # type: ignore[misc]

ROUNDS = 2000
MIB = 1 << 20
rows: list[dict[str, Any]] = []


def row(what: str, seconds: list[float], unit: str = "us") -> None:
    found = {
        "what": what,
        "median": round(statistics.median(seconds) * 1e6, 2),
        "p99": round(sorted(seconds)[int(len(seconds) * 0.99)] * 1e6, 2),
        "n": len(seconds),
        "unit": unit,
    }
    rows.append(found)
    print(f"{what:<72} {found['median']:>10.2f} {found['p99']:>10.2f} {unit}", flush=True)


def timed(function: Callable[[], object], rounds: int, after: Callable[[], object] | None = None) -> list[float]:
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
        if after is not None:
            after()
    return found


def echo_event(device: str, go: bytes, back: bytes, rounds: int, ready: Any) -> None:
    """For each point of `go`, wait for it on the device and signal `back`; enqueued when the round before is done."""
    one, two = xs.ipc.event.open(go), xs.ipc.event.open(back)
    with xs.Queue(device) as queue:
        ready.send(True)
        for point in range(1, rounds + 1):
            queue.wait(one, at_least=point)
            queue.signal(two)
            two.wait(30, at_least=point)


def round_trips(device: str, other: str) -> None:
    go, back = xs.Event(device, enable_ipc=True), xs.Event(device, enable_ipc=True)
    here, there = multiprocessing.Pipe()
    handles = bytes(xs.ipc.event.get(go)), bytes(xs.ipc.event.get(back))
    child = multiprocessing.Process(target=echo_event, args=(other, *handles, ROUNDS, there))
    child.start()
    here.recv()
    found = []
    with xs.Queue(device) as queue:
        for point in range(1, ROUNDS + 1):
            time.sleep(0.0001)  # the peer's wait is queued
            start = time.perf_counter()
            queue.signal(go)
            back.wait(30, at_least=point)
            found.append(time.perf_counter() - start)
    child.join(30)
    row(f"event round trip {device} -> {other} -> host, counters", found[100:])


def echo_native(handles: tuple[bytes, bytes], rounds: int, connection: Any) -> None:
    import torch

    torch.cuda.init()
    one = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), handles[0])
    two = torch.cuda.Event(interprocess=True)
    stream = torch.cuda.current_stream()
    two.record(stream)
    connection.send(two.ipc_handle())
    for _ in range(rounds):
        connection.recv()
        stream.wait_event(one)
        two.record(stream)
        connection.send(True)


def native_round_trips() -> None:
    """CUDA's own IPC events, as PyTorch gives them; the hand-over through a pipe is timed apart and taken off."""
    import torch

    one = torch.cuda.Event(interprocess=True)
    one.record()
    here, there = multiprocessing.Pipe()
    child = multiprocessing.Process(target=echo_native, args=((one.ipc_handle(), b""), 300, there))
    child.start()
    two = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), here.recv())
    found = []
    for _ in range(300):
        start = time.perf_counter()
        one.record()
        here.send(True)
        here.recv()
        while not two.query():
            pass
        found.append(time.perf_counter() - start)
    child.join(30)
    row("the same with CUDA's IPC events (PyTorch), the pipe's hand-over included", found[20:])


def serve(device: str, nbytes: int, connection: Any) -> None:
    """Make memory and hand handles out."""
    memory = xs.malloc_device(nbytes, device)
    connection.send(bytes(xs.ipc.memory.get(memory)))
    connection.recv()
    for _ in range(100):
        another = xs.malloc_device(nbytes, device)
        connection.send(bytes(xs.ipc.memory.get(another)))
        connection.recv()
        another.close()


def opens(device: str, nbytes: int) -> None:
    here, there = multiprocessing.Pipe()
    child = multiprocessing.Process(target=serve, args=(device, nbytes, there))
    child.start()
    raw = here.recv()
    held = xs.ipc.memory.open(raw, device=device)
    again = timed(lambda: xs.ipc.memory.open(raw, device=device).close(), 1000)
    row(f"open and close, cached, {nbytes // MIB} MiB", again)
    held.close()
    here.send(True)
    first, close = [], []
    for _ in range(100):
        raw = here.recv()
        start = time.perf_counter()
        memory = xs.ipc.memory.open(raw, device=device)
        first.append(time.perf_counter() - start)
        start = time.perf_counter()
        memory.close()
        close.append(time.perf_counter() - start)
        here.send(True)
    child.join(30)
    row(f"first open of an allocation, {nbytes // MIB} MiB", first[3:])
    row(f"close of its last open, {nbytes // MIB} MiB", close[3:])


def consume_torch(connection: Any, queue: Any) -> None:
    for _ in range(60):
        tensor = queue.get()
        connection.send(tensor[0].item())


def torch_tensors() -> None:
    """A tensor through torch.multiprocessing's queue, one element read and acknowledged, a new tensor each time."""
    import torch
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue, (here, there) = context.Queue(), context.Pipe()
    child = context.Process(target=consume_torch, args=(there, queue))
    child.start()
    found = []
    kept = []
    for i in range(60):
        tensor = torch.full((16 * MIB,), i, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        kept.append(tensor)
        start = time.perf_counter()
        queue.put(tensor)
        here.recv()
        found.append(time.perf_counter() - start)
    row("new tensor through torch.multiprocessing, element read, acknowledged, 64 MiB", found[5:])
    child.join(30)


def consume_ours(connection: Any) -> None:
    import torch

    while (raw := connection.recv_bytes()) != b"":
        with xs.attach(raw) as array:
            connection.send(torch.from_dlpack(array)[0].item())


def our_tensors() -> None:
    import torch

    here, there = multiprocessing.Pipe()
    child = multiprocessing.Process(target=consume_ours, args=(there,))
    child.start()
    found = []
    for i in range(60):
        tensor = torch.full((16 * MIB,), i, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        with xs.share(tensor) as handle:
            here.send_bytes(bytes(handle))
            here.recv()
            found.append(time.perf_counter() - start)
    here.send_bytes(b"")
    child.join(30)
    row("new tensor through xs.share and xs.attach over a pipe, element read, 64 MiB", found[5:])


def bandwidth(one: str, two: str) -> None:
    nbytes = 256 * MIB
    with xs.malloc_device(nbytes, one) as source, xs.malloc_device(nbytes, two) as target, xs.Queue(two) as queue:
        queue.copy(target, source)
        queue.synchronize(30)
        start = time.perf_counter()
        for _ in range(20):
            queue.copy(target, source)
        queue.synchronize(30)
        rate = 20 * nbytes / (time.perf_counter() - start) / 1e9
    rows.append({"what": f"copy {one} -> {two}, 256 MiB", "rate": round(rate, 1), "unit": "GB/s"})
    print(f"{f'copy {one} -> {two}, 256 MiB':<72} {rate:>10.1f} GB/s", flush=True)


def enqueueing(device: str) -> None:
    with xs.Queue(device) as queue, xs.Event(device) as event, xs.malloc_device(4096, device) as memory:
        queue.signal(event)
        queue.synchronize(10)
        row("enqueue of a signal", timed(lambda: queue.signal(event), 500))
        queue.synchronize(10)
        gate = xs.Event(device)
        row("enqueue of a wait", timed(lambda: queue.wait(gate, at_least=1), 100))
        gate.signal()
        queue.synchronize(10)
        row("a wait for what is done", timed(lambda: queue.wait(event), 500))
        row("enqueue of a fill of 4 KiB", timed(lambda: queue.fill(memory, b"a"), 300))
        queue.synchronize(10)
        row("signal, then host wait", timed(lambda: (queue.signal(event), event.wait(5)), 500))
        row("signal, then synchronize", timed(lambda: (queue.signal(event), queue.synchronize(5)), 500))
    row("malloc_device and close, 2 MiB", timed(lambda: xs.malloc_device(2 * MIB, device).close(), 100))
    row("malloc_host and close, 2 MiB", timed(lambda: xs.malloc_host(2 * MIB, device).close(), 50))


def attempt(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception as error:
        rows.append({"what": function.__name__, "arguments": arguments, "failed": repr(error)})
        print(f"{function.__name__}{arguments}: {error!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    devices = xs.devices("cuda:*")
    if not devices:
        sys.exit(adapters.adapter("cuda").why_none())
    version = sys.version.split()[0]
    print(f"{devices[0].name}, driver {devices[0].driver_version}, {len(devices)} GPU(s), Python {version}")
    print(f"{'':<72} {'median':>10} {'p99':>10}")
    first, last = "cuda:0", str(devices[-1])
    attempt(enqueueing, first)
    attempt(round_trips, first, first)
    if last != first:
        attempt(round_trips, first, last)
        attempt(bandwidth, first, last)
    attempt(opens, first, 64 * MIB)
    attempt(our_tensors)
    attempt(torch_tensors)
    attempt(native_round_trips)
    if options.json is not None:
        facts = {
            "device": devices[0].name,
            "driver": devices[0].driver_version,
            "gpus": len(devices),
            "cpus": os.cpu_count(),
            "rows": rows,
        }
        options.json.write_text(json.dumps(facts, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
