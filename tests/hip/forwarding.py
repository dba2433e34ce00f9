"""The forwarding library, as a test steers it: which calls fail, what was created and not destroyed."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

__all__ = ["DRIVER", "LIBRARY", "ROOT", "Library", "library"]

ROOT = Path(os.environ.get("HIP", "build/hip")).resolve()  # the folder of scripts/hip
LIBRARY = os.environ.get("XPUSHARE_HIP_LIBRARY", "")
DRIVER = Path(__file__).parent / "driver"  # its sources
LAUNCH_FAILURE = 719


class Library:
    """The library's functions `forward_…`."""

    def __init__(self) -> None:
        library = self.library = ctypes.CDLL(LIBRARY)
        self._fail = library.forward_fail
        self._called = library.forward_called
        self._called.restype = ctypes.c_char_p
        self.reset = library.forward_reset

    def fail(self, function: str, nth: int = 1, code: int = LAUNCH_FAILURE) -> None:
        """Call `nth` of the function from now on fails; 0: each."""
        self._fail(function.encode(), nth, code)

    def calls(self) -> dict[str, int]:
        """How often each function was called since the last reset."""
        found: dict[str, int] = {}
        number = ctypes.c_int()
        while (name := self._called(len(found), ctypes.byref(number))) is not None:
            found[name.decode()] = number.value
        return {name: calls for name, calls in found.items() if calls}

    def left(self) -> dict[str, int]:
        """What was created and not destroyed."""
        text = ctypes.create_string_buffer(1024)
        self.library.forward_books(text, len(text))
        return {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", text.value.decode())}


def library() -> Library:
    return Library()
