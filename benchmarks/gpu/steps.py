"""Where the time of one hand-over goes: a new torch tensor, step by step, against torch's queue and the bare calls.

python -m benchmarks.gpu.steps [--rounds N] [--turns N] [--nbytes N] [--cold] [WAYS …]

Each round hands over a tensor that the receiver has never seen, which reads its first element and answers. WAYS are
numbers joined by commas, which take turns: 0 `attach(like=torch)`, 1 `torch.from_dlpack`, 2 torch's queue, 3 ctypes by
hand, 4 the same without closing. Medians in microseconds: `share` until the message is made, `send` until it is
written, `wake` until the receiver has it, `attach` until the tensor is there, `read` until the element is, `answer`
until the sender has it; `driver` is the driver's part of `attach`, timed by hand: the ways that take turns with 3 or 4
spend as much on it. torch's queue sends in a thread of its own, so that its `share` lasts until the receiver has the
message. With `--cold`, 5 ms pass before each round.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import sys
import time
from typing import Any, Final

from benchmarks.gpu.driver import IpcHandle, Raw, Receiver

WARM: Final = 10
REST: Final = 5e-3
WAYS: Final = (
    "xs.share, attach(like=torch)",
    "xs.share, torch.from_dlpack",
    "torch's queue",
    "ctypes by hand",
    "ctypes by hand, never closed",
)
QUEUE, HAND = 2, 3
STEPS: Final = ("share", "send", "wake", "attach", "read", "answer")
clock = time.perf_counter_ns


def receive(pipe: Any, queue: Any) -> None:
    """Open what comes, read the first element, answer it, and then say when each step was over."""
    import torch

    import xpushare as xs

    torch.zeros(1, device="cuda")
    raw, driver = Raw(0), [0]

    def by_hand(message: bytes) -> Any:
        address, handle = ctypes.c_uint64(), IpcHandle.from_buffer_copy(message)
        begin = clock()
        raw.check(raw.cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1))
        driver[0] = clock() - begin
        return address

    def first_of(address: Any) -> int:
        element = ctypes.c_int32()
        raw.check(raw.cuda.cuMemcpyDtoH_v2(ctypes.byref(element), address, ctypes.c_size_t(4)))
        return element.value

    opened: list[Any] = []
    pipe.send_bytes(b"ready")
    while (way := pipe.recv()) is not None:
        if way == "over":
            for address in opened:
                raw.check(raw.cuda.cuIpcCloseMemHandle(address))
            opened.clear()
            xs.trim()
            pipe.send_bytes(b"trimmed")
            continue
        driver[0] = 0
        pipe.send_bytes(b"ready")
        found: Any = None
        message = queue.get() if way == QUEUE else pipe.recv_bytes()
        begin = clock()
        if way == 0:
            found = xs.attach(message, like=torch)
        elif way == 1:
            array = xs.attach(message)
            found = torch.from_dlpack(array)
            del array
        else:
            found = message if way == QUEUE else by_hand(message)
        end = clock()
        value = first_of(found) if way >= HAND else found[0].item()
        read = clock()
        pipe.send_bytes(b"%d" % value)
        if way == HAND:
            raw.check(raw.cuda.cuIpcCloseMemHandle(found))
        elif way > HAND:
            opened.append(found)
        del message, found
        pipe.send((begin, end, read, driver[0]))


def hand_over(pipe: Any, queue: Any, raw: Raw, way: int, tensor: Any, handles: list[Any]) -> tuple[int, list[int]]:
    """Return what was read, and the time of each step and of the driver in nanoseconds."""
    import xpushare as xs

    start = shared = sent = clock()
    if way == QUEUE:
        queue.put(tensor)
    elif way >= HAND:
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
    value = int(pipe.recv_bytes())
    end = clock()
    begin, opened, read, driver = pipe.recv()
    if way == QUEUE:
        shared = sent = begin
    at = (start, shared, sent, begin, opened, read, end)
    return value, [*(after - before for before, after in itertools.pairwise(at)), driver]


def measure(pipe: Any, queue: Any, raw: Raw, ways: list[int], rest: float, wanted: Any) -> dict[int, list[list[int]]]:
    import torch

    def new(value: int) -> Any:
        return torch.full((wanted.nbytes // 4,), value, dtype=torch.int32, device="cuda")

    made = [[new(number) for number in range(wanted.rounds)] for _ in ways]
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
            if value != number:
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
    parser.add_argument("ways", nargs="*", default=["0,3,2", "1,2", "4,2"])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--nbytes", type=int, default=64 << 20)
    parser.add_argument("--cold", action="store_true")
    wanted = parser.parse_args()
    import torch

    here, queue, child, raw = Receiver.start(receive)
    print(torch.cuda.get_device_name(), sys.version.split()[0])
    print(f"{'':34}{'whole':>8}" + "".join(f"{step:>8}" for step in (*STEPS, "driver", "ratio")))
    for group in wanted.ways:
        ways = [int(way) for way in group.split(",")]
        found: dict[int, list[list[int]]] = {way: [] for way in ways}
        for _ in range(wanted.turns):
            for way, steps in measure(here, queue, raw, ways, REST if wanted.cold else 0, wanted).items():
                found[way] += steps
        wholes = {way: statistics.median(sum(each[:-1]) for each in steps) / 1000 for way, steps in found.items()}
        for way, steps in found.items():
            *spent, driver = (f"{statistics.median(each) / 1000:8.1f}" for each in zip(*steps, strict=True))
            medians = "".join(spent) + (driver if way >= HAND else f"{'':8}")
            ratio = f"{wholes[way] / wholes[QUEUE]:8.2f}" if QUEUE in wholes and way != QUEUE else ""
            print(f"{WAYS[way]:34}{wholes[way]:8.1f}{medians}{ratio}", flush=True)
    here.send(None)
    child.join(10)


if __name__ == "__main__":
    main()
