"""Which parts of a model's parameters are written while weights are loaded, and which parts of the weights are read.

With it, `InPlace` loads weights, in one or several messages, into models whose loaders write to the parameters in
place, as those of SGLang and verl do.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final

import xpushare as xs

__all__ = ["InPlace", "Written", "lacks_part", "named", "watching"]

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


# --- models whose loaders write in place ------------------------------------------------------------------------------


class InPlace:
    """One update. Each message is first loaded without writing anything, and only then into the models.

    `changed` says whether a model may have changed. Weights of a model that is quantized change while they are loaded,
    so with `checked=False` nothing is checked.
    """

    def __init__(self, models: Iterable[Any], *, checked: bool = True) -> None:
        found = list(models)
        self.changed = False
        self._checked = checked
        self._written = Written(writes=False)
        for model in found:
            self._written.watch([*model.parameters(), *model.buffers()])
        self._parameters = [
            (f"{prefix}.{name}".lstrip("."), layer, parameter)
            for prefix, layer in found[0].named_modules()  # the others are drafts, and trainers may leave these out
            for name, parameter in layer.named_parameters(recurse=False)
        ]

    def check(self, load: Callable[[], object]) -> None:
        """Call `load` without letting it write to the models. Raises `InvalidArgumentError` if it raises."""
        if not self._checked:
            return
        if not self.changed:  # a message before this one was refused
            self._written.forget()
        try:
            with _in_this_thread(), torch.no_grad(), self._written:
                load()
        except Exception as error:
            raise xs.InvalidArgumentError(
                f"the model does not take these weights ({type(error).__name__}: {error}). Send the tensors of a "
                "checkpoint of this model, with their names, shapes and dtypes"
            ) from error

    def load(self, load: Callable[[], object]) -> None:
        """Check a message, and then load it."""
        self.check(load)
        self.changed = True
        load()

    def expect_all(self) -> None:
        """Raise `InvalidArgumentError` if weights were loaded, and some of the model's were not.
        `XPUSHARE_PARTIAL_WEIGHTS=1` permits that.
        """
        if not (self._checked and self.changed) or os.environ.get("XPUSHARE_PARTIAL_WEIGHTS") == "1":
            return
        missing = []
        for name, layer, parameter in self._parameters:
            regions = self._written.of(parameter)
            if parameter.ndim and parameter.numel() and not regions:
                missing.append(name)
            elif regions and lacks_part(layer, parameter, regions):
                missing.append(f"a part of {name}")
        if missing:
            raise xs.InvalidArgumentError(
                f"the weights are not all of this model's. Missing: {named(missing)}. Send all tensors of a "
                "checkpoint, or start the engine with XPUSHARE_PARTIAL_WEIGHTS=1 to keep the others as they are"
            )

    def undo(self) -> None:
        """Do nothing, since a check has changed nothing."""


@contextlib.contextmanager
def _in_this_thread() -> Generator[None, None, None]:
    """While this lasts, what this thread submits to thread pools runs at once, since torch's modes belong to a thread.
    Some models submit each of their weights.
    """
    pool = concurrent.futures.ThreadPoolExecutor
    submit, here = pool.submit, threading.get_ident()

    def instead(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != here:
            return submit(self, function, *args, **kwargs)
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.set_result(function(*args, **kwargs))
        return done

    pool.submit = instead  # type: ignore[method-assign]
    try:
        yield
    finally:
        pool.submit = submit  # type: ignore[method-assign]
