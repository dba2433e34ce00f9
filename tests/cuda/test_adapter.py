"""The adapter's logic against a scripted driver: no GPU, no cuda-bindings."""

from __future__ import annotations

import gc
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from scripted_driver import MIB2, Range, ScriptedDriver

import xpushare as xs
from harness import wait_until
from xpushare import _native
from xpushare.adapters.base import DeviceInfo, Export, Import
from xpushare.adapters.cuda import _listing
from xpushare.adapters.cuda._adapter import Cuda
from xpushare.adapters.cuda._numbers import Attribute
from xpushare.common.fds import OwnedFd
from xpushare.sharing import node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def settled(cuda: Cuda) -> None:
    gc.collect()
    assert cuda.engine.teardown.settle(5)


def as_import(export: Export, read_only: bool = False) -> Import:
    fds = [OwnedFd(os.dup(fd)) for fd in export.fds]
    return Import(export.nbytes, export.exposed_nbytes, export.payload, fds, read_only)


@pytest.fixture
def domain(cuda: Cuda, gpu: DeviceInfo) -> _native.Domain:
    found = node.current().table().domain
    cuda.adopt_domain(gpu, found)
    return found


@pytest.fixture
def slot(new_slot: Callable[[], _native.Slot]) -> _native.Slot:
    return new_slot()


def test_devices_carry_the_drivers_uuids(cuda: Cuda) -> None:
    assert [(d.ordinal, d.uuid[:8], d.type) for d in cuda.devices()] == [(0, "01010101", "gpu"), (1, "02020202", "gpu")]


def test_no_context_before_one_is_needed(cuda: Cuda, driver: ScriptedDriver) -> None:
    for device in cuda.devices():
        for aspect in xs.Aspect:
            cuda.support(device, aspect)
        cuda.granularity(device, True)
    assert not driver.contexts
    cuda.allocate(cuda.devices()[1], "device", 5).release()
    settled(cuda)
    assert set(driver.contexts) == {1}


def test_a_missing_attribute_is_named(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    driver.attributes[103] = 0
    said = cuda.support(gpu, xs.Aspect.ext_oneapi_ipc_memory)
    assert said.state == "no"
    assert "POSIX" in said.reason
    with pytest.raises(xs.FeatureNotSupportedError, match="103"):
        cuda.allocate(gpu, "device", 5)
    assert not driver.left


def test_ordering_and_adopted_queues(cuda: Cuda, gpu: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda.support(gpu, xs.Aspect.adopted_queues).state == "yes"
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # too late: the driver has read it
    said = cuda.support(gpu, xs.Aspect.device_ordering)
    assert said.state == "no"
    assert said.reason.startswith("2 of its queues may wait on the device for points that nobody has submitted")
    assert said.reason.endswith("8 hardware channels; the others hold their operations until the point comes; "
                                "CUDA_DEVICE_MAX_CONNECTIONS=32 makes it 8")  # fmt: skip
    for value, most in {"1": 0, "3": 0, "8": 2, " 12 ": 3, "32": 8, "99": 8, "0": 2, "many": 2}.items():
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", value)
        other = Cuda(ScriptedDriver())
        reason = other.support(other.devices()[0], xs.Aspect.device_ordering).reason
        assert reason.startswith(f"{most} of its queues")
        assert ("CUDA_DEVICE_MAX_CONNECTIONS" in reason) == (most < 8)


def test_ordering_and_adopted_queues_need_stream_words(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    driver.attributes[Attribute.CAN_USE_64_BIT_STREAM_MEM_OPS] = 0
    for aspect in (xs.Aspect.device_ordering, xs.Aspect.adopted_queues):
        assert cuda.support(gpu, aspect) == (
            "no",
            "the driver says that the device lacks CAN_USE_64_BIT_STREAM_MEM_OPS",
        )


def test_device_memory_there_and_back(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    memory = cuda.allocate(gpu, "device", 5)
    export = memory.export(False)
    assert (export.nbytes, export.exposed_nbytes, export.inode) == (5, MIB2, 0)
    assert memory.export(False).fds == export.fds, "one fd an allocation"
    opened = cuda.import_memory(cuda.devices()[1], as_import(export))
    assert opened.address != memory.address
    assert driver.access[opened.address] == {0: 3, 1: 3}
    memory.release()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(export.fds[0])
    opened.release()
    settled(cuda)
    assert not {kind: found for kind, found in driver.left.items() if kind != "page"}


def test_read_only_imports_are_mapped_so(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    memory = cuda.allocate(gpu, "device", 5)
    opened = cuda.import_memory(gpu, as_import(memory.export(True), True))
    assert set(driver.access[opened.address].values()) == {1}


@pytest.mark.parametrize("damage", ["size", "payload", "kind", "fds", "file"])
def test_a_lying_exporter_is_refused(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo, damage: str) -> None:
    memory = cuda.allocate(gpu, "device", 5)
    export = memory.export(False)
    what = as_import(export)
    if damage == "size":  # the table says more than there is
        what = what._replace(exposed_nbytes=2 * MIB2, payload=what.payload[:8] + (2 * MIB2).to_bytes(8, "little"))
    elif damage == "payload":
        what = what._replace(payload=b"")
    elif damage == "kind":
        what = what._replace(payload=b"\x63" + what.payload[1:])
    elif damage == "fds":
        what = what._replace(fds=[])
    else:
        what = what._replace(fds=[OwnedFd(os.memfd_create("no driver's"))])
    before = {kind: set(found) for kind, found in driver.live.items()}
    with pytest.raises((xs.InvalidHandleError, xs.FeatureNotSupportedError)):
        cuda.import_memory(gpu, what)
    assert {kind: found for kind, found in driver.live.items() if found} == {k: v for k, v in before.items() if v}


def test_managed_memory_says_why_it_cannot_be_shared(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    memory = cuda.allocate(gpu, "shared", 100)
    with pytest.raises(xs.FeatureNotSupportedError, match="malloc_device"):
        memory.export(False)
    memory.release()
    settled(cuda)
    assert not driver.live["managed"]


def scenario_memory(cuda: Cuda) -> None:
    gpu = cuda.devices()[0]
    memory = cuda.allocate(gpu, "device", 5)
    try:
        cuda.import_memory(gpu, as_import(memory.export(True), True)).release()
    finally:
        memory.release()


def scenario_host(cuda: Cuda) -> None:
    memory = cuda.allocate(cuda.devices()[0], "host", 5)
    try:
        cuda.import_memory(cuda.devices()[0], as_import(memory.export(False))).release()
    finally:
        memory.release()


def scenario_physical(cuda: Cuda) -> None:
    gpu = cuda.devices()[0]
    pages = cuda.physical(gpu, MIB2, True)
    try:
        imported = cuda.import_physical(gpu, as_import(pages.export()))
        try:
            addresses = cuda.reserve(gpu, 4 * MIB2, 0)
            try:
                addresses.map(MIB2, imported, 0, MIB2, "rw")
                addresses.unmap(MIB2, MIB2)
                addresses.map(MIB2, pages, 0, MIB2, "none")
                try:
                    addresses.set_access(MIB2, MIB2, "r")
                finally:
                    addresses.unmap(MIB2, MIB2)
            finally:
                addresses.release()
        finally:
            imported.release()
    finally:
        pages.release()


def scenario_foreign(cuda: Cuda) -> None:
    gpu = cuda.devices()[0]
    api: Any = cuda._driver._given
    api.foreign = [Range(0x1000000, MIB2, 0, legacy=1), Range(0x2000000, MIB2, 0, pool=100, allowed=1)]
    for address in (0x1000010, 0x2000010):
        found = cuda.foreign(address)
        if found is None:  # the driver did not say that it knows the address
            continue
        try:
            cuda.import_memory(gpu, as_import(found.memory.export(False))).release()
        finally:
            found.memory.release()


def scenario_queue(cuda: Cuda) -> None:
    gpu = cuda.devices()[0]
    memory = cuda.allocate(gpu, "host", 4096)
    try:
        queue: Any = cuda.queue(gpu)
        try:
            queue.fill(memory.address, bytes(range(100)), 1000, None)
            queue.copy(memory.address + 2000, memory.address, 1000, None)
            queue.record_native().release()
            queue.synchronize(5)
        finally:
            queue.release()
            wait_until(lambda: not queue._released)
    finally:
        memory.release()


SCENARIOS = [scenario_memory, scenario_host, scenario_physical, scenario_foreign, scenario_queue]
# What a teardown cannot do when the driver refuses the teardown itself.
TEARDOWN = {"cuMemRelease", "cuMemUnmap", "cuMemAddressFree", "cuMemHostUnregister", "cuIpcCloseMemHandle", "cuMemFree",
            "cuMemPoolDestroy", "cuEventDestroy", "cuStreamDestroy", "cuCtxPopCurrent",
            "cuThreadExchangeStreamCaptureMode"}  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.usefixtures("no_fd_leak")
def test_each_failing_call_leaves_nothing_behind(scenario: Callable[[Cuda], None]) -> None:
    rehearsal = ScriptedDriver()
    cuda = Cuda(rehearsal)
    scenario(cuda)
    settled(cuda)
    assert not {kind: found for kind, found in rehearsal.left.items() if kind not in ("page", "stream")}
    failed = 0
    for index, name in enumerate(rehearsal.mine):
        following = next((each for each in rehearsal.mine[index + 1 :] if not each.startswith("cuCtx")), "")
        if name in TEARDOWN or (name == "cuCtxPushCurrent" and following in TEARDOWN):
            continue
        driver = ScriptedDriver()
        driver.fail[index] = 2
        cuda = Cuda(driver)
        said = ""
        try:
            scenario(cuda)
        except xs.XpuShareError as error:
            said = str(error)
        assert not said or "(2)" in said, f"{name}: {said}"
        failed += bool(said)
        driver.fail.clear()
        settled(cuda)
        left = {kind: found for kind, found in driver.left.items() if kind not in ("page", "stream")}
        assert not left, f"failing call {index}, {name}, left {left}"
        wait_until(lambda driver=driver: driver.balanced)
    assert failed


def test_errors_name_the_call_the_code_and_the_next_step(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    driver.fail_named["cuMemCreate"] = 2
    match = r"cuMemCreate failed with CUDA_ERROR_OUT_OF_MEMORY \(2\).*ask for less"
    with pytest.raises(xs.OutOfMemoryError, match=match) as caught:
        cuda.allocate(gpu, "device", 5)
    assert caught.value.native == 2


def test_the_device_is_waited_for_by_unregistering_a_page(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    memory = cuda.allocate(gpu, "device", 5)
    held = threading.Event()
    real = driver.cuMemHostUnregister
    object.__setattr__(driver, "cuMemHostUnregister", lambda address: (held.wait(), real(address))[1])
    memory.release()
    assert not cuda.engine.teardown.settle(0.1)
    assert driver.live["mapping"], "the work has not finished"
    held.set()
    settled(cuda)
    assert not driver.live["mapping"]
    assert driver.live["page"], "it is there for the next time"


def test_a_new_mapping_waits_for_the_old_one_to_leave(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    pages = cuda.physical(gpu, MIB2, False)
    addresses = cuda.reserve(gpu, 2 * MIB2, 0)
    for _ in range(5):
        addresses.map(0, pages, 0, MIB2, "rw")
        addresses.unmap(0, MIB2)
    addresses.release()
    pages.release()
    settled(cuda)
    assert not {kind: found for kind, found in driver.left.items() if kind != "page"}


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"managed": 1}, "managed"),
        ({"memory_type": 1}, "page-locked"),
        ({}, "without a handle type.*expandable_segments"),
        ({"pool": 5}, "cudaMallocAsync"),
    ],
)
def test_what_cannot_be_shared_says_what_to_change(
    cuda: Cuda, driver: ScriptedDriver, facts: dict[str, int], says: str
) -> None:
    driver.foreign = [Range(0x1000000, MIB2, 0, **facts)]
    with pytest.raises(xs.FeatureNotSupportedError, match=says):
        cuda.foreign(0x1000010)


def test_unknown_addresses_are_nobodys(cuda: Cuda) -> None:
    cuda.devices()
    assert cuda.foreign(0x42) is None


def test_memory_that_is_freed_between_two_questions(cuda: Cuda, driver: ScriptedDriver) -> None:
    """The driver then answers the second one with device -2, or with an error."""
    cuda.devices()
    driver.foreign = [Range(0x1000000, MIB2, 0xFFFFFFFE)]
    assert cuda.foreign(0x1000010) is None
    driver.fail_named["cuPointerGetAttributes"] = 999
    with pytest.raises(xs.DeviceError, match="cuPointerGetAttributes"):
        cuda.foreign(0x1000010)


def test_an_array_over_many_segments(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    sizes = [MIB2, MIB2, 10 * MIB2, 10 * MIB2, 10 * MIB2]
    addresses: Any = cuda.reserve(gpu, 64 * MIB2, 0)
    at, handles = addresses.address, []
    for nbytes in sizes:
        pages: Any = cuda.physical(gpu, nbytes, True)
        addresses.map(at - addresses.address, pages, 0, nbytes, "rw")
        driver.foreign.append(Range(at, nbytes, 0, (addresses.address, 64 * MIB2), allowed=1, buffer=at))
        handles.append(pages.handle)
        at += nbytes
    found = cuda.foreign(addresses.address + 3 * MIB2)
    assert found is not None
    assert (found.offset, found.memory.nbytes, found.device) == (3 * MIB2, sum(sizes), gpu)
    same = cuda.foreign(addresses.address)
    assert same is not None
    assert same.identity == found.identity
    export = found.memory.export(False)
    assert export.on_demand is not None
    assert list(export.on_demand.objects) == handles
    assert len(export.payload) <= 128
    fds = [OwnedFd(driver.cuMemExportToShareableHandle(handle, 1, 0)[1]) for handle in handles]
    opened = cuda.import_memory(gpu, Import(export.nbytes, export.exposed_nbytes, export.payload, fds, False))
    assert [driver.pieces[opened.address + offset][0] for offset in (0, MIB2, 2 * MIB2, 12 * MIB2)] == sizes[:4]
    part = cuda.foreign(addresses.address + 3 * MIB2, MIB2)
    assert part is not None
    assert (part.offset, part.memory.nbytes) == (MIB2, 10 * MIB2)
    found.memory.release()


def test_what_a_pickle_brought_is_exported_by_the_fd_that_it_came_by(
    cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo
) -> None:
    """The driver does not export what it imported (error 1)."""
    memory = cuda.allocate(gpu, "device", MIB2)
    came_by = as_import(memory.export(False))._replace(again=True)
    opened = cuda.import_memory(gpu, came_by)
    exports = driver.calls.count("cuMemExportToShareableHandle")
    found = opened.export(False)
    assert driver.calls.count("cuMemExportToShareableHandle") == exports
    assert os.fstat(found.fds[0]).st_rdev == os.fstat(memory.export(False).fds[0]).st_rdev
    once_more = cuda.import_memory(gpu, as_import(found))
    for each in (once_more, opened, memory):
        each.release()
    settled(cuda)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(found.fds[0])


def test_events_are_words_and_a_turn_is_a_host_function(
    cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo, slot: _native.Slot, new_slot: Callable[[], _native.Slot]
) -> None:
    gate = new_slot()
    first, second = cuda.queue(gpu), cuda.queue(gpu)
    first.wait(gate, 1)
    assert first.signal(slot, None) == 1
    assert (driver.calls.count("cuStreamWaitValue64"), driver.calls.count("cuStreamWriteValue64")) == (1, 1)
    assert second.signal(slot, None) == 2
    assert driver.calls.count("cuLaunchHostFunc") == 1
    assert slot.value == 0, "the second signal waits for the first one's"
    gate.signal()
    driver.settle()
    second.synchronize(5)
    assert (slot.value, driver.functions_run) == (2, 1)


def test_what_is_idle(cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver) -> None:
    queue: Any = cuda.queue(gpu)
    number = queue._stream.handle
    driver.calls.clear()
    assert queue.idle()
    asked = driver.calls.count("cuStreamQuery")
    assert asked == 1, "by native code alone"
    driver.stuck[number].append(lambda: False)
    assert not queue.idle()
    driver.stuck.clear()
    driver.fail_named["cuStreamQuery"] = 201
    with pytest.raises(xs.DeviceError, match="cuStreamQuery"):
        queue.idle()
    driver.fail_named.clear()
    with pytest.raises(TypeError, match="takes Scopes last"):
        queue._native.idle(1, 600, number, None)
    assert queue.idle()


def test_an_event_of_another_library_is_waited_for(cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver) -> None:
    event, queue = driver.cuEventCreate(0)[1], cuda.queue(gpu)
    driver.sizes[event] = 0
    queue.wait_native(event, None)
    assert not queue.idle()
    driver.sizes[event] = 1
    driver.settle()
    queue.synchronize(5)
    assert driver.calls.count("cuStreamWaitEvent") == 1


@pytest.mark.parametrize("connections", ["1", "8", "32"])
def test_a_quarter_of_the_connections_waits_on_the_device(
    connections: str, monkeypatch: pytest.MonkeyPatch, new_slot: Callable[[], _native.Slot], domain: _native.Domain
) -> None:
    """A relay thread hands over what the others hold, with the device current there."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    driver = ScriptedDriver()
    cuda = Cuda(driver)
    gpu = cuda.devices()[0]
    cuda.adopt_domain(gpu, domain)
    memory = cuda.allocate(gpu, "host", 4096)
    view = memoryview(_native.Span(memory.address, 4096, False, memory))
    queues: list[Any] = [cuda.queue(gpu) for _ in range(12)]
    gate = new_slot()
    for at, queue in enumerate(queues):
        queue.wait(gate, 1)
        queue.fill(memory.address + at, bytes([at + 1]), 1, None)
        queue.copy(memory.address + 100 + at, memory.address + at, 1, None)
    assert driver.calls.count("cuStreamWaitValue64") == int(connections) // 4
    gate.signal()
    for queue in queues:
        wait_until(lambda queue=queue: (driver.settle(), not queue._native.held)[-1])
        queue.synchronize(5)
        queue.release()
    assert view[:12].tolist() == view[100:112].tolist() == list(range(1, 13))
    wait_until(lambda: not any(queue._released for queue in queues))
    assert driver.relays
    assert {driver.stacks[thread][-1] for thread in driver.relays} == {driver.contexts[0]}
    assert {driver.modes[thread] for thread in driver.relays} == {2}
    wait_until(lambda: driver.balanced)  # our watch asks the driver, too
    assert not driver.unsafe


def test_a_broken_context_loses_what_is_owed(
    cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver, slot: _native.Slot, new_slot: Callable[[], _native.Slot]
) -> None:
    queue = cuda.queue(gpu)
    gate = new_slot()
    queue.wait(gate, 1)
    queue.signal(slot, None)
    driver.sticky = 700
    wait_until(lambda: slot.state(1) == _native.LOST)  # the watch sees it; nobody called
    assert slot.blame()[0] == 2
    with pytest.raises(xs.DeviceError, match="ILLEGAL_ADDRESS"):
        queue.synchronize(5)


def test_properties_are_the_drivers(cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver) -> None:
    driver.attributes[16] = 132
    driver.attributes[18] = 0
    driver.attributes[13] = 1_980_000  # kHz
    driver.attributes[10] = 32
    found = cuda.properties(gpu)
    assert found[:5] == ("NVIDIA Corporation", 132, 1 << 37, 1 << 36, False)
    assert (found.vendor_id, found.clock_mhz, found.sub_group_sizes) == (0x10DE, 1980, (32,))
    wait_until(lambda: driver.balanced)


def test_native_handles(cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver) -> None:
    assert cuda.native(gpu, "device") == gpu.ordinal
    other = cuda.devices()[1]
    assert cuda.native(gpu, "context") != cuda.native(other, "context")
    with pytest.raises(xs.FeatureNotSupportedError):
        cuda.native(gpu, "platform")
    queue = cuda.queue(gpu)
    assert queue.native() in driver.live["stream"]
    recorded = queue.record_native()
    assert recorded.native in driver.live["event"]
    recorded.release()
    assert recorded.native not in driver.live["event"]
    queue.release()


@pytest.mark.parametrize("owned", [False, True])
def test_streams_and_events_by_their_handles(
    cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver, slot: _native.Slot, owned: bool
) -> None:
    cuda.allocate(gpu, "device", 1).release()  # its context, which the stream is in
    _code, stream = driver.cuStreamCreate(1)
    info, queue = cuda.native_queue(gpu, stream, owned)
    assert info == gpu
    assert queue.native() == stream
    assert queue.signal(slot, None) == 1
    _code, event = driver.cuEventCreate(0)
    raw, keep = cuda.native_event(gpu, event, owned)
    queue.wait_native(raw, keep)
    del keep
    queue.synchronize(5)
    queue.release()
    wait_until(lambda: not queue._released)  # type: ignore[attr-defined]
    wait_until(lambda: (stream in driver.live["stream"], event in driver.live["event"]) == (not owned, not owned))
    if not owned:
        driver.cuStreamDestroy(stream)
        driver.cuEventDestroy(event)


def test_captures_are_refused(cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver, slot: _native.Slot) -> None:
    cuda.allocate(gpu, "device", 1).release()
    found = cuda.adopt_queue(0x777)
    assert found is not None
    info, queue = found
    assert info == gpu
    driver.capturing.add(0x777)
    for operation in (lambda: queue.signal(slot, None), lambda: queue.wait(slot, 1), lambda: queue.synchronize(1)):
        with pytest.raises(xs.InvalidArgumentError, match="captured"):
            operation()
    assert slot.pending == 0
    driver.capturing.clear()
    assert queue.signal(slot, None) == 1
    queue.release()
    wait_until(lambda: not queue._released)  # type: ignore[attr-defined]
    assert "cuStreamDestroy" not in driver.calls


def test_no_stream_is_made_while_a_queue_waits(
    cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver, slot: _native.Slot
) -> None:
    memory = cuda.allocate(gpu, "host", 4096)
    waiting = cuda.queue(gpu)
    waiting.wait(slot, 1)
    driver.calls.clear()
    for _ in range(20):
        queue = cuda.queue(gpu)
        queue.fill(memory.address, b"a", 1, None)
        queue.synchronize(5)
        queue.release()
    assert "cuMemsetD8Async" in driver.calls
    assert "cuStreamCreate" not in driver.calls
    assert "cuStreamDestroy" not in driver.calls
    slot.signal()
    waiting.synchronize(5)
    waiting.release()
    memory.release()


@pytest.mark.parametrize("pattern", [b"a", b"ab", b"abcd", b"abcdefgh"])
@pytest.mark.parametrize("shift", [0, 1])
def test_fills_have_three_widths(cuda: Cuda, gpu: DeviceInfo, pattern: bytes, shift: int) -> None:
    memory = cuda.allocate(gpu, "host", 4096)
    view = memoryview(_native.Span(memory.address, 4096, False, memory))
    queue = cuda.queue(gpu)
    queue.fill(memory.address + shift, pattern, 7 * len(pattern), None)
    queue.synchronize(5)
    assert bytes(view[shift : shift + 7 * len(pattern) + 1]) == pattern * 7 + b"\0"


def test_streams_of_other_libraries(cuda: Cuda, gpu: DeviceInfo) -> None:
    class Torch:
        cuda_stream = 0
        device = type("device", (), {"index": 1})()

    class Protocol:
        device_id = 0

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0x555

    cuda.allocate(gpu, "device", 1).release()
    found = cuda.adopt_queue(Torch())
    assert found is not None
    assert found[0].ordinal == 1
    assert found[1].lasting
    same = cuda.adopt_queue(cuda.stream(cuda.devices()[1], None, object()))
    assert same is not None
    assert same[1] is found[1]
    found = cuda.adopt_queue(Protocol())
    assert found is not None
    assert found[0].ordinal == 0
    assert not found[1].lasting
    assert cuda.adopt_queue("a string") is None
    with pytest.raises(xs.InvalidArgumentError, match="no device is current"):
        cuda.adopt_queue(0)


@pytest.mark.parametrize("raw", [0, 1, 2])
def test_cupys_default_stream_is_that_of_the_arrays_device(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, raw: int
) -> None:
    """It says no device, and the thread that asks may have none: that of a queue of multiprocessing, say."""

    class Stream:
        ptr, device_id = raw, -1

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, raw

    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(get_current_stream=lambda _ordinal: Stream()))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    array = type("ndarray", (), {"__module__": "cupy"})()
    for device in cuda.devices():
        found = cuda.adopt_queue(cuda.stream(device, None, array))
        assert found is not None
        assert found[0] == device


def information(uuid: str, minor: int, model: str = "NVIDIA H200") -> str:
    return f"Model: \t\t {model}\nGPU UUID: \t GPU-{uuid}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"


UUIDS = [f"8b3eb218-4786-45ef-0410-03994e7fa13{i}" for i in range(3)]


def test_the_question_to_the_driver_gets_an_answer() -> None:
    gpus, why = _listing._ask_child()  # a program of its own, which nothing here imports
    assert gpus or "libcuda" in why or "cuInit failed" in why or why == "the CUDA driver has no device", why


@pytest.fixture
def proc(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for i, uuid in enumerate(UUIDS):
        folder = tmp_path / "gpus" / f"0000:0{i}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(information(uuid, i))
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n")
    monkeypatch.setattr(_listing, "PROC", tmp_path)
    monkeypatch.setattr(_listing.os, "access", lambda *_: True)
    monkeypatch.setattr(_listing, "_ask_child", lambda: ([], "asked the driver"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 ", [1]),
        (f"GPU-{UUIDS[1]},GPU-{UUIDS[0]}", [1, 0]),
        ("", []),
        ("-1", []),
        ("0,0", None),
        ("GPU-8b3eb218", None),
        ("0,junk", None),
        ("MIG-8b3eb218-4786-45ef-0410-03994e7fa130", None),
        (f"0,GPU-{UUIDS[1]}", None),
    ],
)
@pytest.mark.usefixtures("proc")
def test_listing_without_the_driver(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[int] | None
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus, why = _listing.list_gpus()
    if expected is None:
        assert why == "asked the driver"
    else:
        assert [gpu.uuid for gpu in gpus] == [UUIDS[i] for i in expected]
    assert _listing.driver_version() == "580.159.04"


def test_different_models_and_mig_are_the_drivers_matter(proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (proc / "gpus" / "0000:00:00.0" / "information").write_text(information(UUIDS[0], 0, "NVIDIA T4"))
    assert _listing.list_gpus()[1] == "asked the driver"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert len(_listing.list_gpus()[0]) == 3
    (proc / "capabilities" / "gpu0" / "mig" / "gi1").mkdir(parents=True)
    assert _listing.list_gpus()[1] == "asked the driver"
