"""The rules that all objects with `close()` share, checked on each: idempotent close, `with`, use after close, copies,
pickles, the silent end, and forks.
"""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from peering import PAGE, exported, exported_event, exported_physical, nothing_left, shared_until, verbs

import xpushare as xs
from harness import Child, kept
from xpushare.objects.lifecycle import Advice
from xpushare.sharing.handle import fields_of

CPU = "native_cpu:0"


def _attached() -> xs.SharedArray:
    array = kept["source"] = xs.empty(4)
    return xs.attach(bytes(xs.share(array, ttl=3600)))


OBJECTS: dict[str, Any] = {
    "Memory": lambda: xs.malloc_device(PAGE, CPU),
    "imported Memory": lambda: xs.ipc.memory.open(exported(CPU)),
    "PhysicalMemory": lambda: xs.PhysicalMemory(PAGE, CPU, enable_ipc=True),
    "imported PhysicalMemory": lambda: xs.ipc.physical_memory.open(exported_physical(CPU)),
    "VirtualRange": lambda: xs.VirtualRange(PAGE, CPU),
    "Event": lambda: xs.Event(CPU, enable_ipc=True),
    "imported Event": lambda: xs.ipc.event.open(exported_event(CPU)),
    "Queue": lambda: xs.Queue(CPU),
    "SharedArray": lambda: xs.malloc_device(PAGE, CPU).as_array(4, "uint8"),
    "attached SharedArray": _attached,
    "ArrayHandle": lambda: xs.share(xs.empty(4)),
    "parsed ArrayHandle": lambda: xs.ArrayHandle(bytes(xs.share(xs.empty(4), ttl=3600))),
}
CLASSES = (xs.Memory, xs.PhysicalMemory, xs.VirtualRange, xs.Event, xs.Queue, xs.SharedArray, xs.ArrayHandle)
NO_PICKLE = (xs.Queue, xs.VirtualRange)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "grow": (1,),
    "shrink": (1,),
    "slice": (0, 1),
    "as_array": (1, "uint8"),
    "map": (None,),
    "unmap": (0, PAGE),
    "set_access": (0, PAGE, "r"),
    "access": (0,),
    "copy": (None, None),
    "fill": (None, b"x"),
    "submit": (print,),
}
ALWAYS = {"close", "closed", "from_native"}
OF_ARRAYS = {"shape", "dtype", "strides", "nbytes", "size", "ndim"}  # what an array is, memory or not
# What the bytes say.
OF_HANDLES = {
    "version",
    "handle",
    "handles",
    "event",
    "shape",
    "strides",
    "dtype",
    "nbytes",
    "read_only",
    "copied_nbytes",
}  # what bytes say


def _withdraw_all() -> None:
    from peering import forget

    forget()


@pytest.fixture(params=OBJECTS)
def thing(request: pytest.FixtureRequest) -> Iterator[Any]:
    _withdraw_all()
    yield OBJECTS[request.param]()
    _withdraw_all()


def test_every_class_is_here() -> None:
    things = [make() for make in OBJECTS.values()]
    _withdraw_all()
    made = {type(each) for each in things}
    assert made == set(CLASSES)
    others = {xs.Channel, xs.Frame, xs.Lock, xs.Atomic}  # of processes together: tests/channels
    assert made | others == {each for name in xs.__all__ if hasattr(each := getattr(xs, name), "closed")}


@pytest.mark.parametrize("cls", CLASSES)
def test_one_base(cls: type) -> None:
    """No class has rules of its own."""
    shared = ("closed", "__enter__", "__exit__", "__copy__", "__deepcopy__")
    assert not [name for name in shared if name in vars(cls)]


# --- close and with -----------------------------------------------------------------------------------------------


def test_close_is_idempotent(thing: Any) -> None:
    assert thing.closed is False
    assert not hasattr(thing, "__dict__")  # the bases add no weight
    for _ in range(3):
        assert thing.close() is None
        assert thing.closed is True
    assert "closed" in repr(thing)


@pytest.mark.misuse
def test_with(thing: Any) -> None:
    with pytest.raises(ZeroDivisionError), thing as entered:  # noqa: PT012 the block is what is tested
        assert entered is thing
        assert not thing.closed
        raise ZeroDivisionError
    assert thing.closed
    with pytest.raises(xs.InvalidArgumentError, match=f"this {type(thing).__name__} is closed"):
        thing.__enter__()


@pytest.mark.misuse
def test_use_after_close(thing: Any) -> None:
    event = xs.Event("native_cpu:0")
    thing.close()
    tried = 0
    for name, member in inspect.getmembers_static(type(thing)):
        if name.startswith("_") or name in ALWAYS or (name in OF_ARRAYS and isinstance(thing, xs.SharedArray)):
            continue
        if isinstance(member, Advice) or hasattr(member, "__objclass__") or name == "following":
            continue  # the state that native code keeps, and what the package makes of it
        if name in OF_HANDLES and isinstance(thing, xs.ArrayHandle):
            getattr(thing, name)
            continue
        with pytest.raises(xs.InvalidArgumentError, match="closed"):  # noqa: PT012 one call of many
            if isinstance(member, property):
                getattr(thing, name)
            elif inspect.iscoroutinefunction(member):
                member(thing).send(None)
            elif isinstance(thing, xs.Queue) and name in ("signal", "wait"):
                member(thing, event)
            elif name == "map":
                thing.map(xs.PhysicalMemory(PAGE, "native_cpu:0"))
            elif name in ("copy", "fill") and isinstance(thing, xs.Queue):
                memory = xs.malloc_device(PAGE, "native_cpu:0")
                thing.copy(memory, memory) if name == "copy" else thing.fill(memory, b"x")
            else:
                member(thing, *ARGUMENTS.get(name, ()))
        tried += 1
    assert tried >= 2 or isinstance(thing, xs.ArrayHandle)
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        thing.__enter__()
    if isinstance(thing, xs.Memory | xs.VirtualRange | xs.SharedArray):
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            memoryview(thing)
    if isinstance(thing, xs.Memory | xs.SharedArray):
        for call in (thing.__dlpack__, thing.__dlpack_device__):
            with pytest.raises(xs.InvalidArgumentError, match="closed"):
                call()
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            thing.__array_interface__  # noqa: B018
    if isinstance(thing, xs.SharedArray | xs.ArrayHandle):
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            xs.share(thing) if isinstance(thing, xs.SharedArray) else xs.attach(thing)
    if isinstance(thing, xs.Event):
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            thing.__await__()
    for kind, classes in {"memory": xs.Memory, "physical_memory": xs.PhysicalMemory, "event": xs.Event}.items():
        if isinstance(thing, classes):
            with pytest.raises(xs.InvalidArgumentError, match="closed"):
                verbs(kind).get(thing)


# --- copies and pickles -------------------------------------------------------------------------------------------


def test_copies_are_refused(thing: Any) -> None:
    for call in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=f"this {type(thing).__name__} cannot be copied: "):
            call(thing)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy({"inside": [thing]})
    assert not thing.closed


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.misuse
def test_pickling(thing: Any, protocol: int) -> None:
    if isinstance(thing, NO_PICKLE):
        with pytest.raises(TypeError, match=f"this {type(thing).__name__} cannot be pickled: "):
            pickle.dumps(thing, protocol)
        return
    data = pickle.dumps(thing, protocol)
    assert pickle.dumps(thing, protocol) == data  # one export an object, however often it is pickled
    found = pickle.loads(data)
    assert type(found) is type(thing)
    assert found is not thing
    assert not found.closed
    if isinstance(thing, xs.ArrayHandle):
        assert found == thing
    else:
        assert found.is_imported
        assert pickle.loads(pickle.dumps(found, protocol)).is_imported  # forwards the handle that it came by
    found.close()
    assert not thing.closed
    thing.close()
    if not isinstance(thing, xs.ArrayHandle):
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            pickle.dumps(thing, protocol)


@pytest.mark.parametrize("name", ["Memory", "PhysicalMemory", "Event", "SharedArray", "parsed ArrayHandle"])
@pytest.mark.misuse
def test_what_a_pickle_could_not_open(name: str) -> None:
    """Unpickling does not raise; each use does, and `close` is no use."""
    made = OBJECTS[name]()
    reopen, (handle, *more) = made.__reduce__()
    thing = reopen(handle[:-1] + bytes([handle[-1] ^ 1]), *more)
    assert type(thing) is type(made)
    for _ in range(2):
        with pytest.raises(xs.InvalidHandleError, match="seal"):
            thing.__enter__()
        assert thing.closed is False
    for _ in range(2):
        assert thing.close() is None
        assert thing.closed is True
    with pytest.raises(xs.InvalidArgumentError, match=f"this {type(thing).__name__} is closed"):
        thing.__enter__()


def pickle_after_a_put(name: str) -> None:
    thing = OBJECTS[name]()
    with pickle.loads(pickle.dumps(thing)) as opened:
        handle = opened.handle.handle if name == "SharedArray" else opened.handle
    verbs(handle.kind).put(handle)
    counted = shared_until(fields_of(handle).entry)
    text = pickle.dumps(thing)
    assert pickle.dumps(thing) == text
    for _ in range(3):
        with pickle.loads(text) as opened:
            assert opened.is_imported
    xs.attach(bytes(counted[-1])).close()
    with pytest.raises(xs.HandleExpiredError, match="used up"):
        xs.attach(bytes(counted[-1]))
    _withdraw_all()


def test_pickling_after_a_put() -> None:
    """Whoever has a pickle can withdraw its handle. The next pickle is good again, and no other export's affair."""
    with Child() as child:
        for name in ("Memory", "PhysicalMemory", "Event", "SharedArray"):
            child.call(pickle_after_a_put, name)


# --- the silent end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OBJECTS if "ArrayHandle" not in name])
@pytest.mark.parametrize("end", ["drop", "close", "pickle and drop", "pickle and close"])
def test_nothing_stays_and_nothing_is_said(name: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losing the last reference is a close. (The export of an ArrayHandle lasts until `close`: test_arrays.py.)"""
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "0")
    _withdraw_all()
    OBJECTS[name]()  # what the first of its kind sets up stays
    _withdraw_all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with nothing_left():
            thing = OBJECTS[name]()
            if "pickle" in end and not isinstance(thing, NO_PICKLE):
                pickle.dumps(thing)
            if "close" in end:
                thing.close()
            del thing
            _withdraw_all()


# --- forks --------------------------------------------------------------------------------------------------------


def _in_child() -> dict[str, Any]:
    thing = kept["thing"]
    found: dict[str, Any] = {"repr": repr(thing).startswith("<")}
    try:
        thing.__enter__()
    except xs.ForkError as error:
        found["refused"] = "spawn" in str(error)
    for _ in range(2):
        thing.close()
    found["closed"] = thing.closed
    del thing
    kept.clear()
    gc.collect()
    return found


def test_fork(thing: Any) -> None:
    kept["thing"] = thing
    with Child(method="fork") as child:
        found = child.call(_in_child)
    expected = {"repr": True, "refused": True, "closed": True}
    if isinstance(thing, xs.ArrayHandle):  # bytes, which the child may have
        del expected["refused"]
    assert found == expected
    with thing:  # as good as before
        if isinstance(thing, xs.ArrayHandle):
            xs.attach(thing).close()
        else:
            assert str(thing.device) == CPU
            if not isinstance(thing, NO_PICKLE):
                assert pickle.loads(pickle.dumps(thing)).is_imported
