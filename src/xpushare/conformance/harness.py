"""Run functions in other processes.

`Child.call(function, …)` runs a function of a module in a child process. The child stores objects that it needs in
later calls in its dict `kept`. Every wait has a time-out, and every child is killed when the process that started it
dies.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Literal, Self

from xpushare.conformance.forkserver import Forkserver, die_with

__all__ = ["TIMEOUT", "Child", "ChildDied", "HarnessError", "Pending", "children", "die_with", "fd_count",
           "ignore_interrupts", "kept", "prepare", "serve", "set_up", "wait_until"]  # fmt: skip

TIMEOUT: Final = 30.0  # seconds, enough for a child on a busy machine
_SETUP: Final = "XPUSHARE_CONFORMANCE_SETUP"

kept: dict[str, Any] = {}  # objects that must live in this process until they are dropped
children: set[Child] = set()  # children that have not ended


class HarnessError(AssertionError):
    """A process did not answer or end in time, or ended with an error. This class is not derived from `TimeoutError`,
    since the tests of some rules expect the package to raise `TimeoutError`.
    """


class ChildDied(HarnessError):
    """The child ended before it answered."""


class Pending:
    """A call that was sent to a child. Its answer is available once it has arrived."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.reply: tuple[bool, Any, str] | None = None

    def done(self) -> bool:
        """Return whether the answer has arrived. Does not wait."""
        self._child.receive(self, 0)
        return self.reply is not None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer, and return the value that the function returned. If the function raised an exception in
        the child, raise that exception here, with the child's traceback as a note.
        """
        timeout = self._child.timeout if timeout is None else timeout
        self._child.receive(self, timeout)
        if self.reply is None:
            raise HarnessError(f"child {self._child.pid} has not answered within {timeout:g} s")
        good, value, trace = self.reply
        if good:
            return value
        value.add_note(f"In child {self._child.pid}:\n{trace}")
        raise value


class Child:
    """A process that runs functions, one call after the other, in its main thread.

    The parameter `method` determines how the process starts. "prepared" forks it from the `Forkserver` if possible,
    "spawn" starts a fresh interpreter, and "fork" forks this process. `env` changes variables of the child's
    environment. The value None removes a variable. Further options go to `subprocess.Popen` if it starts the child,
    which is `popen` then.

    At the end of the `with` block, the child exits normally, and any exit status but 0 raises `HarnessError`. If the
    block failed, or calls are still unanswered, the child is killed instead.
    """

    def __init__(
        self,
        *,
        method: Literal["prepared", "spawn", "fork"] = "prepared",
        env: Mapping[str, str | None] | None = None,
        timeout: float = TIMEOUT,
        pass_fds: Sequence[int] = (),
        **options: Any,
    ) -> None:
        self._lock = threading.RLock()
        self._waiting: deque[Pending] = deque()
        self.timeout = timeout
        self.popen: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        here, there = Pipe()
        self._connection = here
        try:
            if method == "fork":
                self.pid, self._exit_status = self._fork(here, there)
            elif method == "prepared" and (server := self._forkserver(env or {})) is not None:
                self.pid = server.fork(there.fileno())
                self._exit_status = functools.partial(server.exit_status, self.pid)
            else:
                changed = {**os.environ, **(env or {})}
                self.popen = process = subprocess.Popen[bytes](
                    self._command(there.fileno()),
                    env={name: value for name, value in changed.items() if value is not None},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[there.fileno(), *pass_fds],
                    **options,
                )
                self.pid, self._exit_status = process.pid, process.poll
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        children.add(self)

    def _forkserver(self, env: Mapping[str, str | None]) -> Forkserver | None:
        """Return the `Forkserver` of this process if its children get the right environment. Otherwise return None, and
        a fresh interpreter has to be started.
        """
        server = _forkserver_of(os.getpid())
        return server if server.changed(env) == {} else None

    def _command(self, fd: int) -> list[str]:
        """Return the command that starts a fresh interpreter and calls `main`."""
        source = (
            f"import sys; sys.path[:] = {sys.path!r}; from xpushare.conformance import harness; "
            f"harness.main({fd}, {os.getpid()})"
        )
        return [sys.executable, "-c", source]

    def _fork(self, here: Connection, there: Connection) -> tuple[int, Callable[[], int | None]]:
        """Fork this process. Returns the child's pid, and a function that returns the child's exit status, or None
        while it runs.
        """
        pid = _fork(here, there)
        return pid, functools.partial(_exit_status, pid)

    def _dumps(self, call: object) -> bytes:
        return pickle.dumps(call)

    def start(self, function: Callable[..., Any], *args: Any, **options: Any) -> Pending:
        """Send a call to the child, which runs it after all earlier calls. `function` must be defined at the top level
        of a module.
        """
        message = self._dumps((function, args, options))
        with self._lock:
            pending = Pending(self)
            try:
                self._connection.send_bytes(message)
            except OSError as error:
                raise ChildDied(f"child {self.pid} is gone (exit status {self._poll()})") from error
            self._waiting.append(pending)
        return pending

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function in the child, and return its result. Waits no longer than the child's time-out."""
        return self.start(function, *args, **options).result()

    def receive(self, wanted: Pending, timeout: float) -> None:
        """Receive answers until the answer to `wanted` has arrived or the time has run out."""
        end = time.monotonic() + timeout
        with self._lock:
            while wanted.reply is None:
                left = end - time.monotonic()
                try:
                    if self._connection.poll(max(0.0, min(left, 0.2))):
                        message = self._connection.recv_bytes()
                        self._waiting.popleft().reply = pickle.loads(message)
                        continue
                except (EOFError, OSError) as error:
                    self.ended()
                    raise ChildDied(f"child {self.pid} ended without an answer (exit status {self._status})") from error
                if self._poll() is not None and not self._connection.poll(0):
                    raise ChildDied(f"child {self.pid} ended without an answer (exit status {self._status})")
                if left <= 0:
                    return

    def _poll(self) -> int | None:
        if self._status is None:
            self._status = self._exit_status()
            if self._status is not None:
                children.discard(self)
        return self._status

    def ended(self, timeout: float | None = None) -> int | None:
        """Wait until the child has ended, and return its exit status. Return None if the child has not ended within
        `timeout`.
        """
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        while self._poll() is None and (left := end - time.monotonic()) > 0:
            _wait_for_end(self.pid, left)
        return self._status

    @property
    def alive(self) -> bool:
        return self._poll() is None

    @property
    def busy(self) -> bool:
        """Return whether any call is still unanswered."""
        return any(not pending.done() for pending in list(self._waiting))

    def signal(self, number: int) -> None:
        """Send the child a signal, such as SIGINT or SIGSTOP. Does nothing if the child has ended."""
        if self._poll() is None:  # not reaped yet, so no other process has the pid
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to the child, and wait until it has ended. Does nothing if the child has ended already."""
        self.signal(signal.SIGKILL)
        if self.ended() is None:
            raise HarnessError(f"child {self.pid} survives SIGKILL")
        self._connection.close()

    def exit(self, timeout: float | None = None) -> int:
        """Let the child's interpreter exit normally, once all earlier calls have finished. Returns the exit status."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(b"")
        status = self.ended(timeout)
        if status is None:
            self.kill()
            raise HarnessError(f"child {self.pid} did not end when asked to; killed")
        self._connection.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or not self.alive or self.busy:
            self.kill()
        elif status := self.exit():
            raise HarnessError(f"child {self.pid} ended with exit status {status}")

    def __repr__(self) -> str:
        return f"<Child {self.pid} {'alive' if self.alive else f'ended with {self._status}'}>"


class _Reader(pickle.Unpickler):
    """Unpickles calls and answers. Refuses objects that `__main__` defines, since `__main__` is a different module in
    the child.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            raise pickle.UnpicklingError(f"{name} is of __main__, which is another module in the child")
        return super().find_class(module, name)


def _answer(message: bytes, loads: Callable[[bytes], Any], dumps: Callable[[object], bytes]) -> bytes:
    try:
        function, args, options = loads(message)
        return dumps((True, function(*args, **options), ""))
    except BaseException as error:
        trace = traceback.format_exc()
        try:
            reply = dumps((False, error, trace))
            loads(reply)
        except Exception:
            return dumps((False, HarnessError(f"unpicklable {type(error).__name__}: {error}"), trace))
        return reply


def serve(
    connection: Connection,
    loads: Callable[[bytes], Any] = lambda message: _Reader(io.BytesIO(message)).load(),
    dumps: Callable[[object], bytes] = pickle.dumps,
) -> None:
    """Run the calls that arrive on the connection and send the answers, until the connection ends."""
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):  # the parent has ended
            return
        except KeyboardInterrupt:  # the signal was meant for a call that has ended
            continue
        if not message:
            return
        reply = _answer(message, loads, dumps)
        try:
            connection.send_bytes(reply)
        except BrokenPipeError:
            return


def ignore_interrupts() -> None:
    """Ignore SIGINT in this process. A Ctrl-C in a terminal reaches the whole group, and the process that started this
    one ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def set_up() -> None:
    """Import the module that `XPUSHARE_CONFORMANCE_SETUP` names, if any. With it a project can prepare its adapter or
    inject faults. The suite's process calls this function before its tests, and each child before its first call.
    """
    if name := os.environ.get(_SETUP):
        importlib.import_module(name)


def _fork(here: Connection, there: Connection) -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads, which the suite tests
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with(parent)
        signal.setitimer(signal.ITIMER_REAL, 0)
        here.close()
        children.clear()  # these are children of the parent
        serve(there)
        status = 0
    finally:
        os._exit(status)


def _wait_for_end(pid: int, seconds: float) -> None:
    """Wait up to `seconds` for the process to end. May return early. The process must not have been reaped yet."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:  # no free file descriptor, or the process is gone
        time.sleep(0.002)
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(1000 * seconds)
    finally:
        os.close(fd)


def _exit_status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


@functools.lru_cache(1)
def _forkserver_of(_pid: int) -> Forkserver:
    return Forkserver(__name__, "main")


def prepare() -> None:
    """Start the `Forkserver` of this process. Call this before any test counts file descriptors."""
    _forkserver_of(os.getpid())


def main(fd: int, parent: int) -> None:
    """The main function of a child that was not forked directly from the test process."""
    die_with(parent)
    os.set_inheritable(fd, False)
    set_up()
    serve(Connection(fd))


def fd_count() -> int:
    """Return the number of file descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd")) - 1


def wait_until(predicate: Callable[[], object], what: str, timeout: float = TIMEOUT) -> None:
    """Wait until `predicate()` is true. Raises `HarnessError`, with `what` in its message, if this takes longer than
    `timeout`.
    """
    end = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > end:
            raise HarnessError(f"not within {timeout:g} s: {what}")
        time.sleep(0.002)
