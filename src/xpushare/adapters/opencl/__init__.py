"""`opencl`: CPU devices of OpenCL drivers (PoCL, Intel's runtime) through the loader `libOpenCL.so.1`, which is called
through ctypes, without compiled code.

Memory consists of memfds that the device uses in place. Queues are in-order command queues. Work that waits for events
is held back in this process until its events have completed. To signal an event, the adapter queues a marker, whose
callback completes the signal. Each device is tested at its first use (docs/backends/opencl.md).

This module has the names that the vendor record and the adapter share, and recognises pyopencl's queues. It imports no
driver.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["BACKEND", "INSTALL", "LOADER", "VARIABLES", "queue_of"]

BACKEND: Final = "opencl"
LOADER: Final = "libOpenCL.so.1"
INSTALL: Final = "install the loader and a driver for CPUs: apt install ocl-icd-libopencl1 pocl-opencl-icd"
VARIABLES: Final = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")  # these name drivers


def queue_of(native: Any) -> int | None:
    """Return the cl_command_queue of a pyopencl.CommandQueue, or None for any other object."""
    classes = [each for each in type(native).__mro__ if each.__name__ == "CommandQueue"]
    return int(native.int_ptr) if any(each.__module__.startswith("pyopencl") for each in classes) else None
