"""SGLang's own serializer and bucket (the package from the index, in an environment of its own: scripts/engines), in
two processes with the plug-in.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
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


def serialized(count: int) -> tuple[Any, str, int]:
    """A bucket as trainers send it: (bytes for one rank, text for another, bytes that were copied)."""
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    monkey_patch_torch_reductions()
    bucket = FlattenedTensorBucket(named_tensors=weights(count))
    payload = {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}
    same = {tensor.data_ptr() for _, tensor in kept["weights"]} == {
        tensor.data_ptr() for tensor in payload["flattened_tensor"]
    }
    assert same
    return (
        MultiprocessingSerializer.serialize(payload),
        MultiprocessingSerializer.serialize(payload, output_str=True),
        len(xs.shares()),
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
    """Named tensors without a bucket, serialized twice, as `update_weights` of SGLang's weight_sync does."""
    from sglang.srt.utils import MultiprocessingSerializer

    return [(name, MultiprocessingSerializer.serialize(tensor)) for name, tensor in weights(count)]


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
        assert len(engine.call(load)) == 3
        trainer.call(install)
        raw, text, shares = trainer.call(serialized, 170)
        assert shares
        assert len(raw) < 100_000  # descriptions, no elements
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
        raw = trainer.call(serialized, 4)[0]
        trainer.kill()
        with pytest.raises(xs.HandleExpiredError):
            engine.call(loaded, raw)


def reductions() -> tuple[list[str], bool, bool]:
    from multiprocessing.reduction import ForkingPickler

    patched = load()
    return patched, "dump" in vars(ForkingPickler), "libcuda" in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("plugins", [None, "another"])
def test_nothing_changes_until_sglang_names_it(plugins: str | None) -> None:
    with Child(env={"SGLANG_PLUGINS": plugins}, **SLOW) as child:
        assert child.call(reductions) == ([], False, False)
