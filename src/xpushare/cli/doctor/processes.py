"""The processes that `xpushare doctor` starts to share objects with each other."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from typing import Any, Final

import xpushare as xs
from xpushare.cli.doctor.containers import status
from xpushare.cli.doctor.routes import probe

__all__ = ["Failed", "Process", "serve"]

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


class _Side:
    """Runs requests inside a process that the doctor has started."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._device: dict[str, str] = {}

    def hello(self) -> dict[str, Any]:
        found: dict[str, Any] = {"dumpable": ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)}
        try:
            found["status"] = status()
        except OSError:
            found["status"] = {}
        return found

    def probe(self, pid: int) -> dict[str, int]:
        return probe(pid, 0)

    def offer(self, key: str, device: str, kind: str) -> str:
        """Make an object of this kind, and return its handle as text."""
        self._device[key] = device
        if kind == "memory":
            memory = self._kept[key] = xs.malloc_device(4096, device)
            _poke(memory, device, _DATA)
            return str(xs.ipc.memory.get(memory))
        if kind == "physical_memory":
            physical = xs.PhysicalMemory(xs.Device(device).memory_granularity(), device, enable_ipc=True)
            place = self._kept[key] = _mapped(physical)
            _poke(place, device, _DATA)
            self._kept[key + " pages"] = physical
            return str(xs.ipc.physical_memory.get(physical))
        event = self._kept[key] = xs.Event(device, enable_ipc=True)
        return str(xs.ipc.event.get(event))

    def take(self, key: str, device: str, kind: str, handle: str) -> None:
        """Open a handle of this kind. Unless the object is an event, check its content and write an answer into it."""
        self._device[key] = device
        if kind == "event":
            self._kept[key] = xs.ipc.event.open(handle)
            return
        if kind == "memory":
            self._kept[key] = xs.ipc.memory.open(handle)
        else:
            self._kept[key] = _mapped(xs.ipc.physical_memory.open(handle))
        _expect(self._kept[key], device, _DATA)
        _poke(self._kept[key], device, _ANSWER)

    def expect_answer(self, key: str) -> None:
        _expect(self._kept[key], self._device[key], _ANSWER)

    def two_way(self, device: str) -> bool:
        return xs.Device(device).has(xs.Aspect.two_way_events)

    def signal(self, key: str) -> None:
        with xs.Queue(self._device[key]) as queue:
            queue.signal(self._kept[key])
            queue.synchronize()

    def wait(self, key: str, point: int, timeout: float) -> None:
        self._kept[key].wait(timeout, at_least=point)

    def lost(self, key: str, timeout: float) -> float:
        """Wait for a signal from a process that is about to die. Returns the `time.monotonic()` at which the wait
        raised `PeerLostError`. All processes have the same monotonic clock.
        """
        try:
            self._kept[key].wait(timeout, at_least=1)
        except xs.PeerLostError:
            return time.monotonic()
        raise RuntimeError("the wait ended as if the dead had signalled")

    def futex_sleep(self, fd: int, timeout: float) -> bool:
        from xpushare import _native

        word = _native.Mapping(fd, 4096)
        return _native.futex_wait(word.address, 0, timeout, 0.0)

    def futex_wake(self, fd: int, timeout: float) -> int:
        """Wait until a thread sleeps on the futex, and wake it. Returns how many threads were woken."""
        from xpushare import _native

        word = _native.Mapping(fd, 4096)
        end = time.monotonic() + timeout
        while not (woken := _native.futex_wake(word.address)) and time.monotonic() < end:
            time.sleep(0.001)
        return woken

    def fork(self, device: str, handle: str, timeout: float) -> str:
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


def serve(fd: int, only: str) -> None:
    """The main function of a process that the doctor starts. Runs requests until the doctor closes the connection. If
    `only` is not empty, the process uses only the route with this name.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the doctor ends us
    from xpushare.sharing import routes

    if only:
        routes.use_only(only)
    side = _Side()
    with socket.socket(fileno=fd) as connection, connection.makefile("rwb") as stream:
        for line in stream:
            name, *arguments = json.loads(line)
            answer: dict[str, Any]
            try:
                answer = {"value": getattr(side, name)(*arguments)}
            except Exception as error:
                number = getattr(error, "native", None) or getattr(error, "errno", None)
                reasons = getattr(error, "reasons", ())
                text = "; ".join(reasons) or str(error) or type(error).__name__
                answer = {"kind": type(error).__name__, "text": text, "errno": number}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


class Process:
    """Starts one of the doctor's test processes, sends requests to it and receives the answers."""

    def __init__(self, name: str, only: str, folder: str, timeout: float, fds: tuple[int, ...] = ()) -> None:
        self.name = name
        self._timeout = timeout
        here, there = socket.socketpair()
        source = f"import sys; sys.path[:] = {sys.path!r}; from xpushare.cli.doctor.processes import serve; "
        source += f"serve({there.fileno()}, {only!r})"
        environment = {**os.environ, "XPUSHARE_RUNTIME_DIR": folder}
        environment.pop("XPUSHARE_KEY_FILE", None)
        with there:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", source],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(there.fileno(), *fds),
                )
            except OSError as error:
                here.close()
                raise Failed("OSError", f"no process can be started: {error.strerror}", error.errno) from None
        self._connection = here
        self._stream = here.makefile("rb")
        self.pid = self._process.pid

    def send(self, name: str, *arguments: Any) -> None:
        try:
            self._connection.settimeout(self._timeout)
            self._connection.sendall(json.dumps([name, *arguments]).encode() + b"\n")
        except OSError:
            raise self._ended() from None

    def receive(self) -> Any:
        try:
            line = self._stream.readline()
        except TimeoutError:
            self.kill()
            raise Failed("TimeoutError", f"the {self.name} did not answer within {self._timeout:g} s") from None
        except OSError:
            line = b""
        if not line:
            raise self._ended()
        answer = json.loads(line)
        if "kind" in answer:
            raise Failed(answer["kind"], answer["text"], answer["errno"])
        return answer["value"]

    def call(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        return self.receive()

    def _ended(self) -> Failed:
        self.kill()
        assert self._process.stderr is not None
        lines = [] if self._process.stderr.closed else self._process.stderr.read().decode(errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), f"exit status {self._process.returncode}")
        return Failed("Ended", f"the {self.name} ended: {said}")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Wait for the process to exit, kill it if it does not, and close the file descriptors that belong to it."""
        self._stream.close()
        self._connection.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self._process.stderr is not None
        self._process.stderr.close()
