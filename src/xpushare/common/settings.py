"""Reads environment variables that are numbers or switches. They are read at each use, so a running program can set
them.
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
    """Return the value of an environment variable, a finite number of seconds, 0 or more. Returns `default` if the
    variable is not set. Raises `InvalidArgumentError` for any other text.
    """
    text = os.environ.get(name)
    return _seconds(name, text) if text else default


def nbytes(name: str) -> int | None:
    """Return the value of an environment variable, a number of bytes, or None if the variable is not set. Raises
    `InvalidArgumentError` for any other text.
    """
    text = os.environ.get(name)
    return _nbytes(name, text) if text else None


def switch(name: str) -> bool:
    """Return True if the environment variable is 1, or False if it is 0 or not set. Raises `InvalidArgumentError` for
    any other text.
    """
    text = os.environ.get(name) or ""
    if text not in ("", "0", "1"):
        raise InvalidArgumentError(f"{name} is 0 or 1, not {text!r}")
    return text == "1"
