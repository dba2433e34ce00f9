"""What other processes do to the names between two steps of this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from xpushare.sharing import identity


def test_a_file_that_its_maker_removes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher has a temporary file for a moment that it has not locked yet, and removes it itself."""
    xs.published()
    temporary = identity.runtime_dir() / "names" / ".new-other"
    temporary.write_bytes(b"half")
    stat = os.stat

    def stat_then_gone(path: Any, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if Path(path) == temporary:
            temporary.unlink()
        return found

    monkeypatch.setattr(os, "stat", stat_then_gone)
    assert xs.published() == {}
    assert not temporary.exists()
