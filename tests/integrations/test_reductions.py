"""torch's and JAX's arrays on the host through `multiprocessing` by handle."""

from __future__ import annotations

import gc
import io
import pickle
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from reductions_peer import SPAWN, Ask, served

import xpushare as xs
from harness import wait_until
from xpushare.adapters.mock import Mock
from xpushare.adapters.mock.others import ForeignArray, MockStream
from xpushare.adapters.mock.script import driver
from xpushare.integrations import _reductions
from xpushare.sharing import node

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ask_torch() -> Iterator[Ask]:
    yield from served("torch")


@pytest.fixture(scope="module")
def ask_jax() -> Iterator[Ask]:
    pytest.importorskip("jax")
    yield from served("jax")


def tensor(*shape: int) -> Any:
    return torch.from_dlpack(xs.empty(shape, "f4"))


def exports() -> int:
    return len(node.current().table().exports())


def mapped() -> int:
    gc.collect()
    with open("/proc/self/maps") as file:
        return sum("memfd:xpushare" in line for line in file)


def test_the_receiver_writes_into_the_senders_memory(ask_torch: Ask) -> None:
    whole = tensor(4, 4)
    assert ask_torch("add_one", [whole, whole[0], torch.nn.Parameter(whole[0])]) == [1.0, 1.0, 1.0]
    assert bool((whole == 1).all())


def test_views_share_one_storage(ask_torch: Ask) -> None:
    whole, other = tensor(4, 4), tensor(4, 4)
    views = [whole[1:, ::2], whole.T, whole.view(torch.int32), torch.nn.Parameter(whole[3]), whole[:0]]
    mine = [
        (type(each).__name__, tuple(each.shape), each.stride(), each.storage_offset(),
         each.untyped_storage().nbytes(), each.requires_grad, str(each.dtype), True)
        for each in views
    ]  # fmt: skip
    assert ask_torch("described", views) == mine
    assert ask_torch("storages", [*views, other]) == 2
    assert ask_torch("keep", [whole])
    assert ask_torch("keep", [whole[2]])  # another message, the same storage
    ask_torch("forget")


def test_one_export_for_each_allocation_of_a_message(ask_torch: Ask) -> None:
    slab = xs.malloc_host(1 << 16)
    state = {str(at): torch.from_dlpack(slab.as_array(16, "f4", 64 * at)) for at in range(200)}
    before = exports()
    message = ForkingPickler.dumps(state)
    assert exports() - before == 1
    assert len(message) < 200 * 200
    found = pickle.loads(message)
    found["7"][3] = 5
    assert float(state["7"][3]) == 5
    assert len({each.untyped_storage()._cdata for each in found.values()}) == 200
    del found
    assert ask_torch("add_one", state)[0] == 1.0


def test_nothing_is_left(ask_torch: Ask) -> None:
    gc.collect()
    memory, there, before = mapped(), ask_torch("mappings"), exports()
    for _ in range(3):
        one = tensor(64, 64)
        assert ask_torch("add_one", [one]) == [1.0]
        del one
    assert ask_torch("mappings") == there
    wait_until(lambda: exports() <= before and mapped() <= memory, what="the exports to end")


def test_a_received_slice_is_passed_on(ask_torch: Ask) -> None:
    """As a DataLoader's worker does."""
    whole = tensor(8, 4)
    whole[:] = torch.arange(8.0)[:, None]
    back = ask_torch("passed_on", whole)
    assert back[:, 0].tolist() == [1.0, 2.0]
    back[0] = 9
    assert whole[1].tolist() == [9.0] * 4


def test_a_tensor_over_an_attached_array_is_passed_on(ask_torch: Ask) -> None:
    array = xs.empty((3, 4), "f4")
    with xs.share(array) as handle, xs.attach(handle) as attached:
        assert ask_torch("add_one", [torch.from_dlpack(attached)[1]]) == [1.0]
    assert np.asarray(array)[1].tolist() == [1.0] * 4
    assert np.asarray(array)[0].tolist() == [0.0] * 4


def test_a_piece_that_was_opened_later_narrows_nothing(ask_torch: Ask) -> None:
    """What lies outside the piece still goes by the handle of the whole."""
    handles = ask_torch("shared_in_two_ways")
    whole, piece = map(xs.attach, handles)
    rows = [torch.from_dlpack(piece), torch.from_dlpack(whole)[2]]
    assert ask_torch("add_one", rows) == [1.0, 0.0]
    assert ask_torch("add_one", rows[1:]) == [1.0]
    assert np.asarray(whole)[:, 0].tolist() == [1.0, 0.0, 1.0]
    del rows
    whole.close()
    piece.close()
    ask_torch("forget")


def test_the_rest_goes_torchs_way(ask_torch: Ask) -> None:
    ours = tensor(4)
    before = exports()
    private = torch.ones(3)
    assert ask_torch("add_one", [private]) == [2.0]
    assert private.is_shared()  # torch moves it into memory of its own
    conjugate = torch.from_dlpack(xs.empty(4, "c8")).conj()
    for other in (conjugate, torch.eye(3).to_sparse(), torch.empty(0), torch.ones(2, device="meta")):
        ForkingPickler.dumps(other)
    assert exports() == before
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps(ours.requires_grad_() * 2)
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps((ours * 2).view(2, 2))


@pytest.mark.usefixtures("ask_torch")
def test_the_log_says_why_a_tensor_goes_torchs_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "xpushare")
    ForkingPickler.dumps(tensor(4))
    assert not caplog.records
    ForkingPickler.dumps(torch.ones(3))
    assert "this Tensor goes through multiprocessing in its library's way: " in caplog.text


@pytest.mark.usefixtures("ask_torch")
def test_without_a_message_or_install() -> None:
    """Plain pickles carry values."""
    ours = tensor(4)
    found = pickle.loads(pickle.dumps(ours))
    found[0] = 3
    assert float(ours[0]) == 0
    file = io.BytesIO()
    ForkingPickler(file).dump([ours])
    (found,) = pickle.loads(file.getvalue())
    found[0] = 4
    assert float(ours[0]) == 4


@pytest.mark.usefixtures("ask_torch")
def test_hostile_offsets() -> None:
    from xpushare.integrations.torch import _storage

    array = pickle.loads(pickle.dumps(xs.empty(64, "u1")))
    for offset, nbytes in ((-1, 8), (60, 8), (0, 65), (1 << 62, 8), (0, -1)):
        with pytest.raises(xs.InvalidArgumentError):
            _storage(array, offset, nbytes)


@pytest.mark.usefixtures("ask_torch")
def test_torchs_own_channels_and_pools() -> None:
    from torch.multiprocessing import get_context

    queue = get_context("spawn").SimpleQueue()
    ours = tensor(4)
    queue.put([ours, ours[1:]])
    first, second = queue.get()
    second[0] = 6
    assert float(ours[1]) == 6
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    here, there = SPAWN.Pipe()
    here.send(ours)
    there.recv()[3] = 8
    assert float(ours[3]) == 8


@pytest.mark.usefixtures("ask_torch")
def test_what_nobody_receives_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "0")
    before = exports()
    ForkingPickler.dumps(tensor(8))
    gc.collect()
    assert exports() == before


def test_jax(ask_jax: Ask) -> None:
    jax = pytest.importorskip("jax")
    shared = xs.empty((4, 16), "f4")
    np.asarray(shared)[:] = 3
    ours, private = jax.dlpack.from_dlpack(shared), jax.numpy.arange(3.0)
    (found,) = ask_jax("again", (ours,))
    assert isinstance(found, jax.Array)
    np.asarray(shared)[:] = 5  # it is the same memory
    assert float(found[2, 2]) == 5
    del found
    before = exports()
    assert ask_jax("content", [private, ours])[0] == [0.0, 1.0, 2.0]
    values, weak, key = ask_jax("again", (private, jax.numpy.asarray(2.0) * 1, jax.random.key(0)))
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert float(weak) == 2
    assert jax.random.key_data(key).shape == (2,)
    assert exports() <= before + 1


def test_arrays_of_one_allocation_are_passed_on(ask_jax: Ask) -> None:
    jax = pytest.importorskip("jax")
    memory = xs.malloc_host(4096)
    sent = [jax.dlpack.from_dlpack(memory.as_array(16, "f4", at)) for at in (0, 256, 1024)]
    found = ask_jax("again", sent)
    assert [each.unsafe_buffer_pointer() for each in found] == [each.unsafe_buffer_pointer() for each in sent]


class Lent:
    """A piece of a device's array, as another library has them."""

    def __init__(self, array: ForeignArray, at: int, stream: MockStream) -> None:
        self.address = array.memory.address + at
        self.mock_stream = stream


def test_a_message_asks_and_marks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question for each allocation, and one mark a stream."""
    xs.Device("mock:0")
    asked: list[int] = []
    foreign = Mock.foreign
    monkeypatch.setattr(Mock, "foreign", lambda self, at, nbytes=None: asked.append(at) or foreign(self, at, nbytes))
    arrays, stream = [ForeignArray(4096), ForeignArray(4096)], MockStream()
    message = [Lent(array, at, stream) for at in (0, 64, 4032) for array in arrays]
    _reductions.install("lent", {Lent: lambda _before: lambda lent: lent_block(lent)})
    try:
        signals = driver().counts["store64"]
        raw = bytes(ForkingPickler.dumps(message))
    finally:
        _reductions.uninstall("lent")
    stream.synchronize()
    assert driver().counts["store64"] == signals + 1
    assert len(asked) == 2
    blocks = pickle.loads(raw)
    assert [at for _block, at in blocks] == [0, 0, 64, 64, 4032, 4032]
    assert len({id(block) for block, _at in blocks}) == 2
    del blocks, message
    for array in arrays:
        array.free()
    stream.close()


def lent_block(lent: Lent) -> Any:
    found = _reductions.block_of(lent.address, 64, "mock", lent)
    assert found is not None
    return tuple, (found,)
