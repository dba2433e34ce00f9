"""OpenTelemetry spans for the operations and calls of xpushare: `xpushare.integrations.otel.install()`.

Each operation and each public call, such as `share` or `Channel.send`, becomes a span with the name that `xpushare
trace` shows. The span records the arguments as attributes, and the error if the call fails. The attributes
`xpushare.handle` and `xpushare.event` have the same value in all processes, so a backend can connect the spans of the
exporter and of the importer. Needs the extra `otel`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import xpushare as xs
from xpushare.core.declare import Traced
from xpushare.core.layers import trace_by
from xpushare.core.recording import arguments_of, result_of

__all__ = ["install", "uninstall"]

trace: Any = importlib.import_module("opentelemetry.trace")


def install(provider: Any = None) -> None:
    """Make an OpenTelemetry span for each operation of this process from now on.

    Args:
        provider: A tracer provider. None means the global one.

    Raises:
        ImportError: OpenTelemetry is not installed (extra `otel`). The import of this module raises this error.

    Examples:
        >>> from opentelemetry.sdk.trace import TracerProvider
        >>> from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        >>> from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        >>> from xpushare.integrations import otel
        >>> spans, provider = InMemorySpanExporter(), TracerProvider()
        >>> provider.add_span_processor(SimpleSpanProcessor(spans))
        >>> otel.install(provider)
        >>> memory = xs.malloc_host(64, "native_cpu:0")
        >>> otel.uninstall()
        >>> [span.name for span in spans.get_finished_spans()]
        ['malloc']
    """
    trace_by(functools.partial(_spanned, trace.get_tracer("xpushare", xs.__version__, tracer_provider=provider)))


def uninstall() -> None:
    """Stop making spans. Idempotent.

    Examples:
        >>> from xpushare.integrations import otel
        >>> otel.uninstall() is None
        True
    """
    trace_by(None)


def _attributes(details: dict[str, Any]) -> dict[str, Any]:
    return {
        f"xpushare.{name}": value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in details.items()
    }


def _spanned(tracer: Any, operation: Traced, call: Callable[..., Any]) -> Callable[..., Any]:
    described = arguments_of(operation)

    @contextmanager
    def span(values: tuple[Any, ...], options: dict[str, Any]) -> Generator[list[Any]]:
        result: list[Any] = []
        with tracer.start_as_current_span(
            operation.name, attributes=_attributes(described(values, options)), record_exception=True
        ) as current:
            yield result
            current.set_attributes(_attributes(result_of(operation, values[0] if values else None, result[0])))

    @functools.wraps(operation.function)
    async def spanned_async(*values: Any, **options: Any) -> Any:
        with span(values, options) as result:
            result.append(await call(*values, **options))
        return result[0]

    @functools.wraps(operation.function)
    def spanned(*values: Any, **options: Any) -> Any:
        with span(values, options) as result:
            result.append(call(*values, **options))
        return result[0]

    return spanned_async if inspect.iscoroutinefunction(operation.function) else spanned
