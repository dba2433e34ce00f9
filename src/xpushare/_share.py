"""`empty`, `share` and `attach`: the short way to share arrays between processes."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from xpushare import _hand_over, adapters, arrays
from xpushare._array import SharedArray, array_of, covered_by, open_array
from xpushare._array_handle import ArrayHandle, checked_parts, expect_open, seal_array
from xpushare._device import Device, adapter_of
from xpushare._elements import as_dtype, as_shape, check_dtype
from xpushare._errors import HandleExpiredError, InvalidArgumentError
from xpushare._lifecycle import use
from xpushare._like import consumer_of, exchange_of, made_by
from xpushare._native import Span, forks
from xpushare._queue import Queue
from xpushare._source import (
    UNORDERED,
    Source,
    Spanned,
    copy_kind,
    copy_of,
    copy_out,
    host_view,
    is_dense,
    lies_on_host,
    native_stream,
    new_array,
    own_array,
    source_of,
    spanned,
)
from xpushare._tree import attach_tree, share_tree
from xpushare._tree_handle import TreeHandle
from xpushare.core import memory
from xpushare.core import queue as queues
from xpushare.core.opening import give_open, opening_device
from xpushare.core.ordering import Mark, current_work, mark, work_on
from xpushare.sharing.handle import newest

if TYPE_CHECKING:
    from xpushare._device import DeviceLike
    from xpushare._like import Consumer
    from xpushare.adapters.base import UsmKind
    from xpushare.core.queue import Work
    from xpushare.sharing.handle import HandleLike

__all__ = ["array", "attach", "empty", "share"]

_OPENS_MAX: Final = (1 << 31) - 1


def empty(
    shape: int | tuple[int, ...],
    dtype: Any = float,
    *,
    device: DeviceLike = "native_cpu:0",
    isolated: bool = False,
) -> SharedArray:
    """A C-ordered array in new memory on `device`, which other processes can attach once it is shared.

    `dtype` is a NumPy dtype or its name; bfloat16 and the float8 family have their `ml_dtypes` names. The elements are
    zero on the host and unspecified on other devices. The array owns the memory; views and exports keep it.

    Small arrays on the host (up to 16 KiB) share allocations of 256 KiB, so that an array does not cost a file
    descriptor. A process that opens one of them can reach the whole allocation (`handle.exposed_nbytes`), which is
    freed with the last of its arrays. `isolated=True` gives the array an allocation of its own. Raises
    `InvalidArgumentError` (also for arrays of Python objects), `OutOfMemoryError`, `DeviceError`.
    """
    found = as_dtype(dtype)
    check_dtype(found)
    return new_array(as_shape(shape), found, Device(device), isolated)


def array(x: Any, *, dtype: Any = None, device: DeviceLike | None = None) -> SharedArray:
    """A copy of `x` in new memory that other processes can attach once it is shared.

    `x` is whatever `share` takes, also where it is private to its library, or what NumPy makes an array of (lists,
    numbers, pandas columns). `dtype`: of the copy, by default that of `x`. `device`: where it lies, by default on the
    device of `x`, which is the host for what is no array. The content is complete when the call returns. Raises
    `InvalidArgumentError` (also for elements that are Python objects), `OutOfMemoryError`, `DeviceError`.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    own = own_array(x)
    source: Any = x if own is None else own
    found = arrays.described(x, True) if own is None else None
    if found is not None:
        check_dtype(found.dtype)
    if own is not None:
        here = own.device
    else:
        here = Device(f"{adapters.HOST}:0") if found is None else arrays.device_of(x, found)
    target = here if device is None else Device(device)
    if own is None and found is None:
        values = x
    elif lies_on_host(source, found):
        values = host_view(source, found)
    else:
        span = spanned(source, found)
        if target == here and wanted in (None, span.dtype) and is_dense(span):
            return _copied_there(source, found)
        values = _fetched(source, found, span, here)
    values = _converted(x, values, wanted)
    check_dtype(values.dtype)
    kind: UsmKind = "device" if own is None or target != here else copy_kind(own)
    made = new_array(values.shape, values.dtype, target, False, kind)
    _store(values, made)
    return made


def _converted(x: Any, values: Any, dtype: Any) -> Any:
    """What NumPy makes of the elements of `x`."""
    import numpy

    try:
        return numpy.asarray(values, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgumentError(f"NumPy makes no array of this {type(x).__name__}: {error}") from error


def _copied_there(array: Any, found: arrays.Described | None) -> SharedArray:
    """The elements in new memory on their device, which has them when this returns."""
    (place, offset, shape, strides, dtype), _ = copy_of(array, found, None)
    work = work_on(place.device, native_stream(None, found, array, place.device), array)
    if work is not None:
        queues.synchronize(work, None)
    return array_of(place, shape, dtype, strides, offset)


def _fetched(array: Any, found: arrays.Described | None, span: Spanned, device: Device) -> Any:
    """The elements of a device's array, as NumPy has them in memory of the host."""
    import numpy

    stage = memory.allocate("host", max(span.nbytes, 1), device, None)
    if span.nbytes:
        queues.synchronize(copy_out(array, found, span, stage, device, None), None)
    base: Any = Span(stage.address, span.nbytes, False, stage.hold()[0])
    return numpy.ndarray(span.shape, span.dtype, base, span.offset, span.strides)


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
    """Export `array`, or a tree of arrays, where it is, without a copy: a handle for `attach` in any process of this
    user.

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

    A tree is a dict, list, tuple or named tuple of arrays, nested up to 64 deep. Its keys are str or int; it may also
    contain None, bool, int of 64 bits, float and str. It has one handle, one export for each allocation that the arrays
    lie in (`handle.handles`), and one event for each stream. `opens` and `ttl` count the whole.

    The export holds the array's memory until the returned handle's `close()` or the end of this process, or until
    `opens` or `ttl` end it. With neither, losing the handle without closing it is a `ResourceWarning`.
    """
    if stream is None and opens is None and ttl is None and not (read_only or copy):
        handle = _hand_over.share(array)
        if handle is not None:
            return handle
    count = _opens_argument(opens)
    limit = _ttl_argument(ttl)
    if isinstance(array, dict | list | tuple):
        tree, copied = share_tree(array, read_only, copy, stream, count, limit)
        return _told(tree, copied, array)
    own = own_array(array)
    found = None if own is not None else arrays.describe(array, stream != UNORDERED)
    source, copied = source_of(array if own is None else own, found, copy, stream)
    work = None
    device = source.covered.device
    ordered = stream != UNORDERED
    if stream is None and found is None:  # an array of ours is written by whatever works on its device
        ordered = adapter_of(device).has_streams
    if ordered:
        if stream is None and found is None:
            work = current_work(device, array)
        else:
            work = work_on(device, native_stream(stream, found, array, device), array)
        if work is not None and not isinstance(stream, Queue) and not copied and work.driver.idle():
            work = None  # the content is there: readers have nothing to wait for
    return _told(_export(source, work, read_only, count, limit, copied), copied, array)


def _told(handle: ArrayHandle, copied: int, source: object) -> ArrayHandle:
    """The handle; the log says how many bytes were copied, if any were."""
    if copied:
        import logging

        logging.getLogger("xpushare").info("share copied %d bytes of a private %s", copied, type(source).__name__)
    return handle


def _opens_argument(opens: int | None) -> int | None:
    if opens is None:
        return None
    try:
        count = operator.index(opens)
    except TypeError:
        raise InvalidArgumentError(f"opens is an integer, not {type(opens).__name__}") from None
    if not 1 <= count <= _OPENS_MAX:
        raise InvalidArgumentError(f"opens is from 1 to {_OPENS_MAX}, not {count}")
    return count


def _ttl_argument(ttl: float | None) -> int | None:
    """In nanoseconds."""
    if ttl is None:
        return None
    try:
        nanoseconds = float(ttl) * 1e9
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"ttl is a number of seconds, not {type(ttl).__name__}") from None
    if not 0 < nanoseconds < 1 << 62:
        raise InvalidArgumentError(f"ttl is a number of seconds, more than 0, not {ttl}")
    return max(int(nanoseconds), 1)


def _export(
    source: Source, work: Work | None, read_only: bool, opens: int | None, ttl: int | None, copied: int
) -> ArrayHandle:
    covered, offset, shape, strides, dtype = source
    order: Mark | None = None
    if work is not None and covered.handle is None:
        order = mark(work, covered.device)
        covered = covered._replace(lease=(covered.lease, order.export))  # the event's export ends with the memory's
    handle = memory.get(covered, None, read_only, opens, ttl=ttl)
    try:
        return seal_array(handle, dtype, shape, strides, offset, order, copied, forks())
    except BaseException:
        if covered.handle is None:  # else it is the handle that the memory came by
            memory.put(handle)
        raise


# --- attaching


def attach(
    h: HandleLike,
    *,
    device: DeviceLike | None = None,
    stream: Any = None,
    like: Any = None,
    types: Iterable[type[tuple[Any, ...]]] = (),
) -> Any:
    """The array behind a handle, mapped here: the same bytes, writable unless it was shared read-only. The handle of a
    tree gives the tree.

    `device=None` opens on the device that the handle names. Readers are ordered after the producer's stream: `stream`
    (a `Queue`, another library's stream, a raw one) waits for it on the device from now on. So do the stream of a
    consumer's `__dlpack__(stream=…)`, queues that get the array as an operand, and the host before it makes a view.
    `stream=-1` opts out of all that.

    Arrays are `SharedArray`, or what `like` makes of one: `torch`, `cupy`, `jax`, `numpy` (the module or its name), or
    a function. In a tree, named tuples are of the classes in `types` with their names, or of new classes.

    The result owns the mapping; views and capsules keep it. What raises leaves nothing open. Raises
    `InvalidHandleError` for anything but an array handle of this user and boot that fits the memory it names,
    `HandleExpiredError` after `close` or the exporter's end, and what `ipc.memory.open` raises.
    """
    consumer = None if like is None else consumer_of(like)
    if device is None and stream is None:
        exchange = None if consumer is None else exchange_of(consumer)
        array = _hand_over.attach(h) if exchange is None else _hand_over.attach_as(h, exchange)
        if array is not None:
            return array if consumer is None or type(array) is not SharedArray else _consumed(array, consumer)
    found = ArrayHandle(h)
    while True:
        try:
            if isinstance(found, TreeHandle):
                expect_open(found)
                return attach_tree(found, device, stream, consumer, types)
            array = _attach(found, device, stream)
            return array if consumer is None else _consumed(array, consumer)
        except HandleExpiredError:
            again = newest(found)
            if again is None:
                raise
            found = ArrayHandle(again)


def _consumed(array: SharedArray, consumer: Consumer) -> Any:
    try:
        return made_by(consumer, array)
    except BaseException:
        give_open(array.handle.handle)
        array.close()
        raise


def _attach(found: ArrayHandle, device: DeviceLike | None, stream: Any) -> SharedArray:
    parts = checked_parts(found)
    work = None
    chosen = None
    if device is not None or stream not in (None, UNORDERED):
        chosen = opening_device(parts.memory, device, None)[0]
    if stream is not None and stream != UNORDERED:
        assert chosen is not None
        work = use(stream) if isinstance(stream, Queue) else work_on(chosen, stream)
    return open_array(found, parts, device, stream != UNORDERED, work)
