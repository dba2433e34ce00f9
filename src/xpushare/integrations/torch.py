"""torch tensors through `multiprocessing` by handle: `xpushare.integrations.torch.install()`."""

from __future__ import annotations

import functools
import importlib
import math
from typing import TYPE_CHECKING, Any, Final

import xpushare as xs
from xpushare import adapters
from xpushare._array import capsule_of, order_before, unsettled
from xpushare._lifecycle import use
from xpushare._tree_handle import content_of
from xpushare.adapters import HOST
from xpushare.arrays import Located
from xpushare.core.ordering import work_on
from xpushare.integrations import _reductions as common
from xpushare.sharing.handle import fields_of

if TYPE_CHECKING:
    from xpushare.sharing.handle import Handle

__all__ = ["install", "uninstall"]

torch: Any = importlib.import_module("torch")  # type checkers take `import torch` for this module where it is missing
_torch_reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
_TYPES: Final = (torch.Tensor, torch.nn.Parameter)
_PLAIN: Final = frozenset(
    (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8,
    )
)  # fmt: skip


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
        address, nbytes = storage.data_ptr(), storage.nbytes()
        where = Located(address, nbytes, False, None if backend == HOST else backend)
        message = common.message("torch", where, tensor)
        wanted: tuple[Any, ...]
        if message is not None:
            number = message.numbers.get((address, nbytes))
            if number is None:
                plain = _is_plain(tensor, nbytes)
                number = message.numbers[address, nbytes] = message.add(tensor if plain else _bytes(storage))
                if plain:
                    return _received, (message, number)
            wanted = message, number
        else:
            found = common.block_of(address, nbytes, tensor, _reopened)
            if found is None:
                return self._before(tensor)
            wanted = (*found, nbytes)
        torch.utils.hooks.warn_if_has_hooks(tensor)
        layout = tensor.storage_offset(), tuple(tensor.size()), tensor.stride()
        return _rebuild, (wanted, type(tensor) is torch.nn.Parameter, tensor.dtype, *layout, tensor.requires_grad)


def _is_plain(tensor: Any, nbytes: int) -> bool:
    """Whether a tensor over a storage of so many bytes is what any library makes of its elements: DLPack says nothing
    of gradients, nor of the strides of dimensions of length 1.
    """
    return (
        type(tensor) is torch.Tensor
        and not tensor.requires_grad
        and tensor.dtype in _PLAIN
        and tensor.nbytes == nbytes
        and tensor.is_contiguous()
        and 1 not in tensor.shape
    )


def _bytes(storage: Any) -> Any:
    """All of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


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


def _cached(key: tuple[Any, ...]) -> Any:
    """The storage over these bytes, if it lives: the same object for the same bytes."""
    return _torch_reductions.storage_from_cache(torch.UntypedStorage, key)


def _keep(key: tuple[Any, ...], storage: Any) -> Any:
    _torch_reductions.shared_cache[key] = _torch_reductions.StorageWeakRef(storage)
    return storage


def _key(handle: Handle, offset: int, nbytes: int) -> tuple[Any, ...]:
    """By what a storage is known that lies so in the memory of a handle."""
    fields = fields_of(handle)
    return "xpushare", fields.cookie, fields.object, fields.offset + offset, nbytes, fields.flags


def _of_block(array: xs.SharedArray, offset: int, nbytes: int) -> Any:
    """The storage over these bytes."""
    handle = use(array).handle
    if handle is None:
        raise xs.InvalidArgumentError("the message names no imported memory")
    key = _key(handle, offset, nbytes)
    known = _cached(key)
    if known is not None:
        return known
    piece = common.piece_of(array, offset, nbytes)
    stream = -1 if array.device.type == "gpu" else None
    return _keep(key, torch.utils.dlpack.from_dlpack(capsule_of(piece, stream, False, True)).untyped_storage())


def _key_of(message: common.Received, number: int) -> tuple[Any, ...]:
    """By what the storage of a message's tensor is known."""
    if message.keys is None:
        content = content_of(message.handle)
        message.keys = [
            _key(content.memory[each.memory], each.offset, math.prod(each.shape) * each.dtype.itemsize)
            for each in content.elements()
        ]
    found: tuple[Any, ...] = message.keys[number]
    return found


def _of_message(message: common.Received, number: int) -> Any:
    """The storage of a message's tensor."""
    key = _key_of(message, number)
    known = _cached(key)
    return _keep(key, message.arrays[number].untyped_storage()) if known is None else known


def _received(message: common.Received, number: int) -> Any:
    """A message's tensor."""
    tensor, key = message.arrays[number], _key_of(message, number)
    known = _cached(key)
    if known is None:
        _keep(key, tensor.untyped_storage())
        return tensor
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(known, 0, tensor.shape, tensor.stride())


def _rebuild(
    wanted: tuple[Any, ...],
    parameter: bool,
    dtype: Any,
    first: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    storage = _of_message(*wanted) if len(wanted) == 2 else _of_block(*wanted)
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, first, size, stride)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad = requires_grad
    return tensor
