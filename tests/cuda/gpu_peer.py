"""What a second process does in the hardware tests. By name, so that what it keeps lives on between calls."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import xpushare as xs
from harness import kept


def queue(device: str = "cuda:0") -> xs.Queue:
    if ("queue", device) not in kept:
        kept["queue", device] = xs.Queue(device)
    return kept["queue", device]  # type: ignore[no-any-return]


def read(memory: Any, nbytes: int, device: str = "cuda:0") -> bytes:
    """The first bytes of device memory."""
    with xs.malloc_host(nbytes, device) as staging:
        queue(device).copy(staging, memory, nbytes)
        queue(device).synchronize(10)
        return bytes(memoryview(staging))


def read_at(address: int, nbytes: int) -> bytes:
    """Bytes at a raw address, past the package."""
    from cuda.bindings import driver

    found = ctypes.create_string_buffer(nbytes)
    driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxPushCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    code = driver.cuMemcpyDtoH(ctypes.addressof(found), address, nbytes)[0]
    driver.cuCtxPopCurrent()
    assert int(code) == 0, code
    return found.raw


class CudaMalloc:
    """Memory of the driver's plain allocator on the process's first GPU, each byte with the same value."""

    def __init__(self, nbytes: int, byte: int, pool: bool = False) -> None:
        """`pool`: of a stream-ordered pool that was made to be shared."""
        from cuda.bindings import driver

        self._driver = driver
        self._do("cuInit", 0)
        self._do("cuCtxPushCurrent", self._do("cuDevicePrimaryCtxRetain", self._do("cuDeviceGet", 0)))
        try:
            self.address = int(self._from_pool(nbytes) if pool else self._do("cuMemAlloc", nbytes))
            self._do("cuMemsetD8", self.address, byte, nbytes)
            self._do("cuCtxSynchronize")
        finally:
            self._do("cuCtxPopCurrent")
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (self.address, False), "strides": None,
        }  # fmt: skip

    def _do(self, name: str, *arguments: object) -> Any:
        code, *found = getattr(self._driver, name)(*arguments)
        assert not int(code), (name, code)
        return found[0] if found else None

    def _from_pool(self, nbytes: int) -> Any:
        driver = self._driver
        wanted = driver.CUmemPoolProps()
        wanted.allocType = driver.CUmemAllocationType(1)
        wanted.handleTypes = driver.CUmemAllocationHandleType(1)
        wanted.location.type = driver.CUmemLocationType(1)
        wanted.location.id = 0
        stream = self._do("cuStreamCreate", 1)
        found = self._do("cuMemAllocFromPoolAsync", nbytes, self._do("cuMemPoolCreate", wanted), stream)
        self._do("cuStreamSynchronize", stream)
        return found


def share(nbytes: int, byte: int, device: str = "cuda:0", offset: int = 0) -> bytes:
    memory = xs.malloc_device(nbytes, device)
    queue(device).fill(memory, bytes([byte]))
    queue(device).synchronize(10)
    kept["shared"] = memory
    return bytes(xs.ipc.memory.get(memory.slice(offset, nbytes - offset)))


def open_read_write(raw: bytes, nbytes: int, byte: int | None, device: str | None = None) -> bytes:
    """Open, read, write, close."""
    with xs.ipc.memory.open(raw, device=device) as memory:
        on = str(memory.device)
        found = read(memory, nbytes, on)
        if byte is not None:
            queue(on).fill(memory, bytes([byte]))
            queue(on).synchronize(10)
        return found


def open_host(raw: bytes) -> bytes:
    with xs.ipc.memory.open(raw) as memory:
        found = bytes(memoryview(memory))
        if not memory.read_only:
            queue().fill(memory, b"z", 4)
            queue().synchronize(10)
        return found


def free_shared() -> None:
    kept.pop("shared").close()


def new_event() -> bytes:
    kept["event"] = xs.Event("cuda:0", enable_ipc=True)
    return bytes(xs.ipc.event.get(kept["event"]))


def open_event(raw: bytes) -> None:
    kept["event"] = xs.ipc.event.open(raw)


def device_signal(times: int = 1) -> int:
    point = 0
    for _ in range(times):
        point = queue().signal(kept["event"])
    return point


def synchronize(timeout: float = 10) -> None:
    queue().synchronize(timeout)


def device_wait(point: int) -> None:
    queue().wait(kept["event"], at_least=point)


def answer(rounds: int, raw: bytes) -> None:
    """Wait for each point of one event on the device, and signal the other."""
    back = xs.ipc.event.open(raw)
    kept["back"] = back
    for round_ in range(1, rounds + 1):
        queue().wait(kept["event"], at_least=round_)
        queue().signal(back)
    queue().synchronize(30)


def signal_behind(raw: bytes) -> bytes:
    """Wait for the newest signal of an event on the device, and signal one of our own behind."""
    kept["theirs"] = xs.ipc.event.open(raw)
    queue().wait(kept["theirs"])
    handle = new_event()
    queue().signal(kept["event"])
    return handle


def loss(timeout: float) -> str:
    """What `synchronize` says, once and then again."""
    found = []
    for _ in range(2):
        try:
            queue().synchronize(timeout)
        except xs.XpuShareError as error:
            found.append(type(error).__name__)
    return " ".join(found)


def signal_behind_a_wait_that_never_comes() -> None:
    gate = kept["gate"] = xs.Event("cuda:0", enable_ipc=True)
    queue().wait(gate, at_least=1)
    queue().signal(kept["event"])


def break_the_context() -> None:
    """Signal behind a kernel that writes where nothing is."""
    import cupy

    gate = kept["gate"] = xs.Event("cuda:0", enable_ipc=True)
    stream = cupy.cuda.Stream(non_blocking=True)
    over = kept["broken"] = xs.Queue.from_native(stream)
    kernel = cupy.RawKernel('extern "C" __global__ void f(int *p) { *p = 1; }', "f")
    good = cupy.zeros(1, dtype=cupy.int32)
    with stream:
        kernel((1,), (1,), (good,))  # loading a kernel waits for all work of the context: not once the stream waits
    stream.synchronize()
    over.wait(gate, at_least=1)
    with stream:
        kernel((1,), (1,), (cupy.uint64(16),))
    over.signal(kept["event"])
    gate.signal()


def make_array(library: str) -> bytes:
    """An array of another library; a handle of a piece of it, 4096 bytes or more of int32 nines."""
    array: Any
    if library == "torch":
        import torch

        small = torch.zeros(3, device="cuda")
        array = torch.full((25 << 20,), 7, dtype=torch.int32, device="cuda")
        array[2048:3072] = 9
        kept["small"] = small
        torch.cuda.synchronize()
        piece = array[2048:3072]
    elif library.startswith("cupy"):
        import cupy

        if library == "cupy-async":
            cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
        array = cupy.full((1 << 20,), 7, dtype=cupy.int32)
        array[2048:3072] = 9
        cupy.cuda.Device().synchronize()
        piece = array[2048:3072]
    elif library == "jax":
        import jax.numpy as jnp

        array = jnp.full((1 << 20,), 9, dtype=jnp.int32)
        array.block_until_ready()
        piece = array
    else:
        raise ValueError(library)
    kept["array"] = array
    return bytes(xs.ipc.memory.get(piece))


def torch_ipc_event(raw: bytes) -> bool:
    """Open CUDA's own event and wait for it."""
    import torch

    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), raw)
    event.synchronize()
    return bool(event.query())


def seconds(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
