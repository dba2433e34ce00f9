"""Converts the numbers and times that public calls take. Every call converts its numbers here, so that each refuses the
same values with the same words.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Final

from xpushare.common.errors import InvalidArgumentError

__all__ = ["integer", "seconds"]

_BITS_MOST: Final = 256


def _any_integer(_value: int) -> bool:
    return True


def integer(name: str, value: object, fits: Callable[[int], bool] = _any_integer, words: str = "") -> int:
    """Return the value of the parameter `name` as an int. Raises `InvalidArgumentError` unless the value is an integer
    (of Python, or of a library such as NumPy) for which `fits` is true. `words` says which ones are.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except Exception:  # of its own `__index__`
        raise InvalidArgumentError(f"{name} is an integer, not {type(value).__name__}") from None
    if number.bit_length() > _BITS_MOST:  # Python does not print integers of some thousand digits
        raise InvalidArgumentError(f"{name} is an integer of at most {_BITS_MOST} bits, not of {number.bit_length()}")
    if not fits(number):
        raise InvalidArgumentError(f"{name} {words}, not {number}")
    return number


def seconds(name: str, value: object, words: str = "a number of seconds") -> float:
    """Return a time in seconds, which may be negative or infinite. Raises `InvalidArgumentError` unless `value` is a
    real number and not NaN.
    """
    try:
        found = math.ldexp(value, 0)  # type: ignore[arg-type]  # not `float`, which takes strings, too
    except (TypeError, RuntimeError):  # torch's are RuntimeErrors
        raise InvalidArgumentError(f"{name} is {words}, not {type(value).__name__}") from None
    except OverflowError:  # an integer or a fraction that is too large for a float
        found = math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except ValueError:  # Decimal's signalling NaN
        found = math.nan
    if math.isnan(found):
        raise InvalidArgumentError(f"{name} is {words.removesuffix(' or None')}, not {value}")
    return found
