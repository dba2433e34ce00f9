"""`xpushare trace`: real programs, traced as a user does it, and the file that comes of it."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import Child, wait_until
from xpushare.cli import trace
from xpushare.core import layers
from xpushare.core.declare import CALLS as CALLS_MADE
from xpushare.core.declare import Traced

TIMEOUT = 60
Event = dict[str, Any]

TWO_PROCESSES = """
import multiprocessing, os, sys, time
from pathlib import Path
import xpushare as xs

def child(array, event, forever):
    with xs.attach(array) as found:
        memoryview(found)[0] = 7
    event.signal()
    if forever:
        event.wait(at_least=10)

def noted(text):
    return any(text in file.read_text() for file in Path(os.environ["XPUSHARE_TRACE_FOLDER"]).iterdir())

if __name__ == "__main__":
    forever = len(sys.argv) > 1
    array, event = xs.empty(8, "uint8"), xs.Event("native_cpu:0", enable_ipc=True)
    process = multiprocessing.get_context("spawn").Process(target=child, args=(xs.share(array), event, forever))
    process.start()
    event.wait(20, at_least=1)
    print(memoryview(array)[0])
    if forever:
        end = time.monotonic() + 20
        while not noted('"at_least":10') and time.monotonic() < end:
            time.sleep(0.002)
        process.kill()
    process.join(20)
    sys.exit(3 if forever else 0)
"""


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of the processes' files goes with the command."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert list(folder.iterdir()) == []


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "xpushare", "trace", *map(str, arguments)]


def traced(folder: Path, source: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[Event]]:
    """Run `source` as a program: how that ended, and the checked events."""
    program, output = folder / "program.py", folder / "out.json"
    program.write_text(textwrap.dedent(source))
    done = subprocess.run(
        command("-o", output, program, *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    return done, read(output)


def read(output: Path) -> list[Event]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    found = json.loads(output.read_text(), parse_constant=refuse)
    assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    check(found["traceEvents"])
    events: list[Event] = found["traceEvents"]
    return events


def check(events: list[Event]) -> None:
    """The rules of the trace-event format, and that every name, arrow and pair is complete."""
    keys = {
        "M": {"args"},
        "X": {"ts", "dur", "cat", "args"},
        "B": {"ts", "cat", "args"},
        "b": {"ts", "cat", "args", "id"},
        "e": {"ts", "cat", "args", "id"},
        "s": {"ts", "cat", "id"},
        "f": {"ts", "cat", "id", "bp"},
    }
    processes, threads = set(), set()
    for event in events:
        expected = keys[event["ph"]] | {"ph", "name", "pid", "tid"}
        assert expected <= set(event) <= expected | {"ts"}
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        for key in ("ts", "dur"):
            assert key not in event or (math.isfinite(event[key]) and event[key] >= 0)
        if event["ph"] == "M":
            {"process_name": processes, "thread_name": threads}[event["name"]].add((event["pid"], event["tid"]))
            assert isinstance(event["args"]["name"], str)
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert {event["pid"] for event in timed} <= {pid for pid, _tid in processes}
    assert {(event["pid"], event["tid"]) for event in timed} <= threads
    assert len({tid for _pid, tid in threads}) == len(threads)

    slices: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in timed:
        if event["ph"] == "X":
            slices[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for found in slices.values():
        stack: list[float] = []
        for start, end in found:
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1] + 1e-6, "operations of a thread overlap"
            stack.append(end)
    for first, second in (("s", "f"), ("b", "e")):
        pairs: dict[int, list[Event]] = defaultdict(list)
        for event in timed:
            if event["ph"] in (first, second):
                pairs[event["id"]].append(event)
        for pair in pairs.values():
            phases = [event["ph"] for event in pair]
            assert phases == [first, second] or phases == ["b"]
            assert len({(event["name"], event["cat"]) for event in pair}) == 1
    for event in timed:
        if event["ph"] in "sf":
            assert any(start <= event["ts"] <= end for start, end in slices[event["tid"]]), "an arrow from nowhere"
            assert event.get("bp", "e") == "e"


def of(events: list[Event], name: str, phases: str = "XBb") -> list[Event]:
    return [event for event in events if event["name"] == name and event["ph"] in phases]


def arrows(events: list[Event], name: str) -> list[tuple[str, str]]:
    """From which operation to which, by the events of their processes."""

    def at(end: Event) -> str:
        around = (
            event for event in events
            if event["ph"] == "X" and event["tid"] == end["tid"]
            and event["ts"] <= end["ts"] <= event["ts"] + event["dur"]
        )  # fmt: skip
        found = min(around, key=lambda event: event["dur"])
        return f"{found['name']} {found['pid']}"

    ends = {event["id"]: event for event in of(events, name, "f")}
    return [(at(event), at(ends[event["id"]])) for event in of(events, name, "s")]


def test_two_processes(tmp_path: Path) -> None:
    done, events = traced(tmp_path, TWO_PROCESSES)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    assert done.stderr.startswith(f"xpushare trace: {tmp_path / 'out.json'}: ")
    assert "of 2 processes" in done.stderr
    parent, child = (event["pid"] for event in of(events, "process_name", "M"))
    names = [event["args"]["name"] for event in of(events, "process_name", "M")]
    assert names == [f"program.py ({parent})", f"program.py SpawnProcess-1 ({child})"]
    assert arrows(events, "signal") == [(f"Event.signal {child}", f"Event.wait {parent}")]
    assert sorted(arrows(events, "handle")) == [
        (f"ipc.event.get {parent}", f"ipc.event.open {child}"),
        (f"ipc.memory.get {parent}", f"ipc.memory.open {child}"),
    ]
    (wait,) = of(events, "Event.wait")
    assert wait["args"]["at_least"] == 1
    assert wait["dur"] > 0
    (made,) = of(events, "malloc")
    assert made["args"]["nbytes"] == 8
    assert made["args"]["device"] == "native_cpu:0"


CALLS = """
import asyncio, multiprocessing
import numpy as np, xpushare as xs

def child(number):
    with xs.Channel.open("frames", timeout=20) as reader:
        number.add(1)
        for frame in reader:
            np.asarray(frame)
    with xs.Lock("lock"):
        number.add(1)

async def awaited(event):
    await xs.any_of([event])
    async for _ in xs.watch("name"):
        break

if __name__ == "__main__":
    number = xs.Atomic(0, "number")
    writer = xs.Channel.create("frames", 3)
    process = multiprocessing.get_context("spawn").Process(target=child, args=(number,))
    process.start()
    number.wait(0, 20)
    writer.send([12345.0, 2.0, 3.0], "secret")
    with writer.loan() as frame:
        np.asarray(frame)[:] = 7
    writer.finish()
    process.join(20)
    xs.publish("name", xs.array([54321.0]))
    xs.attach(xs.lookup("name"))
    event = xs.Event("native_cpu:0")
    xs.wait_any([(event, event.signal())])
    with xs.watch("name") as versions:
        next(versions)
        xs.wait_any([versions, event], 0)
    asyncio.run(awaited(event))
    xs.unpublish("name")
    writer.close()
"""


def test_public_calls(tmp_path: Path) -> None:
    """Channels, locks, numbers, names, arrays and waits for several are in the timeline, around their operations."""
    done, events = traced(tmp_path, CALLS)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    parent, child = (event["pid"] for event in of(events, "process_name", "M"))
    assert arrows(events, "frame") == [(f"Loan.send {parent}", f"Channel.receive {child}")] * 2
    received = of(events, "Channel.receive")
    assert [event["args"].get("frame") for event in received] == ["frames 1", "frames 2", None]
    assert received[-1]["args"]["error"].startswith("EOFError: ")
    seen = {(event["name"], event["pid"]) for event in events if event["ph"] in "XBb"}
    assert {(name, child) for name in ("Channel.open", "Frame.close", "Lock", "Lock.acquire", "Lock.release")} < seen
    parents = {name for name, pid in seen if pid == parent}
    assert {
        "Atomic", "Atomic.wait", "Channel.create", "Channel.send", "Channel.loan", "Channel.finish", "Channel.close",
        "array", "publish", "lookup", "attach", "unpublish", "wait_any", "any_of", "Watch.next",
    } < parents  # fmt: skip
    waits = [event["args"]["objects"] for event in of(events, "wait_any")]
    (signalled,) = of(events, "Event.signal")
    assert waits == [[[signalled["args"]["event"], 1]], ["name", signalled["args"]["event"]]]
    assert not [word for word in ("12345", "54321", "secret") if word in (tmp_path / "out.json").read_text()]


def test_what_a_killed_process_did_is_kept(tmp_path: Path) -> None:
    done, events = traced(tmp_path, TWO_PROCESSES, "forever")
    assert (done.returncode, done.stdout) == (3, "7\n"), done.stderr
    parent, child = (event["pid"] for event in of(events, "process_name", "M"))
    assert {event["name"] for event in events if event["pid"] == child and event["ph"] == "X"} == {
        "attach",
        "ipc.event.open",
        "ipc.memory.open",
        "Event.signal",
    }
    (unfinished,) = (event for event in events if event["ph"] == "B")
    assert (unfinished["name"], unfinished["pid"]) == ("Event.wait", child)
    assert unfinished["args"]["at_least"] == 10
    assert unfinished["ts"] == max(event["ts"] for event in events if event["pid"] == child and event["ph"] in "XB")
    assert arrows(events, "signal") == [(f"Event.signal {child}", f"Event.wait {parent}")]


def test_the_status_of_a_killed_program(tmp_path: Path) -> None:
    done, events = traced(
        tmp_path,
        """
        import os, signal
        import xpushare as xs
        memory = xs.malloc_device(4096, "native_cpu:0")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.returncode == 128 + signal.SIGKILL
    assert len(of(events, "malloc")) == 1


def test_errors_threads_and_forks(tmp_path: Path) -> None:
    done, events = traced(
        tmp_path,
        """
        import os, threading, warnings
        import xpushare as xs

        event = xs.Event("native_cpu:0", enable_ipc=True)
        try:
            event.wait(0.0, at_least=1)
        except TimeoutError:
            pass
        event.signal()
        event.wait(float("inf"))  # the newest: 1
        thread = threading.Thread(target=event.signal, name="other thread")
        thread.start()
        thread.join()
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if not pid:
            xs.malloc_host(1, "native_cpu:0")
            os._exit(0)
        os.waitpid(pid, 0)
        """,
    )
    assert done.returncode == 0, done.stderr
    failed, good = of(events, "Event.wait")
    assert failed["args"]["error"].startswith("TimeoutError: signal 1 of the event has not completed")
    assert good["args"]["at_least"] == 1
    assert "error" not in good["args"]
    first, second = of(events, "Event.signal")
    assert (first["args"]["result"], second["args"]["result"]) == (1, 2)
    assert first["pid"] == second["pid"] != of(events, "malloc")[0]["pid"]
    threads = {event["tid"]: event["args"]["name"] for event in of(events, "thread_name", "M")}
    assert threads[first["tid"]] == "MainThread"
    assert threads[second["tid"]] == "other thread"


def test_waits_in_an_event_loop_overlap(tmp_path: Path) -> None:
    done, events = traced(
        tmp_path,
        """
        import asyncio
        import xpushare as xs

        async def main():
            event = xs.Event("native_cpu:0")
            waits = [asyncio.create_task(event.reached(n)) for n in (1, 2, 3)]
            await asyncio.sleep(0)
            event.signal()
            event.signal()
            await asyncio.gather(*waits[:2])
            waits[2].cancel()
            await asyncio.gather(*waits, return_exceptions=True)

        asyncio.run(main())
        """,
    )
    assert done.returncode == 0, done.stderr
    begun = of(events, "Event.reached", "b")
    assert [event["args"]["at_least"] for event in begun] == [1, 2, 3]
    assert ["error" in event["args"] for event in begun] == [False, False, True]
    ends = {event["id"]: event["ts"] for event in of(events, "Event.reached", "e")}
    assert begun[2]["ts"] < ends[begun[0]["id"]]  # no slices of one thread: those would have to nest


def test_every_operation_is_seen_whatever_is_imported_first(tmp_path: Path) -> None:
    event = xs.Event("native_cpu:0", enable_ipc=True)
    pickled = pickle.dumps(event)
    done, events = traced(tmp_path, f"import pickle\npickle.loads({pickled!r}).signal()\nimport xpushare.ur")
    assert done.returncode == 0, done.stderr
    assert event.value == 1
    assert len(of(events, "ipc.event.open")) == len(of(events, "Event.signal")) == 1


def test_the_programs_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("import sys; print(sys.argv[1:]); print(__name__)")
    own = ["-o", "own", "--json", "-m", "--", "-h"]
    done = subprocess.run(
        command("--json", "-m", "package.module", *own),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, map(os.path.abspath, sys.path)), "."])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.stdout == f"{own}\n__main__\n", done.stderr
    assert json.loads(done.stderr) == {"trace": "trace.json", "processes": 0, "operations": 0, "status": 0}
    assert read(tmp_path / "trace.json") == []


def test_wrong_usage(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "program.py").write_text(f"open({str(marker)!r}, 'w')")
    nowhere = tmp_path / "no" / "out.json"
    done = subprocess.run(command("-o", nowhere, tmp_path / "program.py"), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"xpushare trace: cannot write {nowhere}: No such file or directory\n"
    assert not marker.exists()
    done = subprocess.run(command(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "usage: xpushare trace" in done.stderr
    assert done.stderr.endswith("required: program\n")


@pytest.mark.parametrize("program", [["/nowhere/nope.py"], ["-m", "nope"]])
def test_a_program_that_cannot_be_started_leaves_no_file(program: list[str], tmp_path: Path) -> None:
    """A trace of before stays."""
    output = tmp_path / "trace.json"
    for before in (None, "before"):
        if before is not None:
            output.write_text(before)
        done = subprocess.run(command("-o", output, *program), capture_output=True, text=True, timeout=TIMEOUT)
        status = 1 if "-m" in program else 2
        assert done.returncode == status
        assert f"{output} was not written: the program ended with status {status} before it used" in done.stderr
        assert (output.read_text() if output.exists() else None) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_program(tmp_path: Path, number: int) -> None:
    """SIGTERM is passed on; Ctrl-C goes to the whole group, and the command waits for what the program makes of it."""
    program, output, ready = tmp_path / "program.py", tmp_path / "out.json", tmp_path / "ready"
    program.write_text(
        textwrap.dedent(
            f"""
            import signal, sys
            signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])  # for all threads: none comes before `sigwait`
            import xpushare as xs
            xs.malloc_device(1, "native_cpu:0")
            open({str(ready)!r}, "w")
            signal.sigwait([{int(number)}])
            sys.exit(9)
            """
        )
    )
    process = subprocess.Popen(command("-o", output, program), start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        wait_until(ready.exists, TIMEOUT, "the program's start")
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(TIMEOUT) == 9
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert len(of(read(output), "malloc")) == 1


def test_no_handle_can_be_read_from_it(tmp_path: Path) -> None:
    memory = xs.malloc_device(4096, "native_cpu:0")
    handle = xs.ipc.memory.get(memory)
    source = f"""
        import xpushare as xs
        for handle in ({str(handle)!r}, {bytes(handle)!r}):
            xs.ipc.memory.open(handle).close()
        """
    done, events = traced(tmp_path, source)
    assert done.returncode == 0, done.stderr
    assert [event["args"]["handle"].count("/") for event in of(events, "ipc.memory.open")] == [1, 1]
    text = (tmp_path / "out.json").read_text()
    nonce = bytes(handle)[112:128]
    assert str(handle)[:64] not in text
    assert nonce.hex() not in text


def test_a_file_that_the_program_closes_is_not_mistaken(tmp_path: Path) -> None:
    done, events = traced(
        tmp_path,
        """
        import os
        import xpushare as xs
        from xpushare.core import recording

        xs.malloc_device(1, "native_cpu:0")
        os.close(recording._file._fd)
        with open("mine", "w") as mine:
            assert mine.fileno() == recording._file._fd
            xs.malloc_device(2, "native_cpu:0")
        """,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine").read_text() == ""
    assert [event["args"]["nbytes"] for event in of(events, "malloc")] == [1, 2]


def test_the_program_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import xpushare as xs; xs.empty(1); print(xs.empty(3).nbytes)"],
        env={
            **os.environ,
            "UR_ENABLE_LAYERS": "UR_LAYER_TRACING",
            "XPUSHARE_TRACE_FOLDER": str(tmp_path / "gone"),
            "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.stdout == "24\n"
    assert done.stderr.count("is traced no further: [Errno 2]") == 1


def test_two_processes_of_one_pid_and_a_line_cut_short(tmp_path: Path) -> None:
    lines = [
        ["process", 7, "first"],
        ["thread", 7, "MainThread"],
        ["begin", 7, 1000, "malloc", False, {}],
        ["end", 7, 1000, 1100, 2100, {}],
    ]
    folder = tmp_path / "files"
    folder.mkdir()
    for name, late in (("a", 0), ("b", 500)):
        moved = [[each + late if isinstance(each, int) and each >= 1000 else each for each in line] for line in lines]
        (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in moved) + '["begin", 7, 99')
    (folder / "empty").touch()
    events = trace.merge(folder)
    check(events)
    first, second = of(events, "malloc")
    assert (first["ts"], first["dur"], second["ts"]) == (0, 1, 0.5)
    assert first["pid"] == 7 != second["pid"]
    assert first["tid"] == 7 != second["tid"]


def declared() -> list[Traced]:
    return [*layers.operations(), *CALLS_MADE.values()]


def wrappers() -> list[str]:
    wrapped = [each.name for each in layers.operations() if each.point.wrapped]
    return wrapped + [each.name for each in CALLS_MADE.values() if each.wrapped]


def test_off_it_is_not_there() -> None:
    with Child() as child:
        assert child.call(lambda: xs.empty(1).nbytes) == 8
        assert child.call(wrappers) == []
        assert not child.call(lambda: "xpushare.core.recording" in sys.modules)
    with Child(env={"UR_ENABLE_LAYERS": "UR_LAYER_TRACING"}) as child:
        assert child.call(lambda: xs.empty(1).nbytes) == 8
        assert "Lock" not in child.call(wrappers)
        child.call(lambda: xs.Lock().close())  # what is loaded later is wrapped, too
        found = child.call(wrappers)
        assert sorted(found) == child.call(lambda: sorted(each.name for each in declared()))
        assert {"empty", "zeros", "Lock", "Lock.acquire", "malloc"} <= set(found)
        child.call(xs.enable_layers)
        assert child.call(wrappers) == []
        child.call(lambda: xs.Lock().close())
