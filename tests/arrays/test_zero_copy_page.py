"""The page of zero copies says what the results say, and the results know every pair that there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pairs
import pytest

ROOT = Path(__file__).parent.parent.parent


def test_the_page_is_what_the_results_say() -> None:
    command = [sys.executable, "-m", "benchmarks.zero_copy", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", sorted((ROOT / "results").glob("zero-copy-*.json")), ids=lambda file: file.stem)
def test_the_results_know_every_pair(file: Path) -> None:
    found = json.loads(file.read_text())
    backend = found["backend"]
    assert list(found["pairs"]) == list(pairs.PRODUCERS[backend])
    for row in found["pairs"].values():
        assert list(row) == list(pairs.CONSUMERS[backend])
        assert not [verdict for verdict in row.values() if verdict.partition(":")[0] not in ("zero copy", "refused")]
