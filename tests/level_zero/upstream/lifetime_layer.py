"""The validation layer's check of handle lifetimes refuses right programs.

    ZE_ENABLE_HANDLE_LIFETIME=1 build/level-zero/soft/bin/python tests/level_zero/upstream/lifetime_layer.py

The layer does not know the driver's default context, so nothing can be created in it. It takes an immediate command list
for a closed one, so nothing can be appended, although immediate lists are never closed. Without the check the same
program works.
"""

from __future__ import annotations

import os
import sys
from ctypes import byref, c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bare import Bare

from xpushare.adapters.level_zero._bindings import RESULTS, ze_command_queue_desc_t, ze_context_desc_t


def main() -> None:
    bare = Bare()
    made, own = c_void_p(), c_void_p()
    desc = ze_command_queue_desc_t()
    first = bare.ze["zeCommandListCreateImmediate"](bare.context, bare.device, byref(desc), byref(made))
    print(f"a command list in the default context: {RESULTS[first]}")
    bare("zeContextCreate", bare.driver, byref(ze_context_desc_t()), byref(own))
    bare("zeCommandListCreateImmediate", own, bare.device, byref(desc), byref(made))
    bare.context = own
    memory = bare.allocate(8 << 20)
    assert memory.value is not None
    second = bare.ze["zeCommandListAppendMemoryCopy"](made, memory, memory.value + 4096, 4096, None, 0, None)
    print(f"a copy on an immediate command list: {RESULTS[second]}")
    print("SEEN: right calls are refused" if first or second else "not seen", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
