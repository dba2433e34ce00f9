"""`Channel`: frames in shared slots, from writers to readers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from errno import EBUSY
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, final

from xpushare import _native
from xpushare._device import Device
from xpushare.arrays.changes import Awaitable, Changes
from xpushare.channels import crews
from xpushare.channels.crews import CHANNEL, Crew
from xpushare.channels.ends import End, Frame, Loan, too_many_writers
from xpushare.channels.frames import laid_out
from xpushare.channels.geometry import Geometry, choice, describe, read_geometry, wanted
from xpushare.channels.survey import surveyed
from xpushare.common.errors import ForkError, InvalidArgumentError, InvalidHandleError
from xpushare.core import event as events
from xpushare.core import memory
from xpushare.core.memory import FORK_ADVICE, Range
from xpushare.timeline.waiting import readable

if TYPE_CHECKING:
    from xpushare._device import DeviceLike
    from xpushare.common.fds import OwnedFd

__all__ = ["Channel", "Frame", "Loan", "lock_pages"]

_MAGIC: Final = b"XPUSHCHN"
_MODES: Final = {"all": 1, "newest": 2, "one": 3}
_LOOK: Final = 1.0


@final
class _Closed:
    """In the place of a closed channel's end."""

    def __getattr__(self, _name: str) -> NoReturn:
        raise InvalidArgumentError("this Channel is closed")


_CLOSED: Final[Any] = _Closed()


@final
class Channel(Awaitable):
    """Frames in shared slots, found by name or handle, from writers to readers, on any device.

    `create` makes a channel and its first writer, or joins one as a further writer; `open` makes a reader. A writer
    `loan`s a slot, fills it in place, and the frame is sent at the end of the block; or it `send`s a copy. A reader
    holds a frame until it closes it. All readers together hold at most `slots - 1 - writers` frames.

    The stream ends for readers when all writers that are left have said `finish()`: iteration stops, `receive` raises
    `EOFError`. If the last writer goes without that, readers get what was sent, and then `PeerLostError`.
    """

    __slots__ = ("__weakref__", "_changes", "_end", "_mode", "closed", "name")

    name: str
    """The name; a dot and a number if it was given none."""
    closed: bool
    _changes: Changes | None
    _end: End
    _mode: int

    def __init__(self, *_arguments: object) -> None:
        raise TypeError("a Channel is made by Channel.create and Channel.open")

    # --- making

    @classmethod
    def create(
        cls,
        name: str | None,
        shape: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        *,
        nbytes: int | None = None,
        device: DeviceLike = "native_cpu:0",
        slots: int = 8,
        on_full: Literal["block", "overwrite", "raise"] = "block",
        history: int = 0,
        writers: int = 1,
        meta_nbytes: int = 512,
        redeliver: int = 3,
        label: str | None = None,
    ) -> Self:
        """Make a channel under that name, with this object as a writer; or join the one that is there.

        Frames are arrays of `shape` and `dtype`, or, with `nbytes`, any array or tree of at most so many bytes. `slots`
        is how many frames there are at a time, `history` how many of the last are kept for readers that begin at the
        oldest, `writers` how many processes may write at a time, `meta_nbytes` the room for metadata of a frame.
        `on_full` says what a writer does when readers in mode "all" or "one" have yet to read, or hold, all slots:
        "block", "overwrite" (the oldest frame that nobody holds) or "raise" (`ChannelFull`). A frame that no reader in
        mode "one" has acknowledged after `redeliver` deliveries goes to `failed()`; 0 delivers it without end.

        A channel whose writers are all gone is taken over, slots and readers included. Raises `InvalidArgumentError` if
        as many writers live as there may be, or if the channel is there with another geometry.
        """
        geometry = wanted(
            shape, dtype, nbytes, Device(device), slots, on_full, history, writers, meta_nbytes, redeliver
        )
        label = crews.check_label(label)
        name = crews.check_name(name)

        def allocate() -> list[Range]:
            words = memory.allocate("host", _native.channel_nbytes(geometry.numbers), "native_cpu:0", None)
            return [words, memory.allocate("device", geometry.total, geometry.device, None)]

        with crews.meet(CHANNEL, name, allocate) as found:
            assert found is not None
            crew, fresh = found
            if fresh:
                _native.channel_begin(crew.native, geometry.numbers, geometry.text)
            elif not geometry.same(read_geometry(crew)):
                raise InvalidArgumentError(
                    f"the channel {name!r} is there with other frames or slots: {describe(read_geometry(crew))}"
                )
            return cls._joined(crew, geometry, label, mode=0, oldest=False, writer=True, reconnect=False)

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
        """Open a channel as a reader; waits `timeout` seconds for it to be created (None: as long as it takes).

        In mode "all" a reader sees every frame, in "newest" only the latest; readers in mode "one" share the frames out
        among them. `start` is where it begins: at the next frame, or at the oldest one in a slot. With `reconnect`, it
        waits for the next writer when the last one has died. Whoever opens may also write, where there is room for one
        more writer; an object that only writes is waited for by nobody.
        """
        number = choice("mode", mode, _MODES)
        oldest = bool(choice("start", start, {"next": 0, "oldest": 1}))
        name = _name_of(name_or_handle)
        seconds = events.timeout_argument(timeout)
        label = crews.check_label(label)
        made = cls._try_open(name, label, number, oldest, reconnect)
        if made is not None:
            return made
        end = None if seconds is None else time.monotonic() + seconds
        changes = Changes(crews.folder())
        try:
            while made is None:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"nobody has created the channel {name!r} within {seconds:g} s")
                changes.wait(_LOOK if left is None else min(left, _LOOK), None, False)
                made = cls._try_open(name, label, number, oldest, reconnect)
        finally:
            changes.close()
        return made

    @classmethod
    def _try_open(cls, name: str, label: str, mode: int, oldest: bool, reconnect: bool) -> Self | None:
        with crews.meet(CHANNEL, name, None) as found:
            if found is None:
                return None
            crew, _fresh = found
            geometry = read_geometry(crew)
            return cls._joined(crew, geometry, label, mode=mode, oldest=oldest, writer=False, reconnect=reconnect)

    @classmethod
    def _joined(
        cls, crew: Crew, geometry: Geometry, label: str, *, mode: int, oldest: bool, writer: bool, reconnect: bool
    ) -> Self:
        self = cls.__new__(cls)
        self.closed = True
        try:
            self._end = crew.admit(
                lambda native: End(crew, native, geometry, label, mode, oldest, writer, reconnect),
                lambda end: end.member,
            )
        except OSError as error:
            if error.errno == EBUSY:
                raise too_many_writers(crew.name, geometry.numbers[3]) from None
            raise
        self.closed = False
        self.name = crew.name
        self._mode = mode
        self._changes = None
        self._end.begin()
        return self

    # --- what it is

    @property
    def handle(self) -> bytes:
        """Bytes by which any process of this user opens the channel."""
        self._use()
        return _MAGIC + self.name.encode()

    @property
    def device(self) -> Device:
        """The device that the slots lie on, as opened here."""
        return self._end.geometry.device

    def statistics(self) -> dict[str, Any]:
        """Who writes and who reads: for each member its pid, label, mode, lag, missed and held frames."""
        return surveyed(self._use().crew)

    def _use(self) -> End:
        if self.closed:
            raise InvalidArgumentError("this Channel is closed")
        if self._end.crew.forks != _native.forks():
            raise ForkError(f"this Channel {FORK_ADVICE}")
        return self._end

    # --- writing

    def loan(self, timeout: float | None = None) -> Loan:
        """A slot to fill: `with ch.loan() as frame:` sends it at the end of the block, unless that raises.

        Entering the block waits for a slot, at most `timeout` seconds (`TimeoutError`), or raises `ChannelFull`.
        """
        made: Loan = self._end.loan(None if timeout is None else events.timeout_argument(timeout))
        return made

    def send(self, array_or_tree: Any, meta: Any = None, timeout: float | None = None) -> int:
        """Copy an array, or a tree where the channel was created with `nbytes`, into a slot and send it. Returns its
        `seq`.
        """
        geometry = self._end.geometry
        layout = laid_out(array_or_tree, geometry.numbers[0]) if geometry.dtype is None else None
        with self.loan(timeout) as frame:
            if layout is not None:
                frame.fill_tree(layout)
            else:
                frame.fill(array_or_tree)
            frame.meta = meta
        return frame.seq

    def finish(self) -> None:
        """Say that this writer sends no more. When all have, readers drain what was sent, and stop."""
        end = self._use()
        if end.finish() == _native.CHANNEL_NO_WRITER:
            raise too_many_writers(self.name, end.geometry.numbers[3])

    # --- reading

    def receive(self, timeout: float | None = None) -> Frame:
        """The next frame; waits `timeout` seconds for it at most (`TimeoutError`).

        At the end of the stream it raises `EOFError`; where the last writer has gone without `finish()`,
        `PeerLostError`. Use it as `with ch.receive() as frame:`, or close it: the slot is free after that. In mode
        "one", leaving the block or `close()` acknowledges the frame. If the block raises, if the frame is dropped
        unclosed, or if the process dies, another reader gets it.
        """
        if timeout is not None:
            timeout = events.timeout_argument(timeout)
        end = self._end
        frame: Frame = end.receive(timeout)
        while end.points is not None and not end.points.stands(frame):
            frame.close()  # what its writer's device was to write is lost
            end.lost += 1
            frame = end.receive(timeout)
        return frame

    def failed(self) -> list[Frame]:
        """Frames that no reader could finish in `redeliver` deliveries, the oldest first. The last four are kept.

        They are held, and gone once you close them; one that is dropped unclosed is listed again.
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
        """Whether `receive` would return or raise now."""
        if not self._mode:
            raise InvalidArgumentError("this object was made by create, to write: it has no frames to wait for")
        found: int = self._use().peek()
        return found != _native.CHANNEL_WAIT

    def changes(self) -> tuple[Changes, OwnedFd | None, bool]:
        """What `wait_any` waits for."""
        self._use()
        if self._changes is None:
            self._changes = Changes(self._end.crew.path, file=True)
        return self._changes, None, False

    # --- the end

    def close(self) -> None:
        """Leave the channel, as a death does but at once: a writer without `finish()` is lost to its readers.

        Frames of this object that are still open are given back. The memory of the slots is released here, unless
        frames or arrays over them are still referenced. Idempotent.
        """
        if not crews.first_close(self):
            return
        end = self._end
        if end.crew.forks != _native.forks():
            return
        if end.points is not None:
            end.points.close()
        end.leave()
        end.crew.part()
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.close()
        self._end = _CLOSED  # its memory and events are released, except for what frames and arrays still hold

    __del__ = close

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Channel cannot be copied or pickled: send its handle, and open that in the other process")

    def __repr__(self) -> str:
        return f"<Channel {self.name!r} {'closed' if self.closed else describe(self._end.geometry)}>"


def lock_pages(channel: Channel, device: DeviceLike) -> None:
    """Have the driver of `device` page-lock the slots of a host channel in this process."""
    channel._end.lock_pages(device)  # pyright: ignore[reportPrivateUsage]


def _name_of(name_or_handle: str | bytes) -> str:
    if isinstance(name_or_handle, bytes | bytearray | memoryview):
        raw = bytes(name_or_handle)
        name = raw[len(_MAGIC) :].decode(errors="replace")
        if not raw.startswith(_MAGIC) or not (name[1:].isalnum() if name[:1] == "." else True):
            raise InvalidHandleError("these bytes are no handle of a channel")
        return name if name.startswith(".") else crews.check_name(name)
    return crews.check_name(str(name_or_handle) if isinstance(name_or_handle, str) else name_or_handle)


@final
class _Frames:
    """The frames of a channel, one after the other; each is closed when the next one is asked for."""

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
            changes, _, _ = channel.changes()
            with changes.ready(None) as ready:
                if channel.ready():
                    try:
                        self._frame = channel.receive(0)
                    except TimeoutError:  # another reader in mode "one" was first
                        continue
                    except EOFError:
                        raise StopAsyncIteration from None
                    return self._frame
                await readable(ready.fileno(), changes.limit(_LOOK, False))
            changes.drain()
