"""Unified Runtime's Level Zero v2 adapter closes a file descriptor that is the driver's, and later shares a stranger's file.

    build/level-zero/neo/bin/python tests/level_zero/upstream/reused_fd.py

`urIPCGetPhysMemHandleExp` asks the driver for the fd of physical memory; `urIPCPutPhysMemHandleExp` closes it. The driver
answers with the same number at each call, and it is the driver's own. After the put that number is free. The next file
that the process opens gets it, the next handle names that file, and the next put closes it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from unified_runtime import UnifiedRuntime

from xpushare.ur import DeviceType, PhysicalMemFlags, PhysicalMemProperties, VirtualMemGranularityInfo


def fd_of(data: bytes) -> int:
    """The adapter's handle data is {pid, fd, size}."""
    return int.from_bytes(data[4:8], sys.byteorder)


def main() -> None:
    ur = UnifiedRuntime()
    [platform] = ur.urPlatformGet(ur.urAdapterGet()[0])
    device = ur.urDeviceGet(platform, DeviceType.ALL)[0]
    context = ur.urContextCreate([device], None)
    nbytes = ur.urVirtualMemGranularityGetInfo(context, device, 1, VirtualMemGranularityInfo.MINIMUM)
    physical = ur.urPhysicalMemCreate(context, device, nbytes, PhysicalMemProperties(PhysicalMemFlags.ENABLE_IPC))
    first = ur.urIPCGetPhysMemHandleExp(context, physical)
    number = fd_of(first)
    print(f"first handle: fd {number}, {os.readlink(f'/proc/self/fd/{number}')}")
    ur.urIPCPutPhysMemHandleExp(context, first)
    with tempfile.TemporaryFile() as stranger:
        print(f"a file of the program's own: fd {stranger.fileno()}")
        second = ur.urIPCGetPhysMemHandleExp(context, physical)
        print(f"second handle: fd {fd_of(second)}, {os.readlink(f'/proc/self/fd/{fd_of(second)}')}")
        seen = fd_of(second) == stranger.fileno()
        print("SEEN: the handle shares a file of the program's own" if seen else "not seen")
        os._exit(0)  # the driver would close that file, too


if __name__ == "__main__":
    main()
