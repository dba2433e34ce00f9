"""The other process of the tests of the reductions, and what it does."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

SPAWN = multiprocessing.get_context("spawn")
Ask = Callable[[str, Any], Any]


def served(library: str, seconds: float = 60) -> Iterator[Ask]:
    """A process that has installed the reductions, and so has this one; an answer comes within `seconds`."""
    import pytest

    module = pytest.importorskip(f"xpushare.integrations.{library}")
    before, dump = dict(ForkingPickler._extra_reducers), vars(ForkingPickler).get("dump")
    module.install()
    module.install()  # idempotent
    inbox, answers = SPAWN.Queue(), SPAWN.Queue()
    process = SPAWN.Process(target=serve, args=(inbox, answers, library))
    process.start()

    def ask(name: str, thing: Any = None) -> Any:
        inbox.put((name, thing))
        found = answers.get(timeout=seconds)
        if isinstance(found, Exception):
            raise found
        return found

    yield ask
    inbox.put(None)
    process.join(30)
    assert process.exitcode == 0
    module.uninstall()
    module.uninstall()
    assert dict(ForkingPickler._extra_reducers) == before
    assert vars(ForkingPickler).get("dump") is dump


def serve(inbox: Any, answers: Any, library: str | None) -> None:
    """Do what is asked until None comes: (function's name, what it gets)."""
    import importlib

    if library is not None:
        importlib.import_module(f"xpushare.integrations.{library}").install()
    kept: list[Any] = []
    while (asked := inbox.get()) is not None:
        name, thing = asked
        del asked
        try:
            found = globals()[name](thing, kept)
        except Exception as error:
            found = error.with_traceback(None)
        del thing  # before the answer: whoever gets that counts what is open here
        answers.put(found)
        del found


def add_one(thing: Any, _kept: Any) -> list[float]:
    """Write into the first; say what is in all."""
    things = list(thing.values()) if isinstance(thing, dict) else thing
    things[0].data.add_(1)
    return [float(each.detach().flatten()[0]) for each in things]


def call_and_add(raw: bytes, _kept: Any) -> float:
    """Rebuild a tensor as torch's receivers do, and write into it."""
    import pickle

    function, arguments = pickle.loads(raw)
    return float(function(*arguments).add_(1)[0])


def described(thing: Any, _kept: Any) -> list[Any]:
    return [
        (
            type(each).__name__,
            tuple(each.shape),
            each.stride(),
            each.storage_offset(),
            each.untyped_storage().nbytes(),
            each.requires_grad,
            str(each.dtype),
            each.grad is None,
        )
        for each in thing
    ]


def storages(thing: Any, _kept: Any) -> int:
    return len({each.untyped_storage()._cdata for each in thing})


def keep(thing: Any, kept: Any) -> bool:
    kept.append(thing)
    return kept[0][0].untyped_storage()._cdata == thing[0].untyped_storage()._cdata


def kept_at(thing: Any, kept: Any) -> Any:
    return kept[thing]


def drop(thing: Any, kept: Any) -> None:
    """All but the first so many."""
    del kept[thing:]


def forget(_thing: Any, kept: Any) -> int:
    kept.clear()
    return mappings(None, None)


def mappings(_thing: Any, _kept: Any) -> int:
    import gc

    gc.collect()
    with open("/proc/self/maps") as file:
        return sum("memfd:xpushare" in line for line in file)


def passed_on(thing: Any, _kept: Any) -> Any:
    return thing[1:3]


def content(thing: Any, _kept: Any) -> Any:
    import numpy as np

    return [np.asarray(each).tolist() for each in thing]


def again(thing: Any, _kept: Any) -> Any:
    return thing


def shared_in_two_ways(_thing: Any, kept: list[Any]) -> list[bytes]:
    """The handles of an array of this process, and of its first row."""
    import xpushare as xs

    array = xs.empty((3, 4), "f4", isolated=True)
    kept += xs.share(array), xs.share(array.memory.as_array((4,), "f4"))
    return [bytes(each) for each in kept[-2:]]
