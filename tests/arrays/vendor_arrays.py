"""Arrays of each library that is here, as programs have them: what `test_vendor_pairs` shares, in its children."""

from __future__ import annotations

import array
import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import xpushare as xs
from harness import kept
from xpushare import _native, adapters

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / "opencl"), str(TESTS / "hip")]

__all__ = ["CONTENT", "OPENERS", "ROWS", "NotHere", "known_to_both", "vulkan_device"]

CONTENT = bytes(range(1, 65))
NBYTES = len(CONTENT)


class NotHere(Exception):
    """The library or the device is not on this machine."""


def lib(name: str) -> Any:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise NotHere(name)
    return importlib.import_module(name)


def on(device: str) -> str:
    """That device, if this process has it."""
    try:
        return str(xs.Device(device))
    except xs.InvalidArgumentError as error:
        raise NotHere(device) from error


def values() -> Any:
    return np.frombuffer(CONTENT, "u1").copy()


def ours(device: str) -> xs.SharedArray:
    return xs.array(values(), device=on(device))


def imported(device: str) -> xs.SharedArray:
    found: xs.SharedArray = xs.attach(xs.share(ours(device), ttl=600))
    return found


def in_a_range(device: str) -> xs.SharedArray:
    granularity = xs.Device(on(device)).memory_granularity()
    place = xs.VirtualRange(granularity, device)
    place.map(xs.PhysicalMemory(granularity, device))
    array = place.as_array(len(CONTENT), "u1")
    with xs.Queue(device) as queue:
        queue.copy(array, ours(device))
        queue.synchronize()
    return array


class Says:
    """An array that speaks one protocol, over whatever `source` is at an address."""

    def __init__(self, source: Any, address: int) -> None:
        self.source, self.address = source, address


class SaysDLPack(Says):
    def __init__(self, number: int, source: Any, address: int) -> None:
        super().__init__(source, address)
        self.number = number

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.number, 0

    def __dlpack__(self, **_options: Any) -> Any:
        kind, shape = (1, 8, 1), (NBYTES,)
        return _native.dlpack_capsule(self, self.address, (self.number, 0), kind, shape, (1,), False, False)


class SaysInterface(Says):
    def __init__(self, name: str, source: Any, address: int, **more: Any) -> None:
        super().__init__(source, address)
        setattr(self, name, {"shape": (NBYTES,), "typestr": "|u1", "data": (address, False), "version": 3, **more})


def says_cuda(made: tuple[Any, int]) -> SaysInterface:
    return SaysInterface("__cuda_array_interface__", *made)


def says_sycl(made: tuple[Any, int]) -> SaysInterface:
    return SaysInterface("__sycl_usm_array_interface__", *made, version=1, syclobj="level_zero:gpu:0")


# --- memory by the drivers alone


def on_host() -> tuple[Any, int]:
    source = values()
    return source, source.ctypes.data


def by_cuda() -> tuple[Any, int]:
    xs.Queue(on("cuda:0")).close()
    address = kept["cuda"].allocate(NBYTES)
    ctypes.memmove(address, CONTENT, NBYTES)
    return None, address


def by_hip() -> tuple[Any, int]:
    from samples import samples  # of tests/hip

    made = samples(adapters.adapter("hip")).array(on("hip:0"), CONTENT)  # type: ignore[arg-type]
    return made, made.address


def by_level_zero() -> tuple[Any, int]:
    samples: Any = adapters.adapter("level_zero")
    made = samples.samples().array(on("level_zero:0"), CONTENT)
    return made, made.address


def known_to_both() -> tuple[Any, int]:
    """Memory of HIP that CUDA's driver claims to know, too."""
    if "both" not in kept:
        by_cuda()
        kept["both"] = _, address = by_hip()
        assert not kept["cuda"].c.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(NBYTES), 0)
    made: tuple[Any, int] = kept["both"]
    return made


# --- libraries


def torch(device: str) -> Any:
    return lib("torch").from_dlpack(ours(device))


def jax() -> Any:
    lib("jax").config.update("jax_platforms", "cpu")
    return lib("jax.numpy").asarray(values())


def pyopencl(kind: str) -> Any:
    cl = lib("pyopencl")
    device = on("opencl:0")
    import opencl_client

    queue = opencl_client.begin(device)
    over = opencl_client.buffer_over(kept.setdefault("under", ours(device)))
    if kind == "buffer":
        return over
    if kind == "over ours":
        return over.get_host_array((NBYTES,), np.uint8)
    made = lib("pyopencl.array").to_device(queue, values())
    if kind == "array":
        return made
    if kind == "mapped":
        return cl.enqueue_map_buffer(queue, made.base_data, cl.map_flags.READ, 0, (NBYTES,), np.uint8)[0]
    svm = cl.fsvm_empty(kept["cl context"], (NBYTES,), np.uint8)
    svm[:] = values()
    return svm


def dpctl(kind: str) -> Any:
    if os.environ.get("XPUSHARE_LEVEL_ZERO") != "neo":
        raise NotHere("dpctl")
    made = getattr(lib("dpctl.memory"), kind)(NBYTES, queue=lib("dpctl").SyclQueue("level_zero:gpu"))
    made.copy_from_host(CONTENT)
    return made


def vulkan_device(ordinal: int) -> xs.Device:
    """One of CUDA's devices, as a Vulkan program on it would name it."""
    from xpushare.integrations import vulkan

    return vulkan.device(bytes([ordinal + 1] * 16), b"a Vulkan driver.", name="Vulkan")


def vulkan_memory() -> Any:
    from xpushare.integrations import vulkan

    fd = os.memfd_create("a Vulkan allocation")
    os.pwrite(fd, CONTENT.ljust(4096, b"\0"), 0)
    try:
        return vulkan.ExternalMemory(fd, 4096, device=vulkan_device(0), nbytes=NBYTES)
    finally:
        os.close(fd)


def lavapipe_memory() -> Any:
    lib("vulkan")
    sys.path += [str(TESTS / "vulkan_programs"), str(TESTS.parent / "examples" / "vulkan")]
    try:
        import vulkan_peer as peer

        peer.program()
    except Exception as error:  # no loader, no driver, no device: each says so in its own way
        raise NotHere(str(error)) from error
    buffer = peer.allocate(4096)
    peer.program().run(buffer.fill(0x01010101))
    return peer.memory(buffer, nbytes=NBYTES)


# How memory travels, and the devices that can open it so. Vulkan's second device can open none of this.
OPENERS = {
    "memfd": ("native_cpu:0", "mock:0", "cuda:0", "hip:0", "level_zero:0", "opencl:0", "opencl:1"),
    "cuda": ("cuda:0", "vulkan:0"),
    "cuda's own handle": ("cuda:0",),
    "hip": ("hip:0",),
    "level_zero": ("level_zero:0",),
    "vulkan": ("cuda:0", "vulkan:0"),
    "another GPU's": (),
}
# Why an array is refused.
PRIVATE = "private to its library"
UNKNOWN = "whose driver in this process does not know memory at"
EACH, NONE = "each of their drivers in this process knows it", "none of their drivers in this process knows it"
HANDLE = "is a handle of the driver of"
ADDRESSES = "the addresses of a VirtualRange cannot be exported"
NO_ARRAY = "is not an array whose memory can be found"
STRANGE = "no adapter here knows DLPack's device type"
COPYING = ("native_cpu:0", "mock:0", "cuda:0", "hip:0", "level_zero:0")


class Row(NamedTuple):
    """An array, and what becomes of it: how its memory travels, or why it is refused."""

    make: Callable[[], Any]
    shared: str
    copied: str


def _ours(device: str) -> Row:
    backend = device.partition(":")[0]
    form = backend if backend in OPENERS else "memfd"
    return Row(lambda: ours(device), form, form)


def _copied_only(device: str, make: Callable[[str], Any], why: str) -> Row:
    return Row(lambda: make(device), why, _ours(device).copied)


def _host_as(number: int) -> Row:
    why = {1: PRIVATE, 4: HANDLE, 7: HANDLE, 8: STRANGE}.get(number, UNKNOWN)
    return Row(lambda: SaysDLPack(number, *on_host()), why, "memfd" if number == 1 else why)


ROWS = {
    "numpy": Row(values, PRIVATE, "memfd"),
    "bytearray": Row(lambda: bytearray(CONTENT), PRIVATE, "memfd"),
    "array.array": Row(lambda: array.array("B", CONTENT), PRIVATE, "memfd"),
    "torch": Row(lambda: lib("torch").from_numpy(values()).clone(), PRIVATE, "memfd"),
    "jax": Row(jax, PRIVATE, "memfd"),
    **{f"ours on {device}": _ours(device) for device in (*OPENERS["memfd"],)},
    **{f"imported on {device}": Row(partial(imported, device), *_ours(device)[1:]) for device in COPYING},
    **{f"in a range on {device}": _copied_only(device, in_a_range, ADDRESSES) for device in COPYING},
    "torch over native_cpu:0": Row(lambda: torch("native_cpu:0"), "memfd", "memfd"),
    "torch over mock:0": Row(lambda: torch("mock:0"), "memfd", "memfd"),
    "torch over opencl:0": Row(lambda: torch("opencl:0"), "memfd", "memfd"),
    "pyopencl buffer": Row(lambda: pyopencl("buffer"), NO_ARRAY, NO_ARRAY),
    "pyopencl array": Row(lambda: pyopencl("array"), NO_ARRAY, NO_ARRAY),
    "pyopencl mapped": Row(lambda: pyopencl("mapped"), PRIVATE, "memfd"),
    "pyopencl over ours": Row(lambda: pyopencl("over ours"), "memfd", "memfd"),
    "pyopencl SVM": Row(lambda: pyopencl("SVM"), PRIVATE, "memfd"),
    "dpctl device": Row(lambda: dpctl("MemoryUSMDevice"), "beside others", "level_zero"),
    "dpctl shared": Row(lambda: dpctl("MemoryUSMShared"), "cannot share USM of the kind shared", "level_zero"),
    "dpctl host": Row(lambda: dpctl("MemoryUSMHost"), "cannot share USM of the kind host", "level_zero"),
    "Vulkan": Row(vulkan_memory, "vulkan", "vulkan"),
    "lavapipe": Row(lavapipe_memory, "another GPU's", "another GPU's"),
    # What belongs together.
    "CUDA's, by the CUDA interface": Row(lambda: says_cuda(by_cuda()), "cuda's own handle", "cuda's own handle"),
    "CUDA's, by DLPack": Row(lambda: SaysDLPack(2, *by_cuda()), "cuda's own handle", "cuda's own handle"),
    "HIP's, by the CUDA interface": Row(lambda: says_cuda(by_hip()), "hip", "hip"),
    "HIP's, by DLPack": Row(lambda: SaysDLPack(10, *by_hip()), "hip", "hip"),
    "Level Zero's, by the SYCL interface": Row(lambda: says_sycl(by_level_zero()), "level_zero", "level_zero"),
    "Level Zero's, by DLPack": Row(lambda: SaysDLPack(14, *by_level_zero()), "level_zero", "level_zero"),
    # What does not.
    "both's, by the CUDA interface": Row(lambda: says_cuda(known_to_both()), EACH, EACH),
    "the host's, by the CUDA interface": Row(lambda: says_cuda(on_host()), NONE, NONE),
    "the host's, by the SYCL interface": Row(lambda: says_sycl(on_host()), UNKNOWN, UNKNOWN),
    "CUDA's, by the SYCL interface": Row(lambda: says_sycl(by_cuda()), UNKNOWN, UNKNOWN),
    "Level Zero's, by the CUDA interface": Row(lambda: says_cuda(by_level_zero()), NONE, NONE),
    "HIP's, by CUDA's DLPack": Row(lambda: SaysDLPack(2, *by_hip()), UNKNOWN, UNKNOWN),
    "CUDA's, by HIP's DLPack": Row(lambda: SaysDLPack(10, *by_cuda()), UNKNOWN, UNKNOWN),
    **{f"the host's, by DLPack type {number}": _host_as(number) for number in (1, 2, 3, 4, 7, 8, 10, 11, 13, 14)},
}
