"""What the workers of the Dask tests run; imported by them by name."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any

import numpy as np
from distributed import Worker

import xpushare as xs
from xpushare.integrations import dask as integration

kept: dict[str, Any] = {}  # what a worker goes on using after Dask has dropped it


def private(nbytes: int, first: float = 0.0) -> Any:
    """An array in NumPy's own memory."""
    return np.arange(nbytes // 8) + first


def shared(nbytes: int, first: float = 0.0) -> Any:
    """The same in shared memory."""
    array = np.asarray(xs.empty(nbytes // 8))
    array[:] = np.arange(nbytes // 8) + first
    return array


def shared_array(nbytes: int, first: float = 0.0) -> xs.SharedArray:
    array = xs.empty(nbytes // 8)
    np.asarray(array)[:] = np.arange(nbytes // 8) + first
    return array


def labelled(nbytes: int) -> tuple[str, xs.SharedArray]:
    """A value that Dask pickles as a whole."""
    return "label", shared_array(nbytes)


class Holder:
    """A value that only pickle knows."""

    def __init__(self, nbytes: int) -> None:
        self.array = shared_array(nbytes)


KINDS = {
    "float64": lambda: np.linspace(0, 1, 5000),
    "two dimensions": lambda: np.arange(6000, dtype="i4").reshape(60, 100),
    "big endian": lambda: np.arange(5000, dtype=">i4"),
    "complex": lambda: np.arange(5000) * (1 + 2j),
    "bool": lambda: np.arange(9000) % 3 == 0,
    "dates": lambda: np.arange(5000).astype("M8[s]"),
    "text": lambda: np.array([f"{each:>5}" for each in range(5000)]),
    "structures": lambda: np.array([(each, -each) for each in range(5000)], [("a", "i4"), ("b", "<f8")]),
    "every third": lambda: np.arange(9000.0)[::3],
    "backwards": lambda: np.arange(9000.0)[::-1],
    "columns first": lambda: np.asfortranarray(np.arange(6000.0).reshape(60, 100)),
    "a row": lambda: np.arange(5000.0)[None],
    "a corner": lambda: np.arange(40000.0).reshape(200, 200)[50:150, 50:150],
    "read-only": lambda: np.frombuffer(bytes(range(256)) * 100, "u1"),
    "shared, every second": lambda: shared(80000)[::2],
    "shared, turned": lambda: shared(80000).reshape(100, 100).T,
    "repeated": lambda: np.broadcast_to(np.arange(100.0), (100, 100)),
    "no elements": lambda: np.empty((0, 3)),
    "objects": lambda: np.array(["a", 1, None] * 3000, dtype=object),
    "masked": lambda: np.ma.masked_less(np.arange(5000.0), 10),
    "small": lambda: np.arange(10.0),
}


def make(kind: str) -> Any:
    return KINDS[kind]()


def describe(array: Any) -> dict[str, Any]:
    """What a consumer sees."""
    values = np.asarray(array)
    raw = repr(values.tolist()) if values.dtype.hasobject else np.ascontiguousarray(values).tobytes()
    return {
        "type": type(array),
        "dtype": values.dtype,
        "shape": values.shape,
        "writeable": values.flags.writeable,
        "fortran": values.flags.f_contiguous and not values.flags.c_contiguous,
        "digest": hashlib.sha256(raw.encode() if isinstance(raw, str) else raw).hexdigest(),
        "inode": inode(values),
    }


def inode(values: Any) -> int | None:
    """Of the shared memory that an array lies in; None for private memory."""
    address = values.ctypes.data
    with open("/proc/self/maps") as file:
        for line in file:
            where, _access, _offset, _device, number, *name = line.split()
            begin, end = (int(each, 16) for each in where.split("-"))
            if begin <= address < end:
                return int(number) if name and name[0].startswith("/memfd:xpushare-memory") else None
    return None


def keep(array: Any, name: str) -> dict[str, Any]:
    """`describe`, and go on using the array."""
    kept[name] = array
    return describe(array)


def look(name: str) -> dict[str, Any]:
    return describe(kept[name])


def drop(name: str) -> None:
    del kept[name]


def write(name: str, value: float) -> None:
    kept[name][0] = value


def total(*arrays: Any) -> float:
    return float(sum(np.asarray(array).sum() for array in arrays))


def label_and_total(value: tuple[str, Any]) -> tuple[str, float]:
    return value[0], total(value[1])


def held_total(value: Holder) -> float:
    return total(value.array)


def evict(dask_worker: Worker) -> list[Any]:
    """Spill all; the keys on disk and the bytes that their files have."""
    data: Any = dask_worker.data
    while data.fast:
        assert data.evict() > 0
    return [(key, data.spilled_total.disk) for key in data.slow]


def has(key: str, dask_worker: Worker) -> bool:
    return key in dask_worker.data


def statistics() -> dict[str, int]:
    return integration.leases()


def ask_again(dask_worker: Worker) -> None:
    integration.register(dask_worker, threshold=4000)


def asks(dask_worker: Worker) -> bool:
    return integration.FAMILY in dask_worker.rpc.connection_args.get("handshake_overrides", {})


def lose_next(count: int = 1) -> None:
    """The next handles expire on their way: what a lease that is too short comes to."""
    leases = integration._leases
    grant = leases.grant
    left = [count]

    def lose(handle: xs.ArrayHandle, *others: Any) -> None:
        left[0] -= 1
        if not left[0]:
            del leases.grant  # type: ignore[method-assign]
        handle.close()
        grant(handle, *others)

    leases.grant = lose  # type: ignore[method-assign]


def stop_when_a_handle_comes() -> None:
    """The process halts between getting a handle and opening it."""

    def attach(_handle: bytes) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    xs.attach = attach  # type: ignore[assignment]


def later(seconds: float) -> None:
    """Move the clock of this worker's leases."""
    leases = integration._leases
    clock = leases._clock
    leases._clock = lambda: clock() + seconds


def stop_clock() -> None:
    now = time.monotonic()
    integration._leases._clock = lambda: now


def start_clock() -> None:
    integration._leases._clock = time.monotonic


def tensor(nbytes: int, in_place: bool) -> Any:
    import torch

    if in_place:
        found = torch.from_dlpack(xs.empty(nbytes // 4, "f4"))
        found[:] = 2
        return found
    return torch.full((nbytes // 4,), 2.0)


def tensor_total(found: Any) -> tuple[str, float, bool]:
    return type(found).__name__, float(found.sum()), inode(found.numpy()) is not None


def bfloat16_tensor(length: int) -> Any:
    import torch

    return torch.full((length,), 1.5, dtype=torch.bfloat16)


def bfloat16_seen(found: Any) -> tuple[str, float, int]:
    return str(found.dtype), float(found.float().sum()), len(found)
