"""Functions that the suite's tests run in other processes or in their own.

A process stores its objects by name in the dict `harness.kept`, so that a later call can use them.
"""

from __future__ import annotations

import gc
import math
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import xpushare as xs
from xpushare.conformance.harness import TIMEOUT, kept
from xpushare.sharing import node

__all__ = [
    "KINDS", "NBYTES", "Gate", "attempt", "close", "drop", "export", "get", "granule", "held", "importers", "make",
    "numbers", "open_", "outcome", "put", "read", "read_bytes", "runs_callables", "signal_", "verbs", "wait",
    "write", "write_bytes",
]  # fmt: skip

KINDS = ("memory", "physical_memory", "event")
NBYTES = 4096


_exported: list[tuple[str, bytes]] = []


def verbs(kind: str) -> Any:
    """Return the module that has the functions `get`, `open` and `put` for this kind of object. The modules are
    `ipc.memory`, `ipc.physical_memory` and `ipc.event`.
    """
    return getattr(xs.ipc, kind)


def runs_callables(device: str) -> bool:
    """Return whether queues of the device can run Python functions (rule 5.4). Only the host's queues can."""
    with xs.Queue(device) as queue:
        try:
            queue.submit(int)
        except xs.FeatureNotSupportedError:
            return False
        queue.synchronize(TIMEOUT)
    return True


def granule(*devices: str) -> int:
    """Return a size that is a multiple of the physical memory granularity of every given device."""
    return math.lcm(*(xs.Device(device).memory_granularity() for device in devices))


# --- content, also of memory that the host cannot access --------------------------------------------------------------


def _view(thing: Any) -> memoryview | None:
    try:
        return memoryview(thing)
    except BufferError:
        return None


def _bytes_of(thing: Any, device: str | None, nbytes: int | None, offset: int, content: bytes | None) -> bytes:
    if isinstance(thing, xs.PhysicalMemory):
        where = device or thing.device
        with xs.VirtualRange(thing.nbytes, where) as place:
            place.map(thing)
            return _bytes_of(place, device, nbytes, offset, content)
    length = len(content) if content is not None else thing.nbytes - offset if nbytes is None else nbytes
    view = _view(thing)
    if view is not None:
        with view:
            if content is not None:
                view[offset : offset + length] = content
            return bytes(view[offset : offset + length])
    piece = thing.as_array(length, "uint8", offset)
    with xs.Queue(thing.device) as queue, xs.malloc_host(length, thing.device) as host:
        if content is not None:
            with memoryview(host) as target:
                target[:] = content
            queue.copy(piece, host)
        queue.copy(host, piece)
        queue.synchronize(TIMEOUT)
        with memoryview(host) as source:
            return bytes(source)


def read_bytes(thing: Any, nbytes: int | None = None, offset: int = 0, device: str | None = None) -> bytes:
    """Read bytes of a Memory, PhysicalMemory or VirtualRange. Uses `Queue.copy` if the host cannot access the
    memory.
    """
    return _bytes_of(thing, device, nbytes, offset, None)


def write_bytes(thing: Any, content: bytes, offset: int = 0, device: str | None = None) -> None:
    """Write bytes to a Memory, PhysicalMemory or VirtualRange. Uses `Queue.copy` if the host cannot access the
    memory.
    """
    _bytes_of(thing, device, None, offset, content)


# --- objects by name --------------------------------------------------------------------------------------------------


class Gate:
    """A queue whose work waits on the device until the host calls `open`."""

    def __init__(self, device: xs.Device | str) -> None:
        self.queue = xs.Queue(device)
        self._event = xs.Event(device)
        self.queue.wait(self._event, at_least=1)

    def open(self) -> None:
        self._event.signal()
        self.queue.synchronize(TIMEOUT)

    def close(self) -> None:
        self.queue.close()
        self._event.close()


def make(kind: str, device: str, nbytes: int = 0) -> Any:
    """Make an object of this kind. The object can be exported."""
    if kind == "memory":
        return xs.malloc_device(nbytes or NBYTES, device)
    if kind == "event":
        return xs.Event(device, enable_ipc=True)
    return xs.PhysicalMemory(nbytes or granule(device), device, enable_ipc=True)


def export(name: str, kind: str, device: str, content: bytes = b"", nbytes: int = 0, **options: Any) -> bytes:
    """Make an object with the given content, store it under `name`, and export it. Returns the handle's bytes."""
    thing = kept[name] = make(kind, device, nbytes)
    if content:
        write_bytes(thing, content)
    return get(name, kind, **options)


def get(name: str, kind: str, **options: Any) -> bytes:
    """Export the object that is stored under `name`. Returns the handle's bytes."""
    handle = bytes(verbs(kind).get(kept[name], **options))
    _exported.append((kind, handle))
    return handle


def put(kind: str, handle: bytes | str) -> None:
    verbs(kind).put(handle)


def open_(name: str, kind: str, handle: bytes | str, device: str | None = None, **options: Any) -> tuple[bool, str]:
    """Open a handle and store the object under `name`. Returns whether the object is imported, and its device."""
    thing = kept[name] = verbs(kind).open(handle, device=device, **options)
    return thing.is_imported, str(thing.device)


def read(name: str, nbytes: int | None = None, offset: int = 0) -> bytes:
    return read_bytes(kept[name], nbytes, offset)


def write(name: str, content: bytes, offset: int = 0) -> None:
    write_bytes(kept[name], content, offset)


def close(name: str) -> None:
    kept[name].close()


def drop(*names: str) -> None:
    """Drop this process's references to the objects with these names, or to all objects if no name is given. Then run
    the garbage collector.
    """
    for name in names or tuple(kept):
        kept.pop(name, None)
    gc.collect()


def forget() -> None:
    """Drop all stored objects, and withdraw all exports that this process made with `get` or `export`."""
    drop()
    table = node.current().table_if_any
    live = {bytes(each.handle) for each in table.exports()} if table is not None else set[bytes]()
    while _exported:
        kind, handle = _exported.pop()
        if handle in live:  # the test has not withdrawn it
            put(kind, handle)


def importers(name: str) -> int:
    """Return how many processes have opened exports of the object that is stored under `name`."""
    return sum(export["importers"] for export in kept[name].statistics()["exports"])


def processes(name: str) -> int:
    """Return how many live processes have opened the event that is stored under `name`."""
    return sum(each["alive"] for each in kept[name].statistics()["processes"])


def pickled(name: str) -> bytes:
    return pickle.dumps(kept[name])


def pickle_and_close(kind: str, device: str, grace: str = "0") -> bytes:
    """Make an object, pickle it and close it. Returns the pickle."""
    before = os.environ.get("XPUSHARE_PICKLE_GRACE")
    os.environ["XPUSHARE_PICKLE_GRACE"] = grace
    try:
        with make(kind, device) as thing:
            return pickle.dumps(thing)
    finally:
        os.environ.pop("XPUSHARE_PICKLE_GRACE")
        if before is not None:
            os.environ["XPUSHARE_PICKLE_GRACE"] = before


def unpickle(name: str, data: bytes) -> tuple[str, bool]:
    """Unpickle an object, and store it under `name`. Returns the name of its class, and whether it was imported."""
    thing = kept[name] = pickle.loads(data)
    return type(thing).__name__, getattr(thing, "is_imported", False)


# --- errors -----------------------------------------------------------------------------------------------------------


def outcome(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[str, str]:
    """Call the function. Return the class name and the message of the error that it raises, or two empty strings if it
    raises none.
    """
    try:
        function(*args, **options)
    except BaseException as error:
        return type(error).__name__, str(error)
    return "", ""


def attempt(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Call the function. Return the class name of the error that it raises, or an empty string if it raises none."""
    return outcome(function, *args, **options)[0]


# --- events -----------------------------------------------------------------------------------------------------------


def signal_(name: str) -> int:
    number: int = kept[name].signal()
    return number


def numbers(name: str) -> tuple[int, int]:
    """Return the properties `value` and `pending` of the event that is stored under `name`."""
    return kept[name].value, kept[name].pending


def wait(name: str, at_least: int | None = None, timeout: float = TIMEOUT) -> None:
    kept[name].wait(timeout, at_least=at_least)


def queue_signal(name: str, device: str) -> int:
    """Signal the event on a new queue, which has no other work. Returns the number of the signal."""
    with xs.Queue(device) as queue:
        number: int = queue.signal(kept[name])
        queue.synchronize(TIMEOUT)
    return number


class Held:
    """A queue whose work does not run until `release` is called."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._gate = xs.Event(device)
        self.queue = xs.Queue(device)
        self.queue.wait(self._gate, at_least=1)

    def release(self) -> None:
        """Let the queue's work run, by a signal of the event that it waits for. Another queue signals, because not
        every device lets the host signal.
        """
        if not self._gate.pending:
            with xs.Queue(self._device) as opener:
                opener.signal(self._gate)


@contextmanager
def held(device: str) -> Generator[Held, None, None]:
    """Yield a queue whose work does not run (`Held`). At the end of the block, release the queue and wait for its work.
    Skips the test if the device does not support IPC events.
    """
    import pytest

    support = xs.Device(device).support(xs.Aspect.ext_oneapi_ipc_event)
    if support.state != "yes":
        pytest.skip(f"a queue of this device cannot be held: {support.reason}")
    found = Held(device)
    try:
        yield found
    finally:
        found.release()
        try:
            found.queue.synchronize(TIMEOUT)
        except (xs.PeerLostError, xs.DeviceError):
            pass  # the test has caused the error, or has reported it
        found.queue.close()


def hold(name: str, device: str) -> None:
    """Make a queue whose work does not run (`Held`), and store it under `name`."""
    kept[name] = Held(device)


def owe(queue: str, event: str) -> int:
    """Queue a signal of the event on a queue whose work does not run (`Held`), so that the signal stays pending.
    Returns the number of the signal.
    """
    number: int = kept[queue].queue.signal(kept[event])
    return number


def release(name: str) -> None:
    kept[name].release()
    kept[name].queue.synchronize(TIMEOUT)


def interrupted(what: str, device: str, name: str) -> str:
    """Wait for a signal that never comes, so that a test can interrupt the wait. `what` is the method that waits,
    "Event.wait" or "Queue.synchronize". Returns the class name of the error that ended the wait.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kept["waiting"] = threading.Event()
    waits: dict[str, Callable[[], None]] = {
        "Event.wait": lambda: kept[name].wait(TIMEOUT, at_least=99),
        "Queue.synchronize": lambda: Held(device).queue.synchronize(TIMEOUT),
    }
    return attempt(waits[what])


def limits_then_write(name: str) -> None:
    """Write to the address of the mapping that is stored under `name`, as a C library would. Core dumps are disabled
    first, because the write may crash the process.
    """
    import ctypes
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.memset(kept[name].ptr, 1, 1)
