"""Arrays that are full of their tags, and children that keep looking at those that they inherited."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Kept", "Stranger", "expect", "fork", "join"]

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
