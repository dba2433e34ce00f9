"""dma-bufs in and out. A memfd stands in for one where the kernel makes none, with the calls of udmabuf and of
synchronizing.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, fd_count, kept
from xpushare.adapters.host import memory as host
from xpushare.integrations import dma_buf

NBYTES = 3 * 4096
CREATE, SYNC = 0x40187542, 0x40086200


class SoftwareKernel:
    """What the module finds as `fcntl`: makes memfds of memfds."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []  # offset and size of each
        self.synchronized: list[int] = []  # flags
        self.fail: list[int] = []  # errors of the next calls

    def ioctl(self, _fd: int, number: int, raw: bytearray) -> int:
        assert isinstance(raw, bytearray)  # else the real one returns no number
        if self.fail:
            raise OSError(code := self.fail.pop(0), os.strerror(code))
        if number == SYNC:
            self.synchronized.append(struct.unpack("=Q", raw)[0])
            return 0
        assert number == CREATE
        memfd, flags, offset, nbytes = struct.unpack("=IIQQ", raw)
        assert flags == 1
        assert offset % 4096 == nbytes % 4096 == 0
        assert offset + nbytes <= os.fstat(memfd).st_size
        self.made.append((offset, nbytes))
        return os.dup(memfd)


def pretend() -> SoftwareKernel:
    """Take memfds for dma-bufs in this process."""
    kernel = kept["kernel"] = SoftwareKernel()
    host.__dict__.update(fcntl=kernel, _name=lambda _fd: "/dmabuf:", UDMABUF=os.devnull)
    return kernel


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> SoftwareKernel:
    for name in ("fcntl", "_name", "UDMABUF"):
        monkeypatch.setattr(host, name, getattr(host, name))  # undone afterwards
    return pretend()


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("stand-in")
    os.pwrite(made, bytes(range(256)) * (NBYTES // 256), 0)
    yield made
    os.close(made)


def read_and_write(handle: bytes) -> bytes:
    with xs.ipc.memory.open(handle) as memory, dma_buf.access(memory):
        found = bytes(memoryview(memory)[:4])
        memoryview(memory)[:4] = b"back"
        return found


# --- in ---------------------------------------------------------------------------------------------------------


def first_byte(handle: xs.ipc.Handle) -> int:
    with xs.ipc.memory.open(handle) as memory, dma_buf.access(memory, write=False):
        first = memoryview(memory)[0]
    assert memory.closed
    return first


@pytest.mark.usefixtures("kernel")
def test_as_the_page_says(fd: int) -> None:
    frame = dma_buf.adopt(fd)  # fd stays the caller's
    handle = xs.ipc.memory.get(frame)
    os.pwrite(fd, b"\5", 0)
    with Child(pretend) as child:
        assert child.call(first_byte, handle) == 5
    found = dma_buf.memory_fd(frame)  # fd, offset, nbytes
    assert (found.offset, found.nbytes) == (0, NBYTES)
    os.close(found.fd)
    frame.close()
    xs.ipc.memory.put(handle)


def test_another_process_maps_it(kernel: SoftwareKernel, fd: int) -> None:
    with dma_buf.adopt(fd, offset=4097, nbytes=100) as memory, Child(pretend) as child:
        assert (memory.nbytes, memory.device.backend) == (100, "native_cpu")
        handle = xs.ipc.memory.get(memory)
        assert handle.exposed_nbytes == NBYTES
        assert child.call(read_and_write, bytes(handle)) == bytes([1, 2, 3, 4])
        assert child.call(lambda: kept["kernel"].synchronized) == [3, 7]
        assert bytes(memoryview(memory)[:4]) == b"back"
        assert os.pread(fd, 4, 4097) == b"back"
        xs.ipc.memory.put(handle)
    assert kernel.synchronized == []


@pytest.mark.usefixtures("kernel")
def test_it_is_an_array_and_outlives_its_maker(fd: int) -> None:
    def share(raw: int) -> bytes:
        pretend()
        memory = dma_buf.adopt(raw)
        os.close(raw)
        array = kept["array"] = memory.as_array((3, 1024), "u4")
        return bytes(xs.share(array))

    with Child(method="fork") as child:
        array = xs.attach(child.call(share, fd))
        child.kill()
    assert np.asarray(array)[1, 0] == 0x03020100
    again = dma_buf.memory_fd(array)
    assert (again.offset, again.nbytes) == (0, NBYTES)
    assert os.fstat(again.fd).st_ino == os.fstat(fd).st_ino
    os.close(again.fd)


@pytest.mark.usefixtures("kernel")
def test_read_only(fd: int) -> None:
    with dma_buf.adopt(fd) as memory, Child(pretend) as child:
        handle = xs.ipc.memory.get(memory, read_only=True)

        def is_read_only(raw: bytes) -> bool:
            with xs.ipc.memory.open(raw) as opened, dma_buf.access(opened, write=False):
                return memoryview(opened).readonly

        assert child.call(is_read_only, bytes(handle))
        assert child.call(lambda: kept["kernel"].synchronized) == [1, 5]
        xs.ipc.memory.put(handle)


def test_access_is_ended_and_tried_again(kernel: SoftwareKernel, fd: int) -> None:
    with dma_buf.adopt(fd) as memory:
        kernel.fail = [errno.EINTR, errno.EAGAIN]
        with pytest.raises(ZeroDivisionError), dma_buf.access(memory, write=False):
            raise ZeroDivisionError
        assert kernel.synchronized == [1, 5]
        kernel.fail = [errno.EIO]
        with pytest.raises(xs.DeviceError, match="synchronizing"), dma_buf.access(memory):
            pytest.fail("the block was entered")


def test_what_is_no_dma_buf(fd: int) -> None:
    before = fd_count()
    with pytest.raises(xs.InvalidArgumentError, match="not a dma-buf, but /memfd:stand-in"):
        dma_buf.adopt(fd)
    with pytest.raises(xs.InvalidArgumentError, match="file descriptor 99999 is not open"):
        dma_buf.adopt(99999)
    assert fd_count() == before


def test_other_memory_needs_no_care() -> None:
    with (
        xs.malloc_device(4096, "native_cpu:0") as memory,
        pytest.raises(xs.InvalidArgumentError, match="needs no access"),
        dma_buf.access(memory),
    ):
        pytest.fail("the block was entered")


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("piece", [{"offset": -1}, {"offset": NBYTES}, {"nbytes": 0}, {"offset": 1, "nbytes": NBYTES}])
def test_pieces_that_are_not_there(fd: int, piece: dict[str, Any]) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        dma_buf.adopt(fd, **piece)


@pytest.mark.usefixtures("kernel")
def test_a_driver_that_lets_no_host_map(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> object:
        raise OSError(errno.ENOTSUP, "not supported")

    before = fd_count()
    monkeypatch.setattr(host.system, "Mapping", refuse)
    with pytest.raises(xs.FeatureNotSupportedError, match="does not let the host map it"):
        dma_buf.adopt(fd)
    assert fd_count() == before


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("honest", ["a dma-buf", "as large as it says"])
def test_an_importer_looks_at_what_it_gets(fd: int, honest: str) -> None:
    def attempt(raw: bytes) -> str:
        before = fd_count()
        with pytest.raises(xs.InvalidHandleError) as caught:
            xs.ipc.memory.open(raw)
        assert fd_count() <= before + 4  # what it knows the exporter by
        return str(caught.value)

    with dma_buf.adopt(fd) as memory, Child() as child:
        if honest == "a dma-buf":
            child.call(pretend)
            os.ftruncate(fd, 4096)
        found = child.call(attempt, bytes(xs.ipc.memory.get(memory)))
    assert ("its dma-buf has 4096" if honest == "a dma-buf" else "not a dma-buf, but /memfd:stand-in") in found


# --- out --------------------------------------------------------------------------------------------------------


def test_host_memory(kernel: SoftwareKernel) -> None:
    with xs.malloc_device(NBYTES, "native_cpu:0") as memory:
        memoryview(memory)[5000:5004] = b"here"
        found = dma_buf.memory_fd(memory.slice(5000, 4))
        assert kernel.made == [(4096, 4096)]
        assert found[1:] == (5000 - 4096, 4)
        assert os.pread(found.fd, 4, 5000) == b"here"  # the stand-in begins with the memfd
        os.close(found.fd)


@pytest.mark.usefixtures("kernel")
def test_memory_whose_dma_buf_is_out_serves_no_other_array() -> None:
    array = xs.empty(1 << 20, "u1")
    fd = dma_buf.memory_fd(array).fd
    xs.share(array).close()
    array.close()
    os.pwrite(fd, b"here", 0)
    os.close(fd)
    with xs.empty(1 << 20, "u1") as other:
        assert bytes(np.asarray(other)[:4]) != b"here"


@pytest.mark.usefixtures("kernel")
def test_opened_host_memory_has_none() -> None:
    def share() -> bytes:
        memory = kept["memory"] = xs.malloc_device(4096, "native_cpu:0")
        return bytes(xs.ipc.memory.get(memory))

    with (
        Child() as child,
        xs.ipc.memory.open(child.call(share)) as memory,
        pytest.raises(xs.FeatureNotSupportedError, match="attach it with own=True"),
    ):
        dma_buf.memory_fd(memory)


def test_owned_memory_has_one(kernel: SoftwareKernel) -> None:
    def share() -> bytes:
        array = kept["array"] = xs.zeros(NBYTES, "u1")
        np.asarray(array)[5000] = 9
        return bytes(xs.share(array))

    with Child() as child:
        array = xs.attach(child.call(share), own=True)
        child.kill()
    found = dma_buf.memory_fd(array)
    assert kernel.made == [(0, NBYTES)]
    assert os.pread(found.fd, 1, found.offset + 5000) == b"\t"
    os.close(found.fd)


def test_no_udmabuf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "UDMABUF", "/nowhere/udmabuf")
    with (
        xs.malloc_device(4096, "native_cpu:0") as memory,
        pytest.raises(xs.FeatureNotSupportedError, match="modprobe udmabuf"),
    ):
        dma_buf.memory_fd(memory)


def test_more_than_udmabuf_allows(kernel: SoftwareKernel) -> None:
    with xs.malloc_device(4096, "native_cpu:0") as memory:
        kernel.fail = [errno.EINVAL]
        with pytest.raises(xs.FeatureNotSupportedError, match="size_limit_mb"):
            dma_buf.memory_fd(memory)


@pytest.mark.skipif(not os.access(host.UDMABUF, os.R_OK | os.W_OK), reason=f"needs {host.UDMABUF}")
def test_the_kernels_own() -> None:
    with xs.malloc_device(NBYTES, "native_cpu:0") as memory:
        memoryview(memory)[:4] = b"\1\2\3\4"
        found = dma_buf.memory_fd(memory)
        with dma_buf.adopt(found.fd) as again, Child() as child:
            os.close(found.fd)
            assert child.call(read_and_write, bytes(xs.ipc.memory.get(again))) == b"\1\2\3\4"
        assert bytes(memoryview(memory)[:4]) == b"back"
