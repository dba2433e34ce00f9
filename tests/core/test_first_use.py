"""First uses that go wrong in the middle: a signal's handler that shares or raises while modules load, or no fds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

import xpushare as xs
from sampling import sampled

# What follows runs in a forked child for each of the cases, one after the other.
EACH = """
import ast, os, sys
import numpy
exec(sys.argv[1])
for case in ast.literal_eval(sys.argv[2]):
    child = os.fork()
    if not child:
        break
    status = os.waitpid(child, 0)[1]
    assert not status, (case, status)
else:
    sys.exit()
"""
# Calls a handler when the import of a module is asked for, as if a signal came at that moment.
PROGRAM = """
import importlib.abc
wanted, reaction, handle = case

class Signal(importlib.abc.MetaPathFinder):
    def __init__(self): self.left = True
    def find_spec(self, name, path=None, target=None):
        if name == wanted and self.left:
            self.left = False
            handler()

def raises(): raise KeyboardInterrupt
def attaches():
    import xpushare
    xpushare.attach(handle).close()
def uses_ipc():
    import xpushare
    xpushare.ipc.memory.open
    raise KeyboardInterrupt
def uses_and_raises():
    try: attaches()
    finally: raise KeyboardInterrupt
handler = globals()[reaction]
sys.meta_path.insert(0, Signal())

def use():
    import xpushare as xs
    with xs.attach(handle) as array, xs.empty(4) as own, xs.share(own):
        assert bytes(memoryview(array)) == b"abc"
        xs.ipc.memory.put(xs.ipc.memory.get(own.memory))
        xs.publish("first", own)
        xs.lookup("first", timeout=0)
        xs.unpublish("first")
        xs.ipc.event.open, xs.ipc.physical_memory.open
    if "ur" in wanted.split("."):
        xs.ur.urAdapterGet
try:
    use()
except (KeyboardInterrupt, RuntimeError) as error:
    print(type(error).__name__)
assert not sys.meta_path[0].left, "the module is not loaded by this"
use()
import xpushare
for name, module in list(sys.modules.items()):
    if name.startswith("xpushare."):
        parent, _, last = name.rpartition(".")
        found = getattr(sys.modules[parent], last, None)
        assert not isinstance(found, type(sys)) or found is module, name
        assert not getattr(module.__spec__, "_initializing", False), name
        for value in vars(module).values():
            home = sys.modules.get(getattr(value, "__module__", None) or "")
            if isinstance(value, type) and home is not None and home.__name__.startswith("xpushare"):
                assert getattr(home, value.__name__, value) is value, (name, value)
for name in xpushare.__all__:
    if name != "ur" or "ur" in wanted.split("."):  # it takes as long as all the others
        getattr(xpushare, name)
print(wanted, "is whole")
"""
MODULES = (
    "xpushare._native",
    "xpushare.adapters.native_cpu",
    "xpushare.common.errors",
    "xpushare.core.memory",
    "xpushare.core.event",
    "xpushare.ipc.physical_memory",
    "xpushare.objects.array",
    "xpushare.objects.message",
    "xpushare.sharing.peers",
    "xpushare.sharing.routes.pidfd",
    "xpushare.arrays.names",
    "xpushare.ur._enums",
)


@pytest.fixture(scope="module")
def handle() -> Iterator[str]:
    with xs.array(list(b"abc"), dtype="uint8") as array, xs.share(array) as shared:
        yield str(shared)


def run(program: str, before: str = "", cases: Sequence[tuple[object, ...]] = ((),)) -> list[str]:
    """The lines that the program prints in all cases, each in a process that has imported numpy and run `before`."""
    quiet = ("-W", "error", "-W", "ignore:unclosed <ArrayHandle:ResourceWarning")
    quiet += ("-W", "ignore:This process:DeprecationWarning")  # from 3.12 on: of the fork, as numpy has threads
    done = subprocess.run(
        [sys.executable, *quiet, "-c", EACH + program, before, repr(cases)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("handler", sampled(["raises", "attaches", "uses_ipc", "uses_and_raises"], ["uses_and_raises"]))
def test_a_handler_while_a_module_loads_leaves_whole_modules(handler: str, handle: str) -> None:
    lines = run(PROGRAM, cases=[(module, handler, handle) for module in MODULES])
    assert [line for line in lines if line.endswith("is whole")] == [f"{module} is whole" for module in MODULES]


FEW = """
import resource
operation, free = case
operations = {
    "empty": lambda: xs.empty(4),
    "share": lambda: xs.share(xs.empty(4)),
    "publish": lambda: xs.publish("few", xs.empty(4)),
    "lookup": lambda: xs.lookup("few", timeout=0),
    "shares": lambda: xs.shares(),
    "event": lambda: xs.Event("native_cpu:0", enable_ipc=True),
}
used = {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
limit, left = 0, free
while left or limit in used:
    left -= limit not in used
    limit += 1
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
try:
    operations[operation]()
except (xs.XpuShareError, TimeoutError) as error:
    print(type(error).__name__)
else:
    print("works")
resource.setrlimit(resource.RLIMIT_NOFILE, before)
try:
    operations[operation]()
except TimeoutError:
    pass
"""


OPERATIONS = ("empty", "share", "publish", "lookup", "shares", "event")
COLD = "import xpushare as xs"


@pytest.mark.parametrize(
    ("before", "least"), [(COLD, 1), (f"{COLD}\nfor name in xs.__all__: getattr(xs, name)", 0)], ids=["cold", "warm"]
)
def test_a_first_use_with_few_descriptors(before: str, least: int) -> None:
    """It fails with an error of ours, or works; and it works once there are descriptors again."""
    cases = [(operation, free) for operation in OPERATIONS for free in (least, least + 1)]
    lines = run(FEW, before, cases)
    assert len(lines) == len(cases)
    assert set(lines) <= {"OutOfMemoryError", "TimeoutError", "works"}


DAEMON = """
import threading, time
import xpushare as xs
array = xs.empty(4)
event = xs.Event("native_cpu:0", enable_ipc=True)
def wait():
    try:
        event.wait(0.001, at_least=5)
    except TimeoutError:
        pass
loops = {
    "share": lambda: xs.share(array).close(),
    "publish": lambda: xs.publish("x", array, replace=True),
    "event": lambda: xs.Event("native_cpu:0", enable_ipc=True).close(),
    "signal": xs.Event("native_cpu:0", enable_ipc=True).signal,
    "done": lambda: event.done,
    "wait": wait,
    "watch": lambda: next(xs.watch("nobodys")),
    "get": lambda: xs.ipc.memory.put(xs.ipc.memory.get(array.memory)),
}
turns = []
def work(call):
    while True:
        call()
        turns.append(None)
for call in loops.values():
    threading.Thread(target=work, args=(call,), daemon=True).start()
while len(turns) < 500:
    time.sleep(0.001)
"""


def test_daemon_threads_end_quietly_with_the_process() -> None:
    assert run(DAEMON) == []


# What a first use may load of the package, in modules, and what it must not load at all.
MOST = {"import xpushare": 1, "empty": 47, "share": 49, "attach": 48}
CALLS = {
    "import xpushare": "xs",
    "empty": "xs.empty(1 << 20, 'u1', device='native_cpu:0')",
    "share": "xs.share(xs.empty(1 << 20, 'u1', device='native_cpu:0'))",
    "attach": "xs.attach(handle)",
}
UNNEEDED = (
    *("asyncio", "ctypes", "hashlib", "html", "inspect", "ipaddress", "logging", "ml_dtypes", "multiprocessing"),
    *("pathlib", "random", "selectors", "socket", "tempfile", "typing_extensions", "urllib"),
    *("xpushare.adapters.stream", "xpushare.channels", "xpushare.core.event", "xpushare.core.layers"),
    *("xpushare.core.queue", "xpushare.keeper", "xpushare.objects.event", "xpushare.sharing.routes.socket"),
    *("xpushare.timeline", "xpushare.ur"),
)
LOADED = """
import numpy, sys
handle, before = sys.argv[1], set(sys.modules)
import xpushare as xs
kept = {call}
print(*set(sys.modules) - before)
"""


@pytest.mark.parametrize("call", MOST)
def test_a_first_use_loads_few_modules(call: str, handle: str) -> None:
    source = LOADED.format(call=CALLS[call])
    done = subprocess.run(
        [sys.executable, "-c", source, handle], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.split()
    assert sum(name.partition(".")[0] == "xpushare" for name in loaded) <= MOST[call], sorted(loaded)
    assert not set(UNNEEDED).intersection(loaded)
