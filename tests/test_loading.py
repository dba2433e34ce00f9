"""Modules of the package are loaded at their first use, whatever interrupts that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare

# A signal's handler that comes at this point, and uses the package, is played by a call of it there.
SOURCE = """
import sys

import xpushare as xs

came = []
find = sys.path_hooks[-1]


def interrupted(path):
    if path.endswith("xpushare/sharing") and not came:
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
        ("xs.malloc_device", "RuntimeError xpushare._native cannot be loaded now: t"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt "),
    ],
)
def test_a_handler_in_the_search_for_a_module_breaks_no_load(handler: str, first: str) -> None:
    source = SOURCE.format(handler=handler)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.splitlines(), done.stderr) == ([f"first {first}", "again Lock 1"], "")


CODEC = """
import sys

import xpushare as xs


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "encodings.cp037":
            xs.malloc_device
        elif name == "xpushare.channels.locks":
            print("x".encode("cp037"))


sys.meta_path.insert(0, Finder())
try:
    print(xs.Lock.__name__)
except RuntimeError as error:
    print(str(error)[:40])
sys.meta_path.pop(0)
print("x".encode("cp037"))
"""


def test_a_handler_in_the_search_for_a_codec_does_not_hide_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODEC], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (["xpushare._native cannot be loaded now: t", "b'\\xa7'"], "")


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


def test_files_are_read_by_the_codec_that_python_has_loaded() -> None:
    """A handler that comes while Python loads another one, and asks for it, is told that there is none. Python
    remembers that.
    """
    files = Path(xpushare.__file__).parent.rglob("*.py")
    codecs = {each for file in files for each in re.findall(r"\bopen\(.*\bencoding=(.*?)[,)]", file.read_text())}
    assert codecs == {'"utf-8"'}
