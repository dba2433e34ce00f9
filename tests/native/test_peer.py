"""Fields, and what PeerTable.open opens and what it leaves to others."""

import ctypes
import fcntl
import os
import struct

import pytest
from native_peer import AT, n

from xpushare.sharing.handle import FIELDS

SIZE = 8192
ENTRY = 7
NONCE = bytes(range(16))
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
HANDLE = struct.Struct("<" + "".join(code for _name, code in FIELDS) + "32s")
GOOD = {"kind": 1, "entry": ENTRY, "generation": 5, "nonce": NONCE, "object": 9, "offset": 16, "nbytes": 100}


def fields(**values):
    empty = {name: bytes(struct.calcsize(code)) if code.endswith("s") else 0 for name, code in FIELDS}
    return n.Fields(HANDLE.pack(*(empty | GOOD | values).values(), bytes(32)))


def test_fields():
    raw = bytes(range(256))
    found = n.Fields(raw)
    at = 0
    for name, code in FIELDS:
        size = struct.calcsize(code)
        assert AT["handle." + name] == at
        assert getattr(found, name) == struct.unpack("<" + code, raw[at : at + size])[0]
        at += size
    assert AT["handle.seal"] == at
    assert AT["handle.size"] == 256
    with pytest.raises(AttributeError):
        found.kind = 1
    for wrong in (b"", raw[:-1], raw + b"\0"):
        with pytest.raises(ValueError, match="256"):
            n.Fields(wrong)
    for wrong in ("text", bytearray(raw), None):
        with pytest.raises(TypeError):
            n.Fields(wrong)
    with pytest.raises(TypeError):
        n.Fields(raw=raw)


def memfd(seals=SEALS, size=SIZE):
    fd = os.memfd_create("xpushare-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


class Table:
    """A peer's table with one entry; the peer is this very process."""

    def __init__(self, domain):
        table = os.memfd_create("xpushare-table", os.MFD_CLOEXEC)
        os.ftruncate(table, AT["table.size"])
        self.mapping = n.Mapping(table, AT["table.size"])
        os.close(table)
        self.fd = memfd()
        self.pidfd = os.pidfd_open(os.getpid())
        self.domain = domain
        self.table = n.PeerTable(self.mapping, domain, self.pidfd)
        self.set(generation=5, kind=1, flags=8, object=9, nbytes=5000, exposed_nbytes=SIZE, fd_count=1, fds=self.fd,
                 inode=os.fstat(self.fd).st_ino, nonce=NONCE)  # fmt: skip

    def set(self, **values):
        base = self.mapping.address + AT["table.header"] + ENTRY * AT["entry.size"]
        for name, value in values.items():
            wide = name in ("generation", "object", "nbytes", "exposed_nbytes", "inode")
            value = value if name == "nonce" else value.to_bytes(8 if wide else 4, "little")
            ctypes.memmove(base + AT["entry." + name], value, len(value))

    def held(self):
        return n.load64(self.domain.address + AT["commons.holders"] + ENTRY * AT["holders.size"])

    def refuses(self, asked=None):
        fds = sorted(os.listdir("/proc/self/fd"))
        before = self.held()
        assert self.table.open(asked or fields(), None) is None
        assert self.held() == before
        assert sorted(os.listdir("/proc/self/fd")) == fds
        return True


@pytest.fixture
def table(exporter):
    table = Table(exporter.domain)
    yield table
    os.close(table.fd)
    os.close(table.pidfd)


def mapped(mapping):
    with open("/proc/self/maps") as maps:
        return [line.split()[1] for line in maps if line.startswith(f"{mapping.address:x}-")]


def test_open(table):
    os.pwrite(table.fd, b"shared", 0)
    marker = object()
    mapping, lease, nbytes = table.table.open(fields(), marker)
    assert (mapping.nbytes, nbytes, lease.peer) == (SIZE, 5000, marker)
    assert isinstance(mapping, n.Mapping)
    assert isinstance(lease, n.Lease)
    assert ctypes.string_at(mapping.address, 6) == b"shared"
    assert table.held() == 1
    _, again, _ = table.table.open(fields(offset=0, nbytes=5000), marker)
    del lease
    assert table.held() == 1
    del again
    assert table.held() == 0
    assert mapped(mapping) == ["rw-s"]
    table.set(flags=9)
    read_only, _, _ = table.table.open(fields(flags=1), marker)
    assert mapped(read_only) == ["r--s"]
    table.set(flags=8, inode=0)  # an entry need not name it
    assert table.table.open(fields(), marker)


@pytest.mark.parametrize(
    "asked",
    [{"kind": 2}, {"flags": 1}, {"flags": 2}, {"flags": 8}, {"object": 8}, {"nonce": bytes(16)}, {"generation": 4},
     {"generation": 0}, {"entry": 8}, {"entry": 1 << 18}, {"entry": 2**32 - 1}, {"offset": 4901}, {"nbytes": 4985},
     {"offset": 2**64 - 1}, {"nbytes": 2**64 - 1}, {"offset": 5001, "nbytes": 0}],
    ids=str,
)  # fmt: skip
def test_open_refuses_handles_that_do_not_fit(table, asked):
    assert table.refuses(fields(**asked))


@pytest.mark.parametrize(
    "entry",
    [{"generation": 0}, {"generation": 6}, {"flags": 0}, {"flags": 12}, {"flags": 10}, {"flags": 24}, {"fd_count": 0},
     {"fd_count": 2}, {"payload_nbytes": 1}, {"nbytes": SIZE + 1}, {"nbytes": 115}, {"exposed_nbytes": SIZE + 1},
     {"exposed_nbytes": 2**64 - 1, "nbytes": 2**64 - 1}, {"inode": 1}, {"fds": 2**31 - 1}, {"fds": 2**32 - 1}],
    ids=str,
)  # fmt: skip
def test_open_refuses_entries_that_are_not_plain(table, entry):
    table.set(**entry)
    assert table.refuses()


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW])
def test_open_refuses_what_could_shrink(table, seals):
    fd = memfd(seals)
    table.set(fds=fd, inode=0)
    assert table.refuses()
    os.close(fd)
    read, write = os.pipe()
    table.set(fds=read)
    assert table.refuses()
    os.close(read), os.close(write)


def test_open_without_a_living_peer_or_membership(table):
    assert n.PeerTable(table.mapping, table.domain, -1).open(fields(), None) is None
    child = os.fork()
    if not child:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    os.waitpid(child, 0)
    assert n.PeerTable(table.mapping, table.domain, pidfd).open(fields(), None) is None
    os.close(pidfd)
    table.domain.leave()
    assert table.refuses()


def test_peer_table_arguments(table):
    with pytest.raises(TypeError):
        n.PeerTable(None, table.domain, -1)
    with pytest.raises(TypeError):
        n.PeerTable(table.mapping, None, -1)
    with pytest.raises(ValueError, match="table"):
        n.PeerTable(n.Mapping(table.fd, SIZE), table.domain, -1)
    with pytest.raises(TypeError):
        table.table.open(bytes(256), None)
    with pytest.raises(TypeError):
        table.table.open(fields())
