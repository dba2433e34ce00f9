"""Adapters, platforms, devices, contexts, queues: what they answer, and reference counts."""

from __future__ import annotations

import logging
import os
import threading
import uuid

import pytest
from ur_runtime import Runtime, refused

import xpushare as xs
from xpushare import ur
from xpushare.adapters.base import Properties
from xpushare.adapters.mock import driver
from xpushare.common.aspects import Aspect
from xpushare.core.device import adapter_of
from xpushare.ur._spec import INFOS

R = ur.Result
D = ur.DeviceInfo


def test_adapters(rt: Runtime) -> None:
    assert ur.urAdapterGet()[0] is rt.adapter
    before = ur.urAdapterGetInfo(rt.adapter, ur.AdapterInfo.REFERENCE_COUNT)
    ur.urAdapterGet()
    assert ur.urAdapterGetInfo(rt.adapter, ur.AdapterInfo.REFERENCE_COUNT) == before + 1
    assert ur.urAdapterGetInfo(rt.adapter, ur.AdapterInfo.BACKEND) is ur.Backend.NATIVE_CPU
    assert ur.urAdapterGetInfo(rt.adapter, ur.AdapterInfo.VERSION) == 1
    assert {each.backend for each in ur.urAdapterGet()} == {each.backend for each in xs.devices()}


def test_references_to_adapters_and_devices(rt: Runtime) -> None:
    count = lambda: ur.urAdapterGetInfo(rt.adapter, ur.AdapterInfo.REFERENCE_COUNT)  # noqa: E731
    before = count()
    ur.urAdapterRetain(rt.adapter)
    assert count() == before + 1
    for _ in range(before + 1):
        ur.urAdapterRelease(rt.adapter)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urAdapterRelease(rt.adapter)
    with refused(R.ERROR_INVALID_VALUE):
        ur.urPlatformGet(rt.adapter)
    assert rt.adapter in ur.urAdapterGet()
    assert count() == 1

    for change in (ur.urDeviceRetain, ur.urDeviceRelease, ur.urDeviceRelease):  # its count never changes
        change(rt.device)
        assert ur.urDeviceGetInfo(rt.device, D.REFERENCE_COUNT) == 1


def test_the_last_error_of_a_thread(mock: Runtime) -> None:
    told: list[tuple[str, int]] = []
    ask = threading.Thread(target=lambda: told.append(ur.urAdapterGetLastError(mock.adapter)))
    start = mock.reserve()
    driver().fail("range_map", xs.DeviceError("the test says so", native=4))
    with refused(R.ERROR_ADAPTER_SPECIFIC):
        ur.urVirtualMemMap(mock.context, start, mock.granule, mock.physical(), 0, 2)
    message, number = ur.urAdapterGetLastError(mock.adapter)
    assert "the test says so" in message
    assert number == 4
    ask.start()
    ask.join()
    assert told == [("", 0)]


def test_the_log_goes_to_a_callback(rt: Runtime) -> None:
    log = logging.getLogger("xpushare")
    told: list[object] = []
    ur.urAdapterSetLoggerCallback(rt.adapter, lambda *message: told.append(message), 7, ur.LoggerLevel.WARN)
    log.warning("a %s", "warning")
    log.info("too little")
    assert told == [(ur.LoggerLevel.WARN, "a warning", 7)]
    ur.urAdapterSetLoggerCallbackLevel(rt.adapter, ur.LoggerLevel.INFO)
    log.info("enough")
    assert told[1:] == [(ur.LoggerLevel.INFO, "enough", 7)]
    ur.urAdapterSetLoggerCallback(rt.adapter, lambda *message: told.append(message), 8, ur.LoggerLevel.ERROR)
    log.critical("it replaces the other")
    assert told[2:] == [(ur.LoggerLevel.ERROR, "it replaces the other", 8)]
    ur.urAdapterSetLoggerCallbackLevel(rt.adapter, ur.LoggerLevel.QUIET)
    log.critical("nobody hears it")
    assert len(told) == 3


def test_the_platform_says(rt: Runtime) -> None:
    assert ur.urPlatformGetApiVersion(rt.platform) == 12
    assert ur.urPlatformGetBackendOption(rt.platform, "-O3") == ""
    with refused(R.ERROR_INVALID_VALUE):
        ur.urPlatformGetBackendOption(rt.platform, "-no-such-option")


def test_queue_info(rt: Runtime) -> None:
    Q = ur.QueueInfo
    queue = ur.urQueueCreate(rt.context, rt.device, ur.QueueProperties(ur.QueueFlags.PROFILING_ENABLE))
    assert ur.urQueueGetInfo(queue, Q.CONTEXT) is rt.context
    assert ur.urQueueGetInfo(queue, Q.DEVICE) is rt.device
    assert ur.urQueueGetInfo(queue, Q.FLAGS) is ur.QueueFlags.PROFILING_ENABLE
    assert ur.urQueueGetInfo(queue, Q.REFERENCE_COUNT) == 1
    assert ur.urQueueGetInfo(queue, Q.EMPTY) is True
    with rt.held(queue):
        assert ur.urQueueGetInfo(queue, Q.EMPTY) is False
        ur.urQueueFlush(queue)
    with refused(R.ERROR_INVALID_QUEUE):
        ur.urQueueGetInfo(queue, Q.SIZE)
    with refused(R.ERROR_UNSUPPORTED_ENUMERATION):
        ur.urQueueGetInfo(queue, Q.DEVICE_DEFAULT)


@pytest.mark.parametrize("backend", ["native_cpu", "mock"])
def test_a_device_is_waited_for(backend: str, request: pytest.FixtureRequest) -> None:
    """Its queues, also those that were released; another device's are not."""
    rt: Runtime = request.getfixturevalue("rt" if backend == "native_cpu" else "mock")
    pointer, before = rt.memory(), xs.Event(rt.device.shared)
    queue = ur.urQueueCreate(rt.context, rt.device, None)
    queue.shared.wait(before, at_least=1)
    made = ur.urEnqueueUSMFill(queue, pointer, b"a", 64, None)
    ur.urQueueRelease(queue)
    waiting = threading.Thread(target=lambda: ur.urDeviceWaitExp(rt.device))
    waiting.start()
    if len(rt.devices) > 1:
        ur.urDeviceWaitExp(rt.devices[1])
    assert rt.status(made) is ur.EventStatus.SUBMITTED
    assert waiting.is_alive()
    before.signal()
    waiting.join(20.0)
    assert not waiting.is_alive()
    assert rt.status(made) is ur.EventStatus.COMPLETE
    assert rt.read(pointer, 1) == b"a"


def test_a_device_that_is_waited_for_keeps_its_failures(rt: Runtime) -> None:
    def fail() -> None:
        raise KeyError("the test says so")

    rt.queue.shared.submit(fail)
    ur.urDeviceWaitExp(rt.device)
    with pytest.raises(KeyError):
        rt.queue.shared.synchronize()


def test_selector(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:7")
    assert ur.urAdapterGet() == []
    assert ur.urDeviceGet(rt.platform, ur.DeviceType.ALL) == []
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "nonsense")
    for function, arguments in ((ur.urAdapterGet, ()), (ur.urDeviceGet, (rt.platform, ur.DeviceType.ALL))):
        with refused(R.ERROR_INVALID_VALUE):
            function(*arguments)


def test_platforms(rt: Runtime) -> None:
    P = ur.PlatformInfo
    assert ur.urPlatformGetInfo(rt.platform, P.NAME) == "xpushare native_cpu"
    assert ur.urPlatformGetInfo(rt.platform, P.VENDOR_NAME) == "xpushare"
    assert ur.urPlatformGetInfo(rt.platform, P.VERSION) == xs.__version__
    assert ur.urPlatformGetInfo(rt.platform, P.EXTENSIONS) == ""
    assert ur.urPlatformGetInfo(rt.platform, P.PROFILE) == "FULL_PROFILE"
    assert ur.urPlatformGetInfo(rt.platform, P.BACKEND) is ur.Backend.NATIVE_CPU
    assert ur.urPlatformGetInfo(rt.platform, P.ADAPTER) is rt.adapter


def test_contexts(mock: Runtime) -> None:
    C = ur.ContextInfo
    assert list(C) == [0, 1, 2, 3, 4]
    both = ur.urContextCreate(mock.devices, None)
    assert ur.urContextGetInfo(both, C.NUM_DEVICES) == 2
    assert ur.urContextGetInfo(both, C.DEVICES) == mock.devices
    assert ur.urContextGetInfo(mock.context, C.DEVICES) == [mock.device]
    assert ur.urContextGetInfo(both, C.REFERENCE_COUNT) == 1
    assert ur.urContextGetInfo(both, C.USM_MEMCPY2D_SUPPORT) is True
    assert ur.urContextGetInfo(both, C.USM_FILL2D_SUPPORT) is True


def test_devices(rt: Runtime) -> None:
    T = ur.DeviceType
    for kind in (T.ALL, T.DEFAULT, T.CPU):
        assert ur.urDeviceGet(rt.platform, kind) == [rt.device]
    for kind in (T.GPU, T.FPGA, T.MCA, T.VPU, T.CUSTOM):
        assert ur.urDeviceGet(rt.platform, kind) == []
    ur.urDeviceGet(rt.platform, T.ALL)
    assert ur.urDeviceGetInfo(rt.device, D.REFERENCE_COUNT) == 1


def test_device_answers(rt: Runtime) -> None:
    device = xs.Device("native_cpu:0")
    assert ur.urDeviceGetInfo(rt.device, D.TYPE) is ur.DeviceType.CPU
    assert ur.urDeviceGetInfo(rt.device, D.NAME) == device.name
    assert ur.urDeviceGetInfo(rt.device, D.UUID) == uuid.UUID(device.uuid).bytes
    assert ur.urDeviceGetInfo(rt.device, D.DRIVER_VERSION) == device.driver_version
    assert ur.urDeviceGetInfo(rt.device, D.PLATFORM) is rt.platform
    assert ur.urDeviceGetInfo(rt.device, D.PARENT_DEVICE) is None
    assert ur.urDeviceGetInfo(rt.device, D.VENDOR)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert ur.urDeviceGetInfo(rt.device, D.GLOBAL_MEM_SIZE) == total
    assert 0 < ur.urDeviceGetInfo(rt.device, D.GLOBAL_MEM_FREE) <= total
    assert ur.urDeviceGetInfo(rt.device, D.MAX_COMPUTE_UNITS) == len(os.sched_getaffinity(0))
    assert ur.urDeviceGetInfo(rt.device, D.USM_DEVICE_SUPPORT) & ur.DeviceUSMAccessCapabilityFlags.ACCESS
    flags = ur.urDeviceGetInfo(rt.device, D.QUEUE_PROPERTIES)
    assert ur.QueueFlags.PROFILING_ENABLE in flags
    assert ur.QueueFlags.ON_DEVICE not in flags
    for member in (
        D.REUSABLE_EVENTS_SUPPORT_EXP,
        D.IPC_MEMORY_SUPPORT_EXP,
        D.IPC_EVENT_SUPPORT_EXP,
        D.USM_POOL_SUPPORT,
        D.DEVICE_WAIT_SUPPORT_EXP,
    ):
        assert ur.urDeviceGetInfo(rt.device, member) is True
    for member in (D.LOW_POWER_EVENTS_SUPPORT_EXP, D.IMAGE_SUPPORT):
        assert ur.urDeviceGetInfo(rt.device, member) is False


@pytest.mark.parametrize(
    ("member", "aspect"),
    [
        (D.VIRTUAL_MEMORY_SUPPORT, Aspect.ext_oneapi_virtual_mem),
        (D.IPC_MEMORY_SUPPORT_EXP, Aspect.ext_oneapi_ipc_memory),
        (D.IPC_PHYSICAL_MEMORY_SUPPORT_EXP, Aspect.ext_oneapi_ipc_physical_memory),
        (D.IPC_EVENT_SUPPORT_EXP, Aspect.ext_oneapi_ipc_event),
        (D.PER_EVENT_PROFILING_SUPPORT_EXP, Aspect.ext_oneapi_per_event_profiling),
    ],
)
def test_support_is_the_aspect(rt: Runtime, monkeypatch: pytest.MonkeyPatch, member: D, aspect: Aspect) -> None:
    assert ur.urDeviceGetInfo(rt.device, member) is True
    rt.without(monkeypatch, aspect)
    assert ur.urDeviceGetInfo(rt.device, member) is False


CLASSES = {"uint32": int, "uint64": int, "int32": int, "size": int, "bool": bool, "string": str, "bytes": bytes}


def expected_class(kind: str) -> type | tuple[type, ...]:
    family, _, name = kind.partition(":")
    if kind.endswith("]"):
        return list
    if family == "handle":
        return (type(None), ur.Device, ur.Platform)
    return getattr(ur, name) if family in ("enum", "flags") else CLASSES[kind]


UNANSWERED = object()


def answer(runtime: Runtime, member: D) -> object:
    try:
        return ur.urDeviceGetInfo(runtime.device, member)
    except ur.URError as error:
        if error.result is not R.ERROR_UNSUPPORTED_ENUMERATION:
            raise
        return UNANSWERED


@pytest.mark.parametrize("backend", ["native_cpu", "mock"])
def test_every_device_query(backend: str, request: pytest.FixtureRequest) -> None:
    """Answered with the class that the declaration says; optional ones also with ERROR_UNSUPPORTED_ENUMERATION."""
    runtime: Runtime = request.getfixturevalue("rt" if backend == "native_cpu" else "mock")
    answered = set()
    for member in D:
        value = answer(runtime, member)
        if value is not UNANSWERED:
            answered.add(member.name)
            assert isinstance(value, expected_class(INFOS["DeviceInfo"].kinds[member.name])), member
    assert len(D) - len(INFOS["DeviceInfo"].optional) == 162
    assert {member.name for member in D} - answered <= INFOS["DeviceInfo"].optional


def test_what_the_driver_does_not_say(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mandatory query then has UR's least value; an optional one is not answered."""
    about = Properties("a vendor", 1, 1 << 30, 1 << 29, True)
    adapter = type(adapter_of(rt.device.shared))
    monkeypatch.setattr(adapter, "properties", lambda _self, _device: about)
    assert ur.urDeviceGetInfo(rt.device, D.MAX_WORK_ITEM_SIZES) == [1, 1, 1]
    assert ur.urDeviceGetInfo(rt.device, D.MAX_WORK_GROUP_SIZE) == 1
    assert ur.urDeviceGetInfo(rt.device, D.GLOBAL_MEM_CACHE_TYPE) is ur.DeviceMemCacheType.NONE
    assert ur.urDeviceGetInfo(rt.device, D.LOCAL_MEM_TYPE) is ur.DeviceLocalMemType.NONE
    for member in (D.DEVICE_ID, D.MEMORY_BUS_WIDTH, D.PCI_ADDRESS, D.MAX_REGISTERS_PER_WORK_GROUP):
        assert answer(rt, member) is UNANSWERED
    about = about._replace(
        group_items=1024, group_sizes=(1024, 1024, 64), sub_group_sizes=(32,), device_id=7, local_nbytes=1 << 15
    )
    assert ur.urDeviceGetInfo(rt.device, D.MAX_WORK_ITEM_SIZES) == [1024, 1024, 64]
    assert ur.urDeviceGetInfo(rt.device, D.MAX_NUM_SUB_GROUPS) == 32
    assert ur.urDeviceGetInfo(rt.device, D.DEVICE_ID) == 7
    assert ur.urDeviceGetInfo(rt.device, D.LOCAL_MEM_TYPE) is ur.DeviceLocalMemType.LOCAL


def test_mock_devices(mock: Runtime) -> None:
    assert len(mock.devices) == 2
    assert ur.urAdapterGetInfo(mock.adapter, ur.AdapterInfo.BACKEND) is ur.Backend.UNKNOWN
    assert ur.urDeviceGetInfo(mock.device, D.TYPE) is ur.DeviceType.FPGA
    assert "mock:1" in repr(mock.devices[1])


# --- contexts -------------------------------------------------------------------------------------


def test_contexts_are_distinct(rt: Runtime) -> None:
    other = ur.urContextCreate([rt.device], None)
    assert other is not rt.context
    assert other != rt.context


def test_context_of_unfit_devices(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(R.ERROR_INVALID_VALUE):
        ur.urContextCreate([rt.device, rt.device], None)
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*;native_cpu:*")
    with refused(R.ERROR_INVALID_VALUE):
        ur.urContextCreate([rt.device, Runtime("mock").device], None)
    with refused(R.ERROR_INVALID_SIZE):
        ur.urContextCreate([], None)


def test_device_outside_the_context(mock: Runtime) -> None:
    """Whatever takes a context and a device wants the device to be in the context."""
    other = mock.devices[1]
    data = ur.urIPCGetMemHandleExp(mock.context, mock.memory())
    for function, arguments in (
        (ur.urUSMDeviceAlloc, (mock.context, other, None, None, 1)),
        (ur.urUSMSharedAlloc, (mock.context, other, None, None, 1)),
        (ur.urQueueCreate, (mock.context, other, None)),
        (ur.urPhysicalMemCreate, (mock.context, other, mock.granule, None)),
        (ur.urVirtualMemGranularityGetInfo, (mock.context, other, 1, ur.VirtualMemGranularityInfo.MINIMUM)),
        (ur.urEventCreateExp, (mock.context, other, ur.ExpEventDesc())),
        (ur.urIPCOpenMemHandleExp, (mock.context, other, data)),
    ):
        with refused(R.ERROR_INVALID_DEVICE):
            function(*arguments)
    both = ur.urContextCreate(mock.devices, None)
    ur.urUSMFree(both, ur.urUSMDeviceAlloc(both, other, None, None, 1))


# --- reference counts --------------------------------------------------------------------------------


KINDS = {
    "context": (ur.urContextRetain, ur.urContextRelease, R.ERROR_INVALID_CONTEXT, ur.ContextInfo.REFERENCE_COUNT),
    "queue": (ur.urQueueRetain, ur.urQueueRelease, R.ERROR_INVALID_QUEUE, None),
    "event": (ur.urEventRetain, ur.urEventRelease, R.ERROR_INVALID_EVENT, ur.EventInfo.REFERENCE_COUNT),
    "physical": (
        ur.urPhysicalMemRetain, ur.urPhysicalMemRelease, R.ERROR_INVALID_MEM_OBJECT,
        ur.PhysicalMemInfo.REFERENCE_COUNT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_reference_counts(rt: Runtime, kind: str) -> None:
    retain, release, dead, asked = KINDS[kind]
    made = {"context": lambda: ur.urContextCreate([rt.device], None), "event": rt.event, "physical": rt.physical,
            "queue": lambda: ur.urQueueCreate(rt.context, rt.device, None)}[kind]()  # fmt: skip
    count = {
        "context": ur.urContextGetInfo,
        "event": ur.urEventGetInfo,
        "physical": ur.urPhysicalMemGetInfo,
    }.get(kind)
    if count:
        assert count(made, asked) == 1
    retain(made)
    retain(made)
    if count:
        assert count(made, asked) == 3
    for _ in range(3):
        release(made)
    assert "released" in repr(made)
    for function in (retain, release):
        with refused(dead):
            function(made)
    if count:
        with refused(dead):
            count(made, asked)


@pytest.mark.parametrize("kind", KINDS)
def test_reference_counts_from_many_threads(rt: Runtime, kind: str) -> None:
    retain, release, dead, _ = KINDS[kind]
    made = {"context": lambda: ur.urContextCreate([rt.device], None), "event": rt.event, "physical": rt.physical,
            "queue": lambda: ur.urQueueCreate(rt.context, rt.device, None)}[kind]()  # fmt: skip

    def work() -> None:
        for _ in range(500):
            retain(made)
            release(made)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    release(made)
    with refused(dead):
        release(made)


# --- queues -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "result"),
    [
        (ur.QueueFlags.PRIORITY_HIGH | ur.QueueFlags.PRIORITY_LOW, R.ERROR_INVALID_QUEUE_PROPERTIES),
        (ur.QueueFlags.SUBMISSION_BATCHED | ur.QueueFlags.SUBMISSION_IMMEDIATE, R.ERROR_INVALID_QUEUE_PROPERTIES),
        (ur.QueueFlags.ON_DEVICE, R.ERROR_UNSUPPORTED_FEATURE),
        (ur.QueueFlags.USE_DEFAULT_STREAM, R.ERROR_UNSUPPORTED_FEATURE),
        (1 << 12, R.ERROR_INVALID_ENUMERATION),
    ],
)
def test_queue_flags_that_are_refused(rt: Runtime, flags: int, result: ur.Result) -> None:
    with refused(result):
        ur.urQueueCreate(rt.context, rt.device, ur.QueueProperties(flags))


def test_queue_flags(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in ur.urDeviceGetInfo(rt.device, D.QUEUE_PROPERTIES):
        ur.urQueueRelease(ur.urQueueCreate(rt.context, rt.device, ur.QueueProperties(flag)))
    rt.without(monkeypatch, Aspect.ext_oneapi_per_event_profiling)
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        ur.urQueueCreate(rt.context, rt.device, ur.QueueProperties(ur.QueueFlags.PROFILING_ENABLE))


def test_released_queue_finishes_what_it_has(rt: Runtime) -> None:
    queue = ur.urQueueCreate(rt.context, rt.device, None)
    pointer = rt.memory()
    with rt.held(queue) as let_go:
        event = ur.urEnqueueUSMFill(queue, pointer, b"x", 64, None)
        ur.urQueueRelease(queue)
        assert rt.status(event) is ur.EventStatus.SUBMITTED
        let_go()
        ur.urEventWait([event])
    assert rt.read(pointer, 64) == b"x" * 64
    with refused(R.ERROR_INVALID_QUEUE):
        ur.urQueueFinish(queue)


def test_driver_errors(mock: Runtime) -> None:
    from xpushare.adapters.mock import driver

    for error, result in (
        (None, R.ERROR_ADAPTER_SPECIFIC),
        (OSError(12, "no memory"), R.ERROR_OUT_OF_HOST_MEMORY),
        (OSError(24, "no fds"), R.ERROR_OUT_OF_RESOURCES),
        (MemoryError(), R.ERROR_OUT_OF_HOST_MEMORY),
    ):
        driver().fail("memfd", error)
        xs.trim()  # else kept memory serves
        with pytest.raises(ur.URError) as raised:
            mock.memory()
        assert raised.value.result is result
    driver().fail("memfd", OSError(24, "no fds"))
    with pytest.raises(ur.URError) as raised:
        mock.physical()
    assert (raised.value.result, raised.value.native) == (R.ERROR_OUT_OF_RESOURCES, 24)


def test_layers_serve_this_face_too(rt: Runtime, capfd: pytest.CaptureFixture[str]) -> None:
    xs.enable_layers("UR_LAYER_TRACING")
    try:
        data = ur.urIPCGetMemHandleExp(rt.context, rt.memory())
        ur.urIPCPutMemHandleExp(rt.context, data)
    finally:
        xs.enable_layers()
    traced = capfd.readouterr().err
    assert all(f"---> {name}" in traced for name in ("urUSMDeviceAlloc", "urIPCGetMemHandleExp"))
    length = len(data)
    wanted = f".hContext = {id(rt.context):#x}, .pIPCMemHandleData = {{{length} bytes}}) -> UR_RESULT_SUCCESS;"
    assert f"   <--- urIPCPutMemHandleExp({wanted}\n" in traced
    ur.urUSMFree(rt.context, rt.memory())
    assert capfd.readouterr().err == ""
