"""`array`, which copies into shared memory, and the copies that other modules make."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from xpushare import adapters
from xpushare._native import Span
from xpushare.arrays import description, meaning
from xpushare.arrays.creation import new_array
from xpushare.common.elements import (
    as_dtype,
    check_dtype,
    distinct,
    expect_numpy,
    extent,
)
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError
from xpushare.core import memory
from xpushare.core import queue as queues
from xpushare.core.declare import public
from xpushare.core.device import Device
from xpushare.core.ordering import work_on
from xpushare.objects.array import (
    Memory,
    SharedArray,
    array_of,
    bytes_of,
    covered_by,
    described,
    host_array,
    order_before,
)
from xpushare.objects.array_handle import ArrayHandle
from xpushare.objects.lifecycle import use
from xpushare.objects.message import is_unordered
from xpushare.objects.queue import Queue

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from xpushare.adapters.base import UsmKind
    from xpushare.core.device import DeviceLike
    from xpushare.core.memory import Range
    from xpushare.core.queue import Work

__all__ = [
    "array",
    "converted",
    "copy_elements",
    "Source",
    "Spanned",
    "copy_kind",
    "copy_of",
    "copy_out",
    "host_view",
    "is_gapless",
    "kept_strides",
    "lies_on_host",
    "native_stream",
    "own_array",
    "spanned",
    "values_of",
    "whole",
]

_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`


def lies_on_host(array: Any, found: description.Described | None) -> bool:
    """Return whether the array is in host memory, so that NumPy can copy it. Otherwise the array's device has to copy
    it. `found` is None for a `SharedArray`.
    """
    return array.device.backend == adapters.HOST if found is None else found.backend is None


def copy_kind(array: SharedArray) -> UsmKind:
    """Return the kind of memory for a copy on the array's own device: host memory if the host can read the array, else
    device memory.
    """
    return "device" if described(array)[0].allocation.kind == "device" else "host"


class Spanned(NamedTuple):
    """The bytes that the elements of an array span, in memory of any library, and the layout of the elements."""

    address: int
    nbytes: int
    keep: object  # keeps the elements alive
    offset: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


def spanned(array: Any, found: description.Described | None) -> Spanned:
    """Return the bytes that the elements of an array span. `found` is None for a `SharedArray`."""
    if found is None:
        place, first, shape, strides, dtype = described(array)
        return Spanned(place.address, place.nbytes, place.hold()[0], first, shape, strides, dtype)
    low, high = extent(found.shape, found.strides, found.itemsize)
    return Spanned(found.address + low, high - low, array, -low, found.shape, found.strides, found.dtype)


def is_gapless(source: Spanned) -> bool:
    """Return whether every byte that the elements span belongs to an element. Elements may be repeated."""
    gapless: bool = source.nbytes == math.prod(distinct(source.shape, source.strides)[0]) * source.dtype.itemsize
    return gapless or not source.nbytes


def copy_elements(target: Any, source: Any) -> None:
    """Copy the elements of a NumPy array into another one of the same shape. Elements that both arrays repeat are
    copied once.
    """
    import numpy

    if target.strides == source.strides and target.size:
        target, source = _once(target), _once(source)
    else:
        at = tuple([slice(None) if stride else slice(1) for stride in target.strides])
        target, source = target[at], source[at]
    numpy.copyto(target, source)


def _once(values: Any) -> Any:
    """Return a view of an array that has each element once."""
    from numpy.lib.stride_tricks import as_strided

    upwards = values[tuple([slice(None, None, 1 if stride >= 0 else -1) for stride in values.strides])]
    return as_strided(upwards, *distinct(values.shape, values.strides))


def kept_strides(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides for a copy of an array. If there are gaps between the array's elements, the copy has the same
    order of dimensions but no gaps. Otherwise the strides are unchanged.
    """
    low, high = extent(shape, strides, itemsize)
    lengths = [length for length, stride in zip(shape, strides, strict=True) if stride or length == 0]
    if high - low <= math.prod(lengths) * itemsize:
        return strides
    found, step = [0] * len(shape), itemsize
    for at in sorted(range(len(shape)), key=lambda at: (abs(strides[at]), -at)):
        if strides[at] or shape[at] == 1:
            found[at] = step if strides[at] >= 0 else -step
            step *= shape[at]
    return tuple(found)


def copy_out(
    array: Any, found: description.Described | None, source: Spanned, place: Range, device: Device, stream: Any
) -> Work:
    """Have the device copy the bytes that an array spans to `place`. The copy runs on `stream`, or by default on the
    stream that the array's library uses. If there is no such stream, it runs on a new queue and is complete on return.
    Returns the queue or stream.
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
    """The memory of an array to share: the bytes that its elements span, and the layout of the elements."""

    covered: Range
    offset: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


def own_array(array: Any) -> SharedArray | None:
    """Return the argument if it is a `SharedArray`. Return a `Memory` as an array of bytes, and None for another
    library's array.
    """
    if isinstance(array, SharedArray):
        return array
    if isinstance(array, Memory):
        return bytes_of(array)
    if isinstance(array, ArrayHandle):
        raise InvalidArgumentError("this is an ArrayHandle already: send it on")
    return None


def whole(array: SharedArray) -> Source:
    source: Source = _new(Source, described(array))
    return source


def copy_of(array: Any, found: description.Described | None, stream: Any) -> tuple[Source, int]:
    """Copy the elements of an array into new shared memory on the same device. Returns the copy and the number of bytes
    copied.

    A device copies all bytes that the elements span. For a `SharedArray`, these bytes may include gaps between
    elements. That exposes nothing new, since a process that opens the array's own handle can read the gaps, too.
    """
    import numpy

    if lies_on_host(array, found):
        values = host_view(array, found)
        target = new_array(values.shape, values.dtype, Device(f"{adapters.HOST}:0"))
        numpy.copyto(host_array(target), values)
        return whole(target), target.nbytes
    source = spanned(array, found)
    if found is not None and not is_gapless(source):
        raise FeatureNotSupportedError(
            f"this {type(array).__name__} is private and has gaps, which its copy would expose: "
            "make it contiguous first"
        )
    device = array.device if found is None else description.device_of(array, found)
    kind = copy_kind(array) if found is None else "device"
    if not source.nbytes:
        return whole(new_array(source.shape, source.dtype, device, kind)), 0
    place = memory.allocate(kind, source.nbytes, device, None, isolated=False)
    copy_out(array, found, source, place, device, stream)
    return Source(place, source.offset, source.shape, source.strides, source.dtype), source.nbytes


def host_view(array: Any, found: description.Described | None) -> Any:
    """Return the elements of an array as a NumPy array, without a copy. The host must be able to read the memory.
    `found` is None for a `SharedArray`.
    """
    import numpy

    if found is None:
        return host_array(array)
    low, high = extent(found.shape, found.strides, found.itemsize)
    description.expect_readable(array, found, low, high)
    base: Any = Span(found.address + low, high - low, True, array)
    return numpy.ndarray(found.shape, found.dtype, base, -low, found.strides)


def native_stream(stream: Any, found: description.Described | None, array: Any, device: Device) -> Any:
    """Return the stream that the caller passed or, if it passed none, the stream that the array's protocol reports.
    Return None if there is neither. The adapter then chooses a stream.
    """
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


def array(x: Any, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> SharedArray:
    """Copy an array into memory that other processes can attach once it is shared.

    Args:
        x: Anything that `share` takes, or that NumPy makes an array of: lists, numbers, columns of
            a data frame.
        dtype: Type of the copy's elements, by default that of `x`.
        device: Where the copy lies, by default the device of `x`. Lists go to the host.

    Returns:
        The copy, complete when the call returns.

    Raises:
        InvalidArgumentError: NumPy cannot make an array of `x`, or would change its values and `dtype` is not given, or
            its elements are Python objects.
        OutOfMemoryError: The device or the host does not have enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> a = xs.array([1, 2, 3], dtype="float32")
        >>> np.asarray(a).sum()
        np.float32(6.0)
    """
    wanted = None if dtype is None else as_dtype(dtype)
    own = own_array(x)
    source, found = _read(x, wanted) if own is None else (own, None)
    if own is not None:
        here = own.device
    else:
        here = Device(f"{adapters.HOST}:0") if found is None else description.device_of(source, found)
    target = here if device is None else Device(device)
    if own is None and found is None:
        values = x
    elif lies_on_host(source, found):
        values = host_view(source, found)
    else:
        span = spanned(source, found)
        once = math.prod(span.shape) * span.dtype.itemsize == span.nbytes
        if target == here and wanted in (None, span.dtype) and once and is_gapless(span):
            return _copied_there(source, found)
        values = _fetched(source, found, span, here)
    values = converted(x, values, wanted)
    check_dtype(values.dtype)
    kind: UsmKind = "device" if own is None or target != here else copy_kind(own)
    made = new_array(values.shape, values.dtype, target, kind, small=True)
    _store(values, made)
    return made


def _read(x: Any, dtype: Any) -> tuple[Any, description.Described | None]:
    """Return the array to copy and its description. The description is None if NumPy has to make the array."""
    try:
        source, found = description.described_to_copy(x)
        if found is not None:
            description.check_elements(source, found.dtype)
    except InvalidArgumentError:
        if dtype is None or not meaning.numpy_converts(x):
            raise
        return x, None
    return source, found


def values_of(x: Any) -> Any:
    """Return an array as a NumPy array: a view if its memory is on the host, otherwise a copy on the host. Return None
    if the object is not an array.
    """
    own = own_array(x)
    source, found = description.described_to_copy(x) if own is None else (own, None)
    if own is None and found is None:
        return None
    if lies_on_host(source, found):
        return host_view(source, found)
    here = own.device if own is not None else description.device_of(source, found)  # type: ignore[arg-type]
    return _fetched(source, found, spanned(source, found), here)


def converted(x: Any, values: Any, dtype: Any) -> Any:
    """Return `values` as a NumPy array of type `dtype`. Raises `InvalidArgumentError` if NumPy cannot convert them. The
    error names the type of `x`, the caller's object.
    """
    import numpy

    ours = values is not x  # else NumPy reads it in its own way
    given = getattr(values, "dtype", None) if ours else None
    for each in (given, dtype) if dtype is not None and dtype != given else ():
        if isinstance(each, numpy.dtype):
            expect_numpy(each)  # it cannot convert others
    try:
        why = None if ours or dtype is not None else meaning.unsuited(x)
        made = numpy.asarray(values, dtype) if why is None else None
        if made is not None and made.dtype == object:
            why = meaning.objects_named(made)
        elif not ours and dtype is None and made is not None:
            why = meaning.lost_by_numpy(x, made)
            why = why and f"{why}: pass dtype=, or np.asarray(x, dtype), to convert it as NumPy does"
    except MemoryError:
        raise
    except Exception as error:  # code of the library
        raise InvalidArgumentError(f"NumPy cannot make an array of this {type(x).__name__}: {error}") from error
    if why is not None:
        raise InvalidArgumentError(why)
    return made


def _copied_there(array: Any, found: description.Described | None) -> SharedArray:
    """Copy the elements into new memory on their device. The copy is complete when this returns."""
    (place, offset, shape, strides, dtype), _ = copy_of(array, found, None)
    work = work_on(place.device, native_stream(None, found, array, place.device), array)
    if work is not None:
        queues.synchronize(work, None)
    return array_of(place, shape, dtype, strides, offset)


def _fetched(array: Any, found: description.Described | None, span: Spanned, device: Device) -> Any:
    """Copy the elements of an array on a device into a new NumPy array."""
    import numpy

    stage = memory.allocate("host", max(span.nbytes, 1), device, None)
    if span.nbytes:
        queues.synchronize(copy_out(array, found, span, stage, device, None), None)
    base: Any = Span(stage.address, span.nbytes, False, stage.hold()[0])
    return numpy.ndarray(span.shape, span.dtype, base, span.offset, span.strides)


def _store(values: Any, target: SharedArray) -> None:
    """Copy the elements of a NumPy array into an array on any device."""
    import numpy

    covered, _ = covered_by(target)
    if covered.allocation.host_accessible:
        numpy.copyto(host_array(target), values)
    elif target.nbytes:
        stage = memory.allocate("host", target.nbytes, target.device, None)
        base: Any = Span(stage.address, target.nbytes, False, stage.hold()[0])
        numpy.copyto(numpy.ndarray(target.shape, target.dtype, base), values)
        work = queues.create(target.device, None)
        work.driver.copy(covered.address, stage.address, target.nbytes, (stage, covered))
        queues.synchronize(work, None)


public(__name__, "array")
