"""Intel's driver aborts a process that asks for the state of a shared event whose last signaller was killed.

    build/level-zero/neo/bin/python tests/level_zero/upstream/abort_after_kill.py

A counter-based event that two processes share stands for a value of the counter of the command list that signalled it
last. An importer maps that counter when it asks. If the signaller is gone by then, the driver does not answer with an
error: it aborts the process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from unified_runtime import UnifiedRuntime

from xpushare.ur import DeviceType, EventInfo, ExpEventDesc, ExpEventFlags


def started() -> tuple[UnifiedRuntime, int, int]:
    ur = UnifiedRuntime()
    [platform] = ur.urPlatformGet(ur.urAdapterGet()[0])
    device = ur.urDeviceGet(platform, DeviceType.ALL)[0]
    return ur, ur.urContextCreate([device], None), device


def signaller() -> None:
    """Say the handle, signal when told to, say so, and wait to be killed."""
    ur, context, device = started()
    event = ur.urEventCreateExp(context, device, ExpEventDesc(ExpEventFlags.IPC_EXP))
    queue = ur.urQueueCreate(context, device, None)
    print(ur.urIPCGetEventHandleExp(event).hex(), flush=True)
    sys.stdin.readline()
    ur.urEnqueueEventsWaitWithBarrierExt(queue, None, None, event)
    ur.urQueueFinish(queue)
    print("signalled", flush=True)
    signal.pause()


def importer() -> None:
    ur, context, _device = started()
    other = subprocess.Popen(
        [sys.executable, __file__, "signaller"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    event = ur.urIPCOpenEventHandleExp(context, bytes.fromhex(other.stdout.readline()))
    print("go", file=other.stdin, flush=True)
    assert other.stdout.readline() == "signalled\n"
    other.kill()
    other.wait()
    print("the signaller was killed; its signal was complete", flush=True)
    print(f"state: {ur.urEventGetInfo(event, EventInfo.COMMAND_EXECUTION_STATUS)}", flush=True)


def main() -> None:
    done = subprocess.run([sys.executable, __file__, "importer"])
    seen = done.returncode == -signal.SIGABRT
    print("SEEN: the importer was aborted" if seen else f"not seen: exit status {done.returncode}")
    os._exit(0)


if __name__ == "__main__":
    {"signaller": signaller, "importer": importer}.get(sys.argv[-1], main)()
