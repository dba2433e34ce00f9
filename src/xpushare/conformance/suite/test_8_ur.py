"""Section 8: the functions of Unified Runtime (`xpushare.ur`). The expected errors for wrong arguments are derived from
the declarations in `ur._functions`. The tests of all other rules are written by hand.
"""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import gc
import itertools
import pickle
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import xpushare as xs
from xpushare import Aspect, ur
from xpushare.conformance import actions
from xpushare.conformance.harness import TIMEOUT, Child, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule
from xpushare.ur import _enums, _spec, _structs
from xpushare.ur._spec import FUNCTIONS, Arg, Function

R = ur.Result
NBYTES = 4096
IPC_PAGES = ur.PhysicalMemProperties(ur.PhysicalMemFlags.ENABLE_IPC)
IPC_EVENT = ur.ExpEventDesc(ur.ExpEventFlags.IPC_EXP)
RW = ur.VirtualMemAccessFlags.READ_WRITE


class Face:
    """A device of `xpushare.ur` with a context and a queue, for use in tests. `close` frees the objects that a test has
    made.
    """

    def __init__(self, name: str) -> None:
        wanted = xs.Device(name)
        self.made: list[Any] = []
        self.device = next(
            device
            for device in self.devices()  # a device of another backend may have the same uuid
            if ur.urDeviceGetInfo(device, ur.DeviceInfo.UUID) == _uuid(wanted) and f" {wanted.backend}:" in repr(device)
        )
        self.platform = ur.urDeviceGetInfo(self.device, ur.DeviceInfo.PLATFORM)
        self.adapter = ur.urPlatformGetInfo(self.platform, ur.PlatformInfo.ADAPTER)
        self.shared = wanted
        self.allocated: list[int] = []
        self.context = self.own(ur.urContextCreate([self.device], None))
        self.queue = self.own(ur.urQueueCreate(self.context, self.device, None))

    def devices(self) -> list[ur.Device]:
        return [
            self.own(device)
            for adapter in map(self.own, ur.urAdapterGet())
            for platform in ur.urPlatformGet(adapter)
            for device in ur.urDeviceGet(platform, ur.DeviceType.ALL)
        ]

    def own(self, handle: Any) -> Any:
        """Return the handle, and make `close` release it unless the test has released it."""
        self.made.append(handle)
        return handle

    def has(self, aspect: Aspect) -> bool:
        return self.shared.has(aspect)

    def memory(self, size: int = NBYTES) -> int:
        pointer = ur.urUSMDeviceAlloc(self.context, self.device, None, None, size)
        self.allocated.append(pointer)
        return pointer

    @property
    def granule(self) -> int:
        return ur.urVirtualMemGranularityGetInfo(self.context, self.device, 1, ur.VirtualMemGranularityInfo.MINIMUM)

    def event(self, desc: ur.ExpEventDesc | None = None) -> Any:
        return self.own(ur.urEventCreateExp(self.context, self.device, desc or ur.ExpEventDesc()))

    def signal(self, event: ur.Event, queue: ur.Queue | None = None) -> ur.Event:
        return ur.urEnqueueEventsWaitWithBarrierExt(queue or self.queue, None, None, event)

    def status(self, event: ur.Event) -> ur.EventStatus:
        return ur.urEventGetInfo(event, ur.EventInfo.COMMAND_EXECUTION_STATUS)

    def fill(self, pointer: int, pattern: bytes, size: int) -> None:
        ur.urEventWait([self.own(ur.urEnqueueUSMFill(self.queue, pointer, pattern, size, []))])

    def read(self, pointer: int, size: int) -> bytes:
        with xs.malloc_host(size, self.shared) as host:
            self.own(ur.urEnqueueUSMMemcpy(self.queue, True, host.ptr, pointer, size, None))
            with memoryview(host) as view:
                return bytes(view)

    @contextmanager
    def held(self, queue: ur.Queue) -> Generator[Callable[[], None], None, None]:
        """Context manager. Commands that are enqueued inside do not run until the yielded function is called."""
        gate = self.event(IPC_EVENT)
        data = ur.urIPCGetEventHandleExp(gate)
        opened = xs.ipc.event.open(data)
        queue.shared.wait(opened, at_least=1)
        other = self.own(ur.urQueueCreate(self.context, self.device, None))

        def release() -> None:
            if not opened.pending:
                self.signal(gate, other)

        try:
            yield release
        finally:
            release()
            ur.urQueueFinish(queue)
            ur.urIPCPutEventHandleExp(self.context, data)

    def close(self) -> None:
        for pointer in self.allocated:
            ur.urUSMFree(self.context, pointer)
        for handle in reversed(self.made):
            release = getattr(ur, f"ur{type(handle).__name__}Release", None)  # not every kind has a release function
            if release is not None and handle.references:
                release(handle)


def _uuid(device: xs.Device) -> bytes:
    import uuid

    return uuid.UUID(device.uuid).bytes


def result_of(call: Callable[[], Any]) -> ur.Result:
    """Call the function. Return `SUCCESS`, or the `result` of the `URError` that it raises. Also checks that this error
    can be pickled.
    """
    try:
        call()
    except ur.URError as error:
        found = error
    else:
        return R.SUCCESS
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), again.result, str(again)) == (ur.URError, found.result, str(found))
    return found.with_traceback(None).result


def refused(result: ur.Result, function: Callable[..., Any], *args: Any) -> None:
    found = result_of(lambda: function(*args))
    assert found is result, f"{getattr(function, '__name__', function)}: {found!r}, not {result!r}"


@pytest.fixture
def face(pair: Pair) -> Iterator[Face]:
    found = Face(pair.exporter)
    yield found
    found.close()
    gc.collect()


@pytest.fixture
def importing(pair: Pair) -> Iterator[Face]:
    """Yield a `Face` for the importing process's device."""
    found = Face(pair.importer)
    yield found
    found.close()
    gc.collect()


@pytest.fixture
def commands(face: Face) -> None:
    """A fixture for tests that enqueue commands. Each command returns an event. If the device has no events and refuses
    the commands, skip the test.
    """
    if face.has(Aspect.ext_oneapi_ipc_event):
        return
    result = result_of(lambda: ur.urEnqueueEventsWait(face.queue, None))
    if result is not R.SUCCESS:
        assert result is R.ERROR_UNSUPPORTED_FEATURE
        pytest.skip("commands return events, and the device has none; refused with ERROR_UNSUPPORTED_FEATURE")


# --- arguments --------------------------------------------------------------------------------------------------------

_CONTEXT_SCOPE: dict[str, Any] = {
    "invalid_bits": _enums.invalid_bits,
    **{name: getattr(_enums, name) for name in _enums.__all__ if name[0].isupper()},
}


def _good(face: Face, arg: Arg) -> Any:
    """Return a valid value for the argument. The tested function never uses the value, because another argument is
    wrong.
    """
    family, _, name = arg.base_kind.partition(":")
    if family == "handle":
        simple: dict[str, Any] = {
            "adapter": face.adapter, "platform": face.platform, "device": face.device, "context": face.context,
            "queue": face.queue,
        }  # fmt: skip
        if name in simple:
            return simple[name]
        if name == "event":
            return face.event()
        if name == "mem":
            return ur.urMemBufferCreate(face.context, ur.MemFlags.READ_WRITE, 64, None)
        if name == "usm_pool":
            return ur.urUSMPoolCreate(face.context, ur.USMPoolDesc())
        if not face.has(Aspect.ext_oneapi_virtual_mem):
            return None
        return face.own(ur.urPhysicalMemCreate(face.context, face.device, face.granule, None))
    if family == "sequence":
        return [face.device] if name == "device" else [face.event()]
    if name in ("BufferRegion", "RectRegion"):
        return ur.BufferRegion(0, 8) if name == "BufferRegion" else ur.RectRegion(1, 1, 1)
    if family in ("struct", "value"):
        return getattr(ur, name)()
    if family == "enum":
        return next(iter(getattr(ur, name)))
    values: dict[str, Any] = {
        "pointer": 4096,
        "size": 64,
        "bool": False,
        "flags": 0,
        "bytes": bytes(256),
        "pattern": b"x",
        "string": "text",
        "callback": print,
        "data": None,
    }
    return values[family]


def _faults(arg: Arg) -> list[Any]:
    """Return values to try for the argument. Most of them are invalid."""
    family, _, name = arg.base_kind.partition(":")
    if family in ("handle", "bytes", "string", "callback"):
        return [None]
    if family == "sequence":
        return [None, [], [None]]
    if family in ("enum", "flags"):
        return [-1 if family == "enum" else 1 << 31, 0x7FFFFFFF, max(getattr(ur, name))]
    if family == "struct":
        cls = getattr(ur, name)
        kinds = _structs.FIELD_KINDS[name].items()
        found: list[Any] = [None, *(cls(**{field: 1 << 31}) for field, kind in kinds if kind.startswith("flags:"))]
        if name == "BufferRegion":
            found.append(cls())
        if name == "USMDesc":
            found.append(cls(align=3))
        if name == "QueueProperties":
            flags = ur.QueueFlags
            found += [
                cls(flags.PRIORITY_HIGH | flags.PRIORITY_LOW),
                cls(flags.SUBMISSION_BATCHED | flags.SUBMISSION_IMMEDIATE),
            ]
        if name == "ExpEventDesc":
            found.append(cls(ur.ExpEventFlags.IPC_EXP | ur.ExpEventFlags.ENABLE_PROFILING))
        return found
    if name == "RectRegion":
        return [ur.RectRegion()]
    others: dict[str, list[Any]] = {"pointer": [None, 0], "size": [0, 3], "pattern": [None, b"", b"x" * 65, b"xyz"]}
    return others.get(family, [])


def _expected(function: Function, arguments: dict[str, Any]) -> str | None:
    """Return the name of the result code of the first check that rejects the arguments, or None if all checks pass."""
    seen = {}
    for arg in function.args:
        value = arguments[arg.name]
        if arg.kind.startswith("sequence:") and arg.optional:
            value = value or ()
        seen[arg.name] = 0 if arg.base_kind == "pointer" and value is None else value
    for check in function.checks:
        if eval(check.condition, {**_CONTEXT_SCOPE, **seen}):
            return check.result
    return None


@rule("8.1")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.misuse
def test_arguments(face: Face, name: str) -> None:
    function = FUNCTIONS[name]
    if "handle:physical_mem" in {arg.base_kind for arg in function.args} and not face.has(
        Aspect.ext_oneapi_virtual_mem
    ):
        pytest.skip("the device lacks ext_oneapi_virtual_mem")
    call = getattr(ur, name)
    provoked = set()
    for arg in function.args:
        for fault in _faults(arg):
            arguments = {each.name: fault if each is arg else _good(face, each) for each in function.args}
            expected = _expected(function, arguments)
            if expected is not None:
                refused(R.__members__[expected], call, *arguments.values())
                provoked.add(expected)
    # With two invalid arguments, the first check in UR's order decides.
    for one, two in itertools.combinations([arg for arg in function.args if _faults(arg)], 2):
        arguments = {each.name: _faults(each)[0] if each in (one, two) else _good(face, each) for each in function.args}
        expected = _expected(function, arguments)
        if expected is not None:
            refused(R.__members__[expected], call, *arguments.values())
    assert provoked == {check.result for check in function.checks}, "a check that nothing here provokes"


@rule("8.2")
@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if any("handle:" in arg.kind for arg in FUNCTIONS[name].args)]
)
@pytest.mark.misuse
def test_dead_handles(face: Face, name: str) -> None:
    dead_context = ur.urContextCreate([face.device], None)
    ur.urContextRelease(dead_context)
    dead_queue = ur.urQueueCreate(face.context, face.device, None)
    ur.urQueueRelease(dead_queue)
    dead_event = face.event()
    ur.urEventRelease(dead_event)
    dead: dict[str, tuple[Any, ur.Result]] = {
        "handle:context": (dead_context, R.ERROR_INVALID_CONTEXT),
        "handle:queue": (dead_queue, R.ERROR_INVALID_QUEUE),
        "handle:event": (dead_event, R.ERROR_INVALID_EVENT),
    }
    if face.has(Aspect.ext_oneapi_virtual_mem):
        pages = face.own(ur.urPhysicalMemCreate(face.context, face.device, face.granule, None))
        ur.urPhysicalMemRelease(pages)
        dead["handle:physical_mem"] = pages, R.ERROR_INVALID_MEM_OBJECT
    elif any(arg.base_kind == "handle:physical_mem" for arg in FUNCTIONS[name].args):
        pytest.skip("the device lacks ext_oneapi_virtual_mem")
    for arg in FUNCTIONS[name].args:
        if arg.base_kind in dead:
            gone, result = dead[arg.base_kind]
            for wrong in (gone, face.device, "text"):
                values = [wrong if each is arg else _good(face, each) for each in FUNCTIONS[name].args]
                refused(result, getattr(ur, name), *values)
        elif arg.base_kind.startswith("handle:"):
            values = [face.context if each is arg else _good(face, each) for each in FUNCTIONS[name].args]
            assert result_of(lambda values=values: getattr(ur, name)(*values)) is not R.SUCCESS  # type: ignore[misc]


# --- handle data ------------------------------------------------------------------------------------------------------


@rule("8.3")
@pytest.mark.misuse
def test_handle_data(face: Face, peer: Child, pair: Pair) -> None:
    good = peer.call(actions.export, "good", "memory", pair.exporter)
    put = peer.call(actions.export, "put", "memory", pair.exporter)
    peer.call(actions.put, "memory", put)
    with Child() as child:
        dead = child.call(actions.export, "dead", "memory", pair.exporter)
        child.kill()
    for data in (b"", good[:-1], good + b"\0", bytes(256), good[:-1] + bytes([good[-1] ^ 1]), put, dead):
        refused(R.ERROR_INVALID_VALUE, ur.urIPCOpenMemHandleExp, face.context, face.device, data)
    for data in (good, put, bytes(256)):  # handles of another process, or not a handle
        refused(R.ERROR_INVALID_VALUE, ur.urIPCPutMemHandleExp, face.context, data)
    others: list[Callable[[bytes], Any]] = []
    if face.has(Aspect.ext_oneapi_ipc_event):
        others += [
            lambda data: ur.urIPCOpenEventHandleExp(face.context, data),
            lambda data: ur.urIPCPutEventHandleExp(face.context, data),
        ]
    if face.has(Aspect.ext_oneapi_ipc_physical_memory):
        others += [
            lambda data: ur.urIPCOpenPhysMemHandleExp(face.context, face.device, data),
            lambda data: ur.urIPCPutPhysMemHandleExp(face.context, data),
        ]
    for call in others:
        for data in (b"", bytes(256), good):  # `good` is a handle of another kind
            refused(R.ERROR_INVALID_VALUE, call, data)
    own = ur.urIPCGetMemHandleExp(face.context, face.memory())
    ur.urIPCPutMemHandleExp(face.context, own)
    refused(R.ERROR_INVALID_VALUE, ur.urIPCPutMemHandleExp, face.context, own)
    refused(R.ERROR_INVALID_VALUE, ur.urIPCOpenMemHandleExp, face.context, face.device, own)
    pointer = ur.urUSMDeviceAlloc(face.context, face.device, None, None, NBYTES)
    freed = ur.urIPCGetMemHandleExp(face.context, pointer)
    ur.urUSMFree(face.context, pointer)
    refused(R.ERROR_INVALID_VALUE, ur.urIPCOpenMemHandleExp, face.context, face.device, freed)
    ur.urIPCPutMemHandleExp(face.context, freed)  # allowed once, even after the free


@pytest.mark.usefixtures("commands")
@rule("8.4")
@pytest.mark.misuse
def test_addresses(face: Face, peer: Child, pair: Pair) -> None:
    data = peer.call(actions.export, "theirs", "memory", pair.exporter, b"theirs")
    opened = ur.urIPCOpenMemHandleExp(face.context, face.device, data)
    assert face.read(opened, 6) == b"theirs"
    refused(R.ERROR_INVALID_MEM_OBJECT, ur.urUSMFree, face.context, opened)
    refused(R.ERROR_INVALID_ARGUMENT, ur.urIPCGetMemHandleExp, face.context, opened)
    again = ur.urIPCOpenMemHandleExp(face.context, face.device, data)
    ur.urIPCCloseMemHandleExp(face.context, again)
    assert face.read(opened, 6) == b"theirs"  # each open needs its own close
    ur.urIPCCloseMemHandleExp(face.context, opened)
    refused(R.ERROR_INVALID_ARGUMENT, ur.urIPCCloseMemHandleExp, face.context, opened)
    pointer = face.memory()
    for wrong in (8, pointer + 1):
        refused(R.ERROR_INVALID_MEM_OBJECT, ur.urUSMFree, face.context, wrong)
    refused(R.ERROR_INVALID_ARGUMENT, ur.urIPCCloseMemHandleExp, face.context, pointer)
    refused(R.ERROR_INVALID_ARGUMENT, ur.urIPCGetMemHandleExp, face.context, 8)
    refused(R.ERROR_INVALID_MEM_OBJECT, ur.urEnqueueUSMFill, face.queue, 8, b"x", 8, None)
    refused(R.ERROR_INVALID_MEM_OBJECT, ur.urEnqueueUSMMemcpy, face.queue, True, pointer, 8, 8, None)
    face.fill(pointer + 100, b"i", 8)
    inner = ur.urIPCGetMemHandleExp(face.context, pointer + 100)  # any address inside the allocation
    peer.call(actions.open_, "inner", "memory", inner)
    assert peer.call(actions.read, "inner", 8) == b"i" * 8
    ur.urIPCPutMemHandleExp(face.context, inner)
    extra = ur.urUSMDeviceAlloc(face.context, face.device, None, None, NBYTES)
    ur.urUSMFree(face.context, extra)
    refused(R.ERROR_INVALID_MEM_OBJECT, ur.urUSMFree, face.context, extra)


@rule("8.5")
@pytest.mark.misuse
def test_sizes(face: Face) -> None:
    pointer, small = face.memory(), face.memory(64)
    queue, size = face.queue, R.ERROR_INVALID_SIZE
    refused(size, ur.urEnqueueUSMMemcpy, queue, True, small, pointer, 65, None)
    refused(size, ur.urEnqueueUSMMemcpy, queue, True, pointer, small, 65, None)
    refused(size, ur.urEnqueueUSMMemcpy, queue, True, pointer + NBYTES - 8, small, 9, None)
    refused(size, ur.urEnqueueUSMFill, queue, pointer + 1, b"x", NBYTES, None)
    refused(size, ur.urEnqueueUSMFill, queue, small, b"xy", 66, None)
    huge = 1 << 62
    told = result_of(lambda: ur.urDeviceGetInfo(face.device, ur.DeviceInfo.MAX_MEM_ALLOC_SIZE)) is R.SUCCESS
    too_large = R.ERROR_INVALID_USM_SIZE if told else R.ERROR_OUT_OF_HOST_MEMORY
    for alloc in (ur.urUSMDeviceAlloc, ur.urUSMSharedAlloc):
        refused(too_large, alloc, face.context, face.device, None, None, huge)
        refused(R.ERROR_INVALID_VALUE, alloc, face.context, face.device, ur.USMDesc(align=1 << 20), None, 64)
    refused(too_large, ur.urUSMHostAlloc, face.context, None, None, huge)
    ur.urUSMFree(face.context, ur.urUSMHostAlloc(face.context, ur.USMDesc(align=64), None, 64))
    if face.has(Aspect.ext_oneapi_virtual_mem):
        for wrong in (1, face.granule + 1):
            refused(size, ur.urPhysicalMemCreate, face.context, face.device, wrong, None)


@pytest.mark.usefixtures("commands")
@rule("8.6")
@pytest.mark.misuse
def test_virtual_memory(face: Face) -> None:
    one, context, value = face.granule, face.context, R.ERROR_INVALID_VALUE
    start = ur.urVirtualMemReserve(context, None, 4 * one)
    pages = ur.urPhysicalMemCreate(context, face.device, one, None)
    ur.urVirtualMemMap(context, start + one, one, pages, 0, RW)
    face.fill(start + one, b"v", 8)
    assert face.read(start + one, 8) == b"v" * 8
    info = ur.VirtualMemInfo.ACCESS_MODE
    assert ur.urVirtualMemGetInfo(context, start + one, one, info) == RW
    assert ur.urVirtualMemGetInfo(context, start, one, info) == ur.VirtualMemAccessFlags.NONE
    ur.urVirtualMemSetAccess(context, start + one, one, ur.VirtualMemAccessFlags.READ_ONLY)
    assert ur.urVirtualMemGetInfo(context, start + one, one, info) == ur.VirtualMemAccessFlags.READ_ONLY
    for args in (
        (start + one, one, pages, 0, RW),
        (start + 1, one, pages, 0, RW),
        (start, one + 1, pages, 0, RW),
        (start, 2 * one, pages, 0, RW),
        (start, one, pages, one, RW),
        (start + 4 * one, one, pages, 0, RW),
        (8, one, pages, 0, RW),
    ):
        refused(value, ur.urVirtualMemMap, context, *args)
    for at, size in ((start, one), (start + one, 2 * one), (start + one + 1, one), (8, one)):
        refused(value, ur.urVirtualMemUnmap, context, at, size)
        refused(value, ur.urVirtualMemSetAccess, context, at, size, RW)
    refused(value, ur.urVirtualMemGetInfo, context, 8, one, info)
    for at, size in ((start, 4 * one), (start, one), (start + one, one), (8, one)):
        refused(value, ur.urVirtualMemFree, context, at, size)  # mapped, or not the whole range
    refused(value, ur.urVirtualMemReserve, context, None, one + 1)
    ur.urVirtualMemUnmap(context, start + one, one)
    ur.urVirtualMemFree(context, start, 4 * one)
    refused(value, ur.urVirtualMemFree, context, start, 4 * one)
    ur.urPhysicalMemRelease(pages)


@pytest.mark.usefixtures("commands")
@rule("8.7")
@pytest.mark.misuse
def test_events(face: Face) -> None:
    plain, command = face.event(), face.own(ur.urEnqueueEventsWait(face.queue, None))
    assert face.status(plain) is ur.EventStatus.COMPLETE
    refused(R.ERROR_INVALID_EVENT, ur.urIPCGetEventHandleExp, plain)
    refused(R.ERROR_INVALID_EVENT, ur.urIPCGetEventHandleExp, command)
    refused(R.ERROR_INVALID_EVENT, ur.urEnqueueEventsWaitWithBarrierExt, face.queue, None, None, command)
    refused(R.ERROR_INVALID_EVENT_WAIT_LIST, ur.urEnqueueEventsWaitWithBarrierExt, face.queue, None, [plain], plain)
    for function in (ur.urEnqueueEventsWait, ur.urEnqueueEventsWaitWithBarrier):
        refused(R.ERROR_INVALID_EVENT_WAIT_LIST, function, face.queue, [face.context])
        ur.urEventWait([face.own(function(face.queue, [plain, command])), face.own(function(face.queue, []))])
    if face.has(Aspect.ext_oneapi_ipc_event):
        event = face.event(IPC_EVENT)
        data = ur.urIPCGetEventHandleExp(event)
        opened = face.own(ur.urIPCOpenEventHandleExp(face.context, data))
        ur.urIPCPutEventHandleExp(face.context, data)
        refused(R.ERROR_INVALID_EVENT, ur.urIPCGetEventHandleExp, opened)
        with face.held(face.queue) as release:
            assert face.signal(opened) is opened
            assert face.status(event) is ur.EventStatus.SUBMITTED
            other = face.own(ur.urQueueCreate(face.context, face.device, None))
            waiting = face.own(ur.urEnqueueEventsWait(other, [event]))
            assert face.status(waiting) is ur.EventStatus.SUBMITTED
            release()
            ur.urEventWait([event, waiting])
        assert face.status(opened) is ur.EventStatus.COMPLETE


@rule("8.7")
def test_events_without_ipc(face: Face) -> None:
    if face.has(Aspect.ext_oneapi_ipc_event):
        face.event(IPC_EVENT)
    else:
        refused(R.ERROR_UNSUPPORTED_FEATURE, ur.urEventCreateExp, face.context, face.device, IPC_EVENT)


@rule("8.8")
@pytest.mark.misuse
def test_physical_memory(face: Face) -> None:
    pages = face.own(ur.urPhysicalMemCreate(face.context, face.device, face.granule, None))
    refused(R.ERROR_INVALID_ARGUMENT, ur.urIPCGetPhysMemHandleExp, face.context, pages)
    refused(R.ERROR_INVALID_ARGUMENT, ur.urIPCClosePhysMemHandleExp, face.context, pages)
    if face.has(Aspect.ext_oneapi_ipc_physical_memory):
        shared = face.own(ur.urPhysicalMemCreate(face.context, face.device, face.granule, IPC_PAGES))
        data = ur.urIPCGetPhysMemHandleExp(face.context, shared)
        opened = face.own(ur.urIPCOpenPhysMemHandleExp(face.context, face.device, data))
        assert ur.urPhysicalMemGetInfo(opened, ur.PhysicalMemInfo.SIZE) == face.granule
        ur.urIPCPutPhysMemHandleExp(face.context, ur.urIPCGetPhysMemHandleExp(face.context, opened))
        ur.urPhysicalMemRelease(shared)
        ur.urIPCPutPhysMemHandleExp(face.context, data)
        ur.urIPCClosePhysMemHandleExp(face.context, opened)
        refused(R.ERROR_INVALID_MEM_OBJECT, ur.urIPCClosePhysMemHandleExp, face.context, opened)
    else:
        refused(R.ERROR_UNSUPPORTED_FEATURE, ur.urPhysicalMemCreate, face.context, face.device, face.granule, IPC_PAGES)


@rule("8.9")
@pytest.mark.misuse
def test_counting(face: Face) -> None:
    kinds: list[tuple[Any, Callable[..., Any], Callable[..., Any], Callable[[], Any] | None]] = [
        (ur.urContextCreate([face.device], None), ur.urContextRetain, ur.urContextRelease, None),
        (ur.urQueueCreate(face.context, face.device, None), ur.urQueueRetain, ur.urQueueRelease, None),
    ]
    event = face.event()
    count = ur.EventInfo.REFERENCE_COUNT
    kinds.append((event, ur.urEventRetain, ur.urEventRelease, lambda: ur.urEventGetInfo(event, count)))
    if face.has(Aspect.ext_oneapi_virtual_mem):
        pages = face.own(ur.urPhysicalMemCreate(face.context, face.device, face.granule, None))
        info = ur.PhysicalMemInfo.REFERENCE_COUNT
        kinds.append(
            (pages, ur.urPhysicalMemRetain, ur.urPhysicalMemRelease, lambda: ur.urPhysicalMemGetInfo(pages, info))
        )
    for handle, retain, release, counted in kinds:
        retain(handle)
        retain(handle)
        assert counted is None or counted() == 3
        release(handle)
        release(handle)
        assert counted is None or counted() == 1
        retain(handle)
        release(handle)
        release(handle)
        assert result_of(lambda retain=retain, handle=handle: retain(handle)) is not R.SUCCESS  # type: ignore[misc]
        assert result_of(lambda release=release, handle=handle: release(handle)) is not R.SUCCESS  # type: ignore[misc]
        assert "released" in repr(handle)


_SUPPORT = {
    ur.DeviceInfo.IPC_MEMORY_SUPPORT_EXP: Aspect.ext_oneapi_ipc_memory,
    ur.DeviceInfo.IPC_PHYSICAL_MEMORY_SUPPORT_EXP: Aspect.ext_oneapi_ipc_physical_memory,
    ur.DeviceInfo.IPC_EVENT_SUPPORT_EXP: Aspect.ext_oneapi_ipc_event,
    ur.DeviceInfo.VIRTUAL_MEMORY_SUPPORT: Aspect.ext_oneapi_virtual_mem,
    ur.DeviceInfo.PER_EVENT_PROFILING_SUPPORT_EXP: Aspect.ext_oneapi_per_event_profiling,
}


@rule("8.10")
def test_queries(face: Face) -> None:
    pointer = face.memory(100)
    ask = ur.USMAllocInfo
    found = [
        ur.urUSMGetMemAllocInfo(face.context, pointer + 50, each)
        for each in (ask.TYPE, ask.BASE_PTR, ask.SIZE, ask.DEVICE)
    ]
    assert found == [ur.USMType.DEVICE, pointer, 100, face.device]
    assert ur.urUSMGetMemAllocInfo(face.context, 8, ask.TYPE) is ur.USMType.UNKNOWN
    refused(R.ERROR_INVALID_VALUE, ur.urUSMGetMemAllocInfo, face.context, 8, ask.SIZE)
    for query, aspect in _SUPPORT.items():
        assert ur.urDeviceGetInfo(face.device, query) is face.has(aspect), query
    assert ur.urDeviceGetInfo(face.device, ur.DeviceInfo.NAME) == face.shared.name
    assert face.device in list(map(face.own, ur.urDeviceGet(face.platform, ur.DeviceType.ALL)))
    for info, declared in _spec.INFOS.items():
        ask_one: dict[str, Callable[[Any], Any]] = {
            "AdapterInfo": lambda query: ur.urAdapterGetInfo(face.adapter, query),
            "PlatformInfo": lambda query: ur.urPlatformGetInfo(face.platform, query),
            "DeviceInfo": lambda query: ur.urDeviceGetInfo(face.device, query),
            "ContextInfo": lambda query: ur.urContextGetInfo(face.context, query),
        }
        if info in ask_one:
            good = {R.SUCCESS, R.ERROR_UNSUPPORTED_ENUMERATION} if info == "DeviceInfo" else {R.SUCCESS}
            for name in declared.kinds:
                result = result_of(lambda ask=ask_one[info], info=info, name=name: ask(getattr(ur, info)[name]))  # type: ignore[misc]
                assert result in good, (info, name, result)
    if face.has(Aspect.ext_oneapi_virtual_mem):
        pages = face.own(ur.urPhysicalMemCreate(face.context, face.device, face.granule, None))
        asked = ur.PhysicalMemInfo
        values = [
            ur.urPhysicalMemGetInfo(pages, each) for each in (asked.CONTEXT, asked.DEVICE, asked.SIZE, asked.PROPERTIES)
        ]
        assert values == [face.context, face.device, face.granule, ur.PhysicalMemProperties()]


@pytest.mark.usefixtures("commands")
@rule("8.10")
def test_event_queries(face: Face) -> None:
    event = face.event()
    assert ur.urEventGetInfo(event, ur.EventInfo.CONTEXT) == face.context
    ur.urEventWait([face.signal(event)])
    assert ur.urEventGetInfo(event, ur.EventInfo.COMMAND_QUEUE) == face.queue
    for name in _spec.INFOS["EventInfo"].kinds:
        assert result_of(lambda name=name: ur.urEventGetInfo(event, ur.EventInfo[name])) is R.SUCCESS, name  # type: ignore[misc]


@rule("8.10")
@pytest.mark.parametrize(
    "name", ["urAdapterGetInfo", "urPlatformGetInfo", "urDeviceGetInfo", "urContextGetInfo", "urEventGetInfo"]
)
def test_unknown_queries(face: Face, name: str) -> None:
    function = FUNCTIONS[name]
    kind = function.args[1].kind.partition(":")[2]
    members = {int(each) for each in getattr(ur, kind)}
    gap = next((number for number in range(max(members)) if number not in members), None)
    if gap is not None:  # a value that only a newer Unified Runtime may define
        refused(R.ERROR_UNSUPPORTED_ENUMERATION, getattr(ur, name), _good(face, function.args[0]), gap)


# --- across processes -------------------------------------------------------------------------------------------------


def _peer_face(device: str) -> Face:
    if "face" not in kept:
        kept["face"] = Face(device)
    face: Face = kept["face"]
    return face


def _ur_export_memory(device: str) -> bytes:
    face = _peer_face(device)
    kept["pointer"] = ur.urUSMDeviceAlloc(face.context, face.device, None, None, NBYTES)
    face.fill(kept["pointer"], b"ur", NBYTES)
    return ur.urIPCGetMemHandleExp(face.context, kept["pointer"])


def _ur_end_memory(device: str, data: bytes) -> bytes:
    face = _peer_face(device)
    found = face.read(kept["pointer"], 8)
    ur.urIPCPutMemHandleExp(face.context, data)
    ur.urUSMFree(face.context, kept.pop("pointer"))
    return found


def _ur_export_event(device: str) -> bytes:
    kept["event"] = _peer_face(device).event(IPC_EVENT)
    return ur.urIPCGetEventHandleExp(kept["event"])


def _ur_signal(device: str) -> None:
    face = _peer_face(device)
    face.signal(kept["event"])
    ur.urQueueFinish(face.queue)


def _ur_export_pages(device: str, size: int) -> bytes:
    face = _peer_face(device)
    kept["pages"] = ur.urPhysicalMemCreate(face.context, face.device, size, IPC_PAGES)
    start = ur.urVirtualMemReserve(face.context, None, size)
    ur.urVirtualMemMap(face.context, start, size, kept["pages"], 0, RW)
    face.fill(start, b"page", size)
    ur.urVirtualMemUnmap(face.context, start, size)
    ur.urVirtualMemFree(face.context, start, size)
    return ur.urIPCGetPhysMemHandleExp(face.context, kept["pages"])


@pytest.mark.usefixtures("commands")
@rule("8.11")
@pytest.mark.parametrize("kind", ["memory"])
def test_memory_across(pair: Pair, importing: Face, peer: Child, kind: str) -> None:
    face = importing
    data = peer.call(_ur_export_memory, pair.exporter)
    assert xs.ipc.Handle(data).kind == kind
    pointer = ur.urIPCOpenMemHandleExp(face.context, face.device, data)
    assert face.read(pointer, 8) == b"urururur"
    face.fill(pointer, b"importer", 8)
    with xs.ipc.memory.open(data, device=pair.importer) as memory:
        assert actions.read_bytes(memory, 8) == b"importer"
    assert peer.call(_ur_end_memory, pair.exporter, data) == b"importer"
    assert face.read(pointer, 8) == b"importer"
    ur.urIPCCloseMemHandleExp(face.context, pointer)
    refused(R.ERROR_INVALID_VALUE, ur.urIPCOpenMemHandleExp, face.context, face.device, data)


@rule("8.11")
@pytest.mark.parametrize("kind", ["physical_memory"])
def test_pages_across(pair: Pair, importing: Face, peer: Child, kind: str) -> None:
    face = importing
    data = peer.call(_ur_export_pages, pair.exporter, pair.granule)
    pages = face.own(ur.urIPCOpenPhysMemHandleExp(face.context, face.device, data))
    start = ur.urVirtualMemReserve(face.context, None, pair.granule)
    ur.urVirtualMemMap(face.context, start, pair.granule, pages, 0, RW)
    assert face.read(start, 8) == b"pagepage"
    ur.urIPCClosePhysMemHandleExp(face.context, pages)
    assert face.read(start, 8) == b"pagepage"  # the mapping keeps the pages alive
    ur.urVirtualMemUnmap(face.context, start, pair.granule)
    ur.urVirtualMemFree(face.context, start, pair.granule)
    with verbs_open(kind, data, pair.importer) as shared:
        assert actions.read_bytes(shared, 4) == b"page"


def verbs_open(kind: str, data: bytes, device: str) -> Any:
    return actions.verbs(kind).open(data, device=device)


@rule("8.11")
@pytest.mark.parametrize("kind", ["event"])
def test_event_across(pair: Pair, importing: Face, peer: Child, kind: str) -> None:
    face = importing
    data = peer.call(_ur_export_event, pair.exporter)
    event = ur.urIPCOpenEventHandleExp(face.context, data)
    assert face.status(event) is ur.EventStatus.COMPLETE
    peer.call(_ur_signal, pair.exporter)
    ur.urEventWait([event])
    with verbs_open(kind, data, pair.importer) as shared:
        assert (shared.value, shared.pending) == (1, 1)
    if face.has(Aspect.two_way_events):
        face.signal(event)
        ur.urQueueFinish(face.queue)
        assert peer.call(actions.attempt, _ur_wait_for) == ""
    ur.urEventRelease(event)


def _ur_wait_for() -> None:
    ur.urEventWait([kept["event"]])
    assert kept["event"].shared.value == 2


@pytest.mark.usefixtures("commands")
@rule("8.12")
def test_profiling(face: Face) -> None:
    names = ur.ProfilingInfo
    plain = face.own(ur.urEnqueueEventsWait(face.queue, None))
    ur.urEventWait([plain])
    for asked in names:
        refused(R.ERROR_PROFILING_INFO_NOT_AVAILABLE, ur.urEventGetProfilingInfo, plain, asked)
    profiled = ur.ExpEventDesc(ur.ExpEventFlags.ENABLE_PROFILING)
    if not face.has(Aspect.ext_oneapi_per_event_profiling):
        refused(R.ERROR_UNSUPPORTED_FEATURE, ur.urEventCreateExp, face.context, face.device, profiled)
        return
    event = face.event(profiled)
    refused(R.ERROR_PROFILING_INFO_NOT_AVAILABLE, ur.urEventGetProfilingInfo, event, names.COMMAND_END)
    last = 0
    for _ in range(2):
        face.signal(event)
        ur.urEventWait([event])
        start, end = (ur.urEventGetProfilingInfo(event, each) for each in (names.COMMAND_START, names.COMMAND_END))
        assert last <= start <= end
        assert end > 0
        last = end


@rule("8.13")
def test_lost(pair: Pair, face: Face) -> None:
    event = face.event(IPC_EVENT)
    data = ur.urIPCGetEventHandleExp(event)
    with Child() as child:
        child.call(actions.open_, "event", "event", data, pair.importer)
        child.call(actions.hold, "queue", pair.importer)
        assert child.call(actions.owe, "queue", "event") == 1
        assert face.status(event) is ur.EventStatus.SUBMITTED
        child.kill()
    refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS, ur.urEventWait, [event])
    assert face.status(event) is ur.EventStatus.ERROR
    refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS, ur.urEnqueueEventsWait, face.queue, [event])
    face.signal(event)
    ur.urEventWait([event])
    assert face.status(event) is ur.EventStatus.COMPLETE
    ur.urIPCPutEventHandleExp(face.context, data)


@rule("8.14")
def test_contexts(face: Face) -> None:
    second = face.own(ur.urContextCreate([face.device], None))
    pointer = face.memory()
    refused(R.ERROR_INVALID_MEM_OBJECT, ur.urUSMFree, second, pointer)
    strangers = [device for device in face.devices() if device is not face.device]
    for stranger in strangers:
        foreign = face.own(ur.urContextCreate([stranger], None))
        refused(R.ERROR_INVALID_CONTEXT, ur.urIPCGetMemHandleExp, foreign, pointer)
        for call in (
            lambda device: ur.urQueueCreate(face.context, device, None),
            lambda device: ur.urUSMDeviceAlloc(face.context, device, None, None, 64),
            lambda device: ur.urEventCreateExp(face.context, device, ur.ExpEventDesc()),
        ):
            found = result_of(lambda call=call, stranger=stranger: call(stranger))  # type: ignore[misc]
            assert found in (R.ERROR_INVALID_DEVICE, R.ERROR_INVALID_CONTEXT, R.ERROR_INVALID_VALUE), found


_NUMBERS = {
    "SUCCESS": 0, "ERROR_INVALID_OPERATION": 1, "ERROR_INVALID_QUEUE_PROPERTIES": 2, "ERROR_INVALID_QUEUE": 3,
    "ERROR_INVALID_VALUE": 4, "ERROR_INVALID_CONTEXT": 5, "ERROR_INVALID_PLATFORM": 6,
}  # fmt: skip


@rule("8.15")
def test_numbers() -> None:
    for name, number in _NUMBERS.items():
        assert R.__members__[name] == number
    used = {error.result for function in FUNCTIONS.values() for error in function.errors}
    assert used <= set(R.__members__)
    classes = {
        xs.InvalidArgumentError: R.ERROR_INVALID_ARGUMENT, xs.InvalidHandleError: R.ERROR_INVALID_VALUE,
        xs.HandleExpiredError: R.ERROR_INVALID_VALUE, xs.FeatureNotSupportedError: R.ERROR_UNSUPPORTED_FEATURE,
        xs.PeerLostError: R.ERROR_IN_EVENT_LIST_EXEC_STATUS,
    }  # fmt: skip
    for cls, result in classes.items():
        assert cls("what").result is result
    assert TIMEOUT
