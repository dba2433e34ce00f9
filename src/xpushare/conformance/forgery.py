"""Make forged handles with a valid seal, to test the checks that `open` makes after it has accepted the seal.

docs/layout.md describes the fields and the seal. The offsets are repeated here as numbers, so that the suite notices if
the layout changes.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from xpushare.conformance.actions import verbs

__all__ = [
    "BOOT", "ENTRY", "GENERATION", "KIND", "OFFSET", "PID", "SIZE", "TABLE_FD", "UUID", "VERSION", "refused", "reseal",
    "unpickling",
]  # fmt: skip

VERSION, KIND, UUID, BOOT, PID, TABLE_FD, GENERATION, ENTRY = 8, 10, 32, 48, 72, 76, 96, 104
OFFSET, SIZE, SEAL = 136, 144, 224


def reseal(handle: bytes, at: int, content: bytes) -> bytes:
    """Return a copy of the handle with the bytes at offset `at` replaced by `content`. The copy has a new seal, made
    with this user's key.
    """
    key = Path(os.environ["XPUSHARE_RUNTIME_DIR"], "key").read_bytes()
    body = handle[:at] + content + handle[at + len(content) : SEAL]
    return body + hashlib.blake2b(body, digest_size=32, key=key).digest()


def refused(error: type[BaseException], kind: str, handle: Any, device: str | None = None) -> str:
    """Check that opening the handle raises exactly the class `error`, not a subclass. Returns the error's message."""
    with pytest.raises(error) as caught:
        verbs(kind).open(handle, device=device)
    assert type(caught.value) is error
    return str(caught.value)


def unpickling(data: bytes) -> str:
    """Check that unpickling `data` succeeds, and that the first use of the object raises `HandleExpiredError`. Returns
    the error's message.
    """
    thing = pickle.loads(data)
    with pytest.raises(xs.HandleExpiredError) as caught:
        thing.__enter__()
    return str(caught.value)
