"""Layers: optional wrappers around the declared operations. A layer applies to calls through `xpushare`, `xpushare.ipc`
and `xpushare.ur`. A layer that is off adds no wrapper and costs nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

from xpushare.common.errors import InvalidArgumentError
from xpushare.common.loading import logger
from xpushare.core.declare import (
    CALLS,
    OPERATIONS,
    Operation,
    Traced,
    add_face,
    layers_changed,
    layers_on,
    tracers,
    watchers,
    with_tracers,
)

__all__ = [
    "LAYERS",
    "TRACE_FOLDER",
    "TRACING",
    "enable_layers",
    "operations",
    "print_retained",
    "records_calls",
    "trace_by",
]

_CHECKS: Final = {
    "UR_LAYER_PARAMETER_VALIDATION": (),  # which is always on
    "UR_LAYER_BOUNDS_CHECKING": ("bounds",),
    "UR_LAYER_LEAK_CHECKING": ("leaks",),
    "UR_LAYER_LIFETIME_VALIDATION": ("lifetime", "leaks"),  # as in Unified Runtime, it implies leak checking
    "UR_LAYER_FULL_VALIDATION": ("bounds", "leaks", "lifetime"),
}
TRACING: Final = "UR_LAYER_TRACING"
LAYERS: Final = (*_CHECKS, TRACING)
TRACE_FOLDER: Final = "XPUSHARE_TRACE_FOLDER"  # set by `xpushare trace`; tracing then writes files there and no text


def operations() -> list[Operation]:
    """Return all operations, after loading their modules."""
    from xpushare.core import event, growth, interop, memory, physical, queue

    assert {module.__name__ for module in (event, growth, interop, memory, physical, queue)}
    return list(OPERATIONS.values())


def _trace(traced: Traced, call: Callable[..., Any]) -> Callable[..., Any]:
    if records_calls():
        from xpushare.core.recording import record

        return record(traced, call, os.environ[TRACE_FOLDER])
    from xpushare.core import printing

    printing.logger()
    return printing.traced(traced, call)


def records_calls() -> bool:
    """Return whether tracing records calls for `xpushare trace` instead of writing text."""
    return bool(os.environ.get(TRACE_FOLDER))


# --- switching them on and off


def print_retained() -> int:
    """Write which objects are retained and where they were made, if leak checking is on. Returns how many there are."""
    from xpushare.core import validation

    return validation.print_retained() if "leaks" in validation.checks else 0


def _apply() -> None:
    """Install the wrappers that the active layers need, and remove all others."""
    tracers[:] = [*([_trace] if TRACING in layers_on else []), *_others]
    for each in CALLS.values():
        each.install(with_tracers(each))
    if not layers_on and not watchers and not _others:
        for operation in operations():
            operation.install(operation.function)
        return
    from xpushare.core import validation

    wanted = {check for name in layers_on for check in _CHECKS.get(name, ())}
    checks = validation.checks
    if "leaks" in checks and "leaks" not in wanted:
        validation.print_retained()
        validation.books.clear()
    checks.clear()
    checks.update(wanted)
    watchers[:] = [validation] if wanted else []
    if wanted:
        validation.logger()  # opens its file now, not at some later call
    for operation in operations():
        call = operation.function
        if "leaks" in wanted:
            call = validation.validated(operation, call)
        operation.install(with_tracers(operation, call))


def enable_layers(*names: str) -> None:
    """Switch on the layers with these names, and switch off all others.

    The environment variable `UR_ENABLE_LAYERS` also switches on layers. Its value is a list of names, separated by
    commas. Messages go to stderr, unless `UR_LOG_VALIDATION` and `UR_LOG_TRACING` redirect them. Leak checking reports
    the objects that have not been closed, when the layer is switched off and when the process exits. Parameter
    validation is always on.

    Args:
        names: The names that Unified Runtime gives to the layers. Without a name, all layers are switched off.

    Raises:
        InvalidArgumentError: There is no such layer.

    Examples:
        >>> xs.enable_layers("UR_LAYER_BOUNDS_CHECKING")
        >>> xs.enable_layers()
        >>> xs.enable_layers("SPELLING")
        Traceback (most recent call last):
        ...
        xpushare.InvalidArgumentError: there is no layer 'SPELLING'; they are ...
    """
    unknown = [name for name in names if name not in LAYERS]
    if unknown:
        raise InvalidArgumentError(f"there is no layer {unknown[0]!r}; they are {', '.join(LAYERS)}")
    layers_on[:] = [name for name in LAYERS if name in names]
    _faces_added()
    layers_changed()


_others: Final[list[Callable[[Traced, Callable[..., Any]], Callable[..., Any]]]] = []  # at most one


def trace_by(tracer: Callable[[Traced, Callable[..., Any]], Callable[..., Any]] | None) -> None:
    """Wrap each operation and public call with `tracer` from now on, in addition to the layers' wrappers. None removes
    the tracer.
    """
    _others[:] = [] if tracer is None else [tracer]
    _faces_added()
    layers_changed()


@functools.cache
def _faces_added() -> None:
    """From now on, call `_apply` whenever the set of active layers changes. Only the first call of this function has an
    effect.
    """
    add_face(_apply)


def from_environment() -> None:
    """Switch on the layers that `UR_ENABLE_LAYERS` names, when the package is imported."""
    names = {name.strip() for name in os.environ.get("UR_ENABLE_LAYERS", "").split(",")} - {""}
    for name in sorted(names.difference(LAYERS)):
        logger().warning("UR_ENABLE_LAYERS: there is no layer %r here; they are %s", name, ", ".join(LAYERS))
    if names & set(LAYERS):
        enable_layers(*names.intersection(LAYERS))
