"""What `test_checkpoint_engine.py` runs in other processes: a parameter server and its worker."""

from __future__ import annotations

import os
import signal
from typing import Any

import vllm_peer

BUCKET = 1 << 20


def send(name: str, number: int, dies_after: int = -1) -> str:
    """Send the weights of this number in buckets that the real parameter server describes. Returns the worker's error.

    `dies_after` buckets this process is killed.
    """
    import torch
    from checkpoint_engine.data_types import ParameterMeta
    from checkpoint_engine.ps import _to_named_tensor

    from xpushare.integrations.checkpoint_engine import BucketSender

    rest = list(vllm_peer.weights_of(number).items())
    sender = BucketSender(name, BUCKET, "cpu", timeout=120)
    try:
        sent = 0
        while rest:
            tensors, end = [], 0
            while rest and end + rest[0][1].nbytes <= BUCKET:
                tensors.append(rest.pop(0))
                end += -(-tensors[-1][1].nbytes // 256) * 256
            metas = [
                ParameterMeta(name=each, dtype=t.dtype, shape=t.shape, aligned_size=-(-t.nbytes // 256) * 256)
                for each, t in tensors
            ]
            items = _to_named_tensor(metas)
            with sender.bucket(items) as flat:
                for item, (_, tensor) in zip(items, tensors, strict=True):
                    flat[item["offset"] : item["offset"] + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
            sent += 1
            if sent == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
        assert sent > 2
        try:
            sender.finish()
        except (RuntimeError, ConnectionError) as error:
            return f"{type(error).__name__}: {error}"
        return ""
    finally:
        sender.close()


def receive(name: str, fails_at: str = "", dies_at: str = "") -> dict[str, float]:
    """The sum of each tensor, and "hook" once the hook has run. At the tensor of that name the worker raises, or is
    killed.
    """
    from xpushare.integrations.checkpoint_engine import SCHEME, update_weights_from_channel

    sums: dict[str, float] = {}

    def run(weights: list[tuple[str, Any]]) -> None:
        for each, tensor in weights:
            if each == fails_at:
                raise ValueError(f"no room for {each}")
            if each == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            sums[each] = float(tensor.double().sum())

    def hook() -> None:
        sums["hook"] = 1

    update_weights_from_channel(SCHEME + name, run=run, post_hook=hook, timeout=120)
    return sums
