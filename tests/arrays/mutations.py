"""Changes to the bytes of array handles."""

from __future__ import annotations

import pytest

import xpushare as xs


def expect_only(raw: bytes) -> None:
    """Expect every other message, with a bit flipped, cut or longer by a byte, to be refused."""
    for at in range(len(raw) * 8):
        wrong = bytearray(raw)
        wrong[at // 8] ^= 1 << at % 8
        with pytest.raises(xs.InvalidHandleError):
            xs.ArrayHandle(bytes(wrong))
    for length in range(len(raw)):
        with pytest.raises(xs.InvalidHandleError):
            xs.ArrayHandle(raw[:length])
    with pytest.raises(xs.InvalidHandleError):
        xs.ArrayHandle(raw + b"\0")
