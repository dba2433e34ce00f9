"""`attach` of one array: what is made of its handle, what is opened how often, and what a failure leaves behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peering import nothing_left

import xpushare as xs
from harness import Child, kept
from xpushare._native import Timeline
from xpushare.adapters.mock.adapter import default_stream
from xpushare.adapters.mock.script import driver
from xpushare.adapters.native_cpu import NativeCpu
from xpushare.common.errors import OutOfMemoryError
from xpushare.core.device import adapter_of
from xpushare.core.layers import enable_layers
from xpushare.core.memory import kept_nbytes
from xpushare.objects.lifecycle import use
from xpushare.sharing import node, routes
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.peers import Peers
from xpushare.sharing.routes import pidfd


def shared(name: str, shape: tuple[int, ...], dtype: str, **options: Any) -> bytes:
    """In the peer: a new array, shared; `kept` holds both."""
    array = kept[name] = xs.empty(shape, dtype, isolated=True)
    np.asarray(array)[...] = 3
    handle = kept[f"handle of {name}"] = xs.share(array, **options)
    return bytes(handle)


def withdraw(name: str) -> None:
    kept.pop(f"handle of {name}").close()


def put_back(name: str) -> bytes:
    """In the peer: another handle of the same array."""
    handle = kept[f"handle of {name}"] = xs.share(kept[name])
    return bytes(handle)


def shared_tree(names: list[str]) -> bytes:
    """In the peer: a tree of arrays that were shared by themselves."""
    handle = kept[f"handle of {names}"] = xs.share([kept[name] for name in names])
    return bytes(handle)


def shared_pieces(number: int) -> list[bytes]:
    """In the peer: pieces of one memory, each shared by itself."""
    memory = xs.malloc_device(8 * number, "native_cpu:0")
    kept["pieces"] = [xs.share(memory.as_array(8, "u1", 8 * at)) for at in range(number)]
    return [bytes(handle) for handle in kept["pieces"]]


def withdraw_pieces(number: int) -> None:
    for handle in kept["pieces"][:number]:
        handle.close()


def members() -> int:
    """In the peer: how many processes it serves, itself included."""
    return len(node.current().table().domain.members())


@pytest.fixture
def met(peer: Child) -> bytes:
    """A handle of an exporter that this process has met."""
    raw: bytes = peer.call(shared, "met", (4, 6), "f4")
    xs.attach(raw).close()
    return raw


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The imports by the host's adapter so far. What was closed before is not mapped any more."""
    xs.trim()
    seen: list[str] = []
    importing = NativeCpu.import_memory
    monkeypatch.setattr(NativeCpu, "import_memory", lambda *given: seen.append("import") or importing(*given))
    return seen


def allocation_of(array: xs.SharedArray) -> Any:
    found: Any = use(array)
    return found.allocation


def known(raw: bytes) -> bool:
    """Whether this process knows the exporter, which exports that."""
    return node.current().peers.stands(xs.ArrayHandle(raw).handles[0])


@pytest.mark.parametrize(("shape", "dtype"), [((), "f8"), ((2, 3, 4), "<i2"), ((5,), ">c8")], ids=str)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.usefixtures("met")
def test_an_attached_array(peer: Child, shape: tuple[int, ...], dtype: str, read_only: bool) -> None:
    raw = peer.call(shared, "array", shape, dtype, read_only=read_only)
    with nothing_left():
        array, other = xs.attach(raw), xs.attach(raw)
        handle = xs.ArrayHandle(raw)
        assert (array.shape, array.dtype, array.strides) == (shape, np.dtype(dtype), handle.strides)
        assert (array.read_only, array.is_imported, array.device) == (read_only, True, xs.Device("native_cpu:0"))
        assert array.handle == handle
        held, its = array._held, other._held
        assert held is not None
        assert its is not None
        assert held.allocation is its.allocation
        assert (held.offset, held.nbytes, held.handle) == (its.offset, its.nbytes, its.handle)
        assert (held.offset, held.nbytes) == (fields_of(handle.handle).offset, handle.handle.nbytes)
        assert held.lease.peer is its.lease.peer
        allocation = held.allocation
        assert (allocation.kind, allocation.imported, allocation.foreign) == ("device", True, False)
        assert allocation.host_accessible
        assert allocation.newest == handle.handle
        handle.close()  # closes that object only
        values = np.asarray(array)
        assert (values.dtype, values.shape, values.flags.writeable) == (np.dtype(dtype), shape, not read_only)
        assert (values == 3).all()
        array.close()
        other.close()
        assert (values == 3).all(), "views hold the memory"
        del array, other, values, held, its, allocation


def test_opens_are_counted(peer: Child) -> None:
    counted = peer.call(shared, "counted", (2,), "u1", opens=2)
    xs.attach(peer.call(shared, "met", (2,), "u1")).close()
    with nothing_left():
        for _ in range(2):
            xs.attach(counted).close()
        with pytest.raises(xs.HandleExpiredError, match="used up"):
            xs.attach(counted)


def test_layers_see_each_open(met: bytes) -> None:
    enable_layers("UR_LAYER_LEAK_CHECKING")
    try:
        with nothing_left(), xs.attach(met) as array:
            assert np.asarray(array).sum() == 4 * 6 * 3
            del array
    finally:
        enable_layers()


def test_an_array_of_this_process() -> None:
    array = xs.empty(2)
    with xs.share(array) as own, xs.attach(bytes(own)) as again:
        assert (again.ptr, again.is_imported) == (array.ptr, True)
        assert again.handle == own


@pytest.mark.usefixtures("met")
def test_an_exporter_that_has_ended() -> None:
    with Child() as stranger:
        raw = stranger.call(shared, "one", (2,), "u1")
        xs.attach(raw).close()
    with nothing_left(), pytest.raises(xs.HandleExpiredError):
        xs.attach(raw)
    assert not known(raw)


# --- meeting an exporter


@pytest.mark.usefixtures("met")
@pytest.mark.parametrize("direct", [True, False])
def test_attach_meets_an_exporter(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pidfd_getfd, or by the socket; where nothing comes of it, no acquaintance is left."""
    if not direct:
        monkeypatch.setattr(pidfd, "meet", raising(routes.Blocked))
    with Child() as stranger:
        raw = stranger.call(shared, "one", (2,), "u1")
        gone = stranger.call(shared, "gone", (2,), "u1")
        stranger.call(withdraw, "gone")
        used_up = stranger.call(shared, "counted", (2,), "u1", opens=1)
        stranger.call(withdraw, "counted")
        with nothing_left():
            for each in gone, used_up:
                with pytest.raises(xs.HandleExpiredError):
                    xs.attach(each)
            assert not known(raw)
        for error in KeyboardInterrupt, OutOfMemoryError:
            with monkeypatch.context() as patch, nothing_left():
                patch.setattr(NativeCpu, "import_memory", raising(error))
                with pytest.raises(error) as caught:  # whose traceback holds what was made
                    xs.attach(raw)
                assert not known(raw)
                assert stranger.call(members) == 1
                del caught
        array = xs.attach(raw)
        assert np.asarray(array).tolist() == [3, 3]
        assert known(raw)
        assert stranger.call(members) == 2
        array.close()
        del array
    with nothing_left(), pytest.raises(xs.HandleExpiredError):
        xs.attach(raw)


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_arguments: object) -> Any:
        raise error("as the test wants it")

    return fail


@pytest.mark.usefixtures("met")
def test_others_are_met_while_one_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that this process holds meanwhile is in their way."""
    real, asked, go = routes.meet, threading.Event(), threading.Event()
    with Child() as slow, Child() as other:
        first, second = (each.call(shared, "one", (2,), "u1") for each in (slow, other))
        cookie = fields_of(xs.ArrayHandle(first).handle).cookie

        def meet(handle: Handle) -> Any:
            if fields_of(handle).cookie == cookie:
                asked.set()
                assert go.wait(20)
            return real(handle)

        monkeypatch.setattr(routes, "meet", meet)
        thread = threading.Thread(target=lambda: xs.attach(first).close())
        thread.start()
        assert asked.wait(20)
        with xs.attach(second) as array:
            assert np.asarray(array).tolist() == [3, 3]
        go.set()
        thread.join()


@pytest.mark.usefixtures("met")
def test_who_comes_while_an_exporter_is_being_met_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    real, joined, go = routes.meet, threading.Event(), threading.Event()
    attached: list[object] = []

    def meet(handle: Handle) -> Any:
        found = real(handle)
        if not joined.is_set():
            joined.set()
            assert go.wait(20)
        return found

    def attach() -> None:
        try:
            attached.append(xs.attach(raw))
        except BaseException as error:
            attached.append(error)

    monkeypatch.setattr(routes, "meet", meet)
    with Child() as stranger:
        raw = stranger.call(shared, "one", (2,), "u1")
        threads = [threading.Thread(target=attach) for _ in range(2)]
        threads[0].start()
        assert joined.wait(20)
        threads[1].start()
        threads[1].join(0.2)  # it cannot be seen to wait
        assert attached == []
        go.set()
        for each in threads:
            each.join()
        assert [type(each) for each in attached] == [xs.SharedArray] * 2, attached
        assert stranger.call(members) == 2


# --- what is open


@pytest.mark.usefixtures("met")
def test_a_withdrawn_handle(peer: Child) -> None:
    """It opens nothing, not from what is open, either; another handle of the array does."""
    raw = peer.call(shared, "short", (2,), "u1")
    with nothing_left():
        array = xs.attach(raw)
        peer.call(withdraw, "short")
        with pytest.raises(xs.HandleExpiredError):
            xs.attach(raw)
        again = xs.attach(peer.call(put_back, "short"))
        assert allocation_of(again) is allocation_of(array)
        del array, again


def test_altered_bytes(met: bytes) -> None:
    """Each bit flipped, each length: nothing is opened."""
    with nothing_left():
        for at in range(len(met) * 8):
            wrong = bytearray(met)
            wrong[at // 8] ^= 1 << at % 8
            with pytest.raises(xs.InvalidHandleError):
                xs.attach(bytes(wrong))
        for wrong_length in [*(met[:length] for length in range(len(met))), met + b"\0"]:
            with pytest.raises(xs.InvalidHandleError):
                xs.attach(wrong_length)


@pytest.mark.parametrize("nonsense", [None, 1, 2.5, [], {}, object], ids=repr)
def test_what_is_no_handle(nonsense: Any) -> None:
    with nothing_left(), pytest.raises(xs.InvalidArgumentError, match="ArrayHandle"):
        xs.attach(nonsense)


def test_what_is_open_is_not_imported_again(peer: Child, met: bytes, imported: list[str]) -> None:
    with xs.attach(met) as first:
        assert imported == ["import"]
        other = peer.call(put_back, "met")
        for raw in met, other:
            with nothing_left(), xs.attach(raw) as again:
                assert again.memory.ptr == first.memory.ptr
                assert again.handle is again.handle == xs.ArrayHandle(raw)
                assert allocation_of(again).newest == again.handle.handle
        assert imported == ["import"]
    del first, again
    xs.trim()
    xs.attach(met).close()
    assert imported == ["import"] * 2


def test_what_is_open_is_opened_again_by_one_call(peer: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the rest of a tree, from the first array on whose memory is not open, takes the steps of a first open."""
    one, _other = (peer.call(shared, name, (4096,), "u1") for name in ("one", "other"))
    tree = peer.call(shared_tree, ["one", "other"])
    acquire, wanted = Peers.acquire, list[int]()

    def note(self: Peers, handles: Any, taken: Any) -> None:
        wanted.append(len(handles))
        acquire(self, handles, taken)

    def attach_the_tree() -> None:
        for each in xs.attach(tree):  # type: ignore[attr-defined]
            each.close()

    with nothing_left():
        attach_the_tree()
        monkeypatch.setattr(Peers, "acquire", note)
        with xs.attach(one) as first:
            assert wanted == [1]
            with xs.attach(one) as again:
                assert allocation_of(again) is allocation_of(first)
            assert wanted == [1]
            attach_the_tree()
            assert wanted == [1, 1], "the other one"
        attach_the_tree()
        assert wanted == [1, 1, 2]
        del first, again


def test_handles_by_which_memory_was_opened_before(peer: Child) -> None:
    """One of each piece, the newest last. Of 64, those that ended are forgotten."""
    raws = peer.call(shared_pieces, 65)
    with nothing_left():
        with xs.attach(raws[0]) as first:
            allocation = allocation_of(first)
            for raw in (raws[1], raws[0], raws[0], raws[1]):
                xs.attach(raw).close()
            assert [fields_of(handle).offset for handle in allocation.earlier.values()] == [8, 0]
            assert fields_of(allocation.newest).offset == 8
            for raw in raws[2:64]:
                xs.attach(raw).close()
            assert len(allocation.earlier) == 63
            peer.call(withdraw_pieces, 10)
            xs.attach(raws[64]).close()
            assert [fields_of(handle).offset for handle in allocation.earlier.values()] == list(range(80, 512, 8))
            del allocation
        del first
    peer.call(withdraw_pieces, 65)


def test_an_open_that_runs_out_of_memory(met: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for later is given up for it; then it is tried again."""
    failures: list[int] = []
    importing = NativeCpu.import_memory

    def fail(*arguments: Any) -> Any:
        if not failures:
            failures.append(1)
            raise OutOfMemoryError("full")
        return importing(*arguments)

    monkeypatch.setattr(NativeCpu, "import_memory", fail)
    with nothing_left():
        with pytest.raises(OutOfMemoryError):  # nothing is kept
            xs.attach(met)
        failures.clear()
        keep_some()
        with xs.attach(met) as array:
            assert np.asarray(array).sum() == 4 * 6 * 3
        assert failures
        del array


def keep_some() -> None:
    """Memory that this process keeps for later: for small arrays, of which there are none."""
    xs.empty(1, device="native_cpu:0").close()
    assert kept_nbytes() > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutOfMemoryError, ZeroDivisionError])
def test_an_open_that_fails(met: bytes, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(NativeCpu, "import_memory", raising(error))
        with nothing_left(), pytest.raises(error):
            xs.attach(met)
    xs.attach(met).close()


def test_what_another_thread_maps_first_is_used(met: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    importing = NativeCpu.import_memory
    others: list[xs.SharedArray] = []

    def slowly(*arguments: Any) -> Any:
        monkeypatch.setattr(NativeCpu, "import_memory", importing)
        thread = threading.Thread(target=lambda: others.append(xs.attach(met)))
        thread.start()
        thread.join(0.5)  # where a mapping is made in turn, it comes later
        threads.append(thread)
        return importing(*arguments)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(NativeCpu, "import_memory", slowly)
    with nothing_left():
        array = xs.attach(met)
        threads.pop().join(20)
        assert array.memory.ptr == others[0].memory.ptr
        others.pop().close()
        assert (np.asarray(array) == 3).all()
        array.close()
        del array


def test_threads_attach_at_once(met: bytes) -> None:
    """All get the same mapping, and nothing is left."""
    start = threading.Barrier(4)
    found: list[int] = []

    def work() -> None:
        start.wait(20)
        for _ in range(100):
            with xs.attach(met) as array:
                found.append(int(np.asarray(array).sum()))

    with nothing_left():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == [4 * 6 * 3] * 400


# --- a device's memory, and events


def shared_behind(name: str) -> bytes:
    """In the peer: an array that its stream has yet to fill, once `open_gate` is called."""
    array = kept[name] = xs.empty((4,), "u1", device="mock:0")
    gate = kept["gate"] = threading.Event()
    stream = default_stream(0)
    stream.call(gate.wait)
    stream.call(lambda: np.asarray(array.memory).fill(9))
    handle = kept[f"handle of {name}"] = xs.share(array)
    return bytes(handle)


def open_gate() -> None:
    kept["gate"].set()
    default_stream(0).synchronize()


def shared_on_mock(name: str) -> bytes:
    array = kept[name] = xs.empty((4,), "u1", device="mock:0")
    np.asarray(array)[...] = 3
    handle = kept[f"handle of {name}"] = xs.share(array)
    return bytes(handle)


@pytest.fixture
def met_on_mock(peer: Child) -> None:
    """Both an array and an event on the device were opened before."""
    raw = peer.call(shared_behind, "first")
    peer.call(open_gate)
    xs.attach(raw).close()
    peer.call(withdraw, "first")
    unmapped()


def unmapped() -> None:
    """What was closed is unmapped, too."""
    xs.trim()
    assert adapter_of(xs.Device("mock:0")).engine.teardown.settle(20)


def event_of(array: xs.SharedArray) -> Any:
    return array._order._event


@pytest.mark.usefixtures("met_on_mock")
def test_its_readers_wait_for_what_is_pending(peer: Child) -> None:
    raw = peer.call(shared_behind, "pending")
    before = node.current().peers.statistics()
    array, again = xs.attach(raw), xs.attach(raw)
    mine, other = event_of(array), event_of(again)
    assert mine.timeline is other.timeline, "an event has one timeline in a process"
    handle = xs.ArrayHandle(raw)
    assert (mine.device, mine.handle) == (xs.Device("mock:0"), handle.event)
    ((event, point),) = handle._events
    assert (array._order._point, again._order._point) == (point, point)
    assert array._order.device == xs.Device("mock:0")
    found: list[list[int]] = []
    reader = threading.Thread(target=lambda each: found.append(np.asarray(each).tolist()), args=(array,))
    reader.start()
    reader.join(0.2)  # it cannot be seen to wait
    assert not found
    peer.call(open_gate)
    reader.join(20)
    assert found == [[9] * 4]
    assert array._order is None, "no reader has to wait again"
    del mine, other, array, again, event, handle
    unmapped()
    assert node.current().peers.statistics() == before
    peer.call(withdraw, "pending")


def attached() -> list[int]:
    """In the peer: how many processes are attached to each event that it exports."""
    sources = [each.source for each in node.current().table().exports()]
    return [len(each.slot.attached()) for each in sources if isinstance(each, Timeline)]


@pytest.mark.usefixtures("met_on_mock")
def test_an_events_slot_is_left_with_the_last_array(peer: Child) -> None:
    raw = peer.call(shared_behind, "pending")
    for _ in range(2):
        with nothing_left():
            array, other = xs.attach(raw), xs.attach(raw)
            assert peer.call(attached) == [2]
            array.close()
            assert peer.call(attached) == [2]
            del array, other
            unmapped()
            assert peer.call(attached) == [1]
    peer.call(open_gate)
    peer.call(withdraw, "pending")


@pytest.mark.usefixtures("met_on_mock")
def test_an_event_that_has_come(peer: Child) -> None:
    raw = peer.call(shared_behind, "there")
    peer.call(open_gate)
    with nothing_left():
        with xs.attach(raw) as array:
            assert np.asarray(array).tolist() == [9] * 4
            assert array._order is None
        with xs.attach(raw, stream=-1) as array:
            assert array._order is None
            assert np.asarray(array).tolist() == [9] * 4
        del array
        unmapped()
    peer.call(withdraw, "there")


@pytest.mark.usefixtures("met_on_mock")
def test_a_devices_memory_is_kept_for_a_moment(peer: Child) -> None:
    """What is closed stays mapped until `trim`; who attaches it before gets the same mapping."""
    raw = peer.call(shared_on_mock, "new")
    with nothing_left():
        array = xs.attach(raw)
        assert np.asarray(array).tolist() == [3] * 4
        address = array.ptr
        allocation = allocation_of(array)
        assert (allocation.kind, allocation.imported, allocation.source) == ("device", True, None)
        array.close()
        del array, allocation
        gc.collect()
        assert node.current().peers.statistics()["kept_nbytes"] > 0
        with xs.attach(raw) as again:
            assert again.ptr == address
        del again
        unmapped()
        assert node.current().peers.statistics()["kept_nbytes"] == 0
    peer.call(withdraw, "new")


@pytest.mark.usefixtures("met_on_mock")
def test_several_threads_open_a_devices_memory_once(peer: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = peer.call(shared_on_mock, "once")
    adapter = type(adapter_of(xs.Device("mock:0")))
    importing, calls = adapter.import_memory, list[int]()
    begun, go = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Any:
        calls.append(1)
        begun.set()
        assert go.wait(20)
        return importing(*arguments)

    monkeypatch.setattr(adapter, "import_memory", slowly)
    found: list[xs.SharedArray] = []
    ways = [lambda: xs.attach(raw), lambda: xs.attach(raw), lambda: xs.attach(raw, device="mock:0")]
    threads = [threading.Thread(target=lambda way=way: found.append(way())) for way in ways]
    threads[0].start()
    assert begun.wait(20)
    for each in threads[1:]:
        each.start()
        each.join(0.2)  # it cannot be seen to wait
    assert not found
    go.set()
    for each in threads:
        each.join(20)
    assert calls == [1]
    assert len(found) == 3
    assert len({array.ptr for array in found}) == 1
    found.clear()
    unmapped()
    peer.call(withdraw, "once")


@pytest.mark.usefixtures("met_on_mock")
@pytest.mark.parametrize("error", [OutOfMemoryError("full"), KeyboardInterrupt()], ids=type)
def test_a_turn_ends_with_what_fails(peer: Child, error: BaseException) -> None:
    """Memory that is short is tried again; an interrupt is not. Another thread can open it afterwards."""
    raw = peer.call(shared_on_mock, "fails")
    with nothing_left():
        keep_some()
        driver().fail("Mapping", error, nth=1)
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                xs.attach(raw)
        else:
            xs.attach(raw).close()
        found: list[list[int]] = []
        thread = threading.Thread(target=lambda: found.append(np.asarray(xs.attach(raw)).tolist()))
        thread.start()
        thread.join(20)
        assert found == [[3] * 4]
        error.__traceback__ = None  # the test's parameter lives on, and so would the frames
        unmapped()
    peer.call(withdraw, "fails")
