"""The suite itself: each rule has a test, the page is fresh, the command and its report."""

from __future__ import annotations

import ast
import graphlib
import json
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from faults.mutants import planting
from harness import wait_until
from xpushare import cli
from xpushare.common.errors import InvalidArgumentError
from xpushare.conformance import plugin, rules, runner
from xpushare.conformance.rules import RULES

ROOT = Path(__file__).parents[2]
SUITE = Path(rules.__file__).parent / "suite"


def named() -> list[tuple[str, str]]:
    """(test, number) of every test."""
    found = []
    for path in sorted(SUITE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                calls = [
                    each for each in node.decorator_list
                    if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "rule"
                ]  # fmt: skip
                assert len(calls) == 1, f"{path.name}: {node.name} names {len(calls)} rules"
                (number,) = (ast.literal_eval(each) for each in calls[0].args)
                found.append((f"{path.name}: {node.name}", number))
    return found


def test_every_rule_has_a_test_and_every_test_a_rule() -> None:
    tests = named()
    assert {number for _test, number in tests} == RULES.keys()
    for test, number in tests:
        assert f"test_{number.split('.')[0]}_" in test, f"{test} is in another section's module than rule {number}"


def test_every_module_of_the_suite_can_be_imported() -> None:
    modules = ", ".join(f"xpushare.conformance.suite.{path.stem}" for path in sorted(SUITE.glob("test_*.py")))
    options = ("-W", "ignore:Unknown pytest.mark.rule")  # the plugin of the suite declares it
    subprocess.run([sys.executable, *options, "-c", f"import {modules}"], timeout=60, check=True)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no rule 9\.9"):
        rules.rule("9.9")


def test_the_page_is_fresh() -> None:
    page = ROOT / "docs" / "conformance.md"
    assert page.read_text() == rules.markdown(), "stale: python -m xpushare.conformance.rules > docs/conformance.md"


def test_mappings_of_a_graphics_device_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those that a driver keeps over a pretended kernel driver, which is told."""

    def more() -> int:
        monkeypatch.delenv("XPUSHARE_CONFORMANCE_KEPT", raising=False)
        found = plugin.counts()[1]
        monkeypatch.setenv("XPUSHARE_CONFORMANCE_KEPT", "memfd:dri/renderD128")
        return found - plugin.counts()[1]

    fd = os.memfd_create("dri/renderD128")
    os.truncate(fd, mmap.PAGESIZE)
    with mmap.mmap(fd, mmap.PAGESIZE):
        os.close(fd)
        wait_until(lambda: more() == 1)  # mappings of earlier tests may end meanwhile
    wait_until(lambda: more() == 0)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", "--device", "native_cpu:0", "--rules", "3.1a,3.5g", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["passed"], found["failed"], found["not_supported"]) == ("native_cpu:0", 1, 0, 1)
    (passed, lacking) = found["rules"]
    assert (passed["rule"], passed["status"], len(passed["tests"])) == ("3.1a", "passed", 3)
    assert lacking["tests"][0]["aspect"] == "foreign_memory"
    assert "private to this process" in lacking["tests"][0]["reason"]
    assert cli.main(["conformance", "--device", "native_cpu:0", "--rules", "3.5g"]) == 0
    text = capsys.readouterr().out
    assert "not supported  3.5g" in text
    assert "native_cpu:0: 0 passed, 0 failed, 1 not supported of 1 rules" in text


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES)
    assert cli.main(["conformance", "--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(RULES)


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (("--device", "native_cpu:0", "--rules", "9.9"), "there is no rule 9.9"),
        (("--device", "native_cpu:7"), "native_cpu:7"),
        (("--timeout", "0"), "0 is not a number of seconds above 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["conformance", *arguments])
        assert ended.value.code == 2
        printed = capsys.readouterr().err
        assert "usage: xpushare conformance" in printed
        assert said in printed


def test_without_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(InvalidArgumentError, match=r"pip install '\.\[conformance\]'"):
        runner.run("native_cpu:0")


def test_failures_are_reported() -> None:
    report = runner.run("native_cpu:0", rules=("3.5c",), environment=planting("put_twice"), timeout=60)
    assert report.failed == ["3.5c"]
    assert not report.good
    assert "failed         3.5c" in report.as_text()
    assert report.as_dict()["failed"] == 1


def test_a_suite_that_ends_early_is_reported() -> None:
    report = runner.run("native_cpu:0", rules=("2.9", "2.10"), environment=planting("crash"), timeout=60)
    assert report.failed
    assert report.problem
    assert "the suite's process ended" in report.as_text()


def test_a_suite_that_does_not_start_names_the_cause_alone() -> None:
    report = runner.run("native_cpu:0", environment={"PYTEST_PLUGINS": "no_such_plugin"}, timeout=60)
    assert not report.good
    assert report.as_text().startswith("the suite did not start: the suite's process ended with status ")
    assert "no_such_plugin" in report.as_text()
    assert "no test of it ran" not in report.as_text()


def test_a_suite_that_hangs_is_ended() -> None:
    report = runner.run("native_cpu:0", rules=("2.9",), environment=planting("hang"), timeout=60, rule_timeout=1)
    assert report.failed == ["2.9"]
    assert "the time for one test is over" in report.as_text()
    report = runner.run("native_cpu:0", rules=("2.9",), environment=planting("hang"), timeout=3, rule_timeout=30)
    assert not report.good
    assert "did not end in time" in report.problem


def test_it_needs_nothing_of_the_tests() -> None:
    modules = "xpushare.conformance.harness, xpushare.conformance.actions, xpushare.conformance.runner"
    code = f"import sys, {modules}; print('pytest' in sys.modules, 'cloudpickle' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_it_names_no_backend() -> None:
    """What the suite asks of a device it asks through aspects, properties and the public API."""
    names = re.compile(r"(?<!__)\b(cuda|hip|level_zero|opencl|native_cpu|mock)\b", re.IGNORECASE)
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted(Path(rules.__file__).parent.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if names.search(line)
    ]
    assert not found, "\n".join(found)


def test_its_modules_import_no_circle() -> None:
    package = Path(rules.__file__).parent
    names = {
        path: ".".join(("xpushare", "conformance", *path.relative_to(package).with_suffix("").parts))
        for path in package.rglob("*.py")
    }
    modules = {path: name.removesuffix(".__init__") for path, name in names.items()}
    imports: dict[str, set[str]] = {}
    for path, module in modules.items():
        found = imports[module] = set()
        for node in ast.walk(ast.parse(path.read_text())):  # those inside functions, too
            if isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{each.name}" for each in node.names}
                found |= (whole & set(modules.values())) or ({str(node.module)} & set(modules.values()))
    assert sum(map(len, imports.values())) > len(modules)
    graphlib.TopologicalSorter(imports).prepare()  # CycleError names the circle
