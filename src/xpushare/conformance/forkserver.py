"""Start processes that have imported the package, much faster than a fresh interpreter would.

One process imports the package without using it, and forks whenever the suite asks for a child. Its children begin as a
fresh interpreter would after the same imports: with the same environment, no driver, no threads and nothing shared.
multiprocessing's start method "forkserver" does the same, but its children skip the interpreter's normal shutdown,
which the suite tests.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["Forkserver", "die_with", "run"]

# The modules that a process imports to share memory and an event. No adapters: each child loads the drivers it needs.
IMPORTS: Final = (
    "encodings.ascii", "hashlib", "importlib.util", "pkgutil", "numpy", "xpushare.ipc", "xpushare.arrays.attach",
    "xpushare.arrays.consumers", "xpushare.arrays.share", "xpushare.objects.event", "xpushare.objects.physical_memory",
    "xpushare.objects.queue", "xpushare.sharing.routes.pidfd",
)  # fmt: skip
_PR_SET_PDEATHSIG: Final = 1
_MESSAGE: Final = 1 << 12  # bytes, far more than any message has


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent, the process with this pid, dies. Exit at once if the parent
    has died already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _surroundings() -> tuple[dict[str, str], list[str], str]:
    """Return the environment, the import path and the working directory of this process, which its children
    take over.
    """
    environment = dict(os.environ)
    environment.pop("PYTEST_CURRENT_TEST", None)  # different in each test
    return environment, list(sys.path), os.getcwd()


class Forkserver:
    """Starts a process that forks children, and controls it. Each child calls `function` of `module` with a file
    descriptor and the pid of its parent.

    Only the process that made this object may use it. A forked copy of that process may not. Each child gets the stdout
    and stderr that the caller has at the time of the call. A child is reaped only when `exit_status` is called, so
    until then its pid is not reused.
    """

    def __init__(self, module: str, function: str, imports: Sequence[str] = ()) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        self._surroundings = _surroundings()
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = (there.fileno(), self._owner, module, function, (*IMPORTS, *imports))
        source = (
            f"import sys; sys.path[:] = {sys.path!r}; from xpushare.conformance import forkserver; "
            f"forkserver.run{arguments!r}"
        )
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", source], stdin=subprocess.DEVNULL, pass_fds=[there.fileno()]
            )
        atexit.register(self._end)
        self._ask(None)  # waits until the imports are done, so that they disturb no later measurement

    def changed(self, env: Mapping[str, str | None]) -> dict[str, str | None] | None:
        """Compare the environment that a child gets by default with the environment that it needs. The needed
        environment is that of this process updated with `env`, in which the value None removes a variable.

        Return a dict with the needed value of each variable that differs, or None for a variable to remove. Return None
        instead of a dict if the working directory or import path of this process has changed since the start.
        """
        before, *others = self._surroundings
        now, *others_now = _surroundings()
        if others != others_now:
            return None
        wanted = {**now, **env}
        return {name: wanted.get(name) for name in wanted.keys() | before if wanted.get(name) != before.get(name)}

    def fork(self, fd: int) -> int:
        """Fork a child that has a copy of `fd`. Returns its pid."""
        pid: int = self._ask("fork", fd, 1, 2)
        return pid

    def exit_status(self, pid: int) -> int | None:
        """Return the exit status of a child, or None if the child is still running. A negative status is the number of
        the signal that killed the child.
        """
        status: int | None = self._ask(pid)
        return status

    def _ask(self, question: str | int | None, *fds: int) -> Any:
        with self._lock:
            self._number += 1
            socket.send_fds(self._socket, [pickle.dumps((self._number, question))], fds)
            while message := self._socket.recv(_MESSAGE):
                number, answer = pickle.loads(message)
                if number == self._number:  # otherwise it answers an earlier question, whose caller was interrupted
                    return answer
        raise RuntimeError(f"the process that forks has ended with exit status {self._process.wait()}")

    def _end(self) -> None:
        if self._owner == os.getpid():
            self._socket.close()
            self._process.wait()


def run(fd: int, parent: int, module: str, function: str, imports: Sequence[str]) -> None:
    """The main function of the process that forks. Each forked child returns to this function, too, and calls
    `function` of `module`.
    """
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal must end only the other processes
    for name in (module, *imports):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that garbage collection in a child does not write to these pages
    with socket.socket(fileno=fd) as caller:
        caller.set_inheritable(False)
        child = _serve(caller)
    if child is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        getattr(sys.modules[module], function)(child, os.getppid())


def _serve(caller: socket.socket) -> int | None:
    """Fork and reap children until the caller closes the connection. Then return None. In each child, return the file
    descriptor that was sent for the child.
    """
    while True:
        message, fds, _flags, _address = socket.recv_fds(caller, _MESSAGE, 3)
        if not message:
            return None
        number, question = pickle.loads(message)
        answer: int | None = None
        if question == "fork":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads survive it
                answer = os.fork()
            if not answer:
                own, *outputs = fds
                for number, output in enumerate(outputs, 1):
                    os.dup2(output, number)
                    os.close(output)
                return own
            for each in fds:
                os.close(each)
        elif question is not None:
            ended, status = os.waitpid(question, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        caller.send(pickle.dumps((number, answer)))
