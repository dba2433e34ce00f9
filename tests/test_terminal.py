"""What the commands print on a terminal: colours, lines of its width, completions; and what they count."""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

import pytest

import xpushare as xs
from harness import Child, command
from sampling import sampled
from xpushare import cli
from xpushare.cli import screen
from xpushare.common.texts import counted

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(columns: int, *arguments: str, **environment: str) -> list[str]:
    """The lines that the command prints on a terminal of that width."""
    pid, fd = pty.fork()
    if pid == 0:
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        kept_here = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
        command = [sys.executable, "-m", "xpushare", *arguments]
        os.execve(sys.executable, command, {**kept_here, "TERM": "xterm", **environment})
    raw = b""
    while True:
        try:
            more = os.read(fd, 1 << 16)
        except OSError:  # EIO: the command has ended
            break
        if not more:
            break
        raw += more
    os.close(fd)
    os.waitpid(pid, 0)
    return raw.decode().replace("\r\n", "\n").split("\n")


@pytest.mark.parametrize("columns", sampled([60, 200], [60]))
@pytest.mark.parametrize("arguments", [("info", "--device", "native_cpu:*"), ("ls",), ("demo", "--help")])
def test_lines_fit(columns: int, arguments: tuple[str, ...]) -> None:
    with xs.share(xs.zeros(3), label="a label that is too long for sixty columns"):
        lines = [COLOUR.sub("", line) for line in on_terminal(columns, *arguments)]
    assert len(lines) > 3
    assert max(map(len, lines)) <= columns
    if arguments[0] == "info" and columns == 60:
        assert any(line.startswith("        ") for line in lines)  # goes on below


def test_a_narrow_terminal_lists_pairs() -> None:
    with xs.share(xs.zeros(3), label="narrow"):
        wide, slim = ([COLOUR.sub("", each) for each in on_terminal(columns, "ls")] for columns in (100, 79))
    assert re.match("STATE +KIND +SIZE", wide[0])
    assert re.fullmatch("STATE      (shared|withdrawn|LEFT)", slim[0])
    assert f"EXPORTER   {os.getpid()}" in "\n".join(slim)
    assert "LABEL      narrow" in slim


def test_a_terminal_of_eighty_columns_gets_a_table() -> None:
    """Long columns are cut, numbers are not, and pipes get the whole text."""
    label = "a label of more than twenty letters"
    with xs.share(xs.zeros(3), label=label):
        lines = [COLOUR.sub("", each) for each in on_terminal(80, "ls", "--pid", str(os.getpid()))]
        text = command("ls", "--pid", str(os.getpid())).stdout
    assert re.match("STATE +KIND +SIZE", lines[0])
    (line,) = [each for each in lines if each.startswith("shared")]
    assert max(map(len, lines)) <= 80
    assert re.search(r" KiB .* a label.*…$", line)
    assert line.index("a label") == lines[0].index("LABEL")
    assert label in text


def test_colours() -> None:
    coloured = "\n".join(on_terminal(100, "info", "--device", "native_cpu:*"))
    assert "\x1b[32myes\x1b[0m" in coloured
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = "\n".join(on_terminal(100, "info", "--device", "native_cpu:*", **environment))
        assert "\x1b" not in plain
        assert plain == COLOUR.sub("", coloured)
    assert "\x1b" not in command("info").stdout


# --- completions


def complete(line: str) -> list[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    script = f"""
{command("completion", "bash").stdout}
COMP_WORDS=({" ".join(f'"{word}"' for word in words)})
COMP_CWORD={len(words) - 1}
_xpushare
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not here")
def test_bash_completes() -> None:
    assert complete("xpushare ") == list(cli.COMMANDS)
    assert complete("xpushare do") == ["doctor"]
    assert complete("xpushare ls --") == ["--help", "--pid", "--name", "--all", "--json"]
    assert complete("xpushare completion ") == ["-h", "--help", "bash", "zsh", "fish"]
    assert complete("xpushare nothing ") == []


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not here")
def test_zsh_completes(tmp_path: Path) -> None:
    """The script gives zsh's own `_describe` the names and what they do."""
    script = tmp_path / "_xpushare"
    script.write_text(command("completion", "zsh").stdout)
    source = f"compdef() {{}}; _describe() {{ print -rl -- ${{(P)2}} }}; source {script}; "
    for words, wanted in (("xpushare do", "doctor:"), ("xpushare ls --", "--pid:"), ("xpushare completion f", "fish:")):
        call = f"words=({words}); CURRENT={len(words.split())}; _xpushare"
        done = subprocess.run(
            ["zsh", "-f", "-c", source + call], capture_output=True, text=True, timeout=60, check=True
        )
        assert any(line.startswith(wanted) for line in done.stdout.splitlines())


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not here")
def test_fish_completes(tmp_path: Path) -> None:
    script = tmp_path / "xpushare.fish"
    script.write_text(command("completion", "fish").stdout)
    for line, wanted in (("xpushare do", "doctor"), ("xpushare ls --p", "--pid"), ("xpushare completion f", "fish")):
        call = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        done = subprocess.run(
            call, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "HOME": str(tmp_path)}
        )
        assert wanted in [each.partition("\t")[0] for each in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_parse(shell: str, tmp_path: Path) -> None:
    done = command("completion", shell)
    assert done.returncode == 0
    for name in cli.COMMANDS:
        assert name in done.stdout
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not here")
    script = tmp_path / "script"
    script.write_text(done.stdout)
    subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


def test_no_such_shell() -> None:
    assert command("completion", "tcsh").returncode == 2


# --- counts and exit statuses


def test_counts() -> None:
    assert [counted(n, "object") for n in (0, 1, 2)] == ["0 objects", "1 object", "2 objects"]
    assert counted(2, "process", "processes") == "2 processes"


def publish_eighty(name: str) -> None:
    xs.publish(name, xs.zeros(10))


def test_a_published_array_has_its_own_size() -> None:
    with Child() as child:
        name = f"eighty-{child.pid}"
        child.call(publish_eighty, name)
        done = command("ls", "--name", name)
        assert done.returncode == 0
        assert "80 bytes of 256 KiB" in done.stdout
        assert "\n1 object of 1 process, 256 KiB\n" in done.stdout
        (row,) = (row for row in xs.shares() if name in row["names"])
        assert (row["published_nbytes"], row["nbytes"]) == (80, 256 << 10)


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (lambda: ("ls", "--pid", str(dead_pid())), 1, "no process has pid"),
        (lambda: ("ls", "--pid", str(os.getppid())), 0, ""),
        (lambda: ("info", "--device", "foo"), 2, "'foo' needs one colon"),
        (lambda: ("info", "--device", "foo"), 2, "without a colon are cpu, gpu, a backend"),
        (lambda: ("doctor", "--device", "nope"), 2, "xpushare doctor: device selector 'nope': 'nope' needs one colon"),
        (lambda: ("doctor", "--device", "nope", "--json"), 2, "'nope' needs one colon"),
        (lambda: ("info", "--device", "native_cpu:7"), 1, ""),
        (lambda: ("doctor", "--pid", str(dead_pid())), 1, ""),
    ],
)
def test_exit_status(arguments: Callable[[], tuple[str, ...]], status: int, text: str) -> None:
    done = command(*arguments())
    assert done.returncode == status
    assert text in done.stderr


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is an NVIDIA GPU")
@pytest.mark.parametrize(("vendor", "advised"), [("0x10de", True), ("0x1af4", False)])
def test_no_advice_for_hardware_that_is_not_there(
    vendor: str, advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xpushare.cli.doctor import devices

    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "class").write_text("0x030200\n")
    monkeypatch.setattr(devices, "_BUS", tmp_path)
    _, checks = devices.examine(None)
    (cuda,) = (check for check in checks if check.name == "cuda")
    assert cuda.state == "absent"
    assert (cuda.fix is not None) == advised
    assert all(check.fix is None for check in checks if check.name in ("hip", "level_zero") and check.state == "absent")


def test_a_table_that_is_too_wide() -> None:
    """Empty columns go first, then texts are cut, then the last columns go. A number and its header stay whole."""
    rows = [["NAME", "LABEL", "BYTES", "AGE"], ["a-long-name-of-weights", "-", "1234567", "13"]]
    numbers = [False, False, True, True]
    assert screen.table(rows, numbers, 80)[1] == "a-long-name-of-weights  -      1234567   13"
    assert screen.table(rows, numbers, 36)[1] == "a-long-name-of-weights  1234567   13"
    assert screen.table(rows, numbers, 24)[1] == "a-long-na…  1234567   13"
    assert screen.table(rows, numbers, 15) == ["NAME    BYTES", "a-l…  1234567"]
