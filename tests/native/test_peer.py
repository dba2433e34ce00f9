"""Fields, and what PeerTable opens and refuses."""

import ctypes
import errno
import fcntl
import os
import resource
import struct

import pytest
from native_peer import AT, n

from xpushare.common.errors import InvalidArgumentError
from xpushare.sharing.handle import FIELDS

SIZE = 8192
ENTRY = 7
NONCE = bytes(range(16))
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
OPENS = n.CONSTANTS["REASON_OPENS"]
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
        self.table = n.PeerTable(self.mapping, domain, self.pidfd, True)
        self.set(generation=5, kind=1, flags=8, object=9, nbytes=5000, exposed_nbytes=SIZE, fd_count=1, fds=self.fd,
                 inode=os.fstat(self.fd).st_ino, nonce=NONCE)  # fmt: skip

    def set(self, **values):
        base = self.mapping.address + AT["table.header"] + ENTRY * AT["entry.size"]
        for name, value in values.items():
            wide = name in ("generation", "retired", "object", "nbytes", "exposed_nbytes", "inode", "offset")
            value = value if isinstance(value, bytes) else value.to_bytes(8 if wide else 4, "little")
            ctypes.memmove(base + AT["entry." + name], value, len(value))

    def held(self):
        return n.load64(self.domain.address + AT["commons.holders"] + ENTRY * AT["holders.size"])

    def opens_left(self):
        return self.domain.opens_left(ENTRY)

    def refuses(self, code, asked=None, detail=0, error=0):
        before = self.held(), self.opens_left(), sorted(os.listdir("/proc/self/fd")), mappings()
        refusal = self.table.open(asked or fields(), True)
        assert why(refusal) == code
        assert (refusal.detail, refusal.errno) == (detail, error)
        del refusal
        assert (self.held(), self.opens_left(), sorted(os.listdir("/proc/self/fd")), mappings()) == before
        return True


def mappings():
    with open("/proc/self/maps") as maps:
        return [line for line in maps if "/memfd:xpushare" in line]


def why(refusal):
    """The code of a refusal, without its prefix."""
    assert isinstance(refusal, n.Refusal), refusal
    [name] = [name for name, code in n.CONSTANTS.items() if name.startswith("REFUSED_") and code == refusal.code]
    return name.removeprefix("REFUSED_")


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
    mapping, lease, nbytes, exposed, payload, fds, *others = table.table.open(fields(), True)
    assert (mapping.nbytes, nbytes, exposed, lease.peer) == (SIZE, 5000, SIZE, table.table)
    assert (payload, fds, others) == (b"", [], [0, False, 1])
    assert isinstance(mapping, n.Mapping)
    assert isinstance(lease, n.Lease)
    assert ctypes.string_at(mapping.address, 6) == b"shared"
    assert table.held() == 1
    again = table.table.open(fields(offset=0, nbytes=5000), True)
    del lease
    assert table.held() == 1
    del again
    assert table.held() == 0
    assert mapped(mapping) == ["rw-s"]
    table.set(flags=9)
    read_only = table.table.open(fields(flags=1), True)
    assert (mapped(read_only[0]), read_only[7]) == (["r--s"], True)
    table.set(flags=8, inode=0, payload_nbytes=1, payload=b"p")  # an entry need not name it
    assert table.table.open(fields(), True)[4] == b"p"


def test_open_what_is_no_memfd(table):
    """The file descriptors and the payload, for somebody else to make something of."""
    table.set(flags=0, payload_nbytes=3, payload=b"abc")
    mapping, lease, nbytes, exposed, payload, fds, *others = table.table.open(fields(), True)
    assert (mapping, nbytes, exposed, payload, others) == (None, 5000, SIZE, b"abc", [0, False, 0])
    assert [os.fstat(fd.number).st_ino for fd in fds] == [os.fstat(table.fd).st_ino]
    assert not os.get_inheritable(fds[0].number)
    assert table.held() == 1
    del lease
    assert table.held() == 0
    fds[0].close()
    six = [os.dup(table.fd) for _ in range(6)]
    table.set(fd_count=6, fds=struct.pack("6i", *six), payload_nbytes=0)
    many = table.table.open(fields(), True)
    assert len({*(fd.number for fd in many[5]), *six}) == 12
    del many
    table.set(fds=struct.pack("6i", *six[:5], 2**31 - 1))
    assert table.refuses("FD_FREED", error=errno.EBADF), "the last of them is not there"
    for fd in six:
        os.close(fd)
    table.set(fd_count=0, payload_nbytes=128, payload=bytes(range(128)), inode=0)
    assert table.table.open(fields(), True)[4:] == (bytes(range(128)), [], 0, False, 0)


def test_open_says_form_and_offset(table):
    table.set(flags=16, offset=SIZE - 5000, inode=0)
    found = table.table.open(fields(), True)
    assert (found[0], len(found[5]), *found[6:]) == (None, 1, SIZE - 5000, False, 2)
    found[5][0].close()
    table.set(flags=8, offset=0)
    mapping, *_, (fd,), _offset, _read_only, form = table.table.open(fields(), False)
    assert (mapping, form, os.fstat(fd.number).st_ino) == (None, 1, os.fstat(table.fd).st_ino), "a memfd, as its fd"
    fd.close()


def test_hold(table):
    table.set(flags=0, kind=3, slot=77)
    lease, slot = table.table.hold(fields(kind=3))
    assert (lease.peer, slot, table.held()) == (table.table, 77, 1)
    del lease
    assert table.held() == 0
    table.set(flags=4, fd_count=1000)  # how one gets at it is of no interest here
    assert table.table.hold(fields(kind=3))
    for wrong in ({"kind": 1}, {"generation": 4}, {"nonce": bytes(16)}, {"object": 8}, {"nbytes": 4985}, {"flags": 1}):
        refusal = table.table.hold(fields(**({"kind": 3} | wrong)))
        assert why(refusal) == ("ENTRY_ENDED" if "generation" in wrong else "ENTRY_UNFIT")
        assert table.held() == 0
    nobody = n.PeerTable(table.mapping, table.domain, -1, True)
    assert not nobody.direct
    assert why(nobody.hold(fields(kind=3))) == "EXPORTER_ENDED", "no other process has the lock of the exporter's life"


def test_opens_that_are_counted(table):
    """A lease gives back the open that it took, unless something has come of it."""
    table.set(flags=10)
    asked = fields(flags=2)
    assert table.refuses("ENTRY_ENDED", asked, OPENS), "none is left"
    for _ in range(2):
        table.domain.give_open(ENTRY)
    taken = table.table.open(asked, True)[1]
    assert (table.held(), table.opens_left()) == (1, 1)
    given = table.table.hold(asked)[0]
    assert (table.held(), table.opens_left()) == (1, 0)
    assert table.refuses("ENTRY_ENDED", asked, OPENS)
    given.end()
    assert (table.held(), table.opens_left()) == (1, 1)
    taken.spend()
    del taken
    assert (table.held(), table.opens_left()) == (0, 1)
    table.set(fds=2**31 - 1)
    assert table.refuses("FD_FREED", asked, error=errno.EBADF)
    table.set(flags=2, fd_count=7)
    assert table.refuses("ENTRY_UNFIT", asked)


def test_what_another_route_has_to_bring(table):
    def other():
        return [n.OwnedFd.copied(table.fd)]

    met = n.PeerTable(table.mapping, table.domain, table.pidfd, False)
    table.set(inode=os.fstat(table.fd).st_ino)
    assert why(met.open(fields(), True)) == "NOT_DIRECT"
    table.set(flags=4, fd_count=1000)
    assert why(table.table.open(fields(), True)) == "ON_DEMAND"
    assert table.table.find(fields()) == (0, 0, 1000, SIZE)
    table.set(flags=0, fd_count=1, device=3)
    assert table.table.find(fields()) == (0, 3, 1, SIZE)
    for maps, flags in ((True, 8), (False, 8), (True, 0)):
        table.set(flags=flags)
        brought = other()
        mapping, lease, *_others, fds, _offset, _read_only, _form = met.open(fields(), maps, brought)
        if maps and flags:
            assert isinstance(mapping, n.Mapping)
            assert (fds, brought[0].number) == ([], -1), "it is closed"
        else:
            assert mapping is None
            assert fds is brought
        assert table.held() == 1
        del lease
    [fetched] = met.fetch(fields())
    assert os.fstat(fetched.number).st_ino == os.fstat(table.fd).st_ino
    table.set(flags=8)
    for wrong in ([], other() * 2):
        assert why(met.open(fields(), True, wrong)) == "ENTRY_UNFIT"
    table.set(inode=1)
    assert why(met.open(fields(), True, other())) == "FD_OTHER"
    assert why(met.open(fields(), True, [n.OwnedFd.memfd("empty")])) == "FD_OTHER"
    table.set(inode=0)
    assert why(met.open(fields(), True, [n.OwnedFd.memfd("empty")])) == "MEMORY_UNFIT"
    closed = other()
    closed[0].close()
    refusal = met.open(fields(), True, closed)
    assert (why(refusal), refusal.errno, refusal.detail) == ("MEMORY_FAILED", errno.EBADF, SIZE)
    table.set(inode=os.fstat(table.fd).st_ino)
    assert why(met.open(fields(), True, closed)) == "OBJECT_UNREAD"
    table.set(generation=6)
    assert why(met.open(fields(), True, other())) == "ENTRY_ENDED"
    assert table.held() == 0
    for wrong in ((), [1], [None], None):
        with pytest.raises(TypeError, match="list of OwnedFds"):
            met.open(fields(), True, wrong)


def test_descriptors_or_memory_run_out(table):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unused = os.dup(0)
    os.close(unused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused, hard))
    try:
        found = [table.table.open(fields(), maps) for maps in (True, False)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [(why(each), each.errno, each.what, each.detail) for each in found] == [
        ("MEMORY_FAILED", errno.EMFILE, "pidfd_getfd", SIZE), ("CALL_FAILED", errno.EMFILE, "pidfd_getfd", 0),
    ]  # fmt: skip
    room = resource.getrlimit(resource.RLIMIT_AS)
    large = memfd(size=1 << 44)
    table.set(fds=large, inode=0, exposed_nbytes=1 << 44)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 43, room[1]))
    try:
        assert table.refuses("MEMORY_FAILED", detail=1 << 44, error=errno.ENOMEM)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, room)
        os.close(large)


@pytest.mark.parametrize(
    "asked",
    [{"kind": 2}, {"flags": 1}, {"flags": 2}, {"flags": 8}, {"object": 8}, {"nonce": bytes(16)}, {"generation": 4},
     {"generation": 0}, {"entry": 8}, {"entry": 1 << 18}, {"entry": 2**32 - 1}, {"offset": 4901}, {"nbytes": 4985},
     {"offset": 2**64 - 1}, {"nbytes": 2**64 - 1}, {"offset": 5001, "nbytes": 0}],
    ids=str,
)  # fmt: skip
def test_open_refuses_handles_that_do_not_fit(table, asked):
    if asked in ({"generation": 4}, {"entry": 8}):
        assert table.refuses("ENTRY_ENDED", fields(**asked), n.CONSTANTS["REASON_PUT"])
    else:
        nowhere = asked.get("entry") or asked.get("generation") == 0
        assert table.refuses("ENTRY_NONE" if nowhere else "ENTRY_UNFIT", fields(**asked))


@pytest.mark.parametrize(
    "entry",
    [{"generation": 0}, {"generation": 6}, {"flags": 12}, {"flags": 10}, {"flags": 40}, {"fd_count": 0},
     {"fd_count": 2}, {"nbytes": SIZE + 1}, {"nbytes": 115}, {"exposed_nbytes": SIZE + 1},
     {"exposed_nbytes": 2**64 - 1, "nbytes": 2**64 - 1}, {"inode": 1}, {"fds": 2**31 - 1}, {"fds": 2**32 - 1},
     {"flags": 0, "inode": 1}, {"flags": 0, "fds": 2**31 - 1}, {"flags": 0, "fd_count": 7}, {"flags": 4},
     {"flags": 0, "payload_nbytes": 129}, {"flags": 64}, {"flags": 56}, {"offset": 1}, {"offset": 2**64 - 1},
     {"flags": 16, "offset": SIZE - 4999}, {"flags": 16, "offset": 2**64 - 1}],
    ids=str,
)  # fmt: skip
def test_open_refuses_entries_that_are_not_plain(table, entry):
    table.set(**entry)
    code, detail, error = "ENTRY_UNFIT", 0, 0
    if "generation" in entry:
        code, detail = "ENTRY_ENDED", n.CONSTANTS["REASON_PUT"]
    elif entry == {"flags": 4}:
        code = "ON_DEMAND"
    elif entry == {"flags": 0, "inode": 1}:
        code = "FD_OTHER"
    elif "fds" in entry:
        code, error = "FD_FREED", errno.EBADF
    elif "exposed_nbytes" in entry or "inode" in entry:
        code, detail = "MEMORY_UNFIT", entry.get("exposed_nbytes", SIZE)
    assert table.refuses(code, None, detail, error)


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW])
def test_open_refuses_what_could_shrink(table, seals):
    fd = memfd(seals)
    table.set(fds=fd, inode=0)
    assert table.refuses("MEMORY_UNFIT", detail=SIZE)
    os.close(fd)
    read, write = os.pipe()
    table.set(fds=read)
    assert table.refuses("MEMORY_UNFIT", detail=SIZE)
    os.close(read), os.close(write)


def test_open_without_a_living_peer_or_membership(table):
    assert why(n.PeerTable(table.mapping, table.domain, -1, True).open(fields(), True)) == "EXPORTER_ENDED"
    child = os.fork()
    if not child:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    os.waitpid(child, 0)
    dead = n.PeerTable(table.mapping, table.domain, pidfd, True)
    assert why(dead.open(fields(), True)) == why(dead.hold(fields())) == "EXPORTER_ENDED"
    assert why(dead.fetch(fields())) == "EXPORTER_ENDED"
    table.set(flags=0, fd_count=0)
    assert why(dead.open(fields(), True)) == "EXPORTER_ENDED"
    os.close(pidfd)
    table.domain.leave()
    for call in (lambda: table.table.open(fields(), True), lambda: table.table.hold(fields())):
        with pytest.raises(InvalidArgumentError):
            call()


def test_peer_table_arguments(table):
    with pytest.raises(TypeError):
        n.PeerTable(None, table.domain, -1, False)
    with pytest.raises(TypeError):
        n.PeerTable(table.mapping, None, -1, False)
    with pytest.raises(ValueError, match="table"):
        n.PeerTable(n.Mapping(table.fd, SIZE), table.domain, -1, False)
    with pytest.raises(TypeError):
        table.table.open(bytes(256), True)
    with pytest.raises(TypeError):
        table.table.open(fields())
    with pytest.raises(TypeError):
        table.table.hold(bytes(256))


# --- the same checks, one at a time -----------------------------------------------------------------------------------


def test_whether_an_entry_stands(table):
    assert table.table.find(fields()) == (1, 0, 1, SIZE)
    assert table.table.ended(fields()) is None
    for wrong in ({"object": 10}, {"nonce": bytes(16)}, {"nbytes": 5000}, {"offset": 2**64 - 1}, {"flags": 1}):
        assert why(table.table.find(fields(**wrong))) == why(table.table.fetch(fields(**wrong))) == "ENTRY_UNFIT"
        assert table.table.ended(fields(**wrong)) is None
    for call in (table.table.find, table.table.ended):
        refusal = call(fields(generation=4))
        assert (why(refusal), refusal.detail) == ("ENTRY_ENDED", n.CONSTANTS["REASON_PUT"])
    table.set(generation=0, retired=5, reason=2)
    for call in (table.table.find, table.table.ended):
        refusal = call(fields())
        assert (why(refusal), refusal.detail) == ("ENTRY_ENDED", n.CONSTANTS["REASON_FREED"])
    for nowhere in ({"entry": AT["table.entries"]}, {"entry": 2**32 - 1}, {"generation": 0}):
        for call in (table.table.find, table.table.ended):
            assert why(call(fields(**nowhere))) == "ENTRY_NONE"
    for call in (table.table.find, table.table.ended, table.table.fetch):
        with pytest.raises(TypeError, match="Fields"):
            call(None)


def test_what_may_be_mapped():
    fd = memfd()
    n.check_memfd(fd, SIZE)
    n.check_memfd(fd, SIZE - 1, os.fstat(fd).st_ino)
    n.check_memfd(fd, SIZE, 0, fcntl.F_SEAL_GROW, True)
    for wrong, why in (
        ({"nbytes": SIZE + 1}, "size"),
        ({"nbytes": 0}, "size"),
        ({"nbytes": SIZE - 1, "exact": True}, "size"),
        ({"nbytes": SIZE, "inode": 1}, "another file"),
        ({"nbytes": SIZE, "seals": 16}, "FUTURE_WRITE"),
    ):
        with pytest.raises(ValueError, match=why):
            n.check_memfd(fd, **wrong)
    os.close(fd)
    with pytest.raises(OSError, match="fstat"):
        n.check_memfd(fd, SIZE)
    for make, why in ((lambda: memfd(0), "SHRINK"), (lambda: os.eventfd(0), "not a memfd")):
        fd = make()
        with pytest.raises(ValueError, match=why):
            n.check_memfd(fd, SIZE)
        os.close(fd)


def test_huge_pages_are_refused():
    """A hole in them, read where the pool is empty, is a SIGBUS: no importer may map one."""
    try:
        fd = os.memfd_create("huge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"no huge pages here: {error}")
    os.ftruncate(fd, 1 << 30)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    with pytest.raises(ValueError, match="ordinary pages"):
        n.Mapping.imported(fd, 0, SIZE, False)
    os.close(fd)


def test_messages_of_the_socket():
    cookie = bytes(range(16, 32))
    raw = n.request(2, [(fields(cookie=cookie), 253), (fields(cookie=cookie, entry=8), 0)])
    assert len(raw) == AT["request.wanted"] + 2 * AT["wanted.size"]

    def read(struct_name, base):
        found = n.STRUCTS[struct_name].items()
        return {name: struct.unpack_from("<" + code, raw, base + at)[0] for name, (at, code) in found}

    assert read("request", 0) == {"magic": b"XPSQ", "op": 2, "cookie": cookie}
    for number, (entry, first) in enumerate(((ENTRY, 253), (8, 0))):
        assert read("wanted", AT["request.wanted"] + number * AT["wanted.size"]) == {
            "entry": entry, "first": first, "generation": 5, "nonce": NONCE,
        }  # fmt: skip
    with pytest.raises(ValueError, match="one exporter"):
        n.request(2, [(fields(cookie=cookie), 0), (fields(), 0)])
    for wrong in ([(fields(),)], [(None, 0)], [None], fields()):
        with pytest.raises(TypeError):
            n.request(2, wrong)
    reply = struct.pack("<4sIII", b"XPSR", 0, 2, 255)
    assert n.read_reply(reply, 1, 2) == [(0, 2, 255)]
    assert n.read_reply(reply + struct.pack("<III", 0, 1, 1), 3, 3) == [(0, 2, 255), (0, 1, 1)]
    assert n.read_reply(struct.pack("<4sIII", b"XPSR", 3, 7, 0), 1, 0) == [(3, 0, 0)]  # this count means nothing
    with pytest.raises(OSError, match="lost"):
        n.read_reply(reply, 1, 1)
    for wrong, fds in (
        (reply, 3),
        (reply[:-1], 2),
        (reply + b"\0", 2),
        (reply[:4], 0),
        (b"", 0),
        (b"Y" + reply[1:], 2),
        (bytes(16), 0),
        (reply * 2, 2),
        (reply + reply[4:], 4),
    ):
        with pytest.raises(ValueError, match="no sense"):
            n.read_reply(wrong, 1, fds)


class Thing:
    """Something that is open, as far as the cache of imports is concerned."""


def test_what_is_open_is_held(table):
    imports, thing = n.Imports(), Thing()
    asked = fields()
    key = asked.key(7)
    assert imports.hold(asked, key) is None, "nothing is open"
    assert imports.add(key, thing) is thing
    assert imports.hold(asked, key) is None, "the exporter is not known"
    imports.peers[asked.cookie] = "no PeerTable"
    assert imports.hold(asked, key) is None
    imports.peers[asked.cookie] = table.table
    found, lease = imports.hold(asked, key)
    assert (found, lease.peer, table.held()) == (thing, table.table, 1)
    del found, lease
    assert table.held() == 0
    table.set(generation=6)
    assert imports.hold(asked, key) is None, "it has ended"
    assert table.held() == 0
    table.set(generation=5)
    del thing
    assert imports.hold(asked, key) is None, "nobody has it open any more"


def test_imports_refuse_what_they_cannot_use():
    imports = n.Imports()
    for call in (
        lambda: n.Imports(1),
        lambda: imports.hold(bytes(256), b"key"),
        lambda: imports.add(b"key", 1),  # has no weak references
        lambda: imports.get([]),
        lambda: imports.open([], []),
        lambda: imports.open((), ()),
        lambda: imports.decide("no handle", None, 1, None, None),
    ):
        with pytest.raises(TypeError):
            call()
    assert imports.open((), []) == []
    assert imports.open(("no handle",), []) is None
    assert imports.decided("no handle") is None
