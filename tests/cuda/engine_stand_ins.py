"""Stand-ins for what the plug-ins import of LMCache, SGLang and verl, for a GPU machine that has neither."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

DEVICES = "lmcache.v1.platform.devices"


def module(name: str, **names: Any) -> None:
    made = ModuleType(name)
    made.__path__ = []
    vars(made).update(names)
    sys.modules[name] = made
    parent, _, leaf = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            module(parent)
        setattr(sys.modules[parent], leaf, made)


@dataclass
class CudaIPCData:
    version: int
    metadata: Any
    handle: Any


class CudaDeviceSpec:
    device_type = "cuda"

    def is_available(self) -> bool:
        return True


class DeviceIPCWrapper:
    def wire_metadata(self) -> dict[str, Any]:
        """Return the fields that LMCache 0.5.6 puts into its `TensorMetadata`. A descriptor carries nothing else."""
        return {name: getattr(self, name) for name in ("dtype", "shape", "stride", "storage_offset", "device_uuid")}

    def restore_metadata(self, metadata: dict[str, Any]) -> None:
        vars(self).update(metadata)

    @staticmethod
    def _get_device_uuid(index: int) -> str:
        import torch

        return str(torch.cuda.get_device_properties(index).uuid)


class FlattenedTensorMetadata(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: Any
    start_idx: int
    end_idx: int
    numel: int


async def ensure_async_iterator(weights: Any) -> Any:
    for each in weights:
        yield each


def stand_in() -> None:
    """Put them in the place of what is missing."""
    import torch

    if importlib.util.find_spec("lmcache") is None:
        module(f"{DEVICES}.cuda", CudaDeviceSpec=CudaDeviceSpec)
        module("lmcache.v1.platform.base.ipc_wire", CudaIPCData=CudaIPCData, WRAPPER_TYPES={})
        module("lmcache.v1.platform.base.ipc_wrapper", DeviceIPCWrapper=DeviceIPCWrapper)
        module(
            "lmcache.v1.gpu_connector.kv_format.contiguity", attempt_permute_to_contiguous_view=lambda tensor: tensor
        )
    if importlib.util.find_spec("sglang") is None:
        module("sglang.srt.weight_sync.tensor_bucket", FlattenedTensorMetadata=FlattenedTensorMetadata)
    if importlib.util.find_spec("verl") is None:
        current = torch.cuda.current_device
        module("verl.utils.device", get_device_name=lambda: "cuda", get_device_id=current)
        module("verl.workers.rollout.utils", ensure_async_iterator=ensure_async_iterator)
