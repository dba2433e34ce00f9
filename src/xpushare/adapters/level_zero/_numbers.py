"""The constants of Level Zero that this adapter uses, with the names of its headers."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["Code", "Handle", "MemoryType", "driver_version"]


class Code(IntEnum):
    """Result codes. Level Zero's names start with ZE_RESULT_ or ZE_RESULT_ERROR_."""

    NOT_READY = 1
    DEVICE_LOST = 0x70000001
    OUT_OF_HOST_MEMORY = 0x70000002
    OUT_OF_DEVICE_MEMORY = 0x70000003
    DEVICE_REQUIRES_RESET = 0x70000006
    INSUFFICIENT_PERMISSIONS = 0x70010000
    UNINITIALIZED = 0x78000001
    UNSUPPORTED_VERSION = 0x78000002
    UNSUPPORTED_FEATURE = 0x78000003
    INVALID_ARGUMENT = 0x78000004
    INVALID_SIZE = 0x78000008
    UNSUPPORTED_SIZE = 0x78000009
    UNSUPPORTED_ENUMERATION = 0x7800000D


class MemoryType(IntEnum):
    """Kinds of memory. Level Zero's names start with ZE_MEMORY_TYPE_."""

    UNKNOWN = 0
    HOST = 1
    DEVICE = 2
    SHARED = 3
    HOST_IMPORTED = 4


class Handle(IntEnum):
    """Kinds of handles that the loader distinguishes. Its names start with ZEL_HANDLE_."""

    DRIVER = 0
    COMMAND_LIST = 4


INTEL: Final = 0x8086  # PCI vendor
GPU_DRIVERS: Final = 1  # ZE_INIT_DRIVER_TYPE_FLAG_GPU
DEVICE_TYPE_GPU: Final = 1
DEVICE_PROPERTIES_1_2: Final = 0x00020006  # ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2: ticks in a second
DEVICE_INTEGRATED: Final = 1  # ZE_DEVICE_PROPERTY_FLAG_…
DEVICE_ECC: Final = 4
GROUP_COMPUTE: Final = 1  # ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_…
GROUP_COPY: Final = 2
QUEUE_IN_ORDER: Final = 2  # ZE_COMMAND_QUEUE_FLAG_IN_ORDER
QUEUE_ASYNCHRONOUS: Final = 2  # ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS
SCOPE_HOST: Final = 4  # ZE_EVENT_SCOPE_FLAG_HOST, ZEX_MEM_ACTION_SCOPE_FLAG_HOST
POOL_HOST_VISIBLE: Final = 1  # ZE_EVENT_POOL_FLAG_HOST_VISIBLE
COUNTER_IMMEDIATE: Final = 1  # ZE_EVENT_COUNTER_BASED_FLAG_…
COUNTER_HOST_VISIBLE: Final = 4
COUNTER_IPC: Final = 8
WAIT_AT_LEAST: Final = 8  # ZEX_WAIT_ON_MEMORY_FLAG_GREATER_THAN_EQUAL
DMA_BUF: Final = 2  # ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF
ON_DEVICE: Final = 1  # ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_DEVICE
MAX_SIZE: Final = 1  # ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE
ACCESS: Final = {"none": 0, "rw": 1, "r": 2}  # ZE_MEMORY_ACCESS_ATTRIBUTE_…
FOREVER: Final = (1 << 64) - 1


def driver_version(number: int) -> str:
    """Format a driver's version as Intel does."""
    return f"{number >> 24}.{number >> 16 & 0xFF}.{number & 0xFFFF}"
