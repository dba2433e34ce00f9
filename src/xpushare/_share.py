"""`empty`, `share` and `attach`: the short way to share arrays between processes."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xpushare import adapters, arrays
from xpushare._array import Memory, SharedArray, array_of, bytes_of, covered_by, described, open_array
from xpushare._array_handle import NDIM_MAX, ArrayHandle, checked_parts, seal_array
from xpushare._device import Device, adapter_of
from xpushare._elements import as_dtype, as_shape, c_strides, check_dtype, extent
from xpushare._errors import FeatureNotSupportedError, HandleExpiredError, InvalidArgumentError
from xpushare._lifecycle import use
from xpushare._native import Span, forks
from xpushare._queue import Queue
from xpushare.core import memory
from xpushare.core import queue as queues
from xpushare.core.memory import Range
from xpushare.core.opening import opening_device
from xpushare.core.ordering import Mark, mark, work_on
from xpushare.core.resources import Allocation
from xpushare.sharing.handle import newest

if TYPE_CHECKING:
    from xpushare._device import DeviceLike
    from xpushare.core.queue import Work
    from xpushare.sharing.handle import HandleLike

__all__ = ["array", "attach", "empty", "host_view", "share"]

_OPENS_MAX: Final = (1 << 31) - 1
_UNORDERED: Final = -1


def empty(shape: int | tuple[int, ...], dtype: Any = float, *, device: DeviceLike = "native_cpu:0") -> SharedArray:
    """A C-ordered array in new memory on `device`, which other processes can attach once it is shared.

    `dtype` is a NumPy dtype or its name; bfloat16 and the float8 family have their `ml_dtypes` names. The elements are
    zero on the host and unspecified on other devices. The array owns the memory; views and exports keep it. Raises
    `InvalidArgumentError` (also for arrays of Python objects), `OutOfMemoryError`, `DeviceError`.
    """
    found = as_dtype(dtype)
    check_dtype(found)
    if found.subdtype is not None:
        raise InvalidArgumentError(f"{found} is a sub-array: give its shape as part of the shape")
    lengths = as_shape(shape)
    if len(lengths) > NDIM_MAX:
        raise InvalidArgumentError(f"an array has at most {NDIM_MAX} dimensions, not {len(lengths)}")
    return _allocate(lengths, found, Device(device))


def _allocate(shape: tuple[int, ...], dtype: Any, device: Device) -> SharedArray:
    nbytes = math.prod(shape) * dtype.itemsize
    found = memory.allocate("device", max(nbytes, 1), device, None)
    return array_of(found._replace(nbytes=nbytes), shape, dtype, c_strides(shape, dtype.itemsize), 0)


def array(x: Any, *, dtype: Any = None, device: DeviceLike | None = None) -> SharedArray:
    """A copy of `x` in new memory that other processes can attach once it is shared.

    `x` is whatever `share` takes, also where it is private to its library, or what NumPy makes an array of (lists,
    numbers, pandas columns). `dtype`: of the copy, by default that of `x`. `device`: where it lies, by default on the
    device of `x`, which is the host for what is no array. The content is complete when the call returns. Raises
    `InvalidArgumentError` (also for elements that are Python objects), `OutOfMemoryError`, `DeviceError`.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    own = _own(x)
    source = x if own is None else own
    found = arrays.described(source, True)
    if found is not None:
        check_dtype(found.dtype)
    here = Device(f"{adapters.HOST}:0") if found is None else arrays.device_of(source, found)
    target = here if device is None else Device(device)
    if found is None:
        import numpy

        try:
            values = numpy.asarray(x, wanted)
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(f"NumPy makes no array of this {type(x).__name__}: {error}") from error
    elif found.backend is None:
        values = host_view(source, found)
    elif target == here and wanted in (None, found.dtype) and _dense(found):
        return _copied_there(source, found)
    else:
        values = _fetched(source, found, here)
    if wanted is not None:
        values = values.astype(wanted, copy=False)
    made = empty(values.shape, values.dtype, device=target)
    _store(values, made)
    return made


def _dense(found: arrays.Described) -> bool:
    low, high = extent(found.shape, found.strides, found.itemsize)
    return high - low == math.prod(found.shape) * found.itemsize


def _copied_there(array: Any, found: arrays.Described) -> SharedArray:
    """The elements in new memory on their device, which has them when this returns."""
    (place, offset, shape, strides, dtype), _ = _copied(array, found, None)
    work = work_on(place.device, _native_stream(None, found, array, place.device), array)
    if work is not None:
        queues.synchronize(work, None)
    return array_of(place, shape, dtype, strides, offset)


def _fetched(array: Any, found: arrays.Described, device: Device) -> Any:
    """The elements of a device's array, as NumPy has them in memory of the host."""
    import numpy

    low, high = extent(found.shape, found.strides, found.itemsize)
    stage = memory.allocate("host", max(high - low, 1), device, None)
    if high > low:
        work = work_on(device, _native_stream(None, found, array, device), array) or queues.create(device, None)
        work.driver.copy(stage.address, found.address + low, high - low, (stage, array))
        queues.synchronize(work, None)
    base: Any = Span(stage.address, high - low, False, stage.hold()[0])
    return numpy.ndarray(found.shape, found.dtype, base, -low, found.strides)


def _store(values: Any, target: SharedArray) -> None:
    """Write what NumPy has into an array on any device."""
    import numpy

    covered, _ = covered_by(target)
    if covered.allocation.host_accessible:
        numpy.copyto(numpy.asarray(target), values)
    elif target.nbytes:
        stage = memory.allocate("host", target.nbytes, target.device, None)
        base: Any = Span(stage.address, target.nbytes, False, stage.hold()[0])
        numpy.copyto(numpy.ndarray(target.shape, target.dtype, base), values)
        work = queues.create(target.device, None)
        work.driver.copy(covered.address, stage.address, target.nbytes, (stage, covered))
        queues.synchronize(work, None)


# --- sharing


def share(
    array: Any,
    *,
    read_only: bool = False,
    copy: bool = False,
    stream: Any = None,
    opens: int | None = None,
    ttl: float | None = None,
) -> ArrayHandle:
    """Export `array` where it is, without a copy: a handle for `attach` in any process of this user.

    `array` is a `SharedArray`, a `Memory`, or any array that tells where its memory is (NumPy, torch, CuPy, JAX, a
    buffer, …). Its memory must be shareable: made by `empty` or `malloc_*`, or by a library whose driver can export it.
    For other memory, `FeatureNotSupportedError` says what to do. With `copy=True`, the elements of such memory are
    copied into new shared memory, which the export owns; `handle.copied_nbytes` and the log (`xpushare`, INFO) say how
    many bytes that were.

    With `read_only`, importers get no writable view; torch ignores that, crashes at a write, and is
    warned. `stream` says which queued work produces the content: a `Queue`, a
    stream of another library or a raw one, or None for the stream that the array's library works on now. With -1 the
    content is there already, and nobody waits for anything. With `opens=n`, the handle withdraws itself once it has
    been attached n times, with `ttl=seconds` after that time; the memory is released once the last of these arrays is
    gone and this process allocates or exports something again.

    The export holds the array's memory until the returned handle's `close()` or the end of this process, or until
    `opens` or `ttl` end it. With neither, losing the handle without closing it is a `ResourceWarning`.
    """
    count = None if opens is None else _opens_argument(opens)
    limit = None if ttl is None else _ttl_argument(ttl)
    own = array if type(array) is SharedArray else _own(array)
    found: arrays.Described | None = None
    copied = 0
    if own is not None:
        source = _whole(own)
        place = source.covered
        # Imported memory has its exporter's handle, and a VirtualRange none at all: neither can get one here.
        if copy and (place.handle is not None or not isinstance(place.allocation, Allocation)):
            source, copied = _copied(own, None, stream)
    else:
        found = arrays.describe(array, stream != _UNORDERED)
        dtype = found.dtype
        check_dtype(dtype)
        try:
            source = _in_place(array, found, dtype)
        except (FeatureNotSupportedError, InvalidArgumentError):
            if not copy:
                raise
            source, copied = _copied(array, found, stream)
    work = None
    device = source.covered.device
    ordered = stream != _UNORDERED
    if stream is None and found is None:  # an array of ours is written by whatever works on its device
        ordered = adapter_of(device).has_streams
    if ordered:
        work = work_on(device, _native_stream(stream, found, array, device), array)
        if work is not None and not isinstance(stream, Queue) and not copied and work.driver.idle():
            work = None  # the content is there: readers have nothing to wait for
    handle = _export(source, work, read_only, count, limit, copied)
    if copied:
        import logging

        logging.getLogger("xpushare").info("share copied %d bytes of a private %s", copied, type(array).__name__)
    return handle


def _opens_argument(opens: int) -> int:
    try:
        count = operator.index(opens)
    except TypeError:
        raise InvalidArgumentError(f"opens is an integer, not {type(opens).__name__}") from None
    if not 1 <= count <= _OPENS_MAX:
        raise InvalidArgumentError(f"opens is from 1 to {_OPENS_MAX}, not {count}")
    return count


def _ttl_argument(ttl: float) -> int:
    """In nanoseconds."""
    try:
        nanoseconds = float(ttl) * 1e9
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"ttl is a number of seconds, not {type(ttl).__name__}") from None
    if not 0 < nanoseconds < 1 << 62:
        raise InvalidArgumentError(f"ttl is a number of seconds, more than 0, not {ttl}")
    return max(int(nanoseconds), 1)


_new: Any = tuple.__new__  # not by a named tuple's own `__new__`, which is slower


class _Source(NamedTuple):
    """What is shared: exactly the bytes that the elements span, and how the elements lie in them."""

    covered: Range
    offset: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


def _own(array: Any) -> SharedArray | None:
    """An array of our own; None for another library's."""
    if isinstance(array, SharedArray):
        return array
    if isinstance(array, Memory):
        return bytes_of(array)
    if isinstance(array, ArrayHandle):
        raise InvalidArgumentError("this is an ArrayHandle already: send it on")
    return None


def _whole(array: SharedArray) -> _Source:
    source: _Source = _new(_Source, described(array))
    return source


def _in_place(array: Any, found: arrays.Described, dtype: Any) -> _Source:
    """Another library's array in its own memory. Raises `FeatureNotSupportedError` if that memory cannot be shared."""
    low, high = extent(found.shape, found.strides, found.itemsize)
    if low == high:  # no bytes: nothing of it is private
        return _whole(_allocate(found.shape, dtype, arrays.device_of(array, found)))
    place = arrays.range_at(found.located(), array)
    return _Source(place, -low, found.shape, found.strides, dtype)


def _copied(array: Any, found: arrays.Described | None, stream: Any) -> tuple[_Source, int]:
    """Copy the elements into new shared memory on the same device; also returns how many bytes were copied."""
    import numpy

    if found is None or found.backend is None:
        values = numpy.asarray(array) if found is None else host_view(array, found)
        target = _allocate(values.shape, values.dtype, Device(f"{adapters.HOST}:0"))
        numpy.copyto(numpy.asarray(target), values)
        return _whole(target), target.nbytes
    low, high = extent(found.shape, found.strides, found.itemsize)
    if not _dense(found):
        raise FeatureNotSupportedError(
            f"this {type(array).__name__} is private and has gaps, which its copy would expose: "
            "make it contiguous first"
        )
    device = arrays.device_of(array, found)
    place = memory.allocate("device", high - low, device, None)
    work = work_on(device, None if stream == _UNORDERED else _native_stream(stream, found, array, device), array)
    own = queues.create(device, None) if work is None else work  # the content is there where the device has no streams
    own.driver.copy(place.address, found.address + low, high - low, (place, array))
    if work is None:
        queues.synchronize(own, None)
    return _Source(place, -low, found.shape, found.strides, found.dtype), high - low


def host_view(array: Any, found: arrays.Described) -> Any:
    """The elements as a NumPy array, for memory that the host can read."""
    import numpy

    low, high = extent(found.shape, found.strides, found.itemsize)
    base: Any = Span(found.address + low, high - low, True, array)
    return numpy.ndarray(found.shape, found.dtype, base, -low, found.strides)


def _native_stream(stream: Any, found: arrays.Described | None, array: Any, device: Device) -> Any:
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


def _export(
    source: _Source, work: Work | None, read_only: bool, opens: int | None, ttl: int | None, copied: int
) -> ArrayHandle:
    covered, offset, shape, strides, dtype = source
    order: Mark | None = None
    if work is not None and covered.handle is None:
        order = mark(work, covered.device)
        covered = covered._replace(lease=(covered.lease, order.export))  # the event's export ends with the memory's
    handle = memory.get(covered, None, read_only, opens, ttl=ttl)
    return seal_array(handle, dtype, shape, strides, offset, order, copied, forks())


# --- attaching


def attach(h: HandleLike, *, device: DeviceLike | None = None, stream: Any = None) -> SharedArray:
    """The array behind a handle, mapped here: the same bytes, writable unless it was shared read-only.

    `device=None` opens on the device that the handle names. Readers are ordered after the producer's stream: `stream`
    (a `Queue`, another library's stream, a raw one) waits for it on the device from now on. So do the stream of a
    consumer's `__dlpack__(stream=…)`, queues that get the array as an operand, and the host before it makes a view.
    `stream=-1` opts out of all that.

    The result owns the mapping; views and capsules keep it. Raises `InvalidHandleError` for anything but an array
    handle of this user and boot that fits the memory it names, `HandleExpiredError` after `close` or the exporter's
    end, and what `ipc.memory.open` raises.
    """
    found = ArrayHandle(h)
    while True:
        try:
            return _attach(found, device, stream)
        except HandleExpiredError:
            again = newest(found)
            if again is None:
                raise
            found = ArrayHandle(again)


def _attach(found: ArrayHandle, device: DeviceLike | None, stream: Any) -> SharedArray:
    parts = checked_parts(found)
    work = None
    chosen = None
    if device is not None or stream not in (None, _UNORDERED):
        chosen = opening_device(parts.memory, device, None)[0]
    if stream is not None and stream != _UNORDERED:
        assert chosen is not None
        work = use(stream) if isinstance(stream, Queue) else work_on(chosen, stream)
    return open_array(found, parts, device, stream != _UNORDERED, work)
