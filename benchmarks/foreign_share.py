"""Instructions of `share` of another library's array on a device, by CUDA's adapter over a driver that returns at once.

python -m benchmarks.foreign_share [--rounds N]

The driver's own part is left out, and so is cuda-bindings' (a few Python functions stand in for it): what is counted is
ours. For each case the table has what `benchmarks.instructions` prints, and the calls of the driver. `new`: each round
shares memory that was allocated since; `known`: the same memory again, which is exported already; `again`: the same,
after its only export has ended; `busy`: while the stream has work.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import sysconfig
import tempfile
import types
from pathlib import Path
from typing import Any

from benchmarks.instructions import Mark, build, can_count

CASES = ("new", "known", "again", "busy new", "busy known", "busy again")
WARM = 30
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


def work(driver: ctypes.CDLL, mark: Mark, rounds: int) -> dict[int, int]:
    """Returns the calls of the driver by case."""
    import xpushare as xs
    from xpushare import adapters
    from xpushare.adapters import vendor
    from xpushare.adapters.cuda._adapter import Cuda

    vendor._loaded.add("libcuda.so.1")
    api = Api(driver)
    cuda = adapters._adapters["cuda"] = Cuda(api)
    cuda._driver.start()
    tensor = library_of_arrays(driver)
    ctypes.c_int64.in_dll(driver, "shape").value = NBYTES

    def value(name: str, kind: Any = ctypes.c_uint64) -> Any:
        return kind.in_dll(driver, name)

    start, number, busy = value("memory_start"), value("memory_number"), value("stream_busy", ctypes.c_int)
    calls = value("calls", ctypes.c_long)
    start.value, value("memory_nbytes").value, number.value = 0x7000_0000_0000, NBYTES, 1
    found: dict[int, int] = {}
    kept: list[Any] = []
    for label, case in enumerate(CASES, 1):
        busy.value = case.startswith("busy")
        api.queried = 600 if busy.value else 0
        if case.endswith("known"):
            kept.append(xs.share(tensor))
        for turn in range(WARM + rounds):
            if case.endswith("new"):
                number.value += 1
                start.value += 2 * NBYTES
            counts = turn >= WARM
            before = calls.value
            mark(label if counts else 0)
            handle = xs.share(tensor)
            mark(0)
            found[label] = calls.value - before
            handle.close()
        for each in kept:
            each.close()
        kept.clear()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--marks", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.marks:
        sys.path.append(wanted.marks)
        from mark import mark  # type: ignore[import-not-found]

        for label, calls in work(ctypes.CDLL(f"{wanted.marks}/driver.so"), mark, wanted.rounds).items():
            print("calls", label, calls, flush=True)
        return 0
    if not can_count():
        return 2
    with tempfile.TemporaryDirectory(prefix="xpushare-instructions-") as folder:
        build(Path(folder))
        include = f"-I{sysconfig.get_paths()['include']}"
        compiler = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", include]
        subprocess.run([*compiler, Path(__file__).with_suffix(".c"), "-o", f"{folder}/driver.so"], check=True)
        command = [sys.executable, "-m", "benchmarks.foreign_share", "--marks", folder, "--rounds", str(wanted.rounds)]
        done = subprocess.run([f"{folder}/count", *command], stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    lines = [line.split() for line in done.stdout.splitlines()]
    calls = {int(line[1]): int(line[2]) for line in lines if line[0] == "calls"}
    print(f"{'case':24}{'instructions':>14}{'lines':>8}{'pages':>8}{'calls':>8}{'driver':>8}")
    for label, _intervals, instructions, cachelines, pages, system in (map(int, x) for x in lines if x[0] != "calls"):
        print(f"{CASES[label - 1]:24}{instructions:14,}{cachelines:8,}{pages:8,}{system:8,}{calls[label]:8,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
