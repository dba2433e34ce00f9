"""Conversion of attached arrays to another library's arrays, for `attach(like=)`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Final, Protocol, TypeVar

from xpushare.common.errors import InvalidArgumentError
from xpushare.objects.array import SharedArray

__all__ = ["Consumer", "Library", "consumer_of", "torch_stream"]

Consumer = Callable[[SharedArray], Any]

# To type checkers, the modules of libraries, by the class that each has of its arrays.
T_co = TypeVar("T_co", covariant=True)


class _NumPy(Protocol[T_co]):  # and CuPy
    @property
    def ndarray(self) -> type[T_co]: ...


class _Torch(Protocol[T_co]):
    @property
    def Tensor(self) -> type[T_co]: ...


class _Jax(Protocol[T_co]):
    @property
    def Array(self) -> type[T_co]: ...


Library = _NumPy[T_co] | _Torch[T_co] | _Jax[T_co]

# Imported when the caller asks for them.
_CONSUMERS: Final = {
    "numpy": ("numpy", "asarray"),
    "torch": ("torch", "from_dlpack"),
    "cupy": ("cupy", "from_dlpack"),
    "jax": ("jax.dlpack", "from_dlpack"),
}
_CLASSES: Final = {"numpy": "ndarray", "torch": "Tensor", "cupy": "ndarray", "jax": "Array"}


def consumer_of(like: Any) -> Consumer | None:
    """Return the function that converts a `SharedArray` for `attach(like=)`, or None if `like` is None. `like` is
    another library, its name, or the function itself.
    """
    if like is None:
        return None
    name: Any = like.__name__ if isinstance(like, ModuleType) else like
    if isinstance(name, str):
        if name not in _CONSUMERS:
            raise InvalidArgumentError(f"like is {', '.join(_CONSUMERS)} or a function of a SharedArray, not {name!r}")
        module, function = _CONSUMERS[name]
        try:
            library = like if isinstance(like, ModuleType) and module == name else import_module(module)
            found: Consumer = getattr(library, function)
        except ImportError as error:
            raise InvalidArgumentError(f"like={name!r} needs {name}: {error}") from error
        return found
    for library_name, class_name in _CLASSES.items():
        if isinstance(like, type) and like is getattr(sys.modules.get(library_name), class_name, None):
            raise InvalidArgumentError(
                f"like is a library, not the class of its arrays: pass like={library_name!r}, not "
                f"{library_name}.{class_name}"
            )
    if not callable(like):
        raise InvalidArgumentError(f"like is a library or a function of a SharedArray, not {type(like).__name__}")
    consumer: Consumer = like
    return consumer


def torch_stream(kind: str, ordinal: int) -> Any:
    """Return torch's current stream on a device. `kind` is torch's device type, such as "cuda". This initialises the
    device in torch.
    """
    return getattr(sys.modules["torch"], kind).current_stream(ordinal)
