"""The same calls through Unified Runtime's own Level Zero adapter (v2) and through `xpushare.ur`, on one driver.

Each scenario yields what every step answered. Where the two differ, DIFFERENCES says how, and the page
docs/backends/level_zero_upstream.md says who is right.
"""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import unified_runtime

from xpushare import ur as names
from xpushare.ur import URError

pytestmark = [
    pytest.mark.drivers("neo"),
    pytest.mark.skipif(
        not unified_runtime.LIBRARY.exists(), reason="Unified Runtime is not here: scripts/level_zero oneapi"
    ),
]

IPC = names.PhysicalMemProperties(names.PhysicalMemFlags.ENABLE_IPC)
IPC_EVENT = names.ExpEventDesc(names.ExpEventFlags.IPC_EXP)
Steps = Iterator[tuple[str, Callable[[], Any]]]
PAGE = Path(__file__).parents[2] / "docs" / "backends" / "level_zero_upstream.md"


class World:
    """The objects that most scenarios begin with, of one of the two."""

    def __init__(self, ur: Any) -> None:
        self.ur = ur
        adapters = ur.urAdapterGet()
        adapter = next(
            each for each in adapters
            if ur.urAdapterGetInfo(each, names.AdapterInfo.BACKEND) == names.Backend.LEVEL_ZERO
        )  # fmt: skip
        [self.platform] = ur.urPlatformGet(adapter)
        self.device = ur.urDeviceGet(self.platform, names.DeviceType.ALL)[0]
        self.context = ur.urContextCreate([self.device], None)
        self.queue = ur.urQueueCreate(self.context, self.device, None)
        self.granule = self.granularity()

    def granularity(self) -> int:
        query = names.VirtualMemGranularityInfo.MINIMUM
        return int(self.ur.urVirtualMemGranularityGetInfo(self.context, self.device, 1, query))

    def memory(self, nbytes: int = 4 << 20) -> int:
        return int(self.ur.urUSMDeviceAlloc(self.context, self.device, None, None, nbytes))

    def physical(self, properties: Any = IPC, nbytes: int = 0) -> Any:
        return self.ur.urPhysicalMemCreate(self.context, self.device, nbytes or self.granule, properties)

    def event(self) -> Any:
        return self.ur.urEventCreateExp(self.context, self.device, IPC_EVENT)

    def status(self, event: Any) -> Any:
        return self.ur.urEventGetInfo(event, names.EventInfo.COMMAND_EXECUTION_STATUS)


def devices(w: World) -> Steps:
    for name in ("IPC_MEMORY", "IPC_PHYSICAL_MEMORY", "IPC_EVENT", "REUSABLE_EVENTS"):
        info = getattr(names.DeviceInfo, f"{name}_SUPPORT_EXP")
        yield name, lambda info=info: bool(w.ur.urDeviceGetInfo(w.device, info))
    yield "name", lambda: w.ur.urDeviceGetInfo(w.device, names.DeviceInfo.NAME)
    yield "type", lambda: w.ur.urDeviceGetInfo(w.device, names.DeviceInfo.TYPE)
    yield "unknown query", lambda: w.ur.urDeviceGetInfo(w.device, 0x7FFF)
    yield "granularity", w.granularity


def memory(w: World) -> Steps:
    ur, address = w.ur, w.memory()
    data = ur.urIPCGetMemHandleExp(w.context, address)
    yield "type", lambda: ur.urUSMGetMemAllocInfo(w.context, address, names.USMAllocInfo.TYPE)
    yield "size", lambda: ur.urUSMGetMemAllocInfo(w.context, address, names.USMAllocInfo.SIZE)
    opened = ur.urIPCOpenMemHandleExp(w.context, w.device, data)
    yield "close", lambda: ur.urIPCCloseMemHandleExp(w.context, opened)
    yield "open a part of the data", lambda: ur.urIPCOpenMemHandleExp(w.context, w.device, bytes(data)[:-1])
    yield "get of no memory", lambda: ur.urIPCGetMemHandleExp(w.context, 0x10000)
    yield "put", lambda: ur.urIPCPutMemHandleExp(w.context, data)
    yield "free", lambda: ur.urUSMFree(w.context, address)
    yield "allocate nothing", lambda: bool(ur.urUSMDeviceAlloc(w.context, w.device, None, None, 0))


def physical(w: World) -> Steps:
    ur = w.ur
    shared, private = w.physical(), w.physical(None)
    yield "size", lambda: ur.urPhysicalMemGetInfo(shared, names.PhysicalMemInfo.SIZE) == w.granule
    data = ur.urIPCGetPhysMemHandleExp(w.context, shared)
    yield "get of private memory", lambda: ur.urIPCGetPhysMemHandleExp(w.context, private)
    opened = ur.urIPCOpenPhysMemHandleExp(w.context, w.device, data)
    yield "size of what was opened", lambda: ur.urPhysicalMemGetInfo(opened, names.PhysicalMemInfo.SIZE) == w.granule
    yield "get of what was opened", lambda: bool(ur.urIPCGetPhysMemHandleExp(w.context, opened))
    yield "close", lambda: ur.urIPCClosePhysMemHandleExp(w.context, opened)
    yield "open a part of the data", lambda: ur.urIPCOpenPhysMemHandleExp(w.context, w.device, bytes(data)[:-1])
    yield "an odd size", lambda: bool(w.physical(IPC, w.granule + 1))
    yield "unknown flags", lambda: bool(w.physical(names.PhysicalMemProperties(1)))
    yield "release", lambda: ur.urPhysicalMemRelease(shared)


def ranges(w: World) -> Steps:
    ur, pages = w.ur, w.physical()
    start = ur.urVirtualMemReserve(w.context, None, 2 * w.granule)
    access = names.VirtualMemAccessFlags
    yield "map", lambda: ur.urVirtualMemMap(w.context, start, w.granule, pages, 0, access.READ_WRITE)
    yield "access", lambda: ur.urVirtualMemGetInfo(w.context, start, w.granule, names.VirtualMemInfo.ACCESS_MODE)
    yield "read only", lambda: ur.urVirtualMemSetAccess(w.context, start, w.granule, access.READ_ONLY)
    yield "access then", lambda: ur.urVirtualMemGetInfo(w.context, start, w.granule, names.VirtualMemInfo.ACCESS_MODE)
    yield "unknown access", lambda: ur.urVirtualMemSetAccess(w.context, start, w.granule, 8)
    yield "unmap", lambda: ur.urVirtualMemUnmap(w.context, start, w.granule)
    yield "free", lambda: ur.urVirtualMemFree(w.context, start, 2 * w.granule)


def events(w: World) -> Steps:
    ur, event = w.ur, w.event()
    yield "a new event", lambda: w.status(event)
    yield "signal", lambda: ur.urEnqueueEventsWaitWithBarrierExt(w.queue, None, None, event) == event
    yield "wait", lambda: ur.urEventWait([event])
    yield "complete", lambda: w.status(event)
    data = ur.urIPCGetEventHandleExp(event)
    opened = ur.urIPCOpenEventHandleExp(w.context, data)
    yield "the opened one", lambda: w.status(opened)
    yield "wait for it", lambda: ur.urEventWait([opened])
    yield "get of what was opened", lambda: ur.urIPCGetEventHandleExp(opened)
    yield "open a part of the data", lambda: ur.urIPCOpenEventHandleExp(w.context, bytes(data)[:-1])
    yield "put", lambda: ur.urIPCPutEventHandleExp(w.context, data)
    both = names.ExpEventDesc(names.ExpEventFlags.IPC_EXP | names.ExpEventFlags.ENABLE_PROFILING)
    yield "with profiling", lambda: bool(ur.urEventCreateExp(w.context, w.device, both))
    yield "unknown flags", lambda: bool(ur.urEventCreateExp(w.context, w.device, names.ExpEventDesc(4)))
    yield "wait for none", lambda: ur.urEventWait([])


def nulls(w: World) -> Steps:
    ur = w.ur
    yield "context", lambda: ur.urUSMDeviceAlloc(None, w.device, None, None, 4096)
    yield "memory", lambda: ur.urIPCGetMemHandleExp(w.context, 0)
    yield "physical memory", lambda: ur.urIPCGetPhysMemHandleExp(w.context, None)
    yield "event", lambda: ur.urIPCGetEventHandleExp(None)
    yield "free", lambda: ur.urUSMFree(w.context, 0)


SCENARIOS: dict[str, Callable[[World], Steps]] = {
    each.__name__: each for each in (devices, memory, physical, ranges, events, nulls)
}
# (scenario, step): (theirs, ours)
DIFFERENCES = {
    ("devices", "granularity"): ("65536", "2097152"),
    ("physical", "an odd size"): ("ERROR_INVALID_VALUE", "ERROR_INVALID_SIZE"),
}


def answers(ur: Any, scenario: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for step, call in SCENARIOS[scenario](World(ur)):
        try:
            answer = call()
            found[step] = str(int(answer) if isinstance(answer, enum.Enum) else answer)
        except URError as error:
            found[step] = error.result.name
    return found


def through(which: str, scenario: str) -> dict[str, str]:
    """The answers of "theirs" or "ours", in a process of its own."""
    done = subprocess.run([sys.executable, __file__, which, scenario], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "ONEAPI_DEVICE_SELECTOR": "level_zero:*"})  # fmt: skip
    assert done.stdout, f"{which}, exit status {done.returncode}: {done.stderr}"
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario(scenario: str) -> None:
    theirs, ours = through("theirs", scenario), through("ours", scenario)
    assert theirs.keys() == ours.keys()
    differing = {(scenario, step): (theirs[step], ours[step]) for step in ours if theirs[step] != ours[step]}
    assert differing == {key: value for key, value in DIFFERENCES.items() if key[0] == scenario}


def test_the_page_lists_the_differences() -> None:
    page = PAGE.read_text()
    for (scenario, step), (theirs, ours) in DIFFERENCES.items():
        assert f"| {scenario}: {step} | `{theirs}` | `{ours}` |" in page


if __name__ == "__main__":
    chosen = unified_runtime.UnifiedRuntime() if sys.argv[1] == "theirs" else names
    print(json.dumps(answers(chosen, sys.argv[2])), flush=True)
    os._exit(0)  # what scenarios leave is not a matter of theirs
