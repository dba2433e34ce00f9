"""Events: the round trip between two processes, and what a waiter burns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from xpushare.bench.measure import Row, Settings, compare, spread
from xpushare.bench.worker import Kept, Worker, pin

__all__ = ["one_cpu", "two_cpus", "waiting"]

_TIMEOUT: Final = 60.0  # of one block of round trips; a hang must not be for ever
_OURS: Final = "ours"
_EVENT: Final = "multiprocessing.Event"
_ZMQ: Final = "pyzmq ipc://"
_PIPE: Final = "multiprocessing.Pipe"
_NO_ZMQ: Final = 'pyzmq is not installed (pip install "xpushare[bench]")'

# --- in the two processes ---------------------------------------------------------------------------


def _setup_first(kept: Kept, address: str, device: str) -> tuple[bytes, bytes]:
    """The process that measures. It makes both events: one per producer, as the package advises."""
    import xpushare as xs

    ping = kept["ping"] = xs.Event(device, enable_ipc=True)
    pong = kept["pong"] = xs.Event(device, enable_ipc=True)
    kept["round"] = 0
    if address:
        import zmq

        kept["socket"] = zmq.Context().socket(zmq.PAIR)
        kept["socket"].bind(address)
    return bytes(xs.ipc.event.get(ping)), bytes(xs.ipc.event.get(pong))


def _setup_second(kept: Kept, address: str, ping: bytes, pong: bytes) -> None:
    import xpushare as xs

    kept["ping"] = xs.ipc.event.open(ping)
    kept["pong"] = xs.ipc.event.open(pong)
    kept["round"] = 0
    if address:
        import zmq

        kept["socket"] = zmq.Context().socket(zmq.PAIR)
        kept["socket"].connect(address)


def _end(kept: Kept) -> None:
    socket = kept.pop("socket", None)
    if socket is not None:
        context = socket.context
        socket.close(0)
        context.term()


def _first(kept: Kept, way: str, batch: int) -> float:
    """Microseconds for one of `batch` round trips."""
    turns = range(batch)
    clock = time.perf_counter_ns
    if way == _OURS:
        ping, pong = kept["ping"], kept["pong"]
        base = kept["round"] + 1
        kept["round"] += batch
        start = clock()
        for n in range(base, base + batch):
            ping.signal()
            pong.wait(_TIMEOUT, at_least=n)
        end = clock()
    elif way == _EVENT:
        there, back = kept["there"], kept["back"]
        start = clock()
        for _ in turns:
            there.set()
            if not back.wait(_TIMEOUT):
                raise TimeoutError
            back.clear()
        end = clock()
    elif way == _ZMQ:
        socket = kept["socket"]
        start = clock()
        for _ in turns:
            socket.send(b"1")
            socket.recv()
        end = clock()
    else:
        connection = kept["pipe"]
        start = clock()
        for _ in turns:
            connection.send_bytes(b"1")
            connection.recv_bytes()
        end = clock()
    return (end - start) / batch / 1000


def _second(kept: Kept, way: str, batch: int) -> None:
    """The other end: answers `batch` times."""
    turns = range(batch)
    if way == _OURS:
        ping, pong = kept["ping"], kept["pong"]
        base = kept["round"] + 1
        kept["round"] += batch
        for n in range(base, base + batch):
            ping.wait(_TIMEOUT, at_least=n)
            pong.signal()
    elif way == _EVENT:
        there, back = kept["there"], kept["back"]
        for _ in turns:
            if not there.wait(_TIMEOUT):
                raise TimeoutError
            there.clear()
            back.set()
    elif way == _ZMQ:
        socket = kept["socket"]
        for _ in turns:
            socket.send(socket.recv())
    else:
        connection = kept["pipe"]
        for _ in turns:
            connection.send_bytes(connection.recv_bytes())


# --- the conductor ----------------------------------------------------------------------------------


class _Pair:
    """Two processes with every mechanism between them."""

    def __init__(self, settings: Settings, stack: contextlib.ExitStack) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        # Kept: a semaphore's name goes with the object that made it, and a spawned process looks it up later.
        shared = self._shared = {"there": context.Event(), "back": context.Event()}
        self.first = stack.enter_context(Worker(settings, {**shared, "pipe": here}))
        self.second = stack.enter_context(Worker(settings, {**shared, "pipe": there}))
        here.close()
        there.close()
        self._settings = settings
        self._address = ""

    def setup(self, cpus: tuple[list[int], list[int]], zmq: bool) -> None:
        """Pin first: threads that libraries start inherit it."""
        self.first.call(pin, cpus[0])
        self.second.call(pin, cpus[1])
        if zmq:
            folder = tempfile.mkdtemp(dir=self._settings.folder)
            self._address = f"ipc://{folder}/socket"
        handles = self.first.call(_setup_first, self._address, self._settings.device)
        self.second.call(_setup_second, self._address, *handles)

    def end(self) -> None:
        for worker in (self.first, self.second):
            worker.call(_end)

    def block(self, way: str, batch: int) -> float:
        self.second.start(_second, way, batch)
        self.first.start(_first, way, batch)
        sample: float = self.first.result(_TIMEOUT * 2)
        self.second.result(_TIMEOUT * 2)
        return sample

    def apart(self) -> bool:
        """Whether the two last ran on different CPUs."""
        return _last_cpu(self.first.pid) != _last_cpu(self.second.pid)


def _last_cpu(pid: int) -> int:
    """The CPU that the main thread of a process last ran on: field 39 of its stat."""
    return int(Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[36])


def _have_zmq() -> bool:
    try:
        import zmq
    except ImportError:
        return False
    return bool(zmq)


def _round_trips(
    settings: Settings, cpus: tuple[list[int], list[int]], ways: list[str], batches: dict[str, int]
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Samples for each way, in turn, in one pair of processes; and after how many the two were on two CPUs."""
    apart = dict.fromkeys(ways, 0)
    samples: dict[str, list[float]] = {way: [] for way in ways}
    with contextlib.ExitStack() as stack:
        pair = _Pair(settings, stack)
        pair.setup(cpus, _ZMQ in ways)
        for way in ways:
            pair.block(way, batches[way])
        for turn in range(settings.count(100, 3)):
            for step in range(len(ways)):
                way = ways[(turn + step) % len(ways)]
                samples[way].append(pair.block(way, batches[way]))
                apart[way] += pair.apart()
        pair.end()
    return samples, apart


def two_cpus(settings: Settings) -> list[Row]:
    """Event round trip between two processes on two CPUs: signal here, wait there, and back."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        return []
    one, two = available[:2]
    ways = [_OURS, _EVENT, _PIPE, *([_ZMQ] if _have_zmq() else [])]
    # Enough round trips a sample that the scheduler has spread the two processes, which a sample's start puts anywhere.
    batches = {way: settings.count(200, 20) for way in ways} | {_OURS: settings.count(5000, 2000)}
    rows: list[Row] = []
    # The wanted figures are for two processes that may use both CPUs. A process that may use only one never spins.
    for pinned, how, cpus in (
        (True, f"each process pinned to one CPU ({one}, {two})", ([one], [two])),
        (False, f"both processes free on CPUs {one} and {two}", ([one, two], [one, two])),
    ):
        samples, apart = _round_trips(settings, cpus, ways, batches)
        for way, most, wanted in (
            (_EVENT, 1 / 40, "40 times faster"),
            (_ZMQ, 1 / 25, "25 times faster"),
            (_PIPE, None, ""),
        ):
            if way not in samples:
                rows[-1].notes.append(_NO_ZMQ)
                continue
            row = compare("two_cpus", f"event round trip, {how}", samples[_OURS], way, samples[way])
            if not pinned and most is not None and row.ratio is not None:
                row.wanted, row.met = wanted, row.ratio <= most
            count = len(samples[way])
            row.notes.append(
                f"{batches[way]} round trips a sample; on two CPUs after {apart[_OURS]} of {count} samples, "
                f"theirs {apart[way]}"
            )
            rows.append(row)
    return rows


_FUTEX: Final = r"""
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void wait_for(uint32_t *word, uint32_t n)
{
    uint32_t now;
    while ((now = __atomic_load_n(word, __ATOMIC_SEQ_CST)) != n)
        syscall(SYS_futex, word, FUTEX_WAIT, now, NULL, NULL, 0);
}

static void post(uint32_t *word, uint32_t n)
{
    __atomic_store_n(word, n, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

int main(int argc, char **argv)
{
    uint32_t rounds = (uint32_t)atoi(argv[1]);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(argv[2]), &set);
    if (argc != 3 || sched_setaffinity(0, sizeof set, &set))
        return 1;
    alarm(60);
    uint32_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint32_t *ping = words, *pong = words + 64;
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint32_t n = 1; n <= rounds + 10; n++) {
            wait_for(ping, n);
            post(pong, n);
        }
        _exit(0);
    }
    struct timespec a, b;
    for (uint32_t n = 1; n <= rounds + 10; n++) {
        if (n == 11)
            clock_gettime(CLOCK_MONOTONIC, &a);
        post(ping, n);
        wait_for(pong, n);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    waitpid(child, NULL, 0);
    printf("%.6f\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / rounds / 1000);
    return 0;
}
"""


def _compile(folder: str) -> Path | None:
    """The bare futex ping-pong, compiled; None where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    source = Path(folder, "futex.c")
    source.write_text(_FUTEX)
    program = Path(folder, "futex")
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True, capture_output=True, timeout=60)
    return program


def one_cpu(settings: Settings) -> list[Row]:
    """The same with both processes on one CPU, against a bare futex ping-pong in C."""
    cpu = min(os.sched_getaffinity(0))
    name = f"event round trip, both processes pinned to CPU {cpu}"
    batch = settings.count(200, 20)
    program = _compile(tempfile.mkdtemp(dir=settings.folder))
    ours: list[float] = []
    theirs: list[float] = []

    def futex() -> float:
        assert program is not None
        done = subprocess.run(
            [str(program), str(batch), str(cpu)], check=True, capture_output=True, text=True, timeout=90
        )
        return float(done.stdout)

    with contextlib.ExitStack() as stack:
        pair = _Pair(settings, stack)
        pair.setup(([cpu], [cpu]), zmq=False)
        pair.block(_OURS, batch)
        for turn in range(settings.count(100, 3)):
            for which in (turn, turn + 1):
                if which % 2:
                    ours.append(pair.block(_OURS, batch))
                elif program is not None:
                    theirs.append(futex())
        pair.end()
    if program is None:
        return [
            Row(
                "one_cpu",
                name,
                "us",
                spread(ours),
                "bare futex in C",
                wanted="at most 2 times",
                notes=["no C compiler here: nothing to compare with"],
            )
        ]
    return [
        compare(
            "one_cpu",
            name,
            ours,
            "bare futex ping-pong in C",
            theirs,
            most=2.0,
            wanted="at most 2 times",
            notes=[f"{batch} round trips a sample; each C sample is a process of its own, timed inside"],
        )
    ]


# --- what a waiter burns ----------------------------------------------------------------------------


def _wait_without_signal(kept: Kept, way: str, seconds: float) -> tuple[float, float]:
    """CPU time in us of a thread that waits, and of the whole process meanwhile (its warden included)."""
    import resource

    found: list[tuple[float, float]] = []

    def used(who: int) -> float:
        usage = resource.getrusage(who)
        return (usage.ru_utime + usage.ru_stime) * 1e6

    def body() -> None:
        wait: Callable[[], Any]
        if way == _OURS:
            event = kept["pong"]
            point = event.pending + 1

            def wait() -> Any:
                with contextlib.suppress(TimeoutError):
                    event.wait(seconds, at_least=point)

        else:

            def wait() -> Any:
                kept["back"].wait(seconds)

        thread, process = used(resource.RUSAGE_THREAD), used(resource.RUSAGE_SELF)
        wait()
        found.append((used(resource.RUSAGE_THREAD) - thread, used(resource.RUSAGE_SELF) - process))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return found[0]


def waiting(settings: Settings) -> list[Row]:
    """CPU burnt by a thread that waits 1 s without a signal, after the first millisecond."""
    seconds = settings.count(100, 10) / 100
    thread: dict[str, list[float]] = {_OURS: [], _EVENT: []}
    process: dict[str, list[float]] = {_OURS: [], _EVENT: []}
    first: dict[str, list[float]] = {_OURS: [], _EVENT: []}
    with contextlib.ExitStack() as stack:
        pair = _Pair(settings, stack)
        every = sorted(os.sched_getaffinity(0))
        pair.setup((every, every), zmq=False)
        for way in (_OURS, _EVENT):
            pair.first.call(_wait_without_signal, way, 0.001)
        for turn in range(settings.count(15, 2)):
            for way in (_OURS, _EVENT) if turn % 2 else (_EVENT, _OURS):
                begin = pair.first.call(_wait_without_signal, way, 0.001)
                whole = pair.first.call(_wait_without_signal, way, seconds)
                first[way].append(begin[0])
                thread[way].append(max(0.0, whole[0] - begin[0]))
                process[way].append(max(0.0, whole[1] - begin[1]))
        pair.end()
    begins = [f"{spread(first[way]).median:.0f} us" for way in (_OURS, _EVENT)]
    burnt = (
        f"CPU time of a wait of {seconds:g} s less that of 1 ms, which is {begins[0]}, theirs {begins[1]}; getrusage(2)"
    )
    notes = [burnt]
    return [
        compare("waiting", "CPU burnt by the waiting thread", thread[_OURS], _EVENT, thread[_EVENT], notes=notes),
        compare(
            "waiting",
            "CPU burnt by its process, own threads included",
            process[_OURS],
            _EVENT,
            process[_EVENT],
            notes=notes,
        ),
    ]
