"""OwnTable: what a process exports, all at once or nothing, and what ends."""

import copy
import fcntl
import gc
import itertools
import os
import pickle
import random
import struct
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from native_peer import AT, Handle, load32, n

PUT, FREED = n.CONSTANTS["REASON_PUT"], n.CONSTANTS["REASON_FREED"]
READ_ONLY, COUNTED, PICKLED = (n.CONSTANTS[f"ENTRY_{name}"] for name in ("READ_ONLY", "COUNTED", "PICKLED"))
NAMES = b"mock".ljust(16, b"\0") + bytes(range(16))
COMMON = struct.pack("<8sHHI", b"XPUSHARE", 1, 0, 0).ljust(AT["handle.seal"], b"\0")
SEAL = n.Seal(b"key")


class Source:
    pass


class Table:
    def __init__(self, exporter):
        self.exporter = exporter
        fd = os.memfd_create("table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, AT["table.size"])
        self.mapping = n.Mapping(fd, AT["table.size"])
        os.close(fd)
        self.own = n.OwnTable(self.mapping, COMMON, exporter.domain)
        self.fd = os.memfd_create("memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, 8192)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.said = (1, 8, NAMES, 2, 9, 5000, 8192, os.fstat(self.fd).st_ino, 0, (self.fd,), b"")
        self.template = self.own.prepare(*self.said)

    def new(self, source=None, **options):
        return n.Exported(self.template, source, **options)

    def export(self, *exports, opens=None, deadline=0):
        return self.own.export(SEAL, exports, opens, deadline)

    def one(self, *arguments, **options):
        made = self.new(*arguments, **options)
        self.export(made)
        return made

    def word(self, export, name):
        base = self.mapping.address + AT["table.header"] + export.entry * AT["entry.size"]
        wide = name in ("generation", "retired", "object")
        return (n.load64 if wide else load32)(base + AT["entry." + name])

    def deadline(self, export):
        return n.load64(self.mapping.address + AT["table.deadlines"] + 8 * export.entry)


@pytest.fixture
def table(exporter):
    table = Table(exporter)
    yield table
    os.close(table.fd)


def test_prepare(table):
    assert table.template.nbytes == 5000
    said = table.said
    for at, wrong in ((2, NAMES[1:]), (9, (3,) * 7), (10, bytes(129))):
        with pytest.raises(ValueError, match="entry"):
            table.own.prepare(*said[:at], wrong, *said[at + 1 :])
    for wrong in (said[:-1], (*said, 1), (*said, 1, [1], 0), (*said, 1 << 20, [1], 0, 0, 0)):
        with pytest.raises(TypeError):
            table.own.prepare(*wrong)
    for wrong in ((0, [1], 0, 0), (1 << 20, [], 0, 0)):
        with pytest.raises(ValueError, match="function"):
            table.own.prepare(*said, *wrong)
    for wrong in (("1", [1], 0, 0), (1 << 20, 1, 0, 0), (1 << 20, ["1"], 0, 0), (1 << 20, [1], "0", 0)):
        with pytest.raises(TypeError):
            table.own.prepare(*said, *wrong)
    assert [table.own.new_object() for _ in range(3)] == [1, 2, 3]


def test_arguments_of_the_table(table):
    with pytest.raises(TypeError):
        n.Template()
    short = n.Mapping(table.fd, 8192)
    for mapping, common in ((short, COMMON), (table.mapping, COMMON[1:])):
        with pytest.raises(ValueError, match="table"):
            n.OwnTable(mapping, common, table.exporter.domain)
    for domain, more in ((None, ()), (table.exporter.domain, (None,))):
        with pytest.raises(TypeError):
            n.OwnTable(table.mapping, COMMON, domain, *more)


def test_an_export_is_an_entry_and_the_handle_that_fits_it(table, exporter):
    source, keep = Source(), Source()
    new = table.new(source, keep=keep, offset=16, nbytes=100, read_only=True, slot=3)
    assert (new.handle, new.live, new.generation, new.deadline) == (None, False, 0, 0)
    handles = table.export(new)
    assert handles == [new.handle]
    assert (new.source, new.keep, new.nbytes, new.live) == (source, keep, 5000, True)
    assert (new.implicit, new.foreign, new.outlives, new.deadline) == (False, False, False, 0)
    fields, raw = n.fields_of(new.handle), bytes(new.handle)
    assert (fields.magic, fields.version, fields.backend + fields.device_uuid) == (b"XPUSHARE", 1, NAMES)
    assert (fields.kind, fields.flags, fields.entry, fields.generation) == (1, READ_ONLY, new.entry, new.generation)
    assert (fields.object, fields.offset, fields.nbytes, fields.exposed_nbytes) == (9, 16, 100, 8192)
    assert raw[-32:] == SEAL.hash(raw[:-32])
    assert n.Fields(raw).nonce == fields.nonce
    assert table.word(new, "generation") == new.generation
    assert (table.word(new, "flags"), table.word(new, "slot")) == (8 | READ_ONLY, 3)
    pidfd = os.pidfd_open(os.getpid())
    peer = n.PeerTable(table.mapping, exporter.domain, pidfd, True)
    assert peer.open(fields, True)
    assert not table.own.end(new, FREED)
    for refusal in (peer.open(fields, True), peer.ended(fields)):
        assert (refusal.code, refusal.detail) == (n.CONSTANTS["REFUSED_ENTRY_ENDED"], FREED)
    os.close(pidfd)


def test_opens_and_deadlines(table, exporter):
    first, second = table.new(), table.new()
    handles = table.export(first, second, opens=3, deadline=77)
    for each, handle in zip((first, second), handles, strict=True):
        assert n.fields_of(handle).flags == COUNTED
        assert exporter.domain.opens_left(each.entry) == 3
        assert table.deadline(each) == each.deadline == 77
        assert table.own.give_open(n.fields_of(handle))
        assert exporter.domain.opens_left(each.entry) == 4
    pickled = table.one(implicit=True)
    assert pickled.implicit
    assert n.fields_of(pickled.handle).flags == PICKLED
    assert exporter.domain.opens_left(pickled.entry) == 0
    assert table.own.give_open(n.fields_of(pickled.handle), 99)
    assert (exporter.domain.opens_left(pickled.entry), exporter.domain.renewed(pickled.entry)) == (1, 99)
    table.own.set_deadline(pickled, 55)
    assert table.deadline(pickled) == pickled.deadline == 55
    for each in (first, second, pickled):
        table.own.end(each, PUT)
        assert not table.own.give_open(n.fields_of(each.handle))
    table.own.set_deadline(first, 1)
    assert table.deadline(first) == 77, "the entry may be another's by now"
    again = table.one()
    assert again.entry == first.entry
    assert table.deadline(again) == again.deadline == 0, "not that of the export before"


def test_find(table):
    first, second = table.one(), table.one()
    assert table.own.find(n.fields_of(first.handle)) is first
    assert table.own.exports() == [first, second]
    assert (table.own.live, table.own.used) == (2, 2)
    forged = bytearray(bytes(first.handle))
    forged[-1] ^= 1
    assert table.own.find(n.Fields(bytes(forged))) is None
    table.own.end(first, PUT)
    third = table.one()
    assert third.entry == first.entry
    assert table.own.find(n.fields_of(first.handle)) is None
    assert table.own.exports() == [second, third], "the oldest first"
    for wrong in (None, first.handle, bytes(256)):
        with pytest.raises(TypeError):
            table.own.find(wrong)


def test_all_or_none(table):
    """The third was exported before, or is something else."""
    before = table.one()
    for third in (before, Source(), None):
        others = [table.new() for _ in range(2)]
        with pytest.raises((ValueError, TypeError)):
            table.export(*others, third)
        assert table.own.exports() == [before]
        assert all(each.handle is None and not each.live for each in others)
        assert len(table.export(*others)) == 2, "they can be exported still"
        for each in others:
            table.own.end(each, PUT)
    twice = table.new()
    with pytest.raises(ValueError, match="exported before"):
        table.export(twice, twice)
    assert table.own.exports() == [before]


def test_a_full_table(table):
    room = AT["table.entries"] - 1
    assert len(table.export(*(table.new() for _ in range(room)))) == table.own.live == room
    pair = table.new(), table.new()
    assert table.export(*pair) is None
    assert table.own.live == room
    assert table.export(pair[0]) == [pair[0].handle]
    assert table.export(pair[1]) is None


def test_entries_are_taken_again(table, peers):
    """Not one that an importer has open still."""
    first, second = table.one(), table.one()
    importer = peers()
    importer.run(f"lease = n.Lease(d, {first.entry}, None)")
    for each in (first, second):
        table.own.end(each, PUT)
    assert table.one().entry == second.entry
    assert table.one().entry not in (first.entry, second.entry)
    importer.run("[globals().pop('lease'), None][1]")
    assert table.one().entry == first.entry


def test_foreign_memory_lingers(table, peers):
    """Its entry and its source stay until they are released."""
    source = Source()
    alive = weakref.ref(source)
    used, unused = table.one(source, foreign=True), table.one(foreign=True)
    del source
    importer = peers()
    importer.run(f"lease = n.Lease(d, {used.entry}, None)")
    assert table.own.end(used, PUT)
    assert not table.own.end(unused, PUT)
    assert not table.own.end(used, FREED), "only once"
    assert table.word(used, "reason") == PUT
    assert (table.own.exports(), table.own.live) == ([], 0)
    importer.run("[globals().pop('lease'), None][1]")
    entry = used.entry
    gc.collect()
    assert alive() is not None
    assert table.one().entry == unused.entry
    table.own.release(used)
    table.own.release(used)
    assert table.one().entry == entry
    assert table.one().entry not in (entry, unused.entry), "released once"
    del used
    assert alive() is None


def test_a_live_export_is_not_released(table):
    made = table.one()
    table.own.release(made)
    assert table.own.exports() == [made]


def test_exports_of_another_table(table, exporter):
    other, made = Table(exporter), table.one()
    other.one()
    assert not other.own.end(made, PUT)
    other.own.release(made)
    other.own.set_deadline(made, 5)
    assert other.own.find(n.fields_of(made.handle)) is None
    assert (made.live, made.deadline, other.own.live) == (True, 0, 1)
    os.close(other.fd)


def test_sources_live_as_long_as_their_exports(table):
    made = table.one(Source(), keep=Source())
    source, keep = weakref.ref(made.source), weakref.ref(made.keep)
    gc.collect()
    assert None not in (source(), keep())
    table.own.end(made, PUT)
    del made
    assert source() is keep() is None


def test_cycles_are_collected(exporter):
    """An export of what has it, and a table that its own export has."""
    table = Table(exporter)
    lone = Source()
    lone.export = table.new(lone)
    live = Source()
    live.table = table.own
    table.one(live)
    gone = [weakref.ref(each) for each in (lone, live)]
    os.close(table.fd)
    del lone, live, table
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_threads_export_and_end_at_once(table):
    """Each entry and generation is of one export."""
    start, failed = threading.Barrier(4), []

    def work(number):
        try:
            start.wait()
            for step in range(300):
                batch = [table.new((number, step)) for _ in range(1 + step % 3)]
                handles = table.export(*batch)
                assert [table.own.find(n.fields_of(each)) for each in handles] == batch
                table.own.exports()
                for each in batch:
                    table.own.give_open(n.fields_of(each.handle))
                    table.own.set_deadline(each, step)
                    assert not table.own.end(each, PUT)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
    assert table.own.live == 0
    assert table.own.used <= 12
    assert table.one().generation == 1 + 4 * 600


def test_threads_race_for_one_export(table):
    """It is exported once, and ended once."""
    for _ in range(50):
        new, start, done = table.new(), threading.Barrier(3), []

        def work(new=new, start=start, done=done):
            start.wait()
            try:
                done.append(table.export(new))
            except ValueError:
                pass

        threads = [threading.Thread(target=work) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert [new.handle] == done[0]
        assert len(done) == table.own.live == 1
        table.own.end(new, PUT)


def test_a_finalizer_ends_exports_meanwhile(table):
    """The garbage collector runs when it likes."""
    made = [table.one() for _ in range(20)]

    class Ends:
        def __del__(self):
            table.own.end(made.pop(), PUT)
            table.own.exports()

    before = gc.get_threshold()
    try:
        gc.set_threshold(1)
        for _ in range(20):
            cycle = Ends()
            cycle.own = cycle
            del cycle
            batch = [table.new() for _ in range(3)]
            table.export(*batch)
            for each in batch:
                table.own.end(each, PUT)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert not made
    assert table.own.live == 0


OUT_OF_MEMORY = """
import _testcapi, sys
sys.path.insert(0, sys.argv[1])
import test_exports, native_peer
table = test_exports.Table(native_peer.Exporter())
failed = 0
for nth in range(40):
    batch = [table.new() for _ in range(3)]
    made = None
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        made = table.export(*batch)
    except MemoryError:
        failed += 1
    finally:
        _testcapi.remove_mem_hooks()
    assert table.own.live == (3 if made else 0), nth
    assert (made is None) == all(each.handle is None for each in batch), nth
    for each in batch:
        table.own.end(each, 1)
print(failed > 4, made is not None, table.own.live, table.own.used)
"""


def test_without_memory_nothing_is_exported():
    pytest.importorskip("_testcapi")
    command = [sys.executable, "-c", OUT_OF_MEMORY, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True", "0", "3"], done.stderr


def test_objects_that_nobody_made_as_they_should(table):
    """They are refused, or of no use, but harmless."""
    made = table.one(Source())
    for each in (made, table.own, table.template):
        for attempt in (
            lambda each=each: type(each).__new__(type(each)),
            lambda each=each: object.__new__(type(each)),
            lambda each=each: copy.copy(each),
            lambda each=each: copy.deepcopy(each),
            *(lambda each=each, p=p: pickle.loads(pickle.dumps(each, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)),
            lambda each=each: setattr(each, "__class__", Source),
            lambda each=each: setattr(Source(), "__class__", type(each)),
            lambda each=each: type("Other", (type(each),), {}),
        ):
            with pytest.raises((TypeError, pickle.PicklingError)):
                attempt()
    for one, other in itertools.permutations((made, table.own, table.template), 2):
        with pytest.raises(TypeError):
            one.__class__ = type(other)
    for name in (
        "source", "keep", "handle", "live", "entry", "generation", "nbytes", "deadline", "foreign", "implicit",
    ):  # fmt: skip
        with pytest.raises((AttributeError, TypeError)):
            setattr(made, name, None)
    with pytest.raises(TypeError):
        made.outlives = 3
    made.outlives = True
    assert table.own.find(n.fields_of(made.handle)) is made


def test_fuzz(table, exporter):
    """Anything in any place of any method: an exception, or what it says."""
    random.seed(25)
    made = [table.one() for _ in range(3)]

    def something():
        return random.choice(
            [
                None, 0, 1, -1, 2**31, 2**32, 2**64, 2**70, 1.5, True, "text", b"", bytes(32), bytes(256), (), [], (1,),
                [None], {}, object, Handle, Source(), SEAL, table.template, table.own, exporter.domain, table.mapping,
                table.new(), made, random.choice(made), random.choice(made).handle,
                n.fields_of(random.choice(made).handle),
                [table.new(), table.new()], [table.new(), random.choice(made)], (table.new(),),
            ]
        )  # fmt: skip

    verbs = [getattr(table.own, name) for name in dir(table.own) if not name.startswith("_")]
    verbs = [each for each in verbs if callable(each)] + [n.Exported, n.OwnTable]
    good = 0
    for _ in range(20_000):
        verb = random.choice(verbs)
        if verb == table.own.export and random.random() < 0.5:
            arguments = (SEAL, something(), random.choice([None, 1]), 0)
        elif verb == table.own.prepare and random.random() < 0.5:
            arguments = list(table.said)
            arguments[random.randrange(len(arguments))] = something()
        else:
            arguments = [something() for _ in range(random.randrange(6))]
        try:
            verb(*arguments)
            good += 1
        except (TypeError, ValueError, OverflowError):
            pass
    assert good > 500
    live = table.own.exports()
    assert len(live) == table.own.live
    assert all(table.own.find(n.fields_of(each.handle)) is each for each in live)
    for each in live:
        table.own.end(each, PUT)
    assert table.own.live == 0
