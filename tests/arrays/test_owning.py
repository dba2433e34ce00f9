"""`attach(own=True)`, and passing on what was attached or came by a pickle."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import weakref

import numpy as np
import pytest
from pool_work import made, total

import xpushare as xs
from harness import Child, kept, new_fds, open_fds, wait_until
from named_arrays import filled, value_of
from xpushare._native import Exported
from xpushare.adapters.base import Export, Form, Import
from xpushare.common import system
from xpushare.conformance.samples import samples
from xpushare.core.device import info_of
from xpushare.sharing import node, routes
from xpushare.sharing.handle import fields_of
from xpushare.sharing.table import Owned

MANY = 300  # descriptors of one export: more than a packet of the socket carries


def shared(name: str, value: float) -> bytes:
    kept[name] = xs.share(filled(value))
    return bytes(kept[name])


def shared_tree(name: str, value: float) -> bytes:
    kept[name] = xs.share({"a": filled(value), "b": [filled(value), filled(value)]})
    return bytes(kept[name])


def pickled(name: str, value: float) -> bytes:
    kept[name] = filled(value)
    return pickle.dumps(kept[name])


def pickled_memory(name: str) -> bytes:
    kept[name] = xs.malloc_device(32)
    memoryview(kept[name])[:] = b"m" * 32
    return pickle.dumps(kept[name])


def test_hot_restart(peer: Child) -> None:
    """A is killed; B, which owns the tree, publishes it; C finds it, and what B writes."""
    with Child() as first:
        message = first.call(shared_tree, "tree", 5)
        tree = xs.attach(message, own=True)
        first.kill()
    version = xs.publish("weights", tree)
    assert version == xs.publish("weights", tree, replace=True) - 1
    try:
        assert peer.call(read_tree, "weights") == [5, 5, 5]
        np.asarray(tree["a"])[:] = 6
        assert peer.call(read_tree, "weights") == [6, 5, 5]
    finally:
        xs.unpublish("weights")


def read_tree(name: str) -> list[float]:
    tree = xs.attach(xs.lookup(name, timeout=0))
    return [float(np.asarray(each)[-1]) for each in (tree["a"], *tree["b"])]


@pytest.mark.parametrize("device", ["native_cpu:0", "mock:0"])
def test_what_was_closed_is_owned_again(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device, too, which keeps what is closed mapped for a moment: as an import that cannot be exported."""
    selected = "native_cpu:*;mock:*"
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", selected)

    def make() -> bytes:
        array = kept["array"] = xs.empty(5000, device=device)
        np.asarray(array)[:] = 4
        kept["handle"] = xs.share(array)
        return bytes(kept["handle"])

    with Child(env={"ONEAPI_DEVICE_SELECTOR": selected}) as first:
        message = first.call(make)
        for _ in range(3):
            with xs.attach(message, own=True) as array:
                assert np.asarray(array)[-1] == 4
            del array
        array = xs.attach(message, own=True)
        first.kill()
    with xs.share(array) as handle, xs.attach(handle) as again:
        assert handle.handles[0].exporter.pid == os.getpid()
        assert np.asarray(again)[-1] == 4


def test_views_of_what_is_owned_are_exported() -> None:
    """NumPy's arrays over it, and parts of it, are shared as arrays of this process are."""
    with Child() as first:
        array = xs.attach(first.call(shared, "array", 3), own=True)
        view = np.asarray(array)[1:3]
        first.kill()
    del array
    with xs.share(view, opens=1) as handle:
        assert handle.handles[0].exporter.pid == os.getpid()
        with xs.attach(handle) as again:
            assert np.asarray(again).tolist() == [3, 3]
    with xs.share({"mine": filled(1), "theirs": view}) as handle:  # of two processes, but exported by one
        assert len(handle.handles) == 2


def test_views_of_what_is_not_owned_are_passed_on(peer: Child) -> None:
    array = xs.attach(peer.call(shared, "array", 3))
    with xs.share(np.asarray(array)[1:3]) as handle:
        assert handle.handle == array.handle.handle
        with xs.attach(handle) as again:
            assert np.asarray(again).tolist() == [3, 3]
    for refused, match in ((np.asarray(array), "read-only"), ({"mine": filled(1), "theirs": array}, "of several")):
        with pytest.raises(xs.InvalidArgumentError, match=rf"{match}.*own=True"):
            xs.share(refused, read_only=match == "read-only")
    peer.call(withdraw, "array")
    with pytest.raises(xs.HandleExpiredError):
        xs.share(np.asarray(array))


def withdraw(name: str) -> None:
    kept[name].close()


def test_used_up_opens_are_told_at_once(peer: Child) -> None:
    array = xs.attach(peer.call(shared_once, "once"))
    with pytest.raises(xs.HandleExpiredError, match="own=True"):
        xs.share(array)


def shared_once(name: str) -> bytes:
    kept[name] = filled(1)
    return bytes(xs.share(kept[name], opens=1))


def test_in_its_own_process() -> None:
    """What this process made is its own; what it opened by a handle is passed on like any import."""
    with xs.share(filled(2)) as handle:
        opened, owned = xs.attach(handle), xs.attach(handle, own=True)
        passed_on = xs.share(opened)
        assert passed_on.handle == handle.handle
        passed_on.close()
        assert value_of(bytes(passed_on)) == 2
    with pytest.raises(xs.HandleExpiredError):
        xs.share(opened)
    with xs.share(owned) as again:
        assert value_of(again) == 2


@pytest.mark.parametrize("ended", [True, False], ids=["its maker gone", "its maker there"])
def test_what_came_by_a_pickle(peer: Child, ended: bool) -> None:
    """It is shared, and published so that it outlives its maker."""
    with Child() as first:
        array, memory = (
            pickle.loads(first.call(pickled, "array", 4)),
            pickle.loads(first.call(pickled_memory, "memory")),
        )
        if ended:
            first.kill()
        with xs.share(array) as handle:
            assert (handle.handles[0].exporter.pid == os.getpid()) == ended
            assert peer.call(value_of, bytes(handle)) == 4
        xs.publish("array", array)
        xs.publish("memory", memory)
        first.kill()
    try:
        assert peer.call(value_by_name, "array") == 4
        assert bytes(xs.ipc.memory.open(xs.lookup("memory"))) == b"m" * 32
        assert peer.call(value_of, bytes(xs.share(array, ttl=60))) == 4
    finally:
        xs.unpublish("array")
        xs.unpublish("memory")


def value_by_name(name: str) -> float:
    return value_of(xs.lookup(name, timeout=0))


def test_a_result_of_a_pool_is_published() -> None:
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        result = pool.apply(made, (5,))
    xs.publish("result", result)
    try:
        assert total(xs.attach(xs.lookup("result"))) == 25
    finally:
        xs.unpublish("result")


def test_pickles_of_what_is_owned_are_of_this_process(peer: Child) -> None:
    with Child() as first:
        array = xs.attach(first.call(shared, "array", 8), own=True)
        data = pickle.dumps(array), pickle.dumps(array.memory)
        first.kill()
    del array
    assert peer.call(value_of_pickle, data[0]) == 8
    with pickle.loads(data[1]) as memory:
        assert np.frombuffer(memory, float)[0] == 8


def value_of_pickle(data: bytes) -> float:
    return float(np.asarray(pickle.loads(data))[0])


def test_nothing_is_left(peer: Child) -> None:
    message = peer.call(shared_tree, "tree", 1)
    xs.attach(message, own=True)
    gc.collect()
    before = open_fds()
    for _ in range(3):
        tree = xs.attach(message, own=True)
        xs.share(tree).close()
        del tree
    assert new_fds(before) == {}
    peer.call(withdraw, "tree")
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(message, own=True)
    assert new_fds(before) == {}


def test_memory_that_ends_with_its_maker_is_refused() -> None:
    fd = system.memfd("test")
    for what in (Import(8, 8, b"", [], False), Import(8, 8, b"", [fd], False)):  # a driver's own handle
        with pytest.raises(xs.FeatureNotSupportedError, match="ends with the process"):
            Owned.of(what)


def test_other_librarys_memory_that_is_owned_is_never_given_back(peer: Child) -> None:
    """Its owner may have handed it to processes that the maker does not know."""
    with Child() as reader:
        for own in False, True:
            reader.call(attach_it, peer.call(shared_foreign, own), own)
            peer.call(drop_foreign)
            assert peer.call(is_held, own)
        reader.kill()
    wait_until(lambda: not peer.call(is_held, False), what="the dead reader's memory to be given back")
    assert peer.call(is_held, True)


def shared_foreign(own: bool) -> bytes:
    array = kept["foreign"] = samples("mock:0").array("mock:0", bytes(64))
    kept["alive", own] = weakref.ref(array)
    kept["handle"] = xs.share(array)
    return bytes(kept["handle"])


def drop_foreign() -> None:
    kept.pop("handle").close()
    samples("mock:0").forget(kept.pop("foreign"))


def attach_it(message: bytes, own: bool) -> None:
    kept[own] = xs.attach(message, own=own)


def is_held(own: bool) -> bool:
    xs.trim()
    gc.collect()
    return kept["alive", own]() is not None


def test_many_descriptors_are_handed_on(peer: Child) -> None:
    """An export of more descriptors than an entry has room for is made of duplicates on demand."""
    device = xs.Device("native_cpu:0")
    fds = [system.memfd("test") for _ in range(MANY)]
    for number, fd in enumerate(fds):
        os.write(fd.number, bytes([number % 251]))
    owned = Owned(fds, Export(1 << 20, 1 << 20, form=Form.VMM_FD), None)
    what = owned.export()
    assert what.on_demand is not None
    table = node.current().table()
    prepared = table.prepare("memory", info_of(device), what, table.new_object())
    handle = table.export([Exported(prepared, owned, nbytes=1 << 20)])[0]
    try:
        assert peer.call(first_bytes, bytes(handle)) == [number % 251 for number in range(MANY)]
    finally:
        table.put(handle)
        owned.close()


def first_bytes(raw: bytes) -> list[int]:
    here, handle = node.current(), xs.ipc.Handle(raw)
    peer = here.peers.peer(handle)
    [fds] = routes.fetch(peer, [routes.Wanted(handle, peer.find(fields_of(handle))[2])])
    return [os.pread(fd.number, 1, 0)[0] for fd in fds]
