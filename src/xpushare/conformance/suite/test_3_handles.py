"""Section 3: explicit handles."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import copy
import gc
import hashlib
import json
import os
import pickle
import re
import signal
import string
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import KINDS, NBYTES, granule, make, read_bytes, verbs, write_bytes
from xpushare.conformance.harness import Child, HarnessError, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

PATTERN = bytes(at % 251 for at in range(NBYTES))

# --- making false handles: docs/layout.md says where the fields are and how the seal is made --------------------------
VERSION, KIND, UUID, BOOT, PID, TABLE_FD, GENERATION, ENTRY = 8, 10, 32, 48, 72, 76, 96, 104
OFFSET, SIZE, SEAL = 136, 144, 224


def reseal(handle: bytes, at: int, content: bytes) -> bytes:
    """The handle with other bytes at `at`, sealed with this user's key as a careful forger would."""
    key = Path(os.environ["XPUSHARE_RUNTIME_DIR"], "key").read_bytes()
    body = handle[:at] + content + handle[at + len(content) : SEAL]
    return body + hashlib.blake2b(body, digest_size=32, key=key).digest()


def refused(error: type[BaseException], kind: str, handle: Any, device: str | None = None) -> str:
    """`open` raises that very class; its message."""
    with pytest.raises(error) as caught:
        verbs(kind).open(handle, device=device)
    assert type(caught.value) is error
    return str(caught.value)


# --- the handle -------------------------------------------------------------------------------------------------------


@rule("3.0a", "A handle is 256 bytes, or URL-safe text, and both give it back")
def test_bytes_and_text(pair: Pair) -> None:
    with xs.malloc_device(NBYTES, pair.exporter) as memory:
        handle = xs.ipc.memory.get(memory)
        raw, text = bytes(handle), str(handle)
        assert len(raw) == xs.ipc.Handle.NBYTES == 256
        assert set(text) <= set(string.ascii_letters + string.digits + "-_.~")
        again = [xs.ipc.Handle(each) for each in (raw, text, handle, bytearray(raw), memoryview(raw))]
        assert all(each == handle and hash(each) == hash(handle) and bytes(each) == raw for each in again)
        other = xs.ipc.memory.get(memory)
        assert other != handle
        assert len({*again, handle, other}) == 2
        assert repr(handle) != text
        assert pickle.loads(pickle.dumps(handle)) == handle
        for each in (handle, other):
            xs.ipc.memory.put(each)


@rule("3.0b", "A handle tells its kind, backend, device, sizes, access and exporter")
def test_fields(pair: Pair, kind: str) -> None:
    with make(kind, pair.exporter) as thing:
        handle = verbs(kind).get(thing)
        device = xs.Device(pair.exporter)
        assert (handle.kind, handle.backend, handle.read_only) == (kind, device.backend, False)
        assert uuid.UUID(handle.device_uuid) == uuid.UUID(device.uuid)
        assert handle.nbytes == (0 if kind == "event" else thing.nbytes)
        assert handle.exposed_nbytes >= handle.nbytes
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert handle.exporter.pid == os.getpid()
        assert uuid.UUID(handle.exporter.boot_id) == uuid.UUID(boot)
        assert handle.exporter.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
        verbs(kind).put(handle)
    if kind == "memory":
        with make(kind, pair.exporter) as thing:
            handle = xs.ipc.memory.get(thing, read_only=True)
            assert handle.read_only
            xs.ipc.memory.put(handle)


@rule("3.0c", "An import is of the opener's device: by default the one that the handle names")
def test_device_of_an_import(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "memory", "memory", pair.exporter)
    with xs.ipc.memory.open(handle) as memory:
        assert memory.device == xs.Device(pair.exporter)
    with xs.ipc.memory.open(handle, device=pair.importer) as memory:
        assert memory.device == xs.Device(pair.importer)
        assert bytes(memory.handle) == handle
        assert memory.is_imported
    with xs.ipc.memory.open(handle, context=xs.Context([pair.importer])) as memory:
        assert memory.device == xs.Device(pair.importer)


# --- 1: get -----------------------------------------------------------------------------------------------------------


@rule("3.1a", "Every get returns a distinct handle")
def test_distinct(pair: Pair, kind: str) -> None:
    with make(kind, pair.exporter) as thing:
        found = [verbs(kind).get(thing) for _ in range(20)]
        assert len({bytes(each) for each in found}) == 20
        for each in found:
            verbs(kind).put(each)


@rule("3.1b", "Any range of an allocation can be exported; the importer's object is that very range")
def test_ranges(pair: Pair, peer: Child) -> None:
    memory = kept["memory"] = xs.malloc_device(3 * NBYTES, pair.exporter)
    write_bytes(memory, PATTERN * 3)
    for offset, nbytes in ((0, 3 * NBYTES), (1, 1), (NBYTES - 1, 2), (7, NBYTES), (3 * NBYTES - 1, 1), (5, 0)):
        handle = xs.ipc.memory.get(memory.slice(offset, nbytes))
        assert handle.nbytes == nbytes
        peer.call(actions.open_, "piece", "memory", bytes(handle), pair.importer)
        assert peer.call(_size, "piece") == nbytes
        if nbytes:
            assert peer.call(actions.read, "piece") == (PATTERN * 3)[offset : offset + nbytes]
        with xs.ipc.memory.open(handle) as here:
            assert here.nbytes == nbytes
            assert not nbytes or read_bytes(here) == (PATTERN * 3)[offset : offset + nbytes]
        xs.ipc.memory.put(handle)
    inner = memory.slice(NBYTES, NBYTES).slice(10, 20)
    handle = xs.ipc.memory.get(inner)
    peer.call(actions.open_, "piece", "memory", bytes(handle), pair.importer)
    assert peer.call(actions.read, "piece") == PATTERN[10:30]
    xs.ipc.memory.put(handle)


def _size(name: str) -> int:
    nbytes: int = kept[name].nbytes
    return nbytes


@rule("3.1c", "An imported Memory or Event cannot be exported again")
@pytest.mark.parametrize("kind", ["memory", "event"])
def test_import_is_not_exported(pair: Pair, peer: Child, kind: str) -> None:
    theirs = peer.call(actions.export, "thing", kind, pair.exporter)
    ours = actions.export("own", kind, pair.exporter)
    for handle in (theirs, ours):
        with verbs(kind).open(handle, device=pair.importer) as thing:
            with pytest.raises(xs.InvalidArgumentError):
                verbs(kind).get(thing)
            if kind == "memory":
                with pytest.raises(xs.InvalidArgumentError):
                    xs.ipc.memory.get(thing.slice(0, 1))
                with pytest.raises(xs.InvalidArgumentError):
                    xs.ipc.memory.get(thing.as_array(4, "uint8"))
            else:
                assert not thing.ipc_enabled


@rule("3.1d", "An imported PhysicalMemory can be exported again")
def test_import_is_exported(pair: Pair, peer: Child, other: Child) -> None:
    first = actions.export("pages", "physical_memory", pair.exporter, b"far away", pair.granule)
    peer.call(actions.open_, "import", "physical_memory", first, pair.importer)
    second = peer.call(actions.get, "import", "physical_memory")
    assert second != first
    assert xs.ipc.Handle(second).exporter.pid == peer.pid
    actions.put("physical_memory", first)
    actions.drop()
    other.call(actions.open_, "again", "physical_memory", second, pair.importer)
    assert other.call(actions.read, "again", 8) == b"far away"
    peer.call(actions.drop, "import")  # the export holds it
    other.call(actions.open_, "more", "physical_memory", second, pair.importer)
    assert other.call(actions.read, "more", 8) == b"far away"


@rule("3.1e", "Physical memory and events are exported only if made with enable_ipc=True")
@pytest.mark.parametrize("kind", ["physical_memory", "event"])
def test_not_made_for_sharing(pair: Pair, kind: str) -> None:
    def plain() -> Any:
        return xs.Event(pair.exporter) if kind == "event" else xs.PhysicalMemory(granule(pair.exporter), pair.exporter)

    with plain() as thing, make(kind, pair.exporter) as shared:
        assert (thing.ipc_enabled, shared.ipc_enabled) == (False, True)
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).get(thing)
        with pytest.raises(xs.InvalidArgumentError):
            pickle.dumps(thing)
    things: list[Any] = [None, 3, b"bytes", "text"]
    for wrong in things:
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).get(wrong)


@rule("3.1f", "exposed_nbytes covers the range, and no other allocation made here for sharing")
def test_exposed(pair: Pair) -> None:
    found = [xs.malloc_device(nbytes, pair.exporter) for nbytes in (1, 100, NBYTES, NBYTES + 1, 3, NBYTES)]
    reach: list[tuple[int, int]] = []
    for memory in found:
        handle = xs.ipc.memory.get(memory)
        assert handle.exposed_nbytes >= memory.nbytes
        piece = xs.ipc.memory.get(memory.slice(0, 1))
        assert piece.exposed_nbytes == handle.exposed_nbytes
        reach.append((memory.ptr, memory.ptr + handle.exposed_nbytes))
        xs.ipc.memory.put(handle)
        xs.ipc.memory.put(piece)
    reach.sort()
    assert all(one[1] <= two[0] for one, two in pairwise(reach))


@rule("3.1g", "get takes an array over memory that was made here")
def test_arrays_over_own_memory(pair: Pair, peer: Child) -> None:
    memory = kept["memory"] = xs.malloc_device(NBYTES, pair.exporter)
    write_bytes(memory, PATTERN)
    found: list[Any] = [memory.as_array(16, "uint8", 64)]
    try:
        memoryview(memory).release()
    except BufferError:
        pass
    else:
        import numpy

        found.append(numpy.asarray(memory.as_array(NBYTES, "uint8"))[64:80])
    for array in found:
        handle = xs.ipc.memory.get(array)
        assert handle.nbytes == 16
        peer.call(actions.open_, "array", "memory", bytes(handle), pair.importer)
        assert peer.call(actions.read, "array") == PATTERN[64:80]
        xs.ipc.memory.put(handle)


def _foreign_array(device: str) -> tuple[Any, Callable[[], bytes]]:
    """An array of another library with memory on the device, and how to read it here."""
    backend = device.partition(":")[0]
    if backend == "mock":
        import ctypes

        from xpushare.adapters.mock import ForeignArray

        array = ForeignArray(NBYTES)
        ctypes.memmove(array.memory.address, PATTERN, NBYTES)
        return array, lambda: ctypes.string_at(array.memory.address, NBYTES)
    torch = pytest.importorskip("torch", reason="no library with foreign memory is installed")
    tensor = torch.tensor(list(PATTERN), dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
    return tensor, lambda: bytes(tensor.cpu().numpy())


@rule("3.1h", "get takes arrays of other libraries; what cannot be exported is refused with advice")
def test_foreign(pair: Pair, peer: Child) -> None:
    array, content = _foreign_array(pair.exporter)
    handle = xs.ipc.memory.get(array)
    peer.call(actions.open_, "foreign", "memory", bytes(handle), pair.importer)
    assert peer.call(actions.read, "foreign", NBYTES) == PATTERN
    peer.call(actions.write, "foreign", b"from the importer")
    assert content()[:17] == b"from the importer"
    xs.ipc.memory.put(handle)
    import numpy

    with pytest.raises(xs.FeatureNotSupportedError) as caught:
        xs.ipc.memory.get(numpy.zeros(8))
    assert "copy" in str(caught.value)


# --- 2: the bytes are the whole handle --------------------------------------------------------------------------------


@rule("3.2a", "Environment, JSON, pipes and bytes carry a handle, to any number of importers, as often as wanted")
def test_channels(pair: Pair, peer: Child, other: Child, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    text = str(xs.ipc.Handle(handle))
    for child in (peer, other):
        for spelling in (handle, text, json.loads(json.dumps(text)), handle):
            assert child.call(actions.open_, spelling, kind, spelling, pair.importer) == (True, pair.importer)
    with Child(env={"XPUSHARE_CONFORMANCE_HANDLE": text}) as third:
        assert third.call(_open_from_environment, kind, pair.importer)


def _open_from_environment(kind: str, device: str) -> bool:
    with verbs(kind).open(os.environ["XPUSHARE_CONFORMANCE_HANDLE"], device=device) as thing:
        imported: bool = thing.is_imported
        return imported


@rule("3.2b", "What one end writes or signals, the other sees")
@pytest.mark.parametrize("kind", ["memory", "physical_memory"])
def test_shared_content(pair: Pair, peer: Child, kind: str) -> None:
    nbytes = NBYTES if kind == "memory" else pair.granule
    handle = peer.call(actions.export, "thing", kind, pair.exporter, b"from the exporter", nbytes)
    with verbs(kind).open(handle, device=pair.importer) as thing:
        assert thing.nbytes == nbytes
        assert read_bytes(thing, 17) == b"from the exporter"
        write_bytes(thing, b"from the importer")
        assert peer.call(actions.read, "thing", 17) == b"from the importer"
        peer.call(actions.write, "thing", b"once more........")
        assert read_bytes(thing, 17) == b"once more........"


@rule("3.2b", "What one end writes or signals, the other sees")
@pytest.mark.parametrize("kind", ["event"])
def test_shared_event(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    with xs.ipc.event.open(handle, device=pair.importer) as event:
        assert (event.value, event.pending, event.done, event.is_imported, event.ipc_enabled) == (
            0,
            0,
            True,
            True,
            False,
        )
        assert event.device == xs.Device(pair.importer)
        assert peer.call(actions.queue_signal, "thing", pair.exporter) == 1
        event.wait(5, at_least=1)
        assert (event.value, event.pending) == (1, 1)


@rule("3.2c", "A handle opens in the exporter's own process, too")
def test_own_process(pair: Pair, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter, b"own" if kind != "event" else b"", pair.granule)
    thing = kept["thing"]
    with verbs(kind).open(handle) as again:
        assert again is not thing
        assert again.is_imported
        assert not thing.is_imported
        if kind == "event":
            actions.queue_signal("thing", pair.exporter)
            again.wait(5, at_least=1)
            assert (again.value, thing.value) == (1, 1)
        else:
            assert read_bytes(again, 3) == b"own"
            write_bytes(again, b"new")
            assert read_bytes(thing, 3) == b"new"


# --- 3: what open refuses ---------------------------------------------------------------------------------------------


@rule("3.3a", "open refuses a wrong length, and what is no handle")
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


@rule("3.3b", "open refuses a handle with any bit flipped")
def test_flipped_bits(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    step = 1 if kind == "memory" else 13  # every bit for one kind, every byte for the others
    for bit in range(0, 8 * len(handle), step):
        changed = bytearray(handle)
        changed[bit // 8] ^= 1 << bit % 8
        refused(xs.InvalidHandleError, kind, bytes(changed))
    nothing_left()
    verbs(kind).open(handle, device=pair.importer).close()


@rule("3.3c", "open refuses a handle of another kind")
def test_kinds(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    for number, other in enumerate(KINDS, 1):
        if other == kind:
            continue
        for call in (verbs(other).open, verbs(other).put):
            with pytest.raises(xs.InvalidHandleError, match=kind):
                call(handle)
        # One that says so of itself, well sealed, is found out by the exporter's table.
        error = xs.InvalidHandleError if xs.Device(pair.importer).has(f"ext_oneapi_ipc_{other}") else xs.XpuShareError
        with pytest.raises(error):
            verbs(other).open(reseal(handle, KIND, number.to_bytes(2, "little")))
    for number in (0, 7):
        refused(xs.InvalidHandleError, kind, reseal(handle, KIND, number.to_bytes(2, "little")))


@rule("3.3d", "open refuses another version")
def test_versions(pair: Pair, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    for version in (0, 2, 65535):
        assert "version" in refused(xs.InvalidHandleError, kind, reseal(handle, VERSION, version.to_bytes(2, "little")))


@rule("3.3e", "open refuses a handle made without this user's key")
def test_keys(pair: Pair, tmp_path: Path, kind: str) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(bytes(range(32)))
    ours = actions.export("thing", kind, pair.exporter)
    with Child(env={"XPUSHARE_KEY_FILE": str(key)}) as stranger:
        theirs = stranger.call(actions.export, "thing", kind, pair.exporter)
        assert "key" in refused(xs.InvalidHandleError, kind, theirs)
        assert stranger.call(actions.attempt, actions.open_, "opened", kind, ours) == "InvalidHandleError"


@rule("3.3f", "open refuses a handle of another boot or host")
def test_boots(pair: Pair, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    assert "host" in refused(xs.InvalidHandleError, kind, reseal(handle, BOOT, uuid.uuid4().bytes))


@rule("3.3g", "open refuses a handle after put")
def test_after_put(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    known, never = (peer.call(actions.export, name, kind, pair.exporter) for name in ("known", "never"))
    found = [verbs(kind).open(known, device=device) for device in (pair.importer, None, None)]
    for handle in (known, never):
        peer.call(actions.put, kind, handle)
        for device in (pair.importer, None):  # also with the object still open here: a cache is no way round
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


@rule("3.3h", "open refuses an old handle whose place in the exporter's table is another object's now")
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
    # As if the old handle had been for the new object's place: its generation is another.
    entry = new[0][ENTRY : ENTRY + 4]
    refused(xs.HandleExpiredError, kind, reseal(old, ENTRY, entry))
    with pytest.raises((xs.InvalidHandleError, xs.HandleExpiredError)):
        verbs(kind).open(reseal(new[0], ENTRY, (70_000).to_bytes(4, "little")))
    later = int.from_bytes(new[0][GENERATION : GENERATION + 8], "little") + 1000
    refused(xs.HandleExpiredError, kind, reseal(new[0], GENERATION, later.to_bytes(8, "little")))
    # The right place and generation are not enough: the export's random number must be the same, too.
    refused(xs.InvalidHandleError, kind, reseal(old, GENERATION, new[0][GENERATION : GENERATION + 12]))


@rule("3.3i", "open refuses a handle whose exporter has died or exited")
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
    with Child() as stranger:  # and one that nobody knew
        handle = stranger.call(actions.export, "thing", kind, pair.exporter)
        stranger.kill()
    refused(xs.HandleExpiredError, kind, handle)
    nothing_left()


@rule("3.3j", "open refuses a handle whose exporter's pid or fd number is another's now")
def test_reused_pid(pair: Pair, peer: Child, kind: str) -> None:
    with Child() as child:
        dead = child.call(actions.export, "thing", kind, pair.exporter)
        child.kill()
    alive = peer.call(actions.export, "thing", kind, pair.exporter)
    pretend = [
        (alive[PID : PID + 4], alive[TABLE_FD : TABLE_FD + 4]),  # a process that has a table, too
        (os.getpid().to_bytes(4, "little"), dead[TABLE_FD : TABLE_FD + 4]),
        (alive[PID : PID + 4], (1023).to_bytes(4, "little")),
        (alive[PID : PID + 4], (0).to_bytes(4, "little")),
    ]
    for pid, fd in pretend:
        refused(xs.HandleExpiredError, kind, reseal(dead, PID, pid + fd))
    verbs(kind).open(alive).close()
    refused(xs.HandleExpiredError, kind, reseal(dead, PID, pretend[0][0] + pretend[0][1]))


@rule("3.3k", "open checks the sizes and offsets of a handle against the exporter's object")
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


@rule("3.3l", "open refuses a device that cannot have the object, or that this process may not see")
def test_other_devices(pair: Pair, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    device = xs.Device(pair.exporter)
    strangers = [each for each in xs.devices() if each.backend != device.backend]
    for stranger in strangers:
        why = ""
        try:
            opened = verbs(kind).open(handle, device=stranger)
            assert opened.device == stranger
            opened.close()
        except xs.FeatureNotSupportedError as error:
            why = str(error)
        assert not why or (device.backend in why and str(stranger) in why)
        assert not why or kind != "event", "events open on every device"
    for wrong in ("no device", f"{device.backend}:977"):
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).open(handle, device=wrong)
    context: Any = "a context"
    with pytest.raises(xs.InvalidArgumentError):
        verbs(kind).open(handle, context=context)
    unknown = uuid.uuid4()
    if kind != "event":  # those open on the host then
        assert str(unknown) in refused(xs.InvalidArgumentError, kind, reseal(handle, UUID, unknown.bytes))


@rule("3.3m", "Each refusal has a message of its own")
def test_messages(pair: Pair, peer: Child, kind: str) -> None:
    alive = peer.call(actions.export, "thing", kind, pair.exporter)
    put = peer.call(actions.export, "put", kind, pair.exporter)
    peer.call(actions.put, kind, put)
    data = peer.call(_pickled_and_closed, kind, pair.exporter)
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
        _unpickling(data),
    ]
    assert len(set(messages)) == len(messages)


def _pickled_and_closed(kind: str, device: str) -> bytes:
    with make(kind, device) as thing:
        return pickle.dumps(thing)


def _unpickling(data: bytes) -> str:
    with pytest.raises(xs.HandleExpiredError) as caught:
        pickle.loads(data)
    return str(caught.value)


# --- 4: open and close ------------------------------------------------------------------------------------------------


@rule("3.4a", "Every open of memory or an event returns a new object with a close of its own")
@pytest.mark.parametrize("kind", ["memory", "event"])
def test_new_objects(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter, PATTERN if kind == "memory" else b"")
    found = [verbs(kind).open(handle, device=pair.importer) for _ in range(10)]
    assert len({id(each) for each in found}) == 10
    last = found[-1]
    for each in found[:-1]:
        each.close()
        assert each.closed
        assert not last.closed
        if kind == "memory":
            assert read_bytes(last, 8) == PATTERN[:8]
        else:
            assert last.value == 0
    last.close()


@rule("3.4b", "ipc.memory.close is an error on memory that is closed or was not opened")
def test_close_verb(pair: Pair) -> None:
    handle = actions.export("own", "memory", pair.exporter)
    memory = xs.ipc.memory.open(handle)
    xs.ipc.memory.close(memory)
    assert memory.closed
    with pytest.raises(xs.InvalidArgumentError):
        xs.ipc.memory.close(memory)
    with pytest.raises(xs.InvalidArgumentError):
        xs.ipc.memory.close(kept["own"])
    assert not kept["own"].closed
    with pytest.raises(xs.InvalidArgumentError):
        xs.ipc.memory.close(None)  # type: ignore[arg-type]


@rule("3.4c", "Closing an import harms neither the exporter nor other importers")
def test_closing_harms_nobody(pair: Pair, peer: Child, other: Child) -> None:
    handle = actions.export("own", "memory", pair.exporter, b"still here")
    for child in (peer, other):
        child.call(actions.open_, "opened", "memory", handle, pair.importer)
    peer.call(actions.close, "opened")
    peer.call(actions.drop)
    assert other.call(actions.read, "opened", 10) == b"still here"
    assert read_bytes(kept["own"], 10) == b"still here"
    peer.call(actions.open_, "opened", "memory", handle, pair.importer)
    assert peer.call(actions.read, "opened", 10) == b"still here"


@rule("3.4d", "Repeated opens are counted: they cost no further fd or address, and end with the last close")
def test_counted(pair: Pair, peer: Child, nothing_left: Callable[[], None]) -> None:
    handle = peer.call(actions.export, "thing", "memory", pair.exporter, PATTERN)
    first = xs.ipc.memory.open(handle, device=pair.importer)
    before = len(os.listdir("/proc/self/fd"))
    default = pair.importer if pair.importer != pair.exporter else None
    found = [xs.ipc.memory.open(handle, device=pair.importer if each % 2 else default) for each in range(20)]
    assert len(os.listdir("/proc/self/fd")) <= before
    assert {each.ptr for each in found} == {first.ptr}
    assert peer.call(actions.importers, "thing") == 1
    first.close()
    for each in found[1:]:
        xs.ipc.memory.close(each)
    assert read_bytes(found[0], 8) == PATTERN[:8]
    assert peer.call(actions.importers, "thing") == 1
    found.pop(0).close()
    found.clear()
    del first, each
    assert peer.call(actions.importers, "thing") == 0
    nothing_left()


# --- 5: put -----------------------------------------------------------------------------------------------------------


@rule("3.5a", "An export holds its source until put, also when nobody refers to the object")
def test_export_holds(pair: Pair, peer: Child, kind: str) -> None:
    content = b"" if kind == "event" else b"held"
    handle = peer.call(actions.export, "thing", kind, pair.exporter, content)
    peer.call(actions.close, "thing")
    peer.call(actions.drop)
    for _ in range(2):
        with verbs(kind).open(handle, device=pair.importer) as thing:
            assert kind == "event" or read_bytes(thing, 4) == b"held"
    peer.call(actions.put, kind, handle)
    refused(xs.HandleExpiredError, kind, handle)


@rule("3.5a", "An export holds its source until put, also when nobody refers to the object")
def test_export_holds_in_the_own_process(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    actions.drop()
    verbs(kind).open(handle).close()
    verbs(kind).put(handle)
    gc.collect()
    nothing_left()  # and no longer than that


@rule("3.5b", "put withdraws the handle for new opens and leaves opened ones alone")
def test_put_leaves_opened(pair: Pair, peer: Child, kind: str) -> None:
    content = b"" if kind == "event" else b"open"
    handle = peer.call(actions.export, "thing", kind, pair.exporter, content)
    thing = verbs(kind).open(handle, device=pair.importer)
    peer.call(actions.put, kind, handle)
    refused(xs.HandleExpiredError, kind, handle)
    if kind == "event":
        peer.call(actions.queue_signal, "thing", pair.exporter)
        thing.wait(5, at_least=1)
    else:
        assert read_bytes(thing, 4) == b"open"
    thing.close()


@rule("3.5c", "put is an error for a handle that was put before")
def test_put_twice(pair: Pair, kind: str) -> None:
    for spelling in (bytes, str, xs.ipc.Handle):
        raw = xs.ipc.Handle(actions.export("thing", kind, pair.exporter))
        handle: Any = spelling(raw)
        verbs(kind).put(handle)
        for _ in range(2):
            with pytest.raises(xs.InvalidArgumentError):
                verbs(kind).put(handle)


@rule("3.5d", "put is an error for a handle of another process")
def test_put_elsewhere(pair: Pair, peer: Child, kind: str) -> None:
    actions.export("own", kind, pair.exporter)  # this process has a table, too
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    for _ in range(2):
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).put(handle)
        verbs(kind).open(handle, device=pair.importer).close()
    with Child() as stranger:  # that never exported anything
        assert stranger.call(actions.attempt, actions.put, kind, handle) == "InvalidArgumentError"


@rule("3.5e", "put is allowed after the object's free, as Handle, bytes or text")
def test_put_after_free(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    thing = make(kind, pair.exporter)
    found = [verbs(kind).get(thing) for _ in range(3)]
    thing.close()
    del thing
    for spelling, handle in zip((bytes, str, xs.ipc.Handle), found, strict=True):
        verbs(kind).put(spelling(handle))
    nothing_left()


@rule("3.5f", "put of one handle leaves the others of the object")
def test_put_of_one(pair: Pair, peer: Child, kind: str) -> None:
    one = peer.call(actions.export, "thing", kind, pair.exporter)
    two = peer.call(actions.get, "thing", kind)
    peer.call(actions.put, kind, one)
    with verbs(kind).open(two, device=pair.importer):
        refused(xs.HandleExpiredError, kind, one, pair.importer)


@rule("3.5g", "Foreign memory stays held after put while a live importer has it open")
def test_foreign_stays(pair: Pair, peer: Child) -> None:
    handle, alive = peer.call(_export_foreign, pair.exporter)
    assert alive
    memory = xs.ipc.memory.open(handle, device=pair.importer)
    assert peer.call(_end_foreign, handle)
    assert read_bytes(memory, NBYTES) == PATTERN
    memory.close()
    del memory
    gc.collect()
    assert not peer.call(_foreign_alive, pair.exporter)


def _export_foreign(device: str) -> tuple[bytes, bool]:
    import weakref

    array, _content = _foreign_array(device)
    kept["alive"] = weakref.ref(array)
    kept["foreign"] = array
    return bytes(xs.ipc.memory.get(array)), True


def _end_foreign(handle: bytes) -> bool:
    """Put, and drop the array as its user would; whether something still holds it."""
    xs.ipc.memory.put(handle)
    array = kept.pop("foreign")
    if type(array).__module__.startswith("xpushare"):
        from xpushare.adapters import mock

        mock._foreign.remove(array)  # the library's own list: only users hold it now
    del array
    gc.collect()
    return kept["alive"]() is not None


def _foreign_alive(device: str) -> bool:
    with xs.malloc_device(NBYTES, device) as memory:  # exports end what is over
        xs.ipc.memory.put(xs.ipc.memory.get(memory))
    gc.collect()
    return kept["alive"]() is not None


# --- 6 and 7: lifetimes -----------------------------------------------------------------------------------------------


@rule("3.6a", "An open mapping keeps its content after the exporter freed the memory")
def test_outlives_free(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "thing", "memory", pair.exporter, b"remains")
    memory = xs.ipc.memory.open(handle, device=pair.importer)
    peer.call(actions.put, "memory", handle)
    peer.call(actions.close, "thing")
    peer.call(actions.drop)
    for each in range(3):  # what would take its place
        peer.call(actions.export, f"other{each}", "memory", pair.exporter, b"\xff" * 16)
    assert read_bytes(memory, 7) == b"remains"
    write_bytes(memory, b"written")
    assert read_bytes(memory, 7) == b"written"
    memory.close()


@rule("3.6b", "An open mapping keeps its content after the exporter died by SIGKILL")
def test_outlives_death(pair: Pair) -> None:
    has_pages = all(
        xs.Device(device).has("ext_oneapi_ipc_physical_memory") for device in (pair.exporter, pair.importer)
    )
    pages = None
    with Child() as child:
        memory = xs.ipc.memory.open(
            child.call(actions.export, "thing", "memory", pair.exporter, b"remains"), device=pair.importer
        )
        if has_pages:
            handle = child.call(actions.export, "pages", "physical_memory", pair.exporter, b"too", pair.granule)
            pages = xs.ipc.physical_memory.open(handle, device=pair.importer)
        child.kill()
    assert read_bytes(memory, 7) == b"remains"
    write_bytes(memory, b"written")
    assert read_bytes(memory, 7) == b"written"
    if pages is not None:
        assert read_bytes(pages, 3) == b"too"
        pages.close()
    memory.close()


@rule("3.7a", "Physical memory and events have no close verb")
def test_verbs() -> None:
    for kind in KINDS:
        names = {name for name in ("get", "put", "open", "close") if hasattr(verbs(kind), name)}
        assert names == {"get", "put", "open"} | ({"close"} if kind == "memory" else set())


@rule("3.7b", "The last release of an import tears it down")
def test_teardown(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    count = actions.processes if kind == "event" else actions.importers
    alone = 1 if kind == "event" else 0
    assert peer.call(count, "thing") == alone
    one, two = (verbs(kind).open(handle, device=pair.importer) for _ in range(2))
    assert peer.call(count, "thing") == alone + 1
    one.close()
    assert peer.call(count, "thing") == alone + 1
    del two, one
    gc.collect()
    assert peer.call(count, "thing") == alone
    nothing_left()


@rule("3.7c", "An import outlives its source object")
def test_import_outlives_source(pair: Pair, peer: Child, kind: str) -> None:
    if kind == "memory" and not xs.Device(pair.exporter).has("outlives_exporter"):
        pytest.skip("memory is rule 3.6")
    handle = peer.call(actions.export, "thing", kind, pair.exporter, b"" if kind == "event" else b"lives")
    thing = verbs(kind).open(handle, device=pair.importer)
    peer.call(actions.put, kind, handle)
    peer.call(actions.close, "thing")
    peer.call(actions.drop)
    fresh = [f"fresh{each}" for each in range(20)]
    for each in fresh:
        peer.call(actions.export, each, kind, pair.exporter)
    if kind == "event":
        with xs.Queue(pair.importer) as queue:
            assert queue.signal(thing) == 1
            queue.synchronize(5)
        assert (thing.value, thing.done) == (1, True)
        assert all(peer.call(actions.numbers, each) == (0, 0) for each in fresh)  # none is at the same place
    else:
        assert read_bytes(thing, 5) == b"lives"
        write_bytes(thing, b"alone")
        assert all(peer.call(actions.read, each, 5) != b"alone" for each in fresh[:3])
    thing.close()


# --- 8: failures leave nothing ----------------------------------------------------------------------------------------


@rule("3.8a", "A failed open leaves no fd, mapping or entry behind")
def test_failed_opens(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    good = peer.call(actions.export, "good", kind, pair.exporter)
    gone = peer.call(actions.export, "gone", kind, pair.exporter)
    verbs(kind).open(good, device=pair.importer).close()
    gc.collect()
    peer.call(actions.put, kind, gone)
    for _ in range(20):
        for handle in (gone, good[:-1], reseal(good, GENERATION, gone[GENERATION : GENERATION + 8])):
            with pytest.raises((xs.HandleExpiredError, xs.InvalidHandleError)):
                verbs(kind).open(handle, device=pair.importer)
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).open(good, device="nonsense")
    count = actions.processes if kind == "event" else actions.importers
    assert peer.call(count, "good") == (1 if kind == "event" else 0)
    nothing_left()


@rule("3.8b", "A failed get or map leaves no fd, mapping or entry behind")
def test_failed_gets(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    context: Any = "a context"
    for _ in range(20):
        with make(kind, pair.exporter) as thing, pytest.raises(xs.InvalidArgumentError):
            verbs(kind).get(thing, context=context)
        thing = make(kind, pair.exporter)
        thing.close()
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).get(thing)
        if kind == "physical_memory":
            with make(kind, pair.exporter) as pages, xs.VirtualRange(granule(pair.exporter), pair.exporter) as place:
                for at, offset in ((1, 0), (0, 1), (granule(pair.exporter), 0)):
                    with pytest.raises(xs.InvalidArgumentError):
                        place.map(pages, at, offset=offset)
                assert place.mapped() == []
    del thing
    nothing_left()


# --- 9: fork ----------------------------------------------------------------------------------------------------------


def _everything(device: str) -> None:
    memory = kept["memory"] = xs.malloc_device(granule(device), device)
    write_bytes(memory, b"parent")
    kept["event"] = xs.Event(device, enable_ipc=xs.Device(device).has("ext_oneapi_ipc_event"))
    kept["queue"] = xs.Queue(device)
    kept["array"] = memory.as_array(4, "uint8")
    if xs.Device(device).has("ext_oneapi_virtual_mem"):
        kept["physical"] = xs.PhysicalMemory(granule(device), device)
        kept["range"] = xs.VirtualRange(granule(device), device)
        kept["range"].map(kept["physical"])


def _use_after_fork() -> list[str]:
    """What works in a forked child, or fails in another way than it should."""
    calls: dict[str, Callable[[], Any]] = {
        "ipc.memory.get": lambda: xs.ipc.memory.get(kept["memory"]),
        "ipc.memory.close": lambda: xs.ipc.memory.close(kept["memory"]),
        "memoryview": lambda: memoryview(kept["memory"]),
        "slice": lambda: kept["memory"].slice(0, 1),
        "as_array": lambda: kept["memory"].as_array(1, "uint8"),
        "ptr": lambda: kept["memory"].ptr,
        "pickle": lambda: pickle.dumps(kept["memory"]),
        "array": lambda: kept["array"].__dlpack__(),
        "ipc.event.get": lambda: xs.ipc.event.get(kept["event"]),
        "signal": lambda: kept["event"].signal(),
        "wait": lambda: kept["event"].wait(0),
        "done": lambda: kept["event"].done,
        "value": lambda: kept["event"].value,
        "fill": lambda: kept["queue"].fill(kept["memory"], b"x"),
        "copy": lambda: kept["queue"].copy(kept["memory"], kept["memory"]),
        "queue signal": lambda: kept["queue"].signal(kept["event"]),
        "queue wait": lambda: kept["queue"].wait(kept["event"]),
        "synchronize": lambda: kept["queue"].synchronize(1),
    }
    if "range" in kept:
        calls |= {
            "ipc.physical_memory.get": lambda: xs.ipc.physical_memory.get(kept["physical"]),
            "map": lambda: kept["range"].map(kept["physical"]),
            "unmap": lambda: kept["range"].unmap(0, kept["range"].nbytes),
            "set_access": lambda: kept["range"].set_access(0, 1, "r"),
            "mapped": lambda: kept["range"].mapped(),
            "range view": lambda: kept["range"].as_array(1, "uint8"),
        }
    wrong = []
    for name, call in calls.items():
        error, text = actions.outcome(call)
        if error != "ForkError":
            wrong.append(f"{name}: {error or 'works'} {text}")
        elif "spawn" not in text and "handle" not in text:
            wrong.append(f"{name}: does not say what to do")
    return wrong


@rule("3.9a", "A forked child may not use the parent's objects: ForkError says what to do instead")
def test_fork_use(pair: Pair) -> None:
    _everything(pair.exporter)
    with Child(method="fork") as child:
        assert child.call(_use_after_fork) == []


def _close_everything() -> bool:
    for name in ("array", "memory", "physical", "event", "range", "queue", "import"):
        if name in kept:
            kept[name].close()
            kept[name].close()
            assert kept[name].closed
    actions.drop()
    return True


@rule("3.9b", "Closing in a forked child never touches the parent's objects")
def test_fork_close(pair: Pair, peer: Child) -> None:
    _everything(pair.exporter)
    handle = None
    if all(xs.Device(device).has("ext_oneapi_ipc_memory") for device in (pair.exporter, pair.importer)):
        handle = actions.get("memory", "memory")
        peer.call(actions.open_, "opened", "memory", handle, pair.importer)
        kept["import"] = xs.ipc.memory.open(
            peer.call(actions.export, "theirs", "memory", pair.exporter, b"theirs"), device=pair.importer
        )
    with Child(method="fork") as child:
        assert child.call(_close_everything)
        if handle is not None:
            assert child.call(actions.attempt, actions.put, "memory", handle) == "InvalidArgumentError"
    assert read_bytes(kept["memory"], 6) == b"parent"
    if handle is not None:
        assert peer.call(actions.read, "opened", 6) == b"parent"
        assert peer.call(actions.importers, "theirs") == 1
        assert read_bytes(kept["import"], 6) == b"theirs"
        peer.call(actions.open_, "again", "memory", handle, pair.importer)
    kept["queue"].fill(kept["memory"], b"!")
    assert kept["queue"].signal(kept["event"]) == 1
    kept["queue"].synchronize(5)
    assert kept["event"].done
    if "range" in kept:
        assert len(kept["range"].mapped()) == 1
        kept["range"].unmap(0, kept["range"].nbytes)


@rule("3.9c", "A forked child may open handles anew where the driver permits, or is told that it does not")
def test_fork_open(pair: Pair, peer: Child) -> None:
    theirs = peer.call(actions.export, "theirs", "memory", pair.exporter, b"theirs")
    ours = actions.export("ours", "memory", pair.exporter, b"parent")
    with Child(method="fork") as child:
        for handle, content in ((theirs, b"theirs"), (ours, b"parent")):
            error, text = child.call(actions.outcome, actions.open_, "opened", "memory", handle)
            if error:  # what the driver does not permit
                assert error in ("ForkError", "FeatureNotSupportedError", "DeviceError"), text
                assert pair.exporter.partition(":")[0] not in ("native_cpu", "mock")
            else:
                assert child.call(actions.read, "opened", 6) == content
        child.kill()
    assert read_bytes(kept["ours"], 6) == b"parent"


# --- 10: threads ------------------------------------------------------------------------------------------------------


@rule("3.10a", "Many threads may open, use and close at once")
def test_threads_open(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    with Child() as fresh:  # whose very first open is by many threads
        handles = [fresh.call(actions.export, f"thing{each}", kind, pair.exporter) for each in range(8)]
        start = threading.Barrier(8)

        def work(thread: int) -> set[int]:
            seen = set()
            start.wait(10)
            for turn in range(24):
                with verbs(kind).open(handles[(turn * (thread + 1)) % 8], device=pair.importer) as thing:
                    seen.add(handles.index(bytes(thing.handle)))
            return seen

        with ThreadPoolExecutor(8) as pool:
            found = [job.result(30) for job in [pool.submit(work, thread) for thread in range(8)]]
        assert set().union(*found) == set(range(8))
        count = actions.processes if kind == "event" else actions.importers
        alone = 1 if kind == "event" else 0
        gc.collect()
        assert [fresh.call(count, f"thing{each}") for each in range(8)] == [alone] * 8
    xs.Device(pair.importer)
    with pytest.raises(xs.HandleExpiredError):
        verbs(kind).open(handles[0], device=pair.importer)
    nothing_left()


@rule("3.10b", "Many threads may export and put at once; of several puts of one handle one wins")
def test_threads_put(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    with make(kind, pair.exporter) as thing, ThreadPoolExecutor(6) as pool:

        def work() -> set[bytes]:
            seen = set()
            for _ in range(20):
                handle = verbs(kind).get(thing)
                seen.add(bytes(handle))
                verbs(kind).open(handle).close()
                verbs(kind).put(handle)
            return seen

        assert len(set().union(*[job.result(30) for job in [pool.submit(work) for _ in range(6)]])) == 120
        handle = verbs(kind).get(thing)
        start = threading.Barrier(6)

        def once() -> bool:
            start.wait(10)
            return not actions.attempt(verbs(kind).put, handle)

        assert sum(job.result(30) for job in [pool.submit(once) for _ in range(6)]) == 1
    nothing_left()


# --- 11: read_only ----------------------------------------------------------------------------------------------------


@rule("3.11a", "A read-only import gives no writable view and is no destination")
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
        memory.__dlpack__()  # an unversioned capsule cannot say it
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


@rule("3.11b", "A read-only import is mapped read-only where the host can access it")
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


@rule("3.11c", "With enforced_read_only an importer cannot get round it")
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


# --- pickling ---------------------------------------------------------------------------------------------------------


@rule("3.12a", "Objects pickle as plain bytes, and unpickling yields an import")
def test_pickling(pair: Pair, peer: Child, kind: str) -> None:
    actions.export("thing", kind, pair.exporter, b"" if kind == "event" else b"sent")
    thing = kept["thing"]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        name = f"received{protocol}"
        found = peer.call(actions.unpickle, name, pickle.dumps(thing, protocol))
        assert found == (type(thing).__name__, True)
        if kind != "event":
            assert peer.call(actions.read, name, 4) == b"sent"
    again = pickle.loads(pickle.dumps(thing))
    assert again.is_imported
    again.close()
    if kind == "memory":
        for part in (thing.slice(1, 2), thing.as_array(2, "uint8", 1)):
            assert peer.call(actions.unpickle, "part", pickle.dumps(part)) == (type(part).__name__, True)
        device = xs.Device(pair.exporter)
        assert pickle.loads(pickle.dumps(device)) == device
        assert peer.call(str, device) == str(device)


@rule("3.12b", "Pickling an import forwards the handle that it came from")
def test_forwarding(pair: Pair, peer: Child, other: Child, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    peer.call(actions.open_, "import", kind, handle, pair.importer)
    data = peer.call(actions.pickled, "import")
    assert other.call(actions.unpickle, "forwarded", data)[1]
    assert other.call(_handle_of, "forwarded") == handle
    peer.call(actions.drop)
    assert bytes(pickle.loads(data).handle) == handle


def _handle_of(name: str) -> bytes:
    return bytes(kept[name].handle)


@rule("3.12c", "A pickled object must be kept: else HandleExpiredError says so")
def test_kept(pair: Pair, peer: Child, kind: str) -> None:
    for data in (peer.call(_pickled_and_closed, kind, pair.exporter), _pickled_and_closed(kind, pair.exporter)):
        assert re.search("closed|kept|keep|alive", _unpickling(data))
    data = peer.call(_make_and_pickle, kind, pair.exporter)
    pickle.loads(data).close()
    peer.call(actions.drop, "dropped")
    assert re.search("closed|kept|keep|alive", _unpickling(data))


def _make_and_pickle(kind: str, device: str) -> bytes:
    kept["dropped"] = make(kind, device)
    return pickle.dumps(kept["dropped"])


@rule("3.12d", "Queue, Context and VirtualRange refuse to be pickled")
def test_not_pickled(pair: Pair) -> None:
    device = xs.Device(pair.exporter)
    with xs.Queue(device) as queue:
        things: list[Any] = [queue, device.context]
        if device.has("ext_oneapi_virtual_mem"):
            kept["range"] = xs.VirtualRange(granule(pair.exporter), device)
            things.append(kept["range"])
        for thing in things:
            with pytest.raises(TypeError):
                pickle.dumps(thing)


@rule("3.12e", "copy and deepcopy of resources raise TypeError")
def test_not_copied(pair: Pair, kind: str) -> None:
    with make(kind, pair.exporter) as thing:
        for function in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                function(thing)


@rule("3.12f", "Every error pickles, with everything it says")
def test_errors_pickle() -> None:
    from xpushare import ur

    names = ["InvalidArgumentError", "HandleExpiredError", "FeatureNotSupportedError", "RouteError", "PeerLostError",
             "OutOfMemoryError", "ForkError", "DeviceError", "XpuShareError"]  # fmt: skip
    bases = {
        "InvalidArgumentError": ValueError, "FeatureNotSupportedError": NotImplementedError,
        "RouteError": PermissionError,
        "PeerLostError": ConnectionError, "OutOfMemoryError": MemoryError, "ForkError": RuntimeError,
        "DeviceError": RuntimeError,
    }  # fmt: skip
    errors = [*(getattr(xs, name) for name in names), xs.InvalidHandleError, ur.URError]
    for error in errors:
        made = error("what", result=ur.Result.ERROR_INVALID_SIZE, native=7, reasons=("one", "two"))
        again = pickle.loads(pickle.dumps(made))
        assert type(again) is error
        assert (again.message, again.result, again.native, again.reasons) == ("what", made.result, 7, ("one", "two"))
        assert str(again) == str(made)
        assert isinstance(made, bases.get(error.__name__, xs.XpuShareError))
        assert isinstance(made, xs.XpuShareError)
