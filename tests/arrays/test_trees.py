"""`share` and `attach` of trees: dicts, lists, tuples and named tuples of arrays."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import logging
import math
import os
import pickle
import re
import subprocess
import sys
import typing
import warnings
from typing import Any

import numpy as np
import pytest
from array_peer import kept_tree, remember, tree_seen

import xpushare as xs
from harness import Child, fd_count, new_fds, open_fds
from xpushare.arrays import containers
from xpushare.objects.message import content_of
from xpushare.sharing import node

Point = collections.namedtuple("Point", "x y")


class Layer(typing.NamedTuple):
    weight: Any
    bias: Any


def filled(value: float, shape: Any = 4, dtype: Any = "f8") -> xs.SharedArray:
    kind = np.dtype(dtype)
    lengths = (shape,) if isinstance(shape, int) else shape
    array = xs.malloc_host(math.prod(lengths) * kind.itemsize).as_array(lengths, kind)  # an allocation of its own
    np.asarray(array)[...] = value
    return array


def exports() -> int:
    table = node.current().table_if_any
    return 0 if table is None else len(table.exports())


TREES: dict[str, Any] = {
    "a dict": {"a": 0},
    "order of keys": {"z": 0, "a": 1, "m": 2},
    "keys of both types": {1: 0, "1": 1, -(2**63): 2, "": 3, "ä\ud800": 4},
    "nested": {"a": [0, (1, {"b": [2, []]}), {}], "c": ((),)},
    "leaves": [0, None, True, False, 0.5, -0.0, math.inf, "text", "\udfff\ud800", 2**63 - 1, -(2**63), 0, ""],
    "one array many times": [0, 0, {"a": 0}, (0, 1, 1)],
    "a list": [0],
    "a tuple": (0, (1,)),
}


def grown(tree: Any, arrays: list[Any]) -> Any:
    """The tree with arrays where it has the first few numbers."""
    if type(tree) is int and 0 <= tree < len(arrays):
        return arrays[tree]
    if isinstance(tree, dict):
        return {key: grown(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([grown(value, arrays) for value in tree])
    return tree


@pytest.mark.parametrize("name", TREES)
def test_a_tree_comes_back(peer: Child, name: str) -> None:
    arrays = [filled(number) for number in range(5)]
    tree = grown(TREES[name], arrays)
    with xs.share(tree) as handle:
        for message in (bytes(handle), str(handle), handle):
            seen = peer.call(tree_seen, message)
            assert repr(seen) == repr(grown(TREES[name], [float(number) for number in range(5)]))
        attached = xs.attach(handle)
        assert repr(tree_of_first(attached)) == repr(seen)


def tree_of_first(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: tree_of_first(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([tree_of_first(value) for value in tree])
    return float(np.asarray(tree)[0]) if isinstance(tree, xs.SharedArray) else tree


def test_the_handle(peer: Child) -> None:
    array = filled(1, (2, 3), "f4")
    with xs.share({"a": array, "b": [filled(2)]}) as handle:
        assert isinstance(handle, xs.ArrayHandle)
        assert [each.nbytes for each in handle.handles] == [24, 32]
        assert (handle.nbytes, handle.read_only, handle.copied_nbytes) == (56, False, 0)
        for name in ("handle", "event", "shape", "strides", "dtype"):
            with pytest.raises(AttributeError, match="tree"):
                getattr(handle, name)
        assert xs.ArrayHandle(bytes(handle)) == xs.ArrayHandle(str(handle)) == handle
        again = pickle.loads(pickle.dumps(handle))
        assert (again, hash(again), bytes(again)) == (handle, hash(handle), bytes(handle))
        assert "tree of 2 arrays in 2 allocations" in repr(handle)
        found = xs.attach(again)
        assert found["a"].handle == handle
        again.close()  # not the owner: it closes only itself
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            xs.attach(again)
        assert repr(peer.call(tree_seen, bytes(handle))) == "{'a': 1.0, 'b': [2.0]}"
    with pytest.raises(xs.HandleExpiredError):
        peer.call(tree_seen, bytes(handle))
    assert "closed" in repr(handle)


def test_unpickling_a_handle_never_raises() -> None:
    with xs.share([filled(1)]) as handle:
        data = pickle.dumps(handle)
        found = subprocess.run(  # a fresh process has loaded nothing that reads handles of trees
            [sys.executable, "-c", "import pickle, sys; print(pickle.load(sys.stdin.buffer).handles)"],
            input=data, capture_output=True, check=True,
        )  # fmt: skip
        assert found.stdout.decode().strip() == repr(handle.handles)
    raw = bytes(handle)
    for at in (0, 100, len(raw) - 1):
        altered = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        garbled = pickle.loads(data.replace(raw, altered))
        assert isinstance(garbled, xs.ArrayHandle)
        assert (bytes(garbled), bytes(pickle.loads(pickle.dumps(garbled)))) == (altered, altered)
        assert "none here" in repr(garbled)
        for use in (xs.attach, lambda garbled: garbled.handles, lambda garbled: garbled.nbytes):
            with pytest.raises(xs.InvalidHandleError):
                use(garbled)


def test_writes_are_seen_and_what_is_attached_stays(peer: Child) -> None:
    array = filled(1)
    with xs.share([array]) as handle:
        peer.call(remember, bytes(handle), "tree")
    np.asarray(array)[:] = 7
    assert peer.call(kept_tree, "tree") == [7.0]


def test_one_export_an_allocation() -> None:
    slab = xs.malloc_host(1 << 16)
    parts = {str(at): slab.as_array(8, "f8", at * 64) for at in range(1, 100)}
    view = np.asarray(slab.as_array(16, "f8", 0))[::-2]  # another library's, from the end
    before = exports()
    with xs.share({"parts": parts, "view": view, "other": filled(2)}) as handle:
        assert exports() - before == len(handle.handles) == 2
        assert handle.handles[0].nbytes == 99 * 64 + 64 - 8  # from the first byte of `view` to the last one of "99"
        found = xs.attach(handle)
        assert len({each.memory.ptr for each in found["parts"].values()}) == 1
        np.asarray(found["parts"]["7"])[:] = 5
        assert np.asarray(parts["7"]).tolist() == [5.0] * 8
        assert found["view"].strides == (-16,)
        assert np.shares_memory(np.asarray(found["view"]), np.asarray(found["view"]))
    assert exports() == before


def test_nothing_waits_for_the_garbage_collector(peer: Child) -> None:
    array = filled(1)
    gc.disable()
    try:
        with xs.share([array, {"a": array}, Point(1, array)], opens=1) as handle:
            xs.attach(handle)
        del array
        message = peer.call(_shared_there, 3)
        tree = xs.attach(message)
        held = mapped()
        del tree
        assert held - mapped() == 3
    finally:
        gc.enable()
    peer.call(_forget)


def test_open_once_at_the_other_end(peer: Child) -> None:
    slab = xs.malloc_host(1 << 16)
    before = peer.call(fd_count)
    with xs.share([slab.as_array(8, "f8", at * 64) for at in range(200)]) as handle:
        peer.call(remember, bytes(handle), "tree")
        assert peer.call(_mappings_of, "tree") == 1
        assert peer.call(fd_count) - before <= 8  # the peer, not one an array
        peer.call(_forget)


def _mappings_of(name: str) -> int:
    from harness import kept

    found: Any = kept[name]
    return len({each.memory.ptr for each in found})


def _forget() -> None:
    from harness import kept

    kept.clear()
    gc.collect()


def test_access_is_kept() -> None:
    writable = filled(1)
    fixed = np.asarray(writable)[:2]
    fixed.flags.writeable = False
    with xs.share([writable, fixed]) as handle:
        assert [each.read_only for each in handle.handles] == [False, True]
        first, second = xs.attach(handle)
        assert (first.read_only, second.read_only) == (False, True)
    with xs.share([writable, {"a": fixed}], read_only=True) as handle:
        assert [each.read_only for each in handle.handles] == [True]
        assert handle.read_only
        assert not np.asarray(xs.attach(handle)[0]).flags.writeable


def test_named_tuples(peer: Child) -> None:
    tree = {"layers": [Layer(filled(1), None), Layer(filled(2), 3)], "point": Point(1, filled(3))}
    with xs.share(tree) as handle:
        found = xs.attach(handle)
        assert type(found["point"]).__name__ == "Point"
        assert found["point"]._fields == ("x", "y")
        assert type(found["point"]) is not Point
        assert type(found["layers"][0]) is type(found["layers"][1])
        found = xs.attach(handle, types=[Point, Layer])
        assert (type(found["point"]), type(found["layers"][0])) == (Point, Layer)
        assert found["layers"][0].bias is None
        assert peer.call(tree_seen, bytes(handle))["point"]._asdict() == {"x": 1, "y": 3.0}
        with pytest.raises(xs.InvalidArgumentError, match="other fields"):
            xs.attach(handle, types=[collections.namedtuple("Point", "y x")])
        for wrong in (tuple, int, "Point"):
            with pytest.raises(xs.InvalidArgumentError, match="types"):
                xs.attach(handle, types=[wrong])


@pytest.mark.parametrize("tree", [["scalar"], {"a": "scalar", "b": "vector"}, ("scalar", "scalar")], ids=str)
def test_arrays_without_dimensions(tree: Any, peer: Child) -> None:
    made = {"scalar": xs.array(3.0), "vector": xs.array([1.0, 2.0])}
    leaves = tree.values() if isinstance(tree, dict) else tree
    arrays = [made[name] for name in leaves]
    with xs.share(dict(zip(tree, arrays, strict=True)) if isinstance(tree, dict) else arrays) as handle:
        found = peer.call(tree_seen, bytes(handle))
        seen = list(found.values()) if isinstance(found, dict) else found
        assert seen == [{"scalar": 3.0, "vector": 1.0}[name] for name in leaves]


def test_subclasses() -> None:
    ordered = collections.OrderedDict(b=filled(1), a=filled(2))
    with xs.share(collections.defaultdict(list, x=ordered)) as handle:
        found = xs.attach(handle)
        assert (type(found), type(found["x"]), list(found["x"])) == (dict, dict, ["b", "a"])

    class MyList(list[Any]):
        pass

    class MyTuple(tuple[Any, ...]):
        pass

    for wrong in (MyList([filled(1)]), [MyTuple([1]), filled(1)]):
        with pytest.raises(xs.InvalidArgumentError, match="another kind"):
            xs.share(wrong)


def test_what_is_no_tree() -> None:
    good = filled(1)
    cycle: list[Any] = [good]
    cycle.append(cycle)
    doubled: Any = [good]
    for _ in range(40):
        doubled = [doubled, doubled]
    deep: Any = good
    for _ in range(64):
        deep = [deep]
    other = xs.share(good, ttl=60)
    before = exports()
    with xs.share(deep) as handle:
        xs.attach(handle)
    for tree, message in (
        ([deep], "depth"),
        (cycle, "depth"),
        (doubled, "64 MiB"),
        ({1.5: good}, "keys"),
        ({True: good}, "keys"),
        ({None: good}, "keys"),
        ({2**63: good}, "keys"),
        ([2**63, good], r"64 bits: from -\(2\*\*63\) to 2\*\*63 - 1"),
        ([{1, 2}, good], "set"),
        ([object(), good], "object"),
        ([np.array([object()])], "Python objects"),
        ([other], "ArrayHandle already"),
    ):
        with pytest.raises(xs.InvalidArgumentError, match=message):
            xs.share(tree)
    with pytest.raises(xs.FeatureNotSupportedError, match="private") as caught:
        xs.share({"a": [good, {"b": np.zeros(3)}]})
    assert str(caught.value).startswith("at 'a.1.b': the memory of this numpy.ndarray is private")
    imported = xs.attach(other)
    with pytest.raises(xs.InvalidArgumentError, match="of several"):
        xs.share([good, imported])
    assert exports() == before
    other.close()


def test_64_mib() -> None:
    array = filled(1)
    text = "x" * (32 << 20)
    with xs.share([array, text]) as handle:
        assert len(bytes(handle)) > 32 << 20
        assert xs.attach(bytes(handle))[1] == text
    before = exports()
    with pytest.raises(xs.InvalidArgumentError, match="64 MiB"):
        xs.share([array, text, text])
    assert exports() == before


def test_copies(caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")
    tree = {str(number): torch.full((3, number), float(number)) for number in range(1, 60)}
    tree["t"] = torch.arange(6.0).reshape(2, 3).T
    shared = filled(9)
    fds = fd_count()
    with caplog.at_level(logging.INFO, "xpushare"), xs.share({**tree, "own": shared, "n": 1}, copy=True) as handle:
        copied = sum(each.nbytes for each in tree.values())
        assert handle.copied_nbytes == copied
        assert str(copied) in caplog.text
        assert len(handle.handles) == 2  # what was copied is one allocation
        assert fd_count() - fds <= 2
        found = xs.attach(handle)
        for name, tensor in tree.items():
            assert np.array_equal(np.asarray(found[name]), tensor.numpy())
        assert all(found[name].ptr % 64 == 0 for name in tree)
        np.asarray(found["own"])[0] = 3
        assert np.asarray(shared)[0] == 3
        imported = found["own"]
        with xs.share([imported], copy=True) as again:
            assert again.copied_nbytes == 32
            assert np.asarray(xs.attach(again)[0])[0] == 3


def test_libraries_arrays_in_place() -> None:
    torch = pytest.importorskip("torch")
    memory = xs.malloc_host(1 << 12)
    tensor = torch.from_dlpack(memory).view(torch.float32)[:64].reshape(8, 8)
    weight = torch.nn.Parameter(tensor)
    with xs.share({"w": weight.detach(), "row": tensor[3], "column": tensor[:, 2], "none": tensor[:0]}) as handle:
        assert handle.copied_nbytes == 0
        found = xs.attach(handle, like=torch)
        tensor[:] = 4
        assert all(bool((each == 4).all()) for each in found.values())
        assert found["column"].stride() == (8,)
        assert found["row"].untyped_storage().data_ptr() == found["w"].data_ptr() + 96
        assert found["none"].shape == (0, 8)


def test_like() -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    tree = {"a": filled(1, 3, "f4"), "b": [filled(2, 3, "f4")]}
    with xs.share(tree) as handle:
        for like, kind in (
            (torch, torch.Tensor),
            ("torch", torch.Tensor),
            (np, np.ndarray),
            ("numpy", np.ndarray),
            ("jax", jax.Array),
            (jax, jax.Array),
            (lambda array: array.nbytes, int),
        ):
            found = xs.attach(handle, like=like)
            assert isinstance(found["a"], kind)
            assert isinstance(found["b"][0], kind)
        for wrong in ("tensorflow", 3, os):
            with pytest.raises(xs.InvalidArgumentError, match="like"):
                xs.attach(handle, like=wrong)
    with xs.share(tree["a"]) as single:
        assert xs.attach(single, like="torch").tolist() == [1.0] * 3
        assert isinstance(xs.attach(bytes(single), like=np), np.ndarray)
    both = [tree["a"], tree["a"]]
    with xs.share(both) as handle:
        first, second = xs.attach(handle, like=torch)
        assert first is second


def test_opens_count_the_whole(peer: Child) -> None:
    before = exports()
    tree = [filled(1), filled(2), filled(3)]
    handle = xs.share(tree, opens=2)
    assert exports() - before == 3
    message = bytes(handle)
    assert peer.call(tree_seen, message) == [1.0, 2.0, 3.0]
    with pytest.raises(ZeroDivisionError):
        xs.attach(message, like=lambda _array: 1 / 0)
    for wrong in ({"types": [int]}, {"types": 5}, {"types": None}, {"stream": 7}, {"stream": "s"}):
        with pytest.raises(xs.InvalidArgumentError):
            xs.attach(message, **wrong)
    attached = xs.attach(message)
    for attach in (xs.attach, lambda raw: peer.call(tree_seen, raw)):
        with pytest.raises(xs.HandleExpiredError, match="used up"):
            attach(message)
    del attached
    gc.collect()
    xs.share(filled(0), ttl=60).close()  # what is over ends at the next export
    assert exports() == before


def test_failed_attaches_elsewhere_give_the_open_back(peer: Child) -> None:
    handle = xs.share([filled(1), filled(2)], opens=1)
    xs.ipc.memory.put(handle.handles[1])
    with pytest.raises(xs.HandleExpiredError):
        peer.call(tree_seen, bytes(handle))
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(handle)
    with xs.ipc.memory.open(handle.handles[0]):  # still the one that it had
        pass
    with pytest.raises(xs.HandleExpiredError, match="used up"):
        xs.ipc.memory.open(handle.handles[0])


def test_ttl_counts_the_whole() -> None:
    before = exports()
    handle = xs.share([filled(1), filled(2)], ttl=0.05)
    from harness import wait_until

    def over() -> bool:
        try:
            xs.attach(bytes(handle))
        except xs.HandleExpiredError as error:
            return "ttl" in str(error) or "time" in str(error)
        return False

    wait_until(over, what="the ttl to be over")
    gc.collect()
    xs.share(filled(0), ttl=60).close()
    assert exports() == before


def test_a_lost_handle_is_told() -> None:
    tree = [filled(1), filled(2)]
    with pytest.warns(ResourceWarning, match="tree of 2 arrays"):
        _lost(tree)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xs.share(tree, opens=1)
        gc.collect()


def _lost(tree: Any) -> None:
    xs.share(tree)
    gc.collect()


def test_an_attach_that_fails_leaves_nothing(peer: Child) -> None:
    message = peer.call(_shared_there, 5)
    xs.attach(message)  # knows the peer
    gc.collect()
    xs.trim()
    before, maps = open_fds(), mapped()
    errors = []
    peer.call(_put_last)
    for attempt in (
        lambda: xs.attach(message, like=lambda _array: 1 / 0),
        lambda: xs.attach(message, device="native_cpu:7"),
        lambda: xs.attach(message),
    ):
        with pytest.raises((xs.XpuShareError, ZeroDivisionError)) as caught:
            attempt()
        errors.append(caught.value)  # with its traceback
    xs.trim()
    assert not new_fds(before)
    assert mapped() <= maps
    peer.call(_forget)


def mapped() -> int:
    with open("/proc/self/maps") as file:
        return sum("memfd:" in line for line in file)


def _shared_there(count: int) -> bytes:
    from harness import kept

    kept["tree"] = [filled(number) for number in range(count)]
    handle = kept["handle"] = xs.share(kept["tree"])
    return bytes(handle)


def _put_last() -> None:
    from harness import kept

    handle: Any = kept["handle"]
    xs.ipc.memory.put(handle.handles[-1])


def test_names(peer: Child) -> None:
    xs.publish("tree", {"w": filled(1), "step": 1})
    try:
        handle = xs.lookup("tree")
        assert peer.call(_looked_up, "tree") == {"w": 1.0, "step": 1}
        rows = [row for row in xs.shares() if "tree" in row["names"]]
        assert len(rows) == 1
        xs.publish("tree", {"w": filled(2), "step": 2, "text": "x" * (2 << 20)}, replace=True)
        assert xs.attach(handle)["step"] == 2  # it follows its name
        assert peer.call(_looked_up, "tree")["w"] == 2.0
        xs.publish("tree", filled(3), replace=True)
        assert np.asarray(xs.attach(handle))[0] == 3
        mine = xs.share([filled(4)])
        xs.publish("tree", mine, replace=True)
        assert peer.call(_looked_up, "tree") == [4.0]
    finally:
        xs.unpublish("tree")
    assert np.asarray(xs.attach(mine)[0])[0] == 4  # the caller's own export stays
    mine.close()
    with pytest.raises(xs.InvalidArgumentError, match="exporter"):
        xs.publish("tree", xs.ArrayHandle(peer.call(_shared_there, 2)))
    peer.call(_forget)


def _looked_up(name: str) -> Any:
    return tree_seen(xs.lookup(name, timeout=10))


def test_text_fits_an_argument() -> None:
    slab = xs.malloc_host(1 << 16)
    tree = {f"model.layers.{number}.weight": slab.as_array(4, "f4", number * 16) for number in range(1200)}
    with xs.share(tree) as handle:
        text = str(handle)
        assert 64 << 10 < len(bytes(handle)) < 96 << 10
        code = "import sys, os, xpushare as xs; print(len(xs.attach(sys.argv[1])), len(xs.attach(os.environ['TREE'])))"
        found = subprocess.run(
            [sys.executable, "-c", code, text],
            env={**os.environ, "TREE": text},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert found.stdout.split() == ["1200", "1200"], found.stderr


def test_an_array_of_a_tree_is_passed_on(peer: Child) -> None:
    message = peer.call(_shared_there, 2)
    array = xs.attach(message)[1]
    assert type(array.handle) is type(xs.ArrayHandle(message))
    again = pickle.loads(pickle.dumps(array))
    assert np.asarray(again).tolist() == [1.0] * 4
    assert peer.call(_first, pickle.dumps(array)) == 1.0
    peer.call(_forget)


def _first(data: bytes) -> float:
    return float(np.asarray(pickle.loads(data))[0])


def test_in_a_forked_child_it_opens_anew() -> None:
    _parents[:] = [filled(1)]
    with xs.share(_parents) as handle, Child(method="fork") as child:
        assert child.call(tree_seen, bytes(handle)) == [1.0]
        with pytest.raises(xs.ForkError):
            child.call(_share_parents)
    _parents.clear()


_parents: list[Any] = []


def _share_parents() -> None:
    xs.share(_parents)


def test_streams_of_a_device() -> None:
    """On streams: one mark a stream; readers wait, `stream=-1` does not."""
    device = "mock:0"
    with Child(env={"ONEAPI_DEVICE_SELECTOR": "mock:*;native_cpu:*"}) as child:
        assert child.call(_ordered, device) == (1, 5, 3)


def _ordered(device: str) -> tuple[int, int, int]:
    arrays = [xs.empty(1 << 12, "u1", device=device) for _ in range(3)]
    with xs.Queue(device) as queue:
        for array in arrays:
            queue.fill(array, b"\5")
        with xs.share([*arrays, xs.empty(2)], stream=queue) as handle:
            found = xs.attach(handle, stream=queue)
            host = xs.malloc_host(1 << 12, device)
            queue.copy(host, found[2])
            queue.synchronize(20)
            ordered = sum(event == 0 for _memory, event, *_rest in handle._elements[:3])
            xs.attach(handle, stream=-1)
            return len(handle._events), memoryview(host)[7], ordered


# --- refusals name the path


class Kind(enum.StrEnum):
    PT = "pt"


class Mass(float, enum.Enum):
    ONE = 1.0


class Text(str):
    __slots__ = ()


class Real(float):
    __slots__ = ()


class Raw(bytes):
    __slots__ = ()


class Encoding(collections.UserDict[str, Any]):
    pass


@dataclasses.dataclass
class State:
    x: Any = None


class Hidden(dict[Any, Any]):
    """A dict whose content cannot be read."""

    def values(self) -> Any:
        raise RuntimeError("no values today")


class Endless(list[Any]):
    def __len__(self) -> int:
        raise OverflowError("too long")


def _deep(depth: int) -> Any:
    tree: Any = np.ones(2)
    for _ in range(depth):
        tree = [tree]
    return tree


def _cycle() -> Any:
    tree: dict[str, Any] = {"x": np.ones(2)}
    tree["self"] = tree
    return tree


LEAVES: dict[str, tuple[Any, str]] = {
    "enumeration": (Kind.PT, r"x\.value"),
    "enumeration of numbers": (enum.IntEnum("I", "A").A, r"x\.value"),
    "enumeration of floats": (Mass.ONE, r"x\.value"),
    "subclass of str": (Text("a"), r"share str\(x\)"),
    "subclass of float": (Real(1.5), r"share float\(x\)"),
    "subclass of bytes": (Raw(b"a"), r"share bytes\(x\)"),
    "mapping": (Encoding(x=1), r"share dict\(x\)"),
    "dataclass": (State(), r"share vars\(x\)"),
    "set": ({1}, "trees of dict"),
    "dict without values": (Hidden(x=1), "no values today"),
    "list without length": (Endless(), "too long"),
    "integer": (1 << 64, "64 bits"),
    "key": ({(0, 1): 1}, r"keys.*\(0, 1\)"),
    "deep": (_deep(10_000), "64 at most"),
    "cycle": (_cycle(), "contain itself"),
    "other tuple": (os.stat_result(range(10)), r"share tuple\(x\)"),
    "objects": (np.array([object()]), "Python objects"),
    "private": (np.ones(2), "private to its library"),
}


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("call", ["share", "publish", "send", "meta"])
def test_a_refusal_names_the_path(leaf: str, call: str) -> None:
    x, match = LEAVES[leaf]
    if leaf == "private" and call == "send":
        return  # it is copied
    tree = {"a": xs.zeros(2) if call != "meta" else 1, "b": [{"c": 1, "d": x}]}
    with xs.Channel.create(None, nbytes=4096) as ch:
        calls = {
            "share": lambda: xs.share(tree), "publish": lambda: xs.publish("tree", tree),
            "send": lambda: ch.send(tree), "meta": lambda: ch.send(np.ones(2), meta=tree),
        }  # fmt: skip
        with pytest.raises(xs.XpuShareError, match=r"^at 'b\.0\.d") as refusal:
            calls[call]()
    if call != "meta":
        assert re.search(match, str(refusal.value))
    assert "put it into a tree" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_the_path_is_that_of_the_array() -> None:
    """Arrays that are looked at by their kind, and those that are copied last, too."""
    torch = pytest.importorskip("torch")
    ours = torch.from_dlpack(xs.zeros(4, "f4"))
    four = torch.empty(4, dtype=torch.float4_e2m1fn_x2)
    for copy in False, True:
        with pytest.raises(xs.InvalidArgumentError, match=r"^at 'b': NumPy has no dtype for DLPack's type"):
            xs.share({"a": ours, "b": four, "c": ours[1:]}, copy=copy)


def test_a_scalar_sends_no_byte_without_a_value() -> None:
    """Padding has whatever lay in this process's memory."""
    padded = np.dtype([("a", "u1"), ("b", "<f4"), ("c", "g"), ("d", "G", (2,)), ("e", ">g")], align=True)
    for kind in "g", "G", padded:
        dtype, sent = np.dtype(kind), []
        for filling in 0, 255:
            element = np.frombuffer(bytearray([filling]) * dtype.itemsize, dtype)
            for name in dtype.names or ():
                element[name] = 2
            if dtype.names is None:
                np.positive(np.full(1, 2, dtype), out=element)  # writes the value, and no padding
            with xs.share({"x": element[0]}) as handle:
                sent.append(content_of(handle).tree)
                assert xs.attach(handle)["x"] == element[0]
        assert sent[0] == sent[1]


def test_bytes_count_as_long_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their Base64 is longer. The error names the first leaf that is too much."""
    monkeypatch.setattr(containers, "_NBYTES_MAX", 100)
    assert containers.flatten([bytes(60), bytes(36)])[0] == []
    with pytest.raises(xs.InvalidArgumentError, match="at '1': the message of a tree has"):
        containers.flatten([bytes(60), bytes(37), bytes(1)])
