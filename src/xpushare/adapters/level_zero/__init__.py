"""`level_zero`: Intel GPUs through the Level Zero loader (`libze_loader.so.1`), by ctypes; no compiled code.

Device memory is exported by file descriptor. Host memory is memfds that the driver uses in place. Events are words in
such pages, which our in-order lists write and wait for. If the specification is silent on something, we tried it on the
drivers; docs/backends/level_zero.md has the results.
"""
