"""`opencl`: CPU devices of OpenCL drivers (PoCL, Intel's runtime) through the loader `libOpenCL.so.1`, by
ctypes; no compiled code.

Memory is memfds that the device uses in place, queues are in-order command queues whose work the process holds where it
waits for events, callbacks of markers complete points. Each device is tried at its first use: docs/backends/opencl.md.
"""
