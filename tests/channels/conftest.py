"""Whatever a test of channels opens leaves no file in the runtime folder."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from xpushare.sharing import identity


def _files() -> set[str]:
    try:
        return set(os.listdir(identity.runtime_dir() / "crews"))
    except FileNotFoundError:
        return set()


@pytest.fixture(autouse=True)
def _leaves_no_file() -> Iterator[None]:
    before = _files()
    yield
    gc.collect()
    assert _files() <= before
