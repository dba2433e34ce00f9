"""`opencl`: CPU devices of OpenCL drivers (PoCL, Intel's runtime) through the loader `libOpenCL.so.1`, by ctypes; no
compiled code.

Memory is memfds that the device uses in place. Queues are in-order command queues. This process holds the work that
waits for events. Callbacks of markers complete points. Each device is tried at its first use; see
docs/backends/opencl.md.
"""
