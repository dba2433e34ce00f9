"""Makes the readers of an array wait for the stream that produces its content. A signal of an event marks the content
as complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, final
from weakref import ref

from xpushare._native import DONE, LOST
from xpushare.common.errors import InvalidArgumentError
from xpushare.core import event as events
from xpushare.core import queue as queues
from xpushare.core.device import Device, adapter_of, info_of
from xpushare.core.event import Opened
from xpushare.core.pickles import Implicit
from xpushare.core.queue import Work
from xpushare.sharing.handle import Handle

__all__ = ["Mark", "Order", "current_work", "finish", "mark", "work_on"]

_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`


def work_on(device: Device, stream: object, array: object = None) -> Work | None:
    """Return the queue over `stream`: another library's object, a DLPack number, or None for the current stream of the
    array's library. Returns None if `stream` is None and the device has no streams.
    """
    if isinstance(stream, Work):
        return stream
    if stream is None or (isinstance(stream, int) and not isinstance(stream, bool)):
        native = adapter_of(device).stream(info_of(device), stream, array)
        if native is None:
            if stream is None:
                return None
            raise InvalidArgumentError(f"{device} has no streams: stream is None, -1 or an xpushare Queue")
    else:
        native = stream
    found = adapter_of(device).adopt_queue(native)
    if found is None:
        raise InvalidArgumentError(f"{type(native).__name__} is not a stream that {device} knows")
    info, driver = found
    return Work(device if info == info_of(device) else _other(device, info), device.context, driver)


_lasting: Final[dict[tuple[int, type, int | None], tuple[Device, Work]]] = {}
"""A cache of `current_work` for streams that live as long as the process. It maps the id of the device, the type of the
array and the stream's `number` to the device and to its queue over the stream.
"""
os.register_at_fork(after_in_child=_lasting.clear)  # the parent's queues have no threads here


def current_work(device: Device, array: object, number: int | None = None) -> Work | None:
    """Return the queue over the stream that the library of `array` uses now, or None if the device has no streams.

    `number` is that stream's number in the library. It is None for an array of this package, which uses the device's
    default stream.
    """
    key = id(device), type(array), number  # with the type, since two libraries may number their streams alike
    known = _lasting.get(key)
    if known is not None:
        return known[1]
    work = work_on(device, None, array)
    if work is not None and work.driver.lasting:
        _lasting[key] = device, work
    return work


def _other(device: Device, info: Any) -> Device:
    from xpushare.core.device import known_device

    return known_device(adapter_of(device), info)


class Mark(NamedTuple):
    """The signal with which a producer's stream marks content as complete, and the event that it belongs to. Other
    processes can open the event as long as `export` exists.
    """

    export: Implicit
    point: int

    @property
    def handle(self) -> Handle:
        return self.export.handle


@final
class _Signalled:
    """The event that a queue signals for all arrays it produces, as long as no other process signals it."""

    __slots__ = ("event", "export", "point")

    def __init__(self, event: Opened) -> None:
        self.event = event
        # A weak reference: the export ends with the last handle that names it.
        self.export: Callable[[], Implicit | None] = _none
        self.point = 0

    def serves(self, device: Device) -> bool:
        """Return whether the queue can signal the event once more. The result is False if a signal was lost, since
        another signal would hide that. It is False if an importer has signalled, since the queue would have to wait for
        the importer's signal.
        """
        timeline = self.event.timeline
        slot = timeline.slot
        return (
            self.event.device is device
            and not timeline.foreign_process
            and slot.pending == self.point
            and slot.state(self.point) != LOST
        )


def _none() -> None:
    return None


def mark(work: Work, device: Device) -> Mark:
    """Make `work` signal its event once everything queued on it so far has finished."""
    kept: _Signalled | None = work.driver.signalled
    if kept is None or not kept.serves(device):
        kept = work.driver.signalled = _Signalled(events.create(device, None, True, False))
    point = kept.point = queues.signal(work, kept.event)
    export = kept.export()
    if export is None:
        export = Implicit(events.get, kept.event)
        kept.export = ref(export)
    made: Mark = _new(Mark, (export, point))
    return made


def finish(work: Work, device: Device) -> None:
    """Wait on the host until everything queued on `work` so far has finished."""
    point = mark(work, device).point
    signalled: _Signalled = work.driver.signalled
    events.wait(signalled.event, None, point)


@final
class Order:
    """Delays the readers of an opened array until the producer's content is complete. Signal number `point` of `event`
    marks the content as complete.
    """

    __slots__ = ("_event", "_point")

    def __init__(self, event: Opened, point: int) -> None:
        self._event = event
        self._point = point

    @property
    def device(self) -> Device:
        """The device of the readers."""
        return self._event.device

    def settled(self) -> bool:
        """Return whether the content is complete."""
        return self._event.timeline.slot.state(self._point) == DONE

    def before(self, work: Work) -> None:
        """From now on, work that is queued on `work` waits, on the device, until the content is complete."""
        queues.wait(work, self._event, self._point)

    def before_host(self) -> None:
        """Wait on the host until the content is complete. Raises `PeerLostError` if the producer died before its work
        had finished.
        """
        if not self.settled():
            events.wait(self._event, None, self._point)
