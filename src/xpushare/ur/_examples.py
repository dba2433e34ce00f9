"""The example programs on the pages about groups of functions. Tests run them from the pages."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EXAMPLES"]

_CONTEXT: Final = """\
from xpushare import ur

platform = next(
    ur.urPlatformGet(each)[0]
    for each in ur.urAdapterGet()
    if ur.urAdapterGetInfo(each, ur.AdapterInfo.BACKEND) == ur.Backend.NATIVE_CPU
)
device = ur.urDeviceGet(platform, ur.DeviceType.ALL)[0]
context = ur.urContextCreate([device], None)

"""

_DEVICES: Final = """\
from xpushare import ur

for adapter in ur.urAdapterGet():
    for platform in ur.urPlatformGet(adapter):
        backend = ur.urPlatformGetInfo(platform, ur.PlatformInfo.BACKEND)
        if backend == ur.Backend.NATIVE_CPU:
            for device in ur.urDeviceGet(platform, ur.DeviceType.ALL):
                kind = ur.urDeviceGetInfo(device, ur.DeviceInfo.TYPE)
                print(backend.name, kind.name)
"""

_CONTEXTS: Final = """\
print(ur.urContextGetInfo(context, ur.ContextInfo.NUM_DEVICES))
print(ur.urContextGetInfo(context, ur.ContextInfo.DEVICES) == [device])
ur.urContextRelease(context)
"""

_QUEUES: Final = """\
queue = ur.urQueueCreate(context, device, None)
event = ur.urEnqueueEventsWait(queue, None)  # a command that does nothing
ur.urQueueFinish(queue)
print(ur.urQueueGetInfo(queue, ur.QueueInfo.EMPTY))
ur.urEventRelease(event)
ur.urQueueRelease(queue)
ur.urContextRelease(context)
"""

_COMMANDS: Final = """\
queue = ur.urQueueCreate(context, device, None)
a = ur.urUSMHostAlloc(context, None, None, 4)
b = ur.urUSMHostAlloc(context, None, None, 4)

filled = ur.urEnqueueUSMFill(queue, a, b"\\x07", 4, None)
copied = ur.urEnqueueUSMMemcpy(queue, False, b, a, 4, [filled])
ur.urEventWait([copied])
print(ctypes.string_at(b, 4))

for event in (filled, copied):
    ur.urEventRelease(event)
for address in (a, b):
    ur.urUSMFree(context, address)
ur.urQueueRelease(queue)
ur.urContextRelease(context)
"""

_EVENTS: Final = """\
queue = ur.urQueueCreate(context, device, None)
event = ur.urEnqueueEventsWait(queue, None)
ur.urEventWait([event])
status = ur.urEventGetInfo(event, ur.EventInfo.COMMAND_EXECUTION_STATUS)
command = ur.urEventGetInfo(event, ur.EventInfo.COMMAND_TYPE)
print(command.name, status.name)
ur.urEventRelease(event)
ur.urQueueRelease(queue)
ur.urContextRelease(context)
"""

_MEMORY: Final = """\
pool = ur.urUSMPoolCreate(context, ur.USMPoolDesc())
address = ur.urUSMDeviceAlloc(context, device, None, pool, 4096)
kind = ur.urUSMGetMemAllocInfo(context, address + 100, ur.USMAllocInfo.TYPE)
size = ur.urUSMGetMemAllocInfo(context, address + 100, ur.USMAllocInfo.SIZE)
print(kind.name, size)
ur.urUSMFree(context, address)
ur.urUSMPoolRelease(pool)
ur.urContextRelease(context)
"""

_BUFFERS: Final = """\
queue = ur.urQueueCreate(context, device, None)
buffer = ur.urMemBufferCreate(context, ur.MemFlags.READ_WRITE, 8, None)
filled = ur.urEnqueueMemBufferFill(queue, buffer, b"ab", 0, 8, None)

read = ur.MapFlags.READ
mapped, address = ur.urEnqueueMemBufferMap(queue, buffer, True, read, 2, 4, [filled])
print(ctypes.string_at(address, 4))
unmapped = ur.urEnqueueMemUnmap(queue, buffer, address, [mapped])
ur.urEventWait([unmapped])

for event in (filled, mapped, unmapped):
    ur.urEventRelease(event)
ur.urMemRelease(buffer)
ur.urQueueRelease(queue)
ur.urContextRelease(context)
"""

_VIRTUAL_MEMORY: Final = """\
smallest = ur.VirtualMemGranularityInfo.MINIMUM
size = ur.urVirtualMemGranularityGetInfo(context, device, 0, smallest)
start = ur.urVirtualMemReserve(context, None, 2 * size)
physical = ur.urPhysicalMemCreate(context, device, size, None)

at, access = start + size, ur.VirtualMemAccessFlags.READ_WRITE
ur.urVirtualMemMap(context, at, size, physical, 0, access)
found = ur.urVirtualMemGetInfo(context, at, size, ur.VirtualMemInfo.ACCESS_MODE)
print(found.name)

ur.urVirtualMemUnmap(context, at, size)
ur.urPhysicalMemRelease(physical)
ur.urVirtualMemFree(context, start, 2 * size)
ur.urContextRelease(context)
"""

_NATIVE_HANDLES: Final = """\
from xpushare import ur

for adapter in ur.urAdapterGet():
    for platform in ur.urPlatformGet(adapter):
        for device in ur.urDeviceGet(platform, ur.DeviceType.ALL):
            try:
                handle = ur.urDeviceGetNativeHandle(device)
            except ur.URError as error:
                assert error.result == ur.Result.ERROR_UNSUPPORTED_FEATURE
                continue  # the host has no driver, so it has no handle
            same = ur.urDeviceCreateWithNativeHandle(handle, adapter, None)
            assert same == device
            ur.urDeviceRelease(same)
"""

EXAMPLES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "devices": (_DEVICES, "NATIVE_CPU CPU"),
        "contexts": (_CONTEXT + _CONTEXTS, "1\nTrue"),
        "queues": (_CONTEXT + _QUEUES, "True"),
        "commands": ("import ctypes\n\n" + _CONTEXT + _COMMANDS, "b'\\x07\\x07\\x07\\x07'"),
        "events": (_CONTEXT + _EVENTS, "EVENTS_WAIT COMPLETE"),
        "memory": (_CONTEXT + _MEMORY, "DEVICE 4096"),
        "buffers": ("import ctypes\n\n" + _CONTEXT + _BUFFERS, "b'abab'"),
        "virtual-memory": (_CONTEXT + _VIRTUAL_MEMORY, "READ_WRITE"),
        "native-handles": (_NATIVE_HANDLES, ""),
    }
)
"""For the name of a page, its program and what the program prints."""
