"""The keeper of each test ends with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "core"))

from keepers import keeper_pid, stop_keeper
from peering import end_shared, peer

from harness import Child, wait_until

__all__ = ["peer"]


@pytest.fixture(scope="session", autouse=True)
def _end_shared() -> Iterator[None]:
    yield
    end_shared()


@pytest.fixture(autouse=True)
def _no_keeper_left() -> Iterator[None]:
    assert keeper_pid() is None
    yield
    stop_keeper()


@pytest.fixture
def publisher() -> Iterator[Child]:
    """A process that may be killed."""
    with Child() as child:
        yield child
        child.kill()
    wait_until(lambda: not child.alive)
