"""torch tensors from process to process: by `share` and explicit handles, against torch's queue and the bare calls."""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from benchmarks.gpu.driver import MIB, IpcHandle, Raw, Receiver, Samples, row
from xpushare.bench.measure import Row

COLD: Final = 5e-3  # seconds between rounds that find caches and clocks cold
ARRAY_HANDLE_NBYTES: Final = 365  # without an event


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
    while (todo := pipe.recv()) != "end":
        if todo == "over":
            kept.clear()
            xs.trim()  # what is kept for a moment would be closed beside what is measured next
            pipe.send("trimmed")
            continue
        name, take, keep = todo
        pipe.send_bytes(b"ready")
        tensor = takes[take]()
        if keep and (take == "queue" or name not in kept):  # of ours the first one holds the mapping
            kept.setdefault(name, []).append(tensor)
        del tensor


def tensors() -> list[Row]:
    """A tensor from process to process, new and open already, hot and cold."""
    import torch

    import xpushare as xs

    turns, rounds, warm = 3, 50, 10
    here, queue, child, raw = Receiver.start(tensor_child)

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
        # Before the clock starts: the GPU's change of process after a fill is not a part of a hand-over.
        made = [[way.make(i) for i in range(1 if way.same else rounds)] for way in ways]
        torch.cuda.synchronize()
        handles: list[list[Any]] = [[], []]
        for way, items, known in zip(ways, made, handles, strict=True):
            if way.send is again:
                known.append((xs.ipc.memory.get if way.take == "open" else xs.share)(items[0]))
        found: tuple[Samples, Samples] = ([], [])
        for i in range(rounds):
            for side in (i % 2, 1 - i % 2):
                way, number = ways[side], 0 if ways[side].same else i
                here.send((f"{name}, {way.take}", way.take, way.keep))
                here.recv_bytes()
                time.sleep(rest)
                start = time.perf_counter()
                way.send(made[side][number], handles[side])
                value = here.recv_bytes()
                found[side].append(time.perf_counter() - start)
                if int(value) != number:
                    raise RuntimeError(f"{name}, {way.take}: {value!r} was read instead of {number}")
        here.send("over")
        here.recv()
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
    new, bare = "new 64 MiB torch tensor", "ctypes by hand, nothing checked, no tensor made"
    known = "tensor opened before"
    pairs: list[tuple[str, Way, str, Way, float]] = [
        (f"floor: {new}, ctypes by hand", hand, other, queued, 0),
        (f"{new}, explicit handle", explicit, bare, hand, 0),
        (f"{new}, xs.share", shared, other, queued, 0),
        (f"{new}, xs.share, cold", shared, f"{other}, cold", queued, COLD),
        (f"{new}, xs.share, torch.from_dlpack", Way("array", by_share, fresh), other, queued, 0),
        (f"{new}, explicit handle", explicit, other, queued, 0),
        ("new xs.empty on cuda, xs.share", own_shared, other, queued, 0),
        ("new xs.empty on cuda, explicit handle", own_explicit, other, queued, 0),
        (f"{known}, shared anew, cold", shared_before, f"{other}, cold, still open there", queued_held, COLD),
    ]
    for more, theirs in (("sent before", queued_before), ("still open there", queued_held)):
        pairs += [
            (f"floor: {ARRAY_HANDLE_NBYTES} bytes by a pipe, first element of a tensor that is there",
             before("pipe", by_pipe, fresh), f"{other}, {more}", theirs, 0),
            (f"{known}, shared anew", shared_before, f"{other}, {more}", theirs, 0),
            (f"{known}, explicit handle anew", before("open", by_handle, fresh), f"{other}, {more}", theirs, 0),
            (f"{known}, same array handle", before("share", again, fresh), f"{other}, {more}", theirs, 0),
            (f"{known}, same explicit handle", before("open", again, fresh), f"{other}, {more}", theirs, 0),
            ("xs.empty opened before, same array handle", before("share", again, own), f"{other}, {more}", theirs, 0),
        ]  # fmt: skip
    found: list[tuple[Samples, Samples]] = [([], []) for _ in pairs]
    for _ in range(turns):
        for samples, (name, mine, _other, theirs, rest) in zip(found, pairs, strict=True):
            for kept, measured in zip(samples, measure((mine, theirs), name, rest), strict=True):
                kept += measured
    here.send("end")
    child.join(10)
    return [
        row("tensors", name, ours, what, others)
        for (ours, others), (name, _, what, *_) in zip(found, pairs, strict=True)
    ]
