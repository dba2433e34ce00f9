"""For each process that starts with this folder in PYTHONPATH: the conformance suite's arrays of another library, and
closed books of the forwarding library, as tests/level_zero/books closes those of its driver.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[2]
runpy.run_path(str(_TESTS / "level_zero/books/sitecustomize.py"))

from xpushare.adapters.hip import _adapter  # noqa: E402  # after its own callback for the exit


def _samples(adapter: Any) -> Any:
    return runpy.run_path(str(_TESTS / "hip/samples.py"))["samples"](adapter)


_adapter.Hip.samples = _samples  # type: ignore[attr-defined]
