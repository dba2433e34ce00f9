"""`Lock` and `Atomic` between processes: names, pickles, deaths, fairness, interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept, wait_until
from words import words_of
from xpushare.channels import locks
from xpushare.timeline.waiting import readable


def hold(lock: xs.Lock) -> bool:
    kept["lock"] = lock
    return lock.acquire(10).owner_died


def acquire(lock: xs.Lock, timeout: float | None = None) -> bool:
    kept["lock"] = lock
    died = lock.acquire(timeout).owner_died
    lock.release()
    return died


def release() -> None:
    kept["lock"].release()


def close() -> None:
    kept.pop("lock").close()


@pytest.fixture
def lock() -> Iterator[xs.Lock]:
    with contextlib.closing(xs.Lock()) as made:
        yield made


# --- Lock


def test_acquire_and_release(lock: xs.Lock) -> None:
    with lock as held:
        assert not held.owner_died
    assert not lock.acquire().owner_died
    lock.release()
    with pytest.raises(xs.InvalidArgumentError, match="does not hold"):
        lock.release()


def test_reprs_show_the_name(lock: xs.Lock) -> None:
    with lock as held:
        assert (repr(lock), repr(held)) == ("<Lock>", "<Held owner_died=False>")
    with xs.Lock("database") as held, contextlib.closing(xs.Lock("database")) as named:
        assert (repr(named), repr(held)) == ("<Lock 'database'>", "<Held 'database' owner_died=False>")
    assert repr(named) == "<Lock 'database' closed>"
    with xs.Atomic(5) as nameless, xs.Atomic(5, "hits") as number:
        assert (repr(nameless), repr(number)) == ("<Atomic 5>", "<Atomic 'hits' 5>")
    assert (repr(nameless), repr(number)) == ("<Atomic closed>", "<Atomic 'hits' closed>")


def test_twice_in_one_thread_raises(lock: xs.Lock) -> None:
    other: xs.Lock = pickle.loads(pickle.dumps(lock))
    with lock:
        for each in (lock, other):
            with pytest.raises(xs.InvalidArgumentError, match="not re-entrant"):
                each.acquire()
    other.close()


@pytest.mark.usefixtures("no_fd_leak")
def test_a_timeout() -> None:
    with contextlib.closing(xs.Lock()) as lock, Child() as child:
        assert child.call(hold, lock) is False
        with pytest.raises(TimeoutError):
            lock.acquire(0.01)
        with pytest.raises(TimeoutError):
            lock.acquire(timeout=0)
        child.call(release)
        assert lock.acquire(10).owner_died is False
        lock.release()
        child.call(close)


def test_it_excludes() -> None:
    count = 200
    total = xs.zeros(1, "int64") if hasattr(xs, "zeros") else xs.empty(1, "int64", isolated=True)
    values: Any = memoryview(total)
    values[0] = 0
    handle = xs.share(total)
    lock = xs.Lock("excludes")

    def work(handle: xs.ArrayHandle, count: int) -> None:
        values: Any = memoryview(xs.attach(handle))
        mine = xs.Lock("excludes")
        for _ in range(count):
            with mine:
                before = values[0]
                os.sched_yield()
                values[0] = before + 1
        mine.close()

    with Child() as one, Child() as two:
        pending = [each.start(work, handle, count) for each in (one, two)]
        for _ in range(count):
            with lock:
                before = values[0]
                os.sched_yield()
                values[0] = before + 1
        for each in pending:
            each.result()
    assert values[0] == 3 * count
    lock.close()
    handle.close()


@pytest.mark.parametrize("waits", [False, True])
def test_the_owners_death_is_told(lock: xs.Lock, waits: bool) -> None:
    with Child() as owner, Child() as waiter:
        owner.call(hold, lock)
        if waits:
            pending = waiter.start(acquire, lock, 30)
            wait_until(lambda: owner.call(sleepers, lock) == 1)
        owner.kill()
        if not waits:
            pending = waiter.start(acquire, lock, 30)
        assert pending.result() is True
        assert lock.acquire(10).owner_died is False  # it was told once
        lock.release()
        waiter.call(close)


def sleepers(lock: xs.Lock) -> int:
    """The flag that somebody sleeps, which stands behind the lock's two words."""
    words = words_of(lock._at)  # type: ignore[arg-type]
    return int.from_bytes(words[20:24], "little")


@pytest.mark.parametrize("how", ["close", "exit"])
def test_going_while_holding_is_a_death(lock: xs.Lock, how: str) -> None:
    with Child() as child:
        child.call(hold, lock)
        if how == "close":
            child.call(close)
    assert lock.acquire(10).owner_died is True
    lock.release()
    assert lock.acquire(10).owner_died is False
    lock.release()


def test_death_of_one_who_took_over(lock: xs.Lock) -> None:
    """Whoever gets the lock of a dead owner and dies itself is an owner that died."""
    with Child() as first, Child() as second:
        first.call(hold, lock)
        first.kill()
        assert second.call(hold, lock) is True
        second.kill()
        assert lock.acquire(10).owner_died is True
        lock.release()


def test_an_index_used_again_is_not_taken_for_the_dead_owner(lock: xs.Lock) -> None:
    with Child() as owner:
        owner.call(hold, lock)
        owner.kill()
    with Child() as successor:
        assert successor.call(hold, lock) is True  # its index is the dead one's
        with pytest.raises(TimeoutError):
            lock.acquire(0.05)
        successor.call(release)
        successor.call(close)


def test_nobody_starves(lock: xs.Lock) -> None:
    """A process that acquires again and again lets others have their turn."""

    def greedy(lock: xs.Lock) -> int:
        turns, stop = 0, xs.Atomic(0, "starves")
        started = xs.Atomic(0, "started")
        while not stop.load():
            with lock:
                turns += 1
            started.store(1)
        for each in (stop, started, lock):
            each.close()
        return turns

    with xs.Atomic(0, "starves") as stop, xs.Atomic(0, "started") as started, Child() as child:
        pending = child.start(greedy, lock)
        started.wait(0, 30)
        for _ in range(50):
            with lock:
                pass
        stop.store(1)
        assert pending.result() > 0


def test_threads_exclude_each_other(lock: xs.Lock) -> None:
    inside: list[int] = []

    def work() -> None:
        for _ in range(200):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
        assert not each.is_alive()


def test_an_interrupt(lock: xs.Lock) -> None:
    def interrupted(lock: xs.Lock) -> str:
        kept["lock"] = lock
        try:
            lock.acquire()
        except KeyboardInterrupt:
            return "interrupted"
        return "acquired"

    with lock, Child() as child:
        pending = child.start(interrupted, lock)
        wait_until(lambda: sleepers(lock) == 1)
        os.kill(child.pid, signal.SIGINT)
        assert pending.result() == "interrupted"
        child.call(close)


def test_a_close_ends_waits(lock: xs.Lock) -> None:
    other: xs.Lock = pickle.loads(pickle.dumps(lock))
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            other.acquire()
        except xs.InvalidArgumentError as error:
            raised.append(error)

    with lock:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: sleepers(lock) == 1)
        other.close()
        thread.join(30)
        assert len(raised) == 1


def test_names() -> None:
    one, two, other = xs.Lock("same"), xs.Lock("same"), xs.Lock("other")
    with one:
        with other:
            pass
        raised: list[BaseException] = []
        thread = threading.Thread(target=lambda: raised.append(_refused(two)))
        thread.start()
        thread.join()
        assert len(raised) == 1
    for each in (one, two, other):
        each.close()
        each.close()
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        one.acquire()
    for wrong in ("", ".x", "a/b", "x" * 129):
        with pytest.raises(xs.InvalidArgumentError, match="not a valid name"):
            xs.Lock(wrong)
    with pytest.raises(xs.InvalidArgumentError, match="str"):
        xs.Lock(5)  # type: ignore[arg-type]


def _refused(lock: xs.Lock) -> BaseException:
    with pytest.raises(TimeoutError) as found:
        lock.acquire(0.01)
    return found.value


def test_it_lives_while_anybody_has_it_open() -> None:
    """Who made it may go; a newcomer finds it by whoever is left."""
    with Child() as maker, Child() as heir:
        for child in (maker, heir):
            child.call(lambda: kept.__setitem__("n", xs.Atomic(0, "heritage")))
        maker.call(lambda: kept["n"].add(5))
        maker.kill()
        with xs.Atomic(100, "heritage") as found:
            assert found.load() == 5
        heir.call(lambda: kept.pop("n").close())
    with xs.Atomic(100, "heritage") as found:
        assert found.load() == 100


def test_a_killed_process_leaves_a_name_that_can_be_used_again() -> None:
    with Child() as child:
        child.call(lambda: kept.__setitem__("n", xs.Atomic(5, "left")))
        child.kill()
    with xs.Atomic(7, "left") as found:
        assert found.load() == 7


def test_a_pickle_that_comes_too_late() -> None:
    lock, number = xs.Lock(), xs.Atomic(1)
    raw = pickle.dumps((lock, number))
    lock.close()
    number.close()
    late, late_number = pickle.loads(raw)
    with pytest.raises(xs.HandleExpiredError, match="nobody has this lock"):
        late.acquire()
    with pytest.raises(xs.HandleExpiredError, match="nobody has this atomic"):
        late_number.load()
    for each in (late, late_number):
        each.close()


def test_after_a_fork(lock: xs.Lock) -> None:
    raw = pickle.dumps(lock)
    kept["inherited"] = lock

    def inherited() -> bool:
        theirs = kept.pop("inherited")  # by name: a closure would open its pickle
        with pytest.raises(xs.ForkError):
            theirs.acquire()
        theirs.close()
        mine: xs.Lock = pickle.loads(raw)
        with pytest.raises(TimeoutError):
            mine.acquire(0.01)
        mine.close()
        return True

    with lock, Child(method="fork") as child:
        assert child.call(inherited)
    del kept["inherited"]
    assert lock.acquire(10).owner_died is False
    lock.release()


def test_no_copies(lock: xs.Lock) -> None:
    import copy

    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(lock)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(lock)


# --- tasks


class Looks:
    """Counts how often tasks that wait for a lock have looked, and found it busy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(locks, "readable", self._readable)

    async def _readable(self, fd: int, seconds: float | None) -> None:
        self.count += 1
        await readable(fd, seconds)

    async def reach(self, count: int) -> None:
        while self.count < count:
            await asyncio.sleep(0)


async def take(lock: xs.Lock) -> bool:
    async with lock as held:
        return held.owner_died


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@pytest.mark.parametrize("how", ["release", "die", "close"])
def test_a_task_waits_for_another_process(lock: xs.Lock, looks: Looks, how: str) -> None:
    async def main(child: Child) -> bool:
        waiting = asyncio.create_task(take(lock))
        await looks.reach(1)
        assert not waiting.done()
        child.kill() if how == "die" else child.call(release if how == "release" else close)
        return await asyncio.wait_for(waiting, 30)

    with Child() as child:
        child.call(hold, lock)
        assert asyncio.run(main(child)) is (how != "release")
    assert not lock.acquire(0).owner_died
    lock.release()


def test_tasks_take_turns(lock: xs.Lock) -> None:
    inside = total = 0

    async def work() -> None:
        nonlocal inside, total
        for _ in range(5):
            async with lock:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1
                total += 1

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*(work() for _ in range(4))), 30)

    asyncio.run(main())
    assert total == 20


def test_a_cancelled_task_leaves_the_queue(lock: xs.Lock, looks: Looks) -> None:
    other = xs.Lock()  # of the same group

    async def main() -> None:
        waiting = asyncio.create_task(take(lock))
        await looks.reach(1)
        with other:
            pass  # the task looks again, and nobody may overtake it from then on
        await looks.reach(2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with Child() as child, contextlib.closing(other):
        child.call(hold, lock)
        asyncio.run(main())
        child.call(release)
        assert not lock.acquire(10).owner_died
        lock.release()


def test_a_task_is_not_overtaken_for_ever(lock: xs.Lock, looks: Looks) -> None:
    async def main() -> bool:
        waiting = asyncio.create_task(take(lock))
        await looks.reach(1)
        other = xs.Lock()  # of the same group
        with contextlib.closing(other), other:
            pass
        await looks.reach(2)
        child.call(release)
        with pytest.raises(TimeoutError):
            lock.acquire(0)
        return await asyncio.wait_for(waiting, 30)

    with Child() as child:
        child.call(hold, lock)
        assert not asyncio.run(main())


def test_closing_ends_the_wait_of_a_task(looks: Looks) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(take(lock))
        await looks.reach(1)
        lock.close()
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            await asyncio.wait_for(waiting, 30)

    lock = xs.Lock()
    with Child() as child:
        child.call(hold, lock)
        asyncio.run(main())


def test_a_task_learns_why_a_lock_was_not_opened() -> None:
    lock = xs.Lock()
    sent = pickle.dumps(lock)
    lock.close()
    late = pickle.loads(sent)
    with pytest.raises(xs.HandleExpiredError, match="nobody has this lock"):
        asyncio.run(take(late))
    late._give_up(1)  # has no effect


def test_trio(lock: xs.Lock) -> None:
    trio = pytest.importorskip("trio")

    async def main(child: Child) -> bool:
        with trio.move_on_after(0.01) as scope:
            await take(lock)
        assert scope.cancelled_caught
        found = []

        async def wait() -> None:
            found.append(await take(lock))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.lowlevel.checkpoint()
                child.call(release)
        return found[0]

    with Child() as child:
        child.call(hold, lock)
        assert trio.run(main, child) is False


# --- Atomic


def test_arithmetic() -> None:
    with xs.Atomic(-3) as number:
        assert number.add(5) == -3
        assert number.load() == 2
        number.store(9)
        assert not number.compare_exchange(8, 1)
        assert number.compare_exchange(9, 1)
        assert number.load() == 1
        number.store((1 << 63) - 1)
        number.add(1)
        assert number.load() == -(1 << 63)
        for change in (number.store, number.add):
            with pytest.raises(xs.InvalidArgumentError, match="64 bits"):
                change(1 << 63)
        assert number.load() == -(1 << 63)
    with pytest.raises(xs.InvalidArgumentError, match="64 bits"):
        xs.Atomic(1 << 63)
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        number.load()


def test_adding_from_several_processes() -> None:
    def work(number: xs.Atomic, count: int) -> None:
        for _ in range(count):
            number.add(1)
        number.close()

    with xs.Atomic() as number, Child() as one, Child() as two:
        pending = [each.start(work, number, 5000) for each in (one, two)]
        for each in pending:
            each.result()
        assert number.load() == 10000


def test_waiting_for_another_value() -> None:
    def change(number: xs.Atomic, value: int) -> None:
        number.store(value)
        number.close()

    with xs.Atomic(1) as number, Child() as child:
        number.wait(0)
        with pytest.raises(TimeoutError, match="the number was 1"):
            number.wait(1, 0.01)
        pending = child.start(change, number, 2)
        number.wait(1, 30)
        assert number.load() == 2
        pending.result()


def test_an_interrupt_of_a_wait() -> None:
    with xs.Atomic(1) as number:
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            number.wait(1)
        timer.join()


def test_a_death_is_told_soon(lock: xs.Lock) -> None:
    """Within 5 ms on an idle machine; here only that no poll of half a second stands between."""
    with Child() as child:
        child.call(hold, lock)
        told: list[float] = []
        thread = threading.Thread(target=lambda: told.append(_died_after(lock)))
        thread.start()
        wait_until(lambda: sleepers(lock) == 1)
        child.kill()
        thread.join(30)
        assert told


def _died_after(lock: xs.Lock) -> float:
    start = time.monotonic()
    assert lock.acquire(30).owner_died
    lock.release()
    return time.monotonic() - start
