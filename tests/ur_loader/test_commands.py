"""Commands and waits that need no lock of Python's, in a process that runs Python."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_loader import Run

import xpushare as xs
from sampling import sampled

SCRIPT = Path(__file__).with_name("calls_in_python.py")
FORKS = "ignore:This process:DeprecationWarning"  # from 3.12 on, of a process with threads
HOST, DEVICE, HOLDS = "native_cpu:0", "mock:0", "mock:1"  # queues of the last hold what waits


HARDWARE = "cuda:0", "hip:0", "level_zero:0"


def start(library: Path, shim: Path, device: str, scenario: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), scenario, str(shim), str(library), *map(str, arguments)],
        env={**os.environ, "ONEAPI_DEVICE_SELECTOR": device, "PYTHONWARNINGS": FORKS},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(library: Path, shim: Path, device: str, scenario: str, *arguments: object) -> str:
    """What it says on stderr."""
    process = start(library, shim, device, scenario, *arguments)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "good\n"), errors
    return errors


@pytest.mark.parametrize("device", sampled([HOST, DEVICE, HOLDS], [HOST]))
def test_no_deadlock_with_a_lock_of_the_program(library: Path, shim: Path, device: str) -> None:
    assert run(library, shim, device, "inversion") == ""


@pytest.mark.parametrize("scenario", ["inversion", "waits_with_pythons_lock", "references", "ends"])
@pytest.mark.parametrize("device", HARDWARE)
def test_a_vendors_device(library: Path, shim: Path, device: str, scenario: str) -> None:
    """The same over the functions that a vendor's driver names."""
    if device not in {f"{each.backend}:{each.ordinal}" for each in xs.devices()}:
        pytest.skip(f"{device} is not here")
    assert run(library, shim, device, scenario) == ""


@pytest.mark.parametrize("device", [HOST, DEVICE])
def test_who_has_pythons_lock_may_wait(library: Path, shim: Path, device: str) -> None:
    assert run(library, shim, device, "waits_with_pythons_lock") == ""


def test_commands_keep_their_order(library: Path, shim: Path) -> None:
    assert run(library, shim, HOST, "order") == ""


def test_rows(library: Path, shim: Path) -> None:
    assert run(library, shim, HOST, "rows") == ""


@pytest.mark.parametrize("device", [HOST, DEVICE])
def test_what_is_released_early(library: Path, shim: Path, device: str) -> None:
    assert run(library, shim, device, "references") == ""


def test_python_is_asked_later(library: Path, shim: Path) -> None:
    assert run(library, shim, HOST, "asked") == ""


@pytest.mark.parametrize("device", [HOST, DEVICE])
def test_properties(library: Path, shim: Path, device: str) -> None:
    assert run(library, shim, device, "properties") == ""


def test_a_busy_queue_holds_up_no_function(library: Path, shim: Path) -> None:
    assert run(library, shim, HOST, "every_function") == ""


def test_memory_is_taken_away_after_its_commands(library: Path, shim: Path) -> None:
    assert run(library, shim, HOST, "takers") == ""


def test_a_mapped_range_that_a_command_uses(library: Path, shim: Path) -> None:
    assert run(library, shim, HOST, "unmapped") == ""


def test_callbacks(library: Path, shim: Path) -> None:
    assert run(library, shim, HOST, "called_back") == ""


def test_a_command_that_fails_after_it_was_accepted(library: Path, shim: Path) -> None:
    said = run(library, shim, DEVICE, "accepted_and_failed")
    assert "urEnqueueUSMFill had been accepted, and failed: ERROR_OUT_OF_HOST_MEMORY" in said


def test_a_command_that_the_driver_refuses(library: Path, shim: Path) -> None:
    said = run(library, shim, DEVICE, "refused")
    assert "urEnqueueUSMFill had been accepted, and failed: ERROR_" in said


def test_a_command_that_fails_where_nothing_is_left(library: Path, shim: Path) -> None:
    said = run(library, shim, DEVICE, "accepted_and_nothing_left")
    assert "urEnqueueUSMFill had been accepted, and failed: ERROR_OUT_OF_HOST_MEMORY" in said


def test_a_forked_child_ends_at_once(library: Path, shim: Path) -> None:
    assert run(library, shim, HOST, "forked") == ""


@pytest.mark.parametrize("device", [HOST, DEVICE])
def test_the_end_of_python(library: Path, shim: Path, device: str) -> None:
    assert run(library, shim, device, "ends") == ""


@pytest.mark.parametrize("device", sampled([HOST, DEVICE, HOLDS], [HOST]))
def test_a_lost_wait(library: Path, shim: Path, program: Run, tmp_path: Path, device: str) -> None:
    with program("owe", tmp_path, ONEAPI_DEVICE_SELECTOR=device) as exporter:
        assert exporter.stdout is not None
        assert exporter.stdout.readline() == "ready\n"
        process = start(library, shim, device, "lost", tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        exporter.kill()
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "good\n"), errors


# --- where a vendor's driver times commands, and gives out its queues -----------------------------------------------


TIMED = "times", "instants", "queue_flags", "host_tasks"


@pytest.mark.parametrize(
    ("device", "scenario"),
    [
        *itertools.product(["opencl:0", "opencl:1", "level_zero:0"], TIMED),
        *itertools.product(
            ["opencl:0", "opencl:1"], ["queues_of_opencl", "own_buffers", "no_native_event", "barriers"]
        ),
    ],
)
def test_a_device_that_is_timed(library: Path, shim: Path, device: str, scenario: str) -> None:
    if device not in {f"{each.backend}:{each.ordinal}" for each in xs.devices()}:
        pytest.skip(f"{device} is not here: scripts/opencl, scripts/level_zero")
    if not xs.Device(device).has(xs.Aspect.ext_oneapi_per_event_profiling):
        pytest.skip(xs.Device(device).support(xs.Aspect.ext_oneapi_per_event_profiling).reason)
    assert run(library, shim, device, scenario) == ""


# --- what upstream's tests ask ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "scenario"),
    sampled(
        [
            (DEVICE, "texts"), (HOST, "queue_flags"), (DEVICE, "queue_flags"), (HOST, "host_tasks"),
            (DEVICE, "host_tasks"), (HOST, "times"), (HOST, "instants"), (HOST, "timestamp"),
            (HOST, "a_device_is_not_counted"), (DEVICE, "overlaps"), (DEVICE, "own_host_pointer"),
            (HOST, "parts_of_buffers"), (HOST, "no_native_event"), (DEVICE, "no_native_event"),
            (HOST, "barriers"), (DEVICE, "barriers"), (HOST, "half_a_handle"), (HOST, "chains"),
        ],
        [
            (HOST, "queue_flags"), (HOST, "host_tasks"), (HOST, "times"), (HOST, "instants"), (DEVICE, "overlaps"),
            (HOST, "parts_of_buffers"), (HOST, "chains"),
        ],
    ),
)  # fmt: skip
def test_as_upstream_asks(library: Path, shim: Path, device: str, scenario: str) -> None:
    assert run(library, shim, device, scenario) == ""
