"""Freed host memory waits for later allocations. test_reuse.py has the memory of arrays that were exported."""

from __future__ import annotations

import os
import pickle
import resource
from collections.abc import Callable

import numpy as np
import pytest
from peering import nothing_kept  # noqa: F401 - used by every test here

import xpushare as xs
from harness import Child

NBYTES = 1 << 20


def kept_nbytes() -> int:
    with xs.malloc_host(1, "native_cpu:0") as memory:
        found: int = memory.statistics()["kept_nbytes"]
    return found


@pytest.mark.usefixtures("no_fd_leak")
def test_it_serves_again_and_is_zeroed() -> None:
    with xs.malloc_host(NBYTES, "native_cpu:0") as memory:
        address = memory.ptr
        memoryview(memory)[:] = b"7" * NBYTES
    assert kept_nbytes() >= NBYTES
    with xs.malloc_host(NBYTES - 5, "native_cpu:0") as memory:  # as many pages
        assert memory.ptr == address
        assert memory.nbytes == NBYTES - 5
        assert not np.asarray(memory).any()
        assert kept_nbytes() < NBYTES
    with xs.empty(NBYTES, "uint8", isolated=True) as array:
        assert array.memory.ptr == address
        assert not np.asarray(array).any()
        assert kept_nbytes() < NBYTES
    assert xs.trim() >= NBYTES
    assert kept_nbytes() == 0
    assert xs.trim() > 0  # of the allocation that asked
    assert xs.trim() == 0
    small = xs.empty(300, "uint8")  # in new memory
    assert kept_nbytes() == (256 << 10) - 512  # what is left for other small arrays
    xs.trim()
    assert kept_nbytes() == 0
    small.close()


def test_views_hold_it() -> None:
    array = xs.empty(NBYTES, "uint8")
    view = np.asarray(array)
    array.close()
    del array
    assert kept_nbytes() < NBYTES
    view[:] = 1
    del view
    assert kept_nbytes() >= NBYTES


def exported(array: xs.SharedArray) -> None:
    xs.ipc.memory.put(xs.ipc.memory.get(array))


def shared(array: xs.SharedArray) -> None:
    xs.share(np.asarray(array)[10:20]).close()


def pickled(array: xs.SharedArray) -> None:
    pickle.loads(pickle.dumps(array)).close()


@pytest.mark.parametrize("way", [exported, shared, pickled])
def test_what_was_exported_does_not(way: Callable[[xs.SharedArray], None]) -> None:
    with xs.empty(NBYTES, "uint8", isolated=True) as array:
        way(array)
    del array
    assert kept_nbytes() < NBYTES


def test_imports_do_not() -> None:
    with Child() as child:
        handle = child.call(handle_of_new)
        xs.attach(handle).close()
        assert kept_nbytes() < NBYTES


def handle_of_new() -> str:
    handle = xs.share(xs.empty(NBYTES, "uint8"), opens=1)
    return str(handle)


def test_what_existed_at_a_fork_does_not() -> None:
    with xs.empty(NBYTES, "uint8"):
        xs.empty(NBYTES // 2, "uint8").close()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if xs.trim() == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert kept_nbytes() < NBYTES


def room_comes_from_what_is_kept() -> None:
    xs.share(xs.empty(1), ttl=100)
    xs.empty(16 * NBYTES, "uint8").close()
    assert kept_nbytes() >= 16 * NBYTES
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 4 * NBYTES, before[1]))
    try:
        xs.empty(12 * NBYTES, "uint8").close()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_it_goes_where_an_allocation_needs_it() -> None:
    with Child() as child:
        child.call(room_comes_from_what_is_kept)
