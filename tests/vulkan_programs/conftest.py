"""These tests need Vulkan: the package `vulkan` with its loader, and a driver. `make vulkan` sets Mesa's software
driver (lavapipe) up and runs them on that; VULKAN_DEVICE names another device. With XPUSHARE_VULKAN set, what is
missing is an error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "vulkan"
sys.path.append(str(PROGRAM))


def _missing() -> str:
    try:
        from vulkan_program import Program

        Program()
    except Exception as error:  # the package, its loader, a driver, a device: each says what is missing in its own way
        return f"needs Vulkan ({type(error).__name__}: {error}): make vulkan"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    if here and not os.environ.get("XPUSHARE_VULKAN") and (why := _missing()):
        for item in here:
            item.add_marker(pytest.mark.skip(reason=why))
