"""A SYCL program on SYCL's own runtime, which scripts/ur_loader sets up: three kinds, a Python peer in both directions,
and what the loader's layers say of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare as xs
from xpushare.ur.loader import LIBRARY, interpreter

ROOT = Path(os.environ.get("UR_LOADER", Path(__file__).parents[2] / "build" / "ur-loader"))
PROGRAM = ROOT / "bin" / "share"
PEER = Path(__file__).parents[2] / "examples" / "sycl" / "peer.py"
HOST = {"ONEAPI_DEVICE_SELECTOR": "native_cpu:0"}
LEVEL_ZERO = {  # the tests' own software driver, in the place of Level Zero's loader
    "ONEAPI_DEVICE_SELECTOR": "level_zero:0",
    "ZE_ENABLE_ALT_DRIVERS": str(ROOT / "level-zero" / "libze_loader.so.1"),
    "LD_LIBRARY_PATH": str(ROOT / "level-zero"),
}

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="SYCL's runtime is not here: scripts/ur_loader setup")


def run(first: list[str], second: list[str], **settings: str) -> str:
    """`first` exports and starts `second`; what both said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XPUSHARE_PYTHON", sys.executable)
        if interpreter().wrong:
            pytest.skip(interpreter().wrong)
    done = subprocess.run(
        [*first, *second],
        env={**os.environ, "XPUSHARE_PYTHON": sys.executable, "UR_ADAPTERS_FORCE_LOAD": str(LIBRARY), **settings},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("settings", [HOST, LEVEL_ZERO], ids=["native_cpu", "level_zero"])
@pytest.mark.parametrize("pair", ["C++ C++", "C++ Python", "Python C++"])
def test_two_processes_share_all_kinds(pair: str, settings: dict[str, str], tmp_path: Path) -> None:
    programs = {"C++": [str(PROGRAM), str(tmp_path)], "Python": [sys.executable, str(PEER), str(tmp_path)]}
    exporter, importer = pair.split()
    said = run(programs[exporter], programs[importer], **settings)
    assert re.fullmatch(rf"{re.escape(importer)} imported .*: good\n{re.escape(exporter)} exported .*: good\n", said)


def test_pools_and_allocations_in_the_order_of_a_queue() -> None:
    assert run([str(ROOT / "bin" / "pools")], []) == "good\n"


@pytest.mark.parametrize("settings", [HOST, LEVEL_ZERO], ids=["native_cpu", "level_zero"])
@pytest.mark.parametrize("program", ["fills", "fills-now"])
def test_fills_need_no_kernel(program: str, settings: dict[str, str]) -> None:
    """On Level Zero, SYCL would make a kernel of a fill."""
    assert re.fullmatch(r"12 bytes: filled\n.*: good\n", run([str(ROOT / "bin" / program)], [], **settings))


@pytest.mark.parametrize("device", ["native_cpu:0", "opencl:0"])
def test_kernels_are_refused_with_exceptions(device: str) -> None:
    if device not in {f"{each.backend}:{each.ordinal}" for each in xs.devices()}:
        pytest.skip(f"{device} is not here")
    said = run([str(ROOT / "bin" / "kernels")], [], ONEAPI_DEVICE_SELECTOR=device)
    assert said.endswith("good\n")
    assert said.count("SPIR-V: ") == 1


def test_waits_that_libsycl_drops(tmp_path: Path) -> None:
    """What docs/cpp.md says: in the queue that signalled the event last, though another process has done so since."""
    peer = [sys.executable, str(Path(__file__).with_name("late_signal.py")), str(tmp_path)]
    assert run([str(ROOT / "bin" / "waits"), str(tmp_path)], peer) == (
        "enqueue_wait_event: did not wait\n"
        "enqueue_wait_events: did not wait\n"
        "ext_oneapi_submit_barrier: did not wait\n"
        "wait of another queue: waited\n"
        "event opened again: waited\n"
        "event::wait: waited\n"
    )


LAYERS = "UR_LAYER_FULL_VALIDATION,UR_LAYER_TRACING"


def test_the_loaders_layers(tmp_path: Path) -> None:
    """Validation finds nothing but what its own books lack; tracing prints arguments by name."""
    said = run(
        [str(PROGRAM), str(tmp_path)], [str(PROGRAM), str(tmp_path)],
        UR_ENABLE_LAYERS=LAYERS,
        UR_LOG_VALIDATION="level:warning;output:stdout", UR_LOG_TRACING="level:info;output:stdout",
    )  # fmt: skip
    traced = dict(re.findall(r"<--- (ur\w+)\((.*)\) -> UR_RESULT_SUCCESS", said))
    assert re.fullmatch(
        r"\.hContext = 0x\w+, \.hDevice = 0x\w+, \.pIPCMemHandleData = 0x\w+, "
        r"\.ipcMemHandleDataSize = 256, \.ppMem = .*",
        traced["urIPCOpenMemHandleExp"],
    )
    opened = set(re.findall(r"urIPCOpen(?:Event|PhysMem)HandleExp\(.*= 0x\w+ \((0x\w+)\)\) ->", said))
    signalled = set(re.findall(r"urEnqueueEventsWaitWithBarrierExt\(.*\.phEvent = 0x\w+ \((0x\w+)\)\) ->", said))
    assert opened
    assert signalled
    # Not those of this package's own layers, which have the same names, and name objects: SYCL ends with references to
    # the adapter and the device.
    messages = set(re.findall(r"<VALIDATION>\[\w+\]: ([^<\n]*)$", said, re.MULTILINE))
    not_in_its_books = {
        "There are no valid references to handle 0",  # no pool, as an allocation may have none
        *(f"There are no valid references to handle {each}" for each in opened),  # it does not count opens
        *(f"Handle {each} already exists" for each in signalled),  # a reusable event, given in and back
    }
    assert messages <= not_in_its_books
