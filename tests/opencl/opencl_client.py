"""What pyopencl programs do, for children of the tests: buffers and kernels over shared arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

import xpushare as xs
from harness import kept

__all__ = ["begin", "buffer_over", "attach_and_run", "hold_kernel", "kernel", "release_kernel", "run", "unknown_cpu"]

SOURCE = """
kernel void triple(global uint *values) { values[get_global_id(0)] *= 3; }
kernel void add(global uint *values, uint what) { values[get_global_id(0)] += what; }
"""


def begin(device: str) -> Any:
    """A queue of pyopencl's on a device that this package lists."""
    name = xs.Device(device).name
    found = next(each for one in cl.get_platforms() for each in one.get_devices() if each.name.strip() == name)
    kept["cl context"] = cl.Context([found])
    kept["cl queue"] = cl.CommandQueue(kept["cl context"])
    return kept["cl queue"]


def kernel(name: str) -> Any:
    """A kernel of the program, which is built for the first."""
    if "cl program" not in kept:
        kept["cl program"] = cl.Program(kept["cl context"], SOURCE).build()
    return cl.Kernel(kept["cl program"], name)


def unknown_cpu(device: str) -> str:
    """What a compiler says that is older than the CPU, as PoCL's where its LLVM cannot name the CPU; else nothing."""
    begin(device)
    try:
        kernel("triple")
    except cl.RuntimeError as error:
        unknown = "unknown target CPU 'generic'"
        if unknown not in str(error):
            raise
        return unknown
    return ""


def buffer_over(array: Any) -> Any:
    """A buffer that is the array's memory."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    return cl.Buffer(kept["cl context"], flags, hostbuf=np.asarray(array))


def run(name: str, buffer: Any, *arguments: Any) -> None:
    """A kernel over all elements of a buffer, without waiting for it."""
    kept["cl event"] = kernel(name)(kept["cl queue"], (buffer.size // 4,), None, buffer, *arguments)


def attach_and_run(handle: str, device: str, name: str) -> str:
    """Run a kernel over what another process shares; the device it was opened on."""
    begin(device)
    array = xs.attach(handle, device=device)
    run(name, buffer_over(array))
    kept["cl queue"].finish()
    return str(array.device)


def hold_kernel(event: str, array: str, device: str) -> None:
    """A kernel behind another process's event, in a queue of pyopencl's."""
    queue = begin(device)
    kernel("triple")  # it is built before the queue waits
    kept["array"] = xs.attach(array, device=device)
    kept["opened"] = xs.ipc.event.open(event, device=device)
    kept["adopted"] = xs.Queue.from_native(queue)
    kept["adopted"].wait(kept["opened"], at_least=1)
    run("triple", buffer_over(kept["array"]))
    queue.flush()


def release_kernel() -> tuple[int, str]:
    """Once the queue is through: how the kernel ended, and what our queue says of its wait."""
    kept["cl queue"].finish()
    try:
        kept["adopted"].synchronize(5)
    except xs.XpuShareError as error:
        return kept["cl event"].command_execution_status, type(error).__name__
    return kept["cl event"].command_execution_status, ""
