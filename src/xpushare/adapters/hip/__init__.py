"""`hip`: AMD GPUs through HIP's runtime library, by ctypes.

Device memory and physical memory are allocations with POSIX fds where the driver has them, else memory of hipMalloc
with IPC handles. Host memory is memfds that every process registers. Events are words in registered host pages, as far
as streams write and wait for them. What was checked, and how, says docs/backends/hip.md.
"""
