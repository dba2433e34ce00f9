"""Section 6: trees of arrays under one handle."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.harness import TIMEOUT, Child, kept, wait_until
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule


class Layer(NamedTuple):
    """A named tuple whose class does not exist in the other process."""

    weight: Any
    bias: Any


def _array(device: str, value: int) -> xs.SharedArray:
    array = xs.empty(64, "u1", device=device)
    actions.write_bytes(array.memory, bytes([value]) * 64)
    return array


def _value(array: xs.SharedArray) -> int:
    offset = array.ptr - array.memory.ptr
    return actions.read_bytes(array.memory, 1, offset)[0]


def _plain(tree: Any) -> Any:
    """Return the tree in a form that can be compared and pickled. Each array is replaced by its first byte."""
    if isinstance(tree, xs.SharedArray):
        return _value(tree)
    if isinstance(tree, dict):
        return [("key", key, _plain(value)) for key, value in tree.items()]
    fields: Any = getattr(tree, "_fields", None)
    if fields is not None:
        return (type(tree).__name__, fields, *map(_plain, tree))
    if isinstance(tree, list | tuple):
        return type(tree)(map(_plain, tree))
    return ("leaf", repr(tree))


def _attach(name: str, message: Any, device: str | None = None, **options: Any) -> Any:
    """Attach the tree, store it under `name`, and return its content."""
    kept[name] = xs.attach(message, device=device, **options)
    return _plain(kept[name])


def _exports() -> set[int]:
    """Return the generation numbers of the live exports. Exports of earlier tests may end at any time."""
    from xpushare.sharing import node

    table = node.current().table_if_any
    return set() if table is None else {each.generation for each in table.exports()}


@rule("6.1")
def test_a_tree(pair: Pair, peer: Child) -> None:
    arrays = [_array(pair.exporter, value) for value in range(1, 5)]
    tree = {
        "z": arrays[0],
        "a": [arrays[1], (), (arrays[2], None, True, -0.0, float("inf"), "text", 2**63 - 1)],
        7: Layer(arrays[3], {}),
        "7": [],
    }
    with xs.share(tree) as handle:
        for message in (handle, bytes(handle), str(handle)):
            assert peer.call(_attach, "tree", message, pair.importer) == _plain(tree)
        assert type(cast("Any", xs.attach(handle, types=[Layer]))[7]) is Layer


@rule("6.2")
def test_one_export(pair: Pair, peer: Child) -> None:
    memory = xs.malloc_device(64 * 256, pair.exporter)
    actions.write_bytes(memory, b"\7" * (64 * 256))
    tree = {str(at): memory.as_array(256, "u1", 256 * at) for at in range(64)}
    before = _exports()
    with xs.share({"one": tree, "other": _array(pair.exporter, 3)}) as handle:
        assert (len(_exports() - before), len(handle.handles)) == (2, 2)
        peer.call(_attach, "tree", bytes(handle), pair.importer)
        assert peer.call(_allocations, "tree") == 2
        assert peer.call(_values, "tree") == {3, 7}
    assert not _exports() - before


def _arrays(tree: Any) -> list[xs.SharedArray]:
    if isinstance(tree, xs.SharedArray):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [array for part in parts for array in _arrays(part)]


def _allocations(name: str) -> int:
    return len({array.memory.ptr for array in _arrays(kept[name])})


def _values(name: str) -> set[int]:
    return set(map(_value, _arrays(kept[name])))


@rule("6.3")
def test_twice(pair: Pair, peer: Child) -> None:
    array, other = _array(pair.exporter, 1), _array(pair.exporter, 2)
    with xs.share([array, {"again": array}, other]) as handle:
        peer.call(_attach, "tree", bytes(handle), pair.importer)
        assert peer.call(_identical, "tree") == (True, False)


def _identical(name: str) -> tuple[bool, bool]:
    first, inner, other = kept[name]
    return first is inner["again"], first is other


@rule("6.4")
def test_no_trees(pair: Pair) -> None:
    array = _array(pair.exporter, 1)
    deep: Any = array
    for _ in range(64):
        deep = [deep]
    with xs.share(deep) as handle:
        xs.attach(handle)
    circle: list[Any] = [array]
    circle.append(circle)
    before = _exports()
    for wrong in ([deep], circle, {1.5: array}, {True: array}, {None: array}, [array, 2**63], [array, {1}],
                  [array, object()]):  # fmt: skip
        with pytest.raises(xs.InvalidArgumentError):
            xs.share(wrong)
    assert not _exports() - before


@rule("6.5")
def test_flipped(pair: Pair, peer: Child) -> None:
    with xs.share([_array(pair.exporter, 1)]) as handle:
        raw = bytes(handle)
        wrong = [raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :] for at in range(len(raw))]
        wrong += [raw[:at] for at in range(0, len(raw), 7)] + [raw + b"\0"]
        assert peer.call(_refused, wrong) == len(wrong)
        with pytest.raises(xs.InvalidHandleError):
            xs.ipc.memory.open(raw)


def _refused(messages: list[bytes]) -> int:
    refused = 0
    for message in messages:
        try:
            xs.attach(message)
        except xs.InvalidHandleError:
            refused += 1
    return refused


@rule("6.6")
def test_opens(pair: Pair, peer: Child) -> None:
    before = _exports()
    tree = [_array(pair.exporter, value) for value in (1, 2, 3)]
    message = bytes(xs.share(tree, opens=2))
    for name in ("first", "second"):
        assert peer.call(_attach, name, message, pair.importer) == [1, 2, 3]
    with pytest.raises(xs.HandleExpiredError, match="used up"):
        peer.call(_attach, "third", message, pair.importer)
    peer.call(actions.drop)
    wait_until(lambda: not _exports() - before, "the exports to end with the last open")
    message = bytes(xs.share(tree, ttl=0.01))
    end = time.monotonic() + 0.01
    wait_until(lambda: time.monotonic() > end, "the ttl to be over")
    with pytest.raises(xs.HandleExpiredError):
        peer.call(_attach, "late", message, pair.importer)
    assert not _exports() - before


@rule("6.7")
def test_failed(pair: Pair, peer: Child, nothing_left: Callable[[], None]) -> None:
    message = peer.call(_share, pair.exporter, 1)
    with pytest.raises(ZeroDivisionError):
        xs.attach(message, device=pair.importer, like=lambda _array: 1 // 0)
    nothing_left()
    found = xs.attach(message, device=pair.importer)
    assert _plain(found) == [1, 2]
    del found
    gc.collect()
    message = peer.call(_share, pair.exporter, 1)
    peer.call(_put_last)
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(message, device=pair.importer)
    nothing_left()


def _share(device: str, opens: int | None) -> bytes:
    kept["arrays"] = [_array(device, value) for value in (1, 2)]
    kept["handle"] = xs.share(kept["arrays"], opens=opens)
    return bytes(kept["handle"])


def _put_last() -> None:
    xs.ipc.memory.put(kept["handle"].handles[-1])


@rule("6.8")
def test_close(pair: Pair, peer: Child) -> None:
    before = _exports()
    arrays = [_array(pair.exporter, value) for value in (1, 2)]
    handle = xs.share(arrays)
    assert peer.call(_attach, "tree", bytes(handle), pair.importer) == [1, 2]
    handle.close()
    handle.close()
    assert not _exports() - before
    assert peer.call(_values, "tree") == {1, 2}
    for message in (bytes(handle), *map(bytes, handle.handles)):
        with pytest.raises(xs.HandleExpiredError):
            peer.call(xs.attach if len(message) > 256 else xs.ipc.memory.open, message)
    with pytest.raises(xs.InvalidArgumentError):
        xs.attach(handle)


@rule("6.9")
def test_like(pair: Pair, peer: Child) -> None:
    array = _array(pair.exporter, 9)
    with xs.share({"a": array, "b": (array, None)}) as handle:
        assert peer.call(_like, bytes(handle), pair.importer) == {"a": 9, "b": (9, None)}
        wrong: Any
        for wrong in (3, "no_such_library"):
            with pytest.raises(xs.InvalidArgumentError):
                xs.attach(handle, like=wrong)
    with xs.share(array) as handle:
        assert peer.call(_like, bytes(handle), pair.importer) == 9


def _like(message: bytes, device: str) -> Any:
    return xs.attach(message, device=device, like=_value)


@rule("6.10")
def test_order(pair: Pair, peer: Child) -> None:
    array, other = _array(pair.exporter, 1), _array(pair.exporter, 1)
    with xs.Event(pair.exporter, enable_ipc=True) as gate, xs.Queue(pair.exporter) as queue:
        queue.wait(gate, at_least=1)
        queue.fill(array, b"\5")
        queue.fill(other, b"\6")
        with xs.share([array, other], stream=queue) as handle:
            reading = peer.start(_read_by_queue, bytes(handle), pair.importer)
            assert not reading.done()
            with xs.Queue(pair.exporter) as opening:
                opening.signal(gate)
                opening.synchronize(TIMEOUT)
            assert reading.result() == [5, 6]
        queue.synchronize(TIMEOUT)


def _read_by_queue(message: bytes, device: str) -> list[int]:
    with xs.Queue(device) as queue, xs.malloc_host(64, device) as host:
        arrays = cast("list[xs.SharedArray]", xs.attach(message, device=device, stream=queue))
        found = []
        for array in arrays:
            queue.copy(host, array)
            queue.synchronize(TIMEOUT)
            with memoryview(host) as view:
                found.append(view[63])
        return found


@rule("6.11")
def test_publish(pair: Pair, peer: Child) -> None:
    name = f"conformance-tree-{os.getpid()}"
    before = _exports()
    xs.publish(name, {"w": _array(pair.exporter, 1)})
    try:
        found = peer.call(_looked_up, name, pair.importer)
        assert found == [("key", "w", 1)]
        old = xs.lookup(name)
        xs.publish(name, {"w": _array(pair.exporter, 2)}, replace=True)
        assert peer.call(_looked_up, name, pair.importer) == [("key", "w", 2)]
        assert _plain(xs.attach(old)) == [("key", "w", 2)]  # opens the new version of the name
    finally:
        xs.unpublish(name)
    assert not _exports() - before


def _looked_up(name: str, device: str) -> Any:
    return _attach("tree", xs.lookup(name, timeout=TIMEOUT), device)
