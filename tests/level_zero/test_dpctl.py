"""dpctl in one process, this package in another: each reads and writes the other's memory, and nothing is copied."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

import pytest
from bare import Bare

import xpushare as xs
from harness import Child, kept

DEVICE = "level_zero:0"
NBYTES = 3 << 20

pytestmark = [
    pytest.mark.drivers("neo"),
    pytest.mark.skipif(
        importlib.util.find_spec("dpctl") is None, reason="dpctl is not here: scripts/level_zero oneapi"
    ),
]


@pytest.fixture
def dpctl_memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`dpctl.memory`, with Level Zero as SYCL's only backend."""
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "level_zero:*")
    import dpctl.memory

    return dpctl.memory


def staged(memory: Any, write: bytes = b"", nbytes: int = 0) -> bytes:
    """Write the first bytes of device memory through the device, or read them."""
    with xs.malloc_host(len(write) or nbytes, DEVICE) as host, xs.Queue(DEVICE) as queue:
        if write:
            memoryview(host)[:] = write
            queue.copy(memory, host)
        else:
            queue.copy(host, memory, nbytes)
        queue.synchronize()
        return bytes(memoryview(host))


def open_and_change(handle: str, expected: bytes, wanted: bytes) -> None:
    with xs.ipc.memory.open(handle) as memory:
        assert memory.nbytes == NBYTES
        assert staged(memory, nbytes=len(expected)) == expected
        staged(memory, wanted)


def allocate() -> str:
    kept["memory"] = xs.malloc_device(NBYTES, DEVICE)
    staged(kept["memory"], b"of ours")
    return str(xs.ipc.memory.get(kept["memory"]))


def read(nbytes: int) -> bytes:
    return staged(kept["memory"], nbytes=nbytes)


def release() -> None:
    kept.pop("memory").close()


def test_memory_of_dpctl_in_our_process(dpctl_memory: Any) -> None:
    memory = dpctl_memory.MemoryUSMDevice(NBYTES)
    memory.copy_from_host(b"of dpctl")
    handle = xs.ipc.memory.get(memory)
    with Child() as child:
        child.call(open_and_change, str(handle), b"of dpctl", b"of ours!")
    xs.ipc.memory.put(handle)
    assert bytes(memory.copy_to_host()[:8]) == b"of ours!"


def test_our_memory_in_dpctl_s_process(dpctl_memory: Any) -> None:
    with Child() as child:
        with xs.ipc.memory.open(child.call(allocate)) as memory:
            theirs = dpctl_memory.MemoryUSMDevice(memory)
            assert theirs._pointer == memory.ptr
            assert theirs.nbytes == NBYTES
            assert bytes(theirs.copy_to_host()[:7]) == b"of ours"
            theirs.copy_from_host(b"dpctl's")
            assert child.call(read, 7) == b"dpctl's"
            del theirs
        child.call(release)


def test_small_allocations_of_dpctl_are_refused(dpctl_memory: Any) -> None:
    """They are cut from one buffer: whoever opened one would reach its neighbours."""
    small = dpctl_memory.MemoryUSMDevice(4096)
    with pytest.raises(xs.FeatureNotSupportedError, match="beside others"):
        xs.ipc.memory.get(small)


@pytest.mark.usefixtures("dpctl_memory")
def test_sycl_contexts_have_the_driver_s_default_context() -> None:
    """So memory of this package is USM to SYCL. `getNative` is what C++'s `sycl::get_native` comes down to."""
    import dpctl

    with open("/proc/self/maps") as maps:
        library = next(line.split()[-1] for line in maps if "/libsycl.so" in line)
    native = ctypes.CDLL(library)["_ZNK4sycl3_V17context9getNativeEv"]
    native.argtypes, native.restype = (ctypes.c_void_p,), ctypes.c_void_p
    queue = dpctl.SyclQueue("level_zero:gpu")
    contexts = queue.sycl_context, dpctl.SyclContext([queue.sycl_device])
    ours = Bare().context.value
    assert [native(each.addressof_ref()) for each in contexts] == [ours, ours]
