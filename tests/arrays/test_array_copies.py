"""`xs.array`: a shared copy of anything array-like."""

from __future__ import annotations

import array as arrays_of_python
import importlib
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept
from xpushare._native import End, forks
from xpushare.adapters.host import HostRange
from xpushare.adapters.mock import MockStream, default_stream
from xpushare.adapters.stream.memory import HostMemory
from xpushare.core.device import adapter_of
from xpushare.core.resources import imported
from xpushare.objects.lifecycle import use


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


def test_the_array_of_a_parent() -> None:
    arrays = kept["parents"] = [xs.empty(3), xs.empty(3, device="mock:0")]
    with Child(method="fork") as child:
        for number in range(len(arrays)):
            with pytest.raises(xs.ForkError, match="belongs to the parent"):
                child.call(lambda number: xs.array(kept["parents"][number]), number)
    kept.clear()


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
    with pytest.raises(xs.InvalidArgumentError, match="NumPy cannot make an array of this"):
        xs.array(x, dtype=dtype)


# --- of ours, on a device

VALUES = np.arange(6, dtype="i4").reshape(2, 3)
PIECES: dict[str, Callable[[Any], Any]] = {
    "whole": lambda values: values,
    "transposed": lambda values: values.T,
    "with gaps": lambda values: values[:, ::2],
    "reversed": lambda values: values[::-1],
    "broadcast": lambda values: np.broadcast_to(values[:1], (4, 3)),
}


def filled() -> xs.SharedArray:
    made = xs.empty(VALUES.shape, "i4", device="mock:0", isolated=True)
    np.asarray(made)[...] = VALUES
    return made


def hidden(source: Any, **options: Any) -> xs.SharedArray:
    """An import of that array, in memory that the host cannot reach."""
    with xs.share(source, **options) as handle:
        found: xs.SharedArray = xs.attach(handle)
    place = use(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostMemory, "host_accessible", False)
        unreachable = imported(place.device, place.allocation.driver, "device", End(None))
    found._hold(place.replace(allocation=unreachable, lease=place), forks())
    return found


@pytest.fixture
def in_a_range(monkeypatch: pytest.MonkeyPatch) -> xs.SharedArray:
    """An array at reserved addresses, in memory that the host cannot reach."""
    place = xs.VirtualRange(1 << 16, "mock:0")
    place.map(xs.PhysicalMemory(1 << 16, "mock:0"))
    made = place.as_array(VALUES.shape, "i4", 64)
    np.asarray(made)[...] = VALUES
    monkeypatch.setattr(HostRange, "host_accessible", False)
    return made


def check_copies(array: xs.SharedArray, expected: Any) -> None:
    """Each call that copies makes a copy on the device."""
    with xs.share(array, copy=True) as handle, xs.share([array, {"b": np.ones(3)}], copy=True) as tree:
        assert handle.copied_nbytes == tree.copied_nbytes - 24
        copies = {"share": xs.attach(handle), "tree": xs.attach(tree)[0], "array": xs.array(array)}
        for how, copy in copies.items():
            assert copy.device == array.device, how
            assert np.array_equal(np.asarray(copy), expected), how
    assert np.array_equal(np.asarray(xs.array(array, dtype="f4", device="native_cpu:0")), expected)


@pytest.mark.parametrize("piece", PIECES)
def test_an_import_is_copied_by_its_device(piece: str) -> None:
    array = hidden(PIECES[piece](np.asarray(filled())))
    check_copies(array, PIECES[piece](VALUES))


def test_no_elements_stay_on_their_device() -> None:
    check_copies(hidden(xs.empty((0, 3), "i4", device="mock:0", isolated=True)), VALUES[:0])


def test_a_range_is_copied_by_its_device(in_a_range: xs.SharedArray) -> None:
    with pytest.raises(BufferError):
        np.asarray(in_a_range)
    check_copies(in_a_range, VALUES)


@pytest.mark.parametrize("kind", ["device", "host", "shared"])
def test_our_memory_is_copied_where_it_lies(kind: str) -> None:
    memory = getattr(xs, f"malloc_{kind}")(24, "mock:0")
    array = memory.as_array(VALUES.shape, "i4")
    np.asarray(array)[...] = VALUES
    for x in memory, array:
        for dtype in None, "u2":
            made = xs.array(x, dtype=dtype)
            assert made.device == memory.device
            assert use(made).allocation.kind == ("device" if kind == "device" else "host"), "readable where it was"
            assert np.array_equal(np.asarray(made), np.array(x).astype(dtype or made.dtype))
    assert xs.array(array, device="native_cpu:0").device == xs.Device("native_cpu:0")


def test_a_copy_waits_on_the_device_for_the_content() -> None:
    stream, release = MockStream(), threading.Event()
    source = filled()
    values = np.asarray(source)
    # A teardown waits for the device, and nothing begins to wait in a queue meanwhile: so first what was let go before.
    assert adapter_of(xs.Device("mock:0")).engine.teardown.settle(20)
    stream.call(release.wait)
    stream.call(lambda: values.fill(9))
    array = hidden(source, stream=stream)
    with xs.share(array, copy=True) as handle, xs.share([array], copy=True) as tree:
        assert handle.event is not None
        copies = xs.attach(handle), xs.attach(tree)[0]
        release.set()
        assert [np.asarray(copy).tolist() for copy in copies] == [[[9] * 3] * 2] * 2
    stream.close()


def test_an_unordered_copy_is_there() -> None:
    """Nobody waits for what the stream has queued, and readers of the copy wait for nothing."""
    release = threading.Event()
    array = hidden(filled())
    default_stream(0).call(release.wait)
    with xs.share(array, copy=True, stream=-1) as handle, xs.share([array], copy=True, stream=-1) as tree:
        assert handle.event is None
        assert [np.asarray(each).tolist() for each in (xs.attach(handle), *xs.attach(tree))] == [VALUES.tolist()] * 2
        release.set()
    default_stream(0).synchronize()


# --- elements that are repeated

LINE = np.arange(1 << 10, dtype="i4")
MANY = 1 << 40  # no copy of so many elements ends
REPEATED: dict[str, tuple[Any, int]] = {  # and the bytes of the different elements
    "one element": (np.broadcast_to(LINE[7], (MANY, 4)), 4),
    "rows": (np.broadcast_to(LINE, (MANY, 1 << 10)), 4096),
    "in the middle": (np.broadcast_to(LINE.reshape(32, 1, 32), (32, MANY, 32)), 4096),
    "backwards": (np.broadcast_to(LINE[::-1], (MANY, 1 << 10)), 4096),
    "columns with gaps": (np.broadcast_to(LINE.reshape(32, 32)[:, ::2].T[:, None], (16, MANY, 32)), 2048),
    "backwards with gaps": (np.broadcast_to(LINE[::-4], (MANY, 256)), 1024),
    "windows": (np.broadcast_to(np.lib.stride_tricks.sliding_window_view(LINE, 100), (MANY, 925, 100)), 4096),
    "windows with gaps": (
        np.broadcast_to(np.lib.stride_tricks.sliding_window_view(LINE[::2], 100), (MANY, 413, 100)),
        4092,
    ),
    "windows of windows": (
        np.broadcast_to(np.lib.stride_tricks.sliding_window_view(LINE, 100)[::-3], (MANY, 309, 100)),
        4096,
    ),
    "structures": (np.broadcast_to(np.zeros(3, "i4, f8"), (MANY, 3)), 36),
}


def part_of(x: Any) -> Any:
    """The elements of two positions of each long dimension."""
    return x[tuple(slice(None, None, max(length - 1, 1)) if length == MANY else slice(None) for length in x.shape)]


@pytest.mark.parametrize("what", REPEATED)
def test_repeated_elements_are_copied_once(what: str) -> None:
    x, nbytes = REPEATED[what]
    with xs.share(x, copy=True) as handle, xs.share({"a": [x], "b": np.ones(2)}, copy=True) as tree:
        assert handle.copied_nbytes == nbytes
        assert tree.copied_nbytes == nbytes + 16
        for found in np.asarray(xs.attach(handle)), np.asarray(xs.attach(tree)["a"][0]):
            assert found.shape == x.shape
            assert np.array_equal(part_of(found), part_of(x))
            assert [step == 0 for step in found.strides] == [step == 0 for step in x.strides]


@pytest.mark.parametrize("step", [1, 2])
def test_views_of_repeated_elements(step: int) -> None:
    """They stay views of one memory, and the bytes in the gaps between their elements are not copied."""
    line = LINE.copy()
    wide = np.broadcast_to(line[::step], (MANY, len(line) // step))
    with xs.share([wide, line[: 8 * step : step], wide[::-1, ::-1]], copy=True) as handle:
        assert handle.copied_nbytes == line.nbytes - 4 * (step - 1)
        first, second, third = map(np.asarray, xs.attach(handle))
        assert np.array_equal(part_of(first), part_of(wide))
        assert np.array_equal(part_of(third), part_of(wide[::-1, ::-1]))
        first.flags.writeable and second.__setitem__(3, 77)
        assert first[MANY - 1, 3] == third[0, len(line) // step - 4] == 77
        if step == 2:
            memory = xs.ipc.memory.open(handle.handles[0])
            assert set(np.asarray(memory)[4:8].tolist()) == {0}


# --- values that NumPy would change on the way

BIG = (1 << 53) + 1  # an integer that float64 does not have
CHANGED: dict[str, tuple[Any, str]] = {
    "no common integers": ([1 << 63, -1], "no integer type"),
    "identifier and float": ([BIG, 0.5], f"{BIG}"),
    "nested": ([[1, 2], [BIG, 0.5]], f"{BIG}"),
    "complex": ([BIG, 1j], f"{BIG}"),
    "scalars": ([np.uint64((1 << 63) + 1), np.int64(-1)], f"{(1 << 63) + 1}"),
    "arrays": ([np.array([BIG]), np.array([0.5])], f"{BIG}"),
    "text": ([1, "a"], "1 would become text"),
    "bytes": ([b"a", "b"], "would become text"),
    "text that ends in NUL": (["a\0", "bb"], "drops the NUL"),
    "bytes that end in NUL": ([[b"a\0", b"bb"]], "drops the NUL"),
    "masked arrays": ([np.ma.array([1, 2], mask=[False, True])] * 2, "has a mask"),
    "masked arrays, nested": ([[np.ma.array([1, 2], mask=[False, True])]], "has a mask"),
    "matrices": ((np.asarray(3), np.zeros(2).view(type("Units", (np.ndarray,), {}))[0:1].reshape(())), "Units is a"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_lists_whose_values_would_change(what: str) -> None:
    x, match = CHANGED[what]
    with pytest.raises(xs.InvalidArgumentError, match=match):
        xs.array(x)
    dtype = np.asarray(x).dtype
    assert np.array_equal(np.asarray(xs.array(x, dtype=dtype)), np.asarray(x, dtype))
    if dtype.kind not in "US":
        with (
            xs.Channel.create(None, np.asarray(x).shape, dtype) as ch,
            pytest.raises(xs.InvalidArgumentError, match=match),
        ):
            ch.send(x)


def test_lists_of_tensors_keep_their_integers() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(xs.InvalidArgumentError, match=f"{BIG}"):
        xs.array([torch.tensor(BIG), torch.tensor(0.5)])
    assert np.asarray(xs.array([torch.tensor(1), torch.tensor(0.5)])).tolist() == [1, 0.5]


@pytest.mark.parametrize(
    "x", [[1, 2.5], [True, 2], [True, 0.5], [float("nan"), 1], [1 << 63], [1, 1j], [], ["a", "bc"], [1 << 60, 0.5], 3]
)
def test_lists_whose_values_stay(x: Any) -> None:
    made = np.asarray(xs.array(x))
    assert made.dtype == np.asarray(x).dtype
    assert repr(made.tolist()) == repr(np.asarray(x).tolist())


NAMED: dict[str, tuple[Any, str, Any]] = {  # what NumPy alone cannot share, how it is named, and a dtype that helps
    "objects": (np.array([object()]), r"Python objects \(object\)", None),
    "text": (np.array(["a", "bcd"], object), "text of variable width", "U"),
    "missing": (np.array([1.5, None]), "missing values", "f8"),
    "integers": (np.array([1 << 80, 1], object), "more than 64 bits", "f8"),
    "a field": (np.zeros(2, [("a", "O"), ("b", "i4")]), "the field 'a'", None),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_cannot_be_shared_is_named(what: str) -> None:
    x, match, dtype = NAMED[what]
    for call in (xs.array, xs.share, lambda x: xs.share([x], copy=True), lambda x: xs.publish("x", x)):
        with pytest.raises(xs.InvalidArgumentError, match=match):
            call(x)
    if dtype is not None:
        assert repr(np.asarray(xs.array(x, dtype=dtype))) == repr(np.asarray(x, dtype))


def test_text_of_variable_width() -> None:
    strings: Any = getattr(np.dtypes, "StringDType", None)
    if strings is None:
        pytest.skip("needs NumPy 2")
    x = np.array(["a", "bcd"], strings())
    with pytest.raises(xs.InvalidArgumentError, match="text of variable width"):
        xs.array(x)
    assert np.asarray(xs.array(x, dtype="U3")).tolist() == ["a", "bcd"]


class Column:
    """A series of a data frame, as pandas, polars and pyarrow have them."""

    def __init__(self, values: Any, dtype: str, name: str | None = None, nulls: int = 0) -> None:
        self.values, self.dtype, self.name, self.null_count = values, dtype, name, nulls

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.values, dtype, copy=copy)


class Frame:
    def __init__(self, **columns: Column) -> None:
        self.found = columns
        self.columns = [*columns]

    def __getitem__(self, name: str) -> Column:
        return self.found[name]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([each.values for each in self.found.values()], dtype, copy=copy).T


COLUMNS: dict[str, tuple[Any, str]] = {
    "nullable integers": (Column([BIG, np.nan], "Int64", "id", 1), "column 'id' has missing values"),
    "nullable floats": (Column([1.5, np.nan], "Float64", None, 1), "this Column has missing values"),
    "mixed": (Frame(id=Column([BIG], "int64"), x=Column([0.5], "float64")), "column 'id' has integers"),
    "categories": (Column([1, 2], "category"), "has categories"),
    "categories of a table": (
        Frame(a=Column([1], "int8"), b=Column([1], "dictionary<i8>")),
        "column 'b' .* categories",
    ),
    "time zone": (Column(["2026-01-01"], "datetime64[ns, UTC]"), "time zone"),
    "time zone of Arrow": (Column([1, 2], "timestamp[us, tz=UTC]"), "time zone"),
    "sparse": (Column([0, 1], "Sparse[int64, 0]"), "is sparse"),
    "text": (Column(["a"], "string", "t"), "column 't' .* text of variable width"),
}


@pytest.mark.parametrize("what", COLUMNS)
def test_columns_that_would_change(what: str) -> None:
    x, match = COLUMNS[what]
    with pytest.raises(xs.InvalidArgumentError, match=match):
        xs.array(x)
    dtype = np.asarray(x).dtype
    assert repr(np.asarray(xs.array(x, dtype=dtype))) == repr(np.asarray(x))


def test_lists_of_no_array_in_a_channel() -> None:
    with xs.Channel.create(None, (2, 2), "f8") as ch:
        for wrong in ([[1], [2, 3]], object(), {1}, [1 << 80], "text"):
            with pytest.raises(xs.InvalidArgumentError):
                ch.send(wrong)


def test_columns_that_stay() -> None:
    assert np.asarray(xs.array(Column([1, 2], "Int64"))).tolist() == [1, 2]
    assert np.asarray(xs.array(Frame(a=Column([1], "int64"), b=Column([2], "int64")))).tolist() == [[1, 2]]
    assert np.asarray(xs.array(Column([1.5, np.nan], "float64"))).dtype == "f8"
    durations = Column(np.array([1, 2], "m8[ns]"), "timedelta64[ns]")
    assert np.asarray(xs.array(durations)).dtype == "m8[ns]"


def test_a_sparse_matrix() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for make in sparse.csr_matrix, sparse.coo_array:
        for call in xs.array, xs.share:
            with pytest.raises(xs.InvalidArgumentError, match=r"is sparse: share x\.toarray\(\)"):
                call(make(np.eye(2)))


def test_columns_whose_names_repeat_keep_their_values() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table([[(1 << 53) + 1, 2], [0.5, 1.5]], names=["a", "a"])
    with pytest.raises(xs.InvalidArgumentError, match="column 'a' has integers"):
        xs.array(table)


class SameNames:
    """A data frame as pandas has it: two columns of one name."""

    columns = ("a", "a")

    @property
    def iloc(self) -> Any:
        return self

    def __getitem__(self, at: Any) -> Any:
        return SameNames() if isinstance(at, str) else (np.array([(1 << 53) + 1]), np.array([0.5]))[at[1]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array([[(1 << 53) + 1, 0.5]], dtype)


def test_frames_whose_names_repeat_keep_their_values() -> None:
    with pytest.raises(xs.InvalidArgumentError, match="column 'a' has integers"):
        xs.array(SameNames())
