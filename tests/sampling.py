"""The values of a parameter that `make test` takes; the others are for `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

__all__ = ["sampled"]


def sampled(values: Iterable[object], sample: Collection[object]) -> list[object]:
    """Return the values as parameters, with the mark `exhaustive` on each that is not in the sample.

    A tuple is one value for each of several parameters.
    """
    found = list(values)
    assert all(each in found for each in sample), f"{sample} has a value that is none of {found}"
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)), marks=() if each in sample else pytest.mark.exhaustive
        )
        for each in found
    ]
