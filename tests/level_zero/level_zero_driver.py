"""The software driver, as a test steers it: which calls fail, what was created and not destroyed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

__all__ = ["DEVICE_LOST", "ROOT", "Driver", "driver"]

ROOT = Path(os.environ.get("LEVEL_ZERO", "build/level-zero"))  # the folder of scripts/level_zero
DEVICE_LOST = 0x70000001


class Driver:
    """The library's functions `softze_…`; the loader and this process share one instance of it."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self._fail = library.softze_fail
        self._fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32]
        self._stall = library.softze_stall
        self._stall.argtypes = [ctypes.c_char_p, ctypes.c_int]
        self._calls = library.softze_calls
        self._calls.argtypes = [ctypes.c_char_p]
        self._called = library.softze_called
        self._called.argtypes = [ctypes.c_int]
        self._called.restype = ctypes.c_char_p
        self._books = library.softze_books
        self._books.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.reset = library.softze_reset

    def fail(self, function: str, nth: int = 1, result: int = DEVICE_LOST) -> None:
        """Call `nth` of the function from now on fails; 0: each."""
        self._fail(function.encode(), nth, result)

    def stall(self, function: str, milliseconds: int) -> None:
        self._stall(function.encode(), milliseconds)

    def calls(self) -> dict[str, int]:
        """How often each function was called since the last reset."""
        found: dict[str, int] = {}
        while (name := self._called(len(found))) is not None:
            found[name.decode()] = self._calls(name)
        return found

    def left(self) -> str:
        """What was created and not destroyed, and what was done wrong; empty if nothing."""
        text = ctypes.create_string_buffer(1024)
        self._books(text, len(text))
        return text.value.decode()


def driver() -> Driver:
    """That of this process. Under the real loader it is named by ZE_ENABLE_ALT_DRIVERS; else it is the loader."""
    return Driver(os.environ.get("ZE_ENABLE_ALT_DRIVERS", "libze_loader.so.1"))
