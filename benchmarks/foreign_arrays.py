"""What the hand-over of another library's array on a device takes of our own: CUDA's adapter over a driver that returns
at once.

python -m benchmarks.foreign_arrays [--rounds N] [--time]

Two processes hand over an array in memory of cudaMalloc. The driver's own part is left out, and so is cuda-bindings' (a
few Python functions stand in for it). `new`: each round shares memory that was allocated since; `again`: the same
memory, which the importer has closed a moment ago; `open`: which it has open; `busy`: while the stream has work, so
that an event orders the array. For each the table has what `benchmarks.instructions` prints, and the driver calls;
with `--time`, medians and quartiles in microseconds, and how many functions of Python were called.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import types
from pathlib import Path
from typing import Any

from benchmarks.instructions import build, can_count

CASES = ("new", "again", "open", "busy new", "busy again")
CALLS = ("share", "close of the handle", "attach", "close of the array")
PROGRAM = ["-m", "benchmarks.foreign_arrays"]
WARM = 40
NBYTES = 64 << 20


class Api:
    """In the place of `cuda.bindings.driver`."""

    CUdevice_attribute = CUpointer_attribute = CUstreamCaptureMode = CUstream = CUresult = staticmethod(int)

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._other = ctypes.cast(library.other, ctypes.c_void_p).value
        self.queried = 0  # what a query of a stream returns
        self._uuid = ctypes.create_string_buffer(b"stand-in for CUDA", 64)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *_given: (0,)

    def cuGetProcAddress(self, name: bytes, _version: int, _flags: int) -> tuple[Any, ...]:
        function = getattr(self._library, name.decode(), None)
        return 0, self._other if function is None else ctypes.cast(function, ctypes.c_void_p).value, 0

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDeviceGetUuid_v2(self, _device: int) -> tuple[int, Any]:
        return 0, types.SimpleNamespace(getPtr=lambda: ctypes.addressof(self._uuid))

    def cuDeviceGetName(self, _length: int, _device: int) -> tuple[int, bytes]:
        return 0, b"Stand-in"

    def cuDeviceGetAttribute(self, _attribute: int, _device: int) -> tuple[int, int]:
        return 0, 1

    def cuDeviceTotalMem(self, _device: int) -> tuple[int, int]:
        return 0, 80 << 30

    def cuMemGetInfo(self) -> tuple[int, int, int]:
        return 0, 70 << 30, 80 << 30

    def cuDevicePrimaryCtxRetain(self, _device: int) -> tuple[int, int]:
        return 0, 0x1000

    def cuStreamCreate(self, _flags: int) -> tuple[int, int]:
        return 0, 0x2000

    def cuMemHostGetDevicePointer(self, address: int, _flags: int) -> tuple[int, int]:
        return 0, address

    def cuThreadExchangeStreamCaptureMode(self, _mode: int) -> tuple[int, int]:
        return 0, 0

    def cuStreamQuery(self, _stream: int) -> tuple[int]:
        return (self.queried,)

    def cuStreamGetCtx(self, _stream: int) -> tuple[int, int]:
        return 0, 0x1000

    def cuDevicePrimaryCtxGetState(self, _device: int) -> tuple[int, int, int]:
        return 0, 0, 1

    def cuStreamIsCapturing(self, _stream: int) -> tuple[int, int]:
        return 0, 0

    def cuStreamGetId(self, stream: int) -> tuple[int, int]:
        return 0, stream


def library_of_arrays(driver: ctypes.CDLL) -> Any:
    """A class of arrays that is a library of its own, named as torch."""
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    exchange = ctypes.addressof(ctypes.c_char.in_dll(driver, "exchange"))
    stream = types.SimpleNamespace(cuda_stream=0, device=types.SimpleNamespace(index=0))
    module: Any = types.ModuleType("torch")
    module.version = types.SimpleNamespace(hip=None)
    module.cuda = types.SimpleNamespace(current_stream=lambda _ordinal: stream)
    sys.modules["torch"] = module
    space = {
        "__module__": "torch",
        "__dlpack_c_exchange_api__": new_capsule(exchange, b"dlpack_exchange_api", None),
        "__cuda_array_interface__": {},
        "requires_grad": False,
    }
    return type("Tensor", (), space)()


def start(driver: ctypes.CDLL) -> Api:
    """Have this process's CUDA be the stand-in."""
    import xpushare as xs
    from xpushare import adapters
    from xpushare.adapters import vendor
    from xpushare.adapters.cuda._adapter import Cuda

    xs.share(xs.empty(1, device="native_cpu:0")).close()  # all of it is imported
    vendor._loaded.add("libcuda.so.1")
    api = Api(driver)
    assert "cuda" not in adapters._adapters
    vars(Cuda)["__init__"].__defaults__ = (api,)
    cuda: Any = adapters.adapter("cuda")
    cuda._driver.start()
    return api


class Meter:
    """Measures calls, by label."""

    def __init__(self, folder: str, timed: bool) -> None:
        self.times: dict[int, list[float]] = {}
        self.functions: dict[int, int] = {}  # of Python, in the last call but one
        self._timed = timed
        if not timed:
            sys.path.append(folder)
            from mark import mark  # type: ignore[import-not-found]

            self._mark = mark

    def __call__(self, label: int, call: Any) -> Any:
        """Call it. `label` 0: nothing is measured."""
        if not self._timed:
            self._mark(label)
            try:
                return call()
            finally:
                self._mark(0)
        if len(self.times.setdefault(label, [])) == 5:
            return self._count(label, call)
        begin = time.perf_counter_ns()
        found = call()
        self.times[label].append((time.perf_counter_ns() - begin) / 1000)
        return found

    def _count(self, label: int, call: Any) -> Any:
        found = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(count)
        try:
            return call()
        finally:
            sys.setprofile(None)
            self.functions[label] = found
            self.times[label].append(self.times[label][-1])


def label_of(case: int, call: int) -> int:
    return 1 + case * len(CALLS) + call


def produce(channel: socket.socket, driver: ctypes.CDLL, meter: Meter, rounds: int) -> dict[int, int]:
    """Returns the calls of the driver by label."""
    api = start(driver)
    import xpushare as xs

    tensor = library_of_arrays(driver)

    def value(name: str, kind: Any = ctypes.c_uint64) -> Any:
        return kind.in_dll(driver, name)

    value("shape", ctypes.c_int64).value = NBYTES
    start_, number, busy = value("memory_start"), value("memory_number"), value("stream_busy", ctypes.c_int)
    calls = value("calls", ctypes.c_long)
    start_.value, value("memory_nbytes").value, number.value = 0x7000_0000_0000, NBYTES, 1
    found: dict[int, int] = {}
    for case, name in enumerate(CASES):
        busy.value = name.startswith("busy")
        api.queried = 600 if busy.value else 0
        for turn in range(WARM + rounds):
            if name.endswith("new") or turn == 0:
                number.value += 1
                start_.value += 2 * NBYTES
            counts = turn >= WARM
            label = label_of(case, 0) if counts else 0
            before = calls.value
            handle = meter(label, lambda: xs.share(tensor))
            found[label] = calls.value - before
            channel.send(bytes([case, counts]) + bytes(handle))
            channel.recv(1)
            meter(label and label + 1, handle.close)
    channel.send(b"-")
    return found


def consume(channel: socket.socket, driver: ctypes.CDLL, meter: Meter, _rounds: int) -> dict[int, int]:
    start(driver)
    import xpushare as xs

    calls = ctypes.c_long.in_dll(driver, "calls")
    found: dict[int, int] = {}
    held: dict[int, Any] = {}
    while len(message := channel.recv(4096)) > 1:
        case, counts = message[:2]
        label = label_of(case, 2) if counts else 0
        raw = message[2:]
        before = calls.value
        array = meter(label, lambda: xs.attach(raw))  # noqa: B023 - it is called here
        found[label] = calls.value - before
        if CASES[case] == "open" and case not in held:
            held[case] = xs.attach(raw)
        meter(label and label + 1, array.close)
        del array
        channel.send(b"+")
    return found


SIDES = {"produce": produce, "consume": consume}


def side(options: argparse.Namespace) -> None:
    driver = ctypes.CDLL(f"{options.folder}/driver.so")
    meter = Meter(options.folder, options.time)
    with socket.socket(fileno=options.fd) as channel:
        gc.disable()
        called = SIDES[options.side](channel, driver, meter, options.rounds)
    for label, number in called.items():
        print("calls", label, number, flush=True)
    for label, samples in meter.times.items():
        print("times", label, meter.functions.get(label, 0), *statistics.quantiles(samples, n=4), flush=True)


def measure(folder: str, options: argparse.Namespace) -> list[list[str]]:
    """The lines that the two sides print. Instructions of one side are counted while the other one runs freely."""
    found: list[list[str]] = []
    for stepped, free in (("produce", "consume"), ("consume", "produce"))[: 1 if options.time else 2]:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        common = [sys.executable, *PROGRAM, "--folder", folder, "--rounds", str(options.rounds)]
        one = [*common, "--side", stepped, "--fd", str(here.fileno())]
        other = [*common, "--side", free, "--fd", str(there.fileno())]
        with here, there:
            one, other = (
                ([*one, "--time"], [*other, "--time"])
                if options.time
                else ([f"{folder}/count", *one], [*other, "--time"])
            )
            peer = subprocess.Popen(other, pass_fds=[there.fileno()], stdout=subprocess.PIPE, text=True)
            there.close()
            done = subprocess.run(
                one, pass_fds=[here.fileno()], stdout=subprocess.PIPE, text=True, check=True, timeout=500
            )
            here.close()
            also = peer.communicate(timeout=100)[0]
        found += [line.split() for line in (done.stdout + (also if options.time else "")).splitlines()]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="5, or 300 with --time")
    parser.add_argument("--time", action="store_true", help="microseconds instead of instructions")
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    for hidden in "--side", "--folder":
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options)
        return 0
    options.rounds = options.rounds or (300 if options.time else 5)
    if not can_count():
        return 2
    with tempfile.TemporaryDirectory(prefix="xpushare-instructions-") as folder:
        build(Path(folder))
        include = f"-I{sysconfig.get_paths()['include']}"
        compiler = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", include]
        subprocess.run([*compiler, Path(__file__).with_suffix(".c"), "-o", f"{folder}/driver.so"], check=True)
        lines = measure(folder, options)
    calls = {int(line[1]): int(line[2]) for line in lines if line[0] == "calls"}
    rest = {int(line[1 if options.time else 0]): line for line in lines if line[0] != "calls"}
    if options.time:
        print(f"{'case':12}{'call':24}{'µs':>10}{'quartiles':>20}{'functions':>12}{'driver':>8}")
    else:
        print(f"{'case':12}{'call':24}{'instructions':>14}{'lines':>8}{'pages':>8}{'calls':>8}{'driver':>8}")
    for label in sorted(rest):
        if label == 0:
            continue
        case, call = divmod(label - 1, len(CALLS))
        start = f"{CASES[case]:12}{CALLS[call]:24}"
        driver = calls.get(label, 0)
        if options.time:
            functions, low, median, high = int(rest[label][2]), *map(float, rest[label][3:])
            print(f"{start}{median:10.1f}{f'[{low:.1f} {high:.1f}]':>20}{functions:12,}{driver:8,}")
        else:
            _label, _intervals, instructions, cachelines, pages, system = map(int, rest[label])
            print(f"{start}{instructions:14,}{cachelines:8,}{pages:8,}{system:8,}{driver:8,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
