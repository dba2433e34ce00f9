"""Section 6: sharing another process's memory again, and taking ownership of it."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import os
import pickle
from contextlib import ExitStack
from typing import Any, cast

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.harness import TIMEOUT, Child, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

NBYTES = 64


def _array(device: str, value: int) -> xs.SharedArray:
    array = xs.empty(NBYTES, "u1", device=device)
    actions.write_bytes(array.memory, bytes([value]) * NBYTES)
    return array


def _value(array: xs.SharedArray) -> int:
    found = actions.read_bytes(array.memory, NBYTES, array.ptr - array.memory.ptr)
    assert found == found[:1] * NBYTES
    return found[0]


def _tree(device: str) -> dict[str, Any]:
    memory = xs.malloc_device(2 * NBYTES, device)
    actions.write_bytes(memory, b"\1" * NBYTES + b"\2" * NBYTES)
    parts = [memory.as_array(NBYTES, "u1", NBYTES * at) for at in range(2)]
    return {"parts": parts, "other": _array(device, 3), "text": "kept"}


def _shared(name: str, device: str, read_only: bool = False) -> bytes:
    kept[name] = xs.share(_tree(device), read_only=read_only)
    return bytes(kept[name])


def _published(name: str, device: str) -> int:
    kept[name] = _tree(device)
    return xs.publish(name, kept[name])


def _attach(name: str, message: bytes, device: str, **options: Any) -> Any:
    kept[name] = xs.attach(message, device=device, **options)
    return _values(name)


def _values(name: str) -> Any:
    found = kept[name]
    if isinstance(found, xs.SharedArray):
        return _value(found)
    return [_value(each) for each in (*found["parts"], found["other"])]


def _look_up(name: str, device: str, kept_as: str, own: bool) -> Any:
    return _attach(kept_as, bytes(xs.lookup(name, timeout=TIMEOUT)), device, own=own)


def _share(name: str, kept_as: str) -> bytes:
    kept[kept_as] = xs.share(kept[name])
    return bytes(kept[kept_as])


def _close(name: str) -> None:
    kept.pop(name).close()


def _publish(name: str, source: str) -> int:
    return xs.publish(name, kept[source], replace=True)


def _error(name: str, **options: Any) -> str:
    try:
        xs.share(kept[name], **options).close()
    except xs.XpuShareError as error:
        return type(error).__name__
    return "shared"


@rule("6.15")
def test_heirs(pair: Pair, peer: Child, other: Child) -> None:
    name = f"conformance-heir-{os.getpid()}"
    with Child() as first:
        version = first.call(_published, name, pair.exporter)
        assert peer.call(_look_up, name, pair.importer, "own", True) == [1, 2, 3]
        first.kill()
    with pytest.raises(TimeoutError):
        xs.lookup(name, timeout=0)
    assert peer.call(_publish, name, "own") > version
    try:
        assert other.call(_look_up, name, pair.importer, "theirs", False) == [1, 2, 3]
        message = peer.call(_share, "own", "handle")
        assert other.call(_attach, "more", message, pair.importer) == [1, 2, 3]
        assert peer.pid == xs.ArrayHandle(message).handles[0].exporter.pid
        data = peer.call(_pickle_of, "own")
        assert other.call(_unpickle, "again", data) == 3
        peer.call(actions.drop, "own")
        assert other.call(_values, "theirs") == [1, 2, 3]
    finally:
        peer.call(xs.unpublish, name)


def _pickle_of(name: str) -> bytes:
    return pickle.dumps(kept[name]["other"])


def _unpickle(name: str, data: bytes) -> int:
    kept[name] = pickle.loads(data)
    return _value(kept[name])


@rule("6.16")
def test_chain(pair: Pair) -> None:
    with ExitStack() as ended:
        last = ended.enter_context(Child())
        message = last.call(_shared, "handle", pair.exporter)
        for _ in range(3):
            heir = ended.enter_context(Child())
            assert heir.call(_attach, "own", message, pair.importer, own=True) == [1, 2, 3]
            last.kill()
            message, last = heir.call(_share, "own", "handle"), heir
        assert _attach("end", message, pair.importer) == [1, 2, 3]
        last.kill()
    assert _values("end") == [1, 2, 3]


@rule("6.17")
def test_no_more_writable(pair: Pair, peer: Child, other: Child) -> None:
    with Child() as first:
        try:
            read_only = first.call(_shared, "read only", pair.exporter, True)
            peer.call(_attach, "own", read_only, pair.importer, own=True)
        except xs.FeatureNotSupportedError:  # the device cannot map memory read-only
            read_only = b""
        message = first.call(_shared, "writable", pair.exporter)
        peer.call(_attach_part, "part", message, pair.importer)
        first.kill()
    if read_only:
        found = xs.ArrayHandle(peer.call(_share, "own", "handle"))
        assert found.read_only
        assert other.call(_attach, "theirs", bytes(found), pair.importer) == [1, 2, 3]
    assert other.call(_attach_other, peer.call(_share, "part", "handle of a part"), pair.importer) == 3


def _attach_part(name: str, message: bytes, device: str) -> None:
    kept[name] = xs.attach(message, device=device, only="other", own=True)


def _attach_other(message: bytes, device: str) -> int:
    found = cast("dict[str, xs.SharedArray]", xs.attach(message, device=device))
    return _value(found["other"])


@rule("6.18")
def test_passed_on(pair: Pair, peer: Child, other: Child) -> None:
    with xs.share(_tree(pair.exporter)) as handle:
        message = bytes(handle)
        peer.call(_attach, "tree", message, pair.importer)
        passed_on = peer.call(_share, "tree", "passed on")
        assert xs.ArrayHandle(passed_on).handles == handle.handles
        assert other.call(_attach, "theirs", passed_on, pair.importer) == [1, 2, 3]
        peer.call(_close, "passed on")  # does not withdraw the export
        assert other.call(_attach, "more", passed_on, pair.importer) == [1, 2, 3]
        assert peer.call(_error, "tree", opens=1) == "InvalidArgumentError"
        assert peer.call(_error, "tree", ttl=60) == "InvalidArgumentError"
        assert peer.call(_error, "tree", read_only=True) == "InvalidArgumentError"
    assert peer.call(_error, "tree") == "HandleExpiredError"
    assert peer.call(_values, "tree") == [1, 2, 3]


@rule("6.19")
def test_not_owned(pair: Pair) -> None:
    with Child() as first:
        kept["tree"] = xs.attach(first.call(_shared, "handle", pair.exporter), device=pair.importer)
        first.kill()
    assert _error("tree") == "HandleExpiredError"
