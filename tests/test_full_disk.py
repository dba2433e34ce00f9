"""Disks that are full or read-only: what the commands and `publish` say, and where the runtime folder is."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import xpushare as xs
from harness import Child
from xpushare import cli
from xpushare.cli.doctor import folder

NEW_MOUNTS = ["unshare", "--mount"]
FULL, READ_ONLY = "No space left on device", "Read-only file system"

mounts = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run([*NEW_MOUNTS, "true"], capture_output=True).returncode != 0,
    reason="needs the right to make a mount namespace",
)


def disk(place: str, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", place], check=True)


def fill(place: str) -> None:
    with contextlib.suppress(OSError), open(f"{place}/filling", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def spoil(place: str, why: str) -> None:
    """Have there be a disk that takes no file and no folder any more, and all that this process writes go there."""
    disk(place, "size=4k,nr_inodes=2")
    fill(place)
    if why == READ_ONLY:
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    os.environ["TMPDIR"] = tempfile.tempdir = place
    for name in ("XPUSHARE_RUNTIME_DIR", "XPUSHARE_KEY_FILE", "XDG_RUNTIME_DIR"):
        os.environ.pop(name, None)
    if why == READ_ONLY or os.path.isdir(f"/run/user/{os.geteuid()}"):
        os.environ["XDG_RUNTIME_DIR"] = os.path.dirname(place)  # else the machine's own folders get one of ours


def run_command(*arguments: str) -> tuple[int, str]:
    """Its exit status, and what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        return cli.main(arguments), printed.getvalue()


def share() -> str:
    with pytest.raises(xs.XpuShareError) as caught:
        xs.share(xs.array([1]))
    return str(caught.value)


def examine() -> list[tuple[str, str]]:
    return [(check.name, check.state) for check in folder.examine()]


@mounts
def test_commands(tmp_path: Path) -> None:
    """A command that cannot work says why in a line, and fails. The others work."""
    with Child(prefix=NEW_MOUNTS) as child:
        for why in (FULL, READ_ONLY):
            place = tmp_path / why.partition(" ")[0]
            place.mkdir()
            child.call(spoil, str(place), why)
            for command in (["demo"], ["bench"], ["trace", "-o", f"{place}/out", "none.py"], ["conformance"]):
                status, printed = child.call(run_command, *command)
                assert status == (2 if command[0] == "trace" else 1), command
                assert why in printed, command
                assert printed.count("\n") == 1, command
            assert child.call(run_command, "info")[0] == 0
            assert child.call(run_command, "ls", "--name", "none")[0] == 0
            if why == FULL and not os.path.isdir(f"/run/user/{os.geteuid()}"):
                # All processes of a user choose the same folder, however full its disk is for some of them.
                assert f"{place}/xpushare-{os.geteuid()}" in child.call(share)
                assert ("key", "fails") in child.call(examine)


def trace_until_the_disk_is_full(place: str) -> tuple[int, str]:
    disk(place, "size=64k")
    program = Path(place, "program.py")
    program.write_text(f"import sys; sys.path[:0] = {sys.path!r}; from test_full_disk import fill; fill({place!r})")
    return run_command("trace", "-o", f"{place}/trace.json", str(program))


def publish_on_a_full_disk(place: str) -> list[str]:
    disk(place, "size=64k")
    os.environ["XPUSHARE_RUNTIME_DIR"] = place
    os.environ.pop("XPUSHARE_KEY_FILE", None)
    xs.publish("before", xs.array([1]))
    fill(place)
    for name in ("before", "after"):
        with pytest.raises(xs.OutOfMemoryError, match=FULL):
            xs.publish(name, xs.array([2]), replace=True)
    assert ("runtime folder", "limited") in examine()
    assert xs.attach(xs.lookup("before", timeout=0), like="numpy").tolist() == [1]
    return os.listdir(f"{place}/names")


@mounts
def test_disks_that_fill_up(tmp_path: Path) -> None:
    """While a program is traced, and between two names."""
    with Child(prefix=NEW_MOUNTS) as child:
        status, printed = child.call(trace_until_the_disk_is_full, str(tmp_path))
        assert (status, printed) == (1, f"xpushare: {FULL}: {tmp_path}/trace.json\n")
        assert child.call(publish_on_a_full_disk, str(tmp_path)) == ["before"]


@pytest.mark.parametrize("arguments", [["ls", "--name", "none"], ["ls", "--help"], ["--help"], ["metrics"]])
def test_output_that_cannot_be_written(arguments: list[str]) -> None:
    if arguments == ["metrics"]:
        pytest.importorskip("prometheus_client")
    command = [sys.executable, "-m", "xpushare", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"xpushare: {FULL}\n")
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=60)
    if arguments[-1] != "--help":  # argparse prints it on stderr then
        assert (done.returncode, done.stderr) == (0, "")
    assert done.returncode == 0
