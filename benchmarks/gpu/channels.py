"""Channels on a GPU with torch on both sides, and a DataLoader's batches against `pin_memory=True`.

python -m benchmarks.gpu.channels [--device cuda:0] [--seconds 5] [--batches 60] [--mib 64] [--workers 4] [--flat 2000]

Frames and batches are checked on the device by a sum that is read at the end only, so the host waits for none of them.
Exit status 1 if a sum is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import xpushare as xs
from xpushare.cli import seconds

torch: Any = importlib.import_module("torch")
data: Any = importlib.import_module("torch.utils.data")

FRAME: Final = 8 << 20
_CONTEXT: Final = multiprocessing.get_context("spawn")


def _place(device: str) -> str:
    """What torch calls it."""
    return "cpu" if device.startswith("native_cpu") else device


def _settle(device: str) -> None:
    if _place(device) != "cpu":
        torch.cuda.synchronize(device)


def _own_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- frames


class _Work:
    """Keeps the GPU busy for so many cycles a frame. The host goes on, eight frames ahead at most: it sleeps on an
    event of torch then, since a driver whose queue is full spins.
    """

    def __init__(self, cycles: int) -> None:
        self._cycles = cycles
        self._ahead: deque[Any] = deque()

    def __call__(self) -> None:
        if self._cycles:
            torch.cuda._sleep(self._cycles)
            self._ahead.append(torch.cuda.Event(blocking=True))
            self._ahead[-1].record()
            if len(self._ahead) > 8:
                self._ahead.popleft().synchronize()


def _reader(device: str, pipe: Any, cycles: int) -> None:
    total, work = torch.zeros((), dtype=torch.int64, device=_place(device)), _Work(cycles)
    with xs.Channel.open("bench-gpu", timeout=60) as ch:
        pipe.send("ready")
        begin, busy, count = time.perf_counter(), time.process_time(), 0
        for frame in ch:
            work()
            total += torch.from_dlpack(frame)[-1]
            count += 1
        busy, wall = time.process_time() - busy, time.perf_counter() - begin
        _settle(device)
        pipe.send((count, int(total), busy / wall))


def frames(device: str, seconds: float, cycles: int = 0) -> bool:
    """With `cycles` of GPU work on each side of a frame, the hosts are free if their calls take as long as without."""
    here, there = _CONTEXT.Pipe()
    with xs.Channel.create("bench-gpu", FRAME, "uint8", device=device, slots=16) as ch:
        child = _CONTEXT.Process(target=_reader, args=(device, there, cycles))
        child.start()
        assert here.recv() == "ready"
        count, total, work, calls = 0, 0, _Work(cycles), list[float]()
        busy, begin = time.process_time(), time.perf_counter()
        while time.perf_counter() < begin + seconds:
            work()
            called = time.perf_counter()
            with ch.loan() as frame:
                torch.from_dlpack(frame).fill_(count % 251)
            calls.append(time.perf_counter() - called)
            total += count % 251
            count += 1
        ch.finish()
        busy = time.process_time() - busy
        seen, summed, reader_busy = here.recv()
        _settle(device)
        wall = time.perf_counter() - begin
        child.join()
    right = (seen, summed) == (count, total)
    what = f"{cycles} cycles of GPU work on each side" if cycles else "torch fills and reads (wanted 9130)"
    median, most = sorted(calls)[len(calls) // 2], sorted(calls)[len(calls) * 99 // 100]
    print(f"frames of 8 MiB, {what}   {count / wall:10.0f} a second, of which each is {wall / count * 1e6:.0f} us; the "
          f"writer's calls of one hold its host for {median * 1e6:.0f} us, 99 % {most * 1e6:.0f}   CPU time: writer "
          f"{busy / wall:4.0%}, reader {reader_busy:4.0%}   {'right' if right else 'WRONG'}", flush=True)  # fmt: skip
    return right


# --- batches


class Samples:
    """Samples of one MiB each, so that a batch of n is n MiB; their making costs little beside their collation."""

    def __init__(self, count: int, nbytes: int) -> None:
        self._count, self._nbytes = count, nbytes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> Any:
        return torch.full((self._nbytes,), i % 251, dtype=torch.uint8)


def _pinned(loader: Any, place: str) -> Iterator[Any]:
    for batch in loader:
        yield batch.to(place, non_blocking=True)


def _rate(batches: Iterator[Any], device: str) -> tuple[float, int, list[int]]:
    """Batches a second from the third on, the sum of their samples' last bytes, and this process's descriptors."""
    total = torch.zeros((), dtype=torch.int64, device=_place(device))
    begin, count, fds = 0.0, 0, [0]
    for batch in batches:
        total += batch[:, -1].sum()
        count += 1
        if count == 2:
            _settle(device)
            begin = time.perf_counter()
        if count > 10 and count % 50 == 11:
            fds.append(_own_fds())
    _settle(device)
    return (count - 2) / (time.perf_counter() - begin), int(total), fds[1:]


def dataloader(device: str, count: int, mib: int, workers: int) -> bool:
    from xpushare.integrations.torch import Batches

    place, nbytes = _place(device), mib << 20
    samples = Samples(count * mib, 1 << 20)
    expected = sum(i % 251 for i in range(len(samples)))
    pins = place != "cpu"
    right, rates = True, {"pin_memory": list[float](), "Batches": list[float]()}
    for _ in range(3):  # by turns, since other work comes and goes
        loader = data.DataLoader(samples, mib, num_workers=workers, pin_memory=pins)
        rate, total, _ = _rate(_pinned(loader, place), device)
        rates["pin_memory"].append(rate)
        right = right and total == expected
        with Batches(nbytes, workers=workers, device=device) as batches:
            loader = data.DataLoader(samples, mib, num_workers=workers, collate_fn=batches.collate_fn)
            rate, total, _ = _rate(batches.of(loader, place), device)
        rates["Batches"].append(rate)
        right = right and total == expected
    medians = {name: sorted(found)[1] for name, found in rates.items()}
    print(f"DataLoader, {mib} MiB batches, {workers} workers  pin_memory {medians['pin_memory']:7.1f}, Batches "
          f"{medians['Batches']:7.1f} a second: {medians['Batches'] / medians['pin_memory']:.2f}x (wanted 1.5)   "
          f"{ {name: [round(each, 1) for each in found] for name, found in rates.items()} }   "
          f"sums {'right' if right else 'WRONG'}", flush=True)  # fmt: skip
    return right


def descriptors(device: str, count: int, workers: int) -> bool:
    from xpushare.integrations.torch import Batches

    with Batches(1 << 16, workers=workers, device=device) as batches:
        loader = data.DataLoader(Samples(4 * count, 1 << 14), 4, num_workers=workers, collate_fn=batches.collate_fn)
        rate, _, fds = _rate(batches.of(loader, _place(device)), device)
    flat = max(fds) - min(fds) <= 2
    print(f"{count} batches of 64 KiB  {rate:7.0f} a second, descriptors {min(fds)} to {max(fds)}"
          f"{'' if flat else ', which is WRONG'}", flush=True)  # fmt: skip
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=seconds, default=5.0)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--flat", type=int, default=2000)
    given = parser.parse_args()
    device: str = given.device
    parts: list[Callable[[], bool]] = [
        lambda: frames(device, given.seconds),
        *([] if _place(device) == "cpu" else [lambda: frames(device, given.seconds, 2_000_000)]),
        lambda: dataloader(device, given.batches, given.mib, given.workers),
        lambda: descriptors(device, given.flat, given.workers),
    ]
    results = [part() for part in parts]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
