"""Processes that are forked from one that has the package imported, and are this process's children all the same.

`python -m soak.forked FD PARENT MODULE:CLASS …` forks one for each connection that comes by that socket: it makes an
object of a class, carries out the messages that come, until told to exit, and then ends as any program does.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import xpushare as xs
from soak.common import Failure, Soak

__all__ = ["START", "Served", "Zygote", "counting", "ended", "runs"]

START: Final = 30.0  # seconds for a process to come up, on a busy machine
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


class Zygote:
    """Forks processes; they become children of this process."""

    def __init__(self, folder: str, *served: type[Served], selector: str = "native_cpu:*;mock:*") -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._ours, theirs = socket.socketpair()
        self.errors: Final = Path(folder) / ".errors"  # what processes write to stderr
        with theirs, open(self.errors, "ab") as errors:
            command = [sys.executable, "-m", "soak.forked", str(theirs.fileno()), str(os.getpid())]
            environ = {**os.environ, "XPUSHARE_RUNTIME_DIR": folder, "XPUSHARE_LINGER": "0"}
            environ["ONEAPI_DEVICE_SELECTOR"] = selector
            command += [f"{each.__module__}:{each.__qualname__}" for each in served]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environ, stderr=errors)

    def process(self, which: int = 0) -> tuple[int, Connection]:
        """A process of one of the classes: its pid, and the connection to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._ours, [bytes([which])], [theirs.fileno()])
        connection = Connection(ours.detach())
        if not connection.poll(START):
            raise Failure(f"a process has not started within {START:g} s")
        return connection.recv(), connection

    def said(self) -> str:
        """What the processes wrote to stderr since the last `forget`."""
        lines = self.errors.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if "(XPUSHARE_LINGER)" not in line).strip()  # that is 0 here

    def forget(self) -> None:
        self.errors.write_bytes(b"")

    def close(self) -> None:
        self._ours.close()
        self._process.wait(10)
        self.errors.unlink()


@contextlib.contextmanager
def counting(soak: Soak, *served: type[Served], **options: str) -> Iterator[tuple[Zygote, Counter[str]]]:
    """A zygote, and counts of what its processes do, which are told at the end."""
    zygote, counts = Zygote(soak.settings.folder, *served, **options), Counter[str]()
    try:
        yield zygote, counts
    finally:
        zygote.close()
        soak.say(", ".join(f"{count} {name}" for name, count in counts.items()))


def ended(pid: int, most: float) -> bool:
    """Whether a child has ended within `most` seconds; one that wants a CPU and gets none has more."""
    start = time.monotonic()
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        waited = time.monotonic() - start
        if waited > START or (waited > most and not runs(pid)):
            return False
        time.sleep(0.002 if waited < most else 0.2)
    return True


def runs(pid: int) -> bool:
    """Whether a thread of the process runs, or would if it were let."""
    for _ in range(20):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if task.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "RD":
                    return True
        time.sleep(0.01)
    return False


class Served:
    """A process: methods that messages name. `report` is for what takes long."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def serve(self) -> None:
        while True:
            try:
                name, *arguments = self._connection.recv()
            except (EOFError, ConnectionError):
                return
            if name == "exit":
                return
            self.send(None, self.answer(name, arguments))

    def answer(self, name: str, arguments: list[Any]) -> Any:
        return getattr(self, name)(*arguments)

    def send(self, token: int | None, found: object) -> None:
        with self._sending:
            self._connection.send((token, found))

    def report(self, token: int, function: Callable[[], object]) -> None:
        """Call, in a thread, and send what came of it."""

        def body() -> None:
            found = function()
            with contextlib.suppress(OSError):
                self.send(token, found)

        threading.Thread(target=body, daemon=True).start()


def _adopted(parent: int) -> None:
    """Wait until the parent is what it is to be, and die with it."""
    while os.getppid() != parent:
        time.sleep(0.0002)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _fork_for(ours: socket.socket, parent: int) -> tuple[int, Connection] | None:
    """Fork for each connection that comes; in the child, which class, and the connection. None: nobody asks more."""
    while True:
        message, fds, _flags, _address = socket.recv_fds(ours, 1, 1)
        if not message:
            return None
        between = os.fork()
        if between == 0:
            if os.fork() == 0:  # its parent ends, and the one above inherits it
                ours.close()
                _adopted(parent)
                connection = Connection(fds[0])
                connection.send(os.getpid())
                return message[0], connection
            os._exit(0)
        os.close(fds[0])
        os.waitpid(between, 0)


def _main() -> None:
    fd, parent, *names = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    xs.devices()  # imports what processes would import, each again
    _preloaded = xs.Event, xs.Queue, xs.publish, xs.share, xs.attach, xs.shares, xs.ipc.memory, xs.PhysicalMemory
    served = [getattr(importlib.import_module(each.partition(":")[0]), each.partition(":")[2]) for each in names]
    asked = _fork_for(socket.socket(fileno=int(fd)), int(parent))
    if asked is not None:
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        served[asked[0]](asked[1]).serve()


if __name__ == "__main__":
    _main()
