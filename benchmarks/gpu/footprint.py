"""GPU memory of an array handed to eight workers, against a copy in each, by what the driver says is free.

The workers' contexts and first mappings are there before the first reading, so they do not count. Nobody else may use
the GPU meanwhile.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack

import xpushare as xs
from benchmarks.gpu.driver import MIB
from xpushare.bench.measure import Kept, Row, Settings, Worker, compare

DEVICE = "cuda:0"
NBYTES = 1024 * MIB
WORKERS = 8


def free(kept: Kept) -> int:  # noqa: ARG001
    """Bytes of the GPU's memory that nobody has."""
    from cuda.bindings import driver

    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    driver.cuCtxPushCurrent(context)
    code, found, _total = driver.cuMemGetInfo()
    driver.cuCtxPopCurrent()
    driver.cuDevicePrimaryCtxRelease(0)
    assert not int(code), code
    return int(found)


def start(kept: Kept) -> None:
    kept["queue"] = xs.Queue(DEVICE)


def make(kept: Kept, name: str, nbytes: int) -> bytes:
    array = kept[name] = xs.empty(nbytes, "u1", device=DEVICE)
    kept["queue"].fill(array, b"\x07")
    kept[name, "handle"] = xs.share(array, stream=kept["queue"])
    return bytes(kept[name, "handle"])


def attach(kept: Kept, name: str, handle: bytes) -> bytes:
    """Attach and keep; the last bytes."""
    array = kept[name] = xs.attach(handle, stream=kept["queue"])
    with xs.malloc_host(16, array.device) as target:
        kept["queue"].copy(target, array.memory.slice(array.nbytes - 16, 16))
        kept["queue"].synchronize(60)
        return bytes(memoryview(target))


def copy(kept: Kept, name: str) -> None:
    """In the place of the mapping a copy."""
    array = kept[name]
    own = kept[name, "own"] = xs.empty(array.nbytes, "u1", device=array.device)
    kept["queue"].copy(own, array)
    kept["queue"].synchronize(60)


def footprint() -> list[Row]:
    """Device memory in all processes together."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        settings = Settings(False, DEVICE, folder)
        owner, *workers = (stack.enter_context(Worker(settings)) for _ in range(1 + WORKERS))
        for started in [worker.start(start) for worker in (owner, *workers)]:
            started.result()
        small = owner.call(make, "small", 16)
        for worker in workers:
            worker.call(attach, "small", small)
        before = owner.call(free)
        handle = owner.call(make, "array", NBYTES)
        assert [worker.call(attach, "array", handle) for worker in workers] == [b"\x07" * 16] * WORKERS
        attached = before - owner.call(free)
        for worker in workers:
            worker.call(copy, "array")
        copied = before - owner.call(free)
    name = f"GPU memory of {NBYTES // MIB} MiB handed to {WORKERS} workers, in all processes"
    return [
        compare("footprint", name, [attached / NBYTES], "a copy in each", [copied / NBYTES], unit="times the array")
    ]
