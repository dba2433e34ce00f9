"""Loads weights, in one or several messages, into models whose loaders write to the parameters in place, as those of
SGLang and verl do.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any

import xpushare as xs
from xpushare.integrations._written import Written, lacks_part, named

__all__ = ["InPlace"]

torch: Any = importlib.import_module("torch")


class InPlace:
    """One update. Each message is first loaded without writing anything, and only then into the models.

    `changed` says whether a model may have changed. Weights of a model that is quantized change while they are loaded,
    so with `checked=False` nothing is checked.
    """

    def __init__(self, models: Iterable[Any], *, checked: bool = True) -> None:
        found = list(models)
        self.changed = False
        self._checked = checked
        self._written = Written(writes=False)
        for model in found:
            self._written.watch([*model.parameters(), *model.buffers()])
        self._parameters = [
            (f"{prefix}.{name}".lstrip("."), layer, parameter)
            for prefix, layer in found[0].named_modules()  # the others are drafts, and trainers may leave these out
            for name, parameter in layer.named_parameters(recurse=False)
        ]

    def check(self, load: Callable[[], object]) -> None:
        """Call `load` without letting it write to the models. Raises `InvalidArgumentError` if it raises."""
        if not self._checked:
            return
        if not self.changed:  # a message before this one was refused
            self._written.forget()
        try:
            with _in_this_thread(), torch.no_grad(), self._written:
                load()
        except Exception as error:
            raise xs.InvalidArgumentError(
                f"the model does not take these weights ({type(error).__name__}: {error}). Send the tensors of a "
                "checkpoint of this model, with their names, shapes and dtypes"
            ) from error

    def load(self, load: Callable[[], object]) -> None:
        """Check a message, and then load it."""
        self.check(load)
        self.changed = True
        load()

    def expect_all(self) -> None:
        """Raise `InvalidArgumentError` if weights were loaded, and some of the model's were not.
        `XPUSHARE_PARTIAL_WEIGHTS=1` permits that.
        """
        if not (self._checked and self.changed) or os.environ.get("XPUSHARE_PARTIAL_WEIGHTS") == "1":
            return
        missing = []
        for name, layer, parameter in self._parameters:
            regions = self._written.of(parameter)
            if parameter.ndim and parameter.numel() and not regions:
                missing.append(name)
            elif regions and lacks_part(layer, parameter, regions):
                missing.append(f"a part of {name}")
        if missing:
            raise xs.InvalidArgumentError(
                f"the weights are not all of this model's. Missing: {named(missing)}. Send all tensors of a "
                "checkpoint, or start the engine with XPUSHARE_PARTIAL_WEIGHTS=1 to keep the others as they are"
            )

    def undo(self) -> None:
        """Do nothing, since a check has changed nothing."""


@contextlib.contextmanager
def _in_this_thread() -> Generator[None, None, None]:
    """While this lasts, what this thread submits to thread pools runs at once, since torch's modes belong to a thread.
    Some models submit each of their weights.
    """
    pool = concurrent.futures.ThreadPoolExecutor
    submit, here = pool.submit, threading.get_ident()

    def instead(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != here:
            return submit(self, function, *args, **kwargs)
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.set_result(function(*args, **kwargs))
        return done

    pool.submit = instead  # type: ignore[method-assign]
    try:
        yield
    finally:
        pool.submit = submit  # type: ignore[method-assign]
