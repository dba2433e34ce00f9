"""The paths of two files: the library that Unified Runtime's own loader loads for C programs, and the Python
interpreter that the library will start.

`libur_adapter_xpushare.so` (src/native/ur_adapter) answers the loader's calls with the functions of `xpushare.ur`.
`_tables` generates the library's dispatch tables from the declarations of these functions. `_bridge` answers the calls
with the help of three modules. `_arguments` converts the 64-bit words of a C call to Python's arguments, `_answers`
returns the results to C, and `_boxes` maps handles to objects.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final, NamedTuple

from xpushare.common.errors import FeatureNotSupportedError

__all__ = ["LIBRARY", "Interpreter", "interpreter"]

LIBRARY: Final = Path(__file__).with_name("libur_adapter_xpushare.so")
_TEXT: Final = 4096
_PYTHON: Final = "XPUSHARE_PYTHON"


class Interpreter(NamedTuple):
    """The Python interpreter that the library starts in a program that does not run Python itself."""

    executable: str
    library: str
    """The path of its libpython, or an empty string if none can be loaded."""
    wrong: str
    """Why the library cannot start this interpreter, or an empty string if it can."""


def interpreter(executable: str | None = None) -> Interpreter:
    """Return the interpreter that the library will start. If `executable` is given, return the interpreter that the
    library would start if the environment variable XPUSHARE_PYTHON were `executable`.
    """
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise FeatureNotSupportedError(f"{LIBRARY.name} is not part of this installation: {error}") from None
    texts = [ctypes.create_string_buffer(_TEXT) for _field in Interpreter._fields]
    before = os.environ.get(_PYTHON)
    try:
        if executable is not None:
            os.environ[_PYTHON] = executable  # the library reads the environment
        library.xpushare_ur_interpreter(*texts)
    finally:
        if executable is not None:
            os.environ.pop(_PYTHON)
            if before is not None:
                os.environ[_PYTHON] = before
    return Interpreter(*(text.value.decode(errors="surrogateescape") for text in texts))
