"""Events: the round trip between two processes, and what a waiter burns."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from xpushare.bench.measure import Row, Settings, compare, spread
from xpushare.bench.worker import Kept, Worker, pin

__all__ = ["crowded", "one_cpu", "two_cpus", "waiting"]

_TIMEOUT: Final = 60.0  # of one block of round trips; a hang must not be for ever
_OURS: Final = "ours"
_EVENT: Final = "multiprocessing.Event"
_ZMQ: Final = "pyzmq ipc://"
_PIPE: Final = "multiprocessing.Pipe"
_BARE: Final = "bare futex ping-pong in C"
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


def _first_each(kept: Kept, way: str, batch: int) -> list[float]:
    """Microseconds for each of `batch` round trips."""
    took: list[float] = []
    clock = time.perf_counter_ns
    if way == _OURS:
        ping, pong = kept["ping"], kept["pong"]
        base = kept["round"] + 1
        kept["round"] += batch
        for n in range(base, base + batch):
            start = clock()
            ping.signal()
            pong.wait(_TIMEOUT, at_least=n)
            took.append((clock() - start) / 1000)
    else:
        there, back = kept["there"], kept["back"]
        for _ in range(batch):
            start = clock()
            there.set()
            if not back.wait(_TIMEOUT):
                raise TimeoutError
            back.clear()
            took.append((clock() - start) / 1000)
    return took


def _burn(kept: Kept) -> None:  # noqa: ARG001
    """Keep a CPU busy until somebody kills this process."""
    while True:
        pass


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
        sample: float = self._run(_first, way, batch)
        return sample

    def each(self, way: str, batch: int) -> list[float]:
        samples: list[float] = self._run(_first_each, way, batch)
        return samples

    def _run(self, first: Callable[[Kept, str, int], Any], way: str, batch: int) -> Any:
        self.second.start(_second, way, batch)
        self.first.start(first, way, batch)
        found = self.first.result(_TIMEOUT * 2)
        self.second.result(_TIMEOUT * 2)
        return found

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
            if pinned and way == _EVENT:
                row.wanted, row.met = "at most 1.5 us", row.ours.median <= 1.5
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

typedef struct {
    uint32_t value, waiting;
    char pad[120];
} word;

static void wait_for(word *w, uint32_t n)
{
    uint32_t now;
    while (__atomic_load_n(&w->value, __ATOMIC_SEQ_CST) != n) {
        __atomic_store_n(&w->waiting, 1, __ATOMIC_SEQ_CST);
        if ((now = __atomic_load_n(&w->value, __ATOMIC_SEQ_CST)) != n)
            syscall(SYS_futex, &w->value, FUTEX_WAIT, now, NULL, NULL, 0);
    }
}

static void post(word *w, uint32_t n)
{
    __atomic_store_n(&w->value, n, __ATOMIC_SEQ_CST);
    if (__atomic_exchange_n(&w->waiting, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &w->value, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* argv: rounds, and the CPUs that both processes may run on. Prints how long each round took. */
int main(int argc, char **argv)
{
    uint32_t rounds = (uint32_t)atoi(argv[1]);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 2; i < argc; i++)
        CPU_SET(atoi(argv[i]), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        return 1;
    alarm(60);
    word *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double *took = calloc(rounds, sizeof *took);
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint32_t n = 1; n <= rounds + 10; n++) {
            wait_for(&words[0], n);
            post(&words[1], n);
        }
        _exit(0);
    }
    for (uint32_t n = 1; n <= rounds + 10; n++) {
        double start = now_us();
        post(&words[0], n);
        wait_for(&words[1], n);
        if (n > 10)
            took[n - 11] = now_us() - start;
    }
    waitpid(child, NULL, 0);
    for (uint32_t n = 0; n < rounds; n++)
        printf("%.3f\n", took[n]);
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


def _futex_each(program: Path, batch: int, cpus: list[int]) -> list[float]:
    """Microseconds of each of `batch` round trips of the C program."""
    arguments = [str(program), str(batch), *map(str, cpus)]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=90)
    return [float(line) for line in done.stdout.split()]


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
        return statistics.fmean(_futex_each(program, batch, [cpu]))

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
                _BARE,
                wanted="at most 2 times",
                notes=["no C compiler here: nothing to compare with"],
            )
        ]
    return [
        compare(
            "one_cpu",
            name,
            ours,
            _BARE,
            theirs,
            most=2.0,
            wanted="at most 2 times",
            notes=[f"{batch} round trips a sample; each C sample is a process of its own, timed inside"],
        )
    ]


def crowded(settings: Settings) -> list[Row]:
    """The same on two CPUs that other processes keep busy: the mean, and the slowest of 100."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        return []
    batch = settings.count(500, 50)
    program = _compile(tempfile.mkdtemp(dir=settings.folder))
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        pair = _Pair(settings, stack)
        pair.setup((cpus, cpus), zmq=False)
        busy = 0
        for more in (3, 3)[: settings.count(2, 1)]:
            busy += more
            for _ in range(more):
                worker = Worker(settings)
                stack.callback(worker.kill)
                worker.call(pin, cpus)
                worker.start(_burn)
            pair.each(_OURS, batch)
            ways: dict[str, Callable[[], list[float]]] = {
                way: functools.partial(pair.each, way, batch) for way in (_OURS, _EVENT)
            }
            if program is not None:
                ways[_BARE] = functools.partial(_futex_each, program, batch, cpus)
            names = list(ways)
            blocks: dict[str, list[list[float]]] = {way: [] for way in names}
            for turn in range(settings.count(20, 2)):
                for step in range(len(names)):
                    way = names[(turn + step) % len(names)]
                    blocks[way].append(ways[way]())
            means = {way: [statistics.fmean(block) for block in found] for way, found in blocks.items()}
            slow = {way: [sorted(block)[batch * 99 // 100] for block in found] for way, found in blocks.items()}
            name = f"event round trip beside {busy} busy processes on 2 CPUs"
            notes = [f"{batch} round trips a sample"]
            rows.append(
                compare(
                    "crowded",
                    f"{name}, mean",
                    means[_OURS],
                    _EVENT,
                    means[_EVENT],
                    most=1.0,
                    wanted="not slower",
                    notes=notes,
                )
            )
            if program is None:
                rows[-1].notes.append("no C compiler here: no bare futex to compare with")
                continue
            rows.append(
                compare(
                    "crowded",
                    f"{name}, 99th percentile",
                    slow[_OURS],
                    _BARE,
                    slow[_BARE],
                    most=3.0,
                    wanted="at most 3 times",
                    notes=[
                        *notes,
                        f"mean {spread(means[_OURS]).median:.1f} us, theirs {spread(means[_BARE]).median:.1f}",
                    ],
                )
            )
        pair.end()
    return rows


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
