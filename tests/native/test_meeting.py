"""`meet`: what an exporter that is met has to be, and that nothing stays of one that is not."""

import errno
import os
import resource
from pathlib import Path

import pytest
from native_peer import AT, Peer, n
from test_peer import fields

COOKIE = bytes(range(100, 116))
# In the peer: an exporter. `say` writes the header of its table.
EXPORTER = f"""
import fcntl, struct
COOKIE = {COOKIE!r}
ALL = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
FUTURE_WRITE = 16
def make_table(size, seals):
    fd = os.memfd_create("xpushare-table", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    mapping = n.Mapping(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd, mapping
commons = os.memfd_create("xpushare-commons", os.MFD_ALLOW_SEALING)
os.ftruncate(commons, AT["commons.size"])
fcntl.fcntl(commons, fcntl.F_ADD_SEALS, ALL)
bell = n.OwnedFd.bell().take()
domain = n.Domain(commons, bell, COOKIE, True)
table, mapping = make_table(AT["table.size"], ALL | FUTURE_WRITE)
INODE = os.fstat(commons).st_ino
def say(mapping=mapping, magic=b"XPUSHTAB", version=4, cookie=COOKIE, commons=commons, bell=bell, inode=INODE):
    view = memoryview(n.Span(mapping.address, mapping.nbytes, False, mapping))
    struct.pack_into("<8sII16sQiiQ", view, 0, magic, version, os.getpid(), cookie, 0, commons, bell, inode)
say()
"""


@pytest.fixture(scope="module")
def liar():
    peer = Peer()
    peer.run(EXPORTER)
    yield peer
    peer.close()


def handle(peer, **values):
    own = {"pid": peer.pid, "pid_namespace": os.stat("/proc/self/ns/pid").st_ino, "cookie": COOKIE}
    return fields(**{**own, "table_fd": peer.run("table"), **values})


def holdings():
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:xpushare" in line]
    return sorted(os.listdir("/proc/self/fd")), mapped


def why(refusal):
    """The code of a refusal without its prefix, and the number or the errno that comes with it."""
    assert isinstance(refusal, n.Refusal)
    [name] = [name for name, code in n.CONSTANTS.items() if name.startswith("REFUSED_") and code == refusal.code]
    return name.removeprefix("REFUSED_"), refusal.detail or refusal.errno


def refused(asked, code, number=0):
    before = holdings()
    refusal = n.meet(asked)
    assert why(refusal) == (code, number)
    del refusal
    assert holdings() == before


def test_an_exporter_is_met(liar):
    before = holdings()
    mapping, domain, table, pidfd = n.meet(handle(liar))
    assert mapping.nbytes == AT["table.size"]
    assert domain.member == 1
    assert [index for index, *_ in liar.run("domain.members()")] == [0, 1]
    assert Path(f"/proc/self/fd/{table.number}").readlink().name.startswith("memfd:xpushare-table")
    assert n.dead([pidfd.number]) == []
    assert not any(map(os.get_inheritable, (table.number, pidfd.number, domain.fd, domain.bell)))
    refused(handle(liar), "TABLE_UNFIT")  # this process is a member already
    assert domain.stands()
    domain.leave()
    del mapping, domain, table, pidfd
    assert holdings() == before
    assert [index for index, *_ in liar.run("domain.members()")] == [0]


@pytest.mark.parametrize(
    ("lie", "code", "number"),
    [("magic=b'XPUSHTAX'", "FD_REUSED", 0), ("version=5", "TABLE_VERSION", 5), ("cookie=bytes(16)", "FD_REUSED", 0),
     ("commons=10_000", "MET_ENDING", errno.EBADF), ("commons=-1", "MET_ENDING", errno.EBADF),
     ("commons=0", "COMMONS_OTHER", 0), ("commons=table", "COMMONS_OTHER", 0), ("commons=bell", "COMMONS_OTHER", 0),
     ("bell=10_000", "MET_ENDING", errno.EBADF), ("inode=1", "COMMONS_OTHER", 0)],
)  # fmt: skip
def test_tables_that_lie(liar, lie, code, number):
    liar.run(f"say({lie})")
    refused(handle(liar), code, number)
    liar.run("say()")
    assert [index for index, *_ in liar.run("domain.members()")] == [0]


def test_a_commons_of_another_exporter(liar):
    liar.run("n.store64(domain.address + AT['commons.cookie'], 1)")
    refused(handle(liar), "TABLE_UNFIT")
    liar.run("n.store64(domain.address + AT['commons.cookie'], int.from_bytes(COOKIE[:8], 'little'))")
    liar.run("n.store64(domain.address + AT['commons.version'], 5)")
    refused(handle(liar), "COMMONS_VERSION", 5)
    liar.run("n.store64(domain.address + AT['commons.version'], 4)")
    n.meet(handle(liar))[1].leave()


@pytest.mark.parametrize(
    ("made", "code"),
    [("AT['table.size'], ALL", "TABLE_UNFIT"), ("AT['table.size'], FUTURE_WRITE", "FD_REUSED"),
     ("AT['table.size'] + 4096, ALL | FUTURE_WRITE", "FD_REUSED"), ("4096, ALL | FUTURE_WRITE", "FD_REUSED")],
)  # fmt: skip
def test_tables_that_are_not_sealed_or_of_another_size(liar, made, code):
    liar.run(f"other = make_table({made}); say(other[1])")
    refused(handle(liar, table_fd=liar.run("other[0]")), code)
    liar.run("os.close(other[0])")


def test_handles_that_name_nobody(liar):
    none, ours = ("PID_REUSED", errno.EBADF), os.getpid()
    for wrong, expected in (
        ({"table_fd": 10_000}, none), ({"table_fd": 2**32 - 1}, none), ({"table_fd": 0}, ("FD_REUSED", 0)),
        ({"pid": ours}, ("PID_OURS", 0)), ({"pid": 0}, ("PIDFD_BLOCKED", errno.EINVAL)),
        ({"pid": 2**32 - 1}, ("PIDFD_BLOCKED", errno.EINVAL)), ({"pid": 2**31 - 1}, ("PID_UNUSED", errno.ESRCH)),
        ({"pid_namespace": 0}, ("OTHER_PIDS", 0)), ({"pid_namespace": 1}, ("OTHER_PIDS", 0)),
        ({"cookie": bytes(16)}, ("FD_REUSED", 0)),
    ):  # fmt: skip
        refused(handle(liar, **wrong), *expected)
    with pytest.raises(TypeError):
        n.meet(b"")
    dead = Peer()
    dead.close()
    refused(handle(liar, pid=dead.pid), "PID_UNUSED", errno.ESRCH)


def test_descriptors_run_out(liar):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = handle(liar)
    used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    spare = []
    try:
        while (fd := os.open("/", os.O_PATH)) < used:  # no gaps
            spare.append(fd)
        spare.append(fd)
        for room in range(4):  # pidfd, table, commons, bell
            resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1 + room, hard))
            refusal = n.meet(asked)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert why(refusal) == ("CALL_FAILED", errno.EMFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in spare:
            os.close(fd)
    n.meet(asked)[1].leave()


def fetched(liar):
    """The descriptors by which the liar is met, as a route brings them."""
    pidfd = n.OwnedFd.of_process(liar.pid)
    numbers = (liar.run(name) for name in ("table", "commons", "bell"))
    return [*(n.OwnedFd.fetched(pidfd.number, number) for number in numbers), pidfd]


def test_an_exporter_is_met_by_descriptors_of_another_route(liar):
    before = holdings()
    for count in (3, 4):
        fds = fetched(liar)
        mapping, domain, table, pidfd = n.meet(handle(liar, pid_namespace=0), *fds[:count])
        assert (mapping.nbytes, domain.member, table) == (AT["table.size"], 1, fds[0])
        assert pidfd is (fds[3] if count == 4 else None)
        assert [fd.number < 0 for fd in fds] == [False, True, True, False]  # the membership owns the middle two
        domain.leave()
        del mapping, domain, table, pidfd, fds
    assert holdings() == before


def test_descriptors_of_another_route_that_do_not_fit(liar):
    before = holdings()
    fds = fetched(liar)
    table, commons, bell, _pidfd = fds
    for wrong, code in (
        ((commons, commons, bell), "TABLE_UNFIT"), ((bell, commons, bell), "TABLE_UNFIT"),
        ((table, bell, bell), "COMMONS_OTHER"), ((table, table, bell), "COMMONS_OTHER"),
    ):  # fmt: skip
        assert why(n.meet(handle(liar), *wrong)) == (code, 0)
        assert all(fd.number >= 0 for fd in fds)
    assert why(n.meet(handle(liar, cookie=bytes(16)), *fds)) == ("TABLE_OTHER", 0)
    for wrong in ((table,), (table, commons), (table, commons, 3), (table, commons, bell, None)):
        with pytest.raises(TypeError):
            n.meet(handle(liar), *wrong)
    del fds, table, commons, bell, _pidfd, wrong
    assert holdings() == before
