"""As much of systemd as a service with a file-descriptor store sees: sd_notify(3) by its rules, and the start of the
next process with what is stored.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from keepers import environment

from xpushare.keeper.store import _same_file

__all__ = ["Manager"]

_START = """
import os, sys
fds = [int(each) for each in sys.argv[1].split(",") if each]
copies = [os.dup2(fd, 100 + at, True) for at, fd in enumerate(fds)]  # out of each other's way
for fd in fds:
    os.close(fd)
for at, copy in enumerate(copies):
    os.dup2(copy, 3 + at, True)
    os.close(copy)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "xpushare", "keep", *sys.argv[2:]])
"""


class Manager:
    """Takes the notifications of one service. The last fd that was stored is passed on first, as systemd does."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self.journal = folder / "journal"
        self._process: subprocess.Popen[bytes] | None = None
        self.stored: list[tuple[str, int]] = []
        self.refused: list[str] = []
        self.ready = threading.Event()
        self.changed = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            data, fds, _flags, _address = socket.recv_fds(self._socket, 4096, 253)
            fields = dict(line.split("=", 1) for line in data.decode().splitlines())
            with self.changed:
                if "END" in fields:
                    return
                self._take(fields, fds)
                self.changed.notify_all()

    def _take(self, fields: dict[str, str], fds: list[int]) -> None:
        name = fields.get("FDNAME", "stored")
        if "FDSTORE" in fields:
            assert fds
            assert ":" not in name
            for fd in fds:
                if any(_same_file(fd, known) for _, known in self.stored):
                    self.refused.append(name)
                    os.close(fd)
                else:
                    self.stored.insert(0, (name, fd))
            return
        if "FDSTOREREMOVE" in fields:
            for known, fd in self.stored:
                if known == name:
                    os.close(fd)
            self.stored = [each for each in self.stored if each[0] != name]
        if "READY" in fields:
            self.ready.set()
        for fd in fds:  # of BARRIER=1
            os.close(fd)

    def begin(self, *options: str) -> int:
        """Start the service's next process, which is ready when this returns its pid."""
        self.ready.clear()
        with self.changed:
            names = ":".join(name for name, _ in self.stored)
            fds = [fd for _, fd in self.stored]
        env = {
            **environment(), "NOTIFY_SOCKET": self.address, "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": names,
        }  # fmt: skip
        command = [sys.executable, "-c", _START, ",".join(map(str, fds)), *options]
        with self.journal.open("ab") as journal:
            self._process = subprocess.Popen(command, env=env, pass_fds=fds, stderr=journal)
        if not self.ready.wait(60):
            raise AssertionError(self.journal.read_text())
        return self._process.pid

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the process that signal, and wait for it; returns its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        assert self._process is not None
        status, self._process = self._process.wait(60), None
        return status

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 60)

    def states(self) -> int:
        return sum("state" in name for name, _ in self.stored)

    def close(self) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"END=1", self.address)
        self._thread.join()
        self._socket.close()
        for _, fd in self.stored:
            os.close(fd)
