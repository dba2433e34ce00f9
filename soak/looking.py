"""Arrays that are full of their tags, and children that keep looking at those that they inherited."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from soak.common import Soak

__all__ = ["Kept", "Stranger", "World", "expect", "fork", "join", "play"]

Kept = dict[str, Any]


class Stranger(Exception):
    """An array shows what it never contained."""


def expect(values: Any, tag: int) -> None:
    if not (values == tag).all():
        raise Stranger(f"array {tag} shows {sorted(set(values.tolist()))[:5]}")


def fork(kept: Kept, look: Callable[[Kept], object]) -> None:
    """A child that keeps looking at what it inherited, until `join`, or the end of its parent."""
    stop, told = os.pipe()
    os.set_blocking(stop, False)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.close(told)
            while True:
                look(kept)
                with contextlib.suppress(BlockingIOError):
                    os.read(stop, 1)  # the end: its parent has closed it, or died
                    break
                time.sleep(0.001)
            code = 0
        os._exit(code)
    os.close(stop)
    kept.setdefault("children", []).append((pid, told))


def join(kept: Kept) -> None:
    children = kept.get("children", [])
    for _pid, told in children:
        os.close(told)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, _told in children]
    children.clear()
    if any(codes):
        raise Stranger("a forked child has seen another array in place of one that it inherited")


class World(Protocol):
    """Processes with arrays."""

    def step(self, pick: random.Random) -> None: ...

    def look(self) -> int:
        """How many arrays were compared."""
        ...

    def end(self) -> None: ...


def play(soak: Soak, world: World, steps_a_look: int, enough: Callable[[], object] = lambda: True) -> str:
    """Step for five minutes, or as long as the program is told, and look now and then. Returns what was done. At least
    100 steps are made, and more, up to 2,000, until there is `enough`.
    """
    end, steps, compared = time.monotonic() + soak.lasting(300, 3), 0, 0
    while time.monotonic() < end or steps < 100 or (steps < 2000 and not enough()):
        world.step(soak.random)
        steps += 1
        if steps % steps_a_look == 0:
            compared += world.look()
    world.end()
    return f"{steps} steps, {compared} comparisons of an array"
