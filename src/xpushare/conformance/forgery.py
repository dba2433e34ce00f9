"""Forged handles, sealed as a careful forger would. docs/layout.md says where the fields are and how the seal is made.
The numbers are written out here, so that the suite notices a layout that has moved.
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
    """Return the handle with other bytes at `at`, sealed with this user's key."""
    key = Path(os.environ["XPUSHARE_RUNTIME_DIR"], "key").read_bytes()
    body = handle[:at] + content + handle[at + len(content) : SEAL]
    return body + hashlib.blake2b(body, digest_size=32, key=key).digest()


def refused(error: type[BaseException], kind: str, handle: Any, device: str | None = None) -> str:
    """Check that `open` raises exactly that class. Returns its message."""
    with pytest.raises(error) as caught:
        verbs(kind).open(handle, device=device)
    assert type(caught.value) is error
    return str(caught.value)


def unpickling(data: bytes) -> str:
    """Check that unpickling raises nothing, and the first use raises `HandleExpiredError`. Returns its message."""
    thing = pickle.loads(data)
    with pytest.raises(xs.HandleExpiredError) as caught:
        thing.__enter__()
    return str(caught.value)
