"""The handle: its bytes, its seal, its refusals."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import string
import struct
import uuid
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from peering import KINDS, exported, holdings, make, nothing_left, verbs

import xpushare as xs
from harness import Child, kept
from xpushare import _native
from xpushare.sharing import handle as handles
from xpushare.sharing import identity, layout
from xpushare.sharing.handle import FIELDS, Handle, fields_of, handle_of, keyed_hash, pack

DOC = Path(__file__).parents[2] / "docs" / "layout.md"


def table_of(heading: str) -> list[tuple[int, int, str]]:
    """(at, bytes, name) of the first table below a heading of docs/layout.md."""
    text = DOC.read_text().split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+)", text, re.MULTILINE)
    return [(int(at), int(size), name) for at, size, name in rows]


@pytest.fixture
def memory() -> Any:
    with xs.malloc_device(4096, "native_cpu:0") as memory:
        yield memory


@pytest.fixture
def handle(memory: xs.Memory) -> Any:
    handle = xs.ipc.memory.get(memory)
    yield handle
    xs.ipc.memory.put(handle)


def seal(body: bytes) -> Handle:
    raw = body + keyed_hash(body)
    return handle_of(raw)


def reseal(handle: Handle, **changes: Any) -> bytes:
    """The handle's bytes with other fields, sealed again with the user's key."""
    values = {name: getattr(fields_of(handle), name) for name, _code in FIELDS} | changes
    body = handles._STRUCT.pack(*values.values())
    return body + handles.keyed_hash(body)


# --- format ---------------------------------------------------------------------------------------


def test_the_documented_table_is_the_declared_format() -> None:
    at = 0
    declared = []
    for name, code in FIELDS:
        size = struct.calcsize("<" + code)
        declared.append((at, size, name.rstrip("0123456789") if name.startswith("reserved") else name))
        at += size
    declared.append((at, handles.SEAL_NBYTES, "seal"))
    assert table_of("Handle, 256 bytes") == declared
    assert at + handles.SEAL_NBYTES == Handle.NBYTES == 256
    assert {name: at for at, _size, name in declared} == {
        name.removeprefix("handle."): at
        for name, at in _native.LAYOUT.items()
        if name.startswith("handle.") and not re.search(r"reserved|size", name)
    } | {"reserved": 168}
    assert _native.LAYOUT["handle.size"] == Handle.NBYTES


def test_the_documented_message_begins_as_the_declared_struct() -> None:
    declared = [
        (at, struct.calcsize("<" + code), name.rstrip("01")) for name, (at, code) in _native.STRUCTS["message"].items()
    ]
    assert table_of("Array handle") == declared
    end = declared[-1][0] + declared[-1][1]
    assert f"| {end} | 256 each | memory handles |" in DOC.read_text()
    memory = xs.empty(1, "u1")
    with xs.share(memory) as handle:
        assert bytes(handle)[end : end + Handle.NBYTES] == bytes(handle.handle)


def test_the_documented_tables_of_the_table_are_the_declared_structs() -> None:
    text = DOC.read_text().split("## Table (memfd", 1)[1].split("\n## ", 1)[0]
    _, header, entry = text.split("at | bytes |")
    for rows, layout_struct in ((header, layout.TABLE), (entry, layout.ENTRY)):
        found = [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", rows, re.MULTILINE)]
        ends = [at + size for at, size in found]
        assert [at for at, _size in found[1:]] == ends[:-1], "without gaps"
        assert ends[-1] == layout_struct.size


def test_the_fields_are_where_the_table_says(memory: xs.Memory) -> None:
    handle = xs.ipc.memory.get(memory.slice(64, 100), read_only=True)
    raw = bytes(handle)
    at = {name: raw[start : start + size] for start, size, name in table_of("Handle, 256 bytes")}

    def number(name: str) -> int:
        return int.from_bytes(at[name], "little")

    assert at["magic"] == b"XPUSHARE"
    assert number("version") == 4
    assert number("kind") == 1
    assert number("flags") == 1
    assert at["backend"] == b"native_cpu".ljust(16, b"\0")
    assert at["device_uuid"] == uuid.UUID(memory.device.uuid).bytes
    assert at["boot_id"] == uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    assert number("pid") == os.getpid()
    assert number("pid_namespace") == os.stat("/proc/self/ns/pid").st_ino
    assert number("net_namespace") == os.stat("/proc/self/ns/net").st_ino
    assert "xpushare-table" in os.readlink(f"/proc/self/fd/{number('table_fd')}")
    assert (number("offset"), number("nbytes"), number("exposed_nbytes")) == (64, 100, 4096)
    xs.ipc.memory.put(handle)


def test_properties(memory: xs.Memory) -> None:
    handle = xs.ipc.memory.get(memory.slice(64, 100), read_only=True)
    assert handle.kind == "memory"
    assert handle.backend == "native_cpu"
    assert handle.device_uuid == memory.device.uuid
    assert (handle.nbytes, handle.exposed_nbytes, handle.read_only) == (100, 4096, True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert handle.exporter == (os.getpid(), boot, os.stat("/proc/self/ns/pid").st_ino)
    assert str(os.getpid()) in repr(handle)
    assert "memory" in repr(handle)
    assert "read-only" in repr(handle)
    xs.ipc.memory.put(handle)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    with make(kind, "native_cpu:0") as thing:
        handle = verbs(kind).get(thing)
        assert handle.kind == kind
        assert not handle.read_only
        assert kind in repr(handle)
        verbs(kind).put(handle)


# --- bytes and text -------------------------------------------------------------------------------


def test_bytes_and_text_round_trip(handle: Handle) -> None:
    raw, text = bytes(handle), str(handle)
    assert len(raw) == 256
    assert set(text) <= set(string.ascii_letters + string.digits + "-_")
    assert json.loads(json.dumps(text)) == text
    for spelling in (raw, text, bytearray(raw), memoryview(raw), array("B", raw), pickle.PickleBuffer(raw), handle):
        again = Handle(spelling)
        assert again == handle
        assert hash(again) == hash(handle)
        assert (bytes(again), str(again)) == (raw, text)


def test_bytes_that_are_gone() -> None:
    released = memoryview(b"abc")
    released.release()
    with xs.malloc_host(1) as memory:
        for use in (
            Handle, xs.ArrayHandle, xs.attach, xs.ipc.memory.open, xs.ipc.memory.put,
            lambda pattern: xs.Queue("native_cpu:0").fill(memory, pattern),
        ):  # fmt: skip
            with pytest.raises(xs.InvalidArgumentError, match="released"):
                use(released)


def test_text_goes_through_argv_and_environment(handle: Handle, memory: xs.Memory) -> None:
    memoryview(memory)[:5] = b"hello"
    with Child(env={"HANDLE": str(handle)}) as child:
        assert child.call(lambda: bytes(memoryview(xs.ipc.memory.open(os.environ["HANDLE"]))[:5])) == b"hello"


def test_equality_is_by_content(memory: xs.Memory, handle: Handle) -> None:
    other = xs.ipc.memory.get(memory)
    assert other != handle
    assert len({handle, other, Handle(bytes(other)), Handle(str(handle))}) == 2
    assert handle != bytes(handle)
    xs.ipc.memory.put(other)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_as_plain_bytes(handle: Handle, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(handle, protocol)) == handle
    assert copy.copy(handle) == handle
    assert copy.deepcopy(handle) == handle


@pytest.mark.parametrize("kind", ["memory", "array", "tree"])
def test_a_pickle_is_verified_when_it_is_loaded(handle: Handle, kind: str) -> None:
    """What it says is not a handle here: unpickling does not raise, each use does."""
    with xs.empty(3) as array, xs.share([array] if kind == "tree" else array) as shared:
        whole: Any = handle if kind == "memory" else shared
        raw = bytes(whole)
        altered = pickle.dumps(whole, 5).replace(raw, raw[:-1] + bytes([raw[-1] ^ 1]))
        found = pickle.loads(altered)
        assert pickle.dumps(found, 5) == altered, "it can be passed on"
        assert "seal" in repr(found)
        assert found == pickle.loads(altered) != whole
        assert not hasattr(found, "unknown")
        uses: list[Callable[[], object]] = [lambda: found.nbytes, lambda: type(whole)(bytes(found))]
        if kind == "memory":
            uses += [lambda: xs.ipc.memory.open(found), lambda: xs.ipc.memory.put(found), lambda: found.exporter]
        else:
            uses += [lambda: xs.attach(found), lambda: found.handle, lambda: found.dtype, found.__enter__]
        for use in uses:
            with pytest.raises(xs.InvalidHandleError, match="seal"):
                use()


# --- refusals -------------------------------------------------------------------------------------


def test_every_flipped_bit_is_refused(handle: Handle) -> None:
    raw = bytes(handle)
    with nothing_left():
        for bit in range(8 * len(raw)):
            bad = bytearray(raw)
            bad[bit // 8] ^= 1 << bit % 8
            with pytest.raises(xs.InvalidHandleError):
                xs.ipc.memory.open(bytes(bad))
        assert xs.ipc.memory.open(raw).nbytes == 4096


def test_every_flipped_bit_is_refused_by_another_process(handle: Handle, peer: Child) -> None:
    def attempt(raw: bytes) -> list[int]:
        taken = []
        for bit in range(8 * len(raw)):
            bad = bytearray(raw)
            bad[bit // 8] ^= 1 << bit % 8
            try:
                xs.ipc.memory.open(bytes(bad))
            except xs.InvalidHandleError:
                continue
            taken.append(bit)
        return taken

    assert peer.call(attempt, bytes(handle)) == []


def test_a_text_as_bytes_is_refused_with_advice(handle: Handle) -> None:
    with xs.share(xs.zeros(3)) as of_array:
        for refused in (lambda: Handle(str(handle).encode()), lambda: xs.attach(str(of_array).encode())):
            with pytest.raises(xs.InvalidHandleError, match="passed as a str"):
                refused()


def test_every_other_text_is_refused(handle: Handle) -> None:
    text = str(handle)
    alphabet = string.ascii_letters + string.digits + "-_"
    for at in range(len(text)):
        other = alphabet[(alphabet.index(text[at]) + 1) % 64]
        with pytest.raises(xs.InvalidHandleError):
            Handle(text[:at] + other + text[at + 1 :])
    # The last character has two bits that say nothing: other spellings of the same bytes are not a handle either.
    spellings = [text[:-1] + c for c in alphabet if c != text[-1]]
    spellings += [text + "=", text + "==", text + "A", text[:-1], text[:9] + "\n" + text[9:]]
    spellings += [f"{text} {text}", text.replace("_", "/").replace("-", "+") + "/"]
    for spelling in spellings:
        with pytest.raises(xs.InvalidHandleError):
            Handle(spelling)


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", " {}", "\t{} \n"])
def test_white_space_around_a_text_is_none_of_it(handle: Handle, around: str) -> None:
    """As a line of a file or of a program's output has it."""
    assert Handle(around.format(handle)) == handle


@pytest.mark.parametrize("length", [0, 1, 223, 224, 255, 257, 512, 4096])
def test_wrong_length(handle: Handle, length: int) -> None:
    raw = (bytes(handle) * 16)[:length]
    with pytest.raises(xs.InvalidHandleError, match=f"256 bytes, this has {length}"):
        Handle(raw)
    with pytest.raises(xs.InvalidHandleError):
        Handle(handles.encode_text(raw))


@pytest.mark.parametrize("thing", [None, 7, 1.5, object(), ["a"], ("a",), {}, xs], ids=lambda it: type(it).__name__)
def test_what_is_no_handle_at_all(thing: Any) -> None:
    for call in (Handle, xs.ipc.memory.open, xs.ipc.memory.put, xs.ipc.event.open, xs.ipc.physical_memory.open):
        with pytest.raises(xs.InvalidArgumentError, match=type(thing).__name__):
            call(thing)


def test_memory_is_no_handle_although_its_bytes_can_be_read(memory: xs.Memory, handle: Handle) -> None:
    memoryview(memory)[:256] = bytes(handle)
    with pytest.raises(xs.InvalidArgumentError, match=r"not xpushare\.Memory"):
        Handle(memory.slice(0, 256))


@pytest.mark.parametrize("text", ["", "x", "é" * 342, "\0" * 342, "%" * 342, " ", "😀"], ids=ascii)
def test_what_is_no_text_of_a_handle(text: str) -> None:
    with pytest.raises(xs.InvalidHandleError):
        Handle(text)


def test_each_refusal_has_its_own_message(handle: Handle) -> None:
    raw = bytes(handle)
    cases = {
        "short": raw[:-1],
        "magic": b"XPUSHARD" + raw[8:],
        "version": reseal(handle, version=1),
        "version unsealed": raw[:8] + b"\1" + raw[9:],
        "seal": raw[:-1] + bytes([raw[-1] ^ 1]),
        "kind": reseal(handle, kind=9),
        "boot": reseal(handle, boot_id=bytes(16)),
    }
    messages = {}
    with nothing_left():
        for name, bad in cases.items():
            with pytest.raises(xs.InvalidHandleError) as caught:
                xs.ipc.memory.open(bad)
            messages[name] = str(caught.value)
    assert messages["version"] == messages["version unsealed"]
    assert "version 1" in messages["version"]
    assert "seal" in messages["seal"]
    assert "boot" in messages["boot"]
    del messages["version unsealed"]
    assert len(set(messages.values())) == len(messages)


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 2**31},
        {"table_fd": 2**31},
        {"entry": 1 << 18},
        {"entry": 2**32 - 1},
        {"kind": 0},
        {"kind": 4},
        {"kind": 65535},
        {"flags": 4},
        {"flags": 1 << 31},
        {"reserved0": 1},
        {"reserved1": b"\1" + bytes(55)},
        {"backend": b"\xff" * 16},
    ],
    ids=str,
)
def test_what_this_version_does_not_know_is_refused_although_sealed(handle: Handle, changes: dict[str, Any]) -> None:
    with pytest.raises(xs.InvalidHandleError, match="does not know"):
        Handle(reseal(handle, **changes))


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_is_refused(kind: str) -> None:
    with make(kind, "native_cpu:0") as thing:
        handle = verbs(kind).get(thing)
        for other in KINDS:
            if other == kind:
                continue
            for verb in (verbs(other).open, verbs(other).put):
                with pytest.raises(xs.InvalidHandleError, match=f"handle of {kind}, not of {other}"):
                    verb(handle)
        verbs(kind).put(handle)


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1},
        {"offset": 2**64 - 1},
        {"nbytes": 4097},
        {"nbytes": 2**64 - 1},
        {"object": 2**40},
        {"nonce": bytes(16)},
        {"entry": (1 << 18) - 1},
        {"generation": 0},
        {"generation": 2**63},
        {"backend": b"mock".ljust(16, b"\0")},
        {"backend": b"*".ljust(16, b"\0")},
        {"backend": b"a,b;c:d".ljust(16, b"\0")},
        {"device_uuid": bytes(16)},
        {"kind": 2},
        {"kind": 3},
    ],
    ids=lambda changes: next(f"{name}-{value!r:.12}" for name, value in changes.items()),
)
@pytest.mark.parametrize("where", ["here", "peer"])
def test_what_the_key_holder_makes_up_is_checked_against_the_real_object(
    handle: Handle, peer: Child, where: str, changes: dict[str, Any]
) -> None:
    # The seal is good: another process of the same user may be confused, or hostile.
    bad = reseal(handle, **changes)
    kind = handles.KINDS[changes.get("kind", 1)]

    def attempt(raw: bytes) -> None:
        with nothing_left():
            try:
                verbs(kind).open(raw)
            except (xs.InvalidArgumentError, xs.HandleExpiredError):
                return
        raise AssertionError("it was opened")

    def warm(raw: bytes) -> None:
        kept["warm"] = xs.ipc.memory.open(raw)

    if where == "here":
        attempt(bad)
    else:
        peer.call(warm, bytes(handle))
        peer.call(attempt, bad)


def test_nothing_is_left_by_a_refused_first_open(handle: Handle) -> None:
    bad = [reseal(handle, offset=1), bytes(handle)[:-1], reseal(handle, generation=2**60)]

    with Child() as child:
        child.call(_refuse_all, bad)
        assert child.call(_memory_mappings) == 0


def _memory_mappings() -> int:
    from peering import mappings

    return mappings().count("xpushare-memory")


def _refuse_all(raws: list[bytes]) -> None:
    for raw in raws:
        try:
            xs.ipc.memory.open(raw)
        except xs.XpuShareError:
            continue
        raise AssertionError("it was opened")


def test_the_key_of_another_user(tmp_path: Path, handle: Handle) -> None:
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    with Child(env={"XPUSHARE_KEY_FILE": str(key)}) as child:

        def attempt(raw: bytes) -> tuple[str, bool]:
            from xpushare.sharing import node

            try:
                xs.ipc.memory.open(raw)
            except xs.InvalidHandleError as error:
                return str(error), node.current().table_if_any is None and not node.current().peers.statistics()[
                    "peers"
                ]
            raise AssertionError("it was opened")

        message, untouched = child.call(attempt, bytes(handle))
        assert "key" in message
        assert "XPUSHARE_KEY_FILE" in message
        assert untouched
        foreign = child.call(lambda: bytes(exported("native_cpu:0")))
        with pytest.raises(xs.InvalidHandleError, match="key"):
            xs.ipc.memory.open(foreign)


def test_the_same_key_file_makes_two_runtime_folders_agree(tmp_path: Path, handle: Handle) -> None:
    key = tmp_path / "key"
    key.write_bytes(identity.user_key())
    key.chmod(0o600)
    with Child(env={"XPUSHARE_KEY_FILE": str(key), "XPUSHARE_RUNTIME_DIR": str(tmp_path / "run")}) as child:
        assert child.call(lambda raw: xs.ipc.memory.open(raw).nbytes, bytes(handle)) == 4096


def test_another_boot() -> None:
    def pretend() -> bytes:
        from xpushare.common import system

        system.boot_ids[:] = [bytes(range(16))]
        return bytes(exported("native_cpu:0"))

    with Child() as child:
        raw = child.call(pretend)
        with nothing_left(), pytest.raises(xs.InvalidHandleError, match="another host, or from before the last boot"):
            xs.ipc.memory.open(raw)


# --- properties -----------------------------------------------------------------------------------

FIELD_VALUES = {
    "kind": st.sampled_from([1, 2, 3]),
    "flags": st.integers(0, 3),
    "backend": st.sampled_from([b"native_cpu", b"cuda", b"mock"]).map(lambda name: name.ljust(16, b"\0")),
    "device_uuid": st.binary(min_size=16, max_size=16),
    "pid_namespace": st.integers(0, 2**64 - 1),
    "pid": st.integers(0, 2**31 - 1),
    "table_fd": st.integers(0, 2**31 - 1),
    "cookie": st.binary(min_size=16, max_size=16),
    "generation": st.integers(0, 2**64 - 1),
    "entry": st.integers(0, 2**18 - 1),
    "nonce": st.binary(min_size=16, max_size=16),
    "object": st.integers(0, 2**64 - 1),
    "offset": st.integers(0, 2**64 - 1),
    "nbytes": st.integers(0, 2**64 - 1),
    "exposed_nbytes": st.integers(0, 2**64 - 1),
    "net_namespace": st.integers(0, 2**64 - 1),
}
sealed = st.fixed_dictionaries(FIELD_VALUES).map(lambda values: seal(pack(**values)))
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], database=None)


@relaxed
@given(st.fixed_dictionaries(FIELD_VALUES))
def test_whatever_is_sealed_parses_to_the_same_fields(values: dict[str, Any]) -> None:
    handle = seal(pack(**values))
    for again in (Handle(bytes(handle)), Handle(str(handle)), pickle.loads(pickle.dumps(handle))):
        assert again == handle
        assert {name: getattr(fields_of(again), name) for name in values} == values
        repr(again)


@relaxed
@given(sealed, st.integers(0, 255), st.integers(1, 255))
def test_no_altered_byte_passes(handle: Handle, at: int, change: int) -> None:
    raw = bytearray(bytes(handle))
    raw[at] ^= change
    with pytest.raises(xs.InvalidHandleError):
        Handle(raw)


@relaxed
@given(st.binary(max_size=600))
@example(b"XPUSHARE" + bytes(248))
def test_arbitrary_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(xs.InvalidHandleError):
        xs.ipc.memory.open(raw)


@relaxed
@given(st.text(max_size=400))
def test_arbitrary_text_is_refused(text: str) -> None:
    with pytest.raises(xs.InvalidHandleError):
        xs.ipc.memory.open(text)


@settings(relaxed, max_examples=80, phases=[Phase.generate])  # a failure says enough as it is
@given(
    st.fixed_dictionaries(
        FIELD_VALUES
        | {
            "backend": st.just(b"native_cpu".ljust(16, b"\0")),
            "device_uuid": st.builds(lambda: uuid.UUID(xs.Device("native_cpu:0").uuid).bytes),
            "pid_namespace": st.sampled_from([os.stat("/proc/self/ns/pid").st_ino, 1]),
            "net_namespace": st.sampled_from([os.stat("/proc/self/ns/net").st_ino, 1]),
            "pid": st.sampled_from([os.getpid(), os.getppid(), 0, 1, 2**31 - 1]),
            "table_fd": st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
        }
    )
)
def test_made_up_handles_open_nothing(values: dict[str, Any]) -> None:
    # Right key, right boot and device, and everything else invented: an error of ours, never a crash, and nothing left.
    handle = seal(pack(**values))
    before = holdings()
    with pytest.raises(xs.XpuShareError):
        verbs(handle.kind).open(handle)
    assert holdings() == before
