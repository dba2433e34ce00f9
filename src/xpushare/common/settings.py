"""Environment variables that are numbers or switches. They are read when needed: a program can set them at its
start.
"""

from __future__ import annotations

import functools
import math
import os

from xpushare.common.errors import InvalidArgumentError

__all__ = ["nbytes", "seconds", "switch"]


@functools.lru_cache(64)
def _seconds(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise InvalidArgumentError(f"{name} is a number of seconds, 0 or more, not {text!r}")
    return found


@functools.lru_cache(64)
def _nbytes(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidArgumentError(f"{name} is a number of bytes, not {text!r}")
    return int(text)


def seconds(name: str, default: float) -> float:
    """A finite number of seconds, 0 or more. Raises `InvalidArgumentError` for any other text."""
    text = os.environ.get(name)
    return _seconds(name, text) if text else default


def nbytes(name: str) -> int | None:
    """A number of bytes; None if the variable is not set. Raises `InvalidArgumentError` for any other text."""
    text = os.environ.get(name)
    return _nbytes(name, text) if text else None


def switch(name: str) -> bool:
    """Whether the variable is 1. Raises `InvalidArgumentError` for any other text than 0, or none."""
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise InvalidArgumentError(f"{name} is 0 or 1, not {text!r}")
    return text == "1"
