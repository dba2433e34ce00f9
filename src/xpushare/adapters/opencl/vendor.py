"""The record of `opencl`; and what recognises pyopencl's queues without importing it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from xpushare.adapters.vendor import Check, DLPackType, Vendor, library_loaded

if TYPE_CHECKING:
    from xpushare.adapters.base import Adapter

__all__ = ["BACKEND", "INSTALL", "LOADER", "VARIABLES", "queue_of", "vendor"]

BACKEND: Final = "opencl"
LOADER: Final = "libOpenCL.so.1"
INSTALL: Final = "install the loader and a driver for CPUs: apt install ocl-icd-libopencl1 pocl-opencl-icd"
VARIABLES: Final = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")  # they name drivers


def _make() -> Adapter:
    from xpushare.adapters.opencl._adapter import OpenCL

    return OpenCL()


def _examine() -> Iterable[Check]:
    from xpushare import adapters

    adapter: Any = adapters.adapter(BACKEND)
    return adapter.examine()  # type: ignore[no-any-return]


def queue_of(native: Any) -> int | None:
    """The cl_command_queue of a pyopencl.CommandQueue; None for anything else."""
    classes = [each for each in type(native).__mro__ if each.__name__ == "CommandQueue"]
    return int(native.int_ptr) if any(each.__module__.startswith("pyopencl") for each in classes) else None


vendor: Final = Vendor(
    backend=BACKEND,
    make=_make,
    order=95,  # the host itself comes first: `Device("cpu")` is native_cpu:0
    in_use=lambda: library_loaded(LOADER),
    install=INSTALL,
    variables=VARIABLES,
    dlpack=(
        DLPackType(1, kinds=("device", "host", "shared"), foreign=False, host=True),
        DLPackType(4, address=False),  # a cl_mem
    ),
    streams="pyopencl.CommandQueue",
    stream_of=queue_of,
    examine=_examine,
)
