"""What a slot contains apart from the elements of its arrays: the metadata, and the layout of the arrays of a tree.

Both have the same encoding as in messages: `arrays.containers` encodes trees, and `objects.message` encodes dtypes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from xpushare.arrays.containers import flatten, unflatten, with_path
from xpushare.arrays.copies import values_of
from xpushare.arrays.description import check_elements, why_no_array
from xpushare.common.elements import extent
from xpushare.common.errors import InvalidArgumentError, InvalidHandleError, XpuShareError
from xpushare.core.memory import Range
from xpushare.objects.array import SharedArray, array_of
from xpushare.objects.message import NDIM_MAX, ONE_ARRAY, Content, read_text, text_of
from xpushare.sharing.layout import LEAF

__all__ = ["TEXT_NBYTES", "Layout", "decode_meta", "encode_meta", "laid_out", "rebuilt"]

TEXT_NBYTES: Final = 8192  # room in each slot for the description of a tree
_ALIGNMENT: Final = 64
_HEAD: Final = struct.Struct("<II")  # the number of arrays, and of their lengths and strides together


def encode_meta(meta: Any, most: int) -> bytes:
    if meta is None:
        return b""
    arrays, described = flatten(meta)
    if arrays:
        refused = InvalidArgumentError(
            f"metadata is None, bool, int, float, str, bytes, list, tuple and dict, not {type(arrays[0]).__name__}"
        )
        raise with_path(refused, described, 0)
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(text) > most:
        raise InvalidArgumentError(
            f"the metadata takes {len(text)} bytes, and the channel has room for {most}: create it with a larger "
            "meta_nbytes, or put the data into the frame"
        )
    return text


def decode_meta(text: bytes | None) -> Any:
    if not text:
        return None
    try:
        found: Any = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise InvalidHandleError(f"the frame's metadata is not JSON: {error}") from None
    return unflatten(found, ())


class Layout(NamedTuple):
    """The layout of the arrays of a tree in a slot."""

    copies: list[tuple[Any, int]]  # NumPy arrays that are not in the slot yet, and their offsets
    nbytes: int
    text: bytes


def laid_out(x: Any, room: int, slot: int | None = None) -> Layout:
    """Return the layout of an array, or of a tree of arrays, in a slot of `room` bytes. `slot` is the address of the
    slot. Arrays that already lie in the slot stay at their places.
    """
    if isinstance(x, dict | list | tuple):
        arrays, tree = flatten(x)
    else:
        arrays, tree = [x], ONE_ARRAY
    values: list[Any] = []
    for index, each in enumerate(arrays):
        try:
            found = values_of(each)
            if found is None:
                raise InvalidArgumentError(
                    f"a frame holds arrays and trees of arrays, not {type(each).__name__}{why_no_array(each)}"
                )
            check_elements(each, found.dtype)
        except XpuShareError as error:
            with_path(error, tree, index)
            raise
        values.append(found)
    offsets = [_offset_in(each, room, slot) for each in values]
    end = max((at + each.nbytes for each, at in zip(values, offsets, strict=True) if at is not None), default=0)
    copies: list[tuple[Any, int]] = []
    for i, each in enumerate(values):
        if offsets[i] is None:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + each.nbytes
            offsets[i] = start
            copies.append((each, start))
    if end > room:
        raise InvalidArgumentError(
            f"the arrays take {end} bytes, and a slot of this channel has {room}: create it with a larger nbytes"
        )
    text = _described(values, offsets, tree)
    if len(text) > TEXT_NBYTES:
        raise InvalidArgumentError(
            f"describing this tree, with its text and numbers, takes {len(text)} bytes, and a slot has {TEXT_NBYTES}: "
            "send fewer arrays at once, and put text and numbers into arrays"
        )
    return Layout(copies, max(end, 1), text)


def _offset_in(values: Any, room: int, slot: int | None) -> int | None:
    if slot is None or not values.nbytes or not values.flags.c_contiguous:
        return None
    at: int = values.ctypes.data - slot
    return at if 0 <= at <= room - values.nbytes else None


def _described(values: Sequence[Any], offsets: Sequence[int | None], tree: Any) -> bytes:
    dtypes: list[Any] = []
    leaves: list[bytes] = []
    steps: list[int] = []
    for each, offset in zip(values, offsets, strict=True):
        if each.dtype not in dtypes:
            dtypes.append(each.dtype)
        leaves.append(LEAF.pack(0, 0, dtypes.index(each.dtype), each.ndim, 0, offset))
        steps.extend(each.shape)
    head = _HEAD.pack(len(values), len(steps))
    return b"".join([head, *leaves, struct.pack(f"<{len(steps)}q", *steps), text_of(dtypes, tree)])


def rebuilt(place: Range, text: bytes, order: Any) -> Any:
    """Return the array or tree in a slot. `text` describes it. This checks that all arrays lie within the slot, since
    the writer is not trusted.
    """
    try:
        count, lengths = _HEAD.unpack_from(text)
        leaves_end = _HEAD.size + count * LEAF.size
        end = leaves_end + 8 * lengths
        if end > len(text):
            raise InvalidHandleError("the frame's description was cut")
        content: Content = read_text(text[end:])
        steps = struct.unpack_from(f"<{lengths}q", text, leaves_end)
    except struct.error as error:
        raise InvalidHandleError(f"the frame's description is none: {error}") from None
    arrays: list[SharedArray] = []
    at = 0
    for memory, event, kind, ndim, reserved, offset in LEAF.iter_unpack(text[_HEAD.size : leaves_end]):
        shape = steps[at : at + ndim]
        at += ndim
        if memory or event or reserved or ndim > NDIM_MAX or kind >= len(content.dtypes) or len(shape) != ndim:
            raise InvalidHandleError("the frame's description names what it does not have")
        arrays.append(_array(place, shape, content.dtypes[kind], offset, order))
    if content.tree is ONE_ARRAY or content.tree == ONE_ARRAY:
        if len(arrays) != 1:
            raise InvalidHandleError("the frame's description is of no single array")
        return arrays[0]
    return unflatten(content.tree, arrays)


def _array(place: Range, shape: tuple[int, ...], dtype: Any, offset: int, order: Any) -> SharedArray:
    if min(shape, default=0) < 0 or math.prod(each for each in shape if each) * dtype.itemsize >= 1 << 62:
        raise InvalidHandleError(f"the frame says shape {shape}, which no array can have")
    strides, step = [0] * len(shape), dtype.itemsize
    for axis in reversed(range(len(shape))):
        strides[axis] = step
        step *= max(shape[axis], 1)
    _low, high = extent(shape, tuple(strides), dtype.itemsize)
    if offset + high > place.nbytes:
        raise InvalidHandleError(f"the frame says bytes up to {offset + high} of a slot that has {place.nbytes}")
    made = array_of(place, shape, dtype, tuple(strides), offset)
    if order is not None:
        made._order = order
    return made
