"""Conversion of trees of arrays to JSON, and back."""

from __future__ import annotations

import base64
import functools
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
from xpushare.objects.message import build_dtype, describe_dtype

__all__ = ["Only", "flatten", "only_argument", "pruned", "too_large", "unflatten", "warn_of_numbers", "with_path"]

_NBYTES_MAX: Final = CONSTANTS["MESSAGE_MOST"]
_DEPTH_MAX: Final = 64
_FIELDS_MAX: Final = 1 << 12  # the most fields of a named tuple, since making its type takes time and memory
_X87_MANTISSA: Final = 63
_X87_NBYTES: Final = 10  # of a long double with that mantissa; in memory, padding follows


# --- trees as JSON: an array is its index; a string, a float, true, false and null stand for themselves; ["i", number],
# ["b", Base64], ["c", real, imaginary], ["s", dtype, itemsize, Base64], ["l", elements], ["t", elements],
# ["n", name, fields, elements] and ["d", keys, values] for the rest


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the arrays of a tree, without duplicates, and the tree as a JSON value in which each array is replaced by
    its index. Raises `InvalidArgumentError` if the tree contains an object of an unsupported type.
    """
    path: list[Any] = []  # the keys that lead to the node of an error, the last one first
    try:
        found: tuple[list[Any], Any] = _native.flatten(tree, _NBYTES_MAX, _scalar_type(), _asked, path)
    except XpuShareError as error:
        raise _at(error, path[::-1]) from None
    except MemoryError:
        raise
    except Exception as error:  # code of a subclass
        refused = InvalidArgumentError(f"this container does not hand out its content: {error!r:.200}")
        raise _at(refused, path[::-1]) from error
    return found


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


def _asked(what: str, x: Any, node: Any) -> Any:
    """Return what native code asks for: the JSON value of a leaf, or of a subclass of a container, for which native
    code made `node`. Raises `InvalidArgumentError` if a tree cannot have this.
    """
    match what:
        case "leaf":
            return _leaf(x)
        case "subclass":
            return _of_subclass(x, node)
        case "key":
            raise InvalidArgumentError(f"the keys of a tree are str, or int of 64 bits, not {x!r:.200}")
        case "deep":
            raise InvalidArgumentError(f"a tree has a depth of {_DEPTH_MAX} at most (or does it contain itself?)")
        case _:
            raise too_large()


def _leaf(x: Any) -> Any:
    """Return the JSON value of a number, bytes or a NumPy scalar."""
    kind = type(x)
    if kind is int:
        raise InvalidArgumentError("the integers of a tree have 64 bits: from -(2**63) to 2**63 - 1")
    if isinstance(x, _scalar_type() or ()):
        return ["s", describe_dtype(x.dtype), x.dtype.itemsize, _text_of(_value_bytes(x))]
    if kind is complex:
        return ["c", x.real, x.imag]
    if kind is bytes:
        return ["b", _text_of(x)]
    raise InvalidArgumentError(f"{kind.__name__} is not a leaf of a tree{why_no_array(x)}")


def _text_of(content: bytes) -> str:
    if len(content) > _NBYTES_MAX:
        raise too_large()
    return base64.b64encode(content).decode()


def _of_subclass(held: Any, node: list[Any]) -> list[Any]:
    """Return the JSON value of a subclass of dict, or of a named tuple."""
    kind, elements = type(held), node[-1]
    if isinstance(held, dict):
        keys = node[1]
        if not len(set(keys)) == len(keys) == len(elements):
            raise InvalidArgumentError(
                f"the keys of this {kind.__name__} repeat, or are not as many as its values ({len(keys)} keys, "
                f"{len(set(keys))} different ones, {len(elements)} values): make a dict of it"
            )
        return node
    fields: Any = getattr(kind, "_fields", None)
    if isinstance(held, tuple) and isinstance(fields, tuple):
        names = list(fields)
        if len(names) == len(elements) and _are_names([kind.__name__], names):
            return ["n", kind.__name__, names, elements]
    base = "tuple" if isinstance(held, tuple) else "list"
    raise InvalidArgumentError(f"{kind.__name__} is another kind of {base}, which is not rebuilt: share {base}(x)")


def _value_bytes(x: Any) -> bytes:
    """Return the bytes of a NumPy scalar, with 0 for bytes that no value is in. These may have any content of this
    process's memory.
    """
    content: bytes = x.tobytes()
    if not x.dtype.names and x.dtype.char not in "gG":
        return content
    import numpy

    cleared: bytes = (numpy.frombuffer(content, "u1") * _used(x.dtype)).tobytes()
    return cleared


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
    known = {kind.__name__: kind for kind in map(_checked_type, types)}

    def made(x: Any, elements: list[Any] | None) -> Any:
        if type(x) is int:
            raise InvalidHandleError(f"the tree names array {x:.100g} of {len(arrays)}")
        if elements is None:
            return _scalar(x)
        match x:
            case ["n", name, fields, _]:
                return _made_named(known, name, fields, elements)
            case _:
                raise _no_tree(x)

    return _native.unflatten(described, arrays, made)


def _made_named(known: dict[str, Any], name: Any, fields: Any, elements: list[Any]) -> Any:
    """Rebuild a named tuple, whose class may be among `known`."""
    names: Any = fields if _is_list(fields) else [None]
    if not _are_names([name], names) or len(names) != len(elements):
        raise _no_tree([name, fields])
    kind = known.get(name)
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
