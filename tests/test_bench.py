"""The benchmarks and the soak programs in their short forms: they run and say what they ought to. No time is judged."""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import Child
from xpushare import InvalidArgumentError, cli
from xpushare.bench import SCENARIOS, measure
from xpushare.bench.measure import Row, alternate, compare, spread
from xpushare.cli import bench

ROOT = Path(__file__).parent.parent
SOAK = (
    "handles", "kills", "channel_kills", "cycles", "many_events", "lost_peers", "schedules", "hostile", "arenas",
    "reuse", "interrupts",
)  # fmt: skip
LONG = ("eight_workers", "read_once")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )


def check_row(row: Row) -> None:
    assert row.ours.samples > 0
    assert row.ours.low <= row.ours.median <= row.ours.high
    if row.theirs is not None:
        assert row.other
        assert row.theirs.samples > 0
        if row.ratio is not None:
            assert row.ratio == pytest.approx(row.ours.median / row.theirs.median, abs=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.exhaustive if each in LONG else ()) for each in SCENARIOS]
)
def test_scenario(name: str) -> None:
    """Each scenario measures something in its short form and breaks nothing."""
    found = bench.collect(SCENARIOS, [name], quick=True)
    assert not found["failed"]
    rows: list[Row] = found["rows"]
    assert rows
    for row in rows:
        assert row.scenario == name
        check_row(row)
    # Another run may be under way: a segment without its process is one that was left.
    segments = [each.split("-") for each in os.listdir("/dev/shm") if each.startswith("xpushare-bench-")]
    assert not [each for each in segments if not Path("/proc", each[2]).exists()]


@pytest.mark.exhaustive
def test_floors() -> None:
    """The project's own scenarios run by the same command."""
    done = command("benchmarks.floors", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    assert {row["scenario"] for row in json.loads(done.stdout)["rows"]} == {
        "faces",
        "futex",
        "import_time",
        "map_unmap",
    }


@pytest.mark.parametrize("device", ["native_cpu:0", pytest.param("mock:0", marks=pytest.mark.exhaustive)])
def test_the_time_of_our_own_code(device: str) -> None:
    done = command("benchmarks.own_time", "--rounds", "3", "--device", device)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:]
    assert [line[:22].split() for line in lines] == [
        ["open", "before", "hot"], ["open", "before", "cold"], ["new", "hot"], ["new", "cold"],
    ]  # fmt: skip
    for line in lines:
        share, attach, both = (float(text) for text in re.findall(r"([\d.]+) \[", line))
        assert 0 < max(share, attach) < both


def test_command(tmp_path: Path) -> None:
    """The command prints a table and writes the JSON that it says."""
    file = tmp_path / "bench.json"
    done = command("xpushare", "bench", "--quick", "--only", "already_open", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "open and close, already open" in done.stdout
    assert "load average at start" in done.stdout
    found: dict[str, Any] = json.loads(file.read_text())
    assert found["quick"]
    assert not found["failed"]
    assert {"kernel", "python", "cpu_count", "affinity", "load_average"} <= set(found["machine"])
    (row,) = found["rows"]
    assert row["theirs"]["samples"] == row["ours"]["samples"] > 0


def test_json_alone() -> None:
    done = command("xpushare", "bench", "--quick", "--only", "already_open", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]


def test_the_list_as_json(tmp_path: Path) -> None:
    done = command("xpushare", "bench", "--list", "--json")
    listed = json.loads(done.stdout)
    assert [each["scenario"] for each in listed] == list(SCENARIOS)
    assert all(each["text"] for each in listed)
    assert command("xpushare", "bench", "--list", "--json", str(tmp_path / "list.json")).returncode == 0
    assert json.loads((tmp_path / "list.json").read_text()) == listed


def test_list_names_every_scenario() -> None:
    done = command("xpushare", "bench", "--list")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(SCENARIOS)


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        compare("one", "faster", [1.0, 2.0, 3.0], "theirs", [10.0, 20.0]),
        compare("two", "slower", [30.0], "theirs", [10.0]),
        Row("three", "alone", "us", spread([1.0])),
    ]
    file = tmp_path / "plot.png"
    measure.plot({"cpu": "a", "kernel": "b", "python": "c"}, rows, str(file))
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    assert cli.main(["bench", "--plot", "x.png"]) == 1
    assert (
        capsys.readouterr().err
        == "xpushare: --plot needs matplotlib: pip install '.[bench]' in a checkout of xpushare\n"
    )


def test_wrong_names() -> None:
    with pytest.raises(InvalidArgumentError, match="no scenario"):
        bench.collect(SCENARIOS, ["nothing"])
    with pytest.raises(InvalidArgumentError, match="native_cpu"):
        bench.collect(SCENARIOS, ["already_open"], device="mock:0")


def test_a_broken_scenario_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The others go on, and the exit status says that something broke."""

    def broken(_settings: object) -> list[Row]:
        raise OSError("no such thing")

    monkeypatch.setitem(SCENARIOS, "read_once", broken)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    assert bench.run(parser.parse_args(["--quick", "--only", "read_once", "already_open"])) == 1
    shown = capsys.readouterr().out
    assert "FAILED read_once: OSError: no such thing" in shown
    assert "open and close, already open" in shown


def test_the_ratio_is_that_of_the_medians() -> None:
    assert compare("s", "n", [1.0, 2.0, 9.0], "o", [4.0]).ratio == 0.5
    assert compare("s", "n", [1.0], "o", [0.0]).ratio is None


def test_alternate_takes_turns() -> None:
    """Both are measured equally often, in turn, and neither is always the first."""
    order: list[str] = []

    def sample(name: str, value: float) -> float:
        order.append(name)
        return value

    ours, theirs = alternate(4, lambda: sample("a", 1.0), lambda: sample("b", 2.0), warm_up=1)
    assert (ours, theirs) == ([1.0] * 4, [2.0] * 4)
    assert "".join(order) == "ab" + "abbaabba"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SOAK)
def test_soak_in_short(name: str) -> None:
    """The short form passes, says its seed, leaves no folder, and runpy has nothing to warn of in the children."""
    done = command(f"soak.{name}", "--quick", "--seconds", "5", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 1, quick" in done.stdout
    assert f"passed soak.{name}" in done.stdout
    assert "RuntimeWarning" not in done.stderr


def short_turns() -> tuple[int, list[tuple[bool, int]], float]:
    """Run a soak program that is done at once for a tenth of a second. Returns the status, its turns and its time."""
    from soak.common import main

    turns: list[tuple[bool, int]] = []
    sys.argv[1:] = ["--seed", "1", "--seconds", "0.1"]
    start = time.monotonic()
    status = main("turns", lambda soak: turns.append((soak.quick, soak.seed)))
    return status, turns, time.monotonic() - start


def test_a_soak_program_repeats_its_short_form_until_its_time_is_up() -> None:
    with Child() as child:
        status, turns, took = child.call(short_turns)
    assert status == 0
    assert turns[0] == (False, 1)
    assert len(turns) > 1
    assert all(quick for quick, _seed in turns[1:])
    assert len({seed for _quick, seed in turns}) == len(turns)
    assert took >= 0.1


@pytest.mark.exhaustive
def test_a_socket_of_a_process_killed_before_it_listened_is_not_left(tmp_path: Path) -> None:
    """The runtime folder may have such a socket for a minute, which no soak program waits for."""
    from soak.common import left_in

    tmp_path.chmod(0o700)
    os.mknod(tmp_path / f".socket-{int(time.monotonic()):08x}{'0' * 32}", stat.S_IFSOCK | 0o600)
    assert left_in(str(tmp_path)) == []
    assert not [*tmp_path.glob(".socket-*")]


def test_soak_programs_run_side_by_side(tmp_path: Path) -> None:
    names = "many_events", "lost_peers"
    done = command("soak", "--together", "--quick", "--seed", "1", "--results", str(tmp_path), *names)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "soak: all passed" in done.stdout
    for name in names:
        assert f"passed soak.{name}" in done.stdout
        assert "seed 1, quick" in (tmp_path / f"soak-{name}.txt").read_text()


def test_a_soak_program_that_does_not_end_has_failed() -> None:
    done = command("soak", "--limit", "0.01", "many_events")
    assert done.returncode == 1
    assert "FAILED soak.many_events: not done after 0.01 s" in done.stdout
    assert "soak: FAILED many_events" in done.stdout
