"""Array handles that were made with the key, and lie."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from array_peer import try_hostile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages import HEADER, VERSION, sealed
from messages import built_array as built
from mutations import expect_only

import xpushare as xs
from harness import Child
from xpushare.sharing.handle import FIELDS, SEAL_NBYTES, fields_of, handle_of, keyed_hash, pack


@pytest.fixture(scope="module")
def shared() -> Iterator[xs.ArrayHandle]:
    array = xs.empty(4, isolated=True)
    np.asarray(array)[:] = 1
    with xs.share(array) as handle:
        yield handle


def test_the_builder_builds_what_share_does(shared: xs.ArrayHandle) -> None:
    assert built(shared.handle) == bytes(shared)


TOP = (1 << 63) - 1


def structure(**changes: Any) -> bytes:
    """A structure's description in the handle; without changes, a good one."""
    good = {"names": ["a"], "formats": ["<f8"], "offsets": [0], "itemsize": 8, "aligned": False}
    return json.dumps({**good, **changes}).encode()


def test_an_unchanged_structure_is_good(shared: xs.ArrayHandle) -> None:
    assert xs.attach(built(shared.handle, dtype=structure())).dtype == np.dtype([("a", "f8")])


LIES: dict[str, dict[str, Any]] = {
    "one element more": {"shape": (5,)},
    "many elements": {"shape": (1 << 60,)},
    "more bytes than 64 bits say": {"shape": ((1 << 64) - 1,)},
    "dimensions whose product overflows": {"shape": (1 << 32, 1 << 32), "strides": (0, 0)},
    "broadcast beyond what NumPy can count": {"shape": (1 << 62, 8), "strides": (0, 0)},
    "no element but a huge dimension": {"shape": (0, (1 << 64) - 1), "strides": (8, 8)},
    "stride too large": {"shape": (2,), "strides": (32,)},
    "stride of 63 bits": {"shape": (2,), "strides": (TOP,)},
    "strides that cancel out": {"shape": (3, 3), "strides": (TOP, -TOP)},
    "negative stride from the start": {"strides": (-8,)},
    "offset at the end": {"offset": 32},
    "offset odd and over": {"offset": 1},
    "offset huge": {"offset": (1 << 64) - 8},
    "item size another": {"itemsize": 4},
    "item size none": {"itemsize": 0, "dtype": b'"<f8"'},
    "items larger than the memory": {"dtype": b'"|S40"', "itemsize": 40, "shape": (1,), "strides": (40,)},
    "objects": {"dtype": b'"|O"'},
    "objects in a structure": {"dtype": b'{"names":["a"],"formats":["|O"],"offsets":[0],"itemsize":8,"aligned":false}'},
    "no JSON": {"dtype": b"<f8"},
    "no UTF-8": {"dtype": b'"\xff\xfe"'},
    "no dtype text": {"dtype": b""},
    "null": {"dtype": b"null"},
    "a number": {"dtype": b"8"},
    "a list of one": {"dtype": b'["<f8"]'},
    "an expression": {"dtype": b'"(2,)f4,f4"'},
    "a NumPy name": {"dtype": b'"float64"'},
    "a function of ml_dtypes": {"dtype": b'"finfo"', "itemsize": 8},
    "an unknown field": {"dtype": structure(names=["a"], formats=["<f8"], x=1)},
    "a field missing": {"dtype": b'{"names":["a"],"formats":["<f8"],"offsets":[0]}'},
    "fields twice": {"dtype": structure(names=["a", "a"], formats=["<f4", "<f4"], offsets=[0, 4])},
    "a field beyond the item": {"dtype": structure(offsets=[4])},
    "a negative offset": {"dtype": structure(offsets=[-8])},
    "a negative item size": {"dtype": structure(itemsize=-8)},
    "elements that are sub-arrays": {"dtype": b'["<f4",[2]]'},
    "a sub-array of negative length": {"dtype": b'["<f8",[-1]]'},
    "a sub-array of terabytes": {"dtype": b'["<f8",[1099511627776]]'},
    "nested too deeply": {"dtype": b"[" * 40 + b'"<f8"' + b",[1]]" * 40},
    "nested very deeply": {"dtype": b"[" * 20000 + b'"<f8"' + b",[1]]" * 9000},
    "a string of 2 GiB": {"dtype": b'"|S2147483648"', "itemsize": 1 << 31},
    "a date of no unit": {"dtype": b'"<M8[parsec]"'},
    "an event that is not there": {"events": 1},
    "a version of the future": {"version": VERSION + 1},
    "another magic": {"magic": b"XPUSHARE"},
    "reserved bits": {"reserved0": 1},
    "more reserved bits": {"reserved1": 1},
    "too many dimensions": {"shape": (1,) * 65, "strides": (8,) * 65},
    "fewer dimensions than there are": {"shape": (2, 2), "strides": (16, 8), "ndim": 1},
    "another length": {"length": 400},
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused(peer: Child, shared: xs.ArrayHandle, lie: str) -> None:
    raw = built(shared.handle, **LIES[lie])
    with pytest.raises(xs.InvalidHandleError):
        xs.attach(raw)
    assert peer.call(try_hostile, raw) == "InvalidHandleError"


@pytest.mark.parametrize("mapped", [False, True], ids=["not mapped yet", "mapped already"])
@pytest.mark.parametrize(
    "change",
    [
        {"nbytes": 1 << 40},
        {"nbytes": 33},
        {"offset": 1 << 40},
        {"offset": 4096},
        {"nbytes": 0, "offset": 1 << 63},
        {"object": 77},
        {"nonce": bytes(16)},
        {"kind": 3},
        {"flags": 1},
        {"flags": 2},
        {"generation": 1 << 40},
        {"entry": 200_000},
    ],
    ids=str,
)
def test_a_memory_handle_that_lies(peer: Child, shared: xs.ArrayHandle, change: dict[str, Any], mapped: bool) -> None:
    """Sealed anew, inside and out: it is compared with the exporter's table, also when the memory is mapped here."""
    if mapped:
        peer.call(_keep, bytes(shared))
    fields = {**{name: getattr(fields_of(shared.handle), name) for name, _ in FIELDS}, **change}
    body = pack(**fields)
    raw = body + keyed_hash(body)
    lying = handle_of(raw)
    nbytes = fields["nbytes"]
    count = max(1, min(nbytes // 8, 1 << 50))
    raw = built(lying, shape=(count,))
    answer = peer.call(try_hostile, raw)
    peer.call(_forget)
    if mapped and set(change) & {"object", "nonce"}:
        assert answer in (
            "InvalidHandleError",
            "attached",
        )  # the very array: these two only guard the way to the memory
    else:
        assert answer in ("InvalidHandleError", "HandleExpiredError")


def _keep(raw: bytes) -> None:
    from harness import kept

    kept["mapped"] = xs.attach(raw)


def _forget() -> None:
    from harness import kept

    kept.clear()


def test_events_that_lie(peer: Child, shared: xs.ArrayHandle) -> None:
    with xs.Event("native_cpu:0", enable_ipc=True) as event:
        good = xs.ipc.event.get(event)
        assert peer.call(try_hostile, built(shared.handle, event=good)) == "attached"
        foreign = peer.call(_event)
        physical = xs.ipc.physical_memory.get(xs.PhysicalMemory(1 << 16, "native_cpu:0", enable_ipc=True))
        for wrong in (foreign, shared.handle, physical, bytes(256), bytes(good)[:-1] + bytes([bytes(good)[-1] ^ 1])):
            for attach in (try_hostile, lambda raw: peer.call(try_hostile, raw)):
                assert attach(built(shared.handle, event=wrong)) == "InvalidHandleError"
        xs.ipc.event.put(good)
        xs.ipc.physical_memory.put(physical)
        assert peer.call(try_hostile, built(shared.handle, event=good)) == "HandleExpiredError"
    assert peer.call(try_hostile, built(good)) == "InvalidHandleError"


def _event() -> bytes:
    from harness import kept

    kept["event"] = xs.Event("native_cpu:0", enable_ipc=True)
    return bytes(xs.ipc.event.get(kept["event"]))


def test_every_flipped_bit_and_every_length(shared: xs.ArrayHandle) -> None:
    expect_only(bytes(shared))


@pytest.mark.parametrize("wrong", ["", "not a handle", "ä", "A" * 508, " " + "A" * 507])
def test_text_that_is_no_handle(wrong: str) -> None:
    with pytest.raises(xs.InvalidHandleError):
        xs.attach(wrong)


@pytest.mark.parametrize("wrong", [None, 3, 1.5, ["a"], object()])
def test_what_is_no_handle_at_all(wrong: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        xs.attach(wrong)


def test_another_users_key(shared: xs.ArrayHandle, tmp_path: Any) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    with Child(env={"XPUSHARE_KEY_FILE": str(key)}) as stranger:
        assert stranger.call(try_hostile, bytes(shared)) == "InvalidHandleError"


def test_more_elements_than_there_is_memory_for(peer: Child, shared: xs.ArrayHandle) -> None:
    """That is not a lie: they are one and the same."""
    raw = built(shared.handle, shape=(4, 1 << 40), strides=(8, 0), dtype=b'"<f8"', itemsize=8)
    assert peer.call(try_hostile, raw) == "attached"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fuzz(peer: Child, shared: xs.ArrayHandle, data: st.DataObject) -> None:
    """Anything sealed either is refused or is an array inside its memory: the other process reads it and lives."""
    body = bytearray(bytes(shared)[:-SEAL_NBYTES])
    places = [
        range(HEADER.size),
        range(HEADER.size + 256, len(body)),
    ]  # not the memory handle: it has a seal of its own
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.sampled_from([place for span in places for place in span]))
        body[at] = data.draw(st.sampled_from([0, 1, 2, 4, 8, 127, 128, 255]) | st.integers(0, 255))
    if data.draw(st.booleans()):
        struct.pack_into("<I", body, 12, len(body) + SEAL_NBYTES)
    assert peer.call(try_hostile, sealed(bytes(body))) in ("InvalidHandleError", "HandleExpiredError", "attached")


numbers = st.integers(0, 6) | st.sampled_from([1 << 20, 1 << 31, 1 << 32, 1 << 62, TOP, (1 << 64) - 1])
steps = st.integers(-40, 40) | st.sampled_from([TOP, -TOP, -TOP - 1, 1 << 32, -(1 << 33)])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dimensions=st.lists(st.tuples(numbers, steps), max_size=5),
    offset=st.integers(0, 40) | st.sampled_from([TOP, (1 << 64) - 1]),
)
def test_fuzz_geometry(shared: xs.ArrayHandle, dimensions: list[tuple[int, int]], offset: int) -> None:
    """Let through exactly if every element is inside, by an independent count."""
    shape, strides = tuple(length for length, _ in dimensions), tuple(step for _, step in dimensions)
    raw = built(shared.handle, shape=shape, strides=strides, offset=offset, dtype=b'"|u1"', itemsize=1)
    corners = [0]
    for length, step in dimensions:
        corners = [corner + place * step for corner in corners for place in ({0, length - 1} if length else {0})]
    inside = all(0 <= offset + corner < 32 for corner in corners) if 0 not in shape else offset <= 32
    try:
        array = xs.attach(raw)
    except xs.InvalidHandleError:
        counted = 1
        for length in shape:
            counted *= length or 1
        assert not inside or counted >= 1 << 63
        return
    assert inside
    if array.nbytes < 1 << 24:
        np.asarray(array).tobytes()
