"""AMD's own library without a GPU: it is loaded, has the functions, and says that there is no device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from forwarding import ROOT

FOLDER = ROOT / "bookworm" / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
ABSENT = {"hipLaunchHostFunc"}  # 5.2.3 declares it and lacks it

pytestmark = [
    pytest.mark.drivers("plain"),
    pytest.mark.skipif(not (FOLDER / "libamdhip64.so.5").exists(), reason="AMD's library is not here"),
]

ASKED = """
import ctypes, json, os
from xpushare.adapters.hip import _numbers as n
library = ctypes.CDLL(os.environ["XPUSHARE_HIP_LIBRARY"])
library.hipGetErrorName.restype = ctypes.c_char_p
version = ctypes.c_int()
print(json.dumps({
    "missing": [name for name in n.FUNCTIONS if not hasattr(library, name)],
    "version": library.hipRuntimeGetVersion(ctypes.byref(version)) or version.value,
    "init": library.hipInit(0),
    "names": {each.name: library.hipGetErrorName(each).decode() for each in n.Error},
}))
"""
LISTED = """
import xpushare as xs
from xpushare import adapters
found = adapters.adapter("hip")
print([found.devices(), found.why_none()])
"""


def said(program: str) -> str:
    paths = filter(None, (str(FOLDER), os.environ.get("LD_LIBRARY_PATH")))
    env = {
        **os.environ,
        "XPUSHARE_HIP_LIBRARY": str(FOLDER / "libamdhip64.so.5"),
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_functions_versions_and_codes() -> None:
    found = json.loads(said(ASKED))
    print(f"AMD's library says version {found['version']}; hipInit returns {found['init']}")
    assert set(found["missing"]) == ABSENT
    assert found["init"] in (100, 101)
    # It has no names for what came later.
    assert {name: text for name, text in found["names"].items() if text != "hipErrorUnknown"}.items() >= {
        ("InvalidValue", "hipErrorInvalidValue"),
        ("NoDevice", "hipErrorNoDevice"),
        ("NotReady", "hipErrorNotReady"),
    }
    for name, text in found["names"].items():
        assert text in (f"hipError{name}", "hipErrorUnknown"), name


def test_the_adapter_says_why_there_is_no_device() -> None:
    text = said(LISTED)
    print(text)
    assert "hipInit failed with hipErrorNoDevice (100)" in text or "hipErrorInvalidDevice (101)" in text
