"""`Channel`, which sends frames from writers to readers through slots in shared memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from errno import EBUSY, ENOSPC
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Never, NoReturn, Self, TypeVar, final

from xpushare import _native
from xpushare.adapters import HOST
from xpushare.arrays.changes import Awaitable, Changes, Patience, woken_by
from xpushare.channels import groups
from xpushare.channels.ends import (
    End,
    Frame,
    Loan,
    Moved,
    brief_slot,
    fill,
    fill_tree,
    prepared,
    too_many,
    too_many_writers,
)
from xpushare.channels.frames import laid_out
from xpushare.channels.geometry import Geometry, choice, describe, read_geometry, wanted
from xpushare.channels.groups import CHANNEL, Group, Place
from xpushare.channels.survey import channels, surveyed
from xpushare.common.errors import ForkError, InvalidArgumentError, InvalidHandleError, XpuShareError
from xpushare.core import event as events
from xpushare.core import memory
from xpushare.core.declare import public
from xpushare.core.device import Device
from xpushare.core.memory import FORK_ADVICE, Range
from xpushare.objects.lifecycle import CLOSED, Advised, advise
from xpushare.sharing import layout
from xpushare.sharing.handle import NAME_LENGTH_MAX, Named, decode_text
from xpushare.sharing.refusals import OF_ARRAY
from xpushare.timeline.waiting import readable

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from xpushare.common.fds import OwnedFd
    from xpushare.core.device import DeviceLike

__all__ = ["Channel", "Frame", "Loan", "lock_pages", "slots_of"]

_MODES: Final = {"all": 1, "newest": 2, "one": 3}
_LOOK: Final = 1.0

_T = TypeVar("_T")


@final
class _Closed:
    """Replaces the `End` of a channel object that was closed."""

    def __getattr__(self, _name: str) -> NoReturn:
        raise InvalidArgumentError(f"this Channel is closed{CLOSED}")


_CLOSED: Final[Any] = _Closed()


@final
class Channel(Advised, Awaitable):
    """Sends frames (arrays or trees of arrays) from writers to readers, through slots in shared memory of any device.

    `create` makes a channel and its first writer, or joins one as a further writer. `open` makes a reader. Writers fill
    a slot in place with `loan`, or copy into one with `send`. A reader holds a frame until it closes the frame. All
    readers together can hold at most `slots - 1 - writers` frames.

    The stream ends when all remaining writers have called `finish()`. Iteration then stops, and `receive` raises
    `EOFError`. If the last writer exits without `finish()`, readers get the frames that were sent, and then
    `PeerLostError`.

    Examples:
        >>> with xs.Channel.create("frames", (2, 2)) as writer, xs.Channel.open("frames") as reader:
        ...     seq = writer.send(np.ones((2, 2)), meta={"t": 0.5})
        ...     with reader.receive() as frame:
        ...         float(np.asarray(frame).sum()), frame.meta
        (4.0, {'t': 0.5})
    """

    __slots__ = {
        **dict.fromkeys(("__weakref__", "_changes", "_end", "_label", "_mode", "_watched")),
        "closed": "Whether `close` was called.",
        "name": "The name of the channel. It begins with a dot if its maker passed None.",
    }

    name: str
    """The channel's name. If it was created with the name None, this is a generated name that begins with a dot."""
    closed: bool
    """Whether `close` was called."""
    _changes: Changes | None
    _end: End
    _label: str
    _mode: int
    _watched: Place | None  # the channel whose memory `_changes` watches; None if it watches the folder

    def __init__(self, *args: Never, **options: Never) -> None:  # noqa: ARG002
        raise TypeError("a Channel is made by Channel.create and Channel.open")

    # --- making

    @classmethod
    def create(
        cls,
        name: str | None,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        *,
        nbytes: int | None = None,
        device: DeviceLike = "native_cpu:0",
        slots: int = 8,
        on_full: Literal["block", "overwrite", "raise"] = "block",
        on_no_readers: Literal["drop", "block", "raise"] = "drop",
        history: int = 0,
        writers: int = 1,
        meta_nbytes: int = 512,
        redeliver: int = 3,
        members: int = 128,
        label: str | None = None,
    ) -> Self:
        """Make a channel and return its first writer. If the channel exists, join it as another writer.

        If all writers of an existing channel have exited, the new writer continues with the same slots and readers.

        Args:
            name: 1 to 128 of the characters `A-Z a-z 0-9 . _ -`, not beginning with a dot. A channel with the name None
                can be opened only by its `handle`.
            shape: Shape of every frame.
            dtype: Type of the elements of every frame, by default float64.
            nbytes: The largest size of a frame, instead of `shape`. Each frame may then be any array or tree of at most
                this size.
            device: Where the slots lie. The default is the host, even if there is a GPU.
            slots: The number of slots, each of which holds one frame: from `writers` + 2 to 4,092.
            on_full: The behaviour of a writer if no slot is free. A slot is not free while its frame is held, or still
                has to be read in mode "all" or "one". The writer can "block", "overwrite" the oldest frame that is not
                held, or "raise" `ChannelFull`.
            on_no_readers: The behaviour of a writer if there is no living reader, in any mode. The frames can "drop",
                the writer can "block" until there is a reader, or it can "raise": it waits for the first reader, and
                raises after the last one has gone. Use "block" for jobs, since "drop" loses those that are sent before
                the first worker has opened the channel.
            history: How many of the last frames writers never overwrite, so that readers opened with `start="oldest"`
                get them: from 0 to `slots` - `writers` - 1. Such readers get older frames, too, if their slots were not
                needed yet.
            writers: How many processes may write at a time: from 1 to 64.
            meta_nbytes: The largest size of the metadata of a frame, in bytes, at most 1 MiB.
            redeliver: After this many deliveries that no reader has finished, a frame goes to `failed()`. 0 means no
                limit.
            members: How many writers and readers may have the channel open at a time: from `writers` + 1 to 1,024. Each
                Channel object is one.
            label: The name of this writer in `ls`, at most 56 bytes.

        Returns:
            The writer. To receive, open the channel with `Channel.open`.

        Raises:
            InvalidArgumentError: The channel already has its maximum of writers, or of writers and readers, it was
                created with different options, or an option is invalid.
            TimeoutError: A stopped process is about to remove the channel of this name.
            OutOfMemoryError: There is not enough memory for the slots.

        Examples:
            >>> with xs.Channel.create("camera", (480, 640, 3), "uint8", slots=4) as camera:
            ...     camera
            <Channel 'camera' of (480, 640, 3) uint8, slots=4, writers=1 on native_cpu:0>
        """
        geometry = wanted(
            shape,
            dtype,
            nbytes,
            Device(device),
            slots,
            on_full,
            on_no_readers,
            history,
            writers,
            meta_nbytes,
            redeliver,
            members,
        )
        label = groups.check_label(label)
        name = groups.check_name(name)

        def make() -> Group:
            words = memory.allocate("host", _native.Group.channel_nbytes(geometry.packed), "native_cpu:0", None)
            group: Group | None = None
            try:
                ranges = [words, memory.allocate("device", geometry.total, geometry.device, None)]
                group = Group(_native.GROUP_CHANNEL, ranges, _native.GROUP_MAKE, geometry.numbers.ends)
                group.native.channel_begin(geometry.packed, geometry.text)
                return group
            finally:
                del words, group  # otherwise they would last as long as the exception

        def join(place: Place) -> Self:
            if unlike := geometry.unlike(read_geometry(place)):
                raise InvalidArgumentError(
                    f"the channel {name!r} is there with other frames or slots: {'; '.join(unlike)}. Create it with "
                    "the same, or under another name"
                )
            return cls._joined(place, geometry, label, mode=0, oldest=False, writer=True, reconnect=False)

        made = groups.meet(CHANNEL, name, make, join)
        assert made is not None
        return made

    @classmethod
    def open(
        cls,
        name_or_handle: str | bytes,
        *,
        mode: Literal["all", "newest", "one"] = "all",
        start: Literal["next", "oldest"] = "next",
        reconnect: bool = False,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Self:
        """Open a channel as a reader. Waits until a process has created it.

        The result can also send frames, unless the channel already has its maximum of writers.

        Args:
            name_or_handle: The name, or the `handle` of a channel.
            mode: A reader in mode "all" gets every frame, and one in mode "newest" only the latest. Each frame goes to
                only one of the readers in mode "one".
            start: Whether to begin with the "next" frame, or with the "oldest" frame that is still in a slot.
            reconnect: Whether to wait for another writer if the last writer has died.
            timeout: Seconds to wait for the channel. None waits without a limit, and logs a warning after a while.
            label: The name of this reader in `ls`.

        Returns:
            The reader.

        Raises:
            TimeoutError: No process has created the channel in time, or another process was in the way. The message
                says which.
            InvalidHandleError: The bytes are not a handle of a channel.
            InvalidArgumentError: The name or an option is invalid, or the channel has as many writers and readers as it
                was created for: 128, or `members`.

        Examples:
            >>> with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames", timeout=5) as reader:
            ...     reader.name
            'frames'
        """
        number = choice("mode", mode, _MODES)
        oldest = bool(choice("start", start, {"next": 0, "oldest": 1}))
        name = _name_of(name_or_handle)
        seconds = events.timeout_argument(timeout)
        label = groups.check_label(label)
        made = _created(
            name, seconds, partial(cls._try_open, name, label, number, oldest, reconnect), partial(_warn, name)
        )
        assert made is not None
        return made

    @classmethod
    def _try_open(
        cls, name: str, label: str, mode: int, oldest: bool, reconnect: bool, timeout: float | None
    ) -> Self | None:
        """Open the channel, or return None if there is none. `timeout` is for the processes that are in the way."""

        def join(place: Place) -> Self:
            geometry = read_geometry(place)
            return cls._joined(place, geometry, label, mode=mode, oldest=oldest, writer=False, reconnect=reconnect)

        return groups.meet(CHANNEL, name, None, join, timeout=timeout)

    @classmethod
    def _joined(
        cls, place: Place, geometry: Geometry, label: str, *, mode: int, oldest: bool, writer: bool, reconnect: bool
    ) -> Self:
        self = cls.__new__(cls)
        self.closed = True
        try:
            self._end = place.admit(lambda: End(place, geometry, label, mode, oldest, writer, reconnect))
        except OSError as error:
            if error.errno == EBUSY:
                raise too_many_writers(place.name, geometry.numbers.writers) from None
            if error.errno == ENOSPC:
                raise too_many(place.title, geometry.numbers.ends) from None
            raise
        self.closed = False
        self.name = place.name
        self._label = label
        self._mode = mode
        self._changes = None
        self._watched = None
        if geometry.device.backend != HOST:
            from xpushare.channels.points import Points

            self._end.points = Points(self._end)
        return self

    # --- what it is

    @property
    def handle(self) -> bytes:
        """Bytes by which any process of this user opens the channel."""
        self._use()
        return layout.CHANNEL_MAGIC + self.name.encode()

    @property
    def device(self) -> Device:
        """The device that the slots lie on."""
        return self._end.geometry.device

    @property
    def reader_count(self) -> int:
        """The number of living readers, in any mode. An object of `open` that has only sent frames does not count.

        Examples:
            >>> with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader:
            ...     writer.reader_count, writer.writer_count
            (1, 1)
        """
        found: int = self._use().count()[0]
        return found

    @property
    def writer_count(self) -> int:
        """The number of living writers, including those that have called `finish()`."""
        found: int = self._use().count()[1]
        return found

    def statistics(self) -> dict[str, Any]:
        """Return the channel's counts, and its writers and readers.

        Returns:
            A dict. `name` is None for a channel without a name. `backend` and `device` (a uuid) identify the device of
            the slots. `slots` is the number of slots, `nbytes` the size of all slots, and `frame_nbytes` the size of
            the largest frame. `sent` is the number of frames sent. `members` is a list with one dict for each writer
            and reader.

            The dict of a member has its number (`member`), `pid` and `label`. `writes` says whether it is a writer, and
            `finished` whether it has called `finish()`. `mode` is a reader's mode, or None. `lag` is how many frames a
            reader is behind the newest frame. `missed` is the number of frames that were overwritten before a reader
            saw them, `received` the number that it has received, and `held` the number that it holds now.

        Raises:
            InvalidArgumentError: The channel is closed.
            InvalidHandleError: A member of the channel has damaged its state.

        Examples:
            >>> with xs.Channel.create("frames", 3, label="source") as writer:
            ...     [each["label"] for each in writer.statistics()["members"]]
            ['source']
        """
        return surveyed(self._use().place)

    def _use(self) -> End:
        if self.closed:
            raise InvalidArgumentError(f"this Channel is closed{CLOSED}")
        if self._end.place.forks != _native.forks():
            raise ForkError(f"this Channel {FORK_ADVICE}")
        return self._end

    # --- writing

    def loan(self, timeout: float | None = None) -> Loan:
        """Borrow a slot to fill in place. The slot is sent at the end of the `with` block, unless the block raises.

        Entering the block waits for a free slot and, unless `on_no_readers` is "drop", for a reader.

        Args:
            timeout: Seconds to wait. None waits as long as it takes.

        Returns:
            The slot, for `with`. Entering raises `TimeoutError`, or `ChannelFull` under `on_full="raise"`. Under
            `on_no_readers="raise"`, it raises `PeerLostError` within a second after the last reader has died, and
            `BrokenPipeError` after the last reader has closed the channel.

        Raises:
            InvalidArgumentError: The channel is closed, or already has its maximum of writers.

        Examples:
            >>> with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader:
            ...     with writer.loan() as frame:
            ...         np.asarray(frame)[:] = 7
            ...     np.asarray(reader.receive().array).tolist()
            [7.0, 7.0, 7.0]
        """
        made: Loan = self._end.loan(None if timeout is None else events.timeout_argument(timeout))
        return made

    def send(self, array_or_tree: Any, meta: Any = None, timeout: float | None = None) -> int:
        """Copy an array into a slot and send it.

        Args:
            array_or_tree: An array of exactly the channel's shape and dtype, or a list that `np.asarray` converts to
                one. Elements are not converted. For a channel that was created with `nbytes`, it can be any array or
                tree.
            meta: None, bool, int, float, str, bytes, or lists, tuples and dicts of these.
            timeout: Seconds to wait for a slot and, unless `on_no_readers` is "drop", for a reader. None waits as long
                as it takes.

        Returns:
            The number of the frame, `frame.seq`.

        Raises:
            TimeoutError: No slot became free in time, or there was no reader.
            ChannelFull: No slot is free, and the channel was created with `on_full="raise"`.
            PeerLostError: The last reader has died, and the channel was created with `on_no_readers="raise"`.
            BrokenPipeError: As before, but the last reader has closed the channel.
            InvalidArgumentError: The array does not fit, or the channel is closed.

        Examples:
            >>> with xs.Channel.create("frames", 3) as writer:
            ...     writer.send([1.0, 2.0, 3.0]), writer.send([4.0, 5.0, 6.0])
            (1, 2)
        """
        end = self._end
        any_shape = end.geometry.dtype is None
        try:
            content = (
                laid_out(array_or_tree, end.geometry.numbers.nbytes) if any_shape else prepared(end, array_or_tree)
            )
        except InvalidArgumentError:
            self._become_writer()  # an object that cannot send at all says that instead
            raise
        with self.loan(timeout) as frame:
            (fill_tree if any_shape else fill)(frame, content)
            frame.meta = meta
        return frame.seq

    def _become_writer(self) -> None:
        end = self._use()
        if end.write() == _native.CHANNEL_NO_WRITER:
            raise too_many_writers(self.name, end.geometry.numbers.writers)

    def finish(self) -> None:
        """Announce that this writer sends no more frames.

        Once all writers have called `finish`, readers get the remaining frames, and then the end of
        the stream. This never waits for readers.

        Raises:
            InvalidArgumentError: The channel is closed, or this object is not a writer yet and cannot become one,
                because the channel already has its maximum of writers.

        Examples:
            >>> with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader:
            ...     seq = writer.send([1.0, 2.0, 3.0])
            ...     writer.finish()
            ...     [frame.seq for frame in reader]
            [1]
        """
        end = self._use()
        if end.finish() == _native.CHANNEL_NO_WRITER:
            raise too_many_writers(self.name, end.geometry.numbers.writers)

    # --- reading

    def receive(self, timeout: float | None = None) -> Frame:
        """Wait for the next frame, and return it.

        Write `with ch.receive() as frame:`, or close the frame. In mode "one", closing a frame acknowledges it. Another
        reader gets the frame if the block raises, if the frame is garbage-collected before it is closed, or if the
        process dies.

        Args:
            timeout: Seconds to wait. None waits as long as it takes.

        Returns:
            The frame, which holds its slot until it is closed.

        Raises:
            TimeoutError: No frame came in time.
            EOFError: The stream has ended.
            PeerLostError: The last writer has ended without `finish()`.
            InvalidArgumentError: This object is a writer made by `create`, or it is closed.

        Examples:
            >>> with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader:
            ...     seq = writer.send([1.0, 2.0, 3.0])
            ...     with reader.receive(timeout=5) as frame:
            ...         frame.seq, np.asarray(frame).tolist()
            (1, [1.0, 2.0, 3.0])
        """
        if timeout is not None:
            timeout = events.timeout_argument(timeout)
        while True:
            end = self._end
            try:
                frame: Frame = end.receive(timeout)
            except Moved:
                _created(self.name, timeout, self._follow, None)
                continue
            if end.points is None or end.points.stands(frame):
                return frame
            frame.close()  # its content is lost: the writer's device never wrote it
            end.lost += 1
            end.seen -= frame.gap

    def _follow(self, timeout: float | None = 0.0) -> bool:
        """Move to the channel that replaced this one, and continue with its oldest frame. Returns False if no channel
        has replaced this one yet. `timeout` is for the processes that are in the way.
        """
        end = self._use()
        if end.peek() != _native.CHANNEL_MOVED:
            return True  # another thread has moved to it already
        made = self._try_open(self.name, self._label, self._mode, True, True, timeout)
        if made is None:
            return False
        with groups.alone():
            if self._end is end:
                made._end.lost = end.lost + end.unread()
                made._end.seen = end.seen
                self._end, made._end = made._end, end
        made.close()  # this leaves the former channel, or the new one if another thread was faster
        return True

    def failed(self) -> list[Frame]:
        """Return the frames that were delivered `redeliver` times without an acknowledgement. Only the last four are
        kept.

        Returns:
            The frames, the oldest first. Closing a frame removes it from this list. If a frame is garbage-collected
            before it is closed, a later call returns it again.

        Raises:
            InvalidArgumentError: The channel is closed.

        Examples:
            >>> with xs.Channel.create("jobs", 3, redeliver=1) as writer:
            ...     with xs.Channel.open("jobs", mode="one") as worker:
            ...         number = writer.send([1.0, 2.0, 3.0])
            ...         job = worker.receive()  # and the worker ends without finishing the job
            ...     [(each.seq == number, each.deliveries) for each in writer.failed()]
            [(True, 1)]
        """
        end = self._use()
        found: list[Frame] = []
        while (each := end.failed()) is not None:
            found.append(each)
        return found

    def __iter__(self) -> _Frames:
        return _Frames(self)

    def __aiter__(self) -> _Frames:
        return _Frames(self)

    # --- waiting for several

    def ready(self) -> bool:
        """Return whether `receive` would return or raise at once.

        Returns:
            True if there is a frame, or the stream has ended.

        Raises:
            InvalidArgumentError: This object is a writer made by `create`, or it is closed.

        Examples:
            >>> with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader:
            ...     before = reader.ready()
            ...     seq = writer.send([1.0, 2.0, 3.0])
            ...     before, reader.ready()
            (False, True)
        """
        if not self._mode:
            raise InvalidArgumentError(
                "this object was made by Channel.create, and only writes: wait on a reader, from Channel.open"
            )
        found: int = self._use().peek()
        if found == _native.CHANNEL_MOVED:
            try:
                return self._follow() and self.ready()
            except TimeoutError:
                return False  # the next look follows
        return found != _native.CHANNEL_WAIT

    def _woken_by(self) -> tuple[Changes, OwnedFd | None, bool]:
        """Return the `Changes` object that reports when the channel may be ready, and the `pidfd` and `look` arguments
        for its methods.
        """
        end = self._use()
        place = None if end.peek() == _native.CHANNEL_MOVED else end.place
        if self._changes is None or self._watched is not place:
            former, self._watched = self._changes, place
            self._changes = _new_channels() if place is None else Changes(groups.file_of(place), file=True)
            if former is not None:
                former.close()
        return self._changes, None, False

    # --- the end

    def close(self) -> None:
        """Leave the channel. If the last writer closes without `finish()`, readers get `PeerLostError`
        after the frames that were sent. Idempotent.

        Open frames of this object are closed. Arrays over their slots keep the memory alive.

        Examples:
            >>> channel = xs.Channel.create("frames", 3)
            >>> channel.close()
            >>> channel
            <Channel 'frames' closed>
        """
        first, end = groups.first_close(self), getattr(self, "_end", _CLOSED)
        if end is _CLOSED or end.place.forks != _native.forks():
            return
        end.place.parting()  # each step has its effect once: after an interrupt, all can be done again
        if first and end.points is not None:
            end.points.close()
        end.leave()
        groups.reap()
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.close()
        self._end = _CLOSED  # releases its memory and events, except those that frames and arrays still use

    __del__ = close

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Channel cannot be copied or pickled: send its handle, and open that in the other process")

    if not TYPE_CHECKING:  # NumPy would make an array of one Python object

        def __array__(self, *_dtype: object, **_options: object) -> NoReturn:
            raise TypeError("a Channel is not an array: np.asarray(frame)")

    def __repr__(self) -> str:
        end = self._end  # another thread may close it meanwhile
        return f"<Channel {self.name!r} {'closed' if self.closed or end is _CLOSED else describe(end.geometry)}>"


advise(
    Channel,
    put="send(x) sends a frame",
    get="receive() takes the next frame",
    put_nowait="send(x, timeout=0) sends a frame if a slot is free",
    get_nowait="receive(timeout=0) takes the next frame if there is one",
    empty="ready() says whether there is a frame",
    recv="receive() takes the next frame",
    poll="ready() says whether there is a frame",
    join="leave the block of each frame, which acknowledges it, and iterate until the stream ends",
    task_done="leaving the block of a frame acknowledges it in mode 'one'",
)


def lock_pages(channel: Channel, device: DeviceLike) -> None:
    """Page-lock the slots of a host channel in this process, by the driver of `device`."""
    channel._end.lock_pages(device)  # pyright: ignore[reportPrivateUsage]


def slots_of(channel: Channel) -> list[Range]:
    """Return the memory of a channel's slots in this process."""
    return channel._end.slots  # pyright: ignore[reportPrivateUsage]


def _created(
    name: str, seconds: float | None, attempt: Callable[[float | None], _T], warn: Callable[[float], None] | None
) -> _T:
    """Call `attempt`, which tries to open a channel within the given seconds, until another process has created the
    channel. Return the result of the successful call. `warn` is as for `Patience.left`.
    """
    wait = Patience(seconds)
    if made := attempt(seconds):
        return made
    changes = _new_channels()
    try:
        while not made:
            left = wait.left(warn)
            if left == 0:
                raise TimeoutError(f"nobody has created the channel {name!r} within {seconds:g} s {_advice(name)}")
            changes.wait(_LOOK if left is None else min(left, _LOOK), None, False)
            made = attempt(None if seconds is None else wait.left(None))
    finally:
        del changes  # its descriptors, which would last as long as the exception
    return made


def _new_channels() -> Changes:
    """Return the `Changes` object that reports new channels."""
    return Changes(groups.folder(), again=groups.folder)


def _warn(name: str, waited: float) -> None:
    logging.getLogger("xpushare").warning(
        "Channel.open has waited %.0f s for %r, which nobody has created %s", waited, name, _advice(name)
    )


def _advice(name: str) -> str:
    """Return a part of an error message that lists the existing channels, and says what to do if the channel `name` is
    missing.
    """
    others: list[str] = []
    with contextlib.suppress(XpuShareError):  # the error that has this text matters more
        others = [each["name"] for each in channels() if each["name"]]
    near = get_close_matches(name, others, 1)
    advice = (
        f"Did you mean {near[0]!r}?"
        if near
        else f"Have the writer call xs.Channel.create({name!r}, shape), or wait longer"
    )
    return f"(channels now: {', '.join(others) or 'none'}). {advice}"


def _name_of(name_or_handle: str | bytes | None) -> str:
    if name_or_handle is None:
        raise InvalidArgumentError(
            "`Channel.open` takes a name or `channel.handle`, which a channel without a name has, too"
        )
    if isinstance(name_or_handle, str) and len(name_or_handle) > NAME_LENGTH_MAX:
        name_or_handle = decode_text(name_or_handle)  # of a handle of an array, probably
    if isinstance(name_or_handle, bytes | bytearray | memoryview | Named):
        raw = bytes(name_or_handle)
        if raw.startswith(layout.MESSAGE_MAGIC):
            raise InvalidHandleError(OF_ARRAY)
        name = raw[len(layout.CHANNEL_MAGIC) :].decode(errors="replace")
        if not raw.startswith(layout.CHANNEL_MAGIC) or not (name[1:].isalnum() if name[:1] == "." else True):
            raise InvalidHandleError(
                "these bytes are not a handle of a channel: `Channel.open` takes a name or `channel.handle`"
            )
        return name if name.startswith(".") else groups.check_name(name)
    return groups.check_name(str(name_or_handle) if isinstance(name_or_handle, str) else name_or_handle)


@final
class _Frames:
    """Iterates over the frames of a channel. Each frame is closed when the next one is requested."""

    __slots__ = ("_channel", "_frame")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._frame: Frame | None = None

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __aiter__(self) -> Self:
        return self

    def _close(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            frame.close()

    def __next__(self) -> Frame:
        self._close()
        try:
            self._frame = self._channel.receive()
        except EOFError:
            raise StopIteration from None
        return self._frame

    async def __anext__(self) -> Frame:
        self._close()
        channel = self._channel
        while True:
            changes, _, _ = woken_by(channel)
            with changes.ready(None) as ready:
                if channel.ready():
                    try:
                        self._frame = channel.receive(0)
                    except TimeoutError:  # another reader in mode "one" took the frame first
                        continue
                    except EOFError:
                        raise StopAsyncIteration from None
                    return self._frame
                await readable(ready.fileno(), changes.limit(_LOOK, False))
            changes.drain()


public(Channel, "create", "open", "send", "finish", "failed", "close", brief=lambda channel: channel.name)
public(Channel, "receive", outcome=lambda _channel, frame: {"frame": brief_slot(frame)})
