"""Domains: joining, dying, holders, slots, forks."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
from native_peer import AT, Exporter, Peer, make_commons, n, until, warden_running


def test_join_and_leave(exporter, peers):
    d = exporter.domain
    assert d.member == 0
    [(index, pid, when, alive)] = d.members()
    assert (index, pid, alive) == (0, os.getpid(), True)
    assert abs(when / 1e9 - time.time()) < 60
    a, b = peers(), peers()
    assert [a.run("d.member"), b.run("d.member")] == [1, 2]
    assert [(m[0], m[1], m[3]) for m in d.members()] == [(0, os.getpid(), True), (1, a.pid, True), (2, b.pid, True)]
    assert a.run("d.members()") == d.members()
    a.run("d.leave(); d.leave()")
    assert [m[0] for m in d.members()] == [0, 2]
    assert a.run("d.fd") == -1
    with pytest.raises(ValueError, match="left"):
        a.run("d.members()")
    assert peers().run("d.member") == 1
    assert b.exit() == 0
    assert [m[0] for m in d.members()] == [0, 1]


def test_refusals(exporter):
    bell = os.eventfd(0)

    def refuse(fd, cookie, match, owner=False):
        with pytest.raises(ValueError, match=match):
            n.Domain(fd, bell, cookie, owner)
        os.fstat(fd)  # a refused fd stays the caller's
        os.close(fd)

    refuse(make_commons(seals=0), bytes(16), "sealed")
    refuse(make_commons(seals=fcntl.F_SEAL_GROW), bytes(16), "sealed")
    refuse(make_commons(size=4096), bytes(16), "size")
    refuse(make_commons(), bytes(16), "not a commons")
    refuse(make_commons(), bytes(15), "16 bytes", owner=True)
    r, w = os.pipe()
    os.close(w)
    refuse(r, bytes(16), "sealed")
    with pytest.raises(ValueError, match="already"):
        n.Domain(exporter.domain.fd, bell, exporter.cookie, False)
    with pytest.raises(ValueError, match="cookie"):
        n.Domain(exporter.domain.fd, bell, bytes(16), False)
    os.close(bell)


def test_dead_member_is_reaped(exporter, peers):
    d = exporter.domain
    a, b = peers(), peers()
    a.run("held = [n.Lease(d, 7, None), n.Lease(d, 8, None)]")
    b.run("held = n.Lease(d, 7, None)")
    assert d.holders(7) == [1, 2]
    assert d.reached(7)
    a.kill()
    assert [(m[0], m[3]) for m in d.members()] == [(0, True), (1, False), (2, True)]
    assert d.holders(7) == [2]
    assert d.holders(8) == []
    assert d.reap() == 0
    b.run("del held")
    assert d.holders(7) == []
    assert not d.reached(7)
    b.kill()
    assert d.reap() == 1
    assert [m[0] for m in d.members()] == [0]


CLAIMED = 262_144  # slots


@contextlib.contextmanager
def a_commons_that_claims_all_slots(count):
    """Its fd, this process's domain, and so many more members. Another process owns it: owners know their own slots."""
    fd, bell, cookie = make_commons(), n.OwnedFd.bell().take(), os.urandom(16)
    owner, *others = (Peer([fd, bell]) for _ in range(1 + count))
    ours = None
    try:
        owner.run(f"d = n.Domain({fd}, {bell}, {cookie!r}, True)")
        for other in others:
            other.run(f"d = n.Domain({fd}, {bell}, {cookie!r}, False)")
        ours = n.Domain(fd, bell, cookie, False)
        n.store64(ours.address + AT["commons.slots_used"], CLAIMED << 32 | CLAIMED)
        yield fd, ours, others
    finally:
        if ours is not None:
            ours.leave()
        for peer in owner, *others:
            peer.close()


def test_no_step_of_a_sweep_goes_through_all_that_a_peer_claims():
    with a_commons_that_claims_all_slots(2) as (_fd, ours, others):
        others[0].kill()
        steps = 1
        while ours.reap() == 0:
            steps += 1
            time.sleep(0.001)
            assert steps < 10_000
        assert steps >= CLAIMED // 4096
        slot = n.Slot(ours, CLAIMED - 1)
        others[1].run(f"s = n.Slot(d, {CLAIMED - 1}); s.submit(1)")
        others[1].kill()
        assert slot.wait(1, 5) == n.LOST  # long before a sweep has come there


def test_newcomer_reaps_for_the_index(exporter, peers):
    a = peers()
    a.run("held = n.Lease(d, 3, None)")
    a.kill()
    b = peers()
    assert b.run("d.member") == 1
    assert exporter.domain.holders(3) == []


def test_exec_ends_membership(exporter, peers):
    a = peers()
    a.send("os.execv('/bin/sleep', ['sleep', '60'])")
    until(lambda: n.lock_holder(exporter.domain.fd, AT["commons.life"] + 1) is None)
    until(exporter.domain.reap, 2)  # its process lives on, so only after a grace


def test_what_a_member_has_open_when_it_leaves_it_has_until_it_ends(exporter, peers):
    """Its devices may work that long. Events hear of it at once."""
    d = exporter.domain
    slot = d.new_slot()
    waiter = n.Slot(d, slot)
    a = peers()
    a.run(f"held = n.Lease(d, 7, None); s = n.Slot(d, {slot}); s.submit(1)")
    a.run("d.leave()")
    assert waiter.wait(1, 5) == n.LOST
    assert d.reached(7)
    assert d.reap() == 0
    a.run("del held, s, d")  # what is dropped later changes nothing
    assert d.reached(7)
    assert a.exit() == 0
    assert not d.reached(7)
    assert [m[0] for m in d.members()] == [0]


UNSHARE = ["unshare", "--pid"]
JOINS = """
if (member := os.fork()) == 0:
    d = n.Domain({fd}, {bell}, {cookie!r}, False)
    held = n.Lease(d, 7, None)
    signal.pause()
if (other := os.fork()) == 0:
    signal.pause()
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode,
    reason="needs unshare --pid",
)
def test_who_is_being_torn_down_has_what_it_had(exporter):
    """Its files are closed, and its lock is gone with them, but what it has on devices may go later.

    The kernel lets the first process of a PID namespace end only once somebody has waited for the others there.
    """
    d = exporter.domain
    parent = Peer([d.fd, d.bell], prefix=UNSHARE)
    try:
        parent.run(JOINS.format(fd=d.fd, bell=d.bell, cookie=exporter.cookie))
        until(lambda: d.holders(7) == [1])
        pid = parent.run("member")
        record = d.address + AT["commons.members"] + AT["member.size"]
        n.store64(record, pid << 32 | 1)  # as its process is seen here
        n.store64(record + AT["member.pid_namespace"], os.stat("/proc/self/ns/pid").st_ino)
        os.kill(pid, signal.SIGKILL)
        until(lambda: (1, False) in [(m[0], m[3]) for m in d.members()])
        for _ in range(3):
            assert d.reached(7)
            assert d.reap() == 0
        parent.run("os.waitpid(other, 0)")
        until(lambda: not d.reached(7))
        until(lambda: [m[0] for m in d.members()] == [0])
    finally:
        parent.close()


def test_a_record_may_name_any_process(exporter):
    """The pid in a record is a peer's to write: a process of another user is not a member that has yet to die."""
    d = exporter.domain
    theirs = subprocess.Popen(["sleep", "60"], user=65534) if os.geteuid() == 0 else None
    try:
        record = d.address + AT["commons.members"] + 5 * AT["member.size"]
        n.store64(record + AT["member.pid_namespace"], os.stat("/proc/self/ns/pid").st_ino)
        n.store64(record, (theirs.pid if theirs else 1) << 32 | 1)  # state and pid
        assert [(m[0], m[3]) for m in d.members()] == [(0, True), (5, False)]
        assert d.reap() == 1
    finally:
        if theirs:
            theirs.kill()
            theirs.wait()


def test_reap_byte_taken_leaves_it_to_the_other(exporter, peers):
    a, b = peers(), peers()
    a.kill()
    assert b.run(f"n.lock(d.fd, {AT['commons.reap']} + 1)")
    assert exporter.domain.reap() == 0
    assert [(m[0], m[3]) for m in exporter.domain.members()] == [(0, True), (1, False), (2, True)]
    b.run(f"unlock(d.fd, {AT['commons.reap']} + 1)")
    assert exporter.domain.reap() == 1


def test_full(peers):
    # Nobody needs 1024 processes for that: one other process may hold all the lock bytes.
    a = peers()
    a.run(f"[n.lock(d.fd, {AT['commons.life']} + i) for i in range(1, 1024)] and None")
    with pytest.raises(OSError, match="No space") as info:
        peers()
    assert info.value.errno == 28


def test_opens(exporter, peers):
    d, a = exporter.domain, peers()
    d.set_opens(5, 2)
    assert a.run("d.opens_left(5)") == 2
    assert a.run("[d.take_open(5) for _ in range(3)]") == [True, True, False]
    assert d.opens_left(5) == 0
    d.set_opens(5, -4)
    assert not d.take_open(5)
    d.give_open(5)
    assert d.opens_left(5) == 1, "what a hostile peer wrote there takes no open away"
    assert d.renewed(5) == 0
    a.run("d.renew(5, 1 << 63)")
    d.renew(5, 7)
    assert (d.renewed(5), d.opens_left(5), a.run("d.renewed(5)")) == (1 << 63, 3, 1 << 63), "the latest counts"
    d.set_opens(5, 2**31 - 1)
    d.give_open(5)
    assert (d.renewed(5), d.opens_left(5)) == (0, 2**31 - 1)
    for call in (lambda entry: n.Lease(d, entry, None), d.holders, d.reached, d.take_open, d.opens_left, d.renewed):
        with pytest.raises(ValueError, match="entry"):
            call(262144)
    with pytest.raises(OverflowError):
        d.holders(-1)
    with pytest.raises(OverflowError):
        n.Lease(d, 2**32, None)
    with pytest.raises(OverflowError):
        n.Lease(d, -1, None)


def test_slots(exporter, peers):
    d, a = exporter.domain, peers()
    with pytest.raises(ValueError, match="owner"):
        a.run("d.new_slot()")
    first, second = d.new_slot(), d.new_slot()
    assert (first, second) == (0, 1)
    a.run("s = n.Slot(d, 0); s.signal()")
    with pytest.raises(ValueError, match="no such slot"):
        a.run("n.Slot(d, 2)")
    with pytest.raises(ValueError, match="no such slot"):
        n.Slot(d, 2**31)
    d.release_slot(0)
    with pytest.raises(ValueError, match="in use"):
        d.release_slot(0)
    assert d.new_slot() == 2  # a peer has it
    a.run("s.detach()")
    assert d.new_slot() == 0
    s = n.Slot(d, 0)
    assert (s.pending, s.value, s.blame(), s.attached()) == (0, 0, (0, 0), [0])
    a.run("s = n.Slot(d, 1)")
    d.release_slot(1)
    a.kill()
    assert d.new_slot() == 1  # the dead do not count
    s.detach()
    for i in (0, 1, 2):
        d.release_slot(i)
    assert sorted(d.new_slot() for _ in range(4)) == [0, 1, 2, 3]


def test_slot_exhaustion(exporter):
    d = exporter.domain
    for _ in range(AT["commons.slot_count"]):
        d.new_slot()
    with pytest.raises(OSError, match="No space"):
        d.new_slot()
    d.release_slot(99)
    assert d.new_slot() == 99


def test_lifetimes():
    e = Exporter()
    index = e.domain.new_slot()
    s = n.Slot(e.domain, index)
    watch, bell = weakref.ref(e.domain), e.domain.bell
    os.fstat(bell)
    assert weakref.ref(s)() is s
    del e
    assert watch() is not None  # a slot holds its domain
    assert s.signal() == 1
    watch().leave()
    for name, args in (("signal", ()), ("owes", ()), ("attached", ()), ("wait", (1,)), ("notify", (1, 1))):
        with pytest.raises(ValueError, match="left"):
            getattr(s, name)(*args)
    s.detach()
    del s
    assert watch() is None
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(bell)


def test_many_threads(exporter):
    d = exporter.domain

    def work(out):
        held = []
        for i in range(200):
            s = n.Slot(d, d.new_slot())
            out.append((s.signal(), s.state(1)))
            held.append(n.Lease(d, i, None))
            s.detach()
            d.release_slot(s.index)
            d.reap()

    outs = [[] for _ in range(4)]
    threads = [threading.Thread(target=work, args=(o,)) for o in outs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert outs == [[(1, n.DONE)] * 200] * 4


def in_child(work):
    """Run `work` in a forked child; what it returns goes through repr."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(w, repr(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        got = f.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return eval(got)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork(exporter, peers, event):
    d, a = exporter.domain, peers(event.index)
    before = n.forks()
    fd = d.fd
    assert event.notify(1, 44) is False
    until(warden_running)

    def child():
        out = [n.forks() - before, warden_running(), d.fd]
        for call in (event.signal, lambda: event.wait(1, 0), d.reap, lambda: event.value, lambda: n.Slot(d, 0)):
            try:
                call()
                out.append("worked")
            except ValueError as error:
                out.append("fork" in str(error))
        event.detach()
        d.leave()
        out.append(n.due())
        try:
            os.fstat(fd)
            out.append("open")
        except OSError:
            out.append("closed")
        # A membership of its own, in the same process line.
        e = Exporter()
        s = n.Slot(e.domain, e.domain.new_slot())
        out.append(s.notify(1, 5))
        s.signal()
        out.append(until(n.due))
        out.append(until(warden_running))
        e.domain.leave()
        return out

    assert in_child(child) == [1, False, -1, True, True, True, True, True, [], "closed", False, [5], True]
    assert n.forks() == before
    assert event.attached() == [0, 1]
    assert [(m[0], m[3]) for m in d.members()] == [(0, True), (1, True)]
    assert a.run("d.members()[0][3]") is True
    event.signal()
    assert until(n.due) == [44]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_of_a_fork_joins_the_parents_commons(exporter, peers):
    d, a = exporter.domain, peers()
    dup = os.open(f"/proc/self/fd/{d.fd}", os.O_RDWR | os.O_CLOEXEC)  # not closed while the parent is a member
    bell = os.dup(d.bell)

    def child():
        mine = n.Domain(dup, bell, exporter.cookie, False)
        global_d[:] = []  # the inherited object dies in the child: that must not drop the child's own lock
        a_sees = a.run("[(m[0], m[1], m[3]) for m in d.members()]")
        return mine.member, a_sees == [(0, os.getppid(), True), (1, a.pid, True), (2, os.getpid(), True)]

    global_d = [d]
    assert in_child(child) == (2, True)
    exporter.domain.leave()
    os.close(dup)
    os.close(bell)


def test_fork_while_threads_work(exporter, event):
    """Mutexes are not left locked in the child."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            event.notify(event.pending + 1, 1)
            event.cancel(1)
            exporter.domain.reap()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            pid = os.fork() if sys.version_info < (3, 12) else None
            if pid is None:
                break
            if pid == 0:
                signal.alarm(10)
                exporter.domain.leave()
                e = Exporter()
                s = n.Slot(e.domain, e.domain.new_slot())
                s.notify(1, 9)
                s.signal()
                until(n.due)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_a_reaper_that_stands_still_holds_up_nobody():
    """It has the lock on one dead member, whose sweep this process has begun."""
    reap_byte = 0x50000000
    with a_commons_that_claims_all_slots(3) as (fd, ours, others):
        slot = n.Slot(ours, 0)
        others[0].kill()
        assert ours.reap() == 0  # a step
        others[1].run(f"import fcntl; fcntl.lockf({fd}, fcntl.LOCK_EX, 1, {reap_byte + 1})")
        others[2].run("s = n.Slot(d, 0); s.submit(1)")
        start = time.process_time()
        assert slot.wait(1, 2) == n.PENDING
        assert time.process_time() - start < 1, "the warden spins"
        others[2].kill()
        assert slot.wait(1, 5) == n.LOST
