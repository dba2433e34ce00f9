"""Section 3, rule 11: read-only imports."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import signal

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import NBYTES, read_bytes, write_bytes
from xpushare.conformance.harness import Child, HarnessError, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

PATTERN = bytes(at % 251 for at in range(NBYTES))


@rule("3.11a")
def test_read_only(pair: Pair, peer: Child) -> None:
    try:
        handle = peer.call(actions.export, "thing", "memory", pair.exporter, b"look", read_only=True)
        memory = xs.ipc.memory.open(handle, device=pair.importer)
    except xs.FeatureNotSupportedError as error:
        pytest.skip(f"cannot be mapped so, and says it: {error}")
    assert xs.ipc.Handle(handle).read_only
    for thing in (memory, memory.slice(0, 2), memory.as_array(4, "uint8")):
        assert thing.read_only
        try:
            with memoryview(thing) as view:
                assert view.readonly
                with pytest.raises(TypeError):
                    view[0] = 1
        except BufferError:
            pass
    with pytest.raises(BufferError):
        memory.__dlpack__()  # an unversioned capsule has no read-only flag
    with xs.Queue(pair.importer) as queue, xs.malloc_device(NBYTES, pair.importer) as target:
        with pytest.raises(xs.InvalidArgumentError):
            queue.copy(memory, target)
        with pytest.raises(xs.InvalidArgumentError):
            queue.fill(memory, b"x")
        queue.copy(target, memory)
        queue.synchronize(5)
        assert read_bytes(target, 4) == b"look"
    assert peer.call(actions.read, "thing", 4) == b"look"
    writable = peer.call(actions.get, "thing", "memory")
    with xs.ipc.memory.open(writable, device=pair.importer) as both:
        assert not both.read_only
        write_bytes(both, b"seen")
        assert read_bytes(memory, 4) == b"seen"
    memory.close()
    own = actions.export("own", "memory", pair.exporter, read_only=True)
    with xs.ipc.memory.open(own) as here:
        assert here.read_only
    assert not kept["own"].read_only


@rule("3.11b")
def test_mapped_read_only(pair: Pair) -> None:
    handle = actions.export("thing", "memory", pair.exporter, b"look", read_only=True)
    with Child() as child:
        error, text = child.call(actions.outcome, actions.open_, "opened", "memory", handle, pair.importer)
        if error == "FeatureNotSupportedError":
            pytest.skip(f"cannot be mapped so, and says it: {text}")
        assert not error, text
        if child.call(actions.attempt, _host_view, "opened"):
            pytest.skip("the host cannot access it: 3.11a has the driver's side")
        with pytest.raises(HarnessError):
            child.call(actions.limits_then_write, "opened")
        assert child.ended() == -signal.SIGSEGV
    assert read_bytes(kept["thing"], 4) == b"look"


def _host_view(name: str) -> None:
    memoryview(kept[name]).release()


@rule("3.11c")
def test_enforced(pair: Pair) -> None:
    handle = actions.export("thing", "memory", pair.exporter, b"look", read_only=True)
    with Child() as child:
        child.call(actions.open_, "opened", "memory", handle, pair.importer)
        child.call(actions.outcome, _mprotect_and_write, "opened")
        child.kill()
    assert read_bytes(kept["thing"], 4) == b"look"


def _mprotect_and_write(name: str) -> None:
    import ctypes
    import mmap

    memory = kept[name]
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(memory.ptr & -4096), 4096, mmap.PROT_READ | mmap.PROT_WRITE) == 0:
        actions.limits_then_write(name)
