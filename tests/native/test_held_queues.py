"""Queues that hold what a device must not wait for, over a driver of software streams."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import native_peer
import pytest
import software_streams
from native_peer import AT, n, relay_running, store32, until

INSTANT = 1 << 20
ORDERINGS = ["device", "shared", "held"]
KINDS = ["words", "masked", "half", "halves", "callbacks"]


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory):
    before = os.environ.get(software_streams.PATH)
    yield software_streams.build(tmp_path_factory.mktemp("driver"))
    if before is None:  # the tests of other files have the environment that they began with
        del os.environ[software_streams.PATH]


@pytest.fixture
def driver():
    made = software_streams.Driver()
    before = made.library.ss_events()
    yield made
    for name in ("host", "store64", "copy", "fill", "wait64_geq", "mark_destroy"):
        made.go(name)
        made.rule(name, 0)
    until(lambda: made.library.ss_events() == before)
    until(made.idle)  # before the slots that they wait for are unmapped


@pytest.fixture
def make(exporter):
    return lambda: n.Slot(exporter.domain, exporter.domain.new_slot())


@pytest.fixture(autouse=True)
def stopped_relay():
    yield
    assert n.close_relay(10)


class Bytes:
    def __init__(self, nbytes=64):
        self.buffer = (ctypes.c_uint8 * nbytes)()
        self.address = ctypes.addressof(self.buffer)

    def __getitem__(self, i):
        return self.buffer[i]


def preset(slot, value):
    """As if `value` points had come and gone."""
    n.store64(slot.address + AT["slot.value"], value)
    n.store64(slot.address + AT["slot.pending"], value << 21 | INSTANT)


# --- orderings and recipes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ordering", ORDERINGS)
def test_work_goes_back_and_forth(make, driver, ordering, kind):
    """Each queue copies what the other has written, a hundred times, queued ahead."""
    a, b = driver.queue(1, ordering, kind), driver.queue(2, ordering, kind)
    there, back = make(), make()
    x, y = Bytes(), Bytes()
    for i in range(1, 101):
        if i > 1:
            assert a.wait(back, i - 1) == 0
        a.fill(x.address, i, 64)
        assert a.signal(there) == i
        assert b.wait(there, i) == 0
        b.copy(y.address, x.address, 64)
        assert b.signal(back) == i
    assert back.wait(100, 20) == n.DONE
    assert list(y.buffer) == [100] * 64
    assert a.native.drain(5)
    assert b.native.drain(5)
    assert a.native.failure() is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_waits_for_nobody_is_held(make, driver, kind):
    queue, gate, done = driver.queue(1, "held", kind), make(), make()
    x = Bytes()
    names = ("copy", "fill", "host", "store64", "store32", "wait64_geq", "wait_masked", "wait32_geq", "marker")
    before = [driver.calls(name) for name in names]
    assert queue.wait(gate, 3) == 0
    at, code = queue.fill(x.address, 7, 64)
    assert code == 0
    assert queue.signal(done) == 1
    mark, marked = queue.mark()
    assert done.owes()
    assert done.pending == 1
    assert (queue.native.held, queue.native.handed) == (4, at - 2)
    assert not queue.native.drain(0.01)
    gate.signal()
    gate.signal()
    assert not queue.native.drain(0.05)
    assert [driver.calls(name) for name in names] == before
    gate.signal()
    assert done.wait(1, 5) == n.DONE
    assert x[63] == 7
    assert queue.native.drain(5)
    assert queue.native.handed == marked
    until(lambda: driver.finished(mark))
    driver.call("mark_destroy", mark)
    assert queue.signal(done) == 2  # nothing is held any more
    assert done.wait(2, 5) == n.DONE


def test_a_queue_goes_without_its_object(make, driver):
    queue, gate, done = driver.queue(1, "held"), make(), make()
    queue.wait(gate, 1)
    queue.signal(done)
    del queue
    gate.signal()
    assert done.wait(1, 5) == n.DONE


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_two_queues_of_one_hardware_queue(make, driver, ordering):
    """A wait that the device does stops the queue beside it, which would signal: so it is held."""
    first = driver.queue(1, ordering)
    second, slot, done = driver.queue(2, ordering, beside=first), make(), make()
    assert first.wait(slot, 1) == 0
    assert first.signal(done) == 1
    assert second.signal(slot) == 1
    if ordering == "device":
        assert done.wait(1, 0.2) == n.PENDING  # they stand for ever
        n.store64(slot.address, 1)
    assert done.wait(1, 5) == n.DONE
    assert slot.state(1) == n.DONE


@pytest.mark.parametrize("ordering", ["shared", "held"])
def test_a_point_whose_store_is_held_is_not_waited_for_by_the_device(peers, make, driver, ordering):
    """It is submitted, here or elsewhere, yet it may need what comes on the very hardware queue."""
    first = driver.queue(1, ordering)
    second = driver.queue(2, ordering, beside=first)
    gate, slot, done = make(), make(), make()
    first.wait(gate, 1)
    first.signal(slot)
    assert slot.pending == 1
    second.wait(slot, 1)
    second.signal(done)
    third = driver.queue(3, ordering, beside=first)
    third.signal(gate)  # on the same hardware: nothing is in its way
    assert done.wait(1, 5) == n.DONE
    theirs = make()
    peer = peers(theirs.index)
    peer.run("s.submit(1, device=True)")
    waits = driver.calls("wait64_geq")
    second.wait(theirs, 1)
    assert second.native.held == 1
    assert driver.calls("wait64_geq") == waits
    peer.run("s.complete(1)")
    assert second.native.drain(5)


def test_shared_hardware_waits_for_what_was_handed(make, driver):
    first = driver.queue(1, "shared")
    second, slot, done = driver.queue(2, "shared", beside=first), make(), make()
    first.pause(True)
    waits = driver.calls("wait64_geq")
    assert first.signal(slot) == 1
    assert second.wait(slot, 1) == 0
    assert second.signal(done) == 1
    assert second.native.held == 0
    assert driver.calls("wait64_geq") == waits + 1
    first.pause(False)
    assert done.wait(1, 5) == n.DONE


# --- a number of queues that may wait in the device for what may never come


def test_places_are_for_queues_not_for_waits(make, driver):
    table, gates, done = driver.table("words", budget=2), [make() for _ in range(5)], [make() for _ in range(4)]
    queues = [driver.queue(number, "shared", table=table) for number in range(1, 5)]
    waits = driver.calls("wait64_geq")
    for queue, gate, out in zip(queues, gates, done, strict=False):
        queue.wait(gate, 1)
        queue.signal(out)
    queues[0].wait(gates[4], 1)  # it has a place
    queues[0].signal(done[0])
    assert [queue.native.held for queue in queues] == [0, 0, 2, 2]
    assert driver.calls("wait64_geq") == waits + 3
    gates[2].signal()
    assert done[2].wait(1, 5) == n.DONE
    gates[0].signal()
    assert done[0].wait(1, 5) == n.DONE
    assert queues[2].wait(gates[3], 2) == 0  # the first queue still has its place, for its second wait
    assert queues[2].native.held == 1
    for gate in gates[4], gates[1]:
        gate.signal()
    assert done[0].wait(2, 5) == done[1].wait(1, 5) == n.DONE
    free = driver.queue(5, "shared", table=table)
    assert free.wait(gates[0], 2) == 0  # at once, whether the warden has come by or not
    assert free.native.held == 0
    gates[0].signal()
    gates[3].signal()
    gates[3].signal()
    assert done[3].wait(1, 5) == n.DONE
    assert all(queue.native.drain(5) for queue in queues)


def test_what_is_signalled_behind_an_unsure_wait_is_not_certain(make, driver):
    table, gate, slots = driver.table("words", budget=1), make(), [make() for _ in range(3)]
    first, second, third = (driver.queue(number, "shared", table=table) for number in (1, 2, 3))
    first.signal(slots[0])
    first.wait(gate, 1)
    first.signal(slots[1])
    second.wait(slots[1], 1)
    assert second.native.held == 1
    third.pause(True)
    third.signal(slots[2])
    fourth = driver.queue(4, "shared", table=table)
    fourth.wait(slots[2], 1)  # certain: it takes no place
    assert fourth.native.held == 0
    third.pause(False)
    gate.signal()
    assert slots[1].wait(1, 5) == n.DONE
    assert second.native.drain(5)
    until(lambda: fourth.wait(gate, 2) == 0 and fourth.native.held == 0)
    gate.signal()


def test_a_wait_that_is_lost_gives_its_place_back(peers, make, driver):
    table, gone, gate, ours = driver.table("words", budget=1), make(), make(), make()
    peer = peers(gone.index)
    peer.run("s.submit(1, device=True)")
    first, second = (driver.queue(number, "shared", table=table) for number in (1, 2))
    first.wait(gone, 1)
    first.signal(ours)
    peer.kill()
    assert ours.wait(1, 5) == n.LOST
    until(lambda: gone.released(1))
    assert second.wait(gate, 1) == 0
    assert second.native.held == 0
    gate.signal()


def test_adopted_queues_take_places_and_are_never_held(make, driver):
    table, gate, out = driver.table("words", budget=1), make(), make()
    adopted = [driver.queue(number, "device", adopted=True, table=table) for number in (1, 2)]
    for queue in adopted:
        assert queue.wait(gate, 1) == 0
        assert queue.native.held == 0
    own = driver.queue(3, "shared", table=table)
    own.wait(gate, 1)
    own.signal(out)
    assert own.native.held == 2
    gate.signal()
    assert out.wait(1, 5) == n.DONE
    own.wait(gate, 2)
    assert own.native.held == 0
    gate.signal()


@pytest.mark.parametrize("budget", [None, 0, 2])
def test_twelve_queues_in_the_wrong_order(make, driver, budget):
    """Two have hardware queues of their own, ten share one; each waits for a signal that a later one is given later."""
    table = driver.table("words", budget=budget or 0)
    slots, queues = [make() for _ in range(13)], []
    for number in range(12):
        beside = queues[2] if number > 2 else None
        queues.append(driver.queue(number + 1, "device" if budget is None else "shared", beside=beside, table=table))
    for number, queue in enumerate(queues):
        queue.wait(slots[number + 1], 1)
        queue.signal(slots[number])
    slots[12].signal()
    if budget is None:
        assert slots[0].wait(1, 0.2) == n.PENDING  # they stand for ever
        for slot in slots:
            n.store64(slot.address, 1)
    assert slots[0].wait(1, 10) == n.DONE
    assert all(queue.native.drain(5) for queue in queues)


def test_the_relay_prepares_its_thread(make, driver):
    threads, modes = [], []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_uint64)
    def prepare(mode, context):
        threads.append(threading.get_ident())
        modes.append((mode[0], context))
        mode[0] = 0
        return 0

    step = (ctypes.cast(prepare, ctypes.c_void_p).value, (("int_at", 5), 7))
    queue, gate, out = driver.queue(1, "shared", table=driver.table("words", relay=step)), make(), make()
    queue.signal(out)
    assert not threads  # the caller's thread is the caller's
    for point in (1, 2):
        queue.wait(gate, point)
        queue.signal(out)
        gate.signal()
        assert out.wait(point + 1, 5) == n.DONE
    assert modes == [(5, 7), (5, 7)]
    assert threading.get_ident() not in threads
    failing = (ctypes.cast(FAILS, ctypes.c_void_p).value, ())
    broken = driver.queue(2, "shared", table=driver.table("words", relay=failing))
    broken.wait(gate, 3)
    broken.signal(out)
    gate.signal()
    assert out.wait(4, 5) == n.LOST
    assert broken.native.failure()[1] == 9


FAILS = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 9)


@pytest.mark.parametrize("ordering", ["shared", "held"])
def test_two_signallers_take_turns(make, driver, ordering):
    """The second's store comes after the first's, which is held."""
    first, second = driver.queue(1, ordering), driver.queue(2, ordering)
    gate, slot = make(), make()
    first.wait(gate, 1)
    assert first.native.signal(slot, slot.address) == (1, 0, 0)
    assert second.native.signal(slot, slot.address) == (2, 0, 0)
    assert second.native.held == 2
    assert slot.wait(2, 0.05) == n.PENDING
    gate.signal()
    assert slot.wait(2, 5) == n.DONE


def test_an_event_that_is_closed_ends_what_waits_for_it(make, driver):
    queue, gate, done = driver.queue(1, "held"), make(), make()
    x = Bytes()
    queue.wait(gate, 1)
    queue.fill(x.address, 3, 64)
    queue.signal(done)
    gate.detach()
    assert done.wait(1, 5) == n.LOST
    until(lambda: x[0] == 3)


def test_what_is_held_does_not_run_when_its_process_leaves(make, driver):
    other = native_peer.Exporter()
    gate, ours, queue, x = n.Slot(other.domain, other.domain.new_slot()), make(), driver.queue(1, "held"), Bytes()
    fills = driver.calls("fill")
    queue.wait(gate, 1)
    at, _ = queue.fill(x.address, 3, 64)
    queue.signal(ours)
    other.domain.leave()
    assert ours.wait(1, 5) == n.LOST
    assert queue.native.drain(5)
    assert queue.native.failure() == (at - 1, n.SYSTEM | errno.ESHUTDOWN)
    assert driver.calls("fill") == fills


# --- losses


@pytest.mark.parametrize("ordering", ["shared", "held"])
def test_signals_behind_a_lost_wait_never_reach_the_driver(peers, make, driver, ordering):
    gone, ours, other, future = make(), make(), make(), make()
    peer, queue = peers(gone.index), driver.queue(1, ordering)
    x = Bytes()
    assert peer.run("s.submit(1, device=True)") == (1, 0)
    assert queue.wait(gone, 1) == 0
    queue.fill(x.address, 9, 64)
    assert [queue.signal(ours) for _ in range(3)] == [1, 2, 3]
    assert queue.wait(future, 1) == 0  # what is behind this one is behind the lost one, too
    assert queue.signal(other) == 1
    stores, hosts = driver.calls("store64"), driver.calls("host")
    peer.kill()
    start = time.monotonic()
    assert [ours.wait(p, 5) for p in (1, 2, 3)] == [n.LOST] * 3
    assert other.wait(1, 5) == n.LOST
    assert time.monotonic() - start < 1
    assert ours.blame() == other.blame() == (1, peer.pid)
    until(lambda: x[63] == 9)  # other work still runs
    until(lambda: gone.released(1))
    assert queue.native.held > 0
    future.signal()
    assert queue.native.drain(5)
    assert (driver.calls("store64"), driver.calls("host")) == (stores, hosts)
    assert not queue.native.late(ours)
    queue.native.told(queue.native.handed)
    assert queue.signal(ours) == 4
    assert ours.wait(4, 5) == n.DONE
    assert queue.native.failure() is None


@pytest.mark.parametrize("ordering", ["shared", "held"])
def test_a_loss_waits_for_the_queues_own_earlier_point(peers, make, driver, ordering):
    gone, ours = make(), make()
    peer, queue = peers(gone.index), driver.queue(1, ordering)
    peer.run("s.submit(1, device=True)")
    queue.pause(True)
    assert queue.signal(ours) == 1
    assert queue.wait(gone, 1) == 0
    assert queue.signal(ours) == 2
    peer.kill()
    assert gone.wait(1, 5) == n.LOST
    assert ours.wait(2, 0.05) == n.PENDING
    queue.pause(False)
    assert (ours.wait(1, 5), ours.wait(2, 5)) == (n.DONE, n.LOST)
    assert queue.native.drain(5)
    assert n.load64(ours.address) in (1, 2)
    queue.native.told(queue.native.handed)
    assert queue.signal(ours) == 3
    assert ours.wait(3, 5) == n.DONE
    assert n.load64(ours.address) == 3


def test_a_future_point_that_nobody_can_signal(peers, make, driver):
    future, ours = make(), make()
    peer, queue = peers(future.index), driver.queue(1, "held")
    queue.wait(future, 5)
    queue.signal(ours)
    peer.kill()
    assert ours.wait(1, 5) == n.LOST
    assert queue.native.drain(5)
    assert future.pending == 0  # no device waits for it: nobody submits it for the sake of a loss


def test_what_is_held_behind_a_wait_of_the_device_is_lost_with_it(peers, make, driver):
    """The device waits for a point that is lost, and what is held behind that wait is lost with it."""
    gone, slot, gate, ours = make(), make(), make(), make()
    peer = peers(gone.index)
    peer.run("s.submit(1, device=True)")
    first, second = driver.queue(1), driver.queue(2, kind="half")  # holds what half a word does not tell
    first.wait(gone, 1)
    first.signal(slot)
    assert second.wait(slot, 1) == 0
    assert second.native.held == 0
    preset(gate, 2**32 - 2)
    assert second.wait(gate, 2**32 - 1) == 0
    assert second.signal(ours) == 1
    assert second.native.held == 2
    peer.kill()
    assert [s.wait(1, 5) for s in (slot, ours)] == [n.LOST] * 2
    gate.signal()
    assert second.native.drain(5)
    assert ours.state(1) == n.LOST
    assert n.load64(ours.address) <= 1


def test_losses_while_others_queue_and_drain(make, driver):
    """Several threads use one queue, whose waits are lost now and then: nothing stays held, no point stays owed."""
    queue, slots = driver.queue(1, "held"), [make() for _ in range(4)]
    stop, errors = threading.Event(), []

    def work(slot):
        try:
            while not stop.is_set():
                queue.signal(slot)
                queue.native.submit([])
                queue.native.drain(0.001)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(slot,)) for slot in slots]
    for thread in threads:
        thread.start()
    for i in range(150):
        gate = make()
        gate.submit(9)
        assert queue.wait(gate, 1) == 0
        if i % 3:
            gate.complete(1)
        else:
            gate.fail(2)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert queue.native.drain(10)
    queue.native.told(queue.native.handed)
    for slot in slots:
        assert slot.wait(slot.pending, 5) != n.PENDING
        assert not slot.owes()
        point = queue.signal(slot)
        assert slot.wait(point, 5) == n.DONE
    assert queue.native.failure() is None


# --- failures and stalls


@pytest.mark.parametrize("name", ["fill", "store64"])
def test_the_driver_refuses_what_was_held(make, driver, name):
    queue, gate, ours = driver.queue(1, "held"), make(), make()
    x = Bytes()
    queue.wait(gate, 1)
    at, _ = queue.fill(x.address, 1, 64)
    assert queue.signal(ours) == 1
    queue.copy(x.address, x.address, 64)
    copies = driver.calls("copy")
    driver.rule(name, 1, 719)
    gate.signal()
    assert ours.wait(1, 5) == n.LOST
    assert ours.blame() == (2, os.getpid())
    assert queue.native.drain(5)
    assert queue.native.failure() == (at if name == "fill" else at + 1, 719)
    assert queue.native.signal(ours, ours.address) == (0, 0, 719)
    assert queue.wait(gate, 2) == 719
    assert driver.calls("copy") == copies
    mark, _ = queue.mark()
    until(lambda: driver.finished(mark))
    driver.call("mark_destroy", mark)


def test_points_that_the_driver_has_complete_though_the_queue_has_failed(make, driver):
    queue, gate, ours = driver.queue(1, "held"), make(), make()
    queue.pause(True)
    assert queue.signal(ours) == 1
    queue.wait(gate, 1)
    queue.fill(0, 0, 0)
    assert queue.signal(ours) == 2
    driver.rule("fill", 1, 1)
    gate.signal()
    until(queue.native.failure)
    assert [ours.state(p) for p in (1, 2)] == [n.PENDING] * 2
    assert queue.native.held == 1
    failure = queue.native.failure()
    driver.rule("copy", 1, 2)
    queue.copy(0, 0, 0)
    queue.pause(False)
    assert (ours.wait(1, 5), ours.wait(2, 5)) == (n.DONE, n.LOST)
    assert queue.native.drain(5)
    assert queue.native.failure() == failure
    assert n.load64(ours.address) in (1, 2)


def test_the_driver_refuses_at_once(make, driver):
    queue, ours = driver.queue(1, "held"), make()
    driver.rule("store64", 1, 5)
    assert queue.native.signal(ours, ours.address) == (1, 0, 5)
    assert queue.native.failure() is None  # the caller knows
    ours.fail(2)
    driver.rule("fill", 1, 6)
    assert queue.fill(0, 0, 0)[1] == 6


def test_a_temporary_is_given_back_when_a_step_fails(make, driver):
    queue, ours = driver.queue(1, "held", "callbacks"), make()
    destroyed = driver.calls("mark_destroy")
    driver.rule("callback", 1, -58)
    assert queue.native.signal(ours, ours.address) == (1, 0, -58)
    assert driver.calls("mark_destroy") == destroyed + 1
    driver.rule("marker", 1, 0)
    driver.rule("mark_create", 1, -6)
    assert queue.native.signal(ours, ours.address)[2] != 0
    assert driver.calls("mark_destroy") == destroyed + 1


def test_a_callback_that_tells_of_a_failure_loses_the_point(make, driver):
    queue, ours = driver.queue(1, "held", "callbacks"), make()
    driver.rule("status", 1, -14)
    assert queue.signal(ours) == 1
    assert ours.wait(1, 5) == n.LOST
    assert ours.blame() == (2, os.getpid())


def test_a_stalled_driver_holds_up_nobody_else(peers, make, driver):
    slow, fast = driver.queue(1, "held"), driver.queue(2, "held")
    gate, gone, ours, theirs, other = make(), make(), make(), make(), make()
    peer = peers(gone.index)
    x = Bytes()
    slow.wait(gate, 1)
    slow.fill(x.address, 1, 64)
    slow.signal(ours)
    driver.rule("fill", 1, stall=True)
    gate.signal()
    until(lambda: driver.calls("fill") and slow.native.held == 2)
    fast.wait(gate, 2)
    fast.signal(theirs)
    gate.signal()
    assert theirs.wait(1, 5) == n.DONE
    peer.run("s.submit(1, device=True)")
    fast.wait(gone, 1)
    fast.signal(other)
    peer.kill()
    assert other.wait(1, 5) == n.LOST
    assert (slow.native.held, slow.native.failure(), ours.state(1)) == (2, None, n.PENDING)
    driver.go("fill")
    assert ours.wait(1, 5) == n.DONE


def test_releases_on_the_relay(driver):
    marks = [driver.mark() for _ in range(3)]
    driver.rule("mark_destroy", 1, stall=True)
    n.relay([(driver.at("mark_destroy"), marks[0])])
    n.relay([(driver.at("mark_destroy"), mark) for mark in marks[1:]])
    until(relay_running)
    until(lambda: driver.calls("mark_destroy") >= 2)
    driver.go("mark_destroy")
    until(lambda: driver.library.ss_events() == 0)
    assert n.close_relay(5)
    until(lambda: not relay_running())  # a thread leaves the list a moment after its end


# --- adopted queues


def test_an_adopted_queue_holds_nothing(make, driver):
    for ordering, kind in (("held", "words"), ("device", "callbacks"), ("shared", "words"), ("device", "half")):
        queue, slot = driver.queue(1, ordering, kind, adopted=True), make()
        preset(slot, 2**31 - 1)
        assert queue.wait(slot, 2**31) == n.NOT_HELD
        assert queue.native.held == 0
        assert queue.signal(slot) == 2**31
        assert slot.wait(2**31, 5) == n.DONE
        assert queue.wait(slot, 2**31) == 0


def test_an_adopted_queue_on_shared_hardware_waits_for_what_was_submitted(make, driver):
    queue, slot, done = driver.queue(1, "shared", adopted=True), make(), make()
    assert slot.submit(2, True) == (1, 0)
    assert queue.wait(slot, 1) == 0
    assert queue.signal(done) == 1
    assert done.wait(1, 0.02) == n.PENDING
    slot.complete(1)
    assert done.wait(1, 5) == n.DONE


def test_a_capture(make, driver):
    queue, slot = driver.queue(1, adopted=True), make()
    driver.library.ss_capture(ctypes.c_uint64(queue.stream), 1)
    assert queue.native.check() == n.CAPTURED
    assert queue.native.signal(slot, slot.address) == (0, 0, n.CAPTURED)
    driver.library.ss_capture(ctypes.c_uint64(queue.stream), 0)
    assert queue.native.check() == 0
    assert driver.queue(2).native.check() == 0


# --- words of 32 bits


@pytest.mark.parametrize("kind", ["half", "halves"])
@pytest.mark.parametrize("start", [2**31 - 5, 2**32 - 5, 2**33 - 5, 2**32 + 2**31 - 5])
def test_half_words_near_the_wrap(make, driver, kind, start):
    """A queue signals ahead across the wrap, another waits for every point, and sees what belongs to it."""
    first, second = driver.queue(1, "device", kind), driver.queue(2, "device", kind)
    slot, done = make(), make()
    preset(slot, start)
    first.pause(True)
    x = [Bytes() for _ in range(10)]
    y = [Bytes() for _ in range(10)]
    for i in range(10):
        first.fill(x[i].address, i + 1, 64)
        assert first.signal(slot) == start + i + 1
    for i in range(10):
        assert second.wait(slot, start + i + 1) == 0
        second.copy(y[i].address, x[i].address, 64)
        second.signal(done)
    assert done.wait(1, 0.05) == n.PENDING  # a wait that half a word does not tell would be over
    first.pause(False)
    assert done.wait(10, 10) == n.DONE
    assert [b[0] for b in y] == list(range(1, 11))
    assert slot.value == start + 10
    assert n.load64(slot.address) == start + 10


def test_half_words_wait_on_the_device_where_they_can(make, driver):
    queue, slot = driver.queue(1, "device", "half"), make()
    preset(slot, 2**32)
    waits = driver.calls("wait32_geq")
    queue.wait(slot, 2**32 + 1)
    assert (queue.native.held, driver.calls("wait32_geq")) == (0, waits + 1)
    slot.signal()
    until(queue.finished)
    late = make()
    preset(late, 2**32)
    store32(late.address + AT["slot.device"], 3)  # a store that comes late may bring the half before back
    queue.wait(late, 2**32 + 1)
    assert (queue.native.held, driver.calls("wait32_geq")) == (1, waits + 1)
    late.signal()
    assert queue.native.drain(5)


# --- processes

HELD = """
import sys; sys.path.insert(0, {here!r})
import atexit, os, ctypes
import native_peer, software_streams
from native_peer import n, relay_running, until
atexit.register(n.close_relay)  # as the package does when a process leaves, before memory goes that held calls use
exporter = native_peer.Exporter()
slots = [n.Slot(exporter.domain, exporter.domain.new_slot()) for _ in range(3)]
driver = software_streams.Driver()
queue = driver.queue(1, "held")
memory = (ctypes.c_uint8 * 64)()
queue.wait(slots[0], 1)
queue.fill(ctypes.addressof(memory), 1, 64)
queue.signal(slots[1])
"""


def script(body, timeout=20):
    here = str(Path(__file__).parent)
    code = HELD.format(here=here) + body
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code]  # from 3.12 on: of a fork
    return subprocess.run(command, timeout=timeout, capture_output=True, text=True, check=False)


def test_an_exit_with_held_operations():
    start = time.monotonic()
    ended = script("assert queue.native.held == 3")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert time.monotonic() - start < 10


def test_an_exit_while_the_driver_stalls_for_ever():
    start = time.monotonic()
    ended = script(
        "driver.rule('fill', 1, stall=True); slots[0].signal()\n"
        "until(lambda: driver.calls('fill')); assert queue.native.held == 2"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert time.monotonic() - start < 10


def test_a_fork_with_held_operations():
    ended = script("""
driver.rule("fill", 1, stall=True)
slots[0].signal()
until(lambda: driver.calls("fill"))  # the relay is in the driver, with the queue's lock
child = os.fork()
if child == 0:
    failed = 0
    for what in (lambda: queue.native.held, lambda: queue.native.drain(1), lambda: queue.signal(slots[1]),
                 lambda: queue.native.submit([]), lambda: queue.native.failure(), lambda: queue.native.late(slots[1])):
        try:
            what()
        except ValueError as error:
            failed += "fork" in str(error)
    until(lambda: not relay_running())  # a thread leaves the list a moment after its end
    n.relay([(ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value, 0)])  # a relay of its own
    until(relay_running)
    assert n.close_relay(5)
    del queue
    os._exit(failed)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
driver.go("fill")
assert slots[1].wait(1, 5) == n.DONE
assert memory[0] == 1
""")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_process_that_dies_with_held_signals_loses_them(peers, make):
    gate, ours = make(), make()
    peer = peers()
    peer.run(f"g, s = n.Slot(d, {gate.index}), n.Slot(d, {ours.index})")
    peer.run("import software_streams; q = software_streams.Driver().queue(1, 'held')")
    assert peer.run("q.wait(g, 1), q.signal(s)") == (0, 1)
    assert ours.state(1) == n.PENDING
    os.kill(peer.pid, signal.SIGKILL)
    assert ours.wait(1, 5) == n.LOST
    assert ours.blame() == (1, peer.pid)


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "names", "match"),
    [
        (((0, ("function", "data")),), {}, "address"),
        ((None,), {}, "host functions"),
        (((1, ("function",)),), {}, "lacks"),
        (((1, ("function", "data", "point")),), {}, "has not"),
        (((1, ("function", "data", "nothing")),), {}, "no such argument"),
        (((1, ("function", "data", "int_at")),), {}, "no such argument"),
        (((1, ("function", "data", ("point", 1))),), {}, "no such argument"),
        (((1, ("function", "data", ("int_at", 1))),), {}, "has not"),
        (((1, ("function", "data", *range(9))),), {}, "10 arguments"),
        ((((1, ("function", "data")),) * 5,), {}, "4 steps"),
        (((1,),), {}, "a step is"),
        (((1, ("function", "data")),), {"wait_bits": 16}, "32 or 64"),
        (((1, ("function", "data")),), {"host_data": 1}, "0 or 2"),
    ],
)
def test_recipes_that_are_wrong(arguments, names, match):
    with pytest.raises(ValueError, match=match):
        n.QueueCalls(*arguments, **names)


def test_queues_that_are_wrong(driver):
    table = driver.table("words")
    with pytest.raises(ValueError, match="ordering"):
        n.StreamQueue(1, 0, table, "other")
    with pytest.raises(ValueError, match="number"):
        n.StreamQueue(0, 0, table)
    with pytest.raises(TypeError):
        n.StreamQueue(1, 0, None)
    queue = n.StreamQueue(1, 0, table)
    for calls in ([()], [(0,)], [(1, *range(11))], [1]):
        with pytest.raises(ValueError, match=r"call|address"):
            queue.submit(calls)
