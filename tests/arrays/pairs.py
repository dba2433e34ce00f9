"""The two ends of a pair: one process makes an array by some library and shares it, another one takes it by some call.

Each end looks at its array with its own library, and writes to it past all of them, at its address.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from array_peer import backed_by

import xpushare as xs
from harness import kept
from xpushare import adapters

CONTENT = np.arange(16, dtype="f4").tobytes()
EXPANDABLE = "torch, expandable_segments"  # a setting of the process


def lib(name: str) -> Any:
    return importlib.import_module(name)


def jax_on_host() -> Any:
    """JAX where it must not start a GPU."""
    lib("jax").config.update("jax_platforms", "cpu")
    return lib("jax")


def host() -> xs.SharedArray:
    return xs.empty(16, "f4")


def gpu() -> xs.SharedArray:
    return xs.empty(16, "f4", device="cuda:0")


def cuda_core_buffer() -> Any:
    """Of a pool that can be shared."""
    core = lib("cuda.core")
    device = core.Device(0)
    device.set_current()
    resource = core.DeviceMemoryResource(device, core.DeviceMemoryResourceOptions(max_size=1 << 25, ipc_enabled=True))
    stream = device.create_stream()
    buffer = resource.allocate(len(CONTENT), stream=stream)
    stream.sync()
    return buffer


PRODUCERS: dict[str, dict[str, Callable[[], Any]]] = {
    "native_cpu": {
        "xs.empty": host,
        "xs.malloc_device": lambda: xs.malloc_device(len(CONTENT), "native_cpu:0"),
        "xs.malloc_host": lambda: xs.malloc_host(len(CONTENT), "native_cpu:0"),
        "np.asarray(xs.empty)": lambda: np.asarray(host()),
        "memoryview(xs.empty)": lambda: memoryview(host()),
        "torch.from_dlpack(xs.empty)": lambda: lib("torch").from_dlpack(host()),
        "jax.dlpack.from_dlpack(xs.empty)": lambda: jax_on_host().dlpack.from_dlpack(host()),
        "pyarrow.py_buffer(xs.empty)": lambda: lib("pyarrow").py_buffer(host()),
    },
    "cuda": {
        "xs.empty": gpu,
        "xs.malloc_device": lambda: xs.malloc_device(len(CONTENT), "cuda:0"),
        "torch": lambda: lib("torch").empty(16, device="cuda"),
        EXPANDABLE: lambda: lib("torch").empty(16, device="cuda"),
        "torch.from_dlpack(xs.empty)": lambda: lib("torch").from_dlpack(gpu()),
        "cupy": lambda: lib("cupy").empty(16, "f4"),
        "jax": lambda: lib("jax.numpy").zeros(16, "f4").block_until_ready(),
        "numba": lambda: lib("numba.cuda").device_array(16, "f4"),
        "cuda.core pool": cuda_core_buffer,
    },
}
CONSUMERS: dict[str, dict[str, Callable[[xs.SharedArray], Any]]] = {
    "native_cpu": {
        "np.asarray": np.asarray,
        "np.from_dlpack": np.from_dlpack,
        "memoryview": memoryview,
        "torch.from_dlpack": lambda array: lib("torch").from_dlpack(array),
        "jax.dlpack.from_dlpack": lambda array: jax_on_host().dlpack.from_dlpack(array),
        "pyarrow.py_buffer": lambda array: lib("pyarrow").py_buffer(array),
        "pyarrow.foreign_buffer": lambda array: lib("pyarrow").foreign_buffer(
            array.ptr, array.nbytes, base=memoryview(array)
        ),
    },
    "cuda": {
        "torch.from_dlpack": lambda array: lib("torch").from_dlpack(array),
        "torch.as_tensor": lambda array: lib("torch").as_tensor(array, device="cuda"),
        "cupy.from_dlpack": lambda array: lib("cupy").from_dlpack(array),
        "cupy.asarray": lambda array: lib("cupy").asarray(array),
        "jax.dlpack.from_dlpack": lambda array: lib("jax").dlpack.from_dlpack(array),
        "numba.cuda.as_cuda_array": lambda array: lib("numba.cuda").as_cuda_array(array),
    },
}


# --- any library's array


def library_of(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def on_host(array: Any) -> bool:
    """Whether this process's loads and stores reach it."""
    if hasattr(array, "__dlpack_device__"):
        return array.__dlpack_device__()[0] == 1
    return not hasattr(array, "__cuda_array_interface__")


def address_of(array: Any) -> int:
    """Where its library reads."""
    library = library_of(array)
    if library == "torch":
        return int(array.data_ptr())
    if library in ("jax", "jaxlib"):
        return int(array.unsafe_buffer_pointer())
    if library == "xpushare":
        return int(array.ptr)
    if library == "pyarrow":
        return int(array.address)
    if library == "cuda":
        return int(array.handle)
    if hasattr(array, "__cuda_array_interface__"):
        return int(array.__cuda_array_interface__["data"][0])
    return int(np.asarray(array).ctypes.data)


def bytes_of(array: Any) -> bytes:
    """Its content, as its library reads it now."""
    library = library_of(array)
    if library == "torch":
        return bytes(array.cpu().numpy())
    if library in ("jax", "jaxlib"):
        return bytes(np.asarray(array + 0))  # of the array itself JAX keeps what it read once
    if library == "cupy":
        return bytes(array.get())
    if library in ("numba", "numba_cuda"):
        return bytes(array.copy_to_host())
    if not on_host(array):
        return peek(address_of(array), len(CONTENT))
    return bytes(memoryview(array))


@functools.cache
def driver() -> Any:
    """The CUDA driver, past the package, with the first device's primary context."""
    found = lib("cuda.bindings.driver")
    found.cuInit(0)
    return found, found.cuDevicePrimaryCtxRetain(0)[1]


def device_copy(name: str, *arguments: int) -> None:
    api, context = driver()
    codes = [api.cuCtxPushCurrent(context)[0], getattr(api, name)(*arguments)[0], api.cuCtxSynchronize()[0]]
    api.cuCtxPopCurrent()
    assert not any(map(int, codes)), f"{name}: {codes}"


def peek(address: int, nbytes: int) -> bytes:
    found = ctypes.create_string_buffer(nbytes)
    device_copy("cuMemcpyDtoH", ctypes.addressof(found), address, nbytes)
    return found.raw


def poke(array: Any, at: int, data: bytes) -> None:
    """Write past the library, as another process would."""
    source = ctypes.create_string_buffer(data, len(data))
    if on_host(array):
        ctypes.memmove(address_of(array) + at, source, len(data))
    else:
        device_copy("cuMemcpyHtoD", address_of(array) + at, ctypes.addressof(source), len(data))


# --- the producer's process


def make(backend: str, name: str) -> bytes:
    """Make an array, share it where it lies; its handle."""
    array = kept["made"] = PRODUCERS[backend][name]()
    poke(array, 0, CONTENT)
    handle = kept["handle"] = xs.share(array)
    assert handle.copied_nbytes == 0
    return bytes(handle)


# --- the consumer's process


def take(backend: str, name: str, handle: bytes) -> dict[str, Any]:
    """Attach, and hand the array to a library: what it did, or why it refused."""
    array = kept["array"] = xs.attach(handle)
    try:
        found = kept["made"] = CONSUMERS[backend][name](array)
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        if not array.read_only:
            raise
        return {"refused": f"{type(error).__name__}: {error}"}
    return {
        "same address": address_of(found) == array.ptr,
        "mapped": backed_by(address_of(found)) if backend == "native_cpu" else "",
        "read only": array.read_only,
    }


def let_go() -> None:
    """Only the other library's array is left; what the adapter tears down for that is torn down."""
    kept.pop("array").close()
    if "cuda" in [adapter.backend for adapter in adapters.loaded()]:
        assert adapters.adapter("cuda").engine.teardown.settle(10)


# --- both


def look() -> bytes:
    return bytes_of(kept["made"])


def write(at: int, data: bytes) -> None:
    poke(kept["made"], at, data)


def forget() -> None:
    """Withdraw and drop everything."""
    handle = kept.pop("handle", None)
    if handle is not None:
        handle.close()
    kept.clear()
