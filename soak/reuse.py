"""Memory that serves again: no view ever shows a later array, and no array is written to by whoever had an earlier one.

Several processes make arrays of few sizes, share or pickle them, open each other's, keep views, capsules and children,
close, trim, leave and die. Each array is full of its tag. Whoever has it open, a forked child too, compares it with the
tag and writes the tag into it, again and again: if its memory served another array too early, one of the two would see
that.
"""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

from soak.common import Soak, main
from soak.looking import Kept, Stranger, expect, fork, join, play

_WORKERS = 4
_MOST_ARRAYS = 24  # of one process
_WORDS = (3, 700, 2000, 9000, 9000, 9000, 40000, 40000)  # of 8 bytes; few sizes, so that memory fits again
_tags = itertools.count(1)


def _is_free(values: Any, kept: Kept) -> int:
    """1 if a new array lies in memory that served before. Its content may be of this process's arrays, and no other."""
    found = set(values.tolist())
    if not found <= {0} | kept.setdefault("mine", set()):
        raise Stranger(f"a new array shows {sorted(found)[:5]}, which this process never wrote")
    return int(found != {0})


def _make(kept: Kept, tag: int, words: int, way: str) -> tuple[bytes, int]:
    """An array full of its tag: what opens it, and whether its memory served before."""
    import pickle

    import numpy

    import xpushare as xs

    again = 0
    if way == "copy":
        handle = xs.share(numpy.full(words, tag, "uint64"), copy=True)
        held: Any = handle
        values = numpy.asarray(xs.attach(handle))
    else:
        array = xs.zeros(words, "uint64") if way == "zeros" else xs.empty(words, "uint64")
        values = numpy.asarray(array)
        if way == "zeros":
            expect(values, 0)
        else:
            again = _is_free(values, kept)
        values[:] = tag
        held = array if way == "pickle" else xs.share(array)
    kept.setdefault("mine", set()).add(tag)
    kept.setdefault("made", {})[tag] = values, held
    return (pickle.dumps(held) if way == "pickle" else bytes(held)), again


def _free(kept: Kept, tag: int, only_handle: bool) -> None:
    values, held = kept["made"].pop(tag)
    expect(values, tag)
    held.close()
    if only_handle:  # a view goes later
        kept.setdefault("views", []).append((tag, values))


def _open(kept: Kept, tag: int, raw: bytes, pickled: bool) -> bool:
    """Whether it could still be opened."""
    import pickle

    import numpy

    import xpushare as xs

    try:
        array = pickle.loads(raw) if pickled else xs.attach(raw)
        values = numpy.asarray(array)
    except xs.HandleExpiredError:
        return False
    expect(values, tag)
    kept.setdefault("views", []).append((tag, values))
    if tag % 3 == 0:
        array.close()  # the view holds it
    elif tag % 3 == 1:
        kept["views"].append((tag, numpy.from_dlpack(array)))
    return True


def _close(kept: Kept, number: int) -> None:
    views = kept.get("views", [])
    if views:
        tag, values = views.pop(number % len(views))
        expect(values, tag)


def _look(kept: Kept) -> int:
    """Compare and write everything that this process has; how many arrays that is."""
    views = [(tag, values) for tag, (values, _held) in kept.get("made", {}).items()] + kept.get("views", [])
    for tag, values in views:
        expect(values, tag)
        values[:] = tag
    return len(views)


def _trim(_kept: Kept) -> None:
    import xpushare as xs

    xs.trim()


def _fork(kept: Kept) -> None:
    fork(kept, _look)


class _World:
    """The processes, and what can be opened of each."""

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        self.workers = [soak.worker() for _ in range(_WORKERS)]
        self.made: list[dict[int, tuple[bytes, bool]]] = [{} for _ in range(_WORKERS)]
        self.again = 0

    def step(self, pick: random.Random) -> None:
        maker, other = pick.sample(range(_WORKERS), 2)
        made, worker = self.made[maker], self.workers[maker]
        chance = pick.random()
        if chance < 0.35 and len(made) < _MOST_ARRAYS:
            tag, way = next(_tags), pick.choice(("share", "share", "copy", "zeros", "pickle"))
            raw, again = worker.call(_make, tag, pick.choice(_WORDS), way)
            made[tag] = raw, way == "pickle"
            self.again += again
        elif chance < 0.60 and made:
            tag = pick.choice(list(made))
            raw, pickled = made.pop(tag)
            opened = self.workers[other].start(_open, tag, raw, pickled)  # while it is withdrawn
            worker.call(_free, tag, pick.random() < 0.2)
            opened.result()
        elif chance < 0.80 and made:
            tag = pick.choice(list(made))
            if not self.workers[other].call(_open, tag, *made[tag]):
                self.soak.fail(f"what opens array {tag} has expired")
        elif chance < 0.97:
            for _ in range(3):
                worker.call(_close, pick.randrange(1 << 20))
        elif chance < 0.98:
            worker.call(_trim)
        elif chance < 0.988:
            worker.call(_fork)
        elif chance < 0.994:
            for each in self.workers:
                each.call(join)
        else:
            (worker.kill if pick.random() < 0.7 else worker.exit)()
            self.workers[maker], self.made[maker] = self.soak.worker(), {}

    def look(self) -> int:
        """How many arrays were compared."""
        return sum(looked.result() for looked in [worker.start(_look) for worker in self.workers])

    def end(self) -> None:
        for worker in self.workers:
            worker.call(join)
            worker.exit()


def run(soak: Soak) -> None:
    world = _World(soak)
    done = play(soak, world, 5, lambda: world.again)
    soak.say(f"{done}, {world.again} arrays in memory that served before")
    soak.check(world.again, "no memory ever served again")


if __name__ == "__main__":
    sys.exit(main("reuse", run))
