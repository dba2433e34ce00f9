"""Sends torch tensors through `multiprocessing` by handle: `xpushare.integrations.torch.install()`.

`Batches` carries a DataLoader's batches through a channel. `pool()` allocates CUDA tensors in memory that can be
shared, handed to the keeper, and put to sleep.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, final

import xpushare as xs
from xpushare import adapters
from xpushare.adapters import HOST
from xpushare.arrays import description
from xpushare.core.ordering import work_on
from xpushare.integrations import _pools
from xpushare.integrations import _reductions as common
from xpushare.integrations.batches import Batches
from xpushare.objects.array import capsule_of, order_before, unsettled
from xpushare.sharing import node

__all__ = ["Batches", "Pool", "install", "pool", "uninstall"]

torch: Any = importlib.import_module("torch")  # if torch is missing, type checkers take `import torch` for this module
_torch_reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
_TYPES: Final = (torch.Tensor, torch.nn.Parameter)
_STRIDED: Final = torch.strided
_BUFFER: Final = "_is_buffer"  # torch.nn.Buffer sets it
_PLAIN: Final = frozenset(
    (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8,
    )
)  # fmt: skip


def install(*, opens: int = 1) -> None:
    """Send tensors by handle, without a copy, through every queue, pipe, pool and process argument.

    This works with `multiprocessing` and `torch.multiprocessing`, for CUDA tensors whose allocator's memory can be
    shared, and for CPU tensors in memory of this package. Views of one storage still share one storage at the receiver,
    and parameters and buffers stay parameters and buffers. Gradients are not sent. torch sends all other tensors by its
    own methods. For CPU tensors in memory of this package, `is_shared()` is true, and `share_memory_()` leaves them
    where they are.

    The memory stays allocated until the receiver has released the tensor. If a message is never received, its memory is
    released after `XPUSHARE_PICKLE_GRACE` seconds. The receiver needs this package, but need not call this function. A
    forked child cannot send memory of its parent by handle. torch copies such memory, and a `RuntimeWarning` reports it
    once. Idempotent.

    Args:
        opens: How often each message can be received, in any processes. Use more than one for a pool
            that retries, or for several receivers.

    Raises:
        InvalidArgumentError: `opens` is below 1.

    Examples:
        >>> import torch
        >>> from multiprocessing.reduction import ForkingPickler
        >>> from xpushare.integrations.torch import install, uninstall
        >>> install()
        >>> sent = torch.from_dlpack(xs.zeros(1 << 20))
        >>> message = bytes(ForkingPickler.dumps(sent))
        >>> received = ForkingPickler.loads(message)
        >>> sent[0] = 5
        >>> received[0].item()
        5.0
        >>> uninstall()
    """
    common.install("torch", dict.fromkeys(_TYPES, _Reduction), opens)
    with _lock:
        for name, method in _SHARED_METHODS.items():
            if name not in _before:
                _before[name] = vars(torch.UntypedStorage).get(name)
                setattr(torch.UntypedStorage, name, method)
        register = getattr(_torch_reductions, "register_ipc_tensor_reducer", None)  # of pytorch/pytorch#194568
        for kind in _backends():
            if register is not None and kind not in ("cpu", "cuda", *_offered):  # torch has reducers for these
                register(kind, _reduced, pickle.loads)
                _offered.add(kind)


def uninstall() -> None:
    """Restore torch's own reductions, and undo the other changes of `install`. Idempotent.

    Examples:
        >>> from xpushare.integrations.torch import install, uninstall
        >>> install()
        >>> uninstall()
        >>> uninstall() is None
        True
    """
    common.uninstall("torch")
    with _lock:
        for name, method in _SHARED_METHODS.items():
            before = _before.pop(name, None)
            if vars(torch.UntypedStorage).get(name) is not method:
                continue
            if before is None:
                delattr(torch.UntypedStorage, name)
            else:
                setattr(torch.UntypedStorage, name, before)


# torch asks the allocator of a storage in C++ whether it is shared, and that knows torch's own shared memory only. All
# the ways to ask, and to move a storage, go through these two methods.

_lock: Final = threading.RLock()
_before: dict[str, Any] = {}  # the methods of torch, by name; None means inherited
_offered: Final[set[str]] = set()  # types of devices whose reducer in torch is ours


class _Busy(threading.local):
    reducing = False


_busy: Final = _Busy()


def _reduced(tensor: Any) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """Reduce a tensor whose device type torch would copy through the host. This replaces torch's `reduce_tensor` for
    such devices, and uses this package's reduction instead.
    """
    if _busy.reducing:  # asked again, for memory that has no handle
        raise xs.FeatureNotSupportedError(
            f"this tensor's memory on {tensor.device} cannot be shared: `xpushare.share(tensor)` says why"
        )
    _busy.reducing = True
    try:
        return pickle.loads, (bytes(ForkingPickler.dumps(tensor)),)
    finally:
        _busy.reducing = False


def _plain(name: str) -> Any:
    """Return torch's own implementation of a method of `UntypedStorage`."""
    before = _before.get(name)
    return before if before is not None else getattr(super(torch.UntypedStorage, torch.UntypedStorage), name)


def _is_shared(self: Any) -> bool:
    """Return whether the storage lies in shared memory."""
    found: bool = _lies_here(self) or _plain("is_shared")(self)
    return found


def _share_memory_(self: Any, *args: Any, **options: Any) -> Any:
    """Move the storage to shared memory, unless it already lies there."""
    return self if _lies_here(self) else _plain("share_memory_")(self, *args, **options)


_SHARED_METHODS: Final = {"is_shared": _is_shared, "share_memory_": _share_memory_}


def _lies_here(storage: Any) -> bool:
    """Return whether a CPU storage lies in memory that this package allocated or opened, in this process or in its
    parent before a fork. Memory that is only lent, such as a batch in a slot, does not count.
    """
    if storage.device.type != "cpu" or not storage.nbytes():
        return False
    try:
        address = storage.data_ptr()
    except RuntimeError:  # a storage without memory, such as that of a tracer's tensor
        return False
    here = node.current()
    found = here.allocations.find(address) is not None or here.peers.maps(address) or node.inherited(address)
    return found and not description.is_lent(address)


class _Reduction:
    """The reduction for tensors: called with a tensor, it returns what a pickle contains in place of the tensor.
    `before` is torch's own reduction.
    """

    def __init__(self, before: Any) -> None:
        self._before = before if before is not None else _torch_reductions.reduce_tensor

    def __call__(self, tensor: Any) -> Any:
        dtype = tensor.dtype
        if type(tensor) in _TYPES and (
            tensor.is_neg() or tensor._is_zerotensor() or (dtype not in _PLAIN and tensor.is_conj())
        ):
            return self._before(_resolved(tensor))  # torch's own way loses what it computes when it is read
        if (
            type(tensor) not in _TYPES
            or tensor.layout is not _STRIDED
            or tensor.is_nested
            or (dtype not in _PLAIN and tensor.is_quantized)
            or (tensor.requires_grad and not tensor.is_leaf)  # torch explains why it refuses these
        ):
            return self._before(tensor)
        backend = HOST if tensor.is_cpu else _backends().get(tensor.device.type)
        if backend is None:
            return self._before(tensor)
        if _BUFFER in vars(tensor):  # a tensor with attributes
            return _as_buffer, (tensor.detach().requires_grad_(tensor.requires_grad), tensor.persistent)
        storage = tensor.untyped_storage()
        address, nbytes = storage.data_ptr(), storage.nbytes()
        message = common.message("torch", address, nbytes, None if backend == HOST else backend, tensor)
        wanted: tuple[Any, ...]
        if message is not None:
            number = message.numbers.get((address, nbytes))
            if number is None:
                plain = _is_plain(tensor, nbytes)
                number = message.numbers[address, nbytes] = message.add(tensor.detach() if plain else _bytes(storage))
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
        return _rebuild, (wanted, type(tensor) is torch.nn.Parameter, dtype, *layout, tensor.requires_grad)


def _resolved(tensor: Any) -> Any:
    """Return the tensor or parameter with its values in memory."""
    found = tensor.clone() if tensor._is_zerotensor() else tensor.resolve_conj().resolve_neg()
    return torch.nn.Parameter(found.detach(), tensor.requires_grad) if type(tensor) is torch.nn.Parameter else found


def _as_buffer(tensor: Any, persistent: bool) -> Any:
    return torch.nn.Buffer(tensor, persistent=persistent)


def _is_plain(tensor: Any, nbytes: int) -> bool:
    """Return whether DLPack can carry a tensor and its storage of `nbytes` bytes without loss. DLPack carries neither
    gradients nor the strides of dimensions of length 1.
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
    """Return a uint8 tensor over all bytes of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


@functools.cache
def _backends() -> dict[str, str]:
    """Return a dict from torch's device types to this package's backends."""
    return {each.torch_type: each.backend for each in adapters.vendors() if each.torch_type is not None}


def _torch_stream(place: xs.Device) -> Any:
    """Return torch's current stream on a device."""
    record = adapters.record(place.backend)
    assert record is not None
    assert record.torch_type is not None
    return getattr(torch, record.torch_type).current_stream(place.ordinal)


def _reopened(raw: bytes) -> xs.SharedArray:
    """Open a block of memory in the receiving process, and return its array. On a GPU, torch's current stream waits for
    the producer's stream.
    """
    array = common.reopened(raw)
    if unsettled(array) is not None and array.device.type == "gpu":
        place = array.device
        work = work_on(place, _torch_stream(place))
        assert work is not None
        order_before(array, work)
    return array


def _only(storage: Any) -> Any:
    """Return the one storage that represents these bytes in this process. If an earlier storage over the same bytes is
    alive, return that one. Otherwise return `storage`, and remember it by its address and size.
    """
    key = "xpushare", storage.data_ptr(), storage.nbytes()
    cache = _torch_reductions.shared_cache
    if key in cache:
        known = _torch_reductions.storage_from_cache(torch.UntypedStorage, key)
        if known is not None:
            return known
    cache[key] = _torch_reductions.StorageWeakRef(storage)
    return storage


def _of_block(array: xs.SharedArray, offset: int, nbytes: int) -> Any:
    """Return the storage over part of a received block."""
    stream = -1 if array.device.type == "gpu" else None
    piece = capsule_of(common.piece_of(array, offset, nbytes), stream, False, True)
    return _only(torch.utils.dlpack.from_dlpack(piece).untyped_storage())


def _of_message(message: common.Received, number: int) -> Any:
    """Return the storage of a tensor in a received message."""
    return _only(message.arrays[number].untyped_storage())


def _received(message: common.Received, number: int) -> Any:
    """Return a tensor of a received message."""
    tensor = message.arrays[number]
    storage = tensor.untyped_storage()
    only = _only(storage)
    return tensor if only is storage else tensor.set_(only, 0, tensor.shape, tensor.stride())


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


# --- pools


@final
class Pool(_pools.Pool):
    """A pool of device memory from which torch allocates CUDA tensors. See `pool`."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        functions = self._driver.functions
        with _lock:
            if functions[0] not in _allocators:  # torch calls it as long as any tensor lives
                _allocators[functions[0]] = torch.cuda.memory.CUDAPluggableAllocator(self._driver.library, *functions)
        self._mem_pool = self._new_mem_pool()

    def _new_mem_pool(self) -> Any:
        return torch.cuda.MemPool(_allocators[self._driver.functions[0]].allocator())

    @property
    def id(self) -> tuple[int, int]:
        """The pool's id, for `torch.cuda.graph(…, pool=…)`. A graph that is captured with this id allocates its memory
        in the pool.
        """
        found: tuple[int, int] = self._mem_pool.id
        return found

    def empty_cache(self) -> None:
        """Free memory that torch has cached, in this pool and elsewhere, and that no tensor uses. This changes `id`.

        Raises `InvalidArgumentError` within `with pool:`, and while a captured graph has memory in this pool.
        """
        with self._lock:
            self._expect_own()
            if self._mem_pool.use_count() != 1:
                raise xs.InvalidArgumentError(
                    "this pool is in use: empty its cache outside of `with pool:`, and not while a captured graph has "
                    "its memory there"
                )
            self._mem_pool = self._new_mem_pool()  # torch empties a pool's cache when the pool ends
            torch.cuda.empty_cache()

    def _capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def _using(self) -> AbstractContextManager[object]:
        found: AbstractContextManager[object] = torch.cuda.use_mem_pool(self._mem_pool, self.device.ordinal)
        return found


_allocators: Final[dict[str, Any]] = {}  # torch's objects, by the function that they call


def pool(device: Any = "gpu") -> Pool:
    """Make a pool of device memory for torch's tensors. The memory can be shared, handed to the keeper, and put to
    sleep.

    Within `with pool:`, torch puts the device memory of this thread's new tensors into large VMM allocations of CUDA,
    which are exported as file descriptors. `xs.share` and pickles take such tensors in place, `xs.publish(…,
    keep=True)` hands them to the keeper, and another process can own them (`xs.attach(…, own=True)`). `pool.sleep()`
    gives the memory back to the device while the tensors keep their addresses, and `pool.wake()` brings it back.

    Tensors that outlive the pool keep their memory. A process can have 16 pools.

    Args:
        device: A CUDA device: an `xs.Device`, a `torch.device` or its name.

    Returns:
        The pool, which belongs to the caller.

    Raises:
        FeatureNotSupportedError: The device has no virtual memory that can be shared.
        OutOfMemoryError: The device does not have enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> import torch
        >>> from xpushare.integrations.torch import pool
        >>> weights = pool("cuda:0")
        >>> with weights:
        ...     w = torch.ones(1 << 20, device="cuda:0")
        >>> with xs.share(w, read_only=False) as handle:
        ...     handle.copied_nbytes
        0
    """
    return Pool(device)
