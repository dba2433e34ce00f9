"""What the declarations say besides arguments and results: the operations that do the work, what is given out and back,
and which errors operations raise.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from test_ur_arguments import GOOD, nothing
from ur_runtime import Runtime, called_back, refused

import xpushare as xs
from xpushare import ur
from xpushare.core.declare import Operation
from xpushare.core.layers import operations
from xpushare.sharing import node
from xpushare.ur import _objects
from xpushare.ur._objects import HANDLES
from xpushare.ur._spec import FUNCTIONS, function

# Calls that need more of their arguments than to be good: a query that the operation answers, an event to wait for.
WORKING: dict[str, Callable[[Runtime], tuple[Any, ...]]] = {
    "urEventGetInfo": lambda rt: (rt.event(), ur.EventInfo.COMMAND_EXECUTION_STATUS),
    "urEnqueueEventsWait": lambda rt: (rt.queue, [pending(rt)]),
    "urEnqueueEventsWaitWithBarrier": lambda rt: (rt.queue, [pending(rt)]),
    "urEnqueueEventsWaitWithBarrierExt": lambda rt: (rt.queue, None, [pending(rt)], rt.event()),
}
DECLARED = [name for name, function in FUNCTIONS.items() if function.operations]
RAISED = [
    pytest.param(name, operation, error, id=f"{name}-{operation.name}-{error.__name__}")
    for name in DECLARED
    for operation in FUNCTIONS[name].operations
    for error in operation.raises
    if issubclass(error, xs.XpuShareError) and error not in FUNCTIONS[name].handles
]
KINDS = {kind for each in FUNCTIONS.values() for kind in each.made}
NAMES = {cls: kind for kind, cls in HANDLES.items()}
earlier: list[Any] = []  # handles of earlier tests, such as those of adapters, which stay


def pending(rt: Runtime) -> ur.Event:
    """An event whose signal is held back; `Runtime.held` lets it go."""
    return ur.urEnqueueEventsWait(rt.queue, None)


@contextmanager
def working(rt: Runtime, name: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of a call that does its work; the operations are themselves again afterwards."""
    with rt.held() if name.startswith("urEnqueueEvents") else nullcontext():
        arguments = WORKING.get(name, GOOD[name])(rt)
        try:
            yield arguments
        finally:
            for each in operations():
                each.install(each.function)


def call_and_wait(name: str, arguments: tuple[Any, ...]) -> Any:
    """Call a function, and wait until it has called back, if it does."""
    told = threading.Event()
    kept = getattr(ur, name)(*((lambda *_: told.set()) if each is nothing else each for each in arguments))
    if any(arg.kind == "callback:event" for arg in FUNCTIONS[name].args):
        assert told.wait(10.0)
        called_back()
    return kept


@pytest.mark.parametrize("name", DECLARED)
def test_the_declared_operations_do_the_work(rt: Runtime, name: str) -> None:
    called: Counter[str] = Counter()

    def noting(operation: Operation) -> Callable[..., Any]:
        def note(*arguments: Any, **options: Any) -> Any:
            called[operation.name] += 1
            return operation.function(*arguments, **options)

        return note

    with working(rt, name) as arguments:
        for each in operations():
            each.install(noting(each))
        call_and_wait(name, arguments)
    assert {each.name for each in FUNCTIONS[name].operations} <= set(called)


@pytest.mark.parametrize(("name", "operation", "error"), RAISED)
def test_errors_have_the_results_of_the_page(
    rt: Runtime, name: str, operation: Operation, error: type[xs.XpuShareError]
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise error("the test says so")

    with working(rt, name) as arguments:
        operation.install(fail)
        with refused(FUNCTIONS[name].result_of(error.default_result)):
            getattr(ur, name)(*arguments)


def exports(kind: str) -> int:
    """Handles of that kind that this process has given out."""
    table = node.current().table_if_any
    return 0 if table is None else sum(export.handle.kind == kind for export in table.exports())


def addresses(kind: str) -> int:
    places = _objects.places
    found = {
        "USM memory": len(places.allocated),
        "opened memory": sum(map(len, places.opened.values())),
        "reserved range": len(places.ranges),
        "registered host memory": len(places.registered),
    }
    return found[kind]


def exports_or_addresses(kind: str) -> int:
    if kind.endswith(" handle"):
        return exports(kind.removesuffix(" handle").replace(" ", "_"))
    return addresses(kind)


def handles() -> list[Any]:
    """The handles that exist and are not frozen."""
    return [each for each in gc.get_objects() if type(each) in NAMES]


@pytest.fixture(scope="module", autouse=True)
def _earlier(_frozen: None) -> Iterator[None]:
    """Find the handles that were frozen with the module's beginning, once: that takes long."""
    gc.unfreeze()
    earlier[:] = handles()
    gc.freeze()
    yield
    earlier.clear()


def census() -> Counter[str]:
    """How much of each kind has to be given back; of handles the references to those that exist."""
    found = Counter({kind: exports_or_addresses(kind) for kind in KINDS if kind not in HANDLES})
    gc.collect()
    for each in (*earlier, *handles()):
        found[NAMES[type(each)]] += each.references
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_given_out_and_back(rt: Runtime, name: str) -> None:
    function = FUNCTIONS[name]
    arguments = GOOD[name](rt)
    before = census()
    kept = call_and_wait(name, arguments)
    ur.urQueueFinish(rt.queue)
    after = census()
    for kind in KINDS:
        wanted = (kind in function.made) * (len(kept) if type(kept) is list else 1) - (kind == function.ends)
        assert after[kind] - before[kind] == wanted, kind


def test_what_is_given_back_was_given_out() -> None:
    assert {each.ends for each in FUNCTIONS.values()} - {""} <= KINDS


def test_a_second_declaration_of_a_name_is_refused() -> None:
    def urDeviceWaitExp(hDevice: _objects.Device) -> None:
        """Declared elsewhere already."""

    first = FUNCTIONS["urDeviceWaitExp"]
    places = [f"{each.__code__.co_filename}:{each.__code__.co_firstlineno}" for each in (first.body, urDeviceWaitExp)]
    with pytest.raises(TypeError) as caught:
        function(999)(urDeviceWaitExp)
    assert str(caught.value) == f"urDeviceWaitExp is declared twice: in {places[0]} and in {places[1]}"
    assert FUNCTIONS["urDeviceWaitExp"] is first
