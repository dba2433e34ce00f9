"""SGLang's own serializer and bucket (the package from the index, in an environment of its own: scripts/engines), in
two processes with the plug-in.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import xpushare as xs
from harness import Child, kept

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed: scripts/engines sglang", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)
SLOW: Any = {"timeout": 240.0}  # of a child that imports the engine on a busy machine


def load() -> list[str]:
    """What a process of SGLang does first. Returns what its registry has patched."""
    import warnings

    warnings.simplefilter("ignore")
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    load_plugins()
    return sorted(HookRegistry._patched)


def install() -> None:
    import warnings

    warnings.simplefilter("ignore")
    from xpushare.integrations import sglang

    sglang.install()
    sglang.install()  # idempotent


def weights(count: int) -> list[tuple[str, Any]]:
    """Tensors of several dtypes, in one allocation of this package; the last one is a transposed view."""
    import torch

    slab = torch.from_dlpack(xs.empty(count * 4096, "uint8"))
    kinds = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8)
    made = []
    for i in range(count):
        tensor = slab[4096 * i : 4096 * i + 1024].view(kinds[i % 4]).view(8, -1)
        tensor.copy_(torch.full(tensor.shape, float(i % 16)))
        made.append((f"layers.{i}", tensor))
    made.append(("turned", made[0][1].T))
    kept["weights"] = made
    return made


def exports() -> int:
    return sum(each["handles"] for each in xs.shares() if each["exporter"] == os.getpid())


def serialized(count: int) -> tuple[Any, str, int]:
    """A bucket as trainers send it: (bytes for one rank, text for another, exports). The trainer goes on writing."""
    import torch
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    monkey_patch_torch_reductions()
    bucket = FlattenedTensorBucket(named_tensors=weights(count))
    flat = bucket.get_flattened_tensor()
    assert (flat.dtype, flat.nbytes) == (torch.uint8, sum(tensor.nbytes for _, tensor in kept["weights"]))
    assert flat.is_shared()  # memory of this package, which goes as it is
    for _, tensor in kept["weights"]:
        tensor.fill_(-1)  # a bucket is a copy, as SGLang's
    payload = {"flattened_tensor": flat, "metadata": bucket.get_metadata()}
    return (
        MultiprocessingSerializer.serialize(payload),
        MultiprocessingSerializer.serialize(payload, output_str=True),
        exports(),
    )


def loaded(payload: Any) -> list[tuple[str, tuple[int, ...], str, float]]:
    """What the engine's weight updater does with it, and what it finds."""
    import torch
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket, FlattenedTensorMetadata

    monkey_patch_torch_reductions()
    found = MultiprocessingSerializer.deserialize(payload)
    metadata = [
        FlattenedTensorMetadata(each.name, each.shape, each.dtype, each.start_idx, each.end_idx, each.numel)
        for each in found["metadata"]
    ]
    bucket = FlattenedTensorBucket(flattened_tensor=found["flattened_tensor"], metadata=metadata)
    tensors = bucket.reconstruct_tensors()
    for (_, tensor), each in zip(tensors, metadata, strict=True):
        assert (tensor.shape, tensor.dtype) == (each.shape, each.dtype)
    return [
        (name, tuple(tensor.shape), str(tensor.dtype), float(tensor.to(torch.float32).flatten()[0]))
        for name, tensor in tensors
    ]


def local_tensors(count: int) -> Any:
    """Named tensors without a bucket, each with a message of its own."""
    from sglang.srt.utils import MultiprocessingSerializer

    return [(name, MultiprocessingSerializer.serialize(tensor)) for name, tensor in weights(count)]


def listed(count: int) -> tuple[bytes, list[int], list[int]]:
    """What SGLang's `update_weights` sends for a list: (the request, bytes of each tensor's message, arrays of each
    tree that is exported for them).
    """
    import torch
    import torch.distributed as dist

    from xpushare.arrays.share import pickle_arrays
    from xpushare.integrations import _reductions

    update_weights, found = without_kernels(), list[Any]()

    async def update_weights_from_tensor(request: Any) -> None:
        found.append(request.serialized_named_tensors)

    def gather_object(obj: Any, object_gather_list: Any, **_: Any) -> None:
        object_gather_list[:] = [obj]
        found.append([len(raw) for _, raw in obj])

    dist.gather_object = gather_object
    mesh = SimpleNamespace(mesh=torch.arange(1), get_local_rank=lambda: 0, get_group=lambda: None)
    engine = SimpleNamespace(update_weights_from_tensor=update_weights_from_tensor)
    with pytest.MonkeyPatch.context() as patch:
        trees: list[int] = []

        def counted(arrays: list[Any], *others: Any) -> bytes:
            trees.append(len(arrays))
            return pickle_arrays(arrays, *others)

        patch.setattr(_reductions, "pickle_arrays", counted)
        asyncio.run(update_weights(engine, weights(count), "tp", {"tp": mesh}))
    (raw,) = found[1]
    return raw, found[0], trees


UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
MANAGER = "sglang.srt.managers.scheduler_components.weight_updater"


def made_from_source(name: str, wanted: tuple[str, ...], **names: Any) -> ModuleType:
    """A module of SGLang with only these classes and functions of its source, and what they use."""
    import sglang

    source = Path(sglang.__file__).parent.parent / f"{name.replace('.', '/')}.py"
    tree = ast.parse(source.read_text())
    tree.body = [each for each in tree.body if getattr(each, "name", None) in wanted]
    assert len(tree.body) == len(wanted)
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    tree.body.insert(0, ast.fix_missing_locations(future))
    made = sys.modules[name] = ModuleType(name)
    vars(made).update(names)
    exec(compile(tree, str(source), "exec"), vars(made))
    return made


def without_kernels() -> Any:
    """SGLang's `update_weights`, and what its engine makes of a list, from the package's own source. The rest of these
    modules wants a GPU's kernels, so two of the classes that they import are empty here.
    """
    import torch
    from sglang.srt.utils import MultiprocessingSerializer

    if UPDATER not in sys.modules:
        made_from_source(
            UPDATER, ("LocalSerializedTensor", "_unwrap_tensor"),
            torch=torch, List=list, dataclass=dataclass, MultiprocessingSerializer=MultiprocessingSerializer,
        )  # fmt: skip
        for name, kind in (("entrypoints.engine", "Engine"), ("managers.io_struct", "UpdateWeightsFromTensorReqInput")):
            module = sys.modules[f"sglang.srt.{name}"] = ModuleType(name)
            setattr(module, kind, SimpleNamespace)
    return importlib.import_module("sglang.srt.weight_sync.utils").update_weights


def unwrapped(raw: bytes, fails_at: int | None = None) -> list[float]:
    """What the engine's weight updater makes of such a request, and writes into it."""
    import torch
    from sglang.srt.utils import MultiprocessingSerializer

    without_kernels()
    from sglang.srt.model_executor.model_runner_components.weight_updater import _unwrap_tensor

    named = MultiprocessingSerializer.deserialize(raw)
    if fails_at is not None:
        named = named[:fails_at]
    tensors = [_unwrap_tensor(each, tp_rank=0, device=torch.device("cpu")) for _, each in named]
    values = [float(tensor.to(torch.float32).flatten()[0]) for tensor in tensors]
    for tensor in tensors:
        tensor.fill_(7)
    return values


def left_open() -> int:
    from xpushare.integrations import sglang

    return len(sglang._open)


def out_of_order(raw: bytes) -> None:
    without_kernels()
    from sglang.srt.utils import MultiprocessingSerializer

    named = MultiprocessingSerializer.deserialize(raw)
    with pytest.raises(xs.InvalidHandleError, match="read it first"):
        named[1][1].get(0)


def write_into(named: Any) -> None:
    from sglang.srt.utils import MultiprocessingSerializer

    for _, raw in named:
        MultiprocessingSerializer.deserialize(raw).fill_(7)


def seen() -> list[float]:
    return [float(tensor.flatten()[0]) for _, tensor in kept["weights"]]


def forbidden() -> None:
    import pickle

    from sglang.srt.utils import MultiprocessingSerializer

    for raw in (b"cos\nsystem\n.", b"cxpushare.integrations.torch\npool\n.", b"cxpushare\nattach\n."):
        with pytest.raises((RuntimeError, pickle.UnpicklingError), match="Blocked"):
            MultiprocessingSerializer.deserialize(raw)


def test_buckets_and_tensors_go_by_handle() -> None:
    with (
        Child(env={"SGLANG_PLUGINS": "xpushare"}, **SLOW) as engine,
        Child(env={"SGLANG_PLUGINS": None}, **SLOW) as trainer,
    ):
        assert len(engine.call(load)) == 2
        trainer.call(install)
        raw, text, shares = trainer.call(serialized, 170)
        assert len(raw) < 100_000  # descriptions, no elements
        assert shares == 2  # one of each message
        for payload in raw, text:  # one for each rank
            found = engine.call(loaded, payload)
            assert [value for _, _, _, value in found[:170]] == [float(i % 16) for i in range(170)]
            assert found[1][:3] == ("layers.1", (8, 64), "torch.bfloat16")
            assert found[170][:2] == ("turned", (32, 8))
        with pytest.raises(xs.HandleExpiredError):
            engine.call(loaded, raw)
        engine.call(write_into, trainer.call(local_tensors, 8))  # the trainer's own memory
        assert trainer.call(seen) == [7.0] * 9
        engine.call(forbidden)

        # a list goes as one message, whatever SGLang makes of it
        raw, messages, trees = trainer.call(listed, 170)
        assert len(trees) == 1
        assert max(messages[1:]) < 200 < messages[0] < 100_000
        engine.call(out_of_order, raw)
        assert engine.call(unwrapped, raw) == [*(float(i % 16) for i in range(170)), 0.0]
        assert trainer.call(seen) == [7.0] * 171  # the trainer's own memory
        assert engine.call(left_open) == 0
        engine.call(unwrapped, trainer.call(listed, 8)[0], 3)  # an update that fails midway
        assert engine.call(left_open) == 1
        engine.call(unwrapped, trainer.call(listed, 8)[0])
        assert engine.call(left_open) == 0
        raw = trainer.call(serialized, 4)[0]
        trainer.kill()
        with pytest.raises(xs.HandleExpiredError):
            engine.call(loaded, raw)


def scheduler(group: str) -> None:
    """Make SGLang's own `SchedulerWeightUpdaterManager` and `WeightUpdater` for a small model, and load the plug-in."""
    import contextlib
    import dataclasses
    import logging
    import typing

    import msgspec
    import torch
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket, FlattenedTensorMetadata

    parallel = SimpleNamespace(tp_rank=0, pp_size=1, tp_group=SimpleNamespace(cpu_group=None))
    context = sys.modules["sglang.srt.runtime_context"] = ModuleType("sglang.srt.runtime_context")
    context.get_parallel = lambda: parallel  # type: ignore[attr-defined]
    answers = sys.modules["sglang.srt.managers.io_struct"] = ModuleType("sglang.srt.managers.io_struct")
    kinds = [f"{each}WeightUpdateReqOutput" for each in ("Begin", "End")] + ["UpdateWeightsFromTensorReqOutput"]
    vars(answers).update(dict.fromkeys(kinds, SimpleNamespace))
    common = {
        **vars(typing), "torch": torch, "dataclass": dataclasses.dataclass, "field": dataclasses.field,
        "get_parallel": context.get_parallel, "logger": logging.getLogger("test"),
    }  # fmt: skip
    updater = made_from_source(
        UPDATER, ("WeightUpdater", "LocalSerializedTensor", "_unwrap_tensor"), **common,
        MultiprocessingSerializer=MultiprocessingSerializer, FlattenedTensorBucket=FlattenedTensorBucket,
        FlattenedTensorMetadata=FlattenedTensorMetadata, monkey_patch_torch_reductions=monkey_patch_torch_reductions,
        DefaultModelLoader=SimpleNamespace(
            restore_weights_before_loading=lambda *_: None, postprocess_weights=lambda *_: None
        ),
        post_load_weights=lambda _model: None, _unsupported_derived_weight_cache_error=lambda _model: None,
        get_model=lambda: SimpleNamespace(weight_cache_mode="off"),
    )  # fmt: skip
    manager = made_from_source(
        MANAGER, ("_parse_runner_selector", "_WeightUpdateSession", "SchedulerWeightUpdaterManager"), **common,
        msgspec=msgspec, contextmanager=contextlib.contextmanager, time=importlib.import_module("time"),
        **dict.fromkeys(kinds, SimpleNamespace),
    )  # fmt: skip
    load()
    torch.distributed.init_process_group("gloo", f"file://{group}", rank=0, world_size=1)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name in ("first", "second"):
                self.register_parameter(name, torch.nn.Parameter(torch.ones(4, 8)))

        def load_weights(self, weights: Any) -> None:
            for name, weight in weights:
                parameter = self.get_parameter(name)
                assert parameter.size() == weight.size()
                parameter.data.copy_(weight)

    class Worker:
        def weight_update_runners(self) -> Any:
            return [("target", SimpleNamespace(weight_updater=runner))]

        def deserialize_own_rank(self, serialized: Any) -> Any:
            return MultiprocessingSerializer.deserialize(serialized[0])

    model = kept["model"] = Model()
    runner = updater.WeightUpdater(
        tp_rank=0, device="cpu", gpu_id=0, model_config=SimpleNamespace(quantization=None), custom_weight_loaders={},
        get_model=lambda: model, update_model_fields=print, recapture_cuda_graph=print, get_model_runner=print,
    )  # fmt: skip
    kept["manager"] = manager.SchedulerWeightUpdaterManager(
        tp_worker=Worker(), draft_worker=None, memory_saver_adapter=None, is_fully_idle=lambda: True,
        flush_cache=lambda **_: True, scheduler=SimpleNamespace(record_weight_version_change=lambda **_: None),
    )  # fmt: skip


def bucket_of(number: float, shapes: dict[str, tuple[int, ...]]) -> bytes:
    import torch
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    bucket = FlattenedTensorBucket([(name, torch.full(shape, number)) for name, shape in shapes.items()])
    kept["bucket"] = bucket
    payload = {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}
    raw: bytes = MultiprocessingSerializer.serialize(payload)
    return raw


def updated(*messages: bytes) -> tuple[list[bool], set[float]]:
    """One session: whether SGLang's manager took each message, and the values in the model at the end."""
    manager = kept["manager"]
    assert manager.begin_weight_update(SimpleNamespace(selector="all")).success
    taken = [
        manager.update_weights_from_tensor(
            SimpleNamespace(
                serialized_named_tensors=[raw], load_format="flattened_bucket", selector="all", weight_version=None,
                flush_cache=True, torch_empty_cache=False,
            )
        ).success
        for raw in messages
    ]  # fmt: skip
    assert manager.end_weight_update(SimpleNamespace()).success
    return taken, {float(value) for each in kept["model"].parameters() for value in each.data.flatten()}


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    with (
        Child(env={"SGLANG_PLUGINS": "xpushare"}, **SLOW) as engine,
        Child(install, env={"SGLANG_PLUGINS": None}, **SLOW) as trainer,
    ):
        engine.call(scheduler, f"{tmp_path}/group")
        first, second = {"first": (4, 8)}, {"second": (4, 8)}
        for wrong in ({"second": (4, 7)}, {"third": (4, 8)}):
            assert engine.call(updated, trainer.call(bucket_of, 2.0, first | wrong)) == ([False], {1.0})
        assert engine.call(updated, trainer.call(bucket_of, 3.0, first | second)) == ([True], {3.0})
        with pytest.raises(xs.InvalidArgumentError, match="Missing: second"):  # SGLang ends the engine
            engine.call(updated, trainer.call(bucket_of, 4.0, first))


def whole() -> tuple[bytes, bool]:
    """A tensor that is all of its storage, and whether NumPy has its dtype here."""
    import torch
    from sglang.srt.utils import MultiprocessingSerializer

    kept["whole"] = torch.from_dlpack(xs.empty(4096, "uint8")).view(torch.bfloat16).fill_(3)
    return MultiprocessingSerializer.serialize([kept["whole"]]), importlib.util.find_spec("ml_dtypes") is not None


def ones(raw: bytes) -> tuple[str, float]:
    from sglang.srt.utils import MultiprocessingSerializer

    (tensor,) = MultiprocessingSerializer.deserialize(raw)
    return str(tensor.dtype), float(tensor.float().sum())


def test_bfloat16_goes_without_ml_dtypes() -> None:
    with Child(env={"SGLANG_PLUGINS": "xpushare"}, **SLOW) as engine, Child(install, **SLOW) as trainer:
        engine.call(load)
        raw, known = trainer.call(whole)
        assert not known, "the environment of scripts/engines has no ml_dtypes"
        assert engine.call(ones, raw) == ("torch.bfloat16", 3.0 * 2048)


def reductions() -> tuple[list[str], bool, bool]:
    from multiprocessing.reduction import ForkingPickler

    patched = load()
    return patched, "dump" in vars(ForkingPickler), "libcuda" in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("plugins", [None, "another"])
def test_nothing_changes_until_sglang_names_it(plugins: str | None) -> None:
    with Child(env={"SGLANG_PLUGINS": plugins}, **SLOW) as child:
        assert child.call(reductions) == ([], False, False)
