"""Trees, channels and the keeper over two GPUs of one machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept

sys.path.append(str(Path(__file__).parent.parent / "keeper"))

from keepers import stop_keeper

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]

SLOW = 110.0  # seconds for a child
COUNT = 30  # frames
CYCLES = 20_000_000  # some milliseconds, so that whoever does not wait sees the content of before
NUMBER = 6  # arrays that are kept


@pytest.fixture(autouse=True)
def _two_gpus() -> None:
    if len(xs.devices("cuda:*")) < 2:
        pytest.skip("needs two GPUs")
    pytest.importorskip("torch")


def share_tree() -> bytes:
    """In a child: a tensor on each GPU, shared as one tree."""
    import torch

    tree = kept["tree"] = {f"on{n}": torch.full((1 << 20,), n + 1.0, device=f"cuda:{n}") for n in range(2)}
    kept["handle"] = xs.share(tree)
    return bytes(kept["handle"])


def attach_tree(raw: bytes) -> dict[str, tuple[int, float, float]]:
    """In a child: of each tensor the ordinal of its GPU here, its first and its last element."""
    import torch

    tree: Any = xs.attach(raw, like=torch)
    found = {name: (each.device.index, float(each[0]), float(each[-1])) for name, each in tree.items()}
    for each in tree.values():
        each.add_(10)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(torch.cuda.device_count() - 1)
    return found


def own_values() -> list[float]:
    return [float(each[-1]) for each in kept["tree"].values()]


@pytest.mark.parametrize("visible", ["0,1", "1,0"])
def test_a_tree_on_both(visible: str) -> None:
    with Child(timeout=SLOW) as owner, Child(env={"CUDA_VISIBLE_DEVICES": visible}, timeout=SLOW) as reader:
        found = reader.call(attach_tree, owner.call(share_tree))
        first = visible.split(",").index("0")
        assert found == {"on0": (first, 1.0, 1.0), "on1": (1 - first, 2.0, 2.0)}
        assert owner.call(own_values) == [11.0, 12.0]


def test_a_rank_that_sees_one_of_them() -> None:
    with Child(timeout=SLOW) as owner, Child(env={"CUDA_VISIBLE_DEVICES": "1"}, timeout=SLOW) as rank:
        raw = owner.call(share_tree)
        with pytest.raises(xs.InvalidArgumentError, match="CUDA_VISIBLE_DEVICES"):
            rank.call(attach_tree, raw)
        assert rank.call(attach_part, raw) == (0, 2.0)


def attach_part(raw: bytes) -> tuple[int, float]:
    import torch

    tree: Any = xs.attach(raw, like=torch, only=["on1"])
    return tree["on1"].device.index, float(tree["on1"][-1])


def sums_on_the_other(ready: str) -> list[int]:
    """In a child, which works on the other GPU: copies of all frames are summed there, behind long work."""
    import torch

    torch.zeros(1, device="cuda:1")
    found = []
    with xs.Channel.open(ready, timeout=60) as channel:
        kept["atomic"].add(1)
        for frame in channel:
            torch.cuda._sleep(CYCLES)  # on the frames' GPU, before the copy
            copy = torch.from_dlpack(frame).to("cuda:1", non_blocking=True)
            found.append(copy.sum(dtype=torch.int64))
        frame.close()
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
    return [int(each) for each in found]


def keep_atomic(atomic: xs.Atomic) -> None:
    kept["atomic"] = atomic


def test_a_channel_whose_reader_works_on_the_other() -> None:
    import torch

    elements = 1 << 20
    with Child(timeout=SLOW) as reader, xs.Atomic() as ready:
        reader.call(keep_atomic, ready)
        with xs.Channel.create("two-gpus", (elements,), "uint8", device="cuda:0", slots=4) as channel:
            pending = reader.start(sums_on_the_other, "two-gpus")
            while not ready.load():
                ready.wait(0, 60)
            for number in range(COUNT):
                with channel.loan(timeout=60) as frame:
                    tensor = torch.from_dlpack(frame)
                    torch.cuda._sleep(CYCLES // 4)
                    tensor.fill_(number + 1)
            channel.finish()
            assert pending.result(SLOW) == [elements * (number + 1) for number in range(COUNT)]


def publish_kept() -> None:
    """In a child, which is killed then."""
    import torch

    tree = {f"layer{n}": xs.empty(1 << 20, "f4", device="cuda:0") for n in range(NUMBER)}
    for n, each in enumerate(tree.values()):
        torch.from_dlpack(each).fill_(float(n))
    torch.cuda.synchronize()
    xs.publish("two-gpus-kept", tree, keep=True)


def inherit(device: str) -> list[tuple[str, float]]:
    """In a child: on which GPU each array is mapped, and its last element."""
    import torch

    tree: Any = xs.attach(xs.lookup("two-gpus-kept", timeout=0), device=device)
    return [(str(each.device), float(torch.from_dlpack(each)[-1])) for each in tree.values()]


@pytest.fixture
def _keeper() -> Iterator[None]:
    yield
    stop_keeper()


@pytest.mark.usefixtures("_keeper")
@pytest.mark.parametrize(("visible", "device"), [("0,1", "cuda:1"), ("1,0", "cuda:0"), ("1,0", "cuda:1")])
def test_an_heir_on_the_other(visible: str, device: str) -> None:
    with Child(timeout=SLOW) as publisher, Child(env={"CUDA_VISIBLE_DEVICES": visible}, timeout=SLOW) as heir:
        publisher.call(publish_kept)
        publisher.kill()
        assert heir.call(inherit, device) == [(device, float(n)) for n in range(NUMBER)]
