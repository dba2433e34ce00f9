"""The elements of an array: their types and their layout in memory. From this package, the module imports only the
errors.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, Final

from xpushare.common.errors import InvalidArgumentError
from xpushare.common.numbers import integer

__all__ = [
    "DLPACK_NAMED",
    "TEXT_ADVICE",
    "as_dtype",
    "as_shape",
    "c_strides",
    "check_dtype",
    "distinct",
    "dlpack_type",
    "dtype_words",
    "expect_numpy",
    "extent",
    "in_elements",
    "memoryview_format",
    "named_by_typestr",
    "named_elements",
    "shown",
    "stand_in_name",
]

_DLPACK_CODES: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
DLPACK_NAMED: Final = {
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
# What ml_dtypes adds to NumPy's types, each with the size of an element.
_ML_DTYPES: Final = {
    **{name: bits // 8 for name, (_, bits) in DLPACK_NAMED.items()},
    **dict.fromkeys(("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"), 1),
    **dict.fromkeys(("int1", "int2", "int4", "uint1", "uint2", "uint4"), 1),
}
_STAND_IN: Final = "ml_dtypes:"  # begins the name of a stand-in's only field
TEXT_ADVICE: Final = (
    "is text of variable width, whose elements are Python objects or lie elsewhere: share np.asarray(list(x)), text "
    "of fixed width"
)
_MOST_DIMENSIONS: Final = 64  # the limit of NumPy and of PEP 3118
_MOST_ELEMENTS: Final = 1 << 47
_LISTS: Final = (tuple, list)  # a tuple, since `tuple | list` would create a union at each use


def shown(x: Any) -> str:
    """Return what a caller passed, for a message: the beginning of its `repr`, or its type if it has none."""
    try:
        return f"{x!r:.200}"
    except Exception:  # code of its class; a container that is nested too deeply
        return f"an object of type {type(x).__name__}"


# --- shape and strides


def as_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    if type(shape) is int and 0 <= shape <= _MOST_ELEMENTS:
        return (shape,)
    try:
        given = tuple(map(operator.index, shape)) if isinstance(shape, _LISTS) else (operator.index(shape),)
    except Exception:  # of an element's own `__index__`
        raise InvalidArgumentError(f"a shape is an integer or a tuple of integers, not {shown(shape)}") from None
    found = tuple(integer("a length in the shape", each) for each in given)
    if len(found) > _MOST_DIMENSIONS:
        raise InvalidArgumentError(f"an array has at most {_MOST_DIMENSIONS} dimensions, not {len(found)}")
    if found and min(found) < 0:
        raise InvalidArgumentError(f"a shape has no negative length: {found}")
    # Otherwise the memory's size is the limit.
    if 0 in found and math.prod(length or 1 for length in found) > _MOST_ELEMENTS:
        raise InvalidArgumentError(f"strides of the shape {found} do not fit in 64 bits")
    return found


@functools.lru_cache(1024)
def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a C-ordered array."""
    strides: list[int] = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


@functools.lru_cache(1024)
def extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the first and one-past-last byte that an array touches, relative to its first element."""
    if 0 in shape:
        return 0, 0
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize


@functools.lru_cache(1024)
def distinct(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return lengths and strides that reach each element of an array once, beginning at the lowest address. Elements
    are repeated by dimensions whose stride is 0, and by dimensions that overlap.
    """
    found: list[tuple[int, int]] = []
    for step, length in sorted((abs(stride), length) for length, stride in zip(shape, strides, strict=True) if stride):
        inner, count = found[-1] if found else (step, 0)
        times, rest = divmod(step, inner)
        if found and not rest and times <= count:
            found[-1] = inner, count + times * (length - 1)
        elif length > 1:
            found.append((step, length))
    return tuple(length for _, length in reversed(found)), tuple(step for step, _ in reversed(found))


@functools.lru_cache(1024)
def in_elements(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in elements, as DLPack counts them. Raises BufferError if a stride is not a multiple of the
    element size.
    """
    found = []
    for stride in strides:  # a loop, since a generator is slower and this is on the hot path
        step, rest = divmod(stride, itemsize or 1)
        if rest:
            raise BufferError("DLPack counts strides in elements; these are not multiples of the item size")
        found.append(step)
    return tuple(found)


# --- element types


def as_dtype(dtype: Any) -> Any:
    """Return the NumPy dtype for a dtype or its name. bfloat16 and the float8 family have their `ml_dtypes` names. If
    `ml_dtypes` is not installed, the result for these names is a stand-in.
    """
    import numpy

    try:
        return numpy.dtype(dtype)
    except Exception as error:  # NumPy asks attributes of any object
        if isinstance(dtype, str) and (found := named_elements(dtype)) is not None:
            return found
        if type(dtype) is int:
            raise InvalidArgumentError(
                f"{dtype} is not a dtype. If it belongs to the shape, give the shape as one tuple: xs.empty((2, 3))"
            ) from None
        meant = _meant(dtype) if isinstance(dtype, str) else ""
        raise InvalidArgumentError(f"{shown(dtype)} is not a dtype: {error}{meant}") from None


def named_elements(name: str) -> Any:
    """Return the dtype of `ml_dtypes` with this name, or None if it has none. If `ml_dtypes` is not installed, return a
    stand-in: a dtype that carries the bytes of the elements, and cannot be mistaken for another one.
    """
    import numpy

    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        nbytes = _ML_DTYPES.get(name)
        return None if nbytes is None else numpy.dtype([(_STAND_IN + name, f"V{nbytes}")])
    kind = getattr(ml_dtypes, name, None)
    found = numpy.dtype(kind) if isinstance(kind, type) and issubclass(kind, numpy.generic) else None
    return found if found is not None and found.type is kind else None


def stand_in_name(dtype: Any) -> str | None:
    """Return the name of the elements that a stand-in carries, or None for any other dtype."""
    names: Any = dtype.names
    if names is None or len(names) != 1 or not names[0].startswith(_STAND_IN):
        return None
    return str(names[0].removeprefix(_STAND_IN))


def dtype_words(dtype: Any) -> str:
    """Return the dtype as messages show it."""
    return stand_in_name(dtype) or str(dtype)


def expect_numpy(dtype: Any) -> None:
    """Raise `InvalidArgumentError` if NumPy has no such elements, since `ml_dtypes` is not installed."""
    name = stand_in_name(dtype)
    if name is not None:
        raise InvalidArgumentError(
            f"NumPy has no {name} without the package ml_dtypes: pip install ml_dtypes, or use the array in torch, by "
            "torch.from_dlpack(a) or attach(..., like=torch)"
        )


def _meant(dtype: str) -> str:
    """Return advice for a text that is not the name of a dtype: to pass a device as `device=`, or a similar dtype name.
    Returns "" if there is none.
    """
    from difflib import get_close_matches

    import numpy

    if ":" in dtype or dtype in ("cpu", "gpu"):
        return f". For a device write device={dtype!r}"
    known = [*(name for name in numpy.sctypeDict if isinstance(name, str)), *_ML_DTYPES]
    near = get_close_matches(dtype, known, 1)
    return f". Did you mean {near[0]!r}?" if near else ""


def check_dtype(dtype: Any) -> None:
    """Raise `InvalidArgumentError` for dtypes that cannot be shared. Python objects are addresses that only this
    process can use. NumPy adds the shape of a sub-array dtype to the array's shape, and drops the metadata of a dtype.
    """
    if dtype.hasobject:
        if dtype.kind == "T":
            raise InvalidArgumentError(f"{dtype} {TEXT_ADVICE}")
        fields = [name for name in dtype.names or () if dtype.fields[name][0].hasobject]
        raise InvalidArgumentError(
            "arrays of Python objects cannot be shared, since their elements are addresses of this process. "
            + (
                f"Leave out the field {fields[0]!r}"
                if fields
                else "Convert numbers by x.astype(float), text by x.astype('U')"
            )
        )
    if dtype.subdtype is not None:
        raise InvalidArgumentError(f"{dtype} is a sub-array: give its shape as part of the shape")
    if dtype.metadata is not None or (dtype.names is not None and _has_metadata(dtype)):
        raise InvalidArgumentError(
            f"the dtype {dtype} has metadata, which another process would not get: share np.asarray(x) with a dtype "
            "that has none" + ("" if dtype.names is not None else f", as in np.asarray(x).view({dtype.str!r})")
        )


def _has_metadata(dtype: Any) -> bool:
    """Return whether a dtype, or one of its fields, has metadata."""
    base = dtype.base
    fields = () if base.names is None else (base.fields[name][0] for name in base.names)
    return dtype.metadata is not None or base.metadata is not None or any(map(_has_metadata, fields))


@functools.cache
def named_by_typestr(dtype: Any) -> bool:
    """Return whether `dtype.str` describes the dtype completely. It does not do so for structures, nor for bfloat16 and
    similar types.
    """
    import numpy

    try:
        return bool(numpy.dtype(dtype.str) == dtype)
    except TypeError:
        return False


@functools.cache
def memoryview_format(dtype: Any) -> str:
    """Return the PEP 3118 format of a dtype. Raises BufferError if the dtype has none."""
    import numpy

    if (name := stand_in_name(dtype)) is not None:
        raise BufferError(f"the buffer protocol has no code for {name}")
    if not dtype.itemsize:
        raise BufferError(f"the buffer protocol has no elements without bytes, as {dtype} has: use numpy.asarray")
    example: Any = numpy.empty((), dtype)
    try:
        view = memoryview(example)
        if numpy.asarray(view).dtype == dtype:
            return view.format
    except (ValueError, TypeError):  # NumPy has no code for it either
        pass
    raise BufferError(f"the buffer protocol has no code for {dtype}: use numpy.asarray")


@functools.lru_cache(256)
def dlpack_type(dtype: Any) -> tuple[int, int, int]:
    """Return DLPack's (code, bits, lanes) for a dtype. Raises BufferError if DLPack has no such type."""
    if not dtype.isnative:
        raise BufferError(f"DLPack has no type for the foreign byte order of {dtype}")
    name = stand_in_name(dtype) or dtype.name
    if name in DLPACK_NAMED:
        return (*DLPACK_NAMED[name], 1)
    if dtype.kind not in _DLPACK_CODES or 8 * dtype.itemsize > 255:
        raise BufferError(f"DLPack has no type for {dtype}")
    return _DLPACK_CODES[dtype.kind], 8 * dtype.itemsize, 1
