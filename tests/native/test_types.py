"""The life of the objects of native types: whatever references them, the collector finds it, and nothing is left."""

import gc
import sys
import weakref

import pytest

from xpushare import _native as n

TYPES = [each for each in vars(n).values() if isinstance(each, type)]
COLLECTED = 1 << 14  # Py_TPFLAGS_HAVE_GC
OPEN = 1 << 10  # Py_TPFLAGS_BASETYPE


class Holder:
    """Something that references can be made to, also in a circle."""

    def __call__(self, *_arguments):
        return self


def _without_end(holder):
    return n.Resource(holder, holder, None)


def _closed_end(holder):
    end = n.End(None, holder)
    return n.AllocationBase(holder, holder, end, holder, 0, 0, False, False, holder, 0, holder)


def _driver(holder):
    functions = dict.fromkeys(("ask_all", "ask", "name", "open", "close", "exchange", "push", "pop"), 1)
    return n.Driver(holder, attributes=(1, 2, 3, 4), wanted=(), flags=0, mode=0, **functions)


# How to make an object of each type that a Python object can be in, and how many references to the holder it then has
MADE = {
    "End": (lambda holder: n.End(None, holder), 1),
    "Resource": (_without_end, 2),
    "AllocationBase": (_closed_end, 6),
    "Timeline": (lambda holder: n.Timeline(holder, holder, holder, None), 3),
    "PagesBase": (lambda holder: n.PagesBase(holder, holder, n.End(None), 0, False, False), 2),
    "RangeBase": (lambda holder: n.RangeBase(holder, 0, 0, holder, holder, False, holder, holder), 5),
    "Span": (lambda holder: n.Span(0, 0, False, holder), 1),
    "Pin": (lambda holder: n.Pin(holder, ()), 1),
    "Driver": (_driver, 1),
    "Scopes": (lambda holder: n.Scopes(_driver(holder)), 1),
    "Scope": (lambda holder: n.Scopes(_driver(holder))(), 1),
    "Importer": (lambda holder: n.Importer(n.Scopes(_driver(holder)), b"", holder, holder), 3),
    "LockMember": (lambda holder: n.LockMember(holder, 0), 1),
    "AtomicMember": (lambda holder: n.AtomicMember(holder, 0), 1),
}


def kinds(name):
    """The type, and the subclasses that Python can make of it."""
    kind = getattr(n, name)
    yield kind
    if kind.__flags__ & OPEN:
        yield type(name, (kind,), {"__slots__": ()})
        yield type(name, (kind,), {})
        yield type(name, (kind,), {"__slots__": ("more",)})


def made_as(name, kind, holder, monkeypatch):
    if kind is not getattr(n, name):
        monkeypatch.setattr(n, name, kind)
    thing = MADE[name][0](holder)
    assert type(thing) is kind
    return thing


VARIANTS = [(name, number) for name in MADE for number, _ in enumerate(kinds(name))]


def variant(name, number):
    return list(kinds(name))[number]


@pytest.mark.parametrize(("name", "number"), VARIANTS)
def test_a_cycle_through_its_fields_is_collected(name, number, monkeypatch):
    holder = Holder()
    kind = variant(name, number)
    holder.thing = made_as(name, kind, holder, monkeypatch)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(("name", "number"), VARIANTS)
def test_each_reference_is_seen_and_given_back(name, number, monkeypatch):
    """The collector would take a reference that it does not see for one from outside."""
    holder, kind = Holder(), variant(name, number)
    before = sys.getrefcount(holder)
    thing = made_as(name, kind, holder, monkeypatch)
    seen, reached = 0, [thing]
    while reached:
        for each in gc.get_referents(reached.pop()):
            seen += each is holder
            if type(each) in TYPES or type(each) is tuple:
                reached.append(each)
    del each
    assert (seen, sys.getrefcount(holder) - before) == (MADE[name][1],) * 2
    assert kind in gc.get_referents(thing)
    del thing
    assert sys.getrefcount(holder) == before


@pytest.mark.parametrize(("name", "number"), VARIANTS)
def test_no_type_and_no_object_is_left(name, number, monkeypatch):
    holder, kind = Holder(), variant(name, number)
    made_as(name, kind, holder, monkeypatch)
    references, objects = sys.getrefcount(kind), len(gc.get_objects())
    for _ in range(1000):
        MADE[name][0](holder)
    assert abs(sys.getrefcount(kind) - references) < 10
    assert abs(len(gc.get_objects()) - objects) < 100


@pytest.mark.parametrize(("name", "number"), VARIANTS)
def test_an_exception_outlives_it(name, number, monkeypatch):
    """An object that dies while an exception is on its way."""
    kind = variant(name, number)

    def leave():
        thing = made_as(name, kind, Holder(), monkeypatch)
        raise KeyError(id(thing))

    with pytest.raises(KeyError):
        leave()


@pytest.mark.parametrize("kind", [each for each in TYPES if each.__weakrefoffset__], ids=lambda kind: kind.__name__)
def test_weak_references_end_with_it(kind):
    makers = {name: make for name, (make, _) in MADE.items()}
    if kind.__name__ not in makers:
        pytest.skip("needs more than a constructor: the tests of its own use them")
    thing, called = makers[kind.__name__](Holder()), []
    reference = weakref.ref(thing, called.append)
    del thing
    assert reference() is None
    assert called == [reference]


def test_the_table_has_every_type_that_python_can_fill():
    """A new type with objects is in the table, or one of those whose objects only native code makes."""
    others = {
        "ChannelEnd", "LoanBase", "FrameBase", "Slot", "Lease", "ObjectBase", "BufferBase", "ArrayState",
        "HandleState", "MessageState", "AddressMap", "Recogniser", "Imports", "PeerTable", "OwnTable", "Exported",
        "Template", "Exposure", "Leaves", "Kinds", "Refusal",
    }  # fmt: skip
    assert {kind.__name__ for kind in TYPES if kind.__flags__ & COLLECTED} <= MADE.keys() | others
