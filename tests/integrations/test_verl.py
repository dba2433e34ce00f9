"""verl's own sender, receiver and registry (the package from the index, in an environment of its own: scripts/engines),
in processes with the plug-in.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed: scripts/engines verl", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)
SLOW: Any = {"timeout": 240.0}  # of a child that imports the engine on a busy machine

ON = {"VERL_USE_EXTERNAL_PLUGINS": "xpushare"}
_FOLDER = "verl.workers.rollout.vllm_rollout"


def transfer() -> ModuleType:
    """verl's module of the bucketed transfer, on the host. Its package wants vLLM; the module does not."""
    import torch
    import verl
    import verl.workers.rollout
    from verl.plugin.platform import platform_manager
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    class OnTheHost(PlatformCUDA):  # type: ignore[misc]
        device_name = "cpu"
        device_module = torch.cpu

        def current_device(self) -> int:
            return 0

        def is_ipc_supported(self) -> bool:
            return False

    torch.cpu.empty_cache = lambda: None  # type: ignore[attr-defined]
    platform_manager._current_platform = OnTheHost()
    with contextlib.suppress(ImportError):
        return importlib.import_module(f"{_FOLDER}.bucketed_weight_transfer")
    package = ModuleType(_FOLDER)
    package.__path__ = [str(Path(verl.__file__).parent / "workers" / "rollout" / "vllm_rollout")]
    sys.modules[_FOLDER] = package
    return importlib.import_module(f"{_FOLDER}.bucketed_weight_transfer")


def weights(count: int, step: int) -> Iterator[tuple[str, Any]]:
    """Made one after the other, as verl gathers them; one is larger than a frame, one than the whole bucket."""
    import torch

    for i in range(count):
        yield f"layers.{i}", torch.full((32, 48), float(step + i % 16), dtype=(torch.bfloat16, torch.float32)[i % 2])
    yield "head", torch.arange(150_000, dtype=torch.float32).view(300, 500) + step
    yield "embedding", torch.full((1 << 20,), step, dtype=torch.int32)
    yield "scalar", torch.tensor(float(step))


async def awaited_weights(count: int, step: int) -> AsyncIterator[tuple[str, Any]]:
    for each in weights(count, step):
        await asyncio.sleep(0)
        yield each


def send(socket: str, count: int, step: int, awaited: bool = False) -> None:
    made = awaited_weights(count, step) if awaited else weights(count, step)
    asyncio.run(transfer().BucketedWeightSender(socket, 1).async_send_weights(made))


def receive(socket: str, fails: bool = False) -> tuple[int, list[tuple[str, str, tuple[int, ...], float, float]], bool]:
    import torch

    found: list[Any] = []
    lasts: list[bool] = []

    def loaded(bucket: list[tuple[str, Any]], is_last: bool) -> None:
        if fails:
            raise ValueError("the model does not take this")
        lasts.append(is_last)
        for name, tensor in bucket:
            values = tensor.to(torch.float64)
            found.append((name, str(tensor.dtype), tuple(tensor.shape), float(values.min()), float(values.max())))

    transfer().BucketedWeightReceiver(socket, torch.device("cpu")).receive_weights(loaded)
    return len(lasts), found, lasts[-1] and not any(lasts[:-1])


def expected(count: int, step: int) -> list[Any]:
    return [
        *(
            (f"layers.{i}", ("torch.bfloat16", "torch.float32")[i % 2], (32, 48), float(step + i % 16),
             float(step + i % 16))
            for i in range(count)
        ),
        ("head", "torch.float32", (300, 500), float(step), 149_999.0 + step),
        ("embedding", "torch.int32", (1 << 20,), float(step), float(step)),
        ("scalar", "torch.float32", (), float(step), float(step)),
    ]  # fmt: skip


def test_buckets_go_through_one_channel(tmp_path: Path) -> None:
    socket = f"ipc://{tmp_path}/weights"
    with Child(env=ON, **SLOW) as trainer, Child(env=ON, **SLOW) as worker:
        for step, awaited in ((1, False), (2, True)):
            pending = worker.start(receive, socket)
            trainer.call(send, socket, 578, step, awaited)
            calls, found, last = pending.result()
            assert found == expected(578, step)
            assert last
            assert calls > 10  # frames, of a third of verl's bucket
        assert trainer.call(left) == worker.call(left) == []

        pending = worker.start(receive, socket, True)
        with pytest.raises(xs.PeerLostError):  # verl's own sender waits for ever
            trainer.call(send, socket, 3, 3)
        with pytest.raises(ValueError, match="the model"):
            pending.result()

        pending = worker.start(receive, socket)
        trainer.start(dies, socket)
        with pytest.raises(xs.PeerLostError):
            pending.result()
        trainer.kill()


def worker(socket: str) -> None:
    """Make verl's extension of vLLM's worker, from the source of the package, with a small model."""
    import ast
    import logging

    import torch

    transfer()
    from verl.workers.rollout.vllm_rollout import weight_update_utils

    from xpushare.integrations import _verl_worker

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name in ("first", "second", "third"):
                self.register_parameter(name, torch.nn.Parameter(torch.ones(256, 256)))

        def load_weights(self, weights: Any) -> None:
            for name, weight in weights:
                parameter = self.get_parameter(name)
                assert parameter.size() == weight.size()
                parameter.data.copy_(weight)

    source = Path(transfer().__file__ or "").with_name("utils.py")
    tree = ast.parse(source.read_text())
    tree.body = [each for each in tree.body if getattr(each, "name", None) == "vLLMColocateWorkerExtension"]
    module = ModuleType(f"{_FOLDER}.utils")
    vars(module).update(
        torch=torch, is_quantized_model=lambda _config: False, patch_vllm_moe_model_weight_loader=lambda _model: None,
        split_buffer_updates=weight_update_utils.split_buffer_updates, logger=logging.getLogger("test"),
        apply_buffer_updates=weight_update_utils.apply_buffer_updates,
    )  # fmt: skip
    exec(compile(tree, str(source), "exec"), vars(module))
    loading = sys.modules["vllm.model_executor.model_loader.utils"] = ModuleType("utils")
    loading.process_weights_after_loading = lambda *_: None  # type: ignore[attr-defined]
    _verl_worker.extend(module)

    made = kept["worker"] = object.__new__(module.vLLMColocateWorkerExtension)
    parallel = SimpleNamespace(world_size=1)
    made.model_runner = SimpleNamespace(
        model=Model(),
        vllm_config=SimpleNamespace(parallel_config=parallel, speculative_config=None, model_config=None),
    )
    made.device, made._is_qat_model, made._is_modelopt_qat = torch.device("cpu"), False, False
    made._get_zmq_handle = lambda: socket


def updated() -> tuple[str, set[float]]:
    """How the update ends, and the values in the model then. `SystemExit` ends vLLM's worker."""
    failed = ""
    try:
        kept["worker"].update_weights_from_ipc()
    except (Exception, SystemExit) as error:
        failed = f"{type(error).__name__}: {error}"
    model = kept["worker"].model_runner.model
    return failed, {float(value) for each in model.parameters() for value in each.data.flatten()}


def send_shapes(socket: str, number: float, shapes: dict[str, tuple[int, int]]) -> None:
    import torch

    made = ((name, torch.full(shape, number)) for name, shape in shapes.items())
    asyncio.run(transfer().BucketedWeightSender(socket, 1).async_send_weights(made))


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    socket = f"ipc://{tmp_path}/weights"
    fits = dict.fromkeys(("first", "second", "third"), (256, 256))  # each takes a frame
    wrong = (256, 255)
    with Child(env=ON, **SLOW) as trainer, Child(env=ON, **SLOW) as engine:
        engine.call(worker, socket)
        for shapes, number, fails, values in (
            (fits | {"first": wrong}, 2.0, "InvalidArgumentError: the model does not take", {1.0}),
            (fits, 3.0, "", {3.0}),
            (fits | {"third": wrong}, 4.0, "SystemExit: xpushare: an update of the weights failed", {3.0, 4.0}),
            ({"first": (256, 256)}, 5.0, "SystemExit: xpushare: an update of the weights failed", {3.0, 4.0, 5.0}),
        ):
            pending = engine.start(updated)
            with contextlib.suppress(xs.PeerLostError):  # the worker gave up
                trainer.call(send_shapes, socket, number, shapes)
            failed, found = pending.result()
            assert failed.startswith(fails) if fails else not failed
            assert found == values
        assert "Missing: second, third" in failed


def left() -> list[Any]:
    """What this process still shares."""
    return [(each["kind"], each["label"]) for each in xs.shares() if each["exporter"] == os.getpid()]


def dies(socket: str) -> None:
    """The process ends after some frames."""

    def some() -> Iterator[tuple[str, Any]]:
        yield from weights(578, 1)
        os._exit(1)

    asyncio.run(transfer().BucketedWeightSender(socket, 1).async_send_weights(some()))


def engine(is_master: bool) -> dict[str, Any]:
    transfer()
    from verl.checkpoint_engine import CheckpointEngineRegistry

    kept["engine"] = CheckpointEngineRegistry.new("xpushare", bucket_size=1 << 20, is_master=is_master)
    metadata: dict[str, Any] = kept["engine"].prepare()
    return metadata


def topology(metadata: list[dict[str, Any]]) -> Any:
    return type(kept["engine"]).build_topology(2, 2, metadata)


def joined(**arguments: Any) -> None:
    kept["engine"].init_process_group(**arguments)


def sent(step: int) -> None:
    asyncio.run(kept["engine"].send_weights(weights(100, step), global_steps=step))


def got() -> list[Any]:
    async def all_of_them() -> list[Any]:
        return [
            (name, str(each.dtype), tuple(each.shape), float(each.double().min()), float(each.double().max()))
            async for name, each in kept["engine"].receive_weights()
        ]

    return asyncio.run(all_of_them())


def finalized() -> None:
    kept["engine"].finalize()


def test_the_checkpoint_engine_serves_all_ranks() -> None:
    """Two trainers, of which the first one sends, and two ranks of the rollout."""
    with Child(**SLOW) as first, Child(**SLOW) as second, Child(**SLOW) as one, Child(**SLOW) as two:
        processes = first, second, one, two
        for step in 1, 2:  # verl builds the group anew for each step
            metadata = [each.call(engine, each is first) for each in processes]
            trainers, rollouts = first.call(topology, metadata)
            for i, each in enumerate(processes):
                mine = trainers if i < 2 else rollouts
                each.call(joined, **{key: values[i % 2] for key, values in mine.items()})
            pending = [each.start(got) for each in (one, two)]
            for each in first, second:
                each.call(sent, step)
            assert [each.result() for each in pending] == [expected(100, step)] * 2
            for each in processes:
                each.call(finalized)
            assert [each.call(left) for each in processes] == [[]] * 4


def replaced() -> tuple[bool, bool]:
    own = transfer().BucketedWeightSender.async_send_weights.__module__.startswith("verl")
    return own, "libcuda" in Path("/proc/self/maps").read_text()


def test_nothing_changes_until_verl_names_it() -> None:
    with Child(env={"VERL_USE_EXTERNAL_PLUGINS": None}, **SLOW) as child:
        assert child.call(replaced) == (True, False)
