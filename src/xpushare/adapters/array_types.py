"""Types of the arrays that adapters recognise, and of trees of them, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["AnyArray", "Array", "Tree"]


class _DLPack(Protocol):
    @property
    def __dlpack__(self) -> Callable[..., Any]: ...


class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


class _SyclArray(Protocol):
    @property
    def __sycl_usm_array_interface__(self) -> Any: ...


class _HostArray(Protocol):
    @property
    def __array_interface__(self) -> Any: ...


# What comes back from a tree as an array. Bytes and NumPy's scalars, which `AnyArray` includes, do not.
Array: TypeAlias = "_DLPack | _CudaArray | _SyclArray"
AnyArray: TypeAlias = "Array | _HostArray | ReadableBuffer"
Tree: TypeAlias = "dict[Any, Any] | list[Any] | tuple[Any, ...]"
