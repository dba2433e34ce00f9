"""`vulkan`: passes memory of Vulkan programs in and out. Programs use it through `xpushare.integrations.vulkan`.

The program itself allocates, exports and imports with Vulkan. Only the file descriptors pass through this adapter. So
the adapter does not load Vulkan, and its only devices are those that the program names.
"""
