"""Planted faults: the suite has to notice each."""

from __future__ import annotations

import pytest

from faults import MUTANTS, mutants
from xpushare.conformance.rules import RULES

DEVICE = "native_cpu:0"
SAMPLE = (
    "put_does_nothing",
    pytest.param("generation_ignored", marks=pytest.mark.exhaustive),
    pytest.param("close_unmaps_under_views", marks=pytest.mark.exhaustive),
    pytest.param("overlapping_map", marks=pytest.mark.exhaustive),
    pytest.param("value_ahead", marks=pytest.mark.exhaustive),
    pytest.param("ur_refcount", marks=pytest.mark.exhaustive),
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
    caught = mutants.check(name, DEVICE)
    assert set(caught.rules) & set(MUTANTS[name].aim), f"{name}: caught by {caught.rules or 'nothing'}"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTANTS)
def test_all(name: str) -> None:
    assert mutants.check(name, DEVICE, full=True).rules, "it survived: a rule is missing a test"


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["--device", DEVICE, "bool_works"]) == 0
    assert "caught by 5.22" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        mutants.main(["no_such_mutant"])


def test_which_apply() -> None:
    assert [each.name for each in MUTANTS.values() if not mutants.applies(each, DEVICE)] == ["adopted_does_not_wait"]
    left_out = {each.name for each in MUTANTS.values() if not mutants.applies(each, "mock:0")}
    assert {"queue_order", "value_ahead"} <= left_out  # a device with streams has queues of its own
    assert not {"put_does_nothing", "access_ignored", "adopted_does_not_wait"} & left_out


def test_what_does_not_apply_is_left_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "applies", lambda _mutant, _device: False)
    assert mutants.main(["--device", DEVICE, "queue_order"]) == 0
    assert "does not have what these are about: queue_order" in capsys.readouterr().out
