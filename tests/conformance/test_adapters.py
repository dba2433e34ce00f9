"""The conformance suite on every adapter that is here, in a process of its own as `xpushare conformance` runs it."""

from __future__ import annotations

from typing import Any

import pytest

import xpushare as xs
from faults.mutants import planting
from sampling import sampled
from xpushare import Aspect
from xpushare.conformance import runner
from xpushare.conformance.rules import RULES

# Aspects that an adapter here is known to lack; a rule that goes unsupported for another reason is a fault.
LACKS = {
    "native_cpu": {Aspect.enforced_read_only, Aspect.foreign_memory, Aspect.adopted_queues},
    "mock": {Aspect.enforced_read_only, Aspect.ext_oneapi_per_event_profiling},
}
HELD = {Aspect.device_ordering, Aspect.adopted_queues}  # mock:1, whose queues hold operations, lacks these as well
# Rules that need a queue which runs callables: those of mock are streams.
CALLABLES = {"5.19"}


def check(report: runner.Report, lacks: set[Any], apart: frozenset[str] | set[str] = frozenset()) -> None:
    assert report.good, report.as_text()
    found = [each for each in report.outcomes if each.rule.number not in apart]
    missing = {part.aspect for each in found for part in each.parts if part.status == "not supported"}
    assert missing <= lacks, report.as_text()
    whole = [each for each in found if not lacks & set(each.rule.aspects)]
    assert all(each.status == "passed" for each in whole), report.as_text()
    assert len(report.outcomes) == len(RULES)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("exporter", "importer"),
    [
        ("native_cpu:0", "native_cpu:0"),
        pytest.param("mock:0", "mock:0", marks=pytest.mark.exhaustive),
        pytest.param("mock:1", "mock:1", marks=pytest.mark.exhaustive),
        pytest.param("mock:0", "mock:1", marks=pytest.mark.exhaustive),
        pytest.param("mock:1", "mock:0", marks=pytest.mark.exhaustive),
    ],
)
def test_conformance(exporter: str, importer: str) -> None:
    backend = exporter.partition(":")[0]
    lacks = LACKS[backend] | (HELD if "mock:1" in (exporter, importer) else set())
    check(runner.run(exporter, importer, timeout=380), lacks, CALLABLES if backend == "mock" else set())


@pytest.mark.cuda
@pytest.mark.timeout(400)
def test_conformance_of_cuda() -> None:
    devices = [str(device) for device in xs.devices("*:*") if device.backend == "cuda"]
    if not devices:
        pytest.skip("there is no NVIDIA GPU")
    report = runner.run(devices[0], timeout=380)
    assert report.good, report.as_text()


# The rules that are run on an adapter without an aspect.
WITHOUT = {
    "partial_map": ("4.7",),
    "ext_oneapi_ipc_event": ("3.2b", "5.11", "5.14", "8.7"),
    "ext_oneapi_ipc_physical_memory": ("3.1d", "3.2b", "4.12", "8.8"),
    "ext_oneapi_per_event_profiling": ("8.12",),
    "ext_oneapi_ipc_memory": ("3.1b", "3.6a"),
    "ext_oneapi_virtual_mem": ("4.1", "4.8", "8.6"),
    "foreign_memory": ("3.5g",),
    "two_way_events": ("3.2b", "5.11", "5.12"),
    "host_signal_events": ("5.6", "5.11", "5.12"),
}
SHORT = ("ext_oneapi_ipc_physical_memory", "two_way_events")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("aspect", sampled(WITHOUT, SHORT))
def test_an_adapter_that_lacks_an_aspect(aspect: str) -> None:
    # The adapter says that it lacks the aspect: the core has to refuse, and the report to say why.
    report = runner.run("mock:0", rules=WITHOUT[aspect], environment=planting(f"lacks:{aspect}"), timeout=180)
    assert report.good, report.as_text()
    if aspect != "ext_oneapi_per_event_profiling":  # which no rule is about as a whole
        told = [part for each in report.outcomes for part in each.parts if part.aspect == aspect]
        assert told, report.as_text()
        assert all(part.status == "not supported" and "the harness says so" in part.reason for part in told)


def test_a_feature_that_is_not_refused_is_a_failure() -> None:
    report = runner.run("mock:0", rules=("4.1",), environment=planting("unrefused:ext_oneapi_virtual_mem"), timeout=100)
    assert report.failed == ["4.1"], report.as_text()
    assert "its use is not refused" in report.as_text()
