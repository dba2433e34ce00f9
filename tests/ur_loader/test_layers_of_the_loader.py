"""What the loader's lifetime layer says of right calls, whoever answers them: an adapter that only makes handles."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_loader import CC, names

from xpushare.ur.loader._builds import BUILDS, ORDER

ROOT = Path(os.environ.get("UR_LOADER", Path(__file__).parents[2] / "build" / "ur-loader"))
LOADER = ROOT / "lib" / "libur_loader.so.0"

CALLS = """
import ctypes, sys
from ctypes import byref, c_size_t, c_uint64, c_void_p
loader = ctypes.CDLL(sys.argv[1])
assert loader.urLoaderInit(0, None) == 0
adapter, platform, device, context, queue, event, opened, physical, memory = (c_void_p() for _ in range(9))
data, status = ctypes.create_string_buffer(256), c_uint64()

def call(name, *arguments):
    print(name, flush=True)
    assert getattr(loader, name)(*arguments) == 0

call("urAdapterGet", 1, byref(adapter), None)
call("urPlatformGet", adapter, 1, byref(platform), None)
call("urDeviceGet", platform, 1, 1, byref(device), None)
call("urContextCreate", 1, byref(device), None, byref(context))
call("urQueueCreate", context, device, None, byref(queue))
call("urUSMDeviceAlloc", context, device, None, None, c_size_t(64), byref(memory))
call("urUSMFree", context, memory)
call("urEventCreateExp", context, device, (c_uint64 * 3)(0x8000), byref(event))
call("urEnqueueEventsWaitWithBarrierExt", queue, None, 0, None, byref(event))
call("urIPCOpenEventHandleExp", context, data, c_size_t(256), byref(opened))
call("urEventGetInfo", opened, 3, c_size_t(4), byref(status), None)
call("urEventRelease", opened)
call("urIPCOpenPhysMemHandleExp", context, device, data, c_size_t(256), byref(physical))
call("urIPCClosePhysMemHandleExp", context, physical)
print("end", flush=True)
"""


@pytest.mark.skipif(not LOADER.exists(), reason="Unified Runtime's loader is not here: scripts/ur_loader setup")
def test_its_messages_do_not_depend_on_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "names.h").write_text(names(BUILDS[0]))
    (tmp_path / "getters.h").write_text("\n".join(f"GETTER({getter})" for getter in ORDER[BUILDS[0]].split()))
    adapter, source = tmp_path / "libur_adapter_still.so", Path(__file__).with_name("still.c")
    subprocess.run([CC, "-w", "-shared", "-fPIC", f"-I{tmp_path}", source, "-o", adapter], check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", CALLS, LOADER],
        env={
            **os.environ,
            "UR_ADAPTERS_FORCE_LOAD": str(adapter),
            "UR_ENABLE_LAYERS": "UR_LAYER_FULL_VALIDATION",
            "UR_LOG_VALIDATION": "level:warning;output:stdout",
        },
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = {}
    function = ""
    for line in done.stdout.partition("end\n")[0].splitlines():  # what is retained comes after that
        message = re.fullmatch(r"<VALIDATION>\[ERROR\]: (.*)", line)
        if message:
            said[function] = re.sub(r"0x\w+", "0x…", message[1])
        else:
            function = line
    assert said == {
        "urUSMDeviceAlloc": "There are no valid references to handle 0",
        "urEnqueueEventsWaitWithBarrierExt": "Handle 0x… already exists",
        "urEventGetInfo": "There are no valid references to handle 0x…",
        "urEventRelease": "Attempting to release nonexistent handle 0x…",
        "urIPCClosePhysMemHandleExp": "There are no valid references to handle 0x…",
    }
