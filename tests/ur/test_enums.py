"""The numbers and declarations of `xpushare.ur`."""

from __future__ import annotations

import ast
import dataclasses
import re
from enum import IntEnum, IntFlag

import pytest

from xpushare.common.result import Result
from xpushare.ur import _enums, _structs
from xpushare.ur._derived import CALLBACKS
from xpushare.ur._enums import INVALID_BITS, DeviceInfo, invalid_bits
from xpushare.ur._spec import FUNCTIONS, INFOS, UNIVERSAL_ERRORS

# The list in the public contract (API.md, section 8), as it is written there.
COVERED = """
urAdapterGet, urAdapterGetInfo, urPlatformGet, urPlatformGetInfo, urDeviceGet, urDeviceGetInfo,
urContextCreate/Retain/Release, urUSMHostAlloc/DeviceAlloc/SharedAlloc/Free/GetMemAllocInfo,
urQueueCreate/Retain/Release/Finish, urEnqueueUSMMemcpy/Fill,
urVirtualMem{GranularityGetInfo,Reserve,Free,Map,Unmap,SetAccess,GetInfo}, urPhysicalMem{Create,Retain,Release,GetInfo},
urEvent{CreateExp,GetInfo,GetProfilingInfo,Wait,Retain,Release}, urEnqueueEventsWait, urEnqueueEventsWaitWithBarrier,
urEnqueueEventsWaitWithBarrierExt, urIPC{Get,Put,Open,Close}MemHandleExp, urIPC{Get,Put,Open,Close}PhysMemHandleExp,
urIPC{Get,Put,Open}EventHandleExp
"""
# "The further functions that the issue on the loader names", there.
COVERED += """
urAdapter{Retain,Release,GetLastError,SetLoggerCallback,SetLoggerCallbackLevel}, urDevice{Retain,Release,GetSelected},
urPlatform{GetApiVersion,GetBackendOption},
urContextGetInfo, urQueue{GetInfo,Flush}, urEventSetCallback,
urEnqueueUSM{Prefetch,Advise,Memcpy2D,Fill2D},
urUsmP2P{EnablePeerAccessExp,DisablePeerAccessExp,PeerAccessGetInfoExp}, urEnqueueTimestampRecordingExp,
urDeviceGetGlobalTimestamps, urEnqueueHostTaskExp, urUSM{ImportExp,ReleaseExp,HostAllocRegisterExp},
urUSM{HostAllocUnregisterExp,ContextMemcpyExp},
urMemoryExport{AllocExportableMemoryExp,FreeExportableMemoryExp,ExportMemoryHandleExp},
urMem{BufferCreate,BufferPartition,Retain,Release,GetInfo},
urEnqueueMemBuffer{Read,Write,Copy,Fill,ReadRect,WriteRect,CopyRect,Map}, urEnqueueMemUnmap,
urUSMPool{Create,Retain,Release,GetInfo}, urDeviceWaitExp,
urUSMPool{CreateExp,DestroyExp,GetDefaultDevicePoolExp,SetDevicePoolExp,GetDevicePoolExp,TrimToExp,GetInfoExp,SetInfoExp},
urEnqueueUSM{DeviceAllocExp,SharedAllocExp,HostAllocExp,FreeExp},
urPlatform{GetNativeHandle,CreateWithNativeHandle}, urDevice{GetNativeHandle,CreateWithNativeHandle},
urContext{GetNativeHandle,CreateWithNativeHandle}, urQueue{GetNativeHandle,CreateWithNativeHandle},
urEvent{GetNativeHandle,CreateWithNativeHandle}
"""
SLASHED = {"urContextCreate": "urContext", "urUSMHostAlloc": "urUSM", "urQueueCreate": "urQueue"}
SLASHED["urEnqueueUSMMemcpy"] = "urEnqueueUSM"


def covered() -> set[str]:
    names: set[str] = set()
    for item in re.findall(r"[^\s,{]+(?:\{[^}]*\}\w*)?", COVERED):
        if braces := re.fullmatch(r"(\w+)\{([^}]*)\}(\w*)", item):
            names |= {braces[1] + middle + braces[3] for middle in braces[2].split(",")}
        else:
            first, *others = item.split("/")
            names |= {first, *(SLASHED[first] + other for other in others)}
    return names


def classes(base: type) -> list[type]:
    return [c for c in vars(_enums).values() if isinstance(c, type) and issubclass(c, base) and c is not base]


ENUMS = classes(IntEnum)
FLAGS = classes(IntFlag)
STRUCTS = [c for c in vars(_structs).values() if isinstance(c, type) and dataclasses.is_dataclass(c)]


@pytest.mark.parametrize(
    ("name", "number"),
    {
        "SUCCESS": 0,
        "ERROR_INVALID_VALUE": 4,
        "ERROR_INVALID_CONTEXT": 5,
        "ERROR_INVALID_MEM_OBJECT": 11,
        "ERROR_INVALID_EVENT": 12,
        "ERROR_INVALID_EVENT_WAIT_LIST": 13,
        "ERROR_PROFILING_INFO_NOT_AVAILABLE": 17,
        "ERROR_INVALID_DEVICE": 19,
        "ERROR_INVALID_KERNEL_ARGS": 27,
        "ERROR_UNINITIALIZED": 37,
        "ERROR_OUT_OF_HOST_MEMORY": 38,
        "ERROR_OUT_OF_DEVICE_MEMORY": 39,
        "ERROR_OUT_OF_RESOURCES": 40,
        "ERROR_UNSUPPORTED_VERSION": 43,
        "ERROR_UNSUPPORTED_FEATURE": 44,
        "ERROR_INVALID_ARGUMENT": 45,
        "ERROR_INVALID_NULL_HANDLE": 46,
        "ERROR_HANDLE_OBJECT_IN_USE": 47,
        "ERROR_INVALID_NULL_POINTER": 48,
        "ERROR_INVALID_SIZE": 49,
        "ERROR_INVALID_ENUMERATION": 53,
        "ERROR_UNSUPPORTED_ENUMERATION": 54,
        "ERROR_ADAPTER_SPECIFIC": 66,
        "ERROR_LAYER_NOT_PRESENT": 67,
        "ERROR_IN_EVENT_LIST_EXEC_STATUS": 68,
        "ERROR_INVALID_COMMAND_BUFFER_COMMAND_HANDLE_EXP": 0x1003,
        "ERROR_UNKNOWN": 0x7FFFFFFE,
    }.items(),
)
def test_result_numbers(name: str, number: int) -> None:
    assert Result[name] == number
    assert Result(number).name == name


def test_results_are_complete() -> None:
    expected = {*range(78), *range(0x1000, 0x1004), 0x7FFFFFFE}
    assert {int(result) for result in Result} == expected


@pytest.mark.parametrize(
    ("member", "number"),
    [
        (DeviceInfo.TYPE, 0),
        (DeviceInfo.VIRTUAL_MEMORY_SUPPORT, 114),
        (DeviceInfo.BFLOAT16, 104),
        (DeviceInfo.LOW_POWER_EVENTS_SUPPORT_EXP, 0x2021),
        (DeviceInfo["_2D_BLOCK_ARRAY_CAPABILITIES_EXP"], 0x2022),
        (DeviceInfo.IPC_MEMORY_SUPPORT_EXP, 0x2023),
        (DeviceInfo.IPC_PHYSICAL_MEMORY_SUPPORT_EXP, 0x2024),
        (DeviceInfo.REUSABLE_EVENTS_SUPPORT_EXP, 0x2025),
        (DeviceInfo.IPC_EVENT_SUPPORT_EXP, 0x2026),
        (DeviceInfo.PER_EVENT_PROFILING_SUPPORT_EXP, 0x20A0),
        (DeviceInfo.ENQUEUE_HOST_TASK_SUPPORT_EXP, 0x9000),
        (_enums.VirtualMemGranularityInfo.MINIMUM, 0x30100),
        (_enums.VirtualMemGranularityInfo.RECOMMENDED, 0x30101),
        (_enums.VirtualMemAccessFlags.NONE, 1),
        (_enums.VirtualMemAccessFlags.READ_WRITE, 2),
        (_enums.VirtualMemAccessFlags.READ_ONLY, 4),
        (_enums.VirtualMemInfo.ACCESS_MODE, 0),
        (_enums.PhysicalMemFlags.ENABLE_IPC, 2),
        (_enums.PhysicalMemInfo.CONTEXT, 0),
        (_enums.PhysicalMemInfo.DEVICE, 1),
        (_enums.PhysicalMemInfo.SIZE, 2),
        (_enums.PhysicalMemInfo.PROPERTIES, 3),
        (_enums.PhysicalMemInfo.REFERENCE_COUNT, 4),
        (_enums.ExpEventFlags.ENABLE_PROFILING, 1),
        (_enums.ExpEventFlags.IPC_EXP, 2),
        (_enums.ExpEnqueueExtFlags.LOW_POWER_EVENTS_SUPPORT, 1 << 11),
        (_enums.Command.EVENTS_WAIT, 1),
        (_enums.Command.EVENTS_WAIT_WITH_BARRIER, 2),
        (_enums.EventInfo.COMMAND_QUEUE, 0),
        (_enums.EventInfo.CONTEXT, 1),
        (_enums.EventInfo.COMMAND_TYPE, 2),
        (_enums.EventInfo.COMMAND_EXECUTION_STATUS, 3),
        (_enums.EventInfo.REFERENCE_COUNT, 4),
        (_enums.EventStatus.COMPLETE, 0),
        (_enums.EventStatus.RUNNING, 1),
        (_enums.EventStatus.SUBMITTED, 2),
        (_enums.EventStatus.QUEUED, 3),
        (_enums.EventStatus.ERROR, 4),
        (_enums.ProfilingInfo.COMMAND_QUEUED, 0),
        (_enums.ProfilingInfo.COMMAND_SUBMIT, 1),
        (_enums.ProfilingInfo.COMMAND_START, 2),
        (_enums.ProfilingInfo.COMMAND_END, 3),
        (_enums.ProfilingInfo.COMMAND_COMPLETE, 4),
        (_enums.DeviceType.ALL, 2),
        (_enums.Backend.OFFLOAD, 0x100),
        (_enums.USMType.DEVICE, 2),
    ],
    ids=str,
)
def test_enumeration_numbers(member: int, number: int) -> None:
    assert member == number


@pytest.mark.parametrize(
    ("flags", "mask"),
    [
        (_enums.VirtualMemAccessFlags, 0xFFFFFFF8),
        (_enums.PhysicalMemFlags, 0xFFFFFFFD),
        (_enums.ExpEventFlags, 0xFFFFFFFC),
        (_enums.ExpEnqueueExtFlags, 0xFFFFF7FF),
    ],
)
def test_masks(flags: type[IntFlag], mask: int) -> None:
    assert INVALID_BITS[flags] == mask


@pytest.mark.parametrize("flags", FLAGS)
def test_every_flag_set_keeps_and_refuses_unknown_bits(flags: type[IntFlag]) -> None:
    known = 0
    for flag in flags:
        known |= int(flag)
        assert invalid_bits(flags, flag) == 0
    assert INVALID_BITS[flags] == known ^ 0xFFFFFFFF
    assert invalid_bits(flags, 0) == 0
    assert invalid_bits(flags, known | 1 << 31) == 1 << 31
    assert invalid_bits(flags, 1 << 40) == 1 << 40
    assert invalid_bits(flags, -1) != 0
    assert int(flags(1 << 31)) == 1 << 31
    assert invalid_bits(flags, flags(1 << 31)) == 1 << 31


@pytest.mark.parametrize("enumeration", [Result, *ENUMS])
def test_enumerations_have_no_aliases(enumeration: type[IntEnum]) -> None:
    assert len(enumeration.__members__) == len(list(enumeration))
    prefixed = enumeration is _enums.ExpPeerInfo  # whose constants are UR_EXP_PEER_INFO_UR_…
    assert not any(name.startswith("UR_") != prefixed or "FORCE" in name for name in enumeration.__members__)


def test_all_enumerations_are_exported() -> None:
    assert {c.__name__ for c in [*ENUMS, *FLAGS]} | {"INVALID_BITS", "invalid_bits"} == set(_enums.__all__)
    assert set(INVALID_BITS) == set(FLAGS)


@pytest.mark.parametrize("struct", STRUCTS)
def test_structs(struct: type) -> None:
    fields = dataclasses.fields(struct)
    assert [field.name for field in fields] == list(_structs.FIELD_KINDS[struct.__name__])
    assert all(field.default == 0 for field in fields)
    assert struct() == struct(*(0 for _ in fields))
    assert struct(*(-1 for _ in fields)) != struct()
    assert struct.__name__ in _structs.__all__


def test_structure_types() -> None:
    assert _structs.STRUCTURE_TYPES["PhysicalMemProperties"] == 37
    assert _structs.STRUCTURE_TYPES["ExpEventDesc"] == 0x8000
    assert _structs.STRUCTURE_TYPES["ExpEnqueueExtProperties"] == 0x4000


def test_every_function_of_the_contract_is_declared() -> None:
    assert len(covered()) == 124
    assert set(FUNCTIONS) >= covered()


@pytest.mark.parametrize(
    ("name", "number"),
    {
        "urVirtualMemGranularityGetInfo": 153,
        "urVirtualMemGetInfo": 159,
        "urPhysicalMemCreate": 160,
        "urPhysicalMemRetain": 161,
        "urPhysicalMemRelease": 162,
        "urPhysicalMemGetInfo": 249,
        "urIPCGetMemHandleExp": 289,
        "urIPCPutMemHandleExp": 290,
        "urIPCOpenMemHandleExp": 291,
        "urIPCCloseMemHandleExp": 292,
        "urIPCGetPhysMemHandleExp": 316,
        "urIPCClosePhysMemHandleExp": 319,
        "urEventCreateExp": 322,
        "urIPCGetEventHandleExp": 323,
        "urIPCPutEventHandleExp": 324,
        "urIPCOpenEventHandleExp": 325,
        "urEventGetInfo": 40,
        "urEventRelease": 44,
        "urEventSetCallback": 47,
        "urMemBufferCreate": 64,
        "urMemGetInfo": 70,
        "urEnqueueMemBufferRead": 20,
        "urEnqueueMemUnmap": 31,
        "urUSMPoolCreate": 112,
        "urUSMPoolGetInfo": 120,
        "urUSMPoolDestroyExp": 255,
        "urUSMPoolSetInfoExp": 265,
        "urEnqueueUSMFreeExp": 253,
        "urPlatformGetApiVersion": 74,
        "urQueueGetInfo": 91,
        "urQueueFlush": 98,
        "urAdapterRelease": 177,
        "urAdapterGetLastError": 180,
        "urDeviceGetSelected": 217,
        "urAdapterSetLoggerCallback": 266,
    }.items(),
)
def test_function_ids(name: str, number: int) -> None:
    assert FUNCTIONS[name].function_id == number


def test_function_ids_differ() -> None:
    assert len({function.function_id for function in FUNCTIONS.values()}) == len(FUNCTIONS)


HANDLES = {"adapter", "platform", "device", "context", "queue", "event", "mem", "physical_mem", "usm_pool"}
PLAIN = {"pointer", "size", "uint32", "int32", "uint64", "bool", "string", "bytes", "pattern", "data"}


def check_kind(kind: str) -> None:
    kind = re.sub(r"\?$|\[\d*\]$", "", kind)
    family, colon, name = kind.partition(":")
    if not colon:
        assert kind in PLAIN
    elif family in ("handle", "sequence"):
        assert name in HANDLES
    elif family in ("struct", "value"):
        assert (name in _structs.BY_VALUE) == (family == "value")
        assert getattr(_structs, name) in STRUCTS
    elif family == "callback":
        assert name in CALLBACKS
    elif family == "info":
        assert name in INFOS
    else:
        assert getattr(_enums, name) in {"enum": ENUMS, "flags": FLAGS}[family]


def test_every_kind_exists() -> None:
    kinds = {kind for fields in _structs.FIELD_KINDS.values() for kind in fields.values()}
    kinds |= {kind for info in INFOS.values() for kind in info.kinds.values()}
    for function in FUNCTIONS.values():
        kinds |= {arg.kind for arg in function.args}
        kinds |= {*function.returns.split("+")} - {"None"}
    for kind in kinds:
        check_kind(kind)


@pytest.mark.parametrize("info", INFOS)
def test_every_query_has_a_kind(info: str) -> None:
    assert INFOS[info].enumeration is getattr(_enums, info)
    assert set(INFOS[info].kinds) == set(INFOS[info].enumeration.__members__)
    assert INFOS[info].optional <= set(INFOS[info].kinds)


def test_info_queries_answer_what_they_are_asked() -> None:
    for function in FUNCTIONS.values():
        if function.returns.startswith("info:"):
            asked = function.args[-1]
            assert asked.name == "propName"
            assert asked.kind == function.returns.replace("info:", "enum:")


@pytest.mark.parametrize(
    ("function", "top"),
    {
        "urAdapterGetInfo": "AdapterInfo.VERSION",
        "urPlatformGetInfo": "PlatformInfo.ADAPTER",
        "urContextGetInfo": "ContextInfo.USM_FILL2D_SUPPORT",
        "urDeviceGet": "DeviceType.CUSTOM",
        "urDeviceGetInfo": "DeviceInfo.ENQUEUE_HOST_TASK_SUPPORT_EXP",
        "urUSMGetMemAllocInfo": "USMAllocInfo.POOL",
        "urVirtualMemGranularityGetInfo": "VirtualMemGranularityInfo.RECOMMENDED",
        "urVirtualMemGetInfo": "VirtualMemInfo.ACCESS_MODE",
        "urMemGetInfo": "MemInfo.REFERENCE_COUNT",
        "urUSMPoolGetInfo": "USMPoolInfo.USED_HIGH_EXP",
        "urPhysicalMemGetInfo": "PhysicalMemInfo.REFERENCE_COUNT",
        "urEventGetInfo": "EventInfo.REFERENCE_COUNT",
        "urEventGetProfilingInfo": "ProfilingInfo.COMMAND_COMPLETE",
    }.items(),
)
def test_enumerations_are_compared_with_their_last_value(function: str, top: str) -> None:
    conditions = [each.condition for each in FUNCTIONS[function].errors if each.result == "ERROR_INVALID_ENUMERATION"]
    assert any(condition.endswith(f"is not in the range up to `{top}`") for condition in conditions)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors(name: str) -> None:
    function = FUNCTIONS[name]
    assert all(error.result in Result.__members__ for error in function.errors)
    assert function.errors[-3:] == UNIVERSAL_ERRORS
    assert [error.result for error in function.errors[: len(function.checks)]] == [c.result for c in function.checks]
    assert len(set(function.errors)) == len(function.errors)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_checks_are_expressions_over_the_arguments(name: str) -> None:
    function = FUNCTIONS[name]
    known = {arg.name for arg in function.args} | set(_enums.__all__) | {"any", "len", "device", "event"}
    for check in function.checks:
        used = {node.id for node in ast.walk(ast.parse(check.condition, mode="eval")) if isinstance(node, ast.Name)}
        assert used <= known
        assert used & {arg.name for arg in function.args}
        # No argument hides a class that the expression means.
        assert not {
            node.value.id
            for node in ast.walk(ast.parse(check.condition, mode="eval"))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr.isupper()
        } & {arg.name for arg in function.args}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_checks_go_pointers_handles_enumerations_rest(name: str) -> None:
    ranks = {"ERROR_INVALID_NULL_POINTER": 0, "ERROR_INVALID_NULL_HANDLE": 1, "ERROR_INVALID_ENUMERATION": 2}
    order = [ranks.get(check.result, 3) for check in FUNCTIONS[name].checks if check.origin == "layer"]
    assert order == sorted(order)


def run_checks(name: str, *args: object) -> Result:
    function = FUNCTIONS[name]
    assert len(args) == len(function.args)
    scope = {**vars(_enums), **{arg.name: value for arg, value in zip(function.args, args, strict=True)}}
    for check in function.checks:
        if eval(check.condition, scope):
            return Result[check.result]
    return Result.SUCCESS


X = object()
PROPERTIES = _structs.PhysicalMemProperties


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("urAdapterGet", (), "SUCCESS"),
        ("urDeviceGet", (X, 8), "SUCCESS"),
        ("urDeviceGet", (X, _enums.DeviceType.ALL), "SUCCESS"),
        ("urDeviceGet", (X, 9), "ERROR_INVALID_ENUMERATION"),
        ("urDeviceGetInfo", (None, DeviceInfo.NAME), "ERROR_INVALID_NULL_HANDLE"),
        ("urDeviceGetInfo", (X, 0x9000), "SUCCESS"),
        ("urDeviceGetInfo", (X, 0x9001), "ERROR_INVALID_ENUMERATION"),
        ("urDeviceGetInfo", (X, -1), "ERROR_INVALID_ENUMERATION"),
        ("urContextCreate", (None, None), "ERROR_INVALID_NULL_POINTER"),
        ("urContextCreate", ([], _structs.ContextProperties(2)), "ERROR_INVALID_ENUMERATION"),
        ("urContextCreate", ([], None), "ERROR_INVALID_SIZE"),
        ("urContextCreate", ([X, None], None), "ERROR_INVALID_NULL_HANDLE"),
        ("urContextCreate", ([X], _structs.ContextProperties(1)), "SUCCESS"),
        ("urUSMDeviceAlloc", (X, X, _structs.USMDesc(align=3), None, 0), "ERROR_INVALID_VALUE"),
        ("urUSMDeviceAlloc", (X, X, _structs.USMDesc(align=4), None, 0), "ERROR_INVALID_USM_SIZE"),
        ("urUSMDeviceAlloc", (X, X, _structs.USMDesc(1 << 17, 3), None, 0), "ERROR_INVALID_ENUMERATION"),
        ("urUSMFree", (None, 0), "ERROR_INVALID_NULL_POINTER"),
        ("urUSMFree", (None, 4096), "ERROR_INVALID_NULL_HANDLE"),
        ("urQueueCreate", (X, X, _structs.QueueProperties(0x60)), "ERROR_INVALID_QUEUE_PROPERTIES"),
        ("urQueueCreate", (X, X, _structs.QueueProperties(0x180)), "ERROR_INVALID_QUEUE_PROPERTIES"),
        ("urQueueCreate", (X, X, _structs.QueueProperties(0x20)), "SUCCESS"),
        ("urEnqueueUSMFill", (X, 1, None, 8, []), "ERROR_INVALID_NULL_POINTER"),
        ("urEnqueueUSMFill", (X, 1, b"", 8, []), "ERROR_INVALID_SIZE"),
        ("urEnqueueUSMFill", (X, 1, b"abc", 8, []), "ERROR_INVALID_SIZE"),
        ("urEnqueueUSMFill", (X, 1, b"abcd", 2, []), "ERROR_INVALID_SIZE"),
        ("urEnqueueUSMFill", (X, 1, b"abcd", 8, [None]), "ERROR_INVALID_EVENT_WAIT_LIST"),
        ("urEnqueueUSMFill", (X, 1, b"abcd", 8, None), "SUCCESS"),
        ("urVirtualMemReserve", (X, None, 0), "SUCCESS"),
        ("urVirtualMemMap", (X, 1, 1, None, 0, 8), "ERROR_INVALID_NULL_HANDLE"),
        ("urVirtualMemMap", (X, 1, 1, X, 0, 8), "ERROR_INVALID_ENUMERATION"),
        ("urVirtualMemGranularityGetInfo", (X, None, 1, 0x30101), "SUCCESS"),
        ("urVirtualMemGranularityGetInfo", (X, None, 1, 0x30102), "ERROR_INVALID_ENUMERATION"),
        ("urPhysicalMemCreate", (X, X, 1, PROPERTIES(1)), "ERROR_INVALID_ENUMERATION"),
        ("urPhysicalMemCreate", (X, X, 1, PROPERTIES(2)), "SUCCESS"),
        ("urPhysicalMemCreate", (X, X, 1, None), "SUCCESS"),
        ("urEventCreateExp", (None, None, None), "ERROR_INVALID_NULL_POINTER"),
        ("urEventCreateExp", (X, X, _structs.ExpEventDesc(4)), "ERROR_INVALID_ENUMERATION"),
        ("urEventCreateExp", (X, X, _structs.ExpEventDesc(3)), "ERROR_INVALID_VALUE"),
        ("urEventWait", (None,), "ERROR_INVALID_NULL_POINTER"),
        ("urEventWait", ([],), "ERROR_INVALID_VALUE"),
        ("urEventWait", ([None],), "ERROR_INVALID_EVENT"),
        ("urEnqueueEventsWait", (X, []), "SUCCESS"),
        ("urEnqueueEventsWaitWithBarrierExt", (X, None, [], None), "SUCCESS"),
        (
            "urEnqueueEventsWaitWithBarrierExt",
            (X, _structs.ExpEnqueueExtProperties(1), [None], None),
            "ERROR_INVALID_ENUMERATION",
        ),
        ("urMemBufferCreate", (X, 1 << 6, 0, None), "ERROR_INVALID_ENUMERATION"),
        ("urMemBufferCreate", (X, 8, 0, None), "ERROR_INVALID_BUFFER_SIZE"),
        ("urMemBufferCreate", (X, 8, 1, None), "ERROR_INVALID_HOST_PTR"),
        ("urMemBufferCreate", (X, 1, 1, _structs.BufferProperties(1)), "ERROR_INVALID_HOST_PTR"),
        ("urMemBufferCreate", (X, 1, 1, _structs.BufferProperties()), "SUCCESS"),
        ("urMemBufferPartition", (X, 1, 1, _structs.BufferRegion()), "ERROR_INVALID_ENUMERATION"),
        ("urMemBufferPartition", (X, 1, 0, _structs.BufferRegion()), "ERROR_INVALID_BUFFER_SIZE"),
        ("urUSMPoolCreate", (X, _structs.USMPoolDesc(8)), "ERROR_INVALID_ENUMERATION"),
        ("urIPCGetMemHandleExp", (None, 0), "ERROR_INVALID_NULL_HANDLE"),
        ("urIPCGetMemHandleExp", (X, 0), "SUCCESS"),
        ("urIPCOpenMemHandleExp", (None, None, None), "ERROR_INVALID_NULL_POINTER"),
        ("urIPCOpenMemHandleExp", (X, None, b""), "ERROR_INVALID_NULL_HANDLE"),
        ("urIPCClosePhysMemHandleExp", (X, None), "ERROR_INVALID_NULL_HANDLE"),
        ("urIPCPutEventHandleExp", (None, None), "ERROR_INVALID_NULL_POINTER"),
    ],
)
def test_checks_decide_as_upstream(name: str, args: tuple[object, ...], result: str) -> None:
    assert run_checks(name, *args) == Result[result]
