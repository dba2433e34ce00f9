"""`level_zero`: Intel GPUs through the Level Zero loader (`libze_loader.so.1`). The loader is
called through ctypes, without compiled code.

Device memory is exported as a file descriptor. Host memory consists of memfds that the driver uses in place. Events are
words in pages of memfds, which in-order command lists write and wait on. docs/backends/level_zero.md describes how
drivers behave where the specification is silent.
"""
