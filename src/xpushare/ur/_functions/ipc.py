"""Functions that share memory, physical memory and events with other processes. *Handle data* are the bytes of an IPC
handle, which one process sends to another.
"""

from __future__ import annotations

from typing import Any

from xpushare.common.result import Result
from xpushare.core import event as core_event
from xpushare.core import memory as core_memory
from xpushare.core import physical as core_physical
from xpushare.core.resources import Allocation
from xpushare.objects.event import event_over
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import memory_over
from xpushare.objects.physical_memory import physical_memory_over
from xpushare.ur import _objects
from xpushare.ur._enums import Command
from xpushare.ur._error import URError
from xpushare.ur._objects import Context, Device, Event, PhysicalMem
from xpushare.ur._spec import Pointer, function

_HANDLE_SIZE = "is not the size of this kind of handle"


def _expect_device(context: Context, device: object) -> None:
    if device not in context.shared.devices:
        raise URError(f"{context!r} has no {device}", result=Result.ERROR_INVALID_CONTEXT)


@function(
    289,
    "INVALID_CONTEXT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    unchecked=("pMem",),
    operations=("ipc.memory.get",),
    makes="memory handle",
    python="`xs.ipc.memory.get(memory)`",
)
def urIPCGetMemHandleExp(hContext: Context, pMem: Pointer) -> bytes:
    """Return handle data (the bytes of an IPC handle) with which other processes can open device USM memory.

    If the memory at `pMem` cannot be shared, or if `pMem` is null, the call fails with `ERROR_INVALID_ARGUMENT`.
    Unified Runtime documents no error code for these cases, but its own adapters also use this one.
    """
    try:
        found = _objects.places.find(pMem)
    except URError as error:
        raise URError(error.message, result=Result.ERROR_INVALID_ARGUMENT) from None
    _expect_device(hContext, found.device)
    allocation: Any = found.allocation  # the reservation, if it is a virtual range
    if not isinstance(allocation, Allocation) or allocation.imported:
        raise URError(
            f"{pMem:#x} is not USM memory of this process: opened and virtual memory cannot be exported by address",
            result=Result.ERROR_INVALID_ARGUMENT,
        )
    return bytes(core_memory.get(found))


@function(
    290,
    "INVALID_CONTEXT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    operations=("ipc.memory.put",),
    invalid=Result.ERROR_INVALID_VALUE,
    ends="memory handle",
    python="`xs.ipc.memory.put(handle)`",
)
def urIPCPutMemHandleExp(hContext: Context, pIPCMemHandleData: bytes) -> None:
    """Release handle data of memory. No process can open the memory by this handle data any more. Memory that is
    already open stays open.
    """
    core_memory.put(pIPCMemHandleData)


@function(
    291,
    "INVALID_CONTEXT",
    ("INVALID_VALUE", f"the length of `pIPCMemHandleData` {_HANDLE_SIZE}"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    operations=("ipc.memory.open",),
    invalid=Result.ERROR_INVALID_VALUE,
    makes="opened memory",
    python="`xs.ipc.memory.open(handle, device=…, context=…)`",
)
def urIPCOpenMemHandleExp(hContext: Context, hDevice: Device, pIPCMemHandleData: bytes) -> Pointer:
    """Open memory by its handle data. Return the address of the memory in this process, which can differ from its
    address in the exporting process.
    """
    found = core_memory.open_(pIPCMemHandleData, hDevice.shared, hContext.shared, anew=True)
    places = _objects.places
    with places.lock:
        places.opened.setdefault(found.allocation.address, {})[memory_over(found)] = None
        if found.allocation.imported:
            places.add(found.allocation)
    return found.address


@function(
    292,
    "INVALID_CONTEXT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    ends="opened memory",
    python="`xs.ipc.memory.close(memory)`",
)
def urIPCCloseMemHandleExp(hContext: Context, pMem: Pointer) -> None:
    """Close memory that `urIPCOpenMemHandleExp` opened."""
    places = _objects.places
    with places.lock:
        allocation = places.locate(pMem)
        opened = {} if allocation is None else places.opened.get(allocation.address, {})
        here = (memory for memory in reversed(opened) if memory.ptr == pMem)
        memory = next((each for each in here if each.context is hContext.shared), None)
        if memory is None:
            if any(each.ptr == pMem for each in opened):
                raise URError(f"{pMem:#x} was opened in another context", result=Result.ERROR_INVALID_CONTEXT)
            raise URError(f"{pMem:#x} is not opened (any more)", result=Result.ERROR_INVALID_ARGUMENT)
        del opened[memory]
        if allocation is not None and not opened:
            del places.opened[allocation.address]
            places.remove(allocation)
    memory.close()


@function(
    316,
    "INVALID_CONTEXT",
    ("INVALID_ARGUMENT", "`hPhysMem` was made without `PhysicalMemFlags.ENABLE_IPC`"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    operations=("ipc.physical_memory.get",),
    makes="physical memory handle",
    python="`xs.ipc.physical_memory.get(physical)`",
)
def urIPCGetPhysMemHandleExp(hContext: Context, hPhysMem: PhysicalMem) -> bytes:
    """Return handle data (the bytes of an IPC handle) with which other processes can open physical memory."""
    _expect_device(hContext, hPhysMem.device.shared)
    return bytes(core_physical.get(use(hPhysMem.shared)))


@function(
    317,
    "INVALID_CONTEXT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    operations=("ipc.physical_memory.put",),
    invalid=Result.ERROR_INVALID_VALUE,
    ends="physical memory handle",
    python="`xs.ipc.physical_memory.put(handle)`",
)
def urIPCPutPhysMemHandleExp(hContext: Context, pIPCPhysMemHandleData: bytes) -> None:
    """Release handle data of physical memory. No process can open the memory by this handle data any more. Physical
    memory that is already open stays open.
    """
    core_physical.put(pIPCPhysMemHandleData)


@function(
    318,
    "INVALID_CONTEXT",
    ("INVALID_VALUE", f"the length of `pIPCPhysMemHandleData` {_HANDLE_SIZE}"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    operations=("ipc.physical_memory.open",),
    invalid=Result.ERROR_INVALID_VALUE,
    makes="physical_mem",
    python="`xs.ipc.physical_memory.open(handle, device=…, context=…)`",
)
def urIPCOpenPhysMemHandleExp(hContext: Context, hDevice: Device, pIPCPhysMemHandleData: bytes) -> PhysicalMem:
    """Open physical memory by its handle data."""
    held = core_physical.open_(pIPCPhysMemHandleData, hDevice.shared, hContext.shared)
    return PhysicalMem.make(hContext, hDevice, physical_memory_over(held))


@function(
    319, "INVALID_CONTEXT", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES", ends="physical_mem", python="`physical.close()`"
)
def urIPCClosePhysMemHandleExp(hContext: Context, hPhysMem: PhysicalMem) -> None:
    """Close physical memory that `urIPCOpenPhysMemHandleExp` opened, by releasing a reference."""
    if hPhysMem.context is not hContext:
        raise URError(f"{hPhysMem!r} was opened in another context", result=Result.ERROR_INVALID_CONTEXT)
    if not hPhysMem.shared.is_imported:
        raise URError(f"{hPhysMem!r} was made here, not opened: release it", result=Result.ERROR_INVALID_ARGUMENT)
    hPhysMem.release()


@function(
    323,
    ("INVALID_EVENT", "`hEvent` was made without `ExpEventFlags.IPC_EXP`"),
    ("INVALID_EVENT", "`hEvent` comes from `urIPCOpenEventHandleExp`"),
    ("UNSUPPORTED_FEATURE", "`hEvent` has profiling or timestamps"),
    ("UNSUPPORTED_FEATURE", "the device of `hEvent` answers false to `DeviceInfo.IPC_EVENT_SUPPORT_EXP`"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    operations=("ipc.event.get",),
    invalid=Result.ERROR_INVALID_EVENT,
    makes="event handle",
    python="`xs.ipc.event.get(event)`",
)
def urIPCGetEventHandleExp(hEvent: Event) -> bytes:
    """Return handle data (the bytes of an IPC handle) with which other processes can open an event."""
    return bytes(core_event.get(use(hEvent.shared)))


@function(
    324,
    "INVALID_CONTEXT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    operations=("ipc.event.put",),
    invalid=Result.ERROR_INVALID_VALUE,
    ends="event handle",
    python="`xs.ipc.event.put(handle)`",
)
def urIPCPutEventHandleExp(hContext: Context, pIPCEventHandleData: bytes) -> None:
    """Release handle data of an event. No process can open the event by this handle data any more. The event itself and
    events that are already open stay valid. Only the process that called `urIPCGetEventHandleExp` may release the
    handle data.
    """
    core_event.put(pIPCEventHandleData)


@function(
    325,
    "INVALID_CONTEXT",
    ("INVALID_VALUE", f"the length of `pIPCEventHandleData` {_HANDLE_SIZE}"),
    (
        "UNSUPPORTED_FEATURE",
        "a device of `hContext` answers false to `DeviceInfo.IPC_EVENT_SUPPORT_EXP`",
    ),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    operations=("ipc.event.open",),
    invalid=Result.ERROR_INVALID_VALUE,
    makes="event",
    python="`xs.ipc.event.open(handle, context=…)`",
)
def urIPCOpenEventHandleExp(hContext: Context, pIPCEventHandleData: bytes) -> Event:
    """Open an event by its handle data. The opened event shares its state with the original event.

    There is no function that closes an opened event. The last `urEventRelease` closes it.
    """
    opened = core_event.open_(pIPCEventHandleData, None, hContext.shared)
    return Event.make(hContext, event_over(opened), Command.EVENTS_WAIT_WITH_BARRIER, True)
