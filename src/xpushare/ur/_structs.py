"""Unified Runtime's structs that functions of `xpushare.ur` take or return, as dataclasses.

A class is named after UR's C type and has the same fields, except `stype` and `pNext`. A field accepts any `int`. The
functions reject flags and values that UR does not define.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = [
    "BY_VALUE",
    "FIELD_KINDS",
    "STRUCTURE_TYPES",
    "BufferProperties",
    "BufferRegion",
    "ContextNativeProperties",
    "ContextProperties",
    "DeviceNativeProperties",
    "DevicePartitionProperty",
    "EventNativeProperties",
    "ExpAsyncUSMAllocProperties",
    "ExpEnqueueExtProperties",
    "ExpEventDesc",
    "ExpHostTaskProperties",
    "ExpUSMHostAllocRegisterProperties",
    "PhysicalMemProperties",
    "PlatformNativeProperties",
    "QueueNativeDesc",
    "QueueNativeProperties",
    "QueueProperties",
    "RectOffset",
    "RectRegion",
    "USMDesc",
    "USMPoolDesc",
]


@dataclass
class ContextProperties:
    """UR's struct `ur_context_properties_t`, an argument of `urContextCreate`."""

    flags: int = 0
    """A combination of members of `ContextFlags`."""


@dataclass
class QueueProperties:
    """UR's struct `ur_queue_properties_t`, an argument of `urQueueCreate`."""

    flags: int = 0
    """A combination of members of `QueueFlags`."""


@dataclass
class USMDesc:
    """UR's struct `ur_usm_desc_t`, an argument of `urUSMHostAlloc`, `urUSMDeviceAlloc` and `urUSMSharedAlloc`."""

    hints: int = 0
    """A combination of members of `USMAdviceFlags`."""
    align: int = 0
    """Alignment in bytes, a power of two; 0 leaves it to the adapter."""


@dataclass
class PhysicalMemProperties:
    """UR's struct `ur_physical_mem_properties_t`, an argument of `urPhysicalMemCreate` and the value of
    `PhysicalMemInfo.PROPERTIES`.
    """

    flags: int = 0
    """A combination of members of `PhysicalMemFlags`."""


@dataclass
class ExpEventDesc:
    """UR's struct `ur_exp_event_desc_t`, an argument of `urEventCreateExp`."""

    flags: int = 0
    """A combination of members of `ExpEventFlags`."""


@dataclass
class ExpUSMHostAllocRegisterProperties:
    """UR's struct `ur_exp_usm_host_alloc_register_properties_t`, an argument of `urUSMHostAllocRegisterExp`."""

    flags: int = 0
    """A combination of members of `ExpUSMHostAllocRegisterFlags`."""


@dataclass
class ExpHostTaskProperties:
    """UR's struct `ur_exp_host_task_properties_t`, an argument of `urEnqueueHostTaskExp`."""

    flags: int = 0
    """A combination of members of `ExpHostTaskFlags`."""


@dataclass
class ExpEnqueueExtProperties:
    """UR's struct `ur_exp_enqueue_ext_properties_t`, an argument of `urEnqueueEventsWaitWithBarrierExt`."""

    flags: int = 0
    """A combination of members of `ExpEnqueueExtFlags`."""


@dataclass
class DevicePartitionProperty:
    """UR's struct `ur_device_partition_property_t`. `DeviceInfo.PARTITION_TYPE` returns a list of these structs."""

    type: int = 0
    """A member of `DevicePartition`."""
    value: int = 0
    """Depends on `type`. `EQUALLY`: the compute units of each sub-device. `BY_COUNTS`: the compute units of one
    sub-device. `BY_AFFINITY_DOMAIN`: the domain (`DeviceAffinityDomainFlags`).
    """


@dataclass
class USMPoolDesc:
    """UR's struct `ur_usm_pool_desc_t`, an argument of `urUSMPoolCreate` and `urUSMPoolCreateExp`."""

    flags: int = 0
    """A combination of members of `USMPoolFlags`."""


@dataclass
class ExpAsyncUSMAllocProperties:
    """UR's struct `ur_exp_async_usm_alloc_properties_t`, an argument of `urEnqueueUSMDeviceAllocExp`,
    `urEnqueueUSMSharedAllocExp` and `urEnqueueUSMHostAllocExp`.
    """

    flags: int = 0
    """A combination of members of `ExpAsyncUSMAllocFlags`."""


@dataclass
class BufferProperties:
    """UR's struct `ur_buffer_properties_t`, an argument of `urMemBufferCreate`."""

    pHost: int = 0
    """Address of memory of the program."""


@dataclass
class BufferRegion:
    """UR's struct `ur_buffer_region_t`, an argument of `urMemBufferPartition`."""

    origin: int = 0
    """Offset of the first byte in the buffer."""
    size: int = 0
    """Number of bytes."""


@dataclass
class PlatformNativeProperties:
    """UR's struct `ur_platform_native_properties_t`, an argument of `urPlatformCreateWithNativeHandle`."""

    isNativeHandleOwned: bool = False
    """Has no effect, since the driver's platform is never destroyed."""


@dataclass
class DeviceNativeProperties:
    """UR's struct `ur_device_native_properties_t`, an argument of `urDeviceCreateWithNativeHandle`."""

    isNativeHandleOwned: bool = False
    """Has no effect, since the driver's device is never destroyed."""


@dataclass
class ContextNativeProperties:
    """UR's struct `ur_context_native_properties_t`, an argument of `urContextCreateWithNativeHandle`."""

    isNativeHandleOwned: bool = False
    """True is not supported, since the driver's context is never destroyed."""


@dataclass
class QueueNativeProperties:
    """UR's struct `ur_queue_native_properties_t`, an argument of `urQueueCreateWithNativeHandle`."""

    isNativeHandleOwned: bool = False
    """Whether the stream is destroyed when the queue is released."""


@dataclass
class EventNativeProperties:
    """UR's struct `ur_event_native_properties_t`, an argument of `urEventCreateWithNativeHandle`."""

    isNativeHandleOwned: bool = False
    """Whether the driver's event is destroyed when this event is released."""


@dataclass
class QueueNativeDesc:
    """UR's struct `ur_queue_native_desc_t`, an argument of `urQueueGetNativeHandle`."""

    pNativeData: int = 0
    """The address of an `int32_t` that receives the driver's kind of stream, or 0 if the caller does not need it."""


@dataclass
class RectOffset:
    """UR's struct `ur_rect_offset_t`: the position where a three-dimensional box of bytes begins in a buffer or in
    other memory.
    """

    x: int = 0
    """Offset in a row, in bytes."""
    y: int = 0
    """Number of rows before the box."""
    z: int = 0
    """Number of slices before the box."""


@dataclass
class RectRegion:
    """UR's struct `ur_rect_region_t`: the size of a three-dimensional box of bytes."""

    width: int = 0
    """Bytes per row."""
    height: int = 0
    """Rows per slice."""
    depth: int = 0
    """Number of slices."""


FIELD_KINDS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "ContextProperties": {"flags": "flags:ContextFlags"},
        "QueueProperties": {"flags": "flags:QueueFlags"},
        "USMDesc": {"hints": "flags:USMAdviceFlags", "align": "uint32"},
        "PhysicalMemProperties": {"flags": "flags:PhysicalMemFlags"},
        "ExpEventDesc": {"flags": "flags:ExpEventFlags"},
        "ExpEnqueueExtProperties": {"flags": "flags:ExpEnqueueExtFlags"},
        "ExpUSMHostAllocRegisterProperties": {"flags": "flags:ExpUSMHostAllocRegisterFlags"},
        "ExpHostTaskProperties": {"flags": "flags:ExpHostTaskFlags"},
        "USMPoolDesc": {"flags": "flags:USMPoolFlags"},
        "ExpAsyncUSMAllocProperties": {"flags": "flags:ExpAsyncUSMAllocFlags"},
        "BufferProperties": {"pHost": "pointer"},
        "BufferRegion": {"origin": "size", "size": "size"},
        **{
            f"{each}NativeProperties": {"isNativeHandleOwned": "bool"}
            for each in ("Platform", "Device", "Context", "Queue", "Event")
        },
        "QueueNativeDesc": {"pNativeData": "pointer"},
        "RectOffset": {"x": "size", "y": "size", "z": "size"},
        "RectRegion": {"width": "size", "height": "size", "depth": "size"},
        "DevicePartitionProperty": {"type": "enum:DevicePartition", "value": "uint32"},
    }
)
"""The kinds of the fields (`_spec` lists the kinds). Maps a struct's name to a dict from the field's name to its kind.
"""

BY_VALUE: Final = frozenset(("RectOffset", "RectRegion"))
"""The structs that C passes by value. They are never null."""

STRUCTURE_TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "ContextProperties": 0,
        "QueueProperties": 14,
        "USMDesc": 7,
        "PhysicalMemProperties": 37,
        "BufferProperties": 2,
        "BufferRegion": 3,
        "USMPoolDesc": 10,
        "ExpAsyncUSMAllocProperties": 0x2050,
        "ContextNativeProperties": 16,
        "QueueNativeProperties": 18,
        "EventNativeProperties": 20,
        "PlatformNativeProperties": 21,
        "DeviceNativeProperties": 22,
        "QueueNativeDesc": 25,
        "ExpEventDesc": 0x8000,
        "ExpEnqueueExtProperties": 0x4000,
        "ExpUSMHostAllocRegisterProperties": 0x7000,
        "ExpHostTaskProperties": 0x6000,
    }
)
"""UR's number (`stype`) of each struct that has one. It is needed to pass the struct to a C function."""
