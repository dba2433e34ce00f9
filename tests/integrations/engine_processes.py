"""Processes of engines and trainers, for tests against the real packages."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm_peer as peer

import xpushare as xs
from harness import command, wait_until

__all__ = ["Serving", "context", "serving"]

SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}  # fmt: skip
PROMPT = [1, 5, 7]


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    """Processes come from a fork server that has imported vLLM: the import takes longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        found = multiprocessing.get_context("forkserver")
        found.set_forkserver_preload(["vllm", "vllm.v1.worker.cpu_worker", "xpushare.integrations.vllm"])
        yield found


class Serving:
    """An engine process, which may be killed and started again, and threads that ask it all the time."""

    def __init__(self, context: Any, folder: Path, name: str) -> None:
        self._context = context
        self.name = name
        self.address = str(folder / "engine")
        self._model = str(folder / "model")
        peer.write_config(folder / "model")
        self.answers: list[list[int]] = []
        self.pids: set[int] = set()  # of engines and trainers
        self._over = threading.Event()
        self._asker = threading.Thread(target=self._ask_all_the_time)

    def start(self, load_format: str, **options: Any) -> None:
        Path(self.address).unlink(missing_ok=True)
        arguments = self._model, self.address, load_format, self.name, options
        self.process = self._context.Process(target=peer.serve, args=arguments)
        self.process.start()
        self.pids.add(self.process.pid)
        wait_until(lambda: Path(self.address).exists() or not self.process.is_alive(), 300, "the engine to be up")
        assert self.process.is_alive(), "the engine ended while it started"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def stop(self) -> None:
        """End the engine in an orderly way, so that vLLM's ranks end and remove what they share."""
        self.ask("end")
        self.process.join(60)
        assert not self.process.is_alive(), "the engine has not ended"

    def ask(self, verb: str, argument: Any = ()) -> Any:
        client = peer.Engine(self.address)
        try:
            return client.ask(verb, argument)
        finally:
            client.close()

    def number(self) -> int:
        """The number of the weights that answer."""
        answer = self.ask("generate", PROMPT)
        assert len(set(answer)) == 1, answer
        assert answer[0] > 0, "weights of several versions"
        return answer[0]

    def train(self, *arguments: Any) -> int | None:
        """Run a trainer, and return its exit status. See `vllm_peer.train`."""
        return self._run(peer.train, *arguments)

    def train_faulty(self, *arguments: Any) -> int | None:
        """Run a trainer, and return its exit status. See `vllm_peer.train_faulty`."""
        return self._run(peer.train_faulty, *arguments)

    def _run(self, function: Any, *arguments: Any) -> int | None:
        process = self._context.Process(target=function, args=(self.address, self.name, *arguments))
        process.start()
        self.pids.add(process.pid)
        process.join()
        return process.exitcode

    def begin_asking(self) -> None:
        self._asker.start()

    def _ask_all_the_time(self) -> None:
        while not self._over.is_set():
            try:
                self.answers.append(self.ask("generate", PROMPT))
            except (EOFError, OSError):  # the engine was killed
                self._over.wait(0.05)

    def end(self) -> None:
        self._over.set()
        if self._asker.is_alive():
            self._asker.join()
        self.kill()


@pytest.fixture
def serving(context: Any, tmp_path: Path) -> Iterator[Serving]:
    shared_memory = set(os.listdir("/dev/shm"))
    found = Serving(context, tmp_path, f"vllm-{os.getpid()}")
    yield found
    found.end()
    assert command("keep", "--stop").returncode in (0, 1)
    wait_until(lambda: not xs.published(), what="names to end with their processes")
    assert [each for each in xs.shares() if {each["exporter"], *each["importers"]} & found.pids] == []
    left = set(os.listdir("/dev/shm")) - shared_memory
    for name in [each for each in left if each.startswith("vllm_dist_")]:  # vLLM's ranks leave theirs
        (Path("/dev/shm") / name).unlink(missing_ok=True)
    assert not [each for each in left if "xpushare" in each]  # other programs on this machine have theirs
