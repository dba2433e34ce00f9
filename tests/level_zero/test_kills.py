"""A peer killed at random moments of device work on shared memory and events: the survivor goes on.

LEVEL_ZERO_KILLS says how many times (default: 8; `scripts/level_zero kills` takes 200).
"""

from __future__ import annotations

import os

import pytest

from kills import kill_peers

DEVICE = "level_zero:0"
KILLS = int(os.environ.get("LEVEL_ZERO_KILLS", "8"))


@pytest.mark.drivers("soft", "neo")
@pytest.mark.timeout(60 + 10 * KILLS)
def test_a_peer_is_killed() -> None:
    kill_peers(KILLS, DEVICE, DEVICE)
