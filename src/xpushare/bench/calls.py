"""The faces over the core: what one call of `xpushare.ur`, or of the object face, adds to the bare operation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from xpushare.bench.measure import Row, Settings, alternate, batch, compare
from xpushare.bench.worker import Kept, Worker

__all__ = ["faces"]

_MOST_US: Final = 3.0  # what one `ur` call may add
_BATCH: Final = 50


def _export(kept: Kept, device: str) -> bytes:
    import xpushare as xs

    kept["memory"] = xs.malloc_host(4096, device)
    return bytes(xs.ipc.memory.get(kept["memory"]))


def _samples(kept: Kept, device: str, handle: bytes, count: int) -> dict[str, tuple[list[float], ...]]:
    import xpushare as xs
    import xpushare.ur as ur
    from xpushare.core import event as core_event
    from xpushare.core import memory as core_memory

    kept["held"] = xs.ipc.memory.open(handle)  # the handle is open already: the calls count, not the mapping
    wanted = xs.Device(device)
    hDevice = next(
        found
        for adapter in ur.urAdapterGet()
        for platform in ur.urPlatformGet(adapter)
        for found in ur.urDeviceGet(platform, ur.DeviceType.ALL)
        if ur.urDeviceGetInfo(found, ur.DeviceInfo.UUID) == xs.devices(str(wanted))[0].uuid
        or len(xs.devices()) == 1
    )
    hContext = ur.urContextCreate([hDevice], None)
    hEvent = ur.urEventCreateExp(hContext, hDevice, ur.ExpEventDesc(flags=ur.ExpEventFlags.IPC_EXP))
    event = xs.Event(wanted, enable_ipc=True)
    opened = event._use()

    def ur_open_close() -> None:
        ur.urIPCCloseMemHandleExp(hContext, ur.urIPCOpenMemHandleExp(hContext, hDevice, handle))

    def face_open_close() -> None:
        xs.ipc.memory.open(handle).close()

    def core_open_close() -> None:
        core_memory.open_(handle)

    def core_open_close_explicit() -> None:
        core_memory.open_(handle, wanted, wanted.context)

    def ur_info() -> None:
        ur.urEventGetInfo(hEvent, ur.EventInfo.COMMAND_EXECUTION_STATUS)

    def face_done() -> None:
        event.done

    def core_done() -> None:
        core_event.done(opened)

    def ur_wait() -> None:
        ur.urEventWait([hEvent])

    def face_wait() -> None:
        event.wait()

    def core_wait() -> None:
        core_event.wait(opened, None, None)

    groups: dict[str, tuple[Callable[[], None], Callable[[], None], Callable[[], None], int]] = {
        "open and close of an open handle": (ur_open_close, face_open_close, core_open_close, 2),
        "the state of an event": (ur_info, face_done, core_done, 1),
        "a wait for a complete event": (ur_wait, face_wait, core_wait, 1),
    }
    found: dict[str, tuple[list[float], ...]] = {}
    for name, (of_ur, of_face, of_core, _calls) in groups.items():
        found[name] = alternate(
            count,
            lambda call=of_ur: batch(call, _BATCH),  # type: ignore[misc]
            lambda call=of_face: batch(call, _BATCH),  # type: ignore[misc]
            lambda call=of_core: batch(call, _BATCH),  # type: ignore[misc]
        )
    # UR names the device and context at each open; the core's short cut for handles without either is not open to it.
    found["open with device and context"] = alternate(
        count, lambda: batch(ur_open_close, _BATCH), lambda: batch(core_open_close_explicit, _BATCH)
    )
    ur.urEventRelease(hEvent)
    ur.urContextRelease(hContext)
    return found
