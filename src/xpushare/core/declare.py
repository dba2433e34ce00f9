"""How operations are declared, and the table of declarations.

An operation is a function of `core` decorated with `@operation`. The decorator returns the function itself, so a call
costs nothing extra. A layer that is switched on binds a wrapper to the operation's name in its module, and binds the
function again when it is switched off. Callers therefore look an operation up in its module at each call
(`memory.get(…)`) and never keep the function itself (`from xpushare.core.memory import get`); tests/test_layers.py
checks this. The declarations in `xpushare.ur` name the functions of Unified Runtime that each operation serves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Protocol, TypeVar, final

if TYPE_CHECKING:
    from xpushare.sharing.handle import Handle

__all__ = [
    "OPERATIONS",
    "Operation",
    "Point",
    "Watcher",
    "add_face",
    "closing",
    "layers_changed",
    "layers_on",
    "made",
    "misused",
    "operation",
    "watchers",
]

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Exception)

layers_on: Final[list[str]] = []
"""The names of the active layers. Native shortcuts would bypass the layers' wrappers, so they are used only while this
list is empty.
"""


@final
class Point:
    """An operation that callers look up by name at each call, so that a layer can replace it with a wrapper."""

    __slots__ = ("_name", "_names", "_off", "plain")

    def __init__(self, names: dict[str, Any], name: str, plain: Callable[..., Any], off: object) -> None:
        """`names` is the dictionary of globals that contains `name`. `plain` is the function without a wrapper. `off`
        is the object that `name` is bound to while no wrapper is installed.
        """
        self._names = names
        self._name = name
        self._off = off
        self.plain = plain

    @property
    def wrapped(self) -> bool:
        return self._names[self._name] is not self._off

    def wrap(self, wrapper: Callable[..., Any] | None) -> None:
        """Make every caller call `wrapper`. If `wrapper` is None, remove the wrapper that is installed."""
        self._names[self._name] = self._off if wrapper is None else wrapper


@dataclass(frozen=True, slots=True)
class Operation:
    """The declaration of one operation."""

    name: str  # as users write it: "ipc.memory.get"
    point: Point
    rules: tuple[int, ...]  # the numbers of the sharing rules that it follows (docs/conformance.md)
    raises: tuple[type[Exception], ...]  # the package's errors, not Python's own for arguments of a wrong type
    makes: str | None  # the kind of handle that it makes, for the leak layer
    ends: str | None  # the kind of handle that it ends

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself, without the wrappers of layers."""
        return self.point.plain

    @property
    def doc(self) -> str:
        return self.function.__doc__ or ""

    def install(self, function: Callable[..., Any]) -> None:
        """Make every caller call `function`, usually a layer's wrapper. Pass `self.function` to remove the wrapper."""
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
        where: dict[str, Any] = vars(sys.modules[function.__module__])
        point = Point(where, function.__name__, function, function)
        OPERATIONS[name] = Operation(name, point, rules, raises, makes, ends)
        return function

    return declare


# --- what the layers are told


class Watcher(Protocol):
    """The methods that `misused`, `made` and `closing` call on each active layer."""

    def misused(self, layer: Literal["lifetime", "bounds"], error: Exception, subject: object, /) -> None: ...

    def made(self, thing: object, listed: bool, /) -> None: ...

    def closing(self, thing: object, handles: Iterable[Handle], /) -> None: ...


watchers: Final[list[Watcher]] = []
"""The active layers that need these reports. While the list is empty, objects do not call `made` and `closing`."""


def misused(layer: Literal["lifetime", "bounds"], error: E, subject: object = None) -> E:
    """Report to the active layers that a misuse of `subject`, such as a use after its `close()`, is about to raise
    `error`. Returns `error`.
    """
    for each in watchers:
        each.misused(layer, error, subject)
    return error


def made(thing: object, *, listed: bool = True) -> None:
    """Tell the active layers about a new object that has to be closed. With `listed`, the object counts as retained
    until it is closed.
    """
    for each in watchers:
        each.made(thing, listed)


def closing(thing: object, handles: Iterable[Handle] = ()) -> None:
    """Tell the active layers that an object is about to be closed. Closing the object withdraws the exports behind
    `handles`.
    """
    for each in watchers:
        each.closing(thing, handles)


_faces: Final[list[Callable[[], None]]] = []


def add_face(apply: Callable[[], None]) -> None:
    """Call `apply` whenever the set of active layers changes, and now if a layer is active. `apply` installs the
    wrappers that the active layers need, and removes all others.
    """
    _faces.append(apply)
    if layers_on:
        apply()


def layers_changed() -> None:
    """Call every function that was given to `add_face`."""
    for each in _faces:
        each()
