"""What the engine's tests share: a commons with slots, and waiting for conditions."""

from __future__ import annotations

import time
from collections.abc import Callable

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
