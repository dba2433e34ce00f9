"""`cuda`: NVIDIA GPUs through the driver API (`cuda-bindings`); no compiled CUDA code.

Device memory and physical memory are VMM allocations with POSIX fds. Host memory consists of memfds that every process
registers with its driver. Events are words in registered host pages, which streams write and wait for. Where the
driver's documentation does not describe a behaviour, we measured it; docs/backends/cuda.md has the results.
"""
