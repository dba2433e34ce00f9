"""Ordering of device work for channels on devices. The device itself waits until earlier users of a slot have finished.

Each end of a channel, which is a writer or a reader, has an event, whose handle is in the channel's memory. When a
writer sends a frame, or a reader closes a frame, each queue that has worked on the frame signals the end's event. The
slot records the number of the signal. The slot's next user makes its own queues wait for these signals, so the host
does not wait for a device.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from xpushare._native import DONE, LOST, PENDING, Span, left
from xpushare.arrays import description
from xpushare.arrays.copies import Spanned, copy_out, lies_on_host, native_stream, own_array, spanned
from xpushare.common.elements import c_strides
from xpushare.common.errors import HandleExpiredError, PeerLostError, XpuShareError
from xpushare.core import event as events
from xpushare.core import memory
from xpushare.core import queue as queues
from xpushare.core.device import Device
from xpushare.core.event import Opened
from xpushare.core.ordering import work_on
from xpushare.core.pickles import Implicit
from xpushare.core.queue import Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpushare.channels.ends import End, Frame, Loan
    from xpushare.channels.geometry import Geometry

__all__ = ["After", "Points"]

_DEATH: Final = 1.0  # seconds until a death is certainly noticed


@final
class After:
    """Orders the device work on a frame's array. This work first waits for the signals of the slot's earlier users.
    `works` records the queues that worked on the array, since the slot's next user has to wait for them.
    """

    __slots__ = ("_device", "_points", "works")

    def __init__(self, device: Device, points: Iterable[tuple[Opened, int]]) -> None:
        self._device = device
        self._points = list(points)
        self.works: list[Work] = []

    @property
    def device(self) -> Device:
        return self._device

    def settled(self) -> bool:
        """Return False, so that every queue is recorded in `works`, even if it has nothing to wait for."""
        return False

    def _pending(self) -> list[tuple[Opened, int]]:
        return [each for each in self._points if each[0].timeline.slot.state(each[1]) != DONE]

    def before(self, work: Work) -> None:
        if work not in self.works:
            self.works.append(work)
            for event, point in self._pending():
                queues.wait(work, event, point)

    def before_host(self) -> None:
        """Block until the slot's earlier users, and the queues recorded in `works`, have finished their device work."""
        for event, point in self._pending():
            events.wait(event, None, point)
        for work in self.works:
            queues.synchronize(work, None)


class _Source(NamedTuple):
    """An array in device memory, with its description (None for a `SharedArray`) and its bytes."""

    array: Any
    found: description.Described | None
    span: Spanned


@final
class Points:
    """The events of a device channel's ends, and the signals for which each user of a slot has to wait."""

    def __init__(self, end: End) -> None:
        self._device: Final = end.geometry.device
        self._own: Final = end.member
        self._event: Final = events.create(self._device, None, True, False)
        self._export: Final = Implicit(events.get, self._event)
        self._events: Final[dict[tuple[int, int], Opened | None]] = {}
        end.set_event(bytes(self._export.handle))
        for number in range(end.geometry.numbers.ends):  # now, since a writer may exit later and leave frames behind
            since = end.since(number)
            if since:
                self._event_of(end, number, since)

    def _event_of(self, end: End, number: int, since: int) -> Opened | None:
        """Return the event of an end. `since` identifies the end, since a later one may have the same number. Return
        None if the end has left or died, and its device work has ended.
        """
        if number == self._own:
            return self._event
        key = number, since
        if key not in self._events:
            found: Opened | None = None
            if end.since(number) == since:
                raw = end.event(number)
                if raw is None:
                    return None  # it has just begun
                with contextlib.suppress(XpuShareError):
                    found = events.open_(raw, self._device, None, False)
            self._events[key] = found
        return self._events[key]

    def stands(self, frame: Frame) -> bool:
        """Return False if the content of a frame is lost, because the writer died before its device work had finished.
        Otherwise return True, even if that work is still running.
        """
        end, point, number, since = frame._end, frame._point, frame._point_by, frame._since
        if not point:
            return True
        event = self._event_of(end, number, since)
        if event is None:
            return False
        state = event.timeline.slot.state(point)
        gone = end.since(number) != since or end.pid(number) < 0
        if state == PENDING and gone:  # the writer's death may not have been noticed yet
            try:
                events.wait(event, _DEATH, point)
            except PeerLostError:
                return False
            except TimeoutError:
                pass
        return state != LOST

    def before_reading(self, frame: Frame) -> After:
        point = frame._point
        event = self._event_of(frame._end, frame._point_by, frame._since) if point else None
        return After(self._device, [] if event is None else [(event, point)])

    def before_writing(self, end: End, slot: int) -> After:
        if end.place.ended():
            raise HandleExpiredError(
                f"the slots of {end.place.name!r} ended with the process that made them: create the channel again"
            )
        found = []
        for number, point in end.reads(slot):
            event = self._event_of(end, number, end.since(number))
            if event is not None and event.timeline.slot.state(point) != LOST:
                found.append((event, point))
        return After(self._device, found)

    def signalled(self, order: After) -> int:
        """Make the queues that worked on a frame signal this end's event. Returns the number of the last signal, or
        0 if no queue has worked on the frame.
        """
        point = 0
        for work in order.works:
            point = queues.signal(work, self._event)
        return point

    def source_of(self, array: Any, geometry: Geometry) -> _Source | None:
        """Return an array in device memory in the form that `fill` takes. Return None if the array lies elsewhere, or
        does not have the shape and dtype of the channel's frames.
        """
        own = own_array(array)
        source, found = description.described_to_copy(array) if own is None else (own, None)
        if (own is None and found is None) or lies_on_host(source, found):
            return None
        here = own.device if own is not None else description.device_of(source, found)  # type: ignore[arg-type]
        span = spanned(source, found)
        ordered = span.strides == c_strides(span.shape, span.dtype.itemsize)  # the slot gets all bytes, as they lie
        if here != self._device or not ordered or (span.shape, span.dtype) != (geometry.shape, geometry.dtype):
            return None
        return _Source(source, found, span)

    def fill(self, loan: Loan, content: Any) -> None:
        """Copy into the slot what `source_of` returned, on the stream of the array's library, or a NumPy array."""
        if not isinstance(content, _Source):
            self.store(loan, [(content, 0)])
            return
        loan.array  # noqa: B018 - makes the order
        array, found, span = content
        work = work_on(self._device, native_stream(None, found, array, self._device), array)
        if work is None:
            work = queues.create(self._device, None)
        loan._order.before(work)
        copy_out(array, found, span, loan._end.slots[loan._slot], self._device, work)

    def store(self, loan: Loan, parts: list[tuple[Any, int]]) -> None:
        """Copy NumPy arrays into the slot. Each item of `parts` is an array and its offset in the slot."""
        import numpy

        loan.array  # noqa: B018 - makes the order
        place = loan._end.slots[loan._slot]
        if place.allocation.host_accessible:
            loan._order.before_host()
            for values, offset in parts:
                base: Any = Span(place.address + offset, max(values.nbytes, 1), False, place.hold()[0])
                numpy.copyto(numpy.ndarray(values.shape, values.dtype, base), values)
            return
        work = queues.create(self._device, None)
        loan._order.before(work)
        for values, offset in parts:
            if values.nbytes:
                stage = memory.allocate("host", values.nbytes, self._device, None)
                base = Span(stage.address, values.nbytes, False, stage.hold()[0])
                numpy.copyto(numpy.ndarray(values.shape, values.dtype, base), values)
                work.driver.copy(place.address + offset, stage.address, values.nbytes, (stage, place))

    def close(self) -> None:
        """Wait until this end's device work on its frames has finished. Once the end has left, a later end may get its
        number, and the work of the two could no longer be distinguished.
        """
        if left():
            return  # the exit has waited for queues, and has detached the event
        slot = self._event.timeline.slot
        with contextlib.suppress(XpuShareError):
            events.wait(self._event, None, slot.pending)
