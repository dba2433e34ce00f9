"""What a device has queued behind a wait, and stores late: docs/events-protocol.md, "Devices"."""

import os
import signal
import threading
import time

import native_peer
import pytest
from native_peer import AT, Device, load32, n, until

WITHIN = 1.0  # seconds from the death


@pytest.fixture
def make(exporter):
    """Slots of the exporter."""
    return lambda: n.Slot(exporter.domain, exporter.domain.new_slot())


@pytest.fixture
def device():
    return Device()


def word(slot):
    return n.load64(slot.address)


def guards(slot):
    return load32(slot.address + AT["slot.guards"])


def consumer(peers, waits, signals):
    """A process whose device waits for point 1 of a slot and signals another behind it."""
    peer = peers()
    peer.run(f"w, b = n.Slot(d, {waits.index}), n.Slot(d, {signals.index})")
    peer.run("g = Device()")
    peer.run("l = g.stream_queue(1)")
    assert peer.run("l.wait(w, w.address, 1), l.signal(b, b.address)") == (0, (1, 0, 0))
    return peer


def stop(peer):
    os.kill(peer.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, peer.pid, os.WSTOPPED | os.WNOWAIT)


def owing(peers, slot):
    peer = peers(slot.index)
    assert peer.run("s.submit(1, device=True)") == (1, 0)
    return peer


def test_in_the_normal_way_nothing_but_stores_and_waits(make, device):
    ours, theirs = make(), make()
    queue, other = device.stream_queue(1), Device().stream_queue(2)
    for point in range(1, 200):
        assert queue.wait(theirs, theirs.address, point) == 0
        assert queue.signal(ours, ours.address) == (point, 0, 0)
        assert other.signal(theirs, theirs.address) == (point, 0, 0)
        assert ours.wait(point, 10) == n.DONE
    assert "host" not in device.calls
    assert not queue.late(ours)
    until(lambda: guards(theirs) == 0)


def test_what_is_signalled_behind_a_lost_wait_is_lost(peers, make, device):
    gone, ours = make(), make()
    peer, queue = owing(peers, gone), device.stream_queue(1)
    assert queue.wait(gone, gone.address, 1) == 0
    assert [queue.signal(ours, ours.address) for _ in range(3)] == [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
    assert guards(gone) == 1
    peer.kill()
    start = time.monotonic()
    assert ours.wait(1, 5) == n.LOST
    assert device.passed()
    assert time.monotonic() - start < WITHIN
    assert [ours.state(p) for p in (0, 1, 2, 3, 4)] == [n.DONE, n.LOST, n.LOST, n.LOST, n.PENDING]
    assert ours.blame() == gone.blame() == (1, peer.pid)
    until(lambda: guards(gone) == 0)
    assert gone.released(1)
    assert queue.late(ours)
    assert queue.landed(ours)
    assert not queue.late(ours)
    assert queue.signal(ours, ours.address) == (4, 0, 0)
    assert ours.wait(4, 5) == n.LOST  # nobody was told
    queue.told(queue.handed)
    assert queue.signal(ours, ours.address) == (5, 0, 0)
    assert ours.wait(5, 5) == n.DONE
    assert device.calls[-1] == "host"
    assert ours.state(1) == n.DONE  # healed


def test_a_loss_goes_on_through_processes(peers, make):
    """The owner dies; one process's device waits for its point, another's for what that one signals, ours for that."""
    for _ in range(6):  # a device that is let go too soon lets the next go
        first, second, third, ours = make(), make(), make(), make()
        peer = owing(peers, first)
        a = consumer(peers, first, second)
        b = consumer(peers, second, third)
        device = Device()
        queue = device.stream_queue(1)
        assert queue.wait(third, third.address, 1) == 0
        assert queue.signal(ours, ours.address) == (1, 0, 0)
        peer.kill()
        start = time.monotonic()
        assert [s.wait(1, 5) for s in (first, second, third, ours)] == [n.LOST] * 4
        assert device.passed()
        assert a.run("g.passed()")
        assert b.run("g.passed()")
        assert time.monotonic() - start < WITHIN
        assert [s.state(1) for s in (first, second, third, ours)] == [n.LOST] * 4


@pytest.mark.parametrize("end", [None, signal.SIGKILL, signal.SIGSTOP])
def test_several_wait_for_one_point(exporter, peers, make, device, end):
    """None is let go before all have lost what is behind; one that is dead or stopped does not hold the rest up."""
    gone = make()
    theirs = [make() for _ in range(4)]
    ours = make()
    peer = owing(peers, gone)
    made = [consumer(peers, gone, slot) for slot in theirs]
    queue = device.stream_queue(1)
    queue.wait(gone, gone.address, 1)
    queue.signal(ours, ours.address)
    assert guards(gone) == 5
    if end is not None:
        os.kill(made[0].pid, end)
    if end == signal.SIGKILL:
        made[0].kill()
        until(lambda: made[0].pid not in [m[1] for m in exporter.domain.members() if m[3]])
    peer.kill()
    start = time.monotonic()
    living = theirs if end is None else theirs[1:]
    assert [slot.wait(1, 5) for slot in (ours, *living)] == [n.LOST] * (1 + len(living))
    assert device.passed()
    for other in made if end is None else made[1:]:
        assert other.run("g.passed()")
    assert time.monotonic() - start < WITHIN
    assert [slot.state(1) for slot in (ours, *living)] == [n.LOST] * (1 + len(living))
    if end is None:
        until(lambda: guards(gone) == 0)


def test_what_stops_all_takes_no_grace(peers, make):
    """One has seen the loss when all are stopped, as a machine may be. Once they go on, the other still has the time to
    lose what is behind its wait.
    """
    gone, first, second, another, third = (make() for _ in range(5))
    peer, other = owing(peers, gone), owing(peers, another)
    a, b = consumer(peers, gone, first), consumer(peers, gone, second)
    a.run(f"x, y, k = n.Slot(d, {another.index}), n.Slot(d, {third.index}), g.stream_queue(2)")
    assert a.run("k.wait(x, x.address, 1), k.signal(y, y.address)") == (0, (1, 0, 0))
    stop(b)
    peer.kill()
    assert first.wait(1, 5) == n.LOST
    stop(a)
    stopped = time.monotonic()
    until(lambda: time.monotonic() - stopped > 0.3)
    os.kill(a.pid, signal.SIGCONT)
    other.kill()
    assert third.wait(1, 5) == n.LOST  # so it has looked at all losses
    assert a.run("g.idle()") is False
    assert word(gone) == 0
    os.kill(b.pid, signal.SIGCONT)
    assert second.wait(1, 5) == n.LOST
    assert a.run("g.passed()")
    assert b.run("g.passed()")
    assert [slot.state(1) for slot in (first, second, third)] == [n.LOST] * 3


def test_another_wait_for_a_later_point_is_no_hindrance(peers, make, device):
    gone, ours, later = make(), make(), make()
    peer, queue = owing(peers, gone), device.stream_queue(1)
    other = Device()
    second = other.stream_queue(2)
    queue.wait(gone, gone.address, 1)
    queue.signal(ours, ours.address)
    second.wait(gone, gone.address, 3)
    second.signal(later, later.address)
    peers().run(f"s = n.Slot(d, {gone.index}, True)")  # somebody who will signal
    peer.kill()
    assert ours.wait(1, 5) == n.LOST
    assert device.passed()
    assert later.state(1) == n.PENDING
    assert not other.idle()
    assert [gone.signal(), gone.signal()] == [2, 3]
    assert later.wait(1, 5) == n.DONE


def test_two_queues_of_a_process(peers, make):
    gone = make()
    peer = owing(peers, gone)
    devices, slots, queues = [Device() for _ in range(3)], [make() for _ in range(3)], []
    for number, (device, slot) in enumerate(zip(devices, slots, strict=True), 1):
        queues.append(device.stream_queue(number))
        queues[-1].wait(gone, gone.address, 1)
        queues[-1].signal(slot, slot.address)
    del queues  # the devices still hold their work
    peer.kill()
    assert [slot.wait(1, 5) for slot in slots] == [n.LOST] * 3
    assert all(device.passed() for device in devices)
    assert [slot.state(1) for slot in slots] == [n.LOST] * 3


def test_a_future_point_that_nobody_signals(peers, make, device):
    future, ours = make(), make()
    peer, queue = peers(future.index), device.stream_queue(1)
    queue.wait(future, future.address, 5)
    queue.signal(ours, ours.address)
    peer.kill()
    assert ours.wait(1, 5) == n.LOST
    assert device.passed()
    assert (future.state(5), ours.state(1)) == (n.LOST, n.LOST)


def test_signals_before_the_wait_are_not_lost(peers, make, device):
    gone, ours = make(), make()
    peer, queue = owing(peers, gone), device.stream_queue(1)
    device.go.clear()
    queue.signal(ours, ours.address)
    queue.wait(gone, gone.address, 1)
    queue.signal(ours, ours.address)
    peer.kill()
    assert gone.wait(1, 5) == n.LOST
    assert ours.wait(2, 0.02) == n.PENDING  # put off
    device.go.set()
    assert (ours.wait(1, 5), ours.wait(2, 5)) == (n.DONE, n.LOST)
    assert device.passed()
    assert (ours.state(1), ours.state(2)) == (n.DONE, n.LOST)


def test_from_one_commons_to_another(peers, make, device):
    other = native_peer.Exporter()
    gone, ours = make(), n.Slot(other.domain, other.domain.new_slot())
    watcher = other.peer(ours.index)
    try:
        peer, queue = owing(peers, gone), device.stream_queue(1)
        queue.wait(gone, gone.address, 1)
        queue.signal(ours, ours.address)
        watcher.send("s.wait(1, 20)")
        peer.kill()
        assert watcher.result(2) == n.LOST
        assert device.passed()
        assert ours.state(1) == n.LOST
    finally:
        watcher.close()
        other.domain.leave()


def test_a_loss_that_a_host_thread_notices(peers, make, device):
    """Whoever reaps first, the devices wait for their wardens."""
    for _ in range(10):
        gone, ours = make(), make()
        peer, queue = owing(peers, gone), device.stream_queue(1)
        queue.wait(gone, gone.address, 1)
        queue.signal(ours, ours.address)
        peer.process.kill()
        while gone.wait(1, 0) != n.LOST:
            pass
        assert device.passed()
        assert ours.state(1) == n.LOST


def test_closed_before_it_is_let_go(peers, make, device):
    gone, theirs, ours = make(), make(), make()
    peer, queue = owing(peers, gone), device.stream_queue(1)
    stopped = consumer(peers, gone, theirs)
    queue.wait(gone, gone.address, 1)
    queue.signal(ours, ours.address)
    os.kill(stopped.pid, signal.SIGSTOP)
    peer.kill()
    assert ours.wait(1, 5) == n.LOST
    address = gone.address
    gone.detach()
    assert n.load64(address) == 1  # at once: nobody would do it later
    assert device.passed()
    assert ours.state(1) == n.LOST


def test_a_chained_point_is_completed_by_the_host(peers, make, device):
    ours = make()
    peer = peers(ours.index)
    queue = device.stream_queue(1)
    assert peer.run("s.submit(1, device=True)") == (1, 0)
    assert queue.signal(ours, ours.address) == (2, 1, 0)
    assert queue.wait(ours, ours.address, 1) == 0
    assert queue.finish(ours, 2) == 0
    assert queue.signal(ours, ours.address) == (3, 0, 0)  # in order behind it, and by the host too
    assert device.calls == ["wait", "host", "host"]
    n.store64(ours.address, 1)
    assert ours.wait(3, 5) == n.DONE
    assert device.passed()
    assert queue.signal(ours, ours.address) == (4, 0, 0)
    assert device.calls[-1] == "write"
    assert device.passed()  # a process that leaves before that stays open until its end


def test_a_chained_point_behind_a_lost_wait_is_lost(peers, make, device):
    """The host function loses it, when its turn has come: the other signaller's point before it completes."""
    gone, ours = make(), make()
    peer, other, queue = owing(peers, gone), peers(ours.index), device.stream_queue(1)
    queue.wait(gone, gone.address, 1)
    other.run("s.submit(1)")
    assert queue.signal(ours, ours.address) == (2, 1, 0)
    assert queue.wait(ours, ours.address, 1) == 0
    assert queue.finish(ours, 2) == 0
    peer.kill()
    assert gone.wait(1, 5) == n.LOST
    assert ours.wait(1, 0.02) == n.PENDING
    other.run("s.complete(1)")
    assert ours.wait(2, 5) == n.LOST
    assert ours.state(1) == n.DONE
    assert ours.blame() == (1, peer.pid)
    assert device.passed()


def test_a_chained_point_that_was_lost_lowers_nothing(peers, make, device):
    ours, gate = make(), make()
    peer, other = peers(ours.index), peers(ours.index)
    queue = device.stream_queue(1)
    assert queue.wait(gate, gate.address, 1) == 0
    peer.run("s.submit(1, device=True)")
    assert queue.signal(ours, ours.address) == (2, 1, 0)
    assert queue.wait(ours, ours.address, 1) == 0
    assert queue.finish(ours, 2) == 0
    peer.kill()
    assert ours.wait(2, 5) == n.LOST
    assert other.run("s.submit(1, device=True)") == (3, 0)
    n.store64(ours.address, 3)
    gate.signal()
    assert device.passed()
    assert (word(ours), ours.state(3)) == (3, n.DONE)


def test_a_late_store_is_mended(peers, make, device):
    """Our store of a lost point comes after a later signal of somebody else's."""
    gone, ours = make(), make()
    peer, other = owing(peers, gone), peers(ours.index)
    queue = device.stream_queue(1)
    queue.wait(gone, gone.address, 1)
    hold = threading.Event()
    device.put("hold", hold.wait)
    assert queue.signal(ours, ours.address) == (1, 0, 0)
    assert queue.signal(ours, ours.address) == (2, 0, 0)
    peer.kill()
    assert ours.wait(2, 5) == n.LOST
    assert other.run("s.submit(1)") == (3, 0)
    other.run("s.complete(3)")
    assert ours.wait(3, 5) == n.DONE
    assert other.run("s.submit(1)") == (4, 0)
    hold.set()
    assert device.passed()
    until(lambda: word(ours) >= 3, 1)
    assert [ours.state(p) for p in (1, 2, 3, 4)] == [n.DONE, n.DONE, n.DONE, n.PENDING]
    other.run("s.complete(4)")
    assert ours.wait(4, 5) == n.DONE


def test_what_is_lost_already_is_not_waited_for(peers, make, device):
    gone = make()
    owing(peers, gone).kill()
    assert gone.wait(1, 5) == n.LOST
    assert device.stream_queue(1).wait(gone, gone.address, 1) == 0
    assert device.calls == []
    assert gone.released(1)
    assert guards(gone) == 0


def test_the_functions_are_wanted():
    with pytest.raises(ValueError, match="address"):
        n.QueueCalls((0, ("function", "data")))
