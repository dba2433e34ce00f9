"""Who is relied on for a signal that nobody has submitted yet, and when a wait for it is lost (API, section 5)."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare import _native

DEVICE = "native_cpu:0"
SOON = 1.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "supervised_producer.py"
A_MOMENT = 0.1  # a wait that is not lost is still not lost after it


def exported(signals: bool | None = None) -> xs.ipc.Handle:
    event = kept["event"] = xs.Event(DEVICE, enable_ipc=True, signals=signals)
    return xs.ipc.event.get(event)


def opened(handle: xs.ipc.Handle, signals: bool | None = None, name: str = "event") -> None:
    kept[name] = xs.ipc.event.open(handle, signals=signals)


def signalled() -> int:
    event: xs.Event = kept["event"]
    return event.signal()


def closed(name: str = "event") -> None:
    kept.pop(name).close()


def unpickled(raw: bytes) -> bytes:
    """Open an event's pickle, which says signals=False; a pickle of that."""
    event = kept["event"] = pickle.loads(raw)
    with pytest.raises(xs.InvalidArgumentError, match="signals=False"):
        event.signal()
    return pickle.dumps(event)


def lost(point: int) -> tuple[str, float]:
    """Wait for the loss of a point; what it said, and when."""
    with pytest.raises(xs.PeerLostError) as caught:
        kept["event"].wait(10, at_least=point)
    return str(caught.value), time.monotonic()


def pending(event: xs.Event, point: int) -> None:
    with pytest.raises(TimeoutError):
        event.wait(A_MOMENT, at_least=point)


def ended(child: Child, how: str) -> float:
    if how == "kill":
        child.kill()
    else:
        assert child.exit() == 0
    return time.monotonic()


@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.parametrize("first", ["declared", "signalled"])
def test_a_publisher_with_several_readers_goes(first: str, how: str, peer: Child, other: Child) -> None:
    with Child() as publisher:
        handle = publisher.call(exported, True if first == "declared" else None)
        for reader in (peer, other):
            reader.call(opened, handle)
        if first == "signalled":
            assert publisher.call(signalled) == 1
            for reader in (peer, other):
                reader.call(lambda: kept["event"].wait(10, at_least=1))
        waits = [reader.start(lost, 2) for reader in (peer, other)]
        with xs.ipc.event.open(handle) as late, xs.Queue(DEVICE) as queue:
            queue.wait(late, at_least=2)
            when = ended(publisher, how)
            for wait in waits:
                text, told = wait.result()
                assert told - when < SOON
                gone = f"process {publisher.pid} exited" if first == "declared" else "has gone"  # it never signalled
                assert (f"process {publisher.pid} died" if how == "kill" else gone) in text
            with pytest.raises(xs.PeerLostError):
                queue.synchronize(10)
            assert time.monotonic() - when < SOON
            # Whoever asks later is told at once, in an event loop, too.
            with pytest.raises(xs.PeerLostError):
                late.wait(10, at_least=2)
            with pytest.raises(xs.PeerLostError):
                asyncio.run(late.reached(2))
            # One of them takes over.
            assert peer.call(signalled) == (1 if first == "declared" else 2)
            late.wait(10, at_least=1)
            pending(late, 3)


def test_readers_that_only_wait_rely_on_the_publisher_alone(peer: Child, other: Child) -> None:
    with Child() as publisher:
        handle = publisher.call(exported)
        for reader in (peer, other):
            reader.call(opened, handle, False)
        waits = [reader.start(lost, 1) for reader in (peer, other)]
        when = ended(publisher, "kill")
        assert all(wait.result()[1] - when < SOON for wait in waits)


@pytest.mark.parametrize("signals", [True, None])
def test_several_producers_one_consumer(event: xs.Event, peer: Child, signals: bool | None) -> None:
    with Child() as worker:
        for each in (worker, peer):
            each.call(opened, kept["handle"], signals)
        worker.kill()
        pending(event, 1)  # the other one has yet to signal
        assert peer.call(signalled) == 1
        event.wait(10, at_least=1)
        peer.call(closed)


def test_workers_that_come_and_go(event: xs.Event, peer: Child, other: Child) -> None:
    for point, worker in enumerate((peer, other, peer), 1):
        worker.call(opened, kept["handle"], True)
        pending(event, point)
        assert worker.call(signalled) == point
        worker.call(closed)
        event.wait(10, at_least=point)
        pending(event, point + 1)


def test_a_worker_that_died_is_replaced(event: xs.Event, peer: Child) -> None:
    for point in (1, 2):
        with Child() as worker:
            worker.call(opened, kept["handle"], True)
            when = ended(worker, "kill")
            text = f"signal {point} of the event is lost: process {worker.pid} died"
            with pytest.raises(xs.PeerLostError, match=text) as caught:
                event.wait(10, at_least=point)
            (note,) = caught.value.__notes__
            assert f"what process {worker.pid} printed" in note
            assert "event.recovered() waits" in note
            assert time.monotonic() - when < SOON
        peer.call(opened, kept["handle"], True)  # the loss ends
        pending(event, point)
        assert peer.call(signalled) == point
        peer.call(closed)
        pending(event, point + 1)  # cleanly: no loss


def test_a_death_that_nobody_saw_ends_with_the_next_worker(event: xs.Event, peer: Child, other: Child) -> None:
    other.call(lambda: None)  # it is there before
    with Child() as worker:
        peer.call(opened, kept["handle"], False)  # has an index of the exporter's, so that nobody needs the dead one's
        worker.call(opened, kept["handle"], True)
    other.call(opened, kept["handle"], True)
    assert other.call(signalled) == 1
    other.call(closed)
    pending(event, 2)
    peer.call(closed)


def test_a_reader_that_dies_is_no_loss(event: xs.Event) -> None:
    with Child() as reader:
        reader.call(opened, kept["handle"])
        assert event.signal() == 1
        reader.kill()
        pending(event, 2)
        assert event.signal() == 2


def test_a_reader_that_died_before_the_last_signaller_closed(event: xs.Event, peer: Child) -> None:
    peer.call(opened, kept["handle"], True)
    with Child() as reader:
        reader.call(opened, kept["handle"])
    peer.call(closed)
    pending(event, 1)


def test_ping_pong(event: xs.Event, peer: Child) -> None:
    with Child() as partner:
        partner.call(opened, kept["handle"])
        for point in (1, 3):
            assert event.signal() == point
            assert partner.call(signalled) == point + 1
        assert event.signal() == 5
        when = ended(partner, "kill")
        with pytest.raises(xs.PeerLostError):
            event.wait(10, at_least=6)
        assert time.monotonic() - when < SOON
    assert event.signal() == 6  # told, and goes on: nobody answers that either
    with pytest.raises(xs.PeerLostError):
        event.wait(10, at_least=7)
    peer.call(opened, kept["handle"])
    assert peer.call(signalled) == 7
    event.wait(10, at_least=7)
    pending(event, 8)
    peer.call(closed)


def test_the_first_serve_after_a_death(event: xs.Event) -> None:
    with Child() as partner:
        partner.call(opened, kept["handle"])
        partner.kill()
        with pytest.raises(xs.PeerLostError):
            event.wait(10, at_least=1)
    assert event.signal() == 1
    with pytest.raises(xs.PeerLostError):
        event.wait(10, at_least=2)


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_the_exporter_is_a_bystander(how: str, peer: Child) -> None:
    with Child() as exporter:
        handle = exporter.call(exported)
        with xs.ipc.event.open(handle) as event:
            peer.call(opened, handle)
            assert peer.call(signalled) == 1
            ended(exporter, how)
            pending(event, 2)  # the signaller lives
            peer.call(closed)  # and nobody can join any more
            with pytest.raises(xs.PeerLostError):
                event.wait(10, at_least=2)


def test_a_stopped_process_is_alive(peer: Child) -> None:
    with Child() as publisher:
        handle = publisher.call(exported, True)
        peer.call(opened, handle)
        with xs.ipc.event.open(handle) as event:
            os.kill(publisher.pid, signal.SIGSTOP)
            try:
                pending(event, 1)
            finally:
                os.kill(publisher.pid, signal.SIGCONT)
            assert publisher.call(signalled) == 1
            event.wait(10, at_least=1)


@pytest.mark.parametrize("left", [True, False])
def test_a_handle_opened_again(event: xs.Event, left: bool) -> None:
    """A process is a signaller until the last of its objects that may signal is closed."""
    with Child() as worker:
        worker.call(opened, kept["handle"], True)
        worker.call(opened, kept["handle"], None, "again")
        worker.call(opened, kept["handle"], False, "reader")
        worker.call(closed)
        if not left:
            worker.call(closed, "again")
        when = ended(worker, "kill")
        if left:
            with pytest.raises(xs.PeerLostError):
                event.wait(10, at_least=1)
            assert time.monotonic() - when < SOON
        else:
            pending(event, 1)


def test_only_waits_is_pickled_on(event: xs.Event, peer: Child) -> None:
    with Child() as reader, xs.Queue(DEVICE) as queue:
        with xs.ipc.event.open(kept["handle"], signals=False) as only:
            raw = pickle.dumps(only)
            with pytest.raises(xs.InvalidArgumentError, match="signals=False"):
                queue.signal(only)
        peer.call(unpickled, reader.call(unpickled, raw))
        reader.kill()
        pending(event, 1)  # nobody relied on it
        peer.call(closed)


def test_whoever_says_that_it_signals_does_not_speak_for_others(peer: Child) -> None:
    """A publisher's event goes to its readers as a pickle: they are not signallers by that."""
    with Child() as publisher:
        raw = publisher.call(lambda: (exported(True), pickle.dumps(kept["event"]))[1])
        peer.call(lambda raw: kept.__setitem__("event", pickle.loads(raw)), raw)
        event: xs.Event = pickle.loads(raw)
        publisher.kill()
        with pytest.raises(xs.PeerLostError):
            event.wait(10, at_least=1)
        event.close()


def test_signals_is_checked() -> None:
    wrong: Any = 1
    make: Callable[..., Any]
    with pytest.raises(xs.InvalidArgumentError, match="signals"):
        xs.Event(DEVICE, signals=wrong)
    with xs.Event(DEVICE, enable_ipc=True, signals=False) as event:
        with pytest.raises(xs.InvalidArgumentError, match="signals=False"):
            event.signal()
        make = xs.ipc.event.open
        handle = xs.ipc.event.get(event)
        with make(handle, signals=True) as own:
            assert own.signal() == 1
            event.wait(0, at_least=1)
        xs.ipc.event.put(handle)


def test_a_wait_in_a_thread_hears_of_a_close(peer: Child, other: Child) -> None:
    """What ends a wait may also be a clean close: nothing dies at that moment."""
    with Child() as exporter:
        handle = exporter.call(exported)
        for each in (peer, other):
            each.call(opened, handle)
        assert peer.call(signalled) == 1
        ended(exporter, "exit")
        wait = other.start(lost, 2)
        wait_until(lambda: not wait.done())
        peer.call(closed)
        when = time.monotonic()
        assert wait.result()[1] - when < SOON


def test_a_peer_takes_a_point_back(event: xs.Event) -> None:
    """The slot is writable by every peer: what a lie leads to is an error of the package."""
    gate = threading.Event()
    with xs.Queue(DEVICE) as queue:
        queue.submit(gate.wait)
        assert queue.signal(event) == 1
        _native.store64(event._use().timeline.slot.address + _native.LAYOUT["slot.pending"], 0)
        gate.set()
        with pytest.raises(xs.PeerLostError, match="damaged"):
            queue.synchronize(10)
        queue.synchronize(10)


@pytest.mark.exhaustive
def test_the_supervisor_of_a_producer() -> None:
    command = [sys.executable, str(EXAMPLE), "--readers", "3", "--restarts", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "3 readers went on through 1 restarts of the producer\n"), done.stderr


def publishing(names: tuple[str, str], number: int) -> None:
    frame, ready = kept["frame"], kept["event"] = xs.empty(1024, "int64"), xs.Event(enable_ipc=True, signals=True)
    np.asarray(frame)[:] = number
    for name, thing in zip(names, (frame, ready), strict=True):
        xs.publish(name, thing)


def test_a_producer_that_dies_between_the_looks_at_its_names(peer: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("supervised_producer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    names, looks, replaced = ("frame", "ready"), itertools.count(1), threading.Event()
    lookup = xs.lookup
    results: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    with Child() as first:
        first.call(publishing, names, 1)

        def look(name: str, timeout: float) -> xs.ipc.Handle | xs.ArrayHandle:
            if next(looks) == 2:
                first.kill()
                peer.call(publishing, names, 1000)
                replaced.set()
            return lookup(name, timeout=timeout)

        monkeypatch.setattr(xs, "lookup", look)
        reader = threading.Thread(target=example.read, args=(names, 1000, results), daemon=True)
        reader.start()
        assert replaced.wait(20)
        end = time.monotonic() + 20
        while results.empty():
            assert time.monotonic() < end, "the reader has a dead frame"
            peer.call(signalled)
        assert results.get() == (1, 1000)
        reader.join()
    for name in names:
        peer.call(xs.unpublish, name)


def waiting_by_a_closed_object(handle: xs.ipc.Handle, point: int) -> None:
    event = xs.ipc.event.open(handle)
    event.signal()
    threading.Thread(target=event.wait, args=(20,), kwargs={"at_least": point}, daemon=True).start()
    slot = event._use().timeline.slot
    wait_until(lambda: _native.load64(slot.address + _native.LAYOUT["slot.seq"]) >> 32)
    event.close()


def test_a_closed_object_by_which_somebody_waits_is_no_signaller(event: xs.Event, peer: Child) -> None:
    assert event.signal() == 1  # so the peer has somebody to wait for
    peer.call(waiting_by_a_closed_object, kept["handle"], 5)
    with Child() as worker:
        worker.call(opened, kept["handle"], True)
        when = ended(worker, "kill")
        with pytest.raises(xs.PeerLostError):
            event.wait(10, at_least=3)
        assert time.monotonic() - when < SOON
    for _ in range(3):
        event.signal()  # lets that wait end
