"""The module for checkpoint-engine with the real package's own code on both sides, in real processes.

`scripts/engines` makes an environment with checkpoint-engine and vLLM; elsewhere this file skips.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs

if importlib.util.find_spec("checkpoint_engine") is None:
    pytest.skip("checkpoint_engine is not installed (scripts/engines installs it)", allow_module_level=True)

import checkpoint_engine_peer as peer
import vllm_peer
from engine_processes import Serving, context, serving

__all__ = ["context", "serving"]
pytestmark = pytest.mark.timeout(900)
LAST = "lm_head.weight"
PATCH = Path(__file__).parents[2] / "docs" / "engines" / "checkpoint_engine.patch"


class Processes:
    """Runs each call in a process of its own."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def start(self, function: Any, *arguments: Any) -> Future[Any]:
        pool = ProcessPoolExecutor(1, mp_context=self._context)
        job = pool.submit(function, *arguments)
        pool.shutdown(wait=False)
        return job


@pytest.fixture
def processes(context: Any) -> Processes:
    return Processes(context)


@pytest.fixture
def name() -> str:
    return f"checkpoint-engine-{os.getpid()}"


def test_every_tensor_arrives_and_the_server_waits_for_the_hook(processes: Processes, name: str) -> None:
    server, worker = processes.start(peer.send, name, 5), processes.start(peer.receive, name)
    assert server.result(300) == ""
    expected = {each: float(t.double().sum()) for each, t in vllm_peer.weights_of(5).items()}
    assert worker.result(300) == {**expected, "hook": 1}


def test_the_server_learns_why_a_worker_failed(processes: Processes, name: str) -> None:
    server, worker = processes.start(peer.send, name, 5), processes.start(peer.receive, name, LAST)
    with pytest.raises(ValueError, match="no room"):
        worker.result(300)
    assert "ValueError: no room for lm_head.weight" in server.result(300)


def test_the_server_learns_of_a_workers_death(processes: Processes, name: str) -> None:
    server, worker = processes.start(peer.send, name, 5), processes.start(peer.receive, name, "", LAST)
    with pytest.raises(BrokenProcessPool):
        worker.result(300)
    assert server.result(300).startswith("PeerLostError")


def test_a_worker_learns_of_its_servers_death(processes: Processes, name: str) -> None:
    server, worker = processes.start(peer.send, name, 5, 2), processes.start(peer.receive, name)
    with pytest.raises(BrokenProcessPool):
        server.result(300)
    with pytest.raises(xs.PeerLostError):
        worker.result(300)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package from the index with the patch of the page."""
    found = importlib.util.find_spec("checkpoint_engine")
    assert found is not None
    assert found.origin is not None
    shutil.copytree(Path(found.origin).parent, tmp_path / "checkpoint_engine")
    subprocess.run(["patch", "-p1", "--fuzz=0", "-d", tmp_path, "-i", PATCH], check=True, timeout=60)
    return tmp_path


def test_the_patched_server_updates_all_ranks(processes: Processes, package: Path) -> None:
    """Two servers with a half of the checkpoint each, and a worker for each. The second worker fails at one update, and
    is killed at another one. The server runs on the host: its CUDA calls are replaced.
    """
    plan = {5: {}, 6: {"fails_at": LAST}, 7: {"dies_at": LAST}, 9: {}}
    addresses = [[str(package / f"{number}-{rank}") for number in plan] for rank in range(peer.RANKS)]
    for each in (address for of_rank in addresses for address in of_rank):
        os.mkfifo(each)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    servers = [
        processes.start(peer.serve, rank, str(package), port, addresses[rank], list(plan))
        for rank in range(peer.RANKS)
    ]  # fmt: skip
    for at, (number, fault) in enumerate(plan.items()):
        workers = [
            processes.start(peer.work, 0, addresses[0][at]),
            processes.start(peer.work, 1, addresses[1][at], *(fault.get(each, "") for each in ("fails_at", "dies_at"))),
        ]
        expected = {each: float(t.double().sum()) for each, t in vllm_peer.weights_of(number).items()} | {"hook": 1}
        if not fault:
            assert [worker.result(300) for worker in workers] == [expected] * 2
            continue
        with pytest.raises(BrokenProcessPool if "dies_at" in fault else ValueError):
            workers[1].result(300)
        with contextlib.suppress(xs.PeerLostError):  # its server had heard of the other one's end before it was done
            assert workers[0].result(300) == expected
    first, second = [server.result(300) for server in servers]
    assert [bool(each) for each in first] == [bool(each) for each in second] == [False, True, True, False]
    assert "no room for lm_head.weight" in second[1]
    assert not [each for each in xs.published() if each.startswith("checkpoint-engine-GPU-host")]


def test_vllm_is_updated_through_the_workers_extension(processes: Processes, serving: Serving, name: str) -> None:
    serving.start("dummy", worker_extension_cls="xpushare.integrations.checkpoint_engine.WorkerExtension")
    with ThreadPoolExecutor(1) as thread:
        for number in (3, 9, 25):
            server = processes.start(peer.send, name, number)
            handles = {"cpu": f"xpushare:{name}"}
            updated = thread.submit(serving.ask, "collective_rpc", ("update_weights_from_ipc", None, (handles,)))
            assert server.result(300) == ""
            updated.result(300)
            assert serving.number() == number


def test_weights_that_do_not_fit_never_leave_a_mixture(processes: Processes, serving: Serving, name: str) -> None:
    """An update that fails before it has changed a layer leaves the model as it was. After that the engine ends."""
    extension = "xpushare.integrations.checkpoint_engine.WorkerExtension"
    with ThreadPoolExecutor(1) as thread:

        def update(number: int, fault: str) -> tuple[str, Future[Any]]:
            server = processes.start(peer.send, name, number, -1, fault)
            handles = {"cpu": f"xpushare:{name}"}
            updated = thread.submit(serving.ask, "collective_rpc", ("update_weights_from_ipc", None, (handles,)))
            error: str = server.result(300)
            return error, updated

        for fault, reason in (("shape", "does not take lm_head.weight"), ("missing", "Missing: lm_head.weight")):
            serving.start("dummy", worker_extension_cls=extension)
            assert update(3, "")[0] == ""
            assert serving.number() == 3
            error, updated = update(9, "first")
            assert "does not take model.embed_tokens.weight" in error
            with pytest.raises(xs.InvalidArgumentError, match="does not take"):
                updated.result(300)
            assert serving.number() == 3
            error, updated = update(9, fault)
            assert reason in error
            with pytest.raises((EOFError, OSError)):
                updated.result(300)
            serving.process.join(60)
            assert serving.process.exitcode == 1
