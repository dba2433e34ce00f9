"""100,000 open/close cycles, then 10 threads on 100 handles: fds, mappings, resident memory stay flat on both sides."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

from soak.common import DEVICE, Held, Soak, describe_held, held, main

Kept = dict[str, Any]
_NBYTES = 65536
_HANDLES = 100
_THREADS = 10
_MOST_GROWTH = 4 << 20  # bytes: what an allocator's arenas may still do after the warm-up


def _export(kept: Kept, count: int) -> list[bytes]:
    import xpushare as xs

    found = []
    for number in range(count):
        memory = xs.malloc_host(_NBYTES, DEVICE)
        memoryview(memory)[:1] = bytes([number % 256])
        kept[f"memory {number}"] = memory
        found.append(bytes(xs.ipc.memory.get(memory)))
    return found


def _flat(soak: Soak, what: str, before: Held, after: Held) -> None:
    soak.say(f"{what}: before {before}; after {after}")
    soak.check(after.fds <= before.fds, f"{what}: fds {before.fds} -> {after.fds}: {describe_held()}")
    soak.check(after.shared <= before.shared, f"{what}: shared mappings {before.shared} -> {after.shared}")
    soak.check(after.mappings <= before.mappings + 40, f"{what}: mappings {before.mappings} -> {after.mappings}")
    growth = after.resident - before.resident
    soak.check(growth < _MOST_GROWTH, f"{what}: resident memory grew by {growth} bytes")


def run(soak: Soak) -> None:
    import xpushare as xs

    with soak.worker() as exporter:
        handles = exporter.call(_export, _HANDLES)

        def cycle(number: int) -> None:
            memory = xs.ipc.memory.open(handles[number])
            with memoryview(memory) as view:
                if view[0] != number % 256:
                    raise AssertionError(f"handle {number} shows {view[0]}")
            memory.close()

        cycles = soak.count(100_000, 2_000)
        for turn in range(cycles // 20):
            cycle(turn % _HANDLES)
        before, before_there = held(), held(exporter.pid)
        start = time.monotonic()
        for turn in range(cycles):
            cycle(turn % _HANDLES)
        each = (time.monotonic() - start) / cycles * 1e6
        soak.say(f"{cycles} cycles of open, read, close: {each:.1f} us each")
        _flat(soak, "cycles, importer", before, held())
        _flat(soak, "cycles, exporter", before_there, held(exporter.pid))

        errors: list[BaseException] = []

        def body(seed: int, turns: int) -> None:
            pick = random.Random(seed)
            try:
                for _ in range(turns):
                    first, second = pick.randrange(_HANDLES), pick.randrange(_HANDLES)
                    one = xs.ipc.memory.open(handles[first])  # two at a time, the same one now and then
                    cycle(second)
                    with memoryview(one) as view:
                        if view[0] != first % 256:
                            raise AssertionError(f"handle {first} shows {view[0]}")
                    one.close()
            except BaseException as error:
                errors.append(error)

        def together(turns: int) -> None:
            seeds = [soak.random.getrandbits(32) for _ in range(_THREADS)]
            threads = [threading.Thread(target=body, args=(seed, turns), daemon=True) for seed in seeds]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 900
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
            soak.check(not any(thread.is_alive() for thread in threads), "threads still run after 900 s")
            soak.check(not errors, f"{len(errors)} threads failed, the first with {errors[:1]!r}")

        turns = soak.count(10_000, 200)
        together(max(50, turns // 20))
        before, before_there = held(), held(exporter.pid)
        start = time.monotonic()
        together(turns)
        each = (time.monotonic() - start) / (turns * _THREADS * 2) * 1e6
        soak.say(
            f"{_THREADS} threads, {turns} turns each on {_HANDLES} handles: {each:.1f} us for one open, read, close"
        )
        _flat(soak, "threads, importer", before, held())
        _flat(soak, "threads, exporter", before_there, held(exporter.pid))


if __name__ == "__main__":
    sys.exit(main("cycles", run))
