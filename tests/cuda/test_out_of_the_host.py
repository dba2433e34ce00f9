"""How CUDA's memory leaves the process by other ways than its own descriptors: the adapter's logic against a scripted
driver, and a real GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from gpu_peer import CudaMalloc, queue, read
from scripted_driver import MIB2, Range, ScriptedDriver

import xpushare as xs
from harness import Child, kept
from xpushare.adapters.base import DeviceInfo, Import
from xpushare.adapters.cuda import _driver
from xpushare.adapters.cuda._adapter import Cuda
from xpushare.adapters.cuda._numbers import Attribute
from xpushare.integrations import dma_buf, fabric

FABRIC = "XPUSHARE_CUDA_FABRIC"
BOTH, FD_ONLY = 9, 1  # handle types


# --- dma-bufs ---------------------------------------------------------------------------------------------------


def test_whole_pages_around_the_memory(cuda: Cuda, gpu: DeviceInfo) -> None:
    memory = cuda.allocate(gpu, "device", MIB2)
    found = cuda.dma_buf(gpu, memory, memory.address + 5000, 4000)
    assert found is not None
    fd, offset = found
    assert offset == 5000 - 4096
    assert os.fstat(fd.number).st_size == 2 * 4096
    assert not os.get_inheritable(fd.number)
    fd.close()
    memory.release()


def test_memory_of_other_libraries(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    driver.foreign.append(Range(0x5000_0000, MIB2, 0, legacy=1))
    foreign = cuda.foreign(0x5000_0000 + 4096)
    assert foreign is not None
    found = cuda.dma_buf(gpu, foreign.memory, 0x5000_0000 + 4096, 4096)
    assert found is not None
    assert (found[1], os.fstat(found[0].number).st_size) == (0, 4096)
    found[0].close()


def test_cuda_malloc_memory_of_another_process(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    driver.foreign.append(Range(0x5000_0000, MIB2, 0, legacy=1))
    foreign = cuda.foreign(0x5000_0000)
    assert foreign is not None
    export = foreign.memory.export(False)
    opened = cuda.import_memory(gpu, Import(export.nbytes, export.exposed_nbytes, export.payload, [], False))
    with pytest.raises(xs.FeatureNotSupportedError, match="in the process that allocated it"):
        cuda.dma_buf(gpu, opened, opened.address, 4096)
    opened.release()


def test_host_memory_is_the_kernels_matter(cuda: Cuda, gpu: DeviceInfo) -> None:
    memory = cuda.allocate(gpu, "host", 4096)
    assert cuda.dma_buf(gpu, memory, memory.address, 4096) is None
    memory.release()


def test_a_gpu_without_dma_bufs(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    driver.attributes[Attribute.DMA_BUF_SUPPORTED] = 0
    memory = cuda.allocate(gpu, "device", MIB2)
    with pytest.raises(xs.FeatureNotSupportedError, match=r"DMA_BUF_SUPPORTED .*open kernel modules"):
        cuda.dma_buf(gpu, memory, memory.address, 1)
    memory.release()


def test_a_dma_buf_that_the_driver_refuses(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo) -> None:
    memory = cuda.allocate(gpu, "device", MIB2)
    driver.fail_named["cuMemGetHandleForAddressRange"] = 999
    with pytest.raises(xs.DeviceError, match=r"making a dma-buf of 1 bytes .*cuMemGetHandleForAddressRange"):
        cuda.dma_buf(gpu, memory, memory.address, 1)
    memory.release()


# --- handles of cudaMalloc memory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [(201, ("PID namespace", f"the same pid ({os.getpid()} here)", "--pid=container")), (205, ("see the same GPU",))],
)
def test_the_driver_refuses_a_peers_handle(
    cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo, code: int, words: tuple[str, ...]
) -> None:
    driver.foreign.append(Range(0x5000_0000, MIB2, 0, legacy=1))
    foreign = cuda.foreign(0x5000_0000)
    assert foreign is not None
    export = foreign.memory.export(False)
    driver.fail_named["cuIpcOpenMemHandle"] = code
    with pytest.raises(xs.DeviceError, match="cuIpcOpenMemHandle") as caught:
        cuda.import_memory(gpu, Import(export.nbytes, export.exposed_nbytes, export.payload, [], False))
    assert caught.value.native == code
    for word in (*words, "expandable_segments:True"):
        assert word in str(caught.value)


# --- fabric handles ---------------------------------------------------------------------------------------------


def make_device(cuda: Cuda, gpu: DeviceInfo) -> Any:
    return cuda.allocate(gpu, "device", MIB2)


def make_physical(cuda: Cuda, gpu: DeviceInfo) -> Any:
    return cuda.physical(gpu, MIB2, True)


Make = Callable[[Cuda, DeviceInfo], Any]


@pytest.mark.parametrize("make", [make_device, make_physical])
@pytest.mark.parametrize(("said", "types"), [(None, FD_ONLY), ("", FD_ONLY), ("0", FD_ONLY), ("1", BOTH)])
def test_the_switch(
    cuda: Cuda,
    driver: ScriptedDriver,
    gpu: DeviceInfo,
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    said: str | None,
    types: int,
) -> None:
    if said is None:
        monkeypatch.delenv(FABRIC, raising=False)
    else:
        monkeypatch.setenv(FABRIC, said)
    made = make(cuda, gpu)
    assert set(driver.types.values()) == {types}
    assert len(made.export(*(() if make is make_physical else (False,))).fds) == 1
    made.release()


def test_private_physical_memory_has_none(
    cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FABRIC, "1")
    cuda.physical(gpu, MIB2, False).release()
    assert set(driver.types.values()) == {0}


def test_a_handle(cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FABRIC, "1")
    memory = cuda.allocate(gpu, "device", MIB2)
    raw = cuda.fabric_handle(gpu, memory.address + 100)
    assert len(raw) == 64
    assert raw[8:14] == b"fabric"
    monkeypatch.delenv(FABRIC)
    plain = cuda.allocate(gpu, "device", MIB2)
    with pytest.raises(xs.FeatureNotSupportedError, match=f"set {FABRIC}=1 before it is made"):
        cuda.fabric_handle(gpu, plain.address)
    driver.fail_named["cuMemExportToShareableHandle"] = 999
    with pytest.raises(xs.DeviceError, match="asking for a fabric handle"):
        cuda.fabric_handle(gpu, memory.address)
    memory.release()
    plain.release()
    assert cuda.engine.teardown.settle(5)
    assert not driver.live["handle"]


@pytest.mark.parametrize("make", [make_device, make_physical])
def test_a_gpu_without_fabric(
    cuda: Cuda, driver: ScriptedDriver, gpu: DeviceInfo, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    driver.attributes[Attribute.HANDLE_TYPE_FABRIC_SUPPORTED] = 0
    assert cuda.fabric(gpu).state == "no"
    assert "HANDLE_TYPE_FABRIC_SUPPORTED" in cuda.fabric(gpu).reason
    monkeypatch.setenv(FABRIC, "1")
    with pytest.raises(xs.FeatureNotSupportedError, match=r"with a fabric handle .*HANDLE_TYPE_FABRIC_SUPPORTED"):
        make(cuda, gpu)
    assert "cuMemCreate" not in driver.calls


@pytest.mark.parametrize("code", [800, 801])
@pytest.mark.parametrize("channels", [[], ["channel0"]])
def test_a_driver_that_refuses(
    cuda: Cuda,
    driver: ScriptedDriver,
    gpu: DeviceInfo,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    code: int,
    channels: list[str],
) -> None:
    monkeypatch.setattr(_driver, "CHANNELS", str(tmp_path))
    for name in channels:
        (tmp_path / name).touch()
    driver.fail_named["cuMemCreate"] = code
    monkeypatch.setenv(FABRIC, "1")
    with pytest.raises(xs.FeatureNotSupportedError, match="cuMemCreate") as caught:
        cuda.allocate(gpu, "device", MIB2)
    assert caught.value.native == code
    assert ("there is no IMEX channel" in str(caught.value)) == (not channels)
    assert "nvidia-modprobe" in str(caught.value) or channels
    assert cuda.fabric(gpu).state == "no"
    driver.fail_named["cuMemCreate"] = 2
    with pytest.raises(xs.OutOfMemoryError):
        cuda.allocate(gpu, "device", MIB2)
    driver.fail_named.clear()
    assert cuda.fabric(gpu).state == "yes"
    assert not driver.live["handle"]


def test_another_word_for_the_switch(cuda: Cuda, gpu: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FABRIC, "yes")
    with pytest.raises(xs.InvalidArgumentError, match=f"{FABRIC} is 0 or 1, not 'yes'"):
        cuda.allocate(gpu, "device", MIB2)


def test_other_devices_have_none() -> None:
    assert fabric.support("native_cpu:0").state == "no"
    with (
        xs.malloc_device(4096, "native_cpu:0") as memory,
        pytest.raises(xs.FeatureNotSupportedError, match="only CUDA memory"),
    ):
        fabric.handle(memory)


# --- on a GPU ---------------------------------------------------------------------------------------------------

NBYTES = 1 << 21


def own() -> Any:
    made = xs.empty(NBYTES, "u1", device="cuda:0")
    queue().fill(made, b"\7")
    queue().synchronize(30)
    return made


def legacy() -> Any:
    return CudaMalloc(NBYTES, 7)


def look(fd: int, offset: int) -> tuple[bool, int]:
    """Whether it is a dma-buf, and its size behind the offset. Closes it."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("/dmabuf:"), os.lseek(fd, 0, os.SEEK_END) - offset
    finally:
        os.close(fd)


def of_opened(raw: bytes) -> tuple[bool, int] | str:
    with xs.ipc.memory.open(raw) as memory:
        try:
            found = dma_buf.memory_fd(memory)
        except xs.FeatureNotSupportedError as error:
            return str(error)
        return look(found.fd, found.offset)


@pytest.mark.cuda
@pytest.mark.timeout(120)
@pytest.mark.parametrize("make", [own, legacy])
def test_the_gpus_memory_as_a_dma_buf(make: Callable[[], Any]) -> None:
    kept["made"] = made = make()
    if not dma_bufs():
        with pytest.raises(xs.FeatureNotSupportedError, match="DMA_BUF_SUPPORTED"):
            dma_buf.memory_fd(made)
        return
    found = dma_buf.memory_fd(made)
    assert found.nbytes == NBYTES
    assert not os.get_inheritable(found.fd)
    with pytest.raises(xs.FeatureNotSupportedError, match="does not let the host map it"):
        dma_buf.adopt(found.fd)  # NVIDIA's driver
    assert look(found.fd, found.offset) == (True, NBYTES)
    with Child(timeout=90) as child:
        handle = xs.ipc.memory.get(made)
        there = child.call(of_opened, bytes(handle))
        if make is own:
            assert there == (True, NBYTES)
        else:
            assert "in the process that allocated it" in there
        xs.ipc.memory.put(handle)
    kept.clear()


def dma_bufs() -> bool:
    from xpushare import adapters

    adapter: Any = adapters.adapter("cuda")
    return bool(adapter.device(adapter.devices()[0]).attribute(Attribute.DMA_BUF_SUPPORTED))


def with_the_switch() -> tuple[str, str, int]:
    """In a child: whether it can, why not, and what came of it."""
    said = fabric.support("cuda:0")
    try:
        array = kept["array"] = own()
    except xs.FeatureNotSupportedError as error:
        return said.state, str(error), 0
    return said.state, "", len(fabric.handle(array).handle)


@pytest.mark.cuda
@pytest.mark.timeout(120)
def test_the_gpus_fabric_handle_or_the_reason() -> None:
    with Child(env={FABRIC: "1"}, timeout=90) as child, Child(timeout=90) as importer:
        state, reason, length = child.call(with_the_switch)
        print(f"fabric handles: {state}; {reason}")
        if state == "no":
            assert length == 0
            assert f"with a fabric handle ({FABRIC}=1)" in reason
            assert "HANDLE_TYPE_FABRIC_SUPPORTED" in reason or "cuMemCreate" in reason
            return
        assert (state, length) == ("yes", 64)
        raw = child.call(lambda: bytes(xs.ipc.memory.get(kept["array"])))
        assert importer.call(read_opened, raw) == 7


def read_opened(raw: bytes) -> int:
    with xs.ipc.memory.open(raw) as memory:
        return read(memory, NBYTES)[-1]
