"""The layout of a channel, and its encoding for other processes."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from typing import Any, Final, NamedTuple, final

from xpushare import _native
from xpushare.adapters import HOST
from xpushare.channels.frames import TEXT_NBYTES
from xpushare.channels.groups import Place
from xpushare.common.elements import as_dtype, as_shape, check_dtype, dtype_words
from xpushare.common.errors import InvalidArgumentError, InvalidHandleError, OutOfMemoryError, XpuShareError
from xpushare.common.foreign import printable
from xpushare.common.numbers import integer
from xpushare.common.texts import readable
from xpushare.core.device import Device
from xpushare.objects.message import build_dtype, describe_dtype
from xpushare.sharing import layout

__all__ = [
    "WRITERS_MOST",
    "Geometry",
    "Numbers",
    "choice",
    "describe",
    "read_geometry",
    "read_numbers",
    "stride_of",
    "wanted",
]

WRITERS_MOST: Final = 64

_ON_FULL: Final = {"block": 0, "overwrite": 1, "raise": 2}
_ON_NO_READERS: Final = {"drop": 0, "block": 1, "raise": 2}
_PAGE: Final = 4096
_NBYTES_MOST: Final = (1 << 47) - 1  # of a frame
_OPTIONS: Final[dict[str, Callable[[int], object]]] = {  # numbers that a caller chooses, and how messages show them
    "slots": str, "writers": str, "history": str, "redeliver": str, "ends": str,
    "on_full": lambda number: repr([*_ON_FULL][number]),
    "on_no_readers": lambda number: repr([*_ON_NO_READERS][number]), "meta_nbytes": str,
}  # fmt: skip


def _count(name: str, value: int, least: int, most: int) -> int:
    return integer(name, value, lambda number: least <= number <= most, f"is a number from {least} to {most}")


def choice(name: str, value: str, among: dict[str, int]) -> int:
    found = among.get(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidArgumentError(f"{name} is one of {', '.join(map(repr, among))}, not {value!r:.100}")
    return found


def stride_of(nbytes: int) -> int:
    """Return the distance between two slots in bytes, for frames of `nbytes` bytes."""
    unit = 256 if nbytes < _PAGE else _PAGE
    return -(-nbytes // unit) * unit


class Numbers(NamedTuple):
    """The numbers of a channel's layout: the fields of `xp_geometry`, in their order."""

    nbytes: int  # of a frame
    slots: int
    spare: int  # extra slots for failed frames
    writers: int
    history: int
    redeliver: int
    on_full: int
    on_no_readers: int
    meta_nbytes: int
    text_nbytes: int
    device: int  # 1 if devices work on frames
    ends: int  # the most writers and readers


@final
class Geometry:
    """The layout of a channel. It consists of the numbers that native code stores (sizes, counts and options), and of
    the shape and dtype of the frames.
    """

    __slots__ = ("device", "dtype", "numbers", "shape", "stride", "text")

    def __init__(self, numbers: Numbers, shape: Any, dtype: Any, device: Device) -> None:
        self.numbers: Final = numbers
        self.shape: Final = shape
        self.dtype: Final = dtype
        self.device: Final = device
        self.stride: Final = stride_of(numbers.nbytes)
        described = None if dtype is None else [list(shape), describe_dtype(dtype), dtype.itemsize]
        self.text: Final = json.dumps([str(device.uuid), device.backend, described]).encode()
        if len(self.text) > _native.CHANNEL_TEXT:
            raise InvalidArgumentError("the dtype of the frames is too complicated: use nbytes= and send structures")

    @property
    def packed(self) -> bytes:
        return layout.GEOMETRY.pack(*self.numbers)

    @property
    def count(self) -> int:
        """The number of slots, including the extra slots for failed frames."""
        return self.numbers.slots + self.numbers.spare

    @property
    def total(self) -> int:
        return self.stride * self.count

    def unlike(self, there: Geometry) -> list[str]:
        """Return the differences between an existing channel (`there`) and this requested layout, as phrases for an
        error message.
        """
        found = [
            f"{'members' if option == 'ends' else option}={shown(had)}, not {shown(asked)}"
            for option, shown in _OPTIONS.items()
            if (had := getattr(there.numbers, option)) != (asked := getattr(self.numbers, option))
        ]
        if self.text != there.text or self.numbers.nbytes != there.numbers.nbytes:
            found.insert(0, f"{_frames(there)} on {there.device}, not {_frames(self)} on {self.device}")
        return found


def read_numbers(place: Place) -> tuple[Numbers, str, str, Any]:
    """Return the numbers of a channel's layout, the device's uuid and backend, and the description of the frames, which
    is not checked. Any member may have damaged them. Raises `InvalidHandleError` then.
    """
    try:
        numbers, text = place.native.channel_geometry()
        uuid, backend, described = json.loads(text)
        if not (type(uuid) is str and type(backend) is str):
            raise TypeError("the device is not a text")
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidHandleError(f"the channel's description is damaged: {error}") from None
    return Numbers(*layout.GEOMETRY.unpack(numbers)), printable(uuid), printable(backend), described


def read_geometry(place: Place) -> Geometry:
    numbers, _uuid, _backend, described = read_numbers(place)
    shape = dtype = None
    if described is not None:
        try:
            shape = tuple(map(operator.index, described[0]))
            dtype = build_dtype(described[1], operator.index(described[2]))
        except XpuShareError:
            raise
        except Exception as error:  # whatever a member wrote there
            raise InvalidHandleError(f"the channel's description is damaged: {error!r:.200}") from None
    if len(place.ranges) != 2:
        raise InvalidHandleError("the channel has no slots")
    found = Geometry(numbers, shape, dtype, place.ranges[1].device)
    fits = dtype is None or (min(shape or (1,)) >= 0 and math.prod(shape or ()) * dtype.itemsize == numbers.nbytes)
    if not fits or place.ranges[1].nbytes < found.total:
        raise InvalidHandleError("the channel's frames do not fit in its slots")
    return found


def wanted(
    shape: Any, dtype: Any, nbytes: int | None, device: Device, slots: int, on_full: str,
    on_no_readers: str, history: int, writers: int, meta_nbytes: int, redeliver: int, members: int,
) -> Geometry:  # fmt: skip
    if (shape is None) == (nbytes is None):
        raise InvalidArgumentError(
            "pass either shape= and dtype= of the frames, or nbytes=, the size of the largest frame"
        )
    lengths = kind = None
    if shape is not None:
        kind = as_dtype(float if dtype is None else dtype)
        check_dtype(kind)
        lengths = as_shape(shape)
        size = math.prod(lengths) * kind.itemsize
        if not size:
            raise InvalidArgumentError("frames have at least one byte")
        if size > _NBYTES_MOST:
            raise OutOfMemoryError(f"no device has the {readable(size)} of one frame")
    else:
        if dtype is not None:
            raise InvalidArgumentError("dtype goes with shape; frames of nbytes= say theirs themselves")
        size = _count("nbytes", nbytes, 1, _NBYTES_MOST)  # type: ignore[arg-type]
    writers = _count("writers", writers, 1, WRITERS_MOST)
    slots = _count("slots", slots, writers + 2, 4096 - _native.CHANNEL_SPARE)
    history = _count("history", history, 0, slots - 1 - writers)
    redeliver = _count("redeliver", redeliver, 0, (1 << 31) - 1)
    numbers = Numbers(
        nbytes=size,
        slots=slots,
        spare=_native.CHANNEL_SPARE if redeliver else 0,
        writers=writers,
        history=history,
        redeliver=redeliver,
        on_full=choice("on_full", on_full, _ON_FULL),
        on_no_readers=choice("on_no_readers", on_no_readers, _ON_NO_READERS),
        meta_nbytes=_count("meta_nbytes", meta_nbytes, 0, 1 << 20),
        text_nbytes=TEXT_NBYTES if kind is None else 0,
        device=int(device.backend != HOST),
        ends=_count("members", members, writers + 1, _native.GROUP_MEMBERS),
    )
    return Geometry(numbers, lengths, kind, device)


def _frames(found: Geometry) -> str:
    return f"nbytes={found.numbers.nbytes}" if found.dtype is None else f"{found.shape} {dtype_words(found.dtype)}"


def describe(found: Geometry) -> str:
    return f"of {_frames(found)}, slots={found.numbers.slots}, writers={found.numbers.writers} on {found.device}"
