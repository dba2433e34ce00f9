"""Whatever a peer writes into the control words: no process crashes, and no wait outlasts its time-out."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept
from words import words_of


def use(seconds: float) -> int:
    """Write and read while the words change; how often something was still understood."""
    good = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for options in ({}, {"mode": "one"}, {"mode": "newest"}):
            with (
                contextlib.suppress(xs.XpuShareError, TimeoutError, EOFError, ValueError, OSError),
                xs.Channel.open("hostile", timeout=0.1, **options) as ch,  # type: ignore[arg-type]
            ):
                for _ in range(20):
                    with contextlib.suppress(xs.XpuShareError, TimeoutError, EOFError), ch.loan(0.001) as frame:
                        np.asarray(frame)[:] = 1
                        frame.meta = [1, "x"]
                    with contextlib.suppress(xs.XpuShareError, TimeoutError, EOFError), ch.receive(0.001) as got:
                        bytes(memoryview(got.array))
                        _ = got.meta, got.missed, got.writer
                        good += 1
                ch.failed()
                ch.statistics()
    return good


def lock_there(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            kept["lock"].acquire(0.001)
        with contextlib.suppress(xs.InvalidArgumentError):
            kept["lock"].release()
    kept.pop("lock").close()


@pytest.mark.exhaustive
def test_random_words() -> None:
    source = random.Random(1)
    options: dict[str, Any] = {"writers": 4, "on_full": "overwrite", "meta_nbytes": 64}
    with xs.Channel.create("hostile", 64, "uint8", **options) as ch, Child() as child:
        words = words_of(ch._end.place)
        before = bytes(words)
        pending = child.start(use, 1.5)
        while not pending.done():
            at = source.randrange(len(words) - 8) & ~7
            words[at : at + 8] = source.choice([source.randbytes(8), source.randbytes(8), bytes(8), b"\xff" * 8])
            if source.random() < 0.02:
                words[:] = before
        assert pending.result() >= 0
        words[:] = before


@pytest.mark.exhaustive
def test_random_words_of_a_lock() -> None:
    source = random.Random(3)
    lock = xs.Lock()
    with Child() as child:
        child.call(kept.__setitem__, "lock", lock)
        words = words_of(lock._at)  # type: ignore[arg-type]
        pending = child.start(lock_there, 1.0)
        while not pending.done():
            at = 8 * source.randrange(3)
            words[at : at + 8] = source.randbytes(8)
        pending.result()
        words[:24] = bytes(24)
    lock.close()
