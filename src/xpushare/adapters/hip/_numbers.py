"""The constants, structures and functions of HIP that this adapter uses, with the names of hip_runtime_api.h. A test
compares them with AMD's own headers, as a C compiler reads them.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from enum import IntEnum
from typing import Any, Final

__all__ = ["FUNCTIONS", "AccessDesc", "AllocationProp", "Attribute", "Error", "Handle", "Pointer"]


class Error(IntEnum):
    """Error codes. HIP's names start with hipError."""

    InvalidValue = 1
    OutOfMemory = 2
    Deinitialized = 4
    NoDevice = 100
    InvalidDevice = 101
    NotReady = 600
    IllegalAddress = 700
    HostMemoryAlreadyRegistered = 712
    LaunchFailure = 719
    NotSupported = 801
    StreamCaptureUnsupported = 900
    StreamCaptureWrongThread = 908


class Attribute(IntEnum):
    """Device attributes. HIP's names start with hipDeviceAttribute. HIP before release 6 lacks the last attribute."""

    ConcurrentManagedAccess = 9
    Integrated = 16
    ManagedMemory = 24
    MultiprocessorCount = 63
    VirtualMemoryManagementSupported = 89


class Pointer(IntEnum):
    """Attributes of addresses. HIP's names start with HIP_POINTER_ATTRIBUTE_."""

    HOST_POINTER = 4
    BUFFER_ID = 7
    IS_MANAGED = 8
    DEVICE_ORDINAL = 9


POSIX_FD: Final = 1  # hipMemHandleTypePosixFileDescriptor
ON_DEVICE: Final = 1  # hipMemLocationTypeDevice
PINNED: Final = 1  # hipMemAllocationTypePinned
COPY_DEFAULT: Final = 4  # hipMemcpyDefault
NON_BLOCKING: Final = 1  # hipStreamNonBlocking
AT_LEAST: Final = 0  # hipStreamWaitValueGte
RELAXED: Final = 2  # hipStreamCaptureModeRelaxed
UNTIMED: Final = 2  # hipEventDisableTiming
INTERPROCESS: Final = 4  # hipEventInterprocess
PORTABLE: Final = 1  # hipHostRegisterPortable
MAPPED: Final = 2  # hipHostRegisterMapped
SIGNAL_MEMORY: Final = 2  # hipMallocSignalMemory
ATTACH_GLOBAL: Final = 1  # hipMemAttachGlobal
ACCESS: Final = {"none": 0, "r": 1, "rw": 3}  # hipMemAccessFlagsProt…
ALL_BITS: Final = 0xFFFFFFFFFFFFFFFF  # the mask of waits


class Handle(ctypes.Structure):
    """The structures hipIpcMemHandle_t and hipIpcEventHandle_t, which have the same layout."""

    _fields_ = [("reserved", c_char * 64)]


class AllocationProp(ctypes.Structure):
    """The structure hipMemAllocationProp, as HIP declares it from release 6 on."""

    _fields_ = [
        *((name, c_int) for name in ("type", "requestedHandleTypes", "location_type", "location_id")),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", c_ubyte * 4),
    ]


class AccessDesc(ctypes.Structure):
    """The structure hipMemAccessDesc."""

    _fields_ = [("location_type", c_int), ("location_id", c_int), ("flags", c_int)]


# Each function with a letter for each argument: a pointer or a handle, an int, unsigned, a size, 64 bits, …
_LETTERS: Final[dict[str, Any]] = {
    "p": c_void_p, "i": c_int, "u": c_uint, "z": c_size_t, "q": c_uint64, "b": c_ubyte, "h": c_ushort, "H": Handle
}  # fmt: skip
_SIGNATURES: Final = """
hipInit u, hipRuntimeGetVersion p, hipGetDeviceCount p, hipGetDevice p, hipSetDevice i, hipDeviceGetName pii,
hipDeviceGetUuid pi, hipDeviceGetPCIBusId pii, hipDeviceGetAttribute pii, hipDeviceCanAccessPeer pii, hipMemGetInfo pp,
hipThreadExchangeStreamCaptureMode p, hipMalloc pz, hipMallocManaged pzu, hipExtMallocWithFlags pzu, hipFree p,
hipHostRegister pzu, hipHostGetDevicePointer ppu, hipHostUnregister p, hipPointerGetAttribute pip,
hipMemGetAddressRange ppp, hipIpcGetMemHandle pp, hipIpcOpenMemHandle pHu, hipIpcCloseMemHandle p,
hipIpcGetEventHandle pp, hipMemCreate pzpq, hipMemRelease p, hipMemExportToShareableHandle ppiq,
hipMemImportFromShareableHandle ppi, hipMemGetAllocationGranularity ppi, hipMemAddressReserve pzzpq,
hipMemAddressFree pz, hipMemMap pzzpq, hipMemUnmap pz, hipMemSetAccess pzpz, hipStreamCreateWithFlags pu,
hipStreamDestroy p, hipStreamQuery p, hipStreamSynchronize p, hipStreamIsCapturing pp, hipStreamWaitEvent ppu,
hipStreamWriteValue64 ppqu, hipStreamWaitValue64 ppquq, hipStreamAddCallback pppu, hipLaunchHostFunc ppp,
hipEventCreateWithFlags pu, hipEventDestroy p, hipEventQuery p, hipEventRecord pp, hipMemcpyAsync ppzip,
hipMemsetD8Async pbzp, hipMemsetD16Async phzp, hipMemsetD32Async pizp"""
FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    name: tuple(_LETTERS[each] for each in letters) for name, letters in map(str.split, _SIGNATURES.split(","))
}
