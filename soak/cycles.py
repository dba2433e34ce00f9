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


def _stand(kept: Kept, name: str) -> bytes:
    """Have one of everything that others join, follow or own."""
    import xpushare as xs

    granule = xs.Device(DEVICE).memory_granularity()
    grown = xs.VirtualRange(64 * granule, DEVICE, growable=True)
    grown.grow(granule)
    kept["all"] = xs.Lock(name), xs.Atomic(0, name), xs.Channel.create(name, 16, "uint8")
    kept["grown"], kept["handle"] = grown, xs.share(grown)
    return bytes(kept["handle"])


def _share(kept: Kept) -> bytes:
    import xpushare as xs

    array = xs.zeros(1000, device=DEVICE)
    kept["array"], kept["shared"] = array, xs.share(array)
    return bytes(kept["shared"])


def _members(name: str, grown: bytes, owned: bytes) -> None:
    """Join, leave, follow, own and keep once, by name and without one."""
    import xpushare as xs
    from xpushare.sharing import keeping

    for lock in (xs.Lock(name), xs.Lock()):
        with lock:
            pass
        lock.close()
    for number in (xs.Atomic(0, name), xs.Atomic()):
        with number:
            number.add(1)
    xs.Channel.open(name).close()
    with xs.Channel.create(None, 16, "uint8") as channel, xs.Channel.open(channel.handle) as reader:
        channel.send(bytes(16))
        reader.receive(60).close()
    with xs.attach(grown) as follower:
        follower.refresh()
    with xs.attach(owned, own=True) as mine:
        xs.share(mine).close()
        xs.publish(f"{name}-kept", mine, copy=True, keep=True, replace=True)
    with keeping.connected() as keeper:
        if keeper is not None:
            keeper.drop(f"{name}-kept")


def run(soak: Soak) -> None:
    import xpushare as xs
    from xpushare.sharing import keeping

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

        name = "cycles"
        grown, owned = exporter.call(_stand, name), exporter.call(_share)
        turns = soak.count(2_000, 50)
        for _ in range(max(20, turns // 20)):
            _members(name, grown, owned)
        before, before_there = held(), held(exporter.pid)
        for _ in range(turns):
            _members(name, grown, owned)
        soak.say(f"{turns} turns of locks, atomics, channels, followers, owned imports and kept names")
        _flat(soak, "members, importer", before, held())
        _flat(soak, "members, exporter", before_there, held(exporter.pid))
        with keeping.connected() as keeper:
            if keeper is not None:
                keeper.stop()

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
