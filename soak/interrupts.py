"""Signals at random moments, whose handlers raise or share something themselves: in first uses, while modules load, and
in uses that are under way. Afterwards everything works, and no descriptor, export, name or half-made module is left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soak.common import Soak

_HANG = 60  # seconds for one process
_MODES = ("raises", "uses")


class Wrong(Exception):
    """What an interrupt has left."""


# --- what is interrupted: runs in processes that have not loaded the package


hand: list[tuple[Callable[[Any], object], Any]] = []  # the exports of the program, with what ends each


def ours(obj: Any, export: Callable[[Any], Any], end: Callable[[Any], object]) -> Any:
    """Export it; the program ends that even if an interrupt comes."""
    made = export(obj)
    hand.append((end, made))  # no call comes before it
    return made


def end_ours() -> None:
    """End the exports of the program, as far as that has not happened."""
    import xpushare as xs

    while hand:
        with contextlib.suppress(xs.InvalidArgumentError):  # it has ended
            end, made = hand[-1]
            end(made)
        hand.pop()


def use(handle: bytes) -> None:
    """A bit of everything, as programs write it."""
    import xpushare as xs

    with xs.malloc_device(4096, "native_cpu:0") as memory:
        ours(memory, xs.ipc.memory.get, xs.ipc.memory.put)
        end_ours()
    with xs.attach(handle) as array:
        if bytes(memoryview(array)[:2]) != b"ab":
            raise Wrong("the content is another")
    with xs.empty(4) as array:
        ours(array, xs.share, xs.ArrayHandle.close)
        end_ours()
    names(handle)
    with xs.Event("native_cpu:0", enable_ipc=True) as event, xs.Queue("native_cpu:0") as queue:
        ours(event, xs.ipc.event.get, xs.ipc.event.put)
        end_ours()
        queue.submit(int)
        queue.signal(event)
        event.wait(_HANG, at_least=1)
        queue.synchronize(_HANG)
    xs.shares()
    xs.ur.urAdapterGet()


def names(_handle: bytes) -> None:
    import xpushare as xs

    name = f"interrupted-{os.getpid()}"
    with contextlib.suppress(xs.InvalidArgumentError):
        xs.unpublish(name)  # of a round before
    with xs.empty(4) as array:
        xs.publish(name, array)
        with xs.watch(name, timeout=_HANG, lost=True) as versions:
            next(versions)
            xs.publish(name, array, replace=True)
            next(versions)
        xs.lookup(name, timeout=0)
    xs.unpublish(name)


def queues(_handle: bytes) -> None:
    import xpushare as xs

    with xs.Queue("native_cpu:0") as queue:
        for _ in range(20):
            queue.submit(int)
        queue.synchronize(_HANG)


def survey(_handle: bytes) -> None:
    import xpushare as xs

    xs.shares()


def attaches(handle: bytes) -> None:
    import xpushare as xs

    for _ in range(20):
        with xs.attach(handle):
            pass


def members(_handle: bytes) -> None:
    """Locks, atomics and channels, with and without a name."""
    import xpushare as xs

    name = f"interrupted-{os.getpid()}"
    with contextlib.closing(xs.Lock()) as lock, lock:
        pass
    with contextlib.closing(xs.Lock(name, label="soak")) as lock, contextlib.closing(xs.Lock(name)), lock:
        pass
    with xs.Atomic(5) as number, xs.Atomic(0, name) as named:
        number.add(1)
        named.store(7)
    with xs.Channel.create(None, 4, "uint8") as writer, xs.Channel.open(writer.handle) as reader:
        with writer.loan(_HANG) as loan:
            memoryview(loan.array)[:] = b"abcd"
        with reader.receive(_HANG) as frame:
            if bytes(memoryview(frame.array)) != b"abcd":
                raise Wrong("a frame has other content")
    with xs.Channel.create(name, nbytes=4096) as jobs, xs.Channel.open(name, mode="one") as worker:
        jobs.send({"job": 1}, timeout=_HANG)
        worker.receive(_HANG).close()


def ranges(_handle: bytes) -> None:
    """Ranges, growable ranges and a follower."""
    import xpushare as xs

    granule = xs.Device("native_cpu:0").memory_granularity()
    with xs.VirtualRange(2 * granule, "native_cpu:0") as place:
        with xs.PhysicalMemory(granule, "native_cpu:0") as pages:
            place.map(pages, granule)
        place.set_access(granule, granule, "r")
        place.unmap(granule, granule)
    with xs.VirtualRange(16 * granule, "native_cpu:0", growable=True) as grown:
        grown.grow(granule)
        ours(grown, xs.share, xs.ArrayHandle.close)
        with contextlib.closing(xs.attach(hand[-1][1])) as follower:
            grown.grow(2 * granule)
            follower.refresh()
            memoryview(grown)[-1] = 7
            if memoryview(follower)[-1] != 7:
                raise Wrong("a follower has other content")
            gc.collect()
            grown.shrink(2 * granule)
            follower.refresh()
        end_ours()


def owned(handle: bytes) -> None:
    """An import that this process owns, and shares again."""
    import xpushare as xs

    with xs.attach(handle, own=True) as array:
        ours(array, xs.share, xs.ArrayHandle.close)
        end_ours()


def keeps(_handle: bytes) -> None:
    """What a keeper keeps."""
    import xpushare as xs
    from xpushare.sharing import keeping

    name = f"kept-{os.getpid()}"
    with xs.zeros(16) as array:
        xs.publish(name, array, keep=True, replace=True)
    xs.lookup(name, timeout=_HANG)
    with keeping.connected() as keeper:
        if keeper is None:
            raise Wrong("there is no keeper")
        keeper.drop(name)


USES: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (use, names, queues, survey, attaches, members, ranges, owned, keeps)
}


# --- what is left


def _expect_whole_modules() -> None:
    """Every module of the package is loaded to its end, and refers to no other one's earlier self."""
    loaded = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "xpushare"}
    for name, module in loaded.items():
        parent, _, last = name.rpartition(".")
        spec = getattr(module, "__spec__", None)
        if getattr(spec, "_initializing", False):
            raise Wrong(f"{name} is half made")
        if (
            isinstance(getattr(loaded.get(parent), last, None), type(sys))
            and getattr(loaded[parent], last) is not module
        ):
            raise Wrong(f"{parent} has another {last}")
        for key, value in list(vars(module).items()):
            home = loaded.get(getattr(value, "__module__", None) or "")
            own = getattr(value, "__name__", "")
            if isinstance(value, type) and home is not None and getattr(home, own, value) is not value:
                raise Wrong(f"{name}.{key} is of an earlier {home.__name__}")
            if isinstance(value, type(sys)) and loaded.get(value.__name__, value) is not value:
                raise Wrong(f"{name}.{key} is an earlier {value.__name__}")


def _fds() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{number}")
            found.append("pipe or socket" if link.startswith(("pipe:", "socket:")) else link)
    return sorted(found)


def _holdings() -> dict[str, Any]:
    import xpushare as xs
    from xpushare.sharing import node

    gc.collect()
    xs.trim()
    folder, crews = (f"{os.environ['XPUSHARE_RUNTIME_DIR']}/{each}" for each in ("names", "crews"))
    here = node.current()
    table = here.table_if_any
    return {
        "fds": Counter(_fds()),
        "exports": [str(each.handle.kind) for each in table.exports()] if table is not None else [],
        "names": [each for each in os.listdir(folder) if str(os.getpid()) in each or each.startswith(".")],
        "crews": os.listdir(crews) if os.path.isdir(crews) else [],
    }


def _expect_nothing_left(before: dict[str, Any]) -> None:
    end = time.monotonic() + 5
    while True:
        after = _holdings()
        left = {
            "fds": dict(after["fds"] - before["fds"]),
            "exports": after["exports"][len(before["exports"]) :],
            "names": after["names"],
            "crews": after["crews"],
        }
        if not any(left.values()):
            return
        if time.monotonic() > end:
            raise Wrong(f"left: {left}")
        time.sleep(0.01)  # the warden closes its ends a moment later


# --- one process


places: list[str] = []  # where the last signals came


def _place(frame: FrameType | None) -> str:
    lines = []
    while frame is not None and len(lines) < 4:
        lines.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)


class _Interrupt(KeyboardInterrupt):
    pass


def _caused(error: BaseException | None, raised: list[BaseException]) -> bool:
    """Whether one of these is behind it. Python makes another error of one in some places: `__set_name__` chains it,
    and `enum` (3.12) makes one of the same type and text.
    """
    known = {(type(each), str(each)) for each in raised}
    while error is not None and (type(error), str(error)) not in known:
        error = error.__cause__ or error.__context__
    return error is not None


def _interrupt(call: Callable[[bytes], None], after: float, mode: str, handle: bytes, seen: Counter[str]) -> None:
    """Call it, and have a signal come after so many seconds. What its handler raises ends the call."""
    raised: list[BaseException] = []

    def handler(_number: int, frame: FrameType | None) -> None:
        seen["came"] += 1
        places.append(_place(frame))
        if mode == "raises":
            raised.append(_Interrupt())
            raise raised[0]
        try:
            import xpushare as xs

            with xs.attach(handle), xs.empty(4) as array:
                xs.share(array).close()
                xs.ipc.memory.put(xs.ipc.memory.get(array.memory))
            xs.shares()
        except Exception as error:
            seen[f"{type(error).__name__}: {str(error)[:80]}"] += 1
            raised.append(error)
            raise

    signal.signal(signal.SIGALRM, handler)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            call(handle)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:
        if not _caused(error, raised):
            raise  # no handler raised this
    finally:
        raised.clear()  # their tracebacks hold what was under way
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    end_ours()


def _first_use(handle: bytes, seen: Counter[str], choose: random.Random) -> None:
    mode = choose.choice(_MODES)
    _interrupt(use, choose.uniform(0.0005, 0.7), mode, handle, seen)
    use(handle)
    _expect_whole_modules()
    before = _holdings()
    use(handle)
    _expect_nothing_left(before)
    if before["exports"] or before["names"]:
        raise Wrong(f"left by the first use: {before}")


def _uses(handle: bytes, seen: Counter[str], choose: random.Random, rounds: int) -> None:
    for each in USES.values():
        each(handle)
    before = _holdings()
    lasts = {}
    for name, each in USES.items():
        start = time.perf_counter()
        each(handle)
        lasts[name] = time.perf_counter() - start
    for _ in range(rounds // 10):
        played = []
        places.clear()
        for _ in range(10):
            name, mode = choose.choice(list(USES)), choose.choice(_MODES)
            played.append((name, mode))
            _interrupt(USES[name], choose.uniform(1e-6, lasts[name]), mode, handle, seen)
        for each in USES.values():
            each(handle)
        try:
            _expect_nothing_left(before)
        except Wrong as wrong:
            raise Wrong(f"{wrong} after {played} at {places}") from None


def _child(handle: bytes, seed: int, rounds: int, report: int) -> None:
    seen: Counter[str] = Counter()
    wrong = ""
    faulthandler.dump_traceback_later(_HANG + rounds, exit=True)
    sys.unraisablehook = lambda what: seen.update([f"unraisable {what.exc_value!r} in {what.object!r:.60}"])
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "unclosed <ArrayHandle", ResourceWarning)
    try:
        choose = random.Random(seed)
        if rounds:
            _uses(handle, seen, choose, rounds)
        else:
            _first_use(handle, seen, choose)
    except BaseException:
        wrong = traceback.format_exc()
    with open(report, "w") as file:
        json.dump({"wrong": wrong, "seen": seen}, file)


def nest() -> None:
    """Fork a process for each line of standard input, `seed rounds`; print what it reports. Loads nothing of the
    package, so that each child does.
    """
    import numpy  # noqa: F401

    handle = bytes.fromhex(sys.stdin.readline())
    for line in sys.stdin:
        seed, rounds = map(int, line.split())
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            sys.stdin.close()
            _child(handle, seed, rounds, writing)
            sys.exit(0)  # with what the package does at the exit
        os.close(writing)
        with open(reading) as file:
            found = file.read() or json.dumps({"wrong": "no report: it hung, or died", "seen": {}})
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({**json.loads(found), "status": status}), flush=True)


# --- the program


def run(soak: Soak) -> None:
    import xpushare as xs
    from xpushare.sharing import keeping

    first, rounds = (
        soak.count(600, 30),
        soak.count(6000, 200),
    )
    each = min(rounds, 100)
    plan = [(soak.random.getrandbits(32), 0) for _ in range(first)]
    plan += [(soak.random.getrandbits(32), each) for _ in range(rounds // each)]
    seen: Counter[str] = Counter()
    command = [sys.executable, "-c", "from soak.interrupts import nest; nest()"]
    wrong = []
    with (
        xs.array(list(b"ab"), dtype="uint8") as array,
        xs.share(array) as handle,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{bytes(handle).hex()}\n")
        for seed, count in plan:
            process.stdin.write(f"{seed} {count}\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            seen.update(found["seen"])
            if found["wrong"] or found["status"]:
                wrong.append(f"seed {seed}, {count} rounds: status {found['status']} {found['wrong']}")
                soak.say(wrong[-1])
        process.stdin.close()
    with keeping.connected() as keeper:
        if keeper is not None:
            keeper.stop()
    soak.say(", ".join(f"{count} {what}" for what, count in seen.most_common()))
    soak.check(not wrong, f"{len(wrong)} of {len(plan)} processes")
    soak.check(seen["came"] >= (first + rounds) // 2, f"only {seen['came']} interrupts came in time")


if __name__ == "__main__":
    common = importlib.import_module("soak.common")
    sys.exit(common.main("interrupts", importlib.import_module("soak.interrupts").run))
