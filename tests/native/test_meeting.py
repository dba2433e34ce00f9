"""`meet`: what an exporter that is met has to be, and that nothing stays of one that is not."""

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


def refused(asked):
    before = holdings()
    assert n.meet(asked) is None
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
    refused(handle(liar))  # this process is a member already
    assert domain.stands()
    domain.leave()
    del mapping, domain, table, pidfd
    assert holdings() == before
    assert [index for index, *_ in liar.run("domain.members()")] == [0]


@pytest.mark.parametrize(
    "lie",
    ["magic=b'XPUSHTAX'", "version=5", "cookie=bytes(16)", "commons=10_000", "commons=-1", "commons=0", "commons=table",
     "commons=bell", "bell=10_000", "inode=1"],
)  # fmt: skip
def test_tables_that_lie(liar, lie):
    liar.run(f"say({lie})")
    refused(handle(liar))
    liar.run("say()")
    assert [index for index, *_ in liar.run("domain.members()")] == [0]


def test_a_commons_of_another_exporter(liar):
    liar.run("n.store64(domain.address + AT['commons.cookie'], 1)")
    refused(handle(liar))
    liar.run("n.store64(domain.address + AT['commons.cookie'], int.from_bytes(COOKIE[:8], 'little'))")
    n.meet(handle(liar))[1].leave()


@pytest.mark.parametrize(
    "made", ["AT['table.size'], ALL", "AT['table.size'], FUTURE_WRITE", "AT['table.size'] + 4096, ALL | FUTURE_WRITE",
             "4096, ALL | FUTURE_WRITE"],
)  # fmt: skip
def test_tables_that_are_not_sealed_or_of_another_size(liar, made):
    liar.run(f"other = make_table({made}); say(other[1])")
    refused(handle(liar, table_fd=liar.run("other[0]")))
    liar.run("os.close(other[0])")


def test_handles_that_name_nobody(liar):
    for wrong in ({"table_fd": 10_000}, {"table_fd": 2**32 - 1}, {"table_fd": 0}, {"pid": os.getpid()}, {"pid": 0},
                  {"pid": 2**32 - 1}, {"pid": 2**31 - 1}, {"pid_namespace": 0}, {"pid_namespace": 1},
                  {"cookie": bytes(16)}):  # fmt: skip
        refused(handle(liar, **wrong))
    with pytest.raises(TypeError):
        n.meet(b"")
    dead = Peer()
    dead.close()
    refused(handle(liar, pid=dead.pid))


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
            assert n.meet(asked) is None
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in spare:
            os.close(fd)
    n.meet(asked)[1].leave()
