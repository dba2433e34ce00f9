"""What an array means beyond its memory: its class, its element type, and values that are computed when they are read.

DLPack, the array interfaces and the buffer protocol show none of that. An array whose meaning they lose is refused, or
resolved before it is copied. This module imports none of the libraries.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any, Final

__all__ = ["data_of", "is_plain", "is_sub_byte", "refusal", "resolved"]

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
