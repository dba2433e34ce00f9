"""A small Vulkan program: buffers that it exports and imports, commands on them, and timeline semaphores.

VULKAN_DEVICE is a part of the name of the device to use; without it, the first.
"""

from __future__ import annotations

import os
from typing import Any, Final

import vulkan as vk  # type: ignore[import-untyped]

__all__ = ["Buffer", "Program", "Timeline"]

_USAGE: Final = (
    vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT | vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
)
_OPAQUE: Final = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT
_HOST_POINTER: Final = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
_EXTENSIONS: Final = (
    "VK_KHR_external_memory_fd",
    "VK_KHR_external_semaphore_fd",
    "VK_KHR_timeline_semaphore",
    "VK_EXT_external_memory_host",
)
_FOREVER: Final = (1 << 64) - 1


class Program:
    def __init__(self) -> None:
        wanted = os.environ.get("VULKAN_DEVICE", "")
        about = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 2, 0))
        self.instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=about), None)
        found = [
            each
            for each in vk.vkEnumeratePhysicalDevices(self.instance)
            if wanted.lower() in str(vk.vkGetPhysicalDeviceProperties(each).deviceName).lower()
        ]
        self.physical = found[0]
        properties = vk.vkGetPhysicalDeviceProperties(self.physical)
        self.name = str(properties.deviceName)
        self.is_cpu = properties.deviceType == vk.VK_PHYSICAL_DEVICE_TYPE_CPU
        known = {str(each.extensionName) for each in vk.vkEnumerateDeviceExtensionProperties(self.physical, None)}
        self.extensions = [each for each in _EXTENSIONS if each in known]
        families = vk.vkGetPhysicalDeviceQueueFamilyProperties(self.physical)
        self.family = next(i for i, each in enumerate(families) if each.queueFlags & vk.VK_QUEUE_COMPUTE_BIT)
        queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=self.family, queueCount=1, pQueuePriorities=[1.0])
        timeline = vk.VkPhysicalDeviceTimelineSemaphoreFeatures(timelineSemaphore=True)
        self.device = vk.vkCreateDevice(
            self.physical,
            vk.VkDeviceCreateInfo(pNext=timeline, pQueueCreateInfos=[queue], ppEnabledExtensionNames=self.extensions),
            None,
        )
        self.queue = vk.vkGetDeviceQueue(self.device, self.family, 0)
        self.pool = vk.vkCreateCommandPool(self.device, vk.VkCommandPoolCreateInfo(queueFamilyIndex=self.family), None)
        self._commands: list[Any] = []

    def function(self, name: str) -> Any:
        return vk.vkGetDeviceProcAddr(self.device, name)

    def uuids(self) -> tuple[bytes, bytes]:
        """deviceUUID and driverUUID."""
        ids = vk.ffi.new("VkPhysicalDeviceIDProperties*")
        ids.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES
        both = vk.ffi.new("VkPhysicalDeviceProperties2*")
        both.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2
        both.pNext = ids
        vk.vkGetPhysicalDeviceProperties2(self.physical, both)
        return bytes(vk.ffi.buffer(ids.deviceUUID)), bytes(vk.ffi.buffer(ids.driverUUID))

    def memory_type(self, allowed: int, wanted: int) -> int:
        types = vk.vkGetPhysicalDeviceMemoryProperties(self.physical)
        return next(
            i
            for i in range(types.memoryTypeCount)
            if allowed & (1 << i) and types.memoryTypes[i].propertyFlags & wanted == wanted
        )

    def record(self, *commands: Any) -> Any:
        """A command buffer of functions of it."""
        (made,) = vk.vkAllocateCommandBuffers(
            self.device,
            vk.VkCommandBufferAllocateInfo(
                commandPool=self.pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
            ),
        )
        vk.vkBeginCommandBuffer(made, vk.VkCommandBufferBeginInfo())
        for command in commands:
            command(made)
        vk.vkEndCommandBuffer(made)
        return made

    def submit(self, commands: Any, wait: tuple[Timeline, int] | None, signal: tuple[Timeline, int] | None) -> None:
        waits, signals = [each for each in (wait,) if each], [each for each in (signal,) if each]
        values = vk.VkTimelineSemaphoreSubmitInfo(
            pWaitSemaphoreValues=[each[1] for each in waits], pSignalSemaphoreValues=[each[1] for each in signals]
        )
        work = vk.VkSubmitInfo(
            pNext=values,
            pWaitSemaphores=[each[0].raw for each in waits],
            pWaitDstStageMask=[vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT for _ in waits],
            pCommandBuffers=[commands],
            pSignalSemaphores=[each[0].raw for each in signals],
        )
        vk.vkQueueSubmit(self.queue, 1, [work], vk.VK_NULL_HANDLE)

    def run(self, *commands: Any) -> None:
        self.submit(self.record(*commands), None, None)
        vk.vkQueueWaitIdle(self.queue)


class Buffer:
    """A buffer and its memory: new and exportable (no argument), another's by its fd, or memory of the host."""

    def __init__(
        self,
        program: Program,
        nbytes: int,
        *,
        fd: int | None = None,
        pointer: int | None = None,
        allocation_nbytes: int | None = None,
        offset: int = 0,
        dedicated: bool = False,
    ) -> None:
        kind = _OPAQUE if pointer is None else _HOST_POINTER
        self.program = program
        self.nbytes = nbytes
        outside = vk.VkExternalMemoryBufferCreateInfo(handleTypes=kind)
        self.raw = vk.vkCreateBuffer(
            program.device, vk.VkBufferCreateInfo(pNext=outside, size=nbytes, usage=_USAGE), None
        )
        needs = vk.vkGetBufferMemoryRequirements(program.device, self.raw)
        allowed, more = needs.memoryTypeBits, None
        if pointer is not None:
            address = vk.ffi.cast("void*", pointer)
            found = vk.ffi.new("VkMemoryHostPointerPropertiesEXT*")
            found.sType = vk.VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT
            program.function("vkGetMemoryHostPointerPropertiesEXT")(program.device, kind, address, found)
            allowed &= found.memoryTypeBits
            more = vk.VkImportMemoryHostPointerInfoEXT(handleType=kind, pHostPointer=address)
        elif fd is not None:
            more = vk.VkImportMemoryFdInfoKHR(handleType=kind, fd=fd)
        else:
            more = vk.VkExportMemoryAllocateInfo(handleTypes=kind)
        if dedicated:
            more = vk.VkMemoryDedicatedAllocateInfo(pNext=more, buffer=self.raw)
        self.allocation_nbytes = allocation_nbytes or max(needs.size, nbytes)
        on = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT if program.is_cpu else vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
        wanted = vk.VkMemoryAllocateInfo(
            pNext=more,
            allocationSize=self.allocation_nbytes,
            memoryTypeIndex=program.memory_type(allowed, on if pointer is None else 0),
        )
        self.memory = vk.vkAllocateMemory(program.device, wanted, None)
        vk.vkBindBufferMemory(program.device, self.raw, self.memory, offset)

    def fd(self) -> int:
        """A new opaque fd of the memory."""
        wanted = vk.VkMemoryGetFdInfoKHR(memory=self.memory, handleType=_OPAQUE)
        return int(self.program.function("vkGetMemoryFdKHR")(self.program.device, wanted))

    def fill(self, word: int) -> Any:
        """The command that fills the buffer with a word of 32 bits."""
        return lambda commands: vk.vkCmdFillBuffer(commands, self.raw, 0, self.nbytes, word)

    def copy_to(self, other: Buffer) -> Any:
        """The command that copies all of the buffer."""
        region = vk.VkBufferCopy(srcOffset=0, dstOffset=0, size=self.nbytes)
        return lambda commands: vk.vkCmdCopyBuffer(commands, self.raw, other.raw, 1, [region])

    def close(self) -> None:
        vk.vkDestroyBuffer(self.program.device, self.raw, None)
        vk.vkFreeMemory(self.program.device, self.memory, None)


class Timeline:
    """A timeline semaphore, exportable where `shared`."""

    def __init__(self, program: Program, shared: bool = False) -> None:
        self.program = program
        kind = vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT
        outside = vk.VkExportSemaphoreCreateInfo(handleTypes=kind) if shared else None
        timeline = vk.VkSemaphoreTypeCreateInfo(
            pNext=outside, semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE, initialValue=0
        )
        self.raw = vk.vkCreateSemaphore(program.device, vk.VkSemaphoreCreateInfo(pNext=timeline), None)

    def fd(self) -> int:
        kind = vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT
        wanted = vk.VkSemaphoreGetFdInfoKHR(semaphore=self.raw, handleType=kind)
        return int(self.program.function("vkGetSemaphoreFdKHR")(self.program.device, wanted))

    def set(self, value: int) -> None:
        """Signal by the host."""
        vk.vkSignalSemaphore(self.program.device, vk.VkSemaphoreSignalInfo(semaphore=self.raw, value=value))

    def wait(self, value: int) -> None:
        """Wait on the host."""
        wanted = vk.VkSemaphoreWaitInfo(pSemaphores=[self.raw], pValues=[value])
        vk.vkWaitSemaphores(self.program.device, wanted, _FOREVER)
