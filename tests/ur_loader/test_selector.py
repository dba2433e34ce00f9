"""The loader reads `ONEAPI_DEVICE_SELECTOR` itself, by its own numbers: it must see all devices of a platform."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare as xs
from xpushare import ur
from xpushare.ur._objects import Counted
from xpushare.ur._spec import FUNCTIONS
from xpushare.ur.loader import LIBRARY, _bridge

ROOT = Path(os.environ.get("UR_LOADER", Path(__file__).parents[2] / "build" / "ur-loader"))
LOADER = ROOT / "lib" / "libur_loader.so.0"


class Handles(_bridge.Boxes):
    """As many handles as are needed, which nobody counts."""

    def __init__(self) -> None:
        super().__init__(lambda _count: 0, lambda _handle, _more: None, lambda _handle: False)
        self.kept: list[Counted] = []

    def put(self, found: Counted) -> int:
        self.kept.append(found)
        self.objects[len(self.kept)] = found
        return len(self.kept)


@pytest.mark.usefixtures("library")
def test_all_devices_go_to_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:1")
    boxes = Handles()
    asked = _bridge.wrapper(FUNCTIONS["urDeviceGet"], boxes, lambda *_arguments: None)
    [platform] = ur.urPlatformGet(ur.urAdapterGet()[0])
    count, found = ctypes.c_uint32(), (ctypes.c_uint64 * 8)()
    given = boxes.put(platform), int(ur.DeviceType.ALL), 8, ctypes.addressof(found), ctypes.addressof(count)
    assert asked(*given) == 0
    assert count.value == 2
    assert [each.shared.ordinal for each in ur.urDeviceGet(platform, ur.DeviceType.ALL)] == [1]


READ = """
import ctypes, os, sys
loader = ctypes.CDLL(sys.argv[1])
adapter, platform = ctypes.c_void_p(), ctypes.c_void_p()
assert loader.urLoaderInit(0, None) == 0
assert loader.urAdapterGet(1, ctypes.byref(adapter), None) == 0
assert loader.urPlatformGet(adapter, 1, ctypes.byref(platform), None) == 0
for selector in sys.argv[2:]:
    os.environ["ONEAPI_DEVICE_SELECTOR"] = selector
    count = ctypes.c_uint32(99)
    result = loader.urDeviceGetSelected(platform, 1, 0, None, ctypes.byref(count))
    print("refused" if result else count.value)
"""
TEXT = """
native_cpu:* NATIVE_CPU:CPU native_cpu:cpu native_cpu:gpu native_cpu:fpga native_cpu:0 native_cpu:1 native_cpu:00
native_cpu:-1 native_cpu:acc native_cpu:** native_cpu:x native_cpu:0,1 native_cpu:1,0 native_cpu:1,gpu native_cpu:*;
native_cpu:*, native_cpu:*;; native_cpu:0,, native_cpu: native_cpu native_cpu:0:1 native_cpu:0.0 native_cpu:*.*
native_cpu:0.*.* native_cpu:0.0.0.0 native_cpu:*.0 native_cpu:1.*.2 native_cpu:cpu.cpu *:* *:cpu *:gpu *:0 *:1 **:* :*
*: * foo:* foo:0;native_cpu:* ; : ! !: !native_cpu:* !native_cpu:0 !native_cpu:1 !native_cpu:gpu !native_cpu:cpu
!native_cpu: !*:* !*:gpu *:*;!native_cpu:* native_cpu:0;!native_cpu:0 !native_cpu:0;native_cpu:* native_cpu:0;!*:gpu
native_cpu:0;!*:cpu cuda:*;native_cpu:0 opencl:gpu;!native_cpu:gpu
"""
FORMS = TEXT.split()


@pytest.mark.usefixtures("library")
@pytest.mark.skipif(not LOADER.exists(), reason="Unified Runtime's loader is not here: scripts/ur_loader setup")
def test_selectors_are_read_as_the_loader_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for two: it refuses a backend that comes twice, which SYCL itself takes, as this package does, and its answer
    for a platform whose backend no term names is left out.
    """
    monkeypatch.delenv("ONEAPI_DEVICE_SELECTOR", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", READ, LOADER, *FORMS],
        env={**os.environ, "UR_ADAPTERS_FORCE_LOAD": str(LIBRARY)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read: list[str] = []
    for selector in FORMS:
        try:
            read.append(str(sum(device.backend == "native_cpu" for device in xs.devices(selector))))
        except xs.InvalidArgumentError:
            read.append("refused")
    assert dict(zip(FORMS, read, strict=True)) == dict(zip(FORMS, done.stdout.split(), strict=True))


ASK = """
import ctypes, sys
loader = ctypes.CDLL(sys.argv[1])
adapter, platform, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint32()
assert loader.urLoaderInit(0, None) == 0
assert loader.urAdapterGet(1, ctypes.byref(adapter), None) == 0
assert loader.urPlatformGet(adapter, 1, ctypes.byref(platform), None) == 0
answers = []
for ask in (loader.urDeviceGet, loader.urDeviceGetSelected):
    assert ask(platform, 1, 0, None, ctypes.byref(count)) == 0
    answers.append(count.value)
print(answers)
"""


@pytest.mark.usefixtures("library")
@pytest.mark.skipif(not LOADER.exists(), reason="Unified Runtime's loader is not here: scripts/ur_loader setup")
@pytest.mark.parametrize(("selector", "answers"), [("native_cpu:0", [1, 1]), ("native_cpu:1", [1, 0])])
def test_the_loader_selects(selector: str, answers: list[int]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK, LOADER],
        env={**os.environ, "ONEAPI_DEVICE_SELECTOR": selector, "UR_ADAPTERS_FORCE_LOAD": str(LIBRARY)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{answers}\n", "")
