"""Finds the memory of the arrays that `share` exports, and the streams that produce their content."""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from xpushare import adapters
from xpushare._native import KINDS_MOST, Kinds, Leaves, Recogniser, Span
from xpushare.arrays import description
from xpushare.arrays.copies import (
    Source,
    Spanned,
    copy_elements,
    copy_kind,
    copy_of,
    copy_out,
    host_view,
    is_gapless,
    is_unordered,
    kept_strides,
    lies_on_host,
    native_stream,
    new_array,
    own_array,
    spanned,
    whole,
)
from xpushare.arrays.meaning import refusal
from xpushare.arrays.passing import passed_on
from xpushare.common.elements import extent
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare.core import memory
from xpushare.core.device import Context, Device, adapter_of, info_of
from xpushare.core.ordering import current_work, finish, work_on
from xpushare.core.resources import Allocation
from xpushare.objects.array import array_of, host_array, unsettled
from xpushare.objects.lifecycle import use
from xpushare.objects.message import NDIM_MAX, ONE_ARRAY
from xpushare.objects.queue import Queue
from xpushare.sharing import node

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpushare.core.memory import Range
    from xpushare.core.queue import Work

__all__ = ["KINDS", "Placing"]

_ALIGNMENT: Final = 64  # alignment of copies in one allocation


_NO_EVENTS: Final[dict[int, int]] = {}
_NO_STREAMS: Final[list[Work]] = []  # these two are replaced, not changed
_NO_WORK: Final[dict[int, Work]] = {}
_address: Final = operator.attrgetter("address")
KINDS: Final = Kinds()
os.register_at_fork(after_in_child=KINDS.clear)  # the parent's streams have no threads here


class _Private(NamedTuple):
    """An array whose memory cannot be shared in place and therefore has to be copied."""

    at: int
    array: Any
    found: description.Described | None


class _Storage:
    """A group of private arrays (arrays that have to be copied) whose bytes overlap, so that they are views of the same
    memory.
    """

    def __init__(self, each: _Private, view: Spanned) -> None:
        self.views = [(each, view)]
        self.low, self.high = view.address, view.address + view.nbytes

    def add(self, each: _Private, view: Spanned) -> None:
        """Add a view. Its first byte must not lie before those of the views that were added earlier."""
        self.views.append((each, view))
        self.high = max(self.high, view.address + view.nbytes)

    @property
    def nbytes(self) -> int:
        """Size of the group's copy on the host in bytes. The copy of a single array leaves out the gaps between its
        elements.
        """
        if len(self.views) > 1:
            return self.high - self.low
        view = self.views[0][1]
        low, high = extent(view.shape, kept_strides(view.shape, view.strides, view.dtype.itemsize), view.dtype.itemsize)
        return high - low

    def is_gapless(self) -> bool:
        """Return whether the views without gaps together cover every byte of the group."""
        end = self.low
        for _, view in self.views:
            if is_gapless(view) and view.address <= end:
                end = max(end, view.address + view.nbytes)
        return end == self.high


def _storages(private: list[_Private]) -> list[_Storage]:
    """Group private arrays (arrays that have to be copied) by the memory that they are views of."""
    found: list[_Storage] = []
    spans = [(each, spanned(each.array, each.found)) for each in private]
    for each, view in sorted(spans, key=lambda span: span[1].address):
        if (
            found
            and view.nbytes
            and view.address < found[-1].high
            and _place_of(each) == _place_of(found[-1].views[0][0])
        ):
            found[-1].add(each, view)
        else:
            found.append(_Storage(each, view))
    return found


def _place_of(each: _Private) -> Any:
    """Return the backend of the array's device memory, or None for host memory. Equal addresses mean the same memory
    only if the backends are equal, too.
    """
    if lies_on_host(each.array, each.found):
        return None
    return each.array.device.backend if each.found is None else each.found.backend


def _copy_bytes(target: Any, group: _Storage) -> None:
    """Copy all bytes that a group of views spans to `target`."""
    import numpy

    for each, view in group.views:
        if each.found is not None:
            description.expect_readable(each.array, each.found, -view.offset, view.nbytes - view.offset)
    keep = [view.keep for _, view in group.views]
    base: Any = Span(group.low, group.nbytes, True, keep)
    numpy.copyto(numpy.asarray(target), numpy.ndarray((group.nbytes,), "u1", base))


@final
class Placing(Leaves):
    """Finds the memory of each array to share, and the device work that must finish before the content is complete.
    Native code handles each `SharedArray`, and arrays of NumPy, memoryviews and arrays of libraries with DLPack's
    exchange API once Python has described the first array of their kind. Python handles all other arrays one by one.
    """

    # Defaults of the class, since most arrays need none of this.
    tree: Any = ONE_ARRAY
    special = False  # whether any of the attributes below differs from its default
    passes_on = False  # whether memory of other processes is among what `ranges` returns
    streams = _NO_STREAMS  # that produce the arrays
    named = False  # whether the caller names the stream
    _copy = False
    _lasting = False
    _stream: Any = None
    _ordered = True
    _produced = _NO_WORK  # by kind: the producer of its arrays
    _copying: tuple[Work, ...] = ()  # streams that copy shared arrays
    at = 0  # the index of the array whose memory is being determined, for error messages
    _known: Sequence[Allocation] = ()

    # Of arrays that native code does not place, from the first one on:
    _passed_on: dict[tuple[bytes, int, bool], Range]  # by handle, allocation and access
    _current: dict[Any, Work | None]  # streams that arrays are produced on
    _private: list[_Private]

    def ask(self, copy: bool, stream: Any, lasting: bool) -> None:
        """Set the options of `share` that apply to the arrays. `lasting` is as for `passed_on`."""
        self.special = True
        self._copy = copy
        self._lasting = lasting
        self._stream = stream
        self._ordered = stream is None or not is_unordered(stream)
        self.named = stream is not None and self._ordered

    def know(self, known: Iterable[Allocation]) -> None:
        """Set allocations that the caller knows already, so that no driver is asked about arrays in them."""
        self._known = sorted(known, key=_address)
        for allocation in self._known:
            self.learn(allocation, allocation.device.context)

    # --- placing

    def place(self) -> None:
        """Find the memory of all arrays. If the caller passed `copy=True`, copy the arrays whose memory cannot be
        shared.
        """
        special = self.special
        ordered = not special or self._ordered
        if not special or not self.named:  # a stream that is named stands for all
            for number, array, device, element in self.view(ordered):
                self.at = next(at for at, each in enumerate(self.arrays) if each is array)
                self._settle(number, array, device, element)
            if ordered and (produced := self.producers()) is not None:
                self.special = True
                self._produced = produced
                self.streams = list(dict.fromkeys(produced.values()))
        if self.next() is None:
            return
        self.special = True
        here = node.here[0]
        find: tuple[Any, ...] = ()
        if not self._copy:  # else Python looks at new memory, whose export may be refused
            table = here.table_if_any
            find = (here.allocations, here.peers.mapped), here.foreign.add, None if table is None else table.native
        self._passed_on, self._current, self._private = {}, {}, []
        self._produced, self.streams = dict(self._produced), list(self.streams)
        while (index := self.next(*find)) is not None:
            self.at = index
            where = self.where()
            if where is None or not self._locate(*where):
                self._put(index, *self._describe(index))
        if self._private:
            self._copy_private()

    def _settle(
        self, number: int, array: Any, device: Device | None, element: tuple[int, int, int, int, int] | None
    ) -> None:
        """Give native code the device and the producing stream that all arrays of one kind have. Does nothing if arrays
        of this kind have to be described one by one. `number` is the kind's number, and `array` is one of its arrays.
        """
        if device is None:
            found = None
            if not refusal(array):
                own: Any = type(array)
                found = description.kind_of(own, *element) if element else description.kind_of_buffers(array)
            if found is None:
                return
            dtype, device = found
            self.settle(number, dtype, device, device.context)
        if not self._ordered:
            return
        if not adapter_of(device).has_streams:
            self.produce(number, None, None, True)
            return
        stream = None if element is None or device.backend == adapters.HOST else self.stream(number)
        work = current_work(device, array, stream)
        self.produce(number, work, stream, work is not None and work.driver.lasting)

    def _locate(
        self, kind: int, low: int, nbytes: int, device: Device, context: Context, finder: Recogniser | None, info: Any,
        ahead: int,
    ) -> bool:  # fmt: skip
        """Find the allocation that contains these bytes of another library's array, and give it to native code. Return
        False if the array has to be described by `_describe`. `ahead` is the number of bytes from `low` to the end of
        the last array that follows in adjacent memory.
        """
        try:
            allocation = description.allocation_at(low, nbytes, device, info, finder, known=False, ahead=ahead)
            if self._copy:
                memory.prepared_by(allocation, node.current().table(), False)
        except XpuShareError:
            return False  # `_describe` raises the error, or has the array copied
        if finder is None and (recogniser := adapter_of(device).recogniser) is not None:
            self.finds(kind, recogniser, info_of(device))
        if allocation.device is not device or (allocation.imported and not allocation.owned):
            return False
        self.learn(allocation, context)
        return True

    def _describe(self, index: int) -> tuple[Source, Work | None] | tuple[None, None]:
        """Return an array's memory and the stream that produces its content. Return `(None, None)` if the array has to
        be copied.
        """
        array = self.arrays[index]
        own = own_array(array)
        if own is not None:
            found = None
            source = whole(own)
            place = source.covered
            if place.borrowed or not isinstance(place.allocation, Allocation):
                if self._copy:  # neither imported memory nor a VirtualRange can get a handle here
                    self._private.append(_Private(index, own, None))
                    return None, None
                memory.expect_exportable(place, place.borrowed)
            work = self._work(array, None, place.device)
            if place.handle is not None and self._ordered and (order := unsettled(own)) is not None:
                order.before_host()  # neither exports nor passed-on handles name an event of another process
            return self._pass_on(source, work)
        if self._copy:
            array = description.to_copy(array)
        found = description.describe(array, self._ordered)
        dtype = found.dtype
        description.check_elements(array, dtype)
        try:
            source = self._in_place(array, found, dtype)
        except (FeatureNotSupportedError, InvalidArgumentError):
            if not self._copy:
                raise
            self._private.append(_Private(index, array, found))
            return None, None
        return self._pass_on(source, self._work(array, found, source.covered.device))

    def _pass_on(self, source: Source, work: Work | None) -> tuple[Source, Work | None]:
        """If the memory belongs to another process, express the array's place as an offset in the memory behind the
        original handle. A message with that handle cannot name an event of this process, so this waits for the queued
        work. Other memory is returned unchanged.
        """
        place = source.covered
        if not place.borrowed:
            return source, work
        handle, read_only = place.handle, self.read_only or place.read_only
        assert handle is not None
        key = bytes(handle), id(place.allocation), read_only
        covered = self._passed_on.get(key)
        if covered is None:
            covered = passed_on(place, read_only, self._lasting)
            if not covered.borrowed:
                return source, work
            self._passed_on[key] = covered
            self.passes_on = True
        if work is not None and not work.driver.idle():
            finish(work, place.device)
        return source._replace(covered=covered, offset=place.offset + source.offset - covered.offset), None

    def _in_place(self, array: Any, found: description.Described, dtype: Any) -> Source:
        """Return the memory of another library's array, to be shared without a copy. Raises `FeatureNotSupportedError`
        if the memory cannot be shared. With `copy=True`, also raises `InvalidArgumentError` if another process owns it.
        """
        low, high = extent(found.shape, found.strides, found.itemsize)
        if low == high:  # an array without bytes has no private memory
            return whole(new_array(found.shape, dtype, description.device_of(array, found)))
        place = description.range_at(found.located(), array, self._known)
        if place.borrowed and self._copy:
            raise InvalidArgumentError("this process does not own the memory")  # it is copied
        if self._copy:  # then the driver may refuse it
            memory.prepared_by(place.allocation, node.current().table(), False)
        return Source(place, -low, found.shape, found.strides, dtype)

    def _put(self, index: int, source: Source | None, work: Work | None) -> None:
        """Give an array's memory and producing stream to native code. `source` is None for an array that is copied
        later.
        """
        if source is None:
            self.skip()
            return
        if len(source.shape) > NDIM_MAX:
            raise InvalidArgumentError(f"an array has at most {NDIM_MAX} dimensions, this has {len(source.shape)}")
        kind = KINDS_MOST  # the kind of arrays without a producer; the arrays of each stream are another kind
        if work is not None:
            kind += 1 + self.streams.index(work)
            self._produced[kind] = work
        self.put(index, source.covered, source.offset, source.shape, source.strides, source.dtype, kind)

    # --- streams

    def _distinct(self, work: Work | None) -> Work | None:
        """Return one and the same `Work` object for all work on the same stream."""
        if work is None:
            return None
        for known in self.streams:
            if known.driver is work.driver:
                return known
        self.streams.append(work)
        return work

    def _work(self, array: Any, found: description.Described | None, device: Device) -> Work | None:
        """Return the stream that produces the array's content, or None if there is no stream to wait for."""
        stream = self._stream
        if not self._ordered or (stream is None and found is None and not adapter_of(device).has_streams):
            return None  # an array of ours is written by whatever works on its device
        plain = type(array), device
        if stream is not None:
            key: Any = device
        elif plain in self._current and (found is None or found.stream is None):
            return self._current[plain]  # these arrays do not report a stream
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
            work = None  # a stream that was named is of one of the devices: see `works`
        work = self._distinct(work)
        if key is not None:
            self._current[key] = work
        return work

    def works(self) -> list[Work]:
        """Return the streams that readers have to wait for."""
        if self._stream is None and not self._copying:
            busy: list[Work] = []
            for work in self.streams:
                if not work.driver.idle():
                    busy.append(work)  # noqa: PERF401 - without a function of its own
            return busy
        if self.named and not self.streams and self._current:
            device = next(iter(self._current))
            work_on(device, self._stream)  # raises the error if it is not a stream
        return list(filter(self._busy, self.streams))

    def _busy(self, work: Work) -> bool:
        return isinstance(self._stream, Queue) or work in self._copying or not work.driver.idle()

    # --- copies

    def _copy_private(self) -> None:
        """Copy the private arrays. All private arrays on the host share one allocation. If several arrays are views of
        the same memory, the memory is copied only once.
        """
        on_host: list[_Private] = []
        on_devices: list[_Private] = []
        for each in self._private:
            (on_host if lies_on_host(each.array, each.found) else on_devices).append(each)
        for group in _storages(on_devices):
            self._copy_on_device(group)
        if on_host:
            self._copy_on_host(_storages(on_host))

    def _copy_on_device(self, group: _Storage) -> None:
        first = group.views[0][0]
        self.at = first.at
        if len(group.views) == 1:
            source, copied = copy_of(first.array, first.found, self._stream)
            self.copied += copied
            self._put_copy(first, source)
            return
        if not group.is_gapless():
            raise FeatureNotSupportedError(
                f"these arrays of {type(first.array).__name__} are private views of one memory and have gaps, which "
                "its copy would expose: make them contiguous first"
            )
        device = first.array.device if first.found is None else description.device_of(first.array, first.found)
        nbytes = group.high - group.low
        kind = copy_kind(first.array) if first.found is None else "device"
        place = memory.allocate(kind, nbytes, device, None, isolated=False)
        keep = [view.keep for _, view in group.views]
        copy_out(
            first.array,
            first.found,
            group.views[0][1]._replace(address=group.low, nbytes=nbytes, keep=keep),
            place,
            device,
            self._stream,
        )
        self.copied += nbytes
        for each, view in group.views:
            covered = place.replace(offset=place.offset + view.address - group.low, nbytes=view.nbytes)
            self._put_copy(each, Source(covered, view.offset, view.shape, view.strides, view.dtype))

    def _put_copy(self, each: _Private, source: Source) -> None:
        work = self._work(each.array, each.found, source.covered.device)
        if work is not None:
            self._copying = (*self._copying, work)
        self._put(each.at, source, work)

    def _copy_on_host(self, storages: list[_Storage]) -> None:
        import numpy

        total, firsts = 0, []
        for group in storages:
            firsts.append(total + group.low % _ALIGNMENT if len(group.views) > 1 else total)
            total = -(-(firsts[-1] + group.nbytes) // _ALIGNMENT) * _ALIGNMENT
        place = memory.allocate("device", max(total, 1), Device(f"{adapters.HOST}:0"), None, isolated=False)
        for group, first in zip(storages, firsts, strict=True):
            several = len(group.views) > 1
            self.at = group.views[0][0].at
            whole_copied = group.nbytes > 0 and group.is_gapless()
            if whole_copied:
                _copy_bytes(array_of(place, (group.nbytes,), numpy.dtype("u1"), (1,), first), group)
            elif several:  # the bytes between the elements must not be read
                numpy.asarray(array_of(place, (group.nbytes,), numpy.dtype("u1"), (1,), first))[...] = 0
            for each, view in group.views:
                strides = view.strides if several else kept_strides(view.shape, view.strides, view.dtype.itemsize)
                at = (
                    view.address - group.low + view.offset
                    if several
                    else -extent(view.shape, strides, view.dtype.itemsize)[0]
                )
                target = array_of(place, view.shape, view.dtype, strides, first + at)
                if not whole_copied:
                    copy_elements(host_array(target), host_view(each.array, each.found))
                self._put(each.at, whole(target), self._work(self._private, None, target.device))
            self.copied += group.nbytes

    # --- the result

    def ranges(self, works: Sequence[Work], whole_allocations: bool = False) -> list[Range]:
        """Return the ranges to export. Each allocation has one range for its read-only arrays and one for its writable
        arrays. A range has the bytes that its arrays span or, with `whole_allocations`, the whole allocation. `works`
        lists the streams that readers wait for. The index of a stream is the number of its event in the message.
        """
        if not works or self._stream is not None:  # if the caller passed a stream, it orders all arrays
            return self.groups(_NO_EVENTS, 0 if works else -1, whole_allocations)
        events = {kind: works.index(work) if work in works else -1 for kind, work in self._produced.items()}
        return self.groups(events, -1, whole_allocations)
