"""What native code remembers of kinds of arrays."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import xpushare as xs
from xpushare import _native


def asked(array: xs.SharedArray, known: _native.Kinds, ordered: bool = True) -> bool:
    """Whether Python is asked what produces the array. It then says that nothing does."""
    leaves = _native.Leaves([array], False, known)
    kinds = leaves.view(ordered)
    for number, first, device, element in kinds:
        assert (first, device, element) == (array, array.device, None)
        leaves.produce(number, None, None, True)
    assert leaves.producers() is None
    return bool(kinds)


def test_a_kind_is_told_once() -> None:
    known = _native.Kinds()
    one, other, third = xs.empty(3, "f4"), xs.empty((2, 2), "f4"), xs.empty(3, "i2")
    assert [asked(each, known) for each in (one, one, other, third, third)] == [True, False, False, True, False]
    known.clear()
    assert asked(one, known)


def test_more_kinds_than_are_remembered() -> None:
    known = _native.Kinds()
    arrays = [xs.empty(1, np.dtype([("x", "u1", (length,))])) for length in range(1, 101)]
    assert all(asked(each, known) for each in arrays)
    assert not asked(arrays[-1], known)
    assert asked(arrays[0], known), "all were forgotten when there were too many"


def test_what_it_remembers_ends_with_it() -> None:
    known = _native.Kinds()
    kind = np.dtype([("x", "u1", (3,))])
    assert asked(xs.empty(1, kind), known)
    assert kind in gc.get_referents(known)
    known.clear()
    assert kind not in gc.get_referents(known)


def test_arguments_of_a_wrong_type() -> None:
    leaves = _native.Leaves([xs.empty(3, "f4")], False, _native.Kinds())
    [(number, *_rest)] = leaves.view()
    for wrong in ((number, "no resource", None, True), (number + 1, None, None, True), ()):
        with pytest.raises((TypeError, IndexError)):
            leaves.produce(*wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        leaves.finds(number, "no recogniser", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.Leaves([], False, object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.Kinds(1)  # type: ignore[call-arg]
