"""Unlucky neighbours and hostile peers: signal handlers, forks, limits, tables that lie."""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import os
import pickle
import signal
import struct
import sys
import threading
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peering import PAGE, exported, exported_event

import xpushare as xs
from harness import Child, kept, open_fds, program
from sampling import sampled
from xpushare import _native
from xpushare._native import NameLock
from xpushare.adapters.base import Form
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing import identity, naming, node, routes
from xpushare.sharing.handle import fields_of
from xpushare.sharing.peers import Opener, Peers


def test_a_handler_opens_what_is_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    nested: list[int] = []
    step = routes.meet

    def interrupted(handle: Any) -> Any:
        if not nested:
            nested.append(0)
            signal.raise_signal(signal.SIGUSR1)
        return step(handle)

    with Child() as child:
        handle = child.call(exported, "native_cpu:0")

        def handler(_number: int, _frame: object) -> None:
            with xs.ipc.memory.open(handle) as memory:
                nested.append(memory.nbytes)

        monkeypatch.setattr(routes, "meet", interrupted)
        old = signal.signal(signal.SIGUSR1, handler)
        try:
            with xs.ipc.memory.open(handle) as memory:
                assert memory.nbytes == PAGE
        finally:
            signal.signal(signal.SIGUSR1, old)
        assert nested == [0, PAGE]


def test_those_who_waited_for_a_failure_fail_with_it() -> None:
    peers, tries = Peers(), []
    first = threading.Event()

    def make() -> int:
        tries.append(1)
        first.wait(10)
        raise xs.RouteError("the exporter does not answer", reasons=("socket: stopped",))

    def attempt() -> None:
        try:
            peers.once("key", lambda: None, make)
        except xs.RouteError as error:
            failed.append(error)

    failed: list[xs.RouteError] = []
    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for each in threads:
        each.start()
    time.sleep(0.2)  # they cannot be seen to wait
    first.set()
    for each in threads:
        each.join(10)
    assert len(failed) == 8
    assert {error.reasons for error in failed} == {("socket: stopped",)}
    assert len(tries) < 8
    with pytest.raises(xs.RouteError):  # a later one tries again
        peers.once("key", lambda: None, make)


def test_a_fifo_as_the_key_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(xs.InvalidArgumentError, match="not a file"):
        identity.read_key(tmp_path / "key")


def test_a_table_cannot_claim_any_number_of_fds() -> None:
    host = Opener(lambda what: what, None, False)
    host.expect_fds(1, PAGE)
    with pytest.raises(xs.InvalidHandleError, match="not 1 at most"):
        host.expect_fds(2, 1 << 40)
    segments = Opener(lambda what: what, None, False, 4096)
    segments.expect_fds(3, PAGE)
    with pytest.raises(xs.InvalidHandleError, match="claims 1000000"):
        segments.expect_fds(1000000, 1 << 20)
    with pytest.raises(xs.OutOfMemoryError, match="ulimit"):
        segments.expect_fds(1 << 31, 1 << 60)


def test_an_open_of_a_million_fds_ends() -> None:
    def claim(raw: bytes) -> None:
        table = node.current().table()
        fields = fields_of(xs.ipc.Handle(raw))
        at = table.address + _native.LAYOUT["table.header"] + fields.entry * _native.LAYOUT["entry.size"]
        span = memoryview(_native.Span(at, _native.LAYOUT["entry.size"], False, table))
        struct.pack_into("<I", span, _native.LAYOUT["entry.fd_count"], 1_000_000)
        flags = _native.CONSTANTS["ENTRY_ON_DEMAND"] | Form.DRIVER << _native.CONSTANTS["ENTRY_FORM_BIT"]
        struct.pack_into("<I", span, _native.LAYOUT["entry.flags"], flags)

    with Child() as child:
        handle = bytes(child.call(exported, "native_cpu:0"))
        child.call(claim, handle)
        start = time.monotonic()
        with pytest.raises(xs.InvalidHandleError, match="claims 1000000 file descriptors"):
            xs.ipc.memory.open(handle)
        assert time.monotonic() - start < 5


def test_what_a_peer_says_is_printable() -> None:
    def fail() -> None:
        def work() -> None:
            raise ValueError("\x1b[2J\x1b]0;owned\x07 ok")

        queue = kept["queue"] = xs.Queue("native_cpu:0")
        queue.submit(work)
        queue.signal(kept["event"])

    with Child() as child:
        handle = child.call(exported_event, "native_cpu:0")
        with xs.ipc.event.open(handle) as event:
            child.call(fail)
            with pytest.raises(xs.PeerLostError) as caught:
                event.wait(10, at_least=1)
        assert " ok" in str(caught.value)
        assert str(caught.value).isprintable()


def test_a_program_that_ends_with_queued_work_ends() -> None:
    for _ in range(10):
        done = program('import xpushare as xs\nq = xs.Queue("native_cpu:0"); q.submit(int)')
        assert (done.returncode, done.stderr) == (0, "")


def test_a_queue_does_not_wait_for_itself() -> None:
    queue = xs.Queue("native_cpu:0")
    queue.submit(queue.synchronize)
    with pytest.raises(xs.InvalidArgumentError, match="itself"):
        queue.synchronize(10)
    queue.submit(int)
    queue.synchronize(10)


def test_a_queue_whose_thread_cannot_start_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, event = xs.Queue("native_cpu:0"), xs.Event("native_cpu:0")

    def refused(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refused)
        for operation in (lambda: queue.signal(event), lambda: queue.submit(int), lambda: queue.wait(event)):
            with pytest.raises(xs.OutOfMemoryError, match="thread"):
                operation()
        queue.synchronize(1)
    assert event.pending == 0
    assert queue.signal(event) == 1
    event.wait(10)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_another_thread_pickles() -> None:
    memory, stop = xs.malloc_device(PAGE, "native_cpu:0"), threading.Event()

    def pickle_on() -> None:
        while not stop.is_set():
            pickle.dumps(xs.malloc_device(PAGE, "native_cpu:0"))

    thread = threading.Thread(target=pickle_on)
    thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                signal.alarm(10)
                pickle.dumps(xs.malloc_device(PAGE, "native_cpu:0"))
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
    memory.close()


def taken_reap_bytes(handle: bytes) -> None:
    """Hold what whoever reaps a member holds, for all members but this one and the exporter."""
    kept["event"] = event = xs.ipc.event.open(handle, signals=False)
    domain = event._use().timeline.slot.domain
    for member in range(1, _native.LAYOUT["commons.member_count"]):
        if member != domain.member:
            fcntl.lockf(domain.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _native.LAYOUT["commons.reap"] + member)


def owing(handle: bytes, device: str, behind: bool) -> None:
    event = kept["event"] = xs.ipc.event.open(handle, device=device, signals=True)
    if behind:
        queue, gate = kept["queue"], kept["gate"] = xs.Queue(device), xs.Event(device)
        queue.wait(gate, at_least=1)
        assert queue.signal(event) == 1


@pytest.mark.parametrize("behind", [True, False], ids=["owed", "future"])
@pytest.mark.parametrize("device", sampled(["native_cpu:0", "mock:0", "mock:1"], ["native_cpu:0"]))
def test_nobody_lets_the_dead_be_reaped(device: str, behind: bool) -> None:
    """A reaper that is stopped, or never meant to reap."""
    with xs.Event(device, enable_ipc=True, signals=False) as event, Child() as reaper, xs.Queue(device) as queue:
        handle = bytes(xs.ipc.event.get(event))
        with Child() as owner:
            owner.call(owing, handle, device, behind)
            reaper.call(taken_reap_bytes, handle)
            queue.wait(event, at_least=1)
            owner.kill()
        start = time.monotonic()
        with pytest.raises(xs.PeerLostError, match="died" if behind else "lost"):
            event.wait(10, at_least=1)
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)
        assert time.monotonic() - start < 1
        assert event.value == event.pending
        reaper.kill()
        xs.ipc.event.put(handle)


def test_a_name_whose_remover_never_ends() -> None:
    """A dead publisher's file, and somebody who holds the lock of whoever removes it."""
    folder = identity.runtime_dir() / "names"
    with xs.malloc_device(PAGE, "native_cpu:0") as memory, Child() as child:
        xs.publish("name", memory)
        xs.unpublish("name")

        def hold(path: str) -> None:
            with open(path, "xb") as file:
                os.fchmod(file.fileno(), 0o600)
            kept["lock"] = NameLock.take(path, None, naming._REAPER_AT)

        child.call(hold, str(folder / "name"))
        start = time.monotonic()
        with pytest.raises(xs.InvalidArgumentError, match=f"process {child.pid}"):
            xs.publish("name", memory)
        assert time.monotonic() - start < 3
        child.kill()
        xs.publish("name", memory)
        xs.unpublish("name")


def test_made_up_members_and_slots_keep_nobody_busy() -> None:
    def make_up(handle: bytes) -> None:
        kept["event"] = event = xs.ipc.event.open(handle)
        domain, at = event._use().timeline.slot.domain, _native.LAYOUT

        def write(offset: int, content: bytes) -> None:
            memoryview(_native.Span(domain.address + offset, len(content), False, domain))[:] = content

        write(at["commons.slots_used"], b"\xff" * 8)
        for member in range(at["commons.member_count"]):
            write(at["commons.members"] + member * at["member.size"], b"\1")
        write(at["commons.roles"] + event._use().timeline.slot.index * 256, b"\xff" * 256)

    with Child() as exporter, Child() as attacker:
        handle = bytes(exporter.call(exported_event, "native_cpu:0"))
        with xs.ipc.event.open(handle) as event:
            attacker.call(make_up, handle)
            for call in (event.signal, lambda: event.wait(0.1, at_least=9), lambda: event.value):
                start = time.monotonic()
                with contextlib.suppress(TimeoutError, xs.XpuShareError):
                    call()
                assert time.monotonic() - start < 1.5
            start = time.monotonic()
            assert exporter.call(lambda: kept["event"].signal())
            assert time.monotonic() - start < 1.5


def test_an_event_whose_commons_does_not_know_it() -> None:
    def forget(handle: bytes) -> None:
        domain = xs.ipc.event.open(handle)._use().timeline.slot.domain
        at = domain.address + _native.LAYOUT["commons.slots_used"]
        memoryview(_native.Span(at, 4, False, domain))[:] = bytes(4)

    with Child() as exporter, Child() as attacker:
        handle = bytes(exporter.call(exported_event, "native_cpu:0"))
        with xs.ipc.event.open(handle):
            attacker.call(forget, handle)
            with pytest.raises(xs.InvalidHandleError, match="no such"):
                xs.ipc.event.open(handle)
        assert exporter.call(exported_event, "native_cpu:0")  # the exporter knows better
        exporter.call(lambda: xs.ipc.event.open(xs.ipc.event.get(kept["event"])).signal())


# --- bells, times, a full disk, interrupts ----------------------------------------------------------------------------


def clog_bells() -> int:
    """Fill every eventfd of this process, and have the next write to it block. Others have the same files."""
    clogged = 0
    for fd, what in open_fds().items():
        if "eventfd" not in what:
            continue
        os.set_blocking(fd, False)
        for shift in range(63, -1, -1):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(fd, 1 << shift)
        os.set_blocking(fd, True)
        clogged += 1
    return clogged


def test_a_full_bell_blocks_no_signal() -> None:
    def wait_in_vain(event: xs.Event) -> int:
        """Its commons have a warden to ring for, then."""
        kept["event"] = event
        with pytest.raises(TimeoutError):
            event.wait(0.05, at_least=1)
        return clog_bells()

    def signal_often() -> int:
        for _ in range(100):
            kept["event"].signal()
        return int(kept["event"].value)

    with Child() as victim, Child() as hostile:
        event = victim.call(exported_event, "native_cpu:0")
        assert hostile.call(wait_in_vain, xs.ipc.event.open(event)) > 0
        assert victim.call(signal_often) == 100


@pytest.mark.parametrize(
    "seconds",
    [float("nan"), -float("nan"), Decimal("nan"), Decimal("snan"), "1", b"1", memoryview(b"1"), [1], 1j],
)
@pytest.mark.parametrize("device", ["native_cpu:0", "mock:0"])
def test_a_time_that_is_no_number_is_refused(device: str, seconds: Any) -> None:
    with xs.Event(device) as event, xs.Queue(device) as queue:
        queue.wait(event, at_least=1)
        for call in (
            lambda: event.wait(seconds, at_least=1),
            lambda: event.wait(seconds),  # for a point that is complete
            lambda: queue.synchronize(seconds),
            lambda: xs.lookup("never", timeout=seconds),
        ):
            with pytest.raises(xs.InvalidArgumentError, match="a number"):
                call()
        event.signal()
        queue.synchronize(float("inf"))
        queue.synchronize(10**400)


@pytest.mark.parametrize("seconds", [np.float32(1e-3), np.int8(0), Fraction(1, 1000), Decimal("0.001"), 0, False])
@pytest.mark.parametrize("device", ["native_cpu:0", "mock:0", "mock:1"])
def test_every_real_number_is_a_time(device: str, seconds: Any) -> None:
    with xs.Event(device) as event, xs.Queue(device) as queue:
        queue.wait(event, at_least=1)
        for call in (
            lambda: event.wait(seconds, at_least=1),
            lambda: queue.synchronize(seconds),
            lambda: xs.lookup("never", timeout=seconds),
        ):
            with pytest.raises(TimeoutError, match=f" {float(seconds):g} s"):
                call()
        event.signal()
        event.wait(seconds, at_least=1)


@pytest.mark.parametrize(
    "seconds", [-1, -1e-9, -float("inf"), -(10**400), Fraction(-1), Decimal("-1e400"), np.int8(-1)]
)
def test_a_time_below_0_has_passed(seconds: Any) -> None:
    """As what is left until a deadline may be. What is there already is taken all the same."""
    xs.publish("here", xs.zeros(3))
    go, number = threading.Event(), xs.Atomic()
    with (
        xs.Event("native_cpu:0") as event,
        xs.Queue("native_cpu:0") as queue,
        xs.Channel.create("frames", 3),
        xs.Channel.open("frames", timeout=seconds) as channel,
        xs.watch("here") as watch,
    ):
        event.wait(seconds, at_least=0)
        number.wait(1, seconds)  # it already differs
        xs.lookup("here", timeout=seconds)
        watch.next(seconds)
        queue.submit(go.wait)
        queue.signal(event)
        for call in (
            lambda: event.wait(seconds, at_least=2),
            lambda: xs.wait_any([event], seconds),
            lambda: channel.receive(seconds),
            lambda: xs.Channel.open("never", timeout=seconds),
            lambda: number.wait(0, seconds),
            lambda: xs.lookup("never", timeout=seconds),
            lambda: watch.next(seconds),
        ):
            with pytest.raises(TimeoutError, match="0 s"):
                call()
        with pytest.raises(xs.InvalidArgumentError, match="0 or more"):
            queue.synchronize(seconds)
        go.set()
        queue.synchronize()
    xs.unpublish("here")
    number.close()


@pytest.mark.parametrize("huge", [10**400, Fraction(10**400), Decimal("1e400")])
def test_times_that_no_float_holds(huge: Any) -> None:
    with xs.Event("native_cpu:0") as event, xs.Queue("native_cpu:0") as queue:
        for call in (lambda: event.wait(-huge, at_least=1), lambda: xs.lookup("never", timeout=-huge)):
            with pytest.raises(TimeoutError):
                call()
        with pytest.raises(xs.InvalidArgumentError, match="0 or more"):
            queue.synchronize(-huge)
        queue.submit(event.signal)
        event.wait(huge, at_least=1)
        queue.synchronize(huge)


def test_a_key_on_a_full_disk(tmp_path: Path) -> None:
    def share_on_a_full_disk() -> None:
        def full(*_arguments: object) -> bytes:
            raise OSError(28, "No space left on device")

        os.urandom = full  # what the file is written with: the disk takes no more of it
        xs.share(xs.empty(3))

    with Child(env={"XPUSHARE_RUNTIME_DIR": str(tmp_path / "runtime")}) as child:
        with pytest.raises(xs.OutOfMemoryError, match=r"making the key .*No space left"):
            child.call(share_on_a_full_disk)
        assert os.listdir(tmp_path / "runtime") == []


@pytest.mark.parametrize("nth", range(1, 5))
def test_an_interrupted_close_leaks_nothing(nth: int) -> None:
    fds = [OwnedFd.memfd("closed"), OwnedFd.memfd("closed, too")]
    calls = iter(range(1, 100))

    def interrupt(frame: Any, event: str, _argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code is close_all.__code__ and next(calls) == nth:
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        close_all(fds)
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    assert all(each.number >= 0 or each.number == -1 for each in fds)
    open_ones = sum(each.number >= 0 for each in fds)
    assert sum("memfd:closed" in name for name in open_fds().values()) == open_ones
    fds.clear()
    assert not any("memfd:closed" in name for name in open_fds().values())
