"""What every soak program shares: arguments, a private folder, and counts of what a process holds."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from xpushare.bench.measure import Settings, Worker
from xpushare.cli import seconds

__all__ = ["DEVICE", "Failure", "Held", "Skipped", "Soak", "add_arguments", "end_on_sigterm", "held", "main",
           "wait_until"]  # fmt: skip

DEVICE = "native_cpu:0"


class Failure(Exception):
    """What was to hold does not."""


class Skipped(Exception):
    """The program needs something that is not installed."""


@dataclass(slots=True)
class Soak:
    """One run of a program."""

    quick: bool
    seed: int
    random: random.Random
    settings: Settings
    options: argparse.Namespace

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def lasting(self, full: float, quick: float) -> float:
        """Return the seconds that this turn lasts, for a program that has no counts."""
        told: float | None = self.options.seconds
        return told if told is not None else quick if self.quick else full

    def say(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def worker(self, kept: dict[str, Any] | None = None) -> Worker:
        return Worker(self.settings, kept)

    def check(self, holds: object, text: str) -> None:
        """Fail with `text` unless `holds`."""
        if not holds:
            self.fail(text)

    def fail(self, text: str) -> NoReturn:
        raise Failure(text)


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds."""

    fds: int
    shared: int  # mappings of ours
    mappings: int
    resident: int  # bytes

    def __str__(self) -> str:
        resident = self.resident / 2**20
        return f"{self.fds} fds, {self.shared} shared of {self.mappings} mappings, {resident:.1f} MiB resident"


def held(pid: int | None = None) -> Held:
    """Counts for a process, by default this one, which gives back what it caches."""
    if pid is None:
        import xpushare as xs

        gc.collect()
        xs.trim()
    folder = Path(f"/proc/{pid or os.getpid()}")
    with open(folder / "maps") as file:
        maps = file.read().splitlines()
    resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    shared = sum("memfd:xpushare" in line for line in maps)
    return Held(len(os.listdir(folder / "fd")) - (pid is None), shared, len(maps), resident)


def describe_held(pid: int | None = None) -> str:
    """The open fds and our mappings, for a failure's text; of a pidfd, whose it is (-1: that process has ended)."""
    folder = Path(f"/proc/{pid or os.getpid()}")
    found = []
    for name in sorted(os.listdir(folder / "fd"), key=int):
        with contextlib.suppress(OSError):
            what = os.readlink(folder / "fd" / name)
            if what.endswith("[pidfd]"):
                lines = (folder / "fdinfo" / name).read_text().splitlines()
                what += next(f" of {line.split()[1]}" for line in lines if line.startswith("Pid:"))
            found.append(f"{name}={what}")
    lines = (folder / "maps").read_text().splitlines()
    return " ".join([*found, *(",".join(line.split()) for line in lines if "memfd:xpushare" in line)])


def wait_until(true: Callable[[], object], timeout: float) -> bool:
    """Whether `true()` came true within `timeout` seconds."""
    end = time.monotonic() + timeout
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A private runtime folder for this process and what it starts; gone afterwards."""
    folder = tempfile.mkdtemp(prefix="xpushare-soak-")
    former = {name: os.environ.pop(name, None) for name in ("XPUSHARE_RUNTIME_DIR", "XPUSHARE_KEY_FILE")}
    os.environ["XPUSHARE_RUNTIME_DIR"] = folder
    try:
        yield folder
    finally:
        del os.environ["XPUSHARE_RUNTIME_DIR"]
        os.environ.update({name: value for name, value in former.items() if value is not None})
        shutil.rmtree(folder, ignore_errors=True)


_EXPORTER = "import xpushare as xs; m = xs.malloc_device(4096, 'native_cpu:0'); xs.ipc.memory.put(xs.ipc.memory.get(m))"


def left_in(folder: str) -> list[str]:
    """What is in a runtime folder beside the key and the sockets at which somebody listens, once other exporters have
    come: each removes some sockets of the dead.
    """
    for name in os.listdir(folder):
        if name.startswith(".socket-"):  # its process was killed before it listened; exporters give it a minute
            aged = f".socket-{'f' * 8}{name[16:]}"  # the digits say since when it exists: here, never
            os.rename(f"{folder}/{name}", f"{folder}/{aged}")
    for _ in range(4):
        environ = {**os.environ, "XPUSHARE_RUNTIME_DIR": folder}
        subprocess.run([sys.executable, "-c", _EXPORTER], env=environ, check=True, timeout=60)
        found = set(os.listdir(folder)) - {"key", "names", "crews", "keeper.lock"}
        left = [name for name in sorted(found) if not _listening(folder, name)]
        names = os.path.join(folder, "names")
        left += os.listdir(names) if os.path.isdir(names) else ()
        crews = os.path.join(folder, "crews")
        left += os.listdir(crews) if os.path.isdir(crews) else ()
        if not left:
            break
    return left


def _listening(folder: str, name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ours:
        try:
            ours.connect(os.path.join(folder, name))
        except OSError:
            return False
        return True


def _terminated(_number: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)  # as a shell reports it


def end_on_sigterm() -> None:
    """Have SIGTERM end this process by an exception, so that it ends what it started and removes its folder."""
    signal.signal(signal.SIGTERM, _terminated)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that every program has."""
    parser.add_argument("--quick", action="store_true", help="the short form, for every change")
    parser.add_argument("--seed", type=int, help="of the random numbers (default: a new one, printed)")
    parser.add_argument(
        "--seconds", type=seconds, help="how long at least: a program that is done earlier repeats its short form"
    )


def main(
    name: str, program: Callable[[Soak], None], declare: Callable[[argparse.ArgumentParser], None] | None = None
) -> int:
    """Run one program from the command line. Returns the exit status. `declare` adds options of its own."""
    parser = argparse.ArgumentParser(prog=f"python -m soak.{name}", description=sys.modules[program.__module__].__doc__)
    add_arguments(parser)
    if declare is not None:
        declare(parser)
    arguments = parser.parse_args()
    end_on_sigterm()
    quick: bool = arguments.quick
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    print(f"soak.{name}: seed {seed}{', quick' * quick}, load average {load}", flush=True)
    start = time.monotonic()
    before = set(os.listdir("/dev/shm"))
    try:
        with _folder() as folder:
            while True:
                settings = Settings(quick, DEVICE, folder)
                program(Soak(quick, seed, random.Random(seed), settings, arguments))
                if arguments.seconds is None or time.monotonic() - start >= arguments.seconds:
                    break
                quick, seed = True, random.Random(seed).getrandbits(32)
                print(f"soak.{name}: again, seed {seed}, quick", flush=True)
            others = left_in(folder)
            if others:
                raise Failure(f"files left in the runtime folder: {others}")
        # Other programs may use /dev/shm meanwhile: only names that are ours count.
        left = [each for each in set(os.listdir("/dev/shm")) - before if re.match("xpushare(?!-bench)", each)]
        if left:
            raise Failure(f"files left in /dev/shm: {left}")
    except Skipped as reason:
        print(f"skipped soak.{name}: {reason}", flush=True)
        return 0
    except Exception as error:
        if not isinstance(error, Failure):
            traceback.print_exc()
        text = error if isinstance(error, Failure) else "see above"
        print(f"FAILED soak.{name} --seed {seed}{' --quick' * quick}: {text}", flush=True)
        return 1
    print(f"passed soak.{name} in {time.monotonic() - start:.1f} s", flush=True)
    return 0
