"""The meanings of the arguments of `xpushare.ur`'s functions, for their docstrings and reference pages. Unified Runtime
uses the same name for the same purpose in all functions, so most meanings are listed by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["MEANINGS", "meaning"]

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "DeviceType": "type of the devices to return",
        "advice": "the expected use of the memory",
        "alignment": "alignment in bytes, a power of two, or 0 for the default",
        "allocationSize": "size in bytes of the allocation, or 0 if it is not known yet",
        "blocking": "whether to wait until the command is complete",
        "blockingMap": "whether to wait until the bytes are mapped",
        "blockingRead": "whether to wait until the bytes are read",
        "blockingWrite": "whether to wait until the bytes are written",
        "bufferCreateType": "the kind of part, always `REGION`",
        "bufferOrigin": "where the box begins in the buffer",
        "bufferRowPitch": "bytes from one row of the buffer to the next, or 0 if rows are adjacent",
        "bufferSlicePitch": "bytes from one slice of the buffer to the next, or 0 if slices are adjacent",
        "commandDevice": "the device whose commands access the memory",
        "data": "an object that the function receives",
        "dstOffset": "offset of the first byte to write, in bytes",
        "dstOrigin": "where the box begins in the target",
        "dstPitch": "bytes from one row of the target to the next",
        "dstRowPitch": "bytes from one row of the target to the next, or 0 if rows are adjacent",
        "dstSlicePitch": "bytes from one slice of the target to the next, or 0 if slices are adjacent",
        "execStatus": "the state of the command at which the callback is called",
        "flags": "options",
        "hAdapter": "the adapter",
        "hBuffer": "the buffer",
        "hBufferDst": "the buffer that is written",
        "hBufferSrc": "the buffer that is read",
        "hContext": "the context",
        "hDevice": "the device",
        "hEvent": "the event",
        "hMem": "the buffer",
        "hMemory": "the buffer",
        "hNativeContext": "the driver's handle of the context",
        "hNativeDevice": "the driver's handle of the device",
        "hNativeEvent": "the driver's handle of the event",
        "hNativePlatform": "the driver's handle of the platform",
        "hNativeQueue": "the driver's handle of the queue",
        "hPhysMem": "the physical memory",
        "hPhysicalMem": "the physical memory",
        "hPlatform": "the platform",
        "hPool": "the pool",
        "hQueue": "the queue",
        "handleTypeToExport": "the kind of handle by which another API imports the memory",
        "height": "number of rows",
        "hostOrigin": "where the box begins in the host's memory",
        "hostRowPitch": "bytes from one row in the host's memory to the next, or 0 if rows are adjacent",
        "hostSlicePitch": "bytes from one slice in the host's memory to the next, or 0 if slices are adjacent",
        "level": "the lowest level of messages that are passed to the callback",
        "mapFlags": "whether the program will read or write the mapped bytes",
        "minBytesToKeep": "number of unused bytes that the pool may keep",
        "offset": "offset in bytes",
        "pDesc": "a description of the queue",
        "pDst": "address of the first byte to write",
        "pEventDesc": "options of the event",
        "pFrontendOption": "an option of a compiler",
        "pHostMem": "address of the host memory",
        "pIPCEventHandleData": "handle data of an event",
        "pIPCMemHandleData": "handle data of memory",
        "pIPCPhysMemHandleData": "handle data of physical memory",
        "pMappedPtr": "the address that `urEnqueueMemBufferMap` returned",
        "pMem": "address of the memory",
        "pPattern": "the bytes to repeat",
        "pPool": "the pool",
        "pPoolDesc": "options of the pool",
        "pPropValue": "the new value",
        "pProperties": "options",
        "pRegion": "the part of the buffer to cover",
        "pSrc": "address of the first byte to read",
        "pStart": "address at which the range begins",
        "pUSMDesc": "options of the allocation",
        "pUserData": "an object that the callback receives",
        "peerDevice": "the device that has the memory",
        "pfnHostTask": "the function to run on the host",
        "pfnLoggerCallback": "the callback",
        "pfnNotify": "the callback",
        "phDevices": "the devices",
        "phEvent": "an event to use instead of a new one",
        "phEventWaitList": "events that have to be complete before the command runs",
        "pitch": "bytes from one row to the next",
        "pool": "the pool to allocate from",
        "propName": "the property to return",
        "region": "size of the box",
        "size": "number of bytes",
        "srcOffset": "offset of the first byte to read, in bytes",
        "srcOrigin": "where the box begins in the source",
        "srcPitch": "bytes from one row of the source to the next",
        "srcRowPitch": "bytes from one row of the source to the next, or 0 if rows are adjacent",
        "srcSlicePitch": "bytes from one slice of the source to the next, or 0 if slices are adjacent",
        "width": "number of bytes per row",
        # Where a function uses a name in a sense of its own
        "urEventWait.phEventWaitList": "the events",
        "urUSMPoolSetInfoExp.propName": "the property to change",
        "urVirtualMemMap.offset": "offset in the physical memory, in bytes",
        "urVirtualMemMap.flags": "how commands may access the memory",
        "urVirtualMemSetAccess.flags": "how commands may access the memory",
        "urEnqueueUSMDeviceAllocExp.pPool": "the pool to allocate from",
        "urEnqueueUSMHostAllocExp.pPool": "the pool to allocate from",
        "urEnqueueUSMSharedAllocExp.pPool": "the pool to allocate from",
        "urEnqueueUSMFreeExp.pPool": "the pool of the memory",
    }
)
"""The meanings. A key is an argument's name, or the names of a function and its argument, joined by a dot."""


def meaning(function: str, argument: str) -> str:
    """Return the meaning of an argument, as a sentence."""
    text = MEANINGS.get(f"{function}.{argument}") or MEANINGS[argument]
    return f"{text[0].upper()}{text[1:]}."
