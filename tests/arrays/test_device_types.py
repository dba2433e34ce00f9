"""Whose an array is, by its DLPack device type: what no adapter knows is refused, never taken for the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from xpushare import _native, adapters
from xpushare.adapters.vendor import DLPACK_NAMES
from xpushare.arrays import description

# kDLMetal, kDLVPI, kDLExtDev, kDLWebGPU, …, and no type at all
UNKNOWN = [8, 9, 12, 15, 16, 17, 18, 0, -1, 5, 6, 19, 99, 1 << 30, (1 << 31) - 1]
CUDA = [2, 3, 13]


class OfLibrary:
    """An array of another library: host memory, whatever its capsule or its `__dlpack_device__` says."""

    def __init__(self, capsule: int, said: Any = None) -> None:
        self.values = np.arange(16, dtype=np.uint8)
        self._capsule = capsule
        self._said = (capsule, 0) if said is None else said

    def __dlpack_device__(self) -> Any:
        return self._said

    def __dlpack__(self, **_options: Any) -> Any:
        place = (self._capsule, 0)
        return _native.dlpack_capsule(self, self.values.ctypes.data, place, (1, 8, 1), (16,), (1,), False, False)


def needs_no_cuda() -> None:
    record = adapters.record("cuda")
    assert record is not None
    if record.in_use():
        pytest.skip("libcuda is loaded in this process")


def publish(array: Any) -> None:
    xs.publish("test-device-types", array)


def as_operand(array: Any) -> None:
    with xs.Queue("native_cpu:0") as queue, xs.malloc_host(16, "native_cpu:0") as target:
        queue.copy(target, array)


CONSUMERS: dict[str, Callable[[Any], object]] = {
    "share": xs.share,
    "share unordered": lambda array: xs.share(array, stream=-1),
    "copy": lambda array: xs.share(array, copy=True),
    "copy read-only": lambda array: xs.share(array, copy=True, read_only=True, stream=-1),
    "get": xs.ipc.memory.get,
    "publish": publish,
    "describe": description.describe,
    "locate": description.locate,
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("number", UNKNOWN)
def test_an_unknown_type_is_refused(number: int, consumer: str) -> None:
    with pytest.raises(xs.FeatureNotSupportedError) as caught:
        CONSUMERS[consumer](OfLibrary(number))
    text = str(caught.value)
    assert f"device type {number} ({DLPACK_NAMES.get(number, 'unknown')})" in text
    assert "1 (kDLCPU, native_cpu)" in text
    assert "2 (kDLCUDA, cuda)" in text


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize(("number", "name"), [(4, "OpenCL"), (7, "Vulkan")])
def test_handles_of_a_driver_are_refused(number: int, name: str, consumer: str) -> None:
    why = rf"{number} \(kDL{name}\) is a handle of the driver of {name.lower()}, not"
    with pytest.raises(xs.FeatureNotSupportedError, match=why):
        CONSUMERS[consumer](OfLibrary(number))


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("number", [10, 11])
def test_rocms_types_need_hip(number: int, consumer: str) -> None:
    record = adapters.record("hip")
    assert record is not None
    if record.in_use():
        pytest.skip("libamdhip64 is loaded in this process")
    with pytest.raises(xs.FeatureNotSupportedError, match="of hip, whose driver this process has not loaded"):
        CONSUMERS[consumer](OfLibrary(number))


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_oneapis_type_needs_level_zero(consumer: str) -> None:
    record = adapters.record("level_zero")
    assert record is not None
    if record.in_use():
        pytest.skip("the Level Zero loader is loaded in this process")
    with pytest.raises(xs.FeatureNotSupportedError, match="of level_zero, whose driver this process has not loaded"):
        CONSUMERS[consumer](OfLibrary(14))


@pytest.mark.parametrize("number", [1 << 31, 1 << 40, -(1 << 70)])
def test_what_fits_no_capsule(number: int) -> None:
    with pytest.raises(xs.FeatureNotSupportedError, match=f"device type {number} "):
        xs.share(OfLibrary(1, (number, 0)), copy=True)


@pytest.mark.parametrize("number", [4, 7, *UNKNOWN, *CUDA])
@pytest.mark.parametrize("copy", [False, True])
def test_the_capsule_counts(number: int, copy: bool) -> None:
    """Not what `__dlpack_device__` says."""
    if number in CUDA:
        needs_no_cuda()
    with pytest.raises(xs.FeatureNotSupportedError):
        xs.share(OfLibrary(number, (1, 0)), copy=copy)


@pytest.mark.parametrize("said", [None, 1, (), (1,), (1, 0, 0), ("1x", 0), (None, 0), ([], 0), b"\1\0\0"])
@pytest.mark.parametrize("copy", [False, True])
def test_what_is_no_device(said: Any, copy: bool) -> None:
    array = OfLibrary(1)
    array._said = said
    with pytest.raises(xs.InvalidArgumentError, match="does not hand out its memory"):
        xs.share(array, copy=copy)


def test_what_is_no_capsule() -> None:
    class Wrong(OfLibrary):
        def __dlpack__(self, **_options: Any) -> Any:
            return b"no capsule"

    for copy in (False, True):
        with pytest.raises(xs.InvalidArgumentError, match="does not hand out its memory"):
            xs.share(Wrong(1), copy=copy)


@pytest.mark.parametrize("number", [4, 7, *UNKNOWN, *CUDA, 1])
def test_queues_take_no_foreign_arrays(number: int) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        as_operand(OfLibrary(number))


def test_the_host() -> None:
    array = OfLibrary(1)
    with pytest.raises(xs.FeatureNotSupportedError, match="private to its library"):
        xs.share(array)
    with xs.share(array, copy=True) as handle:
        assert handle.copied_nbytes == 16
        assert np.array_equal(np.asarray(xs.attach(handle)), array.values)


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("number", CUDA)
def test_a_vendor_whose_driver_is_not_loaded(number: int, consumer: str) -> None:
    needs_no_cuda()
    with pytest.raises(xs.FeatureNotSupportedError, match="cuda, whose driver this process has not loaded") as caught:
        CONSUMERS[consumer](OfLibrary(number))
    assert "pip install '.[cuda]' in a checkout of xpushare" in str(caught.value)


def test_an_array_interface_of_a_driver_that_is_not_loaded() -> None:
    needs_no_cuda()

    class Gpu:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "|u1", "data": (4096, False), "version": 3}  # noqa: RUF012

    for copy in (False, True):
        with pytest.raises(xs.FeatureNotSupportedError, match="has not loaded"):
            xs.share(Gpu(), copy=copy)


GOOD: dict[str, Any] = {"shape": (2,), "typestr": "|V8", "data": (4096, False), "version": 3}
SENSELESS: dict[str, dict[str, Any]] = {
    "no typestr": {"typestr": None},
    "typestr of nothing": {"typestr": ""},
    "another typestr": {"typestr": "?!"},
    "no number": {"typestr": 4},
    "no shape": {"shape": None},
    "a shape of one number": {"shape": 2},
    "lengths": {"shape": ("a",)},
    "half an element": {"shape": (1.5,)},
    "negative": {"shape": (-2,)},
    "strides": {"strides": ("a",)},
    "too few strides": {"strides": ()},
    "an address": {"data": ("a", False)},
    "an address alone": {"data": (4096,)},
    "descr": {"descr": 4},
    "a descr of nothing known": {"descr": [("a", "?!")]},
    "a longer descr": {"descr": [("a", "<f8"), ("b", "<f8")]},
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("wrong", SENSELESS)
def test_an_array_interface_that_makes_no_sense(wrong: str, consumer: str) -> None:
    said = {name: value for name, value in {**GOOD, **SENSELESS[wrong]}.items() if value is not None}
    array = type("Wrong", (), {"__array_interface__": said})()
    with pytest.raises(xs.InvalidArgumentError):
        CONSUMERS[consumer](array)


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_buffer_that_is_gone(consumer: str) -> None:
    released = memoryview(b"abc")
    released.release()
    with pytest.raises(xs.InvalidArgumentError, match="released"):
        CONSUMERS[consumer](released)


def test_only_memory_of_the_host_is_the_hosts() -> None:
    assert [number for number in range(-1, 32) if adapters.on_host(number)] == [1, 3, 11]
    with xs.malloc_device(16, "native_cpu:0") as memory:
        for number in (1, 3, 11):
            memory.__dlpack__(dl_device=(number, 0))
        for number in (2, 4, 10, 13, 14):
            with pytest.raises(BufferError, match="DLPack device"):
                memory.__dlpack__(dl_device=(number, 0))
