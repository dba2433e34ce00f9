"""Event slots between processes: docs/events-protocol.md."""

import os
import select
import signal
import threading
import time
from pathlib import Path

import pytest
from native_peer import AT, load32, n, store32, until


def sleeping(exporter, index):
    until(lambda: exporter.word(index, "waiters"))


def test_one_process(event):
    assert (event.value, event.pending, event.state(0), event.state(1)) == (0, 0, n.DONE, n.PENDING)
    assert event.signal() == 1
    assert (event.value, event.pending, event.state(1)) == (1, 1, n.DONE)
    assert event.wait(1) == n.DONE
    start = time.monotonic()
    assert event.wait(2, 0.02) == n.PENDING
    assert event.wait(2, timeout=0, spin=0) == n.PENDING
    assert 0.02 <= time.monotonic() - start < 5
    assert event.blame() == (0, 0)
    for bad in (2**43, 2**64 - 1):
        with pytest.raises(ValueError, match="43"):
            event.wait(bad)
    with pytest.raises(OverflowError):
        event.state(-1)
    with pytest.raises(TypeError):
        event.wait(1, nonsense=2)
    event.detach()
    event.detach()
    with pytest.raises(ValueError, match="closed"):
        event.signal()


def test_queues(event):
    assert event.submit(1) == (1, 0)
    assert event.owes()
    with pytest.raises(ValueError, match="pending"):
        event.signal()
    assert event.submit(1) == (2, 0)  # the same queue is in order anyway
    assert event.submit(2) == (3, 2)
    assert event.submit(1) == (4, 3)
    event.complete(1)
    assert (event.value, event.pending) == (1, 4)
    event.complete(4)
    assert not event.owes()
    assert event.state(4) == n.DONE
    assert event.submit(3) == (5, 0)
    with pytest.raises(ValueError, match="nobody"):
        event.complete(6)
    with pytest.raises(ValueError, match="0"):
        event.submit(0)
    event.fail(2)
    assert (event.state(4), event.state(5), event.state(6)) == (n.DONE, n.LOST, n.PENDING)
    assert event.blame() == (2, os.getpid())
    assert event.wait(5) == n.LOST
    assert event.value == 5
    event.complete(5)
    assert event.state(5) == n.LOST  # a release is final
    assert event.signal() == 6
    assert event.state(5) == n.DONE  # healed
    event.fail(3)
    assert event.state(6) == n.DONE


def test_signal_and_wait(exporter, peers, event):
    peer = peers(event.index)
    for point in range(1, 6):
        peer.send(f"s.wait({point}, 20)")
        if point % 2:
            sleeping(exporter, event.index)
        assert event.signal() == point
        assert peer.result() == n.DONE
    peer.run("s.signal()")
    assert event.wait(6, 20) == n.DONE
    assert event.attached() == [0, 1]


def test_queue_signals_from_two_processes(exporter, peers, event):
    peer = peers(event.index)
    assert event.submit(1) == (1, 0)
    assert peer.run("s.submit(1)") == (2, 1)
    assert event.submit(1) == (3, 2)
    assert peer.run("s.submit(1)") == (4, 3)
    assert event.owes()
    assert peer.run("s.owes()")
    peer.send("s.wait(3, 20)")
    sleeping(exporter, event.index)
    event.complete(3)
    assert peer.result() == n.DONE
    assert not event.owes()
    peer.run("s.complete(4)")
    assert event.wait(4) == n.DONE


def test_death_while_owing(exporter, peers, event):
    peer, other = peers(event.index), peers(event.index)
    event.signal()
    assert peer.run("s.submit(1)") == (2, 0)
    assert peer.run("s.submit(1)") == (3, 0)
    other.send("s.wait(3, 20)")
    sleeping(exporter, event.index)
    peer.kill()
    start = time.monotonic()
    assert event.wait(2, 20) == n.LOST
    assert other.result() == n.LOST
    assert time.monotonic() - start < 1
    assert event.blame() == (1, peer.pid)
    until(lambda: event.attached() == [0, 2])  # whoever reaps records the loss first, and who may signal then
    # The only other signaller is gone: also to the exporter, until somebody else signals.
    assert (event.state(1), event.state(2), event.state(3), event.state(4)) == (n.DONE, n.LOST, n.LOST, n.LOST)
    assert event.signal() == 4
    assert other.run("s.wait(3)") == n.DONE


def test_death_with_an_older_point_owed(peers, event):
    """The newest point is somebody else's; the dead one's fact tells."""
    peer = peers(event.index)
    assert peer.run("s.submit(1)") == (1, 0)
    assert event.submit(1) == (2, 1)
    peer.kill()
    assert event.wait(1, 20) == n.LOST
    assert event.state(2) == n.LOST  # it waited for the lost one
    assert not event.owes()


def test_loss_put_off_behind_a_living_signaller(exporter, peers, event):
    a, b = peers(event.index), peers(event.index)
    assert event.submit(1) == (1, 0)
    assert a.run("s.submit(1)") == (2, 1)
    assert event.notify(2, 5) is False
    b.send("s.wait(2, 20)")
    sleeping(exporter, event.index)
    a.kill()
    assert b.result(2) == n.LOST  # its owner is dead: nobody needs to wait for the first
    assert until(n.due, 2) == [5]
    assert event.wait(1, 0.02) == n.PENDING
    assert b.run("s.wait(3, 0.02)") == n.PENDING  # a future one is still for the living to signal
    event.complete(1)
    assert b.run("s.wait(1)") == n.DONE
    until(lambda: event.state(2) == n.LOST and n.load64(event.address) == 2, 2)
    until(lambda: event.attached() == [0, 2])
    assert event.state(1) == n.DONE
    assert event.signal() == 3


def test_death_of_an_idle_one_is_no_loss(exporter, peers, event):
    peer, other = peers(event.index), peers(event.index)
    assert event.submit(1) == (1, 0)
    other.send("s.wait(1, 20)")
    sleeping(exporter, event.index)
    peer.kill()
    until(lambda: exporter.domain.reap() or event.attached() == [0, 2])
    assert event.state(1) == n.PENDING
    event.complete(1)
    assert other.result() == n.DONE
    assert event.blame() == (0, 0)


def test_future_point(exporter, peers, event):
    """Nobody submitted it; the last other one dies."""
    a, b = peers(event.index), peers(event.index)
    a.send("s.wait(5, 20)")
    sleeping(exporter, event.index)
    b.kill()
    until(lambda: event.attached() == [0, 1])
    assert event.state(5) == n.PENDING
    a.kill()
    start = time.monotonic()
    assert event.wait(5, 20) == n.LOST
    assert time.monotonic() - start < 1
    assert event.blame() == (1, a.pid)
    assert event.state(0) == n.DONE
    c = peers(event.index)  # hope
    assert event.state(1) == n.PENDING
    assert c.run("s.signal()") == 1
    assert event.wait(1) == n.DONE


def test_sleeping_for_a_future_point(exporter, peers, event):
    a, b = peers(event.index), peers(event.index)
    event.detach()
    a.send("s.wait(5, 20)")
    sleeping(exporter, event.index)
    b.kill()
    assert a.result(2) == n.LOST


def test_clean_exit_is_no_loss(peers, event):
    a = peers(event.index)
    a.run("s.submit(1)[0] and s.complete(1)")
    a.run("d.leave()")
    assert event.wait(2, 0.05) == n.PENDING
    assert event.blame() == (0, 0)
    assert event.attached() == [0]


def test_exit_while_owing(peers, event):
    a = peers(event.index)
    a.run("s.submit(1)")
    pid = a.pid
    a.run("d.leave()")
    assert event.wait(1, 20) == n.LOST
    assert event.blame() == (3, pid)


def test_exporters_death(peers):
    """Two importers of a third process's event; the exporter is killed."""
    host = peers()
    host.run("import native_peer; e = native_peer.Exporter(); i = e.domain.new_slot(); s = n.Slot(e.domain, i)")
    fd, bell, cookie = host.run("e.domain.fd, e.domain.bell, e.cookie")
    pidfd = os.pidfd_open(host.pid)
    d = n.Domain(*(n.OwnedFd.fetched(pidfd, each).take() for each in (fd, bell)), cookie, False)
    os.close(pidfd)
    s = n.Slot(d, host.run("i"))
    assert host.run("s.submit(1)") == (1, 0)
    assert s.notify(1, 7) is False
    host.kill()
    assert s.wait(1, 20) == n.LOST
    assert s.wait(9, 20) == n.LOST
    assert until(n.due) == [7]
    d.leave()


def test_death_after_detaching_while_owing(exporter, peers, event):
    a, b = peers(event.index), peers(event.index)
    a.run("s.submit(1)[0] and s.detach()")
    b.send("s.wait(1, 20)")
    sleeping(exporter, event.index)
    a.kill()
    assert b.result(2) == n.LOST


def test_death_in_pieces(exporter, peers, event):
    """A reaper died half-way: the next one starts again."""
    a = peers(event.index)
    a.run("s.submit(1)")
    a.kill()
    base = event.address + AT["slot.attached"]
    n.store64(base, n.load64(base) & ~2)  # the bit is cleared already, the member record is not
    assert event.wait(1, 20) == n.LOST
    assert [m[0] for m in exporter.domain.members()] == [0]


def test_host_signals_race(peers, event):
    made = [peers(event.index) for _ in range(3)]
    for p in made:
        p.send("s.wait(1, 20), [s.signal() for _ in range(3000)]")
    until(lambda: event.attached() == [0, 1, 2, 3])
    event.signal()
    points = [x for p in made for x in p.result()[1]]
    assert sorted(points) == list(range(2, 9002))
    assert (event.value, event.pending) == (9001, 9001)


def test_queue_race(peers, event):
    """Submits from several processes: distinct points, each told to wait for the one before unless it was complete."""
    made = [peers(event.index) for _ in range(2)]
    code = "[(lambda p: (p, s.wait(p[1], 20), s.complete(p[0])))(s.submit(1)) for _ in range(1000)]"
    for p in made:
        p.send(code)
    points = [x[0] for p in made for x in p.result()]
    assert sorted(p for p, _ in points) == list(range(1, 2001))
    assert all(after in (0, p - 1) for p, after in points)
    assert (event.value, event.pending) == (2000, 2000)


def test_too_many(event):
    event.submit(1)
    n.store64(event.address + AT["slot.pending"], (2**20 - 1) << 21)
    with pytest.raises(ValueError, match="outstanding"):
        event.submit(1)
    for i in range(8):
        n.store64(event.address + AT["slot.facts"] + 8 * i, 5 << 20 | (100 + i))
    n.store64(event.address + AT["slot.pending"], 9 << 21 | 50)
    with pytest.raises(ValueError, match="signallers"):
        event.submit(1)


def test_interrupt(exporter, peers, event):
    peer = peers(event.index)
    peer.send("s.wait(1)")
    sleeping(exporter, event.index)
    os.kill(peer.pid, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        peer.result()
    peer.send("s.wait(1)")  # and again
    event.signal()
    assert peer.result() == n.DONE


def test_detach_and_leave_end_waits_of_other_threads(exporter, event):
    def wait(out, gate):
        gate.set()
        try:
            out.append(event.wait(9))
        except ValueError as error:
            out.append(str(error))

    out, gate = [], threading.Event()
    thread = threading.Thread(target=wait, args=(out, gate))
    thread.start()
    gate.wait()
    sleeping(exporter, event.index)
    event.detach()
    thread.join(10)
    assert "closed" in out[0]


def test_device_stores(exporter, peers, event):
    """A device's store wakes nobody: waiters and tokens find it by looking."""
    peer = peers(event.index)
    assert event.notify(1, 3) is False
    peer.send("s.wait(1, 20)")
    sleeping(exporter, event.index)
    assert event.submit(1, device=True) == (1, 0)  # after they went to sleep
    assert exporter.word(event.index, "device") == 1
    n.store64(event.address, 1)
    assert peer.result() == n.DONE
    assert until(n.due) == [3]


def test_tokens(peers, event):
    fd = n.notification_fd()
    assert n.notification_fd() == fd
    peer = peers(event.index)
    assert event.notify(0, 1) is True
    assert [event.notify(p, 10 + p) for p in (1, 2, 3)] == [False] * 3
    event.cancel(12)
    event.cancel(99)
    assert not select.select([fd], [], [], 0)[0]
    peer.run("s.signal()")
    assert select.select([fd], [], [], 10)[0]
    assert n.due() == [11]
    assert n.due() == []
    assert not select.select([fd], [], [], 0)[0]
    peer.run("s.signal(), s.submit(1)")
    peer.kill()
    assert select.select([fd], [], [], 10)[0]
    assert n.due() == [13]
    assert event.state(3) == n.LOST
    assert event.notify(4, 14) is True  # nobody is left who signals
    event.signal()
    assert event.notify(9, 18) is True  # nor now, but this process itself
    assert peers(event.index).run("s.signal()") == 5
    assert event.notify(9, 19) is False
    event.detach()
    assert n.due() == [19]  # who waits learns that the slot is gone


def test_tokens_of_a_future_point(peers, event):
    peer = peers(event.index)
    assert event.notify(8, 1) is False
    late = peers(event.index)  # attached after the token: the warden must watch it too
    peer.kill()
    until(lambda: event.attached() == [0, 2])
    assert n.due() == []
    late.kill()
    assert until(n.due, 2) == [1]


def test_guard_releases_a_device(peers, event):
    peer = peers(event.index)
    peer.run("s.submit(1, device=True)")
    event.guard(1)
    peer.kill()
    until(lambda: n.load64(event.address) >= 1, 2)
    assert event.state(1) == n.LOST


def test_guard_of_a_future_point(peers, event):
    """A device here waits for a value that nobody will ever submit: the points up to it are lost, to let it go."""
    peer = peers(event.index)
    event.guard(6)
    with pytest.raises(ValueError, match="ahead"):
        event.guard(2**20)
    assert event.notify(8, 5) is False
    peer.kill()
    until(lambda: n.load64(event.address) >= 6, 2)
    assert (event.state(6), event.state(7)) == (n.LOST, n.LOST)
    assert until(n.due) == [5]
    assert event.signal() == 7
    assert event.state(6) == n.DONE


def test_many_tokens(peers, event):
    peer = peers(event.index)
    for i in range(1000):
        event.notify(1 + i % 10, i)
    peer.run("[s.signal() for _ in range(10)]")
    got = []
    until(lambda: got.extend(n.due()) or len(got) >= 1000)
    assert sorted(got) == list(range(1000))


def test_hostile_words(exporter, event):
    """A peer may write anything: calls end, nothing crashes."""
    words = [0, 1, 2**20, 2**21 - 1, 2**43, 2**63, 2**64 - 1, 5 << 21 | 1 << 20 | 1023, 2**64 - 2**20, 7 << 20 | 9]
    for name in ("value", "pending", "lost", "roster"):
        for word in words:
            n.store64(event.address + AT["slot." + name], word)
            for i in range(8):
                n.store64(event.address + AT["slot.facts"] + 8 * i, word)
            n.store64(event.address + AT["slot.attached"] + 120, word)
            store32(event.address + AT["slot.guards"], word & 0xFFFFFFFF)
            event.value, event.pending, event.owes(), event.blame(), event.attached()
            for call in (
                event.signal,
                lambda: event.submit(1),
                lambda: event.fail(2),
                lambda: event.complete(1),
                lambda: event.guard(3),
            ):
                try:
                    call()
                except ValueError:
                    pass
            event.wait(3, 0.001)
            event.notify(2**43 - 1, 1)
            event.cancel(1)
    store32(exporter.domain.address + AT["commons.slots_used"], 2**32 - 1)
    store32(exporter.domain.address + AT["commons.entries_used"], 2**32 - 1)
    member = exporter.domain.address + AT["commons.members"] + 64 * 5
    store32(member, 77)
    until(lambda: exporter.domain.reap() >= 0 and load32(member) == 0)  # in many steps; the warden may take the last


def test_many_dead_members_are_reaped_a_few_at_a_time(exporter):
    """A peer makes up all of them, and entries to look through for each: no caller does all that in one call."""
    domain = exporter.domain
    members = [domain.address + AT["commons.members"] + index * AT["member.size"] for index in range(1, 1024)]
    for each in members:
        store32(each, 1)
    store32(domain.address + AT["commons.entries_used"], 2**32 - 1)
    found = [until(domain.reap) for _ in range(4)]  # the first of them makes the kernel find the pages
    assert max(found) < 100
    store32(domain.address + AT["commons.entries_used"], 0)
    until(lambda: domain.reap() >= 0 and not any(map(load32, members)))


def test_idle_warden_sleeps(peers, event):
    peer = peers(event.index)
    event.notify(3, 1)
    peer.run("s.signal()")
    event.wait(2, 0.01)
    tasks = Path("/proc/self/task")
    # A thread names itself, once it has a CPU.
    [task] = until(lambda: [t for t in tasks.iterdir() if (t / "comm").read_text() == "xpushare-warden\n"])

    def switches():
        return [line for line in (task / "status").read_text().splitlines() if "ctxt" in line]

    until(lambda: "S (sleeping)" in (task / "status").read_text())
    quiet = 0
    end = time.monotonic() + 10
    while quiet < 5:  # five looks in a row, 20 ms apart, with no wake-up
        assert time.monotonic() < end
        before = switches()
        time.sleep(0.02)
        quiet = quiet + 1 if switches() == before else 0
