"""Weights that do not fit, or are not all, in engines that load them in place. The engines are stand-ins with the
interfaces of SGLang 0.5.23 and verl 0.9.1, and their models load as those engines' do: each tensor as it comes.
`test_sglang.py` and `test_verl.py` run the transfer with the real packages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import xpushare as xs

torch: Any = pytest.importorskip("torch")

from xpushare.integrations import _sglang_session, _verl_worker  # noqa: E402
from xpushare.integrations._written import InPlace  # noqa: E402

NAMES = ("embed", "q", "k", "head")


class Model(torch.nn.Module):  # type: ignore[misc]
    """Has two layers, and one that is made of two weights. Loads weights as SGLang's and vLLM's models do."""

    def __init__(self, *, pooled: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(4, 8, bias=False)
        self.qk = torch.nn.Linear(4, 12, bias=False)
        self.qk.output_partition_sizes = [8, 4]
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.register_buffer("table", torch.zeros(3))
        self.pooled = pooled
        self.fails_at = ""
        for each in self.parameters():
            each.data.fill_(1)

    def load_weights(self, weights: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            for name, weight in weights:
                if self.pooled:
                    pool.submit(self._load, name, weight).result()
                else:
                    self._load(name, weight)

    def _load(self, name: str, weight: Any) -> None:
        if name == self.fails_at and bool(self.embed.weight.data[0, 0] != 1):  # not in a rehearsal
            raise RuntimeError("out of memory")
        places = {"q": self.qk.weight.data[:8], "k": self.qk.weight.data[8:], "table": self.table}
        target = places[name] if name in places else getattr(self, name).weight.data
        assert target.shape == weight.shape, f"{name} has the shape {tuple(weight.shape)}"
        target.copy_(weight)

    def values(self) -> set[float]:
        return {float(value) for each in self.parameters() for value in each.data.flatten()}


def weights_of(number: float, *names: str) -> list[tuple[str, Any]]:
    rows = {"k": 4}
    return [(name, torch.full((rows.get(name, 8), 4), float(number))) for name in names or NAMES]


def shape() -> list[tuple[str, Any]]:
    return [*weights_of(2)[:-1], ("head", torch.full((8, 3), 2.0))]


def unknown() -> list[tuple[str, Any]]:
    return [*weights_of(2), ("mouth", torch.ones(8, 4))]


def dtype() -> list[tuple[str, Any]]:
    return [*weights_of(2)[:-1], ("head", torch.ones(8, 4, dtype=torch.int32))]


FAULTS = {"shape": shape, "unknown": unknown, "dtype": dtype}


@pytest.mark.parametrize("pooled", [False, True], ids=["in this thread", "in a pool"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_check_changes_nothing(fault: str, pooled: bool) -> None:
    model = Model(pooled=pooled)
    update = InPlace([model])
    with pytest.raises(xs.InvalidArgumentError, match="the model does not take these weights"):
        update.load(lambda: model.load_weights(FAULTS[fault]()))
    assert model.values() == {1.0}
    assert not update.changed
    update.load(lambda: model.load_weights(weights_of(3)))
    update.expect_all()
    assert model.values() == {3.0}


def test_a_check_keeps_buffers_and_what_other_operators_change() -> None:
    model = Model()

    def load() -> None:
        model.table.add_(1)
        model.embed.weight.data[0] = 5.0
        model.head.weight.data.mul_(2)
        assert float(torch.ones(3).add_(1).sum()) == 6  # what the loader makes for itself is written

    InPlace([model]).check(load)
    assert model.values() == {1.0}
    assert model.table.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("names", "missing"), [(("embed", "head"), "qk.weight"), (("embed", "q", "head"), "a part of")]
)
def test_weights_that_are_not_all(names: tuple[str, ...], missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    update = InPlace([model])
    update.expect_all()  # nothing has come
    with pytest.raises(xs.InvalidArgumentError, match="the model does not take these weights"):
        update.load(lambda: model.load_weights(unknown()))  # refused, so none of its weights count
    for each in names:
        update.load(lambda each=each: model.load_weights(weights_of(2, each)))
    with pytest.raises(xs.InvalidArgumentError, match=rf"Missing: {missing}"):
        update.expect_all()
    monkeypatch.setenv("XPUSHARE_PARTIAL_WEIGHTS", "1")
    update.expect_all()


# --- SGLang


class Updater:
    def __init__(self, model: Model) -> None:
        self.get_model = lambda: model
        self.model_config = SimpleNamespace(quantization=None)

    def update_weights_from_tensor(self, named_tensors: Any, load_format: str | None = None) -> tuple[bool, str]:
        assert load_format in (None, "flattened_bucket")
        self.get_model().load_weights(named_tensors)
        return True, "Success"


class Manager:
    """`SchedulerWeightUpdaterManager`, with the runners of a target and a draft."""

    def __init__(self, *models: Model) -> None:
        self.runners = [("target", SimpleNamespace(weight_updater=Updater(model))) for model in models]
        self.tp_worker = SimpleNamespace(deserialize_own_rank=None)
        self.tp_cpu_group = None

    def _select_runners(self, _selector: str) -> Any:
        return self.runners

    def begin_weight_update(self, _request: Any) -> Any:
        return SimpleNamespace(success=True)

    def update_weights_from_tensor(self, request: Any) -> Any:
        weights = self.tp_worker.deserialize_own_rank(request.serialized_named_tensors)
        for _, runner in self._select_runners(request.selector):
            runner.weight_updater.update_weights_from_tensor(weights, load_format=request.load_format)
        return SimpleNamespace(success=True, message="Success")

    def end_weight_update(self, _request: Any) -> Any:
        return SimpleNamespace(success=True)


class Worker:
    """Reads each message once, as the plug-in's lists are."""

    def deserialize_own_rank(self, serialized: Any) -> Any:
        return serialized.pop()


class Once:
    def __init__(self, tensor: Any) -> None:
        self._tensor = [tensor]

    def get(self, rank: int) -> Any:
        assert rank == 0
        return self._tensor.pop()


class Engine:
    def __init__(self, *models: Model) -> None:
        self.manager = Manager(*models)
        self.manager.tp_worker = Worker()

    def _hooked(self, name: str, request: Any) -> Any:
        hook = _sglang_session.HOOKS[f"SchedulerWeightUpdaterManager.{name}"]
        return hook(getattr(Manager, name), self.manager, request)

    def begin(self) -> None:
        assert self._hooked("begin_weight_update", SimpleNamespace(selector="all")).success

    def load(self, weights: list[tuple[str, Any]], *, listed: bool = False) -> Any:
        message = [(name, Once(tensor) if listed else tensor) for name, tensor in weights]
        request = SimpleNamespace(
            serialized_named_tensors=[message], load_format=None if listed else "flattened_bucket", selector="all"
        )
        return self._hooked("update_weights_from_tensor", request)

    def end(self) -> None:
        assert self._hooked("end_weight_update", SimpleNamespace()).success


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Engine]]:
    context, answers = ModuleType("sglang.srt.runtime_context"), ModuleType("sglang.srt.managers.io_struct")
    context.get_parallel = lambda: SimpleNamespace(tp_rank=0, pp_size=1)  # type: ignore[attr-defined]
    answers.UpdateWeightsFromTensorReqOutput = SimpleNamespace  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (context, answers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(_sglang_session, "_update", None)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/group", rank=0, world_size=1)
    yield Engine
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("listed", [False, True], ids=["bucket", "list"])
def test_sglang_refuses_a_message_as_a_whole(sglang: Callable[..., Engine], listed: bool) -> None:
    model, draft = Model(), Model(pooled=True)
    engine = sglang(model, draft)
    for fault in FAULTS.values():
        engine.begin()
        answer = engine.load(fault(), listed=listed)
        assert not answer.success
        assert "The model is as it was" in answer.message
        engine.end()
        assert model.values() == draft.values() == {1.0}
    engine.begin()
    for name in NAMES:
        assert engine.load(weights_of(3, name), listed=listed).success
    engine.end()
    assert model.values() == draft.values() == {3.0}


def test_sglang_ends_rather_than_serve_a_mixture(sglang: Callable[..., Engine]) -> None:
    """SGLang's scheduler ends the engine if a handler raises."""
    engine = sglang(Model())
    engine.begin()
    assert engine.load(weights_of(2, "embed")).success
    with pytest.raises(RuntimeError, match=r"head has the shape.*mixture of two versions, and the engine ends"):
        engine.load(shape())

    model = Model()
    model.fails_at = "head"
    engine = sglang(model)
    engine.begin()
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.load(weights_of(2))

    engine = sglang(Model())
    engine.begin()
    assert engine.load(weights_of(2, "embed", "q", "head")).success
    with pytest.raises(xs.InvalidArgumentError, match=r"a part of qk\.weight"):
        engine.end()


# --- verl


def extension(frames: list[list[tuple[str, Any]]], model: Model, *, ranks: int = 1, quantized: bool = False) -> Any:
    """verl's extension of a worker that receives these frames, with the plug-in's changes."""

    class vLLMColocateWorkerExtension:
        _is_qat_model = _is_modelopt_qat = False
        model_runner = SimpleNamespace(
            vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(world_size=ranks), quantized=quantized)
        )
        adapters = 0

        def _iter_all_models(self) -> Any:
            yield model

        def update_weights_from_ipc(
            self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
        ) -> None:
            assert not use_shm
            for weights in [*frames, []]:
                self._update_weights(weights, peft_config=peft_config, base_sync_done=base_sync_done)

        def _update_weights(self, weights: Any, peft_config: Any, base_sync_done: bool) -> None:
            if peft_config and base_sync_done:
                self.adapters += 1
            else:
                model.load_weights(weights)

    _verl_worker.extend(
        SimpleNamespace(
            vLLMColocateWorkerExtension=vLLMColocateWorkerExtension,
            is_quantized_model=lambda config: config.quantized,
        )
    )
    return vLLMColocateWorkerExtension()


@pytest.mark.parametrize("fault", FAULTS)
def test_verl_refuses_the_first_frame_as_a_whole(fault: str) -> None:
    model = Model()
    with pytest.raises(xs.InvalidArgumentError, match="the model does not take these weights"):
        extension([FAULTS[fault]()], model).update_weights_from_ipc(use_shm=False)
    assert model.values() == {1.0}
    extension([weights_of(3, "embed", "q"), weights_of(3, "k", "head")], model).update_weights_from_ipc()
    assert model.values() == {3.0}


def test_verl_ends_rather_than_serve_a_mixture() -> None:
    for broken in (
        extension([weights_of(2, "embed"), shape()], Model()),
        extension([shape()], Model(), ranks=2),
        extension([shape()], Model(), quantized=True),
        extension([weights_of(2, "embed", "q", "head")], Model()),
    ):
        with pytest.raises(SystemExit, match="mixture of two versions"):
            broken.update_weights_from_ipc()
    model = Model()
    model.fails_at = "head"
    with pytest.raises(SystemExit, match="out of memory"):
        extension([weights_of(2)], model).update_weights_from_ipc()


def test_verl_adds_an_adapter_without_the_rest() -> None:
    worker = extension([[("lora_A", torch.ones(2))]], Model())
    worker.update_weights_from_ipc({"r": 2}, True)
    assert worker.adapters == 2  # a frame, and the last call
