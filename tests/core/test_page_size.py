"""Pages of 64 KiB, as Grace's kernels have them: simulated, since every multiple of 64 KiB is one of 4 KiB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from peering import exported, exported_physical, read_physical, write_physical

import harness
import xpushare as xs
from harness import Child, kept
from xpushare.common import system

LARGE = 1 << 16
PAIRS = {
    "native_cpu": ("native_cpu:0", "native_cpu:0"),
    "mock": ("mock:0", "mock:1"),
    "across": ("native_cpu:0", "mock:0"),
}


def large_pages() -> None:
    """In a child: the kernel has 64 KiB pages, and refuses what is not made of them."""
    real = {name: getattr(system, name) for name in ("Mapping", "Reservation", "range_map", "range_unmap", "resize")}

    def whole(name: str, *numbers: int) -> None:
        if any(number % LARGE for number in numbers):
            raise ValueError(f"{name}: {numbers} are not whole pages of {LARGE} bytes")

    def mapping(fd: int, nbytes: int, offset: int = 0, *rest: Any) -> Any:
        if "xpushare-table" not in os.readlink(f"/proc/self/fd/{fd}"):  # mmap(2) rounds that up
            whole("mmap", nbytes)
        whole("mmap", offset)
        return real["Mapping"](fd, nbytes, offset, *rest)

    def reservation(nbytes: int, address: int) -> Any:
        whole("reserve", nbytes, address)
        while True:  # the kernel's own choice is aligned to pages
            found = real["Reservation"](nbytes, address)
            if found.address % LARGE == 0:
                return found
            taken.append(real["Reservation"](4096, 0))

    taken = kept["taken"] = []

    def range_map(self: Any, at: int, fd: int, offset: int, nbytes: int, access: int) -> Any:
        whole("map", self.address + at, offset, nbytes)
        return real["range_map"](self, at, fd, offset, nbytes, access)

    def range_unmap(self: Any, at: int, nbytes: int) -> Any:
        whole("unmap", self.address + at, nbytes)
        return real["range_unmap"](self, at, nbytes)

    made: Any = system
    made.page_nbytes = lambda: LARGE
    made.Mapping, made.Reservation = mapping, reservation
    made.range_map, made.range_unmap = range_map, range_unmap


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[Child, Child]]:
    with Child(large_pages) as exporter, Child(large_pages) as importer:
        harness.children.difference_update({exporter, importer})  # they outlive the test
        yield exporter, importer


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    return PAIRS[request.param]


def granularities(device: str) -> tuple[int, int]:
    found = xs.Device(device)
    return found.memory_granularity(), found.memory_granularity(True)


def test_this_system_is_asked() -> None:
    assert xs.Device("native_cpu:0").memory_granularity() == os.sysconf("SC_PAGE_SIZE")


def test_granularity(processes: tuple[Child, Child]) -> None:
    assert processes[0].call(granularities, "native_cpu:0") == (LARGE, 1 << 21)
    least, recommended = processes[0].call(granularities, "mock:0")
    assert least % LARGE == recommended % LARGE == 0


def test_memory(processes: tuple[Child, Child], pair: tuple[str, str]) -> None:
    exporter, importer = processes
    handle = exporter.call(exported, pair[0], 5000, b"large pages")
    assert (handle.nbytes, handle.exposed_nbytes) == (5000, LARGE)

    def read(handle: xs.ipc.Handle, device: str) -> bytes:
        with xs.ipc.memory.open(handle, device=device) as memory:
            assert memory.nbytes == 5000
            return bytes(memoryview(memory)[:11])

    assert importer.call(read, handle, pair[1]) == b"large pages"


def test_arrays(processes: tuple[Child, Child], pair: tuple[str, str]) -> None:
    def share(device: str) -> bytes:
        array = kept["array"] = xs.empty((3, 5), "i4", device=device)
        np.asarray(array)[:] = np.arange(15).reshape(3, 5)
        handle = kept["array handle"] = xs.share(np.asarray(array)[1:, ::2])
        return bytes(handle)

    def read(raw: bytes, device: str) -> list[list[int]]:
        with xs.attach(raw, device=device) as array:
            found: list[list[int]] = np.asarray(array).tolist()
            return found

    raw = processes[0].call(share, pair[0])
    assert processes[1].call(read, raw, pair[1]) == [[5, 7, 9], [10, 12, 14]]


def test_virtual_memory(processes: tuple[Child, Child], pair: tuple[str, str]) -> None:
    """`VirtualRange.map` ended in a bare ValueError."""

    def use(device: str) -> bytes:
        unit = xs.Device(device).memory_granularity()
        physical = xs.PhysicalMemory(2 * unit, device)
        write_physical(physical, b"pages")
        with xs.VirtualRange(4 * unit, device) as place:
            assert place.ptr % unit == 0
            place.map(physical, unit, offset=unit, nbytes=unit)
            place.map(physical, 2 * unit, nbytes=unit, access="r")
            place.set_access(2 * unit, unit, "rw")
            place.unmap(unit, unit)
            with pytest.raises(xs.InvalidArgumentError, match=f"granularity, {unit}"):
                place.map(physical, 4096, nbytes=unit)
            for wrong in (4096, unit + 4096):
                with pytest.raises(xs.InvalidArgumentError, match=f"granularity, {unit}"):
                    xs.PhysicalMemory(wrong, device)
                with pytest.raises(xs.InvalidArgumentError, match=f"granularity, {unit}"):
                    xs.VirtualRange(wrong, device)
            return bytes(memoryview(place.as_array(5, "u1", 2 * unit)))

    assert processes[0].call(use, pair[0]) == b"pages"
    handle = processes[0].call(exported_physical, pair[0], 2 * LARGE, b"shared")

    def read(handle: xs.ipc.Handle, device: str) -> bytes:
        return read_physical(xs.ipc.physical_memory.open(handle, device=device), 6)

    assert processes[1].call(read, handle, pair[1]) == b"shared"


def test_fixed_addresses(processes: tuple[Child, Child]) -> None:
    def use() -> bool:
        with xs.VirtualRange(LARGE, "native_cpu:0") as place:
            address = place.ptr
        with pytest.raises(xs.InvalidArgumentError, match="granularity"):
            xs.VirtualRange(LARGE, "native_cpu:0", address=address + 4096)
        with xs.VirtualRange(LARGE, "native_cpu:0", address=address) as place:
            return place.ptr == address

    assert processes[0].call(use)


def test_unified_runtime(processes: tuple[Child, Child]) -> None:
    def use() -> tuple[int, bytes]:
        from ctypes import string_at

        from xpushare import ur

        [device] = next(
            ur.urDeviceGet(platform, ur.DeviceType.ALL)
            for adapter in ur.urAdapterGet()
            for platform in ur.urPlatformGet(adapter)
            if adapter.backend == "native_cpu"
        )
        context = ur.urContextCreate([device], None)
        minimum = ur.VirtualMemGranularityInfo.MINIMUM
        unit = ur.urVirtualMemGranularityGetInfo(context, device, 1, minimum)
        physical = ur.urPhysicalMemCreate(context, device, unit, None)
        start = ur.urVirtualMemReserve(context, None, unit)
        ur.urVirtualMemMap(context, start, unit, physical, 0, ur.VirtualMemAccessFlags.READ_WRITE)
        read = string_at(start, 4)
        ur.urVirtualMemUnmap(context, start, unit)
        ur.urVirtualMemFree(context, start, unit)
        return unit, read

    assert processes[0].call(use) == (LARGE, bytes(4))
