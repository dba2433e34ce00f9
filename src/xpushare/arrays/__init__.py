"""Arrays of other libraries, recognised by protocol; none of those libraries is imported."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from xpushare import adapters
from xpushare._array import SharedArray, c_strides, extent
from xpushare._device import _device
from xpushare._errors import FeatureNotSupportedError, InvalidArgumentError
from xpushare._native import DLTensor
from xpushare.core.memory import Range
from xpushare.core.resources import Allocation
from xpushare.sharing import node

__all__ = ["Located", "locate", "range_at", "range_of"]

_DLPACK_BACKENDS: Final = {2: "cuda", 3: "cuda", 13: "cuda"}


class Located(NamedTuple):
    """Where an array lies."""

    address: int  # of its lowest byte
    nbytes: int
    read_only: bool
    backend: str | None  # whose device memory it is, where the protocol tells


def locate(array: Any) -> Located:
    """Address and extent of an array, by `__cuda_array_interface__`, `__array_interface__` or DLPack."""
    for name, backend in (("__cuda_array_interface__", "cuda"), ("__array_interface__", None)):
        interface = getattr(array, name, None)
        if isinstance(interface, dict) and isinstance(interface.get("data"), tuple):
            itemsize = int(interface["typestr"][2:])
            shape = tuple(interface["shape"])
            strides = interface.get("strides")
            low, high = extent(shape, tuple(strides) if strides is not None else c_strides(shape, itemsize), itemsize)
            address, read_only = interface["data"]
            return Located(address + low, high - low, bool(read_only), backend)
    if hasattr(array, "__dlpack__"):
        try:
            capsule = array.__dlpack__(max_version=(1, 1))
        except TypeError:  # a producer older than DLPack 1.0
            capsule = array.__dlpack__()
        tensor = DLTensor(capsule)
        itemsize = (tensor.dtype[1] * tensor.dtype[2] + 7) // 8
        strides = c_strides(tensor.shape, 1) if tensor.strides is None else tensor.strides
        low, high = extent(tensor.shape, tuple(stride * itemsize for stride in strides), itemsize)
        return Located(tensor.address + low, high - low, tensor.read_only, _DLPACK_BACKENDS.get(tensor.device[0]))
    raise InvalidArgumentError(
        f"{type(array).__name__} is neither a Memory nor an array that tells where its memory is"
    )


def range_of(array: Any) -> Range:
    """The piece of an allocation that an array covers, or that begins at an address (int) and ends with its allocation.

    `FeatureNotSupportedError` when it cannot be exported, with the reason.
    """
    if isinstance(array, SharedArray):
        found = array._use()
        low, high = extent(array.shape, array.strides, array.dtype.itemsize)
        return found._replace(offset=found.offset + array._offset + low, nbytes=high - low)
    if isinstance(array, int) and not isinstance(array, bool):
        return range_at(Located(array, 0, False, None), None, f"address {array:#x}")
    where = locate(array)
    if not where.nbytes:
        raise InvalidArgumentError("an array of no bytes has no memory to export")
    return range_at(where, array, f"this {type(array).__module__.partition('.')[0]}.{type(array).__name__}")


def range_at(where: Located, keep: Any, what: str) -> Range:
    """The piece of an own or another library's allocation that is there; `nbytes` 0 means up to its end."""
    here = node.current()
    allocation: Allocation | None = here.allocations.find(where.address)
    if allocation is not None:
        return _within(allocation, where.address - allocation.address, where, None)
    if where.backend is None:
        candidates = adapters.loaded()
    else:
        candidates = [adapters.adapter(where.backend)] if where.backend in adapters.BACKENDS else []
    for adapter in candidates:
        found = adapter.foreign(where.address)
        if found is not None:
            key = (adapter.backend, found.identity)
            allocation = here.foreign.get(key)
            if allocation is None:
                device = _device(adapter, found.device)
                allocation = Allocation(device, found.memory, found.kind, foreign=True)
                here.foreign[key] = allocation
            return _within(allocation, found.offset, where, keep)
    if here.peers.maps(where.address):
        raise InvalidArgumentError(
            "imported memory cannot be exported again: send on the handle that it was opened from"
        )
    raise FeatureNotSupportedError(
        f"the memory of {what} is private to its library and this process: make the array with xs.empty, or copy it into shared "
        "memory with xs.share(array, copy=True)"
    )


def _within(allocation: Allocation, offset: int, where: Located, keep: Any) -> Range:
    nbytes = where.nbytes or allocation.nbytes - offset
    if offset + nbytes > allocation.nbytes:
        raise InvalidArgumentError(
            f"{nbytes} bytes at {where.address:#x} reach beyond their allocation of {allocation.nbytes} bytes"
        )
    device = allocation.device
    return Range(allocation, offset, nbytes, device, device.context, where.read_only, None, keep)
