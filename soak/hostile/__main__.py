"""A hostile process against two honest ones, in rounds, each with processes of its own.

The honest ones get no error but the package's, no call hangs, none of them spins, leaks a file descriptor, or ends; and
what the attacker could not reach works as before.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from soak.common import Failure, Soak, main
from soak.forked import START, Zygote, counting, ended
from soak.hostile.attacker import ATTACKS, Attacker
from soak.hostile.victim import Victim

_WORK = 1.5  # seconds of a round
_WARNING = "skipping the "  # begins the warning about a damaged name, channel or page
_PING_PONGS = 50
_IDLE = 0.3
_MOST_IDLE = 0.5  # of a CPU
_MOST = 3.0  # seconds for what takes no time


class _Process:
    def __init__(self, zygote: Zygote, name: str, which: int = 0) -> None:
        self._zygote = zygote
        self.name = name
        self.pid, self._connection = zygote.process(which)
        self._reports: dict[int, Any] = {}
        self.ended = False

    def ask(self, name: str, *arguments: Any, timeout: float = START) -> Any:
        self.tell(name, *arguments)
        return self._receive(None, timeout, f"{name} has not returned")

    def tell(self, name: str, *arguments: Any) -> None:
        self._connection.send((name, *arguments))

    def result(self, token: int, timeout: float) -> Any:
        if token not in self._reports:
            self._receive(token, timeout, "its work has not ended")
        return self._reports.pop(token)

    def _receive(self, wanted: int | None, timeout: float, text: str) -> Any:
        end = time.monotonic() + timeout
        try:
            while self._connection.poll(max(0.0, end - time.monotonic())):
                token, found = self._connection.recv()
                if token is not None:
                    self._reports[token] = found
                if token == wanted:
                    return found
        except (EOFError, ConnectionError):
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.ended = True
            raise Failure(f"{self.name} has ended, exit status {status}: {self._zygote.said()}") from None
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.2)
        raise Failure(f"{self.name}: after {timeout:g} s {text}: {self._zygote.said()}")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.ended = True
        self._connection.close()

    def leave(self) -> None:
        self.tell("exit")
        if not ended(self.pid, _MOST):
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.2)
            raise Failure(f"{self.name} has not ended within {_MOST:g} s: {self._zygote.said()}")
        self.ended = True
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if status:
            raise Failure(f"{self.name} ended with status {status}: {self._zygote.said()}")


class _Naps:
    """How late this process woke up lately: on a busy machine others are late, too."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []

    def nap(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (begin := time.monotonic()) < end:
            time.sleep(0.01)
            self._late.append((begin, time.monotonic() - begin - 0.01))

    def worst(self, begin: float, end: float) -> float:
        return max((late for at, late in self._late if begin - 0.1 <= at <= end), default=0.0)


def _judge(process: _Process, found: Any, naps: _Naps, counts: Counter[str]) -> None:
    outcomes, slow, wrong = found
    counts["calls"] += sum(outcomes.values())
    for outcome, count in outcomes.items():
        counts[outcome.partition(": ")[2]] += count
    if wrong:
        raise Failure(f"{process.name}: {wrong[0]}")
    for name, begin, took, most in slow:
        if took > most + 10 * naps.worst(begin, begin + took):
            raise Failure(f"{process.name}: {name} took {took:.2f} s, not {most:g} at most")


def _round(zygote: Zygote, folder: str, seed: int, only: list[str], counts: Counter[str], told: list[str]) -> None:
    pick = random.Random(seed)
    naps, processes = _Naps(), []
    counts["rounds"] += 1
    try:
        exporter, importer = _Process(zygote, "the exporter"), _Process(zygote, "the importer")
        processes += [exporter, importer]
        shared, others = exporter.ask("set_up"), importer.ask("set_up")
        importer.ask("adopt", shared)
        exporter.ask("join", importer.ask("control"))
        importer.ask("meet", shared)
        lives = pick.choice((1, 1, 2))
        exporter.ask("work", 1, _WORK, pick.getrandbits(32), True)
        importer.ask("work", 1, _WORK, pick.getrandbits(32), False)
        for _ in range(lives):
            attacker = _Process(zygote, "the attacker", 1)
            processes.append(attacker)
            names = pick.choices(only, k=pick.randrange(1, 40))
            told.append(" ".join(names))
            if not attacker.ask("meet", shared):
                attacker.kill()  # alive, it would stay a member, which the exporter watches
                break
            attacker.ask("aim", [shared[0][1], others[0][1]])
            lies = attacker.ask("share")
            exporter.ask("meet", lies)
            importer.ask("meet", lies)
            attacker.ask("attack", 1, names, pick.getrandbits(32))
            counts["attacks"] += len(names)
            naps.nap(_WORK / lives * pick.choice((0.1, 0.5, 0.9)))
            if pick.random() < 0.3:
                attacker.signal(signal.SIGSTOP)
                counts["stops"] += 1
                naps.nap(pick.choice((0.05, 0.4)))
                attacker.signal(signal.SIGCONT)
            attacker.kill()
            counts["kills"] += 1
        end = time.monotonic() + _WORK + 0.1
        naps.nap(end - time.monotonic())
        for process in (exporter, importer):
            _judge(process, process.result(1, 20), naps, counts)
        _afterwards(exporter, importer)
        if said := [line for line in zygote.said().splitlines() if not line.startswith(_WARNING)]:
            raise Failure(f"something was written to stderr: {said}")
    finally:
        for process in processes:
            process.kill()
        zygote.forget()
        _tidy(Path(folder))


def _tidy(folder: Path) -> None:
    """Remove what the attacker has left; what honest processes leave is for other programs to see."""
    for path in (*folder.glob("socket-*"), *(folder / "names").glob("*"), *(folder / "names").glob(".*")):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


def _afterwards(exporter: _Process, importer: _Process) -> None:
    """The attacker is gone: what it could not reach works, nobody is busy with nothing, and nothing is left."""
    exporter.ask("play", 2, _PING_PONGS, False)
    importer.ask("play", 2, _PING_PONGS, True)
    for process in (importer, exporter):
        done = process.result(2, 20)
        if done != "done":
            raise Failure(f"{process.name}: what the attacker could not reach fails: {done}")
    for process in (exporter, importer):
        for _ in range(3):
            before = process.ask("busy")
            time.sleep(_IDLE)
            share = (process.ask("busy") - before) / _IDLE
            if share < _MOST_IDLE:
                break
        else:
            raise Failure(f"{process.name} has nothing to do and uses {share:.0%} of a CPU")
    for process, watched in ((importer, 2), (exporter, 0)):  # which the importer's warden watches
        end = time.monotonic() + _MOST
        while True:
            now, base, fds = process.ask("left")
            if now[0] <= base[0] + watched and now[1] <= base[1]:
                break
            if time.monotonic() > end:
                raise Failure(f"{process.name} is left with {now} fds and mappings, before {base}: {fds}")
            time.sleep(0.02)
        process.leave()


def run(soak: Soak) -> None:
    only = soak.options.only or list(ATTACKS)
    end, seed = time.monotonic() + soak.lasting(600, 20), soak.seed
    with counting(soak, Victim, Attacker) as (zygote, counts):
        while time.monotonic() < end:
            told: list[str] = []
            try:
                _round(zygote, soak.settings.folder, seed, only, counts, told)
            except Failure as failure:
                again = f"python -m soak.hostile --seed {seed} --seconds 0.1"
                attacks = "\n    ".join(told)
                soak.fail(f"{failure}\n  attacks:\n    {attacks}\n  again: {again}; --only ATTACK … narrows it down")
            seed += 1


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=sorted(ATTACKS), metavar="ATTACK", help="only these attacks")


if __name__ == "__main__":
    sys.exit(main("hostile", run, _declare))
