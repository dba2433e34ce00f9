"""Device memory by the calls that create, export, import and map allocations, for the vendors that have them.

A vendor implements `hooks.VirtualMemory` for its devices, in addition to the hooks of the stream engine, and its
adapter extends `adapter.VirtualMemoryAdapter`. Nothing here names a vendor.
"""
