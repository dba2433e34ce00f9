"""The commands, run as a user runs them."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import command, wait_until
from sampling import sampled
from xpushare import cli
from xpushare.cli import demo

DEVICE = "native_cpu:0"


def fresh(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xpushare", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_version() -> None:
    done = fresh("--version")
    assert (done.returncode, done.stdout) == (0, f"xpushare {xs.__version__}\n")


def test_help_names_every_command() -> None:
    done = command("--help")
    assert done.returncode == 0
    for name in cli.COMMANDS:
        assert f"\n    {name}" in done.stdout
        module = import_module(cli.module_of(name))
        assert command(name, "--help").stdout.startswith(f"usage: xpushare {name}")
        assert len((module.__doc__ or "").partition("\n")[0]) > 10


@pytest.mark.parametrize(
    ("arguments", "usage", "said"),
    [
        ([], "", ""),
        (["nothing"], "", "there is no command"),
        (["demo", "--file", "/no/such/file"], "demo", "is not a file"),
        (["demo", "--timeout", "-1"], "demo", "-1 is not a number of seconds above 0"),
        (["demo", "--device", "native_cpu:7"], "demo", "there is no device 'native_cpu:7'"),
        (["doctor", "--timeout", "soon"], "doctor", "soon is not a number of seconds above 0"),
        (["top", "--interval", "-1"], "top", "-1 is not a number of seconds above 0"),
        (["top", "--interval", "0"], "top", "0 is not a number of seconds above 0"),
        (["keep", "--max-bytes", "abc"], "keep", "'abc' is not a number of bytes, such as 1000000, 64M or 2G"),
        (["keep", "--max-bytes", "-5"], "keep", "'-5' is not a number of bytes, such as 1000000, 64M or 2G"),
        (["keep", "--ttl", "-1"], "keep", "-1 is not a number of seconds above 0"),
        (["keep", "--ttl", "nan"], "keep", "nan is not a number of seconds above 0"),
        (["keep", "--json"], "keep", "--json goes with --list"),
        (["doctor", "--pid", "abc"], "doctor", "argument --pid: 'abc' is not a pid"),
        (["ls", "--pid", "-3"], "ls", "argument --pid: '-3' is not a pid"),
        (["conformance", "--list", "--rules", "99"], "conformance", "there is no rule 99"),
        (["keep", "list"], "keep", "unknown argument 'list': did you mean --list?"),
        (["keep", "status"], "keep", "unknown argument 'status': see `xpushare keep --help`"),
        (["metrics", "--once"], "metrics", "unknown argument '--once': see `xpushare metrics --help`"),
        (["bench", "--only", "foo"], "bench", "there is no scenario 'foo'"),
        (["bench", "--device", "foo"], "bench", "'foo'"),
        (["bench", "--device", "mock:0"], "bench", "on a GPU: python -m benchmarks.gpu in a checkout"),
    ],
)
def test_wrong_usage(arguments: list[str], usage: str, said: str) -> None:
    done = command(*arguments, env={"ONEAPI_DEVICE_SELECTOR": "native_cpu:*;mock:*"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"usage: xpushare {usage}")
    assert said in " ".join(done.stderr.split())


def test_no_command_prints_the_help() -> None:
    done = command()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == command("--help").stdout


def test_an_unknown_option_names_the_commands_help() -> None:
    done = command("info", "--silent")
    assert done.returncode == 2
    assert "unknown argument '--silent': see `xpushare info --help`" in done.stderr
    assert "unknown argument '--jsn': did you mean --json?" in command("info", "--jsn").stderr


@pytest.mark.parametrize(("word", "hint"), [("lss", "did you mean ls?"), ("nothing", "the commands are demo, info,")])
def test_unknown_command(word: str, hint: str) -> None:
    done = command(word)
    assert done.returncode == 2
    assert f"there is no command {word!r}: {hint}" in done.stderr


def test_console_script() -> None:
    script = Path(sys.executable).parent / "xpushare"
    if not script.exists():
        pytest.skip("the package is not installed here, so there is no console script")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"xpushare {xs.__version__}\n"


# --- info


def test_info_json() -> None:
    done = command("info", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["package"]["version"] == xs.__version__
    assert Path(found["package"]["native"]).is_file()
    assert [device["device"] for device in found["devices"]] == [str(device) for device in xs.devices()]
    cpu = next(device for device in found["devices"] if device["device"] == DEVICE)
    assert cpu["uuid"] == xs.Device(DEVICE).uuid
    assert set(cpu["aspects"]) == {str(aspect) for aspect in xs.Aspect}
    for support in cpu["aspects"].values():
        assert support["state"] in ("yes", "no", "unknown")
        assert support["reason"]


def test_info_of_every_query() -> None:
    done = command("info", "-v", "--json", "--device", "native_cpu:0")
    [device] = json.loads(done.stdout)["devices"]
    queries = device["queries"]
    assert len(queries) == 193
    assert (queries["TYPE"], queries["IPC_EVENT_SUPPORT_EXP"], queries["DEVICE_ID"]) == ("CPU", True, None)
    assert queries["UUID"] == device["uuid"].replace("-", "")
    assert "PROFILING_ENABLE" in queries["QUEUE_PROPERTIES"].split(" | ")
    text = command("info", "-v", "--device", "native_cpu:0").stdout
    assert "  MAX_WORK_ITEM_SIZES: 1 1 1\n  MAX_WORK_GROUP_SIZE: 1\n" in text
    assert "  DEVICE_ID: not answered\n" in text


def test_info_text() -> None:
    done = command("info")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"xpushare {xs.__version__}, ")
    assert os.environ["XPUSHARE_RUNTIME_DIR"] in done.stdout
    assert "outlives_exporter" in done.stdout


def test_info_makes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    done = command("info", "--json", env={"XPUSHARE_RUNTIME_DIR": str(folder)})
    runtime = json.loads(done.stdout)["runtime"]
    assert runtime == {
        "folder": str(folder),
        "folder_exists": False,
        "key": str(folder / "key"),
        "key_exists": False,
        "key_problem": None,
    }
    assert not folder.exists()


def test_info_tells_a_bad_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    (tmp_path / "key").chmod(0o600)
    tmp_path.chmod(0o700)
    done = command("info", "--json", env={"XPUSHARE_RUNTIME_DIR": str(tmp_path)})
    assert "32 raw bytes" in json.loads(done.stdout)["runtime"]["key_problem"]
    done = command("info", "--json", env={"XPUSHARE_KEY_FILE": str(tmp_path / ("x" * 300))})
    runtime = json.loads(done.stdout)["runtime"]
    assert (done.returncode, runtime["key_exists"]) == (0, False)
    assert runtime["key_problem"].endswith("File name too long")


def test_info_without_devices() -> None:
    done = command("info", "--device", "native_cpu:7")
    assert done.returncode == 1
    assert "no device" in done.stdout


def test_info_with_a_wrong_selector() -> None:
    done = command("info", "--device", "nonsense")
    assert done.returncode == 2
    assert done.stderr.startswith("xpushare: device selector 'nonsense'")
    assert "needs one colon: did you mean '!*:gpu'?" in command("info", "--device", "!gpu").stderr


@pytest.mark.parametrize("name", ["cpu", "CPU", "native_cpu", "uuid", "native_cpu:0", "*:cpu"])
def test_info_takes_the_names_that_device_takes(name: str) -> None:
    given = xs.Device(DEVICE).uuid if name == "uuid" else name
    done = command("info", "--json", "--device", given, env={"ONEAPI_DEVICE_SELECTOR": "native_cpu:*"})
    assert done.returncode == 0, done.stderr
    assert [each["device"] for each in json.loads(done.stdout)["devices"]] == [DEVICE]


def test_info_of_a_type_that_has_no_device() -> None:
    done = command("info", "--device", "gpu", env={"ONEAPI_DEVICE_SELECTOR": "native_cpu:*"})
    assert done.returncode == 1
    assert "no device" in done.stdout


def test_info_with_a_variable_that_is_no_selector() -> None:
    done = command("info", env={"ONEAPI_DEVICE_SELECTOR": "nonsense"})
    assert done.returncode == 2
    assert done.stderr.startswith("xpushare: device selector 'nonsense'")


def test_info_of_a_uuid_that_is_not_here() -> None:
    done = command("info", "--device", "00000000-0000-0000-0000-000000000000")
    assert done.returncode == 2
    assert "is not visible to this process" in done.stderr


def test_output_cut_short() -> None:
    """A reader that leaves early is not a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "xpushare", "info"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert errors == ""


# --- demo


def temporary_files() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("xpushare-demo-")}


@pytest.mark.parametrize("form", ["text", "json"])
def test_demo(form: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(3_000_001))
    before = temporary_files()
    done = fresh("demo", "--device", DEVICE, "--file", str(file), *(["--json"] if form == "json" else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert temporary_files() <= before
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if form == "text":
        assert done.stdout.endswith("\nPASSED\n")
        assert (
            done.stdout.count(digest) == 4
        )  # the reader's, the disk's, the answer as the exporter sees it, after the death
        return
    found = json.loads(done.stdout)
    assert found["passed"] is True
    assert [(step["title"], step["state"]) for step in found["steps"]] == [
        (step.title, "passed") for step in demo.STEPS
    ]
    lines = [line for step in found["steps"] for line in step["lines"]]
    assert {line["process"] for line in lines} == {"exporter", "reader", "conductor"}
    assert len({line["pid"] for line in lines}) == 3
    times = [line["seconds"] for line in lines]
    assert times == sorted(times)
    for pid in {line["pid"] for line in lines}:
        assert not Path(f"/proc/{pid}").exists()


def test_demo_default_file() -> None:
    done = fresh("demo", "--device", DEVICE, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert Path(found["file"]).stat().st_size > 0


def test_demo_refuses_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    done = command("demo", "--file", str(tmp_path / "empty"))
    assert done.returncode == 2
    assert "is empty" in done.stderr


def failing(**changes: Any) -> dict[str, Any]:
    """A run in this process with some of the demo's functions changed: the steps must notice."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for name, value in changes.items():
            patch.setattr(demo, name, value)
        return demo.Demo(xs.Device(DEVICE), Path(__file__), 20.0, True, folder).run()


def wrong_answer(peer: demo.Peer) -> None:
    memory = peer.kept["memory"]
    memoryview(memory)[-32:] = bytes(32)


def changed_content(peer: demo.Peer, handle: str) -> bytes:
    digest = demo._open_and_hash(peer, handle)
    memoryview(peer.kept["memory"])[0] ^= 1
    return digest


def corrupt_handle(peer: demo.Peer, path: str, device: str) -> str:
    text = demo._put_file(peer, path, device)
    return text[:40] + ("A" if text[40] != "A" else "B") + text[41:]


def dies(_peer: demo.Peer) -> None:
    os._exit(7)


def stays_open(_peer: demo.Peer) -> str:
    return "opened"


def fails_at_exit(peer: demo.Peer) -> bytes:
    atexit.register(os._exit, 9)
    return demo._hash_and_close(peer)


@pytest.mark.parametrize(
    ("changes", "failed", "why"),
    sampled(
        [
            ({"_put_file": corrupt_handle}, 2, "InvalidHandleError"),
            ({"_answer": wrong_answer}, 3, "does not see what the reader wrote"),
            ({"_open_and_hash": changed_content}, 3, "does not see what the reader wrote"),
            ({"_answer": dies}, 3, "ended, exit status 7"),
            ({"_open_again": stays_open}, 8, "was opened again"),
            ({"_hash_and_close": fails_at_exit}, 9, "ended with 9"),
        ],
        [
            ({"_answer": wrong_answer}, 3, "does not see what the reader wrote"),
            ({"_answer": dies}, 3, "ended, exit status 7"),
        ],
    ),
)
def test_demo_fails_when_it_should(changes: dict[str, Any], failed: int, why: str) -> None:
    found = failing(**changes)
    assert found["passed"] is False
    assert [step["state"] for step in found["steps"]] == ["passed"] * (failed - 1) + ["failed"]
    assert why in found["steps"][-1]["why"]


def test_demo_step_times_out() -> None:
    def hang(self: demo.Demo) -> None:
        self.timeout = 0.5
        self._deadline = time.monotonic() + self.timeout
        self.reader.call(sleep_long)

    found = failing(STEPS=(demo.STEPS[0], demo.Step("hangs", hang)))
    assert found["passed"] is False
    assert "has not answered within 0.5 s" in found["steps"][-1]["why"]


def sleep_long(_peer: demo.Peer) -> None:
    time.sleep(100)


def test_demo_says_what_it_skips() -> None:
    def never(_demo: demo.Demo) -> None:
        raise AssertionError("a step ran whose aspect the device lacks")

    found = failing(STEPS=(*demo.STEPS, demo.Step("needs what is not there", never, xs.Aspect.foreign_memory)))
    assert found["passed"] is True
    assert found["steps"][-1]["state"] == "skipped"
    assert "foreign_memory" in found["steps"][-1]["why"]


@pytest.mark.parametrize("program", ["xpushare conformance --device native_cpu:0", "soak.hostile", "soak"])
def test_terminated(tmp_path: Path, program: str) -> None:
    """SIGTERM ends what was started and removes the folder."""
    process = subprocess.Popen(
        [sys.executable, "-m", *program.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    wait_until(lambda: any(tmp_path.glob("*/*")), 60, "a folder with something in it")
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (128 + signal.SIGTERM, "")
    assert not list(tmp_path.iterdir())


def test_demo_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends all three processes and removes the folder."""
    file = tmp_path / "large"
    file.write_bytes(os.urandom(1 << 20))
    file_nbytes = 1 << 29
    os.truncate(file, file_nbytes)  # sparse, and long enough in hashing
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "xpushare", "demo", "--device", DEVICE, "--file", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    seen = ""
    while "put " not in seen:
        line = process.stdout.readline()
        assert line, "the demo ended by itself"
        seen += line
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["large"]

    def group_is_gone() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(group_is_gone, 10, "the end of the demo's process group")
