"""Conversion of trees of arrays to JSON, and back."""

from __future__ import annotations

import base64
import functools
import itertools
import keyword
import math
import sys
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Number
from typing import Any, Final

from xpushare import _native
from xpushare._native import CONSTANTS
from xpushare.arrays.description import why_no_array
from xpushare.common.elements import expect_numpy, shown
from xpushare.common.errors import InvalidArgumentError, InvalidHandleError, XpuShareError
from xpushare.objects.dtypes import build_dtype, describe_dtype

__all__ = ["Only", "flatten", "only_argument", "pruned", "too_large", "unflatten", "warn_of_numbers", "with_path"]

_NBYTES_MAX: Final = CONSTANTS["MESSAGE_MOST"]
_DEPTH_MAX: Final = 64
_FIELDS_MAX: Final = 1 << 12  # the most fields of a named tuple, since making its type takes time and memory
_INT64: Final = 1 << 63
_X87_MANTISSA: Final = 63
_X87_NBYTES: Final = 10  # of a long double with that mantissa; in memory, padding follows
_LEAVES: Final = (str, bool, float, type(None))  # as JSON has them


# --- trees as JSON: an array is its index; a string, a float, true, false and null stand for themselves; ["i", number],
# ["b", Base64], ["c", real, imaginary], ["s", dtype, itemsize, Base64], ["l", elements], ["t", elements],
# ["n", name, fields, elements] and ["d", keys, values] for the rest


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the arrays of a tree, without duplicates, and the tree as a JSON value in which each array is replaced by
    its index. Raises `InvalidArgumentError` if the tree contains an object of an unsupported type.
    """
    found: Any = _native.flatten(tree, _NBYTES_MAX, _scalar_type())
    if found is NotImplemented:
        walk = _Walk()
        try:
            found = walk.arrays, walk.node(tree, 0)
        except XpuShareError as error:
            raise _at(error, walk.path) from None
        except MemoryError:
            raise
        except Exception as error:  # code of a subclass
            refused = InvalidArgumentError(f"this container does not hand out its content: {error!r:.200}")
            raise _at(refused, walk.path) from error
    arrays, described = found
    return arrays, described


def with_path(error: XpuShareError, described: Any, index: int) -> XpuShareError:
    """Return the error with the path of the array that it is about. `described` is the JSON value that `flatten` made,
    or `ONE_ARRAY`, which has no path.
    """
    seen: set[int] = set()  # a container that occurs several times is searched once
    left: list[tuple[Any, list[Any]]] = [(described, [])]
    while left:
        node, path = left.pop()
        if type(node) is int and node == index:
            return _at(error, path)
        if type(node) is not list or node[0] not in ("l", "t", "n", "d") or id(node) in seen:
            continue
        seen.add(id(node))
        keys = node[1] if node[0] == "d" else range(len(node[-1]))
        left.extend((child, [*path, key]) for key, child in reversed([*zip(keys, node[-1], strict=True)]))
    return error


def _at(error: XpuShareError, path: list[Any]) -> XpuShareError:
    if path:
        text = ".".join(map(str, path))
        error.message = f"at {text!r:.200}: {error}"
    return error


class _Walk:
    """Converts the nodes of a tree to JSON values. A container that occurs several times is converted once, since the
    number of paths to it may be exponential. Containers are identified by id, so this object keeps each of them alive,
    even one that a subclass creates on access.
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._indices: dict[int, int] = {}
        # For each container: the container, its description, its least bytes, the depth below it.
        self._known: dict[int, tuple[Any, Any, int, int]] = {}
        self._scalar = _scalar_type() or ()
        self._left = _NBYTES_MAX
        self._deepest = 0
        self.path: list[Any] = []  # the keys that lead to the node that is converted

    def node(self, x: Any, depth: int) -> Any:
        kind = type(x)
        if kind in _LEAVES:
            return x
        if kind is int:
            if not _is_int64(x):
                raise InvalidArgumentError("the integers of a tree have 64 bits: from -(2**63) to 2**63 - 1")
            return ["i", x]
        if not isinstance(x, dict | list | tuple):
            if isinstance(x, self._scalar):
                return self._numpy_scalar(x)
            if kind is complex:
                return ["c", x.real, x.imag]
            if kind is bytes:
                return ["b", self._text_of(x)]
            if isinstance(x, float | complex | bytes):
                raise InvalidArgumentError(f"{kind.__name__} is not a leaf of a tree{why_no_array(x)}")
            index = self._indices.get(id(x))
            if index is None:
                index = self._indices[id(x)] = len(self.arrays)
                self.arrays.append(x)
            return index
        held: Any = x
        _, node, nbytes, below = self._known.get(id(x), (None, None, 2 * len(held), 0))
        self._left -= nbytes
        if self._left < 0:
            raise too_large()
        if depth + below >= _DEPTH_MAX:
            raise InvalidArgumentError(f"a tree has a depth of {_DEPTH_MAX} at most (or does it contain itself?)")
        outside, self._deepest = self._deepest, depth + below
        if node is None:
            before = self._left
            node = self._contents(held, kind, depth + 1)
            self._known[id(x)] = x, node, nbytes + before - self._left, self._deepest - depth
        self._deepest = max(self._deepest, outside)
        return node

    def _text_of(self, content: bytes) -> str:
        self._left -= len(content)
        if self._left < 0:
            raise too_large()
        return base64.b64encode(content).decode()

    def _numpy_scalar(self, x: Any) -> Any:
        described = describe_dtype(x.dtype)
        return ["s", described, x.dtype.itemsize, self._text_of(_value_bytes(x))]

    def _contents(self, held: Any, kind: Any, depth: int) -> Any:
        if isinstance(held, dict):
            keys = list(held.keys())
            for key in keys:
                if not _is_key(key):
                    raise InvalidArgumentError(f"the keys of a tree are str, or int of 64 bits, not {key!r:.200}")
            values = self._children(keys, held.values(), depth)
            if not len(set(keys)) == len(keys) == len(values):
                raise InvalidArgumentError(
                    f"the keys of this {kind.__name__} repeat, or are not as many as its values ({len(keys)} keys, "
                    f"{len(set(keys))} different ones, {len(values)} values): make a dict of it"
                )
            return ["d", keys, values]
        elements = self._children((), held, depth)
        if kind is list or kind is tuple:
            return ["l" if kind is list else "t", elements]
        fields: Any = getattr(kind, "_fields", None)
        if isinstance(held, tuple) and isinstance(fields, tuple):
            names = list(fields)
            if len(names) == len(elements) and _are_names([kind.__name__], names):
                return ["n", kind.__name__, names, elements]
        base = "tuple" if isinstance(held, tuple) else "list"
        raise InvalidArgumentError(f"{kind.__name__} is another kind of {base}, which is not rebuilt: share {base}(x)")

    def _children(self, keys: Sequence[Any], nodes: Iterable[Any], depth: int) -> list[Any]:
        """Convert the elements of a container, which have these keys, or else their numbers."""
        found: list[Any] = []
        for key, each in zip(itertools.chain(keys, itertools.count()), nodes, strict=False):
            self.path.append(key)
            found.append(self.node(each, depth))
            self.path.pop()  # not after an error, whose place it is
        return found


def _value_bytes(x: Any) -> bytes:
    """Return the bytes of a NumPy scalar, with 0 for bytes that no value is in. These may have any content of this
    process's memory.
    """
    content: bytes = x.tobytes()
    if not x.dtype.names and x.dtype.char not in "gG":
        return content
    import numpy

    return (numpy.frombuffer(content, "u1") * _used(x.dtype)).tobytes()


def _used(dtype: Any) -> Any:
    """Return for each byte of an element whether a value is in it, as an array of bool."""
    import numpy

    if dtype.subdtype:
        base, shape = dtype.subdtype
        return numpy.tile(_used(base), math.prod(shape))
    used = numpy.full(dtype.itemsize, not dtype.names)
    for name in dtype.names or ():
        field, at = dtype.fields[name][:2]
        used[at : at + field.itemsize] |= _used(field)
    if dtype.char in "gG" and numpy.finfo("g").nmant == _X87_MANTISSA:
        parts = used.reshape(-1, numpy.dtype("g").itemsize)
        parts[:, :: 1 if dtype.isnative else -1][:, _X87_NBYTES:] = False
    return used


def _scalar_type() -> Any:
    """Return the base class of NumPy's scalars, or None if NumPy is not loaded, so that no NumPy scalars exist."""
    numpy: Any = sys.modules.get("numpy")
    return getattr(numpy, "generic", None)


def too_large() -> InvalidArgumentError:
    return InvalidArgumentError(f"the message of a tree has {_NBYTES_MAX >> 20} MiB at most: put numbers into arrays")


def _are_names(kind: list[Any], fields: list[Any]) -> bool:
    """Return whether these strings can be the type name and the field names of a named tuple. All of them must be
    identifiers. Field names must be distinct and must not begin with an underscore.
    """
    return len(set(map(str, fields))) == len(fields) <= _FIELDS_MAX and all(
        type(name) is str and name.isidentifier() and not keyword.iskeyword(name) and (at == 0 or name[0] != "_")
        for at, name in enumerate([*kind, *fields])
    )


@functools.lru_cache(256)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)  # pyright: ignore[reportUntypedNamedTuple]


def unflatten(described: Any, arrays: Sequence[Any], types: Iterable[Any] = ()) -> Any:
    """Rebuild a tree from the JSON value that `flatten` made, with `arrays` in place of the indices. Raises
    `InvalidHandleError` if the value is not a tree, and `InvalidArgumentError` if a class in `types` has other fields
    than the tree's named tuple of that name.
    """
    made = _Maker(arrays, types)  # checks the types
    found = _native.unflatten(described, arrays)
    return made.node(described, 0) if found is NotImplemented else found


class _Maker:
    """Rebuilds the nodes of a tree from JSON values."""

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
            if type(tag) is str and tag in ("b", "c", "s"):
                return _scalar(x)
            if _is_list(held) and depth < _DEPTH_MAX and type(tag) is str:
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
            except (ValueError, SyntaxError):  # for example different spellings of one name
                raise _no_tree([name, fields]) from None
        elif kind._fields != tuple(names):
            raise InvalidArgumentError(f"{kind.__qualname__} of types= has other fields than the tree's: {names}")
        return kind._make(elements)


def _scalar(x: list[Any]) -> Any:
    """Decode bytes, a complex number or a NumPy scalar from its JSON value."""
    match x:
        case ["b", str(text)]:
            return _bytes_of(x, text)
        case ["c", float(real), float(imaginary)]:
            return complex(real, imaginary)
        case ["s", described, int(itemsize), str(text)]:
            content = _bytes_of(x, text)
            if len(content) == itemsize:
                import numpy

                dtype = build_dtype(described, itemsize)
                expect_numpy(dtype)
                return numpy.ndarray((), dtype, content)[()]
        case _:
            pass
    raise _no_tree(x)


def _bytes_of(x: list[Any], text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise _no_tree(x) from None


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


def warn_of_numbers(tree: Any) -> None:
    """Warn if the caller shares a list of numbers. Such a tree contains no array, so no memory is shared, and the
    caller probably meant an array.
    """
    kind = type(tree)
    if (kind is list or kind is tuple) and tree and all(isinstance(each, Number) for each in tree):
        frame, outside = sys._getframe(), 1  # pyright: ignore[reportPrivateUsage]
        while (found := frame.f_back) is not None and frame.f_globals.get("__name__", "").startswith("xpushare."):
            frame, outside = found, outside + 1
        warnings.warn(
            "this tree holds no array, so no memory is shared: xs.array([...]) makes an array of a list",
            stacklevel=outside,
        )


# --- `only=`: a part of a tree

Only = Callable[[str], bool] | list[str]
_LEFT_OUT: Final = object()
_PATHS: Final = 5  # how many a message lists


def only_argument(only: Any) -> Only:
    """Check the `only=` argument. Return a list of paths, or the predicate. Raises `InvalidArgumentError` for any other
    argument.
    """
    if callable(only):
        given: Any = only
        predicate: Callable[[str], bool] = given
        return predicate
    paths: list[Any]
    try:
        paths = [only] if isinstance(only, str) else list(only)
    except Exception:  # code of its class
        paths = [only]
    if not all(type(each) is str for each in paths):
        raise InvalidArgumentError(f"only is paths, such as ['layers.0'], or a predicate of a path, not {shown(only)}")
    return paths


def pruned(described: Any, only: Only) -> tuple[Any, set[int]]:
    """Return the part of a tree that `only` selects, in a form that `unflatten` accepts, and the indices of its arrays.

    Raises `InvalidArgumentError` for a path of `only` at which the tree has no array.
    """
    part = _Part(only if callable(only) else _at_or_below(only))
    found = part.node(described, "")
    if not callable(only):
        for path in only:
            if not any(map(_at_or_below([path]), part.paths)):
                near = part.paths if len(part.paths) <= _PATHS else get_close_matches(path, part.paths, _PATHS, 0)
                more = f" and {len(part.paths) - _PATHS} others" if len(part.paths) > _PATHS else ""
                raise InvalidArgumentError(
                    f"the tree has no array at {path!r:.200}: it has {', '.join(map(repr, near)) or 'none'}{more}"
                )
    return (None if found is _LEFT_OUT else found), part.wanted


def _at_or_below(paths: list[str]) -> Callable[[str], bool]:
    exact, below = frozenset(paths), tuple(f"{each}." for each in paths)
    return lambda path: path in exact or path.startswith(below)


class _Part:
    def __init__(self, choice: Callable[[str], bool]) -> None:
        self.wanted: set[int] = set()
        self.paths: list[str] = []
        self._choice = choice

    def node(self, x: Any, path: str) -> Any:
        if type(x) is int:
            self.paths.append(path)
            if not self._choice(path):
                return _LEFT_OUT
            self.wanted.add(x)
            return x
        if type(x) is not list or x[0] not in ("l", "t", "n", "d"):
            return x
        dot = f"{path}." if path else ""
        if x[0] == "d":
            pairs = [(key, self.node(each, f"{dot}{key}")) for key, each in zip(x[1], x[2], strict=True)]
            pairs = [(key, each) for key, each in pairs if each is not _LEFT_OUT]
            return ["d", [key for key, _ in pairs], [each for _, each in pairs]]
        elements = [self.node(each, f"{dot}{at}") for at, each in enumerate(x[-1])]
        return [*x[:-1], [None if each is _LEFT_OUT else each for each in elements]]
