"""The examples in the documentation that need OpenCL."""

from __future__ import annotations

from pathlib import Path

import pytest

import documented


@pytest.mark.parametrize("block", documented.to_run("opencl"))
def test_example_on_opencl(block: documented.Block, tmp_path: Path) -> None:
    documented.run(block, tmp_path)
