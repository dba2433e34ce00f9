"""The engine's parts, each for itself: fills, peer access, event pages, teardown, watch, payloads."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import re
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from software import Device

import xpushare as xs
from xpushare import _native, adapters
from xpushare.adapters.base import Import
from xpushare.adapters.stream import background, memory
from xpushare.adapters.stream.background import Teardown, Watch
from xpushare.adapters.stream.engine import SlotPages
from xpushare.adapters.stream.listing import ask_child
from xpushare.adapters.stream.queue import Copy, Fill, fill_steps
from xpushare.adapters.virtual_memory.engine import PeerAccess
from xpushare.common import threads

Until = Callable[..., None]


@pytest.mark.parametrize("package", ["stream", "virtual_memory"])
def test_what_vendors_share_names_none(package: str) -> None:
    words = re.compile(r"\b(cuda|nvidia|hip|rocm|amd|intel|opencl|level.?zero)\b", re.IGNORECASE)
    calls = re.compile(r"\b(cu|hip|zex?|cl)[A-Z]\w+")
    files = list((Path(adapters.__file__).parent / package).glob("*.py"))
    assert files
    for file in files:
        for line in file.read_text().splitlines():
            assert not words.search(line), f"{file}: {line}"
            assert not calls.search(line), f"{file}: {line}"


# --- fills


@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 8, 16, 63, 64, 65, 200])
def test_fills(length: int) -> None:
    for units, shift, times in itertools.product([(1,), (1, 2, 4), (1, 2, 4, 8, 16)], [0, 1, 2, 4], [1, 2, 7]):
        check_fill(units, length, shift, times)


def check_fill(units: tuple[int, ...], length: int, shift: int, times: int) -> None:
    base, stage_at = 1024, 64 * 1024
    memory = bytearray(b"\xee" * (stage_at + 1024))
    pattern = bytes((7 * i + 1) % 256 for i in range(length))
    staged: list[bytes] = []

    def stage(content: bytes) -> int:
        staged.append(content)
        memory[stage_at : stage_at + len(content)] = content
        return stage_at

    for step in fill_steps(base + shift, pattern, times * length, units, stage):
        if isinstance(step, Copy):
            assert step.dst + step.nbytes <= step.src or step.src + step.nbytes <= step.dst, "copies overlap"
            memory[step.dst : step.dst + step.nbytes] = memory[step.src : step.src + step.nbytes]
        else:
            assert len(step.pattern) in units
            assert step.dst % len(step.pattern) == 0
            memory[step.dst : step.dst + len(step.pattern) * step.times] = step.pattern * step.times
    start = base + shift
    assert bytes(memory[start : start + times * length]) == pattern * times
    assert (memory[start - 1], memory[start + times * length]) == (0xEE, 0xEE)
    assert bool(staged) == (length > 64)


def test_one_fill_where_the_device_has_the_pattern() -> None:
    def stage(_content: bytes) -> int:
        raise AssertionError

    assert fill_steps(64, b"aaaaaaaa", 80, (1, 4), stage) == [Fill(64, b"a", 80)]
    assert fill_steps(64, b"abcd", 80, (1, 4), stage) == [Fill(64, b"abcd", 20)]


# --- peer access


@pytest.fixture
def devices() -> list[Any]:
    return [Device(0), Device(1), Device(2)]


@pytest.fixture
def access(devices: list[Any]) -> PeerAccess:
    return PeerAccess(lambda: devices)


def test_access_goes_to_the_devices_in_use_that_reach_the_memory(access: PeerAccess, devices: list[Any]) -> None:
    devices[1].used = False
    devices[2].peers = {2}
    access.grant(devices[0], "opening", 0x1000, 0x100, 0, "rw")
    assert devices[0].log == [("set_access", 0x1000, 0x100, (0,), "rw")]
    assert not access.lacking(0, 0x1000, 0x100)
    assert access.lacking(1, 0x10FF, 0x1000)
    assert not access.lacking(1, 0x1100, 0x1000), "these bytes nobody has mapped"
    access.ensure(1, 0x1080, 1)
    assert not access.lacking(1, 0x1000, 0x100)
    access.ensure(1, 0x1000, 0x100)
    access.ensure(2, 0x1000, 0x100)
    assert devices[1].log == [("set_access", 0x1000, 0x100, (1,), "rw")], "once"
    assert not devices[2].log, "it does not reach the memory"
    with pytest.raises(xs.FeatureNotSupportedError, match="device 2 cannot reach memory of device 0"):
        access.grant(devices[2], "opening", 0x9000, 0x100, 0, "r")


def test_what_was_unmapped_gets_no_access(access: PeerAccess, devices: list[Any]) -> None:
    access.note(0x1000, 0x300, 0, "r", frozenset({0}))
    access.note(0x2000, 0x100, 0, "r", frozenset({0}))
    access.forget(0x1100, 0x100)  # its ends stay
    access.ensure(1, 0x1100, 0x100)
    assert not devices[1].log
    access.ensure(1, 0x1000, 0x2000)
    assert devices[1].log == [("set_access", start, 0x100, (1,), "r") for start in (0x1000, 0x1200, 0x2000)]
    access.forget(0, 0x10000)
    access.ensure(2, 0, 0x10000)
    assert not devices[2].log


def test_one_device_needs_no_books() -> None:
    only: Any = Device(0)
    access = PeerAccess(lambda: [only])
    access.grant(only, "opening", 0x1000, 0x100, 0, "rw")
    assert not access.lacking(0, 0x1000, 0x100)
    assert only.log == [("set_access", 0x1000, 0x100, (0,), "rw")]


# --- teardown


class Queue:
    """A queue as teardown knows it."""

    def __init__(self) -> None:
        self.waited: list[tuple[_native.Slot, int]] = []
        self.place = self.reached = 0
        self.settled = 0

    def waits(self) -> list[Callable[[], bool]]:
        return [functools.partial(self.pending, *wait) for wait in self.waited]

    def pending(self, slot: _native.Slot, point: int) -> bool:
        return slot.state(point) == _native.PENDING

    def handed(self) -> int:
        return self.reached

    def settle(self) -> None:
        self.settled += 1


def test_teardowns_come_after_the_work_of_active_devices(devices: list[Any]) -> None:
    devices[1].used = False
    teardown = Teardown("test", lambda: devices)
    assert teardown.settle(5), "nothing was asked for"
    devices[0].drained.clear()
    done: list[int] = []
    first = teardown.submit(devices[0], done.append, 1)
    second = teardown.submit(devices[0], done.append, 2)
    assert not first.wait(0.05)
    assert not done
    assert not teardown.settle(0.01)
    devices[0].drained.set()
    assert teardown.settle(5)
    assert first.is_set()
    assert second.is_set()
    assert done == [1, 2]
    assert ("drain",) in devices[0].log
    assert not devices[1].log


def test_a_long_wait_for_a_device_makes_the_next_teardowns_gather_longer(
    devices: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that allocations, which may stand still during the wait, do so for a small part of the time."""
    took, clock = iter([0.001, 0.03, 7.0, 0.001]), [0.0]
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=time.sleep))
    monkeypatch.setattr(devices[0], "drain", lambda: clock.__setitem__(0, clock[0] + next(took)))
    teardown = Teardown("test", lambda: devices[:1])
    gathered: list[float | None] = []

    class Hurried(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            gathered.append(timeout)
            return True

    teardown._hurried = Hurried()
    for _ in range(4):
        assert teardown.submit(devices[0], lambda: None).wait(5)
    assert gathered == pytest.approx([0.02, 0.02, 0.3, 0.5])


def test_a_failing_teardown_is_logged_and_the_next_runs(devices: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    teardown = Teardown("test", lambda: devices)
    devices[0].fail["drain"] = 70
    devices[0].fail["unreach"] = 70
    with caplog.at_level(logging.WARNING, "xpushare.test"):
        failed = teardown.submit(devices[0], devices[0].unreach, "unmapping", 1)
        done = teardown.submit(devices[0], lambda: None)
        assert failed.wait(5)
        assert done.wait(5)
    assert "unmapping: unreach failed with ERROR_70 (70); end this process" in caplog.text


def test_no_device_is_drained_while_a_queue_waits_for_a_point(
    devices: list[Any], new_slot: Callable[[], _native.Slot]
) -> None:
    """Draining may hold up the very thread that is to signal the point."""
    teardown, queue, slot = Teardown("test", lambda: devices), Queue(), new_slot()
    teardown.register(queue)
    queue.waited = [(slot, 1)]
    done = teardown.submit(devices[0], lambda: None)
    assert not done.wait(0.1)
    assert not devices[0].log
    assert teardown.wait_lock.acquire(timeout=1), "queues may go on to wait for points"
    teardown.wait_lock.release()
    queue.waited = []
    slot.signal()
    assert done.wait(5)


def test_a_moment_without_waits_is_made_where_there_is_none(
    devices: list[Any], new_slot: Callable[[], _native.Slot]
) -> None:
    """The queue waits for the next point before the last one comes."""
    teardown, queue, slots = Teardown("test", lambda: devices), Queue(), itertools.cycle([new_slot(), new_slot()])
    teardown.register(queue)
    devices[0].drain = lambda: drained.append(any(slot.value < point for slot, point in queue.waited))
    drained: list[bool] = []
    waiting: deque[_native.Slot] = deque()
    done: threading.Event | None = None
    end = time.monotonic() + 20
    while done is None or not done.is_set():
        assert time.monotonic() < end
        may_wait = teardown.wait_lock.acquire(timeout=0.02)
        if may_wait:
            waiting.append(next(slots))
            queue.waited = [*queue.waited[-1:], (waiting[-1], waiting[-1].value + 1)]
            teardown.wait_lock.release()
        if len(waiting) > 1 or (waiting and not may_wait):
            waiting.popleft().signal()
        done = done or teardown.submit(devices[0], lambda: None)
    assert drained == [False], "nothing waited then"


def test_no_device_is_drained_before_it_has_what_queues_hold(devices: list[Any]) -> None:
    teardown, queue = Teardown("test", lambda: devices), Queue()
    teardown.register(queue)
    queue.place, queue.reached = 5, 4
    done = teardown.submit(devices[0], lambda: None)
    assert not done.wait(0.1)
    assert not devices[0].log
    queue.place = 9  # what comes later is not waited for
    queue.reached = 5
    assert done.wait(5)


def test_looks_come_between_teardowns_until_one_says_no(devices: list[Any]) -> None:
    teardown, looks = Teardown("test", lambda: devices), [0]
    torn: list[threading.Event] = []

    def look() -> bool:
        looks[0] += 1
        if looks[0] == 2:
            torn.append(teardown.submit(devices[0], lambda: None))
        elif looks[0] == 4:
            over.set()
        return looks[0] < 4

    over = threading.Event()
    assert teardown.look_after(look)
    assert over.wait(5)
    assert torn[0].wait(5)
    assert teardown.settle(5)
    again = threading.Event()
    teardown.look_after(lambda: bool(again.set()))
    assert again.wait(5)
    assert looks == [4], "the one that said no is not asked again"


def test_settling_queues(devices: list[Any]) -> None:
    teardown, queue = Teardown("test", lambda: devices), Queue()
    teardown.register(queue)
    teardown.settle_queues()
    assert queue.settled == 1
    gone = weakref.ref(queue)
    del queue
    gc.collect()
    assert gone() is None, "teardown keeps no queue"


# --- watch


class Owing:
    def __init__(self, looks: int, error: BaseException | None = None) -> None:
        self.looks, self.error = looks, error
        self.looked = 0

    def settled(self) -> bool:
        return self.looked == self.looks

    def look_after(self) -> bool:
        self.looked += 1
        if self.error is not None:
            raise self.error
        return self.looked < self.looks


def test_the_watch_looks_until_nothing_is_owed(until: Until, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch("test")
    twice, failing, later = Owing(2), Owing(9, xs.DeviceError("it broke")), Owing(1)
    with caplog.at_level(logging.WARNING, "xpushare.test"):
        watch.add(failing)
        watch.add(twice)
        until(twice.settled)
    assert failing.looked == 1
    assert "it broke" in caplog.text
    gone = weakref.ref(twice)
    del twice
    watch.add(later)
    until(later.settled)
    until(lambda: gone() is None)


# --- event pages


def test_pages_are_reached_once_and_left_with_their_commons(new_slot: Callable[[], _native.Slot]) -> None:
    device: Any = Device()
    teardown = Teardown("test", lambda: [device])
    pages = SlotPages(teardown)
    slot, other = new_slot(), new_slot()
    with pytest.raises(xs.InvalidArgumentError, match="not made known"):
        pages.address(device, slot)
    assert pages.domain(slot) is None
    pages.adopt(slot.domain)
    pages.adopt(slot.domain)
    device.fail["reached"] = 2
    with pytest.raises(xs.OutOfMemoryError):
        pages.address(device, slot)
    assert not device.reachable, "a failure leaves nothing reached"
    device.fail.clear()
    words = [pages.address(device, each) for each in (slot, other, slot)]
    assert words[0] == words[2]
    assert words[1] - words[0] == other.address - slot.address
    assert len(device.reachable) == 1
    assert pages.domain(slot) is slot.domain
    slot.signal()
    assert _native.load64(words[0]) == 1, "the same memory, at another address"
    pages._forget(pages._known[0])  # as when the commons goes
    assert teardown.settle(5)
    assert not device.reachable
    with pytest.raises(xs.InvalidArgumentError, match="not made known"):
        pages.address(device, slot)


def test_a_driver_need_not_be_told_about_pages(new_slot: Callable[[], _native.Slot]) -> None:
    device: Any = Device()
    teardown = Teardown("test", lambda: [device])
    pages, slot = SlotPages(teardown, lambda _device: False), new_slot()
    pages.adopt(slot.domain)
    word = pages.address(device, slot)
    slot.signal()
    assert _native.load64(word) == 1
    device.drained.clear()
    pages._forget(pages._known[0])
    assert _native.load64(word) == 1, "work under way may use it"
    device.drained.set()
    assert teardown.settle(5)
    assert not {"reach", "unreach"} & {call[0] for call in device.log}


# --- payloads and children


def test_a_payload_that_contradicts_its_table_is_refused() -> None:
    export = memory.described(memory.SEGMENTS, 5, 4096, own=b"rest")
    assert (export.nbytes, export.exposed_nbytes) == (5, 4096)
    good = Import(5, 4096, export.payload, (), False)
    assert memory.read_head("opening", good) == (memory.SEGMENTS, b"rest")
    for wrong in (good._replace(payload=b"x"), good._replace(exposed_nbytes=8192), good._replace(nbytes=4097)):
        with pytest.raises(xs.InvalidHandleError):
            memory.read_head("opening", wrong)


def test_a_child_answers_for_the_driver() -> None:
    assert ask_child("print('{\"devices\": 2}')", "some") == {"devices": 2}
    assert ask_child('import sys; sys.exit(\'{"why": "none"}\')', "some") == {"why": "none"}
    assert "asking the some driver" in ask_child("1/0", "some")["why"]
    assert "answered 5" in ask_child("print(5)", "some")["why"]
    assert "ended with it" in ask_child("import sys; sys.exit('ended with it')", "some")["why"]
    answer = ask_child("import sys; sys.stdout.buffer.write(b'\\xff\\n{\"devices\": 2}\\n[3]\\n')", "some")
    assert answer == {"devices": 2}, "among what the driver writes"


FIRST, SECOND = "11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-aaaaaaaaaaaa"
SAID = f"""
import os, signal, sys, time
sys.path[:] = {sys.path!r}
from xpushare.adapters.stream.listing import trying
trying({FIRST!r})
trying({SECOND!r})
os.write(2, b"{FIRST}\\nxpushare is trying it\\nLLVM ERROR: in process %d\\n" % os.getpid())
"""
ANSWERED = """print('{"devices": 2}', flush=True)\n"""
CRASH, LEAVE, HANG = "os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(1)", "time.sleep(600)"


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (CRASH, "the some driver ended the process that asked it (SIGSEGV)"),
        (LEAVE, "LLVM ERROR: in process "),
        (HANG, "the some driver did not answer within 3 s"),
    ],
)
def test_a_child_ends_without_an_answer(end: str, why: str) -> None:
    """The device that it said last that it was trying is named, whatever else it wrote."""
    answer = ask_child(SAID + end, "some", 3 if end == HANG else 60)
    assert answer.keys() == {"why", "trying"}
    assert answer["trying"] == SECOND
    assert why in answer["why"]
    assert "import" not in answer["why"]
    assert ask_child("import os, signal\n" + CRASH, "some").keys() == {"why"}, "it tried nothing"


@pytest.mark.parametrize("end", [CRASH, LEAVE, HANG])
def test_a_child_ends_after_its_answer(end: str) -> None:
    """As when a driver's destructor crashes."""
    assert ask_child(SAID + ANSWERED + end, "some", 3 if end == HANG else 60) == {"devices": 2}


def test_a_finaliser_in_a_thread_that_starts(devices: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection that comes in the teardown thread before it counts as started may submit, too."""
    teardown = Teardown("early", lambda: devices)
    run: Callable[..., None] = threads._run
    early: list[threading.Event] = []

    def beginning(work: Any, name: str, *rest: Any) -> None:
        if name == "xpushare-early-teardown":
            early.append(teardown.submit(devices[0], lambda: None))
        run(work, name, *rest)

    monkeypatch.setattr(threads, "_run", beginning)
    assert teardown.submit(devices[0], lambda: None).wait(20)
    assert [done.wait(20) for done in early] == [True]


def test_threads_start_with_the_first_work(devices: list[Any]) -> None:
    before = set(threads._names.values())
    teardown = Teardown("lazy", lambda: devices)
    watch = Watch("lazy")
    assert set(threads._names.values()) == before
    assert teardown.submit(devices[0], lambda: None).wait(5)
    watch.add(Owing(1))
    names = set(threads._names.values()) - before
    assert names == {"xpushare-lazy-teardown", "xpushare-lazy-watch"}
