"""Functions that allocate and free USM memory."""

from __future__ import annotations

import os
from typing import Any, Final

from xpushare._native import End
from xpushare.adapters.base import UsmKind
from xpushare.common.errors import from_os_error
from xpushare.common.result import Result
from xpushare.common.system import mapped
from xpushare.core import memory as core_memory
from xpushare.core import queue as core_queue
from xpushare.core.memory import Range
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import Memory, memory_over
from xpushare.sharing import layout, node
from xpushare.ur import _objects
from xpushare.ur._enums import (
    Command,
    ExpExternalMemType,
    ExpUSMHostAllocRegisterFlags,
    USMAllocInfo,
    USMPoolFlags,
    USMPoolInfo,
    USMType,
)
from xpushare.ur._error import URError
from xpushare.ur._functions.device import LARGEST_TYPE, largest_allocation
from xpushare.ur._functions.enqueue import WAIT_LIST_OTHERS, WAIT_LIST_RULE, command
from xpushare.ur._objects import Context, Device, Event, Queue, USMPool, device_of
from xpushare.ur._spec import UNSUPPORTED_QUERY, Info, Int32, Pointer, Size, WaitList, function, rule
from xpushare.ur._structs import (
    ExpAsyncUSMAllocProperties,
    ExpUSMHostAllocRegisterProperties,
    USMDesc,
    USMPoolDesc,
)

_ALIGN_RULE = rule(
    "INVALID_VALUE",
    "pUSMDesc is not None and pUSMDesc.align & (pUSMDesc.align - 1)",
    "`pUSMDesc.align` is neither 0 nor a power of two",
)

_USM_SIZE_RULE = rule("INVALID_USM_SIZE", "size == 0", "`size` is 0")

_POOL_ERROR = ("INVALID_VALUE", "`pool` belongs to another context, or was created for another device")

_ALIGN_DEVICE_ERROR = ("INVALID_VALUE", "`pUSMDesc.align` exceeds the size of the largest data type of `hDevice`")

_SIZE_DEVICE_ERROR = ("INVALID_USM_SIZE", "`size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`")

_KINDS: Final = {"device": USMType.DEVICE, "host": USMType.HOST, "shared": USMType.SHARED}


def _pool_of(found: Range) -> USMPool | None:
    """Return the pool that an allocation was made from. Return None if it was made without a pool, or if the pool has
    been released.
    """
    pool = _objects.places.pools.get(found.allocation.address)
    return pool if pool is not None and pool.references else None


_USM_ALLOC: Final = Info(
    USMAllocInfo,
    {
        "enum:USMType": "TYPE",
        "pointer": "BASE_PTR",
        "size": "SIZE",
        "handle:device": "DEVICE",
        "handle:usm_pool": "POOL",
    },
    answers={
        USMAllocInfo.TYPE: lambda found: _KINDS[found.allocation.kind],
        USMAllocInfo.BASE_PTR: lambda found: found.allocation.address,
        USMAllocInfo.SIZE: lambda found: found.allocation.nbytes,
        USMAllocInfo.DEVICE: lambda found: device_of(found.device),
        USMAllocInfo.POOL: _pool_of,
    },
    optional="POOL",
)


def _check_pool(pool: USMPool, context: Context, device: Device | None) -> None:
    if pool.context is not context:
        raise URError(f"{pool!r} is of another context than {context!r}", result=Result.ERROR_INVALID_VALUE)
    if pool.device is not None and device not in (pool.device, None):
        raise URError(f"{pool!r} is for {pool.device!r}, not for {device!r}", result=Result.ERROR_INVALID_VALUE)


def _allocate(
    kind: UsmKind, context: Context, device: Device, desc: USMDesc | None, pool: USMPool | None, size: int
) -> int:
    if pool is not None:
        _check_pool(pool, context, device if kind != "host" else None)
    if desc is not None and desc.align > LARGEST_TYPE:
        raise URError(
            f"`pUSMDesc.align` is {desc.align}, the largest data type has {LARGEST_TYPE} bytes",
            result=Result.ERROR_INVALID_VALUE,
        )
    if size > largest_allocation(device):
        raise URError(f"{device!r} does not have {size} bytes", result=Result.ERROR_INVALID_USM_SIZE)
    found = core_memory.allocate(kind, size, device.shared, context.shared)
    memory = memory_over(found)
    if pool is not None:
        if pool.flags & USMPoolFlags.ZERO_INITIALIZE_BLOCK and not found.allocation.host_accessible:
            work = core_queue.create(device.shared, context.shared)
            core_queue.fill(work, (found, 0, size), b"\0", size)
            core_queue.synchronize(work, None)
        pool.count(found.allocation.nbytes)
        _objects.places.pools[memory.ptr] = pool
    _objects.places.allocated[memory.ptr] = memory
    return memory.ptr


@function(
    107,
    "INVALID_CONTEXT",
    ("INVALID_OPERATION", "`DeviceInfo.USM_HOST_SUPPORT` is false"),
    (
        "INVALID_VALUE",
        "`pUSMDesc.align` exceeds the size of the largest data type of any device of `hContext`",
    ),
    ("INVALID_USM_SIZE", "`size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE` of any device of `hContext`"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    _POOL_ERROR,
    rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    operations=("malloc",),
    unsupported=Result.ERROR_INVALID_OPERATION,
    makes="USM memory",
    python="`xs.malloc_host(nbytes, device, context=…)`",
)
def urUSMHostAlloc(hContext: Context, pUSMDesc: USMDesc | None, pool: USMPool | None, size: Size) -> Pointer:
    """Allocate host memory that the devices of a context can access, and return its address."""
    return _allocate("host", hContext, hContext.devices[0], pUSMDesc, pool, size)


@function(
    108,
    "INVALID_CONTEXT",
    ("INVALID_OPERATION", "`hDevice` has no device USM (Unified Runtime's text names `USM_HOST_SUPPORT` by mistake)"),
    _ALIGN_DEVICE_ERROR,
    _SIZE_DEVICE_ERROR,
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    _POOL_ERROR,
    rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    operations=("malloc",),
    unsupported=Result.ERROR_INVALID_OPERATION,
    makes="USM memory",
    python="`xs.malloc_device(nbytes, device, context=…)`",
)
def urUSMDeviceAlloc(
    hContext: Context, hDevice: Device, pUSMDesc: USMDesc | None, pool: USMPool | None, size: Size
) -> Pointer:
    """Allocate memory of a device, and return its address."""
    return _allocate("device", hContext, hDevice, pUSMDesc, pool, size)


@function(
    109,
    "INVALID_CONTEXT",
    _ALIGN_DEVICE_ERROR,
    _SIZE_DEVICE_ERROR,
    (
        "INVALID_OPERATION",
        "`DeviceInfo.USM_SINGLE_SHARED_SUPPORT` and `DeviceInfo.USM_CROSS_SHARED_SUPPORT` are both false",
    ),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    _POOL_ERROR,
    rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    operations=("malloc",),
    unsupported=Result.ERROR_INVALID_OPERATION,
    makes="USM memory",
    python="`xs.malloc_shared(nbytes, device, context=…)`",
)
def urUSMSharedAlloc(
    hContext: Context, hDevice: Device, pUSMDesc: USMDesc | None, pool: USMPool | None, size: Size
) -> Pointer:
    """Allocate memory that the host and a device share, and return its address."""
    return _allocate("shared", hContext, hDevice, pUSMDesc, pool, size)


@function(110, "INVALID_MEM_OBJECT", "OUT_OF_HOST_MEMORY", ends="USM memory", python="`memory.close()`")
def urUSMFree(hContext: Context, pMem: Pointer) -> None:
    """Wait until the commands that may use USM memory have finished, and free the memory."""
    places = _objects.places
    with places.lock:
        memory = places.allocated.get(pMem)
        if memory is None or memory.context is not hContext.shared:
            raise URError(
                f"{pMem:#x} was not allocated in {hContext!r} (opened memory is closed, not freed)",
                result=Result.ERROR_INVALID_MEM_OBJECT,
            )
        del places.allocated[pMem]
        pool = places.pools.pop(pMem, None)
    if pool is not None:
        pool.count(-use(memory).allocation.nbytes)
    table = node.current().table_if_any
    if table is not None:
        source = use(memory).allocation
        for export in table.exports():
            if export.source is source:
                table.withdraw(export.handle, layout.REASON_FREED)
    memory.close()


@function(
    111,
    "INVALID_CONTEXT",
    "INVALID_VALUE",
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    invalid=Result.ERROR_INVALID_VALUE,
    python="`memory.ptr`, `memory.nbytes`, `memory.device`",
)
def urUSMGetMemAllocInfo(hContext: Context, pMem: Pointer, propName: USMAllocInfo) -> Any:
    """Return the property `propName` of the allocation that contains the address `pMem`."""
    try:
        found = _objects.places.find(pMem)
    except URError as error:
        if propName is USMAllocInfo.TYPE:
            return USMType.UNKNOWN
        raise URError(error.message, result=Result.ERROR_INVALID_VALUE) from None
    return _USM_ALLOC.answer(propName, found)


@function(
    273,
    ("INVALID_SIZE", "`size` exceeds the allocation of `pSrc` or `pDst`"),
    "INVALID_MEM_OBJECT",
    rules=(rule("INVALID_SIZE", "size == 0", "`size` is 0"),),
    operations=("Queue.copy", "Queue.synchronize"),
    invalid=Result.ERROR_INVALID_MEM_OBJECT,
    python="`queue.copy(dst, src, nbytes)`, `queue.synchronize()`",
)
def urUSMContextMemcpyExp(hContext: Context, pDst: Pointer, pSrc: Pointer, size: Size) -> None:
    """Copy `size` bytes without a queue, and wait until the copy is complete. The memory can be of the same kinds as
    for `urEnqueueUSMMemcpy`.
    """
    device = hContext.devices[0].shared
    target, source = (_objects.places.operand(each, size, device, hContext.shared) for each in (pDst, pSrc))
    work = core_queue.create(device, hContext.shared)
    core_queue.copy(work, (target, 0, size), (source, 0, size), size)
    core_queue.synchronize(work, None)


# --- pools ------------------------------------------------------------------------------------------

_POOL_NUMBERS: Final = (
    "RELEASE_THRESHOLD_EXP MAXIMUM_SIZE_EXP RESERVED_CURRENT_EXP RESERVED_HIGH_EXP USED_CURRENT_EXP USED_HIGH_EXP"
)

_POOL: Final = Info(
    USMPoolInfo,
    {
        "uint32": "REFERENCE_COUNT",
        "handle:context": "CONTEXT",
        "size": _POOL_NUMBERS,
    },
    answers={
        USMPoolInfo.REFERENCE_COUNT: lambda pool: pool.references,
        USMPoolInfo.CONTEXT: lambda pool: pool.context,
        USMPoolInfo.RELEASE_THRESHOLD_EXP: lambda pool: pool.threshold,
        USMPoolInfo.RESERVED_CURRENT_EXP: lambda pool: pool.used,
        USMPoolInfo.RESERVED_HIGH_EXP: lambda pool: pool.most,
        USMPoolInfo.USED_CURRENT_EXP: lambda pool: pool.used,
        USMPoolInfo.USED_HIGH_EXP: lambda pool: pool.most,
    },
    optional=_POOL_NUMBERS,
    changing=f"REFERENCE_COUNT {_POOL_NUMBERS}",
)


@function(112, "INVALID_VALUE", "OUT_OF_HOST_MEMORY", makes="usm_pool")
def urUSMPoolCreate(hContext: Context, pPoolDesc: USMPoolDesc) -> USMPool:
    """Create a pool from which USM memory can be allocated.

    Each allocation has pages of its own, so sharing one allocation does not expose the others. `urUSMFree` frees these
    pages, and the pool caches no memory. Limits that a C program chains to `pPoolDesc` therefore have no effect. With
    `ZERO_INITIALIZE_BLOCK`, allocations are filled with zeros. The other flags have no effect.
    """
    return USMPool.make(hContext, pPoolDesc.flags)


@function(118, makes="usm_pool")
def urUSMPoolRetain(pPool: USMPool) -> None:
    """Add a reference to a pool."""
    pPool.retain()


@function(119, ends="usm_pool")
def urUSMPoolRelease(pPool: USMPool) -> None:
    """Release a reference to a pool. Allocations from the pool stay valid."""
    pPool.release()


@function(120, UNSUPPORTED_QUERY, "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES")
def urUSMPoolGetInfo(hPool: USMPool, propName: USMPoolInfo) -> Any:
    """Return the property `propName` of a pool. Reserved and used sizes are equal, as pools cache no freed memory."""
    return _POOL.answer(propName, hPool)


# --- pools of one device, and commands that allocate from them ------------------------------------------

_POOL_OF = ("INVALID_VALUE", "`hPool` belongs to another context, or was created for another device")


@function(254, "INVALID_VALUE", "OUT_OF_HOST_MEMORY", makes="usm_pool")
def urUSMPoolCreateExp(hContext: Context, hDevice: Device, pPoolDesc: USMPoolDesc) -> USMPool:
    """Create a pool for one device. In all other respects, it works like a pool that `urUSMPoolCreate` creates."""
    return USMPool.make(hContext, pPoolDesc.flags, hDevice)


@function(255, ("INVALID_VALUE", f"{_POOL_OF[1]}, or is the device's default pool"), ends="usm_pool")
def urUSMPoolDestroyExp(hContext: Context, hDevice: Device, hPool: USMPool) -> None:
    """Release a reference to a pool, as `urUSMPoolRelease` does."""
    _check_pool(hPool, hContext, hDevice)
    if hPool is hContext.default_pools.get(hDevice):
        raise URError(f"{hPool!r} is the default one of {hDevice!r}", result=Result.ERROR_INVALID_VALUE)
    hPool.release()


@function(257, "INVALID_VALUE")
def urUSMPoolGetDefaultDevicePoolExp(hContext: Context, hDevice: Device) -> USMPool:
    """Return the default pool of a device, which always exists. No reference is added, so the caller must not release
    the pool.
    """
    return hContext.default_pool(hDevice)


@function(259, _POOL_OF)
def urUSMPoolSetDevicePoolExp(hContext: Context, hDevice: Device, hPool: USMPool) -> None:
    """Set the pool from which `urEnqueueUSMDeviceAllocExp` allocates memory of a device if its caller passes no pool.
    Once this pool is destroyed, the device's default pool is used again.
    """
    _check_pool(hPool, hContext, hDevice)
    hContext.chosen_pools[hDevice] = hPool


@function(260, "INVALID_VALUE")
def urUSMPoolGetDevicePoolExp(hContext: Context, hDevice: Device) -> USMPool:
    """Return the pool that `urUSMPoolSetDevicePoolExp` set for a device, or the device's default pool if none is set.
    No reference is added, so the caller must not release the pool.
    """
    return hContext.pool(hDevice)


@function(261, _POOL_OF)
def urUSMPoolTrimToExp(hContext: Context, hDevice: Device, hPool: USMPool, minBytesToKeep: Size) -> None:
    """Release freed memory that a pool caches. This does nothing, since pools cache no freed memory."""
    _check_pool(hPool, hContext, hDevice)


@function(262, UNSUPPORTED_QUERY, "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES")
def urUSMPoolGetInfoExp(hPool: USMPool, propName: USMPoolInfo) -> Any:
    """Return the property `propName` of a pool, as `urUSMPoolGetInfo` does."""
    return _POOL.answer(propName, hPool)


@function(
    265,
    ("INVALID_VALUE", "`propName` is `USED_HIGH_EXP` or `RESERVED_HIGH_EXP`, and `pPropValue` is not 0"),
    ("UNSUPPORTED_ENUMERATION", "`propName` cannot be set"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
)
def urUSMPoolSetInfoExp(hPool: USMPool, propName: USMPoolInfo, pPropValue: Size) -> None:
    """Set how much freed memory a pool may cache (`RELEASE_THRESHOLD_EXP`), or reset the pool's peak size (by
    `USED_HIGH_EXP` or `RESERVED_HIGH_EXP`, which have the same effect).

    The release threshold has no effect, since pools cache no freed memory.
    """
    if propName is USMPoolInfo.RELEASE_THRESHOLD_EXP:
        hPool.threshold = pPropValue
    elif propName in (USMPoolInfo.USED_HIGH_EXP, USMPoolInfo.RESERVED_HIGH_EXP):
        if pPropValue:
            raise URError(f"{propName!r} begins anew with 0, not {pPropValue}", result=Result.ERROR_INVALID_VALUE)
        hPool.begin_anew()
    else:
        raise URError(f"{propName!r} cannot be set", result=Result.ERROR_UNSUPPORTED_ENUMERATION)


def _enqueue_allocation(
    kind: UsmKind, which: Command, queue: Queue, pool: USMPool | None, size: int, events: WaitList
) -> tuple[int, Event]:
    """Allocate memory immediately, and enqueue a command that does nothing. Return the memory's address and the
    command's event, which completes after the earlier commands in the queue.
    """
    if pool is None and kind == "device":
        pool = queue.context.pool(queue.device)
    address = _allocate(kind, queue.context, queue.device, None, pool, size)
    with End(urUSMFree, queue.context, address):
        return address, command(queue, which, events)


_ASYNC_ERRORS: Final = (
    _SIZE_DEVICE_ERROR,
    ("INVALID_VALUE", "`pPool` belongs to another context, or was created for another device"),
    *WAIT_LIST_OTHERS,
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
)
_ASYNC_RULES: Final = (rule("INVALID_USM_SIZE", "size == 0", "`size` is 0", "adapter"), WAIT_LIST_RULE)
_ASYNC_MAKES: Final = "USM memory+event"


@function(250, *_ASYNC_ERRORS, rules=_ASYNC_RULES, operations=("malloc",), makes=_ASYNC_MAKES)
def urEnqueueUSMDeviceAllocExp(
    hQueue: Queue,
    pPool: USMPool | None,
    size: Size,
    pProperties: ExpAsyncUSMAllocProperties | None,
    phEventWaitList: WaitList,
) -> tuple[Pointer, Event]:
    """Allocate memory of the queue's device, and enqueue a command after which other commands may use the memory.
    Return the memory's address and the command's event. The memory comes from `pPool` or, if that is `None`, from the
    pool that is set for the device.

    The memory is allocated immediately, but only commands that run after the event may use it.
    """
    return _enqueue_allocation("device", Command.ENQUEUE_USM_DEVICE_ALLOC_EXP, hQueue, pPool, size, phEventWaitList)


@function(251, *_ASYNC_ERRORS, rules=_ASYNC_RULES, operations=("malloc",), makes=_ASYNC_MAKES)
def urEnqueueUSMSharedAllocExp(
    hQueue: Queue,
    pPool: USMPool | None,
    size: Size,
    pProperties: ExpAsyncUSMAllocProperties | None,
    phEventWaitList: WaitList,
) -> tuple[Pointer, Event]:
    """Allocate memory that the host and the queue's device share. Otherwise, this works like
    `urEnqueueUSMDeviceAllocExp`, but `None` for `pPool` means that the memory comes from no pool.
    """
    return _enqueue_allocation("shared", Command.ENQUEUE_USM_SHARED_ALLOC_EXP, hQueue, pPool, size, phEventWaitList)


@function(252, *_ASYNC_ERRORS, rules=_ASYNC_RULES, operations=("malloc",), makes=_ASYNC_MAKES)
def urEnqueueUSMHostAllocExp(
    hQueue: Queue,
    pPool: USMPool | None,
    size: Size,
    pProperties: ExpAsyncUSMAllocProperties | None,
    phEventWaitList: WaitList,
) -> tuple[Pointer, Event]:
    """Allocate host memory that the devices of the queue's context can access. Otherwise, this works like
    `urEnqueueUSMDeviceAllocExp`, but `None` for `pPool` means that the memory comes from no pool.
    """
    return _enqueue_allocation("host", Command.ENQUEUE_USM_HOST_ALLOC_EXP, hQueue, pPool, size, phEventWaitList)


@function(
    253,
    "INVALID_MEM_OBJECT",
    *WAIT_LIST_OTHERS,
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(WAIT_LIST_RULE,),
    makes="event",
    ends="USM memory",
)
def urEnqueueUSMFreeExp(hQueue: Queue, pPool: USMPool | None, pMem: Pointer, phEventWaitList: WaitList) -> Event:
    """Enqueue a command that frees USM memory. The memory stays allocated until commands that use it have finished."""
    if pMem not in _objects.places.allocated:
        raise URError(f"{pMem:#x} was not allocated", result=Result.ERROR_INVALID_MEM_OBJECT)
    event = command(hQueue, Command.ENQUEUE_USM_FREE_EXP, phEventWaitList)
    with End(event.release):
        urUSMFree(hQueue.context, pMem)
    return event


# --- host memory ----------------------------------------------------------------------------------


@function(
    163,
    "INVALID_CONTEXT",
    ("INVALID_VALUE", "the memory is not mapped in this process"),
    rules=(rule("INVALID_SIZE", "size == 0", "`size` is 0", "documented"),),
)
def urUSMImportExp(hContext: Context, pMem: Pointer, size: Size) -> None:
    """Hint that ordinary memory of the process will be used in copies. This only checks that the memory exists, since
    copies need no preparation.
    """
    if not mapped(pMem, size):
        raise URError(f"this process has no {size} bytes at {pMem:#x}", result=Result.ERROR_INVALID_VALUE)


@function(164, "INVALID_CONTEXT")
def urUSMReleaseExp(hContext: Context, pMem: Pointer) -> None:
    """End the use of memory that was passed to `urUSMImportExp`. This does nothing, since that function prepares
    nothing.
    """


_REGISTRATION: Final = "registered host memory"


@function(
    312,
    "INVALID_CONTEXT",
    ("INVALID_VALUE", "the memory is not mapped in this process, is USM memory, or is already registered"),
    ("UNSUPPORTED_FEATURE", "a device answers false to `DeviceInfo.USM_HOST_ALLOC_REGISTER_SUPPORT_EXP`"),
    rules=(rule("INVALID_VALUE", "size == 0", "`size` is 0"),),
    makes=_REGISTRATION,
)
def urUSMHostAllocRegisterExp(
    hContext: Context, pHostMem: Pointer, size: Size, pProperties: ExpUSMHostAllocRegisterProperties | None
) -> None:
    """Register ordinary memory of the process as USM host memory. The caller must keep the memory alive."""
    if any(device.shared.type != "cpu" for device in hContext.devices):
        raise URError(f"{hContext!r} has a device that is not the host", result=Result.ERROR_UNSUPPORTED_FEATURE)
    places, last = _objects.places, pHostMem + size - 1
    read_only = pProperties is not None and bool(pProperties.flags & ExpUSMHostAllocRegisterFlags.READ_ONLY)
    with places.lock:
        there = mapped(pHostMem, size) in (("rw", "r") if read_only else ("rw",))
        if not there or places.locate(pHostMem) or places.locate(last):
            raise URError(
                f"{size} bytes at {pHostMem:#x} are not memory of this process, or USM memory already",
                result=Result.ERROR_INVALID_VALUE,
            )
        found = core_memory.HostBytes(pHostMem, size, hContext.devices[0].shared)
        places.registered[pHostMem] = found
        places.add(found)


@function(313, "INVALID_CONTEXT", ("INVALID_VALUE", "`pHostMem` is not registered"), ends=_REGISTRATION)
def urUSMHostAllocUnregisterExp(hContext: Context, pHostMem: Pointer) -> None:
    """Undo `urUSMHostAllocRegisterExp`, so that the memory is ordinary memory of the process again."""
    places = _objects.places
    with places.lock:
        found = places.registered.pop(pHostMem, None)
        if found is None:
            raise URError(f"{pHostMem:#x} is not registered", result=Result.ERROR_INVALID_VALUE)
        places.remove(found)


# --- handles for other interfaces -----------------------------------------------------------------


def _allocated(context: Context, address: int) -> Memory:
    found = _objects.places.allocated.get(address)
    if found is None or found.context is not context.shared:
        raise URError(f"{address:#x} was not allocated in {context!r}", result=Result.ERROR_INVALID_VALUE)
    return found


def _expect_fd(kind: ExpExternalMemType) -> None:
    if kind is not ExpExternalMemType.OPAQUE_FD:
        raise URError(f"memory is exported as an opaque fd, not as {kind!r}", result=Result.ERROR_UNSUPPORTED_FEATURE)


@function(
    285,
    ("INVALID_VALUE", "`alignment` exceeds the size of the largest data type of `hDevice`"),
    ("UNSUPPORTED_SIZE", "`size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`"),
    "INVALID_CONTEXT",
    "INVALID_DEVICE",
    ("UNSUPPORTED_FEATURE", "`handleTypeToExport` is not `OPAQUE_FD`"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_DEVICE_MEMORY",
    rules=(
        rule("UNSUPPORTED_ALIGNMENT", "alignment & (alignment - 1)", "`alignment` is neither 0 nor a power of two"),
        rule("INVALID_USM_SIZE", "size == 0", "`size` is 0"),
    ),
    operations=("malloc",),
    makes="USM memory",
    python="`xs.malloc_device(nbytes, device, context=…)`",
)
def urMemoryExportAllocExportableMemoryExp(
    hContext: Context, hDevice: Device, alignment: Size, size: Size, handleTypeToExport: ExpExternalMemType
) -> Pointer:
    """Allocate memory of a device that `urMemoryExportExportMemoryHandleExp` can export, and return its address."""
    _expect_fd(handleTypeToExport)
    if alignment > LARGEST_TYPE:
        raise URError(f"the largest data type has {LARGEST_TYPE} bytes", result=Result.ERROR_INVALID_VALUE)
    if size > largest_allocation(hDevice):
        raise URError(f"{hDevice!r} does not have {size} bytes", result=Result.ERROR_UNSUPPORTED_SIZE)
    return _allocate("device", hContext, hDevice, None, None, size)


@function(
    286,
    "INVALID_CONTEXT",
    "INVALID_DEVICE",
    ("INVALID_VALUE", "`pMem` was not allocated in `hContext`"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_DEVICE_MEMORY",
    ends="USM memory",
    python="`memory.close()`",
)
def urMemoryExportFreeExportableMemoryExp(hContext: Context, hDevice: Device, pMem: Pointer) -> None:
    """Free memory that `urMemoryExportAllocExportableMemoryExp` allocated."""
    _allocated(hContext, pMem)
    urUSMFree(hContext, pMem)


@function(
    287,
    "INVALID_CONTEXT",
    "INVALID_DEVICE",
    ("INVALID_VALUE", "`pMem` was not allocated in `hContext`"),
    (
        "UNSUPPORTED_FEATURE",
        "`handleTypeToExport` is not `OPAQUE_FD`, or the driver has no file descriptor of the memory",
    ),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_DEVICE_MEMORY",
)
def urMemoryExportExportMemoryHandleExp(
    hContext: Context, hDevice: Device, handleTypeToExport: ExpExternalMemType, pMem: Pointer
) -> Int32:
    """Return a file descriptor with which another API can import an allocation. The caller owns the file descriptor."""
    _expect_fd(handleTypeToExport)
    memory = _allocated(hContext, pMem)
    fds = use(memory).allocation.driver.export(False).fds
    if len(fds) != 1:
        raise URError(f"the driver has no file descriptor of {memory!r}", result=Result.ERROR_UNSUPPORTED_FEATURE)
    try:
        return os.dup(fds[0])
    except OSError as error:
        raise from_os_error(error, f"duplicating the file descriptor of {memory!r}") from error
