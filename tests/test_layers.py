"""The layers: planted leaks, uses after release and overruns, each found with its place; right programs get no message;
and what is off is not there.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import itertools
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import TIMEOUT, withdraw_all
from xpushare import attach, share, ur
from xpushare.core import declare, layers
from xpushare.core.logger import Level, Logger, listeners
from xpushare.ur import urEnqueueUSMFill, urEventRelease, urUSMFree
from xpushare.ur._spec import FUNCTIONS

DEVICE = "native_cpu:0"
FULL = "UR_LAYER_FULL_VALIDATION"
TITLES = {
    "made": "was recorded for first time here:",
    "released": "It was released here:",
    "here": "This happened here:",
}


class World:
    """What plants use, made without layers."""

    def __init__(self) -> None:
        [self.adapter] = [each for each in ur.urAdapterGet() if each.backend == "native_cpu"]
        [self.platform] = ur.urPlatformGet(self.adapter)
        self.device = ur.urDeviceGet(self.platform, ur.DeviceType.ALL)[0]
        self.context = ur.urContextCreate([self.device], None)
        self.queue = ur.urQueueCreate(self.context, self.device, None)
        self.granule = xs.Device(DEVICE).memory_granularity()

    def memory(self, size: int = 4096) -> int:
        return ur.urUSMDeviceAlloc(self.context, self.device, None, None, size)

    def physical(self) -> ur.PhysicalMem:
        flags = ur.PhysicalMemProperties(ur.PhysicalMemFlags.ENABLE_IPC)
        return ur.urPhysicalMemCreate(self.context, self.device, self.granule, flags)

    def event(self) -> ur.Event:
        return ur.urEventCreateExp(self.context, self.device, ur.ExpEventDesc(ur.ExpEventFlags.IPC_EXP))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@contextmanager
def listening() -> Iterator[list[str]]:
    """The texts of all messages meanwhile."""
    found: list[str] = []

    def listen(_name: str, _level: Level, text: str) -> None:
        found.append(text)

    listeners.append(listen)
    try:
        yield found
    finally:
        listeners.remove(listen)


@contextmanager
def layered(*names: str) -> Iterator[list[str]]:
    with listening() as found:
        xs.enable_layers(*names)
        try:
            yield found
        finally:
            del found[:]
            xs.enable_layers()


refused = pytest.raises

# --- the plants: each returns what it keeps. Comments mark the places that the message must name.

Plant = Callable[[World], Any]
PLANTS: dict[str, tuple[Plant, str]] = {}


def plant(message: str) -> Callable[[Plant], Plant]:
    def declare_(function: Plant) -> Plant:
        PLANTS[function.__name__] = function, message
        return function

    return declare_


# leaks, object face


@plant("Retained 1 reference(s) to <Memory 100 bytes")
def leaks_memory(_world: World) -> Any:
    return xs.malloc_device(100, DEVICE)  # made


@plant("Retained 1 reference(s) to <Memory imported 64 bytes")
def leaks_an_open(_world: World) -> Any:
    with xs.malloc_device(64, DEVICE) as memory:
        handle = xs.ipc.memory.get(memory)
        opened = xs.ipc.memory.open(handle)  # made
        xs.ipc.memory.put(handle)
    return opened


@plant("Retained 1 reference(s) to memory handle <Handle memory 64 bytes")
def leaks_a_memory_handle(_world: World) -> Any:
    with xs.malloc_device(64, DEVICE) as memory:
        xs.ipc.memory.get(memory)  # made


@plant("Retained 1 reference(s) to <PhysicalMemory")
def leaks_physical_memory(world: World) -> Any:
    return xs.PhysicalMemory(world.granule, DEVICE)  # made


@plant("Retained 1 reference(s) to physical memory handle <Handle physical_memory")
def leaks_a_physical_memory_handle(world: World) -> Any:
    with xs.PhysicalMemory(world.granule, DEVICE, enable_ipc=True) as physical:
        xs.ipc.physical_memory.get(physical)  # made


@plant("Retained 1 reference(s) to <VirtualRange")
def leaks_a_range(world: World) -> Any:
    return xs.VirtualRange(world.granule, DEVICE)  # made


@plant("Retained 1 reference(s) to <Event value 0")
def leaks_an_event(_world: World) -> Any:
    return xs.Event(DEVICE)  # made


@plant("Retained 1 reference(s) to event handle <Handle event")
def leaks_an_event_handle(_world: World) -> Any:
    with xs.Event(DEVICE, enable_ipc=True) as event:
        xs.ipc.event.get(event)  # made


@plant("Retained 1 reference(s) to <Queue on")
def leaks_a_queue(_world: World) -> Any:
    return xs.Queue(DEVICE)  # made


@plant("Retained 1 reference(s) to <SharedArray")
def leaks_an_attached_array(_world: World) -> Any:
    with xs.empty(8, "u1", device=DEVICE) as array, share(array) as handle:
        return attach(handle)  # made


@plant("Retained 1 reference(s) to memory handle <Handle memory 8 bytes")
def loses_the_handle_of_an_array(_world: World) -> Any:
    with xs.empty(8, "u1", device=DEVICE) as array:
        return share(array)  # made


# leaks, Unified Runtime's face


def leak_of(kind: str) -> str:
    return f"Retained 1 reference(s) to handle 0x… <ur.{kind}"


@plant(leak_of("Context"))
def leaks_a_context(world: World) -> Any:
    ur.urContextCreate([world.device], None)  # made


@plant("Retained 2 reference(s) to handle 0x… <ur.Queue")
def leaks_a_retained_queue(world: World) -> Any:
    queue = ur.urQueueCreate(world.context, world.device, None)  # made
    ur.urQueueRetain(queue)
    ur.urQueueRetain(queue)
    ur.urQueueRelease(queue)


@plant(leak_of("Event"))
def leaks_the_event_of_a_command(world: World) -> Any:
    pointer = world.memory()
    urEnqueueUSMFill(world.queue, pointer, b"x", 64, [])  # made
    ur.urQueueFinish(world.queue)
    urUSMFree(world.context, pointer)


@plant(leak_of("PhysicalMem"))
def leaks_ur_physical_memory(world: World) -> Any:
    ur.urPhysicalMemCreate(world.context, world.device, world.granule, None)  # made


@plant(leak_of("Mem native_cpu of 100 bytes"))
def leaks_a_buffer(world: World) -> Any:
    ur.urMemBufferCreate(world.context, ur.MemFlags.READ_WRITE, 100, None)  # made


@plant(leak_of("USMPool"))
def leaks_a_pool(world: World) -> Any:
    ur.urUSMPoolCreate(world.context, ur.USMPoolDesc())  # made


@plant(leak_of("Event"))
def leaks_the_event_of_a_mapping(world: World) -> Any:
    buffer = ur.urMemBufferCreate(world.context, ur.MemFlags.READ_WRITE, 100, None)
    ur.urEnqueueMemBufferMap(world.queue, buffer, True, ur.MapFlags.READ, 0, 8, None)  # made
    ur.urMemRelease(buffer)


@plant("Retained 1 reference(s) to registered host memory 0x…, 4096 bytes")
def leaks_registered_memory(world: World) -> Any:
    kept = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(kept))
    ur.urUSMHostAllocRegisterExp(world.context, address, 4096, None)  # made
    return kept


@plant("Retained 1 reference(s) to USM memory 0x…, 4096 bytes")
def leaks_memory_of_a_queue(world: World) -> Any:
    _pointer, event = ur.urEnqueueUSMDeviceAllocExp(world.queue, None, 4096, None, [])  # made
    urEventRelease(event)


@plant("Retained 1 reference(s) to USM memory 0x…, 4096 bytes")
def leaks_usm_memory(world: World) -> Any:
    ur.urUSMDeviceAlloc(world.context, world.device, None, None, 4096)  # made


@plant("Retained 1 reference(s) to reserved range 0x…")
def leaks_a_reserved_range(world: World) -> Any:
    ur.urVirtualMemReserve(world.context, None, world.granule)  # made


@plant("Retained 2 reference(s) to opened memory 0x…, 4096 bytes")
def leaks_two_of_three_opens(world: World) -> Any:
    pointer = world.memory()
    data = ur.urIPCGetMemHandleExp(world.context, pointer)
    opened = ur.urIPCOpenMemHandleExp(world.context, world.device, data)  # made
    ur.urIPCOpenMemHandleExp(world.context, world.device, data)
    ur.urIPCOpenMemHandleExp(world.context, world.device, data)
    ur.urIPCCloseMemHandleExp(world.context, opened)
    ur.urIPCPutMemHandleExp(world.context, data)
    urUSMFree(world.context, pointer)


@plant("Retained 1 reference(s) to event handle <Handle event")
def leaks_handle_data_of_an_event(world: World) -> Any:
    event = world.event()
    ur.urIPCGetEventHandleExp(event)  # made
    ur.urEventRelease(event)


@plant(leak_of("Event"))
def leaks_an_opened_event(world: World) -> Any:
    event = world.event()
    data = ur.urIPCGetEventHandleExp(event)
    ur.urIPCOpenEventHandleExp(world.context, data)  # made
    ur.urIPCPutEventHandleExp(world.context, data)
    urEventRelease(event)


# uses after release, object face


@plant("There are no valid references to <Memory 100 bytes")
def uses_closed_memory(_world: World) -> Any:
    memory = xs.malloc_device(100, DEVICE)  # made
    memory.close()  # released
    with refused(xs.InvalidArgumentError):
        _ = memory.ptr  # here


@plant("There are no valid references to <SharedArray")
def shares_a_closed_array(_world: World) -> Any:
    array = xs.empty(8, device=DEVICE)  # made
    array.close()  # released
    with refused(xs.InvalidArgumentError):
        share(array)  # here


@plant("There are no valid references to <Queue")
def uses_a_closed_queue(_world: World) -> Any:
    with xs.Queue(DEVICE) as queue:  # made, released
        pass
    with refused(xs.InvalidArgumentError):
        queue.synchronize()  # here


@plant("There are no valid references to <Event")
def signals_a_closed_event(_world: World) -> Any:
    event = xs.Event(DEVICE)  # made
    event.close()  # released
    with refused(xs.InvalidArgumentError), xs.Queue(DEVICE) as queue:
        queue.signal(event)  # here


@plant("There are no valid references to <PhysicalMemory")
def maps_closed_physical_memory(world: World) -> Any:
    physical = xs.PhysicalMemory(world.granule, DEVICE)  # made
    physical.close()  # released
    with refused(xs.InvalidArgumentError), xs.VirtualRange(world.granule, DEVICE) as reserved:
        reserved.map(physical)  # here


@plant("There are no valid references to <VirtualRange")
def maps_in_a_closed_range(world: World) -> Any:
    reserved = xs.VirtualRange(world.granule, DEVICE)  # made
    reserved.close()  # released
    with refused(xs.InvalidArgumentError), xs.PhysicalMemory(world.granule, DEVICE) as physical:
        reserved.map(physical)  # here


@plant("There are no valid references to <Memory imported")
def closes_an_import_twice(_world: World) -> Any:
    with xs.malloc_device(64, DEVICE) as memory:
        handle = xs.ipc.memory.get(memory)
        opened = xs.ipc.memory.open(handle)  # made
        xs.ipc.memory.close(opened)  # released
        with refused(xs.InvalidArgumentError):
            xs.ipc.memory.close(opened)  # here
        xs.ipc.memory.put(handle)


@plant("Attempting to release nonexistent memory handle <Handle memory")
def puts_a_handle_twice(_world: World) -> Any:
    with xs.malloc_device(64, DEVICE) as memory:
        handle = xs.ipc.memory.get(memory)  # made
        xs.ipc.memory.put(handle)  # released
        with refused(xs.InvalidArgumentError):
            xs.ipc.memory.put(handle)  # here


@plant("There are no valid references to memory handle <Handle memory")
def opens_a_handle_that_was_put(_world: World) -> Any:
    with xs.malloc_device(64, DEVICE) as memory:
        handle = xs.ipc.memory.get(memory)  # made
        xs.ipc.memory.put(handle)  # released
        with refused(xs.HandleExpiredError):
            xs.ipc.memory.open(str(handle))  # here


@plant("There are no valid references to memory handle <Handle memory")
def attaches_the_bytes_of_a_closed_handle(_world: World) -> Any:
    with xs.empty(8, "u1", device=DEVICE) as array:
        handle = share(array)  # made
        handle.close()  # released
        with refused(xs.HandleExpiredError):
            attach(bytes(handle))  # here


@plant("this is a handle of memory, not of event")
def opens_a_handle_of_another_kind(_world: World) -> Any:
    with xs.malloc_device(64, DEVICE) as memory:
        handle = xs.ipc.memory.get(memory)
        with refused(xs.InvalidHandleError):
            xs.ipc.event.open(handle)  # here
        xs.ipc.memory.put(handle)


# uses after release, Unified Runtime's face


@plant("There are no valid references to USM memory 0x…, 4096 bytes, which 0x… lies in")
def uses_memory_that_a_queue_freed(world: World) -> Any:
    pointer, allocated = ur.urEnqueueUSMDeviceAllocExp(world.queue, None, 4096, None, [])  # made
    freed = ur.urEnqueueUSMFreeExp(world.queue, None, pointer, [])  # released
    with refused(ur.URError):
        ur.urEnqueueUSMAdvise(world.queue, pointer, 64, 0)  # here
    for event in (allocated, freed):
        urEventRelease(event)


@plant("There are no valid references to handle 0x… <ur.Queue")
def finishes_a_released_queue(world: World) -> Any:
    queue = ur.urQueueCreate(world.context, world.device, None)  # made
    ur.urQueueRelease(queue)  # released
    with refused(ur.URError):
        ur.urQueueFinish(queue)  # here


@plant("There are no valid references to handle 0x… <ur.Mem")
def fills_a_released_buffer(world: World) -> Any:
    buffer = ur.urMemBufferCreate(world.context, ur.MemFlags.READ_WRITE, 100, None)  # made
    ur.urMemRelease(buffer)  # released
    with refused(ur.URError):
        ur.urEnqueueMemBufferFill(world.queue, buffer, b"x", 0, 8, [])  # here


@plant("Attempting to release nonexistent handle 0x… <ur.USMPool")
def releases_a_pool_twice(world: World) -> Any:
    pool = ur.urUSMPoolCreate(world.context, ur.USMPoolDesc())  # made
    ur.urUSMPoolRelease(pool)  # released
    with refused(ur.URError):
        ur.urUSMPoolRelease(pool)  # here


@plant("Attempting to release nonexistent handle 0x… <ur.Event")
def releases_an_event_twice(world: World) -> Any:
    event = ur.urEventCreateExp(world.context, world.device, ur.ExpEventDesc())  # made
    urEventRelease(event)  # released
    with refused(ur.URError):
        urEventRelease(event)  # here


@plant("There are no valid references to handle 0x… <ur.Event")
def waits_for_a_released_event(world: World) -> Any:
    event = ur.urEventCreateExp(world.context, world.device, ur.ExpEventDesc())  # made
    urEventRelease(event)  # released
    with refused(ur.URError):
        ur.urEnqueueEventsWait(world.queue, [event])  # here


@plant("There are no valid references to handle 0x… <ur.Context native_cpu:0>, which is not a queue")
def finishes_a_context(world: World) -> Any:
    context: Any = ur.urContextCreate([world.device], None)  # made
    with refused(ur.URError):
        ur.urQueueFinish(context)  # here
    ur.urContextRelease(context)


@plant("Attempting to release nonexistent USM memory 0x…, 4096 bytes")
def frees_twice(world: World) -> Any:
    pointer = ur.urUSMDeviceAlloc(world.context, world.device, None, None, 4096)  # made
    urUSMFree(world.context, pointer)  # released
    with refused(ur.URError):
        urUSMFree(world.context, pointer)  # here


@plant("There are no valid references to USM memory 0x…, 4096 bytes, which 0x… lies in")
def exports_freed_memory(world: World) -> Any:
    pointer = ur.urUSMDeviceAlloc(world.context, world.device, None, None, 4096)  # made
    urUSMFree(world.context, pointer)  # released
    with refused(ur.URError):
        ur.urIPCGetMemHandleExp(world.context, pointer + 64)  # here


@plant("There are no valid references to USM memory 0x…, 4096 bytes, which 0x… lies in")
def fills_freed_memory_that_an_import_keeps(world: World) -> Any:
    pointer = ur.urUSMDeviceAlloc(world.context, world.device, None, None, 4096)  # made
    data = ur.urIPCGetMemHandleExp(world.context, pointer)
    opened = xs.ipc.memory.open(data)  # keeps the memory in place
    ur.urIPCPutMemHandleExp(world.context, data)
    urUSMFree(world.context, pointer)  # released
    event = urEnqueueUSMFill(world.queue, pointer, b"x", 64, [])  # here
    ur.urEventWait([event])
    urEventRelease(event)
    opened.close()


@plant("Attempting to release nonexistent opened memory 0x…, 4096 bytes")
def closes_opened_memory_twice(world: World) -> Any:
    pointer = world.memory()
    data = ur.urIPCGetMemHandleExp(world.context, pointer)
    opened = ur.urIPCOpenMemHandleExp(world.context, world.device, data)  # made
    ur.urIPCCloseMemHandleExp(world.context, opened)  # released
    with refused(ur.URError):
        ur.urIPCCloseMemHandleExp(world.context, opened)  # here
    ur.urIPCPutMemHandleExp(world.context, data)
    urUSMFree(world.context, pointer)


@plant("Attempting to release nonexistent physical memory handle")
def puts_handle_data_twice(world: World) -> Any:
    physical = world.physical()
    data = ur.urIPCGetPhysMemHandleExp(world.context, physical)  # made
    ur.urIPCPutPhysMemHandleExp(world.context, data)  # released
    with refused(ur.URError):
        ur.urIPCPutPhysMemHandleExp(world.context, data)  # here
    ur.urPhysicalMemRelease(physical)


# overruns


@plant("bytes 90 to 110 do not lie in memory of 100 bytes")
def slices_beyond_the_end(_world: World) -> Any:
    with xs.malloc_device(100, DEVICE) as memory, refused(xs.InvalidArgumentError):
        memory.slice(90, 20)  # here


@plant("bytes 0 to 104 do not lie in the memory of 100 bytes")
def lays_an_array_beyond_the_end(_world: World) -> Any:
    with xs.malloc_device(100, DEVICE) as memory, refused(xs.InvalidArgumentError):
        memory.as_array(13, "f8")  # here


@plant("bytes 0 to 200 do not lie in dst of 100 bytes")
def copies_beyond_the_end(_world: World) -> Any:
    with (
        xs.malloc_device(100, DEVICE) as target,
        xs.malloc_device(200, DEVICE) as source,
        xs.Queue(DEVICE) as queue,
        refused(xs.InvalidArgumentError),
    ):
        queue.copy(target, source)  # here


@plant("bytes 0 to 101 do not lie in dst of 100 bytes")
def fills_beyond_the_end(_world: World) -> Any:
    with xs.malloc_device(100, DEVICE) as target, xs.Queue(DEVICE) as queue, refused(xs.InvalidArgumentError):
        queue.fill(target, b"x", 101)  # here


@plant("do not lie in the range of")
def maps_beyond_the_end(world: World) -> Any:
    with (
        xs.VirtualRange(world.granule, DEVICE) as reserved,
        xs.PhysicalMemory(world.granule, DEVICE) as physical,
        refused(xs.InvalidArgumentError),
    ):
        reserved.map(physical, world.granule)  # here


@plant("`hBuffer` handle 0x… <ur.Mem native_cpu of 100 bytes>: urEnqueueMemBufferRead: bytes 96 to 104 do not lie")
def reads_past_the_end_of_a_buffer(world: World) -> Any:
    buffer = ur.urMemBufferCreate(world.context, ur.MemFlags.READ_WRITE, 100, None)  # made
    pointer = world.memory()
    with refused(ur.URError):
        ur.urEnqueueMemBufferRead(world.queue, buffer, True, 96, 8, pointer, [])  # here
    urUSMFree(world.context, pointer)
    ur.urMemRelease(buffer)


@plant("4128 bytes from `pMem` 0x… in USM memory 0x…, 4096 bytes exceed what is there, 4096 bytes")
def ur_fill_beyond_the_end(world: World) -> Any:
    pointer = ur.urUSMDeviceAlloc(world.context, world.device, None, None, 4096)  # made
    with refused(ur.URError):
        urEnqueueUSMFill(world.queue, pointer, b"x" * 32, 4128, [])  # here
    urUSMFree(world.context, pointer)


@plant("64 bytes from `pSrc` 0x… in USM memory 0x…, 4096 bytes exceed what is there, 63 bytes")
def ur_copy_beyond_the_end_of_the_source(world: World) -> Any:
    target = world.memory()
    source = ur.urUSMHostAlloc(world.context, None, None, 4096)  # made
    with refused(ur.URError):
        ur.urEnqueueUSMMemcpy(world.queue, True, target, source + 4033, 64, [])  # here
    urUSMFree(world.context, source)
    urUSMFree(world.context, target)


@plant("from `pStart` 0x… in reserved range 0x…")
def ur_map_beyond_the_end_of_the_range(world: World) -> Any:
    start = ur.urVirtualMemReserve(world.context, None, world.granule)  # made
    with refused(ur.URError):
        ur.urVirtualMemUnmap(world.context, start, 2 * world.granule)  # here
    ur.urVirtualMemFree(world.context, start, world.granule)


@plant("do not lie in the physical memory of")
def ur_map_beyond_the_end_of_the_memory(world: World) -> Any:
    start = ur.urVirtualMemReserve(world.context, None, 2 * world.granule)
    physical = world.physical()
    with refused(ur.URError):
        ur.urVirtualMemMap(world.context, start, world.granule, physical, world.granule, 1)  # here
    ur.urPhysicalMemRelease(physical)
    ur.urVirtualMemFree(world.context, start, 2 * world.granule)


def matches(text: str, pattern: str) -> bool:
    """Whether a message has the pattern's words; `0x…` is any address."""
    at = 0
    for part in pattern.split("0x…"):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def marked(function: Plant) -> dict[str, int]:
    """The lines that the comments of a plant mark."""
    lines, first = inspect.getsourcelines(function)
    return {
        mark: first + number
        for number, line in enumerate(lines)
        for mark in line.partition("  # ")[2].strip().split(", ")
        if mark in TITLES
    }


@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_plant_is_found_with_its_place(world: World, name: str) -> None:
    function, wanted = PLANTS[name]
    with layered(FULL) as told:
        kept = function(world)
        before = list(told)
        layers.print_retained()
        found = list(told)
        withdraw_all()
    problems = [text for text in found if not text.startswith("#") and not any(map(text.endswith, TITLES.values()))]
    assert len(problems) == 1, problems  # nothing else, and nothing twice
    assert matches(problems[0], wanted), problems[0]
    assert name.startswith(("leaks", "loses")) == (not before)
    places = marked(function)
    assert places
    for mark, line in places.items():
        [title] = [number for number, text in enumerate(found) if text.endswith(TITLES[mark])]
        assert found[title + 1] == f"#0 {__file__}:{line} in {name}", mark
    del kept


def test_there_are_enough_plants() -> None:
    assert len(PLANTS) >= 25


# --- right programs


def right_program(world: World) -> None:
    """All three faces, everything given back."""
    with (
        xs.malloc_device(4096, DEVICE) as memory,
        xs.Queue(DEVICE) as queue,
        xs.Event(DEVICE, enable_ipc=True) as event,
    ):
        handle, signal = xs.ipc.memory.get(memory), xs.ipc.event.get(event)
        with xs.ipc.memory.open(handle) as opened, xs.ipc.event.open(signal) as far:
            queue.fill(opened, b"x")
            queue.signal(far)
            event.wait(TIMEOUT)
            assert memoryview(memory)[4095] == ord("x")
        xs.ipc.event.put(signal)
        xs.ipc.memory.put(handle)
    with share(np.ones(3), copy=True) as made, attach(made) as array:
        assert np.asarray(array).sum() == 3
    share(xs.array([1]), opens=1)
    attach(share(xs.array([1]), opens=1)).close()
    lost = xs.malloc_device(64, DEVICE)  # closed when its last reference goes
    lost.close()
    lost.close()
    with xs.PhysicalMemory(world.granule, DEVICE) as physical, xs.VirtualRange(world.granule, DEVICE) as reserved:
        reserved.map(physical)
        reserved.unmap(0, world.granule)
    pointer = world.memory()
    data = ur.urIPCGetMemHandleExp(world.context, pointer)
    opened_at = ur.urIPCOpenMemHandleExp(world.context, world.device, data)
    waited = urEnqueueUSMFill(world.queue, opened_at, b"y", 4096, [])
    ur.urEventRetain(waited)
    ur.urEventWait([waited])
    urEventRelease(waited)
    urEventRelease(waited)
    ur.urIPCCloseMemHandleExp(world.context, opened_at)
    ur.urIPCPutMemHandleExp(world.context, data)
    urUSMFree(world.context, pointer)


def test_a_right_program_gets_no_message(world: World) -> None:
    with layered(FULL) as told:
        right_program(world)
        assert layers.print_retained() == 0
        assert told == []


def test_off_leak_checking_tells_what_is_retained() -> None:
    with listening() as told:
        xs.enable_layers("UR_LAYER_LEAK_CHECKING")
        memory = xs.malloc_device(100, DEVICE)
        xs.enable_layers()
        assert told[0] == f"Retained 1 reference(s) to {memory!r}"
        xs.enable_layers("UR_LAYER_LEAK_CHECKING")
        del told[:]
        xs.enable_layers()
        assert told == []


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        ("UR_LAYER_LEAK_CHECKING", {"leaks_memory"}),
        ("UR_LAYER_LIFETIME_VALIDATION", {"leaks_memory", "frees_twice"}),
        ("UR_LAYER_BOUNDS_CHECKING", {"slices_beyond_the_end"}),
        ("UR_LAYER_PARAMETER_VALIDATION", set()),
    ],
)
def test_each_layer_does_its_own(world: World, layer: str, found: set[str]) -> None:
    told_of = set()
    for name in ("leaks_memory", "frees_twice", "slices_beyond_the_end"):
        with layered(layer) as told:
            kept = PLANTS[name][0](world)
            layers.print_retained()
            if told:
                told_of.add(name)
            del kept
    assert told_of == found


# --- off


def wrapped() -> list[str]:
    points = {each.name: each.point for each in layers.operations()}
    return [name for name, point in points.items() if point.wrapped]


def called() -> dict[str, Any]:
    """What a call of each operation, and of each function of Unified Runtime, goes to."""
    return {
        **{each.name: getattr(module_of(each), each.function.__name__) for each in layers.operations()},
        **{name: getattr(ur, name).__globals__["_layer"] for name in FUNCTIONS},
    }


def module_of(operation: declare.Operation) -> ModuleType:
    return sys.modules[operation.function.__module__]


def test_off_nothing_is_left_of_the_layers() -> None:
    """A call goes to the same function as before: it executes the same instructions."""
    off, functions = called(), {name: (getattr(ur, name), getattr(ur, name).__code__) for name in FUNCTIONS}
    assert [each.function for each in layers.operations()] == [off[each.name] for each in layers.operations()]
    assert {off[name] for name in FUNCTIONS} == {None}
    with layered(FULL, "UR_LAYER_TRACING"):
        assert not [name for name, target in called().items() if target is off[name]]
        assert declare.layers_on == [FULL, "UR_LAYER_TRACING"]
        assert declare.watchers
    assert called() == off
    assert {name: (getattr(ur, name), getattr(ur, name).__code__) for name in FUNCTIONS} == functions
    assert declare.layers_on == []
    assert declare.watchers == []
    assert wrapped() == []


def held(tree: ast.Module, names: dict[tuple[str, str], str]) -> Iterator[str]:
    """The operations that a module keeps: imports by name, or uses outside of functions, which run only once."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (node.module or "", alias.name) in names:
                    yield names[node.module or "", alias.name]
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for part in (function.body if isinstance(function.body, list) else [function.body])
        for node in ast.walk(part)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in inner:
            found = names.get((modules.get(node.value.id, ""), node.attr))
            if found is not None:
                yield found


def test_nobody_keeps_an_operation() -> None:
    """A layer that is switched on later wraps what is looked up in the operation's module, and nothing else."""
    names = {(each.function.__module__, each.function.__name__): each.name for each in layers.operations()}
    package = Path(xs.__file__).parent
    kept = {
        str(file.relative_to(package)): found
        for file in package.rglob("*.py")
        if (found := sorted(held(ast.parse(file.read_text()), names)))
    }
    assert kept == {}


@pytest.mark.parametrize(
    "text",
    [
        "from xpushare.core.memory import put",
        "def f():\n    from xpushare.core.memory import put as other",
        "from xpushare.core import memory as core\nTABLE = {'put': core.put}",
        "from xpushare.core import memory\ndef f(put=memory.put): ...",
    ],
)
def test_an_operation_that_is_kept_is_found(text: str) -> None:
    assert list(held(ast.parse(text), {("xpushare.core.memory", "put"): "ipc.memory.put"})) == ["ipc.memory.put"]


def test_a_program_without_layers_does_not_load_them() -> None:
    source = """
    import sys, xpushare as xs
    from xpushare import ur
    xs.ipc.memory.put(xs.ipc.memory.get(xs.malloc_device(64, "native_cpu:0")))
    print([name for name in ("validation", "logger", "printing", "layers") if f"xpushare.core.{name}" in sys.modules])
    """
    assert run(source).stdout == "[]\n"


def test_signatures_stay_while_layers_are_on() -> None:
    off = inspect.signature(urUSMFree)
    with layered(FULL):
        assert inspect.signature(urUSMFree) == off
        assert urUSMFree is ur.urUSMFree


# --- the environment, the exit, and the log


def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [os.path.abspath(path) for path in sys.path if path]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )


LEAKING = """
from xpushare import malloc_device
kept = malloc_device(100, "native_cpu:0")
"""


def test_what_a_process_retains_is_told_at_its_exit_and_an_unknown_layer_is_a_warning() -> None:
    done = run(LEAKING, UR_ENABLE_LAYERS=f"{FULL}, UR_LAYER_TSAN")
    unknown, *lines = done.stderr.splitlines()
    assert unknown.startswith("UR_ENABLE_LAYERS: there is no layer 'UR_LAYER_TSAN' here")
    assert lines[0].startswith("<VALIDATION>[ERROR]: Retained 1 reference(s) to <Memory 100 bytes at 0x")
    assert lines[1].endswith("was recorded for first time here:")
    assert lines[2:] == ["<VALIDATION>[ERROR]: #0 <string>:3 in <module>"]


def test_the_log_goes_where_the_environment_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run(
        LEAKING,
        UR_ENABLE_LAYERS=f"{FULL},UR_LAYER_TRACING",
        UR_LOG_VALIDATION=f"level:error;flush:error;output:file,{log};fileline:true",
        UR_LOG_TRACING="level:info;output:stdout;fileline:true",
    )
    assert done.stderr == ""
    begin, end = done.stdout.splitlines()
    assert begin == "   ---> malloc <<string>:3>"
    assert end.startswith("   <--- malloc(.kind = device, .nbytes = 100, .device = native_cpu:0, .context = nullptr, ")
    assert end.endswith(") -> UR_RESULT_SUCCESS; <<string>:3>")
    assert log.read_text().startswith("<VALIDATION>[ERROR]: Retained 1 reference(s) to <Memory")
    assert run(LEAKING, UR_ENABLE_LAYERS=FULL, UR_LOG_VALIDATION="level:quiet").stderr == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("level:loud", "there is no level 'loud'"),
        ("verbose:1", "it has no key 'verbose'"),
        ("level", "'level' is not a key:value"),
        ("output:file", "output is stdout, stderr or file,<path>"),
        ("output:stdout,x", "output is stdout, stderr or file,<path>"),
        ("output:file,/no/such/folder/log", "No such file or directory"),
    ],
)
def test_a_wrong_log_variable_is_told_and_ignored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    monkeypatch.setenv("UR_LOG_TEST", text)
    logger = Logger("TEST", Level.WARNING)
    logger.log(Level.INFO, "not this")
    logger.log(Level.WARNING, "this")
    told, message = capsys.readouterr().err.splitlines()
    assert told.startswith("xpushare: UR_LOG_TEST is ignored: ")
    assert complaint in told
    assert message == "<TEST>[WARNING]: this"


def test_a_file_is_flushed_at_the_level(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("UR_LOG_TEST", f"level:debug;flush:warning;output:file,{log}")
    logger = Logger("TEST", Level.ERROR)
    logger.log(Level.INFO, "first")
    assert log.read_text() == ""
    logger.log(Level.WARNING, "second")
    assert log.read_text().splitlines() == ["<TEST>[INFO]: first", "<TEST>[WARNING]: second"]


# --- tracing


def test_functions_are_traced_by_the_names_of_their_arguments(world: World) -> None:
    with layered("UR_LAYER_TRACING") as told:
        with refused(ur.URError):
            ur.urContextCreate([world.device], ur.ContextProperties(64))
        assert ".pProperties = (struct ur_context_properties_t){.flags = unknown bit flags 0" in told.pop()
        del told[:]
        event = world.event()
        status = ur.urEventGetInfo(event, ur.EventInfo.COMMAND_EXECUTION_STATUS)
        with refused(ur.URError):
            ur.urEventGetInfo(event, 1000)
        lines = list(told)
        urEventRelease(event)
    assert status is ur.EventStatus.COMPLETE
    context, device, handle = (f"{id(each):#x}" for each in (world.context, world.device, event))
    desc = "(struct ur_exp_event_desc_t){.flags = UR_EXP_EVENT_FLAG_IPC_EXP}"
    made = f".hContext = {context}, .hDevice = {device}, .pEventDesc = {desc}, .return = {handle}"
    query = ".propName = UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, .return = UR_EVENT_STATUS_COMPLETE"
    unknown = ".propName = unknown enumerator"
    assert lines == [
        "   ---> urEventCreateExp",
        f"   <--- urEventCreateExp({made}) -> UR_RESULT_SUCCESS;",
        "   ---> urEventGetInfo",
        f"   <--- urEventGetInfo(.hEvent = {handle}, {query}) -> UR_RESULT_SUCCESS;",
        "   ---> urEventGetInfo",
        f"   <--- urEventGetInfo(.hEvent = {handle}, {unknown}) -> UR_RESULT_ERROR_INVALID_ENUMERATION;",
    ]


def test_boxes_and_several_results_are_traced(world: World) -> None:
    buffer = ur.urMemBufferCreate(world.context, ur.MemFlags.READ_WRITE, 100, None)
    zero, box = ur.RectOffset(), ur.RectRegion(2, 1, 1)
    with layered("UR_LAYER_TRACING") as told:
        copied = ur.urEnqueueMemBufferCopyRect(world.queue, buffer, buffer, zero, ur.RectOffset(4), box, 0, 0, 0, 0, [])
        mapped, address = ur.urEnqueueMemBufferMap(world.queue, buffer, True, ur.MapFlags.READ, 0, 8, [])
        lines = [*told]
        del told[:]
    offset = ".dstOrigin = (struct ur_rect_offset_t){.x = 4, .y = 0, .z = 0}, "
    assert offset + ".region = (struct ur_rect_region_t){.width = 2, .height = 1, .depth = 1}" in lines[1]
    assert f".return = {{{id(mapped):#x}, {address:#x}}}) -> UR_RESULT_SUCCESS;" in lines[3]
    for event in (copied, mapped):
        urEventRelease(event)
    ur.urMemRelease(buffer)


def test_a_trace_has_no_bytes_of_handles(world: World) -> None:
    with layered("UR_LAYER_TRACING") as told:
        pointer = world.memory()
        data = ur.urIPCGetMemHandleExp(world.context, pointer)
        opened = xs.ipc.memory.open(data)
        opened.close()
        xs.ipc.memory.put(str(xs.ipc.Handle(data)))
        urUSMFree(world.context, pointer)
        text = "\n".join(told)
    assert len(told) == 0
    assert f"{{{len(data)} bytes}}" in text
    halves = [data[:16].hex(), repr(data)[:40], str(xs.ipc.Handle(data))[:16]]
    assert not [each for each in halves if each in text]


def test_every_function_is_covered_by_its_declaration() -> None:
    """Of each kind that a function makes there is one that ends it, and the layers find what it is by the arguments."""
    for function, kind in itertools.chain(
        ((each, kind) for each in FUNCTIONS.values() for kind in each.made if each.returns == "None"),
        ((each, each.ends) for each in FUNCTIONS.values() if each.ends),
    ):
        if kind.endswith(" handle"):  # the operation's
            continue
        kinds = [arg.base_kind for arg in function.args]
        assert f"handle:{kind}" in kinds or "pointer" in kinds, function.name


def test_the_plugin_fails_tests_that_layers_tell_of(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        textwrap.dedent("""
        import pytest
        import xpushare as xs


        def overrun():
            with xs.malloc_device(8, "native_cpu:0") as memory, pytest.raises(xs.InvalidArgumentError):
                memory.slice(0, 9)


        def test_overruns():
            overrun()


        @pytest.mark.misuse
        def test_overruns_on_purpose():
            overrun()


        def test_leaves_an_export():
            with xs.malloc_device(8, "native_cpu:0") as memory:
                xs.ipc.memory.get(memory)


        def test_is_right():
            with xs.malloc_device(8, "native_cpu:0") as memory:
                xs.ipc.memory.put(xs.ipc.memory.get(memory))
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xpushare.conformance.silence"]
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=TIMEOUT * 2,
    )
    assert "4 passed, 2 errors" in done.stdout, done.stdout
    assert "the layers report ['bytes 0 to 9 do not lie in memory of 8 bytes']" in done.stdout
    assert "the test has not given back ['memory handle <Handle memory 8 bytes" in done.stdout
