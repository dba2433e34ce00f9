"""Boxes around a process, made of what container engines are made of, and what docs/containers.md says of each.

The page's table has a row for each box and a column for each form of memory. The tests put processes into the
boxes, and compare each cell with what happens.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from harness import Child, become_another_user

__all__ = [
    "BOXES",
    "KUBERNETES",
    "NEW_PIDS",
    "SETPRIV",
    "Box",
    "Cell",
    "Outcome",
    "filtered",
    "lacking",
    "rows",
    "tried",
    "without_bindings",
    "works",
]

SETPRIV: Final = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
NEW_PIDS: Final = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
PAGE: Final = Path(__file__).parent.parent / "docs" / "containers.md"
STRANGER: Final = 12345  # a user that the system does not know
_CLONE_NEWUSER: Final = 0x10000000
_PR_SET_DUMPABLE: Final = 4
_HEADER: Final = "| the importer has |"


def works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False, timeout=10).returncode == 0


# --- seccomp ----------------------------------------------------------------------------------------------------

_FILTER: Final = """
import ctypes, os, struct, sys
count = int(sys.argv[1])
code = struct.pack("<HBBI", 0x20, 0, 0, 0)  # load the number of the call
for text in sys.argv[2 : 2 + count]:
    number, error = map(int, text.split(":"))
    code += struct.pack("<HBBI", 0x15, 0, 1, number) + struct.pack("<HBBI", 0x06, 0, 0, 0x00050000 | error)
code += struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)  # all others are allowed
buffer = ctypes.create_string_buffer(code, len(code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(len(code) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit("no filter")
os.execvp(sys.argv[2 + count], sys.argv[2 + count :])
"""


def filtered(refused: Mapping[int, int]) -> list[str]:
    """A prefix under which system calls fail: those with these numbers, each with its error. No new privileges."""
    pairs = [f"{number}:{error}" for number, error in refused.items()]
    return [sys.executable, "-c", _FILTER, str(len(pairs)), *pairs]


# The calls that the default profiles refuse to a process without capabilities, as far as somebody could want them in
# order to share memory or to watch a process: numbers on x86_64 and aarch64. Docker's profile (moby
# profiles/seccomp/default_linux.go) allows `ptrace` and `process_vm_*` since kernel 4.8, and `pidfd_open`. Older ones
# of containerd, which are Kubernetes' RuntimeDefault, have neither these nor `pidfd_*`.
_NUMBERS: Final = {
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "mbind": (237, 235),
    "get_mempolicy": (239, 236),
    "set_mempolicy": (238, 237),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_by_handle_at": (304, 265),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "clone3": (435, 435),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
}
_OLDER: Final = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_open", "pidfd_send_signal")
_MACHINES: Final = ("x86_64", "aarch64")


def _profile(*allowed: str) -> list[str]:
    at = _MACHINES.index(platform.machine()) if platform.machine() in _MACHINES else 0
    return filtered({
        numbers[at]: errno.ENOSYS if name == "clone3" else errno.EPERM  # glibc falls back to clone
        for name, numbers in _NUMBERS.items()
        if name not in allowed
    })  # fmt: skip


# --- boxes ------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """Where two processes are."""

    importer: Sequence[str] = ()  # the command that starts it there
    exporter: Sequence[str] = ()
    key: bool = False  # both read a file with the same key
    enter: Callable[[], None] | None = None  # the importer calls it, once it has all that it imports


_ALL: Final = [*NEW_PIDS, "--net", "--mount", "--ipc", "--uts"]
_NO_CAPS: Final = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
_DOCKER_CAPS: Final = (
    "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,"
    "+mknod,+audit_write,+setfcap"
)
_DOCKER: Final = [
    *_ALL,
    "setpriv",
    f"--bounding-set={_DOCKER_CAPS}",
    f"--inh-caps={_DOCKER_CAPS}",
    *_profile(*_OLDER),
]
_KUBERNETES: Final = [*NEW_PIDS, "--mount", "--ipc", "--uts", *_NO_CAPS, *_profile()]
_FOLDER: Final = '"$XPUSHARE_RUNTIME_DIR"'


def _mounting(commands: str) -> list[str]:
    return ["unshare", "--mount", "sh", "-ec", f'{commands}\nexec "$@"', "sh"]


_HIDDEN: Final = _mounting(f"mount -t tmpfs -o mode=0700 none {_FOLDER}")
_READ_ONLY: Final = _mounting(f"mount --bind {_FOLDER} {_FOLDER}\nmount -o remount,bind,ro /")
_SECOND: Final = ["sh", "-c", '"$@"; exit $?', "sh"]  # starts a child, which has pid 2 in a new PID namespace

KUBERNETES: Final = (
    "Kubernetes' strictest: no capability, an old RuntimeDefault profile, one network (a pod); a key but no folder"
)


def _become_a_stranger() -> None:
    """Another user of the system, which is root in a user namespace of its own. The process has one thread."""
    become_another_user(STRANGER)
    assert ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) == 0  # its files in /proc are its own then
    assert ctypes.CDLL(None).unshare(_CLONE_NEWUSER) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {STRANGER} 1")
    Path("/proc/self/gid_map").write_text(f"0 {STRANGER} 1")


BOXES: Final[Mapping[str, Box]] = {
    "the same namespaces": Box(),
    "a PID namespace of its own": Box(NEW_PIDS),
    "a PID namespace of its own, as the exporter has; both have pid 1": Box(NEW_PIDS, NEW_PIDS),
    "a PID namespace of its own, as the exporter has; other pids": Box([*NEW_PIDS, *_SECOND], NEW_PIDS),
    "a network namespace of its own": Box(["unshare", "--net"]),
    "PID, network, mount, IPC and UTS namespaces of its own": Box(_ALL),
    "no `CAP_SYS_PTRACE`": Box(SETPRIV),
    "PID and network namespaces of its own, no capability": Box([*NEW_PIDS, "--net", *_NO_CAPS]),
    "a user namespace of its own": Box(["unshare", "--user", "--map-root-user"]),
    "a user namespace of its own, in which the user has another number": Box(
        ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    ),
    "user, PID and network namespaces of its own": Box([*NEW_PIDS, "--user", "--map-root-user", "--net"]),
    "a read-only root file system, the runtime folder a volume": Box(_READ_ONLY),
    "Docker's default: five namespaces, 14 capabilities, seccomp profile; a runtime folder in common": Box(
        _DOCKER, _DOCKER
    ),
    "Docker's default, a key in common but no folder": Box([*_HIDDEN, *_DOCKER], _DOCKER, key=True),
    KUBERNETES: Box([*_HIDDEN, *_KUBERNETES], _KUBERNETES, key=True),
    "no runtime folder in common, no key": Box(_HIDDEN),
    "no runtime folder in common, one key": Box(_HIDDEN, key=True),
    "no runtime folder and no network in common, one key": Box([*_HIDDEN, "unshare", "--net"], key=True),
    "no runtime folder and no network in common, one key, no capability": Box(
        [*_HIDDEN, "unshare", "--net", *_NO_CAPS], key=True
    ),
    "another user of the host, with the same number in a user namespace of its own; a copy of the key": Box(
        enter=_become_a_stranger, key=True
    ),
}


def lacking(box: Box) -> str | None:
    """Why this machine cannot make the box; None if it can."""
    for prefix in (box.importer, box.exporter):
        if prefix and not works(*prefix):
            return f"needs {prefix[0]} and the right to use it"
    if box.enter is not None and os.geteuid() != 0:
        return "needs root"
    if platform.machine() not in _MACHINES:
        return "needs this machine's call numbers"
    return None


# --- the page ---------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """What the page says of a form in a box: `works`, or an error and words of its message."""

    outcome: str
    words: tuple[str, ...]


def rows() -> dict[str, dict[str, Cell]]:
    """The page's table: box -> form -> cell."""
    lines = PAGE.read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith(_HEADER))
    _, *forms, _ = _cells(lines[begin])
    found = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        box, *outcomes, fix = _cells(line)
        words = tuple(fix.split("`")[1::2])
        found[box] = {
            form: Cell(outcome.strip("`"), () if outcome == "works" else words)
            for form, outcome in zip(forms, outcomes, strict=True)
        }
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


# --- trying -----------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of a form in a box."""

    outcome: str  # "works", or the name of the error
    message: str


def _outcome(attempt: Callable[[Any], None], handle: Any) -> Outcome:
    try:
        attempt(handle)
    except Exception as error:
        return Outcome(type(error).__name__, str(error))
    return Outcome("works", "")


def _enter(load: Callable[[], object], enter: Callable[[], None], env: Mapping[str, str]) -> None:
    load()
    os.environ.update(env)
    enter()


def _write_key(folder: Path, key: bytes, user: int) -> str:
    file = folder / "key"
    file.write_bytes(key)
    file.chmod(0o600)
    os.chown(file, user, user)
    return str(file)


def without_bindings(box: Box, found: Mapping[str, Outcome]) -> str | None:
    """Why nothing could be tried in a box whose importer became another user: that user may not read the folder of
    CUDA's bindings. None if any form was tried, and for all other boxes.
    """
    lacking = {each.message for each in found.values() if "cuda-bindings cannot be imported" in each.message}
    if box.enter is None or len(lacking) != 1 or any(each.message not in lacking for each in found.values()):
        return None
    return f"not tried: {lacking.pop()}"


def tried(
    box: Box,
    folder: Path,
    key: bytes,
    export: Callable[[], dict[str, Any]],
    attempts: Mapping[str, Callable[[Any], None]],
    load: Callable[[], object] = lambda: None,
    timeout: float = 60.0,
) -> dict[str, Outcome]:
    """Have one process export, and try each form in another. `attempts` raise what goes wrong; `load` imports all that
    they need.
    """
    env = {"XPUSHARE_KEY_FILE": _write_key(folder, key, os.geteuid())} if box.key else {}
    with (
        Child(prefix=box.exporter, env=env, timeout=timeout) as exporter,
        Child(prefix=box.importer, env={**env, "OPENBLAS_NUM_THREADS": "1"}, timeout=timeout) as importer,
    ):
        handles = exporter.call(export)
        if box.enter is not None:
            own = folder / "stranger"
            own.mkdir(mode=0o700)
            os.chown(own, STRANGER, STRANGER)
            theirs = {"XPUSHARE_KEY_FILE": _write_key(own, key, STRANGER), "XPUSHARE_RUNTIME_DIR": str(own)}
            importer.call(_enter, load, box.enter, theirs)
        return {form: importer.call(_outcome, attempts[form], handle) for form, handle in handles.items()}
