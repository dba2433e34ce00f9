"""Fixtures of the tests of sharing: those of the core."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "core"))

from peering import device, end_shared, kind, other, pair, peer

__all__ = ["device", "kind", "other", "pair", "peer"]


@pytest.fixture(scope="session", autouse=True)
def _end_shared() -> Iterator[None]:
    yield
    end_shared()
