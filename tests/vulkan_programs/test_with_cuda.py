"""Vulkan and CUDA on one NVIDIA GPU: memory both ways, and timeline semaphores."""

from __future__ import annotations

import os
from typing import Any

import pytest
import vulkan_peer as peer

import xpushare as xs
from harness import Child, kept
from xpushare.integrations import vulkan

NBYTES = 8 << 20

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module", autouse=True)
def gpu() -> xs.Device:
    if peer.program().is_cpu or not xs.devices("cuda:*"):
        pytest.skip("needs an NVIDIA GPU with its Vulkan driver")
    return xs.Device(peer.device().uuid)


def words(opened: xs.Memory) -> list[int]:
    """The different words in device memory, by CUDA."""
    host = xs.malloc_host(opened.nbytes, opened.device)
    with xs.Queue(opened.device) as queue:
        queue.copy(host, opened)
        queue.synchronize(20)
    import numpy as np

    return np.unique(np.frombuffer(host, "u4")).tolist()


def open_in_cuda(handle: bytes, **options: Any) -> str:
    kept["opened"] = xs.ipc.memory.open(handle, **options)
    return str(kept["opened"].device.backend)


def read_in_cuda() -> list[int]:
    return words(kept["opened"])


def fill_in_cuda(pattern: bytes) -> None:
    with xs.Queue(kept["opened"].device) as queue:
        queue.fill(kept["opened"], pattern)
        queue.synchronize(20)


def test_vulkan_memory_opens_in_cuda_by_default() -> None:
    with Child() as exporter, Child() as importer:
        handle = exporter.call(peer.export, NBYTES, 0x01020304)
        assert importer.call(open_in_cuda, handle) == "cuda"
        assert importer.call(read_in_cuda) == [0x01020304]
        importer.call(fill_in_cuda, b"\5\0\0\0")
        assert exporter.call(peer.read) == [5]


def test_a_piece_and_a_dedicated_allocation_open_in_cuda() -> None:
    def export(dedicated: bool) -> bytes:
        buffer = peer.allocate(NBYTES, dedicated=dedicated)
        peer.fill(9)
        memory = peer.memory(buffer, offset=NBYTES // 2, nbytes=4096, dedicated=dedicated)
        return bytes(xs.ipc.memory.get(memory))

    for dedicated in False, True:
        with Child() as exporter, Child() as importer:
            importer.call(open_in_cuda, exporter.call(export, dedicated), device="cuda:0")
            assert importer.call(read_in_cuda) == [9]
            importer.call(fill_in_cuda, b"\1\0\0\0")
            assert exporter.call(peer.read) == [1, 9]


def test_memory_outlives_the_vulkan_program() -> None:
    with Child() as exporter, Child() as importer:
        importer.call(open_in_cuda, exporter.call(peer.export, NBYTES, 7))
        exporter.kill()
        assert importer.call(read_in_cuda) == [7]


def test_cuda_memory_opens_in_vulkan() -> None:
    def export() -> bytes:
        kept["opened"] = xs.malloc_device(NBYTES, "cuda:0")
        fill_in_cuda(b"\3\0\0\0")
        return bytes(xs.ipc.memory.get(kept["opened"]))

    with Child() as exporter, Child() as importer:
        assert importer.call(peer.import_, exporter.call(export)) == (0, NBYTES)
        assert importer.call(peer.read) == [3]
        importer.call(peer.fill, 4)
        assert exporter.call(read_in_cuda) == [4]


def test_arrays_of_vulkan_are_torch_tensors() -> None:
    def share() -> bytes:
        buffer = peer.allocate(NBYTES)
        peer.fill(0x02020202)
        kept["share"] = xs.share(peer.memory(buffer, nbytes=NBYTES))
        return bytes(kept["share"])

    def total(raw: bytes) -> int:
        import torch

        return int(torch.from_dlpack(xs.attach(raw)).sum(dtype=torch.int64).item())

    with Child() as exporter, Child() as importer:
        assert importer.call(total, exporter.call(share)) == 2 * NBYTES


def test_read_only_opens_are_refused() -> None:
    with Child() as exporter:

        def export() -> bytes:
            with xs.malloc_device(NBYTES, "cuda:0") as memory:
                return bytes(xs.ipc.memory.get(memory, read_only=True))

        with pytest.raises(xs.FeatureNotSupportedError, match="read-only"):
            xs.ipc.memory.open(exporter.call(export), device=peer.device())


def test_semaphores_order_vulkan_and_cuda_both_ways(gpu: xs.Device) -> None:
    from vulkan_program import Timeline

    program = peer.program()
    buffer = peer.allocate(NBYTES)
    opened = xs.ipc.memory.open(bytes(xs.ipc.memory.get(peer.memory(buffer, nbytes=NBYTES))), device=gpu)
    rendered, read = Timeline(program, True), Timeline(program, True)
    fds = rendered.fd(), read.fd()
    there, back = (vulkan.TimelineSemaphore(fd, device=peer.device()) for fd in fds)
    for fd in fds:
        os.close(fd)
    hosts = [xs.malloc_host(4, gpu) for _ in range(50)]
    with xs.Queue(gpu) as queue, xs.Event(gpu) as event:
        for number, host in enumerate(hosts, 1):  # CUDA is queued first, and waits
            there.wait(queue, number)
            queue.copy(host, opened.slice(NBYTES - 4, 4))
            back.signal(queue, number)
            queue.signal(event)
        assert not event.done
        for number in range(1, len(hosts) + 1):
            program.submit(program.record(buffer.fill(number)), (read, number - 1), (rendered, number))
        event.wait(20)
        queue.synchronize(20)
    assert [int.from_bytes(memoryview(host), "little") for host in hosts] == list(range(1, len(hosts) + 1))
    opened.close()


def test_a_lost_renderer_is_told_to_the_readers_of_its_event() -> None:
    """The semaphore of a killed renderer never comes; the event that follows it in its process is lost in time."""

    def promise() -> xs.Event:
        from vulkan_program import Timeline

        timeline = kept["timeline"] = Timeline(peer.program(), True)
        fd = timeline.fd()
        semaphore = kept["semaphore"] = vulkan.TimelineSemaphore(fd, device=peer.device())
        os.close(fd)
        queue = kept["queue"] = xs.Queue("cuda:0")
        event = kept["event"] = xs.Event("cuda:0", enable_ipc=True)
        semaphore.wait(queue, 1)
        queue.signal(event)
        return event

    with Child() as renderer:
        event = renderer.call(promise)
        assert not event.done
        renderer.kill()
        with pytest.raises(xs.PeerLostError):
            event.wait(20)
