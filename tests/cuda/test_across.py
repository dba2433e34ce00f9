"""CUDA and the host open each other's handles: against a scripted driver, between real processes."""

from __future__ import annotations

import gc
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_driver import ScriptedDriver

import harness
import xpushare as xs
from harness import Child, kept
from xpushare.adapters.base import Form, Hardware, Same
from xpushare.adapters.cuda import _listing
from xpushare.adapters.cuda._adapter import Cuda
from xpushare.core.device import known_device
from xpushare.integrations import vulkan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
def cuda(driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    monkeypatch.setattr("xpushare.core.device._known", {})
    made = Cuda(driver)
    yield made
    gc.collect()
    xs.trim()
    assert made.engine.teardown.settle(5)
    assert not driver.live["registration"]


@pytest.fixture
def gpu(cuda: Cuda) -> xs.Device:
    return known_device(cuda, cuda.devices()[0])


@pytest.fixture
def peer() -> Iterator[Child]:
    """A process that has no GPU."""
    with Child() as child:
        yield child


def exported(read_only: bool = False) -> xs.ipc.Handle:
    memory = kept["memory"] = xs.malloc_device(5000, "native_cpu:0")
    memoryview(memory)[:4] = b"host"
    return xs.ipc.memory.get(memory.slice(0, 4000), read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_memory_of_the_host(driver: ScriptedDriver, gpu: xs.Device, peer: Child, read_only: bool) -> None:
    handle = peer.call(exported, read_only)
    with xs.ipc.memory.open(handle, device=gpu) as memory:
        assert (memory.device, memory.read_only, memory.nbytes) == (gpu, read_only, 4000)
        assert memory._use().allocation.kind == "host"
        assert memory.__dlpack_device__() == (3, 0), "kDLCUDAHost"
        assert bytes(memoryview(memory)[:4]) == b"host"
        assert memory.ptr in driver.live["registration"]
        assert driver.calls.count("cuMemHostRegister") == 1
        again = xs.ipc.memory.open(handle, device=gpu)
        assert again.ptr == memory.ptr
        assert driver.calls.count("cuMemHostRegister") == 1
        again.close()


def test_memory_of_the_host_in_the_same_process(driver: ScriptedDriver, gpu: xs.Device) -> None:
    handle = exported()
    with xs.ipc.memory.open(handle, device=gpu) as memory:
        assert memory.device == gpu
        memoryview(memory)[0] = 7
        assert memoryview(kept.pop("memory"))[0] == 7
        assert memory.ptr in driver.live["registration"]
    xs.ipc.memory.put(handle)


def test_a_device_that_cannot_register(driver: ScriptedDriver, cuda: Cuda, gpu: xs.Device, peer: Child) -> None:
    handle = peer.call(exported)
    driver.attributes[99] = 0  # HOST_REGISTER_SUPPORTED
    fds = harness.fd_count()
    with pytest.raises(xs.FeatureNotSupportedError, match="HOST_REGISTER"):
        xs.ipc.memory.open(handle, device=gpu)
    assert not driver.live["registration"]
    assert harness.fd_count() <= fds + 5  # what knowing the peer takes
    assert cuda.imports(cuda.devices()[0], False) == {Form.MEMFD: Same.HOST, Form.OPAQUE_FD: Same.DEVICE}


def test_physical_memory_of_the_host(gpu: xs.Device, peer: Child) -> None:
    def export() -> xs.ipc.Handle:
        pages = kept["pages"] = xs.PhysicalMemory(1 << 21, "native_cpu:0", enable_ipc=True)
        return xs.ipc.physical_memory.get(pages)

    with pytest.raises(xs.FeatureNotSupportedError, match=r"native_cpu cannot be opened on cuda:0.*a memfd") as caught:
        xs.ipc.physical_memory.open(peer.call(export), device=gpu)
    assert "cuda does not import" in str(caught.value)


def test_the_host_opens_host_memory_of_cuda(gpu: xs.Device, peer: Child) -> None:
    memory = xs.malloc_host(100, gpu)
    memoryview(memory)[:4] = b"cuda"
    handle = xs.ipc.memory.get(memory)

    def read(handle: xs.ipc.Handle) -> tuple[str, bytes]:
        with xs.ipc.memory.open(handle, device="native_cpu:0") as opened:
            found = bytes(memoryview(opened)[:4])
            memoryview(opened)[:4] = b"read"
            return str(opened.device), found

    assert peer.call(read, handle) == ("native_cpu:0", b"cuda")
    assert bytes(memoryview(memory)[:4]) == b"read"
    xs.ipc.memory.put(handle)


def test_the_host_does_not_open_device_memory_of_cuda(gpu: xs.Device, peer: Child) -> None:
    memory = xs.malloc_device(100, gpu)
    handle = xs.ipc.memory.get(memory)

    def attempt(handle: xs.ipc.Handle) -> str:
        with pytest.raises(xs.FeatureNotSupportedError) as caught:
            xs.ipc.memory.open(handle, device="native_cpu:0")
        return str(caught.value)

    for text in (peer.call(attempt, handle), attempt(handle)):
        assert "memory of cuda cannot be opened on native_cpu:0: it comes as a VMM fd" in text
    xs.ipc.memory.put(handle)


def test_events(gpu: xs.Device, peer: Child) -> None:
    event = xs.Event(gpu, enable_ipc=True)
    handle = xs.ipc.event.get(event)

    def answer(handle: xs.ipc.Handle) -> tuple[str, int]:
        opened = kept["event"] = xs.ipc.event.open(handle)
        opened.wait(10, at_least=1)
        return str(opened.device), opened.signal()

    pending = peer.start(answer, handle)
    event.signal()
    assert pending.result() == ("native_cpu:0", 2)
    event.wait(10, at_least=2)
    xs.ipc.event.put(handle)

    def export() -> xs.ipc.Handle:
        theirs = kept["theirs"] = xs.Event("native_cpu:0", enable_ipc=True)
        return xs.ipc.event.get(theirs)

    theirs = xs.ipc.event.open(peer.call(export), device=gpu)
    assert theirs.device == gpu
    assert theirs.signal() == 1
    assert peer.call(lambda: kept["theirs"].value) == 1


def test_pci_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: ScriptedDriver) -> None:
    monkeypatch.setattr(_listing, "PROC", tmp_path)
    name = "01010101-0101-0101-0101-010101010101"
    for address, text in (("0000:3b:00.0", name), ("0000:5e:00.0", name.replace("01", "77"))):
        folder = tmp_path / "gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t NVIDIA H200\nGPU UUID: \t GPU-{text}\n")
    found: Any = Cuda(driver).devices()
    assert found[0].hardware == Hardware("cuda", name, "0000:3b:00.0", "")
    assert found[1].hardware.pci == "", "the driver's folder does not have this one"


# --- Vulkan ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def offered(gpu: xs.Device) -> Iterator[xs.ipc.Handle]:
    """Memory of a Vulkan program of this process, on the GPU."""
    device = vulkan.device(uuid.UUID(gpu.uuid).bytes, bytes(16))
    fd = os.memfd_create("allocation")
    os.ftruncate(fd, 1 << 16)
    handle = xs.ipc.memory.get(vulkan.ExternalMemory(fd, 1 << 16, device=device, offset=4096, nbytes=100))
    os.close(fd)
    yield handle
    xs.ipc.memory.put(handle)


def test_memory_of_a_vulkan_program(driver: ScriptedDriver, gpu: xs.Device, offered: xs.ipc.Handle) -> None:
    before = harness.open_fds()
    with xs.ipc.memory.open(offered, device=gpu) as memory:
        assert (memory.device, memory.nbytes) == (gpu, 100)
        assert memory.ptr - 4096 in driver.live["import"]
        assert memory.__dlpack_device__() == (2, 0), "kDLCUDA"
        assert len(driver.live["external"]) == 1
    harness.wait_until(lambda: not driver.live["external"] and not driver.live["import"])
    assert not harness.new_fds(before)


@pytest.mark.parametrize("call", ["cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer"])
def test_a_vulkan_import_that_fails_leaves_nothing(
    driver: ScriptedDriver, gpu: xs.Device, offered: xs.ipc.Handle, call: str
) -> None:
    before = harness.open_fds()
    driver.fail_named[call] = 999
    with pytest.raises(xs.DeviceError, match=call):
        xs.ipc.memory.open(offered, device=gpu)
    driver.fail_named.clear()
    assert not driver.live["external"]
    assert not harness.new_fds(before)


def test_memory_of_a_vulkan_program_on_another_gpu(driver: ScriptedDriver, cuda: Cuda, offered: xs.ipc.Handle) -> None:
    other = known_device(cuda, cuda.devices()[1])
    with pytest.raises(xs.FeatureNotSupportedError, match="an opaque fd is imported on the same hardware only"):
        xs.ipc.memory.open(offered, device=other)
    assert "cuImportExternalMemory" not in driver.calls
