"""Hooks for SGLang's sessions of weight updates: `begin_weight_update`, any number of messages, `end_weight_update`.

SGLang loads each message into its models as it comes. These hooks have all ranks check it before, and end the engine
rather than let it serve a mixture of two versions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

__all__ = ["HOOKS", "MODULE"]

MODULE: Final = "sglang.srt.managers.scheduler_components.weight_updater"
_update: Any = None  # of the session that is open in this process: `InPlace`


def _begin(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    global _update
    answer = original(manager, request)
    if answer.success:
        runners = [runner.weight_updater for _, runner in manager._select_runners(request.selector)]
        checked = all(each.model_config.quantization is None for each in runners)
        in_place = importlib.import_module("xpushare.integrations._written").InPlace
        _update = in_place([each.get_model() for each in runners], checked=checked)
    return answer


def _load(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Check a message in all ranks before any of them loads it. If one of them refuses it, none does."""
    if _update is None:
        return original(manager, request)
    parallel = importlib.import_module("sglang.srt.runtime_context").get_parallel()
    worker, failed = manager.tp_worker, ""
    weights: Any = None
    try:
        weights = worker.deserialize_own_rank(request.serialized_named_tensors)
        if request.load_format != "flattened_bucket":  # each tensor of a list can be read once
            weights = [(name, part.get(parallel.tp_rank) if hasattr(part, "get") else part) for name, part in weights]
        runners = manager._select_runners(request.selector)
        _update.check(lambda: _run(runners, weights, request.load_format))
    except Exception as error:
        failed = repr(error)
    distributed = importlib.import_module("torch").distributed
    reasons = [failed] * distributed.get_world_size(manager.tp_cpu_group)
    distributed.all_gather_object(reasons, failed, group=manager.tp_cpu_group)
    if any(reasons):
        message = f"xpushare: the ranks refuse this message of weights, for these reasons: {reasons}"
        if _update.changed or parallel.pp_size > 1:  # another stage may have loaded it
            raise RuntimeError(f"{message}. The model is a mixture of two versions, and the engine ends")
        answers = importlib.import_module("sglang.srt.managers.io_struct")
        return answers.UpdateWeightsFromTensorReqOutput(success=False, message=f"{message}. The model is as it was")
    _update.changed = True
    worker.deserialize_own_rank = lambda _serialized: weights
    try:
        return original(manager, request)  # SGLang ends the engine if this raises
    finally:
        del worker.deserialize_own_rank


def _end(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """End the engine if the weights of the whole session were not all."""
    global _update
    update, _update = _update, None
    if update is not None:
        update.expect_all()
    return original(manager, request)


def _run(runners: Any, weights: Any, load_format: str | None) -> None:
    for _, runner in runners:
        success, message = runner.weight_updater.update_weights_from_tensor(weights, load_format=load_format)
        if not success:
            raise RuntimeError(message)


HOOKS: Final[dict[str, Callable[..., Any]]] = {
    "SchedulerWeightUpdaterManager.begin_weight_update": _begin,
    "SchedulerWeightUpdaterManager.update_weights_from_tensor": _load,
    "SchedulerWeightUpdaterManager.end_weight_update": _end,
}
