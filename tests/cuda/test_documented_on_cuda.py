"""The examples in the documentation that need an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import documented

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("block", documented.to_run("cuda"))
def test_example_on_cuda(block: documented.Block, tmp_path: Path) -> None:
    documented.run(block, tmp_path)
