"""CUDA and the host open each other's handles: on a real GPU."""

from __future__ import annotations

from typing import Any

import gpu_peer
import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(60)]
SLOW = 60.0
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def gpu() -> xs.Device:
    return xs.Device("cuda:0")


def exported(nbytes: int = 5000, read_only: bool = False) -> xs.ipc.Handle:
    memory = kept["memory"] = xs.malloc_device(nbytes, "native_cpu:0")
    memoryview(memory)[:4] = b"host"
    return xs.ipc.memory.get(memory, read_only=read_only)


def content(nbytes: int) -> bytes:
    return bytes(memoryview(kept["memory"])[:nbytes])


def test_memory_of_the_host(gpu: xs.Device) -> None:
    """The GPU reads and writes it; so it does with what this very process exported."""
    with Child(env=NO_GPU, timeout=SLOW) as child, xs.Queue(gpu) as queue, xs.malloc_device(5000, gpu) as there:
        with xs.ipc.memory.open(child.call(exported), device=gpu) as memory:
            assert memory.device == gpu
            assert memory.__dlpack_device__() == (3, 0)
            queue.copy(there, memory)
            queue.fill(memory, b"gpu!", 4)
            queue.synchronize(10)
            assert gpu_peer.read(there, 4) == b"host"
            assert child.call(content, 4) == b"gpu!"
        own = exported()
        with xs.ipc.memory.open(own, device=gpu) as memory:
            queue.fill(memory, b"mine", 4)
            queue.synchronize(10)
            assert content(4) == b"mine"
        xs.ipc.memory.put(own)
        kept.pop("memory")


def test_read_only_memory_of_the_host(gpu: xs.Device) -> None:
    with Child(env=NO_GPU, timeout=SLOW) as child, xs.Queue(gpu) as queue, xs.malloc_device(4, gpu) as there:
        handle = child.call(exported, 4096, True)
        try:
            memory = xs.ipc.memory.open(handle, device=gpu)
        except xs.FeatureNotSupportedError as error:
            pytest.skip(str(error))
        with memory:
            queue.copy(there, memory, 4)
            queue.synchronize(10)
            assert gpu_peer.read(there, 4) == b"host"
            with pytest.raises(xs.InvalidArgumentError, match="read-only"):
                queue.fill(memory, b"nono", 4)


def test_the_host_opens_host_memory_of_cuda(gpu: xs.Device) -> None:
    def read(handle: xs.ipc.Handle) -> bytes:
        with xs.ipc.memory.open(handle, device="native_cpu:0") as opened:
            found = bytes(memoryview(opened)[:4])
            memoryview(opened)[:4] = b"read"
            return found

    with Child(env=NO_GPU, timeout=SLOW) as child, xs.malloc_host(100, gpu) as memory, xs.Queue(gpu) as queue:
        queue.fill(memory, b"cuda", 100)
        queue.synchronize(10)
        assert child.call(read, xs.ipc.memory.get(memory)) == b"cuda"
        assert bytes(memoryview(memory)[:8]) == b"readcuda"


def test_device_memory_is_refused_with_the_reason(gpu: xs.Device) -> None:
    def attempt(handle: xs.ipc.Handle) -> str:
        with pytest.raises(xs.FeatureNotSupportedError) as caught:
            xs.ipc.memory.open(handle, device="native_cpu:0")
        return str(caught.value)

    with Child(env=NO_GPU, timeout=SLOW) as child, xs.malloc_device(100, gpu) as memory:
        assert "a VMM fd, which native_cpu does not import" in child.call(attempt, xs.ipc.memory.get(memory))


def test_a_reader_on_the_host_waits_for_a_queue_of_the_gpu(gpu: xs.Device) -> None:
    """The producer's event, opened where there is no GPU, on whichever device."""

    def wait(handle: xs.ipc.Handle) -> tuple[str, int]:
        event = kept["event"] = xs.ipc.event.open(handle)
        event.wait(20, at_least=1)
        return str(event.device), event.signal()

    with Child(env=NO_GPU, timeout=SLOW) as child, xs.Event(gpu, enable_ipc=True) as event, xs.Queue(gpu) as queue:
        pending = child.start(wait, xs.ipc.event.get(event))
        queue.signal(event)
        assert pending.result(SLOW) == ("native_cpu:0", 2)
        queue.wait(event, at_least=2)
        queue.synchronize(10)


def test_a_queue_of_the_gpu_waits_for_the_host(gpu: xs.Device) -> None:
    def export() -> xs.ipc.Handle:
        event = kept["event"] = xs.Event("native_cpu:0", enable_ipc=True)
        return xs.ipc.event.get(event)

    with Child(env=NO_GPU, timeout=SLOW) as child, xs.Queue(gpu) as queue, xs.malloc_host(4, gpu) as target:
        event = xs.ipc.event.open(child.call(export), device=gpu)
        queue.wait(event, at_least=1)
        queue.fill(target, b"late", 4)
        with pytest.raises(TimeoutError):
            queue.synchronize(0.1)
        assert bytes(memoryview(target)) == bytes(4)
        child.call(lambda: kept["event"].signal())
        queue.synchronize(10)
        assert bytes(memoryview(target)) == b"late"
        queue.wait(event, at_least=2)
        child.kill()
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)


def test_an_array_of_the_gpus_host_memory(gpu: xs.Device) -> None:
    """A reader without a GPU is ordered after the producer's stream."""

    def read(raw: bytes) -> Any:
        array = xs.attach(raw, device="native_cpu:0")
        return str(array.device), np.asarray(array).tolist()

    with Child(env=NO_GPU, timeout=SLOW) as child, xs.malloc_host(16, gpu) as memory, xs.Queue(gpu) as queue:
        gate = xs.Event(gpu)
        queue.wait(gate, at_least=1)
        queue.fill(memory, b"\7")
        array = memory.as_array(4, "u1")
        with xs.share(array, stream=queue) as handle:
            assert handle.event is not None
            pending = child.start(read, bytes(handle))
            gate.signal()
            assert pending.result(SLOW) == ("native_cpu:0", [7, 7, 7, 7])
        queue.synchronize(10)


def test_the_pci_address_is_the_drivers(gpu: xs.Device) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    driver.cuInit(0)
    _, said = driver.cuDeviceGetPCIBusId(32, driver.cuDeviceGet(0)[1])
    assert gpu._info.pci in ("", said.split(b"\0")[0].decode().lower())
