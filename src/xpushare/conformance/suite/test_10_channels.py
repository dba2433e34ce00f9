"""Section 10: channels on the device, locks and atomics."""

# pyright: basic

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.harness import TIMEOUT, Child, kept, wait_until
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

_NBYTES = 64


@pytest.fixture
def name() -> Iterator[str]:
    yield f"conformance-{secrets.token_hex(8)}"
    kept.clear()


def _create(name: str, device: str, **options: Any) -> xs.Channel:
    return xs.Channel.create(name, _NBYTES, "u1", device=device, **options)


def _send(channel: xs.Channel, value: int, timeout: float | None = TIMEOUT) -> None:
    with channel.loan(timeout) as frame, xs.Queue(channel.device) as queue:
        queue.fill(frame.array, bytes([value]))
        queue.synchronize(TIMEOUT)


def _send_all(channel: xs.Channel, values: tuple[int, ...]) -> None:
    for value in values:
        _send(channel, value, 0.05)


def _open(name: str, mode: Any) -> None:
    kept[mode] = xs.Channel.open(name, mode=mode, timeout=TIMEOUT)


def _content(frame: Any) -> int:
    device = frame.array.device
    with xs.Queue(device) as queue, xs.malloc_host(1, device) as host:
        queue.copy(host, frame.array, 1)
        queue.synchronize(TIMEOUT)
        return actions.read_bytes(host, 1)[0]


def _receive(mode: str) -> tuple[int, int]:
    """Receive a frame. Return its content, and how many frames this reader has missed so far."""
    with kept[mode].receive(TIMEOUT) as frame:
        return _content(frame), frame.missed


def _hold(mode: str) -> int:
    kept["frame"] = kept[mode].receive(TIMEOUT)
    return _content(kept["frame"])


def _ended(mode: str) -> str:
    return actions.attempt(kept[mode].receive, TIMEOUT)


@rule("10.1")
def test_modes(pair: Pair, peer: Child, name: str) -> None:
    with _create(name, pair.exporter) as channel, Child() as other:
        for child, modes in ((peer, ("all", "newest", "one")), (other, ("one",))):
            for mode in modes:
                child.call(_open, name, mode)
        for value in (1, 2, 3, 4):
            _send(channel, value)
        assert [peer.call(_receive, "all") for _ in range(4)] == [(1, 0), (2, 0), (3, 0), (4, 0)]
        assert peer.call(_receive, "newest") == (4, 3)
        shared = [each.call(_receive, "one")[0] for each in (peer, other, peer, other)]
        assert sorted(shared) == [1, 2, 3, 4]
        channel.finish()
        assert [peer.call(_ended, mode) for mode in ("all", "newest", "one")] == ["EOFError"] * 3
        peer.call(actions.drop)


@rule("10.2")
@pytest.mark.parametrize("policy", ["block", "overwrite", "raise"])
def test_policies(pair: Pair, peer: Child, name: str, policy: str) -> None:
    with _create(name, pair.exporter, slots=4, on_full=policy) as channel:
        peer.call(_open, name, "all")
        _send(channel, 1)
        assert peer.call(_hold, "all") == 1
        _send(channel, 2)
        _send(channel, 3)
        if policy == "overwrite":
            for value in (4, 5, 6):
                _send(channel, value)
        else:
            with pytest.raises(TimeoutError if policy == "block" else xs.ChannelFull):
                _send_all(channel, (4, 5, 6))
        assert peer.call(_held) == 1
        peer.call(_release)
        found = peer.call(_receive, "all")
        assert (found[0] > 2, found[1] > 0) == (policy == "overwrite", policy == "overwrite")
        peer.call(actions.drop)


def _held() -> int:
    return _content(kept["frame"])


def _release() -> None:
    kept.pop("frame").close()


@rule("10.3")
def test_deaths(pair: Pair, name: str) -> None:
    with _create(name, pair.exporter, slots=3) as channel, Child() as reader:
        reader.call(_open, name, "all")
        _send(channel, 1)
        assert reader.call(_hold, "all") == 1
        reader.kill()
        for value in range(2, 8):  # more than there are slots
            _send(channel, value)
    with Child() as writer:
        other = f"{name}-other"
        writer.call(_write, other, pair.exporter)
        kept["all"] = xs.Channel.open(other, start="oldest", timeout=TIMEOUT)
        assert _receive("all")[0] == 9
        writer.kill()
        began = time.monotonic()
        found = [_ended("all"), _ended("all")]  # the first may receive the second frame, unless it was lost
        assert found[-1] == "PeerLostError"
        assert found[0] in ("", "PeerLostError")
        assert time.monotonic() - began < TIMEOUT
        kept["all"].close()


def _write(name: str, device: str) -> None:
    channel = kept["channel"] = _create(name, device, history=2)
    for _ in range(2):
        _send(channel, 9)


@rule("10.4")
def test_locks(peer: Child, name: str) -> None:
    with xs.Lock(name) as held:
        assert not held.owner_died
        assert peer.call(_try_lock, name) == "TimeoutError"
    with Child() as owner:
        assert owner.call(_try_lock, name) == ""
        owner.kill()
    lock = xs.Lock(name)
    assert lock.acquire(TIMEOUT).owner_died
    lock.release()
    lock.close()
    with xs.Atomic(3, f"{name}-number") as number:
        counting = [each.start(_count, f"{name}-number") for each in (peer, peer)]
        for _ in range(100):
            number.add(1)
        for each in counting:
            each.result()
        wait_until(lambda: number.load() == 303, "all additions")
    peer.call(actions.drop)


def _try_lock(name: str) -> str:
    lock = kept["lock"] = xs.Lock(name)
    return actions.attempt(lock.acquire, 0.05)


def _count(name: str) -> None:
    with xs.Atomic(0, name) as number:
        for _ in range(100):
            number.add(1)


def _copy(gated: bool) -> None:
    """Queue a copy of a frame on the device, and close the frame at once. If `gated` is true, the copy runs only after
    a gate opens.
    """
    channel = kept["all"]
    gate = kept["gate"] = actions.Gate(channel.device) if gated else None
    queue = kept["queue"] = gate.queue if gate else xs.Queue(channel.device)
    out = kept["out"] = xs.malloc_device(_NBYTES, channel.device)
    with channel.receive(TIMEOUT) as frame:
        queue.copy(out, frame.array)


def _copied() -> bytes:
    if kept["gate"] is not None:
        kept["gate"].open()
    kept["queue"].synchronize(TIMEOUT)
    return actions.read_bytes(kept["out"])


def _skip() -> None:
    kept["all"].receive(TIMEOUT).close()


@rule("10.5")
def test_order(pair: Pair, peer: Child, name: str) -> None:
    with _create(name, pair.exporter, slots=3) as channel, xs.Queue(channel.device) as queue:
        peer.call(_open, name, "all")
        gate = actions.Gate(channel.device)
        with channel.loan(TIMEOUT) as frame:
            gate.queue.fill(frame.array, b"a")
        peer.call(_copy, False)  # returns before the frame has its content
        gate.open()
        gate.close()
        assert peer.call(_copied) == b"a" * _NBYTES
        with channel.loan(TIMEOUT) as frame:
            queue.fill(frame.array, b"b")
        peer.call(_copy, True)  # the copy waits for the gate
        for byte in (b"c", b"d", b"e"):  # one frame needs the slot that the copy still has to read
            with channel.loan(TIMEOUT) as frame:
                queue.fill(frame.array, byte)
            peer.call(_skip)
        assert peer.call(_copied) == b"b" * _NBYTES
        queue.synchronize(TIMEOUT)
        peer.call(actions.drop)


@rule("10.6")
def test_successors(pair: Pair, name: str) -> None:
    with Child() as writer, Child() as successor:
        writer.call(_begin, name, pair.exporter)
        with xs.Channel.open(name, reconnect=True, timeout=TIMEOUT) as reader:
            kept["all"] = reader
            writer.call(_send_kept, 1)
            assert _receive("all") == (1, 0)
            writer.kill()
            successor.call(_begin, name, pair.exporter)
            successor.call(_send_kept, 2)
            assert _receive("all") == (2, 0)


def _begin(name: str, device: str) -> None:
    kept["channel"] = _create(name, device)


def _send_kept(value: int) -> None:
    _send(kept["channel"], value)
