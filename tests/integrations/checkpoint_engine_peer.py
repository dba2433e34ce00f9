"""What `test_checkpoint_engine.py` runs in other processes: a parameter server and its worker."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import vllm_peer

BUCKET = 1 << 20
RANKS = 2


def send(name: str, number: int, dies_after: int = -1, fault: str = "") -> str:
    """Send the weights of this number in buckets that the real parameter server describes. Returns the worker's error.

    `dies_after` buckets this process is killed. `fault` is as for `vllm_peer.Faulty`.
    """
    import torch
    from checkpoint_engine.data_types import ParameterMeta
    from checkpoint_engine.ps import _to_named_tensor

    from xpushare.integrations.checkpoint_engine import BucketSender

    source = vllm_peer.Faulty(fault) if fault else vllm_peer.Source()
    source.number = number
    rest = list(source)
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


# --- the patched parameter server: two ranks, each with a worker, in the place of two GPUs


class OnTheHost:
    """What the server asks its device for, answered by the host."""

    device_type, backend = "cpu", "gloo"
    device_module = SimpleNamespace(
        device_count=lambda: RANKS,
        set_device=lambda _device: None,
        current_device=lambda: 0,
        get_device_properties=lambda device: SimpleNamespace(uuid=f"host-{os.getppid()}-{device}"),
        mem_get_info=lambda: (1 << 30, 1 << 31),
        memory_allocated=lambda: 0,
        memory_reserved=lambda: 0,
        synchronize=lambda: None,
        empty_cache=lambda: None,
    )


def serve(rank: int, package: str, port: int, addresses: list[str], numbers: list[int]) -> list[str]:
    """Run a patched server that updates its worker to each of the numbers in turn, and says to `addresses` where the
    worker finds it. Returns how each update failed.
    """
    import torch

    sys.path.insert(0, package)
    empty = torch.empty
    torch.empty = lambda *sizes, pin_memory=False, **options: empty(*sizes, **options)  # noqa: ARG005  # needs CUDA
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), PS_MAX_BUCKET_SIZE_GB=str(BUCKET / (1 << 30)))
    from checkpoint_engine import ps

    assert ps.__file__.startswith(package)
    ps.DeviceManager = OnTheHost
    server = ps.ParameterServer(master_addr="127.0.0.1", master_port=port)
    failures = []
    for number, address in zip(numbers, addresses, strict=True):
        mine = list(vllm_peer.weights_of(number).items())[rank::RANKS]
        server.register_checkpoint(str(number), named_tensors=dict(mine), use_inplace_pin_memory=False)
        server.gather_metas(str(number))
        try:
            server.update(str(number), lambda found, address=address: Path(address).write_text(json.dumps(found)))
        except RuntimeError as error:
            failures.append(str(error))
        else:
            failures.append("")
        server.unregister_checkpoint(str(number))
    return failures


def work(rank: int, address: str, fails_at: str = "", dies_at: str = "") -> dict[str, float]:
    """Be the worker of that rank's device, once the server has said where it is."""
    from xpushare.integrations.checkpoint_engine import SCHEME

    found: list[list[str]] = json.loads(Path(address).read_text())
    assert len(found) == RANKS
    return receive(found[rank][1].removeprefix(SCHEME), fails_at, dies_at)
