"""Dask with its real scheduler, workers and nannies: what goes as a handle, what by value, and how long it lives."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed")

import dask
import dask_tasks as tasks
from distributed import Client, LocalCluster, Nanny, Scheduler, SpecCluster, wait

import xpushare as xs
from harness import Child, wait_until
from xpushare.integrations import dask as integration

NBYTES = 1 << 20
TIMEOUT = 100  # on a busy machine it takes that long to import torch
BY_VALUE = ("repeated", "no elements", "objects", "masked", "small")
IN_PLACE = ("shared, every second", "shared, turned")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where Dask spills and locks; and data and workers stay where a test has put them."""
    settings = {
        "temporary-directory": str(tmp_path_factory.mktemp("dask")),
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.deploy.lost-worker-timeout": f"{TIMEOUT}s",  # then a killed worker's nanny is closed
    }
    with dask.config.set(settings):
        yield


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit="2 GiB"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(integration.XpushareSerialization(threshold=4000))
        integration.register(client)
        yield client


@pytest.fixture
def pair(client: Client) -> tuple[str, str]:
    """Two workers, both there."""
    client.wait_for_workers(2, timeout=TIMEOUT)
    first, second = client.nthreads()
    return first, second


def on(client: Client, worker: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call in a worker's process, past the scheduler."""
    return client.run(function, *args, workers=[worker])[worker]


def submit(client: Client, worker: str, function: Callable[..., Any], *args: Any) -> Any:
    return client.submit(function, *args, workers=[worker], pure=False)


def kill(client: Client, worker: str) -> None:
    """SIGKILL, and wait until Dask has seen it; its nanny starts another one."""
    os.kill(on(client, worker, os.getpid), signal.SIGKILL)
    wait_until(lambda: worker not in client.nthreads(), what="Dask sees the death")


def moved(client: Client, pair: tuple[str, str], made: Any, name: str) -> dict[str, Any]:
    """Have the second worker keep what the first has made; what it sees."""
    return submit(client, pair[1], tasks.keep, made, name).result(TIMEOUT)


def test_import_of_the_package_needs_no_dask() -> None:
    with Child() as child:
        assert not child.call(lambda: [__import__("xpushare"), "distributed" in __import__("sys").modules][1])


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_kinds_of_arrays(client: Client, pair: tuple[str, str], kind: str) -> None:
    made = submit(client, pair[0], tasks.make, kind)
    wanted = submit(client, pair[0], tasks.describe, made).result(TIMEOUT)
    before = on(client, pair[0], tasks.statistics)["granted"]
    found = submit(client, pair[1], tasks.describe, made).result(TIMEOUT)
    for name in ("type", "dtype", "shape", "digest"):
        assert found[name] == wanted[name], name
    by_handle = kind not in BY_VALUE
    assert on(client, pair[0], tasks.statistics)["granted"] - before == by_handle
    assert (found["inode"] is not None) == by_handle
    if kind in IN_PLACE:
        assert found["inode"] == wanted["inode"]
        assert not found["writeable"]
    elif kind not in BY_VALUE:
        assert found["writeable"] == wanted["writeable"]
        assert found["fortran"] == wanted["fortran"]
    assert np.array_equal(np.asarray(made.result(TIMEOUT)), tasks.make(kind))  # to the client, by value


def test_zero_copy(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.shared, NBYTES)
    there = submit(client, pair[0], tasks.keep, made, "zero").result(TIMEOUT)
    here = moved(client, pair, made, "zero")
    assert here["inode"] == there["inode"] is not None
    on(client, pair[0], tasks.write, "zero", 42.0)
    assert on(client, pair[1], tasks.look, "zero")["digest"] == on(client, pair[0], tasks.look, "zero")["digest"]
    client.run(tasks.drop, "zero")


def test_a_copy_is_the_receivers_own(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.private, NBYTES)
    submit(client, pair[0], tasks.keep, made, "copy").result(TIMEOUT)
    found = moved(client, pair, made, "copy")
    on(client, pair[1], tasks.write, "copy", -1.0)
    assert on(client, pair[1], tasks.look, "copy")["digest"] != found["digest"]
    assert on(client, pair[0], tasks.look, "copy")["digest"] == found["digest"]
    client.run(tasks.drop, "copy")


def test_collections(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], lambda: [tasks.private(NBYTES), {"a": tasks.shared(NBYTES), "b": 7}])
    before = on(client, pair[0], tasks.statistics)["granted"]
    found = submit(client, pair[1], lambda both: tasks.total(both[0], both[1]["a"]) + both[1]["b"], made)
    assert found.result(TIMEOUT) == 2 * tasks.total(tasks.private(NBYTES)) + 7
    assert on(client, pair[0], tasks.statistics)["granted"] - before == 2


def test_shared_arrays_stay_shared_arrays(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.shared_array, NBYTES)
    there = submit(client, pair[0], tasks.describe, made).result(TIMEOUT)
    here = submit(client, pair[1], tasks.describe, made).result(TIMEOUT)
    assert here["type"] is xs.SharedArray
    assert here["inode"] == there["inode"]
    at_home = made.result(TIMEOUT)  # by value: a new one
    assert isinstance(at_home, xs.SharedArray)
    assert np.array_equal(np.asarray(at_home), tasks.private(NBYTES))
    assert client.nbytes(summary=False)[made.key] == NBYTES


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.exhaustive
def test_tensors(client: Client, pair: tuple[str, str], in_place: bool) -> None:
    made = submit(client, pair[0], tasks.tensor, NBYTES, in_place)
    assert submit(client, pair[1], tasks.tensor_total, made).result(TIMEOUT) == ("Tensor", NBYTES / 2, True)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("length", [8, NBYTES])
def test_elements_that_numpy_lacks(client: Client, pair: tuple[str, str], length: int) -> None:
    """By value, and by handle."""
    before = on(client, pair[0], tasks.statistics)["granted"]
    made = submit(client, pair[0], tasks.bfloat16_tensor, length)
    seen = submit(client, pair[1], tasks.bfloat16_seen, made).result(TIMEOUT)
    assert seen == ("torch.bfloat16", 1.5 * length, length)
    assert on(client, pair[0], tasks.statistics)["granted"] - before == (length == NBYTES)
    assert made.result(TIMEOUT).tolist() == [1.5] * length


# --- how long it lives


def test_released_at_once(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.shared, NBYTES)
    found = moved(client, pair, made, "released")
    key = made.key
    del made
    wait_until(lambda: not on(client, pair[0], tasks.has, key), what="the producer releases the key")
    on(client, pair[0], gc.collect)
    assert on(client, pair[1], tasks.look, "released") == found
    # The lease ends, too, with the receiver as the only owner.
    wait_until(lambda: on(client, pair[0], tasks.statistics)["opened"] == 0, what="the lease ends")
    assert on(client, pair[1], tasks.look, "released") == found
    on(client, pair[1], tasks.drop, "released")


@pytest.mark.parametrize("make", [tasks.private, tasks.shared, tasks.shared_array])
def test_spilled(client: Client, pair: tuple[str, str], make: Callable[[int], Any]) -> None:
    made = submit(client, pair[0], make, NBYTES)
    found = moved(client, pair, made, "spilled")
    on_disk = dict(on(client, pair[0], tasks.evict))
    assert on_disk[made.key] >= NBYTES, "what is on disk is not a value"
    on(client, pair[0], gc.collect)
    assert on(client, pair[1], tasks.look, "spilled") == found
    on(client, pair[1], tasks.drop, "spilled")
    assert np.array_equal(np.asarray(made.result(TIMEOUT)), tasks.private(NBYTES))


def test_spilled_before_it_is_asked_for(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.shared, NBYTES)
    wait(made, TIMEOUT)
    assert made.key in dict(on(client, pair[0], tasks.evict))
    assert submit(client, pair[1], tasks.total, made).result(TIMEOUT) == tasks.total(tasks.private(NBYTES))


def test_spilled_inside_of_something(client: Client, pair: tuple[str, str]) -> None:
    """What only pickle can take apart is on disk by value, too."""
    label = submit(client, pair[0], tasks.labelled, NBYTES)
    holder = submit(client, pair[0], tasks.Holder, NBYTES)
    wait([label, holder], TIMEOUT)
    on_disk = dict(on(client, pair[0], tasks.evict))
    assert {label.key, holder.key} <= set(on_disk)
    on(client, pair[0], gc.collect)
    wanted = tasks.total(tasks.private(NBYTES))
    assert submit(client, pair[1], tasks.label_and_total, label).result(TIMEOUT) == ("label", wanted)
    assert submit(client, pair[1], tasks.held_total, holder).result(TIMEOUT) == wanted


def test_passed_on(client: Client, pair: tuple[str, str]) -> None:
    """A receiver serves others, also when the first producer has dropped it."""
    made = submit(client, pair[0], tasks.shared, NBYTES)
    second = submit(client, pair[1], lambda array: array[1:], made)
    third = submit(client, pair[0], tasks.describe, second).result(TIMEOUT)
    assert third["digest"] == tasks.describe(tasks.private(NBYTES)[1:])["digest"]
    assert third["inode"] is not None


def test_replicated(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.private, NBYTES)
    wait(made, TIMEOUT)
    before = on(client, pair[1], tasks.statistics)["attached"]
    client.replicate([made], workers=list(pair))
    assert all(client.run(tasks.has, made.key).values())
    assert on(client, pair[1], tasks.statistics)["attached"] == before + 1


def test_memory_is_used_again(client: Client, pair: tuple[str, str]) -> None:
    on(client, pair[0], tasks.stop_clock)  # else a receiver that takes its time keeps the memory
    inodes = set()
    for _ in range(3):
        made = submit(client, pair[0], tasks.private, NBYTES)
        inodes.add(submit(client, pair[1], tasks.describe, made).result(TIMEOUT)["inode"])
        key = made.key
        del made
        wait_until(lambda key=key: not any(client.run(tasks.has, key).values()), what="Dask forgets the key")
        wait_until(lambda: not on(client, pair[0], tasks.statistics)["opened"], what="the receiver lets go")
    assert len(inodes) == 1
    on(client, pair[0], tasks.start_clock)


def test_gather_directly(client: Client, pair: tuple[str, str]) -> None:
    made = [submit(client, pair[0], make, NBYTES) for make in (tasks.private, tasks.shared)]
    for array in client.gather(made, direct=True):
        assert tasks.inode(array) is not None
        assert np.array_equal(array, tasks.private(NBYTES))
    scattered = client.scatter(tasks.private(NBYTES), workers=[pair[0]], direct=True)  # by value, then on by handle
    before = on(client, pair[1], tasks.statistics)["attached"]
    assert submit(client, pair[1], tasks.total, scattered).result(TIMEOUT) == tasks.total(tasks.private(NBYTES))
    assert on(client, pair[1], tasks.statistics)["attached"] == before + 1


# --- what goes wrong


def test_a_handle_that_has_expired_is_asked_for_again(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.private, NBYTES)
    wait(made, TIMEOUT)
    failed = on(client, pair[1], tasks.statistics)["failed"]
    on(client, pair[0], tasks.lose_next)
    assert moved(client, pair, made, "again")["inode"] is not None
    assert on(client, pair[1], tasks.statistics)["failed"] == failed + 1
    assert on(client, pair[1], tasks.asks)
    on(client, pair[1], tasks.drop, "again")


def test_handles_that_always_expire_end_in_values(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.private, NBYTES)
    wait(made, TIMEOUT)
    on(client, pair[0], tasks.lose_next, 3)
    assert submit(client, pair[1], tasks.describe, made).result(TIMEOUT)["inode"] is None
    assert not on(client, pair[1], tasks.asks)
    on(client, pair[1], tasks.ask_again)
    assert submit(client, pair[1], tasks.describe, submit(client, pair[0], tasks.private, NBYTES)).result(TIMEOUT)[
        "inode"
    ]


def test_an_expired_handle_of_a_direct_gather(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.private, NBYTES)
    wait(made, TIMEOUT)
    on(client, pair[0], tasks.lose_next)
    assert np.array_equal(client.gather(made, direct=True), tasks.private(NBYTES))  # by way of the scheduler


def test_consumer_dies_before_it_opens(client: Client, pair: tuple[str, str]) -> None:
    pid = on(client, pair[1], os.getpid)
    made = submit(client, pair[0], tasks.private, NBYTES)
    wait(made, TIMEOUT)
    before = on(client, pair[0], tasks.statistics)
    on(client, pair[1], tasks.stop_when_a_handle_comes)
    result = client.submit(tasks.total, made, workers=[pair[1]], allow_other_workers=True, pure=False)
    wait_until(lambda: on(client, pair[0], tasks.statistics)["waiting"] == 1, what="the handle is on its way")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: on(client, pair[0], tasks.statistics)["lost"] == before["lost"] + 1, what="the lease ends")
    assert on(client, pair[0], tasks.statistics)["waiting_nbytes"] == 0
    assert result.result(TIMEOUT) == tasks.total(tasks.private(NBYTES))


def test_consumer_dies_while_it_holds(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.shared, NBYTES)
    moved(client, pair, made, "held")
    kill(client, pair[1])
    wait_until(lambda: on(client, pair[0], tasks.statistics)["opened"] == 0, what="the lease ends")
    assert np.array_equal(made.result(TIMEOUT), tasks.private(NBYTES))


@pytest.mark.exhaustive
def test_producer_dies(client: Client, pair: tuple[str, str]) -> None:
    made = submit(client, pair[0], tasks.shared, NBYTES)
    found = moved(client, pair, made, "orphan")
    assert found["inode"] is not None, "a worker that came later does not ask for handles"
    kill(client, pair[0])
    assert on(client, pair[1], tasks.look, "orphan") == found
    on(client, pair[1], tasks.drop, "orphan")


# --- between nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[Client]:
    """Workers "here", "there" at another address, which is another node to Dask, "blind", which cannot open what others
    export, and "plain", which has never heard of handles.
    """

    def worker(**options: Any) -> dict[str, Any]:
        same = {"nthreads": 1, "memory_limit": "2 GiB", "preload": ["xpushare.integrations.dask"]}
        return {"cls": Nanny, "options": same | options}

    workers = {
        "plain": worker(host="127.0.0.1", preload=[]),
        "here": worker(host="127.0.0.1"),
        "there": worker(host="127.0.0.2"),
        "blind": worker(host="127.0.0.1", env={"ONEAPI_DEVICE_SELECTOR": "mock:*"}),
    }
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "dashboard_address": ":0"}}
    with (
        dask.config.set({"xpushare.threshold": "4 kB"}),
        SpecCluster(workers, scheduler) as cluster,
        Client(cluster) as client,
    ):
        yield client


def named(client: Client) -> dict[str, str]:
    found = client.sync(client.scheduler.identity, n_workers=-1)  # scheduler_info() may lose a race and have no workers
    return {about["name"]: address for address, about in found["workers"].items()}


@pytest.mark.parametrize("way", [("here", "there"), ("there", "here"), ("here", "plain"), ("plain", "here")])
@pytest.mark.exhaustive
def test_dasks_own_way(nodes: Client, way: tuple[str, str]) -> None:
    """Between nodes, and to and from workers that have not registered."""
    workers = named(nodes)
    producer, consumer = (workers[name] for name in way)
    for make in (tasks.private, tasks.shared, tasks.shared_array):
        made = submit(nodes, producer, make, NBYTES)
        found = submit(nodes, consumer, tasks.describe, made).result(TIMEOUT)
        assert found["digest"] == tasks.describe(tasks.private(NBYTES))["digest"]
    assert on(nodes, producer, tasks.statistics)["granted"] == 0
    assert on(nodes, consumer, tasks.statistics)["attached"] == 0


@pytest.mark.exhaustive
def test_who_cannot_open_gets_values(nodes: Client) -> None:
    workers = named(nodes)
    made = [submit(nodes, workers["here"], tasks.private, NBYTES, first) for first in (0.0, 1.0)]
    wait(made, TIMEOUT)
    assert on(nodes, workers["blind"], tasks.asks)
    for first, each in zip((0.0, 1.0), made, strict=True):
        found = submit(nodes, workers["blind"], tasks.describe, each).result(TIMEOUT)
        assert found["digest"] == tasks.describe(tasks.private(NBYTES, first))["digest"]
        assert found["inode"] is None
    assert on(nodes, workers["blind"], tasks.statistics)["failed"] == 1
    assert not on(nodes, workers["blind"], tasks.asks)
    # What it did not open is given up by its lease's time, and not before.
    assert on(nodes, workers["here"], tasks.statistics)["waiting_nbytes"] == NBYTES
    on(nodes, workers["here"], tasks.later, 300.0)
    wait_until(lambda: on(nodes, workers["here"], tasks.statistics)["waiting"] == 0, what="the lease expires")
    assert on(nodes, workers["here"], tasks.statistics)["expired"] == 1
