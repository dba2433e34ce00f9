"""The content of a message except its handles: the dtypes and the tree of its arrays. This module also explains why
invalid bytes are not a message.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xpushare import _native
from xpushare._native import CONSTANTS, MAGICS, STRUCTS, message_good, message_text
from xpushare.common.elements import dlpack_type, extent
from xpushare.common.errors import InvalidHandleError
from xpushare.common.system import boot_id, boot_ids
from xpushare.objects.dtypes import build_dtype, describe_dtype
from xpushare.sharing import identity, layout
from xpushare.sharing.handle import (
    CHANNEL_MAGIC,
    KIND_NUMBERS,
    OF_CHANNEL,
    OF_TEXT,
    SEAL_NBYTES,
    TEXT_BEGIN,
    Fields,
    Handle,
    expect_this_boot,
    fields_of,
    keyed_hash,
    wrong_seal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpushare._native import MessageState

__all__ = [
    "ARRAY",
    "NBYTES_MAX",
    "NDIM_MAX",
    "ONE_ARRAY",
    "Content",
    "content_of",
    "read_message",
    "read_text",
    "text_of",
]

MAGIC: Final = MAGICS["message"]
VERSION: Final = CONSTANTS["MESSAGE_VERSION"]
NBYTES_MAX: Final = CONSTANTS["MESSAGE_MOST"]
NDIM_MAX: Final = CONSTANTS["ARRAY_DIMS"]
HEADER: Final = layout.MESSAGE
ARRAY: Final = struct.Struct("<" + "".join(code for _at, code in STRUCTS["leaf"].values()))
EVENT_NBYTES: Final = Handle.NBYTES + 8  # the handle and its point
ONE_ARRAY: Final = 0  # the tree that is one array
_INT64: Final = 1 << 63


@dataclass(slots=True, eq=False)  # a named tuple takes longer to read
class Content:
    """The data that the text part of a message describes: the dtypes and the tree of its arrays."""

    dtypes: tuple[Any, ...]
    itemsizes: tuple[int, ...]
    on_dlpack: tuple[tuple[tuple[int, int, int], int], ...] | None  # DLPack's types and item sizes; None: it lacks one
    tree: Any  # in terms of JSON: see `arrays.containers`


# --- the text: JSON of the dtypes, each with its item size, and of the tree

_TEXTS_LIMIT: Final = 256
_CONTENT_LIMIT: Final = 256
_CONTENT_NBYTES: Final = 1 << 16  # longer texts are read each time
# Of one array. By the id of the dtype, which lives: structures that compare equal may differ, in being aligned say.
_texts: dict[int, tuple[Any, bytes]] = {}
_contents: dict[bytes, Content] = {}


def text_of(dtypes: Sequence[Any], tree: Any) -> bytes:
    """Return the text part of a message, for arrays with these dtypes. Raises `InvalidArgumentError` for a dtype
    without a name.
    """
    if tree is ONE_ARRAY:
        (dtype,) = dtypes
        known = _texts.get(id(dtype))
        if known is not None:
            return known[1]
    described = [[describe_dtype(each), each.itemsize] for each in dtypes]
    text = json.dumps([described, tree], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if tree is ONE_ARRAY:
        if len(_texts) >= _TEXTS_LIMIT:
            _texts.clear()
        _texts[id(dtypes[0])] = dtypes[0], text
    return text


def content_of(message: MessageState) -> Content:
    """Return the content of a message. Raises `InvalidHandleError` if an array does not lie inside its memory, or if
    the message's text does not describe dtypes and a tree.
    """
    text = message_text(message)
    found = _contents.get(text)
    if found is None:
        found = read_text(text)
        if len(text) <= _CONTENT_NBYTES:
            if len(_contents) >= _CONTENT_LIMIT:
                _contents.clear()
            _contents[text] = found
    if not message_good(message, found.itemsizes):
        raise InvalidHandleError(_why_unfit(bytes(message), found))
    return found


def read_text(text: bytes) -> Content:
    """Return the content that a text made by `text_of` describes. Raises `InvalidHandleError` for any other text."""
    try:
        found: Any = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise InvalidHandleError(f"the array handle's text is not JSON: {error}") from None
    if not (type(found) is list and len(found) == 2 and type(found[0]) is list):
        raise InvalidHandleError(f"the array handle's text says no dtypes and tree: {found!r:.200}")
    described, tree = found
    for each in described:
        if not (type(each) is list and len(each) == 2 and type(each[1]) is int):
            raise InvalidHandleError(f"the array handle's text says no dtype: {each!r:.200}")
    dtypes = tuple([build_dtype(each, itemsize) for each, itemsize in described])
    itemsizes = tuple([each.itemsize for each in dtypes])
    try:
        on_dlpack = tuple([(dlpack_type(each), each.itemsize) for each in dtypes])
    except BufferError:
        on_dlpack = None
    return Content(dtypes, itemsizes, on_dlpack, tree)


# --- what is wrong with bytes


def _why_bad(raw: bytes) -> str:
    """Return why these bytes are not a message of this user and boot. Raises if a handle in them is bad."""
    if len(raw) == Handle.NBYTES and raw[:8] != MAGIC:
        found = Handle(raw)
        what = "an event" if found.kind == "event" else found.kind
        return f"this is a handle of {what}, not of an array: open it with ipc.{found.kind}.open"
    if raw.startswith(CHANNEL_MAGIC):
        return OF_CHANNEL
    if raw.startswith(TEXT_BEGIN):
        return OF_TEXT
    if not MAGIC.startswith(raw[:8]):
        return f"these {len(raw)} bytes are not an array handle: `attach` takes what `xs.share` returned"
    if not HEADER.size + Handle.NBYTES + SEAL_NBYTES <= len(raw) <= NBYTES_MAX:
        return f"these {len(raw)} bytes are not a whole array handle: they were cut on the way"
    head = _head(raw)
    if head["version"] != VERSION:
        return f"the array handle has format version {head['version']}, this package reads version {VERSION}"
    places, events, arrays = head["memory"], head["events"], head["arrays"]
    expected = HEADER.size + places * Handle.NBYTES + events * EVENT_NBYTES + arrays * ARRAY.size + 8 * head["steps"]
    expected += head["text_nbytes"] + SEAL_NBYTES
    whole = head["length"] == expected == len(raw)
    if not whole or keyed_hash(_covered(raw, places, events)) != raw[-SEAL_NBYTES:]:
        return wrong_seal("array handle", Fields(raw[HEADER.size : HEADER.size + Handle.NBYTES]).pid)
    if head["reserved0"] or head["reserved1"] or not places or not arrays:
        return (
            f"the array handle says things this version does not know ({places} allocations, {events} events, "
            f"{arrays} arrays)"
        )
    first = fields_of(Handle(raw[HEADER.size : HEADER.size + Handle.NBYTES]))
    for at, kind in _handles(places, events):
        found = Handle(raw[at : at + Handle.NBYTES])
        fields = fields_of(found)
        if fields.kind != KIND_NUMBERS[kind]:
            return f"the array handle names {found.kind} where {kind} is due"
        if fields.cookie != first.cookie:
            return f"the array handle names {kind} that is none of its exporter"
        expect_this_boot(fields.boot_id)
    return "the array handle says a point that no event reaches"


def _head(raw: bytes) -> dict[str, Any]:
    """Return the fields at the beginning of a message, by the names of `xp_message`."""
    return dict(zip(STRUCTS["message"], HEADER.unpack_from(raw), strict=True))


def _handles(places: int, events: int) -> list[tuple[int, str]]:
    """Return the offsets of the handles in a message, and the kinds of the handles."""
    end = HEADER.size + places * Handle.NBYTES
    memory = [(HEADER.size + number * Handle.NBYTES, "memory") for number in range(places)]
    return memory + [(end + number * EVENT_NBYTES, "event") for number in range(events)]


def _covered(raw: bytes, places: int, events: int) -> bytes:
    """Return the bytes of a message that its seal is computed from. Each handle in the message is represented only by
    the handle's own seal.
    """
    found = [raw[: HEADER.size]]
    for at, kind in _handles(places, events):
        end = at + Handle.NBYTES
        found.append(raw[end - SEAL_NBYTES : end if kind == "memory" else at + EVENT_NBYTES])
    rest = HEADER.size + places * Handle.NBYTES + events * EVENT_NBYTES
    return b"".join([*found, raw[rest:-SEAL_NBYTES]])


def _why_unfit(raw: bytes, content: Content) -> str:
    """Return a text that says why an array of a message is invalid."""
    head = _head(raw)
    places, events, arrays, steps = head["memory"], head["events"], head["arrays"], head["steps"]
    at = HEADER.size + places * Handle.NBYTES + events * EVENT_NBYTES
    steps_at = at + ARRAY.size * arrays
    dimensions = struct.unpack_from(f"<{steps}q", raw, steps_at)
    first = 0
    for place, event, kind, ndim, reserved, offset in ARRAY.iter_unpack(raw[at:steps_at]):
        second, end = first + ndim, first + 2 * ndim
        known = place < places and event <= events and kind < len(content.dtypes)
        if not known or ndim > NDIM_MAX or reserved or end > steps:
            return "an array of the array handle refers to memory that the handle does not have"
        shape, itemsize = dimensions[first:second], content.itemsizes[kind]
        low, high = extent(shape, dimensions[second:end], itemsize)
        nonzero = math.prod(length for length in shape if length) * itemsize
        if min(shape, default=0) < 0 or not (nonzero < _INT64 and low > -_INT64 and high < _INT64):
            return f"the array handle says shape {shape}, which no array can have"
        nbytes = Handle(raw[HEADER.size + place * Handle.NBYTES :][: Handle.NBYTES]).nbytes
        if offset + low < 0 or offset + high > nbytes:
            return f"the array handle says bytes {offset + low} to {offset + high} of memory that has {nbytes}"
        first = end
    return "the array handle has lengths and strides of no array"


def read_message(raw: bytes) -> Any:
    """Return the `ArrayHandle` of these bytes. Raises `InvalidHandleError` unless they are of this user and boot."""
    seal = identity.seal or identity.sealing()
    found = _native.read_message(seal, raw, boot_ids[0] if boot_ids else boot_id())
    if found is None:
        raise InvalidHandleError(_why_bad(raw))
    return found
