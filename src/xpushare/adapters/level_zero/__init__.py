"""`level_zero`: Intel GPUs through the Level Zero loader (`libze_loader.so.1`), by ctypes; no compiled code.

Device memory is exported by file descriptor, host memory is memfds that the driver uses in place, events are words in
such pages that in-order lists of ours write and wait for. What drivers do where the specification is silent was found
by trial: docs/backends/level_zero.md.
"""
