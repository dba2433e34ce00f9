"""A second process for tests: `with Child() as child: child.call(function, …)`.

Functions and arguments travel by cloudpickle: a function of a module goes by name (so its module's globals live on in
the child between calls), a lambda or an inner function by value. What a child must keep alive it puts into `kept`.

Children come from a `Forkserver`, each as a fresh interpreter that has imported numpy and the package.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Literal, Self

import cloudpickle  # type: ignore[import-untyped]

from xpushare.conformance.forkserver import Forkserver

__all__ = ["TIMEOUT", "Child", "ChildDied", "HarnessError", "Pending", "become_another_user", "children", "command",
           "fd_count", "kept", "mapping_count", "new_fds", "open_fds", "prepare", "rss", "wait_until",
           "withdraw_all"]  # fmt: skip

TIMEOUT = 60.0  # of a child that imports torch on a busy machine


class _Kept(dict[Any, Any]):
    """Goes to a child by name: there it is the child's own."""

    def __reduce__(self) -> str:
        return "kept"


kept = _Kept()  # for functions that run in a child: what must live until the child ends
children: set[Child] = set()  # those not ended yet


class HarnessError(AssertionError):
    """The child did not do as asked in time. No `TimeoutError`, which tests expect of the code under test."""


class ChildDied(HarnessError):
    """The child ended before it answered."""


class Pending:
    """The answer of `Child.start`."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._reply: tuple[bool, Any, str] | None = None

    def done(self) -> bool:
        """Whether the answer has come; does not wait."""
        self._child._receive(self, 0)
        return self._reply is not None

    def result(self, timeout: float = TIMEOUT) -> Any:
        """The function's value; its exception is raised here, with the child's traceback as a note."""
        self._child._receive(self, timeout)
        if self._reply is None:
            raise HarnessError(f"child {self._child.pid} has not answered within {timeout} s")
        good, value, trace = self._reply
        if good:
            return value
        value.add_note(f"In child {self._child.pid}:\n{trace}")
        raise value


class Child:
    """A process that runs what it is sent, one call after the other, in its main thread.

    `target` (a function without arguments, or source text) runs first. `method` is "fork" (of this process), "spawn" (a
    fresh interpreter), or "prepared" (of the `Forkserver`). `env` changes the environment (None removes a variable);
    `prefix` is a command that starts the interpreter, such as `["unshare", "--net"]` (`pid` and `kill` then mean the
    process of the command). With either, and after a change of this process's environment, "prepared" is "spawn".
    Leaving the `with` block ends the child in an orderly way and demands exit status 0, unless it was killed or the
    block failed.
    """

    def __init__(
        self,
        target: Callable[[], object] | str | None = None,
        *,
        method: Literal["prepared", "spawn", "fork"] = "prepared",
        env: Mapping[str, str | None] | None = None,
        prefix: Sequence[str] = (),
        timeout: float = TIMEOUT,
    ) -> None:
        self._lock = threading.RLock()
        self._waiting: deque[Pending] = deque()
        self._timeout = timeout
        self._status: int | None = None
        here, there = multiprocessing.Pipe()
        self._connection = here
        try:
            if method == "fork":
                assert not env
                assert not prefix
                fork: Any = multiprocessing.get_context("fork").Process(target=_serve_fork, args=(here, there))
                with warnings.catch_warnings():
                    warnings.simplefilter(
                        "ignore", DeprecationWarning
                    )  # from 3.12 on: forking with threads is what is tested
                    fork.start()
                self.pid: int = fork.pid
                self._exit_status: Callable[[], int | None] = lambda: fork.exitcode
            elif method == "prepared" and not env and not prefix and (server := _forkserver_of(os.getpid())).fits:
                self.pid = server.fork(there.fileno())
                self._exit_status = functools.partial(server.exit_status, self.pid)
            else:
                changed = {**os.environ, **(env or {})}
                arguments = there.fileno(), os.getpid()
                source = f"import sys; sys.path[:] = {sys.path!r}; import harness; harness._main{arguments}"
                process = subprocess.Popen(
                    [*prefix, sys.executable, "-c", source],
                    env={name: value for name, value in changed.items() if value is not None},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[there.fileno()],
                )
                self.pid = process.pid
                self._exit_status = process.poll
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        children.add(self)
        if target is not None:
            try:
                self.call(exec_source, target) if isinstance(target, str) else self.call(target)
            except BaseException:
                self.kill()
                raise

    def start(self, function: Callable[..., Any], *args: Any, **options: Any) -> Pending:
        """Have the child call `function`; it queues behind earlier calls."""
        message = cloudpickle.dumps((function, args, options))
        with self._lock:
            pending = Pending(self)
            try:
                self._connection.send_bytes(message)
            except OSError as error:
                raise ChildDied(f"child {self.pid} is gone (exit status {self._poll()})") from error
            self._waiting.append(pending)
        return pending

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """`start` and wait for the result, no longer than the child's time-out."""
        return self.start(function, *args, **options).result(self._timeout)

    def _receive(self, wanted: Pending, timeout: float) -> None:
        """Take answers until that of `wanted` has come or the time is over."""
        end = time.monotonic() + timeout
        with self._lock:
            while wanted._reply is None:
                left = end - time.monotonic()
                try:
                    if self._connection.poll(max(0.0, min(left, 0.2))):
                        reply = cloudpickle.loads(self._connection.recv_bytes())
                        self._waiting.popleft()._reply = reply
                        continue
                except (EOFError, OSError) as error:
                    self._wait(self._timeout)
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

    def _wait(self, timeout: float) -> int | None:
        end = time.monotonic() + timeout
        while self._poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        return self._status

    @property
    def alive(self) -> bool:
        return self._poll() is None

    def signal(self, number: int) -> None:
        """Send the child a signal, such as SIGINT or SIGSTOP."""
        if self._poll() is None:  # until it is reaped here, the pid is this child's
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Nothing happens to a child that has ended."""
        self.signal(signal.SIGKILL)
        if self._wait(self._timeout) is None:
            raise HarnessError(f"child {self.pid} survives SIGKILL")
        self._connection.close()

    def exit(self, timeout: float | None = None) -> int:
        """Let the interpreter end in its orderly way, after the calls sent before; its exit status."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(b"")
        if self._wait(self._timeout if timeout is None else timeout) is None:
            self.kill()
            raise HarnessError(f"child {self.pid} did not end when asked to; killed")
        self._connection.close()
        assert self._status is not None
        return self._status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or not self.alive or any(not pending.done() for pending in list(self._waiting)):
            self.kill()
        elif status := self.exit():
            raise HarnessError(f"child {self.pid} ended with exit status {status}")

    def __repr__(self) -> str:
        return f"<Child {self.pid} {'alive' if self.alive else f'ended with {self._status}'}>"


def command(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command `xpushare` with these arguments in a child."""
    with Child() as child:
        return subprocess.CompletedProcess(arguments, *child.call(_command, arguments, env or {}))


def _command(arguments: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    from xpushare import cli

    os.environ.update(env)
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = cli.main(list(arguments))
        except SystemExit as end:  # argparse's
            status = end.code if isinstance(end.code, int) else 0
    return status, output.getvalue(), errors.getvalue()


def exec_source(source: str) -> None:
    """Run `source` in the child; the names it makes stay in `kept`."""
    exec(compile(source, "<source of the child>", "exec"), kept)


def _serve(connection: Connection) -> None:
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:  # the parent is gone
            return
        if not message:
            return
        try:
            function, args, options = cloudpickle.loads(message)
            reply = cloudpickle.dumps((True, function(*args, **options), ""))
        except BaseException as error:
            trace = traceback.format_exc()
            try:
                reply = cloudpickle.dumps((False, error, trace))
                cloudpickle.loads(reply)
            except Exception:
                reply = cloudpickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}"), trace))
            del error
        function = args = options = None
        try:
            connection.send_bytes(reply)
        except BrokenPipeError:
            return


def _serve_fork(parents: Connection, connection: Connection) -> None:
    parents.close()
    children.clear()  # the parent's, not ours
    _serve(connection)


def _main(fd: int, _parent: int) -> None:
    os.set_inheritable(fd, False)
    _serve(Connection(fd))


@functools.lru_cache(1)  # a test that changes the environment changes it back
def _forkserver_of(_pid: int) -> Forkserver:
    return Forkserver("harness", "_main", ["xpushare.adapters.native_cpu", "xpushare.adapters.mock.adapter"])


def prepare() -> None:
    """Start the process that forks children, so that a test that counts descriptors does not count its own."""
    _forkserver_of(os.getpid())


def become_another_user(uid: int) -> None:
    """Make this process, which is root's, another user's for good.

    It imports nothing from files any more: where the interpreter, the package or the tests lie below a folder that only
    root can enter, it could not, so no test may need it anywhere. What comes later has to be imported before.
    """
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]


def open_fds(pid: int | None = None) -> dict[int, str]:
    """The open file descriptors of a process (this one by default) and what they are."""
    folder = f"/proc/{pid or 'self'}/fd"
    found: dict[int, str] = {}
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed since, as the one that listed the folder is
            found[int(name)] = os.readlink(f"{folder}/{name}")
    return found


def fd_count(pid: int | None = None) -> int:
    """How many file descriptors a process has open."""
    return len(open_fds(pid))


def new_fds(before: dict[int, str]) -> dict[int, str]:
    """What this process has open and had not `before`: earlier ones of its own may end at any time."""
    return dict(open_fds().items() - before.items())


def mapping_count(pid: int | None = None) -> int:
    """How many mappings a process has (lines of /proc/…/maps)."""
    with open(f"/proc/{pid or 'self'}/maps", "rb") as file:
        return sum(1 for _ in file)


def rss(pid: int | None = None) -> int:
    """Resident bytes of a process."""
    with open(f"/proc/{pid or 'self'}/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def withdraw_all() -> None:
    """End every export of this process."""
    from xpushare.sharing import layout, node

    table = node.current().table_if_any
    for each in table.exports() if table is not None else ():
        table.withdraw(each.handle, layout.REASON_PUT)  # type: ignore[union-attr]


def wait_until(predicate: Callable[[], object], timeout: float = TIMEOUT, what: str = "") -> None:
    """Return as soon as `predicate()` is true; `HarnessError` when it is not within `timeout` seconds."""
    end = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > end:
            raise HarnessError(f"not within {timeout} s: {what or predicate}")
        time.sleep(0.002)
