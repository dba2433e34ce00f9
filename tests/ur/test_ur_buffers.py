"""Buffers, and the commands that reach them."""

from __future__ import annotations

import ctypes
import itertools

import pytest
from ur_runtime import Runtime, refused

import xpushare as xs
from xpushare import ur
from xpushare.adapters.host.memory import HostMemory

R = ur.Result
F = ur.MemFlags
OFFSET, REGION = ur.RectOffset, ur.RectRegion
NUMBERS = bytes(range(256))


def contents(rt: Runtime, buffer: ur.Mem, size: int) -> bytes:
    target = (ctypes.c_char * size)()
    ur.urEnqueueMemBufferRead(rt.queue, buffer, True, 0, size, ctypes.addressof(target), None)
    return bytes(target)


def write(rt: Runtime, buffer: ur.Mem, data: bytes, offset: int = 0) -> None:
    source = (ctypes.c_char * len(data)).from_buffer_copy(data)
    ur.urEnqueueMemBufferWrite(rt.queue, buffer, True, offset, len(data), ctypes.addressof(source), None)


def numbered(rt: Runtime) -> ur.Mem:
    buffer = rt.buffer(256)
    write(rt, buffer, NUMBERS)
    return buffer


def test_what_a_buffer_is(rt: Runtime) -> None:
    buffer = rt.buffer(100)
    assert ur.urMemGetInfo(buffer, ur.MemInfo.SIZE) == 100
    assert ur.urMemGetInfo(buffer, ur.MemInfo.CONTEXT) is rt.context
    ur.urMemRetain(buffer)
    assert ur.urMemGetInfo(buffer, ur.MemInfo.REFERENCE_COUNT) == 2
    ur.urMemRelease(buffer)
    ur.urMemRelease(buffer)
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urMemGetInfo(buffer, ur.MemInfo.SIZE)


@pytest.mark.parametrize("backend", ["native_cpu", "mock"])
def test_bytes_go_in_and_out(backend: str, request: pytest.FixtureRequest) -> None:
    rt: Runtime = request.getfixturevalue("rt" if backend == "native_cpu" else "mock")
    buffer, other = numbered(rt), rt.buffer(256)
    assert contents(rt, buffer, 256) == NUMBERS
    write(rt, buffer, b"between", 100)
    ur.urEnqueueMemBufferCopy(rt.queue, buffer, other, 98, 10, 11, None)
    ur.urEnqueueMemBufferFill(rt.queue, other, b"xy", 20, 6, None)
    ur.urEnqueueMemBufferCopy(rt.queue, buffer, other, 0, 0, 0, None)
    assert contents(rt, other, 30)[10:26] == b"bcbetweenkxyxyxy"


def test_commands_of_a_buffer_have_events(rt: Runtime) -> None:
    buffer, pointer = rt.buffer(), rt.memory()
    with rt.held() as go:
        made = [
            ur.urEnqueueMemBufferRead(rt.queue, buffer, False, 0, 64, pointer, None),
            ur.urEnqueueMemBufferWrite(rt.queue, buffer, False, 0, 64, pointer, None),
            ur.urEnqueueMemBufferFill(rt.queue, buffer, b"a", 0, 64, None),
        ]
        other = ur.urQueueCreate(rt.context, rt.device, None)
        made.append(ur.urEnqueueMemBufferCopy(other, buffer, buffer, 0, 64, 64, made))
        assert {rt.status(each) for each in made} == {ur.EventStatus.SUBMITTED}
        ur.urMemRelease(buffer)  # the commands keep its bytes
        go()
        ur.urEventWait(made)
    kinds = [ur.urEventGetInfo(each, ur.EventInfo.COMMAND_TYPE) for each in made]
    C = ur.Command
    assert kinds == [C.MEM_BUFFER_READ, C.MEM_BUFFER_WRITE, C.MEM_BUFFER_FILL, C.MEM_BUFFER_COPY]


def test_too_many_bytes(rt: Runtime) -> None:
    buffer, pointer = rt.buffer(64), rt.memory()
    for offset, size in ((0, 65), (64, 1), (1 << 63, 1 << 63)):
        for command in (ur.urEnqueueMemBufferRead, ur.urEnqueueMemBufferWrite):
            with refused(R.ERROR_INVALID_SIZE):
                command(rt.queue, buffer, True, offset, size, pointer, None)
        with refused(R.ERROR_INVALID_SIZE):
            ur.urEnqueueMemBufferCopy(rt.queue, buffer, buffer, offset, 0, size, None)
        with refused(R.ERROR_INVALID_SIZE):
            ur.urEnqueueMemBufferMap(rt.queue, buffer, True, ur.MapFlags.READ, offset, size, None)
    with refused(R.ERROR_INVALID_SIZE):
        ur.urEnqueueMemBufferFill(rt.queue, buffer, b"ab", 1, 4, None)
    with refused(R.ERROR_INVALID_SIZE):
        ur.urEnqueueMemBufferFill(rt.queue, buffer, b"abc", 0, 6, None)


def test_where_the_bytes_are(rt: Runtime) -> None:
    ours = (ctypes.c_char * 64).from_buffer_copy(NUMBERS[:64])
    given = ur.BufferProperties(ctypes.addressof(ours))
    used = ur.urMemBufferCreate(rt.context, F.USE_HOST_POINTER, 64, given)
    copied = ur.urMemBufferCreate(rt.context, F.ALLOC_COPY_HOST_POINTER, 64, given)
    hosted = ur.urMemBufferCreate(rt.context, F.ALLOC_HOST_POINTER, 64, None)
    for each in (used, copied, hosted):
        ur.urEnqueueMemBufferFill(rt.queue, each, b"z", 0, 1, None)
        ur.urQueueFinish(rt.queue)
    assert bytes(ours) == b"z" + NUMBERS[1:64]
    assert contents(rt, copied, 64) == b"z" + NUMBERS[1:64]
    for flags, properties in (
        (F.USE_HOST_POINTER, None),
        (F.ALLOC_COPY_HOST_POINTER, ur.BufferProperties()),
        (F.READ_WRITE, given),
        (F.USE_HOST_POINTER, ur.BufferProperties(4096)),  # nothing is there
    ):
        with refused(R.ERROR_INVALID_HOST_PTR):
            ur.urMemBufferCreate(rt.context, flags, 64, properties)
    for size in (0, 1 << 60):
        with refused(R.ERROR_INVALID_BUFFER_SIZE):
            ur.urMemBufferCreate(rt.context, F.READ_WRITE, size, None)


def test_a_buffer_of_several_devices(mock: Runtime) -> None:
    """Its bytes are host memory, which all of them reach."""
    both = ur.urContextCreate(mock.devices[:2], None)
    buffer = ur.urMemBufferCreate(both, F.READ_WRITE, 64, None)
    for number, device in enumerate(mock.devices[:2]):
        queue = ur.urQueueCreate(both, device, None)
        ur.urEnqueueMemBufferFill(queue, buffer, bytes([65 + number]), 32 * number, 32, None)
        ur.urQueueFinish(queue)
    assert contents(mock, buffer, 64) == b"A" * 32 + b"B" * 32


@pytest.mark.parametrize("host", [False, True])
def test_parts(rt: Runtime, host: bool) -> None:
    ours = (ctypes.c_char * 256).from_buffer_copy(NUMBERS)
    given = ur.BufferProperties(ctypes.addressof(ours))
    whole = ur.urMemBufferCreate(rt.context, F.USE_HOST_POINTER, 256, given) if host else numbered(rt)
    part = ur.urMemBufferPartition(whole, F.READ_WRITE, ur.BufferCreateType.REGION, ur.BufferRegion(16, 8))
    assert ur.urMemGetInfo(part, ur.MemInfo.SIZE) == 8
    assert contents(rt, part, 8) == NUMBERS[16:24]
    ur.urEnqueueMemBufferFill(rt.queue, part, b"p", 4, 4, None)
    assert contents(rt, whole, 32)[16:25] == NUMBERS[16:20] + b"pppp" + NUMBERS[24:25]
    with refused(R.ERROR_INVALID_SIZE):
        ur.urEnqueueMemBufferFill(rt.queue, part, b"p", 4, 5, None)
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urMemBufferPartition(part, F.READ_WRITE, ur.BufferCreateType.REGION, ur.BufferRegion(0, 1))
    for region in (ur.BufferRegion(0, 0), ur.BufferRegion(256, 1), ur.BufferRegion(1 << 63, 1 << 63)):
        with refused(R.ERROR_INVALID_BUFFER_SIZE):
            ur.urMemBufferPartition(whole, F.READ_WRITE, ur.BufferCreateType.REGION, region)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urMemBufferPartition(whole, F.ALLOC_HOST_POINTER, ur.BufferCreateType.REGION, ur.BufferRegion(0, 1))
    ur.urMemRelease(whole)
    assert contents(rt, part, 8) == NUMBERS[16:20] + b"pppp"


# --- boxes


def places(origin: ur.RectOffset, region: ur.RectRegion, row: int, slice_: int) -> list[int]:
    """Where each byte of a box lies, one at a time."""
    row = row or region.width
    slice_ = slice_ or row * region.height
    return [
        (origin.z + z) * slice_ + (origin.y + y) * row + origin.x + x
        for z, y, x in itertools.product(range(region.depth), range(region.height), range(region.width))
    ]


BOXES = [
    pytest.param(OFFSET(2, 1, 0), REGION(3, 2, 2), 8, 32, 4, 12, id="gaps"),
    pytest.param(OFFSET(0, 0, 0), REGION(8, 4, 2), 8, 32, 8, 32, id="one-piece"),
    pytest.param(OFFSET(0, 1, 1), REGION(8, 2, 2), 8, 32, 8, 40, id="slices"),
    pytest.param(OFFSET(1, 0, 0), REGION(4, 1, 3), 0, 16, 0, 0, id="without-row-pitch"),
    pytest.param(OFFSET(0, 0, 0), REGION(5, 3, 1), 0, 0, 5, 0, id="no-pitches"),
]


@pytest.mark.parametrize(("origin", "region", "row", "slice_", "row_to", "slice_to"), BOXES)
def test_boxes(
    rt: Runtime, origin: ur.RectOffset, region: ur.RectRegion, row: int, slice_: int, row_to: int, slice_to: int
) -> None:
    to = OFFSET(1, 1, 0)
    wanted = bytearray(256)
    for begin, end in zip(places(origin, region, row, slice_), places(to, region, row_to, slice_to), strict=True):
        wanted[end] = NUMBERS[begin]
    buffer, other = numbered(rt), rt.buffer(256)
    target = (ctypes.c_char * 256)()
    here = ctypes.addressof(target)
    pitches = row, slice_, row_to, slice_to
    ur.urEnqueueMemBufferReadRect(rt.queue, buffer, True, origin, to, region, *pitches, here, None)
    assert bytes(target) == wanted
    ur.urEnqueueMemBufferCopyRect(rt.queue, buffer, other, origin, to, region, *pitches, None)
    assert contents(rt, other, 256) == wanted
    written = rt.buffer(256)
    source = (ctypes.c_char * 256).from_buffer_copy(NUMBERS)
    turned = row_to, slice_to, row, slice_
    ur.urEnqueueMemBufferWriteRect(rt.queue, written, True, to, origin, region, *turned, ctypes.addressof(source), None)
    assert contents(rt, written, 256) == wanted


def test_boxes_that_do_not_fit(rt: Runtime) -> None:
    buffer, pointer = rt.buffer(64), rt.memory(64)
    zero, good = OFFSET(), REGION(4, 2, 2)
    for origin, region, pitches in (
        (zero, REGION(0, 1, 1), (0, 0, 0, 0)),
        (zero, REGION(1, 0, 1), (0, 0, 0, 0)),
        (zero, REGION(1, 1, 0), (0, 0, 0, 0)),
        (zero, good, (3, 0, 0, 0)),
        (zero, good, (0, 0, 3, 0)),
        (zero, good, (8, 15, 0, 0)),
        (zero, good, (8, 20, 0, 0)),
        (zero, good, (0, 0, 8, 20)),
        (zero, REGION(64, 2, 1), (0, 0, 0, 0)),
        (OFFSET(61, 0, 0), good, (0, 0, 0, 0)),
        (OFFSET(0, 0, 3), good, (8, 16, 0, 0)),
    ):
        with refused(R.ERROR_INVALID_SIZE):
            ur.urEnqueueMemBufferReadRect(rt.queue, buffer, True, origin, zero, region, *pitches, pointer, None)
        with refused(R.ERROR_INVALID_SIZE):
            ur.urEnqueueMemBufferWriteRect(rt.queue, buffer, True, origin, zero, region, *pitches, pointer, None)
        with refused(R.ERROR_INVALID_SIZE):
            ur.urEnqueueMemBufferCopyRect(rt.queue, buffer, buffer, origin, zero, region, *pitches, None)
    with refused(R.ERROR_INVALID_SIZE):  # the program's memory is too short
        ur.urEnqueueMemBufferReadRect(rt.queue, buffer, True, zero, OFFSET(61), good, 0, 0, 0, 0, pointer, None)


# --- mapped bytes


@pytest.mark.parametrize("staged", [False, True])
def test_mapped_bytes(rt: Runtime, staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMemory, "host_accessible", not staged)  # memory of a GPU is not
    buffer = numbered(rt)
    _event, address = ur.urEnqueueMemBufferMap(rt.queue, buffer, True, ur.MapFlags.READ, 16, 8, None)
    assert (address != buffer.piece.address + 16) == staged
    assert ctypes.string_at(address, 8) == NUMBERS[16:24]
    ur.urEnqueueMemUnmap(rt.queue, buffer, address, None)
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urEnqueueMemUnmap(rt.queue, buffer, address, None)
    for flags in (ur.MapFlags.WRITE, ur.MapFlags.WRITE_INVALIDATE_REGION):
        event, address = ur.urEnqueueMemBufferMap(rt.queue, buffer, False, flags, 32, 4, None)
        ur.urEventWait([event])
        ctypes.memmove(address, bytes([int(flags)] * 4), 4)
        ended = ur.urEnqueueMemUnmap(rt.queue, buffer, address, None)
        ur.urEventWait([ended])
        assert contents(rt, buffer, 64)[31:37] == NUMBERS[31:32] + bytes([int(flags)] * 4) + NUMBERS[36:37]
        assert ur.urEventGetInfo(ended, ur.EventInfo.COMMAND_TYPE) is ur.Command.MEM_UNMAP
    with refused(R.ERROR_INVALID_SIZE):
        ur.urEnqueueMemBufferMap(rt.queue, buffer, True, ur.MapFlags.READ, 0, 0, None)


def test_an_unmap_that_fails_can_be_tried_again(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMemory, "host_accessible", False)
    buffer = numbered(rt)
    _event, address = ur.urEnqueueMemBufferMap(rt.queue, buffer, True, ur.MapFlags.WRITE, 0, 4, None)
    ctypes.memmove(address, b"mine", 4)

    def full(*_arguments: object) -> None:
        raise xs.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch, refused(R.ERROR_OUT_OF_HOST_MEMORY):
        patch.setattr("xpushare.core.queue.copy", full)
        ur.urEnqueueMemUnmap(rt.queue, buffer, address, None)
    ur.urEventWait([ur.urEnqueueMemUnmap(rt.queue, buffer, address, None)])
    assert contents(rt, buffer, 64)[:5] == b"mine" + NUMBERS[4:5]


def test_the_same_bytes_mapped_twice(rt: Runtime) -> None:
    buffer = numbered(rt)
    addresses = [ur.urEnqueueMemBufferMap(rt.queue, buffer, True, ur.MapFlags.READ, 0, 8, None)[1] for _ in range(2)]
    for address in addresses:
        ur.urEnqueueMemUnmap(rt.queue, buffer, address, None)
    with refused(R.ERROR_INVALID_MEM_OBJECT):
        ur.urEnqueueMemUnmap(rt.queue, buffer, addresses[0], None)


# --- pools


def test_pools(rt: Runtime) -> None:
    P = ur.USMPoolInfo
    pool = rt.pool(ur.USMPoolFlags.ZERO_INITIALIZE_BLOCK)
    ask = lambda what: ur.urUSMPoolGetInfo(pool, what)  # noqa: E731
    assert ask(P.CONTEXT) is rt.context
    addresses = [
        ur.urUSMDeviceAlloc(rt.context, rt.device, None, pool, 4096),
        ur.urUSMHostAlloc(rt.context, None, pool, 8192),
        ur.urUSMSharedAlloc(rt.context, rt.device, None, pool, 4096),
    ]
    for address in addresses:
        assert ur.urUSMGetMemAllocInfo(rt.context, address, ur.USMAllocInfo.POOL) is pool
        assert rt.read(address, 64) == bytes(64)
    assert ur.urUSMGetMemAllocInfo(rt.context, rt.memory(), ur.USMAllocInfo.POOL) is None
    assert (ask(P.USED_CURRENT_EXP), ask(P.RESERVED_CURRENT_EXP)) == (16384, 16384)
    ur.urUSMFree(rt.context, addresses[1])
    assert (ask(P.USED_CURRENT_EXP), ask(P.USED_HIGH_EXP), ask(P.RESERVED_HIGH_EXP)) == (8192, 16384, 16384)
    assert ask(P.RELEASE_THRESHOLD_EXP) == 0
    with refused(R.ERROR_UNSUPPORTED_ENUMERATION):
        ask(P.MAXIMUM_SIZE_EXP)
    ur.urUSMPoolRetain(pool)
    assert ask(P.REFERENCE_COUNT) == 2
    ur.urUSMPoolRelease(pool)
    ur.urUSMPoolRelease(pool)
    assert ur.urUSMGetMemAllocInfo(rt.context, addresses[0], ur.USMAllocInfo.POOL) is None
    with refused(R.ERROR_INVALID_VALUE):
        ur.urUSMDeviceAlloc(rt.context, rt.device, None, pool, 64)
    other = ur.urUSMPoolCreate(ur.urContextCreate([rt.device], None), ur.USMPoolDesc())
    with refused(R.ERROR_INVALID_VALUE):
        ur.urUSMDeviceAlloc(rt.context, rt.device, None, other, 64)


def test_pools_of_one_device(rt: Runtime) -> None:
    P = ur.USMPoolInfo
    default, own = rt.default_pool(), ur.urUSMPoolCreateExp(rt.context, rt.device, ur.USMPoolDesc())
    assert default is rt.default_pool() is ur.urUSMPoolGetDevicePoolExp(rt.context, rt.device)
    ur.urUSMPoolSetDevicePoolExp(rt.context, rt.device, own)
    assert ur.urUSMPoolGetDevicePoolExp(rt.context, rt.device) is own
    ask = lambda pool, what: ur.urUSMPoolGetInfoExp(pool, what)  # noqa: E731
    address = ur.urUSMDeviceAlloc(rt.context, rt.device, None, own, 4096)
    ur.urUSMFree(rt.context, address)
    assert (ask(own, P.USED_CURRENT_EXP), ask(own, P.USED_HIGH_EXP)) == (0, 4096)
    ur.urUSMPoolSetInfoExp(own, P.USED_HIGH_EXP, 0)
    ur.urUSMPoolSetInfoExp(own, P.RELEASE_THRESHOLD_EXP, 1 << 40)
    assert (ask(own, P.USED_HIGH_EXP), ask(own, P.RELEASE_THRESHOLD_EXP)) == (0, 1 << 40)
    ur.urUSMPoolTrimToExp(rt.context, rt.device, own, 0)
    for pool, what, value, result in (
        (own, P.USED_HIGH_EXP, 1, R.ERROR_INVALID_VALUE),
        (own, P.USED_CURRENT_EXP, 0, R.ERROR_UNSUPPORTED_ENUMERATION),
        (own, P.MAXIMUM_SIZE_EXP, 0, R.ERROR_UNSUPPORTED_ENUMERATION),
    ):
        with refused(result):
            ur.urUSMPoolSetInfoExp(pool, what, value)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urUSMPoolDestroyExp(rt.context, rt.device, default)
    other = ur.urContextCreate([rt.device], None)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urUSMPoolSetDevicePoolExp(other, rt.device, own)
    ur.urUSMPoolDestroyExp(rt.context, rt.device, own)
    assert ur.urUSMPoolGetDevicePoolExp(rt.context, rt.device) is default


def test_a_pool_of_another_device(mock: Runtime) -> None:
    first, second = ur.urDeviceGet(mock.platform, ur.DeviceType.ALL)
    context = ur.urContextCreate([first, second], None)
    pool = ur.urUSMPoolCreateExp(context, second, ur.USMPoolDesc())
    assert ur.urUSMFree(context, ur.urUSMDeviceAlloc(context, second, None, pool, 64)) is None
    for refuse in (
        lambda: ur.urUSMDeviceAlloc(context, first, None, pool, 64),
        lambda: ur.urUSMPoolSetDevicePoolExp(context, first, pool),
        lambda: ur.urUSMPoolDestroyExp(context, first, pool),
    ):
        with refused(R.ERROR_INVALID_VALUE):
            refuse()


def test_memory_in_the_order_of_a_queue(rt: Runtime) -> None:
    """It is allocated and freed by commands, which complete in their order; what uses it keeps it until then."""
    pool, default = rt.pool(), rt.default_pool()
    assert ur.urDeviceGetInfo(rt.device, ur.DeviceInfo.ASYNC_USM_ALLOCATIONS_SUPPORT_EXP)
    for allocate, used in (
        (ur.urEnqueueUSMDeviceAllocExp, default),
        (ur.urEnqueueUSMSharedAllocExp, None),
        (ur.urEnqueueUSMHostAllocExp, None),
    ):
        kept = rt.memory()
        with rt.held() as go:
            address, allocated = allocate(rt.queue, None, 4096, None, None)
            assert rt.status(allocated) is not ur.EventStatus.COMPLETE
            assert ur.urUSMGetMemAllocInfo(rt.context, address, ur.USMAllocInfo.POOL) is used
            ur.urEnqueueUSMFill(rt.queue, address, b"q", 4096, [allocated])
            ur.urEnqueueUSMMemcpy(rt.queue, False, kept, address, 4096, None)
            freed = ur.urEnqueueUSMFreeExp(rt.queue, None, address, None)
            with refused(R.ERROR_INVALID_MEM_OBJECT):
                ur.urEnqueueUSMFreeExp(rt.queue, None, address, None)
            assert rt.status(freed) is not ur.EventStatus.COMPLETE
            go()
        ur.urEventWait([freed])
        assert ur.urEventGetInfo(freed, ur.EventInfo.COMMAND_TYPE) is ur.Command.ENQUEUE_USM_FREE_EXP
        assert rt.read(kept, 4096) == b"q" * 4096
        address, _event = allocate(rt.queue, pool, 4096, None, None)
        assert ur.urUSMGetMemAllocInfo(rt.context, address, ur.USMAllocInfo.POOL) is pool
        ur.urEnqueueUSMFreeExp(rt.queue, pool, address, None)
    assert ur.urUSMPoolGetInfo(pool, ur.USMPoolInfo.USED_CURRENT_EXP) == 0


def test_memory_is_not_allocated_after_what_was_lost(rt: Runtime) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a test says so")

    rt.queue.shared.submit(fail)
    lost = ur.urEnqueueEventsWait(rt.queue, None)
    with refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS):
        ur.urEventWait([lost])
    pool = rt.pool()
    with refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS):
        ur.urEnqueueUSMDeviceAllocExp(rt.queue, pool, 4096, None, [lost])
    assert ur.urUSMPoolGetInfo(pool, ur.USMPoolInfo.USED_CURRENT_EXP) == 0


def test_a_pool_zeroes_memory_of_a_device(mock: Runtime) -> None:
    pool = mock.pool(ur.USMPoolFlags.ZERO_INITIALIZE_BLOCK)
    for _ in range(3):
        address = ur.urUSMDeviceAlloc(mock.context, mock.device, None, pool, 4096)
        assert mock.read(address, 4096) == bytes(4096)
        mock.fill(address, b"d", 4096)
        ur.urUSMFree(mock.context, address)
