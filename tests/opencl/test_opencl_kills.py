"""A peer killed at random moments of device work on shared memory and events: the survivor goes on.

OPENCL_KILLS says how many times on each device (default: 4; `scripts/opencl kills` takes 100).
"""

from __future__ import annotations

import os

import pytest

import xpushare as xs
from harness import kept
from kills import NBYTES, kill_peers

KILLS = int(os.environ.get("OPENCL_KILLS", "4"))


def work() -> str:
    """Copy, signal, run a kernel in pyopencl's queue behind the other's next signal, until the other is lost."""
    import opencl_client

    if "cl queue" not in kept:
        opencl_client.begin(str(kept["memory"].device))
        opencl_client.kernel("triple")  # it is built before the other is waited for
    theirs = xs.Queue.from_native(kept["cl queue"])
    array = kept["memory"].as_array(NBYTES // 4, "u4")
    queue, mine, other, buffer = kept["queue"], kept["event"], kept["other event"], opencl_client.buffer_over(array)
    try:
        while True:
            queue.copy(kept["other memory"], kept["memory"])
            queue.signal(mine)
            theirs.wait(other, at_least=other.pending + 1)
            opencl_client.run("triple", buffer)
            theirs.synchronize(10)
    except (xs.PeerLostError, xs.HandleExpiredError) as error:
        return type(error).__name__
    finally:
        kept["cl queue"].finish()
        theirs.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.timeout(60 + 10 * KILLS)
def test_a_peer_is_killed(device: str) -> None:
    kill_peers(KILLS, device, device, work, within=0.5)
