"""How an operation is declared, and where the declarations are found.

An operation is a function of `core` decorated with `@operation`. The decorator returns the function itself, so a call
costs nothing more. The faces call operations as attributes of their module (`memory.get(...)`), so that a layer can put
a wrapper there. The declarations in `xpushare.ur` say which functions of Unified Runtime an operation serves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

__all__ = ["OPERATIONS", "Operation", "operation"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Operation:
    """The declaration of one operation."""

    name: str  # as users write it: "ipc.memory.get"
    function: Callable[..., Any]
    rules: tuple[int, ...]  # of sharing, by their number in the contract (docs/conformance.md)
    raises: tuple[type[Exception], ...]  # its own errors, not those of Python for arguments of a wrong type
    makes: str | None  # the kind of handle that it makes, for the leak layer
    ends: str | None  # the kind of handle that it ends

    @property
    def doc(self) -> str:
        return self.function.__doc__ or ""

    def install(self, function: Callable[..., Any]) -> None:
        """Have every caller call `function` (a layer's wrapper, or `self.function` again)."""
        setattr(sys.modules[self.function.__module__], self.function.__name__, function)


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
        OPERATIONS[name] = Operation(name, function, rules, raises, makes, ends)
        return function

    return declare
