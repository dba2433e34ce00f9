"""Calls as users write them, which mypy and pyright check (`make types`); nothing runs them."""

from __future__ import annotations

import array
import pickle

import xpushare as xs


def attach_what_was_looked_up() -> None:
    with xs.attach(xs.lookup("array")) as found:
        print(found.shape, found.handle)
    with xs.ipc.event.open(xs.lookup("event", timeout=1.0)) as event:
        event.wait(1.0)
    with xs.ipc.memory.open(xs.lookup("memory")) as memory:
        print(memory.nbytes)
    xs.ipc.physical_memory.open(xs.lookup("physical")).close()


def attach_every_form(handle: xs.ArrayHandle) -> None:
    for form in (handle, bytes(handle), str(handle), bytearray(bytes(handle)), memoryview(bytes(handle))):
        xs.attach(form).close()


def open_bytes_like(raw: bytes) -> None:
    for form in (array.array("B", raw), pickle.PickleBuffer(raw), bytearray(raw), memoryview(raw)):
        xs.ipc.memory.open(form).close()


def attach_each_version() -> None:
    for handle in xs.watch("weights"):
        xs.attach(handle).close()


def attach_each_version_and_see_the_end() -> None:
    for item in xs.watch("weights", timeout=1.0, lost=True):
        if isinstance(item, xs.Lost):
            print(item.pid)
        else:
            xs.attach(item).close()


async def await_each_version() -> None:
    async for handle in xs.watch("weights"):
        xs.attach(handle).close()


def copies() -> xs.SharedArray:
    return xs.array([1, 2, 3], dtype="float32", device="native_cpu:0")
