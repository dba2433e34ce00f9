"""Channels on a real GPU: torch's and CuPy's streams on both sides, and page-locked batches."""

from __future__ import annotations

from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(110)]

COUNT = 40
SLOW = 20_000_000  # cycles: some milliseconds, so that whoever does not wait sees what was there before


def open_there() -> None:
    import torch

    torch.zeros(1, device="cuda")
    kept["ch"] = xs.Channel.open("gpu-test", timeout=60)


def sums_of_torch(slow: bool) -> list[int]:
    """Of each frame; no frame's work has ended when the frame is closed."""
    import torch

    found = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for frame in kept["ch"]:
            tensor = torch.from_dlpack(frame)
            if slow:
                torch.cuda._sleep(SLOW)
            found.append(tensor.sum(dtype=torch.int64))
            del tensor
        frame.close()
        torch.cuda.current_stream().synchronize()
    kept.pop("ch").close()
    return [int(each) for each in found]


def sums_of_cupy(slow: bool) -> list[int]:
    import cupy

    assert not slow
    found = []
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for frame in kept["ch"]:
            found.append(cupy.from_dlpack(frame).sum(dtype="int64"))
        frame.close()
        stream.synchronize()
    kept.pop("ch").close()
    return [int(each) for each in found]


@pytest.mark.parametrize(("reader", "slow"), [(sums_of_torch, False), (sums_of_torch, True), (sums_of_cupy, False)])
@pytest.mark.parametrize("slow_writer", [False, True])
def test_streams_of_both_sides_are_ordered(reader: Any, slow: bool, slow_writer: bool) -> None:
    import torch

    if reader is sums_of_cupy:
        pytest.importorskip("cupy")
    nbytes = 1 << 20
    with xs.Channel.create("gpu-test", nbytes, "uint8", device="cuda:0", slots=4) as ch, Child(method="spawn") as child:
        child.call(open_there)
        pending = child.start(reader, slow)
        with torch.cuda.stream(torch.cuda.Stream()):
            for number in range(COUNT):
                with ch.loan(60) as frame:
                    tensor = torch.from_dlpack(frame)
                    if slow_writer:
                        torch.cuda._sleep(SLOW)
                    tensor.fill_(number)
                    del tensor
        ch.finish()
        assert pending.result(90) == [number * nbytes for number in range(COUNT)]


def test_batches_are_page_locked() -> None:
    import torch

    from xpushare.integrations.torch import Batches

    torch.cuda.init()  # without that, torch knows of no page-locked memory
    samples = [{"x": torch.full((1000,), float(i)), "label": i} for i in range(32)]
    with Batches(1 << 20, workers=2, device="cuda:0") as batches:
        loader: Any = torch.utils.data.DataLoader(samples, 4, num_workers=2, collate_fn=batches.collate_fn)
        for batch in batches.of(loader):
            assert batch["x"].is_pinned()
        found = list(batches.of(loader, "cuda:0"))
        assert [each["x"].device.type for each in found] == ["cuda"] * 8
        assert torch.cat([each["x"][:, 0] for each in found]).tolist() == list(range(32))
        assert torch.cat([each["label"] for each in found]).tolist() == list(range(32))


def test_a_slot_is_used_again_after_the_copies_out_of_it() -> None:
    """Copies by this package, and copies by the caller, who drops the batch while they wait behind slow work."""
    import torch

    from xpushare.integrations.torch import Batches

    samples = [{"x": torch.full((250_000,), float(i)), "label": i} for i in range(64)]
    with Batches(8 << 20, workers=2, device="cuda:0") as batches:
        loader: Any = torch.utils.data.DataLoader(samples, 4, num_workers=2, collate_fn=batches.collate_fn)
        for to in ("cuda:0", None, "cpu"):
            found = []
            with torch.cuda.stream(torch.cuda.Stream()):
                for batch in batches.of(loader, to):
                    torch.cuda._sleep(SLOW)
                    found.append(batch["x"].to("cuda:0", non_blocking=True))
                    del batch
                torch.cuda.current_stream().synchronize()
            assert torch.cat([each[:, -1] for each in found]).tolist() == list(range(64))
