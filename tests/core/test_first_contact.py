"""The first open from an exporter: when it fails, nothing of the acquaintance stays (rule 8)."""

from __future__ import annotations

import contextlib
import copyreg
import gc
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from peering import exported, exported_event, exported_physical, holdings, kind

import harness
import xpushare as xs
from harness import Child
from xpushare.sharing import node, routes
from xpushare.sharing.handle import fields_of
from xpushare.sharing.peers import Peers
from xpushare.sharing.routes import pidfd

__all__ = ["kind"]

MAKERS = {"memory": exported, "physical_memory": exported_physical, "event": exported_event}


def put(handle: xs.ipc.Handle) -> None:
    getattr(xs.ipc, handle.kind).put(handle)


@pytest.mark.usefixtures("exporting")
def test_a_failed_first_open_leaves_no_acquaintance(kind: str) -> None:
    with Child() as child:
        handle = child.call(MAKERS[kind], "native_cpu:0")
        child.call(put, handle)
        gc.collect()
        before = harness.fd_count()
        with pytest.raises(xs.HandleExpiredError, match="put"):
            getattr(xs.ipc, kind).open(handle)
        gc.collect()
        assert fields_of(handle).cookie not in node.current().peers._peers
        assert harness.fd_count() <= before  # what an earlier test left may have gone meanwhile
        with getattr(xs.ipc, kind).open(child.call(MAKERS[kind], "native_cpu:0")) as good:
            assert good.is_imported


def test_arguments_are_refused_before_the_exporter_is_met() -> None:
    with Child() as child:
        event = child.call(MAKERS["event"], "native_cpu:0")
        tree = child.call(lambda: bytes(xs.share([xs.empty(1)], ttl=3600)))
        gc.collect()
        before = harness.fd_count()
        with pytest.raises(xs.InvalidArgumentError, match="signals is None"):
            xs.ipc.event.open(event, signals=5)  # type: ignore[arg-type]
        for device in None, "native_cpu:0":
            with pytest.raises(xs.InvalidArgumentError, match="not a stream"):
                xs.attach(tree, device=device, stream="x")
        assert fields_of(event).cookie not in node.current().peers._peers
        assert harness.fd_count() <= before
        xs.ipc.event.open(event, signals=True).close()
        assert len(xs.attach(tree, stream=xs.Queue("native_cpu:0"))) == 1


def test_an_error_that_is_kept_does_not_stand_in_the_way(kind: str) -> None:
    verbs = getattr(xs.ipc, kind)
    with Child() as child:
        handle = child.call(MAKERS[kind], "native_cpu:0")
        child.call(put, handle)
        with pytest.raises(xs.HandleExpiredError, match="put") as kept:
            verbs.open(handle)
        with verbs.open(child.call(MAKERS[kind], "native_cpu:0")) as good:
            assert good.is_imported
        assert kept.value.__traceback__ is not None


@pytest.mark.usefixtures("exporting")
def test_no_route_leaves_nothing_even_if_copies_of_errors_keep_their_tracebacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rebuilt(message: str, traceback: Any) -> xs.RouteError:
        return xs.RouteError(message).with_traceback(traceback)

    def reduced(error: xs.RouteError) -> tuple[Any, ...]:  # what tblib installs
        return rebuilt, (error.message, error.__traceback__)

    def blocked(*_arguments: Any) -> Any:
        raise routes.Blocked("by the test")

    monkeypatch.setitem(copyreg.dispatch_table, xs.RouteError, reduced)
    for route in routes.routes():
        monkeypatch.setattr(route, "fetch", blocked)
    monkeypatch.setattr(pidfd, "meet", blocked)  # else a native call fetches the descriptors
    with Child() as child:
        handle = child.call(exported, "mock:0")
        gc.collect()
        before = holdings()
        gc.disable()
        try:
            with contextlib.suppress(xs.RouteError):
                xs.ipc.memory.open(handle)
                raise AssertionError("the test blocks every route")
            assert holdings() == before
        finally:
            gc.enable()


def test_opens_that_fail_do_not_disturb_those_of_other_threads() -> None:
    """Each failed first open leaves the exporter again, at any moment of the others'."""
    peers = node.current().peers
    rounds, wrong = 300, []

    def attempt(handle: xs.ipc.Handle, good: bool, start: threading.Barrier) -> None:
        for _ in range(rounds):
            start.wait(harness.TIMEOUT)
            try:
                xs.ipc.memory.open(handle).close()
            except xs.HandleExpiredError as error:
                if good:
                    wrong.append(repr(error))
            except BaseException as error:
                wrong.append(repr(error))
            start.wait(harness.TIMEOUT)
            peers._discard(fields_of(handle).cookie)  # a first open again

    with Child() as child:
        bad = child.call(exported, "native_cpu:0")
        child.call(put, bad)
        good = child.call(exported, "native_cpu:0")
        start = threading.Barrier(4)
        threads = [threading.Thread(target=attempt, args=(bad, False, start)) for _ in range(2)]
        threads += [threading.Thread(target=attempt, args=(good, True, start)) for _ in range(2)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(100)
        finally:
            sys.setswitchinterval(interval)
    assert wrong == []


def test_too_little_address_space_is_told_so() -> None:
    def limited(raw: bytes, room: int) -> str:
        import resource

        xs.ipc.Handle(raw)  # what is imported for it needs room, too
        with contextlib.suppress(xs.InvalidHandleError):
            xs.ipc.memory.open(bytes(256))
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
        try:
            with xs.ipc.memory.open(raw) as memory:
                return f"opened {memory.nbytes}"
        except xs.OutOfMemoryError as error:
            return str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    with xs.malloc_device(64 << 20, "native_cpu:0") as memory, Child() as child:
        raw = bytes(xs.ipc.memory.get(memory))
        for room in (8 << 20, 100 << 20, 200 << 20):  # the table's mapping, the commons', the memory's does not fit
            assert "Cannot allocate memory" in child.call(limited, raw, room)
        assert child.call(limited, raw, 1 << 30) == f"opened {64 << 20}"


def test_an_exporter_is_met_while_another_thread_looks_at_all() -> None:
    peers = Peers()

    class Meeting:
        """Whoever asks for its pidfd is interrupted by a thread that meets another exporter."""

        @property
        def pidfd(self) -> None:
            peers._peers[bytes([len(peers._peers)])] = Meeting()  # type: ignore[assignment]

    peers._peers[b"first"] = Meeting()  # type: ignore[assignment]
    peers._know()
    assert len(peers._peers) == 2
