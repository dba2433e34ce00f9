"""Small arrays share allocations, and with them file descriptors; soak/arenas.py plays with them for longer."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept, new_fds, open_fds

SMALL = 16 << 10
ARENA = 256 << 10


@pytest.fixture(autouse=True)
def new_arena() -> None:
    xs.trim()


def test_a_thousand_arrays_cost_few_fds() -> None:
    before = open_fds()
    arrays = [xs.empty(1000, "uint8") for _ in range(1000)]
    assert len(new_fds(before)) <= 5
    for number, array in enumerate(arrays):
        values = np.asarray(array)
        assert not values.any()
        assert values.ctypes.data % 256 == 0
        values[:] = number % 251
    handles = [xs.share(array) for array in arrays]
    with Child() as child:
        assert child.call(look, [bytes(handle) for handle in handles])
    for handle in handles:
        handle.close()


def look(handles: list[bytes]) -> bool:
    opened = [xs.attach(handle) for handle in handles]
    good = all((np.asarray(array) == number % 251).all() for number, array in enumerate(opened))
    return good and all(array.shape == (1000,) and array.memory.nbytes == 1000 for array in opened)


def test_who_shares_and_who_does_not() -> None:
    with xs.empty(10, "uint8") as array, xs.empty(SMALL, "uint8") as last, xs.empty(SMALL + 1, "uint8") as large:
        assert abs(last.memory.ptr - array.memory.ptr) < ARENA
        with xs.share(array) as handle, xs.share(last) as other, xs.share(large) as alone:
            assert (handle.handle.nbytes, handle.handle.exposed_nbytes) == (10, ARENA)
            assert other.handle.exposed_nbytes == ARENA
            assert alone.handle.exposed_nbytes < ARENA
    with xs.empty(10, "uint8", isolated=True) as array, xs.share(array) as handle:
        assert handle.handle.exposed_nbytes < ARENA
    with xs.malloc_host(10, "native_cpu:0") as memory:
        assert xs.ipc.memory.get(memory).exposed_nbytes < ARENA


def test_the_place_of_a_freed_array_is_not_used_again() -> None:
    first = xs.empty(10, "uint8")
    addresses = {first.memory.ptr}
    for _ in range(100):
        with xs.empty(10, "uint8") as array:
            assert array.memory.ptr not in addresses
            addresses.add(array.memory.ptr)


def test_the_whole_is_freed_with_the_last() -> None:
    before = open_fds()
    arrays = [xs.empty(SMALL, "uint8") for _ in range(64)]
    for array in arrays:
        xs.share(array).close()
    assert len(new_fds(before)) > 3
    del arrays[1:], array
    xs.trim()
    assert len(new_fds(before)) == 1
    arrays.clear()
    xs.trim()
    assert not new_fds(before)


def test_own_opens_and_views() -> None:
    with xs.empty(4, "uint8"), xs.empty(8, "uint8") as array:
        np.asarray(array)[:] = range(8)
        with xs.share(array) as handle, xs.attach(handle) as again:
            assert again.memory.ptr == array.memory.ptr
        with xs.share(np.asarray(array)[6:2:-2]) as handle, xs.attach(handle) as again:
            assert np.asarray(again).tolist() == [6, 4]


def remember(pickled: bytes, handle: bytes) -> None:
    kept["opened"] = xs.attach(handle)
    kept["pickled"] = pickle.loads(pickled)


def pass_on() -> bytes:
    return pickle.dumps(kept["pickled"])


def make_two() -> tuple[bytes, bytes]:
    kept["arrays"] = xs.empty(3, "uint8"), xs.empty(5, "uint8")
    for number, array in enumerate(kept["arrays"]):
        np.asarray(array)[:] = 7 + number
    kept["handle"] = xs.share(kept["arrays"][0])
    return pickle.dumps(kept["arrays"][1]), bytes(kept["handle"])


def test_a_pickle_is_passed_on_when_its_exporter_is_gone() -> None:
    """Also where the same allocation had come by a handle before, of which no file descriptor is kept."""
    with Child() as middle:
        with Child() as maker:
            middle.call(remember, *maker.call(make_two))
            maker.kill()
        with pickle.loads(middle.call(pass_on)) as array:
            assert np.asarray(array).tolist() == [8] * 5


def test_a_forked_child_makes_arrays_of_its_own() -> None:
    with xs.empty(10, "uint8"):
        pid = os.fork()
        if pid == 0:
            np.asarray(xs.empty(10, "uint8"))[:] = 9
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with xs.empty(10, "uint8") as array:
            assert not np.asarray(array).any()
