"""A process's end of a channel, and its open slots (`Loan` and `Frame`). Native code loans, sends, receives and
releases slots. This module makes the arrays over slots, the metadata and the error messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from xpushare import _native
from xpushare._native import ChannelEnd, FrameBase, LoanBase
from xpushare.arrays.copies import converted, values_of
from xpushare.channels.frames import decode_meta, encode_meta, rebuilt
from xpushare.channels.geometry import WRITERS_MOST
from xpushare.channels.survey import surveyed
from xpushare.common.elements import as_dtype, c_strides, check_dtype, dtype_words, stand_in_name
from xpushare.common.errors import ChannelFull, HandleExpiredError, InvalidArgumentError, PeerLostError
from xpushare.core import memory
from xpushare.core.declare import public
from xpushare.core.pickles import Implicit
from xpushare.objects.array import SharedArray, array_of, host_array
from xpushare.objects.lifecycle import Advised, advise

if TYPE_CHECKING:
    from xpushare.channels.frames import Layout
    from xpushare.channels.geometry import Geometry
    from xpushare.channels.groups import Place
    from xpushare.core.device import DeviceLike
    from xpushare.core.memory import Range

__all__ = ["End", "Frame", "Loan", "Moved", "brief_slot", "fill", "fill_tree", "prepared", "too_many",
           "too_many_writers"]  # fmt: skip


_MAKE_ROOM: Final = "close frames, create the channel with more slots, or with on_full='overwrite'"
_NEXT_READER: Final = "This writer can send again once a process has opened the channel"


class Moved(Exception):
    """The slots of a channel were freed when the process that made them ended. A reader that reconnects moves to the
    next channel of the same name.
    """


def too_many(title: str, members: int) -> InvalidArgumentError:
    more = "" if members >= _native.GROUP_MEMBERS else ", or create it with a larger members="
    return InvalidArgumentError(
        f"the {title} has {members} ends, and no room for more. Each Channel object that has it open is one, in "
        f"whatever process. Close objects that are not needed{more}"
    )


def too_many_writers(name: str, writers: int) -> InvalidArgumentError:
    there = f"{name!r} already has {writers} writer{'s' * (writers != 1)}"
    if writers >= WRITERS_MOST:
        return InvalidArgumentError(f"{there}, the most that a channel can have. Close one, or use another channel")
    return InvalidArgumentError(
        f"{there}, as many as it was created for. For another one, pass writers={writers + 1} to Channel.create"
    )


@final
class End(ChannelEnd):
    """An end of a channel, which is a writer or a reader. It lasts until the last of its loans and frames is gone."""

    __slots__ = ("geometry", "place", "points", "slots")

    place: Place
    geometry: Geometry
    slots: list[Range]
    points: Any
    """The points of a channel on a device with streams, or None."""

    def __new__(
        cls, place: Place, geometry: Geometry, label: str, mode: int, oldest: bool, writer: bool, reconnect: bool
    ) -> End:  # fmt: skip
        functions = End.refuse, End.encoded, End.signalled
        self = super().__new__(cls, place.native, label, mode, oldest, writer, reconnect, Loan, Frame, *functions)
        self.place = place
        self.geometry = geometry
        self.points = None
        slots, stride = place.ranges[1], geometry.stride
        self.slots = [
            slots.replace(offset=slots.offset + i * stride, nbytes=geometry.numbers.nbytes)
            for i in range(geometry.count)
        ]
        return self

    @property
    def plain(self) -> bool:
        """Whether the channel's frames are host arrays of one shape, and of a dtype that NumPy has."""
        dtype = self.geometry.dtype
        return self.points is None and dtype is not None and stand_in_name(dtype) is None

    def whole(self, slot: int, order: Any) -> SharedArray:
        """Return an array over a slot. It has the shape and dtype of the channel's frames or, if the channel fixes
        none, consists of bytes. `order`, unless it is None, puts the device work on the array in order.
        """
        place, shape, dtype = self.slots[slot], self.geometry.shape, self.geometry.dtype
        if dtype is None:
            made = array_of(place, (place.nbytes,), as_dtype("uint8"), (1,), 0)
        else:
            made = array_of(place, shape, dtype, c_strides(shape, dtype.itemsize), 0)
        if order is not None:
            made._order = order
        return made

    def view(self, slot: int) -> Any:
        """Return a NumPy array over a slot of a channel whose frames are host arrays of one shape and dtype. The first
        call makes the arrays of all slots.
        """
        arrays = self.arrays
        if arrays is None:
            if not self.plain:
                return host_array(self.whole(slot, None))
            import numpy

            arrays = [numpy.asarray(self.whole(each, None)) for each in range(self.geometry.count)]
            dtype = self.geometry.dtype
            self.use_arrays(arrays, dtype.kind in "biufc" and dtype.isnative)
        return arrays[slot][...]

    def lock_pages(self, device: DeviceLike) -> None:
        """Map the slots of a host channel a second time, page-locked by the driver of `device`, and use this mapping
        from now on.
        """
        slots = self.place.ranges[1]
        exported = Implicit(memory.get, slots)
        locked = memory.open_(exported.handle, device)
        moved = locked.offset - slots.offset
        self.slots = [locked.replace(offset=each.offset + moved, nbytes=each.nbytes) for each in self.slots]

    # --- native code calls these

    def refuse(self, outcome: int, wanted: str, timeout: float | None) -> NoReturn:
        """Raise the error for a failed attempt to loan a slot or receive a frame. `outcome` is the result of the native
        call, and `wanted` is "slot" or "frame".
        """
        name = self.place.name
        match outcome:
            case _native.CHANNEL_OVER:
                raise EOFError(f"the stream of {name!r} has ended")
            case _native.CHANNEL_LOST:
                raise PeerLostError(
                    f"the last writer of {name!r} (pid {self.lost_pid}) went without finish(). Open the channel with "
                    "reconnect=True to wait for the next one"
                )
            case _native.CHANNEL_MOVED if wanted == "frame":
                raise Moved
            case _native.CHANNEL_MOVED:
                raise HandleExpiredError(
                    f"the slots of {name!r} ended with the process that made them, and another process has created "
                    "the channel again: create or open it again, too"
                )
            case _native.CHANNEL_NO_ROOM:
                raise ChannelFull(f"readers of {name!r} have yet to read, or hold, all of its slots: {_MAKE_ROOM}")
            case _native.CHANNEL_TWICE:
                raise InvalidArgumentError("this thread has a loan of this object already: send or drop that first")
            case _native.CHANNEL_SAID_END:
                raise InvalidArgumentError("this writer has said finish(): create the channel again to send more")
            case _native.CHANNEL_NO_WRITER:
                raise too_many_writers(name, self.geometry.numbers.writers)
            case _native.CHANNEL_READERS_LEFT:
                raise BrokenPipeError(f"the last reader of {name!r} has closed it. {_NEXT_READER}")
            case _native.CHANNEL_READERS_LOST:
                raise PeerLostError(f"the last reader of {name!r} (pid {self.dead_reader}) has died. {_NEXT_READER}")
            case _ if wanted == "frame":
                raise self._no_frame(timeout)
            case _ if self.geometry.numbers.on_no_readers and not self.count()[0]:
                raise TimeoutError(f"no process opened {name!r} to read within {timeout:g} s")
            case _:
                raise TimeoutError(f"no {wanted} of {name!r} became free within {timeout:g} s: {_MAKE_ROOM}")

    def _no_frame(self, timeout: float | None) -> TimeoutError:
        """Return the error for a frame that did not arrive in time. If the readers hold as many frames as they may, the
        error says how to continue. Otherwise it says whether there is a writer.
        """
        slots, writers = self.geometry.numbers.slots, self.geometry.numbers.writers
        most = slots - 1 - writers
        members = surveyed(self.place)["members"]
        own = ((each["held"], each["lag"]) for each in members if each["member"] == self.member)
        held, lag = next(own, (0, 0))  # another thread may have closed this end
        late = f"no frame of {self.place.name!r} came within {timeout:g} s"
        if held >= most:
            who = f"this reader holds {most} frames"
        elif lag and sum(each["held"] for each in members) >= most:
            who = f"the next one is there, but the readers hold {most} frames"
        elif pids := sorted({each["pid"] for each in members if each["writes"] and not each["finished"]}):
            alive = f"the writer (pid {pids[0]}) is" if len(pids) == 1 else f"{len(pids)} writers are"
            return TimeoutError(f"{alive} alive, but {late}")
        else:
            return TimeoutError(f"{late}: it has no writer now. Have a process call xs.Channel.create")
        return TimeoutError(
            f"{late}: {who}, as many as readers may hold together with slots={slots}. Close frames, as `with` blocks "
            "and iteration do, or create the channel with more slots"
        )

    def encoded(self, meta: object) -> bytes:
        return encode_meta(meta, self.geometry.numbers.meta_nbytes)

    def signalled(self, order: Any) -> int:
        point: int = self.points.signalled(order)
        return point


class _Content(Advised):
    """The common base of `Loan` and `Frame`, which gives access to the array over their slot."""

    __slots__ = ()

    _end: End
    _slot: int

    def _array(self) -> Any:
        raise NotImplementedError

    def _one(self) -> SharedArray:
        """Return the array over the slot. Raises TypeError if the slot contains a tree of arrays."""
        made = self._array()
        if not isinstance(made, SharedArray):
            raise TypeError(f"this frame contains a {type(made).__name__} of arrays, not one array: use frame.array")
        return made

    def _converted(self, dtype: Any, copy: bool | None) -> Any:
        """Return the result of `__array__` for the cases that native code does not handle."""
        made, end = self._one(), self._end
        if end.plain and dtype is None and not copy:
            return end.view(self._slot)
        return made.__array__(dtype, copy)

    if not TYPE_CHECKING:

        def __setitem__(self, _at: object, _value: object) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__!r} object does not support item assignment: np.asarray(frame)[:] = ..."
            )

    def __dlpack_device__(self) -> Any:
        return self._one().__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._one().__dlpack__(**options)


@final
class Loan(LoanBase, _Content):
    """A slot for a writer to fill. Access it by `np.asarray(frame)`, `torch.from_dlpack(frame)` or `frame.array`.

    Attributes:
        meta: Plain data that readers get with the frame. Set it before the end of the block.
        seq: The number of the frame, after the block.

    Examples:
        >>> with xs.Channel.create("frames", 3) as writer:
        ...     with writer.loan() as frame:
        ...         np.asarray(frame)[:] = 0
        ...     frame.seq
        1
    """

    __slots__ = ()

    @property
    def array(self) -> SharedArray:
        """The slot as an array. It has the channel's shape and dtype, or consists of bytes if the channel was created
        with `nbytes`.
        """
        return self._array()

    def _array(self) -> SharedArray:
        if not self._open:
            raise InvalidArgumentError(
                "this frame is not on loan: it was sent, or its block has not begun. Use `with ch.loan() as frame:`"
            )
        end = self._end
        order, made = self._order, self._made
        if made is None:
            if end.points is not None and order is None:
                order = end.points.before_writing(end, self._slot)
                self._order = order
            made = end.whole(self._slot, order)
            self._made = made
        if order is not None:
            made._order = order  # reading the array on the host has removed it
        found: SharedArray = made
        return found

    def __repr__(self) -> str:
        name = self._end.place.name
        if self.seq:
            return f"<Loan {self.seq} of {name!r} sent>"
        return f"<Loan of {name!r}{' open' if self._open else ''}>"


advise(
    Loan,
    close="leaving its `with` block sends the frame. If the block raises, nothing is sent",
    send="leaving its `with` block sends the frame",
)


def prepared(end: End, array: Any) -> Any:
    """Return an array in the form that `fill` takes. Raises `InvalidArgumentError` if its shape or dtype is not that of
    the channel's frames.
    """
    geometry = end.geometry
    if end.points is not None and (source := end.points.source_of(array, geometry)) is not None:
        return source
    values = values_of(array)
    if values is None:
        try:
            values = converted(array, array, None)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"frames of this channel are {geometry.shape} {dtype_words(geometry.dtype)}, not "
                f"{type(array).__name__}: {error}"
            ) from error
    if values.shape != geometry.shape or values.dtype != geometry.dtype:
        given = f"{values.shape} {dtype_words(values.dtype)}"
        if values.shape == geometry.shape:
            advice = f"convert it by np.asarray(x, {dtype_words(geometry.dtype)!r})"
        else:
            advice = "pass an array of that shape, or create the channel with nbytes=, for any shape and dtype"
        raise InvalidArgumentError(
            f"frames of this channel are {geometry.shape} {dtype_words(geometry.dtype)}, not {given}: {advice}"
        )
    check_dtype(values.dtype)  # two that differ in their metadata are equal
    return values


def fill(loan: Loan, content: Any) -> None:
    """Copy an array into the slot of a loan. `content` is a result of `prepared`."""
    end = loan._end
    if end.points is None:
        end.view(loan._slot)[...] = content
    else:
        end.points.fill(loan, content)


def fill_tree(loan: Loan, layout: Layout) -> None:
    """Copy the arrays of a tree into the slot of a loan."""
    loan._text = layout.text
    loan._nbytes = layout.nbytes
    end = loan._end
    if end.points is not None:
        end.points.store(loan, layout.copies)
        return
    import numpy

    slot = numpy.asarray(end.whole(loan._slot, None))
    for values, offset in layout.copies:
        target = numpy.ndarray(values.shape, values.dtype, slot, offset)
        target[...] = values


@final
class Frame(FrameBase, _Content):
    """A frame that a reader holds. Access it by `np.asarray(frame)`, `torch.from_dlpack(frame)` or `frame.array`.

    Once the frame is closed, its slot may be reused, and existing views of the slot then show a later frame. A frame
    that is garbage-collected is closed, too, so keep the frame as long as you use views of it. If a reader writes to a
    frame, other readers see the change.

    Attributes:
        seq: The number of the frame in the channel, from 1 on.
        missed: How many frames were overwritten before this reader saw them, since it opened the
            channel. In mode "one" this counts for all readers in that mode.
        gap: How many frames were missed between this reader's previous frame and this one. It is 0 in `failed()`.
        time_ns: The time at which the frame was sent, in nanoseconds of `CLOCK_MONOTONIC`. `time.monotonic_ns()` has
            the same clock in all processes of a machine.
        deliveries: In mode "one", how often the frame has been delivered, including this delivery.
        writer: The pid of the process that sent the frame, in that process's own pid namespace.
        closed: Whether the frame is closed.

    Examples:
        >>> with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader:
        ...     seq = writer.send([1.0, 2.0, 3.0], meta="first")
        ...     frame = reader.receive()
        ...     frame.seq, frame.meta, frame.missed
        (1, 'first', 0)
    """

    __slots__ = ()

    @property
    def meta(self) -> Any:
        """The metadata that the writer sent with the frame, or None."""
        return decode_meta(self._meta)

    @property
    def array(self) -> Any:
        """The array, or the tree of arrays, in the slot."""
        return self._array()

    def _array(self) -> Any:
        self.__enter__()  # raises if the frame is closed
        end = self._end
        order, made = self._order, self._made
        if made is None:
            if end.points is not None:
                order = end.points.before_reading(self)
                self._order = order
            text, slot = self._text, self._slot
            if text:
                made = rebuilt(end.slots[slot].replace(nbytes=self._nbytes), text, order)
            else:
                made = end.whole(slot, order)
            self._made = made
        if order is not None and isinstance(made, SharedArray):
            made._order = order  # reading the array on the host has removed it
        return made

    def __repr__(self) -> str:
        return f"<Frame {self.seq} of {self._end.place.name!r}{' closed' if self.closed else ''}>"


def brief_slot(held: Loan | Frame) -> str:
    """Return how a trace shows a frame, the same in every process: the channel's name and the frame's number."""
    name = held._end.place.name
    return f"{name} {held.seq}" if held.seq else name


public(
    Loan,
    brief=brief_slot,
    outcome=lambda loan, _result: {"frame": brief_slot(loan)} if loan.seq else {},
    __exit__="Loan.send",
)
public(Loan, __enter__="Channel.loan")
public(Frame, "close", brief=brief_slot, __exit__="Frame.close")
