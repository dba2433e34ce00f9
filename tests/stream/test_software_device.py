"""The rules of the stream engine on the software device, by the public API: failures, stalls, orderings, deaths."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept
from xpushare import adapters
from xpushare.adapters.mock import MockEvent, MockStream, ScriptedDriver
from xpushare.adapters.mock import driver as mock_driver
from xpushare.adapters.stream.adapter import StreamAdapter

Until = Callable[..., None]
DEVICES = ["mock:0", "mock:1"]  # device ordering, held ordering
# What gives back, and so cannot fail and leave nothing; what looks at the device once it is broken.
GIVES_BACK = {"stream_destroy", "mark_destroy", "unregister", "device_synchronize", "device_check", "stream_query"}


def settle() -> bool:
    gc.collect()
    found = adapters.adapter("mock")
    assert isinstance(found, StreamAdapter)
    return found.engine.teardown.settle(10)


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


def test_each_failing_call_leaves_nothing(driver: ScriptedDriver, device: str, until: Until) -> None:
    scenario(device)
    settle()
    until(lambda: (settle(), books(driver)[0])[1] == 0)
    before = books(driver)
    driver.reset()
    scenario(device)
    until(lambda: (settle(), books(driver))[1] == before)
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
            until(lambda: (settle(), books(driver))[1] == before)
    scenario(device)


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


def test_a_thread_that_always_has_a_queue_waiting_goes_on(driver: ScriptedDriver, until: Until) -> None:
    """Only this thread signals what its queue waits for. Memory that it frees meanwhile is given back later."""
    found = adapters.adapter("mock")
    assert isinstance(found, StreamAdapter)
    teardown = found.engine.teardown
    settle()
    driver.reset()  # the counts
    before, patience = driver.library.ss_registrations(), teardown.patience
    with xs.Queue("mock:0") as queue, xs.Event("mock:0") as event:
        try:
            teardown.patience = 0.01
            queue.wait(event, at_least=1)
            xs.malloc_device(4096, "mock:0").close()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                queue.wait(event, at_least=event.value + 2)
                event.signal()
            assert not driver.counts["device_synchronize"], "the device was drained, and the thread not held up"
            assert driver.library.ss_registrations() > before
        finally:
            teardown.patience = patience
        event.signal()
        until(lambda: driver.counts["device_synchronize"])
        assert settle()


def test_memory_stays_until_the_work_of_others_has_finished(driver: ScriptedDriver, until: Until) -> None:
    """No queue of ours knows of the work."""
    stream, gate, seen = MockStream(), threading.Event(), []
    memory = xs.malloc_device(4096, "mock:0")
    settle()
    before = driver.library.ss_registrations()
    xs.Queue("mock:0").close()  # the device is in use
    stream.call(gate.wait)
    memory.close()
    found = adapters.adapter("mock")
    assert isinstance(found, StreamAdapter)
    assert not found.engine.teardown.settle(0.1), "nobody was held up, and nothing was unmapped"
    assert driver.library.ss_registrations() == before
    gate.set()
    until(lambda: driver.library.ss_registrations() == before - 1)
    stream.call(lambda: seen.append(1))
    until(lambda: seen)
    stream.close()


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
