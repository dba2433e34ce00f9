"""Loads weights into a model of vLLM as a whole or not at all.

vLLM's layerwise reload collects the weights of each layer and changes the layer once it has all of them, so an error in
the middle leaves a mixture. `Staged` first has the model take all weights. The model's own loaders find the parameters
and check the shapes, on parameters without memory. The layers are changed afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, NoReturn

import xpushare as xs

__all__ = ["Staged", "Written", "expect_all_taken", "expect_whole", "refuse_to_serve"]

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
    is the current dispatch mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self._to: dict[int, set[_Region]] = {}  # by storage
        self._read: dict[int, set[_Region]] = {}
        self._sources: dict[int, tuple[str, Any] | None] = {}  # None if several of them share a storage
        self._targets: list[Any] = []  # held, since another tensor could get the number of a storage that is gone

    def watch(self, targets: Iterable[Any]) -> None:
        for each in targets:
            self._targets.append(each)
            self._to.setdefault(_storage(each), set())

    def each(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the weights, and record how much of each of them is read."""
        for name, tensor in weights:
            number = _storage(tensor)
            self._sources[number] = None if number in self._sources else (name, tensor)
            yield name, tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _COPY or func in _FILLS:
            found = self._to.get(_storage(args[0]))
            if found is not None:
                found.add(_region(args[0]))
                if func is _COPY:
                    _expect_dtype(args[0].dtype, args[1].dtype)
                    self._read.setdefault(_storage(args[1]), set()).add(_region(args[1]))
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


class Staged:
    """Weights that a model has taken, and that have not changed it yet. Call `apply` or `undo` at the end.

    With `streamed`, weights come in several calls of `take`, and each layer is changed as soon as it has all of its
    weights, so that they need not be held. `changed` says whether that has begun. Then `undo` is too late.
    """

    def __init__(self, model: Any, *, streamed: bool = False) -> None:
        self.changed = False
        self._streamed = streamed
        self._tied: dict[int, list[Any]] = {}  # by the id of a parameter: the ones that replace it in each layer
        self._model = model
        self._layerwise: Any = importlib.import_module("vllm.model_executor.model_loader.reload.layerwise")
        self._skipped: Any = importlib.import_module("vllm.model_executor.model_loader.reload.meta").SKIP_LOAD_TENSORS
        self._kept: list[tuple[Any, Any]] = []
        self._written = Written()
        self._loaded: set[str] = set()  # parameters that the model says to have loaded
        self._begun = False

    def _layers(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the name, the module and vLLM's information of each layer that is being reloaded."""
        for name, layer in self._model.named_modules():
            info = self._layerwise.get_layerwise_info(layer)
            if info.kernel_tensors is not None:
                yield name, layer, info

    def take(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Have the model take weights. Raises `InvalidArgumentError` if the model has no place for one of them."""
        mtp = importlib.import_module("vllm.model_executor.model_loader.mtp_validation")
        self._begin()
        current: list[tuple[str, Any]] = []

        def each() -> Iterator[tuple[str, Any]]:
            for pair in weights if self._streamed else self._written.each(weights):
                current[:] = [pair]
                yield pair

        try:
            with self._processing(), mtp.disable_mtp_completeness_check(), self._written:
                self._loaded |= self._model.load_weights(each()) or set()
        except Exception as error:
            name, tensor = current[0] if current else ("", None)
            what = f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}" if current else "these weights"
            raise xs.InvalidArgumentError(
                f"the model does not take {what} ({type(error).__name__}: {error}). Send the tensors of a checkpoint "
                "of this model, with their names, shapes and dtypes"
            ) from error

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        self._layerwise.initialize_layerwise_reload(self._model)
        for _, layer, info in self._layers():
            for name, own in info.kernel_tensors[0].items():
                self._tied.setdefault(id(own), []).append(layer._parameters.get(name))
            tensors = [each for each in (*layer._parameters.values(), *layer._buffers.values()) if each is not None]
            self._written.watch(tensors)
            # Biases and the like stay in place, and the loaders write to them at once.
            self._kept += [(each, each.detach().clone()) for each in tensors if not each.is_meta]

    @contextlib.contextmanager
    def _processing(self) -> Generator[None, None, None]:
        """While this lasts, layers that have all of their weights are changed only if the weights are streamed."""
        process = self._layerwise._layerwise_process

        def instead(layer: Any, info: Any) -> None:
            if self._streamed:
                self.changed = True
                process(layer, info)

        self._layerwise._layerwise_process = instead
        try:
            yield
        finally:
            self._layerwise._layerwise_process = process

    def expect_all(self, *, partial: bool, quantized: bool) -> None:
        """Raise `InvalidArgumentError` if weights of the model are missing. With `partial`, layers of which no weight
        came are not missing.
        """
        missing: list[str] = []
        for prefix, layer, info in self._layers():
            found = list(self._missing(prefix, layer, info, quantized))
            if not partial or info.load_numel > 0:  # vLLM makes a layer anew, so it needs all of the layer's weights
                missing += found
        if missing:
            raise xs.InvalidArgumentError(
                f"the weights are not all of this model's. Missing: {_named(missing)}. Send all tensors of a "
                "checkpoint, or pass partial=True to update whole layers and keep the others"
            )

    def in_part(self) -> dict[str, tuple[int, int]]:
        """Return the weights of which the model took only a part, such as this rank's shard. See `Written.in_part`."""
        return self._written.in_part()

    def _missing(self, prefix: str, layer: Any, info: Any, quantized: bool) -> Iterator[str]:
        dot = f"{prefix}." if prefix else ""
        called = {name for name, _ in info.loaded_weights}
        for name, parameter in layer._parameters.items():
            if parameter is None or name in self._skipped or not parameter.numel():
                continue
            regions = self._written.of(parameter)
            if not regions:
                # Loaded in a way that is not recorded, or tied to another parameter, or a scale that is computed.
                if name in called or f"{dot}{name}" in self._loaded or self._is_tied(info, name):
                    continue
                if not quantized or parameter.ndim >= 2:
                    yield f"{dot}{name}"
            elif _lacks_part(layer, parameter, regions):
                yield f"a part of {dot}{name}"

    def _is_tied(self, info: Any, name: str) -> bool:
        """Return whether another parameter with the same memory was written."""
        tied = self._tied.get(id(info.kernel_tensors[0].get(name)), ())
        return any(each is not None and self._written.of(each) for each in tied)

    def apply(self, model_config: Any) -> None:
        """Change the model. If this fails, the model is a mixture."""
        self.changed = True
        with torch.no_grad():
            deferred = self._layerwise.is_deferred_attention_layer
            for _, layer, info in list(self._layers()):
                if info.load_numel >= info.load_numel_total > 0 and not deferred(layer):
                    self._layerwise._layerwise_process(layer, info)
            self._layerwise.finalize_layerwise_reload(self._model, model_config)
        self._kept.clear()

    def undo(self) -> None:
        """Make the model as it was before `take`."""
        if not self._begun:
            return
        with torch.no_grad():
            for _, layer, info in list(self._layers()):
                self._layerwise._place_kernel_tensors(layer, info)
                info.reset()
            for tensor, before in self._kept:
                tensor.copy_(before)
        with contextlib.suppress(AttributeError):  # vLLM did not come to set it
            self._model._do_torchao_reload = self._model._original_do_torchao_reload
        self._kept.clear()


def _lacks_part(layer: Any, parameter: Any, regions: set[_Region]) -> bool:
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


def expect_whole(model: Any, written: Written) -> None:
    """Raise `InvalidArgumentError` if only a part of a parameter was written, such as qkv_proj without k_proj."""
    found = [
        f"a part of {prefix}.{name}"
        for prefix, layer in model.named_modules()
        for name, parameter in layer.named_parameters(recurse=False)
        if (regions := written.of(parameter)) and _lacks_part(layer, parameter, regions)
    ]
    if found:
        raise xs.InvalidArgumentError(
            f"the weights are not all of this model's. Missing: {_named(found)}. Publish all tensors of a checkpoint"
        )


def expect_all_taken(of_ranks: Iterable[dict[str, tuple[int, int]]]) -> None:
    """Raise `InvalidArgumentError` if the ranks together took only a part of a weight, since its shape is too large.
    `of_ranks` has the result of `Staged.in_part` for each rank.
    """
    taken: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    for each in of_ranks:
        for name, (count, size) in each.items():
            taken[name] += count
            sizes[name] = size
    cut = [name for name, size in sizes.items() if taken[name] < size]
    if cut:
        raise xs.InvalidArgumentError(
            f"these weights are larger than the model's; the model is as it was: {_named(cut)}. Send the tensors of a "
            "checkpoint of this model"
        )


def _named(found: list[str]) -> str:
    more = f" and {len(found) - _NAMED} others" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"


def refuse_to_serve(error: BaseException) -> NoReturn:
    """End this process of the engine, and the engine with it, since its model is a mixture of two versions."""
    raise SystemExit(
        "xpushare: an update of the weights failed in the middle, so the model is a mixture of two versions. This "
        f"engine ends instead of serving it: {error!r}"
    ) from error
