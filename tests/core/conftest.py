"""Fixtures of the tests of the core."""

from collections.abc import Iterator

import pytest
from peering import device, end_shared, event, kind, other, pair, peer

__all__ = ["device", "event", "kind", "other", "pair", "peer"]


@pytest.fixture(scope="session", autouse=True)
def _end_shared() -> Iterator[None]:
    yield
    end_shared()


@pytest.fixture(autouse=True)
def _declared(declared_errors: None) -> None:
    """In all tests here."""
