"""torch's and JAX's arrays on the host through `multiprocessing` by handle."""

from __future__ import annotations

import gc
import io
import multiprocessing
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from reductions_peer import SPAWN, Ask, served

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare.adapters.mock import Mock
from xpushare.adapters.mock.adapter import ForeignArray, MockStream
from xpushare.adapters.mock.script import driver
from xpushare.core import event as events
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


def exports() -> set[str]:
    """Those that somebody has. Each has a handle of its own, so that those of earlier tests may end at any time."""
    gc.collect()
    table = node.current().table()
    table.sweep(everything=True)
    return {str(each.handle) for each in table.exports()}


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
    assert len(exports() - before) == 1
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


@pytest.mark.parametrize("messages", [2, 100])
def test_what_came_earlier_is_passed_on(ask_torch: Ask, messages: int) -> None:
    """The newer messages' exports have ended, since nobody has what they brought."""
    whole, before = xs.array(np.arange(8, dtype="f4")), exports()
    for number in range(messages):
        ask_torch("keep", [torch.from_dlpack(whole)[number % 8 :]])
    ask_torch("drop", 1)
    wait_until(lambda: len(exports() - before) <= 1, what="the exports to end")
    assert ask_torch("kept_at", 0)[0].tolist() == list(range(8))
    ask_torch("forget")


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


@pytest.mark.usefixtures("ask_torch")
def test_buffers_stay_buffers() -> None:
    for persistent in True, False:
        sent = torch.nn.Buffer(tensor(4), persistent=persistent)
        found, again = ForkingPickler.loads(bytes(ForkingPickler.dumps([sent, sent])))
        assert isinstance(found, torch.nn.Buffer)
        assert found is again
        assert found.persistent is persistent
        sent[1] = 7
        assert found[1] == 7


@pytest.mark.usefixtures("ask_torch")
def test_negated_tensors_keep_their_values() -> None:
    pairs = torch.view_as_complex(torch.from_dlpack(xs.zeros((3, 2), "f4")))
    pairs.copy_(torch.complex(torch.ones(3), torch.tensor([4.0, 5.0, 6.0])))
    zeros = torch._efficientzerotensor((2, 3))
    for sent in (pairs.conj().imag, pairs.conj(), torch._neg_view(torch.ones(2)), zeros, torch.nn.Parameter(zeros[1:])):
        assert torch.equal(ForkingPickler.loads(bytes(ForkingPickler.dumps(sent))), sent)


def test_the_rest_goes_torchs_way(ask_torch: Ask) -> None:
    ours = tensor(4)
    before = exports()
    private = torch.ones(3)
    assert ask_torch("add_one", [private]) == [2.0]
    assert private.is_shared()  # torch moves it into memory of its own
    conjugate = torch.from_dlpack(xs.empty(4, "c8")).conj()
    for other in (conjugate, torch.eye(3).to_sparse(), torch.empty(0), torch.ones(2, device="meta")):
        ForkingPickler.dumps(other)
    assert exports() <= before
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
    from xpushare.integrations.torch import _of_block

    array = pickle.loads(pickle.dumps(xs.empty(64, "u1")))
    for offset, nbytes in ((-1, 8), (60, 8), (0, 65), (1 << 62, 8), (0, -1)):
        with pytest.raises(xs.InvalidArgumentError):
            _of_block(array, offset, nbytes)


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
    assert exports() <= before


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
    assert len(exports() - before) <= 1


def test_arrays_of_one_allocation_are_passed_on(ask_jax: Ask) -> None:
    jax = pytest.importorskip("jax")
    memory = xs.malloc_host(4096)
    sent = [jax.dlpack.from_dlpack(memory.as_array(16, "f4", at)) for at in (0, 256, 1024)]
    found = ask_jax("again", sent)
    assert [each.unsafe_buffer_pointer() for each in found] == [each.unsafe_buffer_pointer() for each in sent]


# --- runs of a pickler, with arrays of "another library" on a mock device


class Lent:
    """A piece of a device's array, as another library has them."""

    def __init__(self, array: ForeignArray, at: int, stream: MockStream) -> None:
        self.__array_interface__ = {
            "shape": (64,), "typestr": "|u1", "data": (array.memory.address + at, False), "version": 3,
        }  # fmt: skip
        self.mock_stream = stream
        self.keep = array


class LentToTorch(Lent):
    """It goes in another message."""


class Then:
    """Something whose reduction does something; what is left of it is what that returned."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self._do = do

    def __reduce__(self) -> Any:
        return tuple, ((self._do(),),)


@pytest.fixture
def lending() -> Iterator[Callable[[int], ForeignArray]]:
    """Makes arrays of which pieces go by handle."""
    xs.Device("mock:0")
    made: list[ForeignArray] = []

    def make(nbytes: int) -> ForeignArray:
        made.append(ForeignArray(nbytes))
        return made[-1]

    _reductions.install(
        "lent",
        {
            Lent: lambda _before: lambda lent: _reductions.sent(lent, "numpy"),
            LentToTorch: lambda _before: lambda lent: _reductions.sent(lent, "torch"),
        },
    )
    yield make
    _reductions.uninstall("lent")
    for array in made:
        array.free()


@pytest.fixture
def stream() -> Iterator[MockStream]:
    found = MockStream()
    yield found
    found.close()


Make = Callable[[int], ForeignArray]


def dumped(thing: Any) -> bytes:
    return bytes(ForkingPickler.dumps(thing))


def busy(stream: MockStream) -> threading.Event:
    """Keep a stream busy until the event is set."""
    gate = threading.Event()
    stream.call(gate.wait)
    return gate


def test_a_message_asks_marks_and_opens_once(
    monkeypatch: pytest.MonkeyPatch, lending: Make, stream: MockStream
) -> None:
    """One question for each allocation, one mark for a stream, one event opened for both allocations."""
    asked: list[int] = []
    opened: list[Any] = []
    foreign = Mock.foreign
    monkeypatch.setattr(Mock, "foreign", lambda self, at, nbytes=None: asked.append(at) or foreign(self, at, nbytes))
    open_event = events.open_
    monkeypatch.setattr(events, "open_", lambda *a, **k: opened.append(a) or open_event(*a, **k))
    arrays = [lending(4096), lending(4096)]
    message = [Lent(array, at, stream) for at in (0, 64, 4032) for array in arrays]
    before, signals = exports(), driver().counts["store64"]
    gate = busy(stream)
    raw = dumped(message)
    gate.set()
    stream.synchronize()
    assert driver().counts["store64"] == signals + 1
    assert len(asked) == 2
    assert len(exports() - before) == 3  # two allocations, and the event
    found = pickle.loads(raw)
    assert len(opened) == 1
    for array, piece in zip(arrays * 3, found, strict=True):
        piece[:] = 7
        assert np.asarray(array).sum() % (7 * 64) == 0
        np.asarray(array)[:] = 0
        assert not piece.any()


def test_an_idle_stream_is_not_marked(lending: Make, stream: MockStream) -> None:
    signals = driver().counts["store64"]
    pickle.loads(dumped(Lent(lending(64), 0, stream)))
    assert driver().counts["store64"] == signals


def test_what_a_run_itself_queues_comes_first(lending: Make, stream: MockStream) -> None:
    """Also where it is queued after the first array was reduced."""
    array = lending(64)
    lent, gate = Lent(array, 0, stream), threading.Event()

    def write() -> None:
        stream.call(gate.wait)
        stream.call(lambda: np.asarray(array).fill(9))

    raw = dumped([lent, Then(write), Lent(array, 0, stream)])
    threading.Timer(0.1, gate.set).start()
    first, _, second = pickle.loads(raw)
    assert first.tolist() == second.tolist() == [9] * 64


def test_the_receiver_waits_for_the_stream(ask_torch: Ask, lending: Make, stream: MockStream) -> None:
    """In another process: both arrays are read when the one stream that they share has come to them."""
    arrays = [lending(64), lending(64)]
    gate = busy(stream)
    for array in arrays:
        stream.call(lambda array=array: np.asarray(array).fill(9))  # type: ignore[misc]
    threading.Timer(0.3, gate.set).start()
    assert ask_torch("content", [Lent(array, 0, stream) for array in arrays]) == [[9] * 64] * 2


def test_a_run_that_fails_leaves_nothing(lending: Make, stream: MockStream) -> None:
    gate = busy(stream)
    lent, before = Lent(lending(64), 0, stream), exports()
    file = io.BytesIO()
    pickler = ForkingPickler(file)
    with pytest.raises(ZeroDivisionError):
        pickler.dump([lent, Then(lambda: 1 // 0)])
    assert exports() <= before
    assert file.getvalue() == b""
    gate.set()
    pickler.clear_memo()
    pickler.dump(lent)  # the pickler is as good as before
    assert pickle.loads(file.getvalue()).tolist() == [0] * 64


class Full(io.BytesIO):
    def write(self, _data: Any) -> int:
        raise OSError("planted")


def test_a_pickle_that_cannot_be_written_leaves_nothing(lending: Make, stream: MockStream) -> None:
    lent, before = Lent(lending(64), 0, stream), exports()
    with pytest.raises(OSError, match="planted"):
        ForkingPickler(Full()).dump(lent)
    assert exports() <= before


def test_the_message_that_fails_takes_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch, lending: Make, stream: MockStream
) -> None:
    lent, before = [kind(lending(64), 0, stream) for kind in (Lent, LentToTorch)], exports()
    plain, calls = _reductions.pickle_arrays, []

    def second_fails(*arguments: Any) -> bytes:
        calls.append(arguments)
        return plain(*arguments) if len(calls) < 2 else planted()

    monkeypatch.setattr(_reductions, "pickle_arrays", second_fails)
    with pytest.raises(OSError, match="planted"):
        dumped(lent)
    assert len(calls) == 2
    assert exports() <= before


class Again:
    """What another array's reduction makes of it, once more."""

    def __init__(self, lent: Lent) -> None:
        self.lent = lent

    def __reduce__(self) -> Any:
        return _reductions.sent(self.lent, "numpy")


def test_an_array_that_comes_twice_is_one(lending: Make, stream: MockStream) -> None:
    first, second = (Lent(lending(64), 0, stream) for _ in range(2))
    for number, lent in enumerate((first, second)):
        np.asarray(lent.keep)[:] = number
    found = pickle.loads(dumped([first, Again(first), second]))
    assert [each[0] for each in found] == [0, 0, 1]
    file = io.BytesIO()
    pickler = ForkingPickler(file)
    pickler.fast = True  # without a memo
    pickler.dump([first, first, second])
    assert [each[0] for each in pickle.loads(file.getvalue())] == [0, 0, 1]


@pytest.mark.usefixtures("ask_torch")
def test_a_tensor_goes_as_it_was_when_it_was_pickled() -> None:
    found = tensor(2, 8)
    sent, (shape,) = pickle.loads(dumped([found, Then(lambda: tuple(found.t_().shape))]))
    assert tuple(sent.shape) == (2, 8)
    assert shape == (8, 2)


def test_a_message_that_cannot_be_sealed_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, lending: Make, stream: MockStream
) -> None:
    lent, before = [Lent(lending(64), 0, stream), Lent(lending(64), 0, stream)], exports()
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "never")
    with pytest.raises(xs.InvalidArgumentError):
        dumped(lent)
    assert exports() <= before


def test_what_cannot_be_opened_takes_no_open_away(
    monkeypatch: pytest.MonkeyPatch, lending: Make, stream: MockStream
) -> None:
    """A message is good until its arrays were received, not until somebody tried."""
    before = exports()
    raw = dumped([Lent(lending(64), 0, stream), Lent(lending(64), 0, stream)])
    with monkeypatch.context() as patched:
        patched.setattr(np, "asarray", planted)
        with pytest.raises(OSError, match="planted"):
            pickle.loads(raw)
    assert len(exports() - before) == 2
    found = pickle.loads(raw)
    assert [each.tolist() for each in found] == [[0] * 64] * 2
    del found
    assert exports() <= before


def test_a_message_is_bounded_as_a_whole(monkeypatch: pytest.MonkeyPatch, lending: Make, stream: MockStream) -> None:
    """A message that is refused keeps nothing, and what waits stays."""
    monkeypatch.setenv("XPUSHARE_PICKLE_BYTES", "4096")
    first, second = ([Lent(lending(4096), 0, stream) for _ in range(3)] for _ in range(2))
    old = dumped(first)
    before = exports()
    for make in (lambda: second, lambda: [xs.empty(4096, "u1"), *second]):
        with pytest.raises(xs.OutOfMemoryError, match="not pickled"):
            dumped(make())
        assert exports() == before
    assert len(pickle.loads(old)) == 3
    assert len(pickle.loads(dumped(second))) == 3
    in_two_messages = [kind(lending(4096), 0, stream) for kind in (Lent, LentToTorch)]
    assert len(pickle.loads(dumped(in_two_messages))) == 2


def planted(*_arguments: Any) -> Any:
    raise OSError("planted")


def test_pickles_in_pickles_and_threads(lending: Make, stream: MockStream) -> None:
    arrays = [lending(64) for _ in range(4)]
    for number, array in enumerate(arrays):
        np.asarray(array)[:] = number
    lent = [Lent(array, 0, stream) for array in arrays]
    inner = Then(lambda: dumped([lent[1], lent[0]]))
    other: list[bytes] = []

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: other.append(dumped(lent[3])))
        thread.start()
        thread.join()

    first, (raw,), _, last = pickle.loads(dumped([lent[0], inner, Then(elsewhere), lent[2]]))
    assert [first[0], last[0]] == [0, 2]
    assert [each[0] for each in pickle.loads(raw)] == [1, 0]
    assert pickle.loads(other[0])[0] == 3


def test_a_part_of_a_pickle_names_the_whole(lending: Make, stream: MockStream) -> None:
    """What another pickler makes within a run of what the run's reductions return."""
    lent = Lent(lending(64), 0, stream)
    part: list[bytes] = []

    def by_hand() -> None:
        function, arguments = ForkingPickler._extra_reducers[Lent](lent)
        part.append(pickle.dumps((function, arguments)))

    whole = dumped([lent, Then(by_hand)])
    with pytest.raises(xs.InvalidHandleError, match="part of another"):
        pickle.loads(part[0])
    assert pickle.loads(whole)[0].tolist() == [0] * 64


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_and_reader(lending: Make, stream: MockStream, protocol: int) -> None:
    lent = [Lent(lending(64), 0, stream), Lent(lending(64), 0, stream)]
    for kind in (pickle.Unpickler, pickle._Unpickler):  # type: ignore[attr-defined]
        file = io.BytesIO()
        file.write(b"before")
        pickler = ForkingPickler(file, protocol)
        pickler.dump([*lent, lent[0], "x" * 100_000, bytearray(100_000)])
        pickler.dump([lent[1], lent])  # the same memo goes on
        reader = kind(io.BytesIO(file.getvalue()[6:]))
        first, second, third, text, filled = reader.load()
        assert third is first
        assert (len(text), len(filled)) == (100_000, 100_000)
        again = reader.load()
        assert again[0] is second
        assert again[1][0] is first
        np.asarray(lent[0].keep)[5] += 1
        assert first[5] == np.asarray(lent[0].keep)[5]


def test_a_pickler_that_is_older_than_install(monkeypatch: pytest.MonkeyPatch, lending: Make) -> None:
    """Its arrays go their library's way: nothing can be put before what it writes."""
    file = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(ForkingPickler, "__init__", _reductions._plain_init)
        pickler = ForkingPickler(file)
    lent, found = Lent(lending(64), 0, MockStream()), []
    pickler.dump([1, Then(lambda: found.append(_reductions.sent(lent, "numpy")))])
    assert found == [None]
    assert pickle.loads(file.getvalue()) == [1, (None,)]


def sent_by_a_forked_child(tensors: list[Any], answers: Any) -> None:
    """Send tensors on, one message each; then the warnings that came."""
    from multiprocessing.reduction import ForkingPickler

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in tensors:
            ForkingPickler.dumps(each)
    answers.send([str(each.message) for each in caught if each.category is RuntimeWarning])


def test_a_forked_child_tells_once_that_it_copies(ask_torch: Ask) -> None:  # noqa: ARG001
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    with xs.share(xs.empty(4, "f4")) as handle:
        attached = xs.attach(handle, like=torch)
        for tensors, wanted in (
            ([tensor(4), tensor(3), torch.nn.Parameter(tensor(2))], 1),
            ([attached], 1),
            ([torch.zeros(4)], 0),
        ):
            child = fork.Process(target=sent_by_a_forked_child, args=(tensors, there))
            child.start()
            assert here.poll(60)
            told = here.recv()
            child.join(60)
            assert child.exitcode == 0
            assert len(told) == wanted
            assert all("inherited by a fork" in each and "forkserver" in each for each in told)
        del attached, tensors


FORKING_LOADER = """
import torch
import xpushare as xs
import xpushare.integrations.torch as integration
from torch.utils.data import DataLoader, TensorDataset

integration.install()
ours = torch.from_dlpack(xs.array([[1.0, 2.0]] * 8, dtype="f4"))
module = torch.nn.Linear(2, 1, bias=False)
module.weight = torch.nn.Parameter(ours[:1])


def whole(batch):
    return batch[0][0]  # of the parent's memory


for _ in range(2):
    for row in DataLoader(TensorDataset(ours), 4, num_workers=2, collate_fn=whole, multiprocessing_context="fork"):
        row += 1
        print(row.tolist(), row.is_shared())
module.share_memory()
print(ours[0].tolist(), ours.is_shared(), module.weight.data_ptr() == ours.data_ptr())
"""


def test_a_dataloader_that_forks_says_so_in_each_worker() -> None:
    """Its batches are copies, so that what the receiver writes is lost: loudly, and as torch has it."""
    done = subprocess.run([sys.executable, "-c", FORKING_LOADER], capture_output=True, text=True, timeout=100)
    lines = done.stdout.splitlines()
    assert lines == [*["[2.0, 3.0] True"] * 4, "[1.0, 2.0] True True"], done.stderr
    assert done.stderr.count("RuntimeWarning: this Tensor lies in shared memory that this process inherited by") == 4


def test_share_memory_leaves_our_memory_where_it_is(ask_torch: Ask) -> None:
    module = torch.nn.Linear(2, 1, bias=False)
    module.weight = torch.nn.Parameter(tensor(1, 2))
    address = module.weight.data_ptr()
    assert module.weight.is_shared()
    module.share_memory()
    assert module.weight.data_ptr() == address
    private = torch.zeros(3)
    assert not private.is_shared()
    before = private.data_ptr()
    private.share_memory_()
    assert private.is_shared()
    assert private.data_ptr() != before
    assert ask_torch("add_one", [module.weight.detach()]) is not None
    assert module.weight.data_ptr() == address


def torch_before_and_after() -> None:
    from xpushare.integrations import torch as integration

    names = "is_shared", "share_memory_"
    before = {name: vars(torch.UntypedStorage).get(name) for name in names}
    integration.install()
    integration.install()
    assert tensor(2).is_shared()
    integration.uninstall()
    integration.uninstall()
    assert {name: vars(torch.UntypedStorage).get(name) for name in names} == before
    assert not tensor(2).is_shared()


def test_uninstall_gives_torch_its_methods_back() -> None:
    with Child(imports=["torch"]) as child:
        child.call(torch_before_and_after)


@pytest.mark.parametrize("opens", [1, 3])
def test_a_message_is_received_as_often_as_install_says(opens: int) -> None:
    from xpushare.integrations import torch as reductions

    def received(data: bytes) -> list[float]:
        found: list[float] = pickle.loads(data).tolist()
        return found

    reductions.install(opens=opens)
    try:
        made = torch.from_dlpack(xs.array([1.0, 2.0]))
        data = bytes(ForkingPickler.dumps(made))
        del made
        with Child(imports=["torch"]) as first, Child(imports=["torch"]) as second:
            for turn in range(opens):
                assert (first, second)[turn % 2].call(received, data) == [1.0, 2.0]
            for each in (first, second):
                with pytest.raises(xs.HandleExpiredError, match="opened"):
                    each.call(received, data)
            imported = first.call(_passed_on, opens)
            for _ in range(opens):
                assert second.call(received, imported) == [1.0, 2.0]
        with pytest.raises(xs.InvalidArgumentError, match="opens"):
            reductions.install(opens=0)
    finally:
        reductions.install()


def _passed_on(opens: int) -> bytes:
    """What this process was sent, pickled on."""
    from xpushare.integrations import torch as reductions

    reductions.install(opens=opens)
    kept["tensor"] = torch.from_dlpack(xs.array([1.0, 2.0]))
    return bytes(ForkingPickler.dumps(kept["tensor"]))


def test_torchs_own_seam_for_reducers(ask_torch: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch/pytorch#194568, which no release has: a type of device registers its reducer."""
    from xpushare.integrations import torch as integration

    registered: dict[str, Any] = {}

    def register(kind: str, reduce: Any, rebuild: Any) -> None:
        registered[kind] = reduce, rebuild

    monkeypatch.setattr(torch.multiprocessing.reductions, "register_ipc_tensor_reducer", register, raising=False)
    monkeypatch.setattr(integration, "_offered", set())
    integration.install()
    integration.install()
    assert list(registered) == ["xpu"]  # not those that torch has reducers for
    reduce, rebuild = registered["xpu"]
    whole = tensor(4)
    function, arguments = reduce(whole)
    assert function is rebuild
    assert ask_torch("call_and_add", pickle.dumps((function, arguments))) == 1.0
    assert float(whole[0]) == 1.0

    monkeypatch.setitem(ForkingPickler._extra_reducers, torch.Tensor, reduce)  # as torch's, for memory without a handle
    with pytest.raises(xs.FeatureNotSupportedError, match="cannot be shared"):
        reduce(torch.zeros(4))
