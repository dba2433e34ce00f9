"""Memory of Vulkan programs in other Vulkan programs, and ours in Vulkan programs, on any device."""

from __future__ import annotations

import os
import uuid
from typing import Any

import numpy as np
import pytest
import vulkan_peer as peer

import xpushare as xs
from harness import Child, fd_count, kept, wait_until
from xpushare.integrations import vulkan

NBYTES = 1 << 20
UUID = bytes(range(16))


@pytest.fixture(autouse=True)
def _dropped() -> Any:
    yield
    program = kept.get("program")
    kept.clear()
    if program is not None:
        kept["program"] = program


def test_two_programs_share_one_allocation() -> None:
    with Child() as exporter, Child() as importer:
        handle = exporter.call(peer.export, NBYTES, 0x01020304)
        assert importer.call(peer.import_, handle) == (0, NBYTES)
        assert importer.call(peer.read) == [0x01020304]
        importer.call(peer.fill, 5)
        assert exporter.call(peer.read) == [5]


def test_a_piece_keeps_its_offset() -> None:
    def export() -> bytes:
        buffer = peer.allocate(NBYTES)
        peer.fill(9)
        return bytes(xs.ipc.memory.get(peer.memory(buffer, offset=NBYTES // 2, nbytes=NBYTES // 4)))

    with Child() as exporter, Child() as importer:
        handle = exporter.call(export)
        assert importer.call(peer.import_, handle) == (NBYTES // 2, NBYTES // 4)
        importer.call(peer.fill, 8)
        assert exporter.call(peer.read) == [8, 9]


def test_an_import_survives_the_exporter() -> None:
    with Child() as importer:
        with Child() as exporter:
            handle = exporter.call(peer.export, NBYTES, 77)
            importer.call(peer.import_, handle)
            exporter.kill()
        assert importer.call(peer.read) == [77]
        with pytest.raises(xs.HandleExpiredError):
            importer.call(peer.import_, handle)


def test_an_export_holds_memory_that_the_program_frees() -> None:
    with Child() as exporter, Child() as importer:
        handle = exporter.call(peer.export, NBYTES, 3)
        exporter.call(peer.free)
        importer.call(peer.import_, handle)
        assert importer.call(peer.read) == [3]


def test_a_dedicated_allocation_says_so() -> None:
    def export() -> bytes:
        buffer = peer.allocate(NBYTES, dedicated=True)
        peer.fill(6)
        return bytes(xs.ipc.memory.get(peer.memory(buffer, dedicated=True)))

    def dedicated(handle: bytes) -> bool:
        with xs.ipc.memory.open(handle, device=peer.device()) as opened:
            found = vulkan.memory_fd(opened)
            os.close(found.fd)
            return found.dedicated

    with Child() as exporter, Child() as importer:
        handle = exporter.call(export)
        assert importer.call(dedicated, handle)
        importer.call(peer.import_, handle)
        assert importer.call(peer.read) == [6]


def test_arrays_go_by_share_and_come_back_as_handles() -> None:
    def share() -> bytes:
        peer.allocate(NBYTES)
        peer.fill(0x0B0B0B0B)
        kept["share"] = xs.share(peer.memory(kept["buffer"], nbytes=NBYTES), read_only=False)
        return bytes(kept["share"])

    def attach(raw: bytes) -> tuple[tuple[int, ...], str]:
        array = kept["array"] = xs.attach(raw, device=peer.device())
        found = vulkan.memory_fd(array.memory)
        kept["buffer"] = peer.Buffer(peer.program(), array.nbytes, fd=found.fd, allocation_nbytes=found[1])
        return array.shape, str(array.dtype)

    with Child() as exporter, Child() as importer:
        raw = exporter.call(share)
        assert importer.call(attach, raw) == ((NBYTES,), "uint8")
        assert importer.call(peer.read) == [0x0B0B0B0B]


def test_vulkan_writes_into_our_host_memory_and_another_process_reads_it() -> None:
    buffer, array = peer.host_buffer(NBYTES)
    done = xs.Event("native_cpu:0", enable_ipc=True)
    try:
        with Child() as child, xs.share(array) as handle:

            def look(raw: bytes, event: xs.Event) -> list[int]:
                event.wait(10, at_least=1)
                return np.unique(np.asarray(xs.attach(raw))).tolist()

            looking = child.start(look, bytes(handle), done)
            timeline = peer.program(), peer.program().record(buffer.fill(0xABCD))
            timeline[0].submit(timeline[1], None, (made := _timeline(timeline[0]), 1))
            made.wait(1)
            done.signal()
            assert looking.result() == [0xABCD]
    finally:
        buffer.close()


def _timeline(program: Any) -> Any:
    from vulkan_program import Timeline

    return Timeline(program)


def test_opened_and_closed_memory_leaves_no_descriptor() -> None:
    device = peer.device()
    with Child() as exporter:
        handle = exporter.call(peer.export, NBYTES, 1)
        xs.ipc.memory.open(handle, device=device).close()
        before = fd_count()
        for _ in range(20):
            with xs.ipc.memory.open(handle, device=device) as opened:
                os.close(vulkan.memory_fd(opened).fd)
        wait_until(lambda: fd_count() <= before)


def test_the_exporter_opens_its_own_handle() -> None:
    peer.allocate(NBYTES)
    peer.fill(2)
    handle = xs.ipc.memory.get(peer.memory(kept["buffer"], nbytes=NBYTES))
    assert handle.backend == "vulkan"
    assert handle.device_uuid == peer.device().uuid
    assert handle.nbytes == NBYTES
    peer.free()
    assert peer.import_(bytes(handle)) == (0, NBYTES)
    assert peer.read() == [2]
    xs.ipc.memory.put(handle)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_memory_of_another_driver_or_device_is_refused_with_the_reason() -> None:
    def other_driver(handle: bytes) -> None:
        here = vulkan.device(peer.program().uuids()[0], UUID)
        xs.ipc.memory.open(handle, device=here)

    def other_device(handle: bytes) -> None:
        xs.ipc.memory.open(handle)

    with Child() as exporter, Child() as importer:
        handle = exporter.call(peer.export, NBYTES, 1)
        with pytest.raises(xs.FeatureNotSupportedError, match="imported only by the driver and device that made it"):
            importer.call(other_driver, handle)
    if peer.program().is_cpu:  # a GPU is there for CUDA, too
        with Child() as exporter, Child() as importer, pytest.raises(xs.InvalidArgumentError, match="may not see"):
            importer.call(other_device, exporter.call(peer.export, NBYTES, 1))


def test_the_host_cannot_open_it() -> None:
    with Child() as exporter:
        handle = exporter.call(peer.export, NBYTES, 1)
        with pytest.raises(xs.FeatureNotSupportedError, match="an opaque fd, which native_cpu does not import"):
            xs.ipc.memory.open(handle, device="native_cpu:0")


def test_it_has_no_address_for_other_libraries() -> None:
    with Child() as exporter, xs.ipc.memory.open(exporter.call(peer.export, NBYTES, 1), device=peer.device()) as opened:
        with pytest.raises(BufferError):
            memoryview(opened)
        with pytest.raises(xs.FeatureNotSupportedError, match="has no address"):
            np.from_dlpack(opened.as_array(NBYTES, "u1"))


def test_read_only_is_refused() -> None:
    peer.allocate(NBYTES)
    with pytest.raises(xs.FeatureNotSupportedError, match="read-only"):
        xs.ipc.memory.get(peer.memory(kept["buffer"]), read_only=True)
    peer.free()


def test_the_device_does_nothing_else() -> None:
    device = peer.device()
    assert device not in xs.devices()
    assert device in xs.devices("vulkan:*")
    for call in (
        lambda: xs.malloc_device(16, device),
        lambda: xs.Queue(device),
        lambda: xs.Event(device, enable_ipc=True),
    ):
        with pytest.raises(xs.FeatureNotSupportedError):
            call()


def test_bad_arguments_are_told() -> None:
    device = peer.device()
    with pytest.raises(xs.InvalidArgumentError, match="16 bytes"):
        vulkan.device(b"short", UUID)
    with pytest.raises(xs.InvalidArgumentError, match="was named with driver"):
        vulkan.device(uuid.UUID(device.uuid).bytes, UUID)
    with pytest.raises(xs.XpuShareError, match="file descriptor"):
        vulkan.ExternalMemory(-1, 16, device=device)
    fd = os.memfd_create("x")
    try:
        for offset, nbytes in ((17, None), (-1, None), (0, 17), (16, None)):
            with pytest.raises(xs.InvalidArgumentError, match="do not lie"):
                vulkan.ExternalMemory(fd, 16, device=device, offset=offset, nbytes=nbytes)
        with pytest.raises(xs.InvalidArgumentError, match="device is what"):
            vulkan.ExternalMemory(fd, 16, device=xs.Device("native_cpu:0"))
    finally:
        os.close(fd)
    with pytest.raises(xs.InvalidArgumentError, match="opened Memory"):
        vulkan.memory_fd(b"handle")  # type: ignore[arg-type]
    with xs.malloc_host(16, "native_cpu:0") as own, pytest.raises(xs.InvalidArgumentError, match="on a Vulkan one"):
        vulkan.memory_fd(own)


def test_a_semaphore_needs_a_queue_of_its_gpu() -> None:
    fd = os.memfd_create("x")
    try:
        semaphore = vulkan.TimelineSemaphore(fd, device=peer.device())
    finally:
        os.close(fd)
    with xs.Queue("native_cpu:0") as queue:
        with pytest.raises(xs.FeatureNotSupportedError, match="cannot be used by a queue of native_cpu:0"):
            semaphore.wait(queue, 1)
        with pytest.raises(xs.InvalidArgumentError, match="64 bits"):
            semaphore.signal(queue, -1)


# --- kills ------------------------------------------------------------------------------------------------------------


def test_exporters_that_die_leave_the_importer_alone() -> None:
    """Each exporter dies before one of three opens, or after them."""
    rounds = int(os.environ.get("XPUSHARE_KILLS", "8")) // 4 * 4  # the last is as the one after which fds are counted
    device = peer.device()

    def export_again_and_again() -> None:
        while True:
            handle = xs.ipc.memory.get(peer.memory(kept["buffer"], nbytes=NBYTES))
            xs.ipc.memory.put(handle)

    before = 0
    for number in range(rounds):
        with Child() as exporter:
            handles = [exporter.call(peer.export, NBYTES, number) for _ in range(3)]
            exporter.start(export_again_and_again)
            opened = []
            for at, handle in enumerate(handles):
                if at == number % 4:
                    exporter.kill()
                try:
                    opened.append(xs.ipc.memory.open(handle, device=device))
                except xs.HandleExpiredError:
                    assert not exporter.alive
            exporter.kill()
            assert len(opened) >= min(number % 4, 3)
            for memory in opened:
                os.close(vulkan.memory_fd(memory).fd)
                memory.close()
        if number == 3:
            before = fd_count()
    wait_until(lambda: fd_count() <= before)
