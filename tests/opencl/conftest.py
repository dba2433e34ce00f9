"""These tests run where OpenCL has a CPU device: `scripts/opencl` sets up two. Elsewhere they are skipped."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest

import xpushare as xs
from harness import Child


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


@pytest.fixture
def kernels(device: str) -> None:
    """For tests that run kernels on each device: PoCL's compiler knows no CPU that is newer than itself."""
    if unknown := _unknown_cpu(device):
        pytest.skip(f"the compiler of {xs.Device(device).name} is older than this CPU: {unknown}")


@functools.cache
def _unknown_cpu(device: str) -> str:
    import opencl_client

    with Child() as child:
        return child.call(opencl_client.unknown_cpu, device)
