"""Section 6: new arrays, and reuse of memory."""

# pyright: basic

from __future__ import annotations

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.harness import Child, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

_NBYTES = 1 << 18
_LATER = 3  # number of arrays that could reuse the memory of an earlier one


def _filled(device: str, value: int) -> xs.SharedArray:
    array = xs.empty(_NBYTES, "u1", device=device)
    actions.write_bytes(array.memory, bytes([value]) * _NBYTES)
    return array


def _attach(message: bytes, device: str) -> bytes:
    """Attach the array, store it, and return its first and last byte."""
    kept["array"] = xs.attach(message, device=device)
    return _ends()


def _ends() -> bytes:
    memory = kept["array"].memory
    return actions.read_bytes(memory, 1) + actions.read_bytes(memory, 1, _NBYTES - 1)


def _write(value: int) -> None:
    actions.write_bytes(kept["array"].memory, bytes([value]) * _NBYTES)


@rule("6.12")
def test_zeros(pair: Pair) -> None:
    for _ in range(3):
        with _filled(pair.exporter, 7) as array:
            xs.share(array).close()
    with xs.zeros((2, _NBYTES // 4), "u2", device=pair.exporter) as zero:
        assert zero.shape == (2, _NBYTES // 4)
        assert not any(actions.read_bytes(zero.memory))


@rule("6.13")
def test_what_is_open_stays(pair: Pair, peer: Child) -> None:
    array = _filled(pair.exporter, 1)
    handles = [xs.share(array), xs.share(array)]
    assert peer.call(_attach, bytes(handles[0]), pair.importer) == b"\1\1"
    for handle in handles:
        handle.close()
    array.close()
    later = [_filled(pair.exporter, 2 + number) for number in range(_LATER)]
    assert peer.call(_ends) == b"\1\1"
    peer.call(_write, 9)
    assert [actions.read_bytes(each.memory, 1) for each in later] == [bytes([2 + number]) for number in range(_LATER)]
    assert peer.call(_ends) == b"\11\11"


@rule("6.14")
def test_later_arrays(pair: Pair, peer: Child) -> None:
    message = b""
    for value in range(1, 6):
        with _filled(pair.exporter, value) as array, xs.share(array) as handle:
            if message:
                assert peer.call(actions.attempt, _attach, message, pair.importer) == "HandleExpiredError"
            message = bytes(handle)
            assert peer.call(_attach, message, pair.importer) == bytes([value, value])
            peer.call(actions.drop, "array")
