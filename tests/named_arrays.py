"""Arrays that tests publish, and what they read back."""

from __future__ import annotations

from typing import Any

import numpy as np

import xpushare as xs

__all__ = ["filled", "unpublish_all", "value_of"]


def filled(value: float) -> xs.SharedArray:
    array = xs.empty(4)
    np.asarray(array)[:] = value
    return array


def value_of(handle: Any) -> float:
    """The value of all elements: one version, whole."""
    with xs.attach(handle) as array:
        first, *others = np.asarray(array).tolist()
        assert others == [first] * 3
        return float(first)


def unpublish_all() -> None:
    for name in xs.published():
        xs.unpublish(name)
