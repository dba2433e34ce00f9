"""An error that was caught is in no circle of references: what failed is freed at once, not at the next collection."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept
from xpushare import adapters


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make_and_signal() -> bytes:
    event = kept["event"] = xs.Event(enable_ipc=True, signals=True)
    event.signal()
    return bytes(xs.ipc.event.get(event))


def test_a_lost_wait_and_a_lost_queue() -> None:
    """A program that outlives many producers keeps no descriptors of theirs."""
    with Child() as child:
        event = xs.ipc.event.open(child.call(make_and_signal))
        queue = xs.Queue("mock:0")
        queue.wait(event, at_least=2)
        seen = weakref.ref(event), weakref.ref(queue)
        child.kill()
        with pytest.raises(xs.PeerLostError):
            event.wait(10, at_least=2)
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(10)
        queue.close()
        event.close()
        del event, queue
    assert [each() for each in seen] == [None, None]


def test_an_array_that_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver knows it, and refuses; `copy=True` copies it then."""

    def refuse(*_: object) -> None:
        raise xs.FeatureNotSupportedError("of a pool")

    monkeypatch.setattr(adapters.adapter("mock"), "foreign", refuse)
    array = np.arange(10)
    seen = weakref.ref(array)
    with pytest.raises(xs.FeatureNotSupportedError, match="of a pool"):
        xs.share(array)
    xs.share(array, copy=True).close()
    del array
    assert seen() is None


def memory_files() -> int:
    xs.trim()
    links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    return sum("memfd" in os.readlink(each) for each in links if os.path.lexists(each))


def test_a_channel_whose_slots_are_too_large() -> None:
    """The error keeps no memory of the control words, which were allocated first."""
    xs.Channel.create(None, 4).close()
    before = memory_files()
    with pytest.raises(xs.OutOfMemoryError) as kept_error:
        xs.Channel.create(None, 1 << 40)
    assert memory_files() == before
    assert kept_error.value.__traceback__ is not None


def test_a_tree_at_no_stream() -> None:
    with xs.share({"a": xs.empty(3, device="mock:0")}) as handle:
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            with pytest.raises(xs.InvalidArgumentError):
                xs.attach(handle, stream="no stream")
            gc.collect()
            assert not any(isinstance(each, xs.InvalidArgumentError) for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
