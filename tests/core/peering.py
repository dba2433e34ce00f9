"""What the tests of the core share: a peer process that lives from test to test, devices, counts of what is left."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import harness
import xpushare as xs
from harness import Child, kept
from xpushare import _native, adapters
from xpushare.adapters.mock import MockEvent
from xpushare.adapters.stream.adapter import StreamAdapter
from xpushare.sharing import node
from xpushare.sharing.handle import fields_of

PAGE = 4096
GRANULE = 1 << 16  # a multiple of the granularity of native_cpu (4 KiB) and of mock (64 KiB)
PAIRS = {"native_cpu": ("native_cpu:0", "native_cpu:0"), "mock": ("mock:0", "mock:1")}


# --- this process, or any: what it has open -------------------------------------------------------


def call_on(queue: xs.Queue, function: Callable[..., object], *arguments: Any) -> None:
    """Have a queue call a function in order; a stream calls it as it waits for another library's event."""
    if queue.device.backend == "native_cpu":
        queue.submit(function, *arguments)
    else:
        queue._use().driver.wait_native(MockEvent(functools.partial(function, *arguments)), None)


def shared_until(entry: int) -> list[xs.ArrayHandle]:
    """Exports that are good for one open each, the last of which has that entry of the table. Entries are used again in
    turn, so this is for a process that has few free ones.
    """
    made = [xs.share(xs.empty(1), opens=1)]
    while fields_of(made[-1].handle).entry != entry:
        assert len(made) < 1000
        made.append(xs.share(xs.empty(1), opens=1))
    return made


def mappings() -> list[str]:
    """The mappings of this process that are the package's, once the teardowns asked for so far have been, if they can:
    a stream that is held up holds them up, too.
    """
    xs.trim()
    for record in adapters.vendors():
        found = adapters.adapter(record.backend)
        if isinstance(found, StreamAdapter):
            found.engine.teardown.settle(2)
    with open("/proc/self/maps") as file:
        return [line.split("/memfd:", 1)[1].split(" ", 1)[0] for line in file if "/memfd:xpushare" in line]


def reserved(address: int, nbytes: int) -> bool:
    """Whether [address, address + nbytes) is taken, by one mapping or several."""
    end = address
    with open("/proc/self/maps") as file:
        for line in file:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if low <= end < high:
                end = high
    return end >= address + nbytes


def holdings() -> dict[str, Any]:
    """Everything of the package that a failed operation could leave behind in this process."""
    xs.trim()
    here = node.current()
    here.peers.sweep()  # the dead of earlier tests go whenever somebody looks
    mapped = sorted(mappings())  # first: what devices have closed goes, and with it what dead exporters have left
    table = here.table_if_any
    statistics = table.statistics() if table is not None else {"exports": 0, "lingering": 0}
    return {
        "fds": sorted(name for name in harness.open_fds().values() if "xpushare" in name or "pidfd" in name),
        "mappings": mapped,
        "exports": statistics["exports"],
        "lingering": statistics["lingering"],
        "peers": dict(here.peers.statistics()),
        "allocations": len(here.allocations.all()),
    }


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """What the block does leaves this process as it was."""
    _native.start_warden()  # once it runs, it stays: the first memory that is imported a second time starts it
    gc.collect()
    before = holdings()
    open_before = harness.open_fds()
    fds = len(open_before)
    yield
    if holdings() == before and harness.fd_count() <= fds:
        return
    gc.collect()
    with contextlib.suppress(harness.HarnessError):  # the warden closes its ends a moment later
        harness.wait_until(lambda: harness.fd_count() <= fds, 2)
    after = holdings()
    for name in "fds", "mappings":  # what an earlier test's dead peer had may go only now, by the warden
        before[name] = sorted((Counter(before[name]) & Counter(after[name])).elements())
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, changed
    assert harness.fd_count() <= fds, harness.new_fds(open_before)


# --- in the peer ----------------------------------------------------------------------------------


def forget() -> None:
    """Drop what earlier tests left in `kept`, and withdraw what they exported."""
    kept.clear()
    gc.collect()
    harness.withdraw_all()


def exported(
    device: str, nbytes: int = PAGE, content: bytes = b"", name: str = "memory", **options: Any
) -> xs.ipc.Handle:
    """Allocate, fill and export memory; `kept[name]` holds it."""
    memory = kept[name] = xs.malloc_device(nbytes, device)
    memoryview(memory)[: len(content)] = content
    return xs.ipc.memory.get(memory, **options)


def exported_physical(
    device: str, nbytes: int = GRANULE, content: bytes = b"", name: str = "physical"
) -> xs.ipc.Handle:
    """Make physical memory with that content and export it."""
    physical = kept[name] = xs.PhysicalMemory(nbytes, device, enable_ipc=True)
    write_physical(physical, content)
    return xs.ipc.physical_memory.get(physical)


def exported_event(device: str, name: str = "event") -> xs.ipc.Handle:
    event = kept[name] = xs.Event(device, enable_ipc=True)
    return xs.ipc.event.get(event)


def opened(handle: Any, device: str | None = None, name: str = "opened", kind: str = "memory") -> None:
    """Open a handle; `kept[name]` holds it."""
    kept[name] = getattr(xs.ipc, kind).open(handle, device=device)


def content(name: str = "opened", nbytes: int | None = None) -> bytes:
    return bytes(memoryview(kept[name])[:nbytes])


def read_physical(physical: xs.PhysicalMemory, nbytes: int) -> bytes:
    with xs.VirtualRange(physical.nbytes, physical.device) as place:
        place.map(physical)
        return bytes(memoryview(place)[:nbytes])


def write_physical(physical: xs.PhysicalMemory, text: bytes) -> None:
    with xs.VirtualRange(physical.nbytes, physical.device) as place:
        place.map(physical)
        memoryview(place)[: len(text)] = text


# --- fixtures -------------------------------------------------------------------------------------

_shared: dict[str, Child] = {}


def _borrow(name: str) -> Iterator[Child]:
    child = _shared.get(name)
    if child is None or not child.alive:
        child = _shared[name] = Child()
        harness.children.discard(child)  # it outlives the test
    yield child
    if not child.alive or any(not pending.done() for pending in list(child._waiting)):
        child.kill()
    else:
        child.call(forget)


@pytest.fixture(autouse=True)  # where it is imported
def nothing_kept() -> Iterator[None]:
    """This process has exported, so that its warden runs, and keeps nothing."""
    array = xs.empty(1)
    xs.share(array).close()
    array.close()
    xs.trim()
    yield
    xs.trim()


@pytest.fixture
def event() -> Iterator[xs.Event]:
    """Of this process, on the host, with its handle in `kept`."""
    with xs.Event("native_cpu:0", enable_ipc=True) as event:
        handle = kept["handle"] = xs.ipc.event.get(event)
        yield event
        xs.ipc.event.put(handle)
        kept.clear()


@pytest.fixture
def peer() -> Iterator[Child]:
    """Another process, the same for many tests. Not for tests that kill it or change its settings."""
    yield from _borrow("peer")


@pytest.fixture
def other() -> Iterator[Child]:
    """A third process, likewise."""
    yield from _borrow("other")


def end_shared() -> None:
    for child in _shared.values():
        if child.alive:
            assert child.exit() == 0
    _shared.clear()


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Devices of the exporter and of the importer."""
    return PAIRS[request.param]


@pytest.fixture(params=["native_cpu:0", "mock:0"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


KINDS = ("memory", "physical_memory", "event")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


MAKERS: dict[str, Callable[..., xs.ipc.Handle]] = {
    "memory": exported,
    "physical_memory": exported_physical,
    "event": exported_event,
}
NAMES = {"memory": "memory", "physical_memory": "physical", "event": "event"}  # in `kept`


def make(kind: str, device: str) -> Any:
    """An object of that kind that can be exported."""
    if kind == "memory":
        return xs.malloc_device(PAGE, device)
    if kind == "event":
        return xs.Event(device, enable_ipc=True)
    return xs.PhysicalMemory(GRANULE, device, enable_ipc=True)


def verbs(kind: str) -> Any:
    return getattr(xs.ipc, kind)


def root() -> bool:
    return os.geteuid() == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
