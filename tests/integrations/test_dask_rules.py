"""The rules of the Dask family one by one, without a cluster: who gets handles, and when a lease ends."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed")

import dask
import dask_tasks as tasks
from distributed.protocol import deserialize, serialize

import xpushare as xs
from harness import Child, wait_until
from xpushare.integrations import dask as integration


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    integration.register()
    yield
    integration.register()


def asking(**changed: Any) -> dict[str, Any]:
    """A message's context, as another process of this machine would cause it."""
    about = integration._whereabouts() | {"pid": 1, "started": integration._started(1), "host": "127.0.0.1"}
    return {"sender": {"address": "tcp://127.0.0.1:4000"}, "recipient": {integration.FAMILY: about | changed}}


@pytest.mark.parametrize(
    ("changed", "handle"),
    [
        ({}, True),
        ({"host": None}, True),  # a client has no address of its own
        ({"host": "127.0.0.2"}, False),
        ({"key": bytes(32)}, False),  # another user's key, or another boot
        ({"net": 5}, True),  # one PID namespace will do
        ({"pid_namespace": 5}, True),  # one network namespace, too
        ({"net": 5, "pid_namespace": 5}, False),
        ({"net": 0, "pid_namespace": 0}, False),
        ({"pid": os.getpid()}, False),  # this process
        ({"pid": os.getpid(), "pid_namespace": 5}, True),
    ],
)
def test_who_gets_handles(changed: dict[str, Any], handle: bool) -> None:
    assert (integration._receiver(asking(**changed)) is not None) == handle


def test_nobody_asked() -> None:
    integration.register(threshold=1)
    array = tasks.private(4096)
    for context in (None, {}, {"recipient": {}}):
        for serializers in (None, [integration.FAMILY, "dask"]):
            header, frames = serialize(array, serializers, context=context)
            assert "handle" not in header
            assert np.array_equal(deserialize(header, frames), array)


def test_the_family_ships_the_handle_alone() -> None:
    integration.register(threshold=1)
    for serializers in (None, [integration.FAMILY], [integration.FAMILY, "dask"]):
        header, frames = serialize(tasks.private(1 << 20), serializers, context=asking())
        assert not frames
        assert len(repr(header)) < 4000
        assert np.array_equal(deserialize(header, frames), tasks.private(1 << 20))


class Peer:
    """A receiver whose life the test decides."""

    living = True

    def alive(self) -> bool:
        return self.living


def grant(leases: integration.Leases, peer: Any, memory: xs.Memory | None = None) -> xs.ArrayHandle:
    array = xs.empty(512) if memory is None else memory.as_array(memory.nbytes, "u1")
    handle = xs.share(array, opens=1)
    leases.grant(handle, memory, peer)
    return handle


def expect(leases: integration.Leases, **wanted: int) -> None:
    found = leases.statistics()
    assert {name: value for name, value in found.items() if value and name != "granted"} == wanted


@pytest.mark.usefixtures("no_fd_leak")
def test_the_ends_of_a_lease() -> None:
    integration.register(lease=300)
    now = [1000.0]
    leases = integration.Leases(lambda: now[0])
    peer: Any = Peer()
    with Child() as child:
        grant(leases, peer)
        now[0] += 299
        expect(leases, waiting=1, waiting_nbytes=4096)
        now[0] += 1
        expect(leases, expired=1)

        late = grant(leases, peer)
        child.call(attach, "late", bytes(late))
        now[0] += 1000  # opened: its time no longer counts
        expect(leases, expired=1, opened=1, opened_nbytes=4096)
        child.call(tasks.drop, "late")
        wait_until(lambda: leases.statistics()["opened"] == 0)
        expect(leases, expired=1, returned=1)

        own = grant(leases, peer)
        child.call(attach, "own", bytes(own))
        expect(leases, expired=1, returned=1, opened=1, opened_nbytes=4096)
        now[0] += 1
        expect(leases, expired=1, returned=1, kept=1)
        assert child.call(tasks.look, "own")["inode"] is not None
        child.call(tasks.drop, "own")

        gone = grant(leases, peer)
        peer.living = False
        expect(leases, expired=1, returned=1, kept=1, lost=1)
        with pytest.raises(xs.HandleExpiredError):
            xs.attach(bytes(gone))


def attach(name: str, handle: bytes) -> None:
    tasks.kept[name] = np.asarray(xs.attach(handle))


@pytest.mark.usefixtures("no_fd_leak")
def test_memory_for_copies() -> None:
    integration.register(copies=4 << 20)
    now = [0.0]
    leases = integration.Leases(lambda: now[0])
    with Child() as child:
        inodes = []
        for name, nbytes in (("a", 1 << 20), ("b", 1 << 20), ("c", 2 << 20)):
            memory = leases.memory(nbytes)
            inodes.append(tasks.inode(np.asarray(memory)))
            child.call(attach, name, bytes(grant(leases, Peer(), memory)))
            del memory
        assert len(set(inodes)) == 3, "memory that somebody has open was used again"
        with pytest.raises(xs.OutOfMemoryError, match="fill the 4194304 bytes"):
            leases.memory(1)
        for name in "abc":
            opened = leases.statistics()["opened"]
            child.call(tasks.drop, name)
            wait_until(lambda opened=opened: leases.statistics()["opened"] < opened)  # the lease's end, in this order
        expect(leases, returned=3, spare_nbytes=4 << 20)
        memory = leases.memory((1 << 20) - 1)
        assert tasks.inode(np.asarray(memory)) == inodes[0]
        expect(leases, returned=3, spare_nbytes=3 << 20)
        assert leases.memory(3 << 20).nbytes == 3 << 20  # for which the others make room
        expect(leases, returned=3)
        grant(leases, Peer(), memory)
        now[0] += 300
        expect(leases, returned=3, expired=1)  # who knows who still reads it
        child.call(attach, "d", bytes(grant(leases, Peer(), leases.memory(1 << 20))))
        child.call(tasks.drop, "d")
        wait_until(lambda: leases.statistics()["spare_nbytes"] == 1 << 20)
        now[0] += 10
        expect(leases, returned=4, expired=1)


def test_settings() -> None:
    with dask.config.set(xpushare={"threshold": "2 kB", "lease": "1 m", "copies": 5}):
        integration.register()
        assert integration._settings == integration._Settings(2000, 60.0, 5)
        integration.register(threshold=7, lease=8, copies="9 B")
        assert integration._settings == integration._Settings(7, 8.0, 9)
    with dask.config.set(xpushare={}):
        integration.register()
    assert integration._settings == integration._Settings(1 << 20, 300.0, 1 << 30)


def test_copies_that_would_be_too_many_go_by_value() -> None:
    integration.register(threshold=1, copies=5000)
    before = integration.leases()["refused"]
    for nbytes, handle in ((4096, True), (8192, False)):
        header, _frames = serialize(tasks.private(nbytes), context=asking())
        assert ("handle" in header) == handle
    assert integration.leases()["refused"] == before + 1


def test_outside_of_dask_pickles_are_handles() -> None:
    array = tasks.shared_array(1 << 20)
    assert len(pickle.dumps(array)) < 1000
    with Child() as child:
        assert child.call(tasks.total, array) == tasks.total(array)


def test_what_cannot_go_by_value_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*;native_cpu:*")
    with pytest.raises(TypeError) as caught:
        serialize(xs.empty(8, device="mock:0"), on_error="raise")
    assert "on mock:0 cannot go by value" in str(caught.value.__cause__)


def test_elements_that_numpy_lacks_go_by_value_as_pickles() -> None:
    torch = pytest.importorskip("torch")
    integration.register(threshold=1)
    header, frames = serialize(torch.full((8,), 1.5, dtype=torch.bfloat16), context=None)
    found = deserialize(header, frames)
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [1.5] * 8
