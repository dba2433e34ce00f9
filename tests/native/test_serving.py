"""The warden's socket: docs/layout.md."""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import threading

import pytest
from native_peer import AT, Peer, load32, n, until, warden_running

OK, MALFORMED, OTHER_USER, NOT_LIVE, _BUSY, DRIVER = range(6)


class Table:
    """A table served by this process, with one live export."""

    def __init__(self, exporter):
        self.exporter = exporter
        self.fd = os.memfd_create("table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, AT["table.size"])
        self.mapping = n.Mapping(self.fd, AT["table.size"])
        self.address = self.mapping.address
        view = memoryview(n.Span(self.address, self.mapping.nbytes, False, self.mapping))
        view[AT["table.cookie"] : AT["table.cookie"] + 16] = exporter.cookie
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.pipes = [os.pipe() for _ in range(2)]
        n.serve(self.address, self.fd, exporter.domain)
        self.own = n.OwnTable(self.mapping, bytes(AT["handle.seal"]), exporter.domain)
        self.first = self.export(*(p[0] for p in self.pipes))

    def entry(self, index):
        return self.address + AT["table.header"] + index * AT["entry.size"]

    def prepare(self, fds, flags=0, on_demand=()):
        return self.own.prepare(1, flags, bytes(32), 0, 1, 64, 64, 0, 0, fds, b"", *on_demand)

    def export(self, *fds, **how):
        made = n.Exported(self.prepare(fds, **how), None)
        self.own.export(n.Seal(b"key"), [made], None, 0)
        return made

    def connect(self):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # blocking, so that a full backlog is waited for
            s.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 10, 0))
        try:
            s.connect(b"\0xpushare/" + self.exporter.cookie.hex().encode())
        except OSError:
            s.close()
            raise
        return s

    def packet(self, op=1, of=None, first=0, cookie=None, magic=b"XPSQ", **other):
        fields = n.fields_of((of or self.first).handle)
        entry, generation, nonce = (other.get(name, getattr(fields, name)) for name in ("entry", "generation", "nonce"))
        return struct.pack("<4sI16sIIQ16s", magic, op, cookie or self.exporter.cookie, entry, first, generation, nonce)

    def ask_all(self, *wanted):
        """(statuses, counts and totals, fds) for exports, each with the fd to begin with."""
        with self.connect() as s:
            several = [self.packet(op=2, of=of, first=first) for of, first in wanted]
            s.send(several[0] + b"".join(each[AT["request.wanted"] :] for each in several[1:]))
            data, fds, _, _ = socket.recv_fds(s, AT["reply.size"], 253)
            return n.read_reply(data, len(wanted), len(fds)), fds

    def ask(self, packet=None, **kw):
        with self.connect() as s:
            s.send(self.packet(**kw) if packet is None else packet)
            return receive(s)

    def close(self):
        n.close_warden()
        os.close(self.fd)
        for pair in self.pipes:
            for fd in pair:
                os.close(fd)


def receive(s):
    """(status, fds, total), or None at the end."""
    data, fds, _, _ = socket.recv_fds(s, 64, 253)
    if not data:
        return None
    magic, status, count, total = struct.unpack("<4sIII", data)
    assert magic == b"XPSR"
    assert count == len(fds)
    return status, fds, total


@pytest.fixture
def table(exporter):
    t = Table(exporter)
    yield t
    t.close()


def inodes(fds):
    got = [os.fstat(fd).st_ino for fd in fds]
    for fd in fds:
        os.close(fd)
    return got


def test_hello(table, exporter):
    status, fds, _ = table.ask(op=1)
    assert status == OK
    assert n.dead(fds[3:]) == []
    with open(f"/proc/self/fdinfo/{fds[3]}") as f:
        assert f"Pid:\t{os.getpid()}\n" in f.read()
    assert inodes(fds[:2]) == [os.fstat(table.fd).st_ino, os.fstat(exporter.domain.fd).st_ino]
    for fd in fds[2:]:
        os.close(fd)


def test_fds(table):
    status, fds, total = table.ask(op=2)
    assert (status, total) == (OK, 2)
    assert inodes(fds) == [os.fstat(p[0]).st_ino for p in table.pipes]
    status, fds, total = table.ask(op=2, first=1)
    assert inodes(fds) == [os.fstat(table.pipes[1][0]).st_ino]
    assert table.ask(op=2, first=2)[0] == MALFORMED
    with table.connect() as s:  # several questions on one connection
        for _ in range(3):
            s.send(table.packet(op=2))
            status, fds, _ = receive(s)
            assert status == OK
            inodes(fds)


def test_several_exports_at_once(table):
    pipe = os.fstat(table.pipes[1][0]).st_ino
    second, gone, nobodys = table.export(table.pipes[1][0]), table.export(table.pipes[0][0]), table.export(10_000)
    table.own.end(gone, 1)
    given, fds = table.ask_all((table.first, 1), (gone, 0), (second, 0), (second, 1), (table.first, 0))
    assert given == [(OK, 1, 2), (NOT_LIVE, 0, 0), (OK, 1, 1), (MALFORMED, 0, 1), (OK, 2, 2)]
    assert inodes(fds) == [pipe, pipe, os.fstat(table.pipes[0][0]).st_ino, pipe]
    assert table.ask_all((second, 0), (nobodys, 0)) == ([(DRIVER, 0, 0)] * 2, [])  # the kernel does not say which
    given, fds = table.ask_all(*[(table.first, 0)] * 200)  # a packet carries fewer
    assert given == [(OK, 2, 2)] * 126 + [(OK, 1, 2)]
    assert len(inodes(fds)) == 253
    for count in (0, 254):
        with pytest.raises(ValueError, match=f"not {count}"):
            n.request(2, [(n.fields_of(table.first.handle), 0)] * count)


def test_a_failing_driver_ends_an_answer(table):
    """The fds before it are there; those of the failing one are closed."""

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64)
    def make(fd, number, _a, _b):
        if number == 666:
            return 1
        fd[0] = os.memfd_create(f"made-{number}")
        return 0

    address = ctypes.cast(make, ctypes.c_void_p).value
    fails = table.export(on_demand=(address, [1, 2, 666], 0, 0))
    before = len(os.listdir("/proc/self/fd"))
    given, fds = table.ask_all((table.first, 0), (fails, 0), (table.first, 0))
    assert given == [(OK, 2, 2), (DRIVER, 0, 3)]
    inodes(fds)
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    table.own.end(fails, 1)


def test_refusals(table):
    assert table.ask(nonce=bytes(16))[0] == NOT_LIVE
    assert table.ask(generation=78)[0] == NOT_LIVE
    assert table.ask(generation=0)[0] == NOT_LIVE
    assert table.ask(entry=4)[0] == NOT_LIVE
    assert table.ask(entry=4, generation=0, nonce=bytes(16))[0] == NOT_LIVE
    assert table.ask(entry=2**32 - 1)[0] == NOT_LIVE
    assert table.ask(cookie=bytes(16))[0] == NOT_LIVE
    assert table.ask(op=3)[0] == MALFORMED
    assert table.ask(magic=b"XPSX")[0] == MALFORMED
    assert table.ask(table.packet()[:-1])[0] == MALFORMED
    assert table.ask(table.packet() + b"x")[0] == MALFORMED
    assert table.ask(b"x")[0] == MALFORMED
    assert table.ask(op=2, of=table.export(10_000))[0] == DRIVER
    assert table.ask(op=2, of=table.export())[0] == MALFORMED
    with table.connect() as s:  # fds that a client sends are not kept
        s.send(table.packet(nonce=bytes(16)))
        assert receive(s)[0] == NOT_LIVE  # it is let in
        before = os.listdir("/proc/self/fd")
        socket.send_fds(s, [table.packet(nonce=bytes(16))], [table.fd])
        assert receive(s)[0] == NOT_LIVE
        assert not set(os.listdir("/proc/self/fd")) - set(before)


def test_end(table):
    entry, generation = table.entry(table.first.entry), table.first.generation
    assert not table.own.end(table.first, 2)
    assert n.load64(entry) == 0
    assert n.load64(entry + AT["entry.retired"]) == generation
    assert load32(entry + AT["entry.reason"]) == 2
    assert table.ask(op=2)[0] == NOT_LIVE
    assert not table.own.end(table.first, 1)  # it has ended
    assert load32(entry + AT["entry.reason"]) == 2


def test_fds_made_on_demand(table):
    calls = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64)
    def make(fd, number, a, b):
        if number == 666:
            return 1
        calls.append((number, a, b))
        fd[0] = os.memfd_create(f"made-{number}")
        return 0

    address = ctypes.cast(make, ctypes.c_void_p).value
    assert table.ask(op=2, of=table.export(flags=4))[0] == NOT_LIVE  # on demand, but nobody makes them
    many = table.export(on_demand=(address, range(300), -7, 2**63))
    before = len(os.listdir("/proc/self/fd"))
    status, fds, total = table.ask(op=2, of=many)
    assert (status, len(fds), total) == (OK, 253, 300)
    assert os.readlink(f"/proc/self/fd/{fds[252]}") == "/memfd:made-252 (deleted)"
    inodes(fds)
    status, fds, total = table.ask(op=2, of=many, first=253)
    assert len(inodes(fds)) == 47
    assert calls == [(i, -7, 2**63) for i in range(300)]
    assert table.ask(op=2, of=many, first=300)[0] == MALFORMED
    fails = table.export(on_demand=(address, [1, 666], 0, 0))
    assert table.ask(op=2, of=fails)[0] == DRIVER
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    table.own.end(fails, 1)
    again = table.export(flags=4)
    assert again.entry == fails.entry
    assert table.ask(op=2, of=again)[0] == NOT_LIVE  # forgotten with the entry
    for function, objects in ((0, [1]), (address, [])):
        with pytest.raises(ValueError, match="no such function"):
            table.prepare((), on_demand=(function, objects, 0, 0))


def test_an_end_waits_for_fds_on_their_way(table):
    inside, go = threading.Event(), threading.Event()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64)
    def make(fd, *_):
        inside.set()
        go.wait(10)
        fd[0] = os.memfd_create("made")
        return 0

    slow = table.export(on_demand=(ctypes.cast(make, ctypes.c_void_p).value, [1], 0, 0))
    with table.connect() as s:
        s.send(table.packet(op=2, of=slow))
        assert inside.wait(10)
        done = threading.Event()
        thread = threading.Thread(target=lambda: (table.own.end(slow, 1), done.set()))
        thread.start()
        assert not done.wait(0.05)
        go.set()
        assert done.wait(10)
        status, fds, _ = receive(s)
        assert status == OK
        inodes(fds)
        thread.join()


def test_silent_connections_are_closed_for_others(table):
    """The longest silent one of those that are open at a time, and each after a second."""
    held = [table.connect() for _ in range(40)]
    assert table.ask(generation=99)[0] == NOT_LIVE
    assert receive(held[0]) is None
    last = table.connect()
    last.send(table.packet(generation=99))
    assert receive(last)[0] == NOT_LIVE
    assert receive(last) is None
    for s in (*held, last):
        s.close()


def test_client_that_goes_away(table):
    for _ in range(40):
        with table.connect() as s:
            s.send(table.packet(op=2))
    assert table.ask(generation=99)[0] == NOT_LIVE


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.usefixtures("table")
def test_other_user(exporter):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            signal.alarm(10)
            os.setuid(65534)
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(b"\0xpushare/" + exporter.cookie.hex().encode())
            status = receive(s)[0]
        finally:
            os._exit(status)
    os.close(r)
    os.close(w)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == OTHER_USER


def test_serve_once(table, exporter):
    n.serve(table.address, table.fd, exporter.domain)  # it does
    n.close_warden()
    n.close_warden()
    until(lambda: not warden_running())
    with pytest.raises(ConnectionRefusedError):
        table.connect()
    n.serve(table.address, table.fd, exporter.domain)
    status, fds, _ = table.ask()
    assert status == OK
    inodes(fds)


def test_serve_checks(exporter, table, peers):
    a = peers()
    with pytest.raises(ValueError, match="own domain"):
        a.run("m = n.Mapping(d.fd, 4096); n.serve(m.address, d.fd, d)")
    with pytest.raises(ValueError, match="own domain"):
        n.serve(exporter.domain.address + 4096, table.fd, exporter.domain)


def listens(name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        try:
            s.connect(name)
        except ConnectionRefusedError:
            return False
        return True


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_closes_the_socket_in_the_child():
    """The parent dies; its socket must not live on in a child that was forked."""
    peer = Peer()
    child = None
    try:
        peer.run("import test_serving, native_peer; e = native_peer.Exporter(); t = test_serving.Table(e)")
        cookie = peer.run("e.cookie")
        name = b"\0xpushare/" + cookie.hex().encode()
        sleeper = "(os.close(0), os.close(1), time.sleep(30), os._exit(0))"
        child = peer.run(f"(lambda pid: pid if pid else {sleeper})(os.fork())")
        assert listens(name)
        peer.kill()
        until(lambda: not listens(name))  # the child may not have got a CPU yet
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
        peer.close()
