"""Opening, closing and copying device memory of another process, against the raw calls and cuda.core's pool buffers."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, Final

from benchmarks.gpu.driver import MIB, SPAWN, Access, IpcHandle, Raw, Samples, row
from xpushare.bench.measure import Row

NBYTES: Final = 64 * MIB


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


def buffers() -> list[Row]:
    """Device memory handed over, opened and closed, beside cuda.core's pool buffers."""
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
    return [
        row("buffers", f"64 MiB handed over, opened, closed: {name}", found[way][5:], "cuda.core pool buffer",
            found["core"][5:])
        for name, way in (("legacy handle", "legacy"), ("VMM", "vmm"))
    ]  # fmt: skip


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
            pipe.send((kind, *measure(function, given)))
        pipe.send(None)


def opens() -> list[Row]:
    """Opening and closing what is not open yet, beside the raw calls."""
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
    for _ in range(3):
        items = {
            "legacy": handles,
            "ours legacy": [bytes(xs.ipc.memory.get(pointer)) for pointer in pointers],
            "ours vmm": [bytes(xs.ipc.memory.get(memory)) for memory in memories],
        }
        here.send(items)
        while (answer := here.recv()) is not None:
            kind, samples, each = answer
            found.setdefault(kind, []).extend(samples)
            whole.setdefault(kind, []).append(each)
    here.send(None)
    child.join(10)
    rows: list[Row] = []
    for kind in ("legacy", "vmm"):
        rows.append(
            row(
                "opens",
                f"open and close, {kind}, as the caller sees it",
                found[f"ours {kind}"],
                "raw calls",
                found[kind],
            )
        )
        rows.append(
            row("opens", f"{kind}, teardown included: total of {count} / {count}", whole[f"ours {kind}"], "raw calls",
                whole[kind])
        )  # fmt: skip
    return rows


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


def copies() -> list[Row]:
    """Copies through an opened mapping, beside those in one process."""
    import xpushare as xs

    nbytes = 512 * MIB
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=copies_child, args=(there,), daemon=True)
    child.start()
    rows: list[Row] = []
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
        rows.append(row("copies", f"512 MiB copied through an opened mapping, {where}", opened, "in one process", mine))
        speeds = (nbytes / statistics.median(each) / 1e9 for each in (opened, mine))
        rows[-1].notes.append("bandwidth {:.1f} GB/s, theirs {:.1f} GB/s".format(*speeds))
    here.send(None)
    child.join(10)
    return rows
