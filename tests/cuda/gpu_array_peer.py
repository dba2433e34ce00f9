"""What a second process does with arrays in the hardware tests."""

from __future__ import annotations

from typing import Any

import xpushare as xs
from harness import kept

SIZE = 1 << 20
LONG = 400_000_000  # cycles: a fifth of a second or more


def slowly(torch: Any, stream: Any, array: Any, value: int) -> None:
    """Queue a long kernel, and behind it the fill."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        array.fill_(value)


def share_slowly(value: int, unordered: bool) -> bytes:
    """A tensor whose content a side stream is still making; -1 before that."""
    import torch

    stream = kept["stream"] = torch.cuda.Stream()
    tensor = kept["tensor"] = torch.full((SIZE,), -1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    slowly(torch, stream, tensor, value)
    with torch.cuda.stream(stream):
        kept["handle"] = xs.share(tensor, stream=-1 if unordered else None)
    return bytes(kept["handle"])


def finish() -> None:
    """Wait for what `share_slowly` has queued."""
    kept["stream"].synchronize()


def read_torch(raw: bytes, unordered: bool = False) -> tuple[int, int, bool]:
    """First and last element, read by a stream of this process; and whether the host was held up before."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), xs.attach(raw, stream=-1 if unordered else None) as array:
        tensor = torch.from_dlpack(array)
        copied = torch.stack((tensor[0], tensor[-1]))
        busy = not stream.query()
        stream.synchronize()
        return int(copied[0]), int(copied[1]), busy


def read_tensor(raw: bytes) -> tuple[int, int, bool, tuple[int, ...], str]:
    """The same of a tensor that `attach` makes; and its shape and device."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = xs.attach(raw, like=torch)
        copied = torch.stack((tensor[0], tensor[-1]))
        busy = not stream.query()
        stream.synchronize()
        return int(copied[0]), int(copied[1]), busy, tuple(tensor.shape), str(tensor.device)


def attach_ring(raw: bytes, free: bytes, full: bytes) -> None:
    kept["ring"] = xs.attach(raw)
    kept["free"], kept["full"] = xs.ipc.event.open(free), xs.ipc.event.open(full)


def consume_slowly(rounds: int) -> list[int]:
    """Read the one buffer slowly, as it is at each round, and give it back; the host waits for nothing."""
    import torch

    stream = torch.cuda.Stream()
    tensor = torch.from_dlpack(kept["ring"])
    found = torch.zeros(rounds, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), xs.Queue.from_native(stream) as queue:
        for round_ in range(rounds):
            queue.wait(kept["full"], at_least=round_ + 1)
            torch.cuda._sleep(LONG // 8)
            found[round_] = tensor[-1]
            queue.signal(kept["free"])
        queue.synchronize(30)
    return [int(each) for each in found.tolist()]


def made(library: str) -> Any:
    """An int32 array 0, 1, 2, … that a library allocated."""
    if library == "torch":
        import torch

        return torch.arange(SIZE, dtype=torch.int32, device="cuda")
    if library == "cupy":
        import cupy

        return cupy.arange(SIZE, dtype="int32")
    if library == "cupy-async":
        import cupy

        with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
            return cupy.arange(SIZE, dtype="int32")
    if library == "jax":
        import jax.numpy as jnp

        return jnp.arange(SIZE, dtype="int32")
    import numpy
    from numba import cuda

    return cuda.to_device(numpy.arange(SIZE, dtype="int32"))


def share_made(library: str, copy: bool = False) -> tuple[bytes, int]:
    kept["made"] = made(library)
    kept["handle"] = xs.share(kept["made"], copy=copy)
    return bytes(kept["handle"]), kept["handle"].copied_nbytes


def record_torch_event() -> None:
    import torch

    kept["stream"] = torch.cuda.Stream()
    with torch.cuda.stream(kept["stream"]):
        torch.cuda._sleep(LONG)
        kept["native"] = torch.cuda.Event()
        kept["native"].record()


def event_from_native() -> bytes:
    kept["event"] = xs.Event.from_native(kept["native"])
    return bytes(xs.ipc.event.get(kept["event"]))


def native_done() -> bool:
    return bool(kept["native"].query())


def wait_for_native_handle(raw: bytes) -> bool:
    """Another library opens the driver's own handle of our event."""
    import torch

    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), raw)
    before = event.query()
    event.synchronize()
    return not before


def total(array: xs.SharedArray) -> int:
    """The array came by pickle."""
    import torch

    return int(torch.from_dlpack(array).sum(dtype=torch.int64))


def made_of(n: int) -> xs.SharedArray:
    """A result that nothing here keeps."""
    import torch

    array = xs.empty(1000, "int32", device="cuda:0")
    torch.from_dlpack(array).fill_(n)
    return array
