"""Basic modules that the whole package uses: errors, result codes, aspects, element types, descriptors, system calls,
exit order.
"""
