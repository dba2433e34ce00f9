"""What an array means beyond its memory: its class, its element type, and values that are computed when they are read.

DLPack, the array interfaces and the buffer protocol show none of that. An array whose meaning they lose is refused, or
resolved before it is copied. This module imports none of the libraries.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from numbers import Integral
from typing import Any, Final

from xpushare.common.elements import TEXT_ADVICE

__all__ = [
    "data_of",
    "is_plain",
    "is_sub_byte",
    "lost_by_numpy",
    "numpy_converts",
    "objects_named",
    "refusal",
    "resolved",
    "unsuited",
]

_NAMES_LISTED: Final = 4
_SUB_BYTE: Final = re.compile(r"torch\.(u?int[1-7]|bits\w+)")
_TENSOR: Final = "tensor"
_PARAMETER: Final = "parameter"


@functools.lru_cache(256)
def _class_of(kind: Any) -> str | Callable[[Any], str]:
    """Return what class of arrays this is: "" if nothing is known about it, `_TENSOR`, `_PARAMETER`, or a function that
    returns why an array of it is refused.
    """
    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    ndarray, tensor = getattr(numpy, "ndarray", None), getattr(torch, "Tensor", None)
    if ndarray is not None and issubclass(kind, ndarray):
        return "" if kind in (ndarray, numpy.memmap, numpy.recarray) else _subclass_of_ndarray
    if tensor is not None and issubclass(kind, tensor):
        if kind is tensor:
            return _TENSOR
        return _PARAMETER if kind is torch.nn.Parameter else _subclass_of_tensor
    return ""


def is_plain(kind: Any) -> bool:
    """Return whether a class of arrays says no more than their memory, shapes and element types."""
    return not callable(_class_of(kind))


def refusal(array: Any) -> str | None:
    """Return why sharing this array would lose its meaning, and what to share instead. Return None if its memory, its
    shape and its element type say everything.
    """
    kind: Any = type(array)
    found = _class_of(kind)
    if callable(found):
        return found(array)
    return _tensor(array) if found else None


def data_of(array: Any) -> Any:
    """Return the tensor of a parameter, without its gradient, and any other array unchanged."""
    kind: Any = type(array)
    return array.detach() if _class_of(kind) is _PARAMETER else array


def resolved(array: Any) -> Any:
    """Return the array with its values in memory. Views that torch conjugates, negates or fills with zeros when they
    are read are copied. Any other array is returned unchanged, and a parameter as its tensor.
    """
    kind: Any = type(array)
    found = _class_of(kind)
    if found is _TENSOR and (array.is_neg() or array.is_conj() or array._is_zerotensor()):
        return array.clone() if array._is_zerotensor() else array.resolve_conj().resolve_neg()
    return array.detach() if found is _PARAMETER else array


@functools.lru_cache(64)
def is_sub_byte(dtype: object) -> bool:
    """Return whether a dtype is one of torch's types of fewer than 8 bits, which look like bytes to every protocol."""
    return _SUB_BYTE.fullmatch(str(dtype)) is not None


# --- what NumPy would convert

_LOOKED_AT: Final = 1000  # how many objects are looked at for a message
_COLUMNS: Final = ("column_names", "columns")  # of pyarrow, and of pandas and polars
_KINDS: Final = (  # by the element types of data frames, in lower case
    (r"category|categorical.*|enum\b.*|dictionary<.*", "has categories: share their codes and the categories"),
    (
        r"datetime64\[\w+, .*|.*\btz=.*|.*time_zone='.*",
        "has times with a time zone: convert them to UTC, without a zone",
    ),
    (r"sparse.*", "is sparse: share x.sparse.to_dense(), or its values and their indices"),
    (r"str|string.*|utf8|large_string|string_view", TEXT_ADVICE),
    (r"large_binary|binary.*|list.*|struct.*|decimal.*|period.*|interval.*|map<.*", "has no type of NumPy"),
)


def _columns_of(x: Any) -> list[tuple[str, Any, str]]:
    """Return the columns of a data frame, table or series: how a message names each, the column, and its type."""
    for name in _COLUMNS:
        names = getattr(x, name, None)
        if names is not None and not callable(names) and hasattr(type(x), "__getitem__"):
            columns = [_column(x, number, each) for number, each in enumerate(names)]
            return [(f"column {each!r}", one, _type_of(one)) for each, one in zip(names, columns, strict=True)]
    own: Any = getattr(x, "name", None)
    return [(f"column {own!r}" if own and isinstance(own, str) else f"this {type(x).__name__}", x, _type_of(x))]


def _column(x: Any, number: int, name: Any) -> Any:
    """Return a column, by its number where the library has that, since names may repeat."""
    if hasattr(x, "iloc"):  # pandas
        return x.iloc[:, number]
    return x.column(number) if callable(getattr(x, "column", None)) else x[name]  # pyarrow, polars


def _type_of(column: Any) -> str:
    kind = getattr(column, "dtype", None)
    return str(kind if kind is not None else getattr(column, "type", "")).lower()


def unsuited(x: Any) -> str | None:
    """Return why the elements of a series, a data frame or a matrix of another library cannot be shared, by their own
    name. Return None if nothing is known against them.
    """
    try:
        return _unsuited(x)
    except Exception:  # code of the other library
        return None


def _unsuited(x: Any) -> str | None:
    if type(x).__module__.startswith("scipy.sparse") and hasattr(x, "tocoo"):
        return f"this {type(x).__name__} is sparse: share x.toarray(), or a tree of the arrays it consists of"
    for where, _, kind in _columns_of(x):
        for pattern, why in _KINDS:
            if re.fullmatch(pattern, kind):
                return f"{where} ({kind}) {why}"
    return None


def lost_by_numpy(x: Any, made: Any) -> str | None:
    """Return which value NumPy did not keep when it made the array `made` of a list, a series or a data frame, or None
    if it kept all of them.
    """
    columns = _columns_of(x)
    if not any(kind for _, _, kind in columns):
        return _refused_in(x) or _lost_of_list(x, made)
    for where, column, kind in columns:
        if _has_missing(column):
            return f"{where} has missing values, which NumPy's {made.dtype} cannot tell from others"
        if made.dtype.kind == "f" and re.match("u?int", kind):
            return f"{where} has integers, which would become {made.dtype}"
    return None


def _has_missing(column: Any) -> bool:
    """Return whether a column has values that are missing, which are not the same as NaN."""
    count = getattr(column, "null_count", None)
    if count is not None:  # polars, pyarrow
        return bool(count() if callable(count) else count)
    nullable = hasattr(getattr(column, "dtype", None), "na_value") and hasattr(column, "isna")
    return bool(nullable and column.isna().any())


def numpy_converts(x: Any) -> bool:
    """Return whether NumPy converts an object whose elements cannot be shared as they are: an array of Python objects,
    or a column that has an `__array__` of its own.
    """
    kind: Any = type(x)
    found = _class_of(kind)
    return not found and hasattr(kind, "__array__")


def _refused_in(x: Any) -> str | None:
    """Return why an array in a list loses its meaning, or None if none does."""
    if type(x) not in (list, tuple):
        return None
    kinds: set[Any] = {type(each) for each in x}
    for kind in kinds:
        if kind in (list, tuple) or callable(_class_of(kind)):
            for each in x:
                why = None if type(each) is not kind else _refused_in(each) if kind in (list, tuple) else refusal(each)
                if why is not None:
                    return why
    return None


def _lost_of_list(x: Any, made: Any) -> str | None:
    if made.dtype.kind not in "fcUS":
        return None
    import numpy

    text = {"U": str, "S": bytes}.get(made.dtype.kind)
    objects = numpy.asarray(x, object)
    if objects.shape != made.shape:
        return None
    integers = made.size > 0
    for given, value in zip(objects.ravel().tolist(), made.ravel().tolist(), strict=True):
        if text is not None:
            if not isinstance(given, text):
                return f"the elements are of several types, and {given!r:.100} would become text"
            if given != value:
                return f"NumPy drops the NUL characters at the end of {given!r:.100}"
        elif type(given) is float or not isinstance(number := _number(given), Integral):
            integers = False
        elif int(number) != value:
            return f"the integer {number} is no {made.dtype}"
    if integers and text is None:
        return f"no integer type of NumPy has all of these integers, which would become {made.dtype}"
    return None


def _number(given: Any) -> Any:
    """Return the number of an array without dimensions, such as a tensor, and anything else unchanged."""
    item = getattr(given, "item", None)
    return item() if callable(item) and getattr(given, "ndim", None) == 0 else given


def objects_named(values: Any) -> str:
    """Return why an array of Python objects cannot be shared, by the name of what they are."""
    kinds = {type(each) for each in values.ravel()[:_LOOKED_AT].tolist()}
    missing = {each for each in kinds if each.__name__ in ("NoneType", "NAType", "NaTType")}
    kinds -= missing
    if kinds and all(issubclass(each, str) for each in kinds):
        return f"this array {TEXT_ADVICE}"
    if missing:
        return "the array has missing values, and so its elements are Python objects: fill them, or pass dtype="
    if kinds == {int}:
        return "the array has integers of more than 64 bits, which are Python objects"
    names = ", ".join(sorted(each.__name__ for each in kinds))
    return (
        f"arrays of Python objects ({names}) cannot be shared, since their elements are addresses of this process. "
        "Convert the array to numbers, for example by x.astype(float)"
    )


def _subclass_of_ndarray(array: Any) -> str:
    name = type(array).__name__
    if isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        return f"{name} has a mask, which cannot be shared with it: share a tree of np.asarray(x) and the mask"
    return (
        f"{name} is a subclass of numpy.ndarray, and the receiver would get a plain array: share np.asarray(x) if the "
        "elements say everything"
    )


# --- torch


def _tensor(array: Any) -> str | None:
    torch: Any = sys.modules["torch"]
    if torch._C._functorch.is_functorch_wrapped_tensor(array) or torch._is_functional_tensor(array):
        return "this tensor belongs to a function transform of torch.func, and has no values outside of it"
    if array.is_nested:
        return "this tensor is nested: share x.unbind(), a list of tensors"
    if array.layout is not torch.strided:
        return (
            f"this tensor is sparse or of another layout ({array.layout}), and share takes strided ones: share "
            "x.to_dense(), or the tensors of its indices and values"
        )
    if array.is_quantized:
        return "this tensor is quantised: share a tree of x.int_repr(), the scale and the zero point"
    if array.device.type == "meta":
        return "this tensor is on the meta device, and has no values"
    if is_sub_byte(array.dtype):
        return (
            f"elements of {array.dtype} look like bytes to every other library: share x.view(torch.uint8), and view it "
            "at the receiver"
        )
    if array._is_zerotensor():
        return f"this tensor of zeros has no memory: {_RESOLVE.format('clone')}"
    if array.is_conj():
        return f"torch conjugates this tensor when it is read: {_RESOLVE.format('resolve_conj')}"
    if array.is_neg():
        return f"torch negates this tensor when it is read: {_RESOLVE.format('resolve_neg')}"
    if array.numel():
        storage = array.untyped_storage()
        size = array.element_size()
        steps = sum((length - 1) * step for length, step in zip(array.shape, array.stride(), strict=True))
        if (array.storage_offset() + steps + 1) * size > storage.nbytes():
            return f"this tensor reaches beyond its storage of {storage.nbytes()} bytes. Was that freed by resize_?"
    return None


_RESOLVE: Final = "share x.{}(), or pass copy=True"


def _subclass_of_tensor(array: Any) -> str:
    kind = type(array)
    name = kind.__name__
    if name in ("UninitializedParameter", "UninitializedBuffer"):
        return f"{name} belongs to a lazy module, which has no values yet: run the module once, and share it then"
    if name == "FakeTensor":
        return "FakeTensor has no values"
    if name == "NestedTensor":
        return "this tensor is nested: share x.unbind(), a list of tensors"
    if callable(getattr(kind, "to_local", None)):
        return f"{name} is spread over several ranks: share x.to_local(), the tensor of this rank"
    if callable(getattr(kind, "__tensor_flatten__", None)):
        return (
            f"{name} wraps other tensors, and has no memory of its own: share the tensors of x.__tensor_flatten__()"
            f"{_inner(array)}"
        )
    return (
        f"{name} is a subclass of torch.Tensor, and the receiver would get a plain tensor: share "
        "x.as_subclass(torch.Tensor) if the elements say everything"
    )


def _inner(array: Any) -> str:
    """Return the names of the tensors that a wrapper holds, for a message. Return an empty string if it names none."""
    try:
        names = [f"x.{each}" for each in array.__tensor_flatten__()[0]]
    except Exception:  # code of the caller's class
        return ""
    more = ["…"] if len(names) > _NAMES_LISTED else []
    return f", which are {', '.join(names[:_NAMES_LISTED] + more)}" if names else ""
