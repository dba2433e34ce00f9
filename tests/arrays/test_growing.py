"""Ranges that grow, and those of other processes that follow them (API, section 11)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xpushare as xs
from harness import Child, fd_count, kept
from xpushare._native import load64, store64
from xpushare.core import physical
from xpushare.objects.physical_memory import growth_of

DEVICE = "native_cpu:0"
PAGE = xs.Device(DEVICE).memory_granularity()


@pytest.fixture
def grown() -> Iterator[xs.VirtualRange]:
    with xs.VirtualRange(64 * PAGE, DEVICE, growable=True) as grown:
        yield grown
    kept.clear()


def bytes_of(found: xs.VirtualRange, nbytes: int, at: int = 0) -> Any:
    return np.asarray(found.as_array(nbytes, "uint8", at))


def followed(raw: bytes) -> tuple[int, int]:
    follower = kept["follower"] = xs.attach(raw)
    return follower.nbytes, follower.ptr


def looked(nbytes: int) -> tuple[int, int, bytes]:
    follower = kept["follower"]
    return follower.nbytes, follower.ptr, bytes(bytes_of(follower, nbytes))


def refreshed(nbytes: int) -> tuple[int, int, bytes]:
    kept["follower"].refresh()
    return looked(nbytes)


def test_it_grows_and_shrinks_by_bytes(grown: xs.VirtualRange) -> None:
    assert grown.nbytes == 0
    address = grown.ptr
    grown.grow(10)
    assert grown.nbytes == 10
    bytes_of(grown, 10)[:] = range(10)
    grown.grow(3 * PAGE)
    assert grown.nbytes == 3 * PAGE + 10
    assert bytes_of(grown, 10).tolist() == list(range(10))
    grown.shrink(3 * PAGE)
    assert (grown.nbytes, grown.ptr) == (10, address)
    assert sum(nbytes for _at, nbytes, _access in grown.mapped()) < 3 * PAGE
    grown.shrink(10)
    assert grown.mapped() == []


def test_followers_see_what_is_there_and_what_comes(grown: xs.VirtualRange) -> None:
    grown.grow(PAGE)
    bytes_of(grown, 5)[:] = list(b"first")
    with xs.share(grown) as handle, Child() as one, Child() as two:
        raw = bytes(handle)
        address = one.call(followed, raw)[1]
        for each in (one, two):
            assert each.call(followed, raw)[0] == PAGE if each is two else True
            assert each.call(looked, 5)[2] == b"first"
        grown.grow(2 * PAGE)
        bytes_of(grown, 6, PAGE)[:] = list(b"second")
        assert one.call(looked, 5)[0] == PAGE  # until it refreshes
        found = one.call(refreshed, PAGE + 6)
        assert (found[0], found[1], found[2][PAGE:]) == (3 * PAGE, address, b"second")
        bytes_of(grown, 5)[:] = list(b"FIRST")
        assert one.call(looked, 5)[2] == b"FIRST"
        two.kill()  # it delays nobody
        grown.shrink(2 * PAGE)
        assert one.call(looked, PAGE + 6)[2][PAGE:] == b"second"  # readable until it refreshes
        assert one.call(refreshed, 5) == (PAGE, address, b"FIRST")


def _waited(number: int) -> tuple[int, int]:
    follower: xs.VirtualRange = kept["follower"]
    follower.changed.wait(30, at_least=number)
    follower.refresh()
    return follower.nbytes, follower.changed.pending


def test_an_event_tells_of_changes(grown: xs.VirtualRange) -> None:
    with xs.share(grown) as handle, Child() as peer:
        assert peer.call(followed, bytes(handle))[0] == 0  # nothing yet
        before = grown.changed.pending
        pending = peer.start(_waited, before + 1)
        grown.grow(PAGE)
        assert pending.result() == (PAGE, before + 1)


def test_what_is_looked_at_does_not_go(grown: xs.VirtualRange) -> None:
    grown.grow(PAGE)
    grown.grow(PAGE)
    view = bytes_of(grown, 1, PAGE)
    with pytest.raises(xs.InvalidArgumentError, match="still look"):
        grown.shrink(PAGE)
    assert grown.nbytes == 2 * PAGE
    with xs.share(grown) as handle:
        follower = xs.attach(handle)
        theirs = bytes_of(follower, 1, PAGE)
        del view
        grown.shrink(PAGE)
        with pytest.raises(xs.InvalidArgumentError, match="still look"):
            follower.refresh()
        assert theirs.tolist() == [0]
        del theirs
        follower.refresh()
        assert follower.nbytes == PAGE
        follower.close()


def test_unfinished_work_is_waited_for(grown: xs.VirtualRange) -> None:
    grown.grow(PAGE)
    gate, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait(30)

    with xs.Queue(DEVICE) as queue:
        queue.submit(hold)
        queue.fill(grown, b"x", 1)
        begun.wait(30)
        thread = threading.Thread(target=grown.shrink, args=(PAGE,))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        gate.set()
        thread.join(30)
        assert grown.mapped() == []


def test_a_queue_that_never_ends_holds_up_nobody_else(grown: xs.VirtualRange) -> None:
    """It is waited for only where it uses what goes."""
    grown.grow(PAGE)
    grown.grow(PAGE)
    gate, begun = threading.Event(), threading.Event()
    ended: list[bool] = []

    def hold() -> None:
        begun.set()
        ended.append(gate.wait(20))

    with xs.share(grown) as handle, xs.attach(handle) as follower, xs.Queue(DEVICE) as endless:
        endless.submit(hold)
        endless.fill(grown, b"x", PAGE)  # of the piece that stays
        begun.wait(30)
        view, theirs = bytes_of(grown, 1, PAGE), bytes_of(follower, 1, PAGE)
        with pytest.raises(xs.InvalidArgumentError, match="still look"):
            grown.shrink(PAGE)
        del view
        with xs.Queue(DEVICE) as queue:
            queue.fill(grown.as_array(PAGE, "uint8", PAGE), b"y")
            grown.shrink(PAGE)
        with pytest.raises(xs.InvalidArgumentError, match="still look"):
            follower.refresh()
        del theirs
        follower.refresh()
        assert (grown.nbytes, follower.nbytes) == (PAGE, PAGE)
        assert not ended
        gate.set()
        endless.synchronize(30)
        assert bytes_of(follower, PAGE).tobytes() == b"x" * PAGE


def test_a_handle_read_only(grown: xs.VirtualRange) -> None:
    grown.grow(PAGE)
    with xs.share(grown, read_only=True) as handle, xs.attach(handle) as follower:
        assert follower.mapped() == [(0, PAGE, "r")]
        with pytest.raises(ValueError, match="read-only"):
            bytes_of(follower, 1)[0] = 1


def test_a_follower_outlives_the_exporter() -> None:
    with Child() as exporter:
        raw = exporter.call(_grown)
        follower = xs.attach(raw)
        exporter.kill()
        assert bytes(bytes_of(follower, 5)) == b"first"
        follower.refresh()  # as it was last
        with pytest.raises(xs.PeerLostError):
            follower.changed.wait(30, at_least=follower.changed.pending + 1)
        follower.close()
        with pytest.raises(xs.HandleExpiredError):
            xs.attach(raw)


def _grown() -> bytes:
    grown = kept["grown"] = xs.VirtualRange(64 * PAGE, DEVICE, growable=True)
    grown.grow(PAGE)
    bytes_of(grown, 5)[:] = list(b"first")
    handle = kept["handle"] = xs.share(grown)
    return bytes(handle)


def test_a_handle_keeps_the_memory_of_a_range_that_is_closed() -> None:
    grown = xs.VirtualRange(64 * PAGE, DEVICE, growable=True)
    grown.grow(PAGE)
    bytes_of(grown, 5)[:] = list(b"first")
    with xs.share(grown) as handle, Child() as peer:
        grown.close()
        assert peer.call(followed, bytes(handle))[0] == PAGE
        assert peer.call(looked, 5)[2] == b"first"


def test_a_thousand_steps_need_few_pieces() -> None:
    with xs.VirtualRange(2000 * PAGE, DEVICE, growable=True) as grown, xs.share(grown) as handle, Child() as peer:
        address = peer.call(followed, bytes(handle))[1]
        grown.grow(PAGE)
        before = fd_count()
        for step in range(1, 1000):
            bytes_of(grown, 8, step * PAGE - PAGE).view("u8")[0] = step
            grown.grow(PAGE)
            if step % 100 == 0:
                assert peer.call(refreshed, 8)[:2] == ((step + 1) * PAGE, address)
        assert fd_count() - before < 120
        nbytes, _address, content = peer.call(refreshed, 999 * PAGE)
        assert nbytes == 1000 * PAGE
        assert np.frombuffer(content, "u8")[:: PAGE // 8].tolist() == list(range(1, 1000))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-6 * PAGE, 8 * PAGE), max_size=25))
def test_any_steps(steps: list[int]) -> None:
    """A follower that refreshes has the bytes of the original, whatever happened in between."""
    with (
        xs.VirtualRange(64 * PAGE, DEVICE, growable=True) as grown,
        xs.share(grown) as handle,
        xs.attach(handle) as follower,
    ):
        expected = bytearray()
        for number, step in enumerate(steps):
            if step > 0 and len(expected) + step <= 64 * PAGE:
                grown.grow(step)
                added = bytes([number % 251 + 1]) * step
                bytes_of(grown, step, len(expected))[:] = np.frombuffer(added, "uint8")
                expected += added
            elif step < 0 and -step <= len(expected):
                grown.shrink(-step)
                del expected[step:]
            elif step:
                with pytest.raises(xs.InvalidArgumentError):
                    (grown.grow if step > 0 else grown.shrink)(abs(step))
            assert grown.nbytes == len(expected)
            if number % 3 == 0:
                follower.refresh()
                assert follower.nbytes == len(expected)
                assert bytes(bytes_of(follower, len(expected))) == bytes(expected)


def test_misuse(grown: xs.VirtualRange) -> None:
    with xs.VirtualRange(PAGE, DEVICE) as plain:
        for call in (lambda: plain.grow(1), lambda: plain.shrink(1), plain.refresh, lambda: plain.changed):
            with pytest.raises(xs.InvalidArgumentError, match="growable=True"):
                call()
    with xs.PhysicalMemory(PAGE, DEVICE) as pages, pytest.raises(xs.InvalidArgumentError, match="maps its own"):
        grown.map(pages)
    with pytest.raises(xs.InvalidArgumentError, match="original"):
        grown.refresh()
    for wrong in (0, -1, 65 * PAGE):
        with pytest.raises(xs.InvalidArgumentError):
            grown.grow(wrong)
    with xs.share(grown) as handle, xs.attach(handle) as follower:
        for each in (lambda: follower.grow(1), lambda: follower.shrink(1)):
            with pytest.raises(xs.InvalidArgumentError, match="follows"):
                each()
        with pytest.raises(xs.InvalidArgumentError, match="original handle"):
            xs.share(follower)
        with pytest.raises(xs.InvalidArgumentError, match="like="):
            xs.attach(handle, like="numpy")


@pytest.mark.parametrize(
    "error", [xs.OutOfMemoryError("none left"), KeyboardInterrupt()], ids=["refused", "interrupted"]
)
@pytest.mark.parametrize("mapped", [False, True])
def test_what_fails_changes_nothing(
    grown: xs.VirtualRange, monkeypatch: pytest.MonkeyPatch, error: BaseException, mapped: bool
) -> None:
    grown.grow(PAGE)
    bytes_of(grown, 5)[:] = list(b"first")
    with xs.share(grown) as handle, xs.attach(handle) as follower:
        map_ = physical.map_

        def fails(*arguments: Any) -> None:
            if mapped:
                map_(*arguments)
            raise error

        for call in (lambda: grown.grow(2 * PAGE), follower.refresh):
            before = grown.mapped(), grown.nbytes, follower.mapped(), follower.nbytes
            with monkeypatch.context() as patch:
                patch.setattr(physical, "map_", fails)
                with pytest.raises(type(error)):
                    call()
            assert (grown.mapped(), grown.nbytes, follower.mapped(), follower.nbytes) == before
            grown.grow(2 * PAGE)  # for what follows
        follower.refresh()
        assert (grown.nbytes, follower.nbytes) == (5 * PAGE, 5 * PAGE)
        assert bytes(bytes_of(follower, 5)) == b"first"


def test_a_directory_that_lies(grown: xs.VirtualRange) -> None:
    """Its process may write there what it likes."""
    grown.grow(PAGE)
    with xs.share(grown) as handle, xs.attach(handle) as follower:
        _, growth = growth_of(grown)
        address = growth.directory.address
        header = address + 16 + 16 * (load64(address) % 2)
        for at, value, match in ((0, 1 << 40, "names"), (0, 2, "handle"), (8, 1 << 40, "bytes, in pieces")):
            true = load64(header + at)
            store64(header + at, value)
            with pytest.raises(xs.InvalidHandleError, match=match):
                follower.refresh()
            store64(header + at, true)
            follower.refresh()
            assert follower.nbytes == PAGE


def test_the_buffer_is_as_long_as_the_range() -> None:
    with xs.VirtualRange(1 << 20, "native_cpu:0", growable=True) as log:
        assert len(memoryview(log)) == 0
        log.grow(1000)
        memoryview(log)[:] = b"a" * 1000
        assert repr(log).startswith("<VirtualRange 1000 of 1048576 bytes at 0x")
        with xs.share(log) as handle, xs.attach(handle) as follower:
            assert bytes(memoryview(follower)) == b"a" * 1000
        log.shrink(400)
        assert len(memoryview(log)) == log.nbytes == 600
