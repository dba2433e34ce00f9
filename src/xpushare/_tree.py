"""Sharing and attaching trees of arrays: one message, one export an allocation, one event mark a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xpushare import _hand_over, adapters, arrays
from xpushare._array import array_of
from xpushare._array_handle import NDIM_MAX
from xpushare._device import Device, dlpack_of
from xpushare._elements import c_strides, check_dtype, dlpack_type, extent
from xpushare._errors import FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare._lifecycle import use
from xpushare._like import exchange_of, torch_stream
from xpushare._native import Leaves
from xpushare._queue import Queue
from xpushare._source import (
    Source,
    copy_of,
    host_view,
    in_place,
    is_unordered,
    lies_on_host,
    native_stream,
    own_array,
    whole,
)
from xpushare._tree_handle import Content, Dtypes, TreeHandle, content_of, flatten, seal_tree, tree_bytes, unflatten
from xpushare.core import memory
from xpushare.core.declare import layers_on
from xpushare.core.event import open_ as open_event
from xpushare.core.memory import Range
from xpushare.core.opening import give_open
from xpushare.core.ordering import Order, mark, work_on
from xpushare.core.pickles import ImplicitAll
from xpushare.core.resources import Allocation
from xpushare.sharing import layout, node
from xpushare.sharing.handle import fields_of

if TYPE_CHECKING:
    from xpushare._array import SharedArray
    from xpushare._device import DeviceLike
    from xpushare._like import Consumer
    from xpushare.core.queue import Work
    from xpushare.sharing.handle import Handle

__all__ = ["attach_tree", "pickle_arrays", "share_tree"]

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
    placing = _Placing(found, copy, stream)
    if not (_hand_over.off or layers_on):
        placing.view()
    try:
        placing.place()
    except XpuShareError as error:
        error.add_note(f"of the array at {_path(tree, placing.current())} of the tree")
        raise
    placing.copy_private()
    works = placing.works()
    marks = [mark(work, work.device) for work in works]
    groups = placing.describe({id(work): number for number, work in enumerate(works)}, read_only)
    first, *others = groups
    ranges = [other.range(None) for other in others]
    held = ImplicitAll(_exported(ranges, read_only))
    whole_tree = first.range([held, *(mark.export for mark in marks)])
    gate = memory.get(whole_tree, None, read_only, opens, ttl=ttl)
    try:
        handles = [gate, *held.handles]
        sealed = seal_tree(handles, marks, placing.leaves, placing.dtypes, described, placing.copied)
    except BaseException:
        node.current().table().withdraw(gate, layout.REASON_PUT)
        raise
    return sealed, placing.copied


def _exported(ranges: list[Range], read_only: bool, implicit: bool = False) -> list[Handle]:
    """`memory.get` of each: all of them, or none. `implicit`: for a pickle."""
    if layers_on:
        return memory.get_each(ranges, read_only, implicit)
    found = None if read_only else _hand_over.export_all(ranges, implicit)
    return memory.get_all(ranges, read_only, implicit) if found is None else found


def pickle_arrays(found: list[Any], known: Iterable[Allocation], made: dict[Device, list[Handle]]) -> bytes:
    """The handle of a list of different arrays for a pickle, as of now. Each allocation has an export of its own, which
    is added to `made`, also where an error follows. It is exported as a whole: whoever receives several messages can
    pass on what came by one of them by the handle of another. `known`: allocations that the arrays lie in.
    """
    placing = _Placing(found, False, None, known)
    if not (_hand_over.off or layers_on):
        placing.view()
    placing.place()
    works = placing.works()
    marks = [mark(work, work.device) for work in works]
    groups = placing.describe({id(work): number for number, work in enumerate(works)}, False, spread=True)
    ranges = [group.range([mark.export for mark in marks]) for group in groups]
    handles = _exported(ranges, False, implicit=True)
    for handle, each in zip(handles, ranges, strict=True):
        made.setdefault(each.device, []).append(handle)
    return tree_bytes(handles, marks, placing.leaves, placing.dtypes, flatten(found)[1], 0)


class _Group:
    """The arrays in one allocation: what is exported is the range that they span."""

    __slots__ = ("_allocation", "_device", "_handle", "_leases", "_read_only", "high", "low", "number")

    def __init__(
        self, number: int, allocation: Allocation, device: Device, handle: Handle | None, read_only: bool,
        low: int, high: int, leases: Any,
    ) -> None:  # fmt: skip
        self.number = number
        self.low = low
        self.high = high
        self._allocation = allocation
        self._device = device
        self._handle = handle
        self._read_only = read_only
        self._leases = [leases]

    def add(self, low: int, high: int, leases: Any) -> None:
        self.low = min(self.low, low)
        self.high = max(self.high, high)
        self._leases.append(leases)

    def spread(self) -> None:
        """Export the whole allocation."""
        self.low, self.high = 0, self._allocation.nbytes

    def range(self, more: Any) -> Range:
        """What to export, with all that the export has to hold."""
        device, low, lease = self._device, self.low, (self._leases, more)
        fields = self._allocation, low, self.high - low, device, device.context, self._read_only, self._handle, lease
        found: Range = _new(Range, fields)
        return found


class _Private(NamedTuple):
    """An array that has to be copied."""

    number: int
    array: Any
    found: arrays.Described | None


class _Alike(NamedTuple):
    """What arrays of one type, on one device, with one type of elements have in common."""

    device: Device
    backend: str | None
    work: Work | None
    dtype: Any


class _Placing:
    """Where the arrays of a tree lie, and on which streams they are produced."""

    def __init__(self, found: list[Any], copy: bool, stream: Any, known: Iterable[Allocation] = ()) -> None:
        """`known`: allocations that arrays lie in, which the driver need not be asked for."""
        self.leaves: Final = Leaves(found)
        self.dtypes: Final = Dtypes()
        self._found = found
        self._at = 0
        self._copy = copy
        self._stream = stream
        self._ordered = not is_unordered(stream)
        self._private: list[_Private] = []
        self._current: dict[Any, Work | None] = {}  # streams that arrays are produced on
        self._dtypes: dict[tuple[int, ...], Any] = {}  # of DLPack's types
        self._distinct: dict[int, Work] = {}  # by the id of the driver's queue
        self._copying: set[int] = set()
        self._alike: dict[int, _Alike] = {}  # by the numbers that `leaves` gives them
        self._indices: list[int] = []  # of the arrays that are placed here; the others are placed by `leaves`
        self.sources: list[Any] = []
        self.produced: list[Work | None] = []
        self.copied = 0
        for allocation in known:
            self._learn(allocation)

    def view(self) -> None:
        """Have `leaves` place the arrays that lie where others do, and are like them."""
        if self._stream is None or not self._ordered:  # a stream that is named stands for all
            arrays.view(self.leaves)

    def current(self) -> Any:
        """The array that is being placed."""
        return self._found[self._at]

    def place(self) -> None:
        leaves = self.leaves
        tried = -1
        while (index := leaves.next()) is not None:
            self._at = index
            array = self._found[index]
            where = leaves.where()
            if index != tried and where is not None and where[0] in self._alike:
                tried = index
                _hand_over.find_all(leaves, self._alike)
                if leaves.next() != index or self._locate(array, *where):
                    continue
            self._indices.append(index)
            found = self._add(array)
            leaves.skip(None if where is None or found is None else self._is_alike(array, found, where[0], where[1]))

    def _locate(self, array: Any, kind: int, _on: int, low: int, nbytes: int) -> bool:
        """Tell `leaves` in which allocation the array lies, which is like an earlier one."""
        alike = self._alike[kind]
        try:
            allocation = arrays.range_at(arrays.Located(low, nbytes, False, alike.backend), array).allocation
            if self._copy:
                memory.prepared_by(allocation, node.current().table(), False)
        except XpuShareError:
            return False  # `_add` says what is wrong, or copies it
        if allocation.device is not alike.device:
            return False
        self._learn(allocation)
        return True

    def _is_alike(self, array: Any, found: arrays.Described, kind: int, on: int) -> Device | None:
        """The device of an array that was placed here, if nothing is to be decided for others that are like it."""
        covered = None if self.sources[-1] is None else self.sources[-1].covered
        own: Any = type(array)
        if covered is None or arrays.viewable(own, on) is None:
            return None
        device: Device = covered.device
        if self._ordered and (own, device) not in self._current:
            return None
        known = self._alike.get(kind)
        if known is not None and known.device is not device:
            return None  # those that are placed natively are on the kind's first device
        self._alike[kind] = _Alike(device, found.backend, self.produced[-1], self._dtype(found))
        return device

    def _add(self, array: Any) -> arrays.Described | None:
        """Place an array; of another library's, what it says."""
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
                source = self._known(array, found, dtype) or in_place(array, found, dtype, self._copy)
            except (FeatureNotSupportedError, InvalidArgumentError):
                if not self._copy:
                    raise
                source = None
        self.sources.append(source)
        if source is None:
            self._private.append(_Private(len(self.sources) - 1, array if own is None else own, found))
            self.produced.append(None)
            return found
        covered = source.covered
        if own is None:
            self._learn(covered.allocation)
        self.produced.append(self._work(array, found, covered.device))
        return found

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
        self.leaves.learn(allocation.address, allocation.nbytes, allocation.device, allocation)

    def _known(self, array: Any, found: arrays.Described, dtype: Any) -> Source | None:
        """In an allocation that an earlier array has shown: asking the driver takes long."""
        low, high = extent(found.shape, found.strides, found.itemsize)
        allocation = None if low == high else self.leaves.allocation(found.address + low, high - low)
        if allocation is None:
            return None
        device = allocation.device
        lease = array if allocation.foreign else None
        offset = found.address + low - allocation.address
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
            if lies_on_host(array, found):
                on_host.append((number, host_view(array, found)))
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

    def describe(self, events: dict[int, int], read_only: bool, spread: bool = False) -> list[_Group]:
        """Have `leaves` know of each array in which group it lies, and after which event (by the ids of their streams)
        it is there; the groups, which `spread` over their whole allocations.
        """
        groups: dict[tuple[int, bool], _Group] = {}

        def group_of(
            allocation: Any, device: Device, handle: Handle | None, access: bool, low: int, high: int, leases: Any
        ) -> _Group:
            key = id(allocation), access
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(len(groups), allocation, device, handle, access, low, high, leases)
            else:
                group.add(low, high, leases)
            return group

        leaves = self.leaves
        lying: list[_Group] = []
        for source in self.sources:
            allocation, low, nbytes, device, _, only_read, handle, lease = source.covered
            lying.append(group_of(allocation, device, handle, read_only or only_read, low, low + nbytes, lease))
        places: list[tuple[int, _Group]] = []
        for allocation, start, low, high, members in leaves.placed():
            leases = members if allocation.foreign else None
            group = group_of(allocation, allocation.device, None, read_only, low - start, high - start, leases)
            places.append((start, group))
        for group in groups.values() if spread else ():
            group.spread()
        for index, group, work, source in zip(self._indices, lying, self.produced, self.sources, strict=True):
            covered, first, shape, strides, dtype = source
            if len(shape) > NDIM_MAX:
                raise InvalidArgumentError(f"an array has at most {NDIM_MAX} dimensions, this has {len(shape)}")
            leaves.set(
                index, group.number, events.get(id(work), -1), self.dtypes.number(dtype), shape, strides,
                covered.offset - group.low + first,
            )  # fmt: skip
        if places:
            leaves.assign(
                {start: (group.number, start + group.low) for start, group in places},
                {
                    kind: (events.get(id(alike.work), -1), self.dtypes.number(alike.dtype))
                    for kind, alike in self._alike.items()
                },
            )
        return list(groups.values())


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
    try:
        kinds = list(types)
    except TypeError:
        raise InvalidArgumentError(f"types is classes of named tuples, not {types!r}") from None
    # Refused before anything is opened, and the exporter is met.
    unflatten(content.tree, range(len(content.leaves)), kinds)
    work = None if stream is None or is_unordered(stream) else _work_of(stream, content, device)
    gate = content.memory[0]
    here = node.current()
    own = here.table().find(gate) if here.is_own(fields_of(gate).cookie) else None  # holds the other exports
    opened: list[Range] = []
    orders: dict[tuple[int, int], Order] = {}
    made: list[SharedArray] = []
    try:
        if device is None:
            _hand_over.open_all(content.memory, opened)
        if others := content.memory[len(opened) :]:
            (_open_each if layers_on else memory.open_all)(others, device, opened)
        if not is_unordered(stream):
            _order(content, opened, orders)
            if work is not None:
                for order in orders.values():
                    order.before(work)
        found = None if consumer is None else _tensors(content, opened, orders, consumer)
        if found is None:
            _make(handle, content, opened, orders, made)
            found = made if consumer is None else list(map(consumer, made))
        return unflatten(content.tree, found, kinds)
    except BaseException:
        for each in content.memory[: len(opened)]:  # a tree counts the gate's, a pickle's message all
            give_open(each)
        opened.clear()  # here, not with the traceback
        orders.clear()
        for array in made:
            array.close()
        raise
    finally:
        del own


def _open_each(handles: Sequence[Handle], device: DeviceLike | None, opened: list[Range]) -> None:
    """What `memory.open_all` does, for layers."""
    for each in handles:
        opened.append(memory.open_(each, device))  # noqa: PERF401 - those before an error must be closed


def _order(content: Content, opened: list[Range], orders: dict[tuple[int, int], Order]) -> None:
    """What the readers of the arrays wait for, by the event and the device."""
    for place, event in content.leaves.marks():
        device = opened[place].device
        if (event, id(device)) not in orders:
            mark, point = content.events[event]
            orders[event, id(device)] = Order(open_event(mark, device, signals=False), point)


def _make(
    handle: TreeHandle,
    content: Content,
    opened: list[Range],
    orders: dict[tuple[int, int], Order],
    made: list[SharedArray],
) -> None:
    """Make the arrays."""
    for place, event, shape, strides, dtype, offset in content.elements():
        order = orders.get((event, id(opened[place].device)))
        made.append(array_of(opened[place], shape, dtype, strides, offset, handle, order))


def _tensors(
    content: Content, opened: list[Range], orders: dict[tuple[int, int], Order], consumer: Consumer
) -> list[Any] | None:
    """What the consumer makes of the arrays, by its library's exchange API. Its current streams wait for the
    producer's. None where it has to be asked array by array.
    """
    exchange = None if _hand_over.off or layers_on else exchange_of(consumer)
    if exchange is None:
        return None
    if any(each.read_only for each in opened):
        return None  # the consumer is warned
    try:
        dtypes = [(dlpack_type(dtype), dtype.itemsize) for dtype in content.dtypes]
    except BufferError:
        return None
    on = [dlpack_of(each.device, each.allocation.kind) for each in opened]
    if not _wait(dict(zip(on, [each.device for each in opened], strict=True)), orders):
        return None
    # last: the traceback of an error would hold them
    places = [(each.hold()[0], each.address, where) for each, where in zip(opened, on, strict=True)]
    return content.leaves.tensors(exchange, places, dtypes)


def _wait(devices: dict[tuple[int, int], Device], orders: dict[tuple[int, int], Order]) -> bool:
    """Have torch's current streams, and the host for its memory, wait for the content. `devices`: by DLPack's. False
    where torch does not know one.
    """
    streams: dict[int, Work | None] = {}  # by the id of the device; None: the host reads
    for on, device in devices.items():
        kind = adapters.dlpack_owner(on[0])[0].torch_type
        if kind is None:
            return False
        work = None if adapters.on_host(on[0]) else work_on(device, torch_stream(kind, on[1]))
        if work is None or streams.get(id(device), work) is not None:
            streams[id(device)] = work
    for (_event, device_id), order in orders.items():
        if not order.settled():
            work = streams[device_id]
            if work is None:
                order.before_host()
            else:
                order.before(work)
    return True


def _work_of(stream: Any, content: Content, device: DeviceLike | None) -> Work:
    """The stream that the caller names, which is of one of the devices that the memory is going to be opened on."""
    if isinstance(stream, Queue):
        return use(stream)
    refusal: InvalidArgumentError | None = None
    handles = content.memory if device is None else content.memory[:1]
    for chosen in dict.fromkeys(memory.opener_for(each, device, None)[1] for each in handles):
        try:
            work = work_on(chosen, stream)
        except InvalidArgumentError as error:
            refusal = error
            continue
        assert work is not None  # a stream was named
        return work
    assert refusal is not None
    try:
        raise refusal
    finally:
        del refusal  # its traceback has this frame
