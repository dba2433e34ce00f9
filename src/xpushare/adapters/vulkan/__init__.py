"""`vulkan`: memory of Vulkan programs, in and out. `xpushare.integrations.vulkan` is what programs use.

The program itself allocates, exports and imports with Vulkan; what passes here is its file descriptors. So nothing here
loads Vulkan, and there is no device but those that the program names.
"""
