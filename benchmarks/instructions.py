"""Instructions of the hand-over of an array, counted by single steps: figures without noise.

python -m benchmarks.instructions [--check] [--rounds N] [--same | --first] [--ordered] [--device native_cpu:0]

Two processes hand over a new array of 1 MiB in each round; with `--same` one that both have open already; with
`--first` each round's exporter is a new process, and what its predecessor left is a part of the figures. On `mock:0`
the driver's part is Python, which the figures contain; there `--ordered` has an event order each array after the
producer's stream, which is busy when the array is shared and idle when it is attached. The table has, for each call:
user instructions, the distinct cache lines and pages of code that they lie in, and system calls. `--check` fails if
`share` and `attach` together take more than 1.1 times `LANDED`.
Needs x86-64, a C compiler, Python's headers, and leave to trace a process of one's own.
"""

from __future__ import annotations

import argparse
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

LANDED = 82_429  # instructions of `share` and `attach` under Python 3.11: set it anew where a change is meant
CALLS = ("share", "bytes", "close of the handle", "attach", "np.asarray", "close of the array", "__dlpack__")
WARM = 30  # rounds before the first that counts: caches fill, bytecode is specialised
NBYTES = 1 << 20
Mark = Callable[[int], object]


def produce(channel: socket.socket, mark: Mark, rounds: int, kind: str, device: str, ordered: bool) -> None:
    if kind == "first":
        produce_anew(channel, rounds, device)
        return
    stream = None
    if ordered:
        from xpushare.adapters.mock.others import default_stream

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


SIDES = {"produce": produce, "consume": consume}


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


def measure(rounds: int, kind: str, device: str = "native_cpu:0", ordered: bool = False) -> dict[str, tuple[int, ...]]:
    """By call: instructions, cache lines and pages of code, system calls; medians."""
    found: dict[str, tuple[int, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="xpushare-instructions-") as folder:
        build(Path(folder))
        for side, other in (("produce", "consume"), ("consume", "produce"))[kind == "first" :]:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with here, there:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.instructions",
                    "--rounds",
                    str(rounds),
                    "--kind",
                    kind,
                    "--device",
                    device,
                ]
                command += ["--ordered"] * ordered
                stepped = [f"{folder}/count", *command, "--side", side, "--fd", str(here.fileno()), "--marks", folder]
                free = [*command, "--side", other, "--fd", str(there.fileno())]
                peer = subprocess.Popen(free, pass_fds=[there.fileno()])
                there.close()
                try:
                    done = subprocess.run(
                        stepped, pass_fds=[here.fileno()], stdout=subprocess.PIPE, text=True, check=True, timeout=100
                    )
                finally:
                    here.close()
                    peer.wait(100)
            for line in done.stdout.splitlines():
                label, _intervals, *numbers = map(int, line.split())
                found[CALLS[label - 1]] = tuple(numbers)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the landed count is passed by a tenth")
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
        with socket.socket(fileno=int(wanted.fd)) as channel:
            SIDES[wanted.side](channel, mark, wanted.rounds, wanted.kind, wanted.device, wanted.ordered)
        return 0
    if not can_count():
        return 2
    found = measure(wanted.rounds, wanted.kind, wanted.device, wanted.ordered)
    print(f"{'call':24}{'instructions':>14}{'lines':>8}{'pages':>8}{'calls':>8}")
    for name, numbers in found.items():
        print(f"{name:24}{numbers[0]:14,}{numbers[1]:8,}{numbers[2]:8,}{numbers[3]:8,}")
    if "share" not in found:  # of new exporters only the importer is stepped
        return 0
    both = found["share"][0] + found["attach"][0]
    print(f"{'share + attach':24}{both:14,}")
    if not wanted.check:
        return 0
    if sys.version_info[:2] != (3, 11):
        print("not checked: the landed count is that of Python 3.11")
        return 0
    print(f"landed: {LANDED:,}; ratio {both / LANDED:.3f}, at most 1.1")
    return 0 if both <= 1.1 * LANDED else 1


if __name__ == "__main__":
    sys.exit(main())
