"""Unified Runtime's enumerations and flag sets that the functions of `xpushare.ur` take or return.

A class is named after UR's C type. A member is named after UR's constant, without the prefix for the type:
`UR_DEVICE_INFO_UUID` is `DeviceInfo.UUID`, and `UR_PHYSICAL_MEM_FLAG_ENABLE_IPC` is `PhysicalMemFlags.ENABLE_IPC`. The
numbers are those of Unified Runtime's `ur_api.h` of 2026-08-22 (commit 578c2a84). The flag sets keep unknown bits, so
any `int` can be converted. The functions reject unknown bits with `invalid_bits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import KEEP, IntEnum, IntFlag
from types import MappingProxyType
from typing import Final

__all__ = [
    "INVALID_BITS",
    "AdapterInfo",
    "ApiVersion",
    "Backend",
    "BufferCreateType",
    "Command",
    "ContextFlags",
    "ContextInfo",
    "DeviceAffinityDomainFlags",
    "DeviceCommandBufferUpdateCapabilityFlags",
    "DeviceExecCapabilityFlags",
    "DeviceFpCapabilityFlags",
    "DeviceInfo",
    "DeviceLocalMemType",
    "DeviceMemCacheType",
    "DevicePartition",
    "DeviceThrottleReasonsFlags",
    "DeviceType",
    "DeviceUSMAccessCapabilityFlags",
    "EventInfo",
    "EventStatus",
    "ExecutionInfo",
    "ExpAsyncUSMAllocFlags",
    "ExpDevice2DBlockArrayCapabilityFlags",
    "ExpEnqueueExtFlags",
    "ExpEventFlags",
    "ExpExternalMemType",
    "ExpHostTaskFlags",
    "ExpPeerInfo",
    "ExpUSMHostAllocRegisterFlags",
    "KernelLaunchPropertiesFlags",
    "LoggerLevel",
    "MapFlags",
    "MemFlags",
    "MemInfo",
    "MemoryOrderCapabilityFlags",
    "MemoryScopeCapabilityFlags",
    "PhysicalMemFlags",
    "PhysicalMemInfo",
    "PlatformInfo",
    "ProfilingInfo",
    "QueueFlags",
    "QueueInfo",
    "USMAdviceFlags",
    "USMAllocInfo",
    "USMDeviceMemFlags",
    "USMHostMemFlags",
    "USMMigrationFlags",
    "USMPoolFlags",
    "USMPoolInfo",
    "USMType",
    "VirtualMemAccessFlags",
    "VirtualMemGranularityInfo",
    "VirtualMemInfo",
    "invalid_bits",
]


class Backend(IntEnum):
    """`ur_backend_t`: The driver interface behind an adapter or platform (`AdapterInfo.BACKEND`,
    `PlatformInfo.BACKEND`).
    """

    UNKNOWN = 0
    LEVEL_ZERO = 1
    OPENCL = 2
    CUDA = 3
    HIP = 4
    NATIVE_CPU = 5
    OFFLOAD = 0x100


class AdapterInfo(IntEnum):
    """`ur_adapter_info_t`: The properties that `urAdapterGetInfo` can return."""

    BACKEND = 0
    REFERENCE_COUNT = 1
    VERSION = 2


class LoggerLevel(IntEnum):
    """`ur_logger_level_t`: The levels of log messages (`urAdapterSetLoggerCallback`)."""

    DEBUG = 0
    INFO = 1
    WARN = 2
    ERROR = 3
    QUIET = 4


class ApiVersion(IntEnum):
    """`ur_api_version_t`: The versions that `urPlatformGetApiVersion` can return. A number is the major version times
    65536 plus the minor version.

    UR's name for `VERSION_0_12` is `0_12`, but names in Python cannot start with a digit.
    """

    VERSION_0_6 = 6
    VERSION_0_7 = 7
    VERSION_0_8 = 8
    VERSION_0_9 = 9
    VERSION_0_10 = 10
    VERSION_0_11 = 11
    VERSION_0_12 = 12


class PlatformInfo(IntEnum):
    """`ur_platform_info_t`: The properties that `urPlatformGetInfo` can return."""

    NAME = 1
    VENDOR_NAME = 2
    VERSION = 3
    EXTENSIONS = 4
    PROFILE = 5
    BACKEND = 6
    ADAPTER = 7


class DeviceType(IntEnum):
    """`ur_device_type_t`: The types of devices. `DEFAULT` and `ALL` are only for selecting devices. No device has one
    of these two types.
    """

    DEFAULT = 1
    ALL = 2
    GPU = 3
    CPU = 4
    FPGA = 5
    MCA = 6
    VPU = 7
    CUSTOM = 8


class DeviceInfo(IntEnum):
    """`ur_device_info_t`: The properties that `urDeviceGetInfo` can return.

    UR's name for `_2D_BLOCK_ARRAY_CAPABILITIES_EXP` has no underscore at the start, but names in Python cannot start
    with a digit.
    """

    TYPE = 0
    VENDOR_ID = 1
    DEVICE_ID = 2
    MAX_COMPUTE_UNITS = 3
    MAX_WORK_ITEM_DIMENSIONS = 4
    MAX_WORK_ITEM_SIZES = 5
    MAX_WORK_GROUP_SIZE = 6
    SINGLE_FP_CONFIG = 7
    HALF_FP_CONFIG = 8
    DOUBLE_FP_CONFIG = 9
    QUEUE_PROPERTIES = 10
    PREFERRED_VECTOR_WIDTH_CHAR = 11
    PREFERRED_VECTOR_WIDTH_SHORT = 12
    PREFERRED_VECTOR_WIDTH_INT = 13
    PREFERRED_VECTOR_WIDTH_LONG = 14
    PREFERRED_VECTOR_WIDTH_FLOAT = 15
    PREFERRED_VECTOR_WIDTH_DOUBLE = 16
    PREFERRED_VECTOR_WIDTH_HALF = 17
    NATIVE_VECTOR_WIDTH_CHAR = 18
    NATIVE_VECTOR_WIDTH_SHORT = 19
    NATIVE_VECTOR_WIDTH_INT = 20
    NATIVE_VECTOR_WIDTH_LONG = 21
    NATIVE_VECTOR_WIDTH_FLOAT = 22
    NATIVE_VECTOR_WIDTH_DOUBLE = 23
    NATIVE_VECTOR_WIDTH_HALF = 24
    MAX_CLOCK_FREQUENCY = 25
    MEMORY_CLOCK_RATE = 26
    ADDRESS_BITS = 27
    MAX_MEM_ALLOC_SIZE = 28
    IMAGE_SUPPORT = 29
    MAX_READ_IMAGE_ARGS = 30
    MAX_WRITE_IMAGE_ARGS = 31
    MAX_READ_WRITE_IMAGE_ARGS = 32
    IMAGE2D_MAX_WIDTH = 33
    IMAGE2D_MAX_HEIGHT = 34
    IMAGE3D_MAX_WIDTH = 35
    IMAGE3D_MAX_HEIGHT = 36
    IMAGE3D_MAX_DEPTH = 37
    IMAGE_MAX_BUFFER_SIZE = 38
    IMAGE_MAX_ARRAY_SIZE = 39
    MAX_SAMPLERS = 40
    MAX_PARAMETER_SIZE = 41
    MEM_BASE_ADDR_ALIGN = 42
    GLOBAL_MEM_CACHE_TYPE = 43
    GLOBAL_MEM_CACHELINE_SIZE = 44
    GLOBAL_MEM_CACHE_SIZE = 45
    GLOBAL_MEM_SIZE = 46
    GLOBAL_MEM_FREE = 47
    MAX_CONSTANT_BUFFER_SIZE = 48
    MAX_CONSTANT_ARGS = 49
    LOCAL_MEM_TYPE = 50
    LOCAL_MEM_SIZE = 51
    ERROR_CORRECTION_SUPPORT = 52
    HOST_UNIFIED_MEMORY = 53
    PROFILING_TIMER_RESOLUTION = 54
    ENDIAN_LITTLE = 55
    AVAILABLE = 56
    COMPILER_AVAILABLE = 57
    LINKER_AVAILABLE = 58
    EXECUTION_CAPABILITIES = 59
    QUEUE_ON_DEVICE_PROPERTIES = 60
    QUEUE_ON_HOST_PROPERTIES = 61
    BUILT_IN_KERNELS = 62
    PLATFORM = 63
    REFERENCE_COUNT = 64
    IL_VERSION = 65
    NAME = 66
    VENDOR = 67
    DRIVER_VERSION = 68
    PROFILE = 69
    VERSION = 70
    BACKEND_RUNTIME_VERSION = 71
    EXTENSIONS = 72
    PRINTF_BUFFER_SIZE = 73
    PREFERRED_INTEROP_USER_SYNC = 74
    PARENT_DEVICE = 75
    SUPPORTED_PARTITIONS = 76
    PARTITION_MAX_SUB_DEVICES = 77
    PARTITION_AFFINITY_DOMAIN = 78
    PARTITION_TYPE = 79
    MAX_NUM_SUB_GROUPS = 80
    SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS = 81
    SUB_GROUP_SIZES_INTEL = 82
    USM_HOST_SUPPORT = 83
    USM_DEVICE_SUPPORT = 84
    USM_SINGLE_SHARED_SUPPORT = 85
    USM_CROSS_SHARED_SUPPORT = 86
    USM_SYSTEM_SHARED_SUPPORT = 87
    UUID = 88
    PCI_ADDRESS = 89
    GPU_EU_COUNT = 90
    GPU_EU_SIMD_WIDTH = 91
    GPU_EU_SLICES = 92
    GPU_EU_COUNT_PER_SUBSLICE = 93
    GPU_SUBSLICES_PER_SLICE = 94
    GPU_HW_THREADS_PER_EU = 95
    MAX_MEMORY_BANDWIDTH = 96
    IMAGE_SRGB = 97
    BUILD_ON_SUBDEVICE = 98
    ATOMIC_64 = 99
    ATOMIC_MEMORY_ORDER_CAPABILITIES = 100
    ATOMIC_MEMORY_SCOPE_CAPABILITIES = 101
    ATOMIC_FENCE_ORDER_CAPABILITIES = 102
    ATOMIC_FENCE_SCOPE_CAPABILITIES = 103
    BFLOAT16 = 104
    MAX_COMPUTE_QUEUE_INDICES = 105
    KERNEL_SET_SPECIALIZATION_CONSTANTS = 106
    MEMORY_BUS_WIDTH = 107
    MAX_WORK_GROUPS_3D = 108
    ASYNC_BARRIER = 109
    MEM_CHANNEL_SUPPORT = 110
    HOST_PIPE_READ_WRITE_SUPPORT = 111
    MAX_REGISTERS_PER_WORK_GROUP = 112
    IP_VERSION = 113
    VIRTUAL_MEMORY_SUPPORT = 114
    ESIMD_SUPPORT = 115
    COMPONENT_DEVICES = 116
    COMPOSITE_DEVICE = 117
    GLOBAL_VARIABLE_SUPPORT = 118
    USM_POOL_SUPPORT = 119
    NUM_COMPUTE_UNITS = 120
    PROGRAM_SET_SPECIALIZATION_CONSTANTS = 121
    USE_NATIVE_ASSERT = 122
    CURRENT_CLOCK_THROTTLE_REASONS = 123
    FAN_SPEED = 124
    MIN_POWER_LIMIT = 125
    MAX_POWER_LIMIT = 126
    BFLOAT16_CONVERSIONS_NATIVE = 127
    KERNEL_LAUNCH_CAPABILITIES = 128
    LUID = 129
    NODE_MASK = 130
    PREFERRED_VECTOR_WIDTH_LONG_LONG = 131
    NATIVE_VECTOR_WIDTH_LONG_LONG = 132
    MAX_WORK_GROUPS = 133
    XE_STACK_COUNT = 134
    XE_REGIONS_PER_STACK = 135
    XE_CLUSTERS_PER_REGION = 136
    XE_CORES_PER_CLUSTER = 137
    EUS_PER_XE_CORE = 138
    MAX_LANES_PER_HW_THREAD = 139
    COMMAND_BUFFER_SUPPORT_EXP = 0x1000
    COMMAND_BUFFER_UPDATE_CAPABILITIES_EXP = 0x1001
    COMMAND_BUFFER_EVENT_SUPPORT_EXP = 0x1002
    COMMAND_BUFFER_SUBGRAPH_SUPPORT_EXP = 0x1003
    BINDLESS_IMAGES_SUPPORT_EXP = 0x2000
    BINDLESS_IMAGES_SHARED_USM_SUPPORT_EXP = 0x2001
    BINDLESS_IMAGES_1D_USM_SUPPORT_EXP = 0x2002
    BINDLESS_IMAGES_2D_USM_SUPPORT_EXP = 0x2003
    IMAGE_PITCH_ALIGN_EXP = 0x2004
    MAX_IMAGE_LINEAR_WIDTH_EXP = 0x2005
    MAX_IMAGE_LINEAR_HEIGHT_EXP = 0x2006
    MAX_IMAGE_LINEAR_PITCH_EXP = 0x2007
    MIPMAP_SUPPORT_EXP = 0x2008
    MIPMAP_ANISOTROPY_SUPPORT_EXP = 0x2009
    MIPMAP_MAX_ANISOTROPY_EXP = 0x200A
    MIPMAP_LEVEL_REFERENCE_SUPPORT_EXP = 0x200B
    EXTERNAL_MEMORY_IMPORT_SUPPORT_EXP = 0x200C
    EXTERNAL_SEMAPHORE_IMPORT_SUPPORT_EXP = 0x200E
    CUBEMAP_SUPPORT_EXP = 0x2010
    CUBEMAP_SEAMLESS_FILTERING_SUPPORT_EXP = 0x2011
    BINDLESS_SAMPLED_IMAGE_FETCH_1D_USM_SUPPORT_EXP = 0x2012
    BINDLESS_SAMPLED_IMAGE_FETCH_1D_SUPPORT_EXP = 0x2013
    BINDLESS_SAMPLED_IMAGE_FETCH_2D_USM_SUPPORT_EXP = 0x2014
    BINDLESS_SAMPLED_IMAGE_FETCH_2D_SUPPORT_EXP = 0x2015
    BINDLESS_SAMPLED_IMAGE_FETCH_3D_SUPPORT_EXP = 0x2017
    TIMESTAMP_RECORDING_SUPPORT_EXP = 0x2018
    IMAGE_ARRAY_SUPPORT_EXP = 0x2019
    BINDLESS_UNIQUE_ADDRESSING_PER_DIM_SUPPORT_EXP = 0x201A
    BINDLESS_SAMPLE_1D_USM_SUPPORT_EXP = 0x201B
    BINDLESS_SAMPLE_2D_USM_SUPPORT_EXP = 0x201C
    BINDLESS_IMAGES_GATHER_SUPPORT_EXP = 0x201D
    ENQUEUE_NATIVE_COMMAND_SUPPORT_EXP = 0x2020
    LOW_POWER_EVENTS_SUPPORT_EXP = 0x2021
    _2D_BLOCK_ARRAY_CAPABILITIES_EXP = 0x2022
    IPC_MEMORY_SUPPORT_EXP = 0x2023
    IPC_PHYSICAL_MEMORY_SUPPORT_EXP = 0x2024
    REUSABLE_EVENTS_SUPPORT_EXP = 0x2025
    IPC_EVENT_SUPPORT_EXP = 0x2026
    ASYNC_USM_ALLOCATIONS_SUPPORT_EXP = 0x2050
    CLOCK_SUB_GROUP_SUPPORT_EXP = 0x2060
    CLOCK_WORK_GROUP_SUPPORT_EXP = 0x2061
    CLOCK_DEVICE_SUPPORT_EXP = 0x2062
    IS_INTEGRATED_GPU = 0x2070
    GRAPH_RECORD_AND_REPLAY_SUPPORT_EXP = 0x2080
    USM_HOST_ALLOC_REGISTER_SUPPORT_EXP = 0x2090
    PER_EVENT_PROFILING_SUPPORT_EXP = 0x20A0
    USM_P2P_SUPPORT_EXP = 0x4000
    MULTI_DEVICE_COMPILE_SUPPORT_EXP = 0x6000
    DEVICE_WAIT_SUPPORT_EXP = 0x6002
    DYNAMIC_LINK_SUPPORT_EXP = 0x6003
    USM_CONTEXT_MEMCPY_SUPPORT_EXP = 0x7000
    MEMORY_EXPORT_EXPORTABLE_DEVICE_MEM_EXP = 0x8000
    ENQUEUE_HOST_TASK_SUPPORT_EXP = 0x9000


class DevicePartition(IntEnum):
    """`ur_device_partition_t`: Ways to split a device (`DeviceInfo.SUPPORTED_PARTITIONS`)."""

    EQUALLY = 0x1086
    BY_COUNTS = 0x1087
    BY_AFFINITY_DOMAIN = 0x1088
    BY_CSLICE = 0x1089


class DeviceMemCacheType(IntEnum):
    """`ur_device_mem_cache_type_t`: The values of `DeviceInfo.GLOBAL_MEM_CACHE_TYPE`."""

    NONE = 0
    READ_ONLY_CACHE = 1
    READ_WRITE_CACHE = 2


class DeviceLocalMemType(IntEnum):
    """`ur_device_local_mem_type_t`: The values of `DeviceInfo.LOCAL_MEM_TYPE`."""

    NONE = 0
    LOCAL = 1
    GLOBAL = 2


class USMType(IntEnum):
    """`ur_usm_type_t`: Kinds of USM allocations (`USMAllocInfo.TYPE`)."""

    UNKNOWN = 0
    HOST = 1
    DEVICE = 2
    SHARED = 3


class USMAllocInfo(IntEnum):
    """`ur_usm_alloc_info_t`: The properties that `urUSMGetMemAllocInfo` can return."""

    TYPE = 0
    BASE_PTR = 1
    SIZE = 2
    DEVICE = 3
    POOL = 4


class USMPoolInfo(IntEnum):
    """`ur_usm_pool_info_t`: The properties that `urUSMPoolGetInfo` can return."""

    REFERENCE_COUNT = 0
    CONTEXT = 1
    RELEASE_THRESHOLD_EXP = 0x2050
    MAXIMUM_SIZE_EXP = 0x2051
    RESERVED_CURRENT_EXP = 0x2052
    RESERVED_HIGH_EXP = 0x2053
    USED_CURRENT_EXP = 0x2054
    USED_HIGH_EXP = 0x2055


class MemInfo(IntEnum):
    """`ur_mem_info_t`: The properties that `urMemGetInfo` can return."""

    SIZE = 0
    CONTEXT = 1
    REFERENCE_COUNT = 2


class BufferCreateType(IntEnum):
    """`ur_buffer_create_type_t`: The kinds of buffers that `urMemBufferPartition` can create."""

    REGION = 0


class ExpPeerInfo(IntEnum):
    """`ur_exp_peer_info_t`: The properties that `urUsmP2PPeerAccessGetInfoExp` can return."""

    UR_PEER_ACCESS_SUPPORT = 0
    UR_PEER_ATOMICS_SUPPORT = 1


class ExpExternalMemType(IntEnum):
    """`ur_exp_external_mem_type_t`: The kinds of handles that `urMemoryExportExportMemoryHandleExp` can return."""

    OPAQUE_FD = 0
    WIN32_NT = 1
    WIN32_NT_DX12_RESOURCE = 2
    DMA_BUF = 3
    WIN32_NT_DX11_RESOURCE = 4


class VirtualMemGranularityInfo(IntEnum):
    """`ur_virtual_mem_granularity_info_t`: The properties that `urVirtualMemGranularityGetInfo` can return."""

    MINIMUM = 0x30100
    RECOMMENDED = 0x30101


class VirtualMemInfo(IntEnum):
    """`ur_virtual_mem_info_t`: The properties that `urVirtualMemGetInfo` can return."""

    ACCESS_MODE = 0


class ContextInfo(IntEnum):
    """`ur_context_info_t`: The properties that `urContextGetInfo` can return."""

    NUM_DEVICES = 0
    DEVICES = 1
    REFERENCE_COUNT = 2
    USM_MEMCPY2D_SUPPORT = 3
    USM_FILL2D_SUPPORT = 4


class QueueInfo(IntEnum):
    """`ur_queue_info_t`: The properties that `urQueueGetInfo` can return."""

    CONTEXT = 0
    DEVICE = 1
    DEVICE_DEFAULT = 2
    FLAGS = 3
    REFERENCE_COUNT = 4
    SIZE = 5
    EMPTY = 6


class PhysicalMemInfo(IntEnum):
    """`ur_physical_mem_info_t`: The properties that `urPhysicalMemGetInfo` can return."""

    CONTEXT = 0
    DEVICE = 1
    SIZE = 2
    PROPERTIES = 3
    REFERENCE_COUNT = 4


class EventInfo(IntEnum):
    """`ur_event_info_t`: The properties that `urEventGetInfo` can return."""

    COMMAND_QUEUE = 0
    CONTEXT = 1
    COMMAND_TYPE = 2
    COMMAND_EXECUTION_STATUS = 3
    REFERENCE_COUNT = 4


class EventStatus(IntEnum):
    """`ur_event_status_t`: The states of an event's command (`EventInfo.COMMAND_EXECUTION_STATUS`)."""

    COMPLETE = 0
    RUNNING = 1
    SUBMITTED = 2
    QUEUED = 3
    ERROR = 4


class ExecutionInfo(IntEnum):
    """`ur_execution_info_t`: The states of a command for which `urEventSetCallback` can register a callback."""

    COMPLETE = 0
    RUNNING = 1
    SUBMITTED = 2
    QUEUED = 3


class ProfilingInfo(IntEnum):
    """`ur_profiling_info_t`: The properties that `urEventGetProfilingInfo` can return."""

    COMMAND_QUEUED = 0
    COMMAND_SUBMIT = 1
    COMMAND_START = 2
    COMMAND_END = 3
    COMMAND_COMPLETE = 4


class Command(IntEnum):
    """`ur_command_t`: The kinds of commands that an event can belong to (`EventInfo.COMMAND_TYPE`)."""

    KERNEL_LAUNCH = 0
    EVENTS_WAIT = 1
    EVENTS_WAIT_WITH_BARRIER = 2
    MEM_BUFFER_READ = 3
    MEM_BUFFER_WRITE = 4
    MEM_BUFFER_READ_RECT = 5
    MEM_BUFFER_WRITE_RECT = 6
    MEM_BUFFER_COPY = 7
    MEM_BUFFER_COPY_RECT = 8
    MEM_BUFFER_FILL = 9
    MEM_IMAGE_READ = 10
    MEM_IMAGE_WRITE = 11
    MEM_IMAGE_COPY = 12
    MEM_BUFFER_MAP = 14
    MEM_UNMAP = 16
    USM_FILL = 17
    USM_MEMCPY = 18
    USM_PREFETCH = 19
    USM_ADVISE = 20
    USM_FILL_2D = 21
    USM_MEMCPY_2D = 22
    DEVICE_GLOBAL_VARIABLE_WRITE = 23
    DEVICE_GLOBAL_VARIABLE_READ = 24
    READ_HOST_PIPE = 25
    WRITE_HOST_PIPE = 26
    ENQUEUE_COMMAND_BUFFER_EXP = 0x1000
    EXTERNAL_SEMAPHORE_WAIT_EXP = 0x2000
    EXTERNAL_SEMAPHORE_SIGNAL_EXP = 0x2001
    TIMESTAMP_RECORDING_EXP = 0x2002
    ENQUEUE_NATIVE_EXP = 0x2004
    ENQUEUE_USM_DEVICE_ALLOC_EXP = 0x2050
    ENQUEUE_USM_SHARED_ALLOC_EXP = 0x2051
    ENQUEUE_USM_HOST_ALLOC_EXP = 0x2052
    ENQUEUE_USM_FREE_EXP = 0x2053
    ENQUEUE_GRAPH_EXP = 0x2100
    HOST_TASK_EXP = 0x2200


class ContextFlags(IntFlag, boundary=KEEP):
    """`ur_context_flags_t`: Flags of `ContextProperties`. The only bit is reserved."""

    TBD = 1 << 0


class QueueFlags(IntFlag, boundary=KEEP):
    """`ur_queue_flags_t`: Flags of `QueueProperties`. `DeviceInfo.QUEUE_PROPERTIES` returns the flags that a device
    supports.
    """

    OUT_OF_ORDER_EXEC_MODE_ENABLE = 1 << 0
    PROFILING_ENABLE = 1 << 1
    ON_DEVICE = 1 << 2
    ON_DEVICE_DEFAULT = 1 << 3
    DISCARD_EVENTS = 1 << 4
    PRIORITY_LOW = 1 << 5
    PRIORITY_HIGH = 1 << 6
    SUBMISSION_BATCHED = 1 << 7
    SUBMISSION_IMMEDIATE = 1 << 8
    USE_DEFAULT_STREAM = 1 << 9
    SYNC_WITH_DEFAULT_STREAM = 1 << 10
    LOW_POWER_EVENTS_SUPPORT_EXP = 1 << 11


class USMHostMemFlags(IntFlag, boundary=KEEP):
    """`ur_usm_host_mem_flags_t`: Flags of a host allocation. In C, these flags are in a struct that is chained to
    `ur_usm_desc_t`.
    """

    INITIAL_PLACEMENT = 1 << 0


class USMDeviceMemFlags(IntFlag, boundary=KEEP):
    """`ur_usm_device_mem_flags_t`: Flags of a device allocation. In C, these flags are in a struct that is chained to
    `ur_usm_desc_t`.
    """

    WRITE_COMBINED = 1 << 0
    INITIAL_PLACEMENT = 1 << 1
    DEVICE_READ_ONLY = 1 << 2


class USMAdviceFlags(IntFlag, boundary=KEEP):
    """`ur_usm_advice_flags_t`: Hints for `urEnqueueUSMAdvise` and `USMDesc`."""

    DEFAULT = 1 << 0
    SET_READ_MOSTLY = 1 << 1
    CLEAR_READ_MOSTLY = 1 << 2
    SET_PREFERRED_LOCATION = 1 << 3
    CLEAR_PREFERRED_LOCATION = 1 << 4
    SET_NON_ATOMIC_MOSTLY = 1 << 5
    CLEAR_NON_ATOMIC_MOSTLY = 1 << 6
    BIAS_CACHED = 1 << 7
    BIAS_UNCACHED = 1 << 8
    SET_ACCESSED_BY_DEVICE = 1 << 9
    CLEAR_ACCESSED_BY_DEVICE = 1 << 10
    SET_ACCESSED_BY_HOST = 1 << 11
    CLEAR_ACCESSED_BY_HOST = 1 << 12
    SET_PREFERRED_LOCATION_HOST = 1 << 13
    CLEAR_PREFERRED_LOCATION_HOST = 1 << 14
    SET_NON_COHERENT_MEMORY = 1 << 15
    CLEAR_NON_COHERENT_MEMORY = 1 << 16


class USMMigrationFlags(IntFlag, boundary=KEEP):
    """`ur_usm_migration_flags_t`: Whether `urEnqueueUSMPrefetch` moves memory to the device or to the host."""

    HOST_TO_DEVICE = 1 << 0
    DEVICE_TO_HOST = 1 << 1


class USMPoolFlags(IntFlag, boundary=KEEP):
    """`ur_usm_pool_flags_t`: Flags of `USMPoolDesc`."""

    ZERO_INITIALIZE_BLOCK = 1 << 0
    USE_NATIVE_MEMORY_POOL_EXP = 1 << 1
    READ_ONLY_EXP = 1 << 2


class ExpAsyncUSMAllocFlags(IntFlag, boundary=KEEP):
    """`ur_exp_async_usm_alloc_flags_t`: Flags of `ExpAsyncUSMAllocProperties`. The only bit is reserved."""

    TBD = 1 << 0


class MemFlags(IntFlag, boundary=KEEP):
    """`ur_mem_flags_t`: How kernels may access a buffer, and where its bytes are."""

    READ_WRITE = 1 << 0
    WRITE_ONLY = 1 << 1
    READ_ONLY = 1 << 2
    USE_HOST_POINTER = 1 << 3
    ALLOC_HOST_POINTER = 1 << 4
    ALLOC_COPY_HOST_POINTER = 1 << 5


class MapFlags(IntFlag, boundary=KEEP):
    """`ur_map_flags_t`: How the program will access the bytes that `urEnqueueMemBufferMap` maps."""

    READ = 1 << 0
    WRITE = 1 << 1
    WRITE_INVALIDATE_REGION = 1 << 2


class ExpUSMHostAllocRegisterFlags(IntFlag, boundary=KEEP):
    """`ur_exp_usm_host_alloc_register_flags_t`: Flags of `ExpUSMHostAllocRegisterProperties`."""

    READ_ONLY = 1 << 0


class ExpHostTaskFlags(IntFlag, boundary=KEEP):
    """`ur_exp_host_task_flags_t`: Flags of `ExpHostTaskProperties`. The only bit is reserved."""

    TBD = 1 << 0


class VirtualMemAccessFlags(IntFlag, boundary=KEEP):
    """`ur_virtual_mem_access_flags_t`: The access permissions of a mapped range."""

    NONE = 1 << 0
    READ_WRITE = 1 << 1
    READ_ONLY = 1 << 2


class PhysicalMemFlags(IntFlag, boundary=KEEP):
    """`ur_physical_mem_flags_t`: Flags of `PhysicalMemProperties`. Bit 0 is invalid, since UR no longer defines it."""

    ENABLE_IPC = 1 << 1


class ExpEventFlags(IntFlag, boundary=KEEP):
    """`ur_exp_event_flags_t`: Flags of `ExpEventDesc`. The two flags cannot be combined."""

    ENABLE_PROFILING = 1 << 0
    IPC_EXP = 1 << 1


class ExpEnqueueExtFlags(IntFlag, boundary=KEEP):
    """`ur_exp_enqueue_ext_flags_t`: Flags of `ExpEnqueueExtProperties`."""

    LOW_POWER_EVENTS_SUPPORT = 1 << 11


class DeviceFpCapabilityFlags(IntFlag, boundary=KEEP):
    """`ur_device_fp_capability_flags_t`: Floating-point capabilities of a device."""

    CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 0
    ROUND_TO_NEAREST = 1 << 1
    ROUND_TO_ZERO = 1 << 2
    ROUND_TO_INF = 1 << 3
    INF_NAN = 1 << 4
    DENORM = 1 << 5
    FMA = 1 << 6
    SOFT_FLOAT = 1 << 7


class DeviceExecCapabilityFlags(IntFlag, boundary=KEEP):
    """`ur_device_exec_capability_flags_t`: Kinds of kernels that a device can run."""

    KERNEL = 1 << 0
    NATIVE_KERNEL = 1 << 1


class DeviceAffinityDomainFlags(IntFlag, boundary=KEEP):
    """`ur_device_affinity_domain_flags_t`: Domains along which a device can be split."""

    NUMA = 1 << 0
    L4_CACHE = 1 << 1
    L3_CACHE = 1 << 2
    L2_CACHE = 1 << 3
    L1_CACHE = 1 << 4
    NEXT_PARTITIONABLE = 1 << 5


class DeviceUSMAccessCapabilityFlags(IntFlag, boundary=KEEP):
    """`ur_device_usm_access_capability_flags_t`: How a device can access one kind of USM memory."""

    ACCESS = 1 << 0
    ATOMIC_ACCESS = 1 << 1
    CONCURRENT_ACCESS = 1 << 2
    ATOMIC_CONCURRENT_ACCESS = 1 << 3


class DeviceThrottleReasonsFlags(IntFlag, boundary=KEEP):
    """`ur_device_throttle_reasons_flags_t`: Reasons why a device has lowered its clock frequency."""

    POWER_CAP = 1 << 0
    CURRENT_LIMIT = 1 << 1
    THERMAL_LIMIT = 1 << 2
    PSU_ALERT = 1 << 3
    SW_RANGE = 1 << 4
    HW_RANGE = 1 << 5
    OTHER = 1 << 6


class MemoryOrderCapabilityFlags(IntFlag, boundary=KEEP):
    """`ur_memory_order_capability_flags_t`: Memory orders that atomics or fences of a device support."""

    RELAXED = 1 << 0
    ACQUIRE = 1 << 1
    RELEASE = 1 << 2
    ACQ_REL = 1 << 3
    SEQ_CST = 1 << 4


class MemoryScopeCapabilityFlags(IntFlag, boundary=KEEP):
    """`ur_memory_scope_capability_flags_t`: Memory scopes that atomics or fences of a device support."""

    WORK_ITEM = 1 << 0
    SUB_GROUP = 1 << 1
    WORK_GROUP = 1 << 2
    DEVICE = 1 << 3
    SYSTEM = 1 << 4


class KernelLaunchPropertiesFlags(IntFlag, boundary=KEEP):
    """`ur_kernel_launch_properties_flags_t`: Kernel launch properties that a device supports."""

    COOPERATIVE = 1 << 0
    CLUSTER_DIMENSION = 1 << 1
    WORK_GROUP_MEMORY = 1 << 2
    OPPORTUNISTIC_QUEUE_SERIALIZE = 1 << 3


class DeviceCommandBufferUpdateCapabilityFlags(IntFlag, boundary=KEEP):
    """`ur_device_command_buffer_update_capability_flags_t`: Changes to a command buffer that a device supports."""

    KERNEL_ARGUMENTS = 1 << 0
    LOCAL_WORK_SIZE = 1 << 1
    GLOBAL_WORK_SIZE = 1 << 2
    GLOBAL_WORK_OFFSET = 1 << 3
    KERNEL_HANDLE = 1 << 4
    EVENTS = 1 << 5


class ExpDevice2DBlockArrayCapabilityFlags(IntFlag, boundary=KEEP):
    """`ur_exp_device_2d_block_array_capability_flags_t`: 2D block operations that a device supports."""

    LOAD = 1 << 0
    STORE = 1 << 1


INVALID_BITS: Final[Mapping[type[IntFlag], int]] = MappingProxyType(
    {
        ContextFlags: 0xFFFFFFFE,
        QueueFlags: 0xFFFFF000,
        USMHostMemFlags: 0xFFFFFFFE,
        USMDeviceMemFlags: 0xFFFFFFF8,
        USMAdviceFlags: 0xFFFE0000,
        USMMigrationFlags: 0xFFFFFFFC,
        USMPoolFlags: 0xFFFFFFF8,
        ExpAsyncUSMAllocFlags: 0xFFFFFFFE,
        MemFlags: 0xFFFFFFC0,
        MapFlags: 0xFFFFFFF8,
        ExpUSMHostAllocRegisterFlags: 0xFFFFFFFE,
        ExpHostTaskFlags: 0xFFFFFFFE,
        VirtualMemAccessFlags: 0xFFFFFFF8,
        PhysicalMemFlags: 0xFFFFFFFD,
        ExpEventFlags: 0xFFFFFFFC,
        ExpEnqueueExtFlags: 0xFFFFF7FF,
        DeviceFpCapabilityFlags: 0xFFFFFF00,
        DeviceExecCapabilityFlags: 0xFFFFFFFC,
        DeviceAffinityDomainFlags: 0xFFFFFFC0,
        DeviceUSMAccessCapabilityFlags: 0xFFFFFFF0,
        DeviceThrottleReasonsFlags: 0xFFFFFF80,
        MemoryOrderCapabilityFlags: 0xFFFFFFE0,
        MemoryScopeCapabilityFlags: 0xFFFFFFE0,
        KernelLaunchPropertiesFlags: 0xFFFFFFF0,
        DeviceCommandBufferUpdateCapabilityFlags: 0xFFFFFFC0,
        ExpDevice2DBlockArrayCapabilityFlags: 0xFFFFFFFC,
    }
)
"""For each flag set, the 32-bit mask of the bits that UR's parameter validation refuses."""


def invalid_bits(flags: type[IntFlag], value: int) -> int:
    """Return the bits of `value` that are not flags of `flags`, or 0 if all bits are flags.

    UR's flags have 32 bits. Bits above these are invalid, and so are negative numbers.
    """
    return int(value) & ~(INVALID_BITS[flags] ^ 0xFFFF_FFFF)
