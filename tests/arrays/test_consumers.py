"""Every producer with every consumer, in two processes: the same bytes, no copy, and they stay when all else is closed.

With XPUSHARE_ZERO_COPY=results the run writes what was found there, for docs/zero-copy.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pairs
import pytest

import harness
import xpushare as xs
from harness import Child
from xpushare import adapters

ALL = [
    (backend, made_by, to)
    for backend in pairs.PRODUCERS
    for made_by in pairs.PRODUCERS[backend]
    for to in pairs.CONSUMERS[backend]
]
SETTINGS: dict[str, dict[str, str | None]] = {  # of processes that differ from this one
    "cuda": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"},
    pairs.EXPANDABLE: dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True"),
}
Call = Callable[..., Any]


def needs(*names: str) -> None:
    """Skip where a library is missing that a name begins with."""
    for module in ("torch", "jax", "pyarrow", "cupy", "numba", "cuda.core", "ml_dtypes"):
        if any(name.startswith(module) for name in names) and not installed(module):
            pytest.skip(f"{module} is not installed")


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the parent package
        return False


def needs_device(backend: str) -> None:
    if not adapters.adapter(backend).devices():
        pytest.skip(adapters.adapter(backend).why_none())


class Processes:
    """Processes that outlive a test: importing the libraries takes longer than all pairs together.

    They are never imported here: JAX objects to every fork of later tests, and garbage collections get slow.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Child] = {}

    def __call__(self, end: str, settings: str) -> Call:
        """`call` of the process at that end, with those settings."""
        child = self._found.get((end, settings))
        if child is None:
            child = self._found[end, settings] = Child(env=SETTINGS.get(settings), timeout=150)
            harness.children.discard(child)
        return child.call

    def kill(self) -> None:
        """After a failure nobody knows what state they are in."""
        for child in self._found.values():
            child.kill()
        self._found.clear()

    def end(self) -> None:
        assert [child.exit() for child in self._found.values()] == [0] * len(self._found)


@pytest.fixture(scope="module")
def process() -> Iterator[Processes]:
    found = Processes()
    yield found
    found.end()


def marked(backend: str, *names: str) -> Any:
    marks = [pytest.mark.cuda, pytest.mark.timeout(300)] if backend == "cuda" else []
    return pytest.param(backend, *names, marks=marks, id="-".join((backend, *names)))


@pytest.mark.parametrize(("backend", "made_by", "to"), [marked(*each) for each in ALL])
def test_zero_copy(process: Processes, record_property: Call, backend: str, made_by: str, to: str) -> None:
    record_property("pair", [backend, made_by, to])
    needs_device(backend)
    needs(made_by, to)
    consumer = process("consumer", backend)
    producer = process("producer", made_by if made_by in SETTINGS else backend)

    def forget() -> None:
        consumer(pairs.forget)
        producer(pairs.forget)

    try:
        handle = producer(pairs.make, backend, made_by)
        found = consumer(pairs.take, backend, to, handle)
        if "refused" in found:  # read-only memory, by a library that knows only writable
            record_property("refused", found["refused"])
            forget()
            return
        assert found["same address"], "the consumer reads from another place: it copied"
        if backend == "native_cpu":
            assert "memfd:xpushare-memory" in found["mapped"]
        content = bytearray(pairs.CONTENT)
        assert consumer(pairs.look) == content
        content[4:8] = b"prod"
        producer(pairs.write, 4, b"prod")
        assert consumer(pairs.look) == content, "what the producer wrote is not there: it is a copy"
        if not found["read only"]:
            content[0:4] = b"cons"
            consumer(pairs.write, 0, b"cons")
            assert producer(pairs.look) == content, "what the consumer wrote is not here: it is a copy"
        consumer(pairs.let_go)
        assert consumer(pairs.look) == content, "the consumer's array did not keep the memory"
        forget()
    except Exception:
        process.kill()
        raise


@pytest.fixture
def with_torch(process: Processes) -> Call:
    """Calls a function in a process that has torch."""
    needs("torch")
    return process("consumer", "native_cpu")


def test_strided_torch(with_torch: Call) -> None:
    with_torch(_strided)


def _strided() -> None:
    import torch

    base = torch.from_dlpack(xs.empty((6, 4), "f4"))
    base[:] = torch.arange(24, dtype=torch.float32).reshape(6, 4)
    view = base.t()[1:3]
    with xs.share(view) as handle:
        assert handle.strides == (4, 16)
        assert np.array_equal(np.asarray(xs.attach(handle)), view.numpy())


def test_named_types_of_torch(with_torch: Call) -> None:
    needs("ml_dtypes")
    with_torch(_bfloat16)


def _bfloat16() -> None:
    import torch

    half = torch.from_dlpack(xs.empty(8, "bfloat16"))
    half[:] = 1.5
    with xs.share(half) as handle:
        assert handle.dtype.name == "bfloat16"
        again = torch.from_dlpack(xs.attach(handle))
        assert again.dtype == torch.bfloat16
        assert again.tolist() == [1.5] * 8


def test_a_tensor_that_needs_gradients_is_shared_by_its_data(with_torch: Call) -> None:
    with_torch(_with_gradient)


def _with_gradient() -> None:
    import torch

    tensor = torch.ones(3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.from_dlpack(xs.zeros(3, "f4")))
    with xs.share(parameter) as handle:  # as a tensor, in place
        xs.attach(handle, like=torch)[1] = 5
        assert parameter.tolist() == [0, 5, 0]
    assert np.asarray(xs.array(parameter)).tolist() == [0, 5, 0]
    for each in (tensor, tensor * 1):
        with pytest.raises(xs.InvalidArgumentError, match="detach"):
            xs.share(each)
        with xs.share(each, copy=True) as handle:
            assert xs.attach(handle, like=torch).tolist() == [1.0] * 3
    with pytest.raises(xs.InvalidArgumentError, match="detach"):
        xs.array(tensor)


def test_the_exchange_api_says_what_dlpack_says(with_torch: Call) -> None:
    with_torch(_both_ways)


def _both_ways() -> None:
    import torch

    from xpushare.arrays import description

    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return  # older than 2.11
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    same = [
        base, base[1:, :, 2], base.permute(2, 0, 1), base[0, 0, 0], torch.empty(0), torch.ones(1, 1).expand(3, 5),
        torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.int64),
        torch.nn.Parameter(torch.ones(2)).detach(),
    ]  # fmt: skip
    seen: list[object] = []
    view = description.view_array
    for tensor in same:
        description.view_array = lambda array: seen.append(array) or view(array)  # type: ignore[attr-defined,func-returns-value]
        short = description.describe(tensor)
        assert short.keep is None or tensor.numel() == 0  # which no view shows
        description.view_array = lambda _array: None  # type: ignore[attr-defined]
        assert description.describe(tensor)._replace(keep=None) == short._replace(
            keep=None
        )  # a capsule may own the memory
    assert len(seen) == len(same)
    description.view_array = view  # type: ignore[attr-defined]

    class Guarded(torch.Tensor):
        def __dlpack__(self, **_options: object) -> object:  # type: ignore[override]
            raise BufferError("guarded")

    refused = {
        "gradient": torch.ones(3, requires_grad=True),
        "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
        "strided": torch.ones(2, 2).to_sparse(),
        "meta": torch.ones(3, device="meta"),
        "as_subclass": torch.ones(3).as_subclass(Guarded),
    }
    for why, tensor in refused.items():
        with pytest.raises(xs.InvalidArgumentError, match=why):
            description.describe(tensor)
    assert description.describe(torch.ones(3, dtype=torch.complex64)).itemsize == 8


def test_private_tensors(with_torch: Call) -> None:
    with pytest.raises(xs.FeatureNotSupportedError, match=r"torch\.Tensor is private"):
        with_torch(lambda: xs.share(pairs.lib("torch").ones(3)))
    with_torch(_copied)


def _copied() -> None:
    import torch

    with xs.share(torch.arange(6).reshape(2, 3), copy=True) as handle:
        assert handle.copied_nbytes == 48
        assert np.asarray(xs.attach(handle)).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_refusal_says_why(process: Processes) -> None:
    """What is read-only goes to whoever takes that; JAX asks for a capsule that cannot say it."""
    needs("jax")
    consumer = process("consumer", "native_cpu")
    with xs.share(xs.empty(16, "f4"), read_only=True) as handle:
        found = consumer(pairs.take, "native_cpu", "jax.dlpack.from_dlpack", bytes(handle))
        assert "BufferError" in found["refused"]
        assert "read-only" in found["refused"]
        assert consumer(pairs.take, "native_cpu", "np.from_dlpack", bytes(handle))["read only"]
        consumer(pairs.forget)


def test_read_only_through_dlpack() -> None:
    with xs.share(xs.empty(4, "f4"), read_only=True) as handle, xs.attach(handle) as array:
        assert not np.from_dlpack(array).flags.writeable
        with pytest.raises(BufferError):  # an unversioned capsule cannot say that it is read-only
            array.__dlpack__()


def test_torch_is_warned_of_read_only_memory() -> None:
    """It takes it for writable, and a write would end the process. Nobody else is warned."""
    needs("torch")
    import torch

    with xs.share(xs.array([1, 2, 3]), read_only=True) as handle, xs.attach(handle) as array:
        for ask in (
            lambda: torch.from_dlpack(array),
            lambda: torch.from_dlpack(array.memory),
            lambda: torch.from_dlpack(array, device="cpu"),
            lambda: torch.from_dlpack(array, copy=False),
            lambda: torch.as_tensor(array),
        ):
            with pytest.warns(UserWarning, match="torch ignores") as told:
                ask()
            assert len(told) == 1
        np.from_dlpack(array)  # warnings are errors
        np.from_dlpack(array, copy=False)
        np.asarray(array)
        with pytest.raises(BufferError):
            torch.utils.dlpack.from_dlpack(array.__dlpack__())
    torch.from_dlpack(xs.array([1, 2, 3]))


def test_without_torch_nobody_is_warned() -> None:
    def ask() -> bool:
        with xs.share(xs.array([1, 2, 3]), read_only=True) as handle, xs.attach(handle) as array:
            array.__dlpack__(max_version=(1, 0))
        return "torch" in sys.modules

    with Child() as child:  # of its own: others may have imported torch
        assert not child.call(ask)


def refuse_negative_strides() -> None:
    import torch

    values = np.asarray(xs.array([[1, 2, 3], [4, 5, 6]]))
    for view in (values[::-1], values[:, ::-2], values[::-1].T):
        with xs.share(view) as handle, xs.share([view, values]) as tree, xs.attach(handle) as array:
            assert np.array_equal(np.from_dlpack(array), view)
            assert np.array_equal(np.from_dlpack(array, copy=True), view)
            for ask in (
                lambda: torch.from_dlpack(array),
                lambda: torch.from_dlpack(array, device="cpu"),
                lambda: torch.from_dlpack(array, copy=True),
                lambda: torch.utils.dlpack.from_dlpack(array.__dlpack__()),
                lambda: xs.attach(handle, like=torch),
                lambda: xs.attach(tree, like=torch),
                lambda: xs.attach(tree, like=torch, only=["0"]),
            ):
                with pytest.raises(BufferError, match="negative strides"):
                    ask()
    for view in (values[:0][::-1], values[:1][::-1]):
        with xs.share([view]) as handle:
            assert xs.attach(handle, like=torch)[0].tolist() == view.tolist()


def test_negative_strides_do_not_end_a_process_with_torch() -> None:
    needs("torch")
    with Child() as child:
        child.call(refuse_negative_strides)


@pytest.mark.parametrize("dtype", ["S3", "M8[s]", ">i4", "V4", [("a", "i4")]])
def test_dlpack_refuses_what_it_has_no_type_for(dtype: object) -> None:
    with pytest.raises(BufferError, match="DLPack"):
        xs.empty(3, dtype).__dlpack__()


def test_dlpack_arguments() -> None:
    array = xs.empty(4, "f4")
    assert array.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        array.__dlpack__(stream=1)
    array.__dlpack__(stream=-1)
    array.__dlpack__(dl_device=(1, 0), copy=False, max_version=(1, 1))


@pytest.mark.parametrize("device", ["native_cpu:0", "mock:0"])
@pytest.mark.parametrize("nbytes", [16, 1 << 20])
def test_dlpack_copies(device: str, nbytes: int) -> None:
    """What the consumer gets by `copy=True` is its own: it may write to it, and nobody else sees that."""
    with xs.malloc_host(nbytes, device) as memory:
        memoryview(memory)[:] = bytes(range(16)) * (nbytes // 16)
        for source in (memory, memory.as_array(nbytes // 4, "i4"), memory.as_array((nbytes // 8, 2), "f4")):
            view, copied = np.from_dlpack(source), np.from_dlpack(source, copy=True)
            assert (copied.dtype, copied.shape) == (view.dtype, view.shape)
            assert copied.tobytes() == view.tobytes()
            assert not np.shares_memory(copied, view)
        handle = xs.ipc.memory.get(memory, read_only=True)
        with xs.ipc.memory.open(handle) as imported:
            copied = np.from_dlpack(imported, copy=True)
            copied[:] = 0
            assert imported.__dlpack__(copy=True)  # nothing is read-only that would take a new consumer
        xs.ipc.memory.put(handle)
        assert memoryview(memory)[1] == 1
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        memory.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="DLPack"):
        xs.empty(3, "S3", device=device).__dlpack__(copy=True)


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


# --- what it is not, and what is not an array


@pytest.mark.parametrize(
    ("library", "make", "advice"),
    [
        ("pyarrow", lambda module: module.table({"x": [1, 2]}), r"pyarrow\.ipc"),
        ("pyarrow", lambda module: module.record_batch({"x": [1, 2]}), r"pyarrow\.ipc"),
        ("pandas", lambda module: module.DataFrame({"x": [1, 2]}), r"to_numpy"),
        ("polars", lambda module: module.DataFrame({"x": [1, 2]}), r"to_numpy"),
    ],
)
def test_tables_say_how(library: str, make: Any, advice: str) -> None:
    """Of libraries that are not here, what stands for their classes."""
    if importlib.util.find_spec(library) is not None:
        table = make(importlib.import_module(library))
    else:
        table = type("DataFrame", (), {"__module__": f"{library}.core.frame"})()
    for verb in (xs.share, xs.ipc.memory.get):
        with pytest.raises(xs.InvalidArgumentError, match=advice):
            verb(table)


@pytest.mark.parametrize(
    "use",
    [
        lambda a: len(a),
        lambda a: a[0],
        lambda a: a.__setitem__(0, 1),
        lambda a: list(a),
        lambda a: 1 in a,
        lambda a: a + 1,
        lambda a: 2.0 * a,
        lambda a: a - a,
        lambda a: a @ a,
        lambda a: a < 3,
    ],
)
def test_what_only_an_arrays_library_does_says_which(use: Any) -> None:
    with pytest.raises(TypeError, match=r"np\.asarray\(a\)"):
        use(xs.empty(3))


def test_arithmetic_with_a_librarys_array_is_the_librarys() -> None:
    array = xs.array([1, 2, 3])
    assert (np.ones(3) + array).tolist() == [2, 3, 4]
    assert (array + np.ones(3)).tolist() == [2, 3, 4]
    assert (np.float64(1) + array).tolist() == [2, 3, 4]
    assert array
    assert array == array


def test_the_handle_that_an_array_came_by() -> None:
    with xs.share(xs.empty(3)) as handle, xs.attach(handle) as array:
        assert array.handle == handle
    with pytest.raises(xs.InvalidArgumentError, match=r"xs\.share"):
        _ = xs.empty(3).handle
    with xs.malloc_device(64, "native_cpu:0") as memory:
        exported = xs.ipc.memory.get(memory)
        with xs.ipc.memory.open(exported) as imported:
            over = imported.as_array(4, "i4")
            with pytest.raises(xs.InvalidArgumentError, match=r"a\.memory\.handle"):
                _ = over.handle
            assert over.memory.handle == exported
        xs.ipc.memory.put(exported)
