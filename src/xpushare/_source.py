"""Where the elements of an array lie that is to be shared: in place, or copied into new shared memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xpushare import adapters, arrays
from xpushare._array import Memory, SharedArray, array_of, bytes_of, described, order_before
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
    from xpushare.adapters.base import UsmKind
    from xpushare.core.memory import Range
    from xpushare.core.queue import Work

__all__ = [
    "UNORDERED",
    "Source",
    "Spanned",
    "copy_kind",
    "copy_of",
    "copy_out",
    "host_view",
    "in_place",
    "is_dense",
    "is_unordered",
    "lies_on_host",
    "native_stream",
    "new_array",
    "own_array",
    "source_of",
    "spanned",
    "whole",
]

UNORDERED: Final = -1
_new: Any = tuple.__new__  # not by a named tuple's own `__new__`, which is slower


def is_unordered(stream: object) -> bool:
    """Whether `stream=` opts out of waiting; streams of libraries are not compared with numbers."""
    return isinstance(stream, int) and stream == UNORDERED


def new_array(
    shape: tuple[int, ...], dtype: Any, device: Device, isolated: bool = True, kind: UsmKind = "device"
) -> SharedArray:
    nbytes = math.prod(shape) * dtype.itemsize
    found = memory.allocate(kind, max(nbytes, 1), device, None, isolated)
    return array_of(found._replace(nbytes=nbytes), shape, dtype, c_strides(shape, dtype.itemsize), 0)


def lies_on_host(array: Any, found: arrays.Described | None) -> bool:
    """Whether NumPy copies an array of ours (`found` is None) or of another library; else its device does."""
    return array.device.backend == adapters.HOST if found is None else found.backend is None


def copy_kind(array: SharedArray) -> UsmKind:
    """Of which kind a copy is on the array's own device: what the host reads there stays readable."""
    return "device" if described(array)[0].allocation.kind == "device" else "host"


class Spanned(NamedTuple):
    """The bytes that the elements of an array span, in whoever's memory, and how the elements lie in them."""

    address: int
    nbytes: int
    keep: object  # what holds them
    offset: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


def spanned(array: Any, found: arrays.Described | None) -> Spanned:
    """What an array of ours (`found` is None) or of another library spans."""
    if found is None:
        place, *how = described(array)
        return Spanned(place.address, place.nbytes, place.hold()[0], *how)
    low, high = extent(found.shape, found.strides, found.itemsize)
    return Spanned(found.address + low, high - low, array, -low, found.shape, found.strides, found.dtype)


def is_dense(source: Spanned) -> bool:
    dense: bool = source.nbytes == math.prod(source.shape) * source.dtype.itemsize
    return dense


def copy_out(
    array: Any, found: arrays.Described | None, source: Spanned, place: Range, device: Device, stream: Any
) -> Work:
    """Have the device copy what an array spans to `place`, on `stream` (None: the one that the array's library works
    on). Where there is none, on a queue that has finished then. Returns the queue.
    """
    work = None if is_unordered(stream) else work_on(device, native_stream(stream, found, array, device), array)
    own = queues.create(device, None) if work is None else work
    if found is None:
        order_before(array, own)
    target = queues.operand(own, "the copy", place, 0, place.nbytes, source.nbytes, True)
    own.driver.copy(target.address, source.address, source.nbytes, (target.keep, source.keep))
    if work is None:
        queues.synchronize(own, None)
    return own


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
    """Copy the elements into new shared memory on the same device; also returns how many bytes were copied.

    A device copies all that they span. Of an array of ours that may have gaps, which whoever opens its handle reaches,
    too.
    """
    import numpy

    if lies_on_host(array, found):
        values = host_view(array, found)
        target = new_array(values.shape, values.dtype, Device(f"{adapters.HOST}:0"))
        numpy.copyto(numpy.asarray(target), values)
        return whole(target), target.nbytes
    source = spanned(array, found)
    if found is not None and not is_dense(source):
        raise FeatureNotSupportedError(
            f"this {type(array).__name__} is private and has gaps, which its copy would expose: "
            "make it contiguous first"
        )
    device = array.device if found is None else arrays.device_of(array, found)
    kind = copy_kind(array) if found is None else "device"
    if not source.nbytes:
        return whole(new_array(source.shape, source.dtype, device, kind=kind)), 0
    place = memory.allocate(kind, source.nbytes, device, None)
    copy_out(array, found, source, place, device, stream)
    return Source(place, source.offset, source.shape, source.strides, source.dtype), source.nbytes


def host_view(array: Any, found: arrays.Described | None) -> Any:
    """The elements of an array of ours (`found` is None) or of another library as a NumPy array, for memory that the
    host can read.
    """
    import numpy

    if found is None:
        return numpy.asarray(array)
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
