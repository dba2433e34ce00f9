"""The tracing layer's text: a call and its named arguments, in Unified Runtime's format."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from xpushare.common.errors import XpuShareError
from xpushare.common.result import Result
from xpushare.core.declare import Traced
from xpushare.core.logger import Level, Logger
from xpushare.core.recording import brief, names_of
from xpushare.core.validation import by_program, here, shown

__all__ = ["logger", "logged", "traced"]


@functools.cache
def logger() -> Logger:
    return Logger("TRACING", Level.INFO, prefix=False)


def _result_of(error: BaseException) -> str:
    """Return the name of the result code that a function reports for this error."""
    return f"UR_RESULT_{(error.result if isinstance(error, XpuShareError) else Result.ERROR_UNKNOWN).name}"


@contextmanager
def logged(name: str, arguments: Callable[[], Iterable[tuple[str, str]]]) -> Generator[list[tuple[str, str]]]:
    """Log the beginning and the end of a call. Yields a list, to which the caller adds the outputs of the call."""
    log = logger()
    place = shown(here()) if log.fileline else ""
    log.log(Level.INFO, f"   ---> {name}", place)
    outputs: list[tuple[str, str]] = []
    result = "UR_RESULT_SUCCESS"
    try:
        yield outputs
    except BaseException as error:
        result = _result_of(error)
        raise
    finally:
        if log.level <= Level.INFO:
            text = ", ".join(f".{key} = {value}" for key, value in (*arguments(), *outputs))
            log.log(Level.INFO, f"   <--- {name}({text}) -> {result};", place)


def _text(value: Any) -> str:
    found = brief(value)
    if isinstance(found, list):
        return f"{{{', '.join(map(_text, found))}}}"
    return "nullptr" if found is None else str(found).lower() if isinstance(found, bool) else str(found)


def traced(operation: Traced, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `call` so that it is logged. Calls inside a function of `xpushare.ur`, which is logged itself, are not."""
    names = names_of(operation)

    def given(values: tuple[Any, ...], options: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        return [(name, _text(value)) for name, value in (*zip(names, values, strict=False), *options.items())]

    async def traced_async(*values: Any, **options: Any) -> Any:
        with logged(operation.name, lambda: given(values, options)):
            return await call(*values, **options)

    def traced_call(*values: Any, **options: Any) -> Any:
        if not by_program():
            return call(*values, **options)
        with logged(operation.name, lambda: given(values, options)) as outputs:
            result = call(*values, **options)
            if result is not None:
                outputs.append(("return", _text(result)))
        return result

    wrapper: Callable[..., Any] = traced_async if inspect.iscoroutinefunction(operation.function) else traced_call
    return functools.wraps(operation.function)(wrapper)
