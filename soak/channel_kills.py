"""Random members of a channel are killed; an oracle knows every frame.

Six processes (two writers, readers in modes "all", "newest" and "one") come and go by SIGKILL, this process reads
everything. Each writes down what it does before and after it in a mapped file of its own. At the end every frame that
was sent has been seen once by whoever reads "all", and acknowledged by a reader in mode "one"; none was in the hands of
two living readers; nothing waited for the dead; and no slot is lost.

After each frame they also add to a number in a file, under a lock, and to an atomic. The lock never has two holders,
says of each owner that died in between that it died, and nobody else's addition is lost.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from soak.common import Soak, main

__all__ = ["Result", "kill_members"]

NAME: Final = "killed"
SLOTS: Final = 8
SHAPE: Final = 64
HANG: Final = 20.0  # seconds, on a machine of whatever load; the longest wait is said
ROLES: Final = ("writer", "writer", "all", "newest", "one", "one")
MOST: Final = 1 << 16  # records of one process
_HEAD: Final = 4
LOCK: Final = "guard"
ATOMIC: Final = "sum"
GUARDED: Final = "guarded"


def _journal(path: Path, create: bool = False) -> Any:
    import numpy as np

    return np.memmap(path, "int64", "w+" if create else "r+", shape=(_HEAD + MOST, 2))


class _Guarded:
    """Adds one to a number under a lock, and to an atomic."""

    def __init__(self, path: Path) -> None:
        import numpy as np

        import xpushare as xs

        self.journal = _journal(path)
        self.file = np.memmap(path.parent / GUARDED, "int64", "r+", shape=2)  # the number, and who has the lock
        self.number = int(path.name)
        self.lock = xs.Lock(LOCK)
        self.sum = xs.Atomic(0, ATOMIC)

    def add(self) -> None:
        with self.lock as held:
            if self.file[1] and not held.owner_died:
                self.journal[1, 0] = -self.file[1]  # two have it
            self.file[1] = self.number
            self.file[0] += 1
            self.journal[3, 0] += 1
            self.file[1] = 0
        self.sum.add(1)
        self.journal[3, 1] += 1


def write(path: Path, number: int) -> None:
    import numpy as np

    import xpushare as xs

    journal = _journal(path)
    guarded = _Guarded(path)
    with xs.Channel.create(NAME, SHAPE, "int64", slots=SLOTS, writers=2, redeliver=0) as ch:
        for k in range(1, MOST):
            guarded.add()
            value = number << 32 | k
            journal[0, 0] = value  # is about to be sent
            with ch.loan(HANG) as frame:
                np.asarray(frame)[:] = value
                frame.meta = value
            journal[0, 1] = value  # was sent
            if journal[1, 0]:
                break
        ch.finish()
    journal[1, 1] = 1


def _value_of(frame: Any) -> int:
    """What a frame says; 0 if it is not whole."""
    import numpy as np

    values = np.asarray(frame)
    value = int(values[0])
    return value if (values == value).all() and frame.meta == value else 0


def read(path: Path, mode: Any) -> None:
    """Readers in modes "all" and "newest": the frames come whole, in order, and with "all" without gaps."""
    import xpushare as xs

    journal = _journal(path)
    guarded = _Guarded(path)
    last = 0
    with xs.Channel.open(NAME, mode=mode, reconnect=True) as ch:
        for frame in ch:
            guarded.add()
            good = _value_of(frame) and frame.seq > last and (mode != "all" or not last or frame.seq == last + 1)
            if not good:
                journal[0] = frame.seq, last
            last = frame.seq
    journal[1, 1] = 1


def work(path: Path) -> None:
    import xpushare as xs

    journal = _journal(path)
    guarded = _Guarded(path)
    count = 0
    with xs.Channel.open(NAME, mode="one", start="oldest", reconnect=True) as ch:
        for frame in ch:
            guarded.add()
            if not _value_of(frame):
                journal[0] = frame.seq, 1
            journal[_HEAD + count] = frame.seq, time.monotonic_ns()  # taken
            frame.close()
            journal[2, 0] = count = count + 1  # so many were acknowledged; the next one may have been
    journal[1, 1] = 1


@dataclass
class Member:
    role: str
    number: int
    path: Path
    process: Any
    killed_ns: int = 0


@dataclass
class Result:
    kills: int = 0
    frames: int = 0
    longest: float = 0.0
    wrong: list[str] = field(default_factory=list)


class _Run:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.context = multiprocessing.get_context("forkserver")
        # Each child imports this module anew, as the main one: with `-m`, runpy warns if it is there already.
        self.context.set_forkserver_preload(["soak.common", "xpushare.channels.channel", "numpy"])
        self.members: list[Member] = []  # all that there ever were
        self.result = Result()
        with open(folder / GUARDED, "wb") as file:
            file.truncate(16)

    def start(self, role: str) -> Member:
        number = len(self.members) + 1
        path = self.folder / f"{number}"
        _journal(path, create=True).flush()
        roles: dict[str, tuple[Callable[..., object], tuple[Any, ...]]] = {
            "writer": (write, (path, number)),
            "all": (read, (path, "all")),
            "newest": (read, (path, "newest")),
            "one": (work, (path,)),
        }
        target, arguments = roles[role]
        process = self.context.Process(target=target, args=arguments)
        process.start()
        found = Member(role, number, path, process)
        self.members.append(found)
        return found

    def expect(self, holds: object, text: str) -> None:
        if not holds:
            self.result.wrong.append(text)

    def check_guarded(self, total: int) -> None:
        """`total`: of the atomic."""
        import numpy as np

        journals = [np.array(_journal(each.path)) for each in self.members]
        guarded, _holder = np.fromfile(self.folder / GUARDED, "int64").tolist()
        dead = sum(1 for each in self.members if each.killed_ns)
        for which, text in enumerate((f"number under a lock is {guarded}", f"atomic is {total}")):
            least = sum(int(each[3, which]) for each in journals)  # who was killed may not have written down its last
            found = total if which else guarded
            self.expect(least <= found <= least + dead, f"the {text}, and {least} additions were made, {dead} killed")
        self.expect(not any(each[1, 0] < 0 for each in journals), "a lock had two holders")

    def check(self, seen: dict[int, int]) -> None:
        """`seen`: the value of each seq, as read by this process, which read all of them."""
        import numpy as np

        values = set(seen.values())
        self.expect(len(values) == len(seen), "a frame was seen twice")
        taken: dict[int, list[tuple[int, Member, bool]]] = {}
        for member in self.members:
            journal = np.array(_journal(member.path))
            what = f"{member.role} {member.number}"
            self.expect(member.killed_ns or journal[1, 1], f"{what} failed")
            if member.role == "writer":
                about, sent = (int(each) & 0xFFFFFFFF for each in journal[0])
                mine = {value & 0xFFFFFFFF for value in values if value >> 32 == member.number}
                self.expect(mine >= set(range(1, sent + 1)), f"a frame that {what} sent is lost")
                self.expect(mine <= set(range(1, about + 1)), f"a frame that {what} never sent was seen")
            else:
                self.expect(
                    not journal[0].any(), f"{what} saw a frame that is not whole, or out of order: {journal[0]}"
                )
            if member.role == "one":
                acknowledged = int(journal[2, 0])
                for at, (seq, when) in enumerate(journal[_HEAD:].tolist()):
                    if seq:
                        taken.setdefault(seq, []).append((when, member, at < acknowledged))
        for seq in seen:
            turns = sorted(taken.get(seq, []), key=lambda each: each[0])
            self.expect(turns, f"frame {seq} was never handed out")
            # Who was killed after it had closed the frame may not have written that down.
            self.expect(turns and (turns[-1][2] or turns[-1][1].killed_ns), f"frame {seq} was not acknowledged")
            for (_, member, done), (when, _, _) in pairwise(turns):
                self.expect(not done, f"frame {seq} was handed out after it was acknowledged")
                self.expect(member.killed_ns and member.killed_ns <= when, f"two living readers had frame {seq}")


def kill_members(kills: int, seed: int, folder: Path) -> Result:
    """Kill `kills` members, one after the other, and say what was wrong."""
    import numpy as np

    import xpushare as xs

    run = _Run(folder, seed)
    result = run.result
    with xs.Channel.create(
        NAME, SHAPE, "int64", slots=SLOTS, writers=2, redeliver=0
    ) as _first:  # it goes without finish(), so that those with reconnect= wait for the writers
        reader = xs.Channel.open(NAME, reconnect=True, label="oracle")
        worker = xs.Channel.open(NAME, mode="one")  # from the first frame on they are jobs
        worker.close()
    living = [run.start(role) for role in ROLES]
    seen: dict[int, int] = {}
    next_kill = time.monotonic()
    stopped = False
    total: xs.Atomic | None = None
    try:
        while True:
            start = time.monotonic()
            over = not any(each.process.is_alive() for each in living if each.role == "writer")
            try:
                frame = reader.receive(HANG)
            except EOFError:
                if over:
                    break
                time.sleep(0.001)
                continue  # the writers have yet to come
            with frame:
                run.expect(frame.seq == len(seen) + 1 and not frame.missed, f"frame {frame.seq} came after {len(seen)}")
                seen[frame.seq] = _value_of(frame)
                run.expect(seen[frame.seq], f"frame {frame.seq} is not whole")
            result.longest = max(result.longest, time.monotonic() - start if len(seen) > 1 else 0.0)
            if result.kills < kills and start >= next_kill and len(seen) > 20:
                at = run.random.randrange(len(living))
                victim = living[at]
                victim.killed_ns = time.monotonic_ns()
                victim.process.kill()
                victim.process.join()
                result.kills += 1
                living[at] = run.start(victim.role)
                next_kill = time.monotonic() + run.random.random() * 0.05
            if total is None and len(seen) > 20:
                total = xs.Atomic(0, ATOMIC)  # one of the others has made it
            if result.kills == kills and not stopped:
                journals = [_journal(each.path) for each in living if each.role == "writer"]
                stopped = all(each[0, 1] for each in journals)  # both write: the stream does not end before one came
                for journal in journals if stopped else ():
                    journal[1, 0] = 1
        for each in living:
            each.process.join(HANG)
            run.expect(each.process.exitcode == 0, f"{each.role} {each.number} ended with {each.process.exitcode}")
    except TimeoutError:
        run.expect(False, f"nothing came for {HANG:g} s after frame {len(seen)}: {reader.statistics()}")
    finally:
        for each in run.members:
            each.process.kill()
            each.process.join()
    result.frames = len(seen)
    run.check(seen)
    if total is not None:
        run.check_guarded(total.load())
        total.close()
    reader.close()
    with (
        xs.Channel.create(NAME, SHAPE, "int64", slots=SLOTS, writers=2, redeliver=0) as last,
        xs.Channel.open(NAME) as everything,
    ):
        for _ in range(SLOTS):  # with each slot in use
            last.send(np.zeros(SHAPE, "int64"), timeout=HANG)
        for _ in range(SLOTS):
            everything.receive(HANG).close()
    return result


def run(soak: Soak) -> None:
    kills = soak.count(1000, 30)
    with tempfile.TemporaryDirectory() as folder:
        result = kill_members(kills, soak.seed, Path(folder))
    soak.check(not result.wrong, "; ".join(result.wrong[:5]))
    soak.say(f"{result.kills} kills, {result.frames} frames; the longest wait for one: {result.longest * 1e3:.0f} ms")


if __name__ == "__main__":
    sys.exit(main("channel_kills", run))
