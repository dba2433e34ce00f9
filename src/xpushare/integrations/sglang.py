"""SGLang integration. Tensors are sent by handle between SGLang's processes, and from a trainer to these processes.

Set `SGLANG_PLUGINS=xpushare` or call `install()` to enable the plug-in. docs/engines/sglang.md describes the changes.
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import xpushare as xs
from xpushare import adapters
from xpushare.integrations import _sglang_session as _session
from xpushare.integrations._after_import import after_import

__all__ = ["install", "plugin"]

_UTILS: Final = "sglang.srt.utils"
_BUCKET: Final = "sglang.srt.weight_sync.tensor_bucket"
_LISTS: Final = "sglang.srt.weight_sync.utils"
# The functions that this package's pickles name. Each takes a sealed handle, or arrays that came by one.
_GLOBALS: Final = {
    ("xpushare.integrations._reductions", name)
    for name in ("opened", "received", "received_array", "received_piece", "reopened")
} | {
    ("xpushare.integrations.torch", name) for name in ("_rebuild", "_received", "_reopened")
} | {("xpushare.integrations.sglang", "_listed")}  # fmt: skip

_opens = 1
_patched = False  # by SGLang, once
_open: Final[dict[bytes, dict[int, Any]]] = {}  # the list that is being read: its tensors that are not taken yet


def plugin() -> None:
    """Install the plug-in if `SGLANG_PLUGINS` names it. SGLang calls this in each of its processes."""
    if "xpushare" in (each.strip() for each in os.environ.get("SGLANG_PLUGINS", "").split(",")):
        _register()


def install(*, opens: int = 1) -> None:
    """Enable the plug-in in a process that does not load SGLang's plug-ins, such as a trainer.

    Each serialized message can be read `opens` times, for example by the ranks of `opens` data-parallel replicas that
    get the same bytes. Idempotent. Raises `InvalidArgumentError` if `opens` is below 1.
    """
    global _opens
    importlib.import_module("xpushare.integrations.torch").install(opens=opens)
    _opens = opens
    _register()
    _registry().apply_hooks()


def _register() -> None:
    """Register this plug-in's hooks with SGLang, which applies them once all plug-ins are loaded."""
    importlib.import_module("xpushare.integrations.torch").install(opens=_opens)
    importlib.import_module(f"{_UTILS}.common").SafeUnpickler.ALLOWED_GLOBALS |= _GLOBALS
    _hook(f"{_UTILS}.patch_torch.monkey_patch_torch_reductions", _patch)
    _hook(f"{_BUCKET}.FlattenedTensorBucket.__init__", _init)
    _hook_late(_LISTS, {"update_weights": _update_weights})
    _hook_late(_session.MODULE, _session.HOOKS)


def _hook_late(module: str, hooks: dict[str, Callable[..., Any]]) -> None:
    """Hook functions of a module that imports all of the engine, once the engine has imported it."""

    def register() -> None:
        for name, hook in hooks.items():
            _hook(f"{module}.{name}", hook)

    def register_and_apply(_module: Any) -> None:
        register()
        _registry().apply_hooks()

    if module in sys.modules:
        register()
    else:
        after_import(module, register_and_apply)


def _registry() -> Any:
    return importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry


def _hook(target: str, hook: Callable[..., Any]) -> None:
    kinds = importlib.import_module("sglang.srt.plugins.hook_registry").HookType
    if all(each[1] is not hook for each in _registry()._hooks[target]):
        _registry().register(target, hook, kinds.AROUND)


def _patch(original: Callable[[], None]) -> None:
    """Let SGLang register its reductions, and then register this package's reductions on top. These call SGLang's
    reductions for tensors that cannot be sent by handle.
    """
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
    """Concatenate the tensors of a new bucket, as SGLang does, but in memory that xpushare allocates. If no backend
    supports the device, SGLang's own code does this.
    """
    engines = importlib.import_module("xpushare.integrations._engines")
    device = named_tensors[0][1].device if flattened_tensor is None and named_tensors else None
    if device is not None and device.type in {each.torch_type for each in adapters.vendors()}:
        described = importlib.import_module(_BUCKET).FlattenedTensorMetadata
        parts = [tensor.detach().flatten().view(engines.torch.uint8) for _, tensor in named_tensors]
        nbytes = sum(part.nbytes for part in parts)
        memory = xs.empty(max(nbytes, 1), "uint8", device=engines.device_of(device))
        flattened_tensor = engines.torch.cat(parts, out=engines.torch.from_dlpack(memory)[:nbytes])
        metadata, end = [], 0
        for (name, tensor), part in zip(named_tensors, parts, strict=True):
            start, end = end, end + part.nbytes
            metadata.append(described(name, tensor.shape, tensor.dtype, start, end, part.nbytes))
        named_tensors = None
    original(self, named_tensors, flattened_tensor, metadata)


# --- lists of named tensors: SGLang makes a message of each tensor


class _Listed:
    """Replaces a tensor in a list to send. The message of the first tensor carries the whole list as one tree."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def detach(self) -> _Listed:
        return self

    def __reduce__(self) -> Any:
        return _listed, self._arguments


async def _update_weights(
    original: Callable[..., Awaitable[Any]], engine: Any, params_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Serialize the whole list once, instead of each of its tensors."""
    prepared = importlib.import_module(_LISTS)._preprocess_tensor_for_update_weights
    tensors = [prepared(tensor.detach()) for _, tensor in params_batch]
    raw = importlib.import_module(_UTILS).MultiprocessingSerializer.serialize(tensors)
    token = secrets.token_bytes(16)
    listed = [
        (name, _Listed(token, number, b"" if number else raw)) for number, (name, _) in enumerate(params_batch)
    ]  # fmt: skip
    return await original(engine, listed, *args, **kwargs)


def _listed(token: bytes, number: int, raw: bytes) -> Any:
    """Return tensor `number` of the received list `token`. `raw` holds the whole list, and comes only with the first
    tensor. Unread tensors of an earlier list, whose update failed, are dropped.
    """
    if raw and number not in _open.get(token, ()):
        found = importlib.import_module(_UTILS).MultiprocessingSerializer.deserialize(raw)
        _open.clear()
        _open[token] = dict(enumerate(found))
    if number not in _open.get(token, ()):
        raise xs.InvalidHandleError("the first tensor of a list carries all of them: read it first, and each once")
    tensor = _open[token].pop(number)
    if not _open[token]:
        del _open[token]
    return tensor
