"""Memory that is used again: never while anybody, here or elsewhere, still has it open. Without Ray."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare.integrations import _reuse
from xpushare.integrations._reuse import attach, empty

NBYTES = 1 << 20


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reuse, "_spare", _reuse._Kept())
    monkeypatch.setattr(_reuse, "_mapped", _reuse._Kept())


def filled(value: int, nbytes: int = NBYTES) -> tuple[int, Any]:
    """Where a new array is, and the array."""
    array = np.asarray(empty(nbytes, "u1"))
    array[:] = value
    return array.ctypes.data, array


def keep(handle: bytes) -> None:
    kept["array"] = np.asarray(attach(handle))


def kept_values() -> tuple[int, int]:
    return int(kept["array"].min()), int(kept["array"].max())


def drop() -> None:
    del kept["array"]


def mapped(inode: int) -> bool:
    """Whether this process has a file mapped."""
    with open("/proc/self/maps") as file:
        return any(int(line.split()[4]) == inode for line in file)


def inode_of(address: int) -> int:
    with open("/proc/self/maps") as file:
        for line in file:
            low, high = (int(each, 16) for each in line.split()[0].split("-"))
            if low <= address < high:
                return int(line.split()[4])
    raise AssertionError("nothing is mapped there")


def test_arrays() -> None:
    array = empty((2, 3), "<i4")
    assert array.shape == (2, 3)
    assert array.dtype == np.dtype("<i4")
    assert empty(0).shape == (0,)
    assert np.asarray(empty(())).ndim == 0
    with pytest.raises(xs.InvalidArgumentError):
        empty(3, object)
    with pytest.raises(xs.InvalidArgumentError):
        empty(-1)


def test_what_all_have_closed_is_used_again() -> None:
    where, array = filled(1)
    with xs.share(array) as handle, Child() as child:
        child.call(keep, bytes(handle))
        assert child.call(kept_values) == (1, 1)
        child.call(drop)
    del array
    assert filled(2)[0] == where
    assert filled(3, NBYTES // 2)[0] == where
    assert filled(4, NBYTES // 2 - 1)[0] != where, "much smaller arrays have their own"
    assert filled(5, NBYTES + 1)[0] != where


HOLDERS: dict[str, Any] = {
    "the array": lambda array, _handle: array,
    "a view": lambda array, _handle: np.asarray(array)[5:],
    "a DLPack consumer": lambda array, _handle: np.from_dlpack(array),
    "the memory": lambda array, _handle: array.memory,
    "an export": lambda _array, handle: handle,
    "an import here": lambda _array, handle: np.asarray(xs.attach(bytes(handle))),
}


@pytest.mark.parametrize("what", HOLDERS)
def test_not_while_something_here_holds_it(what: str) -> None:
    array = empty(NBYTES, "u1")
    where = array.ptr
    handle = xs.share(array)
    held = HOLDERS[what](array, handle)
    del array
    if what != "an export":
        handle.close()
    other, second = filled(1)
    assert other != where
    handle.close()
    del held
    assert filled(2)[0] == where
    del second


def test_not_while_another_process_has_it_open() -> None:
    """The export is withdrawn, the producer's array gone; the reader still reads what it was given."""
    where, array = filled(1)
    with Child() as child:
        with xs.share(array) as handle:
            child.call(keep, bytes(handle))
        del array
        other, array = filled(2)
        assert other != where
        assert child.call(kept_values) == (1, 1)
        child.call(drop)
        assert filled(3)[0] == where
        with xs.share(array) as handle:
            child.call(keep, bytes(handle))
        del array
        child.kill()
    assert filled(4)[0] == other, "a dead reader holds it"


def test_not_in_a_forked_child() -> None:
    where, array = filled(1)
    del array
    with Child(method="fork") as child:
        assert child.call(lambda: not _reuse._spare._items)
        assert child.call(lambda: filled(2)[0]) > 0
    again, array = filled(3)
    assert again == where
    assert array.max() == 3


def test_what_comes_again_stays_mapped_for_a_while() -> None:
    """From the second time on, whatever the exporter says of it, and only for a while."""
    with xs.share(filled(1)[1]) as handle, Child() as child:
        child.call(_again_and_again, bytes(handle), os.getpid())


def _again_and_again(handle: bytes, exporter: int) -> None:
    def importers() -> list[int]:
        return [pid for row in xs.shares() if row["exporter"] == exporter for pid in row["importers"]]

    for times in range(3):
        array = attach(handle)
        assert np.asarray(array)[0] == 1
        assert importers() == [os.getpid()]
        inode = inode_of(array.ptr)
        del array
        assert not importers()
        assert mapped(inode) == (times > 0)
    _reuse._KEPT_SECONDS = 0  # type: ignore[misc]
    _reuse._mapped.drop()
    assert not mapped(inode)


def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with Child() as child:
        child.call(_waiting_ends)
    waiting = _reuse._Kept()
    for size in (10, 20, 30):
        waiting.keep(bytearray(size), size)
    assert len(waiting.take(lambda item: len(item) < 30)) == 20, "the newest that fits"
    assert waiting.take(lambda item: len(item) == 20) is None
    monkeypatch.setattr(_reuse, "_KEPT_NBYTES", 45)
    waiting.keep(bytearray(15), 15)  # too much: the oldest goes
    assert [nbytes for _since, nbytes, _item in waiting._items.values()] == [30, 15]


def _waiting_ends() -> None:
    """In a process of its own, whose thread looks after it more often."""
    _reuse._KEPT_SECONDS = 0.05  # type: ignore[misc]
    where, array = filled(1)
    inode = inode_of(where)
    del array
    wait_until(lambda: not mapped(inode))
    assert not _reuse._spare._items
