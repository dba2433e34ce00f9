"""What faults are made of: the list of mutants, and how a name of the package is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

__all__ = ["MUTANTS", "TOOLS", "Mutant", "Part", "mutant", "nothing", "set_", "wrap"]

Part = Literal["", "HostQueue", "HostRange"]


class Mutant(NamedTuple):
    """A fault: what it is, the rules that should notice, and how it is planted."""

    name: str
    text: str
    aim: tuple[str, ...]
    plant: Callable[[], None]
    part: Part
    """The helper of host adapters that it patches: it tells nothing of a device that does not use it."""


MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(text: str, *aim: str, part: Part = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Enter the decorated function, which plants the fault, into the list."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__
        MUTANTS[name] = Mutant(name, text, aim, plant, part)
        return plant

    return register


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace `owner.name` by what `make` makes of it."""
    found = vars(owner)[name]
    if isinstance(found, classmethod):
        original = found.__func__
        setattr(owner, name, classmethod(make(original)))
    else:
        setattr(owner, name, make(getattr(owner, name)))


def set_(owner: Any, name: str, value: object) -> None:
    """Replace `owner.name`, which must be there: a fault that meets nothing proves nothing."""
    assert hasattr(owner, name), f"{owner} has no {name} any more: mend this mutant"
    setattr(owner, name, value)


def nothing(*_arguments: object, **_options: object) -> None:
    pass


# --- for the tests of the suite itself --------------------------------------------------------------------------------


def _crash(_aspect: str) -> None:
    import os

    from xpushare.objects.queue import Queue

    set_(Queue, "close", lambda _self: os._exit(7))


def _hang(_aspect: str) -> None:
    import threading

    from xpushare.objects.queue import Queue

    set_(Queue, "close", lambda _self: threading.Event().wait())


def _lacks(aspect: str) -> None:
    from xpushare.common.aspects import Support
    from xpushare.core.device import Device

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(self: Any, asked: Any) -> Any:
            return Support("no", "the harness says so") if asked == aspect else original(self, asked)

        return ask

    wrap(Device, "_ask", make)


def _unrefused(aspect: str) -> None:
    from xpushare.core.device import Device

    _lacks(aspect)
    set_(Device, "_require", nothing)


TOOLS: Final[dict[str, Callable[[str], None]]] = {
    "crash": _crash,
    "hang": _hang,
    "lacks": _lacks,
    "unrefused": _unrefused,
}
