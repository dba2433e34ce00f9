"""The foundation of every room: errors, result codes, aspects, element types, descriptors, system calls, exit order."""
