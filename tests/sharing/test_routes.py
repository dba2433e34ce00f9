"""The ways of file descriptors from process to process, and what blocks each."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import gc
import os
import select
import signal
import socket as sockets
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from peering import (
    KINDS,
    MAKERS,
    content,
    exported,
    exported_event,
    exported_physical,
    needs_root,
    nothing_left,
    opened,
    read_physical,
    verbs,
)

import xpushare as xs
from boxes import NEW_PIDS, SETPRIV, works
from harness import Child, become_another_user, fd_count, kept, wait_until
from sampling import sampled
from xpushare._native import LAYOUT
from xpushare.common import system
from xpushare.common.errors import exporter_gone
from xpushare.common.fds import close_all
from xpushare.sharing import door, identity, node, routes
from xpushare.sharing.handle import fields_of
from xpushare.sharing.routes import pidfd, socket

HELLO, FDS = 1, 2
PR_SET_DUMPABLE, PR_SET_PTRACER, PR_CAPBSET_DROP, CAP_SYS_PTRACE = 4, 0x59616D61, 24, 19


needs_setpriv = pytest.mark.skipif(not works(*SETPRIV), reason="needs setpriv and the right to use it")
needs_pids = pytest.mark.skipif(not works(*NEW_PIDS), reason="needs unshare --pid")
needs_nets = pytest.mark.skipif(not works("unshare", "--net"), reason="needs unshare --net")


def not_dumpable() -> None:
    """Nobody without CAP_SYS_PTRACE may take this process's fds from now on."""
    assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0


def used() -> list[str]:
    """Has this process note which routes carry something from now on."""
    from xpushare.sharing import routes

    seen: list[str] = kept.setdefault("routes", [])
    for route in routes.routes():
        for verb in ("meet", "fetch"):
            real = getattr(route, verb)

            def call(*arguments: Any, _real: Any = real, _name: str = f"{route.name} {verb}") -> Any:
                result = _real(*arguments)
                kept["routes"].append(_name)
                return result

            setattr(route, verb, call)
    return seen


def share_all(importer: Child, exporter: Child) -> None:
    """Memory, physical memory and an event from one to the other, and back along the event."""
    handle = exporter.call(exported, "native_cpu:0", 4096, b"by any route")
    importer.call(opened, handle)
    assert importer.call(content, "opened", 12) == b"by any route"
    physical = exporter.call(exported_physical, "native_cpu:0", 1 << 16, b"pages")
    assert importer.call(lambda handle: read_physical(xs.ipc.physical_memory.open(handle), 5), physical) == b"pages"
    event = exporter.call(exported_event, "native_cpu:0")
    importer.call(opened, event, name="signals", kind="event")
    pending = exporter.start(lambda: kept["event"].wait(10, at_least=1))
    assert importer.call(lambda: kept["signals"].signal()) == 1
    pending.result()


@needs_setpriv
def test_the_socket_works_where_pidfd_is_refused() -> None:
    with Child(not_dumpable) as exporter, Child(prefix=SETPRIV) as importer:
        importer.call(used)
        share_all(importer, exporter)
        seen = importer.call(lambda: kept["routes"])
        assert "socket meet" in seen
        assert not any("pidfd_getfd" in each for each in seen)


@needs_setpriv
@needs_nets
def test_a_runtime_folder_in_common_is_enough() -> None:
    with Child(not_dumpable) as exporter, Child(prefix=["unshare", "--net", *SETPRIV]) as importer:
        importer.call(used)
        share_all(importer, exporter)
        assert "socket meet" in importer.call(lambda: kept["routes"])


@needs_setpriv
def test_both_routes_refused(tmp_path: Path) -> None:
    def attempt(handles: dict[str, bytes]) -> list[tuple[str, ...]]:
        found = []
        for kind, handle in handles.items():
            for _ in range(2):
                with nothing_left(), pytest.raises(xs.RouteError) as caught:
                    verbs(kind).open(handle)
                for reason in caught.value.reasons:
                    assert reason in str(caught.value)
                found.append(caught.value.reasons)
        return found

    if not works("unshare", "--net"):
        pytest.skip("needs unshare --net")
    identity.user_key()
    elsewhere = {
        "XPUSHARE_RUNTIME_DIR": str(tmp_path / "run"),
        "XPUSHARE_KEY_FILE": os.environ.get("XPUSHARE_KEY_FILE") or str(identity.runtime_dir() / "key"),
    }
    nowhere = ["unshare", "--net", *SETPRIV]
    with Child(not_dumpable) as exporter, Child(prefix=nowhere, env=elsewhere) as importer:
        handles = {kind: bytes(exporter.call(MAKERS[kind], "native_cpu:0")) for kind in KINDS}
        for reasons in importer.call(attempt, handles):
            first, second = reasons
            assert first.startswith("pidfd_getfd: not permitted")
            assert "PR_SET_DUMPABLE" in first
            assert "--cap-add=SYS_PTRACE" in first
            assert second.startswith("socket: nobody listens")
            assert "network namespace" in second
            assert "--network=container" in second


@needs_nets
def test_another_network_namespace_does_not_matter_to_pidfd() -> None:
    with Child() as exporter, Child(prefix=["unshare", "--net"]) as importer:
        share_all(importer, exporter)


@needs_pids
@pytest.mark.parametrize("inside", sampled(["importer", "exporter", "both, apart"], ["both, apart"]))
def test_separate_pid_namespaces(inside: str) -> None:
    prefix = {"importer": ([], NEW_PIDS), "exporter": (NEW_PIDS, []), "both, apart": (NEW_PIDS, NEW_PIDS)}[inside]
    with Child(prefix=prefix[0]) as exporter, Child(prefix=prefix[1]) as importer:
        importer.call(used)
        share_all(importer, exporter)
        assert "socket meet" in importer.call(lambda: kept["routes"])


@needs_pids
def test_a_death_in_another_pid_namespace_is_seen() -> None:
    with Child(prefix=NEW_PIDS) as child:
        handle, memory = child.call(exported_event, "native_cpu:0"), child.call(exported, "native_cpu:0")
        event = xs.ipc.event.open(handle)

        def owe() -> None:
            import threading

            queue = kept["queue"] = xs.Queue("native_cpu:0")
            queue.submit(threading.Event().wait)
            queue.signal(kept["event"])

        child.call(owe)
        child.kill()  # of unshare; --kill-child ends the other
    with pytest.raises(xs.PeerLostError):
        event.wait(5)
    event.close()
    with pytest.raises(xs.HandleExpiredError, match="has exited"):
        xs.ipc.memory.open(memory)


def load_everything() -> None:
    """Import what the tests need, before another user may not read it."""
    import hashlib  # noqa: F401

    import peering  # noqa: F401

    from xpushare import ipc  # noqa: F401
    from xpushare.adapters import native_cpu  # noqa: F401
    from xpushare.sharing import node
    from xpushare.sharing.routes import pidfd, socket  # noqa: F401

    assert node.current().table_if_any is None
    xs.malloc_device(4096, "native_cpu:0").close()


@needs_root
def test_another_user_has_another_key(open_folder: Path) -> None:

    def become(folder: str) -> None:
        load_everything()
        become_another_user(12345)
        os.environ["XPUSHARE_RUNTIME_DIR"] = folder

    run = open_folder / "run"
    run.mkdir(mode=0o700)
    os.chown(run, 12345, 12345)
    handle = exported("native_cpu:0")
    with Child() as stranger:
        stranger.call(become, str(run))

        def attempt(raw: bytes) -> str:
            with pytest.raises(xs.InvalidHandleError) as caught:
                xs.ipc.memory.open(raw)
            return str(caught.value)

        assert "another user (uid 0)" in stranger.call(attempt, bytes(handle))
        theirs = stranger.call(lambda: bytes(exported("native_cpu:0")))
        with pytest.raises(xs.InvalidHandleError, match="another user"):
            xs.ipc.memory.open(theirs)
    xs.ipc.memory.put(handle)
    kept.clear()


@needs_root
def test_another_user_with_the_same_key_is_refused_by_every_route() -> None:
    def become(key: bytes) -> None:
        from xpushare.sharing import identity

        load_everything()
        become_another_user(12345)
        identity._place = identity._Place(key, None)

    handle = exported("native_cpu:0")
    with Child() as stranger:
        stranger.call(become, identity.user_key())

        def attempt(raw: bytes) -> tuple[str, ...]:
            with pytest.raises(xs.RouteError) as caught:
                xs.ipc.memory.open(raw)
            return caught.value.reasons

        first, second = stranger.call(attempt, bytes(handle))
        assert first.startswith("pidfd_getfd: not permitted")
        assert second.startswith("socket: ")
        assert "user" in second
        theirs = stranger.call(lambda: bytes(exported("native_cpu:0")))
        # Root may take anybody's fds; it is for the operator to decide who is root.
        with xs.ipc.memory.open(theirs) as memory:
            assert memory.nbytes == 4096
    xs.ipc.memory.put(handle)
    kept.clear()


def test_nobody_is_made_a_ptracer() -> None:
    # PR_SET_PTRACER would open this process to more than file descriptors.
    folder = Path(routes.__file__).parents[2]
    for path in [*folder.rglob("*.py"), *(folder.parent / "native").glob("*.c")]:
        text = path.read_text()
        assert "PR_SET_PTRACER," not in text
        assert str(PR_SET_PTRACER) not in text
        assert "0x59616d61" not in text.lower()


def test_a_stopped_exporter_does_not_matter_to_pidfd_and_times_out_at_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Child(method="spawn") as child:
        handle = child.call(exported, "native_cpu:0", 4096, b"asleep")
        late = child.call(lambda: xs.ipc.memory.get(kept["memory"]))
        child.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)  # until all its threads have
        try:
            with xs.ipc.memory.open(handle) as memory:
                assert bytes(memoryview(memory)[:6]) == b"asleep"
            monkeypatch.setattr(socket, "TIMEOUT", 0.1)
            with pytest.raises(routes.Blocked, match="did not"):
                socket.meet(late)
        finally:
            child.signal(signal.SIGCONT)


class Stopped:
    """Stops a child's threads, all of them, for the block."""

    def __init__(self, child: Child) -> None:
        self.child = child

    def __enter__(self) -> None:
        self.child.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.child.pid, os.WSTOPPED | os.WNOWAIT)

    def __exit__(self, *_exc: object) -> None:
        self.child.signal(signal.SIGCONT)


def greeted(handle: xs.ipc.Handle) -> None:
    """Ask the exporter for the descriptors by which it is met, and close them."""
    with socket._Line(fields_of(handle)) as line:
        close_all(line.ask(HELLO, [(fields_of(handle), 0)])[1])


def test_whoever_finds_the_backlog_full_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "TIMEOUT", 15.0)
    with Child(method="spawn") as child, concurrent.futures.ThreadPoolExecutor(200) as pool:
        handle = child.call(exported, "native_cpu:0")
        with Stopped(child):
            attempts = [pool.submit(greeted, handle) for _ in range(200)]
            wait_until(lambda: fd_count() > 150)  # more than the backlog holds
            assert not any(attempt.done() for attempt in attempts)
        for attempt in attempts:
            attempt.result(20)


def test_strangers_cannot_fill_the_socket_in_the_folder() -> None:
    with Child(method="spawn") as child:
        handle = child.call(exported, "native_cpu:0")
        cookie = fields_of(handle).cookie
        everybodys = b"xpushare/" + cookie.hex().encode()
        clog = []
        with Stopped(child):
            with contextlib.suppress(TimeoutError):
                while len(clog) < 1000:
                    clog.append(system.connect(everybodys, 0.01))
            assert len(clog) < 1000
            with door.path(cookie) as path:
                assert path is not None
                system.connect(path, 0.01).close()
            for connection in clog:
                connection.close()


def test_a_route_that_is_blocked_hands_over_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def blocked(*_arguments: Any) -> Any:
        calls.append("pidfd")
        raise routes.Blocked("by the test")

    monkeypatch.setattr(pidfd, "meet", blocked)
    monkeypatch.setattr(pidfd, "fetch", blocked)
    with Child() as child:
        handle = child.call(exported, "native_cpu:0", 4096, b"socket")
        with xs.ipc.memory.open(handle) as memory:
            assert bytes(memoryview(memory)[:6]) == b"socket"
        assert calls
        monkeypatch.setattr(socket, "meet", blocked)
        monkeypatch.setattr(socket, "fetch", blocked)
        with Child() as second:
            handle = second.call(exported, "native_cpu:0")
            with nothing_left(), pytest.raises(xs.RouteError) as caught:
                xs.ipc.memory.open(handle)
            assert caught.value.reasons == ("pidfd_getfd: by the test", "socket: by the test")
            assert "doctor" in str(caught.value)


# --- several entries at once


def by_socket_alone() -> None:
    """Have this process fetch file descriptors from exporters' sockets alone, and note its requests."""
    plain, asked = socket._Line._exchange, kept.setdefault("asked", list[tuple[int, int]]())

    def exchange(line: Any, connection: Any, op: int, wanted: list[Any], before: bool) -> Any:
        asked.append((op, len(wanted)))
        return plain(line, connection, op, wanted, before)

    socket._Line._exchange = exchange  # type: ignore[method-assign]
    routes.use_only("socket")


def tree_of(count: int, device: str = "native_cpu:0") -> str:
    """Arrays in an allocation each; the n-th is full of n."""
    kept["arrays"] = [xs.empty(1 << 16, "u1", device=device) for _ in range(count)]
    for value, each in enumerate(kept["arrays"]):
        memoryview(each)[:] = bytes([value % 256]) * each.nbytes
    kept["handle"] = xs.share(kept["arrays"])
    assert len(kept["handle"].handles) == count
    return str(kept["handle"])


def attach_tree(handle: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The first byte of each array, and the requests: (op, how many entries)."""
    del kept["asked"][:]
    kept["tree"] = xs.attach(handle)
    return [memoryview(each)[0] for each in kept["tree"]], list(kept["asked"])


@pytest.mark.parametrize(("count", "requests"), [(1, [1]), (2, [2]), (60, [60]), (260, [253, 7])])
def test_a_tree_of_many_exports_makes_one_request(count: int, requests: list[int]) -> None:
    with Child() as exporter, Child(by_socket_alone) as importer:
        handle = exporter.call(tree_of, count)
        found, asked = importer.call(attach_tree, handle)
        assert found == [value % 256 for value in range(count)]
        assert asked == [(HELLO, 1), *((FDS, each) for each in requests)]
        assert importer.call(attach_tree, handle) == (found, [])  # it is open


def test_a_process_that_floods_an_exporters_socket_keeps_no_importer_out() -> None:
    def flood(handle: str) -> None:
        kept["flood"] = []
        for _ in range(300):
            kept["flood"].append(socket._connect(fields_of(xs.ArrayHandle(handle).handles[0])))

    with Child() as exporter, Child() as flooding, Child(by_socket_alone) as importer:
        handle = exporter.call(tree_of, 2)
        flooding.call(flood, handle)
        assert importer.call(attach_tree, handle)[0] == [0, 1]


def test_an_expired_export_among_many_says_so_and_leaks_nothing() -> None:
    def put(number: int) -> None:
        xs.ipc.memory.put(kept["handle"].handles[number])

    def attempt(handle: str) -> tuple[str, list[tuple[int, int]]]:
        del kept["asked"][:]
        with nothing_left(), pytest.raises(xs.HandleExpiredError) as caught:
            xs.attach(handle)
        return str(caught.value), list(kept["asked"])

    with Child() as exporter, Child(by_socket_alone) as importer:
        importer.call(opened, exporter.call(exported, "native_cpu:0", 4096, b"x"))  # it knows the exporter
        handle = exporter.call(tree_of, 12)
        exporter.call(put, 7)
        text, asked = importer.call(attempt, handle)
        assert text.startswith("the handle has expired: the exporter closed it")
        assert asked == [(FDS, 11)]  # its entry says so, so it is not asked for


def test_a_withdrawal_on_the_way_costs_only_its_own_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry was live when it was read, and is not when the exporter answers."""
    with Child() as exporter, nothing_left():
        handles = exporter.call(lambda: [bytes(exported("native_cpu:0", 4096, b"x")) for _ in range(5)])
        found = [xs.ipc.Handle(each) for each in handles]
        peer = node.current().peers.peer(found[0])
        wanted = [routes.Wanted(each, 1) for each in found]
        monkeypatch.setattr(routes, "_known", ("socket",))
        exporter.call(lambda raw: xs.ipc.memory.put(raw), handles[3])
        fetched = routes.fetch(peer, wanted)
        assert [len(each) if isinstance(each, list) else type(each) for each in fetched] == [
            1, 1, 1, xs.HandleExpiredError, 1,
        ]  # fmt: skip
        del fetched, peer
        gc.collect()
        node.current().peers._discard(fields_of(found[0]).cookie)


Answer = tuple[list[tuple[int, int, int]], int]  # (status, count, total) of each, and how many descriptors come


class Liar:
    """The other end of a connection: an exporter that answers as it is told."""

    def __init__(self, answers: list[Answer | bytes]) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.here, self.there = sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        self.here.settimeout(10)
        self.fd = os.memfd_create("lie")
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        with self.there, open(self.fd, "rb"):
            for answer in self.answers:
                self.asked.append((len(self.there.recv(16_384)) - LAYOUT["request.wanted"]) // LAYOUT["wanted.size"])
                if isinstance(answer, bytes):
                    self.there.send(answer)
                    continue
                given, fds = answer
                packet = b"XPSR" + b"".join(struct.pack("<III", *each) for each in given)
                sockets.send_fds(self.there, [packet], [self.fd] * fds)


def lies() -> int:
    """How many of a liar's descriptors are open."""
    folder, found = "/proc/self/fd", 0
    for each in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"{folder}/{each}") == "/memfd:lie (deleted)"
    return found


OK, NOT_LIVE, BUSY, DRIVER = 0, 3, 4, 5
GOOD = (OK, 1, 1)
LIES: dict[str, tuple[list[Answer | bytes], list[object], list[int]]] = {
    # what is answered, what comes of it, how many entries each request has
    "all at once": ([([GOOD] * 3, 3)], [1, 1, 1], [3]),
    "one by one": ([([GOOD], 1)] * 3, [1, 1, 1], [3, 2, 1]),
    "too few descriptors": ([([GOOD] * 3, 2)], ["lost"] * 3, [3]),
    "too many descriptors": ([([GOOD] * 3, 4)], ["no sense"] * 3, [3]),
    "more answers than asked": ([([GOOD] * 4, 4)], ["no sense"] * 3, [3]),
    "no answer": ([b"XPSR"], ["no sense"] * 3, [3]),
    "garbage": ([b"x" * 40], ["no sense"] * 3, [3]),
    "none, and says so": ([([GOOD, (OK, 0, 1), GOOD], 2)], [1, "sent 0 of 1", 1], [3]),
    "two for one": ([([GOOD, (OK, 2, 1), GOOD], 4)], [1, "sent 2 of 1", 1], [3]),
    "another total": ([([GOOD, (OK, 1, 7), GOOD], 3)], [1, "sent 1 of 7", 1], [3]),
    "one expired": ([([GOOD, (NOT_LIVE, 0, 0), GOOD], 2)], [1, "withdrew", 1], [3]),
    "one fails": ([([GOOD, (DRIVER, 0, 1)], 1), ([GOOD], 1)], [1, "driver", 1], [3, 1]),
    "busy": ([([(BUSY, 0, 0)], 0)], ["busy"] * 3, [3]),
    "an unknown status": ([([(77, 0, 0)], 0), ([GOOD] * 2, 2)], ["status 77", 1, 1], [3, 2]),
    "the end after a part": ([([GOOD], 1), b""], [1, "nobody", "nobody"], [3]),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_exporter_that_lies_about_some_is_refused_for_these(monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    answers, expected, asked = LIES[lie]
    ends = answers[-1] == b""
    with Child() as exporter:
        handle = xs.ipc.Handle(exporter.call(exported, "native_cpu:0", 4096, b"x"))
        liar = Liar(answers[:-1] if ends else answers)
        connections = [liar.here]

        def connect(_fields: Any) -> Any:
            if not connections:
                raise exporter_gone(1, "nobody listens")
            return connections.pop()

        monkeypatch.setattr(socket, "_connect", connect)
        found = socket.fetch(None, [routes.Wanted(handle, 1)] * 3)
        liar.thread.join(10)
        assert liar.asked == asked
        for each, what in zip(found, expected, strict=True):
            if isinstance(each, list):
                assert len(each) == what
            else:
                assert isinstance(what, str)
                assert what in str(each)
        assert lies() == sum(len(each) for each in found if isinstance(each, list))
        for each in found:
            for fd in each if isinstance(each, list) else ():
                fd.close()
        assert not lies()


def test_requests_go_over_one_connection_until_the_exporter_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    connect, at_once = socket._connect, 1

    def counted(*given: Any) -> Any:
        made.append(connect(*given))
        return made[-1]

    ends = [False]
    plain = socket._Line._exchange

    def exchange(*given: Any) -> Any:
        if ends and made and ends.pop():
            wait_until(lambda: select.select([made[-1]], [], [], 0)[0], what="the exporter to end it")
        return plain(*given)

    monkeypatch.setattr(socket, "_connect", counted)
    monkeypatch.setattr(socket._Line, "_exchange", exchange)
    monkeypatch.setattr(socket, "_AT_ONCE", at_once)
    with Child() as exporter:
        handles = [xs.ipc.Handle(exporter.call(exported, "native_cpu:0", 4096, b"x")) for _ in range(3)]
        wanted = [routes.Wanted(each, 1) for each in handles]
        before = set(os.listdir("/proc/self/fd"))
        for connections, late in ((1, []), (3, [False, False, True, False])):  # pop() takes the last first
            ends[:] = late
            for each in socket.fetch(None, wanted):
                assert isinstance(each, list)
                each.pop().close()
            assert len(made) == connections
            assert not set(os.listdir("/proc/self/fd")) - before
