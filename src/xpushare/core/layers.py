"""Layers: optional wrappers around the declared operations, for all three faces. While they are off there are no
wrappers, so they cost nothing.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from xpushare._errors import InvalidArgumentError
from xpushare.core.declare import OPERATIONS, Operation

__all__ = ["LAYERS", "TRACE_FOLDER", "enable_layers", "enabled_layers", "live", "operations"]

LAYERS: Final = (
    "UR_LAYER_PARAMETER_VALIDATION",
    "UR_LAYER_BOUNDS_CHECKING",
    "UR_LAYER_LEAK_CHECKING",
    "UR_LAYER_LIFETIME_VALIDATION",
    "UR_LAYER_FULL_VALIDATION",
    "UR_LAYER_TRACING",
)
TRACE_FOLDER: Final = "XPUSHARE_TRACE_FOLDER"  # set by `xpushare trace`: tracing writes files there instead of text

_enabled: set[str] = set()
_live: Counter[str] = Counter()


def operations() -> list[Operation]:
    """All operations; their modules are loaded first."""
    from xpushare.core import event, interop, memory, physical, queue

    assert {module.__name__ for module in (event, interop, memory, physical, queue)}
    return list(OPERATIONS.values())


def _trace(operation: Operation, call: Callable[..., Any]) -> Callable[..., Any]:
    folder = os.environ.get(TRACE_FOLDER)
    if folder:
        from xpushare.core.recording import record

        return record(operation, call, folder)

    @functools.wraps(operation.function)
    def traced(*arguments: Any, **options: Any) -> Any:
        shown = ", ".join([*map(repr, arguments), *(f"{name}={value!r}" for name, value in options.items())])
        _log("TRACING", "INFO", f"---> {operation.name}")
        try:
            result = call(*arguments, **options)
        except BaseException as error:
            _log("TRACING", "INFO", f"<--- {operation.name}({shown}) raised {type(error).__name__}: {error}")
            raise
        _log("TRACING", "INFO", f"<--- {operation.name}({shown}) -> {result!r}")
        return result

    return traced


def _count(operation: Operation, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(operation.function)
    def counted(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        if operation.makes:
            _live[operation.makes] += 1
        if operation.ends:
            _live[operation.ends] -= 1
        return result

    return counted


def _log(name: str, level: str, text: str) -> None:
    print(f"<{name}>[{level}]: {text}", file=sys.stderr)


def live() -> dict[str, int]:
    """With leak checking on: what was made since then and has not been released."""
    return {kind: count for kind, count in _live.items() if count}


def enabled_layers() -> frozenset[str]:
    return frozenset(_enabled)


def enable_layers(*names: str) -> None:
    """Switch on layers, by Unified Runtime's names; `enable_layers()` switches all of them off. Raises
    `InvalidArgumentError` for other names.

    The environment variable `UR_ENABLE_LAYERS` also switches layers on; it has their names, separated by commas.
    Parameter validation is always on.
    """
    unknown = [name for name in names if name not in LAYERS]
    if unknown:
        raise InvalidArgumentError(f"there is no layer {unknown[0]!r}; they are {', '.join(LAYERS)}")
    wanted = set(names)
    if "UR_LAYER_FULL_VALIDATION" in wanted:
        wanted |= {name for name in LAYERS if name != "UR_LAYER_TRACING"}
    _enabled.clear()
    _enabled.update(wanted)
    for operation in operations():
        call: Callable[..., Any] = operation.function
        if wanted & {"UR_LAYER_LEAK_CHECKING", "UR_LAYER_LIFETIME_VALIDATION"}:
            call = _count(operation, call)
        if "UR_LAYER_TRACING" in wanted:
            call = _trace(operation, call)
        operation.install(call)


_environment_read = False


def from_environment() -> None:
    """Switch on the layers that `UR_ENABLE_LAYERS` names, once."""
    global _environment_read
    if _environment_read:
        return
    _environment_read = True
    names = [name.strip() for name in os.environ.get("UR_ENABLE_LAYERS", "").split(",")]
    if any(names):
        enable_layers(*filter(None, names))
