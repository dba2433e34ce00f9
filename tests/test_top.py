"""`xpushare top`: what is shared, live in a terminal and once as text or JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, command, kept
from xpushare.cli.top import Look, tables

DEADLINE = 60


class Terminal:
    """The command in a pseudo-terminal; `screen` is what a person sees now."""

    def __init__(self, *arguments: str, columns: int = 200, **settings: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
            ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
            command = [sys.executable, "-m", "xpushare", "top", "--interval", "0.1", *arguments]
            os.execve(
                sys.executable, command, {**environment, **settings}
            )  # what readline has set is not in os.environ
        self.raw = ""

    @property
    def screen(self) -> list[str]:
        last = self.raw.rpartition("\x1b[H")[2]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", last).replace("\r", "").split("\n")

    def _more(self, until: float) -> None:
        ready, _, _ = select.select([self._fd], [], [], max(until - time.monotonic(), 0))
        assert ready, f"nothing like that was shown:\n{self.screen}"
        self.raw = (self.raw + os.read(self._fd, 1 << 16).decode())[-(1 << 20) :]

    def expect(self, *patterns: str) -> list[str]:
        """The lines of the first whole screen that match, one for each."""
        until = time.monotonic() + DEADLINE
        while True:
            if any("q quit" in line for line in self.screen):
                found = [next((line for line in self.screen if re.search(each, line)), None) for each in patterns]
                if all(line is not None for line in found):
                    return [line or "" for line in found]
            self._more(until)

    def keys(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Read what is left, and return the exit status."""
        try:
            while more := os.read(self._fd, 1 << 16):
                self.raw = self.raw + more.decode(errors="replace")
        except OSError:  # EIO: nobody has the other side any more
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def frames() -> Iterator[xs.Channel]:
    with xs.Channel.create("top-frames", 1 << 20, "uint8", label="camera") as ch:
        yield ch


def open_there() -> int:
    kept["ch"] = xs.Channel.open("top-frames", label="screen")
    return os.getpid()


def hold_there() -> None:
    kept["frame"] = kept["ch"].receive(10)


def close_there() -> None:
    kept.pop("frame").close()
    kept.pop("ch").close()


def send(ch: xs.Channel) -> None:
    with ch.loan(10) as frame:
        np.asarray(frame)[0] = 1


def test_a_terminal(frames: xs.Channel) -> None:
    with Child() as child, xs.Event("native_cpu:0", enable_ipc=True, signals=True) as event:
        shared = xs.ipc.event.get(event)
        pid = child.call(open_there)
        send(frames)
        send(frames)
        child.call(hold_there)
        terminal = Terminal("--filter", "top-frames", "--view", "channels")
        writer, reader = terminal.expect(r"top-frames.*camera", r"top-frames.*screen")
        assert writer.split()[:6] == ["top-frames", str(os.getpid()), "camera", "writes", "2", "0"]
        assert reader.split()[:8] == ["top-frames", str(pid), "screen", "all", "2", "1", "0", "1"]
        send(frames)
        terminal.expect(r"screen +all +3 +2 +0 +1 +0.0")
        terminal.keys(">>")
        terminal.expect(r"\*LABEL")
        first = [line.split()[2] for line in terminal.screen if "top-frames" in line and "filter" not in line]
        assert first == ["camera", "screen"]
        terminal.keys("r")
        terminal.expect(r"\*LABEL")
        terminal.keys("/screen\n")
        terminal.expect(r"filter: screen$")
        assert not any("camera" in line for line in terminal.screen)
        terminal.keys("/\x7f\r")
        terminal.keys("o")
        event.signal()
        terminal.expect(rf"event +shared +{os.getpid()} .* 1 +0 ")
        terminal.keys("p")
        terminal.expect(rf"^ *{pid} ", r"FRAMES/S")
        terminal.keys(" ")
        terminal.expect(r"PAUSED")
        terminal.keys("q")
        assert terminal.end() == 0
        xs.ipc.event.put(shared)
        child.call(close_there)


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not here")
def test_under_tmux(frames: xs.Channel, tmp_path: Path) -> None:
    """What tmux has on its screen after the keys, and that it has back what was there before."""

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    def expect(pattern: str, absent: str = "$^") -> str:
        until = time.monotonic() + DEADLINE
        while True:
            screen = tmux("capture-pane", "-p", "-t", "top")
            if re.search(pattern, screen, re.MULTILINE) and not re.search(absent, screen):
                return screen
            assert time.monotonic() < until, screen

    send(frames)
    python = [sys.executable, "-m", "xpushare", "top", "--interval", "0.1", "--view", "channels"]
    environment = [f"-e{key}={text}" for key, text in os.environ.items() if key.startswith(("XPUSHARE", "PYTHON"))]
    tmux("new-session", "-d", "-s", "top", "-x", "90", "-y", "12", *environment, "sh")
    try:
        expect(r"^\S*[#$]$")  # the shell's prompt, which else comes into what is typed
        tmux("send-keys", "-t", "top", f"PS1='ready> '; {shlex.join(python)}; echo ended $?", "Enter")
        screen = expect(r"^top-frames +\d+ +camera +writes +1 ")
        assert max(map(len, screen.split("\n"))) <= 90
        tmux("send-keys", "-t", "top", "/nothing-has-this", "Enter")
        expect(r"filter: nothing-has-this$", absent="camera")
        expect(r"^no line contains 'nothing-has-this'$")
        tmux("send-keys", "-t", "top", "o")
        expect("^objects: ")
        tmux("resize-window", "-t", "top", "-x", "60", "-y", "8")
        expect("^p processes")
        tmux("send-keys", "-t", "top", "q")
        screen = expect(r"^ended 0$")
        assert "filter:" not in screen  # the screen of before is back
    finally:
        tmux("kill-server")


@pytest.mark.usefixtures("frames")
def test_it_opens_on_objects() -> None:
    with xs.share(xs.zeros(3), label="top-weights"):
        terminal = Terminal()
        terminal.expect(r"^objects: ", r"^memory +shared .*top-weights")
        terminal.keys("q")
        assert terminal.end() == 0


@pytest.mark.usefixtures("frames")
def test_a_signal_puts_the_terminal_back() -> None:
    terminal = Terminal("--view", "channels")
    terminal.expect("top-frames")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM


def test_eighty_columns() -> None:
    """All keys, names and labels are there, and no line is wider."""
    with xs.Event("native_cpu:0", enable_ipc=True, label="top-label") as event:
        xs.publish("top-event", event)
        with xs.share(xs.zeros(3), label="top-weights"):
            terminal = Terminal("--view", "objects", columns=80, TERM="xterm")
            terminal.expect("^memory .*top-weights", "^event .*top-event +top-label")
            for view, key in (("objects", "p"), ("processes", "c"), ("channels", "q")):
                terminal.expect(f"^{view}: ", "  q quit  < > sort  r reverse  / filter  space pause$")
                assert max(map(len, terminal.screen)) <= 80
                terminal.keys(key)
            assert terminal.end() == 0
        xs.unpublish("top-event")


@pytest.mark.usefixtures("frames")
def test_a_dumb_terminal_gets_a_table_once() -> None:
    terminal = Terminal("--view", "channels", TERM="dumb")
    assert terminal.end() == 0
    assert re.search("(?m)^top-frames +[0-9]+ +camera", terminal.raw)
    assert "\x1b" not in terminal.raw


@pytest.mark.usefixtures("frames")
def test_one_view() -> None:
    text = command("top", "--interval", "0.05", "--view", "channels").stdout
    assert re.findall("(?m)^(objects|processes|channels)$", text) == ["channels"]


def test_once(frames: xs.Channel) -> None:
    send(frames)
    text = command("top", "--interval", "0.05", "--filter", "top-frames").stdout
    assert re.search(r"top-frames +\d+ +camera +writes +1 +0 +0 +0 +0.0 +0.0 +native_cpu:0", text)
    found = json.loads(command("top", "--interval", "0.05", "--json").stdout)
    [line] = [each for each in found["channels"] if each["CHANNEL"] == "top-frames"]
    assert (line["PID"], line["LABEL"], line["SENT"]) == (os.getpid(), "camera", 1)
    [mine] = [each for each in found["processes"] if each["PID"] == os.getpid()]
    assert mine["ENDS"] == 1
    assert "camera" in mine["LABELS"]


def test_rates() -> None:
    def look(at: float, sent: int, received: int, value: int) -> Look:
        common: dict[str, Any] = {"pid": 1, "label": "", "lag": 0, "missed": 0, "held": 0, "finished": False}
        writer = {**common, "member": 0, "writes": True, "mode": None, "received": 0}
        reader = {**common, "member": 1, "writes": False, "mode": "one", "received": received}
        channel = {
            "name": "a", "backend": "x", "device": "", "nbytes": 0, "frame_nbytes": 1 << 19, "slots": 4, "sent": sent,
            "members": [writer, reader],
        }  # fmt: skip
        row = {
            "kind": "event", "state": "shared", "nbytes": 0, "backend": "x", "device": None, "exporter": 1,
            "exporter_name": "", "importers": [], "handles": 1, "names": [], "label": "", "value": value, "pending": 9,
            "age": 0,
        }  # fmt: skip
        return Look(at, [row], [channel])

    found = tables(look(12, 30, 20, 7), look(10, 10, 16, 3))
    columns, lines = found["channels"]
    at = columns.index("FRAMES/S")
    assert [line[at : at + 2] for line in lines] == [(10.0, 5.0), (2.0, 1.0)]
    columns, lines = found["objects"]
    assert [lines[0][columns.index(name)] for name in ("VALUE", "PENDING", "SIGNALS/S")] == [7, 2, 2.0]
    columns, lines = found["processes"]
    assert lines[0][columns.index("FRAMES/S")] == 12.0
    first = tables(look(10, 10, 16, 3), look(10, 10, 16, 3))["channels"].lines
    assert {line[at] for line in first} == {None}
