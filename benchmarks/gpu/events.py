"""Event round trips between two processes: ours, the driver's IPC events, and the same operations written by hand."""

from __future__ import annotations

import time
from typing import Any, Final

from benchmarks.gpu.driver import SPAWN, Page, Raw, Samples, page, row
from xpushare.bench.measure import Row


class Busy:
    """Keeps a stream of this process full of matrix products."""

    def __init__(self, device: int, size: int, depth: int) -> None:
        import torch

        self.torch, self.depth = torch, depth
        self.stream = torch.cuda.Stream(device)
        self.one = torch.randn(size, size, device=f"cuda:{device}", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.one)
        self.marks: list[Any] = []

    def feed(self) -> None:
        while self.marks and self.marks[0].query():
            self.marks.pop(0)
        while len(self.marks) < self.depth:
            with self.torch.cuda.stream(self.stream):
                self.torch.matmul(self.one, self.one, out=self.out)
                mark = self.torch.cuda.Event()
                mark.record()
                self.marks.append(mark)


class Ours:
    """xpushare's events."""

    def __init__(self, device: int, _raw: Raw, _page: Page, _at: int, first: bool, pipe: Any) -> None:
        import xpushare as xs

        self.queue = xs.Queue(f"cuda:{device}")
        if first:
            self.go, self.back = (xs.Event(f"cuda:{device}", enable_ipc=True) for _ in range(2))
            pipe.send((bytes(xs.ipc.event.get(self.go)), bytes(xs.ipc.event.get(self.back))))
        else:
            self.go, self.back = map(xs.ipc.event.open, pipe.recv())

    def start(self, _round: int) -> None:
        self.queue.signal(self.go)

    def answer(self, round_: int) -> None:
        self.queue.wait(self.go, at_least=round_)
        self.queue.signal(self.back)

    def finish(self, round_: int) -> None:
        self.back.wait(30, at_least=round_)


class ByHand:
    """The same stream memory operations, written with ctypes."""

    def __init__(self, _device: int, raw: Raw, shared: Page, at: int, _first: bool, _pipe: Any) -> None:
        self.stream = raw.stream().value
        self.write, self.wait = raw.cuda.cuStreamWriteValue64_v2, raw.cuda.cuStreamWaitValue64_v2
        base = raw.register(shared.address, 4096)
        self.go, self.back, self.words, self.at = base + 8 * at, base + 8 * (at + 8), shared.words, at + 8

    def start(self, round_: int) -> None:
        if self.write(self.stream, self.go, round_, 0):
            raise RuntimeError("cuStreamWriteValue64")

    def answer(self, round_: int) -> None:
        if self.wait(self.stream, self.go, round_, 0) or self.write(self.stream, self.back, round_, 0):
            raise RuntimeError("cuStreamWaitValue64, cuStreamWriteValue64")

    def finish(self, round_: int) -> None:
        words, at = self.words, self.at
        while words[at] < round_:
            pass


class Native:
    """The driver's own IPC events."""

    def __init__(self, _device: int, raw: Raw, _page: Page, _at: int, _first: bool, pipe: Any) -> None:
        self.cuda, self.stream = raw.cuda, raw.stream().value
        mine, handle = raw.event()
        raw.check(raw.cuda.cuEventRecord(mine, self.stream))
        pipe.send(handle)
        theirs = raw.open_event(pipe.recv())
        self.mine, self.theirs = mine.value, theirs.value

    def start(self, _round: int) -> None:
        if self.cuda.cuEventRecord(self.mine, self.stream):
            raise RuntimeError("cuEventRecord")

    def answer(self, _round: int) -> None:
        if self.cuda.cuStreamWaitEvent(self.stream, self.theirs, 0) or self.cuda.cuEventRecord(self.mine, self.stream):
            raise RuntimeError("cuStreamWaitEvent, cuEventRecord")

    def finish(self, _round: int) -> None:
        query, event = self.cuda.cuEventQuery, self.theirs
        while (code := query(event)) == 600:
            pass
        Raw.check(code)


WAYS: Final[dict[str, Any]] = {"ours": Ours, "by hand": ByHand, "native": Native}
BLOCKS, PER_BLOCK = 8, 60


def trips(
    device: int, path: str, pipe: Any, first: bool, busy: tuple[int, int] | None, armed: bool
) -> dict[str, Samples]:
    """One end of the round trips: all ways in turn, in blocks, with the same hand-over through a shared page.

    The first end signals and tells; the second enqueues its wait and its signal and tells; the first waits on the host.
    `armed`: the second enqueues before the first signals, which the driver's events cannot do.
    """
    raw, shared = Raw(device), Page(path)
    names = [name for name in WAYS if not (armed and name == "native")]
    hand = Page(path)  # a mapping of its own, which is registered
    made = {name: WAYS[name](device, raw, hand, 64, first, pipe) for name in names}
    load = Busy(device, *busy) if busy else None
    mine, theirs = (0, 8) if first else (8, 0)
    words, step, found = shared.words, 0, {name: [] for name in names}
    done = dict.fromkeys(names, 0)
    for block in range(BLOCKS):
        for name in names:
            way = made[name]
            for _ in range(PER_BLOCK):
                if load is not None:
                    load.feed()
                done[name] += 1
                step += 1
                if first:
                    if armed:
                        words[mine] = step
                        while words[theirs] < step:
                            pass
                        start = time.perf_counter()
                        way.start(done[name])
                    else:
                        start = time.perf_counter()
                        way.start(done[name])
                        words[mine] = step
                        while words[theirs] < step:
                            pass
                    way.finish(done[name])
                    if block:  # the first one warms up
                        found[name].append(time.perf_counter() - start)
                else:
                    while words[theirs] < step:
                        pass
                    way.answer(done[name])
                    words[mine] = step
    raw.synchronize()
    raw.unregister(hand.address)
    return found


def trips_child(device: int, path: str, pipe: Any, busy: tuple[int, int] | None, armed: bool) -> None:
    trips(device, path, pipe, False, busy, armed)
    pipe.send("done")
    pipe.recv()


def round_trips(other: int, busy: tuple[int, int] | None = None, armed: bool = False) -> dict[str, Samples]:
    with page() as path:
        here, there = SPAWN.Pipe()
        child = SPAWN.Process(target=trips_child, args=(other, path, there, busy, armed), daemon=True)
        child.start()
        found = trips(0, path, here, True, busy, armed)
        here.recv()
        here.send("bye")
        child.join(10)
    return found


NATIVE: Final = "the driver's IPC events"
HAND: Final = "ctypes by hand, same operations"
FULL: Final = (4096, 24)  # size of a matrix product, how many are kept queued: the stream never runs empty
LIGHT: Final = (2048, 2)


def against_both(name: str, found: dict[str, Samples]) -> list[Row]:
    others = ((NATIVE, "native"), (HAND, "by hand"))
    return [row("events", name, found["ours"], other, found[way]) for other, way in others if found.get(way)]


def events() -> list[Row]:
    """Event round trips on one idle GPU."""
    return [
        *against_both("event round trip, one idle GPU", round_trips(0)),
        *against_both("the same, the peer's wait enqueued before", round_trips(0, armed=True)),
    ]


def events_busy() -> list[Row]:
    """Event round trips on one GPU that both processes keep busy."""
    return [
        each
        for busy, name in ((FULL, "full streams"), (LIGHT, "two short products queued"))
        for each in against_both(f"round trip, one GPU, both busy, {name}", round_trips(0, busy))
    ]


def events_two() -> list[Row]:
    """Event round trips between two GPUs, idle and busy."""
    return [
        each
        for busy, name in ((None, "idle"), (FULL, "both busy"))
        for each in against_both(f"event round trip, two GPUs, {name}", round_trips(1, busy))
    ]
