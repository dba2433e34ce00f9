"""The rules that each build of the forwarding library does not support, listed beforehand with the reason: a suite that
reports another one fails.

python tests/hip/unsupported.py MODE REPORT
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["EXPECTED"]

_ALWAYS = {
    "3.11b": "HIP has no working flag for read-only pages of the host",
    "3.11c": "a process that holds the file descriptor of an allocation can also map it writable",
    "4.7": "hipMemMap takes no offset",
    "5.19": "nothing here breaks a device in a way that the suite could use",
    "5.29": "a wait on another library's stream would hold up its hardware queue: the host waits for it",
    "10.5": "for the same reason the host waits between the work of two processes on a frame",
}
_NO_VIRTUAL = "release 5.2.3 has no memory with file descriptors"
EXPECTED: dict[str, dict[str, str]] = {
    "plain": _ALWAYS,
    "amd": {
        **_ALWAYS,
        **dict.fromkeys(["3.1d", *(f"4.{number}" for number in range(1, 14)), "8.6", "8.8"], _NO_VIRTUAL),
        "3.6a": "HIP does not say what becomes of memory of hipMalloc whose process has freed it",
        "3.6b": "HIP does not document what happens to hipMalloc memory when its process exits",
        "10.3": "the slots of a channel end with the process that made them",
        **dict.fromkeys(["6.15", "6.16", "6.17", "6.19"], "memory of hipMalloc has one owner, its maker"),
    },
}


def main(mode: str, report: str) -> int:
    found = re.findall(r"^not supported +(\S+)", Path(report).read_text(), re.MULTILINE)
    longer = sorted(set(found) - EXPECTED[mode].keys())
    print(f"not supported: {len(found)} rules, {len(EXPECTED[mode])} listed beforehand")
    if longer:
        print(f"not listed: {', '.join(longer)}")
    return bool(longer)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
