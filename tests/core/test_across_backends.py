"""Handles open on another backend, where what they name can be had there."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from peering import (
    GRANULE,
    KINDS,
    MAKERS,
    PAGE,
    call_on,
    content,
    exported,
    exported_event,
    exported_physical,
    forget,
    mappings,
    nothing_left,
    read_physical,
    verbs,
    write_physical,
)

import xpushare as xs
from harness import Child, HarnessError, kept, wait_until
from xpushare.adapters.base import DeviceInfo, Export, Form, Hardware, Same
from xpushare.adapters.mock import ForeignArray, MockStream, driver
from xpushare.core import opening
from xpushare.sharing import layout, node
from xpushare.sharing.handle import fields_of
from xpushare.sharing.peers import Opener

Pair = tuple[str, str]
PAIRS = {"native_cpu to mock": ("native_cpu:0", "mock:1"), "mock to native_cpu": ("mock:0", "native_cpu:0")}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    """Devices of the exporter and of the importer."""
    return PAIRS[request.param]


@pytest.fixture(autouse=True)
def _met(peer: Child) -> None:
    """This process exports and knows the peer: what the first contact leaves is here already."""
    xs.ipc.memory.put(exported("native_cpu:0"))
    xs.ipc.memory.open(peer.call(exported, "native_cpu:0")).close()
    kept.clear()
    peer.call(forget)


# --- memory ---------------------------------------------------------------------------------------


def test_memory(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported, pair[0], 3 * PAGE, b"from another backend")
    with nothing_left(), xs.ipc.memory.open(handle, device=pair[1]) as memory:
        assert str(memory.device) == pair[1]
        assert memory.context == memory.device.context
        assert (memory.is_imported, memory.read_only, memory.nbytes) == (True, False, 3 * PAGE)
        assert memory.handle == handle
        assert memory._use().allocation.kind == "host"
        assert memory.__dlpack_device__() == (1, 0)
        view = memoryview(memory)
        assert bytes(view[:20]) == b"from another backend"
        view[-1] = 7
        assert peer.call(content, "memory")[-1] == 7
        view.release()
        with pytest.raises(xs.InvalidArgumentError, match="imported memory cannot be exported"):
            xs.ipc.memory.get(memory)


def test_open_again_is_counted_and_cheap(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported, pair[0])
    with nothing_left():
        first = xs.ipc.memory.open(handle, device=pair[1])
        before = mappings()
        again = xs.ipc.memory.open(handle, device=xs.Device(pair[1]))
        named = xs.ipc.memory.open(handle)
        assert again.ptr == first.ptr != named.ptr
        assert str(named.device) == pair[0]
        assert len(mappings()) == len(before) + 1, "one mapping for each backend"
        first.close()
        memoryview(again)[0] = 3
        assert memoryview(named)[0] == 3
        again.close()
        named.close()


def test_ranges_keep_their_offset(pair: Pair, peer: Child) -> None:
    def export(device: str) -> xs.ipc.Handle:
        memory = kept["memory"] = xs.malloc_device(2 * PAGE, device)
        memoryview(memory)[100:104] = b"here"
        return xs.ipc.memory.get(memory.slice(100, 4))

    with xs.ipc.memory.open(peer.call(export, pair[0]), device=pair[1]) as memory:
        assert bytes(memoryview(memory)) == b"here"
        assert memory.ptr % PAGE == 100


def test_read_only(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported, pair[0], read_only=True)
    with xs.ipc.memory.open(handle, device=pair[1]) as memory:
        assert memory.read_only
        assert memoryview(memory).readonly
        with open("/proc/self/maps") as maps:
            line = next(line for line in maps if line.startswith(f"{memory.ptr:x}-"))
        assert line.split()[1] == "r--s"


def test_by_context_alone(pair: Pair, peer: Child) -> None:
    context = xs.Context(pair[1])
    handle = peer.call(exported, pair[0], PAGE, b"by context")
    with xs.ipc.memory.open(handle, context=context) as memory:
        assert (str(memory.device), memory.context) == (pair[1], context)
    pages = xs.ipc.physical_memory.open(peer.call(exported_physical, pair[0]), context=context)
    event = xs.ipc.event.open(peer.call(exported_event, pair[0]), context=context)
    assert str(pages.device) == str(event.device) == pair[1]
    with pytest.raises(xs.InvalidArgumentError, match="not in"):
        xs.ipc.memory.open(handle, device=pair[0], context=context)


def test_it_outlives_the_exporter(pair: Pair) -> None:
    with Child() as child:
        handle = child.call(exported, pair[0], PAGE, b"the dead one's")
        memory = xs.ipc.memory.open(handle, device=pair[1])
        pages = xs.ipc.physical_memory.open(
            child.call(exported_physical, pair[0], GRANULE, b"likewise"), device=pair[1]
        )
        child.kill()
    assert bytes(memoryview(memory)[:14]) == b"the dead one's"
    assert read_physical(pages, 8) == b"likewise"
    wait_until(lambda: not node.current().peers.statistics()["peers"] or node.current().peers.sweep() is None)
    with pytest.raises(xs.HandleExpiredError, match="has exited"):
        xs.ipc.memory.open(handle, device=pair[1])
    memory.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_expired(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(MAKERS[kind], pair[0])
    first = verbs(kind).open(handle, device=pair[1])
    peer.call(lambda kind, handle: verbs(kind).put(handle), kind, handle)
    with nothing_left(), pytest.raises(xs.HandleExpiredError, match="the exporter closed it"):
        verbs(kind).open(handle, device=pair[1])
    first.close()


def test_opens_are_counted(pair: Pair, peer: Child) -> None:
    def share(device: str) -> bytes:
        array = kept["array"] = xs.empty(4, "u1", device=device)
        return bytes(xs.share(array, opens=2))

    raw = peer.call(share, pair[0])
    with xs.attach(raw, device=pair[1]) as one, xs.attach(raw, device=pair[0]) as two:
        assert (str(one.device), str(two.device)) == (pair[1], pair[0])
        with pytest.raises(xs.HandleExpiredError, match="used up"):
            xs.attach(raw, device=pair[1])


def test_foreign_memory(peer: Child) -> None:
    def share() -> xs.ipc.Handle:
        array = kept["foreign"] = ForeignArray(PAGE)
        np.asarray(array)[:3] = (1, 2, 3)
        return xs.ipc.memory.get(array)

    with xs.ipc.memory.open(peer.call(share), device="native_cpu:0") as memory:
        assert bytes(memoryview(memory)[:3]) == b"\1\2\3"


# --- in the exporter's own process ----------------------------------------------------------------


@pytest.mark.misuse
def test_memory_of_this_process(pair: Pair) -> None:
    with nothing_left():
        own = xs.malloc_device(2 * PAGE, pair[0])
        handle = xs.ipc.memory.get(own.slice(8, PAGE))
        memory = xs.ipc.memory.open(handle, device=pair[1])
        again = xs.ipc.memory.open(handle, device=pair[1])
        assert str(memory.device) == pair[1]
        assert memory.ptr == again.ptr != own.ptr
        memoryview(own)[8] = 5
        assert memoryview(memory)[0] == 5
        xs.ipc.memory.put(handle)
        with pytest.raises(xs.HandleExpiredError):
            xs.ipc.memory.open(handle, device=pair[1])
        own.close()
        assert memoryview(memory)[0] == 5, "an import outlives its source"
        memory.close()
        again.close()


def test_physical_memory_and_events_of_this_process(pair: Pair) -> None:
    own = xs.PhysicalMemory(GRANULE, pair[0], enable_ipc=True)
    write_physical(own, b"mine")
    handle = xs.ipc.physical_memory.get(own)
    with nothing_left():
        pages = xs.ipc.physical_memory.open(handle, device=pair[1])
        assert str(pages.device) == pair[1]
        assert read_physical(pages, 4) == b"mine"
        del pages
    xs.ipc.physical_memory.put(handle)
    event = xs.Event(pair[0], enable_ipc=True)
    event_handle = xs.ipc.event.get(event)
    other = xs.ipc.event.open(event_handle, device=pair[1])
    assert str(other.device) == pair[1]
    assert (other.signal(), event.value) == (1, 1)
    xs.ipc.event.put(event_handle)


def share_once() -> xs.ArrayHandle:
    kept["array"] = xs.empty(4, "u1", device="native_cpu:0")
    handle = kept["array handle"] = xs.share(kept["array"], opens=1)
    return handle


@pytest.mark.parametrize("where", ["here", "in the peer"])
def test_an_import_that_fails_gives_its_open_back(peer: Child, where: str) -> None:
    with share_once() if where == "here" else peer.call(share_once) as handle:
        driver().fail("Mapping", xs.DeviceError("as the script says"))
        with nothing_left():
            try:
                with pytest.raises(xs.DeviceError, match="script"):
                    xs.attach(handle, device="mock:0")
            finally:
                driver().reset()
        xs.attach(handle, device="mock:0").close()


def test_the_drivers_failure_leaves_nothing(peer: Child) -> None:
    handle = peer.call(exported, "native_cpu:0")
    with nothing_left():
        driver().fail("Mapping", xs.DeviceError("as the script says"))
        try:
            with pytest.raises(xs.DeviceError, match="script"):
                xs.ipc.memory.open(handle, device="mock:0")
        finally:
            driver().reset()
        xs.ipc.memory.open(handle, device="mock:0").close()


# --- physical memory ------------------------------------------------------------------------------


def test_physical_memory(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported_physical, pair[0], 2 * GRANULE, b"pages")
    pages = xs.ipc.physical_memory.open(handle, device=pair[1])
    assert (str(pages.device), pages.nbytes, pages.is_imported) == (pair[1], 2 * GRANULE, True)
    with xs.VirtualRange(GRANULE, pair[1]) as place:
        place.map(pages, offset=0, nbytes=GRANULE)
        assert bytes(memoryview(place)[:5]) == b"pages"
        memoryview(place)[:5] = b"heard"
    assert peer.call(lambda: read_physical(kept["physical"], 5)) == b"heard"
    with xs.VirtualRange(2 * GRANULE, pair[0]) as theirs, pytest.raises(xs.InvalidArgumentError, match="cannot be map"):
        theirs.map(pages)


def test_physical_memory_that_is_no_multiple_of_the_granularity(peer: Child) -> None:
    unit = xs.Device("mock:0").memory_granularity()
    page = xs.Device("native_cpu:0").memory_granularity()
    handle = peer.call(exported_physical, "native_cpu:0", unit + page)
    with (
        nothing_left(),
        pytest.raises(
            xs.FeatureNotSupportedError, match=f"native_cpu cannot be opened on mock:0.*granularity there, {unit}"
        ),
    ):
        xs.ipc.physical_memory.open(handle, device="mock:0")


def test_physical_memory_goes_on_from_there(pair: Pair, peer: Child, other: Child) -> None:
    """An import is exported again as its opener's."""

    def forward(handle: xs.ipc.Handle, device: str) -> xs.ipc.Handle:
        pages = kept["forwarded"] = xs.ipc.physical_memory.open(handle, device=device)
        return xs.ipc.physical_memory.get(pages)

    first = peer.call(exported_physical, pair[0], GRANULE, b"far")
    second = other.call(forward, first, pair[1])
    assert second.backend == pair[1].partition(":")[0]
    pages = xs.ipc.physical_memory.open(second, device=pair[0])
    assert (str(pages.device), read_physical(pages, 3)) == (pair[0], b"far")


# --- events ---------------------------------------------------------------------------------------


def signals(count: int) -> int:
    for _ in range(count):
        kept["event"].signal()
    return int(kept["event"].value)


def test_events_both_ways(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported_event, pair[0])
    event = xs.ipc.event.open(handle, device=pair[1])
    assert (str(event.device), event.is_imported) == (pair[1], True)
    pending = peer.start(signals, 2)
    event.wait(10, at_least=2)
    assert pending.result() == 2

    def wait(device: str, at_least: int) -> int:
        with xs.Queue(device) as queue:
            queue.wait(kept["event"], at_least=at_least)
            queue.synchronize(10)
        return int(kept["event"].value)

    waiting = peer.start(wait, pair[0], 3)
    with xs.Queue(pair[1]) as queue:
        assert queue.signal(event) == 3
        queue.synchronize(10)
    assert waiting.result() == 3

    async def reached() -> None:
        async with asyncio.timeout(10):
            await event.reached(4)

    pending = peer.start(signals, 1)
    asyncio.run(reached())
    assert pending.result() == 4


def test_one_event_on_two_devices(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported_event, pair[0])
    near, far = xs.ipc.event.open(handle, device=pair[1]), xs.ipc.event.open(handle)
    assert (str(near.device), str(far.device)) == (pair[1], pair[0])
    assert near.signal() == 1
    assert (far.value, far.pending) == (1, 1)


def test_an_exporter_that_owes_is_killed(pair: Pair) -> None:
    def owe(device: str) -> xs.ipc.Handle:
        handle = exported_event(device)
        queue = kept["queue"] = xs.Queue(device)
        queue.wait(xs.Event(device), at_least=1)  # never
        queue.signal(kept["event"])
        return handle

    with Child() as child, xs.Queue(pair[1]) as queue:
        event = xs.ipc.event.open(child.call(owe, pair[0]), device=pair[1])
        queue.wait(event)
        child.kill()
        killed = time.monotonic()
        with pytest.raises(xs.PeerLostError, match="died"):
            event.wait(10)
        with pytest.raises(xs.PeerLostError, match="died"):
            queue.synchronize(10)
        assert time.monotonic() - killed < 1


def test_an_importer_that_owes_is_killed(pair: Pair) -> None:
    def owe(handle: xs.ipc.Handle, device: str) -> int:
        event = kept["event"] = xs.ipc.event.open(handle, device=device)
        queue = kept["queue"] = xs.Queue(device)
        call_on(queue, threading.Event().wait)
        return queue.signal(event)

    event = xs.Event(pair[0], enable_ipc=True)
    handle = xs.ipc.event.get(event)
    with Child() as child:
        assert child.call(owe, handle, pair[1]) == 1
        child.kill()
        killed = time.monotonic()
        with pytest.raises(xs.PeerLostError, match="died"):
            event.wait(10)
        assert time.monotonic() - killed < 1
    xs.ipc.event.put(handle)


def test_events_of_a_device_that_is_not_here_open_on_the_host(peer: Child) -> None:
    handle = peer.call(exported_event, "mock:1")

    def look(handle: bytes) -> str:
        event = kept["event"] = xs.ipc.event.open(handle)
        event.wait(10, at_least=1)
        event.signal()
        return str(event.device)

    with Child(env={"ONEAPI_DEVICE_SELECTOR": "native_cpu:*"}) as child:
        looking = child.start(look, bytes(handle))
        peer.call(signals, 1)
        assert looking.result() == "native_cpu:0"
        assert peer.call(lambda: kept["event"].value) == 2
    without_host = {"ONEAPI_DEVICE_SELECTOR": "mock:0"}
    with Child(env=without_host) as child, pytest.raises(xs.InvalidArgumentError, match="may not see"):
        child.call(look, bytes(handle))


# --- arrays ---------------------------------------------------------------------------------------


@pytest.fixture
def stream() -> Iterator[MockStream]:
    found = MockStream()
    yield found
    found.close()


def read(raw: bytes, device: str) -> list[int]:
    array = kept["array"] = xs.attach(raw, device=device)
    assert str(array.device) == device
    return list(np.asarray(array).tolist())


def slow(stream: MockStream, array: xs.SharedArray) -> threading.Event:
    """Work of the stream that fills the array, once the event is set."""
    gate = threading.Event()
    target = np.asarray(array)
    stream.call(gate.wait)
    stream.call(lambda: target.fill(9))
    return gate


def test_an_array_comes_after_its_producers_stream(peer: Child, stream: MockStream) -> None:
    array = xs.empty(4, "u1", device="mock:0")
    gate = slow(stream, array)
    with xs.share(array, stream=stream) as handle:
        reading = peer.start(read, bytes(handle), "native_cpu:0")
        with pytest.raises(HarnessError):
            reading.result(0.1)
        gate.set()
        assert reading.result() == [9, 9, 9, 9]


def test_a_stream_of_another_backend_waits(peer: Child) -> None:
    array = xs.empty(4, "u1", device="native_cpu:0")
    np.asarray(array)[:] = 1
    with xs.Queue("native_cpu:0") as queue:
        gate = threading.Event()
        call_on(queue, gate.wait)
        queue.fill(array, b"\5")

        def copy(raw: bytes) -> None:
            mine = kept["stream"] = MockStream()
            target = kept["target"] = xs.malloc_device(4, "mock:0")
            work = kept["work"] = xs.Queue.from_native(mine)
            work.copy(target, xs.attach(raw, device="mock:0", stream=work))

        def finished() -> bytes:
            kept["work"].synchronize(10)
            return bytes(memoryview(kept["target"]))

        with xs.share(array, stream=queue) as handle:
            peer.call(copy, bytes(handle))  # returns: nothing waits on the host
            pending = peer.start(finished)
            with pytest.raises(HarnessError):
                pending.result(0.1)
            gate.set()
            assert pending.result() == b"\5\5\5\5"


def test_the_producer_of_an_array_dies() -> None:
    def share() -> bytes:
        stream = kept["stream"] = MockStream()
        array = kept["array"] = xs.empty(4, "u1", device="mock:0")
        slow(stream, array)
        handle = kept["handle"] = xs.share(array, stream=stream)
        return bytes(handle)

    with Child() as child:
        array = xs.attach(child.call(share), device="native_cpu:0")
        child.kill()
        with pytest.raises(xs.PeerLostError):
            np.asarray(array)


# --- what cannot be opened ------------------------------------------------------------------------


ENTRY_AT = {"form": 24, "exposed_nbytes": 64, "fd_count": 80, "offset": 112, "number": 120}
DEVICE_AT = {"backend": 0, "uuid": 16, "pci": 32}


def lie(kind: str, device: str, changes: dict[str, Any]) -> xs.ipc.Handle:
    """In the peer: an export whose entry, or the device in the header, says something else."""
    handle = MAKERS[kind](device)
    view = node.current().table()._view
    entry = layout.TABLE_ENTRIES + fields_of(handle).entry * layout.ENTRY_NBYTES
    number = struct.unpack_from("<I", view, entry + ENTRY_AT["number"])[0]
    header = layout.TABLE_DEVICES + (number - 1) * layout.DEVICE.size
    kept["truth"] = header, bytes(view[header : header + layout.DEVICE.size])
    for name, value in changes.items():
        if name in DEVICE_AT:
            at, raw = header + DEVICE_AT[name], value
        else:
            at = entry + ENTRY_AT[name]
            if name == "form":
                value = struct.unpack_from("<I", view, at)[0] & ~(7 << layout.ENTRY_FORM_BIT) | value << 3
            raw = value.to_bytes(8 if name in ("exposed_nbytes", "offset") else 4, "little")
        view[at : at + len(raw)] = raw
    return handle


def tell_the_truth() -> None:
    header, raw = kept.pop("truth")
    node.current().table()._view[header : header + len(raw)] = raw


LIES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a VMM fd": ({"form": 2}, xs.FeatureNotSupportedError, "a VMM fd"),
    "an opaque fd": ({"form": 3}, xs.FeatureNotSupportedError, "an opaque fd"),
    "a dma-buf": ({"form": 4}, xs.FeatureNotSupportedError, "a dma-buf"),
    "the driver's own": ({"form": 0}, xs.FeatureNotSupportedError, "driver's own"),
    "no form": ({"form": 5}, xs.InvalidHandleError, "does not fit"),
    "no form either": ({"form": 7}, xs.InvalidHandleError, "does not fit"),
    "an offset": ({"offset": 1}, xs.InvalidHandleError, "does not fit"),
    "a huge offset": ({"offset": (1 << 64) - 1}, xs.InvalidHandleError, "does not fit"),
    "two fds": ({"fd_count": 2}, xs.InvalidHandleError, "does not fit"),
    "more than the file has": ({"exposed_nbytes": 1 << 40}, xs.InvalidHandleError, "smaller|bytes, its file has"),
    "no such device": ({"number": 64}, xs.InvalidHandleError, "cannot be"),
    "no device by far": ({"number": (1 << 32) - 1}, xs.InvalidHandleError, "cannot be"),
    "another backend": ({"backend": b"cuda".ljust(16, b"\0")}, xs.InvalidHandleError, "cannot be"),
    "another device": ({"uuid": uuid.uuid4().bytes}, xs.InvalidHandleError, "cannot be"),
    "no PCI address": ({"pci": b"\xff" * 16}, xs.InvalidHandleError, "cannot be"),
}


@pytest.mark.parametrize("kind", ["memory", "physical_memory"])
@pytest.mark.parametrize("what", LIES)
def test_lies(pair: Pair, peer: Child, kind: str, what: str) -> None:
    changes, error, match = LIES[what]
    handle = peer.call(lie, kind, pair[0], changes)
    with nothing_left(), pytest.raises(error, match=match) as caught:
        verbs(kind).open(handle, device=pair[1])
    peer.call(tell_the_truth)
    if error is xs.FeatureNotSupportedError:
        assert pair[0].partition(":")[0] in str(caught.value)
        assert pair[1] in str(caught.value)


def test_a_device_that_the_header_does_not_say(pair: Pair, peer: Child) -> None:
    """What needs no hardware in common opens all the same."""
    handle = peer.call(lie, "memory", pair[0], {"number": 0})
    xs.ipc.memory.open(handle, device=pair[1]).close()


def test_a_larger_range_of_what_is_open(pair: Pair, peer: Child) -> None:
    """The exporter's table says of the second handle that the object is larger than what the first one mapped."""

    def grow(device: str) -> tuple[xs.ipc.Handle, bytes]:
        from xpushare.sharing import handle as handles

        first = exported(device)
        second = xs.ipc.memory.get(kept["memory"])
        table = node.current().table()
        at = layout.TABLE_ENTRIES + fields_of(second).entry * layout.ENTRY_NBYTES
        struct.pack_into("<QQ", table._view, at + 56, 1 << 20, 1 << 20)
        values = {name: getattr(fields_of(second), name) for name, _code in handles.FIELDS}
        body = handles._STRUCT.pack(*(values | {"nbytes": 1 << 20}).values())
        return first, body + handles.keyed_hash(body)

    first, second = peer.call(grow, pair[0])
    for device in (None, pair[1]):
        with xs.ipc.memory.open(first, device=device), pytest.raises(xs.InvalidHandleError, match="does not fit"):
            xs.ipc.memory.open(second, device=device)


@pytest.mark.parametrize("what", ["a VMM fd", "more than the file has", "another device"])
def test_an_array_over_a_lie(pair: Pair, peer: Child, what: str) -> None:
    changes, error, match = LIES[what]

    def share(device: str, changes: dict[str, Any]) -> bytes:
        array = kept["array"] = xs.empty(4, "u1", device=device, isolated=True)
        handle = kept["array handle"] = xs.share(array)
        lie("memory", device, changes)
        lying, honest = (
            layout.TABLE_ENTRIES + fields_of(each).entry * layout.ENTRY_NBYTES
            for each in (node.current().table().exports()[-1].handle, handle.handle)
        )
        view = node.current().table()._view
        for at, nbytes in ((24, 4), (64, 8)):  # flags and exposed_nbytes, of what lies
            view[honest + at : honest + at + nbytes] = view[lying + at : lying + at + nbytes]
        return bytes(handle)

    raw = peer.call(share, pair[0], changes)
    with nothing_left(), pytest.raises(error, match=match):
        xs.attach(raw, device=pair[1])
    peer.call(tell_the_truth)


# --- the decision ---------------------------------------------------------------------------------


class Vendor:
    """An adapter that states what it imports."""

    def __init__(self, forms: dict[Form, Same]) -> None:
        self.forms = forms

    def imports(self, _device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        return {} if physical else self.forms


ONE, TWO = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
FORMS = {Form.MEMFD: Same.HOST, Form.VMM_FD: Same.DEVICE, Form.DMA_BUF: Same.DEVICE, Form.OPAQUE_FD: Same.DRIVER}
PCI = "0000:3b:00.0"


def decide(form: Form, exporter: Hardware, physical: bool = False) -> str:
    """Why a device with uuid ONE at PCI with driver TWO refuses; "" where it does not."""

    class Here:
        _adapter = Vendor(FORMS)
        _info = DeviceInfo("hip", 0, "a GPU", ONE, "gpu", "1", PCI, TWO)

        def __str__(self) -> str:
            return "hip:0"

    here: Any = Here()
    try:
        opening.expect_importable(here, physical, form, exporter)
    except xs.FeatureNotSupportedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("form", [Form.VMM_FD, Form.DMA_BUF])
def test_the_same_hardware(form: Form) -> None:
    assert not decide(form, Hardware("vulkan", ONE, "", "")), "by uuid"
    assert not decide(form, Hardware("level_zero", TWO, PCI, "")), "by PCI address"
    for other in (Hardware("vulkan", TWO, "", ""), Hardware("vulkan", TWO, "0000:3c:00.0", "")):
        refused = decide(form, other)
        assert "vulkan cannot be opened on hip:0" in refused
        assert "same hardware" in refused
        assert TWO in refused


def test_the_same_driver() -> None:
    assert not decide(Form.OPAQUE_FD, Hardware("vulkan", ONE, "", TWO))
    for driver_uuid in ("", ONE):
        assert "same driver" in decide(Form.OPAQUE_FD, Hardware("vulkan", ONE, "", driver_uuid))
    assert "same hardware" in decide(Form.OPAQUE_FD, Hardware("vulkan", TWO, "", TWO))


def test_the_host() -> None:
    assert not decide(Form.MEMFD, Hardware("native_cpu", TWO, "", ""))


def test_forms_that_are_not_imported() -> None:
    same = Hardware("vulkan", ONE, PCI, TWO)
    assert "driver's own handle, which hip does not import" in decide(Form.DRIVER, same)
    assert "physical memory of vulkan" in decide(Form.MEMFD, same, physical=True)


def test_hardware_goes_through_the_table() -> None:
    def export() -> xs.ipc.Handle:
        device = xs.Device("mock:0")
        device._info = DeviceInfo("mock", 0, "", device.uuid, "accelerator", "1.0", PCI, TWO)
        return exported("mock:0")

    seen: list[tuple[Form, Hardware]] = []

    def admit(form: Form, exporter: Hardware) -> None:
        seen.append((form, exporter))
        raise xs.FeatureNotSupportedError("seen")

    with Child() as child:
        handle = child.call(export)
        with nothing_left(), pytest.raises(xs.FeatureNotSupportedError, match="seen"):
            node.current().peers.acquire([(handle, Opener(Export, admit, True))], [])
    assert seen == [(Form.MEMFD, Hardware("mock", xs.Device("mock:0").uuid, PCI, TWO))]
