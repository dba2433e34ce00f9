"""Tests marked `cuda` need an NVIDIA GPU and cuda-bindings; without them each is skipped with what is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_driver import ScriptedDriver

from harness import Child, wait_until
from xpushare import adapters
from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.cuda._adapter import Cuda

sys.path.append(str(Path(__file__).parents[1] / "arrays"))
import vendor_drivers


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


@pytest.fixture
def driver() -> Iterator[ScriptedDriver]:
    scripted = ScriptedDriver()
    yield scripted
    wait_until(lambda: scripted.balanced)  # no context stayed pushed, no capture mode exchanged
    assert not scripted.unsafe, "these calls would have ended another thread's capture"


@pytest.fixture
def cuda(driver: ScriptedDriver) -> Cuda:
    made = Cuda(driver)
    made.devices()
    return made


@pytest.fixture
def gpu(cuda: Cuda) -> DeviceInfo:
    return cuda.devices()[0]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of processes that have the vendors' software drivers."""
    return vendor_drivers.build(tmp_path_factory.mktemp("drivers"))


@pytest.fixture
def owner(environment: dict[str, str]) -> Iterator[Child]:
    with Child(env=environment) as child:
        child.call(vendor_drivers.begin)
        yield child


@pytest.fixture
def reader(environment: dict[str, str]) -> Iterator[Child]:
    with Child(env=environment) as child:
        child.call(vendor_drivers.begin)
        yield child


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write failures down as they come: on a lent machine the run may be cut off before pytest sums them up."""
    path = os.environ.get("XPUSHARE_FAILURES")
    if path and report.failed:
        with Path(path).open("a") as out:
            out.write(f"== {report.nodeid} ({report.when})\n{report.longreprtext}\n{report.capstderr[-1000:]}\n")
