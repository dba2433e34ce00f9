"""Share a file's bytes between two processes in device memory, check each step, and print PASSED or FAILED.

One process (exporter) puts a file into shared memory. Another (reader) hashes it there and writes an answer back. Then
the exporter shares three physical memories, which the reader maps into one range, and the two processes signal each
other with an event. At the end, the exporter is killed. The reader must still be able to read the memory, and its wait
for a signal of the exporter must fail.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import xpushare as xs
from xpushare import Aspect, Device, Memory
from xpushare.cli import misused, seconds
from xpushare.cli.screen import coloured
from xpushare.conformance.harness import Child, ChildDied, HarnessError, ignore_interrupts, kept

__all__ = ["STEPS", "Demo", "Peer", "Side", "Step", "add_arguments", "run"]

_CHUNK: Final = 16 << 20  # bytes that are staged at a time if the host cannot reach the device's memory
_ANSWER: Final = hashlib.sha256().digest_size

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class DemoError(Exception):
    """A step did not have the expected result."""


# --- the two processes ----------------------------------------------------------------------------


class Peer:
    """What the functions that run in one of the two processes get as their first argument, to print lines with `say`
    and to store objects from step to step in `kept`.
    """

    kept: Final = kept

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []

    def say(self, text: str) -> None:
        """Print the text with the time of this call, once the function has returned."""
        self.lines.append((time.monotonic(), text))


def _run(function: Callable[..., Value], *args: Any) -> tuple[list[tuple[float, str]], Value | None, str]:
    """Call a function in one of the two processes. Returns the lines that it said, its result, and the text of the
    error that it raised or an empty string.
    """
    peer = Peer()
    try:
        return peer.lines, function(peer, *args), ""
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return peer.lines, None, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"


class Side(Child):
    """Starts and controls one of the two processes. The conductor (the process that runs the demo) has one such object
    for each.
    """

    def __init__(self, demo: Demo, name: str) -> None:
        self._demo = demo
        self.name = name
        super().__init__(method="spawn", env={"XPUSHARE_RUNTIME_DIR": demo.folder, "XPUSHARE_KEY_FILE": None})
        self.start(ignore_interrupts)

    def call(
        self, function: Callable[Concatenate[Peer, Arguments], Value], *args: Arguments.args, **_: Arguments.kwargs
    ) -> Value:
        """Run `function(peer, *args)` in the other process, within the time that is left for the step, and return its
        result. Lines that the function prints with `peer.say` are printed by this process.
        """
        try:
            lines, value, error = self.start(_run, function, *args).result(self._demo.seconds_left())
        except ChildDied:
            status = self.ended(self._demo.seconds_left())
            raise DemoError(f"the {self.name} (pid {self.pid}) ended, exit status {status}") from None
        except HarnessError:
            text = f"the {self.name} (pid {self.pid}) has not answered within {self._demo.timeout:g} s"
            raise DemoError(text) from None
        for when, text in lines:
            self._demo.say(text, self, when)
        if error:
            raise DemoError(f"the {self.name} (pid {self.pid}) failed: {error}")
        result: Value = value
        return result

    def end(self) -> None:
        """Let the process exit, and kill it if it does not. Raises `DemoError` unless its exit status is 0."""
        try:
            status = self.exit(self._demo.seconds_left())
        except HarnessError:
            raise DemoError(f"the {self.name} hangs at exit") from None
        if status:
            raise DemoError(f"the {self.name} (pid {self.pid}) ended with {status}")


# --- bytes of a device's memory -------------------------------------------------------------------


def _write(memory: Memory, data: bytes | memoryview) -> None:
    """Write bytes to memory of any device, directly if the host can access the memory, otherwise with a queue."""
    try:
        view = memoryview(memory)
    except BufferError:
        with xs.Queue(memory.device) as queue, xs.malloc_host(min(_CHUNK, len(data)), memory.device) as staging:
            for at in range(0, len(data), _CHUNK):
                piece = data[at : at + _CHUNK]
                memoryview(staging)[: len(piece)] = piece
                queue.copy(memory.slice(at, len(piece)), staging, len(piece))
                queue.synchronize()
    else:
        view[: len(data)] = data


def _digest(memory: Memory) -> bytes:
    """Return the SHA-256 digest of memory of any device."""
    digest = hashlib.sha256()
    for piece in _pieces(memory):
        digest.update(piece)
    return digest.digest()


def _read(memory: Memory) -> bytes:
    return b"".join(bytes(piece) for piece in _pieces(memory))


def _pieces(memory: Memory) -> Any:
    try:
        yield memoryview(memory)
    except BufferError:
        with xs.Queue(memory.device) as queue, xs.malloc_host(min(_CHUNK, memory.nbytes), memory.device) as staging:
            for at in range(0, memory.nbytes, _CHUNK):
                nbytes = min(_CHUNK, memory.nbytes - at)
                queue.copy(staging, memory.slice(at, nbytes))
                queue.synchronize()
                yield memoryview(staging)[:nbytes]


# --- what the two processes do --------------------------------------------------------------------


def _put_file(peer: Peer, path: str, device: str) -> str:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        memory = xs.malloc_device(size + _ANSWER, device)
        for at in range(0, size, _CHUNK):
            _write(memory.slice(at, min(_CHUNK, size - at)), file.read(_CHUNK))
    peer.kept["memory"] = memory
    peer.kept["file_nbytes"] = size
    handle = xs.ipc.memory.get(memory)
    peer.say(f"put {size} bytes of {path} into {memory!r}")
    peer.say(f"made a handle of it: {len(bytes(handle))} bytes, as text {str(handle)[:24]}…")
    return str(handle)


def _open_and_hash(peer: Peer, handle: str) -> bytes:
    memory = xs.ipc.memory.open(handle)
    peer.kept["memory"] = memory
    peer.kept["handle"] = handle
    peer.kept["content"] = memory.slice(0, memory.nbytes - _ANSWER)
    peer.say(f"opened the handle: {memory!r}")
    digest = _digest(peer.kept["content"])
    peer.say(f"SHA-256 of the file's bytes there: {digest.hex()}")
    return digest


def _answer(peer: Peer) -> None:
    memory: Memory = peer.kept["memory"]
    digest = _digest(peer.kept["content"])
    _write(memory.slice(memory.nbytes - _ANSWER, _ANSWER), digest)
    peer.say(f"wrote the hash back into the last {_ANSWER} bytes of the memory")


def _read_answer(peer: Peer) -> bytes:
    memory: Memory = peer.kept["memory"]
    answer = _read(memory.slice(memory.nbytes - _ANSWER, _ANSWER))
    peer.say(f"found the answer in my memory:     {answer.hex()}")
    return answer


class _Reading:
    """A thread that hashes the memory again and again."""

    def __init__(self, content: Memory, expected: bytes) -> None:
        self.rounds = 0
        self.wrong: str | None = None
        self._content = content
        self._expected = expected
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                found = _digest(self._content)
                if found != self._expected:
                    raise DemoError(f"round {self.rounds + 1} found {found.hex()}")
                self.rounds += 1
        except Exception as error:
            self.wrong = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _start_reading(peer: Peer, expected: bytes) -> None:
    peer.kept["reading"] = _Reading(peer.kept["content"], expected)
    peer.say("hashing the memory over and over, in a thread")


def _rounds(peer: Peer) -> int:
    reading: _Reading = peer.kept["reading"]
    if reading.wrong is not None:
        raise DemoError(reading.wrong)
    return reading.rounds


def _stop_reading(peer: Peer) -> int:
    reading: _Reading = peer.kept["reading"]
    reading.stop()
    rounds = _rounds(peer)
    peer.say(f"stopped after {rounds} rounds, all the same")
    return rounds


def _open_again(peer: Peer) -> str:
    try:
        xs.ipc.memory.open(peer.kept["handle"])
    except xs.HandleExpiredError as error:
        peer.say(f"opening the handle again is refused: {error}")
        return "refused"
    return "opened"


def _hash_and_close(peer: Peer) -> bytes:
    digest = _digest(peer.kept["content"])
    peer.say(f"SHA-256 once more:                 {digest.hex()}")
    peer.kept["content"].close()
    xs.ipc.memory.close(peer.kept["memory"])
    peer.kept.clear()
    peer.say("closed the memory; with that it is gone")
    return digest


_RANGES: Final = 3
_ROUNDS: Final = 1000


def _make_ranges(peer: Peer, device: str) -> list[str]:
    """Allocate the physical memories that the other process maps into one range. Fill each of them with a different
    number, and return their handles as text.
    """
    nbytes = Device(device).memory_granularity()
    made: list[str] = []
    for number in range(1, _RANGES + 1):
        memory = xs.PhysicalMemory(nbytes, device, enable_ipc=True)
        with xs.VirtualRange(nbytes, device) as place, xs.Queue(device) as queue:
            place.map(memory)
            queue.fill(place, bytes([number]))
            queue.synchronize()
        peer.kept[f"physical {number}"] = memory
        made.append(str(xs.ipc.physical_memory.get(memory)))
    peer.say(
        f"made {_RANGES} physical memories of {nbytes} bytes, filled with 1, 2, 3, unmapped them and exported them"
    )
    return made


def _map_ranges(peer: Peer, handles: list[str], device: str) -> bytes:
    """Map the physical memories side by side into one range. Returns the first byte of each physical memory, read
    through the range.
    """
    opened = [xs.ipc.physical_memory.open(handle) for handle in handles]
    nbytes = opened[0].nbytes
    place = xs.VirtualRange(nbytes * len(opened), device)
    for number, memory in enumerate(opened):
        place.map(memory, number * nbytes)
        memory.close()  # the mapping keeps the pages alive
    with xs.Queue(device) as queue, xs.malloc_host(place.nbytes, device) as staging:
        queue.copy(staging, place)
        queue.synchronize()
        whole = bytes(memoryview(staging))
    expected = b"".join(bytes([number]) * nbytes for number in range(1, len(opened) + 1))
    if whole != expected:
        raise DemoError("the bytes in the range are not those of the three physical memories")
    peer.say(f"mapped them side by side at {place.ptr:#x}: {place.nbytes} bytes in one piece, content as exported")
    place.close()
    return whole[::nbytes]


def _make_events(peer: Peer, device: str) -> tuple[str, str]:
    events = [xs.Event(device, enable_ipc=True) for _ in range(2)]
    peer.kept["there"], peer.kept["back"] = events
    there, back = (str(xs.ipc.event.get(event)) for event in events)
    return there, back


def _open_events(peer: Peer, there: str, back: str) -> None:
    peer.kept["there"] = xs.ipc.event.open(there)
    peer.kept["back"] = xs.ipc.event.open(back)
    peer.kept["answering"] = threading.Thread(target=_answer_signals, args=(peer,), daemon=True)
    peer.kept["answering"].start()


def _answer_signals(peer: Peer) -> None:
    for number in range(1, _ROUNDS + 1):
        peer.kept["there"].wait(at_least=number)
        peer.kept["back"].signal()


def _signal_back_and_forth(peer: Peer) -> int:
    there, back = peer.kept["there"], peer.kept["back"]
    begin = time.perf_counter()
    for number in range(1, _ROUNDS + 1):
        there.signal()
        back.wait(10, at_least=number)
    each = (time.perf_counter() - begin) / _ROUNDS
    peer.say(f"{_ROUNDS} round trips of two events, {each * 1e6:.1f} us each")
    return int(back.value)


def _wait_for_ever(peer: Peer) -> None:
    """Start to wait for a signal that only the other process could send. The demo kills that process before it
    signals.
    """
    peer.kept["answering"].join()

    def wait() -> None:
        try:
            peer.kept["there"].wait(at_least=_ROUNDS + 1)
        except xs.PeerLostError as error:
            peer.kept["lost"] = str(error)

    peer.kept["waiting"] = threading.Thread(target=wait, daemon=True)
    peer.kept["waiting"].start()
    peer.say(f"waiting for signal {_ROUNDS + 1} of the first event, in a thread, without a time-out")


def _end_of_wait(peer: Peer) -> str:
    peer.kept["waiting"].join()
    lost: str = peer.kept["lost"]
    peer.say(f"the wait ended: {lost}")
    return lost


# --- the steps ------------------------------------------------------------------------------------


def _step_ranges(demo: Demo) -> None:
    handles = demo.exporter.call(_make_ranges, str(demo.device))
    found = demo.reader.call(_map_ranges, handles, str(demo.device))
    demo.check(found == bytes(range(1, _RANGES + 1)), "the ranges are not in the order in which they were mapped")


def _step_event(demo: Demo) -> None:
    there, back = demo.exporter.call(_make_events, str(demo.device))
    demo.reader.call(_open_events, there, back)
    value = demo.exporter.call(_signal_back_and_forth)
    demo.check(value == _ROUNDS, f"the second event stands at {value}, not at {_ROUNDS}")
    demo.reader.call(_wait_for_ever)


def _step_lost(demo: Demo) -> None:
    demo.exporter.kill()  # still alive here if the step that kills it was skipped
    begin = time.monotonic()
    lost = demo.reader.call(_end_of_wait)
    demo.check(str(demo.exporter.pid) in lost, f"the wait does not name the dead process: {lost}")
    demo.say(f"the conductor knew of it {time.monotonic() - begin:.3f} s after asking")


def _step_put(demo: Demo) -> None:
    demo.handle = demo.exporter.call(_put_file, str(demo.file), str(demo.device))


def _step_hash(demo: Demo) -> None:
    digest = demo.reader.call(_open_and_hash, demo.handle)
    with demo.file.open("rb") as file:
        demo.expected = hashlib.file_digest(file, "sha256").digest()
    demo.say(f"SHA-256 of the file on disk:       {demo.expected.hex()}")
    demo.check(digest == demo.expected, "the reader's hash is not that of the file")


def _step_answer(demo: Demo) -> None:
    demo.reader.call(_answer)
    answer = demo.exporter.call(_read_answer)
    demo.check(answer == demo.expected, "the exporter does not see what the reader wrote")


def _step_kill(demo: Demo) -> None:
    demo.reader.call(_start_reading, demo.expected)
    before = demo.wait_for_rounds(2)
    demo.exporter.kill()
    demo.say(f"killed the exporter (SIGKILL to pid {demo.exporter.pid}) after the reader's round {before}")
    demo.wait_for_rounds(before + 3)
    demo.reader.call(_stop_reading)


def _step_dead(demo: Demo) -> None:
    found = demo.reader.call(_open_again)
    demo.check(found == "refused", "a dead process's handle was opened again")


def _step_close(demo: Demo) -> None:
    digest = demo.reader.call(_hash_and_close)
    demo.check(digest == demo.expected, "the content changed after the exporter's death")
    demo.reader.end()


class Step(NamedTuple):
    """One step of the demo. It has a description, a function that runs the step and raises an error if the step fails,
    and the aspect that the device needs.
    """

    title: str
    do: Callable[[Demo], None]
    needs: Aspect | None = None


STEPS: Final = (
    Step("a process puts a file into shared memory", _step_put, Aspect.ext_oneapi_ipc_memory),
    Step("another one opens it and hashes it there", _step_hash, Aspect.ext_oneapi_ipc_memory),
    Step("it writes an answer back", _step_answer, Aspect.ext_oneapi_ipc_memory),
    Step(
        "three physical memories become one range in the other process",
        _step_ranges,
        Aspect.ext_oneapi_ipc_physical_memory,
    ),
    Step("an event goes back and forth, signalled by both", _step_event, Aspect.ext_oneapi_ipc_event),
    Step("the exporter is killed while its memory is read", _step_kill, Aspect.outlives_exporter),
    Step("a wait on the killed process ends with PeerLostError", _step_lost, Aspect.ext_oneapi_ipc_event),
    Step("the dead process's handle opens no more", _step_dead, Aspect.outlives_exporter),
    Step("the content is still there until the reader closes it", _step_close, Aspect.outlives_exporter),
)


# --- the conductor --------------------------------------------------------------------------------


@dataclass
class Demo:
    """One run of the demo. The process that makes this object is the conductor. It starts both processes, runs the
    steps and checks the results.
    """

    device: Device
    file: Path
    timeout: float
    quiet: bool
    folder: str
    handle: str = ""
    expected: bytes = b""
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _begin: float = field(default_factory=time.monotonic)
    _deadline: float = 0.0
    _sides: dict[str, Side] = field(default_factory=dict[str, Side])

    @property
    def exporter(self) -> Side:
        return self._sides["exporter"]

    @property
    def reader(self) -> Side:
        return self._sides["reader"]

    def seconds_left(self) -> float:
        """Return how many seconds the current step has left."""
        return max(0.0, self._deadline - time.monotonic())

    def say(self, text: str, side: Side | None = None, when: float | None = None) -> None:
        """Print the text in a line with the time since the start and the name and pid of a process. The process is that
        of `side`, or the conductor if `side` is None.
        """
        elapsed = (time.monotonic() if when is None else when) - self._begin
        name, pid = (side.name, side.pid) if side is not None else ("conductor", os.getpid())
        self.lines.append({"seconds": round(elapsed, 6), "process": name, "pid": pid, "text": text})
        self._print(f"  {elapsed:8.3f} s  {name:<9} {pid:>7}  {text}")

    def _print(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)

    @staticmethod
    def check(good: bool, wrong: str) -> None:
        if not good:
            raise DemoError(wrong)

    def wait_for_rounds(self, count: int) -> int:
        """Wait until the reader's thread has hashed the memory `count` times in total. Returns the number of rounds so
        far.
        """
        while (rounds := self.reader.call(_rounds)) < count:
            if not self.seconds_left():
                raise DemoError(f"the reader did {rounds} of {count} rounds within {self.timeout:g} s")
            time.sleep(0.005)
        return rounds

    def run(self) -> dict[str, Any]:
        """Run all steps. Returns the results as a dict, which `--json` prints."""
        results: list[dict[str, Any]] = []
        self._print(f"{self.device}, {self.device.name}; file {self.file}, {self.file.stat().st_size} bytes")
        try:
            for number, step in enumerate(STEPS, 1):
                self._print(f"{number}. {step.title}")
                results.append(self._one(step))
                if results[-1]["state"] == "failed":
                    break
        finally:
            for side in self._sides.values():
                side.kill()
        passed = all(result["state"] != "failed" for result in results) and any(
            result["state"] == "passed" for result in results
        )
        return {
            "passed": passed,
            "device": str(self.device),
            "device_name": self.device.name,
            "file": str(self.file),
            "seconds": round(time.monotonic() - self._begin, 6),
            "steps": results,
        }

    def _one(self, step: Step) -> dict[str, Any]:
        self.lines = []
        begin = time.monotonic()
        self._deadline = begin + self.timeout
        state, why = "passed", None
        try:
            support = self.device.support(step.needs) if step.needs is not None else None
            if support is not None and support.state != "yes":
                state, why = "skipped", f"{self.device} has no {step.needs} ({support.reason})"
            else:
                if not self._sides:
                    for name in ("exporter", "reader"):
                        self._sides[name] = Side(self, name)
                step.do(self)
        except (DemoError, HarnessError, OSError, xs.XpuShareError) as error:
            state, why = "failed", str(error)
        seconds = time.monotonic() - begin
        self._print(f"   {state}, {seconds:.3f} s" + (f": {why}" if why else ""))
        return {"title": step.title, "state": state, "why": why, "seconds": round(seconds, 6), "lines": self.lines}


def _default_file() -> Path:
    """Return the file to share if the user names none. This is the README in a checkout, or the native library of an
    installed package.
    """
    readme = Path(__file__).parents[3] / "README.md"
    if readme.is_file() and (readme.parent / "src" / "xpushare").is_dir():
        return readme
    from xpushare import _native

    return Path(_native.__file__ or sys.executable)


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file")
    if not path.stat().st_size:
        raise argparse.ArgumentTypeError(f"{text} is empty: there is nothing to share")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", type=_file, help="the file to share (default: a file of the package)")
    parser.add_argument(
        "--device", help="the device to use: cpu, gpu, native_cpu:0 or a uuid (default: the first GPU, else cpu)"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="SECONDS", help="time limit for each step (default: 30)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns 0 if every step that the device supports passed, else 1."""
    try:
        device = Device(arguments.device) if arguments.device else xs.default_device()
    except xs.InvalidArgumentError as error:
        misused(arguments, str(error))
    folder = tempfile.mkdtemp(prefix="xpushare-demo-")
    try:
        file = arguments.file if arguments.file is not None else _default_file()
        result = Demo(device, file, arguments.timeout, arguments.json, folder).run()
    finally:
        shutil.rmtree(folder)
    outcome = coloured("PASSED", "green") if result["passed"] else coloured("FAILED", "red")
    print(json.dumps(result, indent=2) if arguments.json else outcome, flush=True)
    return 0 if result["passed"] else 1
