"""Which parts of a model's parameters are written while weights are loaded, and which parts of the weights are read."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

import xpushare as xs

__all__ = ["Written", "lacks_part", "named", "watching"]

torch: Any = importlib.import_module("torch")
_dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
_COPY: Final = torch.ops.aten.copy_.default
_FILLS: Final = (torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default)
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SCALES: Final = getattr(torch, "float8_e8m0fnu", None)  # powers of two, which every float represents
_NAMED: Final = 5  # tensors that a message names
_Region = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, size and stride


def _storage(tensor: Any) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _numel(regions: Iterable[_Region]) -> int:
    return sum(math.prod(size) for _, size, _ in regions)


class Written(_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Records which elements of the targets are written, and which elements of the sources are read for that, while it
    is the current dispatch mode. With `writes=False`, the targets stay as they are.
    """

    def __init__(self, *, writes: bool = True) -> None:
        super().__init__()
        self._writes = writes
        self._to: dict[int, set[_Region]] = {}  # by storage
        self._read: dict[int, set[_Region]] = {}
        self._sources: dict[int, tuple[str, Any] | None] = {}  # None if several of them share a storage
        self._targets: list[Any] = []  # held, since another tensor could get the number of a storage that is gone

    def watch(self, targets: Iterable[Any]) -> None:
        for each in targets:
            self._targets.append(each)
            self._to.setdefault(_storage(each), set())

    def forget(self) -> None:
        """Forget what was written so far."""
        for regions in self._to.values():
            regions.clear()

    def each(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the weights, and record how much of each of them is read."""
        for name, tensor in weights:
            number = _storage(tensor)
            self._sources[number] = None if number in self._sources else (name, tensor)
            yield name, tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _COPY or func in _FILLS or (not self._writes and _changes_first(func)):
            found = self._to.get(_storage(args[0]))
            if found is not None:
                found.add(_region(args[0]))
                if func is _COPY:
                    _expect_dtype(args[0].dtype, args[1].dtype)
                    self._read.setdefault(_storage(args[1]), set()).add(_region(args[1]))
                if not self._writes:
                    if func is _COPY:
                        args[1].expand(args[0].shape)  # raises what the copy would
                    return args[0]
        return func(*args, **(kwargs or {}))

    def of(self, target: Any) -> set[_Region]:
        return self._to.get(_storage(target), set())

    def in_part(self) -> dict[str, tuple[int, int]]:
        """Return the sources that were read only in part: how many elements were read, and how many there are."""
        found: dict[str, tuple[int, int]] = {}
        for number, source in self._sources.items():
            taken = _numel(self._read.get(number, ()))  # 0: it was changed before it was copied
            if source is not None and 0 < taken < source[1].numel():
                found[source[0]] = taken, source[1].numel()
        return found


def _changes_first(func: Any) -> bool:
    """Return whether an operator changes its first argument in place."""
    first = func._schema.arguments[:1]
    return bool(first and first[0].alias_info is not None and first[0].alias_info.is_write)


def _region(tensor: Any) -> _Region:
    return int(tensor.storage_offset()), tuple(tensor.size()), tuple(tensor.stride())


def _expect_dtype(to: Any, source: Any) -> None:
    """Raise `InvalidArgumentError` if a copy between these dtypes changes what the values mean. Rounding a float does
    not.
    """
    floats = to in _FLOATS and (source in _FLOATS or source is _SCALES)
    integers = not (to.is_floating_point or source.is_floating_point or to.is_complex or source.is_complex)
    if to is not source and not floats and not (integers and to.itemsize == source.itemsize):
        raise xs.InvalidArgumentError(f"the model's parameter is {to}, and the weight is {source}")


def lacks_part(layer: Any, parameter: Any, regions: set[_Region]) -> bool:
    """Return whether one of the weights that a parameter is made of is missing, such as k_proj of qkv_proj, or one of
    its experts. Elements that only pad the parameter may be missing.
    """
    full = getattr(parameter, "weight_loader_numel", parameter.numel())
    sizes = getattr(layer, "output_partition_sizes", None) or [1]
    if len(sizes) > 1:
        return bool(full - _numel(regions) >= full * min(sizes) / sum(sizes))
    parts = parameter.shape[0] if parameter.ndim == 3 else 1
    taken = [0.0] * parts
    step = parameter.stride(0) if parts > 1 else 0
    for offset, size, _ in regions:
        first = offset // step if step else 0
        count = size[0] if parts > 1 and len(size) == 3 else 1
        for part in range(first, min(first + count, parts)):
            taken[part] += math.prod(size) / count
    return any(2 * each <= full / parts for each in taken)


@contextlib.contextmanager
def watching(model: Any) -> Generator[None, None, None]:
    """Raise `InvalidArgumentError` at the end of the block if it has written only a part of a parameter of the model,
    such as qkv_proj without k_proj.
    """
    written = Written()
    written.watch(model.parameters())
    with written:
        yield
    found = [
        f"a part of {prefix}.{name}"
        for prefix, layer in model.named_modules()
        for name, parameter in layer.named_parameters(recurse=False)
        if (regions := written.of(parameter)) and lacks_part(layer, parameter, regions)
    ]
    if found:
        raise xs.InvalidArgumentError(
            f"the weights are not all of this model's. Missing: {named(found)}. Publish all tensors of a checkpoint"
        )


def named(found: list[str]) -> str:
    more = f" and {len(found) - _NAMED} others" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"
