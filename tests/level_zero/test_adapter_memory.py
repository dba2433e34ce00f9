"""Memory of the adapter: what leaves the process, and what is refused before a driver sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from bare import Bare
from level_zero_driver import Driver, driver
from tests.harness import Child, open_fds, wait_until

import xpushare as xs
from xpushare import adapters
from xpushare.adapters.base import DriverMemory, DriverPhysical, Form, Import
from xpushare.adapters.level_zero._adapter import LevelZero
from xpushare.common.fds import OwnedFd

DEVICE = "level_zero:0"
NBYTES = 5000
UNKNOWN = 0x7FFFFFFE  # the failure that says nothing of the device


@pytest.fixture(autouse=True)
def exporting() -> Iterator[None]:
    """What a process keeps once it has exported is there already, and teardowns are over at the end."""
    with xs.malloc_device(64, DEVICE) as memory:
        xs.ipc.memory.put(xs.ipc.memory.get(memory))
    settle()
    yield
    settle()


def settle() -> None:
    """Return once closed queues have ended, nothing that was closed is kept, and all teardowns are over."""
    xs.trim()
    wait_until(lambda: not any(gpu.streams for gpu in level_zero().engine.devices()))
    level_zero().engine.teardown.settle(20)


def level_zero() -> LevelZero:
    found = adapters.adapter("level_zero")
    assert isinstance(found, LevelZero)
    return found


@contextmanager
def allocated(nbytes: int = NBYTES) -> Iterator[DriverMemory]:
    """An allocation of the adapter's, without the layers above."""
    memory = level_zero().allocate(level_zero().devices()[0], "device", nbytes)
    try:
        yield memory
    finally:
        memory.release()


def write(memory: xs.Memory, content: bytes) -> None:
    with xs.Queue(memory.device) as queue:
        queue.fill(memory.slice(0, len(content)), content)
        queue.synchronize(20)


def read(memory: xs.Memory, nbytes: int) -> bytes:
    with xs.Queue(memory.device) as queue, xs.malloc_host(nbytes, memory.device) as host:
        queue.copy(host, memory.slice(0, nbytes))
        queue.synchronize(20)
        return bytes(memoryview(host))


def read_there(handle: bytes, nbytes: int, read_only: bool = False) -> bytes:
    with xs.ipc.memory.open(handle) as memory:
        assert memory.read_only == read_only
        return read(memory, nbytes)


def of_peer(
    memory: DriverMemory, nbytes: int | None = None, origin: bytes | None = None, fd: int | None = None
) -> Import:
    """The export of `memory`, as a peer may say it."""
    export = memory.export(False)
    fds = [OwnedFd(os.dup(export.fds[0] if fd is None else fd))]
    said = export.exposed_nbytes if nbytes is None else nbytes
    payload = export.payload[:8] + said.to_bytes(8, "little") + (origin or export.payload[16:32]) + export.payload[32:]
    return Import(export.nbytes, said, payload, fds, False, form=Form.DMA_BUF)


def open_import(what: Import) -> None:
    info = level_zero().devices()[0]
    try:
        level_zero().import_memory(info, what).release()
    finally:
        for fd in what.fds:
            fd.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_content_reaches_another_process(read_only: bool) -> None:
    if read_only and level_zero().device(level_zero().devices()[0]).lacks_physical_ipc():
        pytest.skip("this driver maps no memory read-only")
    with xs.malloc_device(NBYTES, DEVICE) as memory, Child() as child:
        write(memory, b"here")
        handle = bytes(xs.ipc.memory.get(memory, read_only=read_only))
        assert child.call(read_there, handle, 4, read_only) == b"here"


def held() -> tuple[int, int]:
    """How many descriptors are open here, and how many buffers of render nodes are mapped."""
    level_zero().engine.teardown.settle(20)
    with open("/proc/self/maps") as maps:
        return len(open_fds()), sum("dri/renderD" in line for line in maps)


def test_opening_and_closing_leaves_nothing() -> None:
    """Intel's driver closes an allocation's descriptor at its import, and that of physical memory with the memory."""

    def cycle(handles: list[bytes]) -> tuple[int, int]:
        for _ in range(20):
            with xs.ipc.memory.open(handles[0]), xs.ipc.physical_memory.open(handles[1]):
                pass
        return held()

    granule = level_zero().device(level_zero().devices()[0]).granularity(False)
    with (
        xs.malloc_device(NBYTES, DEVICE) as memory,
        xs.PhysicalMemory(granule, DEVICE, enable_ipc=True) as physical,
        Child() as child,
    ):
        handles = [bytes(xs.ipc.memory.get(memory)), bytes(xs.ipc.physical_memory.get(physical))]
        before = child.call(cycle, handles)
        after = child.call(cycle, handles)
        assert after[0] <= before[0]
        assert after[1] <= before[1]


def test_using_and_closing_leaves_nothing() -> None:
    """Buffers that the driver itself keeps are there after the first round, and are used again."""

    def cycle() -> tuple[int, int]:
        for _ in range(5):
            with (
                xs.malloc_device(NBYTES, DEVICE) as memory,
                xs.malloc_host(NBYTES, DEVICE) as host,
                xs.Queue(DEVICE) as queue,
            ):
                queue.copy(memory, host)
                queue.synchronize(20)
            settle()
        return held()

    with Child() as child:
        before = child.call(cycle)
        after = child.call(cycle)
        assert after[0] <= before[0]
        assert after[1] <= before[1], f"{before[1]} mappings of buffers, then {after[1]}"


def content(physical: DriverPhysical, fill: bytes = b"") -> bytes:
    """The first four bytes, which are filled before."""
    adapter, info = level_zero(), level_zero().devices()[0]
    place, queue = adapter.reserve(info, physical.nbytes, 0), adapter.queue(info)
    place.map(0, physical, 0, physical.nbytes, "rw")
    with xs.malloc_host(4, DEVICE) as host:
        if fill:
            queue.fill(place.address, fill, 4, place)
        queue.copy(host.ptr, place.address, 4, place)
        queue.synchronize(20)
        found = bytes(memoryview(host))
    queue.release()
    place.unmap(0, physical.nbytes)
    place.release()
    return found


def test_an_import_of_a_file_outlives_others() -> None:
    """Intel's driver closes the kernel's one handle of physical memory with the first import that is destroyed."""
    adapter, info = level_zero(), level_zero().devices()[0]
    gpu = adapter.device(info)
    if gpu.lacks_physical_ipc():
        pytest.skip("this driver shares no physical memory")
    made = adapter.physical(info, gpu.granularity(False), True)
    assert content(made, b"page") == b"page"
    export = made.export()
    fds = [OwnedFd(os.dup(export.fds[0])) for _ in range(3)]
    made.release()
    settle()
    said = export.nbytes, export.exposed_nbytes, export.payload
    first, second = (adapter.import_physical(info, Import(*said, [fd], False, form=export.form)) for fd in fds[:2])
    first.release()
    assert content(second) == b"page"
    second.release()
    third = adapter.import_physical(info, Import(*said, fds[2:], False, form=export.form))
    assert content(third) == b"page"
    third.release()


def test_an_allocation_shares_its_pages_with_no_other() -> None:
    with allocated(100) as one, allocated(100) as other:
        fds = [each.export(False).fds[0] for each in (one, other)]
        assert not os.path.samestat(os.fstat(fds[0]), os.fstat(fds[1]))


def test_the_size_is_checked() -> None:
    with allocated() as memory:
        exposed = memory.export(False).exposed_nbytes
        with pytest.raises(xs.InvalidHandleError, match="the exporter's table says"):
            open_import(of_peer(memory, nbytes=2 * exposed))


def test_no_memory_is_refused() -> None:
    ends = os.pipe()
    try:
        with allocated() as memory, pytest.raises(xs.InvalidHandleError, match="is not memory"):
            open_import(of_peer(memory, fd=ends[0]))
    finally:
        for end in ends:
            os.close(end)


def test_memory_of_an_unknown_device_is_refused() -> None:
    with allocated() as memory, pytest.raises(xs.FeatureNotSupportedError, match="this process may not see"):
        open_import(of_peer(memory, origin=bytes(range(16))))


# --- other libraries ----------------------------------------------------------------------------------------


class Array:
    """What dpctl's arrays say of themselves."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__sycl_usm_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 1,
            "syclobj": "level_zero:gpu:0",
        }


@pytest.mark.drivers("soft", "neo")
def test_memory_of_another_library() -> None:
    bare = Bare()
    address = bare.allocate(8 << 20)
    assert address.value is not None
    array = Array(address.value, 8 << 20)
    with xs.Queue(DEVICE) as queue, xs.malloc_host(4, DEVICE) as host:
        memoryview(host)[:] = b"ours"
        handle = bytes(xs.ipc.memory.get(array))
        with xs.ipc.memory.open(handle) as own:
            queue.copy(own.slice(0, 4), host)
            queue.synchronize(20)
        with Child() as child:
            assert child.call(read_there, handle, 4) == b"ours"
    xs.ipc.memory.put(handle)
    bare("zeMemFree", bare.context, address)


@pytest.mark.drivers("soft", "neo")
@pytest.mark.parametrize(("where", "why"), [("allocate", "beside others"), ("host", "usm_type='device'")])
def test_memory_of_another_library_is_refused_with_advice(where: str, why: str) -> None:
    """The driver puts small memory of a device beside that of others, who would be shared with it."""
    bare = Bare()
    address = getattr(bare, where)(4096)
    assert address.value is not None
    with pytest.raises(xs.FeatureNotSupportedError, match=why):
        xs.ipc.memory.get(Array(address.value, 4096))
    bare("zeMemFree", bare.context, address)


# --- failures ----------------------------------------------------------------------------------------------


def share() -> None:
    """Everything that a process does with memory, on both sides."""
    info = level_zero().devices()[0]
    with allocated() as memory:
        open_import(of_peer(memory))
    with xs.malloc_device(NBYTES, DEVICE) as device, xs.malloc_host(NBYTES, DEVICE):
        write(device, b"content")
    granule = level_zero().device(info).granularity(False)
    with xs.PhysicalMemory(granule, DEVICE, enable_ipc=True) as physical, xs.VirtualRange(granule, DEVICE) as place:
        place.map(physical)
        place.set_access(0, granule, "r")
        place.unmap(0, granule)
        xs.ipc.physical_memory.put(xs.ipc.physical_memory.get(physical))


def settled(books: Driver, wanted: str) -> bool:
    """Whether the driver has `wanted` left, once what runs in the background is over."""
    try:
        wait_until(lambda: level_zero().engine.teardown.settle(20) and books.left() == wanted, 3)
    except AssertionError:
        return False
    return True


@pytest.mark.drivers("soft", "stand-in")
def test_each_call_fails_in_turn(books: Driver) -> None:
    share()
    settle()
    kept = books.left()
    books.reset()
    share()
    # What ends something is left out: there is nobody to tell, and what the driver refuses to free stays.
    ends = ("Free", "Destroy", "Unmap", "Close", "Release")
    made = {name: count for name, count in books.calls().items() if not any(end in name for end in ends)}
    assert made
    wrong = []
    for name, count in made.items():
        for nth in range(1, count + 1):
            books.reset()
            books.fail(name, nth, UNKNOWN)
            try:
                share()
            except xs.XpuShareError:
                pass
            books.reset()
            if not settled(books, kept):
                wrong.append(f"{name} #{nth}: {kept} -> {books.left()}")
                kept = books.left()
    assert wrong == []


def closed_channel() -> tuple[xs.Channel, xs.Channel]:
    """A channel's writer and a reader, which have handed over a frame and are closed."""
    with xs.Channel.create(None, 64, "u1", device=DEVICE) as channel, xs.Channel.open(channel.handle) as reader:
        channel.send(np.ones(64, "u1"))
        reader.receive(20).close()
    return channel, reader


@pytest.mark.drivers("soft", "stand-in")
def test_closing_a_channel_gives_its_slots_and_events_back() -> None:
    books = driver()
    closed_channel()  # what a process keeps once it has had a channel
    settle()
    before = books.left()
    held = closed_channel()
    settle()
    assert books.left() == before
    assert all(each.closed for each in held)
