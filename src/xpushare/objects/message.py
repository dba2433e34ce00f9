"""Messages of arrays: their text, which describes the dtypes and the tree, and the opening of their memory and of the
events that the readers of their arrays wait for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from xpushare._native import CONSTANTS, MessageState
from xpushare.common.elements import (
    check_dtype,
    dlpack_type,
    expect_numpy,
    named_by_typestr,
    named_elements,
    stand_in_name,
)
from xpushare.common.errors import InvalidArgumentError, InvalidHandleError
from xpushare.common.system import boot_id, boot_ids
from xpushare.core import memory
from xpushare.core.declare import made, watchers
from xpushare.core.opening import give_open
from xpushare.sharing import identity, node
from xpushare.sharing.handle import fields_of
from xpushare.sharing.refusals import flaw_of, leaf_flaw_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpushare.core.device import DeviceLike
    from xpushare.core.memory import Range
    from xpushare.core.ordering import Order
    from xpushare.core.queue import Work

    Orders = dict[tuple[int, int], Order]  # by the numbers of the memory and the event

__all__ = [
    "Content",
    "NBYTES_MAX",
    "NDIM_MAX",
    "ONE_ARRAY",
    "Part",
    "RANGE",
    "arrays_of",
    "build_dtype",
    "content_of",
    "describe_dtype",
    "give_back",
    "is_range",
    "is_unordered",
    "named_dtype",
    "open_message",
    "read_message",
    "read_text",
    "text_of",
]

NBYTES_MAX: Final = CONSTANTS["MESSAGE_MOST"]
NDIM_MAX: Final = CONSTANTS["ARRAY_DIMS"]
ONE_ARRAY: Final = 0  # the tree that is one array
RANGE: Final = "r"  # the beginning of the list that describes a growable range in place of a tree


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
    import json  # slow to import

    described = [[describe_dtype(each), each.itemsize] for each in dtypes]
    text = json.dumps([described, tree], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if tree is ONE_ARRAY:
        if len(_texts) >= _TEXTS_LIMIT:
            _texts.clear()
        _texts[id(dtypes[0])] = dtypes[0], text
    return text


def is_range(tree: Any) -> bool:
    """Return whether a message describes a growable range."""
    return type(tree) is list and len(tree) == 6 and tree[0] == RANGE


def content_of(message: MessageState) -> Content:
    """Return the content of a message. Raises `InvalidHandleError` if an array does not lie inside its memory, or if
    the message's text does not describe dtypes and a tree.
    """
    text = message._text
    found = _contents.get(text)
    if found is None:
        found = read_text(text)
        if len(text) <= _CONTENT_NBYTES:
            if len(_contents) >= _CONTENT_LIMIT:
                _contents.clear()
            _contents[text] = found
    flaw = message._flaw(found.itemsizes)
    if flaw is not None:
        raise leaf_flaw_of(*flaw, message, found.itemsizes)
    return found


def read_text(text: bytes) -> Content:
    """Return the content that a text made by `text_of` describes. Raises `InvalidHandleError` for any other text."""
    import json  # slow to import

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


def read_message(raw: bytes) -> Any:
    """Return the `ArrayHandle` of these bytes. Raises `InvalidHandleError` unless they are of this user and boot."""
    seal = identity.seal or identity.sealing()
    found = seal.read_message(raw, boot_ids[0] if boot_ids else boot_id())
    if type(found) is tuple:
        raise flaw_of(found[0], raw, found[1])
    return found


# --- descriptions of dtypes in JSON: a string for a simple dtype, [base, shape] for a sub-array, an object for a
# structure

_NESTING_MAX: Final = 16
# Compiled at their first use: memory alone needs neither.
_PLAIN: Final = r"[<>|=][biufcSUV]\d{1,10}|[<>][mM]8(\[\d{0,10}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
_NAMED: Final = r"bfloat16|float[468]_e[a-z0-9]{1,16}|u?int[124]"  # of ml_dtypes


def describe_dtype(dtype: Any) -> Any:
    """Return the dtype as JSON. Raises `InvalidArgumentError` for a dtype that another process cannot name."""
    check_dtype(dtype)
    return _described(dtype, 0)


def _described(dtype: Any, depth: int) -> Any:
    if depth > _NESTING_MAX:
        raise InvalidArgumentError(f"a dtype has structures in structures {_NESTING_MAX} deep at most")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_described(base, depth + 1), list(shape)]
    if (name := stand_in_name(dtype)) is not None:
        return name
    if dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        found = {
            "names": list(dtype.names),
            "formats": [_described(field[0], depth + 1) for field in fields],
            "offsets": [int(field[1]) for field in fields],
            "itemsize": dtype.itemsize,
            "aligned": bool(dtype.isalignedstruct),
        }
        titles = [field[2] if len(field) > 2 else None for field in fields]
        if any(titles):
            if not all(each is None or type(each) is str for each in titles):
                raise InvalidArgumentError(f"the titles of fields are str, not {titles!r:.200}")
            found["titles"] = titles
        return found
    if named_by_typestr(dtype) and re.fullmatch(_PLAIN, dtype.str):
        return dtype.str
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        return str(dtype.name)
    raise InvalidArgumentError(f"dtype {dtype!r} cannot be shared: another process has no way to name it")


def build_dtype(described: Any, itemsize: int) -> Any:
    """Return the dtype that `describe_dtype` described. Raises `InvalidHandleError` for any other description."""
    found = _built(described, 0)
    if found.hasobject:
        raise InvalidHandleError("the array handle says elements that are Python objects")
    if found.subdtype is not None:
        raise InvalidHandleError("the array handle says elements that are sub-arrays")
    if found.itemsize != itemsize:
        raise InvalidHandleError(f"the array handle says items of {itemsize} bytes and a dtype of {found.itemsize}")
    return found


def named_dtype(name: str) -> Any:
    """Return the `ml_dtypes` dtype with this name, such as bfloat16, or a stand-in if `ml_dtypes` is not installed."""
    found = named_elements(name)
    if found is None:
        raise InvalidHandleError(f"the array handle's dtype is not a dtype: {name!r}")
    return found


def _built(described: Any, depth: int) -> Any:
    import numpy

    try:
        if isinstance(described, str) and re.fullmatch(_PLAIN, described):
            return numpy.dtype(described)
        if isinstance(described, str) and re.fullmatch(_NAMED, described):
            found = named_dtype(described)
            if depth:
                expect_numpy(found)  # a structure is NumPy's
            return found
        if depth < _NESTING_MAX and isinstance(described, list):
            base, shape = cast("Any", described)
            lengths: Any = tuple(cast("Any", shape)) if isinstance(shape, list) else None
            if lengths is not None and all(type(length) is int and length >= 0 for length in lengths):
                return numpy.dtype((_built(base, depth + 1), lengths))
        if depth < _NESTING_MAX and isinstance(described, dict):
            fields: Any = dict(cast("dict[str, Any]", described))
            if set(fields) - {"titles"} == {"names", "formats", "offsets", "itemsize", "aligned"}:
                aligned = fields.pop("aligned") is True
                fields["formats"] = [_built(each, depth + 1) for each in fields["formats"]]
                return numpy.dtype(fields, align=aligned)
    except InvalidArgumentError:  # this includes nested dtypes
        raise
    except Exception as error:  # whatever NumPy raises for a description that makes no sense
        raise InvalidHandleError(f"the array handle's dtype is not a dtype: {error}") from None
    raise InvalidHandleError(f"the array handle's dtype is not a dtype: {described!r:.200}")


# --- the memory of a message, and the events that the readers of its arrays wait for

_UNORDERED: Final = -1


def is_unordered(stream: object) -> bool:
    """Return whether `stream` is the int -1, which means that nothing waits for the producer. Objects of other types
    are not compared with -1, since another library's stream may not support comparison.
    """
    return isinstance(stream, int) and stream == _UNORDERED


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
        from xpushare.core import event as events
        from xpushare.core.ordering import Order

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
