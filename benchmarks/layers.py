"""What the layers cost where they are off: the same call in a process that never had one, and after one was on.

python -m benchmarks.layers

The CPU time of `urEventGetInfo` in us, the least of many, in several processes each.
"""

from __future__ import annotations

import subprocess
import sys
import time

import xpushare as xs
from xpushare import ur

CALLS = 3000
LAYER = "UR_LAYER_FULL_VALIDATION"


def least(event: ur.Event, rounds: int) -> float:
    """Of so many rounds."""
    asked, status = ur.urEventGetInfo, ur.EventInfo.COMMAND_EXECUTION_STATUS
    found = float("inf")
    for _ in range(rounds):
        begin = time.thread_time()
        for _ in range(CALLS):
            asked(event, status)
        found = min(found, (time.thread_time() - begin) / CALLS)
    return found * 1e6


def measured(how: str) -> float:
    [device] = ur.urDeviceGet(ur.urPlatformGet(ur.urAdapterGet()[0])[0], ur.DeviceType.CPU)
    event = ur.urEventCreateExp(ur.urContextCreate([device], None), device, ur.ExpEventDesc())
    if how == "never on":
        return least(event, 60)
    xs.enable_layers(LAYER)
    cost = least(event, 3)
    if how == "on":
        return cost
    xs.enable_layers()
    return least(event, 60)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measured(sys.argv[1]))
        sys.exit()
    for how in ("never on", "on", "off again"):
        command = [sys.executable, "-m", "benchmarks.layers", how]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)]
        print(f"{LAYER} {how:9}", *(f"{float(each):.3f} us" for each in runs))
