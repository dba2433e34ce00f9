"""`opencl`: CPU devices of OpenCL drivers (PoCL, Intel's runtime) through the loader `libOpenCL.so.1`, which is
called through ctypes, without compiled code.

Memory consists of memfds that the device uses in place. Queues are in-order command queues. Work that waits for events
is held back in this process until its events have completed. To signal an event, the adapter queues a marker, whose
callback completes the signal. Each device is tested at its first use (docs/backends/opencl.md).
"""
