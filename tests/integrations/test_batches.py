"""A DataLoader's batches in a channel: `xpushare.integrations.torch.Batches`."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import xpushare as xs

torch: Any = pytest.importorskip("torch")
data: Any = importlib.import_module("torch.utils.data")

COUNT = 20


class Samples:
    """Sample i, of every kind that torch collates."""

    def __init__(self, fails_at: int = -1) -> None:
        self._fails_at = fails_at

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> Any:
        if i == self._fails_at:
            os.kill(os.getpid(), signal.SIGKILL)
        image = torch.full((3, 4), i, dtype=torch.float32)
        return {"image": image, "pair": (np.full(2, i), i), "name": f"sample {i}", "mask": image.bool()}


def batches_of(workers: int = 2, **options: Any) -> Any:
    from xpushare.integrations.torch import Batches

    return Batches(1 << 16, workers=workers, **options)


def loader_of(batches: Any, workers: int = 2, samples: Any = None, **options: Any) -> Any:
    options = {"num_workers": workers, "collate_fn": batches.collate_fn, **options}
    return data.DataLoader(samples or Samples(), 4, **options)


def flat(batch: Any) -> list[Any]:
    image, (numbers, indices) = batch["image"], batch["pair"]
    return [image.tolist(), numbers.tolist(), indices.tolist(), list(batch["name"]), batch["mask"].tolist()]


def expected() -> list[Any]:
    return [flat(each) for each in data.DataLoader(Samples(), 4)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("no_fd_leak")
def test_batches_are_those_of_the_default_collate(workers: int) -> None:
    with batches_of(workers) as batches:
        loader = loader_of(batches, workers)
        for _ in range(2):
            assert [flat(each) for each in batches.of(loader)] == expected()
        assert [flat(each) for each in batches.of(loader, "cpu")] == expected()


def test_tensors_are_stacked_in_the_slot() -> None:
    with batches_of(1) as batches:
        places = batches._reader._end.slots
        low, high = places[0].address, places[-1].address + places[-1].nbytes
        addresses = [batch["image"].data_ptr() for batch in batches.of(loader_of(batches, 1))]
        assert len(addresses) == COUNT // 4
        assert all(low <= each < high for each in addresses)


def held(batches: Any) -> int:
    """How many slots the reader of these batches holds."""
    return sum(each["held"] for each in batches._writer.statistics()["members"] if not each["writes"])


def one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """As Lightning and accelerate fetch: the next batch comes before the caller gets this one."""
    ahead: deque[Any] = deque()
    for each in batches:
        ahead.append(each)
        if len(ahead) == 2:
            yield ahead.popleft()
    yield from ahead


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("to", [None, "cpu", "cpu:0"])
def test_batches_belong_to_the_caller(workers: int, to: str | None) -> None:
    """As many as the caller keeps: those that lie in slots, and copies once too many slots are held."""
    with batches_of(workers) as batches:
        loader = loader_of(batches, workers)
        assert [flat(each) for each in one_ahead(batches.of(loader, to))] == expected()
        kept = [*batches.of(loader, to), *batches.of(loader, to)]
        assert [flat(each) for each in kept] == expected() * 2
        assert len({each["image"].data_ptr() for each in kept}) == len(kept)
        kept[0]["image"][:] = -1  # the caller's alone
        assert [flat(each) for each in batches.of(loader, to)] == expected()
        assert (kept[0]["image"] == -1).all()
        assert held(batches) == 4
        kept.clear()
        assert held(batches) == 0


ALIASES: list[Callable[[Any], Any]] = [
    lambda x: x[1:, :1],
    lambda x: x.detach().view(-1),
    lambda x: x.numpy(),
    lambda x: np.asarray(x)[..., 1],
    lambda x: memoryview(x.numpy()),
    lambda x: x.untyped_storage(),
    lambda x: torch.utils.dlpack.to_dlpack(x),
    lambda x: torch.nn.Parameter(x),
]


def listed(x: Any) -> Any:
    if type(x).__name__ == "PyCapsule":
        x = torch.from_dlpack(x)
    return x.tolist()


@pytest.mark.parametrize("alias", ALIASES, ids=range(len(ALIASES)))
def test_a_slot_is_used_again_after_its_last_alias(alias: Callable[[Any], Any]) -> None:
    with batches_of(1) as batches:
        loader = loader_of(batches, 0)
        kept = alias(next(batches.of(loader))["image"])
        gc.collect()
        assert held(batches) == 1
        assert [flat(each) for each in batches.of(loader)] == expected()
        assert held(batches) == 1
        assert listed(kept) == listed(alias(next(iter(data.DataLoader(Samples(), 4)))["image"]))
        del kept
        assert held(batches) == 0


def test_batches_stay_valid_after_the_end() -> None:
    """Workers that live on, since their epoch has not ended, may still collate."""
    batches = batches_of(1)
    loader = loader_of(batches, 1, persistent_workers=True)
    rest = batches.of(loader)
    kept = [next(rest), next(rest)]
    batches.close()
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        next(rest)
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        batches.of(loader)
    del loader, rest
    assert [flat(each) for each in kept] == expected()[:2]


def test_a_slot_is_used_again_after_the_copies_to_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: copies that complete when the test says so. Batches wait for the oldest one when slots are few."""
    integration: Any = importlib.import_module("xpushare.integrations.batches")
    waited: list[Any] = []

    class Copy:
        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            waited.append(self)

    monkeypatch.setattr(integration, "_copied", lambda _device: Copy())
    with batches_of(1) as batches:
        batches._reads = torch.device("cpu")  # as if the caller had copied each batch before dropping it
        loader = loader_of(batches, 1)
        dropped: list[int] = []  # `enumerate` would hold a batch
        for batch in batches.of(loader):
            assert len(waited) == max(len(dropped) - 3, 0)
            dropped.append(len(batch))
            del batch
            assert held(batches) >= min(len(dropped), 4)
        assert len(waited) == COUNT // 4
        assert held(batches) == 0

        waited.clear()
        monkeypatch.setattr(integration, "_device", lambda _to: torch.device("meta"))  # to which all can be copied
        copies = batches.of(loader, "a device")
        assert next(copies)["image"].device.type == "meta"
        assert held(batches) == 1
        copies.close()
        assert len(waited) == 1
        assert held(batches) == 0


def test_a_batch_that_is_sent_on_is_a_copy() -> None:
    """A handle would show the slot's later batches."""
    from multiprocessing.reduction import ForkingPickler

    from xpushare.integrations.torch import install, uninstall

    with batches_of(1) as batches:
        loader = loader_of(batches, 0)
        batch = next(batches.of(loader))
        with pytest.raises(xs.FeatureNotSupportedError, match="copy=True"):
            xs.share(batch)
        shared = xs.share(batch, copy=True)
        install()
        try:
            assert not batch["image"].is_shared()
            message = bytes(ForkingPickler.dumps(batch))
        finally:
            uninstall()
        del batch
        assert held(batches) == 0
        assert [flat(each) for each in batches.of(loader)] == expected()
        assert flat(xs.attach(shared, like=torch)) == expected()[0]
        assert flat(pickle.loads(message)) == expected()[0]
        shared.close()


def test_page_locked_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*;native_cpu:*")
    with batches_of(device="mock:0") as batches:
        assert {str(each.device) for each in batches._reader._end.slots} == {"mock:0"}
        assert {each.allocation.kind for each in batches._reader._end.slots} == {"host"}


def test_an_epoch_that_was_left() -> None:
    with batches_of() as batches:
        loader = loader_of(batches)
        for _ in range(3):
            left = batches.of(loader)
            next(left)
            left.close()
        assert [flat(each) for each in batches.of(loader)] == expected()


def test_persistent_workers() -> None:
    with batches_of() as batches:
        loader = loader_of(batches, persistent_workers=True)
        for _ in range(2):
            assert [flat(each) for each in batches.of(loader)] == expected()
        left = batches.of(loader)
        next(left)
        left.close()
        with pytest.raises(xs.InvalidArgumentError, match="persistent_workers"):
            batches.of(loader)


def test_a_worker_is_killed() -> None:
    with batches_of() as batches:
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            list(batches.of(loader_of(batches, samples=Samples(9))))
        assert [flat(each) for each in batches.of(loader_of(batches))] == expected()


def test_one_epoch_at_a_time() -> None:
    with batches_of(2) as batches:
        loader = loader_of(batches)
        first, second = batches.of(loader), batches.of(loader)
        assert flat(next(first)) == expected()[0]
        with pytest.raises(xs.InvalidArgumentError, match="under way"):
            next(second)
        with pytest.raises(xs.InvalidArgumentError, match="under way"):
            batches.of(loader)
        assert [flat(each) for each in first] == expected()[1:]
        assert [flat(each) for each in batches.of(loader_of(batches))] == expected()


def test_workers_of_two_loaders() -> None:
    with batches_of(1) as batches:
        loader = loader_of(batches, 1, persistent_workers=True)
        assert [flat(each) for each in batches.of(loader)] == expected()
        with pytest.raises(xs.InvalidArgumentError, match="persistent_workers"):
            list(batches.of(loader_of(batches, 1)))
        assert [flat(each) for each in batches.of(loader)] == expected()


@dataclass
class Point:
    x: int


_ONES: Any = torch.ones(3)
REFUSED: dict[str, tuple[list[Any], str]] = {
    "sparse": ([_ONES.to_sparse()] * 2, r"torch.sparse_coo.*x\.to_dense\(\)"),
    "sparse with dense": ([_ONES, _ONES.to_sparse()], r"x\.to_dense\(\)"),
    "nested": ([torch.nested.nested_tensor([_ONES, _ONES], layout=torch.jagged)] * 2, "to_padded_tensor"),
    "gradients": ([_ONES.clone().requires_grad_()] * 2, r"x\.detach\(\)"),
    "elsewhere": ([torch.empty(3, device="meta")] * 2, "on meta"),
    "ragged": ([torch.ones(2), torch.ones(3)], "same structure and shapes"),
    "ragged lists": ([[1, 2], [1]], "same structure and shapes"),
    "another key": ([{"a": 1}, {"b": 1}], "KeyError"),
    "dataclass": ([Point(1)] * 2, "dataclasses.asdict"),
    "None": ([None, None], "NoneType"),
    "tensor and None": ([_ONES, None], "Tensor and a NoneType"),
    "array and tensor": ([np.ones(3), _ONES], "ndarray and a Tensor"),
    "masked": ([np.ma.masked_array([1, 2], [0, 1])] * 2, r"MaskedArray.*np\.asarray"),
    "objects": ([np.array([None])] * 2, "found object"),
    "integers": ([2**63, 1], "Overflow"),
    "deep": ([[[]]] * 2, "depth"),
    "keys": ([{1.5: 1}] * 2, "keys of a tree"),
    "text": (["x" * 9000] * 2, "text and numbers"),
    "large": ([torch.ones(1 << 14)] * 2, "larger nbytes"),
}  # fmt: skip
for _ in range(70):
    REFUSED["deep"][0][:] = [[each] for each in REFUSED["deep"][0]]


@pytest.mark.parametrize("kind", REFUSED)
def test_samples_that_make_no_batch(kind: str) -> None:
    samples, message = REFUSED[kind]
    with batches_of(1) as batches:
        with pytest.raises(xs.InvalidArgumentError, match=message):
            list(batches.of(data.DataLoader(samples, 2, collate_fn=batches.collate_fn)))
        assert [flat(each) for each in batches.of(loader_of(batches, 0))] == expected()


def test_a_worker_reports_samples_that_make_no_batch() -> None:
    with batches_of(1) as batches:
        samples = [torch.ones(i + 1) for i in range(8)]
        with pytest.raises(xs.InvalidArgumentError, match="same structure and shapes"):
            list(batches.of(data.DataLoader(samples, 2, num_workers=1, collate_fn=batches.collate_fn)))
        assert [flat(each) for each in batches.of(loader_of(batches, 1))] == expected()


def test_samples_of_other_kinds() -> None:
    complex_ones = torch.tensor([1 + 2j, 3 - 1j])
    samples = [
        {
            "turned": torch.arange(6.0).view(2, 3).T, "conjugated": complex_ones.conj(),
            "negative": complex_ones.conj().imag, "wide": torch.ones(1).expand(4), "none": torch.empty(0, 3),
            "mixed": torch.tensor([2**40 + i]) if i else torch.tensor([i], dtype=torch.int32),
            "mapping": UserDict(a=i), "text": ("a", b"b"),
        }
        for i in range(2)
    ]  # fmt: skip
    with batches_of(1) as batches:
        (found,) = batches.of(data.DataLoader(samples, 2, num_workers=1, collate_fn=batches.collate_fn))
    for name in ("turned", "conjugated", "negative", "wide", "none"):
        assert torch.equal(found[name], torch.stack([each[name] for each in samples]))
    assert found["mixed"].tolist() == [[0], [2**40 + 1]]
    assert found["mapping"]["a"].tolist() == [0, 1]
    assert [list(each) for each in found["text"]] == [["a", "a"], [b"b", b"b"]]


def test_other_loaders_are_refused() -> None:
    with batches_of(1) as batches:
        with pytest.raises(xs.InvalidArgumentError, match="collate_fn=batches"):
            batches.of(data.DataLoader(Samples()))
        with pytest.raises(xs.InvalidArgumentError, match="collate_fn=batches"):
            batches.of([1, 2])
        with pytest.raises(xs.InvalidArgumentError, match="prefetch_factor"):
            batches.of(loader_of(batches, 1, prefetch_factor=3))
        with pytest.raises(xs.InvalidArgumentError, match="num_workers"):
            batches.of(loader_of(batches, 2, prefetch_factor=1))
        with pytest.raises(xs.InvalidArgumentError, match="batch_size=None"):
            batches.of(data.DataLoader(Samples(), None, collate_fn=batches.collate_fn))
        loader = loader_of(batches, 0)
        for to in ("meta", "nowhere", "mps", -1, 1.5, object()):
            with pytest.raises(xs.InvalidArgumentError, match="device"):
                batches.of(loader, to)
        with pytest.raises(TypeError, match="collate_fn"):
            pickle.dumps(batches)


@pytest.mark.parametrize("number", [-1, 2**62, 1 << 300, float("nan"), None, "1"])
@pytest.mark.parametrize("name", ["nbytes", "workers", "prefetch"])
def test_numbers_out_of_range(name: str, number: Any) -> None:
    from xpushare.integrations.torch import Batches

    with pytest.raises(xs.InvalidArgumentError, match=name):
        Batches(**{"nbytes": 64, "workers": 1, name: number})


def test_spawned_workers() -> None:
    with batches_of(1) as batches:
        loader = loader_of(batches, 1, multiprocessing_context="spawn")
        assert [flat(each) for each in batches.of(loader)] == expected()


def test_dtypes() -> None:
    dtypes = [torch.bfloat16, torch.bool, torch.complex64, torch.float64, torch.int16, torch.uint8]
    samples = [{str(dtype): torch.arange(3).to(dtype) for dtype in dtypes} for _ in range(4)]
    with batches_of(1) as batches:
        loader = data.DataLoader(samples, 2, num_workers=1, collate_fn=batches.collate_fn)
        for batch in batches.of(loader):
            for dtype in dtypes:
                assert batch[str(dtype)].dtype is dtype
                assert torch.equal(batch[str(dtype)], torch.arange(3).to(dtype).expand(2, 3))
