"""Memory of two vendors is never confused: each pair of an array of some library and a backend that opens it works, or
is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept
from xpushare import _native

WANTED = list(range(16))
OPENERS = ("native_cpu:0", "opencl:0", "opencl:1", "mock:0", "cuda:0", "level_zero:0")


class Claims:
    """An array that says by a protocol that it is on a device. Its pointer is the host's all the same."""

    def __init__(self, number: int) -> None:
        self.values, self.number = np.arange(16, dtype="u4"), number

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.number, 0

    def __dlpack__(self, **_options: Any) -> Any:
        at = self.values.ctypes.data
        return _native.dlpack_capsule(self, at, (self.number, 0), (1, 32, 1), (16,), (1,), False, False)


class ByInterface:
    """The same by an array interface."""

    def __init__(self, name: str, **more: Any) -> None:
        self.values = np.arange(16, dtype="u4")
        setattr(self, name, {"shape": (16,), "typestr": "<u4", "data": (self.values.ctypes.data, False), **more})


def _torch(device: str) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_dlpack(xs.array(np.arange(16, dtype="u4").view("i4"), device=device))


def _jax() -> Any:
    return pytest.importorskip("jax.numpy").arange(16, dtype="uint32")


def _pyopencl(kind: str) -> Any:
    import opencl_client
    import pyopencl as cl
    import pyopencl.array

    queue = opencl_client.begin("opencl:0")
    over = opencl_client.buffer_over(xs.array(np.arange(16, dtype="u4"), device="opencl:0"))
    if kind == "buffer":
        return over
    if kind == "array":
        return cl.array.to_device(queue, np.arange(16, dtype="u4"))
    if kind == "ours":
        return over.get_host_array((16,), np.uint32)
    mapped, _event = cl.enqueue_map_buffer(
        queue, cl.array.to_device(queue, np.arange(16, dtype="u4")).base_data, cl.map_flags.READ, 0, (16,), np.uint32
    )
    return mapped


MAKERS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.arange(16, dtype="u4"),
    **{f"ours on {on}": lambda on=on: xs.array(np.arange(16, dtype="u4"), device=on) for on in OPENERS[:4]},
    **{f"torch over {on}": lambda on=on: _torch(on) for on in ("native_cpu:0", "opencl:0", "opencl:1")},
    "torch": lambda: pytest.importorskip("torch").arange(16, dtype=pytest.importorskip("torch").int32),
    "jax": _jax,
    **{f"pyopencl {kind}": lambda kind=kind: _pyopencl(kind) for kind in ("buffer", "array", "ours", "mapped")},
    **{f"DLPack type {number}": lambda number=number: Claims(number) for number in (1, 2, 3, 4, 7, 8, 10, 13, 14)},
    "CUDA array interface": lambda: ByInterface("__cuda_array_interface__", version=3),
    "SYCL USM array interface": lambda: ByInterface("__sycl_usm_array_interface__", version=1, syclobj="opencl:cpu:0"),
}


def share(name: str, copy: bool) -> tuple[str, str]:
    try:
        kept["array"] = MAKERS[name]()
    except pytest.skip.Exception as error:
        return "skipped", str(error)
    try:
        kept["handle"] = xs.share(kept["array"], copy=copy)
    except xs.XpuShareError as error:
        return type(error).__name__, str(error)
    return "", str(kept["handle"])


def attach(handle: str, on: str) -> tuple[str, Any]:
    try:
        array = xs.attach(handle, device=on)
        assert str(array.device) == on
        return "", list(map(int, np.asarray(array)))
    except xs.XpuShareError as error:
        return type(error).__name__, str(error)


def judge(name: str, copy: bool, here: Child, there: Child) -> None:
    error, text = here.call(share, name, copy)
    if error == "skipped":
        return
    in_place = name.startswith(("ours", "torch over")) or name == "pyopencl ours"
    if error:
        assert error in ("FeatureNotSupportedError", "InvalidArgumentError"), (error, text)
        assert text
        assert not in_place, text
        assert not copy or not name.startswith(("numpy", "torch", "jax", "pyopencl mapped")), text
        return
    assert in_place or copy, "what is private cannot be shared in place"
    assert "DLPack" not in name or name.endswith(" 1")
    for on in OPENERS:
        error, found = there.call(attach, text, on)
        if on.startswith(("cuda", "level_zero")):
            assert error
            assert on in found or "device" in found, found
        else:
            assert (error, found) == ("", WANTED), on


@pytest.mark.parametrize("copy", [False, True])
def test_every_pair_works_or_is_refused(copy: bool) -> None:
    wrong = {}
    with Child() as here, Child() as there:
        for name in MAKERS:
            try:
                judge(name, copy, here, there)
            except AssertionError as error:
                wrong[name] = str(error)
    assert not wrong
