"""`level_zero`: Intel GPUs through the Level Zero loader (`libze_loader.so.1`), by ctypes; no compiled code.

Device memory is exported by file descriptor. Host memory is memfds that the driver uses in place. Events are words in
pages of memfds, which our in-order lists write and wait for. docs/backends/level_zero.md describes behaviour of the
drivers that the specification does not define.
"""
