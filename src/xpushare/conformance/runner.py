"""Run the suite in a separate process, and read the result of each rule: passed, failed, or not supported."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from xpushare import adapters
from xpushare.common.errors import InvalidArgumentError
from xpushare.conformance.rules import RULES, Rule, select

__all__ = ["Outcome", "Part", "Report", "run"]

Status = Literal["passed", "failed", "not supported"]

_SUITE: Final = Path(__file__).parent / "suite"


@dataclass(frozen=True)
class Part:
    """The result of one test of a rule."""

    name: str
    status: Status
    aspect: str | None = None
    reason: str = ""
    message: str = ""
    seconds: float = 0.0


@dataclass
class Outcome:
    """The results of all tests of one rule."""

    rule: Rule
    parts: list[Part] = field(default_factory=list[Part])

    @property
    def status(self) -> Status:
        """Return "failed" if a test failed or there is no test result, "passed" if any test passed, otherwise "not
        supported".
        """
        found = {part.status for part in self.parts}
        if "failed" in found or not found:
            return "failed"
        return "passed" if "passed" in found else "not supported"


@dataclass
class Report:
    """The results of a run of the suite."""

    device: str
    importer_device: str
    outcomes: list[Outcome]
    seconds: float
    problem: str = ""
    """Why the suite did not finish, or an empty string if it did."""

    @property
    def failed(self) -> list[str]:
        """Return the numbers of the rules that failed."""
        return [each.rule.number for each in self.outcomes if each.status == "failed"]

    @property
    def good(self) -> bool:
        return not self.failed and not self.problem

    def count(self, status: Status) -> int:
        return sum(each.status == status for each in self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict, which `--json` prints."""
        return {
            "device": self.device,
            "importer_device": self.importer_device,
            "passed": self.count("passed"),
            "failed": self.count("failed"),
            "not_supported": self.count("not supported"),
            "problem": self.problem,
            "seconds": round(self.seconds, 1),
            "rules": [
                {
                    "rule": each.rule.number,
                    "text": each.rule.text,
                    "status": each.status,
                    "tests": [vars(part) for part in each.parts],
                }
                for each in self.outcomes
            ],
        }

    def as_text(self) -> str:
        """Return the report as readable text."""
        if self.problem and not any(each.parts for each in self.outcomes):
            return f"the suite did not start: {self.problem}"
        lines: list[str] = []
        for each in self.outcomes:
            lines.append(f"{each.status:<13}  {each.rule.number:<5}  {each.rule.text}")
            for part in each.parts:
                if part.status == "not supported":
                    lines.append(f"{'':<22}{part.name}: lacks {part.aspect or 'what it needs'}: {part.reason}")
                elif part.status == "failed":
                    lines += [f"{'':<22}{part.name}:", *(f"{'':<24}{line}" for line in part.message.splitlines())]
            if not each.parts:
                lines.append(f"{'':<22}no test of it ran")
        where = self.device if self.device == self.importer_device else f"{self.device} -> {self.importer_device}"
        counted = ", ".join(f"{self.count(status)} {status}" for status in ("passed", "failed", "not supported"))
        lines += ["", f"{where}: {counted} of {len(self.outcomes)} rules in {self.seconds:.1f} s"]
        if self.problem:
            lines.append(self.problem)
        return "\n".join(lines)


def _environment(folder: str, changed: Mapping[str, str]) -> dict[str, str]:
    found = {**os.environ, **changed}
    for name in ("XPUSHARE_KEY_FILE", "PYTEST_ADDOPTS"):
        found.pop(name, None)
    found["XPUSHARE_RUNTIME_DIR"] = folder
    found["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    found["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [found.get("PYTHONPATH")])])
    if not found.get("ONEAPI_DEVICE_SELECTOR"):
        # Rules about another backend's device find one on every machine.
        hidden = [each.backend for each in adapters.vendors() if each.selected_only]
        found["ONEAPI_DEVICE_SELECTOR"] = ";".join(("*:*", *(f"{backend}:*" for backend in hidden)))
    return found


def run(
    device: str,
    importer_device: str | None = None,
    *,
    rules: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    stop: bool = False,
    timeout: float = 600.0,
    rule_timeout: float = 60.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Run the suite on a device, with the importing process on `importer_device`.

    `rules` are numbers of rules or sections, as `rules.select` takes them. If `rules` is empty, all rules are tested.
    `stop` ends the run at the first failure. `environment` changes variables of the suite's processes. `timeout` limits
    the whole run and `rule_timeout` each test, in seconds. `progress(done, tests, rule)` is called during the run.
    Raises `InvalidArgumentError` if pytest is missing or a rule is unknown.
    """
    if importlib.util.find_spec("pytest") is None:
        raise InvalidArgumentError("the suite needs pytest: pip install '.[conformance]' in a checkout of xpushare")
    importer = importer_device or device
    wanted = select(rules)
    outcomes = {number: Outcome(rule) for number, rule in RULES.items() if not wanted or number in wanted}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="xpushare-conformance-") as folder:
        results = Path(folder, "results")
        output = Path(folder, "output")
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "xpushare.conformance.plugin", "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", str(_SUITE), "-W", "error", "--tb", "short",
            "--basetemp", str(Path(folder, "tmp")),
            "--device", device, "--importer-device", importer, "--rules", ",".join(wanted), "--results", str(results),
            "--rule-timeout", str(rule_timeout), "--runner", str(os.getpid()), *(["-x"] if stop else []), str(_SUITE),
        ]  # fmt: skip
        private = Path(folder, "runtime")
        private.mkdir(mode=0o700)
        with output.open("w") as sink:
            process = subprocess.Popen(
                command,
                env=_environment(str(private), environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
            try:
                problem = _follow(process, results, outcomes, began + timeout, progress)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if problem:
            problem += "\n" + "\n".join(output.read_text().splitlines()[-60:])
    return Report(device, importer, list(outcomes.values()), time.monotonic() - began, problem)


def _follow(
    process: subprocess.Popen[bytes],
    results: Path,
    outcomes: dict[str, Outcome],
    deadline: float,
    progress: Callable[[int, int, str], None] | None,
) -> str:
    """Read results as they arrive, until the process ends. Returns why the run failed, or an empty string if it did
    not.
    """
    tests = done = at = 0
    running: tuple[str, str] | None = None
    while True:
        ended = process.poll()
        text = results.read_text() if results.exists() else ""
        complete = text[at : text.rfind("\n") + 1]
        at += len(complete)
        for line in complete.splitlines():
            event = json.loads(line)
            if event["event"] == "collected":
                tests = event["tests"]
            elif event["event"] == "started":
                running = event["rule"], event["part"]
            else:
                running = None
                done += 1
                parts = outcomes[event["rule"]].parts
                known = next((part for part in parts if part.name == event["part"]), None)
                if known is not None:  # the test passed, but its teardown failed
                    parts.remove(known)
                parts.append(
                    Part(
                        event["part"],
                        event["status"],
                        event["aspect"],
                        event["reason"],
                        event["message"],
                        event["seconds"],
                    )
                )
            if progress is not None:
                progress(done, tests, event.get("rule", ""))
        if ended is not None:
            break
        if time.monotonic() > deadline:
            process.kill()
            return "the suite did not end in time and was killed"
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
    if running is not None:
        number, part = running
        outcomes[number].parts.append(Part(part, "failed", message=f"the suite's process ended in it (status {ended})"))
    if running is not None or ended not in (0, 1) or not tests:
        return f"the suite's process ended with status {ended}"
    return ""
