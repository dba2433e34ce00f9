"""Each call of the driver fails in turn: an error of this package, nothing left behind, and the next try works."""

from __future__ import annotations

import gc
import re

import pytest
from level_zero_driver import Driver, driver

from failing_calls import each_call_fails

DEVICE = "level_zero:0"
# What gives back: where the driver refuses that, the object stays. And what only tells.
GIVE_BACK = {
    "zeMemFree",
    "zeMemCloseIpcHandle",
    "zePhysicalMemDestroy",
    "zeVirtualMemFree",
    "zeVirtualMemUnmap",
    "zeEventDestroy",
    "zeEventPoolDestroy",
    "zeCommandListDestroy",
    "zexDriverReleaseImportedPointer",
}

pytestmark = pytest.mark.drivers("soft", "stand-in")


class Counted:
    """The driver's books, by numbers."""

    def __init__(self, found: Driver) -> None:
        self.calls, self.fail, self.reset = found.calls, found.fail, found.reset
        self._left = found.left

    def left(self) -> dict[str, int]:
        gc.collect()
        return {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", self._left())}


def books() -> Counted:
    return Counted(driver())


@pytest.mark.timeout(600)
def test_each_call_fails_in_turn() -> None:
    # One context for good, where the driver's default one cannot be had.
    each_call_fails(DEVICE, books, GIVE_BACK, 30, {"context": 1})
