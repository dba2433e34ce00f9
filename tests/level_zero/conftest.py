"""These tests run where `scripts/level_zero` has set up a driver; elsewhere they are skipped. XPUSHARE_LEVEL_ZERO says
which: "soft" (the real loader over the software driver), "neo" (the same over Intel's driver) or "stand-in" (the software
driver in the loader's place).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import level_zero_driver

DRIVER = os.environ.get("XPUSHARE_LEVEL_ZERO")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        wanted = item.get_closest_marker("drivers")
        if DRIVER is None:
            item.add_marker(pytest.mark.skip(reason="needs a Level Zero driver: scripts/level_zero"))
        elif wanted is not None and DRIVER not in wanted.args:
            item.add_marker(pytest.mark.skip(reason=f"not for the driver {DRIVER}"))


@pytest.fixture
def books() -> Iterator[level_zero_driver.Driver]:
    """The software driver of this process. It fails calls as it is told; the test fails if it leaves an object behind."""
    driver = level_zero_driver.driver()
    driver.reset()
    before = driver.left()
    yield driver
    driver.reset()
    assert driver.left() == before
