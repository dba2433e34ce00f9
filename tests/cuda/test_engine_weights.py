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


def _publish_on(device: int, name: str, value: float) -> tuple[str, str, int]:
    torch.cuda.set_device(device)
    weights = kept.setdefault("weights", [(each, tensor.to(f"cuda:{device}")) for each, tensor in _weights(0)])
    publisher = kept.setdefault("publisher", engines.Publisher(name))
    for _, tensor in weights:
        torch.cuda._sleep(20_000_000)
        tensor.fill_(value)
    publisher.publish(weights)
    tree: tuple[str, str, int] = publisher.tree
    return tree


def _wait_and_write() -> None:
    kept["publisher"].wait(60)
    for _, tensor in kept["weights"]:
        tensor.fill_(-1)
    kept["publisher"].withdraw()


def _load_nearest(trees: list[tuple[str, str, int]], device: str, rank: int) -> tuple[str, str, list[float]]:
    """In a worker: which tree it took, where that lies, and what it copied from there."""
    _, name, version = engines.nearest(trees, device, rank)
    reader = kept.setdefault("reader", engines.Reader(name, device))
    with reader.reading(version) as tensors:
        places = {str(tensor.device) for tensor in tensors.values()}
        kept["own"] = {each: tensor.to(device, copy=True) for each, tensor in tensors.items()}
    return name, ",".join(places), _values()


@pytest.mark.parametrize("visible", [None, "1,0"])
def test_each_gpu_of_a_trainer_serves_the_worker_on_it(visible: str | None) -> None:
    """A trainer of two ranks, each with a GPU, and two tensor-parallel workers, which may number the GPUs in another
    way. All of them take one version.
    """
    if len(xs.devices("cuda:*")) < 2:
        pytest.skip("needs two GPUs")
    names = [_name(f"rank-{device}") for device in range(2)]
    env = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    with Child() as first, Child() as second, Child(env=env) as one, Child(env=env) as two:
        for value in (1.0, 2.0, 3.0):
            trees = [each.call(_publish_on, rank, names[rank], value) for rank, each in enumerate((first, second))]
            assert trees[0][0] != trees[1][0]
            for rank, worker in enumerate((one, two)):
                number = 1 - rank if visible else rank
                found = worker.call(_load_nearest, trees, f"cuda:{rank}", rank)
                assert found == (names[number], f"cuda:{rank}", [value])
            for each in (first, second):
                each.call(_wait_and_write)
        for worker in (one, two):
            worker.call(_leave)


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
