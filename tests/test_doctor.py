"""`xpushare doctor`, in conditions that are made for it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import boxes
import xpushare as xs
from boxes import NEW_PIDS, SETPRIV, works
from harness import Child, become_another_user, kept
from sampling import sampled
from xpushare import _native, adapters
from xpushare.adapters.cuda import _adapter, _listing
from xpushare.adapters.cuda import _listing as cuda
from xpushare.adapters.vendor import Check
from xpushare.cli import doctor
from xpushare.cli.doctor import folder, machine, routes, sharing

DEVICE = "native_cpu:0"
PR_SET_DUMPABLE = 4
PIDFD_OPEN, PIDFD_GETFD = 434, 438
NUMBERS = {"x86_64": {"memfd_create": 319, "connect": 42}, "aarch64": {"memfd_create": 279, "connect": 203}}


needs_setpriv = pytest.mark.skipif(not works(*SETPRIV), reason="needs setpriv and the right to use it")
needs_pids = pytest.mark.skipif(not works(*NEW_PIDS), reason="needs unshare --pid")
needs_nets = pytest.mark.skipif(not works("unshare", "--net"), reason="needs unshare --net")
needs_mounts = pytest.mark.skipif(not works("unshare", "--mount"), reason="needs unshare --mount")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Result(NamedTuple):
    """What one run said."""

    status: int
    wrong: list[str]
    checks: dict[str, Check]

    def state(self, name: str) -> str:
        return self.checks[name].state


def examine(
    *arguments: str,
    prefix: list[str] | None = None,
    env: dict[str, str] | None = None,
    before: Callable[[], object] | None = None,
) -> Result:
    """Run `doctor --json`; the checks by their names."""
    done = subprocess.run(
        [*(prefix or []), sys.executable, "-m", "xpushare", "doctor", "--json", *arguments],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        preexec_fn=before,
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["works"] == (done.returncode == 0) == (not found["wrong"])
    checks = [Check(**each) for each in found["checks"]]
    for check in checks:
        assert check.state in ("works", "note", "limited", "fails", "absent", "skipped")
        assert check.why
        if check.state in ("limited", "fails"):
            assert check.fix, f"{check} says nothing to do"
    return Result(done.returncode, found["wrong"], {check.name: check for check in checks})


def refusing(error: int, *numbers: int) -> list[str]:
    """A prefix under which these system calls fail with `error`."""
    return boxes.filtered(dict.fromkeys(numbers, error))


needs_seccomp = pytest.mark.skipif(not works(*refusing(1, PIDFD_GETFD)), reason="needs seccomp filters")
needs_numbers = pytest.mark.skipif(platform.machine() not in NUMBERS, reason="needs this machine's call numbers")


# --- where everything works -------------------------------------------------------------------------------


def test_all_is_well(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    found = examine("--device", "native_cpu:*", env={"TMPDIR": str(tmp_path), "XPUSHARE_RUNTIME_DIR": str(folder)})
    assert found.status == 0
    for name in ("kernel", "/proc", "memfd_create", "address space", "pidfd_getfd", "socket", "futex", "death"):
        assert found.state(name) == "works", found.checks[name]
    for kind in sharing.KINDS:
        assert found.checks[kind] == Check(DEVICE, kind, "works", "by pidfd_getfd and socket")
    assert found.state(f"fork, {DEVICE}") == "works"
    assert "still read its memory" in found.checks["death"].why
    assert not list(tmp_path.iterdir())  # neither a folder of its own nor the user's is left, or made


def test_text() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xpushare", "doctor", "--device", "native_cpu:*"],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "machine"
    assert f"{DEVICE}" in lines
    assert lines[-1] == "memory and events can be shared on every device"


@pytest.mark.exhaustive
def test_two_devices_of_another_backend() -> None:
    found = examine(env={"ONEAPI_DEVICE_SELECTOR": "mock:*"})
    assert found.status == 0
    assert {check.group for check in found.checks.values() if check.name == "memory"} == {"mock:1"}  # the last one


# --- routes ---------------------------------------------------------------------------------------------------


@needs_seccomp
@pytest.mark.parametrize("error", sampled([errno.ENOSYS, errno.EPERM], [errno.EPERM]))
def test_seccomp_blocks_pidfd_getfd(error: int) -> None:
    found = examine(prefix=refusing(error, PIDFD_GETFD))
    assert found.status == 0
    route = found.checks["pidfd_getfd"]
    assert route.state == "limited"
    assert "seccomp blocks pidfd_getfd" in route.why
    assert errno.errorcode[error] in route.why
    assert "--cap-add=SYS_PTRACE" in str(route.fix)
    assert found.state("seccomp") == "note"
    assert found.state("socket") == "works"
    assert found.checks["memory"].why == "by socket only"


@needs_seccomp
@needs_numbers
def test_no_route_at_all() -> None:
    found = examine(prefix=refusing(errno.EPERM, PIDFD_GETFD, NUMBERS[platform.machine()]["connect"]))
    assert found.status == 1
    assert found.wrong == [f"{DEVICE}: memory", f"{DEVICE}: event"]
    assert found.state("pidfd_getfd") == found.state("socket") == "fails"
    for kind in sharing.KINDS:
        assert "pidfd_getfd" in found.checks[kind].why
        assert "socket" in found.checks[kind].why


@needs_seccomp
@needs_numbers
@pytest.mark.exhaustive
def test_memfd_create_is_blocked() -> None:
    found = examine(prefix=refusing(errno.EPERM, NUMBERS[platform.machine()]["memfd_create"]))
    assert found.status == 1
    assert found.state("memfd_create") == "fails"
    assert "seccomp" in str(found.checks["memfd_create"].fix)
    assert found.state("memory") == "fails"


@needs_nets
@pytest.mark.exhaustive
def test_own_network_namespace() -> None:
    found = examine(prefix=["unshare", "--net"])
    assert found.status == 0
    assert "needs one runtime folder" in found.checks["network namespace"].why


@needs_pids
def test_own_pid_namespace() -> None:
    found = examine(prefix=NEW_PIDS)
    assert found.status == 0
    assert "only the socket route goes" in found.checks["PID namespace"].why
    assert found.state("orphans") == "limited"
    assert "--init" in str(found.checks["orphans"].fix)


@needs_pids
@pytest.mark.exhaustive
def test_proc_of_another_pid_namespace() -> None:
    found = examine(prefix=["unshare", "--pid", "--fork", "--kill-child"])
    assert found.state("/proc") == "fails"
    assert "another PID namespace" in found.checks["/proc"].why
    assert "mount -t proc" in str(found.checks["/proc"].fix)


@needs_mounts
def test_no_proc() -> None:
    found = examine(prefix=["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"])
    assert found.status == 1
    assert found.state("/proc") == "fails"
    assert "mount -t proc" in str(found.checks["/proc"].fix)


@needs_pids
@pytest.mark.exhaustive
def test_memfd_noexec() -> None:
    prefix = [*NEW_PIDS, "sh", "-c", 'echo 2 > /proc/sys/vm/memfd_noexec && exec "$@"', "sh"]
    if not works(*prefix):
        pytest.skip("needs the setting vm.memfd_noexec, and the right to change it")
    found = examine(prefix=prefix)
    if found.state("memfd_create") == "works":
        assert found.status == 0  # the package asks for memfds that this setting allows
    else:
        assert "vm.memfd_noexec is 2" in found.checks["memfd_create"].why
        assert found.checks["memfd_create"].fix == "sysctl vm.memfd_noexec=1"


# --- one process in particular --------------------------------------------------------------------------------


def export() -> int:
    memory = kept["memory"] = xs.malloc_device(4096, DEVICE)
    kept["handle"] = xs.ipc.memory.get(memory)
    return os.getpid()


def hide() -> None:
    assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0


def test_a_process_that_can_be_reached() -> None:
    with Child(export) as child:
        found = examine("--pid", str(child.pid))
        assert found.status == 0
        assert found.state("pidfd_getfd") == found.state("socket") == "works"


def test_a_process_that_shares_nothing() -> None:
    with Child() as child:
        found = examine("--pid", str(child.pid))
        assert found.state("socket") == "skipped"
        assert "shares nothing" in found.checks["socket"].why


def test_a_process_that_is_gone() -> None:
    with Child() as child:
        child.kill()
    done = subprocess.run(
        [sys.executable, "-m", "xpushare", "doctor", "--pid", str(child.pid)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert (done.stdout, done.stderr) == ("", f"xpushare doctor: no process has pid {child.pid}\n")


@needs_setpriv
def test_an_exporter_that_is_not_dumpable() -> None:
    with Child(export, prefix=SETPRIV) as child:
        assert examine("--pid", str(child.pid), prefix=SETPRIV).state("pidfd_getfd") == "works"
        child.call(hide)
        found = examine("--pid", str(child.pid), prefix=SETPRIV)
        assert found.status == 0
        assert found.state("pidfd_getfd") == "fails"
        assert "not dumpable" in found.checks["pidfd_getfd"].why
        assert "PR_SET_DUMPABLE" in str(found.checks["pidfd_getfd"].fix)
        assert found.state("socket") == "works"


@needs_setpriv
def test_an_exporter_with_more_capabilities() -> None:
    with Child(export) as child:
        found = examine("--pid", str(child.pid), prefix=SETPRIV)
        assert "capabilities that the importer lacks (numbers 19)" in found.checks["pidfd_getfd"].why


@needs_root
@needs_setpriv
def test_another_users_exporter() -> None:
    def become() -> None:
        export()
        become_another_user(12345)
        assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0  # only the user differs

    with Child(become) as child:
        found = examine("--pid", str(child.pid), prefix=SETPRIV)
        assert "runs as user 12345, the importer as 0" in found.checks["pidfd_getfd"].why
        assert "one user" in str(found.checks["pidfd_getfd"].fix)


@needs_nets
def test_another_network_namespace_and_one_runtime_folder(tmp_path: Path) -> None:
    with Child(export) as child:
        found = examine("--pid", str(child.pid), prefix=["unshare", "--net"])
        assert found.state("socket") == "works"
        other = {"XPUSHARE_RUNTIME_DIR": str(tmp_path)}
        check = examine("--pid", str(child.pid), prefix=["unshare", "--net"], env=other).checks["socket"]
        assert check.state == "fails"
        assert "no socket in this runtime folder" in check.why
        assert str(check.fix).startswith("mount one runtime folder into both (XPUSHARE_RUNTIME_DIR), or share")


@needs_nets
@needs_setpriv
@pytest.mark.exhaustive
def test_another_network_namespace_and_no_right(tmp_path: Path) -> None:
    other = {"XPUSHARE_RUNTIME_DIR": str(tmp_path)}
    with Child(export, prefix=SETPRIV) as child:
        found = examine("--pid", str(child.pid), prefix=["unshare", "--net", *SETPRIV], env=other)
        assert found.status == 0
        assert found.state("pidfd_getfd") == "works"
        assert found.state("socket") == "fails"
        assert "another network namespace" in found.checks["socket"].why
        child.call(hide)
        found = examine("--pid", str(child.pid), prefix=["unshare", "--net", *SETPRIV], env=other)
        assert found.status == 1
        assert found.state("pidfd_getfd") == "fails"


@needs_pids
def test_a_process_in_another_pid_namespace() -> None:
    with Child(export, prefix=NEW_PIDS) as child:
        inside = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        if not inside.exists():
            pytest.skip("needs /proc/<pid>/task/<tid>/children")
        found = examine("--pid", inside.read_text().split()[0])
        assert found.status == 0
        assert "another PID namespace" in found.checks["pidfd_getfd"].why
        assert found.state("socket") == "works"


@pytest.mark.parametrize(
    ("yama", "text"), [("1", "only ancestors"), ("2", "only with CAP_SYS_PTRACE"), ("3", "nobody may")]
)
def test_yama(yama: str, text: str) -> None:
    status = {"Uid": "7 7 7 7", "CapPrm": "0"}
    why, fix = routes.why_no_getfd({"open": 0, "self": 0, "get": errno.EPERM}, status, status, 1, yama)
    assert text in why
    assert ("ptrace_scope=0" in fix) == (yama != "3")


# --- limits -----------------------------------------------------------------------------------------------------


def limit(what: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (value, value))


@pytest.mark.exhaustive
def test_few_open_files() -> None:
    found = examine(before=limit(resource.RLIMIT_NOFILE, 64))
    assert found.status == 0
    assert found.state("open files") == "limited"
    assert "nofile" in str(found.checks["open files"].fix)


def share_within(file_mib: int) -> str:
    """Share an array where no file may be longer; the error, if any."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_mib << 20, file_mib << 20))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        kept["handle"] = xs.share(xs.zeros(4))
    except xs.XpuShareError as error:
        return str(error)
    return ""


def shared() -> str:
    kept["handle"] = xs.share(xs.zeros(4))
    return str(kept["handle"])


def addresses_of_a_peer(known: str, new: str) -> int:
    """The addresses that the first array of a further exporter takes, in bytes."""

    def now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    kept["known"] = xs.attach(known)
    before = now()
    kept["new"] = xs.attach(new)
    return now() - before


def test_what_an_exporter_needs_is_what_the_texts_say() -> None:
    needs = machine.needs()
    with Child() as one, Child() as other, Child() as importer:
        taken = importer.call(addresses_of_a_peer, one.call(shared), other.call(shared))
        assert needs.addresses - 1 <= taken / (1 << 20) <= needs.addresses + 2
    with Child() as enough, Child() as little:
        assert enough.call(share_within, needs.file) == ""
        assert "File too large" in little.call(share_within, needs.file - 1)
    page = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text()
    assert f"up to {needs.file} MiB long" in page
    assert f"takes {needs.addresses} MiB of addresses" in page


def test_too_few_open_files() -> None:
    found = examine(before=limit(resource.RLIMIT_NOFILE, 12))
    assert found.status == 1
    assert "Too many open files" in found.checks["start"].why
    assert "ulimit -n" in str(found.checks["start"].fix)


@pytest.mark.exhaustive
def test_too_few_addresses() -> None:
    found = examine(before=limit(resource.RLIMIT_AS, 150_000 << 10))
    assert found.status == 1
    assert "RLIMIT_AS is 153600000 bytes" in found.checks["address space"].why
    assert found.checks["address space"].fix == "ulimit -v unlimited"


@pytest.mark.exhaustive
def test_too_small_files() -> None:
    found = examine(before=limit(resource.RLIMIT_FSIZE, 1 << 20))
    assert found.status == 1
    assert "RLIMIT_FSIZE is 1048576 bytes" in found.checks["memfd_create"].why
    assert found.checks["memfd_create"].fix == found.checks["memory"].fix == "ulimit -f unlimited"


@pytest.mark.exhaustive
def test_one_processor() -> None:
    one = min(os.sched_getaffinity(0))
    found = examine("--device", "native_cpu:*", before=lambda: os.sched_setaffinity(0, {one}))
    assert found.status == 0
    assert found.state("processors") == "limited"


def test_memory_limit_of_a_cgroup(tmp_path: Path) -> None:
    own = tmp_path / "own"
    root = tmp_path / "cgroup"
    (root / "a" / "b").mkdir(parents=True)
    own.write_text("0::/a/b\n")
    assert machine.memory_limit(root, own) is None
    (root / "a" / "b" / "memory.max").write_text("max\n")
    assert machine.memory_limit(root, own) is None
    (root / "a" / "memory.max").write_text("1048576\n")  # of a group above: it counts, too
    assert machine.memory_limit(root, own) == 1 << 20
    own.write_text("5:cpu,memory:/c\n0::/\n")
    (root / "memory" / "c").mkdir(parents=True)
    (root / "memory" / "c" / "memory.limit_in_bytes").write_text("4096\n")
    assert machine.memory_limit(root, own) == 4096
    (root / "memory" / "c" / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # version 1: no limit
    assert machine.memory_limit(root, own) is None
    assert machine.memory_limit(root, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("version", "state"),
    [((5, 0), "fails"), ((5, 2), "fails"), ((5, 5), "limited"), ((5, 6), "works"), ((6, 1), "works")],
)
def test_kernels(version: tuple[int, int], state: str) -> None:
    found = machine.kernel(version, "5.x")
    assert found.state == state
    assert (found.fix is None) == (state == "works")


# --- folder and key ----------------------------------------------------------------------------------------------


def folder_case(tmp_path: Path, case: str) -> dict[str, str]:
    """Environment in which the folder or the key is not as it must be."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    key = folder / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    environment = {"XPUSHARE_RUNTIME_DIR": str(folder)}
    if case == "mode":
        folder.chmod(0o750)
    elif case == "owner":
        os.chown(folder, 12345, 12345)
    elif case == "link":
        (tmp_path / "link").symlink_to(folder)
        environment["XPUSHARE_RUNTIME_DIR"] = str(tmp_path / "link")
    elif case == "file above":
        environment["XPUSHARE_RUNTIME_DIR"] = str(key / "runtime")
    elif case == "nothing above":
        environment["XPUSHARE_RUNTIME_DIR"] = str(tmp_path / "no" / "such")
    elif case == "key mode":
        key.chmod(0o644)
    elif case == "key owner":
        os.chown(key, 12345, 12345)
    elif case == "key size":
        key.write_bytes(b"short")
    elif case == "no key":
        environment["XPUSHARE_KEY_FILE"] = str(tmp_path / "none")
    elif case == "key link":
        (tmp_path / "link").symlink_to(key)
        environment["XPUSHARE_KEY_FILE"] = str(tmp_path / "link")
    return environment


FOLDER_CASES = {
    "mode": ("runtime folder", "chmod 0700"),
    "owner": ("runtime folder", "chown"),
    "link": ("runtime folder", "replace the link"),
    "file above": ("runtime folder", "XPUSHARE_RUNTIME_DIR"),
    "nothing above": ("runtime folder", "XPUSHARE_RUNTIME_DIR"),
    "key mode": ("key", "chmod 0600"),
    "key owner": ("key", "chown"),
    "key size": ("key", "rm "),
    "no key": ("key", "head -c 32"),
    "key link": ("key", "XPUSHARE_KEY_FILE"),
}


@pytest.mark.parametrize("case", FOLDER_CASES)
def test_folder_and_key(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "owner" in case and os.geteuid():
        pytest.skip("needs root")
    for name, value in folder_case(tmp_path, case).items():
        monkeypatch.setenv(name, value)
    name, fix = FOLDER_CASES[case]
    found = {check.name: check for check in folder.examine()}
    assert found[name].state == "fails"
    assert fix in str(found[name].fix)


@pytest.mark.parametrize("exchanges", [True, False])
def test_new_versions_of_names(exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in folder_case(tmp_path, "sound").items():
        monkeypatch.setenv(name, value)
    if not exchanges:
        monkeypatch.setattr(_native, "exchange", lambda _one, _other: False)
    (found,) = (check for check in folder.examine() if check.name == "new versions of names")
    assert found.state == ("works" if exchanges else "limited")
    assert ("XPUSHARE_RUNTIME_DIR" in str(found.fix)) is not exchanges
    assert os.listdir(tmp_path / "runtime") == ["key"]


def test_a_bad_key_is_a_failure(tmp_path: Path) -> None:
    found = examine(env=folder_case(tmp_path, "key mode"))
    assert found.status == 1
    assert found.wrong == ["folder and key: key"]
    assert found.state("memory") == "works"  # with a key of its own


# --- devices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "text"),
    sampled([("level_zero:9", "leaves none"), ("cuda", "needs one colon")], [("level_zero:9", "leaves none")]),
)
def test_a_selector_that_leaves_nothing(selector: str, text: str) -> None:
    found = examine(env={"ONEAPI_DEVICE_SELECTOR": selector})
    assert found.status == 1
    assert found.wrong == ["devices: selector"]
    assert text in found.checks["selector"].why
    assert found.checks["selector"].fix == "unset ONEAPI_DEVICE_SELECTOR"


@pytest.mark.exhaustive
def test_a_selector_of_the_command_that_leaves_nothing() -> None:
    found = examine("--device", "gpu", env={"ONEAPI_DEVICE_SELECTOR": "native_cpu:*"})
    assert (found.status, found.wrong) == (1, ["devices: selector"])
    assert "--device gpu leaves none" in found.checks["selector"].why
    assert found.checks["selector"].fix == "unset ONEAPI_DEVICE_SELECTOR"


@pytest.mark.exhaustive
def test_a_wrong_selector_of_the_environment_beside_one_of_the_command() -> None:
    found = examine("--device", "cpu", env={"ONEAPI_DEVICE_SELECTOR": "nope"})
    assert (found.status, found.wrong) == (1, ["devices: selector"])
    assert "needs one colon" in found.checks["selector"].why
    assert found.checks["selector"].fix == "unset ONEAPI_DEVICE_SELECTOR"


class NoCuda:
    """Makes `import cuda` fail, as where the extra is not installed."""

    @staticmethod
    def find_spec(name: str, *_arguments: object) -> ModuleSpec | None:
        if name.partition(".")[0] == "cuda":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return None


GPU = _listing.Listed("6f2ab2f5-0000-4000-8000-000000000001", "NVIDIA H200")


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A machine with two GPUs, by what its driver's folder and device files say; and no binding."""

    def prepare(why: str = "", binding: bool = False) -> dict[str, Check]:
        monkeypatch.setitem(adapters._adapters, "cuda", _adapter.Cuda())
        if not binding:
            monkeypatch.setattr(sys, "meta_path", [NoCuda, *sys.meta_path])
            for name in [name for name in sys.modules if name.partition(".")[0] == "cuda"]:
                monkeypatch.delitem(sys.modules, name)
        else:
            monkeypatch.setattr(_adapter, "has_binding", lambda: True)
            monkeypatch.setattr(_listing, "has_binding", lambda: True)
        if why:
            monkeypatch.setattr(_adapter, "list_gpus", lambda: ([], why))
        return {check.name: check for check in cuda.examine()}

    device = tmp_path / "nvidiactl"
    device.touch()
    for number in (0, 1):
        folder = tmp_path / "proc" / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        uuid = GPU.uuid[:-1] + str(number + 1)
        text = f"Model: NVIDIA H200\nGPU UUID: GPU-{uuid}\nDevice Minor: {number}\n"
        (folder / "information").write_text(text)
    (tmp_path / "proc" / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\n")
    monkeypatch.setattr(_listing, "PROC", tmp_path / "proc")
    monkeypatch.setattr(_listing, "DEVICES", (str(device),))
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).startswith("/dev/nvidia") or access(path, mode))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return prepare


def test_the_extra_is_missing(nvidia: Any) -> None:
    found = nvidia()["cuda"]
    assert (found.state, found.fix) == ("fails", "pip install '.[cuda]' in a checkout of xpushare")
    assert doctor.wrong_with([found])


def test_cuda_visible_devices_hides_all(nvidia: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = nvidia()["cuda"]
    assert (found.state, found.fix) == ("limited", "unset CUDA_VISIBLE_DEVICES")


def test_cuda_visible_devices_hides_one(nvidia: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = nvidia(binding=True)
    assert found["cuda"].state == "works"
    assert "hides 1 of 2 GPUs" in found["hidden GPUs"].why


def test_no_libcuda(nvidia: Any) -> None:
    found = nvidia("libcuda.so.1: cannot open shared object file", binding=True)["cuda"]
    assert found.state == "fails"
    assert "NVIDIA_DRIVER_CAPABILITIES" in str(found.fix)


def test_mig_and_wsl(nvidia: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"MIG", "WSL"} & set(nvidia(binding=True))
    (tmp_path / "proc" / "capabilities" / "gpu0" / "mig" / "gi1").mkdir(parents=True)
    monkeypatch.setattr(_listing, "_ask_child", lambda: ([GPU], ""))
    monkeypatch.setattr(platform, "release", lambda: "5.15.0-microsoft-standard-WSL2")
    found = nvidia(binding=True)
    assert "MIG-<uuid>" in str(found["MIG"].fix)
    assert found["WSL"].state == "limited"


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(adapters._adapters, "cuda", _adapter.Cuda())
    monkeypatch.setattr(_listing, "PROC", tmp_path)
    monkeypatch.setattr(_listing, "DEVICES", (str(tmp_path / "none"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (found,) = cuda.examine()
    assert found.state == "absent"
    assert not [text for text in doctor.wrong_with([found]) if "cuda" in text]


@pytest.mark.parametrize(
    ("driver", "binding", "old"),
    [("470.57.02", "12.9.0", True), ("525.60.13", "12.9.0", False), ("570.1", "13.0.1", True),
     ("580.65.06", "13.0.1", False), ("", "13.0.1", False), ("470.57.02", "", False), ("470.1", "99.0", False)],
)  # fmt: skip
def test_drivers(driver: str, binding: str, old: bool) -> None:
    assert (cuda.old_driver(driver, binding) is not None) == old


def test_the_filter_is_eight_bytes_an_instruction() -> None:
    assert struct.calcsize("<HBBI") == 8
