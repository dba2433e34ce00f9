"""What share.cpp does, in Python: `peer.py FOLDER COMMAND…` exports and runs COMMAND, `peer.py FOLDER` imports.

SHARE_ROUNDS=N exports N times, each time anew, whatever becomes of the command; the last time must be good.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import xpushare as xs

COUNT = 1024
DEVICE = xs.default_device()
GRANULE = DEVICE.memory_granularity()


def value(n: int) -> bytes:
    return np.int32(n).tobytes()


def holds(queue: xs.Queue, source: xs.Memory | xs.VirtualRange, number: int) -> bool:
    """Whether the first COUNT numbers on the device are `number`."""
    copy = xs.malloc_host(COUNT * 4)
    queue.copy(copy, source, COUNT * 4)
    queue.synchronize()
    return bool((np.frombuffer(memoryview(copy), np.int32) == number).all())


def export(folder: Path, command: list[str]) -> bool:
    queue, event = xs.Queue(), xs.Event(enable_ipc=True)
    memory, physical = xs.malloc_device(COUNT * 4), xs.PhysicalMemory(GRANULE, enable_ipc=True)
    mapped = xs.VirtualRange(GRANULE)
    mapped.map(physical)
    handles = {
        "memory": xs.ipc.memory.get(memory),
        "physical": xs.ipc.physical_memory.get(physical),
        "event": xs.ipc.event.get(event),
    }
    for name, handle in handles.items():
        (folder / name).write_bytes(bytes(handle))
    queue.fill(memory, value(42))
    queue.fill(mapped, value(99), COUNT * 4)
    queue.signal(event)  # the other's queue waits for it, its host need not
    good = subprocess.run(command).returncode == 0
    queue.wait(event)  # what the other signalled last
    return good and holds(queue, memory, 43) and holds(queue, mapped, 100)


def open_(folder: Path) -> bool:
    queue = xs.Queue()
    memory = xs.ipc.memory.open((folder / "memory").read_bytes())
    physical = xs.ipc.physical_memory.open((folder / "physical").read_bytes())
    event = xs.ipc.event.open((folder / "event").read_bytes())
    mapped = xs.VirtualRange(GRANULE)
    mapped.map(physical)
    queue.wait(event)
    good = holds(queue, memory, 42) and holds(queue, mapped, 99)
    queue.fill(memory, value(43), COUNT * 4)
    queue.fill(mapped, value(100), COUNT * 4)
    queue.signal(event)
    queue.synchronize()
    return good


if __name__ == "__main__":
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    good = False
    for _ in range(int(os.environ.get("SHARE_ROUNDS", "1")) if command else 1):
        try:
            good = export(folder, command) if command else open_(folder)
            print(f"Python {'exported' if command else 'imported'} on {DEVICE}: {'good' if good else 'WRONG'}", flush=True)
        except xs.XpuShareError as error:
            good = False
            print(f"Python: {error}", flush=True)
    sys.exit(not good)
