"""The tables come from the declarations, and every declared function can be called through them."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpushare.ur._spec import FUNCTIONS, INFOS
from xpushare.ur.loader import _bridge
from xpushare.ur.loader._builds import BUILDS, OF_THE_LOADER, ORDER, TABLES
from xpushare.ur.loader._tables import NUMBERED, kept_queries, parameters


@pytest.mark.parametrize("name", NUMBERED)
def test_every_function_can_be_called(name: str) -> None:
    """Its C parameters fit its declaration; this is where a new kind of argument is missing."""
    boxes = _bridge.Boxes(lambda: 0, lambda _handle, _more: None, lambda _handle: False)
    _bridge.wrapper(FUNCTIONS[name], boxes, lambda *_arguments: None)


def test_every_function_is_in_a_table() -> None:
    in_tables = {name for each in TABLES.values() for names in each.values() for name in names.split()}
    assert FUNCTIONS.keys() <= in_tables | set(OF_THE_LOADER.split())
    assert all(parameters(name) is not None for name in in_tables)


def test_answers_that_are_kept() -> None:
    """What stays the same as long as a handle lives."""
    kept = {name: kept_queries(FUNCTIONS[name]) for name in NUMBERED}
    assert {name for name, queries in kept.items() if queries} == {
        f"ur{kind}GetInfo"
        for kind in ("Adapter", "Platform", "Device", "Context", "Queue", "Mem", "PhysicalMem", "USMPool")
    }
    names = {INFOS[FUNCTIONS[name].returns[5:]].enumeration(each).name for name, all_ in kept.items() for each in all_}
    assert names.isdisjoint({"REFERENCE_COUNT", "GLOBAL_MEM_FREE", "EMPTY", "USED_CURRENT_EXP"})


def test_every_build_is_whole() -> None:
    for build in BUILDS:
        for getter in ORDER[build].split():
            assert sum(build in builds.split() for builds in TABLES[getter]) == 1


def test_the_real_headers(pytestconfig: pytest.Config) -> None:
    """What was restated is what stands in the wheel, where that is here (scripts/ur_loader)."""
    headers = pytestconfig.rootpath / "build" / "ur-loader" / "include" / "unified-runtime"
    if not headers.exists():
        pytest.skip("Unified Runtime is not here: scripts/ur_loader setup")
    words = Path(headers, "ur_ddi.h").read_text().split()
    for getter in ORDER[BUILDS[0]].split():
        [names] = [names for builds, names in TABLES[getter].items() if BUILDS[0] in builds.split()]
        slots = [f"ur_pfn{name[2:]}_t" for name in names.split()]
        begin = next(i for i, word in enumerate(words) if word == slots[0] and words[i + 1].startswith("pfn"))
        assert [each for each in words[begin : begin + 2 * len(slots)] if each.startswith("ur_pfn")] == slots
