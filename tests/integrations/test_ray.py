"""The transport with real Ray: one cluster of two nodes on this host for the whole module."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Ray reads these when it is imported: no token in the home folder, no reports.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16), RAY_USAGE_STATS_ENABLED="0")
os.environ.update(RAY_worker_niceness="0")  # not Ray's 15, at which the tests beside these leave its workers no CPU
pytest.importorskip("ray", reason="needs Ray: pip install ray")

import ray  # type: ignore[import-not-found,unused-ignore]
import ray_peer
from ray.cluster_utils import Cluster  # type: ignore[import-not-found,unused-ignore]
from ray.experimental.rdt.util import get_tensor_transport_manager  # type: ignore[import-not-found,unused-ignore]
from ray_peer import MADE, Peer, exports, made, seen, shared

import xpushare as xs
from harness import Child, wait_until
from xpushare import adapters
from xpushare.integrations.ray import Metadata, Transport, _placed, _read, register
from xpushare.sharing.handle import fields_of

TIMEOUT = 60
if importlib.util.find_spec("torch") is None:
    # Ray 2.60 imports torch when a transfer has failed; without torch its thread that looks after transfers ends there.
    pytestmark = pytest.mark.filterwarnings(
        r"ignore:Exception in thread Thread-\d+ \(_monitor_failures\):pytest.PytestUnhandledThreadExceptionWarning"
    )


class Nodes:
    """Two Ray nodes, the driver's and another one, with a producer and a consumer on each."""

    def __init__(self) -> None:
        self.near, self.near_too, self.far, self.far_too = map(self.start, ("near", "near", "far", "far"))

    @staticmethod
    def start(where: str, cls: Any = Peer) -> Any:
        return cls.options(resources={where: 1}).remote()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    folder = tempfile.mkdtemp(prefix="ray-")  # short: Ray's sockets are in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes have a GPU in common
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))  # of the workers
        cluster = Cluster()
        try:
            for name in ("near", "far"):
                cluster.add_node(
                    num_cpus=1,
                    num_gpus=len(adapters.adapter("cuda").devices()),
                    resources={name: 100},
                    object_store_memory=100 << 20,
                    include_dashboard=False,
                )
            ray.init(address=cluster.address, log_to_driver=False)
            yield Nodes()
        finally:
            ray.shutdown()
            cluster.shutdown()
            try:
                wait_until(lambda: not using(folder), TIMEOUT, "the end of Ray's processes")
            finally:
                for pid in using(folder):
                    os.kill(pid, signal.SIGKILL)
                shutil.rmtree(folder)


def using(folder: str) -> list[int]:
    """The processes with that folder in their command line."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if folder.encode() in each.read_bytes():
                found.append(int(each.parent.name))
    return found


def get(reference: Any, timeout: float = TIMEOUT) -> Any:
    return ray.get(reference, timeout=timeout)


def transport() -> Transport:
    """This process's own."""
    found: Transport = get_tensor_transport_manager("XPUSHARE")
    return found


def metadata_of(reference: Any) -> Metadata:
    manager = ray._private.worker.global_worker.rdt_manager
    found: Metadata = manager.wait_for_tensor_transport_metadata(reference.hex(), TIMEOUT)
    return found


def importers(pid: int) -> set[int]:
    return {importer for row in exports(pid) for importer in row["importers"]}


# --- registration -----------------------------------------------------------------------------------------------------


def test_register_is_idempotent_and_refuses_what_it_cannot_carry() -> None:
    register()
    register("xpushare", np.ndarray)
    with pytest.raises(xs.InvalidArgumentError, match="registered already"):
        register("XPUSHARE", xs.SharedArray)
    with pytest.raises(xs.InvalidArgumentError, match="array type"):
        register("OTHER", dict)
    register("XPUSHARE_ALSO", np.ndarray)
    assert get_tensor_transport_manager("XPUSHARE_ALSO").tensor_transport_backend() == "XPUSHARE_ALSO"
    assert transport().tensor_transport_backend() == "XPUSHARE"
    assert transport().can_abort_transport()
    assert transport().is_one_sided()


# --- inside a node ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["near_too", pytest.param("far", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", MADE)
def test_arrays_arrive(nodes: Nodes, name: str, where: str) -> None:
    reference = nodes.near.make.remote(name)
    assert get(getattr(nodes, where).seen.remote(reference)) == seen(made(name))


@pytest.mark.parametrize("where", ["near_too", "far"])
def test_every_way_to_make_and_to_get_an_object(nodes: Nodes, where: str) -> None:
    wanted = seen(made("several"))
    consumer, producer = getattr(nodes, where), nodes.near
    assert get(consumer.fetch.remote(get(producer.put.remote("several")))) == wanted  # ray.put and ray.get in actors
    assert seen(get(get(getattr(nodes, where).put.remote("several"))[0])) == wanted  # ray.get in the driver
    assert seen(get(consumer.make.remote("several"))) == wanted
    mine = ray.put(made("several"), _tensor_transport="XPUSHARE")  # ray.put in the driver
    assert get(consumer.seen.remote(mine)) == wanted
    assert get(consumer.fetch.remote([mine])) == wanted


def test_arrays_in_shared_memory_are_not_copied(nodes: Nodes) -> None:
    pid, other = get([nodes.near.pid.remote(), nodes.near_too.pid.remote()])
    reference = nodes.near.make.remote("shared strided")
    first, total = made("shared strided").flat[0], made("shared strided").sum()
    get(nodes.near_too.keep.remote(reference))
    assert importers(pid) == {other}
    assert all(xs.ArrayHandle(handle).copied_nbytes == 0 for handle in metadata_of(reference).handles)
    assert get(nodes.near_too.add.remote(reference, 100)) == total + 100
    assert get(nodes.near.first.remote()) == first + 100, "the producer does not see what the consumer wrote"
    assert get(nodes.near_too.first.remote()) == first + 100, "one object arrived as two memories"
    value = get(reference)  # the driver's own view
    assert value.flat[0] == first + 100
    value.flat[0] = -1
    assert get(nodes.near.first.remote()) == -1
    get(nodes.near_too.keep.remote(None))


def test_private_arrays_are_copied_once(nodes: Nodes) -> None:
    reference = nodes.near.make.remote("float64")
    get(nodes.near_too.add.remote(reference, 100))
    assert get(nodes.near.first.remote()) == 0, "what the consumer wrote came into the private array"
    assert get(reference).flat[0] == 100, "each consumer has a copy of its own"


def test_memory_of_copies_is_used_again_when_nobody_has_it_open(nodes: Nodes) -> None:
    def memory_of(reference: Any) -> int:
        (handle,) = metadata_of(reference).handles
        found: int = fields_of(xs.ArrayHandle(handle).handle).object
        return found

    pid = get(nodes.near.pid.remote())

    def released() -> bool:
        return not [row for row in exports(pid) if row["state"] == "shared"]

    reference = nodes.near.fill.remote(6_000_000, 1, False)
    first = memory_of(reference)
    assert get(nodes.near_too.add.remote(reference, 0)) == 6_000_000
    del reference
    wait_until(released, TIMEOUT, "the release")
    reference = nodes.near.fill.remote(5_000_000, 2, False)
    assert memory_of(reference) == first
    get(nodes.near_too.keep.remote(reference))
    del reference
    wait_until(released, TIMEOUT, "the release")
    reference = nodes.near.fill.remote(4_000_000, 3, False)
    assert memory_of(reference) != first, "the memory is used again under a reader's eyes"
    assert get(nodes.near_too.total.remote()) == 10_000_000
    get(nodes.near_too.keep.remote(None))


@pytest.mark.parametrize("name", ["shared strided", "float64"])
def test_release(nodes: Nodes, name: str) -> None:
    """The exports end with the last reference, what arrived stays good."""
    pid = get(nodes.near.pid.remote())
    reference = nodes.near.make.remote(name)
    get(nodes.near_too.keep.remote(reference))
    assert [row["state"] for row in exports(pid)] == ["shared"]
    del reference
    wait_until(lambda: not [row for row in exports(pid) if row["state"] == "shared"], TIMEOUT, "the release")
    assert get(nodes.near_too.first.remote()) == made(name).flat[0]
    get(nodes.near_too.keep.remote(None))
    wait_until(lambda: not exports(pid), TIMEOUT, "the end of the import")


def own_exports() -> int:
    """How many this process has, also of tests before this one, whose garbage is gone."""
    gc.collect()
    return len(exports(os.getpid()))


def test_release_in_the_driver_and_of_what_an_actor_put(nodes: Nodes) -> None:
    pid, before = get(nodes.near.pid.remote()), own_exports()
    mine = ray.put([shared(made("float64")), made("float64")], _tensor_transport="XPUSHARE")
    inner = get(nodes.near.put.remote("several"))
    assert get(nodes.near_too.seen.remote(mine))
    assert get(nodes.near_too.fetch.remote(inner))
    assert own_exports() > before
    assert exports(pid)
    del mine, inner
    wait_until(lambda: own_exports() <= before and not exports(pid), TIMEOUT, "the release")


def test_what_cannot_be_shared_is_refused_and_leaves_nothing(nodes: Nodes) -> None:
    """The second array is refused: the first one's export is withdrawn."""
    before = own_exports()
    with pytest.raises(xs.InvalidArgumentError, match="Python objects"):
        transport().extract_tensor_transport_metadata("refused", [np.zeros(3), np.array([object()])])
    assert own_exports() <= before
    with pytest.raises(xs.InvalidArgumentError, match="Python objects"):
        get(nodes.near_too.seen.remote(nodes.near.make.remote("objects")))


def test_asked_again_for_the_same_object(nodes: Nodes) -> None:  # noqa: ARG001
    """Ray repeats a call whose answer was lost: no second export."""
    before = own_exports()
    arrays = [np.zeros(3), shared(np.ones(2))]
    first = transport().extract_tensor_transport_metadata("asked twice", arrays)
    assert transport().extract_tensor_transport_metadata("asked twice", arrays) is first
    assert first.tensor_meta == [((3,), np.dtype(float)), ((2,), np.dtype(float))]
    transport().garbage_collect("asked twice", first, arrays)
    transport().garbage_collect("asked twice", first, arrays)
    assert own_exports() <= before


def test_target_buffers(nodes: Nodes) -> None:
    for producer in (nodes.near, nodes.far):
        reference = producer.make.remote("strided")
        target = np.zeros(made("strided").shape)
        fetch = transport().fetch_multiple_tensors(reference.hex(), metadata_of(reference), None, [target])
        assert transport().wait_fetch_complete(fetch, TIMEOUT)[0] is target
        assert np.array_equal(target, made("strided"))


# --- deaths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [pytest.param("near_too", marks=pytest.mark.exhaustive), "far"])
def test_producer_dies_before_the_consumer_asks(nodes: Nodes, where: str) -> None:
    producer = nodes.start("near")
    reference = producer.make.remote("shared strided")
    metadata_of(reference)
    pid = get(producer.pid.remote())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())  # until then it can still be opened
    for ask in (lambda: getattr(nodes, where).seen.remote(reference), lambda: reference):
        with pytest.raises(xs.HandleExpiredError, match=f"pid {pid}\\) has exited"):
            get(ask())
    assert get(getattr(nodes, where).seen.remote(nodes.near.make.remote("bool"))) == seen(made("bool"))


@pytest.mark.exhaustive
def test_producer_dies_before_it_has_made_the_object(nodes: Nodes) -> None:
    with xs.Event("native_cpu:0", enable_ipc=True) as never:
        producer = nodes.start("near")
        pid = get(producer.pid.remote())
        producer.wait.remote(never)
        reference = producer.make.remote("float64")
        asked = nodes.near_too.seen.remote(reference)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ray.exceptions.ActorDiedError):
            get(asked)
    assert get(nodes.near_too.seen.remote(nodes.near.make.remote("bool"))) == seen(made("bool"))


@pytest.mark.exhaustive
def test_producer_dies_after_the_arrival(nodes: Nodes) -> None:
    producer = nodes.start("near")
    pid = get(producer.pid.remote())
    reference = producer.make.remote("shared strided")
    get(nodes.near_too.keep.remote(reference))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert get(nodes.near_too.first.remote()) == made("shared strided").flat[0]
    get(nodes.near_too.keep.remote(None))


def test_consumer_dies(nodes: Nodes) -> None:
    consumer = nodes.start("near")
    pid, producer_pid = get([consumer.pid.remote(), nodes.near.pid.remote()])
    reference = nodes.near.make.remote("shared strided")
    get(consumer.keep.remote(reference))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError):
        get(consumer.seen.remote(reference))
    assert get(nodes.near.first.remote()) == made("shared strided").flat[0]
    assert get(nodes.near_too.seen.remote(reference)) == seen(made("shared strided"))
    del reference
    wait_until(lambda: not exports(producer_pid), TIMEOUT, "the release")


# --- between nodes ----------------------------------------------------------------------------------------------------


def test_between_nodes_it_is_rays_own_store(nodes: Nodes) -> None:
    """A task on the producer's node puts the elements there; the consumer maps nothing of the producer's."""
    producer, consumer = get([nodes.near.pid.remote(), nodes.far.pid.remote()])
    reference = nodes.near.fill.remote(1 << 20, 0, True)
    get(nodes.far.keep.remote(reference))
    assert consumer not in importers(producer)
    assert get(nodes.far.add.remote(reference, 7)) == 7, "the copy cannot be written"
    assert get(nodes.near.first.remote()) == 0

    reference = nodes.far.fill.remote(1 << 20, 0, True)
    fetch = transport().fetch_multiple_tensors("it", metadata_of(reference), None)
    assert fetch.tensors == []
    ray.wait([fetch.elements], timeout=TIMEOUT, fetch_local=False)
    place = ray.experimental.get_object_locations([fetch.elements])[fetch.elements]
    assert place["node_ids"] == [metadata_of(reference).node_id]
    assert place["object_size"] >= 1 << 20
    (array,) = transport().wait_fetch_complete(fetch, TIMEOUT)
    assert array.shape == (1 << 20,)
    assert not array.any()
    assert os.getpid() not in importers(get(nodes.far.pid.remote()))


def test_busy_producer(nodes: Nodes) -> None:
    """Nobody needs the producer to act, on its node or between nodes."""
    reference = nodes.near.make.remote("float64")
    metadata_of(reference)
    with xs.Event("native_cpu:0", enable_ipc=True) as done:
        busy = nodes.near.wait.remote(done)
        for consumer in (nodes.near_too, nodes.far):
            assert get(consumer.seen.remote(reference)) == seen(made("float64"))
        done.signal()
        get(busy)


def test_both_ways_at_once(nodes: Nodes) -> None:
    actors = [nodes.near, nodes.near_too, nodes.far, nodes.far_too]
    objects = [(actor, actor.make.remote("several")) for actor in actors * 3]
    asked = [actor.seen.remote(each) for actor in actors for producer, each in objects if producer is not actor]
    assert get(asked) == [seen(made("several"))] * len(asked)


def test_time_out_and_abort(nodes: Nodes) -> None:
    """The elements are not there yet: the wait for them ends in time, or when Ray aborts the transfer."""
    there = metadata_of(nodes.far.make.remote("bool")).node_id
    with xs.Event("native_cpu:0", enable_ipc=True) as ready, xs.Queue("native_cpu:0") as queue:
        queue.wait(ready, at_least=1)
        with xs.share(shared(made("float64")), stream=queue) as handle:
            metadata = Metadata(tensor_meta=[], node_id=there, library="numpy", backend="native_cpu",
                                handles=(bytes(handle),))  # fmt: skip
            fetch = transport().fetch_multiple_tensors("late", metadata, None)
            with pytest.raises(ray.exceptions.GetTimeoutError):
                transport().wait_fetch_complete(fetch, 0.2)
            aborted = transport().fetch_multiple_tensors("aborted", metadata, None)
            wait = threading.Timer(0.2, transport().abort_transport, ("aborted", None))
            wait.start()
            with pytest.raises(ray.exceptions.TaskCancelledError):
                transport().wait_fetch_complete(aborted, TIMEOUT)
            wait.join()
            again = transport().fetch_multiple_tensors("again", metadata, None)
            ready.signal()
            (array,) = transport().wait_fetch_complete(again, TIMEOUT)
            assert np.array_equal(array, made("float64"))
        queue.synchronize(TIMEOUT)


# --- other libraries and devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "library", ["xpushare", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("torch", "jax"))]
)
def test_other_libraries(nodes: Nodes, library: str) -> None:  # noqa: ARG001
    kind = {"xpushare": "SharedArray", "torch": "Tensor", "jax": "ArrayImpl"}[library]
    exchange(library, "cpu", kind)


def exchange(library: str, device: str, kind: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    found = get(ray.remote(num_cpus=0)(ray_peer.exchange).remote(library, device), 100)
    wanted = ray_peer.NUMBERS.tolist()
    for name, where, values in found["seen"]:
        assert name == kind
        assert device in where.lower() or library == "xpushare"
        assert values == wanted
    assert found["exports"] == 1 if device == "cpu" else found["exports"] >= 1  # an event, too
    if library != "jax":
        assert found["far"] == wanted
        assert found["near"] == [[-1.0] * 6, wanted[1]]


def managers() -> int:
    """How many managers of transfers two threads find that use Ray's at the same time."""
    import xpushare.integrations.ray  # noqa: F401

    both = threading.Barrier(2)

    class Manager:
        def __init__(self) -> None:
            both.wait(TIMEOUT)

    ray.experimental.RDTManager = Manager
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(ray._private.worker.global_worker.rdt_manager)) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len({id(each) for each in found})


def test_the_threads_of_an_actors_first_transfer_have_one_manager() -> None:
    with Child(method="spawn") as child:
        assert child.call(managers) == 1


@pytest.mark.exhaustive
def test_torch_target_buffer(nodes: Nodes) -> None:  # noqa: ARG001
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    assert get(ray.remote(num_cpus=0)(ray_peer.into_buffer).remote(), 100) == (True, ray_peer.NUMBERS.tolist())


def test_elements_of_a_device_go_over_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the mock device: read in the order of the producer's stream, gaps, strides and no elements included."""
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*;native_cpu:*")
    array = xs.empty((4, 6), "i4", device="mock:0")
    values = np.asarray(array)
    values[:] = np.arange(24).reshape(4, 6)
    with xs.Event("native_cpu:0", enable_ipc=True) as ready, xs.Queue("mock:0") as queue:
        queue.wait(ready, at_least=1)
        queue.fill(array, b"\x01\0\0\0")
        with xs.share(values[::-2, 1::2], stream=queue) as handle, xs.share(array, stream=queue) as whole:
            late: list[Any] = []
            thread = threading.Thread(target=lambda: late.extend(_read((bytes(handle), bytes(whole)))))
            thread.start()
            thread.join(0.2)
            assert not late
            ready.signal()
            thread.join(TIMEOUT)
        queue.synchronize(TIMEOUT)
    assert np.array_equal(late[0], np.ones((2, 3)))
    assert np.array_equal(late[1], np.ones((4, 6)))
    with xs.share(xs.empty((0, 3), "f4", device="mock:0")) as handle:
        (nothing,) = _read((bytes(handle),))
        assert nothing.shape == (0, 3)
    placed = _placed(late[0], "mock")
    assert str(placed.device) == "mock:0"
    assert np.array_equal(np.asarray(placed), late[0])
    assert _placed(nothing, "mock").shape == (0, 3)


@pytest.fixture
def gpu(nodes: Nodes) -> None:  # noqa: ARG001
    cuda = adapters.adapter("cuda")
    if not cuda.devices():
        pytest.skip(cuda.why_none())


@pytest.mark.cuda
@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_gpu(gpu: None, library: str) -> None:  # noqa: ARG001
    exchange(library, "cuda", {"torch": "Tensor", "cupy": "ndarray", "jax": "ArrayImpl"}[library])


@pytest.mark.cuda
def test_gpu_that_the_consumer_may_not_see(gpu: None) -> None:  # noqa: ARG001
    """It gets a copy on its own."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    if len(adapters.adapter("cuda").devices()) < 2:
        pytest.skip("needs two GPUs")
    (one, other), found, after = get(ray.remote(num_cpus=0)(ray_peer.between_gpus).remote(), 100)
    assert one != other
    assert found == ("Tensor", "cuda:0", ray_peer.NUMBERS.tolist())
    assert after == ray_peer.NUMBERS.tolist()


@pytest.mark.cuda
@pytest.mark.exhaustive
def test_gpu_order(gpu: None) -> None:  # noqa: ARG001
    """Consumers wait, on the device, for what the producer's stream had queued."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    assert get(ray.remote(num_cpus=0)(ray_peer.late).remote(), 100) == [500.0 * (1 << 24)] * 4
