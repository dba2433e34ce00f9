"""vLLM integration. Engines receive weights from a trainer, and can start from published weights.

vLLM 0.32 finds this module as a plug-in (`vllm.general_plugins`). The plug-in adds two options and replaces nothing.
`weight_transfer_config={"backend": "xpushare"}` selects the weight transfer, and `load_format="xpushare"` the model
loader.
"""

# vLLM hands a transfer its own kinds of information: narrower parameters than the base class names.
# mypy: disable-error-code="override,misc,no-any-unimported"
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportUntypedBaseClass=false

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import xpushare as xs
from xpushare.integrations._engines import Publisher, Reader, nearest
from xpushare.integrations._vllm_model import Staged, changing, expect_all_ranks
from xpushare.integrations._written import watching

__all__ = ["InitInfo", "ModelLoader", "Trainer", "TrainerInfo", "UpdateInfo", "WorkerEngine", "register"]

torch: Any = importlib.import_module("torch")
_transfer: Any = importlib.import_module("vllm.distributed.weight_transfer.base")
_loaders: Any = importlib.import_module("vllm.model_executor.model_loader")
NAME = "xpushare"


def _module(name: str) -> Any:
    return importlib.import_module(f"vllm.{name}")


@functools.cache
def register() -> None:
    """Register the weight transfer and the model loader in this process. vLLM calls this in each of its processes.
    Idempotent.
    """
    factories = _module("distributed.weight_transfer.factory")
    factories.WeightTransferEngineFactory.register_engine(NAME, WorkerEngine)
    factories.WeightTransferTrainerFactory.register_engine(NAME, Trainer)
    _loaders.register_model_loader(NAME)(ModelLoader)


def _of_this_rank(reader: Reader, version: int, model: Any) -> Any:
    """Attach the tensors of a version that this rank's layers need, for a `with` block."""
    missing = _module("model_executor.models.utils").is_pp_missing_parameter
    return reader.reading(version, only=lambda name: not missing(name, model), timeout=0)


@dataclasses.dataclass
class InitInfo(_transfer.WeightTransferInitInfo):
    """The message that announces a new trainer. It has no fields, since each update contains everything that a worker
    needs.
    """


@dataclasses.dataclass
class UpdateInfo(_transfer.WeightTransferUpdateInfo):
    """The message that announces an update. `trees` has the device, name and version of each published tree. All ranks
    get the same message. With `partial`, layers whose weights do not come stay as they are.
    """

    trees: list[tuple[str, str, int]]
    partial: bool = False


class WorkerEngine(_transfer.WeightTransferEngine):
    """The worker's side of the weight transfer. The whole update happens in `receive_weights`, so the model never mixes
    two versions if the trainer dies before or after this call.

    Every rank attaches the version and checks all of it against its model before any rank changes its model. If a rank
    cannot attach the version, all ranks raise `HandleExpiredError`. If names, shapes or dtypes do not fit, or weights
    are missing, they raise `InvalidArgumentError`. If a change then fails in the middle, the engine ends.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _reader: Reader | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:  # noqa: ARG002
        self.shutdown()

    def start_weight_update(self) -> None: ...

    def finish_weight_update(self) -> None: ...

    def receive_weights(self, update_info: UpdateInfo) -> None:
        rank = _module("distributed.parallel_state").get_world_group().rank_in_group
        _, name, version = nearest(update_info.trees, self.device, rank)
        if self._reader is None or self._reader.name != name:
            self.shutdown()
            self._reader = Reader(name, self.device)
        # The rest of a weight of several experts may be on the ranks of other replicas.
        whole = not update_info.partial and self.parallel_config.data_parallel_size == 1
        with contextlib.ExitStack() as stack, changing(Staged(self.model)) as staged:
            failed: Exception | None = None
            try:
                weights = stack.enter_context(_of_this_rank(self._reader, version, self.model))
                staged.take(weights.items())
                staged.expect_all(self.model_config, partial=update_info.partial)
            except Exception as error:  # the other ranks wait for this one
                failed = error
            expect_all_ranks(failed, version, staged.in_part() if whole else {})
            staged.apply(self.model_config)

    def shutdown(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@dataclasses.dataclass
class TrainerInfo(_transfer.TrainerInitInfo):
    """Options of the trainer's side. Weights are published as `name` to this user's processes on this machine. With
    `keep`, the keeper holds each version, so that engines can start from it (`load_format="xpushare"`). `timeout` is in
    seconds. With `partial`, the source may leave out whole layers, which then stay as they are.
    """

    backend: ClassVar[str] = NAME
    name: str = "vllm-weights"
    keep: bool = False
    timeout: float = 300
    partial: bool = False


class Trainer(_transfer.TrainerWeightTransferEngine):
    """The trainer's side of the weight transfer. All ranks of the trainer call it, and rank 0 communicates with the
    engine.

    Each rank of torch's default process group publishes a tree on its own device, as with vLLM's `ipc`, and each worker
    reads the tree on its device. With `keep`, only rank 0 publishes.
    """

    init_info_cls = TrainerInfo

    def __init__(self, init_info: TrainerInfo, client: Any, source: Iterable[tuple[str, Any]]) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        # Not the name of kept versions: an engine that starts must not find weights that will be overwritten.
        name = init_info.name if init_info.keep else f"{init_info.name}.now"
        ranks = torch.distributed
        self._grouped = not init_info.keep and ranks.is_initialized() and ranks.get_world_size() > 1
        self._publisher = Publisher(f"{name}.{ranks.get_rank()}" if self._grouped else name, keep=init_info.keep)
        self._timeout = init_info.timeout
        self._partial = init_info.partial

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> Self:
        if source is None:
            raise xs.InvalidArgumentError("the transfer needs a source of weights, such as ModuleSource(model)")
        engine = cls(init_info, client, source)
        if engine.is_sender:
            client.init_weight_transfer_engine({})
        return engine

    def _of_all_ranks(self, own: Any) -> list[Any]:
        found = [own]
        if self._grouped:
            found *= torch.distributed.get_world_size()
            torch.distributed.all_gather_object(found, own)
        return found

    def send_weights(self) -> None:
        """Publish the weights, and have all workers load them. The weights may be overwritten once this returns.

        If this raises, the workers have either the old or the new version, or the engine has ended. If the weights do
        not fit the model, or some are missing, they have the old one. Otherwise, call it again.
        """
        if not self.is_sender and not self._grouped:
            deque(self.source, maxlen=0)  # the ranks gather each tensor together
            return
        self._publisher.publish(self.source)
        failed: Exception | None = None
        try:
            trees = self._of_all_ranks(self._publisher.tree)
            try:
                if self.is_sender:
                    self._update(trees)
            except Exception as error:
                failed = error
            reasons = self._of_all_ranks(failed and repr(failed))
            if any(reasons):
                raise failed or RuntimeError(f"rank 0 of the trainer could not update the engine: {reasons[0]}")
            self._publisher.wait(self._timeout)
        finally:
            self._publisher.withdraw()

    def _update(self, trees: list[tuple[str, str, int]]) -> None:
        try:
            self.client.start_weight_update()
        except Exception:  # a trainer before this one died between its calls; each client has errors of its own
            with contextlib.suppress(Exception):  # vLLM takes the next rank's error for the answer
                self.client.finish_weight_update()
            self.client.start_weight_update()
        partial = {"partial": True} if self._partial else {}  # not sent to workers of earlier versions of this package
        self.client.update_weights({"trees": trees, **partial})
        self.client.finish_weight_update(str(trees[0][2]))

    def shutdown(self) -> None:
        self._publisher.withdraw()


class ModelLoader(_loaders.DefaultModelLoader):
    """Loads the newest version that a trainer or the keeper has published. `model_loader_extra_config` may set `name`
    (default "vllm-weights") and `timeout`, the number of seconds to wait if no version has been published yet (default
    0).
    """

    def __init__(self, load_config: Any) -> None:
        extra = dict(load_config.model_loader_extra_config or {})
        self._name = extra.pop("name", TrainerInfo.name)
        self._patience = extra.pop("timeout", 0)
        super().__init__(dataclasses.replace(load_config, load_format="auto", model_loader_extra_config=extra))

    def download_model(self, model_config: Any) -> None: ...

    def load_weights(self, model: Any, model_config: Any) -> None:
        with watching(model):
            super().load_weights(model, model_config)

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:  # noqa: ARG002
        world = _module("distributed.parallel_state").get_world_group()
        newest: Any = xs.lookup(self._name, timeout=self._patience) if world.is_first_rank else None
        version = world.broadcast_object(newest.version if newest else None, src=0)
        with contextlib.closing(Reader(self._name, world.device)) as reader, contextlib.ExitStack() as stack:
            failed: Exception | None = None
            weights: dict[str, Any] = {}
            try:
                weights = stack.enter_context(_of_this_rank(reader, version, model))
            except Exception as error:  # the other ranks wait for this one
                failed = error
            expect_all_ranks(failed, version, {})
            yield from weights.items()
