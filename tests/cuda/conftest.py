"""Tests marked `cuda` need an NVIDIA GPU and cuda-bindings; without them each is skipped with what is missing."""

from __future__ import annotations

import pytest

from xpushare import adapters


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("cuda") for item in items):
        return
    adapter = adapters.adapter("cuda")
    if adapter.devices():
        return
    skip = pytest.mark.skip(reason=adapter.why_none())
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
