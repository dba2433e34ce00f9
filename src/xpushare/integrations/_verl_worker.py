"""Changes verl's extension of vLLM's worker, which loads each frame of an update as it comes."""

from __future__ import annotations

from typing import Any

from xpushare.integrations._vllm_model import changing
from xpushare.integrations._written import InPlace

__all__ = ["extend"]


def extend(module: Any) -> None:
    """Have the worker check each frame before it loads it, and end if it cannot load all of an update."""
    kind = module.vLLMColocateWorkerExtension
    receive, load = kind.update_weights_from_ipc, kind._update_weights

    def update_weights_from_ipc(
        self: Any, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        if peft_config and base_sync_done:  # verl adds the adapter as a whole, at the end
            receive(self, peft_config, base_sync_done, use_shm)
            return
        config = self.model_runner.vllm_config
        quantized = self._is_qat_model or self._is_modelopt_qat or module.is_quantized_model(config)
        update = self._xpushare_update = InPlace(self._iter_all_models(), checked=not quantized)
        # Preparing changes a quantized model. Other ranks may have loaded a frame that this one refuses.
        update.changed = quantized or config.parallel_config.world_size > 1
        try:
            with changing(update):
                receive(self, peft_config, base_sync_done, use_shm)
                update.expect_all()
        finally:
            self._xpushare_update = None

    def _update_weights(self: Any, weights: Any, **how: Any) -> None:
        update = getattr(self, "_xpushare_update", None)
        if update is None or not weights:
            load(self, weights, **how)
        else:
            update.load(lambda: load(self, weights, **how))

    kind.update_weights_from_ipc, kind._update_weights = update_weights_from_ipc, _update_weights
