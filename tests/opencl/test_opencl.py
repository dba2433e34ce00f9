"""OpenCL on CPUs: memory in place, pyopencl programs as clients, queues in order with ours."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import TIMEOUT, Child, kept, wait_until
from xpushare import adapters
from xpushare.adapters.opencl import LOADER, _adapter
from xpushare.adapters.opencl._adapter import OpenCL
from xpushare.adapters.vendor import Check
from xpushare.objects.lifecycle import use

CL_COMPLETE = 0
NAMED = (7, 3, 1, 4)


def attach_and_triple(handle: str) -> list[int]:
    """On the host."""
    array = np.asarray(xs.attach(handle, device="native_cpu:0"))
    array *= 3
    return list(map(int, array))


@pytest.fixture
def client() -> Any:
    import opencl_client

    return opencl_client


def test_both_ways_with_the_host(device: str) -> None:
    """What OpenCL made opens on the host, and the other way round; both write one memory."""
    with Child() as child:
        made = xs.array(np.array(NAMED, "u4"), device=device)
        with xs.share(made) as handle:
            assert child.call(attach_and_triple, str(handle)) == [21, 9, 3, 12]
        assert list(np.asarray(made)) == [21, 9, 3, 12]
        theirs = xs.array(np.array(NAMED, "u4"), device="native_cpu:0")
        with xs.share(theirs) as handle, xs.Queue(device) as queue:
            opened = xs.attach(str(handle), device=device)
            assert str(opened.device) == device
            queue.copy(opened, made)
            queue.synchronize(TIMEOUT)
        assert list(np.asarray(theirs)) == [21, 9, 3, 12]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("maker", ["native_cpu:0", "the device"])
def test_a_kernel_in_another_process(device: str, maker: str, client: Any) -> None:
    """A pyopencl program runs a kernel over our memory in place: nobody copies, or maps a buffer."""
    array = xs.array(np.array(NAMED, "u4"), device=device if maker == "the device" else maker)
    with xs.share(array) as handle, Child() as child:
        assert child.call(client.attach_and_run, str(handle), device, "triple") == device
        assert list(np.asarray(array)) == [21, 9, 3, 12]


@pytest.mark.usefixtures("kernels")
def test_a_kernel_over_a_range(device: str) -> None:
    """Where kernels take any address, they take ranges, too."""
    if not xs.Device(device).has(xs.Aspect.ext_oneapi_virtual_mem):
        pytest.skip("the driver has no system SVM")
    with Child() as child:
        assert child.call(_over_a_range, device) == [21, 9, 3, 12]


def _over_a_range(device: str) -> list[int]:
    import opencl_client
    import pyopencl as cl

    queue = opencl_client.begin(device)
    granule = xs.Device(device).memory_granularity()
    with xs.PhysicalMemory(granule, device) as pages, xs.VirtualRange(granule, device) as place:
        place.map(pages)
        array = np.frombuffer(memoryview(place)[:16], "u4")
        array[:] = NAMED
        opencl_client.kernel("triple")(queue, (4,), None, cl.SVM(array))
        queue.finish()
        found = list(map(int, array))
        del array
        return found


def test_buffers_of_pyopencl(device: str) -> None:
    """A buffer over our memory leads back to it; what the driver allocated does not."""
    with Child() as child:
        assert child.call(_buffers, device) == [1, 2, 3, 4]


def _buffers(device: str) -> list[int]:
    import opencl_client
    import pyopencl as cl

    opencl_client.begin(device)
    array = xs.array(np.arange(1, 5, dtype="u4"), device=device)
    buffer = opencl_client.buffer_over(array)
    del array
    with xs.share(buffer.get_host_array((4,), np.uint32)) as handle:
        found = list(map(int, np.asarray(xs.attach(handle))))
    private = cl.Buffer(kept["cl context"], cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, 64)
    mapped, _event = cl.enqueue_map_buffer(kept["cl queue"], private, cl.map_flags.READ, 0, (16,), np.uint32)
    with pytest.raises(xs.FeatureNotSupportedError, match="private to its library"):
        xs.share(mapped)
    with pytest.raises(xs.InvalidArgumentError, match="not an array whose memory can be found"):
        xs.share(private)
    return found


# --- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("end", ["signal", "kill", "close"])
def test_a_kernel_behind_another_process(device: str, end: str, client: Any) -> None:
    """A queue of pyopencl's waits for another process. It goes on, without an error, also when that one dies."""
    array = xs.array(np.array(NAMED, "u4"), device=device)
    with xs.share(array) as shared, Child() as child, Child() as producer:
        event = producer.call(_new_event, device)
        child.call(client.hold_kernel, event, str(shared), device)
        time.sleep(0.05)
        assert list(np.asarray(array)) == list(NAMED)
        if end == "signal":
            producer.call(_signal)
        elif end == "kill":
            producer.kill()
        else:
            child.call(_close_adopted)
            assert list(np.asarray(array)) == list(NAMED)
            producer.call(_signal)
        begin = time.monotonic()
        wait_until(lambda: list(np.asarray(array)) == [21, 9, 3, 12])
        assert time.monotonic() - begin < 1
        if end != "close":
            assert child.call(client.release_kernel) == (CL_COMPLETE, "PeerLostError" if end == "kill" else "")


def _new_event(device: str) -> str:
    kept["event"] = xs.Event(device, enable_ipc=True, signals=True)
    return str(xs.ipc.event.get(kept["event"]))


def _signal() -> None:
    kept["event"].signal()


def _close_adopted() -> None:
    kept.pop("adopted").close()


@pytest.mark.usefixtures("kernels")
def test_order_with_kernels(device: str) -> None:
    """Ours come after all that pyopencl's queue was given before, and before all that it is given later."""
    with Child() as child:
        assert child.call(_in_order, device) == [10] * 1024


def _in_order(device: str) -> list[int]:
    import opencl_client
    import pyopencl as cl

    queue = opencl_client.begin(device)
    first, second = (xs.array(np.full(1024, fill, "u4"), device=device) for fill in (1, 0))
    buffers = [opencl_client.buffer_over(each) for each in (first, second)]
    with xs.Queue.from_native(queue) as ours, xs.Event(device) as event:
        opencl_client.run("triple", buffers[0])
        ours.copy(second, first)
        opencl_client.run("triple", buffers[1])
        assert ours.signal(event) == 1
        event.wait(TIMEOUT)
        ours.wait(event)
        opencl_client.run("add", buffers[1], np.uint32(1))
        queue.finish()
        ours.wait(event, at_least=2)  # ours holds the copy, and pyopencl's queue what comes behind it
        ours.copy(first, second)
        opencl_client.run("add", buffers[0], np.uint32(1))
        queue.flush()
        time.sleep(0.05)
        assert list(np.asarray(first)) == [3] * 1024
        event.signal()
        queue.finish()
        ours.synchronize(TIMEOUT)
    assert list(np.asarray(first)) == [11] * 1024
    mode = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    with pytest.raises(xs.FeatureNotSupportedError, match="out-of-order"):
        xs.Queue.from_native(cl.CommandQueue(kept["cl context"], properties=mode))
    return list(map(int, np.asarray(second)))


def test_signals_behind_an_old_loss(device: str) -> None:
    """Nobody on another library's queue need ask for losses: what it signals later is complete."""
    with Child() as child, Child() as producer:
        event = producer.call(_new_event, device)
        child.call(_wait_adopted, event, device)
        producer.kill()
        assert child.call(_signal_after_a_loss, device) == (1, "PeerLostError")


def _wait_adopted(event: str, device: str) -> None:
    import opencl_client

    kept["adopted"] = xs.Queue.from_native(opencl_client.begin(device))
    kept["opened"] = xs.ipc.event.open(event, device=device)
    kept["adopted"].wait(kept["opened"], at_least=1)


def _signal_after_a_loss(device: str) -> tuple[int, str]:
    kept["cl queue"].finish()
    with xs.Event(device) as event:
        number = kept["adopted"].signal(event)
        event.wait(TIMEOUT, at_least=number)
    try:
        kept["adopted"].synchronize(TIMEOUT)
    except xs.PeerLostError as error:
        return number, type(error).__name__
    return number, ""


def test_exit_with_a_queue_that_waits(device: str) -> None:
    """A process exits at once, whatever its queues and pyopencl's wait for."""
    with Child() as producer:
        event = producer.call(_new_event, device)
        with Child() as child:
            child.call(_wait_adopted, event, device)
            begin = time.monotonic()
        assert time.monotonic() - begin < 5


def test_many_signals_and_a_synchronize(device: str) -> None:
    """Callbacks complete points; the runtime may be late with them."""
    with Child() as child:
        assert child.call(_signals, device) == 200


def _signals(device: str) -> int:
    done = 0
    with xs.Queue(device) as queue, xs.malloc_device(64, device) as memory:
        events = [xs.Event(device) for _ in range(4)]
        for _ in range(50):
            queue.fill(memory, b"x")
            numbers = [queue.signal(event) for event in events]
            queue.synchronize(TIMEOUT)
            done += sum(event.value >= number for event, number in zip(events, numbers, strict=True))
            assert use(queue).driver.idle()
    return done


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty_loader(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a loader with a fault is the process's, in place of the real one."""
    made = tmp_path_factory.mktemp("faulty") / LOADER
    source = Path(__file__).parent / "driver" / "faulty_loader.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    ctypes.CDLL(LOADER)
    mapped = {line.rpartition(" ")[2] for line in Path("/proc/self/maps").read_text().splitlines()}
    real = next(each for each in mapped if Path(each).name.startswith(LOADER))
    path = os.pathsep.join(filter(None, [str(made.parent), os.environ.get("LD_LIBRARY_PATH")]))
    return {"OPENCL_LOADER": real, "LD_LIBRARY_PATH": path}


FAULTS = {
    "0x1000=4": "has no address that another process could map",
    "0x1053=0": "lacks shared virtual memory",
    "clEnqueueSVMMemFill=-59": "clEnqueueSVMMemFill failed with CL_INVALID_OPERATION",
    "clEnqueueSVMMemFill=crash": "ended the process that asked it (SIGSEGV)",
    "clEnqueueSVMMemcpy=-59": "clEnqueueSVMMemcpy failed",
    "clSetEventCallback=-59": "clSetEventCallback failed",
    "clEnqueueFillBuffer=-59": "clEnqueueFillBuffer failed",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_used_is_refused(fault: str, faulty_loader: dict[str, str]) -> None:
    """A device that is not a CPU, or fails in its trial, is not listed; who asks is told why."""
    with Child(env={**faulty_loader, "OPENCL_FAULT": fault}) as child:
        for why in child.call(_refused):
            assert FAULTS[fault] in why


def _refused() -> list[str]:
    import pyopencl as cl

    assert xs.devices("opencl:*") == []
    why = [adapters.why_none("opencl")]
    device = cl.get_platforms()[0].get_devices()[0]
    with pytest.raises(xs.FeatureNotSupportedError) as caught:
        xs.Queue.from_native(cl.CommandQueue(cl.Context([device])))
    return [*why, str(caught.value)]


REASONS = {
    "crash": "ended the process that asked it (SIGSEGV)",
    "abort": "ended the process that asked it (SIGABRT)",
    "pid": "ended the process that asked it (SIGABRT)",
    "exit": "LLVM ERROR: out of registers",
    "hang": "did not answer within 12 s",
}


@pytest.fixture
def faulty(faulty_loader: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., OpenCL]:
    """An adapter whose processes that try devices have a fault."""

    def make(fault: str, device: str | None = None) -> OpenCL:
        for name, value in {**faulty_loader, "OPENCL_FAULT": fault, "OPENCL_DEVICE": device}.items():
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        monkeypatch.setattr(_adapter, "_SECONDS", 12)
        return OpenCL()

    return make


@pytest.mark.parametrize("fault", REASONS)
def test_a_device_that_fails_leaves_the_others(device: str, fault: str, faulty: Callable[..., OpenCL]) -> None:
    """Whichever it is, and whatever the driver writes to stderr."""
    listed = xs.devices("opencl:*")
    bad = xs.Device(device)
    found = faulty(f"clEnqueueSVMMemFill={fault}", bad.name)
    assert [each.uuid for each in found.devices()] == [each.uuid for each in listed if each != bad]
    [said] = found.refused()
    assert said.startswith(f"{bad.name} of ")
    assert REASONS[fault] in said
    assert "import" not in said


def test_a_crash_after_the_answer(device: str, faulty: Callable[..., OpenCL]) -> None:
    """In a destructor of a driver: the answer was complete."""
    found = faulty("clEnqueueSVMMemFill=late", xs.Device(device).name)
    assert [each.uuid for each in found.devices()] == [each.uuid for each in xs.devices("opencl:*")]
    assert found.refused() == []


def test_a_slow_device_is_listed(faulty: Callable[..., OpenCL]) -> None:
    """On a machine with too much to do: else ordinals would depend on it."""
    found = faulty("clSetEventCallback=slow")
    assert [each.uuid for each in found.devices()] == [each.uuid for each in xs.devices("opencl:*")]


@pytest.mark.parametrize("fault", ["crash", "pid", "hang"])
def test_a_loader_that_fails(fault: str, faulty: Callable[..., OpenCL]) -> None:
    """No device is to blame, so there are none."""
    found = faulty(f"clGetPlatformIDs={fault}")
    assert (found.devices(), found.refused()) == ([], [])
    assert REASONS[fault] in found.why_none()


def test_commands_tell_what_is_refused(faulty_loader: dict[str, str]) -> None:
    """Also beside devices that can be used; and who brings a queue on such a device is told its reason alone."""
    good, bad = xs.devices("opencl:*")[:2]
    fault = {"OPENCL_FAULT": "clEnqueueSVMMemFill=-59", "OPENCL_DEVICE": bad.name}
    with Child(env={**faulty_loader, **fault}) as child:
        told, checks, adopted = child.call(_told, bad.name)
    [why] = told
    assert why.startswith(f"{bad.name} of ")
    assert "it lacks what it was tried for: " in why
    assert "clEnqueueSVMMemFill failed with CL_INVALID_OPERATION" in why
    assert [check for check in checks if check.name.startswith("opencl")] == [
        Check("devices", "opencl:0", "note", f"listed: {good.name}, driver {good.driver_version}"),
        Check("devices", "opencl", "absent", f"not listed: {why}"),
    ]
    assert adopted == f"this queue, on {bad.name}, cannot be used: {why}"


def _told(name: str) -> tuple[list[str], list[Check], str]:
    import pyopencl as cl

    from xpushare.cli import info
    from xpushare.cli.doctor import devices

    told, checks = info.collect("native_cpu:*")["refused_devices"]["opencl"], devices.examine("native_cpu:*")[1]
    device = next(each for one in cl.get_platforms() for each in one.get_devices() if each.name.strip() == name)
    with pytest.raises(xs.FeatureNotSupportedError) as caught:
        xs.Queue.from_native(cl.CommandQueue(cl.Context([device])))
    assert adapters.refused("opencl") == told  # also once the driver runs here
    return told, checks, str(caught.value)


def test_a_driver_that_is_not_listed(device: str) -> None:
    """pyopencl finds drivers in its own folder, too."""
    with Child() as child:
        assert "does not list it" in child.call(_not_listed, device)


def _not_listed(device: str) -> str:
    import opencl_client

    queue = opencl_client.begin(device)
    adapter: Any = adapters.adapter("opencl")
    adapter._driver.start()
    adapter._driver._gpus = []
    adapter._driver.candidates = list
    with pytest.raises(xs.FeatureNotSupportedError) as caught:
        xs.Queue.from_native(queue)
    return str(caught.value)


def test_a_forked_child_is_refused(device: str) -> None:
    with Child() as child:
        assert child.call(_use_and_fork, device) == "ForkError"


def _use_and_fork(device: str) -> str:
    xs.malloc_device(64, device).close()
    with Child(method="fork") as forked:
        return str(forked.call(_attempt, device))


def _attempt(device: str) -> str:
    try:
        xs.malloc_device(64, device)
    except xs.XpuShareError as error:
        return type(error).__name__
    return "no error"
