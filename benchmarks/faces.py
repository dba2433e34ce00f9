"""The faces over the core: what one call of `xpushare.ur`, or of the object face, adds to the bare operation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final

from xpushare.bench.measure import Kept, Row, Settings, Worker, alternate, compare

_BATCH: Final = 50
_OPEN: Final = "open and close of an open handle"
_OPEN_ON: Final = "the same, device and context named"
_CALLS: Final = {_OPEN: 2, _OPEN_ON: 2}  # ur calls in one sample, where there are more than one


def _export(kept: Kept, device: str) -> bytes:
    import xpushare as xs

    kept["memory"] = xs.malloc_host(4096, device)
    return bytes(xs.ipc.memory.get(kept["memory"]))


def sampler(call: Callable[[], None]) -> Callable[[], float]:
    """Return what takes a sample of `call`: the microseconds of one of many calls."""
    clock = time.perf_counter_ns
    turns = range(_BATCH)

    def sample() -> float:
        start = clock()
        for _ in turns:
            call()
        return (clock() - start) / _BATCH / 1000

    return sample


def _samples(kept: Kept, device: str, handle: bytes, count: int) -> dict[str, tuple[list[float], ...]]:
    import xpushare as xs
    import xpushare.ur as ur
    from xpushare.core import event as core_event
    from xpushare.core import memory as core_memory
    from xpushare.objects.lifecycle import use

    kept["held"] = xs.ipc.memory.open(handle)  # the handle is open already: the calls count, not the mapping
    wanted = xs.Device(device)
    hDevice = next(
        found
        for adapter in ur.urAdapterGet()
        for platform in ur.urPlatformGet(adapter)
        for found in ur.urDeviceGet(platform, ur.DeviceType.ALL)
        if ur.urDeviceGetInfo(found, ur.DeviceInfo.UUID) == uuid.UUID(wanted.uuid).bytes
    )
    hContext = ur.urContextCreate([hDevice], None)
    hEvent = ur.urEventCreateExp(hContext, hDevice, ur.ExpEventDesc(flags=ur.ExpEventFlags.IPC_EXP))
    event = xs.Event(wanted, enable_ipc=True)
    opened = use(event)

    def ur_open_close() -> None:
        ur.urIPCCloseMemHandleExp(hContext, ur.urIPCOpenMemHandleExp(hContext, hDevice, handle))

    def face_open_close() -> None:
        xs.ipc.memory.open(handle).close()

    def core_open_close() -> None:
        core_memory.open_(handle)

    def core_open_close_explicit() -> None:
        core_memory.open_(handle, wanted, wanted.context)

    def face_open_close_explicit() -> None:
        xs.ipc.memory.open(handle, device=wanted, context=wanted.context).close()

    def ur_info() -> None:
        ur.urEventGetInfo(hEvent, ur.EventInfo.COMMAND_EXECUTION_STATUS)

    def face_done() -> None:
        _ = event.done

    def core_done() -> None:
        core_event.done(opened)

    def ur_wait() -> None:
        ur.urEventWait([hEvent])

    def face_wait() -> None:
        event.wait()

    def core_wait() -> None:
        core_event.wait(opened, None, None)

    found: dict[str, tuple[list[float], ...]] = {}
    for name, (of_ur, of_face, of_core) in {
        _OPEN: (ur_open_close, face_open_close, core_open_close),
        "state of an event": (ur_info, face_done, core_done),
        "wait for a complete event": (ur_wait, face_wait, core_wait),
    }.items():
        found[name] = alternate(count, sampler(of_ur), sampler(of_face), sampler(of_core))
    # UR names device and context at each open; the core's short cut for handles opened without is not open to it.
    found[_OPEN_ON] = alternate(
        count, sampler(ur_open_close), sampler(face_open_close_explicit), sampler(core_open_close_explicit)
    )
    ur.urEventRelease(hEvent)
    ur.urContextRelease(hContext)
    return found


def faces(settings: Settings) -> list[Row]:
    """`xpushare.ur` and the object face over the bare core operation."""
    rows: list[Row] = []
    with Worker(settings) as exporter, Worker(settings) as importer:
        handle = exporter.call(_export, settings.device)
        found = importer.start(_samples, settings.device, handle, settings.count(300, 5)).result(300)
    for name, (of_ur, of_face, of_core) in found.items():
        calls = _CALLS.get(name, 1)
        for face, samples in (("ur", of_ur), ("object face", of_face)):
            row = compare("faces", f"{name}: {face}", samples, "bare core operation", of_core)
            assert row.theirs is not None
            more = (row.ours.median - row.theirs.median) / calls
            row.notes.append(f"{more:+.2f} us a call" + (f", {calls} calls" if calls > 1 else ""))
            if face == "ur" and name == _OPEN:
                row.notes.append(
                    "not the same work: UR's open names device and context, the bare one takes a short cut"
                )
            rows.append(row)
    return rows
