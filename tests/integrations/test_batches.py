"""A DataLoader's batches in a channel: `xpushare.integrations.torch.Batches`."""

from __future__ import annotations

import importlib
import os
import signal
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
        places = batches._reader._end.places
        low, high = places[0].address, places[-1].address + places[-1].nbytes
        addresses = [batch["image"].data_ptr() for batch in batches.of(loader_of(batches, 1))]
        assert len(addresses) == COUNT // 4
        assert all(low <= each < high for each in addresses)


def test_page_locked_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*;native_cpu:*")
    with batches_of(device="mock:0") as batches:
        assert {str(each.device) for each in batches._reader._end.places} == {"mock:0"}
        assert {each.allocation.kind for each in batches._reader._end.places} == {"host"}


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


def test_a_batch_that_does_not_fit() -> None:
    from xpushare.integrations.torch import Batches

    with Batches(64, workers=1) as batches, pytest.raises(xs.InvalidArgumentError, match="larger nbytes"):
        list(batches.of(loader_of(batches, 0)))


def test_other_loaders_are_refused() -> None:
    with batches_of(1) as batches:
        with pytest.raises(xs.InvalidArgumentError, match="collate_fn=batches"):
            batches.of(data.DataLoader(Samples()))
        with pytest.raises(xs.InvalidArgumentError, match="prefetch_factor"):
            batches.of(loader_of(batches, 1, prefetch_factor=3))


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
