"""Where the time of one hand-over goes: a new torch tensor, step by step, against torch's queue and the bare calls.

python -m benchmarks.gpu.steps [--rounds N] [--nbytes N] [--alone]

Each round hands over a tensor that the receiver has never seen, which reads its first element and answers. The ways
take turns, as in `benchmarks.gpu.tensors`; with `--alone`, each has the machine for itself. Medians in microseconds:
`share` until the message is made, `send` until it is written, `wake` until the receiver has it, `attach` until the
tensor is there, `read` until the element is, and `answer` until the sender has it. torch's queue sends in a thread of
its own, so that its `share` includes all until the receiver has the message. `cold`: 5 ms pass before each round.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import sys
import time
from typing import Any, Final

from benchmarks.gpu.driver import SPAWN, IpcHandle, Raw

WARM: Final = 10
REST: Final = 5e-3
WAYS: Final = ("xs.share, like=torch", "xs.share, torch.from_dlpack", "torch's queue", "ctypes by hand")
STEPS: Final = ("share", "send", "wake", "attach", "read", "answer")
clock = time.perf_counter_ns


def receive(pipe: Any, queue: Any) -> None:
    """Open what comes, read the first element, answer it, and then say when each step was over."""
    import torch

    import xpushare as xs

    torch.zeros(1, device="cuda")
    raw = Raw(0)
    pipe.send_bytes(b"ready")
    while (way := pipe.recv()) is not None:
        if way == "over":
            xs.trim()
            pipe.send_bytes(b"trimmed")
            continue
        pipe.send_bytes(b"ready")
        found = address = None
        if way == 2:
            message = tensor = queue.get()
            begin = opened = clock()
        else:
            message = pipe.recv_bytes()
            begin = clock()
            if way == 0:
                tensor = xs.attach(message, like=torch)
            elif way == 1:
                found = xs.attach(message)
                tensor = torch.from_dlpack(found)
            else:
                address, element = ctypes.c_uint64(), ctypes.c_int32()
                handle = IpcHandle.from_buffer_copy(message)
                raw.check(raw.cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1))
            opened = clock()
        if address is None:
            value = tensor[0].item()
        else:
            raw.check(raw.cuda.cuMemcpyDtoH_v2(ctypes.byref(element), address, ctypes.c_size_t(4)))
            value = element.value
        read = clock()
        pipe.send_bytes(b"%d" % value)
        if address is not None:
            raw.check(raw.cuda.cuIpcCloseMemHandle(address))
        del message, tensor, found
        pipe.send((begin, opened, read))


def hand_over(pipe: Any, queue: Any, raw: Raw, way: int, tensor: Any, handles: list[Any]) -> tuple[str, list[int]]:
    """Returns what was read, and the time of each step in nanoseconds."""
    import xpushare as xs

    start = clock()
    if way == 2:
        queue.put(tensor)
        shared = sent = start
    elif way == 3:
        handle = IpcHandle()
        raw.check(raw.cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(tensor.data_ptr())))
        shared = clock()
        pipe.send_bytes(bytes(handle))
        sent = clock()
    else:
        handles.append(xs.share(tensor))
        shared = clock()
        pipe.send_bytes(bytes(handles[-1]))
        sent = clock()
    value = pipe.recv_bytes()
    end = clock()
    begin, opened, read = pipe.recv()
    if way == 2:
        shared = sent = begin
    at = (start, shared, sent, begin, opened, read, end)
    return value.decode(), [after - before for before, after in itertools.pairwise(at)]


def measure(pipe: Any, queue: Any, raw: Raw, ways: list[int], rest: float, wanted: Any) -> dict[int, list[list[int]]]:
    import torch

    count = wanted.nbytes // 4
    made = [
        [torch.full((count,), number, dtype=torch.int32, device="cuda") for number in range(wanted.rounds)]
        for _ in ways
    ]
    torch.cuda.synchronize()
    found: dict[int, list[list[int]]] = {way: [] for way in ways}
    handles: list[Any] = []
    for number in range(wanted.rounds):
        for turn in range(len(ways)):
            place = (number + turn) % len(ways)
            pipe.send(ways[place])
            pipe.recv_bytes()
            time.sleep(rest)
            value, steps = hand_over(pipe, queue, raw, ways[place], made[place][number], handles)
            if int(value) != number:
                raise RuntimeError(f"{WAYS[ways[place]]}: {value} was read instead of {number}")
            if number >= WARM:
                found[ways[place]].append(steps)
    pipe.send("over")
    pipe.recv_bytes()
    for handle in handles:
        handle.close()
    del made
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--nbytes", type=int, default=64 << 20)
    parser.add_argument("--alone", action="store_true", help="the ways one after the other, not in turn")
    wanted = parser.parse_args()
    import torch
    import torch.multiprocessing as tmp

    queue = tmp.get_context("spawn").Queue()
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=receive, args=(there, queue), daemon=True)
    child.start()
    torch.zeros(1, device="cuda")
    raw = Raw(0)
    here.recv_bytes()
    print(torch.cuda.get_device_name(), sys.version.split()[0])
    # In turn with torch's queue alone, as `tensors` has them: more ways would leave colder caches.
    groups = [[way] for way in range(len(WAYS))] if wanted.alone else [[0, 2], [1, 2], [3, 2]]
    print(f"{'':34}{'whole':>8}" + "".join(f"{step:>8}" for step in STEPS) + f"{'ratio':>8}")
    for rest in (0.0, REST):
        for group in groups:
            found: dict[int, list[list[int]]] = {way: [] for way in group}
            for _ in range(wanted.turns):
                for way, steps in measure(here, queue, raw, group, rest, wanted).items():
                    found[way] += steps
            wholes = {way: statistics.median(map(sum, steps)) / 1000 for way, steps in found.items()}
            for way, steps in found.items():
                medians = [statistics.median(each) / 1000 for each in zip(*steps, strict=True)]
                ratio = f"{wholes[way] / wholes[2]:8.2f}" if 2 in wholes and way != 2 else ""
                name = WAYS[way] + (", cold" if rest else "")
                print(f"{name:34}{wholes[way]:8.1f}" + "".join(f"{each:8.1f}" for each in medians) + ratio, flush=True)
    here.send(None)
    child.join(10)


if __name__ == "__main__":
    main()
