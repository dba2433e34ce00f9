"""A peer killed at random moments of device work on shared memory and events: the survivor goes on.

HIP_KILLS says how many times (default: 8; `scripts/hip kills` takes 100), HIP_DEVICES on which devices the two work.
"""

from __future__ import annotations

import os

import pytest

from kills import kill_peers

OURS, THEIRS = os.environ.get("HIP_DEVICES", "hip:0 hip:0").split()
KILLS = int(os.environ.get("HIP_KILLS", "8"))


@pytest.mark.timeout(60 + 10 * KILLS)
def test_a_peer_is_killed() -> None:
    kill_peers(KILLS, OURS, THEIRS)
