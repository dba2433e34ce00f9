"""Every producer with every consumer: the same bytes, no copy, and they stay when everything else is closed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from array_peer import backed_by, consume, producer

import harness
import xpushare as xs
from harness import Child

NEEDS = {
    "torch": "torch",
    "jax": "jax",
    "pyarrow": "pyarrow",
    "pyarrow buffer": "pyarrow",
    "pyarrow foreign": "pyarrow",
}
PRODUCERS = ["empty", "numpy", "memoryview", "Memory", "torch", "jax", "pyarrow"]
CONSUMERS = ["numpy", "numpy dlpack", "memoryview", "torch", "jax", "pyarrow buffer", "pyarrow foreign"]
SIXTEEN = list(range(16))

results: dict[tuple[str, str], str] = {}


def needs(*kinds: str) -> None:
    for kind in kinds:
        if kind in NEEDS and importlib.util.find_spec(NEEDS[kind]) is None:
            results[kinds] = "skipped"  # type: ignore[index]
            pytest.skip(f"{NEEDS[kind]} is not installed: pip install {NEEDS[kind]}")


@pytest.fixture(scope="module")
def consumer_process() -> Child:  # type: ignore[misc]
    with Child(timeout=120) as child:  # the first import of torch and JAX takes its time
        harness.children.discard(child)  # it outlives the test
        yield child


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch: a tensor over read-only memory
@pytest.mark.parametrize("to", CONSUMERS)
@pytest.mark.parametrize("made_by", PRODUCERS)
def test_zero_copy(consumer_process: Child, made_by: str, to: str) -> None:
    needs(made_by, to)
    if made_by in ("Memory", "pyarrow"):  # bytes: the elements' type is not theirs to keep
        made, view = producer(made_by)
        raw = view.view("u1")
        with xs.share(made) as handle:
            assert handle.dtype.itemsize == 1
            found = consumer_process.call(_consume_bytes, to, bytes(handle))
        wanted: list[float] = list(np.array(SIXTEEN, "f4").view("u1"))
        changed = raw[0]
    else:
        made, view = producer(made_by)
        with xs.share(made) as handle:
            assert handle.dtype == np.float32
            found = consumer_process.call(consume, to, bytes(handle))
        wanted = [float(number) for number in SIXTEEN]
        changed = view[0]
    results[made_by, to] = "zero copy"
    assert handle.copied_nbytes == 0
    assert "memfd:xpushare-memory" in backed_by(view.ctypes.data)
    assert "memfd:xpushare-memory" in found["mapped"]
    assert found["address"], "the consumer reads from another place: it copied"
    assert found["read"] == wanted
    assert changed == 42, "what the other process wrote is not here: it wrote to a copy"
    assert found["after close"] == [42.0, *wanted[1:]]


def _consume_bytes(kind: str, handle: bytes) -> dict[str, object]:
    """As `consume`, for arrays of bytes."""
    import array_peer

    array = xs.attach(handle)
    found, address = array_peer.consumer(kind, array)

    def values() -> list[float]:
        if kind.startswith("pyarrow"):
            return [float(value) for value in np.frombuffer(found, "u1")]
        return [float(value) for value in np.asarray(found).view("u1")]

    result: dict[str, object] = {"address": address == array.ptr, "mapped": backed_by(address), "read": values()}
    np.asarray(array)[0] = 42
    array.close()
    del array
    result["after close"] = values()
    return result


def test_every_pair_was_tried() -> None:
    """Prints the table (pytest -s)."""
    if not results:
        pytest.skip("no pair was tried in this run")
    width = max(map(len, CONSUMERS)) + 2
    print("\n" + " " * 12 + "".join(name.ljust(width) for name in CONSUMERS))
    for made_by in PRODUCERS:
        print(made_by.ljust(12) + "".join(results.get((made_by, to), "-").ljust(width) for to in CONSUMERS))
    assert {(made_by, to) for made_by in PRODUCERS for to in CONSUMERS} == set(results)


def test_strided_torch_and_named_types() -> None:
    needs("torch", "torch")
    import torch

    base = torch.from_dlpack(xs.empty((6, 4), "f4"))
    base[:] = torch.arange(24, dtype=torch.float32).reshape(6, 4)
    view = base.t()[1:3]
    with xs.share(view) as handle:
        assert handle.strides == (4, 16)
        assert np.array_equal(np.asarray(xs.attach(handle)), view.numpy())
    pytest.importorskip("ml_dtypes")
    half = torch.from_dlpack(xs.empty(8, "bfloat16"))
    half[:] = 1.5
    with xs.share(half) as handle:
        assert handle.dtype.name == "bfloat16"
        again = torch.from_dlpack(xs.attach(handle))
        assert again.dtype == torch.bfloat16
        assert again.tolist() == [1.5] * 8


def test_a_tensor_that_needs_gradients_says_so() -> None:
    needs("torch", "torch")
    import torch

    with pytest.raises(xs.InvalidArgumentError, match="detach"):
        xs.share(torch.ones(3, requires_grad=True), copy=True)


def test_private_tensors() -> None:
    needs("torch", "torch")
    import torch

    with pytest.raises(xs.FeatureNotSupportedError, match=r"torch\.Tensor is private"):
        xs.share(torch.ones(3))
    with xs.share(torch.arange(6).reshape(2, 3), copy=True) as handle:
        assert handle.copied_nbytes == 48
        assert np.asarray(xs.attach(handle)).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_read_only_through_dlpack() -> None:
    with xs.share(xs.empty(4, "f4"), read_only=True) as handle, xs.attach(handle) as array:
        assert not np.from_dlpack(array).flags.writeable
        with pytest.raises(BufferError):  # an unversioned capsule cannot say that it is read-only
            array.__dlpack__()


@pytest.mark.parametrize("dtype", ["S3", "M8[s]", ">i4", "V4", [("a", "i4")]])
def test_dlpack_refuses_what_it_has_no_type_for(dtype: object) -> None:
    with pytest.raises(BufferError, match="DLPack"):
        xs.empty(3, dtype).__dlpack__()


def test_dlpack_arguments() -> None:
    array = xs.empty(4, "f4")
    assert array.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        array.__dlpack__(stream=1)
    array.__dlpack__(stream=-1)
    array.__dlpack__(dl_device=(1, 0), copy=False, max_version=(1, 1))


def test_array_interface_keeps_the_memory() -> None:
    class Holder:
        def __init__(self, interface: object) -> None:
            self.__array_interface__ = interface

    array = xs.empty(3)
    np.asarray(array)[:] = 5
    interface = array.__array_interface__
    assert interface["data"] == (array.ptr, False)
    assert np.asarray(Holder(interface)).tolist() == [5, 5, 5]
    assert not hasattr(xs.empty(1, [("a", "u1"), ("b", "f8")]), "__cuda_array_interface__")
