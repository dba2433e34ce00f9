"""`Channel`: frames in shared slots, from writers to readers."""

# pyright: reportPrivateUsage=false
# (a channel, its loans and its frames are one thing)

from __future__ import annotations

import contextlib
import json
import math
import operator
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, final

from xpushare import _native
from xpushare._device import Device
from xpushare._native import ChannelEnd
from xpushare.adapters import HOST
from xpushare.arrays.changes import Awaitable, Changes
from xpushare.arrays.copies import values_of
from xpushare.channels import crews
from xpushare.channels.crews import CHANNEL, Crew
from xpushare.channels.frames import TEXT_NBYTES, decode_meta, encode_meta, laid_out, rebuilt
from xpushare.channels.survey import surveyed
from xpushare.common.elements import as_dtype, as_shape, c_strides, check_dtype
from xpushare.common.errors import (
    ChannelFull,
    ForkError,
    InvalidArgumentError,
    InvalidHandleError,
    PeerLostError,
    XpuShareError,
)
from xpushare.core import event as events
from xpushare.core import memory
from xpushare.core.memory import FORK_ADVICE, Range
from xpushare.objects.array import SharedArray, array_of
from xpushare.objects.dtypes import build_dtype, describe_dtype
from xpushare.timeline.waiting import readable

if TYPE_CHECKING:
    from xpushare._device import DeviceLike
    from xpushare.common.fds import OwnedFd

__all__ = ["Channel", "Frame", "Loan"]

_MAGIC: Final = b"XPUSHCHN"
_MODES: Final = {"all": 1, "newest": 2, "one": 3}
_ON_FULL: Final = {"block": 0, "overwrite": 1, "raise": 2}
_LOOK: Final = 1.0
_PAGE: Final = 4096
_FULL: Final = -1 - _native.CHANNEL_NO_ROOM
_TWICE: Final = -1 - _native.CHANNEL_TWICE
_NO_WRITER: Final = -1 - _native.CHANNEL_NO_WRITER


def _count(name: str, value: int, least: int, most: int) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} is an integer, not {type(value).__name__}") from None
    if not least <= found <= most:
        raise InvalidArgumentError(f"{name} is from {least} to {most}, not {found}")
    return found


def _choice(name: str, value: str, among: dict[str, int]) -> int:
    found = among.get(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidArgumentError(f"{name} is one of {', '.join(map(repr, among))}, not {value!r:.100}")
    return found


@final
class _Geometry:
    """What a channel is: the numbers that native code has, and the arrays of its frames."""

    __slots__ = ("device", "dtype", "numbers", "shape", "stride", "text")

    def __init__(self, numbers: tuple[int, ...], shape: Any, dtype: Any, device: Device) -> None:
        self.numbers: Final = numbers
        self.shape: Final = shape
        self.dtype: Final = dtype
        self.device: Final = device
        self.stride: Final = -(-numbers[0] // 256) * 256 if numbers[0] < _PAGE else -(-numbers[0] // _PAGE) * _PAGE
        described = None if dtype is None else [list(shape), describe_dtype(dtype), dtype.itemsize]
        self.text: Final = json.dumps([str(device.uuid), device.backend, described]).encode()
        if len(self.text) > _native.CHANNEL_TEXT:
            raise InvalidArgumentError("the dtype of the frames is too complicated: use nbytes= and send structures")

    @property
    def total(self) -> int:
        return self.stride * (self.numbers[1] + self.numbers[2])

    def same(self, other: _Geometry) -> bool:
        return self.numbers == other.numbers and self.text == other.text


def _read_geometry(crew: Crew) -> _Geometry:
    numbers, text = _native.channel_geometry(crew.native)
    try:
        _uuid, _backend, described = json.loads(text)
        shape = dtype = None
        if described is not None:
            shape = tuple(map(operator.index, described[0]))
            dtype = build_dtype(described[1], operator.index(described[2]))
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, XpuShareError):
            raise
        raise InvalidHandleError(f"the channel's description is none: {error}") from None
    if len(crew.ranges) != 2:
        raise InvalidHandleError("the channel has no slots")
    found = _Geometry(numbers, shape, dtype, crew.ranges[1].device)
    fits = dtype is None or (min(shape or (1,)) >= 0 and math.prod(shape or ()) * dtype.itemsize == numbers[0])
    if not fits or crew.ranges[1].nbytes < found.total:
        raise InvalidHandleError("the channel's frames do not fit in its slots")
    return found


@final
class Channel(Awaitable):
    """Frames in shared slots, found by name or handle, from writers to readers, on any device.

    `create` makes a channel and its first writer, or joins one as a further writer; `open` makes a reader. A writer
    `loan`s a slot, fills it in place, and the frame is sent at the end of the block; or it `send`s a copy. A reader
    holds a frame until it closes it. All readers together hold at most `slots - 1 - writers` frames.

    The stream ends for readers when all writers that are left have said `finish()`: iteration stops, `receive` raises
    `EOFError`. If the last writer goes without that, readers get what was sent, and then `PeerLostError`.
    """

    __slots__ = (
        "__weakref__", "_bases", "_changes", "_crew", "_end", "_finished", "_geometry", "_lost", "_mode", "_places",
        "_plain", "_points", "closed", "name",
    )  # fmt: skip

    name: str
    """The name; a dot and a number if it was given none."""
    closed: bool
    _bases: list[Any]
    _changes: Changes | None
    _crew: Crew
    _end: ChannelEnd
    _finished: bool
    _geometry: _Geometry
    _lost: int  # frames whose writer's device had not finished when it died
    _mode: int
    _places: list[Range]
    _plain: bool  # frames of one shape, in host memory
    _points: Any  # of a channel on a device with streams

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
        wanted = _wanted(shape, dtype, nbytes, Device(device), slots, on_full, history, writers, meta_nbytes, redeliver)
        label = crews.check_label(label)
        name = crews.check_name(name)

        def allocate() -> list[Range]:
            words = memory.allocate("host", _native.channel_nbytes(wanted.numbers), "native_cpu:0", None)
            return [words, memory.allocate("device", wanted.total, wanted.device, None)]

        with crews.meet(CHANNEL, name, allocate) as found:
            assert found is not None
            crew, fresh = found
            if fresh:
                _native.channel_begin(crew.native, wanted.numbers, wanted.text)
            elif not wanted.same(_read_geometry(crew)):
                raise InvalidArgumentError(
                    f"the channel {name!r} is there with other frames or slots: {_described(_read_geometry(crew))}"
                )
            return cls._joined(crew, wanted, label, mode=0, oldest=False, writer=True, reconnect=False)

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
        number = _choice("mode", mode, _MODES)
        oldest = bool(_choice("start", start, {"next": 0, "oldest": 1}))
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
            geometry = _read_geometry(crew)
            return cls._joined(crew, geometry, label, mode=mode, oldest=oldest, writer=False, reconnect=reconnect)

    @classmethod
    def _joined(
        cls, crew: Crew, geometry: _Geometry, label: str, *, mode: int, oldest: bool, writer: bool, reconnect: bool
    ) -> Self:
        self = cls.__new__(cls)
        self.closed = True
        try:
            self._end = crew.admit(
                lambda native: ChannelEnd(native, label, mode, oldest, writer, reconnect), lambda end: end.member
            )
        except OSError as error:
            if error.errno == 16:  # EBUSY
                raise _too_many_writers(crew.name, geometry.numbers[3]) from None
            raise
        self.closed = False
        self.name = crew.name
        self._crew = crew
        self._geometry = geometry
        self._mode = mode
        self._finished = False
        self._lost = 0
        self._changes = None
        count = geometry.numbers[1] + geometry.numbers[2]
        place, stride = crew.ranges[1], geometry.stride
        self._places = [
            place.replace(offset=place.offset + i * stride, nbytes=geometry.numbers[0]) for i in range(count)
        ]
        self._bases = [None] * count
        self._points = None if place.device.backend == HOST else _points(self)
        self._plain = self._points is None and geometry.dtype is not None
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
        return self._geometry.device

    def statistics(self) -> dict[str, Any]:
        """Who writes and who reads: for each member its pid, label, mode, lag, missed and held frames."""
        self._use()
        return surveyed(self._crew)

    def _use(self) -> ChannelEnd:
        if self.closed:
            raise InvalidArgumentError("this Channel is closed")
        if self._crew.forks != _native.forks():
            raise ForkError(f"this Channel {FORK_ADVICE}")
        return self._end

    # --- writing

    def loan(self, timeout: float | None = None) -> Loan:
        """A slot to fill: `with ch.loan() as frame:` sends it at the end of the block, unless that raises.

        Entering the block waits for a slot, at most `timeout` seconds (`TimeoutError`), or raises `ChannelFull`.
        """
        return Loan(self, None if timeout is None else events.timeout_argument(timeout))

    def send(self, array_or_tree: Any, meta: Any = None, timeout: float | None = None) -> int:
        """Copy an array, or a tree where the channel was created with `nbytes`, into a slot and send it. Returns its
        `seq`.
        """
        layout = None
        if self._geometry.dtype is None:
            layout = laid_out(array_or_tree, self._geometry.numbers[0])
        with self.loan(timeout) as frame:
            if layout is not None:
                frame._fill_tree(layout)
            else:
                frame._fill(array_or_tree)
            frame.meta = meta
        return frame.seq

    def finish(self) -> None:
        """Say that this writer sends no more. When all have, readers drain what was sent, and stop."""
        end = self._use()
        if end.finish() == _native.CHANNEL_NO_WRITER:
            raise _too_many_writers(self.name, self._geometry.numbers[3])
        self._finished = True

    def _loaned(self, timeout: float | None) -> int:
        if self._finished:
            raise InvalidArgumentError("this writer has said finish(): create the channel again to send more")
        slot = self._end.loan(timeout)  # which finds out, too, whether this is closed, or of a parent
        if slot >= 0:
            return slot
        if slot == _FULL:
            raise ChannelFull(f"readers of {self.name!r} have yet to read, or hold, all of its slots")
        if slot == _TWICE:
            raise InvalidArgumentError("this thread has a loan of this object already: send or drop that first")
        if slot == _NO_WRITER:
            raise _too_many_writers(self.name, self._geometry.numbers[3])
        raise TimeoutError(f"no slot of {self.name!r} became free within {timeout:g} s")

    # --- reading

    def receive(self, timeout: float | None = None) -> Frame:
        """The next frame; waits `timeout` seconds for it at most (`TimeoutError`).

        At the end of the stream it raises `EOFError`; where the last writer has gone without `finish()`,
        `PeerLostError`. Use it as `with ch.receive() as frame:`, or close it: the slot is free after that. In mode
        "one", leaving the block or `close()` acknowledges the frame. If the block raises, if the frame is dropped
        unclosed, or if the process dies, another reader gets it.
        """
        if not self._mode:
            raise InvalidArgumentError("this object was made by create, to write: Channel.open makes a reader")
        seconds = None if timeout is None else events.timeout_argument(timeout)
        while True:
            found = self._end.receive(seconds)
            if type(found) is not tuple:
                raise self._no_frame(found, seconds)
            frame = Frame(self, found)
            if self._points is None or self._points.stands(found):
                return frame
            frame.close()  # what its writer's device was to write is lost
            self._lost += 1

    def _no_frame(self, found: int, seconds: float | None) -> Exception:
        if found == _native.CHANNEL_OVER:
            return EOFError(f"the stream of {self.name!r} has ended")
        if found == _native.CHANNEL_LOST:
            return PeerLostError(
                f"the last writer of {self.name!r} (pid {self._end.lost_pid}) went without finish(). Open the channel "
                "with reconnect=True to wait for the next one"
            )
        return TimeoutError(f"no frame of {self.name!r} came within {seconds:g} s")

    def failed(self) -> list[Frame]:
        """Frames that no reader could finish in `redeliver` deliveries, the oldest first. The last four are kept.

        They are held, and gone once you close them; one that is dropped unclosed is listed again.
        """
        end = self._use()
        found: list[Frame] = []
        while (each := end.failed()) is not None:
            found.append(Frame(self, each))
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
            self._changes = Changes(self._crew.path, file=True)
        return self._changes, None, False

    # --- the end

    def close(self) -> None:
        """Leave the channel, as a death does but at once: a writer without `finish()` is lost to its readers.

        Frames of this object that are still open are given back. Idempotent.
        """
        if not crews.first_close(self):
            return
        if self._crew.forks != _native.forks():
            return
        if self._points is not None:
            self._points.close()
        self._end.leave()
        self._crew.part()
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.close()

    __del__ = close

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Channel cannot be copied or pickled: send its handle, and open that in the other process")

    def __repr__(self) -> str:
        return f"<Channel {self.name!r} {'closed' if self.closed else _described(self._geometry)}>"


def _points(channel: Channel) -> Any:
    from xpushare.channels.points import Points

    return Points(channel)


def _too_many_writers(name: str, writers: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{writers} writers of {name!r} live, which is as many as it was created for: say writers= at its create"
    )


def _described(found: _Geometry) -> str:
    frames = f"nbytes={found.numbers[0]}" if found.dtype is None else f"{found.shape} {found.dtype}"
    return f"of {frames}, slots={found.numbers[1]}, writers={found.numbers[3]} on {found.device}"


def _name_of(name_or_handle: str | bytes) -> str:
    if isinstance(name_or_handle, bytes | bytearray | memoryview):
        raw = bytes(name_or_handle)
        name = raw[len(_MAGIC) :].decode(errors="replace")
        if not raw.startswith(_MAGIC) or not (name[1:].isalnum() if name[:1] == "." else True):
            raise InvalidHandleError("these bytes are no handle of a channel")
        return name if name.startswith(".") else crews.check_name(name)
    return crews.check_name(str(name_or_handle) if isinstance(name_or_handle, str) else name_or_handle)


def _wanted(
    shape: Any, dtype: Any, nbytes: int | None, device: Device, slots: int, on_full: str, history: int, writers: int,
    meta_nbytes: int, redeliver: int,
) -> _Geometry:  # fmt: skip
    if (shape is None) == (nbytes is None):
        raise InvalidArgumentError("say either shape and dtype of the frames, or nbytes=, the most bytes of one")
    lengths = kind = None
    if shape is not None:
        kind = as_dtype(float if dtype is None else dtype)
        check_dtype(kind)
        lengths = as_shape(shape)
        size = math.prod(lengths) * kind.itemsize
        if not size:
            raise InvalidArgumentError("frames have at least one byte")
    else:
        if dtype is not None:
            raise InvalidArgumentError("dtype goes with shape; frames of nbytes= say theirs themselves")
        size = _count("nbytes", nbytes, 1, (1 << 47) - 1)  # type: ignore[arg-type]
    writers = _count("writers", writers, 1, 64)
    slots = _count("slots", slots, writers + 2, 4096 - _native.CHANNEL_SPARE)
    history = _count("history", history, 0, slots - 1 - writers)
    redeliver = _count("redeliver", redeliver, 0, (1 << 31) - 1)
    numbers = (
        size, slots, _native.CHANNEL_SPARE if redeliver else 0, writers, history, redeliver,
        _choice("on_full", on_full, _ON_FULL), _count("meta_nbytes", meta_nbytes, 0, 1 << 20),
        TEXT_NBYTES if kind is None else 0, int(device.backend != HOST),
    )  # fmt: skip
    return _Geometry(numbers, lengths, kind, device)


class _Content:
    """What a loan and a frame have in common: a slot, and the array over it."""

    __slots__ = ()

    _channel: Channel
    _slot: int
    _made: Any
    _order: Any  # on a device: see `points.After`

    def _base(self) -> Any:
        """NumPy's array over a slot of a fixed shape on the host, made once."""
        channel = self._channel
        base = channel._bases[self._slot]
        if base is None:
            import numpy

            base = channel._bases[self._slot] = numpy.asarray(self._whole(None))
        return base

    def _whole(self, order: Any) -> SharedArray:
        channel = self._channel
        place, geometry = channel._places[self._slot], channel._geometry
        dtype = geometry.dtype
        if dtype is None:
            made = array_of(place, (place.nbytes,), as_dtype("uint8"), (1,), 0)
        else:
            made = array_of(place, geometry.shape, dtype, c_strides(geometry.shape, dtype.itemsize), 0)
        if order is not None:
            made.order = order
        return made

    def _array(self) -> Any:
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self._channel._plain:
            self._open()
            found = self._channel._bases[self._slot]
            if found is None:
                found = self._base()
            if copy or (dtype is not None and found.dtype != dtype):
                return found.astype(dtype or found.dtype)
            return found[...]
        return self._array().__array__(dtype, copy)

    def __dlpack_device__(self) -> Any:
        return self._array().__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array().__dlpack__(**options)

    def _open(self) -> None:
        raise NotImplementedError


@final
class Loan(_Content):
    """A slot that a writer fills: `np.asarray(frame)`, `torch.from_dlpack(frame)`, or `frame.array`.

    `frame.meta` may be set to plain data. After the block, `frame.seq` is the number of the frame.
    """

    # No slots: what most loans do not change stands here.
    _held = False
    _made: Any = None
    _order: Any = None
    _text = b""
    _nbytes = 0
    meta: Any = None
    """Plain data that the readers get with the frame."""
    seq = 0

    def __init__(self, channel: Channel, timeout: float | None) -> None:
        self._channel = channel
        self._timeout = timeout

    def __enter__(self) -> Self:
        if self._held:
            raise InvalidArgumentError("this loan is in use: call loan() again")
        self._slot = self._channel._loaned(self._timeout)
        self._held = True
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        if not self._held:
            return
        channel = self._channel
        try:
            if kind is None:
                meta = b"" if self.meta is None else encode_meta(self.meta, channel._geometry.numbers[7])
                point = 0 if self._order is None else channel._points.signalled(self._order)
                self._held = False
                nbytes = self._nbytes or channel._geometry.numbers[0]
                self.seq = channel._end.send(self._slot, nbytes, meta, self._text, point)
        finally:
            if self._held:
                self._drop()

    def _drop(self) -> None:
        self._held = False
        if not self._channel.closed and self._channel._crew.forks == _native.forks():
            self._channel._end.drop(self._slot)

    def __del__(self) -> None:
        if self._held:
            with contextlib.suppress(XpuShareError):
                self._drop()

    @property
    def array(self) -> SharedArray:
        """The slot as an array: of the channel's shape, or its bytes."""
        found: SharedArray = self._array()
        return found

    def _open(self) -> None:
        if not self._held:
            raise InvalidArgumentError("this frame is not on loan: it was sent, or its block has not begun")

    def _array(self) -> Any:
        self._open()
        if self._made is None:
            points = self._channel._points
            if points is not None and self._order is None:
                self._order = points.before_writing(self._slot)
            self._made = self._whole(self._order)
        if self._order is not None:
            self._made.order = self._order  # a host's view takes it away
        return self._made

    def _fill(self, array: Any) -> None:
        geometry = self._channel._geometry
        points = self._channel._points
        if points is not None and points.copied(self, array):
            return
        values = values_of(array)
        if values is None:
            import numpy

            values = numpy.asarray(array)
        if values.shape != geometry.shape or values.dtype != geometry.dtype:
            raise InvalidArgumentError(
                f"frames of this channel are {geometry.shape} {geometry.dtype}, not {values.shape} {values.dtype}"
            )
        if points is not None:
            points.store(self, [(values, 0)])
            return
        self._base()[...] = values

    def _fill_tree(self, layout: Any) -> None:
        self._text = layout.text
        self._nbytes = layout.nbytes
        pairs = list(zip(layout.values, layout.offsets, strict=True))
        if self._channel._points is not None:
            self._channel._points.store(self, pairs)
            return
        import numpy

        slot = numpy.asarray(self._whole(None))
        for values, offset in pairs:
            target = numpy.ndarray(values.shape, values.dtype, slot, offset)
            target[...] = values


@final
class Frame(_Content):
    """A frame that a reader holds: `np.asarray(frame)`, `torch.from_dlpack(frame)` or `frame.array`.

    The slot may be written again once the frame is closed, and whoever still looks at it then sees later frames. A
    reader that writes to a frame changes what other readers see.
    """

    # No slots: what most frames do not change stands here.
    _made: Any = None
    _order: Any = None
    closed = False

    def __init__(self, channel: Channel, raw: tuple[Any, ...]) -> None:
        self._channel = channel
        self._raw = raw
        self._slot: int = raw[0]

    @property
    def seq(self) -> int:
        """The number of the frame in its channel, from 1 on."""
        seq: int = self._raw[1]
        return seq

    @property
    def missed(self) -> int:
        """How many frames sent since this reader opened the channel were overwritten before it saw them.

        In mode "one", the number counts for all readers in that mode. With `start="oldest"`, frames that were in a slot
        at the opening count, too.
        """
        missed: int = self._raw[2]
        return missed + self._channel._lost

    @property
    def writer(self) -> int:
        """The pid of the process that sent it, as that sees itself."""
        pid: int = self._raw[3]
        return pid

    @property
    def deliveries(self) -> int:
        """In mode "one": how often the frame has been handed out, this time included."""
        deliveries: int = self._raw[7]
        return deliveries

    @property
    def meta(self) -> Any:
        """What the writer set, or None."""
        return decode_meta(self._raw[5])

    @property
    def array(self) -> Any:
        """The array, or the tree of arrays, in the slot."""
        return self._array()

    def _open(self) -> None:
        if self.closed:
            raise InvalidArgumentError("this frame is closed: its slot may hold another one")

    def _array(self) -> Any:
        self._open()
        if self._made is None:
            points = self._channel._points
            if points is not None:
                self._order = points.before_reading(self._raw)
            if self._raw[6]:
                place = self._channel._places[self._slot].replace(nbytes=self._raw[4])
                self._made = rebuilt(place, self._raw[6], self._order)
            else:
                self._made = self._whole(self._order)
        if self._order is not None and isinstance(self._made, SharedArray):
            self._made.order = self._order  # a host's view takes it away
        return self._made

    def close(self) -> None:
        """Give the slot back. In mode "one" this acknowledges the frame. Idempotent."""
        self._release(True)

    def _release(self, done: bool) -> None:
        if self.closed:
            return
        self.closed = True
        channel = self._channel
        if channel.closed:
            return
        point = 0 if self._order is None else channel._points.signalled(self._order)
        try:
            channel._end.release(self._slot, done, point)
        except ForkError:
            pass  # the parent's

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        self._release(kind is None)

    def __del__(self) -> None:
        if not self.closed:
            with contextlib.suppress(XpuShareError):
                self._release(False)

    def __repr__(self) -> str:
        return f"<Frame {self.seq} of {self._channel.name!r}{' closed' if self.closed else ''}>"


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
