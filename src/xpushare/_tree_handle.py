"""`TreeHandle`: a sealed message that names a tree of arrays in shared memory. docs/layout.md describes its bytes."""

from __future__ import annotations

import functools
import hmac
import itertools
import keyword
import math
import struct
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, final

from xpushare import _native
from xpushare._array_handle import (
    NDIM_MAX,
    ArrayHandle,
    Parts,
    decode_dtype,
    encode_dtype,
    other_messages,
)
from xpushare._elements import extent
from xpushare._errors import InvalidArgumentError, InvalidHandleError
from xpushare._native import CONSTANTS, MAGICS, STRUCTS, Leaves, TreeParts, forks, read_tree
from xpushare.sharing import identity, layout, node
from xpushare.sharing.handle import SEAL_NBYTES, Handle, fields_of, keyed_hash, raw_of

if TYPE_CHECKING:
    from xpushare.core.ordering import Mark

__all__ = [
    "NBYTES_MAX",
    "ArrayHandle",
    "Content",
    "Dtypes",
    "Element",
    "TreeHandle",
    "content_of",
    "flatten",
    "seal_tree",
    "tree_bytes",
    "unflatten",
]

MAGIC: Final = MAGICS["tree"]
VERSION: Final = CONSTANTS["TREE_VERSION"]
NBYTES_MAX: Final = CONSTANTS["TREE_MOST"]
DEPTH_MAX: Final = 64
_FIELDS_MAX: Final = 1 << 12  # of a named tuple: making its type takes time and memory
HEADER: Final = struct.Struct("<" + "".join(code for _at, code in STRUCTS["tree"].values()))
POINT: Final = struct.Struct("<Q")  # after the handle of an event
ARRAY: Final = struct.Struct("<" + "".join(code for _at, code in STRUCTS["leaf"].values()))
_EVENT_NBYTES: Final = Handle.NBYTES + POINT.size
_INT64: Final = 1 << 63
_LEAVES: Final = (str, bool, float, type(None))  # as JSON has them


# --- trees as JSON: an array is its index; a string, a float, true, false and null stand for themselves; ["i", number],
# ["l", elements], ["t", elements], ["n", name, fields, elements] and ["d", keys, values] for the rest


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The arrays of a tree, each object once, and the tree in terms of JSON with their indices in their places.
    Raises `InvalidArgumentError` for what no message can say.
    """
    found: Any = _native.flatten(tree, NBYTES_MAX)
    if found is NotImplemented:
        walk = _Walk()
        found = walk.arrays, walk.node(tree, 0)
    arrays, described = found
    return arrays, described


class _Walk:
    """Describes the nodes of a tree; containers that occur several times once, since their number may be exponential.
    (No nested functions that call themselves: such are circles, which would keep the arrays.)
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._indices: dict[int, int] = {}
        self._known: dict[int, tuple[Any, int, int]] = {}  # of containers: description, least bytes, depth below
        self._left = NBYTES_MAX
        self._deepest = 0

    def node(self, x: Any, depth: int) -> Any:
        kind = type(x)
        if kind in _LEAVES:
            return x
        if kind is int:
            if not _is_int64(x):
                raise InvalidArgumentError(f"integers of a tree have 64 bits, not {x.bit_length()}")
            return ["i", x]
        if not isinstance(x, dict | list | tuple):
            if isinstance(x, float):
                return float(x)
            index = self._indices.get(id(x))
            if index is None:
                index = self._indices[id(x)] = len(self.arrays)
                self.arrays.append(x)
            return index
        held: Any = x
        node, nbytes, below = self._known.get(id(x), (None, 2 * len(held), 0))
        self._left -= nbytes
        if self._left < 0:
            raise _too_large()
        if depth + below >= DEPTH_MAX:
            raise InvalidArgumentError(f"a tree has a depth of {DEPTH_MAX} at most (or does it contain itself?)")
        outside, self._deepest = self._deepest, depth + below
        if node is None:
            before = self._left
            node = self._contents(held, kind, depth + 1)
            self._known[id(x)] = node, nbytes + before - self._left, self._deepest - depth
        self._deepest = max(self._deepest, outside)
        return node

    def _contents(self, held: Any, kind: Any, depth: int) -> Any:
        if isinstance(held, dict):
            keys = list(held)
            for key in keys:
                if not _is_key(key):
                    raise InvalidArgumentError(f"the keys of a tree are str, or int of 64 bits, not {key!r:.200}")
            return ["d", keys, [self.node(each, depth) for each in held.values()]]
        elements = [self.node(each, depth) for each in held]
        if kind is list or kind is tuple:
            return ["l" if kind is list else "t", elements]
        fields: Any = getattr(kind, "_fields", None)
        if isinstance(held, tuple) and isinstance(fields, tuple):
            names = list(fields)
            if len(names) == len(elements) and _are_names([kind.__name__], names):
                return ["n", kind.__name__, names, elements]
        raise InvalidArgumentError(
            f"a tree consists of dicts, lists, tuples and named tuples; {kind.__name__} is another kind of them"
        )


def _too_large() -> InvalidArgumentError:
    return InvalidArgumentError(f"the message of a tree has {NBYTES_MAX >> 20} MiB at most: put numbers into arrays")


def _are_names(kind: list[Any], fields: list[Any]) -> bool:
    """Whether a named tuple can be made of them; its fields have no underscore in front, and are there once."""
    return len(set(map(str, fields))) == len(fields) <= _FIELDS_MAX and all(
        type(name) is str and name.isidentifier() and not keyword.iskeyword(name) and (at == 0 or name[0] != "_")
        for at, name in enumerate([*kind, *fields])
    )


@functools.lru_cache(256)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)  # pyright: ignore[reportUntypedNamedTuple]


def unflatten(described: Any, arrays: Sequence[Any], types: Iterable[Any] = ()) -> Any:
    """The tree that `flatten` described, with these arrays. Raises `InvalidHandleError` for any other description, and
    `InvalidArgumentError` for `types` that are not those of the tree.
    """
    made = _Maker(arrays, types)  # checks the types
    found = _native.unflatten(described, arrays)
    return made.node(described, 0) if found is NotImplemented else found


class _Maker:
    """Makes the nodes of a tree."""

    def __init__(self, arrays: Sequence[Any], types: Iterable[Any]) -> None:
        self._arrays = arrays
        self._types = {kind.__name__: kind for kind in map(_checked_type, types)}

    def node(self, x: Any, depth: int) -> Any:
        kind = type(x)
        if kind is int:
            if not 0 <= x < len(self._arrays):
                raise InvalidHandleError(f"the tree names array {x:.100g} of {len(self._arrays)}")
            return self._arrays[x]
        if kind in _LEAVES:
            return x
        if kind is list and x:
            tag: Any = x[0]
            held: Any = x[-1]
            if tag == "i" and len(x) == 2 and _is_int64(held):
                return held
            if _is_list(held) and depth < DEPTH_MAX and type(tag) is str:
                elements = [self.node(each, depth + 1) for each in held]
                match tag, len(x):
                    case "l", 2:
                        return elements
                    case "t", 2:
                        return tuple(elements)
                    case "n", 4:
                        return self._named_tuple(x[1], x[2], elements)
                    case "d", 3:
                        keys: Any = x[1]
                        if _is_list(keys) and all(map(_is_key, keys)):
                            found: dict[Any, Any] = dict(zip(keys, elements, strict=False))
                            if len(found) == len(keys) == len(elements):
                                return found
                    case _:
                        pass
        raise _no_tree(x)

    def _named_tuple(self, name: Any, fields: Any, elements: list[Any]) -> Any:
        names: Any = fields if _is_list(fields) else [None]
        if not _are_names([name], names) or len(names) != len(elements):
            raise _no_tree([name, fields])
        kind = self._types.get(name)
        if kind is None:
            try:
                kind = _named_tuple(name, tuple(names))
            except (ValueError, SyntaxError):  # different spellings of one name, say
                raise _no_tree([name, fields]) from None
        elif kind._fields != tuple(names):
            raise InvalidArgumentError(f"{kind.__qualname__} of types= has other fields than the tree's: {names}")
        return kind._make(elements)


def _is_int64(x: Any) -> bool:
    return type(x) is int and -_INT64 <= x < _INT64


def _is_key(x: Any) -> bool:
    return type(x) is str or _is_int64(x)


def _is_list(x: Any) -> bool:
    return type(x) is list


def _no_tree(x: Any) -> InvalidHandleError:
    return InvalidHandleError(f"the message's tree is none: {x!r:.200}")


def _checked_type(kind: Any) -> Any:
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise InvalidArgumentError(f"types is classes of named tuples, not {kind!r:.200}")
    return kind


# --- the handle


class Element(NamedTuple):
    """An array of a tree."""

    memory: int  # the index of its memory
    event: int  # that of the event which orders it; -1: none
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    offset: int  # of its first element, in the memory's range


class Content(NamedTuple):
    """What the bytes say."""

    memory: tuple[Handle, ...]
    events: tuple[tuple[Handle, int], ...]
    leaves: TreeParts  # the arrays
    dtypes: list[Any]
    tree: Any  # as `flatten` describes it

    def elements(self) -> list[Element]:
        return [
            Element(memory, event, shape, strides, self.dtypes[dtype], offset)
            for memory, event, shape, strides, dtype, offset in self.leaves.elements()
        ]


@final
class TreeHandle(ArrayHandle):
    """A verified handle of a tree of arrays. Its first memory handle stands for the whole: the exports of the others
    end with that one's.
    """

    __slots__ = ("_events", "_memory", "_read_parts")

    _begins = "_own"
    _memory: tuple[Handle, ...]
    _events: tuple[tuple[Handle, int], ...]
    _read_parts: TreeParts | None  # of bytes that were read

    @classmethod
    def _of(
        cls,
        raw: bytes,
        memory: tuple[Handle, ...],
        events: tuple[tuple[Handle, int], ...],
        copied: int,
        parts: TreeParts | None = None,
    ) -> TreeHandle:
        self = object.__new__(cls)
        self._raw = raw
        self._parts = self._held = Parts(memory[0], None, 0, (), (), 0, 0, b"", copied, True)
        self._dtype = None
        self._owner = None
        self._memory = memory
        self._events = events
        self._read_parts = parts
        return self

    @classmethod
    def _own(
        cls, raw: bytes, memory: tuple[Handle, ...], events: tuple[tuple[Handle, int], ...], copied: int
    ) -> TreeHandle:
        """Of exports that were made for it, which its object owns."""
        self = cls._of(raw, memory, events, copied)
        self._owner = forks()
        return self

    @classmethod
    def _read(cls, raw: bytes) -> TreeHandle:
        """Verify the seal, and that the parts have their sizes; what they say is checked when the tree is attached."""
        parts = read_tree(identity.sealing(), raw)
        handles = None if parts is None else parts.handles(Handle, identity.boot_id())
        if parts is None or handles is None:
            raise InvalidHandleError(_why_bad(raw))
        return cls._of(raw, *handles, parts.copied, parts)

    def _content(self) -> Content:
        """Raises `InvalidHandleError` if an array does not lie inside its memory, or the text is no tree's."""
        parts = self._read_parts or read_tree(identity.sealing(), self._raw)
        assert parts is not None  # it was read before, or made here
        dtypes, tree = _read_text(parts.text)
        content = Content(self._memory, self._events, parts, dtypes, tree)
        if not parts.good(tuple([each.itemsize for each in dtypes])):
            raise InvalidHandleError(_why_unfit(self._raw, content))
        return content

    @property
    def handles(self) -> tuple[Handle, ...]:
        """The handles of the memory that the arrays lie in: one for each allocation (and access to it)."""
        return self._memory

    def _refuse(self) -> NoReturn:
        raise AttributeError("this is the handle of a tree: `handles` has those of its memory, xs.attach its arrays")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # also called where a property raised AttributeError
            if isinstance(getattr(TreeHandle, name, None), property):
                self._refuse()
            return super().__getattr__(name)

    @property
    def handle(self) -> NoReturn:
        self._refuse()

    @property
    def event(self) -> NoReturn:
        self._refuse()

    @property
    def shape(self) -> NoReturn:
        self._refuse()

    @property
    def strides(self) -> NoReturn:
        self._refuse()

    @property
    def dtype(self) -> NoReturn:
        self._refuse()

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of all arrays."""
        return sum(math.prod(each.shape) * int(each.dtype.itemsize) for each in self._content().elements())

    @property
    def read_only(self) -> bool:
        return all(handle.read_only for handle in self._memory)

    def close(self) -> None:
        self._held = None
        owner, self._owner = self._owner, None
        table = node.current().table_if_any
        if owner is not None and owner == forks() and table is not None:
            for handle in self._memory:
                table.withdraw(handle, layout.REASON_PUT)

    def _checked(self) -> NoReturn:
        raise InvalidArgumentError("this is the handle of a tree, not of an array: xs.attach opens it")

    def __repr__(self) -> str:
        pid = fields_of(self._memory[0]).pid
        arrays = HEADER.unpack_from(self._raw)[6]
        more = " read-only" if self.read_only else ""
        more += f", {self._parts.copied} bytes copied" if self._parts.copied else ""
        more += ", closed" if self._held is None else ""
        return f"<ArrayHandle of a tree of {arrays} arrays in {len(self._memory)} allocations, by pid {pid}{more}>"


other_messages[MAGIC] = attrgetter("_read")(TreeHandle)
content_of: Final[Callable[[TreeHandle], Content]] = attrgetter("_content")(TreeHandle)


def _why_bad(raw: bytes) -> str:
    """Why `read_tree` refuses these bytes. Raises what is wrong with a handle in them."""
    if not HEADER.size + Handle.NBYTES + SEAL_NBYTES <= len(raw) <= NBYTES_MAX:
        return f"the handle of a tree does not have {len(raw)} bytes"
    _magic, version, reserved, length, places, events, arrays, steps, text, _copied = HEADER.unpack_from(raw)
    if version != VERSION:
        return f"the tree's handle has format version {version}, this package reads {VERSION}"
    if length != len(raw) or not hmac.compare_digest(keyed_hash(raw[:-SEAL_NBYTES]), raw[-SEAL_NBYTES:]):
        return (
            "the tree's seal does not fit: it was cut or altered on the way, or made with another user's key "
            "(both processes need the same XPUSHARE_KEY_FILE or XPUSHARE_RUNTIME_DIR)"
        )
    expected = HEADER.size + places * Handle.NBYTES + events * _EVENT_NBYTES + arrays * ARRAY.size + 8 * steps
    expected += text + SEAL_NBYTES
    if reserved or not places or not arrays or length != expected:
        return (
            f"the tree's handle says things this version does not know ({places} allocations, {events} events, "
            f"{arrays} arrays, {length} bytes where {expected} are due)"
        )
    first = Handle(raw[HEADER.size : HEADER.size + Handle.NBYTES])
    sizes = [Handle.NBYTES] * places + [_EVENT_NBYTES] * events
    for at, size in zip(itertools.accumulate(sizes, initial=HEADER.size), sizes, strict=False):
        kind = "memory" if size == Handle.NBYTES else "event"
        found = Handle(raw[at : at + Handle.NBYTES])
        if found.kind != kind or fields_of(found).cookie != fields_of(first).cookie:
            return f"the tree's handle names {found.kind} where {kind} of its exporter is due"
    return "the tree's handle says a point that no event reaches"


def _why_unfit(raw: bytes, content: Content) -> str:
    """What is wrong with an array."""
    at = HEADER.size + len(content.memory) * Handle.NBYTES + len(content.events) * _EVENT_NBYTES
    steps_at = at + ARRAY.size * len(content.leaves)
    steps = HEADER.unpack_from(raw)[7]
    dimensions = struct.unpack_from(f"<{steps}q", raw, steps_at)
    first = 0
    for place, event, kind, ndim, reserved, offset in ARRAY.iter_unpack(raw[at:steps_at]):
        second, end = first + ndim, first + 2 * ndim
        known = place < len(content.memory) and event <= len(content.events) and kind < len(content.dtypes)
        if not known or ndim > NDIM_MAX or reserved or end > steps:
            return "the tree's handle has an array of what it does not have"
        shape, itemsize = dimensions[first:second], content.dtypes[kind].itemsize
        low, high = extent(shape, dimensions[second:end], itemsize)
        nonzero = math.prod(length for length in shape if length) * itemsize
        if min(shape, default=0) < 0 or not (nonzero < _INT64 and low > -_INT64 and high < _INT64):
            return f"the tree's handle says shape {shape}, which no array can have"
        if offset + low < 0 or offset + high > content.memory[place].nbytes:
            return (
                f"the tree's handle says bytes {offset + low} to {offset + high} of memory that has "
                f"{content.memory[place].nbytes}"
            )
        first = end
    return "the tree's handle has lengths and strides of no array"


def _read_text(text: bytes) -> tuple[list[Any], Any]:
    """The dtypes and the tree."""
    import json

    try:
        found: Any = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise InvalidHandleError(f"the message's tree is none: {error}") from None
    if _is_list(found) and len(found) == 2:
        dtypes, tree = found
        if _is_list(dtypes) and all(
            _is_list(each) and len(each) == 2 and type(each[0]) is str and type(each[1]) is int for each in dtypes
        ):
            built = [decode_dtype(each.encode("utf-8", "surrogatepass"), size) for each, size in dtypes]
            if any(each.hasobject for each in built):
                raise InvalidHandleError("the tree's handle says elements that are Python objects")
            return built, tree
    raise _no_tree(found)


_made: Final[Callable[..., TreeHandle]] = attrgetter("_own")(TreeHandle)


class Dtypes:
    """The dtypes of a tree, by their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by identity: structures that compare equal may differ
        self._known: list[Any] = []

    def number(self, dtype: Any) -> int:
        found = self._numbers.get(id(dtype))
        if found is None:
            found = self._numbers[id(dtype)] = len(self._known)
            self._known.append(dtype)
        return found

    def texts(self) -> list[Any]:
        return [[encode_dtype(each).decode("utf-8", "surrogatepass"), each.itemsize] for each in self._known]


def seal_tree(
    memory: Sequence[Handle], events: Sequence[Mark], leaves: Leaves, dtypes: Dtypes, tree: Any, copied: int
) -> TreeHandle:
    """The handle, whose object owns the exports. Raises `InvalidArgumentError` if it would be too large."""
    raw = tree_bytes(memory, events, leaves, dtypes, tree, copied)
    return _made(raw, tuple(memory), tuple([(mark.handle, mark.point) for mark in events]), copied)


def tree_bytes(
    memory: Sequence[Handle], events: Sequence[Mark], leaves: Leaves, dtypes: Dtypes, tree: Any, copied: int
) -> bytes:
    """The bytes of such a handle."""
    import json

    text = json.dumps([dtypes.texts(), tree], ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    raw = leaves.seal(
        identity.sealing(),
        list(map(raw_of, memory)),
        [raw_of(mark.handle) for mark in events],
        [mark.point for mark in events],
        text,
        copied,
    )
    if raw is None:
        raise _too_large()
    return raw
