"""The functions of `xpushare.ur`, each as thin as it can be, over `core` and the objects of the object face.

Called by the wrappers of `_derived` with checked arguments: numbers are ints of their range, sequences are tuples,
pointers are 0 for null, handles are alive and of their class, a device is one of its context. Errors of `core` become
`URError` there; where Unified Runtime has another code for what `core` calls an invalid argument or a missing feature,
`answers` says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from xpushare._aspects import Aspect
from xpushare._errors import DeviceError, OutOfMemoryError
from xpushare._event import Event as SharedEvent
from xpushare._memory import Memory
from xpushare._physical_memory import PhysicalMemory, VirtualRange
from xpushare._queue import Queue as WorkQueue
from xpushare._result import Result
from xpushare.adapters.base import Access, Profile, UsmKind
from xpushare.core import event as core_event
from xpushare.core import memory as core_memory
from xpushare.core import physical as core_physical
from xpushare.core import queue as core_queue
from xpushare.core.memory import Range
from xpushare.core.queue import Work
from xpushare.core.resources import Allocation
from xpushare.sharing import layout, node
from xpushare.ur import _objects, _queries
from xpushare.ur._enums import (
    AdapterInfo,
    Command,
    DeviceInfo,
    DeviceType,
    EventInfo,
    ExpEventFlags,
    PhysicalMemFlags,
    PhysicalMemInfo,
    PlatformInfo,
    ProfilingInfo,
    QueueFlags,
    USMAllocInfo,
    USMType,
    VirtualMemAccessFlags,
    VirtualMemGranularityInfo,
    VirtualMemInfo,
)
from xpushare.ur._error import URError
from xpushare.ur._objects import Adapter, Context, Device, Event, PhysicalMem, Platform, Queue
from xpushare.ur._structs import (
    ContextProperties,
    ExpEnqueueExtProperties,
    ExpEventDesc,
    PhysicalMemProperties,
    QueueProperties,
    USMDesc,
)

__all__ = ["RESULTS"]

F = TypeVar("F", bound=Callable[..., Any])

RESULTS: Final[dict[str, Mapping[Result, Result]]] = {}
"""For each function: the codes that it has for the general ones of `core`."""


def answers(*, invalid: Result | None = None, unsupported: Result | None = None) -> Callable[[F], F]:
    """Name the codes for what `core` calls an invalid argument and an unsupported feature."""
    results: dict[Result, Result] = {}
    if invalid is not None:
        results[Result.ERROR_INVALID_ARGUMENT] = invalid
    if unsupported is not None:
        results[Result.ERROR_UNSUPPORTED_FEATURE] = unsupported

    def note(function: F) -> F:
        RESULTS[function.__name__] = results
        return function

    return note


# --- adapters, platforms, devices -----------------------------------------------------------------


@answers(invalid=Result.ERROR_INVALID_VALUE)  # ONEAPI_DEVICE_SELECTOR does not parse
def urAdapterGet() -> list[Adapter]:
    found = list(_objects.adapters())
    for adapter in found:
        adapter._take()
    return found


def urAdapterGetInfo(hAdapter: Adapter, propName: AdapterInfo) -> Any:
    return _queries.answer(_queries.ADAPTER, propName, hAdapter)


def urPlatformGet(hAdapter: Adapter) -> list[Platform]:
    return [hAdapter.platform]


def urPlatformGetInfo(hPlatform: Platform, propName: PlatformInfo) -> Any:
    return _queries.answer(_queries.PLATFORM, propName, hPlatform)


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urDeviceGet(hPlatform: Platform, DeviceType: DeviceType) -> list[Device]:
    found = [
        device for device in _objects.adapters().get(hPlatform.adapter, []) if _queries.selects(device, DeviceType)
    ]
    for device in found:
        device._take()
    return found


def urDeviceGetInfo(hDevice: Device, propName: DeviceInfo) -> Any:
    return _queries.answer(_queries.DEVICE, propName, hDevice)


# --- contexts -------------------------------------------------------------------------------------


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urContextCreate(phDevices: tuple[Device, ...], pProperties: ContextProperties | None) -> Context:  # noqa: ARG001
    return Context._make(phDevices)


def urContextRetain(hContext: Context) -> None:
    hContext._retain()


def urContextRelease(hContext: Context) -> None:
    hContext._release()


# --- USM ------------------------------------------------------------------------------------------

_LARGEST_TYPE: Final = 128  # bytes of sixteen doubles; what adapters allocate is aligned to this at least


def _allocate(kind: UsmKind, context: Context, device: Device, desc: USMDesc | None, size: int) -> int:
    if desc is not None and desc.align > _LARGEST_TYPE:
        raise URError(
            f"`pUSMDesc.align` is {desc.align}, the largest data type has {_LARGEST_TYPE} bytes",
            result=Result.ERROR_INVALID_VALUE,
        )
    if size > _queries.largest_allocation(device):
        raise URError(f"{device!r} does not have {size} bytes", result=Result.ERROR_INVALID_USM_SIZE)
    memory = Memory._make(core_memory.allocate(kind, size, device._device, context._context))
    _objects.places.allocated[memory.ptr] = memory
    return memory.ptr


@answers(unsupported=Result.ERROR_INVALID_OPERATION)
def urUSMHostAlloc(hContext: Context, pUSMDesc: USMDesc | None, pool: None, size: int) -> int:  # noqa: ARG001
    return _allocate("host", hContext, hContext.devices[0], pUSMDesc, size)


@answers(unsupported=Result.ERROR_INVALID_OPERATION)
def urUSMDeviceAlloc(
    hContext: Context,
    hDevice: Device,
    pUSMDesc: USMDesc | None,
    pool: None,  # noqa: ARG001
    size: int,
) -> int:
    return _allocate("device", hContext, hDevice, pUSMDesc, size)


@answers(unsupported=Result.ERROR_INVALID_OPERATION)
def urUSMSharedAlloc(
    hContext: Context,
    hDevice: Device,
    pUSMDesc: USMDesc | None,
    pool: None,  # noqa: ARG001
    size: int,
) -> int:
    return _allocate("shared", hContext, hDevice, pUSMDesc, size)


def urUSMFree(hContext: Context, pMem: int) -> None:
    places = _objects.places
    with places.lock:
        memory = places.allocated.get(pMem)
        if memory is None or memory.context is not hContext._context:
            raise URError(
                f"{pMem:#x} was not allocated in {hContext!r} (opened memory is closed, not freed)",
                result=Result.ERROR_INVALID_MEM_OBJECT,
            )
        del places.allocated[pMem]
    table = node.current().table_if_any
    if table is not None:
        source = memory._use().allocation
        for export in table.exports():
            if export.source is source:
                table.withdraw(export.handle, layout.REASON_FREED)
    memory.close()


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urUSMGetMemAllocInfo(hContext: Context, pMem: int, propName: USMAllocInfo) -> Any:  # noqa: ARG001
    try:
        found = _objects.places.find(pMem)
    except URError as error:
        if propName is USMAllocInfo.TYPE:
            return USMType.UNKNOWN
        raise URError(error.message, result=Result.ERROR_INVALID_VALUE) from None
    return _queries.answer(_queries.USM_ALLOC, propName, found)


# --- queues ---------------------------------------------------------------------------------------


def urQueueCreate(hContext: Context, hDevice: Device, pProperties: QueueProperties | None) -> Queue:
    flags = 0 if pProperties is None else pProperties.flags
    if flags & ~_queries.QUEUE_FLAGS:
        raise URError(
            f"queues cannot have {QueueFlags(flags & ~_queries.QUEUE_FLAGS)!r}",
            result=Result.ERROR_UNSUPPORTED_FEATURE,
        )
    profiling = bool(flags & QueueFlags.PROFILING_ENABLE)
    if profiling:
        hDevice._device.require(Aspect.ext_oneapi_per_event_profiling)
    queue = WorkQueue(hDevice._device, context=hContext._context)
    return Queue._make(hContext, hDevice, queue, profiling)


def urQueueRetain(hQueue: Queue) -> None:
    hQueue._retain()


def urQueueRelease(hQueue: Queue) -> None:
    hQueue._release()


def urQueueFinish(hQueue: Queue) -> None:
    core_queue.synchronize(hQueue._queue._use(), None)


def _hold_back(work: Work, events: tuple[Event, ...]) -> None:
    """Let the queue wait for events, none of which may be lost."""
    opened = [event._event._use() for event in events]
    for each in [each for each in opened if not core_event.done(each)]:
        core_queue.wait(work, each, None)


def _command(
    queue: Queue, command: Command, events: tuple[Event, ...], submit: Callable[[Work], None] | None = None
) -> Event:
    """Enqueue a command and a signal after it; the event of that."""
    work = queue._queue._use()
    device, context = queue.device._device, queue.context._context
    shared = SharedEvent(device, context=context, enable_profiling=queue.profiling)
    event = Event._make(queue.context, shared, command, False)
    event.queue = queue
    opened = shared._use()
    event.profile = opened.profile
    if events:
        _hold_back(work, events)
    if submit is not None:
        if queue.profiling:
            marker = core_event.create(device, context, False, True)
            core_queue.signal(work, marker)
            event.started = marker.profile
        submit(work)
    core_queue.signal(work, opened)
    return event


def _operand(address: int, size: int) -> tuple[Range, int, int]:
    found = _objects.places.find(address)
    if size > found.nbytes:
        raise URError(
            f"{size} bytes from {address:#x} on exceed the allocation, which ends after {found.nbytes}",
            result=Result.ERROR_INVALID_SIZE,
        )
    return found, 0, found.nbytes


@answers(invalid=Result.ERROR_INVALID_MEM_OBJECT)
def urEnqueueUSMMemcpy(
    hQueue: Queue, blocking: bool, pDst: int, pSrc: int, size: int, phEventWaitList: tuple[Event, ...]
) -> Event:
    target, source = _operand(pDst, size), _operand(pSrc, size)
    event = _command(
        hQueue, Command.USM_MEMCPY, phEventWaitList, lambda work: core_queue.copy(work, target, source, size)
    )
    if blocking:
        core_event.wait(event._event._use(), None, None)
    return event


@answers(invalid=Result.ERROR_INVALID_MEM_OBJECT)
def urEnqueueUSMFill(hQueue: Queue, pMem: int, pPattern: bytes, size: int, phEventWaitList: tuple[Event, ...]) -> Event:
    target = _operand(pMem, size)
    return _command(
        hQueue, Command.USM_FILL, phEventWaitList, lambda work: core_queue.fill(work, target, pPattern, size)
    )


# --- virtual memory -------------------------------------------------------------------------------


def urVirtualMemGranularityGetInfo(
    hContext: Context,
    hDevice: Device | None,
    allocationSize: int,  # noqa: ARG001
    propName: VirtualMemGranularityInfo,
) -> int:
    recommended = propName is VirtualMemGranularityInfo.RECOMMENDED
    devices = hContext.devices if hDevice is None else (hDevice,)
    for each in devices:
        each._device.require(Aspect.ext_oneapi_virtual_mem)
    return math.lcm(*(each._device.memory_granularity(recommended) for each in devices))


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urVirtualMemReserve(hContext: Context, pStart: int, size: int) -> int:
    context = hContext._context
    try:
        found = VirtualRange(size, context=context, address=pStart or None)
    except (DeviceError, OutOfMemoryError):
        if not pStart:
            raise
        found = VirtualRange(size, context=context)  # a hint that cannot be met is only a hint
    places = _objects.places
    with places.lock:
        places.ranges[found.ptr] = found
        places.add(found._use())
    return found.ptr


def _range_of(context: Context, start: int) -> tuple[VirtualRange, int]:
    """The reserved range that `start` lies in, and how far in."""
    found = _objects.places.range_at(start)
    if found.context is not context._context:
        raise URError(f"{start:#x} was not reserved in {context!r}", result=Result.ERROR_INVALID_CONTEXT)
    return found, start - found.ptr


def urVirtualMemFree(hContext: Context, pStart: int, size: int) -> None:
    places = _objects.places
    with places.lock:
        found, at = _range_of(hContext, pStart)
        if at or size != found.nbytes:
            raise URError(
                f"{size} bytes at {pStart:#x} are no whole reserved range: that is {found!r}",
                result=Result.ERROR_INVALID_VALUE,
            )
        if found.mapped():
            raise URError(f"memory is mapped in {found!r}: unmap it first", result=Result.ERROR_INVALID_VALUE)
        del places.ranges[pStart]
        places.remove(found._use())
    found.close()


def _access(flags: int) -> Access:
    if flags & VirtualMemAccessFlags.READ_WRITE:
        return "rw"
    return "r" if flags & VirtualMemAccessFlags.READ_ONLY else "none"


_ACCESS_FLAGS: Final = {
    "rw": VirtualMemAccessFlags.READ_WRITE,
    "r": VirtualMemAccessFlags.READ_ONLY,
    "none": VirtualMemAccessFlags.NONE,
}


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urVirtualMemMap(
    hContext: Context, pStart: int, size: int, hPhysicalMem: PhysicalMem, offset: int, flags: int
) -> None:
    found, at = _range_of(hContext, pStart)
    core_physical.map_(found._use(), hPhysicalMem._memory._use(), at, offset, size, _access(flags))


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urVirtualMemUnmap(hContext: Context, pStart: int, size: int) -> None:
    found, at = _range_of(hContext, pStart)
    core_physical.unmap(found._use(), at, size)


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urVirtualMemSetAccess(hContext: Context, pStart: int, size: int, flags: int) -> None:
    found, at = _range_of(hContext, pStart)
    core_physical.set_access(found._use(), at, size, _access(flags))


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urVirtualMemGetInfo(hContext: Context, pStart: int, size: int, propName: VirtualMemInfo) -> int:  # noqa: ARG001
    found, at = _range_of(hContext, pStart)
    core_memory.piece("the range", found.nbytes, at, size)
    return _ACCESS_FLAGS[core_physical.access_of(found._use(), at)]


# --- physical memory ------------------------------------------------------------------------------


@answers(invalid=Result.ERROR_INVALID_SIZE)
def urPhysicalMemCreate(
    hContext: Context, hDevice: Device, size: int, pProperties: PhysicalMemProperties | None
) -> PhysicalMem:
    enable_ipc = pProperties is not None and bool(pProperties.flags & PhysicalMemFlags.ENABLE_IPC)
    memory = PhysicalMemory(size, hDevice._device, context=hContext._context, enable_ipc=enable_ipc)
    return PhysicalMem._make(hContext, hDevice, memory)


def urPhysicalMemRetain(hPhysicalMem: PhysicalMem) -> None:
    hPhysicalMem._retain()


def urPhysicalMemRelease(hPhysicalMem: PhysicalMem) -> None:
    hPhysicalMem._release()


def urPhysicalMemGetInfo(hPhysicalMem: PhysicalMem, propName: PhysicalMemInfo) -> Any:
    return _queries.answer(_queries.PHYSICAL_MEM, propName, hPhysicalMem)


# --- events ---------------------------------------------------------------------------------------


def urEventCreateExp(hContext: Context, hDevice: Device, pEventDesc: ExpEventDesc) -> Event:
    event = SharedEvent(
        hDevice._device,
        context=hContext._context,
        enable_ipc=bool(pEventDesc.flags & ExpEventFlags.IPC_EXP),
        enable_profiling=bool(pEventDesc.flags & ExpEventFlags.ENABLE_PROFILING),
    )
    made = Event._make(hContext, event, Command.EVENTS_WAIT_WITH_BARRIER, True)
    made.profile = event._use().profile
    return made


def urEventGetInfo(hEvent: Event, propName: EventInfo) -> Any:
    return _queries.answer(_queries.EVENT, propName, hEvent)


def urEventGetProfilingInfo(hEvent: Event, propName: ProfilingInfo) -> int:
    found: int = _queries.answer(_queries.PROFILING, propName, hEvent)
    return found


def urEventWait(phEventWaitList: tuple[Event, ...]) -> None:
    for event in phEventWaitList:
        core_event.wait(event._event._use(), None, None)


def urEventRetain(hEvent: Event) -> None:
    hEvent._retain()


def urEventRelease(hEvent: Event) -> None:
    hEvent._release()


def urEnqueueEventsWait(hQueue: Queue, phEventWaitList: tuple[Event, ...]) -> Event:
    return _command(hQueue, Command.EVENTS_WAIT, phEventWaitList)


def urEnqueueEventsWaitWithBarrier(hQueue: Queue, phEventWaitList: tuple[Event, ...]) -> Event:
    return _command(hQueue, Command.EVENTS_WAIT_WITH_BARRIER, phEventWaitList)


@answers(invalid=Result.ERROR_INVALID_EVENT)
def urEnqueueEventsWaitWithBarrierExt(
    hQueue: Queue,
    pProperties: ExpEnqueueExtProperties | None,  # noqa: ARG001 low power is a permission
    phEventWaitList: tuple[Event, ...],
    phEvent: Event | None,
) -> Event:
    if phEvent is None:
        return _command(hQueue, Command.EVENTS_WAIT_WITH_BARRIER, phEventWaitList)
    if not phEvent.reusable:
        raise URError(
            f"{phEvent!r} belongs to its command: only events of urEventCreateExp and urIPCOpenEventHandleExp can be "
            "signalled again",
            result=Result.ERROR_INVALID_EVENT,
        )
    if phEvent in phEventWaitList:
        raise URError(
            "`phEvent` is in `phEventWaitList`: it cannot wait for itself",
            result=Result.ERROR_INVALID_EVENT_WAIT_LIST,
        )
    work = hQueue._queue._use()
    opened = phEvent._event._use()
    if hQueue.profiling and opened.profile is None and not opened.ipc_enabled and opened.handle is None:
        opened = opened._replace(profile=Profile())
    _hold_back(work, phEventWaitList)
    core_queue.signal(work, opened)
    phEvent.profile = opened.profile
    phEvent.queue = hQueue
    return phEvent


# --- inter-process communication ------------------------------------------------------------------


def _expect_device(context: Context, device: object) -> None:
    if device not in context._context.devices:
        raise URError(f"{context!r} has no {device}", result=Result.ERROR_INVALID_CONTEXT)


def urIPCGetMemHandleExp(hContext: Context, pMem: int) -> bytes:
    try:
        found = _objects.places.find(pMem)
    except URError as error:
        raise URError(error.message, result=Result.ERROR_INVALID_ARGUMENT) from None
    _expect_device(hContext, found.device)
    allocation: Any = found.allocation  # of a virtual range: what is reserved
    if not isinstance(allocation, Allocation) or allocation.imported:
        raise URError(
            f"{pMem:#x} is no USM memory of this process: opened and virtual memory cannot be exported by address",
            result=Result.ERROR_INVALID_ARGUMENT,
        )
    return bytes(core_memory.get(found))


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urIPCPutMemHandleExp(hContext: Context, pIPCMemHandleData: bytes) -> None:  # noqa: ARG001
    core_memory.put(pIPCMemHandleData)


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urIPCOpenMemHandleExp(hContext: Context, hDevice: Device, pIPCMemHandleData: bytes) -> int:
    found = core_memory.open_(pIPCMemHandleData, hDevice._device, hContext._context)
    places = _objects.places
    with places.lock:
        places.opened.setdefault(found.allocation.address, {})[Memory._make(found)] = None
        if found.allocation.imported:
            places.add(found.allocation)
    return found.address


def urIPCCloseMemHandleExp(hContext: Context, pMem: int) -> None:
    places = _objects.places
    with places.lock:
        allocation = places.locate(pMem)
        opened = {} if allocation is None else places.opened.get(allocation.address, {})
        here = (memory for memory in reversed(opened) if memory.ptr == pMem)
        memory = next((each for each in here if each.context is hContext._context), None)
        if memory is None:
            if any(each.ptr == pMem for each in opened):
                raise URError(f"{pMem:#x} was opened in another context", result=Result.ERROR_INVALID_CONTEXT)
            raise URError(f"{pMem:#x} is not opened (any more)", result=Result.ERROR_INVALID_ARGUMENT)
        del opened[memory]
        if allocation is not None and not opened:
            del places.opened[allocation.address]
            places.remove(allocation)
    memory.close()


def urIPCGetPhysMemHandleExp(hContext: Context, hPhysMem: PhysicalMem) -> bytes:
    _expect_device(hContext, hPhysMem.device._device)
    return bytes(core_physical.get(hPhysMem._memory._use()))


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urIPCPutPhysMemHandleExp(hContext: Context, pIPCPhysMemHandleData: bytes) -> None:  # noqa: ARG001
    core_physical.put(pIPCPhysMemHandleData)


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urIPCOpenPhysMemHandleExp(hContext: Context, hDevice: Device, pIPCPhysMemHandleData: bytes) -> PhysicalMem:
    held = core_physical.open_(pIPCPhysMemHandleData, hDevice._device, hContext._context)
    return PhysicalMem._make(hContext, hDevice, PhysicalMemory._make(held))


def urIPCClosePhysMemHandleExp(hContext: Context, hPhysMem: PhysicalMem) -> None:
    if hPhysMem.context is not hContext:
        raise URError(f"{hPhysMem!r} was opened in another context", result=Result.ERROR_INVALID_CONTEXT)
    if not hPhysMem._memory.is_imported:
        raise URError(f"{hPhysMem!r} was made here, not opened: release it", result=Result.ERROR_INVALID_ARGUMENT)
    hPhysMem._release()


@answers(invalid=Result.ERROR_INVALID_EVENT)
def urIPCGetEventHandleExp(hEvent: Event) -> bytes:
    return bytes(core_event.get(hEvent._event._use()))


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urIPCPutEventHandleExp(hContext: Context, pIPCEventHandleData: bytes) -> None:  # noqa: ARG001
    core_event.put(pIPCEventHandleData)


@answers(invalid=Result.ERROR_INVALID_VALUE)
def urIPCOpenEventHandleExp(hContext: Context, pIPCEventHandleData: bytes) -> Event:
    opened = core_event.open_(pIPCEventHandleData, None, hContext._context)
    return Event._make(hContext, SharedEvent._make(opened), Command.EVENTS_WAIT_WITH_BARRIER, True)
