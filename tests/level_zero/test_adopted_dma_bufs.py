"""Memory of Level Zero as dma-bufs, and dma-bufs of other drivers as memory of Level Zero. Those of its drivers are
memfds here.
"""

from __future__ import annotations

import os

import pytest
from test_adapter_memory import DEVICE, level_zero, read, read_there, settle, write
from tests.harness import Child

import xpushare as xs
from xpushare.adapters.host import memory as host
from xpushare.integrations import dma_buf

GRANULE = 1 << 16


@pytest.fixture(autouse=True)
def memfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_name", lambda _fd: "/dmabuf:")
    if not level_zero().device(level_zero().devices()[0]).shares_by_fd:
        pytest.skip("this driver shares memory by its own handles")


def test_out_and_onto_the_host() -> None:
    with xs.malloc_device(GRANULE, DEVICE) as memory, Child() as child:
        write(memory, b"here")
        found = dma_buf.memory_fd(memory.slice(2, 100))
        assert (found.offset, found.nbytes) == (2, 100)
        assert os.pread(found.fd, 2, found.offset) == b"re"
        os.close(found.fd)

        def on_the_host(raw: bytes) -> bytes:
            host.__dict__["_name"] = lambda _fd: "/dmabuf:"
            with xs.ipc.memory.open(raw, device="native_cpu:0") as opened:
                return bytes(memoryview(opened)[:2])

        assert child.call(on_the_host, bytes(xs.ipc.memory.get(memory.slice(2, 100)))) == b"re"


@pytest.mark.drivers("soft", "stand-in")  # Intel's takes what its kernel has made
def test_in() -> None:
    fd = os.memfd_create("another driver's")
    os.pwrite(fd, b"from there".ljust(GRANULE), 0)
    with dma_buf.adopt(fd, device=DEVICE, offset=5) as memory, Child() as child:
        assert (memory.nbytes, str(memory.device)) == (GRANULE - 5, DEVICE)
        assert read(memory, 5) == b"there"
        assert child.call(read_there, bytes(xs.ipc.memory.get(memory)), 5) == b"there"
        write(memory, b"again")
        assert os.pread(fd, 10, 0) == b"from again"
        again = dma_buf.memory_fd(memory)
        assert os.fstat(again.fd).st_ino == os.fstat(fd).st_ino
        os.close(again.fd)
    settle()
    os.close(fd)
