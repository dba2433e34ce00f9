"""The functions of `xpushare.ur`, as data: the source of the validation and of the reference page.

Everything here restates Unified Runtime (`scripts/core/*.yml` and its parameter validation, commit 578c2a84 of
2026-08-22) in the terms of Python: arguments are the C function's inputs in their order, an array and its count are one
sequence, sizes of info queries and outputs fall away, and so do the rules about them.

Kinds (of arguments, fields, results and info values); a trailing `?` says that `None` is allowed:

| kind | in Python |
|---|---|
| `handle:X` | an object: adapter, platform, device, context, queue, event, physical_mem or usm_pool |
| `pointer` | an address, `int` of 64 bits; 0 is null, as `None` is |
| `size` | `int` of 64 bits, not negative |
| `uint32`, `int32`, `uint64` | `int` |
| `bool`, `string` | `bool`, `str` |
| `bytes` | bytes-like; a pointer to data together with the size of it, where UR takes the size |
| `pattern` | bytes-like; `pPattern` and `patternSize` |
| `enum:X`, `flags:X` | `int`, answered as class `X` of `_enums` |
| `struct:X` | class `X` of `_structs` |
| `sequence:X` | a sequence of `handle:X` and its count; an empty wait list is UR's null with count 0 |
| `info:X` | a value whose kind `INFO_TYPES[X]` tells |
| `K[]`, `K[3]` | a list of kind `K` |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from xpushare.ur import _enums, _structs

__all__ = ["FUNCTIONS", "INFO_TYPES", "OPTIONAL_QUERIES", "UNIVERSAL_ERRORS", "Arg", "Check", "Error", "Function"]


class Arg(NamedTuple):
    """An argument in Python."""

    name: str
    """UR's name of the parameter; of an array and its count, the array's."""
    kind: str

    @property
    def optional(self) -> bool:
        return self.kind.endswith("?")

    @property
    def base_kind(self) -> str:
        """The kind without `?`."""
        return self.kind.removesuffix("?")


class Error(NamedTuple):
    """A result that UR documents for a function."""

    result: str
    """Name of a `Result`."""
    condition: str
    """When. Empty where UR states no condition."""


class Check(NamedTuple):
    """A rule that can be decided from the arguments alone."""

    result: str
    """Name of a `Result`, the answer if the condition holds."""
    condition: str
    """A Python expression over the arguments' names; `invalid_bits` and the classes of `_enums` are known as well.
    Its value counts as true or false. The checks before it have passed."""
    origin: Literal["layer", "documented", "adapter"] = "layer"
    """`layer`: UR's parameter validation does it. `documented`: UR documents it, but leaves it to the adapter.
    `adapter`: undocumented; the Level Zero adapter does it, and UR's own tests ask for it."""


@dataclass(frozen=True)
class Function:
    """One function of `xpushare.ur`."""

    name: str
    function_id: int
    """UR's number of the function (`ur_function_t`)."""
    summary: str
    args: tuple[Arg, ...]
    returns: str
    """Kind of the result, or `None`."""
    errors: tuple[Error, ...]
    """The results that UR documents, in the order in which they are looked for: those that `checks` decide, then the
    others, then `UNIVERSAL_ERRORS`."""
    checks: tuple[Check, ...]
    """What to check, in the order of UR's parameter validation: pointers, handles, enumerations and flags, the rest."""
    notes: str = ""


UNIVERSAL_ERRORS: Final[tuple[Error, ...]] = (
    Error("ERROR_UNINITIALIZED", ""),
    Error("ERROR_DEVICE_LOST", ""),
    Error("ERROR_ADAPTER_SPECIFIC", ""),
)
"""What every function may answer."""

_HIGHEST: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AdapterInfo": "VERSION",
        "PlatformInfo": "ADAPTER",
        "DeviceType": "CUSTOM",
        "DeviceInfo": "ENQUEUE_HOST_TASK_SUPPORT_EXP",
        "USMAllocInfo": "POOL",
        "VirtualMemGranularityInfo": "RECOMMENDED",
        "VirtualMemInfo": "ACCESS_MODE",
        "PhysicalMemInfo": "REFERENCE_COUNT",
        "EventInfo": "REFERENCE_COUNT",
        "ProfilingInfo": "COMMAND_COMPLETE",
    }
)
"""UR's validation only compares an enumeration with its last value. Numbers below that are no members reach the
adapter, which answers `ERROR_UNSUPPORTED_ENUMERATION`."""

_Rule = tuple[Check, str]
"""A check and its condition in words."""


def _rule(
    result: str, condition: str, words: str, origin: Literal["layer", "documented", "adapter"] = "layer"
) -> _Rule:
    return Check(result, condition, origin), words


def _null_rule(arg: Arg) -> _Rule:
    if arg.kind.startswith("handle:"):
        return _rule("ERROR_INVALID_NULL_HANDLE", f"{arg.name} is None", f"`{arg.name}` is null")
    condition = f"not {arg.name}" if arg.kind == "pointer" else f"{arg.name} is None"
    return _rule("ERROR_INVALID_NULL_POINTER", condition, f"`{arg.name}` is null")


def _mask(flags: str) -> str:
    return f"0x{_enums.INVALID_BITS[getattr(_enums, flags)]:08x}"


def _value_rules(arg: Arg) -> Iterable[_Rule]:
    family, _, name = arg.base_kind.partition(":")
    if family == "enum":
        last = _HIGHEST[name]
        yield _rule(
            "ERROR_INVALID_ENUMERATION",
            f"not 0 <= {arg.name} <= 0x{getattr(_enums, name)[last]:x}",  # a number: an argument is named as its class
            f"`{arg.name}` is not in the range up to `{name}.{last}`",
        )
    elif family == "flags":
        yield _rule(
            "ERROR_INVALID_ENUMERATION",
            f"invalid_bits({name}, {arg.name})",
            f"`{arg.name}` has a bit of {_mask(name)}, which are no `{name}`",
        )
    elif family == "struct":
        guard = f"{arg.name} is not None and " if arg.optional else ""
        for field, kind in _structs.FIELD_KINDS[name].items():
            if kind.startswith("flags:"):
                flags = kind.removeprefix("flags:")
                yield _rule(
                    "ERROR_INVALID_ENUMERATION",
                    f"{guard}invalid_bits({flags}, {arg.name}.{field})",
                    f"`{arg.name}.{field}` has a bit of {_mask(flags)}, which are no `{flags}`",
                )


def _function(
    name: str,
    function_id: int,
    summary: str,
    args: str,
    returns: str,
    *others: str | tuple[str, str],
    rules: tuple[_Rule, ...] = (),
    unchecked: tuple[str, ...] = (),
    notes: str = "",
) -> Function:
    """`args`: "name kind, name kind"; `others`: the results that no check decides; `rules`: the checks after those
    that follow from the kinds; `unchecked`: mandatory arguments that UR does not compare with null."""
    parsed = tuple(Arg(*arg.split()) for arg in args.split(", ")) if args else ()
    nullable = tuple(
        arg
        for arg in parsed
        if not arg.optional
        and arg.name not in unchecked
        and arg.kind.startswith(("handle:", "pointer", "struct:", "sequence:", "bytes", "pattern"))
    )
    all_rules = (
        *(_null_rule(arg) for arg in nullable if not arg.kind.startswith("handle:")),
        *(_null_rule(arg) for arg in nullable if arg.kind.startswith("handle:")),
        *(rule for arg in parsed for rule in _value_rules(arg)),
        *rules,
    )
    return Function(
        name=name,
        function_id=function_id,
        summary=summary,
        args=parsed,
        returns=returns,
        errors=(
            *(Error(check.result, words) for check, words in all_rules),
            *(Error(*(("ERROR_" + o, "") if isinstance(o, str) else ("ERROR_" + o[0], o[1]))) for o in others),
            *UNIVERSAL_ERRORS,
        ),
        checks=tuple(check for check, _ in all_rules),
        notes=notes,
    )


_UNSUPPORTED_QUERY = ("UNSUPPORTED_ENUMERATION", "the adapter does not support `propName`")

_WAIT_LIST_RULE = _rule(
    "ERROR_INVALID_EVENT_WAIT_LIST",
    "any(event is None for event in phEventWaitList or ())",
    "an element of `phEventWaitList` is null",
)
_WAIT_LIST_OTHERS = (
    ("INVALID_EVENT_WAIT_LIST", "an element of `phEventWaitList` is not a valid event"),
    ("IN_EVENT_LIST_EXEC_STATUS", "an event in `phEventWaitList` has the status `EventStatus.ERROR`"),
)

_ALIGN_RULE = _rule(
    "ERROR_INVALID_VALUE",
    "pUSMDesc is not None and pUSMDesc.align & (pUSMDesc.align - 1)",
    "`pUSMDesc.align` is neither 0 nor a power of two",
)
_USM_SIZE_RULE = _rule("ERROR_INVALID_USM_SIZE", "size == 0", "`size` is 0")
_POOL_ERROR = (
    "UNSUPPORTED_FEATURE",
    "a device of `hContext` answers false to `DeviceInfo.USM_POOL_SUPPORT`",
)
_ALIGN_DEVICE_ERROR = ("INVALID_VALUE", "`pUSMDesc.align` exceeds the size of the largest data type of `hDevice`")
_SIZE_DEVICE_ERROR = ("INVALID_USM_SIZE", "`size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE`")
_HANDLE_SIZE = "is not the size of this kind of handle"

_FUNCTIONS: Final = (
    _function("urAdapterGet", 178, "The adapters, each with a reference taken.", "", "handle:adapter[]"),
    _function(
        "urAdapterGetInfo",
        181,
        "Asks an adapter.",
        "hAdapter handle:adapter, propName enum:AdapterInfo",
        "info:AdapterInfo",
        _UNSUPPORTED_QUERY,
        "OUT_OF_RESOURCES",
        "OUT_OF_HOST_MEMORY",
    ),
    _function("urPlatformGet", 72, "The platforms of an adapter.", "hAdapter handle:adapter", "handle:platform[]"),
    _function(
        "urPlatformGetInfo",
        73,
        "Asks a platform.",
        "hPlatform handle:platform, propName enum:PlatformInfo",
        "info:PlatformInfo",
        _UNSUPPORTED_QUERY,
        "INVALID_PLATFORM",
        "OUT_OF_RESOURCES",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urDeviceGet",
        8,
        "The devices of a platform that are of a type, each with a reference taken.",
        "hPlatform handle:platform, DeviceType enum:DeviceType",
        "handle:device[]",
        "INVALID_VALUE",
    ),
    _function(
        "urDeviceGetInfo",
        9,
        "Asks a device.",
        "hDevice handle:device, propName enum:DeviceInfo",
        "info:DeviceInfo",
        _UNSUPPORTED_QUERY,
        "INVALID_DEVICE",
        "OUT_OF_RESOURCES",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urContextCreate",
        1,
        "Makes a context of devices of one platform.",
        "phDevices sequence:device, pProperties struct:ContextProperties?",
        "handle:context",
        ("INVALID_NULL_HANDLE", "an element of `phDevices` is not a valid device"),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_DEVICE_MEMORY",
        rules=(
            _rule("ERROR_INVALID_SIZE", "len(phDevices) == 0", "`phDevices` is empty"),
            _rule(
                "ERROR_INVALID_NULL_HANDLE",
                "any(device is None for device in phDevices)",
                "an element of `phDevices` is null",
                "documented",
            ),
        ),
    ),
    _function("urContextRetain", 2, "Takes a reference to a context.", "hContext handle:context", "None"),
    _function("urContextRelease", 3, "Gives up a reference to a context.", "hContext handle:context", "None"),
    _function(
        "urUSMHostAlloc",
        107,
        "Allocates host memory that devices reach.",
        "hContext handle:context, pUSMDesc struct:USMDesc?, pool handle:usm_pool?, size size",
        "pointer",
        "INVALID_CONTEXT",
        ("INVALID_OPERATION", "`DeviceInfo.USM_HOST_SUPPORT` is false"),
        (
            "INVALID_VALUE",
            "`pUSMDesc.align` exceeds the size of the largest data type of any device of `hContext`",
        ),
        ("INVALID_USM_SIZE", "`size` exceeds `DeviceInfo.MAX_MEM_ALLOC_SIZE` of any device of `hContext`"),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        _POOL_ERROR,
        rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    ),
    _function(
        "urUSMDeviceAlloc",
        108,
        "Allocates memory of a device.",
        "hContext handle:context, hDevice handle:device, pUSMDesc struct:USMDesc?, pool handle:usm_pool?, size size",
        "pointer",
        "INVALID_CONTEXT",
        ("INVALID_OPERATION", "`DeviceInfo.USM_HOST_SUPPORT` is false (so UR says; the device's support is meant)"),
        _ALIGN_DEVICE_ERROR,
        _SIZE_DEVICE_ERROR,
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        _POOL_ERROR,
        rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    ),
    _function(
        "urUSMSharedAlloc",
        109,
        "Allocates memory that host and device share.",
        "hContext handle:context, hDevice handle:device, pUSMDesc struct:USMDesc?, pool handle:usm_pool?, size size",
        "pointer",
        "INVALID_CONTEXT",
        _ALIGN_DEVICE_ERROR,
        _SIZE_DEVICE_ERROR,
        (
            "INVALID_OPERATION",
            "`DeviceInfo.USM_SINGLE_SHARED_SUPPORT` and `DeviceInfo.USM_CROSS_SHARED_SUPPORT` are both false",
        ),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        _POOL_ERROR,
        rules=(_ALIGN_RULE, _USM_SIZE_RULE),
    ),
    _function(
        "urUSMFree",
        110,
        "Frees USM memory, after waiting for the commands that may use it.",
        "hContext handle:context, pMem pointer",
        "None",
        "INVALID_MEM_OBJECT",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urUSMGetMemAllocInfo",
        111,
        "Asks about the allocation that an address lies in.",
        "hContext handle:context, pMem pointer, propName enum:USMAllocInfo",
        "info:USMAllocInfo",
        "INVALID_CONTEXT",
        "INVALID_VALUE",
        "INVALID_MEM_OBJECT",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urQueueCreate",
        92,
        "Makes a queue for a device.",
        "hContext handle:context, hDevice handle:device, pProperties struct:QueueProperties?",
        "handle:queue",
        "INVALID_CONTEXT",
        "INVALID_DEVICE",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        rules=(
            _rule(
                "ERROR_INVALID_QUEUE_PROPERTIES",
                "pProperties is not None and pProperties.flags & QueueFlags.PRIORITY_HIGH "
                "and pProperties.flags & QueueFlags.PRIORITY_LOW",
                "`pProperties.flags` has both `PRIORITY_HIGH` and `PRIORITY_LOW`",
            ),
            _rule(
                "ERROR_INVALID_QUEUE_PROPERTIES",
                "pProperties is not None and pProperties.flags & QueueFlags.SUBMISSION_BATCHED "
                "and pProperties.flags & QueueFlags.SUBMISSION_IMMEDIATE",
                "`pProperties.flags` has both `SUBMISSION_BATCHED` and `SUBMISSION_IMMEDIATE`",
            ),
        ),
    ),
    _function(
        "urQueueRetain",
        93,
        "Takes a reference to a queue.",
        "hQueue handle:queue",
        "None",
        "INVALID_QUEUE",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urQueueRelease",
        94,
        "Gives up a reference to a queue; the last one flushes it, and its commands still run.",
        "hQueue handle:queue",
        "None",
        "INVALID_QUEUE",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urQueueFinish",
        97,
        "Waits until all commands of a queue are complete.",
        "hQueue handle:queue",
        "None",
        "INVALID_QUEUE",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urEnqueueUSMMemcpy",
        33,
        "Copies USM memory.",
        "hQueue handle:queue, blocking bool, pDst pointer, pSrc pointer, size size, phEventWaitList sequence:event?",
        "handle:event",
        "INVALID_QUEUE",
        "INVALID_EVENT",
        ("INVALID_SIZE", "`size` exceeds the allocation of `pSrc` or `pDst`"),
        *_WAIT_LIST_OTHERS,
        "INVALID_MEM_OBJECT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        rules=(_rule("ERROR_INVALID_SIZE", "size == 0", "`size` is 0"), _WAIT_LIST_RULE),
    ),
    _function(
        "urEnqueueUSMFill",
        32,
        "Fills USM memory with a pattern.",
        "hQueue handle:queue, pMem pointer, pPattern pattern, size size, phEventWaitList sequence:event?",
        "handle:event",
        "INVALID_QUEUE",
        "INVALID_EVENT",
        ("INVALID_SIZE", "`size` exceeds the allocation of `pMem`"),
        *_WAIT_LIST_OTHERS,
        "INVALID_MEM_OBJECT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        rules=(
            _rule("ERROR_INVALID_SIZE", "len(pPattern) == 0 or size == 0", "`pPattern` is empty or `size` is 0"),
            _rule("ERROR_INVALID_SIZE", "len(pPattern) > size", "`pPattern` is longer than `size`"),
            _rule("ERROR_INVALID_SIZE", "size % len(pPattern)", "`size` is no multiple of the length of `pPattern`"),
            _WAIT_LIST_RULE,
        ),
        notes="The length of `pPattern` must be a power of two; UR names no result for the contrary.",
    ),
    _function(
        "urVirtualMemGranularityGetInfo",
        153,
        "The granularity of virtual and physical memory; without a device, one that suits all devices of the context.",
        "hContext handle:context, hDevice handle:device?, allocationSize size, propName enum:VirtualMemGranularityInfo",
        "info:VirtualMemGranularityInfo",
        _UNSUPPORTED_QUERY,
        "INVALID_DEVICE",
        "INVALID_CONTEXT",
        "OUT_OF_RESOURCES",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urVirtualMemReserve",
        154,
        "Reserves a range of addresses, at `pStart` if that is given and free.",
        "hContext handle:context, pStart pointer?, size size",
        "pointer",
    ),
    _function(
        "urVirtualMemFree",
        155,
        "Gives back a reserved range.",
        "hContext handle:context, pStart pointer, size size",
        "None",
    ),
    _function(
        "urVirtualMemMap",
        156,
        "Maps physical memory into a reserved range.",
        "hContext handle:context, pStart pointer, size size, hPhysicalMem handle:physical_mem, offset size, "
        "flags flags:VirtualMemAccessFlags",
        "None",
    ),
    _function(
        "urVirtualMemUnmap",
        157,
        "Unmaps a mapped range, which can then be mapped again.",
        "hContext handle:context, pStart pointer, size size",
        "None",
    ),
    _function(
        "urVirtualMemSetAccess",
        158,
        "Changes the access to a mapped range.",
        "hContext handle:context, pStart pointer, size size, flags flags:VirtualMemAccessFlags",
        "None",
    ),
    _function(
        "urVirtualMemGetInfo",
        159,
        "Asks about a mapped range.",
        "hContext handle:context, pStart pointer, size size, propName enum:VirtualMemInfo",
        "info:VirtualMemInfo",
    ),
    _function(
        "urPhysicalMemCreate",
        160,
        "Makes physical memory, which virtual memory can be mapped to.",
        "hContext handle:context, hDevice handle:device, size size, pProperties struct:PhysicalMemProperties?",
        "handle:physical_mem",
        ("INVALID_SIZE", "`size` is no multiple of `VirtualMemGranularityInfo.MINIMUM`"),
    ),
    _function(
        "urPhysicalMemRetain", 161, "Takes a reference to physical memory.", "hPhysicalMem handle:physical_mem", "None"
    ),
    _function(
        "urPhysicalMemRelease",
        162,
        "Gives up a reference to physical memory.",
        "hPhysicalMem handle:physical_mem",
        "None",
    ),
    _function(
        "urPhysicalMemGetInfo",
        249,
        "Asks about physical memory.",
        "hPhysicalMem handle:physical_mem, propName enum:PhysicalMemInfo",
        "info:PhysicalMemInfo",
    ),
    _function(
        "urEventCreateExp",
        322,
        "Makes a reusable event, which `urEnqueueEventsWaitWithBarrierExt` signals. It belongs to no command yet.",
        "hContext handle:context, hDevice handle:device, pEventDesc struct:ExpEventDesc",
        "handle:event",
        "INVALID_CONTEXT",
        (
            "UNSUPPORTED_FEATURE",
            "`pEventDesc.flags` has `ENABLE_PROFILING` and the platform cannot profile single events",
        ),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        rules=(
            _rule(
                "ERROR_INVALID_VALUE",
                "pEventDesc.flags & ExpEventFlags.IPC_EXP and pEventDesc.flags & ExpEventFlags.ENABLE_PROFILING",
                "`pEventDesc.flags` has both `IPC_EXP` and `ENABLE_PROFILING`",
                "adapter",
            ),
        ),
    ),
    _function(
        "urEventGetInfo",
        40,
        "Asks about an event.",
        "hEvent handle:event, propName enum:EventInfo",
        "info:EventInfo",
        _UNSUPPORTED_QUERY,
        "INVALID_EVENT",
        "OUT_OF_RESOURCES",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urEventGetProfilingInfo",
        41,
        "Asks when the command behind an event ran.",
        "hEvent handle:event, propName enum:ProfilingInfo",
        "info:ProfilingInfo",
        (
            "PROFILING_INFO_NOT_AVAILABLE",
            "the queue of `hEvent` was made without `QueueFlags.PROFILING_ENABLE`",
        ),
        "INVALID_EVENT",
        "OUT_OF_RESOURCES",
        "OUT_OF_HOST_MEMORY",
        _UNSUPPORTED_QUERY,
        notes="A reusable event made with `ExpEventFlags.ENABLE_PROFILING` has its START and END on any queue.",
    ),
    _function(
        "urEventWait",
        42,
        "Waits on the host until events are complete.",
        "phEventWaitList sequence:event",
        "None",
        ("IN_EVENT_LIST_EXEC_STATUS", "an event in `phEventWaitList` has the status `EventStatus.ERROR`"),
        "INVALID_EVENT",
        "INVALID_CONTEXT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        rules=(
            _rule("ERROR_INVALID_VALUE", "len(phEventWaitList) == 0", "`phEventWaitList` is empty"),
            _rule(
                "ERROR_INVALID_EVENT",
                "any(event is None for event in phEventWaitList)",
                "an element of `phEventWaitList` is null",
                "documented",
            ),
        ),
    ),
    _function(
        "urEventRetain",
        43,
        "Takes a reference to an event.",
        "hEvent handle:event",
        "None",
        "INVALID_EVENT",
        "OUT_OF_RESOURCES",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urEventRelease",
        44,
        "Gives up a reference to an event.",
        "hEvent handle:event",
        "None",
        "INVALID_EVENT",
        "OUT_OF_RESOURCES",
        "OUT_OF_HOST_MEMORY",
    ),
    _function(
        "urEnqueueEventsWait",
        18,
        "A command that completes after the events, or after all commands before it if there are none.",
        "hQueue handle:queue, phEventWaitList sequence:event?",
        "handle:event",
        "INVALID_QUEUE",
        "INVALID_EVENT",
        *_WAIT_LIST_OTHERS,
        "INVALID_VALUE",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        rules=(_WAIT_LIST_RULE,),
    ),
    _function(
        "urEnqueueEventsWaitWithBarrier",
        19,
        "As `urEnqueueEventsWait`, and the commands after it wait for it.",
        "hQueue handle:queue, phEventWaitList sequence:event?",
        "handle:event",
        "INVALID_QUEUE",
        "INVALID_EVENT",
        *_WAIT_LIST_OTHERS,
        "INVALID_VALUE",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        rules=(_WAIT_LIST_RULE,),
    ),
    _function(
        "urEnqueueEventsWaitWithBarrierExt",
        246,
        "As `urEnqueueEventsWaitWithBarrier`, with properties; it can signal a reusable event.",
        "hQueue handle:queue, pProperties struct:ExpEnqueueExtProperties?, phEventWaitList sequence:event?, "
        "phEvent handle:event?",
        "handle:event",
        "INVALID_QUEUE",
        "INVALID_EVENT",
        *_WAIT_LIST_OTHERS,
        "INVALID_VALUE",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        rules=(_WAIT_LIST_RULE,),
        notes=(
            "`phEvent` is an event of `urEventCreateExp`, which is signalled and returned; `None` makes a new event. "
            "It must not be an element of `phEventWaitList`, and the device of `hQueue` must answer true to "
            "`DeviceInfo.REUSABLE_EVENTS_SUPPORT_EXP`; UR names no result for the contrary."
        ),
    ),
    _function(
        "urIPCGetMemHandleExp",
        289,
        "The handle data of device USM memory.",
        "hContext handle:context, pMem pointer",
        "bytes",
        "INVALID_CONTEXT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        unchecked=("pMem",),
        notes=(
            "UR neither compares `pMem` with null nor names a result for an address that cannot be shared; its "
            "adapters answer `ERROR_INVALID_ARGUMENT`."
        ),
    ),
    _function(
        "urIPCPutMemHandleExp",
        290,
        "Gives handle data back. Opened memory stays.",
        "hContext handle:context, pIPCMemHandleData bytes",
        "None",
        "INVALID_CONTEXT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urIPCOpenMemHandleExp",
        291,
        "The memory that handle data name, as an address in this process.",
        "hContext handle:context, hDevice handle:device, pIPCMemHandleData bytes",
        "pointer",
        "INVALID_CONTEXT",
        ("INVALID_VALUE", f"the length of `pIPCMemHandleData` {_HANDLE_SIZE}"),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urIPCCloseMemHandleExp",
        292,
        "Closes opened memory.",
        "hContext handle:context, pMem pointer",
        "None",
        "INVALID_CONTEXT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urIPCGetPhysMemHandleExp",
        316,
        "The handle data of physical memory.",
        "hContext handle:context, hPhysMem handle:physical_mem",
        "bytes",
        "INVALID_CONTEXT",
        ("INVALID_ARGUMENT", "`hPhysMem` was made without `PhysicalMemFlags.ENABLE_IPC`"),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urIPCPutPhysMemHandleExp",
        317,
        "Gives handle data back. Opened physical memory stays.",
        "hContext handle:context, pIPCPhysMemHandleData bytes",
        "None",
        "INVALID_CONTEXT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urIPCOpenPhysMemHandleExp",
        318,
        "The physical memory that handle data name.",
        "hContext handle:context, hDevice handle:device, pIPCPhysMemHandleData bytes",
        "handle:physical_mem",
        "INVALID_CONTEXT",
        ("INVALID_VALUE", f"the length of `pIPCPhysMemHandleData` {_HANDLE_SIZE}"),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urIPCClosePhysMemHandleExp",
        319,
        "Closes opened physical memory: gives up a reference.",
        "hContext handle:context, hPhysMem handle:physical_mem",
        "None",
        "INVALID_CONTEXT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urIPCGetEventHandleExp",
        323,
        "The handle data of an event.",
        "hEvent handle:event",
        "bytes",
        ("INVALID_EVENT", "`hEvent` was made without `ExpEventFlags.IPC_EXP`"),
        ("INVALID_EVENT", "`hEvent` comes from `urIPCOpenEventHandleExp`"),
        ("UNSUPPORTED_FEATURE", "`hEvent` has profiling or timestamps"),
        ("UNSUPPORTED_FEATURE", "the device of `hEvent` answers false to `DeviceInfo.IPC_EVENT_SUPPORT_EXP`"),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
    ),
    _function(
        "urIPCPutEventHandleExp",
        324,
        "Gives handle data back. The event and its opened twins stay.",
        "hContext handle:context, pIPCEventHandleData bytes",
        "None",
        "INVALID_CONTEXT",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        notes="Only the process that got the data may give them back.",
    ),
    _function(
        "urIPCOpenEventHandleExp",
        325,
        "An event that shares its state with the one that handle data name.",
        "hContext handle:context, pIPCEventHandleData bytes",
        "handle:event",
        "INVALID_CONTEXT",
        ("INVALID_VALUE", f"the length of `pIPCEventHandleData` {_HANDLE_SIZE}"),
        (
            "UNSUPPORTED_FEATURE",
            "a device of `hContext` answers false to `DeviceInfo.IPC_EVENT_SUPPORT_EXP`",
        ),
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_RESOURCES",
        notes="There is no close: the last `urEventRelease` closes the event.",
    ),
)

FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType({function.name: function for function in _FUNCTIONS})


def _types(kinds: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: kind for kind, names in kinds.items() for name in names.split()})


INFO_TYPES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "AdapterInfo": _types(
            {
                "enum:Backend": "BACKEND",
                "uint32": "REFERENCE_COUNT VERSION",
            }
        ),
        "PlatformInfo": _types(
            {
                "string": "NAME VENDOR_NAME VERSION EXTENSIONS PROFILE",
                "enum:Backend": "BACKEND",
                "handle:adapter": "ADAPTER",
            }
        ),
        "DeviceInfo": _types(
            {
                "enum:DeviceType": "TYPE",
                "uint32": (
                    "VENDOR_ID DEVICE_ID MAX_COMPUTE_UNITS MAX_WORK_ITEM_DIMENSIONS PREFERRED_VECTOR_WIDTH_CHAR "
                    "PREFERRED_VECTOR_WIDTH_SHORT PREFERRED_VECTOR_WIDTH_INT PREFERRED_VECTOR_WIDTH_LONG "
                    "PREFERRED_VECTOR_WIDTH_FLOAT PREFERRED_VECTOR_WIDTH_DOUBLE PREFERRED_VECTOR_WIDTH_HALF "
                    "NATIVE_VECTOR_WIDTH_CHAR NATIVE_VECTOR_WIDTH_SHORT NATIVE_VECTOR_WIDTH_INT "
                    "NATIVE_VECTOR_WIDTH_LONG NATIVE_VECTOR_WIDTH_FLOAT NATIVE_VECTOR_WIDTH_DOUBLE "
                    "NATIVE_VECTOR_WIDTH_HALF MAX_CLOCK_FREQUENCY MEMORY_CLOCK_RATE ADDRESS_BITS MAX_READ_IMAGE_ARGS "
                    "MAX_WRITE_IMAGE_ARGS MAX_READ_WRITE_IMAGE_ARGS MAX_SAMPLERS MEM_BASE_ADDR_ALIGN "
                    "GLOBAL_MEM_CACHELINE_SIZE MAX_CONSTANT_ARGS REFERENCE_COUNT PARTITION_MAX_SUB_DEVICES "
                    "MAX_NUM_SUB_GROUPS GPU_EU_COUNT GPU_EU_SIMD_WIDTH GPU_EU_SLICES GPU_EU_COUNT_PER_SUBSLICE "
                    "GPU_SUBSLICES_PER_SLICE GPU_HW_THREADS_PER_EU MAX_COMPUTE_QUEUE_INDICES MEMORY_BUS_WIDTH "
                    "MAX_REGISTERS_PER_WORK_GROUP IP_VERSION NUM_COMPUTE_UNITS NODE_MASK "
                    "PREFERRED_VECTOR_WIDTH_LONG_LONG NATIVE_VECTOR_WIDTH_LONG_LONG XE_STACK_COUNT "
                    "XE_REGIONS_PER_STACK XE_CLUSTERS_PER_REGION XE_CORES_PER_CLUSTER EUS_PER_XE_CORE "
                    "MAX_LANES_PER_HW_THREAD IMAGE_PITCH_ALIGN_EXP MIPMAP_MAX_ANISOTROPY_EXP"
                ),
                "size[]": "MAX_WORK_ITEM_SIZES",
                "size": (
                    "MAX_WORK_GROUP_SIZE IMAGE2D_MAX_WIDTH IMAGE2D_MAX_HEIGHT IMAGE3D_MAX_WIDTH IMAGE3D_MAX_HEIGHT "
                    "IMAGE3D_MAX_DEPTH IMAGE_MAX_BUFFER_SIZE IMAGE_MAX_ARRAY_SIZE MAX_PARAMETER_SIZE "
                    "PROFILING_TIMER_RESOLUTION PRINTF_BUFFER_SIZE MAX_WORK_GROUPS MAX_IMAGE_LINEAR_WIDTH_EXP "
                    "MAX_IMAGE_LINEAR_HEIGHT_EXP MAX_IMAGE_LINEAR_PITCH_EXP"
                ),
                "flags:DeviceFpCapabilityFlags": "SINGLE_FP_CONFIG HALF_FP_CONFIG DOUBLE_FP_CONFIG",
                "flags:QueueFlags": "QUEUE_PROPERTIES QUEUE_ON_DEVICE_PROPERTIES QUEUE_ON_HOST_PROPERTIES",
                "uint64": (
                    "MAX_MEM_ALLOC_SIZE GLOBAL_MEM_CACHE_SIZE GLOBAL_MEM_SIZE GLOBAL_MEM_FREE "
                    "MAX_CONSTANT_BUFFER_SIZE LOCAL_MEM_SIZE MAX_MEMORY_BANDWIDTH"
                ),
                "bool": (
                    "IMAGE_SUPPORT ERROR_CORRECTION_SUPPORT HOST_UNIFIED_MEMORY ENDIAN_LITTLE AVAILABLE "
                    "COMPILER_AVAILABLE LINKER_AVAILABLE PREFERRED_INTEROP_USER_SYNC "
                    "SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS IMAGE_SRGB BUILD_ON_SUBDEVICE ATOMIC_64 BFLOAT16 "
                    "KERNEL_SET_SPECIALIZATION_CONSTANTS ASYNC_BARRIER MEM_CHANNEL_SUPPORT "
                    "HOST_PIPE_READ_WRITE_SUPPORT VIRTUAL_MEMORY_SUPPORT ESIMD_SUPPORT GLOBAL_VARIABLE_SUPPORT "
                    "USM_POOL_SUPPORT PROGRAM_SET_SPECIALIZATION_CONSTANTS USE_NATIVE_ASSERT "
                    "BFLOAT16_CONVERSIONS_NATIVE COMMAND_BUFFER_SUPPORT_EXP COMMAND_BUFFER_EVENT_SUPPORT_EXP "
                    "COMMAND_BUFFER_SUBGRAPH_SUPPORT_EXP BINDLESS_IMAGES_SUPPORT_EXP "
                    "BINDLESS_IMAGES_SHARED_USM_SUPPORT_EXP BINDLESS_IMAGES_1D_USM_SUPPORT_EXP "
                    "BINDLESS_IMAGES_2D_USM_SUPPORT_EXP MIPMAP_SUPPORT_EXP MIPMAP_ANISOTROPY_SUPPORT_EXP "
                    "MIPMAP_LEVEL_REFERENCE_SUPPORT_EXP EXTERNAL_MEMORY_IMPORT_SUPPORT_EXP "
                    "EXTERNAL_SEMAPHORE_IMPORT_SUPPORT_EXP CUBEMAP_SUPPORT_EXP "
                    "CUBEMAP_SEAMLESS_FILTERING_SUPPORT_EXP BINDLESS_SAMPLED_IMAGE_FETCH_1D_USM_SUPPORT_EXP "
                    "BINDLESS_SAMPLED_IMAGE_FETCH_1D_SUPPORT_EXP BINDLESS_SAMPLED_IMAGE_FETCH_2D_USM_SUPPORT_EXP "
                    "BINDLESS_SAMPLED_IMAGE_FETCH_2D_SUPPORT_EXP BINDLESS_SAMPLED_IMAGE_FETCH_3D_SUPPORT_EXP "
                    "TIMESTAMP_RECORDING_SUPPORT_EXP IMAGE_ARRAY_SUPPORT_EXP "
                    "BINDLESS_UNIQUE_ADDRESSING_PER_DIM_SUPPORT_EXP BINDLESS_SAMPLE_1D_USM_SUPPORT_EXP "
                    "BINDLESS_SAMPLE_2D_USM_SUPPORT_EXP BINDLESS_IMAGES_GATHER_SUPPORT_EXP "
                    "ENQUEUE_NATIVE_COMMAND_SUPPORT_EXP LOW_POWER_EVENTS_SUPPORT_EXP IPC_MEMORY_SUPPORT_EXP "
                    "IPC_PHYSICAL_MEMORY_SUPPORT_EXP REUSABLE_EVENTS_SUPPORT_EXP IPC_EVENT_SUPPORT_EXP "
                    "ASYNC_USM_ALLOCATIONS_SUPPORT_EXP CLOCK_SUB_GROUP_SUPPORT_EXP CLOCK_WORK_GROUP_SUPPORT_EXP "
                    "CLOCK_DEVICE_SUPPORT_EXP IS_INTEGRATED_GPU GRAPH_RECORD_AND_REPLAY_SUPPORT_EXP "
                    "USM_HOST_ALLOC_REGISTER_SUPPORT_EXP PER_EVENT_PROFILING_SUPPORT_EXP USM_P2P_SUPPORT_EXP "
                    "MULTI_DEVICE_COMPILE_SUPPORT_EXP DEVICE_WAIT_SUPPORT_EXP DYNAMIC_LINK_SUPPORT_EXP "
                    "USM_CONTEXT_MEMCPY_SUPPORT_EXP MEMORY_EXPORT_EXPORTABLE_DEVICE_MEM_EXP "
                    "ENQUEUE_HOST_TASK_SUPPORT_EXP"
                ),
                "enum:DeviceMemCacheType": "GLOBAL_MEM_CACHE_TYPE",
                "enum:DeviceLocalMemType": "LOCAL_MEM_TYPE",
                "flags:DeviceExecCapabilityFlags": "EXECUTION_CAPABILITIES",
                "string": (
                    "BUILT_IN_KERNELS IL_VERSION NAME VENDOR DRIVER_VERSION PROFILE VERSION BACKEND_RUNTIME_VERSION "
                    "EXTENSIONS PCI_ADDRESS"
                ),
                "handle:platform": "PLATFORM",
                "handle:device": "PARENT_DEVICE COMPOSITE_DEVICE",
                "enum:DevicePartition[]": "SUPPORTED_PARTITIONS",
                "flags:DeviceAffinityDomainFlags": "PARTITION_AFFINITY_DOMAIN",
                "struct:DevicePartitionProperty[]": "PARTITION_TYPE",
                "uint32[]": "SUB_GROUP_SIZES_INTEL",
                "flags:DeviceUSMAccessCapabilityFlags": (
                    "USM_HOST_SUPPORT USM_DEVICE_SUPPORT USM_SINGLE_SHARED_SUPPORT USM_CROSS_SHARED_SUPPORT "
                    "USM_SYSTEM_SHARED_SUPPORT"
                ),
                "bytes": "UUID LUID",
                "flags:MemoryOrderCapabilityFlags": "ATOMIC_MEMORY_ORDER_CAPABILITIES ATOMIC_FENCE_ORDER_CAPABILITIES",
                "flags:MemoryScopeCapabilityFlags": "ATOMIC_MEMORY_SCOPE_CAPABILITIES ATOMIC_FENCE_SCOPE_CAPABILITIES",
                "size[3]": "MAX_WORK_GROUPS_3D",
                "handle:device[]": "COMPONENT_DEVICES",
                "flags:DeviceThrottleReasonsFlags": "CURRENT_CLOCK_THROTTLE_REASONS",
                "int32": "FAN_SPEED MIN_POWER_LIMIT MAX_POWER_LIMIT",
                "flags:KernelLaunchPropertiesFlags": "KERNEL_LAUNCH_CAPABILITIES",
                "flags:DeviceCommandBufferUpdateCapabilityFlags": "COMMAND_BUFFER_UPDATE_CAPABILITIES_EXP",
                "flags:ExpDevice2DBlockArrayCapabilityFlags": "_2D_BLOCK_ARRAY_CAPABILITIES_EXP",
            }
        ),
        "USMAllocInfo": _types(
            {
                "enum:USMType": "TYPE",
                "pointer": "BASE_PTR",
                "size": "SIZE",
                "handle:device": "DEVICE",
                "handle:usm_pool": "POOL",
            }
        ),
        "VirtualMemGranularityInfo": _types(
            {
                "size": "MINIMUM RECOMMENDED",
            }
        ),
        "VirtualMemInfo": _types(
            {
                "flags:VirtualMemAccessFlags": "ACCESS_MODE",
            }
        ),
        "PhysicalMemInfo": _types(
            {
                "handle:context": "CONTEXT",
                "handle:device": "DEVICE",
                "size": "SIZE",
                "struct:PhysicalMemProperties": "PROPERTIES",
                "uint32": "REFERENCE_COUNT",
            }
        ),
        "EventInfo": _types(
            {
                "handle:queue": "COMMAND_QUEUE",
                "handle:context": "CONTEXT",
                "enum:Command": "COMMAND_TYPE",
                "enum:EventStatus": "COMMAND_EXECUTION_STATUS",
                "uint32": "REFERENCE_COUNT",
            }
        ),
        "ProfilingInfo": _types(
            {
                "uint64": "COMMAND_QUEUED COMMAND_SUBMIT COMMAND_START COMMAND_END COMMAND_COMPLETE",
            }
        ),
    }
)
"""Kinds of the values that info queries answer: class of `_enums` -> member -> kind."""

OPTIONAL_QUERIES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        info: frozenset(names.split())
        for info, names in {
            "DeviceInfo": (
                "DEVICE_ID MEMORY_CLOCK_RATE MAX_READ_WRITE_IMAGE_ARGS GLOBAL_MEM_FREE IL_VERSION UUID PCI_ADDRESS "
                "GPU_EU_COUNT GPU_EU_SIMD_WIDTH GPU_EU_SLICES GPU_EU_COUNT_PER_SUBSLICE GPU_SUBSLICES_PER_SLICE "
                "GPU_HW_THREADS_PER_EU MAX_MEMORY_BANDWIDTH MEMORY_BUS_WIDTH MAX_REGISTERS_PER_WORK_GROUP IP_VERSION "
                "COMPONENT_DEVICES COMPOSITE_DEVICE CURRENT_CLOCK_THROTTLE_REASONS FAN_SPEED MIN_POWER_LIMIT "
                "MAX_POWER_LIMIT LUID NODE_MASK XE_STACK_COUNT XE_REGIONS_PER_STACK XE_CLUSTERS_PER_REGION "
                "XE_CORES_PER_CLUSTER EUS_PER_XE_CORE MAX_LANES_PER_HW_THREAD"
            ),
            "USMAllocInfo": "POOL",
            "ProfilingInfo": "COMMAND_QUEUED COMMAND_SUBMIT COMMAND_START COMMAND_END COMMAND_COMPLETE",
        }.items()
    }
)
"""The queries that UR lets an adapter leave unanswered (`ERROR_UNSUPPORTED_ENUMERATION`)."""
