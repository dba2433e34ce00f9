"""`xs.array`: a shared copy of anything array-like."""

from __future__ import annotations

import array as arrays_of_python
import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child


def read(raw: bytes) -> Any:
    with xs.attach(raw) as array:
        return np.asarray(array).copy()


LIKE = {
    "list": lambda: [[1, 2], [3, 4]],
    "number": lambda: 2.5,
    "range": lambda: range(5),
    "ndarray": lambda: np.arange(6.0).reshape(2, 3),
    "transposed": lambda: np.arange(6.0).reshape(2, 3).T,
    "reversed, with gaps": lambda: np.arange(20)[::-3],
    "broadcast": lambda: np.broadcast_to(np.float32(3), (2, 3)),
    "empty": lambda: np.empty((0, 3)),
    "big-endian": lambda: np.arange(3, dtype=">i4"),
    "dates": lambda: np.array(["2026-01-01"], "M8[D]"),
    "structured": lambda: np.zeros(2, [("a", "i2"), ("b", "f8")]),
    "read-only": lambda: np.frombuffer(bytes(8), "int32"),
    "array.array": lambda: arrays_of_python.array("h", [1, 2, 3]),
    "shared": lambda: xs.array([1, 2, 3]),
}


@pytest.mark.parametrize("what", LIKE)
def test_anything_array_like(what: str, peer: Child) -> None:
    source = LIKE[what]()
    expected = np.array(source)
    with xs.array(source) as made, xs.share(made) as handle:
        assert handle.copied_nbytes == 0
        found = peer.call(read, bytes(handle))
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert np.array_equal(found, expected)
        np.asarray(made)[...] = np.zeros((), made.dtype)
        assert np.array_equal(np.array(source), expected), "it is a copy"


def test_bytes_are_bytes() -> None:
    assert np.asarray(xs.array(b"abc")).tolist() == [97, 98, 99]
    with xs.malloc_device(4, "native_cpu:0") as memory:
        memoryview(memory)[:] = b"wxyz"
        assert bytes(np.asarray(xs.array(memory))) == b"wxyz"


def test_dtype_and_device() -> None:
    made = xs.array([1, 2, 3], dtype="float32", device="native_cpu:0")
    assert made.dtype == np.float32
    assert made.device == xs.Device("native_cpu:0")
    assert np.asarray(xs.array(np.array([1.5, 2.5]), dtype=int)).tolist() == [1, 2]


def test_of_a_read_only_import(peer: Child) -> None:
    raw = peer.call(_share_read_only)
    with xs.attach(raw) as imported, xs.array(imported) as made:
        assert imported.read_only
        assert not made.read_only
        np.asarray(made)[0] = 9
        assert np.asarray(imported).tolist() == [1, 2, 3]


def _share_read_only() -> bytes:
    return bytes(xs.share(xs.array([1, 2, 3]), read_only=True))


@pytest.mark.parametrize("library", ["torch", "jax", "pyarrow", "ml_dtypes", "pandas", "polars"])
def test_other_libraries(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    module: Any = importlib.import_module(library)
    source: Any
    if library == "torch":
        source = module.arange(4, dtype=module.bfloat16)
    elif library == "jax":
        source = module.numpy.arange(4)
    elif library == "pyarrow":
        source = module.array([0, 1, 2, 3])
    elif library == "ml_dtypes":
        source = np.arange(4).astype(module.float8_e4m3fn)
    else:
        source = module.Series([0, 1, 2, 3])
    assert np.asarray(xs.array(source)).astype(int).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [[object()], [[1], [2, 3]], {"a": 1}, np.ma.masked_array([1, 2], [0, 1])],
    ids=["objects", "ragged", "dict", "masked"],
)
def test_what_is_no_array(wrong: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        xs.array(wrong)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (["a"], "i4"),
        (np.array(["a"]), "i4"),
        (np.zeros(1, [("a", "i2"), ("b", "f8")]), "f4"),
        ([1 << 80], "i4"),
    ],
    ids=["list", "ndarray", "structured", "too large"],
)
def test_what_the_dtype_has_no_place_for(x: Any, dtype: str) -> None:
    with pytest.raises(xs.InvalidArgumentError, match="NumPy makes no array of this"):
        xs.array(x, dtype=dtype)
