"""The rules of the stream engine on the software device, by the public API: failures, stalls, orderings, deaths."""

from __future__ import annotations

import functools
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare import _native, adapters
from xpushare.adapters.base import Export, Import
from xpushare.adapters.mock import MockEvent, MockStream, ScriptedDriver
from xpushare.adapters.mock import driver as mock_driver
from xpushare.adapters.mock.adapter import Device
from xpushare.adapters.stream.adapter import StreamAdapter
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.memory import HostMemory
from xpushare.common.fds import OwnedFd

Until = Callable[..., None]
DEVICES = ["mock:0", "mock:1"]  # device ordering, held ordering
# What gives back, and so cannot fail and leave nothing; what looks at the device once it is broken.
GIVES_BACK = {"stream_destroy", "mark_destroy", "unregister", "device_synchronize", "device_check", "stream_query"}


def engine() -> Engine:
    found = adapters.adapter("mock")
    assert isinstance(found, StreamAdapter)
    return found.engine


def settle() -> bool:
    gc.collect()
    return engine().teardown.settle(10)


def books(driver: ScriptedDriver) -> tuple[int, int, int]:
    library = driver.library
    return library.ss_streams(), library.ss_events(), library.ss_registrations()


@pytest.fixture
def driver() -> Iterator[ScriptedDriver]:
    driver = mock_driver()
    driver.reset()
    yield driver
    driver.reset()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def scenario(device: str) -> None:
    """Everything that a queue does, across a wait."""
    with (
        xs.Event(device) as gate,
        xs.Event(device) as out,
        xs.malloc_device(4096, device) as one,
        xs.malloc_host(4096, device) as two,
        xs.Queue(device) as queue,
    ):
        try:
            queue.fill(one, b"abcd")
            queue.wait(gate, at_least=1)
            queue.copy(two, one)
            queue.signal(out)
            gate.signal()
            queue.synchronize(10)
            assert bytes(memoryview(two)[:8]) == b"abcdabcd"
        finally:
            if not gate.value:
                gate.signal()


def fail_each_call(device: str) -> None:
    """In a process of its own: its books hold nothing of other tests, such as the default streams, which stay."""
    driver = mock_driver()
    scenario(device)
    wait_until(lambda: (settle(), books(driver)[0])[1] == 0)
    before = books(driver)
    driver.reset()
    scenario(device)
    wait_until(lambda: (settle(), books(driver))[1] == before)
    calls = {name: count for name, count in driver.counts.items() if name not in GIVES_BACK}
    assert {"stream_create", "mark_record", "copy", "fill", "register", "store64"} <= set(calls)
    for name, count in calls.items():
        for nth in {1, min(count, 2)}:
            driver.reset()
            driver.fail(name, xs.OutOfMemoryError("", native=2), nth=nth)
            try:
                scenario(device)
            except (xs.OutOfMemoryError, xs.PeerLostError):
                pass
            driver.reset()
            wait_until(lambda: (settle(), books(driver))[1] == before)
    scenario(device)


def test_each_failing_call_leaves_nothing(device: str) -> None:
    with Child() as child:
        child.start(fail_each_call, device).result(100)


def test_a_stalled_call_holds_up_nobody_else(driver: ScriptedDriver, device: str) -> None:
    with xs.malloc_device(64, device) as one, xs.malloc_device(64, device) as two:
        first, second = xs.Queue(device), xs.Queue(device)
        with driver.stall("fill"):
            stuck = threading.Thread(target=first.fill, args=(one, b"x"))
            stuck.start()
            second.copy(two, one)
            second.synchronize(10)
            with xs.Event(device) as event, xs.malloc_device(64, device):
                second.signal(event)
                event.wait(10)
        stuck.join(10)
        first.synchronize(10)
        assert bytes(memoryview(one)) == b"x" * 64
        first.close()
        second.close()


@pytest.mark.parametrize(("ordering", "ends"), [("shared", True), ("held", True), ("device", False)])
def test_queues_of_one_hardware_queue(driver: ScriptedDriver, ordering: Any, ends: bool) -> None:
    """The wait is queued first: a driver that has it lets nothing pass, not even the signal."""
    with driver.shared_hardware(0, ordering):
        waiting, signalling = xs.Queue("mock:0"), xs.Queue("mock:0")
    with xs.Event("mock:0") as event, waiting, signalling:
        waiting.wait(event, at_least=1)
        if ends:
            assert signalling.signal(event) == 1
            waiting.synchronize(10)
            signalling.synchronize(10)
        else:
            with pytest.raises(TimeoutError):
                signalling.synchronize(0.2)
            event.signal()
            signalling.synchronize(10)


def test_what_the_devices_say_of_their_orderings() -> None:
    for aspect in (xs.Aspect.device_ordering, xs.Aspect.adopted_queues):
        assert [xs.Device(name).support(aspect).state for name in DEVICES] == ["yes", "no"]
    with xs.Event("mock:1") as event, xs.Queue.from_native(MockStream(1)) as queue:
        with pytest.raises(xs.FeatureNotSupportedError, match="another library"):
            queue.wait(event, at_least=1)
        assert queue.signal(event) == 1
        event.wait(10)


def test_a_teardown_waits_for_the_device(driver: ScriptedDriver, device: str, until: Until) -> None:
    memory = xs.malloc_device(4096, device)
    assert settle()
    before = books(driver)[2]
    with driver.stall("device_synchronize"):
        memory.close()
        assert not engine().teardown.settle(0.1), "nobody was held up, and nothing was unmapped"
        assert books(driver)[2] == before
    until(lambda: books(driver)[2] == before - 1)


def test_a_queue_begins_to_wait_for_no_longer_than_the_point_takes(driver: ScriptedDriver, until: Until) -> None:
    """Also while a teardown waits for work that takes long, during which no queue may begin to wait in its device."""
    memory = xs.malloc_device(4096, "mock:0")
    assert settle()
    driver.reset()  # the counts
    with xs.Queue("mock:0") as queue, xs.Event("mock:0") as event, driver.stall("device_synchronize"):
        memory.close()
        until(lambda: driver.counts["device_synchronize"])
        thread = threading.Thread(target=queue.wait, args=(event,), kwargs={"at_least": 1})
        thread.start()
        thread.join(0.1)
        assert thread.is_alive(), "a wait may not begin now"
        event.signal()
        thread.join(10)
        assert not thread.is_alive()
        assert queue.signal(event) == 2
        event.wait(10)
    assert settle()


def test_no_teardown_waits_for_a_device_that_waits_for_another_librarys_event(
    driver: ScriptedDriver, device: str, until: Until
) -> None:
    """The event may never complete, as that of a process that died."""
    gate, memory = threading.Event(), xs.malloc_device(4096, device)
    assert settle()
    with xs.Event.from_native(MockEvent(gate.wait, int(device[-1]))) as event:
        before = books(driver)[2]
        driver.reset()
        memory.close()
        assert not engine().teardown.settle(0.2)
        assert not driver.counts["device_synchronize"]
        with xs.Queue(device) as other, xs.Event(device) as ready:  # and others begin to wait
            other.wait(ready, at_least=1)
            ready.signal()
            other.synchronize(10)
        gate.set()
        until(lambda: books(driver)[2] == before - 1)
        event.wait(10)


def test_a_thread_that_always_has_a_queue_waiting_goes_on(driver: ScriptedDriver, until: Until) -> None:
    """Only this thread signals what its queue waits for. Memory that it frees meanwhile is given back later."""
    settle()
    driver.reset()  # the counts
    before = driver.library.ss_registrations()
    with xs.Queue("mock:0") as queue, xs.Event("mock:0") as event:
        queue.wait(event, at_least=1)
        xs.malloc_device(4096, "mock:0").close()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            queue.wait(event, at_least=event.value + 2)
            event.signal()
        assert not driver.counts["device_synchronize"], "the device was drained, and the thread not held up"
        assert driver.library.ss_registrations() > before
        event.signal()
        until(lambda: driver.counts["device_synchronize"])
        assert settle()


def test_a_wait_that_was_lost_holds_no_teardown_up(device: str) -> None:
    memory = xs.malloc_device(4096, device)
    with Child() as child, xs.Queue(device) as queue, xs.ipc.event.open(child.call(exported, device)) as event:
        queue.wait(event, at_least=1)
        memory.close()
        assert not engine().teardown.settle(0.1), "the teardown has seen the wait"
        child.kill()
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)
        assert settle()


def exported(device: str) -> bytes:
    kept["event"] = xs.Event(device, enable_ipc=True)
    return bytes(xs.ipc.event.get(kept["event"]))


def test_memory_stays_until_the_work_of_others_has_finished(driver: ScriptedDriver, until: Until) -> None:
    """No queue of ours knows of the work."""
    stream, gate, seen = MockStream(), threading.Event(), []
    memory = xs.malloc_device(4096, "mock:0")
    settle()
    before = driver.library.ss_registrations()
    xs.Queue("mock:0").close()  # the device is in use
    stream.call(gate.wait)
    memory.close()
    assert not engine().teardown.settle(0.1), "nobody was held up, and nothing was unmapped"
    assert driver.library.ss_registrations() == before
    gate.set()
    until(lambda: driver.library.ss_registrations() == before - 1)
    stream.call(lambda: seen.append(1))
    until(lambda: seen)
    stream.close()


def as_import(export: Export) -> Import:
    fds = [OwnedFd(os.dup(fd)) for fd in export.fds]
    return Import(export.nbytes, export.exposed_nbytes, export.payload, fds, False)


@pytest.fixture
def host_memory(driver: ScriptedDriver, device: str) -> Iterator[tuple[HostMemory, Any]]:
    """Some, and what a peer makes of its export. In the end nothing is registered."""
    settle()
    before = books(driver)[2]
    of = Device(driver, int(device[-1]))
    memory = HostMemory.allocate(engine(), of, 100)
    yield memory, functools.partial(HostMemory.imported, engine(), of)
    memory.release()
    assert settle()
    assert books(driver)[2] == before


def test_host_memory_is_registered_on_both_sides(driver: ScriptedDriver, host_memory: tuple[HostMemory, Any]) -> None:
    memory, open_ = host_memory
    before = books(driver)[2]
    opened = open_(as_import(memory.export(False)))
    assert books(driver)[2] == before + 1
    assert opened.address != memory.address
    memoryview(_native.Span(memory.address, 100, False, memory))[:5] = b"hello"
    assert bytes(memoryview(_native.Span(opened.address, 100, True, opened))[:5]) == b"hello"
    opened.release()


@pytest.mark.parametrize("damage", ["size", "no fd", "two fds", "file", "not sealed"])
@pytest.mark.usefixtures("no_fd_leak")
def test_a_lying_exporter_is_refused(
    driver: ScriptedDriver, host_memory: tuple[HostMemory, Any], tmp_path: Path, damage: str
) -> None:
    memory, open_ = host_memory
    what = as_import(memory.export(False))
    before = books(driver)[2]
    if damage == "size":  # the table says more than there is
        what = what._replace(exposed_nbytes=2 * what.exposed_nbytes)
    elif damage == "no fd":
        what = what._replace(fds=[])
    elif damage == "two fds":
        what = what._replace(fds=[*what.fds, *as_import(memory.export(False)).fds])
    elif damage == "file":
        what = what._replace(fds=[OwnedFd(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))])
        os.ftruncate(what.fds[0].number, what.exposed_nbytes)
    else:
        what = what._replace(fds=[OwnedFd(os.memfd_create("it can shrink", os.MFD_ALLOW_SEALING))])
        os.ftruncate(what.fds[0].number, what.exposed_nbytes)
    with pytest.raises(xs.InvalidHandleError):
        open_(what)
    assert books(driver)[2] == before


@pytest.mark.parametrize("pattern", [b"a", b"ab", b"abcd", b"abc", b"abcdefgh", b"x" * 8, bytes(range(100))])
@pytest.mark.parametrize("shift", [0, 1])
def test_fills(device: str, pattern: bytes, shift: int) -> None:
    with xs.malloc_host(4096, device) as memory, xs.Queue(device) as queue:
        queue.fill(memory.slice(shift, 7 * len(pattern)), pattern)
        queue.synchronize(5)
        assert bytes(memoryview(memory)[: shift + 7 * len(pattern) + 1]) == bytes(shift) + pattern * 7 + b"\0"


def test_another_librarys_event(device: str) -> None:
    gate = threading.Event()
    with xs.Event.from_native(MockEvent(gate.wait, int(device[-1]))) as event:
        with pytest.raises(TimeoutError):
            event.wait(0.05)
        gate.set()
        event.wait(10)


def test_a_lost_device_loses_what_is_owed(device: str) -> None:
    def owe(handle: xs.ipc.Handle, device: str) -> None:
        event = kept["event"] = xs.ipc.event.open(handle, device=device)
        queue = kept["queue"] = xs.Queue(device)
        never = kept["never"] = xs.Event(device)
        queue.wait(never, at_least=1)
        queue.signal(event)
        mock_driver().fail("device_check", xs.DeviceError("", native=70), nth=0)

    with Child() as child, xs.Event(device, enable_ipc=True) as event:
        child.call(owe, xs.ipc.event.get(event), device)
        with pytest.raises(xs.PeerLostError, match="DeviceError: looking after a queue"):
            event.wait(10)


def test_a_process_that_owes_is_killed(device: str) -> None:
    def owe(handle: xs.ipc.Handle, device: str) -> None:
        event = kept["event"] = xs.ipc.event.open(handle, device=device)
        queue = kept["queue"] = xs.Queue(device)
        queue.wait(event, at_least=2)  # never
        kept["other"] = xs.Event(device)
        queue.signal(event)

    with Child() as child, xs.Event(device, enable_ipc=True) as event, xs.Event(device) as behind:
        child.call(owe, xs.ipc.event.get(event), device)
        with xs.Queue(device) as queue:
            queue.wait(event, at_least=1)
            queue.signal(behind)
            child.kill()
            killed = time.monotonic()
            with pytest.raises(xs.PeerLostError, match="died"):
                behind.wait(10)
            with pytest.raises(xs.PeerLostError, match="died"):
                queue.synchronize(10)
            assert time.monotonic() - killed < 5
            queue.synchronize(10)
