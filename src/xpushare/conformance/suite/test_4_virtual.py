"""Section 4: virtual memory."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import xpushare as xs
from xpushare import adapters
from xpushare.conformance import actions
from xpushare.conformance.actions import granule, read_bytes, write_bytes
from xpushare.conformance.harness import TIMEOUT, Child, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule


def refuse(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Check that the call raises `InvalidArgumentError`."""
    with pytest.raises(xs.InvalidArgumentError):
        call(*args, **options)


@rule("4.1")
def test_reserving(pair: Pair) -> None:
    one = granule(pair.exporter)
    with xs.VirtualRange(4 * one, pair.exporter) as place:
        assert (place.nbytes, place.device, place.mapped()) == (4 * one, xs.Device(pair.exporter), [])
        assert place.ptr % one == 0
        assert place.access(0) == place.access(4 * one - 1) == "none"
        refuse(place.as_array(1, "uint8").__dlpack__)
        with xs.Queue(pair.exporter) as queue:
            refuse(queue.fill, place, b"x")
        try:
            memoryview(place)
        except (BufferError, xs.InvalidArgumentError):
            pass
        else:
            pytest.fail("a view of what is not mapped")


@rule("4.2")
def test_side_by_side(pair: Pair) -> None:
    one = granule(pair.exporter)
    with xs.VirtualRange(6 * one, pair.exporter) as place:
        pieces = [xs.PhysicalMemory(one * (1 + each % 2), pair.exporter) for each in range(3)]
        places = (0, one, 4 * one)
        for number, at in ((2, places[2]), (0, places[0]), (1, places[1])):
            place.map(pieces[number], at)
        assert place.mapped() == [(0, one, "rw"), (one, 2 * one, "rw"), (4 * one, one, "rw")]
        for number, at in enumerate(places):
            _fill(place, at, number + 1)
        for number, pages in enumerate(pieces):
            assert read_bytes(pages, 8) == bytes([number + 1]) * 8
        place.unmap(0, 3 * one)  # two whole mappings
        assert place.mapped() == [(4 * one, one, "rw")]
        place.map(pieces[1], 0)
        assert _content(place, 0) == b"\2" * 8
        assert place.mapped() == [(0, 2 * one, "rw"), (4 * one, one, "rw")]


def _fill(place: xs.VirtualRange, at: int, byte: int) -> None:
    with xs.Queue(place.device) as queue:
        queue.fill(place.as_array(8, "uint8", at), bytes([byte]))
        queue.synchronize(TIMEOUT)
    gc.collect()


def _content(place: xs.VirtualRange, at: int) -> bytes:
    with xs.Queue(place.device) as queue, xs.malloc_host(8, place.device) as host:
        queue.copy(host, place.as_array(8, "uint8", at))
        queue.synchronize(TIMEOUT)
        found = read_bytes(host)
    gc.collect()
    return found


@rule("4.3")
def test_granularity(pair: Pair) -> None:
    one = granule(pair.exporter)
    device = xs.Device(pair.exporter)
    assert device.memory_granularity(recommended=True) % one == 0
    for nbytes in (1, one - 1, one + 1, one // 2):
        refuse(xs.PhysicalMemory, nbytes, device)
        refuse(xs.VirtualRange, nbytes, device)
    for wrong in (0, -one):
        refuse(xs.PhysicalMemory, wrong, device)
        refuse(xs.VirtualRange, wrong, device)
    refuse(xs.VirtualRange, one, device, address=one + 1)
    with xs.VirtualRange(4 * one, device) as place, xs.PhysicalMemory(2 * one, device) as pages:
        refuse(place.map, pages, 1)
        refuse(place.map, pages, offset=1, nbytes=one)
        refuse(place.map, pages, nbytes=one + 1)
        refuse(place.map, pages, nbytes=0)
        place.map(pages)
        refuse(place.unmap, 1, 2 * one)
        refuse(place.unmap, 0, 2 * one - 1)
        refuse(place.set_access, 0, one - 1, "r")
        assert place.mapped() == [(0, 2 * one, "rw")]


@rule("4.4")
@pytest.mark.misuse
def test_inside(pair: Pair) -> None:
    one = granule(pair.exporter)
    with xs.VirtualRange(2 * one, pair.exporter) as place, xs.PhysicalMemory(2 * one, pair.exporter) as pages:
        for at in (one, 2 * one, -one, 1 << 62):
            refuse(place.map, pages, at)
        refuse(place.map, pages, offset=one, nbytes=2 * one)
        refuse(place.map, pages, offset=-one, nbytes=one)
        refuse(place.map, pages, offset=2 * one, nbytes=one)
        refuse(place.map, pages, nbytes=3 * one)
        assert place.mapped() == []
        place.map(pages)
        refuse(place.unmap, 0, 3 * one)
        refuse(place.unmap, -one, 2 * one)
        refuse(place.set_access, 0, 3 * one, "r")
        refuse(place.access, 2 * one)
        refuse(place.access, -1)
        refuse(place.as_array, 2 * one + 1, "uint8")
        refuse(place.map, "pages")


@rule("4.5")
def test_overlap(pair: Pair) -> None:
    one = granule(pair.exporter)
    with (
        xs.VirtualRange(4 * one, pair.exporter) as place,
        xs.PhysicalMemory(2 * one, pair.exporter) as pages,
        xs.PhysicalMemory(2 * one, pair.exporter) as more,
    ):
        place.map(pages, one)
        _fill(place, one, 7)
        for at in (0, one, 2 * one):
            refuse(place.map, more, at)
        assert place.mapped() == [(one, 2 * one, "rw")]
        assert _content(place, one) == b"\7" * 8
        place.unmap(one, 2 * one)
        place.map(more, 0)
        place.map(pages, 2 * one)
        assert len(place.mapped()) == 2


@rule("4.6")
def test_unmap_of_part(pair: Pair) -> None:
    one = granule(pair.exporter)
    with xs.VirtualRange(6 * one, pair.exporter) as place:
        for at in (0, 2 * one):
            place.map(xs.PhysicalMemory(2 * one, pair.exporter), at)
        for at, nbytes in ((0, one), (one, one), (one, 2 * one), (0, 3 * one), (0, 6 * one), (4 * one, one)):
            refuse(place.unmap, at, nbytes)
            refuse(place.set_access, at, nbytes, "r")
        assert place.mapped() == [(0, 2 * one, "rw"), (2 * one, 2 * one, "rw")]
        place.unmap(0, 4 * one)
        assert place.mapped() == []
        refuse(place.unmap, 0, 2 * one)


@rule("4.7")
def test_parts(pair: Pair) -> None:
    one = granule(pair.exporter)
    with xs.VirtualRange(4 * one, pair.exporter) as place, xs.PhysicalMemory(3 * one, pair.exporter) as pages:
        for number in range(3):
            write_bytes(pages, bytes([number + 1]) * 8, number * one)
        place.map(pages, 0, offset=one, nbytes=one)
        place.map(pages, one, offset=2 * one)
        place.map(pages, 2 * one, nbytes=one)
        assert [_content(place, at * one) for at in range(3)] == [bytes([byte]) * 8 for byte in (2, 3, 1)]
        assert place.mapped() == [(at * one, one, "rw") for at in range(3)]


@rule("4.8")
def test_access(pair: Pair) -> None:
    one = granule(pair.exporter)
    with (
        xs.VirtualRange(3 * one, pair.exporter) as place,
        xs.PhysicalMemory(one, pair.exporter) as pages,
        xs.Queue(pair.exporter) as queue,
    ):
        write_bytes(pages, b"readable")
        place.map(pages, 0, access="r")
        place.map(xs.PhysicalMemory(one, pair.exporter), one, access="none")
        assert [place.access(at) for at in (0, one - 1, one, 2 * one)] == ["r", "r", "none", "none"]
        assert place.mapped() == [(0, one, "r"), (one, one, "none")]
        assert _content(place, 0) == b"readable"
        refuse(queue.fill, place.as_array(8, "uint8"), b"x")
        refuse(queue.fill, place.as_array(8, "uint8", one), b"x")
        gc.collect()
        place.set_access(0, 2 * one, "rw")
        assert place.mapped() == [(0, one, "rw"), (one, one, "rw")]
        _fill(place, 0, 1)
        _fill(place, one, 2)
        assert (_content(place, 0), _content(place, one)) == (b"\1" * 8, b"\2" * 8)
        place.set_access(one, one, "none")
        assert (place.access(0), place.access(one)) == ("rw", "none")
        refuse(queue.fill, place.as_array(8, "uint8", one), b"x")
        for wrong in ("w", "", None, 3):
            refuse(place.set_access, 0, one, wrong)
            refuse(place.map, pages, 2 * one, access=wrong)


@rule("4.8")
def test_access_is_enforced(pair: Pair) -> None:
    one = granule(pair.exporter)
    with xs.VirtualRange(one, pair.exporter) as place, xs.PhysicalMemory(one, pair.exporter) as pages:
        place.map(pages, access="r")
        try:
            with memoryview(place) as view:
                assert view.readonly
        except BufferError:
            pytest.skip("the host cannot access it")
        gc.collect()

        def protection() -> str:
            for line in Path("/proc/self/maps").read_text().splitlines():
                where, access, *_ = line.split()
                low, high = (int(part, 16) for part in where.split("-"))
                if low <= place.ptr < high:
                    return access[:2]
            return "nothing"

        assert protection() == "r-"
        place.set_access(0, one, "rw")
        assert protection() == "rw"
        place.set_access(0, one, "none")
        assert protection() == "--"


@rule("4.9")
def test_mapping_holds(pair: Pair, nothing_left: Callable[[], None]) -> None:
    one = granule(pair.exporter)
    place = xs.VirtualRange(one, pair.exporter)
    pages = xs.PhysicalMemory(one, pair.exporter)
    place.map(pages)
    _fill(place, 0, 9)
    pages.close()
    del pages
    gc.collect()
    others = [xs.PhysicalMemory(one, pair.exporter) for _ in range(3)]
    assert _content(place, 0) == b"\x09" * 8
    place.close()
    del place, others
    nothing_left()


@rule("4.10")
def test_views_pin(pair: Pair, nothing_left: Callable[[], None]) -> None:
    one = granule(pair.exporter)
    place = xs.VirtualRange(2 * one, pair.exporter)
    place.map(xs.PhysicalMemory(one, pair.exporter), 0)
    place.map(xs.PhysicalMemory(one, pair.exporter), one)
    capsule = place.as_array(8, "uint8", one).__dlpack__()
    refuse(place.unmap, one, one)
    refuse(place.unmap, 0, 2 * one)
    refuse(place.set_access, one, one, "none")
    place.unmap(0, one)
    del capsule
    gc.collect()
    place.unmap(one, one)
    place.map(xs.PhysicalMemory(one, pair.exporter))
    with actions.held(pair.exporter) as gate:
        gate.queue.fill(place.as_array(8, "uint8"), b"q")
        refuse(place.unmap, 0, one)
        place.close()  # the queue still uses it
        gate.release()
    del place, gate
    nothing_left()


def _readers() -> dict[str, Callable[[xs.Memory], Any]]:
    """Return functions, by name, that access a `Memory` without copying. Each function returns an object over the
    memory, such as an array.
    """
    interfaces = sorted({each.name for vendor in adapters.vendors() for each in vendor.interfaces})

    def of(name: str) -> Callable[[xs.Memory], Any]:
        return lambda memory: (getattr(memory, name), memory)

    return {
        "memoryview": memoryview,
        "__dlpack__": lambda memory: memory.__dlpack__(max_version=(1, 0)),
        **{name: of(name) for name in interfaces},
    }


@rule("4.10")
def test_the_memory_of_an_array_pins(pair: Pair, nothing_left: Callable[[], None]) -> None:
    one = granule(pair.exporter)
    place = xs.VirtualRange(one, pair.exporter)
    pages = xs.PhysicalMemory(one, pair.exporter)
    place.map(pages)
    readers = {}
    for name, read in _readers().items():
        try:
            read(place.as_array(8, "uint8").memory)
        except (AttributeError, BufferError):
            continue  # not supported on this device
        readers[name] = read
    gc.collect()
    place.unmap(0, one)
    assert "__dlpack__" in readers
    for name, read in readers.items():
        array = place.as_array(8, "uint8")
        refuse(read, array.memory)  # nothing is mapped
        for access in ("none", "r", "rw"):
            place.map(pages, access=access)
            if access == "none":
                refuse(read, array.memory)
            else:
                view = read(array.memory)
                refuse(place.unmap, 0, one)
                refuse(place.set_access, 0, one, "none")
                if name == "memoryview":
                    assert view.readonly == (access == "r")
                elif name != "__dlpack__":
                    assert view[0]["data"] == (place.ptr, access == "r")
                del view
            gc.collect()
            place.unmap(0, one)
    del array, place, pages
    nothing_left()


@rule("4.11")
def test_addresses(pair: Pair) -> None:
    one = granule(pair.exporter)
    with xs.VirtualRange(one, pair.exporter) as place:
        address = place.ptr
        with pytest.raises((xs.InvalidArgumentError, xs.DeviceError, xs.OutOfMemoryError)):
            xs.VirtualRange(one, pair.exporter, address=address).close()
    del place
    gc.collect()
    try:
        again = xs.VirtualRange(one, pair.exporter, address=address)
    except (xs.InvalidArgumentError, xs.DeviceError):
        return
    with again:
        assert again.ptr == address


@rule("4.12")
def test_across_processes(pair: Pair, peer: Child) -> None:
    one = pair.granule
    handles = [
        peer.call(actions.export, f"pages{each}", "physical_memory", pair.exporter, bytes([each + 1]) * 8, one)
        for each in range(3)
    ]
    with xs.VirtualRange(3 * one, pair.importer) as place:
        for number, handle in enumerate(handles):
            with xs.ipc.physical_memory.open(handle, device=pair.importer) as pages:
                assert (pages.nbytes, pages.device) == (one, xs.Device(pair.importer))
                place.map(pages, number * one)
        assert [_content(place, at * one) for at in range(3)] == [bytes([byte]) * 8 for byte in (1, 2, 3)]
        _fill(place, one, 9)
        assert peer.call(actions.read, "pages1", 8) == b"\x09" * 8
        peer.call(actions.write, "pages2", b"exporter")
        assert _content(place, 2 * one) == b"exporter"
        peer.call(actions.put, "physical_memory", handles[0])
        assert _content(place, 0) == b"\1" * 8


def _follow(handle: bytes, device: str) -> int:
    follower = cast("xs.VirtualRange", xs.attach(handle, device=device))
    kept["follower"] = follower
    return follower.ptr


def _follower(at: int, refresh: bool) -> tuple[int, int, bytes]:
    follower: xs.VirtualRange = kept["follower"]
    if refresh:
        follower.refresh()
    return follower.ptr, follower.nbytes, _content(follower, at)


@rule("4.13")
def test_followers(pair: Pair, peer: Child) -> None:
    one = pair.granule
    with xs.VirtualRange(8 * one, pair.exporter, growable=True) as grown, xs.share(grown) as handle:
        grown.grow(one)
        _fill(grown, 0, 1)
        address = peer.call(_follow, bytes(handle), pair.importer)
        grown.grow(2 * one)
        _fill(grown, 2 * one, 2)
        assert peer.call(_follower, 0, False) == (address, one, b"\1" * 8)
        assert peer.call(_follower, 2 * one, True) == (address, 3 * one, b"\2" * 8)
        _fill(grown, 0, 3)
        assert peer.call(_follower, 0, False)[2] == b"\3" * 8
        grown.shrink(2 * one)
        assert peer.call(_follower, 2 * one, False)[1:] == (3 * one, b"\2" * 8)  # the old size, until it refreshes
        assert peer.call(_follower, 0, True) == (address, one, b"\3" * 8)
        refuse(grown.grow, 8 * one)
        refuse(grown.shrink, 2 * one)
    peer.call(actions.drop)
