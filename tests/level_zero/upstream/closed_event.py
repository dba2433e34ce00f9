"""Intel's driver goes on to find the memory of another process's event after the event was closed.

    build/level-zero/neo/bin/python tests/level_zero/upstream/closed_event.py

When a program closes another process's counter-based event, the driver unmaps the event's counter. It still takes the
addresses of the counter for those of the freed allocation. If the program maps memory there later, and imports it, a
command on that memory does not reach it. In a process that has done more meanwhile, the command crashes.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from ctypes import byref, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bare import Bare

from xpushare.adapters.level_zero._bindings import (
    LIBRARY,
    ze_command_queue_desc_t,
    ze_event_counter_based_desc_t,
    ze_ipc_event_counter_based_handle_t,
)

FOR_EVER = c_uint64(2**64 - 1)
FIXED_NOREPLACE = 0x100000
CONTENT = b"a" * mmap.PAGESIZE


def new_list(bare: Bare) -> c_void_p:
    found = c_void_p()
    queue = ze_command_queue_desc_t(ordinal=1, flags=2, mode=2)  # of the copy engines, in-order, asynchronous
    bare("zeCommandListCreateImmediate", bare.context, bare.device, byref(queue), byref(found))
    return found


def signaller() -> None:
    """Say the handle of an event that has been signalled, and live until told to end."""
    bare, event, raw = Bare(), c_void_p(), ze_ipc_event_counter_based_handle_t()
    description = ze_event_counter_based_desc_t(flags=1 | 8, signal=4, wait=4)  # immediate, IPC
    bare("zeEventCounterBasedCreate", bare.context, bare.device, byref(description), byref(event))
    queue = new_list(bare)
    bare("zeCommandListAppendSignalEvent", queue, event)
    bare("zeCommandListHostSynchronize", queue, FOR_EVER)
    bare("zeEventCounterBasedGetIpcHandle", event, byref(raw))
    print(bytes(raw.data).hex(), flush=True)
    sys.stdin.readline()


def wait_and_close(bare: Bare, handle: bytes) -> set[int]:
    """Wait for an event of another process. Return the pages that closing it has unmapped."""
    event, queue = c_void_p(), new_list(bare)
    raw = ze_ipc_event_counter_based_handle_t.from_buffer_copy(handle)
    bare("zeEventCounterBasedOpenIpcHandle", bare.context, raw, byref(event))
    bare("zeCommandListAppendWaitOnEvents", queue, 1, byref(event))
    bare("zeCommandListHostSynchronize", queue, FOR_EVER)
    before = pages()
    bare("zeEventCounterBasedCloseIpcHandle", event)
    return before - pages()


def pages() -> set[int]:
    """The pages of files and shared memory that this process maps."""
    found: set[int] = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, rights, *_ = line.split()
        if rights.endswith("s"):
            start, end = (int(each, 16) for each in ends.split("-"))
            found |= {*range(start, end, mmap.PAGESIZE)}
    return found


def memory_at(address: int) -> int:
    """Map a page there. Return its address, or 0 if something else is there by now."""
    libc: Any = ctypes.CDLL(None)
    libc.mmap.restype = c_void_p
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | FIXED_NOREPLACE
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    found: int = libc.mmap(c_void_p(address), c_size_t(mmap.PAGESIZE), protection, flags, -1, c_size_t(0))
    return found if found == address else 0


def main() -> None:
    other = subprocess.Popen([sys.executable, __file__, "signaller"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    bare, extension = Bare(), c_void_p()
    freed = wait_and_close(bare, bytes.fromhex(other.stdout.readline().decode()))
    other.communicate(b"\n")
    name = b"zexDriverImportExternalPointer"
    assert ctypes.CDLL(LIBRARY).zeDriverGetExtensionFunctionAddress(bare.driver, name, byref(extension)) == 0
    adopt = ctypes.CFUNCTYPE(ctypes.c_uint32, c_void_p, c_void_p, c_size_t)(extension.value or 0)
    queue, lost = new_list(bare), list[str]()
    for address in filter(memory_at, sorted(freed)):
        assert adopt(bare.driver, address, mmap.PAGESIZE) == 0
        bare("zeCommandListAppendMemoryFill", queue, address, b"a", 1, mmap.PAGESIZE, None, 0, None)
        bare("zeCommandListHostSynchronize", queue, FOR_EVER)
        if ctypes.string_at(address, mmap.PAGESIZE) != CONTENT:
            lost.append(hex(address))
    print(f"closing the event unmapped {len(freed)} pages; imported there and filled in vain: {lost}")
    print("SEEN: fills are lost where a closed event was" if lost else "not seen")


if __name__ == "__main__":
    signaller() if sys.argv[1:] == ["signaller"] else main()
