"""SGLang: its weights and other tensors go between its processes by handle.

SGLang's own list of plug-ins, `SGLANG_PLUGINS=xpushare`, switches it on, or `install()`. `docs/engines/sglang.md` says
what changes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

__all__ = ["install", "plugin"]

_UTILS: Final = "sglang.srt.utils"
_BUCKET: Final = "sglang.srt.weight_sync.tensor_bucket"
# What a pickle of ours names. Each takes a sealed handle, or arrays that came by one.
_GLOBALS: Final = {
    ("xpushare.integrations._reductions", name)
    for name in ("opened", "received", "received_array", "received_piece", "reopened")
} | {("xpushare.integrations.torch", name) for name in ("_rebuild", "_received", "_reopened")}

_opens = 1
_patched = False  # by SGLang, once


def plugin() -> None:
    """Install, if `SGLANG_PLUGINS` names this plug-in. SGLang calls it in each of its processes."""
    if "xpushare" in (each.strip() for each in os.environ.get("SGLANG_PLUGINS", "").split(",")):
        _register()


def install(*, opens: int = 1) -> None:
    """Do the same in a process that loads no plug-ins of SGLang, such as a trainer.

    Each serialized message can be read `opens` times, for example by the ranks of `opens` data-parallel replicas that
    get the same bytes. Idempotent. Raises `InvalidArgumentError` for an `opens` below 1.
    """
    global _opens
    importlib.import_module("xpushare.integrations.torch").install(opens=opens)
    _opens = opens
    _register()
    importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()


def _register() -> None:
    """Register the hooks that SGLang applies once all plug-ins are loaded."""
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    importlib.import_module("xpushare.integrations.torch").install(opens=_opens)
    importlib.import_module(f"{_UTILS}.common").SafeUnpickler.ALLOWED_GLOBALS |= _GLOBALS
    for target, hook in (
        (f"{_UTILS}.patch_torch.monkey_patch_torch_reductions", _patch),
        (f"{_BUCKET}.FlattenedTensorBucket.__init__", _init),
        (f"{_BUCKET}.FlattenedTensorBucket.reconstruct_tensors", _reconstruct),
    ):
        if all(each[1] is not hook for each in hooks.HookRegistry._hooks[target]):
            hooks.HookRegistry.register(target, hook, hooks.HookType.AROUND)


def _patch(original: Callable[[], None]) -> None:
    """Let SGLang register its reductions of torch's tensors below ours, which leave to them what has no handle."""
    global _patched
    if _patched:
        return
    ours = importlib.import_module("xpushare.integrations.torch")
    ours.uninstall()
    try:
        original()
    finally:
        ours.install(opens=_opens)
    _patched = True


def _init(
    original: Callable[..., None], self: Any, named_tensors: Any = None, flattened_tensor: Any = None,
    metadata: Any = None,
) -> None:  # fmt: skip
    """Keep the tensors of a new bucket instead of concatenating them: each goes by handle, from where it lies."""
    if not named_tensors or flattened_tensor is not None:
        original(self, named_tensors, flattened_tensor, metadata)
        return
    described = importlib.import_module(_BUCKET).FlattenedTensorMetadata
    self.flattened_tensor = [tensor for _, tensor in named_tensors]
    self.metadata, end = [], 0
    for name, tensor in named_tensors:
        start, end = end, end + tensor.nbytes
        self.metadata.append(described(name, tensor.shape, tensor.dtype, start, end, tensor.nbytes))


def _reconstruct(original: Callable[[Any], Any], self: Any) -> Any:
    """The tensors that came, in place of slices of a concatenated one."""
    if not isinstance(self.flattened_tensor, list):
        return original(self)
    return [(each.name, tensor) for each, tensor in zip(self.metadata, self.flattened_tensor, strict=True)]
