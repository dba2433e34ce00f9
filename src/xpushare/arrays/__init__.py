"""Arrays of other libraries, recognised by protocol; none of those libraries is imported."""

from __future__ import annotations

from typing import Any, NamedTuple

from xpushare._array import SharedArray, extent
from xpushare._errors import FeatureNotSupportedError, InvalidArgumentError
from xpushare.core.memory import Range
from xpushare.core.resources import Allocation
from xpushare.sharing import node

__all__ = ["Located", "locate", "range_of"]


class Located(NamedTuple):
    """Where an array lies."""

    address: int  # of its lowest byte
    nbytes: int
    read_only: bool


def locate(array: Any) -> Located:
    """Address and extent of an array, by `__cuda_array_interface__`, `__array_interface__` or the buffer protocol."""
    for name in ("__cuda_array_interface__", "__array_interface__"):
        interface = getattr(array, name, None)
        if isinstance(interface, dict) and isinstance(interface.get("data"), tuple):
            itemsize = int(interface["typestr"][2:])
            shape = tuple(interface["shape"])
            strides = interface.get("strides")
            if strides is None:
                from xpushare._array import c_strides

                strides = c_strides(shape, itemsize)
            low, high = extent(shape, tuple(strides), itemsize)
            address, read_only = interface["data"]
            return Located(address + low, high - low, bool(read_only))
    raise InvalidArgumentError(
        f"{type(array).__name__} is neither a Memory nor an array that tells where its memory is"
    )


def range_of(array: Any) -> Range:
    """The piece of an allocation that an array covers; `FeatureNotSupportedError` when it cannot be exported, with the reason."""
    if isinstance(array, SharedArray):
        found = array._use()
        low, high = extent(array.shape, array.strides, array.dtype.itemsize)
        return found._replace(offset=found.offset + array._offset + low, nbytes=high - low)
    where = locate(array)
    allocation: Allocation | None = node.current().allocations.find(where.address)
    if allocation is not None and where.address + where.nbytes <= allocation.address + allocation.nbytes:
        if allocation.imported:
            raise InvalidArgumentError(
                "imported memory cannot be exported again: send on the handle that it was opened from"
            )
        offset = where.address - allocation.address
        device = allocation.device
        return Range(allocation, offset, where.nbytes, device, device.context, where.read_only, None, None)
    raise FeatureNotSupportedError(
        f"the memory of this {type(array).__name__} is private to its library and process: make the array with xs.empty, or "
        "share(array, copy=True)"
    )
