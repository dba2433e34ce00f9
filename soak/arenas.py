"""Processes make, share, open, close, free, fork and die: nobody finds another array in place of one that it has."""

from __future__ import annotations

import itertools
import random
import sys

from soak.common import Soak, main
from soak.looking import Kept, expect, fork, join, play
from xpushare.bench.measure import Worker

_READERS = 3
_MOST_ARRAYS = 60
_SMALL_NBYTES = 16 << 10
_MOST_WORDS = 5000  # of 8 bytes: from small ones to those that have an allocation of their own
_tags = itertools.count(1)


def _make(kept: Kept, tag: int, words: int, shared: bool) -> bytes | None:
    """An array full of its tag; its handle."""
    import numpy

    import xpushare as xs

    array = xs.empty(words, "uint64")
    values = numpy.asarray(array)
    if values.nbytes <= _SMALL_NBYTES:  # those that have an allocation of their own are unspecified: see reuse.py
        expect(values, 0)
    values[:] = tag
    handle = xs.share(array) if shared else None
    kept.setdefault("made", {})[tag] = values, handle
    return None if handle is None else bytes(handle)


def _free(kept: Kept, tag: int) -> None:
    values, handle = kept["made"].pop(tag)
    expect(values, tag)
    if handle is not None:
        handle.close()


def _open(kept: Kept, tag: int, handle: bytes) -> bool:
    """Whether it could still be opened."""
    import numpy

    import xpushare as xs

    try:
        values = numpy.asarray(xs.attach(handle))
    except xs.HandleExpiredError:
        return False
    expect(values, tag)
    kept.setdefault("opened", {}).setdefault(tag, []).append(values)
    return True


def _close(kept: Kept, tag: int) -> None:
    views = kept["opened"][tag]
    expect(views.pop(), tag)
    if not views:
        del kept["opened"][tag]


def _look(kept: Kept) -> int:
    """Compare everything that this process has; how many arrays that is."""
    count = 0
    for tag, (values, _handle) in kept.get("made", {}).items():
        expect(values, tag)
        count += 1
    for tag, views in kept.get("opened", {}).items():
        for values in views:
            expect(values, tag)
            count += 1
    return count


def _fork(kept: Kept) -> None:
    fork(kept, _look)


class _World:
    """The maker of arrays, its readers, and what each of them has."""

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        self.handles: dict[int, bytes | None] = {}
        self.maker = soak.worker()
        self.readers: list[tuple[Worker, list[int]]] = [(soak.worker(), []) for _ in range(_READERS)]

    def step(self, pick: random.Random) -> None:
        tags = list(self.handles)
        number = pick.randrange(_READERS)
        reader, opened = self.readers[number]
        shared = [tag for tag in tags if self.handles[tag] is not None]
        chance = pick.random()
        if chance < 0.3 and len(tags) < _MOST_ARRAYS:
            tag, words = next(_tags), pick.choice((1, 30, 500, 2000, _MOST_WORDS))
            self.handles[tag] = self.maker.call(_make, tag, words, pick.random() < 0.7)
        elif chance < 0.5 and tags:
            tag = pick.choice(tags)
            handle = self.handles.pop(tag)
            answered = reader.start(_open, tag, handle) if handle is not None else None  # while it is withdrawn
            self.maker.call(_free, tag)
            if answered is not None and answered.result():
                opened.append(tag)
        elif chance < 0.75 and shared:
            tag = pick.choice(shared)
            if not reader.call(_open, tag, self.handles[tag]):
                self.soak.fail(f"the handle of array {tag} has expired")
            opened.append(tag)
        elif chance < 0.92 and opened:
            reader.call(_close, opened.pop(pick.randrange(len(opened))))
        elif chance < 0.96:
            pick.choice((self.maker, reader)).call(_fork)
        elif chance < 0.98:
            for worker in (self.maker, *(worker for worker, _opened in self.readers)):
                worker.call(join)
        else:
            reader.kill()
            self.readers[number] = self.soak.worker(), []

    def look(self) -> int:
        """How many arrays were compared."""
        workers = [self.maker, *(worker for worker, _opened in self.readers)]
        return sum(looked.result() for looked in [worker.start(_look) for worker in workers])

    def end(self) -> None:
        for worker in (self.maker, *(worker for worker, _opened in self.readers)):
            worker.call(join)
            worker.exit()


def run(soak: Soak) -> None:
    soak.say(play(soak, _World(soak), 10))


if __name__ == "__main__":
    sys.exit(main("arenas", run))
