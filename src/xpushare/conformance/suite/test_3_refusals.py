"""Section 3, rules 3 and 11: the handles that `open` refuses, and read-only imports."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import KINDS, NBYTES, read_bytes, verbs, write_bytes
from xpushare.conformance.harness import Child, HarnessError, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.refusals import (
    BOOT,
    ENTRY,
    GENERATION,
    KIND,
    OFFSET,
    PID,
    SIZE,
    TABLE_FD,
    UUID,
    VERSION,
    refused,
    reseal,
    unpickling,
)
from xpushare.conformance.rules import rule

PATTERN = bytes(at % 251 for at in range(NBYTES))


@rule("3.3a")
def test_lengths(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    text = str(xs.ipc.Handle(handle))
    wrong: list[Any] = [
        b"",
        b"\0",
        handle[:-1],
        handle + b"\0",
        handle * 2,
        bytes(256),
        "",
        text[:-1],
        text + "A",
        "é" * 256,
    ]
    for each in wrong:
        refused(xs.InvalidHandleError, kind, each)
        with pytest.raises(xs.InvalidHandleError):
            verbs(kind).put(each)
    things: list[Any] = [None, 3, 1.5, object()]
    for each in things:
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).open(each)
    verbs(kind).put(handle)
    actions.drop()
    nothing_left()


@rule("3.3b")
def test_flipped_bits(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    step = 1 if kind == "memory" else 13  # every bit for one kind, about one bit of each byte for the others
    for bit in range(0, 8 * len(handle), step):
        changed = bytearray(handle)
        changed[bit // 8] ^= 1 << bit % 8
        refused(xs.InvalidHandleError, kind, bytes(changed))
    nothing_left()
    verbs(kind).open(handle, device=pair.importer).close()


@rule("3.3c")
@pytest.mark.misuse
def test_kinds(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    for number, other in enumerate(KINDS, 1):
        if other == kind:
            continue
        for call in (verbs(other).open, verbs(other).put):
            with pytest.raises(xs.InvalidHandleError, match=kind):
                call(handle)
        # A forged kind with a valid seal does not match the exporter's table.
        error = xs.InvalidHandleError if xs.Device(pair.importer).has(f"ext_oneapi_ipc_{other}") else xs.XpuShareError
        with pytest.raises(error):
            verbs(other).open(reseal(handle, KIND, number.to_bytes(2, "little")))
    for number in (0, 7):
        refused(xs.InvalidHandleError, kind, reseal(handle, KIND, number.to_bytes(2, "little")))


@rule("3.3d")
def test_versions(pair: Pair, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    for version in (0, 1, 2, 3, 5, 65535):
        assert "version" in refused(xs.InvalidHandleError, kind, reseal(handle, VERSION, version.to_bytes(2, "little")))


@rule("3.3e")
def test_keys(pair: Pair, tmp_path: Path, kind: str) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(bytes(range(32)))
    ours = actions.export("thing", kind, pair.exporter)
    with Child(env={"XPUSHARE_KEY_FILE": str(key)}) as stranger:
        theirs = stranger.call(actions.export, "thing", kind, pair.exporter)
        assert "key" in refused(xs.InvalidHandleError, kind, theirs)
        assert stranger.call(actions.attempt, actions.open_, "opened", kind, ours) == "InvalidHandleError"


@rule("3.3f")
def test_boots(pair: Pair, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    assert "host" in refused(xs.InvalidHandleError, kind, reseal(handle, BOOT, uuid.uuid4().bytes))


@rule("3.3g")
@pytest.mark.misuse
def test_after_put(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    known, never = (peer.call(actions.export, name, kind, pair.exporter) for name in ("known", "never"))
    found = [verbs(kind).open(known, device=device) for device in (pair.importer, None, None)]
    for handle in (known, never):
        peer.call(actions.put, kind, handle)
        for device in (pair.importer, None):  # even with the object still open here: a cache must not help
            refused(xs.HandleExpiredError, kind, handle, device)
    for thing in found:
        thing.close()
    del thing, found
    refused(xs.HandleExpiredError, kind, known)
    own = actions.export("own", kind, pair.exporter)
    verbs(kind).put(own)
    refused(xs.HandleExpiredError, kind, own)
    actions.drop()
    nothing_left()


@rule("3.3h")
def test_reused_entry(pair: Pair, peer: Child, kind: str) -> None:
    content = b"" if kind == "event" else b"old"
    old = peer.call(actions.export, "old", kind, pair.exporter, content)
    verbs(kind).open(old).close()
    peer.call(actions.put, kind, old)
    peer.call(actions.drop, "old")
    new = [peer.call(actions.export, f"new{each}", kind, pair.exporter) for each in range(3)]
    refused(xs.HandleExpiredError, kind, old)
    for each in new:
        verbs(kind).open(each).close()
    # Give the old handle the table entry of the new object. Its generation differs.
    entry = new[0][ENTRY : ENTRY + 4]
    refused(xs.HandleExpiredError, kind, reseal(old, ENTRY, entry))
    with pytest.raises((xs.InvalidHandleError, xs.HandleExpiredError)):
        verbs(kind).open(reseal(new[0], ENTRY, (70_000).to_bytes(4, "little")))
    later = int.from_bytes(new[0][GENERATION : GENERATION + 8], "little") + 1000
    refused(xs.HandleExpiredError, kind, reseal(new[0], GENERATION, later.to_bytes(8, "little")))
    # Even with the right entry and generation, the export's random number must match.
    refused(xs.InvalidHandleError, kind, reseal(old, GENERATION, new[0][GENERATION : GENERATION + 12]))


@rule("3.3i")
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_dead_exporter(pair: Pair, kind: str, end: str, nothing_left: Callable[[], None]) -> None:
    with Child() as child:
        known, never = (child.call(actions.export, name, kind, pair.exporter) for name in ("known", "never"))
        found = [verbs(kind).open(known, device=device) for device in (pair.importer, None, None)]
        child.kill() if end == "kill" else child.exit()
    for handle in (known, never):
        for device in (pair.importer, None):
            refused(xs.HandleExpiredError, kind, handle, device)
    for thing in found:
        thing.close()
    del thing, found
    refused(xs.HandleExpiredError, kind, known)
    with Child() as stranger:  # an exporter whose handles were never opened
        handle = stranger.call(actions.export, "thing", kind, pair.exporter)
        stranger.kill()
    refused(xs.HandleExpiredError, kind, handle)
    nothing_left()


@rule("3.3j")
def test_reused_pid(pair: Pair, peer: Child, kind: str) -> None:
    with Child() as child:
        dead = child.call(actions.export, "thing", kind, pair.exporter)
        child.kill()
    alive = peer.call(actions.export, "thing", kind, pair.exporter)
    pretend = [
        (alive[PID : PID + 4], alive[TABLE_FD : TABLE_FD + 4]),  # another process that has a table
        (os.getpid().to_bytes(4, "little"), dead[TABLE_FD : TABLE_FD + 4]),
        (alive[PID : PID + 4], (1023).to_bytes(4, "little")),
        (alive[PID : PID + 4], (0).to_bytes(4, "little")),
    ]
    for pid, fd in pretend:
        refused(xs.HandleExpiredError, kind, reseal(dead, PID, pid + fd))
    verbs(kind).open(alive).close()
    refused(xs.HandleExpiredError, kind, reseal(dead, PID, pretend[0][0] + pretend[0][1]))


@rule("3.3k")
def test_sizes_of_a_peer(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "thing", "memory", pair.exporter)
    size = {at: int.from_bytes(handle[at : at + 8], "little") for at in (OFFSET, SIZE)}
    for opened_before in (False, True):
        if opened_before:
            kept["opened"] = xs.ipc.memory.open(handle, device=pair.importer)
        for at, value in ((SIZE, size[SIZE] + 1), (SIZE, 1 << 40), (OFFSET, 1), (OFFSET, 1 << 40)):
            false = reseal(handle, at, value.to_bytes(8, "little"))
            for device in (pair.importer, None):
                refused(xs.InvalidHandleError, "memory", false, device)


@rule("3.3l")
def test_other_devices(pair: Pair, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    device = xs.Device(pair.exporter)
    strangers = [each for each in xs.devices() if each.backend != device.backend]
    for stranger in strangers:
        error, text = actions.outcome(actions.open_, "opened", kind, handle, str(stranger))
        if error:
            assert error == "FeatureNotSupportedError"
            assert str(stranger) in text
            assert kind != "event" or not stranger.has("ext_oneapi_ipc_event"), "events open on every device"
        else:
            assert kept.pop("opened").device == stranger  # rule 3.13 tests this case
    for wrong in ("no device", f"{device.backend}:977"):
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).open(handle, device=wrong)
    context: Any = "a context"
    with pytest.raises(xs.InvalidArgumentError):
        verbs(kind).open(handle, context=context)
    unknown = uuid.uuid4()
    if kind != "event":  # such events open on the host (rule 3.13c)
        assert str(unknown) in refused(xs.InvalidArgumentError, kind, reseal(handle, UUID, unknown.bytes))


@rule("3.3m")
def test_messages(pair: Pair, peer: Child, kind: str) -> None:
    alive = peer.call(actions.export, "thing", kind, pair.exporter)
    put = peer.call(actions.export, "put", kind, pair.exporter)
    peer.call(actions.put, kind, put)
    data = peer.call(actions.pickle_and_close, kind, pair.exporter)
    with Child() as child:
        dead = child.call(actions.export, "thing", kind, pair.exporter)
        child.kill()
    messages = [
        refused(xs.InvalidHandleError, kind, alive[:-1]),
        refused(xs.InvalidHandleError, kind, b"X" * 256),
        refused(xs.InvalidHandleError, kind, alive[:-1] + bytes([alive[-1] ^ 1])),
        refused(xs.InvalidHandleError, kind, reseal(alive, VERSION, b"\7\0")),
        refused(xs.InvalidHandleError, kind, reseal(alive, BOOT, bytes(16))),
        refused(xs.InvalidHandleError, kind, reseal(alive, KIND, b"\x63\0")),
        refused(xs.HandleExpiredError, kind, put),
        refused(xs.HandleExpiredError, kind, dead),
        unpickling(data),
    ]
    assert len(set(messages)) == len(messages)


# --- read-only imports ------------------------------------------------------------------------------------------------


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
