"""The private folder and the key: whose, how open, made how."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from peering import exported, needs_root

import xpushare as xs
from harness import Child
from xpushare.sharing import door, identity
from xpushare.sharing.handle import fields_of


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a process that has not asked yet."""
    monkeypatch.setattr(identity, "_place", None)
    monkeypatch.delenv("XPUSHARE_KEY_FILE", raising=False)
    return monkeypatch


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_and_key_are_made_private(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fresh.setenv("XPUSHARE_RUNTIME_DIR", str(run))
    old = os.umask(0)
    try:
        key = identity.user_key()
    finally:
        os.umask(old)
    assert len(key) == 32
    assert (mode(run), mode(run / "key")) == (0o700, 0o600)
    assert (run / "key").read_bytes() == key
    assert os.listdir(run) == ["key"]
    fresh.setattr(identity, "_place", None)
    assert identity.user_key() == key


@pytest.mark.parametrize("permissions", [0o755, 0o770, 0o701, 0o777])
def test_a_folder_open_to_others_is_refused(fresh: pytest.MonkeyPatch, tmp_path: Path, permissions: int) -> None:
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(permissions)
    fresh.setenv("XPUSHARE_RUNTIME_DIR", str(run))
    with pytest.raises(xs.InvalidArgumentError, match=f"mode {permissions:04o}.*chmod 0700"):
        identity.user_key()
    assert os.listdir(run) == []


def test_links_and_files_are_refused(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(real)
    file.touch(mode=0o600)
    for path in (link, file):
        fresh.setenv("XPUSHARE_RUNTIME_DIR", str(path))
        with pytest.raises(xs.InvalidArgumentError, match="not a folder"):
            identity.user_key()
    fresh.setenv("XPUSHARE_RUNTIME_DIR", str(tmp_path / "none" / "deeper"))
    with pytest.raises(xs.InvalidArgumentError, match="XPUSHARE_RUNTIME_DIR"):
        identity.user_key()


@pytest.mark.parametrize("permissions", [0, 0o400])
def test_a_folder_that_cannot_be_entered(fresh: pytest.MonkeyPatch, permissions: int) -> None:
    """No key, and so no handle means anything; but to unpickle one does not raise."""
    array, memory = xs.empty(1), xs.malloc_device(16, "native_cpu:0")
    with xs.share(array) as handle, xs.share([array]) as tree:
        things = memory, array, handle, handle.handle, tree
        texts = [pickle.dumps(each) for each in things]
    run = tempfile.mkdtemp(prefix="xpushare-tests-", dir="/tmp")  # pytest's own are below one that only root can enter
    fresh.setenv("XPUSHARE_RUNTIME_DIR", run)
    identity.user_key()
    fresh.setattr(identity, "_place", None)
    fresh.setattr(identity, "seal", None)

    def ask() -> list[str]:
        ctypes.CDLL(None).setfsuid(12345)  # of this thread alone: root's rights do not count
        with pytest.raises(xs.InvalidArgumentError, match=r"cannot read the key .*: Permission denied"):
            identity.user_key()
        return [repr(pickle.loads(text)) for text in texts]

    try:
        os.chmod(run, permissions)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(ask).result()
    finally:
        os.chmod(run, 0o700)
        shutil.rmtree(run)
    assert all("cannot read the key" in each for each in found), found


@needs_root
def test_a_folder_of_another_user_is_refused(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    os.chown(run, 12345, 12345)
    fresh.setenv("XPUSHARE_RUNTIME_DIR", str(run))
    with pytest.raises(xs.InvalidArgumentError, match="belongs to user 12345"):
        identity.user_key()


@pytest.mark.parametrize("where", ["explicit", "in the folder"])
@pytest.mark.parametrize(
    ("content", "permissions", "message"),
    [
        (b"k" * 31, 0o600, "32 raw bytes"),
        (b"k" * 33, 0o600, "32 raw bytes"),
        (b"", 0o600, "32 raw bytes"),
        (b"k" * 32, 0o640, "mode 0640.*chmod 0600"),
        (b"k" * 32, 0o604, "mode 0604"),
    ],
)
def test_a_wrong_key_is_refused(
    fresh: pytest.MonkeyPatch, tmp_path: Path, where: str, content: bytes, permissions: int, message: str
) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    key = run / "key" if where != "explicit" else tmp_path / "explicit"
    key.write_bytes(content)
    key.chmod(permissions)
    fresh.setenv("XPUSHARE_RUNTIME_DIR", str(run))
    if where == "explicit":
        fresh.setenv("XPUSHARE_KEY_FILE", str(key))
    with pytest.raises(xs.InvalidArgumentError, match=message):
        identity.user_key()
    assert key.read_bytes() == content


def test_a_key_that_is_a_link_or_a_folder_or_missing(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    link, folder = tmp_path / "link", tmp_path / "folder"
    link.symlink_to(key)
    folder.mkdir(mode=0o700)
    for path in (link, folder, tmp_path / "missing", Path("/proc/self/mem")):  # a file that cannot be read
        fresh.setenv("XPUSHARE_KEY_FILE", str(path))
        with pytest.raises(xs.InvalidArgumentError, match="the key"):
            identity.user_key()
    assert not (tmp_path / "missing").exists()
    fresh.setenv("XPUSHARE_KEY_FILE", str(key))
    assert identity.user_key() == b"k" * 32


@needs_root
def test_a_key_of_another_user_is_refused(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    os.chown(key, 12345, 12345)
    fresh.setenv("XPUSHARE_KEY_FILE", str(key))
    with pytest.raises(xs.InvalidArgumentError, match="belongs to user 12345"):
        identity.user_key()


def test_where_the_folder_is(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.delenv("XPUSHARE_RUNTIME_DIR")
    fresh.setenv("TMPDIR", str(tmp_path))
    xdg = tmp_path / "xdg"
    xdg.mkdir(mode=0o700)
    fresh.setenv("XDG_RUNTIME_DIR", str(xdg))
    assert chosen_anew(fresh) == xdg / "xpushare"
    explicit = tmp_path / "explicit"
    fresh.setenv("XPUSHARE_RUNTIME_DIR", str(explicit))
    assert chosen_anew(fresh) == explicit
    fresh.setenv("XPUSHARE_RUNTIME_DIR", "")
    assert chosen_anew(fresh) == xdg / "xpushare"
    fresh.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    if not os.path.isdir(f"/run/user/{os.geteuid()}"):
        assert chosen_anew(fresh) == tmp_path / f"xpushare-{os.geteuid()}"


def chosen_anew(fresh: pytest.MonkeyPatch) -> Path:
    fresh.setattr(identity, "_place", None)
    return identity.runtime_dir()


@needs_root
def test_an_xdg_folder_of_another_user_is_passed_over(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # After `su`, XDG_RUNTIME_DIR still names the former user's.
    xdg = tmp_path / "xdg"
    xdg.mkdir(mode=0o700)
    os.chown(xdg, 12345, 12345)
    fresh.delenv("XPUSHARE_RUNTIME_DIR")
    fresh.setenv("XDG_RUNTIME_DIR", str(xdg))
    fresh.setenv("TMPDIR", str(tmp_path))
    assert not identity.runtime_dir().is_relative_to(xdg)


def test_two_processes_make_the_key_at_once(tmp_path: Path) -> None:
    code = "import sys; from xpushare.sharing import identity; sys.stdin.read(1); print(identity.user_key().hex())"
    run = tmp_path / "run"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XPUSHARE_RUNTIME_DIR": str(run)},
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
    keys = {process.communicate(timeout=30)[0] for process in processes}
    assert len(keys) == 1
    assert os.listdir(run) == ["key"]
    assert (run / "key").read_bytes().hex() == keys.pop().strip()


def test_a_failed_write_leaves_no_half_key(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fresh.setenv("XPUSHARE_RUNTIME_DIR", str(run))

    def full(*_arguments: object) -> bytes:
        raise OSError(28, "No space left on device")

    with fresh.context() as patch:
        patch.setattr(identity.os, "link", full)
        with pytest.raises((xs.XpuShareError, OSError)):
            identity.user_key()
    assert os.listdir(run) == []
    assert len(identity.user_key()) == 32


def test_nothing_else_is_written_to_the_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Child(env={"XPUSHARE_RUNTIME_DIR": str(run)}) as child:
        handle = child.call(lambda: bytes(exported("native_cpu:0")))
        assert child.call(lambda handle: xs.ipc.memory.open(handle).nbytes, handle) == 4096
        key, socket = sorted(os.listdir(run))
        assert (key, socket[:7]) == ("key", "socket-")
        assert mode(run) == 0o700
    assert os.listdir(run) == ["key"]


def test_the_socket_of_a_dead_exporter_is_removed_by_the_next(tmp_path: Path) -> None:
    for name in ("run", "run-" + "x" * 120):  # the second is too long for the name of a socket
        run = tmp_path / name
        with Child(env={"XPUSHARE_RUNTIME_DIR": str(run)}) as child:
            child.call(lambda: bytes(exported("native_cpu:0")))
            child.kill()
        assert len(os.listdir(run)) == 2
        with Child(env={"XPUSHARE_RUNTIME_DIR": str(run)}) as child:
            cookie = child.call(lambda: fields_of(exported("native_cpu:0")).cookie.hex())
            assert sorted(os.listdir(run)) == ["key", f"socket-{cookie}"]
        assert os.listdir(run) == ["key"]


def test_a_step_of_the_wall_clock_removes_no_socket_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = time.time
    with door.opening(bytes(16)) as new, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        assert new is not None
        made.bind(new)
        monkeypatch.setattr(time, "time", lambda: wall() + 3600)
        door._clean(os.fsdecode(os.path.dirname(new)))
        assert os.path.exists(new)
        made.listen()
    with door.path(bytes(16)) as found:
        assert found is not None
        os.unlink(found)


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_socket_that_was_abandoned_is_removed(seconds: int) -> None:
    """It was made long ago, or by the clock of an earlier boot."""
    with door.opening(bytes(16)) as new:
        assert new is not None
        name = os.path.basename(os.fsdecode(new))
    at = len(door._NEW)
    old = f"{name[:at]}{max(int(time.monotonic()) + seconds, 0):08x}{name[at + 8 :]}"
    assert door._abandoned(old)
    assert not door._abandoned(name)
