"""Opens the memory of a message, and the events that the readers of its arrays wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from xpushare._native import MessageState
from xpushare.core import event as events
from xpushare.core import memory
from xpushare.core.declare import made, watchers
from xpushare.core.opening import give_open
from xpushare.core.ordering import Order
from xpushare.sharing import node
from xpushare.sharing.handle import fields_of

if TYPE_CHECKING:
    from xpushare.core.device import DeviceLike
    from xpushare.core.memory import Range
    from xpushare.core.queue import Work
    from xpushare.objects.message import Content

__all__ = ["Orders", "Part", "arrays_of", "give_back", "open_message"]

Orders = dict[tuple[int, int], Order]  # by the numbers of the memory and the event


class Part(NamedTuple):
    """The arrays that are selected from a message, and the memory that they need."""

    arrays: set[int]  # indices of the selected arrays
    memory: list[int]  # numbers of their memory, and that of the first memory

    def chosen(self, arrays: list[Any]) -> list[Any]:
        """Return the list with None in place of each array that is not selected."""
        return [each if index in self.arrays else None for index, each in enumerate(arrays)]


def open_message(
    message: MessageState,
    device: DeviceLike | None,
    ordered: bool,
    work: Work | None,
    opened: list[Range],
    part: Part | None = None,
    own: bool = False,
) -> Orders:
    """Open the memory of a message, and return the signals that readers of its arrays have to wait for.

    Each opened range is appended to `opened`, even if an error follows. If `ordered` is true, readers wait for the
    streams that produce the content, and later operations of `work` wait for them, too. If `part` is given, only the
    memory of the arrays in that part is opened. If `own` is true, this process can export the memory afterwards.
    """
    handles, at, export = message._memory, None, None
    if len(handles) > 1 and (here := node.current()).is_own(fields_of(handles[0]).cookie):
        export = here.table().find(handles[0])  # it holds the other exports, and may end while they are opened
    if part is not None:
        handles = tuple(map(handles.__getitem__, part.memory))
        at = {number: index for index, number in enumerate(part.memory)}
    memory.open_all(handles, device, opened, own)
    del export
    orders: Orders = {}
    events_of = message._events if ordered else ()
    if events_of:
        known: dict[tuple[int, int], Order] = {}  # by the event's number and the id of the device
        for place, event in message._marks:
            if at is not None and place not in at:
                continue
            on = opened[place if at is None else at[place]].device
            order = known.get((event, id(on)))
            if order is None:
                mark, point = events_of[event]
                order = known[event, id(on)] = Order(events.open_(mark, on, signals=False), point)
                if work is not None:
                    order.before(work)
            orders[place, event] = order
    return orders


def arrays_of(
    message: MessageState, opened: list[Range], content: Content, orders: Orders, part: Part | None = None
) -> list[Any]:
    """Make the arrays of a message, whose memory is open. If `part` is given, None takes the place of each array
    outside the part.
    """
    ranges: Any = opened
    if part is not None:
        ranges = [None] * len(message._memory)
        for number, each in zip(part.memory, opened, strict=True):
            ranges[number] = each
    arrays: list[Any] = message._arrays(ranges, content.dtypes, orders)
    if part is not None:
        arrays = part.chosen(arrays)
    if watchers:
        for array in arrays:
            if array is not None:
                made(array)
    return arrays


def give_back(message: MessageState, opened: list[Range], part: Part | None = None) -> None:
    """After a failed attempt to open a message, allow as many more opens as the attempt used up. Empties `opened`.
    `part` is as for `open_message`.
    """
    handles = message._memory
    if part is not None:
        handles = tuple(map(handles.__getitem__, part.memory))
    for each in handles[: len(opened)]:  # the message of a pickle counts opens of all, any other only of the first
        give_open(each)
    opened.clear()  # released here, not when the traceback is
