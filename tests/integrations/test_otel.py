"""OpenTelemetry spans of operations: `xpushare.integrations.otel`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import xpushare as xs

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from xpushare.core.declare import OPERATIONS
from xpushare.integrations import otel

HOST = "native_cpu:0"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.install(provider)
    yield exporter
    otel.uninstall()


def attributes(spans: InMemorySpanExporter, name: str) -> list[Any]:
    return [dict(span.attributes or {}) for span in spans.get_finished_spans() if span.name == name]


def test_both_ends_of_a_handle(spans: InMemorySpanExporter) -> None:
    with xs.malloc_host(64, HOST) as memory:
        handle = xs.ipc.memory.get(memory)
        with xs.ipc.memory.open(handle):
            pass
        xs.ipc.memory.put(handle)
    assert attributes(spans, "malloc")[0]["xpushare.nbytes"] == 64
    (got,), (opened,) = attributes(spans, "ipc.memory.get"), attributes(spans, "ipc.memory.open")
    assert got["xpushare.handle"] == opened["xpushare.handle"]
    assert len(attributes(spans, "ipc.memory.put")) == 1


def test_an_error(spans: InMemorySpanExporter) -> None:
    with xs.Event(HOST) as event, pytest.raises(TimeoutError):
        event.wait(0.01, at_least=1)
    (span,) = (each for each in spans.get_finished_spans() if each.name == "Event.wait")
    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].attributes["exception.type"] == "TimeoutError"
    assert span.attributes["xpushare.at_least"] == 1


def test_a_coroutine(spans: InMemorySpanExporter) -> None:
    with xs.Event(HOST) as event:
        asyncio.run(event.reached(event.signal()))
    assert len(attributes(spans, "Event.reached")) == 1


def test_spans_nest_in_those_of_the_program(spans: InMemorySpanExporter) -> None:
    from opentelemetry.trace import get_tracer

    provider = TracerProvider()
    with get_tracer("program", tracer_provider=provider).start_as_current_span("step") as step:
        xs.malloc_host(64, HOST).close()
    (span,) = (each for each in spans.get_finished_spans() if each.name == "malloc")
    assert span.parent is not None
    assert span.parent.span_id == step.get_span_context().span_id


def test_uninstalled_costs_nothing(spans: InMemorySpanExporter) -> None:
    from xpushare.core import memory

    otel.uninstall()
    assert memory.allocate is OPERATIONS["malloc"].function
    xs.malloc_host(64, HOST).close()
    assert not spans.get_finished_spans()


def test_beside_the_tracing_layer(spans: InMemorySpanExporter, capfd: pytest.CaptureFixture[str]) -> None:
    xs.enable_layers("UR_LAYER_TRACING")
    try:
        xs.malloc_host(64, HOST).close()
    finally:
        xs.enable_layers()
    assert "malloc" in capfd.readouterr().err
    assert len(attributes(spans, "malloc")) == 1
