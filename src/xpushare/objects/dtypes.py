"""Descriptions of dtypes in JSON: a string for a simple dtype, [base, shape] for a sub-array, an object for a
structure.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

from xpushare.common.elements import check_dtype, expect_numpy, named_by_typestr, named_elements, stand_in_name
from xpushare.common.errors import InvalidArgumentError, InvalidHandleError

__all__ = ["build_dtype", "describe_dtype", "named_dtype"]

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
