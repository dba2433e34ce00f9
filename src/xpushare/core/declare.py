"""How an operation is declared, and where the declarations are found.

An operation is a function of `core` decorated with `@operation`. The decorator returns the function itself, so a call
costs nothing more. A layer wraps the function in place, by exchanging its code: whoever has imported it by name calls
the wrapper, too. The declarations in `xpushare.ur` say which functions of Unified Runtime an operation serves.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeVar, final

__all__ = [
    "OPERATIONS",
    "TRACKED",
    "Operation",
    "Point",
    "Tracked",
    "add_face",
    "layers_changed",
    "layers_on",
    "misused",
    "operation",
    "tracked",
    "watchers",
]

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Exception)

layers_on: Final[list[str]] = []
"""The layers that are on, by name. Empty while none is: native short cuts ask this before they pass the wrappers by."""


def _call(*arguments: Any, _wrapper: Callable[..., Any], **options: Any) -> Any:
    return _wrapper(*arguments, **options)


async def _call_async(*arguments: Any, _wrapper: Callable[..., Any], **options: Any) -> Any:
    return await _wrapper(*arguments, **options)


@final
class Point:
    """A function that layers can wrap, for all its callers."""

    __slots__ = ("_code", "_function", "_keywords", "plain")

    def __init__(self, function: Callable[..., Any]) -> None:
        assert isinstance(function, types.FunctionType)
        self._function = function
        self._code = function.__code__
        self._keywords = function.__kwdefaults__
        self.plain = _twin(function)
        """The function without its wrapper."""

    @property
    def wrapped(self) -> bool:
        return self._function.__code__ is not self._code

    def wrap(self, wrapper: Callable[..., Any] | None) -> None:
        """Have every caller call `wrapper`; None: the function itself again, its very code."""
        function = self._function
        if wrapper is None:
            function.__code__ = self._code
            function.__kwdefaults__ = self._keywords
            function.__dict__.pop("__wrapped__", None)
            return
        code = _call_async if inspect.iscoroutinefunction(self.plain) else _call
        function.__kwdefaults__ = {**(self._keywords or {}), "_wrapper": wrapper}
        function.__code__ = code.__code__
        function.__dict__["__wrapped__"] = self.plain  # for its signature


def _twin(function: types.FunctionType) -> Callable[..., Any]:
    """The same code, as another function."""
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    functools.update_wrapper(made, function)
    del made.__wrapped__  # type: ignore[attr-defined]
    made.__kwdefaults__ = function.__kwdefaults__
    return made


@dataclass(frozen=True, slots=True)
class Operation:
    """The declaration of one operation."""

    name: str  # as users write it: "ipc.memory.get"
    point: Point
    rules: tuple[int, ...]  # of sharing, by their number in the contract (docs/conformance.md)
    raises: tuple[type[Exception], ...]  # its own errors, not those of Python for arguments of a wrong type
    makes: str | None  # the kind of handle that it makes, for the leak layer
    ends: str | None  # the kind of handle that it ends

    @property
    def function(self) -> Callable[..., Any]:
        """What it does, without layers."""
        return self.point.plain

    @property
    def doc(self) -> str:
        return self.function.__doc__ or ""

    def install(self, function: Callable[..., Any]) -> None:
        """Have every caller call `function` (a layer's wrapper, or `self.function` again)."""
        self.point.wrap(None if function is self.function else function)


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str,
    *,
    raises: tuple[type[Exception], ...],
    rules: tuple[int, ...] = (),
    makes: str | None = None,
    ends: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare the decorated function as the operation `name`."""

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        OPERATIONS[name] = Operation(name, Point(function), rules, raises, makes, ends)
        return function

    return declare


# --- what the layers are told


watchers: Final[list[Callable[[str, Exception, object], None]]] = []
"""What `misused` calls."""


def misused(layer: Literal["lifetime", "bounds"], error: E, subject: object = None) -> E:
    """Tell the layers that are on why `error` is going to be raised: `subject` is closed, say. Returns `error`."""
    for each in watchers:
        each(layer, error, subject)
    return error


class Tracked(NamedTuple):
    """A class of objects that are closed."""

    begin: Point  # makes an object, or gives it its state
    close: Point
    owns_export: bool  # what it holds is an export, which the books have already


TRACKED: Final[list[Tracked]] = []

_faces: Final[list[Callable[[], None]]] = []


def tracked(begin: Callable[..., Any], close: Callable[..., Any], owns_export: bool) -> None:
    """Have the leak and lifetime layers note the objects of a class."""
    TRACKED.append(Tracked(Point(begin), Point(close), owns_export))
    if layers_on:
        layers_changed()


def add_face(apply: Callable[[], None]) -> None:
    """Have `apply` called now, if layers are on, and whenever others are: it wraps what is not an operation."""
    _faces.append(apply)
    if layers_on:
        apply()


def layers_changed() -> None:
    """Call all that `add_face` was given."""
    for each in _faces:
        each()
