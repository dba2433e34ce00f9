"""A second process for tests: `with Child() as child: child.call(function, …)`.

Functions and arguments travel by cloudpickle: a function of a module goes by name (so its module's globals live on in
the child between calls), a lambda or an inner function by value. What a child must keep alive it puts into `kept`.

Children come from a `Forkserver`, each as a fresh interpreter that has imported numpy and the package.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Literal

import cloudpickle  # type: ignore[import-untyped]

from xpushare.conformance import harness as base
from xpushare.conformance.forkserver import Forkserver
from xpushare.conformance.harness import ChildDied, HarnessError, Pending, children, serve

__all__ = ["TIMEOUT", "Child", "ChildDied", "HarnessError", "Pending", "become_another_user", "children", "command",
           "fd_count", "kept", "mapping_count", "new_fds", "open_fds", "prepare", "program", "rss",
           "takes_little_cpu_time", "wait_until",
           "withdraw_all"]  # fmt: skip

TIMEOUT = 60.0  # of a child that imports torch on a busy machine
# Variables that no module reads when it is imported.
LATE = frozenset(
    ("ONEAPI_DEVICE_SELECTOR", "XPUSHARE_KEY_FILE", "XPUSHARE_LINGER", "XPUSHARE_PICKLE_BYTES", "XPUSHARE_PICKLE_GRACE",
     "XPUSHARE_RUNTIME_DIR")
)  # fmt: skip


# Modules of tests import these. A child that is sent one of their functions has them loaded, which saves 0.2 s.
_TESTS_IMPORT = ("argparse", "asyncio", "pytest", "hypothesis.strategies")


class _Kept(dict[Any, Any]):
    """Goes to a child by name: there it is the child's own."""

    def __reduce__(self) -> str:
        return "kept"


teardown = True  # whether prepared children tear their modules down; see `Child`
kept = _Kept()  # for functions that run in a child: what must live until the child ends


class Child(base.Child):
    """A process that runs what it is sent, one call after the other, in its main thread.

    `target` (a function without arguments, or source text) runs first. `method` is "fork" (of this process), "spawn" (a
    fresh interpreter), or "prepared" (of the `Forkserver`). `env` changes the environment (None removes a variable);
    `prefix` is a command that starts the interpreter, such as `["unshare", "--net"]` (`pid` and `kill` then mean the
    process of the command). With a prefix, or an environment in which more than `LATE` has changed, "prepared" is
    "spawn".
    `imports` are large modules that it uses, such as torch, which are loaded once for all such children.
    Leaving the `with` block ends the child in an orderly way and demands exit status 0, unless it was killed or the
    block failed. Tearing down all modules takes such a child far longer than everything before, so `make test` leaves
    that out there: the child joins its threads, calls what `atexit` has, and ends. `exit()` always ends as an
    interpreter does.
    """

    def __init__(
        self,
        target: Callable[[], object] | str | None = None,
        *,
        method: Literal["prepared", "spawn", "fork"] = "prepared",
        env: Mapping[str, str | None] | None = None,
        prefix: Sequence[str] = (),
        imports: Sequence[str] = (),
        timeout: float = TIMEOUT,
    ) -> None:
        self._prefix, self._imports = prefix, tuple(imports)
        self._late: dict[str, str | None] = {}
        self._prepared = False
        super().__init__(method=method, env=env, timeout=timeout)
        if self._late:
            self.call(_set_environment, self._late)
        if target is not None:
            try:
                self.call(exec_source, target) if isinstance(target, str) else self.call(target)
            except BaseException:
                self.kill()
                raise

    def _forkserver(self, env: Mapping[str, str | None]) -> Forkserver | None:
        server = _forkserver_of(os.getpid(), self._imports)
        changed = server.changed(env)
        if self._prefix or changed is None or not changed.keys() <= LATE:
            return None
        self._late = changed
        self._prepared = True
        return server

    def _command(self, fd: int) -> list[str]:
        source = f"import sys; sys.path[:] = {sys.path!r}; import harness; harness._main({fd}, {os.getpid()})"
        return [*self._prefix, sys.executable, "-c", source]

    def _fork(self, here: Connection, there: Connection) -> tuple[int, Callable[[], int | None]]:
        """A process of multiprocessing, which runs what that has registered for the end."""
        forked: Any = multiprocessing.get_context("fork").Process(target=_serve_fork, args=(here, there))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: forking with threads is what is tested
            forked.start()
        return forked.pid, lambda: forked.exitcode

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._prepared and not teardown and kind is None and self.alive and not self.busy:
            with contextlib.suppress(OSError):  # it has ended since, which is told below
                self._connection.send_bytes(self._dumps((_leave_modules, (), {})))  # its answer is not read
        super().__exit__(kind, error, trace)

    def _dumps(self, call: object) -> bytes:
        message: bytes = cloudpickle.dumps(call)
        return message


def command(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command `xpushare` with these arguments in a child."""
    with Child() as child:
        return subprocess.CompletedProcess(arguments, *child.call(_command, arguments, env or {}))


def program(source: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `source` as `python -c` would, in a child that has imported the package: it is the main module, and its end
    is that of the interpreter. `env` adds to the environment.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, Child() as child:
        outputs = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (output, errors)]
        child.call(_become, source, arguments, env or {}, outputs)
        status = child.exit()
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, output.read().decode(), errors.read().decode())


_program: str | None = None  # what this child runs at its end
_modules_stay = False  # when this child ends


def _leave_modules() -> None:
    global _modules_stay
    _modules_stay = True


def _become(source: str, arguments: Sequence[str], env: Mapping[str, str], outputs: Sequence[str]) -> None:
    global _program
    _program, sys.argv[:] = source, ["-c", *arguments]
    os.environ.update(env)
    for number, path in enumerate(outputs, 1):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(fd, number)
        os.close(fd)


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


def _set_environment(changed: Mapping[str, str | None]) -> None:
    for name, value in changed.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _serve_fork(parents: Connection, connection: Connection) -> None:
    parents.close()
    children.clear()  # the parent's, not ours
    serve(connection, cloudpickle.loads, cloudpickle.dumps)


def _main(fd: int, _parent: int) -> None:
    os.set_inheritable(fd, False)
    with Connection(fd) as connection:
        serve(connection, cloudpickle.loads, cloudpickle.dumps)
    if _program is not None:
        exec(compile(_program, "<string>", "exec"), vars(sys.modules["__main__"]))
    if _modules_stay:  # what an interpreter does first at its end
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@functools.cache  # a test that changes the environment changes it back
def _forkserver_of(_pid: int, imports: tuple[str, ...]) -> Forkserver:
    adapters = "xpushare.adapters"
    known = [f"{adapters}.native_cpu.vendor", f"{adapters}.mock.vendor", f"{adapters}.mock.adapter"]
    known += ["xpushare.arrays.names", "xpushare.arrays.keep", "xpushare.keeper.process"]
    tests = [name for name in _TESTS_IMPORT if importlib.util.find_spec(name.partition(".")[0]) is not None]
    return Forkserver("harness", "_main", [*known, *tests, *imports])


def prepare() -> None:
    """Start the process that forks children, so that a test that counts descriptors does not count its own."""
    _forkserver_of(os.getpid(), ())


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


def takes_little_cpu_time(waiting: threading.Thread) -> None:
    """Return once a thread that waits has used no more than the 0.5 % of a CPU that conformance rule 9.1 allows."""
    clock = time.pthread_getcpuclockid(waiting.ident or 0)

    def share() -> float:
        before, began = time.clock_gettime(clock), time.monotonic()
        time.sleep(0.5)
        return (time.clock_gettime(clock) - before) / (time.monotonic() - began)

    wait_until(lambda: share() < 0.005)


def wait_until(predicate: Callable[[], object], timeout: float = TIMEOUT, what: str = "") -> None:
    """Return as soon as `predicate()` is true; `HarnessError` when it is not within `timeout` seconds."""
    base.wait_until(predicate, what or str(predicate), timeout)
