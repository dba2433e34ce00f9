"""Instructions of single calls, counted by single steps: figures with hardly any noise.

python -m benchmarks.instructions [--check] [--rounds N] [--same | --first] [--ordered] [--device native_cpu:0]

Two processes hand over a new array of 1 MiB in each round; with `--same` one that both have open already; with
`--first` each round's exporter is a new process, and what its predecessor left is a part of the figures. On `mock:0`
the driver's part is Python, which the figures contain; there `--ordered` has an event order each array after the
producer's stream, which is busy when the array is shared and idle when it is attached. A process of its own then
calls what has no other side: events, a channel, a lock and an atomic. The table has, for each call:
user instructions, the distinct cache lines and pages of code that they lie in, and system calls. `--check` fails if
a call passes its limit: `BASE` has what it took in the release that is compared with, and how much more is allowed.
Needs x86-64, a C compiler, Python's headers, and leave to trace a process of one's own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

import xpushare as xs

CALLS = (
    *("share", "bytes", "close of the handle", "attach", "np.asarray", "close of the array", "__dlpack__"),
    *("signal", "wait", "done", "loan and send", "receive and release", "lock", "add"),
)
BASE = {  # by call: instructions of commit feb23715 under Python 3.11, and how many times as many are allowed
    "share": (27_630, 1.1),
    "attach": (51_796, 1.1),
    "signal": (3_104, 1.05),
    "wait": (4_336, 1.05),
    "done": (3_362, 1.05),
    "loan and send": (3_966, 1.05),
    "receive and release": (3_792, 1.05),
    "lock": (1_592, 1.05),
    "add": (770, 1.05),
}
WARM = 30  # rounds before the first that counts: caches fill, bytecode is specialised
NBYTES = 1 << 20
Mark = Callable[[int], object]


def produce(channel: socket.socket, mark: Mark, rounds: int, kind: str, device: str, ordered: bool) -> None:
    if kind == "first":
        produce_anew(channel, rounds, device)
        return
    stream = None
    if ordered:
        from xpushare.adapters.mock.adapter import default_stream

        stream = default_stream(xs.Device(device).ordinal)
    same = kind == "same"
    array = xs.empty((NBYTES,), "u1", device=device)
    for number in range(WARM + rounds):
        on = mark if number >= WARM else lambda _label: None
        if not same:
            array = xs.empty((NBYTES,), "u1", device=device)
        np.asarray(array)[0] = 7
        gate = threading.Event()
        if stream is not None:
            stream.call(gate.wait)
        on(1)
        handle = xs.share(array)
        on(2)
        raw = bytes(handle)
        on(0)
        gate.set()
        if stream is not None:
            stream.synchronize()
        channel.send(raw)
        channel.recv(1)
        on(3)
        handle.close()
        on(0)
    channel.send(b"-")


def produce_anew(channel: socket.socket, rounds: int, device: str) -> None:
    """Each array by a child of its own, which has ended before the next one begins."""
    xs.share(xs.empty(1, device=device)).close()  # the children have imported all of it
    for _ in range(WARM + rounds):
        child = os.fork()
        if child == 0:
            array = xs.empty((NBYTES,), "u1", device=device)
            np.asarray(array)[0] = 7
            channel.send(bytes(xs.share(array)))
            channel.recv(1)
            os._exit(0)
        os.waitpid(child, 0)
    channel.send(b"-")


def consume(channel: socket.socket, mark: Mark, _rounds: int, kind: str, _device: str, _ordered: bool) -> None:
    number = 0
    held: list[xs.SharedArray] = []
    while len(raw := channel.recv(4096)) > 1:
        on = mark if number >= WARM else lambda _label: None
        number += 1
        on(4)
        array = xs.attach(raw)
        on(5)
        view = np.asarray(array)
        on(0)
        assert view[0] == 7
        del view
        on(7)
        array.__dlpack_device__()
        capsule = array.__dlpack__(max_version=(1, 0))
        on(0)
        del capsule
        if kind == "same" and not held:
            held.append(xs.attach(raw))
        on(6)
        array.close()
        del array
        on(0)
        channel.send(b"+")


def call(_channel: socket.socket, mark: Mark, rounds: int, _kind: str, device: str, _ordered: bool) -> None:
    """What one process calls. Each event and frame is there when it is waited for."""
    with (
        xs.Event(device, enable_ipc=True) as event,
        xs.Channel.create(None, 64, "u1", device=device) as writer,
        xs.Channel.open(writer.handle) as reader,
        contextlib.closing(xs.Lock()) as lock,
        xs.Atomic() as atomic,
    ):
        for number in range(WARM + rounds):
            on = mark if number >= WARM else lambda _label: None
            on(8)
            event.signal()
            on(9)
            event.wait()
            on(10)
            event.done  # noqa: B018
            on(11)
            with writer.loan():
                pass
            on(12)
            with reader.receive():
                pass
            on(13)
            with lock:
                pass
            on(14)
            atomic.add(1)
            on(0)


SIDES = {"produce": produce, "consume": consume, "call": call}
STEPPED = {  # by kind: the sides that are counted, and beside which
    "new": (("produce", "consume"), ("consume", "produce"), ("call",)),
    "same": (("produce", "consume"), ("consume", "produce")),
    "first": (("consume", "produce"),),
}


def build(folder: Path) -> None:
    source = Path(__file__).with_suffix(".c")
    cc = os.environ.get("CC", "cc")
    subprocess.run([cc, "-O2", source, "-o", folder / "count"], check=True)
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run([cc, "-O2", "-shared", "-fPIC", "-DMARK", include, source, "-o", folder / "mark.so"], check=True)


def can_count() -> bool:
    """Whether this machine can build and step the program; if not, say what it lacks."""
    able = platform.machine() == "x86_64" and shutil.which(os.environ.get("CC", "cc")) is not None
    if not able:
        print("this needs x86-64 and a C compiler", file=sys.stderr)
    return able


def step(folder: str, sides: tuple[str, ...], options: list[str]) -> str:
    """Count one side, while the other one, if there is one, runs freely beside it."""
    environ = {**os.environ, "PYTHONHASHSEED": "0", "XPUSHARE_RUNTIME_DIR": f"{folder}/run"}
    command = [sys.executable, "-m", "benchmarks.instructions", *options]
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peers = []
    with here:
        with there:
            for side in sides[1:]:
                free = [*command, "--side", side, "--fd", str(there.fileno())]
                peers.append(subprocess.Popen(free, pass_fds=[there.fileno()], env=environ))
        stepped = [f"{folder}/count", *command, "--side", sides[0], "--fd", str(here.fileno()), "--marks", folder]
        try:
            own = [here.fileno()]
            return subprocess.check_output(stepped, pass_fds=own, env=environ, text=True, timeout=500)
        finally:
            here.close()
            for peer in peers:
                peer.wait(100)


def measure(rounds: int, kind: str, device: str = "native_cpu:0", ordered: bool = False) -> dict[str, tuple[int, ...]]:
    """By call: instructions, cache lines and pages of code, system calls, of the round with the fewest."""
    found: dict[str, tuple[int, ...]] = {}
    options = ["--rounds", str(rounds), "--kind", kind, "--device", device, *["--ordered"] * ordered]
    with tempfile.TemporaryDirectory(prefix="xpushare-instructions-") as folder:
        build(Path(folder))
        for sides in STEPPED[kind]:
            for line in step(folder, sides, options).splitlines():
                label, _intervals, *numbers = map(int, line.split())
                found[CALLS[label - 1]] = tuple(numbers)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if a call takes more than its limit")
    parser.add_argument("--rounds", type=int, default=6)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--same", action="store_const", dest="kind", const="same", help="the same array in each round")
    kinds.add_argument("--first", action="store_const", dest="kind", const="first", help="a new exporter in each round")
    kinds.add_argument("--kind", help=argparse.SUPPRESS)
    parser.set_defaults(kind="new")
    parser.add_argument("--device", default="native_cpu:0")
    parser.add_argument("--ordered", action="store_true", help="on mock:0: an event orders each array")
    for hidden in "--side", "--fd", "--marks":
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.side:
        mark: Mark = lambda _label: None  # noqa: E731
        if wanted.marks:
            sys.path.append(wanted.marks)
            from mark import mark  # type: ignore[import-not-found,no-redef]
        gc.disable()  # a collection is counted with the call that happens to cause it
        with socket.socket(fileno=int(wanted.fd)) as channel:
            SIDES[wanted.side](channel, mark, wanted.rounds, wanted.kind, wanted.device, wanted.ordered)
        return 0
    if not can_count():
        return 2
    found = measure(wanted.rounds, wanted.kind, wanted.device, wanted.ordered)
    checked = wanted.check and sys.version_info[:2] == (3, 11)
    passed = True
    print(
        f"{'call':24}{'instructions':>14}{'lines':>8}{'pages':>8}{'calls':>8}" + f"{'ratio':>8}{'limit':>8}" * checked
    )
    for name, numbers in found.items():
        row = f"{name:24}{numbers[0]:14,}{numbers[1]:8,}{numbers[2]:8,}{numbers[3]:8,}"
        if checked and name in BASE:
            before, limit = BASE[name]
            passed &= numbers[0] <= limit * before
            row += f"{numbers[0] / before:8.3f}{limit:8.2f}"
        print(row)
    if wanted.check and not checked:
        print("not checked: the limits are those of Python 3.11")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
