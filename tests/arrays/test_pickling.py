"""A SharedArray through every pickler: plain bytes, the same memory. Through every pool: test_pools.py."""

from __future__ import annotations

import concurrent.futures
import gc
import importlib.util
import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pytest
from array_peer import add_one, add_one_from, looked_at, pass_on

import xpushare as xs
from harness import Child, kept
from xpushare.sharing import node


def array_of(*values: float) -> xs.SharedArray:
    array = xs.empty(len(values))
    np.asarray(array)[:] = values
    return array


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_every_protocol(peer: Child, pickler: Any, protocol: int) -> None:
    array = array_of(1, 2, 3)
    data = pickler.dumps(array, protocol=protocol)
    assert peer.call(_add_one_in, data) == 9
    assert np.asarray(array).tolist() == [2, 3, 4]
    here = pickle.loads(data)
    assert here.is_imported
    assert np.asarray(here).tolist() == [2, 3, 4]


def _add_one_in(data: bytes) -> float:
    return add_one(pickle.loads(data))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_process_argument_and_queue(method: str) -> None:
    array = array_of(1, 2)
    context = multiprocessing.get_context(method)
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=add_one_from, args=(there, back))
    process.start()
    there.put(array)  # pickled by the queue's own thread
    assert back.get(timeout=60) == 5
    process.join(60)
    assert process.exitcode == 0
    assert np.asarray(array).tolist() == [2, 3]
    for queue in (there, back):
        queue.close()
        queue.join_thread()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_pool(method: str) -> None:
    array = array_of(0, 0, 0)
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        for each in [pool.submit(add_one, array) for _ in range(4)]:
            each.result(60)
        again = pool.submit(pass_on, array).result(60)
        assert np.shares_memory(np.asarray(again), np.asarray(array))  # it went there and came back as its own handle
    assert np.asarray(array).sum() == 15


def test_loky() -> None:
    if importlib.util.find_spec("loky") is None:
        pytest.skip("loky is not installed: pip install loky")
    import loky

    array = array_of(1, 1)
    with loky.ProcessPoolExecutor(1) as pool:
        assert pool.submit(add_one, array).result(60) == 4
    assert np.asarray(array).tolist() == [2, 2]


def test_joblib() -> None:
    if importlib.util.find_spec("joblib") is None:
        pytest.skip("joblib is not installed: pip install joblib")
    import joblib

    array = array_of(1, 1)
    with joblib.parallel_config("loky", n_jobs=2):
        joblib.Parallel()(joblib.delayed(add_one)(array) for _ in range(3))
    assert np.asarray(array).tolist() == [4, 4]
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown()


def test_the_export_ends_with_the_array(peer: Child) -> None:
    table = node.current().table()
    before = table.statistics()["exports"]
    array = array_of(1)
    first, second = pickle.dumps(array), pickle.dumps(array)
    assert first == second
    assert table.statistics()["exports"] == before + 1
    peer.call(_add_one_in, first)
    del array
    gc.collect()
    assert table.statistics()["exports"] == before + 1  # there were two pickles
    assert peer.call(_add_one_in, second) == 3
    table.sweep(everything=True)
    assert table.statistics()["exports"] == before
    with pytest.raises(xs.HandleExpiredError, match="keep what you pickle"):
        peer.call(_add_one_in, second)


def test_an_import_forwards_its_handle(peer: Child, other: Child) -> None:
    """The process in between may go: the handle is the first one's."""
    base = xs.empty((4, 3))
    view = np.asarray(base)[::-1, 1]
    view[:] = [1, 2, 3, 4]
    with xs.share(view) as handle:
        data = peer.call(_pickled_import, bytes(handle))
        assert other.call(_add_one_in, data) == 14
        assert view.tolist() == [2, 3, 4, 5]


def _pickled_import(raw: bytes) -> bytes:
    return pickle.dumps(xs.attach(raw))


def test_an_array_over_an_opened_memory(peer: Child) -> None:
    with xs.malloc_device(64, "native_cpu:0") as memory:
        memoryview(memory)[:] = bytes(range(64))
        handle = xs.ipc.memory.get(memory.slice(8, 40))
        data = peer.call(_pickled_view_of_memory, bytes(handle))
        found = pickle.loads(data)
        assert np.asarray(found).tolist() == list(range(24, 30))
        xs.ipc.memory.put(handle)


def _pickled_view_of_memory(raw: bytes) -> bytes:
    return pickle.dumps(xs.ipc.memory.open(raw).as_array(6, "u1", offset=16))


def test_read_only_stays(peer: Child) -> None:
    with xs.share(array_of(1), read_only=True) as handle:
        assert peer.call(looked_at, pickle.loads(pickle.dumps(xs.attach(handle))).handle)["read_only"]


def test_many_threads_pickle_one_array() -> None:
    table = node.current().table()
    before = table.statistics()["exports"]
    array = array_of(1)
    found: list[bytes] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        found.append(pickle.dumps(array))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    np.asarray(pickle.loads(found[0]))
    assert table.statistics()["exports"] == before + 1


def test_a_closed_array_does_not_pickle() -> None:
    array = array_of(1)
    array.close()
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        pickle.dumps(array)


# --- how often a pickle can be opened is not a matter of chance


def _temporary() -> bytes:
    return pickle.dumps(xs.array([1.0, 2.0]))


@pytest.mark.parametrize("where", ["another process", "the exporter"])
@pytest.mark.parametrize("held", [True, False])
def test_a_pickled_temporary_can_be_opened_once(where: str, held: bool) -> None:
    with Child() as peer:
        data = peer.call(_temporary) if where == "another process" else _temporary()
        first = pickle.loads(data)
        assert np.asarray(first).tolist() == [1.0, 2.0]
        if not held:
            first.close()
        for _ in range(3):
            with pytest.raises(xs.HandleExpiredError, match="opened once"):
                np.asarray(pickle.loads(data))
        passed_on = None if not held else pickle.dumps(first)  # good for one open more
        if passed_on is not None:
            assert np.asarray(pickle.loads(passed_on)).tolist() == [1.0, 2.0]
            with pytest.raises(xs.HandleExpiredError):
                np.asarray(pickle.loads(passed_on))


def _opened(data: bytes, gate: str) -> bool:
    while not Path(gate).exists():  # so that all open it at the same moment
        pass
    array = kept["array"] = pickle.loads(data)
    try:
        return bool(np.asarray(array).tolist() == [1.0, 2.0])
    except xs.HandleExpiredError:
        return False


def test_one_of_several_who_open_it_at_once_has_it(tmp_path: Path) -> None:
    with Child() as exporter, Child() as one, Child() as two:
        for turn in range(20):
            data, gate = exporter.call(_temporary), tmp_path / f"gate-{turn}"
            pending = [each.start(_opened, data, str(gate)) for each in (one, two)]
            gate.touch()
            assert sorted(each.result() for each in pending) == [False, True]
            for each in (one, two):
                each.call(kept.clear)


def test_a_living_object_s_pickle_can_be_opened_as_often_as_wanted() -> None:
    array = xs.array([1.0, 2.0])
    data = pickle.dumps(array)
    with Child() as peer:
        for _ in range(3):
            assert np.asarray(pickle.loads(data)).tolist() == [1.0, 2.0]
            assert peer.call(lambda raw: np.asarray(pickle.loads(raw)).tolist(), data) == [1.0, 2.0]
