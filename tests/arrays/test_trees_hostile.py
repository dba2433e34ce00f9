"""Handles of trees that were made with the key, and lie."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from array_peer import try_hostile_tensors, try_hostile_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages import HEADER, VERSION, built, sealed
from mutations import expect_only

import xpushare as xs
from harness import Child
from xpushare.arrays.containers import flatten, unflatten
from xpushare.sharing.handle import SEAL_NBYTES


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    array = xs.empty(4)
    np.asarray(array)[:] = 1
    with xs.share([array]) as handle:
        yield handle


@pytest.fixture(scope="module")
def memory(shared: Any) -> xs.ipc.Handle:
    return shared.handles[0]  # type: ignore[no-any-return]


def test_the_builder_builds_what_share_does(shared: Any) -> None:
    text = json.dumps([[["<f8", 8]], ["l", [0]]], separators=(",", ":")).encode()
    assert built(shared.handles[0], text=text) == bytes(shared)


def tree(described: Any, dtypes: Any = None) -> dict[str, Any]:
    return {"text": [[["<f8", 8]] if dtypes is None else dtypes, described]}


TOP = (1 << 63) - 1
DEEP: Any = 0
for _ in range(65):
    DEEP = ["l", [DEEP]]
LIES: dict[str, dict[str, Any]] = {
    "no arrays": {"arrays": [], "steps": ()},
    "an array twice as long": {"steps": (8, 8)},
    "a negative length": {"steps": (-1, 8)},
    "a length that overflows": {"steps": (TOP, 8)},
    "dimensions whose product overflows": {"arrays": [(0, 0, 0, 2, 0, 0)], "steps": (1 << 32, 1 << 32, 0, 0)},
    "strides that cancel out": {"arrays": [(0, 0, 0, 2, 0, 0)], "steps": (3, 3, TOP, -TOP)},
    "a negative stride from the start": {"steps": (4, -8)},
    "offset at the end": {"arrays": [(0, 0, 0, 1, 0, 32)]},
    "offset huge": {"arrays": [(0, 0, 0, 1, 0, (1 << 64) - 8)]},
    "memory that is not there": {"arrays": [(1, 0, 0, 1, 0, 0)]},
    "memory beyond all": {"arrays": [((1 << 32) - 1, 0, 0, 1, 0, 0)]},
    "an event that is not there": {"arrays": [(0, 1, 0, 1, 0, 0)]},
    "a dtype that is not there": {"arrays": [(0, 0, 1, 1, 0, 0)]},
    "dimensions that are not there": {"arrays": [(0, 0, 0, 2, 0, 0)]},
    "more dimensions than any": {"arrays": [(0, 0, 0, 65, 0, 0)], "steps": (1, 8) * 65},
    "lengths of nobody": {"steps": (4, 8, 1)},
    "reserved bits of an array": {"arrays": [(0, 0, 0, 1, 1, 0)]},
    "reserved bits": {"reserved0": 1},
    "a version of the future": {"version": VERSION + 1},
    "another length": {"length": 1000},
    "more memory than there is": {"memory": 2},
    "memory of gigabytes": {"memory": (1 << 32) - 1},
    "more arrays than there are": {"arrays": [(0, 0, 0, 1, 0, 0)], "steps": (4, 8), "text": b"[]"},
    "no JSON": {"text": b"xyz"},
    "no UTF-8": {"text": b"\xff\xfe"},
    "no text": {"text": b""},
    "nested very deeply": {"text": b"[" * 200_000},
    "a number of many digits": {"text": b"[[],[" + b"1" * 10_000 + b"]]"},
    "not two parts": {"text": [[], 0, 0]},
    "dtypes that are none": tree(0, "x"),
    "a dtype of no size": tree(0, [["<f8"]]),
    "a dtype of another size": tree(0, [["<f8", 4]]),
    "objects": tree(0, [["|O", 8]]),
    "a dtype that is not text": tree(0, [[7, 8]]),
    "array 1 of 1": tree(1),
    "array -1": tree(-1),
    "an object": tree({"a": 0}),
    "an empty list": tree([]),
    "no tag": tree([0]),
    "a tag of a number": tree([7, [0]]),
    "a tag unknown": tree(["x", [0]]),
    "an integer beyond 64 bits": tree(["l", [["i", 1 << 63], 0]]),
    "an integer that is true": tree(["i", True]),
    "an integer that is text": tree(["i", "1"]),
    "a list of two parts": tree(["l", [0], [0]]),
    "a list that is none": tree(["l", 0]),
    "too deep": tree(DEEP),
    "a dict without values": tree(["d", ["a"]]),
    "fewer keys than values": tree(["d", [], [0]]),
    "more keys than values": tree(["d", ["a", "b"], [0]]),
    "a key twice": tree(["d", ["a", "a"], [0, 0]]),
    "a key that is a float": tree(["d", [1.5], [0]]),
    "a key that is true": tree(["d", [True], [0]]),
    "a key that is none": tree(["d", [None], [0]]),
    "a key that is a list": tree(["d", [[1]], [0]]),
    "a key beyond 64 bits": tree(["d", [1 << 63], [0]]),
    "keys that are text": tree(["d", "a", [0]]),
    "a named tuple of a keyword": tree(["n", "class", ["x"], [0]]),
    "a named tuple of code": tree(["n", "X(object): pass\n#", ["x"], [0]]),
    "a field of code": tree(["n", "X", ["x=print(1)"], [0]]),
    "a field that is a keyword": tree(["n", "X", ["def"], [0]]),
    "a field with an underscore": tree(["n", "X", ["_x"], [0]]),
    "a dunder": tree(["n", "X", ["__class__"], [0]]),
    "a field twice": tree(["n", "X", ["x", "x"], [0, 0]]),
    "a field twice, in two spellings": tree(["n", "X", ["fi", "\ufb01"], [0, 0]]),
    "a field that is a number": tree(["n", "X", [1], [0]]),
    "fewer fields than elements": tree(["n", "X", ["x"], [0, 0]]),
    "more fields than elements": tree(["n", "X", ["x", "y"], [0]]),
    "fields that are text": tree(["n", "X", "x", [0]]),
    "a named tuple of no name": tree(["n", None, ["x"], [0]]),
    "a named tuple of many fields": tree(["n", "X", [f"x{at}" for at in range(5000)], [0] * 5000]),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused(memory: xs.ipc.Handle, lie: str) -> None:
    changes = dict(LIES[lie])
    if changes.get("memory"):
        changes["count"] = changes.pop("memory")
    count = changes.pop("count", None)
    raw = built(memory, **changes)
    if count is not None:
        fields = list(HEADER.unpack_from(raw))
        fields[4] = count
        raw = sealed(HEADER.pack(*fields) + raw[HEADER.size : -SEAL_NBYTES])
    with pytest.raises(xs.InvalidHandleError):
        xs.attach(raw)


def test_handles_that_lie(peer: Child, memory: xs.ipc.Handle) -> None:
    with xs.Event("native_cpu:0", enable_ipc=True) as event:
        mark = xs.ipc.event.get(event)
        point = struct.pack("<Q", 0)
        ordered = [(0, 1, 0, 1, 0, 0)]
        assert peer.call(try_hostile_tree, built(memory, ordered, marks=(bytes(mark) + point,))) == "attached"
        foreign = xs.ArrayHandle(peer.call(_handle)).handle
        for wrong in (
            built(mark),
            built([memory, mark]),
            built([memory, foreign]),
            built(bytes(256)),
            built(bytes(memory)[:-1] + bytes([bytes(memory)[-1] ^ 1])),
            built(memory, ordered, marks=(bytes(memory) + point,)),
            built(memory, ordered, marks=(bytes(foreign) + point,)),
            built(memory, ordered, marks=(bytes(mark) + struct.pack("<Q", 1 << 43),)),
        ):
            for attach in (try_hostile_tree, lambda raw: peer.call(try_hostile_tree, raw)):
                assert attach(wrong) == "InvalidHandleError"
        xs.ipc.event.put(mark)
        gone = built(memory, ordered, marks=(bytes(mark) + point,))
        assert peer.call(try_hostile_tree, gone) == "HandleExpiredError"
        peer.call(_forget)


def _handle() -> bytes:
    from harness import kept

    kept["array"] = xs.empty(4)
    kept["handle"] = xs.share(kept["array"])
    return bytes(kept["handle"])


def _forget() -> None:
    from harness import kept

    kept["handle"].close()
    kept.clear()


def test_every_flipped_bit_and_every_length(shared: Any) -> None:
    expect_only(bytes(shared))
    with pytest.raises(xs.InvalidHandleError):
        xs.ArrayHandle(bytes(shared) + bytes(64 << 20))


@pytest.fixture(scope="module")
def rich() -> Iterator[Any]:
    slab = xs.malloc_host(1 << 12)
    record = np.dtype([("a", "<f4"), ("b", "|u1", (2,))])
    arrays: Any = [slab.as_array((2, 3), "f4", 256), slab.as_array(5, record, 512), xs.empty(3)]
    with xs.share({"w": arrays[0], 7: [arrays[1], (arrays[2], None, 0.5, "text", True, -3)]}) as handle:
        yield handle


@pytest.fixture(scope="module")
def plain() -> Iterator[Any]:
    """Of what torch has."""
    slab = xs.malloc_host(1 << 10)
    np.frombuffer(slab, "u1")[:] = 1
    with xs.share({"w": slab.as_array((2, 3), "f4", 64), "b": [slab.as_array(5, "u1", 512), xs.empty(3)]}) as handle:
        yield handle


def test_repeated_by_strides_of_0(peer: Child, memory: xs.ipc.Handle) -> None:
    """An array of more elements than there is memory for is let through, if all of them are inside."""
    assert peer.call(try_hostile_tree, built(memory, steps=(1 << 40, 0))) == "attached"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: make libraries")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fuzz_of_tensors(peer: Child, plain: Any, data: st.DataObject) -> None:
    """Native code makes the tensors that Python would, or none."""
    assert peer.call(try_hostile_tensors, bytes(plain)) == "attached"
    body = bytearray(bytes(plain)[:-SEAL_NBYTES])
    handles = len(plain.handles) * 256
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER.size + handles, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0, 1, 2, 4, 8, 127, 128, 255]))
    peer.call(try_hostile_tensors, sealed(bytes(body)))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fuzz(peer: Child, rich: Any, data: st.DataObject) -> None:
    """Anything sealed either is refused or is a tree of arrays inside its memory: the other process reads them."""
    body = bytearray(bytes(rich)[:-SEAL_NBYTES])
    handles = len(rich.handles) * 256
    places = [*range(HEADER.size), *range(HEADER.size + handles, len(body))]  # those have seals of their own
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.sampled_from(places))
        body[at] = data.draw(st.sampled_from([0, 1, 2, 4, 8, 127, 128, 255]) | st.integers(0, 255))
    if data.draw(st.booleans()):
        struct.pack_into("<I", body, 12, len(body) + SEAL_NBYTES)
    assert peer.call(try_hostile_tree, sealed(bytes(body))) in ("InvalidHandleError", "HandleExpiredError", "attached")


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.sampled_from([xs.Device, object, len])  # stand for arrays
)
keys = st.text(st.characters(exclude_categories=()), max_size=5) | st.integers(-(1 << 63), (1 << 63) - 1)
trees = st.recursive(
    leaves,
    lambda below: (
        st.lists(below, max_size=4) | st.lists(below, max_size=4).map(tuple) | st.dictionaries(keys, below, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=120, deadline=None)
@given(tree=trees)
def test_any_tree_comes_back(tree: Any) -> None:
    arrays, described = flatten(tree)
    text = json.dumps(described, ensure_ascii=False).encode("utf-8", "surrogatepass")
    found = unflatten(json.loads(text.decode("utf-8", "surrogatepass")), arrays)
    assert repr(found) == repr(tree)


json_values = st.recursive(
    st.sampled_from([None, True, 0.5, -1, 0, 1, 2, "i", "l", "t", "n", "d", "x", "_x"]),
    lambda below: st.lists(below, max_size=4) | st.just({}),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(described=json_values)
def test_any_description_is_refused_or_a_tree(described: Any) -> None:
    arrays = [object(), object()]
    try:
        found = unflatten(described, arrays)
    except xs.InvalidHandleError:
        return
    again, _ = flatten(found)
    assert set(map(id, again)) <= set(map(id, arrays))
