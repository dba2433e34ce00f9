"""Weights for inference engines on a GPU (`integrations/_engines.py`)."""

from __future__ import annotations

import os
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept

torch: Any = pytest.importorskip("torch")

from xpushare.integrations import _engines as engines  # noqa: E402

pytestmark = pytest.mark.cuda


def _weights(value: float) -> list[tuple[str, Any]]:
    return [
        ("a", torch.full((1 << 20,), value, device="cuda")),
        ("b", torch.full((3, 5), value, dtype=torch.bfloat16, device="cuda")),
    ]


def _name(what: str) -> str:
    return f"gpu-{what}-{os.getpid()}"


def _join(name: str) -> None:
    kept["reader"] = engines.Reader(name, "cuda:0")
    kept["own"] = {name: torch.zeros_like(tensor) for name, tensor in _weights(0)}


def _load(version: int | None) -> None:
    """Queues copies behind long work, and does not wait for them."""
    with kept["reader"].reading(version) as tensors:
        torch.cuda._sleep(200_000_000)
        for name, tensor in tensors.items():
            kept["own"][name].copy_(tensor, non_blocking=True)


def _values() -> list[float]:
    return sorted({float(each) for tensor in kept["own"].values() for each in (tensor.min(), tensor.max())})


def _leave() -> None:
    kept.pop("reader").close()


def test_a_trainer_writes_in_place_once_its_readers_are_done() -> None:
    name, weights = _name("in-place"), _weights(0)
    publisher = engines.Publisher(name)
    with Child(method="spawn") as one, Child(method="spawn") as two:
        for child in (one, two):
            child.call(_join, name)
        for value in (1.0, 2.0, 3.0):
            for _, tensor in weights:
                tensor.fill_(value)
            version = publisher.publish(weights)
            for child in (one, two):
                child.call(_load, version)
            publisher.wait(60)
            for _, tensor in weights:
                tensor.fill_(-1)
            assert one.call(_values) == two.call(_values) == [value]
        publisher.withdraw()
        for child in (one, two):
            child.call(_leave)


def _publish_kept(name: str, value: float) -> int:
    kept["publisher"] = engines.Publisher(name, keep=True)
    return kept["publisher"].publish(_weights(value))


def test_what_is_kept_outlives_its_trainer() -> None:
    name = _name("kept")
    try:
        with Child(method="spawn") as trainer:
            version = trainer.call(_publish_kept, name, 7.0)
            trainer.kill()
        with Child(method="spawn") as engine:
            engine.call(_join, name)
            engine.call(_load, None)
            assert engine.call(_values) == [7.0]
            engine.call(_load, version)
            engine.call(_leave)
    finally:
        with Child() as child:
            child.call(_stop_keeper)


def _stop_keeper() -> None:
    from xpushare import cli

    cli.main(["keep", "--stop"])


def _open(handle: bytes) -> None:
    kept["channel"] = xs.Channel.open(handle)


def _sum() -> float:
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    with kept.pop("channel") as channel:
        for bucket in engines.receive_buckets(channel, timeout=60):
            for _, tensor in bucket:
                total += tensor.double().sum()
    return float(total)


def test_buckets_on_a_gpu() -> None:
    weights = [(f"w{i}", torch.full((1 << 18,), float(i), device="cuda")) for i in range(40)]
    channel = xs.Channel.create(None, (4 << 20,), "uint8", device="cuda:0", slots=3, meta_nbytes=engines.META_NBYTES)
    with channel, Child(method="spawn") as one, Child(method="spawn") as two:
        for child in (one, two):
            child.call(_open, bytes(channel.handle))
        jobs = [child.start(_sum) for child in (one, two)]
        engines.send_buckets(channel, weights, timeout=60)
        assert [job.result(60) for job in jobs] == [float(sum(range(40)) << 18)] * 2
