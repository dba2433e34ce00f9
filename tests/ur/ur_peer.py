"""What the other process of `test_ur_processes` does. Its objects live in this module between calls."""

from __future__ import annotations

import threading
from typing import Any

from ur_runtime import Runtime

from xpushare import ur

runtime: Runtime
made: dict[str, Any] = {}
gate = threading.Event()


def start(backend: str = "native_cpu") -> None:
    global runtime
    runtime = Runtime(backend)


def export_memory(content: bytes, offset: int = 0) -> bytes:
    made["pointer"] = runtime.memory(len(content) + offset)
    made["size"] = len(content)
    for at, byte in enumerate(content):
        runtime.fill(made["pointer"] + offset + at, bytes([byte]), 1)
    made["data"] = ur.urIPCGetMemHandleExp(runtime.context, made["pointer"] + offset)
    return made["data"]


def content() -> bytes:
    return runtime.read(made["pointer"], made["size"])


def free() -> None:
    ur.urUSMFree(runtime.context, made["pointer"])


def put() -> None:
    ur.urIPCPutMemHandleExp(runtime.context, made["data"])


def export_physical(pattern: bytes) -> bytes:
    made["pages"] = runtime.physical(2)
    start = runtime.reserve(2)
    size = 2 * runtime.granule
    ur.urVirtualMemMap(runtime.context, start, size, made["pages"], 0, ur.VirtualMemAccessFlags.READ_WRITE)
    runtime.fill(start, pattern, size)
    return ur.urIPCGetPhysMemHandleExp(runtime.context, made["pages"])


def release_physical() -> None:
    ur.urPhysicalMemRelease(made["pages"])


def open_physical_and_read(data: bytes, nbytes: int) -> bytes:
    opened = ur.urIPCOpenPhysMemHandleExp(runtime.context, runtime.device, data)
    size = ur.urPhysicalMemGetInfo(opened, ur.PhysicalMemInfo.SIZE)
    start = ur.urVirtualMemReserve(runtime.context, None, size)
    ur.urVirtualMemMap(runtime.context, start, size, opened, 0, ur.VirtualMemAccessFlags.READ_ONLY)
    found = runtime.read(start, nbytes)
    ur.urVirtualMemUnmap(runtime.context, start, size)
    ur.urVirtualMemFree(runtime.context, start, size)
    ur.urIPCClosePhysMemHandleExp(runtime.context, opened)
    return found


def export_event() -> bytes:
    made["event"] = runtime.event()
    return ur.urIPCGetEventHandleExp(made["event"])


def signal_event() -> None:
    ur.urEnqueueEventsWaitWithBarrierExt(runtime.queue, None, None, made["event"])


def wait_event() -> int:
    ur.urEventWait([made["event"]])
    return int(ur.urEventGetInfo(made["event"], ur.EventInfo.COMMAND_EXECUTION_STATUS))


def hold() -> None:
    """Enqueue nothing that runs from now on."""
    runtime.queue.shared.submit(gate.wait)


def let_go() -> None:
    gate.set()


def fill_behind_event(pattern: bytes) -> None:
    """Enqueue a fill of the exported memory, and signal the event after it."""
    ur.urEnqueueUSMFill(runtime.queue, made["pointer"], pattern, made["size"], None)
    signal_event()


def result_of(function: str, *arguments: Any) -> int:
    """The result of a call in the peer; 0 when it succeeds."""
    try:
        getattr(ur, function)(*[getattr(runtime, each[1:]) if isinstance(each, str) else each for each in arguments])
    except ur.URError as error:
        return int(error.result)
    return 0
