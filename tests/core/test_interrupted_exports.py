"""An interrupt at any call that `get` makes leaves no export behind, with a label and without."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import xpushare as xs
from harness import Child
from xpushare.sharing import node

DEVICE = "native_cpu:0"
OF_THE_TESTS = (str(Path(__file__).parents[1]), contextlib.__file__)  # their conftest watches operations


@pytest.fixture(params=["event", "memory"])
def export(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Callable[[], Any], Callable[[Any], None]]]:
    """Something, and how it is exported and withdrawn."""
    if request.param == "event":
        with xs.Event(DEVICE, enable_ipc=True) as event:
            yield event, lambda: xs.ipc.event.get(event), xs.ipc.event.put
    else:
        with xs.empty(4, device=DEVICE, isolated=True) as array:
            yield array, lambda: xs.ipc.memory.get(array), xs.ipc.memory.put


@pytest.fixture(params=[None, "frames"], ids=["plain", "others_have_labels"])
def labelled(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `label`, something else in this process has one, too."""
    if request.param is None:
        yield
    else:
        with xs.Event(DEVICE, enable_ipc=True, label=request.param):
            yield


def interrupted(call: Callable[[], Any], at: int) -> tuple[int, Any]:
    """Call it, and have the `at`-th Python function that it enters raise KeyboardInterrupt (0: none). Return how many
    of them there were, and what it returned, which is None after an interrupt.
    """
    entered = 0

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal entered
        if event == "call" and not frame.f_code.co_filename.startswith(OF_THE_TESTS):
            entered += 1
            if entered == at:
                raise KeyboardInterrupt

    made = None
    sys.settrace(trace)
    try:
        made = call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return entered, made


@pytest.mark.usefixtures("labelled")
def test_an_interrupt_leaves_no_export(
    export: tuple[Any, Callable[[], Any], Callable[[Any], None]],
) -> None:
    _source, get, put = export
    put(get())  # what is imported and prepared once
    calls, handle = interrupted(get, 0)
    put(handle)
    before = len(node.current().table().exports())
    for at in range(1, calls + 1):
        _entered, made = interrupted(get, at)
        if made is not None:  # a function whose errors are nobody's, such as a finaliser
            put(made)
        assert len(node.current().table().exports()) == before, f"call {at} of {calls}"


def test_an_interrupted_label_withdraws_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with xs.Event(DEVICE, enable_ipc=True, label="frames") as event:
        table = node.current().table()
        before = len(table.exports())
        monkeypatch.setattr(type(table), "label", interrupt)
        with pytest.raises(KeyboardInterrupt):
            xs.ipc.event.get(event)
        assert len(table.exports()) == before


def _interrupted_imports() -> list[str]:
    """Import what registers its classes with native code twice, the first time interrupted behind that."""
    from xpushare import _native

    register, names, found = _native.register, [], []

    def interrupts(**classes: Any) -> None:
        register(**classes)
        if names.count(*classes) == 0:
            names.extend(classes)
            raise KeyboardInterrupt

    _native.register = interrupts
    for _ in range(20):
        try:
            with xs.empty(4, device=DEVICE) as array, xs.share(array) as handle, xs.attach(bytes(handle)) as attached:
                found = [type(each).__name__ for each in (array, array.memory, handle, attached)]
            break
        except KeyboardInterrupt:
            continue
    return [*sorted(names), *found]


def test_an_interrupted_import_registers_its_classes_again() -> None:
    with Child(method="spawn") as child:
        assert child.call(_interrupted_imports) == [
            *("Allocation", "ArrayHandle", "Range", "SharedArray"),  # that of handles came before
            *("SharedArray", "Memory", "ArrayHandle", "SharedArray"),
        ]  # fmt: skip
