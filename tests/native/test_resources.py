"""The owners of driver resources, and pieces of memory: what ends when, and that no misuse crashes."""

import copy
import gc
import itertools
import os
import pickle
import random
import subprocess
import sys
import threading
import weakref

import pytest
from native_peer import n


class Allocation(n.AllocationBase):
    __slots__ = ()


class Pages(n.PagesBase):
    __slots__ = ()


class Range(n.RangeBase):
    __slots__ = ()


class Queue(n.Resource):
    __slots__ = ("more",)


class Thing:
    """Something that references can be made to, also in a circle."""


@pytest.fixture
def calls():
    return []


def allocation(end=None, **fields):
    end = n.End(None) if end is None else end
    said = {
        "kind": "device", "address": 4096, "nbytes": 512, "host_accessible": True, "foreign": False,
        "source": None, "serial": 0, "name": None,
    }  # fmt: skip
    return Allocation("device", "driver", end, *(said | fields).values())


def make():
    """One of each type."""
    owner = allocation()
    return {
        "End": n.End(list),
        "Resource": n.Resource("device", "driver", list),
        "Queue": Queue("device", "driver", list),
        "Timeline": n.Timeline("device", "domain", "slot", list),
        "Allocation": owner,
        "Pages": Pages("device", "driver", n.End(None), 4096, True, False),
        "Range": Range(owner, 64, 128, "device", "context", True, None, "lease"),
    }


TYPES = {name: type(each) for name, each in make().items()}


# --- ends


def test_an_end_of_a_block_calls_only_if_the_block_raises(calls):
    with n.End(calls.append, "released") as end:
        assert calls == []
    end.__del__()
    with n.End(None):
        pass
    assert calls == []
    failed = None
    try:
        with n.End(calls.append, "inner"), n.End(calls.append, "first"):
            raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        failed = error  # the frames that it holds keep nothing alive
    assert calls == ["first", "inner"]
    del failed


def test_an_error_in_the_end_of_a_block_has_the_first_one_as_its_context():
    with pytest.raises(ZeroDivisionError) as caught, n.End(lambda: 1 / 0):
        raise KeyboardInterrupt
    assert type(caught.value.__context__) is KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), n.End(None):
        raise KeyboardInterrupt


def test_an_interrupt_before_the_block_releases(calls):
    """There is nothing but the stack that refers to the end then, as here to the first one."""
    with pytest.raises(ZeroDivisionError):
        _ = n.End(calls.append, "released"), 1 / 0
    assert calls == ["released"]


def test_an_end_calls_once_with_its_arguments(calls):
    end = n.End(calls.append, "released")
    assert calls == []
    end.__del__()
    assert calls == ["released"]
    del end
    assert calls == ["released"]
    n.End(lambda *arguments: calls.append(arguments), 1, [2], None)
    assert calls == ["released", (1, [2], None)]
    n.End(None)


@pytest.mark.parametrize("owner", ["Resource", "Queue", "Timeline", "Allocation", "Pages"])
def test_the_owner_is_gone_when_its_resource_is_released(owner, calls):
    def release():
        calls.append(watch())

    def made():
        if owner == "Allocation":
            return allocation(n.End(release))
        if owner == "Pages":
            return Pages("device", "driver", n.End(release), 1, False, True)
        return TYPES[owner]("device", "driver", *(["slot"] if owner == "Timeline" else []), release)

    watch = weakref.ref(thing := made())
    del thing
    assert calls == [None]
    thing = made()
    circle = thing, Thing()
    circle[1].all = circle
    watch = weakref.ref(thing)
    del thing, circle
    gc.collect()
    assert calls == [None, None]


def test_forget_comes_first_and_keep_takes_over(calls):
    kept = []
    thing = n.Resource("device", "driver", calls.append, "released")
    thing.on_death(lambda key: calls.append(("forgotten", key)), "key", kept.append)
    del thing
    assert calls == [("forgotten", "key")]
    assert [type(each) for each in kept] == [n.End]
    again = allocation(kept.pop())
    assert calls == [("forgotten", "key")]
    again.on_death(lambda key: calls.append(("forgotten", key)), "again")
    del again
    assert calls == [("forgotten", "key"), ("forgotten", "again"), "released"]
    assert n.Resource("device", "driver", list).reopens is None


def test_a_circle_is_released_while_it_is_whole(calls):
    """The collector breaks a circle only after it has called what ends it."""
    thing = Thing()
    thing.name = "whole"
    thing.end = n.End(lambda each: calls.append(each.name), thing)
    del thing
    gc.collect()
    assert calls == ["whole"]


@pytest.mark.parametrize("place", ["prepared", "newest"])
def test_circles_through_what_is_set_later_are_collected(place):
    for kind in allocation, lambda: n.Timeline("device", "domain", "slot", None):
        thing = kind()
        if hasattr(thing, place):
            setattr(thing, place, Range(thing, 0, 1, "device", "context", False, None, None))
            watch = weakref.ref(thing)
            del thing
            gc.collect()
            assert watch() is None
    thing = n.Resource("device", "driver", None)
    thing.on_death(print, thing, [thing].append)
    watch = weakref.ref(thing)
    n.left(True)  # `print` is not called
    try:
        del thing
        gc.collect()
    finally:
        n.left(False)
    assert watch() is None


def test_what_a_release_raises_is_told_and_hides_no_other_error(monkeypatch, calls):
    monkeypatch.setattr(sys, "unraisablehook", lambda told: calls.append((told.exc_type, told.object)))

    def fail():
        raise OSError("no")

    with pytest.raises(KeyError):
        (lambda _end: {}["key"])(n.End(fail))
    assert calls == [(OSError, fail)]
    thing = n.Resource("device", "driver", calls.append, "never")
    thing.on_death(lambda key: {}[key], "key")
    del thing
    assert [each[0] for each in calls] == [OSError, KeyError]


def test_nothing_is_released_in_a_child(calls):
    thing = allocation(n.End(calls.append, 1))
    born = n.End(calls.append, 2)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        foreign = thing.foreign_process
        del thing
        born.__del__()
        n.End(calls.append, 3)
        os.write(writing, repr((foreign, calls)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        assert answer.read() == b"(True, [3])"
    os.waitpid(pid, 0)
    assert not thing.foreign_process
    del thing, born
    assert calls == [1, 2]


def test_nothing_is_released_after_leaving(calls):
    assert not n.left()
    end = n.End(calls.append, 1)
    n.left(True)
    try:
        assert n.left()
        del end
        n.End(calls.append, 2)
    finally:
        n.left(False)
    assert calls == []
    n.End(calls.append, 3)
    assert calls == [3]


@pytest.mark.parametrize("leave", [True, False])
def test_the_interpreters_exit_raises_nothing(leave):
    code = (
        "import sys; from xpushare import _native as n\n"
        "import os; held = [n.End(os.write, 1, b'released'), n.Resource(0, 0, os.write, 1, b'released')]\n"
        "held.append(held); sys.held = n.End(os.write, 1, b'released'); n.left(sys.argv[1] == 'True')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(leave)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("released") <= (0 if leave else 3)


# --- state


def test_a_range_never_changes():
    made = make()
    piece = made["Range"]
    assert (piece.allocation, piece.offset, piece.nbytes) == (made["Allocation"], 64, 128)
    assert (piece.device, piece.context, piece.read_only, piece.handle, piece.lease) == (
        "device", "context", True, None, "lease",
    )  # fmt: skip
    other = piece.replace(offset=2**64 - 1, read_only=0, lease=(1, 2))
    assert type(other) is Range
    assert (other.offset, other.nbytes, other.read_only, other.lease) == (2**64 - 1, 128, False, (1, 2))
    assert (piece.offset, piece.lease) == (64, "lease")
    assert piece.replace() != piece == piece
    for name in "allocation", "offset", "nbytes", "device", "context", "read_only", "handle", "lease":
        with pytest.raises((AttributeError, TypeError)):
            setattr(piece, name, getattr(piece, name))
    for wrong in {"offset": -1}, {"nbytes": 2**64}, {"offset": "1"}, {"start": 1}:
        with pytest.raises((OverflowError, TypeError)):
            piece.replace(**wrong)
    with pytest.raises(TypeError):
        piece.replace(1)


def test_an_allocation_has_what_it_was_made_with():
    made = allocation(kind="host", foreign=True, source="source", serial=7, name=("name", 1))
    assert (made.device, made.driver, made.kind, made.address, made.nbytes) == ("device", "driver", "host", 4096, 512)
    assert (made.host_accessible, made.imported, made.foreign) == (True, False, True)
    assert (made.source, made.name, made.known_serial, made.earlier) == ("source", ("name", 1), 7, {})
    assert (made.prepared, made.newest, made.forks) == (None, None, n.forks())
    made.prepared, made.newest, made.known_serial = "prepared", "handle", 8
    assert (made.prepared, made.newest, made.known_serial) == ("prepared", "handle", 8)
    for name in "device", "driver", "kind", "address", "nbytes", "imported", "foreign", "source", "name", "forks":
        with pytest.raises((AttributeError, TypeError)):
            setattr(made, name, getattr(made, name))


@pytest.mark.parametrize("name", TYPES)
def test_nothing_is_half_made(name):
    """An object has all its state, or does not exist."""
    kind = TYPES[name]
    for make_ in (kind.__new__, object.__new__, *(base.__new__ for base in kind.__mro__[1:-1])):
        with pytest.raises(TypeError):
            make_(kind)
    with pytest.raises(TypeError):
        kind(end=1)
    whole = make()[name]
    for make_ in (copy.copy, copy.deepcopy, *(lambda x, p=p: pickle.dumps(x, p) for p in range(6))):
        with pytest.raises((TypeError, pickle.PicklingError)):
            make_(whole)


def test_a_constructor_makes_only_its_own_type():
    for base, kind in (n.Resource, Allocation), (n.Resource, n.Timeline), (n.AllocationBase, Queue):
        with pytest.raises(TypeError, match=r"not safe|not a subtype"):
            base.__new__(kind, "device", "driver", None)


def test_an_end_is_wanted():
    with pytest.raises(TypeError, match="not an End"):
        allocation(print)
    with pytest.raises(TypeError, match="not an End"):
        Pages("device", "driver", None, 1, True, True)
    with pytest.raises(TypeError, match="callable"):
        n.End(1)
    with pytest.raises(TypeError, match="callable"):
        n.Resource("device", "driver", n.End(None))


def test_register():
    import xpushare.core.memory  # noqa: F401 - registers

    with pytest.raises(ValueError, match="registered already"):
        n.register(Range=Range)
    for wrong in {"Range": Allocation}, {"Allocation": Range}, {"Range": 1}, {"Ranges": Range}, {"Range": n.Resource}:
        with pytest.raises(TypeError):
            n.register(**wrong)
    with pytest.raises(TypeError):
        n.register(Range)


# --- misuse


class Sub(Range):
    __slots__ = ()


class Revived(Allocation):
    """It comes back when it dies."""

    __slots__ = ()
    seen = []  # noqa: RUF012 - of all

    def __del__(self):
        self.seen.append(self)


def revived():
    """Ends and owners that were collected, and that what ended them has brought back."""
    found = []
    circle = Thing()
    circle.end = n.End(found.append, circle)
    circle.owner = n.Resource(circle, "driver", found.append, circle)
    circle.timeline = n.Timeline(circle, "domain", circle, found.append, circle)
    circle.allocation = allocation(n.End(found.append, circle), source=circle)
    circle.allocation.prepared = circle.allocation.newest = circle
    circle.owner.on_death(found.append, circle)
    circle.piece = Range(circle.allocation, 0, 1, circle, circle, False, circle, circle)
    del circle
    gc.collect()
    Revived("device", "driver", n.End(None), "host", 0, 0, 0, 0, None, 0, None)
    return [each for circle in found if isinstance(circle, Thing) for each in vars(circle).values()] + Revived.seen


def attempt(chance, things):
    """One thing that nobody should do."""
    thing, other = chance.choice(things), chance.choice(things)
    values = [None, 1, -1, 2**64, "text", b"", (), thing, other, type(other), list, n.End(None)]
    names = [name for name in dir(type(thing)) if name != "__del__" or type(thing) is n.End]
    name = chance.choice(names)
    return chance.choice([
        lambda: getattr(thing, name),
        lambda: setattr(thing, name, chance.choice(values)),
        lambda: delattr(thing, name),
        lambda: getattr(thing, name)(*chance.choices(values, k=chance.randrange(4))),
        lambda: setattr(thing, "__class__", type(other)),
        lambda: type(thing)(*chance.choices(values, k=chance.randrange(15))),
        lambda: type(thing).__new__(type(other), *chance.choices(values, k=chance.randrange(15))),
        lambda: type(thing).__init__(other),
        lambda: copy.copy(thing),
        lambda: copy.deepcopy(thing),
        lambda: thing.__reduce_ex__(chance.randrange(6)),
        lambda: weakref.ref(thing),
        lambda: gc.get_referents(thing),
        lambda: thing.__del__(),
        lambda: thing.replace(lease=other, handle=thing),
        lambda: thing.on_death(list, other, chance.choice([None, list])),
        lambda: setattr(thing, "prepared", other),
        gc.collect,
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_misuse_never_crashes(seed, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _told: None)
    chance = random.Random(seed)
    things = [*make().values(), *revived(), Sub(*(None,), 0, 1, *(None,) * 2, False, None, None)]
    kinds = {type(each) for each in things}
    for _ in range(3000):
        try:
            got = attempt(chance, things)()
        except Exception:
            got = None
        if type(got) in kinds and len(things) < 60:
            things.append(got)
        if chance.randrange(20) == 0:
            things[chance.randrange(len(things))] = chance.choice(list(make().values()))
    Revived.seen.clear()
    things.clear()
    gc.collect()


def test_threads_share_them(calls):
    """They set what can be set while others read it, and end what others end."""
    shared, timeline = allocation(), n.Timeline("device", "domain", "slot", None)
    ends = [n.End(calls.append, at) for at in range(200)]
    start, failures = threading.Barrier(4), []

    def work(number):
        try:
            start.wait()
            for at in range(2000):
                shared.prepared = timeline.prepared = (number, at)
                shared.newest = [number, at]
                shared.known_serial = at
                shared.on_death(calls.append, (number, at))
                assert all(len(each) == 2 for each in (shared.prepared, shared.newest, timeline.prepared))
                ends[at % len(ends)].__del__()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert sorted(calls) == list(range(200))


def test_a_class_changes_only_to_one_of_the_same_state():
    made = make()
    for (name, thing), other in itertools.product(made.items(), [*TYPES.values(), Thing, int]):
        if other is not type(thing):
            with pytest.raises(TypeError):
                thing.__class__ = other
            assert type(thing) is TYPES[name]
    piece = made["Range"]
    piece.__class__ = Sub
    assert (type(piece), piece.replace(offset=1).offset) == (Sub, 1)


@pytest.mark.parametrize(("error", "calls"), [(KeyboardInterrupt, 3), (ValueError, 1)])
def test_a_release_that_was_interrupted_is_called_again(monkeypatch, error, calls):
    tries, told = [], []

    def release(what):
        tries.append(what)
        if len(tries) < 3:
            raise error

    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_type))
    end = n.End.repeated(release, 5)
    del end
    assert tries == [5] * calls
    assert told == [error] * min(calls, 2)
