"""Measure how soon the living go on when a process of a lock or a channel is killed, in one run with what the kernel
needs by itself.

"lock" is a waiter that gets the lock of a killed owner, beside a waiter of a robust pthread mutex in shared memory,
whose owner is killed likewise. "successor" is a reader with `reconnect` that gets the first frame of the next writer,
from before that writer's send. "reader" is a writer whose slots a killed reader held or had yet to read: when it has
sent the next frame, for each `on_full`. With "raise" it tries again and again; with "overwrite" it waits for nobody.

Each figure is given from `kill()` and from the moment at which the pidfd of the killed process is readable, which the
kernel says once it has taken the process apart (negative: before that).

    python -m benchmarks.deaths [--rounds 50]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

import xpushare as xs

CONTEXT: Final = multiprocessing.get_context("forkserver")
_OWNER_DEAD: Final = 130  # EOWNERDEAD
_SLOTS: Final = 4
_POLICIES: Final[tuple[Literal["block", "overwrite", "raise"], ...]] = ("block", "overwrite", "raise")


class Process:
    """A process that does as it is told by a pipe."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._pipe, there = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=target, args=(there, *arguments))
        self._process.start()
        self.pid: Final = self._process.pid or 0
        assert self.told() == "ready"

    def tell(self, what: Any = None) -> None:
        self._pipe.send(what)

    def told(self) -> Any:
        assert self._pipe.poll(60), "the other process says nothing"
        return self._pipe.recv()

    def kill(self) -> tuple[int, int]:
        """When it was killed, and when its pidfd became readable, in nanoseconds."""
        pidfd = os.pidfd_open(self.pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        begin = time.monotonic_ns()
        os.kill(self.pid, signal.SIGKILL)
        poll.poll()
        end = time.monotonic_ns()
        os.close(pidfd)
        self._process.join()
        return begin, end

    def join(self) -> None:
        self._process.join()


def _asleep(pid: int, thread: int) -> None:
    """Wait until that thread sleeps."""
    while True:
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "S":
                return
        os.sched_yield()


# --- locks


def _xpushare_lock(name: str) -> Callable[[], bool]:
    lock = xs.Lock(name)
    return lambda: lock.acquire(30).owner_died


def _robust_mutex(words: Any) -> Callable[[], bool]:
    libc = ctypes.CDLL(None)
    address = ctypes.c_void_p(np.asarray(words).ctypes.data)

    def acquire() -> bool:
        kept = words  # the memory lives while the mutex is used
        found: int = libc.pthread_mutex_lock(address)
        assert kept is words
        assert found in (0, _OWNER_DEAD)
        return found == _OWNER_DEAD

    return acquire


def _new_mutex() -> Any:
    words, libc, attributes = xs.empty(64, "uint8"), ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutexattr_init(attributes)
    libc.pthread_mutexattr_setpshared(attributes, 1)
    libc.pthread_mutexattr_setrobust(attributes, 1)
    libc.pthread_mutex_init(ctypes.c_void_p(np.asarray(words).ctypes.data), attributes)
    return words


def _locking(pipe: Any, make: Callable[[Any], Callable[[], bool]], what: Any) -> None:
    acquire = make(what)
    pipe.send("ready")
    while pipe.recv() != "end":
        pipe.send(threading.get_native_id())
        died = acquire()
        now = time.monotonic_ns()
        pipe.send((died, now))


def lock(make: Callable[[Any], Callable[[], bool]], new: Callable[[], Any], rounds: int) -> list[tuple[int, int, int]]:
    found = []
    for _ in range(rounds):
        what = new()
        kept = xs.Lock(what) if isinstance(what, str) else contextlib.nullcontext()
        owner, waiter = Process(_locking, make, what), Process(_locking, make, what)
        owner.tell()
        owner.told()
        assert owner.told()[0] is False
        waiter.tell()
        _asleep(waiter.pid, waiter.told())
        begin, readable = owner.kill()
        died, now = waiter.told()
        assert died
        waiter.tell("end")
        waiter.join()
        if isinstance(kept, xs.Lock):
            kept.close()
        found.append((begin, readable, now))
    return found


# --- channels


def _writing(pipe: Any, name: str) -> None:
    with xs.Channel.create(name, 64, "int64") as ch:
        pipe.send("ready")
        while pipe.recv() != "end":
            begin = time.monotonic_ns()
            ch.send(np.full(64, begin))
            pipe.send(begin)
        ch.finish()


def successor(rounds: int) -> list[tuple[int, int, int]]:
    """A reader that waits when the writer dies gets the first frame of its successor."""
    name, found = f"bench-successor-{os.getpid()}", []
    writer = Process(_writing, name)
    arrivals: list[tuple[int, int]] = []
    with xs.Channel.open(name, reconnect=True) as ch:
        reader = threading.Thread(target=_read_all, args=(ch, arrivals))
        reader.start()
        for k in range(rounds):
            writer.tell()
            writer.told()
            begin, readable = writer.kill()
            writer = Process(_writing, name)  # takes the channel over
            _asleep(os.getpid(), reader.native_id or 0)
            writer.tell()
            sent = writer.told()
            while len(arrivals) < 2 * k + 2:
                time.sleep(0.0005)
            value, now = arrivals[2 * k + 1]
            assert value == sent
            assert begin < readable < sent
            found.append((sent, sent, now))
        writer.tell("end")
        writer.join()
        reader.join()
    return found


def _read_all(ch: Any, arrivals: list[tuple[int, int]]) -> None:
    for frame in ch:
        value = int(np.asarray(frame)[0])
        arrivals.append((value, time.monotonic_ns()))


def _holding(pipe: Any, name: str, count: int) -> None:
    with xs.Channel.open(name) as ch:
        pipe.send("ready")
        pipe.recv()
        frames = [ch.receive(30) for _ in range(count)]
        pipe.send(len(frames))
        pipe.recv()


def _sending(pipe: Any, name: str, policy: Literal["block", "overwrite", "raise"]) -> None:
    with xs.Channel.create(name, 64, "int64", slots=_SLOTS, on_full=policy) as ch:
        pipe.send("ready")
        pipe.recv()
        frame = np.zeros(64, "int64")
        for _ in range(_SLOTS):
            ch.send(frame)
        pipe.send(threading.get_native_id())
        sent = []
        while not pipe.poll():
            with contextlib.suppress(xs.ChannelFull):
                ch.send(frame)
                sent.append(time.monotonic_ns())
        killed = pipe.recv()
        pipe.send(next(each for each in sent if each > killed))


def reader(policy: Literal["block", "overwrite", "raise"], rounds: int) -> list[tuple[int, int, int]]:
    """A reader dies that holds all it may, and has more to read: when the writer has sent the next frame."""
    found = []
    for _ in range(rounds):
        name = f"bench-reader-{os.getpid()}"
        writer = Process(_sending, name, policy)
        victim = Process(_holding, name, _SLOTS - 2)
        writer.tell()
        thread = writer.told()
        victim.tell()
        assert victim.told() == _SLOTS - 2
        if policy == "block":
            _asleep(writer.pid, thread)
        begin, readable = victim.kill()
        time.sleep(0.02)
        writer.tell(begin)
        found.append((begin, readable, writer.told()))
        writer.join()
    return found


def _show(what: str, name: str, found: list[tuple[int, int, int]]) -> None:
    for moment, times in (
        ("kill()", sorted((now - begin) / 1e6 for begin, _readable, now in found)),
        ("readable pidfd", sorted((now - readable) / 1e6 for _begin, readable, now in found)),
    ):
        median, most = times[len(times) // 2], times[min(len(times) * 99 // 100, len(times) - 1)]
        print(f"{what:22}  {name:16} from {moment:14} median {median:8.3f} ms   99 % {most:8.3f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds: int = parser.parse_args().rounds
    CONTEXT.set_forkserver_preload(["numpy", "xpushare"])
    for name, make, new in (
        ("xs.Lock", _xpushare_lock, lambda: f"bench-{os.getpid()}-{time.monotonic_ns()}"),
        ("robust mutex", _robust_mutex, _new_mutex),
    ):
        _show("lock, owner killed", name, lock(make, new, rounds))
    for policy in _POLICIES:
        _show("reader killed", policy, reader(policy, rounds))
    found = sorted((now - sent) / 1e6 for sent, _same, now in successor(rounds))
    print(f"{'successor':22}  from its send: median {found[len(found) // 2]:8.3f} ms   99 % "
          f"{found[min(len(found) * 99 // 100, len(found) - 1)]:8.3f} ms", flush=True)  # fmt: skip
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
