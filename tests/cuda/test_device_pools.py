"""Pools of device memory for other libraries' allocators: the C functions over the scripted driver, and whole paths
over the software driver, in several processes.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import device_pool_peer as peer
import pytest
from scripted_driver import MIB2, ScriptedDriver

import xpushare as xs
from harness import Child
from sampling import sampled
from xpushare.adapters.base import DeviceInfo, DriverPool
from xpushare.adapters.cuda._adapter import Cuda

sys.path += [str(Path(__file__).parent.parent / each) for each in ("arrays", "keeper")]

from keepers import stop_keeper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
CHUNK = 64 << 20  # the first of a pool


# --- the functions


class Calls:
    """A pool's functions, as torch calls them."""

    def __init__(self, pool: DriverPool, device: int = 0) -> None:
        library = ctypes.CDLL(pool.library)
        self._device = device
        self._take = getattr(library, pool.functions[0])
        self._take.argtypes, self._take.restype = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        self._give = getattr(library, pool.functions[1])
        self._give.argtypes = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p

    def take(self, nbytes: int) -> int:
        return int(self._take(nbytes, self._device, None) or 0)

    def give(self, address: int) -> None:
        self._give(address, 0, self._device, None)


@pytest.fixture
def pool(cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver) -> Iterator[DriverPool]:
    made = cuda.pool(gpu)
    yield made
    for each in made.pieces():
        assert each.used == 0
    made.release()
    gc.collect()
    assert not driver.left


def test_a_model_takes_few_allocations(pool: DriverPool, driver: ScriptedDriver) -> None:
    calls = Calls(pool)
    taken = [calls.take(20 << 20) for _ in range(150)]
    assert all(taken)
    pieces = pool.pieces()
    assert len(pieces) <= 16
    assert len(driver.live["handle"]) == len(pieces)
    assert sum(each.nbytes for each in pieces) < 2 * 150 * (20 << 20)
    assert {each.address for each in pieces} == driver.live["mapping"]
    spans = sorted((at, at + (20 << 20)) for at in taken)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))  # none overlaps another
    for at in taken:
        calls.give(at)
    assert pool.pieces() == []


def test_parts_are_used_again_and_the_whole_goes_back(pool: DriverPool, driver: ScriptedDriver) -> None:
    calls = Calls(pool)
    first, second, third = (calls.take(MIB2) for _ in range(3))
    assert [each.nbytes for each in pool.pieces()] == [CHUNK]
    assert (second, third) == (first + MIB2, first + 2 * MIB2)
    calls.give(first)
    calls.give(second)
    assert calls.take(2 * MIB2) == first  # the two are one again
    assert pool.pieces()[0].used == 3 * MIB2
    calls.give(first)
    calls.give(third)
    assert pool.pieces() == []
    assert {*driver.left} == {"page"}  # by which the pool waits for the device


def test_what_is_larger_has_an_allocation_of_its_own_size(pool: DriverPool) -> None:
    calls = Calls(pool)
    large = calls.take((1 << 30) + 1)
    assert [each.nbytes for each in pool.pieces()] == [(1 << 30) + MIB2]
    calls.give(large)


def test_a_device_with_little_memory_is_asked_for_what_is_needed(pool: DriverPool, driver: ScriptedDriver) -> None:
    calls = Calls(pool)
    create = driver.cuMemCreate
    driver.cuMemCreate = lambda nbytes, *rest: create(nbytes, *rest) if nbytes <= MIB2 else (2, None)  # type: ignore[method-assign]
    only = calls.take(MIB2)
    assert [each.nbytes for each in pool.pieces()] == [MIB2]
    assert not calls.take(2 * MIB2)
    calls.give(only)


@pytest.mark.parametrize(
    "name", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuCtxPushCurrent"]
)
def test_what_fails_takes_nothing(pool: DriverPool, driver: ScriptedDriver, name: str) -> None:
    calls = Calls(pool)
    driver.fail_named[name] = 999
    assert not calls.take(MIB2)
    driver.fail_named.clear()
    assert {*driver.left} == {"page"}
    calls.give(calls.take(MIB2))


def test_sleep_and_wake_keep_the_addresses(pool: DriverPool, driver: ScriptedDriver) -> None:
    calls = Calls(pool)
    taken = [calls.take(CHUNK) for _ in range(3)]
    pieces = pool.pieces()
    pool.sleep()
    assert not driver.live["handle"] | driver.live["mapping"]
    assert not calls.take(64)
    calls.give(taken.pop())  # a library frees what it no longer uses
    pool.wake()
    assert {each.address for each in pool.pieces()} == {each.address for each in pieces} & {*taken}
    assert driver.live["mapping"] == {*taken}
    for at in taken:
        calls.give(at)


def test_a_wake_that_fails_leaves_it_asleep(pool: DriverPool, driver: ScriptedDriver, cuda: Cuda) -> None:
    calls = Calls(pool)
    taken = [calls.take(CHUNK) for _ in range(3)]
    pool.sleep()
    create, room = driver.cuMemCreate, [2]

    def scarce(*given: object) -> object:
        room[0] -= 1
        return (2, None) if room[0] < 0 else create(*given)  # type: ignore[arg-type]

    driver.cuMemCreate = scarce  # type: ignore[method-assign,assignment]
    with pytest.raises(xs.OutOfMemoryError):
        pool.wake()
    assert not driver.live["handle"]
    with pytest.raises(xs.FeatureNotSupportedError, match="put to sleep"):
        cuda.foreign(taken[0])
    room[0] = 3
    pool.wake()
    assert driver.live["mapping"] == {*taken}
    for at in taken:
        calls.give(at)


def test_a_library_finds_it_as_its_own_memory(pool: DriverPool, cuda: Cuda, driver: ScriptedDriver) -> None:
    calls = Calls(pool)
    at = calls.take(MIB2)
    found = cuda.foreign(at + 512)
    assert found is not None
    assert not any(each.startswith("cuPointer") for each in driver.calls)  # the driver was not asked
    assert (found.memory.address, found.memory.nbytes, found.offset) == (at, CHUNK, 512)
    export = found.memory.export(False)
    assert (export.exposed_nbytes, len(export.fds)) == (CHUNK, 1)
    pool.sleep()
    pool.wake()
    again = cuda.foreign(at)
    assert again is not None
    assert again.identity != found.identity  # other memory
    found.memory.release()
    calls.give(at)


def test_sixteen_pools_each_with_functions_of_its_own(cuda: Cuda, gpu: DeviceInfo, driver: ScriptedDriver) -> None:
    pools = [cuda.pool(gpu) for _ in range(16)]
    with pytest.raises(xs.OutOfMemoryError, match="16"):
        cuda.pool(gpu)
    taken = [Calls(each).take(MIB2) for each in pools]
    assert [len(each.pieces()) for each in pools] == [1] * 16
    assert not Calls(pools[0], device=1).take(MIB2)  # another device
    pools[3].release()
    with pytest.raises(xs.OutOfMemoryError):  # somebody still has memory of it
        cuda.pool(gpu)
    Calls(pools[3]).give(taken[3])
    pools[3] = cuda.pool(gpu)
    for at, each in zip(taken, pools, strict=True):
        Calls(each).give(at)
        each.release()
    assert not driver.left


# --- whole paths


SIZES = [4096 * number for number in range(1, 40)]
CONTENT = [{number} for number in range(1, 40)]


def test_arrays_are_shared_in_place_by_one_allocation(owner: Child, reader: Child) -> None:
    handle, allocations = owner.call(peer.make, SIZES)
    assert allocations == 1
    assert reader.call(peer.open_it, handle) == CONTENT


def test_sleep_with_the_content(owner: Child, reader: Child) -> None:
    handle, _ = owner.call(peer.make, SIZES)
    assert owner.call(peer.sleeping, True) == ""
    assert owner.call(peer.content) == CONTENT
    assert "expired" in owner.call(peer.withdrawn)
    with pytest.raises(xs.HandleExpiredError):
        reader.call(peer.open_it, handle)


def test_what_is_freed_while_it_sleeps_is_not_copied_back(owner: Child) -> None:
    owner.call(peer.make, [CHUNK, CHUNK, 4096])
    owner.call(peer.close_handle)
    assert owner.call(peer.freed_while_asleep) == [{3}]


def test_sleep_without_the_content(owner: Child) -> None:
    owner.call(peer.make, SIZES)
    assert owner.call(peer.sleeping, False) == ""
    assert owner.call(peer.content) != CONTENT  # new memory


@pytest.mark.parametrize("own", sampled([False, True], [False]))
def test_no_sleep_while_another_process_has_it_open(owner: Child, reader: Child, own: bool) -> None:
    handle, _ = owner.call(peer.make, SIZES)
    assert reader.call(peer.open_it, handle, own) == CONTENT
    assert f"open in process {reader.pid}" in owner.call(peer.sleeping, True)
    assert owner.call(peer.content) == CONTENT
    assert "expired" in owner.call(peer.withdrawn)
    reader.kill()
    why = owner.call(peer.sleeping, True)
    assert ("another process" in why) if own else (why == "")  # an owner may have handed it to anybody
    assert owner.call(peer.content) == CONTENT


def test_no_sleep_of_what_the_keeper_has(owner: Child, reader: Child) -> None:
    try:
        owner.call(peer.make, SIZES)
        assert owner.call(peer.keep_them, "pool") > 0
        assert "the keeper has memory" in owner.call(peer.sleeping, True)
        assert reader.call(peer.find, "pool") == CONTENT  # the software driver's descriptors end with their maker
    finally:
        stop_keeper()


def test_no_sleep_during_a_capture(owner: Child) -> None:
    owner.call(peer.make, SIZES)
    assert "while a graph is captured" in owner.call(peer.captures)
    assert owner.call(peer.sleeping, False) == ""


def test_a_forked_child_has_no_part_of_it(owner: Child) -> None:
    owner.call(peer.make, SIZES)
    assert owner.call(peer.in_a_fork) == "refused"
    assert owner.call(peer.content) == CONTENT


def test_blocks_and_states(owner: Child) -> None:
    owner.call(peer.make, [64])
    assert owner.call(peer.states) == ["this pool sleeps: wake it first"] * 2 + ["this pool does not sleep"]


def test_a_device_without_virtual_memory_of_its_own_is_refused() -> None:
    with pytest.raises(xs.FeatureNotSupportedError, match="has no memory for the allocators"):
        peer.Pool("native_cpu:0")
