"""torch tensors through `multiprocessing` by handle: `xpushare.integrations.torch.install()`."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

import xpushare as xs
from xpushare import adapters
from xpushare._array import capsule_of, order_before, unsettled
from xpushare._lifecycle import use
from xpushare.adapters import HOST
from xpushare.core.ordering import work_on
from xpushare.integrations import _reductions as common
from xpushare.sharing.handle import fields_of

__all__ = ["install", "uninstall"]

torch: Any = importlib.import_module("torch")  # type checkers take `import torch` for this module where it is missing
_torch_reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
_TYPES: Final = (torch.Tensor, torch.nn.Parameter)


def install() -> None:
    """Let tensors and parameters go by handle, without a copy, through every `multiprocessing` queue, pipe, pool and
    process argument, and through those of `torch.multiprocessing`.

    This holds for CUDA tensors whose allocator's memory can be shared, and for CPU tensors that lie in memory of this
    package (`empty`, `malloc_*`, `attach`). Views of one storage stay views of one storage, parameters stay
    parameters, and what torch refuses is refused; gradients stay behind. Everything else goes torch's way, as before.
    The memory is held until the receiver has dropped the tensor; a message that nobody receives holds it for
    XPUSHARE_PICKLE_GRACE seconds. The receiver needs this package, but need not call this. Idempotent.
    """
    common.install("torch", dict.fromkeys(_TYPES, _Reduction))


def uninstall() -> None:
    """Register torch's own reductions again. Idempotent."""
    common.uninstall("torch")


class _Reduction:
    """Reduces tensors; `before` is torch's own reduction."""

    def __init__(self, before: Any) -> None:
        self._before = before if before is not None else _torch_reductions.reduce_tensor

    def __call__(self, tensor: Any) -> Any:
        device = tensor.device
        if (
            type(tensor) not in _TYPES
            or tensor.layout is not torch.strided
            or tensor.is_nested
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
            or (tensor.requires_grad and not tensor.is_leaf)  # torch says why it refuses these
        ):
            return self._before(tensor)
        backend = _backends().get(device.type)
        if backend is None:
            return self._before(tensor)
        storage = tensor.untyped_storage()
        on_device = None if backend == HOST else backend
        found = common.block_of(storage.data_ptr(), storage.nbytes(), on_device, tensor, _reopened)
        if found is None:
            return self._before(tensor)
        torch.utils.hooks.warn_if_has_hooks(tensor)
        block, at = found
        layout = tensor.storage_offset(), tuple(tensor.size()), tensor.stride()
        wanted = (block, at, storage.nbytes())
        return _rebuild, (wanted, type(tensor) is torch.nn.Parameter, tensor.dtype, *layout, tensor.requires_grad)


@functools.cache
def _backends() -> dict[str, str]:
    """The backends, by what torch calls their devices."""
    return {each.torch_type: each.backend for each in adapters.vendors() if each.torch_type is not None}


def _torch_stream(place: xs.Device) -> Any:
    """torch's current stream on a device."""
    record = adapters.record(place.backend)
    assert record is not None
    assert record.torch_type is not None
    return getattr(torch, record.torch_type).current_stream(place.ordinal)


def _reopened(raw: bytes) -> xs.SharedArray:
    """A block of the message. On a GPU torch's current stream waits for the producer's."""
    array = common.reopened(raw)
    if unsettled(array) is not None and array.device.type == "gpu":
        place = array.device
        work = work_on(place, _torch_stream(place))
        assert work is not None
        order_before(array, work)
    return array


def _storage(array: xs.SharedArray, offset: int, nbytes: int) -> Any:
    """The storage over these bytes: the same object for the same bytes, as long as it lives."""
    handle = use(array).handle
    if handle is None:
        raise xs.InvalidArgumentError("the message names no imported memory")
    fields = fields_of(handle)
    key = ("xpushare", fields.cookie, fields.object, fields.offset + offset, nbytes, fields.flags)
    known = _torch_reductions.storage_from_cache(torch.UntypedStorage, key)
    if known is not None:
        return known
    piece = common.piece_of(array, offset, nbytes)
    stream = -1 if array.device.type == "gpu" else None
    storage = torch.utils.dlpack.from_dlpack(capsule_of(piece, stream, False, True)).untyped_storage()
    _torch_reductions.shared_cache[key] = _torch_reductions.StorageWeakRef(storage)
    return storage


def _rebuild(
    wanted: tuple[xs.SharedArray, int, int],
    parameter: bool,
    dtype: Any,
    first: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    storage = _storage(*wanted)
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, first, size, stride)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad = requires_grad
    return tensor
