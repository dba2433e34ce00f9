"""Storage of the keeper's file descriptors in systemd's file-descriptor store. They stay open there when the keeper
ends, and the next keeper process receives them when it starts.

A service sends named descriptors to the socket in NOTIFY_SOCKET (sd_notify(3), FDSTORE=1). The next process of the
service gets them from descriptor 3 on, with their names in LISTEN_FDNAMES. systemd stores only one descriptor of each
open file, so memory that several versions share is stored once.

A *state* is a memfd that describes one version. It is stored after the version's memory, so a version without a state
is incomplete.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, final

from xpushare.common import system
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing.keeping import FORMAT

__all__ = ["Key", "Store"]

Key = tuple[str, int]  # a name and a version
_FIRST: Final = 3  # SD_LISTEN_FDS_START
_PREFIX: Final = "xpushare-"
_STATE: Final = "xpushare-state-"
_AT_ONCE: Final = 200  # descriptors; the kernel allows 253
_SECONDS: Final = 5.0  # seconds for systemd to take the descriptors
_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE: Final = 0


def _same_file(one: int, other: int) -> bool:
    """Return whether two descriptors refer to the same open file, by the same check that systemd makes."""
    a, b = os.fstat(one), os.fstat(other)
    if (a.st_dev, a.st_ino, a.st_rdev) != (b.st_dev, b.st_ino, b.st_rdev):
        return False
    number = _KCMP.get(os.uname().machine)
    if number is not None:
        import ctypes  # needed only under systemd

        me = os.getpid()
        found = ctypes.CDLL(None, use_errno=True).syscall(number, me, me, _KCMP_FILE, one, other)
        if found >= 0:
            return bool(found == 0)
    return a.st_rdev == 0  # two descriptors of one memfd are the same memory


@final
class Store:
    """systemd's file-descriptor store for the service that this process runs as."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.connect("\0" + address[1:] if address.startswith("@") else address)
        self._serial = 0
        self._files: dict[str, tuple[OwnedFd, set[Key]]] = {}  # by name; with the versions that use them
        self._states: dict[Key, str] = {}

    @classmethod
    def of_service(cls) -> Self | None:
        """Return the store, or None if this process does not run as a systemd service. Removes systemd's variable from
        the environment.
        """
        address = os.environ.pop("NOTIFY_SOCKET", "")
        return cls(address) if address else None

    def _send(self, text: str, fds: Sequence[int] = ()) -> None:
        socket.send_fds(self._socket, [text.encode()], list(fds))

    def ready(self) -> None:
        """Notify systemd that the keeper is ready."""
        self._send("READY=1")

    def _settle(self) -> None:
        """Wait until systemd has received everything that was sent, since it ignores messages of a process that has
        ended.
        """
        reading, writing = os.pipe()
        try:
            try:
                self._send("BARRIER=1", [writing])
            finally:
                os.close(writing)
            waiting = select.poll()
            waiting.register(reading, 0)  # it hangs up
            waiting.poll(_SECONDS * 1000)
        finally:
            os.close(reading)

    def _name(self, prefix: str) -> str:
        self._serial += 1
        return f"{prefix}{self._serial}"

    def sync(self, wanted: Mapping[Key, Callable[[], tuple[dict[str, Any], Sequence[OwnedFd]]]]) -> None:
        """Make the store contain exactly these versions, each with its state and its files."""
        gone, new = self._states.keys() - wanted.keys(), wanted.keys() - self._states.keys()
        for key in gone:
            self._remove(key)
        for key in new:
            self._add(key, *wanted[key]())
        if gone or new:
            self._settle()

    def _add(self, key: Key, state: dict[str, Any], fds: Sequence[OwnedFd]) -> None:
        names = [self._keep(key, fd) for fd in fds]
        with_names = system.memfd("xpushare-keeper-state")
        os.write(with_names.number, json.dumps({**state, "names": names, "format": FORMAT}).encode())
        self._states[key] = self._name(_STATE)
        self._send(f"FDSTORE=1\nFDNAME={self._states[key]}", [with_names.number])
        with_names.close()

    def _keep(self, key: Key, fd: OwnedFd) -> str:
        """Return the name of a file in the store. If the store does not have the file yet, it is sent first."""
        for name, (known, keys) in self._files.items():
            if _same_file(known.number, fd.number):
                keys.add(key)
                return name
        name = self._name(_PREFIX)
        self._files[name] = OwnedFd.copied(fd.number), {key}
        self._send(f"FDSTORE=1\nFDNAME={name}", [fd.number])
        return name

    def _remove(self, key: Key) -> None:
        self._forget(self._states.pop(key))
        for name, (fd, keys) in [*self._files.items()]:
            keys.discard(key)
            if not keys:
                del self._files[name]
                fd.close()
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._send(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def received(self) -> list[tuple[dict[str, Any], list[OwnedFd]]]:
        """Return the versions that an earlier keeper process has stored, the newest first. Each has its state and
        duplicates of its file descriptors. From then on, this object counts these versions as stored. Incomplete
        versions are removed from the store.
        """
        files, states = _inherited()
        found = []
        for name, fd in files.items():
            self._serial = max(self._serial, int(name.rpartition("-")[2]))
            self._files[name] = fd, set()
        for name, fd in states.items():
            self._serial = max(self._serial, int(name.rpartition("-")[2]))
            state = _state(fd)
            fd.close()
            other = FORMAT if state is None else state.get("format", 1)  # the first format had no number
            if state is None or other != FORMAT or any(each not in files for each in state["names"]):
                self._forget(name)
                why = "is not complete in the store"
                if other != FORMAT:
                    why = f"has version {other} of the stored layout, and this keeper has version {FORMAT}"
                print(f"xpushare keep: {name} {why}, and was dropped", file=sys.stderr)
                continue
            key = state["name"], state["version"]
            self._states[key] = name
            for each in state["names"]:
                self._files[each][1].add(key)
            found.append((state, [OwnedFd.copied(files[each].number) for each in state["names"]]))
        for name, (fd, keys) in [*self._files.items()]:
            if not keys:
                del self._files[name]
                fd.close()
                self._forget(name)
        return sorted(found, key=lambda each: -each[0]["version"])

    def close(self) -> None:
        close_all(fd for fd, _ in self._files.values())
        self._socket.close()


def _state(fd: OwnedFd) -> dict[str, Any] | None:
    """Return the state that a descriptor contains, or None if it contains none, since a keeper was killed meanwhile."""
    try:
        state = json.loads(os.pread(fd.number, os.fstat(fd.number).st_size, 0))
        whole = {"name", "version", "pid", "who", "begun", "facts", "message", "names"} <= state.keys()
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return state if whole else None


def _inherited() -> tuple[dict[str, OwnedFd], dict[str, OwnedFd]]:
    """Return the files and the states that this process received from systemd, each as a dict by name."""
    files: dict[str, OwnedFd] = {}
    states: dict[str, OwnedFd] = {}
    pid, count, names = (os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid == str(os.getpid()):
        for number, name in zip(range(_FIRST, _FIRST + int(count)), names.split(":"), strict=False):
            os.set_inheritable(number, False)
            if name.startswith(_PREFIX) and name.rpartition("-")[2].isdecimal():
                (states if name.startswith(_STATE) else files)[name] = OwnedFd(number)
    return files, states
