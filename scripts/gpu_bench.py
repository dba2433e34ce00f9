"""Measures the CUDA adapter on this machine against what a user would pick instead: ratios in one run.

python scripts/gpu_bench.py --json gpu-bench.json [--only events,tensors] [--profile]

Each group runs in a process of its own with a time limit; one that fails does not end the run. Medians with quartiles,
in microseconds unless a row says otherwise. Both sides do the same work and enqueue it anew each round.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import ctypes
import functools
import importlib.metadata
import io
import itertools
import json
import mmap
import multiprocessing
import os
import pstats
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from pathlib import Path
from typing import Any, Final, NamedTuple

MIB: Final = 1 << 20
COLD: Final = 5e-3  # seconds between rounds that find caches and clocks cold
NBYTES: Final = 64 * MIB
ARRAY_HANDLE_NBYTES: Final = 365  # without an event
SPAWN: Final = multiprocessing.get_context("spawn")
PROFILE: Final = bool(os.environ.get("XPUSHARE_PROFILE"))
Samples = list[float]
rows: list[dict[str, Any]] = []


# --- rows -----------------------------------------------------------------------------------------------------------


def spread(samples: Samples) -> dict[str, Any]:
    """Median, quartiles and mean of seconds, in microseconds."""
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    found = {"median": median, "low": low, "high": high, "mean": statistics.fmean(samples)}
    return {name: round(value * 1e6, 2) for name, value in found.items()} | {"samples": len(samples)}


def compare(
    name: str, ours: Samples, other: str, theirs: Samples, faster: float | None = None, slower: float | None = None
) -> None:
    """A row; `faster`: theirs / ours must reach it; `slower`: ours / theirs must not pass it."""
    ratio = statistics.median(ours) / statistics.median(theirs)
    wanted = "" if faster is None and slower is None else f"{faster:g}x faster" if faster else f"at most {slower:.3g}x"
    met = None if not wanted else 1 / ratio >= faster if faster else ratio <= (slower or 0)
    row = {"row": name, "ours": spread(ours), "other": other, "theirs": spread(theirs), "ratio": round(ratio, 4)}
    rows.append({**row, "faster": round(1 / ratio, 3), "wanted": wanted, "met": met})


def report(name: str, **values: Any) -> None:
    """A row without a comparison."""
    rows.append({"row": name, **values})


@contextlib.contextmanager
def profiled(name: str) -> Iterator[None]:
    """With --profile: where the time of the block goes, as a row."""
    if not PROFILE:
        yield
        return
    profile = cProfile.Profile()
    with profile:
        yield
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(22)
    report(f"profile of {name}", text=out.getvalue()[-4500:])


# --- the driver by ctypes ---------------------------------------------------------------------------------------------


class Raw:
    """libcuda by ctypes: what somebody would write by hand. The primary context of `device` is made current."""

    def __init__(self, device: int = 0) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check(self.cuda.cuInit(0))
        self.device = device
        self.context = ctypes.c_void_p()
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        self.check(self.cuda.cuCtxPushCurrent_v2(self.context))
        word, pointer, number = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint
        for name in ("cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2"):
            getattr(self.cuda, name).argtypes = [pointer, word, word, number]
        self.cuda.cuEventRecord.argtypes = self.cuda.cuStreamWaitEvent.argtypes = [pointer, pointer]
        self.cuda.cuStreamWaitEvent.argtypes = [pointer, pointer, number]
        self.cuda.cuEventQuery.argtypes = [pointer]
        self.cuda.cuMemHostRegister_v2.argtypes = [pointer, ctypes.c_size_t, number]
        self.cuda.cuIpcOpenMemHandle_v2.argtypes = [pointer, IpcHandle, number]
        self.cuda.cuIpcOpenEventHandle.argtypes = [pointer, IpcHandle]
        self.cuda.cuIpcCloseMemHandle.argtypes = [word]
        self.cuda.cuMemAddressReserve.argtypes = [pointer, ctypes.c_size_t, ctypes.c_size_t, word, word]
        self.cuda.cuMemMap.argtypes = [word, ctypes.c_size_t, ctypes.c_size_t, word, word]
        self.cuda.cuMemSetAccess.argtypes = [word, ctypes.c_size_t, pointer, ctypes.c_size_t]
        self.cuda.cuMemUnmap.argtypes = self.cuda.cuMemAddressFree.argtypes = [word, ctypes.c_size_t]
        self.cuda.cuMemRelease.argtypes = [word]
        self.cuda.cuMemImportFromShareableHandle.argtypes = [pointer, pointer, number]

    @staticmethod
    def check(code: int) -> None:
        if code:
            raise RuntimeError(f"the CUDA driver answered {code}")

    def stream(self) -> Any:
        found = ctypes.c_void_p()
        self.check(self.cuda.cuStreamCreate(ctypes.byref(found), 1))
        return found

    def event(self) -> tuple[Any, bytes]:
        """An interprocess event and its handle."""
        found, handle = ctypes.c_void_p(), IpcHandle()
        self.check(self.cuda.cuEventCreate(ctypes.byref(found), 2 | 4))
        self.check(self.cuda.cuIpcGetEventHandle(ctypes.byref(handle), found))
        return found, bytes(handle)

    def open_event(self, raw: bytes) -> Any:
        found = ctypes.c_void_p()
        self.check(self.cuda.cuIpcOpenEventHandle(ctypes.byref(found), IpcHandle.from_buffer_copy(raw)))
        return found

    def register(self, address: int, nbytes: int) -> int:
        """The device's address of host pages, registered."""
        self.check(self.cuda.cuMemHostRegister_v2(address, nbytes, 1 | 2))
        found = ctypes.c_uint64()
        self.check(self.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(found), ctypes.c_void_p(address), 0))
        return found.value

    def unregister(self, address: int) -> None:
        self.check(self.cuda.cuMemHostUnregister(ctypes.c_void_p(address)))

    def synchronize(self) -> None:
        self.check(self.cuda.cuCtxSynchronize())


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int))


class Page:
    """A page of 64-bit words that two processes share."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)
        self.words = memoryview(self.map).cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


@contextlib.contextmanager
def page() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(4096)
        yield file.name


# --- a, b, c: event round trips ---------------------------------------------------------------------------------------


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


def events() -> None:
    found = round_trips(0)
    compare("a. event round trip, one idle GPU", found["ours"], NATIVE, found["native"], faster=20)
    compare("c. event round trip, one idle GPU", found["ours"], HAND, found["by hand"], slower=1.3)
    found = round_trips(0, armed=True)
    compare("c. the same, the peer's wait enqueued before", found["ours"], HAND, found["by hand"], slower=1.3)


FULL: Final = (4096, 24)  # size of a matrix product, how many are kept queued: the stream never runs empty
LIGHT: Final = (2048, 2)


def events_busy() -> None:
    for busy, name in ((FULL, "full streams"), (LIGHT, "two short products queued")):
        found = round_trips(0, busy)
        compare(f"b. round trip, one GPU, both busy, {name}", found["ours"], NATIVE, found["native"], faster=1.2)
        compare(f"c. round trip, one GPU, both busy, {name}", found["ours"], HAND, found["by hand"], slower=1.3)


def events_two() -> None:
    for busy in (None, FULL):
        found = round_trips(1, busy)
        name = f"two GPUs, {'both busy' if busy else 'idle'}"
        compare(f"b. event round trip, {name}", found["ours"], NATIVE, found["native"], slower=1.2)
        compare(f"c. event round trip, {name}", found["ours"], HAND, found["by hand"], slower=1.3)


# --- d: tensors -------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """One way to hand a tensor over."""

    take: str  # what the consumer does
    send: Callable[[Any, list[Any]], None]  # of the tensor; the handles made so far
    make: Callable[[int], Any]  # a tensor of that value
    same: bool = False  # the same tensor each time
    keep: bool = False  # the consumer keeps it open


def tensor_child(pipe: Any, queue: Any) -> None:
    """Opens what comes, reads the first element, acknowledges."""
    import torch

    import xpushare as xs

    zeros = torch.zeros(1, device="cuda")
    raw_driver = Raw(0)
    pipe.send_bytes(b"ready")

    def by_hand() -> None:
        handle = pipe.recv_bytes()
        address, element = ctypes.c_uint64(), ctypes.c_int32()
        cuda = raw_driver.cuda
        raw_driver.check(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), IpcHandle.from_buffer_copy(handle), 1))
        raw_driver.check(cuda.cuMemcpyDtoH_v2(ctypes.byref(element), address, ctypes.c_size_t(4)))
        pipe.send_bytes(b"%d" % element.value)
        raw_driver.check(cuda.cuIpcCloseMemHandle(address))

    def by_queue() -> Any:
        tensor = queue.get()
        pipe.send_bytes(b"%d" % tensor[0].item())
        return tensor

    def by_share() -> Any:
        tensor = xs.attach(pipe.recv_bytes(), like=torch)
        pipe.send_bytes(b"%d" % tensor[0].item())
        return tensor

    def by_array() -> Any:
        with xs.attach(pipe.recv_bytes()) as found:
            tensor = torch.from_dlpack(found)
            pipe.send_bytes(b"%d" % tensor[0].item())
        return tensor

    def by_pipe() -> Any:
        pipe.recv_bytes()
        pipe.send_bytes(b"%d" % zeros[0].item())

    def by_handle() -> Any:
        with xs.ipc.memory.open(pipe.recv_bytes()) as memory:
            tensor = torch.from_dlpack(memory.as_array((16 * MIB,), "int32"))
            pipe.send_bytes(b"%d" % tensor[0].item())
        return tensor

    takes: dict[str, Callable[[], Any]] = {
        "hand": by_hand, "queue": by_queue, "share": by_share, "array": by_array, "open": by_handle, "pipe": by_pipe,
    }  # fmt: skip
    kept: dict[str, list[Any]] = {}
    profiles = Profiles()
    while (todo := pipe.recv()) != "end":
        if todo == "over":
            kept.clear()
            xs.trim()  # what is kept for a moment would be closed beside what is measured next
            pipe.send(profiles.texts())
            continue
        name, take, keep = todo
        pipe.send_bytes(b"ready")
        with profiles.of(name):
            tensor = takes[take]()
        if keep and (take == "queue" or name not in kept):  # of ours the first one holds the mapping
            kept.setdefault(name, []).append(tensor)
        del tensor


class Profiles:
    """With --profile: where the time of each way goes."""

    def __init__(self) -> None:
        self._profiles: dict[str, cProfile.Profile] = {}

    def of(self, name: str) -> contextlib.AbstractContextManager[object]:
        return self._profiles.setdefault(name, cProfile.Profile()) if PROFILE else contextlib.nullcontext()

    def texts(self) -> dict[str, str]:
        """What was found since the last call, by the names."""
        found = {}
        for name, profile in self._profiles.items():
            out = io.StringIO()
            pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(26)
            found[name] = out.getvalue()[-5000:]
        self._profiles.clear()
        return found


def tensors() -> None:
    import torch
    import torch.multiprocessing as tmp

    import xpushare as xs

    turns, rounds, warm = 3, 50, 10
    queue = tmp.get_context("spawn").Queue()
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=tensor_child, args=(there, queue), daemon=True)
    child.start()
    torch.zeros(1, device="cuda")
    raw = Raw(0)
    here.recv_bytes()

    def fresh(value: int) -> Any:
        return torch.full((16 * MIB,), value, dtype=torch.int32, device="cuda")

    def own(value: int) -> Any:
        made = xs.empty((16 * MIB,), "int32", device="cuda:0")
        torch.from_dlpack(made).fill_(value)
        return made

    def by_queue(item: Any, _handles: list[Any]) -> None:
        queue.put(item)

    def by_share(item: Any, handles: list[Any]) -> None:
        handles.append(xs.share(item))
        here.send_bytes(bytes(handles[-1]))

    def by_handle(item: Any, handles: list[Any]) -> None:
        handles.append(xs.ipc.memory.get(item))
        here.send_bytes(bytes(handles[-1]))

    def by_hand(item: Any, _handles: list[Any]) -> None:
        handle = IpcHandle()
        raw.check(raw.cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(item.data_ptr())))
        here.send_bytes(bytes(handle))

    def again(_item: Any, handles: list[Any]) -> None:
        here.send_bytes(bytes(handles[0]))

    def by_pipe(_item: Any, _handles: list[Any]) -> None:
        here.send_bytes(bytes(ARRAY_HANDLE_NBYTES))

    def measure(ways: tuple[Way, Way], name: str, rest: float) -> tuple[Samples, Samples]:
        """The times of two ways that take turns: what the machine does meanwhile, it does to both."""
        # Before the clock starts: the GPU's change of process after a fill is no part of a hand-over.
        made = [[way.make(i) for i in range(1 if way.same else rounds)] for way in ways]
        torch.cuda.synchronize()
        handles: list[list[Any]] = [[], []]
        for way, items, known in zip(ways, made, handles, strict=True):
            if way.send is again:
                known.append((xs.ipc.memory.get if way.take == "open" else xs.share)(items[0]))
        found: tuple[Samples, Samples] = ([], [])
        profiles = Profiles()
        for i in range(rounds):
            for side in (i % 2, 1 - i % 2):
                way, number = ways[side], 0 if ways[side].same else i
                here.send((f"{name}, {way.take}", way.take, way.keep))
                here.recv_bytes()
                time.sleep(rest)
                with profiles.of(f"{name}, {way.take}"):
                    start = time.perf_counter()
                    way.send(made[side][number], handles[side])
                    value = here.recv_bytes()
                    found[side].append(time.perf_counter() - start)
                if int(value) != number:
                    raise RuntimeError(f"{name}, {way.take}: {value!r} was read instead of {number}")
        here.send("over")
        for end, texts in (("consumer", here.recv()), ("producer", profiles.texts())):
            for which, text in texts.items():
                report(f"profile of the {end}, {which}", text=text)
        for handle in itertools.chain(*handles):
            handle.close() if hasattr(handle, "close") else xs.ipc.memory.put(handle)
        del made
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return found[0][warm:], found[1][warm:]

    hand, shared, explicit = Way("hand", by_hand, fresh), Way("share", by_share, fresh), Way("open", by_handle, fresh)
    own_shared, own_explicit = Way("share", by_share, own), Way("open", by_handle, own)
    queued = Way("queue", by_queue, fresh)
    before = functools.partial(Way, same=True, keep=True)
    queued_before, queued_held = Way("queue", by_queue, fresh, same=True), before("queue", by_queue, fresh)
    shared_before = before("share", by_share, fresh)
    other = "torch.multiprocessing queue"
    new, bare = "d. new 64 MiB torch tensor", "ctypes by hand, nothing checked, no tensor made"
    known = "d. tensor opened before"
    pairs: list[tuple[str, Way, str, Way, float | None, float]] = [
        ("d. floor: new 64 MiB torch tensor, ctypes by hand", hand, other, queued, None, 0),
        (f"{new}, explicit handle", explicit, bare, hand, None, 0),
        (f"{new}, xs.share", shared, other, queued, 2, 0),
        (f"{new}, xs.share, cold", shared, f"{other}, cold", queued, 1.2, COLD),
        (f"{new}, xs.share, torch.from_dlpack", Way("array", by_share, fresh), other, queued, None, 0),
        (f"{new}, explicit handle", explicit, other, queued, None, 0),
        ("d. new xs.empty on cuda, xs.share", own_shared, other, queued, None, 0),
        ("d. new xs.empty on cuda, explicit handle", own_explicit, other, queued, None, 0),
        (f"{known}, shared anew, cold", shared_before, f"{other}, cold, still open there", queued_held, None, COLD),
    ]
    for more, theirs, faster in (("sent before", queued_before, None), ("still open there", queued_held, 3.0)):
        pairs += [
            (f"d. floor: {ARRAY_HANDLE_NBYTES} bytes by a pipe, first element of a tensor that is there",
             before("pipe", by_pipe, fresh), f"{other}, {more}", theirs, None, 0),
            (f"{known}, shared anew", shared_before, f"{other}, {more}", theirs, faster, 0),
            (f"{known}, explicit handle anew", before("open", by_handle, fresh), f"{other}, {more}", theirs, faster, 0),
            (f"{known}, same array handle", before("share", again, fresh), f"{other}, {more}", theirs, faster, 0),
            (f"{known}, same explicit handle", before("open", again, fresh), f"{other}, {more}", theirs, faster, 0),
            ("d. xs.empty opened before, same array handle", before("share", again, own), f"{other}, {more}", theirs,
             faster, 0),
        ]  # fmt: skip
    found: list[tuple[Samples, Samples]] = [([], []) for _ in pairs]
    for _ in range(1 if PROFILE else turns):
        for samples, (name, mine, _other, theirs, _faster, rest) in zip(found, pairs, strict=True):
            for kept, measured in zip(samples, measure((mine, theirs), name, rest), strict=True):
                kept += measured
    here.send("end")
    child.join(10)
    for (ours, others), (name, _mine, what, _theirs, faster, _rest) in zip(found, pairs, strict=True):
        compare(name, ours, what, others, faster=faster)


# --- e: cuda.core -----------------------------------------------------------------------------------------------------


def buffer_child(pipe: Any, resource: Any) -> None:
    from cuda.core import Device

    import xpushare as xs

    Device(0).set_current()
    stream = Device(0).create_stream()
    Raw(0)
    pipe.send("ready")
    while (way := pipe.recv()) != "end":
        for _ in range(pipe.recv()):
            if way == "core":
                buffer = pipe.recv()  # unpickling opens it
                if buffer.size < NBYTES:
                    raise RuntimeError("a short buffer")
                buffer.close(stream)
            else:
                xs.ipc.memory.open(pipe.recv_bytes()).close()
            pipe.send_bytes(b"1")
    del resource


def buffers() -> None:
    import torch
    from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

    import xpushare as xs

    device = Device(0)
    device.set_current()
    torch.zeros(1, device="cuda")
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=8 << 30, ipc_enabled=True))
    stream = device.create_stream()
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=buffer_child, args=(there, resource), daemon=True)
    child.start()
    here.recv()
    found: dict[str, Samples] = {"core": [], "legacy": [], "vmm": []}
    for _ in range(2):
        for way, samples in found.items():
            kept: list[Any] = []
            for _ in range(50):
                if way == "core":
                    kept.append(resource.allocate(NBYTES, stream=stream))
                elif way == "legacy":
                    kept.append(torch.empty(NBYTES, dtype=torch.uint8, device="cuda"))
                else:
                    kept.append(xs.malloc_device(NBYTES, "cuda:0"))
            device.sync()
            here.send(way)
            here.send(50)
            for memory in kept:
                start = time.perf_counter()
                if way == "core":
                    here.send(memory)
                else:
                    handle = xs.ipc.memory.get(memory)
                    here.send_bytes(bytes(handle))
                here.recv_bytes()
                samples.append(time.perf_counter() - start)
                if way != "core":
                    xs.ipc.memory.put(handle)
            kept.clear()
            del memory
            torch.cuda.empty_cache()
    here.send("end")
    child.join(10)
    other = "cuda.core pool buffer"
    compare("e. 64 MiB handed over, opened, closed: legacy handle", found["legacy"][5:], other, found["core"][5:], 1.5)
    compare("e. 64 MiB handed over, opened, closed: VMM", found["vmm"][5:], other, found["core"][5:], slower=1.0)


# --- f: open and close ------------------------------------------------------------------------------------------------


def opens_child(pipe: Any, count: int) -> None:
    import xpushare as xs

    raw = Raw(0)
    fds = [reduction.recv_handle(pipe) for _ in range(count)]
    driver = raw.cuda
    xs.ipc.memory.open(pipe.recv()).close()  # the exporter is known from here on
    access = Access(1, 0, 3)

    def legacy(handle: bytes) -> None:
        address = ctypes.c_uint64()
        raw.check(driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), IpcHandle.from_buffer_copy(handle), 1))
        raw.check(driver.cuIpcCloseMemHandle(address))

    def vmm(number: int) -> None:
        handle, address = ctypes.c_uint64(), ctypes.c_uint64()
        raw.check(driver.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(number), 1))
        raw.check(driver.cuMemAddressReserve(ctypes.byref(address), NBYTES, 0, 0, 0))
        raw.check(driver.cuMemMap(address, NBYTES, 0, handle, 0))
        raw.check(driver.cuMemSetAccess(address, NBYTES, ctypes.byref(access), 1))
        raw.check(driver.cuMemUnmap(address, NBYTES))
        raw.check(driver.cuMemRelease(handle))
        raw.check(driver.cuMemAddressFree(address, NBYTES))

    def ours(handle: bytes) -> None:
        xs.ipc.memory.open(handle).close()

    def measure(function: Callable[[Any], None], items: list[Any]) -> tuple[Samples, float]:
        found, start = [], time.perf_counter()
        for item in items:
            begin = time.perf_counter()
            function(item)
            found.append(time.perf_counter() - begin)
        if function is ours:
            settle()
        return found, (time.perf_counter() - start) / len(items)

    def settle() -> None:
        from xpushare import adapters

        if not adapters.adapter("cuda").engine.teardown.settle(20):  # type: ignore[attr-defined]
            raise RuntimeError("the teardowns have not come to an end")

    while (items := pipe.recv()) is not None:
        for kind, function in (("legacy", legacy), ("vmm", vmm), ("ours legacy", ours), ("ours vmm", ours)):
            given = fds if kind == "vmm" else items[kind]
            if function is ours:
                settle()
            with profiled(kind) if function is ours else contextlib.nullcontext():
                pipe.send((kind, *measure(function, given)))
        pipe.send((None, list(rows), 0.0))
        rows.clear()


def opens() -> None:
    import xpushare as xs

    raw, count = Raw(0), 50
    memories = [xs.malloc_device(NBYTES, "cuda:0") for _ in range(count)]
    fds = [memory._use().allocation.driver.export(False).fds[0] for memory in memories]  # type: ignore[attr-defined]
    pointers = []
    for _ in range(count):
        address = ctypes.c_uint64()
        raw.check(raw.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(NBYTES)))
        pointers.append(address.value)
    handles = []
    for pointer in pointers:
        handle = IpcHandle()
        raw.check(raw.cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(pointer)))
        handles.append(bytes(handle))
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=opens_child, args=(there, count), daemon=True)
    child.start()
    for fd in fds:
        reduction.send_handle(here, fd, child.pid)
    first = xs.malloc_device(4096, "cuda:0")
    here.send(bytes(xs.ipc.memory.get(first)))
    found: dict[str, Samples] = {}
    whole: dict[str, Samples] = {}
    for _ in range(1 if PROFILE else 3):
        items = {
            "legacy": handles,
            "ours legacy": [bytes(xs.ipc.memory.get(pointer)) for pointer in pointers],
            "ours vmm": [bytes(xs.ipc.memory.get(memory)) for memory in memories],
        }
        here.send(items)
        while True:
            kind, samples, each = here.recv()
            if kind is None:
                rows.extend(samples)
                break
            found.setdefault(kind, []).extend(samples)
            whole.setdefault(kind, []).append(each)
    here.send(None)
    child.join(10)
    compare(
        "f. open and close, legacy, as the caller sees it",
        found["ours legacy"],
        "raw calls",
        found["legacy"],
        None,
        1.5,
    )
    compare("f. open and close, VMM, as the caller sees it", found["ours vmm"], "raw calls", found["vmm"], None, 1.5)
    for kind in ("legacy", "vmm"):
        ours, theirs = statistics.median(whole[f"ours {kind}"]), statistics.median(whole[kind])
        report(
            f"f. {kind}, teardown included: total of {count} / {count}",
            ours_us=round(ours * 1e6, 2),
            theirs_us=round(theirs * 1e6, 2),
            ratio=round(ours / theirs, 3),
            wanted="at most 1.5x",
            met=ours <= 1.5 * theirs,
        )


# --- g: copies --------------------------------------------------------------------------------------------------------


def rates(queue: Any, target: Any, source: Any) -> Samples:
    """Seconds per copy of 512 MiB, ten batches."""
    queue.copy(target, source)
    queue.synchronize(30)
    found = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(20):
            queue.copy(target, source)
        queue.synchronize(30)
        found.append((time.perf_counter() - start) / 20)
    return found


def copies_child(pipe: Any) -> None:
    import xpushare as xs

    while (given := pipe.recv()) is not None:
        raw, device = given
        with (
            xs.ipc.memory.open(raw, device=device) as source,
            xs.Queue(device) as queue,
            xs.malloc_device(source.nbytes, device) as target,
        ):
            pipe.send(rates(queue, target, source))


def copies() -> None:
    import xpushare as xs

    nbytes = 512 * MIB
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=copies_child, args=(there,), daemon=True)
    child.start()
    for device in [str(found) for found in xs.devices("cuda:*")][:2]:
        with (
            xs.malloc_device(nbytes, "cuda:0") as source,
            xs.malloc_device(nbytes, device) as target,
            xs.Queue(device) as queue,
        ):
            mine: Samples = []
            opened: Samples = []
            for _ in range(2):
                mine += rates(queue, target, source)
                here.send((bytes(xs.ipc.memory.get(source)), device))
                opened += here.recv()
        where = "own GPU" if device == "cuda:0" else "peer GPU"
        compare(
            f"g. 512 MiB copied through an opened mapping, {where}", opened, "in one process", mine, slower=1 / 0.98
        )
        rows[-1]["GB/s"] = [round(nbytes / statistics.median(each) / 1e9, 1) for each in (opened, mine)]
    here.send(None)
    child.join(10)


# --- h: other libraries, many events, death ---------------------------------------------------------------------------


def make_child(pipe: Any, library: str, nbytes: int) -> None:
    import xpushare as xs

    if library == "jax":
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.2"
        import jax.numpy as jnp

        made = jnp.full((nbytes // 4,), 9, dtype=jnp.int32)
        made.block_until_ready()
    else:
        import torch

        made = torch.full((nbytes // 4,), 9, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
    handle = xs.share(made)
    pipe.send(bytes(handle))
    pipe.recv()
    pipe.send(int(made[5]))
    pipe.recv()


def foreign(library: str, nbytes: int, name: str) -> None:
    """Another process's array is opened here, read at both ends and written; its owner sees the write."""
    import torch

    import xpushare as xs

    here, there = SPAWN.Pipe()
    os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    child = SPAWN.Process(target=make_child, args=(there, library, nbytes), daemon=True)
    child.start()
    del os.environ["PYTORCH_ALLOC_CONF"], os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    raw = here.recv()
    copied: int | None = None
    start = time.perf_counter()
    with xs.attach(raw) as opened:
        took = time.perf_counter() - start
        step = "from_dlpack"
        try:
            tensor = torch.from_dlpack(opened)
            step = "compare all"
            same = bool((tensor == 9).all().item())
            step = "copy one element"
            read = tensor[0].item(), tensor[-1].item(), same
            step = "write"
            if not opened.read_only:
                tensor[5] = 77
                torch.cuda.synchronize()
            else:  # JAX arrays are shared read-only: that nothing was copied is what the handle says
                copied = xs.ArrayHandle(raw).copied_nbytes
        except RuntimeError as error:
            with xs.Queue(opened.device) as queue, xs.malloc_host(64, opened.device) as target:
                queue.copy(target, opened.memory, 64)
                queue.synchronize(10)
                got = bytes(memoryview(target)[:8])
            raise RuntimeError(f"{step}: {str(error)[:60]}; read by xs.Queue: {got!r}, {opened.memory}") from error
        here.send("look")
        seen = here.recv()
    here.send("bye")
    child.join(10)
    good = read == (9, 9, True)
    zero_copy = seen == 77 if copied is None else not copied
    report(f"h. {name} read in another process", works=good, zero_copy=zero_copy, attach_us=round(took * 1e6, 1))


def foreigns() -> None:
    for arguments in (
        ("jax", 64 * MIB, "JAX array of 64 MiB"),
        ("jax", 64 * MIB, "JAX array of 64 MiB, torch in use"),
        ("torch", 64 * MIB, "torch expandable_segments tensor of 64 MiB"),
        ("torch", 3 << 30, "torch expandable_segments tensor of 3 GiB"),
    ):
        try:
            foreign(*arguments)
        except Exception as error:
            report(f"h. {arguments[2]} read in another process", works=False, failed=repr(error))
            import torch

            torch.zeros(1, device="cuda")


def many_events() -> None:
    import xpushare as xs

    count = 100_000
    with xs.Queue("cuda:0") as queue:
        warm = xs.Event("cuda:0", enable_ipc=True)
        queue.signal(warm)
        queue.synchronize(10)
        fds = len(os.listdir("/proc/self/fd"))
        start = time.perf_counter()
        made = [xs.Event("cuda:0", enable_ipc=True) for _ in range(count)]
        create = (time.perf_counter() - start) / count
        start = time.perf_counter()
        for event in made[::50]:
            queue.signal(event)
        queue.synchronize(30)
        signal_ = (time.perf_counter() - start) / len(made[::50])
        good = all(event.value == 1 for event in made[::50])
        more = len(os.listdir("/proc/self/fd")) - fds
    report(
        f"h. {count} events in one process", fds_more=more, create_us=round(create * 1e6, 2), works=good,
        signal_us=round(signal_ * 1e6, 2), signalled=len(made[::50]),
    )  # fmt: skip


def doomed_child(pipe: Any) -> None:
    import torch

    import xpushare as xs

    event = xs.Event("cuda:0", enable_ipc=True)
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        torch.cuda._sleep(40_000_000_000)  # about 20 s
        with xs.Queue.from_native(torch.cuda.current_stream()) as queue:
            queue.signal(event)
            pipe.send(bytes(xs.ipc.event.get(event)))
            time.sleep(60)


def deaths() -> None:
    import xpushare as xs

    found: dict[str, Samples] = {"queue": [], "host": []}
    ran = []
    for _ in range(3):
        here, there = SPAWN.Pipe()
        child = SPAWN.Process(target=doomed_child, args=(there,), daemon=True)
        child.start()
        event = xs.ipc.event.open(here.recv())
        with xs.Queue("cuda:0") as queue, xs.malloc_host(64, "cuda:0") as memory:
            memoryview(memory)[:] = bytes(64)
            queue.wait(event)
            queue.fill(memory, b"1")
            time.sleep(0.2)
            pending = not event.value
            start = time.perf_counter()
            os.kill(child.pid or 0, signal.SIGKILL)
            try:
                event.wait(10)
            except xs.PeerLostError:
                found["host"].append(time.perf_counter() - start)
            try:
                queue.synchronize(10)
            except xs.PeerLostError:
                found["queue"].append(time.perf_counter() - start)
            ran.append(pending and bytes(memoryview(memory)[:1]) == b"1")
        event.close()
        child.join(10)
    report(
        "h. producer killed behind 20 s of work: PeerLostError", host_ms=[round(s * 1e3, 2) for s in found["host"]],
        queue_ms=[round(s * 1e3, 2) for s in found["queue"]], stream_went_on=ran,
        works=len(found["host"]) == len(found["queue"]) == 3 and all(ran),
    )  # fmt: skip


# --- i: MPS -----------------------------------------------------------------------------------------------------------


def mps() -> None:
    """The event round trip and a memory hand-over under a private MPS daemon, which is ended afterwards."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        report("i. MPS", works=False, reason="there is no nvidia-cuda-mps-control on this machine")
        return
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for name in ("pipe", "log"):
            Path(folder, name).mkdir()
        begun = subprocess.run([control, "-d"], env=env, capture_output=True, text=True, timeout=15, check=False)
        if begun.returncode:
            report("i. MPS", works=False, reason=(begun.stdout + begun.stderr)[-400:])
            return
        try:
            # A trip through the driver by hand shows whether the daemon serves at all.
            out = Path(folder, "rows.json")
            command = [sys.executable, __file__, "--group", "mps_inside", "--out", str(out)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=55, check=False)
            found = json.loads(out.read_text()) if out.exists() else []
            rows.extend({**row, "row": f"i. under MPS: {row['row']}", "wanted": "", "met": None} for row in found)
            if done.returncode or not found:
                logs = [path.read_text()[-500:] for path in Path(folder, "log").iterdir()]
                report("i. MPS", works=False, reason=done.stderr[-500:], logs=logs)
        except subprocess.TimeoutExpired:
            report("i. MPS", works=False, reason="not done within 55 s")
        finally:
            subprocess.run([control], input="quit\n", env=env, capture_output=True, text=True, timeout=30, check=False)


def read_child(pipe: Any) -> None:
    import xpushare as xs

    with xs.ipc.memory.open(pipe.recv()) as memory, xs.malloc_host(16, "cuda:0") as target, xs.Queue("cuda:0") as queue:
        queue.copy(target, memory, 16)
        queue.synchronize(10)
        pipe.send(bytes(memoryview(target)))


def mps_inside() -> None:
    import xpushare as xs

    for way in ("VMM", "legacy"):
        try:
            with xs.Queue("cuda:0") as queue:
                raw = Raw(0)
                address = ctypes.c_uint64()
                raw.check(raw.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * MIB)))
                raw.check(raw.cuda.cuMemsetD8_v2(address, 7, ctypes.c_size_t(4 * MIB)))
                memory = xs.malloc_device(4 * MIB, "cuda:0")
                queue.fill(memory, b"\7")
                queue.synchronize(10)
                handle = xs.ipc.memory.get(memory if way == "VMM" else address.value)
                here, there = SPAWN.Pipe()
                child = SPAWN.Process(target=read_child, args=(there,), daemon=True)
                child.start()
                here.send(bytes(handle))
                good = here.poll(20) and here.recv() == b"\7" * 16
                report(f"memory hand-over, {way}", works=good)
                child.join(5)
        except Exception as error:
            report(f"memory hand-over, {way}", works=False, failed=repr(error))
    found = round_trips(0)
    compare("event round trip, idle", found["ours"], NATIVE, found["native"])
    compare("event round trip, idle", found["ours"], HAND, found["by hand"])


# --- running ----------------------------------------------------------------------------------------------------------


def trees() -> None:
    """A model's 578 tensors: as one tree, and through a queue with the reductions, against torch's queue."""
    from tree_bench import Bench

    bench = Bench("cuda:0")
    for row in bench.rows(10):
        assert row.ratio is not None
        rows.append({"row": f"t. {row.scenario}, {row.name}", "faster": 1 / row.ratio, **row.as_json()})
    for name, value in bench.floors(5).items():
        report(f"t. floor, {name}", value=value)
    bench.end()


GROUPS: Final[dict[str, tuple[Callable[[], None], int, int]]] = {  # name -> (function, GPUs, seconds)
    "events": (events, 1, 40),
    "tensors": (tensors, 1, 60),
    "opens": (opens, 1, 40),
    "trees": (trees, 1, 90),
    "buffers": (buffers, 1, 50),
    "events_busy": (events_busy, 1, 50),
    "events_two": (events_two, 2, 60),
    "copies": (copies, 1, 40),
    "deaths": (deaths, 1, 50),
    "foreigns": (foreigns, 1, 80),
    "many_events": (many_events, 1, 30),
    "mps": (mps, 1, 110),
    "mps_inside": (mps_inside, 1, 0),  # run by `mps`
}


def show(row: dict[str, Any]) -> None:
    if "text" in row:
        print(f"{row['row']}\n{row['text']}")
    elif "ours" in row:
        ours, theirs = row["ours"], row["theirs"]
        met = {None: "", True: "met", False: "NOT MET"}[row["met"]]
        sides = (f"{each['median']:>8.1f} [{each['low']:.1f}, {each['high']:.1f}]" for each in (ours, theirs))
        ours_text, theirs_text = sides
        print(
            f"{row['row']:<54} {ours_text:<26} {theirs_text:<26} {row['ratio']:>7.3f} ({row['faster']:.2f}x) "
            f"{row['wanted']:<14} {met}  | {row['other']}" + (f" {row['GB/s']} GB/s" if "GB/s" in row else "")
        )
    else:
        print(f"{row['row']:<54} " + ", ".join(f"{name}={value}" for name, value in row.items() if name != "row"))
    sys.stdout.flush()


def table(rows: list[dict[str, Any]]) -> str:
    """The comparisons in Markdown, for docs/backends/cuda.md."""
    lines = ["| figure | ours | theirs | ratio | wanted | met |", "|---|---|---|---|---|---|"]
    for row in sorted((row for row in rows if "ours" in row or "ours_us" in row), key=lambda row: str(row["row"])):
        ours, theirs = (
            f"{row[side]['median']:.1f}" if side in row else f"{row[side + '_us']:.1f}" for side in ("ours", "theirs")
        )
        name = f"{row['row']}; against {row['other']}" if "other" in row else f"{row['row']}; against raw calls"
        met = {None: "", True: "yes", False: "no"}[row["met"]]
        lines.append(f"| {name} | {ours} | {theirs} | {row['ratio']:.2f} | {row['wanted']} | {met} |")
    return "\n".join(lines)


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("xpushare", "cuda-bindings", "cuda-core", "torch", "jax", "cupy-cuda13x", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def run_group(name: str, seconds: int) -> list[dict[str, Any]]:
    """The rows of one group, run in a process group of its own that ends with its time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        command = [sys.executable, __file__, "--group", name, "--out", str(out)]
        begun = time.monotonic()
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            error = process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            error = process.communicate()[1] + f"\nnot done within {seconds} s"
        found: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
        if process.returncode:
            found.append({"row": f"group {name}", "failed": error[-1500:]})
        for row in found:
            row["group"] = name
        print(f"-- {name}: {time.monotonic() - begun:.1f} s", flush=True)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--table", type=Path, help="print a results file as a Markdown table and end")
    parser.add_argument("--group")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.group:
        try:
            GROUPS[options.group][0]()
        finally:
            options.out.write_text(json.dumps(rows, default=str))
        return
    if options.table:
        print(table(json.loads(options.table.read_text())["rows"]))
        return
    if options.profile:
        os.environ["XPUSHARE_PROFILE"] = "1"
    import xpushare as xs
    from xpushare import adapters

    devices = xs.devices("cuda:*")
    if not devices:
        sys.exit(adapters.adapter("cuda").why_none())
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"), "device": devices[0].name, "driver": devices[0].driver_version,
        "gpus": len(devices), "cpus": os.cpu_count(), "kernel": os.uname().release, "versions": versions(), "rows": [],
    }  # fmt: skip
    print(json.dumps({name: value for name, value in facts.items() if name != "rows"}))
    wanted = options.only.split(",") if options.only else [name for name in GROUPS if name != "mps_inside"]
    for name in wanted:
        _function, gpus, seconds = GROUPS[name]
        if len(devices) < gpus:
            continue
        facts["rows"] += run_group(name, seconds)
        if options.json is not None:  # after each group: the run may be cut off
            options.json.write_text(json.dumps(facts, indent=1) + "\n")
    print()
    for row in sorted(facts["rows"], key=lambda row: str(row["row"])):
        show(row)


if __name__ == "__main__":
    main()
