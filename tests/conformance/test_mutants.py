"""Planted faults: the suite has to notice each."""

from __future__ import annotations

import pytest

from xpushare.conformance import mutants
from xpushare.conformance.mutants import MUTANTS
from xpushare.conformance.rules import RULES

SAMPLE = (
    "put_does_nothing",
    "generation_ignored",
    "close_unmaps_under_views",
    "overlapping_map",
    "value_ahead",
    "ur_refcount",
)


def test_the_list() -> None:
    assert len(MUTANTS) >= 25
    for each in MUTANTS.values():
        assert each.aim
        assert set(each.aim) <= RULES.keys(), each.name
    assert len({each.text for each in MUTANTS.values()}) == len(MUTANTS)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str) -> None:
    caught = mutants.check(name)
    assert set(caught.rules) & set(MUTANTS[name].aim), f"{name}: caught by {caught.rules or 'nothing'}"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTANTS)
def test_all(name: str) -> None:
    assert mutants.check(name, full=True).rules, "it survived: a rule is missing a test"


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["bool_works"]) == 0
    assert "caught by 5.22" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        mutants.main(["no_such_mutant"])
