"""Sharing and attaching trees of arrays: one message, one export an allocation, one event mark a stream."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from xpushare import adapters, arrays
from xpushare._array import array_of
from xpushare._device import Device
from xpushare._elements import c_strides, check_dtype, extent
from xpushare._errors import FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare._lifecycle import use
from xpushare._queue import Queue
from xpushare._source import Source, copy_of, host_view, in_place, is_unordered, native_stream, own_array, whole
from xpushare._tree_handle import Content, Element, TreeHandle, content_of, flatten, seal_tree, unflatten
from xpushare.core import memory
from xpushare.core.event import open_ as open_event
from xpushare.core.memory import Range
from xpushare.core.opening import give_open
from xpushare.core.ordering import Order, mark, work_on
from xpushare.core.pickles import Implicit
from xpushare.core.resources import Allocation
from xpushare.sharing import layout, node
from xpushare.sharing.handle import fields_of

if TYPE_CHECKING:
    from xpushare._array import SharedArray
    from xpushare._device import DeviceLike
    from xpushare._like import Consumer
    from xpushare.core.queue import Work

__all__ = ["attach_tree", "share_tree"]

_ALIGNMENT = 64  # of copies in one allocation
_new: Any = tuple.__new__  # not by a named tuple's own `__new__`, which is slower


# --- sharing


def share_tree(
    tree: Any, read_only: bool, copy: bool, stream: Any, opens: int | None, ttl: int | None
) -> tuple[TreeHandle, int]:
    """The handle of a tree, and how many bytes were copied. The first export holds all others, and is the one that
    `opens` and `ttl` count.
    """
    found, described = flatten(tree)
    if not found:
        raise InvalidArgumentError(
            f"this {type(tree).__name__} contains no arrays, of which trees consist: xs.array makes a shared copy of "
            "lists and numbers"
        )
    placing = _Placing(copy, stream)
    for array in found:
        try:
            placing.add(array)
        except XpuShareError as error:
            error.add_note(f"of the array at {_path(tree, array)} of the tree")
            raise
    placing.copy_private()
    works = placing.works()
    marks = [mark(work, work.device) for work in works]
    numbers = {id(work): number for number, work in enumerate(works)}
    groups: dict[tuple[int, bool], _Group] = {}
    lying: list[_Group] = []
    for covered, *_ in placing.sources:
        allocation, start, nbytes = covered[:3]
        access = read_only or covered.read_only
        group = groups.get((id(allocation), access))
        if group is None:
            group = groups[id(allocation), access] = _Group(len(groups), covered, access)
        group.add(start, nbytes, covered.lease)
        lying.append(group)
    elements = [
        Element(group.number, numbers.get(id(work), -1), shape, strides, dtype, covered.offset - group.low + first)
        for group, work, (covered, first, shape, strides, dtype) in zip(
            lying, placing.produced, placing.sources, strict=True
        )
    ]
    first, *others = groups.values()
    held = [Implicit(memory.get(other.range(None), None, read_only)) for other in others]
    whole_tree = first.range([*held, *(mark.export for mark in marks)])
    gate = memory.get(whole_tree, None, read_only, opens, ttl=ttl)
    try:
        handles = [gate, *(other.handle for other in held)]
        return seal_tree(handles, marks, elements, described, placing.copied), placing.copied
    except BaseException:
        node.current().table().withdraw(gate, layout.REASON_PUT)
        raise


class _Group:
    """The arrays in one allocation: what is exported is the range that they span."""

    __slots__ = ("_covered", "_leases", "high", "low", "number")

    def __init__(self, number: int, covered: Range, read_only: bool) -> None:
        self.number = number
        self.low = covered.offset
        self.high = covered.offset
        self._covered = covered._replace(read_only=read_only)
        self._leases: list[Any] = []

    def add(self, start: int, nbytes: int, lease: Any) -> None:
        self.low = min(self.low, start)
        self.high = max(self.high, start + nbytes)
        if lease is not None:
            self._leases.append(lease)

    def range(self, more: Any) -> Range:
        """What to export, with all that the export has to hold."""
        return self._covered._replace(offset=self.low, nbytes=self.high - self.low, lease=(self._leases, more))


class _Private(NamedTuple):
    """An array that has to be copied."""

    number: int
    array: Any
    found: arrays.Described | None


class _Placing:
    """Where the arrays of a tree lie, and on which streams they are produced."""

    def __init__(self, copy: bool, stream: Any) -> None:
        self._copy = copy
        self._stream = stream
        self._ordered = not is_unordered(stream)
        self._private: list[_Private] = []
        self._starts: list[int] = []  # addresses of the allocations found so far, sorted, and the allocations
        self._allocations: list[Allocation] = []
        self._current: dict[Any, Work | None] = {}  # streams that arrays are produced on
        self._dtypes: dict[tuple[int, ...], Any] = {}  # of DLPack's types
        self._distinct: dict[int, Work] = {}  # by the id of the driver's queue
        self._copying: set[int] = set()
        self.sources: list[Any] = []
        self.produced: list[Work | None] = []
        self.copied = 0

    def add(self, array: Any) -> None:
        own = own_array(array)
        source: Source | None
        if own is not None:
            found = None
            source = whole(own)
            place = source.covered
            if self._copy and (place.handle is not None or not isinstance(place.allocation, Allocation)):
                source = None
            elif place.handle is not None:
                raise InvalidArgumentError(
                    "imported memory cannot be exported again: send on the handle that it was opened from (`.handle`)"
                )
        else:
            found = arrays.describe(array, self._ordered)
            dtype = self._dtype(found)
            try:
                source = self._known(array, found, dtype) or in_place(array, found, dtype)
            except (FeatureNotSupportedError, InvalidArgumentError):
                if not self._copy:
                    raise
                source = None
        self.sources.append(source)
        if source is None:
            self._private.append(_Private(len(self.sources) - 1, array if own is None else own, found))
            self.produced.append(None)
            return
        covered = source.covered
        if own is None:
            self._learn(covered.allocation)
        self.produced.append(self._work(array, found, covered.device))

    def _dtype(self, found: arrays.Described) -> Any:
        kind = found.kind
        dtype = self._dtypes.get(kind) if isinstance(kind, tuple) else None
        if dtype is None:
            dtype = found.dtype
            check_dtype(dtype)
            if isinstance(kind, tuple):
                self._dtypes[kind] = dtype
        return dtype

    def _learn(self, allocation: Allocation) -> None:
        at = bisect_right(self._starts, allocation.address)
        if not at or self._allocations[at - 1] is not allocation:
            self._starts.insert(at, allocation.address)
            self._allocations.insert(at, allocation)

    def _known(self, array: Any, found: arrays.Described, dtype: Any) -> Source | None:
        """In an allocation that an earlier array has shown: asking the driver takes long."""
        low, high = extent(found.shape, found.strides, found.itemsize)
        at = bisect_right(self._starts, found.address + low) - 1
        if at < 0 or low == high:
            return None
        allocation = self._allocations[at]
        offset = found.address + low - allocation.address
        if offset + high - low > allocation.nbytes:
            return None
        device = allocation.device
        lease = array if allocation.foreign else None
        place = _new(Range, (allocation, offset, high - low, device, device.context, found.read_only, None, lease))
        source: Source = _new(Source, (place, -low, found.shape, found.strides, dtype))
        return source

    def _work(self, array: Any, found: arrays.Described | None, device: Device) -> Work | None:
        """The stream that the array is produced on."""
        stream = self._stream
        if not self._ordered:
            return None
        plain = type(array), device
        if stream is not None:
            key: Any = device
        elif plain in self._current and (found is None or found.stream is None):
            return self._current[plain]  # such arrays name no stream
        else:
            stream = native_stream(None, found, array, device)
            key = plain if stream is None else (*plain, stream if isinstance(stream, int) else id(stream))
            key = None if stream is array else key
        if key is not None and key in self._current:
            return self._current[key]
        try:
            work = use(stream) if isinstance(stream, Queue) else work_on(device, stream, array)
        except InvalidArgumentError:
            if self._stream is None:
                raise
            work = None  # a stream that was named is of one of the tree's devices: see `works`
        if work is not None:
            work = self._distinct.setdefault(id(work.driver), work)
        if key is not None:
            self._current[key] = work
        return work

    def copy_private(self) -> None:
        """Copy what has to be copied: what lies on the host into one allocation."""
        import numpy

        on_host: list[tuple[int, Any]] = []
        for number, array, found in self._private:
            if found is None or found.backend is None:
                on_host.append((number, numpy.asarray(array) if found is None else host_view(array, found)))
                continue
            self.sources[number], copied = copy_of(array, found, self._stream)
            self.copied += copied
            work = self.produced[number] = self._work(array, found, self.sources[number].covered.device)
            if work is not None:
                self._copying.add(id(work))
        if not on_host:
            return
        total = sum(-(-values.nbytes // _ALIGNMENT) * _ALIGNMENT for _, values in on_host)
        place = memory.allocate("device", max(total, 1), Device(f"{adapters.HOST}:0"), None)
        at = 0
        for number, values in on_host:
            target = array_of(place, values.shape, values.dtype, c_strides(values.shape, values.dtype.itemsize), at)
            numpy.copyto(numpy.asarray(target), values)
            self.sources[number] = whole(target)
            self.produced[number] = self._work(self._private, None, target.device)
            self.copied += values.nbytes
            at += -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT

    def works(self) -> list[Work]:
        """The streams that readers have to wait for; `produced` is put right."""
        named = self._stream is not None and self._ordered
        if named:
            if not self._distinct and self._current:
                device = next(iter(self._current))
                work_on(device, self._stream)  # raises what says why it is no stream
            for work in self._distinct.values():  # the whole tree is as of that point of that stream
                self.produced = [work] * len(self.produced)
        kept: dict[int, Work] = {}
        for work in self._distinct.values():
            if isinstance(self._stream, Queue) or id(work) in self._copying or not work.driver.idle():
                kept[id(work)] = work
        return list(kept.values())


def _path(x: Any, wanted: Any, path: str = "") -> str:
    """Where an object is in a tree, for messages; empty where it is not."""
    if x is wanted:
        return path
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(x, dict):
        pairs = x.items()  # pyright: ignore[reportUnknownVariableType]
    elif isinstance(x, list | tuple):
        pairs = enumerate(x)  # pyright: ignore[reportUnknownArgumentType]
    return next(filter(None, (_path(value, wanted, f"{path}[{key!r}]") for key, value in pairs)), "")


# --- attaching


def attach_tree(
    handle: TreeHandle, device: DeviceLike | None, stream: Any, consumer: Consumer | None, types: Iterable[Any]
) -> Any:
    """The tree behind a handle, its arrays mapped here. What fails leaves nothing open, and takes no open away."""
    content = content_of(handle)
    kinds = list(types)
    unflatten(content.tree, content.arrays, kinds)  # refused before anything is opened
    gate = content.memory[0]
    here = node.current()
    own = here.table().find(gate) if here.is_own(fields_of(gate).cookie) else None  # holds the other exports
    opened: list[Range] = []
    orders: dict[tuple[int, int], Order] = {}
    made: list[SharedArray] = []
    try:
        for each in content.memory:
            opened.append(memory.open_(each, device))  # noqa: PERF401 (those opened so far must be closed)
        _make(handle, content, opened, not is_unordered(stream), orders, made)
        if orders and stream is not None:
            work = _work_of(stream, opened)
            for order in orders.values():
                order.before(work)
        return unflatten(content.tree, made if consumer is None else list(map(consumer, made)), kinds)
    except BaseException:
        if opened:
            give_open(gate)
        opened.clear()  # here, not with the traceback
        orders.clear()
        for array in made:
            array.close()
        raise
    finally:
        del own


def _make(
    handle: TreeHandle,
    content: Content,
    opened: list[Range],
    ordered: bool,
    orders: dict[tuple[int, int], Order],
    made: list[SharedArray],
) -> None:
    """Make the arrays. Their readers wait for the streams that they were produced on."""
    for place, event, shape, strides, dtype, offset in content.arrays:
        order = None
        if ordered and event >= 0:
            device = opened[place].device
            order = orders.get((event, id(device)))
            if order is None:
                mark, point = content.events[event]
                order = orders[event, id(device)] = Order(open_event(mark, device, signals=False), point)
        made.append(array_of(opened[place], shape, dtype, strides, offset, handle, order))


def _work_of(stream: Any, opened: list[Range]) -> Work:
    """The stream that the caller names, which is of one of the devices."""
    if isinstance(stream, Queue):
        return use(stream)
    refusal: InvalidArgumentError | None = None
    for device in dict.fromkeys(each.device for each in opened):
        try:
            work = work_on(device, stream)
        except InvalidArgumentError as error:
            refusal = error
            continue
        assert work is not None  # a stream was named
        return work
    assert refusal is not None
    raise refusal
