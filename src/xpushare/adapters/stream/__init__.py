"""The stream engine: the code that all vendors with in-order streams share.

A vendor implements the hooks (`hooks`), and its adapter extends `adapter.StreamAdapter`. Nothing here names a vendor.
docs/architecture.md says how each vendor's driver maps to the hooks.
"""
