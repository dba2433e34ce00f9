"""`empty`, `share`, `attach`: every dtype in every layout, between processes, in place."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_peer import attach_until_refused, content_of, looked_at
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peering import shared_until

import xpushare as xs
from harness import Child
from xpushare.sharing import node
from xpushare.sharing.handle import fields_of

PLAIN = [
    "?",
    "i1",
    "u1",
    "i2",
    "u2",
    "i4",
    "u4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "c16",
    "G",
    ">i4",
    ">f8",
    "S1",
    "S7",
    "U3",
    "V5",
    "M8[s]",
    "M8[25ns]",
    "M8[D]",
    "m8[us]",
    "m8",
    ">M8[s]",
]
STRUCTURED = {
    "packed": np.dtype([("a", "u1"), ("b", "f8")]),
    "aligned": np.dtype([("a", "u1"), ("b", "f8")], align=True),
    "nested": np.dtype([("p", [("x", "f4"), ("y", "f4")]), ("t", "M8[ms]"), ("m", "i2", (2, 3))]),
    "overlapping": np.dtype({"names": ["all", "low"], "formats": ["u8", "u4"], "offsets": [0, 0]}),
    "padded": np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [3], "itemsize": 16}),
    "titled": np.dtype([(("A title", "a"), "i4")]),
    "not ASCII": np.dtype([("größe", "f4")]),
}
NAMED = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
DTYPES = [*PLAIN, *STRUCTURED.values(), *NAMED]

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": lambda a: a,
    "Fortran": lambda a: a.T,
    "reversed": lambda a: a[::-1, :, ::-1],
    "gaps": lambda a: a[1::2, :, ::3],
    "reversed gaps": lambda a: a[::-2, 1, ::-2],
    "broadcast": lambda a: np.broadcast_to(a[0, 0], (3, *a[0, 0].shape)),
    "no dimension": lambda a: a[1, 1, 1, ...],
    "no element": lambda a: a[:, 2:1],
    "inside": lambda a: a[1:2, 1:3, 2:4],
}


def named(dtype: Any) -> Any:
    if isinstance(dtype, str) and dtype in NAMED:
        pytest.importorskip("ml_dtypes")
    return dtype


def filled(shape: tuple[int, ...], dtype: Any) -> Any:
    """A NumPy view of new shared memory with random bytes in it."""
    array = xs.empty(shape, dtype)
    if array.nbytes:
        np.frombuffer(array.memory, "u1")[:] = np.random.default_rng(1).integers(0, 256, array.nbytes, "u1")
    return np.asarray(array)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_in_every_layout(peer: Child, dtype: Any, layout: str) -> None:
    base = filled((4, 3, 5), named(dtype))
    view = LAYOUTS[layout](base)
    with xs.share(view) as handle:
        assert handle.copied_nbytes == 0
        assert (handle.shape, handle.dtype) == (view.shape, view.dtype)
        assert handle.strides == view.strides or not view.size
        assert handle.nbytes == view.nbytes
        content = content_of(view)
        found = peer.call(looked_at, bytes(handle), flip=view.flags.writeable)
    assert found["shape"] == view.shape
    assert found["dtype"] == found["numpy_dtype"] == view.dtype
    assert found["dtype"].isalignedstruct == view.dtype.isalignedstruct
    assert found["content"] == content
    assert found["imported"]
    assert found["nbytes"] == view.nbytes
    if view.size:
        assert found["strides"] == view.strides
        assert "memfd:xpushare-memory" in found["mapped"]
    if view.flags.writeable:  # what the other side wrote is here: it is the same memory
        assert found["writable"]
        flipped = bytes(255 - byte for byte in content)
        assert content_of(view) == flipped
    else:
        assert found["read_only"]
        assert not found["writable"]
        assert content_of(view) == content


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), dtype=st.sampled_from(["u1", ">i2", "f4", "c16", "M8[ns]", STRUCTURED["nested"]]))
def test_any_view(peer: Child, data: st.DataObject, dtype: Any) -> None:
    """Any shape, steps of any sign, axes in any order, dimensions of length one and none, broadcast ones."""
    shape = data.draw(st.lists(st.integers(0, 5), max_size=5).map(tuple))
    view = filled(shape, dtype)
    index = tuple(
        slice(
            data.draw(st.integers(-6, 6)),
            data.draw(st.integers(-6, 6)),
            data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3])),
        )
        for _ in shape
    )
    view = view[(*index, ...)].transpose(data.draw(st.permutations(range(len(shape)))))
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (data.draw(st.integers(1, 3)), *view.shape))
    with xs.share(view) as handle:
        assert handle.nbytes == view.nbytes
        assert handle.copied_nbytes == 0
        found = peer.call(looked_at, bytes(handle))
    assert (found["shape"], found["dtype"], found["content"]) == (view.shape, view.dtype, content_of(view))


@settings(max_examples=200, deadline=None)
@given(shape=st.lists(st.integers(0, 4), max_size=6).map(tuple), dtype=st.sampled_from(PLAIN))
def test_empty(shape: tuple[int, ...], dtype: str) -> None:
    with xs.empty(shape, dtype) as array:
        values = np.asarray(array)
        assert array.shape == values.shape == shape
        assert array.dtype == values.dtype == np.dtype(dtype)
        assert array.nbytes == values.nbytes == array.memory.nbytes
        assert array.strides == np.empty(shape, dtype).strides or 0 in shape
        assert not array.is_imported
        assert not array.read_only
        assert array.device == xs.Device("native_cpu:0")


def test_empty_is_zero_and_writable() -> None:
    values = np.asarray(xs.empty((2, 3)))
    assert values.dtype == np.float64
    assert not values.any()
    values[:] = 1


def test_statistics_are_those_of_the_memory() -> None:
    with xs.empty(4, isolated=True) as array, xs.share(array):
        found = array.statistics()
        assert found == array.memory.statistics()
        assert [each["nbytes"] for each in found["exports"]] == [32]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, -1), "f4"),
        ("ab", "f4"),
        (1.5, "f4"),
        (2, "no such type"),
        (2, "i4,("),
        (2, "\ud800"),
        (2, "__name__"),  # of ml_dtypes
        (2, [("a", "i4"), ("a", "i4")]),
        (2, {"a": ("i4", 1 << 99)}),
        (2, object),
        (2, [("a", "O")]),
        ((1,) * 65, "u1"),
        (2, "(3,)i4"),
    ],
)
def test_empty_refuses(shape: Any, dtype: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        xs.empty(shape, dtype)
    with xs.malloc_host(64) as memory, pytest.raises(xs.InvalidArgumentError):
        memory.as_array(shape, dtype)


def test_empty_too_large() -> None:
    with pytest.raises(xs.OutOfMemoryError):
        xs.empty((1 << 40, 1 << 40))


# --- what cannot be shared in place


def test_private_array_says_what_to_do() -> None:
    with pytest.raises(xs.FeatureNotSupportedError) as caught:
        xs.share(np.ones(3))
    for words in ("numpy.ndarray", "private", "xs.empty", "copy=True"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "private", [np.arange(12.0).reshape(3, 4)[:, ::2], b"twelve bytes", bytearray(12), np.float32(3).reshape(())]
)
def test_copy(peer: Child, private: Any, caplog: pytest.LogCaptureFixture) -> None:
    wanted = np.asarray(memoryview(private))
    with caplog.at_level(logging.INFO, "xpushare"), xs.share(private, copy=True) as handle:
        assert handle.copied_nbytes == wanted.nbytes
        assert f"{wanted.nbytes} bytes copied" in repr(handle)
        assert f"copied {wanted.nbytes} bytes" in caplog.text
        assert xs.ArrayHandle(bytes(handle)).copied_nbytes == wanted.nbytes
        gc.collect()  # the export alone owns the copy
        found = peer.call(looked_at, str(handle))
    assert (found["shape"], found["dtype"], found["content"]) == (wanted.shape, wanted.dtype, wanted.tobytes())


class Fleeting:
    """An array whose memory nothing owns but what its protocol gives out, as NumPy's scalars do."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        values = np.arange(1000.0)
        owner = type("Owner", (), {"__del__": lambda _self: values.fill(-1)})()
        return {**values.__array_interface__, "owner": owner}


def test_a_copy_is_made_of_memory_that_its_description_owns() -> None:
    with xs.share({"one": Fleeting(), "two": Fleeting()}, copy=True) as handle:
        tree = xs.attach(handle)
        for each in tree.values():
            assert np.array_equal(np.asarray(each), np.arange(1000.0))
    assert np.array_equal(np.asarray(xs.array(Fleeting())), np.arange(1000.0))


def test_copy_copies_nothing_that_is_shared() -> None:
    array = xs.empty(3)
    for one in (array, np.asarray(array), array.memory):
        with xs.share(one, copy=True) as handle:
            assert handle.copied_nbytes == 0


def test_virtual_memory_is_copied_or_refused() -> None:
    """Addresses cannot be exported, the physical memory behind them can: an array over a VirtualRange is private."""
    with xs.VirtualRange(1 << 16, "native_cpu:0") as place:
        place.map(xs.PhysicalMemory(1 << 16, "native_cpu:0"))
        array = place.as_array(3, "i4")
        np.asarray(array)[:] = [1, 2, 3]
        for one in (array, np.asarray(array)):
            with pytest.raises(xs.FeatureNotSupportedError):
                xs.share(one)
            with xs.share(one, copy=True) as handle:
                assert handle.copied_nbytes == 12
                assert np.asarray(xs.attach(handle)).tolist() == [1, 2, 3]


def test_no_elements_are_never_private() -> None:
    for shape in [(0,), (3, 0)]:
        with xs.share(np.empty(shape, "i4")) as handle, xs.attach(handle) as array:
            assert array.shape == shape
            assert handle.copied_nbytes == 0


def test_imported_array_goes_on_by_its_handle(peer: Child) -> None:
    handle = peer.call(_made)
    with xs.attach(handle) as array:
        for one in (array, np.asarray(array)):
            with xs.share(one) as passed_on:
                assert passed_on.handle == array.handle.handle
            with xs.share(one, copy=True) as again:
                assert again.copied_nbytes == 24
                assert np.asarray(xs.attach(again)).tolist() == [1, 2, 3]


def _made() -> bytes:
    from harness import kept

    kept["made"] = array = xs.empty(3)
    np.asarray(array)[:] = [1, 2, 3]
    return bytes(xs.share(array))


@pytest.mark.parametrize(
    "wrong", [np.array([object()]), [1, 2, {3}], "text", 3, None, np.ma.masked_array([1, 2], [True, False])]
)
def test_share_refuses(wrong: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        xs.share(wrong, copy=True)


@pytest.mark.parametrize("opens", [0, -1, 1 << 31, 1.5, "2"])
def test_opens_refuses(opens: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError, match="opens"):
        xs.share(xs.empty(1), opens=opens)


def test_host_arrays_have_no_streams() -> None:
    array = xs.empty(1)
    with pytest.raises(xs.InvalidArgumentError, match="stream"):
        xs.share(array, stream=1)
    with xs.share(array, stream=-1) as handle, pytest.raises(xs.InvalidArgumentError, match="stream"):
        xs.attach(handle, stream=1)


# --- handles


def test_handle_is_a_value() -> None:
    array = xs.empty((2, 3), "i2")
    handle, second = xs.share(array), xs.share(array)
    assert handle != second
    raw = bytes(handle)
    for same in (raw, bytearray(raw), memoryview(raw), np.frombuffer(raw, "u1"), str(handle), handle):
        parsed = xs.ArrayHandle(same)
        assert parsed == handle
        assert hash(parsed) == hash(handle)
        assert (parsed.shape, parsed.dtype, parsed.strides, parsed.nbytes) == ((2, 3), np.dtype("i2"), (6, 2), 12)
    assert pickle.loads(pickle.dumps(handle)) == handle
    assert str(handle).isascii()
    assert not set(str(handle)) & set("+/= \n")
    assert isinstance(handle.handle, xs.ipc.Handle)
    assert handle.handle.nbytes == 12
    assert "(2, 3) int16 on native_cpu" in repr(handle)
    assert handle != bytes(handle)
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(handle)
        with pytest.raises(TypeError):
            duplicate(array)
    handle.close()
    second.close()


def test_read_only(peer: Child) -> None:
    array = xs.empty(4, "u1")
    np.asarray(array)[:] = [1, 2, 3, 4]
    with xs.share(array, read_only=True) as handle:
        assert handle.read_only
        found = peer.call(looked_at, handle)
        assert found["read_only"]
        assert not found["writable"]
        with xs.attach(handle) as here, pytest.raises(ValueError, match="read-only"):
            np.asarray(here)[0] = 1


def test_close_withdraws(peer: Child) -> None:
    array = xs.empty(1)
    with xs.share(array) as handle, xs.attach(handle) as attached:
        raw = bytes(handle)
        peer.call(looked_at, raw)
    assert handle.closed
    handle.close()
    for refused in (lambda: peer.call(looked_at, raw), lambda: xs.attach(raw)):
        with pytest.raises(xs.HandleExpiredError, match="put"):
            refused()
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        xs.attach(handle)
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        handle.__enter__()
    assert attached.closed


def test_closing_a_parsed_copy_withdraws_nothing(peer: Child) -> None:
    array = xs.empty(1)
    with xs.share(array) as handle:
        for parsed in (xs.ArrayHandle(bytes(handle)), pickle.loads(pickle.dumps(handle))):
            parsed.close()
            assert parsed.closed
        peer.call(_close_parsed, bytes(handle))
        peer.call(looked_at, bytes(handle))


def _close_parsed(raw: bytes) -> None:
    with xs.ArrayHandle(raw):
        pass


def test_losing_the_handle_withdraws_nothing(peer: Child) -> None:
    array = xs.empty(1)
    with pytest.warns(ResourceWarning, match=r"unclosed <ArrayHandle \(1,\) float64 .* is lost") as told:
        raw = bytes(xs.share(array))
    assert isinstance(told[0].source, xs.ArrayHandle), "tracemalloc knows where it was made"
    del array
    gc.collect()
    peer.call(looked_at, raw)
    xs.ipc.memory.put(xs.ArrayHandle(raw).handle)
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(raw)


def test_an_export_that_ends_by_itself_may_be_lost() -> None:
    array = xs.empty(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"opens": 1}, {"ttl": 60}):
            raw = bytes(xs.share(array, **options))
            xs.attach(raw).close()
            xs.ArrayHandle(raw)  # nobody owns the export by that
        xs.share(array).close()
        withdrawn = xs.share(array)
        xs.ipc.memory.put(withdrawn.handle)
        del withdrawn
        gc.collect()


def test_the_log_says_once_where_lost_exports_pile_up() -> None:
    text = run(
        "import logging, warnings, xpushare as xs\n"
        "logging.basicConfig()\n"
        "warnings.simplefilter('ignore')\n"
        "array = xs.empty(1)\n"
        "for _ in range(90): bytes(xs.share(array))\n"
        "for each in [xs.share(array) for _ in range(90)]: each.close()\n"
        "print('so far', flush=True)\n"
        "for _ in range(200): bytes(xs.share(array))\n"
    )
    assert text.count("100 exports of xs.share are held") == 1
    assert text.index("so far") < text.index("100 exports")


def test_tracemalloc_shows_where_a_lost_export_was_made(tmp_path: Path) -> None:
    script = tmp_path / "lost.py"
    script.write_text("import xpushare as xs\narray = xs.empty(1)\nbytes(xs.share(array))\nheld = xs.share(array)\n")
    text = run("-X", "tracemalloc=5", "-W", "default::ResourceWarning", str(script))
    assert text.count("ResourceWarning: unclosed <ArrayHandle") == 1, "what the end of the process ends is not lost"
    assert "bytes(xs.share(array))" in text


def run(*arguments: str) -> str:
    """A program's output, stderr included."""
    command = [sys.executable, *(arguments if len(arguments) > 1 else ("-c", *arguments))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_ttl_ends_the_export(peer: Child) -> None:
    table = node.current().table()
    table.sweep(everything=True)
    before = table.statistics()["exports"]
    array = xs.empty(1)
    made = time.monotonic()
    handle, counted = xs.share(array, ttl=0.3), xs.share(array, ttl=60, opens=1)
    with contextlib.suppress(xs.HandleExpiredError):  # where this machine is very slow
        peer.call(looked_at, handle)
        assert xs.attach(handle).shape == (1,)
    peer.call(looked_at, counted)
    while time.monotonic() < made + 0.5:
        time.sleep(0.01)
    for attach in (peer.call, lambda _looked_at, handle: xs.attach(handle)):
        with pytest.raises(xs.HandleExpiredError, match="ttl has passed"):
            attach(looked_at, handle)
    with pytest.raises(xs.HandleExpiredError, match="opens are used up"):
        peer.call(looked_at, counted)
    table.sweep(everything=True)
    assert table.statistics()["exports"] == before
    with pytest.raises(xs.HandleExpiredError, match="ttl has passed"):
        xs.attach(handle)
    handle.close()


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e30, "soon", []])
def test_a_ttl_is_a_number_of_seconds(ttl: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError, match="ttl is a number of seconds"):
        xs.share(xs.empty(1), ttl=ttl)


def test_the_export_holds_the_array(peer: Child) -> None:
    array = xs.empty(3)
    np.asarray(array)[:] = 5
    with xs.share(array) as handle:
        array.close()
        assert peer.call(looked_at, handle)["content"] == np.full(3, 5.0).tobytes()
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            xs.share(array)


def test_handle_of_memory_is_no_array() -> None:
    with xs.malloc_device(64, "native_cpu:0") as memory:
        handle = xs.ipc.memory.get(memory)
        with pytest.raises(xs.InvalidHandleError, match=r"ipc\.memory\.open"):
            xs.attach(bytes(handle))
        xs.ipc.memory.put(handle)


# --- counted handles


def test_opens_count_exactly_between_processes() -> None:
    array = xs.empty(1 << 16)
    np.asarray(array)[:] = 7
    before = node.current().table().statistics()["exports"]
    handle = xs.share(array, opens=23)
    with Child() as one, Child() as two, Child() as three:
        children = (one, two, three)
        pending = [child.start(attach_until_refused, bytes(handle), 20) for child in children]
        counts = [each.result() for each in pending]
    assert sum(counts) == 23
    with pytest.raises(xs.HandleExpiredError, match="used up"):
        xs.attach(handle)
    table = node.current().table()
    table.sweep(everything=True)
    assert table.statistics()["exports"] == before
    handle.close()  # it has withdrawn itself: nothing is left to do, and nothing wrong


def test_a_share_that_fails_exports_nothing() -> None:
    """The message is too long; a tree's last array cannot be exported."""
    table, plain = node.current().table(), xs.empty(4)
    before = table.statistics()["exports"]
    with pytest.raises(xs.InvalidArgumentError):
        xs.share([xs.empty(2), "x" * (64 << 20)])
    with xs.VirtualRange(1 << 21) as place, xs.PhysicalMemory(1 << 21) as physical:
        place.map(physical)
        mapped = place.as_array(8, "u1")
        with pytest.raises(xs.FeatureNotSupportedError):
            xs.share([plain, xs.empty(4), mapped])
        del mapped
    gc.collect()
    assert table.statistics()["exports"] == before


def test_opens_in_the_own_process() -> None:
    array = xs.empty(4)
    handle = xs.share(array, opens=2)
    first, second = xs.attach(handle), xs.attach(str(handle))
    with pytest.raises(xs.HandleExpiredError, match="used up"):
        xs.attach(handle)
    np.asarray(first)[:] = 3
    assert np.asarray(second).tolist() == [3] * 4


def test_used_up_exports_let_their_memory_go(peer: Child) -> None:
    table = node.current().table()
    table.sweep(everything=True)
    before, exports = len(node.current().allocations.all()), table.statistics()["exports"]
    for _ in range(50):
        with xs.empty(1, "u1") as array:
            handle = xs.share(array, opens=1)
        peer.call(looked_at, bytes(handle))
        del array
    table.sweep(everything=True)
    gc.collect()
    assert table.statistics()["exports"] == exports
    assert len(node.current().allocations.all()) <= before


def test_a_refused_attach_takes_no_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xs.Device("mock:0")._adapter, "imports", lambda _device, _physical: {})
    with xs.share(xs.empty(1), opens=1) as handle:
        with pytest.raises(xs.FeatureNotSupportedError):
            xs.attach(handle, device="mock:0")
        with pytest.raises(xs.InvalidArgumentError):
            xs.attach(handle, device="native_cpu:7")
        with xs.attach(handle):
            pass


def test_a_failed_attach_gives_no_other_export_an_open() -> None:
    def attach() -> None:
        handle = xs.share(xs.empty(1), opens=1)
        counted: list[xs.ArrayHandle] = []

        def consumer(_array: object) -> None:  # the open is used up, so the export ends at the next one
            counted.extend(shared_until(fields_of(handle.handle).entry))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            xs.attach(handle, like=consumer)
        xs.attach(counted[-1]).close()
        with pytest.raises(xs.HandleExpiredError, match="used up"):
            xs.attach(counted[-1])
        for each in counted:
            each.close()

    with Child() as child:
        child.call(attach)


# --- SharedArray


def test_use_after_close() -> None:
    array = xs.empty(2)
    view = np.asarray(array)
    array.close()
    array.close()
    assert array.closed
    assert repr(array) == "<SharedArray closed>"
    for use in (
        lambda: array.device,
        lambda: array.memory,
        lambda: array.ptr,
        array.__dlpack__,
        lambda: xs.share(array),
    ):
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            use()
    view[:] = 1  # the view keeps the memory


def test_made_by_functions_only() -> None:
    with pytest.raises(TypeError, match="empty"):
        xs.SharedArray()


def test_shapes_and_types_of_no_use() -> None:
    for shape in ((2**64, 0), (2**62, 2**62, 0)):
        with pytest.raises(xs.InvalidArgumentError, match="64 bits"):
            xs.empty(shape)
    assert np.asarray(xs.empty((2**40, 0))).shape == (2**40, 0)
    with pytest.raises(BufferError, match="DLPack has no type for complex256"):
        xs.empty(3, "complex256").__dlpack__()
    with pytest.raises(BufferError, match="without bytes"):
        memoryview(xs.empty(3, np.dtype([])))
