"""`cuda`: NVIDIA GPUs through the driver API (`cuda-bindings`); no compiled CUDA code.

Device memory and physical memory are VMM allocations with POSIX fds, host memory is memfds that every process
registers with its driver, events are words in registered host pages that streams write and wait for. What the driver
does where its documentation is silent was measured: docs/backends/cuda.md.
"""
