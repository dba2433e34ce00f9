"""Virtual memory: ranges, mappings side by side, access, views that pin."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from peering import call_on, exported_physical, mappings, nothing_left, read_physical, reserved, write_physical

import xpushare as xs
from harness import Child

Pair = tuple[str, str]


@pytest.fixture
def granule(device: str) -> int:
    return xs.Device(device).memory_granularity()


@pytest.fixture
def place(device: str, granule: int) -> Any:
    with xs.VirtualRange(8 * granule, device) as place:
        yield place


def test_reserving_maps_nothing(device: str, granule: int) -> None:
    nbytes = 37 * granule
    with xs.VirtualRange(nbytes, device) as place:
        assert (place.nbytes, place.mapped(), place.ptr % granule) == (nbytes, [], 0)
        assert str(place.device) == device
        assert place.context == xs.Device(device).context
        where = place.ptr
        assert reserved(where, nbytes)
        assert place.access(0) == place.access(nbytes - 1) == "none"
        with pytest.raises(xs.InvalidArgumentError, match="not mapped"):
            memoryview(place)
    assert not reserved(where, nbytes)


def test_the_same_pages_at_two_places(device: str, granule: int, place: xs.VirtualRange) -> None:
    with xs.PhysicalMemory(granule, device) as physical:
        place.map(physical, 0)
        place.map(physical, 3 * granule)
        one, two = place.as_array(granule, "uint8"), place.as_array(granule, "uint8", 3 * granule)
        memoryview(one)[:5] = b"alias"
        assert bytes(memoryview(two)[:5]) == b"alias"
        memoryview(two)[1] = 0
        assert bytes(memoryview(one)[:5]) == b"a\0ias"
        assert place.mapped() == [(0, granule, "rw"), (3 * granule, granule, "rw")]
        del one, two


def test_several_objects_side_by_side_make_one_array(device: str, granule: int, place: xs.VirtualRange) -> None:
    import numpy as np

    for number in (2, 0, 1):  # in any order
        with xs.PhysicalMemory(granule, device) as physical:
            write_physical(physical, bytes([number + 1]) * granule)
            place.map(physical, number * granule)
    array = np.asarray(place.as_array(3 * granule, "uint8"))
    assert [array[number * granule] for number in range(3)] == [1, 2, 3]
    assert array[granule - 1 : granule + 1].tolist() == [1, 2]
    array[granule - 1 : granule + 1] = 9
    assert array[granule] == 9
    del array
    place.unmap(0, 3 * granule)
    assert place.mapped() == []


def test_parts_of_an_object(device: str, granule: int, place: xs.VirtualRange) -> None:
    with xs.PhysicalMemory(4 * granule, device) as physical:
        write_physical(physical, b"".join(bytes([number]) * granule for number in range(4)))
        place.map(physical, 0, offset=2 * granule, nbytes=granule)
        place.map(physical, granule, offset=granule)
        assert place.mapped() == [(0, granule, "rw"), (granule, 3 * granule, "rw")]
        view = memoryview(place.as_array(4 * granule, "uint8"))
        assert [view[number * granule] for number in range(4)] == [2, 1, 2, 3]
        view.release()
        gc.collect()


def test_only_whole_objects_without_partial_map(
    device: str, granule: int, place: xs.VirtualRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = xs.Device(device)
    from xpushare import Support

    monkeypatch.setitem(chosen._aspects, xs.Aspect.partial_map, Support("no", "the test says so"))
    with xs.PhysicalMemory(2 * granule, device) as physical:
        with pytest.raises(xs.InvalidArgumentError, match="partial_map"):
            place.map(physical, 0, nbytes=granule)
        place.map(physical, 0)


@pytest.mark.misuse
def test_what_is_misaligned_or_outside(device: str, granule: int, place: xs.VirtualRange) -> None:
    physical = xs.PhysicalMemory(2 * granule, device)
    total = place.nbytes
    wrong: list[dict[str, Any]] = [
        {"at": 1},
        {"at": granule // 2},
        {"at": -granule},
        {"at": total},
        {"at": total - granule},  # it does not fit
        {"at": "0"},
        {"offset": 1},
        {"offset": 3 * granule},
        {"offset": -granule},
        {"offset": 2 * granule},  # nothing is left
        {"nbytes": 1},
        {"nbytes": 0},
        {"nbytes": -granule},
        {"nbytes": 3 * granule},
        {"offset": granule, "nbytes": 2 * granule},
        {"nbytes": granule + 1},
        {"at": 2**80},
        {"nbytes": 2**80},
        {"access": "w"},
        {"access": None},
        {"access": "RW"},
    ]
    with nothing_left():
        for arguments in wrong:
            with pytest.raises(xs.InvalidArgumentError):
                place.map(physical, **arguments)
        with pytest.raises(xs.InvalidArgumentError):
            place.map(b"pages")  # type: ignore[arg-type]
        for at, nbytes in ((0, granule), (1, granule), (0, 0), (0, total + granule), (-granule, granule)):
            with pytest.raises(xs.InvalidArgumentError):
                place.unmap(at, nbytes)
            with pytest.raises(xs.InvalidArgumentError):
                place.set_access(at, nbytes, "r")
        for at in (-1, total, "0"):
            with pytest.raises(xs.InvalidArgumentError):
                place.access(at)  # type: ignore[arg-type]
    assert place.mapped() == []
    physical.close()


@pytest.mark.parametrize("what", ["PhysicalMemory", "VirtualRange"])
def test_sizes_are_multiples_of_the_granularity(device: str, granule: int, what: str) -> None:
    for nbytes in (1, granule - 1, granule + 1):
        with (
            nothing_left(),
            pytest.raises(xs.InvalidArgumentError, match=f"multiple of the granularity, {granule} bytes"),
        ):
            getattr(xs, what)(nbytes, device)
    recommended = xs.Device(device).memory_granularity(recommended=True)
    assert recommended % granule == 0


def test_overlaps(device: str, granule: int, place: xs.VirtualRange) -> None:
    with xs.PhysicalMemory(3 * granule, device) as physical, xs.PhysicalMemory(granule, device) as small:
        place.map(physical, 2 * granule)
        for at in (0, granule, 2 * granule, 3 * granule, 4 * granule):
            with nothing_left(), pytest.raises(xs.InvalidArgumentError, match="mapped already"):
                place.map(physical, at)
        place.map(small, granule)
        place.map(small, 5 * granule)
        assert [at for at, _nbytes, _access in place.mapped()] == [granule, 2 * granule, 5 * granule]


def test_unmapping_part_of_a_mapping(device: str, granule: int, place: xs.VirtualRange) -> None:
    with xs.PhysicalMemory(2 * granule, device) as physical:
        place.map(physical, 0)
        place.map(physical, 2 * granule)
        before = place.mapped()
        for at, nbytes in (
            (0, granule),
            (granule, granule),
            (granule, 2 * granule),
            (0, 3 * granule),
            (0, 5 * granule),
            (4 * granule, granule),
        ):
            with pytest.raises(xs.InvalidArgumentError, match="not made of whole mappings"):
                place.unmap(at, nbytes)
            with pytest.raises(xs.InvalidArgumentError, match="not made of whole mappings"):
                place.set_access(at, nbytes, "r")
        assert place.mapped() == before
        place.unmap(0, 4 * granule)
        assert place.mapped() == []
        place.map(physical, granule)  # the place can be used again
        place.unmap(granule, 2 * granule)


def test_access(device: str, granule: int, place: xs.VirtualRange) -> None:
    physical = xs.PhysicalMemory(granule, device)
    place.map(physical, 0, access="r")
    place.map(physical, granule)
    place.map(physical, 2 * granule, access="none")
    assert [place.access(at * granule) for at in range(4)] == ["r", "rw", "none", "none"]
    assert place.access(granule - 1) == "r"
    four = place.as_array(4, "uint8")
    view = memoryview(four)
    assert view.readonly
    view.release()
    assert four.read_only
    assert four.memory.read_only
    assert "read-only" in repr(four)
    both = place.as_array(2 * granule, "uint8")
    assert memoryview(both).readonly  # as soon as one byte is
    assert both.read_only
    del both
    with pytest.raises(xs.InvalidArgumentError, match=f"byte {2 * granule} "):
        memoryview(place.as_array(3 * granule, "uint8"))
    gc.collect()
    place.set_access(0, 2 * granule, "rw")
    memoryview(place.as_array(4, "uint8"))[:1] = b"x"
    assert not four.read_only
    gc.collect()
    place.set_access(0, granule, "none")
    assert place.access(0) == "none"
    with pytest.raises(xs.InvalidArgumentError):
        memoryview(place.as_array(4, "uint8"))
    place.set_access(0, 3 * granule, "rw")
    assert bytes(memoryview(place.as_array(1, "uint8", 2 * granule))) == b"x"
    with pytest.raises(xs.InvalidArgumentError, match='"rw", "r" or "none"'):
        place.set_access(0, granule, "x")  # type: ignore[arg-type]
    physical.close()


def test_a_write_to_what_is_mapped_to_be_read_faults(device: str) -> None:
    import ctypes
    import signal

    from harness import wait_until

    def write(device: str) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        place = xs.VirtualRange(1 << 16, device)
        place.map(xs.PhysicalMemory(1 << 16, device), access="r")
        ctypes.memset(place.ptr, 1, 1)

    with Child() as child:
        child.start(write, device)
        wait_until(lambda: not child.alive)
        assert child._status == -signal.SIGSEGV


def test_views_pin_what_they_look_at(device: str, granule: int, place: xs.VirtualRange) -> None:
    import numpy as np

    physical = xs.PhysicalMemory(granule, device)
    for at in range(3):
        place.map(physical, at * granule)
    array = np.asarray(place.as_array(2 * granule, "uint8"))
    for at in (0, 1):
        with pytest.raises(xs.InvalidArgumentError, match="still look"):
            place.unmap(at * granule, granule)
        with pytest.raises(xs.InvalidArgumentError, match="still look"):
            place.set_access(at * granule, granule, "none")
    place.unmap(2 * granule, granule)
    array[:1] = 7
    del array
    place.unmap(0, 2 * granule)
    physical.close()


def test_queue_operations_pin_what_they_look_at(device: str, granule: int, place: xs.VirtualRange) -> None:
    import threading

    gate = threading.Event()
    with xs.Queue(device) as queue, xs.PhysicalMemory(granule, device) as physical:
        place.map(physical)
        call_on(queue, gate.wait)
        queue.fill(place, b"q", granule)
        with pytest.raises(xs.InvalidArgumentError, match="still look"):
            place.unmap(0, granule)
        gate.set()
        queue.synchronize(10)
        place.unmap(0, granule)
        assert read_physical(physical, 2) == b"qq"


@pytest.mark.misuse
def test_views_outlive_the_range_object(device: str, granule: int) -> None:
    nbytes = 41 * granule
    place = xs.VirtualRange(nbytes, device)
    place.map(xs.PhysicalMemory(nbytes, device))
    view = memoryview(place)
    where = place.ptr
    place.close()
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        place.mapped()
    view[:4] = b"view"
    assert bytes(view[:4]) == b"view"
    view.release()
    gc.collect()
    assert not reserved(where, nbytes)


def test_closing_while_mapped(device: str, granule: int, place: xs.VirtualRange) -> None:
    count = mappings().count("xpushare-physical")
    physical = xs.PhysicalMemory(granule, device)
    place.map(physical)
    physical.close()
    memoryview(place.as_array(4, "uint8"))[:4] = b"held"
    gc.collect()
    assert mappings().count("xpushare-physical") == count + 1
    place.unmap(0, granule)
    assert mappings().count("xpushare-physical") == count


def test_address(device: str, granule: int) -> None:
    with xs.VirtualRange(4 * granule, device) as place:
        where = place.ptr
        with nothing_left(), pytest.raises(xs.InvalidArgumentError, match=r"taken|cannot be at"):
            xs.VirtualRange(granule, device, address=where)  # taken
    with xs.VirtualRange(4 * granule, device, address=where) as place:
        assert place.ptr == where
    for address in (1, where + 1, -granule, "0x1000", 2**63, 2**64 - granule, 2**64, 2**80):
        with nothing_left(), pytest.raises(xs.InvalidArgumentError):
            xs.VirtualRange(granule, device, address=address)  # type: ignore[arg-type]
    with nothing_left(), pytest.raises(xs.InvalidArgumentError, match="64 bits"):
        xs.VirtualRange(2 * granule, device, address=2**64 - granule)
    with nothing_left(), pytest.raises(xs.OutOfMemoryError):
        xs.VirtualRange(2**61, device, address=2**61)  # nor anywhere else


def test_imports_are_mapped_like_own(pair: Pair, peer: Child) -> None:
    granule = xs.Device(pair[1]).memory_granularity()
    handle = peer.call(exported_physical, pair[0], 2 * granule, b"import")
    with (
        xs.ipc.physical_memory.open(handle, device=pair[1]) as imported,
        xs.VirtualRange(4 * granule, pair[1]) as place,
    ):
        with xs.PhysicalMemory(granule, pair[1]) as own:
            place.map(own, 0)
        place.map(imported, granule)
        place.map(imported, 3 * granule, offset=granule, nbytes=granule)
        array = place.as_array(4 * granule, "uint8")
        assert bytes(memoryview(array)[granule : granule + 6]) == b"import"
        memoryview(array)[2 * granule] = 5  # the second granule of the import, mapped twice
        assert memoryview(array)[3 * granule] == 5
        del array


def test_an_import_is_mapped_after_its_exporter_died(pair: Pair) -> None:
    with Child() as child:
        handle = child.call(exported_physical, pair[0], 1 << 16, b"last words")
        imported = xs.ipc.physical_memory.open(handle, device=pair[1])
        child.kill()
    assert read_physical(imported, 10) == b"last words"
    again = xs.ipc.physical_memory.get(imported)
    with xs.ipc.physical_memory.open(again) as twin:
        assert read_physical(twin, 10) == b"last words"
    xs.ipc.physical_memory.put(again)
    imported.close()


def test_other_backends_pages_are_refused() -> None:
    with (
        xs.VirtualRange(1 << 16, "mock:0") as place,
        xs.PhysicalMemory(1 << 16, "native_cpu:0") as physical,
        pytest.raises(xs.InvalidArgumentError, match="cannot be mapped in a range of mock:0"),
    ):
        place.map(physical)
