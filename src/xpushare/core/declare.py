"""How operations are declared, and the tables of declarations.

An operation is a function of `core` decorated with `@operation`. The decorator returns the function itself, so a call
costs nothing extra. A layer that is switched on binds a wrapper to the operation's name in its module, and binds the
function again when it is switched off. Callers therefore look an operation up in its module at each call
(`memory.get(…)`) and never keep the function itself (`from xpushare.core.memory import get`); tests/test_layers.py
checks this. The declarations in `xpushare.ur` name the functions of Unified Runtime that each operation serves.

A public call is a function or method of the rooms above `core`, such as `share` or `Channel.send`. Only tracing wraps
it: a timeline then shows it around the operations that it calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Protocol, TypeVar, final

if TYPE_CHECKING:
    from xpushare.sharing.handle import Handle

__all__ = [
    "CALLS",
    "OPERATIONS",
    "Call",
    "Operation",
    "Point",
    "Traced",
    "Watcher",
    "briefs",
    "add_face",
    "closing",
    "layers_changed",
    "layers_on",
    "made",
    "misused",
    "operation",
    "public",
    "tracers",
    "watchers",
    "with_tracers",
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


# --- public calls


class Traced(Protocol):
    """What a tracer needs to know of an operation or a public call."""

    @property
    def name(self) -> str: ...

    @property
    def function(self) -> Callable[..., Any]: ...


tracers: Final[list[Callable[[Traced, Callable[..., Any]], Callable[..., Any]]]] = []
"""The active tracers. Each returns a wrapper of the call that it is given."""

briefs: Final[dict[type, Callable[[Any], Any]]] = {}
"""How a trace shows an object of a public class. The functions return what JSON can hold."""


@final
class Call:
    """The declaration of a public call: the function `attribute` of the module or class `owner`."""

    __slots__ = ("_attribute", "_before", "_kind", "_owner", "function", "name", "outcome")

    def __init__(self, owner: Any, attribute: str, name: str, outcome: Callable[[Any, Any], dict[str, Any]] | None):
        self._owner = owner
        self._attribute = attribute
        self._before = vars(owner).get(attribute)  # None if a class inherits it
        self._kind = type(self._before) if isinstance(self._before, classmethod | staticmethod) else None
        self.name: Final = name
        self.function: Final[Callable[..., Any]] = (
            getattr(owner, attribute) if self._kind is None else self._before.__func__
        )
        self.outcome: Final = outcome
        """Returns details of a call that succeeded, of its first argument and its result."""

    @property
    def wrapped(self) -> bool:
        return vars(self._owner).get(self._attribute) is not self._before

    def install(self, function: Callable[..., Any]) -> None:
        """Make every caller call `function`, usually a tracer's wrapper. Pass `self.function` to remove the wrapper."""
        if function is self.function:
            if not self.wrapped:
                return
            found: Any = self._before
        else:
            found = function if self._kind is None else self._kind(function)
        if found is None:
            delattr(self._owner, self._attribute)
        else:
            setattr(self._owner, self._attribute, found)
        package = vars(sys.modules["xpushare"])  # it keeps the functions that were used
        if not isinstance(self._owner, type) and self._attribute in package:
            package[self._attribute] = found


CALLS: Final[dict[tuple[str, str], Call]] = {}


def public(
    owner: str | type,
    *attributes: str,
    outcome: Callable[[Any, Any], dict[str, Any]] | None = None,
    brief: Callable[[Any], Any] | None = None,
    **named: str,
) -> None:
    """Declare functions of the module with the name `owner`, or methods of the class `owner`, as public calls.

    A trace shows them as `share` and `Channel.send`, and those of `named` by the name given there. `outcome` returns
    further details of a call, of its first argument and its result. `brief` says how a trace shows an object of the
    class.
    """
    where: Any = sys.modules[owner] if isinstance(owner, str) else owner
    prefix = "" if isinstance(owner, str) else f"{owner.__name__}."
    if brief is not None:
        briefs[where] = brief
    for attribute, name in {**{each: prefix + each for each in attributes}, **named}.items():
        call = CALLS[where.__name__, attribute] = Call(where, attribute, name, outcome)
        call.install(with_tracers(call))


def with_tracers(call: Traced, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return `function`, by default the call's own, in the wrappers of the active tracers."""
    found = call.function if function is None else function
    for tracer in tracers:
        found = tracer(call, found)
    return found


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
