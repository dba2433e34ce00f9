"""The processes that `xpushare doctor` starts to share objects with each other."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Generator
from typing import Any, Final

import xpushare as xs
from xpushare.cli.doctor.machine import status
from xpushare.conformance.harness import Child, ChildDied, HarnessError, Pending, ignore_interrupts, kept

__all__ = ["Failed", "Process", "expect_answer", "futex_sleep", "futex_wake", "hello", "offer", "open_after_fork",
           "signal_event", "take", "two_way", "wait_for_death", "wait_for_point"]  # fmt: skip

_DATA: Final = b"xpushare doctor: from the exporter".ljust(64, b".")
_ANSWER: Final = b"xpushare doctor: from the importer".ljust(64, b".")
_PR_GET_DUMPABLE: Final = 3


class Failed(Exception):
    """A request to one of the started processes failed. `kind` is the class name of the error."""

    def __init__(self, kind: str, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.errno = number


def _poke(target: Any, device: str, data: bytes) -> None:
    try:
        view = memoryview(target)
    except BufferError:
        with xs.Queue(device) as queue, xs.malloc_host(len(data), device) as staging:
            memoryview(staging)[:] = data
            queue.copy(target, staging, len(data))
            queue.synchronize()
    else:
        view[: len(data)] = data


def _peek(target: Any, device: str, nbytes: int) -> bytes:
    try:
        view = memoryview(target)
    except BufferError:
        with xs.Queue(device) as queue, xs.malloc_host(nbytes, device) as staging:
            queue.copy(staging, target, nbytes)
            queue.synchronize()
            return bytes(memoryview(staging))
    return bytes(view[:nbytes])


def _expect(target: Any, device: str, data: bytes) -> None:
    found = _peek(target, device, len(data))
    if found != data:
        raise RuntimeError(f"other bytes than were written: {found[:16]!r}… for {data[:16]!r}…")


def _mapped(physical: xs.PhysicalMemory) -> xs.VirtualRange:
    place = xs.VirtualRange(physical.nbytes, physical.device)
    place.map(physical)
    return place


_devices: dict[str, str] = {}  # the device of each object in `kept`


def _use_only(route: str) -> None:
    from xpushare.sharing import routes

    routes.use_only(route)


def hello() -> dict[str, Any]:
    found: dict[str, Any] = {"dumpable": ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)}
    try:
        found["status"] = status()
    except OSError:
        found["status"] = {}
    return found


def offer(key: str, device: str, kind: str) -> str:
    """Make an object of this kind, and return its handle as text."""
    _devices[key] = device
    if kind == "memory":
        memory = kept[key] = xs.malloc_device(4096, device)
        _poke(memory, device, _DATA)
        return str(xs.ipc.memory.get(memory))
    if kind == "physical_memory":
        physical = xs.PhysicalMemory(xs.Device(device).memory_granularity(), device, enable_ipc=True)
        place = kept[key] = _mapped(physical)
        _poke(place, device, _DATA)
        kept[key + " pages"] = physical
        return str(xs.ipc.physical_memory.get(physical))
    event = kept[key] = xs.Event(device, enable_ipc=True)
    return str(xs.ipc.event.get(event))


def take(key: str, device: str, kind: str, handle: str) -> None:
    """Open a handle of this kind. Unless the object is an event, check its content and write an answer into it."""
    _devices[key] = device
    if kind == "event":
        kept[key] = xs.ipc.event.open(handle)
        return
    if kind == "memory":
        kept[key] = xs.ipc.memory.open(handle)
    else:
        kept[key] = _mapped(xs.ipc.physical_memory.open(handle))
    _expect(kept[key], device, _DATA)
    _poke(kept[key], device, _ANSWER)


def expect_answer(key: str) -> None:
    _expect(kept[key], _devices[key], _ANSWER)


def two_way(device: str) -> bool:
    return xs.Device(device).has(xs.Aspect.two_way_events)


def signal_event(key: str) -> None:
    with xs.Queue(_devices[key]) as queue:
        queue.signal(kept[key])
        queue.synchronize()


def wait_for_point(key: str, point: int, timeout: float) -> None:
    kept[key].wait(timeout, at_least=point)


def wait_for_death(key: str, timeout: float) -> float:
    """Wait for a signal from a process that is about to die. Returns the `time.monotonic()` at which the wait
    raised `PeerLostError`. All processes have the same monotonic clock.
    """
    try:
        kept[key].wait(timeout, at_least=1)
    except xs.PeerLostError:
        return time.monotonic()
    raise RuntimeError("the wait ended as if the dead had signalled")


def futex_sleep(fd: int, timeout: float) -> bool:
    from xpushare import _native

    word = _native.Mapping(fd, 4096)
    return _native.futex_wait(word.address, 0, timeout, 0.0)


def futex_wake(fd: int, timeout: float) -> int:
    """Wait until a thread sleeps on the futex, and wake it. Returns how many threads were woken."""
    from xpushare import _native

    word = _native.Mapping(fd, 4096)
    end = time.monotonic() + timeout
    while not (woken := _native.futex_wake(word.address)) and time.monotonic() < end:
        time.sleep(0.001)
    return woken


def open_after_fork(device: str, handle: str, timeout: float) -> str:
    """Open memory and fork, then open the same memory again in the forked child. Returns an empty string on
    success, otherwise the error as text.
    """
    memory = xs.ipc.memory.open(handle)
    _expect(memory, device, _DATA)
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn about forks with threads
        pid = os.fork()
    if not pid:
        text = "it crashed"
        try:
            _expect(xs.ipc.memory.open(handle), device, _DATA)
            text = ""
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writes, text.encode()[:4096])
            os._exit(0)
    os.close(writes)
    ready = select.select([reads], [], [], timeout)[0]
    if not ready:
        os.kill(pid, signal.SIGKILL)
    found = os.read(reads, 4096).decode() if ready else f"no end within {timeout:g} s"
    os.close(reads)
    status = os.waitpid(pid, 0)[1]
    return found or (f"it ended with status {status}" if status else "")


class Process(Child):
    """One of the doctor's test processes. If `only` is not empty, it uses only the route with this name."""

    def __init__(self, name: str, only: str, folder: str, timeout: float, fds: tuple[int, ...] = ()) -> None:
        self.name = name
        try:
            super().__init__(
                method="spawn",
                env={"XPUSHARE_RUNTIME_DIR": folder, "XPUSHARE_KEY_FILE": None},
                timeout=timeout,
                pass_fds=fds,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise Failed("OSError", f"no process can be started: {error.strerror}", error.errno) from None
        self.start(ignore_interrupts)
        if only:
            self.start(_use_only, only)

    def start(self, function: Callable[..., Any], *args: Any, **options: Any) -> Pending:
        with self._failing():
            return super().start(function, *args, **options)

    def receive(self, wanted: Pending, timeout: float) -> None:
        with self._failing():
            super().receive(wanted, timeout)
        if wanted.reply is None:
            self.kill()
            raise Failed("TimeoutError", f"the {self.name} did not answer within {self.timeout:g} s")
        good, error, _ = wanted.reply
        if not good:
            number = getattr(error, "native", None) or getattr(error, "errno", None)
            text = "; ".join(getattr(error, "reasons", ())) or str(error) or type(error).__name__
            raise Failed(type(error).__name__, text, number)

    @contextlib.contextmanager
    def _failing(self) -> Generator[None]:
        """Raise `Failed` with what the process printed last, if it ends within the block."""
        try:
            yield
        except ChildDied:
            self.kill()
            assert self.popen is not None
            assert self.popen.stderr is not None
            said = self.popen.stderr.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(said) if line.strip()), f"exit status {self.popen.returncode}")
            raise Failed("Ended", f"the {self.name} ended: {last}") from None

    def end(self) -> None:
        """Wait for the process to exit, kill it if it does not, and close the file descriptors that belong to it."""
        with contextlib.suppress(HarnessError):
            self.exit(5)
        assert self.popen is not None
        assert self.popen.stderr is not None
        self.popen.stderr.close()
