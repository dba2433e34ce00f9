"""Trees as state_dicts: views of one memory, strides, parameters, leaves that are not arrays, parts of a tree."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator, ValuesView
from typing import Any

import numpy as np
import pytest
from array_peer import content_of

import xpushare as xs
from harness import Child

torch: Any = pytest.importorskip("torch")


def exports() -> int:
    gc.collect()
    return len([row for row in xs.shares() if row["kind"] == "memory" and row["exporter"] == os.getpid()])


def written_through(handle: bytes, writes: list[str], reads: list[str]) -> list[Any]:
    """Write 7 into the first element of some tensors of a tree, and return the first elements of others."""
    found = xs.attach(handle, like="torch")
    for name in writes:
        found[name].view(torch.uint8).reshape(-1)[:1] = 7
    return [found[name].view(torch.uint8).reshape(-1)[0].item() for name in reads]


def laid_out(handle: bytes) -> dict[str, Any]:
    """The strides and the content of the tensors of a tree."""
    found = xs.attach(handle, like="torch")
    return {name: (each.stride(), each.to(torch.float32).tolist()) for name, each in found.items()}


def leaves_seen(handle: bytes) -> list[tuple[str, str]]:
    return [(type(each).__name__, repr(each)) for each in xs.attach(handle)["leaves"]]


def chosen(handle: bytes, only: Any) -> Any:
    return described(xs.attach(handle, only=only))


def described(tree: Any) -> Any:
    """A tree with the first elements of its arrays."""
    if isinstance(tree, dict):
        return {key: described(each) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([described(each) for each in tree])
    return float(np.asarray(tree).reshape(-1)[0]) if isinstance(tree, xs.SharedArray) else tree


def test_tied_weights_are_copied_once_and_stay_tied(peer: Child) -> None:
    weight = torch.nn.Parameter(torch.ones(1000, 64))
    tree = {"embed": weight, "head": weight.detach(), "part": weight.detach()[10:20], "alone": torch.zeros(3)}
    with xs.share(tree, copy=True) as handle:
        assert handle.copied_nbytes == 256_000 + 12
        assert peer.call(written_through, bytes(handle), ["embed"], ["head", "part"]) == [7, 0]
        assert peer.call(written_through, bytes(handle), ["part"], ["part"]) == [7]
        here = xs.attach(handle, like=torch)
        assert here["head"].view(torch.uint8)[10, 0] == here["part"].view(torch.uint8)[0, 0] == 7
        assert weight[0, 0] == 1
        assert torch.equal(here["part"][1:], weight.detach()[11:20])


def test_views_that_interleave_stay_views_and_expose_no_gap() -> None:
    secret = np.arange(64, dtype="u1").reshape(8, 8) + 1
    tree = {"a": secret[:, 0:3], "b": secret[:, 2:4]}  # columns 4 to 7 are nobody's
    with xs.share(tree, copy=True) as handle:
        found = {name: np.asarray(each) for name, each in xs.attach(handle).items()}
        assert {name: each.tolist() for name, each in found.items()} == {k: v.tolist() for k, v in tree.items()}
        found["a"][3, 2] = 0
        assert found["b"][3, 0] == 0
        memory = xs.ipc.memory.open(handle.handles[0])
        assert not set(secret[:, 4:].reshape(-1).tolist()) & set(bytes(memoryview(memory)[: handle.copied_nbytes]))


@pytest.mark.parametrize(
    "name", ["column-major fp8", "channels_last", "column-major bf16", "expanded", "windows", "gaps", "scalar"]
)
def test_a_copy_keeps_strides(peer: Child, name: str) -> None:
    image = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    tensor, strides = {
        "column-major fp8": (lambda x: (x, x.stride()))(torch.arange(12.0).reshape(4, 3).to(torch.float8_e4m3fn).T),
        "channels_last": (lambda x: (x, x.stride()))(image.contiguous(memory_format=torch.channels_last)),
        "column-major bf16": (lambda x: (x, x.stride()))(torch.arange(12.0).reshape(4, 3).to(torch.bfloat16).T),
        "expanded": (torch.arange(3.0).expand(5, 3), (0, 1)),
        "windows": (torch.arange(6.0).unfold(0, 3, 1), (1, 1)),
        "gaps": (torch.arange(60.0).reshape(6, 10)[:, 2:5].T, (1, 3)),
        "scalar": (torch.tensor(3.0), ()),
    }[name]
    with xs.share({"x": tensor}, copy=True) as handle:
        assert peer.call(laid_out, bytes(handle)) == {"x": (strides, tensor.to(torch.float32).tolist())}


def test_numpy_copies_keep_their_order() -> None:
    tree = {"f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "back": np.arange(5)[::-1], "none": np.empty((0, 3))}
    with xs.share(tree, copy=True) as handle:
        found = {name: np.asarray(each) for name, each in xs.attach(handle).items()}
        for name, each in tree.items():
            assert np.array_equal(found[name], each)
        assert found["f"].flags.f_contiguous
        assert found["back"].strides == (-8,)
    with xs.share(tree["f"], copy=True) as handle:
        assert handle.strides == tree["f"].strides


def test_a_state_dict_with_parameters_is_copied(peer: Child) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    with pytest.raises(xs.FeatureNotSupportedError, match=r"at '0\.weight': .* is private"):
        xs.share(dict(model.named_parameters()))
    with xs.share(dict(model.named_parameters()), copy=True) as handle:
        seen = peer.call(laid_out, bytes(handle))
    assert {name: content for name, (_, content) in seen.items()} == {
        name: each.tolist() for name, each in model.state_dict().items()
    }
    with xs.share(model[0].weight, copy=True) as handle:
        assert xs.attach(handle, like=torch).tolist() == model[0].weight.tolist()


def test_a_parameter_in_shared_memory_stays_there_with_copy() -> None:
    memory = torch.from_dlpack(xs.empty(4, "f4"))
    with xs.share({"w": torch.nn.Parameter(memory)}, copy=True) as handle:
        assert handle.copied_nbytes == 0
        xs.attach(handle, like=torch)["w"][0] = 9
        assert memory[0] == 9


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex32_names_the_way_out() -> None:
    with pytest.raises(xs.InvalidArgumentError, match=r"complex32.*view_as_real"):
        xs.share({"x": torch.zeros(3, dtype=torch.complex32)}, copy=True)


LEAVES = [
    b"bytes\0\xff", b"", 1j, complex(math.nan, math.inf), -0.0, np.float32(1.5), np.float64(2.5), np.int8(-3),
    np.bool_(True), np.complex64(1 + 2j), np.datetime64("2026-08-01", "D"), np.str_("text"), np.bytes_(b"b"), 7, "s",
    None, True,
]  # fmt: skip


@pytest.mark.parametrize("arrays", [True, False])
def test_leaves_come_back_as_their_own_types(peer: Child, arrays: bool) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16(1.5)
    leaves = [*LEAVES, bfloat16]
    tree: dict[str, Any] = {"leaves": leaves}
    if arrays:
        tree["array"] = xs.empty(3)
    with xs.share(tree) as handle:
        assert peer.call(leaves_seen, bytes(handle)) == [(type(each).__name__, repr(each)) for each in leaves]
        here = xs.attach(handle)["leaves"]
        assert [type(each) for each in here] == [type(each) for each in leaves]


def test_bytearrays_stay_arrays() -> None:
    with xs.share([bytearray(b"abc")], copy=True) as handle:
        assert content_of(np.asarray(xs.attach(handle)[0])) == b"abc"


@pytest.mark.parametrize("tree", [{}, [], (), {"a": 1, "b": [None, ()]}])
def test_a_tree_without_arrays(peer: Child, tree: Any) -> None:
    with xs.share(tree) as handle:
        assert peer.call(chosen, bytes(handle), None) == tree
        assert handle.nbytes == 0
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(bytes(handle))
    once = xs.share(tree, opens=1)
    assert peer.call(chosen, bytes(once), None) == tree
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(bytes(once))


class MadeOnTheFly(dict[str, Any]):
    """Its values are lists that nobody else holds, whose ids are used again at once."""

    def values(self) -> Any:
        return (list([each]) for each in ValuesView(self))  # noqa: C410  # each one is new


class MadeDeep(dict[str, Any]):
    def values(self) -> Any:
        return ({"x": MadeOnTheFly(y=each)} for each in ValuesView(self))


class Repeated(dict[str, Any]):
    def keys(self) -> Any:
        return [*self, *self]

    def values(self) -> Any:
        return [*ValuesView(self), *ValuesView(self)]


class Iterated(dict[str, Any]):
    def __iter__(self) -> Iterator[str]:
        return iter([*dict.__iter__(self)] * 2)


class Short(dict[str, Any]):
    def values(self) -> Any:
        return [*ValuesView(self)][1:]


@pytest.mark.parametrize("kind", [MadeOnTheFly, MadeDeep])
def test_containers_that_are_made_on_the_fly(peer: Child, kind: type[dict[str, Any]]) -> None:
    tree = kind({f"k{number}": float(number) for number in range(300)})
    tree["array"] = xs.array([5.0])
    with xs.share(tree) as handle:
        found = peer.call(chosen, bytes(handle), None)
    wanted = {f"k{number}": float(number) for number in range(300)} | {"array": 5.0}
    make: Any = (lambda x: [x]) if kind is MadeOnTheFly else lambda x: {"x": {"y": [x]}}
    assert found == {key: make(each) for key, each in wanted.items()}


@pytest.mark.parametrize("kind", [Repeated, Iterated, Short])
def test_keys_that_repeat_are_refused_when_they_are_shared(kind: type[dict[str, Any]]) -> None:
    tree = kind(a=xs.array([1.0]), b=xs.array([2.0]))
    before = exports()
    if kind is Iterated:  # it iterates oddly, and its keys() are right
        with xs.share(tree) as handle:
            assert described(xs.attach(handle)) == {"a": 1.0, "b": 2.0}
    else:
        with pytest.raises(xs.InvalidArgumentError, match="repeat"):
            xs.share(tree)
    assert exports() == before


def model() -> dict[str, Any]:
    def filled(value: float) -> xs.SharedArray:
        memory = xs.malloc_host(32)  # an allocation of its own
        array = memory.as_array((4,), "f8")
        np.asarray(array)[:] = value
        return array

    return {
        "layers": [{"w": filled(0), "b": filled(1)}, {"w": filled(2), "n": 3}],
        "flat.0.w": filled(4),
        "pair": (filled(5), filled(6)),
        "name": "net",
    }


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        (["layers.0"], {"layers": [{"w": 0.0, "b": 1.0}, {"n": 3}], "pair": (None, None), "name": "net"}),
        ("layers.1.w", {"layers": [{}, {"w": 2.0, "n": 3}], "pair": (None, None), "name": "net"}),
        (iter(["flat.0", "pair.1"]), {"layers": [{}, {"n": 3}], "flat.0.w": 4.0, "pair": (None, 6.0), "name": "net"}),
        ([], {"layers": [{}, {"n": 3}], "pair": (None, None), "name": "net"}),
    ],
)
def test_only_opens_these_arrays(only: Any, wanted: Any) -> None:
    with xs.share(model()) as handle:
        assert described(xs.attach(handle, only=only)) == wanted


def opened_by(handle: bytes) -> list[int]:
    """How many arrays, and mappings of memory, there are for a part and for the whole."""
    paths: list[str] = []
    counts = []
    for only in (lambda path: paths.append(path) or path.endswith("w"), None):
        before = len(maps())
        found = xs.attach(handle, only=only)
        counts.append(len(maps()) - before)
        del found
    assert paths == ["layers.0.w", "layers.0.b", "layers.1.w", "flat.0.w", "pair.0", "pair.1"]
    return counts


def maps() -> list[str]:
    with open("/proc/self/maps") as file:
        return [line for line in file if "xpushare" in line or "memfd" in line]


def test_only_takes_a_predicate_and_leaves_other_memory_alone(peer: Child) -> None:
    with xs.share(model()) as handle:
        part, whole = peer.call(opened_by, bytes(handle))
    assert 0 < part < part + whole  # the rest was opened later
    assert whole >= 3


def test_only_leaves_out_devices_that_this_process_does_not_see() -> None:
    """The rest of the tree can be opened, unless the first array's export counts opens."""
    with xs.malloc_device(4096, "mock:0") as memory:
        tree = {"there": memory.as_array(8, "f4"), "here": xs.array([3.0])}
        with xs.share(tree) as handle, Child(env={"ONEAPI_DEVICE_SELECTOR": "native_cpu:*"}) as child:
            with pytest.raises(xs.InvalidArgumentError, match="may not see"):
                child.call(chosen, bytes(handle), None)
            assert child.call(chosen, bytes(handle), "here") == {"here": 3.0}
            with xs.share(tree, opens=1) as once:
                with pytest.raises(xs.InvalidArgumentError, match="may not see"):
                    child.call(chosen, bytes(once), "here")
                assert not once.closed


def test_only_counts_opens_and_gives_them_back(peer: Child) -> None:
    handle = xs.share(model(), opens=2)
    for refused in ["layers.7"], 5, [None], "layer":
        with pytest.raises(xs.InvalidArgumentError):
            xs.attach(handle, only=refused)

    def fails(_array: Any) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        xs.attach(handle, only="pair", like=fails)
    for _ in range(2):
        assert peer.call(chosen, bytes(handle), "pair.0")["pair"] == (5.0, None)
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(bytes(handle), only="pair")
    with xs.share(xs.empty(3)) as one, pytest.raises(xs.InvalidArgumentError, match="one array"):
        xs.attach(one, only="x")
