"""Each call of each multi-step operation fails in turn: an error of ours, nothing left, and the next try works."""

from __future__ import annotations

import errno
import os
import pickle
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from peering import GRANULE, PAGE, exported, exported_event, exported_physical, holdings, read_physical

import xpushare as xs
from harness import Child, kept
from sampling import sampled
from xpushare import adapters
from xpushare.common import system
from xpushare.sharing import node
from xpushare.sharing.handle import fields_of

# Every function of `system` that can fail; constants and types of results aside.
CALLS = [name for name in system.__all__ if callable(getattr(system, name))]
ERRNOS = {errno.EMFILE: xs.OutOfMemoryError, errno.ENOMEM: xs.OutOfMemoryError, errno.EIO: xs.XpuShareError}


class Injector:
    """Stands before every function of `_system`; the nth call of one of them fails."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self.fail: tuple[str, int, int] | None = None
        self.failed = False
        for name in CALLS:
            patch.setattr(system, name, self._wrap(name, getattr(system, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.counts[name] += 1
            if self.fail is not None and self.fail[:2] == (name, self.counts[name]):
                self.failed = True
                raise OSError(self.fail[2], os.strerror(self.fail[2]))
            return real(*arguments, **options)

        return call

    @contextmanager
    def failing(self, name: str, nth: int, number: int) -> Iterator[None]:
        self.counts.clear()
        self.fail = (name, nth, number)
        self.failed = False
        try:
            yield
        finally:
            self.fail = None


def fail_each(
    injector: Injector,
    operation: Callable[[], Any],
    undo: Callable[[Any], None],
    settle: Callable[[], None] = lambda: None,
) -> list[str]:
    """`operation` with each system call of it failing in turn; what went wrong with that. `settle` runs after each."""
    injector.counts.clear()
    result = operation()  # what it calls when nothing fails
    called = dict(injector.counts)
    undo(result)
    result = None
    settle()
    assert called, "it makes no system call: nothing is tested"
    wrong = []
    for name, count in called.items():
        for nth in range(1, count + 1):
            for number, error in ERRNOS.items():
                before = holdings()
                with injector.failing(name, nth, number):
                    result = None
                    try:
                        result = operation()
                    except error:
                        pass
                    except BaseException as other:
                        wrong.append(f"{name} #{nth} {errno.errorcode[number]}: {type(other).__name__}: {other}")
                    else:
                        undo(result)
                        if name not in TOLERATED:
                            wrong.append(f"{name} #{nth} {errno.errorcode[number]}: the failure went unnoticed")
                    result = None
                settle()
                if injector.failed and (after := holdings()) != before:
                    wrong.append(f"{name} #{nth} {errno.errorcode[number]}: left {difference(before, after)}")
                undo(operation())  # and the next try works
                settle()
    return wrong


# A failure of these is made up for by another way: by the next route, say.
TOLERATED = {"pidfd_getfd", "pidfd_open", "connect", "send", "receive", "import_mapping"}


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    return ", ".join(f"{key}: {before[key]} -> {after[key]}" for key in before if before[key] != after[key])


@pytest.fixture
def injector(monkeypatch: pytest.MonkeyPatch, exporting: None) -> Injector:  # noqa: ARG001
    return Injector(monkeypatch)


def close(thing: Any) -> None:
    thing.close()


OWN: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "malloc_device": (lambda: xs.malloc_device(PAGE, "native_cpu:0"), close),
    "malloc_host": (lambda: xs.malloc_host(PAGE, "native_cpu:0"), close),
    "malloc_shared": (lambda: xs.malloc_shared(PAGE, "native_cpu:0"), close),
    "PhysicalMemory": (lambda: xs.PhysicalMemory(GRANULE, "native_cpu:0", enable_ipc=True), close),
    "VirtualRange": (lambda: xs.VirtualRange(GRANULE, "native_cpu:0"), close),
}


@pytest.mark.parametrize("name", OWN)
def test_system_calls_fail_in_own_operations(injector: Injector, name: str) -> None:
    assert fail_each(injector, *OWN[name]) == []


def test_system_calls_fail_in_a_mapping(injector: Injector) -> None:
    place, physical = xs.VirtualRange(GRANULE, "native_cpu:0"), xs.PhysicalMemory(GRANULE, "native_cpu:0")

    def undo(_result: Any) -> None:
        place.unmap(0, GRANULE)

    assert fail_each(injector, lambda: place.map(physical), undo) == []
    assert place.mapped() == []
    place.map(physical)
    for operation in (lambda: place.set_access(0, GRANULE, "r"), lambda: place.unmap(0, GRANULE)):
        name = "range_protect" if place.access(0) == "rw" else "range_unmap"
        with injector.failing(name, 1, errno.ENOMEM), pytest.raises(xs.OutOfMemoryError):
            operation()
        assert injector.failed
        assert len(place.mapped()) == 1
        operation()
    place.close()
    physical.close()


def block_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    from xpushare.sharing.routes import Blocked, pidfd

    def blocked(*_arguments: Any) -> Any:
        raise Blocked("by the test")

    for verb in ("meet", "fetch"):
        monkeypatch.setattr(pidfd, verb, blocked)


@pytest.mark.parametrize("kind", ["memory", "physical_memory", "event"])
def test_system_calls_fail_in_opens_of_a_known_exporter(
    injector: Injector, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By pidfd_getfd an object is opened by one native call, which calls nothing of `system` (its failures are in
    # tests/native/test_peer.py).
    block_pidfd(monkeypatch)
    makers: dict[str, Any] = {"memory": exported, "physical_memory": exported_physical, "event": exported_event}
    with Child() as child:
        handle = child.call(makers[kind], "native_cpu:0")
        getattr(xs.ipc, kind).open(
            child.call(exported_event, "native_cpu:0", "other") if kind == "event" else handle
        ).close()
        node.current().peers.sweep()  # what is left of exporters of earlier tests
        if kind == "event":
            pytest.skip("opening an event of a known exporter makes no system call")
        assert fail_each(injector, lambda: getattr(xs.ipc, kind).open(handle), close) == []


@pytest.mark.parametrize("kind", sampled(["memory", "physical_memory", "event"], ["memory"]))
def test_system_calls_fail_in_the_first_open(injector: Injector, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block_pidfd(monkeypatch)  # it meets an exporter by one native call, which calls nothing of `system`
    makers: dict[str, Any] = {"memory": exported, "physical_memory": exported_physical, "event": exported_event}
    with Child() as child:
        handle = child.call(makers[kind], "native_cpu:0")

        def forget_peer() -> None:  # the acquaintance stays for the next try; what it was made for does not
            peers = node.current().peers
            found = peers._peers.pop(fields_of(handle).cookie, None)
            if found is not None:
                found.domain.leave()
                peers._know()

        assert fail_each(injector, lambda: getattr(xs.ipc, kind).open(handle), close, forget_peer) == []


def test_system_calls_fail_in_the_first_export() -> None:
    def attempt() -> list[str]:
        from xpushare.sharing import node

        memory = xs.malloc_device(PAGE, "native_cpu:0")
        patch = pytest.MonkeyPatch()
        injector = Injector(patch)
        wrong = []
        names = ("memfd", "resize", "seal", "Mapping", "fstat", "bell", "Domain", "serve")
        for name in names:
            for nth in (1, 2):
                for number in ERRNOS:
                    before = holdings()
                    with injector.failing(name, nth, number):
                        try:
                            xs.ipc.memory.get(memory)
                        except ERRNOS[number]:
                            pass
                        except BaseException as error:
                            wrong.append(f"{name} #{nth} {number}: {type(error).__name__}: {error}")
                        else:
                            return [f"{name} #{nth} was never called"] if nth == 1 else wrong
                    # A table that was made but cannot be served yet stays for the next try.
                    if node.current().table_if_any is None and holdings() != before:
                        wrong.append(f"{name} #{nth} {number}: left {difference(before, holdings())}")
        assert system
        return wrong

    with Child() as child:
        assert child.call(attempt) == []


def test_the_next_export_after_a_failed_first_one() -> None:
    def attempt(name: str, nth: int) -> bytes:
        injector = Injector(pytest.MonkeyPatch())
        memory = kept["memory"] = xs.malloc_device(PAGE, "native_cpu:0")
        memoryview(memory)[:2] = b"ok"
        with injector.failing(name, nth, errno.EMFILE), pytest.raises(xs.OutOfMemoryError):
            xs.ipc.memory.get(memory)
        assert injector.failed
        return bytes(xs.ipc.memory.get(memory))

    for name, nth in (("memfd", 2), ("Domain", 1), ("serve", 1)):
        with Child() as child:
            handle = child.call(attempt, name, nth)
            with xs.ipc.memory.open(handle) as memory:
                assert bytes(memoryview(memory)[:2]) == b"ok"


# --- the driver's calls ---------------------------------------------------------------------------


@pytest.fixture
def driver() -> Iterator[Any]:
    from xpushare.adapters import mock

    driver = mock.driver()
    assert adapters.adapter("mock").engine.teardown.settle(60)  # nothing of an earlier test is counted
    driver.reset()
    yield driver
    driver.reset()


def driver_errors() -> list[BaseException]:
    return [
        xs.DeviceError("MOCK_ERROR", native=1),
        xs.OutOfMemoryError("MOCK_NO_MEMORY", native=2),
        OSError(errno.EMFILE, "x"),
    ]


@pytest.mark.parametrize(
    "operation",
    [
        lambda: xs.malloc_device(PAGE, "mock:0"),
        lambda: xs.PhysicalMemory(GRANULE, "mock:0"),
        lambda: xs.VirtualRange(GRANULE, "mock:0"),
    ],
    ids=["malloc", "physical", "range"],
)
def test_driver_calls_fail_in_own_operations(driver: Any, operation: Callable[[], Any]) -> None:
    made = operation()
    calls = dict(driver.counts)  # before the end of what was made, which another thread brings about
    made.close()
    assert calls
    for name, count in calls.items():
        for nth in range(1, count + 1):
            for error in driver_errors():
                before = holdings()
                driver.fail(name, error, nth=nth)
                with pytest.raises(xs.XpuShareError):
                    operation()
                assert holdings() == before, name
                operation().close()


@pytest.mark.parametrize("device", [None, "mock:1"], ids=["the short way", "the long way"])
@pytest.mark.parametrize("kind", ["memory", "physical_memory"])
def test_driver_calls_fail_in_opens(driver: Any, kind: str, device: str | None, peer: Child) -> None:
    makers: dict[str, Any] = {"memory": exported, "physical_memory": exported_physical}
    handle = peer.call(makers[kind], "mock:0")
    verbs = getattr(xs.ipc, kind)
    verbs.open(handle, device=device).close()  # from here on the exporter is known
    xs.trim()  # nothing stays mapped
    assert adapters.adapter("mock").engine.teardown.settle(60)
    driver.reset()
    opened = verbs.open(handle, device=device)
    calls = dict(driver.counts)
    opened.close()
    assert calls
    for name, count in calls.items():
        for nth in range(1, count + 1):
            for error in driver_errors():
                before = holdings()
                driver.fail(name, error, nth=nth)
                with pytest.raises(xs.XpuShareError):
                    verbs.open(handle, device=device)
                assert holdings() == before, name
                verbs.open(handle, device=device).close()


def test_driver_calls_fail_in_a_mapping(driver: Any) -> None:
    with xs.VirtualRange(GRANULE, "mock:0") as place, xs.PhysicalMemory(GRANULE, "mock:0") as physical:
        for error in driver_errors():
            driver.fail("range_map", error)
            with pytest.raises(xs.XpuShareError):
                place.map(physical)
            assert place.mapped() == []
            place.map(physical)
            driver.fail("range_protect", error)
            with pytest.raises(xs.XpuShareError):
                place.set_access(0, GRANULE, "r")
            assert place.access(0) == "rw"
            driver.fail("range_unmap", error)
            with pytest.raises(xs.XpuShareError):
                place.unmap(0, GRANULE)
            assert place.mapped() == [(0, GRANULE, "rw")]
            place.unmap(0, GRANULE)
            assert read_physical(physical, 1) == b"\0"


# --- no file descriptor is left -------------------------------------------------------------------


def test_a_process_without_file_descriptors(pair: tuple[str, str], peer: Child) -> None:
    handles = {"memory": peer.call(exported, pair[0]), "physical_memory": peer.call(exported_physical, pair[0])}

    def attempt(handles: dict[str, Any], device: str) -> list[str]:
        known = xs.ipc.memory.open(handles["memory"], device=device)
        known.close()
        array = xs.empty(4)
        xs.share(array, ttl=3600)
        xs.published()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wrong = []
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        taken = []
        try:
            while True:
                try:
                    taken.append(os.dup(0))
                except OSError:
                    break
            for call in (
                lambda: xs.malloc_device(PAGE, device),
                lambda: xs.PhysicalMemory(GRANULE, device),
                lambda: xs.ipc.memory.open(handles["memory"], device=device),
                lambda: xs.ipc.physical_memory.open(handles["physical_memory"], device=device),
                lambda: pickle.dumps(array),  # asks how much memory the host has
                lambda: xs.publish("fds", array),
                lambda: xs.lookup("fds", timeout=0),
                xs.published,
                lambda: (system.boot_ids.clear(), system.boot_id()),
            ):
                try:
                    call()
                except xs.OutOfMemoryError as error:
                    if "ulimit -n" not in str(error):
                        wrong.append(str(error))
                except BaseException as error:
                    wrong.append(f"{type(error).__name__}: {error}")
                else:
                    wrong.append("it worked")
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for kind, handle in handles.items():
            getattr(xs.ipc, kind).open(handle, device=device).close()
        return wrong

    with Child() as child:
        assert child.call(attempt, handles, pair[1]) == []
