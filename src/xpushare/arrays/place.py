"""Finds the memory of the arrays that `share` exports, and the streams that produce their content."""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any, Final, final

from xpushare import adapters
from xpushare._native import KINDS_MOST, Kinds, Leaves, Recogniser
from xpushare.arrays.creation import new_array
from xpushare.common.aspects import Aspect
from xpushare.common.elements import extent
from xpushare.common.errors import FeatureNotSupportedError, HandleExpiredError, InvalidArgumentError, XpuShareError
from xpushare.core import memory
from xpushare.core.device import Context, Device, adapter_of, info_of
from xpushare.core.memory import Range
from xpushare.core.pickles import forwards
from xpushare.core.resources import Allocation
from xpushare.objects.array import unsettled
from xpushare.objects.lifecycle import use
from xpushare.objects.message import NDIM_MAX, ONE_ARRAY, is_unordered
from xpushare.sharing import node
from xpushare.sharing.handle import COUNTED, PICKLED, Handle, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpushare.arrays.copies import Source
    from xpushare.arrays.description import Described
    from xpushare.arrays.private import Private
    from xpushare.core.queue import Work

__all__ = ["KINDS", "OWN", "Placing", "passed_on"]

_NO_EVENTS: Final[dict[int, int]] = {}
_NO_STREAMS: Final[list[Work]] = []  # these two are replaced, not changed
_NO_WORK: Final[dict[int, Work]] = {}
_address: Final = operator.attrgetter("address")
KINDS: Final = Kinds()
os.register_at_fork(after_in_child=KINDS.clear)  # the parent's streams have no threads here


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
    given: Any = None  # the stream that the caller names
    _ordered = True
    _produced = _NO_WORK  # by kind: the producer of its arrays
    copying: tuple[Work, ...] = ()  # streams that copy shared arrays
    at = 0  # the index of the array whose memory is being determined, for error messages
    _known: Sequence[Allocation] = ()

    # Of arrays that native code does not place, from the first one on:
    _passed_on: dict[tuple[bytes, int, bool], Range]  # by handle, allocation and access
    _current: dict[Any, Work | None]  # streams that arrays are produced on
    _private: list[Private]

    def ask(self, copy: bool, stream: Any, lasting: bool) -> None:
        """Set the options of `share` that apply to the arrays. `lasting` is as for `passed_on`."""
        self.special = True
        self._copy = copy
        self._lasting = lasting
        self.given = stream
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
                self.put_source(index, *self._describe(index))
        if self._private:
            from xpushare.arrays.private import copy_private

            copy_private(self, self._private)

    def _settle(
        self, number: int, array: Any, device: Device | None, element: tuple[int, int, int, int, int] | None
    ) -> None:
        """Give native code the device and the producing stream that all arrays of one kind have. Does nothing if arrays
        of this kind have to be described one by one. `number` is the kind's number, and `array` is one of its arrays.
        """
        if device is None:
            from xpushare.arrays import description
            from xpushare.arrays.meaning import refusal

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
        from xpushare.core.ordering import current_work

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
        from xpushare.arrays import description

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
        from xpushare.arrays import description
        from xpushare.arrays.copies import own_array, whole
        from xpushare.arrays.private import Private

        array = self.arrays[index]
        own = own_array(array)
        if own is not None:
            found = None
            source = whole(own)
            place = source.covered
            if place.borrowed or not isinstance(place.allocation, Allocation):
                if self._copy:  # neither imported memory nor a VirtualRange can get a handle here
                    self._private.append(Private(index, own, None))
                    return None, None
                memory.expect_exportable(place, place.borrowed)
            work = self.work_of(array, None, place.device)
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
            self._private.append(Private(index, array, found))
            return None, None
        return self._pass_on(source, self.work_of(array, found, source.covered.device))

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
            from xpushare.core.ordering import finish

            finish(work, place.device)
        return source._replace(covered=covered, offset=place.offset + source.offset - covered.offset), None

    def _in_place(self, array: Any, found: Described, dtype: Any) -> Source:
        """Return the memory of another library's array, to be shared without a copy. Raises `FeatureNotSupportedError`
        if the memory cannot be shared. With `copy=True`, also raises `InvalidArgumentError` if another process owns it.
        """
        from xpushare.arrays import description
        from xpushare.arrays.copies import Source, whole

        low, high = extent(found.shape, found.strides, found.itemsize)
        if low == high:  # an array without bytes has no private memory
            return whole(new_array(found.shape, dtype, description.device_of(array, found)))
        place = description.range_at(found.located(), array, self._known)
        if place.borrowed and self._copy:
            raise InvalidArgumentError("this process does not own the memory")  # it is copied
        if self._copy:  # then the driver may refuse it
            memory.prepared_by(place.allocation, node.current().table(), False)
        return Source(place, -low, found.shape, found.strides, dtype)

    def put_source(self, index: int, source: Source | None, work: Work | None) -> None:
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

    def work_of(self, array: Any, found: Described | None, device: Device) -> Work | None:
        """Return the stream that produces the array's content, or None if there is no stream to wait for."""
        stream = self.given
        if not self._ordered or (stream is None and found is None and not adapter_of(device).has_streams):
            return None  # an array of ours is written by whatever works on its device
        from xpushare.arrays.copies import native_stream
        from xpushare.core.ordering import work_on
        from xpushare.objects.queue import Queue

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
            if self.given is None:
                raise
            work = None  # a stream that was named is of one of the devices: see `works`
        work = self._distinct(work)
        if key is not None:
            self._current[key] = work
        return work

    def works(self) -> list[Work]:
        """Return the streams that readers have to wait for."""
        if self.given is None and not self.copying:
            busy: list[Work] = []
            for work in self.streams:
                if not work.driver.idle():
                    busy.append(work)  # noqa: PERF401 - without a function of its own
            return busy
        if self.named and not self.streams and self._current:
            device = next(iter(self._current))
            from xpushare.core.ordering import work_on

            work_on(device, self.given)  # raises the error if it is not a stream
        return list(filter(self._busy, self.streams))

    def _busy(self, work: Work) -> bool:
        from xpushare.objects.queue import Queue

        return isinstance(self.given, Queue) or work in self.copying or not work.driver.idle()

    # --- the result

    def ranges(self, works: Sequence[Work], whole_allocations: bool = False) -> list[Range]:
        """Return the ranges to export. Each allocation has one range for its read-only arrays and one for its writable
        arrays. A range has the bytes that its arrays span or, with `whole_allocations`, the whole allocation. `works`
        lists the streams that readers wait for. The index of a stream is the number of its event in the message.
        """
        if not works or self.given is not None:  # if the caller passed a stream, it orders all arrays
            return self.groups(_NO_EVENTS, 0 if works else -1, whole_allocations)
        events = {kind: works.index(work) if work in works else -1 for kind, work in self._produced.items()}
        return self.groups(events, -1, whole_allocations)


# --- passing on arrays in another process's memory, for `share` and `publish`


OWN: Final = "xs.attach(handle, own=True) makes this process an owner, which can export the memory itself"


def passed_on(place: Range, read_only: bool, lasting: bool) -> Range:
    """Return the memory to export if the caller shares `place`, which this process opened by a handle.

    If the process that made the handle is alive, the result is all memory behind that handle, which is then passed on.
    Memory that arrived in a pickle is an exception. This process exports such memory itself if the other process has
    ended or `lasting` is true. The result is then `place`. Raises `HandleExpiredError` if the handle has expired.
    """
    handle = place.handle
    assert handle is not None
    alive = forwards(handle)
    if fields_of(handle).flags & PICKLED and (lasting or not alive) and _owned_now(place, handle):
        return place
    if not alive:
        raise HandleExpiredError(
            f"the process that shared this (pid {fields_of(handle).pid}) has exited, and only it could pass this on: "
            f"{OWN}, even after that"
        )
    _expect_live(handle)
    if read_only and not handle.read_only:
        raise InvalidArgumentError(
            f"memory of another process is passed on by its original handle, which is not read-only: {OWN}"
        )
    fields, device = fields_of(handle), place.device
    return Range(
        place.allocation, fields.offset, fields.nbytes, device, place.context, handle.read_only, handle, place.lease
    )


def _owned_now(place: Range, handle: Handle) -> bool:
    """Make this process an owner of memory that arrived in a pickle. Returns False if the device or driver does not
    support that.
    """
    allocation = place.allocation
    if not allocation.owned:
        if not allocation.imported or not place.device.has(Aspect.outlives_exporter):
            return False
        try:
            allocation.driver.export(place.read_only)
        except FeatureNotSupportedError:
            return False
        peer = node.current().peers.known(fields_of(handle).cookie)
        if peer is not None:
            peer.domain.own(fields_of(handle).entry)
        allocation.owned = True
    return True


def _expect_live(handle: Handle) -> None:
    """Raise `HandleExpiredError` if the handle has expired."""
    here, fields = node.current(), fields_of(handle)
    if here.is_own(fields.cookie):
        here.table().find(handle)
        domain = here.table().domain
    else:
        peer = here.peers.known(fields.cookie)
        assert peer is not None  # its exporter is alive
        peer.expect_live(handle)
        domain = peer.domain
    if fields.flags & COUNTED and not domain.opens_left(fields.entry):
        raise HandleExpiredError(
            f"the handle that this memory came by was shared with opens=, and all its opens are used: {OWN}"
        )
