"""Check for a container around this process: system call filters, namespaces and other restrictions."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xpushare.adapters.vendor import Check
from xpushare.common.system import is_wsl

__all__ = ["Orphan", "examine", "status", "yama"]

_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC  # the kernel's PROC_PID_INIT_INO


def examine() -> Iterator[Check]:
    yield from _seccomp()
    if yama() != "0":
        why = f"ptrace_scope is {yama()}: it limits pidfd_getfd, not the socket route"
        yield Check("machine", "Yama", "note", why)
    yield from _namespaces()
    if is_wsl():
        yield Check("machine", "WSL", "note", "this is Windows' Linux")


def status(pid: int | str = "self") -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _seccomp() -> Iterator[Check]:
    try:
        mode = status().get("Seccomp", "0")
    except OSError:
        return
    if mode == "2":
        yield Check("machine", "seccomp", "note", "a filter is on; the checks below show what it blocks")


def yama() -> str:
    try:
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return "0"  # not built in


def _namespaces() -> Iterator[Check]:
    try:
        own = os.stat("/proc/self/ns/pid").st_ino
        first = Path("/proc/1/comm").read_text().strip()
    except OSError:
        return
    if own == _INITIAL_PID_NAMESPACE:
        yield Check("machine", "PID namespace", "note", "the host's")
    else:
        what = "this command itself" if os.getpid() == 1 else f"{first!r}"
        why = f"a container's, process 1 is {what}: to other PID namespaces only the socket route goes"
        yield Check("machine", "PID namespace", "note", why)
    for name, pid in (("process 1", 1), ("the parent process", os.getppid())):
        try:
            apart = os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
        except OSError:
            continue  # this process may not read it
        if apart:
            why = f"not that of {name}: to other network namespaces the socket route needs one runtime folder"
            yield Check("machine", "network namespace", "note", why)
            return


class Orphan:
    """A process whose parent has exited. It is made to test whether the process that adopts orphans here, often process
    1 of a container, reaps it. `fate` waits for this for up to two seconds after the start, so call it as late as
    possible.
    """

    def __init__(self) -> None:
        self._folder = Path("/")
        self._why = ""
        source = "sleep 0.02 >/dev/null 2>&1 & echo $!"
        try:
            done = subprocess.run(["/bin/sh", "-c", source], capture_output=True, text=True, timeout=10, check=True)
            self._folder = Path(f"/proc/{int(done.stdout)}")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._why = f"none could be made: {error}"
        self._end = time.monotonic() + 2

    def fate(self) -> Check:
        group, name = "processes", "orphans"
        fix = "docker run --init; Kubernetes: shareProcessNamespace: true, or an init such as tini"
        if os.getpid() == 1:
            return Check(group, name, "limited", "this command is process 1 of its namespace, and no init", fix)
        if self._why:
            return Check(group, name, "skipped", self._why)
        while True:
            try:
                state = (self._folder / "stat").read_text().rpartition(") ")[2][:1]
            except OSError:
                return Check(group, name, "works", "are taken care of by the process that adopts them")
            if time.monotonic() > self._end:
                break
            time.sleep(0.01)
        if state == "Z":
            why = (
                "stay zombies (one did, for two seconds): whoever adopts them does not wait for them, and pids run out"
            )
            return Check(group, name, "limited", why, fix)
        return Check(group, name, "skipped", "the one that was made did not end in time")
