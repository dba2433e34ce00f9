"""Device memory of the vendors whose drivers have virtual memory calls: calls that create, export, import and map
allocations.

A vendor implements `hooks.VirtualMemory` for its devices, in addition to the hooks of the stream engine, and its
adapter extends `adapter.VirtualMemoryAdapter`. Nothing here names a vendor.
"""
