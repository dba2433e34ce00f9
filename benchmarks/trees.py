"""Measures a model's 578 tensors from process to process: as one tree, and through a queue with the reductions
installed, against torch's queue, in one run.

python -m benchmarks.trees [--device cuda:0] [--floor] [--json FILE]

The shapes are those of a model of 1.5 billion parameters (GPT-2 XL, bfloat16: 3.1 GB); on the host its width is an
eighth, and the tensors lie in shared memory of the kind that each side sends without a copy, ours in about as many
allocations as torch's allocator takes on a GPU. The clock runs from the call until the receiver has tensors and has
read the first element of one. "New": the tensors are new, and nobody has them open. "Again": the receiver has them
open. The ways take turns; medians with quartiles, in microseconds. The lines below the table say what CPU time the two
processes took for each tensor, which a busy machine changes less.

`--floor` adds, on a GPU, what CUDA alone takes for new models of the same kind: its calls that name the allocations
(`cuIpcGetMemHandle`) in one process, and those that open them in the other (`cuIpcOpenMemHandle`), by one thread and by
several at once.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import multiprocessing
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from statistics import median
from typing import Any, Final

import xpushare as xs
from benchmarks import show
from benchmarks.gpu.driver import IpcHandle, Raw
from xpushare.bench.measure import Row, alternate, compare, machine, spread

LAYERS: Final = 48
TENSORS: Final = 578
ALLOCATIONS: Final = 160
WAYS: Final = ("tree", "reductions", "torch")
REST: Final = 0.1  # seconds: what was dropped is closed by then, whoever does it, and not beside what comes next
OTHER: Final = "torch.multiprocessing queue"


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"wte.weight": (50257, width), "wpe.weight": (1024, width)}
    for layer in range(LAYERS):
        for name, inner, outer in (
            ("ln_1", 0, width), ("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
            ("ln_2", 0, width), ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width),
        ):  # fmt: skip
            found[f"h.{layer}.{name}.weight"] = (inner, outer) if inner else (outer,)
            found[f"h.{layer}.{name}.bias"] = (outer,)
    return found


def model(device: str, way: str, value: int) -> dict[str, Any]:
    """New tensors. On a GPU the allocator's cache is emptied before, so that the driver has to open them."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        made = {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda") for name, shape in shapes(1600).items()}
        for tensor in made.values():
            tensor.fill_(value)
        torch.cuda.synchronize()
        return made
    if way == "torch":
        made = {name: torch.empty(shape).share_memory_() for name, shape in shapes(200).items()}
    else:
        made = {}
        slabs: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        for number, (name, shape) in enumerate(shapes(200).items()):
            slabs.setdefault(number * ALLOCATIONS // TENSORS, []).append((name, shape))
        for tensors in slabs.values():
            ends = list(accumulate((-(-4 * math.prod(shape) // 64) * 64 for _, shape in tensors), initial=0))
            slab = xs.malloc_host(ends[-1])
            for (name, shape), at in zip(tensors, ends, strict=False):
                made[name] = torch.from_dlpack(slab.as_array(shape, "f4", at))
    for tensor in made.values():
        tensor.view(-1)[:1] = value
    return made


# --- what CUDA alone takes

THREADS: Final = (1, 2, 4, 8)
RANGE_START: Final = 11  # CU_POINTER_ATTRIBUTE_RANGE_START_ADDR


def named(state: dict[str, Any]) -> tuple[list[bytes], float]:
    """The driver's handles of all allocations, and the microseconds for them; finding these does not count."""
    raw = Raw()
    starts: set[int] = set()
    for tensor in state.values():
        start = ctypes.c_uint64()
        raw.check(raw.cuda.cuPointerGetAttribute(ctypes.byref(start), RANGE_START, ctypes.c_uint64(tensor.data_ptr())))
        starts.add(start.value)
    handles = [IpcHandle() for _ in starts]
    begin = time.perf_counter_ns()
    for start_of, handle in zip(starts, handles, strict=True):
        raw.check(raw.cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(start_of)))
    took = (time.perf_counter_ns() - begin) / 1000
    return [bytes(handle) for handle in handles], took


def opened(handles: list[bytes], threads: int) -> float:
    """Microseconds of opening them, by so many threads at once; they are closed again afterwards."""
    raw = Raw()

    def open_(handle: bytes) -> int:
        address = ctypes.c_uint64()
        raw.check(raw.cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), IpcHandle.from_buffer_copy(handle), 1))
        return address.value

    def begin_thread() -> None:
        raw.check(raw.cuda.cuCtxSetCurrent(raw.context))

    with ThreadPoolExecutor(threads, initializer=begin_thread) as pool:
        list(pool.map(time.sleep, [0.01] * threads))  # the threads are there
        begin = time.perf_counter_ns()
        found = [open_(handle) for handle in handles] if threads == 1 else list(pool.map(open_, handles))
        took = (time.perf_counter_ns() - begin) / 1000
    for address in found:
        raw.check(raw.cuda.cuIpcCloseMemHandle(address))
    return took


# --- the two processes


def receive(pipe: Any, queue: Any) -> None:
    """The other process: says the first element of the newest model."""
    import torch

    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    held: Any = None
    pipe.send_bytes(b"ready")
    while (asked := pipe.recv_bytes()) != b"end":
        if asked == b"drop":
            held = None
            gc.collect()
            xs.trim()
            time.sleep(REST)
            pipe.send_bytes(b"dropped")
            continue
        if asked.startswith(b"floor"):
            handles, threads = pickle.loads(asked[5:])
            pipe.send_bytes(pickle.dumps(opened(handles, threads)))
            continue
        start = time.process_time_ns()
        found = queue.get() if asked == b"queue" else xs.attach(asked, like=torch)
        value = int(found["h.7.ln_1.bias"][0].item())
        pipe.send_bytes(b"%d %d" % (value, time.process_time_ns() - start))
        held = found
        del found
    del held


class Bench:
    """Two processes, and one model of each way that goes again and again."""

    def __init__(self, device: str) -> None:
        import torch.multiprocessing as tmp

        self._device = device
        context = tmp.get_context("spawn")
        self._queue = context.Queue()
        self._pipe, there = multiprocessing.Pipe()
        self._child = context.Process(target=receive, args=(there, self._queue), daemon=True)
        self._child.start()
        self._pipe.recv_bytes()
        self._number = 0
        self._cpu: dict[str, list[tuple[float, float]]] = {}

    def _send(self, way: str, when: str, state: Any, expected: int) -> float:
        """Microseconds of one hand-over."""
        from xpushare.integrations import torch as reductions

        handle: Any = None
        if way == "reductions":
            reductions.install()
        start, busy = time.perf_counter_ns(), time.process_time_ns()
        if way == "tree":
            handle = xs.share(state)
            self._pipe.send_bytes(bytes(handle))
        else:
            self._queue.put(state)
            self._pipe.send_bytes(b"queue")
        value, there = map(int, self._pipe.recv_bytes().split())
        took = (time.perf_counter_ns() - start) / 1000
        here = time.process_time_ns() - busy
        self._cpu.setdefault(f"{way}, {when}", []).append((here / 1000 / TENSORS, there / 1000 / TENSORS))
        reductions.uninstall()
        if handle is not None:
            handle.close()
        if value != expected:
            raise RuntimeError(f"{value} was read instead of {expected}")
        return took

    def drop(self) -> None:
        """End what was handed over, on both sides; torch's tensors end while the next model is made."""
        self._pipe.send_bytes(b"drop")
        self._pipe.recv_bytes()
        xs.trim()

    def new(self, way: str) -> float:
        self._number = self._number % 100 + 1
        state = model(self._device, way, self._number)
        took = self._send(way, "new", state, self._number)
        self.drop()
        return took

    def floor(self, threads: int) -> tuple[int, float, float]:
        """Of a new model: its allocations, and the microseconds of the driver's calls on both sides."""
        state = model(self._device, "torch", 1)
        handles, naming = named(state)
        self._pipe.send_bytes(b"floor" + pickle.dumps((handles, threads)))
        return len(handles), naming, pickle.loads(self._pipe.recv_bytes())

    def floors(self, rounds: int) -> list[Row]:
        """Return what the driver's calls alone take of new models."""
        found: dict[str, list[float]] = {}
        count = 0
        for _ in range(rounds):
            for threads in THREADS:
                count, naming, opening = self.floor(threads)
                found.setdefault("cuIpcGetMemHandle, 1 thread", []).append(naming)
                found.setdefault(f"cuIpcOpenMemHandle, {threads} thread(s)", []).append(opening)
        scenario = f"floor, {count} allocations"
        return [Row(scenario, name, "us", spread(samples)) for name, samples in found.items()]

    def rows(self, rounds: int) -> list[Row]:
        found: dict[tuple[str, str], list[float]] = {}
        for way, samples in zip(WAYS, alternate(rounds, *(lambda w=way: self.new(w) for way in WAYS)), strict=True):
            found[way, "new"] = samples
        for way in WAYS:  # one after the other: the receiver holds one model
            state = model(self._device, way, 7)
            found[way, "again"] = [self._send(way, "again", state, 7) for _ in range(rounds + 3)][3:]
            self.drop()
            del state
        return [
            compare(f"{way}, 578 tensors", when, found[way, when], OTHER, found["torch", when])
            for way in WAYS[:2]
            for when in ("new", "again")
        ]

    def cpu(self) -> dict[str, tuple[float, float]]:
        """By way: the median CPU time for each tensor here and there, in microseconds."""
        return {
            way: (median(here for here, _ in samples), median(there for _, there in samples))
            for way, samples in self._cpu.items()
        }

    def end(self) -> None:
        self._pipe.send_bytes(b"end")
        self._child.join(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="native_cpu:0", help="native_cpu:0 or cuda:0")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--floor", action="store_true", help="measure the driver's own calls, too (cuda)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    if arguments.floor and not arguments.device.startswith("cuda"):
        parser.error("--floor is for --device cuda:0")
    bench = Bench(arguments.device)
    where = machine() | {"device": xs.Device(arguments.device).name}
    found = bench.rows(arguments.rounds)
    cpu = bench.cpu()
    if arguments.floor:
        found += bench.floors(arguments.rounds)
    bench.end()
    show(where, found, arguments.json, cpu=cpu)
    for way, (here, there) in cpu.items():
        print(f"{way}: {here:.1f} us of CPU time for each tensor at the sender, {there:.1f} us at the receiver")


if __name__ == "__main__":
    main()
