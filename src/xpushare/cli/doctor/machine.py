"""Check the kernel, /proc and the limits of this process, and for a container around it: system call filters,
namespaces and other restrictions.
"""

from __future__ import annotations

import errno
import math
import os
import platform
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from xpushare.adapters.vendor import Check
from xpushare.common.system import is_wsl

__all__ = ["Orphan", "examine", "kernel", "kernel_version", "memory_limit", "needs", "status", "yama"]

_SMALL_MEMORY: Final = 256 << 20
_FEW_FDS: Final = 256


def examine() -> Iterator[Check]:
    yield kernel(kernel_version(), platform.release())
    yield _proc()
    yield from _memfd()
    yield _open_files()
    yield _memory_limit()
    yield _processors()
    yield from _container()


def kernel_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found[1]), int(found[2])) if found else (0, 0)


def kernel(version: tuple[int, int], release: str) -> Check:
    """Report which needed features a kernel of this version lacks."""
    name = "kernel"
    if version < (5, 1):
        return Check("machine", name, "fails", f"{release} has no F_SEAL_FUTURE_WRITE (Linux 5.1)", "a newer kernel")
    if version < (5, 3):
        why = f"{release} has no pidfd_open (Linux 5.3), which every route needs"
        return Check("machine", name, "fails", why, "a newer kernel")
    if version < (5, 6):
        why = f"{release} has no pidfd_getfd (Linux 5.6): only the socket route works"
        return Check("machine", name, "limited", why, "a newer kernel")
    return Check("machine", name, "works", release)


def _proc() -> Check:
    fix = "mount -t proc proc /proc (in the PID namespace of this process)"
    try:
        shown = os.readlink("/proc/self")
        for kind in ("pid", "net"):
            os.stat(f"/proc/self/ns/{kind}")
        Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError as error:
        why = f"{error.filename}: {error.strerror}; it names the boot, the namespaces and the devices"
        return Check("machine", "/proc", "fails", why, fix)
    if shown != str(os.getpid()):
        why = f"/proc shows this process as {shown}, its pid is {os.getpid()}: it is that of another PID namespace"
        return Check("machine", "/proc", "fails", why, fix)
    return Check("machine", "/proc", "works", "shows this process and its namespaces")


class Needs(NamedTuple):
    """What the shared files of one exporter need, in MiB: the size of the largest, and addresses for all of them."""

    file: int
    addresses: int


def needs() -> Needs:
    from xpushare.sharing import layout

    files = layout.COMMONS_NBYTES, layout.TABLE_NBYTES
    return Needs(math.ceil(max(files) / (1 << 20)), math.ceil(sum(files) / (1 << 20)))


def _why_no_file(error: OSError) -> tuple[str, str]:
    """Return why a memfd of the needed size could not be made, and what to change."""
    text = error.strerror or str(error)
    if error.errno == errno.EFBIG:
        size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        why = f"{text}: RLIMIT_FSIZE is {size} bytes, sparse files of {needs().file} MiB are needed"
        return why, "ulimit -f unlimited"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return text, "ulimit -n 4096"
    if error.errno == errno.ENOMEM:
        size = resource.getrlimit(resource.RLIMIT_AS)[0]
        if size != resource.RLIM_INFINITY:
            why = f"{text}: RLIMIT_AS is {size} bytes, each peer takes {needs().addresses} MiB of addresses"
            return why, "ulimit -v unlimited"
        return text, "free memory, or raise the container's limit (docker run --memory)"
    return text, "allow memfd_create, ftruncate and fcntl(F_ADD_SEALS) in the seccomp profile or the LSM's policy"


def _memfd() -> Iterator[Check]:
    """Make, seal and map a memfd as an exporter does, and report whether this works."""
    from xpushare.common import system
    from xpushare.sharing import layout

    try:
        fd = system.memfd("xpushare-doctor").take()
    except OSError as error:
        text = error.strerror or str(error)
        fix = "allow memfd_create in the seccomp profile"
        try:
            if Path("/proc/sys/vm/memfd_noexec").read_text().strip() == "2" and error.errno == errno.EACCES:
                text, fix = f"{text}: vm.memfd_noexec is 2", "sysctl vm.memfd_noexec=1"
        except OSError:
            pass  # the kernel has no such setting
        if error.errno in (errno.EMFILE, errno.ENFILE):
            fix = "ulimit -n 4096"
        yield Check("machine", "memfd_create", "fails", text, fix)
        return
    try:
        system.resize(fd, layout.COMMONS_NBYTES)
        system.seal(fd, system.F_SEAL_SHRINK | system.F_SEAL_GROW | system.F_SEAL_FUTURE_WRITE | system.F_SEAL_SEAL)
        yield Check("machine", "memfd_create", "works", "sparse files can be made and sealed")
        first = system.Mapping(fd, layout.COMMONS_NBYTES, 0, False)
        second = system.Mapping(fd, layout.TABLE_NBYTES, 0, False)
        del first, second
        why = f"there is room for the shared files of an exporter ({needs().addresses} MiB)"
        yield Check("machine", "address space", "works", why)
    except OSError as error:
        why, fix = _why_no_file(error)
        yield Check("machine", "address space" if error.errno == errno.ENOMEM else "memfd_create", "fails", why, fix)
    finally:
        os.close(fd)


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    why = f"{soft} per process; every allocation that is shared and every peer takes some"
    if soft == resource.RLIM_INFINITY or soft >= _FEW_FDS:
        return Check("machine", "open files", "works", why)
    fix = f"ulimit -n {hard}" if hard >= _FEW_FDS else "raise the hard limit: docker run --ulimit nofile=65536"
    return Check("machine", "open files", "limited", why, fix)


def memory_limit(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the memory limit of this process's cgroup and the cgroups above it, in bytes. Return None if no limit is
    set.
    """
    folders: list[tuple[Path, Path, str]] = []
    try:
        for line in own.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" and not controllers:
                folders.append((root, root / path.lstrip("/"), "memory.max"))
            elif "memory" in controllers.split(","):
                top = root / "memory"
                folders.append((top, top / path.lstrip("/"), "memory.limit_in_bytes"))
    except (OSError, ValueError):
        return None
    found: list[int] = []
    for top, folder, name in folders:
        for each in (folder, *folder.parents):
            if each != top and top not in each.parents:
                break
            try:
                found.append(int((each / name).read_text()))
            except (OSError, ValueError):
                pass  # "max", or not shown in this container
    limit = min(found, default=None)
    return None if limit is None or limit >= 1 << 60 else limit  # version 1 reports a huge number if there is no limit


def _memory_limit() -> Check:
    limit = memory_limit()
    if limit is None:
        return Check("machine", "memory limit", "works", "no cgroup limits this process's memory")
    why = f"{limit >> 20} MiB for this cgroup: shared host memory counts for whoever touches it first"
    if limit < _SMALL_MEMORY:
        return Check("machine", "memory limit", "limited", why, "docker run --memory=1g; Kubernetes: resources.limits")
    return Check("machine", "memory limit", "works", why)


def _processors() -> Check:
    count = len(os.sched_getaffinity(0))
    if count == 1:
        why = "one only: where its peers share it, an event costs a change of threads"
        return Check("machine", "processors", "limited", why, "taskset, or docker run --cpuset-cpus, with two or more")
    return Check("machine", "processors", "works", f"{count} for this process")


# --- containers -------------------------------------------------------------------------------------------------------

_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC  # the kernel's PROC_PID_INIT_INO


def _container() -> Iterator[Check]:
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
