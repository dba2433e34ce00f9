"""Fixtures of the tests of arrays: the peer processes of the core's tests; and what the run found of zero copies."""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "core"))

from peering import end_shared, other, peer

import xpushare as xs
from xpushare.bench.measure import machine

__all__ = ["other", "peer"]

LIBRARIES = ("numpy", "torch", "jax", "pyarrow", "cupy", "numba-cuda", "cuda-core", "cuda-bindings")
_pairs: dict[str, dict[str, dict[str, str]]] = {}  # backend -> producer -> consumer -> verdict


@pytest.fixture(scope="session", autouse=True)
def _end_shared() -> Iterator[None]:
    yield
    end_shared()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take down what a test of a pair says of it."""
    said: dict[str, Any] = dict(report.user_properties)
    if "pair" not in said or report.when != "call":
        return
    backend, producer, consumer = said["pair"]
    if report.skipped:
        verdict = f"not tried: {report.longrepr[2]}".replace("Skipped: ", "")  # type: ignore[index]
    elif report.failed:
        verdict = f"failed: {report.longreprtext.strip().splitlines()[-1]}"
    else:
        verdict = f"refused: {said['refused']}" if "refused" in said else "zero copy"
    _pairs.setdefault(backend, {}).setdefault(producer, {})[consumer] = verdict


def pytest_sessionfinish() -> None:
    """Write it to the folder in XPUSHARE_ZERO_COPY, for benchmarks/zero_copy.py."""
    folder = os.environ.get("XPUSHARE_ZERO_COPY")
    for backend, found in _pairs.items() if folder else ():
        if any(not verdict.startswith("not tried") for row in found.values() for verdict in row.values()):
            written = {"backend": backend, **_where(backend), "pairs": found}
            Path(str(folder), f"zero-copy-{backend}.json").write_text(json.dumps(written, indent=1) + "\n")


def _where(backend: str) -> dict[str, Any]:
    device = xs.devices(f"{backend}:*")[0]
    versions = {"xpushare": xs.__version__}
    for each in importlib.metadata.distributions():
        name = str(each.metadata["Name"]).lower().replace("_", "-")
        if name.removesuffix("-cuda12x").removesuffix("-cuda13x") in LIBRARIES:
            versions[name] = each.version
    host = machine()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": device.name,
        "driver": device.driver_version,
        "python": host["python"],
        "kernel": host["kernel"],
        "cpu": host["cpu"],
        "versions": dict(sorted(versions.items())),
    }
