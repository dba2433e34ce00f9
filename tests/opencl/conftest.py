"""These tests run where OpenCL has a CPU device: `scripts/opencl` sets up two. Elsewhere they are skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import xpushare as xs


def _devices() -> list[str]:
    return [str(device) for device in xs.devices("opencl:*")]


def _missing() -> str:
    if not _devices():
        from xpushare import adapters

        return f"no OpenCL device ({adapters.why_none('opencl')}): scripts/opencl"
    return "" if importlib.util.find_spec("pyopencl") else "pyopencl is not installed: scripts/opencl"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    missing = _missing() if ours else ""
    for item in ours:
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", _devices() or ["opencl:0"])
