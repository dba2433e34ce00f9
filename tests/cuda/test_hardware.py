"""On a real GPU: `python -m pytest -m cuda tests/cuda`. Two-GPU tests skip where there is one."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gpu_peer as peer
import pytest

import xpushare as xs
from harness import Child, wait_until
from xpushare import adapters
from xpushare.objects.lifecycle import use

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(60)]
MIB2 = 1 << 21
SLOW = 60.0


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")


def adapter() -> Any:
    return adapters.adapter("cuda")


@pytest.fixture
def gpu() -> xs.Device:
    return xs.Device("cuda:0")


@pytest.fixture
def queue(gpu: xs.Device) -> Iterator[xs.Queue]:
    with xs.Queue(gpu) as made:
        yield made


def run(code: str, timeout: float = 40) -> str:
    """A fresh interpreter; its output."""
    head = "import sys; sys.path[:0] = %r\nimport gpu_peer as peer, xpushare as xs\n" % [
        os.path.dirname(__file__),
        os.path.dirname(os.path.dirname(__file__)),
    ]
    command = [sys.executable, "-c", head + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- devices ------------------------------------------------------------------------------------------------


def test_listing_starts_no_driver_and_agrees_with_it() -> None:
    out = run("""
        found = xs.devices("cuda:*")
        from cuda.bindings import driver
        assert int(driver.cuCtxGetCurrent()[0]) == 3, "CUDA was started"
        listed = [(d.ordinal, d.uuid, d.name) for d in found]
        driver.cuInit(0)
        import uuid
        for ordinal, name, model in listed:
            said = driver.cuDeviceGetUuid(driver.cuDeviceGet(ordinal)[1])[1].bytes
            assert uuid.UUID(bytes=bytes(said)) == uuid.UUID(name), (said, name)
        print(listed, found[0].driver_version)
    """)
    assert "NVIDIA" in out


def test_the_question_to_the_driver_gives_the_same_list() -> None:
    from xpushare.adapters.cuda import _listing

    asked, _ = _listing._ask_child()
    assert [gpu.uuid for gpu in asked] == [device.uuid for device in xs.devices("cuda:*")]


def test_aspects_are_asked(gpu: xs.Device) -> None:
    wanted = {
        xs.Aspect.ext_oneapi_ipc_memory,
        xs.Aspect.ext_oneapi_ipc_physical_memory,
        xs.Aspect.ext_oneapi_ipc_event,
        xs.Aspect.ext_oneapi_virtual_mem,
        xs.Aspect.foreign_memory,
        xs.Aspect.two_way_events,
    }
    assert wanted <= gpu.aspects
    assert gpu.memory_granularity() == MIB2
    assert not gpu.has(xs.Aspect.partial_map)


def test_unified_runtime_tells_what_the_driver_says(gpu: xs.Device) -> None:
    from xpushare import ur

    device = next(
        found
        for adapter in ur.urAdapterGet()
        for platform in ur.urPlatformGet(adapter)
        for found in ur.urDeviceGet(platform, ur.DeviceType.GPU)
        if ur.urDeviceGetInfo(found, ur.DeviceInfo.NAME) == gpu.name
    )
    info = ur.DeviceInfo
    asked = {each: ur.urDeviceGetInfo(device, each) for each in (info.GLOBAL_MEM_SIZE, info.GLOBAL_MEM_FREE)}
    assert 1 << 30 < asked[info.GLOBAL_MEM_FREE] <= asked[info.GLOBAL_MEM_SIZE]
    assert ur.urDeviceGetInfo(device, info.MAX_COMPUTE_UNITS) > 1
    assert ur.urDeviceGetInfo(device, info.VENDOR) == "NVIDIA Corporation"
    assert not ur.urDeviceGetInfo(device, info.HOST_UNIFIED_MEMORY)


def test_the_callers_context_stays_current(gpu: xs.Device) -> None:
    from cuda.bindings import driver

    driver.cuInit(0)
    mine: list[int] = []

    def ours() -> None:
        for context in (None, driver.cuDevicePrimaryCtxRetain(0)[1]):
            if context is not None:
                driver.cuCtxPushCurrent(context)
            before = int(driver.cuCtxGetCurrent()[1])
            with xs.malloc_device(5, gpu) as memory, xs.Queue(gpu) as queue, xs.Event(gpu) as event:
                queue.fill(memory, b"a")
                queue.signal(event)
                queue.wait(event)
                queue.synchronize(5)
                xs.ipc.memory.put(xs.ipc.memory.get(memory))
            mine.append(int(driver.cuCtxGetCurrent()[1]) - before)

    thread = threading.Thread(target=ours)
    thread.start()
    thread.join(20)
    assert mine == [0, 0]


def test_a_forked_child_is_told() -> None:
    run("""
        import os
        memory = xs.malloc_device(5, "cuda:0")
        child = os.fork()
        if child == 0:
            try:
                xs.malloc_device(5, "cuda:0")
            except xs.ForkError as error:
                os._exit(0 if "spawn" in str(error) else 2)
            except BaseException as error:
                print(repr(error), flush=True)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    """)


# --- memory -------------------------------------------------------------------------------------------------


def test_device_memory_both_ways(gpu: xs.Device, queue: xs.Queue) -> None:
    with Child(timeout=SLOW) as child, xs.malloc_device(3 * MIB2 + 5, gpu) as memory:
        queue.fill(memory, b"a")
        queue.synchronize(10)
        handle = xs.ipc.memory.get(memory.slice(MIB2 + 3, 4096))
        assert handle.exposed_nbytes == 4 * MIB2
        assert child.call(peer.open_read_write, bytes(handle), 4096, ord("b")) == b"a" * 4096
        assert peer.read(memory.slice(MIB2 + 2, 3), 3) == b"abb"
        xs.ipc.memory.put(handle)


def test_memory_outlives_its_exporter() -> None:
    for how in ("free", "kill"):
        with contextlib.ExitStack() as stack:
            child = stack.enter_context(Child(timeout=SLOW))
            memory = stack.enter_context(xs.ipc.memory.open(child.call(peer.share, 4096, 5)))
            if how == "free":
                child.call(peer.free_shared)
            else:
                child.kill()
            assert peer.read(memory, 4096) == b"\x05" * 4096


def test_repeated_opens_are_one_mapping() -> None:
    with Child(timeout=SLOW) as child:
        raw = child.call(peer.share, 4096, 5)
        first, second = xs.ipc.memory.open(raw), xs.ipc.memory.open(raw)
        assert first.ptr == second.ptr
        first.close()
        assert peer.read(second, 4) == b"\x05" * 4
        second.close()


def test_read_only_is_mapped_so(gpu: xs.Device, queue: xs.Queue) -> None:
    with Child(timeout=SLOW) as child, xs.malloc_device(4096, gpu) as mine:
        queue.fill(mine, b"r")
        queue.synchronize(10)
        raw = bytes(xs.ipc.memory.get(mine, read_only=True))
        with pytest.raises(xs.InvalidArgumentError, match="read-only"):
            child.call(peer.open_read_write, raw, 16, 1)
        child.call(peer.open_read_write, raw, 16, None)


def test_host_memory(gpu: xs.Device) -> None:
    with Child(timeout=SLOW) as child, xs.malloc_host(100, gpu) as memory:
        memoryview(memory)[:] = b"h" * 100
        assert child.call(peer.open_host, bytes(xs.ipc.memory.get(memory))) == b"h" * 100
        assert bytes(memoryview(memory)[:6]) == b"zzzzhh"
        assert child.call(peer.open_host, bytes(xs.ipc.memory.get(memory, read_only=True))) == b"zzzz" + b"h" * 96


def test_managed_memory_is_local(gpu: xs.Device, queue: xs.Queue) -> None:
    with xs.malloc_shared(100, gpu) as memory:
        queue.fill(memory, b"m")
        queue.synchronize(10)
        assert bytes(memoryview(memory)) == b"m" * 100
        with pytest.raises(xs.FeatureNotSupportedError, match="managed"):
            xs.ipc.memory.get(memory)


@pytest.mark.parametrize("pattern", [b"a", b"ab", b"abcd", b"abc", b"abcdefgh", bytes(range(100)), bytes(5000) + b"z"])
@pytest.mark.parametrize("shift", [0, 1])
def test_fills(gpu: xs.Device, queue: xs.Queue, pattern: bytes, shift: int) -> None:
    with xs.malloc_device(1 << 16, gpu) as memory:
        queue.fill(memory, b"\0")
        queue.fill(memory.slice(shift, 7 * len(pattern)), pattern)
        queue.synchronize(10)
        assert peer.read(memory.slice(shift, 7 * len(pattern) + 1), 7 * len(pattern) + 1) == pattern * 7 + b"\0"


@pytest.mark.parametrize("library", ["torch", "torch-expandable", "cupy", "jax"])
def test_memory_of_other_libraries(library: str) -> None:
    need(library.split("-")[0])
    env: dict[str, str | None] = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"}
    if library == "torch-expandable":
        env |= dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
    with Child(env=env, timeout=SLOW) as child:
        raw = child.call(peer.make_array, library.split("-")[0])
        with xs.ipc.memory.open(raw) as memory:
            assert peer.read(memory, 4096) == (9).to_bytes(4, "little") * 1024
            if library == "torch-expandable":
                child.kill()
                assert peer.read(memory, 4096) == (9).to_bytes(4, "little") * 1024


@pytest.mark.parametrize("library", ["torch", "cupy-async"])
def test_stream_ordered_memory_says_what_to_change(library: str) -> None:
    need(library.split("-")[0])
    env = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "backend:cudaMallocAsync")
    with Child(env=env, timeout=SLOW) as child, pytest.raises(xs.FeatureNotSupportedError, match="cudaMallocAsync"):
        child.call(peer.make_array, library)


def test_a_shareable_pool() -> None:
    code = """
        from cuda.bindings import driver as d
        from xpushare import adapters
        def ok(r):
            assert not int(r[0]), r
            return r[1] if len(r) > 1 else None
        ok(d.cuInit(0))
        context = ok(d.cuDevicePrimaryCtxRetain(0))
        ok(d.cuCtxPushCurrent(context))
        p = d.CUmemPoolProps()
        p.allocType = d.CUmemAllocationType(1); p.handleTypes = d.CUmemAllocationHandleType(1)
        p.location.type = d.CUmemLocationType(1); p.location.id = 0
        pool = ok(d.cuMemPoolCreate(p))
        stream = ok(d.cuStreamCreate(1))
        first = ok(d.cuMemAllocFromPoolAsync(1 << 20, pool, stream))
        second = int(ok(d.cuMemAllocFromPoolAsync(1 << 20, pool, stream)))
        ok(d.cuMemsetD8Async(second, 42, 1 << 20, stream)); ok(d.cuStreamSynchronize(stream))
        found = adapters.adapter("cuda").foreign(second + 100)
        print("FACTS", found.offset, found.memory.nbytes, type(found.memory).__name__)
        from harness import Child
        raw = bytes(xs.ipc.memory.get(second + 100))
        with Child(timeout=60) as child:
            assert child.call(peer.open_read_write, raw, 16, 43) == bytes([42]) * 16
            assert peer.read_at(second + 99, 2) == bytes([42, 43])
    """
    assert "ForeignPool" in run(code, 90)


# --- physical memory and ranges -------------------------------------------------------------------------------


def test_physical_memory(gpu: xs.Device, queue: xs.Queue) -> None:
    with xs.PhysicalMemory(MIB2, gpu, enable_ipc=True) as pages, xs.VirtualRange(4 * MIB2, gpu) as addresses:
        addresses.map(pages, MIB2)
        queue.fill(addresses.as_array((16,), "u1", MIB2), b"p")
        queue.synchronize(10)
        handle = xs.ipc.physical_memory.get(pages)
        with Child(timeout=SLOW) as child:
            assert child.call(map_and_read, bytes(handle)) == b"p" * 16
        assert peer.read(addresses.as_array((16,), "u1", MIB2), 16) == b"q" * 16
        gc.collect()
        addresses.unmap(MIB2, MIB2)
        for access in ("none", "r", "rw"):
            addresses.map(pages, MIB2, access=access)
            addresses.set_access(MIB2, MIB2, "rw")
            assert peer.read(addresses.as_array((16,), "u1", MIB2), 16) == b"q" * 16
            gc.collect()
            addresses.unmap(MIB2, MIB2)
        with pytest.raises(xs.InvalidArgumentError, match="partial_map"), xs.PhysicalMemory(2 * MIB2, gpu) as two:
            addresses.map(two, 0, nbytes=MIB2)


def map_and_read(raw: bytes) -> bytes:
    with xs.ipc.physical_memory.open(raw) as pages, xs.VirtualRange(MIB2, "cuda:0") as addresses:
        again = xs.ipc.physical_memory.get(pages)  # an import can be exported
        addresses.map(pages)
        array = addresses.as_array((16,), "u1")
        found = peer.read(array, 16)
        peer.queue().fill(array, b"q")
        peer.queue().synchronize(10)
        xs.ipc.physical_memory.put(again)
        del array
        return found


def test_a_taken_address_is_refused(gpu: xs.Device) -> None:
    with xs.VirtualRange(MIB2, gpu) as first, pytest.raises(xs.InvalidArgumentError, match="taken"):
        xs.VirtualRange(MIB2, gpu, address=first.ptr)


# --- events -------------------------------------------------------------------------------------------------


def test_events_between_devices_of_two_processes(gpu: xs.Device, queue: xs.Queue) -> None:
    with Child(timeout=SLOW) as child, xs.Event(gpu, enable_ipc=True) as go, xs.Event(gpu, enable_ipc=True) as back:
        child.call(peer.open_event, bytes(xs.ipc.event.get(go)))
        done = child.start(peer.answer, 50, bytes(xs.ipc.event.get(back)))
        for round_ in range(1, 51):
            queue.signal(go)
            queue.wait(back, at_least=round_)
        queue.synchronize(20)
        assert back.value == 50
        done.result()


def test_the_host_and_the_device_take_turns(queue: xs.Queue) -> None:
    with Child(timeout=SLOW) as child, xs.ipc.event.open(child.call(peer.new_event)) as event:
        child.call(peer.device_wait, 1)
        assert event.signal() == 1
        child.call(peer.synchronize)
        assert child.call(peer.device_signal) == 2
        event.wait(5, at_least=2)
        queue.wait(event, at_least=2)
        assert queue.signal(event) == 3
        event.wait(5, at_least=3)
        with pytest.raises(TimeoutError):
            event.wait(0.05, at_least=4)


def test_a_killed_signaller_releases_the_device(gpu: xs.Device, queue: xs.Queue) -> None:
    with Child(timeout=SLOW) as child, xs.malloc_device(64, gpu) as memory:
        queue.fill(memory, b"0")
        event = xs.ipc.event.open(child.call(peer.new_event))
        child.call(peer.signal_behind_a_wait_that_never_comes)
        queue.wait(event)
        queue.fill(memory, b"1")
        time.sleep(0.2)
        assert not use(queue).driver.idle()
        start = time.monotonic()
        child.kill()
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(5)
        assert time.monotonic() - start < 1.5
        assert peer.read(memory, 1) == b"1", "work behind a released wait runs"
        queue.synchronize(5)
        with pytest.raises(xs.PeerLostError):
            event.wait(5)
        event.close()


def test_what_is_signalled_behind_a_lost_wait_is_lost(gpu: xs.Device, queue: xs.Queue) -> None:
    """A producer dies; the streams of two processes and our own wait for it, each signals an event behind; further
    streams wait for one of these.
    """
    with (
        Child(timeout=SLOW) as producer,
        Child(timeout=SLOW) as one,
        Child(timeout=SLOW) as two,
        Child(timeout=SLOW) as third,
        xs.Event(gpu) as own,
        xs.malloc_device(64, gpu) as memory,
    ):
        raw = producer.call(peer.new_event)
        event = xs.ipc.event.open(raw)
        producer.call(peer.signal_behind_a_wait_that_never_comes)
        handles = [each.call(peer.signal_behind, raw) for each in (one, two)]
        behind = [xs.ipc.event.open(handle) for handle in handles]
        last = xs.ipc.event.open(third.call(peer.signal_behind, handles[0]))
        queue.fill(memory, b"0")
        queue.wait(event)
        queue.fill(memory, b"1")
        queue.signal(own)
        time.sleep(0.2)
        assert not use(queue).driver.idle()
        assert not any(each.done for each in (event, *behind, last, own))
        start = time.monotonic()
        producer.kill()
        for each in (event, *behind, last, own):
            with pytest.raises(xs.PeerLostError):
                each.wait(5, at_least=1)
        assert time.monotonic() - start < 1.5
        for process in (one, two, third):
            assert process.call(peer.loss, 5.0) == "PeerLostError"
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(5)
        assert time.monotonic() - start < 3
        queue.synchronize(5)
        assert peer.read(memory, 1) == b"1", "work behind a released wait runs"
        for each in (*behind, last, own):  # also after the stores that were queued have come
            with pytest.raises(xs.PeerLostError):
                each.wait(5, at_least=1)
        assert one.call(peer.device_signal) == 2
        behind[0].wait(5, at_least=2)
        assert queue.signal(own) == 2
        own.wait(5, at_least=2)
        for each in (event, *behind, last):
            each.close()


def test_signallers_take_turns(queue: xs.Queue) -> None:
    """Points that wait for another signaller's are completed by host functions: also where that one is lost."""
    with Child(timeout=SLOW) as producer, Child(timeout=SLOW) as other:
        raw = producer.call(peer.new_event)
        event = xs.ipc.event.open(raw)
        other.call(peer.open_event, raw)
        for point in range(3, 153, 3):
            producer.call(peer.device_signal)
            queue.signal(event)
            assert other.call(peer.device_signal) == point
            if point % 6 == 0:  # eight turns may be outstanding
                event.wait(5, at_least=point)
        producer.call(peer.signal_behind_a_wait_that_never_comes)
        assert queue.signal(event) == 152
        assert other.call(peer.device_signal) == 153
        with pytest.raises(TimeoutError):
            event.wait(0.1)
        producer.kill()
        with pytest.raises(xs.PeerLostError):
            event.wait(5)
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(5)
        assert other.call(peer.loss, 5.0) == "PeerLostError"
        assert queue.signal(event) == 154
        event.wait(5)
        event.close()


@pytest.mark.parametrize("connections", ["1", "8", "32"])
def test_twelve_queues_in_the_wrong_order(connections: str) -> None:
    """Each waits for what the next one is given later, with copies, over two rounds; nobody stands still meanwhile."""
    out = run(
        f"""
        import os
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "{connections}"
        from contextlib import ExitStack
        with ExitStack() as stack:
            enter = stack.enter_context
            queues = [enter(xs.Queue("cuda:0")) for _ in range(12)]
            events = [enter(xs.Event("cuda:0")) for _ in range(13)]
            cells = [enter(xs.malloc_device(4096, "cuda:0")) for _ in range(13)]
            other, busy = enter(xs.Queue("cuda:0")), enter(xs.Event("cuda:0"))
            own = enter(xs.malloc_device(64, "cuda:0"))
            for round_ in (1, 2):
                for number, queue in enumerate(queues):
                    queue.wait(events[number + 1], at_least=round_)
                    queue.copy(cells[number], cells[number + 1])
                    queue.signal(events[number])
                other.fill(own, b"o")
                other.signal(busy)
                busy.wait(15, at_least=round_)
                assert not events[0].value >= round_
                other.fill(cells[12], bytes([round_]))
                other.signal(events[12])
                events[0].wait(15, at_least=round_)
                assert peer.read(cells[0], 1) == bytes([round_])
                for queue in queues:
                    queue.synchronize(15)
            support = xs.Device("cuda:0").support("device_ordering")
            print(support.state, support.reason)
        """
    )
    assert out.startswith(f"no {int(connections) // 4} of its queues may wait on the device")


def test_queues_that_wait_for_another_process_hold_nobody_up(gpu: xs.Device, queue: xs.Queue) -> None:
    """Twelve wait for points of another process, released newest first."""
    with Child(timeout=SLOW) as child, contextlib.ExitStack() as stack:
        queues = [stack.enter_context(xs.Queue(gpu)) for _ in range(12)]
        outs = [stack.enter_context(xs.Event(gpu)) for _ in queues]
        gates = [stack.enter_context(xs.Event(gpu, enable_ipc=True)) for _ in queues]
        memory = stack.enter_context(xs.malloc_device(64, gpu))
        for waiting, gate, out in zip(queues, gates, outs, strict=True):
            waiting.wait(gate, at_least=1)
            waiting.signal(out)
        queue.fill(memory, b"b")
        queue.synchronize(15)
        for gate, out in reversed(list(zip(gates, outs, strict=True))):
            child.call(peer.open_event, bytes(xs.ipc.event.get(gate)))
            child.call(peer.device_signal)
            out.wait(15, at_least=1)
        for waiting in queues:
            waiting.synchronize(15)


def test_held_operations_leave_captures_alone(gpu: xs.Device) -> None:
    """A relay thread makes copies, fills, marks and signals while this thread captures in global mode."""
    need("torch")
    import torch

    tensor, stream = torch.zeros(64, device="cuda"), torch.cuda.Stream()
    rehearsal, graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()

    def capture(graph: torch.cuda.CUDAGraph, meanwhile: Callable[[], None]) -> None:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="global")
            tensor.add_(1)
            meanwhile()
            graph.capture_end()

    def let_go() -> None:
        gate.signal()
        for out in outs:
            out.wait(15, at_least=1)

    # Whatever torch does for the first time may wait for the device, and so for our queues: loading a kernel, say.
    capture(rehearsal, lambda: None)
    rehearsal.replay()
    tensor.zero_()
    torch.cuda.synchronize()
    with contextlib.ExitStack() as stack:
        queues = [stack.enter_context(xs.Queue(gpu)) for _ in range(6)]
        gate = stack.enter_context(xs.Event(gpu))
        outs = [stack.enter_context(xs.Event(gpu)) for _ in queues]
        cells = [stack.enter_context(xs.malloc_device(64, gpu)) for _ in range(2)]
        for waiting, out in zip(queues, outs, strict=True):
            waiting.wait(gate, at_least=1)
            waiting.fill(cells[0], b"x")
            waiting.copy(cells[1], cells[0])
            waiting.signal(out)
        capture(graph, let_go)
        graph.replay()
        torch.cuda.synchronize()
        assert tensor[0].item() == 1
        for waiting in queues:
            waiting.synchronize(15)
        assert peer.read(cells[1], 1) == b"x"


def test_nobody_left_to_signal(queue: xs.Queue) -> None:
    with Child(timeout=SLOW) as child:
        event = xs.ipc.event.open(child.call(peer.new_event))
        queue.wait(event, at_least=1)
        child.kill()
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(5)
        event.close()


def test_a_broken_context_loses_its_points(queue: xs.Queue) -> None:
    need("cupy")
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(Child(timeout=SLOW))
        event = xs.ipc.event.open(child.call(peer.new_event))
        child.call(peer.break_the_context)
        start = time.monotonic()
        with pytest.raises(xs.PeerLostError, match="failure"):
            event.wait(10, at_least=1)
        assert time.monotonic() - start < 2
        queue.synchronize(5)
        event.close()
        child.kill()


def test_ctrl_c_comes_through(gpu: xs.Device, queue: xs.Queue) -> None:
    with xs.Event(gpu) as gate:
        queue.wait(gate, at_least=1)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            queue.synchronize()
        gate.signal()
        queue.synchronize(5)


def test_native_events(gpu: xs.Device, queue: xs.Queue) -> None:
    need("torch")
    import torch

    native = use(queue).driver.record_native()  # type: ignore[attr-defined]
    with Child(timeout=SLOW) as child:
        assert child.call(peer.torch_ipc_event, native.handle)
    native.release()
    event = torch.cuda.Event()
    torch.cuda._sleep(1_000_000)
    event.record()
    found = adapter().adopt_event(event)
    assert found is not None
    assert found[0].ordinal == 0
    with xs.Event(gpu) as mine:
        use(queue).driver.wait_native(found[1], event)  # type: ignore[attr-defined]
        queue.signal(mine)
        mine.wait(5)
        assert event.query()


# --- streams of other libraries, captures -----------------------------------------------------------------------


def test_torch_streams(gpu: xs.Device) -> None:
    need("torch")
    import torch

    for stream in (torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.Stream().cuda_stream):
        with xs.Queue.from_native(stream) as adopted, xs.Event(gpu) as event:
            assert adopted.device == gpu
            with torch.cuda.stream(stream) if not isinstance(stream, int) else contextlib.nullcontext():
                torch.cuda._sleep(20_000_000)
            adopted.signal(event)
            event.wait(5)
            adopted.wait(event)
            adopted.synchronize(5)


def test_captures_are_left_alone(gpu: xs.Device) -> None:
    """A global-mode capture in this thread, everything of ours in another one."""
    need("torch")
    import torch

    with Child(timeout=SLOW) as child:
        raw, event_raw = child.call(peer.share, 4096, 5), child.call(peer.new_event)
        x = torch.zeros(1000, device="cuda")
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        failures: list[BaseException] = []

        def ours() -> None:
            try:
                for _ in range(3):
                    with xs.malloc_device(5, gpu) as a, xs.malloc_host(5, gpu) as b, xs.malloc_shared(5, gpu):
                        xs.ipc.memory.put(xs.ipc.memory.get(a))
                        with xs.ipc.memory.open(raw) as opened, xs.Queue(gpu) as q, xs.ipc.event.open(event_raw) as e:
                            q.copy(b, opened, 5)
                            q.signal(e)
                            q.wait(e)
                            q.synchronize(10)
                            q.fill(a, b"abc" + b"de")
                            q.synchronize(10)
                    with xs.PhysicalMemory(MIB2, gpu, enable_ipc=True) as p, xs.VirtualRange(MIB2, gpu) as r:
                        r.map(p)
                        r.unmap(0, MIB2)
                assert adapter().engine.teardown.settle(10)
                time.sleep(0.5)  # the watch has its turn
            except BaseException as error:
                failures.append(error)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
            x.add_(1)
            thread = threading.Thread(target=ours)
            thread.start()
            thread.join(40)
            with pytest.raises(xs.InvalidArgumentError, match="captured"), xs.Event(gpu) as e:
                xs.Queue.from_native(stream).signal(e)
            x.add_(1)
        assert not failures, failures
        graph.replay()
        torch.cuda.synchronize()
        assert x[0].item() == 2


# --- teardown ----------------------------------------------------------------------------------------------------


def test_unmapping_waits_for_work_that_nobody_told_us_of(gpu: xs.Device) -> None:
    """A copy on a stream of the caller's reads an import that is closed while the stream is held up."""
    from cuda.bindings import driver

    with Child(timeout=SLOW) as child, xs.malloc_host(4096, gpu) as target, xs.Event(gpu) as gate:
        memory = xs.ipc.memory.open(child.call(peer.share, 4096, 5))
        context = driver.cuDevicePrimaryCtxRetain(0)[1]
        driver.cuCtxPushCurrent(context)
        stream = driver.cuStreamCreate(1)[1]
        driver.cuCtxPopCurrent()
        held = xs.Queue.from_native(int(stream))
        held.wait(gate, at_least=1)
        assert not int(driver.cuMemcpyAsync(target.ptr, memory.ptr, 4096, stream)[0])
        memory.close()
        del memory
        gc.collect()
        other = xs.malloc_host(4096, gpu)  # the waiting teardown holds nobody up
        other.close()
        time.sleep(0.3)
        gate.signal()
        held.synchronize(10)
        assert bytes(memoryview(target)) == b"\x05" * 4096
        assert adapter().engine.teardown.settle(10)
        held.close()
        driver.cuDevicePrimaryCtxRelease(0)


@pytest.mark.parametrize("also", ["", "memory = xs.malloc_device(5, 'cuda:0'); del memory", "del queue"])
def test_exit_with_work_that_never_ends(also: str) -> None:
    start = time.monotonic()
    run(f"""
        queue, gate = xs.Queue("cuda:0"), xs.Event("cuda:0")
        queue.wait(gate, at_least=1)
        {also}
    """)
    assert time.monotonic() - start < 15


def test_no_device_memory_is_left_behind() -> None:
    from cuda.bindings import driver

    def free() -> int:
        driver.cuCtxPushCurrent(context)
        found.append([int(number) for number in driver.cuMemGetInfo()[1:]])
        driver.cuCtxPopCurrent()
        return found[-1][0]

    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    found: list[list[int]] = []
    free()
    size = min(32 << 30, found[0][1] // 4)  # much more than other tests, which may run at the same time, take or free
    for _ in range(2):
        with Child(timeout=SLOW) as child:
            before = free()
            memory = xs.ipc.memory.open(child.call(peer.share, size, 1))
            child.kill()
            assert free() <= before - size // 2
            memory.close()
            wait_until(lambda before=before: free() > before - size // 2, 10)
    driver.cuDevicePrimaryCtxRelease(0)


# --- several GPUs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def second() -> xs.Device:
    found = xs.devices("cuda:*")
    if len(found) < 2:
        pytest.skip("needs two GPUs")
    return found[1]


def test_peers(gpu: xs.Device, second: xs.Device, queue: xs.Queue) -> None:
    with Child(timeout=SLOW) as child, xs.malloc_device(4096, gpu) as memory, xs.Queue(second) as far:
        queue.fill(memory, b"a")
        queue.synchronize(10)
        raw = bytes(xs.ipc.memory.get(memory))
        assert child.call(peer.open_read_write, raw, 4096, ord("b"), "cuda:1") == b"a" * 4096
        assert peer.read(memory, 4) == b"bbbb"
        with xs.malloc_device(4096, second) as there, xs.Event(gpu, enable_ipc=True) as event:
            far.copy(there, memory)
            far.signal(event)
            queue.wait(event)
            queue.synchronize(10)
            assert peer.read(there, 4, "cuda:1") == b"bbbb"


def test_another_device_gets_no_context() -> None:
    if len(xs.devices("cuda:*")) < 2:
        pytest.skip("needs two GPUs")
    run("""
        memory = xs.malloc_device(5, "cuda:0")
        xs.ipc.memory.get(memory)
        with xs.Queue("cuda:0") as q: q.fill(memory, b"a"); q.synchronize(10)
        from cuda.bindings import driver
        state = driver.cuDevicePrimaryCtxGetState(1)
        assert int(state[2]) == 0, state
    """)


def test_hidden_devices(second: xs.Device) -> None:
    env: dict[str, str | None] = {"CUDA_VISIBLE_DEVICES": "1"}
    with Child(env=env, timeout=SLOW) as child, xs.malloc_device(4096, "cuda:0") as first:
        assert child.call(lambda: [(d.ordinal, d.uuid) for d in xs.devices("cuda:*")]) == [(0, second.uuid)]
        with pytest.raises(xs.InvalidArgumentError, match="CUDA_VISIBLE_DEVICES"):
            child.call(peer.open_read_write, bytes(xs.ipc.memory.get(first)), 16, None)
        with xs.malloc_device(4096, second) as there:
            raw = bytes(xs.ipc.memory.get(there))
            child.call(peer.open_read_write, raw, 16, 7)
            assert peer.read(there, 2, "cuda:1") == b"\x07\x07"
