"""What the plug-ins of inference engines share (`integrations/_engines.py`), between real processes."""

from __future__ import annotations

import os
from typing import Any

import pytest

import xpushare as xs
from harness import Child

torch: Any = pytest.importorskip("torch")

from xpushare.integrations import _engines as engines  # noqa: E402


def _weights(value: float) -> list[tuple[str, Any]]:
    return [
        ("model.layers.0.weight", torch.full((3, 5), value)),
        ("model.layers.1.weight", torch.full((7,), value, dtype=torch.bfloat16)),
        ("scale", torch.tensor(value)),
        ("narrow", torch.full((2, 2), value).to(torch.float8_e5m2)),
        ("empty", torch.empty(0, 4)),
    ]


def _name() -> str:
    return f"weights-{os.getpid()}"


_readers: dict[str, engines.Reader] = {}


def _join(name: str) -> None:
    _readers[name] = engines.Reader(name, "cpu")


def _read(
    name: str, version: int | None, part: str = "", timeout: float | None = None
) -> dict[str, tuple[tuple[int, ...], str, float]]:
    only = (lambda path: path.startswith(part)) if part else None
    with _readers[name].reading(version, only=only, timeout=timeout) as tensors:
        return {each: (tuple(t.shape), str(t.dtype), float(t.float().sum())) for each, t in tensors.items()}


def _leave(name: str) -> None:
    _readers.pop(name).close()


def test_readers_of_one_version_and_of_a_part() -> None:
    name, publisher = _name(), engines.Publisher(_name())
    with Child(method="fork") as one, Child(method="fork") as two:
        for child in (one, two):
            child.call(_join, name)
        for value in (1.0, 2.0):
            version = publisher.publish(_weights(value))
            assert one.call(_read, name, version) == {
                "model.layers.0.weight": ((3, 5), "torch.float32", 15 * value),
                "model.layers.1.weight": ((7,), "torch.bfloat16", 7 * value),
                "scale": ((), "torch.float32", value),
                "narrow": ((2, 2), "torch.float8_e5m2", 4 * value),
                "empty": ((0, 4), "torch.float32", 0),
            }
            assert list(two.call(_read, name, version, "model.layers.1")) == ["model.layers.1.weight"]
            publisher.wait(10)
        with pytest.raises(xs.HandleExpiredError):
            one.call(_read, name, version - 1)
        publisher.withdraw()
        publisher.withdraw()
        assert name not in xs.published()
        for child in (one, two):
            child.call(_leave, name)
        assert not [each for each in xs.published() if each.startswith(name)]


_publishers: dict[str, engines.Publisher] = {}


def _publish(name: str, value: float) -> tuple[str, str, int]:
    publisher = _publishers.setdefault(name, engines.Publisher(name))
    publisher.publish(_weights(value))
    tree: tuple[str, str, int] = publisher.tree
    return tree


def _wait_and_withdraw(name: str) -> None:
    _publishers[name].wait(10)
    _publishers[name].withdraw()


def _read_nearest(trees: list[tuple[str, str, int]], rank: int) -> tuple[str, float]:
    _, name, version = engines.nearest(trees, "cpu", rank)
    if name not in _readers:
        _join(name)
    return name, _read(name, version, timeout=0)["scale"][2]


def test_each_rank_of_a_trainer_publishes_for_the_readers_on_its_device() -> None:
    """Two ranks of a trainer, and a group of three readers that take one version of it together."""
    names = [f"{_name()}.{rank}" for rank in range(2)]
    with Child() as first, Child() as second, Child() as one, Child() as two, Child() as three:
        trainers, readers = (first, second), (one, two, three)
        for value in (1.0, 2.0):
            trees = [each.call(_publish, name, value) for each, name in zip(trainers, names, strict=True)]
            found = [each.call(_read_nearest, trees, rank) for rank, each in enumerate(readers)]
            assert found == [(names[0], value), (names[1], value), (names[0], value)]
            for each, name in zip(trainers, names, strict=True):
                each.call(_wait_and_withdraw, name)
            with pytest.raises(TimeoutError):  # withdrawn
                one.call(_read_nearest, trees, 0)
        for each, name in zip(readers, (*names, names[0]), strict=True):
            each.call(_leave, name)
    elsewhere = [("another GPU", "a", 1), ("a third one", "b", 2)]
    assert engines.nearest(elsewhere, "cpu", 1) == elsewhere[0]


def _attach_and_wait(name: str, began: xs.Event, go_on: xs.Event) -> None:
    event = engines.Reader(name, "cpu")
    queue = xs.Queue("native_cpu:0")
    queue.wait(go_on, at_least=1)
    queue.signal(event._done)  # as a GPU's stream does: the host has gone on
    began.signal()
    queue.synchronize(30)


def test_the_publisher_waits_for_work_that_readers_have_queued() -> None:
    name, publisher = _name(), engines.Publisher(_name())
    with xs.Event(enable_ipc=True) as began, xs.Event(enable_ipc=True) as go_on, Child(method="fork") as child:
        job = child.start(_attach_and_wait, name, began, go_on)
        began.wait(30, at_least=1)
        with pytest.raises(TimeoutError):
            publisher.wait(0.05)
        go_on.signal()
        publisher.wait(30)
        job.result(30)


def test_the_publisher_does_not_wait_for_a_reader_that_was_killed() -> None:
    name, publisher = _name(), engines.Publisher(_name())
    with xs.Event(enable_ipc=True) as began, xs.Event(enable_ipc=True) as go_on, Child(method="fork") as child:
        child.start(_attach_and_wait, name, began, go_on)
        began.wait(30, at_least=1)
        child.kill()
        publisher.wait(30)


_channels: list[xs.Channel] = []


def _open(handle: bytes) -> None:
    _channels.append(xs.Channel.open(handle))


def _receive() -> list[list[tuple[str, str, tuple[int, ...], float]]]:
    with _channels.pop() as channel:
        return [
            [(name, str(t.dtype), tuple(t.shape), float(t.float().sum())) for name, t in bucket]
            for bucket in engines.receive_buckets(channel, timeout=30)
        ]


def _bucket_channel(nbytes: int) -> xs.Channel:
    return xs.Channel.create(None, (nbytes,), "uint8", slots=3, meta_nbytes=engines.META_NBYTES)


def test_buckets_reach_two_readers_whole_and_in_order() -> None:
    weights = [(f"layers.{i}", torch.full((i + 1, 16), float(i))) for i in range(30)]
    weights += [("bias", torch.full((3,), 0.5, dtype=torch.bfloat16)), ("none", torch.empty(0, 2))]
    with _bucket_channel(4096) as channel, Child(method="fork") as one, Child(method="fork") as two:
        for child in (one, two):
            child.call(_open, bytes(channel.handle))
        jobs = [child.start(_receive) for child in (one, two)]
        engines.send_buckets(channel, weights, timeout=30)
        for job in jobs:
            buckets = job.result(30)
            assert len(buckets) > 5
            assert [each for bucket in buckets for each in bucket] == [
                (name, str(t.dtype), tuple(t.shape), float(t.float().sum())) for name, t in weights
            ]


def test_names_that_fill_a_frames_metadata_begin_another_frame() -> None:
    weights = [(f"{'x' * 5000}.{i}", torch.tensor([float(i)])) for i in range(60)]
    with _bucket_channel(1 << 20) as channel, Child(method="fork") as child:
        child.call(_open, bytes(channel.handle))
        job = child.start(_receive)
        engines.send_buckets(channel, weights, timeout=30)
        buckets = job.result(30)
        assert len(buckets) > 1
        assert [name for bucket in buckets for name, *_ in bucket] == [name for name, _ in weights]


def test_a_tensor_larger_than_a_bucket_is_refused_and_readers_learn_of_it() -> None:
    with Child(method="fork") as child:
        with _bucket_channel(1024) as channel:
            child.call(_open, bytes(channel.handle))
            job = child.start(_receive)
            with pytest.raises(xs.InvalidArgumentError, match="large has 4096 bytes"):
                engines.send_buckets(channel, [("small", torch.ones(8)), ("large", torch.ones(1024))])
        with pytest.raises(xs.PeerLostError):
            job.result(30)


def test_devices_that_no_backend_knows() -> None:
    with pytest.raises(xs.InvalidArgumentError, match="'meta'"):
        engines.device_of("meta")
