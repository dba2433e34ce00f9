"""Where the elements of an array lie that is to be shared: in place, or copied into new shared memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xpushare import adapters, arrays
from xpushare._array import Memory, SharedArray, array_of, bytes_of, described
from xpushare._array_handle import ArrayHandle
from xpushare._device import Device
from xpushare._elements import c_strides, check_dtype, extent
from xpushare._errors import FeatureNotSupportedError, InvalidArgumentError
from xpushare._lifecycle import use
from xpushare._native import Span
from xpushare._queue import Queue
from xpushare.core import memory
from xpushare.core import queue as queues
from xpushare.core.ordering import work_on
from xpushare.core.resources import Allocation
from xpushare.sharing import node

if TYPE_CHECKING:
    from xpushare.core.memory import Range

__all__ = [
    "UNORDERED",
    "Source",
    "copy_of",
    "host_view",
    "in_place",
    "is_dense",
    "is_unordered",
    "native_stream",
    "new_array",
    "own_array",
    "source_of",
    "whole",
]

UNORDERED: Final = -1
_new: Any = tuple.__new__  # not by a named tuple's own `__new__`, which is slower


def is_unordered(stream: object) -> bool:
    """Whether `stream=` opts out of waiting; streams of libraries are not compared with numbers."""
    return isinstance(stream, int) and stream == UNORDERED


def new_array(shape: tuple[int, ...], dtype: Any, device: Device, isolated: bool = True) -> SharedArray:
    nbytes = math.prod(shape) * dtype.itemsize
    found = memory.allocate("device", max(nbytes, 1), device, None, isolated)
    return array_of(found._replace(nbytes=nbytes), shape, dtype, c_strides(shape, dtype.itemsize), 0)


def is_dense(found: arrays.Described) -> bool:
    low, high = extent(found.shape, found.strides, found.itemsize)
    return high - low == math.prod(found.shape) * found.itemsize


class Source(NamedTuple):
    """What is shared: exactly the bytes that the elements span, and how the elements lie in them."""

    covered: Range
    offset: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


def own_array(array: Any) -> SharedArray | None:
    """An array of our own; None for another library's."""
    if isinstance(array, SharedArray):
        return array
    if isinstance(array, Memory):
        return bytes_of(array)
    if isinstance(array, ArrayHandle):
        raise InvalidArgumentError("this is an ArrayHandle already: send it on")
    return None


def source_of(array: Any, found: arrays.Described | None, copy: bool, stream: Any) -> tuple[Source, int]:
    """What is shared of an array of ours (`found` is None) or of another library, and how many bytes `copy` let this
    copy.
    """
    if found is None:
        source = whole(array)
        place = source.covered
        # Imported memory has its exporter's handle, and a VirtualRange none at all: neither can get one here.
        if copy and (place.handle is not None or not isinstance(place.allocation, Allocation)):
            return copy_of(array, None, stream)
        return source, 0
    dtype = found.dtype
    check_dtype(dtype)
    try:
        return in_place(array, found, dtype, prepare=copy), 0
    except (FeatureNotSupportedError, InvalidArgumentError):
        if not copy:
            raise
        return copy_of(array, found, stream)


def whole(array: SharedArray) -> Source:
    source: Source = _new(Source, described(array))
    return source


def in_place(array: Any, found: arrays.Described, dtype: Any, prepare: bool = False) -> Source:
    """Another library's array in its own memory. Raises `FeatureNotSupportedError` if that memory cannot be shared,
    which with `prepare` its driver is asked now.
    """
    low, high = extent(found.shape, found.strides, found.itemsize)
    if low == high:  # no bytes: nothing of it is private
        return whole(new_array(found.shape, dtype, arrays.device_of(array, found)))
    place = arrays.range_at(found.located(), array)
    if prepare:
        memory.prepared_by(place.allocation, node.current().table(), False)
    return Source(place, -low, found.shape, found.strides, dtype)


def copy_of(array: Any, found: arrays.Described | None, stream: Any) -> tuple[Source, int]:
    """Copy the elements into new shared memory on the same device; also returns how many bytes were copied."""
    import numpy

    if found is None or found.backend is None:
        values = numpy.asarray(array) if found is None else host_view(array, found)
        target = new_array(values.shape, values.dtype, Device(f"{adapters.HOST}:0"))
        numpy.copyto(numpy.asarray(target), values)
        return whole(target), target.nbytes
    low, high = extent(found.shape, found.strides, found.itemsize)
    if not is_dense(found):
        raise FeatureNotSupportedError(
            f"this {type(array).__name__} is private and has gaps, which its copy would expose: "
            "make it contiguous first"
        )
    device = arrays.device_of(array, found)
    place = memory.allocate("device", high - low, device, None)
    work = work_on(device, None if stream == UNORDERED else native_stream(stream, found, array, device), array)
    own = queues.create(device, None) if work is None else work  # the content is there where the device has no streams
    own.driver.copy(place.address, found.address + low, high - low, (place, array))
    if work is None:
        queues.synchronize(own, None)
    return Source(place, -low, found.shape, found.strides, found.dtype), high - low


def host_view(array: Any, found: arrays.Described) -> Any:
    """The elements as a NumPy array, for memory that the host can read."""
    import numpy

    low, high = extent(found.shape, found.strides, found.itemsize)
    base: Any = Span(found.address + low, high - low, True, array)
    return numpy.ndarray(found.shape, found.dtype, base, -low, found.strides)


def native_stream(stream: Any, found: arrays.Described | None, array: Any, device: Device) -> Any:
    """The stream that the caller or the array's protocol names; None to ask the adapter."""
    if isinstance(stream, Queue):
        return use(stream)
    if stream is not None:
        return stream
    if found is None:  # an array of ours
        return None
    if found.stream is not None:
        return found.stream
    record = adapters.record(device.backend)
    assert record is not None
    for name in record.stream_methods:
        if callable(getattr(array, name, None)):
            return array
    return None
