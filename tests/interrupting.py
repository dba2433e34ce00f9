"""A Ctrl-C, or the handler of a signal, at each point of the package's code at which CPython runs handlers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import xpushare as xs

PACKAGE = str(Path(xs.__file__).parent)


class Interrupt:
    """Raises KeyboardInterrupt at the nth point in the package's code at which CPython may run the handler of a signal:
    where a function of Python begins, and where one of C has returned, whose result is lost then.

    What runs below a `__del__`, or what is called like one, is left out: nothing can come out of that. `deep` adds the
    points of the modules of Python that the package's code calls.
    """

    def __init__(self, nth: int, deep: bool = False) -> None:
        self.left = nth
        self.thread = threading.get_ident()
        self.deep = deep

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        ours = frame.f_code.co_filename.startswith(PACKAGE)
        if event not in ("call", "c_return") or not (ours or self.deep):
            return
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_name in ("__del__", "_abandoned"):
                return
            ours = ours or above.f_code.co_filename.startswith(PACKAGE)
            above = above.f_back
        if not ours:
            return
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Handler:
    """Runs what a signal's handler would, at the nth point as `Interrupt` has them."""

    def __init__(self, nth: int, work: Callable[[], Any]) -> None:
        self.left = nth
        self.work = work

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                self.work()
