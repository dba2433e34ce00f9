"""Programs that call the library as Unified Runtime's loader does: without Python, and in a process that has it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_loader import CC, SOURCE, Run, compiled, names

import xpushare as xs
from xpushare import PeerLostError, cli
from xpushare.ur.loader import interpreter
from xpushare.ur.loader._builds import BUILDS, ORDER, TABLES


def answer(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def test_threads_of_a_program_without_python(program: Run) -> None:
    assert answer(program("threads")) == (0, "good\n", "")


def test_a_build_that_is_not_known(library: Path, folder: Path) -> None:
    """Its tables may be smaller: one function more, and one less."""
    text = names(BUILDS[0])
    for number, other in enumerate((text.replace("urUSMFree", "urUSMFreeAll"), text.replace("urKernelCreate", ""))):
        binary = compiled(folder / f"unknown{number}", other, "loader", "-DBARE")
        done = subprocess.run([binary, library, "threads"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (3, "refused 43\n")
        assert "knows no such build" in done.stderr


def static_loader(folder: Path, library: Path, counts: dict[str, int]) -> str:
    """What it says. `counts`: how many functions each table has, in the order of the tables."""
    folder.mkdir()
    turns = sorted(counts)  # the real one fills them in this order
    lines = [f'{{"{getter}", {turns.index(getter)}, {count}}},' for getter, count in counts.items()]
    (folder / "tables.h").write_text("\n".join(lines))
    source = SOURCE.with_name("static_loader.c")
    command = [CC, "-std=gnu11", "-w", f"-I{folder}", str(source), "-o", str(folder / "loader"), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    done = subprocess.run(
        [folder / "loader", library], env={**os.environ, "XPUSHARE_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout + done.stderr


def counts_of(build: str) -> dict[str, int]:
    texts = {
        getter: [text for of, text in TABLES[getter].items() if build in of.split()] for getter in ORDER[build].split()
    }
    return {getter: len(text.split()) for getter, [text] in texts.items()}


@pytest.mark.usefixtures("program")  # skips where no interpreter can be started
@pytest.mark.parametrize("build", BUILDS)
def test_a_static_loader_that_names_no_functions(build: str, library: Path, tmp_path: Path) -> None:
    """As Unified Runtime builds it by default: it is recognised by where its tables stand."""
    total = sum(counts_of(build).values())
    said = static_loader(tmp_path / "loader", library, counts_of(build))
    assert said == f"filled {total} of {total}, nothing behind: 1, adapters: 1 0\n"


@pytest.mark.usefixtures("program")
def test_a_static_loader_whose_tables_have_other_sizes(library: Path, tmp_path: Path) -> None:
    for number, (getter, more) in enumerate({"urGetKernelProcAddrTable": 1, "urGetIPCExpProcAddrTable": -1}.items()):
        counts = counts_of(BUILDS[0])
        counts[getter] += more
        said = static_loader(tmp_path / str(number), library, counts)
        assert said.startswith("refused 43 at urGet")
        assert "have other sizes" in said
    fewer = {getter: count for getter, count in counts_of(BUILDS[0]).items() if "Graph" not in getter}
    said = static_loader(tmp_path / "fewer", library, fewer)
    assert said.startswith("refused 43 at urGetAdapterProcAddrTable")
    assert "knows no such build" in said


@pytest.mark.parametrize("build", BUILDS[1:])
def test_older_builds(build: str, library: Path, folder: Path) -> None:
    """They are known; without an interpreter they get no further."""
    binary = compiled(folder / build, names(build), "loader", "-DBARE")
    done = subprocess.run(
        [binary, library, "-"], env={"XPUSHARE_PYTHON": "/no/python"}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (3, "refused 37\n")
    assert done.stderr == "libur_adapter_xpushare: XPUSHARE_PYTHON names /no/python, which is not a file\n"


def test_an_interpreter_without_libpython(library: Path, tmp_path: Path) -> None:
    """Both the command and the library say so."""
    alone = tmp_path / "bin" / "python3.99"
    alone.parent.mkdir()
    alone.touch(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "xpushare", "ur-adapter"],
        env={"XPUSHARE_PYTHON": str(alone), "PYTHONPATH": str(library.parents[3])},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == f"UR_ADAPTERS_FORCE_LOAD={library}\n"
    assert f"{alone} has no libpython3.99.so.1.0" in done.stderr
    assert "XPUSHARE_PYTHON" in done.stderr


def test_the_setting_for_programs(library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xpushare", "ur-adapter", "--json"],
        env={**os.environ, "PYTHONPATH": str(library.parents[3]), "XPUSHARE_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["environment"] == {"UR_ADAPTERS_FORCE_LOAD": str(library)}
    assert found["interpreter"].keys() == {"executable", "library", "wrong"}
    assert done.returncode == bool(found["interpreter"]["wrong"])
    assert done.stderr == ""


def test_the_setting_beside_a_version_manager(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The python3 of the PATH is a script of the version manager: the interpreter of the command is named instead."""
    if interpreter(sys.executable).wrong:
        pytest.skip(interpreter(sys.executable).wrong)
    monkeypatch.delenv("XPUSHARE_PYTHON", raising=False)
    copy = tmp_path / "xpushare" / "ur" / "loader" / library.name  # in no folder that says a version
    copy.parent.mkdir(parents=True)
    copy.write_bytes(library.read_bytes())
    (tmp_path / "python3").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("xpushare.ur.loader.LIBRARY", copy)
    assert f"{tmp_path}/python3 does not say its version. It may be a script" in interpreter().wrong
    assert "XPUSHARE_PYTHON" not in os.environ
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert cli.main(["ur-adapter"]) == 0
    assert output.getvalue() == f"UR_ADAPTERS_FORCE_LOAD={copy}\nXPUSHARE_PYTHON={sys.executable}\n"


def test_a_script_in_place_of_an_interpreter(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of version managers, which start another. The package lies in no folder that says a version."""
    script, copy = tmp_path / "python3", tmp_path / "xpushare" / "ur" / "loader" / library.name
    script.touch(0o755)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(library.read_bytes())
    monkeypatch.setattr("xpushare.ur.loader.LIBRARY", copy)
    monkeypatch.setenv("XPUSHARE_PYTHON", str(script))
    wrong = interpreter().wrong
    assert wrong.startswith(f"{script} does not say its version")
    assert "XPUSHARE_PYTHON" in wrong


def test_the_interpreter_is_found_without_settings(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a virtual environment: by where the package lies, its libpython by where that environment came from."""
    monkeypatch.setenv("XPUSHARE_PYTHON", sys.executable)
    if interpreter().wrong:
        pytest.skip(interpreter().wrong)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    place = tmp_path / "lib" / version / "site-packages" / "xpushare" / "ur" / "loader"
    place.mkdir(parents=True)
    copy = place / library.name
    copy.write_bytes(library.read_bytes())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / version).symlink_to(sys.executable)
    monkeypatch.delenv("XPUSHARE_PYTHON", raising=False)
    monkeypatch.setattr("xpushare.ur.loader.LIBRARY", copy)
    found = interpreter()
    assert found.executable == str(tmp_path / "bin" / version)
    assert f"lib{version}.so" in found.library
    assert found.wrong == ""


# --- the end, and forks -------------------------------------------------------------------------------------------


def test_a_clean_exit_is_no_death(program: Run, tmp_path: Path) -> None:
    """A program that knows nothing of Python exits while it owes a signal; another is killed."""
    causes: list[str] = []
    for end in ("exit", "kill"):
        with program("owe", tmp_path, XPUSHARE_LINGER="0") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            event = xs.ipc.event.open((tmp_path / "event").read_bytes())
            assert not event.done
            if end == "kill":
                process.kill()
            out, _errors = process.communicate("\n", timeout=60)
            assert (process.returncode, out) == ((0, "good\n") if end == "exit" else (-9, ""))
            with pytest.raises(PeerLostError) as caught:
                event.wait()
            causes.append(str(caught.value).partition(f"process {process.pid} ")[2])
    assert causes == ["exited while it owed the signal", "died"]


def test_a_forked_child_is_answered(program: Run) -> None:
    """Releases are done, anything else is refused, and neither waits for a lock that only the parent could release."""
    assert answer(program("fork")) == (0, "child 0 1\nstatus 0, parent 0\ngood\n", "")


IN_PYTHON = """
import ctypes, sys
loader = ctypes.CDLL(sys.argv[1])
assert loader.begin(sys.argv[2].encode()) == 0
loader.make()
loader.release_at_exit()  # after Python's own end
import xpushare.ur as ur
print(len(ur.urAdapterGet()), flush=True)
"""


def test_in_a_process_that_runs_python(library: Path, shim: Path) -> None:
    """It uses the interpreter that runs; when that has ended, releases are done and nothing else is."""
    done = subprocess.run(
        [sys.executable, "-c", IN_PYTHON, shim, library],
        env={**os.environ, "ONEAPI_DEVICE_SELECTOR": "native_cpu:0"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\nat exit 0 37\n", "")
