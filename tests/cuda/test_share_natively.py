"""`share` of other libraries' arrays of CUDA memory by one native call, over a scripted driver."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

import pytest
from scripted_driver import MIB2, Range, ScriptedDriver

import xpushare as xs
from exchange import Tensor, capsule
from harness import wait_until
from xpushare import _device, _hand_over, _tree, adapters
from xpushare._array_handle import checked_parts
from xpushare._native import Leaves, Recogniser, Scopes
from xpushare.adapters import vendor
from xpushare.adapters.cuda._adapter import Cuda
from xpushare.core.ordering import current_work
from xpushare.sharing import node
from xpushare.sharing.handle import Fields, fields_of

pytestmark = pytest.mark.skipif(bool(_hand_over.off), reason="the native way is switched off")

START = 0x7D00_0000_0000
ENTER = ["cuThreadExchangeStreamCaptureMode", "cuCtxPushCurrent"]
LEAVE = ["cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"]
IDLE = [*ENTER, "cuStreamIsCapturing", "cuStreamQuery", *LEAVE]
NEW = ["cuPointerGetAttributes", *ENTER, "cuIpcGetMemHandle", *LEAVE, *IDLE]


class OfALibrary:
    """An array of 64 bytes, 512 bytes behind `start`."""

    streams: list[int]  # which the library works on now

    def __init__(self, start: int = START, ordinal: int = 0) -> None:
        self.start = start
        self.ordinal = ordinal
        self.dims = (ctypes.c_int64 * 2)(4, 16)

    def fill(self, tensor: Tensor) -> None:
        tensor.data, tensor.byte_offset, tensor.on, tensor.ordinal = self.start, 512, 2, self.ordinal
        tensor.ndim, tensor.shape = 2, ctypes.addressof(self.dims)
        tensor.code, tensor.bits, tensor.lanes = 1, 8, 1

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        stream = self.streams[-1] or 1
        return {"shape": (4, 16), "typestr": "|u1", "data": (self.start + 512, False), "version": 3, "stream": stream}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    driver = ScriptedDriver()
    made = Cuda(driver)
    monkeypatch.setattr(_device, "_known", {})
    monkeypatch.setattr(node.current(), "foreign", WeakValueDictionary())
    monkeypatch.setattr(vendor, "_loaded", {*vendor._loaded, "libcuda.so.1"})
    monkeypatch.setitem(adapters._adapters, "cuda", made)
    made.devices()
    yield made
    gc.collect()
    assert made.engine.teardown.settle(5)
    wait_until(lambda: driver.balanced)
    assert not driver.unsafe


@pytest.fixture
def driver(cuda: Cuda) -> ScriptedDriver:
    found: ScriptedDriver = cuda._driver.api
    return found


@pytest.fixture
def library(cuda: Cuda, driver: ScriptedDriver) -> type[OfALibrary]:
    """A library whose memory native code finds, on the legacy default stream."""
    streams = [0]
    space = {"streams": streams, "__dlpack_c_exchange_api__": capsule(OfALibrary.fill, lambda _on, _id: streams[-1])}
    made = type("ArrayOfALibrary", (OfALibrary,), space)
    driver.foreign = [Range(START, MIB2, 0, legacy=1, buffer=70)]
    for _ in range(3):  # Python makes the context, and introduces the device
        xs.share(made()).close()
    assert cuda.recogniser is not None
    driver.calls.clear()
    return made


def long_way(array: Any) -> xs.ArrayHandle:
    _hand_over.off.append("a test")
    try:
        return xs.share(array)
    finally:
        _hand_over.off.clear()


def fields(handle: xs.ArrayHandle) -> Fields:
    return fields_of(checked_parts(handle).memory)


def entry_of(handle: xs.ArrayHandle) -> bytes:
    """The payload of the export's entry."""
    table = node.current().table()
    entry = table._view[table._entry_address(fields(handle).entry) - table.address :][:256]
    return bytes(entry[128:])


def export_of(handle: xs.ArrayHandle) -> Any:
    return node.current().table()._exports[fields(handle).generation]


def exports() -> int:
    return len(node.current().table().exports())


def natively(array: Any) -> xs.ArrayHandle:
    found = _hand_over.share(array)
    assert found is not None
    return found


def test_what_is_known_is_asked_for_its_number_only(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library()
    for _ in range(2):
        with natively(array) as handle:
            assert driver.calls == ["cuPointerGetAttribute", *IDLE]
            assert export_of(handle).keep is array
            driver.calls.clear()
            with long_way(array) as expected:
                same(handle, expected)
            driver.calls.clear()


def same(handle: xs.ArrayHandle, expected: xs.ArrayHandle) -> None:
    assert checked_parts(handle)[1:] == checked_parts(expected)[1:]
    mine, others = fields(handle), fields(expected)
    for name in ("backend", "device_uuid", "object", "offset", "nbytes", "exposed_nbytes", "flags", "kind"):
        assert getattr(mine, name) == getattr(others, name), name
    assert entry_of(handle) == entry_of(expected)
    export, other = export_of(handle), export_of(expected)
    assert export.source is other.source
    assert export.foreign is other.foreign is True
    assert (export.implicit, export.nbytes) == (other.implicit, other.nbytes)


def test_new_memory_is_asked_for_all_at_once(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    array = library(START + MIB2)
    with natively(array) as handle:
        assert driver.calls == NEW
        allocation = export_of(handle).source
        with long_way(array) as expected:
            same(handle, expected)
        assert driver.calls.count("cuIpcGetMemHandle") == 1, "Python knows its handle, too"
    driver.calls.clear()
    with natively(array) as handle:
        assert export_of(handle).source is allocation
        assert driver.calls == ["cuPointerGetAttribute", *IDLE]


def test_what_python_has_found_is_the_same(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    array = library(START + MIB2)
    with long_way(array) as expected, natively(array) as handle:
        same(handle, expected)


def test_an_allocation_is_what_python_makes(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    array, found = library(START + MIB2), []
    for share in natively, long_way:
        node.current().foreign.clear()
        with share(array) as handle:
            found.append(export_of(handle).source)
    mine, other = found
    assert mine is not other
    end, another = (each._end for each in found)
    assert end._release == another._release
    for name in "_arguments", "_forks", "forget", "keep":
        assert getattr(end, name) == getattr(another, name), name
    for name in {*mine.__slots__, "device", "forks"} - {"prepared", "_end"}:
        assert getattr(mine, name) == getattr(other, name), name
        assert type(getattr(mine, name)) is type(getattr(other, name)), name
    assert mine.driver is other.driver


def of_tree(handle: Any) -> list[Any]:
    """The exports behind a tree's handle."""
    table = node.current().table()
    return [table._exports[fields_of(each).generation] for each in handle.handles]


def test_trees_are_found_by_the_same_calls(
    library: type[OfALibrary], driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python places the first array of a kind; memory that is new is asked for all at once."""
    monkeypatch.setattr(_tree._Placing, "_locate", None)  # it looks for none of the others
    driver.foreign += [Range(START + index * MIB2, MIB2, 0, legacy=1, buffer=70 + index) for index in range(1, 4)]
    arrays = [library(START + index * MIB2) for index in range(4)]
    new = ["cuPointerGetAttributes", *ENTER, "cuIpcGetMemHandle", *LEAVE]
    with xs.share(arrays) as handle:
        assert driver.calls == ["cuPointerGetAttribute", *3 * new, *IDLE]
        driver.calls.clear()
        with xs.share(arrays) as again:
            assert driver.calls == [*4 * ["cuPointerGetAttribute"], *IDLE]
            driver.calls.clear()
            _hand_over.off.append("a test")
            with xs.share(arrays) as expected:
                _hand_over.off.clear()
                for one, two, three in zip(*map(of_tree, (handle, again, expected)), strict=True):
                    assert one.source is two.source is three.source
                    assert one.foreign is two.foreign is three.foreign is True
                    assert (one.implicit, one.nbytes) == (two.implicit, two.nbytes) == (three.implicit, three.nbytes)
                raw = [[fields_of(each) for each in every.handles] for every in (handle, again, expected)]
                for name in ("backend", "device_uuid", "object", "offset", "nbytes", "exposed_nbytes", "flags", "kind"):
                    one, two, three = ([getattr(each, name) for each in every] for every in raw)
                    assert one == two == three, name
            assert "cuIpcGetMemHandle" not in driver.calls, "Python knows their handles, too"


@pytest.mark.parametrize("options", [{"read_only": True}, {"stream": -1}, {"opens": 1}, {"copy": True}], ids=str)
def test_trees_with_options(library: type[OfALibrary], driver: ScriptedDriver, options: dict[str, Any]) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    arrays = [library(), library(START + MIB2)]
    if "read_only" in options:
        with pytest.raises(xs.FeatureNotSupportedError, match="read-only"):
            xs.share(arrays, **options)
        return
    with xs.share(arrays, **options) as handle:
        assert [each.source.address for each in of_tree(handle)] == [START, START + MIB2]
        assert handle.copied_nbytes == 0


def test_python_finds_in_a_tree_what_native_code_does_not(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """What comes after it is found natively again."""
    driver.foreign += [Range(START + index * MIB2, MIB2, 0, legacy=1, buffer=70 + index) for index in range(1, 5)]
    arrays = [library(START + index * MIB2) for index in range(5)]
    driver.fail = {1: 999}  # the question for the second array's memory
    with xs.share(arrays) as handle:
        assert [each.source.address for each in of_tree(handle)] == [each.start for each in arrays]
        assert driver.calls.count("cuIpcGetMemHandle") == 4
    for wrong in ([], {}), (Leaves([]), []):
        with pytest.raises(TypeError, match="leaves and a dict"):
            _hand_over.find_all(*wrong)  # type: ignore[arg-type]


def test_what_a_tree_may_not_contain(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """Memory that cannot be exported, and imports, are refused as arrays by themselves are; nothing stays exported."""
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=0, buffer=71))
    before = exports()
    with pytest.raises(xs.FeatureNotSupportedError) as refusal:
        xs.share({"first": library(), "second": library(START + MIB2)})
    assert "['second']" in str(refusal.value.__notes__)
    assert exports() == before


def test_each_failing_call_of_a_tree_is_tried_in_python(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    for index in range(1, 7):  # after that of the first array's number
        start = START + index * MIB2
        driver.foreign.append(Range(start, MIB2, 0, legacy=1, buffer=70 + index))
        driver.mine.clear()
        driver.fail = {index: 999}
        with xs.share([library(), library(start)]) as handle:
            assert [each.source.address for each in of_tree(handle)] == [START, start]
        if driver.mine[index] in LEAVE:
            driver.stacks.clear()  # what the driver refused to take back
            driver.modes.clear()
    driver.fail = {}


def test_memory_that_is_allocated_anew_at_its_address_is_new(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library()
    with natively(array) as first:
        driver.foreign[0].facts["buffer"] = 99
        with natively(array) as second:
            assert fields(first).object != fields(second).object
            assert export_of(first).source is not export_of(second).source
        driver.foreign = [Range(START - MIB2, 4 * MIB2, 0, legacy=1, buffer=100)]
        with natively(array) as third:
            assert fields(third).offset == MIB2 + 512
            with long_way(array) as expected:
                same(third, expected)
    driver.foreign = []
    with pytest.raises(xs.FeatureNotSupportedError, match="does not know memory"):
        xs.share(array)


def test_as_many_as_are_remembered_and_more(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """The place of 70 is also that of 70 + 1024. What is met again has its number in handles still."""
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=70 + 1024))
    arrays, objects = (library(), library(START + MIB2)), set()
    for _ in range(2):
        for array in arrays:
            with natively(array) as handle:
                objects.add((array.start, fields(handle).object))
    assert len(objects) == 2


def test_addresses_that_are_guessed_by_one_place_take_turns(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """One question suffices for the one that was shared last, though another had its place in between."""
    far = START + 256 * MIB2
    driver.foreign.append(Range(far, MIB2, 0, legacy=1, buffer=71))
    array, other = library(), library(far)
    for each in (array, other, array):
        natively(each).close()
    driver.calls.clear()
    natively(array).close()
    assert driver.calls == ["cuPointerGetAttribute", *IDLE]


@pytest.mark.parametrize("facts", [{"managed": 1}, {"memory_type": 1}, {}, {"pool": 5}], ids=str)
def test_memory_that_cannot_be_shared_is_pythons_to_refuse(
    library: type[OfALibrary], driver: ScriptedDriver, facts: dict[str, int]
) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, buffer=71, **{"legacy": "managed" in facts} | facts))
    before = exports()
    with pytest.raises(xs.FeatureNotSupportedError, match=f"{START + MIB2:#x}|{START + MIB2 + 512:#x}"):
        xs.share(library(START + MIB2))
    assert exports() == before


def test_bytes_beyond_their_allocation_are_pythons_to_refuse(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library(START + MIB2 - 544)  # known, and the last bytes are not in it
    with pytest.raises(xs.InvalidArgumentError, match="beyond their allocation"):
        xs.share(array)
    driver.foreign[0].facts["buffer"] = 99  # the same of new memory
    with pytest.raises(xs.InvalidArgumentError, match="beyond their allocation"):
        xs.share(array)


def test_memory_of_ours_is_not_another_librarys(
    library: type[OfALibrary], driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    here = node.current()
    monkeypatch.setitem(here.peers._cache, "something", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(type(here.peers), "maps", lambda _self, at: at == START + MIB2 + 512)
        with pytest.raises(xs.InvalidArgumentError, match="imported memory"):
            xs.share(library(START + MIB2))
    with natively(library(START + MIB2)) as handle:
        allocation = export_of(handle).source
    driver.foreign.append(Range(START + 2 * MIB2, MIB2, 0, legacy=1, buffer=72))
    with monkeypatch.context() as patch:
        patch.setattr(here.allocations, "_starts", [START])
        patch.setattr(type(here.allocations), "find", lambda _self, _at: allocation)
        natively(library(START + MIB2)).close()  # it is known not to be ours
        with pytest.raises(xs.InvalidArgumentError, match="beyond their allocation"):
            xs.share(library(START + 2 * MIB2))


def test_work_on_the_stream(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library()
    driver.stuck[1].append(lambda: False)
    with natively(array) as handle, long_way(array) as expected:
        parts, others = checked_parts(handle), checked_parts(expected)
        assert parts.event is not None
        assert (parts.event, parts.point + 1) == (others.event, others.point)
        keep = export_of(handle).keep
        assert keep[0] is array
        del keep
        driver.stuck[1][0] = lambda: True
        driver.settle()
    with natively(array) as handle:
        assert handle.event is None


def test_a_capture_is_refused(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    before = exports()
    driver.capturing.add(1)
    with pytest.raises(xs.InvalidArgumentError, match="captured into a graph"):
        xs.share(library())
    assert exports() == before
    driver.capturing.clear()
    xs.share(library()).close()


def test_a_broken_device_is_asked_no_more(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library()
    driver.sticky = 700
    with pytest.raises(xs.DeviceError, match="700"):
        xs.share(array)
    driver.sticky = 0
    driver.stuck[1].append(lambda: False)
    with natively(array) as handle:
        assert handle.event is None, "as Python has it: there is no more work"
    driver.stuck.clear()


def test_another_device(library: type[OfALibrary], driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.foreign += [Range(START + each * MIB2, MIB2, 1, legacy=1, buffer=70 + each) for each in (1, 2)]
    for _ in range(2):
        natively(library(START + MIB2, 1)).close()  # Python makes the context, and introduces the device
    name, current = driver.cuIpcGetMemHandle, list[int]()

    def named(address: int) -> tuple[Any, ...]:
        current.append(driver.cuCtxGetCurrent()[1])
        made: tuple[Any, ...] = name(address)
        return made

    monkeypatch.setattr(driver, "cuIpcGetMemHandle", named)
    driver.calls.clear()
    with natively(library(START + 2 * MIB2, 1)) as handle:
        assert "cuPointerGetAttribute" not in driver.calls, "native code has found it"
        assert export_of(handle).source.device == xs.Device("cuda:1")
    assert current == [driver.contexts[1]]
    assert _hand_over.share(library(START + 2 * MIB2, 0)) is None, "it is not on the device that the array says"


@pytest.mark.parametrize("number", [2, 0x5000])
def test_other_streams(library: type[OfALibrary], driver: ScriptedDriver, number: int) -> None:
    library.streams.append(number)
    array = library()
    for _ in range(2):
        natively(array).close()
    driver.stuck[number].append(lambda: False)
    with natively(array) as handle:
        assert handle.event is not None
    driver.stuck[number][0] = lambda: True
    driver.settle()


def test_each_failing_call_is_tried_in_python(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    for index in range(12):
        driver.foreign.append(Range(START + (index + 1) * MIB2, MIB2, 0, legacy=1, buffer=80 + index))
        driver.mine.clear()
        driver.fail = {index: 999}
        before = exports()
        handle = xs.share(library(START + (index + 1) * MIB2))
        assert exports() == before + 1
        handle.close()
        if driver.mine[index] not in LEAVE:
            assert driver.mine != NEW, f"Python has asked again after {driver.mine[index]}"
        else:
            driver.stacks.clear()  # what the driver refused to take back
            driver.modes.clear()
    driver.fail = {}


@pytest.mark.parametrize(
    "name", ["cuPointerGetAttributes", "cuIpcGetMemHandle", "cuCtxPushCurrent", "cuStreamQuery", "cuStreamIsCapturing"]
)
def test_a_call_that_fails_is_pythons_error(library: type[OfALibrary], driver: ScriptedDriver, name: str) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    before = exports()
    driver.fail_named[name] = 201
    with pytest.raises(xs.DeviceError, match=rf"{name} failed with .* \(201\)"):
        xs.share(library(START + MIB2))
    driver.fail_named.clear()
    assert exports() == before
    xs.share(library(START + MIB2)).close()


def test_a_forked_child_leaves_it_to_python(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            xs.share(xs.empty(3))  # the child has a table
            driver.calls.clear()
            _hand_over.share(array)
        except xs.ForkError:
            code = int(driver.calls != ["cuPointerGetAttribute"])  # Python's, by the binding
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_threads_share_new_memory_at_once(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    numbers = range(1, 20)
    driver.foreign += [Range(START + each * MIB2, MIB2, 0, legacy=1, buffer=70 + each) for each in numbers]
    start, found = threading.Barrier(4), list[tuple[int, int]]()

    def share_all() -> None:
        start.wait(10)
        for each in numbers:
            with xs.share(library(START + each * MIB2)) as handle:
                found.append((each, fields(handle).object))

    threads = [threading.Thread(target=share_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4 * len(numbers)
    assert len(set(found)) == len(numbers), "one number for each allocation"


class Interrupt:
    """As in tests/core/test_interrupts.py, in all code that runs."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.thread = threading.get_ident()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event not in ("call", "c_return") or "xpushare" not in frame.f_code.co_filename:
            return
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_name in ("__del__", "_abandoned", "call"):
                return
            above = above.f_back
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:unclosed <ArrayHandle:ResourceWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_interrupts(library: type[OfALibrary], driver: ScriptedDriver, busy: bool) -> None:
    if busy:
        driver.stuck[1].append(lambda: False)
        xs.share(library()).close()
    gc.collect()
    table = node.current().table()
    before, nth, interrupt = set(table._exports), 0, Interrupt(0)
    while interrupt.left <= 0:
        nth += 1
        driver.foreign = [Range(START, MIB2, 0, legacy=1, buffer=100 + nth)]
        array, interrupt = library(), Interrupt(nth)
        sys.setprofile(interrupt)
        try:
            xs.share(array).close()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        gc.collect()
        for implicit in False, True:  # what the interrupt took on its way to the caller, or to `mark`
            for each in [each for each in table._exports.values() if each.implicit == implicit]:
                if fields_of(each.handle).generation not in before:
                    table.put(each.handle)
            gc.collect()
        assert set(table._exports) == before, f"interrupted at point {nth}"
        wait_until(lambda: driver.balanced, what=f"interrupted at point {nth}")  # our threads ask the driver, too
        with natively(array) as handle:
            assert (handle.event is not None) == busy
        gc.collect()
    assert nth > 10
    if busy:
        driver.stuck[1][0] = lambda: True
        driver.settle()


# --- what native code is given


def test_scopes() -> None:
    calls: list[Any] = []
    fails: list[str] = []
    on_mode = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
    on_context = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)

    def exchange(mode: Any) -> int:
        calls.append(("mode", mode[0]))
        mode[0] = 5
        return 9 if "mode" in fails else 0

    def push(context: int) -> int:
        calls.append(("push", context))
        return 8 if "push" in fails else 0

    def pop(_at: int) -> int:
        calls.append("pop")
        return 0

    functions = on_mode(exchange), on_context(push), on_context(pop)
    at: list[Any] = [ctypes.cast(each, ctypes.c_void_p).value for each in functions]

    def failed(step: int, code: int) -> Exception:
        return LookupError(step, code)

    both = Scopes(failed, (at[0], 2), (at[1], 77), at[2])
    with both(), Scopes(failed, (at[0], 3))(), Scopes(failed, push=(at[1], 78), pop=at[2])(), Scopes(failed)():
        entered = calls.copy()
    assert entered == [("mode", 2), ("push", 77), ("mode", 3), ("push", 78)]
    assert calls[4:] == ["pop", ("mode", 5), "pop", ("mode", 5)]
    for step, name in enumerate(("mode", "push")):
        calls.clear()
        fails[:] = [name]
        with pytest.raises(LookupError) as caught, both():
            pytest.fail("it is not entered")
        assert caught.value.args == (step, 9 - step)
    assert calls == [("mode", 2), ("push", 77), ("mode", 5)]
    with pytest.raises(ValueError, match="neither"):
        Scopes(failed, push=(at[1], 1))
    with pytest.raises(TypeError, match="no arguments"):
        both(1)  # type: ignore[call-arg]


def test_a_recogniser_takes_what_it_can_use(cuda: Cuda) -> None:
    make: Callable[..., object] = object
    for attributes, wanted, payload, size_at, why in (
        ((1, 2, 3, 4), (), bytes(65), 0, "64 bytes follow"),
        ((1, 2, 3, 4), (), bytes(16), 9, "64 bytes follow"),
        ((1, 2, 3, 4), (), bytes(16), 0xFFFFFFF8, "64 bytes follow"),
        ((1, 2, 3), (), bytes(16), 8, "attributes"),
        ((1, 2, 3, 4, 5), (), bytes(16), 8, "attributes"),
        (tuple(range(17)), (0,) * 13, bytes(16), 8, "attributes"),
    ):
        with pytest.raises(ValueError, match=why):
            Recogniser(make, 1, 1, 1, attributes, wanted, payload, size_at)
    made = Recogniser(make, 1, 1, 1, (1, 2, 3, 4), (), bytes(16), 8)
    made.add(64, None, cuda._driver.relaxed, None)  # of more devices than it takes Python finds the memory
    with pytest.raises(TypeError, match="takes 4"):
        made.add(1)  # type: ignore[call-arg]


def test_idle_checks_are_for_queues_that_a_driver_can_be_asked_of(library: type[OfALibrary]) -> None:
    work, host = current_work(xs.Device("cuda:0"), library(), 0), current_work(xs.Device("mock:0"), object())
    assert work is not None
    assert work.driver.idle_check is not None
    assert host is not None
    assert host.driver.idle_check is None
