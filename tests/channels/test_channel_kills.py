"""The short form of soak/channel_kills.py: random members of a channel are killed, with an oracle for every frame."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [1])
def test_random_members_are_killed(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(ROOT), *sys.path]))
    from soak.channel_kills import kill_members

    result = kill_members(12, seed, tmp_path)
    assert result.wrong == []
    assert result.kills == 12
    assert result.frames > 20
