"""`hip`: AMD GPUs through HIP's runtime library, which is called through ctypes.

If the driver supports allocations with POSIX fds, device memory and physical memory are such allocations. Otherwise
they are hipMalloc memory with IPC handles. Host memory consists of memfds that every process registers. Events are
words in registered host pages if streams can write and wait for them. docs/backends/hip.md lists what was verified, and
how.
"""
