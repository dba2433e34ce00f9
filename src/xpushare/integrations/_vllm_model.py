"""Loads weights into a model of vLLM as a whole or not at all.

vLLM's layerwise reload collects the weights of each layer and changes the layer once it has all of them, so an error in
the middle leaves a mixture. `Staged` first has the model take all weights. The model's own loaders find the parameters
and check the shapes, on parameters without memory. The layers are changed afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import xpushare as xs
from xpushare.integrations._written import Written, lacks_part, named

__all__ = ["Staged", "changing", "expect_all_ranks", "expect_all_taken"]

torch: Any = importlib.import_module("torch")


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
                self._loaded.update(self._model.load_weights(each()) or ())
        except Exception as error:
            what = "".join(f"{name} of shape {tuple(x.shape)} and {x.dtype}" for name, x in current) or "the weights"
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

    def expect_all(self, model_config: Any, *, partial: bool) -> None:
        """Raise `InvalidArgumentError` if weights of the model are missing. With `partial`, layers of which no weight
        came are not missing.
        """
        quantized = model_config.quantization is not None
        missing: list[str] = []
        for prefix, layer, info in self._layers():
            found = list(self._missing(prefix, layer, info, quantized))
            if not partial or info.load_numel > 0:  # vLLM makes a layer anew, so it needs all of the layer's weights
                missing += found
        if missing:
            raise xs.InvalidArgumentError(
                f"the weights are not all of this model's. Missing: {named(missing)}. Send all tensors of a "
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
            elif lacks_part(layer, parameter, regions):
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


def expect_all_ranks(failed: Exception | None, version: int, in_part: dict[str, tuple[int, int]]) -> None:
    """Raise in all ranks if any rank failed, or if all ranks together took only a part of a weight. No rank has changed
    its model so far. `in_part` is the result of `Staged.in_part`.
    """
    world = importlib.import_module("vllm.distributed.parallel_state").get_world_group()
    misfit = isinstance(failed, xs.InvalidArgumentError)
    found = [(misfit, repr(failed) if failed else "", in_part)] * world.world_size
    if world.world_size > 1:
        torch.distributed.all_gather_object(found, found[0], group=world.cpu_group)
    reasons = [reason for _, reason, _ in found]
    if any(misfit for misfit, _, _ in found):
        raise xs.InvalidArgumentError(
            f"version {version} of the weights does not fit the model; the model is as it was. The ranks' reasons: "
            f"{reasons}"
        ) from failed
    if any(reasons):
        raise xs.HandleExpiredError(
            f"version {version} of the weights was not loaded; the model is as it was. The publisher has to run on "
            f"this machine, as the same user, until the update has returned. The ranks' reasons: {reasons}"
        ) from failed
    expect_all_taken(each for _, _, each in found)


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
            f"these weights are larger than the model's; the model is as it was: {named(cut)}. Send the tensors of a "
            "checkpoint of this model"
        )


class _Update(Protocol):
    changed: bool

    def undo(self) -> None: ...


_Updates = TypeVar("_Updates", bound=_Update)


@contextlib.contextmanager
def changing(*staged: _Updates) -> Generator[_Updates, None, None]:
    """Yield the first one. If the block raises, make the models as they were. If one of them has changed already, end
    this process of the engine, and the engine with it, since it must not serve a mixture.
    """
    try:
        yield staged[0]
    except BaseException as error:
        if any(each.changed for each in staged):
            raise SystemExit(
                "xpushare: an update of the weights failed in the middle, so the model is a mixture of two versions. "
                f"This engine ends instead of serving it: {error!r}"
            ) from error
        for each in staged:
            each.undo()
        raise
