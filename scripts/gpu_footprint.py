"""GPU memory of an array handed to eight workers, against a copy in each, by what the driver says is free.

python scripts/gpu_footprint.py [--device cuda:0] [--mib 1024] [--json FILE]

The workers' contexts and first mappings are there before the first reading, so they do not count. Nobody else may use
the GPU meanwhile. Exit status 1 when the workers' mappings cost more than a twentieth of the array.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import xpushare as xs
from xpushare.bench.measure import Settings
from xpushare.bench.worker import Kept, Worker

MIB = 1 << 20
WORKERS = 8


def free(kept: Kept, device: str) -> int:  # noqa: ARG001
    """Bytes of the GPU's memory that nobody has."""
    from cuda.bindings import driver

    context = driver.cuDevicePrimaryCtxRetain(xs.Device(device).ordinal)[1]
    driver.cuCtxPushCurrent(context)
    code, found, _total = driver.cuMemGetInfo()
    driver.cuCtxPopCurrent()
    driver.cuDevicePrimaryCtxRelease(xs.Device(device).ordinal)
    assert not int(code), code
    return int(found)


def start(kept: Kept, device: str) -> None:
    kept["queue"] = xs.Queue(device)


def make(kept: Kept, name: str, nbytes: int, device: str) -> bytes:
    array = kept[name] = xs.empty(nbytes, "u1", device=device)
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


def measure(device: str, nbytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        settings = Settings(False, device, folder)
        owner, *workers = (stack.enter_context(Worker(settings)) for _ in range(1 + WORKERS))
        for worker in (owner, *workers):
            worker.start(start, device)
        for worker in (owner, *workers):
            worker.result()
        small = owner.call(make, "small", 16, device)
        for worker in workers:
            worker.call(attach, "small", small)
        before = owner.call(free, device)
        handle = owner.call(make, "array", nbytes, device)
        assert [worker.call(attach, "array", handle) for worker in workers] == [b"\x07" * 16] * WORKERS
        attached = before - owner.call(free, device)
        for worker in workers:
            worker.call(copy, "array")
        copied = before - owner.call(free, device)
    return {
        "row": f"GPU memory of {nbytes // MIB} MiB handed to {WORKERS} workers, in all processes",
        "ours_MiB": round(attached / MIB, 1),
        "other": "a copy in each",
        "theirs_MiB": round(copied / MIB, 1),
        "ratio": round(attached / copied, 4),
        "times_the_array": round(attached / nbytes, 4),
        "wanted": "at most 1.05 times the array",
        "met": attached <= 1.05 * nbytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    device = xs.Device(arguments.device)
    row = measure(str(device), arguments.mib * MIB)
    found = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": device.name,
        "driver": device.driver_version,
        "rows": [row],
    }
    text = json.dumps(found, indent=1)
    if arguments.json:
        Path(arguments.json).write_text(text + "\n")
    print(text)
    return 0 if row["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
