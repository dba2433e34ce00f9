"""Lifetimes: what keeps what, closed operands, pickles, and a quiet end of the interpreter. The rules that all objects
with `close()` share: test_lifecycle.py.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from typing import Any

import pytest
from peering import PAGE, call_on, exported, exported_event, exported_physical, mappings

import xpushare as xs
from harness import Child, kept
from sampling import sampled
from xpushare.common import errors
from xpushare.sharing import layout, node
from xpushare.sharing import table as table_module
from xpushare.sharing.handle import fields_of

Pair = tuple[str, str]


def memory_mappings() -> int:
    gc.collect()
    return mappings().count("xpushare-memory")


def own(pair: Pair, _peer: Child) -> xs.Memory:
    return xs.malloc_device(PAGE, pair[0])


def imported(pair: Pair, peer: Child) -> xs.Memory:
    return xs.ipc.memory.open(peer.call(exported, pair[0]), device=pair[1])


@pytest.fixture(params=[own, imported], ids=["own", "imported"])
def memory(request: pytest.FixtureRequest, pair: Pair, peer: Child) -> Any:
    with request.param(pair, peer) as memory:
        memoryview(memory)[:7] = b"content"
        yield memory


VIEWS: dict[str, Any] = {
    "memoryview": lambda memory: memoryview(memory),
    "slice": lambda memory: memory.slice(0, 16),
    "view of a slice": lambda memory: memoryview(memory.slice(0, 16)),
    "as_array": lambda memory: memory.as_array(16, "uint8"),
    "view of an array": lambda memory: memoryview(memory.as_array(16, "uint8")),
    "asarray": lambda memory: __import__("numpy").asarray(memory),
    "asarray of an array": lambda memory: __import__("numpy").asarray(memory.as_array(16, "uint8")),
    "frombuffer": lambda memory: __import__("numpy").frombuffer(memory, "uint8"),
    "from_dlpack": lambda memory: __import__("numpy").from_dlpack(memory),
    "from_dlpack of an array": lambda memory: __import__("numpy").from_dlpack(memory.as_array(16, "uint8")),
    "capsule": lambda memory: memory.__dlpack__(max_version=(1, 1)),
    "old capsule": lambda memory: memory.__dlpack__(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_what_looks_at_memory_keeps_it(memory: xs.Memory, name: str) -> None:
    mapped = memory_mappings()
    view = VIEWS[name](memory)
    memory.close()
    assert memory_mappings() == mapped
    if "capsule" not in name:
        assert bytes(memoryview(view)[:7]) == b"content"
    del view
    assert memory_mappings() == mapped - 1


def test_an_array_interface_keeps_the_object_that_gave_it(memory: xs.Memory) -> None:
    # NumPy keeps the object, and the dictionary has nothing to hold on to: while the object lives, the memory does.
    mapped = memory_mappings()
    found = memory.__array_interface__
    assert found["data"] == (memory.ptr, False)
    array = __import__("numpy").array(memory.as_array(7, "uint8"), copy=None)
    memory.close()
    assert memory_mappings() == mapped
    assert bytes(array) == b"content"


def test_a_capsule_that_nobody_takes_is_deleted(memory: xs.Memory) -> None:
    mapped = memory_mappings()
    capsules = [memory.__dlpack__(), memory.__dlpack__(max_version=(1, 0))]
    memory.close()
    capsules.clear()
    assert memory_mappings() == mapped - 1


def test_a_capsule_dies_in_another_thread(memory: xs.Memory) -> None:
    mapped = memory_mappings()
    held = [memory.__dlpack__()]
    memory.close()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert memory_mappings() == mapped - 1


def test_queue_operations_keep_their_operands(pair: Pair) -> None:
    gate = threading.Event()
    mapped = memory_mappings()
    queue = xs.Queue(pair[0])
    call_on(queue, gate.wait)
    one, two = xs.malloc_device(PAGE, pair[0]), xs.malloc_device(PAGE, pair[0])
    handle = xs.ipc.memory.get(two)
    queue.fill(one, b"k")
    queue.copy(two, one)
    one.close()
    two.close()
    assert memory_mappings() == mapped + 2
    gate.set()
    queue.synchronize(10)
    with xs.ipc.memory.open(handle) as again:
        assert bytes(memoryview(again)[:2]) == b"kk"
    xs.ipc.memory.put(handle)
    queue.close()
    assert memory_mappings() == mapped


def test_garbage_is_collected(pair: Pair, peer: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "0")  # what is pickled goes with it
    handle = peer.call(exported, pair[0])
    xs.ipc.memory.open(handle).close()
    mapped = memory_mappings()

    class Ring:
        pass

    for _ in range(3):
        ring = Ring()
        ring.self = ring  # type: ignore[attr-defined]
        ring.memory = xs.malloc_device(PAGE, pair[0])  # type: ignore[attr-defined]
        ring.imported = xs.ipc.memory.open(handle)  # type: ignore[attr-defined]
        ring.event = xs.Event(pair[0])  # type: ignore[attr-defined]
        ring.queue = xs.Queue(pair[0])  # type: ignore[attr-defined]
        ring.text = pickle.dumps(ring.memory)  # type: ignore[attr-defined]
        gone = weakref.ref(ring)
        del ring
        assert memory_mappings() == mapped
        assert gone() is None


# --- close ----------------------------------------------------------------------------------------


@pytest.mark.misuse
def test_operands_after_close() -> None:
    queue = xs.Queue("native_cpu:0")
    memory, event = xs.malloc_device(PAGE, "native_cpu:0"), xs.Event("native_cpu:0")
    closed, gone = xs.malloc_device(PAGE, "native_cpu:0"), xs.Event("native_cpu:0")
    closed.close()
    gone.close()
    for call, arguments in (
        (queue.copy, (closed, memory)),
        (queue.copy, (memory, closed)),
        (queue.fill, (closed, b"x")),
        (queue.signal, (gone,)),
        (queue.wait, (gone,)),
    ):
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            call(*arguments)
    event.close()
    queue.close()


# --- pickles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_open_in_another_process(pair: Pair, peer: Child, kind: str, protocol: int) -> None:
    from peering import make

    thing = make(kind, pair[0])
    if kind == "memory":
        memoryview(thing)[:3] = b"abc"
    text = pickle.dumps(thing, protocol)

    def load(text: bytes) -> tuple[str, bool, bool]:
        found = kept["loaded"] = pickle.loads(text)
        if isinstance(found, xs.Memory):
            assert bytes(memoryview(found)[:3]) == b"abc"
        return type(found).__name__, found.is_imported, found.closed

    assert peer.call(load, text) == (type(thing).__name__, True, False)
    assert load(text) == (type(thing).__name__, True, False)
    kept.clear()
    thing.close()


def test_a_pickled_slice_is_that_range(pair: Pair, peer: Child) -> None:
    memory = xs.malloc_device(PAGE, pair[0])
    memoryview(memory)[:16] = bytes(range(16))

    def load(text: bytes) -> bytes:
        kept["loaded"] = pickle.loads(text)
        return bytes(memoryview(kept["loaded"]))

    piece = memory.slice(4, 8)
    assert peer.call(load, pickle.dumps(piece)) == bytes(range(4, 12))
    # A slice of an import forwards the import's handle and keeps its place.
    opened = pickle.loads(pickle.dumps(piece)).slice(2, 3)
    assert peer.call(load, pickle.dumps(opened)) == bytes(range(6, 9))
    piece.close()
    memory.close()


@pytest.mark.parametrize("name", ["native_cpu:0", "mock:1"])
def test_devices_pickle_by_uuid(name: str, peer: Child) -> None:
    device = xs.Device(name)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(device, protocol)) is device
    assert peer.call(lambda device: (str(device), device.uuid), device) == (name, device.uuid)
    assert copy.deepcopy(device) == device


ERRORS = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_pickles(error: type[xs.XpuShareError], protocol: int) -> None:
    made = error("text é", native=24, reasons=("one", "two"))
    made.__cause__ = OSError(24, "cause")
    again = pickle.loads(pickle.dumps(made, protocol))
    assert type(again) is error
    assert (str(again), again.native, again.reasons, again.result) == ("text é", 24, ("one", "two"), made.result)
    assert type(again.result) is type(made.result)
    other = error(
        "x", result=made.result.__class__(3) if 3 in {int(each) for each in type(made.result)} else made.result
    )
    assert pickle.loads(pickle.dumps(other, protocol)).result == other.result


def test_errors_have_the_promised_bases() -> None:
    promised = {
        "InvalidArgumentError": ValueError,
        "InvalidHandleError": xs.InvalidArgumentError,
        "HandleExpiredError": xs.XpuShareError,
        "FeatureNotSupportedError": NotImplementedError,
        "RouteError": PermissionError,
        "PeerLostError": ConnectionError,
        "OutOfMemoryError": MemoryError,
        "ForkError": RuntimeError,
        "DeviceError": RuntimeError,
    }
    for name, base in promised.items():
        assert issubclass(getattr(xs, name), base)
        assert issubclass(getattr(xs, name), xs.XpuShareError)
    assert not issubclass(xs.XpuShareError, OSError)
    assert not issubclass(TimeoutError, xs.XpuShareError)


# --- the end of the interpreter -------------------------------------------------------------------

ENDS = {
    "everything alive": "pass",
    "in a cycle": "ring = []; ring.append((ring, memory, imported, event, queue, place, physical, view, array))",
    "modules first": "import sys; sys.modules['keep'] = (memory, imported, event, queue, place, view); del xs",
    "closed by atexit": "from atexit import register; [register(each.close) for each in (memory, event, queue, place)]",
    "a queue at work": (
        "import threading\nnever = threading.Event().wait\n"
        "try:\n    queue.submit(never)\n"
        "except xs.FeatureNotSupportedError:\n    from xpushare.adapters.mock import MockEvent\n"
        "    queue._use().driver.wait_native(MockEvent(never), None)\n"
        "queue.signal(event)"
    ),
    "a queue that waits": "queue.wait(event, at_least=1)",
    "a thread that waits": (
        "import threading\nthreading.Thread(target=lambda: event.wait(9, at_least=1), daemon=True).start()"
    ),
    "exit inside with": "import contextlib; contextlib.ExitStack().enter_context(memory); sys.exit()",
    "pickled": "import pickle; text = [pickle.dumps(each) for each in (memory, imported, event, physical)]",
    "a pending await": (
        "import asyncio\nloop = asyncio.new_event_loop()\n"
        "async def main():\n    global task\n    task = asyncio.ensure_future(event.reached(1))\n"
        "    await asyncio.sleep(0)\n"
        "    task.cancel()\nloop.run_until_complete(main())\nloop.close()"
    ),
}
SCRIPT = """
import sys, numpy
import xpushare as xs
memory = xs.malloc_device(65536, {device!r})
event = xs.Event({device!r}, enable_ipc=True)
queue = xs.Queue({device!r})
physical = xs.PhysicalMemory(65536, {device!r}, enable_ipc=True)
place = xs.VirtualRange(65536, {device!r})
place.map(physical)
handle = xs.ipc.memory.get(memory)
own = xs.ipc.memory.open(handle)
imported = xs.ipc.memory.open(sys.argv[1])
signals = xs.ipc.event.open(sys.argv[2])
pages = xs.ipc.physical_memory.open(sys.argv[3])
view = memoryview(memory)
array = numpy.asarray(imported)
capsule = imported.__dlpack__()
queue.fill(memory, b"x")
signals.signal()
signals.wait(5)
try:
    signals.wait(0.001, at_least=10**6)
except TimeoutError:
    pass
{end}
"""


@pytest.mark.parametrize("device", sampled(["native_cpu:0", "mock:0"], ["native_cpu:0"]))
@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_ends_quietly(device: str, peer: Child, end: str) -> None:
    handles = [peer.call(make, device) for make in (exported, exported_event, exported_physical)]
    result = subprocess.run(
        [
            sys.executable,
            "-X",
            "dev",
            "-W",
            "error",
            "-c",
            SCRIPT.format(device=device, end=ENDS[end]),
            *map(str, handles),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "XPUSHARE_LINGER": "0.1"} if end in ("a queue at work", "pickled") else None,
    )
    assert (result.returncode, result.stdout) == (0, "")
    told = {
        "a queue at work": "exits before its queues have finished (XPUSHARE_LINGER)",  # its work never ends
        "pickled": "exits before all of its pickles have been opened",  # nobody opens any
    }
    assert told.get(end, "") in result.stderr
    assert len(result.stderr.splitlines()) == (end in told), result.stderr
    assert peer.call(lambda: kept["memory"].statistics()["exports"][0]["importers"]) == 0


def test_importing_starts_nothing() -> None:
    code = (
        "import sys, threading, os\nbefore = len(os.listdir('/proc/self/fd'))\nimport xpushare\n"
        "assert threading.active_count() == 1 and len(os.listdir('/proc/self/task')) == 1\n"
        "assert len(os.listdir('/proc/self/fd')) == before\n"
        "assert 'numpy' not in sys.modules and 'xpushare._native' not in sys.modules\n"
        "import xpushare._native\nassert len(os.listdir('/proc/self/task')) == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_at_most_one_thread_of_ours(device: str) -> None:
    def threads(device: str) -> tuple[int, int, int]:
        import os

        first = len(os.listdir("/proc/self/task"))
        kept["memory"] = xs.malloc_device(PAGE, device)
        second = len(os.listdir("/proc/self/task"))
        xs.ipc.memory.get(kept["memory"])
        event = kept["event"] = xs.Event(device, enable_ipc=True)
        xs.ipc.event.get(event)
        event.signal()
        event.wait(1)
        return first, second, len(os.listdir("/proc/self/task"))

    with Child() as child:
        first, second, third = child.call(threads, device)
    assert (second - first, third - first) == (0, 1)


def test_of_ended_exports_and_named_memory_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    table = node.current().table()
    monkeypatch.setattr(table_module, "_REMEMBERED", 3)
    monkeypatch.setattr(table, "_put", OrderedDict())
    array = xs.empty(8, "u1")
    shared = [xs.share(array) for _ in range(5)]
    for each in shared:
        assert table.withdraw(each.handle, layout.REASON_FREED)
    reasons = [table.why_expired(fields_of(each.handle).generation) for each in shared]
    for each in shared:
        each.close()
    put, freed = layout.REASONS[layout.REASON_PUT], layout.REASONS[layout.REASON_FREED]
    assert [put in reason for reason in reasons] == [True, True, False, False, False]
    assert [freed in reason for reason in reasons] == [False, False, True, True, True]
    first, second = table.object_named("first"), table.object_named("second")
    for number in range(3 * 4096):
        assert table.object_named("first") == first, "it was asked for not long ago"
        table.object_named(number)
        if number < 4095:
            assert table.object_named("second") == second
    assert table.object_named("second") not in (first, second)
    with pytest.raises(TypeError, match="unhashable"):
        table.object_named([])  # type: ignore[arg-type]
