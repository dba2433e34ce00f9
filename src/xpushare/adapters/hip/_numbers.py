"""HIP's numbers, structures and functions that this adapter uses, by the names of hip_runtime_api.h. A test compares
them with what a C compiler makes of AMD's own headers.

Imports nothing of this package. Pointers and handles are plain unsigned integers.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_uint, c_uint64, c_void_p
from enum import IntEnum
from typing import Any, Final

__all__ = ["CONSTANTS", "FUNCTIONS", "AccessDesc", "AllocationProp", "Attribute", "Error", "Handle", "Pointer"]


class Error(IntEnum):
    """hipError…"""

    InvalidValue = 1
    OutOfMemory = 2
    NotInitialized = 3
    Deinitialized = 4
    InvalidDevicePointer = 17
    InsufficientDriver = 35
    NoDevice = 100
    InvalidDevice = 101
    InvalidContext = 201
    ECCNotCorrectable = 214
    NotReady = 600
    IllegalAddress = 700
    LaunchTimeOut = 702
    ContextIsDestroyed = 709
    Assert = 710
    HostMemoryAlreadyRegistered = 712
    LaunchFailure = 719
    NotSupported = 801
    StreamCaptureUnsupported = 900
    StreamCaptureInvalidated = 901
    StreamCaptureMerge = 902
    StreamCaptureUnmatched = 903
    StreamCaptureUnjoined = 904
    StreamCaptureIsolation = 905
    StreamCaptureImplicit = 906
    CapturedEvent = 907
    StreamCaptureWrongThread = 908


class Attribute(IntEnum):
    """hipDeviceAttribute…; releases before 6 lack the last."""

    EccEnabled = 0
    ClockRate = 5
    ConcurrentManagedAccess = 9
    Integrated = 16
    L2CacheSize = 19
    ManagedMemory = 24
    MaxBlockDimX = 26
    MaxBlockDimY = 27
    MaxBlockDimZ = 28
    MaxGridDimX = 29
    MaxGridDimY = 30
    MaxGridDimZ = 31
    MaxThreadsPerBlock = 56
    MemoryBusWidth = 59
    MemoryClockRate = 60
    MultiprocessorCount = 63
    MaxRegistersPerBlock = 71
    MaxSharedMemoryPerBlock = 74
    TotalConstantMemory = 83
    WarpSize = 87
    VirtualMemoryManagementSupported = 89


class Pointer(IntEnum):
    """HIP_POINTER_ATTRIBUTE_…"""

    HOST_POINTER = 4
    BUFFER_ID = 7
    IS_MANAGED = 8
    DEVICE_ORDINAL = 9


CONSTANTS: Final = {
    "hipMemHandleTypePosixFileDescriptor": 1,
    "hipMemLocationTypeDevice": 1,
    "hipMemAllocationTypePinned": 1,
    "hipMemAllocationGranularityMinimum": 0,
    "hipMemAllocationGranularityRecommended": 1,
    "hipMemcpyDefault": 4,
    "hipStreamNonBlocking": 1,
    "hipStreamWaitValueGte": 0,
    "hipStreamCaptureModeRelaxed": 2,
    "hipEventDisableTiming": 2,
    "hipEventInterprocess": 4,
    "hipHostRegisterPortable": 1,
    "hipHostRegisterMapped": 2,
    "hipMallocSignalMemory": 2,
    "hipMemAttachGlobal": 1,
}
ACCESS: Final = {"none": 0, "r": 1, "rw": 3}  # hipMemAccessFlagsProt…


class Handle(ctypes.Structure):
    """hipIpcMemHandle_t and hipIpcEventHandle_t"""

    _fields_ = [("reserved", ctypes.c_char * 64)]


class AllocationProp(ctypes.Structure):
    """hipMemAllocationProp from release 6 on"""

    _fields_ = [
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", ctypes.c_ubyte * 4),
    ]


class AccessDesc(ctypes.Structure):
    """hipMemAccessDesc"""

    _fields_ = [("location_type", c_int), ("location_id", c_int), ("flags", c_int)]


_p, _i, _u, _z, _q = c_void_p, c_int, c_uint, c_size_t, c_uint64
FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "hipInit": (_u,),
    "hipRuntimeGetVersion": (_p,),
    "hipGetDeviceCount": (_p,),
    "hipGetDevice": (_p,),
    "hipSetDevice": (_i,),
    "hipDeviceGetName": (_p, _i, _i),
    "hipDeviceGetUuid": (_p, _i),
    "hipDeviceGetPCIBusId": (_p, _i, _i),
    "hipDeviceGetAttribute": (_p, _i, _i),
    "hipDeviceCanAccessPeer": (_p, _i, _i),
    "hipMemGetInfo": (_p, _p),
    "hipThreadExchangeStreamCaptureMode": (_p,),
    "hipMalloc": (_p, _z),
    "hipMallocManaged": (_p, _z, _u),
    "hipExtMallocWithFlags": (_p, _z, _u),
    "hipFree": (_p,),
    "hipHostRegister": (_p, _z, _u),
    "hipHostGetDevicePointer": (_p, _p, _u),
    "hipHostUnregister": (_p,),
    "hipPointerGetAttribute": (_p, _i, _p),
    "hipMemGetAddressRange": (_p, _p, _p),
    "hipIpcGetMemHandle": (_p, _p),
    "hipIpcOpenMemHandle": (_p, Handle, _u),
    "hipIpcCloseMemHandle": (_p,),
    "hipIpcGetEventHandle": (_p, _p),
    "hipMemCreate": (_p, _z, _p, _q),
    "hipMemRelease": (_p,),
    "hipMemExportToShareableHandle": (_p, _p, _i, _q),
    "hipMemImportFromShareableHandle": (_p, _p, _i),
    "hipMemGetAllocationGranularity": (_p, _p, _i),
    "hipMemAddressReserve": (_p, _z, _z, _p, _q),
    "hipMemAddressFree": (_p, _z),
    "hipMemMap": (_p, _z, _z, _p, _q),
    "hipMemUnmap": (_p, _z),
    "hipMemSetAccess": (_p, _z, _p, _z),
    "hipStreamCreateWithFlags": (_p, _u),
    "hipStreamDestroy": (_p,),
    "hipStreamQuery": (_p,),
    "hipStreamSynchronize": (_p,),
    "hipStreamIsCapturing": (_p, _p),
    "hipStreamWaitEvent": (_p, _p, _u),
    "hipStreamWriteValue64": (_p, _p, _q, _u),
    "hipStreamWaitValue64": (_p, _p, _q, _u, _q),
    "hipStreamAddCallback": (_p, _p, _p, _u),
    "hipLaunchHostFunc": (_p, _p, _p),  # from 5.3 on
    "hipEventCreateWithFlags": (_p, _u),
    "hipEventDestroy": (_p,),
    "hipEventQuery": (_p,),
    "hipEventRecord": (_p, _p),
    "hipMemcpyAsync": (_p, _p, _z, _i, _p),
    "hipMemsetD8Async": (_p, ctypes.c_ubyte, _z, _p),
    "hipMemsetD16Async": (_p, ctypes.c_ushort, _z, _p),
    "hipMemsetD32Async": (_p, _i, _z, _p),
}
