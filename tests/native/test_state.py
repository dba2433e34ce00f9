"""State that native types hold for Python's classes: misuse raises, or gives what cannot be used, and never crashes."""

import contextlib
import copy
import faulthandler
import functools
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

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if __name__ == "__main__":  # see `test_misuse_in_a_process_of_its_own`
    from native_peer import n

    sys.modules["xpushare._native"] = n  # with a sanitizer, say

import xpushare as xs
from xpushare import _native
from xpushare.common.errors import Unread
from xpushare.core import memory as memories
from xpushare.core import resources
from xpushare.objects.array import covered_by, described
from xpushare.sharing import identity

BASES = {
    xs.ipc.Handle: _native.HandleState,
    xs.ArrayHandle: _native.MessageState,
    xs.Memory: _native.BufferBase,
    xs.SharedArray: _native.ArrayState,
}

UNREAD = _native.HandleState, _native.MessageState
NATIVE = {each for base in BASES.values() for each in base.__mro__[:-1]}
ON_OBJECTS = [
    *(
        use
        for base in NATIVE
        for name, each in vars(base).items()
        if name.startswith("_") and not name.startswith("__")
        for use in ([each] if callable(each) else [each.__get__, each.__set__])
    ),
]


class Thing:
    """Something that references can be made to, also in a circle."""


class Number:
    """Python runs when it is taken for a number: it empties lists, and drops what it was given."""

    def __init__(self, *victims):
        self.victims = victims

    def __index__(self):
        for each in self.victims:
            with contextlib.suppress(Exception):
                each.clear()
        return 1


def read_handle(raw):
    return identity.sealing().read(raw, identity.boot_id())


def make():
    """One of each type, whole."""
    memory = xs.malloc_host(4096, "native_cpu:0")
    array = memory.as_array((4, 8), "f4", 64)
    handle = xs.share([array, memory.as_array(4, "u1", 2048)], ttl=60)
    leaves = _native.Leaves([array, memory.as_array(3, "i2"), np.zeros(3), 7], False)
    return {
        "Memory": memory,
        "SharedArray": array,
        "Handle": read_handle(bytes(handle.handles[0])),
        "ArrayHandle": xs.ArrayHandle(bytes(handle)),
        "attached": xs.attach(bytes(handle))[0],
        "Leaves": leaves,
    }


def half_made():
    """What a constructor of the base gives: nothing was said of it."""
    found = [base.__new__(kind) for kind, base in BASES.items()]
    found += [base.__new__(base) for base in BASES.values()]
    found += [object.__new__(kind) for kind in (xs.ipc.Handle, xs.ArrayHandle, *BASES.values())]
    found.append(_native.BufferBase.__new__(type("Sub", (_native.BufferBase,), {})))
    return found


def looked_at(thing):
    """Read all that it has, and call what takes no arguments but the thing."""
    for function in ON_OBJECTS:
        if function is not _native.MessageState._own:
            with contextlib.suppress(Exception):
                function(thing)
    for name in dir(thing):
        with contextlib.suppress(Exception):
            found = getattr(thing, name)
            if callable(found) and name not in ("__class__", "__init_subclass__", "_own"):
                found()
    for function in repr, str, bytes, hash, memoryview, np.asarray, gc.get_referents, weakref.ref:
        with contextlib.suppress(Exception):
            function(thing)


@pytest.fixture(autouse=True)
def no_leaked_fds():
    """Instead of the folder's: these tests share for a minute, which other tests tell apart from leaks."""


# --- what is half made


def test_only_the_bases_constructors_make_them():
    with pytest.raises(TypeError):
        object.__new__(_native.Leaves)
    for kind in xs.Memory, xs.SharedArray:
        with pytest.raises(TypeError, match="made by"):
            kind()
    for wrong in ((), ([],), (1, False), ([], False, 1)):
        with pytest.raises(TypeError):
            _native.Leaves(*wrong)


def test_what_is_half_made_cannot_be_used():
    memory, array = _native.BufferBase.__new__(xs.Memory), _native.ArrayState.__new__(xs.SharedArray)
    for each in memory, array:
        assert each.closed
        for use in (xs.share, memoryview, lambda x: x.device, lambda x: x.ptr, lambda x: x.__dlpack__(), pickle.dumps):
            with pytest.raises(xs.InvalidArgumentError, match="closed"):
                use(each)
        each.close()
    handle, message = _native.HandleState.__new__(xs.ipc.Handle), _native.MessageState.__new__(xs.ArrayHandle)
    with pytest.raises(AttributeError):
        _native.fields_of(handle)
    with pytest.raises(AttributeError):
        print(message._memory)
    for each in handle, message, pickle.loads(pickle.dumps(handle)), pickle.loads(pickle.dumps(message)):
        for use in xs.attach, xs.ipc.memory.open, xs.ipc.memory.put:
            with pytest.raises((xs.XpuShareError, AttributeError)):
                use(each)
    with pytest.raises(TypeError, match="not a message"):
        message._following(list)
    message._own()
    assert message._end()
    for each in half_made():
        looked_at(each)


def test_an_array_that_was_given_memory_later_is_still_none():
    """What an array holds can be set; the dtype and the shape cannot."""
    made = make()
    array = _native.ArrayState.__new__(xs.SharedArray)
    array._hold(covered_by(made["SharedArray"])[0], _native.forks())
    for use in (xs.share, memoryview, np.asarray, lambda x: x.shape, described):
        with contextlib.suppress(Exception):
            use(array)
    leaves = _native.Leaves([array], False)
    assert leaves.view() == []
    array._hold(made, 0)  # whatever
    looked_at(array)


def test_what_cannot_be_read_has_its_bytes_only():
    why = Unread(xs.InvalidHandleError("as the test says"))
    for unread in (base._of(b"bytes", why) for base in UNREAD):
        assert (bytes(unread), unread._unread) == (b"bytes", why)
        assert "as the test says" in repr(unread)
        for read in _native.fields_of, _native.MessageState._memory.__get__:
            with pytest.raises((xs.InvalidHandleError, TypeError)):
                read(unread)
        looked_at(unread)
    for wrong in (None, 1, "text", [], object()):
        for make_ in (base._of for base in UNREAD):
            with contextlib.suppress(TypeError):
                looked_at(make_(wrong, wrong))


# --- copies, classes, and what comes back


def test_copies():
    made = make()
    for name in "Handle", "ArrayHandle":
        for copied in pickle.loads(pickle.dumps(made[name])), *([copy.copy(made[name])] if name == "Handle" else []):
            assert copied == made[name]
            assert bytes(copied) == bytes(made[name])
    for each in (made["Memory"], made["SharedArray"], made["ArrayHandle"], made["Leaves"]):
        for copying in copy.copy, copy.deepcopy:
            with pytest.raises(TypeError):
                copying(each)
    for base in BASES.values():
        for copying in (copy.copy, copy.deepcopy, *(lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in range(6))):
            with contextlib.suppress(TypeError):
                looked_at(copying(base.__new__(base)))  # what it gives is as half-made
    for protocol in range(6):
        with pytest.raises(TypeError):
            made["Leaves"].__reduce_ex__(protocol)


def test_a_class_changes_only_to_one_of_the_same_state():
    made = make()
    whole = {kind: made[kind.__name__] for kind in BASES}
    for (kind, thing), other in itertools.product(whole.items(), [*BASES, *BASES.values(), Thing, int, list]):
        if other not in (kind, BASES[kind]):
            with pytest.raises(TypeError):
                thing.__class__ = other
            assert type(thing) is kind
    for kind, thing in whole.items():
        for other in type("Sub", (kind,), {"__slots__": ()}), BASES[kind]:
            with contextlib.suppress(TypeError):  # where the base has another way to end
                thing.__class__ = other
            looked_at(thing)
            for use in xs.share, xs.attach:
                with contextlib.suppress(Exception):
                    use(thing)
            thing.__class__ = kind
    assert all(type(thing) is kind for kind, thing in whole.items())


def test_what_owns_its_exports_may_come_back_when_it_dies():
    """It is told once, and can be used; its second death tells nobody."""
    seen = []

    class Kept(xs.ArrayHandle):
        __slots__ = ()

        def _abandoned(self):
            seen.append(self)

    array = xs.empty(3)
    handle = xs.share(array)
    raw = bytes(handle)
    handle.__class__ = Kept
    del handle
    (again,) = seen
    assert bytes(again) == raw
    assert again.handles[0].nbytes == 24
    seen.clear()
    gate = again.handles[0]
    del again
    assert seen == []
    xs.ipc.memory.put(gate)


@pytest.mark.parametrize("kind", BASES)
def test_a_finalizer_may_bring_an_object_back(kind):
    seen = []
    base = BASES[kind]
    sub = type("Revived", (base,), {"__slots__": (), "__del__": lambda self: seen.append(self)})
    thing = base.__new__(sub)
    if issubclass(base, _native.BufferBase):
        circle = Thing()
        circle.thing = thing
        thing._hold(circle, 0)
        thing._pinned = [circle]
        del circle
    del thing
    gc.collect()
    (again,) = seen
    looked_at(again)
    seen.clear()
    del again
    gc.collect()


def test_circles_are_collected():
    for kind in xs.Memory, xs.SharedArray:
        thing = BASES[kind].__new__(kind)
        watch = weakref.ref(thing)
        thing._pinned = [thing]
        thing._hold(thing, 0)
        del thing
        gc.collect()
        assert watch() is None


# --- arguments


@functools.cache
def something():
    """What arguments are taken from, among it one of each type."""
    made = make()
    handle, message, covered = made["Handle"], made["ArrayHandle"], covered_by(made["SharedArray"])[0]
    return [
        *made.values(), None, True, 0, 1, -1, 2**31, 2**32, 2**63, 2**64, 2**70, 1.5, "text", "", b"", bytes(16),
        bytes(256), (), [], {}, (1,),
        (-1, 1 << 62), [None], {(0, 0): 1}, {64: (-1, 0)}, {0: (0,)}, (4,), (4, 1, 2), object(), object, Number(),
        [Number()], [(handle, 1)], [(handle, Number())], [handle], [handle] * 2, [(object(), 4096, (1, 0))] * 2,
        (((2, 32, 1), 4), ((1, 8, 1), 1)), identity.sealing(), identity.boot_id(), bytes(message), bytes(handle),
        covered, [covered] * 2, covered.allocation, xs.Device("native_cpu:0"),
    ]  # fmt: skip


_FUNCTIONS = [
    *(
        getattr(_native, name)
        for name in (
            "array", "flatten", "unflatten", "register", "Leaves",
        )
    ),
    *(function for function in ON_OBJECTS if function is not _native.MessageState._own),
]  # fmt: skip


def one(name):
    return next(each for each in something() if type(each).__name__ == name)


def verbs_of(thing):
    names = [name for name in dir(type(thing)) if not name.startswith("_") or name in ("__bytes__", "__eq__")]
    return [name for name in names if callable(getattr(type(thing), name, None)) and name != "close"]


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_arguments(data):
    """Anything in any place of any method: an exception, or an object that can be looked at."""
    arguments = data.draw(st.lists(st.sampled_from(something()), max_size=8))
    if data.draw(st.booleans()):
        verb = data.draw(st.sampled_from(_FUNCTIONS))
    else:
        name = data.draw(st.sampled_from(["Handle", "ArrayHandle", "Leaves"]))
        thing = make()["Leaves"] if name == "Leaves" else one(name)
        verb = getattr(thing, data.draw(st.sampled_from(verbs_of(thing))))
    try:
        found = verb(*arguments)
    except Exception:
        return
    if type(found) in (*BASES, _native.Leaves):
        looked_at(found)


def test_a_number_that_changes_the_lists_it_is_in():
    array = xs.malloc_host(64).as_array(2, "f4")
    covered, _ = covered_by(array)
    handle = xs.ipc.memory.get(array.memory)
    for _ in range(50):
        leaves = _native.Leaves([array], False)
        leaves.put(0, covered, 0, (2,), (4,), array.dtype, _native.KINDS_MOST)
        leaves.groups({}, -1, False)
        memory, events = [handle], []
        events += [(handle, Number(memory, events))] * 3
        with pytest.raises(TypeError):
            leaves.seal(identity.sealing(), tuple(memory), tuple(events), b"")
    xs.ipc.memory.put(handle)


# --- threads


def test_threads_that_ask_first_get_the_same():
    """Members that are made when they are asked for."""
    raw, message = bytes(one("Handle")), bytes(one("ArrayHandle"))
    asked = [bytes, _native.fields_of, lambda each: each._memory, lambda each: each._events]
    for _ in range(100):
        things = [read_handle(raw)] * 2
        things += [identity.sealing().read_message(message, identity.boot_id())] * 2
        start, found = threading.Barrier(4), [[], [], [], []]

        def ask(things=things, start=start, found=found):
            start.wait(20)
            for place, (thing, member) in enumerate(zip(things, asked, strict=True)):
                found[place].append(member(thing))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)
        for each in found:
            assert len(each) == 4
            assert all(one is each[0] for one in each)


def test_one_thread_ends_what_several_close():
    array = xs.empty(3)
    for _ in range(50):
        handle, start, ended = xs.share(array), threading.Barrier(4), []

        def end(handle=handle, start=start, ended=ended):
            start.wait(20)
            ended.append(handle._end())

        threads = [threading.Thread(target=end) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)
        assert sorted(ended) == [False, False, False, True]
        assert handle.closed
        xs.ipc.memory.put(handle.handles[0])


# --- in a process of its own


def misuse(seed, rounds):
    """Things that nobody should do, to whole and to half-made objects, and to what came of that."""
    chance = random.Random(seed)
    things = [*make().values(), *half_made()]
    values = [*something(), *things]
    kinds = (*BASES, *BASES.values(), _native.Leaves)

    def attempt():
        thing, other = chance.choice(things), chance.choice(things)
        name = chance.choice([each for each in dir(type(thing)) if each != "__init_subclass__"])
        arguments = chance.choices(values, k=chance.randrange(9))
        return chance.choice([
            lambda: getattr(thing, name),
            lambda: setattr(thing, name, chance.choice(values)),
            lambda: delattr(thing, name),
            lambda: getattr(thing, name)(*arguments),
            lambda: chance.choice(_FUNCTIONS)(*arguments),
            lambda: setattr(thing, "__class__", type(other)),
            lambda: type(thing)(*arguments),
            lambda: type(thing).__new__(type(other), *arguments),
            lambda: type(thing).__init__(other, *arguments),
            lambda: chance.choice([copy.copy, copy.deepcopy, pickle.dumps, repr, hash, bytes, memoryview])(thing),
            lambda: thing.__reduce_ex__(chance.randrange(6)),
            lambda: xs.share(chance.choice([thing, [thing, other]]), ttl=0.1, copy=chance.random() < 0.3),
            lambda: xs.attach(thing),
            lambda: thing == other,
        ])  # fmt: skip

    for _ in range(rounds):
        try:
            got = attempt()()
        except Exception:
            got = None
        if type(got) in kinds and len(things) < 60:
            things.append(got)
        if chance.randrange(40) == 0:
            gc.collect()
            things[chance.randrange(len(things))] = chance.choice([*make().values(), *half_made()])
    things.clear()
    values.clear()
    gc.collect()


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (1, 7))])
def test_misuse_in_a_process_of_its_own(seed):
    """A crash is the signal that ended it."""
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, str(seed)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr[-4000:]


if __name__ == "__main__":
    faulthandler.enable()
    gc.freeze()  # what is imported need not be looked at each time
    sys.unraisablehook = lambda _told: None
    misuse(int(sys.argv[1]), 2000)
    os.write(1, b"survived\n")


# --- imports


def test_an_import_has_what_it_was_made_with():
    made = _native.imported("device", "driver", "host", 4096, 512, True, None, _native.End(None))
    assert type(made) is resources.Allocation
    assert (made.device, made.driver, made.kind, made.address, made.nbytes) == ("device", "driver", "host", 4096, 512)
    assert (made.imported, made.foreign, made.owned, made.newest) == (True, False, False, None)
    assert _native.imported("device", "driver", "host", 0, 0, False, "owned", _native.End(None)).owned
    for wrong in ((), ("device", "driver", "host", 0, 0, True, None, None), ("device",) * 8):
        with pytest.raises(TypeError):
            _native.imported(*wrong)


def test_the_range_of_a_handle_lies_in_its_allocation():
    memory = xs.malloc_host(4096, "native_cpu:0")
    handle = xs.ipc.memory.get(memory.slice(1024, 512), read_only=True)
    for nbytes, fits in (4096, True), (1536, True), (1535, False), (0, False):
        opened = _native.imported("device", "driver", "host", 0, nbytes, True, None, _native.End(None))
        found = memories.Range.opened(handle, opened, "device", "context", "lease")
        assert (found is not None) == fits
        if found is not None:
            assert (found.allocation, found.offset, found.nbytes, found.read_only) == (opened, 1024, 512, True)
            assert (found.handle, found.lease, found.device, found.context) == (handle, "lease", "device", "context")
    for wrong in ((), (handle, "no allocation", 1, 2, 3), ("no handle", opened, 1, 2, 3)):
        with pytest.raises(TypeError):
            memories.Range.opened(*wrong)
    xs.ipc.memory.put(handle)


def test_what_tells_imports_apart():
    with xs.malloc_host(4096, "native_cpu:0") as memory:
        handles = [xs.ipc.memory.get(memory)]
        fields = _native.fields_of(handles[0])
        assert fields.key(7) == fields.cookie + struct.pack("QQQ", fields.object, 7, 0)
        assert fields.names == fields.backend + fields.device_uuid
        handles.append(xs.ipc.memory.get(memory, read_only=True))
        assert _native.fields_of(handles[-1]).key(7) == fields.key(7)[:-8] + struct.pack("Q", 1)
        for handle in handles:
            xs.ipc.memory.put(handle)
    with pytest.raises(TypeError):
        _native.fields_of("no handle")


def test_threads_read_what_others_change():
    """Without the GIL, an object that is read may be dropped by whoever sets another one."""
    with xs.empty(4) as array:
        begin = threading.Barrier(5)
        found = []

        def writes():
            begin.wait()
            for _ in range(20_000):
                array._exports = [object()]

        def reads():
            begin.wait()
            found.append({len(array._exports or [None]) for _ in range(20_000)})

        threads = [threading.Thread(target=each) for each in (writes, writes, reads, reads, reads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [{1}] * 3
        array._exports = None


def test_threads_share_arrays_that_others_close():
    """A share finds the array open, or says that it is closed."""

    def shares():
        for each in arrays:
            try:
                xs.share(each).close()
            except xs.InvalidArgumentError as error:
                told.add(str(error))

    def closes():
        for each in arrays:
            each.close()

    told = set()
    for _ in range(20):
        arrays = [xs.empty(4) for _ in range(50)]
        threads = [threading.Thread(target=each) for each in (shares, shares, closes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all("closed" in each for each in told), told
