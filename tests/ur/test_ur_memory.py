"""USM memory and its IPC, within one process."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from unittest.mock import Mock

import numpy as np
import pytest
from ur_runtime import Runtime, refused

import xpushare as xs
from xpushare import ur
from xpushare.common.aspects import Aspect
from xpushare.sharing import node

R = ur.Result
U = ur.USMAllocInfo


@pytest.mark.parametrize(
    ("kind", "allocate"),
    [
        (ur.USMType.DEVICE, lambda rt, size: ur.urUSMDeviceAlloc(rt.context, rt.device, None, None, size)),
        (ur.USMType.HOST, lambda rt, size: ur.urUSMHostAlloc(rt.context, None, None, size)),
        (ur.USMType.SHARED, lambda rt, size: ur.urUSMSharedAlloc(rt.context, rt.device, None, None, size)),
    ],
)
def test_allocate_and_ask(rt: Runtime, kind: ur.USMType, allocate: object) -> None:
    pointer = allocate(rt, 1000)  # type: ignore[operator]
    for inside in (pointer, pointer + 999):
        assert ur.urUSMGetMemAllocInfo(rt.context, inside, U.TYPE) is kind
        assert ur.urUSMGetMemAllocInfo(rt.context, inside, U.BASE_PTR) == pointer
        assert ur.urUSMGetMemAllocInfo(rt.context, inside, U.SIZE) == 1000
        assert ur.urUSMGetMemAllocInfo(rt.context, inside, U.DEVICE) is rt.device
    ur.urUSMFree(rt.context, pointer)
    assert ur.urUSMGetMemAllocInfo(rt.context, pointer, U.TYPE) is ur.USMType.UNKNOWN
    with refused(R.ERROR_INVALID_VALUE):
        ur.urUSMGetMemAllocInfo(rt.context, pointer, U.SIZE)


def test_alignment_and_size(rt: Runtime) -> None:
    for align in (0, 1, 2, 64, 128):
        pointer = ur.urUSMDeviceAlloc(rt.context, rt.device, ur.USMDesc(align=align), None, 8)
        assert pointer % (align or 1) == 0
    for align in (3, 24, 256, 1 << 31):
        with refused(R.ERROR_INVALID_VALUE):
            ur.urUSMDeviceAlloc(rt.context, rt.device, ur.USMDesc(align=align), None, 8)
    largest = ur.urDeviceGetInfo(rt.device, ur.DeviceInfo.MAX_MEM_ALLOC_SIZE)
    for size in (0, largest + 1):
        with refused(R.ERROR_INVALID_USM_SIZE):
            rt.memory(size)


def test_free(rt: Runtime) -> None:
    pointer = rt.memory()
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urUSMFree(rt.context, pointer + 1)
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urUSMFree(ur.urContextCreate([rt.device], None), pointer)
    ur.urUSMFree(rt.context, pointer)
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urUSMFree(rt.context, pointer)
    with xs.malloc_device(64, "native_cpu:0") as memory, refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urUSMFree(rt.context, memory.ptr)  # the object face's is closed by the object


def test_nothing_leaks(rt: Runtime, no_fd_leak: None) -> None:  # noqa: ARG001
    for _ in range(20):
        pointer = rt.memory()
        data = ur.urIPCGetMemHandleExp(rt.context, pointer)
        opened = ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
        ur.urIPCCloseMemHandleExp(rt.context, opened)
        ur.urIPCPutMemHandleExp(rt.context, data)
        ur.urUSMFree(rt.context, pointer)
    assert node.current().allocations.find(pointer) is None


# --- copies and fills -------------------------------------------------------------------------------


def test_fill_and_copy(rt: Runtime) -> None:
    a, b = rt.memory(64), rt.memory(64)
    first = ur.urEnqueueUSMFill(rt.queue, a, b"abcd", 64, None)
    second = ur.urEnqueueUSMMemcpy(rt.queue, False, b, a, 32, [first])
    third = ur.urEnqueueUSMMemcpy(rt.queue, True, b + 32, a + 1, 16, [second])
    assert rt.status(third) is ur.EventStatus.COMPLETE
    assert rt.read(b, 64) == b"abcd" * 8 + b"bcda" * 4 + bytes(16)
    assert ur.urEventGetInfo(first, ur.EventInfo.COMMAND_TYPE) is ur.Command.USM_FILL
    assert ur.urEventGetInfo(second, ur.EventInfo.COMMAND_TYPE) is ur.Command.USM_MEMCPY
    assert ur.urEventGetInfo(second, ur.EventInfo.COMMAND_QUEUE) is rt.queue
    assert ur.urEventGetInfo(second, ur.EventInfo.CONTEXT) is rt.context


def test_copy_sizes(rt: Runtime) -> None:
    a, b = rt.memory(64), rt.memory(32)
    for arguments in ((a, b, 33), (b, a, 33), (a + 33, b, 32), (a, b, 0)):
        with refused(R.ERROR_INVALID_SIZE):
            ur.urEnqueueUSMMemcpy(rt.queue, True, *arguments, [])
    for pattern, size in ((b"a", 65), (b"", 8), (b"abc", 8), (b"abcd", 2), (b"a", 0)):
        with refused(R.ERROR_INVALID_SIZE):
            ur.urEnqueueUSMFill(rt.queue, a, pattern, size, [])


def test_blocking_copy_waits(rt: Runtime) -> None:
    a, b = rt.memory(64), rt.memory(64)
    with rt.held() as let_go:
        ur.urEnqueueUSMFill(rt.queue, a, b"z", 64, None)
        event = ur.urEnqueueUSMMemcpy(rt.queue, False, b, a, 64, None)
        assert rt.status(event) is ur.EventStatus.SUBMITTED
        let_go()
        last = ur.urEnqueueUSMMemcpy(rt.queue, True, b, a, 64, None)
        assert rt.status(last) is ur.EventStatus.COMPLETE
        assert rt.status(event) is ur.EventStatus.COMPLETE


def test_freed_memory_stays_for_its_commands(rt: Runtime) -> None:
    a, b = rt.memory(64), rt.memory(64)
    with rt.held() as let_go:
        ur.urEnqueueUSMFill(rt.queue, a, b"z", 64, None)
        ur.urEnqueueUSMMemcpy(rt.queue, False, b, a, 64, None)
        ur.urUSMFree(rt.context, a)
        let_go()
        ur.urQueueFinish(rt.queue)
    assert rt.read(b, 64) == b"z" * 64


def test_memory_of_the_object_face(rt: Runtime) -> None:
    with xs.malloc_device(64, "native_cpu:0") as memory:
        rt.fill(memory.ptr, b"q", 64)
        assert bytes(memoryview(memory)) == b"q" * 64
        assert ur.urUSMGetMemAllocInfo(rt.context, memory.ptr, U.TYPE) is ur.USMType.DEVICE
        data = ur.urIPCGetMemHandleExp(rt.context, memory.ptr + 8)
        with xs.ipc.memory.open(data) as opened:
            assert opened.nbytes == 56
        ur.urIPCPutMemHandleExp(rt.context, data)


@pytest.mark.parametrize("backend", ["native_cpu", "mock"])
def test_ordinary_host_memory(backend: str, request: pytest.FixtureRequest) -> None:
    runtime: Runtime = request.getfixturevalue("rt" if backend == "native_cpu" else "mock")
    queue, pointer = runtime.queue, runtime.memory(8192)
    array = (ctypes.c_char * 8192)()
    address = ctypes.addressof(array)
    ur.urEventWait([ur.urEnqueueUSMFill(queue, address, b"ab", 8192, None)])
    assert bytes(array) == b"ab" * 4096
    ur.urEnqueueUSMMemcpy(queue, True, pointer, address, 8192, None)
    ur.urEventWait([ur.urEnqueueUSMFill(queue, address, b"c", 100, None)])
    assert array[:102] == b"c" * 100 + b"ab"
    ur.urEnqueueUSMMemcpy(queue, True, address, pointer, 50, None)
    assert array[:52] == b"ab" * 25 + b"cc"
    assert ur.urUSMGetMemAllocInfo(runtime.context, address, U.TYPE) is ur.USMType.UNKNOWN


def test_host_memory_that_is_not_there(rt: Runtime) -> None:
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 3 * page, prot=mmap.PROT_READ)
    start = ctypes.addressof(array := (ctypes.c_char * 1).from_buffer_copy(b"x"))
    first = np.frombuffer(pages, np.uint8).ctypes.data
    ur.urEnqueueUSMMemcpy(rt.queue, True, rt.memory(3 * page), first, 3 * page, None)
    for wrong in (lambda: ur.urEnqueueUSMFill(rt.queue, first, b"x", 16, None),
                  lambda: ur.urEnqueueUSMMemcpy(rt.queue, True, first + page, start, 1, None),
                  lambda: ur.urEnqueueUSMMemcpy(rt.queue, True, rt.memory(), 4096, 16, None),
                  lambda: ur.urEnqueueUSMFill(rt.queue, start, b"x", 1 << 46, None)):  # fmt: skip
        with refused(R.ERROR_INVALID_MEM_OBJECT):
            wrong()
    assert array.value == b"x"


def test_rows(rt: Runtime) -> None:
    source, target = rt.memory(), rt.memory()
    ur.urEventWait([ur.urEnqueueUSMFill2D(rt.queue, source, 8, b"abcd", 6, 4, None)])
    assert rt.read(source, 32) == b"abcdab\0\0cdabcd\0\0abcdab\0\0cdabcd\0\0"  # it runs on from row to row
    ur.urEnqueueUSMMemcpy2D(rt.queue, True, target, 5, source, 8, 4, 3, [])
    assert rt.read(target, 15) == b"abcd\0cdab\0abcd\0"
    for wrong in (
        lambda: ur.urEnqueueUSMMemcpy2D(rt.queue, True, target, 1 << 10, source, 8, 4, 5, None),
        lambda: ur.urEnqueueUSMFill2D(rt.queue, source, 8, b"abcd", 6, 1000, None),
        lambda: ur.urEnqueueUSMFill2D(rt.queue, source, 8, b"abc", 6, 4, None),
    ):
        with refused(R.ERROR_INVALID_SIZE):
            wrong()


def test_copies_without_a_queue(rt: Runtime) -> None:
    pointer, array = rt.memory(), ctypes.create_string_buffer(b"0123456789", 10)
    ur.urUSMContextMemcpyExp(rt.context, pointer, ctypes.addressof(array), 10)
    assert rt.read(pointer, 10) == b"0123456789"
    with refused(R.ERROR_INVALID_SIZE):
        ur.urUSMContextMemcpyExp(rt.context, pointer, pointer, 8192)


def test_hints(rt: Runtime) -> None:
    """They complete in their order."""
    pointer = rt.memory()
    with rt.held() as go:
        hints = [
            ur.urEnqueueUSMPrefetch(rt.queue, pointer, 16, 1, None),
            ur.urEnqueueUSMAdvise(rt.queue, pointer, 16, 1),
        ]
        assert {rt.status(each) for each in hints} == {ur.EventStatus.SUBMITTED}
        go()
    ur.urEventWait(hints)
    with refused(R.ERROR_INVALID_SIZE):
        ur.urEnqueueUSMAdvise(rt.queue, pointer, 4097, 1)
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urEnqueueUSMPrefetch(rt.queue, rt.ordinary(), 16, 1, None)


def test_registered_host_memory(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*;mock:*")
    mock = Runtime("mock")
    address = rt.registered()
    assert ur.urUSMGetMemAllocInfo(rt.context, address + 8, U.TYPE) is ur.USMType.HOST
    assert ur.urUSMGetMemAllocInfo(rt.context, address + 8, U.BASE_PTR) == address
    assert ur.urUSMGetMemAllocInfo(rt.context, address + 8, U.SIZE) == 4096
    rt.fill(address, b"r", 16)
    assert ctypes.string_at(address, 16) == b"r" * 16
    for wrong, result in (
        (lambda: ur.urUSMHostAllocRegisterExp(rt.context, address + 4095, 16, None), R.ERROR_INVALID_VALUE),
        (lambda: ur.urUSMHostAllocRegisterExp(mock.context, mock.ordinary(), 16, None), R.ERROR_UNSUPPORTED_FEATURE),
        (lambda: ur.urUSMFree(rt.context, address), R.ERROR_INVALID_MEM_OBJECT),
        (lambda: ur.urIPCGetMemHandleExp(rt.context, address), R.ERROR_INVALID_ARGUMENT),
        (lambda: ur.urUSMHostAllocUnregisterExp(rt.context, address + 8), R.ERROR_INVALID_VALUE),
    ):
        with refused(result):
            wrong()
    ur.urUSMHostAllocUnregisterExp(rt.context, address)
    assert ur.urUSMGetMemAllocInfo(rt.context, address, U.TYPE) is ur.USMType.UNKNOWN


def test_a_file_descriptor_of_an_allocation(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    fd_type = ur.ExpExternalMemType.OPAQUE_FD
    pointer = ur.urMemoryExportAllocExportableMemoryExp(rt.context, rt.device, 0, 8192, fd_type)
    rt.fill(pointer, b"x", 8192)
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", Mock(side_effect=OSError(errno.EMFILE, "x")))
        with refused(R.ERROR_OUT_OF_RESOURCES):
            ur.urMemoryExportExportMemoryHandleExp(rt.context, rt.device, fd_type, pointer)
    fd = ur.urMemoryExportExportMemoryHandleExp(rt.context, rt.device, fd_type, pointer)
    assert not os.get_inheritable(fd)
    ur.urMemoryExportFreeExportableMemoryExp(rt.context, rt.device, pointer)
    with mmap.mmap(fd, 8192) as mapped:
        assert mapped[:] == b"x" * 8192
    os.close(fd)
    for kind in (ur.ExpExternalMemType.DMA_BUF, ur.ExpExternalMemType.WIN32_NT):
        with refused(R.ERROR_UNSUPPORTED_FEATURE):
            ur.urMemoryExportAllocExportableMemoryExp(rt.context, rt.device, 0, 8192, kind)


def test_peer_access(mock: Runtime) -> None:
    first, second = mock.devices
    I = ur.ExpPeerInfo  # noqa: E741
    mock.no_peer()
    assert ur.urUsmP2PPeerAccessGetInfoExp(first, second, I.UR_PEER_ACCESS_SUPPORT) == 1
    assert ur.urUsmP2PPeerAccessGetInfoExp(first, second, I.UR_PEER_ATOMICS_SUPPORT) == 0
    ur.urUsmP2PEnablePeerAccessExp(first, second)
    with refused(R.ERROR_INVALID_OPERATION):
        ur.urUsmP2PEnablePeerAccessExp(first, second)
    with refused(R.ERROR_INVALID_OPERATION):
        ur.urUsmP2PDisablePeerAccessExp(second, first)
    ur.urUsmP2PDisablePeerAccessExp(first, second)


def test_no_peers(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*;mock:*")
    other = Runtime("mock").device
    assert ur.urUsmP2PPeerAccessGetInfoExp(rt.device, other, ur.ExpPeerInfo.UR_PEER_ACCESS_SUPPORT) == 0
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        ur.urUsmP2PEnablePeerAccessExp(rt.device, other)


# --- IPC ------------------------------------------------------------------------------------------------


def test_handle_data_are_the_object_faces(rt: Runtime) -> None:
    pointer = rt.memory(100)
    first, second = (ur.urIPCGetMemHandleExp(rt.context, pointer) for _ in range(2))
    assert first != second
    handle = xs.ipc.Handle(first)
    assert (handle.kind, handle.nbytes, handle.backend) == ("memory", 100, "native_cpu")
    inner = ur.urIPCGetMemHandleExp(rt.context, pointer + 60)
    assert xs.ipc.Handle(inner).nbytes == 40
    assert ur.urIPCOpenMemHandleExp(rt.context, rt.device, inner) == (
        ur.urIPCOpenMemHandleExp(rt.context, rt.device, first) + 60
    )


def test_put(rt: Runtime) -> None:
    pointer = rt.memory()
    data = ur.urIPCGetMemHandleExp(rt.context, pointer)
    opened = ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    ur.urIPCPutMemHandleExp(rt.context, data)
    with refused(R.ERROR_INVALID_VALUE):  # put twice
        ur.urIPCPutMemHandleExp(rt.context, data)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    rt.fill(opened, b"1", 16)  # what is open stays
    assert rt.read(pointer, 16) == b"1" * 16


def test_free_ends_the_handles(rt: Runtime) -> None:
    pointer = rt.memory()
    kept = [ur.urIPCGetMemHandleExp(rt.context, each) for each in (pointer, pointer + 8)]
    other = ur.urIPCGetMemHandleExp(rt.context, rt.memory())
    opened = ur.urIPCOpenMemHandleExp(rt.context, rt.device, kept[0])
    ur.urUSMFree(rt.context, pointer)
    for data in kept:
        with pytest.raises(ur.URError, match="closed") as raised:
            ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
        assert raised.value.result is R.ERROR_INVALID_VALUE
        assert isinstance(raised.value.__cause__, xs.HandleExpiredError)
        ur.urIPCPutMemHandleExp(rt.context, data)  # after the free: allowed, once
        with refused(R.ERROR_INVALID_VALUE):
            ur.urIPCPutMemHandleExp(rt.context, data)
    ur.urIPCCloseMemHandleExp(rt.context, ur.urIPCOpenMemHandleExp(rt.context, rt.device, other))
    rt.fill(opened, b"2", 16)  # outlives its source
    with refused(R.ERROR_INVALID_MEM_OBJECT):  # opened memory is closed, not freed
        ur.urUSMFree(rt.context, opened)
    with refused(R.ERROR_INVALID_ARGUMENT):  # nor exported again
        ur.urIPCGetMemHandleExp(rt.context, opened)
    ur.urIPCCloseMemHandleExp(rt.context, opened)
    assert ur.urUSMGetMemAllocInfo(rt.context, opened, U.TYPE) is ur.USMType.UNKNOWN


@pytest.mark.parametrize("backend", ["native_cpu", "mock"])
def test_open_in_the_exporters_own_process(
    backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it returned is not freed, nor the original through it; the aspect is checked as in any other process."""
    runtime: Runtime = request.getfixturevalue("rt" if backend == "native_cpu" else "mock")
    pointer = runtime.memory()
    data = ur.urIPCGetMemHandleExp(runtime.context, pointer)
    opened = ur.urIPCOpenMemHandleExp(runtime.context, runtime.device, data)
    assert opened != pointer
    runtime.fill(opened, b"7", 16)
    assert runtime.read(pointer, 16) == b"7" * 16
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urUSMFree(runtime.context, opened)
    with refused(R.ERROR_INVALID_ARGUMENT):
        ur.urIPCCloseMemHandleExp(runtime.context, pointer)
    ur.urIPCCloseMemHandleExp(runtime.context, opened)
    assert runtime.read(pointer, 16) == b"7" * 16
    runtime.without(monkeypatch, Aspect.ext_oneapi_ipc_memory)
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        ur.urIPCOpenMemHandleExp(runtime.context, runtime.device, data)
    ur.urUSMFree(runtime.context, pointer)


def test_each_open_has_its_close(rt: Runtime) -> None:
    data = ur.urIPCGetMemHandleExp(rt.context, rt.memory())
    opened = [ur.urIPCOpenMemHandleExp(rt.context, rt.device, data) for _ in range(3)]
    for pointer in opened:
        ur.urIPCCloseMemHandleExp(rt.context, pointer)
    with refused(R.ERROR_INVALID_ARGUMENT):
        ur.urIPCCloseMemHandleExp(rt.context, opened[0])
    with refused(R.ERROR_INVALID_ARGUMENT):  # allocated, never opened
        ur.urIPCCloseMemHandleExp(rt.context, rt.memory())


def test_close_in_its_own_context(rt: Runtime) -> None:
    other = ur.urContextCreate([rt.device], None)
    data = ur.urIPCGetMemHandleExp(rt.context, rt.memory())
    pointer = ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    with refused(R.ERROR_INVALID_CONTEXT):
        ur.urIPCCloseMemHandleExp(other, pointer)
    again = ur.urIPCOpenMemHandleExp(other, rt.device, data)
    ur.urIPCCloseMemHandleExp(other, again)
    ur.urIPCCloseMemHandleExp(rt.context, pointer)


def test_context_without_the_memorys_device(mock: Runtime) -> None:
    other = ur.urContextCreate([mock.devices[1]], None)
    with refused(R.ERROR_INVALID_CONTEXT):
        ur.urIPCGetMemHandleExp(other, mock.memory())
    with refused(R.ERROR_INVALID_CONTEXT):
        ur.urIPCGetPhysMemHandleExp(other, mock.physical())


def test_what_cannot_be_exported(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(R.ERROR_INVALID_ARGUMENT):
        ur.urIPCGetMemHandleExp(rt.context, rt.mapped())
    pointer = rt.memory()
    rt.without(monkeypatch, Aspect.ext_oneapi_ipc_memory)
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        ur.urIPCGetMemHandleExp(rt.context, pointer)


def test_handles_of_the_object_face(rt: Runtime) -> None:
    with xs.malloc_device(64, "native_cpu:0") as memory:
        handle = xs.ipc.memory.get(memory, read_only=True)
        pointer = ur.urIPCOpenMemHandleExp(rt.context, rt.device, bytes(handle))
        assert rt.read(pointer, 64) == bytes(64)
        with refused(R.ERROR_INVALID_MEM_OBJECT):  # read-only
            ur.urEnqueueUSMFill(rt.queue, pointer, b"x", 64, None)
        ur.urIPCCloseMemHandleExp(rt.context, pointer)
        ur.urIPCPutMemHandleExp(rt.context, bytes(handle))


def test_handle_of_another_backend(rt: Runtime, mock: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*;mock:*")
    pointer = rt.memory(64)
    rt.fill(pointer, b"abcd", 64)
    data = ur.urIPCGetMemHandleExp(rt.context, pointer + 32)
    opened = ur.urIPCOpenMemHandleExp(mock.context, mock.device, data)
    assert mock.read(opened, 32) == b"abcd" * 8
    assert ur.urUSMGetMemAllocInfo(mock.context, opened, U.TYPE) is ur.USMType.HOST
    assert ur.urUSMGetMemAllocInfo(mock.context, opened, U.DEVICE) is mock.device
    with refused(R.ERROR_INVALID_CONTEXT):
        ur.urIPCCloseMemHandleExp(rt.context, opened)
    ur.urIPCPutMemHandleExp(rt.context, data)
    ur.urUSMFree(rt.context, pointer)
    mock.fill(opened, b"x", 32)  # what is open stays
    ur.urIPCCloseMemHandleExp(mock.context, opened)


def test_handle_of_another_backend_that_cannot_be_imported(
    rt: Runtime, mock: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mock.device.shared._adapter, "imports", lambda _device, _physical: {})
    data = ur.urIPCGetMemHandleExp(rt.context, rt.memory())
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        ur.urIPCOpenMemHandleExp(mock.context, mock.device, data)
