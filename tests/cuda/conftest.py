"""Tests marked `cuda` need an NVIDIA GPU and cuda-bindings; without them each is skipped with what is missing."""

from __future__ import annotations

import os
from pathlib import Path

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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write failures down as they come: on a lent machine the run may be cut off before pytest sums them up."""
    path = os.environ.get("XPUSHARE_FAILURES")
    if path and report.failed:
        with Path(path).open("a") as out:
            out.write(f"== {report.nodeid} ({report.when})\n{report.longreprtext}\n{report.capstderr[-1000:]}\n")
