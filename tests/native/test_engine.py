"""The engine by itself: it needs no Python, and its own tests in C (`c/`) pass under each sanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "src" / "engine"
TESTS = Path(__file__).resolve().parent / "c"
CC = os.environ.get("CC", "cc")
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
SANITIZERS = {
    "plain": ["-O2"],
    # GCC warns that this sanitizer does not see fences: every shared word is read and written by atomic operations.
    "thread": ["-O1", "-g", "-fsanitize=thread", "-Wno-error=tsan"],
    "address": ["-O1", "-g", "-fsanitize=address"],
    "undefined": ["-O1", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all"],
}


def run(*command, **options):
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False, **options
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}"
    return done.stdout


def prefix_for(sanitizer):
    """GCC's thread sanitizer does not start where the kernel spreads addresses further than it expects."""
    still = ("setarch", "-R") if sanitizer == "thread" and shutil.which("setarch") else ()
    return still if still and subprocess.run([*still, "true"], capture_output=True, check=False).returncode == 0 else ()


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """The engine as a library, by sanitizer, each built once."""
    built = {}

    def build(sanitizer):
        if sanitizer not in built:
            folder = tmp_path_factory.mktemp(sanitizer)
            sources = sorted(ENGINE.glob("*.c"))
            run(CC, *STRICT, *SANITIZERS[sanitizer], "-c", *sources, cwd=folder)
            built[sanitizer] = folder, sorted(folder.glob("*.o"))
        return built[sanitizer]

    return build


@pytest.mark.parametrize("file", sorted(ENGINE.iterdir()), ids=lambda file: file.name)
def test_the_engine_needs_no_python(file):
    """Every file compiles alone, and none includes Python or what is over the engine."""
    text = file.read_text()
    assert "Python.h" not in text
    assert "python/" not in text
    assert "PyObject" not in text
    run(CC, *STRICT, "-fsyntax-only", "-x", "c", file)


@pytest.mark.parametrize("program", [each.stem for each in sorted(TESTS.glob("test_*.c"))])
@pytest.mark.parametrize(
    "sanitizer", [pytest.param(each, marks=() if each == "plain" else pytest.mark.exhaustive) for each in SANITIZERS]
)
def test_in_c(engines, sanitizer, program):
    folder, objects = engines(sanitizer)
    flags = SANITIZERS[sanitizer]
    run(CC, *STRICT, *flags, TESTS / f"{program}.c", *objects, "-o", folder / program, "-lpthread")
    run(*prefix_for(sanitizer), folder / program)
