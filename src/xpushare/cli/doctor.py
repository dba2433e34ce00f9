"""What can and cannot be shared on this machine or in this container, tried for real, and what to change.

Starts processes of its own that share memory, physical memory and events on each device by each route alone; they use
a key and folder of their own, so nothing of yours changes. Exit status 0 when memory and events can be shared on every
device by at least one route and the user's folder and key are sound, else 1. With --pid: can this process reach what
that one shares, and if not, why.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import math
import os
import platform
import re
import resource
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import xpushare as xs
from xpushare._system import is_wsl
from xpushare.adapters.vendor import Check

__all__ = ["Check", "add_arguments", "run"]

KINDS: Final = ("memory", "physical_memory", "event")
ROUTES: Final = ("pidfd_getfd", "socket")
_DATA: Final = b"xpushare doctor: from the exporter".ljust(64, b".")
_ANSWER: Final = b"xpushare doctor: from the importer".ljust(64, b".")
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel
_CAP_SYS_PTRACE: Final = 19
_PR_GET_DUMPABLE: Final = 3
_PTRACE_CAP: Final = (
    "docker run --cap-add=SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE] (the importer)"
)
_SMALL_MEMORY: Final = 256 << 20
_FEW_FDS: Final = 256
_REPORT: Final = "xpushare info --json, and report it with this text"


# --- the processes that share ---------------------------------------------------------------------


class _Failed(Exception):
    """What one of the processes was asked for did not work. `kind` is the error's class."""

    def __init__(self, kind: str, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.errno = number


def _poke(target: Any, device: str, data: bytes) -> None:
    try:
        view = memoryview(target)
    except BufferError:
        with xs.Queue(device) as queue, xs.malloc_host(len(data), device) as staging:
            memoryview(staging)[:] = data
            queue.copy(target, staging, len(data))
            queue.synchronize()
    else:
        view[: len(data)] = data


def _peek(target: Any, device: str, nbytes: int) -> bytes:
    try:
        view = memoryview(target)
    except BufferError:
        with xs.Queue(device) as queue, xs.malloc_host(nbytes, device) as staging:
            queue.copy(staging, target, nbytes)
            queue.synchronize()
            return bytes(memoryview(staging))
    return bytes(view[:nbytes])


def _expect(target: Any, device: str, data: bytes) -> None:
    found = _peek(target, device, len(data))
    if found != data:
        raise RuntimeError(f"other bytes than were written: {found[:16]!r}… for {data[:16]!r}…")


def _mapped(physical: xs.PhysicalMemory) -> xs.VirtualRange:
    place = xs.VirtualRange(physical.nbytes, physical.device)
    place.map(physical)
    return place


def _tried(call: Callable[[], int]) -> int:
    """errno of a call that returns an fd, which is closed; 0."""
    try:
        os.close(call())
    except OSError as error:
        return error.errno or -1
    return 0


def probe(pid: int, fd: int) -> dict[str, int]:
    """errno of pidfd_open, of pidfd_getfd on this very process (needs no right at all), and on that one."""
    from xpushare import _native

    found = {"open": 0, "self": 0, "get": 0}
    try:
        own = os.pidfd_open(os.getpid())
        found["self"] = _tried(lambda: _native.pidfd_getfd(own, own))
        os.close(own)
        other = os.pidfd_open(pid)
    except OSError as error:
        found["open"] = error.errno or -1
        return found
    found["get"] = _tried(lambda: _native.pidfd_getfd(other, fd))
    os.close(other)
    if found["get"] == errno.EBADF:  # the right is asked before the number
        found["get"] = 0
    return found


def _status(pid: int | str = "self") -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


class _Side:
    """What the processes can be asked to do; runs in them."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._device: dict[str, str] = {}

    def hello(self) -> dict[str, Any]:
        found: dict[str, Any] = {"dumpable": ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)}
        try:
            found["status"] = _status()
        except OSError:
            found["status"] = {}
        return found

    def probe(self, pid: int) -> dict[str, int]:
        return probe(pid, 0)

    def offer(self, key: str, device: str, kind: str) -> str:
        """Make an object of that kind and a handle of it."""
        self._device[key] = device
        if kind == "memory":
            memory = self._kept[key] = xs.malloc_device(4096, device)
            _poke(memory, device, _DATA)
            return str(xs.ipc.memory.get(memory))
        if kind == "physical_memory":
            physical = xs.PhysicalMemory(xs.Device(device).memory_granularity(), device, enable_ipc=True)
            place = self._kept[key] = _mapped(physical)
            _poke(place, device, _DATA)
            self._kept[key + " pages"] = physical
            return str(xs.ipc.physical_memory.get(physical))
        event = self._kept[key] = xs.Event(device, enable_ipc=True)
        return str(xs.ipc.event.get(event))

    def take(self, key: str, device: str, kind: str, handle: str) -> None:
        """Open a handle; of memory, check the bytes and write an answer."""
        self._device[key] = device
        if kind == "event":
            self._kept[key] = xs.ipc.event.open(handle)
            return
        if kind == "memory":
            self._kept[key] = xs.ipc.memory.open(handle)
        else:
            self._kept[key] = _mapped(xs.ipc.physical_memory.open(handle))
        _expect(self._kept[key], device, _DATA)
        _poke(self._kept[key], device, _ANSWER)

    def expect_answer(self, key: str) -> None:
        _expect(self._kept[key], self._device[key], _ANSWER)

    def two_way(self, device: str) -> bool:
        return xs.Device(device).has(xs.Aspect.two_way_events)

    def signal(self, key: str) -> None:
        with xs.Queue(self._device[key]) as queue:
            queue.signal(self._kept[key])
            queue.synchronize()

    def wait(self, key: str, point: int, timeout: float) -> None:
        self._kept[key].wait(timeout, at_least=point)

    def lost(self, key: str, timeout: float) -> float:
        """Wait for what a process owes that is about to die; when its loss was seen, on the clock of all processes."""
        try:
            self._kept[key].wait(timeout, at_least=1)
        except xs.PeerLostError:
            return time.monotonic()
        raise RuntimeError("the wait ended as if the dead had signalled")

    def futex_sleep(self, fd: int, timeout: float) -> bool:
        from xpushare import _native

        word = _native.Mapping(fd, 4096)
        return _native.futex_wait(word.address, 0, timeout, 0.0)

    def futex_wake(self, fd: int, timeout: float) -> int:
        """Wake whoever sleeps there, once it does; how many it were."""
        from xpushare import _native

        word = _native.Mapping(fd, 4096)
        end = time.monotonic() + timeout
        while not (woken := _native.futex_wake(word.address)) and time.monotonic() < end:
            time.sleep(0.001)
        return woken

    def fork(self, device: str, handle: str, timeout: float) -> str:
        """Open memory, fork, and open it in the child anew; how that went: "" is well."""
        memory = xs.ipc.memory.open(handle)
        _expect(memory, device, _DATA)
        reads, writes = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: forking beside threads is what is tried
            pid = os.fork()
        if not pid:
            text = "it crashed"
            try:
                _expect(xs.ipc.memory.open(handle), device, _DATA)
                text = ""
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            finally:
                os.write(writes, text.encode()[:4096])
                os._exit(0)
        os.close(writes)
        ready = select.select([reads], [], [], timeout)[0]
        if not ready:
            os.kill(pid, signal.SIGKILL)
        found = os.read(reads, 4096).decode() if ready else f"no end within {timeout:g} s"
        os.close(reads)
        status = os.waitpid(pid, 0)[1]
        return found or (f"it ended with status {status}" if status else "")


def serve(fd: int, only: str) -> None:
    """Main function of the processes: do as asked, until the other end is closed. `only`: the one route to use."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the doctor ends us
    from xpushare.sharing import routes

    if only:
        routes._known = tuple(route for route in routes._routes() if route.name == only)
    side = _Side()
    with socket.socket(fileno=fd) as connection, connection.makefile("rwb") as stream:
        for line in stream:
            name, *arguments = json.loads(line)
            answer: dict[str, Any]
            try:
                answer = {"value": getattr(side, name)(*arguments)}
            except Exception as error:
                number = getattr(error, "native", None) or getattr(error, "errno", None)
                reasons = getattr(error, "reasons", ())
                text = "; ".join(reasons) or str(error) or type(error).__name__
                answer = {"kind": type(error).__name__, "text": text, "errno": number}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


class _Process:
    """One of them, as the doctor sees it."""

    def __init__(self, name: str, only: str, folder: str, timeout: float, fds: tuple[int, ...] = ()) -> None:
        self.name = name
        self._timeout = timeout
        here, there = socket.socketpair()
        source = f"import sys; sys.path[:] = {sys.path!r}; from xpushare.cli.doctor import serve; "
        source += f"serve({there.fileno()}, {only!r})"
        environment = {**os.environ, "XPUSHARE_RUNTIME_DIR": folder}
        environment.pop("XPUSHARE_KEY_FILE", None)
        with there:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", source],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(there.fileno(), *fds),
                )
            except OSError as error:
                here.close()
                raise _Failed("OSError", f"no process can be started: {error.strerror}", error.errno) from None
        self._connection = here
        self._stream = here.makefile("rb")
        self.pid = self._process.pid

    def send(self, name: str, *arguments: Any) -> None:
        try:
            self._connection.settimeout(self._timeout)
            self._connection.sendall(json.dumps([name, *arguments]).encode() + b"\n")
        except OSError:
            raise self._ended() from None

    def receive(self) -> Any:
        try:
            line = self._stream.readline()
        except TimeoutError:
            self.kill()
            raise _Failed("TimeoutError", f"the {self.name} did not answer within {self._timeout:g} s") from None
        except OSError:
            line = b""
        if not line:
            raise self._ended()
        answer = json.loads(line)
        if "kind" in answer:
            raise _Failed(answer["kind"], answer["text"], answer["errno"])
        return answer["value"]

    def call(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        return self.receive()

    def _ended(self) -> _Failed:
        self.kill()
        assert self._process.stderr is not None
        lines = [] if self._process.stderr.closed else self._process.stderr.read().decode(errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), f"exit status {self._process.returncode}")
        return _Failed("Ended", f"the {self.name} ended: {said}")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Whatever happened, no process and no fd stays."""
        self._stream.close()
        self._connection.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self._process.stderr is not None
        self._process.stderr.close()


# --- the machine ----------------------------------------------------------------------------------


def _kernel_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found[1]), int(found[2])) if found else (0, 0)


def kernel(version: tuple[int, int], release: str) -> Check:
    """What a kernel of that version lacks."""
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


def _why_no_file(error: OSError) -> tuple[str, str]:
    """What kept memfds of our size from being made, and what to change."""
    text = error.strerror or str(error)
    if error.errno == errno.EFBIG:
        size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return f"{text}: RLIMIT_FSIZE is {size} bytes, sparse files of 98 MiB are needed", "ulimit -f unlimited"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return text, "ulimit -n 4096"
    if error.errno == errno.ENOMEM:
        size = resource.getrlimit(resource.RLIMIT_AS)[0]
        if size != resource.RLIM_INFINITY:
            return f"{text}: RLIMIT_AS is {size} bytes, each peer takes 162 MiB of addresses", "ulimit -v unlimited"
        return text, "free memory, or raise the container's limit (docker run --memory)"
    return text, "allow memfd_create, ftruncate and fcntl(F_ADD_SEALS) in the seccomp profile or the LSM's policy"


def _memfd() -> Iterator[Check]:
    """Make, seal and map what an exporter needs."""
    from xpushare import _system
    from xpushare.sharing import layout

    try:
        fd = _system.memfd("xpushare-doctor")
    except OSError as error:
        text = error.strerror or str(error)
        fix = "allow memfd_create in the seccomp profile"
        try:
            if Path("/proc/sys/vm/memfd_noexec").read_text().strip() == "2" and error.errno == errno.EACCES:
                text, fix = f"{text}: vm.memfd_noexec is 2", "sysctl vm.memfd_noexec=1"
        except OSError:
            pass  # no such setting
        if error.errno in (errno.EMFILE, errno.ENFILE):
            fix = "ulimit -n 4096"
        yield Check("machine", "memfd_create", "fails", text, fix)
        return
    try:
        _system.resize(fd, layout.COMMONS_NBYTES)
        _system.seal(
            fd, _system.F_SEAL_SHRINK | _system.F_SEAL_GROW | _system.F_SEAL_FUTURE_WRITE | _system.F_SEAL_SEAL
        )
        yield Check("machine", "memfd_create", "works", "sparse files can be made and sealed")
        first = _system.Mapping(fd, layout.COMMONS_NBYTES, 0, False)
        second = _system.Mapping(fd, layout.TABLE_NBYTES, 0, False)
        del first, second
        yield Check("machine", "address space", "works", "there is room for the shared files of an exporter (162 MiB)")
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
    """Bytes that this process's cgroup, or one above it, may use; None where nothing says so."""
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
    return None if limit is None or limit >= 1 << 60 else limit  # version 1 says no limit with a huge number


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
        why = "one only: waits cannot spin, so an event costs a change of threads"
        return Check("machine", "processors", "limited", why, "taskset, or docker run --cpuset-cpus, with two or more")
    return Check("machine", "processors", "works", f"{count} for this process")


def _seccomp() -> Iterator[Check]:
    try:
        mode = _status().get("Seccomp", "0")
    except OSError:
        return
    if mode == "2":
        yield Check("machine", "seccomp", "note", "a filter is on; what it blocks shows below")


def _yama() -> str:
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
            continue  # it may not be looked into
        if apart:
            why = f"not that of {name}: to other network namespaces only pidfd_getfd goes, the socket route ends here"
            yield Check("machine", "network namespace", "note", why)
            return


class _Orphan:
    """A process without a parent: whoever adopts it has to take its exit status. Looked at as late as can be."""

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


# --- folder, key, devices -------------------------------------------------------------------------


def _private_fix(path: Path, mode: str) -> str:
    try:
        found = path.lstat()
    except OSError:
        return "set XPUSHARE_RUNTIME_DIR to a folder of yours"
    if stat.S_ISLNK(found.st_mode):
        return f"replace the link {path} by what it points to, or name that in the environment"
    if found.st_uid != os.geteuid():
        return f"chown {os.geteuid()} {path}, or set XPUSHARE_RUNTIME_DIR to a folder of yours"
    return f"chmod {mode} {path}"


def _folder_and_key() -> Iterator[Check]:
    from xpushare.sharing import identity

    group, elsewhere = "folder and key", "set XPUSHARE_RUNTIME_DIR to a folder of yours"
    folder = identity._choose_dir()
    explicit = os.environ.get("XPUSHARE_KEY_FILE")
    key = Path(explicit) if explicit else folder / "key"
    sound = True
    try:
        identity.check_folder(folder)
        yield Check(group, "runtime folder", "works", f"{folder}, yours alone")
    except FileNotFoundError:
        sound = os.access(folder.parent, os.W_OK | os.X_OK)
        if sound:
            yield Check(group, "runtime folder", "works", f"{folder} is made by the first export")
        else:
            yield Check(group, "runtime folder", "fails", f"{folder} cannot be made in {folder.parent}", elsewhere)
    except OSError as error:
        sound = False
        yield Check(group, "runtime folder", "fails", f"{folder}: {error.strerror}", elsewhere)
    except xs.InvalidArgumentError as error:
        sound = False
        yield Check(group, "runtime folder", "fails", str(error), _private_fix(folder, "0700"))
    if not sound and not explicit:
        return  # without its folder there is no key
    try:
        identity._read_key(key)
        yield Check(group, "key", "works", f"{key}, yours alone")
    except xs.InvalidArgumentError as error:
        make = f"(umask 077; head -c 32 /dev/urandom > {key})"
        if error.native == errno.ENOENT and not explicit:
            if not folder.exists() or os.access(folder, os.W_OK | os.X_OK):
                yield Check(group, "key", "works", f"{key} is made by the first export")
            else:
                yield Check(group, "key", "fails", f"{key} cannot be made", elsewhere)
        elif error.native is not None:
            fix = make if error.native == errno.ENOENT else f"let this user read {key}, or unset XPUSHARE_KEY_FILE"
            yield Check(group, "key", "fails", str(error), fix)
        else:
            fix = _private_fix(key, "0600")
            if "32 raw" in str(error):
                fix = make if explicit else f"rm {key}, and end the processes that use it"
            yield Check(group, "key", "fails", str(error), fix)


def _devices(selector: str | None) -> tuple[list[xs.Device], list[Check]]:
    """The devices to try, and what hides others."""
    from xpushare import adapters

    group = "devices"
    checks: list[Check] = []
    for record in adapters.vendors():
        checks += record.examine()
    checks += [Check(group, f"adapter {each.name}", "limited", each.why, each.fix) for each in adapters.problems()]
    variable = os.environ.get("ONEAPI_DEVICE_SELECTOR")
    try:
        found = xs.devices(selector)
    except xs.InvalidArgumentError as error:
        return [], [*checks, Check(group, "selector", "fails", str(error), "unset ONEAPI_DEVICE_SELECTOR")]
    except OSError as error:
        return [], [*checks, Check(group, "list", "fails", str(error), "mount -t proc proc /proc")]
    every = sum(len(adapters.listed(record.backend)) for record in adapters.vendors() if not record.selected_only)
    if not found:
        said = [f"ONEAPI_DEVICE_SELECTOR={variable}"] if variable else []
        said += [f"--device {selector}"] if selector else []
        fix = "unset ONEAPI_DEVICE_SELECTOR" if variable else "another --device"
        why = f"{' and '.join(said)} leaves none of the {every} devices" if said else "there is no device"
        checks.append(Check(group, "selector", "fails", why, fix))
    elif variable and len(found) < every:
        why = f"ONEAPI_DEVICE_SELECTOR={variable} leaves {len(found)} of {every}"
        checks.append(Check(group, "selector", "note", why))
    return found, checks


# --- pidfd_getfd: why not -------------------------------------------------------------------------


def why_no_getfd(
    found: dict[str, int], importer: dict[str, str], exporter: dict[str, str], dumpable: int | None, yama: str
) -> tuple[str, str]:
    """Why a probe of pidfd_getfd failed, and what to change.

    `importer` and `exporter` are /proc/<pid>/status; `dumpable` is what prctl(PR_GET_DUMPABLE) says, None: unknown.
    """
    release = platform.release()
    for step, call, since in (("open", "pidfd_open", (5, 3)), ("self", "pidfd_getfd", (5, 6))):
        number = found[step]
        if number == errno.ESRCH:
            return "there is no such process", "another pid"
        if number and _kernel_version() < since:
            return f"kernel {release} has no {call}", f"Linux {since[0]}.{since[1]} or newer"
        if number in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            why = f"seccomp blocks {call} ({errno.errorcode[number]}, also on this very process)"
            if call == "pidfd_getfd":
                return why, f"{_PTRACE_CAP}: the default profile allows the call with it; or allow it in yours"
            return why, f"allow {call} in the seccomp profile"
        if number:
            return f"{call}: {os.strerror(number)}", "ulimit -n 4096" if number == errno.EMFILE else "see errno(3)"
    if found["get"] != errno.EPERM:
        return f"pidfd_getfd: {os.strerror(found['get'])}", "start the exporter anew"
    mine, theirs = importer.get("Uid", "?").split(), exporter.get("Uid", "?").split()
    if mine[0] not in theirs[:3] or len(set(theirs[:3])) > 1:
        return (
            f"the exporter runs as user {theirs[0]}, the importer as {mine[0]}",
            "run both as one user: handles of another user's key are refused on every route",
        )
    if yama != "0":
        who = {"1": "only ancestors may", "2": "only with CAP_SYS_PTRACE"}.get(yama, "nobody may")
        fix = f"sysctl kernel.yama.ptrace_scope=0, or {_PTRACE_CAP}"
        return f"Yama's ptrace_scope is {yama}: {who}", fix if yama in ("1", "2") else "start the machine without it"
    if dumpable is not None and dumpable != 1:
        why = "the exporter is not dumpable: its program has privileges, cannot be read, or called prctl"
        return why, f"prctl(PR_SET_DUMPABLE, 1) in the exporter, or {_PTRACE_CAP}"
    more = int(exporter.get("CapPrm", "0"), 16) & ~int(importer.get("CapPrm", "0"), 16)
    if more:
        names = ", ".join(str(bit) for bit in range(64) if more >> bit & 1)
        return (
            f"the exporter has capabilities that the importer lacks (numbers {names})",
            f"run both with the same capabilities, or {_PTRACE_CAP}",
        )
    return (
        "the exporter is not dumpable, in another user namespace, or a security module forbids it",
        f"prctl(PR_SET_DUMPABLE, 1) in the exporter, or {_PTRACE_CAP}",
    )


# --- sharing, tried -------------------------------------------------------------------------------


def _fix_of(failed: _Failed) -> str:
    if failed.errno in (errno.EMFILE, errno.ENFILE):
        return "ulimit -n 4096"
    if failed.errno == errno.ENOMEM or "cannot be mapped" in str(failed):
        return "ulimit -v unlimited, and more memory for the container (docker run --memory)"
    if failed.errno == errno.EFBIG:
        return "ulimit -f unlimited"
    if failed.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return "allow the call that it names in the seccomp profile or the security module's policy"
    if "pidfd_open" in str(failed):
        return "allow pidfd_open in the seccomp profile"
    if "socket" in str(failed):
        return "allow AF_UNIX sockets in the seccomp profile; one network namespace for both (--network=container:…)"
    return _REPORT


class _Trial:
    """The processes, and what they found."""

    def __init__(self, devices: list[xs.Device], timeout: float, folder: str) -> None:
        self._devices = devices
        self._timeout = timeout
        self._processes: list[_Process] = []
        self._folder = folder
        self._word = -1
        self._good: dict[tuple[str, str], list[str]] = {}  # (device, kind) -> routes
        self._bad: dict[tuple[str, str], dict[str, _Failed]] = {}
        self._fixes: dict[str, str] = {}  # route -> what would open it
        self._keys: dict[str, str] = {}  # route -> a memory that its importer has open

    def _start(self, name: str, only: str = "") -> _Process:
        made = _Process(name, only, self._folder, self._timeout, () if self._word < 0 else (self._word,))
        self._processes.append(made)
        return made

    def close(self) -> None:
        for process in self._processes:
            process.end()
        if self._word >= 0:
            os.close(self._word)

    def run(self) -> Iterator[Check]:
        from xpushare import _system

        try:
            self._word = _system.memfd("xpushare-doctor-word")
            _system.resize(self._word, 4096)
        except OSError:
            pass  # said elsewhere; the futex is then not tried
        try:
            self._exporter = self._start("exporter")
            self._importers = {route: self._start(f"importer by {route}", route) for route in ROUTES}
            self._any = self._start("importer by any route")
            for process in self._processes:  # all of them at once, as each takes a while to start
                process.send("hello")
            greetings = {process.name: process.receive() for process in self._processes}
        except _Failed as failed:
            yield Check("processes", "start", "fails", str(failed), _fix_of(failed))
            for device in self._devices:
                for kind in KINDS:
                    yield Check(str(device), kind, "fails", "no processes to try it with", _fix_of(failed))
            return
        for device in self._devices:
            self._try_device(str(device))
        yield from self._routes(greetings)
        for device in self._devices:
            yield from self._results(str(device))
        yield self._futex()
        yield from self._fork()
        yield from self._death()

    def _try_device(self, device: str) -> None:
        for kind in KINDS:
            for route, importer in self._importers.items():
                try:
                    self._share(device, kind, route, importer)
                    self._good.setdefault((device, kind), []).append(route)
                except _Failed as failed:
                    self._bad.setdefault((device, kind), {})[route] = failed

    def _share(self, device: str, kind: str, route: str, importer: _Process) -> None:
        """One object of the kind by one route, there and back."""
        key = f"{device} {kind} {route}"
        handle = self._exporter.call("offer", key, device, kind)
        importer.call("take", key, device, kind, handle)
        if kind != "event":
            self._exporter.call("expect_answer", key)
            if kind == "memory":
                self._keys[route] = key
            return
        patience = self._timeout / 3
        self._exporter.call("signal", key)
        importer.call("wait", key, 1, patience)
        if self._exporter.call("two_way", device):
            importer.call("signal", key)
            self._exporter.call("wait", key, 2, patience)

    def _routes(self, greetings: dict[str, Any]) -> Iterator[Check]:
        for route, importer in self._importers.items():
            if not self._devices:
                yield Check("routes", route, "skipped", "there is no device to share on")
                continue
            if any(route in good for good in self._good.values()):
                yield Check("routes", route, "works", "between two processes of this user, neither the other's parent")
                continue
            failed = next((bad[route] for bad in self._bad.values() if route in bad), None)
            if failed is None or failed.kind not in ("RouteError", "Ended", "TimeoutError"):
                yield Check("routes", route, "skipped", f"nothing could be shared: {failed}")
                continue
            why, fix = str(failed), _fix_of(failed)
            if route == "pidfd_getfd":
                try:
                    found = importer.call("probe", self._exporter.pid)
                    if any(found.values()):
                        theirs = greetings[self._exporter.name]
                        mine = greetings[importer.name]["status"]
                        why, fix = why_no_getfd(found, mine, theirs["status"], theirs["dumpable"], _yama())
                except _Failed:
                    pass  # then the first failure is all there is to say
            self._fixes[route] = fix
            other = any(set(good) - {route} for good in self._good.values())
            yield Check("routes", route, "limited" if other else "fails", why, fix)

    def _futex(self) -> Check:
        group, name = "processes", "futex"
        if self._word < 0:
            return Check(group, name, "skipped", "it takes memfd_create")
        patience = self._timeout / 3
        sleeper, waker = self._importers[ROUTES[0]], self._importers[ROUTES[1]]
        try:
            sleeper.send("futex_sleep", self._word, patience)
            woken = waker.call("futex_wake", self._word, patience / 2)
            awake = sleeper.receive()
        except _Failed as failed:
            return Check(group, name, "fails", str(failed), "allow futex in the seccomp profile")
        if woken != 1 or not awake:
            return Check(group, name, "fails", f"{woken} processes were woken", "allow futex in the seccomp profile")
        return Check(group, name, "works", "one process wakes another")

    def _fork(self) -> Iterator[Check]:
        fix = 'multiprocessing.set_start_method("spawn")'
        for device in self._devices:
            name = f"fork, {device}"
            if (str(device), "memory") not in self._good:
                yield Check("processes", name, "skipped", "memory cannot be shared")
                continue
            try:
                handle = self._exporter.call("offer", f"{device} fork", str(device), "memory")
                found = self._any.call("fork", str(device), handle, self._timeout / 2)
            except _Failed as failed:
                yield Check("processes", name, "fails", str(failed), fix)
                continue
            if found:
                yield Check("processes", name, "limited", f"a forked child cannot open handles: {found}", fix)
            else:
                yield Check("processes", name, "works", "a forked child opens handles anew")

    def _results(self, device: str) -> Iterator[Check]:
        for kind in KINDS:
            good, bad = self._good.get((device, kind), []), self._bad.get((device, kind), {})
            if good:
                only = "" if len(good) == len(ROUTES) else " only"
                yield Check(device, kind, "works", f"by {' and '.join(good)}{only}")
                continue
            kinds = {failed.kind for failed in bad.values()}
            why = "; ".join(dict.fromkeys(str(failed) for failed in bad.values()))
            if kinds == {"FeatureNotSupportedError"}:
                yield Check(device, kind, "absent", why)
            else:
                by_route = [self._fixes[route] for route, failed in bad.items()
                            if failed.kind == "RouteError" and route in self._fixes]  # fmt: skip
                yield Check(device, kind, "fails", why, by_route[0] if by_route else _fix_of(next(iter(bad.values()))))

    def _death(self) -> Iterator[Check]:
        """The exporter is killed while an importer waits for it; last, as it takes the exporter."""
        name = "death"
        device = next((str(each) for each in self._devices if (str(each), "event") in self._good), None)
        if device is None:
            yield Check("processes", name, "skipped", "events cannot be shared")
            return
        routes = self._good[device, "event"]
        try:
            for route in routes:
                key = f"{device} death {route}"
                handle = self._exporter.call("offer", key, device, "event")
                self._importers[route].call("take", key, device, "event", handle)
                self._importers[route].send("lost", key, self._timeout / 2)
            time.sleep(0.05)  # asleep in their waits, most likely; seen dead before they wait is as good
            killed = time.monotonic()
            self._exporter.kill()
            late = max(self._importers[route].receive() - killed for route in routes)
            for route in routes:
                if self._keys.get(route, "").startswith(device + " "):
                    self._importers[route].call("expect_answer", self._keys[route])
        except _Failed as failed:
            yield Check("processes", name, "fails", str(failed), _REPORT)
            return
        why = f"a waiting process saw the exporter's death after {math.ceil(late * 1000)} ms, and still read its memory"
        slow = late > 1
        yield Check("processes", name, "limited" if slow else "works", why, "a less busy machine" if slow else None)


# --- one process in particular --------------------------------------------------------------------


def _listeners() -> list[bytes]:
    """Addresses of the exporters' sockets in this network namespace, whoever's they are."""
    found = re.findall(rb"@(xpushare/[0-9a-f]{32})$", Path("/proc/net/unix").read_bytes(), re.MULTILINE)
    return list(dict.fromkeys(found))


def _reach_socket(pid: int) -> Check:
    """Connect to every exporter here until one is that process."""
    from xpushare import _system

    name = "socket"
    try:
        addresses = _listeners()
    except OSError as error:
        return Check("routes", name, "skipped", f"/proc/net/unix: {error.strerror}", "mount -t proc proc /proc")
    for address in addresses:
        try:
            with _system.connect(address, 2.0) as connection:
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            continue  # it has ended, or another user's that we may not reach
        peer, uid, _gid = struct.unpack("iII", credentials)
        if peer == pid:
            if uid != os.geteuid():
                why = f"it serves its own user ({uid}) only, this process runs as {os.geteuid()}"
                return Check("routes", name, "fails", why, "run both as one user")
            return Check("routes", name, "works", "its socket takes connections from here")
    try:
        apart = os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    except OSError:
        apart = None
    if apart:
        fix = "share the network namespace: --network=container:…, hostNetwork, one pod"
        return Check("routes", name, "fails", "the process is in another network namespace", fix)
    why = "the process has no socket here: it shares nothing now"
    if apart is None:
        why += ", or is in another network namespace (which may not be asked)"
    return Check("routes", name, "skipped", why, "export something in that process first")


def _reach_getfd(pid: int) -> Check:
    name = "pidfd_getfd"
    found = probe(pid, 0)
    if not any(found.values()):
        try:
            apart = os.stat(f"/proc/{pid}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            apart = False
        if apart:
            fix = "share the PID namespace: --pid=container:…, hostPID, shareProcessNamespace"
            return Check("routes", name, "fails", "permitted, but its pids are those of another PID namespace", fix)
        return Check("routes", name, "works", "this process may take its file descriptors")
    try:
        theirs = _status(pid)
    except OSError:
        theirs = {}
    dumpable: int | None = None
    try:
        if os.stat(f"/proc/{pid}/environ").st_uid != os.stat(f"/proc/{pid}").st_uid:
            dumpable = 0  # proc(5): the files of such a process belong to root
    except OSError:
        pass
    why, fix = why_no_getfd(found, _status(), theirs, dumpable, _yama())
    return Check("routes", name, "fails", why, fix)


# --- the command ----------------------------------------------------------------------------------


def _machine() -> Iterator[Check]:
    yield kernel(_kernel_version(), platform.release())
    yield _proc()
    yield from _memfd()
    yield _open_files()
    yield _memory_limit()
    yield _processors()
    yield from _seccomp()
    if _yama() != "0":
        why = f"ptrace_scope is {_yama()}: it limits pidfd_getfd, not the socket route"
        yield Check("machine", "Yama", "note", why)
    yield from _namespaces()
    if is_wsl():
        yield Check("machine", "WSL", "note", "this is Windows' Linux")


def _everything(selector: str | None, timeout: float) -> Iterator[Check]:
    orphan = _Orphan()
    yield from _machine()
    yield from _folder_and_key()
    devices, checks = _devices(selector)
    yield from checks
    try:
        folder = tempfile.mkdtemp(prefix="xpushare-doctor-")
    except OSError as error:
        yield Check("processes", "start", "fails", f"no temporary folder: {error.strerror}", "set TMPDIR")
        return
    trial = _Trial(devices, timeout, folder)
    try:
        yield from trial.run()
    finally:
        trial.close()
        shutil.rmtree(folder, ignore_errors=True)
    yield orphan.fate()


def _bad(checks: list[Check]) -> list[str]:
    """What keeps memory or events from being shared; empty: nothing does."""
    found = [f"{check.group}: {check.name}" for check in checks
             if check.group in ("folder and key", "devices") and check.state == "fails"]  # fmt: skip
    found += [f"{check.group}: {check.name}" for check in checks
              if check.name in ("memory", "event") and check.state not in ("works", "limited")]  # fmt: skip
    if not any(check.name == "memory" for check in checks) and not found:
        found.append("no device was tried")
    return found


def _text(check: Check) -> str:
    fix = f"\n{'':33}→ {check.fix}" if check.fix else ""
    return f"  {check.state:<8} {check.name:<20}  {check.why}{fix}"


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time: a positive number of seconds")
    return value


def _pid(text: str) -> int:
    value = int(text)
    if not 0 < value < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text} is no pid")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="SELECTOR", help="only these, as in ONEAPI_DEVICE_SELECTOR")
    parser.add_argument("--pid", type=_pid, help="instead: can this process reach what that running one shares?")
    parser.add_argument("--timeout", type=_positive, default=30.0, metavar="S", help="seconds per step (default: 30)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """0 when memory and events can be shared on every device (with --pid: when a route reaches the process), else 1."""
    if sys.platform != "linux":
        raise xs.FeatureNotSupportedError("the native part of xpushare is built for Linux only")
    one = arguments.pid is not None
    source = iter((_reach_getfd(arguments.pid), _reach_socket(arguments.pid))) if one else _everything(
        arguments.device, arguments.timeout)  # fmt: skip
    checks: list[Check] = []
    group = ""
    for check in source:
        checks.append(check)
        if not arguments.json:
            if check.group != group:
                print(f"{'' if not group else chr(10)}{check.group}")
                group = check.group
            print(_text(check), flush=True)
    if one:
        wrong = [] if any(check.state == "works" for check in checks) else [f"no route to process {arguments.pid}"]
        well = f"process {arguments.pid} can be reached"
    else:
        wrong = _bad(checks)
        well = "memory and events can be shared on every device"
    if arguments.json:
        print(json.dumps({"works": not wrong, "wrong": wrong, "checks": [each._asdict() for each in checks]}, indent=2))
    else:
        print(f"\n{well}" if not wrong else f"\nDOES NOT WORK: {', '.join(wrong)}")
    return 1 if wrong else 0
