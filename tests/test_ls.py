"""`xpushare ls` and `xs.shares()`: who shares what, seen from outside. Rows of other tests' processes are ignored."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import xpushare as xs
from harness import Child, become_another_user, command, kept, new_fds, open_fds, withdraw_all
from xpushare.common.texts import readable
from xpushare.sharing import identity, layout, node
from xpushare.sharing.survey import changed, survey

DEVICE = "native_cpu:0"
NBYTES = 5_000_000
PR_SET_DUMPABLE = 4
SETPRIV = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]


def ls(*arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    if not prefix:
        return command("ls", *arguments)
    return subprocess.run(
        [*prefix, sys.executable, "-m", "xpushare", "ls", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def rows_of(pid: int) -> dict[str, dict[str, Any]]:
    """kind -> the row of what that process exports or exported."""
    return {row["kind"]: dict(row) for row in xs.shares() if row["exporter"] == pid}


def export_all() -> dict[str, bytes]:
    memory = kept["memory"] = xs.malloc_device(NBYTES, DEVICE)
    physical = kept["physical"] = xs.PhysicalMemory(1 << 16, DEVICE, enable_ipc=True)
    event = kept["event"] = xs.Event(DEVICE, enable_ipc=True)
    kept["handles"] = {
        "memory": xs.ipc.memory.get(memory),
        "physical_memory": xs.ipc.physical_memory.get(physical),
        "event": xs.ipc.event.get(event),
    }
    return {kind: bytes(handle) for kind, handle in kept["handles"].items()}


def open_all(handles: dict[str, bytes]) -> None:
    kept["opened"] = [
        xs.ipc.memory.open(handles["memory"]),
        xs.ipc.physical_memory.open(handles["physical_memory"]),
        xs.ipc.event.open(handles["event"]),
    ]


def close_all() -> None:
    del kept["opened"]


@pytest.fixture
def exporter() -> Iterator[Child]:
    with Child() as child:
        yield child


@pytest.fixture
def importer() -> Iterator[Child]:
    with Child() as child:
        yield child


@pytest.mark.usefixtures("no_fd_leak")
def test_who_shares_what(exporter: Child, importer: Child) -> None:
    begin = time.time()
    handles = exporter.call(export_all)
    exporter.call(lambda: xs.ipc.memory.get(kept["memory"]))
    found = rows_of(exporter.pid)
    assert set(found) == {"memory", "physical_memory", "event"}
    for row in found.values():
        assert row["state"] == "shared"
        assert row["importers"] == []
        assert (row["backend"], row["device"]) == ("native_cpu", xs.Device(DEVICE).uuid)
        assert 0 <= row["age"] <= time.time() - begin + 1
        assert row["exporter_name"]
    assert {kind: row["nbytes"] for kind, row in found.items()} == {
        "memory": NBYTES,
        "physical_memory": 1 << 16,
        "event": 0,
    }
    assert {kind: row["handles"] for kind, row in found.items()} == {"memory": 2, "physical_memory": 1, "event": 1}
    importer.call(open_all, handles)
    assert {kind: row["importers"] for kind, row in rows_of(exporter.pid).items()} == {
        kind: [importer.pid] for kind in handles
    }


def test_the_command_and_python_agree(exporter: Child, importer: Child) -> None:
    importer.call(open_all, exporter.call(export_all))
    done = ls("--json")
    printed = json.loads(done.stdout)
    mine = [row for row in printed["rows"] if row["exporter"] == exporter.pid]
    for row in mine:
        row["age"] = None  # a second may have passed
    assert mine == [{**row, "age": None} for row in rows_of(exporter.pid).values()]
    assert len(mine) == 3
    assert done.returncode == any(row["state"] == "left" for row in printed["rows"])


def test_text(exporter: Child, importer: Child) -> None:
    importer.call(open_all, exporter.call(export_all))
    lines = ls().stdout.splitlines()
    header = lines[0]
    assert header.split() == [
        "STATE",
        "KIND",
        "SIZE",
        "DEVICE",
        "EXPORTER",
        "IMPORTERS",
        "HANDLES",
        "AGE",
        "NAMES",
        "LABEL",
    ]
    mine = [line for line in lines if f" {exporter.pid} " in line and line.startswith("shared")]
    assert len(mine) == 3
    for line in mine:
        at = header.index("EXPORTER")
        assert line[at:].startswith(f"{exporter.pid} ")  # under its title
        assert line[header.index("IMPORTERS") :].startswith(str(importer.pid))
    assert any("4.8 MiB" in line and DEVICE in line for line in mine)


def test_filters_names_and_command_lines(exporter: Child, importer: Child) -> None:
    importer.call(open_all, exporter.call(export_all))
    name = f"ls-{exporter.pid}"
    exporter.call(lambda: xs.publish(name, kept["memory"]))
    assert rows_of(exporter.pid)["memory"]["names"] == [name]
    assert rows_of(exporter.pid)["event"]["names"] == []
    for choice, pid in (("exporter", exporter.pid), ("importer", importer.pid)):
        printed = json.loads(ls("--json", "--pid", str(pid)).stdout)
        assert {(row["exporter"], *row["importers"]) for row in printed["rows"]} == {(exporter.pid, importer.pid)}, (
            choice
        )
        assert set(printed["processes"]) == {str(exporter.pid), str(importer.pid)}
    for pattern in (name, f"ls-{exporter.pid}*"):
        (row,) = json.loads(ls("--json", "--name", pattern).stdout)["rows"]
        assert (row["kind"], row["names"]) == ("memory", [name])
    text = ls("--name", name).stdout
    assert name in text.splitlines()[1]
    assert f"{importer.pid}: {sys.executable} -c import sys" in text
    assert "no object matches (" in ls("--name", "no-such").stdout
    exporter.call(xs.unpublish, name)


def test_many_alike_are_one_line(exporter: Child) -> None:
    def export_many() -> None:
        kept["many"] = [xs.malloc_device(1 << 20, DEVICE) for _ in range(50)]
        kept["handles"] = [xs.ipc.memory.get(each) for each in kept["many"]]

    exporter.call(export_many)
    pid = ("--pid", str(exporter.pid))
    (line,) = [line for line in ls(*pid).stdout.splitlines() if line.startswith("shared")]
    assert "50 x memory" in line
    assert "50 MiB" in line
    assert len([line for line in ls(*pid, "--all").stdout.splitlines() if line.startswith("shared")]) == 50
    assert len(json.loads(ls(*pid, "--json").stdout)["rows"]) == 50


def test_a_withdrawn_object_that_is_still_open(exporter: Child, importer: Child) -> None:
    importer.call(open_all, exporter.call(export_all))
    exporter.call(lambda: xs.ipc.memory.put(kept["handles"]["memory"]))
    row = rows_of(exporter.pid)["memory"]
    assert (row["state"], row["handles"], row["importers"]) == ("withdrawn", 0, [importer.pid])
    importer.call(close_all)
    assert "memory" not in rows_of(exporter.pid)


def test_what_a_dead_process_left() -> None:
    with Child() as importer:
        with Child() as exporter:
            importer.call(open_all, exporter.call(export_all))
            exporter.kill()
        found = rows_of(exporter.pid)
        assert set(found) == {"memory", "physical_memory", "event"}
        for row in found.values():
            assert (row["state"], row["importers"], row["handles"]) == ("left", [importer.pid], 0)
            assert row["exporter_name"] is None
        assert found["memory"]["nbytes"] == NBYTES
        done = ls()
        assert done.returncode == 1
        assert any(line.startswith("LEFT") and f"{exporter.pid} (dead)" in line for line in done.stdout.splitlines())
        importer.call(close_all)
        assert not rows_of(exporter.pid)


def channel_of(pids: set[int]) -> list[dict[str, Any]]:
    """The rows of a channel's slots that these processes export or have open."""
    rows = [dict(row) for row in xs.shares() if pids & {row["exporter"], *row["importers"]}]
    return [row for row in rows if row["nbytes"] >= NBYTES]


def join_channel(name: str, make: bool) -> None:
    channel = xs.Channel.create(name, NBYTES, "u1", slots=4) if make else xs.Channel.open(name, timeout=30)
    kept["channel"] = channel


def test_memory_that_several_processes_export_is_one_row_and_counts_once() -> None:
    """It is left by nobody as long as one of them lives."""
    with Child() as maker, Child() as reader, Child() as other:
        for each in (maker, reader, other):
            each.call(join_channel, "counted", each is maker)
        pids = {maker.pid, reader.pid, other.pid}
        (row,) = channel_of(pids)
        assert (row["state"], row["exporter"], row["handles"]) == ("shared", maker.pid, 3)
        assert sorted(row["importers"]) == sorted(pids - {maker.pid})
        done = ls("--pid", str(reader.pid))
        assert done.returncode == 0
        assert f", {readable(sum(each['nbytes'] for each in both(reader.pid)))}\n" in done.stdout
        maker.kill()
        (row,) = channel_of(pids)
        assert (row["state"], row["handles"]) == ("shared", 2)
        assert sorted([row["exporter"], *row["importers"]]) == sorted(pids - {maker.pid})
        assert ls("--pid", str(reader.pid)).returncode == 0


def both(pid: int) -> list[dict[str, Any]]:
    return [dict(row) for row in xs.shares() if pid == row["exporter"] or pid in row["importers"]]


def share_two() -> str:
    kept["tree"] = {"a": xs.zeros(NBYTES, "u1"), "b": xs.zeros(NBYTES, "u1")}
    kept["handle"] = xs.share(kept["tree"])
    return str(kept["handle"])


def own(text: str, only: list[str] | None) -> None:
    kept["owned"] = xs.attach(text, own=True, only=only)
    kept["again"] = xs.share(kept["owned"])


@pytest.mark.parametrize("only", [None, ["b"]])
def test_owned_memory_counts_once(only: list[str] | None) -> None:
    with Child() as exporter, Child() as owner:
        owner.call(own, exporter.call(share_two), only)
        pids = {exporter.pid, owner.pid}
        rows = channel_of(pids)
        assert {row["exporter"] for row in rows} == {exporter.pid}
        assert sum(row["nbytes"] for row in rows) < 2.5 * NBYTES
        exporter.kill()
        rows = channel_of(pids)
        assert "shared" in {row["state"] for row in rows}
        assert {row["exporter"] for row in rows if row["state"] == "shared"} == {owner.pid}
        owner.kill()


def test_what_importers_that_died_had_open_counts_no_more(exporter: Child) -> None:
    handles = exporter.call(export_all)
    with Child() as importer:
        importer.call(open_all, handles)
        assert rows_of(exporter.pid)["memory"]["importers"] == [importer.pid]
        importer.kill()
    assert rows_of(exporter.pid)["memory"]["importers"] == []


def seen_alive(pid: int) -> bool:
    return any(member == pid and alive for _, member, _, alive in node.current().table().domain.members())


def test_looking_does_not_end_ones_own_memberships(exporter: Child, importer: Child) -> None:
    # Closing any fd of a commons would drop this process's locks on it.
    withdraw_all()  # what other tests of this process left exported
    with xs.ipc.memory.open(exporter.call(export_all)["memory"]), xs.malloc_device(NBYTES, DEVICE) as memory:
        handle = xs.ipc.memory.get(memory)
        importer.call(lambda raw: kept.update(opened=xs.ipc.memory.open(raw)), bytes(handle))
        before = open_fds()
        for _ in range(3):
            assert rows_of(exporter.pid)["memory"]["importers"] == [os.getpid()]
            assert rows_of(os.getpid())["memory"]["importers"] == [importer.pid]
        assert not new_fds(before)
        assert exporter.call(seen_alive, os.getpid())
        assert ls("--json").stdout.count(f'"exporter": {os.getpid()},') == 1
        importer.call(close_all)
        xs.ipc.memory.put(handle)


def test_a_fork_changes_nothing(exporter: Child) -> None:
    exporter.call(export_all)

    def fork() -> int:
        import signal
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            signal.pause()
        return pid

    forked = exporter.call(fork)
    try:
        assert {kind: row["state"] for kind, row in rows_of(exporter.pid).items()} == dict.fromkeys(
            ("memory", "physical_memory", "event"), "shared"
        )
        assert not rows_of(forked)
    finally:

        def end(pid: int) -> None:
            os.kill(pid, 9)
            os.waitpid(pid, 0)

        exporter.call(end, forked)


# --- what may not be trusted, and what may not be seen ------------------------------------------------------


def forge(change: str) -> list[int]:
    """A table and a commons with one live entry, as an exporter has them, but for one thing."""
    from xpushare import _native

    seals = 2 | 4
    cookie = os.urandom(16)
    table, commons = os.memfd_create("xpushare-table", 2 | 1), os.memfd_create("xpushare-commons", 2 | 1)
    inode = os.fstat(commons).st_ino
    head = layout.TABLE.pack(
        b"XPUSHBAD" if change == "magic" else layout.TABLE_MAGIC, layout.TABLE_VERSION + (change == "version"),
        os.getpid(), cookie, identity.namespace("pid"), commons, commons, inode + (change == "other commons"),
    )  # fmt: skip
    os.ftruncate(table, layout.TABLE_NBYTES - (4096 if change == "size" else 0))
    os.ftruncate(commons, layout.COMMONS_NBYTES - (4096 if change == "commons size" else 0))
    os.pwrite(table, head, 0)
    named = os.urandom(16) if change == "commons cookie" else cookie
    os.pwrite(commons, layout.COMMONS.pack(layout.COMMONS_MAGIC, layout.TABLE_VERSION, named), 0)
    entry = layout.ENTRY.pack(
        1, 0, 0, 77 if change == "kind" else 1, 0, 0, bytes(16), 1, 8192 if change == "nbytes" else 4096, 4096, 0, 0, 0,
        bytes(24), 0, 0, bytes(128),
    )  # fmt: skip
    os.pwrite(table, entry, layout.TABLE_ENTRIES)
    if change == "deadlines":  # the words that follow the entries are none
        os.pwrite(table, entry[:20] + struct.pack("<I", 2) + entry[24:], layout.DEADLINES)
    os.pwrite(table, struct.pack("<II", 2**32 - 1 if change == "device" else 0, 2**32 - 1), layout.TABLE_ENTRIES + 120)
    for fd in (table, commons):
        if not (change == "seals" and fd == table):
            fcntl.fcntl(fd, 1033, seals)
    if change != "lock":
        assert _native.lock(commons, layout.LIFE)
    kept["fds"] = [table, commons]
    return [table, commons]


@pytest.mark.usefixtures("no_fd_leak")
@pytest.mark.parametrize(
    "change",
    ["magic", "version", "size", "seals", "other commons", "commons size", "commons cookie", "kind", "nbytes", "lock"],
)
def test_a_table_that_makes_no_sense_is_passed_over(change: str) -> None:
    with Child() as child:
        child.call(forge, change)
        assert not rows_of(child.pid)


@pytest.mark.parametrize("change", ["", "device", "deadlines"])
def test_a_table_that_makes_sense(change: str) -> None:
    # What the test above is measured against; an unknown device and a time in the future are not a reason to hide it.
    with Child() as child:
        child.call(forge, change)
        rows = rows_of(child.pid)
        row = rows.pop("memory")
        assert not rows
        assert (row["nbytes"], row["backend"], row["device"], row["age"]) == (4096, None, None, 0)


def test_few_file_descriptors_hide_nothing(exporter: Child) -> None:
    """Each number of them is too small, or shows all."""
    exporter.call(export_all)

    def look(pid: int) -> list[str]:
        xs.shares()  # loads the modules
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = [os.open("/", os.O_PATH) for _ in range(8)]
        seen = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    free.append(os.dup(free[0]))
            for _ in range(8):
                try:
                    seen.append(" ".join(sorted(rows_of(pid))))
                except xs.OutOfMemoryError as error:
                    seen.append("too few" if "ulimit -n" in str(error) else str(error))
                os.close(free.pop())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in free:
                os.close(fd)
        return seen

    with Child() as child:
        seen = child.call(look, exporter.pid)
    assert seen == sorted(seen, key="too few".__ne__)
    assert set(seen) == {"too few", "event memory physical_memory"}


@pytest.mark.parametrize("first", ["", "import concurrent.futures.thread"])
def test_at_the_exit_of_the_interpreter(exporter: Child, first: str) -> None:
    """No more threads can be had then."""
    exporter.call(export_all)
    program = f"""
import atexit
import xpushare as xs
{first}
atexit.register(lambda: print(*sorted(row["kind"] for row in xs.shares() if row["exporter"] == {exporter.pid})))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["event", "memory", "physical_memory"]
    assert not done.stderr


def test_names_are_printable(exporter: Child) -> None:
    def rename() -> None:
        assert ctypes.CDLL(None).prctl(15, b"a\n\x1b[31mb", 0, 0, 0) == 0

    exporter.call(export_all)
    exporter.call(rename)
    assert rows_of(exporter.pid)["memory"]["exporter_name"] == r"a\n\x1b[31mb"


def works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False, timeout=10).returncode == 0


@pytest.mark.skipif(not works(*SETPRIV), reason="needs setpriv and the right to use it")
def test_a_process_that_may_not_be_looked_into_is_named() -> None:
    with Child() as hidden:
        hidden.call(export_all)
        hidden.call(lambda: ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
        printed = json.loads(ls("--json", prefix=SETPRIV).stdout)
        assert hidden.pid in [each["pid"] for each in printed["unread"]]
        assert hidden.pid not in [row["exporter"] for row in printed["rows"]]
        text = ls(prefix=SETPRIV).stdout
        assert "may not look into them" in text
        assert re.search(r"\bpid \d+ \(.+\)", text)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_other_users_are_left_alone(exporter: Child) -> None:
    exporter.call(export_all)

    def look() -> tuple[list[int], list[int]]:
        survey()
        become_another_user(12345)
        found = survey()
        return [row["exporter"] for row in found.rows], [each.pid for each in found.unread]

    with Child() as stranger:
        rows, unread = stranger.call(look)
    assert exporter.pid not in rows
    assert exporter.pid not in unread


def test_what_changes_while_it_is_read_is_left_out() -> None:
    def entries(*generations: int) -> bytes:
        return b"".join(struct.pack("<Q", each).ljust(layout.ENTRY_NBYTES, b"\0") for each in generations)

    assert changed(entries(1, 2, 3), entries(1, 2, 3)) == set()
    assert changed(entries(1, 2, 3), entries(1, 9, 0)) == {1, 2}
    assert changed(entries(1, 2, 3), entries(1, 2)) == {2}


def test_readable_sizes() -> None:
    assert [readable(n) for n in (0, 80, 1024, 1536, 1 << 20, (1 << 30) - 1, 5 << 40, 1 << 63)] == [
        "0 bytes", "80 bytes", "1 KiB", "1.5 KiB", "1 MiB", "1024 MiB", "5 TiB", "8 EiB",
    ]  # fmt: skip


def test_the_layout_is_the_documented_one() -> None:
    assert struct.calcsize("<8sI4x16s") == layout.COMMONS.size == 32
    assert layout.MEMBER.size == 64
    assert layout.TABLE_DEVICES + layout.DEVICE_COUNT * layout.DEVICE.size == layout.TABLE_ENTRIES
    assert layout.HOLDERS + layout.ENTRY_COUNT * layout.HOLDER_NBYTES == 0x2100000
