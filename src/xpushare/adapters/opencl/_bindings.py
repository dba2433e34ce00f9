"""The functions of OpenCL that are used, and its numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from xpushare.adapters.opencl.vendor import LOADER

__all__ = [
    "COMPLETE",
    "EVERY_TYPE",
    "OUT_OF_ORDER",
    "READ_WRITE_USE_HOST_PTR",
    "SVM_SYSTEM",
    "TYPE_CPU",
    "Code",
    "Info",
    "load",
]

_P, _I, _U, _U64, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
_WAITS: Final = (_U, _P, _P)  # of an operation: for how many events it waits, for which, and where to put its own
_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (  # names, result, arguments
    ("clGetPlatformIDs", _I, (_U, _P, _P)),
    ("clGetDeviceIDs", _I, (_P, _U64, _U, _P, _P)),
    ("clGetPlatformInfo clGetDeviceInfo clGetCommandQueueInfo clGetEventInfo", _I, (_P, _U, _SIZE, _P, _P)),
    ("clRetainCommandQueue clReleaseCommandQueue clReleaseEvent clReleaseMemObject clFlush clFinish", _I, (_P,)),
    ("clSetUserEventStatus", _I, (_P, _I)),
    ("clSetEventCallback", _I, (_P, _I, _P, _P)),
    ("clEnqueueMarkerWithWaitList clEnqueueBarrierWithWaitList", _I, (_P, *_WAITS)),
    ("clEnqueueSVMMemcpy", _I, (_P, _U, _P, _P, _SIZE, *_WAITS)),
    ("clEnqueueSVMMemFill", _I, (_P, _P, _P, _SIZE, _SIZE, *_WAITS)),
    ("clEnqueueFillBuffer", _I, (_P, _P, _P, _SIZE, _SIZE, _SIZE, *_WAITS)),
    ("clEnqueueReadBuffer", _I, (_P, _P, _U, _SIZE, _SIZE, _P, *_WAITS)),
    # These return an object, and write the code to where their last argument points.
    ("clCreateContext", _P, (_P, _U, _P, _P, _P, _P)),
    ("clCreateCommandQueueWithProperties", _P, (_P, _P, _P, _P)),
    ("clCreateUserEvent", _P, (_P, _P)),
    ("clCreateBuffer", _P, (_P, _U64, _SIZE, _P, _P)),
)
COMPLETE: Final = 0
OUT_OF_ORDER: Final = 1 << 0
TYPE_CPU, EVERY_TYPE = 1 << 1, 0xFFFFFFFF
SVM_SYSTEM: Final = 1 << 2
READ_WRITE_USE_HOST_PTR: Final = 1 << 0 | 1 << 3


class Info(IntEnum):
    """What queries ask for."""

    PLATFORM_NAME = 0x0902
    DEVICE_TYPE = 0x1000
    DEVICE_MAX_COMPUTE_UNITS = 0x1002
    DEVICE_GLOBAL_MEM_SIZE = 0x101F
    DEVICE_AVAILABLE = 0x1027
    DEVICE_NAME = 0x102B
    DEVICE_VENDOR = 0x102C
    DRIVER_VERSION = 0x102D
    DEVICE_SVM_CAPABILITIES = 0x1053
    QUEUE_CONTEXT = 0x1090
    QUEUE_DEVICE = 0x1091
    QUEUE_PROPERTIES = 0x1093
    EVENT_COMMAND_EXECUTION_STATUS = 0x11D3


class Code(IntEnum):
    """What drivers answer when something fails."""

    DEVICE_NOT_FOUND = -1
    DEVICE_NOT_AVAILABLE = -2
    MEM_OBJECT_ALLOCATION_FAILURE = -4
    OUT_OF_RESOURCES = -5
    OUT_OF_HOST_MEMORY = -6
    EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST = -14
    INVALID_VALUE = -30
    INVALID_DEVICE = -33
    INVALID_CONTEXT = -34
    INVALID_COMMAND_QUEUE = -36
    INVALID_EVENT = -58
    INVALID_OPERATION = -59
    PLATFORM_NOT_FOUND_KHR = -1001


def load() -> dict[str, Callable[..., int]]:
    """The functions that the loader has. OSError if there is no loader."""
    library = ctypes.CDLL(LOADER)
    found: dict[str, Callable[..., int]] = {}
    for names, result, arguments in _FUNCTIONS:
        for function in (getattr(library, name, None) for name in names.split()):
            if function is not None:
                function.argtypes, function.restype = arguments, result
                found[function.__name__] = function
    return found
