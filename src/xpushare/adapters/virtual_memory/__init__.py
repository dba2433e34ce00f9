"""Device memory by the family of calls that create, export, import and map allocations, for vendors that have it.

A vendor fills in `hooks.VirtualMemory` for its devices, in addition to the hooks of the stream engine, and its adapter
extends `adapter.VirtualMemoryAdapter`. Nothing here names a vendor.
"""
