"""The map of allocations by address."""

from __future__ import annotations

import random

import pytest

from xpushare._native import AddressMap, AllocationBase, End


def put(made: AddressMap, address: int, nbytes: int) -> AllocationBase:
    found = AllocationBase(None, None, End(None), "host", address, nbytes, True, False, None, 0, None)
    made.add(found)
    return found


def test_what_contains_an_address() -> None:
    made = AddressMap()
    assert (made.find(0), made.all()) == (None, [])
    low, empty, high = put(made, 4096, 100), put(made, 8192, 0), put(made, 1 << 63, 1 << 63)
    assert [made.find(at) for at in (4095, 4096, 4195, 4196)] == [None, low, low, None]
    assert [made.find(at) for at in (8192, 8193)] == [empty, None]
    assert [made.find(at) for at in ((1 << 63) - 1, 1 << 63, (1 << 64) - 1)] == [None, high, high]
    assert made.all() == [low, empty, high]


def test_it_keeps_nothing_alive() -> None:
    made = AddressMap()
    low = put(made, 4096, 4096)
    high = put(made, 8192, 4096)  # what died behind it does not hide it
    del low
    assert (made.find(5000), made.find(9000)) == (None, high)
    del high
    assert (made.find(9000), made.all()) == (None, [])


def test_the_newest_of_one_address() -> None:
    made = AddressMap()
    first, second = put(made, 4096, 4096), put(made, 4096, 4096)
    assert made.find(5000) is second
    del second
    assert made.find(5000) is first
    third = put(made, 4096, 8192)
    assert [made.find(at) for at in (5000, 9000)] == [third, third]
    del third
    assert made.all() == [first]


def test_many_that_come_and_go() -> None:
    made, rng = AddressMap(), random.Random(7)
    living: dict[int, AllocationBase] = {}
    for _ in range(5000):
        at = rng.randrange(400) * 4096
        if at in living:
            del living[at]
        else:
            living[at] = put(made, at, 4096)
        at = rng.randrange(400) * 4096
        assert made.find(at + 17) is living.get(at)
    assert made.all() == [living[at] for at in sorted(living)]


def test_addresses_that_never_come_again_take_no_room() -> None:
    made = AddressMap()
    for at in range(0, 100_000 * 4096, 4096):
        put(made, at, 4096)
    assert made.__sizeof__() < 1000


def test_it_takes_allocations_alone() -> None:
    made = AddressMap()
    made.add(1)
    assert made.all() == []
    with pytest.raises(TypeError, match="no arguments"):
        AddressMap(1)  # type: ignore[call-arg]
