"""Fixtures of the tests of arrays: the peer processes of the core's tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "core"))

from peering import end_shared, other, peer

__all__ = ["other", "peer"]


@pytest.fixture(scope="session", autouse=True)
def _end_shared() -> Iterator[None]:
    yield
    end_shared()
