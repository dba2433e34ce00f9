"""What the engine's tests share: a commons with slots, and waiting for conditions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from xpushare import _native
from xpushare.sharing import node


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def domain() -> _native.Domain:
    return node.current().table().domain


@pytest.fixture
def new_slot(domain: _native.Domain) -> Iterator[Callable[[], _native.Slot]]:
    made: list[_native.Slot] = []

    def new() -> _native.Slot:
        made.append(_native.Slot(domain, domain.new_slot()))
        return made[-1]

    yield new
    for slot in made:
        slot.detach()
        domain.release_slot(slot.index)
