"""Many members, many locks, and processes that fork, run other programs or die at any system call of a join."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tracing
import xpushare as xs
from harness import TIMEOUT, Child, fd_count, kept, wait_until
from xpushare.sharing import identity

exhaustive = pytest.mark.exhaustive
traced = pytest.mark.skipif(not tracing.available(), reason="needs ptrace on x86-64")

# --- many processes


def in_many(count: int, work: Callable[[], object]) -> list[str]:
    """Do `work` in `count` forked processes at once, none of which ends before all have done it. Returns how it failed
    in those in which it did.
    """
    xs.Channel.create(None, 1).close()  # loads the modules, which takes each of them longer than all else
    xs.Lock().close()
    begin, go = os.pipe()
    end, stop = os.pipe()
    told, tell = os.pipe()
    pids: list[int] = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(go)
                os.close(stop)
                os.read(begin, 1)
                try:
                    kept["work"] = work()
                    text = "."
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"
                os.write(tell, text[:200].encode() + b"\n")
                os.read(end, 1)
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(go)
    os.close(tell)
    with open(told, encoding="utf-8") as answers:
        found = [answers.readline().rstrip("\n") for _ in range(count)]
    os.close(stop)
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(begin)
    os.close(end)
    return [text for text in found if text != "."]


@pytest.mark.parametrize("count", [48, pytest.param(128, marks=exhaustive), pytest.param(500, marks=exhaustive)])
def test_processes_that_open_a_channel_at_once_all_get_in(count: int) -> None:
    with xs.Channel.create("test", 8, members=count + 1), Child(timeout=4 * TIMEOUT) as child:
        assert child.call(in_many, count, lambda: xs.Channel.open("test", timeout=TIMEOUT)) == []


@pytest.mark.parametrize("count", [48, pytest.param(128, marks=exhaustive)])
def test_processes_that_make_a_lock_at_once_have_one(count: int) -> None:
    def add() -> tuple[object, ...]:
        lock, total = xs.Lock("test"), xs.Atomic(0, "total")
        with lock:
            total.store(total.load() + 1)
        return lock, total

    with Child(timeout=4 * TIMEOUT) as child, contextlib.closing(xs.Atomic(0, "total")) as total:
        assert child.call(in_many, count, add) == []
        assert total.load() == count
    xs.Lock("test").close()  # all that had it died, so it was made again, and is removed


def test_a_channel_has_128_ends_by_default() -> None:
    with contextlib.ExitStack() as ends:
        ends.enter_context(xs.Channel.create("test", 8))
        for _ in range(127):
            ends.enter_context(xs.Channel.open("test", timeout=TIMEOUT))
        with pytest.raises(xs.InvalidArgumentError, match=r"the channel 'test' has 128 ends, and no room for more"):
            xs.Channel.open("test", timeout=TIMEOUT)
    with xs.Channel.create("test", 8), xs.Channel.open("test", timeout=TIMEOUT):
        pass  # there is room again


@pytest.mark.parametrize("members", [0, 1025])
def test_a_channel_has_at_most_1024_ends(members: int) -> None:
    with pytest.raises(xs.InvalidArgumentError, match="members"):
        xs.Channel.create("test", 8, members=members)


def open_ends(count: int) -> None:
    kept["ends"] = [xs.Channel.open("test", timeout=TIMEOUT) for _ in range(count)]


def received() -> list[float]:
    found: list[float] = []
    for each in kept["ends"]:
        with each.receive(timeout=TIMEOUT) as frame:
            found.append(float(np.asarray(frame.array)[0]))
    return found


def close_ends() -> None:
    for each in kept.pop("ends"):
        each.close()


@exhaustive
def test_a_channel_with_1024_ends_in_20_processes() -> None:
    with xs.Channel.create("test", 8, members=1024) as channel, contextlib.ExitStack() as children:
        counts = [52] * 3 + [51] * 17  # and the writer: 1,024
        processes = [children.enter_context(Child()) for _ in counts]
        for pending in [child.start(open_ends, count) for child, count in zip(processes, counts, strict=True)]:
            pending.result(TIMEOUT)
        with pytest.raises(xs.InvalidArgumentError, match="has 1024 ends, and no room for more"):
            xs.Channel.open("test", timeout=TIMEOUT)
        with channel.loan(timeout=TIMEOUT) as loan:
            np.asarray(loan.array)[:] = 7.0
        for pending in [child.start(received) for child in processes]:
            assert set(pending.result(TIMEOUT)) == {7.0}
        processes[0].kill()  # its ends are free again
        wait_until(lambda: _opens("test"))  # an end of the dead process
        for child in processes[1:]:
            child.call(close_ends)


def _opens(name: str) -> bool:
    try:
        xs.Channel.open(name, timeout=TIMEOUT).close()
    except xs.InvalidArgumentError:
        return False
    return True


# --- many locks


def hold(name: str) -> None:
    kept["lock"] = xs.Lock(name)
    kept["lock"].acquire(TIMEOUT)


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=exhaustive)])
@pytest.mark.timeout(600)
def test_many_locks_take_few_descriptors(count: int) -> None:
    before = fd_count()
    locks = [xs.Lock(f"test{i}") for i in range(count)]
    try:
        assert fd_count() - before <= 100
        with Child() as child:
            child.call(hold, f"test{count // 2}")
            with pytest.raises(TimeoutError):
                locks[count // 2].acquire(0)
            child.kill()
            assert locks[count // 2].acquire(TIMEOUT).owner_died
            locks[count // 2].release()
        assert not locks[count // 2 + 1].acquire(TIMEOUT).owner_died
    finally:
        for lock in locks:
            lock.close()


# --- the files of the runtime folder


def is_held(name: str) -> bool:
    with contextlib.closing(xs.Lock(name)) as lock:
        try:
            lock.acquire(0)
        except TimeoutError:
            return True
        lock.release()
        return False


def _regular_files() -> Iterator[Path]:
    for folder, _, files in os.walk(identity.runtime_dir()):
        for each in files:
            path = Path(folder, each)
            if path.is_file():
                yield path


@pytest.mark.parametrize("act", ["read", "copy"])
def test_a_process_may_read_and_copy_the_runtime_folder(act: str, tmp_path: Path) -> None:
    with (
        contextlib.closing(xs.Lock("test")) as lock,
        contextlib.closing(xs.Atomic(3, "count")) as count,
        xs.Channel.create("frames", 4) as channel,
        Child() as child,
    ):
        with lock:
            if act == "copy":
                shutil.copytree(identity.runtime_dir(), tmp_path / "copy", ignore=_no_sockets)
            else:
                assert sum(len(path.read_bytes()) for path in _regular_files())
            assert child.call(is_held, "test")
            child.call(lambda: xs.Atomic(0, "count").add(1))
            assert count.load() == 4
            child.call(open_reader, "frames")
            with channel.loan(timeout=TIMEOUT) as loan:
                np.asarray(loan.array)[:] = 5.0
            assert child.call(received) == [5.0]
            child.call(close_ends)
        assert not child.call(is_held, "test")


def _no_sockets(folder: str, names: list[str]) -> list[str]:
    return [
        each
        for each in names
        if not os.path.isfile(os.path.join(folder, each)) and not os.path.isdir(os.path.join(folder, each))
    ]


def open_reader(name: str) -> None:
    kept["ends"] = [xs.Channel.open(name, timeout=TIMEOUT)]


def test_deleted_files_make_no_second_owner() -> None:
    """A process that opens the name after its file was deleted either gets the same lock or another one. The owner
    releases the one that it has.
    """
    with contextlib.closing(xs.Lock("test")) as lock, Child() as child:
        child.call(hold_other, "test")
        with lock:
            for path in (identity.runtime_dir() / "crews").iterdir():
                path.unlink()
            assert child.call(cannot_acquire)
        assert not child.call(cannot_acquire)
        child.call(lambda: kept.pop("lock").close())


def hold_other(name: str) -> None:
    kept["lock"] = xs.Lock(name)


def cannot_acquire() -> bool:
    try:
        kept["lock"].acquire(0)
    except TimeoutError:
        return True
    kept["lock"].release()
    return False


# --- forks, other programs, and deaths at each system call

STEPS: dict[str, str] = {
    "lock": "it = xs.Lock('test')",
    "atomic": "it = xs.Atomic(0, 'test')",
    "channel": "it = xs.Channel.create('test', 4, slots=10, writers=8)",
}

PROGRAM = """
import gc, os, signal, sys
import xpushare as xs
with xs.Channel.create("warm", 4) as it, it.loan():
    pass
it = xs.Lock("warm")
it.acquire()
it.release()
it.close()
it = xs.Atomic(0, "warm")
it.close()
del it
gc.collect()

def part(line):
    os.kill(os.getpid(), signal.SIGSTOP)
    os.getsid(0)
    exec(line, globals())
    os.getsid(0)

print("ready", flush=True)
for line in sys.stdin:
    if line.startswith("fork "):
        pid = os.fork()
        if pid == 0:
            gc.disable()
            part(line[5:])
            os._exit(0)
        print(pid, flush=True)
        os.waitpid(pid, 0)
    elif line.startswith("part "):
        part(line[5:])
        print("done", flush=True)
    else:
        exec(line)
        print("done", flush=True)
"""


class Program:
    """A process that carries out lines."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.answer() == "ready"

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def do(self, line: str) -> None:
        self.say(line)
        assert self.answer() == "done"

    def fork_in(self, line: str) -> list[int]:
        """Carry it out with a raw child at each system call."""
        self.say(f"part {line}")
        tracing.wait_until_stopped(self.process.pid)
        children = tracing.fork_at_each_call(self.process.pid)
        assert self.answer() == "done"
        return children

    def kill_in(self, line: str, which: int) -> bool:
        """Kill a forked process at that system call of the line. Returns False if it has not as many."""
        self.say(f"fork {line}")
        pid = int(self.answer())
        tracing.wait_until_stopped(pid)
        return tracing.kill_at_call(pid, which)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@traced
@pytest.mark.parametrize("how", STEPS)
def test_raw_children_of_each_call_of_a_join_and_a_leave(how: str) -> None:
    """Each has copies of all descriptors, lives on, and knows of nothing that happens at a fork."""
    children: list[int] = []
    try:
        with Program() as program:
            children += program.fork_in(STEPS[how])
            with contextlib.closing(_joined(how)):
                pass
            children += program.fork_in("it.close()")
        assert not _exists(how)  # the last one has removed it, and waited for none of the children
        with contextlib.closing(_joined(how)):
            assert _exists(how)
    finally:
        tracing.end_all(children)


@traced
def test_raw_children_of_an_owner_neither_keep_nor_lose_its_lock() -> None:
    children: list[int] = []
    try:
        with contextlib.closing(xs.Lock("test")) as lock, Program() as program:
            program.do(STEPS["lock"])
            children += program.fork_in("it.acquire()")
            with pytest.raises(TimeoutError):
                lock.acquire(0)
            children += program.fork_in("it.release()")
            assert not lock.acquire(TIMEOUT).owner_died
            lock.release()
            program.do("it.acquire()")
            program.process.kill()
            assert lock.acquire(TIMEOUT).owner_died
            lock.release()
    finally:
        tracing.end_all(children)


@pytest.mark.parametrize("other", ["os.posix_spawn('/bin/sleep', ['sleep', '60'], {})",
                                   "os.spawnv(os.P_NOWAIT, '/bin/sleep', ['sleep', '60'])"])  # fmt: skip
def test_a_spawned_program_does_not_keep_a_lock(other: str) -> None:
    with contextlib.closing(xs.Lock("test")) as lock, Program() as program:
        program.do(STEPS["lock"] + "; it.acquire()")
        program.say(f"print({other}, flush=True)")
        sleeper = int(program.answer())
        assert program.answer() == "done"
        try:
            with pytest.raises(TimeoutError):
                lock.acquire(0)
            program.process.kill()
            assert lock.acquire(TIMEOUT).owner_died
            lock.release()
        finally:
            os.kill(sleeper, signal.SIGKILL)


def test_an_owner_that_becomes_another_program_is_gone() -> None:
    with contextlib.closing(xs.Lock("test")) as lock, Program() as program:
        program.do(STEPS["lock"] + "; it.acquire()")
        with pytest.raises(TimeoutError):
            lock.acquire(0)
        program.say("os.execv('/bin/sleep', ['sleep', '60'])")
        assert lock.acquire(TIMEOUT).owner_died
        lock.release()


@traced
@pytest.mark.parametrize("how", STEPS)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a member"])
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.timeout(600)
def test_a_death_at_each_call_of_a_life_is_replaced(how: str, beside: bool, stride: int) -> None:
    """A process makes or joins it, and leaves, and dies at one of the calls. The next process gets in, and the last
    leaves no file.
    """
    with Program() as program, contextlib.closing(_joined(how)) if beside else contextlib.nullcontext():
        which = 0
        while program.kill_in(STEPS[how] + "; it.close()", which):
            with contextlib.closing(_joined(how)):
                pass
            assert _exists(how) == beside
            which += stride
        assert which > 3 * stride
    with Child() as child:  # the first call of a process removes what the dead have left
        child.call(lambda: xs.Lock("other").close())


def _joined(how: str) -> xs.Lock | xs.Atomic | xs.Channel:
    if how == "lock":
        return xs.Lock("test")
    return xs.Atomic(0, "test") if how == "atomic" else xs.Channel.create("test", 4, slots=10, writers=8)


def _exists(how: str) -> bool:
    return (identity.runtime_dir() / "crews" / f"{how}.test").exists()
