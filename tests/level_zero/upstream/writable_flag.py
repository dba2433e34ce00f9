"""dpctl.memory says "read-only" of memory that may be written.

    build/level-zero/neo/bin/python tests/level_zero/upstream/writable_flag.py

In `__sycl_usm_array_interface__` the second part of `data` tells whether the memory is read-only.
"""

from __future__ import annotations

import os

os.environ["ONEAPI_DEVICE_SELECTOR"] = "level_zero:*"

import dpctl.memory


def main() -> None:
    memory = dpctl.memory.MemoryUSMDevice(4096)
    _address, read_only = memory.__sycl_usm_array_interface__["data"]
    memory.copy_from_host(b"written")
    written = bytes(memory.copy_to_host()[:7]) == b"written"
    print(f"read-only: {read_only}; a write arrived: {written}")
    print("SEEN: the flag means writable" if read_only and written else "not seen", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
