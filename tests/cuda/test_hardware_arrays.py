"""Arrays on a real GPU: in the order of the streams, from and to the libraries that are there."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import gpu_array_peer as peer
import pytest

import xpushare as xs
from harness import Child

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(90)]
SLOW = 80.0


def need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")


@pytest.fixture
def gpu() -> xs.Device:
    return xs.Device("cuda:0")


# --- order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unordered", [False, True])
def test_a_fast_reader_of_what_a_slow_kernel_makes(gpu: xs.Device, unordered: bool) -> None:
    """Ordered on the device, without blocking the host; without the order the data is wrong, so the test can tell."""
    need("torch")
    with Child(timeout=SLOW) as maker:
        maker.call(peer.read_torch, bytes(xs.share(xs.empty(8, "int32", device=gpu), opens=1)))  # what is first is slow
        with Child(timeout=SLOW) as reader:
            reader.call(peer.read_torch, bytes(xs.share(xs.empty(8, "int32", device=gpu), opens=1)))
            raw = maker.call(peer.share_slowly, 7, unordered)
            first, last, held_up = reader.call(peer.read_torch, raw, unordered)
        if unordered:
            assert (first, last) == (-1, -1)
        else:
            assert (first, last) == (7, 7)
            assert held_up  # the reader's stream waited, its host did not


@pytest.mark.usefixtures("gpu")
def test_tensors_are_made_in_order() -> None:
    """In a process where torch has not met the GPU yet, of what is there, and of what a slow kernel makes."""
    need("torch")
    shape, where = (peer.SIZE,), "cuda:0"
    with Child(timeout=SLOW) as maker, Child(timeout=SLOW) as reader:
        for value in 7, 8, 9:
            raw = maker.call(peer.share_slowly, value, False)
            if value == 8:  # its stream waits, not its host
                assert reader.call(peer.read_tensor, raw) == (8, 8, True, shape, where)
            maker.call(peer.finish)
            found = reader.call(peer.read_tensor, raw)
            assert (*found[:2], *found[3:]) == (value, value, shape, where)


def test_a_buffer_is_used_again_when_its_slow_reader_is_through(gpu: xs.Device) -> None:
    need("torch")
    import torch

    rounds = 6
    buffer = xs.empty(peer.SIZE, "int32", device=gpu)
    tensor = torch.from_dlpack(buffer)
    with (
        xs.Event(gpu, enable_ipc=True) as free,
        xs.Event(gpu, enable_ipc=True) as full,
        Child(timeout=SLOW) as reader,
    ):
        reader.call(
            peer.attach_ring, bytes(xs.share(buffer, opens=1)), *(bytes(xs.ipc.event.get(e)) for e in (free, full))
        )
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), xs.Queue.from_native(stream) as queue:
            consuming = reader.start(peer.consume_slowly, rounds)
            for round_ in range(rounds):
                queue.wait(free, at_least=round_)
                tensor.fill_(100 + round_)
                queue.signal(full)
            queue.synchronize(30)
        assert consuming.result(SLOW) == [100 + round_ for round_ in range(rounds)]


# --- libraries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["torch", "cupy", "jax", "numba"])
def test_arrays_of_libraries_are_shared_where_they_lie(library: str) -> None:
    need("torch", library)
    with Child(timeout=SLOW) as child:
        raw, copied = child.call(peer.share_made, library)
        assert copied == 0
        with Child(timeout=SLOW) as reader:
            assert reader.call(peer.read_torch, raw)[:2] == (0, peer.SIZE - 1)


def test_what_cannot_be_shared_is_copied_on_request() -> None:
    need("torch", "cupy")
    with Child(timeout=SLOW) as child, Child(timeout=SLOW) as reader:
        with pytest.raises(xs.FeatureNotSupportedError, match="cudaMallocAsync"):
            child.call(peer.share_made, "cupy-async")
        raw, copied = child.call(peer.share_made, "cupy-async", True)
        assert copied == 4 * peer.SIZE
        assert reader.call(peer.read_torch, raw)[:2] == (0, peer.SIZE - 1)


def test_pickles_go_to_a_pool_of_processes(gpu: xs.Device) -> None:
    need("torch")
    import torch

    array = xs.empty(1000, "int32", device=gpu)
    torch.from_dlpack(array).copy_(torch.arange(1000, dtype=torch.int32))
    torch.cuda.synchronize()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(peer.total, [array] * 4)) == [499500] * 4


def test_results_of_a_pool_go_to_another_once_it_is_gone() -> None:
    need("torch")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as first:
        results = list(first.map(peer.made_of, range(1, 5)))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as second:
        assert list(second.map(peer.total, results)) == [1000 * n for n in range(1, 5)]


# --- other libraries' events -------------------------------------------------------------------------------------


def test_an_event_of_torch_becomes_one_of_ours() -> None:
    need("torch")
    with Child(timeout=SLOW) as child:
        child.call(peer.record_torch_event)
        with xs.ipc.event.open(child.call(peer.event_from_native)) as event:
            assert event.pending == 1
            assert not event.done
            event.wait(30)
            assert child.call(peer.native_done)


def test_torch_opens_the_drivers_handle_of_our_event(gpu: xs.Device) -> None:
    need("torch")
    import torch

    stream = torch.cuda.Stream()
    with xs.Event(gpu) as event, Child(timeout=SLOW) as child:
        with xs.share(xs.empty(8, "int32", device=gpu)) as handle:
            child.call(peer.read_torch, bytes(handle))
        with torch.cuda.stream(stream), xs.Queue.from_native(stream) as queue:
            torch.cuda._sleep(4 * peer.LONG)
            queue.signal(event)
        assert child.call(peer.wait_for_native_handle, event.native_ipc_handle())
        assert event.value == 1


# --- copies ------------------------------------------------------------------------------------------------------


def test_a_shared_copy_from_and_to_the_gpu(gpu: xs.Device) -> None:
    """`xs.array`, where the host and the device meet: every direction, every layout."""
    need("torch")
    import numpy as np
    import torch

    values = np.arange(12.0).reshape(3, 4)
    on_gpu = xs.array(values, device=gpu)
    assert on_gpu.device == gpu
    tensor = torch.from_dlpack(on_gpu)
    assert tensor.cpu().numpy().tolist() == values.tolist()
    tensor *= 2  # on torch's stream
    there = xs.array(tensor)
    assert there.device == gpu
    tensor.zero_()
    assert np.asarray(xs.array(there, device="native_cpu:0")).tolist() == (values * 2).tolist()
    assert np.asarray(xs.array(tensor + 1, dtype="int32", device="native_cpu:0")).tolist() == [[1] * 4] * 3
    gaps = torch.arange(12, device="cuda")[::3]  # its copy on the device would expose what is between
    assert np.asarray(xs.array(xs.array(gaps), device="native_cpu:0")).tolist() == [0, 3, 6, 9]
    turned = xs.array(torch.arange(6, device="cuda").reshape(2, 3).T)
    assert np.asarray(xs.array(turned, device="native_cpu:0")).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert xs.array(np.empty((0, 2)), device=gpu).shape == (0, 2)
