"""Every function: a call that succeeds, and every argument made wrong in turn. Nothing may pass or crash."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import pickle
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from ur_runtime import IPC, Runtime

import xpushare as xs
from xpushare import ur
from xpushare.ur import _structs
from xpushare.ur._derived import UNSUPPORTED
from xpushare.ur._objects import HANDLES
from xpushare.ur._spec import FUNCTIONS, Arg

R = ur.Result
W = ur.VirtualMemAccessFlags.READ_WRITE
BOX = ur.RectOffset(2, 1, 0), ur.RectOffset(), ur.RectRegion(4, 2, 2)

GOOD: dict[str, Callable[[Runtime], tuple[Any, ...]]] = {
    "urAdapterGet": lambda _rt: (),
    "urAdapterGetInfo": lambda rt: (rt.adapter, ur.AdapterInfo.BACKEND),
    "urAdapterRetain": lambda rt: (rt.adapter,),
    "urAdapterRelease": lambda rt: (rt.adapter,),
    "urAdapterGetLastError": lambda rt: (rt.adapter,),
    "urAdapterSetLoggerCallback": lambda rt: (rt.adapter, print, None, ur.LoggerLevel.QUIET),
    "urAdapterSetLoggerCallbackLevel": lambda rt: (rt.adapter, ur.LoggerLevel.QUIET),
    "urPlatformGetApiVersion": lambda rt: (rt.platform,),
    "urPlatformGetBackendOption": lambda rt: (rt.platform, "-O2"),
    "urPlatformGet": lambda rt: (rt.adapter,),
    "urPlatformGetInfo": lambda rt: (rt.platform, ur.PlatformInfo.NAME),
    "urDeviceGet": lambda rt: (rt.platform, ur.DeviceType.CPU),
    "urDeviceGetInfo": lambda rt: (rt.device, ur.DeviceInfo.UUID),
    "urDeviceGetSelected": lambda rt: (rt.platform, ur.DeviceType.CPU),
    "urDeviceRetain": lambda rt: (rt.device,),
    "urDeviceRelease": lambda rt: (rt.device,),
    "urContextCreate": lambda rt: ([rt.device], ur.ContextProperties()),
    "urContextGetInfo": lambda rt: (rt.context, ur.ContextInfo.DEVICES),
    "urContextRetain": lambda rt: (rt.context,),
    "urContextRelease": lambda rt: (ur.urContextCreate([rt.device], None),),
    "urUSMHostAlloc": lambda rt: (rt.context, ur.USMDesc(align=64), None, 100),
    "urUSMDeviceAlloc": lambda rt: (rt.context, rt.device, ur.USMDesc(), None, 100),
    "urUSMSharedAlloc": lambda rt: (rt.context, rt.device, ur.USMDesc(), None, 100),
    "urUSMFree": lambda rt: (rt.context, rt.memory()),
    "urUSMGetMemAllocInfo": lambda rt: (rt.context, rt.memory(), ur.USMAllocInfo.SIZE),
    "urQueueCreate": lambda rt: (rt.context, rt.device, ur.QueueProperties()),
    "urQueueRetain": lambda rt: (rt.queue,),
    "urQueueRelease": lambda rt: (ur.urQueueCreate(rt.context, rt.device, None),),
    "urQueueGetInfo": lambda rt: (rt.queue, ur.QueueInfo.DEVICE),
    "urQueueFlush": lambda rt: (rt.queue,),
    "urQueueFinish": lambda rt: (rt.queue,),
    "urEnqueueUSMMemcpy": lambda rt: (rt.queue, True, rt.memory(), rt.memory(), 64, [rt.event()]),
    "urEnqueueUSMFill": lambda rt: (rt.queue, rt.memory(), b"abcd", 64, [rt.event()]),
    "urEnqueueUSMPrefetch": lambda rt: (rt.queue, rt.memory(), 64, 1, [rt.event()]),
    "urEnqueueUSMAdvise": lambda rt: (rt.queue, rt.memory(), 64, ur.USMAdviceFlags.SET_READ_MOSTLY),
    "urEnqueueUSMMemcpy2D": lambda rt: (rt.queue, True, rt.memory(), 64, rt.memory(), 32, 16, 4, [rt.event()]),
    "urEnqueueUSMFill2D": lambda rt: (rt.queue, rt.memory(), 64, b"abcd", 16, 4, [rt.event()]),
    "urUSMPoolCreate": lambda rt: (rt.context, ur.USMPoolDesc()),
    "urUSMPoolRetain": lambda rt: (rt.pool(),),
    "urUSMPoolRelease": lambda rt: (rt.pool(),),
    "urUSMPoolGetInfo": lambda rt: (rt.pool(), ur.USMPoolInfo.USED_CURRENT_EXP),
    "urUSMPoolCreateExp": lambda rt: (rt.context, rt.device, ur.USMPoolDesc()),
    "urUSMPoolDestroyExp": lambda rt: (rt.context, rt.device, rt.pool()),
    "urUSMPoolGetDefaultDevicePoolExp": lambda rt: (rt.context, rt.default_pool().device),
    "urUSMPoolSetDevicePoolExp": lambda rt: (rt.context, rt.device, rt.pool()),
    "urUSMPoolGetDevicePoolExp": lambda rt: (rt.context, rt.default_pool().device),
    "urUSMPoolTrimToExp": lambda rt: (rt.context, rt.device, rt.pool(), 4096),
    "urUSMPoolGetInfoExp": lambda rt: (rt.pool(), ur.USMPoolInfo.RESERVED_HIGH_EXP),
    "urUSMPoolSetInfoExp": lambda rt: (rt.pool(), ur.USMPoolInfo.RELEASE_THRESHOLD_EXP, 4096),
    "urEnqueueUSMDeviceAllocExp": lambda rt: (
        rt.queue, rt.pool(), 100, ur.ExpAsyncUSMAllocProperties(), [rt.event()],
    ),
    "urEnqueueUSMSharedAllocExp": lambda rt: (
        rt.queue, rt.pool(), 100, ur.ExpAsyncUSMAllocProperties(), [rt.event()],
    ),
    "urEnqueueUSMHostAllocExp": lambda rt: (
        rt.queue, rt.pool(), 100, ur.ExpAsyncUSMAllocProperties(), [rt.event()],
    ),
    "urEnqueueUSMFreeExp": lambda rt: (rt.queue, rt.pool(), rt.memory(), [rt.event()]),
    "urMemBufferCreate": lambda rt: (rt.context, ur.MemFlags.READ_WRITE, 4096, ur.BufferProperties()),
    "urMemBufferPartition": lambda rt: (
        rt.buffer(), ur.MemFlags.READ_ONLY, ur.BufferCreateType.REGION, ur.BufferRegion(64, 128),
    ),
    "urMemRetain": lambda rt: (rt.buffer(),),
    "urMemRelease": lambda rt: (rt.buffer(),),
    "urMemGetInfo": lambda rt: (rt.buffer(), ur.MemInfo.SIZE),
    "urEnqueueMemBufferRead": lambda rt: (rt.queue, rt.buffer(), True, 8, 64, rt.memory(), [rt.event()]),
    "urEnqueueMemBufferWrite": lambda rt: (rt.queue, rt.buffer(), True, 8, 64, rt.memory(), [rt.event()]),
    "urEnqueueMemBufferCopy": lambda rt: (rt.queue, rt.buffer(), rt.buffer(), 8, 16, 64, [rt.event()]),
    "urEnqueueMemBufferFill": lambda rt: (rt.queue, rt.buffer(), b"abcd", 8, 64, [rt.event()]),
    "urEnqueueMemBufferReadRect": lambda rt: (
        rt.queue, rt.buffer(), True, *BOX, 16, 64, 8, 16, rt.memory(), [rt.event()],
    ),
    "urEnqueueMemBufferWriteRect": lambda rt: (
        rt.queue, rt.buffer(), True, *BOX, 16, 64, 8, 16, rt.memory(), [rt.event()],
    ),
    "urEnqueueMemBufferCopyRect": lambda rt: (
        rt.queue, rt.buffer(), rt.buffer(), *BOX, 16, 64, 8, 16, [rt.event()],
    ),
    "urEnqueueMemBufferMap": lambda rt: (rt.queue, rt.buffer(), True, ur.MapFlags.WRITE, 8, 64, [rt.event()]),
    "urEnqueueMemUnmap": lambda rt: (rt.queue, buffer := rt.buffer(), rt.mapped_bytes(buffer), [rt.event()]),
    "urEnqueueTimestampRecordingExp": lambda rt: (rt.queue, True, [rt.event()]),
    "urEnqueueHostTaskExp": lambda rt: (rt.queue, nothing, None, ur.ExpHostTaskProperties(), [rt.event()]),
    "urUSMContextMemcpyExp": lambda rt: (rt.context, rt.memory(), rt.memory(), 64),
    "urUSMImportExp": lambda rt: (rt.context, rt.ordinary(), 4096),
    "urUSMReleaseExp": lambda rt: (rt.context, rt.ordinary()),
    "urUSMHostAllocRegisterExp": lambda rt: (
        rt.context, rt.ordinary(), 4096, ur.ExpUSMHostAllocRegisterProperties(),
    ),
    "urUSMHostAllocUnregisterExp": lambda rt: (rt.context, rt.registered()),
    "urMemoryExportAllocExportableMemoryExp": lambda rt: (
        rt.context, rt.device, 64, 4096, ur.ExpExternalMemType.OPAQUE_FD,
    ),
    "urMemoryExportFreeExportableMemoryExp": lambda rt: (rt.context, rt.device, rt.memory()),
    "urMemoryExportExportMemoryHandleExp": lambda rt: (
        rt.context, rt.device, ur.ExpExternalMemType.OPAQUE_FD, rt.memory(),
    ),
    "urUsmP2PEnablePeerAccessExp": lambda rt: (rt.device, rt.no_peer()),
    "urUsmP2PDisablePeerAccessExp": lambda rt: (rt.device, rt.peer()),
    "urUsmP2PPeerAccessGetInfoExp": lambda rt: (rt.device, rt.device, ur.ExpPeerInfo.UR_PEER_ACCESS_SUPPORT),
    "urPlatformGetNativeHandle": lambda rt: (rt.platform,),
    "urPlatformCreateWithNativeHandle": lambda rt: (
        ur.urPlatformGetNativeHandle(rt.platform), rt.adapter, ur.PlatformNativeProperties(),
    ),
    "urDeviceGetNativeHandle": lambda rt: (rt.device,),
    "urDeviceCreateWithNativeHandle": lambda rt: (
        ur.urDeviceGetNativeHandle(rt.device), rt.adapter, ur.DeviceNativeProperties(),
    ),
    "urContextGetNativeHandle": lambda rt: (rt.context,),
    "urContextCreateWithNativeHandle": lambda rt: (
        ur.urContextGetNativeHandle(rt.context), rt.adapter, [rt.device], ur.ContextNativeProperties(),
    ),
    "urQueueGetNativeHandle": lambda rt: (rt.queue, ur.QueueNativeDesc()),
    "urQueueCreateWithNativeHandle": lambda rt: (
        rt.native_stream(), rt.context, rt.device, ur.QueueNativeProperties(),
    ),
    "urEventGetNativeHandle": lambda rt: (rt.given_event(),),
    "urEventCreateWithNativeHandle": lambda rt: (rt.native_event(), rt.context, ur.EventNativeProperties()),
    "urDeviceWaitExp": lambda rt: (rt.device,),
    "urDeviceGetGlobalTimestamps": lambda rt: (rt.device,),
    "urVirtualMemGranularityGetInfo": lambda rt: (rt.context, rt.device, 1, ur.VirtualMemGranularityInfo.RECOMMENDED),
    "urVirtualMemReserve": lambda rt: (rt.context, None, rt.granule),
    "urVirtualMemFree": lambda rt: (rt.context, rt.reserve(), rt.granule),
    "urVirtualMemMap": lambda rt: (rt.context, rt.reserve(), rt.granule, rt.physical(), 0, W),
    "urVirtualMemUnmap": lambda rt: (rt.context, rt.mapped(), rt.granule),
    "urVirtualMemSetAccess": lambda rt: (rt.context, rt.mapped(), rt.granule, W),
    "urVirtualMemGetInfo": lambda rt: (rt.context, rt.mapped(), rt.granule, ur.VirtualMemInfo.ACCESS_MODE),
    "urPhysicalMemCreate": lambda rt: (rt.context, rt.device, rt.granule, IPC),
    "urPhysicalMemRetain": lambda rt: (rt.physical(),),
    "urPhysicalMemRelease": lambda rt: (rt.physical(),),
    "urPhysicalMemGetInfo": lambda rt: (rt.physical(), ur.PhysicalMemInfo.SIZE),
    "urEventCreateExp": lambda rt: (rt.context, rt.device, ur.ExpEventDesc()),
    "urEventGetInfo": lambda rt: (rt.event(), ur.EventInfo.CONTEXT),
    "urEventGetProfilingInfo": lambda rt: (profiled(rt), ur.ProfilingInfo.COMMAND_END),
    "urEventWait": lambda rt: ([rt.event()],),
    "urEventSetCallback": lambda rt: (rt.event(), ur.ExecutionInfo.COMPLETE, nothing, None),
    "urEventRetain": lambda rt: (rt.event(),),
    "urEventRelease": lambda rt: (rt.event(),),
    "urEnqueueEventsWait": lambda rt: (rt.queue, [rt.event()]),
    "urEnqueueEventsWaitWithBarrier": lambda rt: (rt.queue, [rt.event()]),
    "urEnqueueEventsWaitWithBarrierExt": lambda rt: (
        rt.queue, ur.ExpEnqueueExtProperties(), [rt.event()], rt.event(),
    ),
    "urIPCGetMemHandleExp": lambda rt: (rt.context, rt.memory()),
    "urIPCPutMemHandleExp": lambda rt: (rt.context, ur.urIPCGetMemHandleExp(rt.context, rt.memory())),
    "urIPCOpenMemHandleExp": lambda rt: (
        rt.context, rt.device, ur.urIPCGetMemHandleExp(rt.context, rt.memory()),
    ),
    "urIPCCloseMemHandleExp": lambda rt: (
        rt.context,
        ur.urIPCOpenMemHandleExp(rt.context, rt.device, ur.urIPCGetMemHandleExp(rt.context, rt.memory())),
    ),
    "urIPCGetPhysMemHandleExp": lambda rt: (rt.context, rt.physical()),
    "urIPCPutPhysMemHandleExp": lambda rt: (rt.context, ur.urIPCGetPhysMemHandleExp(rt.context, rt.physical())),
    "urIPCOpenPhysMemHandleExp": lambda rt: (
        rt.context, rt.device, ur.urIPCGetPhysMemHandleExp(rt.context, rt.physical()),
    ),
    "urIPCClosePhysMemHandleExp": lambda rt: (
        rt.context,
        ur.urIPCOpenPhysMemHandleExp(
            rt.context, rt.device, ur.urIPCGetPhysMemHandleExp(rt.context, rt.physical())
        ),
    ),
    "urIPCGetEventHandleExp": lambda rt: (rt.event(),),
    "urIPCPutEventHandleExp": lambda rt: (rt.context, ur.urIPCGetEventHandleExp(rt.event())),
    "urIPCOpenEventHandleExp": lambda rt: (rt.context, ur.urIPCGetEventHandleExp(rt.event())),
}  # fmt: skip


def nothing(*_arguments: object) -> None:
    """A callback."""


def profiled(rt: Runtime) -> ur.Event:
    event = rt.event(ur.ExpEventDesc(ur.ExpEventFlags.ENABLE_PROFILING))
    ur.urEventWait([ur.urEnqueueEventsWaitWithBarrierExt(rt.queue, None, [], event)])
    return event


def call(name: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(ur, name)(*arguments)


def refusal(name: str, arguments: tuple[Any, ...]) -> ur.Result:
    with pytest.raises(ur.URError) as raised:
        call(name, arguments)
    assert str(raised.value).startswith(f"{name}: ")
    assert raised.value.result.name in str(raised.value)
    return raised.value.result


def result_of(name: str, arguments: tuple[Any, ...]) -> str:
    try:
        call(name, arguments)
    except ur.URError as error:
        return error.result.name
    return "SUCCESS"


CASES = [(name, number) for name, function in FUNCTIONS.items() for number in range(len(function.args))]


def case(name: str, number: int) -> Arg:
    return FUNCTIONS[name].args[number]


def chosen(*families: str) -> list[Any]:
    return [
        pytest.param(name, number, id=f"{name}-{case(name, number).name}")
        for name, number in CASES
        if case(name, number).base_kind.partition(":")[0] in families
    ]


def with_argument(rt: Runtime, name: str, number: int, value: object) -> tuple[Any, ...]:
    arguments = list(GOOD[name](rt))
    arguments[number] = value
    return tuple(arguments)


def test_every_function_is_here() -> None:
    assert set(GOOD) == set(FUNCTIONS)
    assert {*FUNCTIONS, *UNSUPPORTED} == {name for name in ur.__all__ if name.startswith("ur")}


def test_the_other_functions_are_not_supported(rt: Runtime) -> None:
    assert len(UNSUPPORTED) > 100
    for name in UNSUPPORTED:
        for arguments in ((), (None,), (rt.device, 0, "x")):
            assert refusal(name, arguments) is R.ERROR_UNSUPPORTED_FEATURE


@pytest.mark.parametrize("name", FUNCTIONS)
def test_success(rt: Runtime, name: str) -> None:
    value = call(name, GOOD[name](rt))
    kind = FUNCTIONS[name].returns
    if kind == "None":
        assert value is None
    elif "+" in kind:
        plain = {"string": str, "int32": int, "uint64": int, "pointer": int}
        wanted = [plain.get(part) or HANDLES[part.removeprefix("handle:")] for part in kind.split("+")]
        assert [type(each) for each in value] == wanted
    elif kind.startswith("handle:") and kind.endswith("[]"):
        assert value
        assert all(type(each) is HANDLES[kind[7:-2]] for each in value)
    elif kind.startswith("handle:"):
        assert type(value) is HANDLES[kind[7:]]
        assert rt.adapter.backend in repr(value)
    elif kind in ("pointer", "size"):
        assert type(value) is int
        assert value > 0
    elif kind == "bytes":
        assert type(value) is bytes
        assert len(value) == 256
    elif kind.startswith("enum:"):
        assert type(value) is getattr(ur, kind[5:])
    elif kind == "string":
        assert type(value) is str
    elif kind == "int32":
        os.close(value)
    else:
        assert kind.startswith("info:")
        assert value is not None
    ur.urQueueFinish(rt.queue)


@pytest.fixture
def layered() -> Iterator[None]:
    xs.enable_layers("UR_LAYER_FULL_VALIDATION", "UR_LAYER_TRACING")
    try:
        yield
    finally:
        xs.enable_layers()


@pytest.mark.usefixtures("layered")
@pytest.mark.parametrize("name", ["NativeHandle", ""])  # of those, and of all others
def test_layers_refuse_nothing(rt: Runtime, name: str) -> None:
    for each in FUNCTIONS:
        if ("NativeHandle" in each) == bool(name):
            call(each, GOOD[each](rt))
    ur.urQueueFinish(rt.queue)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_have_names_too(rt: Runtime, name: str) -> None:
    function = getattr(ur, name)
    signature = inspect.signature(function)
    assert list(signature.parameters) == [arg.name for arg in FUNCTIONS[name].args]
    assert function.__module__ == "xpushare.ur"
    assert FUNCTIONS[name].summary in function.__doc__
    names = signature.parameters
    function(**dict(zip(names, GOOD[name](rt), strict=True)))
    with pytest.raises(TypeError):
        function(*GOOD[name](rt), None)
    ur.urQueueFinish(rt.queue)


@pytest.mark.parametrize(("name", "number"), [pytest.param(n, i, id=f"{n}-{case(n, i).name}") for n, i in CASES])
def test_null(rt: Runtime, name: str, number: int) -> None:
    arg = case(name, number)
    arguments = with_argument(rt, name, number, None)
    if name == "urContextCreateWithNativeHandle" and arg.name == "phDevices":  # nobody looks for them
        assert refusal(name, arguments) is R.ERROR_UNSUPPORTED_FEATURE
        return
    if arg.optional:
        call(name, arguments)
        return
    family = arg.base_kind.partition(":")[0]
    if name == "urIPCGetMemHandleExp" and family == "pointer":  # UR's own validation has no rule for it
        expected = R.ERROR_INVALID_ARGUMENT
    elif family == "handle":
        expected = R.ERROR_INVALID_NULL_HANDLE
    elif family in ("pointer", "bytes", "pattern", "sequence", "struct", "string", "callback"):
        expected = R.ERROR_INVALID_NULL_POINTER
    elif family in ("enum", "flags"):
        expected = R.ERROR_INVALID_ENUMERATION
    else:
        expected = R.ERROR_INVALID_ARGUMENT
    assert refusal(name, arguments) is expected


DEAD = {
    "adapter": R.ERROR_INVALID_VALUE,
    "platform": R.ERROR_INVALID_PLATFORM,
    "device": R.ERROR_INVALID_DEVICE,
    "context": R.ERROR_INVALID_CONTEXT,
    "queue": R.ERROR_INVALID_QUEUE,
    "event": R.ERROR_INVALID_EVENT,
    "physical_mem": R.ERROR_INVALID_MEM_OBJECT,
    "mem": R.ERROR_INVALID_MEM_OBJECT,
    "usm_pool": R.ERROR_INVALID_VALUE,
}


@pytest.mark.parametrize(("name", "number"), chosen("handle"))
def test_something_else_for_a_handle(rt: Runtime, name: str, number: int) -> None:
    kind = case(name, number).base_kind.removeprefix("handle:")
    other = rt.queue if kind != "queue" else rt.context
    for value in (other, object(), 0, 4096, "queue", b"", [], rt.device.shared, type(rt.queue)):
        assert refusal(name, with_argument(rt, name, number, value)) is DEAD[kind]


def released(rt: Runtime, kind: str) -> Any:
    if kind == "context":
        ur.urContextRelease(found := ur.urContextCreate([rt.device], None))
    elif kind == "queue":
        ur.urQueueRelease(found := ur.urQueueCreate(rt.context, rt.device, None))
    elif kind == "event":
        ur.urEventRelease(found := rt.event())
    elif kind == "adapter":
        found = rt.adapter
        while found.references:
            ur.urAdapterRelease(found)
    elif kind == "mem":
        ur.urMemRelease(found := rt.buffer())
    elif kind == "usm_pool":
        ur.urUSMPoolRelease(found := rt.pool())
    else:
        ur.urPhysicalMemRelease(found := rt.physical())
    assert "released" in repr(found)
    return found


@pytest.mark.parametrize(("name", "number"), chosen("handle"))
def test_released_handle(rt: Runtime, name: str, number: int) -> None:
    kind = case(name, number).base_kind.removeprefix("handle:")
    if kind not in ("platform", "device"):  # these live as long as the process
        arguments = list(GOOD[name](rt))
        arguments[number] = released(rt, kind)
        assert refusal(name, tuple(arguments)) is DEAD[kind]


@pytest.mark.parametrize(("name", "number"), chosen("sequence"))
def test_sequences(rt: Runtime, name: str, number: int) -> None:
    expected = {
        "urContextCreate": R.ERROR_INVALID_NULL_HANDLE,
        "urContextCreateWithNativeHandle": R.ERROR_INVALID_VALUE,
        "urEventWait": R.ERROR_INVALID_EVENT,
    }.get(name, R.ERROR_INVALID_EVENT_WAIT_LIST)
    good = list(GOOD[name](rt)[number])
    wrong = [None, object(), 1, rt.queue] + ([] if name.startswith("urContext") else [released(rt, "event")])
    for value in wrong:
        assert refusal(name, with_argument(rt, name, number, [*good, value])) is expected
    assert refusal(name, with_argument(rt, name, number, 5)) is R.ERROR_INVALID_ARGUMENT
    assert refusal(name, with_argument(rt, name, number, object())) is R.ERROR_INVALID_ARGUMENT
    assert refusal(name, with_argument(rt, name, number, "abc")) is expected
    call(name, with_argument(rt, name, number, tuple(good)))
    call(name, with_argument(rt, name, number, iter(good)))
    if case(name, number).optional and not name.startswith("urContext"):
        call(name, with_argument(rt, name, number, []))


@pytest.mark.parametrize(("name", "number"), chosen("pointer", "size"))
def test_numbers(rt: Runtime, name: str, number: int) -> None:
    for value in (-1, 1 << 64, 1 << 200):
        assert refusal(name, with_argument(rt, name, number, value)) is R.ERROR_INVALID_VALUE
    for wrong in (1.5, math.nan, "4096", b"1", object(), rt.queue):
        assert refusal(name, with_argument(rt, name, number, wrong)) is R.ERROR_INVALID_ARGUMENT


class Index:
    """What numpy's integers are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize(("name", "number"), chosen("pointer", "size", "enum", "flags"))
def test_whatever_has_an_index_is_an_int(rt: Runtime, name: str, number: int) -> None:
    value = GOOD[name](rt)[number]
    if value is not None:
        arguments = list(GOOD[name](rt))
        arguments[number] = Index(int(arguments[number]))
        call(name, tuple(arguments))


# Addresses and sizes that fit, and still mean nothing: whatever the answer, it is a URError.
@pytest.mark.parametrize(("name", "number"), chosen("pointer"))
@pytest.mark.parametrize("value", [1, 4096, 1 << 47, 1 << 62, (1 << 63) - 1, (1 << 64) - 1], ids=hex)
def test_wild_pointers(rt: Runtime, name: str, number: int, value: int) -> None:
    if name == "urUSMGetMemAllocInfo":
        assert refusal(name, with_argument(rt, name, number, value)) is R.ERROR_INVALID_VALUE
        return
    if name == "urVirtualMemReserve":  # a hint, which must be a multiple of the granularity
        if value % rt.granule:
            assert refusal(name, with_argument(rt, name, number, value)) is R.ERROR_INVALID_VALUE
        else:
            call(name, with_argument(rt, name, number, value))
        return
    if name == "urUSMReleaseExp":  # of a hint that was not given, either
        call(name, with_argument(rt, name, number, value))
        return
    expected = {
        "urUSMFree": R.ERROR_INVALID_MEM_OBJECT,
        "urUSMContextMemcpyExp": R.ERROR_INVALID_MEM_OBJECT,
        **{each: R.ERROR_INVALID_MEM_OBJECT for each in FUNCTIONS if each.startswith("urEnqueue")},
        "urIPCGetMemHandleExp": R.ERROR_INVALID_ARGUMENT,
        "urIPCCloseMemHandleExp": R.ERROR_INVALID_ARGUMENT,
    }.get(name, R.ERROR_INVALID_VALUE)
    assert refusal(name, with_argument(rt, name, number, value)) is expected


@pytest.mark.parametrize(("name", "number"), chosen("size"))
@pytest.mark.parametrize("value", [1 << 62, (1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 4096], ids=hex)
def test_wild_sizes(rt: Runtime, name: str, number: int, value: int) -> None:
    if case(name, number).name.startswith("hNative"):  # a handle that there is not
        assert refusal(name, with_argument(rt, name, number, value)) in (
            R.ERROR_INVALID_VALUE,
            R.ERROR_INVALID_DEVICE,
            R.ERROR_UNSUPPORTED_FEATURE,
        )
    elif name == "urVirtualMemGranularityGetInfo":  # the granularity is the same for all
        assert call(name, with_argument(rt, name, number, value))
    elif name in ("urUSMPoolTrimToExp", "urUSMPoolSetInfoExp"):  # how much may be kept
        call(name, with_argument(rt, name, number, value))
    else:
        assert refusal(name, with_argument(rt, name, number, value)) in (
            R.ERROR_INVALID_VALUE,
            R.ERROR_INVALID_SIZE,
            R.ERROR_INVALID_USM_SIZE,
            R.ERROR_INVALID_BUFFER_SIZE,
            R.ERROR_UNSUPPORTED_SIZE,
            R.ERROR_UNSUPPORTED_ALIGNMENT,
            R.ERROR_OUT_OF_HOST_MEMORY,
        )


NUMBERS = [1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64, 1 << 200, -1, -(1 << 63), math.nan]
OTHERS = [
    math.inf, 1e300, 1j, "x", "", b"x", bytearray(3), [], [None], [1 << 62], {}, {1}, object(), Decimal(3), Fraction(3),
    datetime.now(), np.int64(-5), np.uint64(1 << 63), np.zeros(3), ..., None, range(3), ValueError("x"), slice(1),
]  # fmt: skip
OF_HANDLES = {f"ERROR_INVALID_{kind}" for kind in ("PLATFORM", "DEVICE", "CONTEXT", "QUEUE", "EVENT", "MEM_OBJECT")}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "values",
    [pytest.param(NUMBERS[2:5], id="numbers"), pytest.param(NUMBERS + OTHERS, id="all", marks=pytest.mark.exhaustive)],
)
def test_wild_values(rt: Runtime, name: str, values: list[Any]) -> None:
    """Of each argument and of each field of a struct: the call succeeds, or has a result that the reference lists for
    it or for the kind of the argument.
    """
    known = {each.result for each in FUNCTIONS[name].errors}
    known |= {"SUCCESS", "ERROR_INVALID_ARGUMENT", "ERROR_INVALID_VALUE"}
    for number, arg in enumerate(FUNCTIONS[name].args):
        wild = list(values)
        family, _, kind = arg.base_kind.partition(":")
        if family in ("struct", "value"):
            good = GOOD[name](rt)[number] or getattr(ur, kind)()
            wild += [dataclasses.replace(good, **{field: each}) for field in vars(good) for each in values]
        listed = known | (OF_HANDLES if family == "handle" else set())
        for value in wild:
            assert result_of(name, with_argument(rt, name, number, value)) in listed, (arg.name, value)


@pytest.mark.parametrize(("name", "number"), chosen("enum", "flags"))
def test_enumerations(rt: Runtime, name: str, number: int) -> None:
    for value in (-1, 1 << 31, 1 << 40, 1 << 62, 1 << 64, 1.0, math.nan, "NAME", None, object()):
        assert refusal(name, with_argument(rt, name, number, value)) is R.ERROR_INVALID_ENUMERATION
    arguments = GOOD[name](rt)
    call(name, (*arguments[:number], int(arguments[number]), *arguments[number + 1 :]))


def test_queries_of_another_version(rt: Runtime) -> None:
    assert refusal("urDeviceGetInfo", (rt.device, 0x1FFF)) is R.ERROR_UNSUPPORTED_ENUMERATION
    assert refusal("urDeviceGetInfo", (rt.device, 0x9001)) is R.ERROR_INVALID_ENUMERATION
    assert refusal("urPlatformGetInfo", (rt.platform, 0)) is R.ERROR_UNSUPPORTED_ENUMERATION
    assert refusal("urVirtualMemGranularityGetInfo", (rt.context, None, 1, 0)) is R.ERROR_UNSUPPORTED_ENUMERATION
    assert refusal("urDeviceGet", (rt.platform, 0)) is R.ERROR_INVALID_ENUMERATION


@pytest.mark.parametrize(("name", "number"), chosen("struct", "value"))
def test_structs(rt: Runtime, name: str, number: int) -> None:
    cls = getattr(ur, case(name, number).base_kind.partition(":")[2])
    for wrong in (object(), 0, (0,), {"flags": 0}, cls):
        assert refusal(name, with_argument(rt, name, number, wrong)) is R.ERROR_INVALID_ARGUMENT
    fields = _structs.FIELD_KINDS[cls.__name__].values()
    if any(kind.startswith("flags:") for kind in fields):
        for bits in (-1, 1 << 31, 1 << 40, 1 << 62, 1 << 64, "x", None, 1.0):
            assert refusal(name, with_argument(rt, name, number, cls(bits))) is R.ERROR_INVALID_ENUMERATION
        call(name, with_argument(rt, name, number, cls(Index(0))))
        return
    good = GOOD[name](rt)[number]
    call(name, with_argument(rt, name, number, cls(*(Index(int(each)) for each in vars(good).values()))))
    for field in vars(good):
        for size in (-1, 1 << 64) if _structs.FIELD_KINDS[cls.__name__][field] != "bool" else ():
            wild = dataclasses.replace(good, **{field: size})
            assert refusal(name, with_argument(rt, name, number, wild)) is R.ERROR_INVALID_VALUE
        wrong = dataclasses.replace(good, **{field: "x"})
        assert refusal(name, with_argument(rt, name, number, wrong)) is R.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize(("name", "number"), chosen("bytes", "pattern"))
def test_bytes(rt: Runtime, name: str, number: int) -> None:
    released = memoryview(b"gone")
    released.release()
    for wrong in (5, "text", object(), [1, 2], released):
        assert refusal(name, with_argument(rt, name, number, wrong)) is R.ERROR_INVALID_ARGUMENT
    for like in (bytearray, memoryview):
        arguments = list(GOOD[name](rt))
        arguments[number] = like(arguments[number])
        call(name, tuple(arguments))


@pytest.mark.parametrize(("name", "number"), chosen("bytes"))
def test_handle_data_that_are_refused(rt: Runtime, name: str, number: int) -> None:
    good = GOOD[name](rt)[number]
    for wrong in (b"", good[:-1], good + b"\0", bytes(256), good[:100] + bytes([good[100] ^ 1]) + good[101:]):
        assert refusal(name, with_argument(rt, name, number, wrong)) is R.ERROR_INVALID_VALUE
    others = {
        "memory": ur.urIPCGetMemHandleExp(rt.context, rt.memory()),
        "physical": ur.urIPCGetPhysMemHandleExp(rt.context, rt.physical()),
        "event": ur.urIPCGetEventHandleExp(rt.event()),
    }
    own = "physical" if "Phys" in name else "event" if "Event" in name else "memory"
    for kind, data in others.items():
        if kind != own:
            assert refusal(name, with_argument(rt, name, number, data)) is R.ERROR_INVALID_VALUE


@pytest.mark.parametrize(("name", "number"), chosen("string", "callback"))
def test_strings_and_callbacks(rt: Runtime, name: str, number: int) -> None:
    for wrong in (5, b"text", object(), [1, 2]):
        assert refusal(name, with_argument(rt, name, number, wrong)) is R.ERROR_INVALID_ARGUMENT


def test_wait_lists_are_any_sequence(rt: Runtime) -> None:
    """Also those that are neither true nor false."""
    for empty in (None, [], (), np.array([]), iter(())):
        ur.urEventWait([ur.urEnqueueEventsWait(rt.queue, empty)])  # type: ignore[arg-type]
    assert refusal("urEnqueueEventsWait", (rt.queue, np.array([1.0, 2.0]))) is R.ERROR_INVALID_EVENT_WAIT_LIST
    for wrong in (0, np.array(1.0)):
        assert refusal("urEnqueueEventsWait", (rt.queue, wrong)) is R.ERROR_INVALID_ARGUMENT


def test_booleans(rt: Runtime) -> None:
    arguments = GOOD["urEnqueueUSMMemcpy"](rt)
    for blocking in (0, 1, 2, Index(1)):
        call("urEnqueueUSMMemcpy", (arguments[0], blocking, *arguments[2:]))
    for wrong in ("yes", None, 1.0):
        assert refusal("urEnqueueUSMMemcpy", (arguments[0], wrong, *arguments[2:])) is R.ERROR_INVALID_ARGUMENT
    ur.urQueueFinish(rt.queue)


def test_order_of_validation(rt: Runtime) -> None:
    """Pointers before handles before enumerations before the rest, whatever else is wrong."""
    assert refusal("urIPCOpenMemHandleExp", (None, None, None)) is R.ERROR_INVALID_NULL_POINTER
    assert refusal("urIPCOpenMemHandleExp", (None, None, b"")) is R.ERROR_INVALID_NULL_HANDLE
    assert refusal("urIPCOpenMemHandleExp", (rt.context, None, b"")) is R.ERROR_INVALID_NULL_HANDLE
    assert refusal("urIPCOpenMemHandleExp", (rt.context, rt.device, b"")) is R.ERROR_INVALID_VALUE
    assert refusal("urEventCreateExp", (rt.context, rt.device, ur.ExpEventDesc(7))) is R.ERROR_INVALID_ENUMERATION
    assert refusal("urEventCreateExp", (None, rt.device, ur.ExpEventDesc(7))) is R.ERROR_INVALID_NULL_HANDLE
    assert refusal("urUSMDeviceAlloc", (rt.context, rt.device, ur.USMDesc(1 << 17, 3), None, 0)) is (
        R.ERROR_INVALID_ENUMERATION
    )
    assert refusal("urUSMDeviceAlloc", (rt.context, rt.device, ur.USMDesc(0, 3), None, 0)) is R.ERROR_INVALID_VALUE
    assert refusal("urUSMDeviceAlloc", (rt.context, rt.device, None, object(), 0)) is R.ERROR_INVALID_USM_SIZE


def test_errors_pickle(rt: Runtime) -> None:
    with pytest.raises(ur.URError) as raised:
        ur.urIPCOpenMemHandleExp(rt.context, rt.device, bytes(256))
    error = raised.value
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ur.URError
    assert (str(again), again.result, again.native, again.reasons) == (
        str(error), error.result, error.native, error.reasons,
    )  # fmt: skip
    import xpushare as xs

    assert isinstance(error, xs.XpuShareError)
    assert isinstance(error.__cause__, xs.InvalidHandleError)


@pytest.mark.parametrize("kind", HANDLES)
def test_handles_are_made_by_functions_only(rt: Runtime, kind: str) -> None:
    with pytest.raises(TypeError, match="made by the functions"):
        HANDLES[kind]()
    makers = {"event": rt.event, "physical_mem": rt.physical, "mem": rt.buffer, "usm_pool": rt.pool}
    made = makers[kind]() if kind in makers else getattr(rt, kind)
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(made)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nonsense_of_all_kinds(rt: Runtime, name: str) -> None:
    """Whatever is passed, a call succeeds or raises URError."""
    choose = random.Random(name).choice
    good = GOOD[name](rt)
    pool = [
        None, 0, 1, -1, 64, rt.granule, 1 << 63, 1 << 64, True, 1.5, "x", b"", b"x", bytes(256), [], [None], object(),
        rt.adapter, rt.platform, rt.device, rt.context, rt.queue, rt.event(), rt.physical(), rt.memory(), rt.reserve(),
        rt.mapped(), [rt.event()], [rt.device], released(rt, "event"), released(rt, "context"),
        ur.USMDesc(3, 3), ur.ExpEventDesc(2), ur.QueueProperties(2), ur.PhysicalMemProperties(2),
        ur.urIPCGetMemHandleExp(rt.context, rt.memory()), ur.urIPCGetPhysMemHandleExp(rt.context, rt.physical()),
        ur.urIPCGetEventHandleExp(rt.event()),
    ]  # fmt: skip
    refused = 0
    for _ in range(300):
        try:
            call(name, tuple(choose([each, choose(pool), each]) for each in good))
        except ur.URError:
            refused += 1
        if not (rt.context.references and rt.queue.references and rt.adapter.references):
            rt.context, rt.queue = (fresh := Runtime()).context, fresh.queue
    assert refused or not good
    ur.urQueueFinish(rt.queue)
