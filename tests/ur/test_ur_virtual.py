"""Virtual and physical memory, within one process."""

from __future__ import annotations

import pytest
from ur_runtime import IPC, Runtime, refused

import xpushare as xs
from xpushare import ur
from xpushare.common.aspects import Aspect

R = ur.Result
F = ur.VirtualMemAccessFlags
P = ur.PhysicalMemInfo


def access(rt: Runtime, start: int, size: int | None = None) -> F:
    return ur.urVirtualMemGetInfo(rt.context, start, size or rt.granule, ur.VirtualMemInfo.ACCESS_MODE)


def test_granularity(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    G = ur.VirtualMemGranularityInfo
    for device in (rt.device, None):
        least = ur.urVirtualMemGranularityGetInfo(rt.context, device, 1, G.MINIMUM)
        assert least == rt.device.shared.memory_granularity()
        assert ur.urVirtualMemGranularityGetInfo(rt.context, device, 1, G.RECOMMENDED) % least == 0
    rt.without(monkeypatch, Aspect.ext_oneapi_virtual_mem)
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        ur.urVirtualMemGranularityGetInfo(rt.context, None, 1, G.MINIMUM)
    for function, arguments in (
        (ur.urVirtualMemReserve, (rt.context, None, rt.granule)),
        (ur.urPhysicalMemCreate, (rt.context, rt.device, rt.granule, None)),
    ):
        with refused(R.ERROR_UNSUPPORTED_FEATURE):
            function(*arguments)


def test_reserve_and_free(rt: Runtime) -> None:
    size = 2 * rt.granule
    start = ur.urVirtualMemReserve(rt.context, None, size)
    again = ur.urVirtualMemReserve(rt.context, start, size)  # a hint; that place is taken
    assert again not in range(start - size + 1, start + size)
    for hint in (1 << 63, (1 << 64) - rt.granule):  # no process has these
        ur.urVirtualMemFree(rt.context, ur.urVirtualMemReserve(rt.context, hint, size), size)
    for wrong in ((start + rt.granule, rt.granule), (start, rt.granule), (start, 2 * size)):
        with refused(R.ERROR_INVALID_VALUE):
            ur.urVirtualMemFree(rt.context, *wrong)
    with refused(R.ERROR_INVALID_CONTEXT):
        ur.urVirtualMemFree(ur.urContextCreate([rt.device], None), start, size)
    ur.urVirtualMemFree(rt.context, start, size)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urVirtualMemFree(rt.context, start, size)
    assert ur.urVirtualMemReserve(rt.context, start, size) == start  # free now
    for wrong_size in (0, 1, rt.granule + 1):
        with refused(R.ERROR_INVALID_VALUE):
            ur.urVirtualMemReserve(rt.context, None, wrong_size)


def test_map_write_unmap(rt: Runtime) -> None:
    g = rt.granule
    start = rt.reserve(3)
    pages = rt.physical(2)
    ur.urVirtualMemMap(rt.context, start + g, 2 * g, pages, 0, F.READ_WRITE)
    assert (access(rt, start), access(rt, start + g, 2 * g)) == (F.NONE, F.READ_WRITE)
    rt.fill(start + g, b"m", 2 * g)
    ur.urPhysicalMemRelease(pages)  # the mapping holds the pages
    assert rt.read(start + g + 5, 10) == b"m" * 10
    ur.urVirtualMemSetAccess(rt.context, start + g, 2 * g, F.READ_ONLY)
    assert access(rt, start + 2 * g) is F.READ_ONLY
    with refused(R.ERROR_INVALID_MEM_OBJECT):  # read-only
        ur.urEnqueueUSMFill(rt.queue, start + g, b"x", g, None)
    with refused(R.ERROR_INVALID_MEM_OBJECT):  # not mapped
        ur.urEnqueueUSMFill(rt.queue, start, b"x", g, None)
    with refused(R.ERROR_INVALID_SIZE):
        ur.urEnqueueUSMFill(rt.queue, start + g, b"x", 3 * g, None)
    with refused(R.ERROR_INVALID_VALUE):  # still mapped
        ur.urVirtualMemFree(rt.context, start, 3 * g)
    ur.urVirtualMemUnmap(rt.context, start + g, 2 * g)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urVirtualMemUnmap(rt.context, start + g, 2 * g)
    ur.urVirtualMemFree(rt.context, start, 3 * g)


def test_map_errors(rt: Runtime) -> None:
    g = rt.granule
    start, pages = rt.reserve(2), rt.physical(1)
    other = ur.urContextCreate([rt.device], None)
    ur.urVirtualMemMap(rt.context, start, g, pages, 0, F.READ_WRITE)
    for place, size, offset in (
        (start, g, 0),  # mapped already
        (start + g, g + 1, 0),  # not whole granules
        (start + g + 1, g, 0),
        (start + g, g, g),  # outside the object
        (start + g, 2 * g, 0),  # outside the range
        (start + 2 * g, g, 0),
    ):
        with refused(R.ERROR_INVALID_VALUE):
            ur.urVirtualMemMap(rt.context, place, size, pages, offset, F.READ_WRITE)
    with refused(R.ERROR_INVALID_CONTEXT):
        ur.urVirtualMemMap(other, start + g, g, pages, 0, F.READ_WRITE)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urVirtualMemSetAccess(rt.context, start + g, g, F.READ_ONLY)  # nothing mapped
    with refused(R.ERROR_INVALID_VALUE):
        access(rt, start, 3 * g)
    for flags, expected in ((0, F.NONE), (F.NONE, F.NONE), (F.READ_ONLY, F.READ_ONLY), (F.READ_WRITE, F.READ_WRITE)):
        ur.urVirtualMemSetAccess(rt.context, start, g, flags)
        assert access(rt, start) is expected


def test_unmap_waits_for_nothing_but_refuses_while_in_use(rt: Runtime) -> None:
    start = rt.mapped()
    with rt.held() as let_go:
        ur.urEnqueueUSMFill(rt.queue, start, b"x", rt.granule, None)
        with refused(R.ERROR_INVALID_VALUE):
            ur.urVirtualMemUnmap(rt.context, start, rt.granule)
        let_go()
        ur.urQueueFinish(rt.queue)
    ur.urVirtualMemUnmap(rt.context, start, rt.granule)


# --- physical memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ipc", [True, False])
def test_physical_memory_answers(rt: Runtime, ipc: bool) -> None:
    pages = rt.physical(2, ipc)
    assert ur.urPhysicalMemGetInfo(pages, P.CONTEXT) is rt.context
    assert ur.urPhysicalMemGetInfo(pages, P.DEVICE) is rt.device
    assert ur.urPhysicalMemGetInfo(pages, P.SIZE) == 2 * rt.granule
    assert ur.urPhysicalMemGetInfo(pages, P.PROPERTIES) == ur.PhysicalMemProperties(
        ur.PhysicalMemFlags.ENABLE_IPC if ipc else 0
    )
    assert ur.urPhysicalMemGetInfo(pages, P.REFERENCE_COUNT) == 1


def test_physical_memory_errors(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (0, 1, rt.granule + 1):
        with refused(R.ERROR_INVALID_SIZE):
            ur.urPhysicalMemCreate(rt.context, rt.device, size, None)
    with refused(R.ERROR_INVALID_ENUMERATION):  # the bit that is not a flag any more
        ur.urPhysicalMemCreate(rt.context, rt.device, rt.granule, ur.PhysicalMemProperties(1))
    with refused(R.ERROR_INVALID_ARGUMENT):
        ur.urIPCGetPhysMemHandleExp(rt.context, rt.physical(ipc=False))
    rt.without(monkeypatch, Aspect.ext_oneapi_ipc_physical_memory)
    rt.physical(ipc=False)
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        rt.physical()


def test_open_close_and_export_again(rt: Runtime) -> None:
    pages = rt.physical()
    data = ur.urIPCGetPhysMemHandleExp(rt.context, pages)
    opened = ur.urIPCOpenPhysMemHandleExp(rt.context, rt.device, data)
    assert opened is not pages
    assert ur.urPhysicalMemGetInfo(opened, P.SIZE) == rt.granule
    assert ur.urPhysicalMemGetInfo(opened, P.PROPERTIES) == IPC
    ur.urPhysicalMemRelease(pages)  # an import outlives its source
    second = ur.urIPCOpenPhysMemHandleExp(rt.context, rt.device, ur.urIPCGetPhysMemHandleExp(rt.context, opened))
    start = rt.reserve(2)
    for number, each in enumerate((opened, second)):
        ur.urVirtualMemMap(rt.context, start + number * rt.granule, rt.granule, each, 0, F.READ_WRITE)
    rt.fill(start, b"s", rt.granule)
    assert rt.read(start + rt.granule, rt.granule) == b"s" * rt.granule


def test_close_counts_references(rt: Runtime) -> None:
    opened = ur.urIPCOpenPhysMemHandleExp(rt.context, rt.device, ur.urIPCGetPhysMemHandleExp(rt.context, rt.physical()))
    ur.urPhysicalMemRetain(opened)
    ur.urIPCClosePhysMemHandleExp(rt.context, opened)
    assert ur.urPhysicalMemGetInfo(opened, P.REFERENCE_COUNT) == 1
    with refused(R.ERROR_INVALID_CONTEXT):
        ur.urIPCClosePhysMemHandleExp(ur.urContextCreate([rt.device], None), opened)
    ur.urIPCClosePhysMemHandleExp(rt.context, opened)
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urIPCClosePhysMemHandleExp(rt.context, opened)
    with refused(R.ERROR_INVALID_ARGUMENT):  # made here, not opened
        ur.urIPCClosePhysMemHandleExp(rt.context, rt.physical())


def test_put_physical(rt: Runtime) -> None:
    pages = rt.physical()
    data = ur.urIPCGetPhysMemHandleExp(rt.context, pages)
    opened = ur.urIPCOpenPhysMemHandleExp(rt.context, rt.device, data)
    ur.urIPCPutPhysMemHandleExp(rt.context, data)
    for function, arguments in (
        (ur.urIPCPutPhysMemHandleExp, (rt.context, data)),
        (ur.urIPCOpenPhysMemHandleExp, (rt.context, rt.device, data)),
    ):
        with refused(R.ERROR_INVALID_VALUE):
            function(*arguments)
    assert ur.urPhysicalMemGetInfo(opened, P.SIZE) == rt.granule


def test_both_faces_share_physical_memory(rt: Runtime) -> None:
    with xs.PhysicalMemory(rt.granule, "native_cpu:0", enable_ipc=True) as pages:
        handle = xs.ipc.physical_memory.get(pages)
        opened = ur.urIPCOpenPhysMemHandleExp(rt.context, rt.device, bytes(handle))
        assert ur.urPhysicalMemGetInfo(opened, P.SIZE) == rt.granule
        ur.urIPCPutPhysMemHandleExp(rt.context, bytes(handle))
