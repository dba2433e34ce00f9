"""`share` of other libraries' arrays of CUDA memory over a scripted driver: what the driver is asked, how often."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from scripted_driver import MIB2, Range, ScriptedDriver

import xpushare as xs
from exchange import Tensor, capsule
from harness import wait_until
from sampling import sampled
from xpushare import adapters
from xpushare._native import Driver, End, Importer, Recogniser, Scopes, imported
from xpushare.adapters import vendor
from xpushare.adapters.cuda._adapter import Cuda
from xpushare.sharing import node
from xpushare.sharing.handle import Fields, fields_of

PACKAGE = os.path.dirname(xs.__file__) + os.sep
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
    adapters.record("cuda")  # as whoever makes an adapter does
    made = Cuda(driver)
    monkeypatch.setattr("xpushare.core.device._known", {})
    monkeypatch.setattr(node.current(), "foreign", node.ByName())
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
    """A library whose memory the recogniser finds, on the legacy default stream."""
    streams = [0]
    space = {"streams": streams, "__dlpack_c_exchange_api__": capsule(OfALibrary.fill, lambda _on, _id: streams[-1])}
    made = type("ArrayOfALibrary", (OfALibrary,), space)
    driver.foreign = [Range(START, MIB2, 0, legacy=1, buffer=70)]
    for _ in range(2):  # the first makes the context, and introduces the device to the recogniser
        xs.share(made()).close()
    assert cuda.recogniser is not None
    driver.calls.clear()
    return made


def fields(handle: xs.ArrayHandle) -> Fields:
    return fields_of(handle.handle)


def entry_of(handle: xs.ArrayHandle) -> bytes:
    """The payload of the export's entry."""
    table = node.current().table()
    entry = table._view[table._entry_address(fields(handle).entry) - table.address :][:256]
    return bytes(entry[128:])


def export_of(handle: xs.ArrayHandle) -> Any:
    return node.current().table().find(handle.handle)


def exports() -> int:
    return len(node.current().table().exports())


def says(handle: xs.ArrayHandle, array: OfALibrary) -> None:
    """The handle names exactly the array's bytes, and its entry has the driver's handle of their allocation."""
    mine, export = fields(handle), export_of(handle)
    assert (handle.shape, handle.strides, str(handle.dtype)) == ((4, 16), (16, 1), "uint8")
    assert (mine.backend.rstrip(b"\0"), mine.flags) == (b"cuda", 0)
    assert (mine.offset, mine.nbytes, mine.exposed_nbytes) == (512, 64, MIB2)
    assert entry_of(handle)[8:30] == MIB2.to_bytes(8, "little") + array.start.to_bytes(8, "little") + b"legacy"
    assert (export.source.address, export.source.nbytes, export.source.serial) == (array.start, MIB2, mine.object)
    assert (export.foreign, export.implicit, export.nbytes) == (True, False, MIB2)


def test_what_is_known_is_asked_for_its_number_only(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library()
    for _ in range(2):
        with xs.share(array) as handle:
            assert driver.calls == ["cuPointerGetAttribute", *IDLE]
            assert export_of(handle).keep == [array]
            says(handle, array)
            driver.calls.clear()


def test_new_memory_is_asked_for_all_at_once(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    array = library(START + MIB2)
    with xs.share(array) as handle:
        assert driver.calls == NEW
        allocation = export_of(handle).source
        says(handle, array)
    driver.calls.clear()
    with xs.share(array) as handle:
        assert export_of(handle).source is allocation
        assert driver.calls == ["cuPointerGetAttribute", *IDLE]


def by_address(start: int) -> xs.ipc.Handle:
    return xs.ipc.memory.get(start)


@pytest.mark.parametrize("address_first", [True, False])
def test_memory_is_one_object_however_it_is_found(
    library: type[OfALibrary], driver: ScriptedDriver, address_first: bool
) -> None:
    """An address says nothing of its device, so it is not looked for as an array's memory is."""
    start = START + MIB2
    driver.foreign.append(Range(start, MIB2, 0, legacy=1, buffer=71))
    array = library(start)
    before = by_address(start) if address_first else None
    with xs.share(array) as handle:
        got = before or by_address(start)
        says(handle, array)
        assert fields_of(got).object == fields(handle).object
        found = node.current().table().find(got)
        assert found is not None
        assert found.source is export_of(handle).source
        assert driver.calls.count("cuIpcGetMemHandle") == 1 + address_first
        assert node.current().foreign.get(("cuda", (0, start, MIB2, 71))) is found.source
        driver.calls.clear()
        xs.share(array).close()
        assert driver.calls == ["cuPointerGetAttribute", *IDLE], "it is known however it was found"
        xs.ipc.memory.put(got)


def test_an_allocation_that_is_found(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """It owns nothing of the driver's, and whoever found it, it is the same for all."""
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    with xs.share(library(START + MIB2)) as handle:
        found = export_of(handle).source
        name = "cuda", (0, START + MIB2, MIB2, 71)
        assert node.current().foreign.get(name) is found
        assert (found.kind, found.imported, found.foreign, found.host_accessible) == ("device", False, True, False)
        assert (found.name, found.newest, found.earlier) == (name, None, {})
        driver.calls.clear()
        del found
    gc.collect()
    assert not [each for each in driver.calls if each not in IDLE], "nothing is released"


def of_tree(handle: Any) -> list[Any]:
    """The exports behind a tree's handle."""
    table = node.current().table()
    return [table.find(each) for each in handle.handles]


def test_trees_are_found_by_the_same_calls(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    driver.foreign += [Range(START + index * MIB2, MIB2, 0, legacy=1, buffer=70 + index) for index in range(1, 4)]
    arrays = [library(START + index * MIB2) for index in range(4)]
    new = ["cuPointerGetAttributes", *ENTER, "cuIpcGetMemHandle", *LEAVE]
    with xs.share(arrays) as handle:
        assert driver.calls == ["cuPointerGetAttribute", *3 * new, *IDLE]
        driver.calls.clear()
        with xs.share(arrays) as again:
            assert driver.calls == [*4 * ["cuPointerGetAttribute"], *IDLE]
            for one, two, at, each in zip(of_tree(handle), of_tree(again), again.handles, arrays, strict=True):
                assert one.source is two.source
                assert one.foreign is two.foreign is True
                assert (one.implicit, one.nbytes) == (two.implicit, two.nbytes)
                assert (two.source.address, two.source.serial) == (each.start, fields_of(at).object)
                assert (fields_of(at).offset, fields_of(at).nbytes, fields_of(at).exposed_nbytes) == (512, 64, MIB2)


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


def test_what_the_driver_does_not_say_at_once_is_asked_again(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """What comes after it in the tree is found as ever."""
    driver.foreign += [Range(START + index * MIB2, MIB2, 0, legacy=1, buffer=70 + index) for index in range(1, 5)]
    arrays = [library(START + index * MIB2) for index in range(5)]
    driver.fail = {1: 999}  # the question for the second array's memory
    with xs.share(arrays) as handle:
        assert [each.source.address for each in of_tree(handle)] == [each.start for each in arrays]
        assert driver.calls.count("cuIpcGetMemHandle") == 4


def test_what_a_tree_may_not_contain(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """Memory that cannot be exported, and imports, are refused as arrays by themselves are; nothing stays exported."""
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=0, buffer=71))
    before = exports()
    with pytest.raises(xs.FeatureNotSupportedError) as refusal:
        xs.share({"first": library(), "second": library(START + MIB2)})
    assert str(refusal.value).startswith("at 'second': ")
    assert exports() == before


def test_each_failing_call_of_a_tree_is_tried_again(library: type[OfALibrary], driver: ScriptedDriver) -> None:
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
    with xs.share(array) as first:
        driver.foreign[0].facts["buffer"] = 99
        with xs.share(array) as second:
            assert fields(first).object != fields(second).object
            assert export_of(first).source is not export_of(second).source
        driver.foreign = [Range(START - MIB2, 4 * MIB2, 0, legacy=1, buffer=100)]
        with xs.share(array) as third:
            assert (fields(third).offset, fields(third).nbytes, fields(third).exposed_nbytes) == (
                MIB2 + 512, 64, 4 * MIB2,
            )  # fmt: skip
            assert export_of(third).source.address == START - MIB2
    driver.foreign = []
    with pytest.raises(xs.FeatureNotSupportedError, match="does not know memory"):
        xs.share(array)


def test_as_many_as_are_remembered_and_more(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """The place of 70 is also that of 70 + 8192. What is met again has its number in handles still."""
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=70 + 8192))
    arrays, objects = (library(), library(START + MIB2)), set()
    for _ in range(2):
        for array in arrays:
            with xs.share(array) as handle:
                objects.add((array.start, fields(handle).object))
    assert len(objects) == 2


def test_thousands_of_allocations_are_asked_for_their_numbers_only(
    library: type[OfALibrary], driver: ScriptedDriver
) -> None:
    """As many as torch's allocator takes for a mixture of experts."""
    number = 4000

    def pointer(attribute: int, address: int) -> tuple[int, int]:
        start, at = address // MIB2 * MIB2, (address - START) // MIB2
        return 0, {2: 2, 7: 100 + at, 8: 0, 9: 0, 10: 1, 11: start, 12: MIB2, 14: 0, 17: 0}[attribute]

    driver._pointer = pointer  # type: ignore[method-assign]
    tree = [library(START + at * MIB2) for at in range(number)]
    first = xs.share(tree)
    driver.calls.clear()
    with xs.share(tree) as handle:
        assert [fields_of(each).object for each in handle.handles] == [fields_of(each).object for each in first.handles]
    assert driver.calls == ["cuPointerGetAttribute"] * number + IDLE
    first.close()


def test_addresses_that_are_guessed_by_one_place_take_turns(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """One question suffices for the one that was shared last, though another had its place in between."""
    far = START + 8192 * MIB2
    driver.foreign.append(Range(far, MIB2, 0, legacy=1, buffer=71))
    array, other = library(), library(far)
    for each in (array, other, array):
        xs.share(each).close()
    driver.calls.clear()
    xs.share(array).close()
    assert driver.calls == ["cuPointerGetAttribute", *IDLE]


@pytest.mark.parametrize("facts", [{"managed": 1}, {"memory_type": 1}, {}, {"pool": 5}], ids=str)
def test_memory_that_cannot_be_shared(library: type[OfALibrary], driver: ScriptedDriver, facts: dict[str, int]) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, buffer=71, **{"legacy": "managed" in facts} | facts))
    before = exports()
    with pytest.raises(xs.FeatureNotSupportedError, match=f"{START + MIB2:#x}|{START + MIB2 + 512:#x}"):
        xs.share(library(START + MIB2))
    assert exports() == before


def test_bytes_beyond_their_allocation(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library(START + MIB2 - 544)  # known, and the last bytes are not in it
    with pytest.raises(xs.InvalidArgumentError, match="beyond their allocation"):
        xs.share(array)
    driver.foreign[0].facts["buffer"] = 99  # the same of new memory
    with pytest.raises(xs.InvalidArgumentError, match="beyond their allocation"):
        xs.share(array)


def test_memory_of_ours_is_not_another_librarys(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    xs.share(library()).close()  # from now on the native part finds new memory
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    here, device = node.current(), xs.Device("cuda:0")
    theirs = imported(device, None, "device", START + MIB2, MIB2, False, None, End(None))
    here.peers.mapped.add(theirs)
    with pytest.raises(xs.InvalidArgumentError, match="no handle by which this process opened"):
        xs.share(library(START + MIB2))
    del theirs
    xs.share(library(START + MIB2)).close()
    driver.foreign.append(Range(START + 2 * MIB2, MIB2, 0, legacy=1, buffer=72))
    ours = imported(device, None, "device", START + 2 * MIB2, 520, False, None, End(None))
    here.allocations.add(ours)
    with pytest.raises(xs.InvalidArgumentError, match="beyond their allocation"):
        xs.share(library(START + 2 * MIB2))
    del ours
    xs.share(library(START + 2 * MIB2)).close()


def test_work_on_the_stream(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library()
    driver.stuck[1].append(lambda: False)
    with xs.share(array) as handle, xs.share(array) as later:
        (event, point), (others, next_) = *handle._events, *later._events
        assert (event, point + 1) == (others, next_), "one timeline, a point each"
        keep = export_of(handle).keep
        assert keep[0] == [array]
        del keep
        driver.stuck[1][0] = lambda: True
        driver.settle()
    with xs.share(array) as handle:
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
    with xs.share(array) as handle:
        assert handle.event is None, "there is no more work"
    driver.stuck.clear()


def test_another_device(library: type[OfALibrary], driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.foreign += [Range(START + each * MIB2, MIB2, 1, legacy=1, buffer=70 + each) for each in (1, 2)]
    xs.share(library(START + MIB2, 1)).close()  # makes the context, and introduces the device
    name, current = driver.cuIpcGetMemHandle, list[int]()

    def named(address: int) -> tuple[Any, ...]:
        current.append(driver.cuCtxGetCurrent()[1])
        made: tuple[Any, ...] = name(address)
        return made

    monkeypatch.setattr(driver, "cuIpcGetMemHandle", named)
    driver.calls.clear()
    with xs.share(library(START + 2 * MIB2, 1)) as handle:
        assert "cuPointerGetAttribute" not in driver.calls, "the recogniser has found it"
        assert export_of(handle).source.device == xs.Device("cuda:1")
    assert current == [driver.contexts[1]]
    with xs.share(library(START + 2 * MIB2, 0)) as handle:  # what counts is where it is, not what the array says
        assert export_of(handle).source.device == xs.Device("cuda:1")


@pytest.mark.parametrize("number", [2, 0x5000])
def test_other_streams(library: type[OfALibrary], driver: ScriptedDriver, number: int) -> None:
    library.streams.append(number)
    array = library()
    for _ in range(2):
        xs.share(array).close()
    driver.stuck[number].append(lambda: False)
    with xs.share(array) as handle:
        assert handle.event is not None
    driver.stuck[number][0] = lambda: True
    driver.settle()


def test_what_the_driver_refuses_once(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    """Each call that finds memory, asks its stream or ends a scope: Python makes it once more."""
    for index in range(len(NEW)):
        start = START + (index + 1) * MIB2
        driver.foreign.append(Range(start, MIB2, 0, legacy=1, buffer=80 + index))
        driver.mine.clear()
        driver.fail = {index: 999}
        before = exports()
        with xs.share(library(start)) as handle:
            assert export_of(handle).source.address == start
            assert exports() == before + 1
        assert exports() == before
        if driver.mine[index] in LEAVE:
            driver.stacks.clear()  # what the driver refused to take back
            driver.modes.clear()
    driver.fail = {}


@pytest.mark.parametrize(
    "name",
    [
        "cuPointerGetAttributes", "cuThreadExchangeStreamCaptureMode", "cuCtxPushCurrent", "cuIpcGetMemHandle",
        "cuStreamIsCapturing", "cuStreamQuery",
    ],
)  # fmt: skip
def test_a_call_that_keeps_failing(library: type[OfALibrary], driver: ScriptedDriver, name: str) -> None:
    driver.foreign.append(Range(START + MIB2, MIB2, 0, legacy=1, buffer=71))
    before = exports()
    driver.fail_named[name] = 201
    with pytest.raises(xs.DeviceError, match=rf"{name} failed with .* \(201\)"):
        xs.share(library(START + MIB2))
    driver.fail_named.clear()
    assert exports() == before
    xs.share(library(START + MIB2)).close()


def test_a_forked_child_asks_no_driver(library: type[OfALibrary], driver: ScriptedDriver) -> None:
    array = library()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            xs.share(xs.empty(3))  # the child has a table
            driver.calls.clear()
            xs.share(array)
        except xs.ForkError:
            code = int("cuIpcGetMemHandle" in driver.calls)
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
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_name in ("__del__", "_abandoned", "_withdraw", "_withdraw_all"):  # these an `End` calls
                return
            above = above.f_back
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:unclosed <ArrayHandle:ResourceWarning")
@pytest.mark.parametrize("busy", sampled([False, True], [False]))
def test_interrupts(library: type[OfALibrary], driver: ScriptedDriver, busy: bool) -> None:
    if busy:
        driver.stuck[1].append(lambda: False)
        xs.share(library()).close()
    gc.collect()
    table = node.current().table()
    before, nth, interrupt = table.exports(), 0, Interrupt(0)
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
            for each in [each for each in table.exports() if each.implicit == implicit]:
                if each not in before:
                    table.put(each.handle)
            gc.collect()
        assert table.exports() == before, f"interrupted at point {nth}"
        wait_until(lambda: driver.balanced, what=f"interrupted at point {nth}")  # our threads ask the driver, too
        with xs.share(array) as handle:
            assert (handle.event is not None) == busy
        gc.collect()
    assert nth > 10
    if busy:
        driver.stuck[1][0] = lambda: True
        driver.settle()


# --- what native code is given


CALLS = {"ask_all": 1, "ask": 1, "name": 1, "open": 1, "close": 1, "exchange": 1, "push": 1, "pop": 1}


def native_driver(failed: Callable[[int, int], Exception] = LookupError, **given: Any) -> Driver:
    arguments: dict[str, Any] = {"attributes": (1, 2, 3, 4), "wanted": (), "flags": 0, "mode": 2}
    arguments |= CALLS | given
    return Driver(failed, **arguments)


class Thread:
    """The calls that change the state of a thread, and the names of those that fail."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails: list[str] = []
        self.device = 3
        on_mode = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
        on_context = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
        on_device = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
        functions = {
            "exchange": on_mode(self.exchange),
            "push": on_context(self.push),
            "pop": on_context(lambda _at: self.called("pop")),
            "get": on_mode(self.get),
            "set": on_device(self.set),
            "clear": ctypes.CFUNCTYPE(ctypes.c_int)(lambda: self.called("clear")),
        }
        self._functions = functions
        self.at: dict[str, Any] = {name: ctypes.cast(each, ctypes.c_void_p).value for name, each in functions.items()}

    def called(self, *call: Any) -> int:
        self.calls.append(call if len(call) > 1 else call[0])
        return 9 if call[0] in self.fails else 0

    def exchange(self, mode: Any) -> int:
        asked, mode[0] = mode[0], 5
        return self.called("mode", asked)

    def push(self, context: int) -> int:
        return self.called("push", context)

    def get(self, at: Any) -> int:
        at[0] = self.device
        return self.called("get")

    def set(self, device: int) -> int:
        self.device = device
        return self.called("set", device)


def test_scopes() -> None:
    thread = Thread()
    driver = native_driver(**{name: thread.at[name] for name in ("exchange", "push", "pop")})
    both = Scopes(driver, 77)
    with both(), Scopes(driver)(), Scopes(driver, 78, relaxed=False)(), Scopes()():
        entered = thread.calls.copy()
    assert entered == [("mode", 2), ("push", 77), ("mode", 2), ("push", 78)]
    assert thread.calls[4:] == ["pop", ("mode", 5), "pop", ("mode", 5)]
    for step, name in enumerate(("mode", "push")):
        thread.calls.clear()
        thread.fails[:] = [name]
        with pytest.raises(LookupError) as caught, both():
            pytest.fail("it is not entered")
        assert caught.value.args == (step, 9)
    assert thread.calls == [("mode", 2), ("push", 77), ("mode", 5)]
    with pytest.raises(TypeError, match="no arguments"):
        both(1)  # type: ignore[call-arg]
    thread.calls.clear()
    driver.end()
    with both():
        assert thread.calls == []


def test_scopes_of_devices() -> None:
    """HIP has no stack of contexts. A device that is current already is not set."""
    thread = Thread()
    driver = native_driver(**thread.at | {"push": 0, "pop": 0})
    with Scopes(driver, 3)():
        assert thread.calls == [("mode", 2), "get"]
    assert thread.calls == [("mode", 2), "get", ("mode", 5)]
    thread.calls.clear()
    with Scopes(driver, 1)():
        assert thread.calls == [("mode", 2), "get", ("set", 1)]
    assert thread.calls[3:] == [("set", 3), ("mode", 5)]
    for step, name in enumerate(("mode", "get", "set")):
        thread.calls.clear()
        thread.fails[:] = [name]
        with pytest.raises(LookupError) as caught, Scopes(driver, 1)():
            pytest.fail("it is not entered")
        assert caught.value.args == (step, 9)
    assert thread.calls == [("mode", 2), "get", ("set", 1), ("mode", 5), "clear"]


def test_a_driver_takes_what_it_can_use() -> None:
    for attributes, wanted in ((1, 2, 3), ()), ((1, 2, 3, 4, 5), ()), (tuple(range(17)), (0,) * 13):
        with pytest.raises(ValueError, match="the attributes are 4"):
            native_driver(attributes=attributes, wanted=wanted)
    native_driver(attributes=(), ask_all=0)  # it finds nothing
    lacks: list[dict[str, Any]] = [{name: 0} for name in CALLS if name != "ask_all"]
    for lacking in (*lacks, {"push": 0, "pop": 0, "get": 1}):
        with pytest.raises(ValueError, match="lacks"):
            native_driver(**lacking)


def test_a_recogniser_takes_what_it_can_use(cuda: Cuda) -> None:
    make: Callable[..., object] = object
    driver = native_driver()
    for payload, size_at in (bytes(65), 0), (bytes(16), 9), (bytes(16), 0xFFFFFFF8):
        with pytest.raises(ValueError, match="handle follows"):
            Recogniser(driver, make, payload, size_at, "acme")
    made = Recogniser(driver, make, bytes(16), 8, "acme")
    made.add(64, None, cuda._driver.relaxed, None)  # of more devices than it takes Python finds the memory
    with pytest.raises(TypeError, match="takes 4"):
        made.add(1)  # type: ignore[call-arg]


def test_an_importer_takes_what_it_can_use(cuda: Cuda) -> None:
    scopes, make = cuda._driver.relaxed, lambda *_given: None
    for given, head in (scopes, bytes(57)), (Scopes(), b""):
        with pytest.raises(ValueError, match="no payload has room"):
            Importer(given, head, make, make)
    made = Importer(scopes, b"", make, make)
    with pytest.raises(ValueError, match="two numbers"):  # before anything is opened
        made.open_all([bytes(72)], [0], memoryview(bytearray(8)))
    with pytest.raises(TypeError, match="list of payloads"):
        made.open_all([], [0], memoryview(b""))
    with pytest.raises(TypeError, match="takes Fields"):
        made.open(None, make, None, None)  # type: ignore[arg-type]
    into = memoryview(bytearray(16))
    assert made.open_all([bytes(71)], [0], into) is None
    assert made.open_all([bytes(72)], [1], into) is None
    assert bytes(into) == bytes(16)
