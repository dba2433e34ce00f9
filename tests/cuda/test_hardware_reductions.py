"""torch's and CuPy's arrays on a real GPU: trees, and `multiprocessing` by handle."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "integrations"))

from reductions_peer import Ask, served

import xpushare as xs
from harness import wait_until
from xpushare.sharing import node

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(110)]


@pytest.fixture(scope="module")
def ask_torch() -> Iterator[Ask]:
    yield from served("torch", 90)


@pytest.fixture(scope="module")
def ask_cupy() -> Iterator[Ask]:
    yield from served("cupy", 90)


def exports() -> int:
    return len(node.current().table().exports())


def test_the_receiver_writes_into_the_senders_memory(ask_torch: Ask) -> None:
    import torch

    for whole in torch.zeros(4, 4, device="cuda"), torch.from_dlpack(xs.empty((4, 4), "f4", device="cuda:0")).zero_():
        assert ask_torch("add_one", [whole, whole[0], torch.nn.Parameter(whole[0])]) == [1.0, 1.0, 1.0]
        assert bool((whole == 1).all())


def test_views_share_one_storage(ask_torch: Ask) -> None:
    import torch

    whole, other = torch.zeros(4, 4, device="cuda"), torch.zeros(4, device="cuda", dtype=torch.bfloat16)
    views = [whole[1:, ::2], whole.T, whole.view(torch.int32), torch.nn.Parameter(whole[3]), whole[:0]]
    mine = [
        (type(each).__name__, tuple(each.shape), each.stride(), each.storage_offset(),
         each.untyped_storage().nbytes(), each.requires_grad, str(each.dtype), True)
        for each in views
    ]  # fmt: skip
    assert ask_torch("described", views) == mine
    assert ask_torch("storages", [*views, other]) == 2
    assert ask_torch("keep", [whole])
    assert ask_torch("keep", [whole[2]])
    ask_torch("forget")


def test_a_state_dict_is_in_the_order_of_the_stream(ask_torch: Ask) -> None:
    import torch

    state = {str(at): torch.zeros(1 << at % 20, device="cuda") for at in range(300)}
    before = exports()
    found = pickle.loads(ForkingPickler.dumps(state))
    assert exports() - before < 150  # allocations of the caching allocator, and one event
    del found
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    for value in state.values():
        value.fill_(5)
    assert ask_torch("add_one", state) == [6.0, *[5.0] * 299]


def test_memory_comes_back(ask_torch: Ask) -> None:
    import torch

    gc.collect()
    before = exports()
    for _ in range(4):
        one = torch.zeros(1 << 20, device="cuda")
        assert ask_torch("add_one", [one]) == [1.0]
        del one
    wait_until(lambda: exports() <= before + 1, what="the exports to end")


def test_a_received_slice_is_passed_on(ask_torch: Ask) -> None:
    import torch

    whole = torch.arange(8.0, device="cuda")[:, None].expand(8, 4).contiguous()
    back = ask_torch("passed_on", whole)
    assert back[:, 0].tolist() == [1.0, 2.0]
    back[0] = 9
    assert whole[1].tolist() == [9.0] * 4


def test_a_tree_of_tensors(ask_torch: Ask) -> None:
    """A model's weights in one message, with arrays of the host."""
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)]).cuda()
    tree = {"weights": dict(model.state_dict()), "host": xs.array([1.0, 2.0]), "step": 3}
    with xs.share(tree) as handle:
        found = xs.attach(bytes(handle), like=torch)
        assert len(handle.handles) < 41
        for name, value in model.state_dict().items():
            assert bool((found["weights"][name] == value).all())
        assert found["host"].tolist() == [1.0, 2.0]
    assert ask_torch("add_one", [torch.zeros(1, device="cuda")]) == [1.0]


def test_cupy(ask_cupy: Ask) -> None:
    import cupy

    ours = cupy.arange(12, dtype="f4").reshape(3, 4)
    view = ours[::2, ::-1]
    first, second = ask_cupy("again", (ours, view))
    assert isinstance(first, cupy.ndarray)
    first[0, 3] = 9
    assert float(ours[0, 3]) == 9
    assert second.tolist() == view.tolist()
    (empty,) = ask_cupy("again", (cupy.empty(0),))
    assert empty.shape == (0,)
