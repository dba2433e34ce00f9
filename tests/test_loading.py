"""Modules of the package are loaded at their first use, whatever interrupts that."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A signal's handler that comes at this point, and uses the package, is played by a call of it there.
SOURCE = """
import sys

import xpushare as xs

came = []
find = sys.path_hooks[-1]


def interrupted(path):
    if path.endswith("sharing/routes") and not came:
        came.append(path)
        {handler}
    return find(path)


sys.path_hooks[-1] = interrupted
sys.path_importer_cache.clear()
try:
    print("first", xs.Lock.__name__)
except BaseException as error:
    print("first", type(error).__name__, str(error)[:40])
print("again", xs.Lock.__name__, len(came))
"""


@pytest.mark.parametrize(
    ("handler", "first"),
    [
        ("xs.malloc_device", "Lock"),  # refused by an ImportError, which the search of the folder takes for its own
        ("raise KeyboardInterrupt", "KeyboardInterrupt "),
    ],
)
def test_a_handler_in_the_search_for_a_module_breaks_no_load(handler: str, first: str) -> None:
    source = SOURCE.format(handler=handler)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.splitlines(), done.stderr) == ([f"first {first}", "again Lock 1"], "")


HALFWAY = """
import sys

import xpushare as xs


def interrupt(frame, event, argument):
    if not frame.f_code.co_filename.endswith("_functions/usm.py"):
        return None
    if event == "line" and "urUSMHostAlloc" in frame.f_locals:
        sys.settrace(None)
        raise KeyboardInterrupt
    return interrupt


sys.settrace(interrupt)
try:
    xs.ur
except KeyboardInterrupt:
    print(xs.ur.urAdapterGet.__name__)
"""


def test_a_module_whose_load_was_interrupted_is_loaded_again() -> None:
    """With the functions that it has declared before."""
    done = subprocess.run([sys.executable, "-c", HALFWAY], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("urAdapterGet\n", "")
