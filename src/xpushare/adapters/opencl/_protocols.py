"""Names that the vendor record and the adapter share, and a function that recognises pyopencl's queues. Imports no
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
